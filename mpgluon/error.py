"""The registry of error classes by name, ``mx.error``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, overload

from .base import MXNetError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["InternalError", "MXNetError", "register"]

Kind = TypeVar("Kind", bound=type[BaseException])

_KINDS: dict[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in (
        MXNetError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        NotImplementedError,
    )
}


@overload
def register(func_name: Kind, cls: None = None) -> Kind: ...
@overload
def register(func_name: str, cls: None = None) -> Callable[[Kind], Kind]: ...
@overload
def register(func_name: str, cls: Kind) -> Kind: ...
def register(func_name: str | Kind, cls: Kind | None = None) -> Kind | Callable[[Kind], Kind]:
    """Registers an error class under its own name or a given one.

    mpgluon raises its own errors by class; the names serve programs that look them up.

    Parameters
    ----------
    func_name : str or type
        The name, or the class if used as a decorator.
    cls : type, optional
        The class. If it is omitted, the result is a decorator that registers under `func_name`.

    Returns
    -------
    type or function

    Examples
    --------
    >>> @mx.error.register
    ... class WrongWeights(mx.MXNetError):
    ...     pass
    >>> issubclass(WrongWeights, mx.MXNetError)
    True
    """
    if not isinstance(func_name, str):
        _KINDS[func_name.__name__] = func_name
        return func_name

    def add(kind: Kind) -> Kind:
        _KINDS[func_name] = kind
        return kind

    return add if cls is None else add(cls)


@register
class InternalError(MXNetError):
    """Raised for an internal error of the package.

    Parameters
    ----------
    msg : str
        The message.

    Examples
    --------
    >>> issubclass(mx.error.InternalError, mx.MXNetError)
    True
    """

    def __init__(self, msg: str) -> None:
        if "hint:" not in msg:
            msg += (
                "\nhint: this is a bug in mpgluon; please report it with the program that caused it"
            )
        super().__init__(msg)
