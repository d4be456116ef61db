"""PyTorch's part of the multi-device training benchmarks. Two processes with gloo, each with the
requested number of threads, train halves of a network by torch.distributed.pipelining or replicas
by DistributedDataParallel. A recurrent network trains in one process.

    # serves requests as in serve.py
    python benchmarks/work_pytorch_distributed.py THREADS
    # the second process, started by the first
    python benchmarks/work_pytorch_distributed.py THREADS CASE WAY PORT
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
    import torch.nn.functional as F
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
except ImportError:
    sys.exit(0)

import sizes
from models_torch import TransformerLayer, resnet18

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
    """The part of one of the two processes in a pipeline."""

    def __init__(self, rank, case, schedule):
        layers, shape = NETWORKS[case]()
        middle = len(layers) // 2
        net = nn.Sequential(*(layers[middle:] if rank else layers[:middle]))
        self.rank, self.x = rank, torch.ones(shape)
        stage = PipelineStage(net, rank, 2, torch.device("cpu"))
        self.schedule = SCHEDULES[schedule](
            stage, sizes.STAGED_PIECES, loss_fn=square_loss, scale_grads=False
        )
        self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-4 / shape[0])

    def train(self):
        self.optimizer.zero_grad()
        if self.rank:
            self.schedule.step(target=self.x)  # the loss ignores the target
        else:
            self.schedule.step(self.x)
        self.optimizer.step()


class Replica:
    """The copy of a network in one of the two processes, which trains half a batch."""

    def __init__(self, rank, case, way):
        net = resnet18().to(memory_format=torch.channels_last)
        batch = sizes.RESNET_BATCH // 2
        self.net = nn.parallel.DistributedDataParallel(net)
        side = sizes.RESNET_IMAGE
        self.x = torch.randn(batch, 3, side, side).to(memory_format=torch.channels_last)
        self.y = torch.randint(0, sizes.RESNET_CLASSES, (batch,))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def train(self):
        self.optimizer.zero_grad()
        F.cross_entropy(self.net(self.x), self.y).backward()
        self.optimizer.step()


CASES = {f"{case}, {schedule}": Half for case in NETWORKS for schedule in SCHEDULES}
CASES["resnet18, replicas"] = Replica


class Process:
    """One of the two processes; the first one sends the commands."""

    def __init__(self, rank, case, way, port):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=2)
        self.part = CASES[f"{case}, {way}"](rank, case, way)
        self.order = torch.zeros((), dtype=torch.int64)

    def work(self):
        self.part.train()
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


class Pair:
    """The parent's view of a case; its child process ends with the next case or with this
    process."""

    running = None

    @classmethod
    def start(cls, name):
        cls.end()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        case, way = name.split(", ")
        second = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), sys.argv[1], case, way, str(port)],
            stdin=subprocess.DEVNULL,
        )
        first = Process(0, case, way, port)
        cls.running = second, first
        return first.step, lambda: None

    @classmethod
    def end(cls):
        if cls.running:
            second, first = cls.running
            cls.running = None
            first.say(STOP)
            dist.destroy_process_group()
            second.wait()


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
    Process(1, *sys.argv[2:]).follow()
    dist.destroy_process_group()
else:
    cases = {name: lambda name=name: Pair.start(name) for name in CASES}
    serve(f"PyTorch {torch.__version__}", {**cases, "lstm, 2 threads": lstm})
    Pair.end()
