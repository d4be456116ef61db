"""The part of compile_time.py that measures new lengths, with torch.compile."""

import statistics
import time

import torch

import models_torch

LENGTHS = range(16, 64)


def call(net, x, record):
    start = time.perf_counter()
    if record:
        net(x).sum().backward()
    else:
        with torch.no_grad():
            net(x)
    return 1e3 * (time.perf_counter() - start)


def measure(record, dynamic):
    torch._dynamo.reset()
    net = torch.compile(models_torch.GPT(256, 64, 4, 4, 512), dynamic=dynamic)
    inputs = [torch.zeros((1, length), dtype=torch.long) for length in LENGTHS]
    first = call(net, torch.zeros((1, 8), dtype=torch.long), record)
    second = call(net, inputs[0], record)
    new, known = [statistics.median([call(net, x, record) for x in inputs[1:]]) for _ in range(2)]
    print(
        f"torch.compile(dynamic={dynamic}), {'recorded' if record else 'prediction'}: first length "
        f"{first:,.0f} ms, second {second:,.0f} ms, other new lengths {new:.2f} ms, known lengths "
        f"{known:.2f} ms"
    )


if __name__ == "__main__":
    for dynamic in (None, True):
        for record in (False, True):
            measure(record, dynamic)
