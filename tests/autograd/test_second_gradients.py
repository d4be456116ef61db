"""Second and third gradients against PyTorch's in double precision.

Runs eager, hybridized and exact, on one device and two. The PyTorch references write normalizations
out because PyTorch's own treat the statistics as constants from the third order on.
"""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, nd
from mpgluon.gluon import nn
from support.devices import on

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def uniform(*shape, low=-1.0, high=1.0, seed=0):
    return np.random.RandomState(seed + len(shape) + sum(shape)).uniform(low, high, shape)


def normalised(x, gamma, beta, axes, axis, eps):
    centred = x - x.mean(axes, keepdim=True)
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    return centred / (centred.pow(2).mean(axes, keepdim=True) + eps).sqrt() * gamma.reshape(
        shape
    ) + beta.reshape(shape)


def batch_norm(axis, train=True, fix_gamma=False):
    def ours(x, gamma, beta):
        states = [
            nd.array(v, ctx=x.context, dtype="float64")
            for v in (np.full(gamma.shape, 0.1), np.full(gamma.shape, 0.7))
        ]
        return nd.BatchNorm(
            x,
            gamma,
            beta,
            *states,
            eps=1e-3,
            fix_gamma=fix_gamma,
            axis=axis,
            use_global_stats=not train,
        )

    def theirs(x, gamma, beta):
        gamma = torch.ones_like(gamma) if fix_gamma else gamma
        if train:
            return normalised(x, gamma, beta, [i for i in range(x.ndim) if i != axis], axis, 1e-3)
        states = [torch.full(gamma.shape, v, dtype=torch.float64) for v in (0.1, 0.7)]
        return functional.batch_norm(x, *states, gamma, beta, False, 0.1, 1e-3)

    return ours, theirs


def recurrent(mode, layers=1, bidirectional=False, hidden=3, inputs=4, lengths=None):
    directions, gates = 2 if bidirectional else 1, {"lstm": 4, "gru": 3}.get(mode, 1)
    count = 2 if mode == "lstm" else 1

    def ours(x, h, c, *weights):
        result = nd.RNN(
            x,
            nd.concat(*[w.reshape((-1,)) for w in weights], dim=0),
            h,
            *([c] if mode == "lstm" else []),
            *([] if lengths is None else [nd.array(lengths, ctx=x.context, dtype="int64")]),
            use_sequence_length=lengths is not None,
            state_size=hidden,
            num_layers=layers,
            mode=mode,
            bidirectional=bidirectional,
            state_outputs=True,
        )
        return nd.concat(*[part.reshape((-1,)) for part in result], dim=0)

    def theirs(x, h, c, *weights):
        half = len(weights) // 2
        flat = [
            w
            for k in range(half // 2)
            for w in (
                weights[2 * k],
                weights[2 * k + 1],
                weights[half + 2 * k],
                weights[half + 2 * k + 1],
            )
        ]
        cell = {
            "lstm": torch.lstm,
            "gru": torch.gru,
            "rnn_tanh": torch.rnn_tanh,
            "rnn_relu": torch.rnn_relu,
        }[mode]
        states = (h, c) if mode == "lstm" else h
        if lengths is None:
            result = cell(x, states, flat, True, layers, 0.0, False, bidirectional, False)
            return torch.cat([part.reshape(-1) for part in result])
        pack = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        order = pack.sorted_indices
        states = tuple(s[:, order] for s in states) if mode == "lstm" else states[:, order]
        packed, *last = cell(
            pack.data, pack.batch_sizes, states, flat, True, layers, 0.0, False, bidirectional
        )
        pack = torch.nn.utils.rnn.PackedSequence(packed, pack.batch_sizes, *pack[2:])
        output = torch.nn.utils.rnn.pad_packed_sequence(pack, total_length=len(x))[0]
        last = [s[:, pack.unsorted_indices] for s in last]
        return torch.cat([part.reshape(-1) for part in (output, *last)])

    state = (layers * directions, 2, hidden)
    shapes = [
        (gates * hidden, n)
        for layer in range(layers)
        for _ in range(directions)
        for n in (inputs if layer == 0 else hidden * directions, hidden)
    ]
    low = 0.1 if mode == "rnn_relu" else -1.0
    arrays = [uniform(5, 2, inputs, low=low), uniform(*state, low=low), uniform(*state, seed=1)]
    arrays += [uniform(*shape, seed=i, low=low) for i, shape in enumerate(shapes)] + [
        uniform(gates * hidden, seed=i, low=low) for i in range(len(shapes))
    ]
    return ours, theirs, arrays, [i for i in range(len(arrays)) if i != 2 or count == 2]


def channels(x):
    return [x, uniform(x.shape[1], low=0.5, high=1.5), uniform(x.shape[1])]


def signed_root(x):
    return x.sign() * x.abs().pow(1 / 3)


LABELS = np.array([1.0, 0.0, 4.0])
ZEROS = np.array([[0.7, -0.4, 0.9, 1.2], [0.0, 2.0, -3.0, 0.5], [0.0, 0.3, 0.0, -0.8]])
CASES = {
    "BatchNorm": (*batch_norm(1), channels(uniform(4, 3, 2, 2))),
    "BatchNorm, last axis": (*batch_norm(3), [uniform(4, 2, 2, 3), uniform(3), uniform(3, seed=1)]),
    "BatchNorm, fixed gamma": (*batch_norm(1, fix_gamma=True), channels(uniform(6, 3))),
    "BatchNorm, moving statistics": (*batch_norm(1, train=False), channels(uniform(4, 3, 2, 2))),
    "LayerNorm": (
        lambda x, g, b: nd.LayerNorm(x, g, b),
        lambda x, g, b: normalised(x, g, b, [1], 1, 1e-5),
        channels(uniform(4, 5)),
    ),
    "LayerNorm, axis 1": (
        lambda x, g, b: nd.LayerNorm(x, g, b, axis=1),
        lambda x, g, b: normalised(x, g, b, [1], 1, 1e-5),
        channels(uniform(2, 3, 4)),
    ),
    "GroupNorm": (
        lambda x, g, b: nd.GroupNorm(x, g, b, num_groups=2),
        lambda x, g, b: functional.group_norm(x, 2, g.repeat_interleave(3), b.repeat_interleave(3)),
        [uniform(3, 6, 2, 2), uniform(2), uniform(2, seed=1)],
    ),
    "InstanceNorm": (
        lambda x, g, b: nd.InstanceNorm(x, g, b),
        lambda x, g, b: normalised(x, g, b, [2], 1, 1e-3),
        channels(uniform(2, 3, 4)),
    ),
    "L2Normalization": (
        lambda x: nd.L2Normalization(x),
        lambda x: x / (x.flatten(1).pow(2).sum(1) + 1e-10).sqrt()[:, None, None],
        [uniform(3, 2, 4)],
    ),
    "LRN": (
        lambda x: nd.LRN(x, nsize=3, alpha=0.5),
        lambda x: functional.local_response_norm(x, 3, alpha=0.5, beta=0.75, k=2.0),
        [uniform(2, 5, 3, 3)],
    ),
    "softmax": (
        lambda x: nd.softmax(x, temperature=2.0),
        lambda x: functional.softmax(x / 2, -1),
        [uniform(3, 5)],
    ),
    "cross-entropy": (
        lambda x: -nd.pick(nd.log_softmax(x), nd.array(LABELS, ctx=x.context, dtype="float64")),
        lambda x: functional.cross_entropy(x, torch.tensor(LABELS).long(), reduction="none"),
        [uniform(3, 5)],
    ),
    "softmax_cross_entropy": (
        lambda x: nd.softmax_cross_entropy(x, nd.array(LABELS, ctx=x.context, dtype="float64")),
        lambda x: functional.cross_entropy(x, torch.tensor(LABELS).long(), reduction="sum").reshape(
            1
        ),
        [uniform(3, 5)],
    ),
    "Lp pooling": (
        lambda x: nd.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="lp", p_value=3),
        lambda x: functional.lp_pool2d(x, 3.0, 2),
        [uniform(1, 2, 4, 4, low=0.2)],
    ),
    "Lp pooling of both signs": (
        lambda x: nd.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="lp", p_value=3),
        lambda x: signed_root(4 * functional.avg_pool2d(x**3, 2)),
        [uniform(1, 2, 4, 4)],
    ),
    **{
        f"{name}, axis {axis}": (
            lambda x, op=name, axis=axis: getattr(nd, op)(x, axis=axis),
            lambda x, axis=axis: x.prod(axis),
            [ZEROS if axis else ZEROS.T.copy()],
        )
        for name in ("prod", "nanprod")
        for axis in (0, 1)
    },
    "PReLU": (
        lambda x, slope: nd.LeakyReLU(x, slope, act_type="prelu"),
        functional.prelu,
        [uniform(3, 4, 2), uniform(4)],
    ),
    "LSTM": recurrent("lstm"),
    "LSTM, two layers there and back": recurrent("lstm", 2, True),
    "GRU": recurrent("gru"),
    "GRU, two layers there and back": recurrent("gru", 2, True),
    "LSTM with lengths": recurrent("lstm", 2, True, lengths=[2, 5]),
    "GRU with lengths": recurrent("gru", 1, True, lengths=[5, 3]),
    "tanh cells with lengths": recurrent("rnn_tanh", 2, lengths=[1, 4]),
    "tanh cells": recurrent("rnn_tanh", 2),
    "relu cells": recurrent("rnn_relu"),
}


def penalised(function, arrays, wanted, grad, total):
    """Returns values, first gradients and a penalized loss.

    The loss adds the squares of the first gradients and a third-order term.
    """
    out = function(*arrays)
    weight = (out * 0 + 1).cumsum(0) if total is torch else nd.cumsum(out * 0 + 1, axis=0)
    loss = (out * out * weight * 0.1).sum()
    first = grad(loss, [arrays[i] for i in wanted])
    penalty = sum((g * g).sum() for g in first)
    second = grad(penalty, [arrays[i] for i in wanted])
    return out, list(first), loss + penalty + sum((g * g).sum() for g in second)


def theirs(function, values, wanted):
    arrays = [torch.tensor(v, requires_grad=i in wanted) for i, v in enumerate(values)]
    out, first, total = penalised(
        function,
        arrays,
        wanted,
        lambda y, x: torch.autograd.grad(y, x, create_graph=True, materialize_grads=True),
        torch,
    )
    total.backward()
    gradients = [
        torch.zeros_like(arrays[i]) if arrays[i].grad is None else arrays[i].grad for i in wanted
    ]
    return [a.detach().numpy() for a in (out, *first, *gradients)]


def ours(function, values, wanted, flags, there):
    arrays = [nd.array(v, ctx=on(0), dtype="float64") for v in values]
    for i in wanted:
        arrays[i].attach_grad()

    def placed(*given):
        return [function(*[a.as_in_context(there) for a in given]).as_in_context(on(0))]

    op = placed if flags is None else _core.CachedOp(placed, flags)
    with autograd.record():
        out, first, total = penalised(
            lambda *given: op(*given)[0],
            arrays,
            wanted,
            lambda y, x: autograd.grad(y, x, create_graph=True, retain_graph=True),
            nd,
        )
    total.backward()
    return [a.asnumpy() for a in (out, *first, *[arrays[i].grad for i in wanted])]


@pytest.mark.parametrize("name", CASES)
def test_gradients_up_to_third_order_match_pytorch(name):
    function, reference, values, *wanted = CASES[name]
    wanted = wanted[0] if wanted else range(len(values))
    expected = theirs(reference, values, wanted)
    bits = ours(function, values, wanted, None, on(0))
    for found, exact in zip(bits, expected, strict=True):
        np.testing.assert_allclose(
            found,
            exact,
            rtol=1e-7,
            atol=1e-9 * max(1.0, np.abs(exact).max(initial=0)),
            err_msg=name,
        )
    for flags in (None, {"exact": True}, {}):
        for there in (on(0), on(1)):
            for found, eager in zip(
                ours(function, values, wanted, flags, there), bits, strict=True
            ):
                np.testing.assert_array_equal(
                    found, eager, err_msg=f"{name}, {flags}, {there}"
                ) if flags != {} else np.testing.assert_allclose(
                    found, eager, rtol=1e-7, atol=1e-9 * max(1.0, np.abs(eager).max(initial=0))
                )


def chain_gradients(devices, options, order):
    """Gradients of a chain of layers on `devices`, with gradient penalties up to `order`."""
    mx.random.seed(3)
    net = nn.HybridSequential(prefix="chain_")
    with net.name_scope():
        net.add(
            nn.Dense(12, in_units=12, activation="tanh"),
            nn.LayerNorm(in_channels=12),
            nn.Dense(5, in_units=12),
        )
    net.initialize(mx.init.Xavier(), ctx=on(0))
    net.place({str(i): on(device) for i, device in enumerate(devices)})
    if options is not None:
        net.hybridize(**options)
    found = []
    for seed in range(3):
        x = nd.array(np.random.RandomState(seed).randn(5, 12), ctx=on(devices[0]))
        x.attach_grad()
        with autograd.record():
            total = (net(x) ** 2).sum()
            for _ in range(order - 1):
                (gradient,) = autograd.grad(total, [x], create_graph=True, retain_graph=True)
                total = total + (gradient**2).sum().as_in_context(total.context)
        total.backward()
        found += [x.grad, *[p.grad(p.list_ctx()[0]) for p in net.collect_params().values()]]
    return [array.asnumpy() for array in found]


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("options", [None, {}, {"exact": True}], ids=str)
def test_chain_gradients_do_not_depend_on_placement(options, order, capsys):
    """An op and its gradient ops read a value from another device through one shared copy."""
    expected = chain_gradients([0, 0, 0], options, order)
    for devices in [(0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]:
        for one, other in zip(chain_gradients(devices, options, order), expected):
            np.testing.assert_array_equal(one, other, err_msg=str(devices))


def test_gradient_of_value_read_twice_does_not_depend_on_placement():
    results = []
    for other in (0, 1):
        x = nd.array(uniform(7, 5), ctx=on(0), dtype="float32")
        x.attach_grad()
        with autograd.record():
            h = nd.tanh(x)
            moved = h.as_in_context(on(other))
            total = (moved * moved * 0.3).sum().as_in_context(on(0)) + (nd.exp(h) * 1.7).sum()
        total.backward()
        results.append(x.grad.asnumpy())
    np.testing.assert_array_equal(*results)
