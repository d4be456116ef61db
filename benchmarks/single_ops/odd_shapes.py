"""Ops at shapes that other cases omit: long thin arrays, small batches of products, ranges."""

from single_ops.case import Case, pair, single


def ctc(time, batch, classes, labels):
    inputs = (("x", (time, batch, classes), "float32"), ("i", (batch, labels), "int64"))
    lengths = f"torch.full(({batch},), {time}), torch.full(({batch},), {labels})"
    theirs = f"F.ctc_loss(x.log_softmax(2), i + 1, {lengths}, reduction='none')"
    ours = "F.CTCLoss(x, i + 1)"
    return Case("odd", f"CTC loss, {time}x{batch}x{classes}", inputs, ours, theirs, below=18)


def convolution(filters, length, kernel, stride):
    inputs = (("x", (1, 1, length), "float32"), ("w", (filters, 1, kernel), "float32"))
    ours = (
        f"F.Convolution(x, w, kernel=({kernel},), num_filter={filters}, stride=({stride},), "
        "no_bias=True)"
    )
    theirs = f"F.conv1d(x, w, stride={stride})"
    title = f"Conv1D 1 -> {filters}, length {length}, kernel {kernel}, stride {stride}"
    yield Case("odd", title, inputs, ours, theirs)
    yield Case(
        "odd",
        f"{title}, training step",
        inputs,
        f"step(lambda x, w: {ours}, x, w)",
        f"step(lambda x, w: {theirs}, x, w)",
    )


def norm(rows, width):
    inputs = (("x", (rows, width), "float32"), ("g", (width,), "float32"))
    theirs = f"F.layer_norm(x, ({width},), g, g)"
    return Case("odd", f"LayerNorm, {rows}x{width}", inputs, "F.LayerNorm(x, g, g)", theirs)


def odd_shapes():
    for count, rows, inner in ((4, 3, 1000), (4, 4, 4096), (64, 3, 50), (8, 16, 300)):
        for title, shape, ours, theirs in (
            ("", (count, inner, rows), "F.batch_dot(x, y)", "x @ y"),
            (
                ", B transposed",
                (count, rows, inner),
                "F.batch_dot(x, y, transpose_b=True)",
                "x @ y.mT",
            ),
        ):
            yield pair("odd", f"batch_dot{title}", ((count, rows, inner), shape), ours, theirs)
    for shapes in (((16, 4096), (64, 4096)), ((64, 64), (16384, 64)), ((1, 1000), (1000, 1000))):
        yield pair("odd", "dot, B transposed", shapes, "F.dot(x, y, transpose_b=True)", "x @ y.T")
    yield Case(
        "odd",
        "Dense 1000 -> 1000 of 1 row, training step",
        (("x", (1, 1000), "float32"), ("w", (1000, 1000), "float32"), ("b", (1000,), "float32")),
        "step(lambda x, w, b: F.FullyConnected(x, w, b, num_hidden=1000), x, w, b)",
        "step(F.linear, x, w, b)",
    )
    for count in (100, 10000, 100000, 1000000):
        yield single(
            "odd", f"arange({count})", (1,), f"F.arange({count})", f"torch.arange({count}.)"
        )
        yield single(
            "odd",
            f"linspace({count})",
            (1,),
            f"F.linspace(0, 1, {count})",
            f"torch.linspace(0, 1, {count})",
        )
    yield single(
        "odd",
        "arange(100000) of int64",
        (1,),
        "F.arange(100000, dtype='int64')",
        "torch.arange(100000)",
    )
    for shape in ((3, 100000), (1, 1000000), (2, 5000)):
        yield single("odd", "cumsum", shape, "F.cumsum(x, axis=1)", "x.cumsum(1)")
    for shape in ((100000, 3), (64, 128, 7), (1000, 1000)):
        yield single("odd", "flip of the last axis", shape, "F.flip(x, axis=-1)", "x.flip(-1)")
    yield single("odd", "sort", (64, 128, 7), "F.sort(x)", "x.sort(-1)[0]")
    yield ctc(50, 64, 20, 10)
    yield from convolution(64, 8000, 80, 4)
    yield norm(1000, 3)
    yield norm(10000, 5)
    yield norm(4096, 16)
    yield single(
        "odd", "dropout in prediction", (256, 2048), "F.Dropout(x)", "F.dropout(x, 0.5, False)"
    )
