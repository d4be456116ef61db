"""Coverage-guided fuzzing of file readers with libFuzzer (clang) and Atheris.

    python run.py [--seconds 60] [TARGET ...]        (make fuzz FUZZ_SECONDS=60)

Findings are stored in build/fuzz and give a nonzero exit status. The tests replay the corpus in
corpus/TARGET. Inputs with new coverage are collected in build/fuzz/TARGET. `--merge` adds a minimal
set of the core's new inputs to its corpus. Atheris cannot merge, so the corpora of the other
targets
are chosen by hand.
"""

import argparse
import glob
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
WORK = os.path.join(ROOT, "build", "fuzz")
sys.path.insert(0, os.path.dirname(HERE))  # tests folder, for fuzz.cost
CORE = "core_params"  # the C target, which uses the corpus of params
READERS = (
    *("params", "symbol", "safetensors", "gguf"),
    *("checkpoint", "trainer_states", "parameters"),
)
LIMITS = ["-rss_limit_mb=3000", "-malloc_limit_mb=256", "-timeout=30", "-max_len=8192"]


def clang():
    """Returns the newest clang that can link libFuzzer, or None."""
    names = [*(f"clang-{n}" for n in range(30, 13, -1)), "clang"]
    return next(filter(None, map(shutil.which, names)), None)


def build_core():
    """Builds the fuzzer of the core's reader, without OpenMP, which some clang versions lack."""
    target = os.path.join(WORK, CORE + ".bin")
    core = os.path.join(ROOT, "csrc")
    layers = [
        os.path.join(core, layer, "**", "*.c") for layer in ("base", "device", "tensor", "io")
    ]
    sources = [source for layer in layers for source in sorted(glob.glob(layer, recursive=True))]
    flags = ["-std=gnu11", "-g", "-O1", "-w", "-pthread", "-fsanitize=fuzzer,address,undefined"]
    flags += ["-fno-sanitize-recover=undefined", "-I" + core, "-I" + os.path.join(HERE, "include")]
    sources.append(os.path.join(HERE, "params.c"))
    subprocess.run([clang(), *flags, *sources, "-ldl", "-lm", "-o", target], check=True)
    return target


def fuzz_python(target, arguments):
    """Fuzzes in a separate process, because libFuzzer exits the process."""
    import atheris

    ours = ["symbol", "parallel._checkpoint", "gluon", "ndarray"]
    with atheris.instrument_imports(include=["json", *(f"mpgluon.{name}" for name in ours)]):
        import readers

        import mpgluon as mx
        import mpgluon.parallel
        import mpgluon.symbol  # not loaded with the package
    mx.context.set_memory_limit(mx.cpu(0), readers.LIMIT)
    atheris.Setup([sys.argv[0], *arguments], readers.limited(readers.TARGETS[target]))
    atheris.Fuzz()


def itself(*arguments):
    return [sys.executable, os.path.abspath(__file__), *arguments]


def command(target):
    return [build_core()] if target == CORE else itself("--child", target)


def corpus_of(target):
    return os.path.join(HERE, "corpus", "params" if target == CORE else target)


def fuzz(target, seconds):
    """True if there are no findings."""
    folder, seeds = os.path.join(WORK, target), os.path.join(WORK, "seeds-" + target)
    os.makedirs(folder, exist_ok=True)
    os.makedirs(seeds, exist_ok=True)
    if target != CORE:
        subprocess.run(itself("--seeds", target, seeds), check=True)
    folders = [path for path in (folder, corpus_of(target), seeds) if os.path.isdir(path)]
    options = [f"-max_total_time={seconds}", f"-artifact_prefix={WORK}/{target}-", *LIMITS]
    run = [*command(target), *options, "-print_final_stats=1", *folders]
    log = os.path.join(WORK, target + ".log")
    with open(log, "w") as file:
        done = subprocess.run(run, stdout=file, stderr=subprocess.STDOUT, cwd=WORK)
    with open(log, errors="replace") as file:
        lines = file.read().splitlines()
    if done.returncode:
        print("\n".join(lines[-60:]))
    counts = [line.split()[-1] for line in lines if "number_of_executed_units" in line] or ["?"]
    reached = [line.split("cov: ")[1].split()[0] for line in lines if "cov: " in line] or ["?"]
    result = "FAILED" if done.returncode else "nothing found"
    print(f"{target}: {counts[0]} inputs, coverage {reached[-1]}, {result}", flush=True)
    return done.returncode == 0


def merge():
    os.makedirs(corpus_of(CORE), exist_ok=True)
    folders = [corpus_of(CORE), os.path.join(WORK, CORE)]
    subprocess.run([build_core(), "-merge=1", *LIMITS, *folders], cwd=WORK, check=True)


def write_seeds(target, folder):
    import readers

    for number, data in enumerate(readers.seeds(readers.TARGETS[target])):
        with open(os.path.join(folder, f"seed{number}"), "wb") as file:
            file.write(data)


def main():
    if sys.argv[1:2] == ["--child"]:
        return fuzz_python(sys.argv[2], sys.argv[3:])
    if sys.argv[1:2] == ["--seeds"]:
        return write_seeds(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--merge", action="store_true", help="put what reaches more in the corpus")
    parser.add_argument("targets", nargs="*")
    args = parser.parse_args()
    os.makedirs(WORK, exist_ok=True)
    targets = list(args.targets or (CORE, *READERS))
    if CORE in targets and clang() is None:
        print("there is no clang: the core's reader is fuzzed through Python's only")
        targets.remove(CORE)
    good = [fuzz(target, args.seconds) for target in targets]
    if args.merge and CORE in targets:
        merge()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
