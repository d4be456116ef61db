"""A two-layer LSTM language model on two devices: one hybridized block, one Trainer, real text.

The first half of the network (embedding, first LSTM) is on one device, the second (second LSTM,
decoder) on another. The block moves its data with ``as_in_context``; otherwise it is an ordinary
block. The text is the source code of Python's standard library, which every machine has; ``--text
FILE`` uses another text.

    python model_parallel_lm.py                    # cpu(0) and cpu(1), two minutes on two cores
    python model_parallel_lm.py --devices "gpu(0)" "gpu(1)"
"""

import argparse
import math
import time
from typing import Any

import numpy as np
from tqdm import tqdm

import mpgluon as mx
from common import add_text_options, output, parser
from corpus import TOKEN, Corpus, batches, read_text
from measuring import Event, draw_timeline, new_figure, save, why
from mpgluon import autograd, gluon
from mpgluon.gluon import nn, rnn


# --- The idea -------------------------------------------------------------------------------------
class ModelParallelLM(gluon.HybridBlock):
    """Embedding and LSTM 1 on the device of their parameters; LSTM 2 and the decoder on `ctx2`.

    Takes tokens (time, batch) and the states of both layers; returns scores (time, batch, vocab) on
    `ctx2` and the new states.
    """

    def __init__(
        self, vocab: int, hidden: int, ctx1: mx.Context, ctx2: mx.Context, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.ctx1, self.ctx2 = ctx1, ctx2
        with self.name_scope():
            self.embed = nn.Embedding(vocab, hidden)
            self.lstm1 = rnn.LSTM(hidden, input_size=hidden)
            self.lstm2 = rnn.LSTM(hidden, input_size=hidden)
            self.decoder = nn.Dense(vocab, in_units=hidden, flatten=False)

    def hybrid_forward(self, F: Any, tokens: Any, state1: Any, state2: Any) -> Any:
        out, state1 = self.lstm1(self.embed(tokens), state1)
        out, state2 = self.lstm2(out.as_in_context(self.ctx2), state2)
        return self.decoder(out), state1, state2

    def initialized(self, init: Any) -> "ModelParallelLM":
        """Initializes every child on its own device."""
        for child, ctx in (
            (self.embed, self.ctx1),
            (self.lstm1, self.ctx1),
            (self.lstm2, self.ctx2),
            (self.decoder, self.ctx2),
        ):
            child.initialize(init, ctx=ctx)
        return self

    def begin_state(self, batch: int) -> Any:
        return self.lstm1.begin_state(batch, ctx=self.ctx1), self.lstm2.begin_state(
            batch, ctx=self.ctx2
        )


# --- Training -------------------------------------------------------------------------------------
def detach(states: Any) -> Any:
    return [[array.detach() for array in state] for state in states]


class Training:
    """A network, its loss and its Trainer, stepped batch by batch with the states carried over."""

    def __init__(self, net: ModelParallelLM, options: argparse.Namespace, total_steps: int) -> None:
        self.net, self.options = net, options
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss()
        schedule = mx.lr_scheduler.CosineScheduler(
            total_steps,
            base_lr=options.lr,
            final_lr=options.lr / 20,
            warmup_steps=min(50, total_steps // 10),
        )
        self.trainer = gluon.Trainer(
            net.collect_params(), "adam", {"learning_rate": options.lr, "lr_scheduler": schedule}
        )
        self.states = net.begin_state(options.batch)

    def forward(self, inputs: Any, targets: Any) -> Any:
        x = mx.nd.array(inputs, ctx=self.net.ctx1)
        y = mx.nd.array(targets, ctx=self.net.ctx2)
        scores, *self.states = self.net(x, *self.states)
        self.states = detach(self.states)
        return self.loss(scores.reshape((-1, scores.shape[-1])), y.reshape((-1,))).mean()

    def step(self, inputs: Any, targets: Any) -> Any:
        """Runs one step of truncated backpropagation; returns the loss, which may still be in
        flight."""
        with autograd.record():
            loss = self.forward(inputs, targets)
        loss.backward()
        gradients = [
            p.grad(ctx) for p in self.net.collect_params().values() for ctx in p.list_ctx()
        ]
        gluon.utils.clip_global_norm(gradients, self.options.clip, check_isfinite=False)
        self.trainer.step(1)
        return loss

    def evaluate(self, tokens: np.ndarray) -> float:
        """Returns the perplexity over `tokens` with fresh states."""
        kept, self.states = self.states, self.net.begin_state(self.options.batch)
        losses = [
            self.forward(x, y) for x, y in batches(tokens, self.options.batch, self.options.bptt)
        ]
        self.states = kept
        return math.exp(sum(float(loss.asscalar()) for loss in losses) / len(losses))


def build(
    options: argparse.Namespace,
    vocab: int,
    ctx1: mx.Context,
    ctx2: mx.Context,
    hybridize: bool = False,
    exact: bool = False,
) -> Any:
    mx.random.seed(options.seed)
    net = ModelParallelLM(vocab, options.hidden, ctx1, ctx2, prefix="lm_").initialized(
        mx.init.Uniform(0.1)
    )
    if hybridize:
        net.hybridize(exact=exact)
    return net


def check_equality(
    corpus: Corpus, options: argparse.Namespace, ctx1: mx.Context, ctx2: mx.Context
) -> bool:
    """Runs the first steps in three ways; True if losses and all parameters are equal bit for
    bit."""
    ways = [
        ("eager, one device", ctx1, ctx1, False),
        ("eager, two devices", ctx1, ctx2, False),
        ("hybridized (exact), two devices", ctx1, ctx2, True),
    ]
    results = []
    for name, first, second, hybridize in ways:
        net = build(options, len(corpus.words), first, second, hybridize, exact=True)
        training = Training(net, options, 1000)
        data = batches(corpus.train, options.batch, options.bptt)
        steps = [training.step(*next(data)) for _ in range(options.check_steps)]
        losses = np.array([loss.asscalar() for loss in steps])
        results.append(
            (
                losses,
                {k: v.data(v.list_ctx()[0]).asnumpy() for k, v in net.collect_params().items()},
            )
        )
        print(f"  {name:34s} loss of step {len(losses)}: {losses[-1]:.9g}")
    first_losses, reference = results[0]
    equal = all(
        losses.tobytes() == first_losses.tobytes()
        and all(values[k].tobytes() == reference[k].tobytes() for k in reference)
        for losses, values in results[1:]
    )
    print(
        f"  all {options.check_steps} losses and all {len(reference)} parameters equal bit for "
        f"bit: {'yes' if equal else 'NO'}"
    )
    return equal


def train(
    training: Training, corpus: Corpus, options: argparse.Namespace, total: int
) -> tuple[list[Any], list[Any]]:
    """Trains for `total` steps with a progress bar; returns [(step, loss)] and [(step, validation
    perplexity)]."""
    curve, valid_curve, pending = [], [], []
    progress = tqdm(total=total, unit="step", dynamic_ncols=True)
    start, smooth, step = time.perf_counter(), None, 0
    while step < total:
        training.states = training.net.begin_state(options.batch)
        for x, y in batches(corpus.train, options.batch, options.bptt):
            pending.append((step, training.step(x, y)))
            step += 1
            # Losses are read in groups, so that the devices never wait for Python
            if len(pending) == 10 or step == total:
                for at, loss in pending:
                    value = float(loss.asscalar())
                    smooth = value if smooth is None else 0.95 * smooth + 0.05 * value
                    curve.append((at, value))
                rate = step * options.bptt * options.batch / (time.perf_counter() - start)
                progress.set_postfix(
                    loss=f"{smooth:.3f}",
                    ppl=f"{math.exp(min(smooth or 0.0, 20)):.1f}",
                    tokens_s=f"{rate:.0f}",
                )
                progress.update(len(pending))
                pending = []
            if step == total:
                break
            if step % max(1, total // 4) == 0:
                valid_curve.append(
                    (step, training.evaluate(corpus.valid[: options.batch * options.bptt * 8 + 1]))
                )
    progress.close()
    return curve, valid_curve


# --- Samples and plots ----------------------------------------------------------------------------
def sample_text(net: Any, corpus: Corpus, prompt: str, length: int, seed: int) -> str:
    """Continues `prompt` by `length` tokens drawn from the model."""
    random = np.random.RandomState(seed)
    states = net.begin_state(1)
    tokens = [corpus.number.get(w, 0) for w in TOKEN.findall(prompt)]
    given = tokens
    for _ in range(length):
        x = mx.nd.array(np.array(given, dtype=np.float32).reshape(-1, 1), ctx=net.ctx1)
        scores, *states = net(x, *states)
        logits = scores[-1, 0].asnumpy().astype(np.float64) / 0.8
        logits[0] = -np.inf  # never draw the unknown token
        p = np.exp(logits - logits.max())
        given = [int(random.choice(len(p), p=p / p.sum()))]
        tokens = tokens + given
    return "".join(corpus.words[t] for t in tokens)


def draw(path: str, curve: Any, valid_curve: Any, unigram: float, events: list[Event]) -> None:
    """Saves loss curves next to the timeline of the devices as a PNG."""
    figure, (left, right) = new_figure(15, 5, columns=2)
    left.plot(*zip(*curve), color="#9db8d9", linewidth=0.8, label="training, each step")
    losses, window = np.array([value for _, value in curve]), max(1, len(curve) // 40)
    means = np.convolve(losses, np.ones(window) / window, "valid")
    left.plot(
        np.arange(len(means)) + window - 1,
        means,
        color="#1f4e8c",
        label=f"training, mean of {window}",
    )
    left.plot(
        [s for s, _ in valid_curve],
        [math.log(p) for _, p in valid_curve],
        "o-",
        color="#c0392b",
        label="validation",
    )
    left.axhline(math.log(unigram), color="gray", linestyle="--", label="unigram model")
    left.set(xlabel="step", ylabel="loss (nats per token)", title="Language model on two devices")
    left.legend()
    draw_timeline(right, events)
    right.set(title="Timeline of a training step")
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, frameon=False)
    save(figure, path)


def arguments() -> argparse.Namespace:
    result = parser(__doc__, devices=2, steps=500, count=2, out="demo-output")
    add_text_options(result, limit=4_000_000)
    result.add_argument("--hidden", type=int, default=256, help="size of embedding and LSTMs")
    result.add_argument("--vocab", type=int, default=4000, help="number of tokens told apart")
    result.add_argument("--batch", type=int, default=32, help="text streams side by side")
    result.add_argument(
        "--bptt", type=int, default=35, help="time steps of one truncated back-propagation"
    )
    result.add_argument("--lr", type=float, default=3e-3, help="learning rate after warm-up")
    result.add_argument(
        "--clip", type=float, default=1.0, help="largest global norm of the gradients"
    )
    result.add_argument("--check-steps", type=int, default=20, help="steps of the equality check")
    return result.parse_args()


def main() -> None:
    options = arguments()
    begin = time.perf_counter()
    mx.context.set_threads(1)  # equal thread counts, so that placement can't change a bit
    ctx1, ctx2 = options.devices
    corpus = Corpus(*read_text(options.text, options.limit), options.vocab)
    unigram = corpus.unigram_perplexity()
    print(
        f"text: {len(corpus.train):,} training and {len(corpus.valid):,} validation tokens, "
        f"vocabulary {len(corpus.words):,}"
    )

    print(f"\nthe first {options.check_steps} steps, three ways:")
    if not check_equality(corpus, options, ctx1, ctx2):
        raise SystemExit("the three ways differ")

    print(f"\ntraining on {ctx1} and {ctx2}, hybridized:")
    net = build(options, len(corpus.words), ctx1, ctx2, hybridize=True)
    training = Training(net, options, options.steps)
    curve, valid_curve = train(training, corpus, options, options.steps)
    perplexity = training.evaluate(corpus.valid)
    valid_curve.append((options.steps, perplexity))

    params, states = output(options, "lm.params"), output(options, "lm.states")
    net.save_parameters(params)
    training.trainer.save_states(states)
    single = build(options, len(corpus.words), ctx1, ctx1)
    single.load_parameters(params, ctx=ctx1)
    single.hybridize()
    again = Training(single, options, options.steps)
    again.trainer.load_states(states)
    one_device = again.evaluate(corpus.valid)

    print("\nwhat was compiled:")
    print(net.compiled())
    print("\nthe programs:\n" + net.compiled().programs())
    for ctx in dict.fromkeys((ctx1, ctx2)):
        stats = mx.context.memory_stats(ctx)
        print(
            f"  {ctx}: {stats['in_use'] / 2**20:.1f} MiB in use, peak "
            f"{stats['peak_in_use'] / 2**20:.1f} MiB, {stats['held'] / 2**20:.1f} MiB held"
        )
    print(
        f"\nsaved to {params} and {states}; loaded onto {ctx1} alone: validation perplexity "
        f"{one_device:.4f} (two devices: {perplexity:.4f})"
    )
    sample = sample_text(single, corpus, "\n\ndef ", 120, options.seed)
    ways = {"1 device": again.step, "2 devices": training.step}
    batch = next(batches(corpus.train, options.batch, options.bptt))
    works = why(ways, batch, options.devices)
    print(
        "Here the second device waits for the first one's whole sequence, and the other way round; "
        "lstm_pipeline.py has both at work."
    )
    draw(output(options, "lm.png"), curve, valid_curve, unigram, works["2 devices"].events)
    print("\na sample:\n" + "-" * 60)
    print(sample)
    print("-" * 60)
    print(
        f"validation perplexity {perplexity:.1f}; a unigram model has {unigram:.1f}. "
        f"{time.perf_counter() - begin:.0f} s in all."
    )


if __name__ == "__main__":
    main()
