"""The transport of collectives that name none: what carries their data."""

import os

_TRANSPORTS = ("auto", "local", "nccl")
_default = None  # read from the environment by the first that asks


def default_transport() -> str:
    """The transport of collectives that name none: MPGLUON_COLLECTIVES, or the one that
    `parallel.collectives.transport` says. ValueError where the setting is wrong."""
    global _default
    if _default is None:
        _default = os.environ.get("MPGLUON_COLLECTIVES") or "auto"
        if _default not in _TRANSPORTS:
            wrong, _default = _default, None
            raise ValueError(
                f"MPGLUON_COLLECTIVES is {wrong!r}; it can be {', '.join(_TRANSPORTS)}"
            )
    return _default
