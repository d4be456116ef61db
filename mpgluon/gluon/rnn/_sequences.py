"""Sequences of time steps, given as one array or symbol, or as a list of steps."""

from __future__ import annotations

from ... import ndarray as nd


def functions_of(sequence):
    """Returns `mx.nd` or `mx.sym`, depending on whether a sequence has arrays or symbols."""
    first = sequence[0] if isinstance(sequence, (list, tuple)) else sequence
    if isinstance(first, nd.NDArray):
        return nd
    from ... import symbol

    return symbol


def is_one(sequence):
    """True if a sequence is one array or symbol instead of a list."""
    return not isinstance(sequence, (list, tuple))


def steps_of(inputs, length, layout):
    """Splits a sequence into its steps, each (batch, ...)."""
    axis = layout.find("T")
    if is_one(inputs) and not isinstance(inputs, nd.NDArray):
        if length is None:
            raise ValueError("unroll: a symbol has no shape; length must be given")
        from ... import symbol
        from ...symbol._graph import entries_of

        steps = symbol.split(inputs, num_outputs=length, axis=axis, squeeze_axis=True)
        return [symbol.Symbol([entry]) for entry in entries_of(steps)]
    if isinstance(inputs, nd.NDArray):
        if length is not None and length != inputs.shape[axis]:
            raise AssertionError(
                f"unroll: length is {length}, but the input of shape {inputs.shape} has "
                f"{inputs.shape[axis]} steps"
            )
        length = inputs.shape[axis]
        if length == 1:
            return [nd.squeeze(inputs, axis=axis)]
        return list(nd.split(inputs, num_outputs=length, axis=axis, squeeze_axis=True))
    if length is not None and length != len(inputs):
        raise AssertionError(f"unroll: length is {length}, but there are {len(inputs)} inputs")
    return list(inputs)


def merged(steps, layout):
    """Joins steps into one array."""
    return steps if is_one(steps) else functions_of(steps).stack(*steps, axis=layout.find("T"))


def arranged(sequence, length, layout, merge):
    """Returns the sequence as one array if `merge` is True, as a list if it is False, and unchanged
    if it is None."""
    if merge is None:
        return sequence
    return merged(sequence, layout) if merge else steps_of(sequence, length, layout)


def masked(sequence, length, layout, valid_length, merge):
    """Sets the outputs after each sample's last valid step to zero."""
    whole = merged(sequence, layout)
    result = functions_of(whole).SequenceMask(
        whole, valid_length, use_sequence_length=True, axis=layout.find("T")
    )
    return result if merge is None else arranged(result, length, layout, merge)


def reversed_steps(steps, valid_length):
    """Returns the steps in reverse order. With `valid_length`, only each sample's valid part is
    reversed."""
    if valid_length is None:
        return list(reversed(steps))
    F = functions_of(steps)
    return steps_of(
        F.SequenceReverse(F.stack(*steps, axis=0), valid_length, use_sequence_length=True),
        len(steps),
        "TNC",
    )
