"""Infers all shapes and dtypes of a symbol from the known ones.

The inference of each op completes inputs from other inputs and, if that is unambiguous, from
outputs. If a value's description changes, the inference of its producer and consumers is repeated,
until a fixed point is reached.
"""

import heapq
from collections import deque

import numpy as np

from .. import _core
from ..base import MXNetError
from ..util import is_np_shape
from ._graph import made_at, topological

UNKNOWN = (None, None)


def sized(shape):
    """Returns a shape given by the user with -1 for unknown sizes. A size of 0 is unknown, except
    under ``mx.np_shape()``, where it means an empty axis."""
    least = 0 if is_np_shape() else 1
    return tuple([size if size >= least else -1 for size in shape])


def shown(shape):
    """Returns a shape in the form in which users see it; the inverse of `sized`."""
    if is_np_shape():
        return shape
    return () if shape is None else tuple([max(size, 0) for size in shape])


def parse_shape(text):
    """Parses a variable's ``__shape__`` attribute; any form of an unknown size becomes -1."""
    values = "" if text == "None" else text.strip().strip("()[]").replace("L", "")
    try:
        return sized([int(part) for part in values.split(",") if part.strip()])
    except ValueError:
        raise MXNetError(f"a shape must be a tuple of integers, not {text!r}") from None


# MXNet's ids of dtypes, used in its files.
DTYPES = {
    "0": "float32",
    "1": "float64",
    "2": "float16",
    "3": "uint8",
    "4": "int32",
    "5": "int8",
    "6": "int64",
    "7": "bool",
    "12": "bfloat16",
}
NUMBERS = {name: int(number) for number, name in DTYPES.items()}


def is_unknown(shape):
    """True if a shape given by the user is unknown: None, or () except under ``mx.np_shape()``."""
    return shape is None or (len(shape) == 0 and not is_np_shape())


def declared(node):
    """Returns the shape and dtype in a variable's own attributes."""
    text, dtype = node.attrs.get("__shape__"), node.attrs.get("__dtype__")
    shape = None if text in (None, "None") else parse_shape(text)
    return None if is_unknown(shape) else shape, DTYPES.get(dtype)


# Sizes to try in place of unknown ones: they have many divisors and different magnitudes, so that
# ops reveal their limits.
PROBES = (1, 5040, 720720)


def _agreed(shapes):
    """Returns the common shape of several shapes, with -1 for sizes that differ. Returns None if a
    shape is unknown or their numbers of dimensions differ."""
    if any(shape is None or len(shape) != len(shapes[0]) for shape in shapes):
        return None
    return tuple([sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes)])


def _merge(old, new):
    """Merges two descriptions of one value; returns None if they contradict each other."""
    shape, other = old[0], new[0]
    if shape is None:
        shape = other
    elif other is not None:
        if len(shape) != len(other):
            return None
        merged = []
        for a, b in zip(shape, other):
            if a != b and min(a, b) >= 0:
                return None
            merged.append(max(a, b))
        shape = tuple(merged)
    dtype = old[1] if old[1] is not None else new[1]
    if old[1] is not None and new[1] is not None and old[1] != new[1]:
        return None
    return shape, dtype


class Inference:
    """The descriptions ``(shape, dtype name)`` of all values of a symbol.

    Unknown sizes are -1; unknown shapes and dtypes are None.

    Parameters
    ----------
    entries : list of (Node, int)
    shapes, dtypes : dict of str to tuple, and to dtype name
        Known shapes of variables, by name; they override the variables' own.
    train : bool
        The mode, for ops whose outputs depend on it.
    only : None, 'shape' or 'dtype'
        Restricts inference to one kind, so that contradictions in the other kind raise no error.
    """

    def __init__(self, entries, shapes, dtypes, train=False, only=None):
        self._forget = {None: None, "dtype": 0, "shape": 1}[only]
        self.order = topological(entries)
        self.entries = entries
        self._train = train
        self.place = {node: place for place, node in enumerate(self.order)}
        self._users = [[] for _ in self.order]
        self.values = []
        for place, node in enumerate(self.order):
            if node.call is None:
                shape, dtype = declared(node)
                given = shapes.get(node.name)
                self.values.append(
                    [
                        self._looked_at(
                            (
                                shape if is_unknown(given) else sized(given),
                                dtypes.get(node.name, dtype),
                            )
                        )
                    ]
                )
            else:
                self.values.append([UNKNOWN] * node.num_outputs)
                for source, _ in node.inputs:
                    self._users[self.place[source]].append(place)
        # A heap of node indices, so that earlier nodes are processed first.
        self._queue = [place for place, node in enumerate(self.order) if node.call is not None]
        self._dirty = set(self._queue)
        self._run()

    def _looked_at(self, desc):
        return (
            desc
            if self._forget is None
            else (None, desc[1])
            if self._forget == 0
            else (desc[0], None)
        )

    def _mark(self, place):
        if place not in self._dirty and self.order[place].call is not None:
            self._dirty.add(place)
            heapq.heappush(self._queue, place)

    def _run(self):
        while self._queue:
            place = heapq.heappop(self._queue)
            self._dirty.discard(place)
            self._visit(place, self.order[place])

    def _visit(self, place, node):
        sources = [(self.place[source], index) for source, index in node.inputs]
        inputs = [self.values[at][index] for at, index in sources]
        try:
            completed, outputs = node.call.infer(inputs, self.values[place], self._train)
        except MXNetError as error:
            line = "" if "\n  made at " in str(error) else made_at(node)
            raise type(error)(f"Error in operator {node.name}: {error}{line}") from None
        for (at, index), new in zip(sources, completed):
            self._learn(at, index, new, node, place)
        for index, new in enumerate(outputs):
            self._learn(place, index, new, node, place)

    def _learn(self, at, index, new, node, place):
        old = self.values[at][index]
        new = self._looked_at(new)
        if old == new:
            return
        merged = _merge(old, new)
        if merged is None:
            what = self.order[at].output_name(index)
            raise MXNetError(
                f"Error in operator {node.name}: {what} is {_text(old)}, but must be {_text(new)}"
            )
        if merged == old:
            return
        self.values[at][index] = merged
        if at != place:
            self._mark(at)
        for user in self._users[at]:
            if user != place:
                self._mark(user)

    def assume(self, dtype):
        """Sets the dtype of all variables whose dtype is unknown, and continues the inference."""
        for place, node in enumerate(self.order):
            if node.call is None and self.values[place][0][1] is None:
                self.values[place][0] = (self.values[place][0][0], dtype)
                for user in self._users[place]:
                    self._mark(user)
                self._run()

    def probe(self):
        """Infers shapes through ops whose own inference requires all sizes of their inputs.

        The op's inference runs several times, with different sizes (`PROBES`) in place of the
        unknown ones. A size that is the same in all results does not depend on the unknown sizes.
        This heuristic is reliable enough for error messages and user queries, but not for
        compilation, so it runs last.
        """
        asked = {}
        queue = deque([place for place, node in enumerate(self.order) if node.call is not None])
        while queue:
            place = queue.popleft()
            node = self.order[place]
            sources = [(self.place[source], index) for source, index in node.inputs]
            inputs = [self.values[at][index] for at, index in sources]
            key = (tuple(inputs), tuple(self.values[place]))
            if asked.get(place) == key or not any(
                shape is not None and -1 in shape for shape, _ in inputs
            ):
                continue
            asked[place] = key
            answers = [
                answer
                for answer in (self._ask(place, node, inputs, size) for size in PROBES)
                if answer is not None
            ]
            if len(answers) < 2:
                continue
            for (at, index), found in zip(
                ((*sources, *[(place, i) for i in range(node.num_outputs)])), zip(*answers)
            ):
                old = self.values[at][index]
                merged = _merge(old, (_agreed(found), None))
                if merged is None or merged == old:
                    continue
                self.values[at][index] = merged
                queue += [
                    user for user in (at, *self._users[at]) if self.order[user].call is not None
                ]

    def _ask(self, place, node, inputs, size):
        """Returns the shapes of a node's inputs and outputs if all unknown sizes are `size`.

        Returns None if the op rejects these shapes.
        """
        filled = [
            (shape and tuple([size if one < 0 else one for one in shape]), dtype)
            for shape, dtype in inputs
        ]
        try:
            completed, outputs = node.call.infer(
                filled, [(None, dtype) for _, dtype in self.values[place]], self._train
            )
        except MemoryError:
            raise
        except MXNetError:
            return None
        return [shape for shape, _ in (*completed, *outputs)]

    def probe_dtypes(self):
        """Infers dtypes of inputs from the result's dtype, for ops whose inference only derives
        outputs from inputs.

        An input gets the result's dtype if the op's result follows it: the result has that dtype if
        the input has it, and another dtype if the input has another.
        """
        for place in reversed(range(len(self.order))):
            node, result = self.order[place], self.values[place][0][1]
            if node.call is None or result is None:
                continue
            sources = [(self.place[source], index) for source, index in node.inputs]
            dtypes = [self.values[at][index][1] for at, index in sources]
            open_inputs = [k for k, dtype in enumerate(dtypes) if dtype is None]
            filled = [result if dtype is None else dtype for dtype in dtypes]
            if not open_inputs or self._result_dtype(node, filled) != result:
                continue
            other = "float32" if result != "float32" else "float64"
            for k in open_inputs:
                if self._result_dtype(node, [*filled[:k], other, *filled[k + 1 :]]) != result:
                    self._learn(*sources[k], (None, result), node, place)
            self._run()

    def _result_dtype(self, node, dtypes):
        try:
            return node.call.infer(
                [(None, dtype) for dtype in dtypes], [UNKNOWN] * node.num_outputs, self._train
            )[1][0][1]
        except MXNetError:
            return None

    def of(self, nodes):
        return [self.values[self.place[node]][0] for node in nodes]

    def outputs(self):
        return [self.values[self.place[node]][index] for node, index in self.entries]


def dtypes_after_cast(entries, dtype):
    """Returns the dtypes of variables, by name, if all variables are cast to `dtype`.

    A variable's dtype is `dtype`, unless an op that reads the variable, such as BatchNorm, requires
    another dtype.
    """
    found, values = {}, {}

    def infer(node, descs):
        try:
            return node.call.infer(descs, [UNKNOWN] * node.num_outputs, False)
        except MemoryError:
            raise
        except MXNetError:
            return None

    for node in topological(entries):
        if node.call is None:
            found[node.name] = dtype
            values[node] = [(None, dtype)]
            continue
        descs = [values[source][index] for source, index in node.inputs]
        result = infer(node, descs)
        # The op rejects these dtypes. Retry with unknown dtypes for all variables except the first
        # input, which is the data, so that the op infers them.
        if result is None:
            variable = [i > 0 and source.call is None for i, (source, _) in enumerate(node.inputs)]
            result = infer(node, [UNKNOWN if v else desc for v, desc in zip(variable, descs)])
            for (source, _), v, desc in zip(node.inputs, variable, result[0] if result else ()):
                if v and desc[1] is not None:
                    found[source.name] = desc[1]
        values[node] = result[1] if result else [UNKNOWN] * node.num_outputs
    return found


def _text(desc):
    shape, dtype = desc
    return f"{dtype or 'of unknown dtype'} {'of unknown shape' if shape is None else shape}"


def with_open_shapes(nodes):
    """Returns the nodes that create arrays whose shape has unknown sizes, such as initial states.

    The consumers of these arrays determine the sizes.
    """
    return [
        node
        for node in nodes
        if node.call is not None
        and node.call.creates
        and -1 in parse_shape(node.attrs.get("shape", "()"))
    ]


def known(shape):
    """True if the shape has no unknown sizes (-1)."""
    return shape is not None and -1 not in shape


def dtype_type(name):
    """Returns the NumPy type of a dtype name, as in MXNet; None for None."""
    if name is None:
        return None
    return _core.bfloat16 if name == "bfloat16" else np.dtype(name).type
