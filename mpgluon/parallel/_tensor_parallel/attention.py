"""Attention, layer normalization and dropout that are split over devices. See `layers.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import ndarray as nd
from ...base import MXNetError
from ...gluon.utils import shape_is_known
from .. import collectives
from .layers import ColumnParallelDense, RowParallelDense, SplitLayer
from .parameters import home_parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    from ...context import Context
    from ...initializer import Initializer
    from ...ndarray import NDArray

__all__ = ["ParallelSelfAttention", "SequenceParallelDropout", "SequenceParallelLayerNorm"]


def _drop(F, parts, rate, axis):
    """Applies dropout to an array that is split over devices along an axis, with the same mask as
    for the whole array."""
    if not rate:
        return parts
    sizes = [part.shape[axis] for part in parts]
    draw = F._internal._dropout_draw(parts[0], axis=axis, total=sum(sizes))
    draws = collectives.broadcast(draw, [part.context for part in parts])
    return [
        F._internal._dropout_part(
            part, key, p=rate, axis=axis, begin=sum(sizes[:i]), total=sum(sizes)
        )
        for i, (part, key) in enumerate(zip(parts, draws))
    ]


class SequenceParallelDropout(SplitLayer):
    """`Dropout` for sequences that are split over devices, with the same mask as for the whole
    sequence.

    Parameters
    ----------
    rate : float
        Probability that an element becomes zero, from 0 to below 1.
    ctx : list of Context
        Devices, in the order of the parts.
    axis : int, default 1
        Axis along which the sequence is split.

    Raises
    ------
    ValueError
        If `rate` is not in [0, 1).

    Examples
    --------
    >>> devices = [mx.cpu(0), mx.cpu(1)]
    >>> layer = mx.parallel.SequenceParallelDropout(0.5, devices)
    >>> parts = mx.parallel.scatter(mx.nd.ones((2, 6, 4)), devices, axis=1)
    >>> [part.shape for part in layer(parts)]
    [(2, 3, 4), (2, 3, 4)]
    """

    def __init__(self, rate: float, ctx: Sequence[Context], axis: int = 1, **kwargs: Any) -> None:
        super().__init__(ctx, **kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"SequenceParallelDropout: the rate must be in [0, 1), not {rate}")
        self._rate, self._axis = rate, axis

    def _describe(self):
        return f"p = {self._rate}, axis={self._axis}"

    def hybrid_forward(self, F: Any, x: NDArray | list[NDArray]) -> NDArray | list[NDArray]:
        parts = self._pieces(x, self._axis)
        outs = (
            _drop(F, parts, self._rate, self._axis)
            if self._rate
            else [F.identity(part) for part in parts]
        )
        return (
            collectives.gather(outs, x.context, self._axis) if isinstance(x, nd.NDArray) else outs
        )


class SequenceParallelLayerNorm(SplitLayer):
    """`LayerNorm` along the last axis, for sequences that are split over devices.

    Parameters
    ----------
    ctx : list of Context
        Devices. `gamma` and `beta` are on the first device and sent to the others.
    axis : int, default 1
        Axis along which the sequence is split.
    epsilon, center, scale, beta_initializer, gamma_initializer, in_channels
        See `LayerNorm`.

    Raises
    ------
    MXNetError
        If `axis` is the last axis of the input.

    Examples
    --------
    >>> devices = [mx.cpu(0), mx.cpu(1)]
    >>> layer = mx.parallel.SequenceParallelLayerNorm(devices)
    >>> layer.initialize()
    >>> parts = mx.parallel.scatter(mx.nd.ones((2, 6, 4)), devices, axis=1)
    >>> [part.shape for part in layer(parts)]
    [(2, 3, 4), (2, 3, 4)]
    """

    def __init__(
        self,
        ctx: Sequence[Context],
        axis: int = 1,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Initializer | str | None = "zeros",
        gamma_initializer: Initializer | str | None = "ones",
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(ctx, **kwargs)
        self._axis, self._epsilon = axis, epsilon
        home_parameter(
            self,
            "gamma",
            (in_channels,),
            self._ctx[0],
            init=gamma_initializer,
            grad_req="write" if scale else "null",
            differentiable=scale,
        )
        home_parameter(
            self,
            "beta",
            (in_channels,),
            self._ctx[0],
            init=beta_initializer,
            grad_req="write" if center else "null",
            differentiable=center,
        )

    def _alias(self):
        return "layernorm"

    def _describe(self):
        return f"in_channels={self.gamma.shape[0]}, axis={self._axis}"

    def _complete(self, x):
        first = x if isinstance(x, nd.NDArray) else x[0]
        if self._axis % first.ndim == first.ndim - 1:
            raise MXNetError(
                "SequenceParallelLayerNorm: axis, along which the sequence is divided, cannot "
                "be the last axis, which is normalized"
            )
        if not shape_is_known(self.gamma.shape):
            self.gamma.shape = self.beta.shape = first.shape[-1:]

    def hybrid_forward(
        self, F: Any, x: NDArray | list[NDArray], gamma: NDArray, beta: NDArray
    ) -> NDArray | list[NDArray]:
        gammas, betas = (
            collectives.broadcast(gamma, self._ctx),
            collectives.broadcast(beta, self._ctx),
        )
        parts = self._pieces(x, self._axis)
        outs = [
            F.LayerNorm(part, g, b, axis=-1, eps=self._epsilon)
            for part, g, b in zip(parts, gammas, betas)
        ]
        return (
            collectives.gather(outs, x.context, self._axis) if isinstance(x, nd.NDArray) else outs
        )


class ParallelSelfAttention(SplitLayer):
    """Multi-head self-attention whose heads are split over devices.

    Parameters
    ----------
    units : int
        Features of input and output.
    num_heads : int
        Number of heads into which the units are divided. Must divide `units`.
    ctx : list of Context
        Devices; each has ``num_heads / len(ctx)`` of the heads.
    causal : bool, default False
        Whether a position attends only to itself and previous positions.
    dropout : float, default 0
        Dropout rate of the attention weights, with the same mask as on one device.
    use_bias, dtype, weight_initializer, bias_initializer
        Options of the products that compute queries, keys and values (child `qkv`, in this order,
        head after head) and the result (child `out`).
    sequence_axis : int, optional
        If 1, a list of inputs holds parts of the sequence, and so does the result.

    Shapes: ``(batch, time, units) -> (batch, time, units)``.

    Sources: Vaswani et al., "Attention Is All You Need", 2017, for attention; Shoeybi et al.,
    "Megatron-LM", 2019, for its split over devices; Korthikanti et al., "Reducing Activation
    Recomputation in Large Transformer Models", 2022, for the split of the sequence.

    Raises
    ------
    ValueError
        If `units` cannot be divided into `num_heads`.

    Examples
    --------
    >>> devices = [mx.cpu(0), mx.cpu(1)]
    >>> layer = mx.parallel.ParallelSelfAttention(8, 2, devices, causal=True)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((2, 5, 8))).shape
    (2, 5, 8)
    """

    def __init__(
        self,
        units: int,
        num_heads: int,
        ctx: Sequence[Context],
        causal: bool = False,
        dropout: float = 0.0,
        use_bias: bool = True,
        dtype: DTypeLike = "float32",
        weight_initializer: Initializer | str | None = None,
        bias_initializer: Initializer | str | None = "zeros",
        sequence_axis: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(ctx, **kwargs)
        if units % num_heads:
            raise ValueError(
                f"ParallelSelfAttention: {units} units cannot be divided into {num_heads} heads"
            )
        self._units, self._heads, self._causal, self._dropout, self._axis = (
            units,
            num_heads,
            causal,
            dropout,
            sequence_axis,
        )
        shared = {
            "flatten": False,
            "use_bias": use_bias,
            "dtype": dtype,
            "weight_initializer": weight_initializer,
            "bias_initializer": bias_initializer,
        }
        head = units // num_heads
        with self.name_scope():
            self.qkv: ColumnParallelDense = ColumnParallelDense(
                3 * units,
                ctx,
                in_units=units,
                gather_output=False,
                gather_input=sequence_axis,
                blocks=3,
                unit=head,
                prefix="qkv_",
                **shared,
            )
            self.out: RowParallelDense = RowParallelDense(
                units,
                ctx,
                in_units=units,
                input_is_parallel=True,
                scatter_output=sequence_axis,
                unit=head,
                prefix="out_",
                **shared,
            )

    def _describe(self):
        return f"{self._units}, {self._heads} heads"

    def hybrid_forward(self, F: Any, x: NDArray | list[NDArray]) -> NDArray | list[NDArray]:
        head = self._units // self._heads
        values, scores = [], []
        for part in self.qkv(x):
            batch, time, _ = part.shape
            # (batch, time, 3 * heads * head size) -> (3 * batch * heads, time, head size)
            apart = F.transpose(
                F.reshape(part, shape=(batch, time, 3, -1, head)), axes=(2, 0, 3, 1, 4)
            )
            q, k, v = [
                F.reshape(one, shape=(-1, time, head))
                for one in F.split(apart, num_outputs=3, axis=0)
            ]
            score = F.batch_dot(q, k, transpose_b=True) * head**-0.5
            if self._causal:
                at = F.arange(0, time, ctx=part.context)
                later = F.broadcast_greater(
                    F.reshape(at, shape=(1, 1, -1)), F.reshape(at, shape=(1, -1, 1))
                )
                score = F.broadcast_add(score, F.cast(later, dtype=part.dtype) * -1e9)
            scores.append(F.reshape(F.softmax(score, axis=-1), shape=(batch, -1, time, time)))
            values.append(v)
        if self._dropout:
            scores = _drop(F, scores, self._dropout, 1)
        outs = []
        for score, v in zip(scores, values):
            batch, heads, time, _ = score.shape
            out = F.reshape(
                F.batch_dot(F.reshape(score, shape=(-1, time, time)), v),
                shape=(batch, heads, time, head),
            )
            outs.append(F.reshape(F.transpose(out, axes=(0, 2, 1, 3)), shape=(batch, time, -1)))
        out = self.out(outs)
        return out[0].as_in_context(x.context) if isinstance(x, nd.NDArray) else out
