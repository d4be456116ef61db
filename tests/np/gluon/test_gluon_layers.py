"""Layers and losses on arrays of mx.np: the bits of arrays of mx.nd, eager and hybridized."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd, npx
from mpgluon.gluon import contrib, loss, nn, rnn
from support.compare import same_bits
from support.kinds import new

draw = np.random.RandomState(7)


def values(*shape):
    return draw.uniform(-1, 1, shape).astype("float32")


def positive(*shape):
    return draw.uniform(0.1, 1, shape).astype("float32")


def indices(limit, *shape):
    return draw.randint(0, limit, shape).astype("float32")


ROWS, PLANES = values(4, 6), values(2, 4, 6, 6)
LINES, CUBES = values(2, 4, 8), values(2, 3, 5, 6, 4)
STEPS = values(3, 2, 5)


@pytest.fixture(autouse=True)
def _off():
    yield
    npx.reset_np()


def sequential(*layers):
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def wrapped(cell):
    """Returns a block that unrolls a cell over three steps."""

    class Unrolled(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.cell = cell

        def hybrid_forward(self, F, x):
            outputs, states = self.cell.unroll(3, x, layout="TNC", merge_outputs=True)
            return [outputs, *states]

    return Unrolled()


def cells(*made):
    cell = rnn.HybridSequentialRNNCell()
    for one in made:
        cell.add(one)
    return cell


# name -> (function that makes the block, its inputs)
LAYERS = {
    "Dense": (lambda: nn.Dense(3, activation="relu"), PLANES),
    "Dense of rows": (lambda: nn.Dense(3, flatten=False), LINES),
    "Activation": (lambda: nn.Activation("tanh"), ROWS),
    "LeakyReLU": (lambda: nn.LeakyReLU(0.1), ROWS),
    "PReLU": (nn.PReLU, ROWS),
    "ELU": (nn.ELU, ROWS),
    "SELU": (nn.SELU, ROWS),
    "GELU": (nn.GELU, ROWS),
    "SiLU": (nn.SiLU, ROWS),
    "Swish": (lambda: nn.Swish(1.5), ROWS),
    "Dropout": (lambda: nn.Dropout(0.5), ROWS),
    "Dropout of axes": (lambda: nn.Dropout(0.5, axes=(1,)), ROWS),
    "Embedding": (lambda: nn.Embedding(7, 3), indices(7, 2, 5)),
    "BatchNorm": (nn.BatchNorm, PLANES),
    "BatchNormReLU": (nn.BatchNormReLU, PLANES),
    "InstanceNorm": (nn.InstanceNorm, PLANES),
    "InstanceNorm of axis 2": (lambda: nn.InstanceNorm(axis=2), PLANES),
    "LayerNorm": (nn.LayerNorm, LINES),
    "GroupNorm": (lambda: nn.GroupNorm(2), PLANES),
    "RMSNorm": (nn.RMSNorm, LINES),
    "Flatten": (nn.Flatten, PLANES),
    "Lambda": (lambda: nn.Lambda("relu"), ROWS),
    "HybridLambda": (lambda: nn.HybridLambda("relu"), ROWS),
    "HybridLambda of a function": (lambda: nn.HybridLambda(lambda F, x: F.exp(x) * 2), ROWS),
    "Conv1D": (lambda: nn.Conv1D(3, 3, activation="relu"), LINES),
    "Conv2D": (lambda: nn.Conv2D(4, 3, 2, 1, groups=2), PLANES),
    "Conv3D": (lambda: nn.Conv3D(2, 3), CUBES),
    "Conv1DTranspose": (lambda: nn.Conv1DTranspose(3, 3), LINES),
    "Conv2DTranspose": (lambda: nn.Conv2DTranspose(4, 3, 2, 1, 1), PLANES),
    "Conv3DTranspose": (lambda: nn.Conv3DTranspose(2, 3), CUBES),
    "MaxPool1D": (nn.MaxPool1D, LINES),
    "MaxPool2D": (nn.MaxPool2D, PLANES),
    "MaxPool3D": (nn.MaxPool3D, CUBES),
    "AvgPool1D": (nn.AvgPool1D, LINES),
    "AvgPool2D": (nn.AvgPool2D, PLANES),
    "AvgPool3D": (nn.AvgPool3D, CUBES),
    "GlobalMaxPool1D": (nn.GlobalMaxPool1D, LINES),
    "GlobalMaxPool2D": (nn.GlobalMaxPool2D, PLANES),
    "GlobalMaxPool3D": (nn.GlobalMaxPool3D, CUBES),
    "GlobalAvgPool1D": (nn.GlobalAvgPool1D, LINES),
    "GlobalAvgPool2D": (nn.GlobalAvgPool2D, PLANES),
    "GlobalAvgPool3D": (nn.GlobalAvgPool3D, CUBES),
    "ReflectionPad2D": (lambda: nn.ReflectionPad2D(2), PLANES),
    "GatedMLP": (lambda: nn.GatedMLP(6, 4), ROWS),
    "MoE": (lambda: nn.MoE(6, 5, experts=3, k=2, shared=1), ROWS),
    "MoE with losses": (lambda: nn.MoE(6, 5, experts=3, k=2, aux_loss=0.1, z_loss=0.1), ROWS),
    "MultiHeadAttention": (lambda: nn.MultiHeadAttention(6, 2), values(2, 3, 6)),
    "MultiHeadAttention with options": (
        lambda: nn.MultiHeadAttention(8, 4, kv_heads=2, qk_norm=True, rotary=True, causal=True),
        values(2, 3, 8),
    ),
    "TransformerEncoderCell": (lambda: nn.TransformerEncoderCell(8, 16, 2), values(2, 3, 8)),
    "TransformerDecoderCell": (
        lambda: nn.TransformerDecoderCell(8, 16, 2),
        (values(2, 3, 8), values(2, 4, 8)),
    ),
    "Sequential": (lambda: _filled(nn.Sequential()), ROWS),
    "HybridSequential": (lambda: _filled(nn.HybridSequential()), ROWS),
    "Concurrent": (lambda: _filled(contrib.nn.Concurrent()), ROWS),
    "HybridConcurrent": (lambda: _filled(contrib.nn.HybridConcurrent()), ROWS),
    "Identity": (contrib.nn.Identity, ROWS),
    "PixelShuffle1D": (lambda: contrib.nn.PixelShuffle1D(2), LINES),
    "PixelShuffle2D": (lambda: contrib.nn.PixelShuffle2D(2), PLANES),
    "PixelShuffle3D": (lambda: contrib.nn.PixelShuffle3D(2), values(1, 8, 2, 2, 2)),
    "SyncBatchNorm": (lambda: contrib.nn.SyncBatchNorm(), PLANES),
    "RNN": (lambda: rnn.RNN(4, 2), STEPS),
    "LSTM": (lambda: rnn.LSTM(4, bidirectional=True, dropout=0.3, num_layers=2), STEPS),
    "GRU": (lambda: rnn.GRU(4, layout="NTC"), STEPS),
    "RNNCell": (lambda: wrapped(rnn.RNNCell(4)), STEPS),
    "LSTMCell": (lambda: wrapped(rnn.LSTMCell(4)), STEPS),
    "GRUCell": (lambda: wrapped(rnn.GRUCell(4)), STEPS),
    "HybridSequentialRNNCell": (
        lambda: wrapped(cells(rnn.LSTMCell(4), rnn.DropoutCell(0.5), rnn.GRUCell(5))),
        STEPS,
    ),
    "ZoneoutCell": (lambda: wrapped(rnn.ZoneoutCell(rnn.RNNCell(4), 0.5, 0.5)), STEPS),
    "ResidualCell": (lambda: wrapped(rnn.ResidualCell(rnn.GRUCell(5))), STEPS),
    "BidirectionalCell": (
        lambda: wrapped(rnn.BidirectionalCell(rnn.LSTMCell(4), rnn.GRUCell(4))),
        STEPS,
    ),
    "VariationalDropoutCell": (
        lambda: wrapped(contrib.rnn.VariationalDropoutCell(rnn.LSTMCell(4), 0.3, 0.3, 0.3)),
        STEPS,
    ),
    "LSTMPCell": (lambda: wrapped(contrib.rnn.LSTMPCell(4, 3)), STEPS),
    "Conv1DLSTMCell": (
        lambda: wrapped(contrib.rnn.Conv1DLSTMCell((2, 6), 3, 3, 3, 1, 1)),
        values(3, 2, 2, 6),
    ),
}
CLASSES, SIGNS = indices(5, 4), np.sign(values(4, 5))
LOSSES = {
    "L2Loss": (loss.L2Loss, (values(4, 5), values(4, 5))),
    "L2Loss of other shapes": (loss.L2Loss, (values(4, 5), values(20))),
    "L1Loss": (loss.L1Loss, (values(4, 5), values(4, 5))),
    "SigmoidBinaryCrossEntropyLoss": (
        loss.SigmoidBinaryCrossEntropyLoss,
        (values(4, 5), positive(4, 5)),
    ),
    "SigmoidBCELoss with weights": (
        loss.SigmoidBCELoss,
        (values(4, 5), positive(4, 5), positive(4, 5), positive(1, 5)),
    ),
    "SigmoidBCELoss from sigmoid": (
        lambda: loss.SigmoidBCELoss(from_sigmoid=True),
        (positive(4, 5) * 0.9, positive(4, 5)),
    ),
    "SoftmaxCrossEntropyLoss": (loss.SoftmaxCrossEntropyLoss, (values(4, 5), CLASSES)),
    "SoftmaxCELoss dense": (
        lambda: loss.SoftmaxCELoss(sparse_label=False),
        (values(4, 5), positive(4, 5), positive(4, 1)),
    ),
    "LinearCrossEntropyLoss": (
        lambda: loss.LinearCrossEntropyLoss(nn.Dense(5, in_units=6)),
        (values(4, 6), CLASSES),
    ),
    "KLDivLoss": (loss.KLDivLoss, (values(4, 5), positive(4, 5))),
    "KLDivLoss of scores": (
        lambda: loss.KLDivLoss(from_logits=False),
        (values(4, 5), positive(4, 5)),
    ),
    "CTCLoss": (loss.CTCLoss, (values(2, 6, 4), indices(3, 2, 3))),
    "CTCLoss with lengths": (
        loss.CTCLoss,
        (values(2, 6, 4), indices(3, 2, 3), np.float32([6, 5]), np.float32([3, 2])),
    ),
    "HuberLoss": (lambda: loss.HuberLoss(0.3), (values(4, 5), values(4, 5))),
    "HingeLoss": (loss.HingeLoss, (values(4, 5), SIGNS)),
    "SquaredHingeLoss": (loss.SquaredHingeLoss, (values(4, 5), SIGNS)),
    "LogisticLoss": (loss.LogisticLoss, (values(4, 5), SIGNS)),
    "LogisticLoss binary": (
        lambda: loss.LogisticLoss(label_format="binary"),
        (values(4, 5), (SIGNS > 0).astype("float32")),
    ),
    "TripletLoss": (loss.TripletLoss, (values(4, 5), values(4, 5), values(4, 5))),
    "PoissonNLLLoss": (loss.PoissonNLLLoss, (values(4, 5), positive(4, 5))),
    "PoissonNLLLoss full": (
        lambda: loss.PoissonNLLLoss(from_logits=False, compute_full=True),
        (positive(4, 5), positive(4, 5) * 4),
    ),
    "CosineEmbeddingLoss": (
        loss.CosineEmbeddingLoss,
        (values(4, 5), values(4, 5), np.float32([1, -1, 1, -1])),
    ),
    "SDMLLoss": (loss.SDMLLoss, (values(4, 5), values(4, 5))),
}
BLOCKS = {**LAYERS, **LOSSES}
ABSTRACT = {
    "Block",
    "HybridBlock",
    "SymbolBlock",
    "Loss",
    "RecurrentCell",
    "HybridRecurrentCell",
    "ModifierCell",
}
ELSEWHERE = {
    "QuantizedDense",  # test_gluon_training.py
    "SparseEmbedding",  # test_row_sparse_layers_are_refused
    "SequentialRNNCell",  # an unhybridized HybridSequentialRNNCell
    "SigmoidBCELoss",  # aliases
    "SoftmaxCELoss",
    "DropoutCell",  # in HybridSequentialRNNCell
}


def _filled(net):
    net.add(nn.Dense(4), nn.Dense(2), nn.Dropout(0.5))
    return net if not isinstance(net, (nn.Sequential,)) else net


def test_all_layers_and_losses_are_listed():
    names = {*nn.__all__, *loss.__all__, *rnn.__all__, *contrib.nn.__all__}
    assert names - ABSTRACT - ELSEWHERE <= set(BLOCKS)


def flat(result):
    if isinstance(result, (list, tuple)):
        return [array for part in result for array in flat(part)]
    return [result]


def run(make, inputs, numpy, hybridize):
    """Returns shapes and values: outputs of inference and training, gradients, and parameters
    before and after an update."""
    (npx.set_np if numpy else npx.reset_np)()
    mx.random.seed(3)
    arrays = [nd.array(x) for x in (inputs if isinstance(inputs, tuple) else (inputs,))]
    kind = mx.np.ndarray if numpy else nd.NDArray
    if numpy:
        arrays = [array.as_np_ndarray() for array in arrays]
    for array in arrays:
        array.attach_grad()
    net = make()
    net.initialize(mx.init.Xavier())
    if hybridize:
        net.hybridize()
    params = net.collect_params()
    results = flat(net(*arrays))
    trainer = gluon.Trainer(params, "sgd", {"learning_rate": 0.5, "momentum": 0.5})
    for _ in range(2):
        with autograd.record():
            outputs = flat(net(*arrays))
        autograd.backward(outputs)
        results += outputs + [array.grad for array in arrays]
        grads = [p.grad() for p in params.values() if p.grad_req != "null"]
        results += [grad.copy() for grad in grads]
        trainer.step(1, ignore_stale_grad=True)
    results += [p.data() for p in params.values()]
    assert {type(result) for result in results} == {kind}
    npx.reset_np()
    return [result.asnumpy() for result in results]


@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybridized"])
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_compute_the_bits_of_nd(name, hybridize):
    make, inputs = BLOCKS[name]
    expected = run(make, inputs, False, hybridize)
    found = run(make, inputs, True, hybridize)
    mean = isinstance(make(), loss.PoissonNLLLoss)  # without dimensions, as in NumPy
    shapes = [() if mean and x.shape == (1,) else x.shape for x in expected]
    assert [x.shape for x in found] == shapes
    same_bits([x.reshape(y.shape) for x, y in zip(found, expected)], expected)


def test_projected_layers_complete_their_shapes():
    npx.set_np()
    layer = rnn.LSTM(4, projection_size=2)
    layer.initialize()
    assert layer(mx.np.ones((3, 2, 5))).shape == (3, 2, 2)
    assert layer.l0_i2h_weight.shape == (16, 5)


@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize("way", ["traced", "symbols"])
@pytest.mark.parametrize("make", [lambda: rnn.LSTM(4), lambda: wrapped(rnn.GRUCell(4))])
def test_symbols_of_recurrent_layers_accept_other_batches(make, way, array, tmp_path):
    """Their initial states have an unknown size, which is -1 with NumPy shapes."""
    npx.set_np(array=array)
    net = sequential(make())
    net.initialize()
    if way == "traced":
        net.hybridize()
    first, other = [new.array(values(3, size, 5)) for size in (2, 7)]
    net(first)
    if way == "traced":
        files = net.export(str(tmp_path / "net"))
        block = gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    else:
        data = mx.sym.var("data").as_np_ndarray() if array else mx.sym.var("data")
        block = gluon.SymbolBlock(net(data), [data], params=net.collect_params())
    for x in (first, other):
        for found, wanted in zip(flat(block(x)), flat(net(x)), strict=True):
            np.testing.assert_allclose(found.asnumpy(), wanted.asnumpy(), rtol=1e-5)
