"""Batching rules of every op against the op itself, and the errors of pipelined blocks."""

import itertools

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.gluon import nn, rnn
from mpgluon.parallel import Pipeline, TrainStep
from samples.base import all_samples
from support.devices import on

SAMPLES = all_samples()
# Public ops and the ops that Gluon's losses use.
OPS = [
    name
    for name in sorted(_core.list_ops())
    if not {"hidden", "dynamic"} & set(_core.get_op(name).describe()["flags"])
] + ["_softmax_ce"]
# Parameter updates have no batch. The other ops are refused if rows are divided.
WITHOUT_RULE = {
    "_contrib_count_sketch",
    "_contrib_cached_attention",  # writes the caches of whole batches
    "_contrib_dequantize_weight",  # unpacks a whole weight
    "_contrib_index_copy",
    "_scatter_set_nd",
    "_grad_add",
    "_backward_gather_nd",
    # Their sampling reads rows of the whole batch
    "_contrib_DeformableConvolution",
    "_contrib_ModulatedDeformableConvolution",
}
# Results on parts differ by definition: they use the part's own statistics, random numbers drawn in
# this test, the part's own size, or one number independent of the rows.
OWN = {
    "BatchNorm",
    "_contrib_SyncBatchNorm",
    "_dropout_part",
    "_contrib_BilinearResize2D",
    "_contrib_quantize_asym",
    "_contrib_quantize_v2",
    "_contrib_requantize",
    "_contrib_quantized_batch_norm",
    "_contrib_quantized_elemwise_add",
    "_contrib_quantized_elemwise_mul",
}


def call(name, arrays, params):
    result = _core.get_op(name)(*arrays, **(params or {}))
    return list(result) if isinstance(result, (list, tuple)) else [result]


def front(a, axis):
    return nd.swapaxes(a, dim1=0, dim2=axis) if axis else a


def divisions(arrays):
    """Yields the axes along which inputs may be divided.

    For up to three inputs, yields all combinations. Otherwise divides one input or all of them.
    """
    if len(arrays) <= 3:
        return itertools.product(*[[None, *range(a.ndim)] for a in arrays])
    single = [
        tuple(axis if j == i else None for j in range(len(arrays)))
        for i, a in enumerate(arrays)
        for axis in range(a.ndim)
    ]
    return single + [tuple(axis if a.ndim > axis else None for a in arrays) for axis in range(3)]


def said(name, params, arrays, axes, whole, rows, result, at):
    """True if the rules accept the op on `arrays` divided along `axes`, with result rows along
    `at`."""

    def function(*traced):
        traced = [x if axis is None else front(x, axis) for x, axis in zip(traced, axes)]
        return [front(call(name, traced, params)[result], at).copy()]

    def compiled(arrays):
        leading = [a if axis is None else front(a, axis) for a, axis in zip(arrays, axes)]
        return _core.StagedCall(
            function,
            leading,
            [False] * len(arrays),
            [False] * len(arrays),
            recording=False,
            exact=True,
        )

    kinds = [0 if axis is None else 1 for axis in axes]
    size = next(a.shape[axis] for a, axis in zip(whole, axes) if axis is not None)
    try:
        compiled(arrays).check(kinds, [1], rows, 0, False, compiled(whole), size)
    except mx.MXNetError as error:
        return str(error)
    return True


def cases(name):
    """Yields (sample, arrays, axes, parts) for all valid divisions of an op's samples into two
    parts."""
    for sample in SAMPLES[name]:
        dtype = sample.dtypes[0] if sample.dtypes else "float32"
        values = sample.arrays(dtype)
        arrays = [
            nd.array(v, dtype=dtype if sample.made(i) else v.dtype) for i, v in enumerate(values)
        ]
        for axes in divisions(arrays):
            sizes = {a.shape[axis] for a, axis in zip(arrays, axes) if axis is not None}
            if len(sizes) != 1 or min(sizes) < 2:
                continue
            size, cut = min(sizes), (min(sizes) + 1) // 2
            parts = [
                [
                    a.copy() if axis is None else nd.slice_axis(a, axis=axis, begin=begin, end=end)
                    for a, axis in zip(arrays, axes)
                ]
                for begin, end in ((0, cut), (cut, size))
            ]
            yield sample, arrays, axes, parts


def rows_of(part, axes):
    return next(a.shape[axis] for a, axis in zip(part, axes) if axis is not None)


@pytest.mark.parametrize("name", OPS)
def test_batching_rule_matches_op_on_split_inputs(name):
    """Two parts joined along the axis given by the rule equal the op's result on the whole."""
    ruled = False
    for sample, arrays, axes, parts in cases(name):
        with autograd.train_mode() if sample.train else autograd.predict_mode():
            try:
                results = [call(name, [a.copy() for a in part], sample.params) for part in parts]
                nd.waitall()  # raises errors of indices out of a part's range here
            except (mx.MXNetError, ValueError):
                continue  # the op rejects parts
            whole = call(name, [a.copy() for a in arrays], sample.params)
            for k, expected in enumerate(whole):
                ruled = ruled or expected.ndim == 0  # has no rows
                for axis in range(expected.ndim):
                    verdicts = [
                        said(name, sample.params, part, axes, arrays, rows_of(part, axes), k, axis)
                        for part in parts
                    ]
                    ruled = ruled or not any(
                        "batching rule is unknown" in v for v in verdicts if v is not True
                    )
                    if verdicts != [True, True] or name in OWN:
                        continue
                    got = np.concatenate([r[k].asnumpy() for r in results], axis=axis)
                    assert got.shape == expected.shape, (axes, axis)
                    if "random" not in _core.get_op(name).describe()["flags"]:
                        np.testing.assert_allclose(
                            got,
                            expected.asnumpy(),
                            rtol=1e-4,
                            atol=1e-5,
                            err_msg=f"{sample.params} {axes} {axis}",
                        )
    if not ruled and any(True for _ in cases(name)):
        assert name in WITHOUT_RULE or "update" in name or name in UPDATES, (
            "an op without a batching rule (the column `batching` of its row)"
        )


UPDATES = {"all_finite", "multi_all_finite", "multi_sum_sq", "reset_arrays", "_multi_scale"}

# --- Error messages -------------------------------------------------------------------------------


class Block(gluon.HybridBlock):
    """Two layers on two devices with a function between them."""

    def __init__(self, body, two=1, **layers):
        super().__init__(prefix="net_")
        self.body, self.devices = body, [on(0), on(two)]
        mx.random.seed(3)
        with self.name_scope():
            self.a = nn.Dense(6, in_units=6, flatten=False)
            self.b = nn.Dense(6, in_units=6, flatten=False)
            for name, layer in layers.items():
                setattr(self, name, layer)
        self.a.initialize(mx.init.Xavier(), ctx=self.devices[0])
        for child in list(self._children.values())[1:]:
            child.initialize(mx.init.Xavier(), ctx=self.devices[1])

    def hybrid_forward(self, F, x, *more):
        x = self.a(x).as_in_context(self.devices[1])
        return self.b(self.body(self, F, x, *[m.as_in_context(self.devices[1]) for m in more]))


X = nd.array(np.random.RandomState(0).randn(8, 6))
IMAGES = nd.array(np.random.RandomState(0).randn(8, 5, 6))
# Blocks, and the op that the error names.
REFUSED = {
    "softmax": (lambda n, F, x: F.softmax(x, axis=0), "softmax"),
    "log_softmax": (lambda n, F, x: F.log_softmax(x, axis=0), "log_softmax"),
    "mean, broadcast back": (
        lambda n, F, x: F.broadcast_sub(x, F.mean(x, axis=0, keepdims=True)),
        "mean",
    ),
    "mean of all": (lambda n, F, x: F.broadcast_mul(x, F.mean(x)), "mean"),
    "max of all but the last": (
        lambda n, F, x: F.broadcast_div(x, F.max(x, axis=1, exclude=True)),
        "max",
    ),
    "norm": (lambda n, F, x: F.broadcast_div(x, F.norm(x)), "norm"),
    "row by row": (lambda n, F, x: F.dot(F.dot(x, x, transpose_b=True), x), "dot"),
    "gram matrix": (lambda n, F, x: F.dot(x, F.dot(x, x, transpose_a=True)), "dot"),
    "reverse": (lambda n, F, x: F.reverse(x, axis=0), "reverse"),
    "sort": (lambda n, F, x: F.sort(x, axis=0), "sort"),
    "argsort": (lambda n, F, x: F.argsort(x, axis=0), "argsort"),
    "topk": (lambda n, F, x: F.topk(x, axis=0, k=2, ret_typ="mask"), "topk"),
    "cumsum": (lambda n, F, x: F.cumsum(x, axis=0), "_np_cumsum"),
    "argmax": (lambda n, F, x: F.broadcast_add(x, F.argmax(x, axis=0)), "argmax"),
    "half of the rows": (
        lambda n, F, x: F.concat(F.slice_axis(x, axis=0, begin=1, end=2), x, dim=0),
        "slice_axis",
    ),
    "the first row": (lambda n, F, x: F.broadcast_sub(x, x[0:1]), "slice"),
    "four rows": (lambda n, F, x: x[:4], "slice"),
    "take": (lambda n, F, x: F.take(x, F.zeros((4,), ctx=on(1)), axis=0), "take"),
    "rows mixed by reshape": (
        lambda n, F, x: F.reshape(F.swapaxes(F.reshape(x, (-1, 2, 3)), 0, 1), (-1, 6)) + x,
        "Reshape",
    ),
    "features and rows in one": (
        lambda n, F, x: F.softmax(F.reshape(x, (1, -1))).reshape((-1, 6)),
        "softmax",
    ),
    "a fixed number of rows": (
        lambda n, F, x: F.reshape(F.softmax(F.reshape(x, (4, -1))), (-1, 6)),
        "Reshape",
    ),
    "positions": (
        lambda n, F, x: F.broadcast_add(x, F.expand_dims(F.arange(x.shape[0], ctx=on(1)), 1)),
        "broadcast_add",
    ),
    "arange_like": (
        lambda n, F, x: F.broadcast_add(x, F.expand_dims(F.contrib.arange_like(x, axis=0), 1)),
        "_contrib_arange_like",
    ),
    "number of rows": (lambda n, F, x: x / x.shape[0], "_div_scalar"),
    "size_array": (
        lambda n, F, x: F.broadcast_div(x, F.cast(F.size_array(x), "float32")),
        "size_array",
    ),
    "shuffle": (lambda n, F, x: F.shuffle(x), "_shuffle"),
    "L2Normalization": (
        lambda n, F, x: F.reshape(F.L2Normalization(F.reshape(x, (1, -1))), (-1, 6)),
        "L2Normalization",
    ),
    "no rule": (
        lambda n, F, x: F.broadcast_add(x, F.BlockGrad(F.reshape(F.all_finite(x), (1, 1)))),
        "all_finite",
    ),
    "shared dropout": (lambda n, F, x: F.Dropout(x, p=0.5, axes=(0,), mode="always"), "Dropout"),
    "a loss by the batch": (lambda n, F, x: F.MakeLoss(x, normalization="batch"), "MakeLoss"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_ops_across_the_batch_are_refused_before_execution(case):
    body, op = REFUSED[case]
    if op == "Dropout":
        pipeline = Pipeline(2)
        net = Block(lambda n, F, x: n.drop(x), drop=nn.Dropout(0.5, axes=(0,)))
    else:
        pipeline, net = Pipeline(2), Block(body)
    for run in ("loop", "step"):
        with pytest.raises(mx.MXNetError) as caught:
            if run == "loop":
                net.hybridize(pipeline=pipeline)
                with autograd.record():
                    net(X)
            else:
                TrainStep(net, lambda out: out.mean(axis=1), None, pipeline)(X, [])
        text = str(caught.value)
        assert (
            text.startswith(f"{op} in block ")
            and "mixes data across the batch" in text
            and "Pipeline(check=False)" in text
        ), text
        with pytest.raises(mx.MXNetError, match="no step has run"):
            pipeline.report()


def test_pipeline_check_can_be_disabled():
    """With check=False, the op runs on each micro-batch separately."""
    net = Block(REFUSED["softmax"][0])
    expected = np.concatenate([net(X[b:e]).asnumpy() for b, e in ((0, 4), (4, 8))])
    net.hybridize(exact=True, pipeline=Pipeline(2, check=False))
    assert np.array_equal(net(X).asnumpy(), expected)
    net.hybridize(exact=True, pipeline=Pipeline(1))  # one micro-batch is the whole batch
    assert np.allclose(net(X).asnumpy(), Block(REFUSED["softmax"][0])(X).asnumpy())


ALLOWED = {
    "softmax of features": lambda n, F, x: F.softmax(x),
    "statistics of a row": lambda n, F, x: F.broadcast_sub(x, F.mean(x, axis=-1, keepdims=True)),
    "reshapes": lambda n, F, x: F.reshape(F.tanh(F.reshape(x, (-1, 3))), (-1, 6)),
    "reshapes by shape": lambda n, F, x: F.reshape(
        F.tanh(F.reshape(x, (x.shape[0] * 2, 3))), (x.shape[0], 6)
    ),
    "transposed": lambda n, F, x: F.transpose(F.softmax(F.transpose(x), axis=0)),
    "twins": lambda n, F, x: sum(F.split(F.tanh(F.concat(x, 2 * x, dim=0)), num_outputs=2, axis=0)),
    "repeated": lambda n, F, x: F.mean(
        F.reshape(F.repeat(x, repeats=3, axis=0), (-1, 3, 6)), axis=1
    ),
    "tiled": lambda n, F, x: F.slice_axis(F.tile(x, (2, 1)), axis=0, begin=0, end=x.shape[0]),
    "zeros of rows": lambda n, F, x: x + F.zeros((x.shape[0], 6), ctx=on(1)),
    "zeros_like": lambda n, F, x: F.where(x > 0, x, F.zeros_like(x)),
    "a state of zeros": lambda n, F, x: n.b(F.zeros((x.shape[0], 6), ctx=on(1))) * x,
    "product with a weight": lambda n, F, x: F.dot(x, n.b.weight.data(), transpose_b=True),
    "attention": lambda n, F, x: attention(F, F.reshape(x, (0, 3, 2))),
    "heads in the batch": lambda n, F, x: heads(F, F.reshape(x, (0, 3, 2))),
    "rows of a table": lambda n, F, x: F.take(n.b.weight.data(), F.argmax(x, axis=1)),
    "picked": lambda n, F, x: F.broadcast_mul(x, F.expand_dims(F.pick(x, F.argmax(x, axis=1)), 1)),
    "embedding": lambda n, F, x: F.Embedding(
        F.argmax(x, axis=1), n.b.weight.data(), input_dim=6, output_dim=6
    ),
    "positions in a row": lambda n, F, x: F.broadcast_add(x, F.contrib.arange_like(x, axis=1)),
    "masked": lambda n, F, x: F.SequenceMask(
        x, F.argmax(x, axis=1), use_sequence_length=True, axis=1
    ),
    "all rows": lambda n, F, x: x[: x.shape[0], 0:6],
    "layers": lambda n, F, x: F.LayerNorm(x, F.ones((6,), ctx=on(1)), F.zeros((6,), ctx=on(1))),
    "written": lambda n, F, x: F.Cast(F.Cast(F.relu(x), "float64"), "float32") * F.ones_like(x),
}


def attention(F, x):
    return F.reshape(F.batch_dot(F.softmax(F.batch_dot(x, x, transpose_b=True)), x), (0, -1))


def heads(F, x):
    x = F.reshape(F.transpose(F.reshape(x, (0, 0, 2, 1)), (0, 2, 1, 3)), (-3, 0, 0))
    x = F.batch_dot(F.softmax(F.batch_dot(x, x, transpose_b=True)), x)
    return F.reshape(F.transpose(F.reshape(x, (-4, -1, 2, 0, 0)), (0, 2, 1, 3)), (0, -1))


@pytest.mark.parametrize("case", ALLOWED)
@pytest.mark.parametrize("pieces", [2, 3, 8])
def test_rowwise_blocks_are_accepted_by_pipeline(case, pieces):
    """Covers micro-batches of several rows, of different sizes and of one row."""
    net = Block(ALLOWED[case])
    expected = net(X).asnumpy()
    net.hybridize(exact=True, pipeline=Pipeline(pieces))
    np.testing.assert_allclose(net(X).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    net.hybridize(pipeline=Pipeline(pieces))
    with autograd.record():
        out = net(X)
    out.backward()
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_pipeline_accepts_batch_on_another_axis():
    net = Block(lambda n, F, x: F.softmax(x, axis=0))
    expected = net(IMAGES).asnumpy()
    net.hybridize(exact=True, pipeline=Pipeline(3, axis=1))
    assert np.allclose(net(IMAGES).asnumpy(), expected, atol=1e-6)
    net = Block(lambda n, F, x: F.softmax(x, axis=1))
    net.hybridize(pipeline=Pipeline(3, axis=1))
    with pytest.raises(
        mx.MXNetError,
        match="softmax in block .* operates along axis 1, but the pipeline divides axis 1",
    ):
        net(IMAGES)


def test_undivided_input_combined_with_rows_is_refused():
    net = Block(lambda n, F, x, y: x + y)
    net.hybridize(pipeline=Pipeline(2, split=[0]))
    with pytest.raises(
        mx.MXNetError, match=r"broadcast_add .* its rhs \(4, 6\) is the same for every micro-batch"
    ):
        net(X, X[:4])


def test_pipeline_results_need_rows_on_the_input_axis():
    class Results(Block):
        def hybrid_forward(self, F, x):
            x = self.a(x).as_in_context(self.devices[1])
            return self.body(self, F, x)

    for body, message in (
        (
            lambda n, F, x: F.transpose(x),
            "result 0 of the pipelined block, of shape .* along axis 1",
        ),
        (
            lambda n, F, x: [x, n.b.weight.data() * 2],
            "result 1 of the pipelined block.* does not depend on the divided inputs",
        ),
        (
            lambda n, F, x: x.sum(axis=0, keepdims=True),
            "sum in block .* mixes data across the batch",
        ),
    ):
        net = Results(body)
        net.hybridize(pipeline=Pipeline(2))
        with pytest.raises(mx.MXNetError, match=message):
            net(X[:, :6])


def test_batch_norm_is_accepted_unless_batch_is_its_channel_axis():
    net = Block(lambda n, F, x: n.norm(x), norm=nn.BatchNorm(in_channels=6))
    net.hybridize(pipeline=Pipeline(2))
    with autograd.record():
        assert net(X).shape == (8, 6)
    net = Block(lambda n, F, x: n.norm(x), norm=nn.BatchNorm(axis=0, in_channels=4))
    net.hybridize(pipeline=Pipeline(2))
    with pytest.raises(mx.MXNetError, match="BatchNorm in block .* mixes data across the batch"):
        net(X)


# --- Along time -----------------------------------------------------------------------------------

SEQUENCE = nd.array(np.random.RandomState(0).randn(8, 3, 6))
STATE = nd.zeros((1, 3, 6))


class Timed(gluon.HybridBlock):
    def __init__(self, body):
        super().__init__(prefix="net_")
        self.body = body
        with self.name_scope():
            self.dense = nn.Dense(6, in_units=6, flatten=False)
            self.lstm = rnn.GRU(6, input_size=6)
            self.both = rnn.GRU(3, input_size=6, bidirectional=True)
        self.initialize(mx.init.Xavier())

    def hybrid_forward(self, F, x, state):
        return self.body(self, F, self.dense(x), state)


def carried_sum(n, F, x, s):
    """A running sum over time: the carried state plus the sums within the piece."""
    total = F.broadcast_add(F.cumsum(x, axis=0), s)
    return total, F.slice_axis(total, axis=0, begin=-1, end=None)


def shifted(n, F, x, s):
    before = F.concat(s, F.slice_axis(x, axis=0, begin=0, end=-1), dim=0)
    return x + before, F.slice_axis(x, axis=0, begin=-1, end=None)


def steps(n, F, x, s):
    outputs, state = [], s.reshape((3, 6))
    for t in range(x.shape[0]):
        state = F.tanh(x[t] + state)
        outputs.append(state)
    return F.stack(*outputs, axis=0), state.expand_dims(0)


def positions(n, F, x, s):
    """The state counts steps."""
    at = F.broadcast_add(F.reshape(F.arange(x.shape[0]), (-1, 1, 1)), s)
    return x + at, s + x.shape[0]


CAUSAL = {
    "recurrent": lambda n, F, x, s: (
        n.lstm(x, s)
        if isinstance(s, list)
        else (lambda out, after: (out, after[0]))(*n.lstm(x, [s]))
    ),
    "running sum": carried_sum,
    "the step before": shifted,
    "step by step": steps,
    "counted steps": positions,
}


@pytest.mark.parametrize("case", CAUSAL)
@pytest.mark.parametrize("pieces", [3, 8])
def test_carried_state_may_affect_every_time_step(case, pieces):
    net = Timed(CAUSAL[case])
    expected, after = net(SEQUENCE, STATE)
    net.hybridize(exact=True, pipeline=Pipeline(pieces, along="time"))
    out, state = net(SEQUENCE, STATE)
    np.testing.assert_allclose(out.asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(state.asnumpy(), after.asnumpy(), rtol=1e-5, atol=1e-5)


ACROSS_TIME = {
    "softmax": (lambda n, F, x, s: (F.softmax(x, axis=0), s * 2), "softmax"),
    "mean": (
        lambda n, F, x, s: (F.broadcast_sub(x, F.mean(x, axis=0, keepdims=True)), s * 2),
        "mean",
    ),
    "reverse": (lambda n, F, x, s: (x + F.reverse(x, axis=0), s * 2), "reverse"),
    "the last step": (
        lambda n, F, x, s: (F.broadcast_add(x, F.slice_axis(x, axis=0, begin=-1, end=None)), s * 2),
        "slice_axis",
    ),
    "both directions": (lambda n, F, x, s: (n.both(x), s * 2), "_rnn|RNN"),
    "a state of its own": (lambda n, F, x, s: (n.lstm(x), s * 2), "_rnn|RNN"),
    "positions": (
        lambda n, F, x, s: (F.broadcast_add(x, F.reshape(F.arange(x.shape[0]), (-1, 1, 1))), s * 2),
        "broadcast_add",
    ),
    "attention to all steps": (lambda n, F, x, s: (whole_attention(F, x), s * 2), "batch_dot"),
    "cumsum": (lambda n, F, x, s: (F.cumsum(x, axis=0), s * 2), "_np_cumsum"),
    "length": (lambda n, F, x, s: (x / x.shape[0], s * 2), "_div_scalar"),
}


def whole_attention(F, x):
    x = F.swapaxes(x, 0, 1)
    return F.swapaxes(F.batch_dot(F.softmax(F.batch_dot(x, x, transpose_b=True)), x), 0, 1)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"bidirectional": True}, "from the end"),
        ({"use_sequence_length": True}, "sequence lengths refer"),
    ],
)
def test_bidirectional_or_variable_length_layers_along_time_are_refused(options, words):
    class Layer(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.layer = gluon.rnn.GRU(3, input_size=2, **options)

        def hybrid_forward(self, F, x, states, lengths):
            return self.layer(x, states, lengths)

    net = Layer()
    net.initialize()
    net.hybridize(pipeline=Pipeline(2, along="time"))
    with pytest.raises(mx.MXNetError, match=f"mixes data across the sequence.*{words}"):
        net(mx.nd.ones((4, 2, 2)), net.layer.begin_state(2), mx.nd.array([1, 3]))


@pytest.mark.parametrize("case", ACROSS_TIME)
def test_ops_across_time_are_refused_by_name(case):
    body, op = ACROSS_TIME[case]
    net = Timed(body)
    net.hybridize(pipeline=Pipeline(2, along="time"))
    with pytest.raises(mx.MXNetError, match=f"^({op}) in block .* mixes data across the sequence"):
        net(SEQUENCE, STATE)


def test_reduction_over_time_piece_may_become_state():
    net = Timed(lambda n, F, x, s: (x, F.max(x, axis=0, keepdims=True)))
    net.hybridize(exact=True, pipeline=Pipeline(2, along="time"))
    out, state = net(SEQUENCE, STATE)
    assert np.array_equal(state.asnumpy(), out.asnumpy()[4:].max(axis=0, keepdims=True))
