"""The same network on one, two and three devices: only the list of contexts changes, and not a bit
of the result.

A deep network predicts the next token of Python's standard library from the previous ones (Bengio
et al., 2003). Its layers are distributed over the devices of the list, hybridized as one block and
trained by one Trainer, then also as a pipeline. Each device holds only its own part.

    python three_devices.py                                          # about a minute on two cores
    python three_devices.py --devices "gpu(0)" "gpu(1)" "cpu(0)"
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import mpgluon as mx
from common import add_text_options, difference, megabytes, output, parameters, parser, print_table
from corpus import Corpus, read_text
from measuring import milliseconds, plain_step, save, take_turns, why
from mpgluon import gluon
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep


# --- The idea -------------------------------------------------------------------------------------
class Chain(gluon.HybridBlock):
    """Consecutive layers, divided into one run per context."""

    def __init__(self, layers: Sequence[gluon.HybridBlock], contexts: list[mx.Context]) -> None:
        super().__init__(prefix="chain_")
        self.layers = layers
        self.contexts = [contexts[i * len(contexts) // len(layers)] for i in range(len(layers))]
        for number, (layer, ctx) in enumerate(zip(layers, self.contexts)):
            self.register_child(layer, f"layer{number}")
            layer.initialize(mx.init.Xavier(), ctx=ctx)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        for layer, ctx in zip(self.layers, self.contexts):
            x = layer(x.as_in_context(ctx))
        return x


# --- A network, and its data ----------------------------------------------------------------------
def network(options: argparse.Namespace, vocab: int, contexts: list[mx.Context]) -> Chain:
    mx.random.seed(options.seed)
    layers: list[gluon.HybridBlock] = [nn.Embedding(vocab, options.embed, prefix="embed_")]
    sizes = [options.window * options.embed] + [options.units] * options.layers
    for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Dense(outputs, activation="relu", in_units=inputs, prefix=f"dense{i}_"))
    return Chain([*layers, nn.Dense(vocab, in_units=options.units, prefix="out_")], contexts)


def batches(tokens: np.ndarray, window: int, batch: int, seed: int) -> Iterator[Any]:
    """Yields (`window` tokens, the next token) of `batch` positions in random order."""
    order = np.random.RandomState(seed).permutation(len(tokens) - window)
    for i in range(0, len(order) - batch + 1, batch):
        places = order[i : i + batch]
        yield tokens[places[:, None] + np.arange(window)], tokens[places + window]


def main() -> None:
    arguments = parser(__doc__, devices=3, steps=100)
    add_text_options(arguments)
    arguments.add_argument("--vocab", type=int, default=500)
    arguments.add_argument("--window", type=int, default=12, help="tokens that the network sees")
    arguments.add_argument("--embed", type=int, default=32)
    arguments.add_argument("--units", type=int, default=512)
    arguments.add_argument("--layers", type=int, default=7)
    arguments.add_argument("--batch", type=int, default=256)
    arguments.add_argument("--micro-batches", type=int, default=4)
    arguments.add_argument("--lr", type=float, default=5e-4)
    options = arguments.parse_args()
    mx.context.set_threads(1)  # equal thread counts, so that placement can't change a bit
    corpus = Corpus(*read_text(options.text, options.limit), options.vocab)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()

    ways, nets, shown, pipelines = {}, {}, {}, {}
    for pipelined in (False, True):
        for count in range(1, len(options.devices) + 1):
            contexts = options.devices[:count]
            name = f"{count} device{'s' * (count > 1)}{', pipelined' * pipelined}"
            net = nets[name] = network(options, len(corpus.words), contexts)
            trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": options.lr})
            if pipelined:
                pipelines[count] = Pipeline(options.micro_batches)
                step: Any = TrainStep(net, loss, trainer, pipelines[count])
            else:
                net.hybridize()
                step = plain_step(net, loss, trainer)
                shown[name] = net
            ways[name] = lambda x, y, step=step, contexts=contexts: step(
                mx.nd.array(x, ctx=contexts[0]), mx.nd.array(y, ctx=contexts[-1])
            )
    results = take_turns(
        ways,
        lambda: batches(corpus.train, options.window, options.batch, options.seed),
        options.steps,
    )

    for name, net in shown.items():
        print(f"\n{name}, what was compiled:\n{net.compiled()}")
    print()
    rows = [
        (
            "",
            "ms a step",
            "last loss",
            "parameters against 1 device",
            "parameters on each device, MB",
        )
    ]
    for name, (losses, seconds) in results.items():
        reference = nets["1 device, pipelined" if "pipelined" in name else "1 device"]
        bits = difference(parameters(reference), parameters(nets[name]))
        rows.append(
            (
                name,
                milliseconds(seconds),
                f"{losses[-1]:.4f}",
                bits,
                megabytes(nets[name]),
            )
        )
    print_table(*rows)
    save(pipelines[len(options.devices)].plot(), output(options, "three_devices.png"))
    batch = next(batches(corpus.train, options.window, options.batch, options.seed))
    why(ways, batch, options.devices)


if __name__ == "__main__":
    main()
