"""Arrays that a hybridized block captures are read afresh in each call."""

import collections
import gc
import itertools
import types

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from support.captures import Net, array, check_alike, first_of, make, paused, same
from support.devices import on

# --- Arrays from outside the block ----------------------------------------------------------------

CAPTURES = {
    "scaled": lambda F, x, w, c: x * (c * 2),
    "exp": lambda F, x, w, c: x * F.exp(c) + w,
    "sum": lambda F, x, w, c: x * c.sum(),
    "astype": lambda F, x, w, c: x * c.astype("float64").astype("float32"),
    "where": lambda F, x, w, c: F.where(c > 1, x, w) * c,
    "transpose": lambda F, x, w, c: F.dot(x, c.T),
    "row": lambda F, x, w, c: x * c[1],
    "part of a row": lambda F, x, w, c: x * c[1:2, 1:3].sum(),
    "reshape": lambda F, x, w, c: x.reshape((3, 2)) * c.reshape((3, 2)),
    "op's reshape": lambda F, x, w, c: x.reshape((3, 2)) * F.reshape(c, shape=(3, 2)),
    "copy": lambda F, x, w, c: x * c.copy(),
    "array": lambda F, x, w, c: x * nd.array(c, ctx=on(0)),
    "elsewhere": lambda F, x, w, c: x * (c.as_in_context(on(1)) + 1).as_in_context(on(0)),
    "rows": lambda F, x, w, c: x * F.take(c, F.cast(c[:, 0] > 1, "int32")),
    "rows by itself": lambda F, x, w, c: x * c[F.cast(c[:, 0] > 1, "int32")],
    "cond of it": lambda F, x, w, c: F.contrib.cond(c.sum() > 6, lambda: x * c, lambda: -x * w),
    "cond": lambda F, x, w, c: F.contrib.cond(c[0, 0:1] > 1, lambda: x * F.exp(c), lambda: -x),
    "unrolled": lambda F, x, w, c: F.contrib.foreach(
        lambda row, s: (row * F.sqrt(c[0]), s + c[1]), x, w[0]
    )[0],
    "over it": lambda F, x, w, c: (
        F.contrib.foreach(lambda row, s: (row * s, s + row), c, c[0])[0] + x
    ),
    "loop": lambda F, x, w, c: F.contrib.while_loop(
        lambda i, s: (i < 3) * (c.sum() > 6),
        lambda i, s: ([], [i + 1, s * F.exp(c)]),
        [F.zeros((1,)), x],
        5,
    )[1][1],
    "loop of it": lambda F, x, w, c: (
        F.contrib.while_loop(lambda s: s.sum() < 20, lambda s: ([], [s * 2]), [c], 5)[1][0] * x
    ),
    "mask": lambda F, x, w, c: F.contrib.boolean_mask(c, c[:, 0] > 1).sum(axis=0) * x,
    "mask of it": lambda F, x, w, c: F.contrib.boolean_mask(x, c[:, 0] > 1).sum(axis=0) * w,
    "detached": lambda F, x, w, c: x * (c.detach() * 2) + c,
    "paused": lambda F, x, w, c: x * paused(lambda: c * 2) + c,
    "random": lambda F, x, w, c: x * F.zeros_like(F.random.uniform_like(c)) + c,
    "alone": lambda F, x, w, c: [c * 2 + F.zeros_like(x), x],
}


def follow(name, mode, replace, kind):
    """Returns results and gradients of calls between which the captured array changes.

    The change overwrites the array or replaces it with another one.
    """
    x, c = array(0), array(1)
    net = make(CAPTURES[name], mode, c)
    source = array(2)
    leaves = {"plain": [x], "variable": [x, c], "computed": [x, source]}[kind]
    for leaf in leaves:
        leaf.attach_grad()
    found = []
    for step in range(4):
        value = array(step + 5) + (step % 2 - 0.5)
        if kind == "computed":
            source[:] = value
        elif replace:
            net.captured = value
            if kind == "variable":
                value.attach_grad()
                leaves = [x, value]
        else:
            net.captured[:] = value
        for leaf in leaves:
            leaf.grad[:] = 9
        with autograd.record():
            if kind == "computed":
                net.captured = source * 1.5
            y = first_of(net(x))
            (y * nd.arange(y.size).reshape(y.shape)).sum().backward()
        found += [
            y.asnumpy(),
            *[leaf.grad.asnumpy() for leaf in leaves],
            first_of(net(x)).asnumpy(),
        ]
    return found


@pytest.mark.parametrize(
    "kind, replace",
    [
        ("plain", False),
        ("plain", True),
        ("variable", False),
        ("variable", True),
        ("computed", True),
    ],
)
@pytest.mark.parametrize("name", CAPTURES)
def test_captured_arrays_are_read_in_every_call(name, kind, replace):
    eager = follow(name, "eager", replace, kind)
    for mode in ("hybridized", "exact"):
        check_alike(eager, follow(name, mode, replace, kind), mode)


class Deep(gluon.HybridBlock):
    """Keeps arrays in nested containers, attributes, blocks and globals."""

    def __init__(self):
        super().__init__()
        self.listed = [array(1)]
        self.named = {"a": {"b": array(2)}}
        self.pair = (array(3), [array(4)])
        self.plain = type("Plain", (), {})()
        self.plain.inner = array(5)
        self.inner = Net(lambda F, x, w, c: x * c, array(6))

    def hybrid_forward(self, F, x):
        y = (
            x * self.listed[0]
            + self.named["a"]["b"] * self.pair[0]
            + self.pair[1][0] * self.plain.inner
        )
        return self.inner(y) + a_helper(x)


GLOBAL = [array(7)]


def a_helper(x):
    return x * GLOBAL[0]


def test_captured_arrays_are_tracked_in_nested_containers():
    net, x, seeds = Deep(), array(0), itertools.count(20)

    def replace(step):
        fresh = [array(next(seeds)) for i in range(8)]
        changes = [
            lambda: net.listed.__setitem__(0, fresh[0]),
            lambda: setattr(net, "listed", [fresh[1]]),
            lambda: net.named["a"].update(b=fresh[2]),
            lambda: setattr(net, "pair", (fresh[3], [fresh[4]])),
            lambda: net.pair[1].__setitem__(0, fresh[5]),
            lambda: setattr(net.plain, "inner", fresh[6]),
            lambda: setattr(net.inner, "captured", fresh[7]),
            lambda: GLOBAL.__setitem__(0, fresh[0]),
        ]
        changes[step]()

    for step in range(8):
        replace(step)
        net.hybridize(False)
        eager = net(x).asnumpy()
        net.hybridize(True)
        net(x)
        kept = net.compiled()[0]["calls"]
        replace((step + 3) % 8)
        found = net(x).asnumpy()
        assert net.compiled()[0]["calls"] == kept + 1  # without another trace
        net.hybridize(False)
        assert np.array_equal(found, net(x).asnumpy()) and not np.array_equal(found, eager)


class Ring(gluon.HybridBlock):
    """Keeps arrays that swap places with each other."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.ring = array(1), array(2), [array(3), array(4), array(5)]
        self.alias, self.whole = self.a, array(6, (3, 2, 3))
        self.row = self.whole[1]
        self.first = Net(lambda F, x, w, c: x + c, array(7))
        self.second = Net(lambda F, x, w, c: x * c)
        self.second.captured = self.first.captured

    def hybrid_forward(self, F, x):
        return (
            self.second(self.first(x * self.a - self.b))
            + self.ring[0] * x
            - self.ring[1] * 2
            + self.row
        )


def test_captured_arrays_may_swap_places_without_retrace():
    def exchange(net):
        net.a, net.b = net.b, net.a

    changes = {
        "exchanged": exchange,
        "rotated": lambda net: net.ring.insert(0, net.ring.pop()),
        "reversed": lambda net: net.ring.reverse(),
        "one place of two, not used": lambda net: setattr(net, "alias", array(next(seeds))),
        "one place of two, used": lambda net: setattr(net, "a", net.b.copy()),
        "one block of two": lambda net: setattr(net.second, "captured", array(next(seeds))),
        "made one": lambda net: setattr(net, "a", net.b),
        "and two again": lambda net: setattr(net, "b", array(next(seeds))),
        "what a view was of": lambda net: setattr(net, "whole", array(next(seeds), (3, 2, 3))),
        "the view": lambda net: setattr(net, "row", net.whole[2]),
        "both": lambda net: (
            setattr(net, "alias", array(next(seeds))),
            setattr(net, "a", net.alias),
        ),
    }
    net, x, seeds = Ring(), array(0), itertools.count(20)
    net.hybridize(exact=True)
    for name in [*changes, *changes]:
        for change in (name, "exchanged", "rotated", "exchanged", name):
            net(x)
            changes[change](net)
            assert np.array_equal(net(x).asnumpy(), net.hybrid_forward(nd, x).asnumpy()), (
                name,
                change,
            )
    net.a, net.b, net.alias = array(1), array(2), None
    net(x)
    traced = net.compiled()[0]["calls"]
    exchange(net)
    net.ring.reverse()
    # No retrace
    assert np.array_equal(net(x).asnumpy(), net.hybrid_forward(nd, x).asnumpy())
    assert net.compiled()[0]["calls"] == traced + 1


@pytest.mark.parametrize("cut", [False, True])
def test_captured_array_that_is_only_returned_is_current(cut):
    def body(F, x, w, c):
        return [F.contrib.boolean_mask(x, x[:, 0] > -9) if cut else x * w, c]

    net = make(body, "hybridized", array(1))
    for seed in (1, 2, 2, 3):
        net.captured = array(seed)
        assert np.array_equal(net(array(0))[1].asnumpy(), net.captured.asnumpy())


class Settings:
    __slots__ = ("mask",)
    scale = None


class OfAClass(gluon.HybridBlock):
    offset, queue, settings = None, collections.deque(), Settings()
    where = types.ModuleType("where_arrays_are")

    @staticmethod
    def scaled(x):
        return x * Settings.scale

    @property
    def mask(self):
        return self.settings.mask * GLOBAL[0]

    def helper(self, x, *, factor=[None]):  # noqa: B006 - captured as well
        return x * self.mask + self.queue[0] * factor[0]

    def hybrid_forward(self, F, x):
        return self.scaled(x) + self.helper(x) * where.table["a"] + self.offset


where = OfAClass.where


def test_captured_arrays_are_tracked_in_classes_and_modules():
    class Derived(OfAClass):
        pass

    places = {
        "class": lambda value: setattr(Settings, "scale", value),
        "slot": lambda value: setattr(OfAClass.settings, "mask", value),
        "queue": lambda value: (OfAClass.queue.clear(), OfAClass.queue.append(value)),
        "default by name": lambda value: OfAClass.helper.__kwdefaults__["factor"].__setitem__(
            0, value
        ),
        "module": lambda value: where.__dict__.update(table={"a": value}),
        "class of the block": lambda value: setattr(OfAClass, "offset", value),
        "derived class": lambda value: setattr(Derived, "offset", value),
        "block": lambda value: setattr(net, "offset", value),
    }
    net, x = Derived(), array(0)
    for number, place in enumerate(list(places.values())[:6]):
        place(array(number))
    net.hybridize(exact=True)
    for number, (name, place) in enumerate(places.items()):
        net(x)
        place(array(30 + number))
        assert np.array_equal(net(x).asnumpy(), net.hybrid_forward(nd, x).asnumpy()), name


def test_captured_array_may_change_shape_and_dtype():
    for mode in ("hybridized", "exact"):
        net, x = (
            make(lambda F, x, w, c: F.broadcast_mul(x, F.cast(c, "float32") * 2), mode, array(1)),
            array(0),
        )
        for other in (
            array(2, (1, 3)),
            array(3, (2, 1)),
            nd.ones((2, 3), dtype="int32", ctx=on(0)),
            array(4),
        ):
            net.captured = other
            assert same(net(x).asnumpy(), x.asnumpy() * other.asnumpy() * 2)


ROWS = nd.array([1, 0], dtype="int32", ctx=on(0))
READS = {
    "asnumpy": lambda c: c.asnumpy().sum(),
    "asscalar": lambda c: c[0, 0].asscalar(),
    "item": lambda c: c[0, 0].item(),
    "float": lambda c: float(c[0, 0]),
    "int": lambda c: int(c[0, 0]),
    "bool": lambda c: 1 if c[0, 0] else 2,
    "comparison": lambda c: 1 if c[0, 0] > 1 else 2,
    "NumPy": lambda c: np.sum(np.asarray(c)),
    "an index of several": lambda c: c[ROWS, 0].sum(),
    "DLPack": lambda c: np.from_dlpack(c).sum(),
}


@pytest.mark.parametrize("name", READS)
def test_reading_captured_value_in_trace_is_refused(name):
    net = make(lambda F, x, w, c: x * READS[name](c), "hybridized", array(1))
    with pytest.raises(mx.MXNetError, match="would be read once|no value yet"):
        net(array(0))
    # Created inside the block from numbers
    net = make(lambda F, x, w, c: x * float(nd.array([2.0]).asscalar()), "hybridized")
    assert same(net(array(0)).asnumpy(), array(0).asnumpy() * 2)


def test_captured_arrays_are_read_in_each_pipeline_call():
    from mpgluon.parallel import Pipeline

    net, x = (
        Net(lambda F, x, w, c: F.broadcast_mul(x, F.exp(c)), array(1, (1, 3))),
        array(0, (4, 3)),
    )
    net.hybridize(pipeline=Pipeline(2))
    for value in (array(2, (1, 3)), array(3, (1, 3))):
        for change in (
            lambda: setattr(net, "captured", value),
            lambda: net.captured.__setitem__(slice(None), 2),
        ):
            change()
            assert same(net(x).asnumpy(), x.asnumpy() * np.exp(net.captured.asnumpy()))


def test_finalizer_ops_are_not_traced():
    old, seen = nd.array([3.0], ctx=on(0)), []

    class Garbage:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            seen.append((nd.zeros((2,), ctx=on(0)) + old).asnumpy())

    def body(F, x, w, _):
        Garbage()
        gc.collect()
        return F.exp(x) * w

    net = make(body, "hybridized")
    net(array(0))
    assert seen and all(np.array_equal(values, [3, 3]) for values in seen)
    [entry] = net.compiled()
    assert entry["ops"] == 2 and same(net(array(1)).asnumpy(), np.exp(array(1).asnumpy()) * 0.5)


class Masked(gluon.HybridBlock):
    """Adds a mask that is built while tracing. Keeps it if `keep` is true."""

    def __init__(self, keep):
        super().__init__()
        self.keep, self.mask = keep, None

    def hybrid_forward(self, F, x):
        mask = nd.array(np.arange(x.shape[1])[None])
        if self.keep:
            mask = self.mask = mask if self.mask is None else self.mask
        return F.broadcast_add(x, mask)


@pytest.mark.parametrize("keep", [False, True])
def test_array_created_in_trace_is_replaced_only_if_it_is_kept(keep):
    net = Masked(keep)
    net.hybridize()
    x = nd.zeros((2, 3))
    for _ in range(2):
        np.testing.assert_array_equal(net(x).asnumpy(), [[0, 1, 2]] * 2)
    net.mask = nd.array([[5, 6, 7]])
    expected = [5, 6, 7] if keep else [0, 1, 2]
    for _ in range(2):
        np.testing.assert_array_equal(net(x).asnumpy(), [expected] * 2)
    if not keep:
        np.testing.assert_array_equal(net(nd.zeros((2, 4))).asnumpy(), [[0, 1, 2, 3]] * 2)
