"""Builds the GPU library for the host, against the emulated CUDA runtime in this folder.

Writes build/hostcuda/mpgluon_hostcuda.so and prints its path. HOSTCUDA_SANITIZE="address,undefined"
or "thread" builds with sanitizers, in a separate folder.
"""

import glob
import importlib.util
import os
import platform
import shutil
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
spec = importlib.util.spec_from_file_location(
    "mpgluon_build", os.path.join(ROOT, "tools", "native_build.py")
)
tools = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tools)


# Emulated NVIDIA libraries. They are placed next to the GPU library, which searches there first.
# They link against the GPU library, since it contains the emulated runtime.
LIBRARIES = {
    "cublaslt": "libcublasLt.so.13",
    "cublas": "libcublas.so.13",
    "cusolver": "libcusolver.so.12",
    "cudnn": "libcudnn.so.9",
    "nccl": "libnccl.so.2",
}


# Detects unaligned vector accesses, on which a GPU faults but a CPU does not.
ALIGNED = ["-fsanitize=alignment", "-fno-sanitize-recover=alignment"]


def sources():
    for pattern in ("kernels/cuda/**/*.c", "kernels/cuda/**/*.cu", "tests/hostcuda/*.cpp"):
        found = glob.glob(os.path.join(ROOT, pattern), recursive=True)
        yield from sorted(os.path.relpath(p, ROOT) for p in found)
    yield from tools.CUDA_SHARED


def nvrtc_definitions(flags, folder, library):
    """Returns definitions of paths and compiler options for the emulated NVRTC.

    The options favor fast compilation over fast code and, as in NVRTC, exclude the C++ library.
    """
    options = ["-std=c++17", "-O0", "-w", "-nostdinc++", "-DHOSTCUDA_DEVICE_ONLY", "-D__global__="]
    options += ALIGNED
    options += [f for f in flags if f.startswith(("-f", "-march")) and f != "-fvisibility=hidden"]
    if platform.machine() == "x86_64":
        options.append("-mno-f16c")  # F16C's header would dominate compile time
    defined = {
        "HOSTCUDA_COMPILER": " ".join(["LD_PRELOAD= c++", *options]),
        "HOSTCUDA_INCLUDE": os.path.join(ROOT, "tests", "hostcuda", "include"),
        "HOSTCUDA_LIBRARY": library,
        "HOSTCUDA_CACHE": os.path.join(folder, "nvrtc"),
    }
    return [f'-D{name}="{value}"' for name, value in defined.items()]


def forget_old_groups(folder):
    """Deletes compiled groups that are a week old, since those of random tests are never reused."""
    for pattern in ("nvrtc/*/*.so", "nvrtc/*"):
        for path in glob.glob(os.path.join(folder, pattern)):
            if os.path.getmtime(path) < time.time() - 7 * 86400:
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def build():
    sanitize = os.environ.get("HOSTCUDA_SANITIZE", "")
    folder = os.path.join(
        ROOT, "build", "hostcuda" + ("-" + sanitize.replace(",", "-") if sanitize else "")
    )
    flags = [
        "-O1",
        "-g1",
        "-fPIC",
        "-fvisibility=hidden",
        "-pthread",
        *tools.warnings(),
        "-ffp-contract=off",
        "-fno-math-errno",
        "-isystem",
        os.path.join("tests", "hostcuda", "include"),
        "-Icsrc",
        "-I.",
    ]
    if platform.machine() == "x86_64" and "avx2" in open("/proc/cpuinfo").read():
        flags.append("-march=x86-64-v3")
    if sanitize:
        flags += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer"]
    cc, cxx = os.environ.get("CC", "cc").split(), os.environ.get("CXX", "c++").split()
    jobs = []
    for source in sources():
        target = os.path.join(folder, source + ".o")
        if source.endswith(".c"):
            command = cc + ["-std=gnu11"] + flags
        else:  # kernels have pragmas that only nvcc knows
            command = cxx + ["-std=c++17", "-x", "c++", "-Wno-unknown-pragmas"] + flags
            if source.endswith(".cu"):
                command += ALIGNED
        jobs.append(
            (source, target, command + (tools.stamp_flags() if source == tools.STAMP else []))
        )
    embedded = tools.embed_sources(folder)
    jobs.append((embedded, embedded + ".o", cc + ["-std=gnu11"] + flags))
    library = os.path.join(folder, "mpgluon_hostcuda.so")
    others = []
    for name in [*LIBRARIES, "nvrtc"]:
        source = os.path.join("tests", "hostcuda", "libraries", name + ".cpp")
        if name == "nvrtc":
            own = flags + nvrtc_definitions(flags, folder, library)
        else:
            own = ["-O3"] + flags[1:]
        others.append((source, os.path.join(folder, source + ".o"), cxx + ["-std=c++17"] + own))
    tools.compile_all(jobs + others, folder)
    link = (
        cxx
        + ["-shared", "-pthread", "-Wl,-z,defs"]
        + ([f"-fsanitize={sanitize}"] if sanitize else ["-fsanitize=alignment"])
    )
    if sanitize:
        link.remove("-Wl,-z,defs")  # the process that loads the library has the sanitizer's symbols
    if not tools.run(
        link
        + [target for _, target, _ in jobs]
        + ["-Wl,-soname,mpgluon_hostcuda.so", "-lm", "-ldl", "-o", library]
    ):
        sys.exit("hostcuda: the linker failed")
    targets = [target for _, target, _ in others]
    names = [*LIBRARIES.values(), "libnvrtc.so.13", "libnvrtc-builtins.so.13.0"]
    for target, name in zip([*targets, None], names):  # the last one is opened but never called
        command = [target] if target else []
        command += [library, "-Wl,-rpath,$ORIGIN", "-Wl,-soname," + name]
        if not tools.run(link + command + ["-o", os.path.join(folder, name)]):
            sys.exit("hostcuda: the linker failed")
    forget_old_groups(folder)
    return library


if __name__ == "__main__":
    print(build())
