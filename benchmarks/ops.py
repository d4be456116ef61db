"""Single ops of mpgluon against PyTorch: microseconds of each and their ratio.

    python benchmarks/ops.py [--threads 2] [--rounds 5] [--only WORDS ...] [--above 1.2] [--json
    FILE [--add]]

Two processes take turns op by op and round by round. The minimum time of all rounds counts, because
other load on the machine only adds to it. The cases are those of single_ops/cases.py.
"""

import argparse
import json
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from contender import Contender  # noqa: E402
from single_ops.case import twin_name  # noqa: E402
from single_ops.cases import CASES  # noqa: E402

MODULES = {"mpgluon": "single_ops.in_mpgluon", "PyTorch": "single_ops.in_pytorch"}


def measure(case, contenders, rounds, seconds):
    """Returns the minimum seconds of each contender, and of the call of mx.nd if the case has
    one."""
    calls = [(contender, case.name) for contender in contenders]
    calls += [(contenders[0], twin_name(case))] if case.twin else []
    times = [[] for _ in calls]
    for _ in range(rounds):
        for (contender, name), own in zip(calls, times):
            # The other library's threads spin for some milliseconds after their last op
            time.sleep(0.02)
            own.append(contender.ask(time=name, seconds=seconds))
    return [min(own) for own in times]


def table(rows):
    """Yields Markdown lines of (name, us of mpgluon, us of the other one, ratio), a table for each
    of the others."""
    for other in ("PyTorch", "mx.nd"):
        own = [row[:4] for row in rows if row[4] == other]
        if not own:
            continue
        yield f"| op | us | {other} | ratio |"
        yield "| --- | --: | --: | --: |"
        for name, ours, theirs, ratio in own:
            digits = 2 if ours < 10 else 0
            yield f"| {name} | {ours:,.{digits}f} | {theirs:,.{digits}f} | {ratio:.2f} |"
        yield ""


def groups(rows):
    """Yields Markdown lines with the ratios of each group."""
    yield "| group | cases | median ratio | largest |"
    yield "| --- | --: | --: | --: |"
    ratios = {}
    for name, _, _, ratio, other in rows:
        group = name.split(":")[0]
        ratios.setdefault(group if other == "PyTorch" else f"{group} / {other}", []).append(ratio)
    for group, own in ratios.items():
        yield f"| {group} | {len(own)} | {statistics.median(own):.2f} | {max(own):.2f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=0.02, help="of measuring per round and library"
    )
    parser.add_argument(
        "--only", nargs="+", default=[""], help="cases whose names have one of these in them"
    )
    parser.add_argument(
        "--above", type=float, default=0, help="show the rows above this ratio only"
    )
    parser.add_argument("--json", help="a file for the figures")
    parser.add_argument(
        "--add",
        action="store_true",
        help="replace those of the file that are measured now, keep the others",
    )
    options = parser.parse_args()
    chosen = [case for case in CASES if any(words in case.name for words in options.only)]
    if not chosen:
        parser.error(f"no case has {' or '.join(options.only)} in its name")
    contenders = [
        Contender(library, options.threads, sys.executable, module)
        for library, module in MODULES.items()
    ]
    if not contenders[1].version:
        raise SystemExit("PyTorch is not installed")
    found = {}
    if options.add and options.json and os.path.exists(options.json):
        with open(options.json) as f:
            found = json.load(f)
    for case in chosen:
        times = measure(case, contenders, options.rounds, options.seconds)
        found[case.name] = [seconds * 1e6 for seconds in times]
        if sys.stderr.isatty():
            print(f"{case.name}: {times[0] / times[1]:.2f}", file=sys.stderr)
    versions = [contender.version for contender in contenders]
    for contender in contenders:
        contender.close()
    if options.json:
        with open(options.json, "w") as f:
            json.dump(found, f, indent=1)
    rows = [
        (case.name, found[case.name][0], theirs, found[case.name][0] / theirs, other)
        for case in CASES
        if case.name in found
        for theirs, other in zip(found[case.name][1:], ("PyTorch", "mx.nd"))
    ]
    ratios = sorted(row[3] for row in rows if row[4] == "PyTorch")
    print("\n".join(table([row for row in rows if row[3] >= options.above])))
    print("\n".join(groups(rows)))
    above = ", ".join(
        f"{sum(r > limit for r in ratios)} above {limit}" for limit in (1.0, 1.2, 1.5)
    )
    print(
        f"\n{'; '.join(versions)}; {options.threads} threads; {len(ratios)} cases, median "
        f"{statistics.median(ratios):.2f}, {above}"
    )


if __name__ == "__main__":
    main()
