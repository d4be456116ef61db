import gc
import os
import re
import signal

import pytest

import mpgluon as mx
from support.devices import test_devices
from support.gpu_kernels import MISSING
from support.stand_in import ON_STAND_IN

# Ignoring the files is faster than skipping 3,000 tests one by one.
collect_ignore_glob = [] if mx.num_gpus() else ["gpu/test_*.py"]


def pytest_configure():
    """Sets up devices, interrupts and caches.

    Module-level code of tests also runs on the first test device. Background jobs start with SIGINT
    ignored, but tests send it to themselves. The GPU stand-in stores nothing in the user's cache
    folder.
    """
    if ON_STAND_IN:
        os.environ.setdefault("MPGLUON_CUDA_CACHE", "0")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    test_devices()[0].__enter__()


def pytest_report_header():
    if not mx.num_gpus():
        return "gpu: left out, as there is no GPU and no stand-in for one (docs/cuda.md)"
    return None


@pytest.fixture
def devices():
    return test_devices()


@pytest.fixture(autouse=True)
def fresh_state():
    """Starts each test from the same seed on the first test device, and drains queued work after
    it."""
    mx.random.seed(1)
    with test_devices()[0]:
        yield
    mx.nd.waitall()


@pytest.fixture
def async_afterwards():
    yield
    mx.engine.set_mode("async")


@pytest.fixture(scope="module")
def garbage_set_aside():
    """Freezes existing objects, so that garbage collections during the tests do not scan them."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def pytest_collection_modifyitems(config, items):
    """Keeps the tests of one shard: MPGLUON_TEST_SHARD="2/8" keeps every eighth test, from the
    third on."""
    shard = os.environ.get("MPGLUON_TEST_SHARD")
    if shard:
        number, count = map(int, shard.split("/"))
        config.hook.pytest_deselected(
            items=[item for i, item in enumerate(items) if i % count != number]
        )
        items[:] = items[number::count]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """Skips a test that needs an op without a GPU kernel or more devices than exist, and says
    which."""
    outcome = yield
    error = outcome.excinfo and outcome.excinfo[1]
    if error is None or not os.environ.get("MPGLUON_TEST_DEVICES"):
        return
    kernel = re.search(r"(\w+) cannot run on gpu\(\d+\): it has no kernel", str(error))
    device = re.search(r"(\S+) does not exist: GPUs are numbered", str(error))
    if kernel and kernel[1] in MISSING:
        outcome.force_exception(pytest.skip.Exception(f"no kernel for GPUs: {kernel[1]}"))
    elif device:
        outcome.force_exception(pytest.skip.Exception(f"no device {device[1]}"))
