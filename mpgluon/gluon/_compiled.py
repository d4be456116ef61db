"""Calling a hybridized block: from nested arguments and the tree's parameters to the flat inputs of compiled programs and back."""

from itertools import count

from .. import _core, _device_groups, _graph_breaks, autograd
from .. import ndarray as nd
from . import _captured, _recompute, _tracing
from .utils import shape_is_known


class _Array:
    """Stands for an array in a structure of nested arguments."""

    def __repr__(self):
        return "*"


_ARRAY = _Array()
_ONLY_ARRAYS = {nd.NDArray}
# What may be passed beside arrays: values that are compared by content. Each set of them is compiled on its own.
_STATIC = (type(None), bool, int, float, str, _core.Context)
# How many structures of arguments a block keeps programs for; each has as many signatures of its own (csrc/compile/call_cache.h).
LIMIT = _core.CachedOp.LIMIT
_clock = count()


def flatten(value, flat, what):
    """Appends the arrays in `value` (nested lists and tuples) to `flat`; returns its structure, which can be a dict key."""
    if isinstance(value, nd.NDArray):
        flat.append(value)
        return _ARRAY
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple, *[flatten(item, flat, what) for item in value])
    if isinstance(value, _STATIC):
        return (type(value), value) if value is not None else None
    raise ValueError(f"{what} of a hybridized block must be NDArrays (nd.array makes one of numbers), in lists or tuples as may be, "
                     f"but got {type(value).__name__}: {repr(value)[:60]}")


def regroup(structure, arrays):
    """What `flatten` took apart, with the next of the iterator `arrays` in place of each array."""
    if structure is _ARRAY:
        return next(arrays)
    if structure is None:
        return None
    kind = structure[0]
    if kind is list:
        return [regroup(item, arrays) for item in structure[1:]]
    if kind is tuple:
        return tuple([regroup(item, arrays) for item in structure[1:]])
    return structure[1]


def first_context(value):
    """The device of the first array in `value`, or None."""
    if isinstance(value, nd.NDArray):
        return value.context
    if isinstance(value, (list, tuple)):
        for item in value:
            ctx = first_context(item)
            if ctx is not None:
                return ctx
    return None


class _Signature:
    """One way in which a block is called: the structure of its arguments, their devices and the mode."""

    def __init__(self, block, path, structure, training):
        self.block = block
        self.path = path
        self.structure = structure
        self.training = training
        self.used = []  # copies of parameters the block uses, as (parameter, device)
        self.outputs = None  # structure of what the block returns
        self.op = None
        self.bound = False  # the parameters' arrays are bound to `op`
        self.ready = False  # calls need no preparation: it is bound, and nothing was captured
        self.unbound = 0  # how often they were given up
        self.splits = None  # (name, block's path) of the first step on the host: it is compiled in parts
        self.captured = ()  # `_captured.Captured`
        self.last_used = 0

    def discover(self, flat):
        """Traces the block to see which copies of parameters it uses, whether it has to be cut, and to find shapes that aren't known yet."""
        cuts = _graph_breaks.Discovery()
        discovery = _tracing.Discovery(cuts.trace)
        with cuts, discovery:
            arrays = iter([cuts.trace.input(array) for array in flat])
            try:
                flatten(self.block.forward(*regroup(self.structure, arrays)), [], "The outputs")
            except _graph_breaks.NeedsValues:
                pass  # what comes behind is found when it runs
            self._note_captured()
        self.splits = cuts.splits
        if not self.splits:
            self.used = discovery.used
        for param, ctx in discovery.settled.items():
            param._floating = False
            param.reset_ctx(ctx)
        for param in self.block.collect_params().values():
            if param._deferred_init and shape_is_known(param.shape):
                param._finish_deferred_init()

    def _note_captured(self):
        """Finds out where the arrays are kept that the active trace has captured."""
        known = {captured.place for captured in self.captured}
        arrays = [array for array in _core.captured_arrays() if array._place not in known]
        if arrays:
            found = [captured for captured in _captured.find(self.block, arrays) if captured.place not in known]
            self.captured = (*self.captured, *found)
            self.ready = False

    def is_current(self):
        """Whether calls use the arrays that are now where those were that it captured. False: it takes another trace."""
        return _captured.are_current(self)

    def bind(self):
        """Makes the parameters' arrays inputs of every call, until one of the parameters gets others."""
        while True:  # until nothing has changed meanwhile, in another thread
            seen = self.unbound
            for param, _ in self.used:
                param._bound_by(self)
            self.op.bind([param._data[ctx] for param, ctx in self.used])
            self.bound = True
            if self.unbound == seen:
                return

    def unbind(self):
        self.unbound += 1
        self.bound = self.ready = False
        self.op.unbind()

    def trace(self, *arrays):
        inputs = len(arrays) - len(self.used)
        outputs = []
        with _tracing.Binding(self.used, arrays[inputs:], self.path):
            if self.block._flags.get("recompute") is True:
                _core.begin_region()
            value = self.block.forward(*regroup(self.structure, iter(arrays[:inputs])))
            self.outputs = flatten(value, outputs, "The outputs")
            self._note_captured()
        return outputs

    def trace_parts(self, *arrays):
        outputs = []
        with _tracing.LateBinding():
            if self.block._flags.get("recompute") is True:
                _core.begin_region()
            value = self.block.forward(*regroup(self.structure, iter(arrays)))
            self.outputs = flatten(value, outputs, "The outputs")
            self._note_captured()
        return outputs


class CompiledCall:
    """The compiled form of one hybridized block: a `_core.CachedOp` for each signature."""

    def __init__(self, block, flags):
        self._block = block
        self._flags = {name: value for name, value in flags.items() if name not in ("backend", "pipeline", "recompute")}
        self._flags["budget"] = _recompute.limits(flags.get("recompute"))
        self._signatures = {}
        self._dropped = 0
        self._changes, self._repeats = _recompute.changes, None

    def __call__(self, args):
        if self._changes != _recompute.changes:
            self._look_again()
        if set(map(type, args)) == _ONLY_ARRAYS:  # the usual case
            flat = list(args)
            structure = (tuple, *[_ARRAY] * len(flat))
        else:
            flat = []
            structure = flatten(args, flat, "The inputs")
        key = (structure, tuple([array.context for array in flat]), autograd.is_training(), _device_groups.current())
        signature = self._signatures.get(key)
        if signature is None:
            signature = self._add(key, flat)
        signature.last_used = next(_clock)
        while True:
            if not signature.ready:
                signature = self._prepare(key, signature, flat)
            outputs = signature.op(*flat)
            if outputs is not None:
                break
            signature.bound = signature.ready = False  # another thread gave a parameter other arrays
        return outputs[0] if signature.outputs is _ARRAY else regroup(signature.outputs, iter(outputs))

    def _prepare(self, key, signature, flat):
        """The signature with its parameters bound and its captured arrays up to date, or a new one where that takes another trace."""
        if not signature.is_current():
            self._forget([key])
            signature = self._add(key, flat)
        if not signature.bound:
            try:
                signature.bind()
            except (KeyError, TypeError):
                # A parameter was moved or given up since: look anew.
                self._signatures.pop(key, None)
                signature = self._add(key, flat)
                signature.bind()
        signature.ready = not signature.captured
        return signature

    def _look_again(self):
        """Forgets what was traced while other blocks were to be computed again."""
        self._changes, former, self._repeats = _recompute.changes, self._repeats, _recompute.of_descendants(self._block)
        if former != self._repeats:
            self._forget(list(self._signatures))

    def _forget(self, keys):
        for key in keys:
            signature = self._signatures.pop(key, None)
            if signature is not None:
                self._dropped += len(signature.op.compiled()) + signature.op.dropped
                if signature.bound:
                    signature.unbind()

    def discover(self, args):
        """Finds the unknown shapes of the block's parameters."""
        flat = []
        structure = flatten(args, flat, "The inputs")
        self._make(structure, flat, autograd.is_training())

    def _make(self, structure, flat, training):
        from .block import block_path

        if not flat:
            raise ValueError(f"{block_path() or type(self._block).__name__}: the inputs of a hybridized block must hold an NDArray, and all are None or numbers")
        signature = _Signature(self._block, block_path() or type(self._block).__name__, structure, training)
        signature.discover(flat)
        return signature

    def _add(self, key, flat):
        if self._repeats is None:
            self._repeats = _recompute.of_descendants(self._block)
        signature = self._make(key[0], flat, key[2])
        if signature.splits:
            signature.op = _graph_breaks.Split(signature.trace_parts, self._flags)
        else:
            signature.op = _core.CachedOp(signature.trace, {**self._flags, "parameters": len(signature.used)})
        if len(self._signatures) >= LIMIT:
            used = sorted((other.last_used, number, old) for number, (old, other) in enumerate(list(self._signatures.items())))
            self._forget(old for _, _, old in used[: len(used) - LIMIT + 1])
        self._signatures[key] = signature
        return signature

    @property
    def dropped(self):
        """How many compiled signatures made room for others."""
        return self._dropped + sum(signature.op.dropped for signature in list(self._signatures.values()))

    def entries(self, path):
        """What is compiled, as dicts (see `CompiledPrograms`)."""
        return [
            {"block": path, **entry} for signature in list(self._signatures.values()) for entry in signature.op.compiled()
        ]


class CompiledPrograms:
    """What is compiled for a block: a sequence of dicts, one for each compiled signature; printing it gives a table.

    Each dict has ``block``, the path of the compiled block, and what `_core.CachedOp.compiled` says of the signature:
    ``inputs``, ``train``, ``exact``, ``calls``, ``devices`` (name -> its ``forward`` and ``backward`` programs, lists of
    instructions, and the ``planned`` bytes there), ``copies`` between devices, ``bytes_held`` for backward passes to come.
    Of a pipelined block the entry has ``pipeline``, ``rows`` (of each micro-batch) and ``stages`` as well, each with its device, blocks, operators (``forward``,
    ``backward``, ``deferred``), ``copies`` and ``bytes_sent`` for one micro-batch; in ``devices``, ``planned`` are for each size of a micro-batch the bytes of the
    forward pass, of both passes, and of what arrives from other devices, and ``peak`` is the most that micro-batches under way take together.
    ``dropped`` is how many signatures made room for others: of more than 64, the least recently used go.
    """

    def __init__(self, entries, dropped=0):
        self._entries = entries
        self.dropped = dropped

    def __len__(self):
        return len(self._entries)

    def __getitem__(self, i):
        return self._entries[i]

    def __iter__(self):
        return iter(self._entries)

    def programs(self):
        """The programs themselves, as text: for each signature, device and phase its operators (by block path), copies and
        waits, in the order in which they run."""
        lines = []
        for entry in self._entries:
            lines.append(f"{entry['block']} for {'training' if entry['train'] else 'prediction'}")
            for name, device in entry["devices"].items():
                for phase in ("prologue", "forward", "backward"):
                    if device[phase]:
                        lines.append(f"  {name} {phase}: " + ", ".join(map(_step_text, device[phase])))
        return "\n".join(lines)

    def __repr__(self):
        if not self._entries:
            return "nothing is compiled yet: call hybridize(), then the block (what a TrainStep compiles is told by step.compiled())"
        devices = list(dict.fromkeys(name for entry in self._entries for name in entry["devices"]))
        rows = [("device", "held bytes", "peak held")]
        for name in devices:
            stats = _core.memory_stats(name)
            rows.append((name, f"{stats['held']:,}", f"{stats['peak_held']:,}"))
        memory = ["memory really held, all arrays together", *_table(rows)]
        dropped = [f"{self.dropped} more that were compiled made room for these (the least recently used of more than {LIMIT} go)"] if self.dropped else []
        return "\n\n".join([*map(_entry_text, self._entries), *dropped, "\n".join(memory)])


def _pipeline_text(entry, lines):
    """The tables of a pipelined block."""
    counts = [f"{entry['rows'].count(size)} of {size}" for size in dict.fromkeys(entry["rows"])]
    width = max(map(len, (*[stage["blocks"] for stage in entry["stages"]], "blocks")))
    rows = [("stage", "device", "forward ops", "backward ops", "deferred ops", "copies out", "bytes out", "blocks".ljust(width))]
    for number, stage in enumerate(entry["stages"]):
        ops = [f"{len(stage[kind]):,}" for kind in ("forward", "backward", "deferred")]
        rows.append((str(number), stage["device"], *ops, f"{stage['copies']:,}", f"{stage['bytes_sent']:,}", stage["blocks"].ljust(width)))
    sizes = list(dict.fromkeys(entry["rows"]))
    devices = [("device", "segments", *[f"planned for {size} rows: {part}" for size in sizes for part in ("forward", "both passes", "arriving")], "peak of all")]
    for name, device in entry["devices"].items():
        planned = [f"{number:,}" for size in sizes for number in device["planned"][size]]
        devices.append((name, f"{device['segments']:,}", *planned, f"{device['peak']:,}"))
    lines[0] = lines[0].replace(" operators,", " operators for each micro-batch,", 1)
    return "\n".join([*lines, f"  {entry['pipeline']}; rows: {', '.join(counts)}", *[row.rstrip() for row in _table(rows)], *_table(devices)])


def _entry_text(entry):
    arrays = [f"{dtype} {shape} {device}" for shape, dtype, device, _ in entry["inputs"]]
    if len(arrays) > 4:
        arrays = [*arrays[:3], f"... {len(arrays)} arrays in all"]
    mode = "training" if entry["train"] else "prediction"
    where = _part_text(entry["part"]) if "part" in entry else ""
    lines = [
        f"{entry['block']}{where} for {mode}{', exact' if entry['exact'] else ''}: {entry['ops']} operators, called {entry['calls']} {'time' if entry['calls'] == 1 else 'times'}",
        f"  inputs: {'; '.join(arrays)}",
    ]
    if "pipeline" in entry:
        return _pipeline_text(entry, lines)
    rows = [("device", "forward ops", "backward ops", "fused groups", "again", "copies out", "bytes out", "planned: forward", "saved", "backward", "arriving", "kept", "total")]
    for name, device in entry["devices"].items():
        ops = [sum(step["kind"] == "run" for step in device[phase]) for phase in ("forward", "backward")]
        ops.append(sum("fused" in step for phase in ("forward", "backward") for step in device[phase]))
        ops.append(sum(step.get("again", False) for step in device["backward"]))
        sent = [step["bytes"] for phase in ("forward", "backward") for step in device[phase] if step["kind"] == "copy"]
        planned = [device["planned"][part] for part in ("forward", "saved", "backward", "lanes", "kept", "total")]
        rows.append((name, *[f"{number:,}" for number in (*ops, len(sent), sum(sent), *planned)]))
    shown = [i for i, title in enumerate(rows[0]) if title not in ("fused groups", "again", "kept") or any(row[i] != "0" for row in rows[1:])]
    return "\n".join([*lines, *_table([[row[i] for i in shown] for row in rows])])


def _part_text(part):
    """Which part of a program in parts it is (see `mpgluon._graph_breaks.Split.compiled`)."""
    steps = [name if shapes is None else f"{name} -> {', '.join(map(str, shapes))}" for name, shapes in part["after"]]
    return (f", {part['body']}" if part["body"] else "") + (f", after {' and '.join(steps)}" if steps else ", first part" if not part["body"] else "")


def _step_text(step):
    if step["kind"] == "run":
        return f"{step['scope']}/{step['op']}" if step.get("scope") else step["op"]
    if step["kind"] == "copy":
        return f"copy of {step['bytes']:,} bytes to {step['to']}"
    return step["kind"]


def _table(rows):
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
