"""Networks of the model zoo: structure, parameter names, files of trained parameters."""

import hashlib

import numpy as np
import pytest

import mpgluon as mx
from mpgluon.gluon.model_zoo import model_store, vision

# Parameters and their elements, as in MXNet 1.9.1.
SIZES = {
    "resnet18_v1": (102, 11699112),
    "resnet34_v1": (182, 21814696),
    "resnet50_v1": (299, 25629032),
    "resnet18_v2": (98, 11695796),
    "resnet50_v2": (259, 25595060),
}


@pytest.mark.parametrize("name", SIZES)
def test_parameters(name):
    net = vision.get_model(name)
    net.initialize()
    net(mx.nd.zeros((1, 3, 32, 32)))
    parameters = net.collect_params()
    assert (len(parameters), sum(int(np.prod(p.shape)) for p in parameters.values())) == SIZES[name]


def test_names():
    net = vision.resnet18_v1(prefix="net_", classes=10)
    names = list(net.collect_params())
    assert names[:2] == ["net_conv0_weight", "net_batchnorm0_gamma"]
    assert (
        "net_stage2_conv2_weight" in names
        and "net_stage4_batchnorm4_running_var" in names
        and names[-1] == "net_dense0_bias"
    )
    assert net.output.weight.shape == (10, 512)


@pytest.mark.parametrize("version", [1, 2])
def test_thumbnail_trains(version):
    net = vision.get_resnet(version, 18, classes=4, thumbnail=True)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = mx.nd.array(np.random.RandomState(0).randn(4, 3, 16, 16))
    trainer = mx.gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9}
    )
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for _ in range(8):
        with mx.autograd.record():
            error = loss(net(x), mx.nd.array([0, 1, 2, 3])).mean()
        error.backward()
        trainer.step(1)
        losses.append(error.asscalar())
    assert losses[-1] < losses[0] / 2


def test_pretrained(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="resnet18_v1-a0666292.params"):
        vision.resnet18_v1(pretrained=True, root=str(tmp_path))
    net = vision.resnet18_v1()
    net.initialize()
    net(mx.nd.zeros((1, 3, 32, 32)))
    path = tmp_path / "resnet18_v1-a0666292.params"
    net.save_parameters(str(path))
    with pytest.raises(ValueError, match="is not the file"):
        vision.resnet18_v1(pretrained=True, root=str(tmp_path))
    digest = hashlib.sha1(path.read_bytes()).hexdigest()
    monkeypatch.setitem(model_store._SHA1, "resnet18_v1", digest)
    path.rename(tmp_path / f"resnet18_v1-{digest[:8]}.params")
    again = vision.get_model("ResNet18_v1", pretrained=True, root=str(tmp_path))
    assert np.array_equal(again.output.weight.data().asnumpy(), net.output.weight.data().asnumpy())
    model_store.purge(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_mistakes():
    with pytest.raises(ValueError, match="resnet50_v2"):
        vision.get_model("resnet19")
    with pytest.raises(ValueError, match="no trained parameters"):
        model_store.get_model_file("mine")
    with pytest.raises(AssertionError, match="version"):
        vision.get_resnet(3, 18)
    with pytest.raises(AssertionError, match="18, 34"):
        vision.get_resnet(1, 20)
    with pytest.raises(AssertionError, match="one element more"):
        vision.ResNetV1(vision.BasicBlockV1, [1, 1], [8, 8])
