"""The NumPy model of `stateful.py`: memory that arrays share, and small programs of operators with
their gradients.

Values stay on a grid (bounded multiples of a power of two) on which float32 arithmetic is exact, so
results are equal, not just close.
"""

import numpy as np

import mpgluon as mx
from mpgluon import gluon, nd

# By dtype: binary digits after the point, smallest and largest value.
GRID = {
    "float32": (6, -4096, 4096),
    "float64": (6, -4096, 4096),
    "float16": (2, -256, 256),
    "int32": (0, -4096, 4096),
    "int64": (0, -4096, 4096),
    "int8": (0, -127, 127),
    "uint8": (0, 0, 255),
}
FLOATS = ("float32", "float64", "float16")


def fits(values, dtype):
    digits, low, high = GRID[dtype]
    scaled = values * 2.0**digits
    return bool(
        np.isfinite(values).all()
        and (values >= low).all()
        and (values <= high).all()
        and (scaled == np.floor(scaled)).all()
    )


def scalar_shape():
    """Returns the shape of a single element of an array of one dimension."""
    return () if mx.util.is_np_array() else (1,)


def stopped(gradient):
    """True for the 0 that represents stopped gradients."""
    return type(gradient) is int


class Finding(AssertionError):
    pass


class Plan:
    """`commit` receives the result of `act`. `writes` are (Memory, its values afterwards), with the
    allowed relative error `close`. `fails` is the exception that `act` must raise. `after_failure`
    drops invalid objects after a failure."""

    def __init__(
        self,
        act,
        commit=lambda result: None,
        writes=(),
        close=0,
        fails=None,
        after_failure=lambda: None,
        text="",
        calm=False,
    ):
        self.act, self.commit, self.writes, self.close = act, commit, list(writes), close
        self.fails, self.after_failure, self.text, self.calm = fails, after_failure, text, calm


class Memory:
    """Memory that arrays share; `values` are its expected contents, flat. It is on one device or
    foreign."""

    def __init__(self, values, dtype, ctx):
        self.values, self.dtype, self.ctx = np.array(values, "float64").ravel(), dtype, ctx

    def with_part(self, offset, part):
        """Returns all values with `part` written at `offset`."""
        values = self.values.copy()
        values[offset : offset + part.size] = part.ravel()
        return values


class Live:
    """A live array and its expected contents: `shape` of the memory from `offset` on. `array` is an
    NDArray or a NumPy array."""

    def __init__(self, array, memory, shape, offset=0):
        self.array, self.memory, self.shape, self.offset = array, memory, tuple(shape), offset
        self.grad = None  # the Live of its gradient
        self.grad_req = None
        self.taped = False  # a recorded result
        self.owner = None  # the network whose parameter it is

    @property
    def values(self):
        size = int(np.prod(self.shape))
        return self.memory.values[self.offset : self.offset + size].reshape(self.shape)

    @property
    def dtype(self):
        return self.memory.dtype

    @property
    def ctx(self):
        return self.memory.ctx


class Value:
    """A value within a program: its numbers, its device and its place (the Memory or Value that
    owns the memory, and the offset)."""

    def __init__(self, values, ctx, place=None):
        self.values, self.ctx = np.asarray(values), ctx
        self.place = place or (self, 0)


class Program:
    """A few operators on some inputs: `steps` are (kind, indices of values, parameter). Values are
    the inputs, then the result of each step."""

    def __init__(self, rng, inputs, dtype, devices, length):
        """Draws a program whose values all stay on the grid for these inputs, a list of Live."""
        self.dtype, self.steps, self.num_inputs = dtype, [], len(inputs)
        values = self.inputs_of(inputs)
        for _ in range(length):
            step = self.draw(rng, values, devices)
            if step is None:
                continue
            value = self.compute(step, values)
            if value is None or value.values.size > 64 or not fits(value.values, dtype):
                continue
            self.steps.append(step)
            values.append(value)
        first = self.num_inputs if self.steps else 0
        self.outputs = sorted(
            {rng.randrange(first, len(values)) for _ in range(rng.choice([1, 1, 2]))}
            | {len(values) - 1}
        )

    @staticmethod
    def inputs_of(lives):
        return [Value(live.values, live.ctx, (live.memory, live.offset)) for live in lives]

    def draw(self, rng, values, devices):
        last = len(values) - 1
        a = rng.choice([last, rng.randrange(len(values))])
        b = rng.randrange(len(values))
        shape = values[a].values.shape
        kinds = [
            "add",
            "subtract",
            "multiply",
            "negate",
            "scale",
            "shift",
            "reshape",
            "rows",
            "row",
            "move",
            "copy",
            "concat",
            "transpose",
            "detach",
        ]
        if self.dtype in FLOATS:
            kinds += ["relu", "square", "sum", "sum0", "dot", "stop", "maximum", "broadcast"]
        kind = rng.choice(kinds)
        if kind in ("add", "subtract", "multiply", "maximum", "concat", "dot", "broadcast"):
            return (kind, (a, b), None)
        if kind in ("scale", "shift"):
            return (
                kind,
                (a,),
                rng.choice([-1, 1, 2, 3] + ([0.5, -0.25] if self.dtype in FLOATS else [])),
            )
        if kind == "reshape":
            size = int(np.prod(shape))
            sizes = [
                s
                for s in [(size,), (1, size), (size, 1), (2, size // 2), (size // 3, 3)]
                if size and np.prod(s) == size
            ]
            return (kind, (a,), rng.choice(sizes)) if sizes else None
        if kind in ("rows", "row"):
            if not shape or not shape[0]:
                return None
            begin = rng.randrange(shape[0])
            return (
                kind,
                (a,),
                (begin, rng.randrange(begin + 1, shape[0] + 1)) if kind == "rows" else begin,
            )
        if kind == "move":
            return (kind, (a,), rng.choice(devices))
        return (kind, (a,), None)

    # --- The model --------------------------------------------------------------------------------

    def compute(self, step, values):
        """Returns the Value of a step; None if it is impossible."""
        kind, numbers, parameter = step
        v = [values[number] for number in numbers]
        x, ctx, (root, offset) = v[0].values, v[0].ctx, v[0].place
        y = v[1].values if len(v) > 1 else None
        if kind == "reshape":
            shared = not mx.util.is_np_array()  # reshape of mx.np copies
            return Value(x.reshape(parameter), ctx, v[0].place if shared else None)
        if kind == "rows":
            return Value(x[slice(*parameter)], ctx, (root, offset + parameter[0] * x[0].size))
        if kind == "row":
            return Value(
                x[parameter].reshape(x.shape[1:] or scalar_shape()),
                ctx,
                (root, offset + parameter * x[0].size),
            )
        if kind == "detach" or (kind == "move" and parameter == ctx):
            return Value(x, ctx, v[0].place)
        if kind == "move":
            return Value(x, parameter)
        if kind in ("add", "subtract", "multiply", "maximum"):
            if x.shape != y.shape:
                return None
            return Value(
                {
                    "add": np.add,
                    "subtract": np.subtract,
                    "multiply": np.multiply,
                    "maximum": np.maximum,
                }[kind](x, y),
                ctx,
            )
        if kind == "broadcast":
            if x.ndim != 2 or y.shape != (1, x.shape[1]):
                return None
            return Value(x + y, ctx)
        if kind == "concat":
            return (
                Value(np.concatenate([x, y]), ctx)
                if x.ndim and x.shape[1:] == y.shape[1:] and x.ndim == y.ndim
                else None
            )
        if kind == "dot":
            if (
                x.ndim != 2
                or y.ndim != 2
                or x.shape[1] != y.shape[0]
                or not whole(x)
                or not whole(y)
            ):
                return None
            return Value(x @ y, ctx)
        if kind == "transpose":
            return Value(x.T, ctx) if x.ndim == 2 else None
        if kind == "sum" or (kind == "sum0" and x.ndim == 1):
            return Value(np.reshape(x.sum(), scalar_shape()), ctx)
        if kind == "sum0":
            return Value(x.sum(0), ctx) if x.ndim else None
        return Value(
            {
                "negate": lambda: -x,
                "scale": lambda: x * parameter,
                "shift": lambda: x + parameter,
                "copy": lambda: x,
                "stop": lambda: x,
                "relu": lambda: np.maximum(x, 0),
                "square": lambda: x * x,
            }[kind](),
            ctx,
        )

    def evaluate(self, lives):
        """Returns all values for these inputs; None if one leaves the grid."""
        values = self.inputs_of(lives)
        for live in lives:
            if not fits(live.values, self.dtype):
                return None
        for step in self.steps:
            value = self.compute(step, values)
            if value is None or not fits(value.values, self.dtype):
                return None
            values.append(value)
        return values

    def separate(self, lives):
        """Keeps only results that do not share memory."""
        values = self.evaluate(lives)
        own = [number for number in self.outputs if values[number].place[0] is values[number]]
        if not own:
            self.steps.append(("copy", (self.outputs[-1],), None))
            own = [len(values)]
        self.outputs = own

    def depend(self, variables):
        """Returns the results that depend on the inputs with these indices."""
        reached = set(variables)
        for number, (kind, numbers, _) in enumerate(self.steps, self.num_inputs):
            if kind != "detach" and reached.intersection(numbers):
                reached.add(number)
        return [
            number for number in self.outputs if number in reached and number >= self.num_inputs
        ]

    def gradients(self, values, outputs, heads):
        """Returns the gradient of each input: None if no gradient reaches it, 0 if only stopped
        gradients do. Returns None if a value leaves the grid."""
        grads = [None] * len(values)
        for number, head in zip(outputs, heads):
            grads[number] = head if grads[number] is None else grads[number] + head
        for number in range(len(values) - 1, self.num_inputs - 1, -1):
            g = grads[number]
            kind, numbers, parameter = self.steps[number - self.num_inputs]
            if g is None or kind == "detach":
                continue
            if not stopped(g) and not fits(g, "float16" if self.dtype == "float16" else self.dtype):
                return None
            for source, part in zip(
                numbers, self.pull(kind, [values[n].values for n in numbers], parameter, g)
            ):
                if stopped(part):
                    grads[source] = 0 if grads[source] is None else grads[source]
                elif grads[source] is None or stopped(grads[source]):
                    grads[source] = part
                else:
                    grads[source] = grads[source] + part
        if any(g is not None and not stopped(g) and not fits(g, self.dtype) for g in grads):
            return None
        return grads[: self.num_inputs]

    @staticmethod
    def pull(kind, inputs, parameter, g):
        x, y = inputs[0], inputs[-1]
        if kind == "stop" or stopped(g):
            return [0] * len(inputs)
        if kind in ("reshape", "row"):
            if kind == "reshape":
                return [g.reshape(x.shape)]
            full = np.zeros(x.shape)
            full[parameter] = g.reshape(x.shape[1:])
            return [full]
        if kind == "rows":
            full = np.zeros(x.shape)
            full[slice(*parameter)] = g
            return [full]
        if kind == "dot":
            return [g @ y.T, x.T @ g]
        if kind == "concat":
            return [g[: len(x)], g[len(x) :]]
        if kind in ("sum", "sum0"):
            return [np.zeros(x.shape) + g]
        return {
            "add": lambda: [g, g],
            "subtract": lambda: [g, -g],
            "multiply": lambda: [g * y, g * x],
            "broadcast": lambda: [g, g.sum(0, keepdims=True)],
            "maximum": lambda: [g * (x >= y), g * (x < y)],
            "negate": lambda: [-g],
            "scale": lambda: [g * parameter],
            "shift": lambda: [g],
            "copy": lambda: [g],
            "move": lambda: [g],
            "relu": lambda: [g * (x > 0)],
            "square": lambda: [2 * g * x],
            "transpose": lambda: [g.T],
        }[kind]()

    # --- The library ------------------------------------------------------------------------------

    def run(self, arrays):
        values = list(arrays)
        for kind, numbers, parameter in self.steps:
            x = values[numbers[0]]
            y = values[numbers[1]].as_in_context(x.context) if len(numbers) > 1 else None
            values.append(RUN[kind](x, y, parameter))
        return [values[number] for number in self.outputs]

    def __repr__(self):
        lines = [
            f"v{self.num_inputs + i} = "
            f"{kind}({', '.join(f'v{n}' for n in numbers)}{'' if p is None else f', {p}'})"
            for i, (kind, numbers, p) in enumerate(self.steps)
        ]
        return f"{self.dtype}: {'; '.join(lines)} -> {', '.join(f'v{n}' for n in self.outputs)}"


RUN = {
    "add": lambda x, y, p: x + y,
    "subtract": lambda x, y, p: x - y,
    "multiply": lambda x, y, p: x * y,
    "maximum": lambda x, y, p: nd.maximum(x, y),
    "broadcast": lambda x, y, p: nd.broadcast_add(x, y),
    "concat": lambda x, y, p: nd.concat(x, y, dim=0),
    "dot": lambda x, y, p: nd.dot(x, y),
    "negate": lambda x, y, p: -x,
    "scale": lambda x, y, p: x * p,
    "shift": lambda x, y, p: x + p,
    "reshape": lambda x, y, p: x.reshape(p),
    "rows": lambda x, y, p: x[p[0] : p[1]],
    "row": lambda x, y, p: x[p],
    "move": lambda x, y, p: x.as_in_context(p),
    "copy": lambda x, y, p: x.copy(),
    "transpose": lambda x, y, p: x.T,
    "detach": lambda x, y, p: x.detach(),
    "relu": lambda x, y, p: nd.relu(x),
    "square": lambda x, y, p: nd.square(x),
    "sum": lambda x, y, p: x.sum(),
    "sum0": lambda x, y, p: x.sum(axis=0),
    "stop": lambda x, y, p: nd.BlockGrad(x),
}


def whole(values):
    return bool((values == np.floor(values)).all() and (np.abs(values) <= 256).all())


class ProgramBlock(gluon.HybridBlock):
    """A program as a block; some of its inputs are captured instead of arguments."""

    def __init__(self, program, captured):
        super().__init__()
        self.program, self.captured = program, captured

    def hybrid_forward(self, F, *arrays):
        return self.program.run([*arrays, *self.captured])


class Chain(gluon.HybridBlock):
    """Dense layers on devices, one after the other, with ReLU between them."""

    def __init__(self, sizes, devices):
        super().__init__()
        self.devices, self.layers = devices, []
        with self.name_scope():
            for i, ctx in enumerate(devices):
                layer = gluon.nn.Dense(
                    sizes[i + 1],
                    in_units=sizes[i],
                    activation="relu" if i + 1 < len(devices) else None,
                )
                layer.initialize(mx.init.Zero(), ctx=ctx)
                self.register_child(layer)
                self.layers.append(layer)

    def hybrid_forward(self, F, x):
        for layer, ctx in zip(self.layers, self.devices):
            x = layer(x.as_in_context(ctx))
        return x


def chain_gradients(x, target, weights):
    """Returns the results of a Chain with (weight, bias) of each layer, and the gradients of half
    the sum of squared differences."""
    inputs, h = [], x
    for i, (w, b) in enumerate(weights):
        inputs.append(h)
        h = h @ w.T + b
        if i + 1 < len(weights):
            h = np.maximum(h, 0)
    grads, g = [], h - target
    for (w, _), before, after in reversed(list(zip(weights, inputs, [*inputs[1:], None]))):
        if after is not None:
            g = g * (after > 0)
        grads.append((g.T @ before, g.sum(0)))
        g = g @ w
    return h, grads[::-1]
