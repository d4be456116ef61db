"""Infers the sizes of all values of a graph, some of which are dynamic.

Inference runs with the given sizes, and twice more with other values of the dynamic sizes. A size
that is the same in all runs is an int. A size that differs is a `Dynamic`: the tuple of its three
values, which identifies it throughout the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _core
from ..base import MXNetError
from ..symbol._infer import Inference
from ._package import ONNXError

if TYPE_CHECKING:
    from typing import Any

# Functions that choose the values of dynamic sizes in the two additional runs. The first function
# whose values are valid for the graph is used. Multiples of the given sizes suit layers that halve
# and double sizes. A table of positions may allow only slightly different sizes.
PRIMES = ((2, 3, 5, 7, 11, 13, 17, 19), (23, 29, 31, 37, 41, 43, 47, 53))
WAYS = (
    lambda size, place, run: size * (PRIMES[run][place % 8] + place // 8 * 60),
    lambda size, place, run: size + 1 + place + run * (2 + place),
    lambda size, place, run: size - 1 - place - run * (1 + place),
)


class Dynamic(tuple):
    """A size that differs between calls: its value in each run."""

    __slots__ = ()


Size = int | Dynamic


class Inferred:
    """The shapes and dtypes of all values.

    Parameters
    ----------
    entries : list of (Node, int)
    shapes, dtypes : dict
        Shapes and dtypes of all variables, by name.
    axes : dict of (str, int) to str
        The dynamic axes of variables, and the names of their sizes; equal names mean equal sizes.
    """

    def __init__(self, entries, shapes, dtypes, axes: dict[tuple[str, int], str]) -> None:
        self._runs = [inferred(entries, shapes, dtypes), *_others(entries, shapes, dtypes, axes)]
        self.order = self._runs[0].order

    def of(self, node: Any, index: int) -> tuple[tuple[Size, ...], str]:
        """Returns (shape, dtype) of a value."""
        descs = [run.values[run.place[node]][index] for run in self._runs]
        shape, dtype = descs[0]
        if any(0 in (desc[0] or ()) for desc in descs):
            raise ONNXError(
                f"{node.output_name(index)} has no elements (shape {shape}), which cannot be "
                "converted; give inputs for which it is not empty"
            )
        if any(desc[0] is None or -1 in desc[0] for desc in descs) or dtype is None:
            raise ONNXError(
                f"the shape or dtype of {node.output_name(index)} is not known: {shape}, {dtype}; "
                "give the shapes of all inputs in in_shapes"
            )
        if len({len(desc[0]) for desc in descs}) > 1:
            raise ONNXError(f"{node.output_name(index)} has no fixed number of axes")
        return tuple([_size(sizes) for sizes in zip(*[desc[0] for desc in descs])]), dtype


def _others(entries, shapes, dtypes, axes):
    """Repeats inference with other values of the dynamic sizes. Returns the additional runs."""
    names, error = list(dict.fromkeys(axes.values())), None
    if not names:
        return []
    for way in WAYS:
        try:
            return [
                inferred(entries, _resized(shapes, axes, names, way, run), dtypes) for run in (0, 1)
            ]
        except MXNetError as failure:
            error = error or failure
    raise error or ONNXError("no other sizes can be tried")


def _resized(shapes, axes, names, way, run):
    other = {name: list(shape) for name, shape in shapes.items()}
    for (name, axis), label in axes.items():
        other[name][axis] = way(other[name][axis], names.index(label), run)
        if other[name][axis] <= 0:
            raise ONNXError(f"axis {axis} of {name} cannot be smaller")
    return other


def _size(sizes):
    return sizes[0] if len(set(sizes)) == 1 else Dynamic(sizes)


def inferred(entries: Any, shapes: Any, dtypes: Any) -> Inference:
    """Infers a graph; variables of unknown dtype have float32."""
    found = Inference(entries, shapes, dtypes)
    found.assume("float32")
    return found


def dynamic_axes(entries, shapes, dtypes, inputs, told) -> dict[tuple[str, int], str]:
    """Returns the dynamic axes of the inputs and names of their sizes, if the graph allows them.

    told : list of tuple, or None
        The sizes of each input, with None or a name for dynamic sizes. If `told` is None, all axes
        that can be dynamic are.
    """
    if told is None:
        return _all_dynamic(entries, shapes, dtypes, inputs)
    named, open_axes = {}, []
    for name, sizes in zip(inputs, told):
        if len(sizes) != len(shapes[name]):
            raise ValueError(f"dynamic_input_shapes: {name} has {len(shapes[name])} axes: {sizes}")
        for axis, size in enumerate(sizes):
            if isinstance(size, str):
                named[name, axis] = size
            elif size is None:
                open_axes.append((name, axis))
    # Sizes without names are made equal if the graph requires it.
    error = None
    for label in (
        lambda name, axis: f"{name}_{axis}",
        lambda name, axis: f"axis{axis}_{shapes[name][axis]}",
        lambda name, axis: f"size{shapes[name][axis]}",
    ):
        axes = {**named, **{key: label(*key) for key in open_axes}}
        try:
            Inferred(entries, shapes, dtypes, axes)
        except MXNetError as failure:
            error = error or failure
        else:
            return axes
    raise ONNXError(
        f"the graph does not support other sizes of the dynamic axes {told}: it contains fixed "
        f"sizes that match in_shapes; make fewer axes dynamic. {error}"
    )


def _all_dynamic(entries, shapes, dtypes, inputs):
    """Returns all axes that can be dynamic, either separately or together with all axes of the same
    size."""
    axes: dict[tuple[str, int], str] = {}
    rest = [(name, axis) for name in inputs for axis in range(len(shapes[name]))]
    groups = [[key] for key in rest]
    groups += [
        [key for key in rest if shapes[key[0]][key[1]] == size]
        for size in dict.fromkeys(shapes[name][axis] for name, axis in rest)
    ]
    for group in groups:
        group = [key for key in group if key not in axes]
        if not group:
            continue
        label = f"{group[0][0]}_{group[0][1]}"
        tried = {**axes, **dict.fromkeys(group, label)}
        try:
            Inferred(entries, shapes, dtypes, tried)
        except MXNetError:
            continue
        axes = tried
    return axes


def check_known(shapes: dict[str, tuple[int, ...]]) -> None:
    """Raises ValueError if the shape of an input is not completely given."""
    for name, shape in shapes.items():
        if not all(isinstance(size, int) and size > 0 for size in shape):
            raise ValueError(f"the shape of {name} must have positive sizes, not {shape}")


def dtype_name(dtype: Any) -> str:
    return _core.dtype_name(dtype)
