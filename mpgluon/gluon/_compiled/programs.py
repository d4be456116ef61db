"""The compiled signatures of `HybridBlock.compiled`, as data and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import _core
from ..._internal.tables import Tabular
from .call import LIMIT
from .shardings import Shardings

if TYPE_CHECKING:
    from collections.abc import Iterator


class CompiledPrograms(Tabular):
    """The compiled programs of a block: a sequence of dicts, one for each compiled signature.
    Printing it shows a table.

    Each dict has ``block``, the path of the compiled block, and the entries of
    `_core.CachedOp.compiled` for the signature: ``inputs``, ``train``, ``exact``, ``calls``,
    ``devices`` (name -> its ``forward`` and ``backward`` programs, which are lists of instructions,
    and the ``planned`` bytes there), ``shardings`` (`shardings` as text), ``copies``
    between devices, and ``bytes_held`` for pending backward passes.

    The entry of a pipelined block additionally has ``pipeline``, ``rows`` (of each micro-batch)
    and ``stages``. Each stage has its device, blocks, operators (``forward``, ``backward``,
    ``deferred``), ``copies`` and ``bytes_sent`` for one micro-batch. In ``devices``, ``planned``
    maps each size of a micro-batch to the bytes of the forward pass, of both passes, and of the
    arrays that arrive from other devices. ``peak`` is the peak memory of all micro-batches that
    are in flight at the same time.

    ``dropped`` is the number of evicted signatures: beyond 64, the least recently used are
    evicted.
    """

    def __init__(self, entries: list[dict[str, Any]], dropped: int = 0) -> None:
        self._entries = entries
        self.dropped = dropped

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self._entries[i]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._entries)

    def programs(self) -> str:
        """Returns the programs as text: for each signature, device and phase its operators (by
        block path), copies and waits, in execution order."""
        lines = []
        for entry in self._entries:
            lines.append(f"{entry['block']} for {'training' if entry['train'] else 'prediction'}")
            for name, device in entry["devices"].items():
                for phase in ("invariants", "forward", "backward"):
                    if device[phase]:
                        lines.append(
                            f"  {name} {phase}: " + ", ".join(map(_step_text, device[phase]))
                        )
        return "\n".join(lines)

    def shardings(self) -> Shardings:
        """Returns how the network is divided, for the signature that was compiled last (see
        `parallel.Mesh.partition`). Printing the result shows which values are cut, which annotation
        is the cause, and the transfers. Pipelines report one micro-batch.

        Examples
        --------
        >>> mesh = mx.parallel.Mesh({'model': 2}, [mx.cpu(0), mx.cpu(1)])
        >>> net = mx.gluon.nn.Dense(4, in_units=6)
        >>> net.initialize()
        >>> _ = mesh.partition(net, {'weight': 'model'})
        >>> net.hybridize()
        >>> _ = net(mx.nd.ones((2, 6)))
        >>> [(t['kind'], t['op'], t['bytes']) for t in net.compiled().shardings().transfers]
        [('copy', 'input', 48), ('scatter', 'input', 8), ('gather', 'FullyConnected', 16)]
        """
        return Shardings(self._entries[-1]["shardings"] if self._entries else "")

    def _parts(self):
        if not self._entries:
            return [
                "nothing is compiled yet; call hybridize(), then the block (see step.compiled() "
                "for the programs of a TrainStep)"
            ]
        devices = list(dict.fromkeys(name for entry in self._entries for name in entry["devices"]))
        rows = [("device", "held bytes", "peak held")]
        for name in devices:
            stats = _core.memory_stats(name)
            rows.append((name, f"{stats['held']:,}", f"{stats['peak_held']:,}"))
        dropped = (
            [
                f"{self.dropped} more compiled programs were evicted (only the {LIMIT} most "
                "recently used are kept)",
                "",
            ]
            if self.dropped
            else []
        )
        parts = [part for entry in self._entries for part in (*_entry_parts(entry), "")]
        return [*parts, *dropped, "memory of all arrays in this process, with cached blocks", rows]


def _pipeline_parts(entry, lines):
    """Returns the tables of a pipelined block."""
    counts = [f"{entry['rows'].count(size)} of {size}" for size in dict.fromkeys(entry["rows"])]
    rows = [
        (
            "stage",
            "device",
            "forward ops",
            "backward ops",
            "deferred ops",
            "copies out",
            "bytes out",
            "blocks",
        )
    ]
    for number, stage in enumerate(entry["stages"]):
        ops = [f"{len(stage[kind]):,}" for kind in ("forward", "backward", "deferred")]
        rows.append(
            (
                str(number),
                stage["device"],
                *ops,
                f"{stage['copies']:,}",
                f"{stage['bytes_sent']:,}",
                stage["blocks"],
            )
        )
    sizes = list(dict.fromkeys(entry["rows"]))
    devices = [
        (
            "device",
            "segments",
            *[
                f"planned for {size} rows: {part}"
                for size in sizes
                for part in ("forward", "both passes", "arriving")
            ],
            "peak of all",
        )
    ]
    for name, device in entry["devices"].items():
        planned = [f"{number:,}" for size in sizes for number in device["planned"][size]]
        devices.append((name, f"{device['segments']:,}", *planned, f"{device['peak']:,}"))
    lines[0] = lines[0].replace(" operators,", " operators for each micro-batch,", 1)
    return [*lines, f"  {entry['pipeline']}; rows: {', '.join(counts)}", rows, devices]


def _entry_parts(entry):
    """Returns lines and tables that describe a signature."""
    arrays = [f"{dtype} {shape} {device}" for shape, dtype, device, _ in entry["inputs"]]
    if len(arrays) > 4:
        arrays = [*arrays[:3], f"... {len(arrays)} arrays in all"]
    mode = "training" if entry["train"] else "prediction"
    where = _part_text(entry["part"]) if "part" in entry else ""
    lines = [
        f"{entry['block']}{where} for {mode}{', exact' if entry['exact'] else ''}: {entry['ops']} "
        f"operators, called {entry['calls']} {'time' if entry['calls'] == 1 else 'times'}",
        f"  inputs: {'; '.join(arrays)}",
    ]
    if "pipeline" in entry:
        return _pipeline_parts(entry, lines)
    rows = [
        (
            "device",
            "forward ops",
            "backward ops",
            "fused groups",
            "recomputed",
            "copies out",
            "bytes out",
            "planned: forward",
            "saved",
            "backward",
            "arriving",
            "kept",
            "total",
        )
    ]
    for name, device in entry["devices"].items():
        ops = [
            sum(step["kind"] == "run" for step in device[phase])
            for phase in ("forward", "backward")
        ]
        ops.append(
            sum("fused" in step for phase in ("forward", "backward") for step in device[phase])
        )
        ops.append(sum(step.get("recomputed", False) for step in device["backward"]))
        sent = [
            step["bytes"]
            for phase in ("forward", "backward")
            for step in device[phase]
            if step["kind"] == "copy"
        ]
        planned = [
            device["planned"][part]
            for part in ("forward", "saved", "backward", "lanes", "kept", "total")
        ]
        rows.append((name, *[f"{number:,}" for number in (*ops, len(sent), sum(sent), *planned)]))
    shown = [
        i
        for i, title in enumerate(rows[0])
        if title not in ("fused groups", "recomputed", "kept")
        or any(row[i] != "0" for row in rows[1:])
    ]
    return [*lines, [[row[i] for i in shown] for row in rows]]


def _part_text(part):
    """Returns a text that identifies one part of a split block by its loop or branch body and by
    the steps that precede it (see `graph_breaks.Split.compiled`)."""
    steps = [
        name if shapes is None else f"{name} -> {', '.join(map(str, shapes))}"
        for name, shapes in part["after"]
    ]
    return (f", {part['body']}" if part["body"] else "") + (
        f", after {' and '.join(steps)}" if steps else ", first part" if not part["body"] else ""
    )


def _step_text(step):
    if step["kind"] == "run":
        return f"{step['scope']}/{step['op']}" if step.get("scope") else step["op"]
    if step["kind"] == "copy":
        return f"copy of {step['bytes']:,} bytes to {step['to']}"
    return step["kind"]
