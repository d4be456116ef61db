"""The nodes of a file as importers read them, and the shapes and dtypes of their inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from ..base import MXNetError
from ..symbol import Symbol
from ..symbol._graph import entries_of
from ..symbol._infer import UNKNOWN
from ._package import ONNXError, dtype_of

if TYPE_CHECKING:
    from typing import Any


class Open:
    """A size that a file leaves open, identified by its value in each run of inference."""

    __slots__ = ("runs",)

    def __init__(self, runs: tuple[int, ...]) -> None:
        self.runs = runs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Open) and self.runs == other.runs

    def __hash__(self) -> int:
        return hash(self.runs)


def size_of(runs: Any) -> Any:
    """Returns the size that has these values in the runs of inference: an int if all are equal,
    else an `Open`."""
    runs = tuple([int(size) for size in runs])
    return runs[0] if len(set(runs)) == 1 else Open(runs)


def runs_of(size: Any) -> tuple[int, ...]:
    return size.runs if isinstance(size, Open) else (int(size),) * RUNS


# Maximum length of axes, sizes, pads and other lists. They become Python numbers, which need much
# more memory than the file.
_LONGEST = 4096


def _listed(array, what):
    """Returns the elements of a constant that is used as a list of numbers."""
    found = np.asarray(array).reshape(-1)
    if found.size > _LONGEST:
        raise ONNXError(f"{what or 'a list'} has {found.size} elements, more than {_LONGEST}")
    return found


class Source:
    """A node of a file. `value`, `symbol` and `constant` return an input, or None if the node omits
    it."""

    def __init__(self, graph: Any, node: Any, onnx: Any) -> None:
        self.graph, self.op = graph, node.op_type
        self.inputs, self.outputs = list(node.input), list(node.output)
        self.name = graph.node_name(node)
        self.opset = graph.opset
        self._attributes = {
            item.name: onnx.helper.get_attribute_value(item) for item in node.attribute
        }

    @property
    def count(self):
        return len(self.inputs)

    def has(self, place: int) -> bool:
        return place < len(self.inputs) and self.inputs[place] != ""

    def wants(self, place: int) -> bool:
        """True if an output is used."""
        return place < len(self.outputs) and self.outputs[place] in self.graph.used

    def attribute(self, name: str, default: Any = None) -> Any:
        found = self._attributes.get(name, default)
        return found.decode() if isinstance(found, bytes) else found

    def value(self, place: int) -> Any:
        """Returns an input unconverted: a Symbol, or the array of a constant."""
        if not self.has(place):
            return None
        return self.graph.values[self.inputs[place]]

    def symbol(self, place: int) -> Any:
        """Returns an input as a Symbol."""
        return self.graph.symbol(self.inputs[place]) if self.has(place) else None

    def constant(self, place: int, what: str = "") -> Any:
        """Returns an input as an array; raises ONNXError if its values are not in the file."""
        found = self.value(place)
        if isinstance(found, Symbol):
            raise ONNXError(
                f"its input {self.inputs[place]} ({what or 'number ' + str(place)}) is computed "
                "when the graph runs, but it must be a constant"
            )
        return found

    def integers(self, place: int, attribute: str | None = None) -> list[int] | None:
        """Returns integers from an attribute of older opsets, or from a constant input."""
        told = self.attribute(attribute) if attribute else None
        if told is not None:
            return list(told) if isinstance(told, (list, tuple)) else [told]
        found = self.constant(place, attribute or "")
        if found is None:
            return None
        found = _listed(found, attribute)
        if any(isinstance(item, Open) for item in found):
            raise ONNXError(f"{attribute or 'a value'} depends on a dynamic size")
        return [int(item) for item in found]

    def sizes(self, place: int, attribute: str | None = None) -> list[Any]:
        """Like `integers`, with `Open` for sizes that the file leaves open."""
        told = self.attribute(attribute) if attribute else None
        found = self.constant(place, attribute or "") if told is None else np.asarray(told)
        found = _listed(found, attribute)
        return [item if isinstance(item, Open) else int(item) for item in found]

    def numbers(self, place: int, attribute: str) -> list[float] | None:
        """Returns numbers from an attribute of older opsets, or from a constant input."""
        told = self.attribute(attribute)
        found = self.constant(place, attribute) if told is None and self.has(place) else told
        return None if found is None else [float(item) for item in _listed(found, attribute)]

    def refuse(self, what: str) -> Any:
        raise ONNXError(what)

    def number(self, place: int) -> float | None:
        found = self.constant(place)
        return None if found is None else float(np.asarray(found).reshape(-1)[0])

    def shape(self, place: int) -> Any:
        """Returns the shape of an input, with `Open` for open sizes; None if it is unknown."""
        found = self.value(place)
        return self.graph.shapes.of(found)[0] if isinstance(found, Symbol) else found.shape

    def dtype(self, place: int) -> str:
        found = self.value(place)
        if isinstance(found, Symbol):
            return self.graph.shapes.of(found)[1] or "float32"
        return _core.dtype_name(found.dtype)

    def ndim(self, place: int) -> int:
        shape = self.shape(place)
        if shape is None:
            raise ONNXError(
                f"the number of axes of {self.inputs[place]} is not known; the file must "
                "contain the shapes of its inputs"
            )
        return len(shape)

    def is_scalar(self, place: int) -> bool:
        """True if an input has no axes in the file. Its symbol has one, of size 1."""
        return self.inputs[place] in self.graph.scalars

    def size(self, place: int, axis: int) -> int:
        """Returns the size of an axis, which must be known."""
        ndim = self.ndim(place)
        if not -ndim <= axis < ndim:
            raise ONNXError(f"{self.inputs[place]} has no axis {axis}")
        size = self.shape(place)[axis]
        if isinstance(size, Open):
            raise ONNXError(f"the size of axis {axis} of {self.inputs[place]} must be known")
        return size


class Shapes:
    """The shapes and dtypes of symbols. Each node's are inferred once, from those of its inputs.

    A size that the file leaves open has several values, one for each run.
    """

    def __init__(self) -> None:
        self._known: dict[Any, list[list[Any]]] = {}  # node -> results per run

    def tell(self, symbol: Symbol, shape: Any, dtype: str) -> None:
        """Sets the description of a variable; `shape` holds int and Open, or is None."""
        runs = (
            [None] * RUNS if shape is None else list(zip(*[runs_of(size) for size in shape]))
        ) or [()] * RUNS
        self._known[entries_of(symbol)[0][0]] = [[(sizes, dtype)] for sizes in runs]

    def of(self, symbol: Symbol) -> Any:
        """Returns (shape, dtype), with None for unknown ones."""
        node, index = entries_of(symbol)[0]
        stack = [node]
        while stack:
            last = stack[-1]
            rest = [source for source, _ in last.inputs if source not in self._known]
            if last in self._known or not rest:
                stack.pop()
                if last not in self._known:
                    self._known[last] = [self._infer(last, run) for run in range(RUNS)]
            else:
                stack.extend(rest)
        found = [results[index] for results in self._known[node]]
        shapes = [shape for shape, _ in found]
        if None in shapes or any(0 in shape for shape in shapes):
            return None, found[0][1]
        return tuple([size_of(sizes) for sizes in zip(*shapes)]), found[0][1]

    def _infer(self, node, run):
        if node.call is None:
            return [UNKNOWN]
        inputs = [self._known[source][run][index] for source, index in node.inputs]
        try:
            return node.call.infer(inputs, [UNKNOWN] * node.num_outputs, False)[1]
        except MXNetError as error:
            raise ONNXError(f"{node.name}: {error}") from None


# Values of open sizes in the runs of inference. The first set suits large image networks, the
# second one networks with small tables. The k-th open size gets the k-th value of each run.
RUNS = 2
WAYS = (
    ((2016, 4032, 6048, 8064, 10080), (14112, 18144, 22176, 26208, 30240)),
    ((2, 3, 5, 7, 11), (13, 17, 19, 23, 29)),
)


def told_sizes(info: Any, shape: Any, way: Any, names: dict[str, int]) -> Any:
    """Returns the shape of an input with `Open` for open sizes.

    Sizes with equal names are equal, and so are unnamed sizes of first axes.
    """
    if shape is None:
        return None
    sizes = []
    for axis, (size, told) in enumerate(zip(shape, info.type.tensor_type.shape.dim)):
        label = told.dim_param or ("" if axis == 0 else f"{info.name} {axis}")
        if size == 0:
            place = names.setdefault(label, len(names))
            more = place // len(way[0])
            size = Open(tuple([run[place % len(run)] + more for run in way]))
        sizes.append(size)
    return tuple(sizes)


def told_shape(info: Any) -> tuple[Any, str]:
    """Returns (shape or None, dtype) of a graph input, with 0 for unknown sizes."""
    kind = info.type.tensor_type
    if not info.type.HasField("tensor_type"):
        raise ONNXError(f"the input {info.name} is not a tensor")
    shape = None
    if kind.HasField("shape"):
        shape = tuple(
            [max(item.dim_value, 0) if item.HasField("dim_value") else 0 for item in kind.shape.dim]
        )
    return shape, dtype_of(kind.elem_type)
