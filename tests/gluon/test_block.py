"""Blocks: names, registration, files, hooks, errors, hybridize."""

import contextlib
import copy
import gc
import re
import sys
import weakref

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.calls import raises
from support.devices import on
from support.training import backward_of


class Model(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.hidden = nn.Dense(5, activation="tanh")
            self.body = nn.HybridSequential()
            self.body.add(nn.Dense(4), nn.Dense(3))

    def hybrid_forward(self, F, x):
        return self.body(self.hidden(x))


def make(prefix="model_", **kwargs):
    net = Model(prefix=prefix)
    net.initialize(mx.init.Xavier(), **kwargs)
    return net


def inputs(*shape, ctx=None):
    return mx.nd.array(np.random.RandomState(0).uniform(-1, 1, shape).astype("float32"), ctx=ctx)


def test_children_get_prefixed_parameter_names():
    net = Model(prefix="net_")
    assert net.prefix == "net_" and net.name == "net"
    assert net.hidden.prefix == "net_dense0_"
    assert (
        list(net.collect_params())
        == (
            "net_dense0_weight net_dense0_bias net_dense1_weight net_dense1_bias net_dense2_weight"
            " net_dense2_bias"
        ).split()
    )
    assert sorted(net._collect_params_with_prefix()) == sorted(
        "hidden.weight hidden.bias body.0.weight body.0.bias body.1.weight body.1.bias".split()
    )
    assert list(net.collect_params(".*bias")) == [
        "net_dense0_bias",
        "net_dense1_bias",
        "net_dense2_bias",
    ]


def test_names_count_up_within_a_scope():
    with mx.name.NameManager():
        assert [nn.Dense(1).name, nn.Dense(1).name, nn.Conv2D(1, 1).name] == [
            "dense0",
            "dense1",
            "conv0",
        ]
    with mx.name.Prefix("some_"):
        assert nn.Dense(1).name == "some_dense0"


def test_block_repr_nests_children():
    assert repr(Model()) == (
        "Model(\n"
        "  (hidden): Dense(None -> 5, Activation(tanh))\n"
        "  (body): HybridSequential(\n"
        "    (0): Dense(None -> 4, linear)\n"
        "    (1): Dense(None -> 3, linear)\n"
        "  )\n"
        ")"
    )


def test_attributes_keep_their_type():
    net = Model()
    with pytest.raises(TypeError, match="hidden"):
        net.hidden = 3
    net.hidden = nn.Dense(7)
    assert net._children["hidden"]._units == 7
    net.weight = gluon.Parameter("w", shape=(1,))
    with pytest.raises(TypeError, match="weight"):
        net.weight = nd.ones((1,))
    net.weight = again = gluon.Parameter("w", shape=(1,))
    assert net.collect_params()[again.name] is again


def test_hybrid_block_rejects_plain_children():
    raises(ValueError, "HybridBlock", lambda: nn.HybridSequential().add(nn.Lambda("relu")))


def test_containers_that_hide_blocks_are_reported():
    net = Model()
    net.extra = [nn.Dense(3)]
    with pytest.warns(UserWarning, match="unregistered container"):
        net.collect_params()


def test_params_argument_shares_parameters_between_blocks():
    first = nn.Dense(3, in_units=4, prefix="first_")
    second = nn.Dense(3, in_units=4, params=first.params)
    first.initialize()
    assert second.weight is first.weight
    x = inputs(2, 4)
    np.testing.assert_array_equal(first(x).asnumpy(), second(x).asnumpy())


def test_sequential_supports_indexing_and_slicing():
    net = nn.HybridSequential()
    net.add(nn.Dense(1), nn.Dense(2), nn.Dense(3))
    assert len(net) == 3 and net[1]._units == 2
    assert [block._units for block in net[1:]] == [2, 3]


def test_forward_hooks_run_until_detached():
    net = make()
    seen = []
    before = net.register_forward_pre_hook(lambda block, args: seen.append(("before", len(args))))
    after = net.body.register_forward_hook(
        lambda block, args, out: seen.append(("after", out.shape))
    )
    net(inputs(2, 6))
    assert seen == [("before", 1), ("after", (2, 3))]
    before.detach()
    after.detach()
    net(inputs(2, 6))
    assert len(seen) == 2


def test_apply_visits_every_block_and_cast_changes_dtype():
    net = make()
    names = []
    net.apply(lambda block: names.append(type(block).__name__))
    assert names[-1] == "Model" and names.count("Dense") == 3
    net(inputs(2, 6))
    net.cast("float64")
    assert net(inputs(2, 6).astype("float64")).dtype == np.float64


def test_summary_counts_all_parameters(capsys):
    net = make()
    net.summary(inputs(2, 6))
    text = capsys.readouterr().out
    assert "Dense-" in text and f"Total params: {6 * 5 + 5 + 5 * 4 + 4 + 4 * 3 + 3}" in text


def test_summary_of_hybridized_block_reports_devices_and_memory(capsys):
    """The summary shows devices and sizes of parameters and keeps compiled graphs."""
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=4), nn.HybridLambda(lambda F, x: x.as_in_context(on(1))))
    net.add(nn.BatchNorm(axis=-1), nn.Dense(2))
    net[0].initialize(ctx=on(0))
    for layer in net[2:]:
        layer.initialize(ctx=on(1))
    net.hybridize()
    x = inputs(2, 4)
    y = net(x).asnumpy()
    net.summary(x)
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line[:1] == " "}
    first, second = str(on(0)), str(on(1))
    assert rows["Input"] == ["(2,", "4)", "0", "0", first]
    assert rows["Dense-1"] == ["(2,", "3)", "15", "60", first]
    assert rows["HybridLambda-2"][-3:] == ["0", "0", second]
    assert rows["BatchNorm-3"][-3:] == ["12", "48", second]
    assert "Total params: 35" in text and "Non-trainable params: 6\n" in text
    assert f"Bytes of parameters on {first}: 60\n" in text
    assert f"Bytes of parameters on {second}: 80\n" in text
    assert "called 1 time" in str(net.compiled())
    np.testing.assert_array_equal(net(x).asnumpy(), y)
    assert "called 2 times" in str(net.compiled())


def test_summary_counts_shared_parameters_once(capsys):
    first = nn.Dense(4, in_units=4)
    net = nn.HybridSequential()
    net.add(first, nn.Dense(4, in_units=4, params=first.params), first)
    net.initialize()
    net.hybridize()
    net.summary(inputs(2, 4))
    text = capsys.readouterr().out
    assert "Total params: 60" in text and "graph: 40" in text and "in model: 20" in text
    graph = gluon.SymbolBlock(net(mx.sym.var("data")), mx.sym.var("data"), first.params)
    graph.summary(inputs(2, 4))
    assert "SymbolBlock-1" in capsys.readouterr().out


def test_failed_summary_keeps_compiled_graphs():
    net = make()
    net.hybridize()
    with pytest.raises(mx.MXNetError):
        net.summary(inputs(2, 3, 4).astype("float64"))
    net(inputs(2, 6))
    assert "called 1 time" in str(net.compiled())


# Files


def test_saved_parameters_load_on_any_device(tmp_path):
    net, other = make(), Model(prefix="other_")
    x = inputs(2, 6)
    y = net(x).asnumpy()
    path = str(tmp_path / "net.params")
    net.save_parameters(path)
    assert sorted(mx.nd.load(path)) == sorted(net._collect_params_with_prefix())
    other.load_parameters(path, ctx=on(1))
    assert other.collect_params().list_ctx() == [on(1)]
    np.testing.assert_array_equal(other(x.as_in_context(on(1))).asnumpy(), y)
    third = make(prefix="third_")
    third.load_parameters(path)
    np.testing.assert_array_equal(third(x).asnumpy(), y)


def test_load_parameters_accepts_full_names(tmp_path):
    net = make()
    y = net(inputs(2, 6)).asnumpy()
    path = str(tmp_path / "net.params")
    net.collect_params().save(path, strip_prefix=net.prefix)
    other = Model(prefix="other_")
    other.load_parameters(path)
    np.testing.assert_array_equal(other(inputs(2, 6)).asnumpy(), y)
    net.collect_params().save(path)
    third = Model(prefix="model_")
    third.load_parameters(path)
    np.testing.assert_array_equal(third(inputs(2, 6)).asnumpy(), y)


def test_failed_load_names_mismatch_and_keeps_parameters(tmp_path):
    net = make()
    net(inputs(2, 6))
    before = {name: param.data().asnumpy() for name, param in net.collect_params().items()}
    path = str(tmp_path / "net.params")

    def save(change):
        arrays = {
            name: mx.nd.zeros(param.shape)
            for name, param in net._collect_params_with_prefix().items()
        }
        change(arrays)
        mx.nd.save(path, arrays)

    save(lambda arrays: arrays.pop("body.0.weight"))
    raises(AssertionError, "body.0.weight", lambda: net.load_parameters(path))
    save(lambda arrays: arrays.update({"body.7.weight": mx.nd.zeros((1,))}))
    raises(ValueError, "body.7.weight", lambda: net.load_parameters(path))
    save(lambda arrays: arrays.update({"body.1.bias": mx.nd.zeros((9,))}))
    raises(AssertionError, "body.1.bias|dense2_bias", lambda: net.load_parameters(path))
    save(lambda arrays: arrays.update({"body.1.bias": mx.nd.zeros((3,), dtype="float64")}))
    raises(AssertionError, "cast_dtype", lambda: net.load_parameters(path))
    with pytest.raises(Exception, match="missing.params|No such file"):
        net.load_parameters(str(tmp_path / "missing.params"))
    for name, param in net.collect_params().items():
        np.testing.assert_array_equal(param.data().asnumpy(), before[name])
    net.load_parameters(path, cast_dtype=True)
    save(lambda arrays: (arrays.pop("body.0.weight"), arrays.update({"x.y": mx.nd.zeros((1,))})))
    net.load_parameters(path, allow_missing=True, ignore_extra=True)


def test_deduplicate_saves_shared_parameters_once(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=4))
    net.add(nn.Dense(4, in_units=4, params=net[0].params))
    net.initialize()
    path = str(tmp_path / "net.params")
    net.save_parameters(path, deduplicate=True)
    assert len(mx.nd.load(path)) == 2
    net.load_parameters(path)
    net.save_parameters(path)
    assert len(mx.nd.load(path)) == 4
    net.load_parameters(path)


def test_load_dict_sets_parameters():
    net = make()
    net(inputs(2, 6))
    values = {
        name: mx.nd.ones(param.shape) for name, param in net._collect_params_with_prefix().items()
    }
    net.load_dict(values)
    assert net.hidden.weight.data().asnumpy().min() == 1


# Deferred shapes


class Custom(gluon.HybridBlock):
    """A layer with a deferred weight shape and no shape inference of its own."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self._units = units
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(units, 0), allow_deferred_init=True)
            self.scale = self.params.get("scale", shape=(1, units), init="ones")

    def hybrid_forward(self, F, x, weight, scale):
        return F.broadcast_mul(
            F.FullyConnected(x, weight, None, num_hidden=self._units, no_bias=True), scale
        )


@pytest.mark.parametrize("hybrid", [False, True])
def test_deferred_shapes_of_custom_layers_are_inferred(hybrid):
    net = nn.HybridSequential()
    net.add(nn.Dense(7), Custom(3))
    net.initialize()
    if hybrid:
        net.hybridize()
    raises(gluon.DeferredInitializationError, "weight", lambda: net[1].weight.data())
    y = backward_of(lambda: net(inputs(2, 6)))
    assert y.shape == (2, 3)
    assert net[1].weight.shape == (3, 7) and net[0].weight.shape == (7, 6)
    assert net[1].weight.grad().shape == (3, 7)


def test_infer_shape_sets_deferred_shapes():
    net = nn.HybridSequential()
    net.add(nn.Dense(7), Custom(3))
    net.initialize()
    net.infer_shape(inputs(2, 6))
    assert net[1].weight.shape == (3, 7)


def test_uninferable_shape_error_names_the_parameter():
    class Odd(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.weight = self.params.get("weight", shape=(0,), allow_deferred_init=True)

        def hybrid_forward(self, F, x, weight):
            return weight * 2

    net = Odd()
    net.initialize()
    raises(mx.MXNetError, "weight", lambda: net(inputs(2, 3)))


def test_initial_values_do_not_depend_on_time_or_device():
    """Deferred or not, hybridized or not, on one device or two: the same initial weights."""
    values = []
    for hybrid, ctx, given in [(False, on(0), False), (True, on(1), False), (False, on(0), True)]:
        mx.random.seed(3)
        net = nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(
                nn.Dense(5, in_units=6 if given else 0),
                nn.Dropout(0.5),
                nn.Dense(4, in_units=5 if given else 0),
            )
        net.initialize(mx.init.Normal(1), ctx=ctx)
        if hybrid:
            net.hybridize()
        with autograd.train_mode():
            net(inputs(2, 6, ctx=ctx))
        values.append([param.data().asnumpy() for param in net.collect_params().values()])
    for other in values[1:]:
        for a, b in zip(values[0], other):
            np.testing.assert_array_equal(a, b)
    assert np.abs(values[0][0]).max() > 0


# Hybridize


@pytest.mark.parametrize("exact", [False, True])
def test_hybridized_results_and_gradients_equal_eager(exact):
    net = make()
    x = inputs(4, 6)

    def run():
        with autograd.record():
            y = net(x)
            loss = (y * y).sum()
        loss.backward()
        return y.asnumpy(), {
            name: param.grad().asnumpy() for name, param in net.collect_params().items()
        }

    y, grads = run()
    net.hybridize(exact=exact)
    for _ in range(3):
        compiled_y, compiled = run()
        compare = (
            np.testing.assert_array_equal
            if exact
            else lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        )
        compare(compiled_y, y)
        for name in grads:
            compare(compiled[name], grads[name])


def test_hybridized_block_takes_and_returns_nested_arrays():
    class Nested(gluon.HybridBlock):
        def hybrid_forward(self, F, x, states, nothing=None, factor=1):
            assert nothing is None
            a, (b, c) = states
            return [x * factor, (a + b, None), [c]]

    arrays = [inputs(2, 2) * i for i in range(4)]
    net = Nested()
    results = []
    for hybrid in (False, True):
        net.hybridize(hybrid)
        for factor in (1, 2):
            x, (added, nothing), (last,) = net(
                arrays[0], [arrays[1], (arrays[2], arrays[3])], None, factor
            )
            assert nothing is None
            results.append([array.asnumpy() for array in (x, added, last)])
    for a, b in zip(results[:2], results[2:]):
        for one, two in zip(a, b):
            np.testing.assert_array_equal(one, two)
    raises(ValueError, "object", lambda: net(arrays[0], [arrays[1], (arrays[2], object())]))


def test_traced_arrays_report_shape_dtype_and_context():
    seen = []

    class Looks(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            assert F is mx.nd
            seen.append((x.shape, x.dtype, x.context))
            return F.relu(x)

    net = Looks()
    net.hybridize()
    net(inputs(2, 3, ctx=on(1)))
    assert set(seen) == {((2, 3), np.float32, on(1))}
    count = len(seen)
    net(inputs(2, 3, ctx=on(1)))
    assert len(seen) == count


def test_block_that_overrides_forward_is_hybridized():
    class Plain(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.weight = self.params.get("weight", shape=(3, 3))

        def forward(self, x):
            return mx.nd.dot(x, self.weight.data(x.context))

    net = Plain()
    net.initialize()
    x = inputs(2, 3)
    y = net(x).asnumpy()
    net.hybridize()
    z = backward_of(lambda: net(x))
    np.testing.assert_allclose(z.asnumpy(), y, rtol=1e-6)
    np.testing.assert_allclose(
        net.weight.grad().asnumpy(), x.asnumpy().T @ np.ones((2, 3)), rtol=1e-5
    )


def test_plain_parent_runs_hybridized_children():
    class Parent(gluon.Block):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.a, self.b = nn.Dense(4), nn.Dense(3)

        def forward(self, x):
            y = self.a(x)
            return self.b(y if float(y.sum().asscalar()) > 1e9 else y * 2)

    net = Parent()
    net.initialize()
    x = inputs(2, 5)
    y = net(x).asnumpy()
    net.hybridize()
    np.testing.assert_allclose(net(x).asnumpy(), y, rtol=1e-6)
    assert {entry["block"] for entry in net.compiled()} == {"Parent.a", "Parent.b"}


def test_compiled_block_uses_changed_parameters():
    net = make()
    net.hybridize()
    x = inputs(2, 6)
    net(x)
    net.body[1].weight.set_data(mx.nd.zeros((3, 4)))
    net.body[1].bias.set_data(mx.nd.ones((3,)))
    np.testing.assert_array_equal(net(x).asnumpy(), np.ones((2, 3)))
    net.cast("float64")
    assert net(x.astype("float64")).dtype == np.float64
    net.reset_ctx(on(1))
    assert net(x.astype("float64").as_in_context(on(1))).context == on(1)


def test_unused_parameters_get_no_gradient():
    class Half(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.used, self.unused = nn.Dense(2, in_units=2), nn.Dense(2, in_units=2)

        def hybrid_forward(self, F, x):
            return self.used(x)

    for hybrid in (False, True):
        net = Half()
        net.initialize()
        net.hybridize(hybrid)
        backward_of(lambda: net(inputs(3, 2)))
        assert net.used.weight.data()._fresh_grad and not net.unused.weight.data()._fresh_grad


def test_compiled_lists_block_and_device():
    net = make()
    assert "nothing is compiled" in repr(net.compiled())
    net.hybridize()
    net(inputs(2, 6))
    with autograd.record():
        net(inputs(2, 6))
    compiled = net.compiled()
    assert len(compiled) >= 2 and all(entry["block"] == "Model" for entry in compiled)
    assert str(on(0)) in repr(compiled)


def test_compiled_counts_ops_and_fused_groups():
    net = nn.HybridLambda(lambda F, x: F.dot(F.tanh(x * 2 + 1), x))
    net.hybridize()
    net(inputs(3, 3))
    (entry,) = net.compiled()
    assert entry["ops"] == 4
    table = repr(net.compiled()).splitlines()
    assert "4 operators, called 1 time" in table[0]
    titles, numbers = re.split(r"  +", table[2].strip()), re.split(r"  +", table[3].strip())
    assert dict(zip(titles, numbers))["fused groups"] == "1"
    assert dict(zip(titles, numbers))["forward ops"] == "2"
    assert "recomputed" not in titles and "kept" not in titles  # neither applies here


def test_compiled_signatures_are_evicted_beyond_64():
    net = nn.HybridLambda(lambda F, x, factor: x * factor)
    net.hybridize()
    x = inputs(2, 3)
    for i in range(100):  # scalars are compile-time constants
        net(x, 0.0)  # the most recently used signature
        np.testing.assert_array_equal(net(x, float(i)).asnumpy(), (x * i).asnumpy())
    compiled = net.compiled()
    assert len(compiled) == 64 and compiled.dropped == 36
    assert max(entry["calls"] for entry in compiled) == 101
    assert "36 more compiled programs" in repr(compiled)
    net.hybridize()
    for rows in range(1, 101):
        net(inputs(rows, 3), 2.0)
    assert len(net.compiled()) == 64 and net.compiled().dropped == 36
    assert sorted(entry["inputs"][0][0][0] for entry in net.compiled()) == list(range(37, 101))


def test_hybridize_rejects_unknown_options():
    net = make()
    net.hybridize(static_alloc=True, static_shape=True, inline_limit=2)
    net(inputs(2, 6))
    raises(mx.MXNetError, "statik_alloc", lambda: net.hybridize(statik_alloc=True))


def test_deepcopied_block_is_independent():
    net = make()
    net.hybridize()
    x = inputs(2, 6)
    y = net(x).asnumpy()
    other = copy.deepcopy(net)
    other.body[1].bias.set_data(mx.nd.ones((3,)))
    np.testing.assert_array_equal(net(x).asnumpy(), y)
    z = backward_of(lambda: other(x))
    np.testing.assert_allclose(z.asnumpy(), y + 1, rtol=1e-5)
    assert other.body[1].bias.grad().asnumpy().tolist() == [2, 2, 2]
    assert net.body[1].bias.grad().asnumpy().tolist() == [0, 0, 0]


# Errors


def test_shape_errors_name_the_block():
    net = make()
    net(inputs(2, 6))
    raises(mx.MXNetError, r"Model\.hidden", lambda: net(inputs(2, 9)))
    net.hybridize()
    raises(mx.MXNetError, r"Model\.hidden", lambda: net(inputs(2, 9)))
    assert net(inputs(2, 6)).shape == (2, 3)


@pytest.mark.parametrize("hybrid", [False, True])
def test_input_on_wrong_device_error_names_block_and_devices(hybrid):
    net = make(ctx=on(0))
    net(inputs(2, 6))
    net.hybridize(hybrid)
    with pytest.raises(mx.MXNetError) as caught:
        net(inputs(2, 6, ctx=on(1)))
    text = str(caught.value)
    for part in ("Model.hidden", "model_dense0_weight", str(on(0)), str(on(1)), "as_in_context"):
        assert part in text, text


def test_call_before_initialize_raises():
    net = Model()
    raises(mx.MXNetError, "has not been initialized", lambda: net(inputs(2, 6)))


def test_arrays_created_in_a_block_are_on_its_inputs_device():
    x = mx.nd.zeros((2, 3), ctx=on(1))
    block = nn.HybridLambda(lambda F, x: x + F.arange(3) + F.ones((3,)))
    eager = block(x)
    block.hybridize()
    assert eager.context == block(x).context == on(1)
    assert (eager.asnumpy() == block(x).asnumpy()).all()
    assert mx.context.current_context() == on(0)


@contextlib.contextmanager
def without_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


FLAGS = {"eager": None, "hybridized": {}, "pipelined": {"pipeline": mx.parallel.Pipeline(2)}}


@pytest.mark.parametrize("mode", FLAGS)
@pytest.mark.parametrize("trained", [False, True])
def test_networks_are_freed_without_the_garbage_collector(mode, trained):
    """Networks form no reference cycles: large arrays do not trigger the garbage collector."""

    def values():
        net = nn.HybridSequential()
        with net.name_scope():
            net.add(nn.Dense(4, flatten=False), nn.BatchNorm(), nn.Dense(2))
            if mode != "pipelined":  # LSTM's batch is its second axis
                net.add(nn.HybridLambda(lambda F, x: F.expand_dims(x, 0)), gluon.rnn.LSTM(3))
        net.initialize()
        if FLAGS[mode] is not None:
            net.hybridize(**FLAGS[mode])
        if trained:
            trainer = gluon.Trainer(net.collect_params(), "adam")
        x = nd.ones((2, 2, 3))
        for _ in range(2):
            backward_of(lambda: net(x).sum())
            if trained:
                trainer.step(1)
        params = net.collect_params().values()
        return [weakref.ref(param) for param in params]

    with without_garbage_collector():
        assert all(param() is None for param in values())


@pytest.mark.parametrize("mode", FLAGS)
def test_networks_are_freed_at_once_after_a_call_that_raised(mode):
    def network():
        net = nn.HybridSequential()
        net.add(nn.HybridSequential())
        net[0].add(nn.Dense(4, in_units=3))
        net.initialize()
        if FLAGS[mode] is not None:
            net.hybridize(**FLAGS[mode])
        net(nd.ones((4, 3)))
        raises(mx.MXNetError, "HybridSequential", lambda: net(nd.ones((4, 5))))
        return weakref.ref(net)

    with without_garbage_collector():
        assert network()() is None


def test_train_step_is_freed_without_the_garbage_collector():
    def network():
        net = nn.Dense(3, in_units=3)
        net.initialize()
        trainer = gluon.Trainer(net.collect_params(), "sgd")
        step = mx.parallel.TrainStep(net, gluon.loss.L2Loss(), trainer, mx.parallel.Pipeline(2))
        for _ in range(2):
            step(nd.ones((4, 3)), nd.ones((4, 3)))
        return weakref.ref(net)

    with without_garbage_collector():
        assert network()() is None


def lines_run(function, name):
    """Counts the lines of the package's file `name` that a call of `function` runs."""
    count = 0

    def line(frame, event, _):
        nonlocal count
        count += event == "line"
        return line

    former = sys.gettrace()
    sys.settrace(lambda frame, *_: line if frame.f_code.co_filename.endswith(name) else None)
    try:
        function()
    finally:
        sys.settrace(former)
    return count


def nested(depth):
    net = inner = nn.HybridSequential()
    for _ in range(depth):
        inner.add(nn.HybridSequential())
        inner = inner[0]
    inner.add(nn.Dense(2, in_units=2))
    net.initialize()
    return net


def test_first_call_time_is_linear_in_nesting_depth():
    def work(depth):
        return lines_run(lambda: nested(depth)(nd.ones((1, 2))), "_block_path.py")

    work(2)
    assert work(60) < 2.5 * work(30)


def test_nested_block_repr_indents_each_level_once():
    lines = repr(nested(3)).splitlines()
    assert lines[3] == "      (0): HybridSequential("
    assert lines[4].startswith("        (0): Dense(")
    assert [line.strip() for line in lines[5:]] == [")"] * 4
    assert repr(nn.HybridSequential()) == "HybridSequential(\n\n)"
