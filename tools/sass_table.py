"""The table of hot CUDA kernels: registers, spills and the cost of their hot loops.

The cost is per element, from the machine code (SASS). Needs nvcc, cuobjdump and nvdisasm, but no
card.

    python tools/sass_table.py            writes docs/measurements/cuda-kernels.md
    python tools/sass_table.py --check    fails if a kernel is worse than on the page or ptxas
                                          miscompiled a clamp (wrong_clamps)
"""

import argparse
import collections
import concurrent.futures
import datetime
import glob
import os
import re
import shutil
import subprocess
import sys

import native_build
from native_build import ROOT

PAGE = os.path.join(ROOT, "docs", "measurements", "cuda-kernels.md")

# Hot kernels: file, instance, threads per block, and the number of elements (for attention: scores)
# that a thread handles per iteration of its hot loop.
KERNELS = [
    ("norm/batch_norm.cu", "statistics_last_kernel<mpg_bfloat16, float, true>", 256, 32),
    ("norm/batch_norm.cu", "apply_last_kernel<mpg_bfloat16, float, true, (behind)0>", 256, 16),
    ("norm/batch_norm.cu", "apply_last_kernel<mpg_bfloat16, float, true, (behind)1>", 256, 16),
    ("norm/batch_norm.cu", "apply_last_kernel<mpg_bfloat16, float, true, (behind)2>", 256, 16),
    ("norm/batch_norm.cu", "gradient_sums_last_kernel<mpg_bfloat16, float, true, true>", 256, 16),
    ("norm/batch_norm.cu", "back_last_kernel<mpg_bfloat16, float, true, (behind)1>", 256, 16),
    ("norm/batch_norm.cu", "back_last_kernel<mpg_bfloat16, float, true, (behind)2>", 256, 16),
    ("norm/batch_norm.cu", "statistics_first_kernel<float, float, 4, true>", 256, 4),
    ("norm/batch_norm.cu", "back_first_kernel<float, float, 4, true>", 256, 4),
    ("layers/pooling.cu", "pool_last_kernel<mpg_bfloat16, (kind)0, true>", 256, 16),
    ("layers/pooling.cu", "pool_last_kernel<mpg_bfloat16, (kind)1, true>", 256, 32),
    ("layers/pooling.cu", "back_last_kernel<mpg_bfloat16, (kind)0, true>", 256, 8),
    ("layers/pooling.cu", "pool_kernel<float, (kind)0, false>", 256, 16),
    ("layers/pooling.cu", "back_kernel<float, (kind)0>", 256, 4),
    ("layers/dropout.cu", "dropout_kernel<mpg_bfloat16, float, true>", 256, 8),
    ("layers/dropout.cu", "apply_kernel<mpg_bfloat16, float, true>", 256, 8),
    ("array/move.cu", "move_kernel<item16, unsigned int>", 256, 4),
    ("array/move.cu", "transpose_kernel<unsigned short, unsigned int>", 256, 4),
    ("array/indexing.cu", "gather_rows_kernel<item16>", 256, 1),
    ("array/indexing.cu", "gather_kernel<unsigned int, unsigned int>", 256, 4),
    ("math/reduce.cu", "column_sums_kernel<mpg_bfloat16>", 256, 32),
    ("math/reduce.cu", "columns_kernel<mpg_bfloat16, float>", 256, 4),
    (
        "math/reduce.cu",
        "held_rows_kernel<mpg_row<mpg_bfloat16, 32, 3, true, true>, true>",
        256,
        24,
    ),
    ("math/elementwise.cu", "unary_kernel<row::sigmoid, mpg_bfloat16>", 256, 8),
    ("math/binary.cu", "linear_kernel<row::add, mpg_bfloat16>", 256, 8),
    (
        "math/softmax.cu",
        "forward_rows_kernel<mpg_row<mpg_bfloat16, 32, 4, true, true>, (kind)0>",
        256,
        32,
    ),
    ("math/softmax.cu", "back_rows_kernel<mpg_row<mpg_bfloat16, 32, 4, true, true> >", 256, 32),
    (
        "math/softmax.cu",
        "forward_rows_kernel<mpg_row<mpg_bfloat16, 256, 4, true, false>, (kind)0>",
        256,
        32,
    ),
    ("math/softmax.cu", "ce_rows_kernel<mpg_row<mpg_bfloat16, 256, 4, true, false> >", 256, 32),
    (
        "math/softmax.cu",
        "ce_back_rows_kernel<mpg_row<mpg_bfloat16, 256, 2, true, false> >",
        256,
        16,
    ),
    (
        "norm/norm.cu",
        "layer_norm_rows_kernel<mpg_row<mpg_bfloat16, 32, 3, true, true> >",
        256,
        24,
    ),
    (
        "norm/norm.cu",
        "layer_norm_rows_back_kernel<mpg_row<mpg_bfloat16, 32, 3, true, true> >",
        256,
        24,
    ),
    ("norm/norm.cu", "shares_kernel<mpg_bfloat16, float>", 512, 4),
    (
        "layers/attention_tensor.cu",
        "forward_kernel<mpg_bfloat16, 64, (mpg_attention_mode)0>",
        128,
        32,
    ),
    (
        "layers/attention_tensor.cu",
        "forward_kernel<mpg_bfloat16, 64, (mpg_attention_mode)1>",
        128,
        32,
    ),
    (
        "layers/attention_tensor.cu",
        "forward_kernel<mpg_bfloat16, 64, (mpg_attention_mode)2>",
        128,
        32,
    ),
    (
        "layers/attention_tensor.cu",
        "forward_kernel<mpg_bfloat16, 128, (mpg_attention_mode)0>",
        128,
        32,
    ),
    (
        "layers/attention_tensor.cu",
        "forward_kernel<mpg_bfloat16, 128, (mpg_attention_mode)1>",
        128,
        32,
    ),
    (
        "layers/attention_tensor.cu",
        "forward_kernel<mpg_bfloat16, 128, (mpg_attention_mode)2>",
        128,
        32,
    ),
    (
        "layers/attention_gradient.cu",
        "keys_kernel<mpg_bfloat16, 64, (mpg_attention_mode)0>",
        128,
        32,
    ),
    (
        "layers/attention_gradient.cu",
        "keys_kernel<mpg_bfloat16, 64, (mpg_attention_mode)1>",
        128,
        16,
    ),
    (
        "layers/attention_gradient.cu",
        "keys_kernel<mpg_bfloat16, 64, (mpg_attention_mode)2>",
        128,
        16,
    ),
    (
        "layers/attention_gradient.cu",
        "keys_kernel<mpg_bfloat16, 128, (mpg_attention_mode)0>",
        128,
        16,
    ),
    (
        "layers/attention_gradient.cu",
        "keys_kernel<mpg_bfloat16, 128, (mpg_attention_mode)1>",
        128,
        16,
    ),
    (
        "layers/attention_gradient.cu",
        "keys_kernel<mpg_bfloat16, 128, (mpg_attention_mode)2>",
        128,
        16,
    ),
    (
        "layers/attention_gradient.cu",
        "rows_kernel<mpg_bfloat16, 64, (mpg_attention_mode)0>",
        128,
        32,
    ),
    (
        "layers/attention_gradient.cu",
        "rows_kernel<mpg_bfloat16, 64, (mpg_attention_mode)1>",
        128,
        16,
    ),
    (
        "layers/attention_gradient.cu",
        "rows_kernel<mpg_bfloat16, 64, (mpg_attention_mode)2>",
        128,
        16,
    ),
    (
        "layers/attention_gradient.cu",
        "rows_kernel<mpg_bfloat16, 128, (mpg_attention_mode)0>",
        128,
        16,
    ),
    (
        "layers/attention_gradient.cu",
        "rows_kernel<mpg_bfloat16, 128, (mpg_attention_mode)1>",
        128,
        16,
    ),
    (
        "layers/attention_gradient.cu",
        "rows_kernel<mpg_bfloat16, 128, (mpg_attention_mode)2>",
        128,
        16,
    ),
    ("math/integer.cu", "integer_kernel<signed char, unsigned int>", 256, 512),
    ("layers/optimizer.cu", "update_kernel<rule::adam, float, float, float, float>", 256, 4),
    (
        "layers/optimizer.cu",
        "update_kernel<rule::adamw, float, float, mpg_bfloat16, mpg_bfloat16>",
        256,
        4,
    ),
    (
        "layers/optimizer.cu",
        "update_kernel<rule::sgd_momentum, float, float, mpg_bfloat16, mpg_bfloat16>",
        256,
        4,
    ),
    ("layers/optimizer.cu", "finite_kernel<mpg_bfloat16>", 256, 8),
]

COLUMNS = [
    "file",
    "kernel",
    "threads",
    "elements",
    "registers",
    "warps",
    "spills",
    "shared",
    "instructions",
    "load",
    "store",
]
INTRODUCTION = """\
# Hot CUDA kernels in machine code

Properties of the machine code of the kernels in which training spends most of its time. This page
was written by `python tools/sass_table.py` on {date}. The kernels were compiled with nvcc {nvcc}
for sm_90, and no GPU is needed. `make cuda-table` fails if a kernel has become worse: fewer warps,
more spills, over 10 % more instructions per element, or narrower memory accesses.

- threads: threads per block
- elements: elements (for attention: scores) that a thread handles per iteration of the hot loop
- registers: registers per thread
- warps: resident warps per multiprocessor, of at most 64, as limited by registers and threads per
  block
- spills: instructions that load or store local memory
- shared: bytes of static shared memory per block
- instructions: instructions of the hot loop per element. They include branches that are rarely
  taken, but not called functions, such as 64-bit division.
- load, store: mean bytes per access of the hot loop to global memory

The hot loop is the innermost loop with the widest loads. If there are several, it is the one that
moves the most bytes. If wider loads are outside of loops, all instructions of the kernel count. In
a kernel with matrix products on tensor cores, the hot loop is the smallest loop with at least half
of them.

"""

Row = collections.namedtuple("Row", COLUMNS)
Instruction = collections.namedtuple("Instruction", "address name text")


def parse(dump):
    """Parses the output of cuobjdump -res-usage -sass; returns registers and shared bytes by
    kernel, and instructions by kernel."""
    usage, code, name = {}, {}, None
    for line in dump.splitlines():
        if found := re.match(r"\s*Function ?: ?(\S+?):?$", line) or re.match(
            r"\s*Function (\S+):$", line
        ):
            name = found[1]
        elif found := re.match(r"\s*REG:(\d+) .*SHARED:(\d+)", line):
            usage[name] = int(found[1]), int(found[2])
        elif found := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+((?:@!?U?P\w+ +)?(\S+)[^;]*);", line):
            code.setdefault(name, []).append(Instruction(int(found[1], 16), found[3], found[2]))
    return usage, code


def access(instruction):
    """Returns ("load" or "store", bytes) of a global memory access, (None, 0) for other
    instructions."""
    found = re.match(r"(LDG|LDGSTS|STG|RED|ATOMG)\.(.*)", instruction.name + ".")
    if not found:
        return None, 0
    kind = "load" if found[1] in ("LDG", "LDGSTS") else "store"
    width = re.search(r"\b[US](8|16)\b|\b(64|128)\b", found[2])
    return kind, int(width[1] or width[2]) // 8 if width else 4


def hot_loop(code):
    """Returns the instructions of a kernel's hot loop. This is the innermost loop with the widest
    loads; ties are resolved by the most bytes moved. If a wider load is outside of loops, returns
    all instructions. For kernels with matrix products, returns the smallest loop that contains at
    least half of the products."""
    loops = []
    for one in code:
        target = re.search(r"\b0x([0-9a-f]+)", one.text)
        if one.name.startswith("BRA") and target and int(target[1], 16) < one.address:
            begin = int(target[1], 16)
            loops.append([other for other in code if begin <= other.address <= one.address])

    def products(part):
        return sum(one.name.startswith("HMMA") for one in part)

    if products(code):
        return min((loop for loop in loops if 2 * products(loop) >= products(code)), key=len)

    def widest(part):
        return max((access(one)[1] for one in part if access(one)[0] == "load"), default=0)

    loops = [loop for loop in loops if widest(loop)]

    def size(loop):
        return widest(loop), sum(access(one)[1] for one in loop), len(loop)

    inside = {one for loop in loops for one in loop}
    innermost = [loop for loop in loops if not any(set(other) < set(loop) for other in loops)]
    hot = max(innermost, key=size, default=[])
    return code if widest(hot) < widest(set(code) - inside) else hot


def row(kernel, registers, shared, code):
    """Returns a kernel's row of the table."""
    file, name, threads, elements = kernel
    # The hardware allocates registers per warp, in units of 256.
    allocated = -(-registers * 32 // 256) * 256 * (threads // 32)
    loop = [one for one in hot_loop(code) if one.name != "NOP"]
    widths = {kind: [w for k, w in map(access, loop) if k == kind] for kind in ("load", "store")}
    mean = {kind: f"{sum(w) / len(w):.1f}" if w else "" for kind, w in widths.items()}
    return Row(
        *(file, f"`{name}`", str(threads), str(elements), str(registers)),
        str(min(64, 65536 // allocated * (threads // 32))),
        str(sum(one.name.startswith(("LDL", "STL")) for one in code)),
        str(shared),
        f"{len(loop) / elements:.1f}",
        mean["load"],
        mean["store"],
    )


def measure(nvcc, cuobjdump):
    """Returns the rows of all kernels from the objects of the GPU library."""
    jobs = {os.path.relpath(job[0], ROOT): job for job in native_build.cuda_jobs(nvcc)}
    files = dict.fromkeys("kernels/cuda/" + kernel[0] for kernel in KERNELS)
    native_build.compile_all([jobs[file] for file in files], native_build.cuda_folder())
    rows = []
    for file in files:
        dump = output(cuobjdump, "-arch", "sm_90", "-res-usage", "-sass", jobs[file][1])
        usage, code = parse(dump)
        plain = output("c++filt", input="\n".join(code)).splitlines()
        names = {demangled(name): mangled for name, mangled in zip(plain, code)}
        for kernel in KERNELS:
            if "kernels/cuda/" + kernel[0] != file:
                continue
            if kernel[1] not in names:
                raise SystemExit(f"{file} has no {kernel[1]}; it has: {', '.join(sorted(names))}")
            mangled = names[kernel[1]]
            rows.append(row(kernel, *usage[mangled], code[mangled]))
    return rows


def demangled(name):
    """Demangles a name; `void (anonymous namespace)::f<int>(...)` becomes f<int>."""
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:at]
    return name


def output(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def written(rows, date, nvcc):
    """Returns the text of the page."""
    table = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    return INTRODUCTION.format(date=date, nvcc=nvcc) + "".join(
        "| " + " | ".join(cells).replace(" |  |", " | |") + " |\n" for cells in table
    )


def read(page):
    """Returns the rows of a page and its nvcc release."""
    rows = [
        Row(*(cell.strip() for cell in line.strip("|").split("|")))
        for line in page.splitlines()
        if line.startswith("| ") and "`" in line
    ]
    found = re.search(r"with nvcc (\S+)", page)
    return rows, found and found[1]


def worse(now, before):
    """Returns descriptions of the values that are worse than in the table."""
    table = {(row.file, row.kernel): row for row in before}
    problems = []
    for one in now:
        old = table.pop((one.file, one.kernel), None)
        if old is None or (old.threads, old.elements) != (one.threads, one.elements):
            problems.append(f"{one.file} {one.kernel}: the table has no such row")
            continue
        for column, limit, sign in [
            ("warps", 1, -1),
            ("spills", 1, 1),
            ("instructions", 1.1, 1),
            ("load", 1, -1),
            ("store", 1, -1),
        ]:
            is_now, was = (float(getattr(row, column) or 0) for row in (one, old))
            if sign * is_now > sign * was * limit + 1e-6:
                problems.append(f"{one.file} {one.kernel}: {column} {is_now:g}, was {was:g}")
    problems += [f"{file} {kernel}: no longer measured" for file, kernel in table]
    return problems


def wrong_clamps(dump):
    """Returns functions in the output of `cuobjdump -sass` with an instruction that ptxas 13.0
    miscompiles: clamp(x, 0, n) with a predicate for result == n, which is also true for x == 0."""
    function, found = "", []
    for line in dump.splitlines():
        function = line.split()[-1] if "Function :" in line else function
        if re.search(r"VI\w*MNMX\S*\.RELU\S* U?R\d+, (PT, )?U?P\d", line):
            found.append(function)
    return list(dict.fromkeys(found))


def all_objects(nvcc):
    """Returns the objects of the GPU library and of the test groups that cuda-build compiled."""
    groups = glob.glob(os.path.join(native_build.cuda_folder(), "groups", "*.cu.o"))
    library = [job[1] for job in native_build.cuda_jobs(nvcc) if job[0].endswith(".cu")]
    return [path for path in library if os.path.exists(path)] + sorted(groups)


def find_tools():
    """Returns cuobjdump; puts nvdisasm, which it calls, on the PATH."""
    folders = [os.path.join(home, "bin") for home in native_build.toolkits()]
    os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *folders])
    tools = [shutil.which(name) for name in ("cuobjdump", "nvdisasm", "c++filt")]
    if not all(tools):
        raise SystemExit(
            "the table of CUDA kernels needs cuobjdump, nvdisasm and c++filt: pip install "
            "nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm, and binutils"
        )
    return tools[0]


def main():
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    nvcc = native_build.find_nvcc()
    if not nvcc:
        print("nvcc was not found: the table of CUDA kernels is not checked")
        return
    release = re.search(r"release (\S+),", output(nvcc, "--version"))[1]
    cuobjdump = find_tools()
    rows = measure(nvcc, cuobjdump)
    if not check:
        with open(PAGE, "w") as page:
            page.write(written(rows, datetime.date.today(), release))
        return
    with open(PAGE) as page:
        before, made_with = read(page.read())
    if made_with != release:
        raise SystemExit(f"{PAGE} is for nvcc {made_with}, but this is {release}; rewrite it")
    if problems := worse(rows, before):
        raise SystemExit("\n".join(["worse than docs/measurements/cuda-kernels.md:", *problems]))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        dump = lambda path: output(cuobjdump, "-arch", "sm_90", "-sass", path)
        objects = all_objects(nvcc)
        wrong = [name for text in pool.map(dump, objects) for name in wrong_clamps(text)]
    if wrong:
        raise SystemExit(f"ptxas compiles a clamp incorrectly in {', '.join(wrong)}")
    print(
        f"{len(rows)} CUDA kernels are as docs/measurements/cuda-kernels.md says, or better; "
        f"no wrong clamps in {len(objects)} objects"
    )


if __name__ == "__main__":
    sys.exit(main())
