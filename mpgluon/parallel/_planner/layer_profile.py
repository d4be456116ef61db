"""The costs of a network's layers on each device: the measurements that plans are based on.

A layer is a child of a HybridSequential (nested ones are expanded), a branch of a concurrent
container, or a child of the network in the order of calls. Each layer is compiled separately for
the shapes of micro-batches, and run as a pipeline with one stage on all devices concurrently, so
the times include contention between devices. Layers that compile to the same operators and shapes
are measured once.
"""

from __future__ import annotations

import collections
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import _core
from ..._internal.files import open_regular
from ..._internal.tables import Tabular
from ...base import MXNetError, counted
from ...context import Context, parts_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from typing_extensions import Self

__all__ = ["Layer", "Profile"]

FORMAT = "mpgluon profile 2"

# Cost of a layer for one micro-batch. The first four fields are the seconds of the forward pass, of
# the whole backward pass, of the input gradients alone, and of the weight gradients alone. `saved`
# is the bytes kept for backward, and `working` the bytes used while the layer runs. `first` is
# `working` for the first micro-batch, which does not accumulate gradients.
Cost = collections.namedtuple(
    "Cost",
    ["forward", "backward", "input_gradients", "weight_gradients", "saved", "working", "first"],
    defaults=[0],
)
NOTHING = Cost(0.0, 0.0, 0.0, 0.0, 0, 0)


class Trial(NamedTuple):
    """The measurements of a plan that was run.

    They are the seconds of its fastest step, the bytes of micro-batches on each device, the passes'
    times as (kind, stage) -> seconds of one micro-batch, and the makespan expected from these
    times: seconds from the start of the first stage to the end of the last one. The passes' times
    determine the table of the schedule. They are None if the compiled stages differ from the
    planned ones."""

    seconds: Any
    memory: Any
    times: Any
    makespan: Any = None


def trained_bytes(layer: Layer) -> int:
    """Returns the bytes of a layer's trained parameters."""
    return sum(size for size, trained in layer.params.values() if trained)


def held_bytes(params: dict[str, tuple[int, bool]], state_factor: float) -> float:
    """Returns the bytes of parameters (see `Layer.params`) with gradients and optimizer states."""
    return sum(size * (2 + state_factor if trained else 1) for size, trained in params.values())


class Layer:
    """One layer of a profile.

    Attributes
    ----------
    path : str
        Path in the network's tree, as in ``'features.3'``; empty if it is not a block.
    kind : str
        Class of the block, ``'join'`` if it combines the results of several layers, or ``'loss'``.
    sources : list of (int, int)
        (index, bytes) for each layer whose result this layer uses. The bytes are those of the
        result for the whole batch.
    follows : int or None
        Index of the layer on whose device this layer runs, or None if its device is free. A join
        follows the first of its sources, the loss follows the last layer.
    params : dict of str to (int, bool)
        Bytes of each parameter, and whether it is trained.
    """

    def __init__(
        self,
        path: str,
        kind: str,
        sources: Iterable[tuple[int, int]],
        follows: int | None = None,
        params: dict[str, tuple[int, bool]] | None = None,
    ) -> None:
        self.path, self.kind, self.follows = path, kind, follows
        self.sources = [tuple(s) for s in sources]
        self.params = {
            name: (int(size), bool(trained)) for name, (size, trained) in (params or {}).items()
        }

    @property
    def name(self) -> str:
        """The layer's path and kind, such as ``body.0 Dense``."""
        return f"{self.path} {self.kind}".strip()

    @property
    def param_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(size for size, _ in self.params.values())


class SavedAsJson:
    """Base class of plain data that is stored in JSON files, by `to_json` and `from_json`."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the object as JSON. Raises OSError if the file cannot be written."""
        _core.write_file(path, json.dumps(self.to_json(), indent=1).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file of `save`. Raises MXNetError if the contents are invalid."""
        with open_regular(path) as f:
            try:
                data = json.load(f)
            except ValueError as error:
                raise MXNetError(f"{path}: not a JSON file: {error}") from error
        try:
            return cls.from_json(data)
        except MemoryError:
            raise
        except MXNetError as error:
            raise MXNetError(f"{path}: {error}") from error


class Profile(SavedAsJson, Tabular):
    """Measurements of a network's layers. `save` and `load` store them in files.

    Attributes
    ----------
    layers : list of Layer
        Layers in the order of calls.
    devices : list of Context
        Devices that were measured.
    rows : int
        Rows of the whole batch.
    costs : dict of Context to dict of int to list of Cost
        Costs of each layer, by device and rows of a micro-batch.
    update : dict of Context to float
        Seconds of an update per byte of parameters.
    state_factor : float
        Bytes of optimizer states per byte of parameters.
    transfer : dict of (Context, Context) to (float, float)
        Seconds of a transfer: per array, and per byte.
    home : Context or None
        Device of the batch; ``input_bytes`` is the size of the batch.
    waits : dict of (Context, Context) to float
        Seconds from the end of the work on the first device until the second device, which waits
        for it, continues.
    host_overhead : float
        Overhead of a step on the host, in seconds.
    trials : dict
        Plans that were run: (placement, micro-batches, schedule) -> `Trial`. A placement has the
        device index of each layer.
    measured_bytes : dict
        Plans that were compiled: (placement, micro-batches, schedule) -> bytes of micro-batches on
        each device, with the table for equal stage durations.
    chosen : set
        Keys of plans that searches chose, within any limits. Not stored in files.

    Examples
    --------
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Dense(8, in_units=4), nn.Dense(2, in_units=8))
    >>> net.initialize()
    >>> plan = mx.parallel.plan(net, nd.ones((8, 4)), [mx.cpu(0)], micro_batches=1,
    ...                         repeats=1, trials=0, progress=False)
    >>> [layer.name for layer in plan.profile.layers]
    ['0 Dense', '1 Dense']
    """

    def __init__(
        self,
        layers: Iterable[Layer],
        devices: Iterable[Context],
        rows: int,
        costs: dict[Context, dict[int, list[Cost]]],
        update: dict[Context, float] | None = None,
        state_factor: float = 0.0,
        transfer: dict[tuple[Context, Context], tuple[float, float]] | None = None,
        home: Context | None = None,
        input_bytes: int = 0,
        waits: dict[tuple[Context, Context], float] | None = None,
        host_overhead: float = 0.0,
        trials: dict[Any, Trial] | None = None,
        measured_bytes: dict[Any, list[int]] | None = None,
    ) -> None:
        self.layers: list[Layer] = list(layers)
        self.devices: list[Context] = list(devices)
        self.rows: int = rows
        self.costs: dict[Context, dict[int, list[Cost]]] = costs
        self.update: dict[Context, float] = update or dict.fromkeys(devices, 0.0)
        self.state_factor = state_factor
        pairs = [(a, b) for a in devices for b in devices if a != b]
        self.transfer: dict[tuple[Context, Context], tuple[float, float]] = (
            transfer or dict.fromkeys(pairs, (0.0, 0.0))
        )
        self.home: Context | None = home
        self.input_bytes: int = input_bytes
        self.waits: dict[tuple[Context, Context], float] = waits or dict.fromkeys(
            self.transfer, 0.0
        )
        self.host_overhead = host_overhead
        self.trials: dict[Any, Trial] = dict(trials or {})
        self.measured_bytes: dict[Any, list[int]] = dict(measured_bytes or {})
        self.chosen: set[Any] = set()

    def trial(self, candidate: Any) -> Trial | None:
        """Returns the `Trial` of a `Candidate`, or None if it was not run."""
        return self.trials.get(key_of(candidate))

    def known(self) -> set[Any]:
        """Returns the keys of all plans that were run, compiled or chosen."""
        return {*self.trials, *self.measured_bytes, *self.chosen}

    def is_measured(self, candidate: Any) -> bool:
        """True if the candidate's bytes are known from a compiled plan instead of estimated."""
        return key_of(candidate) in self.trials or key_of(candidate) in self.measured_bytes

    def micro_batch_rows(self, micro_batches: int) -> int:
        """Returns the rows of the largest micro-batch."""
        return -(-self.rows // micro_batches)

    def cost(self, ctx: Context, rows: int) -> list[Cost]:
        """Returns the costs of all layers for micro-batches with the given rows. Interpolates
        between measured sizes."""
        known = self.costs[ctx]
        if rows in known:
            return known[rows]
        sizes = sorted(known)
        below, above = (
            max([s for s in sizes if s < rows], default=sizes[0]),
            min([s for s in sizes if s > rows], default=sizes[-1]),
        )
        if below == above:
            return [Cost(*[value * rows / below for value in cost]) for cost in known[below]]
        share = (rows - below) / (above - below)
        return [
            Cost(*[a + (b - a) * share for a, b in zip(one, two)])
            for one, two in zip(known[below], known[above])
        ]

    def seconds_of_transfer(self, source: Context, target: Context, size: int) -> float:
        """Returns the measured seconds to move `size` bytes between two devices. Raises KeyError
        for devices that were not measured."""
        each, per_byte = self.transfer[source, target]
        return each + size * per_byte

    def sender_copies(self, source: Context, target: Context) -> bool:
        """True if a copy runs in the queue of the source device. Otherwise, it runs
        concurrently."""
        return source.device_type == "cpu" and source.rank == target.rank

    def to_json(self) -> dict[str, Any]:
        """Returns a dict of plain values."""
        return {
            "format": FORMAT,
            "rows": self.rows,
            "devices": [str(ctx) for ctx in self.devices],
            "layers": [
                {
                    "path": y.path,
                    "kind": y.kind,
                    "sources": y.sources,
                    "follows": y.follows,
                    "params": y.params,
                }
                for y in self.layers
            ],
            "costs": {
                str(ctx): {
                    str(rows): [list(cost) for cost in costs] for rows, costs in sizes.items()
                }
                for ctx, sizes in self.costs.items()
            },
            "update": {str(ctx): seconds for ctx, seconds in self.update.items()},
            "state_factor": self.state_factor,
            "home": None if self.home is None else str(self.home),
            "input_bytes": self.input_bytes,
            "waits": [[str(a), str(b), seconds] for (a, b), seconds in self.waits.items()],
            "beside": self.host_overhead,
            "trials": [
                [
                    *key,
                    t.seconds,
                    t.memory,
                    t.times and [[*k, seconds] for k, seconds in t.times.items()],
                    t.makespan,
                ]
                for key, t in self.trials.items()
            ],
            "weights": [[*key, sizes] for key, sizes in self.measured_bytes.items()],
            "transfer": [[str(a), str(b), *seconds] for (a, b), seconds in self.transfer.items()],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Profile:
        """Returns the profile that `to_json` described. Raises MXNetError if `data` is invalid."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise MXNetError(
                "not a profile: its format is "
                f"{data.get('format') if isinstance(data, dict) else data!r}, not {FORMAT!r}"
            )
        try:
            if any(not 0 <= s < i for i, y in enumerate(data["layers"]) for s, _ in y["sources"]):
                raise ValueError("a layer gets the output of a later layer")
            return cls(
                [
                    Layer(y["path"], y["kind"], y["sources"], y["follows"], y["params"])
                    for y in data["layers"]
                ],
                [parse_context(name) for name in data["devices"]],
                data["rows"],
                {
                    parse_context(c): {
                        int(rows): [Cost(*cost) for cost in costs] for rows, costs in sizes.items()
                    }
                    for c, sizes in data["costs"].items()
                },
                {parse_context(c): seconds for c, seconds in data["update"].items()},
                data["state_factor"],
                {
                    (parse_context(a), parse_context(b)): (each, per_byte)
                    for a, b, each, per_byte in data["transfer"]
                },
                None if data["home"] is None else parse_context(data["home"]),
                data["input_bytes"],
                {(parse_context(a), parse_context(b)): seconds for a, b, seconds in data["waits"]},
                data["beside"],
                {
                    (tuple(placement), m, schedule): Trial(
                        seconds,
                        sizes,
                        times and {(kind, s): value for kind, s, value in times},
                        *span,
                    )
                    for placement, m, schedule, seconds, sizes, times, *span in data["trials"]
                },
                {
                    (tuple(placement), m, schedule): sizes
                    for placement, m, schedule, sizes in data.get("weights", ())
                },
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise MXNetError(f"the profile is damaged: {type(error).__name__}: {error}") from error

    def _parts(self):
        rows = [
            (
                "layer",
                "kind",
                *[f"{ctx} ms" for ctx in self.devices],
                "kept bytes",
                "parameter bytes",
            )
        ]
        size = max(next(iter(self.costs.values())))
        for i, layer in enumerate(self.layers):
            costs = [self.costs[ctx][size][i] for ctx in self.devices]
            rows.append(
                (
                    layer.path,
                    layer.kind,
                    *[f"{c.forward * 1e3:.3f} + {c.backward * 1e3:.3f}" for c in costs],
                    f"{costs[0].saved:,.0f}",
                    f"{layer.param_bytes:,}",
                )
            )
        return [
            f"{len(self.layers)} layers, forward + backward of micro-batches of "
            f"{counted(size, 'row')} (of {self.rows})",
            rows,
        ]


def key_of(candidate: Any) -> tuple[Any, int, str]:
    """Returns the key of a `Candidate`: (placement, micro-batches, schedule)."""
    return candidate.placement, candidate.micro_batches, candidate.schedule


def parse_context(name: str) -> Context:
    """Converts ``'cpu(1)'`` or ``'cpu(1, rank=2)'`` to a Context."""
    parts = parts_of(str(name))
    if parts is None:
        raise MXNetError(f"{name!r} is not a device, such as 'cpu(0)'")
    try:
        return Context(*parts)
    except ValueError as error:
        raise MXNetError(f"{name!r} is not a device: {error}") from None
