"""Array pickles written by MXNet 1.9.1, read under the name mxnet."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from mpgluon import nd
from mpgluon.base import MXNetError
from support.calls import raises

# pickle.dumps(nd.array([[1, 2], [3, 4]]), 2), written by MXNet 1.9.1.
WRITTEN = """
gAJjbXhuZXQubmRhcnJheS5uZGFycmF5Ck5EQXJyYXkKcQBOhXEBUnECfXEDWAYAAABoYW5kbGVx
BGNfX2J1aWx0aW5fXwpieXRlYXJyYXkKcQVjX2NvZGVjcwplbmNvZGUKcQZYPgAAAMOJw7rCk8O5
AAAAAAIAAAACAAAAAAAAAAIAAAAAAAAAAQAAAAAAAAAAAAAAAADCgD8AAABAAABAQAAAwoBAcQdY
BgAAAGxhdGluMXEIhnEJUnEKhXELUnEMc2Iu
"""
SCRIPT = """
import base64, pickle, sys
import mpgluon
mpgluon.as_mxnet()
import mxnet
array = pickle.loads(base64.b64decode(sys.argv[1]))
assert type(array) is mxnet.nd.NDArray
print(array.asnumpy().tolist(), (array * 2).sum().asscalar())
"""


def test_mxnet_pickle_is_read_under_mxnet_name():
    # Runs in its own process because the name mxnet stays registered.
    run = subprocess.run([sys.executable, "-c", SCRIPT, WRITTEN], capture_output=True, text=True)
    assert run.stdout == "[[1.0, 2.0], [3.0, 4.0]] 20.0\n", run.stderr


def state_of(array):
    """Returns the array's part of a file with one array, as in MXNet."""
    return bytearray(nd.save_tobuffer([array])[24:-8])


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "uint8", "int32", "int64"])
def test_setstate_restores_every_dtype(dtype):
    source = nd.array(np.arange(6).reshape(2, 3), dtype=dtype)
    array = nd.NDArray(None)
    array.__setstate__({"handle": state_of(source)})
    assert array.dtype == source.dtype
    np.testing.assert_array_equal(array.asnumpy(), source.asnumpy())
    assert (pickle.loads(pickle.dumps(array)) == source).asnumpy().all()


def test_invalid_pickle_state_is_refused():
    state = state_of(nd.ones((2, 3)))
    for wrong in (
        None,
        3,
        {},
        {"handle": None},
        {"handle": "text"},
        {"handle": state_of(nd.ones((2, 3)).tostype("csr"))},
        *({"handle": state[:size]} for size in range(len(state))),
        {"handle": state + b"0"},
    ):
        array = nd.NDArray(None)
        with pytest.raises((TypeError, MXNetError, OSError)):
            array.__setstate__(wrong)
        assert array.shape == (0,)
    for array in (nd.ones((2,)), nd.ones((2,)).tostype("row_sparse")):
        with pytest.raises(TypeError):
            array.__setstate__({"handle": state})
    assert nd.ones((2,)).asnumpy().tolist() == [1, 1]


def test_ndarray_constructor_and_handle_are_refused_with_advice():
    for args in ((), (3,), (None, None)):
        raises(TypeError, r"make arrays with nd\.array", lambda: nd.NDArray(*args))
    raises(AttributeError, "use x itself; mpgluon has no handles", lambda: nd.ones((2,)).handle)
