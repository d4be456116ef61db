"""What every contender does: announce its version, then do what each line of standard input asks
for.

A line is a JSON object, and so is the answer. {"time": case, "seconds": s} asks for seconds per
step, the least over repetitions that together take about s ({"apart": true}: without the wait for
results); {"memory": case, "steps": n} for the memory that n steps take, in a process that has done
nothing else; the answer is null for a case that the contender does not have.
"""

import json
import os
import sys
import time

from cases import PEAK


def resident():
    """(resident bytes now, most there ever were) of this process."""
    with open("/proc/self/status") as f:
        values = dict(line.split(":", 1) for line in f)
    return tuple(int(values[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM"))


def warm_up(function, wait, span):
    """Compiles and settles; the calls that take about `span` seconds together, one at least."""
    function()
    wait()
    start = time.perf_counter()
    function()
    wait()
    return max(1, round(span / (time.perf_counter() - start)))


def best(function, wait, count, seconds, apart=False):
    """Seconds per call: the least over repetitions of `count` calls and one wait for their results,
    two repetitions at least. `apart`: the wait is not counted."""
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
    """`cases`: name -> function returning (step function, wait function), called once, when the
    case is first asked for. `pools`: a function that tells the most bytes the library's own pools
    have had in use, where it knows. `span`: seconds that calls without a wait between take."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
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
                # One case at a time holds memory
                made = {kept: made[kept] for kept in made if kept == PEAK}
                function, wait = cases[case]()
                made[case] = function, wait, warm_up(function, wait, span)
            answer = best(*made[case], request["seconds"], request.get("apart", False))
        print(json.dumps(answer), file=answers, flush=True)
