"""`mx.rtc`: kernels in CUDA C++. Tests of signatures and arguments run without a GPU."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.rtc import CudaKernel, _parsed
from support.calls import raises
from support.processes import ended, output_of
from support.stand_in import ON_STAND_IN, needs_gpu
from support.training import backward_of

AXPY = r"""
extern "C" __global__ void axpy(const float *x, float *y, float alpha) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    y[i] += alpha * x[i];
}
"""
SIGNATURE = "const float *x, float *y, float alpha"


@needs_gpu
@pytest.mark.parametrize("card", [0, 1])
def test_kernel_waits_for_the_work_of_its_arrays(card):
    if card >= mx.num_gpus():
        pytest.skip("needs two GPUs")
    ctx = mx.gpu(card)
    axpy = mx.rtc.CudaModule(AXPY).get_kernel("axpy", SIGNATURE)
    x = nd.ones((10,), ctx=ctx)
    y = nd.zeros((10,), ctx=ctx)
    for _ in range(20):
        y = y + 1
        axpy.launch([x, y, 3.0], ctx, (2, 1, 1), (5, 1, 1))
        x = x * 1
    assert y.asnumpy().tolist() == [80.0] * 10
    part = nd.arange(30, ctx=ctx)[10:20]
    axpy.launch((x, part, np.float32(0.5)), ctx, (1, 1, 1), (10, 1, 1), 0)
    np.testing.assert_array_equal(part.asnumpy(), np.arange(10, 20) + 0.5)


@needs_gpu
def test_exported_template_kernels_run():
    source = r"""
    template <typename T>
    __global__ void fill(T *y, const T first, int64_t step, char sign) {
        extern __shared__ char space[];
        int i = threadIdx.x;
        y[i] = sign * (first + (T)(i * step * SCALE));
    }
    """.replace("extern __shared__ char space[];", "").replace("int64_t", "long long")
    module = mx.rtc.CudaModule(source, "-DSCALE=2", ["fill<double>", "fill<int>"])
    for name, kind in (("double", "float64"), ("int", "int32")):
        fill = module.get_kernel(f"fill<{name}>", f"{name} *, const {name} first, int64_t, char")
        y = nd.zeros((4,), dtype=kind, ctx=mx.gpu(0))
        fill.launch([y, 3, 10, -1], mx.gpu(0), (1, 1, 1), (4, 1, 1), 16)
        assert y.asnumpy().tolist() == [-3, -23, -43, -63]
    assert mx.rtc.CudaModule(source, ("-DSCALE=2",), ("fill<double>", "fill<int>"))
    with pytest.raises(mx.MXNetError, match='CudaModule: kernel "fill<float>" is not found'):
        module.get_kernel("fill<float>", "float *")


@needs_gpu
def test_compiler_errors_raise_from_the_module():
    with pytest.raises(
        mx.MXNetError, match="NVRTC at .* could not compile a CudaModule: (.|\\n)*nonsense"
    ):
        mx.rtc.CudaModule(AXPY.replace("alpha *", "nonsense *"))


@needs_gpu
def test_kernel_launch_rejects_invalid_arguments():
    axpy = mx.rtc.CudaModule(AXPY).get_kernel("axpy", SIGNATURE)
    x = nd.ones((4,), ctx=mx.gpu(0))
    y = nd.ones((4,), ctx=mx.gpu(0))
    far = nd.ones((4,), ctx=mx.cpu(0))
    one, four = (1, 1, 1), (4, 1, 1)
    wide = x.astype("float64")
    launch = lambda args, ctx=mx.gpu(0), grid=one, block=four: axpy.launch(args, ctx, grid, block)
    for error, text, call in [
        (AssertionError, "expected 3 arguments, got 2", lambda: launch([x, y])),
        (AssertionError, "argument 1 must be an NDArray, not a int", lambda: launch([x, 2, 3])),
        (AssertionError, "argument 2 must be a number, not a NDArray", lambda: launch([x, y, x])),
        (AssertionError, "on a GPU, not on cpu", lambda: launch([x, y, 3], mx.cpu(0))),
        (AssertionError, "grid_dims .* 3 integers", lambda: launch([x, y, 3], grid=(1, 1))),
        (AssertionError, "block_dims .* 3", lambda: launch([x, y, 3], block=(4.0, 1, 1))),
        (mx.MXNetError, "block_dims", lambda: launch([x, y, 3], block=(0, 1, 1))),
        (mx.MXNetError, "of float32, not of fl", lambda: launch([wide, y, 3])),
        (mx.MXNetError, r"argument 0 is on cpu\(0\).*gpu\(0\)", lambda: launch([far, y, 3])),
    ]:
        raises(error, text, call)
    y = y * 1
    axpy.launch([x, y, 3], mx.gpu(0), one, (2000, 1, 1))  # exceeds the block size
    raises(mx.MXNetError, r"CudaKernel\(axpy\): a kernel launch failed", y.asnumpy)


@needs_gpu
def test_gradients_use_values_from_before_a_launch():
    axpy = mx.rtc.CudaModule(AXPY).get_kernel("axpy", SIGNATURE)
    x, y = nd.ones((4,), ctx=mx.gpu(0)), nd.ones((4,), ctx=mx.gpu(0))
    x.attach_grad()
    with autograd.record():
        z = x * y
    axpy.launch([x, y, 3], mx.gpu(0), (1, 1, 1), (4, 1, 1))
    z.backward()
    assert x.grad.asnumpy().tolist() == [1] * 4 and y.asnumpy().tolist() == [4] * 4

    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            axpy.launch([x, x, 3], mx.gpu(0), (1, 1, 1), (4, 1, 1))
            return x

    net = Net()
    net.hybridize()
    raises(mx.MXNetError, r"CudaKernel\(axpy\).launch: .*autograd.Function", lambda: net(x))


class Cube(autograd.Function):
    """x ** 3 and its gradient, each as a kernel."""

    SOURCE = r"""
    extern "C" __global__ void cube(const float *x, float *y, int n) {
        int i = threadIdx.x + blockIdx.x * blockDim.x;
        if (i < n) y[i] = x[i] * x[i] * x[i];
    }
    extern "C" __global__ void cube_backward(const float *x, const float *dy, float *dx, int n) {
        int i = threadIdx.x + blockIdx.x * blockDim.x;
        if (i < n) dx[i] = 3 * x[i] * x[i] * dy[i];
    }
    """

    def launched(self, name, signature, *arrays):
        out = nd.empty(arrays[0].shape, ctx=arrays[0].context)
        kernel = mx.rtc.CudaModule(self.SOURCE).get_kernel(name, signature)
        blocks = (out.size + 127) // 128
        kernel.launch([*arrays, out, out.size], out.context, (blocks, 1, 1), (128, 1, 1))
        return out

    def forward(self, x):
        self.save_for_backward(x)
        return self.launched("cube", "const float *, float *, int", x)

    def backward(self, dy):
        (x,) = self.saved_tensors
        return self.launched("cube_backward", "const float *, const float *, float *, int", x, dy)


@needs_gpu
def test_kernels_implement_an_op_with_a_gradient():
    values = np.random.RandomState(0).uniform(-1, 1, (7, 50)).astype("float32")
    x, w = nd.array(values, ctx=mx.gpu(0)), nd.array(values[:1], ctx=mx.gpu(0))
    x.attach_grad()
    w.attach_grad()
    for _ in range(3):
        y = backward_of(lambda: (Cube()(x * w) * 2).sum())
    inner = (values * values[:1]).astype("float64")
    np.testing.assert_allclose(y.asscalar(), 2 * (inner**3).sum(), rtol=1e-5)
    slope = 6 * inner**2
    np.testing.assert_allclose(x.grad.asnumpy(), slope * values[:1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        w.grad.asnumpy(), (slope * values).sum(0, keepdims=True), rtol=1e-5, atol=1e-5
    )


class CubeOp(mx.operator.CustomOp):
    """The same op as a CustomOp."""

    def forward(self, is_train, req, in_data, out_data, aux):
        signature = "const float *, float *, int"
        self.assign(out_data[0], req[0], Cube().launched("cube", signature, *in_data))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        signature = "const float *, const float *, float *, int"
        cube = Cube().launched("cube_backward", signature, in_data[0], out_grad[0])
        self.assign(in_grad[0], req[0], cube)


@mx.operator.register("cube_of_kernels")
class CubeProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return CubeOp()


@needs_gpu
@pytest.mark.parametrize("kind", ["Function", "CustomOp"])
def test_kernels_have_the_same_bits_in_hybridized_blocks(kind):
    """Runs on the card as an op with a gradient and compares with the eager block."""

    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            x = x * 2 + 0.5
            y = Cube()(x) if kind == "Function" else F.Custom(x, op_type="cube_of_kernels")
            assert y.context == x.context
            return y * x

    values = np.random.RandomState(0).uniform(-1, 1, (7, 50)).astype("float32")
    found = []
    for hybridized in (False, True):
        net, x = Net(), nd.array(values, ctx=mx.gpu(0))
        if hybridized:
            net.hybridize()
        x.attach_grad()
        for _ in range(3):
            y = backward_of(lambda: net(x))
        found.append([y.asnumpy().tobytes(), x.grad.asnumpy().tobytes()])
    assert found[0] == found[1]


FAULT = """
    import ctypes, os, time
    import mpgluon as mx
    source = 'extern "C" __global__ void wild(float *x, long far) { x[threadIdx.x + far] *= 2; }'
    wild = mx.rtc.CudaModule(source).get_kernel("wild", "float *x, int64_t far")
    x, other = (mx.nd.ones((4,), ctx=ctx) for ctx in (mx.gpu(0), OTHER))
    y = x * 1
    mx.nd.waitall()
    FAR
    for k in range(20):
        x = x + 1
    wild.launch([x, far], mx.gpu(0), (1, 1, 1), (4, 1, 1))
    for k in range(20):
        x = x * 2
        time.sleep(PAUSE)
    for array in (x, y, other):
        try:
            print((array + 1).asnumpy())
        except mx.base.MXNetError as error:
            print("error:", str(error).replace(chr(10), " "))
"""


@needs_gpu
@pytest.mark.parametrize("pause", [0, 0.02])
@pytest.mark.parametrize("at", [19, 20, 21])
def test_fault_names_the_kernel_and_other_devices_continue(at, pause):
    """A fault in the op before or after it names that op. Work queued after the loss of the device
    reports the same name."""
    if not ON_STAND_IN and at != 20:
        pytest.skip("ops of a card have no such faults")
    broken = (
        "far = 0; library = ctypes.CDLL(os.environ['MPGLUON_CUDA_LIBRARY']); "
        f"library.hostcuda_break_after(0, {at})"
    )
    code = FAULT.replace("FAR", broken if ON_STAND_IN else "far = 1 << 45")
    code = code.replace("OTHER", "mx.gpu(1)" if ON_STAND_IN else "mx.cpu(0)")
    code = code.replace("PAUSE", str(pause))
    lines = output_of(code, MPGLUON_GPU_LOGICAL="").splitlines()
    assert lines[0].startswith("error: gpu(0) is lost: ") and lines[1].startswith("error: gpu(0)")
    assert lines[2] == "[2. 2. 2. 2.]"
    for line in lines[:2]:  # earlier ops run in one batch, and any of them may be named
        names = [word for word in ("_plus_scalar", "wild", "_mul_scalar") if word in line]
        assert names == [{19: "_plus_scalar", 20: "wild", 21: "_mul_scalar"}[at]], line


@needs_gpu
def test_unaligned_vector_access_raises():
    """The stand-in rejects it with a message, as a card does."""
    code = """
        import mpgluon as mx
        source = 'extern "C" __global__ void take(float *x) { *(float4 *)x = *(float4 *)(x + 1); }'
        x = mx.nd.ones((8,), ctx=mx.gpu(0))
        take = mx.rtc.CudaModule(source).get_kernel("take", "float *x")
        take.launch([x], mx.gpu(0), (1, 1, 1), (1, 1, 1))
        x.asnumpy()
    """
    done = ended(code)
    assert done.returncode != 0 and "misaligned address" in done.stderr


def test_kernel_signatures_are_parsed():
    float32, int32 = np.dtype("float32"), np.dtype("int32")
    for text in (SIGNATURE, "const float *, float*, float", "const float*x ,float * y,  float  a"):
        assert _parsed(text) == [
            (float32, True, True),
            (float32, True, False),
            (float32, False, False),
        ]
    assert _parsed("const int n,\n int32_t *m") == [(int32, False, True), (int32, True, False)]
    kinds = {"__half": "float16", "uint8_t": "uint8", "int8_t": "int8", "char": "int8"}
    kinds.update({"int64_t": "int64", "double": "float64"})
    for name, kind in kinds.items():
        assert _parsed(name + " *") == [(np.dtype(kind), True, False)]
    for text in ("", "float **x", "const", "float x y", "float &x", "float *x,"):
        raises(ValueError, "not of the form", lambda: _parsed(text))
    with pytest.raises(TypeError, match='type of "unsigned n" is not supported; .* int64_t'):
        _parsed("unsigned n")


def test_scalars_are_packed_in_the_kernels_type():
    kernel = CudaKernel(None, "k", ())
    for value, kind in [(3, "int32"), (2.5, "float16"), (-1, "int8"), (1e300, "float64")]:
        packed = kernel._packed(0, value, np.dtype(kind), False, False)
        assert np.frombuffer(packed, kind)[0] == value


def test_cuda_module_without_a_gpu_raises():
    printed = output_of(
        f"""
        import mpgluon as mx
        try:
            mx.rtc.CudaModule({AXPY!r})
        except mx.MXNetError as error:
            print(type(error).__name__, error)
        """,
        MPGLUON_CUDA_LIBRARY="0",
        MPGLUON_TEST_DEVICES="",
    )
    assert printed.startswith(
        "NotSupportedError CudaModule: no GPU is available: GPUs are turned off"
    )
    with pytest.raises(TypeError):
        _core.cuda_module("", ["a"], ())
