"""Devices at the Python level: parallel work, memory, fork, exit, interrupts and engine modes.

tests/c covers the details.
"""

import multiprocessing
import os
import re
import signal
import threading

import numpy as np
import pytest

import mpgluon as mx
from support.processes import ended, finished


def run(code, timeout=60, **environment):
    """Runs a script without environment settings and returns its output; it must print no error."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if k == "MPGLUON_CPU_THREADS" or not k.startswith(("MPGLUON_", "MXNET_"))
    }
    done = finished(code, timeout, kept, **environment)
    assert done.stderr == ""
    return done.stdout


def test_chain_over_devices_keeps_order():
    """Each large step needs the previous one on another device, so only the copies order them."""
    x = mx.nd.ones((300, 300), ctx=mx.cpu(0))
    for i in range(60):
        x = (x + 1).as_in_context(mx.cpu(i % 3))
    assert x.context == mx.cpu(59 % 3)
    np.testing.assert_array_equal(x.asnumpy(), np.full((300, 300), 61, "float32"))


def test_writes_wait_for_readers_on_other_devices():
    a = mx.nd.zeros((200, 200), ctx=mx.cpu(0))
    copies = []
    for i in range(50):
        # more readers than a storage keeps in its list
        copies.append(a.as_in_context(mx.cpu(1 + i % 5)))
        a += 1
    for i, copy in enumerate(copies):
        assert copy.asnumpy().min() == copy.asnumpy().max() == i


def test_freed_memory_is_not_reused_before_readers_finish():
    """Memory freed while another device still reads it is not overwritten."""
    results = []
    for i in range(100):
        a = mx.nd.full((128, 128), i, ctx=mx.cpu(0))
        results.append(a.as_in_context(mx.cpu(1)))
        del a
    assert [int(r.asnumpy()[5, 7]) for r in results] == list(range(100))
    assert all(r.asnumpy().std() == 0 for r in results)


def test_threads_may_share_devices():
    failures = []

    def work(n):
        try:
            a = mx.nd.full((64, 64), n, ctx=mx.cpu(n % 2))
            for _ in range(50):
                a = (a + 1).as_in_context(mx.cpu((n + 1) % 2)) * 1
            np.testing.assert_array_equal(a.asnumpy(), np.full((64, 64), n + 50, "float32"))
        except Exception as error:  # reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_memory_limit_error_names_device_and_sizes():
    ctx = mx.cpu(41)
    small = mx.nd.zeros((1000,), ctx=ctx)
    small.wait_to_read()
    try:
        mx.context.set_memory_limit(ctx, 1 << 20)
        with pytest.raises(
            mx.base.MXNetError,
            match=r"cpu\(41\) is out of memory: asked for 4000000 bytes .* limit 1048576 bytes",
        ):
            mx.nd.zeros((1000, 1000), ctx=ctx)
        assert mx.nd.zeros((100, 1000), ctx=ctx).sum().asscalar() == 0  # still works
        stats = mx.context.memory_stats(ctx)
        assert stats["held"] <= 1 << 20 and stats["in_use"] >= 4000
    finally:
        mx.context.set_memory_limit(ctx, 0)
    assert mx.nd.ones((1000, 1000), ctx=ctx).sum().asscalar() == 1000000


def test_freed_memory_returns_to_pool_and_system():
    ctx = mx.cpu(42)
    a = mx.nd.zeros((1000, 1000), ctx=ctx)
    a.wait_to_read()
    assert mx.context.memory_stats(ctx)["in_use"] >= 4000000
    del a
    mx.nd.waitall()
    assert mx.context.memory_stats(ctx)["in_use"] == 0
    ctx.empty_cache()
    assert mx.context.memory_stats(ctx)["held"] == 0


def child(queue):
    a = mx.nd.arange(1000, ctx=mx.cpu(1)).as_in_context(mx.cpu(0)) * 2
    big = mx.nd.ones((400, 400), ctx=mx.cpu(1))
    queue.put(float(a.sum().asscalar()) + float(mx.nd.dot(big, big).asnumpy()[3, 3]))


@pytest.mark.skipif(
    "libtsan" in os.environ.get("LD_PRELOAD", ""),
    reason="ThreadSanitizer does not follow threads started after a fork",
)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_computes_while_parent_has_queued_work():
    big = mx.nd.ones((400, 400), ctx=mx.cpu(1))
    for _ in range(20):
        big = mx.nd.dot(big, big) * (1 / 400)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    assert queue.get(timeout=60) == 999000 + 400
    process.join(60)
    assert process.exitcode == 0
    np.testing.assert_allclose(big.asnumpy(), 1, rtol=1e-4)


def test_workers_block_only_non_crash_signals():
    """Crash signals reach faulthandler and sanitizers on the faulting thread.

    Workers block all other signals, which the host's threads handle.
    """
    mx.nd.ones((400, 400)).wait_to_read()
    mx.nd.dot(*[mx.nd.ones((400, 400))] * 2).wait_to_read()
    blocked = []
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/status") as file:
            status = dict(line.split(":", 1) for line in file)
        mask = int(status["SigBlk"], 16)
        if re.match(r"\s*[cg]pu\(\d+\)", status["Name"]):
            assert mask >> signal.SIGINT - 1 & 1
            blocked.append(
                [
                    name
                    for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP")
                    if mask >> getattr(signal, name) - 1 & 1
                ]
            )
    assert blocked and not any(blocked)


def test_exit_abandons_queued_work():
    """Waiting for the queued work would take very long."""
    run(
        """
import mpgluon as mx
for ctx in (mx.cpu(0), mx.cpu(1)):
    a = mx.nd.ones((2000, 2000), ctx=ctx)
    for _ in range(1000):
        a = mx.nd.dot(a, a)
print('queued')
""",
        timeout=200,
    )


def test_interrupt_ends_wait_for_queued_work():
    out = run("""
import _thread, os, threading
import mpgluon as mx
a = mx.nd.ones((10, 10), ctx=mx.cpu(1))
read, write = os.pipe()
mx._core._stall(mx.cpu(1), 600, read)
a += 1
threading.Timer(0.2, _thread.interrupt_main).start()
try:
    a.wait_to_read()
    print('finished')
except KeyboardInterrupt:
    print('interrupted', [completed < submitted for device, completed, submitted, *_
                          in mx._core.engine_queue_status() if device == 'cpu(1)'])
print(mx.nd.ones((2,)).asnumpy().tolist())
os.close(write)
print(a.asnumpy().sum())
""")
    assert out.splitlines() == ["interrupted [True]", "[1.0, 1.0]", "200.0"]


@pytest.mark.parametrize(
    "settings,mode",
    [
        ({"MPGLUON_ENGINE": "sync"}, "sync"),
        ({"MXNET_ENGINE_TYPE": "NaiveEngine"}, "sync"),
        ({"MPGLUON_ENGINE": "shuffle"}, "shuffle"),
        ({}, "async"),
    ],
)
def test_engine_mode_is_read_from_environment(settings, mode):
    out = run(
        """
import mpgluon as mx
a = mx.nd.ones((100, 100), ctx=mx.cpu(0))
b = mx.nd.dot(a, a).as_in_context(mx.cpu(1)) + a.as_in_context(mx.cpu(1))
print(mx.engine.mode(), b.asnumpy().max())
""",
        **settings,
    )
    assert out.split() == [mode, "101.0"]


def test_invalid_engine_setting_fails_import_with_clear_error():
    done = ended("import mpgluon", MPGLUON_ENGINE="turbo")
    assert done.returncode == 1
    assert "MPGLUON_ENGINE is 'turbo'; it must be async, sync or shuffle" in done.stderr


def test_shuffled_order_gives_same_results():
    def work():
        random = np.random.RandomState(5)
        a = mx.nd.array(random.rand(50, 60), ctx=mx.cpu(0))
        b = mx.nd.array(random.randn(60, 50), ctx=mx.cpu(1))
        for i in range(10):
            c = mx.nd.dot(a, b.as_in_context(mx.cpu(0)))
            a = a + c.mean().as_in_context(mx.cpu(0))
            b += c.as_in_context(mx.cpu(2)).max().as_in_context(mx.cpu(1)) * 1e-3
        return a.asnumpy(), b.asnumpy()

    expected = work()
    try:
        for seed in range(5):
            mx.engine.set_mode("shuffle", seed)
            for got, wanted in zip(work(), expected):
                np.testing.assert_array_equal(got, wanted)
    finally:
        mx.engine.set_mode("async")
