"""Modules do not use private names of each other; owners of private attributes offer functions.

The extension and its types have underscore names for the package only. These names, op names, and
documented underscore names of the standard library, PyTorch and mpi4py are exempt.
"""

import ast
import inspect
import pathlib

from mpgluon import _core

# `_implementation` is NumPy's function before dispatch to other arrays (NEP 18). `_Unpickler` is
# the reader of pickles in Python, whose opcodes can be overridden.
STANDARD = {
    "_Unpickler",
    "_create_unverified_context",
    "_getframe",
    "_implementation",
    "_replace",
    "_sizeof",
    "_version",
}
PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "mpgluon"


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name != "_"


def names_of_the_core():
    """Returns the names of the extension, its types and the op registry."""
    types = [value for value in vars(_core).values() if inspect.isclass(value)]
    methods = {
        name
        for kind in types
        for name, value in vars(kind).items()
        if inspect.ismethoddescriptor(value) or inspect.isdatadescriptor(value)
    }
    return {*vars(_core), *methods, *_core.ops()}


def own_names(nodes):
    """Returns the names of a module's functions, classes, variables, self attributes and slots."""
    names = set()
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def foreign_names(tree, modules):
    """Yields private names of other modules that a module uses as attributes or imports."""
    nodes = list(ast.walk(tree))
    own = own_names(nodes) | modules
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            used = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            is_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            is_super = isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()"
            used = [] if is_self or is_super else [node.attr]
        else:
            continue
        yield from (name for name in used if is_private(name) and name not in own)


def test_modules_do_not_use_private_names_of_others():
    files = sorted(PACKAGE.glob("**/*.py"))
    assert files
    modules = STANDARD | names_of_the_core()
    modules |= {"_core"} | {path.stem for path in files} | {path.parent.name for path in files}
    uses = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in files
        for name in foreign_names(ast.parse(path.read_text(encoding="utf-8")), modules)
    ]
    assert not uses, "\n".join(uses)
