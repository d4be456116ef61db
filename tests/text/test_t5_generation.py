"""Generation with T5, against whole sequences without a cache, and against transformers."""

import itertools

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.contrib._calibrated_weights import _folds
from mpgluon.gluon.model_zoo import text
from mpgluon.gluon.model_zoo.text._sources import padded_length
from support.devices import on

SIZES = dict(vocab=67, units=32, heads=4, head_dim=6, hidden=48, layers=2, deviation=0.5)
NETS = {
    "t5": dict(head_scale=32**-0.5),
    "gated": dict(
        gated=True, activation="gelu_tanh", tied=False, decoder_layers=3, buckets=8, most=12
    ),
}
PROMPTS = [[5, 3, 9, 11, 2, 7, 8, 4, 3, 22, 6, 6], [7, 2], list(range(2, 61)), [1]]
DRAWN = dict(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.3)
PLACES = {
    "halves": {"embed": 0, "encoder": 0, "decoder|head": 1},
    "inside": {
        "embed": 1,
        "encoder": 0,
        r"encoder\.layers\.1": 1,
        "decoder": 0,
        r"decoder\.layers\.1": 1,
        "head": 0,
    },
}


def network(name="t5"):
    mx.random.seed(5)
    net = text.T5(**SIZES, **NETS[name], prefix="net_")
    net.initialize(ctx=on(0))
    return net


def scores_of(net, prompt, tokens):
    """Returns the scores after the first token of the decoder and each of `tokens`."""
    given = nd.array([prompt], dtype="int32", ctx=on(0))
    tokens = nd.array([[net.start_token, *tokens]], dtype="int32", ctx=on(0))
    return net(given, tokens)[0].astype("float64").asnumpy()


def without_cache(net, prompt, count, penalty=1.0):
    tokens = []
    for _ in range(count):
        row = scores_of(net, prompt, tokens)[-1]
        seen = list({net.start_token, *tokens})
        row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
        tokens.append(int(row.argmax()))
    return tokens


@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize("name", sorted(NETS))
def test_tokens_are_those_of_whole_sequences(name, penalty):
    net = network(name)
    expected = [without_cache(net, prompt, 70, penalty) for prompt in PROMPTS]
    options = {"max_new": 70, "stop": (), "repetition_penalty": penalty}
    assert text.generate(net, PROMPTS, **options) == expected
    assert len(set(map(tuple, expected))) == len(PROMPTS)
    for prompt, tokens in zip(PROMPTS, expected):
        assert text.generate(net, [prompt], **options) == [tokens]


@pytest.mark.parametrize("name", sorted(NETS))
def test_scores_of_beams_are_those_of_whole_sequences(name):
    net = network(name)
    options = {"max_new": 7, "num_beams": 4, "return_scores": True, "stop": ()}
    found, scores = text.generate(net, PROMPTS, **options)
    for prompt, new, value in zip(PROMPTS, found, scores):
        rows = scores_of(net, prompt, new)[:-1]
        rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
        assert abs(sum(row[token] for row, token in zip(rows, new)) / 7 - value) < 1e-4
    alone = [text.generate(net, [prompt], **options) for prompt in PROMPTS]
    assert found == [one[0][0] for one in alone]
    assert np.allclose(scores, [one[1][0] for one in alone], atol=1e-4)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_a_cache_of_several_rows_gives_the_scores_of_the_whole_sequence(dtype):
    net = network("gated")
    net.cast(dtype)
    prompt, tokens = PROMPTS[0], [0, 5, 7, 7, 1, 9, 30, 2, 4, 8, 8, 3]
    wanted = scores_of(net, prompt, tokens[1:])
    cache = net.make_cache(2, 20, len(prompt) + 3, shared=2)
    memory = net.encoder(net.embed(nd.array([prompt], dtype="int32", ctx=on(0))))
    for layer, arrays in zip(net.decoder.layers, cache):
        keys, values = layer.memory.keys_and_values(nd, memory)
        arrays[2][:, : len(prompt)], arrays[3][:, : len(prompt)] = keys, values
        arrays[2][:, len(prompt) :] = arrays[3][:, len(prompt) :] = np.nan
        arrays[4][:] = len(prompt)
    # The second sequence has earlier rows in use than the first one.
    found, at = [[], []], [0, 0]
    for counts in ((3, 5), (1, 1), (6, 2), (2, 4)):
        rows = max(counts)
        given = [(tokens[a : a + c] + [0] * rows)[:rows] for a, c in zip(at, counts)]
        lengths = nd.array(at, dtype="int32", ctx=on(0))
        given = nd.array(given, dtype="int32", ctx=on(0))
        scores = net(None, given, None, lengths, None, cache).astype("float64").asnumpy()
        last = nd.array([c - 1 for c in counts], dtype="int32", ctx=on(0))
        ends = net(None, given, None, lengths, last, cache).astype("float64").asnumpy()
        for i, count in enumerate(counts):
            found[i].extend(scores[i, :count])
            assert np.allclose(ends[i, 0], scores[i, count - 1], atol=1e-5)
            at[i] += count
    limit = {"float64": 1e-13, "float32": 2e-5, "bfloat16": 0.2, "float16": 0.03}[dtype]
    assert at == [12, 12]
    for rows in found:
        assert np.abs(rows - wanted).max() < limit * max(1, np.abs(wanted).max())


@pytest.mark.parametrize("places", sorted(PLACES))
@pytest.mark.parametrize("options", [{}, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("beams", [1, 3])
def test_two_devices_give_the_tokens_of_one(places, options, beams):
    net = network()
    options = {**options, "max_new": 12, "seed": 3}
    if beams > 1:
        options.update(num_beams=beams, return_scores=True)
    expected = text.generate(net, PROMPTS, **options)
    net.place({name: on(i) for name, i in PLACES[places].items()}, verbose=False)
    assert text.generate(net, PROMPTS, **options) == expected
    if "num_beams" not in options:
        for groups in (2, 3):
            assert text.generate(net, PROMPTS, groups=groups, **options) == expected


def test_requests_and_streams_give_the_same_tokens():
    net = network("gated")
    options = {"max_new": 20, "stop": [9, [3, 4]], **DRAWN}
    expected = text.generate(net, PROMPTS, seed=[3, 4, 5, 6], **options)
    for i, prompt in enumerate(PROMPTS):
        assert text.generate(net, [prompt], seed=3 + i, **options) == [expected[i]]
    streamed = [[] for _ in PROMPTS]
    for request, token in text.generate(net, PROMPTS, seed=3, stream=True, **options):
        streamed[request].append(token)
    assert streamed == expected


def test_tokens_of_the_config_begin_and_end_a_text():
    config = {
        "model_type": "t5",
        "vocab_size": 30,
        "d_model": 16,
        "d_kv": 4,
        "d_ff": 24,
        "num_layers": 1,
        "num_heads": 2,
        "pad_token_id": 3,
        "eos_token_id": [4, 6],
    }
    assert text.from_config(config).start_token == 3
    net = text.from_config({**config, "decoder_start_token_id": 5})
    assert (net.start_token, list(net.end_tokens)) == (5, [4, 6])
    mx.random.seed(2)
    net.initialize(mx.init.Normal(0.8), ctx=on(0))
    whole = text.generate(net, [[7, 8, 9]], max_new=60, stop=(), temperature=2.0, seed=1)[0]
    assert whole != without_cache(net, [7, 8, 9], 60)
    first = min(whole.index(token) for token in (4, 6) if token in whole)
    ended = text.generate(net, [[7, 8, 9]], max_new=60, temperature=2.0, seed=1)[0]
    assert ended == whole[:first]


class Words:
    """A tokenizer of words, which ends texts with token 1, as T5's does."""

    def encode(self, given):
        return [*(int(word) for word in given.split()), 1]

    def decode(self, tokens, skip_special_tokens=True):
        return "".join(f"{token} " for token in tokens)


def test_texts_are_encoded_and_strings_stop_them():
    net = network()
    tokens = text.generate(net, [[5, 3, 9, 1]], max_new=12)[0]
    answer = text.generate(net, "5 3 9", max_new=12, tokenizer=Words())
    assert answer == Words().decode(tokens)
    parts = []
    stopped = text.generate(
        net,
        "5 3 9",
        max_new=12,
        tokenizer=Words(),
        stop=f"{tokens[4]} ",
        stream=lambda request, part: parts.append(part),
    )
    assert stopped == "".join(parts) == Words().decode(tokens[: tokens.index(tokens[4])])


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_packed_weights_give_the_tokens_of_whole_sequences(quantize):
    net = network("gated")
    mx.contrib.quantization.quantize_weights(net, format=quantize, group=2)
    prompt = PROMPTS[0]
    expected = without_cache(net, prompt, 10)
    assert text.generate(net, [prompt], max_new=10, stop=()) == [expected]


def test_values_of_attention_to_the_encoder_are_scaled_for_packing():
    """AWQ scales the values of all attention."""
    net = network()
    folded = {layer for fold in _folds(net) for layer in fold.layers}
    assert folded >= {layer.memory.proj for layer in net.decoder.layers}


def test_prompts_of_new_lengths_compile_few_programs():
    assert [padded_length(i) for i in (1, 8, 9, 12, 13, 17, 24, 25, 33, 49)] == [
        8, 8, 12, 12, 16, 24, 24, 32, 48, 64
    ]  # fmt: skip
    net = network()
    for length in range(1, 41):
        text.generate(net, [[3] * length], max_new=3)
    programs = {p.prefix: p for p in vars(net)["_generation"].by_options.values()}
    assert len(programs["encode_"].compiled()) == 6  # 8 to 48 tokens
    assert len(programs["step_"].compiled()) == len(programs["prompt_"].compiled()) == 1


def test_options_that_need_a_decoder_raise():
    net = network()
    for draft in (2, net):
        with pytest.raises(TypeError, match="draft needs a Decoder, but net is a T5; omit draft"):
            text.generate(net, PROMPTS, draft=draft)
    decoder = text.Decoder(67, units=8, layers=1, heads=2, hidden=8, rotary={})
    decoder.initialize(ctx=on(0))
    with pytest.raises(TypeError, match="draft must be a Decoder of model_zoo.text, got a T5"):
        text.generate(decoder, PROMPTS, draft=net)
    with pytest.raises(ValueError, match="prompt 1 contains 67"):
        text.generate(net, [[1], [67]])
    split = network()
    mx.parallel.shard(split, {r"decoder\.layers\.\d+\.memory": "heads"}, [on(0), on(1)])
    with pytest.raises(TypeError, match=r"decoder\.layers\.0 is split .* place whole layers"):
        text.generate(split, PROMPTS)
    apart = network()
    apart.place({r"decoder\.layers\.1\.memory": on(1), "decoder": on(0)}, verbose=False)
    with pytest.raises(ValueError, match=r"decoder\.layers\.1 and the keys .* different devices"):
        text.generate(apart, PROMPTS)


def test_split_feed_forward_networks_give_the_tokens_of_whole_ones():
    net = network("gated")
    expected = text.generate(net, PROMPTS, max_new=8)
    mx.parallel.shard(net, {r".*mlp\.(gate|up)": "column", r".*mlp\.down": "row"}, [on(0), on(1)])
    assert text.generate(net, PROMPTS, max_new=8) == expected


KINDS = {
    "t5": {},
    "t5 1.1": {
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 20,
    },
}


def pair(folder, kind, seed=0):
    """Returns the same network of transformers and of this package."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed)
    config = transformers.T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        **KINDS[kind],
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for param in model.parameters():
            if param.dim() > 1:
                param.copy_(torch.randn(param.shape) * param.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return torch, model, text.from_pretrained(str(folder))


def padded(torch, prompts):
    """Returns the arguments of transformers' `generate` for prompts of different lengths."""
    width = max(map(len, prompts))
    rows = torch.tensor([[*p, *[0] * (width - len(p))] for p in prompts])
    mask = torch.tensor([[1] * len(p) + [0] * (width - len(p)) for p in prompts])
    return {"input_ids": rows, "attention_mask": mask, "pad_token_id": 0}


def before_end(row, ends=(1,)):
    """Returns the tokens of a result of transformers between the first token and the end."""
    row = row.tolist()[1:]
    return row[: min([row.index(end) for end in ends if end in row], default=len(row))]


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("seed", range(3))
def test_transformers_generates_the_same_tokens(tmp_path, kind, seed):
    torch, model, net = pair(tmp_path, kind, seed)
    for options in ({}, {"repetition_penalty": 1.6}):
        with torch.no_grad():
            expected = model.generate(
                **padded(torch, PROMPTS), max_new_tokens=32, do_sample=False, **options
            )
        found = text.generate(net, PROMPTS, max_new=32, **options)
        assert found == [before_end(row) for row in expected]
        # The same without the end, so that there are 32 tokens.
        with torch.no_grad():
            expected = model.generate(
                **padded(torch, PROMPTS),
                max_new_tokens=32,
                do_sample=False,
                eos_token_id=-1,
                **options,
            )
        found = text.generate(net, PROMPTS, max_new=32, stop=(), **options)
        assert found == [row.tolist()[1:] for row in expected]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_transformers_finds_the_same_beams(tmp_path, kind):
    torch, model, net = pair(tmp_path, kind)
    (likely,) = text.generate(net, PROMPTS[:1], max_new=12, num_beams=4, stop=())
    ended = 0
    for beams, penalty, early in itertools.product((2, 5), (0.0, 1.0, 2.0), (False, True, "never")):
        stop, repeated = [1, likely[5]], 1.4 if beams == 2 else 1.0
        with torch.no_grad():
            expected = model.generate(
                **padded(torch, PROMPTS),
                max_new_tokens=12,
                do_sample=False,
                num_beams=beams,
                length_penalty=penalty,
                repetition_penalty=repeated,
                early_stopping=early,
                eos_token_id=stop,
                output_scores=True,
                return_dict_in_generate=True,
            )
        found, scores = text.generate(
            net,
            PROMPTS,
            max_new=12,
            num_beams=beams,
            length_penalty=penalty,
            repetition_penalty=repeated,
            early_stopping=early,
            stop=stop,
            return_scores=True,
        )
        case = (beams, penalty, early)
        assert found == [before_end(row, stop) for row in expected.sequences], case
        assert np.allclose(scores, expected.sequences_scores.numpy(), atol=1e-4), case
        ended += sum(len(one) < 12 for one in found)
    assert ended > 5
