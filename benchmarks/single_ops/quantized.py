"""Measures products with packed weights, and the decoding of a Llama of 279 M parameters.

    python benchmarks/single_ops/quantized.py [--threads 1] [--dtype bfloat16] [--only products]

Formats take turns, round by round, so other load on the machine affects all of them equally. Times
are CPU times of the whole process, in milliseconds, from the best round. The rate of a product
with one row is the bytes of the weight per second.
"""

import argparse
import time

import mpgluon as mx
from mpgluon import nd
from mpgluon.gluon.model_zoo import text

FORMATS = ["float", "int8:0", "int8:32", "int4:32", "int4:64", "nf4:64"]
FORMATS += ["q8_0:0", "q4_0:0", "q4_k:0", "q6_k:0"]
LAYER = {"query": (1024, 1024), "gate": (3328, 1024), "down": (1024, 3328), "head": (32000, 1024)}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 3328,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
PROMPT = 64


def split(name):
    """Returns the format and the group of a name such as 'int4:32'."""
    format, _, group = name.partition(":")
    return format, int(group or 0)


def best_times(calls, rounds):
    """Calls all functions in turns. Returns the shortest CPU time of each."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - start)
    return best


def product(name, weight, x, repeats):
    """Returns a function that multiplies x by a weight, and the bytes of the weight."""
    format, group = split(name)
    units, in_units = weight.shape
    if format == "float":
        arrays, options = {"weight": weight.astype(x.dtype)}, {"num_hidden": units}
        op, options["no_bias"] = nd.FullyConnected, True
    else:
        if in_units % 256 and format in ("q4_k", "q6_k"):
            return None, 0
        arrays = mx.contrib.quantization.quantize_array(weight, format, group)
        options = {"format": format, "group": group, "units": units, "in_units": in_units}
        op = nd.contrib.quantized_dot

    def call():
        for _ in range(repeats):
            y = op(x, **arrays, **options)
        y.wait_to_read()

    return call, sum(a.asnumpy().nbytes for a in arrays.values())


def measure_products(rows, dtype, rounds):
    for name, shape in LAYER.items():
        weight = nd.random.normal(shape=shape)
        x = nd.random.normal(shape=(rows, shape[1])).astype(dtype)
        repeats = max(1, (1 << 25) // (shape[0] * shape[1] * rows))
        calls, sizes = {}, {}
        for format in FORMATS:
            call, sizes[format] = product(format, weight, x, repeats)
            if call is not None:
                calls[format] = call
        cells = []
        for format, seconds in best_times(calls, rounds).items():
            seconds /= repeats
            rate = f" ({sizes[format] / seconds / 1e9:.0f} GB/s)" if rows == 1 else ""
            cells.append(f"{format} {1e3 * seconds:.3f}{rate}")
        print(f"{name} {shape}, {rows} rows of {dtype}: " + ", ".join(cells), flush=True)


def network(name, dtype):
    mx.random.seed(0)
    net = text.from_config(CONFIG)
    net.initialize(mx.init.Normal(0.02))
    format, group = split(name)
    if format != "float":
        mx.contrib.quantization.quantize_weights(net, format, group)
    net.cast(dtype)
    net.hybridize()
    return net


def measure_network(dtype, rounds, steps=16):
    tokens = nd.array([list(range(PROMPT))])
    decode, prompt = {}, {}
    for name in FORMATS:
        net = network(name, dtype)
        decode[name] = lambda net=net: text.generate(net, [[1]], max_new=steps + 1)
        prompt[name] = lambda net=net: net(tokens).wait_to_read()
    for what, calls, count in (("decode", decode, steps), ("prompt", prompt, PROMPT)):
        times = best_times(calls, rounds)
        cells = [f"{name} {1e3 * seconds / count:.2f}" for name, seconds in times.items()]
        print(f"{what}, {dtype}, ms per token: " + ", ".join(cells), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Packed weights.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--only", choices=["products", "network"])
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    options = parser.parse_args()
    FORMATS = options.formats
    mx.context.set_threads(options.threads)
    if options.only != "network":
        for rows in (1, 4, PROMPT):
            measure_products(rows, options.dtype, options.rounds)
    if options.only != "products":
        measure_network(options.dtype, options.rounds)
