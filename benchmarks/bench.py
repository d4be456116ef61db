"""Compares mpgluon with other libraries in one run.

    python benchmarks/bench.py [--cases mlp,gpt] [--threads 2,1] [--rounds 5] [--json FILE [--add]]
    [--mxnet-python PYTHON]

Every contender runs in a separate process. They take turns case by case and round by round, so that
other load on the machine affects all of them; the best round of each counts. A large matrix product
is measured with every case and shows the machine's peak at that time. Memory is measured
separately, in a fresh process per case and contender. Libraries that are not installed are skipped:
PyTorch 2.13 in this environment, MXNet 1.9.1 by --mxnet-python (it needs a separate environment
with mxnet==1.9.1 and numpy==1.23.5 on Python 3.11).

JSON format: {"machine": text, "libraries": {name: version}, "cases": {case: {threads: {"seconds":
{library: s}, "peak": {library: s}}}}, "memory": {case: {library: {"imported": bytes, "peak": bytes,
"pools": bytes}}}}.
"""

import argparse
import json
import os
import platform
import sys
import time

from cases import BY_NAME, CASES, PEAK
from contender import Contender, libraries
from report import tables


def progress(text):
    print(text, file=sys.stderr, flush=True)


def processor():
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.split(":")[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def keep_least(best, key, seconds):
    if seconds is not None:
        best[key] = min(seconds, best.get(key, float("inf")))


def measure_speed(figures, case, contenders, arguments):
    """Updates the figures with the minimum of old and new runs."""
    taking_part = [c for c in contenders if not case.threads or c.threads in case.threads]
    rows = figures["cases"].setdefault(case.name, {})
    for round_number in range(arguments.rounds):
        for contender in taking_part:
            row = rows.setdefault(str(contender.threads), {"seconds": {}, "peak": {}})
            keep_least(
                row["seconds"],
                contender.library,
                contender.ask(time=case.name, seconds=arguments.seconds),
            )
            if case.flops:
                keep_least(row["peak"], contender.library, contender.ask(time=PEAK, seconds=0))
            time.sleep(0.02)
        told = ", ".join(
            f"{library} {seconds * 1e3:.3f} ms" + (f" ({threads} thr.)" if len(rows) > 1 else "")
            for threads, row in rows.items()
            for library, seconds in row["seconds"].items()
        )
        progress(f"{case.name} {round_number + 1}/{arguments.rounds}: {told}")


def measure_memory(figures, case, arguments):
    threads = max(arguments.threads)
    for library, python, module in libraries(arguments.mxnet_python):
        contender = Contender(library, threads, python, module)
        if not contender.version:
            continue
        figures["libraries"][library] = contender.version
        answer = contender.ask(memory=case.name, steps=3)
        contender.close()
        if answer:
            figures["memory"].setdefault(case.name, {})[library] = answer
            progress(
                f"{case.name}, memory: {library} "
                f"{(answer['peak'] - answer['imported']) / 2**20:.0f} MiB"
            )


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", default=",".join(BY_NAME), help="of: " + ", ".join(BY_NAME))
    parser.add_argument(
        "--threads", default="2,1", help="threads per device; every one is a contender"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="of measuring per round and contender"
    )
    parser.add_argument("--measure", choices=("speed", "memory", "both"), default="both")
    parser.add_argument("--mxnet-python", help="the interpreter of an environment with MXNet 1.9.1")
    parser.add_argument("--json", help="a file for the figures")
    parser.add_argument("--add", action="store_true", help="to the figures that are in the file")
    arguments = parser.parse_args()
    arguments.cases = arguments.cases.split(",")
    arguments.threads = [int(count) for count in arguments.threads.split(",")]
    unknown = [name for name in arguments.cases if name not in BY_NAME]
    if unknown:
        parser.error(f"unknown case {unknown[0]}; cases: {', '.join(BY_NAME)}")
    return arguments


def main():
    arguments = parse()
    figures = {
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "libraries": {},
        "cases": {},
        "memory": {},
    }
    if arguments.add and arguments.json and os.path.exists(arguments.json):
        with open(arguments.json) as f:
            figures = json.load(f)
    progress(f"{figures['machine']}, load {os.getloadavg()[0]:.2f}")
    chosen = [case for case in CASES if case.name in arguments.cases]
    if arguments.measure != "memory":
        contenders = [
            Contender(*entry[:1], count, *entry[1:])
            for count in arguments.threads
            for entry in libraries(arguments.mxnet_python)
        ]
        contenders = [c for c in contenders if c.version]
        figures["libraries"].update({c.library: c.version for c in contenders})
        for case in chosen:
            measure_speed(figures, case, contenders, arguments)
        for contender in contenders:
            contender.close()
    if arguments.measure != "speed":
        for case in chosen:
            if case.training:
                measure_memory(figures, case, arguments)
    progress(f"load at the end {os.getloadavg()[0]:.2f}")
    if arguments.json:
        with open(arguments.json, "w") as f:
            json.dump(figures, f, indent=1)
    print("; ".join(figures["libraries"].values()))
    print("\n".join(tables(figures)))


if __name__ == "__main__":
    main()
