"""What a compiled call costs before its first kernel, in the calling thread, and in allocations, against the numbers of ops and parameters.

    python benchmarks/call_cost.py

A chain of elementwise ops on 8x8 arrays, the device idle before each call; least of many calls. "First kernel" is from the call's begin to the begin of
the first op of its program, by the profiler's clock: it includes the hand-over to the device's worker, which is awake.
"""

import time

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd

ROUNDS = 200
MANY = 1 << 40


class Chain(gluon.HybridBlock):
    """`ops` elementwise ops on a row, every other one with the next of `params` parameters."""

    def __init__(self, ops, params):
        super().__init__()
        self._ops, self._names = ops, [f"w{i}" for i in range(params)]
        with self.name_scope():
            for name in self._names:
                self._reg_params[name] = self.params.get(name, shape=(8, 8))

    def hybrid_forward(self, F, x, **weights):
        every = max(1, self._ops // max(1, len(self._names)))
        for i in range(self._ops):
            k = i // every
            x = F.broadcast_mul(x, weights[self._names[k]]) if i % every == 0 and k < len(self._names) else F.tanh(x)
        return x


def first_kernel(begin):
    """Seconds from `begin` to the first op of a program, of events since."""
    mx.profiler.set_state("stop")
    return min(event["begin"] for event in mx.profiler.events() if event["program"] and event["begin"] >= begin) - begin


def measure(call, prepare, warm):
    """(microseconds to the first kernel, microseconds of the calling thread, allocations), least of many."""
    first, total, made = [], [], []
    for round in range(3 * ROUNDS):
        state = prepare()
        nd.waitall()
        if round < ROUNDS:
            mx.profiler.set_state("run")
            for _ in range(3):
                warm()  # keeps the worker awake: what is measured is the call, not how the system wakes a thread
        elif round < 2 * ROUNDS:
            _core._memory_fail_after(MANY)
        begin = time.perf_counter()
        result = call(state)
        end = time.perf_counter()
        nd.waitall()
        if round < ROUNDS:
            first.append(first_kernel(begin))
        elif round < 2 * ROUNDS:
            made.append(MANY - _core._memory_until_failure())
            _core._memory_fail_after(0)
        else:
            total.append(end - begin)
        del result, state
    return min(first) * 1e6, min(total) * 1e6, min(made)


def recorded(net, x):
    with autograd.record():
        return net(x)


if __name__ == "__main__":
    print("| ops | parameters | prediction | recorded | backward | Trainer.step, SGD | Adam |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    x = nd.ones((8, 8))
    for ops, params in ((10, 4), (100, 4), (1000, 4), (124, 62), (1000, 100), (1000, 500)):
        net = Chain(ops, params)
        net.initialize(mx.init.Uniform(1), ctx=mx.cpu(0))
        net.hybridize()
        recorded(net, x).backward()
        net(x).wait_to_read()
        cells = [
            measure(call, prepare, lambda: net(x).wait_to_read())
            for call, prepare in ((net, lambda: x), (lambda a: recorded(net, a), lambda: x), (lambda y: y.backward(), lambda: recorded(net, x)))
        ]
        texts = [f"{first:.1f} / {total:.1f} / {made}" for first, total, made in cells]
        for name in ("sgd", "adam"):
            trainer = gluon.Trainer(net.collect_params(), name, {"learning_rate": 1e-9})
            times = []
            for _ in range(ROUNDS):
                recorded(net, x).backward()
                nd.waitall()
                begin = time.perf_counter()
                trainer.step(1)
                times.append(time.perf_counter() - begin)
                nd.waitall()
            texts.append(f"{min(times) * 1e6:.0f}")
        print(f"| {ops} | {params} | " + " | ".join(texts) + " |", flush=True)
