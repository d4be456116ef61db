"""Compares language models of today with transformers on PyTorch.

    python benchmarks/text/models.py [--cases decode,prompt] [--rounds 3] [--threads 2]
    [--peer-python PYTHON]

The models are Llamas with random weights, the same for both libraries. Each contender runs in a
process of its own; the processes of a case take turns, round by round. "CPU" is the time of all
threads, which other load on the machine affects less than the elapsed time. The best round of each
counts. The peer needs torch, transformers and peft; without --peer-python, the interpreter of this
program is tried. Peak memory includes the libraries.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from contender import environment

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def llama(vocab, units, layers, heads, kv_heads, hidden):
    return dict(
        LLAMA,
        vocab_size=vocab,
        hidden_size=units,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=hidden,
        head_dim=units // heads,
    )


MODELS = {
    "0.84M": llama(1024, 128, 4, 8, 2, 256),
    "19M": llama(8192, 384, 8, 6, 2, 1024),
    "95M": llama(16000, 768, 10, 12, 12, 2048),
    "278M": llama(32000, 1024, 18, 16, 8, 2816),
}
# name: (title, contenders, options). A contender is (label, library, options).
OURS, EAGER = ("mpgluon", "mpgluon", {}), ("PyTorch", "pytorch", {})
COMPILED = ("torch.compile", "pytorch", {"compile": True})


def case(title, contenders, **options):
    return title, contenders, options


CASES = {}
for dtype in ("float32", "bfloat16"):
    CASES[f"decode-{dtype}"] = case(
        f"decode 278 M, {dtype}, 1 thread, a token",
        [OURS, EAGER],
        work="decode",
        tokens=32,
        model="278M",
        dtype=dtype,
        threads=1,
    )
    CASES[f"prompt-{dtype}"] = case(
        f"prompt of 64 tokens, 278 M, {dtype}, 1 thread, a token",
        [OURS, EAGER],
        work="prompt",
        model="278M",
        dtype=dtype,
        threads=1,
    )
CASES["small"] = case(
    "decode 19 M, float32, a token",
    [OURS, EAGER, COMPILED],
    work="decode",
    tokens=128,
    model="19M",
)
CASES["overhead"] = case(
    "decode 0.84 M, a token",
    [OURS, ("mpgluon, two devices", "mpgluon", {"devices": 2}), EAGER],
    work="decode",
    tokens=1000,
    model="0.84M",
    threads=1,
)
CASES["train"] = case(
    "training step 95 M, 4 x 256, Adam, float32",
    [OURS, EAGER, COMPILED],
    work="train",
    model="95M",
    rows=4,
    time=256,
)
CASES["lora"] = case(
    "training step 278 M, 2 x 128, Adam: LoRA of rank 16",
    [
        ("mpgluon, full", "mpgluon", {"work": "train"}),
        ("mpgluon, LoRA", "mpgluon", {}),
        ("PyTorch, full", "pytorch", {"work": "train"}),
        ("PEFT", "pytorch", {}),
    ],
    work="lora",
    model="278M",
    rows=2,
    time=128,
)
CASES["load"] = case(
    "load 278 M, float32 (1.1 GB), onto two devices",
    [
        ("reading the file", "mpgluon", {"work": "read"}),
        ("mpgluon", "mpgluon", {"devices": 2}),
        ("PyTorch", "pytorch", {}),
    ],
    work="load",
    model="278M",
)


class Process:
    """A process of in_mpgluon.py or in_pytorch.py. `ready` is None if its library is missing."""

    def __init__(self, python, library, options):
        threads = str(options["threads"])
        counts = {"OMP_NUM_THREADS": threads, "MPGLUON_CPU_THREADS": threads}
        self.process = subprocess.Popen(
            [python, "-m", f"text.in_{library}", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(environment(), **counts),
        )
        line = self.process.stdout.readline()
        self.ready = json.loads(line) if line.strip() else None

    def measure(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a measured process died")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def keep_best(best, answer):
    """Keeps the least times and the peak memory."""
    for key, value in answer.items():
        pick = max if key == "peak" else min
        best[key] = pick(value, best.get(key, value))


def measure(name, folder, arguments):
    """Prints the rows of a case."""
    title, contenders, options = CASES[name]
    processes = []
    for label, library, own in contenders:
        python = arguments.peer_python if library == "pytorch" else sys.executable
        given = {"dtype": "float32", "threads": arguments.threads, "devices": 1, **options, **own}
        given["folder"] = os.path.join(folder, given["model"])
        process = Process(python, library, given)
        if process.ready is None:
            print(f"| {title} | {label}: {library} is not installed in {python} | | | |")
        else:
            processes.append((label, process, {}))
    for _ in range(arguments.rounds):
        for _, process, best in processes:
            keep_best(best, process.measure())
    for label, process, best in processes:
        process.close()
        more = "; ".join(f"{key} {value}" for key, value in process.ready.items())
        print(
            f"| {title} | {label} | {1e3 * best['cpu']:.3g} | {1e3 * best['wall']:.3g} | "
            f"{best['peak'] / 2**20:.0f} | {more} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(CASES), help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--folder", help="keep the models here, and use those that are there")
    arguments = parser.parse_args()
    names = arguments.cases.split(",")
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise SystemExit(f"unknown case {unknown[0]!r}; expected some of {', '.join(CASES)}")
    folder = arguments.folder or tempfile.mkdtemp()
    try:
        for model in dict.fromkeys(CASES[name][2]["model"] for name in names):
            path = os.path.join(folder, model)
            if not os.path.isdir(path):
                subprocess.run(
                    [
                        sys.executable,
                        "-m",
                        "text.in_mpgluon",
                        "make",
                        path,
                        json.dumps(MODELS[model]),
                    ],
                    check=True,
                    env=environment(),
                )
        print("| case | contender | CPU ms | elapsed ms | peak MiB | notes |")
        print("| --- | --- | --: | --: | --: | --- |")
        for name in names:
            measure(name, folder, arguments)
    finally:
        if not arguments.folder:
            shutil.rmtree(folder)
    with open("/proc/loadavg") as file:
        print("load:", file.read().split()[0])


if __name__ == "__main__":
    main()
