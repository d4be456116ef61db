"""Builds mpgluon._core: the C core, and the CPU kernels once for each instruction set that they are
dispatched to. If nvcc is found, also builds mpgluon/_cuda.so, the library with the GPU kernels,
which the core opens on the first use of a GPU.

Settings (environment variables):
  MPGLUON_ISA       instruction sets of the CPU kernels, comma-separated, of: base, v3, v4 (x86-64),
                    or base elsewhere; default: all
  MPGLUON_SANITIZE  "address,undefined" or "thread": a sanitizer build
  MPGLUON_DEBUG     1: no optimisation, graph verification between passes
  MPGLUON_ONEDNN    folder with include/ (and lib/) of another oneDNN >= 3.2; "0": build without
  MPGLUON_CUDA      1: build the GPU library, or fail; 0: don't; default: where nvcc is found, if it
                    can (NVCC, CUDA_HOME, PATH, /usr/local/cuda*, NVIDIA's wheels)
  MPGLUON_CUDA_ARCH compute capabilities of the GPU kernels, comma-separated; default: 90. Newer
                    GPUs compile from the last one's PTX.
  MPGLUON_WERROR    1: a compiler's warning is an error, as in CI
  CC, CFLAGS, MAX_JOBS  as usual
"""

import glob
import importlib.util
import os
import platform
import subprocess
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location(
    "mpgluon_build", os.path.join(ROOT, "tools", "native_build.py")
)
tools = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tools)

ISA_FLAGS = {
    "base": [],
    "v3": ["-march=x86-64-v3"],
    "v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
}


def instruction_sets():
    if platform.machine() not in ("x86_64", "AMD64"):
        return ["base"]
    names = os.environ.get("MPGLUON_ISA", "base,v3,v4").split(",")
    unknown = [n for n in names if n not in ISA_FLAGS]
    if unknown:
        raise SystemExit(
            f"MPGLUON_ISA: unknown instruction set {unknown[0]!r}; expected one of "
            f"{', '.join(ISA_FLAGS)}"
        )
    return names


def onednn_include():
    """Returns the folder of dnnl/dnnl.h, or None. Searches the setting MPGLUON_ONEDNN, then the
    prefixes of the build environment and of the running interpreter."""
    setting = os.environ.get("MPGLUON_ONEDNN")
    if setting == "0":
        return None
    folders = [os.path.join(setting, "include")] if setting else []
    folders += [
        os.path.join(p, "include")
        for p in (sys.prefix, os.path.dirname(os.path.dirname(sys.executable)))
    ]
    # In an isolated build, the headers are next to the build environment's own site-packages.
    for path in sys.path:
        head, tail = os.path.split(path.rstrip(os.sep))
        if tail in ("site-packages", "dist-packages"):
            folders.append(os.path.normpath(os.path.join(path, "..", "..", "..", "include")))
    folders += ["/usr/local/include", "/usr/include"]
    for folder in folders:
        if os.path.exists(os.path.join(folder, "oneapi", "dnnl", "dnnl.h")):
            return os.path.join(folder, "oneapi")
    return None


class Settings:
    """Settings for compiling C files, from the environment variables and the machine."""

    def __init__(self):
        self.compiler = os.environ.get("CC", "cc").split()
        self.debug = os.environ.get("MPGLUON_DEBUG") == "1"
        self.sanitize = os.environ.get("MPGLUON_SANITIZE", "")
        self.instruction_sets = instruction_sets()
        self.extra = os.environ.get("CFLAGS", "").split()
        self.flags = [
            "-std=gnu11",
            *tools.warnings(),
            "-fPIC",
            "-fvisibility=hidden",
            "-pthread",
            "-fopenmp",
            "-g1",
            "-Icsrc",
            "-I.",
            *(["-DMPG_DEBUG=1"] if self.debug else ["-DNDEBUG"]),
            "-O1" if self.debug or self.sanitize else "-O2",
            *[f"-DMPG_ISA_{name.upper()}=1" for name in self.instruction_sets],
            *tools.struct_flags(*self.compiler),
        ]
        self.link = [
            "-shared",
            "-pthread",
            "-fopenmp",
            "-lm",
            "-ldl",
            "-Wl,-rpath,$ORIGIN/../../../:$ORIGIN/../scipy_openblas32/lib",
        ]
        if self.sanitize:
            self.flags += [f"-fsanitize={self.sanitize}", "-fno-omit-frame-pointer", "-g"]
            self.link += [f"-fsanitize={self.sanitize}"]
        include = onednn_include()
        if include:
            copies = os.path.dirname(tools.package_headers("oneapi", include))
            self.flags += ["-DMPG_WITH_ONEDNN=1", "-isystem", copies]
        self.objects = os.path.join(ROOT, "build", self._variant())

    def _variant(self):
        """Returns the name of the folder of object files. Each combination of settings has one."""
        compiler = os.path.basename(self.compiler[-1]) if "CC" in os.environ else ""
        ways = ["debug" if self.debug else "", self.sanitize.replace(",", "-")]
        variant = "-".join(filter(None, ways)) or "release"
        variant += "-" + compiler if compiler not in ("", "cc") else ""
        return f"{variant}-{sysconfig.get_platform()}"

    def object_of(self, source, *folder):
        return os.path.join(self.objects, *folder, source[:-2] + ".o")


def c_files(*folder):
    """Returns the paths of the C files below a folder, relative to the root."""
    pattern = os.path.join(ROOT, *folder, "**", "*.c")
    return sorted(os.path.relpath(path, ROOT) for path in glob.glob(pattern, recursive=True))


DISPATCH = os.path.join("kernels", "cpu", "dispatch.c")


def core_sources(settings):
    """Returns (source, object file, flags) for each file of the core and of the kernel dispatch."""
    import numpy

    own = "cp{}{}".format(*sys.version_info[:2])
    headers = tools.package_headers(f"numpy-{own}", numpy.get_include())
    python = ["-isystem", sysconfig.get_paths()["include"], "-isystem", headers]
    for source in [*c_files("csrc"), DISPATCH]:
        for_python = source.startswith(os.path.join("csrc", "python"))
        target = settings.object_of(source, *([own] if for_python else []))
        more = python if for_python else []
        more += tools.stamp_flags() if source == tools.STAMP else []
        # Vectorized copies of structs load fields that were just stored one by one, which stalls.
        more += [] if settings.debug else ["-fno-tree-slp-vectorize"]
        yield source, target, settings.flags + more + settings.extra


def kernel_sources(settings):
    """Returns (source, object file, flags) for each file of the CPU kernels and each instruction
    set."""
    # Disable contraction, so that the vector body and the scalar tail of a loop round in the same
    # way. Kernels call fma explicitly.
    flags = ["-ffp-contract=off"]
    if not settings.debug:
        flags += ["-fno-math-errno", "-fno-trapping-math"]
    if not settings.debug and not settings.sanitize:  # sanitized kernels take minutes at -O3
        flags += ["-O3"]
    # Vectors wider than the instruction set's are only passed to inline functions of the same file,
    # so ABI warnings (psabi) do not matter. -Wno-pass-failed silences clang about loops that it did
    # not vectorize.
    flags = [*settings.flags, *flags, "-Wno-psabi", "-Wno-pass-failed"]
    for isa in settings.instruction_sets:
        # If v3 is built as well, base is only for processors without AVX2. Lower optimization
        # halves its compile time.
        quick = isa == "base" and "v3" in settings.instruction_sets and not settings.debug
        own = [
            *flags,
            *(["-O2"] if quick else []),
            *ISA_FLAGS[isa],
            f"-DMPG_ISA={isa}",
            *settings.extra,
        ]
        for source in c_files("kernels", "cpu"):
            if source != DISPATCH:
                yield source, settings.object_of(source, isa), own


def check_symbols(library):
    """Raises an error if the library has undefined symbols of this package, such as a declared
    kernel that is not defined. The linker accepts them, because Python's symbols are undefined in
    extensions as well."""
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True
    ).stdout.splitlines()
    undefined = [line.split()[-1] for line in listed if line.split()[-2] == "U"]
    missing = sorted(name for name in undefined if name.startswith("mpg_"))
    if missing:
        os.remove(library)
        raise SystemExit(f"mpgluon: not defined: {', '.join(missing)}")


def build_cuda(library, settings):
    """Builds the library with the GPU kernels if nvcc is found."""
    nvcc = None if settings.sanitize else tools.find_nvcc()
    if not nvcc:
        if os.path.exists(library):  # left by an earlier build, whose core it was built for
            os.remove(library)
        return
    try:
        tools.build_cuda(nvcc, library)
    except SystemExit as error:
        if os.environ.get("MPGLUON_CUDA") == "1":
            raise
        print(
            f"warning: {error}\nmpgluon is built without GPU support: {nvcc} may be older than "
            "CUDA 12; MPGLUON_CUDA=1 makes this an error",
            file=sys.stderr,
        )


class BuildPython(build_py):
    """Removes modules from the build folder that are no longer among the sources. Otherwise, they
    would be installed, and a file may hide the package that has replaced it. Also copies the list
    of differences from MXNet, which `mpgluon.port` reads, to the build folder."""

    def run(self):
        super().run()
        if not self.editable_mode:
            page = os.path.join(ROOT, "docs", "porting.md")
            self.copy_file(page, os.path.join(self.build_lib, "mpgluon", "port", "porting.md"))
        sources = {os.path.abspath(path) for path in self.get_outputs(include_bytecode=False)}
        package = os.path.join(os.path.abspath(self.build_lib), "mpgluon")
        for path in glob.glob(os.path.join(package, "**", "*.py"), recursive=True):
            if path not in sources:
                os.remove(path)


class BuildCore(build_ext):
    """Compiles outdated files with ninja, links them, and writes the type stubs."""

    def build_extension(self, ext):
        settings = Settings()
        if not settings.sanitize:
            tools.find_nvcc()  # fails early if nvcc is required but missing
        objects = [job for folder in (core_sources, kernel_sources) for job in folder(settings)]
        tools.compile_all(
            [(source, target, settings.compiler + options) for source, target, options in objects],
            settings.objects,
        )
        output = self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(output), exist_ok=True)
        targets = [target for _, target, _ in objects]
        if not tools.run(settings.compiler + targets + settings.link + ["-o", output]):
            raise SystemExit("mpgluon: the linker failed")
        check_symbols(output)
        build_cuda(os.path.join(os.path.dirname(output), "_cuda.so"), settings)
        # Otherwise, the modules in the build folder may be from older sources.
        if self.distribution.have_run.get("build_py"):
            self.write_stubs(os.path.abspath(os.path.dirname(output)))

    def copy_extensions_to_source(self):
        super().copy_extensions_to_source()
        self.write_stubs(os.path.join(ROOT, "mpgluon"))

    def write_stubs(self, package):
        """Writes the type stubs, generated from the new library. Skips sanitizer builds, because
        this process cannot load their library."""
        generator = os.path.join(package, "_internal", "stubs")  # missing if only the core is built
        if not os.path.exists(generator) or os.environ.get("MPGLUON_SANITIZE"):
            return
        environment = dict(
            os.environ,
            PYTHONPATH=os.pathsep.join([os.path.dirname(package)] + [p for p in sys.path if p]),
        )
        done = subprocess.run(
            [sys.executable, "-m", "mpgluon._internal.stubs", package],
            cwd=os.path.dirname(package),
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"mpgluon: cannot generate the stubs: {done.stderr}")


setup(
    ext_modules=[Extension("mpgluon._core", sources=[])],
    cmdclass={"build_py": BuildPython, "build_ext": BuildCore},
)
