"""Builds native code: compiles changed files in parallel and builds the GPU library. Used by
setup.py and tests/hostcuda/build.py.

As a program it builds only the GPU library, into build/: MPGLUON_CUDA=1 python3
tools/native_build.py
"""

import functools
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Files of the core that the GPU library also contains: stateless functions.
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
    """Returns the flags of the file that is compiled into the core and the GPU library: a hash of
    the kernel sources. The core rejects a library with a different hash."""
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
        "-I" + os.path.join(ROOT, "csrc"),
        "-I" + ROOT,
        "-Xcompiler=" + ",".join(host),
    ]


def build_cuda(nvcc, output):
    """Builds the GPU library. The CUDA runtime is linked statically and loads the driver at the
    first call."""
    jobs = cuda_jobs(nvcc)
    embedded = embed_sources(cuda_folder())
    jobs.append((embedded, embedded + ".o", cuda_flags(nvcc) + ["-Xcompiler=-std=gnu11"]))
    compile_all(jobs)
    if not run(
        [nvcc, "-shared", "-cudart=static", "-Xlinker=--no-undefined", "-Xlinker=-z,defs"]
        + [target for _, target, _ in jobs]
        + ["-o", output]
    ):
        raise SystemExit("mpgluon: cannot link the GPU library")


def build_groups(nvcc, folder):
    """Compiles a selection of the sources of specialized groups that tests wrote to a folder
    (MPGLUON_CUDA_GROUPS), in parallel. Does not run them."""
    texts = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.cu"))):
        with open(path) as f:
            texts[path] = f.read()
    chosen = choose_groups(texts)
    temp = os.path.join(cuda_folder(), "groups")
    os.makedirs(temp, exist_ok=True)
    flags = [
        nvcc,
        "-I" + os.path.join(ROOT, "csrc"),
        "-I" + ROOT,
        "-std=c++17",
        "--fmad=false",
        "-Xcompiler=" + ",".join(warnings()),
        "-diag-suppress=550",  # register set but never used
    ] + nvcc_warnings()
    jobs = []
    for number in range(0, len(chosen), 32):
        source = os.path.join(temp, f"groups{number}.cu")
        with open(source, "w") as f:
            f.writelines(f'#include "{path}"\n' for path in chosen[number : number + 32])
        jobs.append((source, source + ".o", flags + cuda_architectures()[:1]))
    for old in set(glob.glob(os.path.join(temp, "*"))) - {path for job in jobs for path in job[:2]}:
        os.remove(old)
    compile_all(jobs)
    print(
        f"{len(chosen)} specialised groups of the tests compile, which have every kind of line "
        f"that is in all {len(texts)}"
    )


def choose_groups(texts):
    """Returns the paths of group sources that together contain every kind of line of all sources
    (greedy set cover, by new kinds per length). A kind ignores the numbers of registers, operands
    and sizes. Loads, stores and draws are distinct kinds for each number of elements per thread,
    row operations for each way of sharing a row among threads."""

    def kinds(text):
        form = re.search(r"enum { (EACH = \d+), PACKS = .*\n.*", text)
        lines = set()
        for line in text.splitlines():
            kind = re.sub(
                r"\d+(?=u\b|LL\b|\.0f|\]|,| & 1)|(?<=[a-z]_)\d+|\br\d+|mpg_group_\w+"
                r"|(?<= [-+*/?>] )\d+|(?<=\(\()\d+|(?<=share)\d+",
                "#",
                line.strip(),
            )
            way = form[1] if "EACH_PACK" in kind else form[0] if "lanes::" in kind else ""
            lines.add((kind, way))
        return lines

    left, chosen = {path: kinds(texts[path]) for path in sorted(texts)}, []
    while left:
        best = max(left, key=lambda path: len(left[path]) / len(texts[path]))
        found = left.pop(best)
        chosen += [best] if found else []
        left = {path: more for path, lines in left.items() if (more := lines - found)}
    return sorted(chosen)


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
    """Returns flags with which gcc for x86 clears and copies structs by stores. Otherwise it uses
    one slow instruction (rep stos) from some hundred bytes on, which made a call of a small op a
    sixth slower. Other compilers neither have nor need this option."""
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


class Progress:
    """Shows how many of `total` files are compiled, in a line of the controlling terminal, because
    pip captures printed output. Without a terminal, prints at each tenth."""

    def __init__(self, total):
        self.total, self.done, self.lock = total, 0, threading.Lock()
        try:
            self.terminal = open("/dev/tty", "w")
        except OSError:
            self.terminal = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.terminal:
            print("\r\033[K", end="", file=self.terminal)
            self.terminal.close()

    def advance(self):
        with self.lock:
            self.done += 1
            tenths = self.done * 10 // self.total
            text = f"mpgluon: {self.done} of {self.total} files are compiled"
            if self.terminal:
                print(f"\r{text}", end="", file=self.terminal, flush=True)
            elif tenths > (self.done - 1) * 10 // self.total:
                print(text, flush=True)


def compile_all(jobs):
    """Compiles outdated files in parallel. A job is (source, object, the command without both)."""

    def compile_one(job):
        source, target, command = job
        os.makedirs(os.path.dirname(target), exist_ok=True)
        command = command + ["-MD", "-MF", target + ".d", "-c", source, "-o", target]
        if not up_to_date(target, command):
            if not run(command):
                return False
            with open(target + ".made", "w") as f:
                json.dump(record(target, command), f)
        progress.advance()
        return True

    threads = int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))
    with Progress(len(jobs)) as progress, ThreadPoolExecutor(threads) as pool:
        failed = [
            source
            for source, ok in zip([job[0] for job in jobs], pool.map(compile_one, jobs))
            if not ok
        ]
    if failed:
        raise SystemExit(f"mpgluon: the compiler failed on {', '.join(failed)}")


# Headers of packages (-isystem) are compared by content, because pip unpacks them into a new folder
# for each build.


def record(target, command):
    """Returns the build record of an object: the command and the contents of the included package
    headers."""
    folders = package_folders(command)
    headers = {
        name: digest(name) for name in dependencies(target) if name.startswith(tuple(folders))
    }
    return {"command": without_folders(command), "folders": folders, "headers": headers}


def up_to_date(target, command):
    """True if the object is newer than all its sources and was built by the same command with the
    same package headers."""
    try:
        with open(target + ".made") as f:
            made = json.load(f)
        if made["command"] != without_folders(command):
            return False
        now = dict(zip(made["folders"], package_folders(command)))
        time = os.path.getmtime(target)
        for name in dependencies(target):
            folder = next((folder for folder in now if name.startswith(folder)), None)
            if folder is None:
                if os.path.getmtime(os.path.join(ROOT, name)) > time:
                    return False
            elif digest(now[folder] + name[len(folder) :]) != made["headers"][name]:
                return False
        return True
    except (OSError, LookupError, ValueError):
        return False


def package_folders(command):
    return [
        os.path.join(folder, "")
        for option, folder in zip(command, command[1:])
        if option == "-isystem"
    ]


def without_folders(command):
    return [command[0]] + [
        word for option, word in zip(command, command[1:]) if option != "-isystem"
    ]


def dependencies(target):
    """Returns the files that an object was built from, as recorded by the compiler."""
    with open(target + ".d") as f:
        return f.read().replace("\\\n", " ").split(":", 1)[1].split()


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
        build_groups(found, os.path.join(ROOT, "build", "hostcuda", "groups"))
    else:
        print("nvcc was not found: the GPU library is not built")
