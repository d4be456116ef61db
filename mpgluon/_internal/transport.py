"""The default transport of collectives."""

import os

_TRANSPORTS = ("auto", "local", "nccl")
_default = None  # read from the environment on first use


def default_transport() -> str:
    """Returns the default transport of collectives, for calls that specify no transport.

    It is the value of MPGLUON_COLLECTIVES, unless `parallel.collectives.transport` overrides it.
    Raises ValueError if the value is invalid.
    """
    global _default
    if _default is None:
        _default = os.environ.get("MPGLUON_COLLECTIVES") or "auto"
        if _default not in _TRANSPORTS:
            wrong, _default = _default, None
            raise ValueError(
                f"environment variable MPGLUON_COLLECTIVES is {wrong!r}; it must be one of "
                f"{', '.join(_TRANSPORTS)}"
            )
    return _default
