"""Loops of the CPU kernels over elementwise formulas are vectorized. If a formula prevents this,
the op takes ten times as long with correct results, which other tests do not detect."""

import os
import re
import subprocess

import pytest

from support.paths import ROOT

# Rows of kernels/common/unary.def with branching formulas
KNOWN = {"gamma_function", "gammaln"}
# The flags of setup.py
FLAGS = "-std=gnu11 -fopenmp -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -w".split()
ISAS = {
    "v3": ["-march=x86-64-v3"],
    "v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
}


def is_gcc_12():
    try:
        said = subprocess.run(["gcc", "-dumpversion"], capture_output=True, text=True).stdout
    except OSError:
        return False
    return said.strip().split(".")[0] == "12" and os.uname().machine == "x86_64"


@pytest.mark.slow
@pytest.mark.skipif(not is_gcc_12(), reason="which loops are vectorised depends on the compiler")
@pytest.mark.parametrize("isa", ISAS)
def test_elementwise_formulas_are_vectorized(tmp_path, isa):
    command = ["gcc", *FLAGS, *ISAS[isa], f"-DMPG_ISA={isa}", f"-DMPG_ISA_{isa.upper()}=1"]
    command += ["-I.", "-Icsrc", "-fopt-info-vec-missed", "-c", "kernels/cpu/math/elementwise.c"]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "out.o")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with open(os.path.join(ROOT, "kernels", "common", "unary.def")) as file:
        rows = file.read().split("\n")
    missed = {
        re.search(r"FLOAT_ROWS\((\w+)", rows[int(line) - 1])[1]
        for line in re.findall(r"unary\.def:(\d+):\d+: missed:.*control flow in loop", done.stderr)
    }
    assert missed <= KNOWN
