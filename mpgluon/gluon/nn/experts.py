"""Mixtures of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core import dtype_name
from ..._internal import domain
from ...autograd import is_training
from ...base import MXNetValueError
from ..block import HybridBlock
from .activations import check_activation
from .basic_layers import Dense
from .transformer_layers import GATES, GatedMLP

if TYPE_CHECKING:
    from ..._internal.types import Init, Layer
    from ..parameter import Parameter, ParameterDict
else:
    Layer = HybridBlock


__all__ = ["MoE"]

_ROUTERS = ("softmax", "sigmoid")
_BALANCES = ("batch", "sample")


class MoE(Layer):
    """A mixture of gated feed-forward networks: a router chooses `k` experts for each token.

    A token is a row of the last axis of the input. Tokens are sorted by expert, and each expert
    multiplies its own rows only, so the cost grows with `k`, not with the number of experts. No
    token is dropped unless there is a `capacity`.

    The bits of a token don't depend on the other tokens in the batch, except that CPUs can round
    products of few rows in another way: of up to 32 tokens by the router and the shared experts,
    and of up to 64 rows, k for each token, by the experts. So a pipeline gives the bits of the
    whole batch if its micro-batches have more than 64 tokens.

    `router` is a `Dense` layer without bias. The weights of the experts are the parameters
    `gate_weight` and `up_weight`, (experts, hidden, in_units), and `down_weight`, (experts, units,
    hidden). Sources: Shazeer et al., "Outrageously Large Neural Networks", 2017; Fedus et al.,
    "Switch Transformers", 2021; Zoph et al., "ST-MoE", 2022.

    The layer adds the losses of `aux_loss` and `z_loss` to the training by itself, in train mode
    (`F.contrib.add_loss`): no loss has to be passed on to the training loop. They count once per
    sample, like the result of `gluon.loss`, so ``trainer.step(batch_size)`` divides them by the
    batch size. If the training loop averages the losses of the batch itself, divide the
    coefficients by the batch size. In a hybridized block, automatic mixed precision with float16
    cannot scale them, and raises an error; use bfloat16.

    Parameters
    ----------
    units, hidden : int
        Size of the output, and of the hidden values of an expert.
    experts, k : int
        Number of experts, and of experts per token.
    activation : {'silu', 'gelu', 'gelu_tanh', 'gelu_quick', 'relu', 'sigmoid'}, default 'silu'
        The activation of the gates.
    router : {'softmax', 'sigmoid'}, default 'softmax'
        The function that turns scores into probabilities.
    renormalize : bool, default True
        Whether the probabilities of the chosen experts are divided by their sum.
    shared : int, default 0
        Number of experts that every token uses, without a weight: the child `shared`, a `GatedMLP`
        of ``shared * hidden`` hidden values.
    capacity : float, optional
        An expert accepts at most ``capacity * tokens * k / experts`` tokens, rounded up. It skips
        later tokens. The default is unlimited.
    aux_loss : float, default 0
        Coefficient of ``experts * sum(f * p)``, which is smallest if all experts get equally many
        tokens: f is the number of rows of an expert divided by the number of tokens, p the mean
        probability of the expert.
    z_loss : float, default 0
        Coefficient of the mean of ``logsumexp(scores) ** 2``.
    balance : {'batch', 'sample'}, default 'batch'
        Whether `aux_loss` balances the tokens of the whole batch or of each sample. A pipeline
        needs 'sample', because its micro-batches don't know the whole batch.
    in_units : int, default 0
        Size of the input's last axis; 0 to infer it in the first forward pass.
    weight_initializer : Initializer or str, optional
        Initial values of all weights.
    dtype : str or numpy.dtype, default 'float32'
        Data type of the parameters.

    Examples
    --------
    >>> layer = nn.MoE(units=4, hidden=8, experts=6, k=2)
    >>> layer.initialize()
    >>> layer(nd.ones((2, 3, 4))).shape
    (2, 3, 4)
    """

    def __init__(
        self,
        units: int,
        hidden: int,
        experts: int,
        k: int,
        activation: str = "silu",
        router: str = "softmax",
        renormalize: bool = True,
        shared: int = 0,
        capacity: float | None = None,
        aux_loss: float = 0.0,
        z_loss: float = 0.0,
        balance: str = "batch",
        in_units: int = 0,
        weight_initializer: Init | None = None,
        dtype: Any = "float32",
        prefix: str | None = None,
        params: ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        domain.size(1, units=units, hidden=hidden, experts=experts, k=k)
        domain.size(0, shared=shared, in_units=in_units)
        check_activation("MoE", activation, GATES)
        if router not in _ROUTERS:
            raise MXNetValueError(f"MoE: router must be 'softmax' or 'sigmoid', not {router!r}")
        if balance not in _BALANCES:
            raise MXNetValueError(f"MoE: balance must be 'batch' or 'sample', not {balance!r}")
        if k > experts:
            raise MXNetValueError(f"MoE: k = {k} must be at most the number of experts, {experts}")
        if capacity is not None:
            domain.positive(capacity=capacity)
        domain.not_negative(aux_loss=aux_loss, z_loss=z_loss)
        self._activation, self._experts, self._balance = activation, experts, balance
        self._aux_loss, self._z_loss = aux_loss, z_loss
        self._route = dict(k=k, router=router, renormalize=renormalize, capacity=capacity or 0.0)

        def get(name: str, *shape: int) -> Parameter:
            return self.params.get(
                name, shape=shape, init=weight_initializer, dtype=dtype, allow_deferred_init=True
            )

        with self.name_scope():
            self.router: Dense = Dense(
                experts,
                in_units=in_units,
                flatten=False,
                use_bias=False,
                weight_initializer=weight_initializer,
                dtype=dtype,
                prefix="router_",
            )
            self.gate_weight: Parameter = get("gate_weight", experts, hidden, in_units)
            self.up_weight: Parameter = get("up_weight", experts, hidden, in_units)
            self.down_weight: Parameter = get("down_weight", experts, units, hidden)
            self.shared: GatedMLP | None = (
                GatedMLP(
                    units,
                    shared * hidden,
                    activation,
                    in_units=in_units,
                    weight_initializer=weight_initializer,
                    dtype=dtype,
                    prefix="shared_",
                )
                if shared
                else None
            )

    def hybrid_forward(
        self, F: Any, x: Any, gate_weight: Any, up_weight: Any, down_weight: Any
    ) -> Any:
        scores = self.router(x)
        order, counts, weights, chosen = F.contrib.route(scores, **self._route)
        if (self._aux_loss or self._z_loss) and is_training():
            weights = self._with_losses(F, scores, counts, weights, chosen)
        rows = F.contrib.dispatch(x, order)
        hidden = F.contrib.gated(
            F.contrib.grouped_dot(rows, gate_weight, counts),
            F.contrib.grouped_dot(rows, up_weight, counts),
            act=self._activation,
        )
        y = F.contrib.combine(F.contrib.grouped_dot(hidden, down_weight, counts), order, weights)
        return y if self.shared is None else y + self.shared(x)

    def _with_losses(self, F: Any, scores: Any, counts: Any, weights: Any, chosen: Any) -> Any:
        """Returns the weights, and adds the gradient of the losses to their gradient."""
        if dtype_name(scores.dtype) in ("float16", "bfloat16"):
            scores = F.cast(scores, "float32")
        inner = tuple(range(1, len(scores.shape) - 1))  # the axes of a sample's tokens

        def mean(values: Any, axes: tuple[int, ...]) -> Any:
            return F.mean(values, axis=axes) if axes else values

        if self._aux_loss:
            if self._route["router"] == "softmax":
                p = F.softmax(scores, axis=-1)
            else:
                p = F.sigmoid(scores)
                p = F.broadcast_div(p, F.sum(p, axis=-1, keepdims=True))
            rows = F.sum(F.one_hot(chosen, self._experts, dtype=dtype_name(p.dtype)), axis=-2)
            axes = inner if self._balance == "sample" else (0, *inner)
            loss = F.sum(mean(rows, axes) * mean(p, axes), axis=-1) * self._experts
            times = 1 if self._balance == "sample" else scores.shape[0]
            weights = F.contrib.add_loss(weights, loss, grad_scale=self._aux_loss * times)
        if self._z_loss:
            first = F.slice_axis(scores, axis=-1, begin=0, end=1)
            logs = F.slice_axis(F.log_softmax(scores, axis=-1), axis=-1, begin=0, end=1)
            loss = mean(F.square(F.squeeze(first - logs, axis=-1)), inner)
            weights = F.contrib.add_loss(weights, loss, grad_scale=self._z_loss)
        return weights
