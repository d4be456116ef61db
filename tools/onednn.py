"""Builds oneDNN from its sources for `tools/wheels.py --onednn`.

It uses GNU's OpenMP, so that a process has only one OpenMP runtime, and contains only the
primitives that mpgluon uses.

    python tools/onednn.py SOURCES FOLDER

SOURCES is an unpacked release or a clone (3.2 or newer; tested with 3.13.1). Installs include, lib
and share into FOLDER. Needs CMake 3.13 or newer, a C++ compiler, and about 40 minutes on two cores.
"""

import argparse
import glob
import os
import shutil
import subprocess

PRIMITIVES = "CONVOLUTION;DECONVOLUTION;INNER_PRODUCT;MATMUL;REORDER;ELTWISE;BINARY;"
PRIMITIVES += "BATCH_NORMALIZATION;LAYER_NORMALIZATION;POOLING;RNN;SOFTMAX;SUM;LRN;CONCAT;"
PRIMITIVES += "REDUCTION;RESAMPLING"
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "CMAKE_INSTALL_LIBDIR": "lib",
    "ONEDNN_CPU_RUNTIME": "OMP",
    "ONEDNN_GPU_RUNTIME": "NONE",
    "ONEDNN_BUILD_TESTS": "OFF",
    "ONEDNN_BUILD_EXAMPLES": "OFF",
    "ONEDNN_BUILD_DOC": "OFF",
    "ONEDNN_BUILD_GRAPH": "OFF",
    "ONEDNN_ENABLE_PRIMITIVE": PRIMITIVES,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sources")
    parser.add_argument("folder")
    arguments = parser.parse_args()
    folder = os.path.abspath(arguments.folder)
    if not os.path.exists(os.path.join(arguments.sources, "include", "oneapi", "dnnl", "dnnl.h")):
        raise SystemExit(f"onednn: {arguments.sources} has no sources of oneDNN 3")
    if not shutil.which("cmake"):
        raise SystemExit("onednn: cmake is missing; pip install cmake")
    build = os.path.join(folder, "build")
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    subprocess.run(
        ["cmake", "-S", arguments.sources, "-B", build, f"-DCMAKE_INSTALL_PREFIX={folder}"]
        + options,
        check=True,
    )
    jobs = os.environ.get("MAX_JOBS") or str(len(os.sched_getaffinity(0)))
    subprocess.run(["cmake", "--build", build, "-j", jobs], check=True)
    subprocess.run(["cmake", "--install", build], check=True)
    shutil.rmtree(build)
    (library,) = glob.glob(os.path.join(folder, "lib", "libdnnl.so.*.*"))
    subprocess.run(["strip", "--strip-unneeded", library], check=True)
    print(f"{library}: {os.path.getsize(library) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
