"""The version of the package, and the paths of its files."""

from __future__ import annotations

import os

__version__ = "0.1.0"


def find_lib_path() -> list[str]:
    """Returns the path of the C core, as a list.

    Examples
    --------
    >>> [path.count("_core") for path in mx.libinfo.find_lib_path()]
    [1]
    """
    from . import _core

    return [os.path.abspath(_core.__file__)]


def find_include_path() -> str:
    """Returns the folder of the headers for ops in C; see `mx.library.get_include`."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "include")
