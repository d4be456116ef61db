"""Calls of a hybridized block, from the arguments to the results of its compiled programs.

`CompiledCall` implements a call: it selects the signature, binds its parameters and runs the core's
compiled op. New signatures trace the block's `forward`.
"""

import weakref
from itertools import count
from typing import NamedTuple

from ... import _core, autograd, ndarray as nd
from ..._internal import device_groups, graph_breaks
from ...ndarray._sparse.row_gradients import whole
from ...ndarray._sparse.row_taps import TappedCall, Taps, has_row_gradient
from .._block_path import block_path
from .._nested import ARRAY, flatten, regroup
from .._tree import division_of, flags_of, structure_changes
from ..utils import shape_is_known
from . import grouped, offload, recompute, tracing
from .captured import Captured, are_current
from .input_names import input_names
from .places import find
from .structure import snapshot

# Types of the arguments of most calls.
_ONLY_ARRAYS = {nd.NDArray}, {_core.ndarray}
# Maximum number of `Signature`s per block. The op of each signature keeps at most LIMIT compiled
# programs, one per combination of input shapes, dtypes and modes (csrc/compile/call_cache.h).
LIMIT = _core.CachedOp.LIMIT
_clock = count()


class TracedOps(NamedTuple):
    """The ops of a traced block. Integer ids identify the values in all fields."""

    ops: list  # list of ops from `_core.Trace.ops`
    shapes: dict  # value -> shape, for all values
    inputs: list
    parameters: dict  # value -> Parameter
    constants: dict  # value -> array
    outputs: list
    output_shapes: list


class Signature:
    """One way of calling a block: the structure of the arguments, their devices and the mode."""

    def __init__(self, block, path, structure, training):
        self._block = weakref.ref(block)
        self.path = path
        self.structure = structure
        self.training = training
        self.used = []  # (parameter, device) for each copy that the block uses
        self.inputs = ()  # (shape, dtype, device) of the arrays of the first trace
        self.outputs = None  # structure of the block's results
        self.first_trace = None  # trace of `discover`, until `op` compiles it
        self.op = None
        self.bound = False  # True if the parameters' arrays are bound to `op`
        # True if calls can skip `CompiledCall._prepare`: the parameters are bound, and there are
        # no captured arrays or conditions to check.
        self.ready = False
        self.unbound = 0  # number of `unbind` calls; `bind` retries if it has changed
        self.splits = (
            None  # (name, block path) of the first operation on the host, which splits the block
        )
        self.captured = ()  # `captured.Captured`
        self.conditions = ()  # `places.Fixed` and `places.Container`
        # Weak references to the descendants and unregistered blocks that `places.find` reached,
        # which may own this block.
        self.others = None
        # `snapshot` of the block and `others`, and the value of `structure_changes.count` at that
        # time
        self.structure_seen, self.changes_seen = None, None
        self.row_gradients = False  # True if some parameters have row_sparse gradients
        self.tapped = {}  # if row_gradients: shapes of the arguments -> TappedCall
        self.last_used = 0

    @property
    def block(self):
        return self._block()

    def discover(self, flat, discovery=None):
        """Traces the block to collect the parameter copies that it uses, to infer unknown shapes,
        and to detect operations on the host, which split the block. Returns the state and the trace
        for `first_trace`."""
        self.inputs = [graph_breaks.describe(array) for array in flat]
        discovery = discovery or tracing.Discovery()
        traced = None
        with discovery:
            inputs = [discovery.trace.input(array) for array in flat]
            try:
                outputs = self._forward(inputs)
            except graph_breaks.NeedsValues:
                pass  # the rest of the block is traced when it runs
            else:
                traced = discovery.traced(inputs, outputs)
                state = self._state([*inputs, *discovery.used.values()])
        self.splits = discovery.splits
        if not self.splits:
            self.used = list(discovery.used)
        for param, ctx in discovery.settled.items():
            param.reset_ctx(ctx)
            param.floating = False
        # A block may use parameters of blocks that are not registered as its children.
        used = [param for param, _ in discovery.used]
        for param in dict.fromkeys([*self.block.collect_params().values(), *used]):
            if param.deferred_init and shape_is_known(param.shape):
                param.finish_deferred_init()
        return traced and (state, traced)

    def _predict(self, discovery, inputs, refusal=None):
        """Traces the block for inputs of the given (shape, dtype, device). The caller must have
        entered the scope `discovery`. Returns the traced inputs and outputs. `refusal` makes the
        error for a step whose result shapes depend on values."""
        arrays = [discovery.trace.new_input(*desc) for desc in inputs]
        try:
            # A real call enters these scopes before it reaches the compiled block, so the trace
            # needs them as well.
            with grouped.replica(self.block, arrays, False), grouped.group(self.block, False):
                return arrays, self._forward(arrays)
        except graph_breaks.NeedsValues as error:
            raise (refusal or self._no_symbol)(error.name) from None

    def output_shapes(self, inputs):
        """Returns the shapes of the block's results for inputs of the given (shape, dtype,
        device)."""
        discovery = tracing.Discovery()
        with autograd.pause(train_mode=self.training), discovery:
            return [array.shape for array in self._predict(discovery, inputs)[1]]

    def planned(self, inputs, flags):
        """Returns the compiled programs (see `CompiledPrograms`) for inputs of the given (shape,
        dtype, device), the list of their inputs (None for an input of the block, or a parameter),
        and the (shape, dtype, device) of the results. Nothing is called, so neither inputs nor
        parameters need memory. `flags` is a dict of `HybridBlock.hybridize`'s options.

        Raises NotSupportedError if the block has host operations."""
        discovery = tracing.Discovery()
        recording = autograd.record if self.training else autograd.pause
        with recording(train_mode=self.training), discovery:
            arrays, outputs = self._predict(discovery, inputs, self._no_program)
            if discovery.splits:
                raise self._no_program(discovery.splits[0])
        entry = discovery.trace.compile(
            (*arrays, *discovery.used.values()),
            tuple(outputs),
            (
                *[False] * len(arrays),
                *[self.training and param.grad_req != "null" for param, _ in discovery.used],
            ),
            len(discovery.used),
            core_flags(flags),
        )
        used = [*[None] * len(arrays), *[param for param, _ in discovery.used]]
        return entry, used, [(array.shape, array.dtype, array.context) for array in outputs]

    def traced_ops(self, inputs):
        """Returns the block's ops (see `TracedOps`) for inputs of the given (shape, dtype, device).

        Raises NotSupportedError if the block has host operations, loops or branches."""
        discovery = tracing.Discovery()
        with autograd.pause(train_mode=self.training), discovery:
            discovery.trace.keep_bounds()
            arrays, outputs = self._predict(discovery, inputs)
            if discovery.splits or discovery.has_bodies:
                raise self._no_symbol(
                    discovery.splits[0] if discovery.splits else "a loop or branch"
                )
            trace = discovery.trace
            output_ids = [trace.value(array) for array in outputs]
            ops = trace.ops()
            values = {trace.value(array) for array in arrays}
            for _, _, used, first, count in ops:
                values.update(used, range(first, first + count))
            return TracedOps(
                ops,
                {value: trace.shape(value) for value in values},
                [trace.value(array) for array in arrays],
                {trace.value(array): param for (param, _), array in discovery.used.items()},
                dict(trace.constants(0)),
                output_ids,
                [array.shape for array in outputs],
            )

    def _no_program(self, what):
        return _core.NotSupportedError(
            f"{self.path}: it is not compiled as a whole, because {what} runs on the host or has "
            "a shape that depends on values"
        )

    def _no_symbol(self, what):
        message = (
            f"{self.path}: {what} cannot be written as a symbol in a block that uses properties "
            "that symbols lack, such as shapes, rows and operators that broadcast"
        )
        if what in ("a loop or branch", "foreach", "while_loop", "cond"):
            message += (
                "; write the block with hybrid_forward(self, F, x), F.contrib.foreach, "
                "F.contrib.while_loop or F.contrib.cond, and functions of F.np"
            )
        return _core.NotSupportedError(message)

    def _state(self, arrays):
        """Returns the state of this call that a trace depends on, apart from the signature. The
        first trace is reused only if this state is equal when `op` compiles the block."""
        return _core.is_recording(), self.captured, [graph_breaks.describe(a) for a in arrays]

    def _forward(self, arrays):
        """Runs the block on traced arrays and returns its results as a flat list."""
        if flags_of(self.block).get("recompute") is True:
            _core.begin_recompute()
        _core.set_offload(offload.device(flags_of(self.block)))
        division = division_of(self.block)
        if division is not None:
            arrays = division.annotate(arrays)
        value = self.block.forward(*regroup(self.structure, iter(arrays)))
        outputs = []
        self.outputs = flatten(value, outputs, "The outputs")
        outputs = [whole(array) for array in outputs]
        self._note_places(outputs)
        return outputs

    def _note_places(self, outputs):
        """Finds the places that hold the arrays captured or returned by the active trace, and the
        conditions under which the trace is valid, and records them in the signature."""
        known = {captured.place for captured in self.captured}
        arrays = [*_core.captured_arrays(), *[array for array in outputs if not array._traced]]
        arrays = [array for array in arrays if array._place not in known]
        if not arrays and self.others is not None:
            return
        seen = structure_changes.count
        found = find(self.block, [*arrays, *[captured.array for captured in self.captured]])
        if self.others is None:
            self.others = [weakref.ref(block) for block in found.blocks]
            self.structure_seen = snapshot([self.block, *found.blocks])
            self.changes_seen = seen
        self.captured = (
            *self.captured,
            *[Captured(*one) for one in found.arrays if one[-1]._place not in known],
        )
        self.conditions = found.conditions
        self.ready = False

    def is_current(self):
        """Returns True if the trace is valid, after replacing captured arrays by the arrays that
        their places hold now. If it returns False, the block must be traced again."""
        seen = structure_changes.count
        if self.changes_seen != seen and self.others is not None:
            others = [reference() for reference in self.others]
            if None in others or self.structure_seen != snapshot([self.block, *others]):
                return False
            self.changes_seen = seen
        return all([condition.holds() for condition in self.conditions]) and are_current(self)

    def parameter_arrays(self):
        """Returns the arrays of the parameter copies that the block uses. Raises KeyError if a
        parameter has left its device, TypeError if its arrays were dropped."""
        return [param.arrays[ctx] for param, ctx in self.used]

    def bind(self):
        """Binds the parameters' arrays to `op`, so calls need not pass them. A parameter whose
        arrays are replaced calls `unbind`."""
        while True:  # retry if another thread replaced a parameter's arrays meanwhile
            seen = self.unbound
            for param, _ in self.used:
                param.bound_by(self)
            self.op.bind(self.parameter_arrays())
            self.row_gradients = any(has_row_gradient(param) for param, _ in self.used)
            self.bound = True
            if self.unbound == seen:
                return

    def unbind(self):
        self.unbound += 1
        self.bound = self.ready = False
        self.op.unbind()
        for tapped in self.tapped.values():
            tapped.unbind()

    def trace(self, *arrays):
        """Runs the block on traced arrays. `arrays` holds the block's inputs, then the copies in
        `used`."""
        first, self.first_trace = self.first_trace, None
        if first is not None and first[0] == self._state(arrays):
            return first[1](arrays)
        inputs = len(arrays) - len(self.used)
        with tracing.Binding(self.used, arrays[inputs:], self.path):
            return self._forward(arrays[:inputs])

    def call_with_taps(self, flat, flags):
        """Makes a recorded call of a block whose parameters have row_sparse gradients."""
        if self.splits:
            tracing.refuse_row_gradient(
                next(param for param, _ in self.used if has_row_gradient(param))
            )
        places = tuple(captured.place for captured in self.captured)
        key = (*[(array.shape, array.dtype) for array in flat], places)
        tapped = self.tapped.get(key)
        if tapped is None:
            if len(self.tapped) >= LIMIT:
                self.tapped.pop(next(iter(self.tapped)))
            tapped = TappedCall(self.used, flat, self.trace_tapped, self._discover_taps, flags)
            self.tapped[key] = tapped
        return tapped(flat)

    def _discover_taps(self, flat):
        return self.discover_taps(flat, Taps)

    def discover_taps(self, flat, kind, host_steps=None):
        """Traces a recorded call with taps of class `kind`. Returns the taps and the number of
        outputs."""
        discovery = tracing.Discovery(kind, host_steps)
        with discovery:
            outputs = self._forward([discovery.trace.input(array) for array in flat])
        return discovery.taps, len(outputs)

    def trace_tapped(self, inputs, parameters, taps):
        """Runs the block on traced arrays, with taps that collect row_sparse gradients."""
        with tracing.Binding(self.used, parameters, self.path, taps):
            return self._forward(inputs)

    def input_names(self):
        return input_names(self.block, self.structure)

    def trace_parts(self, *arrays):
        with tracing.LateBinding():
            return self._forward(arrays)


def core_flags(flags):
    """Converts the options of `HybridBlock.hybridize` to the flags of a `_core.CachedOp`."""
    others = ("backend", "pipeline", "recompute", "offload")
    return {
        **{name: value for name, value in flags.items() if name not in others},
        "budget": recompute.limits(flags.get("recompute")),
        "offload_elements": offload.SMALLEST,
    }


def _weakly(method):
    """Returns a function that calls a bound method through a weak reference, so it does not keep
    the method's object alive."""
    method = weakref.WeakMethod(method)
    return lambda *arrays: method()(*arrays)


class CompiledCall:
    """The compiled form of one hybridized block: a `_core.CachedOp` for each signature.

    The block owns its CompiledCall. The reference back to the block is weak, because a reference
    cycle would delay the release of unused networks until the garbage collector runs."""

    def __init__(self, block, flags):
        self._block_reference = weakref.ref(block)
        self._flags = core_flags(flags)
        self._signatures = {}
        self._dropped = 0
        self._changes_seen = structure_changes.count

    @property
    def _block(self):
        return self._block_reference()

    def __call__(self, args):
        if self._changes_seen != structure_changes.count:
            self._look_again()
        if set(map(type, args)) in _ONLY_ARRAYS:  # the usual case
            flat = list(args)
            structure = (tuple, *[ARRAY] * len(flat))
        else:
            flat = []
            structure = flatten(args, flat, "The inputs")
            flat = [whole(array) for array in flat]
        key = (
            structure,
            tuple([array.context for array in flat]),
            tuple(map(type, flat)),
            autograd.is_training(),
            device_groups.current(),
        )
        signature = self._signatures.get(key)
        if signature is None:
            signature = self._add(key, flat)
        signature.last_used = next(_clock)
        while True:
            if not signature.ready:
                signature = self._prepare(key, signature, flat)
            if signature.row_gradients and autograd.is_recording():
                outputs = signature.call_with_taps(flat, self._flags)
                break
            outputs = signature.op(*flat)
            if outputs is not None:
                break
            signature.bound = signature.ready = False
        return (
            outputs[0] if signature.outputs is ARRAY else regroup(signature.outputs, iter(outputs))
        )

    def _prepare(self, key, signature, flat):
        """Returns the signature with its parameters bound and its captured arrays up to date.

        Traces the block again and returns a new signature if the old trace is invalid."""
        if not signature.is_current():
            self._forget([key])
            signature = self._add(key, flat)
        if not signature.bound:
            try:
                signature.bind()
            except (KeyError, TypeError):
                # Retrace, because a parameter was moved or its arrays were dropped since the trace.
                self._signatures.pop(key, None)
                signature = self._add(key, flat)
                signature.bind()
        signature.ready = not signature.captured and not signature.conditions
        return signature

    def _look_again(self):
        """Makes every signature check in its next call whether its blocks have changed."""
        self._changes_seen = structure_changes.count
        for signature in list(self._signatures.values()):
            signature.ready = False

    def _forget(self, keys):
        for key in keys:
            signature = self._signatures.pop(key, None)
            if signature is not None:
                self._dropped += len(signature.op.compiled()) + signature.op.dropped
                if signature.bound:
                    signature.unbind()

    def structure(self):
        """Returns the argument structure of the first signature, or None if nothing is compiled."""
        return next(iter(self._signatures))[0] if self._signatures else None

    def inputs(self):
        """Returns (shape, dtype, device) of each array of the first call."""
        return next(iter(self._signatures.values())).inputs

    def discover(self, args):
        """Infers the unknown shapes of the block's parameters."""
        flat = []
        structure = flatten(args, flat, "The inputs")
        self._make(structure, flat, autograd.is_training())

    def _make(self, structure, flat, training):
        if not flat:
            raise ValueError(
                f"{block_path() or type(self._block).__name__}: the inputs of a hybridized block "
                "must hold an NDArray, and all are None or numbers"
            )
        signature = Signature(
            self._block, block_path() or type(self._block).__name__, structure, training
        )
        signature.first_trace = signature.discover(flat)
        return signature

    def _add(self, key, flat):
        signature = self._make(key[0], flat, key[3])
        if signature.splits:
            signature.op = graph_breaks.Split(_weakly(signature.trace_parts), self._flags)
        else:
            trace = _weakly(signature.trace)
            trace.input_names = _weakly(signature.input_names)
            signature.op = _core.CachedOp(trace, self._flags)
        if len(self._signatures) >= LIMIT:
            used = sorted(
                (other.last_used, number, old)
                for number, (old, other) in enumerate(list(self._signatures.items()))
            )
            self._forget(old for _, _, old in used[: len(used) - LIMIT + 1])
        self._signatures[key] = signature
        return signature

    @property
    def dropped(self):
        """The number of compiled programs that were evicted."""
        return self._dropped + sum(
            signature.op.dropped for signature in list(self._signatures.values())
        )

    def entries(self, path):
        """Returns the compiled programs as dicts (see `CompiledPrograms`)."""
        return [
            {"block": path, **entry}
            for signature in list(self._signatures.values())
            for entry in signature.op.compiled()
        ]
