"""Samples of convolution and pooling. The references are plain loops over windows."""

import itertools

import numpy as np

from samples.base import Sample


def tuple_of(value, default, ndim):
    return tuple(value) if value else (default,) * ndim


def places(data, kernel, stride, dilate, pad):
    return tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, d, p in zip(data.shape[2:], kernel, stride, dilate, pad)
    )


def windows(data, kernel, stride, dilate, pad):
    """Returns windows of shape (batch, channels, kernel..., positions...)."""
    padded = np.pad(data, ((0, 0), (0, 0)) + tuple((p, p) for p in pad))
    out = places(data, kernel, stride, dilate, pad)
    result = np.empty(data.shape[:2] + tuple(kernel) + out, data.dtype)
    for at in itertools.product(*map(range, kernel)):
        cut = tuple(
            slice(a * d, a * d + s * (n - 1) + 1, s) for a, d, s, n in zip(at, dilate, stride, out)
        )
        result[(slice(None), slice(None)) + at] = padded[(slice(None), slice(None)) + cut]
    return result


LAST = ("NWC", "NHWC", "NDHWC")
HIDDEN = "channels_last_data"


def first(array):
    return np.moveaxis(array, -1, 1)


def laid_out(reference, weight=True, result_weight=False):
    """Wraps a channels-second reference to support the op's channels-last `layout`.

    Data (and the weight) then have the channels last.
    """

    def run(data, *rest, layout=None, **params):
        if layout not in LAST + (HIDDEN, "channels_last"):
            return reference(data, *rest, **params)
        rest = [
            first(a) if a.ndim > 1 and (i or not weight or layout != HIDDEN) else a
            for i, a in enumerate(rest)
        ]
        if "shape" in params:
            shape = params["shape"]
            weight_last = result_weight and layout == HIDDEN
            params["shape"] = (
                tuple(shape) if weight_last else (shape[0], shape[-1]) + tuple(shape[1:-1])
            )
        result = reference(first(data), *rest, **params)
        return result if result_weight and layout == HIDDEN else np.moveaxis(result, 1, -1)

    return run


def convolution(
    data,
    weight,
    bias=None,
    kernel=(),
    stride=(),
    dilate=(),
    pad=(),
    num_filter=1,
    num_group=1,
    no_bias=False,
):
    n = len(kernel)
    stride, dilate, pad = tuple_of(stride, 1, n), tuple_of(dilate, 1, n), tuple_of(pad, 0, n)
    columns = windows(data, kernel, stride, dilate, pad)
    out = columns.shape[2 + n :]
    columns = columns.reshape(
        data.shape[0],
        num_group,
        data.shape[1] // num_group * int(np.prod(kernel)),
        int(np.prod(out)),
    )
    rows = weight.reshape(num_group, num_filter // num_group, -1)
    result = np.einsum("gfk,bgkp->bgfp", rows, columns).reshape((data.shape[0], num_filter) + out)
    return result if no_bias else result + bias.reshape((1, -1) + (1,) * n)


def deconvolution(
    data,
    weight,
    bias=None,
    kernel=(),
    stride=(),
    dilate=(),
    pad=(),
    adj=(),
    target_shape=(),
    num_filter=1,
    num_group=1,
    no_bias=True,
):
    n = len(kernel)
    stride, dilate, pad, adj = (
        tuple_of(stride, 1, n),
        tuple_of(dilate, 1, n),
        tuple_of(pad, 0, n),
        tuple_of(adj, 0, n),
    )
    full = tuple(
        s * (i - 1) + d * (k - 1) + 1 for s, i, d, k in zip(stride, data.shape[2:], dilate, kernel)
    )
    if target_shape:
        adj = tuple((f - t) % 2 for f, t in zip(full, target_shape))
        pad = tuple((f - t + 1) // 2 for f, t in zip(full, target_shape))
    result = np.zeros((data.shape[0], num_filter) + tuple(f + a for f, a in zip(full, adj)))
    inputs, outputs = data.shape[1] // num_group, num_filter // num_group
    for group in range(num_group):
        x, w = (
            data[:, group * inputs : (group + 1) * inputs],
            weight[group * inputs : (group + 1) * inputs],
        )
        for at in itertools.product(*map(range, kernel)):
            cut = tuple(
                slice(a * d, a * d + s * (i - 1) + 1, s)
                for a, d, s, i in zip(at, dilate, stride, data.shape[2:])
            )
            part = np.tensordot(x, w[(slice(None), slice(None)) + at], axes=(1, 0))
            result[(slice(None), slice(group * outputs, (group + 1) * outputs)) + cut] += (
                np.moveaxis(part, -1, 1)
            )
    keep = tuple(slice(p, f - p + a) for p, f, a in zip(pad, full, adj))
    result = result[(slice(None), slice(None)) + keep]
    return result if no_bias else result + bias.reshape((1, -1) + (1,) * n)


def im2col(data, kernel, stride=(), dilate=(), pad=()):
    n = len(kernel)
    stride, dilate, pad = tuple_of(stride, 1, n), tuple_of(dilate, 1, n), tuple_of(pad, 0, n)
    columns = windows(data, kernel, stride, dilate, pad)
    return columns.reshape(data.shape[0], data.shape[1] * int(np.prod(kernel)), -1)


def col2im(data, output_size, kernel, stride=(), dilate=(), pad=()):
    channels = data.shape[1] // int(np.prod(kernel))
    size = channels * int(np.prod(output_size))
    index = im2col(
        np.arange(size, dtype=np.float64).reshape((1, channels) + tuple(output_size)) + 1,
        kernel,
        stride,
        dilate,
        pad,
    )[0]
    # position 0 collects contributions from the padding
    result = np.zeros((data.shape[0], size + 1))
    for batch in range(data.shape[0]):
        np.add.at(result[batch], index.astype(int).ravel(), data[batch].ravel())
    return result[:, 1:].reshape((data.shape[0], channels) + tuple(output_size))


def upsampling(*arrays, scale, sample_type, multi_input_mode="concat", num_args=1):
    height = arrays[0].shape[2] * scale
    parts = [a.repeat(height // a.shape[2], 2).repeat(height // a.shape[2], 3) for a in arrays]
    return np.concatenate(parts, 1) if multi_input_mode == "concat" else sum(parts)


def backward_data(grad, weight, stride=(), dilate=(), pad=(), num_group=1, shape=()):
    """Adjoint of the convolution with respect to its data.

    Scatters the columns weight^T x grad back to their input positions and adds them.
    """
    kernel = weight.shape[2:]
    rows = weight.reshape(num_group, weight.shape[0] // num_group, -1)
    grads = grad.reshape(grad.shape[0], num_group, grad.shape[1] // num_group, -1)
    columns = np.einsum("gfk,bgfp->bgkp", rows, grads).reshape(grad.shape[0], -1, grads.shape[-1])
    return col2im(columns, shape[2:], kernel, stride, dilate, pad)


def backward_weight(grad, data, stride=(), dilate=(), pad=(), num_group=1, shape=()):
    columns = im2col(data, shape[2:], stride, dilate, pad).reshape(
        data.shape[0], num_group, shape[1] * int(np.prod(shape[2:])), -1
    )
    grads = grad.reshape(grad.shape[0], num_group, grad.shape[1] // num_group, -1)
    return np.einsum("bgfp,bgkp->gfk", grads, columns).reshape(shape)


def conv(data, weight, name, bias=True, **params):
    params["kernel"] = weight[1:-1] if params.get("layout") in LAST else weight[2:]
    params["num_filter"] = weight[0]
    if not bias:
        params["no_bias"] = True
    reference = laid_out(convolution)
    if params.get("layout") == HIDDEN:  # a separate op, not a value of `layout`
        del params["layout"]
        reference = lambda *arrays, **params: laid_out(convolution)(
            *arrays, layout=HIDDEN, **params
        )
    more = dict(grad2=True) if params.pop("grad2", False) else {}
    if params.pop("values_only", False):
        more["grad"] = False
    return Sample(
        [data, weight] + ([(weight[0],)] if bias else []),
        params,
        reference,
        name=name,
        rtol=1e-4,
        atol=2e-5,
        **more,
    )


def deconv(data, weight, name, bias=False, **params):
    last = params.get("layout") in LAST
    params["kernel"] = weight[1:-1] if last else weight[2:]
    params["num_filter"] = weight[-1 if last else 1] * params.get("num_group", 1)
    params["no_bias"] = not bias
    more = dict(grad2=True) if params.pop("grad2", False) else {}
    return Sample(
        [data, weight] + ([(params["num_filter"],)] if bias else []),
        params,
        laid_out(deconvolution),
        name=name,
        rtol=1e-4,
        atol=2e-5,
        **more,
    )


def packed(
    data,
    weight,
    name,
    no_bias=False,
    channels_last=False,
    add=False,
    relu=False,
    num_group=1,
    **params,
):
    """A sample whose packed weight is the plain weight after a header. Shapes have channels
    second."""
    ndim, filters, groups = len(data) - 2, weight[0], num_group
    each, channels = filters // groups, data[1] // groups
    up = lambda n, step: -(-n // step) * step
    room = (
        up(each, 16 if each < 64 else 64) * up(channels, 16)
        if groups == 1
        else up(groups, 16) * each * channels
        if each < 8
        else groups * up(each, 16) * up(channels, 16)
    )
    values = np.random.RandomState(1).uniform(-1, 1, weight).astype(np.float32)
    buffer = np.zeros(16 + room * int(np.prod(weight[2:])), np.float32)
    buffer[16 : 16 + values.size] = values.ravel()

    def reference(
        x,
        _,
        *rest,
        kernel,
        num_filter,
        num_group=1,
        no_bias=False,
        channels_last=False,
        add=False,
        relu=False,
        **params,
    ):
        rest = list(rest)
        bias = [] if no_bias else [rest.pop(0)]
        y = convolution(
            first(x) if channels_last else x,
            values.astype(np.float64),
            *bias,
            kernel=kernel,
            num_filter=num_filter,
            num_group=num_group,
            no_bias=no_bias,
            **params,
        )
        y = np.moveaxis(y, 1, -1) if channels_last else y
        y = y + rest[0] if add else y
        return np.maximum(y, 0) if relu else y

    out = places(
        np.empty(data),
        weight[2:],
        *(tuple_of(params.get(k), d, ndim) for k, d in (("stride", 1), ("dilate", 1), ("pad", 0))),
    )
    laid = lambda shape: (shape[0], *shape[2:], shape[1]) if channels_last else shape
    inputs = (
        [laid(data), buffer] + [(filters,)] * (not no_bias) + [laid((data[0], filters, *out))] * add
    )
    flags = {"no_bias": no_bias, "channels_last": channels_last, "add": add, "relu": relu}
    return Sample(
        inputs,
        {"kernel": weight[2:], "num_filter": filters, "num_group": groups, **flags, **params},
        reference,
        grad=False,
        dtypes=("float32",),
        name=name,
    )


def winograd(data, filters, name, pad=(), no_bias=False, trains=False, add=False, relu=False):
    """A sample of _winograd_convolution with channels-last data.

    The backend packs its weight in its own order.
    """
    from mpgluon import _core, cpu, nd

    values = np.random.RandomState(1).uniform(-1, 1, (filters, data[3], 3, 3)).astype(np.float32)
    values[-1, -1, -1, -1] = 3
    packed_values = _core.get_op("_pack_winograd")(nd.array(values, ctx=cpu())).asnumpy()

    def reference(x, _, *rest, **params):
        rest = list(rest)
        if trains:
            rest.pop(0)
        bias = [] if no_bias else [rest.pop(0)]
        y = convolution(
            first(x),
            values.astype(np.float64),
            *bias,
            kernel=(3, 3),
            pad=pad,
            num_filter=filters,
            no_bias=no_bias,
        )
        y = np.moveaxis(y, 1, -1)
        y = y + rest[0] if add else y
        return np.maximum(y, 0) if relu else y

    out = tuple(n + 2 * p - 2 for n, p in zip(data[1:3], pad or (0, 0)))
    inputs = (
        [data, packed_values]
        + [values] * trains
        + [(filters,)] * (not no_bias)
        + [(data[0], *out, filters)] * add
    )
    flags = {"no_bias": no_bias, "trains": trains, "add": add, "relu": relu}
    return Sample(
        inputs,
        {"pad": pad, "num_filter": filters, **flags},
        reference,
        grad=False,
        dtypes=("float32",),
        name=name,
    )


def winograd_backward_weight(grad, data, pad=()):
    shape = (grad.shape[-1], data.shape[-1], 3, 3)
    if grad.size == 0:
        return np.zeros(shape)
    return backward_weight(first(grad), first(data), pad=pad, shape=shape)


SAMPLES = {
    "Convolution": [
        conv((2, 3, 7), (4, 3, 3), "one_axis", stride=(2,), pad=(1,), grad2=True),
        conv((2, 3, 6, 5), (4, 3, 3, 2), "two_axes", grad2=True),
        conv(
            (2, 3, 7, 6),
            (4, 3, 3, 3),
            "stride_pad_dilate",
            stride=(2, 1),
            pad=(2, 1),
            dilate=(1, 2),
        ),
        conv((2, 4, 5, 5), (6, 2, 3, 3), "groups", num_group=2, pad=(1, 1), grad2=True),
        conv((2, 4, 5, 5), (4, 1, 3, 3), "depthwise", num_group=4, bias=False),
        conv((1, 2, 4, 3, 5), (3, 2, 2, 2, 3), "three_axes", pad=(0, 1, 1)),
        conv((2, 5, 4, 4), (3, 5, 1, 1), "one_by_one", bias=False),
        conv((0, 3, 6, 5), (4, 3, 3, 2), "no_rows"),
        conv((2, 3, 7, 7), (4, 3, 3, 3), "last_row_unused", stride=(3, 3), bias=False),
        conv((3, 16, 20, 21), (32, 16, 3, 3), "large", pad=(1, 1), values_only=True),
        conv((2, 7, 3), (4, 3, 3), "last_one_axis", stride=(2,), pad=(1,), layout="NWC"),
        conv((2, 6, 5, 3), (4, 3, 2, 3), "last_two_axes", layout="NHWC", grad2=True),
        conv(
            (2, 5, 5, 4),
            (6, 3, 3, 2),
            "last_groups",
            num_group=2,
            pad=(1, 1),
            layout="NHWC",
            bias=False,
        ),
        conv(
            (1, 4, 3, 5, 2),
            (3, 2, 2, 3, 2),
            "last_three_axes",
            pad=(0, 1, 1),
            stride=(1, 2, 1),
            dilate=(2, 1, 1),
            layout="NDHWC",
        ),
        conv(
            (2, 14, 15, 16),
            (32, 3, 3, 16),
            "last_large",
            pad=(1, 1),
            values_only=True,
            layout="NHWC",
        ),
        conv((0, 6, 5, 3), (4, 3, 2, 3), "last_no_rows", layout="NHWC"),
    ],
    "_convolution_channels_last": [
        conv((2, 6, 5, 3), (4, 3, 3, 2), "two_axes", grad2=True, layout=HIDDEN),
        conv(
            (2, 5, 5, 4),
            (4, 1, 3, 3),
            "depthwise",
            num_group=4,
            bias=False,
            pad=(1, 1),
            layout=HIDDEN,
        ),
        conv((1, 4, 3, 5, 2), (3, 2, 2, 2, 3), "three_axes", pad=(0, 1, 1), layout=HIDDEN),
        conv((2, 9, 10, 16), (32, 16, 3, 3), "large", pad=(1, 1), stride=(2, 2), layout=HIDDEN),
    ],
    "_pack_convolution": [
        Sample(
            [(5, 4, 3, 3)],
            {"kernel": (3, 3), "num_filter": 5, "shape": (2, 4, 7, 6)},
            grad=False,
            dtypes=("float32",),
            name="two_axes",
        ),
        Sample(
            [(32, 16, 3, 3)],
            {
                "kernel": (3, 3),
                "num_filter": 32,
                "pad": (1, 1),
                "shape": (2, 9, 10, 16),
                "channels_last": True,
                "relu": True,
            },
            grad=False,
            dtypes=("float32",),
            name="last",
        ),
    ],
    "_packed_convolution": [
        packed((2, 3, 6, 5), (4, 3, 3, 2), "two_axes"),
        packed((2, 3, 6), (4, 3, 3), "one_axis", stride=(2,), relu=True),
        packed((2, 4, 5, 5), (4, 1, 3, 3), "depthwise", num_group=4, no_bias=True, pad=(1, 1)),
        packed((1, 2, 3, 4, 3), (2, 2, 2, 2, 2), "three_axes", channels_last=True, add=True),
        packed((2, 3, 6, 5), (4, 3, 3, 2), "all", channels_last=True, add=True, relu=True),
    ],
    "_pack_winograd": [
        Sample([(32, 16, 3, 3)], {}, grad=False, dtypes=("float32",), name="forward"),
        Sample(
            [(16, 80, 3, 3)], {"backward": True}, grad=False, dtypes=("float32",), name="backward"
        ),
    ],
    "_winograd_convolution": [
        winograd((2, 4, 5, 16), 16, "plain"),
        winograd((1, 5, 4, 16), 32, "all", pad=(1, 1), add=True, relu=True),
        winograd((2, 3, 3, 16), 16, "trains", pad=(2, 0), trains=True, no_bias=True),
        winograd((0, 4, 4, 16), 16, "empty"),
    ],
    "_winograd_backward_weight": [
        Sample(
            [(2, 2, 3, 16), (2, 4, 5, 16)],
            {},
            winograd_backward_weight,
            grad=False,
            dtypes=("float32",),
            name="plain",
        ),
        Sample(
            [(1, 5, 4, 80), (1, 5, 4, 16)],
            {"pad": (1, 1)},
            winograd_backward_weight,
            grad=False,
            dtypes=("float32",),
            name="padded",
        ),
        Sample(
            [(0, 5, 4, 16), (0, 5, 4, 16)],
            {"pad": (1, 1)},
            winograd_backward_weight,
            grad=False,
            dtypes=("float32",),
            name="empty",
        ),
    ],
    "Deconvolution": [
        deconv(
            (2, 4, 3, 3), (3, 3, 3, 2), "last", layout="NHWC", stride=(2, 1), bias=True, grad2=True
        ),
        deconv(
            (1, 3, 3, 2),
            (2, 4, 4, 3),
            "last_target",
            stride=(2, 2),
            target_shape=(6, 7),
            layout="NHWC",
        ),
        deconv((2, 3, 4), (3, 2, 3), "one_axis", stride=(2,), pad=(1,), adj=(1,), grad2=True),
        deconv((2, 3, 4, 3), (3, 2, 3, 3), "two_axes", bias=True, grad2=True),
        deconv((2, 4, 3, 3), (4, 2, 3, 2), "groups", num_group=2, stride=(2, 2), bias=True),
        deconv((1, 2, 3, 3), (2, 3, 4, 4), "target", stride=(2, 2), target_shape=(6, 7)),
        deconv((1, 2, 3, 3), (2, 3, 3, 3), "dilated", dilate=(2, 1), pad=(1, 0)),
        deconv((1, 2, 3, 2, 2), (2, 2, 2, 2, 2), "three_axes", stride=(2, 1, 1)),
    ],
    "_backward_convolution_data": [
        Sample(
            [(2, 4, 3, 3), (4, 3, 3, 2)],
            dict(shape=(2, 3, 5, 4)),
            backward_data,
            grad2=True,
            name="plain",
        ),
        Sample(
            [(2, 4, 3, 3), (4, 2, 3, 3)],
            dict(stride=(2, 2), pad=(1, 1), num_group=2, shape=(2, 4, 6, 5)),
            backward_data,
            name="groups",
        ),
        Sample(
            [(2, 3, 3, 4), (4, 3, 2, 3)],
            dict(shape=(2, 5, 4, 3), layout="channels_last"),
            laid_out(backward_data),
            grad2=True,
            name="last",
        ),
        Sample(
            [(2, 3, 3, 4), (4, 3, 3, 2)],
            dict(shape=(2, 5, 4, 3), layout=HIDDEN),
            laid_out(backward_data),
            grad2=True,
            name="last_data",
        ),
    ],
    "_backward_convolution_weight": [
        Sample(
            [(2, 4, 3, 3), (2, 3, 5, 4)],
            dict(shape=(4, 3, 3, 2)),
            backward_weight,
            grad2=True,
            name="plain",
        ),
        Sample(
            [(2, 4, 3, 3), (2, 4, 6, 5)],
            dict(stride=(2, 2), pad=(1, 1), num_group=2, shape=(4, 2, 3, 3)),
            backward_weight,
            name="groups",
        ),
        Sample(
            [(2, 3, 3, 4), (2, 5, 4, 3)],
            dict(shape=(4, 3, 2, 3), layout="channels_last"),
            laid_out(backward_weight, False, True),
            grad2=True,
            name="last",
        ),
        Sample(
            [(2, 3, 3, 4), (2, 5, 4, 3)],
            dict(shape=(4, 3, 3, 2), layout=HIDDEN),
            laid_out(backward_weight, False, True),
            grad2=True,
            name="last_data",
        ),
    ],
    "im2col": [
        Sample(
            [(2, 3, 5, 4)], dict(kernel=(3, 2), pad=(1, 0)), im2col, grad2=True, name="two_axes"
        ),
        Sample([(2, 3, 7)], dict(kernel=(3,), stride=(2,), dilate=(2,)), im2col, name="one_axis"),
    ],
    "col2im": [
        Sample(
            [(2, 12, 9)],
            dict(output_size=(4, 4), kernel=(2, 2)),
            col2im,
            grad2=True,
            name="two_axes",
        ),
        Sample(
            [(1, 6, 4)],
            dict(output_size=(7,), kernel=(3,), stride=(2,), pad=(1,)),
            col2im,
            name="one_axis",
        ),
    ],
    "UpSampling": [
        Sample(
            [(2, 3, 2, 3)], dict(scale=2, sample_type="nearest"), upsampling, grad2=True, name="one"
        ),
        Sample(
            [(2, 3, 2, 2), (2, 1, 4, 4)],
            dict(scale=4, sample_type="nearest", num_args=2),
            upsampling,
            name="concat",
        ),
        Sample(
            [(2, 3, 2, 2), (2, 3, 4, 4)],
            dict(scale=4, sample_type="nearest", num_args=2, multi_input_mode="sum"),
            upsampling,
            name="sum",
        ),
    ],
}
