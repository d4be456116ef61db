"""Imports an ONNX file as a Symbol with its parameters, or as a block."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from .. import _core, ndarray as nd, symbol as sym
from .._internal.files import open_regular
from ..base import MXNetError
from ..name import NameManager
from ..symbol import Group, Symbol, var
from ..symbol._graph import entries_of, states, topological
from . import _ops as _ops
from ._fold import FOLDS, fold
from ._ops.elementwise import ELEMENTWISE
from ._package import DOMAINS, OPSET, ONNXError, dtype_of, onnx_package
from ._source import WAYS, Open, Shapes, Source, told_shape, told_sizes
from ._table import IMPORTS

# The operators whose input gives the shape of their result -> that input
_SHAPE_INPUTS = {"Reshape": 1}

if TYPE_CHECKING:
    from typing import Any

    from .._internal.types import Devices, NDArray
    from ..gluon import SymbolBlock

# The oldest supported opset. Newer files are supported if their ops are known.
OLDEST = 7
# Limit on the bytes of constants: _TIMES the size of the file, plus _PLUS.
_TIMES, _PLUS = 16, 256 << 20
# Limit on tensors that share bytes of a model's external files: the tensors' total size may be at
# most this multiple of the files' size.
_SHARED = 4


def import_model(
    model_file: str,
) -> tuple[Symbol, dict[str, NDArray], dict[str, NDArray]]:
    """Reads an ONNX file.

    Parameters
    ----------
    model_file : str
        The path of the file.

    Returns
    -------
    sym : Symbol
    arg_params, aux_params : dict of str to NDArray
        The contents of the file: parameters, and states such as BatchNorm's running means.

    Raises
    ------
    MXNetError
        If the file is not an ONNX file, is damaged, or has an op that cannot be converted; the
        error names it.
    """
    graph = _read(model_file)
    return graph.symbols(), *graph.parameters()


def import_to_gluon(model_file: str, ctx: Devices | None = None) -> SymbolBlock:
    """Reads an ONNX file as a block.

    Parameters
    ----------
    model_file : str
        The path of the file.
    ctx : Context or list of Context, optional
        The devices of its parameters.
    """
    from ..gluon import SymbolBlock

    graph = _read(model_file)
    symbol = graph.symbols()
    if not graph.inputs:
        raise ONNXError(f"{model_file} has no inputs, but a block needs inputs; see import_model")
    arguments, auxiliary = graph.parameters()
    arrays = {**arguments, **auxiliary}
    inputs = [var(name, dtype=dtype) for name, _, dtype in graph.inputs]
    block = SymbolBlock(symbol, inputs)
    block.collect_params().load_dict(
        arrays, ctx, filename=model_file, cast_dtype=True, dtype_source="saved"
    )
    return block


def get_model_metadata(model_file: str) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Returns the names and shapes of the inputs and outputs of an ONNX file.

    Parameters
    ----------
    model_file : str
        The path of the file.

    Returns
    -------
    dict
        ``input_tensor_data`` and ``output_tensor_data``: lists of (name, shape), with 0 for sizes
        that the file leaves open.
    """
    model = _loaded(onnx_package(), model_file)
    held = {tensor.name for tensor in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in held]
    try:
        return {
            key: [(info.name, told_shape(info)[0] or ()) for info in infos]
            for key, infos in (
                ("input_tensor_data", inputs),
                ("output_tensor_data", model.graph.output),
            )
        }
    except ONNXError as error:
        raise ONNXError(f"{os.fspath(model_file)}: {error}") from None


def _loaded(onnx, path):
    """Loads and checks the model in a file."""
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"file {path} does not exist")
    try:
        with open_regular(path):
            pass  # a pipe would block
        # Tensors in other files are read after the check, which rejects paths outside the folder.
        model = onnx.load(path, load_external_data=False)
        if not model.graph.node and not model.graph.output:
            raise ONNXError("it has no graph")
        onnx.checker.check_model(path)
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # protobuf, the checker and external files raise many types
        raise ONNXError(f"{path} is not a valid ONNX file: {error}") from None
    return model


def _read(path):
    """Reads the graph of a file. Inference tries several sets of values for the sizes that the file
    leaves open (`WAYS`), and uses the first set that is valid for the graph."""
    onnx = onnx_package()
    model, error = _loaded(onnx, path), None
    size = _size(onnx, path, model)
    for way in WAYS:
        try:
            return _Graph(onnx, path, model, way, size)
        except ONNXError as failure:
            error = error or failure
    raise error or ONNXError("no sizes can be tried")


def _external(tensor, key):
    return next((entry.value for entry in tensor.external_data if entry.key == key), None)


def _size(onnx, path, model):
    """Returns the bytes of a file and of the files that hold its tensors.

    Raises ONNXError if too many tensors share the bytes of these files, because each becomes a
    separate array.
    """
    path = os.fspath(path)
    folder = os.path.dirname(os.path.abspath(path))
    helper = onnx.external_data_helper
    tensors = list(model.graph.initializer)
    for node in model.graph.node:
        for item in node.attribute:
            tensors += [item.t] if item.HasField("t") else []
            tensors += item.tensors
    files, wanted = {}, 0
    for tensor in filter(helper.uses_external_data, tensors):
        name = os.path.join(folder, _external(tensor, "location") or "")
        if name not in files:
            files[name] = os.path.getsize(name) if os.path.isfile(name) else 0
        wanted += int(_external(tensor, "length") or files[name])
    if wanted > _SHARED * sum(files.values()):
        raise ONNXError(
            f"{path}: its tensors need {wanted} bytes, but the files have {sum(files.values())}"
        )
    return os.path.getsize(path) + sum(files.values())


def _array(onnx, tensor, folder):
    """Returns a tensor of a file as (array, dtype)."""
    dtype = dtype_of(tensor.data_type)
    try:
        found = onnx.numpy_helper.to_array(tensor, folder)
    except (ValueError, TypeError, OSError) as error:
        raise ONNXError(f"the tensor {tensor.name} is damaged: {error}") from None
    return (found if dtype == "bfloat16" else found.astype(dtype, copy=False)), dtype


def _same(array, other):
    """True if two arrays have equal shapes, dtypes and bits."""
    return array is other or (
        (array.shape, array.dtype) == (other.shape, other.dtype)
        and array.tobytes() == other.tobytes()
    )


class _Graph:
    """The state of one import. `values` maps each name to a Symbol, or to a constant's array."""

    def __init__(self, onnx, path, model, way, size) -> None:
        self._onnx, self._path = onnx, os.fspath(path)
        self._left = _TIMES * size + _PLUS
        versions = [item.version for item in model.opset_import if item.domain in DOMAINS]
        self.opset = max(versions, default=0)
        if self.opset < OLDEST:
            raise ONNXError(
                f"{path} has opset {self.opset}, but only {OLDEST} and newer are supported; "
                "convert it with onnx.version_converter"
            )
        self._proto = model.graph
        self.values: dict[str, Any] = {}
        self.shapes = Shapes()
        self.inputs: list[tuple[str, Any, str]] = []
        self._parameters: dict[str, NDArray] = {}
        self._constants: dict[str, Any] = {}  # the array of each parameter
        self._variables: dict[str, Symbol] = {}
        self.scalars: set[str] = set()  # names of values without axes
        self._names: set[str] = set()
        self.used = {name for node in model.graph.node for name in node.input}
        self.used.update(info.name for info in model.graph.output)
        self._read_tensors(way)
        with NameManager():
            for node in model.graph.node:
                self._convert(node)

    def _read_tensors(self, way):
        names: dict[str, int] = {}
        folder = os.path.dirname(os.path.abspath(self._path))
        for tensor in self._proto.initializer:
            self.values[tensor.name] = _array(self._onnx, tensor, folder)[0]
        for info in self._proto.input:
            if info.name in self.values:
                continue
            shape, dtype = told_shape(info)
            shape = told_sizes(info, shape, way, names)
            self.inputs.append((info.name, shape, dtype))
            self._names.add(info.name)
            self.values[info.name] = symbol = var(info.name)
            if shape == ():
                self.scalars.add(info.name)
            self.shapes.tell(symbol, shape, dtype)
        if self._proto.sparse_initializer:
            raise ONNXError(f"{self._path} has sparse tensors, which are not supported")

    def charge(self, size: int) -> None:
        """Counts the bytes of a computed or copied array against the limit for this file.

        Raises ONNXError if the limit is exceeded.
        """
        self._left -= size
        if self._left < 0:
            raise ONNXError("its constants need more memory than the size of the file allows")

    def tensor(self, tensor: Any) -> Any:
        """Returns a tensor inside a node as an array."""
        return _array(self._onnx, tensor, os.path.dirname(os.path.abspath(self._path)))[0]

    def node_name(self, node: Any) -> str:
        """Returns a unique name for the symbol of a node, based on the name of its first result."""
        base = next((name for name in node.output if name), node.name or node.op_type)
        name, number = base, 0
        while name in self._names or name in self.values:
            number += 1
            name = f"{base}_{number}"
        self._names.add(name)
        return name

    def symbol(self, name: str) -> Symbol:
        """Returns a value as a Symbol; a constant becomes a parameter."""
        found = self.values[name]
        if isinstance(found, Symbol):
            return found
        if found.dtype == object:
            return self._counted(found)
        return self.parameter(name, found)

    def _counted(self, sizes):
        """Returns a Symbol that computes an array of sizes, some of them open, at run time."""
        parts = [
            sym.sum(sym.ones_like(self.vector(size, 0, 1)))
            if isinstance(size, Open)
            else sym.full(shape=(1,), val=int(size))
            for size in sizes.flat
        ]
        found = parts[0] if len(parts) == 1 else sym.concat(*parts, dim=0)
        return sym.cast(found, dtype="int64")

    def vector(self, size: Open, axis: int, ndim: int) -> Symbol:
        """Returns a Symbol of zeros with an open size along `axis`, and size 1 along the remaining
        `ndim - 1` axes. The size is taken from any value that has it."""
        for value in self.values.values():
            shape = self.shapes.of(value)[0] if isinstance(value, Symbol) else None
            if shape is None or size not in shape:
                continue
            for other in range(len(shape)):
                if other != shape.index(size):
                    value = sym.slice_axis(value, axis=other, begin=0, end=1)
            sizes = [1] * ndim
            sizes[axis] = -1
            return sym.reshape(sym.zeros_like(value), shape=tuple(sizes))
        raise ONNXError("it depends on an impossible size that is computed from a dynamic size")

    def parameter(self, name: str, array: Any) -> Symbol:
        """Returns the parameter with the values of an array. Its name is `name`, or a longer one if
        another array has this name, such as the transposed one."""
        array = np.asarray(array)
        if array.dtype == object:
            array = array.astype(np.int64)
        dtype = _core.dtype_name(array.dtype)
        # NDArrays have at least one axis.
        array = array.reshape(array.shape or (1,))
        while name in self._variables and not _same(self._constants[name], array):
            name += "_"
        if name not in self._variables:
            self.charge(array.nbytes)
            self._constants[name] = array
            self._parameters[name] = nd.array(array, dtype=dtype)
            # Nodes share the variable, because names identify variables.
            self._variables[name] = var(name, shape=array.shape, dtype=dtype)
            self.shapes.tell(self._variables[name], array.shape, dtype)
        return self._variables[name]

    def _convert(self, node):
        convert = IMPORTS.get(node.op_type) if node.domain in DOMAINS else None
        if convert is None and (node.domain not in DOMAINS or node.op_type not in FOLDS):
            raise ONNXError(
                f"ONNX import: {self._path}: node '{node.name or node.output[0]}': the op "
                f"{node.domain + '.' if node.domain else ''}{node.op_type} cannot be converted"
            )
        source = Source(self, node, self._onnx)
        try:
            results = self._folded(source)
            if results is None:
                results = (
                    convert(source)
                    if convert
                    else source.refuse(
                        "it depends on values that are only known when the graph runs"
                    )
                )
        except (MemoryError, KeyboardInterrupt):
            raise
        except (MXNetError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ONNXError(
                f"ONNX import: {self._path}: node '{node.name or node.output[0]}' (op "
                f"{node.op_type}): {error}"
            ) from None
        results = results if isinstance(results, list) else [results]
        if self._is_scalar(source):
            self.scalars.update(node.output)
        for name, result in zip(node.output, results):
            if name:
                self.values[name] = result
        for name in node.output[len(results) :]:
            if name in self.used:
                raise ONNXError(
                    f"ONNX import: {self._path}: node '{node.name}' (op {node.op_type}): its "
                    f"output {name} is not available"
                )

    def _is_scalar(self, source):
        """True if the results of a node have no axes."""
        if source.op in ELEMENTWISE:
            return all(self._has_no_axes(name) for name in source.inputs if name)
        place = _SHAPE_INPUTS.get(source.op)
        target = None if place is None else source.value(place)
        return isinstance(target, np.ndarray) and target.size == 0

    def _has_no_axes(self, name):
        found = self.values[name]
        return name in self.scalars if isinstance(found, Symbol) else found.ndim == 0

    def _folded(self, source):
        """Folds a node that computes constants or shapes. Returns None if its inputs are not
        constant, or if it must be converted to an op."""
        if source.op not in FOLDS:
            return None
        if source.op != "Shape" and any(
            isinstance(self.values[name], Symbol) for name in source.inputs if name
        ):
            return None
        return fold(source)

    def symbols(self) -> Symbol:
        """Returns the results of the graph as one symbol."""
        outputs = [self.symbol(info.name) for info in self._proto.output]
        return outputs[0] if len(outputs) == 1 else Group(outputs)

    def parameters(self) -> Any:
        """Returns (arguments, states) that the symbols read, by name."""
        order = topological(entries_of(self.symbols()))
        written = {node.name for node in states(order)}
        read = {node.name for node in order if node.call is None}
        arguments, auxiliary = {}, {}
        for name, array in self._parameters.items():
            if name in read:
                (auxiliary if name in written else arguments)[name] = array
        return arguments, auxiliary


__all__ = ["OPSET", "get_model_metadata", "import_model", "import_to_gluon"]
