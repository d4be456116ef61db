"""Failures in pipelines: error messages, no leaked memory, and recovery; the watchdog."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon._internal.watchdog import describe as describe_queues
from mpgluon.context import memory_stats, set_memory_limit
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep
from mpgluon.parallel._pipeline import driver
from support.devices import at_work, cpus_only, held, on
from support.failures import sweep
from support.pipelines import DEVICES, NETS, Chain, data, equal, gradients, loss_of
from support.processes import ended, environment


def in_use(devices=(0, 1)):
    nd.waitall()
    gc.collect()
    return [memory_stats(on(i))["in_use"] for i in devices]


def assert_no_more_in_use(before, slack=4096):
    """Allows `slack` bytes for kernel scratch memory, which grows in steps of 4096 bytes."""
    after = in_use()
    assert all(a <= b + slack for a, b in zip(after, before)), (before, after)


class Picky(gluon.HybridBlock):
    """The part on the second device looks up rows and fails on a missing row."""

    def __init__(self, devices=(0, 1)):
        super().__init__()
        self.devices = [DEVICES[d] for d in devices]
        with self.name_scope():
            self.first = nn.Dense(4, in_units=4, flatten=False)
            self.table = self.params.get("table", shape=(8, 4))
        self.first.initialize(ctx=self.devices[0])
        self.table.initialize(ctx=self.devices[1])

    def hybrid_forward(self, F, x, index, table):
        x = self.first(x).as_in_context(self.devices[1])
        return x + F.gather_nd(table, index.as_in_context(self.devices[1]).expand_dims(0))


GOOD = nd.array([0, 1, 2, 3, 4, 5, 6, 7])
BAD = nd.array([0, 1, 2, 3, 900, 5, 6, 7])


@pytest.mark.parametrize("way", ["loop", "step"])
def test_failing_kernel_error_names_stage_and_micro_batch(way):
    """The kernel fails in micro-batch 2 on the second device."""
    net = Picky()
    x = nd.ones((8, 4))
    pipeline = Pipeline(4)
    train = TrainStep(net, loss_of, None, pipeline)

    def run(index):
        if way == "step":
            return train([x, index], []).asnumpy()
        net.hybridize(pipeline=pipeline)
        with autograd.record():
            loss = loss_of(net(x, index))
        loss.backward()
        return net.first.weight.grad().asnumpy()

    expected = run(GOOD)
    expected = run(GOOD)
    used = in_use()
    for _ in range(2):
        with pytest.raises(mx.MXNetError) as caught:
            run(BAD)
            nd.waitall()
        text, caught = str(caught.value), None
        for part in (
            "900",
            f"on {on(1)}",
            "stage 1, micro-batch 2",
            "test_pipeline_failures.py:",
            "Picky" if way == "loop" else "picky",
        ):
            assert part.lower() in text.lower(), (part, text)
        try:
            nd.waitall()
        except mx.MXNetError:
            pass
        assert np.array_equal(run(GOOD), expected)
    assert_no_more_in_use(used)


@pytest.mark.parametrize(
    "schedule",
    ["1f1b"] + [pytest.param(name, marks=pytest.mark.slow) for name in ("gpipe", "zero_bubble")],
)
def test_out_of_memory_in_mid_run_raises_and_frees_memory(schedule, monkeypatch):
    """A device has room for only some micro-batches, as if memory was taken after the check."""
    monkeypatch.setattr(driver, "_check_memory", lambda peaks, advice: None)
    wide = Chain([0, 1], lambda i: nn.Dense(512, in_units=512 if i else 16, activation="tanh"))
    wide.hybridize(pipeline=Pipeline(8, schedule))
    x = data((2048, 16))

    def run():
        with autograd.record():
            loss = loss_of(wide(x))
        loss.backward()
        return wide.parts[0].weight.grad().asnumpy()

    expected = run()
    used = in_use()
    gc.collect()  # otherwise freed garbage of other tests could make room
    DEVICES[1].empty_cache()
    # Other tests may have left partly used blocks.
    set_memory_limit(DEVICES[1], memory_stats(DEVICES[1])["held"] + 5_500_000)
    try:
        with pytest.raises(MemoryError) as caught:
            run()
        text = str(caught.value)
        assert f"{on(1)} is out of memory" in text
        assert re.search(
            r"forward of stage [01] on [cg]pu\([01]\), micro-batch \d, in Chain", text
        ), text
    finally:
        set_memory_limit(DEVICES[1], None)
    caught = None
    assert np.array_equal(run(), expected)
    assert_no_more_in_use(used)


@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("zero_bubble", marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", ["loop", "step"])
def test_every_failed_allocation_of_a_step_raises(way, schedule):
    net = NETS["branches"][0]([0, 1])
    pipeline = Pipeline(3, schedule)
    train = TrainStep(net, loss_of, None, pipeline)

    def run():
        if way == "step":
            return train(data((10, 16)), []).asnumpy()
        with autograd.record():
            loss = loss_of(net(data((10, 16))))
        loss.backward()
        return net.a.weight.grad().asnumpy()

    def first():
        nonlocal net, train
        net = NETS["branches"][0]([0, 1])
        if way == "loop":
            net.hybridize(pipeline=pipeline)
        train = TrainStep(net, loss_of, None, pipeline)
        run()

    assert sweep(first, limit=200_000, stride=37) > 2
    first()
    expected = run()
    grads = [param.grad() for param in net.collect_params().values()]
    whole = [grad.asnumpy() for grad in grads]
    former = [np.full_like(values, 7) for values in whole]
    refused = 0

    def none_is_partial():
        nonlocal refused
        for grad, values, before in zip(grads, whole, former):
            try:
                found = grad.asnumpy()
            except MemoryError:
                refused += 1
            else:
                assert np.array_equal(found, values) or np.array_equal(found, before)
            grad[:] = 7

    none_is_partial()
    used = in_use()
    assert sweep(run, after=none_is_partial) > 0
    assert refused
    assert np.array_equal(run(), expected)
    gc.collect()
    assert_no_more_in_use(used, 1 << 16)


def test_interrupt_ends_the_wait_for_a_stalled_device():
    """After Ctrl-C the wait ends and the pipeline continues in the background."""
    net = NETS["dense"][0]([0, 1])
    train = TrainStep(net, loss_of, None, Pipeline(4), exact=True)
    mx.random.seed(5)
    expected = train(data((10, 16)), []).asnumpy()
    nd.waitall()
    mx.random.seed(5)
    with held(on(1)):
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            train(data((10, 16)), []).asnumpy()
        timer.join()
        assert at_work(on(1))
    nd.waitall()
    mx.random.seed(5)
    assert np.array_equal(train(data((10, 16)), []).asnumpy(), expected)


# --- Lifetimes ---


def looped(net, x):
    with autograd.record():
        return loss_of(net(x))


def test_retained_graph_runs_backward_again():
    net = NETS["dense"][0]([0, 1])
    net.hybridize(exact=True, pipeline=Pipeline(3))
    looped(net, data((10, 16))).backward()
    used = in_use()
    mx.random.seed(5)
    loss = looped(net, data((10, 16)))
    results = []
    for retain in (True, True, False):
        loss.backward(retain_graph=retain)
        results.append(gradients(net))
    assert equal(results[0], results[1]) and equal(results[0], results[2])
    with pytest.raises(mx.MXNetError):
        loss.backward()
    del loss
    assert_no_more_in_use(used)


def test_two_runs_in_flight_have_their_own_gradients():
    net = NETS["dense"][0]([0, 1])
    net.hybridize(exact=True, pipeline=Pipeline(3))
    expected = []
    for seed in (1, 2):
        mx.random.seed(seed)
        looped(net, data((10, 16), seed)).backward()
        expected.append(gradients(net))
    losses = []
    for seed in (1, 2):
        mx.random.seed(seed)
        losses.append(looped(net, data((10, 16), seed)))
    for loss, grads in zip(losses, expected):
        loss.backward()
        assert equal(gradients(net), grads)


def test_dropped_graph_frees_its_memory():
    net = NETS["dense"][0]([0, 1])
    net.hybridize(pipeline=Pipeline(3))
    looped(net, data((10, 16))).backward()
    used = in_use()
    for _ in range(3):
        loss = looped(net, data((10, 16)))
    del loss
    assert_no_more_in_use(used)  # the pipeline itself keeps only times
    with autograd.record():
        out = net(data((10, 16)))
    piece = out[3:5]
    del out
    assert piece.asnumpy().shape == (2, 16)


def test_prediction_between_forward_and_backward_is_correct():
    net = NETS["dense"][0]([0, 1])
    net.hybridize(exact=True, pipeline=Pipeline(3))
    expected = net(data((10, 16), 4)).asnumpy()
    loss = looped(net, data((10, 16)))
    assert np.array_equal(net(data((10, 16), 4)).asnumpy(), expected)
    loss.backward()


def test_finished_run_rejects_further_work():
    call = _core.StagedCall(lambda x: x * 2, [nd.ones((4, 2))], [False], [False], recording=False)
    run = _core.PipelineRun((call,), ((0, 0, 4, 4),), [1], [1], [0], [nd.ones((4, 2))])
    watch = run.watch()
    run.finish()
    import array

    for other in (run, watch):
        with pytest.raises(ValueError, match="finished"):
            other.submit(array.array("I", [0, 0, 0, 0]))
        with pytest.raises(ValueError, match="finished"):
            other.outputs()
    assert watch.watch().times(0, 0) == [(0, 0)]
    with pytest.raises(ValueError, match="phase, micro-batch, segment, stage"):
        run.submit(array.array("I", [0, 0, 0]))


# --- The watchdog ---


@pytest.fixture
def watchdog():
    yield mx.engine.set_watchdog
    mx.engine.set_watchdog(None)


def test_watchdog_reports_waiting_devices(watchdog, capfd):
    net = NETS["dense"][0]([0, 1])
    net.hybridize(pipeline=Pipeline(4))
    net(data((10, 16)))
    nd.waitall()
    x, text = data((10, 16)), ""
    nd.waitall()
    with held(on(0)):
        out = net(x)
        assert watchdog(0.1) is None
        while "ticks are left" not in text.rpartition(f"{on(1)} waits")[2]:
            text += capfd.readouterr().err
            time.sleep(0.01)
        assert watchdog(None) == 0.1
    out.wait_to_read()
    nd.waitall()
    text += capfd.readouterr().err
    assert text.count("mpgluon watchdog: no device has finished anything") == 1, text
    assert f"{on(0)} is running stall" in text
    assert f"{on(1)} waits for {on(0)}, tick" in text
    for part in (
        "stage 0, micro-batch 0",
        "stage 1, micro-batch 0",
        "test_pipeline_failures.py:",
        "hain",
    ):
        assert part in text, (part, text)


@cpus_only  # a GPU queue reports progress only when empty or after some work items
def test_watchdog_is_silent_while_work_progresses(watchdog, capfd):
    watchdog(0.5)
    for _ in range(60):
        # 1/50 of the limit, so that a loaded machine does not appear to be stuck
        _core._stall(on(0), 0.01)
    nd.waitall()
    time.sleep(0.6)  # nothing is queued
    assert capfd.readouterr().err == ""


def test_environment_variable_enables_the_watchdog():
    code = (
        "import mpgluon as mx; from mpgluon import _core; _core._stall(mx.cpu(0), 600, 0); "
        "mx.nd.waitall(); print('done')"
    )
    pipes = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment(MPGLUON_WATCHDOG="0.1"), text=True, **pipes
    ) as process:
        assert "no device has finished anything" in process.stderr.readline()
        assert "cpu(0) is running stall" in process.stderr.readline()
        process.stdin.close()  # ends the stall
        assert process.stdout.read() == "done\n"
    done = ended(code, MPGLUON_WATCHDOG="soon")
    assert done.returncode != 0 and "MPGLUON_WATCHDOG is 'soon'" in done.stderr
    with pytest.raises(ValueError, match="seconds must be a number"):
        mx.engine.set_watchdog(-1)


def test_watchdog_text_describes_queues():
    work = ("forward", "train.py:3", "net", 1, 2)
    text = describe_queues(
        [
            (str(on(0)), 3, 9, None, None, "", None, 0, None),
            (str(on(1)), 3, 9, work, "dot", "net/dense0", str(on(0)), 4, None),
        ],
        2.0,
    )
    assert f"{on(0)} is running work that was queued long ago; 6 ticks are left" in text
    assert f"{on(1)} waits for {on(0)}, tick 4: work that was queued long ago" in text
    assert (
        "forward, stage 1, micro-batch 2, block net, queued at train.py:3 (at dot of net/dense0)"
        in text
    )


# --- Profiler traces ---


def test_trace_has_stages_and_micro_batches(tmp_path):
    net = NETS["dense"][0]([0, 1])
    train = TrainStep(net, loss_of, None, Pipeline(3))
    train(data((10, 16)), [])
    nd.waitall()
    mx.profiler.set_config(filename=str(tmp_path / "trace.json"))
    mx.profiler.set_state("run")
    train(data((10, 16)), [])
    mx.profiler.set_state("stop")
    events = [e for e in mx.profiler.events() if e["stage"] is not None]
    assert {(e["stage"], e["micro_batch"]) for e in events} == {
        (s, m) for s in range(2) for m in range(3)
    }
    assert all(e["device"] == str(on(e["stage"])) for e in events)
    mx.profiler.dump()
    rows = json.load(open(tmp_path / "trace.json"))["traceEvents"]
    assert any(row.get("args", {}).get("micro_batch") == 2 for row in rows)
    copies = [row for row in rows if row["name"] == "copy" and row["ph"] == "s"]
    assert len(copies) >= 6  # three micro-batches in each direction


def test_trace_has_planned_and_measured_timelines(tmp_path):
    net = NETS["dense"][0]([0, 1])
    train = TrainStep(net, loss_of, None, Pipeline(3))
    for recording in (False, True):
        if recording:
            mx.profiler.set_state("run")
        train(data((10, 16)), [])
        mx.profiler.set_state("stop")
        train.pipeline.trace(tmp_path / "both.json")
        with open(tmp_path / "both.json") as f:
            rows = json.load(f)["traceEvents"]
        threads = {row["args"]["name"]: row["tid"] for row in rows if row["name"] == "thread_name"}
        assert {f"{on(i)} {title}" for i in range(2) for title in ("planned", "measured")} <= set(
            threads
        )
        assert (str(on(0)) in threads) == recording
        for title in ("planned", "measured"):
            actions = [row for row in rows if row.get("cat") == title]
            assert len(actions) == 2 * 2 * 3 and {row["name"] for row in actions} >= {
                "forward of stage 1, micro-batch 2",
                "backward of stage 0, micro-batch 0",
            }
            assert all(
                row["tid"] == threads[f"{on(row['args']['stage'])} {title}"] for row in actions
            )
        measured = [row for row in rows if row.get("cat") == "measured"]
        ops = [row for row in rows if row.get("cat") == "op" and row["args"].get("stage") == 1]
        assert not recording or all(
            any(m["ts"] - 50 <= row["ts"] <= m["ts"] + m["dur"] + 50 for m in measured)
            for row in ops
        )


class Numbered(gluon.HybridBlock):
    """Reshapes with a constant in place of the batch size."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        with self.name_scope():
            self.first, self.second = nn.Dense(8, in_units=8), nn.Dense(4, in_units=8)
        self.first.initialize(ctx=DEVICES[0])
        self.second.initialize(ctx=DEVICES[1])

    def hybrid_forward(self, F, x):
        return self.second(self.first(x).reshape(self.shape).as_in_context(DEVICES[1]))


@pytest.mark.parametrize("way", ["loop", "step"])
def test_constant_batch_size_error_suggests_minus_one(way):
    def go(shape, count, rows=8):
        net = Numbered(shape)
        if way == "step":
            TrainStep(net, gluon.loss.L2Loss(), None, Pipeline(count))(
                nd.ones((rows, 8)), nd.ones((rows, 4))
            )
        else:
            net.hybridize(pipeline=Pipeline(count))
            net(nd.ones((rows, 8)))

    for shape, what in (
        ((8, 8), "Reshape: the number of elements does not match"),
        ((8, -1), "FullyConnected: weight must have the shape"),
    ):
        with pytest.raises(
            mx.MXNetError
        ) as error:  # the second fails where the reshaped array is used
            go(shape, 4)
        text = str(error.value)
        assert (
            what in text
            and "this is a micro-batch of 2 rows along axis 0; Numbered works with 8" in text
            and "replace it by -1 in a reshape" in text
        )
        assert "test_pipeline_failures.py" in text
        go(shape, 1)
    with pytest.raises(
        mx.MXNetError, match="this is a micro-batch of 1 row along axis 0; Numbered works with 2"
    ):
        go((2, 8), 4, rows=7)
    with pytest.raises(mx.MXNetError) as error:  # not caused by the division into micro-batches
        go((5, 8), 4)
    assert "micro-batch" not in str(error.value)
    go((-1, 8), 4)
    go((0, 8), 3)


class Clipped(autograd.Function):
    def forward(self, x):
        self.save_for_backward(x)
        return nd.array(np.clip(x.asnumpy(), -0.5, 0.5), ctx=x.context)

    def backward(self, dy):
        (x,) = self.saved_tensors
        return dy * (x.abs() < 1)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_function_between_two_pipelines_trains_like_one_device(micro_batches):
    def trained(pipelined):
        mx.random.seed(1)
        lower, upper = nn.HybridSequential(), nn.HybridSequential()
        lower.add(nn.Dense(8, in_units=8), nn.Dense(8, in_units=8))
        upper.add(nn.Dense(8, in_units=8), nn.Dense(8, in_units=8))
        params = []
        for part in (lower, upper):
            part.initialize(mx.init.Xavier(), ctx=DEVICES[0])
            if pipelined:
                part.place({"0": DEVICES[0], "1": DEVICES[1]}, verbose=False)
                part.hybridize(pipeline=Pipeline(micro_batches))
            params += part.collect_params().values()
        trainer = gluon.Trainer(params, "sgd", {"learning_rate": 0.1})
        x = nd.array(np.random.RandomState(0).randn(8, 8), ctx=DEVICES[0])
        for _ in range(3):
            with autograd.record():
                loss = upper(Clipped()(lower(x)).as_in_context(DEVICES[0])).square()
            loss.backward()
            trainer.step(8)
        return [param.data().asnumpy() for param in params]

    for found, expected in zip(trained(True), trained(False)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
