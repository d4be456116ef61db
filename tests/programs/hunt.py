"""Searches for defects with all random generators in turn, for a given time.

    python tests/programs/hunt.py --seconds 7200 [--seed 7]

`make hunt SECONDS=7200 SEED=7` is the same. Every turn derives fresh seeds from the first one and
prints the command that reproduces it. The generator prints each failure with the smallest program
that still fails. The exit status is 1 if there was a failure.
"""

import argparse
import os
import random
import subprocess
import sys
import time

PROGRAMS = os.path.dirname(os.path.abspath(__file__))
TURN = 60  # seconds per generator

# Options of each generator for a turn of `seconds` with `seed`
GENERATORS = {
    "feature_programs.py": lambda seconds, seed: ["--seconds", seconds, "--seed", seed],
    "random_networks.py": lambda seconds, seed: ["--seconds", seconds, "--seed", seed],
    "random_pipelines.py": lambda seconds, seed: ["--seconds", seconds, "--seed", seed],
    "random_partitions.py": lambda seconds, seed: ["--seconds", seconds, "--seed", seed],
    "random_shapes.py": lambda seconds, seed: ["--seconds", seconds, "--seed", seed],
    "random_generation.py": lambda seconds, seed: ["--seconds", seconds, "--seed", seed],
    "stateful.py": lambda seconds, seed: [
        "--minutes",
        seconds / 60,
        "--seed",
        seed,
        "--engine",
        ("async", "sync", "shuffle")[seed % 3],
    ],
    "op_fuzz.py": lambda seconds, seed: ["--seconds", seconds, "--seed", seed, "--shrink"],
    "stateful_training.py": lambda seconds, seed: ["--seconds", seconds, "--seed", seed],
}


def turns(seconds, seed):
    """Yields (program, options) of each turn until the time is over."""
    names = list(GENERATORS)
    draw, end, number = random.Random(seed), time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        name = names[number % len(names)]
        share = max(1, round(min(left, TURN, seconds / len(names))))
        yield name, [str(option) for option in GENERATORS[name](share, draw.randrange(10**9))]
        number += 1


def hunt(seconds, seed):
    """Runs all turns; returns the number of turns with a failure."""
    findings = 0
    path = os.pathsep.join([os.path.dirname(PROGRAMS), os.environ.get("PYTHONPATH", "")])
    environment = dict(os.environ, PYTHONPATH=path.rstrip(os.pathsep))
    for name, options in turns(seconds, seed):
        print(f"python tests/programs/{name} {' '.join(options)}", flush=True)
        done = subprocess.run(
            [sys.executable, os.path.join(PROGRAMS, name), *options],
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        if done.returncode != 0:
            findings += 1
            print(f"finding: {name} ended with exit status {done.returncode}", flush=True)
    return findings


def main():
    parser = argparse.ArgumentParser(description="All random generators in turn.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, help="a fresh one by default")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    print(f"--seed {seed}", flush=True)
    findings = hunt(options.seconds, seed)
    print(f"{findings} findings from seed {seed} in {options.seconds:.0f} s", flush=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
