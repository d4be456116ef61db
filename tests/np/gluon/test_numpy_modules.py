"""Module after `npx.set_np`: the bits of mx.nd, in arrays of mx.nd."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd, npx
from support.kinds import both, new

DATA = np.random.RandomState(8).uniform(-1, 1, (8, 4)).astype("float32")
LABELS = np.float32([0, 1, 2, 0, 1, 2, 0, 1])


@pytest.fixture(autouse=True)
def _off():
    yield
    npx.reset_np()


def classifier():
    layer = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="layer")
    return mx.sym.SoftmaxOutput(layer, name="softmax")


@pytest.mark.parametrize("devices", [[mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]], ids=len)
def test_modules_train_on_both_kinds_of_data(devices, tmp_path):
    def train(numpy):
        data = mx.io.NDArrayIter(new.array(DATA), new.array(LABELS), batch_size=4)
        module = mx.mod.Module(classifier(), context=devices)
        module.fit(data, num_epoch=2, optimizer="adam", initializer=mx.init.Xavier())
        module.save_checkpoint(str(tmp_path / "module"), 1, save_optimizer_states=True)
        loaded = mx.mod.Module.load(str(tmp_path / "module"), 1, load_optimizer_states=True)
        loaded.fit(data, num_epoch=1, optimizer="adam")
        arrays = [loaded.predict(data), *loaded.get_params()[0].values()]
        assert {type(array) for array in arrays} == {nd.NDArray}
        return arrays

    both(train)


def test_modules_run_symbols_of_both_kinds():
    def train(numpy):
        data, weight = mx.sym.var("data"), mx.sym.var("layer_weight", shape=(4, 3))
        if numpy:
            result = mx.sym.np.tanh(mx.sym.np.dot(data.as_np_ndarray(), weight.as_np_ndarray()))
        else:
            result = mx.sym.tanh(mx.sym.dot(data, weight))
        module = mx.mod.Module(result, label_names=None)
        module.bind([("data", DATA.shape)])
        module.init_params(mx.init.Uniform(0.5))
        module.init_optimizer()
        for _ in range(2):
            module.forward(mx.io.DataBatch([new.array(DATA)]), is_train=True)
            module.backward([new.ones((8, 3))])
            module.update()
        arrays = [*module.get_outputs(), module.get_params()[0]["layer_weight"]]
        assert {type(array) for array in arrays} == {nd.NDArray}
        return arrays

    both(train)
