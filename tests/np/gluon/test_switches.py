"""The switches of mx.np: threads, scopes, decorators, and errors."""

import threading

import pytest

import mpgluon as mx
from mpgluon import gluon, nd, npx
from mpgluon.gluon import nn


@pytest.fixture(autouse=True)
def _off():
    yield
    mx.util.set_np_shape(0) if not mx.is_np_array() else npx.reset_np()


def switches():
    return mx.is_np_shape(), mx.is_np_array()


def in_a_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_set_np_acts_on_its_thread():
    assert switches() == (False, False)
    npx.set_np()
    assert switches() == (True, True)
    assert in_a_thread(switches) == (False, False)
    npx.set_np(shape=True, array=False)
    assert switches() == (True, False)
    npx.reset_np()
    assert switches() == (False, False)


def test_shapes_of_all_threads():
    assert mx.set_np_shape(2) is False
    assert in_a_thread(mx.is_np_shape)
    with mx.np_shape(True):
        pass
    assert in_a_thread(mx.is_np_shape)
    assert mx.set_np_shape(False) is True
    assert not mx.is_np_shape() and not in_a_thread(mx.is_np_shape)


def test_invalid_switches_are_refused():
    with pytest.raises(ValueError, match="array=True needs shape=True"):
        npx.set_np(shape=False)
    with pytest.raises(ValueError, match="expected False, True or 2"):
        mx.set_np_shape(3)
    npx.set_np()
    with pytest.raises(ValueError, match="reset_np"):
        mx.set_np_shape(False)
    with pytest.raises(ValueError, match="reset_np"), mx.np_shape(False):
        pass
    assert switches() == (True, True)


def test_scopes_restore_the_switches():
    with mx.np_shape(), mx.np_array():
        assert switches() == (True, True)
        with mx.np_array(False):
            assert switches() == (True, False)
        assert switches() == (True, True)
    assert switches() == (False, False)
    with pytest.raises(KeyError), mx.np_array():
        raise KeyError
    assert switches() == (False, False)


@pytest.mark.parametrize(
    ("decorate", "inside"),
    [
        (mx.use_np, (True, True)),
        (mx.use_np_array, (False, True)),
        (mx.use_np_shape, (True, False)),
    ],
)
def test_decorated_functions_and_classes_run_inside(decorate, inside):
    @decorate
    def function(x, *, y):
        """Documentation."""
        return switches(), x + y

    assert function(1, y=2) == (inside, 3)
    assert function.__doc__ == "Documentation." and function.__name__ == "function"

    class Base:
        def inherited(self):
            return switches()

    @decorate
    class Class(Base):
        """Documentation."""

        attribute = 5

        def __init__(self):
            self.created = switches()
            self.written = None

        def method(self):
            return switches()

        def __call__(self):
            return switches()

        @property
        def value(self):
            return switches()

        @value.setter
        def value(self, _):
            self.written = switches()

        @classmethod
        def of_class(cls):
            return cls.__name__, switches()

        @staticmethod
        def static():
            return switches()

    thing = Class()
    thing.value = 1
    found = (thing.created, thing.written, thing.method(), thing(), thing.value, thing.inherited())
    assert found == (inside,) * 6
    assert Class.of_class() == ("Class", inside) and Class.static() == inside
    assert switches() == (False, False) and Base().inherited() == (False, False)
    with pytest.raises(TypeError, match="expected a class or a callable"):
        decorate(3)


def test_decorated_block_has_numpy_parameters_outside_of_np_mode():
    @mx.use_np
    class Model(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.hidden = nn.Dense(4)
                self.weight = self.params.get("weight", shape=(4, 2))

        def hybrid_forward(self, F, x, weight):
            assert switches() == (True, True)
            return F.dot(self.hidden(x), weight)

    x = nd.ones((2, 3)).as_np_ndarray()
    for hybridize in (False, True):
        net = Model()
        net.initialize()
        if hybridize:
            net.hybridize()
        assert type(net(x)) is mx.np.ndarray
        for param in net.collect_params().values():
            assert type(param.data()) is type(param.grad()) is mx.np.ndarray
    assert switches() == (False, False)
