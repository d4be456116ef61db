"""Builds mpgluon._core: the C core, and the CPU kernels once for every instruction set they are
dispatched to. Where nvcc is found, also mpgluon/_cuda.so: the GPU kernels, a library that the core
opens when a GPU is first asked for.

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
            f"MPGLUON_ISA: unknown instruction set {unknown[0]!r}; choose among "
            f"{', '.join(ISA_FLAGS)}"
        )
    return names


def onednn_include():
    """The folder of dnnl.h, or None: a setting, the build environment's prefix, or the running
    one's."""
    setting = os.environ.get("MPGLUON_ONEDNN")
    if setting == "0":
        return None
    folders = [os.path.join(setting, "include")] if setting else []
    folders += [
        os.path.join(p, "include")
        for p in (sys.prefix, os.path.dirname(os.path.dirname(sys.executable)))
    ]
    # In an isolated build the headers lie beside the build's own site-packages.
    for path in sys.path:
        head, tail = os.path.split(path.rstrip(os.sep))
        if tail in ("site-packages", "dist-packages"):
            folders.append(os.path.normpath(os.path.join(path, "..", "..", "..", "include")))
    folders += ["/usr/local/include", "/usr/include"]
    for folder in folders:
        if os.path.exists(os.path.join(folder, "oneapi", "dnnl", "dnnl.h")):
            return folder
    return None


class BuildPython(build_py):
    """Leaves no module in the build's folder that is no longer among the sources: it would be
    installed, and a file may hide the package that took its place."""

    def run(self):
        super().run()
        sources = {os.path.abspath(path) for path in self.get_outputs(include_bytecode=False)}
        package = os.path.join(os.path.abspath(self.build_lib), "mpgluon")
        for path in glob.glob(os.path.join(package, "**", "*.py"), recursive=True):
            if path not in sources:
                os.remove(path)


class BuildCore(build_ext):
    """Compiles only what changed (by the compiler's own dependency files), several files at
    once."""

    def build_extension(self, ext):
        import numpy

        compiler = os.environ.get("CC", "cc").split()
        debug = os.environ.get("MPGLUON_DEBUG") == "1"
        sanitize = os.environ.get("MPGLUON_SANITIZE", "")
        other = os.path.basename(compiler[-1]) if "CC" in os.environ else ""
        variant = (
            "-".join(filter(None, ["debug" if debug else "", sanitize.replace(",", "-")]))
            or "release"
        )
        variant += "-" + other if other not in ("", "cc") else ""
        temp = os.path.join(
            ROOT,
            "build",
            f"{variant}-{sysconfig.get_platform()}-{sys.version_info[0]}{sys.version_info[1]}",
        )
        isas = instruction_sets()
        flags = [
            "-std=gnu11",
            *tools.warnings(),
            "-fPIC",
            "-fvisibility=hidden",
            "-pthread",
            "-fopenmp",
            "-g1",
        ]
        flags += ["-I" + os.path.join(ROOT, "csrc"), "-I" + ROOT]
        flags += ["-O1", "-DMPG_DEBUG=1"] if debug else ["-O2", "-DNDEBUG"]
        flags += [f"-DMPG_ISA_{name.upper()}=1" for name in isas]
        flags += tools.struct_flags(*compiler)
        link = [
            "-shared",
            "-pthread",
            "-fopenmp",
            "-lm",
            "-ldl",
            "-Wl,-rpath,$ORIGIN/../../../:$ORIGIN/../scipy_openblas32/lib",
        ]
        if sanitize:
            flags += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-g"]
            link += [f"-fsanitize={sanitize}"]
        include = onednn_include()
        if include:
            flags += ["-DMPG_WITH_ONEDNN=1", "-isystem", include]
        python_flags = [
            "-isystem",
            sysconfig.get_paths()["include"],
            "-isystem",
            numpy.get_include(),
        ]
        extra = os.environ.get("CFLAGS", "").split()

        jobs = []  # (source, object, flags)
        for source in sorted(glob.glob(os.path.join(ROOT, "csrc", "**", "*.c"), recursive=True)):
            relative = os.path.relpath(source, ROOT)
            more = python_flags if relative.startswith(os.path.join("csrc", "python")) else []
            jobs.append((relative, os.path.join(temp, relative[:-2] + ".o"), flags + more + extra))
        dispatch = os.path.join("kernels", "cpu", "dispatch.c")
        jobs.append((dispatch, os.path.join(temp, dispatch[:-2] + ".o"), flags + extra))
        # Vectors wider than the processor's registers: passed within one file only
        flags.append("-Wno-psabi")
        for isa in isas:
            # Kernels: contraction off, so that vector bodies and scalar tails of a loop round
            # alike; fma is written where meant.
            kernel_flags = (
                ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
                if not debug
                else ["-ffp-contract=off"]
            )
            # Vectors wider than the instruction set's are passed to inline functions of the same
            # file only: no ABI is concerned. clang need not say which loops that could be vectors
            # are none.
            kernel_flags = (
                flags
                + kernel_flags
                + ["-Wno-psabi", "-Wno-pass-failed"]
                + ISA_FLAGS[isa]
                + [f"-DMPG_ISA={isa}"]
                + extra
            )
            for source in sorted(
                glob.glob(os.path.join(ROOT, "kernels", "cpu", "**", "*.c"), recursive=True)
            ):
                if os.path.basename(source) == "dispatch.c":
                    continue
                relative = os.path.relpath(source, ROOT)
                jobs.append((relative, os.path.join(temp, isa, relative[:-2] + ".o"), kernel_flags))

        tools.compile_all(
            [(source, target, compiler + options) for source, target, options in jobs]
        )
        output = self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(output), exist_ok=True)
        if not tools.run(compiler + [target for _, target, _ in jobs] + link + ["-o", output]):
            raise SystemExit("mpgluon: the linker failed")
        # A shared library may leave Python's symbols open, but none of ours: a promised kernel that
        # is missing is an error here.
        symbols = subprocess.run(
            ["nm", "-D", "--undefined-only", output], capture_output=True, text=True
        ).stdout.splitlines()
        missing = sorted(
            line.split()[-1]
            for line in symbols
            if line.split()[-1].startswith("mpg_") and line.split()[-2] == "U"
        )
        if missing:
            os.remove(output)
            raise SystemExit(f"mpgluon: not defined: {', '.join(missing)}")
        nvcc = None if sanitize else tools.find_nvcc()
        library = os.path.join(os.path.dirname(output), "_cuda.so")
        if not nvcc and os.path.exists(library):  # of a former build, for another core
            os.remove(library)
        if nvcc:
            try:
                tools.build_cuda(nvcc, library)
            except SystemExit as error:
                if os.environ.get("MPGLUON_CUDA") == "1":
                    raise
                print(
                    f"warning: {error}\nmpgluon goes without GPUs: {nvcc} may be older than CUDA "
                    "12; MPGLUON_CUDA=1 makes this an error",
                    file=sys.stderr,
                )
        self.write_stubs(os.path.abspath(os.path.dirname(output)))

    def copy_extensions_to_source(self):
        super().copy_extensions_to_source()
        self.write_stubs(os.path.join(ROOT, "mpgluon"))

    def write_stubs(self, package):
        """The type stubs, made from what was just built. A sanitizer's library could not be loaded
        here."""
        complete = os.path.exists(os.path.join(package, "_stubs"))  # not built to be copied from
        if not complete or os.environ.get("MPGLUON_SANITIZE"):
            return
        environment = dict(
            os.environ,
            PYTHONPATH=os.pathsep.join([os.path.dirname(package)] + [p for p in sys.path if p]),
        )
        done = subprocess.run(
            [sys.executable, "-m", "mpgluon._stubs", package],
            cwd=os.path.dirname(package),
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"mpgluon: the stubs could not be made: {done.stderr}")


setup(
    ext_modules=[Extension("mpgluon._core", sources=[])],
    cmdclass={"build_py": BuildPython, "build_ext": BuildCore},
)
