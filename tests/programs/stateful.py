"""Stateful random programs: operations on arrays, views, blocks, networks, trainers and foreign
memory in random order over several devices, compared with a NumPy model, with injected allocation
failures and interrupts. Every array is checked.

    python tests/programs/stateful.py --minutes 60 [--seed N] [--engine shuffle] [--jobs 2]

Programs run in a subprocess, one after the other, with increasing seeds. A failure (a wrong array,
an exception, the end of the process, two minutes without progress) is printed with its seed and
steps, minimized by omitting steps, and printed as

    python tests/programs/stateful.py --engine shuffle --one N --keep 3,17-40

which reproduces it, except for the time-dependent point of an alarm. The exit status is 1 if there
was a failure.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # tests

STEPS = 120
STUCK = 120  # seconds
ENGINES = ("async", "sync", "shuffle")


def told(line):
    print(line, flush=True)


def run_here(seed, keep, options):
    """Runs one program in this process and prints its steps; returns the error text or None."""
    import faulthandler

    from programs import stateful_machine

    def step(line):
        faulthandler.dump_traceback_later(STUCK, exit=True)
        told(line)

    faulthandler.enable()
    machine = stateful_machine.Machine(seed, trouble=not options.calm, log=step)
    try:
        machine.run(range(options.steps) if keep is None else keep)
        return None
    except BaseException:
        return traceback.format_exc()
    finally:
        faulthandler.cancel_dump_traceback_later()


def worker(options):
    """Runs programs one after the other; keeps the output of the last one."""
    from programs import stateful_machine

    sys.unraisablehook = lambda args: (
        None
        if isinstance(args.exc_value, stateful_machine.Interrupt)
        else sys.__unraisablehook__(args)
    )
    if options.one is not None:
        wrong = run_here(options.one, options.keep, options)
        if wrong:
            told(wrong)
        return 1 if wrong else 0
    end, seed = time.monotonic() + 60 * options.minutes, options.seed
    while time.monotonic() < end and seed - options.seed != options.programs:
        os.lseek(1, 0, os.SEEK_SET)
        os.ftruncate(1, 0)
        told(f"seed {seed}")
        wrong = run_here(seed, None, options)
        if wrong:
            told(wrong)
            return 1
        seed += 1
    told(f"done {seed}")
    return 0


def ranges(numbers):
    """Formats numbers for `--keep`: 3,17-40."""
    parts = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def numbers_of(text):
    pairs = [part.split("-") for part in text.split(",") if part]
    return [number for pair in pairs for number in range(int(pair[0]), int(pair[-1]) + 1)]


def start(arguments, environment):
    """Runs this program in a subprocess; returns its exit status and output."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.run(
            [sys.executable, __file__, *map(str, arguments)],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        output.seek(0)
        return process.returncode, output.read()


def asked(options):
    """Returns the arguments that all programs of a run share."""
    flags = {"--calm": options.calm, "--no-poison": options.no_poison}
    chosen = [flag for flag, on in flags.items() if on]
    return ["--engine", options.engine, "--steps", options.steps, *chosen]


def shorter(seed, options, environment):
    """Returns a minimized list of steps that still fail and the output of the last failing run;
    (None, text) if the program does not fail alone."""
    common = ["--worker", *asked(options), "--one", seed]

    def fails(keep):
        code, text = start([*common, "--keep", ranges(keep)], environment)
        return text if code else None

    keep = list(range(options.steps))
    text = fails(keep)
    if text is None:
        return None, ""
    end, size = time.monotonic() + options.shrink_seconds, len(keep) // 2
    while size and time.monotonic() < end:
        begin = 0
        while begin < len(keep) and time.monotonic() < end:
            fewer = keep[:begin] + keep[begin + size :]
            found = fails(fewer)
            if found:
                keep, text = fewer, found
            else:
                begin += size
        size //= 2
    return keep, text


def begun_later(first, seed, options, environment):
    """Returns a late first seed with which `seed` still fails, searched at doubling distances."""
    distance = 1
    while seed - distance > first:
        begin = ["--seed", seed - distance, "--programs", distance + 1]
        if start(["--worker", *asked(options), *begin], environment)[0]:
            return seed - distance
        distance *= 2
    return first


def hunt(options, environment):
    """Runs programs for the requested time; returns the number of failures and of programs."""
    end, seed, findings, first = (
        time.monotonic() + 60 * options.minutes,
        options.seed,
        0,
        options.seed,
    )
    command = f"python tests/programs/stateful.py {' '.join(map(str, asked(options)))}"
    while time.monotonic() < end and seed - first != options.programs:
        left = (end - time.monotonic()) / 60
        arguments = ["--worker", *asked(options), "--minutes", left, "--seed", seed]
        if options.programs is not None:
            arguments += ["--programs", first + options.programs - seed]
        code, text = start(arguments, environment)
        lines = [line.split() for line in text.splitlines()]
        seeds = [words[1] for words in lines if len(words) == 2 and words[0] in ("seed", "done")]
        last = int(seeds[-1]) if seeds else seed
        if code == 0:
            seed = last
            break
        findings += 1
        told(f"finding: seed {last} (the process began with {seed}), exit status {code}")
        told(text[-20000:])
        keep, shown = shorter(last, options, environment)
        if keep is None:
            begin = begun_later(seed, last, options, environment)
            told("It does not fail alone.")
            told(f"Repeat it: {command} --seed {begin} --programs {last + 1 - begin}")
        else:
            told(f"{shown[-20000:]}\nRepeat it: {command} --one {last} --keep {ranges(keep)}")
        seed = last + 1
        if findings >= options.most:
            break
    return findings, seed - first


def main():
    parser = argparse.ArgumentParser(description="Stateful random programs.")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--programs", type=int, help="at most; otherwise what the minutes hold")
    parser.add_argument(
        "--seed", type=int, help="of the first program; a fresh one is drawn and printed"
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--engine", choices=ENGINES, default=os.environ.get("MPGLUON_ENGINE") or "async"
    )
    parser.add_argument(
        "--no-poison", action="store_true", help="leave memory that pools take back as it is"
    )
    parser.add_argument(
        "--calm", action="store_true", help="no failing allocations and no interrupts"
    )
    parser.add_argument("--one", type=int, metavar="SEED", help="one program")
    parser.add_argument(
        "--keep", type=numbers_of, help="with --one: its steps that are run, as 3,17-40"
    )
    parser.add_argument("--most", type=int, default=5, help="findings after which to stop")
    parser.add_argument("--shrink-seconds", type=float, default=60)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options)
    environment = dict(
        os.environ,
        MPGLUON_ENGINE=options.engine,
        MPGLUON_POOL_POISON="0" if options.no_poison else "1",
        PYTHONUNBUFFERED="1",
    )
    environment.setdefault("MPGLUON_CPU_THREADS", "1")
    if options.one is not None:
        code, text = start(["--worker", *sys.argv[1:]], environment)
        print(text)
        return code
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 40)
    print(f"seed {options.seed}, engine {options.engine}", flush=True)
    findings, programs = hunt(options, environment)
    print(
        f"{findings} findings in {programs} programs from seed {options.seed} on, engine "
        f"{options.engine}",
        flush=True,
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
