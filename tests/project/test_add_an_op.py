"""docs/add-an-op.md is up to date: its examples are lines of the files that it names."""

import os
import re

import pytest

from support.paths import ROOT

PAGE = os.path.join(ROOT, "docs", "add-an-op.md")
if not os.path.exists(PAGE):
    pytest.skip("the docs are not here", allow_module_level=True)

PATH = r"`((?:csrc|kernels|tests)/[\w/.]*)`"


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def squeezed(text):
    return re.sub(r"[\s\\]+", "", text)


def examples():
    """Yields (file, code) of each fenced block. The file is the one at the start of its step, in
    bold, or else the last one named before the block."""
    text = read(PAGE)
    for block in re.finditer(r"^```(?:c|python)\n(.*?)^```$", text, re.M | re.S):
        before = text[: block.start()].split("\n## ")[-1]
        steps = re.findall(r"^\*\*\d\..*?" + PATH, before, re.M | re.S)
        yield steps[-1] if steps else re.findall(PATH, before)[-1], block[1]


def test_paths_of_the_page_exist():
    paths = set(re.findall(PATH, read(PAGE)))
    assert len(paths) > 10
    assert not [path for path in sorted(paths) if not os.path.exists(os.path.join(ROOT, path))]


@pytest.mark.parametrize("path, code", [pytest.param(*e, id=e[1][:30]) for e in examples()])
def test_examples_are_in_the_sources(path, code):
    """The parts of an example between "..." lines occur in the file in this order."""
    source, at = squeezed(read(path)), 0
    for part in re.split(r"^ *\.\.\.\n", code, flags=re.M):
        found = source.find(squeezed(part), at)
        assert found >= 0, f"{path} has no\n{part}"
        at = found + len(squeezed(part))


def test_every_step_of_an_elementwise_op_has_an_example():
    assert [path for path, _ in examples()][:4] == [
        "csrc/op/defs/elementwise.def",
        "csrc/op/defs/elementwise.def",
        "kernels/common/unary.def",
        "csrc/op/math/elementwise.c",
    ]


def test_row_macros_have_the_columns_of_the_page():
    """Compares the forms on the page with the macro definitions."""
    forms = re.findall(
        r"`((?:MPG_[A-Z_]+|UNARY\w*|BINARY|FLOAT_ROWS)\([^`]*, [^`]*\))`", read(PAGE)
    )
    defined = squeezed(read("csrc/op/ops.def") + read("kernels/common/unary.def"))
    assert len(forms) > 1
    for form in forms:
        assert squeezed(f"#define {form}") in defined, form


def test_names_of_the_page_are_in_the_sources():
    names = set(re.findall(r"\b(?:mpg|MPG)_\w+", read(PAGE)))
    text = []
    for folder, _, files in os.walk(ROOT):
        if os.path.relpath(folder, ROOT).split(os.sep)[0] in ("csrc", "kernels"):
            text += [read(os.path.join(folder, name)) for name in files if name[-2:] != ".o"]
    words = set(re.findall(r"\w+", "\n".join(text)))
    # Prefixes that macros complete
    parts = ("mpg_infer_", "mpg_gradient_", "mpg_compose_", "mpg_batching_", "mpg_cpu_")
    assert not sorted(n for n in names if n not in words and not n.startswith(parts))
