"""docs/architecture.md shows the output of its program; docs/internals names every source file."""

import os
import re

import pytest

from mpgluon import _core
from support.devices import cpus_only
from support.paths import ROOT
from support.processes import finished


def fences(path, language):
    with open(os.path.join(ROOT, path)) as file:
        return re.findall(rf"^```{language}\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)


def is_part(lines, whole):
    """True if `lines` is a subsequence of `whole`."""
    rest = iter(whole)
    return all(line in rest for line in lines)


@cpus_only
def test_shown_dumps_match_the_programs_output(tmp_path):
    (program,) = fences("docs/architecture.md", "python")
    blocks = [re.sub(r",\n +", ", ", block) for block in fences("docs/architecture.md", "text")]
    shown = [block.splitlines() for block in blocks[1:]]
    dump = tmp_path / "dump"
    done = finished(program, MPGLUON_DUMP=str(dump))
    texts = re.split(r"^(?=== )", dump.read_text(), flags=re.MULTILINE)
    sections = [text.splitlines() for text in texts]
    printed = done.stdout.splitlines()
    for lines in shown:
        places = [s for s in sections if s and s[0] == lines[0]] or [printed]
        if not any(is_part(lines, place) for place in places):
            really = "\n".join(places[0])
            pytest.fail(f"docs/architecture.md shows\n{chr(10).join(lines)}\nof\n{really}")
    kinds = {lines[0] for lines in shown if lines[0].startswith("== ")}
    assert kinds == {section[0] for section in sections if section}


# The layers that each page of docs/internals describes
PAGES = {
    "base-and-device": ["csrc/base", "csrc/device"],
    "tensor": ["csrc/tensor"],
    "op": ["csrc/op"],
    "graph": ["csrc/graph"],
    "autograd": ["csrc/autograd"],
    "compile": ["csrc/compile"],
    "io-and-comm": ["csrc/io", "csrc/comm"],
    "python-binding": ["csrc/python"],
    "cpu-kernels": ["kernels/common", "kernels/cpu"],
    "cuda-kernels": ["kernels/cuda"],
    "package": ["mpgluon"],
    "parallel": ["mpgluon/parallel"],
}
TOPICS = {"training-state"}  # pages about a concept of several folders
SOURCES = (".c", ".cu", ".h", ".def", ".inc")


OPS = set(_core.ops())


def sources(folder):
    for path, _, names in os.walk(os.path.join(ROOT, folder)):
        for name in names:
            if name.endswith(SOURCES):
                yield os.path.relpath(os.path.join(path, name), ROOT).replace(os.sep, "/")


def named_on(page):
    """Returns the words of a page that are formatted as code."""
    with open(os.path.join(ROOT, "docs/internals", page + ".md")) as file:
        return set(re.findall(r"`([^`\s]+)`", file.read()))


def test_every_layer_has_a_page():
    folders = set()
    for top in ("csrc", "kernels"):
        _, names, _ = next(os.walk(os.path.join(ROOT, top)))
        folders |= {f"{top}/{name}" for name in names}
    assert folders == {f for some in PAGES.values() for f in some} - {"mpgluon", "mpgluon/parallel"}
    pages = {name[:-3] for name in os.listdir(os.path.join(ROOT, "docs/internals"))} - {"README"}
    assert pages == set(PAGES) | TOPICS


@pytest.mark.parametrize("page", PAGES)
def test_every_source_file_is_named(page):
    """By its name, or a path suffix if several files have that name. A header may share the entry
    of its source."""
    found = [path for folder in PAGES[page] for path in sources(folder)]
    words = named_on(page)

    def is_named(path):
        alike = [other for other in found if os.path.basename(other) == os.path.basename(path)]
        parts = path.split("/")
        ends = {"/".join(parts[i:]) for i in range(len(parts))}
        short = {end for end in ends if len(alike) == 1 or "/" in end}
        return bool(short & words)

    missing = []
    for path in found:
        stem, ending = os.path.splitext(path)
        if os.path.basename(stem) in OPS:  # the op's row describes it
            continue
        source = next((stem + e for e in (".c", ".cu") if stem + e in found), None)
        if not is_named(path) and not (ending == ".h" and source and is_named(source)):
            missing.append(path)
    assert not missing, f"docs/internals/{page}.md does not say what these are: {missing}"


def python_files(page):
    for path, folders, names in os.walk(os.path.join(ROOT, PAGES[page][0])):
        folders[:] = [f for f in folders if page == "parallel" or f != "parallel"]
        yield from (n for n in names if n.endswith(".py"))


def test_named_python_files_exist():
    there = set(python_files("package")) | set(python_files("parallel"))
    for page in ("package", "parallel"):
        words = {os.path.basename(word) for word in named_on(page) if word.endswith(".py")}
        assert words <= there, f"docs/internals/{page}.md: {sorted(words - there)}"


def test_every_python_module_is_named():
    for page in ("package", "parallel"):
        words = {os.path.basename(word) for word in named_on(page)}
        top = os.path.join(ROOT, PAGES[page][0])
        for folder in (top, os.path.join(top, "gluon")) if page == "package" else (top,):
            names = {n for n in os.listdir(folder) if n.endswith(".py") and n != "__init__.py"}
            assert names <= words, f"docs/internals/{page}.md: {sorted(names - words)}"


def test_glossary_files_exist_and_terms_are_sorted():
    with open(os.path.join(ROOT, "docs/glossary.md")) as file:
        rows = [line.split("|") for line in file if line.startswith("| ")][2:]
    for row in rows:
        for place in re.findall(r"`([^`]+)`", row[3]):
            assert os.path.isfile(os.path.join(ROOT, place)), f"{row[1].strip()}: {place}"
    terms = [row[1].strip() for row in rows]
    assert terms == sorted(terms, key=lambda term: term.replace("-", " "))


def test_docs_links_resolve():
    for path, _, names in os.walk(os.path.join(ROOT, "docs")):
        for name in (n for n in names if n.endswith(".md")):
            with open(os.path.join(path, name)) as file:
                links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read())
            for link in links:
                assert os.path.exists(os.path.join(path, link)), f"{name} links to {link}"
