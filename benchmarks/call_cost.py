"""The cost of a compiled call: the time in the calling thread until its work is submitted, until
its first kernel starts, and until the call returns.

    python benchmarks/call_cost.py

Measures chains of elementwise ops on 8x8 arrays by the number of ops, parameters, devices, inputs
and outputs. The devices are idle before each call. Medians of many calls, in microseconds:

- handed over: Python and C of the calling thread, until the first device could see its work, or
  until the first kernel if the call runs in this thread
- kernel, awake: until the first kernel starts, with a recently active worker
- kernel, asleep: the same after a pause, so that the system must wake the worker's thread; the cost
  of waking alone is below the table
- returns: until the call returns, with an active worker
- allocations for bookkeeping, the minimum of all calls
"""

import ctypes
import mmap
import os
import statistics
import struct
import time

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd

ROUNDS = 100
MANY = 1 << 40
PAUSE = 300e-6  # workers sleep after this time


class Chain(gluon.HybridBlock):
    """A chain of `ops` elementwise ops, every second one with the next of `params` parameters,
    alternating over the devices."""

    def __init__(self, ops, params, devices=1, outputs=1):
        super().__init__()
        self._ops, self._names, self._devices, self._outputs = (
            ops,
            [f"w{i}" for i in range(params)],
            devices,
            outputs,
        )
        with self.name_scope():
            for i, name in enumerate(self._names):
                self._reg_params[name] = self.params.get(name, shape=(8, 8))
                self._reg_params[name].initialize(
                    mx.init.Uniform(1), ctx=mx.cpu(i * devices // max(1, params))
                )

    def forward(self, *inputs):
        x = inputs[0]
        every, weights = (
            max(1, self._ops // max(1, len(self._names))),
            list(self._reg_params.values()),
        )
        for other in inputs[1:]:
            x = x + other
        for i in range(self._ops):
            k = i // every
            if i % every == 0 and k < len(weights):
                x = x.as_in_context(weights[k].list_ctx()[0])
                x = nd.broadcast_mul(x, weights[k].data(x.context))
            else:
                x = nd.tanh(x)
        return x if self._outputs == 1 else [x * (1 + i) for i in range(self._outputs)]


def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def medians(samples):
    return statistics.median(samples) * 1e6


def timed(call, prepare, devices, rest):
    """Returns the seconds per call until the work was submitted and until the first kernel; runs
    `rest` before each call."""
    handed, first = [], []
    for _ in range(ROUNDS):
        state = prepare()
        nd.waitall()
        mx.profiler.set_state("run")
        rest()
        begin = time.perf_counter()
        result = call(state)
        nd.waitall()
        mx.profiler.set_state("stop")
        kernel = (
            min(
                event["begin"]
                for event in mx.profiler.events()
                if event["program"] and event["begin"] >= begin
            )
            - begin
        )
        seen = [
            at - begin for at in map(_core.handed_over, devices) if at is not None and at >= begin
        ]
        handed.append(min([kernel, *seen]))
        first.append(kernel)
        del result, state
    return handed, first


def returns(call, prepare, rest):
    """Returns the seconds per call until it returns, and the minimum number of allocations."""
    total, made = [], []
    for _ in range(ROUNDS):
        state = prepare()
        nd.waitall()
        _core._memory_fail_after(MANY)
        result = call(state)
        nd.waitall()
        made.append(MANY - _core._memory_until_failure())
        _core._memory_fail_after(0)
        del result, state
        state = prepare()
        nd.waitall()
        rest()
        begin = time.perf_counter()
        result = call(state)
        total.append(time.perf_counter() - begin)
        nd.waitall()
        del result, state
    return total, min(made)


def measure(call, prepare, devices, warm):
    def awake():
        for _ in range(4):
            warm()

    handed, first = timed(call, prepare, devices, awake)
    _, later = timed(call, prepare, devices, lambda: spin(PAUSE))
    total, made = returns(call, prepare, awake)
    return (
        f"{medians(handed):.1f} / {medians(first):.1f} / {medians(later):.1f} / "
        f"{medians(total):.1f} / {made}",
        medians(handed),
    )


def recorded(net, *arrays):
    with autograd.record():
        return net(*arrays)


def backward(result):
    autograd.backward(result if isinstance(result, list) else [result])


FUTEX, WAIT, WAKE, WORD, WOKEN = 202, 0, 1, 0, 8


def wake_floor():
    """Returns medians for waking a process that sleeps at a futex: the time until it runs, and the
    time of this thread."""
    shared = mmap.mmap(-1, 4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(shared))
    syscall = ctypes.CDLL(None).syscall
    child = os.fork()
    if not child:
        for i in range(ROUNDS):
            while struct.unpack_from("i", shared, WORD)[0] == i:
                syscall(FUTEX, ctypes.c_void_p(address + WORD), WAIT, i, None, None, 0)
            struct.pack_into("d", shared, WOKEN, time.perf_counter())
        os._exit(0)
    until, own = [], []
    for i in range(ROUNDS):
        spin(PAUSE)
        struct.pack_into("d", shared, WOKEN, 0)
        begin = time.perf_counter()
        struct.pack_into("i", shared, WORD, i + 1)
        syscall(FUTEX, ctypes.c_void_p(address + WORD), WAKE, 1, None, None, 0)
        own.append(time.perf_counter() - begin)
        while not struct.unpack_from("d", shared, WOKEN)[0]:
            pass
        until.append(struct.unpack_from("d", shared, WOKEN)[0] - begin)
    os.waitpid(child, 0)
    return medians(until), medians(own)


# ops, parameters, devices, inputs, outputs
SIZES = (
    (10, 4, 1, 1, 1),
    (100, 4, 1, 1, 1),
    (1000, 4, 1, 1, 1),
    (124, 62, 1, 1, 1),
    (1000, 100, 1, 1, 1),
    (1000, 500, 1, 1, 1),
    (1000, 100, 2, 1, 1),
    (1000, 100, 4, 1, 1),
    (1000, 4, 1, 16, 16),
)


if __name__ == "__main__":
    until, own = wake_floor()
    print("handed over / kernel, awake / kernel, asleep / returns / allocations\n")
    print(
        "| ops | parameters | devices | inputs, outputs | prediction | recorded | backward | "
        "Trainer.step, SGD | Adam |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    worst = 0
    for ops, params, count, inputs, outputs in SIZES:
        net = Chain(ops, params, count, outputs)
        net.hybridize()
        arrays, devices = (
            [nd.ones((8, 8)) for _ in range(inputs)],
            [mx.cpu(i) for i in range(count)],
        )

        def warm():
            result = net(*arrays)
            (result[-1] if outputs > 1 else result).wait_to_read()

        backward(recorded(net, *arrays))
        warm()
        texts = []
        for call, prepare in (
            (lambda _: net(*arrays), lambda: None),
            (lambda _: recorded(net, *arrays), lambda: None),
            (backward, lambda: recorded(net, *arrays)),
        ):
            text, handed = measure(call, prepare, devices, warm)
            texts.append(text)
            worst = max(worst, handed)
        for name in ("sgd", "adam"):
            trainer = gluon.Trainer(net.collect_params(), name, {"learning_rate": 1e-9})
            times = []
            for _ in range(ROUNDS):
                backward(recorded(net, *arrays))
                nd.waitall()
                begin = time.perf_counter()
                trainer.step(1)
                times.append(time.perf_counter() - begin)
                nd.waitall()
            texts.append(f"{medians(times):.0f}")
        print(
            f"| {ops} | {params} | {count} | {inputs}, {outputs} | " + " | ".join(texts) + " |",
            flush=True,
        )
    print(
        f"\nLargest median until the hand-over: {worst:.1f} us. Waking a thread by itself (a "
        f"futex, another process): {until:.1f} us until it runs, {own:.1f} us of who wakes it."
    )
