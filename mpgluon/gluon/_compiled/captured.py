"""Captured arrays: arrays that a traced block uses although they are neither arguments nor
parameters, such as ``self.mask``.

Compiled programs read the array's memory, so they see every write into it. `places.find` records
the places that hold a captured array. Before each call, `are_current` checks whether a place holds
a different array (after ``block.mask = new``).
"""

from ... import ndarray as nd
from ...base import MXNetError
from .places import Place


class Captured(Place):
    """A place where a captured array is kept. The same array may be kept in several places."""

    __slots__ = ("array", "place")

    def __init__(self, root, keys, array):
        super().__init__(root, keys)
        self.array, self.place = array, array._place

    def current(self):
        """Returns the array that the place holds now, or None if it holds no array."""
        value = self.value()
        return value if isinstance(value, nd.NDArray) else None


def without_variables(call, signature):
    """Returns `call`, a pipelined block's compiled call. Raises MXNetError if it captured an array
    that has a gradient, because pipelines return gradients only for inputs and parameters."""
    if not call.captures_variable:
        return call
    places = [kept.text() for kept in signature.captured if kept.array._wants_gradient]
    raise MXNetError(
        f"{signature.path}: {places[0] if places else 'a captured array'} has a gradient, but is "
        "neither an input nor a parameter; pass it as an input of the pipelined block, or use a "
        "Parameter"
    )


def are_current(signature):
    """Rebinds a signature's captured arrays to the arrays that their places hold now. Returns
    False if that is impossible, so the block must be traced again.

    A replacement must be unambiguous: all places that held a captured array's memory hold the same
    new array, and no two captured arrays now share memory."""
    for captured in signature.captured:
        array = captured.current()
        if array is not captured.array or array._place != captured.place:
            break
    else:
        return True
    done = None
    while done is None:  # retry if another thread rebound arrays meanwhile
        places = signature.captured
        now = [captured.current() for captured in places]
        renewed = _renewed(places, now)
        if renewed is None or signature.op is None:
            return False
        done = signature.op.recapture(
            renewed,
            signature,
            places,
            tuple([Captured(c.root(), c.keys, array) for c, array in zip(places, now)]),
        )
    return done


def _renewed(places, now):
    """Returns (memory of the old array, new array) for each captured array that was replaced.
    Returns None if a replacement is ambiguous or has another shape, dtype or device."""
    memory, renewed = {}, []
    for captured, array in zip(places, now):
        memory.setdefault(captured.place[0], []).append((captured, array))
    for kept in memory.values():
        former, array = kept[0]
        if all([a is captured.array and a._place == captured.place for captured, a in kept]):
            continue
        if (
            array is None
            or array._traced
            or any([a is not array or captured.place != former.place for captured, a in kept])
        ):
            return None
        if (array.shape, array.dtype, array.context) != (
            former.array.shape,
            former.array.dtype,
            former.array.context,
        ):
            return None
        renewed.append((former.place, array))
    return (
        renewed if len({kept[0][1]._place[0] for kept in memory.values()}) == len(memory) else None
    )
