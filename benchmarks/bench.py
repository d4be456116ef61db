"""Ratios of mpgluon against its peers, measured in one run.

    python benchmarks/bench.py [--cases add,chain] [--rounds 5] [--json FILE]

Every contender lives in a process of its own and they take turns, case by case and round by round, so that whatever else the
machine does hits all of them; the best round of each counts. Times are seconds per step; ratios are rates, ours over
theirs (more is better). Peers that are not installed are left out: PyTorch 2.13 in this environment, MXNet 1.9.1 by
--mxnet-python (it needs an environment of its own, with mxnet==1.9.1 and numpy==1.23.5 on Python 3.11).
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


class Contender:
    """A process that runs cases on request: a line in (case), a line out (seconds or null)."""

    def __init__(self, name, python, script, threads, environment=None):
        self.name = name
        env = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads), **(environment or {}))
        self.process = subprocess.Popen(
            [python, os.path.join(HERE, script), str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        ready = self.process.stdout.readline().strip()
        self.version = json.loads(ready) if ready else None  # None: not installed

    def run(self, case):
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} died in case {case}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def contenders(arguments):
    found = [
        Contender("mpgluon, 2 threads", sys.executable, "work_mpgluon.py", 2),
        Contender("PyTorch, 2 threads", sys.executable, "work_pytorch.py", 2),
        Contender("mpgluon, 1 thread", sys.executable, "work_mpgluon.py", 1),
        Contender("PyTorch, 1 thread", sys.executable, "work_pytorch.py", 1),
    ]
    if arguments.mxnet_python:
        found.append(Contender("MXNet, 2 threads", arguments.mxnet_python, "work_mxnet.py", 2))
    return [c for c in found if c.version]


CASES = {
    "add": "add two 4x4 arrays",
    "chain": "20-op chain, forward and backward",
    "exp": "exp of 4M",
    "softmax": "softmax 4096x1024",
    "sgemm": "product 2048x2048",
    "mlp": "MLP training step",
    "lstm_lm": "LSTM language model, training step",
    "lstm_lm_two_devices": "LSTM language model on cpu(0)+cpu(1)",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mxnet-python", help="the interpreter of an environment with MXNet 1.9.1")
    parser.add_argument("--json", help="a file for the figures")
    arguments = parser.parse_args()
    cases = arguments.cases.split(",")
    unknown = [c for c in cases if c not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]}; cases: {', '.join(CASES)}")
    running = contenders(arguments)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}; " + "; ".join(f"{c.name}: {c.version}" for c in running))
    best = {case: {} for case in cases}
    for case in cases:
        for round_number in range(arguments.rounds):
            for contender in running:
                seconds = contender.run(case)
                if seconds is not None:
                    best[case][contender.name] = min(seconds, best[case].get(contender.name, float("inf")))
                time.sleep(0.02)
    for contender in running:
        contender.close()
    print("\n| case | " + " | ".join(c.name for c in running) + " | ours / PyTorch, 2 threads | 1 thread |")
    print("| --- |" + " --- |" * (len(running) + 2))
    for case in cases:
        row = best[case]
        cells = [f"{row[c.name] * 1e6:,.2f} us" if c.name in row and row[c.name] < 1e-3 else f"{row[c.name] * 1e3:,.2f} ms" if c.name in row else "" for c in running]
        ratios = []
        for threads in ("2 threads", "1 thread"):
            ours, theirs = row.get(f"mpgluon, {threads}"), row.get(f"PyTorch, {threads}")
            ratios.append(f"{theirs / ours:.2f}x the rate" if ours and theirs else "")
        print(f"| {CASES[case]} | " + " | ".join(cells + ratios) + " |")
    two, one = best.get("lstm_lm_two_devices", {}).get("mpgluon, 1 thread"), best.get("lstm_lm", {}).get("mpgluon, 1 thread")
    if two and one:
        print(f"\nLSTM language model on two devices with one thread each, against one device with one thread: {one / two:.2f}x the rate")
    if arguments.json:
        with open(arguments.json, "w") as f:
            json.dump({"versions": {c.name: c.version for c in running}, "seconds": best}, f, indent=1)


if __name__ == "__main__":
    main()
