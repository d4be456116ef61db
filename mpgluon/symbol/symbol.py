"""`Symbol`: a description of a computation, to be bound to arrays later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from .._internal.files import open_regular
from .._internal.hints import late_names as _late_names
from ..base import MXNetError, NotImplementedForSymbol
from ..util import set_np_shape
from . import _array_uses
from ._functions import attributes, node_of, single, symbol_type
from ._graph import Entries, Node, hidden_key, rebuild, states, topological
from ._infer import NUMBERS, Inference, dtype_type, is_unknown, known, shown, sized
from ._json import dump, parse, without_casts
from ._methods import SymbolMethods, function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, NoReturn

    from .._core import Context, NDArray
    from .._internal.types import DType, Groups, Shape, ShapeLike
    from ..executor import Executor
    from ..initializer import Initializer


__all__ = ["Symbol", "Variable", "Group", "fromjson", "load", "load_json", "var"]


class Symbol(SymbolMethods, Entries):
    """One or several outputs of a graph of ops on variables.

    `var`, the functions of ``mx.sym`` and operators create symbols; `bind` and `simple_bind` bind
    them to arrays. Symbols share the nodes that they are built from.

    Examples
    --------
    >>> x = mx.sym.var("x")
    >>> y = mx.sym.FullyConnected(x, num_hidden=4, name="fc")
    >>> y.list_arguments(), y.infer_shape(x=(2, 3))[1]
    (['x', 'fc_weight', 'fc_bias'], [(2, 4)])
    """

    __slots__ = ("__weakref__",)
    numpy = False  # True for the symbols of mx.sym.np, whose functions follow NumPy
    # With this, NumPy scalars defer operators to the symbol, and NumPy functions raise TypeError.
    __array_ufunc__ = None

    def __init__(self, entries: Sequence[Any]) -> None:
        self._entries = entries

    # Inspection

    @property
    def name(self) -> str | None:
        """The name of the node, or None for a group of several nodes."""
        node = self._entries[0][0]
        return node.name if all(other is node for other, _ in self._entries) else None

    def __repr__(self) -> str:
        name = self.name
        if name is None:
            return f"<{type(self).__name__} group [{', '.join([symbol.name for symbol in self])}]>"
        return f"<{type(self).__name__} {name}>"

    def __len__(self) -> int:
        if len(self._entries) == 1:
            _array_uses.note("len(x)")
        return len(self._entries)

    def __iter__(self) -> Iterator[Symbol]:
        if len(self._entries) == 1:
            _array_uses.note("the iteration over x")
        return iter([type(self)([entry]) for entry in self._entries])

    def __getitem__(self, index: int | str | slice) -> Symbol:
        """Returns an output by index or name, or a group of outputs by slice.

        Raises IndexError or ValueError for an unknown output.
        """
        if isinstance(index, str):
            places = [i for i, name in enumerate(self.list_outputs()) if name == index]
            if not places:
                raise ValueError(f"Cannot find output that matches name {index!r}")
            if len(places) > 1:
                raise ValueError(f"There are multiple outputs with name {index!r}")
            index = places[0]
        elif len(self._entries) == 1:
            _array_uses.note(f"x[{_text(index)}]")
        if isinstance(index, slice):
            chosen = self._entries[index]
            if not chosen:
                raise IndexError("the slice of the symbol's outputs is empty")
            return type(self)(list(chosen))
        if not isinstance(index, (int, np.integer)):
            raise TypeError(
                "Symbol only supports integer index to fetch i-th output, not "
                f"{type(index).__name__}"
            )
        count = len(self._entries)
        if not -count <= index < count:
            raise IndexError(
                f"output index {index} is out of range: the symbol has {count} outputs"
            )
        return type(self)([self._entries[index]])

    def _variables(self):
        order = topological(self._entries)
        written = states(order)
        return [node for node in order if node.call is None], written

    def list_arguments(self) -> list[str]:
        """Returns the names of the variables that are arguments, in the order used by `bind`."""
        variables, written = self._variables()
        return [node.name for node in variables if node not in written]

    def list_auxiliary_states(self) -> list[str]:
        """Returns the names of the variables that ops write, such as a BatchNorm's moving mean."""
        variables, written = self._variables()
        return [node.name for node in variables if node in written]

    def list_inputs(self) -> list[str]:
        """Returns the names of all variables."""
        return [node.name for node in self._variables()[0]]

    def list_outputs(self) -> list[str]:
        """Returns the names of the outputs."""
        return [node.output_name(index) for node, index in self._entries]

    def get_internals(self) -> Symbol:
        """Returns a group of the outputs of all nodes."""
        return type(self)(
            [(node, i) for node in topological(self._entries) for i in range(node.num_outputs)]
        )

    def get_children(self) -> Symbol | None:
        """Returns a group of the inputs of the nodes, or None for a variable."""
        nodes = list(dict.fromkeys(node for node, _ in self._entries))
        inputs = [entry for node in nodes for entry in node.inputs]
        return type(self)(inputs) if inputs else None

    # Attributes

    def attr(self, key: str) -> str | None:
        """Returns the attribute of that name as text, or None."""
        if self.name is None:
            return None
        return self._entries[0][0].get(key)

    def list_attr(self, recursive: bool = False) -> dict[str, str]:
        """Returns the attributes and parameters of the node as a dict of texts.

        For a group, these are those of its first node.
        """
        if recursive:
            raise DeprecationWarning(
                "Symbol.list_attr with recursive=True has been deprecated. Please use attr_dict "
                "instead."
            )
        return self._entries[0][0].all_attrs() if self._entries else {}

    def attr_dict(self) -> dict[str, dict[str, str]]:
        """Returns the attributes of all nodes that have any: name -> dict of texts."""
        return {node.name: node.all_attrs() for node in topological(self._entries) if node.attrs}

    def _set_attr(self, **kwargs):
        if self.name is None:
            raise MXNetError("attributes can only be set on single nodes, not on groups")
        for key, value in kwargs.items():
            if not isinstance(value, str):
                raise ValueError(
                    f"Set Attr only accepts string values; {key} is {type(value).__name__}"
                )
            self._entries[0][0].attrs[hidden_key(key)] = value

    # Copying and composition

    def __copy__(self) -> Symbol:
        return self.__deepcopy__(None)

    def __deepcopy__(self, _: Any) -> Symbol:
        return type(self)(rebuild(self._entries, {}))

    def __getstate__(self) -> dict[str, Any]:
        return {"handle": self.tojson(remove_amp_cast=False)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._entries, _ = parse(state["handle"])

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.tojson(remove_amp_cast=False), type(self))

    def __call__(self, *args: Symbol, **kwargs: Any) -> Symbol:
        """Returns a copy of the symbol with its variables replaced by other symbols.

        The symbols are given in the order of `list_arguments`, or by name.

        ``name=`` names the node of the first output.
        """
        copied = self.__copy__()
        copied._compose(*args, **kwargs)
        return copied

    def _compose(self, *args, **kwargs):
        name = kwargs.pop("name", None)
        if args and kwargs:
            raise TypeError(
                "compose only accept input Symbols either as positional or keyword arguments, not "
                "both"
            )
        for value in (*args, *kwargs.values()):
            if not isinstance(value, Symbol):
                raise TypeError(f"Compose expect `Symbol` as arguments, got {type(value).__name__}")
        variables, written = self._variables()
        replace = {}
        if args:
            arguments = [node for node in variables if node not in written]
            if len(args) > len(arguments):
                raise MXNetError(f"{self}: got {len(args)} symbols for {len(arguments)} arguments")
            for node, symbol in zip(arguments, args):
                replace[node] = single(symbol, f"the symbol for {node.name}")
        for key, symbol in kwargs.items():
            matches = [node for node in variables if node.name == key]
            if not matches:
                raise MXNetError(
                    f"{self}: unknown argument {key!r}; the arguments are "
                    f"{', '.join(node.name for node in variables)}"
                )
            for node in matches:
                replace[node] = single(symbol, f"the symbol for {key}")
        self._entries = rebuild(self._entries, replace)
        if name and self._entries[0][0].call is not None:
            self._entries[0][0].name = name

    def _gen_atomic_symbol(self):
        """Returns a symbol of the node's op with new variables as inputs."""
        node = self._entries[0][0]
        if node.call is None:
            return type(self)([(Node(node.name, dict(node.attrs)), 0)])
        names = node.call.input_names(len(node.inputs))
        inputs = tuple([(Node(f"{node.name}_{name}", {}), 0) for name in names])
        copy = Node(node.name, dict(node.attrs), node.call, inputs)
        return type(self)([(copy, i) for i in range(copy.num_outputs)])

    # Inference

    def _given(self, args, kwargs, what):
        names = self.list_inputs()
        if args and kwargs:
            raise ValueError(
                f"Can only specify known argument {what}s either by positional or kwargs way."
            )
        if args:
            arguments = self.list_arguments()
            if len(args) > len(arguments):
                raise ValueError(f"got {len(args)} {what}s for {len(arguments)} arguments")
            return {name: value for name, value in zip(arguments, args) if value is not None}
        unknown = [name for name in kwargs if name not in names]
        if unknown:
            raise MXNetError(
                f"infer_{what}: the symbol has no argument named {', '.join(unknown)}; the "
                f"arguments are {', '.join(names)}"
            )
        return {name: value for name, value in kwargs.items() if value is not None}

    def _sorted(self, inference, field):
        variables, written = self._variables()
        arguments = [
            desc[field]
            for desc in inference.of([node for node in variables if node not in written])
        ]
        auxiliary = [
            desc[field] for desc in inference.of([node for node in variables if node in written])
        ]
        return arguments, [desc[field] for desc in inference.outputs()], auxiliary

    def _infer_shape_impl(self, partial, *args, **kwargs):
        shapes = self._given(args, kwargs, "shape")
        for name, shape in shapes.items():
            if not isinstance(shape, (tuple, list)):
                raise TypeError(
                    f"Arguments need to be shapes (tuple), but '{name}' is {type(shape).__name__}."
                )
        inference = Inference(self._entries, shapes, {}, only="shape")
        if partial:
            inference.probe()
        found = self._sorted(inference, 0)
        if not partial and not all(known(shape) for group in found for shape in group):
            return None, None, None
        return tuple([[shown(shape) for shape in group] for group in found])

    def infer_shape(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """Infers the shapes of arguments, outputs and auxiliary states from some arguments' shapes.

        The known shapes are given by position or name. Returns three lists of tuples, or (None,
        None, None) if a shape is unknown. Raises MXNetError if shapes contradict each other. Under
        ``mx.np_shape()``, unknown sizes are -1 and unknown shapes None; otherwise they are 0 and
        ().
        """
        found = self._infer_shape_impl(False, *args, **kwargs)
        if found[0] is None:
            import warnings

            shapes = self._infer_shape_impl(True, *args, **kwargs)[0]
            unknown = [
                f"{name}: {shape}"
                for name, shape in zip(self.list_arguments(), shapes)
                if is_unknown(shape) or not known(sized(shape))
            ]
            warnings.warn(
                "Cannot decide shape for the following arguments (0s in shape means unknown "
                f"dimensions): {', '.join(unknown[:10])}",
                stacklevel=2,
            )
        return found

    def infer_shape_partial(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """Like `infer_shape`, but returns partial results: () for unknown shapes, 0 for unknown
        sizes."""
        return self._infer_shape_impl(True, *args, **kwargs)

    def _infer_type_impl(self, partial, *args, **kwargs):
        types = {
            name: _core.dtype_name(dtype)
            for name, dtype in self._given(args, kwargs, "type").items()
        }
        inference = Inference(self._entries, {}, types, only="dtype")
        inference.probe_dtypes()
        found = self._sorted(inference, 1)
        if not partial and any(dtype is None for group in found for dtype in group):
            return None, None, None
        return tuple([[dtype_type(dtype) for dtype in group] for group in found])

    def infer_type(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """Infers the dtypes of arguments, outputs and auxiliary states from some arguments' dtypes.

        Returns (None, None, None) if a dtype is unknown.
        """
        return self._infer_type_impl(False, *args, **kwargs)

    def infer_type_partial(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """Like `infer_type`, but returns partial results, with None for unknown dtypes."""
        return self._infer_type_impl(True, *args, **kwargs)

    # Serialization

    def tojson(self, remove_amp_cast: bool = True) -> str:
        """Returns the symbol as the text of a ``-symbol.json`` file."""
        return dump(without_casts(self._entries) if remove_amp_cast else self._entries)

    def save(self, fname: str, remove_amp_cast: bool = True) -> None:
        """Writes the symbol to a file, for `load`."""
        _core.write_file(fname, self.tojson(remove_amp_cast).encode())

    def debug_str(self) -> str:
        """Returns the nodes of the symbol as text."""
        lines = ["Symbol Outputs:"]
        lines += [
            f"\toutput[{i}]={node.name}({index})" for i, (node, index) in enumerate(self._entries)
        ]
        for node in topological(self._entries):
            if node.call is None:
                lines.append(f"Variable:{node.name}")
                continue
            lines += ["--------------------", f"Op:{node.call.name}, Name={node.name}", "Inputs:"]
            written = node.call.states(len(node.inputs))
            for i, ((source, index), state) in enumerate(zip(node.inputs, written)):
                lines.append(
                    f"\targ[{i}]={source.name}({index})"
                    + (f" version={int(state)}" if source.call is None else "")
                )
            if node.attrs:
                lines += ["Attrs:", *[f"\t{key}={node.attrs[key]}" for key in sorted(node.attrs)]]
        return "\n".join(lines) + "\n"

    # Execution

    def bind(
        self,
        ctx: Context,
        args: Sequence[NDArray] | dict[str, NDArray],
        args_grad: Sequence[NDArray | None] | dict[str, NDArray] | None = None,
        grad_req: str | Sequence[str] | dict[str, str] = "write",
        aux_states: Sequence[NDArray] | dict[str, NDArray] | None = None,
        group2ctx: Groups | None = None,
        shared_exec: Executor | None = None,
    ) -> Executor:
        """Creates an `Executor` that computes the symbol on given arrays.

        Parameters
        ----------
        ctx : Context
            The device of ops that are not placed otherwise.
        args : list or dict of NDArray
            The arguments, in the order of `list_arguments` or by name.
        args_grad : list or dict of NDArray, optional
            The gradient arrays; an argument without one gets no gradient.
        grad_req : str, list or dict of str, default 'write'
            'write', 'add' or 'null', for all arguments or for each.
        aux_states : list or dict of NDArray, optional
            Arrays of the auxiliary states, in order or by name.
        group2ctx : dict of str to Context, optional
            The devices of the groups named by ``AttrScope(ctx_group=...)``. Arrays are moved
            between groups automatically.
        shared_exec : Executor, optional
            Accepted for compatibility with MXNet; memory comes from pools shared by all executors.
        """
        from ._bind import bind

        return bind(self, ctx, args, args_grad, grad_req, aux_states, group2ctx, shared_exec)

    def simple_bind(
        self,
        ctx: Context,
        grad_req: str | Sequence[str] | dict[str, str] = "write",
        type_dict: dict[str, DType] | None = None,
        stype_dict: dict[str, str] | None = None,
        group2ctx: Groups | None = None,
        shared_arg_names: Sequence[str] | None = None,
        shared_exec: Executor | None = None,
        shared_buffer: dict[str, NDArray] | None = None,
        **kwargs: Any,
    ) -> Executor:
        """Creates an `Executor` and its arrays. Their shapes are inferred from the shapes given by
        name: ``simple_bind(ctx, data=(32, 100))``.

        Parameters
        ----------
        ctx, grad_req, group2ctx : see `bind`
            As in `bind`.
        type_dict : dict of str to dtype, optional
            Dtypes of arguments. If it is omitted, arguments that declare no dtype are float32.
        shared_arg_names : list of str, optional
            Arguments whose arrays are shared with `shared_exec`.
        shared_exec : Executor, optional
            The source of shared arguments, and of auxiliary states with the same name and shape.
        shared_buffer : dict of str to NDArray, optional
            Maps names of arguments to arrays, which are reused if they are large enough. New arrays
            are added to the dict.
        stype_dict : dict, optional
            Storage types of arguments by name.
        """
        from ._bind import simple_bind

        return simple_bind(
            self,
            ctx,
            grad_req,
            type_dict,
            stype_dict,
            group2ctx,
            shared_arg_names,
            shared_exec,
            shared_buffer,
            kwargs,
        )

    def eval(self, ctx: Context | None = None, **kwargs: NDArray) -> list[NDArray]:
        """Computes the outputs for arguments given by name; returns a list of NDArrays."""
        return self.bind(_core.current_context() if ctx is None else ctx, kwargs).forward()

    def gradient(self, wrt: Any) -> NoReturn:
        """Always raises NotSupportedError, as in MXNet; bind and use `Executor.backward`."""
        raise _core.NotSupportedError(
            "Symbol.gradient is not supported; bind the symbol and call backward() of the executor"
        )

    def optimize_for(
        self,
        backend: str | None,
        args: Any = None,
        aux: Any = None,
        ctx: Context | None = None,
        shape_dict: dict[str, Shape] | None = None,
        type_dict: dict[str, DType] | None = None,
        stype_dict: dict[str, str] | None = None,
        skip_infer: bool = False,
        **kwargs: Any,
    ) -> Symbol:
        """Returns the symbol itself if `backend` is None; otherwise raises MXNetError.

        There are no backends, because everything is compiled when it is bound.
        """
        if backend is not None:
            raise MXNetError(
                f"optimize_for: unknown backend {backend!r}; a symbol is compiled when it is bound"
            )
        return self

    def get_backend_symbol(self, backend: str | None) -> Symbol:
        """Returns the symbol itself if `backend` is None; see `optimize_for`."""
        return self.optimize_for(backend)

    def as_in_context(self, ctx: Context, name: str | None = None) -> Symbol:
        """Copies the value to the device `ctx`, so that ops on the result run there. Its gradient
        is copied back."""
        return node_of("_copyto", "_copyto", [self], {"ctx": ctx}, name)

    as_in_ctx = as_in_context

    def as_nd_ndarray(self) -> Symbol:
        """Returns the value as a symbol of ``mx.sym``, for its functions."""
        return self

    def as_np_ndarray(self) -> Symbol:
        """Returns the value as a symbol of ``mx.sym.np``, for its functions.

        Examples
        --------
        >>> x = mx.sym.var("x").as_np_ndarray()
        >>> (x + 1).infer_shape(x=(2, 3))[1]
        [(2, 3)]
        """
        return symbol_type(True)(self._entries)

    @property
    def handle(self) -> Any:
        """The entries, in place of MXNet's handle."""
        return self._entries

    # Operators

    def __bool__(self) -> NoReturn:
        raise NotImplementedForSymbol(self.__bool__, "bool")

    __nonzero__ = __bool__

    def __abs__(self) -> Symbol:
        return node_of("abs", "abs", [self])

    def __neg__(self) -> Symbol:
        return self.__mul__(-1.0)

    def __iadd__(self, other: Any) -> NoReturn:
        raise NotImplementedForSymbol(self.__iadd__, "+=", other, 1)

    def __isub__(self, other: Any) -> NoReturn:
        raise NotImplementedForSymbol(self.__isub__, "-=", other)

    def __imul__(self, other: Any) -> NoReturn:
        raise NotImplementedForSymbol(self.__imul__, "*=", other)

    def __itruediv__(self, other: Any) -> NoReturn:
        raise NotImplementedForSymbol(self.__itruediv__, "/=", other)

    __idiv__ = __itruediv__

    __hash__ = object.__hash__

    def reshape(self, *args: Any, **kwargs: Any) -> Symbol:
        """Calls ``sym.reshape``; the shape may be given as separate integers."""
        if len(args) > 1 and all(isinstance(arg, int) for arg in args):
            args = (args,)
        return function("Reshape", "reshape")(self, *args, **kwargs)

    def expand_dims(self, axis: int, inplace: bool = False, **kwargs: Any) -> Symbol:
        """Calls ``sym.expand_dims``."""
        return function("expand_dims")(self, axis=axis, **kwargs)

    def flatten(self, inplace: bool = False, **kwargs: Any) -> Symbol:
        """Calls ``sym.flatten``."""
        return function("Flatten", "flatten")(self, **kwargs)

    def squeeze(
        self, axis: int | Sequence[int] | None = None, inplace: bool = False, **kwargs: Any
    ) -> Symbol:
        """Calls ``sym.squeeze``."""
        return function("squeeze")(self, axis=axis, **kwargs)

    def diag(self, k: int = 0, **kwargs: Any) -> Symbol:
        """Calls ``sym.diag``."""
        return function("diag")(self, k=k, **kwargs)

    def astype(self, *args: Any, **kwargs: Any) -> Symbol:
        """Calls ``sym.cast``."""
        return function("Cast", "cast")(self, *args, **kwargs)

    def transpose(self, *axes: int | Sequence[int], **kwargs: Any) -> Symbol:
        """Calls ``sym.transpose``; the axes may be one tuple or separate integers."""
        if len(axes) > 1:
            axes = (axes,)
        return function("transpose")(self, *axes, **kwargs)

    def split_v2(self, *args: Any, **kwargs: Any) -> Symbol:
        """Calls ``sym.split_v2``."""
        from .creation import split_v2

        return split_v2(self, *args, **kwargs)


def _text(index):
    """Returns an index as it is written between brackets."""
    if not isinstance(index, slice):
        return str(index)
    parts = (
        [index.start, index.stop] if index.step is None else [index.start, index.stop, index.step]
    )
    return ":".join(["" if part is None else str(part) for part in parts])


def _unpickle(text, kind=None):
    return (kind or Symbol)(parse(text)[0])


def _read(text):
    """Returns the symbol in the text of a file. A file of ``mx.np`` turns on its shapes."""
    entries, numpy = parse(text)
    if numpy:
        set_np_shape(True)
    return symbol_type(numpy)(entries)


def var(
    name: str,
    attr: dict[str, str] | None = None,
    shape: ShapeLike | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    dtype: DType | None = None,
    init: Initializer | str | None = None,
    stype: str | None = None,
    **kwargs: Any,
) -> Symbol:
    """Creates a variable, whose array is given when the symbol is bound.

    Parameters
    ----------
    name : str
        The name.
    attr : dict of str, optional
        Attributes.
    shape : tuple of int, optional
        The shape, with 0 for unknown sizes. A shape given to inference or `simple_bind` overrides
        it.
    lr_mult, wd_mult : float, optional
        Factors of the learning rate and the weight decay.
    dtype : str or dtype, optional
        The dtype. A dtype given to inference or `simple_bind` overrides it.
    init : Initializer or str, optional
        The initializer.
    stype : str, optional
        The storage type of the array that `simple_bind` creates.
    **kwargs
        Additional attributes; their names begin and end with two underscores.

    Examples
    --------
    >>> mx.sym.var("x", shape=(2, 3)).infer_shape()[1]
    [(2, 3)]
    """
    if not isinstance(name, str):
        raise TypeError("Expect a string for variable `name`")
    attrs = attributes(attr)
    if shape is not None:
        shape = (shape,) if isinstance(shape, (int, np.integer)) else shape
        attrs["__shape__"] = str(tuple([int(size) for size in shape]))
    if lr_mult is not None:
        attrs["__lr_mult__"] = str(lr_mult)
    if wd_mult is not None:
        attrs["__wd_mult__"] = str(wd_mult)
    if dtype is not None:
        attrs["__dtype__"] = str(NUMBERS[_core.dtype_name(dtype)])
    if init is not None:
        attrs["__init__"] = init if isinstance(init, str) else init.dumps()
    if stype is not None:
        numbers = {"default": 0, "row_sparse": 1, "csr": 2}
        if stype not in numbers:
            raise ValueError(f"var: stype must be one of {', '.join(numbers)}, not {stype!r}")
        attrs["__storage_type__"] = str(numbers[stype])
    for key, value in kwargs.items():
        if not (key.startswith("__") and key.endswith("__")):
            raise ValueError(
                f"Attribute name={key} is not supported. Additional attributes must start and end "
                "with double underscores, e.g, __yourattr__"
            )
        attrs[key] = str(value)
    for key, value in attrs.items():
        if not isinstance(value, str):
            raise ValueError(f"var: the attribute {key} must be a str, not {type(value).__name__}")
    return Symbol([(Node(name, attrs), 0)])


Variable = var


def Group(symbols: Iterable[Symbol], create_fn: Callable[..., Symbol] = Symbol) -> Symbol:
    """Groups the outputs of several symbols into one symbol.

    Examples
    --------
    >>> x = mx.sym.var("x")
    >>> mx.sym.Group([mx.sym.relu(x, name="r"), mx.sym.exp(x, name="e")]).list_outputs()
    ['r_output', 'e_output']
    """
    symbols = list(symbols)
    if not symbols or any(not isinstance(symbol, Symbol) for symbol in symbols):
        raise TypeError("Expected a list of symbols as input")
    if create_fn is Symbol and all(symbol.numpy for symbol in symbols):
        create_fn = symbol_type(True)
    return create_fn([entry for symbol in symbols for entry in symbol._entries])


def load(fname: str) -> Symbol:
    """Reads a symbol from a file.

    Raises OSError if the file cannot be read, and MXNetError if it does not contain a symbol of
    this build's ops.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "net-symbol.json")
    ...     mx.sym.relu(mx.sym.var("x"), name="r").save(path)
    ...     y = mx.sym.load(path)
    >>> y.list_outputs()
    ['r_output']
    """
    if not isinstance(fname, str):
        raise TypeError("fname need to be string")
    with open_regular(fname) as file:
        try:
            text = file.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise MXNetError(f"{fname} is not a text file: {error}") from None
    try:
        return _read(text)
    except MXNetError as error:
        raise type(error)(f"{fname}: {error}") from None


def load_json(json_str: str) -> Symbol:
    """Parses the symbol in the text of a ``-symbol.json`` file; see `load`.

    Examples
    --------
    >>> y = mx.sym.relu(mx.sym.var("x"), name="r")
    >>> mx.sym.load_json(y.tojson()).list_outputs()
    ['r_output']
    """
    if not isinstance(json_str, str):
        raise TypeError("json_str need to be string")
    return _read(json_str)


fromjson = load_json

# MXNet defines these names in this module. mpgluon defines them in `creation`, which imports this
# module, so they are loaded on first use.
_late_names(__name__, "creation")
