"""`HybridBlock`: a block that can be compiled."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _core, ndarray as nd
from ..._internal.device_groups import check as check_groups, is_of_another_replica
from ..._internal.kinds import type_name
from ...base import MXNetError, MXNetTypeError, is_floating
from ...context import computes, current_context
from .._block_path import block_path
from .._compiled import grouped, offload, recompute, tracing
from .._compiled.call import CompiledCall
from .._nested import first_context, holds, is_symbolic
from .._tree import ONE_LAYOUT, Compilable, refuse_partitioned
from ..parameter import DeferredInitializationError
from ..utils import brief, shape_is_known
from ._block import Block, overridable
from ._op_hook import WatchedOps

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Never

    from ..._internal.types import DType
    from ..parameter import ParameterDict


class HybridBlock(Block, Compilable):
    """A block that can be compiled; it defines ``hybrid_forward(F, x, ..., **params)``.

    ``F`` is `mx.nd`. The block's own parameters are passed as keyword arguments: the copies on the
    device of the first input, or the only copy. The computation may span devices:
    ``x.as_in_context(ctx)`` moves an array, and children compute on the devices of their
    parameters::

        class Model(gluon.HybridBlock):
            def __init__(self, ctx2, **kwargs):
                super().__init__(**kwargs)
                self.ctx2 = ctx2
                with self.name_scope():
                    self.hidden = nn.Dense(20)
                    self.output = nn.Dense(10)

            def hybrid_forward(self, F, x):
                x = F.relu(self.hidden(x))
                return self.output(x.as_in_context(self.ctx2))

    While the block is traced, arrays have a shape, dtype and context but no values. A subclass may
    define `forward` instead of `hybrid_forward`, and then reads its parameters with
    ``self.weight.data(ctx)``.

    Examples
    --------
    >>> class Scale(gluon.HybridBlock):
    ...     def __init__(self, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.factor = self.params.get("factor", shape=(1,), init="ones")
    ...     def hybrid_forward(self, F, x, factor):
    ...         return F.broadcast_mul(x, factor)
    ...
    >>> net = Scale()
    >>> net.initialize()
    >>> net.hybridize()
    >>> net(nd.array([1, 2])).asnumpy().tolist()
    [1.0, 2.0]
    """

    _op_hook: Any = None  # (callback, True if it receives inputs)

    def __init__(
        self, prefix: str | None = None, params: ParameterDict | None = None, **kwargs: Never
    ) -> None:
        Block.__init__(self, prefix, params, **kwargs)
        Compilable.__init__(self)

    def register_child(self, block: Block, name: str | None = None) -> None:
        """Adds a child, which must be a HybridBlock."""
        if not isinstance(block, HybridBlock):
            raise ValueError(
                f"Children of HybridBlock must also be HybridBlock, but {block} has type "
                f"{type(block)}. If you are using Sequential, please try HybridSequential instead."
            )
        super().register_child(block, name)

    def hybridize(self, active: bool = True, **flags: Any) -> None:
        """Turns compilation of this block and its descendants on or off.

        A hybridized block computes the same results as an eager one. It may use arrays that are
        neither arguments nor parameters; every call reads their current values. If the program
        replaces these arrays or blocks, the next call detects it, provided that they are reachable
        from the block's attributes, its class, or variables of its functions. Lists and dicts of
        arrays or blocks may grow and shrink. The arrays' values cannot be read (``asscalar``)
        during tracing. Everything else, such as a number in an attribute, is constant after
        tracing; call `hybridize` again after a change.

        Parameters
        ----------
        active : bool, default True
            Whether to compile.
        exact : bool, default False
            Whether results must be bitwise equal to those of eager execution. This disables
            optimizations that change the rounding.
        pipeline : mpgluon.parallel.Pipeline, optional
            Divide every batch into micro-batches, which run on the block's devices concurrently.
        recompute : bool, str, int or dict, default False
            Which values backward recomputes instead of keeping them (activation checkpointing).
            Results are bitwise the same. True keeps only the inputs of this block, even if it is
            part of a hybridized block. A number of bytes (or a string such as '64MB'), or a dict
            from contexts to these, limits the planned memory on each device (shown by `compiled`).
            The compiler then recomputes values to stay within the limit, or raises an error that
            names the bytes needed.
        offload : dict, optional
            ``{'activations': ctx}`` stores the values that backward reads on another device, or in
            files of a directory if `ctx` is a path, until backward copies them back. Results are
            bitwise the same. Parameters, inputs and outputs
            of the compiled block, and values with fewer than 1,024 elements stay. It applies to
            this block, even if it is part of a hybridized block. With ``recompute=True``, the
            values that are kept are offloaded. Raises an error in pipelines, on devices of ranks,
            and with a limit of memory.
        group2ctx : dict of str to Context, optional
            Devices of the groups, as in `initialize`. Parameters are not moved.
        static_alloc, static_shape, inline_limit, forward_bulk_size, backward_bulk_size
            Accepted as in MXNet. Memory is always planned ahead of time and reused.

        Raises
        ------
        MXNetError
            If an option is unknown, or `backend` is given.
        MXNetTypeError
            If an option has a value of the wrong type.
        """
        groups = flags.pop("group2ctx", None)
        if groups is not None:
            refuse_partitioned(self, "hybridize(group2ctx=)", ONE_LAYOUT)
            self._group2ctx = check_groups(groups)
        unknown = set(flags) - _FLAGS
        if unknown:
            raise MXNetError(
                f"hybridize: unknown option {brief(sorted(unknown))}; the options are "
                f"{brief(sorted([*_FLAGS, 'group2ctx']), 20)}"
            )
        pipeline = flags.pop("pipeline", None)
        if pipeline is not None:
            from ...parallel import Pipeline

            if not isinstance(pipeline, Pipeline):
                raise MXNetTypeError(
                    "hybridize: pipeline must be an mx.parallel.Pipeline, such as "
                    f"Pipeline(micro_batches=4), not {pipeline!r}"
                )
        if not isinstance(flags.get("exact", False), (bool, int, np.bool_)):
            raise MXNetTypeError(f"hybridize: exact must be True or False, not {flags['exact']!r}")
        _check_backend("hybridize", flags.get("backend"))
        recompute.limits(flags.get("recompute"))
        if "offload" in flags:
            flags["offload"] = offload.checked(flags["offload"])
        self._active = bool(active)
        self._flags = dict(flags)
        if pipeline is not None:
            self._flags["pipeline"] = pipeline  # only this block is a pipeline, not its children
        self._clear_compiled()
        if active and (self._forward_hooks or self._forward_pre_hooks):
            warnings.warn(
                f"'{self.name}' is being hybridized while it has forward hooks; the hooks of "
                "its children run only when it is traced",
                stacklevel=2,
            )
        super().hybridize(active, **flags)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled_call": None}  # a copy is compiled on its first call

    def cast(self, dtype: DType) -> None:
        self._clear_compiled()
        super().cast(dtype)

    def infer_shape(self, *args: Any) -> None:
        """Infers the unknown shapes of parameters from inputs (arrays), without computing
        anything."""
        CompiledCall(self, {}).discover(args)

    def register_op_hook(
        self, callback: Callable[[str, str, nd.NDArray], Any], monitor_all: bool = False
    ) -> None:
        super().register_op_hook(callback, monitor_all)
        self._clear_compiled()
        self._op_hook = callback, monitor_all

    def infer_type(self, *args: Any) -> None:
        """Casts the parameters to the dtype of the first floating-point input (array), if the
        layers support it (`cast`)."""
        dtype = next((arg.dtype for arg in args if is_floating(arg.dtype)), None)
        if dtype is not None:
            self.cast(dtype)

    def _run(self, *args):
        if self._active and tracing.current() is None and not is_symbolic(args):
            if self._op_hook is not None:
                return self.forward(*args)
            return (self._compiled_call or self._new_call())(args)
        if self._partitioning is not None and tracing.current() is not None:
            args = self._partitioning.annotate_arguments(args)
        if self._active and tracing.current() is not None:
            return self._forward_as_unit(args)
        return self.forward(*args)

    def _forward_as_unit(self, args):
        """Traces the block with its options `recompute` and `offload`."""
        device = offload.device(self._flags)
        former = None if device is None else _core.set_offload(device)
        region = self._flags.get("recompute") is True and _core.begin_recompute()
        try:
            return self.forward(*args)
        finally:
            if region:
                _core.end_recompute()
            if device is not None:
                _core.set_offload(former)

    def _new_call(self):
        kind = CompiledCall
        if "pipeline" in self._flags:
            from ...parallel._pipeline.pipeline import PipelinedCall as kind
        call = self._compiled_call = kind(self, self._flags)
        return call

    @overridable
    def forward(self, x: Any, *args: Any) -> Any:
        """Calls `hybrid_forward` with the parameters, or the compiled programs if the block is
        hybridized.

        For Symbols, the result is a Symbol: ``F`` is `mx.sym`, and the parameters are variables.
        """
        if is_symbolic((x, *args)):
            if holds((x, *args), nd.NDArray):
                raise ValueError(
                    f"{block_path() or type(self).__name__}: the inputs must be all NDArrays or "
                    "all Symbols"
                )
            return self._forward_symbols(x, *args)
        if self._active and tracing.current() is None:
            return (self._compiled_call or self._new_call())((x, *args))
        ctx = x.context if isinstance(x, nd.NDArray) else first_context((x, *args))
        if ctx is None and x is None and not any(arg is not None for arg in args):
            raise ValueError(
                f"{block_path() or type(self).__name__}: the inputs must hold an NDArray or a "
                "Symbol, but all are None"
            )
        if ctx is not None and ctx != current_context():
            with ctx:  # creates arrays without an explicit context on the input's device
                return self._forward_arrays(ctx, x, *args)
        return self._forward_arrays(ctx, x, *args)

    def _clear_cached_op(self) -> None:
        """Discards the compiled programs. MXNet's name."""
        self._clear_compiled()

    @property
    def _cached_graph(self) -> tuple[Any, ...]:
        """The input variables and the symbol of the block. It is () until the block has been
        hybridized and called. MXNet's name."""
        from ...symbol import var
        from ._symbol_block import symbol_and_constants

        if self._compiled_call is None or self._compiled_call.structure() is None:
            return ()
        symbol, constants = symbol_and_constants(self)
        known = {**self.collect_params(), **constants}
        return [var(name) for name in symbol.list_inputs() if name not in known], symbol

    def _hooked(self, ops):
        return WatchedOps(ops, self.prefix, *self._op_hook)

    def _forward_arrays(self, ctx, x, *args):
        if not self._reg_params:
            return self.hybrid_forward(nd if self._op_hook is None else self._hooked(nd), x, *args)
        if ctx is None:
            raise ValueError(
                f"{block_path() or type(self).__name__}: the inputs of a HybridBlock with "
                "parameters must hold an NDArray, got "
                f"{brief(type_name(arg) for arg in (x, *args))}; convert numbers with "
                f"{'np' if _core.is_np_array() else 'nd'}.array(x)"
            )
        arrays = {}
        strays = unknown = None
        trace = tracing.current()
        for name, param in self._reg_params.items():
            if param.stype != "default":
                param.check_dense("hybrid_forward")
            data = param.arrays
            if data is None:
                if not param.deferred_init:
                    raise param.missing_error()
                if not shape_is_known(param.shape):
                    device, stray = self._place(param, ctx)
                    arrays[name] = unknown = tracing.Unknown(
                        param, _resolver(param, device), block_path
                    )
                    strays = strays or stray
                    continue
                if trace is None:
                    param.finish_deferred_init()
                    data = param.arrays
            if trace is None and not param.overrides_data:
                array = data.get(ctx)
                if array is not None:
                    arrays[name] = array
                    continue
            device, stray = self._place(param, ctx)
            strays = strays or stray
            arrays[name] = _array_of(param, device)
        ops = nd if unknown is None else tracing.InferringOps()
        if self._op_hook is not None:
            ops = self._hooked(ops)
        if self._partitioning is not None:
            arrays = self._partitioning.join(arrays)
        try:
            return self.hybrid_forward(ops, x, *args, **arrays)
        except MXNetError as error:
            self._check_kinds(error, (x, *args))
            if (
                strays is None
                or isinstance(error, MemoryError)
                or getattr(error, "block_path", None) is not None
            ):
                raise
            raise self._misplaced(strays, ctx, error) from error
        except TypeError as error:
            if unknown is None or "Unknown" not in str(error):
                raise
            raise DeferredInitializationError(
                f"{block_path()}: the {tracing.size_of_unknown(unknown)} is not known yet; it "
                "is inferred when the parameter is first used as an input of an operator called "
                "through F"
            ) from error

    def _forward_symbols(self, *args):
        from ... import symbol
        from ...symbol import _array_uses

        if self._partitioning is not None:
            self._partitioning.refuse_symbols(block_path() or type(self).__name__)
        variables = {name: param.var() for name, param in self._reg_params.items()}
        if holds(args, symbol.np.NumPySymbol):
            variables = {name: variable.as_np_ndarray() for name, variable in variables.items()}
        if _array_uses.is_recording():
            with self.name_scope():
                return self.hybrid_forward(symbol, *args, **variables)
        with self.name_scope(), _array_uses.recorded() as uses:
            result = self.hybrid_forward(symbol, *args, **variables)
        if uses:
            warnings.warn(
                f"{self.name or type(self).__name__}: {uses[0]} selects outputs of a Symbol, as in "
                "MXNet, but rows of an array; use F.slice_axis, F.squeeze or F.split in a block "
                "that is called on Symbols",
                stacklevel=2,
            )
        return result

    def _place(self, param, ctx):
        """Selects the parameter's copy to use with inputs on `ctx`. Returns (its device, None), or
        (its device, param) if the input and the only copy are on different devices."""
        contexts = param.list_ctx()
        if ctx in contexts or grouped.settled(param, ctx):
            return ctx, None
        if ctx is not None and computes(ctx) in contexts:
            return computes(ctx), None
        if len(contexts) == 1:
            if is_of_another_replica(contexts[0]):
                raise MXNetError(
                    f"{block_path() or type(self).__name__}: parameter '{param.name}' is on "
                    f"{contexts[0]} alone, which doesn't belong to this replica; place the network "
                    "again (Mesh.place), so that all replicas have the parameter"
                )
            division = self._partitioning
            if division is not None and contexts[0] != division.home:
                return contexts[0], None  # a part, which is joined on the first device
            # hybrid_forward may move the input or the parameter. If it does not, the operator
            # raises an error.
            return contexts[0], param
        near = grouped.near(contexts)
        if near is not None:
            return near, None
        raise self._misplaced(param, ctx)

    def _check_kinds(self, error, args):
        """Raises an error that names the conversion if an op failed because the inputs are arrays
        of mx.nd and the parameters are of mx.np, or the other way around."""
        if not isinstance(error, MXNetTypeError) or getattr(error, "block_path", None) is not None:
            return
        numpy = holds(args, _core.ndarray)
        if all(param.is_numpy == numpy for param in self._reg_params.values()):
            return
        kinds = ("mx.nd", "mx.np") if numpy else ("mx.np", "mx.nd")
        raise MXNetTypeError(
            f"{block_path() or type(self).__name__}: the parameters are arrays of {kinds[0]}, but "
            f"the inputs are of {kinds[1]}; convert these with "
            + (
                "as_nd_ndarray(), or call npx.set_np() before initialize()"
                if numpy
                else "as_np_ndarray()"
            )
        ) from error

    def _misplaced(self, param, ctx, error=None):
        contexts = param.list_ctx()
        where = contexts[0] if len(contexts) == 1 else contexts
        text = (
            f"{block_path() or type(self).__name__}: parameter '{param.name}' is on {where}, "
            f"but the input is on {ctx}; move the input with x.as_in_context(mx.{contexts[0]}), "
            f"or initialize the block with ctx=mx.{ctx}"
        )
        return MXNetError(text if error is None else f"{text}. ({error})")

    @overridable
    def hybrid_forward(self, F: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes the block's result with operators from `F`. Must be overridden by the
        subclass."""
        raise NotImplementedError(f"{type(self).__name__} does not define hybrid_forward")

    def export(self, path: str, epoch: int = 0, remove_amp_cast: bool = True) -> tuple[str, str]:
        """Writes the block to ``path-symbol.json`` and ``path-0000.params``, which
        `SymbolBlock.imports` and MXNet can read.

        The block must have been hybridized and called. A single input is named ``data``, several
        are ``data0``, ``data1``, ... The files name no devices: `SymbolBlock.imports` creates a
        block that runs on one device.

        Some blocks cannot run on symbols: they read shapes, index rows, rely on operators that
        broadcast, or use arrays that are neither inputs nor parameters. The file then contains
        their trace for prediction, in which these arrays become parameters ``captured0``, ... Sizes
        that the ops infer from their inputs stay variable. If the results depend on the size of an
        input's axis in another way, the imported block raises an error for other sizes. If the
        block returns a dict, its values are written in the order of the dict.

        Parameters
        ----------
        path : str
            The prefix of the files' names.
        epoch : int, default 0
            The number in the name of the second file.
        remove_amp_cast : bool, default True
            Accepted and ignored; mpgluon inserts no such casts.

        Returns
        -------
        (str, str)
            The names of the files.

        Raises
        ------
        RuntimeError
            If the block was not hybridized and called before.
        """
        from ._symbol_block import export_block

        return export_block(self, path, epoch, remove_amp_cast)

    def optimize_for(
        self, x: Any, *args: Any, backend: str | None = None, clear: bool = False, **kwargs: Any
    ) -> Any:
        """Hybridizes the block, with the options of `hybridize`, and calls it on the inputs.

        There is one compiler and no other backend. Raises MXNetError if `backend` is not None.
        """
        _check_backend("optimize_for", backend)
        self.hybridize(True, **kwargs)
        return self(x, *args)


def _check_backend(what, backend):
    if backend is not None:
        raise MXNetError(
            f"{what}: unknown backend {backend!r}; the compiler is the only backend, so omit "
            "the argument"
        )


_FLAGS = frozenset(
    [
        "exact",
        "pipeline",
        "recompute",
        "offload",
        "static_alloc",
        "static_shape",
        "inline_limit",
        "forward_bulk_size",
        "backward_bulk_size",
        "backend",
    ]
)


def _array_of(param, device):
    """Returns the parameter's array for a computation on a device. This is the result of `data` if
    a subclass overrides it, a traced array while a block is traced, and the copy otherwise."""
    if param.overrides_data:
        return param.data(device)
    trace = tracing.current()
    return param.arrays[device] if trace is None else trace.parameter(param, device)


def _resolver(param, device):
    """Returns a function that returns a parameter's array once its shape is known."""

    def resolve():
        if tracing.current() is None:
            param.finish_deferred_init()
        return _array_of(param, device)

    return resolve
