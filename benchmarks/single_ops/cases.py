"""Single ops in mpgluon and PyTorch, which benchmarks/ops.py times.

An expression is evaluated in the process of its library, with the inputs by name (x, y, ...), F
(`mpgluon.nd` or `torch.nn.functional`) and step(function, *arrays), a training step that computes
the function and the gradients of the arrays and returns the first gradient. Both libraries use the
same random inputs: floats from the normal distribution, integers from 0 to 100.
"""

from single_ops.case import CUBE, IMAGES, LOW, TALL, WIDE, Case, pair, single, size
from single_ops.common import common, common_layers
from single_ops.einsum import einsum
from single_ops.numpy_calls import numpy_calls
from single_ops.odd_shapes import odd_shapes
from single_ops.unary import UNARY


def scans():
    for shape, axes in ((WIDE, (0, 1)), (TALL, (0, 1)), (CUBE, (0, 1, 2)), ((1000000,), (0,))):
        for axis in axes:
            yield single(
                "scan",
                "cumsum",
                shape,
                f"F.cumsum(x, axis={axis})",
                f"x.cumsum({axis})",
                where=f" axis {axis}",
            )
    for dtype in ("float64", "float16", "int32"):
        kept = f", dtype=torch.{dtype}" if dtype == "int32" else ""
        yield single(
            "scan", "cumsum", WIDE, "F.cumsum(x, axis=1)", f"x.cumsum(1{kept})", dtype, " axis 1"
        )


def softmaxes():
    for shape, axes in (
        (WIDE, (0, 1)),
        (LOW, (0, 1)),
        (TALL, (0, 1)),
        (CUBE, (0, 1, 2)),
        ((16, 21, 64, 64), (1,)),
    ):
        for axis in axes:
            yield single(
                "softmax",
                "softmax",
                shape,
                f"F.softmax(x, axis={axis})",
                f"x.softmax({axis})",
                where=f" axis {axis}",
            )
            yield single(
                "softmax",
                "log_softmax",
                shape,
                f"F.log_softmax(x, axis={axis})",
                f"x.log_softmax({axis})",
                where=f" axis {axis}",
            )
    for dtype in ("float64", "float16", "bfloat16"):
        for axis in (0, 1):
            yield single(
                "softmax",
                "softmax",
                WIDE,
                f"F.softmax(x, axis={axis})",
                f"x.softmax({axis})",
                dtype,
                f" axis {axis}",
            )


REDUCTIONS = {
    "sum": "x.sum({})",
    "mean": "x.mean({})",
    "max": "x.amax({})",
    "min": "x.amin({})",
    "prod": "x.prod({})",
    "norm": "torch.linalg.vector_norm(x, dim={})",
    "argmax": "x.argmax({})",
}


def reductions():
    def case(op, shape, axis, dtype="float32"):
        return single(
            "reduction",
            op,
            shape,
            f"F.{op}(x, axis={axis})",
            REDUCTIONS[op].format(axis),
            dtype,
            f" axis {axis}",
        )

    for op in REDUCTIONS:
        for shape, axes in ((WIDE, (0, 1)), (TALL, (0, 1)), (CUBE, (0, 1, 2))):
            for axis in axes:
                yield case(op, shape, axis)
    for op in ("sum", "max", "prod", "mean"):
        for shape, axis in (
            ((30000, 10), 1),
            ((10000, 33), 1),
            ((200000, 2), 1),
            ((1000, 2, 500), 1),
            ((1000, 300, 2), 1),
        ):
            yield case(op, shape, axis)
    for op in ("sum", "mean", "max", "norm"):
        for axes in ((3,), (1, 3), (2, 3), (0, 2, 3), (0, 1)):
            yield case(op, IMAGES, axes)
    for op in ("sum", "max", "mean"):
        for dtype in ("float64", "float16", "bfloat16"):
            yield case(op, WIDE, 0, dtype)
            yield case(op, WIDE, 1, dtype)
    for dtype in ("float32", "float64", "float16"):
        yield single("reduction", "sum", WIDE, "F.sum(x)", "x.sum()", dtype)
    for shape, axis in ((WIDE, 0), (WIDE, 1), (TALL, 1)):
        yield case("max", shape, axis, "int32")


def broadcasts():
    for shape, other in (
        (TALL, (1, 3)),
        (TALL, (100000, 1)),
        (WIDE, (1, 1000)),
        (WIDE, (1000, 1)),
        (LOW, (1, 100000)),
        (LOW, (3, 1)),
        (CUBE, (1, 1, 7)),
        (CUBE, (64, 128, 1)),
        (CUBE, (1, 128, 1)),
        (CUBE, (64, 1, 7)),
        (IMAGES, (1, 32, 1, 1)),
        (IMAGES, (64, 1, 28, 28)),
        ((200000, 2), (1, 2)),
        ((30000, 10), (1, 10)),
        ((30000, 10), (30000, 1)),
    ):
        yield pair("broadcast", "add", (shape, other), "F.broadcast_add(x, y)", "x + y")
    yield pair("broadcast", "multiply", (TALL, (1, 3)), "F.broadcast_mul(x, y)", "x * y", "float64")
    yield pair("broadcast", "multiply", (TALL, (1, 3)), "F.broadcast_mul(x, y)", "x * y", "float16")
    yield pair("broadcast", "outer sum", ((1000, 1), (1, 1000)), "F.broadcast_add(x, y)", "x + y")
    for source, shape in (
        ((100000, 1), TALL),
        ((1, 3), TALL),
        ((1000, 1), WIDE),
        ((1, 1000), WIDE),
        ((64, 128, 1), CUBE),
        ((64, 1, 7), CUBE),
    ):
        title = f"broadcast_to of {size(source)} to"
        yield Case(
            "broadcast",
            f"{title} {size(shape)}",
            (("x", source, "float32"),),
            f"F.broadcast_to(x, shape={shape})",
            f"x.expand({shape}).contiguous()",
        )


def elementwise():
    for op, (ours, theirs) in UNARY.items():
        yield single("elementwise", op, WIDE, ours, theirs)
    yield single("elementwise", "clip", TALL, *UNARY["clip"])
    for dtype in ("float64", "float16", "bfloat16"):
        for op in (
            "clip",
            "relu",
            "exp",
            "tanh",
            "sigmoid",
            "x + 1",
            "gelu",
            "log1p of abs",
            "x ** 2.5 of abs",
            "erf",
            "sin",
            "log of abs",
            "elu",
        ):
            yield single("elementwise", op, WIDE, *UNARY[op], dtype)
    for dtype in ("float32", "float64", "float16", "bfloat16", "uint8", "int8", "int32", "int64"):
        for op, sign in (("add", "+"), ("mul", "*"), ("greater", ">"), ("div", "/")):
            if op == "div" and "float" not in dtype:
                continue
            yield pair("elementwise", op, (WIDE, WIDE), f"x {sign} y", f"x {sign} y", dtype)
    for op, ours, theirs in (
        ("maximum", "F.maximum(x, y)", "x.maximum(y)"),
        ("power of abs", "F.abs(x) ** y", "x.abs() ** y"),
        ("hypot", "F.broadcast_hypot(x, y)", "x.hypot(y)"),
        ("mod", "F.broadcast_mod(x, y)", "x.remainder(y)"),
        ("where", "F.where(x > 0, x, y)", "x.where(x > 0, y)"),
    ):
        yield pair("elementwise", op, (WIDE, WIDE), ours, theirs)
    yield pair("elementwise", "power of abs", (TALL, TALL), "F.abs(x) ** y", "x.abs() ** y")
    yield single(
        "elementwise", "uint8 to float32", WIDE, "x.astype('float32')", "x.float()", "uint8"
    )
    yield single("elementwise", "float32 to float16", WIDE, "x.astype('float16')", "x.half()")
    yield single("elementwise", "float32 to int32", WIDE, "x.astype('int32')", "x.int()")
    yield single("elementwise", "float32 to bfloat16", WIDE, "x.astype('bfloat16')", "x.bfloat16()")


def layers():
    images = (64, 64, 28, 28)
    inputs = (("x", images, "float32"), ("g", (64,), "float32"))
    yield Case(
        "layer",
        f"PReLU, {size(images)}",
        inputs,
        "F.LeakyReLU(x, g, act_type='prelu')",
        "F.prelu(x, g)",
    )
    inputs = (("x", (2048, 512), "float32"), ("g", (512,), "float32"))
    yield Case(
        "layer", "PReLU, 2048x512", inputs, "F.LeakyReLU(x, g, act_type='prelu')", "F.prelu(x, g)"
    )
    for shape in ((8, 512, 14, 14), (16, 64, 56, 56), (32, 512, 7, 7)):
        yield single(
            "layer",
            "global average pool",
            shape,
            "F.Pooling(x, global_pool=True, pool_type='avg')",
            "F.adaptive_avg_pool2d(x, 1)",
        )
        yield single(
            "layer",
            "global max pool",
            shape,
            "F.Pooling(x, global_pool=True, pool_type='max')",
            "F.adaptive_max_pool2d(x, 1)",
        )
    for kernel, stride in ((2, 2), (3, 2), (3, 1), (5, 5)):
        window = f"kernel=({kernel},), stride=({stride},)"
        yield single(
            "layer",
            f"max pool 1D, {kernel} by {stride}",
            (8, 64, 1000),
            f"F.Pooling(x, {window}, pool_type='max')",
            f"F.max_pool1d(x, {kernel}, {stride})",
        )
        yield single(
            "layer",
            f"average pool 1D, {kernel} by {stride}",
            (8, 64, 1000),
            f"F.Pooling(x, {window}, pool_type='avg')",
            f"F.avg_pool1d(x, {kernel}, {stride})",
        )
        window = f"kernel=({kernel}, {kernel}), stride=({stride}, {stride})"
        yield single(
            "layer",
            f"max pool 2D, {kernel} by {stride}",
            (8, 64, 56, 56),
            f"F.Pooling(x, {window}, pool_type='max')",
            f"F.max_pool2d(x, {kernel}, {stride})",
        )
        yield single(
            "layer",
            f"average pool 2D, {kernel} by {stride}",
            (8, 64, 56, 56),
            f"F.Pooling(x, {window}, pool_type='avg')",
            f"F.avg_pool2d(x, {kernel}, {stride})",
        )
    yield single(
        "layer",
        "max pool 3D, 2 by 2",
        (4, 16, 16, 32, 32),
        "F.Pooling(x, kernel=(2, 2, 2), stride=(2, 2, 2))",
        "F.max_pool3d(x, 2, 2)",
    )
    yield single(
        "layer",
        "max pool 2D, padded 3 by 2",
        (8, 64, 56, 56),
        "F.Pooling(x, kernel=(3, 3), stride=(2, 2), pad=(1, 1))",
        "F.max_pool2d(x, 3, 2, 1)",
    )
    yield single(
        "layer",
        "max pool 2D, 2 by 2",
        (8, 64, 56, 56),
        "F.Pooling(x, kernel=(2, 2), stride=(2, 2))",
        "F.max_pool2d(x, 2, 2)",
        "float16",
    )
    yield single(
        "layer",
        "upsampling by 2",
        (8, 64, 28, 28),
        "F.UpSampling(x, scale=2, sample_type='nearest')",
        "F.interpolate(x, scale_factor=2)",
    )
    for shape in ((256, 2048), (1000, 1000)):
        yield single(
            "layer",
            "dropout in prediction",
            shape,
            "F.Dropout(x, p=0.5)",
            "F.dropout(x, 0.5, False)",
        )
    yield single(
        "layer", "LayerNorm", (4096, 256), "F.LayerNorm(x, g, b)", "F.layer_norm(x, (256,), g, b)"
    )._replace(
        inputs=(("x", (4096, 256), "float32"), ("g", (256,), "float32"), ("b", (256,), "float32"))
    )


def products():
    for count, n in ((1000, 8), (4000, 4), (500, 16), (100, 20)):
        yield pair(
            "product", "batch_dot", ((count, 1, n), (count, n, n)), "F.batch_dot(x, y)", "x.bmm(y)"
        )
        yield pair(
            "product", "batch_dot", ((count, n, n), (count, n, n)), "F.batch_dot(x, y)", "x.bmm(y)"
        )
    yield pair(
        "product", "batch_dot", ((32, 1, 512), (32, 512, 64)), "F.batch_dot(x, y)", "x.bmm(y)"
    )
    yield pair(
        "product", "batch_dot", ((32, 64, 512), (32, 512, 1)), "F.batch_dot(x, y)", "x.bmm(y)"
    )
    yield pair(
        "product", "batch_dot", ((32, 512, 64), (32, 64, 512)), "F.batch_dot(x, y)", "x.bmm(y)"
    )
    yield pair(
        "product",
        "batch_dot, B transposed",
        ((32, 1, 64), (32, 512, 64)),
        "F.batch_dot(x, y, transpose_b=True)",
        "x.bmm(y.transpose(1, 2))",
    )
    yield pair(
        "product",
        "batch_dot, B transposed",
        ((8, 1, 512), (8, 4096, 512)),
        "F.batch_dot(x, y, transpose_b=True)",
        "x.bmm(y.transpose(1, 2))",
    )
    yield pair(
        "product",
        "batch_dot, B transposed",
        ((64, 1, 128), (64, 256, 128)),
        "F.batch_dot(x, y, transpose_b=True)",
        "x.bmm(y.transpose(1, 2))",
    )
    for n in (64, 128, 256, 512, 1024):
        yield pair("product", "dot", ((n, n), (n, n)), "F.dot(x, y)", "x @ y")
        yield pair(
            "product",
            "dot, B transposed",
            ((n, n), (n, n)),
            "F.dot(x, y, transpose_b=True)",
            "x @ y.T",
        )
        yield pair(
            "product",
            "dot, A transposed",
            ((n, n), (n, n)),
            "F.dot(x, y, transpose_a=True)",
            "x.T @ y",
        )
    yield pair(
        "product", "dot, float64", ((512, 512), (512, 512)), "F.dot(x, y)", "x @ y", "float64"
    )
    yield pair("product", "dot", ((1000, 1000), (1000,)), "F.dot(x, y)", "x @ y")
    yield pair("product", "dot", ((1, 1000), (1000, 1000)), "F.dot(x, y)", "x @ y")
    yield pair("product", "dot", ((1000000,), (1000000,)), "F.dot(x, y)", "x @ y")


def wholes():
    """Yields cases of integers and of ops that search elements."""
    for dtype in ("int32", "int64", "int8", "uint8"):
        for axis in (0, 1):
            yield single(
                "whole",
                "max",
                WIDE,
                f"F.max(x, axis={axis})",
                f"x.amax({axis})",
                dtype,
                f" axis {axis}",
            )
            yield single(
                "whole",
                "sum",
                WIDE,
                f"F.sum(x, axis={axis})",
                f"x.sum({axis}, dtype=torch.{dtype})",
                dtype,
                f" axis {axis}",
            )
            yield single(
                "whole",
                "argmax",
                WIDE,
                f"F.argmax(x, axis={axis})",
                f"x.argmax({axis})",
                dtype,
                f" axis {axis}",
            )
        yield single(
            "whole", "max", IMAGES, "F.max(x, axis=(2, 3))", "x.amax((2, 3))", dtype, " axis (2, 3)"
        )
        yield single(
            "whole",
            "prod",
            WIDE,
            "F.prod(x, axis=1)",
            f"x.prod(1, dtype=torch.{dtype})",
            dtype,
            " axis 1",
        )
    for dtype in ("float64", "float16", "bfloat16"):
        for axis in (0, 1):
            yield single(
                "whole",
                "argmax",
                WIDE,
                f"F.argmax(x, axis={axis})",
                f"x.argmax({axis})",
                dtype,
                f" axis {axis}",
            )
    for shape, k in ((WIDE, 5), (TALL, 2), ((100, 10000), 10)):
        yield single(
            "whole",
            f"topk of {k}",
            shape,
            f"F.topk(x, k={k}, ret_typ='value')",
            f"x.topk({k}).values",
        )
    for shape in (WIDE, TALL, (1, 1000000), (10000, 100)):
        yield single("whole", "sort", shape, "F.sort(x)", "x.sort().values")
        yield single("whole", "argsort", shape, "F.argsort(x)", "x.argsort(stable=True)")
    yield single("whole", "sort", WIDE, "F.sort(x, axis=0)", "x.sort(0).values", where=" axis 0")
    yield single("whole", "sort", WIDE, "F.sort(x)", "x.sort().values", "int32")


def steps():
    """Yields training steps."""
    for part in (layer_norm_steps, norm_steps, axis_steps, index_steps, pooling_steps):
        yield from part()


def layer_norms(m, n, dtype="float32"):
    """Yields the forward pass and a training step for an array of shape (m, n)."""
    title = f"{m}x{n}" + ("" if dtype == "float32" else f", {dtype}")
    inputs = (("x", (m, n), dtype), ("g", (n,), dtype), ("b", (n,), dtype))
    theirs = f"F.layer_norm(x, ({n},), g, b)"
    forward = Case("step", f"LayerNorm forward, {title}", inputs, "F.LayerNorm(x, g, b)", theirs)
    step = Case(
        "step",
        f"LayerNorm, {title}",
        inputs,
        "step(F.LayerNorm, x, g, b)",
        f"step(lambda x, g, b: {theirs}, x, g, b)",
    )
    return forward, step


def layer_norm_steps():
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        forward, step = layer_norms(4096, 256, dtype)
        yield step
        if dtype != "float32":
            yield forward
    for m, n in ((64, 4096), (100000, 16), (512, 768), (16384, 64)):
        yield from layer_norms(m, n)


def norm_steps():
    images = (16, 64, 28, 28)
    inputs = (("x", images, "float32"), ("g", (64,), "float32"), ("b", (64,), "float32"))
    yield Case(
        "step",
        f"InstanceNorm, {size(images)}",
        inputs,
        "step(lambda x, g, b: F.InstanceNorm(x, g, b, eps=1e-5), x, g, b)",
        "step(lambda x, g, b: F.instance_norm(x, weight=g, bias=b), x, g, b)",
    )
    yield Case(
        "step",
        f"InstanceNorm forward, {size(images)}",
        inputs,
        "F.InstanceNorm(x, g, b, eps=1e-5)",
        "F.instance_norm(x, weight=g, bias=b)",
    )
    statistics = (*inputs, ("m", (64,), "float32"), ("v", (64,), "float32"))
    ours, theirs = (
        "step(lambda x, g, b: F.BatchNorm(x, g, b, m, v, fix_gamma=False, eps=1e-5), x, g, b)",
        "step(lambda x, g, b: F.batch_norm(x, m, v, g, b, True), x, g, b)",
    )
    yield Case("step", f"BatchNorm, {size(images)}", statistics, ours, theirs)


def axis_steps():
    """Yields training steps of softmax, reductions and scans."""
    for dtype in ("float32", "float64", "float16"):
        for axis in (0, 1):
            yield single(
                "step",
                "softmax",
                WIDE,
                f"step(lambda x: F.softmax(x, axis={axis}), x)",
                f"step(lambda x: x.softmax({axis}), x)",
                dtype,
                f" axis {axis}",
            )
            yield single(
                "step",
                "log_softmax",
                WIDE,
                f"step(lambda x: F.log_softmax(x, axis={axis}), x)",
                f"step(lambda x: x.log_softmax({axis}), x)",
                dtype,
                f" axis {axis}",
            )
    for op in ("sum", "mean", "max", "norm"):
        yield single(
            "step",
            op,
            WIDE,
            f"step(lambda x: F.{op}(x, axis=1), x)",
            f"step(lambda x: {REDUCTIONS[op].format(1)}, x)",
            where=" axis 1",
        )
    yield single(
        "step",
        "cumsum",
        WIDE,
        "step(lambda x: F.cumsum(x, axis=1), x)",
        "step(lambda x: x.cumsum(1), x)",
        where=" axis 1",
    )


def index_steps():
    inputs = (("x", (10000, 64), "float32"), ("i", (20000,), "int64"))
    yield Case(
        "step",
        "embedding",
        inputs,
        "step(lambda x: F.Embedding(i, x, 10000, 64), x)",
        "step(lambda x: F.embedding(i, x), x)",
    )
    yield Case("step", "take", inputs, "step(lambda x: F.take(x, i), x)", "step(lambda x: x[i], x)")
    inputs = (("x", (1000, 64), "float32"), ("i", (1000, 1), "int64"))
    yield Case(
        "step",
        "pick",
        inputs,
        "step(lambda x: F.pick(x, i.reshape((-1,)) % 64), x)",
        "step(lambda x: x.gather(1, i % 64), x)",
    )


def pooling_steps():
    for kernel, stride in ((2, 2), (3, 1), (5, 5)):
        for shape in ((8, 64, 1000), (8, 64, 56, 56)):
            ndim = len(shape) - 2
            window = f"kernel={(kernel,) * ndim}, stride={(stride,) * ndim}"
            for title, kind in (("max", "max"), ("average", "avg")):
                yield single(
                    "step",
                    f"{title} pool {ndim}D, {kernel} by {stride}",
                    shape,
                    f"step(lambda x: F.Pooling(x, {window}, pool_type='{kind}'), x)",
                    f"step(lambda x: F.{kind}_pool{ndim}d(x, {kernel}, {stride}), x)",
                )
    yield single(
        "step",
        "global average pool",
        (8, 512, 14, 14),
        "step(lambda x: F.Pooling(x, global_pool=True, pool_type='avg'), x)",
        "step(lambda x: F.adaptive_avg_pool2d(x, 1), x)",
    )
    yield single(
        "step",
        "global max pool",
        (8, 512, 14, 14),
        "step(lambda x: F.Pooling(x, global_pool=True, pool_type='max'), x)",
        "step(lambda x: F.adaptive_max_pool2d(x, 1), x)",
    )


def moves():
    for axis in (0, 1, 2, 3):
        yield single(
            "move",
            "repeat by 2",
            IMAGES,
            f"F.repeat(x, repeats=2, axis={axis})",
            f"x.repeat_interleave(2, {axis})",
            where=f" axis {axis}",
        )
    yield single("move", "tile", WIDE, "F.tile(x, reps=(2, 2))", "x.tile(2, 2)")
    yield single("move", "flip", WIDE, "F.flip(x, axis=1)", "x.flip(1)")
    yield single("move", "transpose", WIDE, "F.transpose(x)", "x.T.contiguous()")
    yield single(
        "move",
        "transpose",
        IMAGES,
        "F.transpose(x, axes=(0, 2, 3, 1))",
        "x.permute(0, 2, 3, 1).contiguous()",
        where=" channels last",
    )
    yield single("move", "transpose", TALL, "F.transpose(x)", "x.T.contiguous()")
    yield single("move", "transpose", LOW, "F.transpose(x)", "x.T.contiguous()")
    yield pair("move", "concat", (WIDE, WIDE), "F.concat(x, y, dim=1)", "torch.cat((x, y), 1)")
    yield pair("move", "stack", (TALL, TALL), "F.stack(x, y, axis=2)", "torch.stack((x, y), 2)")
    yield single(
        "move",
        "slice_axis",
        WIDE,
        "F.slice_axis(x, axis=1, begin=100, end=900)",
        "x[:, 100:900].contiguous()",
    )
    yield single(
        "move",
        "pad",
        (64, 32, 28, 28),
        "F.pad(x, mode='constant', pad_width=(0, 0, 0, 0, 1, 1, 1, 1))",
        "F.pad(x, (1, 1, 1, 1))",
    )
    yield single(
        "move",
        "one hot",
        (100000,),
        "F.one_hot(x, 100)",
        "F.one_hot(x.long(), 100).float()",
        "int32",
    )
    for dtype in ("float64", "float16", "uint8"):
        yield single("move", "transpose", WIDE, "F.transpose(x)", "x.T.contiguous()", dtype)
    yield single(
        "move",
        "transpose",
        IMAGES,
        "F.transpose(x, axes=(0, 2, 1, 3))",
        "x.permute(0, 2, 1, 3).contiguous()",
        where=" of the middle",
    )
    yield single(
        "move",
        "transpose",
        (64, 28, 28, 32),
        "F.transpose(x, axes=(0, 3, 1, 2))",
        "x.permute(0, 3, 1, 2).contiguous()",
        where=" channels second",
    )
    yield pair("move", "concat", (WIDE, WIDE), "F.concat(x, y, dim=0)", "torch.cat((x, y), 0)")
    yield pair("move", "concat", (TALL, TALL), "F.concat(x, y, dim=1)", "torch.cat((x, y), 1)")
    yield single(
        "move",
        "split",
        WIDE,
        "F.split(x, num_outputs=4, axis=1)",
        "[part.contiguous() for part in x.chunk(4, 1)]",
    )
    yield single(
        "move",
        "split",
        WIDE,
        "F.split(x, num_outputs=4, axis=0)",
        "[part.clone() for part in x.chunk(4, 0)]",
        where=" axis 0",
    )
    yield single(
        "move",
        "slice with steps",
        WIDE,
        "F.slice(x, begin=(0, 0), end=(1000, 1000), step=(1, 2))",
        "x[:, ::2].contiguous()",
    )
    yield Case(
        "move",
        "take columns",
        (("x", (1000, 1000), "float32"), ("i", (100,), "int64")),
        "F.take(x, i, axis=1)",
        "x[:, i]",
    )
    yield Case(
        "move",
        "pick",
        (("x", (10000, 100), "float32"), ("i", (10000,), "int64")),
        "F.pick(x, i)",
        "x.gather(1, i[:, None])[:, 0]",
    )
    yield pair(
        "move", "where, rows", (WIDE, WIDE), "F.where(x > 0, x, y)", "x.where(x > 0, y)", "float64"
    )
    yield Case(
        "move",
        "take rows",
        (("x", (10000, 64), "float32"), ("i", (20000,), "int64")),
        "F.take(x, i)",
        "x[i]",
    )


CASES = [
    case
    for family in (
        scans,
        softmaxes,
        reductions,
        wholes,
        broadcasts,
        elementwise,
        layers,
        steps,
        products,
        moves,
        common,
        common_layers,
        odd_shapes,
        einsum,
        numpy_calls,
    )
    for case in family()
]
