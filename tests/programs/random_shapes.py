"""Networks that share weights predict for many shapes, while the weights change between the calls.

    python tests/programs/random_shapes.py --count 1000 [--seed 7]

A failure is printed with its seed; that `--seed` and `--count 1` reproduce it.

The networks of a case are subsets of its layers, on random devices, so they share parameters and
captured arrays. In each step, an event writes, moves or casts the parameters, trains, fails,
interrupts or releases memory. Then one to three networks are called with random numbers of rows,
often by several threads at once. Each result must have the bits of a copy of the network that is
compiled for this shape only. The copy has its own parameters, so it shares no packed weights and
no other kept values.
"""

import contextlib
import copy
import os
import signal
import sys
import tempfile
import threading
import warnings

import numpy as np

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.gluon import nn

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # tests

from programs.features.blocks import packed
from programs.random_blocks import hunt
from support.devices import on

SIDE = 6
WIDTH = 2 * SIDE * SIDE  # weights of this width are packed
MOST_ROWS, STEPS, NETWORKS = 40, 12, 3


class Table(gluon.HybridBlock):
    """Adds as many rows of a function of a parameter as x has."""

    def __init__(self):
        super().__init__()
        self.table = self.params.get("table", shape=(MOST_ROWS, WIDTH))

    def hybrid_forward(self, F, x, table):
        return x + F.slice_like(F.exp(table) * 0.1, x, axes=(0,))


class Folded(gluon.HybridBlock):
    """A convolution, a batch norm and a relu."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2D(2, 3, padding=1, in_channels=2)
        self.norm = nn.BatchNorm(in_channels=2)

    def hybrid_forward(self, F, x):
        planes = self.convolution(F.reshape(x, shape=(-1, 2, SIDE, SIDE)))
        return F.reshape(F.relu(self.norm(planes)), shape=(-1, WIDTH))


class Tied(gluon.HybridBlock):
    """Multiplies by a weight, by its transpose and by its softmax."""

    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(WIDTH, WIDTH))

    def hybrid_forward(self, F, x, weight):
        y = F.FullyConnected(x, weight, num_hidden=WIDTH, no_bias=True)
        return F.tanh(F.dot(F.tanh(y), weight)) + F.dot(x, F.softmax(weight))


class Sequence(gluon.HybridBlock):
    """Attention over the rows, whose masks and angles depend on their number."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(in_channels=WIDTH)
        self.attention = nn.MultiHeadAttention(
            WIDTH, 2, kv_heads=1, rotary=True, window=5, softcap=4.0, in_units=WIDTH
        )

    def hybrid_forward(self, F, x):
        steps = F.expand_dims(self.norm(x), axis=0)
        return x + F.reshape_like(self.attention(steps), x)


class Views(gluon.HybridBlock):
    """Multiplies by functions of two views of one captured array."""

    def __init__(self):
        super().__init__()
        self.array = nd.ones((3, WIDTH), ctx=on(0))
        self.rows = [self.array[i : i + 1] for i in range(2)]

    def hybrid_forward(self, F, x):
        a, b = [F.exp(-F.cast(row.as_in_context(x.context), x.dtype)) for row in self.rows]
        return F.broadcast_add(F.broadcast_mul(x, a), b)


LAYERS = {
    "dense": lambda: nn.Dense(WIDTH, in_units=WIDTH, activation="tanh"),
    "unbiased": lambda: nn.Dense(WIDTH, in_units=WIDTH, use_bias=False),
    "relu": lambda: nn.Dense(WIDTH, in_units=WIDTH, activation="relu"),
    "norm": lambda: nn.LayerNorm(in_channels=WIDTH),
    "gated": lambda: nn.GatedMLP(WIDTH, 16, in_units=WIDTH),
    "experts": lambda: nn.MoE(WIDTH, 8, experts=4, k=2, in_units=WIDTH),
    "quantized": lambda: packed(None, WIDTH),
    "sequence": Sequence,
    "table": Table,
    "folded": Folded,
    "tied": Tied,
    "views": Views,
}


class Network(gluon.HybridBlock):
    """Some of the layers, by number, on their devices."""

    def __init__(self, layers, places, numbers):
        super().__init__()
        self.places, self.numbers = places, numbers
        for number in numbers:
            self.register_child(layers[number], f"layer{number}")

    def hybrid_forward(self, F, x):
        for number in self.numbers:
            x = x.as_in_context(on(self.places[number]))
            x = self._children[f"layer{number}"](x)
        return x.as_in_context(on(0))


class Case:
    """A run, generated from a seed."""

    nodes = outputs = ()  # no part can be removed to minimize the case

    def __init__(self, seed):
        self.seed, self.run = seed, None

    def __str__(self):
        log = self.run.log if self.run else []
        return f"seed {self.seed}" + "".join(f"\n  {line}" for line in log)

    def check(self):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning about recompilation
            self.run = Run(self.seed, folder)
            try:
                for _ in range(STEPS):
                    self.run.step()
            finally:
                mx.context.set_threads(0)
                nd.waitall()


class Run:
    """Networks and their layers. A method event_<name> is an event."""

    def __init__(self, seed, folder):
        self.folder, self.dtype = folder, "float32"
        self.draw = draw = np.random.RandomState(seed)
        kinds = [str(kind) for kind in draw.choice([*LAYERS, "dense"], draw.randint(2, 6))]
        self.devices = int(draw.randint(1, 4))
        self.places = [int(d) for d in draw.randint(0, self.devices, len(kinds))]
        self.flags = [{}, {}, {"static_alloc": True}, {"exact": True}][draw.randint(4)]
        self.log = [f"{self.flags}, {kinds} on {self.places}"]
        mx.random.seed(seed)
        self.layers = [LAYERS[kind]() for kind in kinds]
        for layer, place in zip(self.layers, self.places):
            layer.initialize(mx.init.Uniform(0.2), ctx=on(place))
        self.nets = [self.make_network() for _ in range(NETWORKS)]
        self.outside = []  # arrays of NumPy that share the memory of parameters

    def make_network(self):
        numbers = [n for n in range(len(self.layers)) if self.draw.rand() < 0.7]
        net = Network(self.layers, self.places, numbers or [0])
        net.hybridize(**self.flags)
        return net

    def step(self):
        events = [name for name in dir(self) if name.startswith("event_")]
        event = str(self.draw.choice([*events, "event_set_data", "event_write"]))
        calls = [(self.draw.randint(NETWORKS), self.rows()) for _ in range(self.draw.randint(1, 4))]
        together = self.draw.rand() < 0.5
        self.log.append(f"{event}, calls {calls}{' together' if together else ''}")
        getattr(self, event)()
        self.check_calls([(number, self.data(rows)) for number, rows in calls], together)

    def rows(self):
        return int(self.draw.randint(1, MOST_ROWS))

    def data(self, rows):
        values = self.draw.uniform(-1, 1, (rows, WIDTH))
        return nd.array(values, ctx=on(0), dtype=self.dtype)

    def check_calls(self, calls, together):
        found = [None] * len(calls)

        def call(i):
            number, x = calls[i]
            try:
                for _ in range(2):
                    found[i] = self.nets[number](x)
            except Exception as error:
                found[i] = error

        threads = [threading.Thread(target=call, args=(i,)) for i in range(len(calls))]
        for thread in threads:
            thread.start()
            if not together:
                thread.join()
        for thread in threads:
            thread.join()
        for (number, x), result in zip(calls, found):
            if isinstance(result, Exception):
                raise result
            fresh = copy.deepcopy(self.nets[number])
            fresh.hybridize(**self.flags)
            np.testing.assert_array_equal(
                result.asnumpy(), fresh(x).asnumpy(), err_msg=f"network {number}, {x.shape}"
            )

    # --- Events -----------------------------------------------------------------------------------

    def params(self):
        return [p for layer in self.layers for p in layer.collect_params().values()]

    def values(self, array):
        """Returns new values of an array or a parameter."""
        packed = array.dtype == np.uint8
        return self.draw.uniform(*((0, 256) if packed else (0.05, 0.2)), array.shape)

    def write(self, array):
        """Writes an array in one of several ways."""
        way, half = self.draw.randint(5), len(array) // 2 + 1
        values = nd.array(self.values(array), ctx=array.context, dtype=array.dtype)
        if way == 0:
            array[:] = values
        elif way == 1:
            array[:half] = values[:half]
        elif way == 2:
            array.reshape((-1,))[:] = values.reshape((-1,))
        elif way == 3:
            values.copyto(array)
        else:
            array *= 0.9

    def event_none(self):
        pass

    def event_set_data(self):
        for param in self.params():
            if self.draw.rand() < 0.5:
                param.set_data(nd.array(self.values(param), dtype=param.dtype))

    def event_write(self):
        arrays = [p.data() for p in self.params()]
        arrays += [layer.array for layer in self.layers if isinstance(layer, Views)]
        for _ in range(self.draw.randint(1, 4)):
            self.write(arrays[self.draw.randint(len(arrays))])

    def event_replace_captured(self):
        """Replaces one of the captured views, which the next call must notice."""
        for layer in self.layers:
            if isinstance(layer, Views):
                layer.rows[self.draw.randint(2)] = layer.array[2:3]

    def event_train(self):
        net, x = self.nets[0], self.data(self.rows())
        params = [p for p in net.collect_params().values() if p.grad_req != "null"]
        if params:
            with autograd.record():
                loss = nd.square(net(x)).mean()
            loss.backward()
            gluon.Trainer(params, "sgd", {"learning_rate": 0.01}).step(1)

    def event_freeze(self):
        for param in self.params():
            if "running" not in param.name:
                param.grad_req = str(self.draw.choice(["null", "write", "add"]))

    def event_move(self):
        for number, layer in enumerate(self.layers):
            self.places[number] = int(self.draw.randint(self.devices))
            layer.collect_params().reset_ctx(on(self.places[number]))
        for net in self.nets:
            net.hybridize(**self.flags)  # traces read `places`

    def event_cast(self):
        self.dtype = str(self.draw.choice(["float32", "float32", "float64", "bfloat16"]))
        for layer in self.layers:
            layer.cast(self.dtype)

    def event_replace_network(self):
        del self.nets[self.draw.randint(NETWORKS)]
        self.nets.append(self.make_network())

    def event_replace_layer(self):
        """Replaces a layer in all networks that contain it."""
        number = self.draw.randint(len(self.layers))
        layer = LAYERS[str(self.draw.choice([*LAYERS]))]()
        layer.initialize(mx.init.Uniform(0.2), ctx=on(self.places[number]))
        layer.cast(self.dtype)
        self.layers[number] = layer
        for net in self.nets:
            if number in net.numbers:
                net.replace_child(f"layer{number}", layer)

    def event_load(self):
        path = os.path.join(self.folder, "net.params")
        self.nets[0].save_parameters(path)
        self.event_set_data()
        self.nets[0](self.data(self.rows()))
        self.nets[0].load_parameters(path)

    def event_threads(self):
        most = int(os.environ.get("MPGLUON_CPU_THREADS", 3))  # 1 under ThreadSanitizer
        mx.context.set_threads(int(self.draw.randint(1, most + 1)))

    def event_outside(self):
        """Writes parameters through memory that NumPy shares from now on."""
        array = self.params()[0].data() if self.params() else self.data(1)
        if array.context.device_type == "cpu" and self.dtype != "bfloat16":
            self.outside.append(np.from_dlpack(array))
        nd.waitall()
        for numbers in self.outside:
            if numbers.flags.writeable:
                numbers[...] = numbers * 0.95

    def event_out_of_memory(self):
        """Makes a device release its kept values."""
        ctx = on(int(self.draw.randint(self.devices)))
        mx.context.set_memory_limit(ctx, 1)
        try:
            with contextlib.suppress(MemoryError):
                nd.zeros((1 << 16,), ctx=ctx).wait_to_read()
        finally:
            mx.context.set_memory_limit(ctx, 0)

    def event_failed_allocation(self):
        self.event_write()
        x = self.data(self.rows())
        nd.waitall()
        _core._memory_free_kept()
        _core._memory_fail_after(int(self.draw.randint(1, 150)), int(self.draw.randint(1, 4)))
        try:
            with contextlib.suppress(MemoryError):
                self.nets[0](x)
                nd.waitall()
        finally:
            _core._memory_fail_after(0)

    def event_interrupt(self):
        self.event_write()
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, self.draw.uniform(0.0001, 0.005))
            for rows in range(1, 30):
                self.nets[rows % NETWORKS](self.data(rows))
        except KeyboardInterrupt:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        nd.waitall()


if __name__ == "__main__":
    sys.exit(hunt(lambda seed, options: Case(seed)))
