"""Ops as functions: arguments, parameters, documentation and errors."""

import inspect
import pickle

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from support.processes import output_of
from support.training import variable


def x23():
    return nd.array([[1, 2, 3], [4, 5, 6]])


def test_parameters_are_accepted_by_position_and_keyword():
    x = x23()
    expected = x.asnumpy().sum(1)
    for result in (
        nd.sum(x, 1),
        nd.sum(x, axis=1),
        nd.sum(data=x, axis=(1,)),
        nd.sum(x, [1]),
        nd.sum(x, np.array([1])),
        nd.sum(x, np.int64(1)),
        x.sum(1),
        x.sum(axis=-1),
        nd.sum(x, axis="1"),
        nd.sum(x, axis="(1,)"),
        nd.sum(x, axis=1.0),
        nd.sum(x, axis=1, name="total"),
        nd.sum(x, axis=1, out=None),
    ):
        np.testing.assert_array_equal(result.asnumpy(), expected)
    assert nd.sum(x, 1, True).shape == (2, 1)
    assert nd.sum(x, axis=1, keepdims=np.bool_(True)).shape == (2, 1)
    assert nd.sum(x, axis=1, keepdims=1).shape == (2, 1)
    assert nd.sum(x, axis=None).shape in ((), (1,))
    assert nd.clip(x, 2, 3).asnumpy().max() == 3
    assert nd.clip(x, a_min=np.float32(2), a_max=5).asnumpy().min() == 2


def test_optional_inputs_may_be_omitted_or_none():
    x, w, b = x23(), nd.ones((4, 3)), nd.ones(4)
    with_bias = nd.FullyConnected(x, w, b, num_hidden=4)
    without = nd.FullyConnected(x, w, num_hidden=4, no_bias=True)
    for result in (
        nd.FullyConnected(x, w, None, 4, True),
        nd.FullyConnected(x, w, bias=None, num_hidden=4, no_bias=True),
        nd.FullyConnected(data=x, weight=w, num_hidden=4, no_bias=True),
    ):
        np.testing.assert_array_equal(result.asnumpy(), without.asnumpy())
    np.testing.assert_array_equal(
        nd.FullyConnected(bias=b, num_hidden=4, weight=w, data=x).asnumpy(), with_bias.asnumpy()
    )
    np.testing.assert_array_equal(with_bias.asnumpy(), without.asnumpy() + 1)


def test_out_and_name_come_after_the_parameters():
    for op in [_core.get_op(name) for name in _core.list_ops()]:
        info = op.describe()
        count = len(info["inputs"]) + len(info["params"])
        assert list(inspect.signature(op).parameters)[count:] == ["out", "name"]
        if not (info["inputs"] and info["inputs"][-1]["variadic"]):
            with pytest.raises(TypeError, match=f"at most {count + 2} arguments, got {count + 3}"):
                op(*[None] * (count + 3))


def test_inspect_signature_works_for_nd_and_sym_ops():
    signature = inspect.signature(nd.Convolution)
    assert str(signature).startswith("(data, weight, bias=None, kernel=<required>, stride=(), ")
    assert signature.parameters["no_bias"].default is False
    symbolic = inspect.signature(mx.sym.Convolution)
    assert list(symbolic.parameters)[:4] == ["data", "weight", "bias", "kernel"]
    assert list(symbolic.parameters)[-2:] == ["name", "attr"]
    assert "data : Symbol" in mx.sym.Convolution.__doc__
    assert "NDArray" not in mx.sym.Convolution.__doc__
    for name, op in _core.ops().items():
        assert inspect.signature(op)
        if hasattr(mx.sym, name):
            assert inspect.signature(getattr(mx.sym, name))


def test_out_is_accepted_by_position():
    x = x23()
    for call, expected in (
        (lambda out: nd.exp(x, out), np.exp(x.asnumpy())),
        (lambda out: nd.exp(x, out, "name"), np.exp(x.asnumpy())),
        (lambda out: nd.broadcast_add(x, x, out), 2 * x.asnumpy()),
        (lambda out: nd.clip(x, 2, 3, out), x.asnumpy().clip(2, 3)),
        (lambda out: nd.relu(-x, out), 0 * x.asnumpy()),
    ):
        out = nd.zeros((2, 3))
        assert call(out) is out
        np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-6)
    assert nd.sqrt(x, None).shape == (2, 3) and nd.sqrt(x, x) is x
    with pytest.raises(TypeError, match="out is given twice"):
        nd.exp(x, x, out=x)


def test_symbols_have_variables_for_enabled_inputs():
    scores = mx.sym.contrib.route(mx.sym.var("x"), k=1, use_bias=True, name="r")
    assert scores.list_arguments() == ["x", "r_bias"]
    product = mx.sym.contrib.quantized_dot(
        mx.sym.var("x"), units=2, in_units=2, use_scales=True, use_zeros=True, name="q"
    )
    assert product.list_arguments() == ["x", "q_packed", "q_scales", "q_zeros"]


def test_inputs_disabled_by_parameters_may_be_omitted():
    data, label, lengths = nd.ones((4, 1, 3)), nd.array([[1, 2]]), nd.array([2])
    expected = nd.CTCLoss(data, label, None, lengths, use_label_lengths=True).asnumpy()
    np.testing.assert_allclose(expected, [1.686399], rtol=1e-5)  # value from MXNet
    for result in (
        nd.ctc_loss(data, label, label_lengths=lengths, use_label_lengths=True),
        nd.CTCLoss(data, label, lengths, use_label_lengths=True),
    ):
        np.testing.assert_array_equal(result.asnumpy(), expected)
    with pytest.raises(mx.MXNetError, match="data_lengths is missing"):
        nd.CTCLoss(
            data, label, label_lengths=lengths, use_label_lengths=True, use_data_lengths=True
        )
    with pytest.raises(mx.MXNetError):
        nd.CTCLoss(data, label, label_lengths=lengths)
    symbol = mx.sym.CTCLoss(
        mx.sym.var("a"), mx.sym.var("b"), label_lengths=mx.sym.var("c"), use_label_lengths=True
    )
    assert symbol.list_arguments() == ["a", "b", "c"]
    np.testing.assert_array_equal(symbol.eval(a=data, b=label, c=lengths)[0].asnumpy(), expected)
    assert mx.sym.CTCLoss(
        mx.sym.var("a"), mx.sym.var("b"), use_label_lengths=True, name="l"
    ).list_arguments() == ["a", "b", "l_label_lengths"]


def test_variadic_inputs_are_accepted_as_arguments_or_list():
    x = x23()
    for result in (
        nd.concat(x, x, dim=0),
        nd.Concat(x, x, dim=0),
        nd.concat([x, x], dim=0),
        nd.concat(*[x, x], dim=0, num_args=2),
    ):
        assert result.shape == (4, 3)
    assert nd.stack(x, x, axis=1).shape == (2, 2, 3)
    many = [nd.full((2,), i) for i in range(40)]
    assert nd.add_n(*many).asnumpy().tolist() == [780, 780]
    assert nd.concat(*many, dim=0).shape == (80,)


def test_several_outputs_are_returned_as_list():
    pieces = nd.split(x23(), num_outputs=3, axis=1)
    assert isinstance(pieces, list) and [piece.shape for piece in pieces] == [(2, 1)] * 3
    out = [nd.zeros((2, 1)) for _ in range(3)]
    result = nd.split(x23(), num_outputs=3, axis=1, out=out)
    assert result is out and out[2].asnumpy().tolist() == [[3], [6]]
    with pytest.raises(ValueError):
        nd.split(x23(), num_outputs=3, axis=1, out=out[:2])


def test_out_is_written_and_validated():
    x, target = x23(), nd.zeros((2, 3))
    assert nd.exp(x, out=target) is target
    np.testing.assert_allclose(target.asnumpy(), np.exp(x.asnumpy()), rtol=1e-6)
    row = target[0]
    nd.zeros_like(x[0], out=row)
    assert target.asnumpy()[0].tolist() == [0, 0, 0]
    for wrong in (
        nd.zeros((3, 3)),
        nd.zeros((2, 3), dtype="int32"),
        nd.zeros((2, 3), ctx=mx.cpu(1)),
    ):
        with pytest.raises(mx.MXNetError):
            nd.exp(x, out=wrong)
    for wrong in (3, "a", [target, target]):
        with pytest.raises((TypeError, ValueError)):
            nd.exp(x, out=wrong)


def test_numbers_and_numpy_arrays_are_accepted_as_inputs():
    x = x23()
    np.testing.assert_array_equal(nd.broadcast_add(x, 2).asnumpy(), x.asnumpy() + 2)
    np.testing.assert_array_equal(nd.broadcast_add(np.float64(2), x).asnumpy(), x.asnumpy() + 2)
    np.testing.assert_array_equal(
        nd.broadcast_mul(x, np.array([[1.0, 2, 3]])).asnumpy(), x.asnumpy() * [1, 2, 3]
    )
    assert nd.exp(np.zeros(2)).asnumpy().tolist() == [1, 1]
    on_one = nd.broadcast_add(x.as_in_context(mx.cpu(1)), np.ones((2, 3)))
    assert on_one.context == mx.cpu(1)


def test_dtype_and_context_parameters_accept_all_spellings():
    for dtype in ("float16", np.float16, np.dtype("float16")):
        assert nd.cast(x23(), dtype=dtype).dtype == np.float16
    assert nd.Cast(x23(), dtype="bfloat16").dtype is mx.bfloat16
    for ctx in (mx.cpu(1), "cpu(1)"):
        assert nd._internal._full(shape=(2,), value=3, ctx=ctx).context == mx.cpu(1)
    with mx.cpu(2):
        assert nd.zeros(2).context == mx.cpu(2) and nd._internal._full(shape=2).context == mx.cpu(2)
        assert nd.exp(x23().as_in_context(mx.cpu(1))).context == mx.cpu(1)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x: nd.sum(x, axes=1), ["sum", "axes", "axis", "keepdims"]),
        (lambda x: nd.sum(), ["sum", "data"]),
        (lambda x: nd.sum(x, 1, axis=1), ["axis", "twice"]),
        (lambda x: nd.sum(x, data=x), ["data", "twice"]),
        (lambda x: nd.sum(x, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), ["sum", "at most"]),
        (lambda x: nd.sum("text"), ["sum", "data", "str"]),
        (lambda x: nd.sum(x, axis="one"), ["sum", "axis"]),
        (lambda x: nd.sum(x, axis=object()), ["sum", "axis"]),
        (lambda x: nd.sum(x, axis=1.5), ["sum", "axis"]),
        (lambda x: nd.sum(x, axis=(0, "b")), ["sum", "axis"]),
        (lambda x: nd.sum(x, axis=7), ["sum"]),
        (lambda x: nd.sum(x, axis=list(range(100))), ["sum", "axis"]),
        (lambda x: nd.sum(x, keepdims="maybe"), ["keepdims"]),
        (lambda x: nd.FullyConnected(x, x), ["FullyConnected", "num_hidden"]),
        (
            lambda x: nd.FullyConnected(x, nd.ones((4, 3)), nd.ones(4), num_hidden="a"),
            ["num_hidden"],
        ),
        (lambda x: nd.FullyConnected(None, x, num_hidden=2), ["FullyConnected"]),
        (lambda x: nd.Activation(x, act_type="relu6"), ["Activation", "act_type", "relu"]),
        (lambda x: nd.cast(x, dtype="float31"), ["float31"]),
        (lambda x: nd.clip(x, a_min="low", a_max=1), ["a_min"]),
        (lambda x: nd.concat(x, nd.ones((5, 5)), dim=0), ["Concat", "(2, 3)", "(5, 5)"]),
        (lambda x: nd.broadcast_add(x, nd.ones((5, 5))), ["broadcast_add", "(2, 3)", "(5, 5)"]),
        (lambda x: nd.zeros(2, ctx="tpu(0)"), ["tpu(0)"]),
        (lambda x: nd.random.normal(0, -1, (2,)), ["scale = -1", "outside its range 0.."]),
        (lambda x: nd.random.normal(0, float("nan"), (2,)), ["scale = nan"]),
        (lambda x: nd.random.normal_like(x, 0, -1), ["scale = -1"]),
        (lambda x: nd.random.uniform(1, 0, (2,)), ["low must not be above high", "1 and 0"]),
        (lambda x: nd.random.uniform_like(x, 1, 0), ["low must not be above high"]),
        (lambda x: nd.random.uniform(0, float("nan"), (2,)), ["high must be a finite number"]),
        (lambda x: nd.random.gamma(-1, 1, (2,)), ["alpha = -1"]),
        (lambda x: mx.sym.random.normal(0, -1), ["scale = -1"]),
        (lambda x: nd.LeakyReLU(x, nd.ones((3, 2)), act_type="prelu"), ["gamma", "3 channels"]),
        (lambda x: nd.LeakyReLU(x, nd.ones((1, 2, 3)), act_type="prelu"), ["gamma"]),
        (lambda x: nd.zeros(2, ctx=3), ["nd.zeros((2, 3))"]),
        (lambda x: nd.zeros((2,), ctx=3), ["Context"]),
        (lambda x: nd.split_v2(x, (2, 1), axis=1), ["indices must be ascending", "2 precedes 1"]),
        (lambda x: nd.split_v2(x, (1, 4), axis=1), ["index 4 is out of range", "size 3"]),
        (lambda x: nd.split_v2(x, "a"), ["indices_or_sections", "str: 'a'"]),
        (lambda x: nd.split_v2(x, None), ["indices_or_sections", "NoneType"]),
        (lambda x: nd.split_v2(x, 0), ["indices_or_sections", "at least 1"]),
        (lambda x: mx.sym.split_v2(mx.sym.var("x"), 0), ["indices_or_sections", "at least 1"]),
        (lambda x: nd.split_v2(x, 2, axis=7), ["axis 7", "2 dimensions"]),
        (lambda x: nd.split_v2(x, 2, axis=1), ["size 3 cannot be split into 2"]),
        (
            lambda x: nd.image.normalize(nd.ones((3, 2, 2)), mean=(0, 0), std=(1, 1)),
            ["mean has 2 numbers, but the image has 3 channels"],
        ),
        (
            lambda x: nd.image.normalize(nd.ones((3, 2, 2)), mean=(0,), std=(1, 2)),
            ["std has 2 numbers, but the image has 3 channels"],
        ),
        (lambda x: nd.multi_lars(x[0], x[0], x[0], x[:, 0], eta=1, eps=0), ["multi_lars"]),
        (lambda x: nd.softmin(x, use_length=True), ["softmin: use_length must be False"]),
        (lambda x: nd.contrib.boolean_mask(x, None), ["boolean_mask: index", "NoneType"]),
        (
            lambda x: nd.contrib.MultiBoxPrior(nd.ones((1, 2, 4, 4)), offsets=(2, -1)),
            ["offsets must be from 0 to 1"],
        ),
        (
            lambda x: nd.contrib.group_adagrad_update(x, x, nd.ones((2, 1)), lr="x"),
            ["lr must be a finite number", "'x'"],
        ),
        (
            lambda x: nd.UpSampling(nd.ones((1, 2, 4, 4)), scale=2, sample_type="bilinear"),
            ["bilinear", "the weight"],
        ),
    ],
)
def test_invalid_call_error_explains_the_problem(call, words):
    with pytest.raises((TypeError, mx.MXNetError)) as caught:
        call(x23())
    for word in words:
        assert word in str(caught.value)


def described(key):
    """Yields (op, item) for each item under `key` of the ops' descriptions."""
    for name in _core.list_ops():
        about = _core.get_op(name).describe()
        yield from ((name, one) for one in about[key])


REQUIRED = {"UpSampling": {"scale": 2, "sample_type": "nearest"}}


def test_wrong_num_args_is_refused():
    """Covers every op with variadic array inputs."""
    names = [name for name, param in described("params") if param["name"] == "num_args"]
    assert len(names) > 4
    for name in names:
        op, samples = _core.get_op(name), [nd.ones((1, 1, 2, 2))] * 2
        if not any(one["variadic"] for one in op.describe()["inputs"]):
            continue
        with pytest.raises(ValueError, match="num_args is 1, but 2 arrays are given"):
            op(*samples, num_args=1, **REQUIRED.get(name, {}))


def test_none_for_enum_parameter_is_refused():
    """Covers enum parameters whose default is a string."""
    found = 0
    for name, param in described("params"):
        words = param["constraint"].split("|")
        if param["kind"] != "one of" or param["default"] == "None" or "None" in words:
            continue
        found += 1
        with pytest.raises(ValueError, match=f"{param['name']} must be one of .*, got None"):
            _core.OpCall(name, {param["name"]: None})
    assert found > 20


NAN, INFINITY = float("nan"), float("inf")
DOMAINS = {  # valid and invalid parameters of each distribution
    "uniform": ([(0, 0), (-2, 3), (-INFINITY, 1)], [(1, 0), (NAN, 1), (0, NAN)]),
    "normal": ([(NAN, 1), (-1, 0)], [(0, -1), (0, NAN), (0, -INFINITY)]),
    "gamma": ([(0, 1), (2, 0)], [(-1, 1), (1, -1), (NAN, 1), (1, NAN)]),
    "exponential": ([(1,), (INFINITY,)], [(-1,), (NAN,)]),
    "poisson": ([(0,), (3,)], [(-1,), (NAN,)]),
    "negative_binomial": ([(0, 0.5), (2, 0.5), (2, 1)], [(-1, 0.5), (2, -0.1), (2, 1.1), (2, NAN)]),
    "generalized_negative_binomial": ([(0, 1), (1, 0)], [(-1, 1), (1, -1), (NAN, 1), (1, NAN)]),
}


def test_every_sampler_has_a_tested_domain():
    samplers = {name[8:] for name in dir(nd.op) + dir(nd._internal) if name.startswith("_sample_")}
    assert samplers - {"multinomial", "unique_zipfian"} == set(DOMAINS)


@pytest.mark.parametrize("name", DOMAINS)
def test_invalid_distribution_parameters_are_refused(name):
    """Covers numbers and array elements; the error names the first invalid element."""
    right, wrong = DOMAINS[name]
    sampler, sample = getattr(nd.random, name), getattr(nd, "sample_" + name)
    for params in right:
        assert sample(*(nd.array([p] * 3) for p in params), shape=2).asnumpy().shape == (3, 2)
    for params in wrong:
        arrays = [nd.array([[0.5, 1], [p, p]]) for p in params]
        if name == "uniform":
            arrays[0][0] = 0
        for draw in (sampler, sample):
            with pytest.raises(mx.MXNetError, match=f"_sample_{name}: .* element 2 is"):
                draw(*arrays, shape=500).wait_to_read()
        if name != "exponential":  # takes the inverse of the parameter
            with pytest.raises(mx.MXNetError, match=f"_random_{name}: "):
                sampler(*params, shape=2)


@pytest.mark.parametrize("row", [[-0.1, 1.1], [0, 0], [NAN, 1], [INFINITY, 1]])
def test_invalid_multinomial_probabilities_are_refused(row):
    with pytest.raises(mx.MXNetError, match="_sample_multinomial: the probabilities of row 1 "):
        nd.random.multinomial(nd.array([[0.25, 0.75], row]), shape=4).wait_to_read()


@pytest.mark.parametrize("name", nd.random.__all__)
def test_samplers_refuse_misspelled_options(name):
    if name == "shuffle":  # has no parameters
        return
    args = {"randint": (0, 5), "multinomial": (nd.ones(2),)}.get(name, ())
    with pytest.raises(TypeError, match="has no parameter 'shpe'"):
        getattr(nd.random, name)(*args, shpe=2)


def test_ops_without_parameters_ignore_them_with_warning():
    with pytest.warns(UserWarning, match="broadcast_maximum has no parameters; 'axis' is ignored"):
        assert nd.broadcast_maximum(
            nd.array([0]), nd.array([-1, 2]), axis=1
        ).asnumpy().tolist() == [0, 2]
    with pytest.warns(UserWarning, match="broadcast_maximum has no parameters; 'axis' is ignored"):
        mx.sym.broadcast_maximum(mx.sym.var("a"), mx.sym.var("b"), axis=1)


def test_every_op_has_a_signature_and_documentation():
    assert (
        str(inspect.signature(nd.sum))
        == "(data, axis=None, keepdims=False, exclude=False, out=None, name=None)"
    )
    assert (
        list(inspect.signature(nd.FullyConnected).parameters)[:4]
        == "data weight bias num_hidden".split()
    )
    assert (
        next(iter(inspect.signature(nd.concat).parameters.values())).kind
        is inspect.Parameter.VAR_POSITIONAL
    )
    assert nd.sum.__name__ == "sum" and "axis" in nd.sum.__doc__
    assert list(inspect.signature(x23().sum).parameters)[0] == "axis"
    for name in _core.list_ops():
        op = _core.get_op(name)
        inspect.signature(op)
        assert op.__doc__ and len(op.describe()["doc"]) > 10
        description = op.describe()
        for parameter in description["params"]:
            assert parameter["doc"] and parameter["kind"]


def test_op_registry_names_are_unique_and_ops_pickle():
    assert len(_core.list_ops()) == len(set(_core.list_ops()))
    assert pickle.loads(pickle.dumps(nd.sum)) is nd.sum
    with pytest.raises(ValueError):
        _core.get_op("no_such_op")
    with pytest.raises(TypeError):
        type(nd.sum)()
    assert "hidden" not in str(
        [op.describe()["flags"] for op in vars(nd.op).values() if isinstance(op, _core.Op)]
    )
    assert hasattr(nd._internal, "_plus_scalar") and hasattr(nd, "_internal")


def test_random_functions_follow_seed_shape_and_out():
    mx.random.seed(3)
    first = nd.random.uniform(shape=(3, 2)).asnumpy()
    mx.random.seed(3)
    np.testing.assert_array_equal(nd.random.uniform(0, 1, (3, 2), ctx=mx.cpu(1)).asnumpy(), first)
    assert nd.random.normal(5, 0.1, shape=1000).asnumpy().mean() == pytest.approx(5, abs=0.05)
    assert nd.random.randn(2, 3).shape == (2, 3)
    assert nd.random.randint(0, 5, shape=10).dtype == np.int32
    assert nd.random.uniform().shape == (1,) and mx.random.normal(shape=2).shape == (2,)
    target = nd.zeros((4,))
    assert nd.random.uniform(1, 2, out=target) is target and (target.asnumpy() >= 1).all()
    assert nd.random.uniform(nd.array([0, 10]), nd.array([1, 11]), shape=3).shape == (2, 3)
    assert sorted(nd.random.shuffle(nd.arange(5)).asnumpy().tolist()) == [0, 1, 2, 3, 4]
    state = mx.random.get_state()
    a = nd.random.normal(shape=3).asnumpy()
    mx.random.set_state(state)
    np.testing.assert_array_equal(nd.random.normal(shape=3).asnumpy(), a)
    for wrong in ("a", 1.5, None):
        with pytest.raises(ValueError):
            mx.random.seed(wrong)
    with pytest.raises((TypeError, ValueError)):
        nd.random.uniform(nd.array([0]), 1)
    with pytest.raises((TypeError, ValueError)):
        nd.random.uniform("a", 1)


def test_failure_of_queued_op_names_op_and_device():
    def culprit():
        return nd.take(nd.ones((300, 300)), nd.array([5000] * 300), mode="raise")

    result = culprit()
    with pytest.raises(IndexError) as caught:
        result.asnumpy()
    assert isinstance(caught.value, mx.MXNetError)
    for word in ("take", "5000", "cpu(0)"):
        assert word in str(caught.value)
    assert nd.ones(2).asnumpy().tolist() == [1, 1]


def test_failures_in_other_modes():
    before = mx.engine.mode()
    try:
        for mode in ("async", "shuffle"):
            mx.engine.set_mode(mode)
            x = nd.ones((600, 600))
            for _ in range(4):
                x = nd.dot(x, x * 1e-3)
            result = nd.take(x, nd.array([5000]), mode="raise") + 1
            with pytest.raises(
                IndexError, match=r"test_op_calls\.py:\d+ in test_failures_in_other_modes"
            ):
                result.wait_to_read()
        mx.engine.set_mode("sync")
        with pytest.raises(IndexError):
            nd.take(x, nd.array([5000]), mode="raise")
    finally:
        mx.engine.set_mode(before)


def test_ctrl_c_interrupts_waiting():
    code = """
import os, signal, sys, threading, time
import mpgluon as mx
from mpgluon import nd
big = nd.ones((1500, 1500))
for _ in range(40):
    big = nd.dot(big, big)
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    big.wait_to_read()
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
print(nd.ones(2, ctx=mx.cpu(1)).asnumpy().tolist())
sys.stdout.flush()
os._exit(0)
"""
    assert output_of(code).split("\n")[:2] == ["interrupted", "[1.0, 1.0]"]


def test_eager_control_flow_has_correct_values_and_gradients():
    data, state = nd.arange(6).reshape((3, 2)), nd.zeros(2)
    data.attach_grad()
    with mx.autograd.record():
        outputs, last = nd.contrib.foreach(lambda row, total: (row * 2, total + row), data, state)
        loss = (last * last).sum()
    loss.backward()
    assert outputs.asnumpy().tolist() == [[0, 2], [4, 6], [8, 10]]
    assert last.asnumpy().tolist() == [6, 9]
    assert data.grad.asnumpy().tolist() == [[12, 18]] * 3
    nested, states = nd.contrib.foreach(
        lambda items, s: ([items[0], items[1] + s[0]], s), [data, data], [nd.ones(2)]
    )
    assert nested[1].asnumpy().tolist() == [[1, 2], [3, 4], [5, 6]] and len(states) == 1
    outputs, (i, total) = nd.contrib.while_loop(
        lambda i, total: i < 3,
        lambda i, total: (i * 10, [i + 1, total + i]),
        [nd.array([0]), nd.array([0])],
        max_iterations=5,
    )
    assert outputs.asnumpy().ravel().tolist() == [0, 10, 20, 0, 0] and total.asscalar() == 3
    assert nd.contrib.cond(nd.array([1]), lambda: 1, lambda: 2) == 1
    assert nd.contrib.cond(nd.array([0]), lambda: 1, lambda: 2) == 2
    assert nd.contrib.boolean_mask(data, nd.array([1, 0, 1])).asnumpy().tolist() == [[0, 1], [4, 5]]
    for wrong in (
        lambda: nd.contrib.foreach(lambda a, s: (a, s), nd.zeros((0, 2)), state),
        lambda: nd.contrib.while_loop(bool, bool, [state]),
    ):
        with pytest.raises(ValueError):
            wrong()


def test_every_allocation_of_eager_calls_may_fail():
    x = variable(nd.ones((8, 8)))

    def work():
        y = (x + x) * 2.0
        nd.split(nd.concat(y, y, dim=1), num_outputs=2)
        y[1:3], y[:, 1], y[[0, 1]] = 5, 3, nd.ones(8)
        y[[1, 2]].reshape((-1,))
        moved = y.as_in_context(mx.cpu(1)) + 1
        with mx.autograd.record():
            loss = (x * x).sum() + (x[1:] * 3).mean()
            (gradient,) = mx.autograd.grad(loss, x, retain_graph=True, create_graph=True)
            second = (gradient * gradient).sum()
        second.backward()
        np.from_dlpack(moved)
        nd.array([1, 2], dtype="bfloat16").asnumpy()
        nd.waitall()

    work()
    expected = x.grad.asnumpy()
    for n in range(1, 2000):
        _core._memory_fail_after(n)
        try:
            work()
        except MemoryError:
            pass
        failed = _core._memory_fail_after(0)
        assert not mx.autograd.is_recording()
        nd.waitall()
        if not failed:
            break
    else:
        raise AssertionError("more allocations than expected")
    work()
    np.testing.assert_array_equal(x.grad.asnumpy(), expected)


def gradient_of(function, *values, dtype="float32", head=None):
    arrays = [nd.array(v, dtype=dtype) for v in values]
    for array in arrays:
        array.attach_grad()
    with autograd.record():
        y = function(*arrays)
    y.backward(None if head is None else nd.full(y.shape, head, dtype=dtype))
    return arrays[0].grad.asnumpy().astype("float64")


LONG = 100_000  # more than half precision can count
LONG_MEANS = {
    "mean": lambda x: x.mean(),
    "rows": lambda x: x.mean(axis=1),
    "columns": lambda x: x.reshape((-1, 2)).mean(axis=0),
    "L2Loss": lambda x: gluon.loss.L2Loss()(x, nd.zeros_like(x)),
    "HuberLoss": lambda x: gluon.loss.HuberLoss()(x, nd.zeros_like(x)),
    "SigmoidBCELoss": lambda x: gluon.loss.SigmoidBCELoss()(x, nd.ones_like(x)),
    "PoissonNLLLoss": lambda x: gluon.loss.PoissonNLLLoss()(x, nd.ones_like(x)),
    "LogisticLoss": lambda x: gluon.loss.LogisticLoss()(x, nd.ones_like(x)),
    "SoftmaxCELoss": lambda x: gluon.loss.SoftmaxCELoss()(
        x.reshape((1, LONG, 2)), nd.zeros((1, LONG))
    ),
    "regression": lambda x: nd.LinearRegressionOutput(x, nd.zeros_like(x), grad_scale=8192.0),
    "absolute regression": lambda x: nd.MAERegressionOutput(x, nd.zeros_like(x), grad_scale=8192.0),
    "global pooling": lambda x: nd.Pooling(
        x.reshape((1, 1, 400, 500)), kernel=(1, 1), global_pool=True, pool_type="avg"
    ),
    "makes a loss": lambda x: nd.MakeLoss(
        x.reshape((-1, 1)), grad_scale=8192.0, normalization="batch"
    ),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", LONG_MEANS)
def test_long_means_do_not_count_in_half_precision(name, dtype):
    values = np.random.RandomState(0).uniform(0.25, 1, (2, LONG))
    values = nd.array(values, dtype=dtype).astype("float32").asnumpy()
    expected = gradient_of(LONG_MEANS[name], values, head=8192.0)
    found = gradient_of(LONG_MEANS[name], values, dtype=dtype, head=8192.0)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(
        found,
        expected,
        rtol=0,
        atol=(0.003 if dtype == "float16" else 0.02) * np.abs(expected).max(),
    )


@pytest.mark.parametrize(
    "remainder",
    [
        lambda x: x % nd.full((2,), 3, dtype="int32"),
        lambda x: nd.broadcast_mod(nd.full((1,), 9, dtype="int32"), x),
        lambda x: x % 3,
        lambda x: 9 % x,
    ],
)
def test_integer_remainder_has_no_gradient(remainder):
    x = variable(nd.array([5.0, 7.0]))
    with autograd.record():
        y = remainder(x.astype("int32")) + x.astype("int32")
    y.backward()
    assert x.grad.asnumpy().tolist() == [1, 1]


@pytest.mark.parametrize(
    "op, values, expected",
    [
        ("prod", [0, 3, 4], [12, 0, 0]),
        ("prod", [0, 3, 0], [0, 0, 0]),
        ("prod", [2, 3, 4], [12, 8, 6]),
        ("nanprod", [0, np.nan, 4], [4, 0, 0]),
        ("nanprod", [2, np.nan, 4], [4, 0, 2]),
        ("max", [1, np.nan, 3, np.nan], [0, 1, 0, 1]),
        ("min", [1, np.nan, 3], [0, 1, 0]),
        ("max", [1, 3, 3], [0, 1, 1]),
        ("max", [-np.inf, -np.inf], [1, 1]),
    ],
)
def test_gradients_at_zero_and_nan_have_expected_values(op, values, expected):
    np.testing.assert_array_equal(gradient_of(getattr(nd, op), values), expected)
    hybrid = gluon.nn.HybridLambda(op)
    hybrid.hybridize()
    np.testing.assert_array_equal(gradient_of(hybrid, values), expected)


@pytest.mark.parametrize("op, power", [("rsqrt", -0.5), ("rcbrt", -1 / 3)])
def test_rsqrt_and_rcbrt_gradients_do_not_overflow_early(op, power):
    x = np.geomspace(2e-38, 1e-20, 200).astype("float32")
    expected = power * x.astype("float64") ** (power - 1)
    found = gradient_of(getattr(nd, op), x)
    held = np.abs(expected) < 3.4e38
    np.testing.assert_allclose(found[held], expected[held], rtol=2e-6)
    assert np.isfinite(found[held]).all() and held.sum() > 50
