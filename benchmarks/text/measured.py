"""The loop of a process that models.py measures."""

import gc
import json
import os
import sys
import time

from serve import resident


def spent(function):
    """Returns the seconds of CPU time of all threads, and the elapsed seconds, of a call."""
    cpu, wall = time.process_time(), time.perf_counter()
    function()
    return time.process_time() - cpu, time.perf_counter() - wall


def token_seconds(generate, count):
    """Returns the seconds per new token of `generate(count)`, without the time for the prompt."""
    generate(count)
    (cpu, wall), (all_cpu, all_wall) = [spent(lambda: generate(n)) for n in (1, 1 + count)]
    return {"cpu": (all_cpu - cpu) / count, "wall": (all_wall - wall) / count}


def seconds_of(function, count=1, after=lambda: None):
    """Returns the seconds of a call, divided by `count`. Then calls `after` and frees garbage."""
    cpu, wall = spent(function)
    after()
    gc.collect()
    return {"cpu": cpu / count, "wall": wall / count}


def serve(make):
    """Calls `make(options)`, which returns (function, notes), announces the notes, and answers each
    line of standard input with the result of the function."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    function, notes = make(json.loads(sys.argv[1]))
    print(json.dumps(notes), file=answers, flush=True)
    for _ in sys.stdin:
        answer = function()
        answer["peak"] = resident()[1]
        print(json.dumps(answer), file=answers, flush=True)
