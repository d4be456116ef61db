"""Ops written in C: `load` opens a shared library of ops, `get_include` finds the header for it."""

from __future__ import annotations

import os
import struct
import sys

from . import _core, ndarray as nd
from ._internal.files import open_regular
from .base import MXNetError
from .libinfo import find_include_path
from .ndarray._namespaces import place

__all__ = ["get_include", "load"]

_ELF_64 = b"\x7fELF\x02\x01"  # 64-bit, little-endian


def get_include() -> str:
    """Returns the folder of ``mpgluon/op.h``, for the compiler's ``-I``.

    Examples
    --------
    >>> import os
    >>> os.path.exists(os.path.join(mx.library.get_include(), "mpgluon", "op.h"))
    True
    """
    return find_include_path()


def _spaces(package, space):
    """Returns the namespaces of the modules that expose the ops of a sub-namespace."""
    names = ("op", None) if space == "op" else (space,)
    modules = [f"{package.__name__}.{name}" if name else package.__name__ for name in names]
    return [vars(sys.modules[name]) for name in modules if name in sys.modules]


def _taken(name):
    space, short = place(name)
    return any(short in names for names in _spaces(nd, space))


def _cut_off(path):
    """True if a segment of a 64-bit ELF file extends past the end of the file.

    The system's loader maps a truncated segment anyway, and reading it crashes the process.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(64)
        if len(head) < 64 or head[:6] != _ELF_64:
            return False  # not a 64-bit ELF file: the system's loader reports the error
        table, entry, count = (
            *struct.unpack_from("<Q", head, 32),
            *struct.unpack_from("<HH", head, 54),
        )
        for i in range(count):
            file.seek(table + i * entry)
            program_header = file.read(56)
            if len(program_header) < 56:
                return True
            offset, stored = struct.unpack_from("<8xQ16xQ", program_header)
            if offset + stored > size:
                return True
    return False


def load(path: str, verbose: bool = True) -> None:
    """Loads a library of ops, and adds them as ``mx.nd.NAME`` and ``mx.sym.NAME``.

    The library must be compiled with ``mpgluon/op.h``. It stays loaded until the process ends;
    loading it a second time does nothing.

    Parameters
    ----------
    path : str
        The absolute path of the file.
    verbose : bool, default True
        True to print the ops' names.

    Raises
    ------
    MXNetError
        If the file is missing or not such a library, or if one of its ops cannot be added. In the
        last case none of its ops is added.
    """
    path = os.fspath(path)
    if not os.path.exists(path):
        raise MXNetError(f"library.load: file {path!r} does not exist")
    if not os.path.isabs(path):
        raise MXNetError(f"library.load: {path!r} is not an absolute path; use os.path.abspath")
    if os.path.splitext(path)[1] not in (".so", ".dll"):
        raise MXNetError(f"library.load: {path!r} is not a library: its name does not end in .so")
    if _cut_off(path):
        raise MXNetError(f"library.load: {path!r} is truncated")
    ops = _core.load_library(path, _taken)
    for op in ops:
        space, short = place(op.__name__)
        for names in _spaces(nd, space):
            names[short] = op
        _add_symbol(op, space, short)
    if verbose and ops:
        print(f"{path}: {', '.join(op.__name__ for op in ops)}")


def _add_symbol(op, space, short):
    symbol = sys.modules.get(f"{__package__}.symbol")
    if symbol is None:  # not imported so far: importing the module will add the op
        return
    from .symbol._functions import Function

    for names in _spaces(symbol, space):
        names.setdefault(short, Function(op, short))
