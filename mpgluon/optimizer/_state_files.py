"""Converts optimizer states to bytes and back: array files, and pickles of MXNet.

Unless stated otherwise, reading does not run code from the bytes, and its memory is limited to a
fixed multiple of their size.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import pickletools
import struct
from typing import TYPE_CHECKING

import numpy as np

from .._internal.files import open_regular
from ..base import MXNetError
from ..ndarray import array, load_frombuffer, save_tobuffer
from ._nested_states import put_together, take_apart

if TYPE_CHECKING:
    from typing import Any

# Limit on the bytes of objects that a pickle creates by calls: _TIMES times its size, plus _PLUS
# bytes. An object has _OBJECT bytes in addition to its contents.
_TIMES, _PLUS, _OBJECT = 16, 16 << 20, 512

# Types of keys that are allowed in pickles. Their hash takes constant time, or is cached.
_KEYS = (str, bytes, float, bool, type(None))

_HEADER = "updater_states"
_FORMAT = "mpgluon updater states 1"


# --- Array files ----------------------------------------------------------------------------------
def states_to_bytes(states: dict[Any, Any]) -> bytes:
    """Returns an array file with the states of a dict. A uint8 array in it holds the structure of
    the states as JSON."""
    arrays: dict[str, Any] = {}
    entries = []
    for number, (key, state) in enumerate(states.items()):
        if not isinstance(key, (int, str)):
            raise MXNetError(
                f"get_states: the key {key!r} is a {type(key).__name__}; keys must be int or str "
                "(or pass dump_optimizer=True, which pickles everything)"
            )
        entries.append([key, take_apart(state, str(number), arrays, "get_states")])
    text = json.dumps({"format": _FORMAT, "states": entries}).encode()
    arrays[_HEADER] = array(np.frombuffer(text, np.uint8), dtype="uint8")
    return save_tobuffer(arrays)


def states_of_bytes(data: bytes) -> dict[Any, Any]:
    """Returns the states in an array file of `states_to_bytes`, or in a pickle of MXNet's
    ``get_states``.

    Raises MXNetError for any other bytes.
    """
    if data[:1] != pickle.PROTO and data[:8] == struct.pack("<Q", 0x112):
        return _states_of_arrays(load_frombuffer(data))
    try:
        loaded = read_pickle(data)
    except _RefusedName as error:
        raise MXNetError(
            f"these bytes are not optimizer states: {error}; if they come from a trusted "
            "source, pass trusted=True"
        ) from error
    except MXNetError as error:
        raise MXNetError(f"these bytes are not optimizer states: {error}") from error
    if isinstance(loaded, tuple) and len(loaded) == 2:
        raise MXNetError(
            "these bytes also hold an optimizer, but only states are read; save them with "
            "dump_optimizer=False, or pass trusted=True if the file comes from a trusted source"
        )
    if not isinstance(loaded, dict):
        raise MXNetError(f"these bytes hold a {type(loaded).__name__}, not optimizer states")
    return loaded


def _states_of_arrays(arrays):
    damaged = MXNetError("these bytes are not optimizer states: their header is damaged")
    if not isinstance(arrays, dict) or arrays.get(_HEADER) is None:
        raise MXNetError("these bytes are an array file, not optimizer states")
    try:
        header = json.loads(arrays[_HEADER].asnumpy().tobytes())
        if header["format"] != _FORMAT:
            raise MXNetError("these states have a format that this version cannot read")
        states = {
            key: put_together(structure, str(number), lambda name, _: arrays[name], "the states")
            for number, (key, structure) in enumerate(header["states"])
        }
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise damaged from error
    if any(type(key) not in (int, str) for key in states):
        raise damaged
    return states


# --- Pickles --------------------------------------------------------------------------------------
class _SavedArray:
    """An NDArray of MXNet in a pickle. `value` is set to the array."""

    def __init__(self, handle=None):
        self.value = None

    def __setstate__(self, state):
        record = state["handle"]
        if record is not None:  # the record has the format of one array in an array file
            (self.value,) = load_frombuffer(
                struct.pack("<QQQ", 0x112, 0, 1) + bytes(record) + struct.pack("<Q", 0)
            )


class _RefusedName(MXNetError):
    """Raised if a pickle names a class or function that is not allowed."""


class SavedObject:
    """An optimizer or scheduler of MXNet in a pickle, with its attributes."""


class _Budget:
    """Limits the memory or time that reading a pickle takes. The limit is necessary because objects
    may share parts, so a few bytes can copy or traverse a large part many times."""

    def __init__(self, most: int) -> None:
        self._left = most

    def spend(self, amount: int = 1) -> None:
        self._left -= amount
        if self._left < 0:
            raise MXNetError("its objects are nested too deeply or too large for its size")


def _checked(name, keys):
    """Wraps the unpickler's method `name`, which adds items to a dict or set. The wrapper first
    checks the keys, which are the slice `keys` of the stack."""
    load = getattr(pickle._Unpickler, name)

    def checked(self):
        if name == "load_frozenset":
            self._spend(_OBJECT)
        _check_keys(self.stack[keys])
        load(self)

    return checked


class _Restricted(pickle._Unpickler):
    """Unpickles only arrays, numbers and containers.

    The classes and functions that a pickle may call are created for each pickle, because a pickle
    can set attributes of everything that it can name.

    The sizes of all objects that these calls create are summed and limited, because a pickle can
    repeat a call with the same large argument. Keys of dicts and sets must be scalars, because
    hashing nested tuples can take exponential time. The base class is the Python implementation,
    because only its opcodes can be overridden.
    """

    dispatch = dict(pickle._Unpickler.dispatch)

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        budget = _Budget(_TIMES * len(data) + _PLUS)
        self._spend = budget.spend
        self._known = {
            ("builtins", "bytearray"): lambda *args: bytearray(self._bytes_of(*args)),
            ("_codecs", "encode"): lambda *args: self._bytes_of(*args),
            ("builtins", "set"): lambda items=(): self._set_of(items),
        }

        class NDArray(_SavedArray):
            def __setstate__(self, state):
                budget.spend(_OBJECT + len(state["handle"] or b""))
                super().__setstate__(state)

        class Saved(SavedObject):
            def __setstate__(self, state):
                budget.spend(_OBJECT + 64 * len(state))
                vars(self).update(state)

        self._array, self._saved = NDArray, Saved

    def find_class(self, module, name):
        if module.startswith("mxnet.") and name == "NDArray":
            return self._array
        if module.startswith(("mxnet.optimizer.", "mxnet.lr_scheduler")):
            self._spend(4 * _OBJECT)
            return type(name, (self._saved,), {})
        module = "builtins" if module == "__builtin__" else module
        if (module, name) in self._known:
            return self._known[module, name]
        raise _RefusedName(f"it holds a {module}.{name}, but only arrays and numbers are read")

    def _bytes_of(self, *args):
        value = _bytes_of(*args)
        self._spend(len(value))
        return value

    def _set_of(self, items):
        items = _list_of(items)
        self._spend(_OBJECT + 64 * len(items))
        _check_keys(items)
        return set(items)

    def _load_set(self):
        self._spend(_OBJECT)
        pickle._Unpickler.load_empty_set(self)

    dispatch[pickle.EMPTY_SET[0]] = _load_set
    # The keys are the items of the stack after the mark, or every second one.
    dispatch[pickle.SETITEM[0]] = _checked("load_setitem", slice(-2, -1))
    dispatch[pickle.SETITEMS[0]] = _checked("load_setitems", slice(None, None, 2))
    dispatch[pickle.DICT[0]] = _checked("load_dict", slice(None, None, 2))
    dispatch[pickle.ADDITEMS[0]] = _checked("load_additems", slice(None))
    dispatch[pickle.FROZENSET[0]] = _checked("load_frozenset", slice(None))


def _bytes_of(value=b"", encoding="latin1"):
    """Replaces ``bytes`` in pickles, in the forms that the pickle protocols use. Rejects an integer
    argument, because it would allocate that many bytes, which are not in the file."""
    if isinstance(value, str) and encoding in ("latin1", "latin-1"):
        return value.encode("latin1")
    if isinstance(value, bytes):
        return value
    raise MXNetError(f"it makes bytes from a {type(value).__name__}")


def _check_keys(keys):
    for key in keys:
        kind = type(key)
        if not (kind is int and key.bit_length() <= 64 or kind in _KEYS):
            raise MXNetError(f"it has a key of type {kind.__name__}, but keys must be scalars")


def _list_of(items):
    if isinstance(items, (list, tuple)):
        return items
    raise MXNetError(f"it makes a set from a {type(items).__name__}")


_MEMO = {"PUT", "BINPUT", "LONG_BINPUT"}


def _check_size(data):
    """Raises ValueError for a pickle with a memo index or length that exceeds its size. The
    unpickler would allocate memo slots up to the largest index (CPython issue 115952), and strings
    of the given lengths.

    Reads the opcodes without executing them.
    """
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if (name in _MEMO or name == "FRAME") and not 0 <= argument <= len(data):
            raise ValueError(f"{name} {argument} in {len(data)} bytes")


def read_pickle(data: bytes) -> Any:
    """Returns the arrays, numbers and containers of a pickle, without running code from it.

    Raises MXNetError for a damaged pickle, or one with any other contents.
    """
    try:
        _check_size(data)
        loaded = _Restricted(data).load()
        return taken_over(loaded, _Budget(len(data)))
    except MXNetError:
        raise
    except Exception as error:  # a damaged pickle can raise any exception
        raise MXNetError(f"it is damaged: {error}") from error


def taken_over(state: Any, budget: _Budget | None = None) -> Any:
    """Returns a state with MXNet's arrays replaced by NDArrays."""
    if budget is not None:
        budget.spend()
    if isinstance(state, _SavedArray):
        return state.value
    if type(state) in (tuple, list):
        return type(state)([taken_over(part, budget) for part in state])
    if type(state) is dict:
        return {key: taken_over(part, budget) for key, part in state.items()}
    return state


def is_pickle(fname: str | os.PathLike[str]) -> bool:
    """True if a file starts like a pickle and is not named `.safetensors`."""
    with open_regular(fname) as file:
        return file.read(1) == pickle.PROTO and not os.fspath(fname).endswith(".safetensors")


def read_trainer_states(data: bytes) -> tuple[dict[int, Any], str, dict[str, Any]]:
    """Returns the states by index, and the name and attributes of the optimizer, from a pickle of
    ``Trainer.save_states`` of MXNet 1.x.

    Raises MXNetError for any other bytes. Does not run code from them.
    """
    loaded = read_pickle(data)
    if not isinstance(loaded, tuple) or len(loaded) != 2 or not isinstance(loaded[0], dict):
        raise MXNetError("it is not a pickle of a Trainer's states")
    states, optimizer = loaded
    if not isinstance(optimizer, SavedObject):
        raise MXNetError("it holds no optimizer")
    return states, type(optimizer).__name__, vars(optimizer)


class _Trusting(pickle.Unpickler):
    """Unpickles without restrictions, and converts MXNet's arrays."""

    def find_class(self, module, name):
        if module.partition(".")[0] != "mxnet":
            return super().find_class(module, name)
        if name == "NDArray":
            return _SavedArray
        raise MXNetError(
            f"these MXNet states hold a {module}.{name}, but only arrays can be loaded; save "
            "them with dump_optimizer=False"
        )


def read_trusted(data: bytes) -> Any:
    """Returns the contents of any pickle, which may run arbitrary code. MXNet's arrays must still
    be converted by `taken_over`."""
    try:
        loaded = _Trusting(io.BytesIO(data)).load()
    except MXNetError:
        raise
    except Exception as error:  # a damaged pickle can raise any exception
        raise MXNetError(f"these bytes are not optimizer states: {error}") from None
    return loaded
