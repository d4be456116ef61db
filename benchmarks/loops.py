"""Loops of 1,000 steps in mpgluon, MXNet and PyTorch: milliseconds of a prediction and of a
training step.

    python benchmarks/loops.py [--mxnet-python PYTHON] [--rounds 3]

A step is `tanh(dot(s, w) + b + x)`, batch 8, 32 units; `while_loop` evaluates its condition in
each. "branch" is a foreach whose steps contain a `cond`, "nested" one of 50 steps around one of 20.
Contenders are separate processes that take turns; the minimum of all rounds counts.
"""

import argparse
import json
import subprocess
import sys
import time

STEPS, BATCH, UNITS = 1000, 8, 32
KINDS = ("foreach", "while_loop", "branch", "nested")
CONTENDERS = ("mpgluon, hybridized", "mpgluon, eager", "MXNet 1.9.1, hybridized", "PyTorch, eager")
TIMES, SECONDS = 4, 1.0


def gluon_cases(mx, hybridized):
    """Returns the cases of mpgluon and MXNet, which have the same programs: kind -> (predict,
    train)."""
    from_numpy, record = mx.nd.array, mx.autograd.record

    class Loop(mx.gluon.HybridBlock):
        def __init__(self, kind):
            super().__init__()
            self.kind = kind
            with self.name_scope():
                self.w = self.params.get("w", shape=(UNITS, UNITS))
                self.b = self.params.get("b", shape=(1, UNITS))

        def hybrid_forward(self, F, x, s, w, b):
            def step(row, s):
                s = F.tanh(F.broadcast_add(F.dot(s, w), b) + row)
                return s, s

            def condition(i, s):
                return i < STEPS

            if self.kind == "foreach":
                return F.contrib.foreach(step, x, s)[0]
            if self.kind == "while_loop":
                row = F.slice_axis(x, axis=0, begin=0, end=1).reshape((BATCH, UNITS))
                return F.contrib.while_loop(
                    condition,
                    lambda i, s: (step(row, s)[0], [i + 1, step(row, s)[1]]),
                    [F.zeros((1,)), s],
                    STEPS,
                )[0]
            if self.kind == "branch":
                return F.contrib.foreach(
                    lambda row, s: (
                        (F.contrib.cond(F.sum(row) < 1e9, lambda: step(row, s)[0], lambda: s),) * 2
                    ),
                    x,
                    s,
                )[0]
            return F.contrib.foreach(
                lambda rows, s: F.contrib.foreach(step, rows, s),
                x.reshape((50, 20, BATCH, UNITS)),
                s,
            )[0]

    def case(kind):
        net = Loop(kind)
        net.initialize(mx.init.Uniform(0.1))
        if hybridized:
            net.hybridize()
        x, s = from_numpy([[[0.1] * UNITS] * BATCH] * STEPS), from_numpy([[0.0] * UNITS] * BATCH)

        def predict():
            net(x, s)[0].wait_to_read()
            mx.nd.waitall()

        def train():
            with record():
                y = net(x, s)
                y = (y[0] if isinstance(y, (list, tuple)) else y).sum()
            y.backward()
            mx.nd.waitall()

        return predict, train

    return case


def torch_cases():
    import torch

    torch.set_num_threads(2)

    def case(kind):
        w, b = (
            torch.full(shape, 0.01, requires_grad=True) for shape in ((UNITS, UNITS), (1, UNITS))
        )
        x, start = torch.full((STEPS, BATCH, UNITS), 0.1), torch.zeros(BATCH, UNITS)

        def run():
            s, rows, i = start, [], torch.zeros(1)
            for k in range(STEPS):
                if kind == "while_loop" and not bool(i < STEPS):
                    break
                if kind != "branch" or bool(x[k].sum() < 1e9):
                    s = torch.tanh(s @ w + b + x[0 if kind == "while_loop" else k])
                i = i + 1 if kind == "while_loop" else i
                rows.append(s)
            return torch.stack(rows)

        def predict():
            with torch.no_grad():
                run()

        def train():
            w.grad = b.grad = None
            run().sum().backward()

        return predict, train

    return case


def work(contender):
    """Prints the minimum milliseconds by kind as JSON."""
    if contender.startswith("PyTorch"):
        case = torch_cases()
    elif contender.startswith("MXNet"):
        import mxnet as mx

        case = gluon_cases(mx, True)
    else:
        import mpgluon as mx

        case = gluon_cases(mx, "hybridized" in contender)
    found = {}
    for kind in KINDS:
        times = []
        for call in case(kind):
            try:
                call()
                call()
            except Exception as error:  # a limit of another library
                print(
                    f"{contender}, {kind}: {str(error).strip().splitlines()[-1]}", file=sys.stderr
                )
                break
            best, end = 1e9, time.perf_counter() + SECONDS / 2
            for _ in range(TIMES):
                begin = time.perf_counter()
                call()
                now = time.perf_counter()
                best = min(best, now - begin)
                if now > end:
                    break
            times.append(best * 1e3)
        if len(times) == 2:
            found[kind] = times
    print(json.dumps(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--work")
    parser.add_argument("--mxnet-python")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        sys.exit()
    best = {}
    for _ in range(options.rounds):
        for contender in CONTENDERS:
            python = options.mxnet_python if contender.startswith("MXNet") else sys.executable
            if python is None:
                continue
            done = subprocess.run(
                [python, __file__, "--work", contender], capture_output=True, text=True
            )
            if done.returncode:
                print(f"{contender}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                continue
            for kind, times in json.loads(done.stdout.splitlines()[-1]).items():
                best[contender, kind] = [
                    min(pair) for pair in zip(times, best.get((contender, kind), times))
                ]
    print("| | " + " | ".join(KINDS) + " |\n" + "| --- " * (1 + len(KINDS)) + "|")
    for contender in CONTENDERS:
        cells = [best.get((contender, kind)) for kind in KINDS]
        print(
            f"| {contender} | "
            + " | ".join(f"{cell[0]:.3g} / {cell[1]:.3g}" if cell else "" for cell in cells)
            + " |"
        )
