"""Limits on the memory and processor time for reading a file.

SECURITY.md states the same numbers. Memory is the growth of the peak resident set, so it includes
NumPy's and Python's allocations and the core's pools.
"""

import contextlib
import os
import time

TIMES = 64  # bytes of memory per byte of a file,
PLUS = 64 << 20  # plus a constant per file
SECONDS = 5
# Factor for a sanitizer's shadow memory and its quarantine of freed blocks.
_SANITIZED = 6 if "san.so" in os.environ.get("LD_PRELOAD", "") else 1


def _peak():
    with open("/proc/self/status") as file:
        (line,) = [line for line in file if line.startswith("VmHWM:")]
    return int(line.split()[1]) << 10


def _reset_peak():
    """Resets the recorded peak to the current size and returns it."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _peak()


@contextlib.contextmanager
def bounded(size, what="", times=TIMES, plus=PLUS, seconds=SECONDS):
    """Fails if the block takes more memory than `times * size + plus` bytes or too much time."""
    start, begin = _reset_peak(), time.process_time()
    try:
        yield
    finally:
        taken, spent = _peak() - start, time.process_time() - begin
        most = (times * size + plus) * _SANITIZED
        assert taken <= most, f"{what}: {taken >> 20} MiB for a file of {size} bytes"
        assert spent <= seconds * _SANITIZED, f"{what}: {spent:.1f} s for a file of {size} bytes"
