"""Events in the middle of a feature program (`features/run.py`). Each is a function of the run.

Most events do not change results, so the run is compared with a run without the event. The events
in `IN_BOTH` change results and happen in both runs.
"""

import contextlib
import copy
import os
import pickle
import signal
import time

import numpy as np

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.contrib import amp, lora
from mpgluon.contrib.quantization import quantize_weights
from programs.features.blocks import WIDTH, numbers
from programs.features.compare import close, flat, values
from programs.features.table import BY_CODE, OTHER_LAYOUTS, REPLICAS
from support.devices import on
from support.kinds import new

STAGES = ("first", "body", "layer", "last")
EVENTS = {}


def event(name):
    def registered(function):
        EVENTS[name] = function
        return function

    return registered


# Events that change results, so a plain run has them as well
IN_BOTH = (
    "set_learning_rate",
    "set_data",
    "freeze",
    "captured",
    "longer list",
    "new layer",
    "replaced layers",
    "lora",
    "two adapters",
    "merged adapters",
    "quantize",
    "amp",
)
# The layers of some networks that get adapters, besides the first and the last
ADAPTED = {
    "Dense": "layer",
    "QuantizedDense": "layer",
    "MultiHeadAttention": r"layer\.attention\.(query|value)",
    "decoder": r"layer\.layer\.mlp\.up",
}


def reset(run):
    """Hybridizes the network and discards its `TrainStep` after a change of the network."""
    run.hybridize(run.net)
    run.train = None


@event("place")
def place(run):
    turned = [run.device((i + 1) % 3) for i in range(4)]
    run.net.place(dict(zip(STAGES, turned)), verbose=False)
    if run.net.moves:
        run.net.places = turned
        reset(run)


@event("reset_ctx")
def reset_ctx(run):
    if run.row["placement"] in BY_CODE:
        run.net.places = [on(0)] * 4
    run.net.collect_params().reset_ctx(on(0))
    run.mesh = None  # no parameter is on the mesh after this
    reset(run)


@event("cast")
def cast(run):
    run.net.cast("float64")  # represents all values of the other types
    run.net.cast(run.dtype)


@event("huggingface")
@event("load_parameters")
@event("save_parameters")
def save_parameters(run):
    options = run.options("save_parameters")
    # A folder or a file
    path = os.path.join(run.folder, "net" if "format" in options else "net.params")
    run.net.save_parameters(path, **options)
    for param in run.net.collect_params().values():
        if param.grad_req != "null":
            param.set_data(new.zeros(param.shape, dtype=param.dtype))
    run.net.load_parameters(path, **run.options("load_parameters"))


@event("save_states")
def save_states(run):
    path = os.path.join(run.folder, "trainer.states")
    run.trainer.save_states(path)
    run.trainer.load_states(path)


@event("checkpoint")
@event("background checkpoint")
@event("whole checkpoint")
def checkpoint(run):
    options, folder = run.options("parallel.save"), os.path.join(run.folder, "run")
    mx.parallel.save(folder, run.net, run.trainer, **options).wait()
    for param in run.net.collect_params().values():
        if param.grad_req != "null":
            param.set_data(new.zeros(param.shape, dtype=param.dtype))
    nd.random.uniform(shape=(3,)).wait_to_read()
    found = mx.parallel.load(folder, run.net, run.trainer, progress=False)
    for name in ("position", "extra"):
        assert found[name] == options.get(name), (name, found[name])


@event("resumed")
def resumed(run):
    """Continues with a new network and trainer, like a restarted script. Partitioned networks
    continue on another layout."""
    folder = os.path.join(run.folder, "run")
    mx.parallel.save(folder, run.net, run.trainer).wait()
    placement = run.row["placement"]
    run.row = {**run.row, "placement": OTHER_LAYOUTS.get(placement, placement)}
    run.net = run.make_network()
    run.trainer, run.train = run.make_trainer(run.net), None
    mx.parallel.load(folder, run.net, run.trainer, progress=False)


@event("export")
def export(run):
    if run.timewise and (run.axis or run.row["placement"] in REPLICAS):
        return  # a block that reads shapes keeps some of those of its first call
    wanted = values(run.predict())
    files = run.net.export(os.path.join(run.folder, "net"), epoch=1)
    count = len(flat(run.inputs(50)[0])) + run.timewise
    names = ["data"] if count == 1 else [f"data{i}" for i in range(count)]
    loaded = gluon.SymbolBlock.imports(files[0], names, files[1], ctx=on(0))

    def called(*args):
        results = flat(loaded(*[x.as_in_context(on(0)) for x in flat(args)]))
        return (results[:-1], results[-1]) if run.timewise else results

    found = run.predict(called, by_parts=run.timewise)
    close(found, wanted, run.row, "predictions of the exported block")


def same_predictions(run, other):
    wanted, found = values(run.predict()), values(run.predict(other))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b, err_msg="the copy predicts")


@event("pickle")
def pickled(run):
    same_predictions(run, pickle.loads(pickle.dumps(run.net)))


@event("deepcopy")
def deepcopy(run):
    same_predictions(run, copy.deepcopy(run.net))


@event("exception")
def exception(run):
    try:
        run.net(new.ones((3, WIDTH + 1), ctx=run.home()), *[None] * run.timewise)
    except Exception as error:
        assert str(error), "an error without a text"
    else:
        raise AssertionError("an input of another width was no error")


@event("interrupt")
def interrupt(run):
    if mx.parallel.num_ranks() > 1:
        return  # ranks interrupted at different operators would run different programs
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        for _ in range(3):
            run.predict()
        time.sleep(0.01)
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    nd.waitall()


@event("memory limit")
def memory_limit(run):
    used = on(0)
    mx.context.set_memory_limit(used, 1)
    try:
        nd.zeros((1 << 16,), ctx=used).wait_to_read()
        raise AssertionError("an array larger than the device's limit")
    except MemoryError:
        pass
    try:
        run.predict()
    except MemoryError:
        pass
    finally:
        with contextlib.suppress(MemoryError):
            nd.waitall()
        mx.context.set_memory_limit(used, 0)


@event("hybridize")
def hybridize(run):
    reset(run)


@event("predict")
def predict(run):
    run.predict()


@event("freeze")
def freeze(run):
    run.net.body.scale.grad_req = "null"


@event("set_learning_rate")
def set_learning_rate(run):
    if run.row["rate"] == "constant":
        run.trainer.set_learning_rate(0.02)


@event("set_data")
def set_data(run):
    run.net.body.scale.set_data(new.array(numbers(70), dtype=run.dtype))


@event("amp")
def amp_switched(run):
    """Turns mixed precision on, or off if it is on."""
    if run.amp:
        amp.turn_off()
    else:
        amp.init("bfloat16")


@event("captured")
def captured(run):
    """Writes to captured arrays, which every call must read."""
    for i, array in enumerate(run.net.body.captured):
        array[:] = new.array(numbers(80 + i), dtype=array.dtype, ctx=array.context)


@event("longer list")
def longer_list(run):
    """Inserts and appends a captured array, which the next call must use."""
    arrays = run.net.body.captured
    added = [numbers(90), numbers(91)]
    if isinstance(arrays[0], nd.NDArray):
        added = [new.array(one, dtype=arrays[0].dtype, ctx=arrays[0].context) for one in added]
    arrays.insert(0, added[0])
    arrays.append(added[1])


@event("new layer")
def new_layer(run):
    """Adds a layer below a child, which the next call must use."""
    run.net.tail.add(gluon.nn.Activation("tanh"))


class Wrapped(gluon.HybridBlock):
    """A layer with an op after it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def hybrid_forward(self, F, x):
        return F.tanh(self.layer(x))


@event("replaced layers")
def replaced_layers(run):
    """Wraps the first and the last layer, which the next call must notice."""
    run.net.replace_child("first", Wrapped(run.net.first))
    run.net.last = Wrapped(run.net.last)


def adapt(run, **options):
    """Adds adapters to layers, and fills them with numbers that depend on their names."""
    targets = "|".join(["first", "last", *filter(None, [ADAPTED.get(run.row["layer"])])])
    lora.apply(run.net, {targets: 2}, alpha=1, **options)
    for param in lora.parameters(run.net, options.get("name")).values():
        name = getattr(param, "global_name", param.name)  # parts of one matrix get one value
        value = numbers(len(name), getattr(param, "global_shape", param.shape))
        param.set_data(new.array(value, dtype=param.dtype))


def new_trainer(run):
    run.trainer, run.train = run.make_trainer(run.net), None


@event("lora")
def adapters(run):
    """Trains adapters of some layers from now on, and nothing else."""
    adapt(run)
    new_trainer(run)


@event("two adapters")
def two_adapters(run):
    """Trains the sum of two adapters. One has another norm for each row."""
    adapt(run, name="plain", rslora=True)
    adapt(run, name="directed", dora=True)
    lora.enable(run.net, "plain", "directed")
    new_trainer(run)


@event("merged adapters")
def merged_adapters(run):
    adapt(run)
    lora.merge(run.net, keep=False, dequantize=True)
    new_trainer(run)


@event("quantize")
def quantize(run):
    """Packs the weight of the last layer, unless it has diverged: NaN has no scale."""
    params = run.net.last.collect_params().values()
    if all(np.isfinite(a).all() for a in values([p.list_data()[0] for p in params])):
        quantize_weights(run.net, "int4", layers="last", use_zeros=True)
        new_trainer(run)
