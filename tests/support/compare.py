"""Comparisons of arrays, including GPU results with CPU results."""

import numpy as np

import mpgluon as mx
from mpgluon import autograd, nd


def same_bits(found, wanted, what="result"):
    """Asserts equal shapes, dtypes and bits of NumPy arrays, or of lists and dicts of them.

    NaN payloads are ignored.
    """
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), what
        for name in wanted:
            same_bits(found[name], wanted[name], f"{what} {name}")
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), what
        for i, (a, b) in enumerate(zip(found, wanted)):
            same_bits(a, b, f"{what} {i}")
    else:
        found, wanted = np.asarray(found), np.asarray(wanted)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), what
        np.testing.assert_array_equal(found, wanted, err_msg=what)
        if wanted.dtype.kind == "f":  # 0 equals -0, but the bits differ
            signs = (np.signbit(found) == np.signbit(wanted)) | np.isnan(wanted)
            assert signs.all(), f"{what}: zeros of another sign"


def close(a, b, scale=None):
    """Asserts a distance within 1e-5 of the largest value (1e-13 in double precision).

    The tolerance covers other summation orders.
    """
    a, b = (x.asnumpy() if isinstance(x, nd.NDArray) else x for x in (a, b))
    assert a.shape == b.shape and a.dtype == b.dtype
    limit = (1e-13 if a.dtype == "float64" else 1e-5) * max(
        np.abs(b).max() if scale is None and b.size else scale or 1, 1e-3
    )
    assert np.abs(a - b).max() <= limit, (np.abs(a - b).max(), limit)


def close_by_name(one, other, tolerance=1e-5):
    """Asserts that arrays of equal name differ by at most a tolerance of their largest value."""
    assert one.keys() == other.keys()
    for name in one:
        scale = np.abs(one[name]).max()
        assert np.abs(one[name] - other[name]).max() <= tolerance * scale, name


# Tolerances of GPU against CPU results, relative to the largest element.
CLOSE = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def same_on_both(function, values, dtype="float32", seed=7):
    """Asserts that results and gradients of a function agree on a CPU and a GPU."""
    results = []
    for ctx in (mx.cpu(0), mx.gpu(0)):
        mx.random.seed(seed)
        arrays = [mx.nd.array(v, ctx=ctx, dtype="float32").astype(dtype) for v in values]
        for a in arrays:
            a.attach_grad()
        with ctx, autograd.record():
            outputs = function(*arrays)
            outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        heads = [
            mx.nd.array(np.random.RandomState(i).uniform(-1, 1, o.shape), ctx=ctx).astype(dtype)
            for i, o in enumerate(outputs)
        ]
        autograd.backward(outputs, heads)
        results.append([a.astype("float64").asnumpy() for a in outputs + [a.grad for a in arrays]])
    for index, (cpu, gpu) in enumerate(zip(*results)):
        np.testing.assert_allclose(
            gpu,
            cpu,
            rtol=CLOSE[dtype],
            atol=CLOSE[dtype] * max(1, np.abs(cpu).max(initial=0)),
            err_msg=f"array {index}",
        )


def at(values, ctx, dtype, place):
    """Returns the values in an array that starts at element `place` of its memory."""
    flat = mx.nd.zeros(values.size + place, ctx=ctx, dtype=dtype)
    flat[place:] = mx.nd.array(values.reshape(-1), ctx=ctx, dtype=dtype)
    return flat[place:].reshape(values.shape)


def uniform(*shapes, seed=0):
    random = np.random.RandomState(seed)
    return [random.uniform(-1, 1, shape).astype("float32") for shape in shapes]


def with_sorted_eigenvalues(name, outputs):
    """Returns NumPy outputs with ascending eigenvalues if the op is _eig or _eigvals. The largest
    element of each eigenvector becomes positive.

    cuSOLVER may choose another order and other signs than LAPACK.
    """
    if name not in ("_eig", "_eigvals") or not outputs[0].size:
        return list(outputs)
    order = np.argsort(outputs[0], axis=-1, kind="stable")
    sorted_values = [np.take_along_axis(outputs[0], order, -1)]
    for vectors in outputs[1:2]:
        vectors = np.take_along_axis(vectors, order[..., None, :], -1)
        largest = np.take_along_axis(vectors, np.abs(vectors).argmax(-2)[..., None, :], -2)
        sorted_values.append(np.where(largest < 0, -vectors, vectors))
    return sorted_values + list(outputs[2:])
