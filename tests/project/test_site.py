"""The API reference of the site has every public module; ``make site`` checks the rest."""

import glob
import importlib.util
import operator
import os
import pkgutil
import re

import pytest

import mpgluon as mx
from mpgluon.ndarray._namespaces import place
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
    "executor_manager",
    "info",
    "libinfo",
    "misc",
    "numpy_dispatch_protocol",
    "numpy_extension.image",  # repeats mx.image
    "registry",
    "symbol",  # repeats the operators
)


def documented():
    """Returns (path, object) of each name in the tables of the API pages."""
    found = []
    for page in glob.glob(os.path.join(ROOT, "docs", "api", "**", "*.md"), recursive=True):
        with open(page, encoding="utf-8") as file:
            text = file.read()
        for block in re.findall(r"```{eval-rst}\n(.*?)```", text, re.S):
            for name in re.findall(r"^   (\w[\w.]*)$", block, re.M):
                module = re.search(r"currentmodule:: (\S+)", block)[1]
                value = importlib.import_module(module)
                for part in name.split("."):
                    value = getattr(value, part)
                found.append((f"{module}.{name}", value))
    return found


def test_every_public_name_is_in_the_reference():
    """Under its own module or another one."""
    described = {id(value) for _, value in documented()}
    missing = []
    for info in pkgutil.walk_packages(mx.__path__, "mpgluon."):
        name = info.name.removeprefix("mpgluon.")
        if any(part.startswith("_") for part in name.split(".")):
            continue
        if any(name == other or name.startswith(other + ".") for other in ELSEWHERE):
            continue
        module = importlib.import_module(info.name)
        for key in getattr(module, "__all__", ()):
            value = getattr(module, key)
            own = (getattr(value, "__module__", None) or "").startswith(info.name)
            op = isinstance(value, mx._core.Op)
            own &= not hasattr(value, "on_copies")  # the page on NumPy's interface lists these
            if callable(value) and own and not op and id(value) not in described:
                missing.append(f"{info.name}.{key}")
    assert not missing


# Names of mx.npx that other modules define
_OF_NPX = set("Context cpu cpu_pinned current_context gpu gpu_memory_info num_gpus".split())


@pytest.mark.parametrize("name", ["np", "np.linalg", "np.random", "npx", "npx.random"])
def test_every_function_of_numpys_interface_is_in_the_reference(name):
    """The page on the interface lists the functions on copies."""
    module = operator.attrgetter(name)(mx)
    paths = {path for path, _ in documented()} | {"mpgluon.numpy_extension.random.seed"}
    missing = [
        key
        for key in module.__all__
        if callable(value := getattr(module, key))
        and not isinstance(value, type)
        and not hasattr(value, "on_copies")
        and f"{module.__name__}.{key}" not in paths
        and not (name == "npx" and key in _OF_NPX)
    ]
    assert not missing


SPACES = ("contrib", "linalg", "image", "random")  # of mx.nd


def test_every_public_operator_is_in_the_reference():
    """Under one of its names; the documentation of the operator lists the others."""
    described = {
        value.describe()["name"] for _, value in documented() if isinstance(value, mx._core.Op)
    }
    functions = {path.rpartition(".")[2] for path, _ in documented()}  # of Python, around an op
    missing = []
    for op in {op.describe()["name"]: op for op in mx._core.ops().values()}.values():
        row = op.describe()
        places = [place(name) for name in (row["name"], *row["aliases"].split())]
        public = [name for space, name in places if space in ("op", *SPACES)]
        known = row["name"] in described or functions.intersection(public)
        own = "tests_" not in row["name"]  # from the library of test_library.py
        own &= not row["name"].startswith("_np")  # of mx.np
        if public and "hidden" not in row["flags"] and not known and own:
            missing.append(row["name"])
    assert len(described) > 300 and not missing


def test_names_are_listed_once():
    paths = [path for path, _ in documented()]
    assert sorted(set(paths)) == sorted(paths)


def tool_of(name):
    spec = importlib.util.spec_from_file_location(name, os.path.join(ROOT, "tools", f"{name}.py"))
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


UNSIGNED = ("NDArray", "ndarray")  # made by functions, not by its constructor


def test_reference_classes_show_constructor_parameters():
    docstrings = tool_of("docstrings")
    unsigned = {"", "(*args, **kwargs)"}
    for name, kind in documented():
        if not isinstance(kind, type) or issubclass(kind, BaseException):
            continue
        if kind.__name__ in UNSIGNED:
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


def test_site_check_reports_long_lines_and_empty_signatures(tmp_path):
    check_site = tool_of("check_site")
    page = """<a href="#there"></a><a href="gone.html"></a><p id="there"></p>
<div class="cell_input"><div class="highlight-python"><pre>{code}</pre></div></div>
<div class="cell_output"><div class="highlight-text"><pre>{output}</pre></div></div>
<dt class="sig">class <b>Any</b>(*args, **kwargs)</dt><dt>class Some(a, **kwargs)</dt>"""
    (tmp_path / "page.html").write_text(page.format(code="x" * 89, output="y" * 200))
    assert check_site.faults(str(tmp_path)) == [
        f"page.html: 89 columns: {'x' * 89}",
        "page.html: no parameters: class Any(*args, **kwargs)",
        "page.html: broken link gone.html",
    ]


def test_notebooks_page_lists_all_in_order():
    """With a figure, a sentence and a duration each."""
    with open(os.path.join(ROOT, "docs", "notebooks.md"), encoding="utf-8") as file:
        cards = re.findall(r":::{grid-item-card} (\d+)\..*?\n:::\n", file.read(), re.S)
    names = sorted(glob.glob(os.path.join(ROOT, "notebooks", "*.ipynb")))
    assert cards == [str(int(os.path.basename(name)[:2])) for name in names]


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
            assert row in page
