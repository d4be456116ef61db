"""Factory of the functions that create one network of a family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...block import HybridBlock


def constructor(
    name: str, what: str, get: Callable[..., HybridBlock], *arguments: Any, **fixed: Any
) -> Callable[..., HybridBlock]:
    """Returns a function called `name`, which calls `get` with `arguments`, `fixed` and its own
    keyword arguments."""

    def make(**kwargs: Any) -> HybridBlock:
        return get(*arguments, **{**kwargs, **fixed})

    make.__name__ = make.__qualname__ = name
    make.__module__ = get.__module__
    make.__doc__ = (
        f"{what}. Takes the parameters of `{get.__name__}` from `pretrained` on.\n\n"
        "Returns\n-------\nHybridBlock\n"
    )
    return make
