"""Sharding rules of ops: their factors, parts of arrays, and the op on parts.

A factor is (kind, size, counts, digits, once, exact, lookup), as _core.op_sharding returns it. A
digit is (axis, outer, inner), or None for an array without the factor. `once` is the input that is
added once, or -1. `exact` is True if dividing the factor keeps bits. `lookup` is the input that
holds indices along the factor, or -1.
"""

import numpy as np

from mpgluon import _core, autograd, nd

from ..calls import call

LETTERS = "ijklmnopqrstuvwxyzabcdefgh"
# Ops whose results on parts of a PASS factor may differ in the last bits, because the order of
# their sums depends on the shapes of the arrays.
OTHER_BITS = {
    # Products, whose kernels choose their blocks by the sizes of the matrices
    *("FullyConnected", "dot", "batch_dot", "_linalg_gemm", "_linalg_gemm2"),
    *("Convolution", "Deconvolution", "_contrib_quantized_dot", "_solve", "RNN", "_rnn"),
    "_contrib_linear_cross_entropy",
    # Sums over other axes than the last, which add up vectors if the rest is long enough
    *("sum", "mean", "prod", "nansum", "nanprod", "norm", "LayerNorm", "L2Normalization"),
}
COMBINED = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def factors_of(name, arrays, params):
    """Returns the factors of a call on arrays, in the current train mode."""
    return _core.op_sharding(name, [described(a) for a in arrays], params or {})


def described(array):
    return array.shape, np.dtype(array.dtype).name


def split_axis(array, size, digit):
    """Returns the array with the axis of the digit split into outer, size and inner."""
    axis, outer, inner = digit
    shape = array.shape
    return array.reshape(shape[:axis] + (outer, size, inner) + shape[axis + 1 :])


def merge_axis(array, axis):
    shape = array.shape
    return array.reshape(shape[:axis] + (-1,) + shape[axis + 3 :])


def part_of(array, size, digit, begin, end):
    """Returns the elements of an array whose index of the factor is in [begin, end)."""
    if digit is None:
        return array
    axis = digit[0]
    index = (slice(None),) * (axis + 1) + (slice(begin, end),)
    shape = list(array.shape)
    shape[axis] = shape[axis] // size * (end - begin)
    return split_axis(array, size, digit)[index].reshape(shape)


def joined(parts, bounds, digit):
    """Undoes part_of."""
    axis = digit[0]
    split = [split_axis(p, end - begin, digit) for p, (begin, end) in zip(parts, bounds)]
    shape = list(parts[0].shape)
    shape[axis] = sum(p.shape[axis] for p in parts)
    return np.concatenate(split, axis=axis + 1).reshape(shape)


def uneven(size, count):
    """Returns the bounds of parts whose sizes differ if possible."""
    cuts = [0, min(size // 2 + 1, size - 1), size] if count == 2 else [0, 1, 1 + size // 2, size]
    return list(zip(cuts, cuts[1:]))


def combined(factor, parts, bounds, digit):
    """Returns the whole output for the parts' outputs."""
    if digit is not None:
        return joined(parts, bounds, digit)
    if factor[0] == "pass":
        for part in parts[1:]:
            np.testing.assert_array_equal(part, parts[0])
        return parts[0]
    total = parts[0]
    for part in parts[1:]:
        total = COMBINED[factor[0]](total, part)
    return total


class Run:
    """A call on NumPy arrays: its outputs, the arrays that it writes, and its gradients."""

    def __init__(self, name, arrays, params, train, wanted):
        self.name, self.wanted = name, wanted
        self.arrays = [nd.array(a, dtype=a.dtype) for a in arrays]
        for i in wanted:
            self.arrays[i].attach_grad()
        with autograd.record(train_mode=train) if wanted else mode(train):
            self.results = call(name, self.arrays, params)
        self.outputs = [r.asnumpy() for r in self.results]

    def written(self):
        """Returns the contents of the arrays that the op writes, by position."""
        inputs = _core.get_op(self.name).describe()["inputs"]
        mutable = {i for i, row in enumerate(inputs) if row["mutable"]}
        return {i: self.arrays[i].asnumpy() for i in mutable if i < len(self.arrays)}

    def gradients(self, heads):
        """Returns the gradients of the wanted inputs, by position."""
        pairs = [(r, h) for r, h in zip(self.results, heads) if h is not None]
        autograd.backward([r for r, _ in pairs], [nd.array(h, dtype=h.dtype) for _, h in pairs])
        return {i: self.arrays[i].grad.asnumpy() for i in self.wanted}


def mode(train):
    return autograd.train_mode() if train else autograd.predict_mode()


def values_of(name, texts):
    """Returns the parameters that differ from their defaults, given the texts of all of them."""
    defaults = {p["name"]: p["default"] for p in _core.get_op(name).describe()["params"]}
    return {
        key: None if text == "None" else text
        for key, text in texts.items()
        if text != defaults[key]
    }


def first_of(ndim, digit, begin):
    """Returns the index of a part's first element along each axis; -1 if it is not contiguous."""
    first = [0] * ndim
    if digit is not None:
        axis, outer, inner = digit
        first[axis] = begin * inner if outer == 1 else -1
    return tuple(first)


def localized(name, arrays, params, parts, outputs, factor, bounds):
    """Returns the parameters for each part, given the parts of the arrays."""
    size, digits = factor[1], factor[3]
    result = []
    for inputs, (begin, end) in zip(parts, bounds):
        shapes = []
        for (shape, dtype), digit in zip(outputs, digits[len(arrays) :]):
            shape = list(shape)
            if digit is not None:
                shape[digit[0]] = shape[digit[0]] // size * (end - begin)
            shapes.append((tuple(shape), dtype))
        whole = name, [described(a) for a in arrays], params or {}
        given = tuple(described(p) for p in inputs)
        ndims = [a.ndim for a in arrays] + [len(shape) for shape, _ in outputs]
        begins = tuple(first_of(n, d, begin) for n, d in zip(ndims, digits))
        result.append(values_of(name, _core.op_localize(whole, given, tuple(shapes), begins)))
    return result


def text_of(factors, num_inputs, shapes):
    """Returns an einsum-like string of factors, for arrays of the given shapes.

    An axis is written as its factors, from the outermost to the innermost, with numbers for sizes
    that no factor covers: (2 i, j). An axis without a factor is a dot, or 1 if its size is 1.
    """
    arrays = []
    for a, shape in enumerate(shapes):
        axes = []
        for axis, total in enumerate(shape):
            digits = sorted(
                (f[3][a][1], f[1], f[3][a][2], letter)
                for f, letter in zip(factors, LETTERS)
                if f[3][a] is not None and f[3][a][0] == axis
            )
            words, before = [], 1
            for outer, size, inner, letter in digits:
                assert outer % before == 0 and outer * size * inner == total, "overlapping digits"
                words += [str(outer // before)] * (outer > before) + [letter]
                before = outer * size
            if not digits:
                words = ["1" if total == 1 else "."]
            elif total > before:
                words.append(str(total // before))
            axes.append(" ".join(words))
        arrays.append(f"({','.join(axes)})")
    return ",".join(arrays[:num_inputs]) + "->" + ",".join(arrays[num_inputs:])


def summed(factors):
    """Returns the letters of text_of whose outputs are partial, such as {"k": "sum"}."""
    return {letter: f[0] for f, letter in zip(factors, LETTERS) if f[0] != "pass"}


def infer_outputs(name, arrays, params):
    """Returns (shape, dtype) of each output, hidden ones included."""
    outputs = _core.infer_shape(name, [described(a) for a in arrays], params or {})[1]
    return [(shape or (), dtype) for shape, dtype in outputs]
