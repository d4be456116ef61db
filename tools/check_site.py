"""Checks the pages of the built site.

Internal links must resolve to files and anchors. Lines of code must fit next to the sidebars of a
window 1400 pixels wide. No class may be documented as accepting anything.

python tools/check_site.py build/site
"""

import os
import re
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

COLUMNS = 88


class Page(HTMLParser):
    """The links of a page, its anchors, lines of code and signatures of classes."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = set()
        self.code: list[str] = []
        self.signatures: list[str] = []
        self.inside = ""  # tag whose text is being collected: pre or dt
        self.is_output = False  # outputs of notebooks wrap
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif name in ("id", "name") and value:
                self.places.add(value)
            elif name == "class" and tag == "div" and value:
                if "cell_output" in value.split():
                    self.is_output = True
                elif value.split()[0] in ("cell", "cell_input", "section"):
                    self.is_output = False
        if tag in ("pre", "dt"):
            self.inside = tag
            (self.code if tag == "pre" else self.signatures).append("")

    def handle_endtag(self, tag):
        if tag == self.inside:
            self.inside = ""

    def handle_data(self, data):
        if self.inside == "pre" and not self.is_output:
            self.code[-1] += data
        elif self.inside == "dt":
            self.signatures[-1] += data

    def faults(self) -> list[str]:
        lines = [line for text in self.code for line in text.splitlines()]
        return [f"{len(line)} columns: {line}" for line in lines if len(line) > COLUMNS] + [
            f"no parameters: {text.strip()}"
            for text in self.signatures
            if re.match(r"\s*class\b.*\(\*args, \*\*kwargs\)", text)
        ]


def faults(site: str) -> list[str]:
    """Returns 'PAGE: FAULT' for every broken link, long line and empty signature."""
    pages = {}
    for folder, folders, names in os.walk(site):
        folders[:] = [name for name in folders if name != "_static"]  # the theme's templates
        for name in names:
            if name.endswith(".html"):
                path = os.path.join(folder, name)
                pages[os.path.realpath(path)] = Page(path)
    if not pages:
        raise SystemExit(f"{site} has no pages")
    result = []
    for path, page in pages.items():
        name = os.path.relpath(path, os.path.realpath(site))
        result += [f"{name}: {fault}" for fault in page.faults()]
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            target = (
                os.path.join(os.path.dirname(path), unquote(parts.path)) if parts.path else path
            )
            target = os.path.realpath(target)
            found = os.path.exists(target)
            if found and parts.fragment and target in pages:
                found = unquote(parts.fragment) in pages[target].places
            if not found:
                result.append(f"{name}: broken link {link}")
    return result


if __name__ == "__main__":
    found = faults(sys.argv[1])
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
