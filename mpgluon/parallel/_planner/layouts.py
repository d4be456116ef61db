"""Layouts: how a network can be divided over devices, and the memory that each way needs, from
shapes alone. Each layout is compiled by `Mesh.partition` for a copy of the network without
values."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import re
import warnings
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import ndarray as nd, optimizer as opt
from ..._core import pool_block_size
from ..._internal import domain, graph_breaks
from ..._internal.kinds import is_numpy
from ..._internal.sizes import byte_text
from ..._internal.tables import Tabular
from ...base import MXNetError, itemsize
from ...context import Context, cpu, gpu_memory_info
from ...gluon._compiled.call import Signature
from ...gluon._compiled.shardings import Shardings
from ...gluon._nested import flatten
from ...gluon._tree import flags_of, parameters_by_path, refuse_partitioned
from ...gluon.block import HybridBlock
from ...gluon.parameter._filling import defer
from ...gluon.utils import shape_is_known
from ...ndarray import NDArray
from ...optimizer._nested_states import arrays_of
from .._mesh import Mesh
from .._partition import is_divided_by_default
from .._tensor_parallel.parameters import HomeParameter
from ..collectives import divide
from .layer_measurement import Progress, detached_copy
from .rank_measurement import limits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...optimizer import Optimizer

__all__ = ["Layout", "Layouts", "layouts"]

_MOST_DEVICES = 64
_PLAIN = "pass the network as it was created, before it is divided"
_MOST_RECOMPUTED = 5  # layouts that are tried with recomputation
_SENT = 8.0  # bytes sent in a step that a search accepts to save a byte
_MOST_TRIED = 16  # patterns of parameters that a search tries
_SHARES = 8  # largest denominator of the shares of devices with unequal memory


class Bytes(NamedTuple):
    """The bytes of a layout on one device."""

    weights: int
    gradients: int
    states: int
    values: int  # of the compiled programs: activations, copies of weights, temporary memory

    @property
    def total(self) -> int:
        return sum(self)


class Layout:
    """One way to divide a network over devices; see `layouts`.

    Attributes
    ----------
    axes : dict
        The axes of the mesh, as for `Mesh`. Empty for one device.
    plan : dict or None
        The plan for `Mesh.partition`.
    devices : list of Context
        The devices of the mesh, in the order in which `layouts` was given them.
    bytes : list of Bytes
        For each device: its ``weights``, ``gradients``, optimizer ``states`` and ``values``
        (activations and temporary memory), and their ``total``.
    sent : int
        Bytes that are copied between devices in a step.
    budget : list of int
        For each device, the bytes that compiled programs may use, if the layout only fits with
        recomputation. Otherwise empty. See `recompute`.
    wanted : dict
        Path -> entry of a plan for the parameters that are used in parts, but stored whole.

    Examples
    --------
    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Dense(512, in_units=256), mx.gluon.nn.Dense(256, in_units=512))
    >>> x = mx.nd.zeros((32, 256))
    >>> best = mx.parallel.layouts(net, x, ['3MB'] * 2, progress=False).best
    >>> _ = best.partition(net, [mx.cpu(0), mx.cpu(1)])
    >>> net[0].shard1_weight.shape
    (256, 256)
    """

    def __init__(
        self,
        axes: dict[str, Any],
        plan: dict[str, Any] | None,
        devices: list[Context],
        limits: list[int],
        shapes: dict[str, tuple[int, ...]],
    ) -> None:
        self.axes: dict[str, Any] = axes
        self.plan: dict[str, Any] | None = plan
        self.devices: list[Context] = devices
        self.limits: list[int] = limits
        self._shapes: dict[str, tuple[int, ...]] = shapes  # of parameters, by path
        self.bytes: list[Bytes] = []
        self.sent: int = 0
        self.budget: list[int] = []
        self.wanted: dict[str, tuple[str | None, ...]] = {}

    @property
    def missing(self) -> int:
        """Bytes that the device with the greatest lack of memory lacks; 0 if the layout fits."""
        return max(0, *[one.total - limit for one, limit in zip(self.bytes, self.limits)])

    @property
    def fits(self) -> bool:
        """True if no device lacks memory."""
        return not self.missing

    @property
    def filled(self) -> float:
        """The greatest part of a device's memory that is needed."""
        return max(one.total / limit for one, limit in zip(self.bytes, self.limits))

    @property
    def largest(self) -> Bytes:
        """The bytes of the device that lacks most memory, or else is filled most."""
        pairs = list(zip(self.bytes, self.limits))
        if self.missing:
            return max(pairs, key=lambda pair: pair[0].total - pair[1])[0]
        return max(pairs, key=lambda pair: pair[0].total / pair[1])[0]

    @property
    def name(self) -> str:
        """The mesh in words, such as ``data 2, shard 4``."""
        return _name(self.axes)

    def recompute(self, devices: Sequence[Context] | None = None) -> dict[Context, int] | bool:
        """Returns the argument `recompute` for `HybridBlock.hybridize`: False if the layout fits
        without, or limits of bytes. Pass the same `devices` as to `partition`."""
        if not self.budget:
            return False
        return dict(zip(self.devices if devices is None else devices, self.budget))

    def partition(self, net: HybridBlock, devices: Sequence[Context] | None = None) -> HybridBlock:
        """Divides a network by this layout (`Mesh.partition`), and completes the shapes of its
        parameters. `devices` replace its devices, in the same order. Returns the
        network."""
        for path, param in parameters_by_path(net).items():
            if not shape_is_known(param.shape) and path in self._shapes:
                param.shape = self._shapes[path]
        if self.axes:
            Mesh(self.axes, self.devices if devices is None else devices).partition(net, self.plan)
        return net

    def __repr__(self) -> str:
        largest, state = self.largest, "fits"
        if self.budget:
            state = "fits with recompute"
        if not self.fits:
            state = f"lacks {byte_text(self.missing)}"
        return (
            f"Layout({self.name}: {byte_text(largest.total)} on the fullest device, {state}; "
            f"plan={self.plan})"
        )


class Layouts(Tabular):
    """The layouts that `layouts` has compared: a sequence of `Layout`. Those that fit come first,
    then those that send the fewest bytes. Printing it shows a table, and the savings by each axis
    of the best layout. `skipped` maps the names of layouts that are not possible to the reasons.

    Examples
    --------
    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Dense(512, in_units=256), mx.gluon.nn.Dense(256, in_units=512))
    >>> x = mx.nd.zeros((1, 256))
    >>> found = mx.parallel.layouts(net, x, ['3MB'] * 2, progress=False)
    >>> [layout.name for layout in found], list(found.skipped)
    (['model 2', 'shard 2', 'one device'], ['data 2'])
    """

    def __init__(
        self, found: list[Layout], savings: list[str], skipped: dict[str, str], what: str
    ) -> None:
        self._found: list[Layout] = found
        self._savings: list[str] = savings
        self._what: str = what
        self.skipped: dict[str, str] = skipped

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, i: int) -> Layout:
        return self._found[i]

    def __iter__(self) -> Iterator[Layout]:
        return iter(self._found)

    @property
    def best(self) -> Layout:
        """The first layout.

        Raises
        ------
        MXNetError
            If no layout fits. The message has the bytes that are missing.
        """
        first = self._found[0]
        if not first.fits:
            raise MXNetError(
                f"layouts: the network does not fit on {_counted(len(first.limits))}: the best "
                f"layout ({first.name}) lacks {byte_text(first.missing)} on a device. Use more "
                "devices, smaller batches, adapters (LoRA), or leave the optimizer's states on the "
                "host (Trainer(offload=...))"
            )
        return first

    def _parts(self):
        rows = [
            ("layouts", "weights", "gradients", "states", "values", "total", "sent", ""),
        ]
        for one in self._found:
            state = "recompute" if one.budget and one.fits else ""
            state = state if one.fits else f"lacks {byte_text(one.missing)}"
            largest = one.largest
            rows.append((one.name, *map(byte_text, (*largest, largest.total, one.sent)), state))
        skipped = [f"  not possible: {name}: {why}" for name, why in self.skipped.items()]
        return [self._what, rows, *self._savings, *skipped]


def _name(axes):
    if not axes:
        return "one device"
    return ", ".join(
        f"{axis} {':'.join(map(str, size)) if isinstance(size, list) else size}"
        for axis, size in axes.items()
    )


def _counted(count):
    return "one device" if count == 1 else f"{count} devices"


def layouts(
    net: HybridBlock,
    sample: NDArray | Sequence[NDArray],
    memory: Sequence[float | str] | dict[Context, float | str] | None = None,
    *,
    devices: Sequence[Context] | None = None,
    plan: dict[str, Any] | None = None,
    loss: Callable[..., Any] | None = None,
    labels: NDArray | Sequence[NDArray] = (),
    optimizer: str | Optimizer = "adam",
    optimizer_params: dict[str, Any] | None = None,
    train: bool = True,
    progress: bool | None = None,
) -> Layouts:
    """Answers if a network fits on devices, and how: compares the ways to divide it over a mesh
    (`Mesh.partition`). Nothing runs, and the network needs no values, so neither the network nor
    the devices must exist in memory yet.

    Each layout is compiled for a copy of the network without values, which gives the bytes of its
    programs on each device. Layouts over the axes ``data``, ``shard``, ``model`` and, for networks
    of tokens, ``context`` are tried, with two axes at most. Layouts that don't fit are tried
    again with recomputation.

    Parameters
    ----------
    net : HybridBlock
        Network, initialized or not. It stays unchanged.
    sample : NDArray or list of NDArray
        A whole batch of inputs. Only shapes and dtypes matter.
    memory : list or dict of numbers or str, optional
        Bytes on each device, such as ``['24GB', '12GiB']``, or by Context. By default, the limits
        of `devices` (`mx.context.set_memory_limit`), or the memory of GPUs.
    devices : list of Context, optional
        Devices; by default as many CPU devices as `memory` has entries, in place of others.
    plan : dict, optional
        The part of the plan for the axis ``model``, as for `Mesh.partition`. By default, it is
        found by a search: the pattern that saves most is added as long as it saves more than it
        sends.
    loss : callable, optional
        Function ``loss(outputs, *labels)``. Without it, the gradients of the outputs are given.
    labels : NDArray or list of NDArray
        A whole batch of the loss's arguments after the outputs.
    optimizer : str or Optimizer, default 'adam'
        Optimizer, whose states count as memory.
    optimizer_params : dict, optional
        Arguments of an optimizer that is given by name.
    train : bool, default True
        False for prediction: without gradients and states.
    progress : bool, optional
        Whether to show a progress bar; by default on terminals.

    Returns
    -------
    Layouts

    Raises
    ------
    ValueError, TypeError
        If an argument is invalid.
    MXNetError
        If the network is placed or partitioned, or cannot be compiled as a whole.

    Examples
    --------
    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Dense(512, in_units=256), mx.gluon.nn.Dense(256, in_units=512))
    >>> x = mx.nd.zeros((32, 256))
    >>> found = mx.parallel.layouts(net, x, ['3MB', '3MB'], progress=False)
    >>> found.best.axes, found.best.plan
    ({'model': 2}, {'0.weight': ('model',), '1.weight': (None, 'model')})
    """
    if not isinstance(net, HybridBlock):
        raise TypeError(f"layouts: the network must be a HybridBlock, not {type(net).__name__}")
    graph_breaks.refuse_in_trace("layouts")
    if plan is not None and not isinstance(plan, dict):
        raise TypeError(
            f"layouts: plan must be a dict such as {{'.*up.weight': 'model'}}, not {plan!r}"
        )
    if loss is not None and not callable(loss):
        raise TypeError(f"layouts: loss must be a function of outputs and labels, not {loss!r}")
    if loss is None and not (isinstance(labels, (list, tuple)) and not labels):
        raise ValueError("layouts: labels are arguments of the loss; pass loss= as well")
    refuse_partitioned(net, "layouts", _PLAIN)
    for param in net.collect_params().values():
        if isinstance(param, HomeParameter):
            raise MXNetError(
                f"layouts: '{param.name}' belongs to a layer that is split over devices; {_PLAIN}"
            )
    study = _Study(
        net,
        _listed(sample),
        loss,
        _listed(labels),
        *_places(memory, devices),
        _state_factor(optimizer, optimizer_params),
        train,
    )
    return study.compare(plan, progress)


def _listed(given):
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def _flat(values, what):
    """Returns the arrays in nested values."""
    arrays: list[Any] = []
    flatten(values, arrays, f"layouts: {what}")
    if (what == "sample" and not arrays) or not all(isinstance(a, NDArray) for a in arrays):
        raise TypeError(f"layouts: {what} must be an NDArray or a list of NDArrays")
    return arrays


def _places(memory, devices):
    """Returns the devices and their bytes."""
    if isinstance(memory, dict):
        if devices is not None and set(memory) != set(devices):
            raise ValueError("layouts: memory must have an entry for each of the devices")
        devices = list(memory) if devices is None else devices
        memory = [memory[ctx] for ctx in devices]
    if memory is None and devices is None:
        raise ValueError("layouts: pass memory=['24GB', ...], devices=, or both")
    if memory is not None and (not isinstance(memory, (list, tuple)) or not memory):
        raise ValueError(
            "layouts: memory must be a list with an entry for each device, such as ['24GB', "
            f"'12GB'], or a dict of Context to bytes, not {memory!r}"
        )
    if devices is None:
        devices = [cpu(i) for i in range(len(memory))]
    devices = [devices] if isinstance(devices, Context) else list(devices)
    known = all(isinstance(ctx, Context) and ctx.rank is None for ctx in devices)
    if not devices or not known or len(set(devices)) != len(devices):
        raise ValueError(
            "layouts: devices must be a list of different Contexts of this process, not "
            f"{devices!r}"
        )
    if len(devices) > _MOST_DEVICES:
        raise ValueError(
            f"layouts: at most {_MOST_DEVICES} devices are compared, not {len(devices)}; divide "
            "the batch over groups of devices (data parallelism), and pass the devices of one group"
        )
    if memory is None:
        memory = _memory_of(devices)
    if len(memory) != len(devices):
        raise ValueError(
            f"layouts: memory must have an entry for each of the {len(devices)} devices, not "
            f"{memory!r}"
        )
    return devices, [int(domain.byte_count("layouts", "memory", value)) for value in memory]


def _memory_of(devices):
    limits = limits_of(devices)
    for ctx in devices:
        if ctx not in limits and ctx.device_type == "gpu":
            limits[ctx] = gpu_memory_info(ctx.device_id)[1]
        if ctx not in limits:
            raise ValueError(
                f"layouts: {ctx} has no memory limit; pass memory=, or call "
                "mx.context.set_memory_limit"
            )
    return [limits[ctx] for ctx in devices]


def _state_factor(optimizer, options):
    """Returns a function from dtypes to the bytes of states per byte of weights."""
    if not isinstance(optimizer, opt.Optimizer):
        optimizer = opt.create(optimizer, **(options or {}))
    found: dict[Any, float] = {}

    def factor(dtype):
        if dtype not in found:
            weight = nd.zeros((64, 64), dtype=dtype)
            with warnings.catch_warnings():  # of types, which the training will show
                warnings.simplefilter("ignore")
                states = copy.copy(optimizer).create_state_multi_precision(0, weight)
            size = sum(math.prod(a.shape) * itemsize(a.dtype) for a in arrays_of(states))
            found[dtype] = size / (64 * 64 * itemsize(dtype))
        return found[dtype]

    return factor


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


class _Study:
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
        divided = {axis for cut in Shardings(entry["shardings"]) for axis in cut["because"]}
        for axis in axes:
            if axis not in divided:
                raise MXNetError(f"nothing can be divided along '{axis}'")
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

    def _compile(self, layout, net, signature, descs, budget):
        """Compiles a divided network, and sets the bytes of its layout. Returns the compiled
        programs, and the parameters among their inputs."""
        entry, used, results = signature.planned(descs, {**self.flags, "recompute": budget or None})
        held = {ctx: [0, 0, 0, _allocated(entry, ctx)] for ctx in layout.devices}
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
        # Inputs, results, and the gradients of results
        for shape, dtype, ctx, *_ in (*descs, *results, *(results if self.train else ())):
            held[ctx][3] += _size(shape, dtype)
        layout.bytes = [Bytes(*held[ctx]) for ctx in layout.devices]
        layout.sent = sum(copied["bytes"] for copied in entry["copies"])
        return entry, used

    # --- Plans ------------------------------------------------------------------------------------

    def _pattern(self, path):
        """Returns the pattern of a parameter. In networks of many parameters, those whose paths
        differ in numbers alone have one pattern."""
        if len(self.shapes) <= _MOST_TRIED:
            return path
        return re.sub(r"(?<![^.])\d+(?![^.])", r"\\d+", path)

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
                skipped[_name(axes)] = str(error)
            return None

    @staticmethod
    def _cost(layout):
        """Returns the cost for the search: the bytes of the fullest device, and those sent."""
        return math.inf if layout is None else layout.largest.total + layout.sent / _SENT

    def _plan(self, axes, model):
        """Returns the plan for a mesh."""
        batch = tuple(axis for axis in ("data", "shard") if axis in axes)
        if not model and "context" not in axes:
            return None
        plan: dict[str, Any] = {}
        for i, array in enumerate(self.inputs):
            entries = [batch or None, "context" if "context" in axes else None][: array.ndim]
            if any(entries):
                plan[f"data{i}"] = tuple(entries)
        if "model" in axes:
            plan.update(model)
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
            yield {name: count if equal or name in ("model", "context") else shares}
        for one, other in itertools.combinations(names, 2):
            for size in range(2, count // 2 + 1):
                if count % size == 0:
                    yield {one: size, other: count // size}

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
            names = ["data", "shard", "model", *(["context"] if tokens else [])]
            meshes = list(self._meshes(names))
            report = Progress("layouts", len(meshes) + 1, progress)
            least = next(f for f in range(2, count + 1) if count % f == 0)
            if given is None:
                model = self.search(least)
            else:
                self.evaluate({"model": least}, given)  # raises errors of the plan
                _, model = self._completed({"model": least}, given)
            report("search of a plan for the axis model")
            for axes in meshes:
                report(_name(axes))
                if "model" in axes and not model:
                    continue
                plan = self._plan(axes, model if "model" in axes else {})
                if {"shard", "model"} <= set(axes) and "shard" not in plan.values():
                    continue  # as with the axis data
                layout = self._try(axes, plan, skipped)
                if layout is not None:
                    found.append(self._balanced(layout))
        # One of several devices is the last choice.
        found.sort(key=lambda one: (one.missing, len(one.limits) < count, one.sent))
        if self.train and not found[0].fits:
            for i, layout in enumerate(found[:_MOST_RECOMPUTED]):
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
            f"{shapes} on {_counted(len(self.devices))} of {memory}"
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
            other = self._try(rest, plan or None) if rest else self.alone
            if other is None:
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
