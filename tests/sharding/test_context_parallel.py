"""Context parallelism: sequences that are cut along time compute the same as on one device."""

import gc

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import MXNetError, autograd, gluon, nd, parallel
from mpgluon.gluon import nn
from mpgluon.gluon.model_zoo import text
from support.devices import on
from support.meshes import ADAM, build, check, inputs, mesh_of, trained

WAYS = pytest.mark.parametrize("context", ["gather", "ulysses", "ring"])
TIME = (None, "context")


class Heads(gluon.HybridBlock):
    """Rotary embeddings and attention without products, so that bits do not depend on the number of
    rows. `given` is the argument of attention, or of rotary, that the second input is."""

    def __init__(self, given=None, layout="bthd", **options):
        super().__init__(prefix="net_")
        self.given, self.options = given, {"causal": True, **options}
        self.layout = {"layout": layout}

    def hybrid_forward(self, F, x, array=None):
        q = F.reshape(x, (0, 0, 8, -1))
        if self.layout["layout"] == "bhtd":
            q = F.transpose(q, axes=(0, 2, 1, 3))
        k = F.slice_axis(q, axis=3 - self.time, begin=0, end=4)
        positions = (array,) if self.given == "positions" else ()
        k, q = (F.contrib.rotary(y, *positions, **self.layout) for y in (k, q))
        given = {} if array is None or positions else {self.given: array}
        return F.contrib.attention(q, k, F.tanh(k), **given, **self.options, **self.layout)

    @property
    def time(self):
        return 1 if self.layout["layout"] == "bthd" else 2


def attention(**options):
    """Returns a function that creates an attention layer with rotary embeddings."""
    options = {"heads": 8, "kv_heads": 4, "rotary": True, **options}
    return lambda: nn.MultiHeadAttention(32, in_units=32, use_bias=True, prefix="net_", **options)


def outputs_and_gradients(net, batch):
    """Returns the arrays of one step, without parameters: the result and the input's gradient."""
    mx.random.seed(11)
    x = batch[0].copy()
    x.attach_grad()
    with autograd.record():
        out = net(x, *batch[1:])
        loss = out * nd.arange(out.size, ctx=on(0), dtype=out.dtype).reshape(out.shape) / out.size
    loss.backward()
    return [array.astype("float64").asnumpy() for array in (out, x.grad)]


def compare_bits(make, axes, plan, batch, context, dtype="float64"):
    """Compares a network without parameters with one device. Returns the partitioned network. The
    bits of results are compared, except with rings, which merge sums over parts of the keys."""
    net = build(make, axes, plan, context=context, dtype=dtype)
    results = [outputs_and_gradients(one, batch) for one in (net, build(make, dtype=dtype))]
    check(*({"gradient": gradient} for _, gradient in results), dtype)
    if context == "ring":
        check(*({"result": result} for result, _ in results), dtype)
    else:
        np.testing.assert_array_equal(results[0][0], results[1][0])
    return net


def compare(make, axes, plan, batches, context, dtype="float64", steps=2, **flags):
    """Trains on a mesh and on one device. Returns the partitioned network."""
    net = build(make, axes, plan, context=context, dtype=dtype, **flags)
    found = trained(net, batches, steps=steps)
    wanted = trained(build(make, dtype=dtype), batches, steps=steps)
    check(found, wanted, dtype)
    return net


def moves(net):
    """Returns the ops whose results are moved by each kind of transfer, except parameters."""
    found = {}
    for move in net.compiled().shardings().transfers:
        if move["op"] != "input":
            found.setdefault(move["kind"], []).append(move["op"].strip("_"))
    return found


def divided(net, op):
    """Returns the cuts of the results of an op."""
    return [row["cuts"] for row in net.compiled().shardings() if row["op"] == op]


# --- Layers ---------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("devices", [2, 3, 4, [3, 1]])
@pytest.mark.parametrize("length", [16, 23])
def test_causal_attention_equals_one_device(devices, length, context):
    net = compare(
        attention(), {"context": devices}, {"data0": TIME}, [inputs((2, length, 32))], context
    )
    cuts = divided(net, "_head_attention")
    assert cuts[0] == ({2: ["context"]} if context == "ulysses" else {1: ["context"]})
    gathered = ["contrib_rotary", "Reshape"]
    if context == "gather":
        assert moves(net) == {"gather": [*gathered, "FullyConnected"]}
    elif context == "ring":
        assert moves(net) == {"ring": gathered, "gather": ["FullyConnected"]}
    else:
        assert moves(net) == {
            "all_to_all": ["contrib_rotary", *gathered, "head_attention"],
            "gather": ["FullyConnected"],
        }


OPTIONS = [
    {"causal": False},
    {"window": 5},
    {"window": 3, "causal": False},
    {"window": 30, "causal": False},
    {"softcap": 2.0},
    {"kv_heads": 8, "rotary": {"style": "pairs", "dims": 2, "scaling": "linear", "factor": 3.0}},
    {"qk_norm": True},
]


@WAYS
@pytest.mark.parametrize("layout", ["bthd", "bhtd"])
@pytest.mark.parametrize("options", [{}, *OPTIONS[:5]], ids=str)
def test_rows_keep_bits(options, layout, context):
    for axes, length in (({"context": 2}, 13), ({"context": 4}, 16), ({"context": [1, 2]}, 131)):
        net = compare_bits(
            lambda: Heads(layout=layout, **options),
            axes,
            {"data0": TIME},
            inputs((2, length, 32)),
            context,
        )
        assert divided(net, "_head_attention")


@WAYS
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_of_attention(options, context):
    axes = {"context": 3}
    compare(attention(**options), axes, {"data0": TIME}, [inputs((2, 17, 32))], context)


@WAYS
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("length", [19, 131])
def test_dtypes_keep_bits(dtype, length, context):
    axes, batch = {"context": 2}, inputs((2, length, 32), dtype=dtype)
    compare_bits(Heads, axes, {"data0": TIME}, batch, context, dtype)
    compare(attention(), axes, {"data0": TIME}, [batch], context, dtype, steps=1)


def given_arrays(length):
    random = np.random.RandomState(2)
    seen = random.rand(2, 1, length, length) < 0.6
    packed = np.sort(random.randint(0, 3, (2, length)), axis=1)
    return {
        "each": ("mask", nd.array(seen, dtype="bool")),
        "shared": ("mask", nd.array(seen[0, 0], dtype="bool")),
        "added": ("mask", nd.array(random.uniform(-2, 2, (8, length, 1)), dtype="float64")),
        "keys": ("mask", nd.array(seen[:, :, :1], dtype="bool")),
        "lengths": ("lengths", nd.array([length // 3, length - 1], dtype="int32")),
        "segments": ("segments", nd.array(packed, dtype="int32")),
        "positions": ("positions", nd.array(packed, dtype="int32")),
        "shared positions": ("positions", nd.array(packed[0], dtype="int32")),
    }


@WAYS
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("given", given_arrays(3))
def test_masks_lengths_segments_and_positions(given, causal, context):
    for length, axes in ((13, {"context": 2}), (16, {"context": 4})):
        kind, array = given_arrays(length)[given]
        batch = [*inputs((2, length, 32)), array.as_in_context(on(0))]
        net = compare_bits(
            lambda: Heads(kind, causal=causal), axes, {"data0": TIME}, batch, context
        )
        assert divided(net, "_head_attention")


@WAYS
def test_segments_that_are_cut_along_time(context):
    kind, array = given_arrays(13)["segments"]
    batch = [*inputs((2, 13, 32)), array.as_in_context(on(0))]
    plan = {"data0": TIME, "data1": TIME}
    compare_bits(lambda: Heads(kind), {"context": 2}, plan, batch, context)


@WAYS
@pytest.mark.parametrize("dropout", [0.3, 0.5])
def test_dropout_draws_the_numbers_of_one_device(dropout, context):
    def make(layout="bthd"):
        net = nn.HybridSequential(prefix="net_")
        net.add(Heads(p=dropout, layout=layout), nn.Dropout(0.2))
        return net

    for axes, length in (({"context": 2}, 13), ({"context": 4}, 16), ({"context": [1, 2]}, 11)):
        for layout in ("bthd", "bhtd"):
            net = compare_bits(
                lambda: make(layout), axes, {"data0": TIME}, inputs((2, length, 32)), context
            )
            assert divided(net, "_dropout_head_attention")
            assert divided(net, "Dropout")
    compare(attention(dropout=dropout), axes, {"data0": TIME}, [inputs((2, 13, 32))], context)


@pytest.mark.parametrize("axis", [0, 2])
def test_dropout_of_attention_along_batch_and_heads(axis):
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, q, k):
            return F.contrib.attention(q, k, k, causal=True, p=0.4)

    plan = {f"data{i}": (*[None] * axis, "model") for i in range(2)}
    q, k = inputs((4, 7, 4, 8), (4, 9, 4, 8))
    net = build(Net, {"model": 2}, plan)
    results = []
    for one in (build(Net), net):
        mx.random.seed(5)
        with autograd.train_mode():
            results.append(one(q, k).asnumpy())
    np.testing.assert_array_equal(*results)
    assert divided(net, "_dropout_head_attention")[0] == {axis: ["model"]}


class Cross(gluon.HybridBlock):
    """Attention to other keys."""

    def __init__(self, **options):
        super().__init__(prefix="net_")
        self.options = options

    def hybrid_forward(self, F, query, key):
        return F.contrib.attention(query, key, key, **self.options)


@WAYS
@pytest.mark.parametrize("layout", ["bthd", "bhtd"])
@pytest.mark.parametrize("keys", [7, 13, 20])
@pytest.mark.parametrize(
    "options", [{"causal": True}, {"causal": True, "window": 4}, {"window": 9}]
)
def test_attention_to_another_length(layout, keys, options, context):
    def shape(time, heads):
        return (2, time, heads, 8) if layout == "bthd" else (2, heads, time, 8)

    batch = inputs(shape(13, 6), shape(keys, 3))
    time = (None, "context") if layout == "bthd" else (None, None, "context")
    results = []
    for mesh in ((), ({"context": 3}, {"data0": time})):
        net = build(lambda: Cross(layout=layout, **options), *mesh, context=context)
        for array in batch:
            array.attach_grad()
        with autograd.record():
            out = net(*batch)
        out.backward(out * 2)
        results.append([array.asnumpy() for array in (out, *(array.grad for array in batch))])
    if context != "ring":
        np.testing.assert_array_equal(results[1][0], results[0][0])
    for found, wanted in zip(*results):
        np.testing.assert_allclose(found, wanted, atol=1e-12)
    assert divided(net, "_head_attention")


@pytest.mark.parametrize("flags", [{"static_alloc": True}, {"recompute": True}], ids=str)
@WAYS
def test_ways_to_compile(flags, context):
    batches = [inputs((2, 13, 32)), inputs((3, 8, 32))]
    compare(attention(), {"context": 2}, {"data0": TIME}, batches, context, **flags)


@pytest.mark.parametrize(
    "devices, way", [(2, "gather"), (3, "ulysses"), (4, "ulysses"), (5, "gather")]
)
def test_auto_copies_fewer_bytes(devices, way):
    """Eight heads share four key heads, which cannot be divided over five devices."""
    batch, found = inputs((2, 24, 32)), {}
    for context in ("auto", "gather", "ulysses"):
        if context == "ulysses" and devices == 5:
            continue
        net = build(Heads, {"context": devices}, {"data0": TIME}, context=context)
        outputs_and_gradients(net, batch)
        found[context] = sum(
            move["bytes"]
            for move in net.compiled().shardings().transfers
            if move["op"] != "sharded" and move["bytes"] > 0
        )
    assert found["auto"] == found[way] == min(found.values())
    compare_bits(Heads, {"context": devices}, {"data0": TIME}, batch, "auto")


def test_auto_decides_for_each_attention():
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            q = F.reshape(x, (0, 0, 8, -1))
            alike = F.contrib.attention(q, F.sin(q), F.tanh(q), causal=True)
            shared = F.slice_axis(q, axis=2, begin=0, end=2)
            return F.contrib.attention(alike, F.cos(shared), F.relu(shared), causal=True)

    net = compare_bits(Net, {"context": 2}, {"data0": TIME}, inputs((2, 16, 32)), "auto")
    results = divided(net, "_head_attention")[::2]  # without the sums of exponentials
    assert results == [{2: ["context"]}, {1: ["context"]}]


# --- Rings ----------------------------------------------------------------------------------------


def ring_bytes(length=16, devices=4, **options):
    """Returns the bytes that a ring copies for the keys of attention."""
    net = build(lambda: Heads(**options), {"context": devices}, {"data0": TIME}, context="ring")
    net(*inputs((2, length, 32)))
    keys = [move for move in net.compiled().shardings().transfers if move["kind"] == "ring"]
    assert len(keys) == 2
    return keys[0]["bytes"] / (2 * length * 16 * 8)  # in keys of the sequence


def test_ring_skips_parts_that_no_row_sees():
    assert ring_bytes(causal=False) == 3
    assert ring_bytes(causal=True) == 1.5
    assert ring_bytes(causal=True, window=5) == 0.75
    assert ring_bytes(causal=True, window=6) == 1.25
    assert ring_bytes(causal=False, window=5) == 1.5


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("added", [False, True])
def test_ring_with_parts_whose_keys_are_hidden(added, dtype):
    """Some rows see keys of one part only, and row 5 sees none."""
    seen = np.zeros((16, 16), bool)
    seen[:4, 12:] = seen[4:9, 3:6] = seen[9:, 8] = True
    seen[5] = False
    mask = nd.array(np.where(seen, 0, -np.inf) if added else seen, ctx=on(0))
    batch = [*inputs((2, 16, 32), dtype=dtype), mask.astype("float32" if added else "bool")]
    mesh = {"context": 4}, {"data0": TIME}
    net = compare_bits(lambda: Heads("mask", causal=False), *mesh, batch, "ring", dtype)
    out, gradient = outputs_and_gradients(net, batch)
    assert np.isfinite(out).all() and np.isfinite(gradient).all()
    assert not out.reshape(2, 16, -1)[:, 5].any()


def test_ring_with_lengths_that_hide_whole_parts():
    """The first sequence has no key, and the second one has keys in the first two parts."""
    lengths = nd.array([0, 7], dtype="int32", ctx=on(0))
    batch = [*inputs((2, 12, 32)), lengths]
    mesh = {"context": 3}, {"data0": TIME}
    net = compare_bits(lambda: Heads("lengths", causal=False), *mesh, batch, "ring")
    out, gradient = outputs_and_gradients(net, batch)
    assert np.isfinite(gradient).all() and not out[0].any() and out[1].all()


def test_ring_merges_scores_whose_exponentials_overflow():
    batch = [array * 40 for array in inputs((2, 18, 32), dtype="float32")]
    mesh = {"context": 3}, {"data0": TIME}
    compare_bits(lambda: Heads(causal=False), *mesh, batch, "ring", "float32")


@pytest.mark.parametrize("key_heads", [4, 8])
def test_devices_of_a_ring_do_not_hold_all_keys(key_heads):
    """A device needs less memory for a step than the keys and values of the sequence."""
    tokens, width, count = 2048, 64, 8
    whole = 2 * tokens * width * 4
    devices = [on(i) for i in range(count)]
    peaks = {}
    for context in ("gather", "ring"):

        class Net(gluon.HybridBlock):
            def hybrid_forward(self, F, x):
                q = F.reshape(x, (0, 0, key_heads, -1))
                return F.contrib.attention(q, F.tanh(q), F.sin(q), causal=True)

        net = Net()
        mesh = mx.parallel.Mesh({"context": count}, devices)
        mesh.partition(net, {"data0": TIME}, context=context)
        net.hybridize()
        x = nd.random.normal(shape=(1, tokens, width), ctx=on(0))
        x.attach_grad()
        gc.collect()
        nd.waitall()
        before = [mx.context.memory_stats(ctx)["in_use"] for ctx in devices]
        for _ in range(2):
            for ctx in devices:
                mx.context.reset_peak_memory(ctx)
            with autograd.record():
                loss = net(x).mean()
            loss.backward()
            nd.waitall()
        most = [mx.context.memory_stats(ctx)["peak_in_use"] for ctx in devices]
        peaks[context] = max(peak - base for peak, base in list(zip(most, before))[1:])
        del net, loss
    assert peaks["gather"] > whole
    assert peaks["ring"] < whole


# --- Meshes ---------------------------------------------------------------------------------------

HEADS = {
    "(query|key|value).weight": "model",
    "(query|key|value).bias": "model",
    "proj.weight": (None, "model"),
}
MESHES = [
    ({"data": 2, "context": 2}, {"data0": ("data", "context")}),
    ({"model": 2, "context": 2}, {"data0": TIME, **HEADS}),
    ({"context": 2, "model": 2}, {"data0": TIME, **HEADS}),
    ({"shard": 2, "context": 2}, {"data0": ("shard", "context"), ".*weight": "shard"}),
]


@WAYS
@pytest.mark.parametrize("axes, plan", MESHES, ids=lambda value: ",".join(value))
def test_other_axes_of_the_mesh(axes, plan, context):
    make = attention(causal=True)
    net = build(make, axes, plan, context=context)
    batches = [inputs((4, 13, 32))]
    check(trained(net, batches), trained(build(make), batches))
    cuts = divided(net, "_head_attention")[0]
    assert sorted(axis for own in cuts.values() for axis in own) == sorted(axes)


@pytest.mark.parametrize("context", ["gather", "ring"])
def test_time_along_two_axes_of_the_mesh(context):
    axes, plan = {"shard": 2, "context": 2}, {"data0": (None, ("shard", "context"))}
    for length in (16, 20):
        net = compare_bits(Heads, axes, plan, inputs((2, length, 32)), context)
        assert divided(net, "_head_attention")[0] == {1: ["shard", "context"]}


def test_blocks_of_time_are_not_contiguous():
    """Each device has a part of two blocks of the sequence, so that rows have no common offset."""
    plan = {"data0": (None, "context:2")}
    net = build(attention(), {"context": 2}, plan)
    batches = [inputs((2, 16, 32))]
    check(trained(net, batches), trained(build(attention()), batches))
    assert not divided(net, "_head_attention")
    assert not divided(net, "_contrib_rotary")
    assert divided(net, "FullyConnected")


@WAYS
def test_short_sequences_run_on_the_first_device(context):
    batches = [inputs((2, 3, 32))]
    net = build(attention(), {"context": 4}, {"data0": TIME}, context=context)
    check(trained(net, batches), trained(build(attention()), batches))
    assert len(net.compiled().shardings()) == 0


# --- Networks -------------------------------------------------------------------------------------

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 40,
    "max_position_embeddings": 64,
}
CONFIGS = {
    "llama": {**SIZES, "num_key_value_heads": 4},
    "mistral": {**SIZES, "num_key_value_heads": 4, "sliding_window": 6},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 40, "n_positions": 64},
    "bert": {**SIZES, "architectures": ["BertForMaskedLM"]},
}


class Loss(gluon.HybridBlock):
    """The loss of each token."""

    def __init__(self, kind):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.net = text.from_config({"model_type": kind, **CONFIGS[kind]})
            self.loss = gluon.loss.SoftmaxCrossEntropyLoss(axis=-1, batch_axis=None)

    def hybrid_forward(self, F, tokens, labels):
        return self.loss(self.net(tokens), labels)


def losses(kind, mesh=(), **options):
    """Trains a language model. Returns the network and the losses of all steps."""
    net = build(lambda: Loss(kind), *mesh, dtype="float32", **options)
    trainer = gluon.Trainer(net.collect_params(), *ADAM)
    tokens, labels = inputs((4, 13), (4, 13), high=40)
    mx.random.seed(4)
    found = []
    for _ in range(4):
        with autograd.record():
            loss = net(tokens, labels)
        loss.backward()
        trainer.step(4)
        found.append(loss.asnumpy())
    return net, found


@WAYS
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("kind", CONFIGS)
def test_language_models_train_cut_along_time(kind, devices, context):
    mesh = {"context": devices}, {"data0": TIME, "data1": TIME}
    net, found = losses(kind, mesh, context=context)
    _, wanted = losses(kind)
    for one, two in zip(found, wanted):
        np.testing.assert_allclose(one, two, rtol=2e-3, atol=2e-4)
    # Apart from attention, and the losses of all tokens at the end, every value stays cut.
    kinds = moves(net)
    gathered = [op for op in kinds.pop("gather") if op not in ("contrib_rotary", "Reshape")]
    assert len(gathered) == 1
    kinds.pop("copy", None)  # of a reshaped bias
    assert set(kinds) == {"gather": set(), "ulysses": {"all_to_all"}, "ring": {"ring"}}[context]
    assert all(1 in cuts for cuts in divided(net, "FullyConnected"))


@WAYS
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_train_step_with_micro_batches(kind, micro_batches, context):
    rates = ("attn_pdrop", "embd_pdrop", "resid_pdrop") if kind == "gpt2" else ()
    config = {**CONFIGS[kind], **dict.fromkeys(rates, 0)}
    results = []
    for mesh in ((), ({"context": 2}, {"data0": TIME})):
        net = build(
            lambda: text.from_config({"model_type": kind, **config}), *mesh, context=context
        )
        trainer = gluon.Trainer(net.collect_params(), *ADAM)
        pipeline = parallel.Pipeline(micro_batches)
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        step = parallel.TrainStep(net, loss, trainer, pipeline)
        batch = inputs((4, 13), (4, 13), high=40)
        results.append(np.array([step(*batch).asnumpy() for _ in range(3)]))
    np.testing.assert_allclose(*results, rtol=1e-6)
    rows = [row for row in step.compiled().shardings() if row["op"] == "_head_attention"]
    assert rows[0]["cuts"] == ({2: ["context"]} if context == "ulysses" else {1: ["context"]})


@WAYS
def test_devices_hold_their_part_of_the_sequence(context):
    """Four devices need less than half of the memory of one. With keys and values that are kept
    for the backward pass, they would need more."""
    tokens, width, count = 1024, 64, 4
    most = []
    for devices in ([on(0)], [on(i) for i in range(count)]):
        net = nn.HybridSequential()
        for _ in range(6):
            net.add(nn.MultiHeadAttention(width, 4, in_units=width))
        net.initialize(ctx=on(0))
        if len(devices) > 1:
            mesh = mx.parallel.Mesh({"context": count}, devices)
            mesh.partition(net, {"data0": TIME}, context=context)
        net.hybridize()
        x = nd.random.normal(shape=(1, tokens, width), ctx=on(0))
        gc.collect()
        nd.waitall()
        before = [mx.context.memory_stats(ctx)["in_use"] for ctx in devices]
        for _ in range(2):
            for ctx in devices:
                mx.context.reset_peak_memory(ctx)
            with autograd.record():
                loss = net(x).mean()
            loss.backward()
            nd.waitall()
        peaks = [mx.context.memory_stats(ctx)["peak_in_use"] for ctx in devices]
        most.append([peak - base for peak, base in zip(peaks, before)])
        del net, loss
    ((whole,), (home, *others)) = most
    assert max(others) < 0.48 * whole
    assert home < 0.75 * whole


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["rings", "none", None])
def test_unknown_ways_raise(context):
    net = attention()()
    with pytest.raises(ValueError, match="context must be 'auto', 'gather', 'ulysses' or 'ring'"):
        mesh_of({"context": 2}).partition(net, {"data0": TIME}, context=context)


@pytest.mark.parametrize("heads", [1, 2])
def test_ulysses_needs_key_heads(heads):
    make = attention(kv_heads=heads)
    net = build(make, {"context": 4}, {"data0": TIME}, context="ulysses")
    message = f"divide its {heads} key heads over .* 'context'; use .*context='gather'"
    with pytest.raises(MXNetError, match=message):
        net(*inputs((2, 16, 32)))
    compare(make, {"context": 4}, {"data0": TIME}, [inputs((2, 16, 32))], "gather")


@pytest.mark.parametrize("options", [{"partition": "exact"}, {"sums": "tree"}], ids=str)
def test_ring_refuses_options_that_fix_bits(options):
    ((name, value),) = options.items()
    message = f"context='ring' is not possible with {name}='{value}', because .* context='auto'"
    with pytest.raises(ValueError, match=message):
        mesh_of({"context": 2}).partition(attention()(), context="ring", **options)


def test_ring_refuses_exact_programs():
    net = build(Heads, {"context": 2}, {"data0": TIME}, context="ring", exact=True)
    with pytest.raises(MXNetError, match="exact=True: .*merges sums over parts of the keys"):
        net(*inputs((2, 16, 32)))


def test_ring_needs_a_key_for_each_device():
    batch = inputs((2, 13, 6, 8), (2, 2, 3, 8))
    net = build(Cross, {"context": 3}, {"data0": TIME}, context="ring")
    message = "cannot divide its 2 keys over 3 devices like its 13 queries; .*context='gather'"
    with pytest.raises(MXNetError, match=message):
        net(*batch)


@pytest.mark.parametrize("context", ["gather", "ulysses"])
def test_exact_partitions_refuse_gathers_in_training(context):
    """The gradients of gathered keys and values add up over the devices."""
    batch = inputs((2, 16, 32))
    net = build(Heads, {"context": 2}, {"data0": TIME}, "exact", context=context)
    np.testing.assert_array_equal(net(*batch).asnumpy(), build(Heads)(*batch).asnumpy())
    if context == "ulysses":
        for found, wanted in zip(*(outputs_and_gradients(n, batch) for n in (net, build(Heads)))):
            np.testing.assert_array_equal(found, wanted)
        return
    with pytest.raises(MXNetError, match="partition='exact': .*has a gradient that adds up"):
        outputs_and_gradients(net, batch)
