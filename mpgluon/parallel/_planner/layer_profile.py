"""The costs of a network's layers on each device: the measurements that a plan is made from.

A layer is a child of a HybridSequential (nested ones are opened), a branch of a container of
branches, or a child of the network in the order of calls. Each is compiled alone, for the shapes it
gets from micro-batches, and run as a pipeline of one stage on all devices at the same time, so that
times hold for devices at work together; layers that compile to the same operators and shapes are
measured once.
"""

from __future__ import annotations

import collections
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import _core
from ..._files import open_regular
from ..._tables import Tabular
from ...base import MXNetError, counted
from ...context import Context, parts_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from typing_extensions import Self

__all__ = ["Layer", "Profile"]

FORMAT = "mpgluon profile 2"

# Of one micro-batch: seconds of the forward pass, of the whole backward pass, of input gradients,
# and of weight gradients where these are apart; bytes kept for backward, bytes used while the layer
# runs, and the same for the first micro-batch, which adds to no gradients.
Cost = collections.namedtuple(
    "Cost",
    ["forward", "backward", "input_gradients", "weight_gradients", "saved", "working", "first"],
    defaults=[0],
)
NOTHING = Cost(0.0, 0.0, 0.0, 0.0, 0, 0)


# A plan that was run: seconds of its quickest step, bytes of micro-batches on each device, and
# seconds of one micro-batch's passes, (kind, stage) -> seconds, from which its schedule's table was
# made; None if the compiled stages are others than planned; and seconds from the first stage's
# begin to the last one's end.
class Trial(NamedTuple):
    """The measurements of a plan that was run: seconds of a step, bytes by device, times of the
    stages' passes, and the makespan that is expected of those."""

    seconds: Any
    memory: Any
    times: Any
    makespan: Any = None


def trained_bytes(layer: Layer) -> int:
    """Bytes of a layer's parameters that are trained."""
    return sum(size for size, trained in layer.params.values() if trained)


def held_bytes(params: dict[str, tuple[int, bool]], state_factor: float) -> float:
    """Bytes of parameters (as of `Layer.params`) with their gradients and optimizer states."""
    return sum(size * (2 + state_factor if trained else 1) for size, trained in params.values())


class Layer:
    """One layer of a profile.

    Attributes
    ----------
    path : str
        Where it is in the network's tree, as in ``'features.3'``; empty for what is no block.
    kind : str
        The class of the block, ``'join'`` where results of several layers come together, or
        ``'loss'``.
    sources : list of (int, int)
        The layers whose results it gets, and how many bytes of each for the whole batch.
    follows : int or None
        The layer whose device it shares: a join runs with the first of its sources, the loss with
        the last layer.
    params : dict of str to (int, bool)
        Bytes of its parameters, and whether they are trained.
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
    """Plain data in files, by `to_json` and `from_json`."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it as JSON; OSError if the file can't be written."""
        _core.write_file(path, json.dumps(self.to_json(), indent=1).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads what `save` wrote; MXNetError if the file holds something else."""
        with open_regular(path) as f:
            try:
                data = json.load(f)
            except ValueError as error:
                raise MXNetError(f"{path}: this is no JSON: {error}") from error
        try:
            return cls.from_json(data)
        except MemoryError:
            raise
        except MXNetError as error:
            raise MXNetError(f"{path}: {error}") from error


class Profile(SavedAsJson, Tabular):
    """Measurements of a network's layers; `save` and `load` keep them.

    Attributes
    ----------
    layers : list of Layer
        In the order of calls.
    devices : list of Context
        Those that were measured.
    rows : int
        Of the whole batch.
    costs : dict of Context to dict of int to list of Cost
        By device and rows of a micro-batch, for each layer.
    update : dict of Context to float
        Seconds that an optimizer takes for a byte of parameters.
    state_factor : float
        Bytes of optimizer states for a byte of parameters.
    transfer : dict of (Context, Context) to (float, float)
        Seconds that passing an array on takes: for each array, and for each byte.
    home : Context or None
        Where the batch is, and ``input_bytes`` its size.
    waits : dict of (Context, Context) to float
        Seconds until a device goes on after another has finished what it waits for.
    host_overhead : float
        Of a step, in seconds.
    trials : dict
        Plans that were run: (placement, micro-batches, schedule) -> `Trial`, where a placement is
        the number of each layer's device.
    measured_bytes : dict
        Plans that were compiled: (placement, micro-batches, schedule) -> bytes of micro-batches on
        each device, with the table of stages that are equally heavy.
    chosen : set
        The keys of plans that searches chose, within any limits; files lack them.

    Examples
    --------
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Dense(8, in_units=4), nn.Dense(2, in_units=8))
    >>> net.initialize()
    >>> plan = mx.parallel.plan(net, nd.ones((8, 4)), [mx.cpu(0)], micro_batches=1, repeats=1,
    ...                         trials=0, progress=False)
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
        """Returns the `Trial` of a `Candidate` that was run; None if it was not."""
        return self.trials.get(key_of(candidate))

    def known(self) -> set[Any]:
        """Returns the keys of all plans that were run, compiled or chosen."""
        return {*self.trials, *self.measured_bytes, *self.chosen}

    def is_measured(self, candidate: Any) -> bool:
        """True if the candidate's bytes are those of a compiled plan."""
        return key_of(candidate) in self.trials or key_of(candidate) in self.measured_bytes

    def micro_batch_rows(self, micro_batches: int) -> int:
        """Rows of the largest micro-batch."""
        return -(-self.rows // micro_batches)

    def cost(self, ctx: Context, rows: int) -> list[Cost]:
        """Returns the costs of all layers for micro-batches of so many rows; between two measured
        sizes, in proportion."""
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
        """Seconds that `size` bytes take from one device to another, as measured; KeyError for
        devices that were not."""
        each, per_byte = self.transfer[source, target]
        return each + size * per_byte

    def sender_copies(self, source: Context, target: Context) -> bool:
        """True if a copy is work of the device that it comes from; else it goes on beside that."""
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
        """Returns the profile that `to_json` gave; MXNetError if `data` is none."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise MXNetError(
                "this is no profile: its format is "
                f"{data.get('format') if isinstance(data, dict) else data!r}, not {FORMAT!r}"
            )
        try:
            if any(not 0 <= s < i for i, y in enumerate(data["layers"]) for s, _ in y["sources"]):
                raise ValueError("a layer gets what comes behind it")
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
    """``'cpu(1)'``, or ``'cpu(1, rank=2)'``, as a Context."""
    parts = parts_of(str(name))
    if parts is None:
        raise MXNetError(f"{name!r} is no device, as 'cpu(0)' is")
    try:
        return Context(*parts)
    except ValueError as error:
        raise MXNetError(f"{name!r} is no device: {error}") from None
