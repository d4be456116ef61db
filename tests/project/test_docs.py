"""The form of the docs: lines end at column 100, measurements have dates, and the glossary's terms
are those of the code."""

import glob
import os
import re

import pytest

from support import operators_page
from support.paths import ROOT

if not os.path.isdir(os.path.join(ROOT, "docs")):
    pytest.skip("the docs are not here", allow_module_level=True)

PAGES = sorted(
    os.path.relpath(path, ROOT)
    for path in [
        os.path.join(ROOT, "README.md"),
        *glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True),
    ]
)
# Words of a diary; a page says what is so.
DIARY = r"\b(before these changes|it was tried|we tried|later the same|yesterday|by now)\b"


def read(page):
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        return file.read()


@pytest.mark.parametrize("page", PAGES)
def test_lines_end_at_column_100(page):
    """But for tables, long addresses and what a program has printed."""
    text = re.sub(r"^```text\n.*?^```$", "", read(page), flags=re.M | re.S)
    long = [
        line
        for line in text.splitlines()
        if len(line) > 100 and not line.startswith("|") and len(max(line.split(), key=len)) < 90
    ]
    assert not long


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_no_diaries(page):
    assert not re.findall(DIARY, read(page), flags=re.I)


@pytest.mark.parametrize("page", [page for page in PAGES if "measurements" in page])
def test_measurements_have_dates(page):
    """Each section says when its figures were taken, or written down."""
    for section in re.split(r"^## ", read(page), flags=re.M):
        if "\n| ---" in section:
            assert re.search(r"20\d\d-\d\d-\d\d", section), section.splitlines()[0]


def plain(text):
    return re.sub(r"[\s_*/-]+", " ", text).lower()


def test_terms_of_the_glossary_are_in_the_code():
    """Each term, as a word of a name or comment, in the place that the glossary names."""
    rows = [line.split("|") for line in read("docs/glossary.md").splitlines()]
    missing = []
    for _, terms, meaning, places, _ in [row for row in rows if len(row) == 5][2:]:
        text = plain(" ".join(read(place) for place in re.findall(r"`([^`]+)`", places)))
        for term in re.sub(r"\(.*?\)", "", terms).split(","):
            words = [plain(term).strip(), *re.findall(r"`(\w+)` in the code", meaning)]
            if text and not any(word in text for word in words):
                missing.append(term.strip())
    assert not missing


def test_the_page_of_operators_is_that_of_the_registry():
    with open(operators_page.PAGE) as page:
        assert page.read() == operators_page.page(), "python -m support.operators_page, in tests/"


def test_the_page_of_onnx_has_the_conversions():
    """Each op, and what it becomes."""
    with open(operators_page.ONNX_PAGE, encoding="utf-8") as page:
        assert page.read() == operators_page.onnx_page(), "python -m support.operators_page"
