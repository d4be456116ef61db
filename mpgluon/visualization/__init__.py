"""Symbols drawn as graphs and printed as tables.

The Python package graphviz and Graphviz's program ``dot`` lay graphs out if installed. Otherwise
the drawings are SVG with a simpler layout.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from .. import _core
from ..gluon import HybridBlock
from ..gluon.block._symbol_block import symbol_of
from ..symbol import Symbol
from ..symbol._graph import entries_of, placement, row_name, states, topological
from ..symbol._infer import Inference, known, shown
from ._drawing import Drawing, Edge, Node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphviz import Digraph
    from numpy.typing import DTypeLike

    from ..context import Context

__all__ = ["plot_network", "print_summary"]

# Names of op inputs that are parameters. States are parameters as well.
_PARAMETERS = ("weight", "bias", "gamma", "beta", "parameters")
# Parameters that distinguish nodes of the same op.
_DETAILS = {
    "Convolution": ("kernel", "stride", "num_filter"),
    "Deconvolution": ("kernel", "stride", "num_filter"),
    "Pooling": ("pool_type", "kernel", "stride"),
    "FullyConnected": ("num_hidden",),
    "Activation": ("act_type",),
    "LeakyReLU": ("act_type",),
    "Dropout": ("p",),
    "RNN": ("mode", "state_size"),
    "Embedding": ("input_dim", "output_dim"),
}
_KINDS = {
    "Convolution": 1,
    "Deconvolution": 1,
    "FullyConnected": 1,
    "RNN": 1,
    "dot": 1,
    "batch_dot": 1,
    "Activation": 2,
    "LeakyReLU": 2,
    "BatchNorm": 3,
    "LayerNorm": 3,
    "Pooling": 4,
    "Concat": 5,
    "Flatten": 5,
    "Reshape": 5,
    "softmax": 6,
    "SoftmaxOutput": 6,
    "LinearRegressionOutput": 6,
}
# Colors of inputs, of kinds of ops, and of all other ops; groups and devices use the same sequence.
_COLOURS = (
    "#e9e9ed",
    "#f4a59a",
    "#fbe7a1",
    "#c9b8e8",
    "#a8c8ec",
    "#f8c58c",
    "#bfe3a5",
    "#f3c6dd",
    "#a5ddd3",
)


def _is_parameter(node, users, given):
    """True if a variable is a parameter (or state) of the ops that read it."""
    if node.call is not None or node.name in given:
        return False
    uses = [(user.call, len(user.inputs), i) for user, i in users.get(node, ())]
    return bool(uses) and all(
        call.input_names(count)[i] in _PARAMETERS or call.states(count)[i]
        for call, count, i in uses
    )


def _users(order):
    users = {}
    for node in order:
        for i, (source, _) in enumerate(node.inputs):
            users.setdefault(source, []).append((node, i))
    return users


def _shape_text(shape):
    return "x".join(map(str, shape))


def print_summary(
    symbol: Symbol,
    shape: dict[str, tuple[int, ...]] | None = None,
    line_length: int = 120,
    positions: Sequence[float] = (0.44, 0.64, 0.74, 1.0),
) -> None:
    """Prints a table of the symbol's nodes.

    Columns are output shapes without the batch, numbers of parameters (each counted at its first
    use), and inputs.

    Parameters
    ----------
    symbol : Symbol
        The symbol to describe.
    shape : dict of str to tuple, optional
        The shapes of inputs. Without it, only shapes in the symbol itself are known, and unknown
        parameters count as 0.
    line_length : int, default 120
        The length of a line in characters.
    positions : sequence of float or int
        The ends of the columns, as fractions of a line or in characters.

    Examples
    --------
    >>> symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    >>> mx.viz.print_summary(symbol, {"data": (1, 3)}, line_length=70)
    ______________________________________________________________________
    ...
    Total params: 8
    ...
    """
    if not isinstance(symbol, Symbol):
        raise TypeError(f"print_summary: symbol must be a Symbol, not {type(symbol).__name__}")
    if (
        shape is not None
        and symbol.infer_shape_partial(**shape)[1]
        and symbol.infer_shape(**shape)[1] is None
    ):
        raise ValueError("Input shape is incomplete")
    order = topological(entries_of(symbol))
    users, inference, given = (
        _users(order),
        Inference(entries_of(symbol), dict(shape or {}), {}),
        shape or {},
    )
    heads = {node for node, _ in entries_of(symbol)}
    ends = (
        [int(line_length * part) for part in positions] if positions[-1] <= 1 else list(positions)
    )

    def row(*fields):
        line = ""
        for field, end in zip(fields, ends):
            line = (line + str(field))[:end].ljust(end)
        print(line)

    def size_of(variable):
        found = inference.of([variable])[0][0]
        size = 1
        for part in found if known(found) else (0,):
            size *= part
        return size

    written, counted, total = states(order), set(), 0
    rows = [
        node
        for node in order
        if node.call is not None or node in heads or not _is_parameter(node, users, given)
    ]
    print("_" * line_length)
    row("Layer (type)", "Output Shape", "Param #", "Previous Layer")
    print("=" * line_length)
    for node in rows:
        mine = [
            source
            for source, _ in node.inputs
            if _is_parameter(source, users, given)
            and source not in counted
            and source not in written
        ]
        counted.update(mine)
        count = sum(map(size_of, dict.fromkeys(mine)))
        total += count
        before = [
            source.name for source, _ in node.inputs if not _is_parameter(source, users, given)
        ] or [""]
        out = inference.of([node])[0][0] if shape is not None else None
        kind = "null" if node.call is None else node.call.name
        row(f"{node.name}({kind})", _shape_text(out[1:]) if known(out) else "", count, before[0])
        for name in before[1:]:
            row("", "", "", name)
        print(("=" if node is rows[-1] else "_") * line_length)
    print(f"Total params: {total}")
    print("_" * line_length)


def _label(node):
    if node.call is None:
        return node.name
    details = [
        node.attrs[key].strip("()").replace(", ", "x")
        for key in _DETAILS.get(row_name(node.call), ())
        if key in node.attrs
    ]
    return "\n".join([node.name, node.call.name + (f" {', '.join(details)}" if details else "")])


def _places(order, group2ctx, parameters):
    """Returns the device or group of each node as text, and these in order.

    Devices are known with `group2ctx`, from devices in the symbol, or from `parameters` (name ->
    Context).
    """
    found = {}
    there = {
        node: parameters[node.name]
        for node in order
        if node.call is None and node.name in parameters
    }
    devices = (
        placement(order, group2ctx, there)
        if group2ctx or there or any(node.call is not None and node.call.copies for node in order)
        else {}
    )
    _at_parameters(order, devices, there)
    for node in order:
        place = (
            str(devices[node]) if node in devices else None if group2ctx else node.get("ctx_group")
        )
        if place is not None:
            found[node] = place
    return found, sorted(set(found.values()))


def _at_parameters(order, devices, parameters):
    """Moves ops to the devices of their parameters, or else of their inputs.

    A block placed by `net.place` moves its inputs to its device, which its symbol does not record.
    """
    for node in order if parameters else ():
        if node.call is None or node.call.copies:
            continue
        own = [parameters[source] for source, _ in node.inputs if source in parameters]
        ops = [devices.get(source) for source, _ in node.inputs if source.call is not None]
        place = next(filter(None, [*own, *ops]), None)
        if place is not None:
            devices[node] = place


def plot_network(
    symbol: Symbol | HybridBlock,
    title: str = "plot",
    save_format: str = "pdf",
    shape: dict[str, tuple[int, ...]] | None = None,
    dtype: dict[str, DTypeLike] | None = None,
    node_attrs: dict[str, str] | None = None,
    hide_weights: bool = True,
    group2ctx: dict[str, Context] | None = None,
) -> Digraph | Drawing:
    """Draws the graph of a symbol.

    Nodes are colored by kind of op; if ops belong to groups (``AttrScope(ctx_group=...)``), by
    group, and with `group2ctx` by device. Edges between groups or devices are thick.

    Parameters
    ----------
    symbol : Symbol or HybridBlock
        A block that was hybridized and called is drawn with the devices of its parameters.
    title, save_format : str
        The name and the format of the file that ``render()`` of the result writes.
    shape : dict of str to tuple, optional
        The shapes of inputs; edges then show the shapes of arrays.
    dtype : dict of str to dtype, optional
        The dtypes of inputs; edges then show the dtypes of arrays.
    node_attrs : dict of str to str, optional
        Graphviz attributes of all nodes.
    hide_weights : bool, default True
        True to omit parameters.
    group2ctx : dict of str to Context, optional
        The device of each group; the drawing then shows devices.

    Returns
    -------
    graphviz.Digraph or Drawing
        Jupyter displays it. With the package graphviz it is a ``Digraph``, whose ``view()`` and
        ``render()`` need the program ``dot`` for all formats but SVG. If the program is missing,
        its attribute ``drawing`` is shown, a `Drawing` with mpgluon's own layout, which ignores
        `node_attrs`. Without the package the result is the `Drawing` itself; its
        ``save("net.svg")`` writes a file. Installing Graphviz (``pip install graphviz`` and
        ``apt install graphviz``) enables its layout.

    Raises
    ------
    TypeError
        If `symbol` is of another type.
    ValueError
        If shapes or dtypes are requested but do not follow from the given ones.
    """
    parameters = {}
    if isinstance(symbol, HybridBlock):
        parameters = {name: param.list_ctx()[0] for name, param in symbol.collect_params().items()}
        symbol = symbol_of(symbol)
    if not isinstance(symbol, Symbol):
        raise TypeError(
            f"plot_network: symbol must be a Symbol or a HybridBlock, not {type(symbol).__name__}"
        )
    order = topological(entries_of(symbol))
    _warn_of_repeated([node.name for node in order])
    types = {name: _core.dtype_name(one) for name, one in (dtype or {}).items()}
    inference = Inference(entries_of(symbol), dict(shape or {}), types)
    _check_complete(symbol, order, inference, shape, dtype)
    places, colours = _places(order, group2ctx, parameters)
    users = _users(order)
    hidden = {node for node in order if hide_weights and _is_parameter(node, users, shape or {})}
    drawing, boxes = Drawing(title), {}
    for node in order:
        if node not in hidden:
            label = _label(node).split("\n")
            boxes[node] = Node(label, _colour(node, places, colours), oval=node.call is None)
    drawing.nodes = list(boxes.values())
    for node in order:
        for source, index in node.inputs:
            if source in hidden:
                continue
            desc = inference.values[inference.place[source]][index]
            crosses = node in places and source in places and places[node] != places[source]
            label = _edge_label(desc, shape is not None, dtype is not None)
            drawing.edges.append(Edge(boxes[source], boxes[node], label, crosses))
    if colours:
        devices = group2ctx or parameters or "(" in colours[0]
        fills = {place: _place_colour(i) for i, place in enumerate(colours)}
        drawing.legend = ("devices" if devices else "groups", fills)
    return _for_graphviz(drawing, save_format, node_attrs or {})


def _for_graphviz(drawing, save_format, node_attrs):
    """Converts the drawing to Graphviz if its package is installed; else returns the drawing."""
    try:
        from ._dot import NetworkGraph
    except ImportError:
        return drawing
    graph = NetworkGraph(
        name=drawing.title,
        format=save_format,
        node_attr={**_NODE, **node_attrs},
        edge_attr={"fontname": "Helvetica", "fontsize": "9", "color": "#5b6270"},
    )
    graph.drawing = drawing
    graph.attr(rankdir="BT")
    ids = {id(node): f"n{i}" for i, node in enumerate(drawing.nodes)}
    for node in drawing.nodes:
        form = {"shape": "oval"} if node.oval else {}
        graph.node(ids[id(node)], "\n".join(node.lines), fillcolor=node.fill, **form)
    for edge in drawing.edges:
        graph.edge(
            ids[id(edge.source)],
            ids[id(edge.target)],
            label=edge.label,
            **({"penwidth": "2.5", "color": "#b3261e"} if edge.strong else {}),
        )
    if drawing.legend[1]:
        _draw_legend(graph, *drawing.legend)
    return graph


_NODE = {
    "shape": "box",
    "style": "rounded,filled",
    "fontname": "Helvetica",
    "fontsize": "11",
    "color": "#5b6270",
}


def _warn_of_repeated(names):
    if len(set(names)) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        warnings.warn(
            "There are multiple variables with the same name in your graph, this may result in "
            "cyclic graph. Repeated names: " + ",".join(repeated),
            RuntimeWarning,
            stacklevel=3,
        )


def _check_complete(symbol, order, inference, shape, dtype):
    """Raises ValueError if shapes or dtypes are requested but do not follow from the given ones."""
    descs = [
        desc
        for node, values in zip(order, inference.values)
        if node.call is not None
        for desc in values
    ]
    for what, wanted, complete in (
        ("shape", shape, all(known(desc[0]) for desc in descs)),
        ("type", dtype, all(desc[1] for desc in descs)),
    ):
        if wanted is not None and not complete:
            raise ValueError(
                f"Input {what} is incomplete: pass the {what}s of "
                f"{', '.join(symbol.list_inputs())} that cannot be inferred"
            )


def _place_colour(number):
    """Returns the color of a device or group; the first color is for nodes without one."""
    return _COLOURS[1 + number % (len(_COLOURS) - 1)]


def _colour(node, places, colours):
    """Returns the color of a node.

    It is the color of the node's device or group, or of its kind if the graph has none. Variables,
    and nodes without a device or group in a graph with some, get the first color.
    """
    if node in places:
        return _place_colour(colours.index(places[node]))
    if colours or node.call is None:
        return _COLOURS[0]
    return _COLOURS[_KINDS.get(row_name(node.call), 8)]


def _edge_label(desc, with_shape, with_dtype):
    """Returns the shape, without the batch axis, and the dtype of an array as text."""
    shape, dtype = shown(desc[0]), desc[1]
    parts = []
    if with_shape:
        parts.append(_shape_text(shape[1:] if shape and len(shape) > 1 else shape or ()))
    if with_dtype and dtype:
        parts.append(dtype)
    return " ".join(parts)


def _draw_legend(graph, label, places):
    with graph.subgraph(name="cluster_places") as legend:
        legend.attr(label=label, fontname="Helvetica", color="#c4c8d0")
        for i, (place, fill) in reversed(list(enumerate(places.items()))):
            legend.node(f"place{i}", place, fillcolor=fill, shape="box")
