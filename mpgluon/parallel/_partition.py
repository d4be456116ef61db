"""Partitioned networks: some parameters and inputs of a network are cut along the axes of a mesh,
and the compiler divides the rest of the network accordingly (csrc/graph/partition)."""

from __future__ import annotations

import contextlib
import math
import re
from typing import Any, NamedTuple

from .. import autograd, initializer, ndarray as nd, random
from .._core import random_state
from .._internal.offloading import device_of, target
from ..base import MXNetError
from ..context import Context, computes
from ..gluon._nested import flatten, regroup
from ..gluon._tree import (
    ONE_LAYOUT,
    devices_of_groups,
    division_of,
    forget_compiled,
    own_parameters,
    parameters_by_path,
    replace_parameter,
    restored_on_errors,
    set_division,
    walk,
)
from ..gluon.block import HybridBlock
from ..gluon.parameter import Constant
from ..gluon.utils import shape_is_known
from ._tensor_parallel.parameters import Family, HomeParameter, add_parts, make_parts
from .collectives import divide

_INPUT = re.compile(r"data(\d+)?")
# Smaller parameters are not worth a message for each device and use.
_SMALLEST = 1024


def _entries(axes: Any, what: str) -> list[str]:
    """Converts an annotation to its text form: one entry for each dimension."""
    if isinstance(axes, str):
        axes = (axes,)
    if not isinstance(axes, (tuple, list)):
        raise TypeError(
            f"Mesh.partition: the axes of {what} must be a tuple with an axis of the mesh or None "
            f"for each dimension, not {axes!r}"
        )
    texts = []
    for entry in axes:
        parts = entry if isinstance(entry, (tuple, list)) else [] if entry is None else [entry]
        if not all(isinstance(part, str) for part in parts):
            raise TypeError(
                f"Mesh.partition: {entry!r} in the axes of {what} is not the name of an axis"
            )
        texts.append("+".join(parts))
    return texts


class Joined(NamedTuple):
    """A parameter that a block has in parts."""

    names: list[str]  # attributes of the parts
    axes: str  # annotation of the whole
    stored: bool  # whether it is only stored in parts
    kept: str | None  # annotation of the parts, if they are gathered into larger ones
    family: Family


class Cut(NamedTuple):
    """How a plan cuts a parameter."""

    path: str
    dim: int
    axis: str  # of the mesh
    shards: bool  # whether each part is stored in parts along the axis 'shard'
    blocks: int
    unit: int
    axes: str
    stored: bool

    def devices(self, mesh: Any, stage: int) -> list[Context]:
        """Returns the devices of the parts."""
        along = range(mesh.size("shard")) if self.shards else [0]
        return [
            mesh.device(**{"stage": stage, "shard": k, self.axis: i})
            for i in range(mesh.size(self.axis))
            for k in along
        ]


class Division:
    """How a block's own parameters, or a network's inputs, are divided. Traces depend on it, so a
    change replaces the object.

    Attributes
    ----------
    parts : dict
        name of a parameter -> `Joined`
    offloaded : dict
        name of a parameter that is stored whole on another device -> this device
    inputs : dict
        index of an input -> annotation. `every` applies to the others.
    homes : list of Context
        First device of each stage; empty without stages. Inputs on other devices are moved to the
        first stage.
    """

    def __init__(self, mesh: str, home: Context, homes: list[Context]) -> None:
        self.mesh, self.home, self.homes = mesh, home, homes
        self.parts: dict[str, Joined] = {}
        self.offloaded: dict[str, Context] = {}
        self.inputs: dict[int, str] = {}
        self.every: str | None = None

    def join(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """Replaces the parts of parameters by the whole parameters, and offloaded parameters by
        copies. In a trace, the compiler finds the stored arrays through the annotation, and nothing
        is joined or copied here."""
        arrays = dict(arrays)
        for name in self.offloaded:
            here = arrays[name].as_in_context(self.home)
            arrays[name] = nd.contrib.sharded(here, mesh=self.mesh, stored=True)
        for name, part in self.parts.items():
            pieces = [arrays.pop(key).as_in_context(self.home) for key in part.names]
            whole = part.family.join(pieces)
            if part.kept is not None:
                whole = nd.contrib.sharded(whole, axes=part.kept, mesh=self.mesh, stored=True)
            arrays[name] = nd.contrib.sharded(
                whole, axes=part.axes, mesh=self.mesh, stored=part.stored
            )
        return arrays

    def refuse_symbols(self, who: str) -> None:
        """Raises MXNetError if parameters are divided, because symbols have whole parameters."""
        if self.parts:
            raise MXNetError(
                f"{who}: a block whose parameters are divided (Mesh.partition) cannot be called on "
                "Symbols; save the network with mx.parallel.save, load it into one that is "
                "not partitioned, and call that"
            )

    def annotate(self, arrays: list[Any]) -> list[Any]:
        """Annotates the inputs of a network in a trace."""
        if self.inputs and max(self.inputs) >= len(arrays):
            raise MXNetError(
                f"Mesh.partition: the plan has an entry for the input data{max(self.inputs)}, but "
                f"the network was called with {len(arrays)} arrays; they are data0, data1, ..."
            )
        result = []
        for index, array in enumerate(arrays):
            axes = self.inputs.get(index, self.every)
            if axes is not None and (array.ndim or index in self.inputs):
                if self.homes and array.context not in self.homes:
                    array = array.as_in_context(self.homes[0])
                array = nd.contrib.sharded(array, axes=axes, mesh=self.mesh)
            result.append(array)
        return result

    def annotate_arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Annotates the arguments of a network that another block calls in a trace."""
        if self.every is None and not self.inputs:
            return args
        arrays: list[Any] = []
        structure = flatten(args, arrays, "The inputs")
        return regroup(structure, iter(self.annotate(arrays)))


def check_options(partition: str, sums: str, context: str, zero: int) -> list[str]:
    """Checks options of `Mesh.partition`. Returns the words for them in the text form of a mesh."""
    if partition not in ("fast", "exact"):
        raise ValueError(f"Mesh.partition: partition must be 'fast' or 'exact', not {partition!r}")
    if sums not in ("order", "tree"):
        raise ValueError(f"Mesh.partition: sums must be 'order' or 'tree', not {sums!r}")
    if sums == "tree" and partition == "exact":
        raise ValueError(
            "Mesh.partition: sums='tree' gives the same bits on every number of devices, but "
            "partition='exact' asks for the bits of an undivided network; choose one of them"
        )
    if context not in ("auto", "gather", "ulysses", "ring"):
        raise ValueError(
            "Mesh.partition: context must be 'auto', 'gather', 'ulysses' or 'ring', not "
            f"{context!r}"
        )
    if context == "ring" and (partition == "exact" or sums == "tree"):
        option = "partition='exact'" if partition == "exact" else "sums='tree'"
        raise ValueError(
            f"Mesh.partition: context='ring' is not possible with {option}, because it adds up "
            "the exponentials of a row by parts of the keys, so bits depend on the number of "
            "devices; use context='auto'"
        )
    if zero == 1:
        raise ValueError(
            "Mesh.partition: zero must be 3 or 2; for level 1, where only the optimizer states "
            "are divided, train replicas (Mesh.place with an axis 'data')"
        )
    if zero not in (2, 3):
        raise ValueError(f"Mesh.partition: zero must be 3 or 2, not {zero!r}")
    words = {"exact": partition == "exact", "tree": sums == "tree", "keep": zero == 2}
    words[context] = context != "auto"
    return [word for word, on in words.items() if on]


def mesh_text(mesh: Any, options: list[str]) -> str:
    """Returns the text form of a mesh, which the compiler parses (csrc/graph/partition/mesh.h)."""
    names = [
        f"{axis}={':'.join(map(str, mesh.weights[axis])) if axis in mesh.weights else size}"
        for axis, size in mesh.axes.items()
        if axis != "stage"
    ]
    stages = range(mesh.size("stage"))
    if len(stages) > 1:
        names.insert(0, f"stage={len(stages)}")
    devices = [str(ctx) for stage in stages for ctx in mesh.devices_of_stage(stage)]
    return ";".join([",".join(names), ",".join(devices), *options])


def _fits(mesh, axis, size):
    """True if each device along an axis gets a part of `size` elements."""
    parts = divide(size, mesh.size(axis), mesh.weights.get(axis))
    return all(end > begin for begin, end in parts)


def is_state(param: Any) -> bool:
    """True if a layer updates the parameter in its forward pass, as the running statistics of
    BatchNorm. The updates of a whole that is joined from parts would be lost."""
    return not param.differentiable and not param.fixed


def is_divided_by_default(param: Any) -> bool:
    """True if a parameter is large enough to be divided, and no state of a layer."""
    return math.prod(param.shape) >= _SMALLEST and not is_state(param)


def _check_known(param, path):
    if not shape_is_known(param.shape):
        raise MXNetError(
            f"Mesh.partition: the shape of '{path}' is not known yet; give its layer in_units or "
            "in_channels, or run a batch through the network first"
        )
    if param.grad_stype != "default" or param.stype != "default":
        raise MXNetError(
            f"Mesh.partition: '{path}' has row_sparse storage or gradients, which cannot be divided"
        )


class _Plan:
    """The annotations of a network. `offload` is the device of parameters that are not cut, or
    None."""

    def __init__(self, mesh, net, plan, offload):
        self.mesh, self.net, self.offload = mesh, net, offload
        self.parameters: dict[str, tuple[list[str], bool]] = {}  # path -> (entries, stored)
        self.inputs: dict[int, str] = {}
        self.every = None
        by_path = parameters_by_path(net)
        if plan is None:
            self._by_default(by_path)
        else:
            self._by_patterns(by_path, plan)
        self.offloaded = set() if offload is None else self._to_offload(by_path)

    def _to_offload(self, by_path):
        """Returns the parameters that are large enough to be stored on the other device."""
        found = set()
        for path, param in by_path.items():
            if path in self.parameters:
                continue
            _check_known(param, path)
            if is_divided_by_default(param):
                found.add(param)
        return found

    def _by_default(self, by_path):
        batch = [axis for axis in ("data", "shard") if self.mesh.size(axis) > 1]
        if not batch:
            if self.offload is not None:
                return
            raise ValueError(
                "Mesh.partition: a mesh with one device along 'data' and 'shard' needs a plan, "
                "such as {'.*qkv.weight': 'model'}, or offload"
            )
        self.every = "+".join(batch)
        if "shard" not in batch or self.offload is not None:
            return
        for path, param in by_path.items():
            _check_known(param, path)
            if is_divided_by_default(param) and _fits(self.mesh, "shard", param.shape[0]):
                self.parameters[path] = ["shard"], True

    def _by_patterns(self, by_path, plan):
        for pattern, axes in plan.items():
            entries = _entries(axes, repr(pattern))
            for entry in entries:
                for axis in entry.split("+") if entry else ():
                    name = axis.partition(":")[0]
                    if name not in self.mesh.axes or name == "stage":
                        raise ValueError(
                            f"Mesh.partition: '{pattern}' names the axis {name!r}, but the mesh "
                            f"has {', '.join(self.mesh.axes)}"
                        )
            found = _INPUT.fullmatch(pattern)
            if found:
                self.inputs[int(found[1] or 0)] = ",".join(entries)
                continue
            try:
                match = re.compile(pattern).fullmatch
            except re.error as error:
                raise ValueError(
                    f"Mesh.partition: '{pattern}' is not a regular expression: {error}; '.*' "
                    "matches any text"
                ) from error
            hits = [path for path, p in by_path.items() if match(path) or match(p.name)]
            if not hits:
                raise ValueError(
                    f"Mesh.partition: '{pattern}' does not match the whole path or name of any "
                    f"parameter; the parameters are {', '.join(by_path)}. Inputs are data0, "
                    "data1, ..."
                )
            for path in hits:
                self.parameters.setdefault(path, (entries, entries == ["shard"]))


def _cut_of(mesh, entries, path, param):
    """Returns (axis of the parameter, axis of the mesh, whether its parts are cut along 'shard',
    blocks, unit) of an annotation."""
    if is_state(param):
        raise MXNetError(
            f"Mesh.partition: '{path}' is updated in the forward pass (differentiable=False) and "
            "cannot be cut; use a pattern that does not match it"
        )
    if len(entries) > len(param.shape):
        raise ValueError(
            f"Mesh.partition: the plan names {len(entries)} dimensions of '{path}', whose shape is "
            f"{param.shape}"
        )
    cut = [(dim, entry) for dim, entry in enumerate(entries) if entry]
    if len(cut) != 1 or "+" in cut[0][1].removesuffix("+shard") or cut[0][1] == "data+shard":
        raise MXNetError(
            f"Mesh.partition: parameter '{path}' must be cut along one axis of the mesh in one "
            "dimension, or along one axis and 'shard' in the same dimension, as by "
            f"{{'{path}': [('model', 'shard')]}}, not "
            f"({', '.join(entry or 'None' for entry in entries)})"
        )
    dim, entry = cut[0]
    match = re.fullmatch(r"(\w+)(?::([1-9]\d*))?(?::([1-9]\d*))?", entry.removesuffix("+shard"))
    if match is None:
        raise ValueError(
            f"Mesh.partition: {entry!r} in the axes of '{path}' is malformed; expected 'axis', "
            "'axis:blocks' or 'axis:blocks:unit' with positive integers"
        )
    axis, blocks, unit = match[1], int(match[2] or 1), int(match[3] or 1)
    shards = entry.endswith("+shard")
    if shards:
        _check_shards(mesh, axis, param.shape[dim] // (blocks * unit), path)
    return dim, axis, shards, blocks, unit


def _check_shards(mesh, axis, size, path):
    """Checks that parts along an axis of the mesh can be cut again along 'shard'."""
    for name in (axis, "shard"):
        if name in mesh.weights:
            raise MXNetError(
                f"Mesh.partition: '{path}' cannot be cut along both '{axis}' and 'shard', because "
                f"the shares of '{name}' are not equal; cut it along one of them"
            )
    count = mesh.size(axis) * mesh.size("shard")
    if axis == "shard" or size % count:
        raise ValueError(
            f"Mesh.partition: '{path}' cannot be cut along '{axis}' and 'shard', because "
            + (
                "these are the same axis"
                if axis == "shard"
                else f"{size} is not a multiple of {count}"
            )
        )


def _values_to(param, family):
    """Gives the parts of a parameter its settings and its value."""
    for part in family.members:
        part.lr_mult, part.wd_mult = param.lr_mult, param.wd_mult
        part.grad_req = param.grad_req
    if param.arrays is not None:
        value = param.reduced()
        with random.calls_at(random_state()):
            for part in family.members:
                part.initialize(initializer.Zero())
                part.set_data(value)
    elif param.deferred_init:
        init, _, default_init, value, key = param.deferred_init
        for part in family.members:
            part.deferred_init = (init, part.homes, default_init, value, key)
            part.finish_deferred_init()


def device_of_parameters(mesh: Any, offload: Any) -> Context | None:
    """Returns the device that the argument `offload` of `Mesh.partition` names."""
    if offload is None:
        return None
    ctx = device_of("Mesh.partition", "parameters", target("Mesh.partition", "parameters", offload))
    if not isinstance(ctx, Context):
        raise TypeError(
            "Mesh.partition: offload={'parameters': ...} must be a device or the path of a "
            f"directory, not {ctx!r}"
        )
    if ctx.rank is not None or computes(ctx) in mesh.devices:
        raise MXNetError(
            f"Mesh.partition: parameters cannot be offloaded to {ctx}, which "
            + ("belongs to a rank" if ctx.rank is not None else "is a device of the mesh")
            + "; use another device of this process"
        )
    remote = [device for device in mesh.devices if device.rank is not None]
    if remote:
        raise MXNetError(
            f"Mesh.partition: offload={{'parameters': ...}} cannot be combined with a mesh over "
            f"ranks, and {remote[0]} belongs to a rank; omit offload, or use a mesh of devices of "
            "this process"
        )
    return ctx


def partition(
    mesh: Any,
    net: HybridBlock,
    plan: dict[str, Any] | None,
    options: list[str],
    stages: dict[Any, int],
    offload: Any,
) -> None:
    """See `Mesh.partition`. `options` comes from `check_options`, and `stages` has the stage of
    each block."""
    elsewhere = device_of_parameters(mesh, offload)
    blocks = {"": net, **{path: block for _, _, path, block in walk(net)}}
    for path, block in blocks.items():
        if not isinstance(block, HybridBlock):
            raise MXNetError(
                f"Mesh.partition: '{path or net.name}' is a {type(block).__name__}; only "
                "HybridBlocks can be compiled, and so partitioned"
            )
        if division_of(block) is not None:
            raise MXNetError(f"Mesh.partition: '{path or net.name}' is partitioned already")
        if devices_of_groups(block) is not None and mesh.size("stage") == 1:
            raise MXNetError(
                f"Mesh.partition: '{path or net.name}' is placed on devices (Mesh.place, "
                f"net.place, group2ctx); {ONE_LAYOUT}, except by a mesh with an axis 'stage'"
            )
        for name, param in own_parameters(block).items():
            if param.replaced:
                raise MXNetError(
                    f"Mesh.partition: '{f'{path}.{name}'.lstrip('.')}' is shared with another "
                    f"network: {param.replaced}; partition one block that contains both networks"
                )
    work = _Plan(mesh, net, plan, elsewhere)
    by_path = parameters_by_path(net)
    text, homes = mesh_text(mesh, options), mesh.line("stage")
    cuts: dict[Any, Cut] = {}
    for path, (entries, stored) in work.parameters.items():
        param = by_path[path]
        _check_known(param, path)
        cut = Cut(path, *_cut_of(mesh, entries, path, param), ",".join(entries), stored)
        cuts.setdefault(param, cut)
        count, weights = len(cut.devices(mesh, 0)), mesh.weights.get(cut.axis)
        try:
            Family(path, param.shape, cut.dim, count, cut.blocks, cut.unit, weights)
        except ValueError as error:
            raise ValueError(f"Mesh.partition: {error}") from error
    for param in by_path.values():
        if isinstance(param, HomeParameter):
            raise MXNetError(
                f"Mesh.partition: '{param.name}' belongs to a layer that is split over devices "
                "already (Mesh.place, mx.parallel.shard); partition the network with plain layers"
            )
    stage_of: dict[Any, int] = {}  # of each parameter: the stage of the first block that has it
    for block in blocks.values():
        for param in own_parameters(block).values():
            stage_of.setdefault(param, stages[block])

    def new_division(block):
        return Division(text, homes[stages[block]], homes if len(homes) > 1 else [])

    params = list(net.collect_params().values())
    with autograd.pause(), _undone_on_errors(blocks.values(), params):
        for param in params:
            if param in cuts:
                continue
            device = elsewhere if param in work.offloaded else homes[stage_of.get(param, 0)]
            if param.arrays is not None or param.deferred_init:
                param.reset_ctx(device)
            param.placed = [device]
        for param, cut in cuts.items():
            _divide(mesh, blocks, param, cut, stage_of.get(param, 0), new_division)
        for block in dict.fromkeys(blocks.values()):
            own = [n for n, p in own_parameters(block).items() if p in work.offloaded]
            if own:
                division = division_of(block) or new_division(block)
                division.offloaded = dict.fromkeys(own, elsewhere)
                set_division(block, division)
    division = division_of(net) or new_division(net)
    division.inputs, division.every = work.inputs, work.every
    set_division(net, division)
    for block in blocks.values():
        forget_compiled(block)


@contextlib.contextmanager
def _undone_on_errors(blocks, params):
    """If the body raises an error, such as MemoryError, restores the blocks, and moves the values
    of the parameters back."""
    former = [(p, list(p.arrays or ()), p.placed, p.deferred_init) for p in params]
    try:
        with restored_on_errors(dict.fromkeys(blocks)):
            yield
    except BaseException:
        for param, devices, placed, deferred in former:
            if param.replaced:
                _, parts = param.joined
                param.joined = param.replaced = None
                if devices:
                    pieces = [part.reduced().as_in_context(devices[0]) for part in parts]
                    with random.calls_at(random_state()):
                        param.initialize(initializer.Zero(), devices)
                    param.set_data(parts[0].family.join(pieces))
            elif devices and list(param.arrays) != devices:
                param.reset_ctx(devices)
            param.deferred_init, param.placed = deferred, placed
        raise


def _divide(mesh, blocks, param, cut, stage, new_division):
    """Replaces a parameter by its parts, in all blocks that have it. The parts are on the devices
    of `stage`."""
    owners = [
        (block, name)
        for block in dict.fromkeys(blocks.values())
        for name, own in own_parameters(block).items()
        if own is param
    ]
    if not owners:
        raise MXNetError(f"Mesh.partition: no block has the parameter '{cut.path}' as its own")
    first, name = owners[0]
    # The parts get their values before they replace the parameter, so the network can be used if an
    # error or an interrupt ends the call here.
    family = make_parts(
        first,
        name,
        param.shape,
        cut.dim,
        cut.devices(mesh, stage),
        cut.blocks,
        cut.unit,
        weights=mesh.weights.get(cut.axis),
        init=param.init,
        dtype=param.dtype,
        differentiable=param.differentiable and not isinstance(param, Constant),
    )
    family.name_in_files = param.name
    _values_to(param, family)
    with restored_on_errors(block for block, _ in owners):
        _replace(owners, cut, family, new_division)
    param.joined = mesh.device(stage=stage), family.members
    param.arrays = param.gradients = None
    param.deferred_init = ()
    param.replaced = f"Mesh.partition has divided '{cut.path}' along "
    param.replaced += f"'{cut.axis}'" + (" and 'shard'" if cut.shards else "")


def _replace(owners, cut, family, new_division):
    """Replaces a parameter by its parts in the blocks that own it under the given names."""
    first, name = owners[0]
    add_parts(first, name, family)
    names = [f"shard{i}_{name}" for i in range(len(family.members))]
    for block, own in owners:
        if block is not first:
            for key, part in zip(names, family.members):
                setattr(block, key, part)
        replace_parameter(block, own, names)
        former = division_of(block)
        division = new_division(block)
        if former is not None:
            division.parts.update(former.parts)
        axes, kept = (cut.axes.replace("+shard", ""), cut.axes) if cut.shards else (cut.axes, None)
        division.parts[own] = Joined(names, axes, cut.stored, kept, family)
        set_division(block, division)
