"""Containers, dense layers, embeddings, dropout and normalization."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ... import autograd, ndarray as nd
from ..._core import dtype_name
from ..._internal import domain
from ...base import MXNetTypeError
from .._compiled import running_statistics
from ..block import Block, HybridBlock
from ..block._block import overridable
from .activations import Activation, activation_name, after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..._internal.types import DType, Init, Layer
    from ..parameter import Parameter, ParameterDict
else:
    Layer = HybridBlock


__all__ = [
    "Sequential",
    "HybridSequential",
    "Dense",
    "Dropout",
    "Embedding",
    "BatchNorm",
    "BatchNormReLU",
    "InstanceNorm",
    "LayerNorm",
    "GroupNorm",
    "Flatten",
    "Lambda",
    "HybridLambda",
]


class _Stack:
    """Base class of both sequential containers."""

    def __init__(self, prefix: str | None = None, params: ParameterDict | None = None) -> None:
        if isinstance(prefix, (Block, list, tuple)):
            kind = type(self).__name__
            raise MXNetTypeError(
                f"{kind} must be created without blocks: net = nn.{kind}(), then net.add(block, "
                "...)"
            )
        super().__init__(prefix, params)

    def add(self, *blocks: Block) -> None:
        """Appends blocks."""
        for block in blocks:
            self.register_child(block)

    def _chain(self, x):
        for block in self._children.values():
            x = block(x)
        return x

    def _shown(self):
        return self._children.items()

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._children.values()))

    def __getitem__(self, key: int | slice) -> Any:
        blocks = list(self._children.values())[key]
        if not isinstance(blocks, list):
            return blocks
        part = type(self)(prefix=self._prefix)
        with part.name_scope():
            part.add(*blocks)
        return part

    def __setitem__(self, index: int, block: Block) -> None:
        self.replace_child(list(self._children)[index], block)

    def __len__(self) -> int:
        return len(self._children)


class Sequential(_Stack, Block):
    """A sequence of blocks; each block receives the output of the previous one.

    ::

        net = nn.Sequential()
        with net.name_scope():
            net.add(nn.Dense(10, activation='relu'), nn.Dense(20))

    Examples
    --------
    >>> net = nn.Sequential()
    >>> net.add(nn.Dense(3, in_units=2), nn.Flatten())
    >>> net
    Sequential(
      (0): Dense(2 -> 3, linear)
      (1): Flatten
    )
    """

    def forward(self, x: Any) -> Any:
        return self._chain(x)

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        if self._children and all(
            isinstance(child, HybridBlock) for child in self._children.values()
        ):
            warnings.warn(
                f"All children of this Sequential layer '{self.prefix}' are HybridBlocks. "
                "HybridSequential is compiled as a whole.",
                stacklevel=2,
            )
        super().hybridize(active, **kwargs)


class HybridSequential(_Stack, HybridBlock):
    """A sequence of HybridBlocks; see `Sequential`.

    Examples
    --------
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Dense(10, activation="relu"), nn.Dense(2))
    >>> net.initialize()
    >>> net.hybridize()
    >>> net(nd.zeros((4, 5))).shape
    (4, 2)
    """

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self._chain(x)


class Dense(Layer):
    """A fully connected layer, ``act(dot(x, weight.T) + bias)``.

    Parameters
    ----------
    units : int
        Size of the output.
    activation : str, optional
        See `Activation`.
    use_bias : bool, default True
        Whether to add `bias` to the product.
    flatten : bool, default True
        Whether to flatten all axes of the input except the first. Otherwise, only the last axis is
        transformed.
    dtype : str or numpy.dtype, default 'float32'
        Data type of the parameters.
    weight_initializer : Initializer or str, optional
        Initial values of `weight`; by default those of the initializer given to ``initialize``.
    bias_initializer : Initializer or str, default 'zeros'
        Initial values of `bias`.
    in_units : int, default 0
        Size of the input; 0 to infer it in the first forward pass.

    Shapes: ``(batch, ...) -> (batch, units)``, or ``(..., in_units) -> (..., units)`` without
    `flatten`.

    Examples
    --------
    >>> layer = nn.Dense(3)
    >>> layer.initialize()
    >>> layer(nd.zeros((2, 5))).shape, layer.weight.shape
    ((2, 3), (3, 5))
    """

    def __init__(
        self,
        units: int,
        activation: str | None = None,
        use_bias: bool = True,
        flatten: bool = True,
        dtype: DType = "float32",
        weight_initializer: Init | None = None,
        bias_initializer: Init = "zeros",
        in_units: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        domain.size(0, units=units)
        domain.size(0, in_units=in_units)
        self._units = units
        self._in_units = in_units
        self._flatten = flatten
        with self.name_scope():
            self.weight: Parameter = self.params.get(
                "weight",
                shape=(units, in_units),
                init=weight_initializer,
                dtype=dtype,
                allow_deferred_init=True,
            )
            self.bias: Parameter | None = None
            if use_bias:
                self.bias = self.params.get(
                    "bias",
                    shape=(units,),
                    init=bias_initializer,
                    dtype=dtype,
                    allow_deferred_init=True,
                )
            self.act: Activation | None = after(type(self).__name__, activation)

    @overridable
    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any = None, **adapters: Any) -> Any:
        if bias is None:
            out = F.FullyConnected(
                x, weight, num_hidden=self._units, no_bias=True, flatten=self._flatten, name="fwd"
            )
        else:
            out = F.FullyConnected(
                x, weight, bias, num_hidden=self._units, flatten=self._flatten, name="fwd"
            )
        if self._adapters is not None:
            out = self._adapters.dense(F, self, x, out, weight, bias, adapters, self._flatten)
        return out if self.act is None else self.act(out)

    def __repr__(self) -> str:
        units, in_units = self.weight.shape
        return f"{type(self).__name__}({in_units or None} -> {units}, {self.act or 'linear'})"


def flattens(layer: Dense) -> bool:
    """True if the layer flattens all axes of its input except the first."""
    return layer._flatten


class Dropout(Layer):
    """Sets elements to zero with probability `rate` in training, and divides the other elements by
    ``1 - rate``.

    Parameters
    ----------
    rate : float
        Probability, 0 <= rate < 1.
    axes : tuple of int, default ()
        Axes along which all elements share one mask value.

    Examples
    --------
    >>> nn.Dropout(0.5)(nd.ones(3)).asnumpy().tolist()  # only training drops
    [1.0, 1.0, 1.0]
    """

    def __init__(self, rate: float, axes: Sequence[int] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        domain.fraction(rate=rate)
        domain.axis(axes=axes)
        self._rate = rate
        self._axes = axes

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        if self._rate > 0:
            return F.Dropout(x, p=self._rate, axes=self._axes, name="fwd")
        return F.identity(x)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p = {self._rate}, axes={self._axes})"


class Embedding(Layer):
    """Maps indices to vectors, the rows of `weight`.

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
    sparse_grad : bool, default False
        Whether the gradient of the weight is row_sparse: it contains only the rows that were looked
        up, and an optimizer with lazy updates changes only these rows.

    Shapes: ``(...) -> (..., output_dim)``.

    Examples
    --------
    >>> layer = nn.Embedding(10, 4)
    >>> layer.initialize()
    >>> layer(nd.array([1, 7])).shape
    (2, 4)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        dtype: DType = "float32",
        weight_initializer: Init | None = None,
        sparse_grad: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        domain.size(1, input_dim=input_dim, output_dim=output_dim)
        self._kwargs = {"input_dim": input_dim, "output_dim": output_dim, "dtype": dtype}
        if sparse_grad:
            self._kwargs["sparse_grad"] = True
        self.weight: Parameter = self.params.get(
            "weight",
            shape=(input_dim, output_dim),
            init=weight_initializer,
            dtype=dtype,
            allow_deferred_init=True,
            grad_stype="row_sparse" if sparse_grad else "default",
        )

    def cast(self, dtype: DType) -> None:
        super().cast(dtype)
        self._kwargs["dtype"] = dtype

    @overridable
    def hybrid_forward(self, F: Any, x: Any, weight: Any, **adapters: Any) -> Any:
        out = F.Embedding(x, weight, name="fwd", **self._kwargs)
        if self._adapters is not None:
            out = self._adapters.embedding(F, self, x, out, adapters)
        return out

    def __repr__(self) -> str:
        return "{}({input_dim} -> {output_dim}, {dtype})".format(
            type(self).__name__, **self._kwargs
        )


class _Norm(Layer):
    """Base class of normalization layers: a scale `gamma` and an offset `beta` for each channel."""

    def _make_scale(
        self, in_channels, scale, center, gamma_initializer, beta_initializer, differentiable
    ):
        domain.size(0, in_channels=in_channels)
        shared = {"shape": (in_channels,), "allow_deferred_init": True}
        self.gamma: Parameter = self.params.get(
            "gamma",
            grad_req="write" if scale else "null",
            init=gamma_initializer,
            differentiable=scale or not differentiable,
            **shared,
        )
        self.beta: Parameter = self.params.get(
            "beta",
            grad_req="write" if center else "null",
            init=beta_initializer,
            differentiable=center or not differentiable,
            **shared,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._content()}, in_channels={self._shown_channels()})"

    def _content(self):
        return ", ".join(f"{name}={value!r}" for name, value in self._kwargs.items())

    def _shown_channels(self):
        return self.gamma.shape[0]


class BatchNorm(_Norm):
    """Normalizes each channel by the mean and variance of the batch in training, and by their
    running averages otherwise.

    Parameters
    ----------
    axis : int, default 1
        Axis of the channels.
    momentum : float, default 0.9
        Share of the old running averages in the new ones. PyTorch's momentum is one minus this
        number, so a value between 0 and 0.5 gives a warning.
    epsilon : float, default 1e-5
        Added to the variance before the square root.
    center, scale : bool, default True
        Whether to add `beta`, and to multiply by `gamma`.
    use_global_stats : bool, default False
        Whether to use the running averages in training as well.
    in_channels : int, default 0
        0 to infer it in the first forward pass.
    beta_initializer : Initializer or str, default 'zeros'
        Initial values of the offsets `beta`.
    gamma_initializer : Initializer or str, default 'ones'
        Initial values of the factors `gamma`.
    running_mean_initializer : Initializer or str, default 'zeros'
        Initial values of the running mean.
    running_variance_initializer : Initializer or str, default 'ones'
        Initial values of the running variance.

    Examples
    --------
    >>> layer = nn.BatchNorm()
    >>> layer.initialize()
    >>> layer(nd.zeros((2, 3, 4, 4))).shape, layer.running_mean.shape
    ((2, 3, 4, 4), (3,))
    """

    def __init__(
        self,
        axis: int = 1,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        use_global_stats: bool = False,
        beta_initializer: Init = "zeros",
        gamma_initializer: Init = "ones",
        running_mean_initializer: Init = "zeros",
        running_variance_initializer: Init = "ones",
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        domain.at_least(0, epsilon=epsilon)
        domain.fraction(momentum=momentum)
        domain.axis(axis=axis)
        if 0 < momentum < 0.5:
            warnings.warn(
                f"{type(self).__name__}: momentum={momentum:g} keeps {momentum:.0%} of the running "
                f"averages in each step; PyTorch's momentum={momentum:g} is "
                f"momentum={1 - momentum:g} here",
                stacklevel=2,
            )
        self._kwargs = {
            "axis": axis,
            "eps": epsilon,
            "momentum": momentum,
            "fix_gamma": not scale,
            "use_global_stats": use_global_stats,
        }
        if in_channels:
            self.in_channels = in_channels
        self._make_scale(in_channels, scale, center, gamma_initializer, beta_initializer, True)
        running = {
            "grad_req": "null",
            "shape": (in_channels,),
            "allow_deferred_init": True,
            "differentiable": False,
        }
        self.running_mean: Parameter = self.params.get(
            "running_mean", init=running_mean_initializer, **running
        )
        self.running_var: Parameter = self.params.get(
            "running_var", init=running_variance_initializer, **running
        )

    def cast(self, dtype: DType) -> None:
        # For 16-bit activations, parameters and statistics stay in single precision.
        super().cast("float32" if dtype_name(dtype) in ("float16", "bfloat16") else dtype)

    def hybrid_forward(
        self, F: Any, x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any
    ) -> Any:
        deferred = running_statistics.active()
        if deferred is not None and autograd.is_training() and not self._kwargs["use_global_stats"]:
            return deferred.normalise(self, x, gamma, beta, running_mean, running_var, self._kwargs)
        return F.BatchNorm(x, gamma, beta, running_mean, running_var, name="fwd", **self._kwargs)

    def _shown_channels(self):
        return self.gamma.shape[0] or None


class BatchNormReLU(BatchNorm):
    """`BatchNorm` followed by a ReLU.

    Examples
    --------
    >>> layer = nn.BatchNormReLU()
    >>> layer.initialize()
    >>> layer(nd.full((1, 2), -1)).asnumpy().tolist()
    [[0.0, 0.0]]
    """

    def hybrid_forward(
        self, F: Any, x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any
    ) -> Any:
        return F.relu(super().hybrid_forward(F, x, gamma, beta, running_mean, running_var))


class InstanceNorm(_Norm):
    """Normalizes each channel of each sample over its spatial axes.

    Parameters
    ----------
    axis : int, default 1
        Axis of the channels.
    epsilon : float, default 1e-5
        Added to the variance before the square root.
    center : bool, default True
        Whether to add `beta`.
    scale : bool, default False
        Whether to multiply by `gamma`.
    in_channels : int, default 0
        Size of the channel axis; 0 to infer it in the first forward pass.
    beta_initializer : Initializer or str, default 'zeros'
        Initial values of the offsets `beta`.
    gamma_initializer : Initializer or str, default 'ones'
        Initial values of the factors `gamma`.

    Examples
    --------
    >>> layer = nn.InstanceNorm()
    >>> layer.initialize()
    >>> layer(nd.ones((2, 3, 4))).sum().asscalar().item()
    0.0
    """

    def __init__(
        self,
        axis: int = 1,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = False,
        beta_initializer: Init = "zeros",
        gamma_initializer: Init = "ones",
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        domain.at_least(0, epsilon=epsilon)
        domain.axis(axis=axis)
        self._kwargs = {"eps": epsilon, "axis": axis, "center": center, "scale": scale}
        self._axis = axis
        self._epsilon = epsilon
        self._make_scale(in_channels, scale, center, gamma_initializer, beta_initializer, False)

    def hybrid_forward(self, F: Any, x: Any, gamma: Any, beta: Any) -> Any:
        if self._axis == 1:
            return F.InstanceNorm(x, gamma, beta, eps=self._epsilon, name="fwd")
        moved = F.swapaxes(x, dim1=1, dim2=self._axis)
        return F.swapaxes(
            F.InstanceNorm(moved, gamma, beta, eps=self._epsilon, name="fwd"),
            dim1=1,
            dim2=self._axis,
        )


class LayerNorm(_Norm):
    """Normalizes each sample along one axis.

    Parameters
    ----------
    axis : int, default -1
        Axis to normalize along.
    epsilon : float, default 1e-5
        Added to the variance before the square root.
    center, scale : bool, default True
        Whether to add `beta`, and to multiply by `gamma`.
    in_channels : int, default 0
        Size of the axis; 0 to infer it in the first forward pass.
    beta_initializer : Initializer or str, default 'zeros'
        Initial values of the offsets `beta`.
    gamma_initializer : Initializer or str, default 'ones'
        Initial values of the factors `gamma`.

    Examples
    --------
    >>> layer = nn.LayerNorm()
    >>> layer.initialize()
    >>> layer(nd.array([[1, 3]])).asnumpy().astype(float).round(2).tolist()
    [[-1.0, 1.0]]
    """

    def __init__(
        self,
        axis: int = -1,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Init = "zeros",
        gamma_initializer: Init = "ones",
        in_channels: int = 0,
        prefix: str | None = None,
        params: ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        domain.at_least(0, epsilon=epsilon)
        domain.axis(axis=axis)
        self._kwargs = {"eps": epsilon, "axis": axis, "center": center, "scale": scale}
        self._axis = axis
        self._epsilon = epsilon
        self._make_scale(in_channels, scale, center, gamma_initializer, beta_initializer, False)

    def hybrid_forward(self, F: Any, x: Any, gamma: Any, beta: Any) -> Any:
        return F.LayerNorm(x, gamma, beta, axis=self._axis, eps=self._epsilon)


class GroupNorm(_Norm):
    """Normalizes each sample over groups of channels (axis 1). Each group has one `gamma` and one
    `beta`.

    Parameters
    ----------
    num_groups : int, default 1
        Number of groups into which the channels, axis 1, are divided.
    epsilon : float, default 1e-5
        Added to the variance before the square root.
    center, scale : bool, default True
        Whether to add `beta`, and to multiply by `gamma`.
    beta_initializer : Initializer or str, default 'zeros'
        Initial values of the offsets `beta`.
    gamma_initializer : Initializer or str, default 'ones'
        Initial values of the factors `gamma`.

    Examples
    --------
    >>> layer = nn.GroupNorm(num_groups=2)
    >>> layer.initialize()
    >>> layer(nd.zeros((1, 4, 3))).shape
    (1, 4, 3)
    """

    def __init__(
        self,
        num_groups: int = 1,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Init = "zeros",
        gamma_initializer: Init = "ones",
        prefix: str | None = None,
        params: ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        domain.size(1, num_groups=num_groups)
        domain.at_least(0, epsilon=epsilon)
        self._kwargs = {"eps": epsilon, "num_groups": num_groups, "center": center, "scale": scale}
        self._num_groups = num_groups
        self._epsilon = epsilon
        self._make_scale(num_groups, scale, center, gamma_initializer, beta_initializer, False)

    def hybrid_forward(self, F: Any, x: Any, gamma: Any, beta: Any) -> Any:
        return F.GroupNorm(x, gamma, beta, num_groups=self._num_groups, eps=self._epsilon)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._content()})"


class Flatten(Layer):
    """Flattens all axes except the first: ``(batch, a, b, ...) -> (batch, a * b * ...)``.

    Examples
    --------
    >>> nn.Flatten()(nd.zeros((2, 3, 4))).shape
    (2, 12)
    """

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.Flatten(x)

    def __repr__(self) -> str:
        return type(self).__name__


class Lambda(Block):
    """Wraps a function of arrays, or the name of one in `mx.nd`, as a Block.

    Parameters
    ----------
    function : str or callable
        A function from arrays to arrays, or its name in `mx.nd`.

    Examples
    --------
    >>> nn.Lambda(lambda x: x + 1)(nd.zeros(2)).asnumpy().tolist()
    [1.0, 1.0]
    """

    def __init__(self, function: str | Callable[..., Any], prefix: str | None = None) -> None:
        super().__init__(prefix=prefix)
        if isinstance(function, str):
            if not hasattr(nd, function):
                raise AssertionError(f"Function name {function} is not found in ndarray.")
            self._func_name = function
            self._func_impl = getattr(nd, function)
        elif callable(function):
            self._func_name = getattr(function, "__name__", type(function).__name__)
            self._func_impl = function
        else:
            raise ValueError(
                f"Unrecognized function in lambda: {function} of type {type(function)}"
            )

    def forward(self, *args: Any) -> Any:
        return self._func_impl(*args)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._func_name})"


class HybridLambda(HybridBlock):
    """Wraps a function of ``F`` and arrays, or the name of one in `mx.nd`, as a HybridBlock.

    Parameters
    ----------
    function : str or callable
        A function of ``F`` and arrays that returns arrays, or its name in `mx.nd`.

    Examples
    --------
    >>> nn.HybridLambda(lambda F, x: F.relu(x) + 1)(nd.zeros(2)).asnumpy().tolist()
    [1.0, 1.0]
    """

    def __init__(self, function: str | Callable[..., Any], prefix: str | None = None) -> None:
        super().__init__(prefix=prefix)
        if isinstance(function, str):
            if not hasattr(nd, function):
                raise AssertionError(f"Function name {function} is not found in ndarray.")
            self._func_name = function
            self._func = lambda F, *args: getattr(F, function)(*args)
        elif callable(function):
            self._func_name = getattr(function, "__name__", type(function).__name__)
            self._func = function
        else:
            raise ValueError(
                f"Unrecognized function in lambda: {function} of type {type(function)}"
            )

    def hybrid_forward(self, F: Any, x: Any, *args: Any) -> Any:
        return self._func(F, x, *args)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._func_name})"


# Functions for `parallel.shard` that return the constructor arguments of existing layers, with the
# inferred sizes.


def dense_arguments(layer: Dense) -> dict[str, Any]:
    """Returns the constructor arguments of a `Dense`."""
    units, in_units = layer.weight.shape
    return {
        "units": units,
        "activation": activation_name(layer),
        "use_bias": layer.bias is not None,
        "flatten": layer._flatten,
        "dtype": layer.weight.dtype,
        "weight_initializer": layer.weight.init,
        "bias_initializer": layer.bias.init if layer.bias is not None else "zeros",
        "in_units": in_units,
    }


def dropout_arguments(layer: Dropout) -> dict[str, Any]:
    """Returns the constructor arguments of a `Dropout`."""
    return {"rate": layer._rate, "axes": layer._axes}


def layer_norm_arguments(layer: LayerNorm) -> dict[str, Any]:
    """Returns the constructor arguments of a `LayerNorm`."""
    given = layer._kwargs
    return {
        "axis": layer._axis,
        "epsilon": given["eps"],
        "center": given["center"],
        "scale": given["scale"],
        "beta_initializer": layer.beta.init,
        "gamma_initializer": layer.gamma.init,
        "in_channels": layer.gamma.shape[0],
    }
