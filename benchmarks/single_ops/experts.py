"""Compares a mixture of experts with a dense layer of the same work, and with the block of
transformers, if it is installed: milliseconds, and the ratio to the dense layer.

    python benchmarks/single_ops/experts.py [--threads 1] [--rounds 10]

The dense layer has k times the hidden values of an expert, so both multiply and add equally often.
All contenders run in turns. Of the two ways of transformers, a loop and grouped products, the
faster one counts. Times are wall times, so the machine must be quiet. The best of all rounds
counts.
"""

import argparse
import os
import time

# name -> (experts, k, units, hidden values of an expert, tokens)
CASES = {
    "8 experts, 2 per token": (8, 2, 512, 896, 1024),
    "64 experts, 8 per token": (64, 8, 512, 224, 1024),
    "8 experts, 2 per token, 32 tokens": (8, 2, 512, 896, 32),
    "64 experts, 8 per token, 1 token": (64, 8, 512, 224, 1),
}


def of_mpgluon(block, units, tokens, train):
    from mpgluon import autograd, init, nd

    block.initialize(init.Normal(0.05))
    block.hybridize()
    x = nd.random.normal(shape=(1, tokens, units))
    x.attach_grad()

    def run():
        if train:
            with autograd.record():
                y = block(x)
            y.backward()
        else:
            block(x)
        nd.waitall()

    return run


def of_transformers(way, threads, experts, k, units, hidden, tokens, train):
    """Returns the block with a loop over experts ("eager") or grouped products ("grouped_mm"), or
    None without transformers."""
    try:
        import torch
        from transformers import MixtralConfig
        from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
    except ImportError:
        return None
    torch.set_num_threads(threads)
    config = MixtralConfig(
        hidden_size=units,
        intermediate_size=hidden,
        num_local_experts=experts,
        num_experts_per_tok=k,
    )
    config._experts_implementation = way
    block = MixtralSparseMoeBlock(config)
    for p in block.parameters():
        torch.nn.init.normal_(p, std=0.05)
    x = torch.randn(1, tokens, units, requires_grad=True)

    def run():
        if train:
            block(x).sum().backward()
            block.zero_grad()
        else:
            with torch.no_grad():
                block(x)

    return run


def measure(contenders, rounds):
    """Returns the best time of each contender in seconds."""
    best = [float("inf")] * len(contenders)
    for i in range(rounds + 2):
        for number, run in enumerate(contenders):
            start = time.perf_counter()
            run()
            if i >= 2:
                best[number] = min(best[number], time.perf_counter() - start)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    os.environ["MPGLUON_CPU_THREADS"] = str(options.threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from mpgluon.gluon import nn

    print("| case | dense ms | nn.MoE ms | / dense | transformers ms | / dense |")
    print("| --- | --: | --: | --: | --: | --: |")
    for name, (experts, k, units, hidden, tokens) in CASES.items():
        for train in (False, True):
            dense = nn.GatedMLP(units, hidden * k, in_units=units)
            mixture = nn.MoE(units, hidden, experts, k, in_units=units)
            contenders = [of_mpgluon(block, units, tokens, train) for block in (dense, mixture)]
            for way in ("eager", "grouped_mm"):
                peer = of_transformers(
                    way, options.threads, experts, k, units, hidden, tokens, train
                )
                contenders += [peer] if peer else []
            times = measure(contenders, options.rounds)
            cells = [f"{1e3 * times[0]:.2f}"]
            for seconds in [times[1], *([min(times[2:])] if times[2:] else [])]:
                cells += [f"{1e3 * seconds:.2f}", f"{seconds / times[0]:.2f}"]
            label = name + (", training" if train else "")
            print(f"| {label} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
