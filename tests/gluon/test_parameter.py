"""Parameters and their dicts."""

import copy
import gc

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.calls import raises
from support.devices import on
from support.training import backward_of


def test_parameter_has_data_on_each_initialized_device():
    p = gluon.Parameter("weight", shape=(2, 3))
    assert repr(p) == "Parameter weight (shape=(2, 3), dtype=<class 'numpy.float32'>)"
    for call in (p.data, p.list_data, p.grad, p.list_ctx):
        raises(mx.MXNetError, "has not been initialized", call)
    p.initialize(ctx=[on(0), on(1)])
    assert p.list_ctx() == [on(0), on(1)]
    assert [array.context for array in p.list_data()] == [on(0), on(1)]
    np.testing.assert_array_equal(p.data(on(0)).asnumpy(), p.data(on(1)).asnumpy())
    assert p.data().context == on(0)
    with pytest.raises(
        mx.MXNetError, match=r"not initialized on context [cg]pu\(2\).*[cg]pu\(0\), [cg]pu\(1\)"
    ):
        p.data(on(2))
    p.set_data(np.full((2, 3), 7))
    assert all((array.asnumpy() == 7).all() for array in p.list_data())
    raises(AssertionError, "weight", lambda: p.set_data(np.zeros((3, 2))))


def test_initializing_again_needs_force_reinit():
    p = gluon.Parameter("weight", shape=(2, 3), init="ones")
    p.initialize()
    with pytest.warns(UserWarning, match="already initialized"):
        p.initialize(init="zeros")
    assert p.data().asnumpy().min() == 1
    p.initialize(init=mx.init.Zero(), force_reinit=True)
    assert p.data().asnumpy().max() == 0


def test_initialize_rejects_invalid_contexts():
    p = gluon.Parameter("weight", shape=(2, 3))
    for ctx in ([], [on(0), on(0)], ["cpu"]):
        with pytest.raises(ValueError):
            p.initialize(ctx=ctx)


def test_backward_writes_into_the_same_gradient_array():
    p = gluon.Parameter("weight", shape=(3,))
    p.initialize(init="ones")
    grad = p.grad()
    for factor in (2, 3):
        backward_of(lambda: (p.data() * factor).sum())
        assert p.grad() is grad
        np.testing.assert_array_equal(grad.asnumpy(), np.full(3, factor))
    p.zero_grad()
    assert grad.asnumpy().max() == 0


def in_use(ctx):
    nd.waitall()
    return mx.context.memory_stats(ctx)["in_use"]


@pytest.mark.parametrize("hybridize", [False, True])
def test_gradient_memory_is_allocated_when_it_is_first_used(tmp_path, hybridize):
    gc.collect()
    size, before = 4 << 18, in_use(on(1))
    net = nn.HybridSequential()
    net.add(nn.Dense(512, in_units=512, use_bias=False))
    net.initialize(ctx=on(0))
    net.hybridize(hybridize)
    weight = net[0].weight
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1})
    x = nd.ones((1, 512), ctx=on(1))
    net.collect_params().reset_ctx(on(1))
    net.cast("float64")
    net.cast("float32")
    net(x).wait_to_read()
    net.zero_grad()
    weight.grad_req = "add"
    mx.parallel.save(tmp_path / "saved", net, trainer)
    mx.parallel.load(tmp_path / "saved", net, trainer)
    copied = copy.deepcopy(net)
    assert in_use(on(1)) - before < 2.5 * size  # two networks
    del copied
    gc.collect()
    assert in_use(on(1)) - before < 1.5 * size
    backward_of(lambda: net(x).sum())
    assert in_use(on(1)) - before > 2 * size
    assert weight.grad() is weight.grad() is weight.list_grad()[0]
    assert (weight.grad().asnumpy() == 1).all()
    assert (weight.data().grad.asnumpy() == 1).all()


def test_gradients_of_replicas_are_zero_before_backward():
    weight = gluon.Parameter("weight", shape=(3,))
    weight.initialize(ctx=[on(0), on(1)])
    second = weight.grad(on(1))  # allocates one of them
    assert weight.list_grad()[1] is second
    assert [grad.context for grad in weight.list_grad()] == [on(0), on(1)]
    assert all((grad.asnumpy() == 0).all() for grad in weight.list_grad())
    raises(mx.MXNetError, "was not initialized on context", lambda: weight.grad(on(2)))


def test_gradient_that_is_first_read_in_a_hybridized_block_is_an_input():
    class Block(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.weight = gluon.Parameter("weight", shape=(2,))

        def forward(self, x):
            return x + self.weight.grad() * 2

    net = Block()
    net.initialize()
    net.hybridize()
    assert net(nd.zeros(2)).asnumpy().tolist() == [0, 0]
    backward_of(lambda: (net.weight.data() * 3).sum())
    assert net(nd.zeros(2)).asnumpy().tolist() == [6, 6]


def test_zero_grad_is_refused_in_a_hybridized_block_before_the_first_backward():
    class Block(nn.HybridBlock):
        def forward(self, x):
            self.inner.zero_grad()
            return self.inner(x)

    net = Block()
    net.inner = nn.Dense(2, in_units=2)
    net.initialize()
    net.hybridize()
    raises(mx.MXNetError, "is written to inside", lambda: net(nd.zeros((1, 2))))


def test_grad_req_controls_accumulation_and_storage():
    p = gluon.Parameter("weight", shape=(3,), grad_req="add")
    p.initialize(init="ones")
    for _ in range(2):
        backward_of(lambda: (p.data() * 2).sum())
    assert p.grad().asnumpy().tolist() == [4, 4, 4]
    p.grad_req = "null"
    raises(mx.MXNetError, "grad_req='null'|grad_req is 'null'", p.grad)
    p.grad_req = "write"
    assert p.grad().asnumpy().tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="sometimes"):
        p.grad_req = "sometimes"
    fixed = gluon.Parameter("fixed", shape=(3,), differentiable=False)
    assert fixed.grad_req == "null"


def test_gradient_is_zero_before_backward_and_after_another_grad_req():
    p = gluon.Parameter("weight", shape=(3,))
    p.initialize("ones")
    assert not p.grad().asnumpy().any()
    with autograd.record():
        loss = (2 * p.data()).sum()
    loss.backward()
    p.grad_req = "write"  # no change
    assert p.grad().asnumpy().tolist() == [2, 2, 2]
    p.grad_req = "add"
    assert not p.grad().asnumpy().any()


def test_deferred_parameter_is_initialized_once_its_shape_is_known():
    p = gluon.Parameter("weight", shape=(3, 0))
    raises(ValueError, "invalid shape", p.initialize)
    p = gluon.Parameter("weight", shape=(3, 0), allow_deferred_init=True)
    p.initialize(ctx=on(1))
    with pytest.raises(gluon.DeferredInitializationError):
        p.data()
    assert p.list_ctx() == [on(1)]
    with pytest.raises(AssertionError):
        p.shape = (4, 2)
    p.shape = (3, 2)
    p.finish_deferred_init()
    assert p.data().shape == (3, 2)
    q = gluon.Parameter("weight", shape=(3, 0), allow_deferred_init=True)
    q.initialize()
    q.set_data(mx.nd.ones((3, 4)))
    q.finish_deferred_init()
    assert q.data().asnumpy().min() == 1


def test_initial_values_do_not_depend_on_the_device():
    values = []
    for ctx in (on(0), on(2), [on(1), on(0)]):
        mx.random.seed(11)
        p = gluon.Parameter("weight", shape=(4, 5))
        p.initialize(init=mx.init.Normal(1), ctx=ctx)
        values += [array.asnumpy() for array in p.list_data()]
    for value in values[1:]:
        np.testing.assert_array_equal(value, values[0])


def test_reset_ctx_moves_values():
    p = gluon.Parameter("weight", shape=(4,))
    p.initialize(init=mx.init.Normal(1), ctx=[on(0), on(1), on(2)])
    value = p.data(on(0)).asnumpy()
    p.reset_ctx(on(1))
    assert p.list_ctx() == [on(1)]
    np.testing.assert_array_equal(p.data().asnumpy(), value)
    assert p.grad().context == on(1)
    with pytest.raises(ValueError):
        gluon.Parameter("other", shape=(1,)).reset_ctx(on(0))


def test_cast_changes_data_and_gradient_dtype():
    p = gluon.Parameter("weight", shape=(3,))
    p.initialize(init="ones")
    p.cast("float64")
    backward_of(lambda: (p.data() * 2).sum())
    assert p.data().dtype == np.float64 and p.grad().dtype == np.float64
    assert p.grad().asnumpy().tolist() == [2, 2, 2]


def test_constant_keeps_its_value_and_has_no_gradient():
    c = gluon.Constant("const", [[1, 2], [3, 4]])
    c.initialize(ctx=[on(0), on(1)])
    assert c.data(on(1)).asnumpy().tolist() == [[1, 2], [3, 4]]
    assert c.grad_req == "null"
    with pytest.warns(UserWarning, match="const"):
        c.grad_req = "write"

    class Block(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.const = self.params.get_constant("const", [[1, 2], [3, 4]])

        def hybrid_forward(self, F, x, const):
            return x + const

    for hybrid in (False, True):
        net = Block()
        net.initialize()
        net.hybridize(hybrid)
        x = mx.nd.ones((2, 2))
        x.attach_grad()
        y = backward_of(lambda: net(x))
        assert y.asnumpy().tolist() == [[2, 3], [4, 5]]
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1})
        trainer.step(1)
        assert net.const.data().asnumpy().tolist() == [[1, 2], [3, 4]]


def test_parameter_dict_shares_and_validates_parameters():
    params = gluon.ParameterDict("net_")
    w = params.get("w", shape=(5, 0), allow_deferred_init=True)
    assert w.name == "net_w" and params.get("w", shape=(5, 7)) is w and w.shape == (5, 7)
    raises(AssertionError, "shape", lambda: params.get("w", shape=(5, 8)))
    raises(AssertionError, "dtype", lambda: params.get("w", dtype="float64"))
    shared = gluon.ParameterDict("other_", shared=params)
    assert list(shared) == []
    assert (
        repr(params) == "net_ (\n  Parameter net_w (shape=(5, 7), dtype=<class 'numpy.float32'>)\n)"
    )
    params.initialize(ctx=on(1))
    assert params.list_ctx() == [on(1)]
    params.setattr("lr_mult", 0.5)
    assert w.lr_mult == 0.5
    with pytest.warns(UserWarning, match="no attribute 'lr_multi'; did you mean 'lr_mult'?"):
        params.setattr("lr_multi", 0.1)
    with pytest.raises(AssertionError, match="same name"):
        other = gluon.ParameterDict("net_")
        other.get("w", shape=(1,))
        params.update(other)
    with pytest.raises(KeyError):
        params.get_constant("c")
    raises(ValueError, "[Pp]refix", lambda: params.save("unused", strip_prefix="xyz"))


def test_parameter_rejects_csr_storage():
    raises(ValueError, "row_sparse", lambda: gluon.Parameter("w", shape=(1,), stype="csr"))


@pytest.mark.parametrize("error", (ValueError("failed"), KeyboardInterrupt()))
def test_failed_reinitialization_keeps_values_and_gradients(error):
    class Failing(mx.init.Initializer):
        def _init_weight(self, name, array):
            raise error

    net = nn.Dense(2, in_units=2)
    net.initialize(mx.init.One(), ctx=on(0))
    net.hybridize()
    x = nd.ones((1, 2), ctx=on(0))
    with autograd.record():
        net(x).backward()
    with pytest.raises(type(error)):
        net.initialize(Failing(), force_reinit=True)
    assert net(x).asnumpy().tolist() == [[2, 2]]
    assert net.weight.grad().asnumpy().tolist() == [[1, 1], [1, 1]]
    net.initialize(mx.init.Constant(3), force_reinit=True)
    assert net(x).asnumpy().tolist() == [[6, 6]]
