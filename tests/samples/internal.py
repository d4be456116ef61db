"""Samples of internal ops used in gradient formulas."""

import numpy as np

from samples.base import Sample

SAMPLES = {
    "_reshape_exact": [
        Sample([(2, 3)], {"shape": (3, 2)}, lambda x, shape: x.reshape(shape), grad2=True),
        Sample([(2, 0)], {"shape": (0, 5)}, lambda x, shape: x.reshape(shape), name="empty"),
    ],
    "_detach": [Sample([(2, 3)], {}, lambda x: x, grad=False)],
    "_gradient_tap": [Sample([(2, 3), (2, 3)], {}, lambda x, tap: x, grad=False)],
    "_broadcast_exact": [
        Sample(
            [(3, 1)], {"shape": (2, 3, 4)}, lambda x, shape: np.broadcast_to(x, shape), grad2=True
        ),
        Sample([(1,)], {"shape": (0,)}, lambda x, shape: np.broadcast_to(x, shape), name="empty"),
    ],
}
