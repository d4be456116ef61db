"""`CachedOp`: compiles a symbol to a function of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _core
from ..base import MXNetError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .._core import Context, NDArray
    from ..symbol import Symbol


class CachedOp:
    """A function of arrays that computes a symbol. It is compiled for each combination of shapes,
    dtypes, devices and modes.

    While recording, a call is one node of the tape.

    Parameters
    ----------
    sym : Symbol
        The symbol to compute.
    flags : sequence of (str, str) pairs or dict of str, default ()
        MXNet's options, such as ``static_alloc``; accepted and ignored.

    Examples
    --------
    >>> f = nd.CachedOp(mx.sym.broadcast_add(mx.sym.var("a"), mx.sym.var("b")))
    >>> f(nd.array([1, 2]), nd.array([10])).asnumpy()
    array([11., 12.], dtype=float32)
    """

    def __init__(
        self, sym: Symbol, flags: Sequence[tuple[str, str]] | Mapping[str, str] = ()
    ) -> None:
        from ..executor import Program
        from ..symbol._graph import entries_of, placement, topological

        if not hasattr(sym, "list_inputs"):
            raise TypeError(f"CachedOp: sym must be a Symbol, not {type(sym).__name__}")
        dict(flags)
        self._names = sym.list_inputs()
        order = topological(entries_of(sym))
        self._program = Program(entries_of(sym), order, placement(order, None, {}), None)
        places = {name: i for i, name in enumerate(self._names)}
        nodes = (*self._program.arguments, *self._program.auxiliary)
        self._order = [places[node.name] for node in nodes]
        self._compiled: dict[Context | None, _core.CachedOp] = {}  # by default_ctx

    def __call__(
        self,
        *args: NDArray,
        out: NDArray | Sequence[NDArray] | None = None,
        default_ctx: Context | None = None,
    ) -> NDArray | list[NDArray] | Any:
        """Computes the symbol's outputs. Returns an array, or a list if there are several outputs.

        Parameters
        ----------
        *args : NDArray
            In the order of ``sym.list_inputs()``.
        out : NDArray or sequence of NDArray, optional
            Arrays to write the outputs to, which are then returned.
        default_ctx : Context, optional
            The device of ops without inputs, which create arrays. By default, the first input's
            device.

        Raises
        ------
        MXNetError
            If the number of arrays differs from the number of inputs, or of outputs.
        """
        if len(args) != len(self._names):
            raise MXNetError(
                f"CachedOp: got {len(args)} arrays, but there are {len(self._names)} inputs: "
                f"{', '.join(self._names)}"
            )
        if default_ctx is None and args:
            default_ctx = args[0].context
        compiled = self._compiled.get(default_ctx)
        if compiled is None:
            compiled = self._compiled[default_ctx] = _core.CachedOp(
                lambda *arrays: self._program.run(arrays, ctx=default_ctx), {}
            )
        results = compiled(*(args[i] for i in self._order))
        if out is not None:
            targets = [out] if isinstance(out, _core.NDArray) else list(out)
            if len(targets) != len(results):
                raise MXNetError(
                    f"CachedOp: out has {len(targets)} arrays, but there are {len(results)} outputs"
                )
            for target, result in zip(targets, results):
                target[:] = result
            return out
        return results[0] if len(results) == 1 else results
