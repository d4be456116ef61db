"""The signatures of ops for ``help``, completion and `inspect`."""

import ast
import inspect


class _Required:
    def __repr__(self):
        return "<required>"


REQUIRED = _Required()


def _default(param):
    if param["required"]:
        return REQUIRED
    text = param["default"]
    if text in ("True", "False", "None") or param["kind"] not in (
        "dtype",
        "one of",
        "string",
        "Context",
        "boolean",
    ):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):  # inf
            return float(text)
    return text.lower() in ("1", "true") if param["kind"] == "boolean" else text


def signature(op, symbol=False):
    """Returns the `inspect.Signature` of an op as a function of arrays.

    With `symbol`, it is a function of Symbols, whose inputs are optional.
    """
    info = op.describe()
    kind, params, optional = inspect.Parameter.POSITIONAL_OR_KEYWORD, [], symbol
    for entry in info["inputs"]:
        if entry["variadic"]:
            params.append(inspect.Parameter(entry["name"], inspect.Parameter.VAR_POSITIONAL))
            kind = inspect.Parameter.KEYWORD_ONLY
        else:
            # Python requires that all inputs after an optional one are optional.
            optional |= entry["optional"]
            default = None if optional else inspect.Parameter.empty
            params.append(inspect.Parameter(entry["name"], kind, default=default))
    params += [
        inspect.Parameter(param["name"], kind, default=_default(param)) for param in info["params"]
    ]
    params += [
        inspect.Parameter(name, kind, default=None)
        for name in (("name", "attr") if symbol else ("out", "name"))
    ]
    return inspect.Signature(params)
