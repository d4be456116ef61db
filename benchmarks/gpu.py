"""Measures one case on a GPU (on_gpu/cases.py), mpgluon against PyTorch.

Prints a line of JSON for each contender that has the case, as soon as it is measured:

    python benchmarks/gpu.py CASE [--seconds 5] [--limit 90] [--libraries mpgluon,PyTorch]

{"case": name, "library": "mpgluon", "version": text, "seconds": per step, "prepared": seconds
until the first measured step} or, on failure, {"case", "library", "error": the end of its output}.
The contenders run one after the other in separate processes, each with the GPU to itself.
`make gpu-check` runs all cases.
"""

import argparse
import json
import subprocess
import sys
import threading
import time

from contender import environment
from on_gpu.cases import BY_NAME

MODULES = {"mpgluon": "on_gpu.in_mpgluon", "PyTorch": "on_gpu.in_pytorch"}


def measure(case, library, seconds, limit):
    settings = dict(case.settings) if library == "mpgluon" else {}
    process = subprocess.Popen(
        [sys.executable, "-m", MODULES[library]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(environment(), **settings),
    )
    late = threading.Timer(limit, process.kill)
    late.start()
    begin = time.monotonic()
    requests = [
        {"time": case.name, "seconds": 0, "apart": case.apart},
        {"time": case.name, "seconds": seconds, "apart": case.apart},
    ]
    said = []
    errors = threading.Thread(target=lambda: said.append(process.stderr.read()), daemon=True)
    errors.start()
    answers, prepared = [], 0.0
    try:
        answers.append(json.loads(process.stdout.readline() or "null"))
        for request in requests if answers[0] else ():
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answers.append(json.loads(process.stdout.readline() or "null"))
            prepared = prepared or time.monotonic() - begin
        process.stdin.close()
    except (BrokenPipeError, json.JSONDecodeError):
        pass  # it died; the reason is reported below
    code = process.wait()
    in_time = late.is_alive()
    late.cancel()
    errors.join(5)
    found = {"case": case.name, "library": library}
    if len(answers) == 3 and answers[1] and answers[2]:
        return dict(found, version=answers[0], seconds=min(answers[1:]), prepared=prepared)
    if in_time and code == 0 and len(answers) == 3:
        return None  # it does not have the case
    if in_time and code == 0:
        return dict(found, error="it is not installed")
    return dict(
        found,
        error=("" if in_time else f"it was stopped after {limit} s; ")
        + (said[0].strip()[-600:] if said and said[0] else f"exit status {code}"),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("case", choices=list(BY_NAME))
    parser.add_argument("--seconds", type=float, default=5, help="of measuring, for each contender")
    parser.add_argument(
        "--limit", type=float, default=90, help="seconds of each contender's process"
    )
    parser.add_argument("--libraries", default=",".join(MODULES))
    arguments = parser.parse_args()
    failed = False
    for library in arguments.libraries.split(","):
        found = measure(BY_NAME[arguments.case], library, arguments.seconds, arguments.limit)
        if found:
            failed |= "error" in found
            print(json.dumps(found), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
