"""Checks on a real GPU, as two commands of ten minutes each:
`make gpu-check OUT=folder WHEEL=folder`, and `make gpu-check-suites` with the same arguments.

    python3 tests/programs/gpu_check.py FOLDER [--do check|suites] [--wheel PATH]
        [--parts build,gpt,...] [--minutes 9.5] [--work FOLDER] [--tiny]

check   installs mpgluon; tests an op of every family; compares captures and fused kernels with ops
        one by one, bit for bit; measures mpgluon against the installed PyTorch (benchmarks/gpu.py),
        the most important cases first
suites  installs mpgluon; runs the test suites on the card, as one GPU and as four logical GPUs, and
        compute-sanitizer's memcheck and racecheck on samples

Requires a machine with a card and a Python with NumPy, and PyTorch for `check`; no internet. With
--wheel, a wheel or a folder of `make gpu-wheel`, it needs no compiler, nvcc, pip or pytest. If no
wheel is compatible or it was built from other sources, it builds the sources, which requires nvcc,
a C compiler, pip, setuptools and ninja. The packages of the Python installation are not changed.

It writes three files to FOLDER: gpu-check.json and gpu-check.md (gpu-suites.*), updated after every
part, and at the end gpu-check-logs.tar.xz. All other files are in --work, by default
build/gpu-check. A failed build ends the check. Any other part that fails or exceeds its time limit
does not prevent later parts. A part without time left counts as failed. The exit status is 0 if all
parts passed.

--tiny runs everything with tiny sizes, for machines without a card: on the stand-in
(MPGLUON_CUDA_LIBRARY), without an installation unless a wheel is given.
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
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # tests

from programs.gpu_parts import package
from programs.gpu_parts.report import count, report, unfinished
from programs.gpu_parts.running import Runner

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(TESTS)
BENCHMARKS = os.path.join(ROOT, "benchmarks")
# The suites of a GPU; the longest are split into as many shards as processes (tests/conftest.py).
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
ONE_GPU = ("gpu/", "ops/test_ops")  # suites that run on one GPU; all others span devices
# Suites that need fused kernels
FUSED = ("gpu/", "graph/", "compile/test_random", "gluon/test_block")
MOST_GPUS = 8  # that a mesh in the suites needs
LONG = ("ops/test_ops.py", "gpu/test_gpu.py")
# The first tests: the file and its number of processes.
FIRST = {"families": ("gpu/test_gpu_families.py", 1), "bits": ("gpu/test_gpu_bits.py", 4)}
SANITIZED = "gpu/test_gpu.py -k test_op_values_match_the_cpu"
SANITIZERS = {"memcheck": "0/20", "racecheck": "3/60"}  # the share of these tests for each tool
FILES = {"check": "gpu-check", "suites": "gpu-suites"}


def own_package():
    """Returns this interpreter's mpgluon folder, either installed or built in the source tree."""
    found = importlib.util.find_spec("mpgluon")
    return os.path.dirname(os.path.dirname(found.origin)) if found else ROOT


def path_of(*folders):
    return os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])


class Check:
    def __init__(self, arguments):
        self.folder, self.tiny = os.path.abspath(arguments.folder), arguments.tiny
        self.do, self.wheel = arguments.do, arguments.wheel and os.path.abspath(arguments.wheel)
        self.wanted = arguments.parts.split(",") if arguments.parts else None
        self.suites = (
            [name.removeprefix("tests/") for name in arguments.tests.split()]
            if arguments.tests
            else SUITES
        )
        cores = os.cpu_count() or 1
        self.workers = arguments.workers or max(1, min(12, cores - 2))
        self.threads = str(max(1, cores // self.workers))  # per suite process
        work = os.path.abspath(arguments.work)
        self.site = os.path.join(work, "site")
        self.lock = threading.Lock()
        self.results = {
            "date": datetime.date.today().isoformat(),
            "do": self.do,
            "tiny": self.tiny,
            "machine": {},
            "package": {},
            "parts": {},
            "cases": {},
            "suites": {},
        }
        os.makedirs(self.folder, exist_ok=True)
        environment = dict(
            os.environ,
            PYTHONUNBUFFERED="1",
            PYTHONPATH=path_of(own_package() if self.tiny and not self.wheel else self.site),
            MPGLUON_CUDA_CACHE=os.environ.get("MPGLUON_CUDA_CACHE", os.path.join(work, "kernels")),
        )
        environment.pop("PYTHONSAFEPATH", None)  # scripts must find modules in their folder
        if self.tiny:
            environment["GPU_CHECK_TINY"] = "1"
        self.runner = Runner(
            os.path.join(work, "logs-" + self.do),
            time.monotonic() + arguments.minutes * 60,
            environment,
        )

    # --- Running ----------------------------------------------------------------------------------

    def run(self, name, command, limit, cwd=ROOT, **settings):
        return self.runner.run(name, command, limit, cwd, **settings)

    def python(self, name, *arguments, limit, **settings):
        return self.run(name, [sys.executable, *arguments], limit, **settings)

    def stopped(self, number, frame):
        """Signal handler: stops all processes; results so far are already written."""
        self.runner.stop()
        self.pack()
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
        """Records the machine's properties; failures are ignored."""
        found = self.results["machine"]
        found.update(
            processor=platform.processor() or platform.machine(),
            cores=os.cpu_count(),
            python=platform.python_version(),
        )
        query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        for key, command in (
            ("card", ["nvidia-smi", *query]),
            ("nvcc", [package.tool("native_build").find_nvcc() or "nvcc", "--version"]),
        ):
            code, _, text = self.run(key, command, 20)
            found[key] = text.strip().splitlines()[-1] if code == 0 and text.strip() else None
        for name in ("numpy", "torch"):
            found[name] = self.version(name)

    def version(self, name):
        code, _, text = self.python(
            "has-" + name, "-c", f"import {name}; print({name}.__version__)", limit=60
        )
        return text.strip().splitlines()[-1] if code == 0 else None

    def build(self):
        """Installs the package; True if it computes on a GPU."""
        begin = time.monotonic()
        shutil.rmtree(self.site, ignore_errors=True)
        found = self.results["package"]
        error = self.installed(found)
        if not error:
            self.results["machine"]["pytest"] = self.version("pytest")
            error = self.tried(found)
        told = error or f"from {found['from']}"
        self.note("build", not error, time.monotonic() - begin, told)
        return not error

    def installed(self, found):
        """Records the origin of the package; returns an error message or None."""
        if self.tiny and not self.wheel:
            found.update({"from": "the package that is there", "why": None, "carried": []})
            stand_in = "hostcuda" in os.environ.get("MPGLUON_CUDA_LIBRARY", "")
            return None if stand_in else "--tiny needs the stand-in, as MPGLUON_CUDA_LIBRARY"
        wheel, why = package.choose(self.wheel)
        found.update({"from": os.path.basename(wheel) if wheel else "the sources", "why": why})
        found["carried"] = package.carried(self.wheel, self.site)
        if wheel:
            return package.unpack(wheel, self.site)
        return why if self.tiny else self.built_from_sources(why)

    def tried(self, found):
        """Runs mpgluon.info and one op; returns an error message or None."""
        code, _, text = self.python("info", "-m", "mpgluon.info", limit=120, cwd=self.folder)
        found["info"] = text.strip().splitlines()
        if code == 0:
            probe = "import mpgluon as mx; print((mx.nd.ones((2,), ctx=mx.gpu(0)) + 1).asnumpy())"
            code, _, text = self.python("gpu", "-c", probe, limit=60, cwd=self.folder)
        return None if code == 0 else text

    def built_from_sources(self, why):
        """Builds from the sources; returns an error message or None."""
        isa = "v3"
        if os.path.exists("/proc/cpuinfo"):
            with open("/proc/cpuinfo") as f:
                isa = "v4" if "avx512dq" in f.read() else "v3"
        options = ["-q", "--no-build-isolation", "--no-deps", "--no-index", "--target", self.site]
        settings = {"MPGLUON_CUDA": "1", "MPGLUON_ISA": isa}
        code, _, text = self.python(
            "build", "-m", "pip", "install", *options, ".", limit=300, **settings
        )
        return None if code == 0 else f"{text}\nThe sources were built because {why}."

    def warm_pytorch(self):
        """Starts PyTorch's compilation of both models in parallel, so that they are cached when
        they are measured."""
        threads = [threading.Thread(target=self.warm, args=(case,)) for case in ("gpt", "resnet")]
        for thread in threads:
            thread.start()
        return threads

    def warm(self, case):
        options = ["--libraries", "PyTorch", "--seconds", "0", "--limit", "200"]
        self.python("warm-" + case, "gpu.py", case, *options, limit=210, cwd=BENCHMARKS)

    def first_tests(self):
        """Runs the families and the bits in parallel, each bits test in a separate process."""
        jobs = []
        for part, (name, shards) in FIRST.items():
            for shard in range(1 if self.tiny else shards) if self.has(part) else ():
                label = f"{part}-{shard}" if shards > 1 and not self.tiny else part
                settings = {} if label == part else {"MPGLUON_TEST_SHARD": f"{shard}/{shards}"}
                jobs.append((label, name, settings))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for _ in pool.map(lambda job: self.suite(job, limit=200), jobs):
                pass

    def benchmarks(self, cases):
        for case in cases:
            if not self.has(case.name):
                continue
            seconds, limit = (0.2, 60) if self.tiny else (4, 75)
            options = ["--seconds", str(seconds), "--limit", str(limit)]
            code, taken, text = self.python(
                case.name, "gpu.py", case.name, *options, limit=2 * limit + 5, cwd=BENCHMARKS
            )
            lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"case"')]
            with self.lock:
                self.results["cases"][case.name] = {line["library"]: line for line in lines}
            errors = [f"{line['library']}: {line['error']}" for line in lines if "error" in line]
            held = code == 0 and not errors and any(line["library"] == "mpgluon" for line in lines)
            self.note(case.name, held, taken, "\n".join(errors) or ("" if held else text))

    def suite_jobs(self, gpus):
        """Yields (part's name, file, settings) of the suites on `gpus` logical GPUs."""
        # Tests require two devices
        devices = ",".join(f"gpu({i})" for i in range(gpus)) if gpus > 1 else "gpu(0),gpu(0)"
        for name in self.suites:
            if gpus == 1 and not name.startswith(ONE_GPU):
                continue
            shards = max(1, self.workers - 2) if name in LONG and not self.tiny else 1
            for shard in range(shards):
                settings = {
                    "MPGLUON_GPU_LOGICAL": str(1 if gpus == 1 else MOST_GPUS),
                    "MPGLUON_TEST_DEVICES": devices,
                    "CUDA_DEVICE_MAX_CONNECTIONS": "8",  # shared by all processes
                    "MPGLUON_CPU_THREADS": self.threads,
                    "OMP_NUM_THREADS": self.threads,
                }
                if not name.startswith(FUSED):
                    settings["MPGLUON_CUDA_NVRTC"] = "0"
                if shards > 1:
                    settings["MPGLUON_TEST_SHARD"] = f"{shard}/{shards}"
                label = f"{os.path.basename(name)[5:-3]}-{gpus}" + (
                    f"-{shard}" if shards > 1 else ""
                )
                yield label, name, settings

    def suite(self, job, limit=300):
        label, name, settings = job
        few = ["-k", "relu or copies or loss"] if self.tiny else []
        options = ["-p", "no:cacheprovider", "-vv", "--tb=short", "-m", "not slow"]
        code, seconds, text = self.python(
            label, "-m", "pytest", *options, name, *few, limit=limit, cwd=TESTS, **settings
        )
        counts, failed = count(text)
        with self.lock:
            self.results["suites"][label] = {
                "file": name,
                "gpus": len(set(settings.get("MPGLUON_TEST_DEVICES", "gpu(0)").split(","))),
                "seconds": round(seconds, 1),
                **counts,
                "failures": failed[:50],
            }
        ran = code == 0 or (code == 5 and self.tiny)  # 5 means that -k selected no test
        stopped = "" if code is not None else f"stopped at: {unfinished(text)}"
        told = [*failed[:10], stopped, "" if failed or stopped else text[-600:]]
        self.note(label, ran, seconds, "" if ran else "\n".join(told).strip())

    def suites_and_sanitizer(self):
        with concurrent.futures.ThreadPoolExecutor(self.workers) as pool:
            waiting = [pool.submit(self.sanitizer, t) for t in SANITIZERS if self.has(t)]
            for gpus in (1, 4):
                if self.has(f"suites-{gpus}"):
                    waiting += [pool.submit(self.suite, job) for job in self.suite_jobs(gpus)]
            for one in waiting:
                one.result()

    def sanitizer(self, tool):
        build = package.tool("native_build")
        places = [os.path.dirname(os.path.realpath(build.find_nvcc() or ""))]
        for home in build.toolkits():
            places += [os.path.join(home, part) for part in ("bin", "compute-sanitizer")]
        name = "compute-sanitizer"
        paths = [name, *(os.path.join(place, name) for place in places)]
        program = next(filter(None, map(shutil.which, paths)), name)
        if self.tiny and not shutil.which(program):
            return self.note(tool, True, 0, "left out: a card's, and there is none")
        # NCCL asks for kernels that its build lacks, which would be reported as API errors.
        command = [program, "--tool", tool, "--error-exitcode", "9", "--target-processes", "all"]
        command += ["--report-api-errors", "no"]
        command += [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
        code, seconds, text = self.run(
            tool,
            [*command, *SANITIZED.split()],
            280,
            cwd=TESTS,
            MPGLUON_TEST_SHARD=SANITIZERS[tool],
            MPGLUON_TEST_DEVICES="gpu(0)",
        )
        found = re.findall(r"ERROR SUMMARY: .*|RACECHECK SUMMARY: .*", text)
        self.note(tool, code == 0, seconds, found[-1] if found else text[-600:])

    # --- Results ----------------------------------------------------------------------------------

    def file(self, ending):
        return os.path.join(self.folder, FILES[self.do] + ending)

    def write(self):
        for path, text in (
            (self.file(".json"), json.dumps(self.results, indent=1)),
            (self.file(".md"), "\n".join(report(self.results)) + "\n"),
        ):
            with open(path + ".new", "w") as f:
                f.write(text)
            os.replace(path + ".new", path)  # atomic

    def pack(self):
        self.runner.pack(self.file("-logs.tar.xz"))

    def all_parts(self, cases):
        """Runs all parts; PyTorch compiles in parallel with the first ones."""
        self.machine()
        warming = []
        if self.do == "check" and not self.tiny and self.has("gpt"):
            warming = self.warm_pytorch()
        if self.has("build") and not self.build():
            return self.runner.stop()
        if self.do == "suites":
            return self.suites_and_sanitizer()
        self.first_tests()
        for thread in warming:
            thread.join()
        self.benchmarks(cases)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--do", choices=list(FILES), default="check")
    parser.add_argument("--wheel", default="", help="a wheel, or a folder of `make gpu-wheel`")
    parser.add_argument(
        "--parts",
        help="of: build, families, bits and the cases of benchmarks/on_gpu/cases.py; or build, "
        "suites-1, suites-4, memcheck, racecheck; default: all",
    )
    parser.add_argument("--minutes", type=float, default=9.5, help="after which all has ended")
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "gpu-check"))
    parser.add_argument("--tests", default="", help="test files of the suites")
    parser.add_argument("--workers", type=int, default=0, help="processes of the suites at a time")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    if arguments.tiny:
        os.environ["GPU_CHECK_TINY"] = "1"
    os.environ.pop("MPGLUON_CUDA", None)  # the build reports a missing nvcc
    sys.path.insert(0, BENCHMARKS)
    from on_gpu import cases as gpu_cases

    check = Check(arguments)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, check.stopped)
    check.all_parts(gpu_cases.CASES)
    check.write()
    check.pack()
    with open(check.file(".md")) as f:
        print(f.read())
    parts = check.results["parts"].values()
    sys.exit(not (parts and all(part["held"] for part in parts)))


if __name__ == "__main__":
    main()
