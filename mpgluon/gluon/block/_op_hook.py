"""Hooks on every op that a block calls through ``F``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import _core
from ..._core import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable


class WatchedOps:
    """Wrapper of the namespace ``F`` of `hybrid_forward` that passes every op's results to a
    callback.

    Parameters
    ----------
    ops : module
        The wrapped namespace.
    prefix : str
        The block's prefix, which starts every reported name.
    tell : function
        Callback for each array; its arguments are the array's name, the op's name and the array.
    inputs : bool
        Whether the callback also receives the ops' inputs.
    """

    def __init__(
        self, ops: Any, prefix: str, tell: Callable[[str, str, NDArray], Any], inputs: bool
    ) -> None:
        self._ops, self._prefix, self._tell, self._inputs = ops, prefix, tell, inputs
        self._counts: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ops, name)
        if callable(found):
            return self._watched(name, found)
        if hasattr(found, "__all__"):  # F.contrib, F.random, ...
            inner = WatchedOps(found, self._prefix, self._tell, self._inputs)
            inner._counts = self._counts
            return inner
        return found

    def _watched(self, name, function):
        def call(*args, **kwargs):
            out = function(*args, **kwargs)
            known = _core.ops().get(name)
            op = known.describe() if known is not None else {"name": name, "inputs": ()}
            number = self._counts[name] = self._counts.get(name, -1) + 1
            node = f"{self._prefix}{kwargs.get('name') or name.lower() + str(number)}"
            if self._inputs:
                names = [entry["name"] for entry in op["inputs"]]
                given = {**dict(zip(names, args)), **kwargs}
                for key in names:
                    if isinstance(given.get(key), NDArray):
                        self._tell(f"{node}_{key}", op["name"], given[key])
            results = out if isinstance(out, (list, tuple)) else [out]
            for place, array in enumerate(results):
                if isinstance(array, NDArray):
                    suffix = "output" if len(results) == 1 else f"output{place}"
                    self._tell(f"{node}_{suffix}", op["name"], array)
            return out

        return call
