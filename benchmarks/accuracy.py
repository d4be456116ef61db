"""Float32 errors of mpgluon and PyTorch against float64 results.

    python benchmarks/accuracy.py                          everything, a few minutes
    python benchmarks/accuracy.py --parts functions,sums   only some parts
    python benchmarks/accuracy.py --limit 2                fails if an error exceeds twice PyTorch's

For functions, the largest error in units in the last place (of the exact result as float32), over
samples of all magnitudes whose results are finite and normal numbers. For all others, the largest
error relative to the largest exact result or, if results have no common scale, to each result; the
parts state which. A row without a PyTorch value has no counterpart there.
"""

import argparse
import sys

import numpy as np
import torch
import torch.nn.functional as functional

from mpgluon import autograd, gluon, nd

PARTS = {}


def part(function):
    PARTS[function.__name__] = function
    return function


def ulps(result, exact, where=None):
    result, exact = np.asarray(result, "float64"), np.asarray(exact, "float64")
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype("float32")
        valid = np.isfinite(rounded) & (np.abs(rounded) >= 2.0**-126) & np.isfinite(exact)
        if where is not None:
            valid &= where
        unit = np.spacing(np.abs(rounded)).astype("float64")
        error = np.abs(result - exact) / unit
    return float(np.max(error[valid], initial=0.0))


def relative(result, exact):
    """Error relative to the largest result."""
    result, exact = np.asarray(result, "float64"), np.asarray(exact, "float64")
    return float(np.max(np.abs(result - exact)) / max(np.max(np.abs(exact)), 1e-300))


def each(result, exact):
    """Largest error relative to each result."""
    result, exact = np.asarray(result, "float64"), np.asarray(exact, "float64")
    return float(np.max(np.abs(result - exact) / np.abs(exact)))


def samples(low, high, count=300000, seed=0):
    """Samples of [low, high], half distributed uniformly and half uniformly by exponent."""
    random = np.random.RandomState(seed)
    even = random.uniform(max(low, -100), min(high, 100), count)
    largest = max(abs(low), abs(high))
    powers = np.exp2(random.uniform(-30, np.log2(largest), 2 * count)) * random.choice(
        [-1.0, 1.0], 2 * count
    )
    values = np.concatenate([even, powers]).astype("float32")
    return values[(values >= low) & (values <= high)]


# --- Functions of one number ----------------------------------------------------------------------

BIG = 3e38


def _functions():
    import scipy.special as special

    def of_torch(function):
        return lambda x: function(torch.from_numpy(x)).numpy()

    def gelu_exact(x):
        return x * special.ndtr(x)

    def softrelu(x):
        return np.logaddexp(0, x)

    table = [  # name, mpgluon, PyTorch, exact, range
        ("exp", nd.exp, torch.exp, np.exp, -104, 89),
        ("expm1", nd.expm1, torch.expm1, np.expm1, -104, 89),
        ("log", nd.log, torch.log, np.log, 1e-38, BIG),
        ("log1p", nd.log1p, torch.log1p, np.log1p, -1, BIG),
        ("log2", nd.log2, torch.log2, np.log2, 1e-38, BIG),
        ("log10", nd.log10, torch.log10, np.log10, 1e-38, BIG),
        ("sin", nd.sin, torch.sin, np.sin, -1e30, 1e30),
        ("cos", nd.cos, torch.cos, np.cos, -1e30, 1e30),
        ("tan", nd.tan, torch.tan, np.tan, -1e30, 1e30),
        ("arcsin", nd.arcsin, torch.asin, np.arcsin, -1, 1),
        ("arccos", nd.arccos, torch.acos, np.arccos, -1, 1),
        ("arctan", nd.arctan, torch.atan, np.arctan, -BIG, BIG),
        ("sinh", nd.sinh, torch.sinh, np.sinh, -88, 88),
        ("cosh", nd.cosh, torch.cosh, np.cosh, -88, 88),
        ("tanh", nd.tanh, torch.tanh, np.tanh, -20, 20),
        ("arcsinh", nd.arcsinh, torch.asinh, np.arcsinh, -1e18, 1e18),
        ("arccosh", nd.arccosh, torch.acosh, np.arccosh, 1, 1e18),
        ("arctanh", nd.arctanh, torch.atanh, np.arctanh, -1, 1),
        ("erf", nd.erf, torch.erf, special.erf, -6, 6),
        ("erfinv", nd.erfinv, torch.erfinv, special.erfinv, -1, 1),
        ("gamma", nd.gamma, None, special.gamma, -30, 35),
        ("gammaln", nd.gammaln, torch.lgamma, special.gammaln, -100, 1e30),
        ("sqrt", nd.sqrt, torch.sqrt, np.sqrt, 0, BIG),
        ("rsqrt", nd.rsqrt, torch.rsqrt, lambda x: 1 / np.sqrt(x), 1e-37, BIG),
        ("cbrt", nd.cbrt, None, np.cbrt, -BIG, BIG),
        ("rcbrt", nd.rcbrt, None, lambda x: 1 / np.cbrt(x), 1e-37, BIG),
        ("sigmoid", nd.sigmoid, torch.sigmoid, special.expit, -87, 87),
        (
            "softrelu",
            lambda x: nd.Activation(x, act_type="softrelu"),
            functional.softplus,
            softrelu,
            -87,
            87,
        ),
        ("log_sigmoid", nd.log_sigmoid, functional.logsigmoid, lambda x: -softrelu(-x), -87, 87),
        (
            "elu",
            lambda x: nd.LeakyReLU(x, act_type="elu", slope=1.0),
            functional.elu,
            lambda x: np.where(x > 0, x, np.expm1(x)),
            -87,
            87,
        ),
        (
            "selu",
            lambda x: nd.LeakyReLU(x, act_type="selu"),
            functional.selu,
            lambda x: (
                1.0507009873554804934193349852946
                * np.where(x > 0, x, 1.6732632423543772848170429916717 * np.expm1(x))
            ),
            -87,
            87,
        ),
        (
            "gelu (above -1)",
            lambda x: nd.LeakyReLU(x, act_type="gelu"),
            functional.gelu,
            gelu_exact,
            -1,
            87,
        ),
        ("softsign", nd.softsign, functional.softsign, lambda x: x / (1 + np.abs(x)), -1e30, 1e30),
        ("mish", nd.mish, functional.mish, lambda x: x * np.tanh(softrelu(x)), -80, 80),
    ]
    return table, of_torch


@part
def functions():
    table, of_torch = _functions()
    for name, ours, theirs, exact, low, high in table:
        x = samples(low, high)
        with np.errstate(all="ignore"):
            expected = exact(x.astype("float64"))
        mine = ulps(ours(nd.array(x)).asnumpy(), expected)
        yield f"{name}, ulps", mine, ulps(of_torch(theirs)(x), expected) if theirs else None


@part
def gradients():
    """Gradients of unary functions on [-3, 3] or the part in the function's domain; elsewhere both
    lose digits to cancellation."""
    table, _ = _functions()
    for name, ours, theirs, _, low, high in table:
        if theirs is None or name == "erfinv":
            continue
        x = samples(max(low, -3), min(high, 3), 50000)
        x = (
            x[(np.abs(x) < 0.9) | (low < -1)]
            if high == 1
            else x[x > low + 0.1]
            if low in (-1, 1)
            else x
        )
        array = nd.array(x)
        array.attach_grad()
        with autograd.record():
            y = ours(array)
        y.backward()
        slopes = []
        for dtype in (torch.float64, torch.float32):
            tensor = torch.tensor(x, dtype=dtype, requires_grad=True)
            theirs(tensor).sum().backward()
            slopes.append(tensor.grad.numpy())
        away = np.abs(slopes[0]) > 0.05 * np.median(np.abs(slopes[0]))
        yield (
            f"gradient of {name}, ulps",
            ulps(array.grad.asnumpy(), slopes[0], away),
            ulps(slopes[1], slopes[0], away),
        )


# --- Sums and products ----------------------------------------------------------------------------


def _distributions(size):
    random = np.random.RandomState(1)
    yield "of 0.1", np.full(size, 0.1, "float32")
    yield "uniform", random.uniform(0, 1, size).astype("float32")
    yield "1e4 and noise", (1e4 + random.normal(size=size)).astype("float32")


@part
def sums():
    size = 10**7
    for title, x in _distributions(size):
        exact, ours, theirs = x.astype("float64"), nd.array(x), torch.from_numpy(x)
        for name, function, total in (
            ("sum", nd.sum, exact.sum()),
            ("mean", nd.mean, exact.mean()),
            ("norm", nd.norm, np.sqrt((exact**2).sum())),
        ):
            yield (
                f"{name} of 1e7, {title}",
                relative(function(ours).asnumpy(), total),
                relative(getattr(torch, name)(theirs), total),
            )
        yield (
            f"cumsum of 1e7, {title}",
            each(nd.cumsum(ours).asnumpy(), exact.cumsum()),
            each(torch.cumsum(theirs, 0), exact.cumsum()),
        )
    random = np.random.RandomState(1)
    alike = random.uniform(0, 1, (1000, 1)).astype("float32")
    for title, x in (
        ("uniform", random.uniform(0, 1, (1000, 10000)).astype("float32")),
        ("alike along it", np.repeat(alike, 10000, 1)),
    ):
        for axis in (0, 1):
            along = np.ascontiguousarray(x.T) if axis == 0 else x
            exact, ours, theirs = along.astype("float64"), nd.array(along), torch.from_numpy(along)
            shape = "x".join(map(str, along.shape))
            yield (
                f"sum of {shape} along axis {axis}, {title}",
                each(nd.sum(ours, axis=axis).asnumpy(), exact.sum(axis)),
                each(theirs.sum(axis), exact.sum(axis)),
            )
            yield (
                f"cumsum of {shape} along axis {axis}, {title}",
                each(nd.cumsum(ours, axis=axis).asnumpy(), exact.cumsum(axis)),
                each(theirs.cumsum(axis), exact.cumsum(axis)),
            )


@part
def products():
    random = np.random.RandomState(2)
    for size in (10**5, 10**6, 10**7):
        a, b = (random.rand(size).astype("float32") for _ in range(2))
        total = np.dot(a.astype("float64"), b.astype("float64"))
        ours, theirs = [nd.array(v) for v in (a, b)], [torch.from_numpy(v) for v in (a, b)]
        yield (
            f"dot of {size:,}",
            relative(nd.dot(*ours).asnumpy(), [total]),
            relative(torch.dot(*theirs), total),
        )
        rows = [v.reshape((1, 1, -1)) for v in ours]
        yield (
            f"batch_dot of {size:,}",
            relative(nd.batch_dot(rows[0], rows[1], transpose_b=True).asnumpy(), total),
            relative(torch.bmm(theirs[0].reshape(1, 1, -1), theirs[1].reshape(1, -1, 1)), total),
        )
        yield (
            f"dense layer of {size:,}",
            relative(
                nd.FullyConnected(rows[0][0], rows[1][0], num_hidden=1, no_bias=True).asnumpy(),
                total,
            ),
            relative(functional.linear(theirs[0].reshape(1, -1), theirs[1].reshape(1, -1)), total),
        )
    for m, k, n in ((64, 1000000, 32), (4, 1000000, 8), (512, 512, 512), (128, 4096, 128)):
        a, b = random.rand(m, k).astype("float32"), random.rand(k, n).astype("float32")
        total = a.astype("float64") @ b.astype("float64")
        yield (
            f"dot of {m}x{k:,}x{n}",
            relative(nd.dot(nd.array(a), nd.array(b)).asnumpy(), total),
            relative(torch.from_numpy(a) @ torch.from_numpy(b), total),
        )


# --- Layers ---------------------------------------------------------------------------------------


def _layer(title, arrays, ours, theirs, names=("output", "gradient"), seed=3):
    """Returns rows for a layer's output and the gradients of its inputs; `theirs` accepts tensors
    of any dtype."""
    arrays = [np.asarray(a, "float32") for a in arrays]
    inputs = [nd.array(a) for a in arrays]
    for a in inputs:
        a.attach_grad()
    with autograd.record():
        y = ours(*inputs)
    head = np.random.RandomState(seed).normal(size=y.shape).astype("float32")
    y.backward(nd.array(head))
    mine = [y.asnumpy()] + [a.grad.asnumpy() for a in inputs]
    others = []
    for dtype in (torch.float64, torch.float32):
        tensors = [torch.tensor(a, dtype=dtype, requires_grad=True) for a in arrays]
        z = theirs(*tensors)
        z.backward(torch.tensor(head, dtype=dtype))
        others.append([z.detach().numpy()] + [t.grad.numpy() for t in tensors])
    for name, a, exact, b in zip(names, mine, *others):
        yield f"{title}, {name}", relative(a, exact), relative(b, exact)


@part
def normalisations():
    random = np.random.RandomState(4)
    names = ("output", "gradient", "gamma's gradient", "beta's gradient")
    for spread in (1, 100, 1e30):
        x = random.normal(size=(64, 1000)) * spread
        yield from _layer(
            f"softmax, spread {spread:g}",
            [x],
            lambda x: nd.softmax(x),
            lambda x: torch.softmax(x, -1),
        )
        yield from _layer(
            f"log_softmax, spread {spread:g}",
            [x],
            lambda x: nd.log_softmax(x),
            lambda x: torch.log_softmax(x, -1),
        )
    for offset in (0, 1e2, 1e4, 1e6):
        x, gamma, beta = (
            random.normal(size=(64, 512)) + offset,
            random.uniform(0.5, 1.5, 512),
            random.normal(size=512),
        )
        yield from _layer(
            f"LayerNorm, offset {offset:g}",
            [x, gamma, beta],
            lambda x, g, b: nd.LayerNorm(x, g, b, eps=1e-5),
            lambda x, g, b: functional.layer_norm(x, (512,), g, b, 1e-5),
            names,
        )
        x, gamma, beta = (
            random.normal(size=(8, 16, 28, 28)) + offset,
            random.uniform(0.5, 1.5, 16),
            random.normal(size=16),
        )
        mean, variance = nd.zeros((16,)), nd.ones((16,))
        yield from _layer(
            f"BatchNorm, offset {offset:g}",
            [x, gamma, beta],
            lambda x, g, b: nd.BatchNorm(x, g, b, mean, variance, eps=1e-5, fix_gamma=False),
            lambda x, g, b: functional.batch_norm(x, None, None, g, b, True, eps=1e-5),
            names,
        )
        yield from _layer(
            f"InstanceNorm, offset {offset:g}",
            [x, gamma, beta],
            lambda x, g, b: nd.InstanceNorm(x, g, b, eps=1e-5),
            lambda x, g, b: functional.instance_norm(x, None, None, g, b, True, eps=1e-5),
            names,
        )
        yield from _layer(
            f"GroupNorm, offset {offset:g}",
            [x, gamma[:4], beta[:4]],
            lambda x, g, b: nd.GroupNorm(x, g, b, num_groups=4, eps=1e-5),
            lambda x, g, b: functional.group_norm(
                x, 4, g.repeat_interleave(4), b.repeat_interleave(4), 1e-5
            ),
            names,
        )
    x, gamma, beta = random.normal(size=(10**6, 4)) + 1, np.ones(4), np.zeros(4)
    mean, variance = nd.zeros((4,)), nd.ones((4,))
    yield from _layer(
        "BatchNorm of 1e6 rows",
        [x, gamma, beta],
        lambda x, g, b: nd.BatchNorm(x, g, b, mean, variance, eps=1e-5, fix_gamma=False),
        lambda x, g, b: functional.batch_norm(x, None, None, g, b, True, eps=1e-5),
        names,
    )


@part
def convolutions():
    random = np.random.RandomState(5)
    names = ("output", "gradient", "weight's gradient")
    for batch, channels, size, scale in (
        (4, 32, 28, 1),
        (4, 64, 28, 1),
        (4, 64, 28, 1e-15),
        (4, 64, 28, 1e18),
        (4, 128, 7, 1),
        (1, 256, 14, 1),
        (8, 128, 28, 1),
    ):
        x, w = (
            random.normal(size=(batch, channels, size, size)) * scale,
            random.normal(size=(channels, channels, 3, 3)) / (3 * channels**0.5),
        )
        for mode in ({}, {"exact": True}):

            class Net(gluon.HybridBlock):
                def hybrid_forward(self, F, x, w):
                    return F.Convolution(
                        x, w, kernel=(3, 3), pad=(1, 1), num_filter=w.shape[0], no_bias=True
                    )

            net = Net()
            net.hybridize(**mode)
            title = (
                f"convolution 3x3, {batch}x{channels}x{size}x{size}"
                + (f" x {scale:g}" if scale != 1 else "")
                + (", exact" if mode else "")
            )
            layout = torch.contiguous_format if mode else torch.channels_last  # mpgluon's layout
            yield from _layer(
                title,
                [x, w],
                net,
                lambda x, w: functional.conv2d(
                    x.to(memory_format=layout), w.to(memory_format=layout), padding=1
                ),
                names,
            )


@part
def recurrent():
    random = np.random.RandomState(6)
    steps, batch, size, hidden = 1000, 4, 16, 16
    for mode, gates, cell in (
        ("lstm", 4, torch.nn.LSTM),
        ("gru", 3, torch.nn.GRU),
        ("rnn_tanh", 1, torch.nn.RNN),
    ):
        x = random.normal(size=(steps, batch, size)).astype("float32")
        shapes = [
            (gates * hidden, size),
            (gates * hidden, hidden),
            (gates * hidden,),
            (gates * hidden,),
        ]
        weights = [random.uniform(-0.25, 0.25, shape).astype("float32") for shape in shapes]
        flat = np.concatenate([w.ravel() for w in weights])
        arrays = [nd.array(v) for v in (x, flat)]
        for a in arrays:
            a.attach_grad()
        states = [nd.zeros((1, batch, hidden))] * (2 if mode == "lstm" else 1)
        with autograd.record():
            y = nd.RNN(arrays[0], arrays[1], *states, state_size=hidden, num_layers=1, mode=mode)
        head = random.normal(size=y.shape).astype("float32")
        y.backward(nd.array(head))
        mine = [y.asnumpy(), arrays[0].grad.asnumpy()] + np.split(
            arrays[1].grad.asnumpy(), np.cumsum([w.size for w in weights])[:-1]
        )
        others = []
        for dtype in (torch.float64, torch.float32):
            net = cell(size, hidden).to(dtype)
            with torch.no_grad():
                for parameter, w in zip(net.parameters(), weights):
                    parameter.copy_(torch.from_numpy(w))
            tensor = torch.tensor(x, dtype=dtype, requires_grad=True)
            z = net(tensor)[0]
            z.backward(torch.tensor(head, dtype=dtype))
            others.append(
                [z.detach().numpy(), tensor.grad.numpy()]
                + [p.grad.numpy().ravel() for p in net.parameters()]
            )
        names = (
            "output",
            "gradient",
            "input weight's gradient",
            "state weight's gradient",
            "input bias' gradient",
            "state bias' gradient",
        )
        for name, a, exact, b in zip(names, mine, *others):
            yield f"{mode}, {steps} steps, {name}", relative(a, exact), relative(b, exact)


@part
def gathers():
    random = np.random.RandomState(7)
    rows, index = random.normal(size=(200000, 8)).astype("float32"), random.randint(0, 3, 200000)
    exact = np.stack([rows[index == i].astype("float64").sum(0) for i in range(3)])
    weight = nd.zeros((3, 8))
    weight.attach_grad()
    with autograd.record():
        y = nd.Embedding(nd.array(index), weight, input_dim=3, output_dim=8)
    y.backward(nd.array(rows))
    tensor = torch.zeros((3, 8), requires_grad=True)
    functional.embedding(torch.from_numpy(index), tensor).backward(torch.from_numpy(rows))
    yield (
        "embedding, gradient of 200,000 rows into 3",
        relative(weight.grad.asnumpy(), exact),
        relative(tensor.grad, exact),
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument(
        "--limit", type=float, help="fail where an error is more than so many times PyTorch's"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    beyond = []
    print("| what | mpgluon | PyTorch | ratio |\n| --- | --- | --- | --- |")
    for name in args.parts.split(","):
        for title, ours, theirs in PARTS[name]():
            ratio = ours / theirs if theirs and ours > 1e-10 else None
            print(
                f"| {title} | {ours:.2g} | {'' if theirs is None else f'{theirs:.2g}'} | "
                f"{'' if ratio is None else f'{ratio:.2f}'} |",
                flush=True,
            )
            if args.limit and ratio is not None and ratio > args.limit:
                beyond.append(title)
    if beyond:
        sys.exit(f"more than {args.limit:g} times PyTorch's error: {', '.join(beyond)}")


if __name__ == "__main__":
    main()
