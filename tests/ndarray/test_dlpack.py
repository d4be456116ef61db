"""Zero-copy DLPack import and export."""

import gc
import mmap

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd

DTYPES = ["float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack_shares_memory_with_numpy_for_every_dtype(dtype):
    x = nd.array([[0, 1, 1], [1, 0, 1]], dtype=dtype)
    shared = np.from_dlpack(x)
    assert shared.dtype == np.dtype(dtype) and shared.shape == (2, 3)
    x[0] = 1
    x.wait_to_read()
    assert shared[0].tolist() == [1, 1, 1]
    again = nd.from_dlpack(shared.copy())
    assert again.dtype == x.dtype and again.asnumpy().tolist() == x.asnumpy().tolist()


def test_dlpack_memory_outlives_its_source():
    shared = np.from_dlpack(nd.arange(5))
    gc.collect()
    assert shared.tolist() == [0, 1, 2, 3, 4]
    source = np.arange(5, dtype="float32")
    x = nd.from_dlpack(source)
    del source
    gc.collect()
    y = x * 2
    assert y.asnumpy().tolist() == [0, 2, 4, 6, 8]
    del x
    assert y.asnumpy().tolist() == [0, 2, 4, 6, 8]


def test_dlpack_shares_memory_with_torch():
    torch = pytest.importorskip("torch")
    x = nd.arange(6).reshape((2, 3))
    tensor = torch.from_dlpack(x)
    tensor[0, 0] = 9
    assert x.asnumpy()[0, 0] == 9
    back = nd.from_dlpack(tensor)
    back[:] = 4
    back.wait_to_read()
    assert tensor.eq(4).all() and x.asnumpy().sum() == 24
    half = nd.from_dlpack(torch.tensor([1.5, 2.5], dtype=torch.bfloat16))
    assert half.dtype is mx.bfloat16 and half.asnumpy().tolist() == [1.5, 2.5]
    assert torch.from_dlpack(nd.array([1.5], dtype="bfloat16")).dtype == torch.bfloat16
    for strided in (
        torch.arange(12).reshape(3, 4).t(),
        torch.arange(24, dtype=torch.bfloat16).reshape(2, 3, 4)[:, 1:, ::2],
        torch.arange(3.0).expand(4, 3),
    ):
        copied = nd.from_dlpack(strided)
        assert copied.asnumpy().tolist() == strided.tolist()
        copied[:] = 7
        copied.wait_to_read()
        assert not strided.eq(7).all()


def test_non_contiguous_dlpack_sources_are_copied():
    values = np.arange(24, dtype="int16").astype("int32").reshape(2, 3, 4)
    for source in (values.T, values[:, ::-1], values[1:, :, 1::2], values[:0, :, ::2]):
        copied = nd.from_dlpack(source)
        np.testing.assert_array_equal(copied.asnumpy(), source)
        copied[:] = -1
        copied.wait_to_read()
    assert (values == np.arange(24).reshape(2, 3, 4)).all()
    gone = nd.from_dlpack(np.arange(6.0).reshape(2, 3).T)
    gc.collect()
    assert gone.asnumpy().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_dlpack_capsule_is_consumed_once():
    x = nd.array([1, 2])
    for make in (
        nd.to_dlpack_for_read,
        nd.to_dlpack_for_write,
        lambda a: a.to_dlpack_for_read(),
        lambda a: a.__dlpack__(),
        lambda a: a.__dlpack__(max_version=(1, 0)),
    ):
        capsule = make(x)
        y = nd.from_dlpack(capsule)
        y[0] += 1
        with pytest.raises(ValueError):
            nd.from_dlpack(capsule)
        del capsule, y
    assert x.asnumpy().tolist() == [6, 2]
    x.__dlpack__()  # a capsule that is never consumed
    assert x.__dlpack_device__() == (1, 0)
    for yes in (True, np.True_, 1):
        copied = nd.from_dlpack(x.__dlpack__(copy=yes))
        copied[:] = 0
        assert x.asnumpy().tolist() == [6, 2]


MAKERS = {
    "from_dlpack": lambda v: nd.from_dlpack(v.copy()),
    "from_numpy": lambda v: nd.from_numpy(v.copy()),
    "from_numpy copied": lambda v: nd.from_numpy(v, zero_copy=False),
    "capsule": lambda v: nd.from_dlpack(v.copy().__dlpack__()),
    "array": nd.array,
    "copy": lambda v: nd.array(v).copy(),
    "empty": lambda v: nd.zeros(v.shape) + nd.array(v),
    "detach": lambda v: nd.array(v).detach(),
    "reshape": lambda v: nd.array(v).reshape((-1,)).reshape(v.shape),
    "device": lambda v: nd.array(v).as_in_context(mx.cpu(1)),
    "slice": lambda v: nd.array(np.concatenate([v, v]))[len(v) :],
}


@pytest.mark.parametrize("maker", MAKERS)
def test_reused_array_objects_carry_no_state_of_dead_arrays(maker):
    """Covers reused objects of views, of arrays on the tape and of traced arrays."""
    values = np.arange(12, dtype="float32").reshape((4, 3)) + 1
    x = nd.ones((40, 3))
    x.attach_grad()
    net = mx.gluon.nn.Dense(3, flatten=False)
    net.initialize()
    net.hybridize()
    for _ in range(3):
        list(x)
        with mx.autograd.record():
            results = [x[i : i + 2] * i for i in range(7)]
        del results
        net(nd.ones((2, 3)))
        made = [MAKERS[maker](values) for _ in range(20)]
        for array in made:
            assert array.asnumpy().tolist() == values.tolist()
            assert array.grad is None and array.shape == (4, 3)
            array[:] = 7
            assert array.asnumpy().min() == array.asnumpy().max() == 7
        del array, made


def test_writes_to_imported_array_stay_in_bounds():
    memory = np.zeros(20, "float32")
    for row in nd.ones((4, 3)):
        pass
    del row
    part = nd.from_dlpack(memory[:4])
    part[:] = 7
    part.wait_to_read()
    assert memory.tolist() == [7] * 4 + [0] * 16


def test_read_only_memory_is_not_imported():
    frozen = bytes(64)
    with mmap.mmap(-1, 4096, prot=mmap.PROT_READ) as pages:
        for memory in (frozen, pages):
            source = np.frombuffer(memory, "float32")
            with pytest.raises((ValueError, BufferError), match="read-?only"):
                nd.from_dlpack(source)
            with pytest.raises(ValueError, match="read-only"):
                nd.from_numpy(source)
            del source
    assert frozen == bytes(64)
    source = np.ones(3, "float32")
    source.flags.writeable = False
    with pytest.raises((ValueError, BufferError), match="read-?only"):
        nd.from_dlpack(source)
    source.flags.writeable = True
    assert nd.from_dlpack(source).asnumpy().tolist() == [1, 1, 1]


def test_reimported_own_array_keeps_its_storage():
    a = nd.ones((700, 700))
    for take in (
        lambda x: x,
        lambda x: x.__dlpack__(),
        lambda x: x.__dlpack__(max_version=(1, 0)),
        nd.to_dlpack_for_write,
    ):
        x = nd.zeros((700, 700))
        y = nd.from_dlpack(take(x))
        nd.dot(a, a, out=x)
        assert y.asnumpy().min() == 700 == y.as_in_context(mx.cpu(1)).asnumpy().max()
        y *= 2
        assert x.asnumpy().min() == 1400
        y[:] = 3
        assert x.as_in_context(mx.cpu(1)).asnumpy().max() == 3
    part = nd.from_dlpack(nd.arange(12).reshape((4, 3))[2])
    assert part.asnumpy().tolist() == [6, 7, 8]


def test_dlpack_exports_views_and_empty_and_scalar_shapes():
    x = nd.arange(12).reshape((4, 3))
    assert np.from_dlpack(x[1:3]).tolist() == [[3, 4, 5], [6, 7, 8]]
    assert np.from_dlpack(nd.zeros((0, 3))).shape == (0, 3)
    assert np.from_dlpack(nd.array(3.0)).shape == ()


def test_from_dlpack_refuses_invalid_sources_and_devices():
    for wrong in (3, "a", None, [1]):
        with pytest.raises(TypeError):
            nd.from_dlpack(wrong)
    with pytest.raises(ValueError):
        nd.from_dlpack(np.zeros(3, "complex64"))
    with pytest.raises(ValueError):
        nd.from_dlpack(np.zeros(3, "uint16"))
    with pytest.raises((BufferError, TypeError)):
        nd.ones(1).__dlpack__(dl_device=(2, 0))
    for wrong in (5, "ab", (1,), (1, 2, 3), (1, "a")):
        with pytest.raises(TypeError):
            nd.ones(1).__dlpack__(dl_device=wrong)
    for wrong in (nd.to_dlpack_for_read, nd.to_dlpack_for_write):
        with pytest.raises(TypeError):
            wrong(3)


def test_dlpack_exports_and_imports_do_not_leak():
    kept = nd.ones((128, 128))
    nd.waitall()
    gc.collect()
    before = mx.context.memory_stats(mx.cpu(0))["in_use"]
    for _ in range(100):
        np.from_dlpack(kept * 2)
        nd.from_dlpack(np.ones((128, 128), "float32")) + kept
        kept.__dlpack__()
    nd.waitall()
    gc.collect()
    assert mx.context.memory_stats(mx.cpu(0))["in_use"] == before
