"""The planner's choice against all contiguous splits, each measured: how far the choice is from the best, and the prediction from what was measured.

    python benchmarks/plan_choice.py [--cases mlp,transformer,convolutions] [--seconds S] [--json FILE]

Two CPU devices with a thread each. All splits of the layers over the two devices run with the number of micro-batches and the schedule of the
plan, in turn, and the best round of each counts; so does the choice, measured in the same rounds.
"""

import argparse
import json
import os
import time

os.environ["MPGLUON_CPU_THREADS"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import mpgluon as mx  # noqa: E402
from models_gluon import make_models  # noqa: E402
from mpgluon import gluon, nd  # noqa: E402
from mpgluon.gluon import nn  # noqa: E402
from mpgluon.parallel import TrainStep, plan  # noqa: E402

DEVICES = [mx.cpu(0), mx.cpu(1)]


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
    model = make_models(mx)["GPT"](vocabulary=8, units=256, heads=8, layers=6, length=128)
    return chain(*list(model.layers), nn.Dense(1024, flatten=False), nn.Dense(64, flatten=False)), (16, 128, 256)


def convolutions():
    """Large pictures and few channels in front, small ones and many behind."""
    layers = []
    for channels, stride in ((16, 1), (32, 2), (64, 2), (64, 1), (128, 2), (128, 1)):
        layers.append(nn.Conv2D(channels, 3, stride, 1, activation="relu"))
    return chain(*layers, nn.GlobalAvgPool2D(), nn.Dense(10)), (32, 3, 32, 32)


CASES = {"mlp": mlp, "transformer": transformer, "convolutions": convolutions}


def loss(out, *_):
    return (out.reshape((out.shape[0], -1)) ** 2).mean(axis=1)


def seconds_of(step, x, count=3):
    """Of the quickest of a few steps."""
    shortest = float("inf")
    for _ in range(count):
        begin = time.perf_counter()
        step(x, [])
        nd.waitall()
        shortest = min(shortest, time.perf_counter() - begin)
    return shortest


def run(case, seconds):
    end = time.perf_counter() + seconds
    net, shape = CASES[case]()
    x = nd.random.normal(shape=shape)
    begin = time.perf_counter()
    made = plan(net, x, DEVICES, loss=loss, schedules=["gpipe", "1f1b", "zero_bubble"], progress=False)
    spent = time.perf_counter() - begin
    layers, chosen, predicted = list(made.placement), dict(made.placement), made.seconds
    print(made)
    contenders = {}
    for cut in range(len(layers) + 1):  # 0: the choice, which may begin on the other device
        own, _ = CASES[case]()
        for i, layer in enumerate(layers):
            made.move(layer, DEVICES[i >= cut] if cut else chosen[layer])
        own.place(made)
        step = TrainStep(own, loss, gluon.Trainer(own.collect_params(), "sgd", {"learning_rate": 1e-4}), made.pipeline())
        step(x, [])
        contenders[cut] = (step, not cut, made.seconds)
    best = dict.fromkeys(contenders, float("inf"))
    rounds = 0
    while not rounds or time.perf_counter() < end:
        for cut, (step, _, _) in contenders.items():
            best[cut] = min(best[cut], seconds_of(step, x))
        rounds += 1
    for cut, (_, is_chosen, expected) in contenders.items():
        print(f"  {'the choice' if is_chosen else f'first {cut} layers on {DEVICES[0]}'}: predicted {expected * 1e3:.2f} ms, measured {best[cut] * 1e3:.2f} ms")
    taken = next(best[cut] for cut, (_, is_chosen, _) in contenders.items() if is_chosen)
    shortest = min(best.values())
    print(f"{case}: chosen in {spent:.1f} s; {taken / shortest - 1:+.1%} from the best of {len(contenders)} splits; predicted {predicted * 1e3:.2f} ms, measured {taken * 1e3:.2f} ms ({predicted / taken - 1:+.1%}); {rounds} rounds")
    return {"chosen_ms": taken * 1e3, "best_ms": shortest * 1e3, "predicted_ms": predicted * 1e3, "seconds_of_planning": spent}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--seconds", type=float, default=25, help="for each case")
    parser.add_argument("--json")
    args = parser.parse_args()
    results = {case: run(case, args.seconds) for case in args.cases.split(",")}
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
