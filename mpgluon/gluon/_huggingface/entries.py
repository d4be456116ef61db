"""Maps between the arrays of a file and the parameters of a network.

A map is a list of entries, which are applied in order to the arrays of a file, by name. Saving
applies their inverses in reverse order.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING

from ...base import MXNetError
from .names import Translation
from .values import (
    Joined,
    LazyArray,
    Part,
    Reordered,
    Reshaped,
    Selected,
    Shifted,
    Stacked,
    Transposed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Arrays = dict[str, LazyArray]

__all__ = [
    "Alias",
    "Drop",
    "Entry",
    "Join",
    "Permute",
    "Prefix",
    "Rename",
    "Reshape",
    "Shift",
    "Split",
    "Stack",
    "Transpose",
]


class Entry:
    """Base class of the entries of a map.

    Patterns are regular expressions that match whole names. Saving translates names back, so
    everything in a pattern except literal text must be in a group, and each name template must
    insert each group once.
    """

    def load(self, arrays: Arrays) -> Arrays:
        """Rearranges the arrays of a file, by name."""
        raise NotImplementedError

    def save(self, arrays: Arrays) -> Arrays:
        """Inverse of `load`."""
        raise NotImplementedError


def _check_axis(entry, axis):
    if not axis >= 0:
        raise ValueError(f"{entry}: axis must not be negative, got {axis}")


def _put(arrays, name, value):
    if name in arrays:
        raise MXNetError(f"map: two arrays become '{name}'")
    arrays[name] = value


class Rename(Entry):
    """Renames arrays.

    Parameters
    ----------
    pattern : str
        Regular expression for names in the file.
    name : str
        Name in the network; ``\\1`` inserts the text of a group.

    Examples
    --------
    >>> from mpgluon.contrib.huggingface import Rename
    >>> entry = Rename(r"h\\.(\\d+)\\.ln_1\\.weight", r"layers.\\1.norm.gamma")
    >>> entry.load({"h.3.ln_1.weight": "array"})
    {'layers.3.norm.gamma': 'array'}
    >>> entry.save({"layers.3.norm.gamma": "array"})
    {'h.3.ln_1.weight': 'array'}
    """

    def __init__(self, pattern: str, name: str) -> None:
        self._to = Translation(pattern, name)

    def load(self, arrays: Arrays) -> Arrays:
        return self._renamed(arrays, self._to)

    def save(self, arrays: Arrays) -> Arrays:
        return self._renamed(arrays, self._to.inverse())

    def _renamed(self, arrays, translation):
        found: Arrays = {}
        for name, array in arrays.items():
            new = translation.match(name)
            _put(found, name if new is None else new, array)
        return found


class Alias(Rename):
    """Renames arrays of files that have an older name. Saving writes the new name."""

    def save(self, arrays: Arrays) -> Arrays:
        return arrays


class Prefix(Entry):
    """Removes a prefix of names. Names without the prefix do not change, because some programs
    write files without it.

    Parameters
    ----------
    prefix : str
        The prefix, such as ``'model.'``.
    besides : str, optional
        Regular expression for names in the network to which saving does not add the prefix.
    """

    def __init__(self, prefix: str, besides: str | None = None) -> None:
        self._prefix, self._besides = prefix, besides

    def load(self, arrays: Arrays) -> Arrays:
        found: Arrays = {}
        for name, array in arrays.items():
            _put(found, name.removeprefix(self._prefix), array)
        return found

    def save(self, arrays: Arrays) -> Arrays:
        return {
            name
            if self._besides is not None and re.fullmatch(self._besides, name)
            else self._prefix + name: array
            for name, array in arrays.items()
        }


class Drop(Entry):
    """Ignores arrays of the file, such as constants that the network computes. Saving does not
    write them.

    Parameters
    ----------
    pattern : str
        Regular expression for names in the file.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def load(self, arrays: Arrays) -> Arrays:
        return {
            name: array for name, array in arrays.items() if not re.fullmatch(self._pattern, name)
        }

    def save(self, arrays: Arrays) -> Arrays:
        return arrays


class _Change(Entry):
    """Changes each matching array without renaming it."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def _each(
        self, arrays: Arrays, change: Callable[[str, LazyArray], LazyArray]
    ) -> dict[str, LazyArray]:
        return {
            name: change(name, array) if re.fullmatch(self._pattern, name) else array
            for name, array in arrays.items()
        }


class Transpose(_Change):
    """Permutes the axes of arrays, such as the weights of GPT-2's ``Conv1D``.

    Parameters
    ----------
    pattern : str
        Regular expression for names.
    axes : sequence of int, default (1, 0)
        Axis i of the network's array is axis ``axes[i]`` of the file's.
    """

    def __init__(self, pattern: str, axes: Sequence[int] = (1, 0)) -> None:
        super().__init__(pattern)
        self._axes = tuple(axes)
        if sorted(self._axes) != list(range(len(self._axes))):
            raise ValueError(f"Transpose: {axes} is not a permutation of axes")

    def load(self, arrays: Arrays) -> Arrays:
        return self._each(
            arrays,
            # Weights in few bits are stored as (units, in_units), even for Conv1D.
            lambda name, array: (
                array if array.quantized() else self._changed(name, array, self._axes)
            ),
        )

    def save(self, arrays: Arrays) -> Arrays:
        back = [self._axes.index(axis) for axis in range(len(self._axes))]
        return self._each(arrays, lambda name, array: self._changed(name, array, back))

    def _changed(self, name, array, axes):
        if len(array.shape) != len(axes):
            raise MXNetError(
                f"map: '{name}' of shape {array.shape} cannot be transposed by {self._axes}"
            )
        return Transposed(array, axes)


class Permute(_Change):
    """Reorders the rows of each head for the two styles of rotary embeddings: rotated pairs are
    adjacent ('pairs', GPT-J), or the first element is in the first half and the second element in
    the second half ('halves', GPT-NeoX and Llama).

    Parameters
    ----------
    pattern : str
        Regular expression for names.
    size : int
        Number of rows of a head.
    to : {'halves', 'pairs'}, default 'halves'
        Order of the rows in the network. The file has the other order.
    axis : int, default 0
        The axis of the rows.
    """

    def __init__(self, pattern: str, size: int, to: str = "halves", axis: int = 0) -> None:
        super().__init__(pattern)
        if to not in ("halves", "pairs"):
            raise ValueError(f"Permute: to must be 'halves' or 'pairs', not {to!r}")
        _check_axis("Permute", axis)
        if size < 2 or size % 2:
            raise ValueError(f"Permute: size must be even, not {size}")
        halves = [*range(0, size, 2), *range(1, size, 2)]
        pairs = [halves.index(i) for i in range(size)]
        self._axis, self._size = axis, size
        self._order, self._back = (halves, pairs) if to == "halves" else (pairs, halves)

    def load(self, arrays: Arrays) -> Arrays:
        return self._each(arrays, lambda name, array: self._changed(name, array, self._order))

    def save(self, arrays: Arrays) -> Arrays:
        return self._each(arrays, lambda name, array: self._changed(name, array, self._back))

    def _changed(self, name, array, order):
        if self._axis >= len(array.shape) or array.shape[self._axis] % self._size:
            raise MXNetError(
                f"map: '{name}' of shape {array.shape} does not consist of heads of {self._size} "
                f"along axis {self._axis}"
            )
        return Reordered(array, self._axis, order)


class Reshape(_Change):
    """Changes the shape of small arrays.

    Parameters
    ----------
    pattern : str
        Regular expression for names.
    file, network : sequence of int
        The shapes.
    """

    def __init__(self, pattern: str, file: Sequence[int], network: Sequence[int]) -> None:
        super().__init__(pattern)
        self._file, self._network = tuple(file), tuple(network)
        if math.prod(self._file) != math.prod(self._network):
            raise ValueError(f"Reshape: {file} and {network} have different sizes")

    def load(self, arrays: Arrays) -> Arrays:
        return self._each(arrays, lambda name, array: self._changed(name, array, self._network))

    def save(self, arrays: Arrays) -> Arrays:
        return self._each(arrays, lambda name, array: self._changed(name, array, self._file))

    def _changed(self, name, array, shape):
        if math.prod(array.shape) != math.prod(shape):
            raise MXNetError(f"map: '{name}' of shape {array.shape} cannot have shape {shape}")
        return Reshaped(array, shape)


class Shift(_Change):
    """Adds a constant, such as 1 to the factors of norms that a file stores minus 1.

    Parameters
    ----------
    pattern : str
        Regular expression for names.
    by : float
        Is added to the values of the file.
    """

    def __init__(self, pattern: str, by: float) -> None:
        super().__init__(pattern)
        self._by = float(by)

    def load(self, arrays: Arrays) -> Arrays:
        return self._each(arrays, lambda name, array: Shifted(array, self._by))

    def save(self, arrays: Arrays) -> Arrays:
        return self._each(arrays, lambda name, array: Shifted(array, -self._by))


def _divided(name, array, names, axis, sizes):
    """Yields (name, part) for the parts of an array along an axis."""
    total = array.shape[axis] if axis < len(array.shape) else 0
    if sizes is None and total and total % len(names) == 0:
        sizes = [total // len(names)] * len(names)
    if not total or sizes is None or sum(sizes) != total:
        parts = f"{len(names)} equal parts" if sizes is None else f"parts of {list(sizes)}"
        raise MXNetError(
            f"map: '{name}' of shape {array.shape} cannot be split into {parts} along axis {axis}"
        )
    at = 0
    for part, size in zip(names, sizes):
        yield part, Part(array, axis, at, at + size)
        at += size


def _check_parts(entry, what, parts, axis, sizes):
    """Checks the parts of a Split or Join."""
    _check_axis(entry, axis)
    if isinstance(parts, str) or not parts:
        raise ValueError(f"{entry}: {what} must be a list with at least one item, not {parts!r}")
    if sizes is not None and (len(sizes) != len(parts) or min(sizes) < 0):
        raise ValueError(
            f"{entry}: sizes must be {len(parts)} sizes, one for each of the {what}, not {sizes}"
        )


def _split(arrays, translations, axis, sizes):
    """Splits each array whose name matches into one array for each translation."""
    found: Arrays = {}
    for name, array in arrays.items():
        names = [translation.match(name) for translation in translations]
        if None in names:
            _put(found, name, array)
            continue
        for new, part in _divided(name, array, names, axis, sizes):
            _put(found, new, part)
    return found


def _join(arrays, translations, axis):
    """Joins the arrays that the translations give the same name, in the order of the translations.
    Incomplete sets do not change."""
    sets: dict[str, dict[int, str]] = {}
    for name in arrays:
        for at, translation in enumerate(translations):
            new = translation.match(name)
            if new is not None:
                sets.setdefault(new, {})[at] = name
                break
    whole = {new: own for new, own in sets.items() if len(own) == len(translations)}
    used = {name for own in whole.values() for name in own.values()}
    found = {name: array for name, array in arrays.items() if name not in used}
    for new, own in whole.items():
        parts = [arrays[own[at]] for at in range(len(own))]
        shapes = {(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}
        if len(shapes) > 1 or any(axis >= len(part.shape) for part in parts):
            raise MXNetError(
                f"map: {_listed(own.values())} have shapes {[part.shape for part in parts]}, "
                f"which cannot be joined along axis {axis} to '{new}'"
            )
        _put(found, new, Joined(parts, axis))
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


class Split(Entry):
    """Splits an array of the file into several parameters: fused projections such as ``c_attn``,
    ``qkv_proj`` and ``gate_up_proj``. Saving joins them.

    Parameters
    ----------
    pattern : str
        Regular expression for names in the file.
    names : sequence of str
        Names in the network; ``\\1`` inserts the text of a group.
    axis : int, default 0
        The axis along which to split.
    sizes : sequence of int, optional
        Sizes of the parts; by default equal.
    """

    def __init__(
        self, pattern: str, names: Sequence[str], axis: int = 0, sizes: Sequence[int] | None = None
    ) -> None:
        _check_parts("Split", "names", names, axis, sizes)
        self._to = [Translation(pattern, name) for name in names]
        self._axis, self._sizes = axis, sizes

    def load(self, arrays: Arrays) -> Arrays:
        return _split(arrays, self._to, self._axis, self._sizes)

    def save(self, arrays: Arrays) -> Arrays:
        return _join(arrays, [to.inverse() for to in self._to], self._axis)


class Join(Entry):
    """Joins several arrays of the file into one parameter. Saving splits it. The opposite of
    `Split`.

    Parameters
    ----------
    patterns : sequence of str
        Regular expressions for names in the file, in the order of the parts. Their groups
        correspond to each other.
    name : str
        Name in the network; ``\\1`` inserts the text of a group.
    axis : int, default 0
        The axis along which to join.
    sizes : sequence of int, optional
        Sizes of the parts; by default equal.
    """

    def __init__(
        self, patterns: Sequence[str], name: str, axis: int = 0, sizes: Sequence[int] | None = None
    ) -> None:
        _check_parts("Join", "patterns", patterns, axis, sizes)
        self._to = [Translation(pattern, name) for pattern in patterns]
        self._axis, self._sizes = axis, sizes

    def load(self, arrays: Arrays) -> Arrays:
        return _join(arrays, self._to, self._axis)

    def save(self, arrays: Arrays) -> Arrays:
        return _split(arrays, [to.inverse() for to in self._to], self._axis, self._sizes)


class Stack(Entry):
    """Stacks arrays of the file, such as the weights of experts, along a new axis. Saving unstacks
    them.

    Parameters
    ----------
    pattern : str
        Regular expression for names in the file. ``{}`` represents the index, which counts from 0.
    name : str
        Name in the network; ``\\1`` inserts the text of a group.
    axis : int, default 0
        The new axis.
    """

    def __init__(self, pattern: str, name: str, axis: int = 0) -> None:
        if pattern.count("{}") != 1:
            raise ValueError(f"Stack: the pattern must contain '{{}}' once, not {pattern!r}")
        _check_axis("Stack", axis)
        self._pattern, self._name, self._axis = pattern, name, axis

    def load(self, arrays: Arrays) -> Arrays:
        before, after = self._pattern.split("{}")
        pattern = re.compile(f"{before}(?P<index>0|[1-9][0-9]{{0,8}}){after}")
        # Groups after the index have numbers that are larger by one.
        groups = re.compile(before).groups
        name = re.sub(
            r"\\(\d)",
            lambda found: f"\\{int(found[1]) + (int(found[1]) > groups)}",
            self._name,
        )
        sets: dict[str, dict[int, str]] = {}
        rest: Arrays = {}
        for key, array in arrays.items():
            found = pattern.fullmatch(key)
            if found is None:
                rest[key] = array
            else:
                sets.setdefault(found.expand(name), {})[int(found["index"])] = key
        for new, own in sets.items():
            if max(own) >= len(own):
                missing = list(itertools.islice((i for i in range(max(own)) if i not in own), 5))
                raise MXNetError(
                    f"map: the arrays of '{new}' are incomplete: {self._pattern} is missing for "
                    f"the indices {missing}"
                )
            parts = [arrays[own[index]] for index in range(len(own))]
            if len({part.shape for part in parts}) > 1 or self._axis > len(parts[0].shape):
                raise MXNetError(
                    f"map: the arrays of '{new}' cannot be stacked along axis {self._axis}: their "
                    f"shapes are {sorted({part.shape for part in parts})}"
                )
            _put(rest, new, Stacked(parts, self._axis))
        return rest

    def save(self, arrays: Arrays) -> Arrays:
        mark = "\0"  # cannot be part of a name
        back = Translation(self._pattern.replace("{}", mark), self._name).inverse()
        found: Arrays = {}
        for name, array in arrays.items():
            new = back.match(name)
            if new is None:
                _put(found, name, array)
                continue
            for index in range(array.shape[self._axis]):
                _put(found, new.replace(mark, str(index)), Selected(array, self._axis, index))
        return found
