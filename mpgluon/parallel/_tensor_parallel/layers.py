"""Tensor-parallel layers, whose weights are split over devices. Each device holds and computes a
part, and collectives combine the results (Shoeybi et al., "Megatron-LM: Training Multi-Billion
Parameter Language Models Using Model Parallelism", 2019).

If a layer is called with one array, it returns one array on the same device, so it can replace the
ordinary layer. If it is called with a list of arrays, one on each of its devices, it returns such a
list. Initial values are those of the ordinary layer with the same name and seed. Results and
gradients are equal except for the order of sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import ndarray as nd
from ..._internal import device_groups, domain
from ..._internal.domain import per_axis
from ...base import MXNetError, NotSupportedError
from ...gluon._nested import is_symbolic
from ...gluon._tree import own_parameters
from ...gluon.block import HybridBlock
from ...gluon.loss import Loss
from ...gluon.nn import Activation
from ...gluon.nn.conv_layers import check_groups, check_layout
from .. import collectives
from .parameters import Family, home_parameter, split_parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    from ...context import Context
    from ...gluon.parameter import ParameterDict
    from ...initializer import Initializer
    from ...ndarray import NDArray

__all__ = [
    "ColumnParallelDense",
    "RowParallelDense",
    "VocabParallelEmbedding",
    "VocabParallelSoftmaxCELoss",
    "ParallelConv2D",
]


class SplitLayer(HybridBlock):
    """Base class of layers that are split over devices.

    Parameters
    ----------
    ctx : list of Context
        Devices, in the order in which sums are computed.
    """

    _spans_devices = True

    def __init__(
        self, ctx: Sequence[Context], prefix: str | None = None, params: ParameterDict | None = None
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self._lines = [collectives.contexts(ctx, type(self).__name__)]  # devices of each replica

    @property
    def ctx(self) -> list[Context]:
        """The devices of the layer in the running replica, or else in the first replica."""
        return list(self._ctx)

    @property
    def _ctx(self):
        if len(self._lines) > 1 and device_groups.running():
            here = device_groups.devices()
            return next((line for line in self._lines if line[0] in here), self._lines[0])
        return self._lines[0]

    def forward(self, x: NDArray | list[NDArray], *args: Any) -> Any:
        if is_symbolic((x, *args)):
            raise NotSupportedError(
                f"{type(self).__name__} computes on arrays on several devices, so it has no symbol"
            )
        if not device_groups.running():
            if len(self._lines) > 1:
                raise MXNetError(
                    f"{type(self).__name__} '{self.name}' belongs to a network that is placed on a "
                    "mesh; call the network"
                )
            return self._forward(x, *args)
        # If a group determines the device of every op, move the inputs to the layer's devices
        # and keep the layer's own ops there.
        with device_groups.placed(None):
            return self._forward(
                device_groups.spread(x, self._ctx, nd.NDArray),
                *device_groups.move(args, self._ctx[0], nd.NDArray),
            )

    def _forward(self, x, *args):
        self._complete(x)
        return super().forward(x, *args)

    def _complete(self, x):
        """Completes sizes that are not known yet."""

    def _check_list(self, x):
        devices = [a.context for a in x]
        if devices != self._ctx:
            raise MXNetError(
                f"{type(self).__name__}: a list of inputs must hold one array on each of "
                f"{self._ctx}, in this order, but they are on {devices}"
            )
        return list(x)

    def _everywhere(self, x):
        """Returns the whole input on each device."""
        return (
            collectives.broadcast(x, self._ctx)
            if isinstance(x, nd.NDArray)
            else self._check_list(x)
        )

    def _pieces(self, x, axis):
        """Returns the input's parts along the axis. A list already consists of parts."""
        return (
            collectives.scatter(x, self._ctx, axis)
            if isinstance(x, nd.NDArray)
            else self._check_list(x)
        )

    def _shards(self, params, name):
        return [params.get(f"shard{i}_{name}") for i in range(len(self._ctx))]

    def _whole(self, outs, x, axis):
        """Joins parts, on the device of a single input or on every device."""
        return (
            collectives.gather(outs, x.context, axis)
            if isinstance(x, nd.NDArray)
            else collectives.all_gather(outs, axis)
        )

    def _total(self, outs, x):
        return (
            collectives.reduce(outs, x.context)
            if isinstance(x, nd.NDArray)
            else collectives.all_reduce(outs)
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._describe()}, over {', '.join(map(str, self._ctx))})"


def _features(x, flatten):
    size = 1
    for n in x.shape[1:] if flatten else x.shape[-1:]:
        size *= n
    return size


class _ParallelDense(SplitLayer):
    def _describe(self):
        units, in_units = self._weight.shape
        return f"{in_units or None} -> {units}, {self.act or 'linear'}"

    def _product(self, F, x, weight, bias):
        inputs = (x, weight) if bias is None else (x, weight, bias)
        return F.FullyConnected(
            *inputs, num_hidden=weight.shape[0], no_bias=bias is None, flatten=self._flatten
        )


class ColumnParallelDense(_ParallelDense):
    """A `Dense` whose outputs are split: every device computes some of the units from the whole
    input.

    Parameters
    ----------
    units : int
        Size of the output on all devices together.
    ctx : list of Context
        Devices; each has ``units / len(ctx)`` rows of the weight.
    activation, use_bias, flatten, dtype, weight_initializer, bias_initializer, in_units
        See `Dense`.
    gather_output : bool, default True
        Whether to join the units. Otherwise, the result is a list with the units of each device,
        along the last axis.
    gather_input : int, optional
        The axis along which a list of inputs is split (a sequence), to be joined first. By default,
        each input is whole.
    blocks, unit : int, default 1
        The units consist of this number of equal blocks (queries, keys, values). Each block is
        split in multiples of `unit` (a head).

    Raises
    ------
    ValueError
        If `blocks` is not 1 with ``gather_output=True``.

    Examples
    --------
    >>> devices = [mx.cpu(0), mx.cpu(1)]
    >>> layer = mx.parallel.ColumnParallelDense(6, devices, in_units=4)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((2, 4))).shape
    (2, 6)
    >>> layer
    ColumnParallelDense(4 -> 6, linear, over cpu(0), cpu(1))
    """

    def __init__(
        self,
        units: int,
        ctx: Sequence[Context],
        activation: str | None = None,
        use_bias: bool = True,
        flatten: bool = True,
        dtype: DTypeLike = "float32",
        weight_initializer: Initializer | str | None = None,
        bias_initializer: Initializer | str | None = "zeros",
        in_units: int = 0,
        gather_output: bool = True,
        gather_input: int | None = None,
        blocks: int = 1,
        unit: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(ctx, **kwargs)
        self._flatten, self._gather_output, self._gather_input = (
            flatten,
            gather_output,
            gather_input,
        )
        if gather_output and blocks != 1:
            raise ValueError(
                "ColumnParallelDense: the units of several blocks cannot be concatenated in "
                "order; set gather_output=False"
            )
        split = {"axis": 0, "ctx": self._ctx, "blocks": blocks, "unit": unit, "dtype": dtype}
        with self.name_scope():
            self._weight = split_parameter(
                self, "weight", (units, in_units), init=weight_initializer, **split
            )
            if use_bias:
                split_parameter(self, "bias", (units,), init=bias_initializer, **split)
            self.act: Activation | None = (
                None if activation is None else Activation(activation, prefix=activation + "_")
            )

    def _complete(self, x):
        units, in_units = self._weight.shape
        if not in_units:
            self._weight.complete(
                (units, _features(x if isinstance(x, nd.NDArray) else x[0], self._flatten))
            )

    def hybrid_forward(
        self, F: Any, x: NDArray | list[NDArray], **params: NDArray
    ) -> NDArray | list[NDArray]:
        if self._gather_input is not None and not isinstance(x, nd.NDArray):
            x = collectives.all_gather(self._check_list(x), self._gather_input)
        inputs = self._everywhere(x)
        parts = zip(inputs, self._shards(params, "weight"), self._shards(params, "bias"))
        outs = [self._product(F, *part) for part in parts]
        if self._adapters is not None:
            outs = self._adapters.columns(F, self, inputs, outs, params, self._flatten)
        if self.act is not None:
            outs = [self.act(out) for out in outs]
        return self._whole(outs, x, -1) if self._gather_output else outs


class RowParallelDense(_ParallelDense):
    """A `Dense` whose inputs are split: every device multiplies some of the features, and the
    products are summed.

    Parameters
    ----------
    units : int
        Size of the output.
    ctx : list of Context
        Devices; each has ``in_units / len(ctx)`` columns of the weight.
    activation, use_bias, flatten, dtype, weight_initializer, bias_initializer, in_units
        See `Dense`. The bias is on the first device.
    input_is_parallel : bool, default False
        Whether the input is a list with the features of each device, as returned by
        `ColumnParallelDense` with ``gather_output=False``. The result is then also a list, unless
        `output_ctx` is given.
    output_ctx : Context, optional
        Device of the result, which is then one array.
    scatter_output : int, optional
        For lists: the axis along which the sum is split, so that each device gets a part instead of
        the whole sum.
    unit : int, default 1
        The features are split in multiples of this number.

    Raises
    ------
    ValueError
        If both `output_ctx` and `scatter_output` are given.

    Examples
    --------
    Two products with one exchange: the hidden units stay on their devices.

    >>> devices = [mx.cpu(0), mx.cpu(1)]
    >>> up = mx.parallel.ColumnParallelDense(8, devices, in_units=4, gather_output=False)
    >>> down = mx.parallel.RowParallelDense(
    ...     4, devices, in_units=8, input_is_parallel=True, output_ctx=mx.cpu(0))
    >>> up.initialize(), down.initialize()
    (None, None)
    >>> hidden = up(mx.nd.ones((2, 4)))
    >>> [(part.shape, part.context) for part in hidden]
    [((2, 4), cpu(0)), ((2, 4), cpu(1))]
    >>> down(hidden).shape
    (2, 4)
    """

    def __init__(
        self,
        units: int,
        ctx: Sequence[Context],
        activation: str | None = None,
        use_bias: bool = True,
        flatten: bool = True,
        dtype: DTypeLike = "float32",
        weight_initializer: Initializer | str | None = None,
        bias_initializer: Initializer | str | None = "zeros",
        in_units: int = 0,
        input_is_parallel: bool = False,
        output_ctx: Context | None = None,
        scatter_output: int | None = None,
        unit: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(ctx, **kwargs)
        if output_ctx is not None and scatter_output is not None:
            raise ValueError(
                "RowParallelDense: output_ctx (one array) and scatter_output (a list) cannot "
                "both be given"
            )
        self._flatten, self._parallel, self._output_ctx, self._scatter = (
            flatten,
            input_is_parallel,
            output_ctx,
            scatter_output,
        )
        with self.name_scope():
            self._weight = split_parameter(
                self,
                "weight",
                (units, in_units),
                1,
                self._ctx,
                unit=unit,
                init=weight_initializer,
                dtype=dtype,
            )
            if use_bias:
                home_parameter(
                    self, "bias", (units,), self._ctx[0], init=bias_initializer, dtype=dtype
                )
            self.act: Activation | None = (
                None if activation is None else Activation(activation, prefix=activation + "_")
            )

    def _complete(self, x):
        units, in_units = self._weight.shape
        if not in_units:
            parts = [x] if isinstance(x, nd.NDArray) else x if self._parallel else x[:1]
            self._weight.complete((units, sum(_features(part, self._flatten) for part in parts)))

    def hybrid_forward(
        self, F: Any, x: NDArray | list[NDArray], bias: NDArray | None = None, **params: NDArray
    ) -> NDArray | list[NDArray]:
        weights = self._shards(params, "weight")
        ranges = [self._weight.ranges(i)[0] for i in range(len(self._ctx))]
        if self._parallel:
            if isinstance(x, nd.NDArray):
                raise MXNetError(
                    "RowParallelDense: with input_is_parallel=True, the input must be a list "
                    "with the features of each device, not one array"
                )
            inputs = self._check_list(x)
            sizes = [_features(part, self._flatten) for part in inputs]
            if sizes != [end - begin for begin, end in ranges]:
                raise MXNetError(
                    f"RowParallelDense: the inputs have {sizes} features on {self._ctx}, but the "
                    f"weights are for {[e - b for b, e in ranges]}"
                )
        else:
            flat = [
                F.flatten(part) if self._flatten else part
                for part in ([x] if isinstance(x, nd.NDArray) else self._check_list(x))
            ]
            if isinstance(x, nd.NDArray):
                begins = tuple(begin for begin, _ in ranges)
                parts = F.split_v2(flat[0], begins[1:], axis=-1) if len(begins) > 1 else flat
                inputs = [part.as_in_context(ctx) for part, ctx in zip(parts, self._ctx)]
            else:
                inputs = [
                    F.slice_axis(part, axis=-1, begin=begin, end=end)
                    for part, (begin, end) in zip(flat, ranges)
                ]
        outs = [
            self._product(F, part, weight, None if i else bias)
            for i, (part, weight) in enumerate(zip(inputs, weights))
        ]
        if self._adapters is not None:
            outs = self._adapters.rows(F, self, inputs, outs, params, self._flatten)
        if self._output_ctx is not None:
            out = collectives.reduce(outs, self._output_ctx)
        elif self._scatter is not None and not isinstance(x, nd.NDArray):
            out = collectives.reduce_scatter(outs, self._scatter)
        else:
            out = self._total(outs, x)
        if self.act is None:
            return out
        return self.act(out) if isinstance(out, nd.NDArray) else [self.act(part) for part in out]


class VocabParallelEmbedding(SplitLayer):
    """An `Embedding` whose rows are split: every device looks up its own indices, and the vectors
    are summed.

    Parameters
    ----------
    input_dim : int
        Number of indices: rows of the weight on all devices together.
    output_dim : int
        Size of a vector.
    ctx : list of Context
        Devices; each has ``input_dim / len(ctx)`` rows of the weight.
    dtype, weight_initializer
        See `Embedding`.

    Examples
    --------
    >>> devices = [mx.cpu(0), mx.cpu(1)]
    >>> layer = mx.parallel.VocabParallelEmbedding(10, 3, devices)
    >>> layer.initialize()
    >>> layer(mx.nd.array([[0, 9]])).shape
    (1, 2, 3)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        ctx: Sequence[Context],
        dtype: DTypeLike = "float32",
        weight_initializer: Initializer | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(ctx, **kwargs)
        self._input_dim, self._output_dim = input_dim, output_dim
        self._weight = split_parameter(
            self,
            "weight",
            (input_dim, output_dim),
            0,
            self._ctx,
            init=weight_initializer,
            dtype=dtype,
        )

    def _describe(self):
        return f"{self._input_dim} -> {self._output_dim}"

    def hybrid_forward(
        self, F: Any, x: NDArray | list[NDArray], **params: NDArray
    ) -> NDArray | list[NDArray]:
        outs, lookups = [], []
        for i, (indices, weight) in enumerate(
            zip(self._everywhere(x), self._shards(params, "weight"))
        ):
            ((begin, end),) = self._weight.ranges(i)
            # Clip indices that are out of range, as Embedding does.
            local = F.clip(indices, a_min=0, a_max=self._input_dim - 1) - begin
            inside = F.clip(local, a_min=0, a_max=end - begin - 1)
            rows = F.Embedding(
                inside,
                weight,
                input_dim=end - begin,
                output_dim=self._output_dim,
            )
            here = F.expand_dims((local >= 0) * (local < end - begin), axis=-1)
            # Use `where`: a product with `here` would turn infinity and NaN into NaN instead of 0.
            outs.append(F.where(F.broadcast_like(here, rows), rows, F.zeros_like(rows)))
            lookups.append((inside, here))
        if self._adapters is not None:
            outs = self._adapters.vocabulary(F, self, lookups, outs, params)
        return self._total(outs, x)


class VocabParallelSoftmaxCELoss(Loss):
    """`SoftmaxCrossEntropyLoss` of logits that are split over devices along the last axis. No
    device ever holds all of them.

    It is called as ``loss(logits, label)`` with the list that `ColumnParallelDense` returns with
    ``gather_output=False``, and labels that are class indices, on any device. The result is on the
    device of the labels. Devices exchange only three numbers per row: the largest logit, the sum of
    exponentials and the label's logit.

    Parameters
    ----------
    weight : float, optional
        A factor for the loss.
    batch_axis : int, default 0
        Axis of the samples, which is not averaged over.

    Raises
    ------
    MXNetError
        If the logits are not a list of arrays, or their shapes do not match the labels.

    Examples
    --------
    >>> devices = [mx.cpu(0), mx.cpu(1)]
    >>> logits = mx.parallel.scatter(mx.nd.array([[1, 2, 3, 4]]), devices, axis=1)
    >>> loss = mx.parallel.VocabParallelSoftmaxCELoss()
    >>> loss(logits, mx.nd.array([3])).asnumpy().round(4).tolist()
    [0.44...]
    """

    def __init__(self, weight: float | None = None, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)

    def forward(self, logits: list[NDArray], label: NDArray, *args: NDArray) -> NDArray:
        if is_symbolic((logits, label)) or isinstance(logits, nd.NDArray):
            raise MXNetError(
                "VocabParallelSoftmaxCELoss: the logits must be a list of arrays, the classes of "
                "each device"
            )
        if any(part.shape[:-1] != label.shape for part in logits):
            raise MXNetError(
                "VocabParallelSoftmaxCELoss: logits of shapes "
                f"{[part.shape for part in logits]} do not match labels of shape {label.shape}"
            )
        return super().forward(logits, label, *args)

    def hybrid_forward(
        self, F: Any, logits: list[NDArray], label: NDArray, sample_weight: NDArray | None = None
    ) -> NDArray:
        devices = [part.context for part in logits]
        home = label.context
        largest = [F.max(F.stop_gradient(part), axis=-1, keepdims=True) for part in logits]
        shift = F.max(collectives.gather(largest, home, -1), axis=-1, keepdims=True)
        total = sum(part.shape[-1] for part in logits)
        labels = collectives.broadcast(F.clip(label, a_min=0, a_max=total - 1), devices)
        sums, picked, begin = [], [], 0
        for part, index, most in zip(logits, labels, collectives.broadcast(shift, devices)):
            size = part.shape[-1]
            local = index - begin
            sums.append(F.sum(F.exp(F.broadcast_sub(part, most)), axis=-1, keepdims=True))
            here = F.expand_dims((local >= 0) * (local < size), axis=-1)
            logit = F.pick(part, F.clip(local, a_min=0, a_max=size - 1), axis=-1, keepdims=True)
            # Use `where`: a product with `here` would turn infinity and NaN into NaN instead of 0.
            picked.append(F.where(here, logit, F.zeros_like(logit)))
            begin += size
        loss = F.log(collectives.reduce(sums, home)) + shift - collectives.reduce(picked, home)
        return self._mean(F, loss, sample_weight)


class ParallelConv2D(SplitLayer):
    """A `Conv2D` whose output channels are split: every device computes some of them.

    Parameters
    ----------
    channels : int
        Channels of the output on all devices together.
    kernel_size : int or tuple of int
        Height and width of the kernel.
    ctx : list of Context
        Devices; each computes ``channels / len(ctx)`` of the channels.
    strides, padding, dilation, groups, layout, activation, use_bias : optional
        See `Conv2D`.
    weight_initializer, bias_initializer, in_channels, dtype : optional
        See `Conv2D`. With groups, every device has whole groups and only their input channels.
    gather_output : bool, default True
        Whether to join the channels. Otherwise, the result is a list with the channels of each
        device.

    Raises
    ------
    ValueError
        If the channels cannot be divided into `groups`.

    Examples
    --------
    >>> devices = [mx.cpu(0), mx.cpu(1)]
    >>> layer = mx.parallel.ParallelConv2D(4, 3, devices, padding=1)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((1, 3, 8, 8))).shape
    (1, 4, 8, 8)
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int | tuple[int, int],
        ctx: Sequence[Context],
        strides: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        layout: str | None = None,
        activation: str | None = None,
        use_bias: bool = True,
        weight_initializer: Initializer | str | None = None,
        bias_initializer: Initializer | str | None = "zeros",
        in_channels: int = 0,
        gather_output: bool = True,
        dtype: DTypeLike = "float32",
        **kwargs: Any,
    ) -> None:
        super().__init__(ctx, **kwargs)
        layout = check_layout(layout, 2)
        kernel = per_axis(kernel_size, 2, "kernel_size", 1)
        domain.size(1, channels=channels, groups=groups)
        domain.size(0, in_channels=in_channels)
        check_groups("ParallelConv2D", groups, channels=channels, in_channels=in_channels)
        self._channels, self._groups, self._gather_output, self._axis = (
            channels,
            groups,
            gather_output,
            layout.index("C"),
        )
        self._kwargs = {
            "kernel": kernel,
            "stride": per_axis(strides, 2, "strides", 1),
            "dilate": per_axis(dilation, 2, "dilation", 1),
            "pad": per_axis(padding, 2, "padding", 0),
            "no_bias": not use_bias,
            "layout": layout,
        }
        shape = (
            (channels, in_channels // groups, *kernel)
            if self._axis == 1
            else (channels, *kernel, in_channels // groups)
        )
        unit = channels // groups if groups > 1 else 1
        with self.name_scope():
            self._weight = split_parameter(
                self, "weight", shape, 0, self._ctx, unit=unit, init=weight_initializer, dtype=dtype
            )
            if use_bias:
                split_parameter(
                    self,
                    "bias",
                    (channels,),
                    0,
                    self._ctx,
                    unit=unit,
                    init=bias_initializer,
                    dtype=dtype,
                )
            self.act: Activation | None = (
                None if activation is None else Activation(activation, prefix=activation + "_")
            )

    def _alias(self):
        return "conv"

    def _describe(self):
        return (
            f"{self._weight.shape[self._axis] or None} -> {self._channels}, "
            f"kernel_size={self._kwargs['kernel']}"
        )

    def _complete(self, x):
        shape = list(self._weight.shape)
        if not shape[self._axis]:
            channels = (x if isinstance(x, nd.NDArray) else x[0]).shape[self._axis]
            shape[self._axis] = channels // self._groups
            self._weight.complete(tuple(shape))

    def hybrid_forward(
        self, F: Any, x: NDArray | list[NDArray], **params: NDArray
    ) -> NDArray | list[NDArray]:
        per_group = self._weight.shape[self._axis]
        outs = []
        for i, (part, weight, bias) in enumerate(
            zip(self._everywhere(x), self._shards(params, "weight"), self._shards(params, "bias"))
        ):
            groups = 1
            if self._groups > 1:
                unit = self._channels // self._groups
                begin, end = (at // unit for at in self._weight.ranges(i)[0])
                groups = end - begin
                part = F.slice_axis(
                    part, axis=self._axis, begin=begin * per_group, end=end * per_group
                )
            inputs = (part, weight) if bias is None else (part, weight, bias)
            out = F.Convolution(
                *inputs, num_filter=weight.shape[0], num_group=groups, **self._kwargs
            )
            outs.append(out if self.act is None else self.act(out))
        return self._whole(outs, x, self._axis) if self._gather_output else outs


def whole_weight(layer: _ParallelDense) -> Family:
    """Returns the family of a split layer's weight."""
    return layer._weight


def lines_of(layer: SplitLayer) -> list[list[Context]]:
    """Returns the devices of a layer's parts in each replica."""
    return layer._lines


def lie_on(layer: SplitLayer, lines: list[list[Context]]) -> None:
    """Sets the devices of a layer's parts in each replica. The caller must move their arrays with
    `reset_ctx`."""
    layer._lines = lines
    for param in own_parameters(layer).values():
        param.homes = [line[getattr(param, "index", 0)] for line in lines]
