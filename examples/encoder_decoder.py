"""An encoder-decoder with its softmax on a separate device, which provides the memory for a large
vocabulary.

The network reads the concatenated Unicode names of Korean syllables ("HANGUGEO") and writes the
syllables, of which 2,350 are in common use (KS X 1001): real data that comes with Python. The
encoder is on one device, the decoder with its attention on the next, the softmax on the last. It is
trained as a pipeline and compared bit for bit with one device.

    python encoder_decoder.py                            # half a minute on two cores
    python encoder_decoder.py --devices "gpu(0)" "gpu(0)" "gpu(1)"
"""

import argparse
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import mpgluon as mx
from common import difference, megabytes, output, parameters, parser, print_table
from measuring import milliseconds, save, take_turns, why
from mpgluon import gluon
from mpgluon.gluon import nn, rnn
from mpgluon.parallel import Pipeline, TrainStep


# --- The idea -------------------------------------------------------------------------------------
class EncoderDecoder(gluon.HybridBlock):
    """Maps letters (batch, letters) and the syllables so far (batch, length) to scores (batch,
    length, syllables), with a device for each part."""

    def __init__(
        self,
        vocab: int,
        units: int,
        encoder_ctx: mx.Context,
        decoder_ctx: mx.Context,
        softmax_ctx: mx.Context,
    ) -> None:
        super().__init__(prefix="net_")
        self.decoder_ctx, self.softmax_ctx, self.units = decoder_ctx, softmax_ctx, units
        with self.name_scope():
            self.letters = nn.Embedding(27, units)  # 26 letters and padding
            self.encoder = rnn.LSTM(units // 2, layout="NTC", bidirectional=True, input_size=units)
            self.syllables = nn.Embedding(vocab + 1, units)  # the last index starts a text
            self.decoder = rnn.LSTM(units, layout="NTC", input_size=units)
            self.join = nn.Dense(units, in_units=2 * units, activation="tanh", flatten=False)
            self.scores = nn.Dense(vocab, in_units=units, flatten=False)
        parts = {encoder_ctx: [self.letters, self.encoder]}
        parts.setdefault(decoder_ctx, []).extend([self.syllables, self.decoder, self.join])
        parts.setdefault(softmax_ctx, []).append(self.scores)
        for ctx, children in parts.items():
            for child in children:
                child.initialize(mx.init.Xavier(), ctx=ctx)

    def encode(self, letters: Any) -> Any:
        return self.encoder(self.letters(letters)).as_in_context(self.decoder_ctx)

    def decode(self, F: Any, memory: Any, letters: Any, before: Any) -> Any:
        """Returns scores of the syllables that follow those of `before`; attends to `memory` where
        `letters` are not padding."""
        query = self.decoder(self.syllables(before))
        padding = F.expand_dims((letters == 0) * -1e9, axis=1)
        weights = F.softmax(
            F.broadcast_add(
                F.batch_dot(query, memory, transpose_b=True) * self.units**-0.5, padding
            )
        )
        seen = self.join(F.concat(query, F.batch_dot(weights, memory), dim=2))
        return self.scores(seen.as_in_context(self.softmax_ctx))

    def hybrid_forward(self, F: Any, letters: Any, before: Any) -> Any:
        return self.decode(
            F,
            self.encode(letters),
            letters.as_in_context(self.decoder_ctx),
            before.as_in_context(self.decoder_ctx),
        )


# --- Its data: syllables and their names ----------------------------------------------------------
LETTERS = {letter: i + 1 for i, letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ")}  # 0 is padding


def syllables() -> list[tuple[str, str]]:
    """Returns [(syllable, its name)] of the syllables in the encoding EUC-KR."""
    common = [c for c in map(chr, range(0xAC00, 0xD7A4)) if len(c.encode("euc_kr", "ignore")) == 2]
    return [(c, unicodedata.name(c).removeprefix("HANGUL SYLLABLE ")) for c in common]


def make_data(
    pairs: list[tuple[str, str]], count: int, length: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (letters (count, letters), syllables (count, length)). The names have no gaps, so the
    network must detect where each ends."""
    random = np.random.RandomState(seed)
    chosen = random.randint(0, len(pairs), (count, length))
    names = ["".join(pairs[i][1] for i in row) for row in chosen]
    letters = np.zeros((count, length * max(len(name) for _, name in pairs)), dtype=np.float32)
    for row, name in zip(letters, names):
        row[: len(name)] = [LETTERS[letter] for letter in name]
    return letters, chosen.astype(np.float32)


# --- Training and translating ---------------------------------------------------------------------
def way(
    options: argparse.Namespace, vocab: int, contexts: list[mx.Context]
) -> tuple[Callable[..., Any], EncoderDecoder, Any]:
    """Returns a function that trains on a batch, its network and its pipeline."""
    mx.random.seed(options.seed)
    net = EncoderDecoder(vocab, options.units, *contexts)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": options.lr})
    pipeline = Pipeline(options.micro_batches)
    step = TrainStep(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, pipeline)

    def train(letters: np.ndarray, before: np.ndarray, after: np.ndarray) -> Any:
        x, y = (mx.nd.array(a, ctx=contexts[0]) for a in (letters, before))
        return step([x, y], mx.nd.array(after, ctx=contexts[-1]))

    return train, net, pipeline


def with_begin(syllables: np.ndarray, vocab: int) -> np.ndarray:
    """Returns the syllables before each syllable, the decoder's input."""
    return np.concatenate(
        [np.full((len(syllables), 1), vocab, dtype=np.float32), syllables[:, :-1]], axis=1
    )


def translate(net: EncoderDecoder, letters: np.ndarray, length: int, vocab: int) -> np.ndarray:
    """Returns the syllables that the network writes with greedy decoding."""
    x = mx.nd.array(letters, ctx=net.letters.weight.list_ctx()[0])
    written = np.full((len(letters), length + 1), vocab, dtype=np.float32)
    for i in range(length):
        scores = net(x, mx.nd.array(written[:, :length], ctx=x.context))
        written[:, i + 1] = scores[:, i].asnumpy().argmax(axis=1)
    return written[:, 1:].astype(int)


def main() -> None:
    arguments = parser(__doc__, devices=3, steps=400, count=3)
    arguments.add_argument("--syllables", type=int, help="use the first so many only")
    arguments.add_argument("--length", type=int, default=4, help="syllables of a text")
    arguments.add_argument("--units", type=int, default=128)
    arguments.add_argument("--batch", type=int, default=128)
    arguments.add_argument("--micro-batches", type=int, default=4)
    arguments.add_argument("--lr", type=float, default=4e-3)
    options = arguments.parse_args()
    mx.context.set_threads(1)  # equal thread counts, so that placement can't change a bit
    pairs = syllables()[: options.syllables]
    vocab = len(pairs)

    def batches() -> Iterator[Any]:
        for number in range(options.steps):
            letters, after = make_data(
                pairs, options.batch, options.length, options.seed * 100_000 + number
            )
            yield letters, with_begin(after, vocab), after

    made = {
        "3 devices": way(options, vocab, options.devices),
        "1 device": way(options, vocab, options.devices[:1] * 3),
    }
    ways = {name: train for name, (train, _, _) in made.items()}
    results = take_turns(ways, batches, options.steps)
    _, net, pipeline = made["3 devices"]
    print(f"\nthe last step of {pipeline}:\n{pipeline.report()}\n")
    letters, wanted = make_data(pairs, 200, options.length, options.seed * 100_000 - 1)
    written = translate(net, letters, options.length, vocab)
    names = {number: letter for letter, number in LETTERS.items()}
    for row, text, right in list(zip(letters, written, wanted.astype(int)))[:3]:
        name = "".join(names[int(i)] for i in row if i)
        print(
            f"{name} -> {''.join(pairs[i][0] for i in text)} "
            f"({''.join(pairs[i][0] for i in right)})"
        )
    print(f"syllables right in new texts: {(written == wanted).mean():.1%}\n")
    rows = [("", "ms a step", "last loss", "losses", "parameters against 3 devices", "MB")]
    for name, (losses, seconds) in results.items():
        same = (
            difference(results["3 devices"][0], losses),
            difference(parameters(net), parameters(made[name][1])),
        )
        rows.append(
            (name, milliseconds(seconds), f"{losses[-1]:.4f}", *same, megabytes(made[name][1]))
        )
    print_table(*rows)
    save(pipeline.plot(), output(options, "encoder_decoder.png"))
    why(ways, next(batches()), options.devices)


if __name__ == "__main__":
    main()
