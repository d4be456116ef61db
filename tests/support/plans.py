"""Profiles with synthetic costs for planning."""

import numpy as np

import mpgluon as mx
from mpgluon.parallel import Profile
from mpgluon.parallel._planner.layer_profile import Cost, Layer

CPU = [mx.cpu(i) for i in range(4)]
SCHEDULES = ["gpipe", "1f1b", "zero_bubble"]


def synthetic(seed, layers, devices=2, speeds=None, sources=None, follows=None, rows=16):
    """Random layers on devices whose speeds differ by factors."""
    draw = np.random.RandomState(seed)
    forward = draw.uniform(0.5, 3, layers)
    described = []
    for i in range(layers):
        before = [(i - 1, 4000)] if i else []
        follow = (follows or {}).get(i)
        described.append(
            Layer(
                f"{i}" if follow is None else "",
                "Dense" if follow is None else "join",
                (sources or {}).get(i, before),
                follow,
                {f"w{i}": (1000 * (i + 1), True)} if follow is None else {},
            )
        )
        if follow is not None:
            forward[i] = 0
    costs = {}
    for d, speed in zip(range(devices), speeds or [1] * devices):
        costs[CPU[d]] = {
            n: [
                Cost(
                    *[x * f * speed * (n + 1) / rows * 1e-3 for x in (1, 2.2, 1, 1.2)],
                    300 * n,
                    50 * n,
                )
                for f in forward
            ]
            for n in range(1, rows + 1)
        }
    transfer = {(a, b): (1e-5, 1e-9) for a in CPU[:devices] for b in CPU[:devices] if a != b}
    return Profile(
        described,
        CPU[:devices],
        rows,
        costs,
        dict.fromkeys(CPU[:devices], 1e-10),
        1.0,
        transfer,
        CPU[0],
        1000,
        dict.fromkeys(transfer, 2e-5),
        1e-4,
    )


def square(out, *_):
    return (out**2).mean(axis=1)
