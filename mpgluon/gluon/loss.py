"""Losses: one number for each sample of a batch.

Every loss has the parameters ``weight``, a factor, and ``batch_axis``, the axis that is not
averaged over. Calls accept ``sample_weight``, which is broadcast to the elementwise loss: shape
``(batch, 1)`` weights the samples. SoftmaxCrossEntropyLoss keeps the axis of the classes, with size
1: for scores ``(batch, time, classes)``, weights have shape ``(batch, time, 1)`` or ``(batch, 1,
1)``. Weights that extend the elementwise loss are accepted as in MXNet, with a warning.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .. import ndarray as nd
from .._internal import domain, kinds
from .._internal.hints import LOSSES as _LOSSES, of_module as _of_module
from ._loss_checks import check_labels, check_weight_shape, check_weights
from .block import HybridBlock

if TYPE_CHECKING:
    from .._internal.types import Layer
    from .parameter import Parameter
else:
    Layer = HybridBlock

__all__ = [
    "Loss",
    "L2Loss",
    "L1Loss",
    "SigmoidBinaryCrossEntropyLoss",
    "SigmoidBCELoss",
    "SoftmaxCrossEntropyLoss",
    "SoftmaxCELoss",
    "LinearCrossEntropyLoss",
    "KLDivLoss",
    "CTCLoss",
    "HuberLoss",
    "HingeLoss",
    "SquaredHingeLoss",
    "LogisticLoss",
    "TripletLoss",
    "PoissonNLLLoss",
    "CosineEmbeddingLoss",
    "SDMLLoss",
]


def _apply_weighting(F, loss, weight=None, sample_weight=None):
    if sample_weight is not None:
        check_weight_shape(loss, sample_weight)
        weighted = F.broadcast_mul(loss, sample_weight)
        check_weights(loss, sample_weight, weighted)
        loss = weighted
    if weight is not None:
        if not isinstance(weight, (int, float)):
            raise AssertionError(f"weight must be a number, not {type(weight).__name__}")
        loss = loss * weight
    return loss


def _reshape_like(F, x, y):
    """Reshapes `x` like `y`. MXNet's name, used by other packages that define losses."""
    return F.reshape_like(x, y)


class Loss(Layer):
    """Base class of losses.

    Parameters
    ----------
    weight : float or None
        A factor for the loss.
    batch_axis : int
        The axis of the samples, which is not averaged over.

    Examples
    --------
    >>> class Distance(gluon.loss.Loss):
    ...     def hybrid_forward(self, F, pred, label):
    ...         return F.abs(pred - label).mean(axis=self._batch_axis, exclude=True)
    ...
    >>> Distance(None, 0)(nd.ones((2, 3)), nd.zeros((2, 3))).asnumpy().tolist()
    [1.0, 1.0]
    """

    def __init__(self, weight: float | None, batch_axis: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if isinstance(weight, (int, float)):  # subclasses may accept other types
            domain.number(weight=weight)
        domain.axis(batch_axis=batch_axis)
        self._weight = weight
        self._batch_axis = batch_axis

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_axis={self._batch_axis}, w={self._weight})"

    def _mean(self, F, loss, sample_weight, weight=None):
        """Returns the weighted mean over all axes except the batch axis."""
        loss = _apply_weighting(F, loss, self._weight if weight is None else weight, sample_weight)
        return F.mean(loss, axis=self._batch_axis, exclude=True)


class L2Loss(Loss):
    """Squared error ``weight / 2 * (label - pred) ** 2``, averaged over each sample. `label` is
    reshaped like `pred`.

    Examples
    --------
    >>> gluon.loss.L2Loss()(nd.array([[1, 3]]), nd.array([[1, 1]])).asnumpy().tolist()
    [1.0]
    """

    def __init__(self, weight: float = 1.0, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        return self._mean(
            F, F.square(F.reshape_like(label, pred) - pred), sample_weight, self._weight / 2
        )


class L1Loss(Loss):
    """Absolute error ``abs(label - pred)``, averaged over each sample. `label` is reshaped like
    `pred`.

    Examples
    --------
    >>> gluon.loss.L1Loss()(nd.array([[1, 3]]), nd.array([[1, 1]])).asnumpy().tolist()
    [1.0]
    """

    def __init__(self, weight: float | None = None, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        return self._mean(F, F.abs(F.reshape_like(label, pred) - pred), sample_weight)


class SigmoidBinaryCrossEntropyLoss(Loss):
    """Cross entropy of labels in [0, 1] and the sigmoid of `pred`, averaged over each sample.

    Parameters
    ----------
    from_sigmoid : bool, default False
        Whether `pred` is already the result of a sigmoid.
    weight : float, optional
        A factor for the loss.
    batch_axis : int, default 0
        The axis of the samples, which is not averaged over.

    Calls also accept ``pos_weight``, a factor for the positive term that is broadcast to `label`.

    Examples
    --------
    >>> loss = gluon.loss.SigmoidBinaryCrossEntropyLoss()
    >>> value = loss(nd.zeros((2, 1)), nd.array([[0], [1]]))
    >>> value.asnumpy().astype(float).round(3).tolist()
    [0.693, 0.693]
    """

    def __init__(
        self,
        from_sigmoid: bool = False,
        weight: float | None = None,
        batch_axis: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._from_sigmoid = from_sigmoid

    def hybrid_forward(
        self, F: Any, pred: Any, label: Any, sample_weight: Any = None, pos_weight: Any = None
    ) -> Any:
        label = F.reshape_like(label, pred)
        if self._from_sigmoid:
            positive = F.log(pred + 1e-12) * label
            if pos_weight is not None:
                positive = F.broadcast_mul(positive, pos_weight)
            loss = -(positive + F.log(1.0 - pred + 1e-12) * (1.0 - label))
        elif pos_weight is None:
            # log(1 + exp(-|x|)) cannot overflow.
            loss = F.relu(pred) - pred * label + F.Activation(-F.abs(pred), act_type="softrelu")
        else:
            weight = 1 + F.broadcast_mul(pos_weight - 1, label)
            loss = (
                pred
                - pred * label
                + weight * (F.Activation(-F.abs(pred), act_type="softrelu") + F.relu(-pred))
            )
        return self._mean(F, loss, sample_weight)


SigmoidBCELoss = SigmoidBinaryCrossEntropyLoss


class SoftmaxCrossEntropyLoss(Loss):
    """Cross entropy of labels and the softmax of `pred`, averaged over each sample.

    Parameters
    ----------
    axis : int, default -1
        Axis of the classes in `pred`.
    sparse_label : bool, default True
        Whether labels are class indices, shaped like `pred` without `axis`. Otherwise, they are
        probabilities, shaped like `pred`.
    from_logits : bool, default False
        Whether `pred` already contains log probabilities.
    weight : float, optional
        A factor for the loss.
    batch_axis : int, default 0
        The axis of the samples, which is not averaged over.

    Class indices that are out of range are clipped to the nearest class, as in MXNet. With the
    environment variable MPGLUON_ENGINE=sync, they raise ValueError (except in a hybridized block).

    Examples
    --------
    >>> loss = gluon.loss.SoftmaxCrossEntropyLoss()
    >>> loss(nd.zeros((2, 4)), nd.array([0, 3])).asnumpy().astype(float).round(3).tolist()
    [1.386, 1.386]
    """

    def __init__(
        self,
        axis: int = -1,
        sparse_label: bool = True,
        from_logits: bool = False,
        weight: float | None = None,
        batch_axis: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        domain.axis(axis=axis)
        self._axis = axis
        self._sparse_label = sparse_label
        self._from_logits = from_logits

    @property
    def axis(self) -> int:
        """The axis of the classes."""
        return self._axis

    def _check(self, pred, label):
        if label.ndim == pred.ndim and label.shape == pred.shape and pred.shape[self._axis] > 1:
            raise ValueError(
                "SoftmaxCrossEntropyLoss: labels have the same shape as the predictions, "
                f"{label.shape}; for one-hot labels or probabilities use sparse_label=False"
            )
        check_labels("SoftmaxCrossEntropyLoss", label, pred.shape[self._axis])

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        if self._sparse_label and isinstance(pred, nd.NDArray):
            self._check(pred, label)
            if self._axis == -1 and not self._from_logits:
                # The internal op reads pred once instead of three times, with bit-identical
                # results. Symbols use the public operators, because files cannot store internal
                # ops.
                loss = F.expand_dims(F._internal._softmax_ce(pred, label), axis=-1)
                return self._mean(F, loss, sample_weight)
        if not self._from_logits:
            pred = F.log_softmax(pred, axis=self._axis)
        if self._sparse_label:
            loss = -F.pick(pred, label, axis=self._axis, keepdims=True)
        else:
            loss = -F.sum(pred * F.reshape_like(label, pred), axis=self._axis, keepdims=True)
        return self._mean(F, loss, sample_weight)


SoftmaxCELoss = SoftmaxCrossEntropyLoss


class LinearCrossEntropyLoss(Loss):
    """Cross entropy of labels and the scores that a head computes from hidden states, averaged over
    each sample, without an array of all scores.

    Computes ``SoftmaxCrossEntropyLoss()(head(hidden), label)``, but has scores only for a block of
    rows and classes at a time, which take 16 MB. All scores of 8,192 tokens and 128,000 classes and
    their gradient would take 8 GB. Backward computes the scores again, which adds a third to the
    head's work. Rows whose labels are ignored take no work on CPUs.

    Parameters
    ----------
    head : Dense or Embedding
        The layer whose weight, of shape ``(classes, units)``, makes scores of hidden states. The
        loss shares its parameters, so they are trained with the network. A Dense layer must not
        have an activation, and should have ``flatten=False``. An Embedding is the head of networks
        with tied weights.
    ignore_index : int, default -100
        Label of positions that have no loss. The mean of a sample is over its other positions.
    z_loss : float, default 0
        Factor of the square of the scores' log-sum-exp, which is added to the loss and keeps
        scores small.
    softcap : float, default 0
        If not 0, scores become ``softcap * tanh(scores / softcap)``.
    weight : float, optional
        A factor for the loss.
    batch_axis : int, default 0
        The axis of the samples, which is not averaged over.

    Shapes: hidden states ``(batch, ..., units)`` and labels ``(batch, ...)`` -> ``(batch,)``. For
    float16 and bfloat16, the loss is float32. ``F.contrib.linear_cross_entropy`` returns the loss
    of each position. A sample weight has shape ``(batch, ...)`` or broadcasts to it.

    Labels that are out of range are treated as by SoftmaxCrossEntropyLoss.

    In training, the network must return hidden states instead of scores, as in the example. The
    loss is computed on their device. A tied weight that is on another device is copied there, as
    for a placed Dense layer.

    Raises
    ------
    ValueError
        If `head` is another layer or has an activation, or if a sample weight does not broadcast
        to the labels.

    Examples
    --------
    >>> class Model(gluon.HybridBlock):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.embed = nn.Embedding(50, 8)
    ...         tied = self.embed.params
    ...         self.head = nn.Dense(50, flatten=False, in_units=8, params=tied)
    ...     def forward(self, tokens):
    ...         hidden = self.embed(tokens)
    ...         return hidden if mx.autograd.is_training() else self.head(hidden)
    ...
    >>> net = Model()
    >>> net.initialize()
    >>> loss = gluon.loss.LinearCrossEntropyLoss(net.head)
    >>> tokens, labels = nd.array([[1, 2, 3]]), nd.array([[2, 3, -100]])
    >>> with mx.autograd.record():
    ...     value = loss(net(tokens), labels)
    >>> value.backward()
    >>> value.shape, net(tokens).shape
    ((1,), (1, 3, 50))
    """

    def __init__(
        self,
        head: HybridBlock,
        ignore_index: int = -100,
        z_loss: float = 0.0,
        softcap: float = 0.0,
        weight: float | None = None,
        batch_axis: int = 0,
        **kwargs: Any,
    ) -> None:
        from .nn import Dense, Embedding

        super().__init__(weight, batch_axis, **kwargs)
        if not isinstance(head, (Dense, Embedding)):
            raise ValueError(
                "LinearCrossEntropyLoss: head must be a Dense or Embedding layer, not "
                f"{type(head).__name__}"
            )
        if isinstance(head, Dense) and head.act is not None:
            raise ValueError("LinearCrossEntropyLoss: head must not have an activation")
        domain.at_least(0, z_loss=z_loss, softcap=softcap)
        self._options = {"ignore_index": ignore_index, "z_loss": z_loss, "softcap": softcap}
        self.params.update(head.params)
        self.head_weight: Parameter = head.weight
        self.head_bias: Parameter | None = getattr(head, "bias", None)

    def hybrid_forward(
        self,
        F: Any,
        hidden: Any,
        label: Any,
        sample_weight: Any = None,
        head_weight: Any = None,
        head_bias: Any = None,
    ) -> Any:
        arrays = [head_weight] + ([] if head_bias is None else [head_bias])
        if isinstance(hidden, nd.NDArray):
            # A tied weight is on the device of the embedding. A deferred one has no device yet.
            arrays = [
                array.as_in_context(hidden.context) if isinstance(array, nd.NDArray) else array
                for array in arrays
            ]
            classes, ignored = self.head_weight.shape[0], self._options["ignore_index"]
            check_labels(type(self).__name__, label, classes, ignored)
        arrays = [hidden, arrays[0], label, *arrays[1:]]
        loss = F.contrib.linear_cross_entropy(*arrays, **self._options)
        ignored = label == self._options["ignore_index"]
        kept = F.where(ignored, F.zeros_like(loss), F.ones_like(loss))
        count = F.sum(kept, axis=self._batch_axis, exclude=True)
        if sample_weight is not None:
            weighted = F.broadcast_mul(loss, sample_weight)
            check_weights(loss, sample_weight, weighted, type(self).__name__)
            loss = weighted
        loss = _apply_weighting(F, loss, self._weight)
        return F.sum(loss, axis=self._batch_axis, exclude=True) / F.maximum(count, 1)


class KLDivLoss(Loss):
    """Kullback-Leibler divergence of the distribution `pred` from `label`, summed over each sample.

    Parameters
    ----------
    from_logits : bool, default True
        Whether `pred` already contains log probabilities. Otherwise, the loss computes its log
        softmax along `axis`.
    axis : int, default -1
        Axis of the classes, for the softmax.
    weight : float, optional
        A factor for the loss.
    batch_axis : int, default 0
        The axis of the samples, which is not averaged over.

    Examples
    --------
    >>> loss = gluon.loss.KLDivLoss(from_logits=False)
    >>> loss(nd.zeros((1, 2)), nd.array([[1, 0]])).asnumpy().astype(float).round(3).tolist()
    [0.693]
    """

    def __init__(
        self,
        from_logits: bool = True,
        axis: int = -1,
        weight: float | None = None,
        batch_axis: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._from_logits = from_logits
        domain.axis(axis=axis)
        self._axis = axis

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        if not self._from_logits:
            pred = F.log_softmax(pred, axis=self._axis)
        loss = _apply_weighting(
            F, label * (F.log(label + 1e-12) - pred), self._weight, sample_weight
        )
        return F.sum(loss, axis=self._batch_axis, exclude=True)


class CTCLoss(Loss):
    """Connectionist temporal classification: the loss of unaligned label sequences. The last class
    is the blank.

    Parameters
    ----------
    layout : {'NTC', 'TNC'}
        Order of the axes of `pred`.
    label_layout : {'NT', 'TN'}
        Order of the axes of `label`.
    weight : float, optional
        A factor for the loss.

    Examples
    --------
    >>> loss = gluon.loss.CTCLoss()
    >>> loss(nd.zeros((1, 3, 4)), nd.array([[0, 1]])).shape
    (1,)
    """

    def __init__(
        self,
        layout: str = "NTC",
        label_layout: str = "NT",
        weight: float | None = None,
        **kwargs: Any,
    ) -> None:
        if layout not in ("NTC", "TNC"):
            raise AssertionError(
                f"Only 'NTC' and 'TNC' layouts for pred are supported. Got: {layout}"
            )
        if label_layout not in ("NT", "TN"):
            raise AssertionError(
                f"Only 'NT' and 'TN' layouts for label are supported. Got: {label_layout}"
            )
        super().__init__(weight, label_layout.find("N"), **kwargs)
        self._layout = layout
        self._label_layout = label_layout

    def hybrid_forward(
        self,
        F: Any,
        pred: Any,
        label: Any,
        pred_lengths: Any = None,
        label_lengths: Any = None,
        sample_weight: Any = None,
    ) -> Any:
        if self._layout == "NTC":
            pred = F.swapaxes(pred, dim1=0, dim2=1)
        if self._batch_axis == 1:
            label = F.swapaxes(label, dim1=0, dim2=1)
        loss = F.CTCLoss(
            pred,
            label,
            *[lengths for lengths in (pred_lengths, label_lengths) if lengths is not None],
            use_data_lengths=pred_lengths is not None,
            use_label_lengths=label_lengths is not None,
            blank_label="last",
        )
        return _apply_weighting(F, loss, self._weight, sample_weight)


class HuberLoss(Loss):
    """Squared error below `rho`, absolute error above, averaged over each sample.

    Examples
    --------
    >>> gluon.loss.HuberLoss()(nd.array([[3.0]]), nd.array([[1.0]])).asnumpy().tolist()
    [1.5]
    """

    def __init__(
        self, rho: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        domain.positive(rho=rho)
        self._rho = rho

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        error = F.abs(F.reshape_like(label, pred) - pred)
        loss = F.where(
            error > self._rho, error - 0.5 * self._rho, (0.5 / self._rho) * F.square(error)
        )
        return self._mean(F, loss, sample_weight)


class _MarginLoss(Loss):
    """Base of losses with a margin."""

    def __init__(
        self, margin: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        domain.number(margin=margin)
        self._margin = margin


class HingeLoss(_MarginLoss):
    """Hinge loss ``max(0, margin - pred * label)`` for labels -1 and 1, averaged over each sample.

    Examples
    --------
    >>> gluon.loss.HingeLoss()(nd.array([[0.5]]), nd.array([[1]])).asnumpy().tolist()
    [0.5]
    """

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        return self._mean(
            F, F.relu(self._margin - pred * F.reshape_like(label, pred)), sample_weight
        )


class SquaredHingeLoss(_MarginLoss):
    """Squared hinge loss ``max(0, margin - pred * label) ** 2`` for labels -1 and 1, averaged over
    each sample.

    Examples
    --------
    >>> gluon.loss.SquaredHingeLoss()(nd.array([[0.5]]), nd.array([[1]])).asnumpy().tolist()
    [0.25]
    """

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        return self._mean(
            F, F.square(F.relu(self._margin - pred * F.reshape_like(label, pred))), sample_weight
        )


class LogisticLoss(Loss):
    """Logistic loss ``log(1 + exp(-pred * label))``, averaged over each sample.

    Parameters
    ----------
    label_format : {'signed', 'binary'}
        Whether labels are -1 and 1 ("signed"), or 0 and 1 ("binary").
    weight : float, optional
        A factor for the loss.
    batch_axis : int, default 0
        The axis of the samples, which is not averaged over.

    Examples
    --------
    >>> loss = gluon.loss.LogisticLoss()
    >>> loss(nd.zeros((1, 1)), nd.array([[1]])).asnumpy().astype(float).round(3).tolist()
    [0.693]
    """

    def __init__(
        self,
        weight: float | None = None,
        batch_axis: int = 0,
        label_format: str = "signed",
        **kwargs: Any,
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        if label_format not in ("signed", "binary"):
            raise ValueError(f"label_format can only be signed or binary, received {label_format}.")
        self._label_format = label_format

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        label = F.reshape_like(label, pred)
        if self._label_format == "signed":
            label = (label + 1.0) / 2.0
        loss = F.relu(pred) - pred * label + F.Activation(-F.abs(pred), act_type="softrelu")
        return self._mean(F, loss, sample_weight)


class TripletLoss(_MarginLoss):
    """Triplet loss ``max(0, |positive - pred|^2 - |negative - pred|^2 + margin)``. The squares are
    summed over each sample.

    Examples
    --------
    >>> loss = gluon.loss.TripletLoss()
    >>> loss(nd.array([[0, 0]]), nd.array([[1, 0]]), nd.array([[0, 1]])).asnumpy().tolist()
    [1.0]
    """

    def hybrid_forward(self, F: Any, pred: Any, positive: Any, negative: Any) -> Any:
        positive = F.reshape_like(positive, pred)
        negative = F.reshape_like(negative, pred)
        loss = F.sum(
            F.square(positive - pred) - F.square(negative - pred),
            axis=self._batch_axis,
            exclude=True,
        )
        return _apply_weighting(F, F.relu(loss + self._margin), self._weight)


class PoissonNLLLoss(Loss):
    """Negative log likelihood of `target` under Poisson distributions with mean `pred`. Returns one
    value for the whole batch.

    Parameters
    ----------
    from_logits : bool, default True
        Whether `pred` is the logarithm of the mean.
    compute_full : bool, default False
        Whether to add Stirling's approximation of the term that depends only on the target.
    weight : float, optional
        A factor for the loss.
    batch_axis : int, default 0
        The axis of the samples, which is not averaged over.

    Examples
    --------
    >>> loss = gluon.loss.PoissonNLLLoss(from_logits=False)
    >>> value = loss(nd.array([1.0, 2.0]), nd.array([1.0, 2.0]))
    >>> value.asnumpy().astype(float).round(3).tolist()
    [0.807]
    """

    def __init__(
        self,
        weight: float | None = None,
        from_logits: bool = True,
        batch_axis: int = 0,
        compute_full: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._from_logits = from_logits
        self._compute_full = compute_full

    def hybrid_forward(
        self, F: Any, pred: Any, target: Any, sample_weight: Any = None, epsilon: Any = 1e-08
    ) -> Any:
        target = F.reshape_like(target, pred)
        if self._from_logits:
            loss = F.exp(pred) - target * pred
        else:
            loss = pred - target * F.log(pred + epsilon)
        if self._compute_full:
            # This term is 0 for targets 0 and 1. Replace these targets with 1 before the logarithm,
            # because multiplication by log(0) = -infinity would give NaN.
            large = target > 1
            safe = F.where(large, target, F.ones_like(target))
            stirling = target * F.log(safe) - target + 0.5 * F.log(2 * math.pi * safe)
            loss = loss + stirling * large
        return F.mean(_apply_weighting(F, loss, self._weight, sample_weight))


class CosineEmbeddingLoss(Loss):
    """Cosine embedding loss: ``1 - cos(input1, input2)`` if the label is 1, and
    ``max(0, cos(input1, input2) - margin)`` if it is -1.

    Parameters
    ----------
    margin : float, default 0
        Cosines below the margin have no loss if the label is -1.
    weight : float, optional
        A factor for the loss.
    batch_axis : int, default 0
        The axis of the samples, which is not averaged over.

    Examples
    --------
    >>> loss = gluon.loss.CosineEmbeddingLoss()
    >>> loss(nd.array([[1, 0]]), nd.array([[0, 1]]), nd.array([1])).asnumpy().tolist()
    [[1.0]]
    """

    def __init__(
        self, weight: float | None = None, batch_axis: int = 0, margin: float = 0, **kwargs: Any
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        domain.number(margin=margin)
        self._margin = margin

    def hybrid_forward(
        self, F: Any, input1: Any, input2: Any, label: Any, sample_weight: Any = None
    ) -> Any:
        input1 = F.reshape_like(input1, input2)
        label = F.reshape(label, shape=(-1, 1))
        cosine = self._cosine_similarity(F, input1, input2)
        loss = (1 - cosine) * (label == 1) + F.relu(cosine - self._margin) * (label == -1)
        return _apply_weighting(F, loss, self._weight, sample_weight)

    def _cosine_similarity(self, F, x, y, axis=-1):
        norms = F.norm(x, axis=axis).reshape((-1, 1)) * F.norm(y, axis=axis).reshape((-1, 1))
        product = F.sum(x * y, axis=axis).reshape((-1, 1))
        return product / F.maximum(norms, 1e-12)


class SDMLLoss(Loss):
    """Smoothed deep metric learning: rows with the same index in `x1` and `x2` are pairs, all other
    combinations in the batch are negatives.

    The loss is the Kullback-Leibler divergence of ``softmax(-distances)``, from each row of `x1` to
    the rows of `x2`, from the smoothed labels of the pairs.

    Parameters
    ----------
    smoothing_parameter : float, default 0.3
        Fraction of each row's probability that is spread over the negatives.
    weight : float, default 1.0
        A factor for the loss.
    batch_axis : int, default 0
        The axis of the samples, which is not averaged over.

    Examples
    --------
    >>> gluon.loss.SDMLLoss()(nd.zeros((2, 3)), nd.zeros((2, 3))).shape
    (2,)
    """

    def __init__(
        self,
        smoothing_parameter: float = 0.3,
        weight: float = 1.0,
        batch_axis: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self.kl_loss: KLDivLoss = KLDivLoss(from_logits=True)
        domain.fraction(smoothing_parameter=smoothing_parameter)
        self.smoothing_parameter = smoothing_parameter

    def hybrid_forward(self, F: Any, x1: Any, x2: Any) -> Any:
        if x1.shape != x2.shape or len(x1.shape) != 2:
            raise AssertionError(
                "SDMLLoss: the inputs must have the same shape, (batch, features), not "
                f"{x1.shape} and {x2.shape}"
            )
        batch = x1.shape[0]
        if batch < 2:
            raise AssertionError("SDMLLoss: a batch must have at least two pairs")
        pairs = kinds.like(F.eye(batch, ctx=x1.context, dtype=x1.dtype), x1)
        labels = pairs * (1 - self.smoothing_parameter) + (1 - pairs) * (
            self.smoothing_parameter / (batch - 1)
        )
        distances = F.sum(
            F.square(F.broadcast_sub(F.expand_dims(x1, 1), F.expand_dims(x2, 0))), axis=2
        )
        return self.kl_loss(F.log_softmax(-distances, axis=1), labels)


if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__

    def __getattr__(name: str) -> object:
        raise _of_module(__name__, name, _LOSSES, "gluon.loss.")
