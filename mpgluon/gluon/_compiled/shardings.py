"""How a partitioned network is divided: the report of the compiler's partitioning pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._internal.tables import Tabular

if TYPE_CHECKING:
    from collections.abc import Iterator


class Shardings(Tabular):
    """The divided values of a partitioned network, and the transfers between their layouts.
    Printing it shows a table.

    It is a sequence of dicts, one for each divided value: ``op``, ``block`` (path), ``shape`` (of
    the whole), ``cuts`` (dimension -> axes of the mesh) and ``because`` (axis -> annotation).
    `transfers` has a dict for each value that is moved in the forward pass: ``kind``, ``op``,
    ``block``, ``shape`` and ``bytes``. The kinds are 'copy' (a whole value, to other devices),
    'scatter', 'gather', 'all_to_all', 'ring' (parts of keys and values, one after another),
    'reduce' and 'reduce_scatter'. The backward pass moves the gradients the other way.
    """

    def __init__(self, text: str) -> None:
        self._cuts: list[dict[str, Any]] = []
        moved: dict[tuple[str, ...], int] = {}
        for line in text.splitlines():
            kind, *fields = line.split("\t")
            if kind == "cut":
                op, block, shape, *axes = fields
                self._cuts.append(_cut(op, block, shape, axes))
            elif kind == "move":
                key = tuple(fields[:4])
                moved[key] = moved.get(key, 0) + int(fields[4])
        self.transfers: list[dict[str, Any]] = [
            {"kind": kind, "op": op, "block": block, "shape": shape, "bytes": size}
            for (kind, op, block, shape), size in moved.items()
        ]

    @staticmethod
    def wanted(text: str) -> dict[int, tuple[str, int, int, int]]:
        """Returns index -> (axis of the mesh, dimension, blocks, unit) for the inputs of a program
        that are whole, but used in parts."""
        found: dict[int, tuple[str, int, int, int]] = {}
        for line in text.splitlines():
            kind, *fields = line.split("\t")
            if kind == "want":
                index, axis, *numbers = fields
                found.setdefault(int(index), (axis, *map(int, numbers)))
        return found

    def __len__(self) -> int:
        return len(self._cuts)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self._cuts[i]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._cuts)

    def _parts(self):
        if not self._cuts:
            return [
                "nothing is divided; call mesh.partition(net, plan), hybridize() and the network"
            ]
        cuts = [("divided value", "blocks", "shape", "cut along", "because of")]
        for cut in self._cuts:
            where = ", ".join(f"{dim}: {'+'.join(axes)}" for dim, axes in cut["cuts"].items())
            why = ", ".join(dict.fromkeys(cut["because"].values()))
            cuts.append((cut["op"], cut["block"], cut["shape"], where, why))
        moves = [("transfer", "of", "blocks", "shape", "bytes")]
        for one in self.transfers:
            moves.append((one["kind"], one["op"], one["block"], one["shape"], f"{one['bytes']:,}"))
        total = sum(one["bytes"] for one in self.transfers)
        return [cuts, "", moves, f"  {total:,} bytes in a forward pass"]


def _cut(op, block, shape, axes):
    cuts, because = {}, {}
    for text in axes:
        dim, axis, annotation, path = text.split(" ", 3)
        cuts.setdefault(int(dim), []).append(axis)
        because[axis] = f"{annotation} of {path}" if path else f"{annotation} of the input"
    return {"op": op, "block": block, "shape": shape, "cuts": cuts, "because": because}
