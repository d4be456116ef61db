"""Resolves expressions in a source to dotted names, based on its imports and assignments."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ._package import OTHERS, OURS, public_names

Path = tuple[str, ...]
HEADS = ("mxnet", OURS)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Scope:
    """The names bound in a module, class or function.

    A name resolves to a dotted name (which starts with 'mxnet' for the package), to the result of
    calling one, or to None if it is unknown.
    """

    def __init__(self, node: ast.AST, parent: Scope | None) -> None:
        self.node, self.parent = node, parent
        self.names: dict[str, Path | None] = {}
        self.made: dict[str, ast.Call] = {}  # name -> the call whose result is assigned to it
        self.stars: list[Path] = []

    def bind(self, name: str, path: Path | None) -> None:
        """Binds a name, possibly again.

        A part of mxnet takes precedence over the fallback of a failed import; any other conflict
        makes the name unknown.
        """
        before = self.names.get(name, path)
        if before != path and not (before and before[0] == "mxnet"):
            path = path if path and path[0] == "mxnet" else None
        elif before != path:
            path = before
        self.names[name] = path

    def find(self, name: str) -> Path | None:
        """Returns the dotted name that a name resolves to in this scope."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and (scope is self or not isinstance(scope.node, ast.ClassDef)):
                return scope.names[name]
            if scope.parent is None:
                for star in scope.stars:
                    if name in public_names(star[1:]):
                        return (*star, name)
            scope = scope.parent
        return None

    def maker(self, name: str) -> ast.Call | None:
        """Returns the call that a name was assigned from."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.made or name in scope.names:
                return scope.made.get(name)
            scope = scope.parent
        return None

    def resolve(self, node: ast.AST) -> Path | None:
        """Returns the dotted name that an expression resolves to."""
        if isinstance(node, ast.Name):
            return self.find(node.id)
        if isinstance(node, ast.Attribute):
            before = self.resolve(node.value)
            return before and (*before, node.attr)
        return None


class Scopes:
    """The scopes of a source: one for the module, and for each function and class."""

    def __init__(self, tree: ast.Module) -> None:
        self.of: dict[ast.AST, Scope] = {}
        self._enter(tree, None)

    def _enter(self, node, parent):
        scope = self.of[node] = Scope(node, parent)
        if isinstance(node, _FUNCTIONS):
            given = node.args
            for arg in [*given.posonlyargs, *given.args, *given.kwonlyargs]:
                scope.bind(arg.arg, None)
            for one in filter(None, (given.vararg, given.kwarg)):
                scope.bind(one.arg, None)
            if getattr(node, "name", "") == "hybrid_forward" and len(given.args) > 1:
                scope.names[given.args[1].arg] = ("mxnet", "F")
        body = node.body if isinstance(node.body, list) else [node.body]
        inner: list[ast.AST] = []
        for child in body:
            self._bind(child, scope, inner)
        for child in inner:
            self._enter(child, scope)

    def _bind(self, node, scope, inner):
        """Adds a node's bindings to the scope, and collects its functions and classes."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            scope.bind(node.name, None)
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            inner.append(node)
            for child in outside(node):
                self._bind(child, scope, inner)
            return
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node, scope)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assign(node.targets[0], node.value, scope)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._assign(node.optional_vars, node.context_expr, scope)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            if node.id not in scope.names:
                scope.bind(node.id, None)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            scope.bind(node.name, None)
        for child in ast.iter_child_nodes(node):
            self._bind(child, scope, inner)

    def _assign(self, target, value, scope):
        if not isinstance(target, ast.Name):
            return
        if isinstance(value, ast.Constant) and value.value is None and target.id in scope.names:
            return  # keep the import; this assignment is the fallback if it fails
        path = scope.resolve(value)
        scope.bind(target.id, path)
        if isinstance(value, ast.Call) and path is None:
            scope.made[target.id] = value

    def _import(self, node, scope):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = tuple(alias.name.split("."))
                known = parts[0] in HEADS or parts[0] in OTHERS
                path = parts if alias.asname else parts[:1]
                scope.bind(alias.asname or parts[0], _named(path) if known else None)
            return
        parts = tuple((node.module or "").split("."))
        known = not node.level and (parts[0] in HEADS or parts[0] in OTHERS)
        for alias in node.names:
            if alias.name == "*":
                if known and parts[0] in HEADS:
                    scope.stars.append(_named(parts))
            else:
                path = (*parts, alias.name)
                scope.bind(alias.asname or alias.name, _named(path) if known else None)


def _named(path):
    return ("mxnet", *path[1:]) if path[0] in HEADS else path


def outside(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the parts of a function or class that are evaluated in the enclosing scope.

    These are decorators, defaults, bases and annotations.
    """
    for name, value in ast.iter_fields(node):
        if name == "body":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
