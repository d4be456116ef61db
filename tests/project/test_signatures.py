"""Docstrings that document parameters name those of the signature, each with text."""

import importlib
import inspect
import pkgutil
import re

import mpgluon as mx

MODULES = [
    info.name
    for info in pkgutil.walk_packages(mx.__path__, "mpgluon.")
    if not any(part.startswith("_") for part in info.name.split(".")[1:])
]


def sections(doc):
    """Returns the text of a NumPy docstring's sections by title."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.cleandoc(doc), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def entries(section):
    """Returns (names, type, text) of each entry of a section, for instance Parameters."""
    found = []
    for line in section.split("\n"):
        if line and not line[0].isspace():
            if found and not found[-1][2] and not found[-1][1]:
                continue  # prose after the entries
            names, _, kind = line.partition(" : ")
            if not re.fullmatch(r"\*{0,2}\w+(, \*{0,2}\w+)*", names):
                break
            found.append([names.split(", "), kind, ""])
        elif found:
            found[-1][2] += line.strip()
    return found


def faults(function, doc, path):
    """Returns the faults of a docstring's parameters."""
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
    if set(named) - set(known):  # the names accepted by ** are described individually
        optional |= {name for name in known if name.startswith("**")}
    return (
        [f"{path}: {', '.join(names)} has no text" for names, _, text in found if not text]
        + [f"{path}: {n} is no parameter" for n in named if n not in known and not passed_on]
        + [f"{path}: {n} is not described" for n in known if n not in named and n not in optional]
    )


def is_offered_by(module, value):
    """True if the value is the module's own or of a private module, as `mx.parallel.Pipeline`."""
    home = getattr(value, "__module__", None) or ""
    private = any(part.startswith("_") for part in home.split(".")[1:])
    return home == module.__name__ or (home.startswith("mpgluon.") and private)


def public_members(module):
    """Yields (path, function, docstring) of a module's public callables."""
    for key in getattr(module, "__all__", None) or vars(module):
        value = getattr(module, key)
        if key.startswith("_") or not is_offered_by(module, value):
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


def test_documented_parameters_match_signatures():
    paths = {path for path, _, _ in public_members(mx.parallel)}
    assert "mpgluon.parallel.Pipeline" in paths
    wrong = [fault for name in MODULES for fault in module_faults(name)]
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


def test_faults_reports_missing_and_unknown_parameters():
    def add(a, d=0):
        return a + d

    assert faults(add, DOC, "add") == [
        "add: c has no text",
        "add: b is no parameter",
        "add: c is no parameter",
        "add: d is not described",
    ]
