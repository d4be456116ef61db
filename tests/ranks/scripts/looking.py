"""Measures how often a rank polls for an awaited message while its device computes.

mpirun -n 2 python looking.py
"""

import glob
import time

import mpgluon as mx
from mpgluon import nd, parallel as par

RANK = par.rank()
DEVICES = [mx.cpu(0, rank=rank) for rank in range(par.num_ranks())]


def wake_ups():
    """Returns how often all threads other than the devices' threads have gone to sleep."""
    count = 0
    for path in glob.glob("/proc/self/task/*/status"):
        with open(path) as file:
            lines = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        if not lines["Name"].startswith("cpu("):
            count += int(lines["voluntary_ctxt_switches"])
    return count


def compute():
    """Both devices compute. Then one device sends its result to the other."""
    products = []
    for device in DEVICES:
        x = nd.ones((512, 512), ctx=device)
        for _ in range(300):
            x = nd.dot(x, x) / 512
        products.append(x)
    return products[0].as_in_context(DEVICES[1])


compute()
nd.waitall()
par.barrier()
before, begin = wake_ups(), time.perf_counter()
compute()
nd.waitall()
seconds = time.perf_counter() - begin
print(f"rank {RANK}: {(wake_ups() - before) / seconds:.0f} a second", flush=True)
