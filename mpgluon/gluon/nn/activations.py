"""Activation layers: elementwise functions of arrays of any shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import initializer
from ..._internal import domain
from ..._internal.hints import near
from ...base import MXNetTypeError, MXNetValueError
from ..block import HybridBlock

if TYPE_CHECKING:
    from ..._internal.types import Init, Layer
    from ..parameter import Parameter
else:
    Layer = HybridBlock


__all__ = ["Activation", "LeakyReLU", "PReLU", "ELU", "SELU", "GELU", "SiLU", "Swish"]


_NAMES = ("relu", "sigmoid", "softrelu", "softsign", "tanh")


def check_activation(layer: str, name: str, known: tuple[str, ...] = _NAMES) -> None:
    """Raises TypeError or ValueError unless `name` is an activation that the layer supports."""
    if not isinstance(name, str):
        raise MXNetTypeError(
            f"{layer}: the activation must be a name, one of {', '.join(known)}, not a "
            f"{type(name).__name__}; add a layer after this one for other functions"
        )
    if name not in known:
        raise MXNetValueError(
            f"{layer}: unknown activation {name!r}{near(name, known)}; expected one of "
            f"{', '.join(known)}"
        )


def after(layer: str, activation: str | None) -> Activation | None:
    """Returns the activation at the end of a layer, or None."""
    if activation is None:
        return None
    check_activation(layer, activation)
    return Activation(activation, prefix=activation + "_")


class Activation(Layer):
    """Applies one of 'relu', 'sigmoid', 'tanh', 'softrelu', 'softsign'.

    Parameters
    ----------
    activation : str
        The function's name.

    Examples
    --------
    >>> nn.Activation("relu")(nd.array([-1, 2])).asnumpy().tolist()
    [0.0, 2.0]
    """

    def __init__(self, activation: str, **kwargs: Any) -> None:
        check_activation(type(self).__name__, activation)
        self._act_type = activation
        super().__init__(**kwargs)

    def _alias(self):
        return self._act_type

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.Activation(x, act_type=self._act_type, name="fwd")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._act_type})"


class LeakyReLU(Layer):
    """Leaky ReLU: ``x`` if positive, else ``alpha * x``.

    Parameters
    ----------
    alpha : float
        Slope of negative inputs; must not be negative.

    Examples
    --------
    >>> nn.LeakyReLU(0.5)(nd.array([-1, 2])).asnumpy().tolist()
    [-0.5, 2.0]
    """

    def __init__(self, alpha: float, **kwargs: Any) -> None:
        domain.number(alpha=alpha)
        if alpha < 0:
            raise AssertionError(f"LeakyReLU: alpha must not be negative, but is {alpha}")
        super().__init__(**kwargs)
        self._alpha = alpha

    @property
    def slope(self) -> float:
        """The factor for negative elements."""
        return self._alpha

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.LeakyReLU(x, act_type="leaky", slope=self._alpha, name="fwd")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._alpha})"


class PReLU(Layer):
    """A leaky ReLU whose slope `alpha` is learned.

    Parameters
    ----------
    alpha_initializer : Initializer, default ``Constant(0.25)``
        Initial values of the slopes.
    in_channels : int, default 1
        The number of slopes: 1, or the size of the input's second axis.

    Examples
    --------
    >>> layer = nn.PReLU()
    >>> layer.initialize()
    >>> layer(nd.array([[-1, 2]])).asnumpy().tolist()
    [[-0.25, 2.0]]
    """

    def __init__(
        self, alpha_initializer: Init | None = None, in_channels: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        domain.size(1, in_channels=in_channels)
        if alpha_initializer is None:
            alpha_initializer = initializer.Constant(0.25)
        with self.name_scope():
            self.alpha: Parameter = self.params.get(
                "alpha", shape=(in_channels,), init=alpha_initializer
            )

    def hybrid_forward(self, F: Any, x: Any, alpha: Any) -> Any:
        return F.LeakyReLU(x, gamma=alpha, act_type="prelu", name="fwd")


class ELU(Layer):
    """Exponential linear unit: ``x`` if positive, else ``alpha * (exp(x) - 1)``.

    Examples
    --------
    >>> nn.ELU()(nd.array([-1, 2])).asnumpy().astype(float).round(2).tolist()
    [-0.63, 2.0]
    """

    def __init__(self, alpha: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        domain.number(alpha=alpha)
        self._alpha = alpha

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.LeakyReLU(x, act_type="elu", slope=self._alpha, name="fwd")


class SELU(Layer):
    """The scaled ELU of self-normalizing networks.

    Examples
    --------
    >>> nn.SELU()(nd.array([0, 1])).asnumpy().astype(float).round(2).tolist()
    [0.0, 1.05]
    """

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.LeakyReLU(x, act_type="selu", name="fwd")


class GELU(Layer):
    """Gaussian error linear unit: ``x`` times the normal distribution function of ``x``.

    Parameters
    ----------
    approximate : {'none', 'tanh'}, default 'none'
        'tanh' computes the approximation ``0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``.

    Examples
    --------
    >>> nn.GELU()(nd.array([0, 1])).asnumpy().astype(float).round(2).tolist()
    [0.0, 0.84]
    """

    def __init__(self, approximate: str = "none", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if approximate not in ("none", "tanh"):
            raise MXNetValueError(
                f"GELU: approximate must be 'none' or 'tanh', got {approximate!r}"
            )
        self._approximate = approximate

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        if self._approximate == "tanh":
            return F.gelu(x, approximate="tanh", name="fwd")
        return F.LeakyReLU(x, act_type="gelu", name="fwd")


class SiLU(Layer):
    """Sigmoid linear unit: ``x * sigmoid(x)``.

    Examples
    --------
    >>> nn.SiLU()(nd.array([0, 1])).asnumpy().astype(float).round(2).tolist()
    [0.0, 0.73]
    """

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.silu(x, name="fwd")


class Swish(Layer):
    """Swish: ``x * sigmoid(beta * x)``.

    Examples
    --------
    >>> nn.Swish()(nd.array([0, 1])).asnumpy().astype(float).round(2).tolist()
    [0.0, 0.73]
    """

    def __init__(self, beta: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        domain.number(beta=beta)
        self._beta = beta

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x * F.sigmoid(self._beta * x)


def activation_name(layer: Any) -> str | None:
    """Returns the name of the activation at the end of a layer, or None. Used by
    `parallel.shard`."""
    return None if layer.act is None else layer.act._act_type
