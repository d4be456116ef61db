"""Options of an optimizer that change between updates, or after states were saved."""

import copy

import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from support.training import network, same, train


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("optimizer", ["sgd", "nag", "lars", "lbsgd", "dcasgd", "signum"])
def test_momentum_may_be_changed_between_updates(optimizer, dtype, capsys):
    """A momentum that starts later starts with zeros, for any placement."""

    def run(devices, momenta):
        net = network()
        net.cast(dtype)
        if devices:
            net.place({str(i): mx.cpu(d) for i, d in enumerate(devices)})
            capsys.readouterr()
        options = {"learning_rate": 0.05, "momentum": momenta[0], "multi_precision": True}
        trainer = gluon.Trainer(net.collect_params(), optimizer, options)
        for i, momentum in enumerate(momenta):
            trainer.optimizer.momentum = momentum
            train(net, trainer, i, i + 1)
        return net

    later = [0.0] * 4 + [0.9] * 3
    expected = run(None, later)
    assert not same(expected, run(None, [0.0] * 7))
    for devices in ([0, 1], [1, 0]):
        assert same(expected, run(devices, later))
    again = [0.9, 0.9, 0.0, 0.0, 0.0, 0.9, 0.9]
    assert same(run(None, again), run([1, 0], again))


@pytest.mark.parametrize(
    ("optimizer", "saved", "other"),
    [
        ("sgd", {}, {"momentum": 0.9}),
        ("nag", {}, {"momentum": 0.9}),
        ("signum", {"momentum": 0.0}, {"momentum": 0.9}),
        ("dcasgd", {}, {"momentum": 0.9}),
        ("rmsprop", {}, {"centered": True}),
        ("rmsprop", {"centered": True}, {}),
        ("lbsgd", {"batch_scale": 2}, {}),
        ("lbsgd", {}, {"batch_scale": 2}),
    ],
)
def test_states_of_other_options_are_refused(optimizer, saved, other, tmp_path):
    net = network()
    trainer = gluon.Trainer(net.collect_params(), optimizer, saved)
    train(net, trainer, 0, 2)
    trainer.save_states(str(tmp_path / "s"))
    mx.parallel.save(tmp_path / "c", net, trainer)
    trainer.load_states(str(tmp_path / "s"))
    net = network()
    trainer = gluon.Trainer(net.collect_params(), optimizer, other)
    train(net, trainer, 0, 1)
    with pytest.raises(mx.base.MXNetError, match="state of parameter 'n_dense.*options"):
        trainer.load_states(str(tmp_path / "s"))
    with pytest.raises(mx.base.MXNetError, match="state of parameter 'n_dense.*options"):
        mx.parallel.load(tmp_path / "c", net, trainer)
    train(net, trainer, 1, 2)


def test_states_with_a_momentum_load_after_it_was_turned_off(tmp_path):
    net = network()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9})
    train(net, trainer, 0, 2)
    trainer.optimizer.momentum = 0.0
    trainer.save_states(str(tmp_path / "s"))
    trainer.load_states(str(tmp_path / "s"))
    train(net, trainer, 2, 4)


@pytest.mark.parametrize("rate", ["NaN", "-1", "1e400", "1" + "0" * 400])
def test_files_with_invalid_rates_are_refused(rate, tmp_path):
    net = network()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    train(net, trainer, 0, 1)
    trainer.save_states(str(tmp_path / "s"))
    arrays = nd.load(str(tmp_path / "s"))
    text = arrays["trainer_states"].asnumpy().tobytes().decode()
    text = text.replace('"learning_rate": 0.01', f'"learning_rate": {rate}')
    arrays["trainer_states"] = nd.array(list(text.encode()), dtype="uint8")
    nd.save(str(tmp_path / "s"), arrays)
    with pytest.raises(mx.base.MXNetError, match="learning_rate"):
        trainer.load_states(str(tmp_path / "s"))


def test_an_optimizer_of_another_trainer_warns(recwarn):
    net, optimizer = network(), mx.optimizer.SGD()
    gluon.Trainer(net[0].collect_params(), optimizer)
    gluon.Trainer(net[0].collect_params(), optimizer)  # a new trainer of the same parameters
    gluon.Trainer(net[1].collect_params(), copy.deepcopy(optimizer))
    assert not recwarn.list
    with pytest.warns(UserWarning, match="an optimizer for each Trainer") as caught:
        gluon.Trainer(net[1].collect_params(), optimizer)
    assert caught[0].filename == __file__
