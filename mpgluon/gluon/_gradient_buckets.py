"""Gradient buckets: sum the replicas' gradients, and copy the weights that one replica has updated
to all replicas."""

import math
from functools import partial

from .. import autograd, ndarray as nd
from .._core import at_once, collective_plan, dtype_name, sum_replicas
from .._internal.kinds import plain
from .._internal.transport import default_transport

_BUCKET = 1 << 20  # size of a bucket in bytes; smaller arrays share a bucket
_AT_ONCE = 16  # maximum number of arrays that one op call writes
_MOST = 64  # maximum number of CPU devices whose weights `sum_replicas` copies, in side queues


class Bucket:
    """Parameters that are replicated on the same devices, and the device that sums their gradients.

    On each device, the arrays are concatenated and moved as one array. A parameter that fills a
    bucket by itself is moved without a copy. With `apart`, the sums are written to separate arrays
    on the bucket's device, and the gradients are not changed.
    """

    def __init__(self, contexts, params, apart=False):
        self.contexts, self.params, self.apart = contexts, params, apart
        self.home = contexts[0]
        self.bytes = sum(_bytes_of(param) for param in params)
        ends = [0]
        for param in params:
            ends.append(ends[-1] + math.prod(param.shape))
        self._begins = tuple(ends[:-1])
        # The gradients and weights on each device, flattened into one array each if the bucket has
        # several parameters.
        self._grads, self._weights = self._flat("gradients"), self._flat("arrays")
        self._lists = [[plain(param.gradients[ctx]) for param in params] for ctx in contexts]
        self._flat_sums = None
        self._on_gpus = all(ctx.device_type == "gpu" for ctx in contexts)
        self._by_library = {}  # transport of collectives -> True if NCCL sums the gradients

    def sums(self):
        """Returns the arrays on the bucket's device that hold the sums after a call of `sum`, one
        for each parameter."""
        place = self.contexts.index(self.home)
        if self.apart and len(self._lists) == len(self.contexts):
            like = self._lists[place]
            with autograd.pause():
                flat = nd.empty(
                    (sum(grad.size for grad in like),), ctx=self.home, dtype=like[0].dtype
                )
                ends = [*self._begins[1:], flat.size]
                self._lists.append(
                    [
                        flat[begin:end].reshape(grad.shape)
                        for begin, end, grad in zip(self._begins, ends, like)
                    ]
                )
            self._flat_sums = flat
        return dict(zip(self.params, self._lists[-1 if self.apart else place]))

    def _flat(self, which):
        arrays = {
            ctx: [plain(getattr(param, which)[ctx]) for param in self.params]
            for ctx in self.contexts
        }
        if len(self.params) == 1:
            return arrays
        return {ctx: [array.reshape((-1,)) for array in own] for ctx, own in arrays.items()}

    def _joined(self, arrays):
        return arrays[0] if len(arrays) == 1 else nd.concat(*arrays, dim=0)

    def _hand_out(self, value, ctx, arrays):
        """Returns the changes (`_core.at_once`) that copy the concatenated values into the arrays,
        which are on device `ctx`."""
        if len(arrays) == 1:
            return [(value.copyto, arrays[0])]
        changes = []
        if value.context != ctx:
            here = nd.empty(value.shape, ctx=ctx, dtype=value.dtype)
            changes, value = [(value.copyto, here)], here
        ends = [*self._begins[1:], value.size]
        for first in range(0, len(arrays), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            begin, end = self._begins[first], ends[some][-1]
            changes.append(
                (
                    partial(
                        nd._internal._split_v2,
                        value[begin:end],
                        indices=tuple(place - begin for place in self._begins[some]),
                        axis=0,
                        squeeze_axis=False,
                        sections=0,
                        out=arrays[some],
                    ),
                )
            )
        return changes

    def sum(self, everywhere):
        """Sums the gradients on the bucket's own device, or, with `everywhere`, on all devices.

        If NCCL is the transport of collectives, it sums over several GPUs, in its own order.
        Otherwise, the sum is in the order of the devices. The sum overlaps with queued work: it
        runs as soon as these gradients are final, while other gradients are still being computed.
        On a device that does not support overlap, it runs after the queued work.
        """
        if self._on_gpus and self._over_cards():
            return self._sum_over_cards(everywhere)
        home = len(self.contexts) if self.apart else self.contexts.index(self.home)
        if sum_replicas(self._lists, home, everywhere, self.apart):
            return
        parts = [self._joined(self._grads[ctx]).as_in_context(self.home) for ctx in self.contexts]
        if self.apart:
            nd.add_n(*[part.reshape((-1,)) for part in parts], out=self._flat_sums)
            return
        total = nd.add_n(*parts)
        at_once(
            *[
                change
                for ctx in (self.contexts if everywhere else [self.home])
                for change in self._hand_out(total, ctx, self._grads[ctx])
            ]
        )

    def _over_cards(self):
        """True if NCCL sums the gradients, because each device is a separate GPU."""
        transport = default_transport()
        if transport not in self._by_library:
            firsts = [self._grads[ctx][0] for ctx in self.contexts]
            plan = collective_plan(
                "all_reduce", firsts, self.contexts, 0, 0, None, "auto", transport
            )
            self._by_library[transport] = plan["ops"] == ["_collective"]
        return self._by_library[transport]

    def _sum_over_cards(self, everywhere):
        from ..parallel import collectives

        parts = [self._joined(self._grads[ctx]) for ctx in self.contexts]
        if self.apart:
            total = collectives.reduce([part.reshape((-1,)) for part in parts], self.home)
            total.copyto(self._flat_sums)
        elif everywhere:
            totals = zip(self.contexts, collectives.all_reduce(parts))
            changes = [self._hand_out(total, ctx, self._grads[ctx]) for ctx, total in totals]
            at_once(*[change for some in changes for change in some])
        else:
            total = collectives.reduce(parts, self.home)
            at_once(*self._hand_out(total, self.home, self._grads[self.home]))

    def _on_cpus(self):
        return all(ctx.device_type == "cpu" for ctx in self.contexts)

    def spread(self):
        """Returns the changes (`_core.at_once`) that copy the weights from the bucket's device to
        the other devices."""
        here = len({ctx.rank for ctx in self.contexts}) == 1
        if here and len(self.contexts) <= _MOST and self._on_cpus():
            lists = [[param.arrays[ctx] for param in self.params] for ctx in self.contexts]
            return [(sum_replicas, lists, self.contexts.index(self.home), False, False, True)]
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


def make_buckets(params, apart):
    """Returns the buckets of replicated parameters. The last parameters come first, because
    backward computes their gradients first. The bytes to sum are balanced over the replicas."""
    open_, buckets = {}, []
    for param in reversed(params):
        contexts = tuple(param.arrays)
        key = contexts, dtype_name(param.dtype)
        if _bytes_of(param) >= _BUCKET:
            buckets.append(Bucket(contexts, [param], apart))
            continue
        gathered = open_.setdefault(key, [])
        gathered.append(param)
        if sum(map(_bytes_of, gathered)) >= _BUCKET:
            buckets.append(Bucket(contexts, open_.pop(key), apart))
    buckets += [Bucket(key[0], gathered, apart) for key, gathered in open_.items()]
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
