"""Ops that MXNet keeps under ``contrib``."""

from ._control import cond, foreach, while_loop  # noqa: F401
from ._namespaces import fill

fill("contrib", globals())
