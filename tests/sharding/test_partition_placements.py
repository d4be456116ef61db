"""Partitioned networks with arrays on other devices, and in pipelines."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel
from mpgluon.gluon import nn, rnn
from support.devices import on
from support.meshes import build, check, inputs, trained, values

UNITS = {"model": 2}, {"a.weight": "model", "b.weight": (None, "model")}
STORED = {"shard": 2}, {".*weight": "shard"}


class Captured(gluon.HybridBlock):
    """Uses an array of another device between two layers."""

    def __init__(self, device):
        super().__init__(prefix="net_")
        (array,) = inputs((1, 8))
        self.array = array.as_in_context(device)
        with self.name_scope():
            self.a = nn.Dense(8, in_units=6)
            self.b = nn.Dense(4, in_units=8)

    def hybrid_forward(self, F, x):
        h = self.a(x)
        h = F.broadcast_add(h, F.tanh(self.array.as_in_context(h.context)))
        return self.b(F.broadcast_mul(h, self.array.as_in_context(h.context)))


@pytest.mark.parametrize("device", [1, 3])  # within and outside of the mesh
def test_arrays_of_other_devices_meet_divided_layers(device):
    batch = inputs((4, 6))
    wanted = trained(build(lambda: Captured(on(0))), [batch])
    check(trained(build(lambda: Captured(on(device)), *UNITS), [batch]), wanted)


class Looked(gluon.HybridBlock):
    """A row_sparse embedding and a token that is repeated for each row."""

    def __init__(self, sparse=True):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.table = nn.Embedding(9, 8, sparse_grad=sparse)
            self.a = nn.Dense(8, in_units=8)
            self.b = nn.Dense(4, in_units=8)

    def hybrid_forward(self, F, x):
        h = F.LayerNorm(self.table(x), F.ones((8,)), F.zeros((8,)))
        token = F.broadcast_to(F.ones((1, 8)) * 0.5, h.shape)
        return self.b(F.tanh(self.a(F.mean(F.stack(h, token, axis=0), axis=0))))


class Experts(gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.a = nn.Dense(8, in_units=6, flatten=False)
            self.moe = nn.MoE(8, 6, experts=3, k=3, in_units=8, weight_initializer="normal")
            self.b = nn.Dense(4, in_units=8, flatten=False)

    def hybrid_forward(self, F, x):
        return self.b(self.moe(self.a(x)))


def results(net, x):
    """Returns the output, and the gradients of parameters that no plan of these tests divides."""
    with autograd.record():
        y = net(x)
    y.backward()
    params = net.collect_params().items()
    return y.asnumpy(), {
        name: param.grad().asnumpy()
        for name, param in params
        if param.grad_stype == "default" and name.endswith("bias")
    }


@pytest.mark.parametrize("where", [UNITS, STORED], ids=["units", "stored"])
@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("kind", ["lookups", "experts"])
def test_pipelines_check_the_network_before_it_is_divided(kind, rows, where):
    numpy = kind == "experts"
    make = Experts if numpy else lambda: Looked(True)
    if not numpy and where is STORED:
        where = STORED[0], {"[ab].weight": "shard"}
    (x,) = inputs((4, 3, 6), dtype="float32") if numpy else inputs((4,), high=9)
    mx.util.set_np(shape=numpy, array=numpy)
    try:
        x = x.as_np_ndarray() if numpy else x
        flags = {"dtype": "float32", "pipeline": parallel.Pipeline(4 // rows)}
        found = results(build(make, *where, **flags), x)
        wanted = results(build(make, dtype="float32"), x)
    finally:
        mx.util.reset_np()
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(found[0], wanted[0], **close)
    assert found[1].keys() == wanted[1].keys() != set()
    for name, array in wanted[1].items():
        np.testing.assert_allclose(found[1][name], array, **close, err_msg=name)


def test_parameters_in_parts_name_the_partition_when_they_are_moved():
    net = build(lambda: Looked(False), *UNITS)
    with pytest.raises(mx.MXNetError, match=r"Mesh\.partition.*cannot leave"):
        net.collect_params().reset_ctx(on(2))
    assert nd.sum(net.a.shard0_weight.data()).asscalar() != 0


# --- Refused combinations -------------------------------------------------------------------------


class Wrong(gluon.HybridBlock):
    """Calls an operator with arrays of two dtypes."""

    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(8, 6))

    def hybrid_forward(self, F, x, weight):
        return F.broadcast_mul(F.ones((8, 6), dtype="float32"), weight)


def test_errors_of_operators_do_not_blame_the_parts():
    net = build(Wrong, {"model": 2}, {"weight": "model"})
    with pytest.raises(mx.MXNetError) as raised:
        net(*inputs((4, 6)))
    assert "rhs must be float32" in str(raised.value)
    assert "as_in_context" not in str(raised.value)


class Grouped(gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope(), mx.AttrScope(ctx_group="late"):
            self.a = nn.Dense(8, in_units=6)

    def hybrid_forward(self, F, x):
        return self.a(x)


def test_device_groups_are_refused():
    groups, plan = {"late": on(1)}, {"a.weight": "model"}
    mesh, error = mx.parallel.Mesh({"model": 2}, [on(0), on(1)]), "either placed or partitioned"
    net = Grouped()
    net.initialize(ctx=on(0), group2ctx=groups)
    with pytest.raises(mx.MXNetError, match=rf"Mesh\.partition: .*group2ctx.*{error}"):
        mesh.partition(net, plan)
    net = build(Grouped, {"model": 2}, plan)
    for use in (net.hybridize, lambda **options: net.initialize(force_reinit=True, **options)):
        with pytest.raises(mx.MXNetError, match=rf"group2ctx.*Mesh\.partition.*{error}"):
            use(group2ctx=groups)


def test_parameters_of_a_partitioned_network_cannot_be_partitioned_in_another():
    net = build(lambda: Looked(False), dtype="float32")
    other = nn.HybridSequential()
    other.add(nn.Dense(8, in_units=8, params=net.a.params))
    mesh = mx.parallel.Mesh({"model": 2}, [on(0), on(1)])
    mesh.partition(net, UNITS[1])
    with pytest.raises(mx.MXNetError, match=r"'0\.weight' is shared with another network"):
        mesh.partition(other, {"0.weight": "model"})


def test_files_of_other_shapes_raise(tmp_path):
    file = str(tmp_path / "net.params")
    net = build(lambda: Looked(False), *UNITS)
    net.save_parameters(file)
    nd.save(file, {**nd.load(file), "a.weight": nd.zeros((8, 9))})
    with pytest.raises(AssertionError, match=r"'a\.weight' of file .*\(8, 9\).*\(8, \d\)"):
        net.load_parameters(file)


def test_files_of_blocks_of_units_load_into_plain_parts(tmp_path):
    """The parts of both plans have the same shapes."""
    file = str(tmp_path / "net.params")

    def fused():
        return nn.Dense(12, in_units=8, use_bias=False, prefix="net_")

    net, other = (build(fused, {"model": 2}, {"weight": axes}) for axes in ("model:3", "model"))
    net.save_parameters(file)
    other.load_parameters(file)
    check(values(other), values(net))


@pytest.mark.parametrize("deduplicate", [False, True])
def test_files_of_shared_weights(deduplicate, tmp_path):
    file = str(tmp_path / "net.params")

    def make():
        net = nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(nn.Dense(8, in_units=8))
            net.add(nn.Dense(8, in_units=8, params=net[0].params))
        return net

    net, other = (build(make, {"model": 2}, {"0.weight": axes}) for axes in ("model", "model:2"))
    net.save_parameters(file, deduplicate=deduplicate)
    assert len(nd.load(file)) == (2 if deduplicate else 4)
    for loaded in (other, build(make)):
        loaded.load_parameters(file)
        check(values(loaded), values(net))


def test_files_of_recurrent_layers(tmp_path):
    file = str(tmp_path / "net.params")

    def make():
        return rnn.LSTM(8, 2, bidirectional=True, input_size=6, prefix="net_")

    (one, net) = build(make), build(make, {"shard": 2}, {".*(i2h|h2h)_weight": "shard"})
    net.save_parameters(file)
    assert set(nd.load(file)) == {*one._collect_params_with_prefix()}
    one.load_parameters(file)
    check(values(one), values(net))
    net.load_parameters(file)


@pytest.mark.parametrize("where", ["mpgluon.parallel._partition.set_division", "values"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_failed_partitions_leave_the_network_as_it_was(where, error, monkeypatch):
    def failing(*args, **kwargs):
        raise error

    net, (x,) = build(lambda: Looked(False), dtype="float32"), inputs((4,), high=9)
    wanted, names = net(x).asnumpy(), list(net.collect_params())
    mesh = mx.parallel.Mesh({"model": 2}, [on(0), on(1)])
    with monkeypatch.context() as patch:
        if where == "values":
            patch.setattr(parallel.ShardedParameter, "set_data", failing)
        else:
            patch.setattr(where, failing)
        with pytest.raises(error):
            mesh.partition(net, UNITS[1])
    assert list(net.collect_params()) == names
    np.testing.assert_array_equal(net(x).asnumpy(), wanted)
    mesh.partition(net, UNITS[1])
    np.testing.assert_allclose(net(x).asnumpy(), wanted, rtol=1e-4, atol=1e-6)
