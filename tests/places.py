"""The devices that tests run on: MPGLUON_TEST_DEVICES, as "gpu(0),gpu(1)", or CPU devices."""

import os
import re

import pytest

import mpgluon as mx


def test_devices():
    names = re.findall(r"(cpu|gpu)\((\d+)\)", os.environ.get("MPGLUON_TEST_DEVICES", "")) or [("cpu", "0"), ("cpu", "1")]
    return [mx.Context(kind, int(index)) for kind, index in names]


test_devices.__test__ = False


def on(index):
    """Device `index` of a test: of the listed ones, or further of the first one's kind. From 60 on they are a test's own where there are
    enough of them, and devices 0 to 9 once more where devices are listed. A test that uses one which isn't there is skipped."""
    if not os.environ.get("MPGLUON_TEST_DEVICES"):
        return mx.cpu(index)
    listed = test_devices()
    if index >= 60:
        index %= 10
    return listed[index] if index < len(listed) else mx.Context(listed[0].device_type, index)


cpus_only = pytest.mark.skipif(on(0).device_type != "cpu", reason="of CPU devices alone")
