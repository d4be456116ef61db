"""A model-parallel LSTM with buckets: sentences of several lengths, each length with a separate
graph over the same devices.

It uses the Module API of MXNet 1.x: symbols created layer by layer in groups
(``AttrScope(ctx_group=...)``), a `BucketingModule` that places the groups on devices
(``group2ctxs``), and `fit`. All buckets share parameters, gradients and the memory of a pass. The
text is the source of Python's standard library, one sentence per line; ``--text FILE`` uses
another text.

    python bucketing_lm.py                         # three CPU devices
    python bucketing_lm.py --devices "gpu(0)" "gpu(1)" "gpu(1)"
"""

import argparse
import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import mpgluon as mx
from common import add_text_options, output, parser
from corpus import TOKEN, read_text
from measuring import save_timelines, why

PADDING = 0


# --- The idea -------------------------------------------------------------------------------------
def generator(words: int, options: argparse.Namespace) -> Callable[[int], tuple[Any, ...]]:
    """Returns a function that creates the graph of a bucket."""

    def generate(length: int) -> tuple[Any, ...]:
        with mx.AttrScope(ctx_group="embed"):
            hidden = mx.sym.Embedding(
                mx.sym.Variable("data"), input_dim=words, output_dim=options.hidden, name="embed"
            )
        for i in range(options.layers):
            with mx.AttrScope(ctx_group=f"layer{i}"):
                cell = mx.rnn.LSTMCell(options.hidden, prefix=f"lstm{i}_")
                hidden, _ = cell.unroll(length, hidden, merge_outputs=True)
        with mx.AttrScope(ctx_group="decode"):
            scores = mx.sym.FullyConnected(
                mx.sym.reshape(hidden, shape=(-1, options.hidden)), num_hidden=words, name="decode"
            )
            label = mx.sym.reshape(mx.sym.Variable("softmax_label"), shape=(-1,))
            out = mx.sym.SoftmaxOutput(
                scores,
                label,
                use_ignore=True,
                ignore_label=PADDING,
                normalization="valid",
                name="softmax",
            )
        return out, ("data",), ("softmax_label",)

    return generate


def module_of(
    generate: Callable[[int], tuple[Any, ...]], longest: int, groups: dict[str, mx.Context]
) -> mx.mod.BucketingModule:
    """Returns a module with all buckets on the same devices; `groups` maps each ``ctx_group`` to a
    device."""
    return mx.mod.BucketingModule(generate, default_bucket_key=longest, group2ctxs=groups)


# --- Sentences, and training on them --------------------------------------------------------------
def groups_of(devices: list[mx.Context], layers: int) -> dict[str, mx.Context]:
    """Returns the device of each group. The embedding is on the first layer's, the decoder on the
    last's."""
    places = [devices[i * len(devices) // layers] for i in range(layers)]
    return {
        "embed": places[0],
        "decode": places[-1],
        **{f"layer{i}": place for i, place in enumerate(places)},
    }


def sentences_of(
    text: str, vocabulary: dict[str, int] | None = None, most: int = 2000
) -> tuple[list[list[int]], dict[str, int]]:
    """Encodes lines as numbers; words beyond the `most` frequent ones share one number."""
    lines = [TOKEN.findall(line.strip()) for line in text.split("\n")]
    lines = [
        ["<s>", *(token for token in line if not token.isspace()), "</s>"] for line in lines if line
    ]
    if vocabulary is None:
        count: dict[str, int] = {}
        for line in lines:
            for token in line:
                count[token] = count.get(token, 0) + 1
        frequent = sorted(count, key=lambda token: (-count[token], token))[:most]
        vocabulary = {"<unk>": 1, **{token: i + 2 for i, token in enumerate(frequent)}}
    coded, _ = mx.rnn.encode_sentences(
        lines, vocab=dict(vocabulary), unknown_token="<unk>", invalid_label=PADDING
    )
    return coded, vocabulary


def train(
    coded: Any, words: int, groups: dict[str, mx.Context], options: argparse.Namespace
) -> tuple[mx.mod.BucketingModule, mx.io.DataIter]:
    """Returns a trained module and the iterator over validation sentences."""
    random.seed(options.seed)
    np.random.seed(options.seed)
    mx.random.seed(options.seed)
    train_data, valid_data = [
        mx.rnn.BucketSentenceIter(
            sentences, options.batch, buckets=list(options.buckets), invalid_label=PADDING
        )
        for sentences in coded
    ]
    module = module_of(generator(words, options), train_data.default_bucket_key, groups)
    module.fit(
        mx.io.ResizeIter(train_data, options.steps),
        eval_data=valid_data,
        eval_metric=mx.metric.Perplexity(PADDING),
        num_epoch=1,
        optimizer="adam",
        optimizer_params={"learning_rate": options.lr, "clip_gradient": 1.0, "rescale_grad": 1.0},
        initializer=mx.init.Xavier(factor_type="in", magnitude=2.34),
        batch_end_callback=mx.callback.Speedometer(options.batch, 50, auto_reset=False),
    )
    return module, valid_data


def stepper(module: mx.mod.BucketingModule) -> Callable[[Any], None]:
    """Returns a function that trains on a batch."""

    def step(batch: Any) -> None:
        module.forward_backward(batch)
        module.update()

    return step


def main() -> None:
    arguments = parser(__doc__, devices=3, steps=1200)
    add_text_options(arguments, limit=1_500_000)
    arguments.add_argument("--vocab", type=int, default=2000)
    arguments.add_argument("--buckets", type=int, nargs="+", default=[8, 12, 16, 24, 32])
    arguments.add_argument("--layers", type=int, default=3)
    arguments.add_argument("--hidden", type=int, default=128)
    arguments.add_argument("--batch", type=int, default=32)
    arguments.add_argument("--lr", type=float, default=2e-3)
    options = arguments.parse_args()
    mx.context.set_threads(1)  # equal thread counts, so that placement can't change a bit
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    train_text, valid_text = read_text(options.text, options.limit)
    first, vocabulary = sentences_of(train_text, most=options.vocab)
    coded = first, sentences_of(valid_text, vocabulary)[0]
    words = len(vocabulary) + 1
    devices = options.devices
    groups = groups_of(devices, options.layers)
    module, valid_data = train(coded, words, groups, options)
    perplexity = dict(module.score(valid_data, mx.metric.Perplexity(PADDING)))["perplexity"]
    print(f"vocabulary {words}; validation perplexity {perplexity:.2f}")
    mx.nd.waitall()
    for ctx in dict.fromkeys(devices):
        stats = mx.context.memory_stats(ctx)
        names = sorted({name for name, place in groups.items() if place == ctx})
        print(
            f"{ctx}: {', '.join(names)}; {stats['peak_in_use'] / 1e6:.1f} MB at most for "
            f"{len(module._buckets)} buckets"
        )
    single, _ = train(coded, words, dict.fromkeys(groups, devices[0]), options)
    pairs = list(zip(module.get_params()[0].values(), single.get_params()[0].values()))
    same = all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in pairs)
    print("equal bit for bit on one device:", "yes" if same else "no")

    valid_data.reset()
    name = f"{len(devices)} devices"
    ways = {"1 device": stepper(single), name: stepper(module)}
    works = why(ways, (next(valid_data),), devices)
    print(
        "The devices take turns: a group waits for what the one before it makes of the whole "
        "batch. A pipeline (lstm_pipeline.py) has all of them at work."
    )
    save_timelines(output(options, "bucketing_lm.png"), works)


if __name__ == "__main__":
    main()
