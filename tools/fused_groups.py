"""Compiles a selection of the fused groups that tests specialized, with nvcc and without a GPU.

`make hostcuda-test` writes their sources to build/hostcuda/groups.
"""

import glob
import os
import re

import native_build
from native_build import ROOT


def build_groups(nvcc, folder):
    """Compiles a selection of the sources of specialized groups that tests wrote to a folder
    (MPGLUON_CUDA_GROUPS), in parallel. Does not run them."""
    texts = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.cu"))):
        with open(path) as f:
            texts[path] = f.read()
    chosen = choose_groups(texts)
    temp = os.path.join(native_build.cuda_folder(), "groups")
    os.makedirs(temp, exist_ok=True)
    flags = [
        nvcc,
        "-Icsrc",
        "-I.",
        "-std=c++17",
        "--fmad=false",
        "-Xcompiler=" + ",".join(native_build.warnings()),
        "-diag-suppress=550",  # register set but never used
    ] + native_build.nvcc_warnings()
    jobs = []
    for number in range(0, len(chosen), 32):
        source = os.path.join(temp, f"groups{number}.cu")
        with open(source, "w") as f:
            f.writelines(f'#include "{path}"\n' for path in chosen[number : number + 32])
        jobs.append((source, source + ".o", flags + native_build.cuda_architectures()[:1]))
    for old in set(glob.glob(os.path.join(temp, "*"))) - {path for job in jobs for path in job[:2]}:
        os.remove(old)
    native_build.compile_all(jobs, temp)
    print(
        f"{len(chosen)} specialised groups of the tests compile, which have every kind of line "
        f"that is in all {len(texts)}"
    )


def choose_groups(texts):
    """Selects sources of groups that together contain every kind of line of all sources. Uses
    greedy set cover, by the number of new kinds relative to the source's length.

    A kind ignores the numbers of registers, operands and sizes. Loads, stores and random draws are
    a separate kind for each number of elements per thread. Row operations are a separate kind for
    each way of sharing a row among threads."""

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


if __name__ == "__main__":
    nvcc = native_build.find_nvcc()
    if nvcc:
        build_groups(nvcc, os.path.join(ROOT, "build", "hostcuda", "groups"))
