"""Layouts: how a network can be divided over devices, and the memory that each way needs, from
shapes alone. Each layout is compiled by `Mesh.partition` for a copy of the network without
values."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import numbers
import re
import warnings
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import initializer, ndarray as nd, optimizer as opt
from ..._core import dtype_name, is_np_array, pool_block_size
from ..._internal import graph_breaks
from ..._internal.kinds import is_numpy
from ..._internal.sizes import bytes_text, parse_bytes
from ..._internal.tables import Tabular
from ...base import MXNetError
from ...context import Context, cpu, memory_stats
from ...gluon._compiled.call import Signature
from ...gluon._compiled.shardings import Shardings
from ...gluon._nested import flatten
from ...gluon._tree import parameters_by_path, refuse_partitioned
from ...gluon.block import HybridBlock
from ...gluon.utils import shape_is_known
from ...ndarray import NDArray
from ...optimizer._nested_states import arrays_of
from .._mesh import Mesh
from .._partition import is_divided_by_default
from .._tensor_parallel.parameters import HomeParameter
from ..collectives import divide
from .layer_measurement import Progress, detached_copy

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
    bytes : list of Bytes
        For each device: its ``weights``, ``gradients``, optimizer ``states`` and ``values``
        (activations and temporary memory), and their ``total``.
    sent : int
        Bytes that are copied between devices in a step.
    recompute : dict
        Context -> bytes: the argument `recompute` of `HybridBlock.hybridize`, if the layout only
        fits with it. Otherwise empty.
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
        self.recompute: dict[Context, int] = {}
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

    def partition(self, net: HybridBlock, devices: Sequence[Context] | None = None) -> HybridBlock:
        """Divides a network by this layout (`Mesh.partition`), and completes the shapes of its
        parameters. Returns the network."""
        for path, param in parameters_by_path(net).items():
            if not shape_is_known(param.shape) and path in self._shapes:
                param.shape = self._shapes[path]
        if self.axes:
            Mesh(self.axes, self.devices if devices is None else devices).partition(net, self.plan)
        return net

    def __repr__(self) -> str:
        largest, state = self.largest, "fits"
        if self.recompute:
            state = "fits with recompute"
        if not self.fits:
            state = f"lacks {bytes_text(self.missing)}"
        return (
            f"Layout({self.name}: {bytes_text(largest.total)} on the fullest device, {state}; "
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
                f"layout ({first.name}) lacks {bytes_text(first.missing)} on a device. Use more "
                "devices, smaller batches, adapters (LoRA), or leave the optimizer's states on the "
                "host (Trainer(offload=...))"
            )
        return first

    def _parts(self):
        rows = [
            (
                *("layouts", "weights", "gradients", "states", "values"),
                *("total", "sent", ""),
            )
        ]
        for one in self._found:
            state = "recompute" if one.recompute and one.fits else ""
            state = state if one.fits else f"lacks {bytes_text(one.missing)}"
            largest = one.largest
            rows.append((one.name, *map(bytes_text, (*largest, largest.total, one.sent)), state))
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
    memory: Sequence[int | str] | None = None,
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
    memory : list of int or str, optional
        Bytes on each device, such as ``['24GB', '12GB']``. By default, the limits of `devices`
        (`mx.context.set_memory_limit`), or the memory of GPUs.
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
    inputs, arrays = _arrays(sample, "sample")
    devices, limits = _places(memory, devices)
    study = _Study(
        net,
        (inputs, arrays),
        (loss, *(_arrays(labels, "labels") if loss is not None else ((), []))),
        devices,
        limits,
        _state_factor(optimizer, optimizer_params),
        train,
    )
    tokens = all(a.ndim == 2 and np.issubdtype(a.dtype, np.integer) for a in arrays)
    return study.compare(plan, tokens, progress)


def _arrays(given, what):
    values = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    arrays: list[Any] = []
    flatten(values, arrays, f"layouts: {what}")
    if (what == "sample" and not arrays) or not all(isinstance(a, NDArray) for a in arrays):
        raise TypeError(f"layouts: {what} must be an NDArray or a list of NDArrays")
    return values, arrays


def _places(memory, devices):
    """Returns the devices and their bytes, the largest first."""
    if memory is None and devices is None:
        raise ValueError("layouts: pass memory=['24GB', ...], devices=, or both")
    if memory is not None and (not isinstance(memory, (list, tuple)) or not memory):
        raise ValueError(
            "layouts: memory must be a list with an entry for each device, such as ['24GB', "
            f"'12GB'], not {memory!r}"
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
        memory = [_memory_of(ctx) for ctx in devices]
    if len(memory) != len(devices):
        raise ValueError(
            f"layouts: memory must have an entry for each of the {len(devices)} devices, not "
            f"{memory!r}"
        )
    memory = [int(value) if isinstance(value, numbers.Real) else value for value in memory]
    limits = [parse_bytes(value) for value in memory]
    if not all(limits):
        wrong = next(value for value, limit in zip(memory, limits) if not limit)
        raise ValueError(
            f"layouts: memory must be numbers of bytes, or strings such as '24GB', not {wrong!r}"
        )
    order = sorted(range(len(devices)), key=lambda i: -limits[i])
    return [devices[i] for i in order], [limits[i] for i in order]


def _memory_of(ctx):
    limit = memory_stats(ctx)["limit"]
    if not limit and ctx.device_type == "gpu":
        from ...context import gpu_memory_info

        limit = gpu_memory_info(ctx.device_id)[1]
    if not limit:
        raise ValueError(
            f"layouts: {ctx} has no memory limit; pass memory=, or call mx.context.set_memory_limit"
        )
    return limit


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
            size = sum(math.prod(a.shape) * _width(a.dtype) for a in arrays_of(states))
            found[dtype] = size / (64 * 64 * _width(dtype))
        return found[dtype]

    return factor


def _width(dtype):
    name = dtype_name(dtype)
    return 2 if name == "bfloat16" else np.dtype(name).itemsize


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
    return pool_block_size(math.prod(shape) * _width(dtype))


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

    def __init__(self, net, inputs, loss, devices, limits, state_factor, train):
        self.loss, labels, arrays = loss
        self.values, self.given = (*inputs[0], *labels), len(inputs[0])
        self.inputs, self.arrays = inputs[1], [*inputs[1], *arrays]
        self.devices, self.limits = devices, limits
        self.state_factor, self.train = state_factor, train
        self.net, self.shapes = _blank_copy(net), {}
        # Infers unknown shapes, and raises the errors that all layouts would raise.
        self.alone = self.evaluate({}, None)
        self.shapes.update(
            {path: param.shape for path, param in parameters_by_path(self.net).items()}
        )

    def _signature(self, net, home):
        block = _Called(net, self.loss, self.given)
        structure = flatten(self.values, [], "The inputs")
        descs = [(a.shape, a.dtype, home, is_numpy(a)) for a in self.arrays]
        return block, Signature(block, net.name, structure, self.train), descs

    def evaluate(self, axes, plan, recompute=False):
        """Returns the Layout of a mesh and a plan. If it doesn't fit and `recompute` is True,
        values are recomputed."""
        count = math.prod(len(s) if isinstance(s, list) else s for s in axes.values())
        devices, limits = self.devices[:count], self.limits[:count]
        layout = Layout(axes, plan, devices, limits, self.shapes)
        net = _blank_copy(self.net) if axes else self.net
        layout.partition(net)
        zero = initializer.Zero()
        for param in net.collect_params().values():
            param.is_numpy = param.is_numpy or is_np_array()
            where = getattr(param, "homes", None) or param.placed or layout.devices[:1]
            param.deferred_init = (zero, list(where), zero, None, None)
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
                layout.recompute = room
        del block
        return layout

    def _compile(self, layout, net, signature, descs, budget):
        """Compiles a divided network, and sets the bytes of its layout. Returns the compiled
        programs, and the parameters among their inputs."""
        entry, used, results = signature.planned(descs, list(budget.items()))
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

    def _groups(self):
        """Returns pattern -> shape, for the large parameters."""
        found: dict[str, tuple[int, ...]] = {}
        for path, param in parameters_by_path(self.net).items():
            if is_divided_by_default(param):
                found.setdefault(self._pattern(path), param.shape)
        return found

    def _pattern(self, path):
        """Returns the pattern of a parameter. In networks of many parameters, those whose paths
        differ in numbers alone have one pattern."""
        if len(self.shapes) <= _MOST_TRIED:
            return path
        return re.sub(r"(?<![^.])\d+(?![^.])", r"\\d+", path)

    def search(self, size):
        """Returns the plan for the axis `model` of a size, or {} if none saves memory."""
        groups, plan = self._groups(), {}
        weight = dict.fromkeys(groups, 0)
        for path, param in parameters_by_path(self.net).items():
            if self._pattern(path) in groups:
                weight[self._pattern(path)] += math.prod(param.shape)
        largest = sorted(groups, key=lambda pattern: -weight[pattern])[:_MOST_TRIED]
        now = self._cost(self.alone)
        while True:
            best = None
            for pattern in largest:
                for dim in range(min(2, len(groups[pattern]))):
                    if pattern in plan or groups[pattern][dim] < size:
                        continue
                    tried = {**plan, pattern: (None,) * dim + ("model",)}
                    cost, tried = self._completed({"model": size}, tried)
                    if best is None or cost < best[0]:
                        best = cost, tried
            if best is None or best[0] >= now * 0.99:
                return plan
            now, plan = best

    def _completed(self, axes, plan):
        """Adds the parameters to a plan that are used in parts, but not stored in parts. Returns
        the cost of the completed plan, and this plan."""
        layout = self._try(axes, plan)
        if layout is None:
            return math.inf, plan
        groups = self._groups()
        more = {self._pattern(path): cut for path, cut in layout.wanted.items()}
        more = {pattern: cut for pattern, cut in more.items() if pattern in groups}
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
            for pattern, shape in self._groups().items():
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

    def compare(self, given, tokens, progress):
        found, skipped, count = [self.alone], {}, len(self.devices)
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
        # A layout that leaves devices idle is the last choice.
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
        memory = ", ".join(map(bytes_text, dict.fromkeys(self.limits)))
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
                map(bytes_text, pair)
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
