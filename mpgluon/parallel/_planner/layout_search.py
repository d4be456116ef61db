"""The search of `layouts`: compiles a copy of the network without values for each layout, and
searches plans."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from fractions import Fraction
from typing import Any

import numpy as np

from ..._core import pool_block_size
from ..._internal.kinds import is_numpy
from ..._internal.sizes import byte_text
from ...base import MXNetError, itemsize
from ...gluon._compiled.call import Signature
from ...gluon._compiled.shardings import Shardings
from ...gluon._nested import flatten
from ...gluon._tree import flags_of, parameters_by_path, walk
from ...gluon.block import HybridBlock
from ...gluon.nn.experts import MoE
from ...gluon.parameter._filling import defer
from ...gluon.utils import shape_is_known
from ...ndarray import NDArray
from .._partition import is_divided_by_default
from .._pipeline.pipeline import Pipeline
from ..collectives import divide
from .layer_measurement import Progress, detached_copy
from .layout import Bytes, Layout, Layouts, counted_devices, name_of
from .staged_layout import micro_batches, parts_in_sequence, planned_step, stand_ins

_MOST_RECOMPUTED = 5  # layouts that are tried with recomputation
_SENT = 8.0  # bytes sent in a step that a search accepts to save a byte
_MOST_TRIED = 16  # patterns of parameters that a search tries
_EVEN = ("model", "context", "stage")  # axes whose devices get equal shares
_SHARES = 8  # largest denominator of the shares of devices with unequal memory


def _flat(values, what):
    """Returns the arrays in nested values."""
    arrays: list[Any] = []
    flatten(values, arrays, f"layouts: {what}")
    if (what == "sample" and not arrays) or not all(isinstance(a, NDArray) for a in arrays):
        raise TypeError(f"layouts: {what} must be an NDArray or a list of NDArrays")
    return arrays


def _blank_copy(net):
    """Returns a copy of a network without values."""
    memo = {id(param): param.blank() for param in net.collect_params().values()}
    try:
        return detached_copy(net, memo)
    except TypeError as error:
        raise MXNetError(
            f"layouts: '{net.name}' cannot be copied by copy.deepcopy ({error}); pass a network "
            "that is written in Python, without attributes that cannot be copied"
        ) from error


def _allocated(entry, ctx):
    """Returns the bytes of the blocks that pools give to compiled programs on a device."""
    device = entry["devices"].get(str(ctx))
    if not device:
        return 0
    return sum(
        pool_block_size(device["planned"][part])
        for part in ("forward", "backward", "lanes", "kept")
    )


def _size(shape, dtype):
    """Returns the bytes of the block that a pool gives to an array."""
    return pool_block_size(math.prod(shape) * itemsize(dtype))


def _entry(shape, axes, axis, dim, blocks, unit):
    """Returns the entry of a plan for a cut of an array. The unit is left out if it only gives each
    device an equal part."""
    numbers = [blocks] if shape[dim] == blocks * unit * axes[axis] else [blocks, unit]
    text = ":".join(map(str, [axis, *numbers]))
    return (None,) * dim + (text.removesuffix(":1"),)


def _shares(sizes):
    """Returns small integers in the proportion of some sizes."""
    parts = [Fraction(size / max(sizes)).limit_denominator(_SHARES) for size in sizes]
    whole = math.lcm(*[part.denominator for part in parts])
    if whole > _SHARES**2 or not all(parts):
        whole, parts = 1, [max(1, round(size * _SHARES / max(sizes))) for size in sizes]
    shares = [int(part * whole) for part in parts]
    common = math.gcd(*shares)
    return [share // common for share in shares]


class _Called(HybridBlock):
    """A call of a network, and of a loss if it is not None. The network's `__call__` may add
    inputs, such as the states of a recurrent layer."""

    def __init__(self, net, loss, inputs):
        super().__init__(prefix="")
        self.net, self._loss, self._inputs = net, loss, inputs

    def forward(self, *args):
        outputs = self.net(*args[: self._inputs])
        if self._loss is None:
            return outputs
        value = self._loss(outputs, *args[self._inputs :])
        if not isinstance(value, (NDArray, list, tuple, dict)):
            raise TypeError(f"layouts: the loss must return arrays, not {type(value).__name__}")
        return value


class Study:
    """The comparison of all layouts of one network."""

    def __init__(self, net, sample, loss, labels, devices, limits, state_factor, train):
        self.values, self.loss, self.num_given = (*sample, *labels), loss, len(sample)
        self.inputs = _flat(sample, "sample")
        self.arrays = [*self.inputs, *_flat(labels, "labels")]
        self.devices, self.limits = devices, limits
        self.state_factor, self.train = state_factor, train
        self.net, self.shapes, self.flags = _blank_copy(net), {}, flags_of(net)
        # Infers unknown shapes, and raises the errors that all layouts would raise.
        self.alone = self.evaluate({}, None)
        self.shapes.update(
            {path: param.shape for path, param in parameters_by_path(self.net).items()}
        )
        # Pattern -> number of elements, and shape, of the large parameters
        self.sizes, self.groups = {}, {}
        for path, param in parameters_by_path(self.net).items():
            if is_divided_by_default(param):
                pattern = self._pattern(path)
                self.groups.setdefault(pattern, param.shape)
                self.sizes[pattern] = self.sizes.get(pattern, 0) + math.prod(param.shape)

    def _signature(self, net, home):
        block = _Called(net, self.loss, self.num_given)
        structure = flatten(self.values, [], "The inputs")
        descs = [(a.shape, a.dtype, home, is_numpy(a)) for a in self.arrays]
        return block, Signature(block, net.name, structure, self.train), descs

    def evaluate(self, axes, plan, recompute=False):
        """Returns the Layout of a mesh and a plan. If it doesn't fit and `recompute` is True,
        values are recomputed."""
        if "stage" in axes:
            return self._evaluate_stages(axes, plan)
        count = math.prod(len(s) if isinstance(s, list) else s for s in axes.values())
        places = range(count) if axes else [self.limits.index(max(self.limits))]
        devices, limits = ([values[i] for i in places] for values in (self.devices, self.limits))
        layout = Layout(axes, plan, devices, limits, self.shapes)
        net = _blank_copy(self.net) if axes else self.net
        layout.partition(net)
        for param in net.collect_params().values():
            defer(param, getattr(param, "homes", None) or param.placed or devices[:1])
        # The signature refers to the block weakly.
        block, signature, descs = self._signature(net, layout.devices[0])
        entry, used = self._compile(layout, net, signature, descs, {})
        self._check_axes(axes, entry["shardings"])
        if not all(one.total for one in layout.bytes):
            raise MXNetError("some devices would be idle")
        paths = {param: path for path, param in parameters_by_path(net).items()}
        for index, cut in Shardings.wanted(entry["shardings"]).items():
            param = used[index] if index < len(used) else None  # captured arrays come last
            if param in paths:
                layout.wanted[paths[param]] = _entry(param.shape, axes, *cut)
        if recompute and layout.missing:
            room = {
                ctx: max(0, limit - one.total + _allocated(entry, ctx)) * 7 // 8  # for rounding
                for ctx, one, limit in zip(layout.devices, layout.bytes, layout.limits)
            }
            with contextlib.suppress(MXNetError):  # if it doesn't fit with recomputation either
                self._compile(layout, net, signature, descs, room)
                layout.budget = list(room.values())
        del block
        return layout

    def _evaluate_stages(self, axes, plan):
        """Returns the Layout of a mesh with an axis `stage`. Its programs are compiled for stand-in
        devices."""
        layout = Layout(axes, plan, self.devices, self.limits, self.shapes)
        rows = self.inputs[0].shape[0] if self.inputs[0].ndim else 0
        layout.pipeline = Pipeline(micro_batches(rows, axes))
        devices = stand_ins(len(self.devices))
        net = _blank_copy(self.net)
        try:
            layout.partition(net, devices)
            step = planned_step(
                net, self.values, self.num_given, self.loss, layout.pipeline, devices, self.train
            )
            self._check_axes(axes, step.shardings)
            used = [*step.peaks, *(ctx for _, _, ctx in step.arrays)]
            others = [ctx for ctx in used if ctx not in devices]
            if others:
                raise MXNetError(f"the network itself moves values to {others[0]}")
            held = {ctx: [0, 0, 0, step.peaks.get(ctx, 0)] for ctx in devices}
            self._add_parameters(held, net)
            for shape, dtype, ctx in step.arrays:
                held[ctx][3] += _size(shape, dtype)
        finally:
            del net
            for ctx in devices:
                ctx.empty_cache()
        layout.bytes, layout.sent = [Bytes(*held[ctx]) for ctx in devices], step.sent
        return layout

    @staticmethod
    def _check_axes(axes, shardings):
        """Raises MXNetError if an axis of a mesh divides nothing."""
        divided = {"stage", *(axis for cut in Shardings(shardings) for axis in cut["because"])}
        for axis in axes:
            if axis not in divided:
                raise MXNetError(f"nothing can be divided along '{axis}'")

    def _compile(self, layout, net, signature, descs, budget):
        """Compiles a divided network, and sets the bytes of its layout. Returns the compiled
        programs, and the parameters among their inputs."""
        entry, used, results = signature.planned(descs, {**self.flags, "recompute": budget or None})
        held = {ctx: [0, 0, 0, _allocated(entry, ctx)] for ctx in layout.devices}
        self._add_parameters(held, net)
        # Inputs, results, and the gradients of results
        for shape, dtype, ctx, *_ in (*descs, *results, *(results if self.train else ())):
            held[ctx][3] += _size(shape, dtype)
        layout.bytes = [Bytes(*held[ctx]) for ctx in layout.devices]
        layout.sent = sum(copied["bytes"] for copied in entry["copies"])
        return entry, used

    def _add_parameters(self, held, net):
        """Adds the bytes of a network's parameters, gradients and states on each device."""
        for param in net.collect_params().values():
            if not shape_is_known(param.shape):
                raise MXNetError(
                    f"layouts: the shape of '{param.name}' is not known; give its layer in_units "
                    "or in_channels"
                )
            size = _size(param.shape, param.dtype)
            trained = self.train and param.grad_req != "null"
            for ctx in param.list_ctx():
                held[ctx][0] += size
                if trained:
                    held[ctx][1] += size
                    held[ctx][2] += int(size * self.state_factor(param.dtype))

    # --- Plans ------------------------------------------------------------------------------------

    def _pattern(self, path):
        """Returns the pattern of a parameter. In networks of many parameters, those whose paths
        differ in numbers alone have one pattern."""
        if len(self.shapes) <= _MOST_TRIED:
            return path
        return re.sub(r"(?<![^.])\d+(?![^.])", r"\\d+", path)

    def _experts(self):
        """Returns the patterns of the weights of experts."""
        experts = {
            param
            for _, _, _, block in [*walk(self.net), (None, None, "", self.net)]
            if isinstance(block, MoE)
            for param in (block.gate_weight, block.up_weight, block.down_weight)
            if param is not None
        }
        paths = parameters_by_path(self.net).items()
        return list(dict.fromkeys(self._pattern(path) for path, param in paths if param in experts))

    def search(self, size):
        """Returns the plan for the axis `model` of a size, or {} if none saves memory."""
        plan, now = {}, self._cost(self.alone)
        largest = sorted(self.sizes, key=self.sizes.get, reverse=True)[:_MOST_TRIED]
        choices = [
            (pattern, (None,) * dim + ("model",))
            for pattern in largest
            for dim in range(min(2, len(self.groups[pattern])))
            if self.groups[pattern][dim] >= size
        ]
        while True:
            tried = [
                self._completed({"model": size}, {**plan, pattern: entry})
                for pattern, entry in choices
                if pattern not in plan
            ]
            best = min(tried, key=lambda one: one[0], default=(math.inf, plan))
            if best[0] >= now * 0.99:
                return plan
            now, plan = best

    def _completed(self, axes, plan):
        """Adds the parameters to a plan that are used in parts, but not stored in parts. Returns
        the cost of the completed plan, and this plan."""
        layout = self._try(axes, plan)
        if layout is None:
            return math.inf, plan
        more = {self._pattern(path): cut for path, cut in layout.wanted.items()}
        more = {pattern: cut for pattern, cut in more.items() if pattern in self.groups}
        whole = self._try(axes, {**plan, **more}) if more else None
        if whole is None or self._cost(whole) > self._cost(layout):
            return self._cost(layout), plan
        return self._cost(whole), {**plan, **more}

    def _try(self, axes, plan, skipped=None):
        """Returns a Layout, or None if the plan is not possible on this mesh. `skipped` receives
        the reason."""
        try:
            return self.evaluate(axes, plan)
        except (ValueError, MXNetError) as error:
            if skipped is not None:
                skipped[name_of(axes)] = str(error)
            return None

    @staticmethod
    def _cost(layout):
        """Returns the cost for the search: the bytes of the fullest device, and those sent."""
        return math.inf if layout is None else layout.largest.total + layout.sent / _SENT

    def _plan(self, axes, model):
        """Returns the plan for a mesh."""
        batch = tuple(axis for axis in ("data", "shard") if axis in axes)
        if not model and not {"context", "expert"} & set(axes):
            return None
        plan: dict[str, Any] = {}
        for i, array in enumerate(self.inputs):
            entries = [batch or None, "context" if "context" in axes else None][: array.ndim]
            if any(entries):
                plan[f"data{i}"] = tuple(entries)
        if "model" in axes:
            plan.update(model)
        if "expert" in axes:
            plan.update(dict.fromkeys(self._experts(), "expert"))
        if "shard" in axes:
            shares = axes["shard"]
            shares = [1] * shares if isinstance(shares, int) else shares
            for pattern, shape in self.groups.items():
                parts = divide(shape[0], len(shares), shares)
                if pattern not in plan and all(begin < end for begin, end in parts):
                    plan[pattern] = "shard"
        return plan

    # --- Comparison -------------------------------------------------------------------------------

    def _meshes(self, names):
        """Yields the axes of meshes over all devices: one or two axes each."""
        count = len(self.devices)
        shares = _shares(self.limits)
        equal = len(set(shares)) == 1
        for name in names:
            yield {name: count if equal or name in _EVEN else shares}
        for one, other in itertools.combinations(names, 2):
            for size in range(2, count // 2 + 1):
                if count % size == 0:
                    yield {one: size, other: count // size}

    def _can_have_stages(self, axes):
        """False if a mesh has more stages than the network has blocks in sequence, or if the batch
        is too small for its pipeline."""
        if "stage" not in axes:
            return True
        rows = self.inputs[0].shape[0] if self.inputs[0].ndim else 0
        return micro_batches(rows, axes) > 0 and parts_in_sequence(self.net) >= axes["stage"]

    def _balanced(self, layout):
        """Returns the layout with shares by the memory left for weights, if this is better."""
        axis = next((name for name, size in layout.axes.items() if isinstance(size, list)), None)
        room = [limit - one.values for one, limit in zip(layout.bytes, layout.limits)]
        if axis is None or min(room) <= 0:
            return layout
        other = self._try({axis: _shares(room)}, layout.plan)
        return min(layout, other or layout, key=lambda one: one.filled)

    def compare(self, given, progress):
        found, skipped, count = [self.alone], {}, len(self.devices)
        tokens = all(a.ndim == 2 and np.issubdtype(a.dtype, np.integer) for a in self.inputs)
        if count > 1:
            names = [
                *(["stage"] if parts_in_sequence(self.net) > 1 else []),
                *["data", "shard", "model"],
                *(["expert"] if self._experts() else []),
                *(["context"] if tokens else []),
            ]
            meshes = [axes for axes in self._meshes(names) if self._can_have_stages(axes)]
            report = Progress("layouts", len(meshes) + 1, progress)
            least = next(f for f in range(2, count + 1) if count % f == 0)
            if given is None:
                model = self.search(least)
            else:
                self.evaluate({"model": least}, given)  # raises errors of the plan
                _, model = self._completed({"model": least}, given)
            report("search of a plan for the axis model")
            for axes in meshes:
                report(name_of(axes))
                if "model" in axes and not model:
                    continue
                plan = self._plan(axes, model if "model" in axes else {})
                if {"shard", "model"} <= set(axes) and "shard" not in plan.values():
                    continue  # as with the axis data
                layout = self._try(axes, plan, skipped)
                if layout is not None:
                    found.append(self._balanced(layout))
        # Devices wait in a pipeline, and one of several devices is the last choice.
        found.sort(
            key=lambda one: (
                one.missing,
                len(one.limits) < count,
                one.pipeline is not None,
                one.sent,
            )
        )
        if self.train and not found[0].fits:
            whole = [i for i, layout in enumerate(found) if layout.pipeline is None]
            for i in whole[:_MOST_RECOMPUTED]:
                layout = found[i]
                found[i] = self.evaluate(layout.axes, layout.plan, recompute=True)
                if found[i].fits:
                    break
            found.sort(key=lambda one: one.missing)
        return Layouts(found, self._savings(found[0]), skipped, self._what())

    def _what(self):
        params = self.net.collect_params().values()
        count = sum(math.prod(param.shape) for param in params)
        memory = ", ".join(map(byte_text, dict.fromkeys(self.limits)))
        shapes = ", ".join(str(tuple(a.shape)) for a in self.inputs)
        return (
            f"{'training' if self.train else 'prediction'} of {count:,} parameters with inputs of "
            f"{shapes} on {counted_devices(len(self.devices))} of {memory}"
        )

    def _savings(self, best):
        """Returns a line for each axis of a layout: the bytes without it."""
        lines = []
        for axis in best.axes:
            rest = {name: size for name, size in best.axes.items() if name != axis}
            plan = best.plan
            if plan is not None:
                plan = {key: _without(axis, entry) for key, entry in plan.items()}
                plan = {key: entry for key, entry in plan.items() if entry is not None}
            reasons = {}
            other = self._try(rest, plan or None, reasons) if rest else self.alone
            if other is None:
                lines.append(f"  {axis}: not possible without: {reasons[name_of(rest)]}")
                continue
            (had, has), (was, now) = (
                map(byte_text, pair)
                for pair in ((other.largest.total, best.largest.total), (other.sent, best.sent))
            )
            lines.append(
                f"  {axis}: {has} instead of {had} on the fullest device, {now} instead of {was} "
                "sent"
            )
        return lines


def _without(axis, entry):
    """Returns an entry of a plan without an axis, or None if nothing is left."""
    if isinstance(entry, str):
        return None if entry.partition(":")[0] == axis else entry
    kept = []
    for part in entry:
        parts = part if isinstance(part, (tuple, list)) else (part,)
        left = tuple(p for p in parts if p is not None and p.partition(":")[0] != axis)
        kept.append(left or None)
    return tuple(kept) if any(kept) else None
