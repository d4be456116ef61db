"""docs/numpy-interface.md: the examples print the shown output, and its list is complete."""

import doctest
import os
import re

import pytest

import mpgluon as mx
from mpgluon.numpy import _fallback
from support.devices import cpus_only
from support.paths import ROOT

PATH = os.path.join(ROOT, "docs", "numpy-interface.md")
if not os.path.isfile(PATH):
    pytest.skip("the docs are not here", allow_module_level=True)
with open(PATH, encoding="utf-8") as file:
    PAGE = file.read()


@cpus_only
def test_page_examples_print_the_shown_output():
    sessions = "\n".join(re.findall(r"^```pycon\n(.*?)^```$", PAGE, re.M | re.S))
    example = doctest.DocTestParser().get_doctest(sessions, {}, "numpy-interface.md", PATH, 0)
    assert doctest.DocTestRunner().run(example).failed == 0
    assert example.examples


@cpus_only
def test_page_code_trains(capsys):
    scope = {}
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S):
        exec(code, scope)
    trained, attended = capsys.readouterr().out.splitlines()
    assert 0 < float(trained) < 3 and attended == "(2, 4, 8)"
    assert type(scope["net"][0].weight.data()) is mx.np.ndarray
    assert not mx.util.is_np_array()


def test_page_lists_the_functions_on_copies():
    text = re.search(r"compute on copies, as in\s+MXNet.*?(?=\n\n)", PAGE, re.S)[0]
    listed = set(re.findall(r"`(\w+)`", text))
    on_copies = {name for name in _fallback.__all__ if hasattr(getattr(mx.np, name), "on_copies")}
    assert on_copies | {*_fallback.LINALG_FUNCTIONS} <= listed
    assert listed <= {*_fallback.FUNCTIONS, *_fallback.LINALG_FUNCTIONS}
