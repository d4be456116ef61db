"""The most common ops on small, medium and large arrays, and layers of common shapes."""

from single_ops.case import Case, size
from single_ops.unary import UNARY

SIZES = ((16, 16), (512, 512), (4096, 1024))
DTYPES = ("float32", "bfloat16")

# x, y: arrays (m, n); r: (1, n); c: (m, 1); w: (n, n); b: (n,); i: (m,) below 10
COMMON = {
    **{
        op: UNARY[op]
        for op in (
            *("relu", "abs", "sign", "square", "exp", "tanh", "sigmoid", "gelu", "leaky relu"),
            *("elu", "selu", "softplus", "softsign", "log of abs", "log1p of abs", "sqrt of abs"),
            *("sin", "erf", "expm1", "clip", "floor", "x + 1", "x ** 3"),
            *("maximum with 0.1", "x > 0", "x ** 2.5 of abs"),
        )
    },
    "trunc": ("F.trunc(x)", "x.trunc()"),
    "add": ("x + y", "x + y"),
    "subtract": ("x - y", "x - y"),
    "multiply": ("x * y", "x * y"),
    "divide": ("x / y", "x / y"),
    "maximum": ("F.maximum(x, y)", "x.maximum(y)"),
    "minimum": ("F.minimum(x, y)", "x.minimum(y)"),
    "greater": ("x > y", "x > y"),
    "equal": ("x == y", "x == y"),
    "hypot": ("F.broadcast_hypot(x, y)", "x.hypot(y)"),
    "where": ("F.where(x > 0, x, y)", "x.where(x > 0, y)"),
    "add a row": ("F.broadcast_add(x, r)", "x + r"),
    "add a column": ("F.broadcast_add(x, c)", "x + c"),
    "multiply with a row": ("F.broadcast_mul(x, r)", "x * r"),
    "multiply with a column": ("F.broadcast_mul(x, c)", "x * c"),
    "broadcast a row": ("F.broadcast_to(r, shape=({m}, {n}))", "r.expand({m}, {n}).contiguous()"),
    "sum": ("F.sum(x)", "x.sum()"),
    "sum axis 0": ("F.sum(x, axis=0)", "x.sum(0)"),
    "sum axis 1": ("F.sum(x, axis=1)", "x.sum(1)"),
    "mean": ("F.mean(x)", "x.mean()"),
    "mean axis 0": ("F.mean(x, axis=0)", "x.mean(0)"),
    "mean axis 1": ("F.mean(x, axis=1)", "x.mean(1)"),
    "max axis 0": ("F.max(x, axis=0)", "x.amax(0)"),
    "max axis 1": ("F.max(x, axis=1)", "x.amax(1)"),
    "min axis 1": ("F.min(x, axis=1)", "x.amin(1)"),
    "norm": ("F.norm(x)", "x.norm()"),
    "argmax axis 1": ("F.argmax(x, axis=1)", "x.argmax(1)"),
    "cumsum axis 1": ("F.cumsum(x, axis=1)", "x.cumsum(1)"),
    "softmax": ("F.softmax(x)", "x.softmax(1)"),
    "softmax axis 0": ("F.softmax(x, axis=0)", "x.softmax(0)"),
    "log_softmax": ("F.log_softmax(x)", "x.log_softmax(1)"),
    "LayerNorm": ("F.LayerNorm(x, b, b)", "F.layer_norm(x, ({n},), b, b)"),
    "L2Normalization": ("F.L2Normalization(x)", "F.normalize(x, eps=1e-10)"),
    "dropout": ("F.Dropout(x, p=0.5, mode='always')", "F.dropout(x, 0.5, True)"),
    "copy": ("x.copy()", "x.clone()"),
    "transpose": ("F.transpose(x)", "x.T.contiguous()"),
    "flip": ("F.flip(x, axis=1)", "x.flip(1)"),
    "concat axis 0": ("F.concat(x, y, dim=0)", "torch.cat((x, y), 0)"),
    "concat axis 1": ("F.concat(x, y, dim=1)", "torch.cat((x, y), 1)"),
    "stack": ("F.stack(x, y)", "torch.stack((x, y))"),
    "slice of columns": ("F.slice_axis(x, axis=1, begin=1, end=9)", "x[:, 1:9].contiguous()"),
    "repeat": ("F.repeat(x, repeats=2, axis=1)", "x.repeat_interleave(2, 1)"),
    "tile": ("F.tile(x, reps=(2, 1))", "x.repeat(2, 1)"),
    "take rows": ("F.take(x, i)", "x[i]"),
    "pick": ("F.pick(x, i)", "x.gather(1, i[:, None])[:, 0]"),
    "one_hot": ("F.one_hot(i, 10)", "F.one_hot(i, 10).float()"),
    "sort": ("F.sort(x)", "x.sort(1)[0]"),
    "argmin axis 1": ("F.argmin(x, axis=1)", "x.argmin(1)"),
    "topk of 5": ("F.topk(x, k=5, ret_typ='value')", "x.topk(5, 1)[0]"),
    "dot": ("F.dot(x, w)", "x @ w"),
    "dot, B transposed": ("F.dot(x, w, transpose_b=True)", "x @ w.T"),
    "FullyConnected": ("F.FullyConnected(x, w, b, num_hidden={n})", "F.linear(x, w, b)"),
    "softmax cross-entropy": (
        "F.softmax_cross_entropy(x, i)",
        "F.cross_entropy(x, i, reduction='sum')",
    ),
    "add to x": ("F.elemwise_add(x, y, out=z)", "torch.add(x, y, out=z)"),
}


def shaped(group, title, shapes, dtype, ours, theirs):
    """Returns a case of the arrays in `shapes`; names that begin with i are indices."""
    inputs = tuple(
        (name, shape, "int64" if name.startswith("i") else dtype) for name, shape in shapes.items()
    )
    title += "" if dtype == "float32" else f", {dtype}"
    return Case(group, title, inputs, ours, theirs, below=10)


def common():
    for m, n in SIZES:
        shapes = {
            **dict.fromkeys("xyz", (m, n)),
            "r": (1, n),
            "c": (m, 1),
            "w": (n, n),
            "b": (n,),
            "i": (m,),
        }
        for dtype in DTYPES:
            for op, formulas in COMMON.items():
                ours, theirs = (text.format(m=m, n=n) for text in formulas)
                used = {k: s for k, s in shapes.items() if has(ours, k) or has(theirs, k)}
                yield shaped(f"common {m}x{n}", op, used, dtype, ours, theirs)


def has(formula, name):
    """True if the formula reads the array."""
    return name in compile(formula, "", "eval").co_names


def common_layers():
    for dtype in DTYPES:
        for c, f, hw, k, stride in (
            (64, 64, 56, 3, 1),
            (128, 128, 28, 3, 1),
            (256, 256, 14, 3, 1),
            (64, 256, 56, 1, 1),
            (3, 64, 224, 7, 2),
        ):
            shapes = {"x": (8, c, hw, hw), "w": (f, c, k, k)}
            ours = (
                f"F.Convolution(x, w, kernel=({k}, {k}), num_filter={f}, "
                f"stride=({stride}, {stride}), pad=({k // 2}, {k // 2}), no_bias=True)"
            )
            theirs = f"F.conv2d(x, w, None, {stride}, {k // 2})"
            title = f"convolution {k}x{k} of {size(shapes['x'])}"
            yield shaped("common layer", title, shapes, dtype, ours, theirs)
            yield shaped(
                "common layer",
                f"{title} (training step)",
                shapes,
                dtype,
                f"step(lambda x, w: {ours}, x, w)",
                f"step(lambda x, w: {theirs}, x, w)",
            )
        images, statistics = (8, 64, 56, 56), dict.fromkeys("gbmv", (64,))
        case = shaped(
            "common layer",
            f"BatchNorm of {size(images)} (training step)",
            statistics,
            "float32",
            "step(lambda x, g, b: F.BatchNorm(x, g, b, m, v, fix_gamma=False, eps=1e-5), x, g, b)",
            "step(lambda x, g, b: F.batch_norm(x, m, v, g, b, True), x, g, b)",
        )
        title = case.title + ("" if dtype == "float32" else f", {dtype}")
        yield case._replace(title=title, inputs=(("x", images, dtype), *case.inputs))
        yield shaped(
            "common layer",
            "max pooling of 8x64x56x56, 3 by 2",
            {"x": (8, 64, 56, 56)},
            dtype,
            "F.Pooling(x, kernel=(3, 3), stride=(2, 2), pad=(1, 1))",
            "F.max_pool2d(x, 3, 2, 1)",
        )
        shapes = {"w": (10000, 256), "i": (2048,)}
        yield shaped(
            "common layer",
            "Embedding of 2048 in 10000x256",
            shapes,
            dtype,
            "F.Embedding(i, w, 10000, 256)",
            "F.embedding(i, w)",
        )
        for m, n, k in ((128, 512, 784), (1024, 1024, 256), (700, 2600, 650)):
            yield shaped(
                "common layer",
                f"FullyConnected {m}x{n}x{k} (training step)",
                {"x": (m, k), "w": (n, k), "b": (n,)},
                dtype,
                f"step(lambda x, w, b: F.FullyConnected(x, w, b, num_hidden={n}), x, w, b)",
                "step(lambda x, w, b: F.linear(x, w, b), x, w, b)",
            )
