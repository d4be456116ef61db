"""Rewrites before the gradient: matched and unmatched patterns, results, gradients, placement."""

import numpy as np
import pytest

from mpgluon import _core, autograd, nd
from support.devices import on
from support.graphs import array, check, dump, error, ops, run

# --- The framework --------------------------------------------------------------------------------


def test_transposes_fold_into_products():
    a, b = array((3, 4), 1), array((5, 4), 2)
    assert dump(lambda x, y: nd.dot(x, y.T), a, b) == [
        "%2 = dot(%0, %1) {transpose_b=True}",
        "return %2",
    ]
    assert dump(lambda x, y: nd.dot(x.T, y.T, transpose_a=True), a, b) == [
        "%2 = dot(%0, %1) {transpose_b=True}",
        "return %2",
    ]
    a, b = array((2, 3, 4), 1), array((2, 4, 5), 2)
    swapped = ["%2 = batch_dot(%0, %1) {transpose_a=True, transpose_b=True}", "return %2"]
    assert (
        dump(
            lambda x, y: nd.batch_dot(x.swapaxes(1, 2), nd.transpose(y, axes=(0, 2, 1))),
            a,
            array((2, 5, 3), 2),
        )
        == swapped
    )
    check(
        lambda x, y: nd.batch_dot(x.swapaxes(-1, -2), y.transpose((0, -1, -2))),
        [a, array((2, 5, 3), 2)],
    )
    check(lambda x, y: nd.dot(x.T, y), [array((4, 3), 1), array((4, 5), 2)])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: nd.batch_dot(x, nd.transpose(y, axes=(2, 1, 0))),
        lambda x, y: nd.batch_dot(x, y.swapaxes(0, 1)),
        lambda x, y: nd.batch_dot(x, y),
        lambda x, y: nd.dot(x, y.T),
    ],
)
def test_transposes_that_products_cannot_absorb_stay(function):
    a, b = array((3, 3, 3), 1), array((3, 3, 3), 2)
    assert ops(function, a, b) == ops(function, a, b, exact=True)


def test_transpose_with_another_reader_stays():
    function = lambda x, y: (lambda t: nd.dot(x, t) + t)(y.T)
    arrays = [array((4, 4), 1), array((4, 4), 2)]
    assert ops(function, *arrays) == ["transpose", "dot", "broadcast_add"]
    check(function, arrays, 1e-30)


def test_exact_disables_rewrites():
    function = lambda x, y: nd.dot(x, y.T)
    assert ops(function, array((3, 4), 1), array((5, 4), 2), exact=True) == ["transpose", "dot"]


def test_rewrites_keep_random_numbers_and_multiple_outputs():
    """Everything outside a pattern is kept: block paths, order of random numbers, multiple
    outputs."""

    def function(x, y):
        a = nd.random.uniform(shape=(3, 6))
        nd.random.uniform(shape=(3, 6))  # consumes a random number and is removed as dead code
        first, second = nd.split(
            nd.Dropout(nd.dot(x, y.T), p=0.5, mode="always"), num_outputs=2, axis=1
        )
        return nd.concat(second, first, dim=1) + a

    arrays = [array((3, 4), 1), array((6, 4), 2)]
    check(function, arrays)
    assert "random=2" in "".join(
        line for line in _dump_text(function, arrays).splitlines() if "Dropout" in line
    )


def _dump_text(function, arrays):
    op = _core.CachedOp(lambda *a: [function(*a)], {})
    op(*arrays)
    return op.dump()


def test_product_is_not_moved_past_a_write_to_its_operand():
    """A product is not moved past a write to its operand."""

    def function(x, w, mean, var):
        t = nd.transpose(w)
        product = nd.dot(x, t)
        normed = nd.BatchNorm(product, w[0], w[1], mean, var, fix_gamma=False)
        return normed + nd.dot(
            nd.BatchNorm(x, w[0], w[1], mean, var, fix_gamma=False),
            nd.transpose(nd.stack(mean, var, mean, var)),
        )

    x, w = array((6, 4), 1), array((4, 4), 2)
    results = []
    for flags in ({}, {"exact": True}):
        mean, var = nd.zeros(4), nd.ones(4)
        op = _core.CachedOp(lambda *a: [function(*a)], flags)
        with autograd.record():
            y = op(x, w, mean, var)[0]
        results.append([y.asnumpy(), mean.asnumpy(), var.asnumpy()])
    assert error(*results) < 1e-6


def test_rewrite_patterns_look_through_device_copies():
    """The decision and the bits are the same on one device and on several."""

    def function(devices):
        def f(x, w):
            t = nd.transpose(w.as_in_context(devices[1])).as_in_context(devices[2])
            y = nd.dot(x.as_in_context(devices[2]), t)
            return (
                y
                + nd.dot(
                    x.as_in_context(devices[2]),
                    x.T.as_in_context(devices[1]).as_in_context(devices[2]),
                )
            ).as_in_context(devices[0])

        return f

    arrays = [array((4, 4), 1), array((4, 4), 2)]
    one, many = ([on(0)] * 3, [on(i) for i in range(3)])
    for devices in (one, many):
        assert "transpose" not in ops(function(devices), *arrays)
    for a, b in zip(run(function(one), arrays), run(function(many), arrays)):
        assert np.array_equal(a, b)
    check(function(many), arrays)


def test_second_gradients_are_not_affected_by_rewrites():
    def second(function, arrays):
        for a in arrays:
            a.attach_grad()
        with autograd.record():
            y = function(*arrays)
            y = y[0] if isinstance(y, list) else y
            [g] = autograd.grad((y * y).sum(), arrays[:1], create_graph=True, retain_graph=True)
            z = (g * g).sum()
        z.backward()
        return [a.grad.asnumpy() for a in arrays]

    function = lambda x, y: nd.dot(x, y.T)
    arrays = [array((3, 4), 1), array((5, 4), 2)]
    assert (
        error(
            second(_core.CachedOp(lambda *a: [function(*a)], {}), arrays), second(function, arrays)
        )
        < 1e-6
    )
