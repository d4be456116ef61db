import os
import re
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))


def test_devices():
    """The devices that tests run on: MPGLUON_TEST_DEVICES, as "gpu(0),gpu(1)", or two CPU devices."""
    import mpgluon as mx

    names = re.findall(r"(cpu|gpu)\((\d+)\)", os.environ.get("MPGLUON_TEST_DEVICES", "")) or [("cpu", "0"), ("cpu", "1")]
    return [mx.Context(kind, int(index)) for kind, index in names]


test_devices.__test__ = False


@pytest.fixture
def devices():
    return test_devices()


@pytest.fixture(autouse=True)
def fresh_state():
    """Every test starts from the same seed, on the first of the test devices, outside record scopes, and leaves no queued work behind."""
    import mpgluon as mx

    mx.random.seed(1)
    with test_devices()[0]:
        yield
    mx.nd.waitall()


def pytest_collection_modifyitems(config, items):
    """MPGLUON_TEST_SHARD="2/8" keeps every eighth test, from the third on: for several processes."""
    shard = os.environ.get("MPGLUON_TEST_SHARD")
    if shard:
        number, count = map(int, shard.split("/"))
        config.hook.pytest_deselected(items=[item for i, item in enumerate(items) if i % count != number])
        items[:] = items[number::count]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """On a device whose kernels are not all there yet, a test that meets a missing one is skipped, and says which."""
    outcome = yield
    error = outcome.excinfo and outcome.excinfo[1]
    if error is None or not os.environ.get("MPGLUON_TEST_DEVICES"):
        return
    missing = re.search(r"(\w+) cannot run on (\S+) yet", str(error))
    if missing:
        outcome.force_exception(pytest.skip.Exception(f"no kernel: {missing[1]} on {missing[2]}"))
