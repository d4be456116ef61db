"""Matrix products on a GPU (cuBLASLt), and the declarations and lookup of NVIDIA's libraries."""

import glob
import os
import re
import shutil
import site
import subprocess

import numpy as np
import pytest

import mpgluon as mx
from mpgluon.base import counted
from support.calls import call
from support.compare import same_bits
from support.paths import ROOT
from support.processes import finished, output_of
from support.stand_in import ON_STAND_IN, STAND_IN, needs_gpu, needs_stand_in


def folder_with(header, *patterns):
    for place in (
        [os.environ.get("MPGLUON_CUBLAS", "")]
        + [p for s in site.getsitepackages() for p in (s + "/nvidia/cu13", s + "/nvidia/*")]
        + list(patterns)
    ):
        for found in glob.glob(os.path.join(place, "include", header)) if place else []:
            return found[: -len(header) - 1]
    return None


@pytest.mark.parametrize(
    "name, header, wheel",
    [
        ("cublaslt", "cublasLt.h", "nvidia-cublas"),
        ("cublas", "cublas_v2.h", "nvidia-cublas"),
        ("cusolver", "cusolverDn.h", "nvidia-cusolver"),
        ("cudnn", "cudnn.h", "nvidia-cudnn-cu13"),
        ("nccl", "nccl.h", "nvidia-nccl-cu13"),
    ],
)
def test_library_declarations_match_nvidias_headers(name, header, wheel, tmp_path):
    """Compiles types, constants and signatures against NVIDIA's header, if installed."""
    folder = folder_with(header, "/usr/local/cuda", "/opt/*/nvidia/*")
    runtime = folder_with("crt/host_defines.h", "/usr/local/cuda", "/opt/*/nvidia/cu13")
    if not folder or not runtime:
        pytest.skip(
            f"no {header} here (pip install {wheel} nvidia-cuda-runtime nvidia-cuda-crt brings it)"
        )
    command = [
        "cc",
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-deprecated-declarations",
        "-I" + ROOT,
        "-isystem",
        folder,
        "-isystem",
        runtime,
    ]
    check = open(os.path.join(ROOT, "tests", "hostcuda", f"check_{name}.c")).read()
    for source, good in [(check, True), (check.replace("== (int)name", "== (int)name + 1"), False)]:
        file = tmp_path / "check.c"
        file.write_text(source)
        done = subprocess.run(
            command + ["-c", str(file), "-o", str(tmp_path / "check.o")],
            capture_output=True,
            text=True,
        )
        assert (done.returncode == 0) == good, done.stderr


CONVOLUTION = """
    import mpgluon as mx
    try:
        x = mx.nd.full((1, 8, 4, 4), 1.0 + 2.0 ** -20, ctx=mx.gpu(0))
        weight, bias = mx.nd.ones((1, 8, 4, 4), ctx=mx.gpu(0)), mx.nd.zeros((1,), ctx=mx.gpu(0))
        form = dict(kernel=(4, 4), num_filter=1)
        print(mx.nd.Convolution(x, weight, no_bias=True, **form).asscalar() > 128)
        print(mx.nd.Convolution(x, weight, bias, **form).asscalar() > 128)
    except mx.base.MXNetError as error:
        print(error)
    print((mx.nd.ones((2,), ctx=mx.gpu(0)) + 1).asnumpy())
"""
PRODUCT = """
    import mpgluon as mx
    try:
        a = mx.nd.full((32, 32), 1.0 + 2.0 ** -20, ctx=mx.gpu(0))
        print(mx.nd.dot(a, a)[0, 0].asscalar() > 32)
    except mx.base.MXNetError as error:
        print(error)
    print((mx.nd.ones((2,), ctx=mx.gpu(0)) + 1).asnumpy())
"""

FACTORS = """
    import mpgluon as mx
    a = mx.nd.eye(3, ctx=mx.gpu(0)) * 4
    try:
        print(mx.nd.linalg.potrf(a).asnumpy())
    except mx.base.MXNetError as error:
        print(error)
    print((mx.nd.ones((2,), ctx=mx.gpu(0)) + 1).asnumpy())
"""


@needs_stand_in
@pytest.mark.parametrize(
    "code, setting, text, wheel",
    [
        (PRODUCT, "MPGLUON_CUBLAS", "cuBLASLt (libcublasLt.so.13)", "nvidia-cublas"),
        (FACTORS, "MPGLUON_CUBLAS", "cuBLAS (libcublas.so.13)", "nvidia-cublas"),
        (FACTORS, "MPGLUON_CUSOLVER", "cuSOLVER (libcusolver.so.12)", "nvidia-cusolver"),
        (CONVOLUTION, "MPGLUON_CUDNN", "cuDNN (libcudnn.so.9)", "nvidia-cudnn-cu13"),
    ],
)
def test_missing_library_error_names_the_package(code, setting, text, wheel, tmp_path):
    """The error gives the install command. Ops that do not need the library work."""
    alone = shutil.copy(STAND_IN, tmp_path / "mpgluon_hostcuda.so")
    if wheel == "nvidia-cusolver":  # it is loaded after cuBLAS
        shutil.copy(os.path.join(os.path.dirname(STAND_IN), "libcublas.so.13"), tmp_path)
    out = output_of(code, MPGLUON_CUDA_LIBRARY=str(alone), **{setting: str(tmp_path)})
    assert f"{text} is needed for this on a GPU but was not found" in out
    assert f"pip install {wheel}, or set its folder with {setting}" in out
    assert "[2. 2.]" in out


EIGENVALUES = """
    import mpgluon as mx
    a = mx.np.array([[2, 1], [0, 3]], ctx=mx.gpu(0))
    try:
        print(mx.np.linalg.eigvals(a))
    except mx.base.MXNetError as error:
        print(error)
    print(mx.np.linalg.solve(a, a).asnumpy().tolist(), mx.np.linalg.svd(a)[0].shape)
"""


@needs_stand_in
def test_cusolver_without_general_eigenvalues_is_too_old(tmp_path):
    """cuSOLVER has no geev before CUDA 12.8. Other ops work."""
    folder = os.path.dirname(STAND_IN)
    alone = shutil.copy(STAND_IN, tmp_path / "mpgluon_hostcuda.so")
    shutil.copy(os.path.join(folder, "libcublas.so.13"), tmp_path)
    with open(os.path.join(folder, "libcusolver.so.12"), "rb") as file:
        contents = file.read()
    assert b"cusolverDnXgeev\0" in contents
    renamed = contents.replace(b"cusolverDnXgeev\0", b"cusolverDnXgone\0")
    (tmp_path / "libcusolver.so.12").write_bytes(renamed)
    out = output_of(EIGENVALUES, MPGLUON_CUDA_LIBRARY=str(alone))
    assert "too old: function cusolverDnXgeev is missing; update it with pip install -U" in out
    assert "[[1.0, 0.0], [0.0, 1.0]] (2, 2)" in out


@needs_gpu
@pytest.mark.parametrize(
    "name, arrays, text",
    [
        ("_eig", [[[0, 1], [-1, 0]]], "matrix 0 has complex eigenvalues"),
        ("_eigvals", [[[[1, 0], [0, 1]], [[0, 1], [-1, 0]]]], "matrix 1 has complex eigenvalues"),
        ("_eigvals", [[[[1, 0], [0, 1]], [[np.nan, 1], [1, 0]]]], "matrix 1 .* not finite"),
        ("_svd", [[[[1, 0], [0, 1]], [[1, np.inf], [1, 0]]]], "matrix 1 .*is the matrix finite"),
        ("_svd", [[[np.nan, 1, 2], [1, 0, 3]]], "matrix 0 .*is the matrix finite"),
        (
            "_solve",
            [[[[1, 2], [2, 5]], [[1, 2], [2, 4]]], [[1, 2], [1, 2]]],
            "matrix 1 is singular",
        ),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_matrices_without_a_result_are_refused(name, arrays, text, dtype):
    with pytest.raises(mx.base.MXNetError, match=f"{name}: {text}"):
        arrays = [mx.nd.array(a, dtype=dtype, ctx=mx.gpu(0)) for a in arrays]
        call(name, arrays, {})[0].asnumpy()


@needs_gpu
@pytest.mark.parametrize("rank", [0, 1, 3, 4])
@pytest.mark.parametrize("shape", [(4, 4), (3, 4, 9), (2, 4, 70)])
def test_svd_of_matrices_without_full_rank(shape, rank):
    random = np.random.RandomState(rank)
    a = random.normal(size=(*shape[:-1], rank)) @ random.normal(size=(*shape[:-2], rank, shape[-1]))
    outputs = call("_svd", [mx.nd.array(a, dtype="float64", ctx=mx.gpu(0))], {})
    ut, values, v = (output.asnumpy() for output in outputs)
    eye = np.broadcast_to(np.eye(4), (*shape[:-2], 4, 4))
    np.testing.assert_allclose(ut @ np.swapaxes(ut, -1, -2), eye, atol=1e-12)
    np.testing.assert_allclose(v @ np.swapaxes(v, -1, -2), eye, atol=1e-12)
    np.testing.assert_allclose(ut * values[..., None, :] @ v, a, atol=1e-12)
    assert (np.diff(values) <= 0).all() and (values >= 0).all()
    largest = np.take_along_axis(v, np.abs(v).argmax(-1)[..., None], -1)
    assert (largest > 0).all()


@needs_gpu
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 4, 4), (2, 1, 17, 17), (40, 40)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_eigenvectors_have_length_1_and_satisfy_their_equation(shape, dtype):
    random = np.random.RandomState(3)
    half = random.uniform(-1, 1, shape)
    # similar to a symmetric matrix, so that all eigenvalues are real
    a = ((half + np.swapaxes(half, -1, -2)) * random.uniform(1, 2, shape[-1])[:, None]).astype(
        dtype
    )
    x = mx.nd.array(a, dtype=dtype, ctx=mx.gpu(0))
    w, v = (output.asnumpy() for output in call("_eig", [x], {}))
    near = 1e-3 if dtype == "float32" else 1e-11
    np.testing.assert_allclose(a @ v, v * w[..., None, :], atol=near)
    np.testing.assert_allclose((v * v).sum(-2), np.ones(shape[:-1]), rtol=near)
    (values,) = (output.asnumpy() for output in call("_eigvals", [x], {}))
    np.testing.assert_allclose(np.sort(values), np.sort(w), atol=near)


@needs_gpu
def test_numpy_functions_of_decompositions_match_the_cpu():
    random = np.random.RandomState(4)
    a = random.normal(size=(3, 5, 5)) + 6 * np.eye(5)
    tall, b = random.normal(size=(3, 6, 4)), random.normal(size=(3, 5, 2))
    linalg = mx.np.linalg
    for function, arrays in [
        (linalg.svd, (tall,)),
        (linalg.pinv, (tall,)),
        (linalg.solve, (a, b)),
        (linalg.norm, (tall[0], 2)),
        (linalg.matrix_rank, (tall,)),
        (linalg.cond, (a,)),
    ]:
        results = []
        for ctx in (mx.cpu(0), mx.gpu(0)):
            inputs = [
                mx.np.array(x, dtype="float64", ctx=ctx) if isinstance(x, np.ndarray) else x
                for x in arrays
            ]
            found = function(*inputs)
            results.append(found if isinstance(found, tuple) else (found,))
        for cpu, gpu in zip(*results):
            assert gpu.context == mx.gpu(0)
            np.testing.assert_allclose(gpu.asnumpy(), cpu.asnumpy(), rtol=1e-9, atol=1e-10)


INFO = """
    from mpgluon import info
    print("\\n".join(info.lines()))
"""
LIBRARIES = ("cuBLASLt", "cuBLAS", "cuSOLVER", "cuDNN", "NCCL", "NVRTC", "driver")


@needs_gpu
def test_info_tries_each_library():
    """Reports path, version and whether a call works."""
    found = dict(line.split(maxsplit=1) for line in output_of(INFO).splitlines())
    assert found["CUDA"].startswith(counted(mx.num_gpus(), "GPU"))
    for name in LIBRARIES:
        line = r"\d+\.\d+\S* \(.*\.so.*\), (works|not tested: .*)"
        assert re.fullmatch(line, found[name]), (name, found[name])
    tried = [name for name in LIBRARIES if found[name].endswith("works")]
    assert set(LIBRARIES) - set(tried) <= {"NCCL"}  # needs two cards


@needs_stand_in
def test_info_names_missing_and_broken_libraries(tmp_path):
    alone = shutil.copy(STAND_IN, tmp_path / "mpgluon_hostcuda.so")
    library = os.path.join(os.path.dirname(STAND_IN), "libcublas.so.13")
    shutil.copy(library, tmp_path / "libcublasLt.so.13")  # lacks cuBLASLt's functions
    settings = dict.fromkeys(("MPGLUON_CUBLAS", "MPGLUON_CUDNN"), str(tmp_path))
    out = output_of(INFO, MPGLUON_CUDA_LIBRARY=str(alone), HOSTCUDA_DEVICES="1", **settings)
    assert re.search(r"cuBLASLt .*DOES NOT WORK: .*cublasLt", out)
    assert re.search(r"cuDNN +not found: .*pip install nvidia-cudnn", out)
    assert "NCCL" in out and "driver" in out


@needs_stand_in
def test_library_of_other_kernels_is_rejected(tmp_path, monkeypatch):
    """The core and the library must have the same stamp of the kernel sources."""
    monkeypatch.syspath_prepend(os.path.join(ROOT, "tools"))
    import native_build

    (flag,) = native_build.stamp_flags()
    number = int(flag.split("=")[1], 16).to_bytes(8, "little")
    with open(STAND_IN, "rb") as file:
        whole = file.read()
    assert number in whole
    other = tmp_path / "mpgluon_hostcuda.so"
    other.write_bytes(whole.replace(number, bytes(8)))
    out = output_of(
        """
        import mpgluon as mx
        try:
            mx.nd.ones((1,), ctx=mx.gpu(0))
        except mx.base.MXNetError as error:
            print(mx.num_gpus(), error)
        """,
        MPGLUON_CUDA_LIBRARY=str(other),
    )
    assert out.startswith("0 ") and "was built from different sources than mpgluon" in out


@needs_stand_in
def test_setting_selects_deterministic_convolutions():
    """The stand-in's nondeterministic engine alternates between two results."""
    code = """
        import mpgluon as mx
        try:
            x = mx.nd.full((1, 8, 4, 4), 1.0, ctx=mx.gpu(0))
            weight = mx.nd.ones((1, 8, 4, 4), ctx=mx.gpu(0))
            runs = [
                mx.nd.Convolution(x, weight, no_bias=True, kernel=(4, 4), num_filter=1).asscalar()
                for _ in range(2)
            ]
            print(runs[0] == runs[1])
        except mx.base.MXNetError as error:
            print(error)
    """
    for setting, result in [("", "True"), ("1", "True"), ("0", "False")]:
        assert output_of(code, MPGLUON_CUDA_DETERMINISTIC=setting).startswith(result)
    assert "MPGLUON_CUDA_DETERMINISTIC is 'no'; it must be 0 or 1" in output_of(
        code, MPGLUON_CUDA_DETERMINISTIC="no"
    )


@needs_gpu
@pytest.mark.parametrize("code", [PRODUCT, CONVOLUTION], ids=["product", "convolution"])
def test_setting_selects_tf32(code):
    assert output_of(code, MPGLUON_CUDA_TF32="").startswith("True")
    assert output_of(code, MPGLUON_CUDA_TF32="0").startswith("True")
    assert "MPGLUON_CUDA_TF32 is 'yes'; it must be 0 or 1" in output_of(
        code, MPGLUON_CUDA_TF32="yes"
    )
    if ON_STAND_IN:  # on a card, the library chooses the rounding
        assert output_of(code, MPGLUON_CUDA_TF32="1").startswith("False")


@needs_stand_in
def test_library_handles_are_freed_at_exit():
    """Covers handles and descriptors."""
    program = (
        CONVOLUTION
        + """
    print(mx.nd.dot(x[0, 0], x[0, 0])[0, 0].asscalar() > 3)
    a = mx.nd.eye(3, ctx=mx.gpu(0)) * 4
    print(mx.nd.linalg.det(mx.nd.linalg.potrf(a)).asscalar())
    """
    )
    done = finished(program, HOSTCUDA_REPORT="1")
    told = ["True", "True", "[2.", "2.]", "True", "8.0"]
    assert done.stdout.split() == told, done.stdout + done.stderr
    for library in ("cudnn", "cublasLt", "cublas", "cusolver"):
        assert f"{library} stand-in: 0 left" in done.stderr


@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_unaligned_operands_have_the_same_bits(dtype):
    """Slices of any alignment use the algorithm of aligned arrays."""
    random = np.random.RandomState(1)
    ctx, m, n, k = mx.gpu(0), 5, 7, 67
    results = []
    for shift in (0, 1, 3):
        random.seed(1)

        def place(*shape):
            size = int(np.prod(shape))
            buffer = mx.nd.zeros((size + shift,), ctx=ctx, dtype=dtype)
            buffer[shift:] = mx.nd.array(
                random.uniform(-1, 1, size).astype(dtype), ctx=ctx, dtype=dtype
            )
            return buffer[shift:].reshape(shape)

        a, b, w, bias, c = place(m, k), place(k, n), place(n, k), place(n), place(m, n)
        outputs = [mx.nd.zeros((m * n + shift,), ctx=ctx, dtype=dtype) for _ in range(3)]
        targets = [o[shift:].reshape((m, n)) for o in outputs]
        mx.nd.dot(a, b, out=targets[0])
        mx.nd.FullyConnected(a, w, bias, num_hidden=n, out=targets[1])
        mx.nd.linalg_gemm(a, b, c, alpha=0.5, beta=2.0, out=targets[2])
        results.append([o[shift:].asnumpy() for o in outputs])
    for other in results[1:]:
        same_bits(results[0], other)
    wide = [x.asnumpy().astype("float64") for x in (a, b, w, bias, c)]
    expected = [
        wide[0] @ wide[1],
        wide[0] @ wide[2].T + wide[3],
        0.5 * wide[0] @ wide[1] + 2 * wide[4],
    ]
    for x, y in zip(results[0], expected):
        np.testing.assert_allclose(
            x.astype("float64"),
            y.ravel(),
            rtol=0,
            atol={"float16": 1e-2, "float32": 1e-5, "float64": 1e-13}[dtype],
        )


@needs_gpu
@pytest.mark.parametrize(
    "shape, axis, transpose",
    [
        ((3, 4, 2, 5), -3, True),
        ((3, 2, 4, 5), 1, False),
        ((1, 5, 4, 3, 2), -4, False),
        ((6, 2, 3), -2, True),
    ],
)
def test_linalg_gemm_along_other_axes(shape, axis, transpose):
    random = np.random.RandomState(0)
    a, b = random.rand(*shape).astype("float32"), random.rand(*shape).astype("float32")
    position = axis % len(shape)
    rows_last = [np.moveaxis(x, position, -2) for x in (a, b)]
    product = (
        rows_last[0].swapaxes(-1, -2) @ rows_last[1]
        if transpose
        else rows_last[0] @ rows_last[1].swapaxes(-1, -2)
    )
    expected = np.moveaxis(product, -2, position)
    c = random.rand(*expected.shape).astype("float32")
    with mx.gpu(0):
        x, y, z = mx.nd.array(a), mx.nd.array(b), mx.nd.array(c)
        plain = mx.nd.linalg_gemm2(
            x, y, transpose_a=transpose, transpose_b=not transpose, axis=axis, alpha=3.0
        )
        added = mx.nd.linalg_gemm(
            x, y, z, transpose_a=transpose, transpose_b=not transpose, axis=axis, beta=0.5
        )
    np.testing.assert_allclose(plain.asnumpy(), 3 * expected, rtol=1e-5)
    np.testing.assert_allclose(added.asnumpy(), expected + 0.5 * c, rtol=1e-5)
    np.testing.assert_array_equal(z.asnumpy(), c)


@needs_gpu
def test_empty_and_very_large_batches_of_products_are_exact():
    with mx.gpu(0):
        c, bias = mx.nd.array([[1.0, 2.0], [3.0, 4.0]]), mx.nd.array([5.0, 6.0])
        empty = mx.nd.zeros((2, 0)), mx.nd.zeros((0, 2))
        np.testing.assert_array_equal(mx.nd.dot(*empty).asnumpy(), np.zeros((2, 2)))
        np.testing.assert_array_equal(
            mx.nd.linalg_gemm(*empty, c, beta=3.0).asnumpy(), [[3, 6], [9, 12]]
        )
        np.testing.assert_array_equal(
            mx.nd.FullyConnected(empty[0], mx.nd.zeros((2, 0)), bias, num_hidden=2).asnumpy(),
            [[5, 6], [5, 6]],
        )
        np.testing.assert_array_equal(mx.nd.linalg_syrk(empty[0]).asnumpy(), np.zeros((2, 2)))
        assert mx.nd.dot(empty[1], c).shape == (0, 2)
        assert mx.nd.batch_dot(mx.nd.zeros((0, 2, 3)), mx.nd.zeros((0, 3, 4))).asnumpy().shape == (
            0,
            2,
            4,
        )
        many = np.arange(70001, dtype="float32")  # exceeds the batch limit of one call
        a = mx.nd.array(many.reshape(-1, 1, 1))
        b = mx.nd.array(np.stack([np.ones_like(many), 2 * np.ones_like(many)], 1).reshape(-1, 1, 2))
        np.testing.assert_array_equal(
            mx.nd.batch_dot(a, b).asnumpy()[:, 0], np.stack([many, 2 * many], 1)
        )


@needs_gpu
def test_evicted_product_plans_are_recreated():
    """Uses more signatures than the plan cache holds."""
    with mx.gpu(0):
        ones = mx.nd.ones((40, 40))
        slices = [ones[:i] for i in range(1, 41)]
        factors = [mx.nd.ones((40, j)) for j in range(1, 31)]
        for _ in range(2):
            sums = [mx.nd.dot(a, b).sum() for a in slices for b in factors]
            assert [int(s.asscalar()) for s in sums] == [
                40 * i * j for i in range(1, 41) for j in range(1, 31)
            ]


@needs_gpu
def test_captures_survive_eviction_of_plans():
    """Captured convolutions still work after very many other convolutions."""
    net = mx.gluon.nn.HybridSequential()
    net.add(*(mx.gluon.nn.Conv2D(2, 1, in_channels=2) for _ in range(4)))
    net.initialize(mx.init.Xavier(), ctx=mx.gpu(0))
    net.hybridize()
    with mx.gpu(0):
        x = mx.nd.arange(18).reshape((1, 2, 3, 3))
        first = [net(x).asnumpy() for _ in range(4)][0]
        weight = mx.nd.ones((1, 2, 1, 1))
        for i in range(1100):
            mx.nd.Convolution(
                mx.nd.ones((1, 2, 1 + i % 40, 1 + i // 40)),
                weight,
                kernel=(1, 1),
                num_filter=1,
                no_bias=True,
            )
        for _ in range(4):
            assert (net(x).asnumpy() == first).all()


@needs_gpu
def test_linalg_syrk_is_symmetric():
    with mx.gpu(0):
        for transpose in (False, True):
            x = mx.nd.array(np.random.RandomState(0).uniform(-1, 1, (3, 37, 53)))
            y = mx.nd.linalg_syrk(x, transpose=transpose, alpha=1.5).asnumpy()
            np.testing.assert_array_equal(y, y.swapaxes(-1, -2))
            x = x.asnumpy().astype("float64")
            expected = 1.5 * (x.swapaxes(-1, -2) @ x if transpose else x @ x.swapaxes(-1, -2))
            np.testing.assert_allclose(y, expected, atol=1e-4)


@needs_gpu
def test_khatri_rao_accepts_many_factors():
    """Uses more factors than one launch accepts."""
    values = np.random.RandomState(0).uniform(0.9, 1.1, (35, 2, 3)).astype("float32")
    values = [v if i % 7 == 0 else v[:1] for i, v in enumerate(values)]
    results = [
        mx.nd.khatri_rao(*[mx.nd.array(v, ctx=ctx) for v in values]).asnumpy()
        for ctx in (mx.cpu(), mx.gpu(0))
    ]
    np.testing.assert_array_equal(*results)
