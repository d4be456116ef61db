"""Call-invariant values depend only on parameters and are recomputed after a parameter write."""

import gc
from operator import iadd, setitem

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from support.devices import cpus_only, on
from support.processes import output_of
from support.training import backward_of


class Scaled(gluon.HybridBlock):
    """x * exp(w) plus broadcast constants. exp(w) and its sum do not depend on the input."""

    def __init__(self, devices=1):
        super().__init__()
        self._devices = devices
        with self.name_scope():
            self.w = self.params.get("w", shape=(4, 3))
            self.b = self.params.get("b", shape=(3,), grad_req="null")

    def hybrid_forward(self, F, x, w, b):
        scale = F.exp(w)
        if self._devices > 1:
            scale = scale.as_in_context(on(1))
            b = b.as_in_context(on(1))
        return F.broadcast_add(x * scale, F.reshape(b * 2, shape=(1, 3)) + F.sum(scale))


def expected(net, x):
    w, b = net.w.data().asnumpy(), net.b.data().asnumpy()
    return x.asnumpy() * np.exp(w) + b * 2 + np.exp(w).sum()


def make(devices=1, **flags):
    net = Scaled(devices)
    net.initialize(mx.init.Uniform(1), ctx=on(0))
    net.b.set_data(nd.array([1, 2, 3]))
    net.hybridize(**flags)
    return net, nd.random.uniform(shape=(4, 3), ctx=on(devices - 1))


def program(net, phase):
    (entry,) = net.compiled()
    return [
        step["op"]
        for device in entry["devices"].values()
        for step in device[phase]
        if step["kind"] in ("run", "copy")
    ]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("exact", [False, True])
def test_parameter_only_ops_are_hoisted_out_of_the_call(devices, exact):
    net, x = make(devices, exact=exact)
    np.testing.assert_allclose(net(x).asnumpy(), expected(net, x), rtol=1e-5)
    assert "exp" in program(net, "invariants") and "sum" in program(net, "invariants")
    assert not {"exp", "sum", "_copyto"} & set(program(net, "forward"))
    (entry,) = net.compiled()
    kept = sum(device["planned"]["kept"] for device in entry["devices"].values())
    assert 12 * 4 <= kept <= 4 * 12 * 4
    assert "kept" in repr(net.compiled()) and "invariants" in net.compiled().programs()


def writes(tmp_path):
    """Returns functions, by name, that change a parameter of `make`'s network."""

    def loaded(net):
        other, _ = make()
        other.save_parameters(str(tmp_path / "w"))
        net.load_parameters(str(tmp_path / "w"), ctx=on(0))

    def optimizer(net):
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        x = nd.ones((4, 3), ctx=on(net._devices - 1))
        backward_of(lambda: net(x).sum())
        trainer.step(1)

    def recompiled_writer(net):
        class Writer(gluon.HybridBlock):
            def hybrid_forward(self, F, x, mean, var):
                ones = F.ones_like(mean)
                return F.BatchNorm(x, ones, ones, mean, var, fix_gamma=False)

        writer = Writer()
        writer.hybridize()
        with autograd.train_mode():
            writer(nd.random.uniform(shape=(5, 3)), net.b.data(), nd.ones((3,))).wait_to_read()

    whole, some = slice(None), slice(1, 2)
    from_torch = lambda array: pytest.importorskip("torch").from_dlpack(array)
    return {
        "set_data": lambda net: net.w.set_data(nd.full((4, 3), 0.3)),
        "in_place": lambda net: setitem(net.w.data(), whole, 0.1),
        "one_row": lambda net: setitem(net.w.data(), some, -1),
        "element": lambda net: setitem(net.b.data(), 1, 40),
        "operator": lambda net: iadd(net.w.data(), 0.25),
        "out": lambda net: nd.sqrt(nd.ones((4, 3)) * 2, out=net.w.data()),
        "view": lambda net: setitem(net.w.data().reshape((12,)), whole, 0.7),
        "copyto": lambda net: nd.full((4, 3), 0.9).copyto(net.w.data()),
        "from_device": lambda net: nd.full((4, 3), 0.8, ctx=on(2)).copyto(net.w.data()),
        "loaded": loaded,
        "optimizer": optimizer,
        "raw_update": lambda net: nd.sgd_update(
            net.w.data(), nd.ones((4, 3)), lr=0.1, out=net.w.data()
        ),
        "reinitialized": lambda net: net.w.initialize(
            mx.init.Uniform(1), force_reinit=True, ctx=on(0)
        ),
        "dlpack": lambda net: setitem(from_torch(net.b.data()), whole, 5),
        "recompiled_writer": recompiled_writer,
    }


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    "name", [name for name in writes(None) if name != "dlpack" or on(0).device_type == "cpu"]
)
def test_every_parameter_write_recomputes_invariants(name, devices, tmp_path):
    write = writes(tmp_path)[name]
    net, x = make(devices)
    for _ in range(3):
        np.testing.assert_allclose(net(x).asnumpy(), expected(net, x), rtol=1e-5)
    before = expected(net, x)
    write(net)
    assert not np.allclose(before, expected(net, x)), "the test writes nothing"
    for _ in range(3):
        np.testing.assert_allclose(net(x).asnumpy(), expected(net, x), rtol=1e-5)


@cpus_only  # DLPack copies GPU memory here
def test_parameters_shared_by_dlpack_are_read_at_each_call():
    torch = pytest.importorskip("torch")
    net, x = make()
    outside = torch.from_dlpack(net.b.data())
    for value in range(4):
        outside[:] = value
        np.testing.assert_allclose(net(x).asnumpy(), expected(net, x), rtol=1e-5)


def test_states_written_by_the_graph_are_not_invariant():
    norm = gluon.nn.BatchNorm(in_channels=3)
    norm.initialize()
    norm.hybridize()
    x = nd.random.uniform(shape=(6, 3))
    with autograd.train_mode():
        for _ in range(3):
            norm(x)
    mean = norm.running_mean.data().asnumpy()
    assert abs(mean).max() > 0.1
    with autograd.train_mode():
        norm(x)
    assert (norm.running_mean.data().asnumpy() != mean).all()


def test_recorded_calls_have_no_invariants():
    net, x = make()
    backward_of(lambda: net(x))
    assert program(net, "invariants") == []
    np.testing.assert_allclose(
        net.w.grad().asnumpy(), np.exp(net.w.data().asnumpy()) * (x.asnumpy() + 12), rtol=1e-5
    )


def test_outputs_do_not_alias_cached_invariants():
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.w = self.params.get("w", shape=(3,))

        def hybrid_forward(self, F, x, w):
            e = F.exp(w)
            return x * F.sqrt(e), e, F.reshape(F.sin(w), shape=(3, 1))

    net = Net()
    net.initialize(mx.init.One())
    net.hybridize()
    x = nd.ones((3,))
    _, first, _ = net(x)
    first[:] = 7
    product, second, sine = net(x)
    np.testing.assert_allclose(second.asnumpy(), np.exp(1) * np.ones(3), rtol=1e-6)
    np.testing.assert_allclose(product.asnumpy(), np.exp(0.5) * np.ones(3), rtol=1e-6)
    np.testing.assert_allclose(sine.asnumpy(), np.sin(1) * np.ones((3, 1)), rtol=1e-6)


def test_large_invariants_are_recomputed_in_each_call():
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.w = self.params.get("w", shape=(1, 16))

        def hybrid_forward(self, F, x, w):
            return x + F.broadcast_to(w, shape=(20000, 16)) + F.zeros((20000, 16))

    net = Net()
    net.initialize(mx.init.One())
    net.hybridize()
    assert (net(nd.ones((20000, 16))).asnumpy() == 2).all()
    (entry,) = net.compiled()
    assert entry["devices"][str(on(0))]["planned"]["kept"] < 1 << 17


def test_invariants_are_freed_with_the_network():
    gc.collect()
    nd.waitall()
    before = mx.context.memory_stats(on(0))["in_use"]
    net, x = make()
    net(x).wait_to_read()
    del net, x
    gc.collect()
    nd.waitall()
    assert mx.context.memory_stats(on(0))["in_use"] <= before


def test_thread_count_change_recomputes_invariants():
    net, x = make()
    net(x).wait_to_read()
    try:
        for threads in (3, 1):
            mx.context.set_threads(threads)
            np.testing.assert_allclose(net(x).asnumpy(), expected(net, x), rtol=1e-5)
    finally:
        mx.context.set_threads(0)


VIEWS = """
import numpy as np
import mpgluon as mx
from mpgluon import gluon, nd

N = 100
MADE = {
    "arange": lambda: nd.arange(0, N),
    "linspace": lambda: nd.linspace(0, 1, N),
    "full": lambda: nd.full((N,), 3),
    "eye": lambda: nd.eye(10).reshape((N,)),
}
READ = {
    "two": lambda x, a: nd.broadcast_mul(a.reshape((N, 1)), a.reshape((1, N))),
    "three": lambda x, a: nd.broadcast_mul(a.reshape((N, 1)), a.reshape((1, N))) + a,
    "itself": lambda x, a: nd.broadcast_mul(a, a.reshape((N, 1))) + a.expand_dims(0),
    "kept": lambda x, a: nd.broadcast_mul(a.reshape((N, 1)), nd.cos(a).reshape((1, N)))
    * nd.broadcast_add(a.expand_dims(0), x.reshape((N, 1))),
}

class Net(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return nd.dot(self.read(x, self.made()), x)

for made in MADE:
    for read in READ:
        net = Net()
        net.made, net.read = MADE[made], READ[read]
        x = nd.random.uniform(shape=(N,))
        expected = net(x).asnumpy()
        net.hybridize(exact=True)
        for _ in range(2):
            assert (net(x).asnumpy() == expected).all(), (made, read)
print("done")
"""


def test_views_of_invariants_are_initialized_before_use():
    """Each call reads several views of one invariant array.

    The pool fills uninitialized memory with NaN.
    """
    assert output_of(VIEWS, MPGLUON_POOL_POISON="1").strip() == "done"
