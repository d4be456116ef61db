"""Insertion of mixed-precision casts into symbols."""

from .. import _core
from ._graph import Node, entries_of, rebuild, topological
from ._infer import NUMBERS


def _kept(node):
    """Returns True for each input that is never cast, such as states and step counts, and False for
    the rest."""
    call = node.call
    flags = call.keeps if isinstance(call, _core.OpCall) else call.states
    return flags(len(node.inputs))


def with_casts(symbol, low, kind_of, excluded=(), optional=()):
    """Returns a symbol whose ops receive their inputs in the required precision.

    `kind_of` maps a call to the precision of its inputs: 'low', 'full', 'widest' or 'any'. Ops
    named in `excluded` are 'full'. `optional` has the names of parameters that may be stored in low
    precision. If an op uses such a parameter in low precision, the parameter's dtype is changed
    instead of adding a cast.
    """
    entries = rebuild(entries_of(symbol), {})
    order = topological(entries)
    made = {}  # (entry, dtype) -> the entry of the cast
    known = {}  # entry -> its dtype, if known
    for node in order:
        if node.call is None:
            known[node, 0] = "float32"
    kinds = {
        node: "full" if node.name in excluded else kind_of(node.call)
        for node in order
        if node.call is not None
    }
    for node, kind in kinds.items():
        kept = _kept(node)
        for (source, _), keeps in zip(node.inputs, kept):
            if kind == "low" and source.call is None and source.name in optional and not keeps:
                known[source, 0] = low
                source.attrs["__dtype__"] = str(NUMBERS[low])

    def cast(entry, dtype):
        if known.get(entry) == dtype:
            return entry
        if (entry, dtype) not in made:
            name = f"{entry[0].output_name(entry[1])}_amp_cast_{dtype}"
            call = _core.OpCall("amp_cast", {"dtype": dtype})
            made[entry, dtype] = (Node(name, {"dtype": dtype}, call, (entry,)), 0)
        return made[entry, dtype]

    for node, kind in kinds.items():
        kept = _kept(node)
        if kind in ("low", "full"):
            dtype = low if kind == "low" else "float32"
            node.inputs = tuple(
                [entry if keeps else cast(entry, dtype) for entry, keeps in zip(node.inputs, kept)]
            )
            known.update({(node, index): dtype for index in range(node.num_outputs)})
        elif kind == "widest" and len(node.inputs) > 1:
            count = len(node.inputs)
            call = _core.OpCall("amp_multicast", {"num_outputs": count})
            texts = {"num_outputs": str(count)}
            joined = Node(f"{node.name}_amp_multicast", texts, call, node.inputs)
            node.inputs = tuple([(joined, place) for place in range(count)])
    return type(symbol)(entries)
