"""Checks that the internal links of a site resolve to files and anchors.

python tools/check_links.py build/site
"""

import os
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page and its anchors."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = set()
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif name in ("id", "name") and value:
                self.places.add(value)


def broken(site: str) -> list[str]:
    """Returns 'PAGE: LINK' for every broken link."""
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
                result.append(f"{os.path.relpath(path, site)}: {link}")
    return result


if __name__ == "__main__":
    found = broken(sys.argv[1])
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
