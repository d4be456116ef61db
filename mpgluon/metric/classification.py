"""Metrics of predicted classes, and of their probabilities."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy

from .. import ndarray
from ..base import MXNetAssertionError, MXNetIndexError, MXNetValueError
from ._binary_counts import BinaryCounts, BinaryStatistics
from .base import EvalMetric, alias, check_label_shapes, host, register, total, wide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._internal.types import Arrays


__all__ = [
    "Accuracy",
    "TopKAccuracy",
    "F1",
    "MCC",
    "PCC",
    "Perplexity",
    "CrossEntropy",
    "NegativeLogLikelihood",
]


@register
@alias("acc")
class Accuracy(EvalMetric):
    """The fraction of predictions that equal the label.

    If predictions are scores, with one axis more than the labels, the class with the largest score
    along `axis` is the prediction.

    Parameters
    ----------
    axis : int, default 1
        The axis of the classes' scores.
    name : str, default 'accuracy'
        The name shown with the value.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.

    Examples
    --------
    >>> metric = mx.metric.Accuracy()
    >>> metric.update([nd.array([0, 1])], [nd.array([[0.9, 0.1], [0.7, 0.3]])])
    >>> metric.get()
    ('accuracy', 0.5)
    """

    def __init__(
        self,
        axis: int = 1,
        name: str = "accuracy",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            name,
            axis=axis,
            output_names=output_names,
            label_names=label_names,
            has_global_stats=True,
        )
        self.axis = axis

    def update(self, labels: Arrays, preds: Arrays) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            if tuple(pred.shape) != tuple(label.shape):
                # argmax returns indices in the dtype of the scores, and float16 cannot represent
                # all integers above 2048.
                scores = pred.astype("float32") if pred.dtype == numpy.float16 else pred
                pred = ndarray.argmax(scores, axis=self.axis)
            label = host(label).astype("int32").ravel()
            pred = host(pred).astype("int32").ravel()
            check_label_shapes(label, pred)
            self._add((pred == label).sum(), len(pred))


@register
@alias("top_k_accuracy", "top_k_acc")
class TopKAccuracy(EvalMetric):
    """The fraction of samples whose label is among the `top_k` (2 or more) largest scores.

    Predictions have the shape (samples, classes).

    Parameters
    ----------
    top_k : int, default 1
        The number of largest scores.
    name : str, default 'top_k_accuracy'
        The name shown with the value.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.

    Examples
    --------
    >>> metric = mx.metric.TopKAccuracy(top_k=2)
    >>> metric.update([nd.array([0, 2])], [nd.array([[0.5, 0.4, 0.1], [0.5, 0.4, 0.1]])])
    >>> metric.get()
    ('top_k_accuracy_2', 0.5)
    """

    def __init__(
        self,
        top_k: int = 1,
        name: str = "top_k_accuracy",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        if top_k <= 1:
            raise MXNetAssertionError(f"top_k must be 2 or more (use Accuracy for 1), got {top_k}")
        super().__init__(
            name,
            top_k=top_k,
            output_names=output_names,
            label_names=label_names,
            has_global_stats=True,
        )
        self.top_k = top_k
        self.name: str = f"{self.name}_{top_k}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(top_k={self.top_k}, name={self.get_config()['name']!r})"

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "name": self.name[: -len(f"_{self.top_k}")]}

    def update(self, labels: Arrays, preds: Arrays) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            if len(pred.shape) > 2:
                raise MXNetAssertionError(
                    "TopKAccuracy: predictions must have at most 2 dimensions, got shape "
                    f"{tuple(pred.shape)}"
                )
            label = host(label).astype("int32").ravel()
            pred = host(pred).astype("float32")
            check_label_shapes(label, pred)
            if pred.ndim == 1:
                self._add((numpy.argsort(pred, kind="stable") == label).sum(), len(label))
                continue
            top_k = min(pred.shape[1], self.top_k)
            best = numpy.argpartition(pred, -top_k, axis=1)[:, -top_k:]
            self._add((best == label[:, None]).sum(), len(label))


def _misfit(name, label, pred):
    return MXNetAssertionError(
        f"{name}: labels of shape {label.shape} need scores of shape "
        f"{(*label.shape[:1], 'classes')}, got {pred.shape}".replace("'", "")
    )


def _best(name, label, pred):
    """Returns the class with the largest score along axis 1, for each label."""
    if pred.ndim < 2 or pred.size // (pred.shape[1] or 1) != label.size:
        raise _misfit(name, label, pred)
    return pred.argmax(axis=1).ravel()


def _binary_confusion(name, label, pred):
    pred = host(pred)
    label = host(label).astype("int32")
    said = _best(name, label, pred) == 1
    label = label.ravel()
    if len(numpy.unique(label)) > 2:
        raise MXNetValueError(
            f"{name} supports two classes, but the labels have {len(numpy.unique(label))} "
            "different values"
        )
    true = label == 1
    counts = BinaryCounts()
    counts.true_positives = int((said & true).sum())
    counts.false_positives = int((said & ~true).sum())
    counts.false_negatives = int((~said & true).sum())
    counts.true_negatives = int((~said & ~true).sum())
    return counts


class _BinaryMetric(EvalMetric):
    """A statistic of the confusion matrix.

    "macro" averages over updates; any other mode treats all samples together.
    """

    def __init__(
        self, name: str, output_names: Sequence[str], label_names: Sequence[str], average: str
    ) -> None:
        self.average = average
        self.metrics: BinaryStatistics = BinaryStatistics()
        super().__init__(
            name, output_names=output_names, label_names=label_names, has_global_stats=True
        )

    def _figure(self, counts):
        raise NotImplementedError(f"{type(self).__name__} does not define _figure")

    def update(self, labels: Arrays, preds: Arrays) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            counts = _binary_confusion(type(self).__name__, label, pred)
            self.metrics.add(counts)
            self.metrics.overall.add(counts)
        local, overall = self.metrics, self.metrics.overall
        if self.average == "macro":
            self.sum_metric += self._figure(local)
            self.global_sum_metric += self._figure(overall)
            self.num_inst += 1
            self.global_num_inst += 1
            local.clear()
            overall.clear()
        else:
            self.sum_metric: float = self._figure(local) * local.total_examples
            self.global_sum_metric: float = self._figure(overall) * overall.total_examples
            self.num_inst: int = local.total_examples
            self.global_num_inst: int = overall.total_examples

    def reset(self) -> None:
        super().reset()
        self.metrics.clear()
        self.metrics.overall.clear()

    def reset_local(self) -> None:
        super().reset_local()
        self.metrics.clear()


@register
class F1(_BinaryMetric):
    """The F1 score, the harmonic mean of precision and recall, of a binary classification.

    Labels are 0 and 1; predictions have the shape (samples, 2).

    Parameters
    ----------
    name : str, default 'f1'
        The name shown with the value.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.
    average : str, default 'macro'
        'macro' averages over updates; 'micro' treats all samples together.

    Attributes
    ----------
    metrics
        The counts since `reset_local`, with `precision`, `recall` and `fscore`. Attributes with the
        prefix ``global_`` are since `reset`. 'macro' clears the counts in each update.

    Examples
    --------
    >>> metric = mx.metric.F1()
    >>> metric.update([nd.array([0, 1])], [nd.array([[0.9, 0.1], [0.2, 0.8]])])
    >>> metric.get()
    ('f1', 1.0)
    """

    def __init__(
        self,
        name: str = "f1",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        average: str = "macro",
    ) -> None:
        super().__init__(name, output_names, label_names, average)

    def _figure(self, counts):
        return counts.fscore


@register
class MCC(_BinaryMetric):
    """The Matthews correlation coefficient of a binary classification.

    Labels are 0 and 1; predictions have the shape (samples, 2).

    Parameters
    ----------
    name : str, default 'mcc'
        The name shown with the value.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.
    average : str, default 'macro'
        'macro' averages over updates; 'micro' treats all samples together.

    Examples
    --------
    >>> metric = mx.metric.MCC()
    >>> metric.update([nd.array([0, 1])], [nd.array([[0.9, 0.1], [0.2, 0.8]])])
    >>> metric.get()
    ('mcc', 1.0)
    """

    def __init__(
        self,
        name: str = "mcc",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        average: str = "macro",
    ) -> None:
        super().__init__(name, output_names, label_names, average)

    def _figure(self, counts):
        return counts.matthewscc()


@register
class PCC(EvalMetric):
    """The Matthews correlation coefficient for any number of classes, over all samples together.

    Parameters
    ----------
    name : str, default 'pcc'
        The name shown with the value.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.
    has_global_stats : bool, default True
        True if there are values since `reset` in addition to those since `reset_local`.

    Attributes
    ----------
    lcm, gcm : numpy.ndarray
        The confusion matrices, with predicted classes as rows and labels as columns, since
        `reset_local` and since `reset`.

    Examples
    --------
    >>> metric = mx.metric.PCC()
    >>> metric.update([nd.array([0, 1, 2])], [nd.array([0, 1, 2])])
    >>> round(float(metric.get()[1]), 3)
    1.0
    """

    def __init__(
        self,
        name: str = "pcc",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        has_global_stats: bool = True,
    ) -> None:
        self.k: int = 2
        super().__init__(
            name,
            output_names=output_names,
            label_names=label_names,
            has_global_stats=has_global_stats,
        )

    def reset(self) -> None:
        self.global_num_inst: int = 0
        self.gcm: numpy.ndarray[Any, Any] = numpy.zeros((self.k, self.k))
        self.reset_local()

    def reset_local(self) -> None:
        self.num_inst: int = 0
        self.lcm: numpy.ndarray[Any, Any] = numpy.zeros((self.k, self.k))

    def _grow(self, classes):
        more = classes - self.k
        if more > 0:
            self.lcm = numpy.pad(self.lcm, ((0, more), (0, more)))
            self.gcm = numpy.pad(self.gcm, ((0, more), (0, more)))
            self.k = classes

    @staticmethod
    def _correlation(counts):
        total = counts.sum()
        said, true = counts.sum(axis=1), counts.sum(axis=0)
        spread = (said * (total - said)).sum() * (true * (total - true)).sum()
        if spread == 0:
            return float("nan")
        return (counts.diagonal() * total - said * true).sum() / math.sqrt(spread)

    def update(self, labels: Arrays, preds: Arrays) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            label, pred = host(label).astype("int32"), host(pred)
            if pred.shape != label.shape:
                pred = _best("PCC", label, pred)
            label, pred = label.ravel(), pred.astype("int32").ravel()
            if label.size == 0:
                continue
            if min(label.min(), pred.min()) < 0:
                raise MXNetValueError("PCC: class labels must not be negative")
            self._grow(int(max(label.max(), pred.max())) + 1)
            counts = numpy.zeros((self.k, self.k))
            numpy.add.at(counts, (pred, label), 1)
            self.lcm += counts
            self.gcm += counts
        self.num_inst += 1
        self.global_num_inst += 1

    @property
    def sum_metric(self) -> Any:
        """The coefficient times `num_inst`, over the samples since `reset_local`."""
        return self._correlation(self.lcm) * self.num_inst

    @property
    def global_sum_metric(self) -> Any:
        """The coefficient times `global_num_inst`, over the samples since `reset`."""
        return self._correlation(self.gcm) * self.global_num_inst


@register
class Perplexity(EvalMetric):
    """exp of the mean negative log-probability of the labels, except those equal to `ignore_label`.

    Predictions are probabilities along their last axis (`axis`).

    Parameters
    ----------
    ignore_label : int or None
        A label to ignore; None ignores none.
    axis : int, default -1
        The axis of the classes' probabilities.
    name : str, default 'perplexity'
        The name shown with the value.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.

    Examples
    --------
    >>> metric = mx.metric.Perplexity(ignore_label=None)
    >>> metric.update([nd.array([0, 1])], [nd.array([[0.5, 0.5], [0.5, 0.5]])])
    >>> round(float(metric.get()[1]), 3)
    2.0
    """

    def __init__(
        self,
        ignore_label: int | None,
        axis: int = -1,
        name: str = "perplexity",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            name,
            ignore_label=ignore_label,
            output_names=output_names,
            label_names=label_names,
            has_global_stats=True,
        )
        self.ignore_label = ignore_label
        self.axis = axis

    def update(self, labels: Arrays, preds: Arrays) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            if label.size * pred.shape[-1] != pred.size:
                raise MXNetAssertionError(
                    f"Perplexity: labels of shape {tuple(label.shape)} do not match predictions "
                    f"of shape {tuple(pred.shape)}; expected one label per row of the last axis"
                )
            label = label.as_in_context(pred.context).reshape((label.size,)).astype("int32")
            chosen = ndarray.pick(pred.reshape((label.size, pred.shape[-1])), label, axis=self.axis)
            losses = -ndarray.log(ndarray.maximum(chosen, 1e-10))
            count = label.size
            if self.ignore_label is not None:
                keep = label != self.ignore_label
                losses = losses * keep.astype(losses.dtype)
                count = int(ndarray.sum(keep.astype("int64")).item())
            self._add(total(losses), count)

    def _mean(self, total, instances):
        return math.exp(total / instances)


class _LogProbability(EvalMetric):
    """The mean of -log(probability of the label + eps).

    Labels have the shape (samples,), predictions (samples, classes).
    """

    def __init__(
        self, eps: float, name: str, output_names: Sequence[str], label_names: Sequence[str]
    ) -> None:
        super().__init__(
            name, eps=eps, output_names=output_names, label_names=label_names, has_global_stats=True
        )
        self.eps = eps

    def update(self, labels: Arrays, preds: Arrays) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            label, pred = host(label).ravel().astype(numpy.int64), host(pred)
            name = type(self).__name__
            if pred.ndim != 2 or len(label) != len(pred):
                raise _misfit(name, label, pred)
            classes = pred.shape[1]
            # As in MXNet, negative labels from -classes on count from the last class.
            wrong = label[(label < -classes) | (label >= classes)]
            if wrong.size:
                raise MXNetIndexError(
                    f"{name}: label {wrong[0]} is out of range: the predictions have {classes} "
                    "classes, numbered from 0"
                )
            chosen = wide(pred[numpy.arange(len(label)), label])
            self._add((-numpy.log(chosen + self.eps)).sum(), len(label))


@register
@alias("ce")
class CrossEntropy(_LogProbability):
    """The mean cross-entropy of predicted probabilities.

    Parameters
    ----------
    eps : float, default 1e-12
        Added to probabilities.
    name : str, default 'cross-entropy'
        The name shown with the value.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.

    Examples
    --------
    >>> metric = mx.metric.CrossEntropy()
    >>> metric.update([nd.array([0])], [nd.array([[1.0, 0.0]])])
    >>> round(metric.get()[1], 3) == 0
    True
    """

    def __init__(
        self,
        eps: float = 1e-12,
        name: str = "cross-entropy",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(eps, name, output_names, label_names)


@register
@alias("nll_loss")
class NegativeLogLikelihood(_LogProbability):
    """The mean negative log-likelihood of predicted probabilities.

    Parameters
    ----------
    eps : float, default 1e-12
        Added to probabilities.
    name : str, default 'nll-loss'
        The name shown with the value.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.

    Examples
    --------
    >>> metric = mx.metric.NegativeLogLikelihood()
    >>> metric.update([nd.array([0])], [nd.array([[0.5, 0.5]])])
    >>> round(float(metric.get()[1]), 3)
    0.693
    """

    def __init__(
        self,
        eps: float = 1e-12,
        name: str = "nll-loss",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(eps, name, output_names, label_names)
