"""Hybridized blocks keep eager semantics: values, gradients of all orders and memory sharing."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from support.captures import MODES, array, check_alike, first_of, make, paused
from support.compare import same_bits
from support.devices import on
from support.training import variable

# --- Gradients of all orders ----------------------------------------------------------------------


def moved(f):
    """Runs f on another device and copies the result back."""
    return lambda F, x: f(F, x.as_in_context(on(1))).as_in_context(on(0))


# Ops that are identities for values but stop gradients, placed before ops that rewrites match.
STOPS = {
    "BlockGrad": lambda F, x: F.BlockGrad(x),
    "stop_gradient": lambda F, x: F.stop_gradient(x),
    "detach": lambda F, x: x.detach(),
    "gradientmultiplier": lambda F, x: F.contrib.gradientmultiplier(x, scalar=3.0),
    "make_loss": lambda F, x: F.make_loss(x),
    "moved": moved(lambda F, x: F.BlockGrad(x)),
    "reshaped": lambda F, x: F.BlockGrad(x.reshape((-1,))).reshape_like(x),
    "twice": lambda F, x: F.contrib.gradientmultiplier(F.make_loss(F.BlockGrad(x) + x), scalar=2.0),
}
PLACES = {
    "product": lambda F, x, w, stop: x * w * stop(F, x),
    "straight through": lambda F, x, w, stop: w * (x + stop(F, F.round(x) - x)),
    "behind a transpose": lambda F, x, w, stop: F.dot(stop(F, F.transpose(x)), x * w),
    "before a transpose": lambda F, x, w, stop: F.dot(F.transpose(stop(F, x)), x * w),
    "transposed weight": lambda F, x, w, stop: F.dot(x, stop(F, F.transpose(x * w))),
    "swapped": lambda F, x, w, stop: F.batch_dot(
        stop(F, F.swapaxes(F.expand_dims(x, 0), 1, 2)), F.expand_dims(w * w, 0)
    ),
    "queries": lambda F, x, w, stop: attention(
        F, stop(F, F.expand_dims(x, 0)), F.expand_dims(x * w, 0)
    ),
    "scores": lambda F, x, w, stop: attention(
        F, F.expand_dims(x, 0), F.expand_dims(x * w, 0), scores=lambda s: stop(F, s)
    ),
    "weights": lambda F, x, w, stop: attention(
        F, F.expand_dims(x, 0), F.expand_dims(x * w, 0), weights=lambda s: stop(F, s)
    ),
    "relu": lambda F, x, w, stop: F.relu(stop(F, F.relu(x * w - 0.3))) * w,
    "cast": lambda F, x, w, stop: F.cast(stop(F, F.cast(x * w, "float64")), "float32") * x,
    "twins": lambda F, x, w, stop: F.exp(x) * F.exp(stop(F, x)) * F.exp(x * w),
}


def attention(F, q, k, scores=lambda s: s, weights=lambda s: s):
    return F.batch_dot(weights(F.softmax(scores(F.batch_dot(q, k, transpose_b=True) * 0.5))), k)


def orders(net, x):
    """Gradients of x and w as NumPy arrays: by backward, by create_graph, and of a function of
    those.

    Gradients that are stopped completely keep the initial value 9.
    """
    leaves = [x, net.w.data()]
    for leaf in leaves:
        leaf.attach_grad()
        leaf.grad[:] = 9
    with autograd.record():
        y = net(x)
        loss = (y * nd.arange(y.size).reshape(y.shape)).sum()
    loss.backward()
    found = [y.asnumpy(), *[leaf.grad.asnumpy() for leaf in leaves]]
    with autograd.record():
        y = net(x)
        loss = (y * nd.arange(y.size).reshape(y.shape)).sum()
        try:
            grads = autograd.grad(loss, leaves, create_graph=True, retain_graph=True)
            penalty = sum((g * g + g * leaf).sum() for g, leaf in zip(grads, leaves))
        except mx.MXNetError as error:
            return [*found, error]
    penalty.backward()
    return [*found, *[g.asnumpy() for g in grads], *[leaf.grad.asnumpy() for leaf in leaves]]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("stop", STOPS)
def test_gradients_of_all_orders_match_eager_through_stops(stop, place):
    def body(F, x, w, _):
        return PLACES[place](F, x, w, STOPS[stop])

    x = array(0)
    eager = orders(make(body, "eager"), x)
    for mode in ("hybridized", "exact"):
        check_alike(eager, orders(make(body, mode), x), mode)


# --- Memory sharing -------------------------------------------------------------------------------

# Ops that return all or some elements of their input.
IDENTITIES = {
    "itself": lambda F, x: x,
    "reshape": lambda F, x: F.reshape(x, shape=(-1,)),
    "reshape to the same": lambda F, x: F.reshape(x, shape=(0, 0)),
    "reshape_like": lambda F, x: F.reshape_like(x, F.transpose(x)),
    "flatten": lambda F, x: F.flatten(x),
    "expand_dims": lambda F, x: F.expand_dims(x, axis=0),
    "squeeze": lambda F, x: F.squeeze(F.expand_dims(x, axis=1)),
    "BlockGrad": lambda F, x: F.BlockGrad(x),
    "make_loss": lambda F, x: F.make_loss(x),
    "gradientmultiplier": lambda F, x: F.contrib.gradientmultiplier(x, scalar=2.0),
    "method reshape": lambda F, x: x.reshape((-1,)),
    "method flatten": lambda F, x: x.flatten(),
    "method expand_dims": lambda F, x: x.expand_dims(0),
    "method squeeze": lambda F, x: x.squeeze(),
    "method reshape_like": lambda F, x: x.reshape_like(x.T),
    "detach": lambda F, x: x.detach(),
    "first": lambda F, x: x[0],
    "rows": lambda F, x: x[0:1],
    "all": lambda F, x: x[:],
    "column": lambda F, x: x[:, 0],
    "new axis": lambda F, x: x[None],
    "identity": lambda F, x: F.identity(x),
    "copy": lambda F, x: x.copy(),
    "times one": lambda F, x: x * 1,
    "minus zero": lambda F, x: x - 0,
    "negative twice": lambda F, x: -(-x),
    "relu twice": lambda F, x: F.relu(F.relu(x)),
    "clip": lambda F, x: F.clip(x, -np.inf, np.inf),
    "cast": lambda F, x: F.cast(x, "float32"),
    "astype": lambda F, x: x.astype("float32"),
    "astype without copy": lambda F, x: x.astype("float32", copy=False),
    "cast and back": lambda F, x: F.cast(F.cast(x, "float64"), "float32"),
    "dropout": lambda F, x: F.Dropout(x, p=0.0),
    "slice": lambda F, x: F.slice(x, begin=(0, 0), end=(None, None)),
    "slice_axis": lambda F, x: F.slice_axis(x, axis=0, begin=0, end=None),
    "broadcast_to": lambda F, x: F.broadcast_to(x, shape=(0, 0)),
    "tile": lambda F, x: F.tile(x, reps=(1, 1)),
    "repeat": lambda F, x: F.repeat(x, repeats=1, axis=0),
    "concat": lambda F, x: F.concat(x, dim=0),
    "add_n": lambda F, x: F.add_n(x),
    "where": lambda F, x: F.where(x > 0, x, x),
    "transpose twice": lambda F, x: F.transpose(F.transpose(x)),
    "swapaxes": lambda F, x: F.swapaxes(x, 0, 0),
    "the device it is on": lambda F, x: x.as_in_context(on(0)),
    "there and back": lambda F, x: x.as_in_context(on(1)).as_in_context(on(0)),
    "elsewhere": lambda F, x: F.flatten(x.as_in_context(on(1))),
    "split": lambda F, x: F.split(x, num_outputs=1, axis=0),
    "paused": lambda F, x: paused(lambda: F.reshape(x, shape=(0, 0))),
    "pick of a loop": lambda F, x: F.contrib.foreach(lambda row, s: (row, s), x, x)[1],
}


def whole(value):
    """Returns the value in the shape that bodies expect.

    If it lacks elements, returns another value of that shape.
    """
    return (
        value
        if value.shape == (2, 3)
        else value.reshape((2, 3))
        if value.size == 6
        else value.reshape((-1, 1))[0:1].broadcast_to((2, 3))
    )


# Returned values, derived from an input, a parameter, a captured array and a computed value.
RETURNS = {
    "one": lambda F, x, w, c, f: f(F, x),
    "of a parameter": lambda F, x, w, c, f: [f(F, w), x + 0],
    "of a captured array": lambda F, x, w, c, f: [f(F, c), x + 0],
    "of a value": lambda F, x, w, c, f: [f(F, x * w)],
    "with its source": lambda F, x, w, c, f: [x, f(F, x), w, f(F, w)],
    "with a value": lambda F, x, w, c, f: (lambda z: [f(F, z), z, f(F, z)])(F.exp(x)),
    "twice": lambda F, x, w, c, f: (lambda z: [z, z, f(F, whole(z))])(f(F, x)),
    "in a chain": lambda F, x, w, c, f: (
        lambda z: [F.expand_dims(z, axis=0), F.flatten(f(F, whole(z))), F.BlockGrad(z)]
    )(f(F, F.reshape(x, shape=(2, 3)))),
}


def sharing(net, x, c, record):
    """Returns the pairs of arrays that change when one of the results is written."""
    with autograd.record(record):
        outs = net(x)
    outs = list(outs) if isinstance(outs, (list, tuple)) else [outs]
    arrays = [x, net.w.data(), c, *outs]
    values = [a.asnumpy() for a in arrays]
    shared = set()
    for i in range(3, len(arrays)):
        arrays[i][:] = 70 + i
        shared.update(
            (i, k) for k in range(len(arrays)) if k != i and (arrays[k].asnumpy() == 70 + i).any()
        )
    return values, shared


def all_sharing(name, returned, mode, record):
    def body(F, x, w, c):
        return RETURNS[returned](F, x, w, c, lambda F, v: first_of(IDENTITIES[name](F, v)))

    x, c = array(0), array(1)
    if record:
        x.attach_grad()
        c.attach_grad()
    net = make(body, mode, c)
    net(array(3))
    return sharing(net, x, c, record)


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("returned", RETURNS)
def test_results_share_memory_exactly_as_in_eager(returned, record):
    for name in IDENTITIES:
        values, eager = all_sharing(name, returned, "eager", record)
        for mode in ("hybridized", "exact"):
            found, shared = all_sharing(name, returned, mode, record)
            assert all(map(np.array_equal, values, found)), (name, mode)
            # Rows are views when not recording, but a compiled call copies them.
            assert (
                shared <= eager if name in ("first", "rows") and not record else shared == eager
            ), (name, mode)


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("mode", ["eager", "hybridized", "exact"])
@pytest.mark.parametrize("shape", [(1,), (3,), (1, 4), (3, 4)])
def test_full_row_selection_shares_memory(shape, mode, record):
    last = shape[0] - 1
    for body in (
        lambda F, x, w, c: x[0],
        lambda F, x, w, c: x[-1],
        lambda F, x, w, c: x[0:1],
        lambda F, x, w, c: x[last:],
        lambda F, x, w, c: x[:],
        lambda F, x, w, c: x[0 : last + 1],
    ):
        x = nd.zeros(shape, ctx=on(0))
        if record:
            x.attach_grad()
        net = make(body, mode, array(1))
        with autograd.record(record):
            row = net(x)
        row[:] = 5
        everything = row.size == x.size
        # Eager execution returns a view of some rows only when not recording.
        assert (x.asnumpy() == 5).any() == (everything or (mode == "eager" and not record))


def test_results_survive_input_overwrite():
    net = gluon.nn.Flatten()
    net.hybridize()
    buffer, kept = nd.zeros((2, 2, 2), ctx=on(0)), []
    for i in range(3):
        buffer[:] = i
        kept.append(net(buffer))
    assert [y.asnumpy()[0, 0] for y in kept] == [0, 1, 2]


# --- autograd.pause() in a block ------------------------------------------------------------------

PAUSES = {
    "an op": lambda F, x, w, _: paused(lambda: x * x) + x * w,
    "a parameter": lambda F, x, w, _: paused(lambda: x * w) + x,
    "a view": lambda F, x, w, _: paused(lambda: x.reshape((3, 2))).reshape((2, 3)) * x * w,
    "an op's view": lambda F, x, w, _: paused(lambda: F.expand_dims(x, 0))[0] * x * w,
    "rows": lambda F, x, w, _: paused(lambda: x[0:1]) * x * w,
    "the value itself": lambda F, x, w, _: paused(lambda: x) * w,
    "twins": lambda F, x, w, _: paused(lambda: F.exp(x)) * F.exp(x) * w,
    "several results": lambda F, x, w, _: (
        F.concat(*paused(lambda: F.split(x, num_outputs=3, axis=1)), dim=1) * x * w
    ),
    "a transpose before a product": lambda F, x, w, _: F.dot(paused(lambda: F.transpose(x)), x * w),
    "recorded within": lambda F, x, w, _: paused(lambda: recorded(lambda: x * x * w)) + x,
    "paused twice": lambda F, x, w, _: paused(lambda: paused(lambda: x * w) * 2) + x * w,
    "elsewhere": lambda F, x, w, _: (
        paused(lambda: x.as_in_context(on(1))).as_in_context(on(0)) * x * w
    ),
    "an unrolled loop": lambda F, x, w, _: (
        paused(lambda: F.contrib.foreach(lambda row, s: (row * s, s + row), x * w, x[0])[0]) + x * w
    ),
    "in an unrolled loop": lambda F, x, w, _: F.contrib.foreach(
        lambda row, s: (row * paused(lambda: s * row), s + row), x * w, x[0]
    )[0],
    "a loop": lambda F, x, w, _: (
        paused(
            lambda: F.contrib.while_loop(
                lambda i, s: i < 2, lambda i, s: ([], [i + 1, s * w]), [F.zeros((1,)), x], 3
            )[1][1]
        )
        + x * w
    ),
    "in a loop": lambda F, x, w, _: F.contrib.while_loop(
        lambda i, s: i < 2,
        lambda i, s: ([], [i + 1, s * w + paused(lambda: s * x)]),
        [F.zeros((1,)), x],
        3,
    )[1][1],
    "a branch": lambda F, x, w, _: (
        paused(lambda: F.contrib.cond(F.sum(x) > 0, lambda: x * w, lambda: x)) * x + w
    ),
    "rows by a mask": lambda F, x, w, _: (
        paused(lambda: F.contrib.boolean_mask(x, x[:, 0] > 0)) * x * w
    ),
}


def recorded(function):
    with autograd.record():
        return function()


@pytest.mark.parametrize("name", PAUSES)
def test_autograd_pause_in_block_matches_eager(name):
    x = array(0)
    eager = orders(make(PAUSES[name], "eager"), x)
    for mode in ("hybridized", "exact"):
        net = make(PAUSES[name], mode)
        with autograd.train_mode():
            net(x)  # a program compiled without recording must not interfere
        check_alike(eager, orders(net, x), mode)


def test_is_recording_in_block_reflects_current_call():
    net = make(lambda F, x, w, _: x + 1 if autograd.is_recording() else x + 2, "hybridized")
    net.w.grad_req = "null"
    x = array(0)
    with autograd.train_mode():
        for record in (False, True, False):
            with autograd.record() if record else autograd.train_mode():
                assert np.array_equal(net(x).asnumpy(), x.asnumpy() + (1 if record else 2))


def test_unrecorded_call_is_not_on_the_tape():
    c = variable(array(1))
    net = make(lambda F, x, w, c: x * c, "hybridized", c)
    net.w.grad_req = "null"
    with autograd.record():
        net(array(0)).backward()
    with autograd.train_mode():
        y = net(array(0))
    with pytest.raises(mx.MXNetError, match="not computed from variables"):
        y.backward()


# --- Parameters that a result does not depend on --------------------------------------------------

REACHES = {
    "unused": (lambda F, a, b: a, False),
    "detached": (lambda F, a, b: a + b.detach(), False),
    "paused": (lambda F, a, b: paused(lambda: b * 2) + a, False),
    "of another result": (lambda F, a, b: (a, b), False),
    "BlockGrad": (lambda F, a, b: a + F.BlockGrad(b), True),
    "without a derivative": (lambda F, a, b: a + F.sign(b) + F.zeros_like(b), True),
    "times zero": (lambda F, a, b: a + 0 * b, True),
}


class Two(gluon.HybridBlock):
    def __init__(self, body):
        super().__init__()
        self.body = body
        self.a, self.b = gluon.nn.Dense(1, in_units=2), gluon.nn.Dense(1, in_units=2)
        self.initialize(mx.init.One(), ctx=on(0))

    def hybrid_forward(self, F, x):
        return self.body(F, self.a(x), self.b(x))


@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REACHES)
def test_parameter_gradient_is_written_only_if_the_loss_reaches_it(name, mode, grad_req):
    body, reached = REACHES[name]
    net = Two(body)
    net.collect_params().setattr("grad_req", grad_req)
    if MODES[mode] is not None:
        net.hybridize(**MODES[mode])
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "wd": 0.1})
    for _ in range(2):
        net.b.weight.grad()[:] = 5
        with autograd.record():
            y = net(nd.ones((3, 2), ctx=on(0)))
            loss = (y[0] if isinstance(y, (list, tuple)) else y).sum()
        loss.backward()
        left = not reached or grad_req == "add"
        assert (net.b.weight.grad().asnumpy() == (5 if left else 0)).all()
        if reached:
            trainer.step(1)
        else:
            with pytest.raises(UserWarning, match="stale"):
                trainer.step(1)
            trainer.step(1, ignore_stale_grad=True)
        assert (net.b.weight.data().asnumpy() == 1).all() == (not reached)


def test_train_step_leaves_unreached_parameters_unchanged():
    from mpgluon.parallel import Pipeline, TrainStep

    for name, (body, reached) in REACHES.items():
        if name == "of another result":
            continue
        net = Two(body)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "wd": 0.1})
        step = TrainStep(net, lambda y, label: y, trainer, Pipeline(2))
        x = nd.ones((4, 2), ctx=on(0))
        try:
            step(x, x)
        except UserWarning:
            assert not reached, name
        assert (net.b.weight.data().asnumpy() == 1).all() == (not reached), name


class ByName(mx.gluon.HybridBlock):
    """Takes and returns dicts of arrays, as Sockeye's losses do."""

    def forward(self, outputs, labels):
        return super().forward(outputs["scores"], labels["target"])

    def hybrid_forward(self, F, x, y):
        return {"sum": F.sum(x * y), "parts": [x + y, {"product": x * y}]}


def test_hybridized_block_accepts_and_returns_dicts():
    x, y = mx.nd.array([1, 2]), mx.nd.array([3, 4])
    x.attach_grad()
    for active in (False, True):
        net = ByName()
        net.hybridize(active)
        for labels in ({"target": y}, {"other": x, "target": y}, {"target": 2 * y}):
            with mx.autograd.record():
                found = net({"scores": x}, labels)
            found["sum"].backward()
            target = labels["target"].asnumpy()
            assert x.grad.asnumpy().tolist() == target.tolist()
            assert found["parts"][0].asnumpy().tolist() == (x.asnumpy() + target).tolist()
            product = found["parts"][1]["product"]
            assert product.asnumpy().sum() == found["sum"].asscalar()
    with pytest.raises(
        ValueError, match="or nested lists, tuples or dicts of them, but got object"
    ):
        net({"scores": object()}, {"target": y})


FLAGGED = {
    "all_finite": lambda F, x: (x * 2, F.all_finite(x)),
    "multi_all_finite": lambda F, x: (x * 2, F.multi_all_finite(x, x * x, num_arrays=2)),
    "in the middle": lambda F, x: (x * 2, F.all_finite(x * x) * 3 + x),
    "foreach": lambda F, x: F.contrib.foreach(
        lambda row, s: ([row * 2, F.all_finite(row)], s + row), x, x[0]
    )[0],
    "while_loop": lambda F, x: F.contrib.while_loop(
        lambda s, i: i < 2, lambda s, i: ([s * 2, F.all_finite(s)], [s * s, i + 1]), [x, x[0, 0]], 3
    )[0],
    "cond": lambda F, x: F.contrib.cond(
        x.sum() > 0, lambda: [x * 2, F.all_finite(x)], lambda: [x, F.all_finite(x)]
    ),
}


@pytest.mark.parametrize("options", [{}, {"recompute": True}, {"recompute": 10**6}])
@pytest.mark.parametrize("name", FLAGGED)
def test_output_without_gradient_fails_only_if_a_gradient_arrives(name, options):
    def run(net, head):
        x = variable(nd.array([[1.0, 2], [0, 1]]))
        with autograd.record():
            outputs = net(x)
        try:
            outputs[head].backward()
        except mx.MXNetError as error:
            assert head == 1 and "has no gradient" in str(error)
            return []
        assert head == 0
        return [outputs[1].asnumpy(), x.grad.asnumpy()]

    eager, hybrid = (gluon.nn.HybridLambda(FLAGGED[name]) for _ in range(2))
    hybrid.hybridize(**options)
    for head in (0, 1):
        same_bits(run(hybrid, head), run(eager, head))
