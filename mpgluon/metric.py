"""Measures of how well predictions fit labels.

A metric gathers a sum and a number of instances over calls of `update(labels, preds)`, both lists
of arrays (single arrays are accepted); `get()` gives the mean since the last `reset()` or
`reset_local()`, `get_global()` the one since the last `reset()`. Reading values waits for them; so
it happens once per update, after all device work of it is queued.
"""

import math
from collections import OrderedDict

import numpy

from . import ndarray, registry
from ._binary_counts import BinaryCounts
from .base import dtype_name

__all__ = [
    "EvalMetric",
    "CompositeEvalMetric",
    "Accuracy",
    "TopKAccuracy",
    "F1",
    "MCC",
    "Perplexity",
    "MAE",
    "MSE",
    "RMSE",
    "CrossEntropy",
    "NegativeLogLikelihood",
    "PearsonCorrelation",
    "PCC",
    "Loss",
    "Torch",
    "Caffe",
    "CustomMetric",
    "np",
    "create",
    "register",
    "alias",
    "check_label_shapes",
]


def check_label_shapes(labels, preds, wrap=False, shape=False):
    """Checks that there are as many labels as predictions (or, with `shape`, that both have one
    shape); ValueError otherwise.

    Returns both, with `wrap` as lists even when single arrays were given.
    """
    label_shape, pred_shape = (labels.shape, preds.shape) if shape else (len(labels), len(preds))
    if label_shape != pred_shape:
        what = "shape" if shape else "number"
        raise ValueError(
            f"{what} of labels {label_shape} does not match {what} of predictions {pred_shape}"
        )
    if wrap:
        labels = [labels] if isinstance(labels, ndarray.NDArray) else labels
        preds = [preds] if isinstance(preds, ndarray.NDArray) else preds
    return labels, preds


def _host(array):
    """The array's values in NumPy."""
    return array.asnumpy() if isinstance(array, ndarray.NDArray) else numpy.asarray(array)


def _total(array):
    """The sum of the array's elements, of narrow floats in float32."""
    return float(
        ndarray.sum(
            array.astype("float32") if dtype_name(array.dtype) in ("float16", "bfloat16") else array
        ).asscalar()
    )


def _wide(array):
    """The NumPy array, of narrow floats as float32: squares and sums may be beyond their range."""
    return array.astype("float32") if array.dtype.itemsize < 4 else array


def _as_list(value):
    return value if isinstance(value, list) else [value]


class EvalMetric:
    """Base of metrics; a subclass defines `update(labels, preds)` and adds to the sums with `_add`.

    Parameters: `name`, shown; `output_names`, `label_names`, which entries of the dicts given to
    `update_dict` are used (None: all); further `kwargs` become part of `get_config()`.
    """

    def __init__(self, name, output_names=None, label_names=None, **kwargs):
        self.name = str(name)
        self.output_names = output_names
        self.label_names = label_names
        self._has_global_stats = kwargs.pop("has_global_stats", False)
        self._kwargs = kwargs
        self.reset()

    def __repr__(self):
        return f"{type(self).__name__}({self.name!r})"

    def __str__(self):
        return f"EvalMetric: {dict(self.get_name_value())}"

    def get_config(self):
        """A dict from which `create` makes the same metric."""
        return {
            **self._kwargs,
            "metric": type(self).__name__,
            "name": self.name,
            "output_names": self.output_names,
            "label_names": self.label_names,
        }

    def update_dict(self, label, pred):
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

    def update(self, labels, preds):
        """Takes in a batch.

        Parameters
        ----------
        labels, preds : NDArray or list of NDArray
            As many of one as of the other, of any numeric dtype and on any device; the class says
            which shapes fit. Shapes that do not are a ValueError.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update(labels, preds)")

    def _add(self, value, instances):
        """Adds to the local and the global sums, in float64 whatever the value's type."""
        value = float(value) if numpy.ndim(value) == 0 else value
        self.sum_metric += value
        self.global_sum_metric += value
        self.num_inst += instances
        self.global_num_inst += instances

    def reset(self):
        """Forgets everything."""
        self.num_inst = 0
        self.sum_metric = 0.0
        self.global_num_inst = 0
        self.global_sum_metric = 0.0

    def reset_local(self):
        """Starts the local mean anew; the global one goes on."""
        self.num_inst = 0
        self.sum_metric = 0.0

    def _mean(self, total, instances):
        """What is shown for a sum over `instances`."""
        return total / instances

    def get(self):
        """(name, mean since the last reset or reset_local), NaN without instances."""
        if self.num_inst == 0:
            return self.name, float("nan")
        return self.name, self._mean(self.sum_metric, self.num_inst)

    def get_global(self):
        """(name, mean since the last reset); the local mean for metrics without global sums."""
        if not self._has_global_stats:
            return self.get()
        if self.global_num_inst == 0:
            return self.name, float("nan")
        return self.name, self._mean(self.global_sum_metric, self.global_num_inst)

    def get_name_value(self):
        """A list of (name, value)."""
        name, value = self.get()
        return list(zip(_as_list(name), _as_list(value)))

    def get_global_name_value(self):
        """A list of (name, global value)."""
        name, value = self.get_global()
        return list(zip(_as_list(name), _as_list(value)))


register = registry.get_register_func(EvalMetric, "metric")
alias = registry.get_alias_func(EvalMetric, "metric")
_create = registry.get_create_func(EvalMetric, "metric")


def create(metric, *args, **kwargs):
    """Makes a metric: from a name, a config, an instance, a function of NumPy arrays (label,
    prediction), or a list of these."""
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
    """Several metrics updated together; `get` gives lists of names and values."""

    def __init__(self, metrics=None, name="composite", output_names=None, label_names=None):
        self.metrics = [create(metric) for metric in metrics or []]
        super().__init__(
            name, output_names=output_names, label_names=label_names, has_global_stats=True
        )

    def add(self, metric):
        """Adds a metric, given as for `create`."""
        self.metrics.append(create(metric))

    def get_metric(self, index):
        """The metric of that number; IndexError when there is none."""
        if not -len(self.metrics) <= index < len(self.metrics):
            raise IndexError(f"metric {index} is asked for, but there are {len(self.metrics)}")
        return self.metrics[index]

    def update_dict(self, labels, preds):
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

    def update(self, labels, preds):
        for metric in self.metrics:
            metric.update(labels, preds)

    def reset(self):
        for metric in self.metrics:
            metric.reset()

    def reset_local(self):
        for metric in self.metrics:
            metric.reset_local()

    def _gather(self, pairs):
        names, values = [], []
        for name, value in pairs:
            names.extend(_as_list(name))
            values.extend(_as_list(value))
        return names, values

    def get(self):
        return self._gather(metric.get() for metric in self.metrics)

    def get_global(self):
        return self._gather(metric.get_global() for metric in self.metrics)

    def get_config(self):
        return {**super().get_config(), "metrics": [metric.get_config() for metric in self.metrics]}


@register
@alias("acc")
class Accuracy(EvalMetric):
    """The part of predictions that equal the label; scores (an axis more than the labels) count by
    their largest along `axis`."""

    def __init__(self, axis=1, name="accuracy", output_names=None, label_names=None):
        super().__init__(
            name,
            axis=axis,
            output_names=output_names,
            label_names=label_names,
            has_global_stats=True,
        )
        self.axis = axis

    def update(self, labels, preds):
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            if tuple(pred.shape) != tuple(label.shape):
                pred = ndarray.argmax(pred, axis=self.axis)
            label = _host(label).astype("int32").ravel()
            pred = _host(pred).astype("int32").ravel()
            check_label_shapes(label, pred)
            self._add((pred == label).sum(), len(pred))


@register
@alias("top_k_accuracy", "top_k_acc")
class TopKAccuracy(EvalMetric):
    """The part of samples whose label is among the `top_k` (2 or more) largest scores; predictions
    (samples, classes)."""

    def __init__(self, top_k=1, name="top_k_accuracy", output_names=None, label_names=None):
        if top_k <= 1:
            raise ValueError(f"top_k must be 2 or more (use Accuracy for 1), got {top_k}")
        super().__init__(
            name,
            top_k=top_k,
            output_names=output_names,
            label_names=label_names,
            has_global_stats=True,
        )
        self.top_k = top_k
        self.name += f"_{top_k}"

    def get_config(self):
        return {**super().get_config(), "name": self.name[: -len(f"_{self.top_k}")]}

    def update(self, labels, preds):
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            if len(pred.shape) > 2:
                raise ValueError(
                    "TopKAccuracy: predictions have at most 2 dimensions, got the shape "
                    f"{tuple(pred.shape)}"
                )
            label = _host(label).astype("int32").ravel()
            pred = _host(pred).astype("float32")
            check_label_shapes(label, pred)
            if pred.ndim == 1:
                self._add((numpy.argsort(pred, kind="stable") == label).sum(), len(label))
                continue
            top_k = min(pred.shape[1], self.top_k)
            best = numpy.argpartition(pred, -top_k, axis=1)[:, -top_k:]
            self._add((best == label[:, None]).sum(), len(label))


def _binary_confusion(name, label, pred):
    pred = _host(pred)
    label = _host(label).astype("int32").ravel()
    check_label_shapes(label, pred)
    if len(numpy.unique(label)) > 2:
        raise ValueError(
            f"{name} is for two classes, but the labels hold {len(numpy.unique(label))} values"
        )
    said = numpy.argmax(pred, axis=1).ravel() == 1
    true = label == 1
    counts = BinaryCounts()
    counts.true_positives = int((said & true).sum())
    counts.false_positives = int((said & ~true).sum())
    counts.false_negatives = int((~said & true).sum())
    counts.true_negatives = int((~said & ~true).sum())
    return counts


class _BinaryMetric(EvalMetric):
    """A figure of the confusion matrix; "macro": averaged over updates, else of all samples
    together."""

    def __init__(self, name, output_names, label_names, average):
        self.average = average
        self._local, self._global = BinaryCounts(), BinaryCounts()
        super().__init__(
            name, output_names=output_names, label_names=label_names, has_global_stats=True
        )

    def _figure(self, counts):
        raise NotImplementedError(f"{type(self).__name__} does not define _figure")

    def update(self, labels, preds):
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            counts = _binary_confusion(type(self).__name__, label, pred)
            self._local.add(counts)
            self._global.add(counts)
        if self.average == "macro":
            self.sum_metric += self._figure(self._local)
            self.global_sum_metric += self._figure(self._global)
            self.num_inst += 1
            self.global_num_inst += 1
            self._local.clear()
            self._global.clear()
        else:
            self.sum_metric = self._figure(self._local) * self._local.total
            self.global_sum_metric = self._figure(self._global) * self._global.total
            self.num_inst = self._local.total
            self.global_num_inst = self._global.total

    def reset(self):
        super().reset()
        self._local.clear()
        self._global.clear()

    def reset_local(self):
        super().reset_local()
        self._local.clear()


@register
class F1(_BinaryMetric):
    """The harmonic mean of precision and recall; labels 0 and 1, predictions (samples, 2)."""

    def __init__(self, name="f1", output_names=None, label_names=None, average="macro"):
        super().__init__(name, output_names, label_names, average)

    def _figure(self, counts):
        return counts.fscore


@register
class MCC(_BinaryMetric):
    """Matthews' correlation of predicted and true class; labels 0 and 1, predictions (samples,
    2)."""

    def __init__(self, name="mcc", output_names=None, label_names=None, average="macro"):
        super().__init__(name, output_names, label_names, average)

    def _figure(self, counts):
        return counts.matthews


@register
class Perplexity(EvalMetric):
    """exp of the mean negative logarithm of the probability given to the label; labels equal to
    `ignore_label` do not count.

    Predictions are probabilities along their last axis (`axis`).
    """

    def __init__(
        self, ignore_label, axis=-1, name="perplexity", output_names=None, label_names=None
    ):
        super().__init__(
            name,
            ignore_label=ignore_label,
            output_names=output_names,
            label_names=label_names,
            has_global_stats=True,
        )
        self.ignore_label = ignore_label
        self.axis = axis

    def update(self, labels, preds):
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            if label.size * pred.shape[-1] != pred.size:
                raise ValueError(
                    f"Perplexity: labels {tuple(label.shape)} do not fit predictions "
                    f"{tuple(pred.shape)}: one label per row of the last axis"
                )
            label = label.as_in_context(pred.context).reshape((label.size,)).astype("int32")
            chosen = ndarray.pick(pred.reshape((label.size, pred.shape[-1])), label, axis=self.axis)
            losses = -ndarray.log(ndarray.maximum(chosen, 1e-10))
            count = label.size
            if self.ignore_label is not None:
                keep = label != self.ignore_label
                losses = losses * keep.astype(losses.dtype)
                count = int(ndarray.sum(keep.astype("int64")).asscalar())
            self._add(_total(losses), count)

    def _mean(self, total, instances):
        return math.exp(total / instances)


class _Regression(EvalMetric):
    """A figure of the difference between labels and predictions, averaged over arrays; vectors
    count as columns."""

    def __init__(self, name, output_names, label_names):
        super().__init__(
            name, output_names=output_names, label_names=label_names, has_global_stats=True
        )

    def _figure(self, difference):
        raise NotImplementedError(f"{type(self).__name__} does not define _figure")

    def update(self, labels, preds):
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            label, pred = _wide(_host(label)), _wide(_host(pred))
            label = label[:, None] if label.ndim == 1 else label
            pred = pred[:, None] if pred.ndim == 1 else pred
            self._add(self._figure(label - pred), 1)


@register
class MAE(_Regression):
    """The mean absolute error."""

    def __init__(self, name="mae", output_names=None, label_names=None):
        super().__init__(name, output_names, label_names)

    def _figure(self, difference):
        return numpy.abs(difference).mean()


@register
class MSE(_Regression):
    """The mean squared error."""

    def __init__(self, name="mse", output_names=None, label_names=None):
        super().__init__(name, output_names, label_names)

    def _figure(self, difference):
        return (difference**2.0).mean()


@register
class RMSE(_Regression):
    """The root of the mean squared error."""

    def __init__(self, name="rmse", output_names=None, label_names=None):
        super().__init__(name, output_names, label_names)

    def _figure(self, difference):
        return numpy.sqrt((difference**2.0).mean())


class _LogProbability(EvalMetric):
    """The mean of -log(probability of the label + eps); labels (samples,), predictions (samples,
    classes)."""

    def __init__(self, eps, name, output_names, label_names):
        super().__init__(
            name, eps=eps, output_names=output_names, label_names=label_names, has_global_stats=True
        )
        self.eps = eps

    def update(self, labels, preds):
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            label, pred = _host(label).ravel().astype(numpy.int64), _host(pred)
            if pred.ndim != 2 or len(label) != len(pred):
                raise ValueError(
                    f"{type(self).__name__}: {len(label)} labels need predictions of the shape "
                    f"({len(label)}, classes), got {pred.shape}"
                )
            chosen = _wide(pred[numpy.arange(len(label)), label])
            self._add((-numpy.log(chosen + self.eps)).sum(), len(label))


@register
@alias("ce")
class CrossEntropy(_LogProbability):
    """The mean cross-entropy of predicted probabilities."""

    def __init__(self, eps=1e-12, name="cross-entropy", output_names=None, label_names=None):
        super().__init__(eps, name, output_names, label_names)


@register
@alias("nll_loss")
class NegativeLogLikelihood(_LogProbability):
    """The mean negative log-likelihood of predicted probabilities."""

    def __init__(self, eps=1e-12, name="nll-loss", output_names=None, label_names=None):
        super().__init__(eps, name, output_names, label_names)


@register
@alias("pearsonr")
class PearsonCorrelation(EvalMetric):
    """Pearson's correlation; "macro": averaged over arrays, "micro": of all values together."""

    def __init__(self, name="pearsonr", output_names=None, label_names=None, average="macro"):
        self.average = average
        super().__init__(
            name, output_names=output_names, label_names=label_names, has_global_stats=True
        )

    def reset(self):
        super().reset()
        # count, mean of labels and predictions, their sums of squares about it, and of products
        self._moments = numpy.zeros(6)

    def reset_local(self):
        super().reset_local()
        self._moments = numpy.zeros(6)

    def _merge(self, label, pred):
        """Adds values to the moments, about the means, so that large offsets lose nothing."""
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

    def update(self, labels, preds):
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            check_label_shapes(label, pred, False, True)
            label = _host(label).ravel().astype(numpy.float64)
            pred = _host(pred).ravel().astype(numpy.float64)
            if self.average == "macro":
                self._add(numpy.corrcoef(pred, label)[0, 1], 1)
            else:
                self._add(0.0, 1)
                if label.size:
                    self._merge(label, pred)

    def get(self):
        if self.average == "macro" or self.num_inst == 0:
            return super().get()
        _, _, _, square_l, square_p, product = self._moments
        return self.name, product / (
            math.sqrt(square_l) * math.sqrt(square_p)
        ) if square_l > 0 and square_p > 0 else float("nan")


@register
class PCC(EvalMetric):
    """Matthews' correlation for any number of classes, of all samples together."""

    def __init__(self, name="pcc", output_names=None, label_names=None, has_global_stats=True):
        self.k = 2
        super().__init__(
            name,
            output_names=output_names,
            label_names=label_names,
            has_global_stats=has_global_stats,
        )

    def reset(self):
        self.global_num_inst = 0
        self._global_counts = numpy.zeros((self.k, self.k))
        self.reset_local()

    def reset_local(self):
        self.num_inst = 0
        self._local_counts = numpy.zeros((self.k, self.k))

    def _grow(self, classes):
        more = classes - self.k
        if more > 0:
            self._local_counts = numpy.pad(self._local_counts, ((0, more), (0, more)))
            self._global_counts = numpy.pad(self._global_counts, ((0, more), (0, more)))
            self.k = classes

    @staticmethod
    def _correlation(counts):
        total = counts.sum()
        said, true = counts.sum(axis=1), counts.sum(axis=0)
        spread = (said * (total - said)).sum() * (true * (total - true)).sum()
        if spread == 0:
            return float("nan")
        return (counts.diagonal() * total - said * true).sum() / math.sqrt(spread)

    def update(self, labels, preds):
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds):
            label, pred = _host(label).astype("int32"), _host(pred)
            pred = pred.argmax(axis=1) if pred.shape != label.shape else pred.astype("int32")
            label, pred = label.ravel(), pred.ravel()
            if label.size == 0:
                continue
            if min(label.min(), pred.min()) < 0:
                raise ValueError("PCC: classes are numbered from 0, got a negative one")
            self._grow(int(max(label.max(), pred.max())) + 1)
            counts = numpy.zeros((self.k, self.k))
            numpy.add.at(counts, (pred, label), 1)
            self._local_counts += counts
            self._global_counts += counts
        self.num_inst += 1
        self.global_num_inst += 1

    @property
    def sum_metric(self):
        """The coefficient times `num_inst`, over what came in since `reset_local`."""
        return self._correlation(self._local_counts) * self.num_inst

    @property
    def global_sum_metric(self):
        """The coefficient times `global_num_inst`, over what came in since `reset`."""
        return self._correlation(self._global_counts) * self.global_num_inst


@register
class Loss(EvalMetric):
    """The mean of all predictions' elements, which are losses; labels are not looked at."""

    def __init__(self, name="loss", output_names=None, label_names=None):
        super().__init__(
            name, output_names=output_names, label_names=label_names, has_global_stats=True
        )

    def update(self, _, preds):
        for pred in [preds] if isinstance(preds, ndarray.NDArray) else preds:
            self._add(_total(pred), pred.size)


@register
class Torch(Loss):
    """Loss under another name."""

    def __init__(self, name="torch", output_names=None, label_names=None):
        super().__init__(name, output_names=output_names, label_names=label_names)


@register
class Caffe(Loss):
    """Loss under another name."""

    def __init__(self, name="caffe", output_names=None, label_names=None):
        super().__init__(name, output_names=output_names, label_names=label_names)


@register
class CustomMetric(EvalMetric):
    """A function `feval(label, pred)` of NumPy arrays, which returns a value, or a sum and its
    number of instances.

    With `allow_extra_outputs` there may be more predictions than labels.
    """

    def __init__(
        self, feval, name=None, allow_extra_outputs=False, output_names=None, label_names=None
    ):
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

    def update(self, labels, preds):
        if not self._allow_extra_outputs:
            labels, preds = check_label_shapes(labels, preds, True)
        for pred, label in zip(preds, labels):
            value = self._feval(_host(label), _host(pred))
            self._add(*(value if isinstance(value, tuple) else (value, 1)))

    def get_config(self):
        raise NotImplementedError(
            "a CustomMetric holds a function and cannot be written as a config"
        )


def np(numpy_feval, name=None, allow_extra_outputs=False):
    """A metric from a function of NumPy arrays (label, prediction); usable as a decorator."""

    def feval(label, pred):
        return numpy_feval(label, pred)

    feval.__name__ = getattr(numpy_feval, "__name__", type(numpy_feval).__name__)
    return CustomMetric(feval, name, allow_extra_outputs)
