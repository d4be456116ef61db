"""The single ops of cases.py in mpgluon."""

import sys

import mpgluon as mx
from serve import serve
from single_ops.case import SPAN, draw, twin_name
from single_ops.cases import CASES


def step(function, *arrays):
    for array in arrays:
        if array.grad is None:
            array.attach_grad()
    with mx.autograd.record():
        result = function(*arrays)
    result.backward()
    return arrays[0].grad


def make(case, formula, numpy):
    def start():
        dtypes = {name: dtype for name, _, dtype in case.inputs}
        names = {name: mx.nd.array(value, dtype=dtypes[name]) for name, value in draw(case).items()}
        if numpy:
            names = {name: array.as_np_ndarray() for name, array in names.items()}
        names |= {"F": mx.nd, "np": mx.np, "step": step}
        return eval(f"lambda: {formula}", names), mx.nd.waitall

    return start


if __name__ == "__main__":
    mx.context.set_threads(int(sys.argv[1]))
    cases = {case.name: make(case, case.ours, case.numpy) for case in CASES}
    cases |= {twin_name(case): make(case, case.twin, False) for case in CASES if case.twin}
    serve(f"mpgluon {mx.__version__}", cases, span=SPAN)
