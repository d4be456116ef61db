"""The single ops of cases.py in mpgluon."""

import sys

import mpgluon as mx
from serve import serve
from single_ops.case import SPAN, draw
from single_ops.cases import CASES


def step(function, *arrays):
    for array in arrays:
        if array.grad is None:
            array.attach_grad()
    with mx.autograd.record():
        result = function(*arrays)
    result.backward()
    return arrays[0].grad


def make(case):
    def start():
        dtypes = {name: dtype for name, _, dtype in case.inputs}
        names = {name: mx.nd.array(value, dtype=dtypes[name]) for name, value in draw(case).items()}
        names |= {"F": mx.nd, "np": mx.np, "step": step}
        return eval(f"lambda: {case.ours}", names), mx.nd.waitall

    return start


if __name__ == "__main__":
    mx.context.set_threads(int(sys.argv[1]))
    serve(f"mpgluon {mx.__version__}", {case.name: make(case) for case in CASES}, span=SPAN)
