"""Layers of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._internal import domain
from ...base import MXNetValueError
from ..block import HybridBlock
from .activations import check_activation
from .basic_layers import Dense, Dropout

if TYPE_CHECKING:
    from ..._internal.types import Init, Layer
    from ..parameter import Parameter, ParameterDict
else:
    Layer = HybridBlock


__all__ = ["GatedMLP", "RMSNorm"]

GATES = ("silu", "gelu", "gelu_tanh", "gelu_quick", "relu", "sigmoid")


class RMSNorm(Layer):
    """Divides each row by the root mean square of its last axis, and multiplies it by `gamma`.

    Half-precision inputs are computed in float32 and rounded once. Source: Zhang and Sennrich,
    "Root Mean Square Layer Normalization", 2019.

    Parameters
    ----------
    epsilon : float, default 1e-6
        Added to the mean of squares before the square root.
    scale : bool, default True
        Whether to multiply by `gamma`.
    offset : float, default 0
        Added to `gamma`. With 1, as in Gemma, weights are stored minus one and `gamma` starts with
        zeros.
    gamma_initializer : Initializer or str, optional
        Initial values of `gamma`; by default, ``1 - offset``.
    in_channels : int, default 0
        Size of the last axis; 0 to infer it in the first forward pass.
    dtype : str or numpy.dtype, default 'float32'
        Data type of `gamma`.

    Examples
    --------
    >>> layer = nn.RMSNorm()
    >>> layer.initialize()
    >>> layer(nd.array([[3, 4]])).asnumpy().astype(float).round(3).tolist()
    [[0.849, 1.131]]
    """

    def __init__(
        self,
        epsilon: float = 1e-6,
        scale: bool = True,
        offset: float = 0.0,
        gamma_initializer: Init | None = None,
        in_channels: int = 0,
        dtype: Any = "float32",
        prefix: str | None = None,
        params: ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        domain.at_least(0, epsilon=epsilon)
        domain.number(offset=offset)
        domain.size(0, in_channels=in_channels)
        if gamma_initializer is None:
            if offset not in (0, 1):
                raise MXNetValueError(
                    f"RMSNorm: offset={offset} needs a gamma_initializer; for 0 and 1 gamma starts "
                    "with ones and zeros"
                )
            gamma_initializer = "zeros" if offset else "ones"
        self._epsilon, self._offset = epsilon, offset
        self.gamma: Parameter | None = None
        if scale:
            self.gamma = self.params.get(
                "gamma",
                shape=(in_channels,),
                dtype=dtype,
                init=gamma_initializer,
                allow_deferred_init=True,
            )

    def hybrid_forward(self, F: Any, x: Any, gamma: Any = None) -> Any:
        arrays = (x,) if gamma is None else (x, gamma)
        return F.contrib.rms_norm(*arrays, eps=self._epsilon, offset=self._offset)

    def __repr__(self) -> str:
        offset = f", offset={self._offset}" if self._offset else ""
        channels = f", in_channels={self.gamma.shape[0]}" if self.gamma is not None else ""
        return f"RMSNorm(epsilon={self._epsilon}{offset}{channels})"


class GatedMLP(Layer):
    """The feed-forward part of a transformer layer: ``down(act(gate(x)) * up(x))``.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020.

    Parameters
    ----------
    units : int
        Size of the output.
    hidden : int
        Size of `gate` and `up`.
    activation : {'silu', 'gelu', 'gelu_tanh', 'gelu_quick', 'relu', 'sigmoid'}, default 'silu'
        The activation of the gate. 'silu' is called SwiGLU, 'gelu' GeGLU.
    use_bias : bool, default False
        Whether the three layers add a bias.
    in_units : int, default 0
        Size of the input's last axis; 0 to infer it in the first forward pass.
    dropout : float, default 0
        Rate of the dropout between the activation and `down`.
    weight_initializer : Initializer or str, optional
        Initial values of the three weights.
    dtype : str or numpy.dtype, default 'float32'
        Data type of the parameters.

    Examples
    --------
    >>> layer = nn.GatedMLP(units=4, hidden=8)
    >>> layer.initialize()
    >>> layer(nd.ones((2, 3, 4))).shape
    (2, 3, 4)
    """

    def __init__(
        self,
        units: int,
        hidden: int,
        activation: str = "silu",
        use_bias: bool = False,
        in_units: int = 0,
        dropout: float = 0.0,
        weight_initializer: Init | None = None,
        dtype: Any = "float32",
        prefix: str | None = None,
        params: ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        domain.size(1, hidden=hidden)
        domain.fraction(dropout=dropout)
        check_activation("GatedMLP", activation, GATES)
        self._activation = activation
        options: dict[str, Any] = dict(
            use_bias=use_bias, flatten=False, weight_initializer=weight_initializer, dtype=dtype
        )
        with self.name_scope():
            self.gate: Dense = Dense(hidden, in_units=in_units, prefix="gate_", **options)
            self.up: Dense = Dense(hidden, in_units=in_units, prefix="up_", **options)
            self.down: Dense = Dense(units, in_units=hidden, prefix="down_", **options)
            self.dropout: Dropout | None = Dropout(dropout) if dropout else None

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        hidden = F.contrib.gated(self.gate(x), self.up(x), act=self._activation)
        return self.down(hidden if self.dropout is None else self.dropout(hidden))
