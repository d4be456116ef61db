"""The planner's choice against all contiguous splits, all measured: the distance of the choice from
the best, and of the prediction from the measurement.

    python benchmarks/plan_choice.py [--cases mlp,transformer,convolutions] [--seconds S] [--wide]
    [--keep FILE] [--json FILE]

Uses two CPU devices with a thread each. All splits of the layers over the two devices run with the
plan's number of micro-batches and schedule; if the choice is one of them, it is measured as that
split. Each round gives each split a turn in a new random order: warm-up steps for cold caches, then
timed steps, of which the fastest counts. Times are divided by each other within a round, and the
median of these ratios over the rounds counts. From the fourth round on, only splits within 15% of
the choice continue. The prediction is compared with the choice running alone between the rounds.
With --wide the choice is also compared with all other schedules and numbers of micro-batches for
its placement. Predicted memory is compared with the peak of each device in a step.

With --keep, plans and rounds are saved to a file, and the next call continues with these plans, so
that a long measurement can be split. Each call takes about S seconds in total for its cases, and
the results cover all calls.
"""

import argparse
import gc
import json
import os
import random
import statistics
import time

# Must be first, because it sets the number of threads.
from pipelines import DEVICES, square_loss, trainer_of, transformer_layers

# isort: split
import mpgluon as mx
import sizes
from mpgluon import nd
from mpgluon.gluon import nn
from mpgluon.parallel import Plan, TrainStep, plan


def chain(*layers):
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(*layers)
    net.initialize(mx.init.Xavier())
    return net


def mlp():
    """Returns layers of very different sizes."""
    return chain(
        *[
            nn.Dense(units, activation="relu")
            for units in (512, 1024, 1024, 256, 256, 1024, 512, 64)
        ]
    ), (512, 512)


def transformer():
    return chain(
        *transformer_layers(), nn.Dense(1024, flatten=False), nn.Dense(64, flatten=False)
    ), sizes.STAGED_SHAPE


def convolutions():
    """Returns convolutions with large images and few channels first, and small images and many
    channels last."""
    layers = []
    for channels, stride in ((16, 1), (32, 2), (64, 2), (64, 1), (128, 2), (128, 1)):
        layers.append(nn.Conv2D(channels, 3, stride, 1, activation="relu"))
    return chain(*layers, nn.GlobalAvgPool2D(), nn.Dense(10)), (32, 3, 32, 32)


SCHEDULES = ["gpipe", "1f1b", "zero_bubble"]
CASES = {"mlp": mlp, "transformer": transformer, "convolutions": convolutions}
ALL, NEAR = 3, 1.15  # rounds of all splits, then the ratio limit
# Per turn: warm-up steps, minimum number of timed steps, minimum seconds of timed steps
WARM, TIMED, SECONDS = (
    1,
    3,
    0.05,
)
ALONE = 1.0  # minimum seconds of the choice running alone


class Contender:
    """A placement with its micro-batches and schedule, ready to run."""

    def __init__(self, case, made, x, places, form):
        self.net, _ = CASES[case]()
        for layer, d in zip(list(made.placement), places):
            made.move(layer, DEVICES[d])
        made.change(*form)
        self.net.place(made)
        self.step, self.x, self.predicted, self.memory = (
            TrainStep(self.net, square_loss, trainer_of(self.net), made.pipeline()),
            x,
            made.seconds,
            made.memory,
        )
        for _ in range(3):
            self.seconds()

    def seconds(self):
        nd.waitall()
        begin = time.perf_counter()
        self.step(self.x, [])
        nd.waitall()
        return time.perf_counter() - begin

    def turn(self):
        for _ in range(WARM):
            self.seconds()
        taken, end = [], time.perf_counter() + SECONDS
        while len(taken) < TIMED or time.perf_counter() < end:
            taken.append(self.seconds())
        return min(taken)

    def bytes(self):
        """Returns [predicted, measured] of each device: parameters, gradients and states of this
        network plus the peak of a step."""
        gc.collect()  # garbage of the planning would otherwise be freed and counted in the step
        nd.waitall()
        before = {ctx: mx.context.memory_stats(ctx)["in_use"] for ctx in DEVICES}
        for ctx in DEVICES:
            mx.context.reset_peak_memory(ctx)
        self.step(self.x, [])
        nd.waitall()
        found = []
        for ctx in DEVICES:
            params = [p for p in self.net.collect_params().values() if p.list_ctx() == [ctx]]
            held = sum(p.data().size * 4 * (2 if p.grad_req != "null" else 1) for p in params)
            found.append(
                [self.memory[ctx], held + mx.context.memory_stats(ctx)["peak_in_use"] - before[ctx]]
            )
        return found


def name_of(places, form, own):
    cut = sum(d == 0 for d in places)
    split = (
        f"first {cut} layers on {DEVICES[0]}"
        if list(places) == sorted(places)
        else f"layers on {''.join(map(str, places))}"
    )
    return split if form == own else f"{form[0]} micro-batches, {form[1]}"


def contenders_of(made, wide):
    """Returns (places, form) by name, the choice first."""
    own, count = (made.micro_batches, made.schedule), len(made.placement)
    chosen = tuple(DEVICES.index(ctx) for ctx in made.placement.values())
    every = [(chosen, own)] + [
        ((0,) * cut + (1,) * (count - cut), own) for cut in range(1, count + 1)
    ]
    if wide:
        every += [(chosen, (m, name)) for m in (2, 4, 8) for name in SCHEDULES]
    return {name_of(*one, own): one for one in every}


def measure(case, kept, seconds, wide):
    """Continues the rounds of a case; ``kept`` has the earlier measurements."""
    end = time.perf_counter() + seconds
    net, shape = CASES[case]()
    x = nd.random.normal(shape=shape)
    if "plan" not in kept:
        begin = time.perf_counter()
        made = plan(net, x, DEVICES, loss=square_loss, schedules=SCHEDULES, progress=False)
        kept.update(plan=made.to_json(), planning=time.perf_counter() - begin, rounds=[], alone=[])
        print(made, flush=True)
        chosen = [DEVICES.index(ctx) for ctx in made.placement.values()]
        kept["alone"].append(
            alone(
                Contender(
                    case,
                    Plan.from_json(kept["plan"]),
                    x,
                    chosen,
                    (made.micro_batches, made.schedule),
                )
            )
        )
    made = Plan.from_json(kept["plan"])
    every = contenders_of(made, wide)
    choice = next(iter(every))
    first = {
        key: one
        for key, one in every.items()
        if len(kept["rounds"]) < ALL or key in going_on(kept, choice)
    }
    running = {
        key: Contender(case, Plan.from_json(kept["plan"]), x, *one) for key, one in first.items()
    }
    kept.setdefault("bytes", running[choice].bytes())
    kept["choice"], kept["predicted"] = (
        choice,
        {**kept.get("predicted", {}), **{key: one.predicted for key, one in running.items()}},
    )
    order = list(running)
    while True:
        begin = time.perf_counter()
        kept["alone"].append(alone(running[choice]))
        if len(kept["rounds"]) >= ALL:
            order = [key for key in order if key in going_on(kept, choice)]
        random.shuffle(order)
        kept["rounds"].append({key: running[key].turn() for key in order})
        if time.perf_counter() + (time.perf_counter() - begin) > end:
            return


def alone(contender):
    """Returns the seconds of the fastest step while the contender runs alone."""
    taken, end = [], time.perf_counter() + ALONE
    while time.perf_counter() < end or len(taken) < 5:
        taken.append(contender.seconds())
    return min(taken[1:])


def ratios(kept, choice):
    """Returns each contender's time relative to the choice's in each of its rounds."""
    found = {}
    for one in kept["rounds"]:
        for key, taken in one.items():
            found.setdefault(key, []).append(taken / one[choice])
    return found


def going_on(kept, choice):
    return {
        key for key, values in ratios(kept, choice).items() if statistics.median(values) <= NEAR
    }


def show(case, kept):
    made, choice = Plan.from_json(kept["plan"]), kept["choice"]
    own, parts = (made.micro_batches, made.schedule), ratios(kept, choice)
    medians = {key: statistics.median(values) for key, values in parts.items()}
    splits = {key: value for key, value in medians.items() if "micro-batches" not in key}
    for key, values in parts.items():
        taken = [one[key] for one in kept["rounds"] if key in one]
        mark = " (the choice)" if key == choice else ""
        print(
            f"  {key}{mark}: {medians[key]:.3f} of the choice ({min(values):.3f} to "
            f"{max(values):.3f}, {len(values)} rounds), median "
            f"{statistics.median(taken) * 1e3:.2f} ms, predicted {kept['predicted'][key] * 1e3:.2f}"
        )
    measured, best = statistics.median(kept["alone"]), min(splits, key=splits.get)
    off = [expected / measured - 1 for expected, measured in kept["bytes"]]
    result = {
        "form": own,
        "rounds": len(kept["rounds"]),
        "splits": len(splits),
        "best": best,
        "above_best": 1 / splits[best] - 1,
        "predicted_ms": made.seconds * 1e3,
        "measured_ms": measured * 1e3,
        "prediction_off": made.seconds / measured - 1,
        "memory_off": off,
        "seconds_of_planning": kept["planning"],
    }
    wide = ""
    if len(splits) < len(medians):
        form = min(medians, key=medians.get)
        result.update(best_form=form, above_best_form=1 / medians[form] - 1)
        wide = (
            f", {result['above_best_form']:+.1%} from the best of {len(medians) - len(splits)} "
            f"other forms and those ({form})"
        )
    print(
        f"{case}: {own[0]} micro-batches, {own[1]}, chosen in {kept['planning']:.1f} s; "
        f"{result['above_best']:+.1%} from the best of {len(splits)} splits ({best}){wide}; "
        f"predicted {result['predicted_ms']:.2f} ms, measured {result['measured_ms']:.2f} ms "
        f"({result['prediction_off']:+.1%}); memory {', '.join(f'{x:+.1%}' for x in off)}; "
        f"{result['rounds']} rounds",
        flush=True,
    )
    return result


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--seconds", type=float, default=90, help="for all cases of this call")
    parser.add_argument(
        "--wide", action="store_true", help="other schedules and numbers of micro-batches, too"
    )
    parser.add_argument("--keep", help="a file that keeps what was measured from call to call")
    parser.add_argument("--json")
    args = parser.parse_args()
    kept, cases, results = {}, args.cases.split(","), {}
    if args.keep and os.path.exists(args.keep):
        with open(args.keep) as f:
            kept = json.load(f)
    for case in cases:
        key = f"{case}, wide" if args.wide else case
        measure(case, kept.setdefault(key, {}), args.seconds / len(cases), args.wide)
        results[key] = show(case, kept[key])
        if args.keep:
            with open(f"{args.keep}.new", "w") as f:
                json.dump(kept, f)
            os.replace(f"{args.keep}.new", args.keep)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
