import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))


@pytest.fixture(autouse=True)
def fresh_state():
    """Every test starts from the same seed, outside record scopes, and leaves no queued work behind."""
    import mpgluon as mx

    mx.random.seed(1)
    yield
    mx.nd.waitall()
