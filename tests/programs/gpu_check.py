"""Everything that can be checked on a real GPU, in one command and ten minutes:
`make gpu-check OUT=folder`.

    python3 tests/programs/gpu_check.py FOLDER [--parts build,gpt,...] [--minutes 9.6] [--tiny]

Needs a machine with a card, nvcc, and a Python that has NumPy, pytest, setuptools and PyTorch; no
internet. It builds and installs a copy into FOLDER/site (the Python's own packages stay as they
are), measures mpgluon against that PyTorch (benchmarks/gpu.py), runs the test suites on the card as
one GPU and as four logical ones, and compute-sanitizer on a sample. Benchmarks have the card to
themselves; suites run several at a time.

FOLDER gets gpu-check.json and gpu-check.md, written anew after every part, and a log of each. A
part that fails or takes longer than it may keeps no other from running; so does one for which no
time is left, which counts as failed. Exit status: 0 when all parts held.

--tiny tries the whole with tiny sizes, for machines without a card: with the stand-in
(MPGLUON_CUDA_LIBRARY), without installing anything.
"""

import argparse
import concurrent.futures
import datetime
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(TESTS)
BENCHMARKS = os.path.join(ROOT, "benchmarks")
# The suites of a GPU; the longest ones in as many parts as there are processes to run them
# (tests/conftest.py).
SUITES = [
    "ops/test_ops.py",
    "gpu/test_gpu.py",
    "gpu/test_gpu_fused.py",
    "gpu/test_gpu_libraries.py",
    "parallel/test_model_parallel.py",
    "pipeline/test_pipeline.py",
    "parallel/test_collectives.py",
    "gluon/test_trainer.py",
]
ONE_GPU = ("gpu/", "ops/test_ops")  # what makes sense on one; all the others span devices
RESERVED = 150  # seconds that the benchmarks leave to the suites
LONG = ("ops/test_ops.py", "gpu/test_gpu.py")
SANITIZED = "gpu/test_gpu.py -k test_values_are_those_of_the_cpu"


def own_package():
    """Where this interpreter finds mpgluon: in its environment, or built beside its sources."""
    found = importlib.util.find_spec("mpgluon")
    return os.path.dirname(os.path.dirname(found.origin)) if found else ROOT


def python_with(*folders):
    return os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])


class Check:
    def __init__(self, arguments):
        self.folder, self.tiny = os.path.abspath(arguments.folder), arguments.tiny
        self.end = time.monotonic() + arguments.minutes * 60
        self.wanted = arguments.parts.split(",") if arguments.parts else None
        self.suites = (
            [name.removeprefix("tests/") for name in arguments.tests.split()]
            if arguments.tests
            else SUITES
        )
        self.workers = arguments.workers or max(1, min(12, (os.cpu_count() or 1) - 2))
        self.threads = str(max(1, (os.cpu_count() or 1) // self.workers))  # of a suite's process
        self.site = os.path.join(self.folder, "site")
        self.lock = threading.Lock()
        self.running = set()
        self.results = {
            "date": datetime.date.today().isoformat(),
            "tiny": self.tiny,
            "machine": {},
            "parts": {},
            "cases": {},
            "suites": {},
        }
        os.makedirs(self.folder, exist_ok=True)
        self.environment = dict(
            os.environ,
            PYTHONUNBUFFERED="1",
            PYTHONPATH=python_with(own_package() if self.tiny else self.site),
        )
        self.environment.pop("PYTHONSAFEPATH", None)  # a script finds what lies beside it
        if self.tiny:
            self.environment["GPU_CHECK_TINY"] = "1"

    # --- Running ----------------------------------------------------------------------------------

    def left(self):
        return self.end - time.monotonic()

    def run(self, name, command, limit, cwd=ROOT, **settings):
        """(exit status, None where it was stopped; seconds; the log's text). The whole process
        group is stopped."""
        limit, begin = min(limit, self.left()), time.monotonic()
        path = os.path.join(self.folder, name + ".log")
        with open(path, "w") as log:
            if limit < 1:
                log.write("there was no time left for it\n")
                code = None
            else:
                try:
                    process = subprocess.Popen(
                        command,
                        cwd=cwd,
                        env=dict(self.environment, **settings),
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        stdin=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                    self.running.add(process.pid)
                    code = self.wait(process, limit)
                    self.running.discard(process.pid)
                except OSError as error:
                    log.write(f"{error}\n")
                    code = 127
        with open(path, errors="replace") as log:
            return code, time.monotonic() - begin, log.read()

    @staticmethod
    def wait(process, limit):
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None

    def stopped(self, number, frame):
        """Somebody ends the check: what it has found is written already, and what it started does
        not go on."""
        for pid in list(self.running):
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has just ended
        os._exit(128 + number)

    def note(self, part, held, seconds, told=""):
        with self.lock:
            self.results["parts"][part] = {
                "held": bool(held),
                "seconds": round(seconds, 1),
                "told": told[-1500:],
            }
            self.write()
        print(
            f"{part}: {'held' if held else 'FAILED'}, {seconds:.0f} s"
            + (f"; {told.strip().splitlines()[-1][:200]}" if told.strip() else ""),
            flush=True,
        )

    def has(self, part):
        return self.wanted is None or part in self.wanted

    # --- Parts ------------------------------------------------------------------------------------

    def machine(self):
        """What there is; never a reason not to go on."""
        found = self.results["machine"]
        found.update(
            processor=platform.processor() or platform.machine(),
            cores=os.cpu_count(),
            python=platform.python_version(),
        )
        for key, command in (
            (
                "card",
                [
                    "nvidia-smi",
                    "--query-gpu=name,memory.total,driver_version",
                    "--format=csv,noheader",
                ],
            ),
            ("nvcc", [self.nvcc() or "nvcc", "--version"]),
        ):
            code, _, text = self.run(key, command, 20)
            found[key] = text.strip().splitlines()[-1] if code == 0 and text.strip() else None
        for name in ("numpy", "torch", "pytest"):
            code, _, text = self.run(
                "has-" + name,
                [sys.executable, "-c", f"import {name}; print({name}.__version__)"],
                60,
            )
            found[name] = text.strip().splitlines()[-1] if code == 0 else None

    @staticmethod
    def tools():
        spec = importlib.util.spec_from_file_location(
            "mpgluon_build", os.path.join(ROOT, "tools", "native_build.py")
        )
        tools = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(tools)
        return tools

    def nvcc(self):
        return self.tools().find_nvcc()

    def build(self):
        if self.tiny:
            held = "hostcuda" in os.environ.get("MPGLUON_CUDA_LIBRARY", "")
            return self.note(
                "build",
                held,
                0,
                ""
                if held
                else "--tiny needs MPGLUON_CUDA_LIBRARY=build/hostcuda/mpgluon_hostcuda.so",
            )
        shutil.rmtree(self.site, ignore_errors=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-build-isolation",
            "--no-deps",
            "--no-index",
            "--target",
            self.site,
            ".",
        ]
        isa = "v4" if "avx512dq" in open("/proc/cpuinfo").read() else "v3"
        code, seconds, text = self.run("build", command, 240, MPGLUON_CUDA="1", MPGLUON_ISA=isa)
        code_info, more, info = self.run(
            "info", [sys.executable, "-m", "mpgluon.info"], 60, cwd=self.folder
        )
        code_gpu, again, found = self.run(
            "gpu",
            [
                sys.executable,
                "-c",
                "import mpgluon as mx; print((mx.nd.ones((2,), ctx=mx.gpu(0)) + 1).asnumpy())",
            ],
            60,
            cwd=self.folder,
        )
        held = code == 0 and code_info == 0 and code_gpu == 0
        self.note(
            "build",
            held,
            seconds + more + again,
            "" if held else text if code else info if code_info else found,
        )

    def warm_pytorch(self):
        """PyTorch compiles its models while we build ours, so that its cache has them."""
        for case in ("gpt", "resnet"):
            self.run(
                "warm-" + case,
                [
                    sys.executable,
                    "gpu.py",
                    case,
                    "--libraries",
                    "PyTorch",
                    "--seconds",
                    "0",
                    "--limit",
                    "200",
                ],
                210,
                cwd=BENCHMARKS,
            )

    def benchmarks(self, cases):
        for case in cases:
            if not self.has(case.name):
                continue
            seconds, limit = (0.2, 60) if self.tiny else (4, 75)
            most = (
                min(2 * limit + 5, self.left() - RESERVED)
                if self.has("suites-1") or self.has("suites-4")
                else 2 * limit + 5
            )
            code, taken, text = self.run(
                case.name,
                [
                    sys.executable,
                    "gpu.py",
                    case.name,
                    "--seconds",
                    str(seconds),
                    "--limit",
                    str(limit),
                ],
                most,
                cwd=BENCHMARKS,
            )
            lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"case"')]
            with self.lock:
                self.results["cases"][case.name] = {line["library"]: line for line in lines}
            errors = [f"{line['library']}: {line['error']}" for line in lines if "error" in line]
            held = code == 0 and not errors and any(line["library"] == "mpgluon" for line in lines)
            self.note(case.name, held, taken, "\n".join(errors) or ("" if held else text))

    def suite_jobs(self, gpus):
        """(part's name, pytest's arguments, settings) of the suites on so many logical GPUs."""
        # Tests want two
        devices = ",".join(f"gpu({i})" for i in range(gpus)) if gpus > 1 else "gpu(0),gpu(0)"
        for name in self.suites:
            if gpus == 1 and not name.startswith(ONE_GPU):
                continue
            shards = max(1, self.workers - 2) if name in LONG and not self.tiny else 1
            for shard in range(shards):
                settings = {
                    "MPGLUON_GPU_LOGICAL": str(gpus),
                    "MPGLUON_TEST_DEVICES": devices,
                    "MPGLUON_CPU_THREADS": self.threads,
                    "OMP_NUM_THREADS": self.threads,
                }
                if shards > 1:
                    settings["MPGLUON_TEST_SHARD"] = f"{shard}/{shards}"
                label = f"{os.path.basename(name)[5:-3]}-{gpus}" + (
                    f"-{shard}" if shards > 1 else ""
                )
                yield label, name, settings

    def suite(self, job):
        label, name, settings = job
        few = ["-k", "relu or copies"] if self.tiny else []
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-vv",
            "--tb=short",
            "-m",
            "not slow",
            name,
            *few,
        ]
        code, seconds, text = self.run(label, command, 300, cwd=TESTS, **settings)
        counts, failed = count(text)
        with self.lock:
            self.results["suites"][label] = {
                "file": name,
                "gpus": int(settings["MPGLUON_GPU_LOGICAL"]),
                "seconds": round(seconds, 1),
                **counts,
                "failures": failed[:50],
            }
        ran = code == 0 or (code == 5 and self.tiny)  # 5: -k chose none
        stopped = "" if code is not None else f"stopped at: {unfinished(text)}"
        self.note(
            label,
            ran,
            seconds,
            ""
            if ran
            else "\n".join(
                [*failed[:10], stopped, "" if failed or stopped else text[-600:]]
            ).strip(),
        )

    def suites_and_sanitizer(self):
        with concurrent.futures.ThreadPoolExecutor(self.workers) as pool:
            waiting = [
                pool.submit(self.sanitizer, tool)
                for tool in ("memcheck", "racecheck")
                if self.has("sanitizer")
            ]
            for gpus in (1, 4):
                if self.has(f"suites-{gpus}"):
                    waiting += [pool.submit(self.suite, job) for job in self.suite_jobs(gpus)]
            for one in waiting:
                one.result()

    def sanitizer(self, tool):
        places = [
            os.path.dirname(os.path.realpath(self.nvcc() or "")),
            *(
                os.path.join(home, part)
                for home in self.tools().toolkits()
                for part in ("bin", "compute-sanitizer")
            ),
        ]
        program = next(
            filter(
                None,
                (
                    shutil.which(place)
                    for place in [
                        "compute-sanitizer",
                        *(os.path.join(p, "compute-sanitizer") for p in places),
                    ]
                ),
            ),
            "compute-sanitizer",
        )
        command = [
            program,
            "--tool",
            tool,
            "--error-exitcode",
            "9",
            "--target-processes",
            "all",
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-q",
            *SANITIZED.split(),
        ]
        if self.tiny and not shutil.which(program):
            return self.note(tool, True, 0, "left out: a card's, and there is none")
        share = "0/20" if tool == "memcheck" else "3/60"
        code, seconds, text = self.run(
            tool, command, 280, cwd=TESTS, MPGLUON_TEST_SHARD=share, MPGLUON_TEST_DEVICES="gpu(0)"
        )
        found = re.findall(r"ERROR SUMMARY: .*|RACECHECK SUMMARY: .*", text)
        self.note(tool, code == 0, seconds, found[-1] if found else text[-600:])

    # --- Results ----------------------------------------------------------------------------------

    def write(self):
        for name, text in (
            ("gpu-check.json", json.dumps(self.results, indent=1)),
            ("gpu-check.md", "\n".join(report(self.results)) + "\n"),
        ):
            path = os.path.join(self.folder, name)
            with open(path + ".new", "w") as f:
                f.write(text)
            os.replace(path + ".new", path)  # whole at any moment


def count(text):
    """How pytest -v says its tests ended, also where it was stopped; and the names of those that
    failed."""
    ended = re.findall(r"^(\S+::.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b", text, re.M)
    counts = {
        key: sum(1 for _, how in ended if how == how_said)
        for key, how_said in (
            ("passed", "PASSED"),
            ("failed", "FAILED"),
            ("errors", "ERROR"),
            ("skipped", "SKIPPED"),
        )
    }
    return counts, [name for name, how in ended if how in ("FAILED", "ERROR")]


def unfinished(text):
    last = text.strip().splitlines()[-1] if text.strip() else ""
    return last[:200]


def report(results):
    """Markdown lines."""
    from on_gpu import cases as gpu_cases

    machine, card = results["machine"], results["machine"].get("card")
    yield f"# GPU check of {results['date']}\n"
    if results["tiny"]:
        yield "Tiny sizes, to try the check itself: the figures mean nothing.\n"
    yield (
        f"{card or 'no card'}; {machine.get('cores')} cores; Python {machine.get('python')}, NumPy "
        f"{machine.get('numpy')}, PyTorch {machine.get('torch')}.\n"
    )
    yield "| case | mpgluon | PyTorch | rate against it | wanted | of the product's rate |"
    yield "| --- | --- | --- | --- | --- | --- |"
    products = [
        line["seconds"]
        for line in results["cases"].get("product", {}).values()
        if "seconds" in line
    ]
    peak = gpu_cases.BY_NAME["product"].flops() / min(products) if products else 0
    for case in gpu_cases.CASES:
        found = results["cases"].get(case.name)
        if not found:
            continue
        yield row(
            case,
            found,
            results["cases"].get(case.against, {}).get("mpgluon", {})
            if case.against
            else found.get("PyTorch", {}),
            peak,
        )
    yield "\n| suite | GPUs | passed | failed | skipped |"
    yield "| --- | --- | --- | --- | --- |"
    sums = {}
    for found in results["suites"].values():
        total = sums.setdefault((found["file"], found["gpus"]), [0, 0, 0])
        for i, value in enumerate(
            (found["passed"], found["failed"] + found["errors"], found["skipped"])
        ):
            total[i] += value
    for (name, gpus), total in sorted(sums.items()):
        yield f"| {name} | {gpus} | {total[0]} | {total[1]} | {total[2]} |"
    failed = {part: found for part, found in results["parts"].items() if not found["held"]}
    yield f"\n{len(results['parts']) - len(failed)} of {len(results['parts'])} parts held."
    for part, found in failed.items():
        yield f"\n## {part}, after {found['seconds']} s\n\n```\n{found['told'].strip()}\n```"


def row(case, found, other, peak):
    ours, theirs = found.get("mpgluon", {}), found.get("PyTorch", {})
    ratio = other["seconds"] / ours["seconds"] if "seconds" in ours and "seconds" in other else None

    def rate(line):
        if "seconds" not in line:
            return "failed" if "error" in line else ""
        if case.items:
            return f"{case.items / line['seconds']:,.0f} {case.unit}"
        return f"{line['seconds'] * 1e3:.3f} ms"

    share = (
        f"{case.flops() / ours['seconds'] / peak:.0%}"
        if case.flops() and peak and "seconds" in ours
        else ""
    )
    told = "" if ratio is None else f"{ratio:.2f}x" + (" (of one GPU)" if case.against else "")
    wanted = (
        ""
        if case.wanted is None
        else f">= {case.wanted}"
        + ("" if ratio is None else ", holds" if ratio >= case.wanted else ", MISSED")
    )
    return f"| {case.title} | {rate(ours)} | {rate(theirs)} | {told} | {wanted} | {share} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument(
        "--parts",
        help="of: build, suites-1, suites-4, sanitizer, and the cases of "
        "benchmarks/on_gpu/cases.py; default: all",
    )
    parser.add_argument(
        "--minutes", type=float, default=9.6, help="after which everything has ended"
    )
    parser.add_argument("--tests", default="", help="test files of the suites")
    parser.add_argument("--workers", type=int, default=0, help="processes of the suites at a time")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    sys.path.insert(0, BENCHMARKS)
    if arguments.tiny:
        os.environ["GPU_CHECK_TINY"] = "1"
    from on_gpu import cases as gpu_cases

    check = Check(arguments)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, check.stopped)
    check.machine()
    warming = threading.Thread(
        target=check.warm_pytorch if not check.tiny and check.has("gpt") else lambda: None
    )
    warming.start()
    if check.has("build"):
        check.build()
    warming.join()
    check.benchmarks(gpu_cases.CASES)
    check.suites_and_sanitizer()
    check.write()
    with open(os.path.join(check.folder, "gpu-check.md")) as f:
        print(f.read())
    sys.exit(not all(part["held"] for part in check.results["parts"].values()))


if __name__ == "__main__":
    main()
