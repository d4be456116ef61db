"""Limits on the memory and the processor time that reading a file may take.

SECURITY.md states the same numbers. Memory is the growth of the peak resident set, so what NumPy
and Python allocate counts as the core's pools do.
"""

import contextlib
import os
import time

TIMES = 64  # bytes of memory for each byte of a file,
PLUS = 64 << 20  # and for each file
SECONDS = 5
# A sanitizer's shadow memory and its quarantine of freed blocks.
_SANITIZED = 6 if "san.so" in os.environ.get("LD_PRELOAD", "") else 1


def _peak():
    with open("/proc/self/status") as file:
        (line,) = [line for line in file if line.startswith("VmHWM:")]
    return int(line.split()[1]) << 10


def _reset_peak():
    """Lowers the recorded peak to the present size; returns that."""
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
