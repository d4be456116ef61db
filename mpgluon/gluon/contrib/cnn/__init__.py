"""Deformable convolutions: convolutions with learned offsets of the sampling positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._internal import domain
from ...._internal.domain import per_axis
from ...block import HybridBlock
from ...nn.activations import Activation, after
from ...nn.conv_layers import check_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...._internal.types import Init
    from ...parameter import Parameter, ParameterDict

__all__ = ["DeformableConvolution", "ModulatedDeformableConvolution"]


class DeformableConvolution(HybridBlock):
    """A deformable convolution of images. A second convolution of the input computes, for each
    position, the offsets at which the kernel samples the input.

    Parameters
    ----------
    channels : int
        Channels of the output.
    kernel_size : int or tuple of int, default (1, 1)
        Elements of the kernel along each spatial axis.
    strides, dilation : int or tuple of int, default (1, 1)
        Stride of the kernel, and spacing of its elements.
    padding : int or tuple of int, default (0, 0)
        Number of zeros added before and after each spatial axis.
    groups : int, default 1
        Number of independent convolutions into which the channels are split.
    num_deformable_group : int, default 1
        Number of groups of channels with separate offsets.
    layout : {'NCHW'}, default 'NCHW'
        Order of the axes.
    use_bias, offset_use_bias : bool, default True
        Whether the convolution and the offset convolution have a bias.
    in_channels : int, default 0
        0 to infer it in the first forward pass.
    activation : str, optional
        See `Activation`.
    weight_initializer, bias_initializer : Initializer or str, optional
        Initial values of the convolution.
    offset_weight_initializer, offset_bias_initializer : Initializer or str, default 'zeros'
        Initial values of the offset convolution.
    op_name : str, optional
        Name of the op, for subclasses.
    adj : None
        Accepted as in MXNet.

    Shapes: ``(batch, in_channels, height, width) -> (batch, channels, new height, new width)``.

    Examples
    --------
    >>> layer = gluon.contrib.cnn.DeformableConvolution(4, kernel_size=3, padding=1)
    >>> layer.initialize()
    >>> layer(nd.ones((1, 2, 5, 6))).shape
    (1, 4, 5, 6)
    """

    _op = "DeformableConvolution"
    _offsets = 2  # number of offset channels per kernel element

    def __init__(
        self,
        channels: int,
        kernel_size: int | Sequence[int] = (1, 1),
        strides: int | Sequence[int] = (1, 1),
        padding: int | Sequence[int] = (0, 0),
        dilation: int | Sequence[int] = (1, 1),
        groups: int = 1,
        num_deformable_group: int = 1,
        layout: str = "NCHW",
        use_bias: bool = True,
        in_channels: int = 0,
        activation: str | None = None,
        weight_initializer: Init | None = None,
        bias_initializer: Init = "zeros",
        offset_weight_initializer: Init = "zeros",
        offset_bias_initializer: Init = "zeros",
        offset_use_bias: bool = True,
        op_name: str | None = None,
        adj: None = None,
        prefix: str | None = None,
        params: ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        if layout != "NCHW" or adj is not None:
            raise ValueError(
                f"{type(self).__name__}: layout must be 'NCHW' and adj must be None, not "
                f"{layout!r}, {adj!r}"
            )
        kernel = per_axis(kernel_size, 2, "kernel_size", 1)
        domain.size(1, channels=channels, groups=groups, num_deformable_group=num_deformable_group)
        domain.size(0, in_channels=in_channels)
        check_groups(type(self).__name__, groups, channels=channels, in_channels=in_channels)
        common = {
            "kernel": kernel,
            "stride": per_axis(strides, 2, "strides", 1),
            "dilate": per_axis(dilation, 2, "dilation", 1),
            "pad": per_axis(padding, 2, "padding", 0),
            "num_group": groups,
            "layout": layout,
        }
        self._channels, self._in_channels = channels, in_channels
        self._op_name = op_name or self._op
        each = kernel[0] * kernel[1] * num_deformable_group
        self._split = 2 * each
        self._offset_options = {
            **common,
            "num_filter": self._offsets * each,
            "no_bias": not offset_use_bias,
        }
        self._options = {
            **common,
            "num_filter": channels,
            "no_bias": not use_bias,
            "num_deformable_group": num_deformable_group,
        }
        with self.name_scope():
            weight, bias = self._parameters(
                "offset", self._offset_options, offset_weight_initializer, offset_bias_initializer
            )
            self.offset_weight: Parameter = weight
            self.offset_bias: Parameter | None = bias
            weight, bias = self._parameters(
                "deformable_conv", self._options, weight_initializer, bias_initializer
            )
            self.deformable_conv_weight: Parameter = weight
            self.deformable_conv_bias: Parameter | None = bias
            self.act: Activation | None = after(type(self).__name__, activation)

    def _parameters(
        self, name: str, options: dict[str, Any], weight: Init | None, bias: Init
    ) -> tuple[Parameter, Parameter | None]:
        """Creates the weight and bias (or None) of a convolution."""
        filters, groups = options["num_filter"], options["num_group"]
        shape = (filters, self._in_channels // groups, *options["kernel"])
        get = self.params.get
        made = get(f"{name}_weight", shape=shape, init=weight, allow_deferred_init=True)
        if options["no_bias"]:
            return made, None
        return made, get(f"{name}_bias", shape=(filters,), init=bias, allow_deferred_init=True)

    def _convolved(self, F, x, offset, weight, bias):
        inputs = [x, offset, weight] + ([] if bias is None else [bias])
        return getattr(F.contrib, self._op_name)(*inputs, name="fwd", **self._options)

    def hybrid_forward(
        self,
        F: Any,
        x: Any,
        offset_weight: Any,
        deformable_conv_weight: Any,
        offset_bias: Any = None,
        deformable_conv_bias: Any = None,
    ) -> Any:
        inputs = [x, offset_weight] + ([] if offset_bias is None else [offset_bias])
        offset = F.Convolution(*inputs, **self._offset_options)
        out = self._convolved(F, x, offset, deformable_conv_weight, deformable_conv_bias)
        return out if self.act is None else self.act(out)

    def _alias(self):
        return "deformable_conv"

    def __repr__(self) -> str:
        options, shape = self._options, self.deformable_conv_weight.shape or ()
        text = (
            f"{type(self).__name__}({shape[1] or None} -> {shape[0]}, "
            f"kernel_size={options['kernel']}, stride={options['stride']}"
        )
        for name, option, default in (
            ("padding", "pad", (0, 0)),
            ("dilation", "dilate", (1, 1)),
            ("groups", "num_group", 1),
        ):
            text += f", {name}={options[option]}" if options[option] != default else ""
        text += ", bias=False" if options["no_bias"] else ""
        return text + (")" if self.act is None else f", {self.act})")


class ModulatedDeformableConvolution(DeformableConvolution):
    """A deformable convolution that also learns a modulation: a factor between 0 and 2 for each
    element of the kernel at each position. See `DeformableConvolution` for the parameters.

    Examples
    --------
    >>> layer = gluon.contrib.cnn.ModulatedDeformableConvolution(4, kernel_size=3)
    >>> layer.initialize()
    >>> layer(nd.ones((1, 2, 5, 6))).shape
    (1, 4, 3, 4)
    """

    _op = "ModulatedDeformableConvolution"
    _offsets = 3

    def _convolved(self, F, x, offset, weight, bias):
        places = F.slice_axis(offset, axis=1, begin=0, end=self._split)
        mask = F.sigmoid(F.slice_axis(offset, axis=1, begin=self._split, end=None)) * 2
        inputs = [x, places, mask, weight] + ([] if bias is None else [bias])
        return getattr(F.contrib, self._op_name)(*inputs, name="fwd", **self._options)

    def _alias(self):
        return "modulated_deformable_conv"
