"""`SymbolBlock`, a block that computes a symbol, and the conversion of blocks to symbols."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ... import ndarray as nd
from ..._core import dtype_name
from ..._internal import graph_breaks
from ..._internal.kinds import is_numpy
from ...base import MXNetAssertionError, MXNetError, NotSupportedError
from ...context import current_context
from ...util import is_np_array, is_np_shape, np_shape
from .. import _nested
from .._compiled import tracing
from .._tree import compiled_call, export_form, refuse_partitioned
from ..parameter import ParameterDict
from ..utils import shape_is_known
from ._hybrid_block import HybridBlock
from ._traced_symbol import output_shapes, traced_symbols

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..._internal.types import Devices, DType, NDArray, Symbol
    from ..parameter import Parameter


def _flatten(value, flat, what):
    """Appends the symbols in nested lists to `flat`; returns their structure."""
    from ...symbol import Symbol
    from ...symbol._graph import entries_of

    if isinstance(value, Symbol):
        flat.append(value)
        count = len(entries_of(value))
        return count if count > 1 else 0
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        raise ValueError(
            f"{what} must be Symbols, or nested lists or tuples of them, but got "
            f"{type(value).__name__}"
        )
    return [_flatten(item, flat, what) for item in value]


def _regroup(structure, items):
    """Inverse of `_flatten`: nests the items of an iterator."""
    if structure is None:
        return None
    if isinstance(structure, list):
        return [_regroup(item, items) for item in structure]
    return next(items) if structure == 0 else [next(items) for _ in range(structure)]


class SymbolBlock(HybridBlock):
    """A block that computes a symbol, such as a symbol that was read from a file, or the inner
    layers of a network.

    Parameters
    ----------
    outputs : Symbol or list of Symbol
        Outputs of the block.
    inputs : Symbol or list of Symbol
        Variables that are inputs of the block; the other variables become parameters.
    params : ParameterDict, optional
        Parameters to share.

    Examples
    --------
    >>> data = mx.sym.var("data")
    >>> dense = mx.sym.FullyConnected(data, num_hidden=3, name="dense")
    >>> net = gluon.SymbolBlock(dense, data)
    >>> net.initialize()
    >>> net(nd.zeros((2, 5))).shape, list(net.params.keys())
    ((2, 3), ['dense_weight', 'dense_bias'])
    """

    _is_graph = True

    def __init__(
        self,
        outputs: Symbol | Sequence[Symbol],
        inputs: Symbol | Sequence[Symbol],
        params: ParameterDict | Mapping[str, Parameter] | None = None,
    ) -> None:
        from ...executor import Program
        from ...symbol import Group
        from ...symbol._graph import entries_of, placement, topological

        super().__init__(prefix=None, params=None)
        self._prefix = ""
        self._params = ParameterDict("", params)
        given, found = [], []
        self._in_format = _flatten(inputs, given, "The inputs")
        self._out_format = _flatten(outputs, found, "The outputs")
        if not given or not found:
            raise ValueError("a SymbolBlock must have at least one input and one output")
        for symbol in given:
            if entries_of(symbol)[0][0].call is not None:
                raise AssertionError(
                    f"Input symbols must be variable, but {symbol} is an output of operators"
                )
        self._input_names = [symbol.name for symbol in given]
        self._symbol = found[0] if len(found) == 1 else Group(found)
        order = topological(entries_of(self._symbol))
        self._program = Program(entries_of(self._symbol), order, placement(order, None, {}), None)
        self._declare(given)
        self._active = True

    def _declare(self, given):
        """Creates a parameter for every variable that is not an input."""
        used = set(self._symbol.list_inputs())
        dtypes = {
            symbol.name: types[0][0]
            for symbol in given
            if symbol.name in used and (types := symbol.infer_type())[0]
        }
        try:
            arguments, _, states = self._symbol.infer_type_partial(**dtypes)
        except MemoryError:
            raise
        # The default dtypes contradict each other, but the dtypes of loaded parameters may agree.
        except MXNetError:
            arguments = [None] * len(self._program.arguments)
            states = [None] * len(self._program.auxiliary)
        names = set(self._input_names)
        for name, attributes in self._symbol.attr_dict().items():
            if attributes.get("__storage_type__", "0") != "0" and name not in names:
                raise MXNetAssertionError(
                    f"SymbolBlock: the parameter '{name}' has sparse storage, which "
                    "HybridBlocks do not support"
                )
        for nodes, types, options in (
            (self._program.arguments, arguments, {}),
            (self._program.auxiliary, states, {"grad_req": "null"}),
        ):
            for node, dtype in zip(nodes, types):
                if node.name not in names:
                    self._params.get(
                        node.name, allow_deferred_init=True, dtype=dtype or "float32", **options
                    )
        skip = len(os.path.commonprefix(list(self._params.keys())))
        if any(len(name) == skip for name in self._params.keys()):
            skip = 0  # names must not become empty
        self._reg_params = {name[skip:]: param for name, param in self._params.items()}
        self._keys = {param.name: key for key, param in self._reg_params.items()}

    @staticmethod
    def imports(
        symbol_file: str,
        input_names: str | Sequence[str],
        param_file: str | None = None,
        ctx: Devices | None = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
    ) -> SymbolBlock:
        """Reads a block from the files of `HybridBlock.export`, of a Module's checkpoint, or of
        MXNet 1.x.

        Parameters
        ----------
        symbol_file : str
            Path of the symbol's JSON file.
        input_names : str or list of str
            Names of the variables that are inputs.
        param_file : str, optional
            Path of the parameters' file. If it is omitted, the parameters are not initialized.
        ctx : Context or list of Context, optional
            Devices of the parameters.
        allow_missing, ignore_extra : bool, default False
            See `Block.load_parameters`.
        """
        from ... import symbol

        names = [input_names] if isinstance(input_names, str) else list(input_names)
        with np_shape(is_np_shape()):  # a file of mx.np turns NumPy's shapes on
            outputs = symbol.load(symbol_file)
        known = outputs.list_inputs()
        for name in names:
            if name not in known:
                raise MXNetAssertionError(
                    f"{symbol_file} has no input {name!r}; its variables are {', '.join(known)}"
                )
        dtype = "float32" if param_file is None else None
        block = SymbolBlock(outputs, [symbol.var(name, dtype=dtype) for name in names])
        if param_file is not None:
            block.collect_params().load(
                param_file, ctx, allow_missing, ignore_extra, cast_dtype=True, dtype_source="saved"
            )
        return block

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(\n{self._symbol} : {len(self._input_names)} -> "
            f"{len(self._symbol)}\n)"
        )

    def forward(self, x: Any, *args: Any) -> Any:
        if isinstance(x, nd.NDArray) or tracing.current() is not None:
            self._find_shapes((x, *args))
        return super().forward(x, *args)

    def infer_shape(self, *args: Any) -> None:
        self._find_shapes(args)

    def cast(self, dtype: DType) -> None:
        """Casts the parameters. If a parameter's op requires another dtype, the parameter gets
        that dtype. For example, the parameters of BatchNorm are float32 if the data is float16."""
        from ...symbol._graph import entries_of
        from ...symbol._infer import dtypes_after_cast

        self._clear_compiled()
        dtypes = dtypes_after_cast(entries_of(self._symbol), dtype_name(dtype))
        for name, param in self._params.items():
            param.cast(dtypes.get(name, dtype))

    def _named(self, args):
        """Returns the inputs by name."""
        flat = []
        _collect(args, flat)
        if len(flat) != len(self._input_names):
            raise ValueError(
                f"{self.name or type(self).__name__}: expected {len(self._input_names)} inputs "
                f"({', '.join(self._input_names)}), got {len(flat)}"
            )
        return dict(zip(self._input_names, flat))

    def _find_shapes(self, args):
        """Completes the parameters' shapes from the inputs' shapes."""
        if all(
            param.arrays is not None or shape_is_known(param.shape)
            for param in self._params.values()
        ):
            return
        from ...symbol._graph import entries_of
        from ...symbol._infer import Inference, shown

        shapes = {name: array.shape for name, array in self._named(args).items()}
        nodes = [*self._program.arguments, *self._program.auxiliary]
        for node, (shape, _) in zip(
            nodes, Inference(entries_of(self._symbol), shapes, {}).of(nodes)
        ):
            if node.name in self._keys and shape is not None:
                self._params[node.name].shape = shown(shape)

    def hybrid_forward(self, F: Any, *args: Any, **params: Any) -> Any:
        named = self._named(args)
        values = [
            named[node.name] if node.name in named else params[self._keys[node.name]]
            for node in (*self._program.arguments, *self._program.auxiliary)
        ]
        results = self._program.run(values, ctx=next(iter(named.values())).context)
        if any(map(is_numpy, named.values())):
            # The ops of mx.nd return arrays of mx.nd, but a block's results follow its inputs.
            results = [array.as_np_ndarray() for array in results]
        out = _regroup(self._out_format, iter(results))
        return out[0] if isinstance(out, list) and len(out) == 1 else out

    def _forward_symbols(self, *args):
        from ...symbol._functions import symbol_type
        from ...symbol._graph import entries_of

        named = self._named(args)
        entries = entries_of(self._symbol(**named))
        kind = symbol_type(self._symbol.numpy or any(symbol.numpy for symbol in named.values()))
        out = _regroup(self._out_format, iter([kind([entry]) for entry in entries]))
        return out[0] if isinstance(out, list) and len(out) == 1 else out


def _collect(value, flat):
    if isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, flat)
    elif value is not None:
        flat.append(value)


def _lists(value):
    """Replaces dicts in a block's outputs by lists of their values, because symbols lack dicts."""
    if type(value) is dict:
        value = list(value.values())
    return [_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _symbols_like(structure, names):
    """Returns variables nested like the arguments of a compiled call. `names` is an iterator over
    their names and kinds."""
    from ...symbol import var

    if structure is _nested.ARRAY:
        name, numpy = next(names)
        return var(name).as_np_ndarray() if numpy else var(name)
    if structure is None:
        return None
    if structure[0] in (list, tuple):
        return structure[0]([_symbols_like(item, names) for item in structure[1:]])
    if structure[0] is dict:
        return dict(zip(structure[1:-1], _symbols_like(structure[-1], names)))
    return structure[1]


def symbol_of(block: HybridBlock) -> Symbol:
    """Returns the symbol of a block that was hybridized and called. Its inputs are named as in
    `HybridBlock.export`."""
    return symbol_and_constants(block)[0]


def argument_names(block: HybridBlock, count: int) -> list[str]:
    """Returns the names of a block's `count` arguments in its symbol, in order."""
    if isinstance(block, SymbolBlock):
        return list(block._input_names)
    return ["data"] if count == 1 else [f"data{place}" for place in range(count)]


def symbol_and_constants(
    block: HybridBlock,
    inputs: Sequence[Any] | None = None,
    purpose: str = "calling export",
) -> tuple[Symbol, dict[str, NDArray]]:
    """Returns the symbol of a block, and the captured arrays by the names of their variables.

    `inputs` has the (shape, dtype) of each input; it is required if the block was never called.
    `purpose` is used in the error message if it is missing.

    If the block computes the same on symbols as on arrays, it runs on symbols, so the symbol has
    the block's own ops and names. Otherwise the symbol is built from its trace on arrays."""
    from ...symbol import Group
    from ...symbol._array_uses import recorded

    if isinstance(block, SymbolBlock):
        return block._symbol, {}
    refuse_partitioned(
        block,
        f"{purpose.removeprefix('calling ')} (symbols)",
        "symbols and exported files describe networks on one device: save the network with "
        "mx.parallel.save, load it into one that is not partitioned, and use that",
    )
    call = compiled_call(block)
    structure = None if call is None else call.structure()
    descs = None if structure is None else call.inputs()
    if structure is None and inputs is None:
        raise RuntimeError(
            "Please first call block.hybridize() and then run forward with this block at least "
            f"once before {purpose}."
        )
    form, first_only = (structure, False)
    if structure is not None:
        form, first_only = export_form(block, structure)
    if inputs is not None:
        if structure is None or _nested.count(form) != len(inputs):
            form = structure = (tuple, *[_nested.ARRAY] * len(inputs))
            first_only = False
        home = descs[0][2] if descs else current_context()
        kinds = [desc[3:] for desc in descs or ()]
        kind = kinds[0] if kinds else (is_np_array(),)
        descs = [(shape, dtype, home, *kind) for shape, dtype in inputs]
    count = _nested.count(form)
    names = argument_names(block, count)
    constants: dict[str, NDArray] = {}
    found: list[Symbol] = []
    reason = None  # explains why the block computes different results on symbols
    with recorded() as uses:
        try:
            outputs = block(*_symbols_like(form, iter(zip(names, kinds_of(descs, count)))))
            if first_only:
                outputs = outputs[0]
            _flatten(_lists(outputs), found, "The outputs of the block")
        except MemoryError:
            raise
        except Exception as error:
            # The error is expected if the block needs shapes or values, which symbols lack. The
            # block is then traced on arrays.
            lacks = isinstance(error, _OF_SYMBOLS) and not isinstance(error, NotSupportedError)
            if form is not structure or not (lacks or uses):
                raise
            reason = str(error)
    if form is structure:
        if reason is None:
            reason = uses[0] if uses else _difference(block, structure, found, descs, names)
        if reason is not None:
            found, constants = traced_symbols(block, structure, descs, names, reason)
    return found[0] if len(found) == 1 else Group(found), constants


_OF_SYMBOLS = (MXNetError, AttributeError, TypeError, ValueError, IndexError)


def _difference(block, structure, found, inputs, names):
    """Returns a text that describes how the block's output shapes on symbols differ from those on
    arrays, or None if they agree. They can differ because Python operators broadcast arrays, but
    not symbols."""
    batch = inputs[0][0][:1]
    other = [
        ((shape[0] + 1, *shape[1:]) if shape and shape[:1] == batch else shape, *desc)
        for shape, *desc in inputs
    ]
    # Compare for a second batch size, because a size of 1 may hide that an operator broadcasts.
    for descs in (inputs, other):
        try:
            wanted = output_shapes(block, structure, descs)
        except MemoryError:
            raise
        except Exception:  # the block rejects these inputs, so there is nothing to compare
            return None
        problem = _difference_from(wanted, block, found, descs, names)
        if problem is not None:
            return problem
    return None


def _difference_from(wanted, block, found, inputs, names):
    from ...symbol._graph import entries_of
    from ...symbol._infer import Inference, known

    shapes = {
        name: param.shape
        for name, param in block.collect_params().items()
        if shape_is_known(param.shape)
    }
    shapes.update({name: shape for name, (shape, *_) in zip(names, inputs)})
    entries = [entry for symbol in found for entry in entries_of(symbol)]
    try:
        made = [shape for shape, _ in Inference(entries, shapes, {}, only="shape").outputs()]
    except MXNetError as error:
        return str(error)
    if len(made) != len(wanted):
        return f"it has {len(made)} outputs as a symbol, but {len(wanted)} as arrays"
    for shape, other in zip(made, wanted):
        if known(shape) and shape != other:
            return f"its result has the shape {shape} as a symbol, but {other} as an array"
    return None


def kinds_of(descs, count):
    """Returns, for each of `count` inputs, whether it is an array of ``mx.np``."""
    kinds = [any(desc[3:]) for desc in descs]
    return kinds if len(kinds) == count else [any(kinds)] * count


def portable_symbol(
    block: HybridBlock, inputs: Sequence[Any] | None = None
) -> tuple[Symbol, dict[str, NDArray]]:
    """Returns the result of `symbol_and_constants` without devices, so that it can be written to a
    file."""
    from ...symbol._graph import entries_of
    from ...symbol._json import without_devices

    symbol, constants = symbol_and_constants(block, inputs)
    return type(symbol)(without_devices(entries_of(symbol))), constants


def export_block(block: HybridBlock, path: str, epoch: int, remove_amp_cast) -> Any:
    """Implements `HybridBlock.export`."""
    graph_breaks.refuse_in_trace("export")
    symbol, constants = portable_symbol(block)
    symbol_file, param_file = f"{path}-symbol.json", f"{path}-{epoch:04d}.params"
    arguments, states = set(symbol.list_arguments()), set(symbol.list_auxiliary_states())
    arrays = {f"arg:{name}": array for name, array in constants.items()}
    for name, param in block.collect_params().items():
        if name in arguments:
            arrays[f"arg:{name}"] = param.reduced()
        elif name in states:
            arrays[f"aux:{name}"] = param.reduced()
    symbol.save(symbol_file, remove_amp_cast=remove_amp_cast)
    arrays = {name: array.as_nd_ndarray() for name, array in arrays.items()}
    with np_shape(symbol.numpy or is_np_shape()):
        nd.save(param_file, arrays)
    return symbol_file, param_file
