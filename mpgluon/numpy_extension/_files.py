"""Array files of mx.np: MXNet's format, safetensors and NumPy's npz."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .. import _core
from .._core import NDArray, ndarray
from .._internal import kinds
from ..ndarray import files

if TYPE_CHECKING:
    from typing import Any

__all__ = ["load", "save", "savez"]


def _check(who, arrays):
    for name, array in arrays:
        if not isinstance(array, ndarray):
            old = isinstance(array, NDArray)
            kind = "an array of mx.nd" if old else kinds.type_name(array)
            way = f"; use {'x.as_np_ndarray()' if old else 'np.array(x)'}"
            raise _core.MXNetTypeError(f"{who}: {name} must be an array of mx.np, got {kind}{way}")


def save(file: str, arr: ndarray | list[ndarray] | dict[str, ndarray]) -> None:
    """Writes arrays to a file, in MXNet's format or, by file suffix, as safetensors or npz.

    The file is as `mx.nd.save` writes it, except that MXNet reads it only after ``npx.set_np()``.
    Raises TypeError for arrays of ``mx.nd``.

    Examples
    --------
    >>> import os, tempfile
    >>> file = os.path.join(tempfile.mkdtemp(), "arrays.params")
    >>> mx.npx.save(file, {"scale": nd.array(2).as_np_ndarray()})
    >>> mx.npx.load(file)["scale"].shape
    ()
    """
    if isinstance(arr, (list, tuple)):
        arr = list(arr)
        _check("npx.save", ((f"item {i}", array) for i, array in enumerate(arr)))
    elif isinstance(arr, dict):
        _check("npx.save", ((repr(name), array) for name, array in arr.items()))
    else:
        _check("npx.save", [("arr", arr)])
    files.save(file, arr)


def savez(file: str, *args: ndarray, **kwds: ndarray) -> None:
    """Writes arrays to an npz file of NumPy, under their keywords or as ``arr_0``, ``arr_1``.

    The suffix ".npz" is added to the name of the file if it is missing.

    Examples
    --------
    >>> import os, tempfile
    >>> file = os.path.join(tempfile.mkdtemp(), "arrays.npz")
    >>> mx.npx.savez(file, nd.ones(2).as_np_ndarray(), scale=nd.array(2).as_np_ndarray())
    >>> sorted(mx.npx.load(file))
    ['arr_0', 'scale']
    """
    arrays = {f"arr_{i}": array for i, array in enumerate(args)}
    twice = next((name for name in arrays if name in kwds), None)
    if twice is not None:
        raise _core.MXNetValueError(f"npx.savez: {twice!r} is the name of a positional argument")
    arrays |= kwds
    _check("npx.savez", ((repr(name), array) for name, array in arrays.items()))
    path = os.fspath(file)
    files.save(path if path.lower().endswith(".npz") else f"{path}.npz", arrays)


def load(file: str) -> Any:
    """Reads arrays of a file that `save`, `savez`, `mx.nd.save` or MXNet wrote.

    Returns a list of arrays, or a dict if they have names. The arrays are on the devices that
    `mx.nd.load` selects.

    Examples
    --------
    >>> import os, tempfile
    >>> file = os.path.join(tempfile.mkdtemp(), "arrays.params")
    >>> nd.save(file, [nd.ones((2, 3))])
    >>> type(mx.npx.load(file)[0])
    <class 'mpgluon.numpy.ndarray'>
    """
    arrays = files.load(file)
    if isinstance(arrays, dict):
        return {name: _as_np(array) for name, array in arrays.items()}
    return [_as_np(array) for array in arrays]


def _as_np(array):
    if array is None:  # the file has a name without an array
        return None
    if array.stype != "default":
        raise _core.MXNetTypeError(
            f"npx.load: the file contains an array of storage type {array.stype}; use mx.nd.load"
        )
    return array.as_np_ndarray()
