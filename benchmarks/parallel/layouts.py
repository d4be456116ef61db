"""Time and host memory of mx.parallel.layouts for a Llama of 8 billion parameters, without values.

python benchmarks/parallel/layouts.py [--layers 32] [--devices 4]
"""

import argparse
import resource
import time

import mpgluon as mx
from mpgluon import nd
from mpgluon.gluon.model_zoo import text

CONFIG = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--memory", default="80GB", help="of each device")
    options = parser.parse_args()
    net = text.from_config({**CONFIG, "num_hidden_layers": options.layers})
    net.cast("bfloat16")
    begin = time.perf_counter()
    found = mx.parallel.layouts(
        net,
        nd.zeros((4, 1024), dtype="int32"),
        [options.memory] * options.devices,
        optimizer="adamw",
        optimizer_params={"multi_precision": True},
    )
    seconds = time.perf_counter() - begin
    print(found)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{seconds:.1f} s, {peak:.0f} MB of host memory at most")


if __name__ == "__main__":
    main()
