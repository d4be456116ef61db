"""Samples of collective ops on one device.

tests/parallel/test_collective_op.py covers several devices.
"""

import numpy as np

from samples.base import Sample


def _sample(kind, reference, shape=(4, 3), count=1, **more):
    return Sample(
        [shape] * count,
        {"kind": kind},
        lambda *arrays, kind: reference(*arrays),
        name=f"{kind}-{more.pop('name', 'plain')}",
        **more,
    )


SAMPLES = {
    "_collective": [
        _sample("all_reduce", lambda x: x, grad2=True),
        _sample("reduce", lambda x: x),
        _sample("broadcast", lambda x: x),
        _sample("reduce_scatter", lambda x: x),
        _sample("all_gather", lambda x: x),
        _sample("exchange", lambda x: x, grad2=True),
        _sample("all_reduce", np.copy, (0, 3), name="empty"),
    ],
}
