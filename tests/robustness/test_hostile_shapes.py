"""Every op, including hidden ones, on its samples with one array of a different shape works or
raises and does not crash."""

import subprocess
import sys

import pytest

from mpgluon import _core
from support.processes import environment

OPS = sorted(_core.list_ops())
CHUNK = 48


@pytest.mark.parametrize("first", range(0, len(OPS), CHUNK))
def test_ops_with_other_shapes_do_not_crash(first):
    """Runs in a subprocess that prints its progress. Memory errors that do not crash are found by
    sanitizer builds."""
    names = OPS[first : first + CHUNK]
    run = subprocess.run(
        [sys.executable, __file__, *names],
        capture_output=True,
        text=True,
        timeout=280,
        env=environment(),
    )
    assert run.returncode == 0, (
        f"{(run.stdout.splitlines() or ['nothing'])[-1]}: exit status "
        f"{run.returncode}\n{run.stderr[-2000:]}"
    )
    assert run.stdout.splitlines()[-1] == f"done: {len(names)} ops"


def shapes_near(shape):
    """Yields (1,) and shapes that are longer, shorter or empty along an axis or differ in rank."""
    for axis, size in enumerate(shape):
        step = max(1, size // 2)
        for other in (size + step, size - step, 0):
            if other >= 0:
                yield (*shape[:axis], other, *shape[axis + 1 :])
    if len(shape) > 1:
        yield shape[1:]
        yield (*shape, 2)
    yield (1,)


def main(names):
    import numpy as np

    import mpgluon as mx
    from samples.base import all_samples

    samples = all_samples()
    for name in names:
        op = _core.get_op(name)
        for sample in samples.get(name, [])[:2]:
            dtype = "float32"
            given = [
                np.asarray(v, dtype if sample.made(i) else v.dtype)
                for i, v in enumerate(sample.arrays(dtype, 0))
            ]
            for i, values in enumerate(given):
                for shape in shapes_near(values.shape):
                    print(
                        f"{name} ({sample.name}), input {i}: {shape} instead of {values.shape}",
                        flush=True,
                    )
                    other = (
                        np.resize(values, shape) if values.size else np.zeros(shape, values.dtype)
                    )
                    # new arrays, because a failed call invalidates its outputs
                    changed = [
                        mx.nd.array(v, dtype=v.dtype) for v in (*given[:i], other, *given[i + 1 :])
                    ]
                    for scope in (mx.autograd.train_mode, mx.autograd.predict_mode):
                        try:
                            with scope():
                                results = op(*changed, **(sample.params or {}))
                            for result in (
                                results if isinstance(results, (list, tuple)) else [results]
                            ):
                                result.asnumpy()
                        except (mx.base.MXNetError, ValueError, TypeError, IndexError, MemoryError):
                            pass
    print(f"done: {len(names)} ops")


if __name__ == "__main__":
    main(sys.argv[1:])
