"""An LSTM language model on two devices, pipelined along time: layer 2 works on one piece of a
sequence while layer 1 is on the next.

Without a pipeline two devices alternate: the second cannot start before the first has processed the
whole sequence. ``Pipeline(along="time")`` divides sequences into pieces, carries the states from
piece to piece, and keeps both devices busy; the network's code is unchanged. Three ways train on
the same batches with the same losses: two devices pipelined, the same pieces on one device (the
same bits), and two devices without a pipeline. The text is Python's standard library.

    python lstm_pipeline.py                            # about a minute on two cores
    python lstm_pipeline.py --devices "gpu(0)" "gpu(1)"
"""

import argparse
from typing import Any

import numpy as np

import mpgluon as mx
from common import add_text_options, difference, output, parameters, parser, print_table
from corpus import Corpus, batches, read_text
from measuring import milliseconds, save, take_turns, why
from mpgluon import autograd, gluon
from mpgluon.gluon import nn, rnn
from mpgluon.parallel import Pipeline, TrainStep


# --- The idea -------------------------------------------------------------------------------------
def pipelined(net: Any, trainer: gluon.Trainer, pieces: int, schedule: str) -> TrainStep:
    """Returns a training step, ``losses, states = step(tokens, labels, states)``, that sends a
    sequence through the network in pieces."""
    pipeline = Pipeline(pieces, schedule, along="time")
    return TrainStep(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, pipeline)


class LanguageModel(gluon.HybridBlock):
    """Embedding, LSTM layers and decoder; the first `split` layers on one device, the rest on
    another.

    Takes tokens (time, batch) and the states of all layers; returns scores (time, batch, vocab) and
    the new states, as pipelines along time require.
    """

    def __init__(
        self, vocab: int, hidden: int, layers: int, split: int, ctx1: mx.Context, ctx2: mx.Context
    ) -> None:
        super().__init__(prefix="lm_")
        self.contexts = [ctx1] * split + [ctx2] * (layers - split)
        with self.name_scope():
            self.embed = nn.Embedding(vocab, hidden)
            self.layers = [rnn.LSTM(hidden, input_size=hidden) for _ in range(layers)]
            for number, layer in enumerate(self.layers):
                self.register_child(layer, f"lstm{number}")
            self.decoder = nn.Dense(vocab, in_units=hidden, flatten=False)
        for child, ctx in zip(
            (self.embed, *self.layers, self.decoder), (ctx1, *self.contexts, ctx2)
        ):
            child.initialize(mx.init.Uniform(0.1), ctx=ctx)

    def hybrid_forward(self, F: Any, tokens: Any, states: Any) -> Any:
        out, after = self.embed(tokens), []
        for layer, ctx, state in zip(self.layers, self.contexts, states):
            out, state = layer(out.as_in_context(ctx), state)
            after.append(state)
        return self.decoder(out), after

    def begin_state(self, batch: int) -> Any:
        return [layer.begin_state(batch, ctx=ctx) for layer, ctx in zip(self.layers, self.contexts)]


# --- Three ways to train --------------------------------------------------------------------------
def way(
    options: argparse.Namespace,
    vocab: int,
    ctx1: mx.Context,
    ctx2: mx.Context,
    pieces: bool = True,
) -> Any:
    """Returns a function that trains on a batch, its network and its step in pieces."""
    mx.random.seed(options.seed)
    net = LanguageModel(vocab, options.hidden, options.layers, options.split, ctx1, ctx2)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": options.lr})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    states = net.begin_state(options.batch)
    step = pipelined(net, trainer, options.pieces, options.schedule) if pieces else None
    net.hybridize()

    def train(inputs: np.ndarray, targets: np.ndarray) -> Any:
        nonlocal states
        x, y = mx.nd.array(inputs, ctx=ctx1), mx.nd.array(targets, ctx=ctx2)
        if step is not None:
            losses, states = step(x, y, states)
            return losses
        states = [[array.detach() for array in state] for state in states]
        with autograd.record():
            scores, states = net(x, states)
            losses = loss(scores, y)
        losses.backward()
        trainer.step(len(inputs))
        return losses

    return train, net, step


def main() -> None:
    arguments = parser(__doc__, devices=2, steps=60, count=2)
    add_text_options(arguments)
    arguments.add_argument("--vocab", type=int, default=2000)
    arguments.add_argument("--hidden", type=int, default=384, help="size of embedding and LSTMs")
    arguments.add_argument("--layers", type=int, default=4)
    arguments.add_argument("--split", type=int, default=2, help="layers on the first device")
    arguments.add_argument("--batch", type=int, default=20)
    arguments.add_argument("--length", type=int, default=64, help="time steps of a batch")
    arguments.add_argument(
        "--pieces", type=int, default=8, help="pieces that a sequence is divided into"
    )
    arguments.add_argument(
        "--schedule", default="zero_bubble", help="see mpgluon.parallel.schedules"
    )
    arguments.add_argument("--lr", type=float, default=2e-3)
    options = arguments.parse_args()
    mx.context.set_threads(1)  # equal thread counts, so that placement can't change a bit
    first, second = options.devices
    corpus = Corpus(*read_text(options.text, options.limit), options.vocab)
    vocab = len(corpus.words)

    made = {
        "2 devices, pipelined": way(options, vocab, first, second),
        "1 device, same pieces": way(options, vocab, first, first),
        "2 devices, in turns": way(options, vocab, first, second, pieces=False),
        "1 device": way(options, vocab, first, first, pieces=False),
    }
    ways = {name: train for name, (train, _, _) in made.items()}
    pipeline = made["2 devices, pipelined"][2].pipeline
    results = take_turns(
        ways,
        lambda: batches(corpus.train, options.batch, options.length),
        options.steps,
    )
    print(f"\nthe last step of {pipeline}:\n{pipeline.report()}\n")
    reference = parameters(made["2 devices, pipelined"][1])
    rows = [
        (
            "",
            "ms a step",
            "tokens/s",
            "last loss",
            "losses against the first",
            "parameters against the first",
        )
    ]
    for name, (losses, seconds) in results.items():
        ms = milliseconds(seconds)
        rows.append(
            (
                name,
                ms,
                f"{options.batch * options.length / float(ms) * 1e3:.0f}",
                f"{losses[-1]:.4f}",
                difference(results["2 devices, pipelined"][0], losses),
                difference(reference, parameters(made[name][1])),
            )
        )
    print_table(*rows)
    save(pipeline.plot(), output(options, "lstm_pipeline.png"))
    why(ways, next(batches(corpus.train, options.batch, options.length)), options.devices)


if __name__ == "__main__":
    main()
