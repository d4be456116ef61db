"""Sharing a card with other libraries of the process: the current device of their threads, released
memory, and captures while they synchronize. Logical GPUs of one card run concurrently."""

import ctypes
import gc
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.interop import _sharing
from support.processes import output_of
from support.stand_in import STAND_IN, needs_gpu, needs_stand_in

pytestmark = needs_gpu
MIB = 1 << 20


@pytest.fixture
def runtime():
    library = ctypes.CDLL(STAND_IN)
    library.hostcuda_count.restype = ctypes.c_long
    return library


def current_card(runtime):
    card = ctypes.c_int(-1)
    assert runtime.cudaGetDevice(ctypes.byref(card)) == 0
    return card.value


def train(ctx):
    net = nn.Dense(4, in_units=3)
    net.initialize(ctx=ctx)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam")
    for _ in range(3):
        with autograd.record():
            loss = net(nd.ones((2, 3), ctx=ctx)).sum()
        loss.backward()
        trainer.step(2)
    return loss.asscalar()


def compile_kernel(ctx):
    source = 'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }'
    kernel = mx.rtc.CudaModule(source).get_kernel("twice", "float *x")
    x = nd.ones((4,), ctx=ctx)
    kernel.launch([x], ctx, (1, 1, 1), (4, 1, 1))
    return x.asnumpy()


def limited(ctx):
    mx.context.set_memory_limit(ctx, mx.context.memory_stats(ctx)["held"] + MIB)
    try:
        with pytest.raises(mx.base.DeviceMemoryError):
            nd.ones((MIB,), ctx=ctx)
    finally:
        mx.context.set_memory_limit(ctx, 0)


CALLS = {
    "creation": lambda ctx: nd.ones((100000,), ctx=ctx),
    "creation from values": lambda ctx: nd.array(np.ones(1000), ctx=ctx),
    "copy to the host": lambda ctx: nd.ones((7,), ctx=ctx).asnumpy(),
    "scalar": lambda ctx: nd.ones((1,), ctx=ctx).asscalar(),
    "copy between cards": lambda ctx: nd.ones((7,), ctx=mx.gpu(0)).as_in_context(ctx).asnumpy(),
    "copy from pinned memory": lambda ctx: (
        nd.ones((7,), ctx=mx.cpu_pinned(0)).as_in_context(ctx).wait_to_read()
    ),
    "memory info": lambda ctx: mx.context.gpu_memory_info(ctx.device_id),
    "empty_cache": lambda ctx: ctx.empty_cache(),
    "limit": limited,
    "indexing": lambda ctx: nd.arange(10, ctx=ctx)[2:4].asnumpy(),
    "assignment": lambda ctx: nd.arange(10, ctx=ctx).__setitem__(slice(2, 4), np.ones(2)),
    "training": train,
    "export": lambda ctx: nd.ones((7,), ctx=ctx).__dlpack__(stream=1),
    "export to a stream": lambda ctx: nd.ones((7,), ctx=ctx).__dlpack__(stream=1234),
    "capsule": lambda ctx: nd.from_dlpack(nd.to_dlpack_for_write(nd.ones((7,), ctx=ctx))),
    "import": lambda ctx: nd.from_dlpack(nd.ones((7,), ctx=ctx)) + 1,
    "collective": lambda ctx: mx.parallel.all_reduce(
        [nd.ones((64,), ctx=mx.gpu(0)), nd.ones((64,), ctx=ctx)]
    )[1].asnumpy(),
    "kernel of a user": compile_kernel,
    "release": lambda ctx: gc.collect(),
    "waitall": lambda ctx: nd.waitall(),
}


@needs_stand_in
@pytest.mark.parametrize("name", CALLS)
def test_calls_keep_the_threads_current_device(name, runtime):
    """PyTorch and CuPy use the current device if theirs has no index."""
    assert runtime.cudaSetDevice(0) == 0
    result = CALLS[name](mx.gpu(1))
    assert current_card(runtime) == 0
    del result
    nd.waitall()
    assert current_card(runtime) == 0


@needs_stand_in
def test_opening_a_device_keeps_the_current_one():
    out = output_of(f"""
        import ctypes
        import mpgluon as mx
        runtime, card = ctypes.CDLL({STAND_IN!r}), ctypes.c_int()
        mx.nd.ones((3,), ctx=mx.gpu(1)).wait_to_read()
        runtime.cudaGetDevice(ctypes.byref(card))
        print(card.value)
    """)
    assert out.split() == ["0"]


@needs_stand_in
def test_empty_cache_returns_memory_to_the_card():
    out = output_of(
        """
        import mpgluon as mx
        ctx = mx.gpu(0)
        free = lambda: mx.context.gpu_memory_info(0)[0] >> 20
        before = free()
        mx.nd.ones((10 << 20,), ctx=ctx).wait_to_read()
        print(before - free())
        ctx.empty_cache()
        print(before - free())
    """,
        HOSTCUDA_MEMORY=str(64 * MIB),
    )
    assert out.split() == ["40", "0"]


@needs_stand_in
@pytest.mark.parametrize("logical", [1, 2])
def test_scratch_allocations_reclaim_cached_memory(logical):
    """Also memory cached by another logical device of the card."""
    out = output_of(
        f"""
        import mpgluon as mx
        a = mx.nd.ones((10 << 20,), ctx=mx.gpu({logical - 1}))
        a.wait_to_read()
        del a
        x = mx.nd.arange(1 << 20, ctx=mx.gpu(0))
        x.wait_to_read()
        values = mx.nd.sort(x, is_ascend=False)
        print(*values[:2].asnumpy().astype(int))
    """,
        HOSTCUDA_DEVICES="1",
        MPGLUON_GPU_LOGICAL=str(logical),
        HOSTCUDA_MEMORY=str(64 * MIB),
    )
    assert out == "1048575 1048574\n"


@needs_stand_in
def test_scratch_allocations_wait_for_memory_in_use():
    """The cached blocks are still used by work in flight."""
    out = output_of(
        """
        import mpgluon as mx
        x = mx.nd.arange(1 << 20, ctx=mx.gpu(0))
        x.wait_to_read()
        for _ in range(3):
            mx.nd.ones((9 << 20,), ctx=mx.gpu(0))  # nobody waits
        print(*mx.nd.sort(x, is_ascend=False)[:2].asnumpy().astype(int))
    """,
        HOSTCUDA_MEMORY=str(64 * MIB),
        HOSTCUDA_KERNEL="20000",
    )
    assert out == "1048575 1048574\n"


@needs_stand_in
def test_pools_hold_little_more_than_ragged_sizes_use():
    out = output_of("""
        import numpy as np
        import mpgluon as mx
        random, ctx = np.random.RandomState(0), mx.gpu(0)
        for step in range(300):
            size = int(random.randint(1 << 18, 1 << 20))
            arrays = [mx.nd.empty((size,), ctx=ctx) for _ in range(3)]
        stats = mx.context.memory_stats(ctx)
        print(stats["held"] / stats["peak_in_use"])
    """)
    assert float(out) <= 2.5


class Net(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Dense(16, in_units=16, activation="tanh") for _ in range(4)]
        for number, layer in enumerate(self.layers):
            self.register_child(layer, f"layer{number}")
            layer.initialize(mx.init.Xavier(), ctx=mx.gpu(0))

    def hybrid_forward(self, F, x):
        for layer in self.layers:
            x = layer(x)
        return x


@needs_stand_in
@pytest.mark.parametrize("after", [1, 2, 3])
def test_captures_spoiled_by_another_thread_are_retried(after, runtime):
    """The whole segment is retried, not cut at the failing instruction."""
    net = Net()
    x = nd.array(np.random.RandomState(0).rand(8, 16), ctx=mx.gpu(0))
    expected = net(x).asnumpy()
    net.hybridize()
    nd.waitall()
    runtime.hostcuda_spoil(ctypes.c_long(3), ctypes.c_long(after))
    try:
        for _ in range(8):
            np.testing.assert_array_equal(net(x).asnumpy(), expected)
    finally:
        runtime.hostcuda_spoil(ctypes.c_long(0), ctypes.c_long(0))
    counts = [runtime.hostcuda_count(what) for what in (b"launch", b"graph")]
    net(x).wait_to_read()
    assert runtime.hostcuda_count(b"launch") == counts[0]
    assert runtime.hostcuda_count(b"graph") == counts[1] + 1


@needs_stand_in
def test_release_for_an_unknown_stream_does_not_spoil_captures():
    """Such a release synchronizes the card."""
    out = output_of(f"""
        import ctypes, threading
        import numpy as np
        import mpgluon as mx
        from mpgluon import nd
        from gpu.test_gpu_sharing import Net
        runtime = ctypes.CDLL({STAND_IN!r})
        net = Net()
        x = nd.array(np.random.RandomState(0).rand(8, 16), ctx=mx.gpu(0))
        expected = net(x).asnumpy()
        net.hybridize()
        done = False

        def share():
            while not done:
                nd.to_dlpack_for_write(nd.ones((8,), ctx=mx.gpu(0)))

        thread = threading.Thread(target=share)
        thread.start()
        for k in range(100):
            kept = [nd.empty((8, 16), ctx=mx.gpu(0)) for _ in range(k % 3)]
            assert (net(x.copy()).asnumpy() == expected).all()
        done = True
        thread.join()
        print(runtime.hostcuda_count(b"settle") > 0, runtime.hostcuda_count(b"refused"))
    """)
    assert out.split() == ["True", "0"]


@needs_stand_in
def test_memory_is_kept_if_its_consumer_cannot_be_waited_for(runtime, monkeypatch):
    """The other library is capturing one of its streams."""
    array = nd.ones((1000,), ctx=mx.gpu(0))
    before = mx.context.memory_stats(mx.gpu(0))["in_use"]
    capsule = nd.to_dlpack_for_write(array)
    runtime.cudaSetDevice(0)
    runtime.hostcuda_capture_elsewhere(1)
    reports = []
    monkeypatch.setattr(sys, "unraisablehook", reports.append)
    del array, capsule
    runtime.hostcuda_capture_elsewhere(0)
    assert mx.context.memory_stats(mx.gpu(0))["in_use"] == before
    [report] = reports
    assert "4000 bytes on gpu(0) stay allocated" in str(report.exc_value)
    assert "operation not permitted when stream is capturing" in str(report.exc_value)


@needs_stand_in
@pytest.mark.parametrize("stream", [0, 1234])
def test_torch_tensors_are_released_on_torchs_stream(stream, runtime, monkeypatch):
    """A tensor that shares an array's memory on PyTorch's default stream is released without
    synchronizing the card."""
    torch = SimpleNamespace(
        cuda=SimpleNamespace(current_stream=lambda card: SimpleNamespace(cuda_stream=stream)),
        utils=SimpleNamespace(dlpack=SimpleNamespace(from_dlpack=lambda capsule: capsule)),
    )
    monkeypatch.setattr(_sharing, "import_torch", lambda: torch)
    before = runtime.hostcuda_count(b"settle")
    tensor = _sharing.to_torch(nd.ones((8,), ctx=mx.gpu(0)))
    del tensor
    assert runtime.hostcuda_count(b"settle") - before == (stream != 0)
    with pytest.raises(TypeError):
        _core.to_dlpack_for_write_on([1, 2], 1)


# --- Devices that share a card ----------------------------------------------------------------

PIPELINE = f"""
    import ctypes
    import numpy as np
    import mpgluon as mx
    from mpgluon import gluon, nd
    from mpgluon.gluon import nn
    from mpgluon.parallel import Pipeline, TrainStep

    class Stages(gluon.HybridBlock):
        def __init__(self, contexts):
            super().__init__()
            self.contexts, self.parts = contexts, []
            for number, ctx in enumerate(contexts):
                part = nn.Dense(16, in_units=16, activation="tanh")
                part.initialize(mx.init.Xavier(), ctx=ctx)
                self.register_child(part, f"part{{number}}")
                self.parts.append(part)
        def hybrid_forward(self, F, x):
            for part, ctx in zip(self.parts, self.contexts):
                x = part(x.as_in_context(ctx))
            return x

    contexts = [mx.gpu(i) for i in DEVICES]
    mx.random.seed(1)
    net = Stages(contexts)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {{"learning_rate": 0.1}})
    step = TrainStep(net, lambda out: (out ** 2).mean(axis=1), trainer, Pipeline(8, "SCHEDULE"))
    x = nd.array(np.random.RandomState(0).uniform(-1, 1, (16, 16)), ctx=contexts[0])
    for _ in range(3):
        loss = step(x, []).asnumpy()
    counts = ctypes.CDLL({STAND_IN!r})
    print(counts.hostcuda_count(b"together"), loss.tobytes().hex())
"""


@needs_stand_in
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_logical_gpus_in_a_pipeline_overlap(schedule):
    """At some moment at least three of the four compute at the same time, even on a busy machine; a
    single device never overlaps with itself. The losses have the same bits."""
    found = {}
    for devices, least in (([0, 1, 2, 3], "8000"), ([0, 0, 0, 0], "100")):
        code = PIPELINE.replace("DEVICES", str(devices)).replace("SCHEDULE", schedule)
        settings = {"MPGLUON_GPU_LOGICAL": "4", "HOSTCUDA_DEVICES": "1", "HOSTCUDA_KERNEL": least}
        found[len(set(devices))] = output_of(code, timeout=200, **settings).split()
    assert int(found[4][0]) >= 3 and found[1][0] == "1", found
    assert found[4][1] == found[1][1]


def test_shared_card_has_32_hardware_connections():
    """The default of 8 is replaced if several devices share a card and the user has not set another
    number."""
    code = """
        import ctypes, os
        os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS" if UNSET else "", None)
        import mpgluon as mx
        assert mx.num_gpus()
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_char_p
        print(libc.getenv(b"CUDA_DEVICE_MAX_CONNECTIONS"))
    """
    for unset, logical, number in (
        ("True", "4", b"32"),
        ("True", "1", None),
        ("True", "", None),
        ("False", "4", b"5"),
    ):
        settings = {"CUDA_DEVICE_MAX_CONNECTIONS": "5", "MPGLUON_GPU_LOGICAL": logical}
        assert output_of(code.replace("UNSET", unset), **settings) == f"{number}\n"


def test_memory_limits_are_per_logical_device():
    out = output_of(
        """
        import mpgluon as mx
        mx.context.set_memory_limit(mx.gpu(1), 1 << 20)
        for i in (0, 1, 2):
            try:
                print(i, int(mx.nd.ones((1 << 20,), ctx=mx.gpu(i)).sum().asscalar()))
            except mx.base.MXNetError as error:
                print(i, str(error).split(":")[0])
        print((mx.nd.ones((5,), ctx=mx.gpu(1)) + 1).asnumpy())
        """,
        MPGLUON_GPU_LOGICAL="3",
    )
    assert out.splitlines() == [
        "0 1048576",
        "1 gpu(1) is out of memory",
        "2 1048576",
        "[2. 2. 2. 2. 2.]",
    ]
