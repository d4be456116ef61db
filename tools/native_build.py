"""Builds native code: compiles changed files by ninja and builds the GPU library. Used by setup.py
and tests/hostcuda/build.py.

As a program it builds only the GPU library, into build/: MPGLUON_CUDA=1 python3
tools/native_build.py
"""

import contextlib
import filecmp
import functools
import glob
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Files of the core that are also compiled into the GPU library. Their functions have no state.
CUDA_SHARED = [
    "csrc/op/abi_stamp.c",
    "csrc/op/layers/convolution_geometry.c",
    "csrc/op/layers/rnn_size.c",
    "csrc/op/array/collective_places.c",
    "csrc/device/device_id.c",
    "csrc/tensor/dtype.c",
    "csrc/tensor/shape.c",
    "csrc/base/memory.c",
]


def toolkits():
    """Returns possible folders of a CUDA toolkit, newest first: the standard ones, and those of
    NVIDIA's wheels (nvidia-cuda-nvcc with nvidia-nvvm, nvidia-cuda-crt and nvidia-cuda-runtime,
    from CUDA 13 on; older wheels lack nvcc)."""

    def newest(pattern):
        return sorted(
            glob.glob(pattern),
            key=lambda path: [int(n) for n in re.findall(r"\d+", os.path.basename(path))],
            reverse=True,
        )

    wheels = [path for path in dict.fromkeys([sysconfig.get_paths()["purelib"], *sys.path]) if path]
    return [
        "/usr/local/cuda",
        *newest("/usr/local/cuda-[0-9]*"),
        *(home for path in wheels for home in newest(os.path.join(path, "nvidia", "cu[0-9]*"))),
    ]


def find_nvcc():
    """Returns the path of nvcc, or None if the GPU library is not to be built."""
    setting = os.environ.get("MPGLUON_CUDA", "auto")
    if setting == "0":
        return None
    home = os.environ.get("CUDA_HOME")
    places = [
        os.environ.get("NVCC"),
        home and os.path.join(home, "bin", "nvcc"),
        "nvcc",
        *(os.path.join(path, "bin", "nvcc") for path in toolkits()),
    ]
    found = next(filter(None, (shutil.which(place) for place in places if place)), None)
    if not found and setting == "1":
        raise SystemExit(
            "mpgluon: MPGLUON_CUDA=1, but nvcc was not found: put it on the PATH, name it with "
            "NVCC or CUDA_HOME, or pip install nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt "
            "nvidia-cuda-runtime nvidia-cuda-cccl"
        )
    return found


def cuda_architectures():
    names = [n.strip() for n in os.environ.get("MPGLUON_CUDA_ARCH", "90").split(",")]
    if not all(n.rstrip("af").isdigit() for n in names):
        raise SystemExit(
            "MPGLUON_CUDA_ARCH: give compute capabilities without a dot, as in 80,90,100"
        )
    flags = [f"-gencode=arch=compute_{n},code=sm_{n}" for n in names]
    return flags + [f"-gencode=arch=compute_{names[-1]},code=compute_{names[-1]}"]


def cuda_sources():
    """Returns the paths of the GPU library's sources."""
    found = [
        path
        for ending in ("c", "cu")
        for path in glob.glob(
            os.path.join(ROOT, "kernels", "cuda", "**", "*." + ending), recursive=True
        )
    ]
    return sorted(found) + [os.path.join(ROOT, name) for name in CUDA_SHARED]


STAMP = os.path.join("csrc", "op", "abi_stamp.c")


def stamp_flags():
    """Returns the flags for abi_stamp.c, which is compiled into the core and the GPU library. They
    define a hash of the kernel sources. The core rejects a library with a different hash."""
    whole = hashlib.sha256()
    for folder in ("kernels/cuda", "kernels/common"):
        for path in sorted(glob.glob(os.path.join(ROOT, folder, "**", "*.*"), recursive=True)):
            whole.update(os.path.relpath(path, ROOT).encode() + digest(path).encode())
    for name in CUDA_SHARED:
        whole.update(digest(os.path.join(ROOT, name)).encode())
    return [f"-DMPG_KERNEL_SOURCES=0x{whole.hexdigest()[:16]}"]


def cuda_folder():
    """Returns the folder of the GPU library's objects."""
    return os.path.join(ROOT, "build", f"cuda-{sysconfig.get_platform()}")


def cuda_jobs(nvcc):
    """Returns the jobs that compile the GPU library's sources."""
    common = cuda_flags(nvcc)
    device = (
        common
        + ["-std=c++17", "--fmad=false", "-lineinfo"]
        + nvcc_warnings()
        + cuda_architectures()
    )
    jobs = []
    for source in cuda_sources():
        relative = os.path.relpath(source, ROOT)
        command = device if source.endswith(".cu") else common + ["-Xcompiler=-std=gnu11"]
        if relative == STAMP:
            command = command + stamp_flags()
        jobs.append((relative, os.path.join(cuda_folder(), relative + ".o"), command))
    return jobs


def cuda_flags(nvcc):
    host = warnings() + ["-fPIC", "-fvisibility=hidden"]
    return [
        nvcc,
        "-O3",
        "-Icsrc",
        "-I.",
        "-Xcompiler=" + ",".join(host),
    ]


def build_cuda(nvcc, output):
    """Builds the GPU library. The CUDA runtime is linked statically and loads the driver at the
    first call."""
    jobs = cuda_jobs(nvcc)
    embedded = embed_sources(cuda_folder())
    jobs.append((embedded, embedded + ".o", cuda_flags(nvcc) + ["-Xcompiler=-std=gnu11"]))
    compile_all(jobs, cuda_folder())
    if not run(
        [nvcc, "-shared", "-cudart=static", "-Xlinker=--no-undefined", "-Xlinker=-z,defs"]
        + [target for _, target, _ in jobs]
        + ["-o", output]
    ):
        raise SystemExit("mpgluon: cannot link the GPU library")


# Headers that the source of a specialized group includes (kernels/cuda/fusion/specialise.h). NVRTC
# has built-in versions of STANDARD, which are embedded as empty files.
GENERATED = [
    "kernels/cuda/fusion/generated.h",
    "kernels/cuda/block.h",
    "kernels/cuda/dropout.h",
    "kernels/cuda/random_key.h",
    "kernels/cuda/elements.h",
    "kernels/common/unary.h",
    "kernels/common/unary.def",
    "kernels/common/binary.h",
    "kernels/common/binary.def",
    "kernels/common/vector_math.h",
    "kernels/common/vector_math_double.h",
    "kernels/common/vector_math_mixed.h",
    "kernels/common/polynomial.h",
    "kernels/common/half.h",
    "csrc/base/host_device.h",
    "csrc/base/philox.h",
]
STANDARD = ["math.h", "stdint.h", "string.h"]


def embed_sources(folder):
    """Writes these headers as a C file into the folder unless unchanged; returns its path."""
    names = [name.removeprefix("csrc/") for name in GENERATED] + STANDARD
    lines = [
        "/* Made by tools/native_build.py. */",
        "#include <stddef.h>",
        "const char *const mpg_cuda_source_names[] = {",
    ]
    lines += [f'  "{name}",' for name in names] + [
        "  NULL};",
        "const char *const mpg_cuda_source_texts[] = {",
    ]
    for name in GENERATED:
        with open(os.path.join(ROOT, name)) as f:
            lines += [
                '  "' + line.rstrip("\n").replace("\\", "\\\\").replace('"', '\\"') + '\\n"'
                for line in f
            ]
        lines[-1] += ","
    text = "\n".join(lines + ['  "",'] * len(STANDARD) + ["  NULL};", ""])
    path = os.path.join(folder, "group_sources.c")
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(path) or open(path).read() != text:
        with open(path, "w") as f:
            f.write(text)
    return path


def warnings():
    """Returns warning flags. Warnings are errors in CI but not on users' machines, where other
    compilers may have other warnings."""
    return ["-Wall", "-Wextra"] + (["-Werror"] if os.environ.get("MPGLUON_WERROR") == "1" else [])


@functools.cache
def struct_flags(*compiler):
    """Returns flags that make gcc for x86 clear and copy structs with stores. By default, it uses
    the slow instruction `rep stos` for more than about a hundred bytes, which made calls of small
    ops a sixth slower. Other compilers neither have nor need this option."""
    flags = [
        f"-mmem{kind}-strategy=vector_loop:512:noalign,libcall:-1:noalign"
        for kind in ("set", "cpy")
    ]
    known = subprocess.run(
        [*compiler, "-Werror", *flags, "-fsyntax-only", "-x", "c", os.devnull], capture_output=True
    )
    return flags if known.returncode == 0 else []


def nvcc_warnings():
    return ["--Werror=all-warnings"] if "-Werror" in warnings() else []


def find_ninja():
    beside = os.path.dirname(sys.executable)
    paths = os.pathsep.join([beside, os.environ.get("PATH", os.defpath)])
    found = shutil.which("ninja", path=paths)
    if not found:
        raise SystemExit("mpgluon: ninja was not found: pip install ninja")
    return found


def compile_all(jobs, folder):
    """Compiles outdated files in parallel by ninja, which keeps its records in the folder. A job is
    (source, object, the command without both)."""

    def escaped(text):
        return re.sub(r"([$ :])", r"$\1", text)

    lines = [
        f"builddir = {escaped(folder)}",
        "rule compile",
        "  command = $compiler -MD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $in",
    ]
    for source, target, command in jobs:
        lines.append(f"build {escaped(target)}: compile {escaped(source)}")
        lines.append("  compiler = " + shlex.join(command).replace("$", "$$"))
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "build.ninja")
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")
    threads = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
    command = [find_ninja(), "-C", ROOT, "-f", path, "-j", threads]
    status = dict(os.environ, NINJA_STATUS="mpgluon: %f of %t files are compiled: ")
    with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:
        # The progress is written to the terminal because pip captures standard output.
        if not subprocess.run(command, stdout=terminal, env=status).returncode:
            return
    # Run without a terminal. After a failure above, this is the second run, so that the compiler's
    # messages are part of the captured output.
    if subprocess.run([*command, "--quiet"]).returncode:
        raise SystemExit("mpgluon: the compiler failed")


def package_headers(name, folder):
    """Copies a package's headers to build/include, and returns the copy's path. Unchanged headers
    keep their path and time there, so ninja does not recompile. The originals do not, because pip
    unpacks packages into a new folder for each build."""
    copies = os.path.join("build", "include", name)
    for path in glob.glob(os.path.join(folder, "**", "*.h"), recursive=True):
        copy = os.path.join(ROOT, copies, os.path.relpath(path, folder))
        if not os.path.exists(copy) or not filecmp.cmp(path, copy, shallow=False):
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copyfile(path, copy)
    return copies


@functools.cache
def digest(name):
    with open(name, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def run(command):
    """Runs a compiler and shows its output; True if it succeeded."""
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        sys.stderr.write(" ".join(command) + "\n" + result.stdout)
    sys.stderr.write(result.stderr)
    return result.returncode == 0


if __name__ == "__main__":
    found = find_nvcc()
    if found:
        build_cuda(found, os.path.join(ROOT, "build", "_cuda.so"))
    else:
        print("nvcc was not found: the GPU library is not built")
