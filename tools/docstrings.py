"""A Sphinx extension: docstrings as the package writes them, as reStructuredText.

They are NumPy's in form, and their text is plain: a name with a star is a name, not emphasis.
"""

import re

# What plain text means literally and reStructuredText does not: stars before names, ending
# underscores, bars.
LITERAL = re.compile(r"(``.*?``|`[^`]*`)|(?<![\w*])(\*{1,2})(?=\w)|(?<=\w)_(?!\w)|\|")

# Sections whose entries are a name and an indented text.
ENTRIES = ("Parameters", "Other Parameters", "Returns", "Raises", "Attributes", "Yields")


def escaped(line: str) -> str:
    return LITERAL.sub(lambda m: m[1] or "".join("\\" + char for char in m[0]), line)


def process(app, what, name, value, options, lines: list[str]) -> None:
    """Escapes; marks indented text before the first section as code; prose that follows the entries
    of a section becomes a section of its own."""
    result: list[str] = []
    in_sections = in_entries = in_code = False
    for line, below in zip(lines, [*lines[1:], ""]):
        last = next((text for text in reversed(result) if text.strip()), "")
        after_blank = not result or not result[-1].strip()
        indented = line.startswith("    ")
        if re.fullmatch(r"-{3,}", below):
            in_sections, in_code = True, False
            in_entries = line.strip() in ENTRIES
        elif in_entries and after_blank and line.strip() and not indented and "---" not in line:
            if not below.startswith("    "):
                result += ["Notes", "-----"]
                in_entries = False
        elif indented and not in_sections and not in_code and after_blank and result:
            if not last.endswith("::"):
                result += ["::", ""]
            in_code = True
        elif line.strip() and not indented:
            in_code = False
        is_code = in_code or line.lstrip().startswith((">>>", "..."))
        result.append(line if is_code else escaped(line))
    lines[:] = result


def setup(app):
    app.connect("autodoc-process-docstring", process, priority=1)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
