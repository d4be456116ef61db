"""Test devices: those in MPGLUON_TEST_DEVICES (such as "gpu(0),gpu(1)"), or CPU devices."""

import contextlib
import os
import re

import pytest

import mpgluon as mx
from mpgluon import _core


def test_devices():
    names = re.findall(r"(cpu|gpu)\((\d+)\)", os.environ.get("MPGLUON_TEST_DEVICES", "")) or [
        ("cpu", "0"),
        ("cpu", "1"),
    ]
    return [mx.Context(kind, int(index)) for kind, index in names]


test_devices.__test__ = False


def on(index):
    """Returns device `index` of a test.

    Uses the listed devices, then further ones of the first one's type. Indices from 60 on are
    reserved for a single test if enough devices exist; if devices are listed, they map to devices 0
    to 9. A test that uses a missing device is skipped.
    """
    if not os.environ.get("MPGLUON_TEST_DEVICES"):
        return mx.cpu(index)
    listed = test_devices()
    if index >= 60:
        index %= 10
    return listed[index] if index < len(listed) else mx.Context(listed[0].device_type, index)


cpus_only = pytest.mark.skipif(on(0).device_type != "cpu", reason="of CPU devices alone")


@contextlib.contextmanager
def held(ctx):
    """Blocks all work queued on the device inside the `with` block, for ten minutes at most."""
    if _core.engine_mode() != "async":
        pytest.skip("other engine modes run nothing while other things go on")
    read, write = os.pipe()
    _core._stall(ctx, 600, read)
    behind = mx.nd.zeros((1,), ctx=ctx)
    try:
        yield
    finally:
        os.close(write)
        behind.wait_to_read()
        os.close(read)


def at_work(ctx):
    """True if the device has unfinished queued work."""
    return any(
        device == str(ctx) and completed < submitted
        for device, completed, submitted, *_ in _core.engine_queue_status()
    )
