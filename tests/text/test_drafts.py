"""Drafts: the tokens, and so the distribution, of the network without a draft."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core
from mpgluon.gluon.model_zoo import text
from mpgluon.gluon.model_zoo.text import _lanes
from support.devices import on
from support.networks import DECODERS, DRAWN, PROMPTS, decoder

MORE = [*PROMPTS, [3, 3, 3, 3], [5, 6, 7, 5, 6, 7, 5]]


@pytest.mark.parametrize("options", [{}, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("name", sorted(DECODERS))
def test_drafts_do_not_change_tokens(name, options):
    net, small = decoder(name), decoder(name, seed=4)
    expected = text.generate(net, MORE, max_new=20, seed=3, **options)
    for draft, count in ((net, 1), (net, 3), (small, 2), (small, 7), (1, 3), (4, 3), (7, 3)):
        found = text.generate(
            net, MORE, max_new=20, seed=3, draft=draft, draft_tokens=count, **options
        )
        assert found == expected, (draft, count)


def larger(seed, layers, **options):
    """Returns a network whose products have the sizes at which libraries were chosen."""
    mx.random.seed(seed)
    net = text.Decoder(
        1003,
        **{"units": 256, "heads": 4, "hidden": 700, "rotary": {}, "deviation": 0.2, **options},
        layers=layers,
    )
    net.initialize(ctx=on(0))
    return net


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("hybridize", [False, True])
def test_scores_of_a_check_have_the_bits_of_steps(dtype, bias, hybridize):
    """Every product on the path, with the sizes of `larger`."""
    if on(0).device_type != "cpu":
        pytest.skip("libraries of GPUs choose an order of sums by the number of rows")
    if hybridize and dtype == "float32" and _core.build_info()["isa"] != "v4":
        pytest.skip("without AVX-512, oneDNN chooses an order of sums by the number of rows")
    net = larger(0, 2, attention_bias=bias, mlp_bias=bias)
    net.cast(dtype)
    net.hybridize(hybridize)
    tokens, results = np.arange(8) * 5, []
    for sizes in ([1] * 8, [8], [3, 5], [2, 2, 4]):
        cache, at, scores = net.make_cache(1, 64), 0, []
        for size in sizes:
            part = mx.nd.array(tokens[None, at : at + size], dtype="int32", ctx=on(0))
            lengths = mx.nd.array([at], dtype="int32", ctx=on(0))
            scores.append(net(part, lengths, None, cache).astype("float64").asnumpy())
            at += size
        arrays = [a.astype("float64").asnumpy() for layer in cache for a in layer]
        results.append([np.concatenate(scores, 1), *arrays])
    for other in results[1:]:
        for a, b in zip(results[0], other):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_drafts_do_not_change_tokens_of_larger_networks(threads):
    net, small = larger(0, 3), larger(0, 1)
    mx.context.set_threads(threads)
    try:
        for options in ({}, {"temperature": 1.0, "top_p": 0.95, "seed": 3}):
            expected = text.generate(net, PROMPTS, max_new=40, **options)
            for draft in (small, 3):
                found = text.generate(net, PROMPTS, max_new=40, draft=draft, **options)
                assert found == expected
    finally:
        mx.context.set_threads(0)


def rounds(monkeypatch):
    """Returns the list to which the numbers of new tokens of each round are appended."""
    counts, take = [], _lanes.DraftLane.take

    def counted(lane):
        found = take(lane)
        counts.append([len(new) for new in found])
        return found

    monkeypatch.setattr(_lanes.DraftLane, "take", counted)
    return counts


def test_right_drafts_are_accepted_as_a_whole(monkeypatch):
    net, counts = decoder(), rounds(monkeypatch)
    for options in ({}, {"temperature": 1.3, "seed": 2}):
        counts.clear()
        text.generate(net, PROMPTS[:1], max_new=13, draft=net, draft_tokens=3, **options)
        assert counts == [[1], [4], [4], [4]]


def test_repeated_tokens_are_looked_up(monkeypatch):
    assert _lanes.Lookup([1, 2, 3, 9, 1, 2, 3]).find(2) == [9, 1]
    assert _lanes.Lookup([7, 3, 5, 4, 3, 6, 1, 3]).find(3) == [6, 1, 3]
    assert _lanes.Lookup([1, 2, 3, 5, 2, 3, 7, 1, 2, 3]).find(4) == [5, 2, 3, 7]
    assert _lanes.Lookup([1, 2, 3]).find(2) == [] and _lanes.Lookup([4]).find(2) == []
    counts, net = rounds(monkeypatch), decoder("gpt2")
    net.head.weight.set_data(0 * net.head.weight.data())  # the first token is drawn forever
    assert text.generate(net, [[0, 0]], max_new=13, draft=3) == [[0] * 13]
    assert counts == [[1], [4], [4], [4]]


def test_lookup_indexes_tokens_that_are_added():
    tokens = [1, 2, 3]
    lookup = _lanes.Lookup(tokens)
    assert lookup.find(2) == []
    for new, expected in (([1, 2], [3, 1]), ([4, 2], [4, 2]), ([3], [1, 2]), ([1, 2], [4, 2])):
        tokens += new
        assert lookup.find(2) == expected, tokens


def test_requests_end_at_stops_inside_of_drafts():
    net = decoder()
    whole = text.generate(net, MORE, max_new=20)
    for stop in (whole[0][6], whole[1][3:5], whole[2][2]):
        stops = stop if isinstance(stop, int) else [stop]
        expected = text.generate(net, MORE, max_new=20, stop=stops)
        for draft in (net, decoder(seed=4), 5):
            assert text.generate(net, MORE, max_new=20, stop=stops, draft=draft) == expected


def test_drafts_reach_the_last_position():
    net = decoder("gpt2")
    expected = text.generate(net, [list(range(80))], max_new=20)
    for draft in (net, decoder("gpt2", seed=4), 7):
        assert text.generate(net, [list(range(80))], max_new=20, draft=draft) == expected


def test_drafts_of_other_devices_do_not_change_tokens():
    net, small = decoder(), decoder(seed=4)
    expected = text.generate(net, PROMPTS, max_new=12, seed=1, **DRAWN)
    net.place(
        {"embed": on(0), r"layers\.0": on(0), r"layers\.1": on(1), "norm|head": on(1)},
        verbose=False,
    )
    small.reset_ctx(on(1))
    assert text.generate(net, PROMPTS, max_new=12, seed=1, draft=small, **DRAWN) == expected


def test_drawn_tokens_have_the_distribution_of_the_network():
    """Chi-square test of the second and third token, given the first ones, over 2000 seeds."""
    mx.random.seed(2)
    net, small = (
        text.Decoder(5, units=8, layers=n, heads=2, hidden=8, rotary={}, deviation=1.0)
        for n in (2, 1)
    )
    for one in (net, small):
        one.initialize(ctx=on(0))
    count, options = 2000, {"temperature": 1.5, "top_k": 4}
    drawn = text.generate(
        net,
        [[1, 2]] * count,
        max_new=3,
        seed=list(range(count)),
        draft=small,
        draft_tokens=1,
        **options,
    )
    observed = np.zeros((5, 5, 5))
    for a, b, c in drawn:
        observed[a, b, c] += 1

    def probabilities(prompt):
        scores = net(mx.nd.array([prompt], dtype="int32", ctx=on(0)))[0, -1].asnumpy()
        scores = scores.astype("float64") / 1.5
        scores[np.argsort(scores)[:1]] = -np.inf
        weights = np.exp(scores - scores.max())
        return weights / weights.sum()

    expected = np.zeros((5, 5, 5))
    first = probabilities([1, 2])
    for a in range(5):
        second = probabilities([1, 2, a])
        for b in range(5):
            expected[a, b] = count * first[a] * second[b] * probabilities([1, 2, a, b])
    assert not observed[expected == 0].any()
    frequent = expected >= 5
    rest = observed[~frequent].sum(), expected[~frequent].sum()
    terms = (observed - expected)[frequent] ** 2 / expected[frequent]
    chi = terms.sum() + (rest[0] - rest[1]) ** 2 / max(rest[1], 1e-9)
    freedom = frequent.sum() - (rest[1] == 0)
    assert freedom > 15 and chi < freedom + 4 * (2 * freedom) ** 0.5, (chi, freedom)
