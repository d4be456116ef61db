"""Generalizes a trace to a symbol that accepts inputs of other sizes.

The parameters of a trace's ops contain the sizes of its inputs, such as a reshape to (4, 6) or a
slice that ends at 4. Tracing the block with other sizes of an input's axis shows which parameters
depend on that axis. The axis is free if each of these parameters can be written without the size,
as in a reshape to (0, 6) or a slice that ends at None. Otherwise the axis is fixed: the symbol is
correct only for the size in the trace.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..._core import is_np_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .._compiled.call import TracedOps


class Trace(NamedTuple):
    """A trace and the shapes of its inputs."""

    shapes: list
    traced: TracedOps


def free_sizes(
    first: Trace,
    retrace: Callable[[Sequence[tuple[int, ...]]], TracedOps | None],
    is_valid: Callable[[Sequence[Any], Sequence[Trace]], bool],
) -> tuple[list[dict[str, str]], list[tuple[int, int]]]:
    """Returns the parameters of each op without the sizes of free axes, and the list of fixed axes
    as (input, axis).

    `retrace` traces the block for other input shapes, or returns None if the block rejects them.
    `is_valid` checks that a symbol whose ops have the given parameters produces the same output
    shapes as the given traces. The list omits axes for which the block accepts only one size: its
    ops reject other sizes, so the symbol needs no check of its own.
    """
    traces, fixed = [first], []
    params = [params for _, params, *_ in first.traced.ops]

    def settle(axes):
        """Decides whether a group of axes, which always have the same size, is free. Returns False
        if the block accepts no other size."""
        nonlocal traces, params
        more = list(_resized(first.shapes, axes, retrace))
        if not more:
            return False
        opened = _opened([*traces, *more])
        if opened is None or (opened != params and not is_valid(opened, [*traces, *more])):
            fixed.extend(axes)
        else:
            traces, params = [*traces, *more], opened
        return True

    rest = [group for group in _groups(first.shapes) if not settle(group)]
    # The block rejects a new size of any of these axes alone. It may accept new sizes if all axes
    # of equal size change together.
    alone = [axis for group in rest for axis in group]
    sizes = [first.shapes[place][axis] for place, axis in alone]
    for size in dict.fromkeys(sizes):
        equal = [axis for axis, other in zip(alone, sizes) if other == size]
        if len(equal) > 1:
            settle(equal)
    return params, fixed


def _groups(shapes):
    """Groups the axes of all inputs. The first group is the batch axis: axis 0 of every input whose
    first size equals that of the first input. Every other axis is a group by itself."""
    batch = [
        (place, 0) for place, shape in enumerate(shapes) if shape and shape[:1] == shapes[0][:1]
    ]
    axes = [(place, axis) for place, shape in enumerate(shapes) for axis in range(len(shape))]
    return [*([batch] if batch else []), *[[axis] for axis in axes if axis not in batch]]


def _resized(shapes, axes, retrace):
    """Yields traces of the block with other sizes of the given axes."""
    place, axis = axes[0]
    size = shapes[place][axis]
    # Try several sizes, because some blocks accept only even or only smaller sizes. Skip size 1,
    # because axes of size 1 broadcast, which can change the ops.
    for other in (size + 1, size * 2 if size > 1 else 3, size - 1):
        if other <= 1:
            continue
        changed = [list(shape) for shape in shapes]
        for place, axis in axes:
            changed[place][axis] = other
        changed = [tuple(shape) for shape in changed]
        traced = retrace(changed)
        if traced is not None:
            yield Trace(changed, traced)


def _opened(traces):
    """Returns the parameters of each op without the sizes that differ between traces. Returns None
    if that is impossible for an op."""
    all_traced = [trace.traced for trace in traces]
    first = all_traced[0]
    if any(not _same_graph(first, other) for other in all_traced[1:]):
        return None
    found = []
    for place, (name, params, *_) in enumerate(first.ops):
        texts = [traced.ops[place][1] for traced in all_traced]
        if any(other != params for other in texts):
            shapes = [traced.shapes[place] for traced in all_traced]
            inputs = [trace.shapes for trace in traces]
            params = _without_sizes(name, texts, shapes, inputs)
            if params is None:
                return None
        found.append(params)
    return found


def _same_graph(first, other):
    """True if two traces have the same ops on the same values, and equal captured arrays."""
    return (
        [(op[0], *op[2:]) for op in first.ops] == [(op[0], *op[2:]) for op in other.ops]
        and (first.inputs, first.outputs) == (other.inputs, other.outputs)
        and first.parameters == other.parameters
        and first.constants.keys() == other.constants.keys()
        and all(_equal(array, other.constants[key]) for key, array in first.constants.items())
    )


def _equal(array, other):
    return array is other or (
        array.shape == other.shape
        and array.dtype == other.dtype
        and (
            array._place == other._place
            or np.array_equal(array.asnumpy(), other.asnumpy(), equal_nan=True)
        )
    )


def _without_sizes(name, texts, shapes, inputs):
    """Returns an op's parameters without the sizes that differ between traces, or None if that is
    impossible. For each trace, `texts` has the op's parameters, `shapes` the shape of the op's
    first input, and `inputs` the shapes of the block's inputs."""
    if any(other.keys() != texts[0].keys() for other in texts):
        return None
    if name in _REPEATED:
        return _repeated(_REPEATED[name], texts, shapes, inputs)
    found = dict(texts[0])
    for key in found:
        given = [other[key] for other in texts]
        if len(set(given)) == 1:
            continue
        write = _WRITERS.get((name, key))
        values = [_numbers(text) for text in given]
        if write is None or len({len(value) for value in values}) > 1:
            return None
        written = write(texts[0], list(zip(*values)), shapes)
        if written is None:
            return None
        parts = ", ".join(map(str, written))
        found[key] = f"({parts},)" if given[0].startswith("(") else parts
    return found


def _numbers(text):
    return [None if part == "None" else int(part) for part in re.findall(r"None|-?\d+", text)]


# Ops that repeat axes of size 1 -> name of the parameter that holds the new sizes.
_REPEATED = {"broadcast_to": "shape", "broadcast_axis": "size"}


def _repeated(key, texts, shapes, inputs):
    """Returns the parameters of a broadcasting op (see `_without_sizes`). If the new sizes are
    sizes of an input of the block, the parameter `like` takes them from there. Its value is the
    input's index and pairs (axis of the result, axis of the input)."""
    if any({**other, key: ""} != {**texts[0], key: ""} for other in texts):
        return None
    sizes = list(zip(*[_numbers(other[key]) for other in texts]))
    axes = _numbers(texts[0].get("axis", "")) or list(range(len(sizes)))
    if any(len(shape) != len(shapes[0]) for shape in shapes) or len(axes) != len(sizes):
        return None
    codes, like = [], []
    for axis, size in zip(axes, sizes):
        own = tuple([shape[axis] for shape in shapes])
        codes.append(own[0] if _differ(size) and not _differ(own) else size[0])
        if _differ(size) and _differ(own):
            codes[-1] = 0
        elif _differ(size):
            like.append((axis, _places(size, inputs)))
    found = {**texts[0], key: f"({', '.join(map(str, codes))},)"}
    if not like:
        return found
    for place in range(len(inputs[0])):
        pairs = [(axis, at) for axis, places in like for where, at in places if where == place]
        if len({axis for axis, _ in pairs}) == len(like):
            return {**found, "like": (place, list(dict(reversed(pairs)).items()))}
    return None


def _places(size, inputs):
    """Returns (input, axis) for each axis of the block's inputs whose size in the i-th trace is
    ``size[i]``."""
    return [
        (place, axis)
        for place, shape in enumerate(inputs[0])
        for axis in range(len(shape))
        if tuple([shapes[place][axis] for shapes in inputs]) == size
    ]


# --- Functions that generalize a parameter of an op, such as the shape of a reshape ---------------
#
# A function returns a value of the parameter that is valid for all sizes, or None if there is none.
# Its arguments are the op's parameters, a tuple for each number in the parameter with the number's
# values in all traces, and the shapes of the op's first input in all traces.


def _reshape(params, sizes, shapes):
    if params.get("reverse", "False") not in ("False", "0"):
        return _one_open(sizes)
    old = list(zip(*shapes))
    if len({len(shape) for shape in shapes}) > 1:
        return _one_open(sizes)
    # Code 0 copies the size of the input's axis with the same index. If special codes (< -1) merge
    # or split axes, the indices of the axes no longer correspond, so 0 is not used.
    plain = all(size >= -1 for group in sizes for size in group)
    codes = [
        0 if plain and _differ(size) and place < len(old) and old[place] == size else size
        for place, size in enumerate(sizes)
    ]
    if not plain:
        return _one_open(codes)
    new = [_resolved(codes, shape) for codes, shape in zip(zip(*sizes), shapes)]
    return _one_open(codes) or _matched(old, list(zip(*new)))


def _resolved(codes, shape):
    """Replaces the codes 0 (copied) and -1 (inferred) of a reshape by the actual sizes."""
    sizes = [shape[place] if code == 0 else code for place, code in enumerate(codes)]
    if -1 in sizes:
        rest = -math.prod(sizes)
        sizes[sizes.index(-1)] = math.prod(shape) // rest if rest else 0
    return sizes


def _one_open(codes):
    """Replaces the size that differs between traces by -1 (inferred). Returns None if several sizes
    differ."""
    codes = [code if isinstance(code, int) else -1 if _differ(code) else code[0] for code in codes]
    return codes if codes.count(-1) <= 1 else None


def _matched(old, new):
    """Finds Reshape codes that convert shape `old` to `new` by keeping (0), merging (-3) and
    splitting (-4) axes from left to right. Returns None if that is impossible. A size is the tuple
    of its values in all traces."""
    if not old or not new:
        return [] if len(old) == len(new) else None
    ways = []
    if old[0] == new[0]:
        ways.append(([0], 1, 1))
    if len(old) > 1 and _product(old[:2]) == new[0]:
        ways.append(([-3], 2, 1))
    if len(new) > 1 and old[0] == _product(new[:2]):
        split = [-1 if _differ(size) else size[0] for size in new[:2]]
        if split != [-1, -1]:
            ways.append(([-4, *split], 1, 2))
    for codes, used, made in ways:
        more = _matched(old[used:], new[made:])
        if more is not None:
            return codes + more
    return None


def _product(sizes):
    return tuple([math.prod(values) for values in zip(*sizes)])


def _differ(values):
    return len(set(values)) > 1


def _created(params, sizes, shapes):
    """Writes the shape of a new array. Sizes that differ become unknown (-1 with NumPy shapes, else
    0): shape inference gets them from the op that reads the array."""
    unknown = -1 if is_np_shape() else 0
    return [unknown if _differ(size) else size[0] for size in sizes]


def _begins(params, values, shapes):
    return _bounds(params, values, shapes, _begin)


def _ends(params, values, shapes):
    return _bounds(params, values, shapes, _end)


def _bounds(params, values, shapes, write):
    axis = params.get("axis")
    axes = range(len(values)) if axis is None else [int(axis)]
    steps = _numbers(params.get("step", "")) or [1] * len(values)
    bounds = []
    for place, step, bound in zip(axes, steps, values):
        sizes = [shape[place] for shape in shapes]
        if _differ(bound):
            if None in bound:
                return None
            bound = write(bound, sizes, (step or 1) < 0)
            if bound is _FIXED:
                return None
            bounds.append(bound)
        else:
            bounds.append(bound[0])
    return bounds


_FIXED = object()


def _from_end(values, sizes):
    """Returns a slice bound as a negative distance from the axis's end, or _FIXED if the distance
    differs between traces."""
    distances = {value - size if value >= 0 else value for value, size in zip(values, sizes)}
    distance = distances.pop()
    return distance if not distances and distance < 0 else _FIXED


def _begin(values, sizes, backward):
    if backward and all(value >= size - 1 for value, size in zip(values, sizes)):
        return None
    return _from_end(values, sizes)


def _end(values, sizes, backward):
    if not backward:
        if all(value >= size for value, size in zip(values, sizes)):
            return None
        clipped = [min(value, size) for value, size in zip(values, sizes)]
        most = max(values)
        if all(value >= 0 and value == min(most, size) for value, size in zip(clipped, sizes)):
            return most
    return _from_end(values, sizes)


_WRITERS = {
    ("Reshape", "shape"): _reshape,
    ("slice", "begin"): _begins,
    ("slice", "end"): _ends,
    ("slice_axis", "begin"): _begins,
    ("slice_axis", "end"): _ends,
    **{(name, "shape"): _created for name in ("_zeros", "_ones", "_full")},
}
