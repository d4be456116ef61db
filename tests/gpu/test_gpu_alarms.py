"""Errors that GPU kernels detect at run time: they raise at the wait for the result and for all
dependent results, and nowhere else."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon
from support.calls import raises
from support.processes import finished
from support.stand_in import needs_gpu

pytestmark = needs_gpu

TABLE = np.arange(12, dtype="float32").reshape(4, 3)


def arrays(ctx=None):
    ctx = ctx or mx.gpu(0)
    return (
        mx.nd.array(TABLE, ctx=ctx),
        mx.nd.array([0, 3, 1], ctx=ctx),
        mx.nd.array([1, 7, 9], ctx=ctx),
    )


def occupy(ctx, how):
    """Prepares the stream before the failing work. With "busy", earlier work delays the stream so
    that all work is issued before the error is detected; with "idle", nothing is queued."""
    if how == "busy":
        big = mx.nd.ones((700, 700), ctx=ctx)
        for _ in range(2):
            big = mx.nd.dot(big, big) * 0.001


def attempt(work):
    """Queues the work and returns a function that reads its result. Queueing itself may raise if
    the failure is already known."""
    try:
        return work().asnumpy
    except IndexError as error:
        refused = error

    def again():
        raise refused

    return again


BAD = {
    "take": (
        lambda t, i: mx.nd.take(t, i, mode="raise"),
        r"take: index 7 is out of range for a dimension of size 4 \(0 to 3 are valid\)",
    ),
    "gather_nd": (
        lambda t, i: mx.nd.gather_nd(t, i.expand_dims(0)),
        r"gather_nd: index 7 is out of range for a dimension of size 4 \(-4 to 3 are valid\)",
    ),
    "scatter_nd": (
        lambda t, i: mx.nd.scatter_nd(t[:3], i.expand_dims(0), shape=(4, 3)),
        "scatter_nd: index 7 is out of range",
    ),
    "index_copy": (
        lambda t, i: mx.nd.contrib.index_copy(t, i, t[:3]),
        "_scatter_set_nd: index 7 is out of range",  # index_copy is composed of this op
    ),
}


@pytest.mark.parametrize("how", ["idle", "busy"])
@pytest.mark.parametrize("name", BAD)
def test_bad_index_raises_at_the_wait_for_the_result(name, how):
    function, text = BAD[name]
    table, good, bad = arrays()
    occupy(mx.gpu(0), how)
    before = table + 1
    wrong = function(table, bad)  # the error names this line
    after, right = table * 2, function(table, good)
    with pytest.raises(
        mx.base.MXNetError, match=text + r".*\[\S+ on gpu\(0\), queued at .*test_gpu_alarms.py:\d+"
    ) as caught:
        wrong.wait_to_read()
    assert isinstance(caught.value, IndexError)
    with pytest.raises(IndexError, match=text):  # raises at every read
        wrong.asnumpy()
    mx.nd.waitall()  # the error was already reported
    np.testing.assert_array_equal(before.asnumpy(), TABLE + 1)
    np.testing.assert_array_equal(after.asnumpy(), TABLE * 2)
    np.testing.assert_array_equal(right.asnumpy(), function(*arrays(mx.cpu(0))[:2]).asnumpy())


DRAWS = {
    "normal": (lambda p: mx.nd.random.normal(p, p), "_sample_normal: sigma must .* element 1 is"),
    "gamma": (lambda p: mx.nd.random.gamma(p, p, 9), "_sample_gamma: alpha must .* element 1 is"),
    "negative_binomial": (
        lambda p: mx.nd.random.negative_binomial(p * 0, p),
        "_sample_negative_binomial: p must .* element 1 is not",
    ),
    "multinomial": (
        lambda p: mx.nd.random.multinomial(p.reshape((2, 2))),
        "probabilities of row 0",
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_invalid_distribution_parameters_raise_at_the_wait(name):
    function, text = DRAWS[name]
    good = function(mx.nd.array([1, 0.5, 0.25, 1], ctx=mx.gpu(0)))
    wrong = function(mx.nd.array([1, -2, 3, -4], ctx=mx.gpu(0)))
    raises(ValueError, text, wrong.wait_to_read)
    mx.nd.waitall()
    assert good.asnumpy().shape == good.shape


@pytest.mark.parametrize("how", ["idle", "busy"])
def test_dependent_results_fail_on_all_devices(how):
    other = mx.gpu(mx.num_gpus() - 1)
    table, good, bad = arrays()
    for round in range(2):
        occupy(mx.gpu(0), how)
        wrong = mx.nd.take(table, bad, mode="raise")
        right = mx.nd.take(table, good, mode="raise")
        target = mx.nd.zeros((3, 3), ctx=other)
        spoilt = [
            attempt(work)
            for work in (
                lambda: wrong + 1,
                lambda: (wrong * 2).as_in_context(other),
                lambda: (right + wrong).as_in_context(other) - 1,
                lambda: wrong.copyto(target),
                lambda: wrong.as_in_context(mx.cpu(0)) + 1,
            )
        ]
        sound = [right + 1, right.as_in_context(other) * 2, right.as_in_context(mx.cpu(0)) + 1]
        for result in spoilt:
            raises(IndexError, "index 7 is out of range.*take on gpu", result)
        target[:] = 5  # a full write makes it valid
        for array, factor, more in zip(sound, (1, 2, 1), (1, 0, 1)):
            np.testing.assert_array_equal(array.asnumpy(), TABLE[[0, 3, 1]] * factor + more)
        assert (target.asnumpy() == 5).all()
        mx.nd.waitall()


@pytest.mark.parametrize(
    "use",
    [
        "wrong.as_in_context(mx.cpu(0))",
        "wrong.as_in_context(mx.gpu(mx.num_gpus() - 1)) + 1",
        "wrong + 1",
        "block(wrong)",
    ],
)
def test_work_queued_after_an_unreported_failure_raises(use):
    """Nothing waits for the failed work first. Runs in a subprocess without any other failure."""
    code = f"""
    import time
    import mpgluon as mx

    table, bad = mx.nd.ones((4, 3), ctx=mx.gpu(0)), mx.nd.array([7], ctx=mx.gpu(0))
    block = mx.gluon.nn.HybridLambda(lambda F, x: F.exp(x) * 2)
    block.hybridize()
    block(table[:1]).wait_to_read()
    wrong = mx.nd.take(table, bad, mode="raise")
    time.sleep(0.5)
    try:
        ({use}).asnumpy()
    except IndexError as error:
        print(error)
    """
    assert "take: index 7 is out of range" in finished(code).stdout


def test_waitall_reports_a_failure_once():
    table, _, bad = arrays()
    wrong = mx.nd.take(table, bad, mode="raise") + 1
    raises(IndexError, "index 7 is out of range", lambda: mx.nd.waitall())
    mx.nd.waitall()
    del wrong


def test_more_checks_than_report_slots_are_reported():
    """Every second check fails, and its own result reports it. Then much work follows one
    check."""
    table, good, bad = arrays()
    occupy(mx.gpu(0), "busy")
    results = [mx.nd.take(table + k, bad if k % 2 else good, mode="raise") for k in range(150)]
    for k, result in enumerate(results):
        if k % 2:
            with pytest.raises(IndexError):
                result.asnumpy()
        else:
            np.testing.assert_array_equal(result.asnumpy(), TABLE[[0, 3, 1]] + k)
    occupy(mx.gpu(0), "busy")
    wrong, chain = mx.nd.take(table, bad, mode="raise"), table
    for _ in range(1500):
        chain = chain + 1
    late = wrong + chain[:3]
    np.testing.assert_array_equal(chain.asnumpy(), TABLE + 1500)
    with pytest.raises(IndexError):
        late.asnumpy()
    mx.nd.waitall()


class Picky(gluon.HybridBlock):
    """Two checks on two devices."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def hybrid_forward(self, F, x, first, second):
        y = F.take(x, first, mode="raise") * 2
        y = y.as_in_context(self.other)
        return y + 1, F.take(y, second.as_in_context(self.other), mode="raise") + 1


@pytest.mark.parametrize("how", ["idle", "busy"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_compiled_and_eager_blocks_report_bad_indices(hybrid, how):
    other = mx.gpu(mx.num_gpus() - 1)
    net = Picky(other)
    if hybrid:
        net.hybridize()
    for first, second, which in (
        ([0, 1], [1, 1], 0),
        ([0, 9], [0, 1], 1),
        ([2, 3], [5, 0], 2),
        ([1, 1], [0, 1], 0),
    ):
        x = mx.nd.array(TABLE, ctx=mx.gpu(0))
        x.attach_grad()
        occupy(mx.gpu(0), how)
        with autograd.record():
            one, two = net(x, mx.nd.array(first, ctx=mx.gpu(0)), mx.nd.array(second, ctx=mx.gpu(0)))
        two.backward()
        if which == 0:
            np.testing.assert_array_equal(two.asnumpy(), TABLE[first][second] * 2 + 1)
            assert x.grad.asnumpy().sum() == 12
            continue
        text = (
            f"index {9 if which == 1 else 5} is out of range for a dimension of size "
            f"{4 if which == 1 else 2}"
        )
        raises(IndexError, text, two.asnumpy)
        raises(IndexError, text, lambda: x.grad.asnumpy())
        if which == 1:
            raises(IndexError, text, one.asnumpy)
        mx.nd.waitall()


def test_index_into_an_empty_dimension_raises():
    table = mx.nd.zeros((0, 3), ctx=mx.gpu(0))
    index = mx.nd.array([0, 1], ctx=mx.gpu(0))
    for function in (
        lambda: mx.nd.take(table, index, mode="raise"),
        lambda: mx.nd.gather_nd(table, index.expand_dims(0)),
    ):
        raises(mx.base.MXNetError, "size 0", lambda: function().asnumpy())
    mx.nd.waitall()


def test_synchronous_engine_raises_at_the_call():
    table, good, bad = arrays()
    mx.engine.set_mode("sync")
    try:
        raises(IndexError, "index 7 is out of range", lambda: mx.nd.take(table, bad, mode="raise"))
        np.testing.assert_array_equal(
            mx.nd.take(table, good, mode="raise").asnumpy(), TABLE[[0, 3, 1]]
        )
    finally:
        mx.engine.set_mode("async")
