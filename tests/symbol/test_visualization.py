"""Symbols as tables and as pictures."""

import sys

import pytest

import mpgluon as mx


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


def test_print_summary(capsys):
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
    assert cells["fc2"] == ["fc2(FullyConnected)", "8", "0", "more"]  # the weight is counted once
    assert lines[
        lines.index(next(line for line in lines if line.startswith("sum"))) + 1
    ].split() == ["fc2"]
    assert "Total params: 632" in lines and all(
        len(line) == 100 for line in lines if set(line) <= {"_", "="}
    )
    mx.viz.print_summary(network())
    assert "Total params: 4\n" in capsys.readouterr().out  # what shapes say by themselves
    with pytest.raises(TypeError, match="must be a Symbol"):
        mx.viz.print_summary("net")
    with pytest.raises(ValueError, match="incomplete"), pytest.warns(UserWarning):
        mx.viz.print_summary(network(), {"data": (2, 3, 6, 6)})


def test_plot_network():
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
    assert (
        "Convolution 3x3, 4" in source
        and "conv_weight" not in source
        and "bn_moving_mean" not in source
    )
    assert (
        'label="3x6x6 float32"' in source and "label=groups" in source and "penwidth=2.5" in source
    )
    assert "shared_weight" in mx.viz.plot_network(network(), hide_weights=False).source
    placed = mx.viz.plot_network(
        network(), group2ctx={"a": mx.cpu(0), "b": mx.cpu(3)}, node_attrs={"shape": "ellipse"}
    ).source
    assert (
        '"cpu(0)"' in placed
        and '"cpu(3)"' in placed
        and "shape=ellipse" in placed
        and "label=devices" in placed
    )
    same = mx.viz.plot_network(network(), group2ctx={"a": mx.cpu(3), "b": mx.cpu(3)}).source
    assert "penwidth" not in same
    moved = mx.viz.plot_network(mx.sym.relu(mx.sym.var("x").as_in_context(mx.cpu(2)))).source
    assert '"cpu(2)"' in moved
    plain = mx.viz.plot_network(mx.sym.relu(mx.sym.var("x"))).source
    assert "cluster" not in plain


def test_plot_network_of_a_block():
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
    assert (
        colours["data"] == colours["cpu(0)"] != colours["cpu(1)"] and source.count("penwidth") == 1
    )


def test_plot_network_errors(monkeypatch):
    pytest.importorskip("graphviz")
    with pytest.raises(TypeError, match="must be a Symbol"):
        mx.viz.plot_network(None)
    with pytest.raises(ValueError, match="shape is incomplete: name the shapes of data, "):
        mx.viz.plot_network(network(), shape={"more": (2, 64)})
    with pytest.raises(mx.MXNetError, match="'b' is not in group2ctx"):
        mx.viz.plot_network(network(), group2ctx={"a": mx.cpu(0)})
    twice = mx.sym.relu(mx.sym.relu(mx.sym.var("x"), name="r"), name="r")
    with pytest.warns(RuntimeWarning, match="Repeated names: r"):
        mx.viz.plot_network(twice)
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(ImportError, match="pip install graphviz"):
        mx.viz.plot_network(network())
