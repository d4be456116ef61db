"""The form of the docs: lines have at most 100 columns, measurements have dates, and the glossary's
terms are those of the code."""

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
# Words of a diary; pages describe the current state.
DIARY = r"\b(before these changes|it was tried|we tried|later the same|yesterday|by now)\b"


def read(page):
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        return file.read()


@pytest.mark.parametrize("page", PAGES)
def test_lines_have_at_most_100_columns(page):
    """Except for tables, long addresses and program output."""
    text = re.sub(r"^```text\n.*?^```$", "", read(page), flags=re.M | re.S)
    long = [
        line
        for line in text.splitlines()
        if len(line) > 100 and not line.startswith("|") and len(max(line.split(), key=len)) < 90
    ]
    assert not long


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_no_diary_words(page):
    assert not re.findall(DIARY, read(page), flags=re.I)


@pytest.mark.parametrize("page", [page for page in PAGES if "measurements" in page])
def test_measurements_have_dates(page):
    """Each section with a table has the date of its measurements or of its writing."""
    for section in re.split(r"^## ", read(page), flags=re.M):
        if "\n| ---" in section:
            assert re.search(r"20\d\d-\d\d-\d\d", section), section.splitlines()[0]


def plain(text):
    return re.sub(r"[\s_*/-]+", " ", text).lower()


def test_glossary_terms_are_in_the_code():
    """Each term occurs in a name or comment of the file that the glossary names."""
    rows = [line.split("|") for line in read("docs/glossary.md").splitlines()]
    missing = []
    for _, terms, meaning, places, _ in [row for row in rows if len(row) == 5][2:]:
        text = plain(" ".join(read(place) for place in re.findall(r"`([^`]+)`", places)))
        for term in re.sub(r"\(.*?\)", "", terms).split(","):
            words = [plain(term).strip(), *re.findall(r"`(\w+)` in the code", meaning)]
            if text and not any(word in text for word in words):
                missing.append(term.strip())
    assert not missing


def test_operators_page_matches_the_registry():
    with open(operators_page.PAGE) as page:
        assert page.read() == operators_page.page(), "python -m support.operators_page, in tests/"


def test_onnx_page_matches_the_conversions():
    """The page lists each op and its ONNX form."""
    with open(operators_page.ONNX_PAGE, encoding="utf-8") as page:
        assert page.read() == operators_page.onnx_page(), "python -m support.operators_page"
