"""BatchNorm's running averages in a pipeline: one update for the whole batch instead of one for
each micro-batch.

While a pipelined block is traced with ``statistics='batch'``, BatchNorm layers do not update their
running averages. They return the mean and variance of the micro-batch as additional results of the
block. When all micro-batches are queued, the statistics of the whole batch are combined from them:
the mean of the means, and the mean of the variances plus the variance of the means, weighted by the
number of elements.
"""

import threading

from ... import _core, autograd, ndarray as nd
from ..._internal.kinds import plain


class _Local(threading.local):
    active = None


_local = _Local()


def active():
    """Returns the `Statistics` of this thread's active trace, or None."""
    return _local.active


class Statistics(_core.Scope):
    """The statistics of the BatchNorm layers of one trace.

    Attributes
    ----------
    layers : list of tuple
        (running mean, running variance, device, momentum, epsilon, elements) for each call of a
        layer.
    arrays : list of NDArray
        Traced arrays: for each call, mean and 1 / sqrt(variance + epsilon), of shape (1, channels).
    """

    def __init__(self):
        self.layers, self.arrays = [], []

    def _changes(self):
        return [(vars(_local), "active", self)]

    def normalise(self, layer, x, gamma, beta, running_mean, running_var, options):
        out, mean, inverse = nd.BatchNorm(
            x,
            gamma,
            beta,
            running_mean,
            running_var,
            **{**options, "momentum": 1.0, "output_mean_var": True},
        )
        elements = x.size // mean.size
        self.layers.append(
            (
                layer.running_mean,
                layer.running_var,
                running_mean.context,
                options["momentum"],
                options["eps"],
                elements,
            )
        )
        self.arrays += [mean.reshape((1, -1)).copy(), inverse.reshape((1, -1)).copy()]
        return out


class Update:
    """The update of the running averages from the statistics of all micro-batches.

    Parameters
    ----------
    micro_batches : list of list of tuple
        ``Statistics.layers`` of each micro-batch.
    """

    def __init__(self, micro_batches):
        self.count = 2 * len(micro_batches[0])  # number of arrays in `Statistics.arrays`
        # Each round updates a running average at most once. If a layer is called twice, the second
        # round applies the layer's second update to the result of the first round.
        self._rounds = []
        for number, (mean, _, ctx, *_) in enumerate(micro_batches[0]):
            place = sum(
                micro_batches[0][k][0] is mean and micro_batches[0][k][2] == ctx
                for k in range(number)
            )
            if place == len(self._rounds):
                self._rounds.append([])
            self._rounds[place].append(number)
        self._targets = [(mean, variance, ctx) for mean, variance, ctx, *_ in micro_batches[0]]
        self._ops = [
            _core.CachedOp(
                self._function(
                    [[micro_batch[k][3:] for micro_batch in micro_batches] for k in numbers]
                ),
                {"exact": True},
            )
            for numbers in self._rounds
        ]

    @staticmethod
    def _function(layers):
        """Returns a function that computes the updated averages. `layers` holds, for each call of
        a layer, the (momentum, epsilon, elements) of each micro-batch."""

        def combine(*arrays):
            results = []
            for number, micro_batches in enumerate(layers):
                means, inverses, mean, variance = arrays[4 * number : 4 * number + 4]
                momentum, eps, _ = micro_batches[0]
                total = sum(elements for *_, elements in micro_batches)
                weights = nd.array(
                    [[elements / total if total else 1] for *_, elements in micro_batches],
                    ctx=means.context,
                    dtype=means.dtype,
                )
                whole = (means * weights).sum(axis=0, keepdims=True)
                variances = nd.maximum(1 / (inverses * inverses) - eps, 0) + (means - whole) ** 2
                results.append(mean * momentum + whole.reshape((-1,)) * (1 - momentum))
                results.append(
                    variance * momentum + (variances * weights).sum(axis=0) * (1 - momentum)
                )
            return results

        return combine

    def __call__(self, outputs):
        """Queues the update of all averages atomically. ``outputs`` holds, for each call of a
        layer, the means and the inverse standard deviations of all micro-batches."""
        newest = {}  # (parameter, device) -> latest value of the running average
        with autograd.pause():
            for numbers, op in zip(self._rounds, self._ops):
                keys = [
                    (param, ctx)
                    for k in numbers
                    for *params, ctx in (self._targets[k],)
                    for param in params
                ]
                current = [newest.get(key, key[0].arrays[key[1]]) for key in keys]
                inputs = [
                    plain(a)
                    for i, k in enumerate(numbers)
                    for a in (*outputs[2 * k : 2 * k + 2], *current[2 * i : 2 * i + 2])
                ]
                newest.update(zip(keys, op(*inputs)))
            _core.at_once(
                *[(value.copyto, param.arrays[ctx]) for (param, ctx), value in newest.items()]
            )
