"""Graph breaks: programs that are split where control flow or shapes depend on values.

A loop that runs while a condition holds, a branch, and an op with a data-dependent shape cannot be
inside one compiled program, because the host must read a value. The program is therefore cut at
these steps. Compiled parts and steps on the host alternate in program order. On the tape, every
part is a separate call, and the ops of a host step are recorded as they run, so gradients need no
special handling.

`Split` is such a program. It is traced by running it: when the traced function reaches a host step,
the part so far is compiled and run on the real arrays, the step runs, and tracing continues with
traced arrays that have the shapes of the step's results. The traced parts form a tree that branches
where a step returned different shapes. Later calls walk the tree without running the user's Python
code. If a step returns shapes that are not in the tree, the function is re-traced from the
beginning, and parts that already ran in this call are skipped. A cut passes on every value that is
held by an array at that moment, so the rest of the function has all its inputs.

Bodies of loops and branches (`Body`) are traced separately, before values exist. Inside them, cuts
are limited to host steps whose result shapes are known in advance.
"""

import gc
import threading
from typing import Any

from .. import _core
from ..base import MXNetError
from . import kinds, ranks


class _Thread(threading.local):
    tracer = None  # `Tracer` of the active trace
    tracing = None  # values of parameters in the active trace (`gluon._compiled.tracing`)


thread = _Thread()
# Maximum number of parts per block. If it is exceeded, the least recently used leaves of the tree
# of parts are evicted.
LIMIT = 256


def current():
    """Returns the tracer that cuts the active trace of this thread, or None."""
    return thread.tracer


def refuse_in_trace(what):
    """Raises MXNetError while a block is traced."""
    if thread.tracing is not None:
        raise MXNetError(
            f"{what} cannot be called inside a block's forward while the block is traced; call it "
            "outside of the block"
        )


class PythonCall:
    """A call of an op that is implemented in Python, so it runs on the host at a cut.

    It has the same attributes as `_core.OpCall`, as far as symbol nodes read them.
    """

    creates = copies = dynamic = loss = amp_cast = numpy = False
    differentiable = True
    gradient_missing = False
    splits = True  # a compiled program is cut at this call
    is_op = False  # True if the call has the name and the parameters of an op

    def initial_values(self, count: int) -> tuple[Any, ...]:
        return (None,) * count

    def place(self, inputs: list[Any], group: Any) -> Any:
        return _core.OpCall("_copy", {}).place(inputs, group)


class NeedsValues(Exception):
    """Raised if an op with a data-dependent shape is called while no values exist."""

    def __init__(self, name):
        super().__init__(name)
        self.name = name


class Host:
    """A step between two parts: ``run(arrays) -> arrays``."""

    __slots__ = ("name", "run", "inputs", "outputs", "dynamic", "scope", "bodies")

    def __init__(self, name, run, inputs, dynamic, bodies):
        self.name = name
        self.run = run
        self.inputs = inputs
        self.outputs = ()
        self.dynamic = dynamic
        self.scope = _core.get_scope()
        self.bodies = bodies  # `Body`s of the loop or branch

    def __call__(self, env):
        # Run without a device group, because the trace already contains the moves between groups.
        with _core.Scope((_core.set_group, None), (_core.set_scope, self.scope)):
            return self.run([env[i] for i in self.inputs])


class Part:
    """A compiled part: the ops between two cuts. It ends with a host step, or with the results of
    the function."""

    __slots__ = (
        "op",
        "inputs",
        "outputs",
        "constants",
        "late",
        "host",
        "results",
        "keep",
        "nodes",
        "children",
        "parent",
        "used",
    )

    def __init__(self, function, flags, constants, late, nodes):
        self.op = None if function is None else _core.CachedOp(function, flags)
        self.inputs = () if function is None else function.inputs
        self.outputs = () if function is None else function.outputs
        self.constants = constants  # (id, array)
        self.late = late  # (id, parameter, device)
        self.nodes = nodes
        self.host = None
        self.results = ()
        self.keep = None
        self.children = {}
        self.parent = None  # (Part, key)
        self.used = 0

    def get_late(self, env):
        for i, param, ctx in self.late:
            env[i] = param.arrays[ctx]

    def compute(self, env):
        env.update(self.constants)
        if self.op is not None:
            env.update(zip(self.outputs, self.op(*[env[i] for i in self.inputs])))

    def inline(self, values, arrays):
        """Runs the part in the active trace on `arrays`, which replace `values`, its inputs."""
        env = dict(zip(values, arrays))
        self.compute(env)
        return [env[i] for i in self.results]

    def pass_on(self, env, arrays):
        """Returns the values of `env` that later parts may use, and the host step's results."""
        kept = {i: env[i] for i in self.keep if i in env}
        kept.update(zip(self.host.outputs, arrays))
        return kept


class Tracer(_core.Scope):
    """Cuts one trace. Subclasses define what happens at a cut."""

    def __init__(self, flags):
        self.flags = flags
        self.trace = _core.Trace()
        self._begin = 0  # first node of the part being traced
        self._constants = 0
        self.passed = set()  # constants of all parts so far, which later parts may use
        self.late = []
        self.has_bodies = False  # True if the trace contains loops or branches

    def _changes(self):
        return [self.trace, (vars(thread), "tracer", self)]

    def _part(self, results=None):
        function = self.trace.cut(self._begin, results)
        constants = self.trace.constants(self._constants)
        self._constants += len(constants)
        self.passed.update(i for i, _ in constants)
        part = Part(function, self.flags, constants, self.late, self.trace.nodes)
        self.passed.update(i for i, _, _ in self.late)
        self.late = []
        return part

    def _last_part(self, results):
        part = self._part(results)
        part.results = tuple([self.trace.value(array) for array in results])
        return part

    def _cut(self, host):
        if self.trace.spans_ranks:
            self._agree_on_live_values()
        part = self._part()
        part.host = host
        part.keep = self.passed.union(self.trace.live())
        return part

    def _agree_on_live_values(self):
        """Keeps each value that is live on any rank, so that all ranks compile the same outputs.

        Live values can differ between ranks. The garbage collector releases arrays in reference
        cycles at a different moment on each rank, and one rank may store an array that the other
        ranks drop.
        """
        gc.collect()
        live = " ".join(map(str, self.trace.live()))
        by_rank = ranks.gather("the values after a graph break", live)
        self.trace.keep(sorted({int(value) for text in by_rank for value in text.split()}))

    def host(self, name, run, inputs, outputs, bodies=(), stacked=(0, 0)):
        """Adds a host step whose result shapes are known. `outputs` has a ``(shape, dtype, ctx)``
        for each result, see `describe`. `stacked` counts the leading inputs and results that
        have an axis of a loop's steps in front. Returns traced arrays for the results.
        """
        raise NotImplementedError(
            f"{name} runs outside of compiled programs and cannot be traced by "
            f"{type(self).__name__}; call it outside of the hybridized block"
        )

    def dynamic(self, name, run, inputs):
        """Adds a host step whose result shapes depend on values."""
        raise NotImplementedError(
            f"the output shape of {name} depends on values and cannot be traced by "
            f"{type(self).__name__}; call it outside of the hybridized block"
        )

    def _new(self, host, descs):
        """Returns traced arrays for the results of a host step."""
        arrays = [self.trace.new_input(*desc) for desc in descs]
        host.outputs = tuple([self.trace.value(array) for array in arrays])
        return self._begin_part(arrays)

    def _begin_part(self, arrays):
        """Begins the part after a cut. Returns the host step's results for the following code; they
        are detached if recording is paused."""
        self._begin = self.trace.nodes
        self.trace.forget_moves()
        return [array.detach() for array in arrays] if self.trace.paused else arrays


def describe(array):
    """Returns shape, dtype and device, and True for an array of ``mx.np``."""
    return array.shape, array.dtype, array.context, kinds.is_numpy(array)


class Body(Tracer):
    """A function of arrays traced without values: the body of a loop or branch.

    `routine` takes arrays for the function's own inputs, followed by arrays for `captures`: the
    arrays of the enclosing code that the body uses. `descs` describes the results.
    """

    def __init__(self, function, likes, what):
        outer = current()
        outer.has_bodies = True
        super().__init__(outer.flags)
        self.what = what
        self._parts = []
        with self:
            inputs = [self.trace.new_input(*desc) for desc in likes]
            self._inputs = [self.trace.value(array) for array in inputs]
            results = function(inputs)
            del inputs
            self.descs = [describe(array) for array in results]
            self._parts.append(self._last_part(results))
        captured = [pair for part in self._parts for pair in part.constants]
        self._inputs += [i for i, _ in captured]
        for part in self._parts:
            part.constants = ()
        self.captures = [array for _, array in captured]
        self.routine = self._join()
        self.nodes = sum(part.nodes for part in self._parts)

    def host(self, name, run, inputs, outputs, bodies=(), stacked=(0, 0)):
        host = Host(name, run, [self.trace.value(array) for array in inputs], False, bodies)
        self._parts.append(self._cut(host))
        return self._new(host, outputs)

    def dynamic(self, name, run, inputs):
        raise NeedsValues(name)

    def _join(self):
        """Joins all parts and the host steps between them into one routine, which runs without the
        user's Python code."""
        slots = {value: slot for slot, value in enumerate(self._inputs)}
        calls, made = [], len(self._inputs)

        def add(function, scope, inputs, outputs):
            nonlocal made
            calls.append((function, scope, [slots[value] for value in inputs], len(outputs)))
            slots.update(zip(outputs, range(made, made + len(outputs))))
            made += len(outputs)

        for part in self._parts:
            if part.op is not None:
                add(part.op, None, part.inputs, part.outputs)
            if part.host is not None:
                add(part.host.run, part.host.scope, part.host.inputs, part.host.outputs)
        return _core.Routine.sequence(
            len(self._inputs), calls, [slots[value] for value in self._parts[-1].results]
        )

    @property
    def inlines(self):
        """True if the body has no cut, so its ops can be emitted into the enclosing trace."""
        return len(self._parts) == 1

    def inline(self, arrays):
        """Runs `routine` on traced arrays."""
        return self._parts[0].inline(self._inputs, arrays)

    def parts(self):
        """Yields all compiled parts as (part, description)."""
        for part in self._parts:
            yield part, self.what
            yield from _inner(part)


def _inner(part):
    for body in part.host.bodies if part.host is not None else ():
        yield from body.parts()


def running(recording, training):
    """Returns a scope that suspends the trace, so that ops and blocks run on values."""
    return _core.Scope(
        (_core.swap_trace, None),
        (_core.set_recording, recording),
        (_core.set_training, training),
        (vars(thread), "tracer", None),
        (vars(thread), "tracing", None),
    )


class _Live(Tracer):
    """Traces a function while it runs on values.

    `path` lists the parts that already ran in this call, with the results of their host steps.
    """

    def __init__(self, split, key, path, env):
        super().__init__(split.flags)
        self._split = split
        self._root = key
        self._passed_over = list(path)
        self._end = None
        self._made = []
        self.env = env
        self.mode = (_core.is_recording(), _core.is_training())

    def parameter(self, param, ctx):
        """Returns a traced array for a parameter's copy on `ctx`."""
        if param.arrays is None:
            with running(*self.mode):
                param.finish_deferred_init()
        traced = self.trace.input(param.arrays[ctx])
        self.late.append((self.trace.value(traced), param, ctx))
        return traced

    def settle(self, param, ctx):
        """Moves a floating parameter to `ctx`."""
        with running(False, self.mode[1]):
            param.reset_ctx(ctx)
            param.floating = False
        return True

    def host(self, name, run, inputs, outputs, bodies=(), stacked=(0, 0)):
        return self._step(name, run, inputs, bodies, False)

    def dynamic(self, name, run, inputs):
        return self._step(name, run, inputs, (), True)

    def _step(self, name, run, inputs, bodies, dynamic):
        values = [self.trace.value(array) for array in inputs]
        del inputs
        if self._passed_over:
            part, arrays = self._passed_over.pop(0)
            self._pass_over(part, name)
        else:
            part = self._cut(Host(name, run, values, dynamic, bodies))
            self._made.append((part, self._end))
            with running(*self.mode):
                part.get_late(self.env)
                part.compute(self.env)
                arrays = part.host(self.env)
                self.env = part.pass_on(self.env, arrays)
        self._end = (part, _key(part.host, arrays))
        first = not part.host.outputs
        new = [self.trace.new_input(*describe(array)) for array in arrays]
        ids = tuple([self.trace.value(array) for array in new])
        if first:
            part.host.outputs = ids
            self.env.update(zip(ids, arrays))
        return self._begin_part(new)

    def _pass_over(self, part, name):
        """Skips a part that already ran before the function was re-traced."""
        if part.host is None or part.host.name != name or part.nodes != self.trace.nodes:
            raise MXNetError(
                f"{name}: the block computed something else when it was re-traced for inputs of "
                "other shapes; the computation of a hybridized block may depend only on its "
                "inputs' shapes, dtypes and devices, and on the training mode"
            )
        constants = self.trace.constants(self._constants)
        self._constants += len(constants)
        self.passed.update(i for i, _ in constants)
        self.passed.update(i for i, _, _ in self.late)
        self.late = []

    def finish(self, results):
        part = self._last_part(results)
        # Code after a cut may have written arrays that an earlier part reads as constants, so use
        # their current values.
        constants = dict(self.trace.constants(0))
        for made, _ in self._made:
            made.constants = [(i, constants[i]) for i, _ in made.constants]
        # Other threads run a part as soon as it is in the tree. Attach the first part last, because
        # it makes the rest reachable.
        for made, end in reversed((*self._made, (part, self._end))):
            self._split._attach(made, end, self._root)
        with running(*self.mode):
            part.get_late(self.env)
            part.compute(self.env)
        return [self.env[i] for i in part.results]


def _key(host, arrays):
    return tuple([array.shape for array in arrays]) if host.dynamic else None


class Split:
    """A function on arrays that is compiled in parts. It is called like a `_core.CachedOp`.

    Parameters
    ----------
    trace : function
        ``trace(*arrays)`` returns a list of arrays.
    flags : dict
        See `HybridBlock.hybridize`.
    """

    def __init__(self, trace, flags):
        self._trace = trace
        self.flags = flags
        self._roots = {}
        # Parts contain the casts that mixed precision inserted, so changing its settings discards
        # all parts.
        self._precision = _core.precision_changes()
        self._clock = 0
        self.dropped = 0  # number of evicted parts

    def __call__(self, *arrays):
        if any(array._traced for array in arrays):
            return list(self._trace(*arrays))  # emits the ops into the enclosing trace
        if self._precision != _core.precision_changes():
            self._precision = _core.precision_changes()
            self.clear()
        key = (
            _core.is_training(),
            _core.is_recording(),
            *map(describe, arrays),
        )
        env = dict(enumerate(arrays))
        path = []
        part = self._roots.get(key)
        self._clock += 1
        while part is not None:
            part.used = self._clock
            try:
                part.get_late(env)
            except (KeyError, TypeError):  # since the trace, a parameter was moved or released
                self._drop(part)
                break
            part.compute(env)
            if part.host is None:
                return [env[i] for i in part.results]
            results = part.host(env)
            env = part.pass_on(env, results)
            path.append((part, results))
            part = part.children.get(_key(part.host, results))
        return self._extend(key, arrays, path, env)

    def _extend(self, key, arrays, path, env):
        """Traces the parts after `path`, and runs them."""
        with _Live(self, key, path, env) as tracer:
            traced = [tracer.trace.input(array) for array in arrays]
            results = list(self._trace(*traced))
            return tracer.finish(results)

    def _attach(self, part, end, root):
        if end is None:
            self._roots[root] = part
        else:
            end[0].children[end[1]] = part
        part.parent = end
        part.used = self._clock
        while len(parts := list(self._all())) > LIMIT:
            oldest = min(
                (leaf for leaf in parts if not leaf.children and leaf is not part),
                key=lambda leaf: leaf.used,
                default=None,
            )
            if oldest is None or oldest.used == self._clock:
                break
            self._drop(oldest)

    def _all(self):
        stack = list(self._roots.values())
        while stack:
            part = stack.pop()
            yield part
            stack.extend(part.children.values())

    def _drop(self, part):
        """Removes a part and all parts after it from the tree."""
        table = self._roots if part.parent is None else part.parent[0].children
        for key, other in list(table.items()):
            if other is part:
                del table[key]
        stack = [part]
        while stack:
            self.dropped += 1
            stack.extend(stack.pop().children.values())

    def compiled(self):
        """Returns the entries of `_core.CachedOp.compiled` for every part.

        The key ``part`` identifies the part. Its 'after' lists the preceding host steps as
        (name, shapes), with None for shapes that never vary. Its 'body' names the loop or branch
        that contains the part, or is '' outside of one.
        """
        entries = []
        for root in self._roots.values():
            stack = [(root, ())]
            while stack:
                part, after = stack.pop()
                for one, body in ((part, ""), *_inner(part)):
                    if one.op is not None:
                        entries += [
                            {**entry, "part": {"after": after, "body": body}}
                            for entry in one.op.compiled()
                        ]
                if part.host is not None:
                    stack += [
                        (child, (*after, (part.host.name, key)))
                        for key, child in reversed(part.children.items())
                    ]
        return entries

    def dump(self):
        """Returns the graphs of all parts as text."""
        return "\n".join(
            one.op.dump()
            for part in self._all()
            for one, _ in ((part, ""), *_inner(part))
            if one.op is not None
        )

    def bind(self, arrays):
        """Does nothing, unlike `_core.CachedOp.bind`, because each call looks up the parameters."""

    def unbind(self):
        """Does nothing, unlike `_core.CachedOp.unbind`, because no arrays are bound."""

    def recapture(self, pairs, holder, former, following):
        """Returns False, unlike `_core.CachedOp.recapture`: replacing a captured array requires a
        new trace."""
        return False

    def clear(self):
        """Discards everything compiled."""
        self._roots = {}
