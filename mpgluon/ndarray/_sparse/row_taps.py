"""Row-sparse gradients of parameters in compiled calls.

If a traced block takes rows of a parameter with such a gradient, the rows pass through the op
`_gradient_tap`. Its second input is a *tap*, an input of the program that is a new variable in
every call. Backward writes the gradient of the rows to the tap. The row indices are outputs of the
program. A tap and its indices form a part of the parameter's gradient (`row_gradients.py`).
"""

from collections import namedtuple
from math import prod

from ... import _core
from ..._internal import graph_breaks
from .row_gradients import RowGradientWeight, copied_index

_gradient_tap = _core.get_op("_gradient_tap")


def has_row_gradient(param):
    """True if backward gives the parameter a row_sparse gradient."""
    return param.grad_stype != "default" and param.grad_req != "null"


class Taps:
    """The taps of one trace. `new(index, rows)` creates the input for the tap with that index."""

    def __init__(self, new):
        self._new = new
        self.specs = []  # (parameter, device of its copy, shape, dtype, device of the rows)
        self.numbers = []  # for each tap: traced row indices, or None
        self._weights = {}

    def weight(self, param, ctx, array):
        """Returns the traced array of a parameter as a weight whose rows have taps."""
        weight = self._weights.get((param, ctx))
        if weight is None:
            gradient = _TracedGradient(self, param, ctx)
            weight = self._weights[param, ctx] = RowGradientWeight(array, gradient)
        return weight

    def add(self, param, ctx, rows, numbers):
        """Adds a tap for the rows, and returns the rows connected to it."""
        tap = self._new(len(self.specs), rows)
        self.specs.append((param, ctx, rows.shape, rows.dtype, rows.context))
        self.numbers.append(None if numbers is None else copied_index(numbers))
        return _gradient_tap(rows, tap)

    def outputs(self):
        """Returns the row indices that are arrays, which are outputs of the program."""
        return [numbers for numbers in self.numbers if numbers is not None]


class _TracedGradient:
    def __init__(self, taps, param, ctx):
        self._taps, self._param, self._ctx = taps, param, ctx
        self._whole = None

    def tap(self, rows, numbers):
        return self._taps.add(self._param, self._ctx, rows, numbers)

    def all_rows(self, weight):
        if self._whole is None:
            self._whole = self.tap(weight, None)
        return self._whole


# Rows that a pipelined block takes from a parameter (`param`) on a device (`ctx`): the number of
# rows, and the shape, dtype and device of a row.
Lookup = namedtuple("Lookup", "param ctx count row dtype device")


class FlatTaps(Taps):
    """Taps whose gradients and row indices are flattened: one row per index.

    As a result, those of several micro-batches can be concatenated, regardless of the block's batch
    axis.
    """

    def __init__(self, new):
        super().__init__(new)
        self.lookups = []

    @classmethod
    def of(cls, arrays):
        """Creates an instance whose taps are these flat arrays."""
        return cls(lambda number, rows: arrays[number].reshape(rows.shape))

    def add(self, param, ctx, rows, numbers):
        if isinstance(graph_breaks.current(), graph_breaks.Body):
            raise _core.NotSupportedError(
                f"Parameter '{param.name}' has a row_sparse gradient, so its rows cannot be taken "
                "in the body of a loop or branch of a pipelined block; take them before it"
            )
        if numbers is None:
            raise _core.NotSupportedError(
                f"Parameter '{param.name}' has a row_sparse gradient, but a pipelined block "
                "uses the whole parameter, so its gradient has all rows; create it with "
                "grad_stype='default' (sparse_grad=False)"
            )
        row = rows.shape[numbers.ndim :]
        lookup = Lookup(param, ctx, prod(numbers.shape), row, rows.dtype, rows.context)
        self.lookups.append(lookup)
        return super().add(param, ctx, rows, numbers.reshape((-1,)))


class MicroBatchTaps:
    """The taps of one recorded call of a pipelined block, with the lookups of each micro-batch."""

    def __init__(self, lookups):
        self._lookups = lookups
        self.arrays = [
            one[0]
            .param.gradients[one[0].ctx]
            .new_tap((sum(part.count for part in one), *one[0].row), one[0].device, one[0].dtype)
            for one in zip(*lookups, strict=True)
        ]

    def give(self, numbers):
        """Adds the taps, with these row indices, to the parameters' gradients as parts."""
        groups = {}
        for i, lookup in enumerate(self._lookups[0]):
            groups.setdefault((lookup.param, lookup.ctx), []).append(i)
        for (param, ctx), own in groups.items():
            param.gradients[ctx].add_micro_batches(
                [(self.arrays[i], numbers[i].detach()) for i in own],
                [[lookups[i].count for i in own] for lookups in self._lookups],
            )


class TappedCall:
    """A compiled call of a block with taps, for arguments of given shapes.

    ``trace(arrays, parameters, taps)`` runs the block on traced arrays. ``discover(flat)`` traces
    it for the first time, and returns its taps and its number of outputs.
    """

    def __init__(self, used, flat, trace, discover, flags):
        self._used, self._trace, self._inputs = used, trace, len(flat)
        taps, self._outputs = discover(flat)
        self._specs, self._counted = taps.specs, [numbers is not None for numbers in taps.numbers]
        self.op = _core.CachedOp(self._run, flags)
        self.bound = False

    def _run(self, *arrays):
        first, last = self._inputs, self._inputs + len(self._specs)

        def tap(number, rows):
            if number == len(self._specs):  # the steps of a loop have separate taps
                raise _core.NotSupportedError(
                    "rows of a parameter with a row_sparse gradient cannot be taken in the body "
                    "of a loop of a hybridized block; take them before the loop, or create the "
                    "parameter with grad_stype='default' (sparse_grad=False)"
                )
            return arrays[first + number]

        taps = Taps(tap)
        outputs = self._trace(arrays[:first], arrays[last:], taps)
        return [*outputs, *taps.outputs()]

    def unbind(self):
        self.bound = False
        self.op.unbind()

    def __call__(self, flat):
        """Returns the list of outputs, after adding the parts to the parameters' gradients."""
        while True:
            if not self.bound:
                self.op.bind([param.arrays[ctx] for param, ctx in self._used])
                self.bound = True
            gradients = [param.gradients[ctx] for param, ctx, *_ in self._specs]
            taps = [
                gradient.new_tap(shape, device, dtype)
                for gradient, (_, _, shape, dtype, device) in zip(gradients, self._specs)
            ]
            outputs = self.op(*flat, *taps)
            if outputs is not None:
                break
            self.bound = False
        # Detach the row indices. Otherwise, they would keep the tape alive, which keeps the parts
        # that hold them alive.
        numbers = iter([array.detach() for array in outputs[self._outputs :]])
        for gradient, tap, counted in zip(gradients, taps, self._counted):
            gradient.add_part(tap, next(numbers) if counted else None)
        return outputs[: self._outputs]
