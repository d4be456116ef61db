"""The graph during export: values, calls of ops, and the `Builder` that adds nodes."""

from __future__ import annotations

import ast
import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from .. import _core, ndarray as nd
from ..base import MXNetError
from ..context import cpu
from ..symbol._graph import made_at, row_name
from ._package import NUMBERS, ONNXError
from ._sizes import Dynamic
from ._table import export_of

if TYPE_CHECKING:
    from typing import Any

# A node of constants is folded if its results have at most this many elements, or at most as many
# elements as its inputs. Otherwise, folding would make the file much larger.
FOLDED_ELEMENTS = 1 << 16


class Value(str):
    """The name of a value, with its shape, dtype, array and fill.

    Sizes are int or `Dynamic`. `array` has the contents of a constant. `fill` is the number that
    fills a value of dynamic size. Otherwise, they are None.
    """

    __slots__ = ("shape", "dtype", "array", "fill")

    shape: tuple[Any, ...]
    dtype: str
    array: Any
    fill: float | None

    @property
    def ndim(self):
        return len(self.shape)

    def size(self, axis):
        """Returns the size of an axis, which must be fixed."""
        size = self.shape[axis]
        if isinstance(size, Dynamic):
            raise ONNXError(f"the size of axis {axis} of {self} must be fixed")
        return size

    @property
    def sizes(self):
        """All sizes, which must be fixed."""
        return tuple([self.size(axis) for axis in range(self.ndim)])


def value(
    name: str, shape: tuple[Any, ...], dtype: str, array: Any = None, fill: float | None = None
) -> Value:
    made = Value(name)
    made.shape, made.dtype, made.array, made.fill = shape, dtype, array, fill
    return made


def parsed(text: str) -> Any:
    """Parses a parameter of an op."""
    if text in ("inf", "-inf", "nan"):
        return float(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


class Call:
    """A call of an op: ``call["axis"]`` is a parameter; `outputs` are (shape, dtype) pairs."""

    def __init__(self, node, inputs, outputs) -> None:
        self.node, self.inputs, self.outputs = node, inputs, outputs
        self.op, self.name = row_name(node.call), node.name

    def __getitem__(self, key: str) -> Any:
        return parsed(self.node.call.text(key))

    @property
    def shape(self):
        """The shape of the first output."""
        return self.outputs[0][0]

    @property
    def dtype(self):
        return self.outputs[0][1]

    def axis(self, key: str = "axis", ndim: int | None = None) -> int:
        """Returns an axis as a non-negative index."""
        axis = self[key]
        return axis + (self.inputs[0].ndim if ndim is None else ndim) * (axis < 0)

    def refuse(self, what: str) -> None:
        raise ONNXError(what)


class Builder:
    """Adds nodes: ``g.Add(a, b)`` adds a node and returns the name of its result.

    Inputs are names. Numbers (of the dtype of the call being converted), lists of integers (int64)
    and arrays become constants; None is an omitted input. Attributes are keywords. With
    ``outputs=n`` the result is a list of n names.
    """

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.dtypes: dict[str, str] = {}  # name of a constant -> dtype
        self._fills: dict[str, float] = {}  # the fill value of each ConstantOfShape
        self.inputs: list[Value] = []
        self.names: set[str] = set()
        self.call: Any = None  # the call being converted
        self.number_dtype = "float32"
        self._scope, self._near = "", ()

    def __getattr__(self, op: str) -> Any:
        if not op[0].isupper():
            raise AttributeError(op)
        return partial(self.emit, op)

    def unique(self, name: str) -> str:
        made, number = name, 0
        while made in self.names:
            number += 1
            made = f"{name}_{number}"
        self.names.add(made)
        return made

    def constant(self, array: Any, dtype: str | None = None, name: str | None = None) -> str:
        """Adds an array as a constant."""
        array = np.ascontiguousarray(array) if np.ndim(array) else np.asarray(array)
        name = self.unique(name or f"{self._scope}/constant")
        self.constants[name] = array
        self.dtypes[name] = dtype or _core.dtype_name(array.dtype)
        return name

    def number(self, number: Any, dtype: str | None = None) -> str:
        """Adds a number as a 0-d constant."""
        dtype = dtype or self.number_dtype
        return self.constant(nd.array([number], dtype=dtype).asnumpy().reshape(()), dtype)

    def integers(self, sizes: Any) -> str:
        return self.constant(np.asarray(sizes, dtype=np.int64).reshape(-1))

    def _input(self, given):
        if given is None:
            return ""
        if isinstance(given, str):
            return str(given)
        if isinstance(given, (bool, int, float)):
            return self.number(given)
        if isinstance(given, np.ndarray):
            return self.constant(given)
        return self.integers(given)

    def emit(self, op: str, *inputs: Any, outputs: int = 0, **attributes: Any) -> Any:
        names = [self._input(item) for item in inputs]
        while names and not names[-1]:
            names.pop()
        results = [self.unique(f"{self._scope}/{op}") for _ in range(outputs or 1)]
        kept = {key: given for key, given in attributes.items() if given is not None}
        self.nodes.append(self._onnx.helper.make_node(op, names, results, name=results[0], **kept))
        return results if outputs else results[0]

    # --- Helpers for exporters ---------------------------------------------------------------

    def cast(self, name: str, dtype: str, source: str | None = None) -> str:
        """Casts a value to a dtype; `source` is its own dtype, if known."""
        source = source or getattr(name, "dtype", None)
        return name if source == dtype else self.Cast(name, to=NUMBERS[dtype])

    def reshape(self, name: str, shape: Any, source: Any = None) -> str:
        """Reshapes a value to a shape with possibly dynamic sizes; `source` is its own shape."""
        source = getattr(name, "shape", ()) if source is None else source
        moving = [axis for axis, size in enumerate(shape) if isinstance(size, Dynamic)]
        sizes = list(shape)
        if len(moving) > 1:
            for axis in list(moving):
                if axis < len(source) and source[axis] == shape[axis]:
                    sizes[axis] = 0
                    moving.remove(axis)
        if len(moving) > 1:
            return self.Reshape(name, self.sizes(shape))
        for axis in moving:
            sizes[axis] = -1
        return self.Reshape(name, sizes)

    def sizes(self, shape: Any) -> str:
        """Returns sizes, some of them dynamic, as an integer value computed from input shapes."""
        if not any(isinstance(size, Dynamic) for size in shape):
            return self.integers(shape)
        parts = [
            self._dynamic(size) if isinstance(size, Dynamic) else self.integers([size])
            for size in shape
        ]
        return self.Concat(*parts, axis=0) if len(parts) > 1 else parts[0]

    def _dynamic(self, size):
        known = [
            (other, source, axis)
            for source in (*self.inputs, *self._near)
            for axis, other in enumerate(source.shape)
            if isinstance(other, Dynamic)
        ]
        for other, source, axis in known:
            if other == size:
                return self._axis_size(source, axis)
        for other, source, axis in known:  # compute the size as a multiple or divisor of another
            for above, below, op in ((size, other, self.Mul), (other, size, self.Div)):
                if all(a % b == 0 for a, b in zip(above, below)):
                    times = {a // b for a, b in zip(above, below)}
                    if len(times) == 1:
                        return op(self._axis_size(source, axis), self.integers([times.pop()]))
        for place, (other, source, axis) in enumerate(known):
            for second, source2, axis2 in known[place:]:
                if all(a == b * c for a, b, c in zip(size, other, second)):
                    return self.Mul(self._axis_size(source, axis), self._axis_size(source2, axis2))
        raise ONNXError(
            "a size depends on dynamic sizes in a way that ONNX cannot express; make fewer axes "
            "dynamic"
        )

    def _axis_size(self, source, axis):
        return self.Gather(self.Shape(source), self.integers([axis]), axis=0)

    def full(self, shape: Any, number: Any, dtype: str) -> str:
        """Returns an array filled with one number."""
        if any(isinstance(size, Dynamic) for size in shape):
            filled = nd.array([number], dtype=dtype).asnumpy()
            tensor = self.tensor("value", filled, dtype)
            name = self.ConstantOfShape(self.sizes(shape), value=tensor)
            self._fills[name] = number
            return name
        return self.constant(nd.full(shape, number, dtype=dtype).asnumpy(), dtype)

    def tensor(self, name: str, array: Any, dtype: str) -> Any:
        """Converts an array to an ONNX tensor."""
        data = array
        # NumPy lacks bfloat16, so the values are in float32. The upper 16 bits are the bfloat16.
        if dtype == "bfloat16":
            data = (np.ascontiguousarray(array).view(np.uint32) >> 16).astype(np.uint16)
        return self._onnx.TensorProto(
            name=name, data_type=NUMBERS[dtype], dims=array.shape, raw_data=data.tobytes()
        )

    # --- Nodes ---------------------------------------------------------------------------------

    def convert(self, node: Any, inputs: list[Value], outputs: Any) -> list[Value]:
        """Adds the conversion of a node; returns its results."""
        names = [node.output_name(index) for index in range(len(outputs))]
        arrays = _folded(node, inputs, outputs)
        if arrays is not None:
            # A node must compute each output of the model, so constants need other names.
            names = [
                self.constant(array, dtype, f"{name}/constant")
                for array, (_, dtype), name in zip(arrays, outputs, names)
            ]
        else:
            names = self._converted(node, inputs, outputs, names)
        return [
            value(name, shape, dtype, self.constants.get(name), self._fills.get(name))
            for name, (shape, dtype) in zip(names, outputs)
        ]

    def _converted(self, node, inputs, outputs, names):
        row = export_of(row_name(node.call))
        if row is None:
            raise ONNXError(
                f"ONNX export: node '{node.name}': the op {node.call.name} cannot be converted; "
                "compute that part outside the exported block, or with ops that "
                f"mx.onnx.get_operator_support() lists{made_at(node)}"
            )
        begin, call = len(self.nodes), Call(node, inputs, outputs)
        self.number_dtype = inputs[0].dtype if inputs else call.dtype
        self.call, self._scope, self._near = call, node.name, inputs
        try:
            results = row.convert(self, call, *inputs)
        except ONNXError as error:
            raise ONNXError(
                f"ONNX export: node '{node.name}' (op {node.call.name}): {error}{made_at(node)}"
            ) from None
        results = [results] if isinstance(results, str) else list(results)
        if node.call.numpy:  # conversions return shape (1,) for results without dimensions
            results = [
                result if shape else self.Reshape(result, [])
                for result, (shape, _) in zip(results, outputs)
            ]
        return self._renamed(begin, results, names)

    def _renamed(self, begin, results, names):
        """Renames the results of the nodes added since index `begin` to the names of the
        outputs."""
        made = {name for node in self.nodes[begin:] for name in node.output}
        to = {
            str(result): self.unique(name) for result, name in zip(results, names) if result in made
        }
        self._exchange(begin, to)
        for name in set(to).intersection(self._fills):
            self._fills[to[name]] = self._fills[name]
        return [to.get(str(result), str(result)) for result in results]

    def _exchange(self, begin, to):
        """Replaces names (`to`: old -> new) in the nodes added since index `begin`."""
        for node in self.nodes[begin:]:
            for fields in (node.input, node.output):
                for place, name in enumerate(fields):
                    if name in to:
                        fields[place] = to[name]

    def rename(self, source: str, name: str) -> bool:
        """Renames a value if a node computes it. Returns False, and changes nothing, if the value
        is an input or a constant."""
        computed = any(source in node.output for node in self.nodes)
        if computed:
            self._exchange(0, {str(source): name})
        return computed


def _folded(node, inputs, outputs):
    """Computes the results of a node whose inputs are constants. Returns None if the node must not
    be folded."""
    if not inputs or any(source.array is None for source in inputs):
        return None
    count = sum(math.prod(shape) for shape, _ in outputs)
    most = sum(source.array.size for source in inputs)
    if count > max(most, FOLDED_ELEMENTS) or "random" in _flags(node):
        return None
    arrays = [nd.array(item.array, ctx=cpu(), dtype=item.dtype) for item in inputs]
    try:
        if node.call.copies:
            return [array.asnumpy() for array in arrays]
        return [result.asnumpy() for result in node.call.run(arrays)[: len(outputs)]]
    except MXNetError as error:
        raise ONNXError(f"ONNX export: node '{node.name}': {error}") from None


def _flags(node):
    return _core.get_op(node.call.name).describe()["flags"] if hasattr(node.call, "text") else ()
