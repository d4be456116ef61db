"""Text dumps of graphs after each compiler pass, and the growth of compilation work."""

import json

import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd, profiler
from mpgluon.context import memory_stats
from mpgluon.gluon import nn
from support.processes import finished

SCRIPT = """
import mpgluon as mx
from mpgluon import _core, autograd, nd

def function(x, w):
    y = nd.tanh(nd.FullyConnected(x, w, no_bias=True, num_hidden=3)).as_in_context(mx.cpu(1))
    return [(y.reshape((3, 2)) * y.reshape((3, 2))).sum()]

op = _core.CachedOp(function, {"exact": True})
x, w = nd.ones((2, 4)), nd.ones((3, 4))
w.attach_grad()
with autograd.record():
    (y,) = op(x, w)
y.backward()
"""
TRACED = """\
%0 = input : float32 (2, 4) cpu(0)
%1 = input : float32 (3, 4) cpu(0)
%2 = FullyConnected(%0, %1) {num_hidden=3, no_bias=True} : float32 (2, 3) cpu(0)
%3 = tanh(%2) : float32 (2, 3) cpu(0)
%4 = _copyto(%3) {ctx=cpu(1)} : float32 (2, 3) cpu(1)
%5 = Reshape(%4) {shape=(3, 2)} : float32 (3, 2) cpu(1)
%6 = Reshape(%4) {shape=(3, 2)} : float32 (3, 2) cpu(1)
%7 = broadcast_mul(%5, %6) : float32 (3, 2) cpu(1)
%8 = sum(%7) : float32 (1,) cpu(1)
"""
SIMPLIFIED = TRACED.replace("broadcast_mul(%5, %6)", "broadcast_mul(%5, %5)")
GRADIENT = """\
%9 = input : float32 (1,) cpu(1) backward
%10 = _reshape_exact(%9) {shape=(1, 1)} : float32 (1, 1) cpu(1) backward
%11 = _broadcast_exact(%10) {shape=(3, 2)} : float32 (3, 2) cpu(1) backward
%12 = elemwise_mul(%11, %5) : float32 (3, 2) cpu(1) backward
%13 = elemwise_mul(%11, %5) : float32 (3, 2) cpu(1) backward
%14 = _reshape_exact(%12) {shape=(2, 3)} : float32 (2, 3) cpu(1) backward
%15 = _reshape_exact(%12) {shape=(2, 3)} : float32 (2, 3) cpu(1) backward
%16 = elemwise_add(%14, %14) : float32 (2, 3) cpu(1) backward
%17 = _copyto(%16) {ctx=cpu(0)} : float32 (2, 3) cpu(0) backward
%18 = _backward_tanh(%17, %3) : float32 (2, 3) cpu(0) backward
%19 = dot(%18, %0) {transpose_a=True} : float32 (3, 4) cpu(0) backward
return
"""
FORWARD_PLAN = """\
cpu(0) %2 FullyConnected: block 1+0
cpu(0) %3 tanh: block 1+0
cpu(0) %4 _copyto: lane 0+0
cpu(1) %5 Reshape: lane 0+0
cpu(1) %7 broadcast_mul: nowhere
cpu(1) %8 sum: array 2
lane 0: 64 bytes on cpu(1)
block 1: 64 bytes on cpu(0)
"""
BACKWARD_PLAN = """\
cpu(1) %17 _copyto: lane 2+0
cpu(0) %18 _backward_tanh: lane 2+0
cpu(0) %19 dot: array 5
lane 0: 64 bytes on cpu(1)
block 1: 64 bytes on cpu(0)
lane 2: 64 bytes on cpu(0)
block 3: 64 bytes on cpu(1)
"""


def test_dump_shows_graph_after_each_pass(tmp_path):
    path = tmp_path / "passes.txt"
    finished(SCRIPT, MPGLUON_DUMP=str(path))
    passes = dict(part.split("\n", 1) for part in path.read_text().split("== ")[1:])
    assert list(passes) == [
        "traced",
        "rewritten",
        "simplified",
        "forward plan",
        "gradient",
        "backward plan",
    ]
    assert passes["traced"] == TRACED + "return %8\n"
    assert passes["simplified"] == SIMPLIFIED + "return %8\n"
    assert passes["gradient"] == SIMPLIFIED + GRADIENT
    assert passes["forward plan"] == FORWARD_PLAN
    assert passes["backward plan"].endswith(BACKWARD_PLAN)


def stack(layers, width=32):
    net = nn.HybridSequential()
    for _ in range(layers):
        net.add(
            nn.Dense(width, in_units=width),
            nn.LayerNorm(in_channels=width),
            nn.Activation("tanh"),
            nn.Dropout(0.1),
        )
    net.initialize()
    net.hybridize()
    return net


def allocations(layers):
    """Returns the number of bookkeeping allocations of tracing and compiling, and program sizes."""
    MANY = 1 << 30
    net, x = stack(layers), nd.ones((4, 32))
    x.attach_grad()
    nd.waitall()
    _core._memory_fail_after(MANY)
    try:
        with autograd.record():
            y = net(x)
        y.backward()
        nd.waitall()
        made = MANY - _core._memory_until_failure()
    finally:
        _core._memory_fail_after(0)
    entry = net.compiled()[0]["devices"]["cpu(0)"]
    # Signals depend on the bytes of gradients, so they are not counted.
    counts = [
        sum(step["kind"] != "signal" for step in entry[part]) for part in ("forward", "backward")
    ]
    return made, *counts, entry["planned"]["saved"]


def test_compilation_work_grows_linearly_with_layers():
    small, middle, large = [allocations(layers) for layers in (20, 40, 80)]
    assert large[0] <= 2.2 * middle[0] <= 2.2 * 2.2 * small[0]
    for part in (1, 2, 3):  # instructions and bytes: a constant amount per layer
        assert large[part] - middle[part] == 2 * (middle[part] - small[part])


def test_sequence_lengths_share_parameters_and_memory():
    """Buckets: each length is compiled once, and all lengths share parameters and memory."""

    def most(lengths):
        net = gluon.rnn.LSTM(32, input_size=32)
        net.initialize(ctx=mx.cpu(90))
        net.hybridize()
        mx.context.reset_peak_memory(mx.cpu(90))
        for length in lengths:
            x = nd.ones((length, 4, 32), ctx=mx.cpu(90))
            with autograd.record():
                y = net(x)
            y.backward()
            del x, y
            nd.waitall()
        assert len(net.compiled()) == len(lengths)
        return memory_stats(mx.cpu(90))["peak_held"], net

    alone, net = most([60])
    together, net = most(range(60, 40, -1))
    assert together <= 5 * alone  # not 20 times
    assert sum(entry["bytes_held"] for entry in net.compiled()) == 0


def test_profiler_trace_has_device_rows_copy_arrows_and_scopes(tmp_path):
    """Chrome trace of the profiler: one row per device, arrows for copies, ops by block path and
    phase."""
    net = nn.HybridSequential()
    net.add(
        nn.Dense(4, in_units=4),
        nn.HybridLambda(lambda F, x: x.as_in_context(mx.cpu(1))),
        nn.Dense(3, in_units=4),
    )
    net[0].initialize(ctx=mx.cpu(0))
    net[2].initialize(ctx=mx.cpu(1))
    net.hybridize()
    path = str(tmp_path / "trace.json")
    profiler.set_config(filename=path)
    profiler.set_state("run")
    try:
        with autograd.record():
            y = net(nd.ones((2, 4)))
        y.backward()
    finally:
        profiler.dump()
        profiler.set_config(filename="profile.json")
    with open(path) as f:
        events = json.load(f)["traceEvents"]
    rows = {
        event["args"]["name"]: event["tid"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    assert {"cpu(0)", "cpu(1)"} <= set(rows) and len(set(rows.values())) == len(rows)
    ran = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and event["tid"] in rows.values() for event in ran)
    names = [event["name"] for event in ran]
    # Prefixed with the path of its block
    assert any(name.endswith("/FullyConnected") for name in names), names
    assert any("/" in name and name.endswith("(backward)") for name in names), names
    begins, ends = (
        {event["id"]: event for event in events if event["ph"] == phase} for phase in "sf"
    )
    assert begins.keys() == ends.keys() and len(begins) >= 2  # to the other device and back
    for number, begin in begins.items():
        assert begin["tid"] != ends[number]["tid"] and begin["ts"] <= ends[number]["ts"]
    assert "FullyConnected" in profiler.dumps()


def test_profiler_trace_of_eager_calls_has_phases_and_arrows(tmp_path):
    """Eager calls: backward is distinguished from forward, and arrows follow the data between
    ops."""
    path = str(tmp_path / "trace.json")
    x = nd.ones((4, 4), ctx=mx.cpu(0))
    x.attach_grad()
    nd.waitall()
    profiler.set_config(filename=path)
    profiler.set_state("run")
    try:
        with autograd.record():
            y = nd.tanh(nd.exp(x).as_in_context(mx.cpu(1)))
        y.backward()
        nd.waitall()
    finally:
        profiler.dump()
        profiler.set_config(filename="profile.json")
    with open(path) as f:
        events = json.load(f)["traceEvents"]
    ran = [event for event in events if event["ph"] == "X" and event["cat"] != "wait"]
    names = [event["name"] for event in ran]
    first = next(i for i, name in enumerate(names) if name.endswith("(backward)"))
    assert [name.rpartition("/")[2] for name in names[:first]] == ["exp", "_copyto", "tanh"], names
    assert any(name.endswith("_copyto (backward)") for name in names)
    rows = {
        event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"
    }
    begins, ends = ([event for event in events if event["ph"] == phase] for phase in "sf")
    ways = [(begin["tid"], end["tid"]) for begin, end in zip(begins, ends)]
    assert ways == [(rows["cpu(0)"], rows["cpu(1)"]), (rows["cpu(1)"], rows["cpu(0)"])]
    for arrow in begins + ends:
        assert any(
            event["tid"] == arrow["tid"]
            and event["ts"] <= arrow["ts"] <= event["ts"] + event["dur"]
            for event in ran
        )


def test_profiler_trace_has_rows_for_user_marks(tmp_path):
    """User-defined profiler objects appear in their own rows below the devices."""
    path = str(tmp_path / "trace.json")
    profiler.set_config(filename=path)
    domain = profiler.Domain("loading")
    task, event, counter = (
        domain.new_task("read"),
        profiler.Event("epoch"),
        domain.new_counter("files", 1),
    )
    with pytest.raises(RuntimeError, match="'read': stop.. without start"):
        task.stop()
    with pytest.raises(ValueError, match="scope must be one of"):
        domain.new_marker("here").mark("everywhere")
    profiler.set_state("run")
    try:
        event.start()
        task.start()
        (nd.ones((4,), ctx=mx.cpu(1)) + nd.ones((4,), ctx=mx.cpu(1))).wait_to_read()
        task.stop()
        counter += 4
        counter -= 2
        profiler.pause()
        counter.increment()
        profiler.resume()
        domain.new_marker("here").mark()
        event.stop()
        profiler.dump()
    finally:
        profiler.set_state("stop")
        profiler.set_config(filename="profile.json")
    with open(path) as f:
        events = json.load(f)["traceEvents"]
    rows = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    named = {event["name"]: event for event in events if event["ph"] in "Xi"}
    assert (
        rows[named["read"]["tid"]] == rows[named["here"]["tid"]] == "loading"
        and rows[named["epoch"]["tid"]] == "events"
    )
    assert named["here"]["tid"] > max(tid for tid, name in rows.items() if name.startswith("cpu"))
    assert [event["args"]["value"] for event in events if event["ph"] == "C"] == [5, 3]
    work = next(event for event in events if event.get("cat") == "op")
    assert (
        named["read"]["ts"] <= work["ts"]
        and work["ts"] + work["dur"] <= named["read"]["ts"] + named["read"]["dur"]
    )
    with pytest.warns(DeprecationWarning):
        profiler.profiler_set_state("stop")


def test_profiler_dumps_json_sorts_by_each_key():
    profiler.set_state("run")
    x = nd.ones((2, 2))
    nd.relu(x).wait_to_read()
    profiler.dumps(reset=True)  # keeps profiling
    task = profiler.Domain("own").new_task("step")
    task.start()
    for array in (x + 1, x + 2, nd.sqrt(x), x.as_in_context(mx.cpu(1)) + 3):
        array.wait_to_read()
    task.stop()
    shown = {
        (key, ascending): json.loads(profiler.dumps(False, "json", key, ascending))
        for key in ("count", "total", "avg", "min", "max")
        for ascending in (False, True)
    }
    times = shown["total", False]["Time"]
    assert {name: row["Count"] for name, row in times["operator"].items()} == {
        "_plus_scalar": 3,
        "sqrt": 1,
    }
    assert times["own"]["step"]["Total"] >= times["operator"]["sqrt"]["Max"]
    assert shown["min", True]["Devices"]["cpu(1)"]["_plus_scalar"]["Count"] == 1
    assert shown["min", True]["Unit"]["Time"] == "ms" and "Memory" in shown["min", True]
    for (key, ascending), tables in shown.items():
        for rows in tables["Time"].values():
            column = [row[key.capitalize()] for row in rows.values()]
            assert column == sorted(column, reverse=not ascending)
    profiler.set_state("stop")
    profiler.dumps(reset=True)
    nd.relu(x).wait_to_read()
    assert (
        profiler.events() == [] and "own" not in json.loads(profiler.dumps(format="json"))["Time"]
    )
