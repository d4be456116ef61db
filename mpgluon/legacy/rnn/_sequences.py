"""Sequences of symbols: one symbol of all steps, or a list with one symbol per step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpgluon import symbol as sym

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from mpgluon.symbol import Symbol


def as_steps(sequence: Symbol | Sequence[Symbol], length: int, axis: int) -> Any:
    """Returns the symbols of the single steps."""
    if isinstance(sequence, sym.Symbol):
        if len(sequence) != 1:
            raise AssertionError(
                f"unroll: the input is a group of {len(sequence)} symbols; pass a list of them, or "
                "one symbol of the whole sequence"
            )
        return list(sym.split(sequence, axis=axis, num_outputs=length, squeeze_axis=True))
    if sequence is None:
        raise AssertionError(
            "unroll: inputs must not be None; create the input variables before the call"
        )
    if length is not None and len(sequence) != length:
        raise AssertionError(f"unroll: length is {length}, but there are {len(sequence)} inputs")
    return list(sequence)


def as_one(sequence: Symbol | Sequence[Symbol], axis: int) -> Symbol:
    """Returns one symbol of the whole sequence."""
    if isinstance(sequence, sym.Symbol):
        return sequence
    return sym.concat(*[sym.expand_dims(step, axis=axis) for step in sequence], dim=axis)


def arranged(
    sequence: Symbol | Sequence[Symbol], length: int, axis: int, merge: bool | None
) -> Any:
    """Returns the sequence as one symbol (merge True), as a list (False), or unchanged (None)."""
    if merge is None:
        return sequence
    return as_one(sequence, axis) if merge else as_steps(sequence, length, axis)
