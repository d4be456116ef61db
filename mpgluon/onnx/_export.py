"""Exports a Symbol and its parameters, or a HybridBlock, to an ONNX file."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import numpy as np

from .. import ndarray as nd
from ..base import MXNetError
from ..symbol import Symbol, load as load_symbol
from ..symbol._graph import entries_of, row_name, topological
from . import _ops as _ops
from ._expansion import expanded
from ._graph import Builder, Value, value
from ._package import NUMBERS, OPSET, ONNXError, onnx_package
from ._sizes import Dynamic, Inferred, check_known, dtype_name, dynamic_axes
from ._table import EXPORTS, export_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..gluon import HybridBlock

_log = logging.getLogger(__name__)


def get_operator_support(opset_version: int | None = None) -> list[str]:
    """Returns the sorted names of the ops that can be exported.

    Parameters
    ----------
    opset_version : int, optional
        Exports use opset 17; for an older one the list is empty.

    Examples
    --------
    >>> "Convolution" in mx.onnx.get_operator_support()
    True
    """
    if opset_version is not None and opset_version < OPSET:
        return []
    return sorted(EXPORTS)


def export_model(
    sym: Symbol | HybridBlock | str,
    params: dict[str, Any] | Sequence[dict[str, Any]] | str | None = None,
    in_shapes: Sequence[tuple[int, ...]] | None = None,
    in_types: Any = np.float32,
    onnx_file_path: str = "model.onnx",
    verbose: bool = False,
    dynamic: bool = False,
    dynamic_input_shapes: Sequence[tuple[int | str | None, ...]] | None = None,
    run_shape_inference: bool = False,
    input_type: Any = None,
    input_shape: Sequence[tuple[int, ...]] | None = None,
    large_model: bool = False,
) -> str:
    """Writes a network to an ONNX file, in opset 17, for inference.

    Parameters
    ----------
    sym : Symbol, HybridBlock or str
        The network: a symbol, the path of its JSON file, or a block with its parameters.
    params : dict, list of two dicts or str, optional
        Parameters by name, with or without ``arg:`` and ``aux:``; or separate dicts of arguments
        and states; or the path of a ``.params`` file. Not allowed for a block.
    in_shapes : list of tuple
        The shapes of the inputs, in order.
    in_types : dtype or list of dtype, default float32
        The dtypes of the inputs.
    onnx_file_path : str, default 'model.onnx'
        The file to write.
    verbose : bool, default False
        True to log each node.
    dynamic : bool, default False
        True if sizes may differ between calls.
    dynamic_input_shapes : list of tuple, optional
        With `dynamic`, the shapes of the inputs with None or a name for each size that may vary.
        Sizes with the same name are equal. By default, all sizes that the network allows to vary
        may vary.
    run_shape_inference : bool, default False
        True to write the shapes of all intermediate values as well.
    input_type, input_shape : optional
        Older names of `in_types` and `in_shapes`.
    large_model : bool, default False
        True to write parameters to a separate file (``model.onnx.data``), which a model of more
        than 2 GB requires.

    Returns
    -------
    str
        The path of the file.

    Raises
    ------
    MXNetError
        If an op has no conversion; the error names the op and its node.

    Notes
    -----
    Needs the ``onnx`` package: ``pip install 'mpgluon[onnx]'``. A network on several devices
    becomes one graph without devices.

    Examples
    --------
    >>> net = gluon.nn.Dense(3, in_units=4)
    >>> net.initialize()
    >>> export = mx.onnx.export_model
    >>> export(net, in_shapes=[(1, 4)], onnx_file_path="dense.onnx")  # doctest: +SKIP
    'dense.onnx'
    """
    onnx = onnx_package()
    shapes = _listed(in_shapes if input_shape is None else input_shape, "in_shapes")
    shapes = [tuple(shape) for shape in shapes]
    types = in_types if input_type is None else input_type
    types = list(types) if isinstance(types, (list, tuple)) else [types] * len(shapes)
    if len(types) != len(shapes):
        raise ValueError(f"in_types has {len(types)} dtypes, but there are {len(shapes)} in_shapes")
    types = [dtype_name(dtype) for dtype in types]
    symbol, arrays = _network(sym, params, list(zip(shapes, types)))
    graph = _Graph(onnx, symbol, arrays, shapes, types, _arguments(sym, len(shapes)))
    model = graph.dynamic_model(dynamic_input_shapes, verbose) if dynamic else graph.model(verbose)
    if run_shape_inference:
        model = onnx.shape_inference.infer_shapes(model)
    _save(onnx, model, onnx_file_path, large_model)
    return onnx_file_path


def _listed(shapes, what):
    if shapes is None or (shapes and all(isinstance(size, int) for size in shapes)):
        raise ValueError(f"{what} must be a list of the inputs' shapes, such as [(1, 3, 224, 224)]")
    return list(shapes)


def _save(onnx, model, path, large):
    folder, name = os.path.split(os.path.abspath(path))
    beside = os.path.join(folder, f"{name}.data")
    if large and os.path.exists(beside):
        os.remove(beside)  # new data would be appended to an existing file
    if not large and model.ByteSize() >= 1 << 31:
        raise ONNXError("the model is larger than 2 GB; export it with large_model=True")
    external = {"save_as_external_data": True, "location": f"{name}.data"} if large else {}
    onnx.save_model(model, path, **external)
    onnx.checker.check_model(path)


def _network(sym, params, inputs):
    """Returns the symbol, and its parameters as arrays by name; `inputs` are (shape, dtype)."""
    from ..gluon import HybridBlock
    from ..gluon.block._symbol_block import symbol_and_constants

    if isinstance(sym, HybridBlock):
        if params is not None:
            raise ValueError("params must not be given with a block, which has its own parameters")
        symbol, constants = symbol_and_constants(sym, inputs)
        weights = {name: param.reduced() for name, param in sym.collect_params().items()}
        return symbol, {**weights, **constants}
    if isinstance(sym, (str, os.PathLike)):
        sym = load_symbol(os.fspath(sym))
    if not isinstance(sym, Symbol):
        raise TypeError(f"sym must be a Symbol, a HybridBlock or a path, not {type(sym).__name__}")
    if isinstance(params, (str, os.PathLike)):
        params = nd.load(os.fspath(params))
    parts = params if isinstance(params, (list, tuple)) else [params or {}]
    if not all(isinstance(part, dict) for part in parts):
        raise TypeError(
            "params must be a dict of arrays by name, a list of two such dicts, or a path"
        )
    return sym, {
        name.split(":", 1)[1] if name.startswith(("arg:", "aux:")) else name: array
        for part in parts
        for name, array in part.items()
    }


def _arguments(sym, count):
    """Returns the names of a block's `count` arguments in order; for a symbol, an empty list."""
    from ..gluon import HybridBlock
    from ..gluon.block._symbol_block import argument_names

    return argument_names(sym, count) if isinstance(sym, HybridBlock) else []


class _Graph:
    """The state of one export. `arguments` has the names of all inputs in the order of the shapes,
    and may be empty if the shapes have the order of the graph's inputs."""

    def __init__(self, onnx, symbol, arrays, shapes, types, arguments) -> None:
        self._onnx, self._arrays = onnx, arrays
        self._entries = entries_of(symbol)
        self._names = symbol.list_outputs()
        self._order = topological(self._entries)
        free = [node.name for node in self._order if node.call is None and node.name not in arrays]
        inputs = [node.name for node in self._read() if node.name not in arrays]
        self._count, self._kept = len(shapes), range(len(shapes))
        if len(arguments) == len(shapes) and {*inputs} <= {*arguments}:
            # The results do not depend on arguments that are not in the graph.
            self._kept = [place for place, name in enumerate(arguments) if name in free]
            inputs, shapes, types = [
                [items[place] for place in self._kept] for items in (arguments, shapes, types)
            ]
        elif len(shapes) == len(free):
            inputs = free  # the given shapes include those of labels, which inference does not read
        if len(inputs) != len(shapes):
            raise ValueError(
                f"got {len(shapes)} in_shapes for the inputs {', '.join(inputs) or '(none)'}; "
                "all other variables must be in params"
            )
        given = dict(zip(inputs, shapes))
        check_known(given)
        shapes = {**{name: array.shape for name, array in arrays.items()}, **given}
        dtypes = {name: dtype_name(array.dtype) for name, array in arrays.items()}
        dtypes.update(zip(inputs, types))
        self._entries, self._arrays = expanded(self._entries, arrays, shapes, dtypes)
        self._order = topological(self._entries)
        for name in self._arrays.keys() - arrays.keys():
            shapes[name] = self._arrays[name].shape
            dtypes[name] = dtype_name(self._arrays[name].dtype)
        self._inputs, self._shapes, self._dtypes = inputs, shapes, dtypes

    def dynamic_model(self, told: Any, verbose: bool) -> Any:
        """Returns the model with dynamic sizes."""
        if told is not None:
            if len(told) != self._count:
                raise ValueError(
                    f"dynamic_input_shapes has {len(told)} shapes, but there are "
                    f"{self._count} inputs"
                )
            told = [told[place] for place in self._kept]
        axes = dynamic_axes(self._entries, self._shapes, self._dtypes, self._inputs, told)
        try:
            return self.model(verbose, axes)
        except ONNXError as error:
            first = {key: label for key, label in axes.items() if key[1] == 0}
            if told is not None or first == axes:
                raise
            try:
                return self.model(verbose, first)
            except MXNetError:
                raise error from None

    def _read(self):
        """Returns the variables that inference reads, which excludes labels of losses."""
        read = set()
        for node in self._order:
            row = None if node.call is None else export_of(row_name(node.call))
            for place, (source, _) in enumerate(node.inputs):
                if row is None or place not in row.unread:
                    read.add(source)
        read.update(node for node, _ in self._entries)
        return [node for node in self._order if node.call is None and node in read]

    def model(self, verbose: bool, axes: dict[tuple[str, int], str] | None = None) -> Any:
        self._axes = axes or {}
        self._inferred = Inferred(self._entries, self._shapes, self._dtypes, self._axes)
        g = Builder(self._onnx)
        values: dict[Any, list[Value]] = {}
        read = {*self._read(), *[node for node in self._order if node.name in self._inputs]}
        # Add inputs before constants and nodes, because any op may depend on the inputs' sizes.
        variables = [node for node in self._order if node.call is None and node in read]
        places = {name: place for place, name in enumerate(self._inputs)}
        for node in sorted(variables, key=lambda node: places.get(node.name, len(places))):
            values[node] = [self._variable(g, node)]
        for node in self._order:
            if node.call is None:
                continue
            row = export_of(row_name(node.call))
            sources = [
                values[source][index]
                for place, (source, index) in enumerate(node.inputs)
                if row is None or place not in row.unread
            ]
            outputs = [self._inferred.of(node, index) for index in range(node.num_outputs)]
            begin = len(g.nodes)
            values[node] = g.convert(node, sources, outputs)
            if verbose:
                made = ", ".join(item.op_type for item in g.nodes[begin:]) or "nothing"
                _log.info("%s (%s) became %s", node.name, node.call.name, made)
        return self._made(g, values)

    def _variable(self, g, node):
        shape, dtype = self._inferred.of(node, 0)
        if node.name not in self._arrays:
            g.inputs.append(value(g.unique(node.name), shape, dtype))
            return g.inputs[-1]
        array = self._arrays[node.name].asnumpy()
        return value(g.constant(array, dtype, node.name), shape, dtype, array)

    def _made(self, g, values):
        """Returns the ONNX model. It contains only nodes that the results depend on."""
        helper, outputs, given, renamed = self._onnx.helper, [], set(), {}
        for (node, index), name in zip(self._entries, self._names):
            if index >= len(values[node]):
                raise ONNXError(
                    f"ONNX export: node '{node.name}' (op {node.call.name}): its output {name} "
                    "cannot be converted; export the symbol's other outputs, as in sym[0]"
                )
            source = values[node][index]
            known = renamed.get(source, str(source))
            if known != name or name in given:
                name = g.unique(name)
                if known in given or not g.rename(known, name):
                    g.nodes.append(helper.make_node("Identity", [known], [name], name=name))
                else:
                    renamed[str(source)] = name
            given.add(name)
            outputs.append(self._info(name, source.shape, source.dtype))
        nodes = _needed(g.nodes, {info.name for info in outputs})
        used = {name for node in nodes for name in node.input}
        graph = helper.make_graph(
            nodes,
            "mpgluon",
            [self._info(item, item.shape, item.dtype) for item in g.inputs],
            outputs,
            [
                g.tensor(name, array, g.dtypes[name])
                for name, array in g.constants.items()
                if name in used
            ],
        )
        return helper.make_model(
            graph,
            producer_name="mpgluon",
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=8,
        )

    def _info(self, name, shape, dtype):
        sizes = [self._size_name(size) for size in shape]
        return self._onnx.helper.make_tensor_value_info(str(name), NUMBERS[dtype], sizes)

    def _size_name(self, size):
        """Returns a fixed size as it is, and a dynamic size as the name of an input axis that has
        this size, if any."""
        if not isinstance(size, Dynamic):
            return size
        for (name, axis), label in self._axes.items():
            node = next(item for item in self._order if item.name == name)
            if self._inferred.of(node, 0)[0][axis] == size:
                return label
        return None


def _needed(nodes, wanted):
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
    return kept[::-1]
