"""Detects several Trainers, or manual copies, that can become one block with one Trainer."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ._scopes import Path, Scopes

_COPIES = ("as_in_context", "as_in_ctx", "copyto", "as_nd_ndarray")
_BLOCKS = (("gluon", "Block"), ("gluon", "nn", "Block"), ("gluon", "block", "Block"))


def opportunities(tree: ast.Module, scopes: Scopes) -> Iterator[tuple[int, int, str]]:
    """Yields (line, column, text) of possible simplifications."""
    yield from _trainers(tree, scopes)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from _copying_blocks(node, scopes)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            yield from _recorded_copies(node, scopes, tree)
        elif isinstance(node, ast.Call):
            yield from _handed_gradient(node)
            yield from _groups(node)


def _inner(path: Path | None) -> Path:
    return path[1:] if path and path[0] == "mxnet" else ()


def _is_trainer(node, scope):
    return isinstance(node, ast.Call) and _inner(scope.resolve(node.func))[-1:] == ("Trainer",)


def _walk_scopes(scopes):
    """Yields (scope, node) of all nodes."""
    for top, scope in scopes.of.items():
        body = top.body if isinstance(top.body, list) else [top.body]
        stack = list(body)
        while stack:
            node = stack.pop()
            yield scope, node
            if node not in scopes.of:
                stack += ast.iter_child_nodes(node)


def _trainers(tree, scopes):
    """Yields Trainers with consecutive steps and no backward in between."""
    made: dict[str, ast.Call] = {}
    lists: dict[str, ast.AST] = {}
    for scope, node in _walk_scopes(scopes):
        if _method(node) == "append" and any(_is_trainer(arg, scope) for arg in node.args):
            lists[ast.unparse(node.func.value)] = node
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            name = ast.unparse(target)
            if _is_trainer(node.value, scope):
                made[name] = node.value
            elif isinstance(node.value, ast.ListComp) and _is_trainer(node.value.elt, scope):
                lists[name] = node.value
            elif isinstance(node.value, (ast.List, ast.Tuple)):
                inside = [one for one in node.value.elts if _is_trainer(one, scope)]
                if len(inside) > 1:
                    lists[name] = node.value
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                yield from _steps_together(body, made)
    for node in ast.walk(tree):
        loops = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])
        for name in {ast.unparse(loop.iter) for loop in loops} & set(lists):
            if any(_method(inner) == "step" for inner in ast.walk(node)):
                text = (
                    f"the Trainers in {name} step one after another: one Trainer takes the "
                    "parameters of all, on any devices"
                )
                yield node.lineno, node.col_offset, text


def _method(node):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr
    return None


def _steps_together(body, made):
    group: list[tuple[str, ast.Call]] = []
    for statement in [*body, None]:
        call = getattr(statement, "value", None) if isinstance(statement, ast.Expr) else None
        name = ast.unparse(call.func.value) if _method(call) == "step" else None
        if name in made and all(name != other for other, _ in group):
            group.append((name, call))
            continue
        calls = statement is not None and [_method(one) for one in ast.walk(statement)]
        if statement is not None and not {"backward", "step", "record"} & set(calls):
            continue
        if len(group) > 1:
            yield group[0][1].lineno, group[0][1].col_offset, _about(group, made)
        group = [(name, call)] if name in made else []


def _about(group, made):
    names = [name for name, _ in group]
    options = {
        ast.dump(ast.Tuple([*made[name].args[1:], *(k.value for k in made[name].keywords)]))
        for name in names
    }
    sizes = {ast.unparse(ast.Tuple(call.args)) for _, call in group}
    parameters = ", ".join(
        "**" + ast.unparse(made[name].args[0]) if made[name].args else "..." for name in names
    )
    text = f"{_list(names)} step one after another: one Trainer takes the parameters of all, "
    text += "on any devices"
    if len(options) == 1 and len(sizes) == 1:
        return text + f": gluon.Trainer({{{parameters}}}, ...)"
    return text + ", if they have the same optimizer, options and batch size"


def _list(names):
    return ", ".join(names[:-1]) + f" and {names[-1]}"


def _bases(node, scopes):
    scope = scopes.of[node].parent
    return {_inner(scope.resolve(base)) for base in node.bases}


def _copies(node):
    """Returns the calls in a node that copy to another device."""
    return [one for one in ast.walk(node) if _method(one) in _COPIES]


def _copying_blocks(node, scopes):
    """Yields Blocks whose forward copies between devices, which can be hybridized."""
    bases = _bases(node, scopes)
    for function in node.body:
        if not isinstance(function, ast.FunctionDef) or function.name != "forward":
            continue
        copies = _copies(function)
        if copies and bases & set(_BLOCKS):
            text = (
                f"{node.name}.forward copies between devices: as a HybridBlock, with these copies "
                "in hybrid_forward, it is hybridized as one block"
            )
            yield copies[0].lineno, copies[0].col_offset, text


def _recorded_copies(node, scopes, tree):
    """Yields block results that are copied to other blocks under autograd.record()."""
    recorded = any(_method(item.context_expr) == "record" for item in node.items)
    if not recorded:
        return
    results = {
        name.id
        for statement in ast.walk(node)
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
        for target in statement.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    for call in ast.walk(node):
        if not isinstance(call, ast.Call) or _method(call) in (*_COPIES, "append"):
            continue
        for arg in call.args:
            if _method(arg) not in _COPIES:
                continue
            value = arg.func.value
            given = value.id in results if isinstance(value, ast.Name) else _is_call(value)
            if given and not _is_loss(call):
                text = (
                    f"{ast.unparse(arg)[:60]} hands the result of one block to another device: the "
                    "blocks can be one HybridBlock, with this copy in hybrid_forward"
                )
                yield arg.lineno, arg.col_offset, text
                return


def _is_call(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def _is_loss(call):
    return "loss" in ast.unparse(call.func).lower()


def _handed_gradient(node):
    """Yields gradients that are passed on manually: ``out.backward(x.grad)``."""
    if _method(node) != "backward":
        return
    for arg in node.args:
        for inner in ast.walk(arg):
            if isinstance(inner, ast.Attribute) and inner.attr == "grad":
                text = (
                    "a gradient is handed over by hand: one autograd.record() over all devices, "
                    "and one backward, do it"
                )
                yield node.lineno, node.col_offset, text
                return


def _groups(node):
    """Yields Executors and Modules of groups on devices."""
    for option in node.keywords:
        if option.arg in ("group2ctx", "group2ctxs"):
            text = (
                f"{option.arg}: runs as it is; the network can be one HybridBlock, with "
                "as_in_context between its parts, for pipelines and plans"
            )
            yield option.value.lineno, option.value.col_offset, text
