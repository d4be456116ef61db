"""Translates names by a regular expression and a template, in both directions."""

from __future__ import annotations

import re
from typing import NamedTuple

from ...base import MXNetError

_REFERENCE = re.compile(r"\\(\d)")
_OPERATORS = set("*+?[]{}|^$")


class Translation(NamedTuple):
    """Replaces a name that `pattern` matches as a whole by `template`, in which ``\\1`` inserts
    the text of a group."""

    pattern: str
    template: str

    def match(self, name: str) -> str | None:
        """Returns the new name, or None if the pattern does not match."""
        found = re.fullmatch(self.pattern, name)
        return None if found is None else found.expand(self.template)

    def inverse(self) -> Translation:
        """Returns the translation in the other direction.

        Raises MXNetError if the pattern contains operators outside of groups, or if the template
        does not insert each group once.
        """
        literals, groups = _parsed(self.pattern)
        parts = _REFERENCE.split(self.template)  # text, number, text, ..., text
        used = [int(number) for number in parts[1::2]]
        if sorted(used) != list(range(1, len(groups) + 1)):
            raise MXNetError(
                f"map: '{self.template}' must insert each group of '{self.pattern}' once, so that "
                "names can be translated back"
            )
        pattern = re.escape(parts[0])
        for number, text in zip(used, parts[2::2]):
            pattern += groups[number - 1] + re.escape(text)
        order = {number: at + 1 for at, number in enumerate(used)}
        template = literals[0]
        for number, text in enumerate(literals[1:], 1):
            template += f"\\{order[number]}{text}"
        return Translation(pattern, template)


def _parsed(pattern):
    """Returns the literal texts around the groups of a pattern, and the groups' expressions."""
    literals, groups, at = [""], [], 0
    while at < len(pattern):
        char = pattern[at]
        if char == "(":
            end = _end_of_group(pattern, at)
            groups.append(pattern[at:end])
            literals.append("")
            at = end
            continue
        if char == "\\":
            at += 1
            char = pattern[at]
            if char.isalnum():
                raise _not_invertible(pattern, "\\" + char)
        elif char in _OPERATORS:
            raise _not_invertible(pattern, char)
        literals[-1] += char
        at += 1
    return literals, groups


def _not_invertible(pattern, text):
    return MXNetError(
        f"map: '{text}' in the pattern '{pattern}' must be part of a group, so that names can be "
        "translated back"
    )


def _end_of_group(pattern, at):
    depth, inside = 0, False  # inside: in a set such as [()]
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif inside:
            inside = char != "]"
        elif char == "[":
            inside = True
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    raise MXNetError(f"map: the pattern '{pattern}' has an unbalanced parenthesis")
