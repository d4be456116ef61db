"""Key-value stores."""

import numpy as np
import pytest

import mpgluon as mx
from support.calls import raises

SHAPE = (2, 3)


def full(value, device=0):
    return mx.nd.full(SHAPE, value, ctx=mx.cpu(device))


@pytest.mark.parametrize("kind", ["local", "device", "local_allreduce_cpu"])
def test_push_sums_over_devices(kind):
    store = mx.kv.create(kind)
    assert store.type == kind and store.rank == 0 and store.num_workers == 1
    store.init(["a", "b"], [full(1), full(2, 1)])
    out = [full(0, device) for device in range(3)]
    store.pull("b", out)
    assert [array.asnumpy().max() for array in out] == [2, 2, 2]
    store.push("a", [full(device + 1, device) for device in range(3)])
    store.pull(["a", "b"], [out, full(0)])
    assert [array.asnumpy().min() for array in out] == [6, 6, 6]
    assert [array.context for array in out] == [mx.cpu(i) for i in range(3)]
    pair = [full(1), full(3, 1)]
    store.pushpull("a", pair)
    assert [array.asnumpy().max() for array in pair] == [4, 4]
    store.broadcast("c", full(9), out)
    assert out[2].asnumpy().max() == 9


def test_store_updates_with_optimizer_and_saves_its_states(tmp_path):
    store = mx.kv.create()
    store.init(3, full(1))
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, momentum=0.9))
    store.push(3, [full(1), full(1, 1)])
    out = full(0)
    store.pull(3, out)
    np.testing.assert_allclose(out.asnumpy(), 0.0)
    store.save_optimizer_states(str(tmp_path / "states"))
    other = mx.kv.create()
    with pytest.raises(AssertionError, match="no optimizer"):
        other.load_optimizer_states(str(tmp_path / "states"))
    other.init(3, out)
    other.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, momentum=0.9))
    other.load_optimizer_states(str(tmp_path / "states"))
    for one in (store, other):
        one.push(3, full(0))
        one.pull(3, out)
        np.testing.assert_allclose(out.asnumpy(), -0.9, rtol=1e-6)


def test_updater_receives_keys_and_sums():
    seen = []
    store = mx.kv.create()
    store._set_updater(
        lambda key, pushed, value: seen.append((key, pushed.asnumpy().max(), value.asnumpy().max()))
    )
    store.init([5, 7], [full(1), full(2)])
    store.push([5, 7], [full(3), [full(4), full(5, 1)]])
    assert seen == [(5, 3, 1), (7, 9, 2)]


def test_registered_store_is_created_by_name():
    store = mx.kv.create("teststore")
    pair = [full(1), full(3, 1)]
    store.pushpull("a", pair)
    assert [array.asnumpy().max() for array in pair] == [4, 4]
    store.broadcast("a", full(2), pair)
    assert [array.asnumpy().max() for array in pair] == [2, 2]
    assert store.is_capable("optimizer") is False and mx.kv.KVStore.is_capable("optimizer") is True

    @mx.kv.KVStoreBase.register
    class Mine(mx.kv.KVStoreBase):
        pass

    try:
        with pytest.raises(NotImplementedError, match="Mine does not define pushpull"):
            mx.kv.create("mine").pushpull("a", pair)
    finally:
        del mx.kv.KVStoreBase.kv_registry["mine"]


def test_store_errors_name_the_cause():
    store = mx.kv.create()
    store.init("a", full(1))
    for call, message in [
        (lambda: store.init("a", full(1)), "already has a value"),
        (lambda: store.push("b", full(1)), "call init first"),
        (lambda: store.push(3, full(1)), "keys of this store must be str"),
        (lambda: store.push("a", mx.nd.ones(4)), r"shape \(2, 3\)"),
        (lambda: store.row_sparse_pull("a", full(1), row_ids=full(1)), "row_sparse"),
        (lambda: store.set_gradient_compression({"type": "2bit"}), "does not support compression"),
        (lambda: mx.kv.create("dist_async"), "needs servers .*mpirun"),
        (lambda: mx.kv.create("p3store_dist"), "'dist_sync', .* 'dist_async'"),
        (lambda: mx.kv.create("horovod"), "unknown store 'horovod'; across machines"),
        (lambda: mx.kv.create("loca"), "unknown store"),
    ]:
        raises(mx.MXNetError, message, call)
    raises(ValueError, "2 keys", lambda: store.push(["a", "b"], [full(1)]))
    raises(TypeError, "NDArrays", lambda: store.push("a", [1.0]))
    raises(AssertionError, "out=", lambda: store.pull("a"))


def test_module_init_optimizer_accepts_store_names():
    module = mx.mod.Module(
        mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2),
        label_names=None,
        context=[mx.cpu(0), mx.cpu(1)],
    )
    module.bind([("data", (4, 3))])
    module.init_params()
    raises(mx.MXNetError, "needs servers", lambda: module.init_optimizer(kvstore="dist_async"))
    raises(TypeError, "a store or None", lambda: module.init_optimizer(kvstore=3))
    module.init_optimizer(kvstore="device")
    assert module._kvstore.type == "device"


def test_dist_sync_store_without_mpirun_has_one_rank():
    """Without mpirun, the store has rank 0 of 1 and still compresses gradients."""
    store = mx.kv.create("dist_sync")
    assert (store.rank, store.num_workers, store.type) == (0, 1, "dist_sync")
    store.init("a", full(1))
    store.push("a", [full(2), full(3, 1)])
    out = full(0)
    store.pull("a", out)
    assert out.asnumpy().min() == 5
    store.set_gradient_compression({"type": "2bit", "threshold": 2})
    store.push("a", full(3))
    store.pull("a", out)
    assert out.asnumpy().min() == 2
    store.push("a", full(1))  # adds to the residual 1 of the previous push
    store.pull("a", out)
    assert out.asnumpy().max() == 2
