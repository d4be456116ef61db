"""Captured arrays: arrays from outside that a block uses while it is traced.

Compiled calls see every write into such an array. Before each call, the places where a captured
array was found (`places.find`) are checked for a replacement (``block.mask = new``).
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
        """Returns the array that is kept there now, or None."""
        value = self.value()
        return value if isinstance(value, nd.NDArray) else None


def without_variables(call, signature):
    """Returns the staged call. Raises MXNetError, naming the place, if it captured an array with a
    gradient."""
    if not call.captures_variable:
        return call
    places = [kept.text() for kept in signature.captured if kept.array._wants_gradient]
    raise MXNetError(
        f"{signature.path}: {places[0] if places else 'a captured array'} has a gradient, but is "
        "neither an input nor a parameter; pass it as an input of the pipelined block, or use a "
        "Parameter"
    )


def are_current(signature):
    """True if calls of a signature use the current arrays in place of the captured ones.

    Rebinds replaced arrays if the replacement is unambiguous: all places that held a captured
    array's memory hold the same new array, and no two captured arrays now share memory. If false,
    the block must be traced again."""
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
    """Returns (place, array) for each captured array that was replaced by another one. Returns
    None if the replacement is ambiguous."""
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
