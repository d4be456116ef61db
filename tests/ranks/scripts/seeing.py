"""Clock offsets between two ranks and a merged trace of both.

mpirun -n 2 python seeing.py TRACE
"""

import sys
import time

import mpgluon as mx
from mpgluon import nd, parallel as par
from mpgluon._internal.ranks import links
from mpgluon.gluon import nn

RANK = par.rank()
DEVICES = [mx.cpu(0, rank=i) for i in range(par.num_ranks())]
AHEAD = [0, 7_000_000_000]  # simulated clock offset of each rank in nanoseconds


def clock():
    return time.monotonic_ns() + AHEAD[RANK]


offsets = links.clock_offsets(clock)
assert offsets[0] == 0 and abs(offsets[1] - AHEAD[1]) < 20_000_000, offsets  # same machine
assert links.gather_to_first("names", f"rank {RANK}") == (None if RANK else ["rank 0", "rank 1"])

mx.profiler.set_config(filename=sys.argv[1])
mx.profiler.start()
task = mx.profiler.Task(mx.profiler.Domain("own"), f"task of {RANK}")
task.start()
x = nd.ones((8, 8), ctx=DEVICES[0])
for _ in range(2):
    for device in (DEVICES[1], DEVICES[0]):
        x = nd.dot(x, x).as_in_context(device)
        nd.waitall()
        par.barrier()
        time.sleep(0.05)  # longer than the error of clock offsets on a busy machine
par.fetch(x).wait_to_read()
task.stop()
mx.profiler.dump()
par.barrier()
net = nn.HybridSequential()
net.add(nn.Dense(4, in_units=3), nn.Dense(2, in_units=4))
net.initialize(ctx=DEVICES[0])
net.place({"0": DEVICES[0], "1": DEVICES[1]})
print(f"rank {RANK} done", flush=True)
