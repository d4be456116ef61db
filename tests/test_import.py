"""Importing the package loads what every program needs and nothing else."""

import subprocess
import sys

from stand_in import run

PROGRAM = """
import sys
before = set(sys.modules)
import numpy
numpy_loads = set(sys.modules)
import mpgluon
heavy = {"multiprocessing", "PIL", "matplotlib", "tqdm", "mpgluon.symbol", "mpgluon.module", "mpgluon.gluon.data", "mpgluon.optimizer"}
print(sorted((set(sys.modules) - numpy_loads) & heavy))
import os
with open("/proc/self/maps") as f:
    maps = f.read()
print([name for name in ("libcuda", "libcudart", "libdnnl") if name in maps])
"""


def test_import_is_light():
    """No heavy module, and no library of kernels, CUDA's least of all, before something needs it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]


def test_a_failed_import_can_be_repeated():
    """NumPy may be there the next time."""
    printed = run("""
        import sys
        names = ("numpy", "numpy._core", "numpy._core._multiarray_umath", "numpy.core", "numpy.core._multiarray_umath")
        sys.modules.update(dict.fromkeys(names))
        try:
            import mpgluon
        except ImportError:
            print("refused")
        for name in list(sys.modules):
            if name.split(".")[0] in ("numpy", "mpgluon"):
                del sys.modules[name]
        import mpgluon
        print(mpgluon.nd.ones((2,)).asnumpy().sum())
        """)
    assert printed.split() == ["refused", "2.0"]
