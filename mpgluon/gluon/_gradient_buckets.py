"""Sums of the gradients of replicas, and copies of what one replica updated for all."""

import math
from functools import partial

from .. import ndarray as nd
from .._core import at_once, dtype_name, sum_replicas

_BUCKET = 1 << 20  # bytes; smaller arrays travel together


class Bucket:
    """Parameters that are replicated on the same devices, and one of these devices, where their
    gradients are summed.

    On each device the arrays are joined into one, which is moved as a whole; a parameter that fills
    a bucket is moved as it is.
    """

    def __init__(self, contexts, params):
        self.contexts, self.params = contexts, params
        self.home = contexts[0]
        self.bytes = sum(_bytes_of(param) for param in params)
        ends = [0]
        for param in params:
            ends.append(ends[-1] + math.prod(param.shape))
        self._begins = tuple(ends[:-1])
        # The arrays on each device, seen as flat ones where they travel together.
        self._grads, self._weights = self._flat("gradients"), self._flat("arrays")
        self._lists = [[param.gradients[ctx] for param in params] for ctx in contexts]

    def _flat(self, which):
        arrays = {
            ctx: [getattr(param, which)[ctx] for param in self.params] for ctx in self.contexts
        }
        if len(self.params) == 1:
            return arrays
        return {ctx: [array.reshape((-1,)) for array in own] for ctx, own in arrays.items()}

    def _joined(self, arrays):
        return arrays[0] if len(arrays) == 1 else nd.concat(*arrays, dim=0)

    def _hand_out(self, value, ctx, arrays):
        """The changes (`_core.at_once`) that copy the joined values into the arrays, which are on
        device `ctx`."""
        if len(arrays) == 1:
            return [(value.copyto, arrays[0])]
        changes = []
        if value.context != ctx:
            here = nd.empty(value.shape, ctx=ctx, dtype=value.dtype)
            changes, value = [(value.copyto, here)], here
        return [
            *changes,
            (
                partial(
                    nd._internal._split_v2,
                    value,
                    indices=self._begins,
                    axis=0,
                    squeeze_axis=False,
                    sections=0,
                    out=arrays,
                ),
            ),
        ]

    def sum(self, everywhere):
        """Sums the gradients, in the order of the devices: on the bucket's own device, or for all
        of them.

        Beside what the devices do: as soon as these gradients are final, while others are still
        computed. Where a device can't do that, behind what it does.
        """
        if sum_replicas(self._lists, self.contexts.index(self.home), everywhere):
            return
        total = nd.add_n(
            *[self._joined(self._grads[ctx]).as_in_context(self.home) for ctx in self.contexts]
        )
        at_once(
            *[
                change
                for ctx in (self.contexts if everywhere else [self.home])
                for change in self._hand_out(total, ctx, self._grads[ctx])
            ]
        )

    def spread(self):
        """The changes (`_core.at_once`) that copy the weights of the bucket's own device to the
        others."""
        weights, changes = self._weights[self.home], []
        value = weights[0]
        if len(weights) > 1:
            value = nd.empty(
                (sum(weight.size for weight in weights),), ctx=self.home, dtype=value.dtype
            )
            changes.append((partial(nd.concat, *weights, dim=0, out=value),))
        return changes + [
            change
            for ctx in self.contexts
            if ctx != self.home
            for change in self._hand_out(value, ctx, self._weights[ctx])
        ]


def make_buckets(params):
    """The buckets of replicated parameters, the last ones first: backward begins with these. Each
    replica sums about as many bytes."""
    open_, buckets = {}, []
    for param in reversed(params):
        contexts = tuple(param.arrays)
        key = contexts, dtype_name(param.dtype)
        if _bytes_of(param) >= _BUCKET:
            buckets.append(Bucket(contexts, [param]))
            continue
        gathered = open_.setdefault(key, [])
        gathered.append(param)
        if sum(map(_bytes_of, gathered)) >= _BUCKET:
            buckets.append(Bucket(contexts, open_.pop(key)))
    buckets += [Bucket(key[0], gathered) for key, gathered in open_.items()]
    load = {}
    for bucket in buckets:
        bucket.home = min(bucket.contexts, key=lambda ctx: load.get(ctx, 0))
        load[bucket.home] = load.get(bucket.home, 0) + bucket.bytes
    return buckets


def _bytes_of(param):
    array = next(iter(param.arrays.values()))
    return array.size * (
        2
        if dtype_name(array.dtype) in ("float16", "bfloat16")
        else 8
        if dtype_name(array.dtype) in ("float64", "int64")
        else 4
    )
