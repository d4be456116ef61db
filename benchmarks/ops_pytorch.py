"""The single ops of ops_cases.py in PyTorch."""

import sys

from ops_cases import CASES, SPAN, clock_of, draw
from serve import serve

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit(0)

torch.set_num_threads(int(sys.argv[1]))
torch.set_grad_enabled(False)


def nothing():
    """PyTorch's CPU ops have ended when they return."""


def make(case):
    def start():
        dtypes = {name: getattr(torch, dtype) for name, _, dtype in case.inputs}
        names = {name: torch.from_numpy(value).to(dtypes[name]) for name, value in draw(case).items()}
        return eval(f"lambda: {case.theirs}", {"F": F, "torch": torch, **names}), nothing

    return start


serve(f"PyTorch {torch.__version__}", {case.name: make(case) for case in CASES}, span=SPAN, clock=clock_of(int(sys.argv[1])))
