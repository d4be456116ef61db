"""The network of a feature program (`feature_programs.py`). It has four stages on devices. A row of
the table (`features/table.py`) selects its captured arrays, parameters, control flow, custom
operators and layers."""

from functools import partial

import numpy as np

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import HybridBlock, nn, rnn
from mpgluon.gluon.model_zoo.text import DecoderLayer
from support.devices import on
from support.kinds import is_numpy, made, new

WIDTH = 6
# The last layer shares the first one's parameters: it gets them as `params`, or by assignment.
TIED = ("tied", "assigned")


def numbers(seed, shape=(1, WIDTH)):
    return np.random.RandomState(seed).uniform(0.5, 1.0, shape).astype("float32")


# --- Captured arrays: `ORIGINS[name](i, dtype)` gives array i, of shape (1, WIDTH) ----------------


def host(i, dtype):
    return new.array(numbers(i), ctx=on(0), dtype=dtype)


def far(i, dtype):
    return new.array(numbers(i), ctx=on(i % 2), dtype=dtype)


def view(i, dtype):
    return new.array(numbers(i, (3, WIDTH)), ctx=on(0), dtype=dtype)[i % 3 : i % 3 + 1]


def reshaped(i, dtype):
    return new.array(numbers(i, (2, WIDTH // 2)), ctx=on(0), dtype=dtype).reshape((1, WIDTH))


def computed(i, dtype):
    return nd.tanh(host(i, dtype)) + 0.5


def gradient(i, dtype):
    x = host(i, dtype)
    x.attach_grad()
    with autograd.record():
        y = x * x
    y.backward()
    return x.grad


def exchanged(i, dtype):
    shared = nd.from_dlpack(host(i, dtype).to_dlpack_for_read())
    return shared.as_np_ndarray() if mx.util.is_np_array() else shared


def uniform(numpy, ctx):
    """Draws a row from mx.np.random, or from mx.nd.random if not `numpy`."""
    if numpy:
        return mx.np.random.uniform(0.5, 1, (1, WIDTH), dtype="float32", ctx=ctx)
    return nd.random.uniform(0.5, 1, shape=(1, WIDTH), ctx=ctx, dtype="float32")


def drawn(i, dtype):
    return uniform(mx.util.is_np_array(), on(0)).astype(dtype)


def reloaded(i, dtype):
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "arrays")
        module = mx.npx if mx.util.is_np_array() else nd
        module.save(path, [host(i, dtype)])
        return module.load(path)[0].as_in_context(on(0))


def detached(i, dtype):
    x = host(i, dtype)
    x.attach_grad()
    with autograd.record():
        y = x * 2
    return y.detach() * 0.5


ORIGINS = {
    "host data": host,
    "several devices": far,
    "slice": view,
    "reshape": reshaped,
    "result": computed,
    "gradient": gradient,
    "dlpack": exchanged,
    "random": drawn,
    "file": reloaded,
    "detached": detached,
    "NumPy": lambda i, dtype: numbers(i),  # converted in every call
    "NumPy number": lambda i, dtype: np.float32(numbers(i)[0, 0]),
}


# --- Views and writes: functions of (F, h) that return values like h. Recorded arrays cannot be
# written to, so these write to arrays that no operator has read yet -------------------------------


def written_where_born(F, h):
    born = made(h, F).zeros((1, WIDTH), ctx=h.context, dtype=h.dtype)
    born[:] = 0.5
    born[:] = born * 1.5
    return F.broadcast_mul(h, born)


def written_from_host(F, h):
    born = made(h).array(numbers(60), ctx=h.context, dtype=h.dtype)
    born[:] = 0.75
    return F.broadcast_mul(h, born)


def added_in_place(F, h):
    total = made(h, F).ones((1, WIDTH), ctx=h.context, dtype=h.dtype)
    total += 0.25
    total *= 0.75
    return F.broadcast_mul(h, total)


def through_views(F, h):
    if is_numpy(h):
        parts = mx.np.split(h.reshape((-1, WIDTH)), 2, axis=1)
        parts = [part.reshape((-1, WIDTH // 2)) for part in parts]
        return F.reshape_like(mx.np.concatenate(parts, axis=-1), h)
    return F.concat(
        *[part.reshape((-1, WIDTH // 2)) for part in h.reshape((-1, WIDTH)).split(2, axis=1)],
        dim=-1,
    ).reshape_like(h)


def rows_and_broadcasting(F, h):
    """Uses an array in ways that have another meaning for a Symbol."""
    parts = F.stack(h, h * 0.5, axis=0)
    total = sum(part for part in parts) / len(parts)
    return total + parts[-1] * 0.1 - h.mean(axis=-1, keepdims=True) * 0.1


MEMORY = {
    "values": lambda F, h: h * 0.9,
    "views": through_views,
    "write to a new array": written_where_born,
    "write to host data": written_from_host,
    "in-place sums": added_in_place,
    "slices": lambda F, h: F.concat(
        F.slice_axis(h, axis=-1, begin=2, end=None),
        F.slice_axis(h, axis=-1, begin=0, end=2),
        dim=-1,
    ),
    "rows and broadcasting": rows_and_broadcasting,
}


# --- Control flow ---------------------------------------------------------------------------------


def foreach(F, h):
    steps = F.stack(h, h * 0.5, axis=0)
    out, _ = F.contrib.foreach(
        lambda step, state: (step + state[0], [F.tanh(step)]), steps, [F.zeros_like(h)]
    )
    return F.mean(out, axis=0)


def number(F, h, value):
    """Returns one number on the device of h, which does not depend on the rows of h."""
    if F is mx.nd:
        return made(h).full((1,), value, ctx=h.context)
    return F.zeros_like(F.sum(h)) + value


def while_loop(F, h):
    zero = number(F, h, 0)
    _, (_, out) = F.contrib.while_loop(
        lambda i, v: i < 2,
        lambda i, v: ([], [i + 1, F.tanh(v)]),
        [zero, h],
        max_iterations=3,
    )
    return out


def cond(F, h):
    return F.contrib.cond(number(F, h, 1) > 0, lambda: F.tanh(h), lambda: h)


def by_training(F, h):
    return F.tanh(h) * 0.9 if autograd.is_training() else F.tanh(h)


def by_shape(F, h):
    return h * (h.shape[-1] / WIDTH) if h.ndim > 1 else h


def repeated_rows(F, h):
    """Repeats one row for each sample, as for a class token."""
    token = made(h, F).arange(0, 1, 1 / WIDTH, ctx=h.context, dtype=h.dtype)
    token = F.reshape(token, (1,) * (h.ndim - 1) + (WIDTH,))
    return F.mean(F.stack(h, F.broadcast_to(token, h.shape), axis=0), axis=0)


def python_loop(F, h):
    for i in range(3):
        h = h + F.tanh(h) * (0.1 * i)
    return h


FLOW = {
    "straight": lambda F, h: h,
    "foreach": foreach,
    "while_loop": while_loop,
    "cond": cond,
    "Python loop": python_loop,
    "training mode": by_training,
    "shape read": by_shape,
    "repeated rows": repeated_rows,
}


# --- Custom operators -----------------------------------------------------------------------------


class Double(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


@mx.operator.register("feature_double")
class DoubleProp(mx.operator.CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=True)

    def infer_shape(self, in_shape):
        return in_shape, in_shape, []

    def create_operator(self, ctx, shapes, dtypes):
        return Double()


class Layered(mx.operator.CustomOp):
    """Calls a layer with a parameter, in forward and, recorded, in backward."""

    def __init__(self, ctx, dtype):
        self.layer = nn.Dense(WIDTH, in_units=WIDTH, flatten=False, use_bias=False)
        # Loading draws no random numbers, unlike initialize.
        weight = new.full((WIDTH, WIDTH), 0.15, ctx=ctx, dtype="float32")
        self.layer.load_dict({"weight": weight}, ctx=ctx)
        self.layer.cast(dtype)
        self.layer.hybridize()

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], self.layer(in_data[0]))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        x = in_data[0].copy()
        x.attach_grad()
        with autograd.record():
            y = self.layer(x)
        y.backward(out_grad[0].astype(y.dtype))
        self.assign(in_grad[0], req[0], x.grad)


@mx.operator.register("feature_layered")
class LayeredProp(DoubleProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Layered(ctx, dtypes[0])


class Bent(autograd.Function):
    """tanh with half of its gradient."""

    def forward(self, x):
        y = nd.tanh(x)
        self.save_for_backward(y)
        return y

    def backward(self, dy):
        (y,) = self.saved_tensors
        return dy * (1 - y * y) * 0.5


CUSTOM = {
    "operators": lambda F, h: F.tanh(h),
    "Custom": lambda F, h: F.Custom(h, op_type="feature_double") * 0.5,
    "Custom with a layer": lambda F, h: F.Custom(h, op_type="feature_layered") + h,
    "Function": lambda F, h: Bent()(h),
    "BlockGrad": lambda F, h: F.BlockGrad(h) * 0.1 + h,
    "make_loss": lambda F, h: h + F.make_loss(h * 0.1) * 0.1,
    "straight through": lambda F, h: h + F.stop_gradient(F.round(h) - h),
}


# --- Layers ---------------------------------------------------------------------------------------


class Cells(HybridBlock):
    """Applies a layer to rows of shape `inner`, between reshapes."""

    def __init__(self, layer, inner, time_major=False):
        super().__init__(prefix="cells_")
        self.layer, self.inner, self.time_major = layer, inner, time_major

    def hybrid_forward(self, F, h):
        rows = F.reshape(h, shape=(-1, *self.inner))
        if self.time_major:
            rows = self.layer(F.transpose(rows, axes=(1, 0, 2)))
            return F.reshape_like(F.transpose(rows, axes=(1, 0, 2)), h)
        return F.reshape_like(self.layer(rows), h)


class ShapedCells(Cells):
    """Reads the shape of its input."""

    def hybrid_forward(self, F, h):
        rows = h.reshape((h.size // 6, *self.inner)).transpose((1, 0, 2))
        return F.reshape_like(self.layer(rows).transpose((1, 0, 2)), h)


class Lookup(HybridBlock):
    """Adds embedding rows selected by the signs of h. The selection has no gradient."""

    def __init__(self, sparse):
        super().__init__(prefix="lookup_")
        self.table = nn.Embedding(4, WIDTH, sparse_grad=sparse)

    def hybrid_forward(self, F, h):
        signs = F.BlockGrad(h > 0.1)
        index = F.sum(F.slice_axis(signs, axis=-1, begin=0, end=3), axis=-1)
        return h + self.table(index)


class Attention(HybridBlock):
    def __init__(self):
        super().__init__(prefix="attention_")
        self.qkv = nn.Dense(3 * WIDTH, in_units=WIDTH, flatten=False)

    def hybrid_forward(self, F, h):
        q, k, v = F.split(self.qkv(h), num_outputs=3, axis=-1)
        rows = [F.reshape(part, shape=(-1, 3, 2)) for part in (q, k, v)]
        scores = F.softmax(F.batch_dot(rows[0], rows[1], transpose_b=True), axis=-1)
        return h + F.reshape_like(F.batch_dot(scores, rows[2]), h)


class Heads(HybridBlock):
    """Attention of two heads with random numbers before and between them. Each row is a sequence
    of three steps."""

    def __init__(self):
        super().__init__(prefix="heads_")
        self.heads = 2
        with self.name_scope():
            self.qkv = nn.Dense(12, in_units=2, flatten=False)
            self.out = nn.Dense(2, in_units=4, flatten=False)
            self.drop = nn.Dropout(0.2)

    def hybrid_forward(self, F, h):
        steps = F.Dropout(F.reshape(h, shape=(-1, 3, 2)), p=0.2)
        q, k, v = (
            F.transpose(F.reshape(part, shape=(0, 0, self.heads, -1)), axes=(0, 2, 1, 3))
            for part in F.split(self.qkv(steps), num_outputs=3, axis=-1)
        )
        scores = self.drop(F.softmax(F.linalg.gemm2(q, k, transpose_b=True), axis=-1))
        out = F.transpose(F.linalg.gemm2(scores, v), axes=(0, 2, 1, 3))
        return h + F.reshape_like(self.out(F.reshape(out, shape=(0, 0, -3))), h)


class Typed(HybridBlock):
    """Knows its dtype."""

    dtype = "float32"

    def cast(self, dtype):
        super().cast(dtype)
        self.dtype = dtype


class Noise(Typed):
    """Multiplies all rows by one row of random numbers, in training."""

    def hybrid_forward(self, F, h):
        if not autograd.is_training():
            return h
        if is_numpy(h):
            return h * uniform(True, h.context).astype(self.dtype)
        noise = F.random.uniform(0.5, 1, shape=(1, WIDTH), dtype="float32")
        return F.broadcast_mul(h, F.cast(noise, dtype=self.dtype))


def nested():
    block = nn.HybridSequential(prefix="nested_")
    for _ in range(3):
        outer = nn.HybridSequential()
        outer.add(nn.Dense(WIDTH, in_units=WIDTH, flatten=False), nn.Activation("tanh"))
        block.add(outer)
    return block


def decoder_layer():
    def norm(size, prefix):
        return nn.RMSNorm(in_channels=size, prefix=prefix)

    return DecoderLayer(
        2,
        norm,
        partial(nn.MultiHeadAttention, 2, 1, rotary={}, window=2, in_units=2),
        partial(nn.GatedMLP, 2, 4, in_units=2),
        prefix="decoder_",
    )


def packed(prefix="packed_", width=WIDTH):
    """A layer with a weight of 4 bits."""
    layer = nn.QuantizedDense(
        width,
        width,
        format="int4",
        group=2,
        use_zeros=True,
        activation="tanh",
        flatten=False,
        prefix=prefix,
    )
    values = np.arange(layer.packed.shape[0] * layer.packed.shape[1]) * 37 % 256
    layer.packed.init = mx.init.Constant(values.reshape(layer.packed.shape))
    layer.scales.init = mx.init.Constant(0.1)
    return layer


def plane(layer):
    return Cells(layer, (2, 1, 3))


class SharedHeads(HybridBlock):
    """MultiHeadAttention with shared key heads and dropout. Each row is a sequence of three
    steps."""

    def __init__(self):
        super().__init__(prefix="shared_")
        with self.name_scope():
            self.attention = nn.MultiHeadAttention(
                2, 4, kv_heads=2, head_dim=2, rotary=True, dropout=0.2, in_units=2
            )

    def hybrid_forward(self, F, h):
        return h + F.reshape_like(self.attention(F.reshape(h, shape=(-1, 3, 2))), h)


class LimitedHeads(HybridBlock):
    """Attention with a mask, lengths, segments and a limit of the scores. Each row is a sequence of
    three steps."""

    def __init__(self):
        super().__init__(prefix="limited_")
        self.query = nn.Dense(4, in_units=2, flatten=False)

    def hybrid_forward(self, F, h):
        steps = F.reshape(h, shape=(-1, 3, 2))
        query = F.reshape(self.query(steps), shape=(0, 0, 2, 2))
        key = F.expand_dims(steps, axis=2)
        ones = F.BlockGrad(steps * 0 + 1)
        first = F.slice_axis(ones, axis=2, begin=0, end=1)
        count = F.cumsum(F.reshape(first, shape=(0, 0)), axis=1)
        planes = F.reshape(h, shape=(-1, 1, 2, 3))
        mask = F.BlockGrad(F.slice_axis(planes, axis=2, begin=0, end=1))
        lengths = F.cast(F.sum(count > 1.5, axis=1), "int32")
        segments = F.cast(count > 2.5, "int32")
        options = {"use_mask": True, "use_lengths": True, "use_segments": True, "softcap": 2.0}
        out = F.contrib.attention(query, key, key, mask, lengths, segments, **options)
        return h + F.reshape_like(F.sum(out, axis=2), h)


class Classes(Typed):
    """Multiplies rows by the loss of a class, from a normalized row."""

    def __init__(self):
        super().__init__(prefix="classes_")
        with self.name_scope():
            self.norm = nn.RMSNorm(in_channels=WIDTH, offset=1.0)
            self.weight = self.params.get("weight", shape=(4, WIDTH))

    def hybrid_forward(self, F, h, weight):
        label = F.cast(F.sum(F.BlockGrad(h * 0), axis=-1) + 2, "int32")
        options = {"z_loss": 0.01, "softcap": 3.0, "ignore_index": 1}
        loss = F.contrib.linear_cross_entropy(self.norm(h), weight, label, **options)
        return F.broadcast_mul(h, F.cast(F.expand_dims(loss, axis=-1), self.dtype))


class Experts(HybridBlock):
    """Three experts that each token uses: a choice would turn rounding into other experts. Each
    row has three tokens."""

    def __init__(self):
        super().__init__(prefix="experts_")
        with self.name_scope():
            losses = {"aux_loss": 0.1, "z_loss": 0.1, "balance": "sample"}
            self.moe = nn.MoE(
                2, 3, experts=3, k=3, shared=1, in_units=2, weight_initializer="normal", **losses
            )

    def hybrid_forward(self, F, h):
        return h + F.reshape_like(self.moe(F.reshape(h, shape=(-1, 3, 2))), h)


LAYERS = {
    "Dense": lambda: nn.Dense(WIDTH, in_units=WIDTH, flatten=False, activation="tanh"),
    "LayerNorm": lambda: nn.LayerNorm(in_channels=WIDTH),
    "BatchNorm": lambda: nn.BatchNorm(axis=-1, in_channels=WIDTH),
    "Dropout": lambda: nn.Dropout(0.3),
    "noise": Noise,
    "LSTM": lambda: Cells(rnn.LSTM(2, input_size=2), (3, 2), time_major=True),
    "LSTM of shapes": lambda: ShapedCells(rnn.LSTM(2, input_size=2), (3, 2)),
    "Conv2D": lambda: plane(nn.Conv2D(2, 3, padding=1, in_channels=2)),
    "Embedding": lambda: Lookup(sparse=False),
    "row_sparse": lambda: Lookup(sparse=True),
    "attention": Attention,
    "heads": Heads,
    "decoder": lambda: Cells(decoder_layer(), (3, 2)),
    "MultiHeadAttention": SharedHeads,
    "limited heads": LimitedHeads,
    "classes": Classes,
    "MoE": Experts,
    "nested": nested,
    "QuantizedDense": packed,
}


# --- The network ----------------------------------------------------------------------------------


class Body(HybridBlock):
    """Applies parameters, captured arrays, views or writes, control flow and custom operators on
    the device of its input."""

    def __init__(self, row, dtype):
        super().__init__(prefix="body_")
        self.row = row
        count = 0 if row["captured"] == "nothing" else int(row["count"])
        self.captured = [ORIGINS[row["captured"]](i, dtype) for i in range(count)]
        with self.name_scope():
            kind = row["parameters"]
            self.scale = self.params.get(
                "scale",
                shape=(1, WIDTH),
                init=mx.init.Constant(0.75),
                grad_req="null" if kind == "frozen" else "write",
                lr_mult=0.5 if kind == "multipliers" else 1.0,
                wd_mult=0.5 if kind == "multipliers" else 1.0,
                differentiable=kind != "not differentiable",
            )
            self.fixed = self.params.get_constant("fixed", new.array(numbers(50), ctx=on(0)))
            if kind == "unused":
                self.unused = self.params.get("unused", shape=(2,), init="ones")
            if kind == "attribute":
                self.shift = gluon.Parameter("shift", shape=(1, WIDTH), init="ones")

    def hybrid_forward(self, F, h, scale, fixed, unused=None, shift=None):
        h = F.broadcast_mul(h, scale)
        if shift is not None:
            h = F.broadcast_add(h, shift)
        if self.row["parameters"] == "constant":
            h = F.broadcast_add(h, fixed * 0.1)
        for i, array in enumerate(self.captured):
            if isinstance(array, np.floating):
                h = h * array + 0.1 * i
                continue
            if isinstance(array, np.ndarray):
                array = made(h).array(array, ctx=h.context, dtype=h.dtype)
            array = array.as_in_context(h.context)
            join = (F.broadcast_mul, F.broadcast_add, F.broadcast_maximum)[i % 3]
            h = join(h, array)
            if i % 3 == 1:
                h = h - 0.7
        h = MEMORY[self.row["memory"]](F, h)
        h = FLOW[self.row["flow"]](F, h)
        return CUSTOM[self.row["custom"]](F, h)


class Subject(HybridBlock):
    """The network of a row, whose four stages are on the devices `places`. `as_in_context` moves
    arrays between them if `moves` is True. Otherwise, the caller's placement does."""

    def __init__(self, row, places, moves, dtype="float32", timewise=False, axis=0):
        super().__init__(prefix="net_")
        self.row, self.places, self.moves = row, places, moves
        self.timewise, self.axis = timewise, axis
        deferred = row["parameters"] == "deferred"
        with self.name_scope():
            self.first = nn.Dense(
                WIDTH, in_units=0 if deferred else WIDTH, flatten=False, activation="tanh"
            )
            self.body = Body(row, dtype)
            self.layer = LAYERS[row["layer"]]()
            self.tail = nn.HybridSequential()
            tied = {"tied": self.first.params}.get(row["parameters"])
            self.last = nn.Dense(WIDTH, in_units=WIDTH, flatten=False, params=tied)
            if row["parameters"] == "assigned":
                self.last.weight, self.last.bias = self.first.weight, self.first.bias

    @property
    def stages(self):
        return [self.first, self.body, self.layer, self.last]

    def initialize_on_places(self, init):
        for stage, place in zip(self.stages, self.places):
            if stage is self.last and self.row["parameters"] in TIED:
                continue
            stage.initialize(init, ctx=place)

    def move(self, x, stage):
        return x.as_in_context(self.places[stage]) if self.moves else x

    def read(self, F, inputs):
        """Returns one array computed from inputs in the row's structure."""
        kind = self.row["inputs"]
        if kind == "one":
            return inputs[0]
        if kind == "two":
            return inputs[0] + inputs[1]
        if kind == "whole":
            return F.broadcast_add(inputs[0], inputs[1])
        if kind == "list":
            return inputs[0][0] + inputs[0][1]
        if kind == "dict":
            return inputs[0]["a"] + inputs[0]["b"]
        return inputs[0] if inputs[1] is None else inputs[0] + inputs[1]

    def results(self, F, h, middle):
        if self.moves:
            tied = self.row["parameters"] in TIED
            middle = middle.as_in_context(self.places[0 if tied else 3])
        else:
            # Its gradient would be added to gradients of another device, with different rounding.
            middle = F.BlockGrad(middle)
        return {
            "one": lambda: h,
            "two": lambda: (h, middle),
            "nested": lambda: (h, [middle, (h * 2, middle)]),
            "list": lambda: [h, middle],
            "dict": lambda: {"h": h, "middle": middle},
            "same twice": lambda: (h, h),
            # An op without a gradient, whose result does not depend on rounding
            "with an index": lambda: (h, F.argmax(h * 0, axis=-1), h * 2),
        }[self.row["outputs"]]()

    def hybrid_forward(self, F, *inputs):
        if self.timewise:
            *inputs, state = inputs
        h = self.move(self.read(F, inputs), 0)
        if self.timewise:
            h = F.broadcast_add(h, self.move(state, 0))
        middle = self.body(self.move(self.first(h), 1))
        h = self.tail(self.layer(self.move(middle, 2)))
        if self.timewise:
            carried = F.mean(h, axis=self.axis, keepdims=True) * 0.5
            after = carried if F is mx.sym else carried.as_in_context(state.context)
        h = self.move(h, 3)
        if self.row["parameters"] in TIED and self.moves:
            # The shared weight is on the device of the first stage.
            h = h.as_in_context(self.places[0])
        out = self.results(F, self.last(h), middle)
        return (out, after) if self.timewise else out
