import gc
import os
import re
import signal

import pytest

import mpgluon as mx
from support.devices import test_devices
from support.gpu_kernels import MISSING
from support.stand_in import ON_STAND_IN

# Skipping 3,000 tests one by one would take a while.
collect_ignore_glob = [] if mx.num_gpus() else ["gpu/test_*.py"]


def pytest_configure():
    """What test modules make when they are imported lies on the first of the test devices, too.
    Jobs in the background are started with interrupts ignored, which tests send to themselves.
    Nothing of the stand-in is kept in the user's cache folder."""
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
    """Every test starts from the same seed, on the first of the test devices, outside record
    scopes, and leaves no queued work behind."""
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
    """What was there before is not looked at by each collection, which takes a while with all the
    objects of a test run."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def pytest_collection_modifyitems(config, items):
    """MPGLUON_TEST_SHARD="2/8" keeps every eighth test, from the third on: for several
    processes."""
    shard = os.environ.get("MPGLUON_TEST_SHARD")
    if shard:
        number, count = map(int, shard.split("/"))
        config.hook.pytest_deselected(
            items=[item for i, item in enumerate(items) if i % count != number]
        )
        items[:] = items[number::count]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """A test that meets an op that is known to have no kernel for GPUs, or needs more devices than
    there are, is skipped, and says which."""
    outcome = yield
    error = outcome.excinfo and outcome.excinfo[1]
    if error is None or not os.environ.get("MPGLUON_TEST_DEVICES"):
        return
    kernel = re.search(r"(\w+) cannot run on gpu\(\d+\) yet", str(error))
    device = re.search(r"(\S+) is not there: GPUs here are numbered", str(error))
    if kernel and kernel[1] in MISSING:
        outcome.force_exception(pytest.skip.Exception(f"no kernel for GPUs: {kernel[1]}"))
    elif device:
        outcome.force_exception(pytest.skip.Exception(f"no device {device[1]}"))
