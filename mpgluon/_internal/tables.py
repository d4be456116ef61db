"""Objects shown as lines and tables: text in `repr`, HTML in notebooks."""

from __future__ import annotations

import html

_LEFT = ("blocks", "layers")  # titles of left-aligned columns, which hold long names


class Tabular:
    """Base of objects that are shown as lines of text and tables.

    A subclass defines the method ``_parts``, which returns lines and tables. A table is a list of
    rows, which are tuples of text; the first row holds the column titles.
    """

    def __repr__(self) -> str:
        lines = []
        for part in self._parts():
            lines += [part] if isinstance(part, str) else aligned(part)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return "".join(
            f"<div>{html.escape(part.strip())}</div>" if isinstance(part, str) else html_table(part)
            for part in self._parts()
        )


def aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Returns the lines of a table, with all columns but those in `_LEFT` right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    ways = [str.ljust if title in _LEFT else str.rjust for title in rows[0]]
    return [
        "  ".join(["", *(way(cell, width) for way, cell, width in zip(ways, row, widths))]).rstrip()
        for row in rows
    ]


def html_table(rows: list[tuple[str, ...]]) -> str:
    """Returns an HTML table whose columns are aligned as in `aligned`."""
    sides = ["left" if title in _LEFT else "right" for title in rows[0]]
    lines = []
    for kind, row in zip(["th", *["td"] * (len(rows) - 1)], rows):
        cells = [
            f'<{kind} style="text-align: {side}">{html.escape(cell)}</{kind}>'
            for side, cell in zip(sides, row)
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"
