"""Counts the patterns that CONTRIBUTING.md asks to avoid, in comments, docs and error messages.

    python tools/prose.py            # fails if a count is above its limit in prose_limits.json
    python tools/prose.py --list     # prints every match as file:line: pattern: text
    python tools/prose.py --lower    # lowers the limits to the current counts

Limits may only fall; `--lower` never raises one. New code must therefore be in plain English, and
old code can be rewritten folder by folder.
"""

import argparse
import ast
import collections
import io
import json
import os
import re
import subprocess
import sys
import tokenize

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMITS = os.path.join(ROOT, "tools", "prose_limits.json")
AREAS = ("csrc", "kernels", "mpgluon", "tests", "docs", "other")

# Patterns of prose: comments, docstrings, pages and messages
PROSE = {
    "what, who": r"\b(what|whoever|who|nobody|somebody)\b",
    "bodies in motion": r"\b(lies|lie|stands|goes|meets|comes along|brings)\b",
    "place and time": r"\b(behind|beside|in front of|anew)\b",
    "that of, of which": r"\b(that|those) of\b|\bof which\b",
    "is told, is said": r"\b(is|are|was|were) (told|said)\b|\bsays? of\b",
    "so many": r"\bso (many|much) (?!that|as)|\bas (many|much) as\b",
    "absence": r"\bthere (is|are) (none|not)\b|\bno such\b|\bis no(?! longer)\b",
    "such, kin, the like": r"\bsuch (?!as\b)|\bkin\b|\bthe like\b|\band so on\b|\bas far as\b",
    "is an error": r"\b(is|are) an? \w*[eE]rror\b|makes? no sense",
    "trailing too": r"\btoo[.;:)]|, too\b",
    "paraphrased terms": r"\b(whole numbers?|under way|standstill|comers?|lookers?|meetings?"
    r"|numbers? of the hardware|pictures?)\b",
    "semicolon chains": r";[^;.]*;",
}
# Starts of comments and docstrings
START = r"(What|Who|Where|Whether|Whose|Of|By the|But for|As many|As long as|But)\b"
# Patterns of messages only
MESSAGE = {
    "message": r"\btakes no\b|\bis no\b|\bthere (is|are) no\b|makes? no sense|is what is\b",
}
EXEMPT = {"CHANGELOG.md", "LICENSE"}


def files():
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in names:
        if re.search(r"\.(c|h|cu|cuh|cpp|inc|def|py|md)$", name) and name not in EXEMPT:
            if os.path.exists(os.path.join(ROOT, name)):
                yield name


def c_texts(source):
    """Yields (line, kind, text) of the comments and messages of a C file."""
    literal = r'"(?:\\.|[^"\\\n])*"'
    comment = r"/\*.*?\*/|//[^\n]*"
    for found in re.finditer(f"{comment}|{literal}", source, re.S):
        if found[0].startswith("/"):
            text = re.sub(r"^[/* ]+|[*/ -]+$|\n[ *]*", " ", found[0])
            yield source.count("\n", 0, found.start()) + 1, "comment", text.strip()
    calls = r"\b(?:mpg_fail\w*|PyErr_Format|PyErr_SetString|mpg_py_refuse)\((.*?)\);"
    for found in re.finditer(calls, re.sub(comment, "", source, flags=re.S), re.S):
        text = " ".join(part[1:-1] for part in re.findall(literal, found[1]))
        if text:
            yield source.count("\n", 0, found.start()) + 1, "message", text


def py_texts(source):
    """Yields (line, kind, text) of the comments, docstrings and messages of a Python file."""
    block = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            block.append((token.start[0], token.string.lstrip("#! ")))
        elif token.type != tokenize.NL and block:
            yield block[0][0], "comment", " ".join(text for _, text in block)
            block = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, "comment", re.sub(r"(?m)^\s*(>>>|\.\.\.).*$", "", text)
        elif isinstance(node, ast.Raise) and node.exc is not None:
            text = " ".join(
                part.value
                for part in ast.walk(node.exc)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            )
            if text:
                yield node.lineno, "message", text


def md_texts(source):
    source = re.sub(r"```.*?```", lambda found: "\n" * found[0].count("\n"), source, flags=re.S)
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", source):
        yield line, "page", re.sub(r"`[^`]*`|\]\([^)]*\)", " ", paragraph)
        line += paragraph.count("\n")


def matches(name, source):
    """Yields (line, pattern, text) of each match in a file."""
    texts = {".py": py_texts, ".md": md_texts}.get(os.path.splitext(name)[1], c_texts)
    for line, kind, text in texts(source):
        text = re.sub(r"\s+", " ", text)
        for pattern, words in {**PROSE, **(MESSAGE if kind == "message" else {})}.items():
            for found in re.finditer(words, text, re.I):
                yield line, pattern, text[max(0, found.start() - 30) : found.end() + 30]
        if kind == "comment" and re.match(START, text):
            yield line, "start", text[:60]


def area_of(name):
    first = name.split("/")[0]
    return first if first in AREAS else "docs" if name.endswith(".md") else "other"


def count(listed):
    counts = {area: collections.Counter() for area in AREAS}
    for name in files():
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            source = file.read()
        for line, pattern, text in matches(name, source):
            counts[area_of(name)][pattern] += 1
            if listed:
                print(f"{name}:{line}: {pattern}: {text}")
    return counts


def main():
    parser = argparse.ArgumentParser(description="Patterns of prose to avoid.")
    parser.add_argument("--list", action="store_true", help="print every match")
    parser.add_argument("--lower", action="store_true", help="lower the limits")
    options = parser.parse_args()
    counts = count(options.list)
    limits = {}
    if os.path.exists(LIMITS):
        with open(LIMITS) as file:
            limits = json.load(file)
    high = 0
    for area in AREAS:
        for pattern in (*PROSE, *MESSAGE, "start"):
            found = counts[area][pattern]
            limit = limits.get(area, {}).get(pattern, found if options.lower else 0)
            if found > limit:
                high += 1
                print(f"{area}: {pattern}: {found} matches, at most {limit} are allowed")
            limits.setdefault(area, {})[pattern] = min(found, limit) if options.lower else limit
    if options.lower:
        with open(LIMITS, "w") as file:
            json.dump(limits, file, indent=1)
            file.write("\n")
    if high:
        print("CONTRIBUTING.md says what to write; --list shows the matches")
    return 1 if high else 0


if __name__ == "__main__":
    sys.exit(main())
