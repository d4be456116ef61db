"""Sphinx extension that converts the package's docstrings to reStructuredText, shows classes
with their constructors' signatures.

Docstrings have NumPy's format with plain text: a name with a star is a name, not emphasis.
"""

import inspect
import re

from mpgluon._core import Op

# Literal characters of plain text that reStructuredText interprets: stars before names, trailing
# underscores and bars.
LITERAL = re.compile(r"(``.*?``|`[^`]*`)|(?<![\w*])(\*{1,2})(?=\w)|(?<=\w)_(?!\w)|\|")

# Sections whose entries are a name and indented text.
ENTRIES = ("Parameters", "Other Parameters", "Returns", "Raises", "Attributes", "Yields")


def escaped(line: str) -> str:
    return LITERAL.sub(lambda m: m[1] or "".join("\\" + char for char in m[0]), line)


def other_names(app, what, name, value, options, lines: list[str]) -> None:
    """Lists the aliases of an operator below its documentation."""
    if isinstance(value, Op):
        row = value.describe()
        names = [row["name"], *row["aliases"].split()]
        others = [f"``{other}``" for other in names if other != name.rpartition(".")[2]]
        if others:
            lines += ["", "Also registered as " + ", ".join(others) + "."]


def process(app, what, name, value, options, lines: list[str]) -> None:
    """Escapes literal characters, marks indented text before the first section as code, and moves
    prose after the entries of a section to a separate section."""
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


# Methods that layers override; only the base class documents them.
CALLED_BY_BASE = ("forward", "hybrid_forward")


def signature_of(kind: type) -> str:
    """Returns the constructor's parameters without types, "" if it has no signature."""
    try:
        signature = inspect.signature(kind)
    except (TypeError, ValueError):
        return ""
    if kind.__init__ is object.__init__ and str(signature) == "(*args, **kwargs)":
        return "()"  # __new__ rejects arguments that no __init__ takes
    parameters = []
    for parameter in signature.parameters.values():
        default = parameter.default
        if default is not parameter.empty and hasattr(default, "__name__"):  # repr has its address
            default = type("Named", (), {"__repr__": lambda self, name=default.__name__: name})()
        parameters.append(parameter.replace(annotation=parameter.empty, default=default))
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def public_bases(bases: tuple[type, ...]) -> list[type]:
    """Returns the bases with each private base replaced by its public bases."""
    found: list[type] = []
    for base in bases:
        inner = public_bases(base.__bases__) if base.__name__.startswith("_") else [base]
        found += [one for one in inner if one is not object and one not in found]
    return found


def sign(app, what, name, value, options, signature, returns):
    """Replaces autodoc's signature, which is that of the metaclass's `__call__` for Block."""
    shown = signature_of(value) if isinstance(value, type) else ""
    return (shown, None) if shown else None


def show_bases(app, name, value, options, bases):
    bases[:] = public_bases(bases) or [object]


def skip(app, what, name, value, skipped, options):
    """Skips methods whose text autodoc would copy from the base class, and the classes of a module,
    because each class has its own page."""
    inherits_doc = name in CALLED_BY_BASE and not getattr(value, "__doc__", None)
    return True if inherits_doc or (what == "module" and isinstance(value, type)) else None


def setup(app):
    app.connect("autodoc-process-docstring", process, priority=1)
    app.connect("autodoc-process-docstring", other_names, priority=900)
    app.connect("autodoc-process-signature", sign)
    app.connect("autodoc-process-bases", show_bases)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
