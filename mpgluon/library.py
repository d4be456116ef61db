"""Ops written in C: `load` opens a shared library of them, `get_include` says where the header is
that it is compiled with."""

from __future__ import annotations

import os
import struct
import sys

from . import _core, ndarray as nd
from ._files import open_regular
from .base import MXNetError
from .libinfo import find_include_path
from .ndarray._namespaces import place

__all__ = ["get_include", "load"]

_ELF_64 = b"\x7fELF\x02\x01"  # 64 bits, little-endian


def get_include() -> str:
    """The folder of ``mpgluon/op.h``, for the compiler's ``-I``.

    Examples
    --------
    >>> import os
    >>> os.path.exists(os.path.join(mx.library.get_include(), "mpgluon", "op.h"))
    True
    """
    return find_include_path()


def _spaces(package, space):
    """The modules in which the ops of a sub-namespace are found."""
    names = ("op", None) if space == "op" else (space,)
    modules = [f"{package.__name__}.{name}" if name else package.__name__ for name in names]
    return [vars(sys.modules[name]) for name in modules if name in sys.modules]


def _taken(name):
    space, short = place(name)
    return any(short in names for names in _spaces(nd, space))


def _cut_off(path):
    """Whether a segment of an ELF file of 64 bits ends behind the end of the file. The system's
    loader maps such a segment as it is, and reading it ends the process."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(64)
        if len(head) < 64 or head[:6] != _ELF_64:
            return False  # the loader has an error for it
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
    """Loads a library of ops, which then are ``mx.nd.NAME`` and ``mx.sym.NAME``, too.

    It was compiled with ``mpgluon/op.h``. Loaded once, it stays until the process ends; to load it
    again does nothing.

    Parameters
    ----------
    path : str
        The file, an absolute path.
    verbose : bool, default True
        Whether to print the ops' names.

    Raises
    ------
    MXNetError
        There is no such library, or it is for something else, or has an op that cannot be added;
        then none of its ops is.
    """
    path = os.fspath(path)
    if not os.path.exists(path):
        raise MXNetError(f"library.load: there is no file {path!r}")
    if not os.path.isabs(path):
        raise MXNetError(
            f"library.load: {path!r} is not an absolute path; os.path.abspath makes it one"
        )
    if os.path.splitext(path)[1] not in (".so", ".dll"):
        raise MXNetError(f"library.load: {path!r} is no library: its name does not end in .so")
    if _cut_off(path):
        raise MXNetError(f"library.load: {path!r} is cut off: the file ends before its contents")
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
    if symbol is None:  # it finds the op when it is imported
        return
    from .symbol._functions import Function

    for names in _spaces(symbol, space):
        names.setdefault(short, Function(op, short))
