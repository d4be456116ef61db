"""The GPU backend: its kernels compared with the CPU's, and GPU-specific device behavior."""

import ctypes
import os
import re
import subprocess

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon
from mpgluon.gluon import nn
from samples.base import all_samples
from support.calls import call, mode, place
from support.compare import with_sorted_eigenvalues
from support.gpu_kernels import MISSING
from support.processes import output_of
from support.stand_in import ON_STAND_IN, STAND_IN, needs_gpu

pytestmark = needs_gpu

SAMPLES = all_samples()
OPS = sorted(_core.list_ops())
CASES = [
    pytest.param(name, sample, id=f"{name}-{sample.name or index}")
    for name in OPS
    for index, sample in enumerate(SAMPLES.get(name, []))
]

# Tolerances of values: relative, and absolute for an array whose largest element is at most 1,
# scaled by the largest element otherwise, because cancellation leaves the error of the terms. A
# half may differ in its last bit if the sum that it rounds differs.
EXACT = {
    "Dropout",
    "_dropout_draw",
    "_dropout_part",
    "_dropout_apply",
    "_random_randint",
    "_random_uniform",
    "_sample_uniform",
}
CLOSE = {
    "float64": (1e-12, 1e-13),
    "float32": (1e-5, 2e-6),
    "float16": (2e-3, 2e-3),
    "bfloat16": (1.6e-2, 1.6e-2),
}
# Vectors of decompositions are as accurate as their values are distant. The samples know.
DECOMPOSITIONS = {"_eig", "_eigvals", "_solve", "_svd"}


def test_missing_kernels_are_exactly_those_listed():
    composed = {name for name in OPS if "composed" in _core.get_op(name).describe()["flags"]}
    missing = {name for name in OPS if not _core.has_kernel(name, mx.gpu(0))} - composed
    assert missing - MISSING == set(), "kernels that vanished, or new ops without one"
    assert MISSING - missing == set(), "kernels that are there, or ops that are not"


@pytest.mark.parametrize("name", sorted(MISSING))
def test_ops_without_a_kernel_raise(name):
    sample = SAMPLES[name][0]
    arrays = place(sample, sample.dtypes[0] if sample.dtypes else "float32", mx.gpu(0))
    with pytest.raises(mx.base.MXNetError, match=r"cannot run on gpu\(0\): it has no"):
        with mx.gpu(0):
            call(name, arrays, sample.params)


@pytest.mark.parametrize("name, sample", CASES)
def test_op_values_match_the_cpu(name, sample):
    if name in MISSING:
        pytest.skip(f"no kernel: {name}")
    for dtype in sample.dtypes:
        results = []
        for ctx in (mx.cpu(0), mx.gpu(0)):
            mx.random.seed(5)
            arrays = place(sample, dtype, ctx)
            with ctx, mode(sample):
                results.append(
                    with_sorted_eigenvalues(
                        name, [output.asnumpy() for output in call(name, arrays, sample.params)]
                    )
                    + [a.asnumpy() for a in arrays]
                )
        exact = name in EXACT
        for cpu, gpu in zip(*results):
            assert cpu.shape == gpu.shape and cpu.dtype == gpu.dtype, dtype
            if exact or cpu.dtype.kind not in "fV":
                np.testing.assert_array_equal(gpu, cpu, err_msg=dtype)
            else:
                kind = dtype if dtype in CLOSE else str(cpu.dtype)
                rtol, atol = sample.tolerance(kind) if name in DECOMPOSITIONS else CLOSE[kind]
                finite = np.abs(cpu.astype(np.float64))[np.isfinite(cpu.astype(np.float64))]
                atol *= max(1.0, finite.max() if finite.size else 0)
                np.testing.assert_allclose(
                    gpu.astype(np.float64),
                    cpu.astype(np.float64),
                    rtol=rtol,
                    atol=atol,
                    err_msg=dtype,
                )


@pytest.mark.parametrize("shape", [(1,), (7,), (1031,), (5, 1, 33), (3, 4, 5, 6), (70000,), (0, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "uint8", "bool"])
def test_elementwise_ops_support_any_size_and_alignment(shape, dtype):
    """Sizes around those of vectors and blocks, and slices not aligned to 16 bytes."""
    values = (
        np.random.RandomState(0)
        .randint(0, 2 if dtype == "bool" else 90, (2,) + shape)
        .astype(dtype)
    )
    cpu, gpu = (mx.nd.array(values, ctx=ctx, dtype=dtype) for ctx in (mx.cpu(), mx.gpu(0)))
    for i in (0, 1):
        a, b = cpu[i], gpu[i]
        pairs = [
            (
                mx.nd.logical_not(x),
                mx.nd.broadcast_equal(x, x[:1]) if shape[0] else x,
                mx.nd.broadcast_lesser(x[:1], x) if shape[0] else x,
                x == 3,
            )
            for x in (a, b)
        ]
        for one, other in zip(*pairs):
            np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())


def test_copies_work_between_all_devices():
    values = np.random.RandomState(0).rand(300, 7).astype("float32")
    devices = [mx.cpu(0), mx.gpu(0), mx.cpu(1), mx.gpu(mx.num_gpus() - 1), mx.gpu(0), mx.cpu(0)]
    array = mx.nd.array(values, ctx=devices[0])
    for ctx in devices[1:]:
        array = array.as_in_context(ctx) + 1
        assert array.context == ctx
    np.testing.assert_allclose(array.asnumpy(), values + 5, rtol=1e-6)
    target = mx.nd.zeros((300, 7), ctx=mx.gpu(0))
    mx.nd.array(values).copyto(target)
    back = mx.nd.zeros((300, 7))
    target.copyto(back)
    target[:] = 3  # queued after the copy
    np.testing.assert_array_equal(back.asnumpy(), values)


def test_long_chains_across_devices_keep_order():
    """Every step reads the latest result of another device, and the pools reuse a few blocks."""
    devices = [mx.gpu(0), mx.cpu(0), mx.gpu(mx.num_gpus() - 1)]
    array = mx.nd.zeros((64, 64), ctx=devices[-1])
    for step in range(150):
        array = (array + 1).as_in_context(devices[step % 3]) * 1
    np.testing.assert_array_equal(array.asnumpy(), np.full((64, 64), 150, "float32"))


class Spread(mx.gluon.HybridBlock):
    def __init__(self, devices):
        super().__init__()
        self.devices = devices

    def hybrid_forward(self, F, x):
        for k, ctx in enumerate(self.devices):
            x = F.tanh(x.as_in_context(ctx) * 1.5 + k) - F.relu(x.as_in_context(ctx))
        return x


@pytest.mark.parametrize(
    "names", ["gpu(0)", "gpu(0) gpu(1)", "cpu(0) gpu(0) cpu(1) gpu(1) gpu(0)", "gpu(1) cpu(0)"]
)
def test_hybridized_blocks_span_devices(names):
    devices = [
        mx.Context(n[:3], int(n[4]) % mx.num_gpus() if n[0] == "g" else int(n[4]))
        for n in names.split()
    ]
    results = []
    for hybridize in (False, True, True):
        net = Spread(devices)
        if hybridize:
            net.hybridize()
        for _ in range(3):
            x = mx.nd.array(np.linspace(-1, 1, 77).reshape(7, 11), ctx=devices[0])
            x.attach_grad()
            with autograd.record():
                y = net(x)
            y.backward(mx.nd.ones_like(y))
            results.append((y.asnumpy(), x.grad.asnumpy()))
    for y, grad in results[1:]:
        np.testing.assert_array_equal(y, results[0][0])
        np.testing.assert_array_equal(grad, results[0][1])
    assert y.shape == (7, 11) and np.isfinite(grad).all()


def test_memory_limit_raises_and_stats_count():
    ctx = mx.gpu(0)
    mx.nd.waitall()
    before = mx.context.memory_stats(ctx)
    array = mx.nd.ones((1 << 20,), ctx=ctx)
    array.wait_to_read()
    assert mx.context.memory_stats(ctx)["in_use"] >= before["in_use"] + (4 << 20)
    mx.context.set_memory_limit(ctx, mx.context.memory_stats(ctx)["held"] + (1 << 20))
    try:
        with pytest.raises(
            mx.base.MXNetError, match=r"gpu\(0\) is out of memory: asked for .*limit"
        ):
            mx.nd.ones((64 << 20,), ctx=ctx)
        np.testing.assert_array_equal((array + 1)[:3].asnumpy(), [2, 2, 2])  # still works
    finally:
        mx.context.set_memory_limit(ctx, 0)


def test_missing_gpu_error_names_the_range():
    with pytest.raises(
        mx.base.MXNetError,
        match=rf"gpu\({mx.num_gpus()}\) does not exist: GPUs are numbered 0 to "
        rf"{mx.num_gpus() - 1}",
    ):
        mx.nd.ones((2,), ctx=mx.gpu(mx.num_gpus()))


def test_logical_devices_have_their_own_memory():
    out = output_of(
        """
        import mpgluon as mx
        assert mx.num_gpus() == 4
        arrays = [mx.nd.full((1000,), i, ctx=mx.gpu(i)) for i in range(4)]
        total = mx.nd.zeros((1000,), ctx=mx.gpu(0))
        for a in arrays:
            total = total + a.as_in_context(mx.gpu(0))
        assert (total.asnumpy() == 6).all()
        print(*[mx.context.memory_stats(mx.gpu(i))["held"] > 0 for i in range(4)])
    """,
        MPGLUON_GPU_LOGICAL="4",
    )
    assert out.split() == ["True"] * 4


def test_gpu_use_in_a_forked_child_raises():
    out = output_of("""
        import os
        import mpgluon as mx
        a = mx.nd.ones((2,), ctx=mx.gpu(0))
        a.wait_to_read()
        child = os.fork()
        if not child:
            try:
                (a + 1).asnumpy()
            except mx.base.MXNetError as error:
                print(error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print((a + 1).asnumpy())
    """)
    assert "cannot be used in a forked process" in out and "[2. 2.]" in out


def test_gpu_library_exports_one_symbol():
    """Only the entry point is exported, so the library cannot clash with core functions of the same
    name."""
    symbols = subprocess.run(
        [
            "nm",
            "-D",
            "--defined-only",
            STAND_IN or os.path.join(os.path.dirname(_core.__file__), "_cuda.so"),
        ],
        capture_output=True,
        text=True,
    )
    names = {line.split()[-1] for line in symbols.stdout.splitlines() if " T " in line}
    # Symbols for tests, other stand-ins and NVRTC-compiled code; C++ names end with types.
    stand_in = {name for name in names if re.match(r"(_Z\d+)?(hostcuda_|__syncthreads)", name)} | {
        "cudaGetDevice",
        "cudaGetDeviceProperties",
        "cudaSetDevice",
        "cudaLaunchHostFunc",
        "cudaMemcpyAsync",
        "cudaStreamCreateWithFlags",
        "cudaDeviceSynchronize",
    }
    assert names <= {"mpg_gpu_library_open"} | (stand_in if ON_STAND_IN else set())
    assert ctypes.CDLL(_core.__file__)


class TwoHalves(gluon.HybridBlock):
    """Embedding and normalization on one device, dense layers and dropout on another."""

    def __init__(self, first, second):
        super().__init__(prefix="halves_")
        self.devices = first, second
        with self.name_scope():
            self.embed, self.norm = nn.Embedding(50, 32), nn.LayerNorm(in_channels=32)
            self.hidden = nn.Dense(64, in_units=32, flatten=False, activation="relu")
            self.drop, self.out = nn.Dropout(0.2), nn.Dense(50, in_units=64, flatten=False)
        for child, ctx in (
            (self.embed, first),
            (self.norm, first),
            (self.hidden, second),
            (self.drop, second),
            (self.out, second),
        ):
            child.initialize(mx.init.Xavier(), ctx=ctx)

    def hybrid_forward(self, F, x):
        return self.out(
            self.drop(self.hidden(self.norm(self.embed(x)).as_in_context(self.devices[1])))
        )


def train_halves(first, second, hybridize, optimizer):
    mx.random.seed(3)
    net = TwoHalves(first, second)
    if hybridize:
        net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.01})
    loss, losses, random = gluon.loss.SoftmaxCrossEntropyLoss(), [], np.random.RandomState(0)
    for _ in range(6):
        tokens = random.randint(0, 50, (8, 12))
        with autograd.record():
            value = loss(
                net(mx.nd.array(tokens, ctx=first)), mx.nd.array((tokens + 1) % 50, ctx=second)
            )
        value.backward()
        trainer.step(8)
        losses.append(value.mean().asscalar())
    return np.array(losses)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybridized"])
def test_network_over_two_gpus_trains_as_on_cpus(hybridize, optimizer):
    """Initial weights and dropout masks are the same on both."""
    if mx.num_gpus() < 2:
        pytest.skip("one GPU: MPGLUON_GPU_LOGICAL=2 makes two of it")
    cpu = train_halves(mx.cpu(0), mx.cpu(1), True, optimizer)
    gpu = train_halves(mx.gpu(0), mx.gpu(1), hybridize, optimizer)
    mixed = train_halves(mx.gpu(0), mx.cpu(1), hybridize, optimizer)
    np.testing.assert_allclose(gpu, cpu, rtol=1e-5)
    np.testing.assert_allclose(mixed, cpu, rtol=1e-5)
    assert cpu[-1] < cpu[0]


def test_hybridized_prediction_on_gpu_matches_eager():
    """CPUs use packed Dense layers for prediction; a GPU has no packed op and keeps them."""
    net = nn.HybridSequential()
    net.add(nn.Dense(256, in_units=512, activation="relu"), nn.Dense(10, in_units=256))
    net.initialize(ctx=mx.gpu(0))
    x = mx.nd.random.normal(shape=(64, 512), ctx=mx.gpu(0))
    eager = net(x).asnumpy()
    net.hybridize()
    np.testing.assert_allclose(net(x).asnumpy(), eager, rtol=1e-5, atol=1e-6)
