"""A Sphinx extension: docstrings as the package writes them, as reStructuredText; and classes as
their constructors show them.

Docstrings are NumPy's in form, and their text is plain: a name with a star is a name, not emphasis.
"""

import inspect
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


# Methods that layers define for the base class; only its docstring says what they are for.
CALLED_BY_BASE = ("forward", "hybrid_forward")


def signature_of(kind: type) -> str:
    """The constructor's parameters without types, "" if Python knows none."""
    try:
        signature = inspect.signature(kind)
    except (TypeError, ValueError):
        return ""
    parameters = []
    for parameter in signature.parameters.values():
        default = parameter.default
        if default is not parameter.empty and hasattr(default, "__name__"):  # not by its address
            default = type("Named", (), {"__repr__": lambda self, name=default.__name__: name})()
        parameters.append(parameter.replace(annotation=parameter.empty, default=default))
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def public_bases(bases: tuple[type, ...]) -> list[type]:
    """The bases, each private one replaced by its own public bases."""
    found: list[type] = []
    for base in bases:
        inner = public_bases(base.__bases__) if base.__name__.startswith("_") else [base]
        found += [one for one in inner if one is not object and one not in found]
    return found


def sign(app, what, name, value, options, signature, returns):
    """autodoc takes the signature of the metaclass's `__call__`, which Block has."""
    shown = signature_of(value) if isinstance(value, type) else ""
    return (shown, None) if shown else None


def show_bases(app, name, value, options, bases):
    bases[:] = public_bases(bases) or [object]


def skip(app, what, name, value, skipped, options):
    """Leaves out methods whose text autodoc would take from the base class."""
    return True if name in CALLED_BY_BASE and not getattr(value, "__doc__", None) else None


def setup(app):
    app.connect("autodoc-process-docstring", process, priority=1)
    app.connect("autodoc-process-signature", sign)
    app.connect("autodoc-process-bases", show_bases)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
