"""What every contender does: announce its version, then run the case named on each line of standard input."""

import json
import sys
import time


def best(function, count, wait, repetitions=3):
    """Seconds per call: the least over repetitions of `count` calls and one wait for their results."""
    function()
    wait()
    least = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        for _ in range(count):
            function()
        wait()
        least = min(least, (time.perf_counter() - start) / count)
    return least


def serve(version, cases):
    """`cases`: name -> function returning (step function, calls per repetition, wait function); made once, on first use."""
    print(json.dumps(version), flush=True)
    made = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in cases:
            print("null", flush=True)
            continue
        if name not in made:
            made[name] = cases[name]()
        function, count, wait = made[name]
        print(json.dumps(best(function, count, wait)), flush=True)
