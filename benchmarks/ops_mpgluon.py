"""The single ops of ops_cases.py in mpgluon."""

import sys

import mpgluon as mx
from ops_cases import CASES, SPAN, clock_of, draw
from serve import serve

mx.context.set_threads(int(sys.argv[1]))


def make(case):
    def start():
        dtypes = {name: dtype for name, _, dtype in case.inputs}
        names = {name: mx.nd.array(value, dtype=dtypes[name]) for name, value in draw(case).items()}
        return eval(f"lambda: {case.ours}", {"F": mx.nd, **names}), mx.nd.waitall

    return start


serve(f"mpgluon {mx.__version__}", {case.name: make(case) for case in CASES}, span=SPAN, clock=clock_of(int(sys.argv[1])))
