"""Regression metrics, and the mean of losses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy

from .. import ndarray
from ..base import MXNetValueError
from .base import EvalMetric, alias, check_label_shapes, host, register, total, wide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._internal.types import Arrays


__all__ = ["MAE", "MSE", "RMSE", "PearsonCorrelation", "Loss", "Torch", "Caffe"]


class _Regression(EvalMetric):
    """A statistic of the difference between labels and predictions, averaged over arrays.

    Vectors are treated as columns.
    """

    def __init__(self, name: str, output_names: Sequence[str], label_names: Sequence[str]) -> None:
        super().__init__(
            name, output_names=output_names, label_names=label_names, has_global_stats=True
        )

    def _figure(self, difference):
        raise NotImplementedError(f"{type(self).__name__} does not define _figure")

    def update(self, labels: Arrays, preds: Arrays) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            label, pred = wide(host(label)), wide(host(pred))
            label = label[:, None] if label.ndim == 1 else label
            pred = pred[:, None] if pred.ndim == 1 else pred
            try:
                difference = label - pred
            except ValueError:
                raise MXNetValueError(
                    f"{type(self).__name__}: labels and predictions must have the same shape, "
                    f"got {label.shape} and {pred.shape}"
                ) from None
            self._add(self._figure(difference), 1)


@register
class MAE(_Regression):
    """The mean absolute error.

    Parameters
    ----------
    name : str, default 'mae'
        The name shown with the value.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.

    Examples
    --------
    >>> metric = mx.metric.MAE()
    >>> metric.update([nd.array([1, 2])], [nd.array([1, 4])])
    >>> metric.get()
    ('mae', 1.0)
    """

    def __init__(
        self,
        name: str = "mae",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, output_names, label_names)

    def _figure(self, difference):
        return numpy.abs(difference).mean()


@register
class MSE(_Regression):
    """The mean squared error.

    Parameters
    ----------
    name : str, default 'mse'
        The name shown with the value.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.

    Examples
    --------
    >>> metric = mx.metric.MSE()
    >>> metric.update([nd.array([1, 2])], [nd.array([1, 4])])
    >>> metric.get()
    ('mse', 2.0)
    """

    def __init__(
        self,
        name: str = "mse",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, output_names, label_names)

    def _figure(self, difference):
        return (difference**2.0).mean()


@register
class RMSE(_Regression):
    """The root mean squared error.

    Parameters
    ----------
    name : str, default 'rmse'
        The name shown with the value.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.

    Examples
    --------
    >>> metric = mx.metric.RMSE()
    >>> metric.update([nd.array([0, 0])], [nd.array([3, 3])])
    >>> metric.get()
    ('rmse', 3.0)
    """

    def __init__(
        self,
        name: str = "rmse",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, output_names, label_names)

    def _figure(self, difference):
        return numpy.sqrt((difference**2.0).mean())


@register
@alias("pearsonr")
class PearsonCorrelation(EvalMetric):
    """Pearson's correlation coefficient.

    Parameters
    ----------
    name : str, default 'pearsonr'
        The name shown with the value.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.
    average : str, default 'macro'
        'macro' averages over arrays; 'micro' treats all values together.

    Examples
    --------
    >>> metric = mx.metric.PearsonCorrelation()
    >>> metric.update([nd.array([1, 2, 3])], [nd.array([2, 4, 6])])
    >>> round(metric.get()[1], 3)
    1.0
    """

    def __init__(
        self,
        name: str = "pearsonr",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        average: str = "macro",
    ) -> None:
        self.average = average
        super().__init__(
            name, output_names=output_names, label_names=label_names, has_global_stats=True
        )

    def reset(self) -> None:
        super().reset()
        # Count, means of labels and predictions, their sums of squared deviations, sum of products
        # of deviations.
        self._moments = numpy.zeros(6)

    def reset_local(self) -> None:
        super().reset_local()
        self._moments = numpy.zeros(6)

    def reset_micro(self) -> None:
        """Clears the moments of all values."""
        self._moments = numpy.zeros(6)

    def update_variance(self, new_values: Any, *aggregate: Any) -> tuple[Any, Any, Any]:
        """Updates the aggregate (count, mean, sum of squared deviations) with more values."""
        count, mean, squares = aggregate
        values = numpy.asarray(new_values, numpy.float64)
        total, step = count + values.size, values.mean() - mean
        squares += ((values - values.mean()) ** 2).sum() + step**2 * count * values.size / total
        return total, mean + step * values.size / total, squares

    def update_cov(self, label: Any, pred: Any) -> None:
        """Adds the products of deviations from the means so far."""
        self._moments[5] += ((label - self._moments[1]) * (pred - self._moments[2])).sum()

    def _merge(self, label, pred):
        """Adds values to the central moments, which are numerically stable for large offsets."""
        count, mean_l, mean_p, square_l, square_p, product = self._moments
        new, new_l, new_p = label.size, label.mean(), pred.mean()
        total = count + new
        step_l, step_p, weight = new_l - mean_l, new_p - mean_p, count * new / total
        self._moments[:] = (
            total,
            mean_l + step_l * new / total,
            mean_p + step_p * new / total,
            square_l + ((label - new_l) ** 2).sum() + step_l**2 * weight,
            square_p + ((pred - new_p) ** 2).sum() + step_p**2 * weight,
            product + ((label - new_l) * (pred - new_p)).sum() + step_l * step_p * weight,
        )

    def update(self, labels: Arrays, preds: Arrays) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            check_label_shapes(label, pred, False, True)
            label = host(label).ravel().astype(numpy.float64)
            pred = host(pred).ravel().astype(numpy.float64)
            if self.average == "macro":
                self._add(numpy.corrcoef(pred, label)[0, 1], 1)
            else:
                self._add(0.0, 1)
                if label.size:
                    self._merge(label, pred)

    def get(self) -> tuple[Any, Any]:
        if self.average == "macro" or self.num_inst == 0:
            return super().get()
        _, _, _, square_l, square_p, product = self._moments
        return self.name, product / (
            math.sqrt(square_l) * math.sqrt(square_p)
        ) if square_l > 0 and square_p > 0 else float("nan")


@register
class Loss(EvalMetric):
    """The mean of all elements of the predictions, which are losses; labels are ignored.

    Parameters
    ----------
    name : str, default 'loss'
        The name shown with the value.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.

    Examples
    --------
    >>> metric = mx.metric.Loss()
    >>> metric.update(None, [nd.array([1, 2])])
    >>> metric.get()
    ('loss', 1.5)
    """

    def __init__(
        self,
        name: str = "loss",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            name, output_names=output_names, label_names=label_names, has_global_stats=True
        )

    def update(self, _: Any, preds: Arrays) -> None:
        for pred in [preds] if isinstance(preds, ndarray.NDArray) else preds:
            self._add(total(pred), pred.size)


@register
class Torch(Loss):
    """`Loss` under another name."""

    def __init__(
        self,
        name: str = "torch",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, output_names=output_names, label_names=label_names)


@register
class Caffe(Loss):
    """`Loss` under another name."""

    def __init__(
        self,
        name: str = "caffe",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, output_names=output_names, label_names=label_names)
