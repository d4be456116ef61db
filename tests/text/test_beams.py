"""Beam search, and the options of draws, against transformers and against their definitions."""

import itertools
from collections import Counter

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.gluon.model_zoo import text
from mpgluon.gluon.model_zoo.text._beam_scores import limited, penalized
from support.devices import on
from support.networks import DECODERS, DRAWN, PROMPTS, decoder, llama_pair


def log_probabilities(net, tokens):
    scores = net(nd.array([tokens], dtype="int32", ctx=on(0)))[0].astype("float64").asnumpy()
    scores -= scores.max(-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def score(net, prompt, new, penalty):
    """Returns the score of a sequence, from the whole sequence without a cache."""
    rows = log_probabilities(net, [*prompt, *new])[len(prompt) - 1 : -1]
    return sum(row[token] for row, token in zip(rows, new)) / len(new) ** penalty


@pytest.mark.parametrize("name", sorted(DECODERS))
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_scores_are_those_of_the_whole_sequences(name, penalty):
    net = decoder(name)
    options = {"max_new": 7, "length_penalty": penalty, "return_scores": True}
    found, scores = text.generate(net, PROMPTS, num_beams=4, **options)
    for prompt, new, value in zip(PROMPTS, found, scores):
        assert len(new) == 7 and abs(score(net, prompt, new, penalty) - value) < 1e-4
    greedy = text.generate(net, PROMPTS, max_new=7)
    assert all(
        value >= score(net, prompt, new, penalty) - 1e-4
        for prompt, new, value in zip(PROMPTS, greedy, scores)
    )


def test_as_many_beams_as_sequences_find_the_best_one():
    mx.random.seed(1)
    net = text.Decoder(9, units=8, layers=1, heads=2, hidden=8, rotary={}, deviation=1.0)
    net.initialize(ctx=on(0))
    # Four beams over pairs of tokens keep the best prefixes of 9 * 9 sequences of two tokens.
    (found,), (value,) = text.generate(net, [[1, 2]], max_new=2, num_beams=4, return_scores=True)
    best = max(
        itertools.product(range(9), repeat=2), key=lambda new: score(net, [1, 2], list(new), 1)
    )
    assert tuple(found) == best and abs(value - score(net, [1, 2], list(best), 1)) < 1e-5


@pytest.mark.parametrize("stop", [(), [43], [43, 9, 59]])
def test_requests_do_not_depend_on_the_batch_or_placement(stop):
    net = decoder()
    prompts = [*PROMPTS, [5]]
    options = {"max_new": 8, "num_beams": 2, "return_scores": True, "stop": stop}
    together = text.generate(net, prompts, **options)
    apart = [text.generate(net, [prompt], **options) for prompt in prompts]
    assert together == ([one[0][0] for one in apart], [one[1][0] for one in apart])
    net.place(
        {"embed": on(0), r"layers\.0": on(0), r"layers\.1": on(1), "norm|head": on(1)},
        verbose=False,
    )
    assert text.generate(net, prompts, **options) == together


@pytest.mark.parametrize("stop", [(), [43, 9]])
def test_drawn_and_penalized_requests_do_not_depend_on_the_batch_or_placement(stop):
    net = decoder()
    prompts = [*PROMPTS, [5]]
    options = {"max_new": 8, "num_beams": 2, "return_scores": True, "stop": stop, **DRAWN}
    together = text.generate(net, prompts, seed=[4, 2, 9], **options)
    apart = [
        text.generate(net, [prompt], seed=seed, **options)
        for prompt, seed in zip(prompts, (4, 2, 9))
    ]
    assert together == ([one[0][0] for one in apart], [one[1][0] for one in apart])
    others = [text.generate(net, prompts, seed=seed, **options)[0] for seed in range(5)]
    assert len({str(one) for one in others}) > 1
    net.place(
        {"embed": on(0), r"layers\.0": on(0), r"layers\.1": on(1), "norm|head": on(1)},
        verbose=False,
    )
    assert text.generate(net, prompts, seed=[4, 2, 9], **options) == together


@pytest.mark.parametrize("limits", [{}, {"top_k": 20}], ids=["all", "top_k"])
@pytest.mark.parametrize("temperature", [1e-3, 1e-9, 1e-12, 1e-30, 1e-60])
def test_low_temperatures_draw_the_best_beams(temperature, limits):
    options = {"max_new": 8, "num_beams": 3, "stop": [43, 9], "return_scores": True}
    expected, scores = text.generate(decoder(), PROMPTS, **options)
    options.update(seed=5, temperature=temperature, **limits)
    found, scaled = text.generate(decoder(), PROMPTS, **options)
    assert found == expected and all(found)
    assert np.allclose(np.array(scaled) * max(temperature, 1e-30), scores, rtol=1e-3)


def multiplied(rows, before, new, penalty):
    """Multiplies the logarithms of the probabilities of tokens that a sequence has already."""
    for i in range(len(new)):
        rows[i, list({*before, *new[:i]})] *= penalty
    return rows


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_scores_with_a_penalty_are_those_of_the_whole_sequences(name):
    net = decoder(name)
    options = {"max_new": 7, "repetition_penalty": 1.3, "return_scores": True}
    found, scores = text.generate(net, PROMPTS, num_beams=4, **options)
    for prompt, new, value in zip(PROMPTS, found, scores):
        rows = log_probabilities(net, [*prompt, *new])[len(prompt) - 1 : -1]
        rows = multiplied(rows, prompt, new, 1.3)
        assert abs(sum(row[token] for row, token in zip(rows, new)) / 7 - value) < 1e-4


def chi_square_bound(freedom):
    return freedom + 5 * (2 * freedom) ** 0.5


def test_continuations_are_drawn_without_replacement():
    mx.random.seed(1)
    net = text.Decoder(7, units=8, layers=1, heads=2, hidden=8, rotary={}, deviation=1.0)
    net.initialize(ctx=on(0))
    count, temperature = 4000, 1.7
    scores = log_probabilities(net, [1, 2])[-1] / temperature
    odds = np.exp(scores) / np.exp(scores).sum()
    # Two beams draw four tokens, and the best one is the result.
    expected = np.zeros(7)
    for order in itertools.permutations(range(7), 4):
        chance, left = 1.0, 1.0
        for token in order:
            chance *= odds[token] / left
            left -= odds[token]
        expected[max(order, key=lambda token: odds[token])] += chance
    assert abs(expected.sum() - 1) < 1e-9
    options = {"max_new": 1, "num_beams": 2, "temperature": temperature, "return_scores": True}
    found, values = text.generate(net, [[1, 2]] * count, seed=0, **options)
    observed = np.bincount([one[0] for one in found], minlength=7)
    assert not observed[expected == 0].any() and (observed > 0).sum() >= 3
    often = expected * count >= 5
    terms = (observed - expected * count)[often] ** 2 / (expected * count)[often]
    assert terms.sum() < chi_square_bound(often.sum() - 1)
    assert all(abs(scores[one[0]] - value) < 1e-5 for one, value in zip(found, values))


def same_beams(pair, prompt, beams, early, stop, **options):
    """Compares a beam search with transformers. Returns the tokens, and whether they ended."""
    torch, model, net = pair
    with torch.no_grad():
        expected = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=12,
            do_sample=False,
            num_beams=beams,
            early_stopping=early,
            eos_token_id=list(stop) or None,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
            **options,
        )
    options.update(max_new=12, num_beams=beams, early_stopping=early, stop=stop)
    found, scores = text.generate(net, [prompt], return_scores=True, **options)
    new = expected.sequences[0, len(prompt) :].tolist()
    ends = [i for i, token in enumerate(new) if token in stop]
    assert found[0] == new[: ends[0] if ends else None], options
    assert abs(scores[0] - float(expected.sequences_scores[0])) < 1e-4, options
    return found[0], bool(ends)


@pytest.mark.parametrize("seed", range(3))
def test_transformers_finds_the_same_beams(tmp_path, seed):
    pair = llama_pair(tmp_path, seed)
    prompt = [1, 5, 3, 9, 11, 2 + seed]
    (likely,) = text.generate(pair[-1], [prompt], max_new=12, num_beams=5)
    stops = [likely[5]], list(dict.fromkeys([*likely[3:8], 50]))
    ended = 0
    for beams, penalty, early, stop in itertools.product(
        (2, 3, 5), (0.0, 1.0, 2.0, -1.0), (False, True, "never"), stops
    ):
        ended += same_beams(pair, prompt, beams, early, stop, length_penalty=penalty)[1]
    assert ended > 10


@pytest.mark.parametrize("seed", range(3))
def test_transformers_finds_the_same_beams_with_a_penalty(tmp_path, seed):
    pair = llama_pair(tmp_path, seed)
    plain, changed = {}, 0
    for beams, penalty, early, stop in itertools.product(
        (2, 5), (1.0, 0.7, 1.3, 2.0), (False, True), ((), (9, 50))
    ):
        options = {"repetition_penalty": penalty}
        found, _ = same_beams(pair, [1, 5, 3, 9, 11, 2 + seed], beams, early, stop, **options)
        plain.setdefault((beams, early, stop), found)
        changed += found != plain[beams, early, stop]
    assert changed > 5


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1},
        {"top_k": 9},
        {"top_p": 0.6},
        {"top_p": 0.0},
        {"min_p": 0.2},
        {"min_p": 1.0},
        {"top_k": 12, "top_p": 0.8, "min_p": 0.05},
    ],
    ids=lambda options: "-".join(options),
)
def test_limits_of_beams_are_the_processors_of_transformers(options):
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.generation.logits_process")
    given = np.random.RandomState(1).randn(20, 50).astype("float32") * 3
    history = np.random.RandomState(2).randint(0, 50, (20, 9)).astype("int32")
    for least in (2, 3):
        scores = torch.log_softmax(torch.tensor(given), -1)
        scores[:, :3] *= -1  # logarithms of probabilities are negative, but the rule is general
        kinds = [
            processors.RepetitionPenaltyLogitsProcessor(1.4),
            processors.TemperatureLogitsWarper(0.7),
        ]
        for name, kind in (
            ("top_k", processors.TopKLogitsWarper),
            ("top_p", processors.TopPLogitsWarper),
            ("min_p", processors.MinPLogitsWarper),
        ):
            if name in options:
                kinds.append(kind(options[name], min_tokens_to_keep=least))
        ours = nd.array(scores.numpy(), ctx=on(0))
        for kind in kinds:
            scores = kind(torch.tensor(history).long(), scores)
        ours = penalized(nd, ours, nd.array(history, dtype="int32", ctx=on(0)), 1.4)
        limits = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **options}
        ours = limited(nd, ours, 0.7, **limits, least=least).asnumpy()
        wanted = scores.numpy()
        assert np.array_equal(ours < -1e8, np.isinf(wanted))
        kept = np.isfinite(wanted)
        assert kept.sum(1).min() >= least and np.allclose(ours[kept], wanted[kept], atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.8}, {"temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.02}],
    ids=lambda options: "-".join(options),
)
def test_drawn_beams_have_the_probabilities_of_transformers(tmp_path, options):
    torch, model, net = llama_pair(tmp_path, vocab_size=13, initializer_range=0.12)
    prompt, count, found = [1, 5, 3, 9, 11, 2], 3000, []
    ends = [4, 6]
    with torch.no_grad():
        expected = model.generate(
            torch.tensor([prompt] * count),
            max_new_tokens=3,
            do_sample=True,
            num_beams=2,
            repetition_penalty=1.2,
            eos_token_id=ends,
            pad_token_id=0,
            **{"top_k": 0, **options},
        )[:, len(prompt) :].tolist()
    for row in expected:
        stops = [i for i, token in enumerate(row) if token in ends]
        found.append(tuple(row[: stops[0] if stops else None]))
    drawn = text.generate(
        net,
        [prompt] * count,
        max_new=3,
        num_beams=2,
        repetition_penalty=1.2,
        stop=ends,
        seed=0,
        **options,
    )
    counts = [Counter(found), Counter(map(tuple, drawn))]
    rare = {one for one in counts[0] | counts[1] if counts[0][one] + counts[1][one] < 10}
    rows = [[c[one] for one in {*counts[0], *counts[1]} - rare] for c in counts]
    first, second = (np.array([*row, sum(c[one] for one in rare)]) for row, c in zip(rows, counts))
    both = first + second
    terms = (first - second)[both > 0] ** 2 / both[both > 0]
    assert (both > 0).sum() > 8 and terms.sum() < chi_square_bound((both > 0).sum() - 1)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"repetition_penalty": 1.4},
        {"temperature": 1.3, "top_k": 12, "top_p": 0.8, "repetition_penalty": 0.8},
        {"temperature": 1.6, "min_p": 0.1, "top_p": 0.9},
    ],
    ids=lambda options: "-".join(options),
)
def test_draws_have_the_probabilities_of_the_processors_of_transformers(tmp_path, options):
    torch, model, net = llama_pair(tmp_path)
    from transformers.generation import logits_process as processors

    prompt = [1, 5, 3, 9, 5, 5]
    with torch.no_grad():
        scores = model(torch.tensor([prompt])).logits[:, -1].float()
    kinds = {
        "repetition_penalty": processors.RepetitionPenaltyLogitsProcessor,
        "temperature": processors.TemperatureLogitsWarper,
        "top_k": processors.TopKLogitsWarper,
        "top_p": processors.TopPLogitsWarper,
        "min_p": processors.MinPLogitsWarper,
    }
    for name, kind in kinds.items():
        if name in options:
            scores = kind(options[name])(torch.tensor([prompt]), scores)
    expected = torch.softmax(scores, -1)[0].double().numpy()
    count = 4000
    drawn = text.generate(
        net, [prompt] * count, max_new=1, seed=0, **{"temperature": 1.0, **options}
    )
    observed = np.bincount([one[0] for one in drawn], minlength=61)
    assert not observed[expected == 0].any()
    frequent = expected * count >= 5
    terms = (observed - expected * count)[frequent] ** 2 / (expected * count)[frequent]
    freedom = max(frequent.sum() - 1, 1)
    assert terms.sum() < freedom + 4 * (2 * freedom) ** 0.5


def test_transformers_draws_the_same_greedy_tokens_with_a_penalty(tmp_path):
    torch, model, net = llama_pair(tmp_path)
    for penalty in (0.7, 1.2, 2.0):
        with torch.no_grad():
            expected = model.generate(
                torch.tensor(PROMPTS[:1]),
                max_new_tokens=30,
                do_sample=False,
                eos_token_id=None,
                repetition_penalty=penalty,
            )
        for draft in (None, 3):
            new = text.generate(
                net, PROMPTS[:1], max_new=30, repetition_penalty=penalty, draft=draft
            )
            assert new[0] == expected[0, len(PROMPTS[0]) :].tolist()


def test_transformers_looks_up_the_same_tokens(tmp_path):
    torch, model, net = llama_pair(tmp_path)
    with torch.no_grad():
        expected = model.generate(
            torch.tensor(PROMPTS[:1]),
            max_new_tokens=30,
            do_sample=False,
            eos_token_id=None,
            prompt_lookup_num_tokens=3,
        )
    new = text.generate(net, PROMPTS[:1], max_new=30, draft=3)
    assert new[0] == expected[0, len(PROMPTS[0]) :].tolist()
