"""Public functions are annotated, and their docstrings tell of each parameter that they document
what it is: in signature and docstring the same names, each with text."""

import ast
import importlib
import inspect
import pathlib
import pkgutil
import re

import mpgluon as mx

PACKAGE = pathlib.Path(mx.__path__[0])
MODULES = [
    info.name
    for info in pkgutil.walk_packages(mx.__path__, "mpgluon.")
    if not any(part.startswith("_") for part in info.name.split(".")[1:])
]


def sections(doc):
    """The text of a NumPy docstring's sections, by title."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.cleandoc(doc), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def entries(section):
    """(names, type, text) of each entry of a section such as Parameters."""
    found = []
    for line in section.split("\n"):
        if line and not line[0].isspace():
            if found and not found[-1][2] and not found[-1][1]:
                continue  # prose behind the entries
            names, _, kind = line.partition(" : ")
            if not re.fullmatch(r"\*{0,2}\w+(, \*{0,2}\w+)*", names):
                break
            found.append([names.split(", "), kind, ""])
        elif found:
            found[-1][2] += line.strip()
    return found


def faults(function, doc, path):
    """What is wrong with the parameters in a docstring."""
    section = sections(doc or "").get("Parameters")
    if section is None:
        return []
    parameters = inspect.signature(function).parameters.values()
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    known = [stars.get(p.kind, "") + p.name for p in parameters]
    passed_on = "**" in "".join(known)
    optional = {"self", "cls", "prefix", "params", "**kwargs", "*args"}
    found = entries(section)
    named = [name for names, _, _ in found for name in names]
    return (
        [f"{path}: {', '.join(names)} has no text" for names, _, text in found if not text]
        + [f"{path}: {n} is no parameter" for n in named if n not in known and not passed_on]
        + [f"{path}: {n} is not described" for n in known if n not in named and n not in optional]
    )


def public_members(module):
    """(path, function, docstring) of what a module's users call."""
    for key in getattr(module, "__all__", None) or vars(module):
        value = getattr(module, key)
        if key.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        path = f"{module.__name__}.{key}"
        if inspect.isclass(value):
            yield path, value, value.__doc__
            for name, member in vars(value).items():
                member = getattr(member, "__func__", member)
                if inspect.isfunction(member) and (name[0] != "_" or name == "__call__"):
                    yield f"{path}.{name}", member, member.__doc__
        elif inspect.isfunction(value):
            yield path, value, value.__doc__


def module_faults(name):
    return [
        fault
        for path, function, doc in public_members(importlib.import_module(name))
        for fault in faults(function, doc, path)
    ]


def test_documented_parameters():
    wrong = [fault for name in MODULES for fault in module_faults(name)]
    assert not wrong, "\n".join(wrong)


def missing_annotations(tree):
    """Public functions and methods of a module that lack an annotation."""

    def visit(body, prefix, in_class):
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from visit(node.body, prefix + node.name + ".", True)
            elif isinstance(node, ast.FunctionDef):
                dunder = node.name.startswith("__")
                if node.name.startswith("_") and not (dunder and in_class):
                    continue
                args = node.args
                given = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
                static = any(ast.unparse(d) == "staticmethod" for d in node.decorator_list)
                if in_class and not static:
                    given = given[1:]
                if node.returns is None or any(a and a.annotation is None for a in given):
                    yield prefix + node.name

    yield from visit(tree.body, "", False)


def test_annotations():
    wrong = []
    for name in MODULES:
        path = PACKAGE.joinpath(*name.split(".")[1:])
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        wrong += [f"{name}.{what}" for what in missing_annotations(tree)]
    assert not wrong, "\n".join(wrong)


DOC = """Adds.

Parameters
----------
a, b : int
    The numbers.
c : int, default 0

Returns
-------
int
"""


def test_this_test():
    def add(a, d=0):
        return a + d

    assert faults(add, DOC, "add") == [
        "add: c has no text",
        "add: b is no parameter",
        "add: c is no parameter",
        "add: d is not described",
    ]
    tree = ast.parse("def f(a: int) -> int: ...\ndef g(a) -> int: ...\ndef h(): ...")
    assert list(missing_annotations(tree)) == ["g", "h"]
