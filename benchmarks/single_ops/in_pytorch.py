"""The single ops of cases.py in PyTorch."""

import sys

from serve import serve
from single_ops.case import SPAN, draw
from single_ops.cases import CASES

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit(0)


def nothing():
    """Does not wait, because PyTorch's CPU ops are synchronous."""


def step(function, *arrays):
    for array in arrays:
        array.grad = None
        array.requires_grad_()
    with torch.enable_grad():
        result = function(*arrays)
    result.backward(torch.ones_like(result))
    return arrays[0].grad


def make(case):
    def start():
        dtypes = {name: getattr(torch, dtype) for name, _, dtype in case.inputs}
        names = {
            name: torch.from_numpy(value).to(dtypes[name]) for name, value in draw(case).items()
        }
        return eval(
            f"lambda: {case.theirs}", {"F": F, "torch": torch, "step": step, **names}
        ), nothing

    return start


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    torch.set_grad_enabled(False)
    serve(f"PyTorch {torch.__version__}", {case.name: make(case) for case in CASES}, span=SPAN)
