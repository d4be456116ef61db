"""The live dashboard of devices: its contents, and that it ends with its `with` statement."""

import io
import re
import signal
import sys
import threading
import time
import types
from xml.etree import ElementTree

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.gluon import nn
from mpgluon.parallel._dashboard import samples, views
from support.devices import held, on
from support.processes import ended


class Terminal(io.StringIO):
    def isatty(self):
        return True


def threads():
    return [one.name for one in threading.enumerate() if "dashboard" in one.name]


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_dashboard_redraws_in_place_on_a_terminal():
    """It is redrawn in place while steps run and shows mean losses."""
    file = Terminal()
    with mx.parallel.dashboard([on(0)], refresh=0.02, file=file) as board:
        assert len(threads()) == 2
        board.update(nd.array([1, 3], ctx=on(0)))
        until(lambda: "loss 2 in step 1" in file.getvalue())
        board.update([nd.array([4], ctx=on(0)), 0.5])
        board.update()
        until(lambda: "3 steps" in file.getvalue())
    assert not threads()
    assert "loss 4.5 in step 2" in file.getvalue()
    drawings = re.split(r"\x1b\[\d+F\x1b\[J", file.getvalue())
    assert len(drawings) > 2 and str(on(0)) in drawings[-1] and "busy" in drawings[-1]
    backs = [int(n) for n in re.findall(r"\x1b\[(\d+)F", file.getvalue())]
    assert backs == [one.count("\n") for one in drawings[:-1]]


def test_dashboard_does_not_wait_for_losses():
    """Drawing continues while steps are queued."""
    file = Terminal()
    with held(on(0)), mx.parallel.dashboard([on(0)], refresh=0.01, file=file) as board:
        loss = nd.ones(3, ctx=on(1))
        board.update(loss.as_in_context(on(1)))
        until(lambda: "loss 1 in step 1" in file.getvalue())
        board.update(nd.ones(3, ctx=on(0)) * 2)
        board.update(loss)
        drawn = file.getvalue().count("3 steps")
        until(lambda: file.getvalue().count("3 steps") > drawn + 3)
        assert "loss 2" not in file.getvalue()
    assert board.cpu_seconds() > 0


def test_dashboard_writes_only_the_final_view_to_a_file():
    file = io.StringIO()
    with mx.parallel.dashboard([on(0)], refresh=0.01, file=file) as board:
        time.sleep(0.1)
        assert not file.getvalue()
        board.update(0.25)
    assert "loss 0.25 in step 1" in file.getvalue() and "\x1b" not in file.getvalue()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_errors_propagate_and_end_the_dashboard(error):
    file = io.StringIO()
    with pytest.raises(error), mx.parallel.dashboard(file=file) as board:
        board.update(1.0)
        raise error
    assert not threads() and f"ended by {error.__name__}" in file.getvalue()


def test_interrupt_ends_the_program_with_a_dashboard():
    code = f"""
        import os, signal, sys, threading
        import mpgluon as mx
        with mx.parallel.dashboard(refresh=0.05) as board:
            board.update(mx.nd.ones(3))
            threading.Timer(0.3, os.kill, (os.getpid(), {int(signal.SIGINT)})).start()
            while True:
                board.update(mx.nd.ones(3))
                mx.nd.waitall()
    """
    done = ended(code, timeout=60)
    assert done.returncode in (-signal.SIGINT, 130), done.stderr
    assert "ended by KeyboardInterrupt" in done.stderr and "Traceback" in done.stderr


def test_closed_output_ends_only_the_drawing():
    file = Terminal()
    with pytest.warns(RuntimeWarning, match="cannot be drawn: ValueError"):
        with mx.parallel.dashboard(refresh=0.01, file=file) as board:
            file.close()
            until(lambda: board._failure is not None)
            board.update(1.0)
    assert not threads()


def test_failed_loss_raises_in_the_program():
    table, index = nd.ones((2, 2), ctx=on(0)), nd.array([5], ctx=on(0))
    with mx.parallel.dashboard([on(0)], refresh=0.01, file=io.StringIO()) as board:
        with pytest.raises(mx.MXNetError):
            lost = nd.take(table, index, mode="raise")
            board.update(lost)
            time.sleep(0.05)
            lost.asnumpy()
    assert not threads()


def test_dashboard_rejects_invalid_arguments_and_reentry():
    with pytest.raises(ValueError, match="refresh"):
        mx.parallel.dashboard(refresh=0)
    board = mx.parallel.dashboard(file=io.StringIO())
    with board:
        pass
    with pytest.raises(mx.MXNetError, match="entered only once"), board:
        pass


def test_queue_status_maps_to_device_states():
    """Input is in the format of `engine_queue_status`."""
    work = ("compiled backward", 3, "net", 1, 2)
    assert samples.state_of(("cpu(0)", 4, 4, None, None, "", None, 0, None)) == samples.IDLE
    running = samples.state_of(("cpu(0)", 4, 5, work, None, "", None, 0, None))
    assert running == ("B", 1, 2) and running.busy
    assert str(running) == "backward, stage 1, micro-batch 2"
    waiting = samples.state_of(("cpu(0)", 4, 5, work, None, "", "cpu(1)", 7, work))
    assert waiting.kind == "wait" and not waiting.busy
    other = samples.state_of(("cpu(0)", 4, 5, ("Convolution", 3, "", None, None), None, "", None))
    assert other == ("run", None, None)
    assert samples.state_of(("cpu(0)", 4, 5, None, None, "", None)).kind == "run"


def test_busy_share_distinguishes_busy_and_idle_devices():
    """Compares a computing device with an idle one."""
    net = nn.Dense(512, in_units=2048)
    net.initialize(ctx=on(0))
    x = nd.ones((512, 2048), ctx=on(0))
    idle = nd.ones(1, ctx=on(1))
    with mx.parallel.dashboard([on(0), on(1)], file=io.StringIO()) as board:
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            net(x).wait_to_read()
        busy, unused = board._sampler.views([on(0), on(1)])
    assert busy.busy > 0.3 and unused.busy < 0.1 and busy.in_use > idle.size
    assert busy.peak >= busy.in_use and abs(busy.spans[-1][1]) < 1e-9


def snapshot(**changes):
    spans = [(-5.0, -3.0, samples.State("F", 0, 1)), (-3.0, -1.0, samples.State("wait"))]
    spans += [(-1.0, 0.0, samples.State("run"))]
    view = samples.DeviceView(on(0), 1500, 2_000_000, 3000, 0.6, 0.4, spans)
    losses = [(1, 4.0), (2, float("nan")), (3, 1.0)]
    return views.Snapshot(
        **{"seconds": 2, "steps": 4, "losses": losses, "devices": [view], **changes}
    )


def test_text_view_fits_the_width():
    lines = views.as_text(snapshot(), 90)
    assert lines[0] == "2 s; 4 steps, 2.00 a second; loss 1 in step 3"
    assert "1.5 KB of 3.0 KB" in lines[2] and "60%" in lines[2] and "40%" in lines[2]
    strip = lines[2].split("|")[1]
    counts = np.array([strip.count(letter) for letter in "F.#"]) / len(strip)
    np.testing.assert_allclose(counts, [0.4, 0.4, 0.2], atol=0.05)
    assert lines[3] == "loss █▁"
    assert all(len(line) < 40 for line in views.as_text(snapshot(), 40))


def test_html_view_escapes_and_draws_spans():
    text = views.as_html(snapshot(ended="<b>"))
    root = ElementTree.fromstring(f"<div>{text}</div>")
    assert "<b>" not in text and "&lt;b&gt;" in text
    bars = [one.get("fill") for one in root.iter("rect")][1:4]
    assert bars == ["#8ab6e8", "#e6e6ea", "#b9b3d6"]
    assert [one.text for one in root.iter("title")][0] == "forward, stage 0, micro-batch 1"
    (curve,) = root.iter("polyline")
    assert len(curve.get("points").split()) == 2  # the NaN is skipped
    assert "polyline" not in views.as_html(snapshot(losses=[]))


def test_dashboard_updates_the_notebook_cell(monkeypatch):
    """The cell's output is updated through IPython's display handle."""
    shown = []
    handle = types.SimpleNamespace(update=shown.append)
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    display = types.ModuleType("IPython.display")
    display.HTML, display.display = str, lambda value, display_id: handle
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with mx.parallel.dashboard([on(0)], refresh=0.01) as board:
        board.update(2.0)
        until(lambda: any("loss 2 in step 1" in one for one in shown))
    assert "<table>" in shown[-1] and not threads()
