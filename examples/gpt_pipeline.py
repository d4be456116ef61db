"""A GPT-style transformer of 24 small layers in two pipelined halves: 1F1B and zero bubble compared
with one device.

The batch is divided into micro-batches; while the second half works on one, the first half works on
the next. 1F1B starts backward passes as early as possible. Zero bubble also fills the gaps with
weight gradients, on which no other work depends. The losses and parameters equal those of the same
micro-batches on one device bit for bit. The text is Python's standard library.

    python gpt_pipeline.py                            # about two minutes on two cores
    python gpt_pipeline.py --devices "gpu(0)" "gpu(1)" --units 512 --batch 64
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import mpgluon as mx
from common import add_text_options, difference, output, parameters, parser, print_table
from corpus import Corpus, read_text
from measuring import milliseconds, plain_step, save, take_turns, why
from mpgluon import gluon
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep


# --- The idea -------------------------------------------------------------------------------------
def pipelined(net: "GPT", trainer: gluon.Trainer, micro_batches: int, schedule: str) -> TrainStep:
    """Returns a training step, ``losses = step(tokens, labels)``, that sends a batch through the
    network in micro-batches; `schedule` defines the order of a device's work on them."""
    pipeline = Pipeline(micro_batches, schedule)
    return TrainStep(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, pipeline)


def through(layers: Sequence[gluon.HybridBlock], contexts: list[mx.Context], x: Any) -> Any:
    """Applies layers on several devices to `x`; a network needs no other code for its placement."""
    for layer, ctx in zip(layers, contexts):
        x = layer(x.as_in_context(ctx))
    return x


# --- The network ----------------------------------------------------------------------------------
class Layer(gluon.HybridBlock):
    """Causal self-attention and a network of two layers, each applied to its normalized input and
    added to it."""

    def __init__(self, units: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.size, self.length = heads, units // heads, length
        with self.name_scope():
            self.norm1, self.norm2 = (
                nn.LayerNorm(in_channels=units),
                nn.LayerNorm(in_channels=units),
            )
            self.qkv = nn.Dense(3 * units, in_units=units, flatten=False)
            self.out = nn.Dense(units, in_units=units, flatten=False)
            self.widen = nn.Dense(4 * units, in_units=units, flatten=False)
            self.narrow = nn.Dense(units, in_units=4 * units, flatten=False)

    def attention(self, F: Any, x: Any) -> Any:
        # (batch, time, 3 * units) -> three of (batch * heads, time, size)
        parts = F.transpose(
            F.reshape(self.qkv(x), (0, 0, 3, self.heads, self.size)), (2, 0, 3, 1, 4)
        )
        parts = F.reshape(parts, (3, -3, 0, 0))
        q, k, v = (
            F.reshape(F.slice_axis(parts, axis=0, begin=i, end=i + 1), (-3, -2)) for i in range(3)
        )
        place = F.arange(self.length, ctx=x.context)
        later = F.broadcast_lesser(F.reshape(place, (-1, 1)), F.reshape(place, (1, -1)))
        scores = F.broadcast_add(
            F.batch_dot(q, k, transpose_b=True) * self.size**-0.5,
            F.expand_dims(later * -1e9, axis=0),
        )
        out = F.reshape(F.batch_dot(F.softmax(scores), v), (-4, -1, self.heads, 0, 0))
        return self.out(F.reshape(F.transpose(out, (0, 2, 1, 3)), (0, 0, -3)))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        x = x + self.attention(F, self.norm1(x))
        return x + self.narrow(F.LeakyReLU(self.widen(self.norm2(x)), act_type="gelu"))


class GPT(gluon.HybridBlock):
    """Maps (batch, length) tokens to (batch, length, vocab) scores; the layers are distributed
    evenly over `contexts`."""

    def __init__(
        self,
        vocab: int,
        units: int,
        heads: int,
        layers: int,
        length: int,
        contexts: list[mx.Context],
    ) -> None:
        super().__init__(prefix="gpt_")
        self.length = length
        self.contexts = [contexts[i * len(contexts) // layers] for i in range(layers)]
        with self.name_scope():
            self.embed = nn.Embedding(vocab, units)
            self.positions = nn.Embedding(length, units)
            self.layers = [Layer(units, heads, length) for _ in range(layers)]
            for number, layer in enumerate(self.layers):
                self.register_child(layer, f"layer{number}")
            self.norm = nn.LayerNorm(in_channels=units)
            self.decoder = nn.Dense(vocab, in_units=units, flatten=False)
        for table in (self.embed, self.positions):
            table.initialize(mx.init.Normal(0.02), ctx=contexts[0])
        for child, ctx in zip(
            (*self.layers, self.norm, self.decoder), (*self.contexts, contexts[-1], contexts[-1])
        ):
            child.initialize(mx.init.Xavier(), ctx=ctx)

    def hybrid_forward(self, F: Any, tokens: Any) -> Any:
        places = self.positions(F.arange(self.length, ctx=tokens.context))
        x = F.broadcast_add(self.embed(tokens), F.expand_dims(places, axis=0))
        return self.decoder(self.norm(through(self.layers, self.contexts, x)))


# --- Ways to train it, compared -------------------------------------------------------------------
def way(
    options: argparse.Namespace, vocab: int, contexts: list[mx.Context], schedule: str = ""
) -> Any:
    """Returns a function that trains on a batch, its network and its step. Without a schedule, the
    batch is not divided."""
    mx.random.seed(options.seed)
    net = GPT(vocab, options.units, options.heads, options.layers, options.length, contexts)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": options.lr})
    if schedule:
        step: Any = pipelined(net, trainer, options.micro_batches, schedule)
    else:
        net.hybridize()
        step = plain_step(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)

    def train(x: np.ndarray, y: np.ndarray) -> Any:
        return step(mx.nd.array(x, ctx=contexts[0]), mx.nd.array(y, ctx=contexts[-1]))

    return train, net, step


def batches(
    tokens: np.ndarray, batch: int, length: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (inputs, targets) of shape (batch, length) each, from windows in random order."""
    starts = np.random.RandomState(seed).permutation((len(tokens) - 1) // length) * length
    for i in range(0, len(starts) - batch + 1, batch):
        chosen = starts[i : i + batch]
        yield (
            np.stack([tokens[s : s + length] for s in chosen]),
            np.stack([tokens[s + 1 : s + 1 + length] for s in chosen]),
        )


def main() -> None:
    arguments = parser(__doc__, devices=2, steps=60)
    add_text_options(arguments)
    arguments.add_argument("--vocab", type=int, default=1000)
    arguments.add_argument("--units", type=int, default=128)
    arguments.add_argument("--heads", type=int, default=4)
    arguments.add_argument("--layers", type=int, default=24)
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument(
        "--length", type=int, default=64, help="tokens that the network looks at"
    )
    arguments.add_argument("--micro-batches", type=int, default=8)
    arguments.add_argument("--lr", type=float, default=1e-3)
    options = arguments.parse_args()
    mx.context.set_threads(1)  # equal thread counts, so that placement can't change a bit
    one, many = options.devices[:1], options.devices
    corpus = Corpus(*read_text(options.text, options.limit), options.vocab)
    vocab, count = len(corpus.words), len(many)

    schedules = ("1f1b", "zero_bubble")
    made = {
        "1 device": way(options, vocab, one),
        "1 device, micro-batches": way(options, vocab, one, "1f1b"),
        **{f"{count} devices, {name}": way(options, vocab, many, name) for name in schedules},
    }
    ways = {name: train for name, (train, _, _) in made.items()}
    pipelines = {name: made[f"{count} devices, {name}"][2].pipeline for name in schedules}
    results = take_turns(
        ways,
        lambda: batches(corpus.train, options.batch, options.length, options.seed),
        options.steps,
    )
    for pipeline in pipelines.values():
        print(f"\nthe last step of {pipeline}:\n{pipeline.report()}")
    reference = parameters(made["1 device, micro-batches"][1])
    print()
    rows = [
        ("", "ms a step", "last loss", "parameters against micro-batches on 1 device", "bubble")
    ]
    bubbles = {
        f"{count} devices, {name}": f"{pipeline.report().bubble:.1%}"
        for name, pipeline in pipelines.items()
    }
    for name, (losses, seconds) in results.items():
        rows.append(
            (
                name,
                milliseconds(seconds),
                f"{losses[-1]:.4f}",
                difference(reference, parameters(made[name][1])),
                bubbles.get(name, ""),
            )
        )
    print_table(*rows)
    save(pipelines["zero_bubble"].plot(), output(options, "gpt_pipeline.png"))
    why(ways, next(batches(corpus.train, options.batch, options.length, options.seed)), many)


if __name__ == "__main__":
    main()
