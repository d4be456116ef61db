"""Edges of generation: stops, streams that end early, threads, leaks and invalid options."""

import gc
import threading
import warnings
import weakref

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, nd
from mpgluon.gluon.model_zoo import text
from mpgluon.gluon.model_zoo.text import _lanes
from mpgluon.gluon.model_zoo.text._requests import Request, Stops
from support.devices import on
from support.networks import DRAWN, PROMPTS, decoder


class Letters:
    """A tokenizer whose tokens are letters, except that tokens 60 to 62 are the bytes of a euro
    sign."""

    stop = ()

    def encode(self, given):
        return [ord(one) - 60 for one in given]

    def decode(self, tokens, skip_special_tokens=True):
        euro = "\u20ac".encode()
        data = b"".join(
            euro[t - 60 : t - 59] if 60 <= t < 63 else chr(t + 60).encode() for t in tokens
        )
        return data.decode("utf-8", errors="replace")


def replay(monkeypatch, tokens):
    """Makes every request draw `tokens`."""

    def take(lane):
        lane.drawn_tokens = getattr(lane, "drawn_tokens", 0) + 1
        return [[tokens[lane.drawn_tokens - 1]] for _ in lane.requests]

    monkeypatch.setattr(_lanes.Lane, "take", take)
    monkeypatch.setattr(_lanes.Lane, "advance", lambda lane: None)


def test_sequences_of_tokens_end_requests(monkeypatch):
    net = decoder()
    for stop, expected in (
        ([[3, 4, 5]], [1, 2]),
        ([[4, 5], 9], [1, 2, 3]),
        ([[2, 3, 7], [5, 6]], [1, 2, 3, 4]),
        ([[6, 1, 1]], [1, 2, 3, 4, 5, 6]),
        ([[6], [9, 9]], [1, 2, 3, 4, 5]),
        (5, [1, 2, 3, 4]),
    ):
        replay(monkeypatch, [1, 2, 3, 4, 5, 6])
        seen = []
        new = text.generate(
            net, [[1]], max_new=6, stop=stop, stream=lambda i, token: seen.append(token)
        )
        assert new == [expected] and seen == expected, stop


def test_streams_hold_tokens_that_may_begin_a_stop():
    for drawn, shown in (([3, 4, 5], [[3, 4, 5]]), ([3, 4, 9], [])):
        request = Request([1], 5, Stops([[3, 4, 9]], None), None, False)
        steps = [list(request.add(token)) for token in [1, 2, *drawn]]
        assert steps == [[1], [2], [], [], *(shown or [[]])]
        assert request.tokens == [1, 2, *(shown[0] if shown else [])]


@pytest.mark.parametrize(
    "drawn, stop, whole",
    [
        ("hello world", "wor", "hello "),
        ("hello world", ["xyz", "o"], "hell"),
        ("hello", "lox", "hello"),
        ("a\u20acb", "b", "a\u20ac"),
        ("a\u20acb", "\u20ac", "a"),
        ("ab\u20ac", (), "ab\u20ac"),
    ],
)
def test_strings_end_requests_and_streams_have_whole_characters(monkeypatch, drawn, stop, whole):
    tokens = [t for c in drawn for t in ([60, 61, 62] if c == "\u20ac" else [ord(c) - 60])]
    parts = []
    for prompts, expected in (("A", whole), (["A"], [whole])):
        replay(monkeypatch, tokens)
        parts.clear()
        new = text.generate(
            decoder(),
            prompts,
            max_new=len(tokens),
            stop=stop,
            tokenizer=Letters(),
            stream=lambda i, part: parts.append(part),
        )
        assert new == expected and "".join(parts) == whole and "\ufffd" not in "".join(parts)
    replay(monkeypatch, tokens)
    shown = []
    new = text.generate(
        decoder(),
        [[1]],
        max_new=len(tokens),
        stop=stop,
        tokenizer=Letters(),
        stream=lambda i, token: shown.append(token),
    )
    assert Letters().decode(new[0]) == whole and shown == new[0]


@pytest.mark.parametrize("prompts", ["A", [[1]]])
def test_time_of_decoding_is_linear_in_tokens(monkeypatch, prompts):
    decoded = []

    class Counting(Letters):
        def decode(self, tokens, skip_special_tokens=True):
            decoded.append(len(tokens))
            return super().decode(tokens, skip_special_tokens)

    for stop, most in (("yz", 9 * 80), ((), 9 * 80 if prompts == "A" else 0)):
        replay(monkeypatch, [37 + i % 5 for i in range(80)])
        decoded.clear()
        options = {"stop": stop, "tokenizer": Counting()}
        assert text.generate(decoder(), prompts, max_new=80, **options)
        assert sum(decoded) <= most


def test_stream_holds_character_in_which_stop_begins(monkeypatch):
    replay(monkeypatch, [60, 61, 62, 37, 38])
    parts = []
    options = {"stop": [[62, 37, 38]], "tokenizer": Letters()}
    stream = lambda i, part: parts.append(part)
    new = text.generate(decoder(), "A", max_new=9, stream=stream, **options)
    assert new == "".join(parts) == "\ufffd"


def test_incomplete_characters_end_as_replacements(monkeypatch):
    replay(monkeypatch, [37, 60, 61])
    parts = []
    new = text.generate(
        decoder(), "A", max_new=3, tokenizer=Letters(), stream=lambda i, part: parts.append(part)
    )
    assert new == "a\ufffd" and parts == ["a", "\ufffd"]


def test_closed_generators_leave_nothing_behind():
    net = decoder()
    expected = text.generate(net, PROMPTS, max_new=12)
    stream = text.generate(net, PROMPTS, max_new=12, stream=True)
    with autograd.record():
        first = [next(stream) for _ in range(5)]
        assert autograd.is_recording() and autograd.is_training()
    stream.close()
    assert next(stream, None) is None
    assert [[t for i, t in first if i == k] for k in (0, 1)] == [
        e[: 3 - k] for k, e in enumerate(expected)
    ]
    whole = list(text.generate(net, PROMPTS, max_new=12, stream=True))
    assert [[t for i, t in whole if i == k] for k in (0, 1)] == expected
    ended = weakref.ref(net)
    del net, stream
    gc.collect()
    assert ended() is None


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
@pytest.mark.parametrize("draft", [None, 2])
def test_errors_of_a_stream_reach_the_caller(error, draft):
    net, seen = decoder(), []

    def stream(request, token):
        seen.append(token)
        if len(seen) == 4:
            raise error

    with pytest.raises(error):
        text.generate(net, PROMPTS, max_new=30, stream=stream, draft=draft)
    assert len(seen) == 4 and not autograd.is_recording()
    assert text.generate(net, PROMPTS, max_new=5) == text.generate(decoder(), PROMPTS, max_new=5)


def test_threads_generate_with_one_network():
    net, found = decoder(), {}
    expected = [text.generate(decoder(), PROMPTS, max_new=20, seed=i, **DRAWN) for i in range(4)]

    def run(i):
        found[i] = text.generate(net, PROMPTS, max_new=20, seed=i, **DRAWN)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(4)] == expected


def test_memory_does_not_grow_from_call_to_call():
    net = decoder()
    used = []
    for i in range(6):
        text.generate(net, PROMPTS, max_new=20, seed=i, **DRAWN)
        text.generate(net, PROMPTS, max_new=5, num_beams=2)
        text.generate(net, PROMPTS, max_new=9, draft=3)
        next(text.generate(net, PROMPTS, max_new=20, stream=True))
        nd.waitall()
        gc.collect()
        used.append(mx.context.memory_stats(on(0))["in_use"])
    assert used[-1] == used[2]


def test_no_new_tokens_are_an_empty_result():
    net = decoder()
    assert text.generate(net, PROMPTS, max_new=0) == [[], []]
    assert list(text.generate(net, PROMPTS, max_new=0, stream=True)) == []
    assert text.generate(net, PROMPTS, max_new=0, draft=2) == [[], []]
    assert text.generate(net, PROMPTS, max_new=0, num_beams=2) == [[], []]
    assert text.generate(net, "A", max_new=0, tokenizer=Letters()) == ""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("options", [{"draft": 3}, {"draft": "net"}, {"groups": 2}])
def test_half_precision_gives_the_same_tokens_with_each_option(dtype, options):
    net = decoder()
    net.cast(dtype)
    if options.get("draft") == "net":
        options = {"draft": decoder(seed=4)}
        options["draft"].cast(dtype)
    expected = text.generate(net, PROMPTS, max_new=12)
    assert text.generate(net, PROMPTS, max_new=12, **options) == expected
    best = text.generate(net, PROMPTS, max_new=6, num_beams=2)
    assert all(len(one) == 6 for one in best)


def test_invalid_options_raise():
    net, small = decoder("gpt2"), text.Decoder(50, units=8, layers=1, heads=2, hidden=8, rotary={})
    small.initialize(ctx=on(0))
    for arguments, options, message in (
        ((net, "text"), {}, "pass tokenizer="),
        ((net, [[1, 97]]), {}, "prompt 0 contains 97; .* are the integers 0 to 96"),
        ((net, [[1], [-1, 2]]), {}, "prompt 1 contains -1"),
        ((net, nd.array([[1, 2**20]])), {}, "prompt 0 contains 1048576"),
        ((net, [[1, 2**40]]), {}, "prompt 0 contains 1099511627776"),
        ((net, [[1, 2.5]]), {}, r"prompt 0 contains 2\.5"),
        ((net, [[1, float("nan")]]), {}, "prompt 0 contains nan"),
        ((net, [[[1, 2], [3, 4]]]), {}, "prompt 0 must be a list of integers"),
        ((net, [1, 2]), {}, "prompt 0 must be a list of integers, got 1; pass a list of lists"),
        ((net, [["a"]]), {}, "prompt 0 must be a list of integers"),
        ((net, [[[1], [2, 3]]]), {}, "prompt 0 must be a list of integers"),
        ((net, 5), {}, "tokens must be a list of lists of tokens, got int"),
        ((net, PROMPTS), {"seed": 2**63 - 1}, "seeds must be 64-bit integers"),
        ((net, PROMPTS), {"seed": 7.5}, r"seed must be an integer or a list .*, got 7\.5"),
        ((net, PROMPTS), {"seed": "a"}, "seed must be an integer or a list of integers, got 'a'"),
        ((net, PROMPTS), {"seed": [1]}, "1 seeds for"),
        ((net, PROMPTS), {"length_penalty": "a"}, "^length_penalty must be a finite number"),
        ((net, PROMPTS), {"stream": "yes"}, "stream must be True or a function .*, got 'yes'"),
        ((net, PROMPTS), {"stop": 999}, "stop contains 999, .* are the integers 0 to 96"),
        ((net, PROMPTS), {"stop": [2, [3, -1]]}, "stop contains -1"),
        ((net, PROMPTS), {"stop": 1.5}, "stop must hold tokens"),
        ((net, PROMPTS), {"draft": net, "draft_tokens": 2.5}, "draft_tokens must be an integer"),
        ((net, PROMPTS), {"stop": "end"}, "strings, which need a tokenizer"),
        ((net, PROMPTS), {"stop": [[]]}, "sequence of stop is empty"),
        ((net, PROMPTS), {"stop": [1.5]}, "stop must hold tokens"),
        ((net, PROMPTS), {"num_beams": 2, "stop": [[1, 2]]}, "single tokens"),
        ((net, PROMPTS), {"num_beams": 2, "stream": print}, "stream cannot be combined"),
        ((net, PROMPTS), {"num_beams": 2, "early_stopping": "no"}, "early_stopping must be"),
        ((net, PROMPTS), {"num_beams": 2, "length_penalty": "no"}, "length_penalty must be a"),
        ((net, PROMPTS), {"num_beams": 2, "length_penalty": float("nan")}, "finite number"),
        ((net, PROMPTS), {"num_beams": 2, "length_penalty": -400.0}, "to this power must be"),
        ((net, PROMPTS), {"num_beams": 60}, "num_beams"),
        ((net, PROMPTS), {"num_beams": 0}, "num_beams"),
        ((net, PROMPTS), {"return_scores": True}, "return_scores needs num_beams"),
        ((net, PROMPTS), {"draft": small}, "same vocabulary"),
        ((net, PROMPTS), {"draft": 8}, "1 to 7 tokens"),
        ((net, PROMPTS), {"draft": "small"}, "draft must be a Decoder"),
        ((net, PROMPTS), {"draft": decoder("gpt2"), "max_new": 90}, "only 100 positions"),
        ((decoder(), PROMPTS), {"draft": decoder("gpt2"), "max_new": 90}, "draft has only 100"),
        ((net, PROMPTS), {"groups": 0}, "groups"),
        ((net, None), {}, "got NoneType; an array, strings and the messages of a chat"),
        ((net, PROMPTS), {"temperature": -1}, "^temperature must be at least 0, got -1"),
        ((net, PROMPTS), {"temperature": None}, "^temperature must be at least 0, got NoneType"),
        ((net, PROMPTS), {"top_k": 2.5}, "^top_k must be an integer, at least 0"),
        ((net, PROMPTS), {"top_p": 1.5}, "^top_p must be between 0 and 1, got 1.5"),
        ((net, PROMPTS), {"min_p": -0.5}, "^min_p must be between 0 and 1, got -0.5"),
        (
            (net, PROMPTS),
            {"repetition_penalty": 0},
            "^generate: repetition_penalty must be above 0",
        ),
        ((net, PROMPTS), {"tokenizer": "folder"}, r"got 'folder'; pass tokenizer=text\.tokenizer"),
    ):
        with pytest.raises((TypeError, ValueError, mx.base.MXNetError), match=message):
            text.generate(*arguments, **options)
    best = text.generate(net, PROMPTS, max_new=3, num_beams=2)
    assert text.generate(net, PROMPTS, max_new=3, num_beams=2, stream=False) == best
    with pytest.raises(TypeError, match="net must be a Decoder or T5 .* got a Encoder"):
        text.generate(text.Encoder.__new__(text.Encoder), PROMPTS)


@pytest.mark.parametrize("option", [{"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_limits_of_draws_warn_without_temperature(option):
    net = decoder()
    with pytest.warns(UserWarning, match=f"{[*option][0]} has no effect with temperature=0"):
        taken = text.generate(net, PROMPTS, max_new=4, **option)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert text.generate(net, PROMPTS, max_new=4) == taken
        text.generate(net, PROMPTS, max_new=4, temperature=1, **option)


@pytest.mark.parametrize(
    ("option", "remedy"),
    [({"length_penalty": 2}, {"num_beams": 2}), ({"draft_tokens": 2}, {"draft": 2})],
)
def test_options_of_beams_and_drafts_warn_without_them(option, remedy):
    net = decoder()
    with pytest.warns(UserWarning, match=f"{[*option][0]} has no effect without a"):
        text.generate(net, PROMPTS, max_new=2, **option)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text.generate(net, PROMPTS, max_new=2, **option, **remedy)


def test_contrib_has_the_same_function():
    assert mx.contrib.text.generate is text.generate


@pytest.mark.parametrize("size", [1, 2, 7])
def test_chunks_of_prompts_are_compiled_once(size):
    net = decoder()
    for length in (3, 9, 10, 40, 43):
        text.generate(net, [list(range(length))] * size, max_new=2)
    (prompt,) = (p for p in vars(net)["_generation"].by_options.values() if "prompt" in p.prefix)
    assert len(prompt.compiled()) <= 5
    assert np.isfinite(net(nd.array([[1, 2]], dtype="int32", ctx=on(0))).asnumpy()).all()
