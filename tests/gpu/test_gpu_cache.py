"""The file cache of NVRTC-compiled kernels (kernels/cuda/vendor/nvrtc_cache.h)."""

import os
import subprocess
import sys
import textwrap

import pytest

from support.processes import ended, environment, finished
from support.stand_in import failing, needs_gpu, needs_stand_in

pytestmark = [needs_stand_in, needs_gpu]

PROGRAM = """
    import sys
    import numpy as np
    import mpgluon as mx
    from mpgluon import nd
    from support.functions import compiled
    from gpu.test_gpu_graphs import Counts

    counts = Counts()
    x = nd.arange(12, ctx=mx.gpu(0))
    print(compiled(lambda x: nd.exp(x) * 2 + x)(x)[0].asnumpy().tolist())
    source = "template <class T> __global__ void fill(T *y, T v) { y[threadIdx.x] = v * SCALE; }"
    module = mx.rtc.CudaModule(source, "-DSCALE=3", ["fill<float>", "fill<int>"])
    for name in ("float", "int"):
        y = nd.zeros((4,), dtype=np.dtype(name + "32"), ctx=mx.gpu(0))
        fill = module.get_kernel(f"fill<{name}>", f"{name} *y, {name} v")
        fill.launch([y, 2], mx.gpu(0), (1, 1, 1), (4, 1, 1))
        print(y.asnumpy().tolist())
    print(counts.library.hostcuda_count(b"specialised") > 0)
"""


def run(cache, **settings):
    done = finished(PROGRAM, timeout=300, MPGLUON_CUDA_CACHE=str(cache), **settings)
    assert done.stdout.endswith("[6.0, 6.0, 6.0, 6.0]\n[6, 6, 6, 6]\nTrue\n"), done.stdout
    return done.stdout


def contents(folder):
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as f:
            found[name] = f.read()
    return found


@pytest.fixture
def cache(tmp_path):
    """Returns a folder with the compiled kernels of PROGRAM and settings for a failing compiler."""
    folder = tmp_path / "of the user" / "kept"
    run(folder)
    broken = tmp_path / "broken"
    broken.mkdir()
    return folder, failing(broken, "true")


def test_cache_is_used_by_other_processes(cache):
    folder, broken = cache
    files = contents(folder)
    assert len(files) == 3 and all(name.endswith(".kernel") for name in files)
    assert run(folder, **broken) == run(folder)
    assert contents(folder) == files
    refused = ended(PROGRAM, timeout=300, MPGLUON_CUDA_CACHE="0", **broken)
    assert "no such architecture" in refused.stderr


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
        lambda data: bytes(1000),
        lambda data: data[:24] + b"\xff" * 16 + data[40:],
    ],
    ids=["empty", "begun", "short", "long", "a bit", "zeros", "sizes"],
)
def test_damaged_cache_files_are_replaced(cache, damage):
    folder, _ = cache
    files = contents(folder)
    for name, data in files.items():
        (folder / name).write_bytes(damage(data))
    run(folder)
    assert contents(folder) == files


def test_cache_files_that_cannot_be_loaded_are_replaced(tmp_path):
    """The stand-in's cache files contain only the paths of compiled code, deleted here."""
    folder, made = tmp_path / "kept", tmp_path / "made"
    run(folder, HOSTCUDA_NVRTC_CACHE=str(made))
    for data in contents(folder).values():
        os.remove(data[data.index(os.fsencode(made)) : -1])
    assert len(contents(folder)) == 3
    run(folder, HOSTCUDA_NVRTC_CACHE=str(made))
    run(folder, **failing(tmp_path, "true"))


def test_cache_evicts_least_recently_read_files(tmp_path):
    for i in range(12):
        path = tmp_path / f"{i:032x}.kernel"
        path.write_bytes(bytes(100_000))
        os.utime(path, (1e9 + i, 1e9 + i))
    (tmp_path / "of somebody else").write_bytes(bytes(2_000_000))
    (tmp_path / ".begun-123456").write_bytes(b"")
    os.utime(tmp_path / ".begun-123456", (1e9, 1e9))
    run(tmp_path, MPGLUON_CUDA_CACHE_SIZE="1")
    names = sorted(os.listdir(tmp_path))
    assert "of somebody else" in names and ".begun-123456" not in names
    old = [name for name in names if name.startswith("0" * 30)]
    assert old == [f"{i:032x}.kernel" for i in range(5, 12)]
    assert len(names) == 7 + 1 + 3


@pytest.mark.parametrize("folder", ["/proc/none", "/dev/null/none", "x" * 5000])
def test_unwritable_cache_folder_is_ignored(folder):
    run(folder)


def test_cache_folder_follows_xdg_cache_home(tmp_path):
    run("", XDG_CACHE_HOME=str(tmp_path))
    assert len(os.listdir(tmp_path / "mpgluon")) == 3
    assert os.stat(tmp_path / "mpgluon").st_mode & 0o777 == 0o700


def test_invalid_cache_size_raises(tmp_path):
    code = """
        import mpgluon as mx
        mx.rtc.CudaModule('extern "C" __global__ void nothing() {}')
    """
    settings = {"MPGLUON_CUDA_CACHE": str(tmp_path), "MPGLUON_CUDA_CACHE_SIZE": "much"}
    told = ended(code, **settings).stderr
    assert "MPGLUON_CUDA_CACHE_SIZE is 'much'; it must be 1 to 1048576 (MiB)" in told


def test_source_with_includes_is_not_cached(tmp_path):
    (tmp_path / "part").write_text("#define SCALE 1\n")
    code = """
        import mpgluon as mx
        source = '#include "part"\\nextern "C" __global__ void nothing() {}'
        try:
            mx.rtc.CudaModule(source, "-I" + sys.argv[0])
        except mx.MXNetError as error:
            print(error)
    """
    finished("import sys\n" + textwrap.dedent(code), MPGLUON_CUDA_CACHE=str(tmp_path / "kept"))
    assert os.listdir(tmp_path / "kept") == []


def test_concurrent_processes_share_the_cache(tmp_path):
    """Each process reads only complete files."""
    settings = environment(MPGLUON_CUDA_CACHE=str(tmp_path))
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    processes = [
        subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    outputs = {process.communicate(timeout=300)[0] for process in processes}
    assert len(outputs) == 1 and outputs.pop().endswith("True\n")
    assert len(os.listdir(tmp_path)) == 3
