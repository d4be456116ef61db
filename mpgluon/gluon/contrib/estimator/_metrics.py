"""Checks of metrics for estimators and handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....metric import Accuracy, CompositeEvalMetric, EvalMetric
from ...loss import SoftmaxCrossEntropyLoss

if TYPE_CHECKING:
    from typing import Any


def check_metrics(metrics: Any) -> list[EvalMetric]:
    """Returns a list of metrics, given a metric, a list, or None. A composite metric is replaced by
    its parts, unless it is inside a list. Raises ValueError for other types."""
    if isinstance(metrics, CompositeEvalMetric):
        return [one for metric in metrics.metrics for one in check_metrics(metric)]
    if isinstance(metrics, EvalMetric):
        return [metrics]
    metrics = [] if metrics is None else metrics
    if not all(isinstance(metric, EvalMetric) for metric in metrics):
        raise ValueError(f"metrics must be an EvalMetric or a list of them, got {metrics}")
    return metrics


def check_handler_metric_ref(handler: object, known_metrics: list[EvalMetric]) -> None:
    """Raises ValueError if an attribute of a handler whose name contains "metric" holds a metric
    that is not in `known_metrics`."""
    for attribute, value in vars(handler).items():
        if "metric" not in attribute or not value:
            continue
        for metric in value if isinstance(value, list) else [value]:
            if not any(metric is known for known in known_metrics):
                raise ValueError(
                    f"{type(handler).__name__} has the metric {metric}, which does not belong "
                    "to the estimator; use a metric of estimator.train_metrics or "
                    "estimator.val_metrics"
                )


def suggest_metric_for_loss(loss: object) -> EvalMetric | None:
    """Returns the default metric for a loss, or None."""
    return Accuracy(axis=loss.axis) if isinstance(loss, SoftmaxCrossEntropyLoss) else None
