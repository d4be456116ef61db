"""The API reference of the site has every public module; ``make site`` checks the rest."""

import glob
import importlib.util
import os
import pkgutil
import re

import pytest

import mpgluon as mx
from support.paths import ROOT

if not os.path.isdir(os.path.join(ROOT, "docs", "api")):
    pytest.skip("the docs are not here", allow_module_level=True)

# Programs, aliases of documented modules, and MXNet modules that only raise errors.
ELSEWHERE = (
    "as_mxnet",
    "contrib.amp.amp",
    "contrib.amp.lists",
    "contrib.autograd",
    "contrib.onnx",
    "info",
    "libinfo",
    "numpy",
    "numpy_extension",
    "registry",
    "symbol",  # repeats the operators
)


def documented():
    pages = glob.glob(os.path.join(ROOT, "docs", "api", "*.md"))
    text = "".join(open(page, encoding="utf-8").read() for page in pages)
    return re.findall(r"^\.\. automodule:: (\S+)$", text, re.M)


def test_every_module_is_in_the_reference():
    """The module itself, or all of its names through another module."""
    described = set()
    for module in map(importlib.import_module, documented()):
        for name in getattr(module, "__all__", vars(module)):
            described.add(id(getattr(module, name)))
    missing = []
    for info in pkgutil.walk_packages(mx.__path__, "mpgluon."):
        name = info.name.removeprefix("mpgluon.")
        parts = name.split(".")
        if any(part.startswith("_") for part in parts) or info.name in documented():
            continue
        if any(name == other or name.startswith(other + ".") for other in ELSEWHERE):
            continue
        module = importlib.import_module(info.name)
        for key in getattr(module, "__all__", ()):
            value = getattr(module, key)
            own = getattr(value, "__module__", None) == info.name
            if not key.startswith("_") and own and id(value) not in described:
                missing.append(f"{info.name}.{key}")
    assert not missing


def tool_of(name):
    spec = importlib.util.spec_from_file_location(name, os.path.join(ROOT, "tools", f"{name}.py"))
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


UNSIGNED = ("Sampler", "SummaryWriter", "NDArray")  # their constructors accept anything or nothing


def test_reference_classes_show_constructor_parameters():
    docstrings = tool_of("docstrings")
    unsigned = {"", "(*args, **kwargs)"}
    for module in map(importlib.import_module, documented()):
        for name in module.__all__ if hasattr(module, "__all__") else ():
            kind = getattr(module, name)
            if not isinstance(kind, type) or issubclass(kind, BaseException) or name in UNSIGNED:
                continue
            shown = docstrings.signature_of(kind)
            assert shown not in unsigned and " at 0x" not in shown, f"{name}{shown}"
            bases = docstrings.public_bases(kind.__bases__)
            assert not [base for base in bases if base.__name__.startswith("_")], name
    assert docstrings.signature_of(mx.gluon.nn.Dropout) == "(rate, axes=(), **kwargs)"
    assert docstrings.public_bases(mx.gluon.nn.AvgPool1D.__bases__) == [mx.gluon.HybridBlock]


def test_reference_layers_skip_inherited_methods():
    docstrings = tool_of("docstrings")
    for value, left_out in ((mx.gluon.nn.Dense, True), (mx.gluon.HybridBlock, None)):
        method = value.hybrid_forward
        assert docstrings.skip(None, "class", "hybrid_forward", method, False, None) is left_out, (
            value
        )


def test_schedule_drawings_and_table_match_the_code():
    """`python tools/draw_schedules.py` draws them, and the page has their numbers."""
    tool = tool_of("draw_schedules")
    with open(os.path.join(ROOT, "docs", "schedules.md"), encoding="utf-8") as file:
        page = file.read()
    for name in tool.PICTURES:
        with open(os.path.join(tool.FOLDER, f"{name}.svg"), encoding="utf-8") as file:
            assert file.read() == tool.svg(name), name
        _, simulation = tool.simulated(name)
        if name != "one_micro_batch":
            row = f"| `{name}` | {simulation.makespan:g} | {simulation.bubble:.0%} |"
            assert row.replace("%", " %") in page
