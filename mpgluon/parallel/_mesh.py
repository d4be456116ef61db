"""Device meshes with named axes, and networks that are placed on them: replicated along one axis
and divided into stages along another."""

from __future__ import annotations

import copy
import itertools
import math
from typing import TYPE_CHECKING, Any

from .. import autograd, ndarray as nd
from .._internal import make
from .._internal.device_groups import Groups, is_placement
from ..base import MXNetError
from ..context import Context, cpu, gpu, num_gpus
from ..gluon._tree import (
    ONE_LAYOUT,
    children,
    devices_of_groups,
    division_of,
    forget_compiled,
    group_of,
    own_parameters,
    refuse_partitioned,
    set_devices_of_groups,
    set_group,
    walk,
)
from ..gluon.block import Block
from ..gluon.nn import HybridSequential, Sequential
from ..gluon.utils import brief, shape_is_known, split_data
from ._partition import check_options, partition as divide_network
from ._tensor_parallel.layers import SplitLayer, lie_on
from ._tensor_parallel.parameters import HomeParameter
from ._tensor_parallel.splitting import every_layer, matches, split_layers
from .collectives import divide

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

__all__ = ["Mesh"]

AXES = ("data", "stage", "model", "shard", "expert", "context")
_GROUP = "mesh stage "
# MPG_MESH_PARTS in csrc/graph/partition/mesh.h
_MOST_PLACES = 512
_MOST_SHARES = 1 << 30  # MPG_MESH_SHARES in csrc/graph/partition/mesh.h


class Mesh:
    """Devices arranged along named axes.

    Parameters
    ----------
    axes : dict of str to int
        ``{'data': 2, 'stage': 2}``: the number of devices along each axis. A network is replicated
        along ``data``, its stages are placed along ``stage``, and its layers are split along
        ``model``. `partition` also uses ``shard``, ``expert`` and ``context``. Missing axes have
        size 1. A list instead of a number, as in ``{'shard': [3, 1]}``, gives the devices unequal
        shares of the arrays that `partition` divides along the axis.
    devices : list of Context, optional
        Devices; their number must be the product of the sizes. The last axis varies fastest. By
        default, the first GPUs, or the CPU devices ``cpu(0), cpu(1), ...`` if there are no GPUs.

    Raises
    ------
    TypeError, ValueError
        If `axes` or `devices` do not have the form above, or a device is named twice.
    MXNetError
        If the number of devices does not match the mesh.

    Examples
    --------
    Two replicas of a network in two stages, on four devices:

    >>> mesh = mx.parallel.Mesh({'data': 2, 'stage': 2}, [mx.cpu(i) for i in range(4)])
    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Dense(8, in_units=4), mx.gluon.nn.Dense(2, in_units=8))
    >>> _ = mesh.place(net)             # or net.place(mesh), before or after initialize()
    >>> net.initialize()
    >>> trainer = mx.gluon.Trainer(net.collect_params(), 'sgd')
    >>> data, label = mx.nd.ones((6, 4)), mx.nd.zeros((6, 2))
    >>> for x, y in zip(mesh.split_and_load(data), mesh.split_and_load(label, stage=-1)):
    ...     with mx.autograd.record():
    ...         loss = mx.gluon.loss.L2Loss()(net(x), y)
    ...     loss.backward()
    >>> trainer.step(data.shape[0])
    >>> net[0].weight.list_ctx(), net[1].weight.list_ctx()
    ([cpu(0), cpu(2)], [cpu(1), cpu(3)])
    """

    def __init__(self, axes: dict[str, int], devices: Sequence[Context] | None = None) -> None:
        if not isinstance(axes, dict) or not axes:
            raise TypeError(
                "Mesh: axes must be a dict of names to sizes, as in {'data': 2, 'stage': 2}, "
                f"not {axes!r}"
            )
        for name, size in axes.items():
            if name not in AXES:
                raise ValueError(f"Mesh: unknown axis {name!r}; expected one of {', '.join(AXES)}")
            for number in size if isinstance(size, (list, tuple)) and size else [size]:
                if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                    raise ValueError(
                        f"Mesh: axis {name!r} must have a positive integer number of devices, or a "
                        f"list with the share of each device, not {size!r}"
                    )
            if isinstance(size, (list, tuple)) and sum(size) > _MOST_SHARES:
                raise ValueError(
                    f"Mesh: the shares of axis {name!r} add up to {sum(size)}, more than 2^30; "
                    "divide them by a common factor"
                )
        # The shares of the devices along axes whose devices have unequal shares.
        self.weights: dict[str, list[int]] = {
            name: list(size)
            for name, size in axes.items()
            if isinstance(size, (list, tuple)) and len(set(size)) > 1
        }
        self.axes: dict[str, int] = {
            name: len(size) if isinstance(size, (list, tuple)) else size
            for name, size in axes.items()
        }
        axes = self.axes
        count = math.prod(axes.values())
        shape = " x ".join(f"{name} {size}" for name, size in axes.items())
        if devices is None:
            there = num_gpus()
            if there and there < count:
                raise MXNetError(
                    f"Mesh: {shape} needs {count} devices, but this machine has {there} GPUs; "
                    "pass the devices with devices="
                )
            devices = [(gpu if there else cpu)(i) for i in range(count)]
        devices = list(devices)
        if not all(isinstance(ctx, Context) for ctx in devices):
            raise TypeError(f"Mesh: devices must be a list of Contexts, not {devices!r}")
        if len(devices) != count:
            raise MXNetError(
                f"Mesh: {shape} needs {count} devices, but {len(devices)} were given: {devices}"
            )
        if len(set(devices)) != count:
            twice = next(ctx for i, ctx in enumerate(devices) if ctx in devices[:i])
            raise ValueError(f"Mesh: {twice} is given twice; the devices must be unique")
        absent = [
            ctx for ctx in devices if ctx.device_type == "gpu" and ctx.device_id >= num_gpus()
        ]
        if absent:
            raise MXNetError(
                f"Mesh: {absent[0]} does not exist: this machine has {num_gpus()} GPUs"
            )
        self.devices = devices
        self._at = dict(zip(itertools.product(*map(range, self.axes.values())), devices))

    def __repr__(self) -> str:
        return f"Mesh({self.axes}, devices={self.devices})"

    def size(self, axis: str) -> int:
        """Returns the number of devices along an axis, or 1 if the axis is missing. Raises
        ValueError for unknown axes.

        Examples
        --------
        >>> mesh = mx.parallel.Mesh({'stage': 2}, [mx.cpu(0), mx.cpu(1)])
        >>> mesh.size('stage'), mesh.size('data')
        (2, 1)
        """
        if axis not in AXES:
            raise ValueError(f"Mesh: unknown axis {axis!r}; expected one of {', '.join(AXES)}")
        return self.axes.get(axis, 1)

    def device(
        self,
        data: int = 0,
        stage: int = 0,
        model: int = 0,
        shard: int = 0,
        expert: int = 0,
        context: int = 0,
    ) -> Context:
        """Returns the device at the given indices; negative indices count from the end. Raises
        IndexError if an index is out of range.

        Examples
        --------
        >>> mesh = mx.parallel.Mesh({'data': 2, 'stage': 2}, [mx.cpu(i) for i in range(4)])
        >>> mesh.device(data=1), mesh.device(data=1, stage=-1)
        (cpu(2), cpu(3))
        """
        at = dict(zip(AXES, (data, stage, model, shard, expert, context)))
        for axis, index in at.items():
            size = self.size(axis)
            if not -size <= index < size:
                raise IndexError(
                    f"Mesh: index {index} is out of range: axis {axis!r} has {size} devices"
                )
        return self._at[tuple(at[axis] % size for axis, size in self.axes.items())]

    def line(self, axis: str, data: int = 0, stage: int = 0, model: int = 0) -> list[Context]:
        """Returns the devices along one axis, at fixed indices along the other axes.

        Examples
        --------
        >>> mesh = mx.parallel.Mesh({'data': 2, 'stage': 2}, [mx.cpu(i) for i in range(4)])
        >>> mesh.line('stage', data=1)
        [cpu(2), cpu(3)]
        """
        at = {"data": data, "stage": stage, "model": model}
        return [self.device(**{**at, axis: i}) for i in range(self.size(axis))]

    def devices_of_stage(self, stage: int) -> list[Context]:
        """Returns the devices of a stage, in the order of the mesh.

        Examples
        --------
        >>> mesh = mx.parallel.Mesh({'data': 2, 'stage': 2}, [mx.cpu(i) for i in range(4)])
        >>> mesh.devices_of_stage(0)
        [cpu(0), cpu(2)]
        """
        if "stage" not in self.axes:
            return list(self.devices)
        axis = list(self.axes).index("stage")
        return [ctx for at, ctx in self._at.items() if at[axis] == stage]

    def split_and_load(
        self, data: Any, batch_axis: int = 0, even_split: bool = True, stage: int = 0
    ) -> list[nd.NDArray]:
        """Returns a slice of `data` for each replica, on the replica's device of the given stage.
        Labels belong on the last stage, -1.

        For inputs, this is the same as ``gluon.utils.split_and_load(data, mesh)``.

        Parameters
        ----------
        data : NDArray, or any argument of `nd.array`
            The whole batch.
        batch_axis : int, default 0
            Axis to divide.
        even_split : bool, default True
            Whether a batch that cannot be divided evenly raises an error. Otherwise, the first
            replicas get one more row.
        stage : int, default 0
            Stage on whose devices the slices are placed; negative numbers count from the end.

        Returns
        -------
        list of NDArray
            One slice for each replica.

        Raises
        ------
        ValueError
            If the batch cannot be divided among the replicas.

        Examples
        --------
        >>> mesh = mx.parallel.Mesh({'data': 2}, [mx.cpu(0), mx.cpu(1)])
        >>> [(x.shape, x.context) for x in mesh.split_and_load(mx.nd.ones((6, 4)))]
        [((3, 4), cpu(0)), ((3, 4), cpu(1))]
        """
        devices = self.line("data", stage=stage)
        if not isinstance(data, nd.NDArray):
            data = make.array(data, ctx=devices[0])
        return [
            part.as_in_context(ctx)
            for part, ctx in zip(split_data(data, len(devices), batch_axis, even_split), devices)
        ]

    # Networks

    def place(
        self,
        net: Block,
        stages: Sequence[Any] | dict[Any, int] | None = None,
        split: dict[str, Any] | None = None,
    ) -> Block:
        """Places a network: each parameter is copied to the device of its stage in every replica,
        and layers are split along `model`.

        Calling the network with an input on a device of replica i runs it on that replica's
        devices; arrays are moved between stages. If called before ``net.initialize()``, parameters
        are initialized on their devices; if called after it, their values are moved.

        Parameters
        ----------
        net : Block
            The network. Must not be placed by device groups of its own
            (``AttrScope(ctx_group=...)``).
        stages : list or dict, optional
            A list with the descendants of `net` in each stage, given as blocks or as paths such as
            ``'features.0'``. Alternatively, a dict from paths to stage numbers. Descendants of a
            block belong to its stage. Blocks without a stage run on the device of their first
            input, and their parameters are on stage 0. By default, the network is treated as a
            chain of its children (nested ``HybridSequential`` are expanded) and cut into stages
            with about the same parameter bytes.
        split : dict, optional
            How layers are split over the devices along ``model``: name patterns as in `shard`. By
            default, splits every layer that supports it and has at least as many units (channels,
            rows, cells) as there are devices: Dense and Conv2D by 'column', Embedding by 'vocab',
            LSTM by 'gates'. Other layers are on the first device of their stage. Existing layers of
            `mx.parallel` move to the stage's devices. Without an axis ``model``, nothing is split.

        Returns
        -------
        Block
            `net`.

        Raises
        ------
        MXNetError
            If `stages` names an unknown block, leaves a stage empty, or assigns a block to two
            stages, or if a layer cannot be split.
        ValueError
            If a pattern of `split` matches nothing.

        Examples
        --------
        >>> mesh = mx.parallel.Mesh({'stage': 2}, [mx.cpu(0), mx.cpu(1)])
        >>> net = mx.gluon.nn.HybridSequential()
        >>> net.add(mx.gluon.nn.Dense(8, in_units=4), mx.gluon.nn.Dense(2, in_units=8))
        >>> _ = mesh.place(net, stages={'0': 0, '1': 1})
        >>> net.initialize()
        >>> net(mx.nd.ones((3, 4))).context
        cpu(1)
        """
        if not isinstance(net, Block):
            raise TypeError(f"Mesh.place: expected a Block, not {type(net).__name__}")
        refuse_inner(net, "Mesh.place", self)
        refuse_partitioned(net, "Mesh.place", ONE_LAYOUT)
        assigned = self._assign(net, stages, "Mesh.place")
        count, stage_of = self.size("model"), _stages(net, assigned)
        for block in stage_of:
            if isinstance(block, SplitLayer) and len(block.ctx) != count:
                raise MXNetError(
                    f"Mesh.place: layer '{block.name}' is split over {len(block.ctx)} devices, but "
                    f"the mesh has {count} along 'model'"
                )
        work = (
            {}
            if count == 1
            else every_layer(net, count)
            if split is None
            else matches(net, split, "Mesh.place")
        )
        made = split_layers(
            net, work, lambda layer: self.line("model", stage=stage_of[layer]), "Mesh.place"
        )
        assigned = {made.get(block, block): stage for block, stage in assigned.items()}
        forget_placement(net)
        _set_stages(assigned)
        for block, stage in _stages(net, assigned).items():
            if isinstance(block, SplitLayer):
                lines = [
                    self.line("model", data=replica, stage=stage)
                    for replica in range(self.size("data"))
                ]
                lie_on(block, lines)
        replicas = Replicas([self._groups(replica) for replica in range(self.size("data"))], self)
        set_devices_of_groups(net, replicas)
        homes = replicas.homes(net)
        with autograd.pause():
            for param in net.collect_params().values():
                param.floating = False
                if param.arrays is not None or param.deferred_init:
                    if param.list_ctx() != homes[param]:
                        param.reset_ctx(homes[param])
                param.placed = _MeshDevices(homes[param], replicas)
        return net

    def partition(
        self,
        net: Block,
        plan: dict[str, Any] | None = None,
        partition: str = "fast",
        sums: str = "order",
        leaves: int | dict[str, int] = 4,
        context: str = "auto",
        stages: Sequence[Any] | dict[Any, int] | None = None,
        offload: dict[str, Context | str | os.PathLike[str]] | None = None,
        zero: int = 3,
    ) -> Block:
        """Divides a hybridized network over the devices of the mesh.

        The plan says how a few parameters and inputs are cut. When the network is compiled, the
        cuts spread through its operators: an operator whose inputs are cut computes a part on each
        device, and arrays are copied, gathered or summed where the cuts change. Other operators
        run on the first device. The network's code, inputs and results stay the same; a
        call takes whole arrays and returns them on the first device.

        Divided parameters are replaced by their parts, ``shard0_weight``, ``shard1_weight``, ...,
        each with its gradient and optimizer states on its device. Create the Trainer afterwards.

        On a mesh with an axis ``stage``, the blocks of the network are placed on stages, and each
        stage is divided over its own devices. A stage's first device computes its undivided
        operators. Inputs may be on any device, and results are on the first device of their stage.

        Parameters
        ----------
        net : HybridBlock
            Network whose blocks are all HybridBlocks.
        plan : dict, optional
            Maps regular expressions for parameters (paths such as ``encoder.0.qkv.weight``, or
            names), and inputs (``data0``, ``data1``, ...), to tuples with an axis of the mesh, or
            None, for each dimension: ``{'.*qkv.weight': ('model', None), 'data0': 'data'}``.
            Trailing None can be omitted. ``('data', 'shard')`` as an entry cuts an input along
            two axes. ``'model:3'`` cuts each of three equal blocks of a dimension (queries, keys
            and values), and ``'model:3:64'`` cuts them in multiples of 64 (a head).
            Parameters cut along ``shard`` alone are stored in parts, and gathered when they are
            used (fully sharded data parallelism). ``[('model', 'shard')]`` gathers parts.
            By default, the first dimension of each input is cut along ``data`` and ``shard``, and
            all parameters that are large enough are stored in parts along ``shard``.
        partition : {'fast', 'exact'}, default 'fast'
            'exact' raises an error when the network is compiled if an operator would not compute
            the same bits as on one device: if it sums over a divided dimension, or its gradient
            does.
        sums : {'order', 'tree'}, default 'order'
            How sums over divided dimensions are computed. 'order' adds one partial sum per device,
            so bits depend on the number of devices. 'tree' divides each axis into `leaves`, which
            the devices share out, and adds them up by a binary tree. Networks, losses and
            gradients then have the same bits for every number of devices, one included.
        leaves : int or dict of str to int, default 4
            Number of leaves of each axis of the mesh, for ``sums='tree'``; at least the number of
            devices. More leaves mean more and smaller calls of each operator.
        context : {'auto', 'gather', 'ulysses', 'ring'}, default 'auto'
            How attention is computed if its sequences are cut along time (context parallelism).
            'gather' computes the rows of a part of the queries on each device, and gathers keys
            and values there. 'ulysses' computes a part of the heads on each device: an all-to-all
            cuts queries, keys and values along heads, and another one cuts the results along time.
            It needs at least one key head for each device. 'auto' takes, for each attention, the
            one of these two that copies fewer bytes. 'ring' cuts keys and values along time as
            well. Each device receives one part of them after another, and merges the results of
            the parts (ring attention), so that no device holds all keys.
        stages : list or dict, optional
            The blocks of each stage, as in `place`. By default, a network that `place` has put on
            as many stages keeps them, and other networks are cut as by `place`.
        offload : dict, optional
            ``{'parameters': mx.cpu(1)}`` stores the parameters that the plan does not cut on this
            device, except for small ones. They are copied to the devices of the mesh before each
            use, in both passes, and freed afterwards. Their gradients and optimizer states are on
            the other device. A path in place of the device stores them in files there
            (`context.file_device`). One device will do: ``Mesh({'data': 1}, [mx.gpu(0)])``.
        zero : {3, 2}, default 3
            The ZeRO level of parameters that are stored in parts along ``shard``. 3 gathers them
            for each use, in both passes. 2 keeps them whole from the forward to the backward pass,
            which saves a gather, and needs 4 bytes more for each float32 parameter.

        Returns
        -------
        HybridBlock
            `net`.

        Raises
        ------
        ValueError
            If an option is unknown, a pattern matches nothing, names an unknown axis, or a
            dimension is too small.
        MXNetError
            If the network contains Blocks that are not HybridBlocks, is partitioned or placed
            already, or has parameters of unknown shapes.

        Examples
        --------
        >>> mesh = mx.parallel.Mesh({'model': 2}, [mx.cpu(0), mx.cpu(1)])
        >>> net = mx.gluon.nn.HybridSequential()
        >>> net.add(mx.gluon.nn.Dense(8, in_units=4, activation='relu'))
        >>> net.add(mx.gluon.nn.Dense(2, in_units=8))
        >>> net.initialize()
        >>> _ = mesh.partition(net, {'0.weight': 'model', '1.weight': (None, 'model')})
        >>> net.hybridize()
        >>> net(mx.nd.ones((3, 4))).shape, net[0].shard1_weight.list_ctx()
        ((3, 2), [cpu(1)])
        """
        if not isinstance(net, Block):
            raise TypeError(f"Mesh.partition: expected a Block, not {type(net).__name__}")
        options = check_options(partition, sums, context, zero)
        refuse_inner(net, "Mesh.partition", self)
        mesh = self._with_leaves(leaves) if sums == "tree" else self
        count = self.size("stage")
        if count == 1:
            if stages is not None:
                raise ValueError("Mesh.partition: stages= needs a mesh with an axis 'stage'")
            divide_network(mesh, net, plan, options, _stages(net, {}), offload)
            return net
        if len(self.axes) == 1:
            raise ValueError("Mesh.partition: the mesh has only the axis 'stage'; use Mesh.place")
        assigned = _placed_stages(net, count) if stages is None else None
        if assigned is None:
            assigned = self._assign(net, stages, "Mesh.partition")
        divide_network(mesh, net, plan, options, _stages(net, assigned), offload)
        forget_placement(net)
        _set_stages(assigned)
        replicas = Replicas([{f"{_GROUP}{s}": self.device(stage=s) for s in range(count)}], self)
        set_devices_of_groups(net, replicas)
        homes = replicas.homes(net)
        for param in net.collect_params().values():
            param.floating = False
            param.placed = _MeshDevices(homes[param], replicas)
        return net

    def _with_leaves(self, leaves):
        """Returns a mesh with `leaves` places along each axis, on the devices of this mesh. Each
        device has a run of them, by its share."""
        if isinstance(leaves, dict):
            unknown = [axis for axis in leaves if axis not in self.axes]
            if unknown:
                raise ValueError(
                    f"Mesh.partition: leaves names the axis {unknown[0]!r}, but the mesh has "
                    f"{', '.join(self.axes)}"
                )
        mesh = copy.copy(self)
        mesh.axes, mesh.weights = {}, {}
        owners = []
        for axis, size in self.axes.items():
            count = leaves.get(axis, 4) if isinstance(leaves, dict) else leaves
            count = size if axis == "stage" else count
            if not isinstance(count, int) or isinstance(count, bool):
                raise TypeError(f"Mesh.partition: leaves must be integers, not {count!r}")
            parts = divide(count, size, self.weights.get(axis)) if count >= size else [(0, 0)]
            if not all(begin < end for begin, end in parts):
                raise ValueError(
                    f"Mesh.partition: {count} leaves are too few for the {size} devices along "
                    f"{axis!r}; pass leaves={{{axis!r}: n}} with at least a leaf for each"
                )
            mesh.axes[axis] = count
            owners.append([k for k, (begin, end) in enumerate(parts) for _ in range(begin, end)])
        places = math.prod(mesh.axes.values())
        if places > _MOST_PLACES:
            raise ValueError(
                f"Mesh.partition: the mesh has {places} leaves, more than {_MOST_PLACES}; give "
                "fewer leaves to each axis"
            )
        mesh.devices = [self._at[at] for at in itertools.product(*owners)]
        mesh._at = dict(zip(itertools.product(*map(range, mesh.axes.values())), mesh.devices))
        return mesh

    def _groups(self, replica):
        """Returns the device groups of a replica: the device of each stage, and the additional
        devices over which the stages' layers are split."""
        stages = range(self.size("stage"))
        groups = {f"{_GROUP}{s}": self.device(data=replica, stage=s) for s in stages}
        beside = {
            f"{_GROUP}{s} part {m}": self.device(data=replica, stage=s, model=m)
            for s in stages
            for m in range(1, self.size("model"))
        }
        return {**groups, **beside}

    def _assign(self, net, stages, who):
        """Returns the stage of each block that is assigned to one, as a dict."""
        assigned = self._read_stages(net, stages, who)
        for block in assigned:
            if group_of(block) is not None and not is_placement(group_of(block)):
                raise MXNetError(
                    f"{who}: block '{block.name}' already belongs to ctx_group "
                    f"{group_of(block)!r}; only networks without groups can be placed"
                )
        return assigned

    def _read_stages(self, net, stages, who):
        count = self.size("stage")
        if stages is None:
            units = _chain(net)
            if count == 1:
                return {net: 0}
            if len(units) < count:
                raise MXNetError(
                    f"{who}: '{net.name}' has {len(units)} consecutive parts "
                    f"({brief(unit.name for unit in units)}), too few for {count} stages; "
                    "assign blocks to stages with stages="
                )
            return {unit: stage for stage, part in enumerate(_cut(units, count)) for unit in part}
        if isinstance(stages, dict):
            listed = list(stages.items())
        else:
            listed = [
                (block, stage)
                for stage, blocks in enumerate(stages)
                for block in (blocks if isinstance(blocks, (list, tuple)) else [blocks])
            ]
        paths = {"": net, **{path: block for _, _, path, block in walk(net)}}
        known = set(paths.values())
        assigned = {}
        for block, stage in listed:
            if isinstance(block, str):
                if block not in paths:
                    raise MXNetError(
                        f"{who}: '{net.name}' has no block at path {block!r}; its paths "
                        f"are {brief(path for path in paths if path)}"
                    )
                block = paths[block]
            if block not in known:
                raise MXNetError(
                    f"{who}: {getattr(block, 'name', block)!r} is not a descendant of '{net.name}'"
                )
            if not isinstance(stage, int) or not 0 <= stage < count:
                raise MXNetError(
                    f"{who}: block '{block.name}' is assigned to stage {stage}, but the "
                    f"mesh has stages 0 to {count - 1}"
                )
            if assigned.setdefault(block, stage) != stage:
                raise MXNetError(
                    f"{who}: block '{block.name}' is assigned to both stages "
                    f"{assigned[block]} and {stage}"
                )
        empty = [stage for stage in range(count) if stage not in assigned.values()]
        if empty:
            raise MXNetError(f"{who}: stage {empty[0]} of {count} has no blocks")
        return assigned


class Replicas:
    """The group2ctx of a replicated network, with one dict for each replica.

    Parameters
    ----------
    dicts : list of dict of str to Context
        For each replica, a dict from groups to devices.
    mesh : Mesh
        The mesh. If the network was placed without a mesh, the text that describes its devices in
        error messages.
    """

    def __init__(self, dicts: list[dict[str, Context]], mesh: Any) -> None:
        self.dicts, self.mesh = [Groups(groups, len(dicts)) for groups in dicts], mesh
        self._by_device = {ctx: groups for groups in self.dicts for ctx in groups.values()}

    def of(self, ctx: Context) -> dict[str, Context]:
        """Returns the dict of the replica that device `ctx` belongs to."""
        groups = self._by_device.get(ctx)
        if groups is None:
            if len(self.dicts) == 1:
                return self.dicts[0]
            raise MXNetError(
                f"the network is placed on {self.mesh}, but its input is on {ctx}; see "
                "Mesh.split_and_load"
            )
        return groups

    def initial_homes(self, net: Block, ctx: Any) -> dict[Any, Any]:
        """Returns the devices on which `initialize` creates each parameter. `ctx` is the argument
        of `initialize`."""
        if ctx is not None:
            raise ValueError(
                f"initialize: '{net.name}' is placed on {self.mesh}, which determines the "
                "devices of its parameters; omit ctx"
            )
        return self.homes(net)

    def covers(self, block: Block) -> bool:
        """True if `block` is the block that was placed, not a part of it."""
        return True

    def initialized(self, net: Block) -> None:
        """Does nothing. `Block.initialize` calls this hook at its end."""

    def homes(self, net: Block) -> dict[Any, list[Context]]:
        """Returns the devices of each parameter of the network, as a dict."""
        homes = {}
        first = next(iter(self.dicts[0]))

        def visit(block, group):
            group = group_of(block) or group
            division = division_of(block)
            for name, param in own_parameters(block).items():
                if isinstance(param, HomeParameter):
                    devices = param.homes
                elif division is not None and name in division.offloaded:
                    devices = [division.offloaded[name]]
                else:
                    devices = [groups[group or first] for groups in self.dicts]
                homes.setdefault(param, devices)
            for child in children(block).values():
                visit(child, group)

        visit(net, None)
        for param in net.collect_params().values():
            homes.setdefault(param, [groups[first] for groups in self.dicts])
        return homes


def placement(block: Block) -> Replicas | None:
    """Returns the `Replicas` that a block was placed on, or None."""
    groups = devices_of_groups(block)
    return groups if isinstance(groups, Replicas) else None


class _MeshDevices(list[Context]):
    """The devices of a parameter. The attribute `replicas` has the placement of its network, which
    a mesh placed."""

    def __init__(self, devices: list[Context], replicas: Replicas) -> None:
        super().__init__(devices)
        self.replicas = replicas


def refuse_inner(net: Block, who: str, mesh: Mesh | None = None) -> None:
    """Raises MXNetError if a block is part of a network that a mesh other than `mesh` has placed.
    Blocks of such a network compute on the devices of their replica, so they cannot be placed
    separately.
    """
    params = net.collect_params().values()
    own = {id(placement(block)) for block in [net, *[block for _, _, _, block in walk(net)]]}
    owners = [getattr(param.placed, "replicas", None) for param in params]
    if not owners or any(owner is None or id(owner) in own for owner in owners):
        return  # `net` is not part of a placed network, though it may share some blocks with one
    if owners[0].mesh is not mesh:
        param = next(iter(params))
        raise MXNetError(
            f"{who}: '{net.name}' is part of a network that is placed on {owners[0].mesh} "
            f"('{param.name}' is on {param.placed}); place the whole network again, with "
            "mesh.place(net, stages=...) or net.place({...})"
        )


def forget_placement(net: Block) -> None:
    """Removes an earlier placement of a network or of blocks in it."""

    def forget(block):
        group = group_of(block)
        groups = devices_of_groups(block)
        if group is not None and is_placement(group):
            set_group(block, None)
        if groups is not None and (not isinstance(groups, dict) or any(map(is_placement, groups))):
            set_devices_of_groups(block, None)
        forget_compiled(block)

    net.apply(forget)
    for param in net.collect_params().values():
        param.placed = None


def _stages(net, assigned):
    """Returns the stage of each block of a network. A block without a stage inherits the stage of
    its closest ancestor that has one, or else stage 0."""
    stages = {}

    def visit(block, stage):
        stage = assigned.get(block, stage)
        stages.setdefault(block, stage)
        for child in children(block).values():
            visit(child, stage)

    visit(net, 0)
    return stages


def _set_stages(assigned):
    for block, stage in assigned.items():
        set_group(block, f"{_GROUP}{stage}")


def _placed_stages(net, count):
    """Returns the stage of each block that `Mesh.place` has assigned to one of `count` stages, or
    None if it has not placed the network on this number of stages."""
    mesh = getattr(placement(net), "mesh", None)
    if not isinstance(mesh, Mesh) or mesh.size("stage") != count:
        return None
    groups = {block: group_of(block) for block in [net, *[block for _, _, _, block in walk(net)]]}
    return {block: int(group[len(_GROUP) :]) for block, group in groups.items() if group}


def _chain(block):
    """Returns the blocks of a network that run sequentially, with nested containers expanded."""
    parts = []
    for child in children(block).values():
        parts += _chain(child) if type(child) in (HybridSequential, Sequential) else [child]
    return parts


def _cut(units, count):
    """Cuts units into contiguous parts so that the maximum of their parameter bytes is minimal."""
    params = [list(unit.collect_params().values()) for unit in units]
    if all(shape_is_known(param.shape) for own in params for param in own):
        weights = [sum(math.prod(param.shape) for param in own) for own in params]
    else:
        weights = [1 if own else 0 for own in params]
    sums = [0, *itertools.accumulate(weights)]
    # Dynamic programming. best[k, i] describes the best cut of the first i units into k parts as
    # (weight of the heaviest part, start of the last part). Among equal cuts, the latest one is
    # selected, so that units without parameters stay with the units before them.
    best = {(1, i): (sums[i], 0) for i in range(1, len(units) + 1)}
    for k in range(2, count + 1):
        for i in range(k, len(units) + 1):
            best[k, i] = min(
                ((max(best[k - 1, j][0], sums[i] - sums[j]), j) for j in range(k - 1, i)),
                key=lambda choice: (choice[0], -choice[1]),
            )
    parts, end = [], len(units)
    for k in range(count, 0, -1):
        begin = best[k, end][1]
        parts.append(units[begin:end])
        end = begin
    return parts[::-1]
