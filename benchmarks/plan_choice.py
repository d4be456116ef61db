"""The planner's choice against all contiguous splits, each measured: how far the choice is from the best, and the prediction from what was measured.

    python benchmarks/plan_choice.py [--cases mlp,transformer,convolutions] [--seconds S] [--wide] [--json FILE]

Two CPU devices with a thread each. All splits of the layers over the two devices run with the number of micro-batches and the schedule of the
plan, and so does the choice; they take turns step by step, and the quickest step of each counts. With --wide the choice is also held against
all other schedules and numbers of micro-batches for its split. The prediction is held against the choice running alone. Memory is predicted
beside what the devices held at most in a step. Where other programs have the processors meanwhile, nothing is measured but those.
"""

import argparse
import json
import statistics
import time

from pipelines import DEVICES, square_loss, trainer_of, transformer_layers  # sets the number of threads: first

import mpgluon as mx
import sizes
from mpgluon import nd
from mpgluon.gluon import nn
from mpgluon.parallel import TrainStep, plan


def chain(*layers):
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(*layers)
    net.initialize(mx.init.Xavier())
    return net


def mlp():
    """Layers of very different sizes."""
    return chain(*[nn.Dense(units, activation="relu") for units in (512, 1024, 1024, 256, 256, 1024, 512, 64)]), (512, 512)


def transformer():
    return chain(*transformer_layers(), nn.Dense(1024, flatten=False), nn.Dense(64, flatten=False)), sizes.STAGED_SHAPE


def convolutions():
    """Large pictures and few channels in front, small ones and many behind."""
    layers = []
    for channels, stride in ((16, 1), (32, 2), (64, 2), (64, 1), (128, 2), (128, 1)):
        layers.append(nn.Conv2D(channels, 3, stride, 1, activation="relu"))
    return chain(*layers, nn.GlobalAvgPool2D(), nn.Dense(10)), (32, 3, 32, 32)


SCHEDULES = ["gpipe", "1f1b", "zero_bubble"]
CASES = {"mlp": mlp, "transformer": transformer, "convolutions": convolutions}


def run(case, seconds, wide):
    net, shape = CASES[case]()
    x = nd.random.normal(shape=shape)
    begin = time.perf_counter()
    made = plan(net, x, DEVICES, loss=square_loss, schedules=SCHEDULES, progress=False)
    spent = time.perf_counter() - begin
    layers, chosen, predicted = list(made.placement), dict(made.placement), made.seconds
    print(made, flush=True)
    contenders, memory = {}, {}
    own_form = made.micro_batches, made.schedule
    others = [(0, m, name) for m in (2, 4, 8) for name in SCHEDULES if (m, name) != own_form] if wide else []
    for cut, m, schedule in [(cut, *own_form) for cut in range(len(layers) + 1)] + others:  # 0: the choice, which may begin on the other device
        own, _ = CASES[case]()
        for i, layer in enumerate(layers):
            made.move(layer, DEVICES[i >= cut] if cut else chosen[layer])
        own.place(made.change(m, schedule))
        step = TrainStep(own, square_loss, trainer_of(own), made.pipeline())
        key = cut if (m, schedule) == own_form else (m, schedule)
        contenders[key] = step, made.seconds
        memory[key] = memory_of(step, x, own, made)
        if not key:  # as it is trained: alone
            alone = min(seconds_of(step, x) for _ in range(max(8, round(2 / made.seconds))))
    taken, end = {cut: [] for cut in contenders}, time.perf_counter() + seconds
    while len(taken[0]) < 3 or time.perf_counter() < end:
        for cut, (step, _) in contenders.items():
            taken[cut].append(seconds_of(step, x))
    quickest = {cut: min(times) for cut, times in taken.items()}
    for cut, (_, expected) in contenders.items():
        name = f"{cut[0]} micro-batches, {cut[1]}" if isinstance(cut, tuple) else f"first {cut} layers on {DEVICES[0]}" if cut else "the choice"
        held = ", ".join(f"{expected:,} and {measured:,}" for expected, measured in memory[cut])
        print(f"  {name}: predicted {expected * 1e3:.2f} ms, measured {quickest[cut] * 1e3:.2f} ms (median {statistics.median(taken[cut]) * 1e3:.2f}); bytes {held}")
    shortest, splits = min(quickest.values()), sum(not isinstance(cut, tuple) for cut in contenders)
    off = [expected / measured - 1 for expected, measured in memory[0]]
    print(
        f"{case}: chosen in {spent:.1f} s; {quickest[0] / shortest - 1:+.1%} from the best of {splits} splits{f' and {len(others)} forms' if wide else ''}; predicted {predicted * 1e3:.2f} ms, "
        f"measured {alone * 1e3:.2f} ms ({predicted / alone - 1:+.1%}); memory {', '.join(f'{x:+.1%}' for x in off)}; {len(taken[0])} rounds",
        flush=True,
    )
    return {"chosen_ms": quickest[0] * 1e3, "best_ms": shortest * 1e3, "predicted_ms": predicted * 1e3, "measured_ms": alone * 1e3, "memory_off": off, "seconds_of_planning": spent}


def seconds_of(step, x):
    nd.waitall()
    begin = time.perf_counter()
    step(x, [])
    nd.waitall()
    return time.perf_counter() - begin


def memory_of(step, x, net, made):
    """(predicted, measured) bytes of each device: parameters, gradients and states of this network, and the most that a step takes beside."""
    for _ in range(2):
        step(x, [])
    nd.waitall()
    found = []
    before = {ctx: mx.context.memory_stats(ctx)["in_use"] for ctx in DEVICES}
    for ctx in DEVICES:
        mx.context.reset_peak_memory(ctx)
    step(x, [])
    nd.waitall()
    for ctx in DEVICES:
        params = [p for p in net.collect_params().values() if p.list_ctx() == [ctx]]
        held = sum(p.data().size * 4 * (2 if p.grad_req != "null" else 1) for p in params)
        found.append((made.memory[ctx], held + mx.context.memory_stats(ctx)["peak_in_use"] - before[ctx]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--seconds", type=float, default=25, help="for each case")
    parser.add_argument("--wide", action="store_true", help="other schedules and numbers of micro-batches, too")
    parser.add_argument("--json")
    args = parser.parse_args()
    results = {case: run(case, args.seconds, args.wide) for case in args.cases.split(",")}
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
