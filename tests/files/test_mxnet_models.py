"""Models saved by MXNet 1.9.1 (tests/data/mxnet-1.9.1) give the same outputs."""

import os
import pickle

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon
from support.paths import TESTS

FOLDER = os.path.join(TESTS, "data", "mxnet-1.9.1")


def reference(name):
    arrays = mx.nd.load(os.path.join(FOLDER, f"{name}.nd"))
    return [
        [arrays[f"{kind}{i}"] for i in range(len([key for key in arrays if key[0] == kind]))]
        for kind in "xo"
    ]


@pytest.mark.parametrize("mode", ["eager", "hybrid", "exact"])
@pytest.mark.parametrize("name", ["resnet", "lstm", "detector", "attention", "loops"])
def test_mxnet_symbol_block_gives_same_outputs(name, mode):
    inputs, expected = reference(name)
    path = os.path.join(FOLDER, name)
    net = gluon.SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-0000.params")
    if mode != "eager":
        net.hybridize(exact=mode == "exact")
    for _ in range(2):
        outputs = net(*inputs)
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        assert len(outputs) == len(expected)
        for output, wanted in zip(outputs, expected):
            assert output.dtype == wanted.dtype
            np.testing.assert_allclose(output.asnumpy(), wanted.asnumpy(), rtol=1e-5, atol=2e-6)


def test_mxnet_module_checkpoint_gives_same_outputs():
    (data,), (expected,) = reference("module")
    symbol, arguments, states = mx.model.load_checkpoint(os.path.join(FOLDER, "module"), 2)
    module = mx.mod.Module(symbol)
    module.bind([("data", (4, 4))], for_training=False)
    module.set_params(arguments, states)
    found = module.predict(mx.io.NDArrayIter(data, None, 4))
    np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-6)


def test_mxnet_momentum_states_continue_training():
    """A Module continues with the momentum that MXNet saved."""
    (data,), _ = reference("module")
    steps = mx.nd.load(os.path.join(FOLDER, "momentum.nd"))
    module = mx.mod.Module(mx.sym.load(os.path.join(FOLDER, "module-symbol.json")))
    module.bind([("data", (4, 4))], [("softmax_label", (4,))])
    module.set_params({key[2:]: array for key, array in steps.items() if key[0] == "a"}, {})
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    module.load_optimizer_states(os.path.join(FOLDER, "momentum.states"))
    module.forward_backward(mx.io.DataBatch([data[:4]], [mx.nd.array([0, 1, 2, 0])]))
    module.update()
    for name, array in module.get_params()[0].items():
        np.testing.assert_allclose(
            array.asnumpy(), steps[f"b:{name}"].asnumpy(), rtol=1e-5, atol=1e-6
        )
        assert not (array.asnumpy() == steps[f"a:{name}"].asnumpy()).all()


def test_states_of_another_module_are_refused(tmp_path):
    module = mx.mod.Module(
        mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="other"), label_names=None
    )
    module.bind([("data", (4, 4))])
    module.init_params()
    module.init_optimizer(optimizer_params={"momentum": 0.9})
    with pytest.raises(
        mx.MXNetError,
        match="momentum.states holds states of 2, 3, but the module has the parameters "
        "other_weight, other_bias",
    ):
        module.load_optimizer_states(os.path.join(FOLDER, "momentum.states"))
    (tmp_path / "empty.states").write_bytes(b"")
    with pytest.raises(mx.MXNetError, match="empty.states: these bytes are not optimizer states"):
        module.load_optimizer_states(str(tmp_path / "empty.states"))


def test_invalid_states_are_refused_and_change_nothing():
    """Covers unrelated bytes, truncated files and files with MXNet objects besides arrays."""
    with open(os.path.join(FOLDER, "momentum.states"), "rb") as file:
        saved = file.read()
    updater = mx.optimizer.get_updater(mx.optimizer.SGD(momentum=0.9))
    updater.set_states(saved)
    before = updater.states
    other = (
        saved.replace(b"\x07NDArray", b"\x07NDArraz")
        .replace(b"NDArray\n", b"NDArraz\n")
        .replace(b"\x8c\x07NDArray", b"\x8c\x07NDArraz")
    )
    for wrong, words in (
        (b"", "not optimizer states"),
        (saved[: len(saved) // 2], "not optimizer states"),
        (pickle.dumps([1]), "hold a list"),
        (other, r"NDArraz, but only arrays .* pass trusted=True"),
    ):
        with pytest.raises(mx.MXNetError, match=words):
            updater.set_states(wrong)
        assert updater.states is before


def test_mxnet_model_continues_training():
    inputs, _ = reference("resnet")
    path = os.path.join(FOLDER, "resnet")
    net = gluon.SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-0000.params")
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    loss, losses = gluon.loss.SoftmaxCrossEntropyLoss(), []
    for _ in range(8):
        with mx.autograd.record():
            error = loss(net(*inputs), mx.nd.array([1, 3])).mean()
        error.backward()
        trainer.step(1)
        losses.append(error.asscalar())
    assert losses[-1] < 0.5 * losses[0]


def test_mxnet_model_can_be_split_over_devices():
    """Moves the head of a loaded network, split off by its internals, to another device."""
    inputs, (expected,) = reference("resnet")
    path = os.path.join(FOLDER, "resnet")
    symbol = mx.sym.load(f"{path}-symbol.json")
    name = next(
        name for name in symbol.get_internals().list_outputs() if name.endswith("pool0_fwd_output")
    )
    body = symbol.get_internals()[name]
    first = gluon.SymbolBlock(body, mx.sym.var("data"))
    first.collect_params().load(f"{path}-0000.params", ctx=mx.cpu(0), ignore_extra=True)
    arrays = {key[4:]: array for key, array in mx.nd.load(f"{path}-0000.params").items()}
    weight, bias = [
        next(array for key, array in arrays.items() if key.endswith(f"dense0_{what}"))
        for what in ("weight", "bias")
    ]

    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.body, self.head = first, gluon.nn.Dense(5, in_units=8)

        def hybrid_forward(self, F, x):
            return self.head(self.body(x).as_in_context(mx.cpu(1)))

    net = Net()
    net.head.initialize(ctx=mx.cpu(1))
    net.head.weight.set_data(weight)
    net.head.bias.set_data(bias)
    net.hybridize()
    out = net(*inputs)
    assert out.context == mx.cpu(1)
    np.testing.assert_allclose(out.asnumpy(), expected.asnumpy(), rtol=1e-5, atol=2e-6)
