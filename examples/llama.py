"""Runs a language model in Hugging Face's format over several devices: loads its layers onto them,
fine-tunes low-rank adapters (LoRA) on a text in a pipeline, and generates text.

Without `--model`, a small Llama with random weights learns Python's standard library, byte by byte.
With `--model`, the folder of a model is loaded, and fine-tuned only if `--text` is given.

    python llama.py                                   # less than a minute on two cores
    python llama.py --model FOLDER --prompt "Once upon a time" --devices "gpu(0)" "gpu(1)"
    python llama.py --model FOLDER --memory 20 40     # GB of weights on each device at most
    python llama.py --model FOLDER --text FILE --steps 500 --save
    python llama.py --model FOLDER --text FILE --quantize nf4         # QLoRA
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

import mpgluon as mx
from common import add_text_options, output, parser, print_table
from corpus import read_text
from measuring import save
from mpgluon import gluon, nd
from mpgluon.contrib import lora
from mpgluon.gluon.model_zoo import text
from mpgluon.parallel import Pipeline, TrainStep


# --- The idea -------------------------------------------------------------------------------------
def load(options: argparse.Namespace, folder: str, is_trained: bool) -> Any:
    """Returns the network of a folder. Each device has consecutive layers with about the same
    bytes, or in proportion to ``--memory``. Arrays are read straight to their devices, and rounded
    to few bits with ``--quantize``. Gradients are needed only if the weights are trained."""
    return text.from_pretrained(
        folder,
        ctx=options.devices,
        memory=memory_of(options),
        quantize=options.quantize,
        grad_req="write" if is_trained else "null",
        verbose=True,
    )


def fine_tuning(net: Any, rank: int, rate: float, steps: int, micro_batches: int) -> TrainStep:
    """Returns a training step, ``losses = step(tokens, next_tokens)``, that sends a batch through
    the devices in micro-batches. It trains adapters of a rank, or all weights with rank 0."""
    if rank:
        layers = r"layers\..*\.(query|key|value|proj|gate|up|down)"
        lora.apply(net, {layers: rank}, alpha=2 * rank)
    schedule = mx.lr_scheduler.CosineScheduler(
        max_update=steps, base_lr=rate, final_lr=rate / 20, warmup_steps=steps // 10
    )
    trainer = gluon.Trainer(net.collect_params(), "adamw", {"lr_scheduler": schedule})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    return TrainStep(net, loss, trainer, Pipeline(micro_batches, "1f1b"))


def generate(net: Any, prompt: str, tokenizer: Any, **options: Any) -> None:
    """Prints a prompt and the text that follows, as soon as it is known. One compiled program per
    device computes a step; keys and values stay on the devices of their layers."""
    print(f"\n{prompt}", end="")
    for _, part in text.generate(net, prompt, tokenizer=tokenizer, stream=True, **options):
        print(part, end="", flush=True)
    print("\n")


# --- The model and its tokens ---------------------------------------------------------------------
def random_llama(folder: str, seed: int) -> None:
    """Writes the folder of a small Llama with random weights, whose tokens are bytes."""
    mx.random.seed(seed)
    net = text.from_config(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 256,
            "hidden_size": 128,
            "intermediate_size": 352,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "initializer_range": 0.06,
        }
    )
    net.initialize()
    net.save_parameters(folder, format="huggingface")


class Bytes:
    """A tokenizer for models whose tokens are the bytes of UTF-8."""

    def encode(self, source: str) -> list[int]:
        return list(source.encode())

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(tokens).decode(errors="replace")


def batches(
    tokens: Sequence[int], batch: int, length: int, seed: int
) -> Iterator[tuple[nd.NDArray, nd.NDArray]]:
    """Yields (tokens, next tokens) of shape (batch, length) each, from random windows."""
    if len(tokens) <= length:
        raise SystemExit(f"the text has only {len(tokens)} tokens; use a smaller --length")
    data, random = np.array(tokens, "int32"), np.random.RandomState(seed)
    while True:
        starts = random.randint(0, len(data) - length, batch)
        rows = np.stack([data[start : start + length + 1] for start in starts])
        yield nd.array(rows[:, :-1], dtype="int32"), nd.array(rows[:, 1:], dtype="int32")


# --- The program ----------------------------------------------------------------------------------
def memory_of(options: argparse.Namespace) -> dict[mx.Context, int] | None:
    """Returns the bytes of ``--memory`` by device."""
    if options.memory is None:
        return None
    if len(options.memory) != len(options.devices):
        raise SystemExit("--memory needs a number for each of the --devices")
    return {ctx: int(size * 1e9) for ctx, size in zip(options.devices, options.memory)}


def peaks(devices: Sequence[mx.Context]) -> list[str]:
    """Returns the largest number of MB in use on each device since the last call."""
    found = [mx.context.memory_stats(ctx)["peak_in_use"] for ctx in devices]
    for ctx in devices:
        mx.context.reset_peak_memory(ctx)
    return [f"{size / 1e6:.1f}" for size in found]


def train(net: Any, source: Sequence[int], rank: int, options: argparse.Namespace) -> None:
    """Fine-tunes the network on tokens, and prints losses and speed."""
    step = fine_tuning(net, rank, options.lr, options.steps, options.micro_batches)
    params = net.collect_params().values()
    trained = sum(p.data(p.list_ctx()[0]).size for p in params if p.grad_req != "null")
    print(f"{trained:,} numbers are trained")
    losses: list[float] = []
    given = batches(source, options.batch, options.length, options.seed)
    began = 0.0
    with tqdm(range(options.steps), unit="step", dynamic_ncols=True) as progress:
        for i in progress:
            if i == 1:  # the first step compiles
                began = time.perf_counter()
            losses.append(float(step(*next(given)).mean().asscalar()))
            progress.set_postfix(loss=f"{losses[-1]:.3f}")
    count = (options.steps - 1) * options.batch * options.length
    if count:
        print(f"training: {count / (time.perf_counter() - began):,.0f} tokens/s")
    print(f"loss {losses[0]:.3f} at the first step, {np.mean(losses[-10:]):.3f} at the last")
    print(step.pipeline.report())
    save(step.pipeline.plot(), output(options, "llama.png"))
    if rank and not options.quantize:
        lora.merge(net, keep=False)  # the speed of the original network


def main() -> None:
    arguments = parser(__doc__, devices=2, steps=200)
    add_text_options(arguments)
    arguments.add_argument("--model", help="a folder with config.json and safetensors")
    arguments.add_argument("--memory", type=float, nargs="+", help="GB of weights on each device")
    arguments.add_argument("--quantize", help="format of the weights, such as int8, int4, nf4")
    arguments.add_argument("--prompt", default="def ", help="text to continue")
    arguments.add_argument("--tokens", type=int, default=200, help="tokens to generate at most")
    arguments.add_argument("--temperature", type=float, default=0.7, help="0 for the likeliest")
    arguments.add_argument("--top-p", type=float, default=0.9)
    arguments.add_argument("--rank", type=int, help="of the adapters; 0 trains all weights")
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--length", type=int, default=128, help="tokens of a training sample")
    arguments.add_argument("--micro-batches", type=int, default=4)
    arguments.add_argument("--lr", type=float, default=3e-3)
    arguments.add_argument(
        "--save", action="store_true", help="write OUT/llama, in the same format"
    )
    arguments.add_argument(
        "--check", action="store_true", help="compare with the first device alone"
    )
    options = arguments.parse_args()
    mx.context.set_threads(1)  # equal thread counts, so that placement can't change a bit
    folder = options.model or output(options, "random_llama")
    if not options.model:
        random_llama(folder, options.seed)
    learns = bool(options.steps and (options.text or not options.model))
    has_adapters = bool(options.model or options.quantize)
    rank = options.rank if options.rank is not None else 16 if has_adapters else 0
    peaks(options.devices)
    net = load(options, folder, learns and not rank)
    if not isinstance(net, text.Decoder):
        raise SystemExit(f"{folder} holds a {type(net).__name__}; only language models generate")
    has_bytes = net.embed.weight.data().shape[0] == 256
    tokenizer: Any = Bytes() if has_bytes else text.tokenizer(folder)
    rows = [("", *map(str, options.devices)), ("MB, loading", *peaks(options.devices))]

    if learns:
        source = tokenizer.encode(read_text(options.text, options.limit)[0])
        train(net, source, rank, options)
        rows.append(("MB, training", *peaks(options.devices)))
    if options.save:
        net.save_parameters(output(options, "llama"), format="huggingface")
        print(f"wrote {output(options, 'llama')}")

    drawn = {"temperature": options.temperature, "seed": options.seed}
    if options.temperature:
        drawn["top_p"] = options.top_p
    drawn.update(max_new=options.tokens, tokenizer=tokenizer)
    generate(net, options.prompt, **drawn)
    given = [tokenizer.encode(options.prompt)]
    began = time.perf_counter()  # the steps are compiled
    found = text.generate(net, given, **drawn)
    took = time.perf_counter() - began
    print(f"generating: {len(found[0]) / took:,.0f} tokens/s")
    rows.append(("MB, generating", *peaks(options.devices)))
    print_table(*rows)
    if options.check:
        net.place(options.devices[0], verbose=False)
        same = text.generate(net, given, **drawn) == found
        print(f"the same tokens on {options.devices[0]} alone: {'yes' if same else 'no'}")


if __name__ == "__main__":
    main()
