"""The server loop of every contender: announces its version, then answers each line of standard
input.

Requests and answers are JSON objects, one per line. {"time": case, "seconds": s} returns seconds
per step, the minimum over repetitions that take about s in total ({"apart": true} excludes the wait
for results). {"memory": case, "steps": n} returns the memory of n steps in a process without other
work. The answer is null for a case that the contender does not have.
"""

import json
import os
import sys
import time

from cases import PEAK


def resident():
    """Returns (current, peak) resident bytes of this process."""
    with open("/proc/self/status") as f:
        values = dict(line.split(":", 1) for line in f)
    return tuple(int(values[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM"))


def warm_up(function, wait, span):
    """Warms up; returns the number of calls that take about `span` seconds, at least one."""
    function()
    wait()
    start = time.perf_counter()
    function()
    wait()
    return max(1, round(span / (time.perf_counter() - start)))


def best(function, wait, count, seconds, apart=False):
    """Returns the seconds per call: the minimum over at least two repetitions of `count` calls and
    one wait for their results. `apart` excludes the wait."""
    least, spent, repetitions = float("inf"), 0.0, 0
    while repetitions < 2 or spent < seconds:
        start = time.perf_counter()
        for _ in range(count):
            function()
        if not apart:
            wait()
        taken = time.perf_counter() - start
        wait()
        least, spent, repetitions = min(least, taken / count), spent + taken, repetitions + 1
    return least


def measure_memory(make, steps, pools):
    start, _ = resident()
    function, wait = make()
    for _ in range(steps):
        function()
        wait()
    answer = {"imported": start, "peak": resident()[1]}
    if pools:
        answer["pools"] = pools()
    return answer


def serve(version, cases, pools=None, span=0.02):
    """Answers requests. `cases` maps names to functions that return (step function, wait function),
    called once at the first request. `pools` returns the peak bytes in use of the library's own
    pools, if known. `span` is the duration of calls without a wait in between, in seconds."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    print(json.dumps(version), file=answers, flush=True)
    made = {}
    for line in sys.stdin:
        request = json.loads(line)
        case = request.get("time", request.get("memory"))
        if case not in cases:
            answer = None
        elif "memory" in request:
            answer = measure_memory(cases[case], request["steps"], pools)
        else:
            if case not in made:
                # Only one case at a time holds memory
                made = {kept: made[kept] for kept in made if kept == PEAK}
                function, wait = cases[case]()
                made[case] = function, wait, warm_up(function, wait, span)
            answer = best(*made[case], request["seconds"], request.get("apart", False))
        print(json.dumps(answer), file=answers, flush=True)
