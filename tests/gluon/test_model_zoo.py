"""Networks of the model zoo: structure, parameter names, outputs, files of trained parameters."""

import hashlib
import json
import zipfile

import numpy as np
import pytest

import mpgluon as mx
from mpgluon.gluon.model_zoo import model_store, vision
from support.calls import raises
from support.devices import on
from support.model_zoo import CLASSES, RECORD, fill, image, size_of, structure
from support.training import backward_of

with open(RECORD, encoding="utf-8") as file:
    MXNET = json.load(file)  # recorded from MXNet 1.9.1
# Networks whose outputs every run compares.
QUICK = {"mobilenet0.25", "mobilenetv2_0.25", "resnet18_v2", "squeezenet1.1"}


@pytest.mark.slow
def test_parameter_names_and_shapes_match_mxnet():
    """Names and shapes of parameters in order, without allocating them."""
    assert sorted(MXNET) == sorted(vision._MODELS)
    for name, there in MXNET.items():
        net = vision.get_model(name, prefix="net_", classes=CLASSES)
        symbol = net(mx.sym.var("data"))
        shapes, _, others = symbol.infer_shape(data=image(size_of(name)).shape)
        names = symbol.list_arguments() + symbol.list_auxiliary_states()
        parameters = net.collect_params()
        for parameter, shape in zip(names, shapes + others):
            if parameter != "data":
                parameters[parameter].shape = shape
        assert structure(net) == there["structure"], name


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MXNET]
)
def test_outputs_match_mxnet(name):
    """Close to MXNet's, and bit-identical when hybridized."""
    net = vision.get_model(name, prefix="net_", classes=CLASSES)
    x = mx.nd.array(image(size_of(name)))
    net.initialize()
    net.infer_shape(x)
    fill(net, mx.nd)
    eager = net(x)
    expected = np.array([MXNET[name]["output"]])
    assert eager.shape == (1, CLASSES)
    error = np.abs(eager.asnumpy() - expected).max() / np.abs(expected).max()
    assert error < 1e-4
    net.hybridize(exact=True)
    assert np.array_equal(net(x).asnumpy(), eager.asnumpy())


SMALL = {
    "MobileNet": (lambda: vision.MobileNet(0.25, classes=4, prefix="net_"), 32),
    "MobileNetV2": (lambda: vision.MobileNetV2(0.25, classes=4, prefix="net_"), 32),
    "DenseNet": (lambda: vision.DenseNet(8, 4, [2, 2], classes=4, prefix="net_"), 56),
}


class TwoDevices(mx.gluon.HybridBlock):
    """A zoo network with the output and all layers from index `border` on a second device."""

    def __init__(self, net, border):
        super().__init__(prefix="")
        self.net, self.border = net, border
        for layer in [*net.features[border:], net.output]:
            layer.collect_params().reset_ctx(on(1))

    def hybrid_forward(self, F, x):
        for i, layer in enumerate(self.net.features):
            x = layer(x.as_in_context(on(1)) if i == self.border else x)
        return self.net.output(x)


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("kind", SMALL)
def test_networks_on_two_devices_have_the_bits_of_one(kind, hybridize):
    """Outputs and gradients have the bits of one device."""
    make, size = SMALL[kind]
    # Both devices are active in both cases because they share the cores, and the bits of weight
    # gradients depend on the number of threads.
    mx.nd.zeros(1, ctx=on(1))
    x = mx.nd.array(np.random.RandomState(1).randn(2, 3, size, size), ctx=on(0))
    found = []
    for border in (None, 6):
        net = make()
        net.initialize(ctx=on(0))
        net.infer_shape(x)
        fill(net, mx.nd)
        block = net if border is None else TwoDevices(net, border)
        if hybridize:
            block.hybridize()
        out = backward_of(lambda: block(x))
        gradients = {n: p.grad() for n, p in net.collect_params().items() if p.grad_req != "null"}
        assert border is None or {g.context for g in gradients.values()} == {on(0), on(1)}
        found.append({"out": out.asnumpy(), **{n: g.asnumpy() for n, g in gradients.items()}})
    one, two = found
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[name], two[name]) for name in one)


def losses_of(net, size, rate=0.05, samples=4, steps=8):
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = mx.nd.array(np.random.RandomState(0).randn(samples, 3, size, size))
    labels = mx.nd.array(np.arange(samples) % 4)
    trainer = mx.gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": rate, "momentum": 0.9}
    )
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for _ in range(steps):
        error = backward_of(lambda: loss(net(x), labels).mean())
        trainer.step(1)
        losses.append(error.asscalar())
    return losses


@pytest.mark.parametrize("kind", SMALL)
def test_small_networks_train(kind):
    make, size = SMALL[kind]
    losses = losses_of(make(), size, 0.01, samples=16, steps=24)
    assert np.mean(losses[-4:]) < 0.8 * losses[0]


def test_resnet_parameter_names_match_mxnet():
    net = vision.resnet18_v1(prefix="net_", classes=10)
    names = list(net.collect_params())
    assert names[:2] == ["net_conv0_weight", "net_batchnorm0_gamma"]
    assert "net_stage2_conv2_weight" in names
    assert "net_stage4_batchnorm4_running_var" in names
    assert names[-1] == "net_dense0_bias"
    assert net.output.weight.shape == (10, 512)


@pytest.mark.parametrize("version", [1, 2])
def test_thumbnail_resnet_trains(version):
    losses = losses_of(vision.get_resnet(version, 18, classes=4, thumbnail=True), 16)
    assert losses[-1] < losses[0] / 2


def test_pretrained_checks_the_files_digest(tmp_path, monkeypatch):
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
    monkeypatch.setitem(model_store._model_sha1, "resnet18_v1", digest)
    path.rename(tmp_path / f"resnet18_v1-{digest[:8]}.params")
    again = vision.get_model("ResNet18_v1", pretrained=True, root=str(tmp_path))
    assert np.array_equal(again.output.weight.data().asnumpy(), net.output.weight.data().asnumpy())
    model_store.purge(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_missing_parameter_file_error_names_the_path(tmp_path, monkeypatch):
    """The error names the file that MXNet would load and its folder."""
    monkeypatch.delenv("MXNET_GLUON_REPO", raising=False)
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "home"))
    for name in MXNET:
        file = f"{name}-{model_store.short_hash(name)}.params"
        with pytest.raises(FileNotFoundError, match="MXNET_GLUON_REPO") as raised:
            vision.get_model(name, pretrained=True, root=str(tmp_path))
        assert str(tmp_path / file) in str(raised.value)
        with pytest.raises(FileNotFoundError) as raised:
            model_store.get_model_file(name)
        assert str(tmp_path / "home" / "models" / file) in str(raised.value)


def test_missing_parameter_file_is_downloaded_whole_or_not_at_all(tmp_path, monkeypatch):
    """A missing file is downloaded from MXNET_GLUON_REPO, atomically."""
    contents = b"parameters"
    digest = hashlib.sha1(contents).hexdigest()
    monkeypatch.setitem(model_store._model_sha1, "mine", digest)
    stem = f"mine-{digest[:8]}"
    folder, root = tmp_path / "files" / "gluon" / "models", tmp_path / "root"
    folder.mkdir(parents=True)
    path = root / f"{stem}.params"

    def publish(name, data):
        with zipfile.ZipFile(folder / f"{stem}.zip", "w") as archive:
            archive.writestr("../outside", b"")
            archive.writestr(name, data)

    def get():
        return model_store.get_model_file("mine", str(root))

    for address in (str(tmp_path / "files"), (tmp_path / "files").as_uri() + "/"):
        monkeypatch.setenv("MXNET_GLUON_REPO", address)
        publish(f"{stem}.params", contents)
        assert get() == str(path) and path.read_bytes() == contents
        path.write_bytes(b"damaged")
        with pytest.warns(UserWarning, match="downloading it again"):
            get()
        assert path.read_bytes() == contents
        model_store.purge(str(root))
        publish(f"{stem}.params", b"others")
        raises(ValueError, "does not hold the mine-", get)
        publish("other.params", contents)
        raises(mx.MXNetError, f"is not a zip file with {stem}.params", get)
        (folder / f"{stem}.zip").write_bytes(b"no archive")
        raises(mx.MXNetError, "is not a zip file", get)
        (folder / f"{stem}.zip").unlink()
        raises(mx.MXNetError, "cannot read", get)
        assert not list(root.iterdir())
    monkeypatch.delenv("MXNET_GLUON_REPO")
    with pytest.raises(mx.MXNetError, match="set the environment variable MXNET_GLUON_REPO"):
        mx.gluon.utils._get_repo_file_url("gluon/models", "a.zip")


def test_invalid_model_names_and_sizes_raise():
    raises(ValueError, "resnet50_v2", lambda: vision.get_model("resnet19"))
    raises(ValueError, "no trained parameters", lambda: model_store.get_model_file("mine"))
    raises(AssertionError, "version", lambda: vision.get_resnet(3, 18))
    raises(AssertionError, "18, 34", lambda: vision.get_resnet(1, 20))
    raises(ValueError, "11, 13, 16, 19, not 12", lambda: vision.get_vgg(12))
    raises(ValueError, "121, 161", lambda: vision.densenet.get_densenet(122))
    raises(AssertionError, "'1.0' or '1.1', not '2'", lambda: vision.SqueezeNet("2"))
    raises(AssertionError, "not 1 for 2", lambda: vision.VGG([1, 1], [8]))
    raises(ValueError, "mobilenet0.3", lambda: vision.get_mobilenet(0.3, pretrained=True))
    with pytest.raises(AssertionError, match="one more element"):
        vision.ResNetV1(vision.BasicBlockV1, [1, 1], [8, 8])
