"""Array files with arrays of mx.np: shapes without dimensions or elements, and the loaded kind."""

import numpy as np
import pytest

from mpgluon import _core, nd

DTYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


def array(values, dtype):
    return nd.array(values, dtype=dtype).as_np_ndarray()


SAVED = [(), (0,), (2, 0, 1), (3,), (2, 3), (0, 0)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_array_files_keep_shapes_and_give_the_wanted_kind(dtype, tmp_path):
    arrays = [array(np.ones(shape), dtype) for shape in SAVED]
    names = [f"x{i}" for i in range(len(arrays))]
    path = tmp_path / "arrays.params"
    _core.save_arrays(path, arrays, names)
    contents = path.read_bytes()
    assert contents == _core.save_arrays_to_bytes(arrays, names)
    assert contents[24:28] == (0xF993FACA).to_bytes(4, "little")  # version 3
    for numpy, kind in ((True, _core.ndarray), (False, nd.NDArray)):
        for loaded, found in (
            _core.load_arrays(path, numpy),
            _core.load_arrays_from_bytes(contents, numpy),
        ):
            assert found == names
            for x, y in zip(arrays, loaded):
                assert type(y) is kind and y.shape == x.shape
                assert _core.dtype_name(y.dtype) == dtype
                assert np.array_equal(y.asnumpy(), x.asnumpy())
