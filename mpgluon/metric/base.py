"""The base of metrics, their registry, composite metrics, and metrics from functions."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy

from .. import ndarray, registry
from .._internal.hints import constructed
from ..base import MXNetAssertionError, dtype_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .._internal.types import Alias, Arrays, NDArray, Register


__all__ = [
    "EvalMetric",
    "CompositeEvalMetric",
    "CustomMetric",
    "np",
    "create",
    "register",
    "alias",
    "check_label_shapes",
]


def check_label_shapes(
    labels: Any, preds: Any, wrap: bool = False, shape: bool = False
) -> tuple[Any, Any]:
    """Checks that the numbers of labels and predictions (with `shape`, their shapes) are equal.

    Raises ValueError otherwise. Returns both, with `wrap` as lists even for single arrays.
    """
    label_shape, pred_shape = (labels.shape, preds.shape) if shape else (len(labels), len(preds))
    if label_shape != pred_shape:
        what = "shape" if shape else "number"
        raise MXNetAssertionError(
            f"{what} of labels {label_shape} does not match {what} of predictions {pred_shape}"
        )
    if wrap:
        labels = [labels] if isinstance(labels, ndarray.NDArray) else labels
        preds = [preds] if isinstance(preds, ndarray.NDArray) else preds
    return labels, preds


def host(array: Any) -> numpy.ndarray[Any, Any]:
    """Returns the array's values as a NumPy array."""
    return array.asnumpy() if isinstance(array, ndarray.NDArray) else numpy.asarray(array)


def total(array: NDArray) -> float:
    """Returns the sum of the array's elements; float16 and bfloat16 are summed in float32."""
    return float(
        ndarray.sum(
            array.astype("float32") if dtype_name(array.dtype) in ("float16", "bfloat16") else array
        )
    )


def wide(array: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """Converts float16 to float32, because squares and sums may exceed its range."""
    return array.astype("float32") if array.dtype.itemsize < 4 else array


def _as_list(value):
    return value if isinstance(value, list) else [value]


def _elements(value):
    """Returns the elements of a list, tuple or array, and any other value in a list."""
    if not isinstance(value, str):
        try:
            return list(value)
        except TypeError:
            pass
    return [value]


class EvalMetric:
    """Base of metrics; a subclass defines `update(labels, preds)` and adds to the sums with `_add`.

    Parameters
    ----------
    name : str
        The name shown with the value.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.
    **kwargs
        Become part of `get_config()`.

    Examples
    --------
    >>> class Largest(mx.metric.EvalMetric):
    ...     def update(self, labels, preds):
    ...         self.sum_metric = max(self.sum_metric, preds.max().asscalar().item())
    ...         self.num_inst = 1
    ...
    >>> largest = Largest("largest")
    >>> largest.update(None, nd.array([1, 3]))
    >>> largest.get()
    ('largest', 3.0)
    """

    def __init__(
        self,
        name: str,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.name: str = str(name)
        self.output_names = output_names
        self.label_names = label_names
        self._has_global_stats = kwargs.pop("has_global_stats", False)
        self._kwargs = kwargs
        self.reset()

    def __repr__(self) -> str:
        return constructed(self, ("name",))

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"

    def get_config(self) -> dict[str, Any]:
        """Returns a dict from which `create` creates the same metric."""
        return {
            **self._kwargs,
            "metric": type(self).__name__,
            "name": self.name,
            "output_names": self.output_names,
            "label_names": self.label_names,
        }

    def update_dict(self, label: Mapping[str, NDArray], pred: Mapping[str, NDArray]) -> None:
        """Updates from dicts of name to array."""
        preds = (
            list(pred.values())
            if self.output_names is None
            else [pred[name] for name in self.output_names]
        )
        labels = (
            list(label.values())
            if self.label_names is None
            else [label[name] for name in self.label_names]
        )
        self.update(labels, preds)

    def update(self, labels: Arrays, preds: Arrays) -> None:
        """Adds a batch.

        Parameters
        ----------
        labels, preds : NDArray or list of NDArray
            The same number of each, of any numeric dtype and on any device; the class defines the
            valid shapes, and other shapes raise ValueError.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update(labels, preds)")

    def _add(self, value, instances):
        """Adds to the local and the global sums, in float64."""
        value = float(value) if numpy.ndim(value) == 0 else value
        self.sum_metric += value
        self.global_sum_metric += value
        self.num_inst += instances
        self.global_num_inst += instances

    def reset(self) -> None:
        """Clears all sums."""
        self.num_inst: int = 0
        self.sum_metric: float = 0.0
        self.global_num_inst: int = 0
        self.global_sum_metric: float = 0.0

    def reset_local(self) -> None:
        """Restarts the local mean; the global one is unchanged."""
        self.num_inst = 0
        self.sum_metric = 0.0

    def _mean(self, total, instances):
        """Returns the value for a sum over `instances`."""
        return total / instances

    def get(self) -> tuple[Any, Any]:
        """Returns (name, mean since the last reset or reset_local), NaN without instances."""
        if self.num_inst == 0:
            return self.name, float("nan")
        return self.name, self._mean(self.sum_metric, self.num_inst)

    def get_global(self) -> tuple[Any, Any]:
        """Returns (name, mean since the last reset), or the local mean without global sums."""
        if not self._has_global_stats:
            return self.get()
        if self.global_num_inst == 0:
            return self.name, float("nan")
        return self.name, self._mean(self.global_sum_metric, self.global_num_inst)

    def get_name_value(self) -> list[tuple[str, float]]:
        """Returns a list of (name, value)."""
        name, value = self.get()
        return list(zip(_as_list(name), _as_list(value)))

    def get_global_name_value(self) -> list[tuple[str, float]]:
        """Returns a list of (name, global value)."""
        name, value = self.get_global()
        return list(zip(_as_list(name), _as_list(value)))


register: Register = registry.get_register_func(EvalMetric, "metric")


alias: Alias = registry.get_alias_func(EvalMetric, "metric")


_create = registry.get_create_func(EvalMetric, "metric")


def create(metric: Any, *args: Any, **kwargs: Any) -> EvalMetric:
    """Creates a metric from a name, a config, an instance, a function or a list of these.

    The function takes NumPy arrays (label, prediction).

    Examples
    --------
    >>> mx.metric.create(["acc", "ce"])
    CompositeEvalMetric([Accuracy(name='accuracy'), CrossEntropy(name='cross-entropy')])
    """
    if isinstance(metric, list):
        composite = CompositeEvalMetric()
        for child in metric:
            composite.add(create(child, *args, **kwargs))
        return composite
    if callable(metric) and not isinstance(metric, EvalMetric):
        return CustomMetric(metric, *args, **kwargs)
    return _create(metric, *args, **kwargs)


@register
@alias("composite")
class CompositeEvalMetric(EvalMetric):
    """Several metrics updated together; `get` returns lists of names and values.

    Parameters
    ----------
    metrics : list, optional
        Metrics, or arguments of `create`; `add` appends more.
    name : str, default 'composite'
        The name shown with the value.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.

    Examples
    --------
    >>> metric = mx.metric.CompositeEvalMetric(["acc", mx.metric.MAE()])
    >>> metric.update(nd.array([0, 1]), nd.array([0, 1]))
    >>> metric.get()
    (['accuracy', 'mae'], [1.0, 0.0])
    """

    def __init__(
        self,
        metrics: Iterable[Any] | None = None,
        name: str = "composite",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        self.metrics: list[EvalMetric] = [create(metric) for metric in metrics or []]
        super().__init__(
            name, output_names=output_names, label_names=label_names, has_global_stats=True
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.metrics!r})"

    def add(self, metric: Any) -> None:
        """Adds a metric, or an argument of `create`."""
        self.metrics.append(create(metric))

    def get_metric(self, index: int) -> EvalMetric:
        """Returns the metric with that index; raises IndexError if it is out of range."""
        if not -len(self.metrics) <= index < len(self.metrics):
            raise IndexError(
                f"metric index {index} is out of range: there are {len(self.metrics)} metrics"
            )
        return self.metrics[index]

    def update_dict(self, labels: Mapping[str, NDArray], preds: Mapping[str, NDArray]) -> None:
        if self.label_names is not None:
            labels = OrderedDict(
                (name, value) for name, value in labels.items() if name in self.label_names
            )
        if self.output_names is not None:
            preds = OrderedDict(
                (name, value) for name, value in preds.items() if name in self.output_names
            )
        for metric in self.metrics:
            metric.update_dict(labels, preds)

    def update(self, labels: Arrays, preds: Arrays) -> None:
        for metric in self.metrics:
            metric.update(labels, preds)

    def reset(self) -> None:
        for metric in self.metrics:
            metric.reset()

    def reset_local(self) -> None:
        for metric in self.metrics:
            metric.reset_local()

    def _gather(self, pairs):
        names, values = [], []
        for name, value in pairs:
            names.extend(_elements(name))
            values.extend(_elements(value))
        return names, values

    def get(self) -> tuple[Any, Any]:
        return self._gather(metric.get() for metric in self.metrics)

    def get_global(self) -> tuple[Any, Any]:
        return self._gather(metric.get_global() for metric in self.metrics)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "metrics": [metric.get_config() for metric in self.metrics]}


@register
class CustomMetric(EvalMetric):
    """A metric computed by a function `feval(label, pred)` of NumPy arrays.

    The function returns a value, or a sum and its number of instances.

    Parameters
    ----------
    feval : function
        Takes the label and the prediction as NumPy arrays.
    name : str, optional
        The name shown with the value; by default that of `feval`.
    allow_extra_outputs : bool, default False
        True if there may be more predictions than labels.
    output_names, label_names : list of str, optional
        The entries of the dicts passed to `update_dict` to use; by default all.

    Examples
    --------
    >>> worst = lambda label, pred: abs(label - pred).max()
    >>> metric = mx.metric.CustomMetric(worst, name="worst")
    >>> metric.update([nd.array([1, 2])], [nd.array([1, 5])])
    >>> metric.get()
    ('worst', 3.0)
    """

    def __init__(
        self,
        feval: Callable[..., Any],
        name: str | None = None,
        allow_extra_outputs: bool = False,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        if name is None:
            name = getattr(feval, "__name__", type(feval).__name__)
            if "<" in name:
                name = f"custom({name})"
        super().__init__(
            name,
            feval=feval,
            allow_extra_outputs=allow_extra_outputs,
            output_names=output_names,
            label_names=label_names,
            has_global_stats=True,
        )
        self._feval = feval
        self._allow_extra_outputs = allow_extra_outputs

    def update(self, labels: Arrays, preds: Arrays) -> None:
        if not self._allow_extra_outputs:
            labels, preds = check_label_shapes(labels, preds, True)
        for pred, label in zip(preds, labels):
            value = self._feval(host(label), host(pred))
            self._add(*(value if isinstance(value, tuple) else (value, 1)))

    def __repr__(self) -> str:
        function = getattr(self._feval, "__name__", type(self._feval).__name__)
        return f"{type(self).__name__}({function}, name={self.name!r})"

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError("a CustomMetric holds a function and has no config")


def np(
    numpy_feval: Callable[..., Any], name: str | None = None, allow_extra_outputs: bool = False
) -> CustomMetric:
    """Creates a metric from a function of NumPy arrays (label, prediction); also a decorator.

    Examples
    --------
    >>> same = lambda label, pred: float((label == pred).mean())
    >>> metric = mx.metric.np(same, name="same")
    >>> metric.update([nd.array([1, 2])], [nd.array([1, 5])])
    >>> metric.get()
    ('same', 0.5)
    """

    def feval(label, pred):
        return numpy_feval(label, pred)

    feval.__name__ = getattr(numpy_feval, "__name__", type(numpy_feval).__name__)
    return CustomMetric(feval, name, allow_extra_outputs)
