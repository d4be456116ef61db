"""Ops that MXNet keeps under ``contrib``."""

from .. import _core
from ._namespaces import fill

fill("contrib", globals())


def _loop(name):
    def function(*args, **kwargs):
        raise _core.NotSupportedError(
            f"sym.contrib.{name}: loops and branches are not nodes of symbols. Write the block with {name} in hybrid_forward and hybridize it, or unroll it"
        )

    function.__name__ = function.__qualname__ = name
    function.__doc__ = "NotSupportedError: symbols have no graphs inside their nodes."
    return function


foreach, while_loop, cond = _loop("foreach"), _loop("while_loop"), _loop("cond")
