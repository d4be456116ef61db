"""The devices that tests run on: MPGLUON_TEST_DEVICES, as "gpu(0),gpu(1)", or CPU devices."""

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
    """Device `index` of a test: of the listed ones, or further of the first one's kind. From 60 on
    they are a test's own where there are enough of them, and devices 0 to 9 once more where devices
    are listed. A test that uses one which isn't there is skipped."""
    if not os.environ.get("MPGLUON_TEST_DEVICES"):
        return mx.cpu(index)
    listed = test_devices()
    if index >= 60:
        index %= 10
    return listed[index] if index < len(listed) else mx.Context(listed[0].device_type, index)


cpus_only = pytest.mark.skipif(on(0).device_type != "cpu", reason="of CPU devices alone")


@contextlib.contextmanager
def held(ctx):
    """The device does nothing of what is queued from here on until the block ends, however long
    that takes (ten minutes at most)."""
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
    """Whether the device has not done all that is queued."""
    return any(
        device == str(ctx) and completed < submitted
        for device, completed, submitted, *_ in _core.engine_queue_status()
    )
