"""Convolution and pooling layers.

Arrays are ``(batch, channels, *space)`` unless `layout` is given. N, C, D, H, W stand for batch,
channels, depth, height, width.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ..._internal import domain
from ..._internal.domain import per_axis
from ...base import MXNetValueError
from ..block import HybridBlock
from .activations import Activation, activation_name, after

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Never

    from ..._internal.types import Init, Layer
    from ..parameter import Parameter, ParameterDict
else:
    Layer = HybridBlock


__all__ = [
    "Conv1D",
    "Conv2D",
    "Conv3D",
    "Conv1DTranspose",
    "Conv2DTranspose",
    "Conv3DTranspose",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "AvgPool1D",
    "AvgPool2D",
    "AvgPool3D",
    "GlobalMaxPool1D",
    "GlobalMaxPool2D",
    "GlobalMaxPool3D",
    "GlobalAvgPool1D",
    "GlobalAvgPool2D",
    "GlobalAvgPool3D",
    "ReflectionPad2D",
]

_LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


def check_layout(layout: str | None, ndim: int) -> str:
    if layout is None:
        return _LAYOUTS[ndim][0]
    if layout not in _LAYOUTS[ndim]:
        raise AssertionError(
            f"layout must be one of {', '.join(_LAYOUTS[ndim])} for {ndim}D layers, not {layout}"
        )
    return layout


def check_groups(layer: str, groups: int, **channels: int) -> None:
    """Raises ValueError if channels cannot be divided into the groups."""
    for name, count in channels.items():
        if count % groups:
            raise MXNetValueError(
                f"{layer}: groups must divide {name}, but {name} is {count} and groups {groups}"
            )


def _with_example(doc, *lines):
    """Appends an example to a docstring. `lines` are calls, then the output of the last call."""
    *calls, result = lines
    shown = "".join(f">>> {call}\n" for call in calls)
    return f"{inspect.cleandoc(doc)}\n\nExamples\n--------\n{shown}{result}\n"


class _Conv(Layer):
    """A convolution over `_ndim` spatial axes.

    Parameters
    ----------
    channels : int
        Channels of the output.
    kernel_size : int or tuple of int
        Size of the kernel along each spatial axis.
    strides, dilation : int or tuple of int, default 1
        Stride of the kernel, and spacing of its elements.
    padding : int or tuple of int, default 0
        Number of zeros added before and after each spatial axis.
    groups : int, default 1
        Number of independent convolutions into which the channels are split.
    layout : str, optional
        Order of the axes; by default, channels precede the spatial axes.
    activation : str, optional
        See `Activation`.
    use_bias : bool, default True
        Whether to add `bias` to the product.
    weight_initializer : Initializer or str, optional
        Initial values of `weight`; by default those of the initializer given to ``initialize``.
    bias_initializer : Initializer or str, default 'zeros'
        Initial values of `bias`.
    in_channels : int, default 0
        0 to infer it in the first forward pass.
    """

    _ndim = 0
    _op_name = "Convolution"

    def __init__(
        self,
        channels: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        layout: str | None = None,
        activation: str | None = None,
        use_bias: bool = True,
        weight_initializer: Init | None = None,
        bias_initializer: Init = "zeros",
        in_channels: int = 0,
        prefix: str | None = None,
        params: ParameterDict | None = None,
        **kwargs: Never,
    ) -> None:
        super().__init__(prefix=prefix, params=params, **kwargs)
        ndim = self._ndim
        layout = check_layout(layout, ndim)
        kernel = per_axis(kernel_size, ndim, "kernel_size", 1)
        domain.size(1, channels=channels, groups=groups)
        domain.size(0, in_channels=in_channels)
        check_groups(type(self).__name__, groups, channels=channels, in_channels=in_channels)
        self._channels = channels
        self._in_channels = in_channels
        self._kwargs = {
            "kernel": kernel,
            "stride": per_axis(strides, ndim, "strides", 1),
            "dilate": per_axis(dilation, ndim, "dilation", 1),
            "pad": per_axis(padding, ndim, "padding", 0),
            "num_filter": channels,
            "num_group": groups,
            "no_bias": not use_bias,
            "layout": layout,
        }
        first, second = self._weight_channels(in_channels, groups)
        shape = (first, second, *kernel) if layout[1] == "C" else (first, *kernel, second)
        with self.name_scope():
            self.weight: Parameter = self.params.get(
                "weight", shape=shape, init=weight_initializer, allow_deferred_init=True
            )
            self.bias: Parameter | None = None
            if use_bias:
                self.bias = self.params.get(
                    "bias", shape=(channels,), init=bias_initializer, allow_deferred_init=True
                )
            self.act: Activation | None = after(type(self).__name__, activation)

    def _weight_channels(self, in_channels, groups):
        return self._channels, in_channels // groups

    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        op = getattr(F, self._op_name)
        inputs = (x, weight) if bias is None else (x, weight, bias)
        out = op(*inputs, name="fwd", **self._kwargs)
        return out if self.act is None else self.act(out)

    def _alias(self):
        return "conv"

    def __repr__(self) -> str:
        options = self._kwargs
        shape = self.weight.shape
        text = (
            f"{type(self).__name__}({shape[1] or None} -> {shape[0]}, "
            f"kernel_size={options['kernel']}, stride={options['stride']}"
        )
        if any(options["pad"]):
            text += f", padding={options['pad']}"
        if any(size != 1 for size in options["dilate"]):
            text += f", dilation={options['dilate']}"
        if options["num_group"] != 1:
            text += f", groups={options['num_group']}"
        if self.bias is None:
            text += ", bias=False"
        if self.act is not None:
            text += f", {self.act}"
        return text + ")"


class Conv1D(_Conv):
    __doc__ = _with_example(
        _Conv.__doc__.replace("`_ndim` spatial axes", "one spatial axis"),
        "layer = nn.Conv1D(4, kernel_size=3, padding=1)",
        "layer.initialize()",
        "layer(nd.zeros((2, 3, 8))).shape",
        "(2, 4, 8)",
    )
    _ndim = 1


class Conv2D(_Conv):
    __doc__ = _with_example(
        _Conv.__doc__.replace("`_ndim`", "two"),
        "layer = nn.Conv2D(4, kernel_size=3, padding=1)",
        "layer.initialize()",
        "layer(nd.zeros((2, 3, 8, 8))).shape",
        "(2, 4, 8, 8)",
    )
    _ndim = 2


class Conv3D(_Conv):
    __doc__ = _with_example(
        _Conv.__doc__.replace("`_ndim`", "three"),
        "layer = nn.Conv3D(4, kernel_size=3, padding=1)",
        "layer.initialize()",
        "layer(nd.zeros((2, 3, 8, 8, 8))).shape",
        "(2, 4, 8, 8, 8)",
    )
    _ndim = 3


class _ConvTranspose(_Conv):
    """A transposed convolution over `_ndim` spatial axes: the gradient of a convolution with
    respect to its input.

    Parameters
    ----------
    output_padding : int or tuple of int, default 0
        Elements added to one side of each spatial axis of the output.
    weight_initializer : Initializer or str, optional
        Initial values of `weight`; by default those of the initializer given to ``initialize``.
    bias_initializer : Initializer or str, default 'zeros'
        Initial values of `bias`.
    channels : int
        Channels of the output.
    kernel_size : int or tuple of int
        Size of the kernel along each spatial axis.
    strides : int or tuple of int, default 1
        Factor by which each spatial axis grows.
    padding : int or tuple of int, default 0
        Number of elements removed before and after each spatial axis.
    dilation : int or tuple of int, default 1
        Spacing of the kernel's elements.
    groups : int, default 1
        Number of independent convolutions into which the channels are split.
    layout : str, optional
        Order of the axes; by default, channels precede the spatial axes.
    activation : str, optional
        See `Activation`.
    use_bias : bool, default True
        Whether to add `bias`.
    in_channels : int, default 0
        Channels of the input; 0 to infer them in the first forward pass.
    """

    _op_name = "Deconvolution"

    def __init__(
        self,
        channels: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        layout: str | None = None,
        activation: str | None = None,
        use_bias: bool = True,
        weight_initializer: Init | None = None,
        bias_initializer: Init = "zeros",
        in_channels: int = 0,
        prefix: str | None = None,
        params: ParameterDict | None = None,
        **kwargs: Never,
    ) -> None:
        super().__init__(
            channels,
            kernel_size,
            strides,
            padding,
            dilation,
            groups,
            layout,
            activation,
            use_bias,
            weight_initializer,
            bias_initializer,
            in_channels,
            prefix,
            params,
            **kwargs,
        )
        self.outpad: tuple[int, ...] = per_axis(output_padding, self._ndim, "output_padding", 0)
        self._kwargs["adj"] = self.outpad

    def _weight_channels(self, in_channels, groups):
        return in_channels, self._channels // groups


class Conv1DTranspose(_ConvTranspose):
    __doc__ = _with_example(
        _ConvTranspose.__doc__.replace("`_ndim` spatial axes", "one spatial axis"),
        "layer = nn.Conv1DTranspose(4, kernel_size=2, strides=2)",
        "layer.initialize()",
        "layer(nd.zeros((2, 3, 8))).shape",
        "(2, 4, 16)",
    )
    _ndim = 1


class Conv2DTranspose(_ConvTranspose):
    __doc__ = _with_example(
        _ConvTranspose.__doc__.replace("`_ndim`", "two"),
        "layer = nn.Conv2DTranspose(4, kernel_size=2, strides=2)",
        "layer.initialize()",
        "layer(nd.zeros((2, 3, 8, 8))).shape",
        "(2, 4, 16, 16)",
    )
    _ndim = 2


class Conv3DTranspose(_ConvTranspose):
    __doc__ = _with_example(
        _ConvTranspose.__doc__.replace("`_ndim`", "three"),
        "layer = nn.Conv3DTranspose(4, kernel_size=2, strides=2)",
        "layer.initialize()",
        "layer(nd.zeros((2, 3, 8, 8, 8))).shape",
        "(2, 4, 16, 16, 16)",
    )
    _ndim = 3


class _Pooling(Layer):
    """Maximum or mean pooling over windows of the spatial axes.

    Parameters
    ----------
    pool_size : int or tuple of int, default 2
        Size of the window along each spatial axis.
    strides : int or tuple of int, optional
        Stride of the window; defaults to `pool_size`.
    padding : int or tuple of int, default 0
        Number of elements added before and after each spatial axis.
    ceil_mode : bool, default False
        Whether to include a window at the end that fits only partly.
    layout : str, optional
        Order of the axes; by default, channels precede the spatial axes.
    """

    _ndim = 0
    _pool_type = ""
    _global_pool = False

    def __init__(
        self,
        pool_size: int | Sequence[int],
        strides: int | Sequence[int] | None,
        padding: int | Sequence[int],
        layout: str | None,
        ceil_mode: bool,
        count_include_pad: bool | None = None,
        prefix: str | None = None,
        params: ParameterDict | None = None,
        **kwargs: Never,
    ) -> None:
        super().__init__(prefix=prefix, params=params, **kwargs)
        layout = check_layout(layout, self._ndim)
        kernel = per_axis(pool_size, self._ndim, "pool_size", 1)
        self._kwargs = {
            "kernel": kernel,
            "stride": kernel if strides is None else per_axis(strides, self._ndim, "strides", 1),
            "pad": per_axis(padding, self._ndim, "padding", 0),
            "global_pool": self._global_pool,
            "pool_type": self._pool_type,
            "layout": layout,
            "pooling_convention": "full" if ceil_mode else "valid",
        }
        if count_include_pad is not None:
            self._kwargs["count_include_pad"] = count_include_pad

    def _alias(self):
        return "pool"

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.Pooling(x, name="fwd", **self._kwargs)

    def __repr__(self) -> str:
        options = self._kwargs
        return (
            f"{type(self).__name__}(size={options['kernel']}, stride={options['stride']}, "
            f"padding={options['pad']}, ceil_mode={options['pooling_convention'] == 'full'}, "
            f"global_pool={options['global_pool']}, pool_type={options['pool_type']}, "
            f"layout={options['layout']})"
        )


_PADDING = """count_include_pad : bool, default True
        True if the mean includes padding.
    """

# The order of positional arguments differs between the pooling classes, as in MXNet.


class MaxPool1D(_Pooling):
    __doc__ = _with_example(
        _Pooling.__doc__, "nn.MaxPool1D()(nd.zeros((2, 3, 8))).shape", "(2, 3, 4)"
    )
    _ndim = 1
    _pool_type = "max"

    def __init__(
        self,
        pool_size: int | Sequence[int] = 2,
        strides: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        layout: str | None = None,
        ceil_mode: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(pool_size, strides, padding, layout, ceil_mode, **kwargs)


class MaxPool2D(MaxPool1D):
    __doc__ = _with_example(
        _Pooling.__doc__, "nn.MaxPool2D()(nd.zeros((2, 3, 8, 8))).shape", "(2, 3, 4, 4)"
    )
    _ndim = 2


class MaxPool3D(_Pooling):
    __doc__ = _with_example(
        _Pooling.__doc__, "nn.MaxPool3D()(nd.zeros((2, 3, 8, 8, 8))).shape", "(2, 3, 4, 4, 4)"
    )
    _ndim = 3
    _pool_type = "max"

    def __init__(
        self,
        pool_size: int | Sequence[int] = 2,
        strides: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        layout: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(pool_size, strides, padding, layout, ceil_mode, **kwargs)


class AvgPool1D(_Pooling):
    __doc__ = _with_example(
        _Pooling.__doc__ + _PADDING, "nn.AvgPool1D()(nd.zeros((2, 3, 8))).shape", "(2, 3, 4)"
    )
    _ndim = 1
    _pool_type = "avg"

    def __init__(
        self,
        pool_size: int | Sequence[int] = 2,
        strides: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        layout: str | None = None,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            pool_size, strides, padding, layout, ceil_mode, count_include_pad, **kwargs
        )


class AvgPool2D(_Pooling):
    __doc__ = _with_example(
        _Pooling.__doc__ + _PADDING, "nn.AvgPool2D()(nd.zeros((2, 3, 8, 8))).shape", "(2, 3, 4, 4)"
    )
    _ndim = 2
    _pool_type = "avg"

    def __init__(
        self,
        pool_size: int | Sequence[int] = 2,
        strides: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        layout: str | None = None,
        count_include_pad: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            pool_size, strides, padding, layout, ceil_mode, count_include_pad, **kwargs
        )


class AvgPool3D(AvgPool2D):
    __doc__ = _with_example(
        _Pooling.__doc__ + _PADDING,
        "nn.AvgPool3D()(nd.zeros((2, 3, 8, 8, 8))).shape",
        "(2, 3, 4, 4, 4)",
    )
    _ndim = 3


class _GlobalPooling(_Pooling):
    """Maximum or mean pooling over all spatial axes, which are kept with size 1.

    Parameters
    ----------
    layout : str, optional
        Order of the axes; by default, channels precede the spatial axes.
    """

    _global_pool = True

    def __init__(self, layout: str | None = None, **kwargs: Any) -> None:
        super().__init__(1, None, 0, layout, True, **kwargs)


class GlobalMaxPool1D(_GlobalPooling):
    __doc__ = _with_example(
        _GlobalPooling.__doc__, "nn.GlobalMaxPool1D()(nd.zeros((2, 3, 8))).shape", "(2, 3, 1)"
    )
    _ndim = 1
    _pool_type = "max"


class GlobalMaxPool2D(GlobalMaxPool1D):
    __doc__ = _with_example(
        _GlobalPooling.__doc__, "nn.GlobalMaxPool2D()(nd.zeros((2, 3, 8, 8))).shape", "(2, 3, 1, 1)"
    )
    _ndim = 2


class GlobalMaxPool3D(GlobalMaxPool1D):
    __doc__ = _with_example(
        _GlobalPooling.__doc__,
        "nn.GlobalMaxPool3D()(nd.zeros((2, 3, 8, 8, 8))).shape",
        "(2, 3, 1, 1, 1)",
    )
    _ndim = 3


class GlobalAvgPool1D(_GlobalPooling):
    __doc__ = _with_example(
        _GlobalPooling.__doc__, "nn.GlobalAvgPool1D()(nd.zeros((2, 3, 8))).shape", "(2, 3, 1)"
    )
    _ndim = 1
    _pool_type = "avg"


class GlobalAvgPool2D(GlobalAvgPool1D):
    __doc__ = _with_example(
        _GlobalPooling.__doc__, "nn.GlobalAvgPool2D()(nd.zeros((2, 3, 8, 8))).shape", "(2, 3, 1, 1)"
    )
    _ndim = 2


class GlobalAvgPool3D(GlobalAvgPool1D):
    __doc__ = _with_example(
        _GlobalPooling.__doc__,
        "nn.GlobalAvgPool3D()(nd.zeros((2, 3, 8, 8, 8))).shape",
        "(2, 3, 1, 1, 1)",
    )
    _ndim = 3


class ReflectionPad2D(Layer):
    """Pads height and width with the reflection of the input.

    Parameters
    ----------
    padding : int or tuple of 8 int, default 0
        Number of elements before and after each of the four axes, or a number for height and width.

    Examples
    --------
    >>> nn.ReflectionPad2D(1)(nd.zeros((1, 1, 3, 3))).shape
    (1, 1, 5, 5)
    """

    def __init__(self, padding: int | Sequence[int] = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        each = per_axis(padding, 8, "padding", 0)
        if not hasattr(padding, "__len__"):
            each = (0, 0, 0, 0, *each[:4])
        if any(each[:4]):
            raise MXNetValueError(
                f"ReflectionPad2D: padding must be 0 for batch and channels, got {padding}"
            )
        self._padding = each

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.pad(x, mode="reflect", pad_width=self._padding)


def convolution_arguments(layer: Conv2D) -> dict[str, Any]:
    """Returns the constructor arguments of an existing convolution, with its inferred sizes. Used
    by `parallel.shard`."""
    given = layer._kwargs
    groups = given["num_group"]
    return {
        "channels": layer._channels,
        "kernel_size": given["kernel"],
        "strides": given["stride"],
        "padding": given["pad"],
        "dilation": given["dilate"],
        "groups": groups,
        "layout": given["layout"],
        "activation": activation_name(layer),
        "use_bias": layer.bias is not None,
        "weight_initializer": layer.weight.init,
        "bias_initializer": layer.bias.init if layer.bias is not None else "zeros",
        "in_channels": layer.weight.shape[given["layout"].index("C")] * groups,
    }
