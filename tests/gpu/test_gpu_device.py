"""GPUs as devices: copies to and from the host, memory and its exhaustion, failing drivers and
cards."""

import ctypes
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from support.functions import compiled
from support.processes import finished, output_of
from support.stand_in import needs_gpu, needs_stand_in

pytestmark = needs_gpu

CHUNK = 512 << 10  # bytes of one of the 16 chunks of the staging ring


@pytest.mark.parametrize(
    "size", [1, 1000, CHUNK - 1, CHUNK, CHUNK + 1, 15 * CHUNK + 7, 16 * CHUNK, 40 * CHUNK + 3]
)
def test_copies_of_all_sizes_work_both_ways(size):
    values = np.random.RandomState(size % 1000).randint(0, 256, size).astype("uint8")
    array = nd.array(values, ctx=mx.gpu(0), dtype="uint8")
    np.testing.assert_array_equal(array.asnumpy(), values)
    there_and_back = (
        array.as_in_context(mx.cpu(0))
        .as_in_context(mx.gpu(mx.num_gpus() - 1))
        .as_in_context(mx.cpu(1))
    )
    np.testing.assert_array_equal(there_and_back.asnumpy(), values)


def test_host_arrays_may_be_changed_right_after_a_copy():
    values, arrays = np.zeros((300, 1000), "float32"), []
    for k in range(30):
        values[:] = k
        arrays.append(nd.array(values, ctx=mx.gpu(0)) * 2)
    for k, array in enumerate(arrays):
        assert (array.asnumpy() == 2 * k).all()


def test_threads_copy_concurrently():
    wrong = []

    def work(k):
        for i in range(8):
            values = np.full((500 + 3000 * k, 100), 10 * k + i, "float32")
            array = nd.array(values, ctx=mx.gpu(k % mx.num_gpus()))
            if (
                not (array.asnumpy() == values).all()
                or not ((array + 1).as_in_context(mx.cpu(0)).asnumpy() == values + 1).all()
            ):
                wrong.append((k, i))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_gpu_memory_info_honors_limits():
    free, total = mx.context.gpu_memory_info(0)
    assert 0 < free <= total and total >= 1 << 20
    held = nd.ones((1 << 20,), ctx=mx.gpu(0))
    held.wait_to_read()
    used = mx.context.memory_stats(mx.gpu(0))["held"]
    mx.context.set_memory_limit(mx.gpu(0), used + (1 << 20))
    try:
        assert mx.context.gpu_memory_info(0) == (1 << 20, used + (1 << 20)) or free < (1 << 20)
    finally:
        mx.context.set_memory_limit(mx.gpu(0), 0)
    with pytest.raises(mx.base.MXNetError, match=r"gpu\(99\) does not exist"):
        mx.context.gpu_memory_info(99)


@needs_stand_in
def test_gpu_memory_info_is_per_card():
    out = output_of(
        """
        import mpgluon as mx
        mx.nd.ones((1 << 20,), ctx=mx.gpu(0)).wait_to_read()
        print(*mx.context.gpu_memory_info(0), *mx.context.gpu_memory_info(1),
              *mx.util.get_gpu_memory(1))
    """,
        HOSTCUDA_MEMORY=str(64 << 20),
    )
    free, total, free1, total1, *again = map(int, out.split())
    assert total == total1 == 64 << 20
    assert free <= 60 << 20
    assert free1 == 64 << 20
    assert again == [free1, total1]


@needs_stand_in
def test_cached_memory_of_other_logical_devices_is_reclaimed():
    out = output_of(
        """
        import mpgluon as mx
        mx.nd.ones((3 << 20,), ctx=mx.gpu(1)).wait_to_read()  # 12 MiB, cached by gpu(1)
        print(mx.nd.ones((4 << 20,), ctx=mx.gpu(0))[:1].asnumpy())
        print(mx.context.memory_stats(mx.gpu(1))["held"])
    """,
        HOSTCUDA_DEVICES="1",
        MPGLUON_GPU_LOGICAL="2",
        HOSTCUDA_MEMORY=str(20 << 20),
    )
    assert out.split() == ["[1.]", "0"]


@needs_stand_in
def test_missing_scratch_memory_raises_by_op_name():
    """The error names the op, and the process continues."""
    out = output_of(
        """
        import mpgluon as mx
        x = mx.nd.ones((3 << 20,), ctx=mx.gpu(0))
        x.wait_to_read()
        try:
            mx.nd.sort(x).wait_to_read()
            print("sorted")
        except mx.base.DeviceMemoryError as error:
            print(error)
        print(x[:1].asnumpy())
    """,
        HOSTCUDA_MEMORY=str(26 << 20),
    )
    assert "gpu(0) is out of memory: asked for" in out and "[1.]" in out


NO_DRIVER = "the NVIDIA driver finds no GPU (no CUDA-capable device is detected)"
OLD_DRIVER = (
    "the NVIDIA driver supports CUDA 12.4, but mpgluon was built with the newer CUDA 13.0; update "
    "the driver"
)


@pytest.mark.parametrize(
    "name, value, why",
    [
        ("MPGLUON_CUDA_LIBRARY", "0", "GPUs are turned off by MPGLUON_CUDA_LIBRARY=0"),
        pytest.param("HOSTCUDA_DEVICES", "0", NO_DRIVER, marks=needs_stand_in),
        pytest.param("HOSTCUDA_DRIVER", "12040", OLD_DRIVER, marks=needs_stand_in),
    ],
)
def test_error_without_gpus_names_the_reason(name, value, why):
    out = output_of(
        """
        import mpgluon as mx
        print(mx.num_gpus())
        try:
            mx.nd.ones((2,), ctx=mx.gpu(0))
        except mx.base.MXNetError as error:
            print(error)
    """,
        MPGLUON_TEST_DEVICES="",
        **{name: value},
    )
    assert out.startswith("0\n") and "gpu(0) cannot be used: " + why in out


@needs_stand_in
def test_card_out_of_memory_raises_and_recovers():
    out = output_of(
        """
        import mpgluon as mx
        keep = mx.nd.ones((1 << 20,), ctx=mx.gpu(0))
        spare = mx.nd.ones((3 << 20,), ctx=mx.gpu(0))
        spare.wait_to_read()
        del spare  # cached, and given back when something else needs the room
        other = mx.nd.ones((7 << 19,), ctx=mx.gpu(0))
        print(other[:1].asnumpy())
        try:
            mx.nd.ones((8 << 20,), ctx=mx.gpu(0))
        except mx.base.MXNetError as error:
            print(error)
        print((keep[:2] + 1).asnumpy())
    """,
        HOSTCUDA_MEMORY=str(20 << 20),
    )
    assert "[1.]" in out
    assert "gpu(0) is out of memory: asked for 33554432 bytes" in out
    assert "[2. 2.]" in out


@needs_stand_in
def test_lost_device_is_reported_and_others_continue():
    out = output_of("""
        import ctypes, os
        import mpgluon as mx
        a, b, c = (mx.nd.ones((5,), ctx=ctx) for ctx in (mx.gpu(0), mx.gpu(1), mx.cpu(0)))
        mx.nd.waitall()
        ctypes.CDLL(os.environ["MPGLUON_CUDA_LIBRARY"]).hostcuda_break(0)
        for attempt in range(2):
            try:
                (a + 1).asnumpy()
            except mx.base.MXNetError as error:
                print("error:", str(error).replace(chr(10), " "))
        print((b + 1).asnumpy(), (c + 1).asnumpy())
    """)
    assert out.count("error:") == 2
    assert "gpu(0) is lost" in out
    assert out.count("[2. 2. 2. 2. 2.]") == 2


LOST = """
    import ctypes, os
    import mpgluon as mx
    arrays = [mx.nd.ones((5,), ctx=mx.gpu(i)) for i in range(mx.num_gpus())]
    mx.nd.waitall()
    ctypes.CDLL(os.environ["MPGLUON_CUDA_LIBRARY"]).hostcuda_break_after(0, 3)
    y = arrays[0]
    for k in range(10):
        y = y + 1  # the third of these is the illegal one
    for array in [y] + arrays:
        try:
            print((array * 2).asnumpy())
        except mx.base.MXNetError as error:
            print("error:", str(error).replace(chr(10), " "))
"""


@needs_stand_in
def test_illegal_access_error_names_the_line():
    lines = output_of(LOST).splitlines()
    assert lines[0].startswith("error: gpu(0) is lost: ")
    assert "y = y + 1" in lines[0] or "<string>" in lines[0], lines[0]
    assert lines[1].startswith("error: gpu(0) is lost: ")
    # later work names the cause as well
    assert all("an illegal memory access" in line for line in lines[:2]), lines
    assert lines[2] == "[2. 2. 2. 2. 2.]"


@needs_stand_in
def test_all_logical_devices_of_a_lost_card_are_lost():
    lines = output_of(LOST, MPGLUON_GPU_LOGICAL="4", HOSTCUDA_DEVICES="2").splitlines()
    assert [line.startswith("error:") for line in lines] == [True, True, False, True, False], lines
    assert "gpu(2) is lost: " in lines[3] and "an illegal memory access" in lines[3]


@needs_stand_in
def test_shared_memory_limit_is_raised_once_per_kernel():
    out = output_of("""
        import mpgluon as mx
        from mpgluon import nd
        from gpu.test_gpu import CASES, call, place
        from gpu.test_gpu_graphs import Counts

        sample = next(case.values[1] for case in CASES if case.values[0] == "_attention")
        counts, asked = Counts(), []
        for _ in range(3):
            for card in (0, 1):
                with mx.gpu(card):
                    call("_attention", place(sample, "float32", mx.gpu(card)), sample.params)
                nd.waitall()
                asked.append(counts.library.hostcuda_count(b"attribute"))
        print(asked)
    """)
    assert out == "[1, 2, 2, 2, 2, 2]\n"


@needs_stand_in
def test_freed_memory_is_reused_in_address_order():
    """Independent of the order of frees, so that a repeated step has the same addresses."""
    finished("""
        import ctypes, random
        import mpgluon as mx
        from mpgluon import nd

        def address(array):
            api = ctypes.pythonapi.PyCapsule_GetPointer
            api.restype, api.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            capsule = array.__dlpack__(stream=-1)
            return ctypes.cast(api(capsule, b"dltensor"), ctypes.POINTER(ctypes.c_void_p))[0]

        draw = random.Random(5)
        held = [nd.ones((50,), ctx=mx.gpu(0)) for _ in range(60)]
        nd.waitall()
        for _ in range(20):
            dropped = draw.randrange(1, 60)
            for _ in range(dropped):
                nd.waitall()
                del held[draw.randrange(len(held))]
            taken = [nd.ones((50,), ctx=mx.gpu(0)) for _ in range(dropped)]
            places = [address(array) for array in taken]
            assert places == sorted(places) and len(set(places)) == dropped
            held += taken
            del taken
            if draw.random() < 0.3:
                dropped = len(held)
                held = held[: dropped // 2]
                mx.gpu(0).empty_cache()
                held += [nd.ones((50,), ctx=mx.gpu(0)) for _ in range(dropped - len(held))]
                nd.waitall()
    """)


def strided_capsule(array, view, base):
    """Returns a DLPack capsule of an array's memory with the offset and strides that `view` has in
    the NumPy array `base`, and the objects that must outlive it."""
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    new = api.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    own = array.__dlpack__()
    managed = (ctypes.c_char * 64)()  # data, device, ndim, dtype, shape, strides, offset, ...
    ctypes.memmove(managed, api.PyCapsule_GetPointer(own, b"dltensor"), 64)
    lists = [
        (ctypes.c_int64 * 8)(*values)
        for values in (view.shape, [stride // view.itemsize for stride in view.strides])
    ]
    offset = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    ctypes.c_int32.from_buffer(managed, 16).value = view.ndim
    for at, value in ((24, ctypes.addressof(lists[0])), (32, ctypes.addressof(lists[1]))):
        ctypes.c_uint64.from_buffer(managed, at).value = value
    ctypes.c_uint64.from_buffer(managed, 40).value = offset
    ctypes.c_uint64.from_buffer(managed, 56).value = 0  # no deleter
    return new(ctypes.addressof(managed), b"dltensor", None), (own, managed, lists)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool"])
def test_tensors_with_other_strides_are_copied(dtype):
    base = np.arange(4 * 6 * 8).reshape(4, 6, 8).astype(dtype)
    array = nd.array(base, ctx=mx.gpu(0), dtype=dtype)
    for view in (
        base.T,
        base.transpose(1, 0, 2),
        base[:, 1:3],
        base[1:, ::2, 1::3],
        base[::-1, :, ::-2],
        np.broadcast_to(base[:, :, None], (4, 6, 5, 8)),
        np.lib.stride_tricks.sliding_window_view(base[0, 0], 3),
        base.transpose(2, 0, 1)[::4, 2:],
        base[2:3, :, 5:6].T,
        base[:, 0],
        base[3, :, 7],
        base[:0].T,
    ):
        capsule, kept = strided_capsule(array, view, base)
        copied = nd.from_dlpack(capsule)
        assert copied.context == mx.gpu(0) and copied.dtype == base.dtype
        np.testing.assert_array_equal(copied.asnumpy(), view)
        copied[:] = -1
        copied.wait_to_read()
        del kept
    np.testing.assert_array_equal(array.asnumpy(), base)


def test_tensors_with_other_strides_in_a_traced_block():
    """The copy is made at trace time with the tensor's values and is not part of the block."""
    base = np.arange(12, dtype="float32").reshape(3, 4)
    array = nd.array(base, ctx=mx.gpu(0))
    capsule, kept = strided_capsule(array, base[:, ::2], base)
    taken = []

    def function(x):
        taken.append(nd.from_dlpack(capsule))
        return x + taken[0]

    block, x = compiled(function), nd.ones((3, 2), ctx=mx.gpu(0))
    for _ in range(2):
        np.testing.assert_array_equal(block(x)[0].asnumpy(), base[:, ::2] + 1)
        np.testing.assert_array_equal(taken[0].asnumpy(), base[:, ::2])
        array[:] = -1
        array.wait_to_read()
    del kept


@needs_stand_in
def test_strided_tensor_is_copied_before_later_writes():
    """Later writes of the producer on any stream do not affect the copy."""
    finished(
        """
        import ctypes
        import numpy as np
        import mpgluon as mx
        from gpu.test_gpu_device import strided_capsule

        base = np.arange(12, dtype="float32").reshape(3, 4)
        array = mx.nd.array(base, ctx=mx.gpu(0))
        array.wait_to_read()
        for view in (base[:, ::2], base.T):
            capsule, kept = strided_capsule(array, view, base)
            memory = ctypes.cast(kept[1], ctypes.POINTER(ctypes.c_void_p))[0]
            copied = mx.nd.from_dlpack(capsule)
            ctypes.memset(memory, 0xFF, base.nbytes)
            assert (copied.asnumpy() == view).all()
            ctypes.memmove(memory, base.ctypes.data, base.nbytes)
    """,
        HOSTCUDA_KERNEL="50000",
    )


def test_strides_beyond_memory_raise():
    base = np.zeros((3, 3), "float32")
    array = nd.array(base, ctx=mx.gpu(0))
    for strides in ((1 << 64, 4), (-(1 << 63), 1 << 62), (1 << 62, 4)):
        view = SimpleNamespace(
            shape=base.shape,
            ndim=2,
            strides=strides,
            itemsize=4,
            __array_interface__=base.__array_interface__,
        )
        capsule, kept = strided_capsule(array, view, base)
        with pytest.raises(ValueError, match="too large"):
            nd.from_dlpack(capsule)
        del capsule, kept
