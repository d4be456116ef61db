"""What a way of running leaves behind: objects of Python, and memory."""

import ctypes
import gc
import os
import sys

import mpgluon as mx
from mpgluon import nd
from support.devices import on


class Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


try:
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo
except (AttributeError, OSError):  # another C library
    mallinfo = None


def counts():
    """What there is now, and the least by which a step that leaves anything behind makes it
    more."""
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
    """What `steps` steps leave behind: the least of some rounds, for caches fill up and tables
    grow now and then. By name: (how much, of how much)."""
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
    """What each step leaves behind, by name. What is found must be there in more steps, too:
    tables that grow now and then are not."""
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
