"""Simulations of networks on hypothetical clusters."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._internal import ranks
from ..._internal.ranks import links
from ..._internal.tables import Tabular
from ...base import MXNetError, counted
from ...gluon.block import HybridBlock
from .._mesh import AXES
from ..schedules import named
from . import layer_measurement
from .layer_profile import Profile, trained_bytes
from .search import Search

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...ndarray import NDArray
    from ...optimizer import Optimizer

__all__ = ["Cluster", "ClusterSimulation", "Outcome", "simulate"]

MOST_STAGES = 64  # maximum number of stages to try if the mesh does not fix the number
TRIED = 4  # number of splits to simulate for each number of stages
MEASURED = 3  # number of measured micro-batch sizes; costs of other sizes are interpolated


class Link(NamedTuple):
    """A link between two devices: ``seconds`` of latency, and ``rate`` in bytes per second."""

    seconds: float
    rate: float

    def takes(self, size: float) -> float:
        """Returns the seconds to transfer `size` bytes."""
        return self.seconds + size / self.rate


class Cluster:
    """A cluster of identical devices on identical hosts, and the links between them.

    Parameters
    ----------
    devices : int or list of int
        Number of devices, or a list of the numbers to simulate, each at least 1.
    per_host : int, default 8
        Number of devices on a host. Device n is on host ``n // per_host``.
    inside : (float, float), default (5e-6, 1e10)
        Link between devices of a host: seconds of latency, and bytes per second. Devices do not
        share bandwidth.
    between : (float, float), default (2e-5, 1e9)
        Link between devices of two hosts.
    memory : int, optional
        Bytes of memory of each device.
    speed : float, default 1.0
        Speed of each device relative to the measured device.
    at_once : int, optional
        Maximum number of devices of a host that compute concurrently. For CPU devices, this is
        the number of cores. Defaults to all devices.

    Raises
    ------
    ValueError
        If an argument is invalid.

    Examples
    --------
    >>> mx.parallel.Cluster([2, 16], per_host=8, between=(2e-5, 12e9), memory=80 * 2**30)
    2 or 16 devices, 8 on each host; inside 5 us and 10 GB/s, between hosts 20 us and ...
    """

    def __init__(
        self,
        devices: int | Sequence[int],
        per_host: int = 8,
        inside: tuple[float, float] = (5e-6, 1e10),
        between: tuple[float, float] = (2e-5, 1e9),
        memory: int | None = None,
        speed: float = 1.0,
        at_once: int | None = None,
    ) -> None:
        self.counts: list[int] = [devices] if isinstance(devices, int) else list(devices)
        at_once = per_host if at_once is None else at_once
        for name, values in (
            ("devices", self.counts or [0]),
            ("per_host", [per_host]),
            ("at_once", [at_once]),
        ):
            if not all(_is_whole(value) and value >= 1 for value in values):
                raise ValueError(f"Cluster: {name} must be positive integers, not {values}")
        for name, link in (("inside", inside), ("between", between)):
            if len(link) != 2 or not link[0] >= 0 or not link[1] > 0:
                raise ValueError(
                    f"Cluster: {name} must be the latency in seconds and the rate in bytes per "
                    f"second, not {link!r}"
                )
        if not speed > 0 or (memory is not None and not memory >= 0):
            raise ValueError(
                "Cluster: speed must be positive and memory must not be negative, got "
                f"{speed!r} and {memory!r}"
            )
        self.per_host: int = per_host
        self.memory: int | None = memory
        self.speed: float = speed
        self.at_once: int = at_once
        self.inside: Link = Link(*inside)
        self.between: Link = Link(*between)

    @classmethod
    def of_ranks(cls, **more: Any) -> Cluster:
        """Returns a cluster of this program's ranks, with one device each and measured links.
        Collective: all ranks must call it. `more` has the other parameters.

        Raises
        ------
        MXNetError
            If there is only one rank, or hosts have different numbers of ranks or ranks that are
            not consecutive.
        """
        hosts = [host["host"] for host in links.hosts()] if ranks.count() > 1 else []
        if not hosts:
            raise MXNetError("Cluster.of_ranks: this program is one process; start it with mpirun")
        per_host = hosts.count(hosts[0])
        if any(host != hosts[i - i % per_host] for i, host in enumerate(hosts)):
            raise MXNetError(
                f"Cluster.of_ranks: the ranks are on hosts in the order {hosts}; each host must "
                "have the same number of consecutive ranks"
            )
        inside, between = [], []
        for (a, b), measured in links.measure().items():
            (inside if hosts[a] == hosts[b] else between).append(measured)
        found = {
            name: tuple(map(statistics.median, zip(*kind)))
            for name, kind in (("inside", inside), ("between", between))
            if kind
        }
        return cls(len(hosts), per_host, **{**found, **more})

    def link(self, a: int, b: int) -> Link:
        """Returns the link between two devices, by index."""
        return self.inside if a // self.per_host == b // self.per_host else self.between

    def __repr__(self) -> str:
        def described(link):
            return f"{link.seconds * 1e6:g} us and {link.rate / 1e9:g} GB/s"

        number = " or ".join(map(str, self.counts))
        if len(self.counts) > 3:
            number = f"{min(self.counts)} to {max(self.counts)}"
        return (
            f"{number} devices, {self.per_host} on each host; inside {described(self.inside)}, "
            f"between hosts {described(self.between)}"
        )


def _is_whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


class _Place(NamedTuple):
    """The device of a stage in a simulation, which has no Context."""

    number: int
    device_type: str = "simulated"


class _StagedProfile(Profile):
    """A profile with the layers' costs on the devices of a cluster. Each stage has a device."""

    def __init__(self, base, speed, between):
        """`between` returns the link between two stages, by index."""
        first = base.devices[0]
        columns = {
            rows: [
                cost._replace(
                    forward=cost.forward / speed,
                    backward=cost.backward / speed,
                    input_gradients=cost.input_gradients / speed,
                    weight_gradients=cost.weight_gradients / speed,
                )
                for cost in costs
            ]
            for rows, costs in base.costs[first].items()
        }
        places = [_Place(number) for number in range(between.count)]
        super().__init__(
            base.layers,
            places,
            base.rows,
            dict.fromkeys(places, columns),
            dict.fromkeys(places, base.update[first] / speed),
            base.state_factor,
            home=places[0],
            input_bytes=base.input_bytes,
            host_overhead=base.host_overhead,
        )
        self._between = between

    def seconds_of_transfer(self, source, target, size):
        return self._between(source.number, target.number).takes(size)

    def sender_copies(self, source, target):
        return False


class _Links:
    """Function that returns the link between two stages: the slowest one over all replicas."""

    def __init__(self, cluster, replicas, stages):
        self.cluster, self.replicas, self.count = cluster, replicas, stages

    def __call__(self, a, b):
        for replica in range(self.replicas):
            link = self.cluster.link(replica * self.count + a, replica * self.count + b)
            if link is self.cluster.between:
                return link
        return self.cluster.inside

    def key(self):
        """Returns a key that is the same for meshes with equal links between stages, so their
        simulations can be shared."""
        return self.count, tuple(
            self(a, b) is self.cluster.inside
            for a in range(self.count)
            for b in range(a + 1, self.count)
        )


class Outcome(NamedTuple):
    """Predictions for one number of devices.

    ``seconds`` is the time of a step and ``rows_per_second`` the throughput of all replicas. The
    mesh has ``data`` replicas of ``stages`` stages, with ``micro_batches`` in each replica.
    ``bubble`` is the fraction of the devices' time that is idle within a replica's passes,
    ``sum_seconds`` the time to sum gradients over replicas, and ``bytes`` the maximum memory of a
    device. ``fits`` tells whether it is within the limit. ``efficiency`` is the throughput relative
    to the same number of independent devices.
    """

    devices: int
    data: int
    stages: int
    micro_batches: int
    seconds: float
    rows_per_second: float
    bubble: float
    sum_seconds: float
    bytes: int
    fits: bool
    efficiency: float


class ClusterSimulation(Tabular):
    """The result of `simulate`, shown as a table.

    Attributes
    ----------
    outcomes : list of Outcome
        One outcome for each number of devices.
    profile : Profile
        The measurements of the layers, which ``simulate(profile, cluster)`` can reuse.
    cluster : Cluster
        The simulated cluster.
    schedule : str
        The name of the schedule.

    Examples
    --------
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Dense(8, in_units=4), nn.Dense(2, in_units=8))
    >>> net.initialize()
    >>> found = mx.parallel.simulate(net, mx.parallel.Cluster(2), nd.ones((64, 4)),
    ...                              repeats=1, progress=False)
    >>> isinstance(found, mx.parallel.ClusterSimulation)
    True
    >>> found.outcomes[0].devices
    2
    """

    outcomes: list[Outcome]
    profile: Profile
    cluster: Cluster
    schedule: str

    def __init__(
        self, profile: Profile, cluster: Cluster, schedule: str, outcomes: list[Outcome]
    ) -> None:
        self.profile, self.cluster, self.schedule = profile, cluster, schedule
        self.outcomes = outcomes

    def _parts(self):
        rows = [
            (
                "devices",
                "data x stage",
                "micro-batches",
                "step ms",
                "rows/s",
                "efficiency",
                "idle",
                "sums ms",
                "bytes a device",
                "fits",
            )
        ]
        for o in self.outcomes:
            rows.append(
                (
                    str(o.devices),
                    f"{o.data} x {o.stages}",
                    str(o.micro_batches),
                    f"{o.seconds * 1e3:.2f}",
                    f"{o.rows_per_second:,.0f}",
                    f"{o.efficiency:.1%}",
                    f"{o.bubble:.1%}",
                    f"{o.sum_seconds * 1e3:.2f}",
                    f"{o.bytes:,}",
                    "yes" if o.fits else "NO",
                )
            )
        first = (
            f"{counted(self.profile.rows, 'row')} for each replica, {self.schedule}, simulated on "
            f"{self.cluster!r}"
        )
        return [first, rows]


def simulate(
    net: HybridBlock | Profile,
    cluster: Cluster,
    sample: NDArray | Sequence[NDArray] | None = None,
    *,
    labels: NDArray | Sequence[NDArray] = (),
    loss: Callable[..., Any] | None = None,
    optimizer: str | Optimizer = "sgd",
    optimizer_params: dict[str, Any] | None = None,
    schedule: str = "1f1b",
    mesh: dict[str, int] | None = None,
    micro_batches: int | Sequence[int] | None = None,
    repeats: int = 3,
    progress: bool | None = None,
) -> ClusterSimulation:
    """Predicts step time and memory of a network's training on a hypothetical cluster. The layers
    are measured on this machine, as in `plan`, and their steps simulated.

    The devices are divided into ``data`` replicas of ``stage`` stages, with one device for each
    stage. The stages of a replica are on consecutive devices. Every replica processes a batch of
    the size of `sample`. Gradients are summed over replicas after the backward passes. A sum of b
    bytes over r replicas takes ``2 (r - 1) / r * b`` bytes on each device's link, and its latency
    ``2 log2(r)`` times. Contention between links and other load on the hosts are ignored.

    Parameters
    ----------
    net : HybridBlock or Profile
        See `plan`. May be an existing profile (``plan.profile``, `ClusterSimulation.profile`), of
        which only the first device is used.
    cluster : Cluster
        The devices and links.
    sample : NDArray or list of NDArray
        A whole batch of one replica. Must be omitted with a `Profile`.
    labels, loss, optimizer, optimizer_params, repeats, progress
        See `plan`.
    schedule : str, default '1f1b'
        The name of a schedule.
    mesh : dict of str to int, optional
        ``{'stage': 4}``, ``{'data': 2}``, or both, to fix these numbers. By default, selects the
        combination with the most rows per second that fits, with up to 64 stages.
    micro_batches : int or list of int, optional
        Numbers of micro-batches to choose from; by default powers of two up to 64.

    Returns
    -------
    ClusterSimulation
        Predictions, printed as a table.

    Raises
    ------
    ValueError
        If an argument is invalid, or a mesh does not divide a number of devices.
    MXNetError
        If the mesh splits layers (``model``), which is not simulated, or has more stages than the
        network has layers.

    Examples
    --------
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Dense(8, in_units=4), nn.Dense(2, in_units=8))
    >>> net.initialize()
    >>> cluster = mx.parallel.Cluster([2, 1024], per_host=8)
    >>> found = mx.parallel.simulate(net, cluster, nd.ones((64, 4)), mesh={'stage': 2},
    ...                              repeats=1, progress=False)
    >>> [(o.devices, o.data, o.stages) for o in found.outcomes]
    [(2, 1, 2), (1024, 512, 2)]
    """
    if not isinstance(cluster, Cluster):
        raise ValueError(f"simulate: cluster must be a Cluster, not {type(cluster).__name__}")
    named(schedule, "simulate: ")
    mesh = _checked_mesh(mesh)
    if isinstance(net, Profile):
        if sample is not None:
            raise ValueError("simulate: a Profile already has its batch; sample must not be given")
        profile, counts = net, _counts(micro_batches, net.rows)
    else:
        if not isinstance(net, HybridBlock) or sample is None:
            raise ValueError("simulate: expected a HybridBlock and a sample, or a Profile")
        arrays = list(sample) if isinstance(sample, (list, tuple)) else [sample]
        counts = _counts(micro_batches, arrays[0].shape[0])
        some = sorted({counts[i * (len(counts) - 1) // (MEASURED - 1)] for i in range(MEASURED)})
        home = arrays[0].context
        profile = layer_measurement.measure(
            net, sample, [home], some, loss, labels, optimizer, optimizer_params, repeats, progress
        )
    return _Simulator(profile, cluster, schedule, mesh, counts).run()


def _checked_mesh(mesh):
    mesh = dict(mesh or {})
    for axis, size in mesh.items():
        if axis not in AXES or not _is_whole(size) or size < 1:
            raise ValueError(
                f"simulate: mesh must give positive sizes for the axes {', '.join(AXES)}, not "
                f"{axis!r}: {size!r}"
            )
    if mesh.pop("model", 1) > 1:
        raise MXNetError("simulate: split layers ('model') are not supported")
    return mesh


def _counts(micro_batches, rows):
    if micro_batches is None:
        return [2**k for k in range(7) if 2**k <= rows]
    counts = [micro_batches] if _is_whole(micro_batches) else sorted(set(micro_batches))
    if not counts or not all(_is_whole(m) and 1 <= m <= rows for m in counts):
        raise ValueError(
            f"simulate: a batch of {counted(rows, 'row')} cannot be divided into "
            f"{micro_batches!r} micro-batches"
        )
    return counts


class _Simulator:
    def __init__(self, profile, cluster, schedule, mesh, counts):
        self.profile, self.cluster, self.schedule = profile, cluster, schedule
        self.mesh, self.counts = mesh, counts
        self._passes = {}
        self.layers = sum(layer.follows is None for layer in profile.layers)

    def run(self):
        alone = max(self._outcome(1, 1, m, 1.0).rows_per_second for m in self.counts)
        found = [self._best(devices, alone) for devices in self.cluster.counts]
        return ClusterSimulation(self.profile, self.cluster, self.schedule, found)

    def _shapes(self, devices):
        """Returns the (data, stages) pairs that the mesh allows."""
        data, stages = self.mesh.get("data"), self.mesh.get("stage")
        if stages is None and data is not None and devices % data == 0:
            stages = devices // data
        if stages is not None:
            if devices % stages or (data is not None and data * stages != devices):
                raise ValueError(f"simulate: a mesh of {self.mesh} does not have {devices} devices")
            return [(devices // stages, stages)]
        if data is not None:
            raise ValueError(f"simulate: a mesh of {self.mesh} does not have {devices} devices")
        most = min(devices, MOST_STAGES)
        return [(devices // s, s) for s in range(1, most + 1) if devices % s == 0 and self._has(s)]

    def _has(self, stages):
        """True if there are enough layers for the given number of stages."""
        rounds = named(self.schedule).rounds if stages > 1 else 1
        return self.layers >= stages * rounds

    def _best(self, devices, alone):
        found = []
        for data, stages in self._shapes(devices):
            if not self._has(stages):
                raise MXNetError(
                    f"simulate: the network has {counted(self.layers, 'layer')}, too few for "
                    f"{stages} stages with the schedule {self.schedule!r}"
                )
            found += [o for m in self.counts if (o := self._outcome(data, stages, m, alone))]
        if not found:
            raise MXNetError(
                f"simulate: the schedule {self.schedule!r} supports none of the numbers of "
                f"micro-batches {self.counts}"
            )
        return min(found, key=lambda o: (not o.fits, -o.rows_per_second if o.fits else o.bytes))

    def _outcome(self, data, stages, micro_batches, alone):
        """Returns the `Outcome` of a mesh, or None if the schedule does not support the number of
        micro-batches."""
        if stages > 1 and not named(self.schedule).takes(micro_batches):
            return None
        cluster, devices = self.cluster, data * stages
        passes = self._simulated(_Links(cluster, data, stages), micro_batches)
        first, last = cluster.link(0, 0), cluster.link(0, (data - 1) * stages)
        link = last if data > 1 else first
        ends, most_sums, trained = [], 0.0, _trained(self.profile, passes.placement)
        update = self.profile.update[self.profile.devices[0]] / cluster.speed
        for stage in range(stages):
            own = [s for s, where in enumerate(passes.where) if where == stage]
            end = max(
                (end for a, (_, end) in passes.simulation.spans.items() if a.stage in own),
                default=0.0,
            )
            sums = 0.0
            if data > 1:
                sums = 2 * (data - 1) / data * trained[stage] / link.rate
                sums += 2 * math.ceil(math.log2(data)) * link.seconds
            most_sums = max(most_sums, sums)
            ends.append(end + sums + update * trained[stage])
        work = sum(end - begin for begin, end in passes.simulation.spans.values())
        here = min(cluster.per_host, devices)
        # If a host can run fewer devices at once (at_once) than the schedule uses on it, the step
        # takes at least the host's total work divided by at_once.
        busy = work / stages * here / min(cluster.at_once, here)
        seconds = max(ends) + self.profile.host_overhead
        seconds = max(seconds, seconds - passes.simulation.makespan + busy)
        size = max(map(sum, passes.memory))
        rate = data * self.profile.rows / seconds
        return Outcome(
            devices,
            data,
            stages,
            micro_batches,
            seconds,
            rate,
            passes.simulation.bubble,
            most_sums,
            size,
            cluster.memory is None or size <= cluster.memory,
            rate / (alone * devices),
        )

    def _simulated(self, between, micro_batches):
        """Returns the fastest candidate with the given number of stages."""
        key = between.key(), micro_batches
        if key not in self._passes:
            profile = _StagedProfile(self.profile, self.cluster.speed, between)
            limits = dict.fromkeys(profile.devices, self.cluster.memory)
            search = Search(profile, limits, [micro_batches], [self.schedule])
            # A single device needs no schedule.
            name = self.schedule if between.count > 1 else "1f1b"
            order = list(range(between.count)) * named(name).rounds
            splits = search.splits(order, micro_batches, name)
            if not splits:  # no split fits into memory, so ignore the limit
                search = Search(profile, None, [micro_batches], [name])
                splits = search.splits(order, micro_batches, name)
            splits = sorted(splits, key=lambda p: search.bound(p, micro_batches, name))
            candidates = [search.simulated(p, micro_batches, name) for p in splits[:TRIED]]
            self._passes[key] = min(candidates, key=lambda c: c.seconds)
        return self._passes[key]


def _trained(profile, placement):
    """Returns the bytes of trained parameters on each device. `placement` has the devices of the
    free layers; the remaining layers follow one of them."""
    devices = iter(placement)
    where, sizes = [], {}
    for layer in profile.layers:
        where.append(next(devices) if layer.follows is None else where[layer.follows])
        sizes[where[-1]] = sizes.get(where[-1], 0) + trained_bytes(layer)
    return sizes
