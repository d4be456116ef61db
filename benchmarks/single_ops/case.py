"""The cases of cases.py and their common shapes."""

from typing import NamedTuple

import numpy as np

# Seconds of calls before a wait; short, so that some are not disturbed by other load
SPAN = 5e-4


class Case(NamedTuple):
    group: str
    title: str
    inputs: tuple  # (name, shape, dtype) of each
    ours: str
    theirs: str
    below: int = 100  # upper bound of random integers
    numpy: bool = False  # the arrays of `ours` are arrays of mx.np
    twin: str = ""  # the same as `ours`, for arrays of mx.nd

    @property
    def name(self):
        return f"{self.group}: {self.title}"


def twin_name(case):
    return f"{case.name} (mx.nd)"


def draw(case):
    """Returns the NumPy array of each input by name; bfloat16 inputs are float32."""
    random, arrays = np.random.RandomState(0), {}
    for name, shape, dtype in case.inputs:
        if dtype in ("float32", "float64", "float16", "bfloat16"):
            arrays[name] = random.standard_normal(shape).astype(
                "float32" if dtype == "bfloat16" else dtype
            )
        else:
            arrays[name] = random.randint(0, case.below, shape).astype(dtype)
    return arrays


def size(shape):
    return "x".join(str(n) for n in shape)


WIDE, TALL, LOW, CUBE, IMAGES = (
    (1000, 1000),
    (100000, 3),
    (3, 100000),
    (64, 128, 7),
    (64, 32, 28, 28),
)


def single(group, op, shape, ours, theirs, dtype="float32", where=""):
    """Returns a case with one array, x."""
    title = f"{op}{where}, {size(shape)}" + (f", {dtype}" if dtype != "float32" else "")
    return Case(group, title, (("x", shape, dtype),), ours, theirs)


def pair(group, op, shapes, ours, theirs, dtype="float32"):
    """Returns a case with two arrays, x and y."""
    title = f"{op}, " + (
        size(shapes[0]) if shapes[0] == shapes[1] else " and ".join(size(s) for s in shapes)
    )
    return Case(
        group,
        title + (f", {dtype}" if dtype != "float32" else ""),
        (("x", shapes[0], dtype), ("y", shapes[1], dtype)),
        ours,
        theirs,
    )
