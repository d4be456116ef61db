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
    is_valid: Callable[[Sequence[Any], Sequence[Trace], Sequence[Trace]], bool],
) -> tuple[list[dict[str, str]], list[tuple[int, int]]]:
    """Returns the parameters of each op without the sizes of free axes, and the list of fixed axes
    as (input, axis).

    `retrace` traces the block for other input shapes, or returns None if the block rejects them.
    `is_valid` checks that a symbol whose ops have the given parameters produces the same output
    shapes as the given traces; for the traces in its last argument, the symbol may also fail. The
    list omits axes for which the block accepts only one size: its ops reject other sizes, so the
    symbol needs no check of its own.
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
        # A size of 1 can change the block's ops. The symbol must then fail, or have equal shapes.
        single = list(_resized(first.shapes, axes, retrace, [1]))
        if opened is None or not is_valid(opened, [*traces, *more], single):
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


def _resized(shapes, axes, retrace, sizes=()):
    """Yields traces of the block with other sizes of the given axes: `sizes` or, by default, sizes
    near the present one."""
    place, axis = axes[0]
    size = shapes[place][axis]
    # Try several sizes, because some blocks accept only even or only smaller sizes. Skip size 1,
    # because axes of size 1 broadcast, which can change the ops.
    near = [size + 1, size * 2 if size > 1 else 3, size - 1]
    for other in sizes or [other for other in near if other > 1]:
        changed = [list(shape) for shape in shapes]
        for place, axis in axes:
            changed[place][axis] = other
        changed = [tuple(shape) for shape in changed]
        traced = retrace(changed)
        if traced is not None:
            yield Trace(changed, traced)


class _Op(NamedTuple):
    """An op in all traces. A size is the tuple of its values in all traces."""

    name: str
    numpy: bool
    texts: list  # its parameters in each trace
    old: list | None  # the sizes of its first input; None without inputs or if the axes differ
    new: list | None  # the sizes of its first output; None if its number of axes differs
    sources: dict  # size -> list of (value, axis) that the op can take this size from
    sizes_of: Callable[[int], list | None]  # returns the sizes of a value


def _opened(traces):
    """Returns the parameters of each op without the sizes that differ between traces. Returns None
    if that is impossible for an op."""
    all_traced = [trace.traced for trace in traces]
    first = all_traced[0]
    if any(not _same_graph(first, other) for other in all_traced[1:]):
        return None
    found, sources = [], {}

    def sizes_of(value):
        shapes = [traced.shapes[value] for traced in all_traced]
        return list(zip(*shapes)) if len({len(shape) for shape in shapes}) == 1 else None

    def add(value):
        for axis, size in enumerate(sizes_of(value) or ()):
            if _differ(size):
                sources.setdefault(size, []).append((value, axis))

    for value in first.inputs:
        add(value)
    for place, (name, params, used, output, count) in enumerate(first.ops):
        texts = [traced.ops[place][1] for traced in all_traced]
        if any(other != params for other in texts):
            old = sizes_of(used[0]) if used else None
            numpy = getattr(name, "numpy", False)
            op = _Op(name, numpy, texts, old, sizes_of(output), sources, sizes_of)
            params = _without_sizes(op)
            if params is None:
                return None
        found.append(params)
        for index in range(count):
            add(output + index)
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


def _without_sizes(op):
    """Returns an op's parameters without the sizes that differ between traces, or None if that is
    impossible. The parameter `as` is the name of another op that replaces the op."""
    texts = op.texts
    if any(other.keys() != texts[0].keys() for other in texts):
        return None
    if op.name in _REWRITTEN:
        keys, rewrite = _REWRITTEN[op.name]
        blank = dict.fromkeys(keys.split(), "")
        same = all([{**other, **blank} == {**texts[0], **blank} for other in texts])
        return rewrite(op) if same else None
    written = _written(op)
    return _cut(op) if written is None and (op.name, "end") in _WRITERS else written


def _written(op):
    """Returns an op's parameters in which `_WRITERS` replace the sizes, or None."""
    texts = op.texts
    found = dict(texts[0])
    for key in found:
        given = [other[key] for other in texts]
        if len(set(given)) == 1:
            continue
        write = _WRITERS.get((op.name, key))
        values = [_numbers(text) for text in given]
        if write is None or op.old is None or len({len(value) for value in values}) > 1:
            return None
        written = write(texts[0], list(zip(*values)), op.old)
        if written is None:
            return None
        found[key] = _tuple(written) if given[0].startswith("(") else ", ".join(map(str, written))
    return found


def _tuple(values):
    return f"({', '.join(map(str, values))},)" if values else "()"


def _numbers(text):
    return [None if part == "None" else int(part) for part in re.findall(r"None|-?\d+", text)]


# --- Functions that rewrite an op -----------------------------------------------------------------
#
# A function returns the parameters (see `_without_sizes`), or None if it finds none.


def _tiled(op):
    """Rewrites copies of axes of size 1."""
    if op.old is None or op.new is None or len(op.new) < len(op.old):
        return None
    own = [(1,) * len(op.texts)] * (len(op.new) - len(op.old)) + op.old
    if any(old != new and set(old) != {1} for old, new in zip(own, op.new)):
        return None
    return _repeated(op)


def _repeated(op):
    """Rewrites an op that repeats axes of size 1. If a size is not the input's own, the parameter
    `like` has the values to take it from: pairs of a value and (axis of the result, axis of the
    value) pairs."""
    if op.old is None or op.new is None:
        return None
    added = len(op.new) - len(op.old)
    codes, wanted = [], []
    for axis, size in enumerate(op.new):
        own = op.old[axis - added] if axis >= added else (1,) * len(size)
        if _differ(size) and _differ(own):
            codes.append(-2 if op.numpy else 0)
        else:
            codes.append(own[0] if _differ(size) else size[0])
        if _differ(size) and not _differ(own):
            wanted.append((axis, size))
    return _like({"as": "broadcast_to", "shape": _tuple(codes)}, wanted, op.sources)


def _like(params, wanted, sources):
    """Adds the parameter `like` of `_repeated` for the axes and sizes in `wanted`."""
    if not wanted:
        return params
    likes = []
    while wanted:
        best: dict[Any, list] = {}
        for axis, size in wanted:
            for value, at in sources.get(size, ()):
                pairs = best.setdefault(value, [])
                if axis not in dict(pairs):
                    pairs.append((axis, at))
        if not best:
            return None
        value, pairs = max(best.items(), key=lambda item: len(item[1]))
        likes.append((value, pairs))
        wanted = [one for one in wanted if one[0] not in dict(pairs)]
    return {**params, "like": likes}


def _cut(op):
    """Rewrites a slice whose ends are sizes of other values. The parameter `cut` has these values:
    triples of a value, its axis and the axis of the result."""
    params = op.texts[0]
    ends = list(zip(*[_numbers(other["end"]) for other in op.texts]))
    begins = _numbers(params.get("begin", ""))
    steps = _numbers(params.get("step", "")) or [1] * len(ends)
    if op.old is None or op.new is None or len(op.old) != len(op.new):
        return None
    one_axis = params.get("axis") is not None  # slice_axis
    axes = [int(params["axis"]) % len(op.old)] if one_axis else range(len(ends))
    cut, kept = [], [list(_numbers(other["end"])) for other in op.texts]
    for place, (axis, end) in enumerate(zip(axes, ends)):
        if not _differ(end) or _from_end(end, op.old[axis]) is not _FIXED:
            continue
        # slice_like takes the size of the same axis, so the value's axis is moved there.
        source = next(
            (
                (value, at)
                for value, at in op.sources.get(op.new[axis], ())
                if axis < len(op.sizes_of(value))
            ),
            None,
        )
        if source is None or begins[place] not in (0, None) or (steps[place] or 1) != 1:
            return None
        cut.append((*source, axis))
        for other in kept:
            other[place] = None
    texts = [
        {**text, "end": "None" if one_axis else _tuple(other)}
        for text, other in zip(op.texts, kept)
    ]
    written = _written(op._replace(texts=texts))
    return None if written is None or not cut else {**written, "cut": cut}


def _created(op):
    """Rewrites an op that creates an array of equal elements. If no value has one of its sizes, the
    size becomes unknown (-1 with NumPy shapes, else 0): shape inference gets it from the op that
    reads the array."""
    sizes = op.new
    if sizes is None:
        return None
    params = {**op.texts[0], "shape": _tuple([1 if _differ(size) else size[0] for size in sizes])}
    wanted = [(axis, size) for axis, size in enumerate(sizes) if _differ(size)]
    found = _like(params, wanted, op.sources)
    if found is not None:
        return found
    unknown = -1 if op.numpy or is_np_shape() else 0
    codes = [unknown if _differ(size) else size[0] for size in sizes]
    return {**op.texts[0], "shape": _tuple(codes)}


def _counted(op):
    """Rewrites the numbers from `start` on if their count is a size of another value."""
    params = op.texts[0]
    fixed = [{**other, ("stop" if "stop" in other else "start"): ""} for other in op.texts]
    source = next(iter(op.sources.get(op.new[0], ())), None) if op.new else None
    if source is None or any(other != fixed[0] for other in fixed):
        return None
    value, axis = source
    return {
        "as": "_contrib_arange_like",
        "of": value,
        "axis": str(axis),
        "start": params["start"] if "stop" in params else "0",
        "dtype": params.get("dtype", "float32"),
        **{key: params[key] for key in ("step", "repeat") if key in params},
    }


def _reshaped(op):
    codes = None
    if op.texts[0].get("reverse", "False") in ("False", "0"):
        sizes = list(zip(*[_numbers(other["shape"]) for other in op.texts]))
        codes = None if any(-1 > min(size) for size in sizes) else _kept(sizes, op)
    return _reshaped_to(op, codes)


def _reshaped_numpy(op):
    sizes = list(zip(*[_numbers(other["newshape"]) for other in op.texts]))
    return _reshaped_to(op, None if any(0 in size for size in sizes) else _kept(sizes, op))


def _kept(sizes, op):
    """Returns codes that copy sizes from the input's axis with the same index (code 0). Returns
    None if several other sizes differ."""
    old = op.old or []
    return _one_open(
        [
            0 if _differ(size) and place < len(old) and old[place] == size else size
            for place, size in enumerate(sizes)
        ]
    )


def _reshaped_to(op, codes=None):
    """Rewrites a reshape with codes or, if they are None, with the sizes of the result."""
    if op.texts[0].get("order", "C") != "C":
        return None
    if codes is None and op.new is not None and not any(0 in size for size in op.new):
        codes = _kept(op.new, op) or (op.old and _matched(op.old, op.new))
        if not codes:
            return _reshaped_like(op)
    return {"as": "Reshape", "shape": _tuple(codes)} if codes is not None else None


def _reshaped_like(op):
    """Rewrites a reshape to the shape of another value."""
    fits = None
    for axis, size in enumerate(op.new):
        if _differ(size):
            here = {value for value, at in op.sources.get(size, ()) if at == axis}
            fits = here if fits is None else fits & here
    for value in sorted(fits or ()):
        if op.sizes_of(value) == op.new:
            return {"as": "reshape_like", "of": value}
    return None


def _one_open(codes):
    """Replaces the size that differs between traces by -1 (inferred). Returns None if several sizes
    differ."""
    codes = [code if isinstance(code, int) else -1 if _differ(code) else code[0] for code in codes]
    return codes if codes.count(-1) <= 1 else None


def _matched(old, new):
    """Finds Reshape codes that convert shape `old` to `new` by keeping (0), merging (-3) and
    splitting (-4) axes from left to right. Returns None if that is impossible. A size is the tuple
    of its values in all traces."""
    if not old and all(set(size) == {1} for size in new):
        return [1] * len(new)
    if not old or not new:
        return None
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


# --- Functions that generalize a parameter of an op, such as the shape of a reshape ---------------
#
# A function returns the parameter's value for all sizes, or None if no single value is right. Its
# arguments are the op's parameters, a tuple for each number in the parameter with the number's
# values in all traces, and the sizes of the op's first input.


def _begins(params, values, old):
    return _bounds(params, values, old, _begin)


def _ends(params, values, old):
    return _bounds(params, values, old, _end)


def _bounds(params, values, old, write):
    axis = params.get("axis")
    axes = range(len(values)) if axis is None else [int(axis)]
    steps = _numbers(params.get("step", "")) or [1] * len(values)
    bounds = []
    for place, step, bound in zip(axes, steps, values):
        if _differ(bound):
            if None in bound:
                return None
            bound = write(bound, old[place], (step or 1) < 0)
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
    ("slice", "begin"): _begins,
    ("slice", "end"): _ends,
    ("slice_axis", "begin"): _begins,
    ("slice_axis", "end"): _ends,
}
# Op -> the parameters that hold its sizes, and the function that rewrites it.
_REWRITTEN = {
    "broadcast_to": ("shape", _repeated),
    "broadcast_axis": ("size", _repeated),
    "tile": ("reps", _tiled),
    "repeat": ("repeats", _tiled),
    "_zeros": ("shape", _created),
    "_ones": ("shape", _created),
    "_full": ("shape", _created),
    "_arange": ("start stop", _counted),
    "Reshape": ("shape", _reshaped),
    "_reshape_numpy": ("newshape", _reshaped_numpy),
    "_reshape_codes": ("newshape", _reshaped_to),
}
