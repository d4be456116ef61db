"""Branching containers, pixel shuffle, sparse embedding, and synchronized batch normalization."""

from __future__ import annotations

import warnings
from math import prod
from typing import TYPE_CHECKING, Any

from .... import ndarray as nd
from ...._internal import domain
from ....context import num_gpus
from ...block import Block, HybridBlock
from ...nn import BatchNorm, HybridSequential, Sequential

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...._internal.types import DType, Init
    from ...parameter import Parameter, ParameterDict

__all__ = [
    "Concurrent",
    "HybridConcurrent",
    "Identity",
    "PixelShuffle1D",
    "PixelShuffle2D",
    "PixelShuffle3D",
    "SparseEmbedding",
    "SyncBatchNorm",
]


class Concurrent(Sequential):
    """Passes its input to every child and concatenates their outputs along `axis`.

    Parameters
    ----------
    axis : int, default -1
        The axis along which outputs are concatenated.

    Examples
    --------
    >>> net = gluon.contrib.nn.Concurrent()
    >>> net.add(nn.Flatten(), nn.Flatten())
    >>> net(nd.zeros((2, 3))).shape
    (2, 6)
    """

    def __init__(
        self, axis: int = -1, prefix: str | None = None, params: ParameterDict | None = None
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        domain.axis(axis=axis)
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return nd.concat(*[block(x) for block in self._children.values()], dim=self.axis)


class HybridConcurrent(HybridSequential):
    """Passes its input to every child and concatenates their outputs along `axis`.

    Parameters
    ----------
    axis : int, default -1
        The axis along which outputs are concatenated.

    Examples
    --------
    >>> net = gluon.contrib.nn.HybridConcurrent()
    >>> net.add(nn.Flatten(), gluon.contrib.nn.Identity())
    >>> net(nd.zeros((2, 3))).shape
    (2, 6)
    """

    def __init__(
        self, axis: int = -1, prefix: str | None = None, params: ParameterDict | None = None
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        domain.axis(axis=axis)
        self.axis = axis

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.concat(*[block(x) for block in self._children.values()], dim=self.axis)


class Identity(HybridBlock):
    """Returns its input unchanged, for example as a branch of `HybridConcurrent`.

    Examples
    --------
    >>> gluon.contrib.nn.Identity()(nd.ones(2)).asnumpy().tolist()
    [1.0, 1.0]
    """

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x


class _PixelShuffle(HybridBlock):
    """Base class of the pixel shuffles, which move channels to spatial blocks of size `factor`.
    `_dims` is the number of spatial axes."""

    _dims = 1

    def __init__(self, factor: int | Sequence[int]) -> None:
        super().__init__()
        self._factors = domain.per_axis(factor, self._dims, "factor", 1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._factors[0] if self._dims == 1 else self._factors})"

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        factors, dims = self._factors, self._dims
        # (N, C f1 f2, W1, W2) -> (N, C, f1, f2, W1, W2)
        # -> (N, C, W1, f1, W2, f2) -> (N, C, W1 f1, W2 f2)
        rest = prod(factors)
        x = F.reshape(x, shape=(0, -4, -1, rest, -2))
        for i, factor in enumerate(factors[:-1]):
            rest //= factor
            x = F.reshape(x, shape=(0,) * (2 + i) + (-4, factor, rest, -2))
        x = F.transpose(
            x, axes=(0, 1, *[axis for i in range(dims) for axis in (2 + dims + i, 2 + i)])
        )
        return F.reshape(x, shape=(0, 0) + (-3,) * dims)


class PixelShuffle1D(_PixelShuffle):
    """Pixel shuffle (N, f C, W) -> (N, C, f W): every `factor` channels become `factor` neighbors.

    Parameters
    ----------
    factor : int or tuple of int
        Factor by which each spatial axis grows.

    Examples
    --------
    >>> gluon.contrib.nn.PixelShuffle1D(2)(nd.zeros((2, 4, 3))).shape
    (2, 2, 6)
    """


class PixelShuffle2D(_PixelShuffle):
    """Pixel shuffle (N, f1 f2 C, H, W) -> (N, C, f1 H, f2 W): groups of channels become pixel
    blocks.

    Parameters
    ----------
    factor : int or tuple of int
        Factor by which each spatial axis grows.

    Examples
    --------
    >>> gluon.contrib.nn.PixelShuffle2D(2)(nd.zeros((2, 8, 3, 3))).shape
    (2, 2, 6, 6)
    """

    _dims = 2


class PixelShuffle3D(_PixelShuffle):
    """Pixel shuffle (N, f1 f2 f3 C, D, H, W) -> (N, C, f1 D, f2 H, f3 W).

    Parameters
    ----------
    factor : int or tuple of int
        Factor by which each spatial axis grows.

    Examples
    --------
    >>> gluon.contrib.nn.PixelShuffle3D(2)(nd.zeros((2, 16, 3, 3, 3))).shape
    (2, 2, 6, 6, 6)
    """

    _dims = 3


class SparseEmbedding(Block):
    """Maps each index to a vector. The weight has row_sparse storage and a row_sparse gradient.

    The weight must belong to a Trainer before the first call. `nn.Embedding` with
    ``sparse_grad=True`` has the same gradient and can be hybridized.

    Parameters
    ----------
    input_dim : int
        Number of indices.
    output_dim : int
        Size of the vectors.
    dtype : str or numpy.dtype, default 'float32'
        Data type of the parameters.
    weight_initializer : Initializer or str, optional
        Initial values of `weight`; by default those of the initializer given to ``initialize``.

    Shapes: ``(...) -> (..., output_dim)``.

    Examples
    --------
    >>> layer = gluon.contrib.nn.SparseEmbedding(10, 4)
    >>> layer.initialize()
    >>> trainer = gluon.Trainer(layer.collect_params(), "sgd")
    >>> layer(nd.array([1, 7])).shape
    (2, 4)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        dtype: DType = "float32",
        weight_initializer: Init | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        domain.size(1, input_dim=input_dim, output_dim=output_dim)
        self._kwargs = {
            "input_dim": input_dim,
            "output_dim": output_dim,
            "dtype": dtype,
            "sparse_grad": True,
        }
        self.weight: Parameter = self.params.get(
            "weight",
            shape=(input_dim, output_dim),
            init=weight_initializer,
            dtype=dtype,
            grad_stype="row_sparse",
            stype="row_sparse",
        )

    def forward(self, x: Any) -> Any:
        weight = self.weight.row_sparse_data(x)
        return nd.Embedding(x, weight, name="fwd", **self._kwargs)

    def __repr__(self) -> str:
        return "{}({input_dim} -> {output_dim}, {dtype})".format(
            type(self).__name__, **self._kwargs
        )


class SyncBatchNorm(BatchNorm):
    """`BatchNorm` over axis 1 whose replicas on several devices normalize by the statistics of
    their combined batches in training.

    Call the block on each device, one call after the other, before reading a result: each call
    waits for the other devices in its device's queue. Batches may differ in size; each element has
    the same weight. The running averages are the same on all devices.

    Parameters
    ----------
    in_channels : int, default 0
        0 to infer it in the first forward pass.
    num_devices : int, optional
        Number of devices that normalize together; defaults to the number of GPUs, with a warning.
    momentum : float, default 0.9
        Momentum of the running averages.
    epsilon : float, default 1e-5
        Added to the variance before the square root.
    center, scale : bool, default True
        Whether to add `beta`, and to multiply by `gamma`.
    use_global_stats : bool, default False
        Whether to use the running averages in training as well.
    **kwargs
        Initial values as in `BatchNorm`, `prefix` and `params`. Replicas are matched by their
        prefix.

    Examples
    --------
    >>> layer = gluon.contrib.nn.SyncBatchNorm(num_devices=2)
    >>> devices = [mx.cpu(0), mx.cpu(1)]
    >>> layer.initialize(ctx=devices)
    >>> with mx.autograd.record():
    ...     parts = [layer(nd.array([[i]], ctx=ctx)) for i, ctx in enumerate(devices)]
    >>> mx.autograd.backward(parts)
    >>> [part.asnumpy().round(2).tolist() for part in parts]
    [[[-1.0]], [[1.0]]]
    """

    def __init__(
        self,
        in_channels: int = 0,
        num_devices: int | None = None,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        use_global_stats: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            axis=1,
            momentum=momentum,
            epsilon=epsilon,
            center=center,
            scale=scale,
            use_global_stats=use_global_stats,
            in_channels=in_channels,
            **kwargs,
        )
        if num_devices is None:
            num_devices = max(1, num_gpus())
            warnings.warn(
                f"SyncBatchNorm: num_devices is not given; using {num_devices}",
                stacklevel=2,
            )
        domain.size(1, num_devices=num_devices)
        self._num_devices = num_devices

    def hybrid_forward(
        self, F: Any, x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any
    ) -> Any:
        if self._num_devices == 1:
            return super().hybrid_forward(F, x, gamma, beta, running_mean, running_var)
        options = {name: value for name, value in self._kwargs.items() if name != "axis"}
        return F.contrib.SyncBatchNorm(
            x,
            gamma,
            beta,
            running_mean,
            running_var,
            ndev=self._num_devices,
            key=self.prefix,
            name="fwd",
            **options,
        )
