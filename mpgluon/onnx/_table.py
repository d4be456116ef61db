"""The conversion table: the exporter of each op, and the importer of each ONNX op.

Each file of ``_ops`` has a family of ops, with both directions of an op next to each other. An
exporter ``f(g, call, *inputs)`` adds nodes to the `Builder` g and returns the name of the result,
or a list of names. An importer ``f(node)`` returns a Symbol, or a list of Symbols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Export(NamedTuple):
    convert: Callable[..., Any]
    onnx: str  # the ONNX ops, for the table in the docs
    unread: tuple[int, ...]  # inputs that only training reads


EXPORTS: dict[str, Export] = {}
# Functions of mx.np that are not ops. Those that are missing here are expanded into ops.
FUNCTIONS: dict[str, Export] = {}
IMPORTS: dict[str, Callable[..., Any]] = {}


def exports(names: str, onnx: str, unread: tuple[int, ...] = ()) -> Callable[..., Any]:
    """Registers a function as the exporter of ops."""

    def enter(function):
        for name in names.split():
            if name in EXPORTS:
                raise AssertionError(f"{name} already has an exporter")
            EXPORTS[name] = Export(function, onnx, unread)
        return function

    return enter


def function_exports(name: str, onnx: str) -> Callable[..., Any]:
    """Registers a function as the exporter of a function of mx.np."""

    def enter(function):
        FUNCTIONS[name] = Export(function, onnx, ())
        return function

    return enter


def export_of(name: str) -> Export | None:
    return EXPORTS.get(name) or FUNCTIONS.get(name)


def imports(names: str) -> Callable[..., Any]:
    """Registers a function as the importer of ONNX ops."""

    def enter(function):
        for name in names.split():
            if name in IMPORTS:
                raise AssertionError(f"{name} already has an importer")
            IMPORTS[name] = function
        return function

    return enter
