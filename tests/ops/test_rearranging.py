"""Sorting and joining of arrays that span several kernel blocks."""

import numpy as np
import pytest

from mpgluon import nd


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int8", "uint8", "float64"])
@pytest.mark.parametrize("ascending", [False, True])
def test_topk_across_blocks_is_stable(dtype, ascending):
    """Equal elements keep their index order across blocks."""
    rng = np.random.RandomState(5)
    for n, k in ((49, 6), (128, 1), (129, 16), (300, 7), (1000, 125), (1000, 3)):
        x = rng.randint(0, 40, (3, n, 2)).astype(dtype)
        for axis, values in ((1, x), (-1, np.moveaxis(x, 1, -1).copy())):
            found, places = nd.topk(
                nd.array(values, dtype=dtype),
                k=k,
                axis=axis,
                ret_typ="both",
                is_ascend=ascending,
                dtype="int32",
            )
            order = values.astype("float64") * (1 if ascending else -1)
            expected = np.take(np.argsort(order, axis, kind="stable"), range(k), axis)
            assert (places.asnumpy() == expected).all()
            assert (found.asnumpy() == np.take_along_axis(values, expected, axis)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_concat_joins_runs_of_any_length(dtype):
    rng = np.random.RandomState(6)
    for rows in (1, 63, 64, 100):
        for widths in ((300, 300), (1000, 1), (257, 64, 2000), (40000, 3), (64,)):
            parts = [rng.randint(0, 100, (rows, width)).astype(dtype) for width in widths]
            found = nd.concat(*[nd.array(part, dtype=dtype) for part in parts], dim=1)
            assert (found.asnumpy() == np.concatenate(parts, 1)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64"])
def test_transpose_handles_full_and_partial_tiles(dtype):
    rng = np.random.RandomState(7)
    for shape in ((16, 16), (48, 64), (17, 64), (128, 2048), (64, 1030), (2048, 33), (3, 5)):
        x = rng.randint(-100, 100, shape).astype(dtype)
        assert (nd.transpose(nd.array(x, dtype=dtype)).asnumpy() == x.T).all(), shape
    x = rng.randint(-100, 100, (3, 32, 2, 64)).astype(dtype)
    for axes in ((0, 3, 2, 1), (2, 0, 3, 1), (3, 1, 0, 2)):
        found = nd.transpose(nd.array(x, dtype=dtype), axes).asnumpy()
        assert (found == x.transpose(axes)).all(), axes


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_tile_flip_and_strided_slice_of_long_runs_match_numpy(dtype):
    """Covers runs that are split between threads and lengths that do not divide evenly."""
    rng = np.random.RandomState(8)
    for rows, width in ((64, 1024), (37, 4096), (3, 50001), (2, 98304)):
        x = rng.randint(0, 100, (rows, width)).astype(dtype)
        array = nd.array(x, dtype=dtype)
        for reps in ((2, 1), (3, 1, 1), (2, 2)):
            assert (nd.tile(array, reps).asnumpy() == np.tile(x, reps)).all(), (x.shape, reps)
        assert (nd.flip(array, axis=0).asnumpy() == x[::-1]).all()
        assert (array[::2].asnumpy() == x[::2]).all()
