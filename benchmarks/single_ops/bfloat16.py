"""Bfloat16 against float32: products and layers, also of PyTorch, and training of whole models.

    python benchmarks/single_ops/bfloat16.py [--threads 1] [--rounds 8] [--only layers|models]

All variants of a case run alternately in one process; the minimum time of all rounds counts. A
model in bfloat16 is trained with multi_precision: its optimizer keeps weights in float32.
"""

import argparse
import os
import sys
import time

import torch
import torch.nn.functional as functional

import mpgluon as mx
from mpgluon import autograd, gluon, nd

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cases_gluon import Cases

DTYPES = ("float32", torch.float32), ("bfloat16", torch.bfloat16)


def turns(calls, rounds):
    """Returns the minimum seconds of each call."""
    best = [float("inf")] * len(calls)
    for call in calls:
        call(), call()
    for _ in range(rounds):
        for i, call in enumerate(calls):
            time.sleep(0.005)  # the other library's threads spin for some time
            start = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def waited(function):
    def call():
        function()
        nd.waitall()

    return call


def compare(title, ours, theirs, shapes, rounds):
    calls = []
    for dtype, torch_dtype in DTYPES:
        arrays = [nd.random.normal(shape=shape).astype(dtype) for shape in shapes]
        tensors = [torch.randn(shape).to(torch_dtype) for shape in shapes]
        calls.append(waited(lambda arrays=arrays: ours(*arrays)))
        calls.append(lambda tensors=tensors: theirs(*tensors))
    row(title, turns(calls, rounds))


def row(title, seconds):
    our_float, their_float, ours, theirs = seconds
    cells = " | ".join(f"{s * 1e3:.2f}" for s in seconds)
    print(f"| {title} | {cells} | {theirs / ours:.2f} | {our_float / ours:.2f} |", flush=True)


def convolution(channels, side, rounds):
    def ours(x, w):
        return nd.Convolution(x, w, kernel=(3, 3), pad=(1, 1), num_filter=channels, no_bias=True)

    shapes = (16, channels, side, side), (channels, channels, 3, 3)
    title = f"3x3 convolution, 16x{channels}x{side}x{side}"
    compare(title, ours, lambda x, w: functional.conv2d(x, w, None, 1, 1), shapes, rounds)


def recurrent(name, rounds, units=512, length=35, batch=20):
    def training(net, x):
        with autograd.record():
            out = net(x)
        out.backward()

    def their_training(net, x):
        with torch.enable_grad():
            net.zero_grad()
            out = net(x)[0]
            out.backward(torch.ones_like(out))

    forward, steps = [], []
    for dtype, torch_dtype in DTYPES:
        net = getattr(gluon.rnn, name)(units, 2, input_size=units)
        net.initialize()
        net.cast(dtype)
        net.hybridize()
        x = nd.random.normal(shape=(length, batch, units)).astype(dtype)
        other = getattr(torch.nn, name)(units, units, 2).to(torch_dtype)
        y = torch.randn(length, batch, units).to(torch_dtype)
        forward.append(waited(lambda net=net, x=x: net(x)))
        forward.append(lambda other=other, y=y: other(y))
        steps.append(waited(lambda net=net, x=x: training(net, x)))
        steps.append(lambda other=other, y=y: their_training(other, y))
    title = f"{name}, 2 layers of {units}, {length} steps of {batch}"
    row(title, turns(forward, rounds))
    row(f"{title}, with gradients", turns(steps, rounds))


def attention(batch, heads, length, size, rounds):
    class Attention(gluon.HybridBlock):
        def hybrid_forward(self, F, q, k, v):
            scores = F.batch_dot(q, k, transpose_b=True) * size**-0.5
            return F.batch_dot(F.softmax(scores), v)

    def theirs(*arrays):
        split = (x.view(batch, heads, length, size) for x in arrays)
        return functional.scaled_dot_product_attention(*split)

    net = Attention()
    net.hybridize()
    shapes = [(batch * heads, length, size)] * 3
    compare(f"attention, {batch}x{heads}x{length}x{size}", net, theirs, shapes, rounds)


class Halves(Cases):
    """The models of bench.py in bfloat16."""

    def images(self, batch):
        return super().images(batch).astype("bfloat16")

    def hybridized(self, net, initialize=True):
        net.initialize()
        net.cast("bfloat16")
        return super().hybridized(net, initialize=False)

    def training(self, net, inputs, *rest, **settings):
        inputs = inputs[:1] + [state.astype("bfloat16") for state in inputs[1:]]
        return super().training(net, inputs, *rest, multi_precision=True, **settings)


def models(rounds):
    print("| training | float32 ms | bfloat16 ms | float32 / bfloat16 |\n| --- | --: | --: | --: |")
    for name in ("gpt", "lstm_lm", "lstm_deep", "resnet18"):
        made = [getattr(cases, name)() for cases in (Cases(mx), Halves(mx))]
        wide, half = turns([waited(step) for step, _ in made], rounds)
        print(f"| {name} | {wide * 1e3:.0f} | {half * 1e3:.0f} | {wide / half:.2f} |", flush=True)


def layers(rounds):
    print("| op | float32 ms | PyTorch | bfloat16 ms | PyTorch | PyTorch / ours | float32 / ours |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    square = [(1024, 1024)] * 2
    compare("dot, 1024x1024", nd.dot, torch.matmul, square, rounds)
    compare(
        "dot, 1024x1024, B transposed",
        lambda x, y: nd.dot(x, y, transpose_b=True),
        lambda x, y: x @ y.T,
        square,
        rounds,
    )
    for channels, side in ((64, 56), (128, 28), (256, 14), (512, 7)):
        convolution(channels, side, rounds)
    for name in ("LSTM", "GRU"):
        recurrent(name, rounds)
    for sizes in ((8, 8, 512, 64), (8, 8, 128, 32), (2, 12, 1024, 64)):
        attention(*sizes, rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", choices=("layers", "models"))
    options = parser.parse_args()
    mx.random.seed(0)
    mx.context.set_threads(options.threads)
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    for part in (layers, models):
        if options.only in (None, part.__name__):
            part(options.rounds)


if __name__ == "__main__":
    main()
