"""Reads and writes array files: MXNet's format (".params"), safetensors and NumPy's npz."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from .._internal.files import open_regular, replacing
from ..base import bfloat16
from ._sparse.arrays import BaseSparseNDArray, CSRNDArray, RowSparseNDArray

if TYPE_CHECKING:
    from typing import Any

    from .._core import NDArray


__all__ = ["save", "load", "load_frombuffer", "save_tobuffer"]

_STYPES = ("default", "row_sparse", "csr")  # storage types, indexed by their ids in files


def _arrays_and_names(data):
    """Returns lists of arrays and of names (or None) from an argument of `save`."""
    if isinstance(data, _core.NDArray):
        return [_parts(data)], None
    if isinstance(data, dict):
        names = list(data)
        wrong = next((name for name in names if not isinstance(name, str)), None)
        if wrong is not None:
            raise TypeError(f"save: the keys of the dict must be strings, got {wrong!r}")
        arrays = list(data.values())
    elif isinstance(data, list):
        arrays, names = list(data), None
    else:
        raise ValueError(
            "save: expected an NDArray, a list of them, or a dict of names to them, got "
            f"{type(data).__name__}"
        )
    for i, array in enumerate(arrays):
        if not isinstance(array, _core.NDArray):
            what = repr(names[i]) if names else f"item {i}"
            raise TypeError(f"save: {what} must be an NDArray, got {type(array).__name__}")
    return [_parts(array) for array in arrays], names


def _parts(array):
    """Converts an array to the form that the core writes: a sparse array becomes a tuple of its
    parts."""
    if not isinstance(array, BaseSparseNDArray):
        return array
    aux = [getattr(array, name) for name in array.aux]
    return (_STYPES.index(array.stype), array.shape, array.values, *aux)


def _of_parts(array):
    """Inverse of `_parts`: converts an array, or the parts of a sparse array, that the core has
    read."""
    if not isinstance(array, tuple):
        return array
    stype, shape, values, *aux = array
    *pointers, indices = [part.astype("int64", copy=False) for part in aux]
    if _STYPES[stype] == "csr":
        array = CSRNDArray(values, indices, *pointers, shape)
    else:
        array = RowSparseNDArray(values, indices, shape)
    array.check_format()
    return array


def _as_saved(arrays, names):
    """Returns a dict if there are names, else a list."""
    arrays = [_of_parts(array) for array in arrays]
    if not names:
        return arrays
    found = dict(zip(names, arrays))
    if len(found) < len(names):
        counts = Counter(names)
        twice = next(name for name in found if counts[name] > 1)
        warnings.warn(
            f"the file has several arrays named {twice!r}; the last one is used",
            stacklevel=3,
        )
    return found


# File suffixes of unsupported formats, with the code that errors suggest for reading and writing
# them.
_FORMATS = {
    ".npy": ("nd.array(numpy.load(file))", "numpy.save(file, array.asnumpy())"),
    ".pt": (
        "{name: nd.from_dlpack(tensor) for name, tensor in "
        "torch.load(file, weights_only=True).items()}",
        "torch.save({name: torch.from_dlpack(array) for name, array in arrays.items()}, file)",
    ),
}


def _suffix(fname):
    return os.path.splitext(os.fspath(fname))[1].lower()


def _way(fname, writing):
    ways = _FORMATS.get(_suffix(fname))
    if not ways:
        return ""
    way = ways[writing].replace("nd.array", "np.array") if _core.is_np_array() else ways[writing]
    return f"for that format use {way}"


def _unwritable(fname, error):
    return _core.MXNetIOError(f"save: '{os.fspath(fname)}' cannot be written: {error.strerror}")


def _named_dense(fname, data):
    """Returns the dict for a file format that requires names and dense arrays."""
    arrays, names = _arrays_and_names(data)
    if names is None:
        raise _core.MXNetValueError(
            f"save: arrays in '{os.fspath(fname)}' need names; pass a dict of arrays"
        )
    sparse = next((name for name, array in zip(names, arrays) if isinstance(array, tuple)), None)
    if sparse is not None:
        raise _core.MXNetValueError(
            f"save: {sparse!r} is sparse, which the format of '{os.fspath(fname)}' does not "
            "support; convert it with tostype('default'), or save as .params"
        )
    return dict(zip(names, arrays))


def _contents(array):
    """Converts to a NumPy array; bfloat16 becomes float32."""
    return (array.astype("float32") if array.dtype is bfloat16 else array).asnumpy()


def _save_safetensors(fname, data):
    from . import _safetensors  # imports json, which no other import needs

    arrays = [
        (name, _core.dtype_name(array.dtype), array.shape, partial(_contents, array))
        for name, array in _named_dense(fname, data).items()
    ]
    try:
        _safetensors.write(fname, arrays, lambda size: None)
    except OSError as error:
        raise _unwritable(fname, error) from error


def _load_safetensors(fname):
    from . import _safetensors

    file = _safetensors.File(os.fspath(fname))
    return {
        name: _array(file.read(name), dtype, name, fname)
        for name, (dtype, *_) in file.entries.items()
    }


def _save_npz(fname, data):
    arrays = _named_dense(fname, data)
    half = next((name for name, array in arrays.items() if array.dtype is bfloat16), None)
    if half is not None:
        raise _core.MXNetValueError(
            f"save: {half!r} is bfloat16, which NumPy's files do not support; save as .params "
            "or .safetensors, or convert it with astype('float32')"
        )
    try:
        with replacing(fname) as file:
            np.savez(file, **{name: array.asnumpy() for name, array in arrays.items()})
    except OSError as error:
        raise _unwritable(fname, error) from error


def _load_npz(fname):
    try:
        with np.load(fname, allow_pickle=False) as file:
            return {name: _array(file[name], None, name, fname) for name in file.files}
    except _core.MXNetError:
        raise
    except Exception as error:  # zipfile and NumPy raise many types for bad files
        raise _core.MXNetIOError(
            f"load: '{os.fspath(fname)}' is not a readable npz file: {error}"
        ) from error


def _begins(fname, magic):
    """True if the file exists and begins with `magic`. Files in MXNet's format are recognized by
    their contents, because their names may have any suffix."""
    if not os.path.isfile(fname):
        return False
    with open_regular(fname) as file:
        return file.read(len(magic)) == magic


def _array(values, dtype, name, fname):
    """Converts values read from a file to an array."""
    dtype = values.dtype if dtype is None else dtype
    try:
        return _core.array(values, dtype=dtype)
    except TypeError as error:
        raise _core.NotSupportedError(
            f"load: array {name!r} of '{os.fspath(fname)}' is {dtype}, which mpgluon does not "
            "support; convert it with NumPy"
        ) from error


def save(fname: str, data: NDArray | list[NDArray] | dict[str, NDArray]) -> None:
    """Writes arrays to a file, in MXNet's format or, by file suffix, as safetensors or NumPy's npz.

    data : NDArray, list of NDArray, or dict of str to NDArray, on any device, of any dtype and
    storage type. Formats other than MXNet's require a dict of dense arrays.
    The write is atomic: after an error or if the program is killed, the previous file is intact.
    Raises MXNetError if the file cannot be written.

    Examples
    --------
    >>> import os, tempfile
    >>> file = os.path.join(tempfile.mkdtemp(), "arrays.params")
    >>> nd.save(file, {"weight": nd.ones((2, 3))})
    >>> nd.load(file)["weight"].shape
    (2, 3)
    """
    if _suffix(fname) == ".safetensors":
        _save_safetensors(fname, data)
    elif _suffix(fname) == ".npz":
        _save_npz(fname, data)
    elif _suffix(fname) == ".pt":
        raise _core.MXNetValueError(
            f"save: {os.fspath(fname)} has the extension of another format, but save writes "
            f"MXNet's; {_way(fname, 1)}"
        )
    else:
        _core.save_arrays(fname, *_arrays_and_names(data))


def load(fname: str) -> Any:
    """Reads arrays from a file in MXNet's format, written by `save` or by any version of MXNet.

    It also reads safetensors (by file suffix) and NumPy's npz. Returns a list of NDArray, or a dict
    of str to NDArray if they were saved with names. The arrays are on cpu(0), or on the GPU that
    they were saved from if that GPU exists. Raises MXNetError, which names the file and the
    position, if the file is missing or damaged.

    Examples
    --------
    >>> import os, tempfile
    >>> file = os.path.join(tempfile.mkdtemp(), "arrays.params")
    >>> nd.save(file, [nd.ones((2, 3)), nd.zeros((4,))])
    >>> [array.shape for array in nd.load(file)]
    [(2, 3), (4,)]
    """
    if _suffix(fname) == ".safetensors":
        return _load_safetensors(fname)
    if _suffix(fname) == ".npz" and _begins(fname, b"PK"):
        return _load_npz(fname)
    try:
        return _as_saved(*_core.load_arrays(fname))
    except _core.MXNetError as error:
        path, text = os.fspath(fname), str(error)
        if path not in text:  # errors from creating an array do not name the file
            text = f"{path}: {text}"
        way = _way(fname, 0) if os.path.exists(fname) else ""
        raise type(error)(f"{text}; {way}" if way else text) from None


def load_frombuffer(buf: bytes | bytearray | memoryview) -> Any:
    """Loads arrays from the bytes of a file written by `save`.

    Examples
    --------
    >>> nd.load_frombuffer(nd.save_tobuffer([nd.ones((2,))]))[0].shape
    (2,)
    """
    if not isinstance(buf, (bytes, bytearray, memoryview)):
        raise TypeError(f"load_frombuffer: expected bytes, got {type(buf).__name__}")
    return _as_saved(*_core.load_arrays_from_bytes(buf))


def save_tobuffer(data: NDArray | list[NDArray] | dict[str, NDArray]) -> bytes:
    """Returns the bytes that `save` would write.

    Examples
    --------
    >>> type(nd.save_tobuffer([nd.ones((2,))])) is bytes
    True
    """
    return _core.save_arrays_to_bytes(*_arrays_and_names(data))
