"""A model-parallel LSTM with buckets: sentences of several lengths, each length a graph of its own
over the same devices.

Written with the Module API of MXNet 1.x: symbols made layer by layer in groups
(``AttrScope(ctx_group=...)``), a `BucketingModule` that puts the groups on devices
(``group2ctxs``), and `fit`. All buckets share parameters, gradients and the memory that a pass
needs. The text is Python's own standard library, a line a sentence; ``--text FILE`` takes another
one.

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
from common import device
from model_parallel_lm import TOKEN, read_text

PADDING = 0


def groups_of(devices: list[mx.Context], layers: int) -> dict[str, mx.Context]:
    """The device of each group: the embedding goes with the first layer, the decoder with the
    last."""
    places = [devices[i * len(devices) // layers] for i in range(layers)]
    return {
        "embed": places[0],
        "decode": places[-1],
        **{f"layer{i}": place for i, place in enumerate(places)},
    }


def generator(words: int, options: argparse.Namespace) -> Callable[[int], tuple[Any, ...]]:
    """The function that makes the graph of a bucket."""

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


def sentences_of(
    text: str, vocabulary: dict[str, int] | None = None, most: int = 2000
) -> tuple[list[list[int]], dict[str, int]]:
    """Lines as numbers; the words that are not among the `most` frequent ones are all one."""
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
    """A trained module, and the iterator over validation sentences."""
    random.seed(1)
    np.random.seed(1)
    mx.random.seed(1)
    train_data, valid_data = [
        mx.rnn.BucketSentenceIter(
            sentences, options.batch, buckets=list(options.buckets), invalid_label=PADDING
        )
        for sentences in coded
    ]
    module = mx.mod.BucketingModule(
        generator(words, options),
        default_bucket_key=train_data.default_bucket_key,
        group2ctxs=groups,
    )
    module.fit(
        train_data,
        eval_data=valid_data,
        eval_metric=mx.metric.Perplexity(PADDING),
        num_epoch=options.epochs,
        optimizer="adam",
        optimizer_params={"learning_rate": options.lr, "clip_gradient": 1.0, "rescale_grad": 1.0},
        initializer=mx.init.Xavier(factor_type="in", magnitude=2.34),
        batch_end_callback=mx.callback.Speedometer(options.batch, 50, auto_reset=False),
    )
    return module, valid_data


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--devices",
        nargs="+",
        type=device,
        default=[mx.cpu(i) for i in range(3)],
        help="layers are dealt out over them",
    )
    parser.add_argument("--text", help="a text file in place of the standard library")
    parser.add_argument("--limit", type=int, default=1_500_000, help="characters to read")
    parser.add_argument("--vocab", type=int, default=2000)
    parser.add_argument("--buckets", type=int, nargs="+", default=[8, 12, 16, 24, 32])
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument(
        "--check", action="store_true", help="train on one device, too, and compare bit for bit"
    )
    options = parser.parse_args()
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
    if options.check:
        single, _ = train(coded, words, dict.fromkeys(groups, devices[0]), options)
        pairs = zip(module.get_params()[0].values(), single.get_params()[0].values())
        print(
            "equal bit for bit on one device:",
            "yes" if all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in pairs) else "no",
        )


if __name__ == "__main__":
    main()
