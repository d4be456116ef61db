"""Beam search, and the options of draws, against transformers and against their definitions."""

import itertools

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.gluon.model_zoo import text
from support.devices import on
from support.networks import DECODERS, PROMPTS, decoder, llama_pair


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


@pytest.mark.parametrize("seed", range(3))
def test_transformers_finds_the_same_beams(tmp_path, seed):
    torch, model, net = llama_pair(tmp_path, seed)
    prompt = [1, 5, 3, 9, 11, 2 + seed]
    (likely,) = text.generate(net, [prompt], max_new=12, num_beams=5)
    stops = [likely[5]], list(dict.fromkeys([*likely[3:8], 50]))
    ended = 0
    for beams, penalty, early, stop in itertools.product(
        (2, 3, 5), (0.0, 1.0, 2.0, -1.0), (False, True, "never"), stops
    ):
        with torch.no_grad():
            expected = model.generate(
                torch.tensor([prompt]),
                max_new_tokens=12,
                do_sample=False,
                num_beams=beams,
                length_penalty=penalty,
                early_stopping=early,
                eos_token_id=stop,
                pad_token_id=0,
                output_scores=True,
                return_dict_in_generate=True,
            )
        new = expected.sequences[0, len(prompt) :].tolist()
        ends = [i for i, token in enumerate(new) if token in stop]
        found, scores = text.generate(
            net,
            [prompt],
            max_new=12,
            num_beams=beams,
            length_penalty=penalty,
            early_stopping=early,
            stop=stop,
            return_scores=True,
        )
        case = (beams, penalty, early, stop)
        assert found[0] == new[: ends[0] if ends else None], case
        assert abs(scores[0] - float(expected.sequences_scores[0])) < 1e-4, case
        ended += bool(ends)
    assert ended > 10


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
