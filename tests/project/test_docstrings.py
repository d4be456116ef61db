"""Everything that users can reach has a docstring, and every setting has a row in
docs/settings.md."""

import importlib
import inspect
import os
import pathlib
import pkgutil
import re

import pytest

import mpgluon as mx
from support.paths import ROOT

MODULES = [
    info.name
    for info in pkgutil.walk_packages(mx.__path__, "mpgluon.")
    if not any(part.startswith("_") for part in info.name.split(".")[1:])
]
NAMESPACES = [
    (name, part) for name in ("nd", "sym") for part in ("", "random", "linalg", "contrib")
]


def has_doc(value):
    return bool((inspect.getdoc(value) or "").strip())


def is_member(value):
    return (
        isinstance(value, property)
        or callable(value)
        or inspect.isdatadescriptor(value)
        or inspect.ismethoddescriptor(value)
    )


def member_has_doc(cls, name):
    """True if the member or one that it overrides has a docstring."""
    for base in cls.__mro__:
        if name not in vars(base):
            continue
        member = vars(base)[name]
        member = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if (getattr(member, "__doc__", None) or "").strip():
            return True
    return False


def undocumented(value, path):
    found = [] if has_doc(value) else [path]
    if inspect.isclass(value):
        for name, member in vars(value).items():
            member = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
            if not name.startswith("_") and is_member(member) and not member_has_doc(value, name):
                found.append(f"{path}.{name}")
    return found


@pytest.mark.parametrize("name", MODULES)
def test_public_names_have_docstrings(name):
    module = importlib.import_module(name)
    found = [] if has_doc(module) else [name]
    for key in getattr(module, "__all__", None) or [
        key for key in vars(module) if not key.startswith("_")
    ]:
        value = getattr(module, key)
        ours = (getattr(value, "__module__", None) or "").startswith("mpgluon")
        if ours and callable(value):
            found += undocumented(value, f"{name}.{key}")
    assert not found, found


@pytest.mark.parametrize("package, part", NAMESPACES)
def test_operators_have_docstrings(package, part):
    namespace = getattr(mx, package)
    namespace = getattr(namespace, part) if part else namespace
    names = [
        name
        for name in dir(namespace)
        if not name.startswith("_")
        and callable(getattr(namespace, name))
        and not inspect.isclass(getattr(namespace, name))
    ]
    assert names
    assert not [name for name in names if not has_doc(getattr(namespace, name))]


@pytest.mark.parametrize("module", [mx.optimizer, mx.metric])
def test_optimizer_and_metric_parameters_are_documented(module):
    """Each parameter has an entry with its meaning and default."""
    missing, other_names = [], {"Caffe", "Torch"}  # aliases of Loss
    for name, kind in vars(module).items():
        if not inspect.isclass(kind) or name.startswith("_") or name in other_names:
            continue
        if "__init__" in vars(kind):
            lines = [
                line.split(" :")[0].replace("*", "").split(", ")
                for line in inspect.getdoc(kind).splitlines()
                if re.match(r"[\w*]+(, [\w*]+)*( :|$)", line)
            ]
            entries = {entry for line in lines for entry in line}
            parameters = [one for one in inspect.signature(kind).parameters if one != "args"]
            missing += [f"{name}: {one}" for one in parameters if one not in entries]
    assert not missing, missing


def test_docstrings_do_not_open_with_what():
    """They open with a noun or a verb, which can be searched for."""
    opening = re.compile(r'(?:"""|^ *# )What [a-z]', re.M)
    files = sorted(pathlib.Path(ROOT, "mpgluon").glob("**/*.py"))
    found = [str(path) for path in files if opening.search(path.read_text(encoding="utf-8"))]
    assert files and not found, "\n".join(found)


def test_undocumented_lists_members_without_docstrings():
    class Some:
        """A class."""

        def method(self):
            pass

        @property
        def number(self):
            return 1

    assert undocumented(Some, "Some") == ["Some.method", "Some.number"]
    assert undocumented(lambda: 0, "f") == ["f"]


def settings_read():
    """Returns the environment variables that the sources read, found as whole string literals."""
    found = set()
    for folder in ("mpgluon", "csrc", "kernels", "tools", "setup.py"):
        top = os.path.join(ROOT, folder)
        paths = (
            [top]
            if os.path.isfile(top)
            else [os.path.join(path, name) for path, _, names in os.walk(top) for name in names]
        )
        for path in paths:
            if path.endswith((".py", ".c", ".h", ".def", ".cu", ".cuh")):
                with open(path, encoding="utf-8") as file:
                    found.update(re.findall(r'"((?:MPGLUON|MXNET)_[A-Z0-9_]+)"', file.read()))
    return found


@pytest.mark.skipif(
    not os.path.isfile(os.path.join(ROOT, "docs", "settings.md")), reason="the sources are not here"
)
def test_settings_page_lists_exactly_the_variables_read():
    """Every variable that the sources read is documented, and vice versa."""
    with open(os.path.join(ROOT, "docs", "settings.md"), encoding="utf-8") as file:
        rows = "".join(line.split("|")[1] for line in file if line.startswith("| `"))
    assert settings_read() == set(re.findall(r"(?:MPGLUON|MXNET)_[A-Z0-9_]+", rows))
