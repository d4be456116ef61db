"""A layout: one way to divide a network over devices, and tables of layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..._internal.sizes import byte_text
from ..._internal.tables import Tabular
from ...base import MXNetError
from ...gluon._tree import parameters_by_path
from ...gluon.utils import shape_is_known
from .._mesh import Mesh
from .._pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...context import Context
    from ...gluon.block import HybridBlock


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
    pipeline : Pipeline or None
        For layouts with an axis ``stage``: the pipeline that has these bytes, for `TrainStep` or,
        in prediction, for ``net.hybridize(pipeline=...)``.

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
        self.pipeline: Pipeline | None = None

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
        return name_of(self.axes)

    def recompute(self, devices: Sequence[Context] | None = None) -> dict[Context, int] | bool:
        """Returns the argument `recompute` for `HybridBlock.hybridize`: False if the layout fits
        without, or limits of bytes. Pass the same `devices` as to `partition`."""
        if not self.budget:
            return False
        return dict(zip(self.devices if devices is None else devices, self.budget))

    def partition(self, net: HybridBlock, devices: Sequence[Context] | None = None) -> HybridBlock:
        """Divides a network by this layout (`Mesh.partition`, or `Mesh.place` if the mesh has only
        the axis ``stage``), and completes the shapes of its parameters. `devices` replace its
        devices, in the same order. Returns the network."""
        for path, param in parameters_by_path(net).items():
            if not shape_is_known(param.shape) and path in self._shapes:
                param.shape = self._shapes[path]
        if self.axes:
            mesh = Mesh(self.axes, self.devices if devices is None else devices)
            if list(self.axes) == ["stage"]:
                mesh.place(net)
            else:
                mesh.partition(net, self.plan)
        return net

    def __repr__(self) -> str:
        largest, state = self.largest, "fits"
        rows = "" if self.pipeline is None else f"{self.pipeline.micro_batches} micro-batches, "
        if self.budget:
            state = "fits with recompute"
        if not self.fits:
            state = f"lacks {byte_text(self.missing)}"
        return (
            f"Layout({self.name}: {byte_text(largest.total)} on the fullest device, {state}; "
            f"{rows}plan={self.plan})"
        )


class Layouts(Tabular):
    """The layouts that `layouts` has compared: a sequence of `Layout`. Those that fit come first,
    and among them those that send the fewest bytes. Layouts with an axis ``stage`` follow the
    others that fit. Printing it shows a table, and the savings by each axis of the best layout.
    `skipped` maps the names of layouts that are not possible to the reasons.

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
                f"layouts: the network does not fit on {counted_devices(len(first.limits))}: "
                f"the best layout ({first.name}) lacks {byte_text(first.missing)} on a device. "
                "Use more devices, smaller batches, adapters (LoRA), or leave the optimizer's "
                "states on the host (Trainer(offload=...))"
            )
        return first

    def _parts(self):
        rows = [
            ("layouts", "weights", "gradients", "states", "values", "total", "sent", ""),
        ]
        for one in self._found:
            state = "recompute" if one.budget and one.fits else ""
            if one.pipeline is not None:
                state = f"{one.pipeline.micro_batches} micro-batches"
            state = state if one.fits else f"lacks {byte_text(one.missing)}"
            largest = one.largest
            rows.append((one.name, *map(byte_text, (*largest, largest.total, one.sent)), state))
        skipped = [f"  not possible: {name}: {why}" for name, why in self.skipped.items()]
        return [self._what, rows, *self._savings, *skipped]


def name_of(axes):
    if not axes:
        return "one device"
    return ", ".join(
        f"{axis} {':'.join(map(str, size)) if isinstance(size, list) else size}"
        for axis, size in axes.items()
    )


def counted_devices(count):
    return "one device" if count == 1 else f"{count} devices"
