"""Ordering hazards on a card: late copies from the host, immediate reuse of memory, streams of
other libraries, and forks. The stand-in delays work as long as it is allowed."""

import pytest

from support.processes import finished, output_of
from support.stand_in import STAND_IN, needs_gpu, needs_stand_in

pytestmark = [needs_gpu, needs_stand_in]
LATE = {"HOSTCUDA_DELAY": "30000", "HOSTCUDA_REUSE": "1", "HOSTCUDA_DEVICES": "2"}


def test_device_copies_wait_for_host_copies():
    """Copies into and out of an array whose first values are still in flight."""
    finished(
        """
        import numpy as np
        import mpgluon as mx
        values = np.arange(3000, dtype="float32")
        for _ in range(6):
            mine, other = mx.nd.ones((3000,), ctx=mx.gpu(0)), mx.nd.array(values, ctx=mx.gpu(1))
            mine.copyto(other)
            assert (other.asnumpy() == 1).all()
            other = mx.nd.array(values, ctx=mx.gpu(1))
            assert (other.as_in_context(mx.gpu(0)).asnumpy() == values).all()
    """,
        **LATE,
    )


@pytest.mark.parametrize("graphs", ["0", "1"])
def test_programs_over_devices_wait_for_host_copies(graphs):
    finished(
        """
        import numpy as np
        import mpgluon as mx
        from mpgluon import gluon

        class Two(gluon.HybridBlock):
            def hybrid_forward(self, F, x, y):
                x = F.tanh(F.dot(F.tanh(F.dot(x, x)), x))
                y = F.dot(F.tanh(F.dot(F.tanh(F.dot(y, y)), y)), y)
                z = y.as_in_context(mx.gpu(0))
                return F.tanh(F.dot(F.tanh(F.dot(x + z, x)), x))

        random = np.random.RandomState(0)
        values = [[random.rand(8, 8).astype("float32") for _ in range(2)] for _ in range(8)]
        net = Two()
        one = [mx.gpu(0), mx.gpu(0)]
        call = lambda pair, on: net(*(mx.nd.array(v, ctx=c) for v, c in zip(pair, on))).asnumpy()
        expected = [call(pair, one) for pair in values]
        net.hybridize()
        for _ in range(4):
            for pair, wanted in zip(values, expected):
                for _ in range(8):  # memory that is used again while bytes come
                    mx.nd.array(pair[0], ctx=mx.gpu(0))
                found = call(pair, [mx.gpu(0), mx.gpu(1)])
                np.testing.assert_allclose(found, wanted, rtol=1e-5)
    """,
        MPGLUON_CUDA_GRAPHS=graphs,
        **LATE,
    )


def test_memory_is_freed_after_copies_to_it():
    """Another device of the card reuses the memory, and its contents are not overwritten."""
    finished(
        """
        import numpy as np
        import mpgluon as mx
        values = np.ones((1 << 20,), "float32")
        for _ in range(8):
            mx.nd.array(values, ctx=mx.gpu(0))
            mx.gpu(0).empty_cache()
            other = mx.nd.zeros((1 << 20,), ctx=mx.gpu(1))
            other.wait_to_read()
            mx.nd.array(values[:1], ctx=mx.gpu(0)).asnumpy()
            assert (other.asnumpy() == 0).all()
            del other
            mx.gpu(1).empty_cache()
    """,
        **dict(LATE, HOSTCUDA_DEVICES="1", MPGLUON_GPU_LOGICAL="2"),
    )


CONSUMER = f"""
import ctypes
import numpy as np
import mpgluon as mx

runtime = ctypes.CDLL({STAND_IN!r})
api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("type", ctypes.c_int32), ("id", ctypes.c_int32)]

def tensor(capsule):
    return ctypes.cast(api.PyCapsule_GetPointer(capsule, b"dltensor"), ctypes.POINTER(Tensor))[0]

def put(stream, to, values):
    "Queues a late copy on a stream."
    arguments = [ctypes.c_void_p(p) for p in (to, values.ctypes.data)]
    runtime.cudaMemcpyAsync(*arguments, ctypes.c_size_t(values.nbytes), 1, ctypes.c_void_p(stream))
"""


def test_exported_memory_waits_for_host_copies():
    finished(
        CONSUMER
        + """
values = np.arange(1000, dtype="float32")
for _ in range(8):
    capsule = mx.nd.array(values, ctx=mx.gpu(1)).__dlpack__(stream=1)
    seen = np.ctypeslib.as_array((ctypes.c_float * 1000).from_address(tensor(capsule).data))
    assert (seen == values).all()
""",
        **LATE,
    )


@pytest.mark.parametrize("stream", [1, None, -1, "own"])
def test_memory_of_a_consumer_is_reused_after_its_work(stream):
    finished(
        CONSUMER
        + f"""
stream = {stream!r}
own = ctypes.c_void_p()
mx.nd.ones((1,), ctx=mx.gpu(0)).wait_to_read()
runtime.cudaStreamCreateWithFlags(ctypes.byref(own), 1)
number = own.value if stream == "own" else stream
late = np.full((1000,), 7, "float32")
for _ in range(8):
    x = mx.nd.zeros((1000,), ctx=mx.gpu(0))
    capsule = x.__dlpack__(stream=number)
    put(own.value if stream in ("own", -1) else 1, tensor(capsule).data, late)
    del x, capsule
    y = mx.nd.ones((1000,), ctx=mx.gpu(0))
    y.wait_to_read()
    runtime.cudaDeviceSynchronize()
    assert (y.asnumpy() == 1).all()
""",
        **LATE,
    )


def test_imported_memory_waits_for_its_producer():
    """The producer receives the stream to synchronize with; with a bare capsule, the card is
    synchronized."""
    finished(
        CONSUMER
        + """
source = mx.nd.zeros((1000,), ctx=mx.gpu(0))
own = source.__dlpack__()
pointer = tensor(own).data

class Producer:
    def __dlpack_device__(self):
        return 2, 0
    def __dlpack__(self, stream=None):  # knows no versions
        put(stream, pointer, self.values)
        return source.__dlpack__()

class Array(Producer):  # not one of ours, so that its memory is wrapped
    def __dlpack__(self, *, stream=None, max_version=None):
        assert max_version == (1, 0)
        put(stream, pointer, self.values)
        address = api.PyCapsule_GetPointer(self.capsule, b"dltensor")
        new = api.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        managed = (ctypes.c_char * 64)()
        ctypes.memmove(managed, address, 64)
        ctypes.cast(ctypes.byref(managed, 56), ctypes.POINTER(ctypes.c_void_p))[0] = None
        kept.append(managed)
        return new(ctypes.addressof(managed), b"dltensor", None)

kept = []
for kind in (Producer, Array):
    for k in range(8):
        producer = kind()
        producer.capsule = source.__dlpack__()
        producer.values = np.full((1000,), k, "float32")
        kept.append(producer)
        x = mx.nd.from_dlpack(producer)
        if kind is Array:
            assert (x.as_in_context(mx.gpu(1)) == k).asnumpy().all()
            assert ((x + 1).asnumpy() == k + 1).all()
        assert (x.asnumpy() == k).all()
""",
        **LATE,
    )


def test_logical_devices_are_exported_with_their_cards_index():
    out = output_of(
        """
        import mpgluon as mx
        x = mx.nd.arange(3, ctx=mx.gpu(3))
        print(x.__dlpack_device__(), mx.nd.from_dlpack(x).context)
        """,
        HOSTCUDA_DEVICES="1",
        MPGLUON_GPU_LOGICAL="4",
    )
    assert out == "(2, 0) gpu(3)\n"


def test_forked_children_do_not_touch_the_card():
    """The parent continues. In the child, CPU work succeeds and GPU work raises."""
    out = output_of(
        """
        import os
        import mpgluon as mx
        x = mx.nd.ones((100,), ctx=mx.gpu(0))
        y = x * 2
        child = os.fork()
        if child == 0:
            failed = 0
            uses = (lambda: x + 1, y.asnumpy, lambda: mx.nd.ones((1,), ctx=mx.gpu(0)))
            for use in uses:
                try:
                    use()
                except mx.base.MXNetError as error:
                    failed += "forked process" in str(error)
            mx.nd.waitall()
            del x, y
            os._exit(failed if (mx.nd.ones((3,)) + 1).sum().asscalar() == 6 else 99)
        for _ in range(50):
            y = y + x
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), y[:1].asnumpy())
        """
    )
    assert out == "3 [52.]\n"


def test_cards_without_stream_writes_use_a_kernel():
    """A kernel reports the progress of the stream."""
    code = """
        import mpgluon as mx
        x = mx.nd.ones((100,), ctx=mx.gpu(0))
        for _ in range(50):
            x = x + x.as_in_context(mx.gpu(1)).as_in_context(mx.gpu(0)) * 0.5
        print(x.sum().asscalar())
        """
    assert output_of(code, HOSTCUDA_STREAM_WRITES="0") == output_of(code)
