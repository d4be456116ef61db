"""Symbols as tables and as drawings."""

import sys
from xml.etree import ElementTree

import pytest

import mpgluon as mx
from support.devices import on


def network():
    with mx.AttrScope(ctx_group="a"):
        net = mx.sym.Convolution(mx.sym.Variable("data"), num_filter=4, kernel=(3, 3), name="conv")
        net = mx.sym.Activation(mx.sym.BatchNorm(net, name="bn"), act_type="relu", name="act")
    with mx.AttrScope(ctx_group="b"):
        shared = mx.sym.Variable("shared_weight")
        net = mx.sym.FullyConnected(net, shared, num_hidden=8, no_bias=True, name="fc1")
        other = mx.sym.FullyConnected(
            mx.sym.Variable("more"), shared, num_hidden=8, no_bias=True, name="fc2"
        )
        return mx.sym.elemwise_add(net, other, name="sum")


SHAPES = {"data": (2, 3, 6, 6), "more": (2, 64)}


def test_print_summary_lists_layers_and_parameters(capsys):
    mx.viz.print_summary(network(), SHAPES, line_length=100)
    lines = capsys.readouterr().out.splitlines()
    cells = {
        line.split("(")[0]: line.split()
        for line in lines
        if "(" in line and not line.startswith("Layer")
    }
    assert cells["conv"] == ["conv(Convolution)", "4x4x4", "112", "data"]
    assert cells["bn"] == ["bn(BatchNorm)", "4x4x4", "8", "conv"]
    assert cells["fc1"] == ["fc1(FullyConnected)", "8", "512", "act"]
    assert cells["fc2"] == ["fc2(FullyConnected)", "8", "0", "more"]  # shares its weight
    assert lines[
        lines.index(next(line for line in lines if line.startswith("sum"))) + 1
    ].split() == ["fc2"]
    assert "Total params: 632" in lines
    assert all(len(line) == 100 for line in lines if set(line) <= {"_", "="})
    mx.viz.print_summary(network())
    assert "Total params: 4\n" in capsys.readouterr().out  # only variables with known shapes
    with pytest.raises(TypeError, match="must be a Symbol"):
        mx.viz.print_summary("net")
    with pytest.raises(ValueError, match="incomplete"), pytest.warns(UserWarning):
        mx.viz.print_summary(network(), {"data": (2, 3, 6, 6)})


def test_plot_network_draws_nodes_and_edges():
    pytest.importorskip("graphviz")
    graph = mx.viz.plot_network(
        network(),
        title="net",
        save_format="svg",
        shape=SHAPES,
        dtype={"data": "float32", "more": "float32"},
    )
    source = graph.source
    assert graph.name == "net" and graph.format == "svg"
    assert "Convolution 3x3, 4" in source
    assert "conv_weight" not in source
    assert "bn_moving_mean" not in source
    assert 'label="3x6x6 float32"' in source
    assert "label=groups" in source
    assert "penwidth=2.5" in source
    assert "shared_weight" in mx.viz.plot_network(network(), hide_weights=False).source
    placed = mx.viz.plot_network(
        network(), group2ctx={"a": mx.cpu(0), "b": mx.cpu(3)}, node_attrs={"shape": "ellipse"}
    ).source
    assert '"cpu(0)"' in placed
    assert '"cpu(3)"' in placed
    assert "shape=ellipse" in placed
    assert "label=devices" in placed
    same = mx.viz.plot_network(network(), group2ctx={"a": mx.cpu(3), "b": mx.cpu(3)}).source
    assert "penwidth" not in same
    moved = mx.viz.plot_network(mx.sym.relu(mx.sym.var("x").as_in_context(mx.cpu(2)))).source
    assert '"cpu(2)"' in moved
    plain = mx.viz.plot_network(mx.sym.relu(mx.sym.var("x"))).source
    assert "cluster" not in plain


def test_plot_network_draws_a_block_over_devices():
    pytest.importorskip("graphviz")

    class Split(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__(prefix="s_")
            with self.name_scope():
                self.a, self.b = mx.gluon.nn.Dense(3), mx.gluon.nn.Dense(2)

        def hybrid_forward(self, F, x):
            return self.b(self.a(x).as_in_context(mx.cpu(1)))

    net = Split()
    net.a.initialize(ctx=mx.cpu(0))
    net.b.initialize(ctx=mx.cpu(1))
    net.hybridize()
    with pytest.raises(RuntimeError, match="at least once"):
        mx.viz.plot_network(net)
    net(mx.nd.ones((1, 4)))
    source = mx.viz.plot_network(net, shape={"data": (1, 4)}).source
    nodes = [line for line in source.splitlines() if "fillcolor" in line]
    colours = {
        name: next(line for line in nodes if name in line).split('fillcolor="')[1][:7]
        for name in ("cpu(0)", "cpu(1)", "data")
    }
    assert colours["data"] == colours["cpu(0)"] != colours["cpu(1)"]
    assert source.count("penwidth") == 1


def test_plot_network_rejects_invalid_arguments(monkeypatch):
    pytest.importorskip("graphviz")
    with pytest.raises(TypeError, match="must be a Symbol"):
        mx.viz.plot_network(None)
    with pytest.raises(ValueError, match="shape is incomplete: pass the shapes of data, "):
        mx.viz.plot_network(network(), shape={"more": (2, 64)})
    with pytest.raises(mx.MXNetError, match="'b' is not in group2ctx"):
        mx.viz.plot_network(network(), group2ctx={"a": mx.cpu(0)})
    twice = mx.sym.relu(mx.sym.relu(mx.sym.var("x"), name="r"), name="r")
    with pytest.warns(RuntimeWarning, match="Repeated names: r"):
        mx.viz.plot_network(twice)


@pytest.fixture
def without_dot(monkeypatch):
    monkeypatch.setenv("PATH", "")


def texts(svg):
    """Returns all texts of a well-formed SVG image and the boxes of its nodes."""
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    boxes = [
        tuple(float(one.get(key)) for key in ("x", "y", "width", "height"))
        for one in root.iter(space + "rect")
        if one.get("stroke") and float(one.get("width")) != 22
    ]
    return [one.text for one in root.iter(space + "text")], boxes


def overlap(a, b):
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


def test_plot_network_without_dot_draws_svg(without_dot, tmp_path):
    pytest.importorskip("graphviz")
    graph = mx.viz.plot_network(network(), shape=SHAPES, group2ctx={"a": on(0), "b": on(1)})
    svg = graph._repr_mimebundle_()["image/svg+xml"]
    assert graph._repr_mimebundle_(include=["image/png"]) == {}
    words, boxes = texts(svg)
    assert {"conv", "Convolution 3x3, 4", "fc1", "FullyConnected 8", "data", "devices"} <= {*words}
    assert {str(on(0)), str(on(1)), "64"} <= {*words}
    assert len(boxes) == 8 and 'stroke-width="2.5"' in svg
    assert not any(overlap(a, b) for i, a in enumerate(boxes) for b in boxes[:i])
    with pytest.raises(mx.MXNetError, match="apt install graphviz.*drawing.save"):
        graph.render(str(tmp_path / "net"))
    graph.format = "svg"
    path = graph.render(str(tmp_path / "net"), cleanup=True)
    assert path.endswith("net.svg") and open(path, encoding="utf-8").read() == svg
    assert sorted(one.name for one in tmp_path.iterdir()) == ["net.svg"]
    assert graph.pipe() == svg.encode() and graph.pipe(encoding="utf-8") == svg


def test_plot_network_without_graphviz_draws_svg(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "mpgluon.visualization._dot", raising=False)
    monkeypatch.setitem(sys.modules, "graphviz", None)
    symbol = mx.sym.relu(mx.sym.var("<x>&"), name="a")
    drawing = mx.viz.plot_network(symbol, title="<t>")
    assert "2 nodes, 1 edges" in repr(drawing)
    drawing.save(tmp_path / "a.svg")
    words, _ = texts((tmp_path / "a.svg").read_text(encoding="utf-8"))
    assert sorted(words) == ["<x>&", "a", "relu"]
    assert texts(drawing._repr_svg_())[0] == words


def test_plot_network_shows_devices_of_a_placed_block():
    """The symbol does not contain the copies that `place` inserts between layers."""
    net = mx.gluon.nn.HybridSequential()
    net.add(*[mx.gluon.nn.Dense(3, activation="relu", in_units=3) for _ in range(4)])
    net.place(mx.parallel.Mesh({"stage": 2}, [on(0), on(1)]))
    net.initialize()
    net.hybridize()
    net(mx.nd.ones((2, 3), ctx=on(0)))
    graph = mx.viz.plot_network(net)
    fills = {node.lines[0]: node.fill for node in getattr(graph, "drawing", graph).nodes}
    first, *_, last = [fill for name, fill in fills.items() if name.endswith("_fwd")]
    assert len(fills) == 9 and first != last
    assert [*fills.values()].count(first) == 5 and [*fills.values()].count(last) == 4


def test_drawings_of_wide_and_long_graphs_do_not_overlap():
    """Edges over many layers are routed around nodes."""
    x = first = mx.sym.var("x")
    branches = []
    for i in range(6):
        branch = mx.sym.relu(x, name=f"branch{i}")
        for j in range(i):
            branch = mx.sym.tanh(branch, name=f"b{i}_{j}")
        branches.append(branch)
    x = mx.sym.concat(*branches, name="all")
    for i in range(30):
        x = mx.sym.relu(x, name=f"step{i}")
    nodes = len(mx.viz.plot_network(x + first).drawing.nodes)
    _, boxes = texts(mx.viz.plot_network(x + first).drawing.svg())
    assert len(boxes) == nodes == 1 + 6 + 15 + 1 + 30 + 1
    assert not any(overlap(a, b) for i, a in enumerate(boxes) for b in boxes[:i])
