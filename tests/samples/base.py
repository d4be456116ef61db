"""Samples of ops.

Each family has a file in this folder with SAMPLES: op name -> list of Sample. tests/ops/test_ops.py
checks every registered op on its samples and fails for an op without any.
"""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Relative and absolute tolerances of values against the reference, by dtype.
TOLERANCE = {
    "float64": (1e-9, 1e-10),
    "float32": (2e-5, 2e-6),
    "float16": (4e-3, 4e-3),
    "bfloat16": (3e-2, 3e-2),
}

# Ops without a second gradient. Either MXNet and PyTorch have none for them, or the compiler
# creates them from other ops whose traced form supplies the second gradient.
FIRST_ORDER_ONLY = {
    "CTCLoss",
    "_contrib_linear_cross_entropy",
    "_contrib_box_nms",
    "_attention",
    "_dropout_attention",
    "_contrib_attention",
    "_head_attention",
    "_dropout_head_attention",
    "_batch_norm_relu",
    "_max_pooling_channels_last",
    "_digamma",
}


@dataclass
class Sample:
    """One call of an op.

    inputs     a shape tuple (values uniform in [-1, 1], or in ranges[i]; cast to the dtype under
               test) or a NumPy array (used as is)
    params     keyword parameters
    reference  called with NumPy inputs (floats as float64) and the parameters; returns an array
               or a tuple. None disables the value check
    grad       True, False, or the positions of the inputs whose gradient is checked by finite
               differences
    grad2      True if the second gradient is also checked. Applies to every op with a gradient
               except those in FIRST_ORDER_ONLY
    dtypes     dtypes that shape-tuple inputs are tested in
    rtol, atol replace the tolerance of float32 and float64 (halves keep theirs unless these are
               larger)
    train      True to run in train mode
    """

    inputs: Sequence[Any]
    params: dict | None = None
    reference: Callable | None = None
    grad: Any = True
    grad2: bool = True
    dtypes: Sequence[str] = ("float32", "float64", "float16")
    ranges: Sequence | None = None
    rtol: float | None = None
    atol: float | None = None
    name: str = ""
    train: bool = False
    extra: dict = field(default_factory=dict)

    def arrays(self, dtype, seed=0):
        """Returns the inputs as NumPy arrays, with the same (rounded) values for every dtype."""
        random = np.random.RandomState(seed)
        result = []
        for i, spec in enumerate(self.inputs):
            if isinstance(spec, np.ndarray):
                result.append(spec)
                continue
            low, high = self.ranges[i] if self.ranges and self.ranges[i] else (-1.0, 1.0)
            values = random.uniform(low, high, size=spec)
            result.append(values.astype(np.float32 if dtype == "bfloat16" else dtype))
        return result

    def made(self, i):
        """True if input i is generated from a shape, and so has the dtype under test."""
        return not isinstance(self.inputs[i], np.ndarray)

    def gradient_inputs(self):
        if self.grad is False or self.grad is None:
            return []
        if self.grad is True:
            return [i for i in range(len(self.inputs)) if self.made(i)]
        return list(self.grad)

    def tolerance(self, dtype):
        rtol, atol = TOLERANCE.get(dtype, (0, 0))
        if self.rtol is not None and (dtype in ("float32", "float64") or self.rtol > rtol):
            rtol = self.rtol
        if self.atol is not None and (dtype in ("float32", "float64") or self.atol > atol):
            atol = self.atol
        return rtol, atol


def all_samples():
    """Returns a dict of op name -> list of Sample over all families."""
    import samples

    table = {}
    for module in pkgutil.iter_modules(samples.__path__):
        family = importlib.import_module(f"samples.{module.name}")
        for name, rows in getattr(family, "SAMPLES", {}).items():
            assert name not in table, f"samples of {name} stand in two files"
            table[name] = rows
    return table
