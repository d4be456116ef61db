"""Leaks of Python objects and memory."""

import ctypes
import gc
import os
import sys

import mpgluon as mx
from mpgluon import nd
from support.devices import on

FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS.split()]


try:
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo
except (AttributeError, OSError):  # another C library
    mallinfo = None


def counts():
    """Returns current counts, and the smallest increase per step that indicates a leak."""
    nd.waitall()
    gc.collect()
    found = {"blocks of Python": (sys.getallocatedblocks(), 1)}
    if mallinfo:
        there = mallinfo()
        found["bytes of malloc"] = there.uordblks + there.hblkhd, 16
    for ctx in (on(0), on(1)):
        found[f"bytes in use of {ctx}"] = mx.context.memory_stats(ctx)["in_use"], 1
    if hasattr(sys, "gettotalrefcount"):
        found["references"] = sys.gettotalrefcount(), 1
    return found


def left(step, steps, rounds=3):
    """Returns the growth caused by `steps` steps as a dict of name -> (amount, unit).

    Takes the minimum of several rounds, because caches fill up and tables grow occasionally.
    """
    least = {}
    before = counts()
    for _ in range(rounds):
        for _ in range(steps):
            step()
        after = counts()
        for name, (count, unit) in after.items():
            more = count - before[name][0]
            least[name] = min(least.get(name, (more,))[0], more), unit
        before = after
    return least


def leaks(step, steps, rounds=3):
    """Returns the leaks per step by name.

    A leak must persist with more steps, which excludes tables that grow occasionally.
    """
    for factor in (1, 4, 16, 64, 256):
        found = {
            name: (count, count / (steps * factor * unit))
            for name, (count, unit) in left(step, steps * factor, rounds).items()
        }
        found = {name: count for name, (count, share) in found.items() if share >= 0.5}
        if not found:
            break
    return found


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
