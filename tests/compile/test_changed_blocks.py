"""Compiled blocks whose children, containers or attributes change between calls."""

import collections
import contextvars
import copy
import functools
import sys
import types
import weakref
from operator import attrgetter, itemgetter, setitem

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon._compiled.places import find
from support.captures import array, same
from support.devices import on

VARIABLE = contextvars.ContextVar("array")
DEFAULT = nd.full((1, 3), 2, ctx=on(0))
WITH_DEFAULT = contextvars.ContextVar("default", default=DEFAULT)


def scale(factor):
    return nd.full((1, 3), factor, ctx=on(0))


class Times(gluon.HybridBlock):
    """Multiplies by a constant parameter."""

    def __init__(self, factor):
        super().__init__()
        self.factor = self.params.get("factor", shape=(1, 3), init=mx.init.Constant(factor))
        self.initialize(ctx=on(0))

    def hybrid_forward(self, F, x, factor):
        return F.broadcast_mul(x, factor)


class Body(gluon.HybridBlock):
    """Calls a function of the block, `F` and the input."""

    def __init__(self, call, **attributes):
        super().__init__()
        self.call = call
        for name, value in attributes.items():
            setattr(self, name, value)

    def hybrid_forward(self, F, x):
        return self.call(self, F, x)


def in_turn(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def times_all(arrays, F, x):
    for one in arrays:
        x = F.broadcast_mul(x, one)
    return x


def with_parameters():
    body = Body(lambda b, F, x: times_all([p.data(x.context) for p in b.scales], F, x))
    body.scales = [Times(2).factor, Times(3).factor]
    return body


def sequential(*factors):
    net = gluon.nn.HybridSequential()
    net.add(*map(Times, factors))
    return net


def object_array(*arrays):
    found = np.empty(len(arrays), dtype=object)
    found[:] = arrays
    return found


def variable_body():
    VARIABLE.set(scale(2))
    return Body(lambda b, F, x: F.broadcast_mul(x, VARIABLE.get()))


def body_in_a_list():
    inner = sequential(2, 3)
    return Body(lambda b, F, x: in_turn(b.hidden[0], x), hidden=[inner])


def shared_list():
    masks = [scale(2)]
    return Body(
        lambda b, F, x: times_all(b.b, F, times_all(b.a, F, x)), a=masks, b=masks, other=[scale(5)]
    )


def deep_list():
    net = Body(lambda b, F, x: times_all(b.masks, F, x), masks=[scale(2)])
    for _ in range(5):
        net = Body(lambda b, F, x: b.inner(x), inner=net)
    return net


def innermost(net):
    while hasattr(net, "inner"):
        net = net.inner
    return net


def closure():
    masks = [scale(2)]
    return Body(lambda b, F, x: times_all(masks, F, x), change=lambda: masks.append(scale(3)))


def unregistered():
    body = Body(lambda b, F, x: vars(b)["hidden"](x))
    vars(body)["hidden"] = Times(2)
    return body


def weakly_owned():
    owner = Times(1)
    owner.mask = scale(2)
    body = Body(lambda b, F, x: F.broadcast_mul(x, b.owner().mask))
    body.kept, body.owner = lambda: owner, weakref.ref(owner)
    return body


class Base(Body):
    mask = None

    def scaled(self, F, x):
        return F.broadcast_mul(F.broadcast_mul(x, BASE.mask), super().mask)

    def hybrid_forward(self, F, x):
        return self.scaled(F, x)


class Derived(Base):
    mask = None

    def scaled(self, F, x):
        return super().scaled(F, x) * 2


BASE = types.SimpleNamespace()


def derived():
    BASE.mask, Body.mask = scale(2), scale(3)
    return Derived(None)


class Masks(list):
    """A container whose items, attributes and special methods lead to arrays."""

    def __init__(self, *arrays):
        super().__init__(arrays)
        self.last = scale(2)

    def __getitem__(self, key):
        return BASE.masks[key]


def masks():
    BASE.masks = {"a": scale(3)}
    return Body(
        lambda b, F, x: times_all([b.masks["a"], b.masks.last, *b.masks], F, x),
        masks=Masks(scale(5)),
    )


def imported_module():
    sys.modules["module_with_a_mask"] = types.SimpleNamespace(mask=scale(2))

    def call(block, F, x):
        import module_with_a_mask

        return F.broadcast_mul(x, module_with_a_mask.mask)

    return Body(call)


def library_holders():
    masks = {"a": scale(2)}
    return Body(
        lambda b, F, x: times_all([b.proxy["a"], b.chain["a"], b.weak["a"], b.cached()], F, x),
        proxy=types.MappingProxyType(masks),
        chain=collections.ChainMap({}, masks),
        weak=weakref.WeakValueDictionary(masks),
        cached=functools.lru_cache(maxsize=0)(lambda: masks["a"]),
        masks=masks,
    )


def replace_masks(net, factor):
    net.masks["a"] = net.weak["a"] = scale(factor)


def swap(net):
    net.a, net.b = net.b, net.a


def grid(*arrays):
    return object_array(*arrays).reshape(2, -1)


def weighted(block, F, x):
    for (i, j), one in np.ndenumerate(block.masks):
        x = F.broadcast_add(x, one * (i + 10 * j))
    return x


class Holder:
    def __init__(self, kept):
        self.kept = kept

    def get(self):
        return self.kept


class Slots:
    __slots__ = ("kept",)

    def __init__(self, kept):
        self.kept = kept


ALIVE = []  # referents of weak references


def weakly_held(kept):
    ALIVE.append(Holder(kept))
    return weakref.ref(ALIVE[-1])


kept_of, called, first_of = attrgetter("kept"), lambda held: held(), itemgetter(0)
# name -> (function that puts an array into an object, function that returns the array)
HOLDERS = {
    "object": (Holder, kept_of),
    "object with slots": (Slots, kept_of),
    "namespace": (lambda kept: types.SimpleNamespace(kept=kept), kept_of),
    "function": (lambda kept: lambda: kept, called),
    "partial": (lambda kept: functools.partial(lambda one: one, kept), called),
    "bound method": (lambda kept: Holder(kept).get, called),
    "weak reference": (weakly_held, lambda held: held().kept),
    "list": (lambda kept: [kept], first_of),
    "tuple": (lambda kept: (kept,), first_of),
    "list of an object": (lambda kept: [Holder(kept)], lambda held: held[0].kept),
    "object of a list": (lambda kept: Holder([kept]), lambda held: held.kept[0]),
}


def shared_by_attributes(make, read):
    def call(block, F, x):
        return F.broadcast_add(F.broadcast_mul(x, read(block.a)), read(block.b))

    held = make(scale(2))
    return Body(call, a=held, b=held)


def shared_by_items(make, read):
    def call(block, F, x):
        first, last = [read(held) for held in block.all]
        return F.broadcast_add(F.broadcast_mul(x, first), last)

    return Body(call, all=[make(scale(2))] * 2)


def shared_by_children(make, read):
    def call(block, F, x):
        return F.broadcast_add(F.broadcast_mul(x, read(block.held)), read(block.held))

    held = make(scale(2))
    children = [Body(call, held=held) for _ in range(2)]
    return Body(lambda b, F, x: b.b(b.a(x)), a=children[0], b=children[1])


def shared_with_layers(make, read):
    held = make(Times(2))
    return Body(lambda b, F, x: read(b.b)(read(b.a)(x) + 1), a=held, b=held)


# how an object is shared -> (function that builds a block, changes of it one after the other)
SHARED = {
    "of two attributes": (
        shared_by_attributes,
        lambda make: [
            lambda n: setattr(n, "b", make(scale(3))),
            lambda n: setattr(n, "a", n.b),
            lambda n: setattr(n, "a", make(scale(5))),
            swap,
        ],
    ),
    "of two items": (
        shared_by_items,
        lambda make: [
            lambda n: setitem(n.all, 0, make(scale(3))),
            lambda n: setitem(n.all, 1, n.all[0]),
            lambda n: setitem(n.all, 1, make(scale(5))),
            lambda n: n.all.reverse(),
        ],
    ),
    "of two children": (
        shared_by_children,
        lambda make: [
            lambda n: setattr(n.a, "held", make(scale(3))),
            lambda n: setattr(n.b, "held", n.a.held),
            lambda n: setattr(n.b, "held", make(scale(5))),
        ],
    ),
    "with a layer": (
        shared_with_layers,
        lambda make: [
            lambda n: setattr(n, "b", make(Times(3))),
            lambda n: setattr(n, "a", n.b),
            lambda n: setattr(n, "a", make(Times(5))),
        ],
    ),
}
# name -> (function that builds a block, changes of it one after the other)
CASES = {
    **{
        f"{name} {how}": (functools.partial(build, make, read), changes(make))
        for how, (build, changes) in SHARED.items()
        for name, (make, read) in HOLDERS.items()
    },
    "add": (lambda: sequential(2), [lambda n: n.add(Times(3)), lambda n: n.add(Times(5))]),
    "add to an empty one": (lambda: sequential(), [lambda n: n.add(Times(3))]),
    "register": (
        lambda: Body(lambda b, F, x: in_turn(b._children.values(), x)),
        [lambda n: n.register_child(Times(3)), lambda n: n.register_child(Times(5), "0")],
    ),
    "attribute": (
        lambda: Body(lambda b, F, x: b.a(x), a=Times(2)),
        [lambda n: setattr(n, "a", Times(3)), lambda n: setattr(n, "a", Times(5))],
    ),
    "swap": (lambda: Body(lambda b, F, x: b.b(b.a(x) + 1), a=Times(2), b=Times(3)), [swap, swap]),
    "children": (
        lambda: sequential(2, 3),
        [
            lambda n: setitem(n._children, "1", Times(5)),
            lambda n: n._children.pop("0"),
            lambda n: n._children.update({"2": Times(7)}),
            lambda n: n._children.setdefault("3", Times(11)),
            lambda n: n._children.popitem(),
            lambda n: setattr(n, "_children", collections.OrderedDict(a=Times(13))),
            lambda n: n._children.clear(),
        ],
    ),
    "copied": (
        lambda: copy.deepcopy(sequential(2, 3)),
        [lambda n: n.add(Times(3)), lambda n: n._children.popitem()],
    ),
    "parameter": (lambda: Times(2), [lambda n: setitem(n._reg_params, "factor", Times(3).factor)]),
    "list of blocks": (
        lambda: Body(lambda b, F, x: in_turn(b.layers, x), layers=[Times(2), Times(3)]),
        [
            lambda n: n.layers.append(Times(5)),
            lambda n: setitem(n.layers, 0, Times(7)),
            lambda n: n.layers.reverse(),
            lambda n: setattr(n, "layers", [Times(11)]),
        ],
    ),
    "last of a list": (
        lambda: Body(lambda b, F, x: b.layers[-1](x), layers=[Times(2)]),
        [lambda n: n.layers.append(Times(5)), lambda n: n.layers.pop()],
    ),
    "dict of blocks": (
        lambda: Body(lambda b, F, x: in_turn(b.layers.values(), x), layers={"a": Times(2)}),
        [
            lambda n: setitem(n.layers, "b", Times(5)),
            lambda n: setitem(n.layers, "a", Times(7)),
            lambda n: n.layers.pop("a"),
        ],
    ),
    "blocks below a list": (
        body_in_a_list,
        [lambda n: n.hidden[0].add(Times(5)), lambda n: n.hidden[0]._children.pop("0")],
    ),
    "block of an object": (
        lambda: Body(lambda b, F, x: b.parts.first(x), parts=types.SimpleNamespace(first=Times(2))),
        [lambda n: setattr(n.parts, "first", Times(3))],
    ),
    "unregistered block": (
        unregistered,
        [lambda n, i=i: setitem(vars(n), "hidden", Times(i)) for i in (3, 5)],
    ),
    "parameters in a list": (
        with_parameters,
        [
            lambda n: n.scales.append(Times(5).factor),
            lambda n: setitem(n.scales, 0, Times(7).factor),
            lambda n: n.scales.pop(),
        ],
    ),
    "array": (
        lambda: Body(lambda b, F, x: F.broadcast_mul(x, b.mask), mask=scale(2)),
        [lambda n: setattr(n, "mask", scale(i)) for i in (3, 5)],
    ),
    "array or None": (
        lambda: Body(
            lambda b, F, x: x if b.mask is None else F.broadcast_mul(x, b.mask), mask=None
        ),
        [lambda n, v=v: setattr(n, "mask", v) for v in (scale(2), None, scale(3))],
    ),
    "array below a class's": (
        lambda: Body(
            lambda b, F, x: F.broadcast_mul(x, getattr(b, "mask", scale(7))), mask=scale(2)
        ),
        [lambda n: delattr(n, "mask"), lambda n: setattr(n, "mask", scale(3))],
    ),
    "list of arrays": (
        lambda: Body(lambda b, F, x: times_all(b.masks, F, x), masks=[scale(2), scale(3)]),
        [
            lambda n: n.masks.append(scale(5)),
            lambda n: n.masks.insert(0, scale(7)),
            lambda n: setitem(n.masks, 1, scale(11)),
            lambda n: setitem(n.masks, slice(1, 3), []),
            lambda n: setattr(n, "masks", [scale(13), scale(2), scale(3), scale(5)]),
            lambda n: setattr(n, "masks", (scale(13), scale(2), scale(3), scale(7))),
        ],
    ),
    "last array": (
        lambda: Body(lambda b, F, x: F.broadcast_mul(x, b.masks[-1]), masks=[scale(2)]),
        [lambda n: n.masks.append(scale(3)), lambda n: n.masks.append(scale(5))],
    ),
    "dict of arrays": (
        lambda: Body(lambda b, F, x: times_all(b.masks.values(), F, x), masks={"a": scale(2)}),
        [
            lambda n: setitem(n.masks, "b", scale(3)),
            lambda n: n.masks.pop("a"),
            lambda n: n.masks.update(b=scale(5), c=scale(7)),
        ],
    ),
    "nested": (
        lambda: Body(
            lambda b, F, x: times_all([m for ms in b.masks.values() for m in ms], F, x),
            masks={"a": [scale(2)]},
        ),
        [
            lambda n: n.masks["a"].append(scale(3)),
            lambda n: setitem(n.masks, "b", [scale(5)]),
            lambda n: setitem(n.masks, "a", [scale(7), scale(2)]),
        ],
    ),
    "items": (
        lambda: Body(
            lambda b, F, x: times_all([m for m in b.masks if m is not None], F, x),
            masks=[scale(2), None],
        ),
        [lambda n: setitem(n.masks, 1, scale(3)), lambda n: setitem(n.masks, 0, None)],
    ),
    "one list twice": (
        shared_list,
        [
            lambda n: n.a.append(scale(3)),
            lambda n: setattr(n, "b", n.other),
            lambda n: setattr(n, "a", n.other),
        ],
    ),
    "deep": (
        deep_list,
        [
            lambda n: innermost(n).masks.append(scale(3)),
            lambda n: setitem(innermost(n).masks, 0, scale(5)),
            lambda n: setattr(innermost(n), "masks", [scale(7)]),
        ],
    ),
    "closure": (closure, [lambda n: n.change()] * 2),
    "context variable": (variable_body, [lambda n, i=i: VARIABLE.set(scale(i)) for i in (3, 5)]),
    "context variable with a default": (
        lambda: Body(lambda b, F, x: F.broadcast_mul(x, WITH_DEFAULT.get())),
        [lambda n, i=i: WITH_DEFAULT.set(scale(i)) for i in (3, 5)],
    ),
    "shape of an object array": (
        lambda: Body(weighted, masks=grid(*map(scale, (2, 3, 5, 7)))),
        [
            lambda n: setattr(n, "masks", n.masks.reshape(4, 1)),
            lambda n: setattr(n, "masks", n.masks.reshape(1, 4)),
        ],
    ),
    "object array": (
        lambda: Body(
            lambda b, F, x: times_all(b.masks, F, x), masks=object_array(scale(2), scale(3))
        ),
        [
            lambda n: setitem(n.masks, 0, scale(5)),
            lambda n: setattr(n, "masks", object_array(*map(scale, (7, 2, 3)))),
        ],
    ),
    "overridden by a subclass": (
        derived,
        [lambda n: setattr(BASE, "mask", scale(5)), lambda n: setattr(Body, "mask", scale(7))],
    ),
    "subclass of list": (
        masks,
        [
            lambda n: BASE.masks.update(a=scale(7)),
            lambda n: setattr(n.masks, "last", scale(3)),
            lambda n: n.masks.append(scale(2)),
        ],
    ),
    "module imported in the forward": (
        imported_module,
        [lambda n: setattr(sys.modules["module_with_a_mask"], "mask", scale(3))],
    ),
    "holders of the standard library": (
        library_holders,
        [lambda n, i=i: replace_masks(n, i) for i in (3, 5)],
    ),
    "weak reference": (
        weakly_owned,
        [lambda n: setattr(n.owner(), "mask", scale(3))],
    ),
}


class Outer(gluon.HybridBlock):
    """Has the changing block two levels below."""

    def __init__(self, block):
        super().__init__()
        self.middle = gluon.nn.HybridSequential()
        self.middle.add(block, Times(1))

    def hybrid_forward(self, F, x):
        return (self.middle(x) + 1).as_in_context(on(1)) * 2


def caller(mode, block):
    """Returns a function that calls the block within an `Outer`, in the given mode."""
    outer = Outer(block)
    if mode == "block itself":
        block.hybridize()
    elif mode == "hybridized":
        outer.hybridize()
    elif mode == "pipelined":
        outer.hybridize(pipeline=mx.parallel.Pipeline(2))
    elif mode == "step":
        step = mx.parallel.TrainStep(
            outer, lambda out, label: (out * label).sum(axis=1), None, mx.parallel.Pipeline(2)
        )
        ones = nd.ones((4, 3), ctx=on(1))
        return lambda x: step(x, ones)
    return outer


@pytest.mark.parametrize("mode", ["block itself", "hybridized", "pipelined", "step"])
@pytest.mark.parametrize("name", CASES)
def test_next_call_sees_change_of_block(name, mode):
    build, changes = CASES[name]
    contextvars.copy_context().run(check_changes, build, changes, mode)


def check_changes(build, changes, mode):
    block, x = build(), array(0, (4, 3))
    eager, compiled = Outer(block), caller(mode, block)
    for change in [lambda n: None, *changes]:
        change(block)
        active = block._active
        block._active = False
        expected = eager(x).asnumpy()
        block._active = active
        for _ in range(2):
            found = compiled(x).asnumpy()
            assert same(found, expected.sum(axis=1) if mode == "step" else expected)


@pytest.mark.parametrize("mode", ["hybridized", "pipelined"])
def test_unchanged_blocks_are_not_traced_again(mode):
    traces = []

    def call(block, F, x):
        traces.append(1)
        return times_all(block.masks, F, in_turn(block.layers, x))

    body = Body(call, masks=[scale(2)], layers=[Times(2), Times(3)], unrelated=[])
    net = caller(mode, body)
    net(array(0, (4, 3)))
    first = len(traces)
    for factor in range(3):
        body.masks[0][:] = factor
        if mode == "hybridized":
            body.masks[0] = scale(factor)
        body.unrelated = [factor]
        sequential(2, 3)  # other blocks change
        net(array(factor, (4, 3)))
    assert len(traces) == first


SHARED = scale(2)


def shared_mask():
    return SHARED


def test_shared_code_adds_few_conditions():
    """Blocks of one class share its methods, and functions of one module share its globals."""

    class Masked(gluon.HybridBlock):
        def mask(self):
            return shared_mask()

        def hybrid_forward(self, F, x):
            return F.broadcast_mul(x, self.mask())

    net = gluon.nn.HybridSequential()
    for _ in range(50):
        net.add(Masked(), Body(lambda b, F, x: F.broadcast_mul(x, shared_mask())))
    assert len(find(net, [SHARED]).conditions) <= 4


def test_unregistered_layer_of_unknown_shape_joins_a_hybridized_block():
    def dense():
        layer = gluon.nn.Dense(3)
        layer.initialize(ctx=on(0))
        return layer

    mx.random.seed(1)
    net = Body(lambda b, F, x: in_turn(b.layers, x), layers=[dense()])
    net.hybridize()
    x = array(0, (4, 3))
    with pytest.warns(UserWarning, match="unregistered"):
        net(x)
        net.layers.append(dense())
        found = net(x)
    assert same(found.asnumpy(), in_turn(net.layers, x).asnumpy())


def test_traces_of_several_shapes_watch_the_same_list():
    def call(block, F, x):
        written = nd.array(np.ones((1, 3)), ctx=x.context)  # each trace captures a new array
        written[:] = 2
        return F.broadcast_mul(times_all(block.masks, F, x), written)

    net = Body(call, masks=[scale(2)])
    net.hybridize()
    xs = [array(0, (rows, 3)) for rows in (4, 5, 4)]
    for x in xs:
        net(x)
    net.masks.append(scale(3))
    for x in xs:
        assert same(net(x).asnumpy(), x.asnumpy() * 12)
