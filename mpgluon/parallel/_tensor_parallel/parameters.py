"""Parameters split over devices: each device holds a part, with the same values as in the whole
parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import _core, autograd, initializer, ndarray as nd, random
from ..._internal import device_groups
from ...base import MXNetError
from ...gluon.parameter._parameter import Parameter
from ...gluon.parameter._parameter_dict import find_parameter, split_advice
from ...gluon.utils import context_list, shape_is_known
from ..collectives import divide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...context import Context
    from ...gluon.block import Block
    from ...initializer import Initializer

__all__ = ["HomeParameter", "ShardedParameter"]


class HomeParameter(Parameter):
    """A parameter that stays on its layer's device, regardless of ``net.initialize(ctx=...)``.

    Attributes
    ----------
    homes : list of Context
        One device, or one in each replica of a network that is placed on a `Mesh`.

    Examples
    --------
    >>> layer = mx.parallel.RowParallelDense(3, [mx.cpu(0), mx.cpu(1)], in_units=4)
    >>> layer.bias.home
    cpu(0)
    """

    def __init__(self, name: str, home: Context, **kwargs: Any) -> None:
        self.homes: list[Context] = [home]
        super().__init__(name, **kwargs)

    @property
    def home(self) -> Context:
        """The device of the parameter, or of the first replica."""
        return self.homes[0]

    def initialize(
        self,
        init: Initializer | str | None = None,
        ctx: Context | Sequence[Context] | None = None,
        default_init: Initializer | str | None = None,
        force_reinit: bool = False,
    ) -> None:
        super().initialize(init, self.homes, default_init, force_reinit)

    def _load_init(self, data, ctx, cast_dtype=False, dtype_source="current"):
        return super()._load_init(data, self.homes, cast_dtype, dtype_source)

    def to_fill(self, ctx: Any) -> Any:
        return super().to_fill(self.homes)

    def _check_load(self, data, ctx, *options):
        super()._check_load(data, None, *options)

    def reset_ctx(self, ctx: Context | Sequence[Context]) -> None:
        if context_list(ctx) != self.homes:
            where = self.home if len(self.homes) == 1 else self.homes
            raise MXNetError(
                f"Parameter '{self.name}' belongs to a layer that is split over devices "
                "(Mesh.partition, Mesh.place or mx.parallel.shard), and cannot leave "
                f"{where}; create the network again and divide it over other devices"
            )
        super().reset_ctx(self.homes)


class Family:
    """The common properties of all parts of one parameter."""

    name: str
    axis: int
    count: int
    blocks: int
    unit: int
    # Name of the whole in files; None if files hold the parts (layers of mx.parallel).
    name_in_files: str | None = None

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        axis: int,
        count: int,
        blocks: int,
        unit: int,
        weights: Sequence[int] | None = None,
    ) -> None:
        self.weights = weights  # shares of the parts
        self.name, self.axis, self.count, self.blocks, self.unit = name, axis, count, blocks, unit
        self.members: list[ShardedParameter] = []
        # Random state from which the initial values of all parts are drawn, and the indices of the
        # parts that are drawn already.
        self.key: Any = None
        self.drawn: set[int] = set()
        self.shape: tuple[int, ...] = ()
        self.complete(shape)

    def complete(self, shape: Sequence[int]) -> None:
        """Completes the shape of the whole, and updates the shapes of the parts."""
        self.shape = tuple(max(size, 0) for size in shape)  # -1: unknown, with NumPy shapes
        total = self.shape[self.axis]
        if total > 0:
            block, rest = divmod(total, self.blocks * self.unit)
            if rest:
                raise ValueError(
                    f"Parameter '{self.name}': {total} along axis {self.axis} is not a multiple "
                    f"of {self.blocks * self.unit}"
                )
            parts = divide(block, self.count, self.weights)
            if any(begin == end for begin, end in parts):
                shares = "" if self.weights is None else f" with shares {self.weights}"
                what = f"{block} groups of {self.unit}" if self.unit > 1 else str(block)
                raise ValueError(
                    f"Parameter '{self.name}' of shape {self.shape} cannot be split over "
                    f"{self.count} devices{shares}: it has only {what} along axis {self.axis}"
                )
        for member in self.members:
            member.shape = self.part_shape(member.index)

    def ranges(self, index: int) -> list[tuple[int, int]]:
        """Returns the ranges (begin, end) along the axis of the whole that part `index` consists
        of, one for each block."""
        block = self.shape[self.axis] // self.blocks
        begin, end = divide(block // self.unit, self.count, self.weights)[index]
        return [
            (b * block + begin * self.unit, b * block + end * self.unit) for b in range(self.blocks)
        ]

    def part_shape(self, index: int) -> tuple[int, ...]:
        if self.shape[self.axis] <= 0:
            return self.shape
        size = sum(end - begin for begin, end in self.ranges(index))
        return (*self.shape[: self.axis], size, *self.shape[self.axis + 1 :])

    def take(self, whole: nd.NDArray, index: int) -> nd.NDArray:
        """Returns part `index` of an array with the whole shape."""
        with device_groups.paused():
            parts = [
                nd.slice_axis(whole, axis=self.axis, begin=begin, end=end)
                for begin, end in self.ranges(index)
            ]
            return parts[0] if len(parts) == 1 else nd.concat(*parts, dim=self.axis)

    def join(self, parts: list[nd.NDArray]) -> nd.NDArray:
        """Returns the whole of all parts, which are on one device."""
        axis, blocks, shape = self.axis, self.blocks, self.shape
        if blocks == 1:
            return nd.concat(*parts, dim=axis)
        split = [
            part.reshape((*shape[:axis], blocks, part.shape[axis] // blocks, *shape[axis + 1 :]))
            for part in parts
        ]
        return nd.concat(*split, dim=axis + 1).reshape(shape)

    def spread(self, part: nd.NDArray, index: int) -> nd.NDArray:
        """Returns an array with the whole shape that holds part `index`, and zeros elsewhere."""
        with device_groups.paused():
            whole = nd.zeros(self.shape, ctx=part.context, dtype=part.dtype)
            first = 0
            for begin, end in self.ranges(index):
                axes = (slice(None),) * self.axis
                own = (*axes, slice(first, first + end - begin))
                whole[(*axes, slice(begin, end))] = part[own]
                first += end - begin
            return whole

    def calls(self, index: int) -> _core.Scope:
        """Returns a scope in which a part is initialized. All parts of one initialization use the
        random calls of the whole; the first part reserves them."""
        if self.key is None or index in self.drawn:
            self.key, self.drawn = _core.random_state(), {index}
            return _core.Scope()
        self.drawn.add(index)
        return random.calls_at(self.key)


class ShardedParameter(HomeParameter):
    """The part of a parameter on one device.

    Attributes
    ----------
    global_name, global_shape
        Name and shape of the whole parameter; 0 means a size that is not known yet.
    axis, index, count : int
        The parameter is split along `axis` into `count` parts, of which this is part `index`.
    ranges : list of (int, int)
        The part's ranges along `axis` of the whole. There are several for gates, and for combined
        queries, keys and values.
    homes : list of Context
        Devices of the part: one device, or one in each replica.

    Examples
    --------
    >>> layer = mx.parallel.ColumnParallelDense(6, [mx.cpu(0), mx.cpu(1)], in_units=4)
    >>> part = layer.shard1_weight
    >>> part.shape, part.global_shape, part.ranges, part.home
    ((3, 4), (6, 4), [(3, 6)], cpu(1))
    """

    def __init__(self, name: str, family: Family, index: int, home: Context, **kwargs: Any) -> None:
        self.family: Family = family
        self.index: int = index
        super().__init__(
            name, home, shape=family.part_shape(index), allow_deferred_init=True, **kwargs
        )
        family.members.append(self)

    @property
    def global_name(self) -> str:
        """The name of the whole parameter, which checkpoints use."""
        return self.family.name

    @property
    def global_shape(self) -> tuple[int, ...]:
        """The shape of the whole parameter."""
        return self.family.shape

    @property
    def axis(self) -> int:
        """The axis along which the whole is split."""
        return self.family.axis

    @property
    def count(self) -> int:
        """The number of parts."""
        return self.family.count

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The ranges (begin, end) along `axis` of the whole that this part consists of."""
        return self.family.ranges(self.index)

    def initialize(
        self,
        init: Initializer | str | None = None,
        ctx: Context | Sequence[Context] | None = None,
        default_init: Initializer | str | None = None,
        force_reinit: bool = False,
    ) -> None:
        if self.arrays is not None and not force_reinit:
            # The parameter already has arrays, so this only warns.
            super().initialize(init, ctx, default_init, force_reinit)
            return
        with self.family.calls(self.index):
            super().initialize(init, ctx, default_init, force_reinit)

    def _check_load(self, data, ctx, *options):
        try:
            super()._check_load(data, ctx, *options)
        except AssertionError as error:
            if data.shape == self.shape:
                raise
            raise AssertionError(f"{error}. {split_advice(self.name)}") from None

    def finish_deferred_init(self) -> None:
        if (
            not self.deferred_init
            or self.deferred_init[3] is not None
            or not shape_is_known(self._shape)
        ):
            super().finish_deferred_init()
            return
        init, contexts, default_init, _, key = self.deferred_init
        with autograd.pause():
            whole = nd.zeros(self.global_shape, ctx=contexts[0], dtype=self.dtype)
            with random.calls_at(key):
                initializer.create(default_init)(
                    initializer.InitDesc(self.global_name, {"__init__": init}), whole
                )
            self._take(self.family.take(whole, self.index), contexts)

    def set_data(self, data: nd.NDArray) -> None:
        """Sets the value of the part. An array with the whole shape is reduced to the part."""
        if isinstance(data, nd.NDArray) and tuple(data.shape) == self.global_shape != self.shape:
            data = self.family.take(data, self.index)
        super().set_data(data)


def split_parameter(
    block: Block,
    name: str,
    shape: tuple[int, ...],
    axis: int,
    ctx: Sequence[Context],
    *options: Any,
    **kwargs: Any,
) -> Family:
    """Creates the parts of a block's parameter, and adds them to the block. The part on device i is
    the attribute ``shard{i}_{name}``. `make_parts` describes the arguments."""
    family = make_parts(block, name, shape, axis, ctx, *options, **kwargs)
    add_parts(block, name, family)
    return family


def make_parts(
    block: Block,
    name: str,
    shape: tuple[int, ...],
    axis: int,
    ctx: Sequence[Context],
    blocks: int = 1,
    unit: int = 1,
    weights: Sequence[int] | None = None,
    **kwargs: Any,
) -> Family:
    """Creates the parts of a block's parameter. Returns their family.

    Parameters
    ----------
    shape : tuple of int
        Shape of the whole.
    blocks, unit : int
        The axis consists of equal blocks (gates; queries, keys and values). Each block is split in
        multiples of `unit` (heads).
    weights : list of int, optional
        Shares of the devices; equal by default.
    """
    family = Family(block.params.prefix + name, shape, axis, len(ctx), blocks, unit, weights)
    for index, home in enumerate(ctx):
        full = f"{block.params.prefix}shard{index}_{name}"
        if find_parameter(block.params, full) is not None:
            raise MXNetError(
                f"Parameter '{full}' already exists; layers that are split over devices cannot "
                "share parameters (params=)"
            )
        ShardedParameter(full, family, index, home, **kwargs)
    return family


def add_parts(block: Block, name: str, family: Family) -> None:
    """Adds the parts of a parameter to a block."""
    for part in family.members:
        block.params.update({part.name: part})
        setattr(block, f"shard{part.index}_{name}", part)


def home_parameter(
    block: Block, name: str, shape: tuple[int, ...], home: Context, **kwargs: Any
) -> HomeParameter:
    """Creates a parameter of a block that stays on a device."""
    full = block.params.prefix + name
    param = HomeParameter(full, home, shape=shape, allow_deferred_init=True, **kwargs)
    block.params.update({full: param})
    setattr(block, name, param)
    return param


def complete_whole(param: ShardedParameter, shape: Sequence[int]) -> None:
    """Completes the shape of the whole that a parameter is a part of."""
    param.family.complete(shape)
