"""Decoders on packed rows, padded rows, and inputs that they refuse."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon.model_zoo import text

SIZES = {"vocab": 32, "units": 16, "layers": 4, "heads": 4, "hidden": 24}
NETS = {
    "llama": {"kv_heads": 2, "rotary": {}},
    "gemma": {
        "rotary": {},
        "tied": True,
        "window": [3, 0, 3, 0],
        "softcap": 5.0,
        "embed_scale": 4.0,
        "sandwich": True,
    },
    "gpt2": {"positions": 12, "norm": "layer", "gated": False, "attention_bias": True},
    "experts": {"rotary": {}, "experts": {"hidden": 12, "experts": 4, "k": 2}},
}
HALVES = {
    r"embed|positions|layers\.[01]": mx.cpu(0),
    r"layers\.[23]|norm|head": mx.cpu(1),
}
RNG = np.random.RandomState(0)
# Rows of 20 tokens, more than GPT-2 has positions
DOCUMENTS = [RNG.randint(1, 32, size).tolist() for size in (11, 9, 12, 5, 2, 7, 7, 10, 3, 4)]


def network(name, place=None):
    mx.random.seed(3)
    net = text.Decoder(**SIZES, **NETS[name], deviation=0.3, prefix="net_")
    if place is not None:
        net.place(place, verbose=False)
    net.initialize()
    return net


def packed():
    """Returns tokens, labels, segments and positions (4, 20)."""
    rows = gluon.data.PackedTokens(DOCUMENTS, length=20)
    assert len(rows) == 4
    return [nd.array(np.stack(part), dtype="int32") for part in zip(*rows)]


@pytest.mark.parametrize("way", ["eager", "hybrid", "devices", "hybrid devices", "pipeline"])
@pytest.mark.parametrize("name", NETS)
def test_packed_rows_have_the_scores_of_separate_documents(name, way):
    net = network(name, None if way in ("eager", "hybrid") else HALVES)
    if way == "pipeline":
        net.hybridize(pipeline=mx.parallel.Pipeline(2))
    else:
        net.hybridize(way.startswith("hybrid"))
    tokens, _, segments, positions = packed()
    scores = net(tokens, None, None, None, segments, positions).asnumpy()
    alone, checked = network(name), 0
    for row, numbers, found in zip(tokens.asnumpy(), segments.asnumpy(), scores):
        for number in range(1, numbers.max() + 1):
            one = row[numbers == number]
            want = alone(nd.array(one[None], dtype="int32")).asnumpy()[0]
            np.testing.assert_allclose(found[numbers == number], want, rtol=1e-4, atol=1e-5)
            checked += len(one)
    assert checked == sum(map(len, DOCUMENTS))


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
@pytest.mark.parametrize("name", NETS)
def test_two_devices_train_on_packed_rows_with_the_bits_of_one(name, schedule):
    tokens, labels, segments, positions = packed()
    known = (labels != -100).expand_dims(2).astype("float32")
    results = []
    for place in (None, HALVES):
        net = network(name, place)
        trainer = gluon.Trainer(net.collect_params(), "adam")
        loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
        pipeline = mx.parallel.Pipeline(2, schedule)
        step = mx.parallel.TrainStep(net, loss_of, trainer, pipeline)
        inputs = [tokens, None, None, None, segments, positions]
        losses = [step(inputs, [nd.maximum(labels, 0), known]).asnumpy() for _ in range(3)]
        assert losses[0].mean() > losses[-1].mean()
        results.append(losses + [p.reduced().asnumpy() for p in net.collect_params().values()])
    for one, two in zip(*results):
        assert (one == two).all()


def test_split_heads_get_segments_and_positions():
    net = network("llama")
    tokens, _, segments, positions = packed()
    inputs = tokens, None, None, None, segments, positions
    want = net(*inputs).asnumpy()
    mx.parallel.shard(net, {r"layers\.\d+\.attention": "heads"}, [mx.cpu(0), mx.cpu(1)])
    for hybrid in (False, True):
        net.hybridize(hybrid)
        np.testing.assert_allclose(net(*inputs).asnumpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hybrid", [False, True])
def test_segments_that_cannot_be_used_raise_errors(hybrid):
    net, (tokens, _, segments, positions) = network("gpt2"), packed()
    net.hybridize(hybrid)
    with pytest.raises(ValueError, match="segments need positions, because positions have an emb"):
        net(tokens, None, None, None, segments)
    for name, inputs in (
        ("segments", (segments[:, 1:], positions)),
        ("positions", (segments, positions[0])),
        ("segments", (segments[:1], positions)),
    ):
        with pytest.raises(ValueError, match=rf"Decoder: {name} must be \(batch, time\), as the"):
            net(tokens, None, None, None, *inputs)
    with pytest.raises(ValueError, match="segments must be .* not a str"):
        net(tokens, None, None, None, "segments", positions)
    lengths = nd.zeros((4,), dtype="int32")
    for inputs in ((segments,), (None, positions)):
        with pytest.raises(ValueError, match="a cache needs no segments and positions"):
            net(tokens, lengths, None, net.make_cache(4, 12), *inputs)


@pytest.mark.parametrize("hybrid", [False, True])
def test_masks_as_other_inputs_raise_errors_that_say_how_to_mask(hybrid):
    net, tokens = network("gpt2"), nd.ones((2, 5), dtype="int32")
    mask = nd.ones((2, 5))
    net.hybridize(hybrid)
    advice = r"; padding at the end.* call net\(tokens, None, None, None, segments, pos"
    for given in (mask, "mask", 3):
        with pytest.raises(ValueError, match=rf"lengths, the second input, need a cache.*{advice}"):
            net(tokens, given)
        with pytest.raises(ValueError, match=rf"last must be \(batch,\), not .*{advice}"):
            net(tokens, None, given)
    last = nd.array([1, 4])
    want = net(tokens).asnumpy()[[0, 1], [1, 4]]
    np.testing.assert_allclose(net(tokens, None, last).asnumpy()[:, 0], want, rtol=1e-5)


def test_train_step_refuses_a_mask_as_the_second_input():
    net, tokens = network("llama"), nd.ones((2, 5), dtype="int32")
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    step = mx.parallel.TrainStep(net, loss_of, trainer, mx.parallel.Pipeline(2))
    with pytest.raises(ValueError, match="lengths, the second input, .*mask the loss instead"):
        step([tokens, nd.ones((2, 5))], tokens)


def test_t5_refuses_lengths_without_a_cache():
    net = text.T5(32, units=16, heads=4, head_dim=4, hidden=24, layers=1)
    net.initialize()
    tokens = nd.ones((2, 5), dtype="int32")
    with pytest.raises(
        ValueError, match=r"lengths, the fourth.* net\(tokens, decoder_tokens, mask"
    ):
        net(tokens, tokens, None, nd.ones((2, 5)))


def other_network(kind):
    sizes = {"units": 16, "heads": 4, "hidden": 24, "layers": 1}
    if kind == "t5":
        net = text.T5(32, head_dim=4, **sizes)
    else:
        net = text.Encoder(**sizes, embed={"vocab": 32, "length": 12, **kind})
    net.initialize()
    return net


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "t5", {"types": 2}, {"padding": 1}])
def test_tokens_of_other_shapes_raise_an_error(kind, hybrid):
    net = network(kind) if kind in ("llama", "gpt2") else other_network(kind)
    net.hybridize(hybrid)
    known = nd.ones((2, 3), dtype="int32")
    for shape in ((3,), (2, 3, 1), (2, 0), (0, 3), ()):
        tokens = nd.zeros(shape, dtype="int32")
        with pytest.raises(ValueError, match=r": tokens must be \(batch, time\), not ") as caught:
            net(*([tokens, known] if kind == "t5" else [tokens]))
        assert str(shape) in str(caught.value)
        assert ("expand_dims(0)" in str(caught.value)) == (len(shape) == 1)
        if kind == "t5":
            with pytest.raises(ValueError, match=r"T5: decoder_tokens must be \(batch, time"):
                net(known, tokens)
    assert net(known, *([known] if kind == "t5" else [])).shape[:2] == (2, 3)


@pytest.mark.parametrize("kind", ["llama", "t5", {"types": 2}])
def test_named_inputs_raise_an_error_that_says_how_to_call(kind):
    net, tokens = network(kind) if kind == "llama" else other_network(kind), nd.ones((2, 3))
    usage = {"llama": "net(tokens)", "t5": "net(tokens, decoder_tokens, mask)"}
    usage = usage.get(str(kind), "net(tokens, types, mask)")
    for named in ({"input_ids": tokens}, {"attention_mask": tokens}, {"labels": tokens}):
        for given in ((), (tokens,)):
            with pytest.raises(TypeError) as caught:
                net(*given, **named)
            error, (name,) = str(caught.value), named
            assert f"inputs have no names, got {name}; call {usage}" in error
            masks = name == "attention_mask" and kind == "llama"
            assert ("None, None, None, segments, positions)" in error) == masks
            assert ("SoftmaxCrossEntropyLoss()(scores, labels)" in error) == (name == "labels")
