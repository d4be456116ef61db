"""Modules, buckets and checkpoints."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from support.calls import raises
from support.compare import same_bits
from support.devices import on


def classifier():
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16, name="fc1")
    net = mx.sym.Activation(net, act_type="relu", name="act")
    return mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(net, num_hidden=2, name="fc2"), name="softmax"
    )


def task(samples=256):
    rng = np.random.RandomState(0)
    data = rng.uniform(-1, 1, (samples, 6)).astype("float32")
    return data, (data.sum(axis=1) > 0).astype("float32")


@pytest.mark.parametrize("context", [on(0), [on(0), on(1)]])
def test_fitted_module_scores_and_predicts(context):
    data, label = task()
    train = mx.io.NDArrayIter(data, label, batch_size=32)
    test = mx.io.NDArrayIter(data[:50], label[:50], batch_size=32)
    seen = []
    module = mx.mod.Module(classifier(), context=context)
    mx.random.seed(1)
    module.fit(
        train,
        test,
        num_epoch=8,
        initializer=mx.init.Xavier(),
        optimizer_params={"learning_rate": 0.5, "momentum": 0.9},
        batch_end_callback=lambda param: seen.append(param.nbatch),
        epoch_end_callback=lambda epoch, symbol, arguments, states: seen.append(sorted(arguments)),
    )
    assert dict(module.score(test, "acc"))["accuracy"] > 0.9
    assert seen.count(7) == 8 and ["fc1_bias", "fc1_weight", "fc2_bias", "fc2_weight"] in seen
    assert module.predict(test).shape == (50, 2)  # without padding
    np.testing.assert_allclose(
        module.predict(mx.nd.array(data[:32])).asnumpy(),
        module.predict(test).asnumpy()[:32],
        rtol=1e-6,
    )
    assert module.output_shapes == [("softmax_output", (32, 2))]


def test_several_contexts_equal_one():
    data, label = task(16)
    results = []
    for context in (on(0), [on(0), on(1)]):
        module = mx.mod.Module(classifier(), context=context)
        module.bind([("data", (16, 6))], [("softmax_label", (16,))], inputs_need_grad=True)
        mx.random.seed(3)
        module.init_params(mx.init.Uniform(0.5))
        module.init_optimizer(optimizer_params={"learning_rate": 0.3})
        for _ in range(3):
            module.forward_backward(mx.io.DataBatch([mx.nd.array(data)], [mx.nd.array(label)]))
            module.update()
        results.append(
            [module.get_outputs()[0], module.get_input_grads()[0], *module.get_params()[0].values()]
        )
    for one, two in zip(*results):
        np.testing.assert_allclose(two.asnumpy(), one.asnumpy(), rtol=1e-5, atol=1e-6)


def test_group2ctxs_places_parameters_and_keeps_the_bits():
    with mx.AttrScope(ctx_group="a"):
        hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc1")
    with mx.AttrScope(ctx_group="b"):
        net = mx.sym.SoftmaxOutput(
            mx.sym.FullyConnected(hidden, num_hidden=2, name="fc2"), name="softmax"
        )
    data, label = task(8)
    parameters = []
    for groups in (None, {"a": on(1), "b": on(2)}):
        module = mx.mod.Module(net, context=on(0), group2ctxs=groups)
        module.bind([("data", (8, 6))], [("softmax_label", (8,))])
        mx.random.seed(2)
        module.init_params(mx.init.Uniform(1))
        module.init_optimizer(optimizer="adam")
        for _ in range(2):
            module.forward_backward(mx.io.DataBatch([mx.nd.array(data)], [mx.nd.array(label)]))
            module.update()
        if groups:
            assert module._execs[0].arg_dict["fc1_weight"].context == on(1)
            assert module._execs[0].arg_dict["fc2_weight"].context == on(2)
        parameters.append(module.get_params()[0])
    for name, array in parameters[0].items():
        np.testing.assert_array_equal(parameters[1][name].asnumpy(), array.asnumpy())


def test_module_checkpoint_restores_optimizer_states(tmp_path):
    data, label = task(32)
    batches = mx.io.NDArrayIter(data, label, batch_size=16)
    module = mx.mod.Module(classifier())
    prefix = str(tmp_path / "net")
    module.fit(
        batches, num_epoch=2, optimizer="adam", epoch_end_callback=mx.callback.do_checkpoint(prefix)
    )
    module.save_checkpoint(prefix, 7, save_optimizer_states=True)
    loaded = mx.mod.Module.load(prefix, 7, load_optimizer_states=True)
    batches.reset()
    loaded.bind(batches.provide_data, batches.provide_label)
    loaded.init_optimizer(optimizer="adam")
    np.testing.assert_array_equal(
        loaded.predict(batches).asnumpy(), module.predict(batches).asnumpy()
    )
    for name, state in module._updater.states.items():
        same_bits(state, loaded._updater.states[name])
    symbol, arguments, states = mx.model.load_checkpoint(prefix, 2)
    assert symbol.tojson() == classifier().tojson()
    assert set(arguments) == set(loaded.get_params()[0])
    assert states == {}


def test_training_logs_cover_all_batches_of_an_epoch(caplog, tmp_path):
    """Holds even if callbacks reset the metric during the epoch."""
    data, label = task(64)
    caplog.set_level("INFO")
    module = mx.mod.Module(classifier())
    figures = []
    module.fit(
        mx.io.NDArrayIter(data, label, batch_size=16),
        num_epoch=2,
        eval_metric=["acc", "ce"],
        batch_end_callback=[
            mx.callback.Speedometer(16, 2),
            lambda param: figures.append(param.eval_metric.get_global()[1]),
        ],
        epoch_end_callback=mx.callback.module_checkpoint(module, str(tmp_path / "net"), 2, True),
    )
    lines = [record.getMessage() for record in caplog.records]
    for epoch in range(2):
        accuracy, entropy = figures[4 * epoch + 3]
        assert f"Epoch[{epoch}] Train-accuracy={accuracy:f}" in lines
        assert f"Epoch[{epoch}] Train-cross-entropy={entropy:f}" in lines
    assert [line for line in lines if line.startswith("Saved")] == [
        f'Saved checkpoint to "{tmp_path}/net-0002.params"',
        f'Saved optimizer state to "{tmp_path}/net-0002.states"',
    ]


def _values(module):
    """Returns the distinct values of each parameter; checks that all executors hold the same."""
    told = {name: array.asnumpy() for part in module.get_params() for name, array in part.items()}
    held = [{**executor.arg_dict, **executor.aux_dict} for executor in module._execs]
    assert all(
        (executor[name].asnumpy() == value).all()
        for executor in held
        for name, value in told.items()
    )
    return {name: set(value.ravel()) for name, value in told.items()}


_GIVEN = {
    "as needed": lambda given: None,
    "missing": lambda given: given.pop("arg:fc2_weight"),
    "missing state": lambda given: given.pop("aux:norm_moving_var"),
    "extra": lambda given: given.update({"arg:other": mx.nd.ones(2)}),
    "extra state": lambda given: given.update({"aux:other": mx.nd.ones(2)}),
    "shape": lambda given: given.update({"arg:fc2_bias": mx.nd.ones(5)}),
    "shape of one size": lambda given: given.update({"arg:fc2_weight": mx.nd.full((3, 2), 2)}),
    "shape of a state": lambda given: given.update({"aux:norm_moving_var": mx.nd.ones(5)}),
    "dtype": lambda given: given.update(
        {
            "arg:fc2_bias": mx.nd.full(2, 2, dtype="float64"),
            "aux:norm_moving_var": mx.nd.full(3, 2, dtype="int32"),
        }
    ),
}


@pytest.mark.parametrize("kind", _GIVEN)
def test_mismatched_parameters_are_handled_as_in_mxnet(kind, tmp_path):
    """Covers files and dicts. If MXNet 1.9.1 raises, this module also stays unchanged."""
    hidden = mx.sym.BatchNorm(
        mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc1"), name="norm"
    )
    symbol = mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(hidden, num_hidden=2, name="fc2"), name="softmax"
    )

    def made():
        module = mx.mod.Module(symbol, context=[on(0), on(1)])
        module.bind([("data", (4, 6))], [("softmax_label", (4,))])
        module.init_params(mx.init.One())
        return module

    arguments, states = made().get_params()
    given = {
        f"{prefix}:{name}": mx.nd.full(array.shape, 2)
        for prefix, part in (("arg", arguments), ("aux", states))
        for name, array in part.items()
    }
    _GIVEN[kind](given)
    path = str(tmp_path / "given.params")
    mx.nd.save(path, given)
    parts = [
        {name[4:]: array for name, array in given.items() if name.startswith(prefix)}
        for prefix in ("arg:", "aux:")
    ]
    new = {name[4:]: {2.0} for name in given if not name.endswith("other")}

    def check(do, error, missing=False):
        module = made()
        before = _values(module)
        if error is None:
            do(module)
            assert _values(module) == ({**before, **new} if missing else new)
            return
        with pytest.raises(error):
            do(module)
        assert _values(module) == before

    errors = {"shape": mx.MXNetError, "missing": RuntimeError}
    wrong = errors.get(kind.split()[0])
    check(lambda module: module.load_params(path), wrong)
    check(lambda module: module.set_params(*parts), wrong)
    check(lambda module: module.init_params(mx.init.One(), *parts, force_init=True), wrong)
    for extra in (False, True):
        errors = (
            {"shape": mx.MXNetError} if extra else {"shape": mx.MXNetError, "extra": ValueError}
        )
        wrong = errors.get(kind.split()[0])
        check(
            lambda module: module.set_params(*parts, allow_missing=True, allow_extra=extra),
            wrong,
            True,
        )
        check(
            lambda module: (
                [one.copy_params_from(*parts, allow_extra_params=extra) for one in module._execs]
                and setattr(module, "_params_dirty", True)
            ),
            wrong,
            True,
        )


def test_other_parameter_files_raise_and_change_nothing(tmp_path):
    module = mx.mod.Module(classifier())
    module.bind([("data", (4, 6))], [("softmax_label", (4,))])
    module.init_params(mx.init.One())
    before = _values(module)
    path, one = str(tmp_path / "other-0001.params"), mx.nd.ones(2)
    for arrays, strict in (
        ([one], False),
        ({"fc1_bias": one}, False),
        ({"foo:fc1_bias": one}, True),
    ):
        mx.nd.save(path, arrays)
        raises(ValueError, "Invalid param file", lambda: module.load_params(path))
        if strict:
            assert mx.model.load_params(str(tmp_path / "other"), 1) == ({}, {})
            continue
        with pytest.raises(ValueError, match="Invalid param file"):
            mx.model.load_params(str(tmp_path / "other"), 1)
    assert _values(module) == before


def test_set_params_and_init_params_validate_names_and_shapes():
    module = mx.mod.Module(classifier(), fixed_param_names=["fc1_weight"])
    with pytest.raises(AssertionError):
        module.init_params()
    module.bind([("data", (4, 6))], [("softmax_label", (4,))])
    module.init_params()
    arguments, states = module.get_params()
    assert module._execs[0].grad_dict["fc1_weight"] is None
    some = {name: array for name, array in arguments.items() if name != "fc1_bias"}
    raises(RuntimeError, "fc1_bias", lambda: module.set_params(some, states))
    module.set_params(some, states, allow_missing=True)
    module.set_params({**arguments, "extra": mx.nd.ones(1)}, states)  # ignored, as in MXNet
    with pytest.raises(ValueError, match="extra"):
        module.set_params({**arguments, "extra": mx.nd.ones(1)}, states, allow_missing=True)
    with pytest.raises(mx.MXNetError, match="shape"):
        module.set_params({**arguments, "fc1_bias": mx.nd.ones(1)}, states)
    with pytest.raises(ValueError):
        mx.mod.Module(classifier(), data_names=["dta"])
    raises(mx.MXNetError, "needs servers", lambda: module.init_optimizer(kvstore="dist_async"))


def test_module_accepts_batches_of_other_sizes():
    module = mx.mod.Module(classifier())
    module.bind([("data", (4, 6))], [("softmax_label", (4,))])
    module.init_params()
    weight = module._execs[0].arg_dict["fc1_weight"]
    for size in (2, 9, 4):
        module.forward(mx.io.DataBatch([mx.nd.ones((size, 6))], [mx.nd.zeros(size)]), is_train=True)
        module.backward()
        assert module.get_outputs()[0].shape == (size, 2)
        assert module._execs[0].arg_dict["fc1_weight"] is weight
    module.reshape([("data", (5, 6))], [("softmax_label", (5,))])
    assert module._exec_group.batch_size == 5  # Keras reads this attribute
    module.forward(mx.io.DataBatch([mx.nd.ones((3, 6))]), is_train=False)
    assert module.get_outputs()[0].shape == (3, 2)


def unrolled(length):
    """Returns a recurrent net over `length` steps on two devices."""
    data, label = mx.sym.var("data"), mx.sym.var("softmax_label")
    with mx.AttrScope(ctx_group="lower"):
        embedded = mx.sym.Embedding(data, input_dim=10, output_dim=4, name="embed")
        steps = mx.sym.split(embedded, num_outputs=length, axis=1, squeeze_axis=True)
        weight, bias = mx.sym.var("h_weight"), mx.sym.var("h_bias")
        state = mx.sym.zeros_like(steps[0])
        for i in range(length):
            state = mx.sym.tanh(mx.sym.FullyConnected(state + steps[i], weight, bias, num_hidden=4))
    with mx.AttrScope(ctx_group="upper"):
        out = mx.sym.FullyConnected(state, num_hidden=2, name="out")
        return mx.sym.SoftmaxOutput(out, label, name="softmax"), ["data"], ["softmax_label"]


def test_bucketing_module_trains_over_two_devices():
    rng = np.random.RandomState(0)
    module = mx.mod.BucketingModule(
        unrolled, default_bucket_key=6, context=on(0), group2ctxs={"lower": on(1), "upper": on(2)}
    )
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    mx.random.seed(1)
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.05})
    metric = mx.metric.create("acc")
    for step in range(90):
        length = (6, 3, 4)[step % 3]
        words = rng.randint(0, 10, (8, length))
        batch = mx.io.DataBatch(
            [mx.nd.array(words)],
            [mx.nd.array(words[:, -1] > 4)],
            bucket_key=length,
            provide_data=[("data", (8, length))],
            provide_label=[("softmax_label", (8,))],
        )
        if step == 60:
            metric.reset()
        module.forward_backward(batch)
        module.update()
        module.update_metric(metric, batch.label)
    assert metric.get()[1] > 0.85
    executors = [module._buckets[length]._execs[0] for length in (3, 4, 6)]
    assert len({id(one.arg_dict["h_weight"]) for one in executors}) == 1  # shared
    assert executors[0].arg_dict["embed_weight"].context == on(1)
    assert executors[0].arg_dict["out_weight"].context == on(2)
    np.testing.assert_array_equal(
        module.get_params()[0]["h_weight"].asnumpy(), executors[1].arg_dict["h_weight"].asnumpy()
    )


def test_monitor_receives_arrays_every_second_batch():
    module = mx.mod.Module(classifier())
    module.bind([("data", (4, 6))], [("softmax_label", (4,))])
    module.init_params(mx.init.One())
    monitor = mx.mon.Monitor(2, pattern="fc1.*", sort=True)
    module.install_monitor(monitor)
    seen = []
    for _ in range(3):
        monitor.tic()
        module.forward(mx.io.DataBatch([mx.nd.ones((4, 6))], [mx.nd.zeros(4)]), is_train=True)
        module.backward()
        seen.append(monitor.toc())
    assert [len(results) for results in seen] == [6, 0, 6]
    assert [name for _, name, _ in seen[0]] == (
        "fc1_backward_output0 fc1_backward_output1 fc1_backward_output2 fc1_bias fc1_output"
        " fc1_weight"
    ).split()
    assert seen[0][3:] == [
        (1, "fc1_bias", "0.0\t"),
        (1, "fc1_output", "6.0\t"),
        (1, "fc1_weight", "1.0\t"),
    ]


def test_monitored_gradients_equal_compiled_ones():
    with mx.AttrScope(ctx_group="a"):
        data = mx.sym.Variable("data")
        hidden = mx.sym.BatchNorm(
            mx.sym.FullyConnected(data, num_hidden=4, name="fc1"), fix_gamma=False, name="bn"
        )
    with mx.AttrScope(ctx_group="b"):
        parts = mx.sym.SliceChannel(hidden, num_outputs=2, name="parts")
        net = mx.sym.Group(
            [parts[0] * parts[1] + parts[0], mx.sym.make_loss(mx.sym.sum(hidden), name="loss")]
        )
    rng, results = np.random.RandomState(0), []
    values = {
        name: rng.normal(size=shape)
        for name, shape in zip(net.list_arguments(), net.infer_shape(data=(3, 5))[0])
    }
    for watched in (False, True):
        executor = net.simple_bind(
            on(0),
            data=(3, 5),
            group2ctx={"a": on(0), "b": on(1)},
            grad_req={"data": "add", **dict.fromkeys(net.list_arguments()[1:], "write")},
        )
        seen = []
        if watched:
            executor.set_monitor_callback(
                lambda name, array: seen.append((name, array.context)), True
            )
        for name, value in values.items():
            executor.arg_dict[name][:] = value
        executor.grad_dict["data"][:] = 2
        for _ in range(2):
            executor.forward(is_train=True)
            executor.backward([mx.nd.full((3, 2), 3, ctx=on(1)), mx.nd.ones(1)])
        results.append([*executor.outputs, *executor.grad_arrays, *executor.aux_arrays])
    assert ("parts_backward_output", on(1)) in seen and ("bn_backward_output1", on(0)) in seen
    for one, other in zip(*results):
        np.testing.assert_allclose(other.asnumpy(), one.asnumpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("contexts", [1, 2])
def test_gradients_of_data_follow_grad_req(contexts):
    def bound(grad_req):
        net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, no_bias=True, name="fc")
        module = mx.mod.Module(net, label_names=None, context=[on(i) for i in range(contexts)])
        module.bind([("data", (4, 2))], inputs_need_grad=True, grad_req=grad_req)
        module.init_params(mx.init.One())
        for _ in range(2):
            module.forward(mx.io.DataBatch([mx.nd.ones((4, 2))]), is_train=True)
            module.backward([mx.nd.ones((4, 3))])
        (grad,) = module.get_input_grads()
        return grad if grad is None else grad.asnumpy().tolist()

    once, twice = [[3.0, 3.0]] * 4, [[6.0, 6.0]] * 4
    for kept in (once, "write"), (twice, "add"), (None, "null"):
        values, grad_req = kept
        assert bound(grad_req) == bound({"data": grad_req}) == bound([grad_req, "write"]) == values
    assert bound({"fc_weight": "null"}) == once


def test_sequential_module_adds_gradients_of_parameters():
    def module(name):
        net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, no_bias=True, name=name)
        return mx.mod.Module(net, label_names=None)

    chain = mx.mod.SequentialModule().add(module("one")).add(module("two"), auto_wiring=True)
    chain.bind([("data", (1, 2))], inputs_need_grad=True, grad_req="add")
    chain.init_params(mx.init.One())
    for _ in range(3):
        chain.forward(mx.io.DataBatch([mx.nd.ones((1, 2))]), is_train=True)
        chain.backward([mx.nd.ones((1, 2))])
    assert chain.get_input_grads()[0].asnumpy().tolist() == [[12.0, 12.0]]  # 3 passes of 4


def test_sequential_module_trains_and_predicts():
    data, label = task()
    train = mx.io.NDArrayIter(data, label, batch_size=32)
    first = mx.sym.Activation(
        mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16, name="fc1"),
        act_type="relu",
        name="act",
    )
    second = mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(mx.sym.var("hidden"), num_hidden=2, name="fc2"), name="softmax"
    )
    chain = mx.mod.SequentialModule()
    chain.add(mx.mod.Module(first, label_names=None)).add(
        mx.mod.Module(second, data_names=["hidden"], context=on(1)),
        take_labels=True,
        auto_wiring=True,
    )
    mx.random.seed(1)
    chain.fit(
        train,
        num_epoch=8,
        initializer=mx.init.Xavier(),
        optimizer_params={"learning_rate": 0.5, "momentum": 0.9},
    )
    assert dict(chain.score(train, "acc"))["accuracy"] > 0.9
    assert chain.data_names == ["data"]
    assert chain.output_names == ["softmax_output"]
    assert chain.output_shapes == [("softmax_output", (32, 2))]
    assert sorted(chain.get_params()[0]) == ["fc1_bias", "fc1_weight", "fc2_bias", "fc2_weight"]
    raises(AssertionError, "inputs_need_grad", chain.get_input_grads)
    with pytest.raises(AssertionError, match="take_label"):
        chain.add(mx.mod.Module(second, data_names=["hidden"]), take_label=True)
    twice = (
        mx.mod.SequentialModule()
        .add(mx.mod.Module(first, label_names=None))
        .add(mx.mod.Module(first, label_names=None), auto_wiring=True)
    )
    twice.bind([("data", (4, 16))])
    with pytest.raises(AssertionError, match="'fc1_weight' is in module 1 and in module 0"):
        twice.init_params()
    raises(AssertionError, "empty", lambda: mx.mod.SequentialModule().bind([("data", (4, 16))]))


def test_python_loss_module_trains_like_softmax_output():
    def gradient(scores, labels):
        picked = mx.nd.softmax(scores).asnumpy()
        picked[np.arange(len(picked)), labels.asnumpy().astype(int)] -= 1
        return picked

    data, label = task()
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    ways = []
    for with_loss in (True, False):
        if with_loss:
            module = mx.mod.SequentialModule().add(mx.mod.Module(net, label_names=None))
            module.add(
                mx.mod.PythonLossModule(grad_func=gradient), take_labels=True, auto_wiring=True
            )
        else:
            module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
        mx.random.seed(2)
        module.fit(
            mx.io.NDArrayIter(data, label, batch_size=32),
            num_epoch=2,
            initializer=mx.init.Xavier(),
            optimizer_params={"learning_rate": 0.5},
        )
        ways.append(module.get_params()[0])
    for name, array in ways[0].items():
        np.testing.assert_allclose(array.asnumpy(), ways[1][name].asnumpy(), rtol=1e-4, atol=1e-6)
    loss = mx.mod.PythonLossModule()
    with pytest.raises(AssertionError, match="data_shapes are for"):
        loss.bind([("x", (2, 2))], [("softmax_label", (2,))])
    loss.bind([("data", (2, 2))], [("softmax_label", (2,))])
    loss.forward(mx.io.DataBatch([mx.nd.ones((2, 2))], [mx.nd.ones(2)]), is_train=True)
    raises(NotImplementedError, "grad_func", loss.backward)
    with pytest.raises(NotImplementedError, match="_compute_output_shapes"):
        mx.mod.PythonModule(["data"], None, ["out"]).bind([("data", (2, 2))])


def test_missing_module_methods_are_named():
    class Half(mx.mod.BaseModule):
        pass

    module = Half()
    assert module.get_states() == []
    for use in (lambda: module.forward(None), lambda: module.output_names, module.get_params):
        raises(NotImplementedError, "Half does not define", use)
    raises(NotImplementedError, "Half does not define update", module.update)
    raises(ValueError, "no states", lambda: module.set_states(value=1))


def instructions(executor, phase):
    return [
        step["op"]
        for entry in executor._call.compiled()
        for step in entry["devices"][str(on(0))][phase]
        if step["kind"] == "run"
    ]


def test_prediction_prepares_parameters_once_per_change():
    """Parameters are folded and packed outside of the calls and re-prepared after every kind of
    write to a parameter or state."""
    data = mx.sym.var("data")
    net = mx.sym.Convolution(data, kernel=(3, 3), num_filter=8, no_bias=True, name="conv")
    net = mx.sym.BatchNorm(net, fix_gamma=False, name="norm")
    net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="relu"), num_hidden=4, name="fc")
    net = mx.sym.SoftmaxOutput(net, name="softmax")
    module = mx.mod.Module(net, context=on(0))
    module.bind([("data", (2, 3, 6, 6))], [("softmax_label", (2,))])
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer_params={"learning_rate": 0.5})
    x, label = nd.random.uniform(shape=(2, 3, 6, 6)), nd.array([1, 3])

    def predict(values=x):
        module.forward(mx.io.DataBatch([values], [label]), is_train=False)
        return module.get_outputs()[0].asnumpy()

    def expected(values=x):
        (executor,) = module._execs
        given = {"data": values, "softmax_label": label}
        return (
            net.bind(on(0), {**executor.arg_dict, **given}, aux_states=executor.aux_dict)
            .forward()[0]
            .asnumpy()
        )

    np.testing.assert_allclose(predict(), expected(), rtol=1e-5)
    (executor,) = module._execs
    assert instructions(executor, "invariants")
    assert "BatchNorm" not in "".join(instructions(executor, "forward"))
    prepared = executor._call.compiled()[0]["devices"][str(on(0))]["planned"]["kept"]
    assert prepared >= 8 * 3 * 3 * 3 * 4
    np.testing.assert_allclose(predict(x * 2), expected(x * 2), rtol=1e-5)
    before = predict()
    for _ in range(3):  # the optimizer writes parameters and the layer writes states
        module.forward(mx.io.DataBatch([x], [label]), is_train=True)
        module.backward()
        module.update()
        np.testing.assert_allclose(predict(), expected(), rtol=1e-4, atol=1e-6)
    assert abs(predict() - before).max() > 1e-3
    executor.arg_dict["conv_weight"][:] = 0.25
    np.testing.assert_allclose(predict(), expected(), rtol=1e-4, atol=1e-6)
    executor.aux_dict["norm_moving_var"][:] = 9
    np.testing.assert_allclose(predict(), expected(), rtol=1e-4, atol=1e-6)
    arguments, states = module.get_params()
    module.set_params({name: array * 0.5 for name, array in arguments.items()}, states)
    np.testing.assert_allclose(predict(), expected(), rtol=1e-4, atol=1e-6)
    former = executor
    module.reshape([("data", (1, 3, 6, 6))], [("softmax_label", (1,))])
    label = label[:1]
    np.testing.assert_allclose(predict(x[:1]), expected(x[:1]), rtol=1e-4, atol=1e-6)
    former.arg_dict["conv_weight"][:] = 0.1  # shared between the executors, which alternate
    outputs = former.forward(is_train=False, data=x)[0].asnumpy()
    np.testing.assert_allclose(predict(x[:1]), expected(x[:1]), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(predict(x[:1]), outputs[:1], rtol=1e-4, atol=1e-6)


def test_debug_str_reports_planned_bytes_before_forward():
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc")
    executor = net.simple_bind(on(0), shared_arg_names=["fc_weight", "fc_bias"], data=(2, 3))
    assert "bytes planned" in executor.debug_str()
    executor.arg_dict["fc_bias"][:] = 2
    np.testing.assert_array_equal(executor.forward()[0].asnumpy(), np.full((2, 4), 2))
