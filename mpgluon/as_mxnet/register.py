"""MXNet's modules of this name, which create functions of ops from handles of its C library.

There are no handles here: ops are functions, ``mx.nd.NAME`` and ``mx.sym.NAME``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import NotSupportedError

if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__: list[str] = []


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise NotSupportedError(
        "ops of mpgluon have no handles of MXNet's C library; call mx.nd.NAME or mx.sym.NAME, "
        "and define ops with mx.operator.CustomOp or autograd.Function"
    )


_generate_ndarray_function_code = _generate_symbol_function_code = _refuse
_imperative_invoke = _make_ndarray_function = _make_symbol_function = _symbol_creator = _refuse
