"""PyTorch's side of pipelines.py: halves of a network by torch.distributed.pipelining, in two
processes with gloo between them, each with as many threads as asked for; and a recurrent network in
one process.

    # serves, as serve.py says
    python benchmarks/work_pytorch_pipelines.py THREADS
    # the second half, started by the first
    python benchmarks/work_pytorch_pipelines.py THREADS CASE SCHEDULE PORT
"""

import os
import socket
import subprocess
import sys

from serve import serve

try:
    import torch
    import torch.distributed as dist
    import torch.nn as nn
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
except ImportError:
    sys.exit(0)

import sizes
from models_torch import TransformerLayer

torch.manual_seed(0)
torch.set_num_threads(int(sys.argv[1]))
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
STEP, STOP = 1, 0


def square_loss(out, _=None):
    return (out.flatten(1) ** 2).mean(dim=1).sum()


def transformer():
    layers = [
        TransformerLayer(sizes.STAGED_UNITS, sizes.STAGED_HEADS) for _ in range(sizes.STAGED_LAYERS)
    ]
    return layers, sizes.STAGED_SHAPE


def mlp():
    widths = sizes.STAGED_MLP
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in zip(widths, widths[1:])]
    return layers, (sizes.STAGED_MLP_BATCH, widths[0])


NETWORKS = {"transformer": transformer, "mlp": mlp}


class Half:
    """One of the two processes' part; the first says what is done."""

    def __init__(self, rank, case, schedule, port):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=2)
        layers, shape = NETWORKS[case]()
        middle = len(layers) // 2
        net = nn.Sequential(*(layers[middle:] if rank else layers[:middle]))
        self.rank, self.x, self.order = rank, torch.ones(shape), torch.zeros((), dtype=torch.int64)
        stage = PipelineStage(net, rank, 2, torch.device("cpu"))
        self.schedule = SCHEDULES[schedule](
            stage, sizes.STAGED_PIECES, loss_fn=square_loss, scale_grads=False
        )
        self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-4 / shape[0])

    def work(self):
        self.optimizer.zero_grad()
        if self.rank:
            self.schedule.step(target=self.x)  # the loss has no use for it
        else:
            self.schedule.step(self.x)
        self.optimizer.step()
        dist.barrier()

    def say(self, order):
        self.order.fill_(order)
        dist.broadcast(self.order, 0)

    def step(self):
        self.say(STEP)
        self.work()

    def follow(self):
        while True:
            dist.broadcast(self.order, 0)
            if self.order.item() == STOP:
                return
            self.work()


class Pipelined:
    """A case; what it starts ends with the next case or the process."""

    running = None

    @classmethod
    def start(cls, case, schedule):
        cls.end()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), sys.argv[1], case, schedule, str(port)],
            stdin=subprocess.DEVNULL,
        )
        half = Half(0, case, schedule, port)
        cls.running = process, half
        return half.step, lambda: None

    @classmethod
    def end(cls):
        if cls.running:
            process, half = cls.running
            cls.running = None
            half.say(STOP)
            dist.destroy_process_group()
            process.wait()


def lstm():
    units, batch, steps = sizes.DEEP_UNITS, sizes.DEEP_BATCH, sizes.DEEP_TIME
    net = nn.LSTM(units, units, sizes.DEEP_LAYERS)
    x, states = (
        torch.ones(steps, batch, units),
        tuple(torch.zeros(sizes.DEEP_LAYERS, batch, units) for _ in range(2)),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4 / batch)

    def step():
        optimizer.zero_grad()
        square_loss(net(x, states)[0]).backward()
        optimizer.step()

    return step, lambda: None


if len(sys.argv) > 2:
    Half(1, *sys.argv[2:]).follow()
    dist.destroy_process_group()
else:
    cases = {
        f"{case}, {schedule}": lambda case=case, schedule=schedule: Pipelined.start(case, schedule)
        for case in NETWORKS
        for schedule in SCHEDULES
    }
    serve(f"PyTorch {torch.__version__}", {**cases, "lstm, 2 threads": lstm})
    Pipelined.end()
