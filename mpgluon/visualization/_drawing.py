"""Layered graph drawing to SVG, for machines without Graphviz.

Each node is in a layer above all its inputs. The barycenter heuristic orders the nodes in a layer,
and their positions minimize the squared distance to the means of their neighbors without overlap.
"""

from __future__ import annotations

import dataclasses
import html
import os

_CHARACTER, _LINE = 6.6, 15  # width of a character and height of a line, in pixels
_GAP, _RISE = 24, 34  # distances between nodes, and between layers, in pixels
_SWEEPS = 12


@dataclasses.dataclass
class Node:
    """A box with lines of text; a node without text is a bend of a long edge."""

    lines: list[str]
    fill: str = ""
    oval: bool = False
    x: float = 0.0  # position of the box's center
    y: float = 0.0
    layer: int = 0

    @property
    def width(self) -> float:
        """The width in pixels."""
        return max(map(len, self.lines)) * _CHARACTER + 22 if self.lines else 8

    @property
    def height(self) -> float:
        """The height in pixels."""
        return len(self.lines) * _LINE + 14 if self.lines else 0


@dataclasses.dataclass
class Edge:
    """An edge from a node to a node that uses its result."""

    source: Node
    target: Node
    label: str = ""
    strong: bool = False


@dataclasses.dataclass
class Drawing:
    """A drawing of a graph, which notebooks display. `save` writes it as SVG."""

    title: str
    nodes: list[Node] = dataclasses.field(default_factory=list)  # in topological order
    edges: list[Edge] = dataclasses.field(default_factory=list)
    legend: tuple[str, dict[str, str]] = ("", {})  # title, and a dict from text to fill color

    def __repr__(self) -> str:
        return (
            f"Drawing of {self.title!r}: {len(self.nodes)} nodes, {len(self.edges)} edges; "
            "save('file.svg') writes it"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the drawing to an SVG file, which browsers display."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.svg())

    def _repr_svg_(self) -> str:
        return self.svg()

    def svg(self) -> str:
        """Returns the drawing as SVG text."""
        layers, chains = _layered(self.nodes, self.edges)
        _arrange(layers, chains)
        return _svg(self, layers, chains)


def _layered(nodes, edges):
    """Returns the nodes by layer, lowest first, with bends of long edges, and the edges' nodes."""
    into: dict[int, list[Node]] = {}
    out: dict[int, list[Node]] = {}
    for edge in edges:
        into.setdefault(id(edge.target), []).append(edge.source)
        out.setdefault(id(edge.source), []).append(edge.target)
    for node in nodes:
        node.layer = 1 + max((one.layer for one in into.get(id(node), ())), default=-1)
    for node in reversed(nodes):  # inputs are just below their first reader
        if id(node) not in into and id(node) in out:
            node.layer = min(one.layer for one in out[id(node)]) - 1
    layers: list[list[Node]] = [[] for _ in range(1 + max((n.layer for n in nodes), default=0))]
    for node in nodes:
        layers[node.layer].append(node)
    chains = []
    for edge in edges:
        chain = [edge.source]
        for layer in range(edge.source.layer + 1, edge.target.layer):
            chain.append(Node([], layer=layer))
            layers[layer].append(chain[-1])
        chains.append([*chain, edge.target])
    return layers, chains


def _arrange(layers, chains):
    """Orders the layers and sets the positions of all nodes."""
    below: dict[int, list[Node]] = {}
    above: dict[int, list[Node]] = {}
    for chain in chains:
        for low, high in zip(chain, chain[1:]):
            below.setdefault(id(high), []).append(low)
            above.setdefault(id(low), []).append(high)
    for layer in layers:
        _pack(layer, [0.0] * len(layer))
    for sweep in range(_SWEEPS):
        neighbours = above if sweep % 2 else below
        for layer in layers[::-1] if sweep % 2 else layers:
            means = {id(node): _mean(neighbours.get(id(node), []), node.x) for node in layer}
            layer.sort(key=lambda node: means[id(node)])
            _pack(layer, [means[id(node)] for node in layer])
    for _ in range(_SWEEPS):
        for layer in layers:
            wanted = [
                _mean(below.get(id(node), []) + above.get(id(node), []), node.x) for node in layer
            ]
            _pack(layer, wanted)
    y = 0.0
    for layer in layers[::-1]:  # top layer, which has the results, first
        height = max((node.height for node in layer), default=0)
        for node in layer:
            node.y = y + height / 2
        y += height + _RISE


def _mean(nodes, otherwise):
    return sum(node.x for node in nodes) / len(nodes) if nodes else otherwise


def _pack(layer, wanted):
    """Sets the non-overlapping positions of a layer that are closest to the wanted ones.

    This is least-squares isotonic regression by the pool-adjacent-violators algorithm.
    """
    offsets, offset = [], 0.0
    for before, node in zip([None, *layer], layer):
        offset += (before.width + node.width) / 2 + _GAP if before is not None else 0
        offsets.append(offset)
    blocks: list[list[float]] = []  # sum and number of wanted positions, without the offsets
    for place, offset in zip(wanted, offsets):
        blocks.append([place - offset, 1])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] > blocks[-1][0] * blocks[-2][1]:
            total, number = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += number
    places = [total / number for total, number in blocks for _ in range(int(number))]
    for node, place, offset in zip(layer, places, offsets):
        node.x = place + offset


def _svg(drawing, layers, chains):
    nodes = [node for layer in layers for node in layer]
    left = min((node.x - node.width / 2 for node in nodes), default=0) - 12
    right = max((node.x + node.width / 2 for node in nodes), default=0) + 12
    bottom = max((node.y + node.height / 2 for node in nodes), default=0) + 12
    title, fills = drawing.legend
    top = -12.0 - (len(fills) + 1.5) * (_LINE + 6) * bool(fills)
    labelled = [(title, ""), *fills.items()] if fills else []
    right = max([right, *(left + 60 + len(text) * _CHARACTER for text, _ in labelled)])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right - left:.0f}" '
        f'height="{bottom - top:.0f}" viewBox="{left:.1f} {top:.1f} {right - left:.1f} '
        f'{bottom - top:.1f}" font-family="Helvetica, Arial, sans-serif" font-size="11">',
        f"<title>{html.escape(drawing.title)}</title>",
        f'<rect x="{left:.1f}" y="{top:.1f}" width="100%" height="100%" fill="white"/>',
    ]
    for i, (text, fill) in enumerate(labelled):
        y = top + 14 + i * (_LINE + 6)
        if fill:
            parts.append(
                f'<rect x="{left + 12:.1f}" y="{y - 10:.1f}" width="22" height="14" rx="3" '
                f'fill="{fill}" stroke="#5b6270"/>'
            )
        parts.append(
            _text(left + (42 if fill else 12), y + 1, text, 'font-weight="bold"' * (not fill))
        )
    parts += [_edge(edge, chain) for edge, chain in zip(drawing.edges, chains)]
    parts += [_box(node) for node in nodes if node.lines]
    return "\n".join([*parts, "</svg>"])


def _text(x, y, text, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(text)}</text>'


def _box(node):
    x, y = node.x - node.width / 2, node.y - node.height / 2
    round_by = node.height / 2 if node.oval else 5
    parts = [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{node.width:.1f}" height="{node.height:.1f}" '
        f'rx="{round_by:.1f}" fill="{node.fill}" stroke="#5b6270"/>'
    ]
    for i, line in enumerate(node.lines):
        middle = node.y + (i - (len(node.lines) - 1) / 2) * _LINE + 4
        parts.append(_text(node.x, middle, line, 'text-anchor="middle"'))
    return "".join(parts)


def _edge(edge, chain):
    """Returns a smooth line with an arrow, through the bends of the edge."""
    colour, width = ("#b3261e", 2.5) if edge.strong else ("#5b6270", 1)
    points = [(chain[0].x, chain[0].y - chain[0].height / 2)]
    points += [(node.x, node.y) for node in chain[1:-1]]
    end, tip = chain[-1].x, chain[-1].y + chain[-1].height / 2
    points.append((end, tip + 7))
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        middle = (y0 + y1) / 2
        path += f"C{x0:.1f},{middle:.1f} {x1:.1f},{middle:.1f} {x1:.1f},{y1:.1f}"
    parts = [
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>',
        f'<path d="M{end:.1f},{tip:.1f}l-4,8h8z" fill="{colour}"/>',
    ]
    if edge.label:
        (x0, y0), (x1, y1) = points[-2:] if len(points) == 2 else points[:2]
        style = (
            f'font-size="9" fill="{colour}" stroke="white" stroke-width="3" paint-order="stroke"'
        )
        parts.append(_text((x0 + x1) / 2 + 4, (y0 + y1) / 2 + 3, edge.label, style))
    return "".join(parts)
