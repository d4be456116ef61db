"""Generation with a cache: the same tokens as without, for every network, batch and placement."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.gluon import nn
from mpgluon.gluon.model_zoo import text
from mpgluon.gluon.model_zoo.text._steps import Step
from support.devices import on
from support.networks import DECODERS, DRAWN, PROMPTS, decoder, llama_pair, without_cache


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("name", sorted(DECODERS))
def test_greedy_tokens_equal_those_without_a_cache(name, hybridize):
    net = decoder(name)
    expected = [without_cache(net, prompt, 10) for prompt in PROMPTS]
    net.hybridize(hybridize)
    assert text.generate(net, PROMPTS, max_new=10) == expected


@pytest.mark.parametrize("options", [{}, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_tokens_do_not_depend_on_batch_or_placement(name, options):
    net = decoder(name)
    together = text.generate(net, PROMPTS, max_new=9, seed=[5, 9], **options)
    apart = [
        text.generate(net, [prompt], max_new=9, seed=seed, **options)[0]
        for prompt, seed in zip(PROMPTS, (5, 9))
    ]
    assert together == apart
    placement = {"embed": on(0), r"layers\.0": on(0), r"layers\.1": on(1), "norm|head": on(1)}
    if net.positions is not None:
        placement["positions"] = on(0)
    net.place(placement, verbose=False)
    assert text.generate(net, PROMPTS, max_new=9, seed=[5, 9], **options) == together
    assert [keys.context for keys, _ in net.make_cache(1, 4)] == [on(0), on(1)]


def test_results_do_not_depend_on_how_the_prompt_is_cut(monkeypatch):
    net = decoder()
    prompt = [list(range(90))]
    expected = text.generate(net, prompt, max_new=6, seed=1, **DRAWN)
    monkeypatch.setattr("mpgluon.gluon.model_zoo.text._lanes.CHUNKS", (7, 2, 1))
    assert text.generate(net, prompt, max_new=6, seed=1, **DRAWN) == expected


def test_stop_tokens_end_requests_and_stream_follows():
    net, seen = decoder(), []
    whole = text.generate(net, PROMPTS, max_new=12)
    stop = whole[0][5]
    new = text.generate(
        net, PROMPTS, max_new=12, stop=stop, stream=lambda i, token: seen.append((i, token))
    )
    for i in range(2):
        end = whole[i].index(stop) if stop in whole[i] else 12
        assert new[i] == whole[i][:end] == [token for j, token in seen if j == i]
    assert text.generate(net, PROMPTS, max_new=0) == [[], []]
    assert text.generate(net, nd.array(PROMPTS[:1]), max_new=3) == [whole[0][:3]]


def test_seeds_make_draws_repeatable():
    net = decoder()
    draw = dict(max_new=8, temperature=1.5)
    first = text.generate(net, PROMPTS, seed=4, **draw)
    assert text.generate(net, PROMPTS, seed=4, **draw) == first
    assert text.generate(net, PROMPTS, seed=[4, 5], **draw) == first
    assert text.generate(net, PROMPTS, seed=40, **draw) != first
    mx.random.seed(1)
    drawn = text.generate(net, PROMPTS, **draw)
    mx.random.seed(1)
    assert text.generate(net, PROMPTS, **draw) == drawn


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_continues_prompts(dtype):
    net = decoder()
    net.cast(dtype)
    assert net.make_cache(2, 4)[0][0].dtype == net.embed.weight.data().dtype
    together = text.generate(net, PROMPTS, max_new=6)
    assert together == [text.generate(net, [prompt], max_new=6)[0] for prompt in PROMPTS]


def test_weights_that_change_are_used_by_the_next_call():
    net = decoder()
    text.generate(net, PROMPTS, max_new=4)
    net.head.weight.set_data(-net.head.weight.data())
    assert text.generate(net, PROMPTS, max_new=4) == [
        without_cache(net, prompt, 4) for prompt in PROMPTS
    ]


def test_steps_are_compiled_once_and_freed_with_the_network():
    net = decoder()
    for prompts in (PROMPTS, [[4, 4], [3]]):
        text.generate(net, prompts, max_new=4)
    (step,) = (p for p in vars(net)["_generation"].by_options.values() if isinstance(p, Step))
    assert len(step.compiled()) == 1 and not net.compiled()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert text.generate(other, PROMPTS, max_new=4) == text.generate(net, PROMPTS, max_new=4)
    ended = weakref.ref(net)
    del net, step
    gc.collect()
    assert ended() is None


def test_networks_are_freed_without_the_garbage_collector():
    """Otherwise the weights would take device memory until the collector runs by chance."""

    def used():
        nd.waitall()
        return mx.context.memory_stats(on(0))["in_use"]

    def generated():
        net, draft = decoder(), decoder()
        text.generate(net, PROMPTS, max_new=4, temperature=1, repetition_penalty=1.1)
        text.generate(net, PROMPTS, max_new=4, draft=draft)
        text.generate(net, PROMPTS, max_new=4, num_beams=2)
        list(text.generate(net, PROMPTS, max_new=4, stream=True))
        next(text.generate(net, PROMPTS, max_new=4, stream=True))
        params = [*net.collect_params().values(), *draft.collect_params().values()]
        return [weakref.ref(param) for param in params]

    generated()
    gc.collect()
    gc.disable()
    try:
        before = used()
        params = generated()
        assert params and all(param() is None for param in params)
        assert used() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("with_draft", [False, True])
def test_stream_keeps_its_networks(with_draft):
    def started():
        net, draft = decoder(), decoder("gpt2") if with_draft else None
        running = text.generate(net, PROMPTS, max_new=6, draft=draft, stream=True)
        return [next(running)], running

    net, draft = decoder(), decoder("gpt2") if with_draft else None
    expected = list(text.generate(net, PROMPTS, max_new=6, draft=draft, stream=True))
    first, running = started()
    assert first + list(running) == expected


def test_invalid_arguments_raise():
    net = decoder("gpt2")
    for arguments, options, message in (
        ((nn.Dense(3), PROMPTS), {}, "Decoder"),
        ((net, []), {}, "no prompt was given"),
        ((net, [[1], []]), {}, "prompt 1 is empty"),
        ((net, [list(range(90))]), {"max_new": 20}, "100 positions"),
        ((net, PROMPTS), {"seed": [1]}, "seeds"),
        ((net, PROMPTS), {"max_new": -1}, "max_new"),
        ((net, PROMPTS), {"top_p": 2}, "top_p"),
    ):
        with pytest.raises((TypeError, ValueError, mx.base.MXNetError), match=message):
            text.generate(*arguments, **options)


def test_transformers_generates_the_same_tokens(tmp_path):
    sizes = {"vocab_size": 97, "num_hidden_layers": 3, "initializer_range": 0.5}
    torch, model, net = llama_pair(tmp_path, **sizes)
    with torch.no_grad():
        expected = model.generate(
            torch.tensor(PROMPTS[:1]), max_new_tokens=32, do_sample=False, eos_token_id=None
        )
    assert text.generate(net, PROMPTS[:1], max_new=32)[0] == expected[0, len(PROMPTS[0]) :].tolist()
    assert np.isfinite(net(nd.array(PROMPTS[:1], dtype="int32")).asnumpy()).all()
