"""One execution of a feature program: a network of `features/blocks.py`, trained with the options
in a row of `features/table.py`."""

import contextlib
import functools
import operator
import os
import tempfile
from unittest import mock

import numpy as np

import mpgluon as mx
from mpgluon import autograd, gluon, lr_scheduler, nd
from mpgluon._internal import ranks
from mpgluon.contrib import amp
from mpgluon.gluon._compiled import offload
from mpgluon.parallel import Mesh, Pipeline, ShardedParameter, TrainStep, _partition, schedules
from programs.features.blocks import TIED, WIDTH, Subject, numbers
from programs.features.compare import flat, values
from programs.features.events import EVENTS, IN_BOTH, STAGES
from programs.features.table import (
    BY_CODE,
    CHANGING_BITS,
    DRAWING,
    FACTORS,
    MESHES,
    PARTITIONS,
    PIPELINED,
    REPLICAS,
    SPLIT,
    STEPS,
)
from support.devices import on
from support.kinds import new

STEPS_OF_TRAINING = 3
SEED = 23  # random seed of training
# Distance of 1 from the next larger number
SPACING = {"float64": 2**-52, "float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}
PLACES = {
    "two devices": (0, 0, 1, 1),
    "three devices": (0, 1, 1, 2),
    "four devices": (0, 1, 2, 3),
    "back and forth": (0, 1, 0, 1),
    "placed before": (0, 1, 0, 1),
    "placed after": (0, 1, 2, 1),
    "placed by pattern": (0, 0, 1, 1),
    "group2ctx": (0, 1, 1, 0),
    "ranks": (0, 1, 1, 0),
}
RATES = {
    "Factor": lambda: lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1),
    "MultiFactor": lambda: lr_scheduler.MultiFactorScheduler([1, 2], 0.5, base_lr=0.1),
    "Cosine": lambda: lr_scheduler.CosineScheduler(4, 0.1, final_lr=0.01, warmup_steps=1),
    "Poly": lambda: lr_scheduler.PolyScheduler(4, 0.1),
}


def on_devices(options):
    """Returns options of a public function, with devices instead of their indices in the table,
    and a directory instead of "files"."""
    if "offload" not in options:
        return options
    where = {
        what: tempfile.gettempdir() if i == "files" else on(i)
        for what, i in options["offload"].items()
    }
    return {**options, "offload": where}


@contextlib.contextmanager
def common_folder():
    """Yields a temporary folder for all ranks. Rank 0 creates it and removes it when all ranks have
    left it."""
    with contextlib.ExitStack() as stack:
        path = ""
        if mx.parallel.rank() == 0:
            path = stack.enter_context(tempfile.TemporaryDirectory())
        try:
            yield ranks.gather("the folder of a program", path)[0]
        finally:
            # Ranks that cannot continue together raise this error.
            with contextlib.suppress(mx.MXNetError):
                ranks.gather("the end of a program", "")


class Run:
    """One execution of a program with the options in its row. A `plain` run uses arrays of mx.nd on
    one device, no pipeline and no events that leave results unchanged, and is hybridized if
    `compiled` is True.
    If `disturbed` is a seed, it decides by which rounding error each input is larger or smaller."""

    def __init__(self, row, plain, compiled, disturbed=None):
        self.row, self.plain, self.compiled, self.disturbed = row, plain, compiled, disturbed
        self.found = {}
        self.pipelined = row["way"] in PIPELINED
        self.timewise = row["way"].endswith("time")
        self.rows, self.micro_batches = map(int, row["rows"].split(" in "))
        self.axis = FACTORS["pipeline"][row["pipeline"]].get("Pipeline", {}).get("axis", 0)
        self.calls = int(row["calls"])
        precision = row["precision"]
        self.dtype = precision if precision in ("float64", "float16", "bfloat16") else "float32"
        if precision == "multi_precision":
            self.dtype = "float16"
        self.amp = precision.partition("amp ")[2]
        self.mesh, self.made_table = None, None

    def options(self, function):
        """Returns the options that the values of the row give to a public function."""
        given = {}
        for factor, value in self.row.items():
            given.update(FACTORS[factor][value].get(function, {}))
        return given

    # --- The network ------------------------------------------------------------------------------

    def places(self):
        placement = self.row["placement"]
        return [self.device(i) for i in PLACES.get(placement, (0, 0, 0, 0))]

    def device(self, index):
        """Returns device `index` of the row's placement, on a rank if the placement is "ranks"."""
        if self.row["placement"] != "ranks" or on(0).device_type != "cpu":
            return on(index)
        return mx.cpu(index, rank=index % mx.parallel.num_ranks())

    def make_network(self):
        row, placement = self.row, self.row["placement"]
        mx.random.seed(11)
        # Moves to the same device keep the order in which gradients are added.
        places, moves = [on(0)] * 4 if self.plain else self.places(), placement in BY_CODE
        net = Subject(row, places, moves, self.dtype, self.timewise, self.axis)
        init = mx.init.Uniform(0.7)
        by_name = dict(zip(STAGES, places))
        if self.plain or placement in BY_CODE:
            net.initialize_on_places(init)
        elif placement == "placed before":
            net.place(by_name, verbose=False)
            self.create_parameters(net, init)
        elif placement in PARTITIONS:
            self.partition(net, init)
        elif placement in MESHES:
            value = FACTORS["placement"][placement]
            mesh = value["Mesh"]
            self.mesh = Mesh(mesh["axes"], devices=[on(i) for i in range(mesh["devices"])])
            how = value.get("how")
            options = {"stages": {"first": 0, "body": 0, "layer": 1, "last": 1}}
            if how == "split":
                options = {"split": {"first": "column", "last": "row"}}
            self.mesh.place(net, **(options if how else {}))
            self.create_parameters(net, init)
        elif placement == "shard":
            plan = {"first": "column", "last": "row"}
            if row["layer"] == "heads":
                plan["layer"] = "heads"
            mx.parallel.shard(net, plan, [on(0), on(1)])
            self.create_parameters(net, init, ctx=on(0))
        else:
            self.create_parameters(net, init, ctx=on(0))
            if placement == "list of devices":
                net.place([on(0), on(1)], verbose=False)
            elif placement == "placed by pattern":
                net.place(
                    {"first|body": places[0], "layer": places[2], "last": places[3]}, verbose=False
                )
            else:
                net.place(by_name, verbose=False)
        if self.dtype != "float32":
            net.cast(self.dtype)
        self.hybridize(net)
        return net

    def partition(self, net, init):
        """Partitions a network, before or after its parameters are created."""
        options = self.options("Mesh")
        self.mesh = Mesh(options["axes"], devices=[on(i) for i in range(options["devices"])])
        whole = self.row["created"] in ("net", "load_parameters")
        if whole:
            self.create_parameters(net, init, ctx=on(0))
        # The programs' parameters are small.
        with mock.patch.object(_partition, "_SMALLEST", 8):
            self.mesh.partition(net, **on_devices(self.options("Mesh.partition")))
        if not whole:
            self.create_parameters(net, init)

    def create_parameters(self, net, init, **ctx):
        """Creates the parameters of a network, which may be placed, in the row's way."""
        way = self.row["created"]
        if way == "net":
            net.initialize(init, **ctx)
        elif way == "collect_params":
            net.collect_params().initialize(init, **ctx)
        elif way == "children":
            stages = net.stages[:3] if self.row["parameters"] in TIED else net.stages
            for stage in stages:
                stage.initialize(init, **ctx)
        else:
            row = {**self.row, "captured": "nothing"}  # captured arrays draw random numbers
            other = Subject(row, [on(0)] * 4, False, self.dtype, self.timewise, self.axis)
            other.initialize(init, ctx=on(0))
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "initial.params")
                other.save_parameters(path)
                net.load_parameters(path, **ctx)

    def hybridize(self, net):
        row = self.row
        if self.plain:
            if self.compiled:
                net.hybridize()
            return
        if row["recompute"] == "layers":
            for stage in net.stages:
                stage.hybridize(recompute=True, exact=self.exact_layers())
        flags = on_devices(self.options("hybridize"))
        if self.pipelined and row["way"] not in STEPS:
            self.pipeline = flags["pipeline"] = self.make_pipeline()
        if row["way"] in STEPS:
            if set(flags) - {"exact"}:
                net.hybridize(**flags)
        elif row["way"] != "eager":
            net.hybridize(**flags)
        if row["recompute"] == "offloaded layers":
            for stage in net.stages:
                stage.hybridize(offload={"activations": on(3)}, exact=self.exact_layers())

    def exact_layers(self):
        """Returns the option `exact` of layers with options of their own."""
        exact = self.row["exact"] == "exact" or self.row["way"] in ("eager", "inactive")
        return exact and self.row["placement"] not in CHANGING_BITS

    def make_pipeline(self, **changed):
        options = {**self.options("Pipeline"), **changed}
        if options.get("schedule") == "table":
            options["schedule"] = self.table()
        if options.get("split") == "all":
            options["split"] = list(range(self.divided()))
            if self.row["way"] in STEPS:  # the label follows the inputs and the state
                count = len(flat(self.inputs(0)[0])) + self.timewise
                options["split"].append(count)
        if options.get("carry") == "state":
            options.pop("carry")
        arguments = len(self.inputs(0)[0])
        if self.timewise:
            options.setdefault("check", False)
            if arguments > 1 or self.row["pipeline"] == "carry":
                options["carry"] = {arguments: 1}
        return Pipeline(self.micro_batches, **options)

    def table(self):
        """Returns a schedule table for this network, from the stages of a twin's `TrainStep`."""
        if self.made_table is not None:
            return self.made_table
        twin = Run({**self.row, "way": "step gpipe", "event": "none"}, False, False)
        net = twin.make_network()
        step = TrainStep(net, twin.losses, None, twin.make_pipeline(), exact=True)
        inputs, labels = twin.inputs(0)
        step(inputs, [labels])
        graph = step.pipeline.report().stages.graph
        times = {(kind, s): 1 + s % 3 for kind in "FBW" for s in range(len(graph))}
        count = min(self.rows, self.micro_batches)
        self.made_table = schedules.make_table(graph, count, "1f1b", times)
        mx.random.seed(SEED)
        return self.made_table

    # --- Data -------------------------------------------------------------------------------------

    def rows_of(self, step):
        if self.row["event"] == "new shapes" and step >= 1:
            return self.rows + 2
        return self.rows

    def array(self, seed, rows):
        """Returns an array whose rows are along the axis that a pipeline divides."""
        shape = [rows, WIDTH]
        if self.timewise or self.axis:
            shape.insert(1 - self.axis, 2)
        values = np.random.RandomState(seed).uniform(-1, 1, shape)
        if self.disturbed is not None:
            signs = np.random.RandomState([self.disturbed, seed]).choice([-1, 1], shape)
            values *= 1 + signs * SPACING[self.dtype]
        return new.array(values, ctx=self.home(), dtype=self.dtype)

    def home(self):
        return on(0) if self.plain else self.places()[0]

    def inputs(self, step, call=0):
        """Returns the inputs of a call in a step, in the structure of the row, and its label."""
        rows, seed = self.rows_of(step), step + 1000 * call
        a, b = self.array(100 + seed, rows), self.array(200 + seed, rows)
        whole = new.array(numbers(300 + seed), ctx=self.home(), dtype=self.dtype)
        inputs = {
            "one": [a],
            "two": [a, b],
            "whole": [a, whole],
            "list": [[a, b]],
            "dict": [{"a": a, "b": b}],
            "None": [a, None],
        }[self.row["inputs"]]
        return inputs, self.array(400 + seed, rows)

    def divided(self):
        return {"two": 2, "list": 2, "dict": 2}.get(self.row["inputs"], 1)

    def rows_between(self, x, begin, end):
        return nd.slice_axis(x, axis=self.axis, begin=begin, end=end)

    def cut(self, inputs, begin, end):
        """Returns the inputs with rows [begin, end) of those that are divided."""
        kind = self.row["inputs"]
        if kind == "list":
            return [[self.rows_between(x, begin, end) for x in inputs[0]]]
        if kind == "dict":
            return [{key: self.rows_between(x, begin, end) for key, x in inputs[0].items()}]
        if kind == "whole":
            return [self.rows_between(inputs[0], begin, end), inputs[1]]
        return [None if x is None else self.rows_between(x, begin, end) for x in inputs]

    def parts(self, rows):
        """Returns the row range (begin, end) of each micro-batch."""
        divided = self.pipelined and self.row["layer"] not in DRAWING
        count = min(self.micro_batches, rows) if divided else 1
        sizes = [len(part) for part in np.array_split(np.arange(rows), count)]
        ends = np.cumsum(sizes)
        return [(int(end - size), int(end)) for end, size in zip(ends, sizes)]

    def losses(self, outputs, label):
        """Returns the per-row losses: two arrays if the row has several heads, otherwise one."""
        if self.row["outputs"] == "dict":
            values = [outputs["h"], outputs["middle"]]
        elif self.row["outputs"] == "one":
            values = [outputs]
        elif self.row["outputs"] == "nested":
            values = [outputs[0], outputs[1][1][0]]
        else:
            values = list(outputs)
        label = label.as_in_context(values[0].context)
        first = nd.mean(nd.square(values[0] - label), axis=-1)
        second = nd.mean(nd.square(values[-1]), axis=-1) * 0.1
        second = second.as_in_context(first.context)
        if self.row["gradient"] == "several heads":
            return [first, second]
        return [first + second]

    # --- Training ---------------------------------------------------------------------------------

    def make_trainer(self, net):
        options, optimizer = self.options("Optimizer"), self.row["optimizer"]
        if self.row["rate"] != "constant":
            options.pop("learning_rate", None)
            options["lr_scheduler"] = RATES[self.row["rate"]]()
        given = on_devices(self.options("Trainer"))
        if self.plain:
            given = {k: v for k, v in given.items() if k in ("accumulate", "clip_global_norm")}
        params = self.grouped(net.collect_params())
        trainer = gluon.Trainer(params, optimizer.split(" ")[0], options, **given)
        if self.amp == "float16":
            amp.init_trainer(trainer)
        return trainer

    def grouped(self, params):
        """Returns the parameters in groups: weights, and all others."""
        if self.row["groups"] == "none" and self.row["optimizer"] != "muon":
            return params
        weights, others = [], []
        for param in params.values():
            (weights if len(param.shape or ()) == 2 else others).append(param)
        own = {} if self.row["groups"] == "none" else {"lr": 0.005}
        other = {"wd": 0.1}
        if self.row["groups"] == "another optimizer" or self.row["optimizer"] == "muon":
            other = {"wd": 0.1, "optimizer": "adamw", "epsilon": 0.01}
        return [{"params": weights, **own}, {"params": others, **other}]

    def backward(self, losses):
        kind, options = self.row["gradient"], self.options("backward")
        losses = self.scaled(losses)
        if kind == "head gradients":
            autograd.backward(losses, self.heads(losses), **options)
        elif kind == "twice" and not self.plain:
            # The second pass replaces the gradients of the first.
            autograd.backward(losses, **options)
            autograd.backward(losses)
        else:
            autograd.backward(losses, **({} if kind == "twice" else options))

    def record(self):
        return autograd.record(**self.options("record"))

    def heads(self, losses):
        value = 0.5 if self.row["gradient"] == "head gradients" else 1
        return [new.full(x.shape, value, ctx=x.context, dtype=x.dtype) for x in losses]

    def scaled(self, losses):
        """Returns the losses times the trainer's loss scale, if any. The product is recorded."""
        if self.amp != "float16":
            return losses
        with amp.scale_loss(losses, self.trainer) as scaled:
            return scaled

    def by_hand(self, batches, params):
        """Runs one micro-batch after another and accumulates gradients. Returns the losses, summed
        over the batches. The gradients of several batches are summed as by one backward."""
        self.added = [p for p in params if p.grad_req != "null" and not p.name.endswith("unused")]
        for param in self.added:
            param.grad_req = "add"
        if len(batches) == 1:
            return self.batch_by_hand(*batches[0])
        grads, losses = [self.take_gradients()], []
        for batch in batches:
            losses.append(self.batch_by_hand(*batch))
            grads.append(self.take_gradients())
        for param, before, *own in zip(self.added, *grads):
            param.grad()[:] = before + functools.reduce(operator.add, own)
        return self.summed(losses)

    def take_gradients(self):
        """Returns copies of the gradients that are accumulated, and sets them to zero."""
        grads = [param.grad().copy() for param in self.added]
        for param in self.added:
            param.zero_grad()
        return grads

    def batch_by_hand(self, inputs, label):
        """Runs the micro-batches of one call. Along time, the backward passes start with the last
        chunk, and each passes the gradient of its initial state to the chunk before it."""
        net, held, state, found = self.net, [], self.state(), []
        for begin, end in self.parts(label.shape[self.axis]):
            part = self.cut(inputs, begin, end)
            if self.timewise:
                state = state.detach()
                state.attach_grad()
            with self.record():
                out = net(*part, state) if self.timewise else net(*part)
                out, after = out if self.timewise else (out, None)
                losses = self.losses(out, self.rows_between(label, begin, end))
                found.append(losses)
                if self.timewise:
                    held.append((self.scaled(losses), state, after))
                    state = after
                else:
                    self.backward(losses)
        grads = None
        for losses, before, after in reversed(held):
            ends, heads = list(losses), self.heads(losses)
            if grads is not None:
                ends, heads = [*ends, after], [*heads, grads]
            mode = self.options("backward").get("train_mode", True)
            autograd.backward(ends, heads, train_mode=mode)
            grads = before.grad
        return [nd.concat(*piece, dim=self.axis) for piece in zip(*found)]

    def state(self):
        shape = [2, WIDTH]
        shape.insert(self.axis, 1)
        values = np.random.RandomState(5).uniform(-1, 1, shape)
        row = self.row
        moves = row["placement"] not in (*SPLIT, *PARTITIONS) and row["event"] != "reset_ctx"
        moved = row["pipeline"] == "carry" and moves and not self.plain
        return new.array(values, ctx=on(1) if moved else self.home(), dtype=self.dtype)

    @staticmethod
    def summed(losses):
        """Returns the sums over several calls of the network."""
        return [functools.reduce(operator.add, each) for each in zip(*losses)]

    def called(self, inputs, label, state):
        out = self.net(*inputs, *([state] if self.timewise else []))
        return self.losses(out[0] if self.timewise else out, label)

    def loop(self, batches, params):
        """Runs the ordinary loop of record and backward. Returns the losses, summed over the
        batches."""
        if self.mesh is not None and self.row["placement"] in REPLICAS:
            return self.loop_on_mesh(batches)
        with self.record():
            losses = self.summed([self.called(*batch, self.state()) for batch in batches])
            if self.row["gradient"] == "second order":
                return self.penalized(losses, params)
            if self.row["gradient"] != "autograd.grad":
                self.backward(losses)
                return losses
            ends = self.scaled(losses)
        wanted = self.learning(params)
        arrays = [p.data(p.list_ctx()[0]) for p in wanted]
        grads = autograd.grad(ends, arrays, **self.options("grad"))
        with autograd.record():
            self.backward(losses)
        for param, grad in zip(wanted, grads):
            param.grad()[:] = grad
        return losses

    def learning(self, params):
        return [
            p
            for p in params
            if p.grad_req != "null" and not p.name.endswith("unused") and p.grad_stype == "default"
        ]

    def penalized(self, losses, params):
        """Adds a penalty to the losses: the squared gradients of a weight in the middle, which no
        placement splits. Returns the losses without the penalty."""
        inner = {*self.net.body.collect_params().values()}
        if self.row["layer"] != "heads":  # its weights are split
            inner.update(self.net.layer.collect_params().values())
        wanted = [p.data() for p in self.learning(params) if p in inner][:1]
        if not wanted:
            self.backward(losses)
            return losses
        grads = autograd.grad(losses, wanted, **self.options("grad"))
        penalty = nd.add_n(*[nd.sum(nd.square(g)).as_in_context(on(0)) for g in grads])
        total = [nd.sum(x).as_in_context(on(0)) for x in losses]
        autograd.backward([nd.add_n(*total, (penalty * 0.1).astype(total[0].dtype))])
        return losses

    def loop_on_mesh(self, batches):
        divided = [self.divided_batch(*batch) for batch in batches]
        losses = []
        for parts in zip(*divided):
            with self.record():
                losses.append(self.summed([self.called(*part) for part in parts]))
        with autograd.record():
            self.backward([x for each in losses for x in each])
        return [
            nd.concat(*[x.as_in_context(on(0)) for x in each], dim=self.sample_axis)
            for each in zip(*losses)
        ]

    def divided_batch(self, inputs, label):
        """Returns the inputs, label and state of each replica."""
        parts = self.divide(label, stage=-1)
        pieces = [
            self.whole(x) if i and self.row["inputs"] == "whole" else self.divide(x)
            for i, x in enumerate(flat(inputs))
        ]
        states = self.divide(self.state()) if self.timewise else [None] * len(parts)
        return list(zip(map(self.shaped, zip(*pieces)), parts, states))

    @property
    def sample_axis(self):
        """The axis of the samples, which replicas divide. Pipelines along time divide another."""
        return 1 - self.axis if self.timewise else self.axis

    def divide(self, array, stage=0):
        """Divides an array among replicas by samples."""
        return self.mesh.split_and_load(array, self.sample_axis, even_split=False, stage=stage)

    def whole(self, array):
        """Copies the whole array to the first device of each replica."""
        replicas = range(self.mesh.size("data"))
        return [array.as_in_context(self.mesh.device(data=i)) for i in replicas]

    def shaped(self, arrays):
        kind, arrays = self.row["inputs"], list(arrays)
        if kind == "list":
            return [arrays]
        if kind == "dict":
            return [dict(zip("ab", arrays))]
        return [arrays[0], None] if kind == "None" else arrays

    def step(self, inputs, label):
        """Runs a `TrainStep`, which also updates the parameters. Returns the losses."""
        if self.train is None:
            self.pipeline = self.make_pipeline()
            self.train = TrainStep(
                self.net, self.losses, self.trainer, self.pipeline, **self.options("TrainStep")
            )
        states, ignore = self.state() if self.timewise else None, self.row["parameters"] == "unused"
        losses = self.train(inputs, [label], states, ignore_stale_grad=ignore)
        losses = losses[0] if self.timewise else losses
        return losses if isinstance(losses, list) else [losses]

    def clip(self, params):
        """Clips gradients between backward and update. Returns True if it also reduced them."""
        how = self.row["clipping"]
        if how == "clip_global_norm":
            self.trainer.allreduce_grads()
            mx.parallel.clip_global_norm(self.trainer, 0.05)
            return True
        if how == "utils":
            grads = [g for p in self.learning(params) for g in p.list_grad()]
            gluon.utils.clip_global_norm(grads, 0.5)
        return False

    def train_once(self, number):
        batches = [self.inputs(number, call) for call in range(self.calls)]
        params = list(self.net.collect_params().values())
        rows = self.rows_of(number)
        if not self.plain and self.row["way"] in STEPS:
            losses = self.step(*batches[0])
        else:
            self.added = []
            by_hand = self.plain and (len(self.parts(rows)) > 1 or self.timewise)
            losses = (self.by_hand if by_hand else self.loop)(batches, params)
            self.keep(f"gradients {number}", self.gradients(params))
            updated = self.clip(params)
            ignore = self.row["parameters"] == "unused"
            (self.trainer.update if updated else self.trainer.step)(rows, ignore_stale_grad=ignore)
            if self.row["accumulate"] == "1":
                for param in self.added:
                    param.zero_grad()
        self.keep(f"losses {number}", losses)
        self.keep(f"weights {number}", self.weights(params))

    def gradients(self, params):
        """Returns the gradients that a step would use: summed over replicas, without loss scale."""
        scale = self.trainer._amp_loss_scaler.loss_scale if self.amp == "float16" else 1
        learning = [p for p in params if p.grad_req != "null"]
        sums = [nd.add_n(*[g.as_in_context(on(0)) for g in p.list_grad()]) for p in learning]
        return self.joined(learning, [total / scale for total in sums])

    def weights(self, params):
        statistics = self.row["pipeline"] == "statistics"
        kept = [
            p for p in params if not (statistics and p.grad_req == "null" and "running" in p.name)
        ]
        return self.joined(kept, [p.list_data()[0] for p in kept])

    def joined(self, params, arrays):
        """Returns the arrays of parameters, with the parts of each split layer joined."""
        whole = {}
        for param, array in zip(params, arrays):
            array = array.as_in_context(on(0))
            if not isinstance(param, ShardedParameter):
                whole[param.name] = array
                continue
            zeros = new.zeros(param.global_shape, ctx=on(0), dtype=array.dtype)
            joined, begin = whole.setdefault(param.global_name, zeros), 0
            for low, high in param.ranges:
                part = nd.slice_axis(array, axis=param.axis, begin=begin, end=begin + high - low)
                joined[(slice(None),) * param.axis + (slice(low, high),)] = part
                begin += high - low
        return list(whole.values())

    def keep(self, name, arrays):
        self.found[name] = values(arrays)

    # --- Running a program ------------------------------------------------------------------------

    def predict(self, net=None, number=50, by_parts=None):
        """Returns the outputs of the network in prediction mode. If `by_parts` is True, the network
        runs on the parts of a pipeline one by one. This is the default for plain runs along time or
        with packed weights, whose bits depend on the number of rows (docs/quantized-weights.md),
        unless the row trains with a `TrainStep`."""
        packed = self.row["layer"] == "QuantizedDense" or self.row["event"] == "quantize"
        if by_parts is None:
            by_parts = (self.timewise or packed) and self.plain and self.row["way"] not in STEPS
        inputs, label = self.inputs(number)
        net = net or self.net
        state = [self.state()] if self.timewise else []
        if not by_parts:
            return flat(net(*inputs, *state))
        found = []
        for begin, end in self.parts(label.shape[self.axis]):
            out = net(*self.cut(inputs, begin, end), *state)
            if self.timewise:
                out, *state = out
            found.append(flat(out))
        return [*[nd.concat(*piece, dim=self.axis) for piece in zip(*found)], *state]

    def run(self):
        row = self.row
        engine = "async" if self.plain else row["engine"]
        with contextlib.ExitStack() as stack:
            stack.callback(amp.turn_off)
            if not self.plain:
                stack.callback(mx.util.reset_np)
                mx.util.set_np(**self.options("set_np"))
            if self.amp:
                amp.init(self.amp)
            if engine != "async":
                mx.engine.set_mode(engine, *([3] if engine == "shuffle" else []))
                stack.callback(mx.engine.set_mode, "async")
            # The programs' activations are small.
            stack.enter_context(mock.patch.object(offload, "SMALLEST", 1))
            self.folder = stack.enter_context(common_folder())
            self.net = self.make_network()
            if row["parameters"] == "deferred":
                self.predict()
            self.trainer, self.train = self.make_trainer(self.net), None
            mx.random.seed(SEED)
            for number in range(STEPS_OF_TRAINING):
                self.train_once(number)
                if number == 0:
                    self.happen()
            by_step = row["way"] in STEPS and row["exact"] == "default"  # predicts eagerly
            if row["pipeline"] != "statistics" and not by_step:
                self.keep("predictions", self.predict())
            nd.waitall()
        return self.found

    def happen(self):
        name = self.row["event"]
        function = EVENTS.get(name)
        if function is not None and (not self.plain or name in IN_BOTH):
            function(self)
