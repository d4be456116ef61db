"""The machine of `stateful.py`: arrays, views, blocks, networks and what happens to them, beside a model in NumPy.

A rule chooses what to do and computes what it should give, and returns a `Plan`, or None where there is nothing to do it with. Then `act`, the
library's part, runs: as it is, with an allocation that fails, or interrupted. Where it succeeds the model changes as planned. Where it fails its
results are lost, memory that it was to write has its old numbers or the new ones, and everything else is as it was.
"""

import gc
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
import traceback

import numpy as np

import mpgluon as mx
from mpgluon import _core, autograd, nd
from programs.stateful_model import FLOATS, GRID, Finding, Live, Memory, Plan, Program, ProgramBlock, fits
from programs.stateful_networks import MOST_ARRAYS, Networks

PACKAGE = os.path.dirname(mx.__file__) + os.sep
SHAPES = [(4,), (6,), (2, 3), (4, 3), (3, 4), (4, 4), (1, 4), (12,), (1,), (0, 3), (2, 2, 3)]
MOST_BLOCKS, MOST_TAPES = 3, 3
LIMITED = mx.cpu(90)  # the device of arrays that do not fit


class Interrupt(BaseException):
    """What a signal raises; no handler of errors takes it for one."""


class Machine(Networks):
    def __init__(self, seed, devices=3, check_every=None, trouble=True, log=None):
        rng = random.Random(f"{seed}/settings")
        self.seed, self.trouble, self.log = seed, trouble, log
        self.devices = [mx.cpu(60 + i) for i in range(rng.randint(1, devices))]
        self.check_every = check_every or rng.choice([1, 1, 2, 7])
        self.lives, self.networks, self.blocks, self.tapes, self.kept = [], [], [], [], []
        self.drawn = {}  # of a seed and shape, the bits that were drawn
        self.folder = tempfile.TemporaryDirectory()
        self.rules = [(name, weight) for name, weight in WEIGHTS.items()]
        self.context = mx.current_context()

    # --- Running ---------------------------------------------------------------------------------------------------

    def run(self, numbers):
        """Runs the steps of these numbers: what a step does depends on its number and on what is alive."""
        for count, number in enumerate(numbers):
            self.step(number)
            if (count + 1) % self.check_every == 0:
                self.check()
        self.check()
        nd.waitall()
        self.close()

    def close(self):
        for held in (self.lives, self.networks, self.blocks, self.tapes, self.kept):
            held.clear()
        self.folder.cleanup()

    def step(self, number):
        rng = random.Random(f"{self.seed}/{number}")
        name = rng.choices([n for n, _ in self.rules], [w for _, w in self.rules])[0]
        trouble = rng.choices(["", "allocation", "place", "alarm"], [70, 10, 8, 4])[0]
        amount = rng.random()
        with np.errstate(all="ignore"):
            plan = getattr(self, "rule_" + name)(rng)
        if plan is None:
            return
        if not self.trouble or plan.calm or plan.fails:
            trouble = ""
        if self.log:
            self.log(f"{number}: {name}{' with ' + trouble if trouble else ''} {plan.text}")
        done, result = self.attempt(plan, trouble, amount)
        if done:
            for memory, values in plan.writes:
                memory.write(np.array(values, "float64").ravel())
            if plan.close:
                self.adopt(plan)
            plan.commit(result)
        else:
            del result
            self.settle(plan)
        del plan
        self.state_is_clean(name)

    def attempt(self, plan, trouble, amount):
        """Whether act did what it should, and its result."""
        if plan.fails:
            try:
                plan.act()
            except plan.fails as error:
                if not str(error):
                    raise Finding("an error without a text") from error
                return True, None
            raise Finding(f"there should have been an error: {plan.text}")
        if not trouble:
            return True, plan.act()
        try:
            result = {"allocation": self.short_of_memory, "place": self.interrupted_at_place, "alarm": self.interrupted}[trouble](plan.act, amount)
            nd.waitall()
            return True, result
        except (MemoryError, Interrupt) as error:
            self.tell_where(error)
            nd_wait_quietly()
            return False, None

    def tell_where(self, error):
        """Where in the package Python was when it failed."""
        frames = traceback.extract_tb(error.__traceback__)
        found = [frame for frame in frames if frame.filename.startswith(PACKAGE)] or frames
        if self.log:
            name = os.path.basename(found[-1].filename)
            self.log(f"    failed at {name}:{found[-1].lineno}: {error!r}")

    @staticmethod
    def short_of_memory(act, amount):
        nd.waitall()  # the failure is not to meet what was queued before
        _core._memory_free_kept()
        _core._memory_fail_after(1 + int(amount**2 * 150), 1 + int(amount * 1000) % 3)
        try:
            result = act()
            nd.waitall()
            return result
        finally:
            _core._memory_fail_after(0)

    @staticmethod
    def interrupted_at_place(act, amount):
        """At the n-th place where Python runs handlers of signals within the package: where a function begins, behind a call."""
        left = 1 + int(amount**2 * 300)

        def watch(frame, event, _):
            nonlocal left
            if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
                left -= 1
                if left == 0:
                    raise Interrupt

        sys.setprofile(watch)
        try:
            return act()
        finally:
            sys.setprofile(None)

    @staticmethod
    def interrupted(act, amount):
        armed = True

        def handler(*_):
            if armed:
                raise Interrupt

        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + amount**2 * 3e-3)
        try:
            return act()
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def adopt(self, plan):
        """Results that are rounded: close to the model, which goes on with what was found."""
        for memory, values in plan.writes:
            live = self.reader(memory)
            if live is None:
                continue
            found = live.array.asnumpy().astype("float64").ravel()
            wanted = memory.values
            if not np.allclose(found, wanted[live.offset : live.offset + found.size], rtol=plan.close, atol=plan.close):
                raise Finding(f"{found} instead of {wanted}")
            memory.values = memory.with_part(live.offset, found)

    def reader(self, memory):
        """The live NDArray with most of a memory."""
        readers = [live for live in self.everything() if live.memory is memory and not isinstance(live.array, np.ndarray)]
        return max(readers, key=lambda live: int(np.prod(live.shape)), default=None)

    def settle(self, plan):
        """Behind a failure: what it would have written is as before or as planned, or cannot be read and is dropped."""
        for memory, values in plan.writes:
            new = np.array(values, "float64").ravel()
            live = self.reader(memory)
            gone = live is None
            if not gone:
                part = slice(live.offset, live.offset + int(np.prod(live.shape)))
                try:
                    found = live.array.asnumpy().astype("float64").ravel()
                    if np.array_equal(found, memory.values[part]):
                        new = memory.values
                    elif not np.allclose(found, new[part], rtol=plan.close, atol=plan.close):
                        raise Finding(f"after a failure {found}, which is neither {memory.values[part]} nor {new[part]}")
                    elif plan.close:
                        new = new.copy()
                        new[part] = found
                except MemoryError:
                    gone = True
            memory.write(new)
            if gone:
                self.forget(memory)
        plan.after_failure()

    def forget(self, memory):
        self.lives = [live for live in self.lives if live.memory is not memory and not (live.grad and live.grad.memory is memory)]
        self.tapes.clear()
        self.blocks = [block for block in self.blocks if all(live.memory is not memory for live in block[2])]

    def state_is_clean(self, name):
        if autograd.is_recording() or autograd.is_training():
            raise Finding(f"{name} left recording or training on")
        if mx.current_context() != self.context:
            raise Finding(f"{name} left {mx.current_context()} as the current device")

    # --- Checking --------------------------------------------------------------------------------------------------

    def everything(self):
        for live in [*self.lives, *(param for network in self.networks for param in network.params)]:
            yield live
            if live.grad:
                yield live.grad

    def check(self):
        rng = random.Random(len(self.lives))
        for i, live in enumerate(self.everything()):
            array = live.array
            if isinstance(array, np.ndarray):
                nd.waitall()
                found = array
            else:
                if (array.context, array.shape, np.dtype(array.dtype).name) != (live.ctx, live.shape, live.dtype):
                    raise Finding(f"array {i} is {array.context} {array.shape} {array.dtype}, and should be {live.ctx} {live.shape} {live.dtype}")
                found = READERS[rng.randrange(len(READERS))](array)
            if found.shape != live.shape or not np.array_equal(found, live.values, equal_nan=True):
                raise Finding(f"array {i} of {live.dtype} {live.shape} on {live.ctx} is\n{found}\nand should be\n{live.values}")

    # --- Choosing --------------------------------------------------------------------------------------------------

    def arrays(self, condition=lambda live: True):
        return [live for live in self.lives if not isinstance(live.array, np.ndarray) and condition(live)]

    def pick(self, rng, condition=lambda live: True):
        found = self.arrays(condition)
        return rng.choice(found) if found else None

    def add(self, array, memory, shape, offset=0):
        if any(live.array is array for live in self.everything()):
            return None
        live = Live(array, memory, shape, offset)
        self.lives.append(live)
        return live

    def commit_new(self, values, dtype, ctx):
        """For a Plan whose result is one array of its own."""
        return lambda array: self.add(array, Memory(values, dtype, ctx), values.shape)

    def numbers(self, rng, shape, dtype="float32"):
        draw = np.random.RandomState(rng.randrange(1 << 30))
        low = max(-5, GRID[dtype][1])
        return draw.randint(low, 6, shape).astype("float64") / (rng.choice([1, 1, 4]) if dtype in FLOATS else 1)

    def dtype(self, rng):
        return rng.choice(["float32"] * 4 + list(GRID))

    # --- Arrays ----------------------------------------------------------------------------------------------------

    def rule_create(self, rng):
        if len(self.lives) >= MOST_ARRAYS:
            return self.rule_drop(rng)
        ctx, dtype, shape = rng.choice(self.devices), self.dtype(rng), rng.choice(SHAPES)
        values = self.numbers(rng, shape, dtype)
        number = int(values.ravel()[0]) if values.size else 1
        same = np.full(shape, float(number))
        data = values.astype(dtype)

        def within(make):
            with ctx:
                return make()

        def filled():
            array = nd.empty(shape, ctx=ctx, dtype=dtype)
            array[:] = data
            return array

        result, act = rng.choice([
            (values, lambda: nd.array(data, ctx=ctx, dtype=dtype)),
            (values, lambda: within(lambda: nd.array(data.tolist() if data.size else data, dtype=dtype))),
            (values, filled),
            (np.zeros(shape), lambda: nd.zeros(shape, ctx=ctx, dtype=dtype)),
            (np.ones(shape), lambda: within(lambda: nd.ones(shape, dtype=dtype))),
            (same, lambda: nd.full(shape, number, ctx=ctx, dtype=dtype)),
            (np.arange(8.0), lambda: nd.arange(8, ctx=ctx, dtype=dtype)),
        ])  # fmt: skip
        return Plan(act, self.commit_new(result, dtype, ctx), text=f"{dtype} {shape} {ctx}")

    def rule_view(self, rng):
        live = self.pick(rng)
        if live is None:
            return None
        x, shape, values = live.array, live.shape, live.values
        size, row = values.size, int(np.prod(shape[1:]))
        choices = [
            (shape, 0, lambda: x.detach()), (shape, 0, lambda: nd.from_dlpack(x)), (shape, 0, lambda: nd.from_dlpack(x.to_dlpack_for_write())),
            ((size,), 0, lambda: x.reshape((-1,))) if size else (shape, 0, lambda: x.detach()), ((1, *shape), 0, lambda: x[None]),
            (shape, 0, lambda: x.as_in_context(live.ctx)), (shape, 0, lambda: x.astype(live.dtype, copy=False)), (shape, 0, lambda: x[:]),
        ]  # fmt: skip
        if shape[0]:
            begin = rng.randrange(shape[0])
            end = rng.randrange(begin + 1, shape[0] + 1)
            choices += [((end - begin, *shape[1:]), begin * row, lambda: x[begin:end]), (shape[1:] or (1,), begin * row, lambda: x[begin])] * 3
            choices += [(shape[1:] or (1,), begin * row, lambda: list(x)[begin])]
        new, offset, act = rng.choice(choices)
        return Plan(act, lambda array: self.add(array, live.memory, new, live.offset + offset), text=f"{new} of {shape}")

    def rule_move(self, rng):
        live = self.pick(rng)
        if live is None:
            return None
        x, ctx, values, dtype = live.array, rng.choice(self.devices), live.values.copy(), self.dtype(rng)
        choices = [
            (ctx, live.dtype, lambda: x.copyto(ctx)), (live.ctx, live.dtype, lambda: x.copy()),
            (ctx, live.dtype, lambda: nd.array(x, ctx=ctx, dtype=live.dtype)), (live.ctx, live.dtype, lambda: pickle.loads(pickle.dumps(x))),
        ]  # fmt: skip
        if ctx != live.ctx:
            choices += [(ctx, live.dtype, lambda: x.as_in_context(ctx))] * 3
        if fits(values, dtype):
            choices += [(live.ctx, dtype, lambda: x.astype(dtype))]
        home, dtype, act = rng.choice(choices)
        return Plan(act, self.commit_new(values, dtype, home), text=f"{dtype} {live.shape} {live.ctx} to {home}")

    def rule_write(self, rng):
        """In place, into an array or a view of one."""
        live = self.pick(rng)
        if live is None or not fits(live.values, live.dtype) or not live.values.size:
            return None
        x, old, dtype = live.array, live.values, live.dtype
        number = rng.choice([0, 1, 2, 3])
        fresh = self.numbers(rng, live.shape, dtype)
        data = fresh.astype(dtype)
        begin = rng.randrange(live.shape[0])
        part = old.copy()
        part[begin:] = number
        indexed = old.copy()
        rows = sorted({rng.randrange(live.shape[0]) for _ in range(2)})
        indexed[rows] = number
        pair = (number, 1)[rng.randrange(2)]

        def set_item(key, value):
            x[key] = value

        def add_in_place(y):
            y += pair

        def multiply_in_place(y):
            y *= 2

        choices = [
            (np.full(live.shape, float(number)), lambda: set_item(slice(None), number)), (fresh, lambda: set_item(slice(None), data)),
            (part, lambda: set_item(slice(begin, None), number)), (indexed, lambda: set_item(nd.array(rows, dtype="int32", ctx=live.ctx), number)),
            (old + pair, lambda: add_in_place(x)), (old * 2, lambda: multiply_in_place(x)), (fresh, lambda: nd.array(data, ctx=live.ctx, dtype=dtype).copyto(x)),
        ]  # fmt: skip
        same = self.arrays(lambda other: other.shape == live.shape and other.dtype == dtype and other.array is not x)
        if same:
            other = rng.choice(same)
            y, more = other.array, other.values
            choices += [(more.copy(), lambda: y.copyto(x)), (more.copy(), lambda: set_item(slice(None), y))] * 2
            if other.ctx == live.ctx:
                choices += [(old + more, lambda: nd.elemwise_add(x, y, out=x)), (more - 1, lambda: nd.broadcast_sub(y, nd.ones_like(y), out=x))] * 2
        new, act = rng.choice(choices)
        if not fits(new, dtype):
            return None
        return Plan(act, writes=[(live.memory, live.memory.with_part(live.offset, new))], text=f"{dtype} {live.shape} {live.ctx}")

    def rule_operators(self, rng):
        """A few operators, eager."""
        plan = self.program(rng, 5)
        if plan is None or len(self.lives) >= MOST_ARRAYS:
            return None
        program, inputs = plan
        arrays = [live.array for live in inputs]
        return Plan(lambda: program.run(arrays), self.commit_values(program, inputs, False), text=repr(program))

    def program(self, rng, length, floats=False):
        dtype = rng.choice(FLOATS) if floats else self.dtype(rng)
        inputs = self.arrays(lambda live: live.dtype == dtype and live.values.size <= 64 and fits(live.values, dtype) and not (floats and live.taped))
        if not inputs:
            return None
        inputs = [rng.choice(inputs) for _ in range(rng.choice([1, 2, 3]))]
        return Program(rng, inputs, dtype, self.devices, rng.randint(1, length)), inputs

    def commit_values(self, program, inputs, compiled, taped=False):
        """Results of a program: eager ones share memory as views do, those of a compiled one share it nowhere else, and may be separate."""
        values = program.evaluate(inputs)

        def commit(arrays):
            probe = compiled and any(values[number].place[0] is not values[number] for number in program.outputs)
            parts = {live.memory: [(live.memory, probe and address(live.array) - live.offset * itemsize(live))] for live in inputs}
            for array, number in zip(arrays, program.outputs):
                value = values[number]
                root, offset = value.place
                begin = probe and address(array) - offset * np.dtype(program.dtype).itemsize
                shared = [memory for memory, base in parts.get(root, []) if base == begin or not compiled]
                if shared:
                    memory = shared[0]
                else:
                    memory = Memory(root.values, program.dtype, value.ctx)
                    parts.setdefault(root, []).append((memory, begin))
                live = self.add(array, memory, value.values.shape, offset)
                if live and taped:
                    live.taped = True

        return commit

    def rule_outside(self, rng):
        """Memory that NumPy owns, or ours as NumPy sees it."""
        if len(self.lives) >= MOST_ARRAYS:
            return None
        live = self.pick(rng)
        kind = rng.choice(["export", "import", "capsule", "adopt"])
        if kind == "export":
            if live is None or not live.values.size:
                return None
            return Plan(lambda: np.from_dlpack(live.array), lambda array: self.add(array, live.memory, live.shape, live.offset), text=f"export {live.shape}")
        dtype, shape = self.dtype(rng), rng.choice([shape for shape in SHAPES if np.prod(shape)])
        values = self.numbers(rng, shape, dtype)
        source = values.astype(dtype)
        make = {"import": nd.from_dlpack, "capsule": lambda array: nd.from_dlpack(array.__dlpack__()), "adopt": nd.from_numpy}[kind]

        def commit(array):
            memory = Memory(values, dtype, mx.cpu(0))
            self.add(array, memory, shape)
            self.add(source, memory, shape)

        return Plan(lambda: make(source), commit, text=f"{kind} {dtype} {shape}")

    def rule_write_outside(self, rng):
        found = [live for live in self.lives if isinstance(live.array, np.ndarray) and live.array.flags.writeable]
        if not found:
            return None
        live = rng.choice(found)
        values = self.numbers(rng, live.shape, live.dtype)

        def act():
            nd.waitall()
            live.array[...] = values

        def commit(_):  # nobody is told, so what was saved for a backward is other numbers now
            self.tapes = [tape for tape in self.tapes if all(memory is not live.memory for memory, _ in tape[-1])]

        return Plan(act, commit, writes=[(live.memory, live.memory.with_part(live.offset, values))], calm=True)

    def rule_drop(self, rng):
        if not self.lives:
            return None
        gone = [self.lives.pop(rng.randrange(len(self.lives))) for _ in range(min(len(self.lives), rng.choice([1, 2, 5])))]
        arrays = [live.array for live in gone]
        gone.clear()
        kind = rng.choice(["plain", "cycle", "thread", "kept"])
        collect = rng.random() < 0.2

        def act():
            if kind == "cycle":
                arrays.append(arrays)
            elif kind == "thread":
                thread = threading.Thread(target=arrays.clear)
                thread.start()
                thread.join()
            elif kind == "kept":
                self.kept.append(arrays[:])
                del self.kept[:-3]
            if kind != "cycle":
                arrays.clear()
            if collect:
                gc.collect()

        return Plan(act, text=kind, calm=True)

    # --- Gradients -------------------------------------------------------------------------------------------------

    def rule_attach(self, rng):
        live = self.pick(rng, lambda live: live.dtype in FLOATS and not live.taped and live.owner is None)
        if live is None:
            return None
        request = rng.choice(["write", "write", "add"])
        shared = [other for other in self.lives if other.array is live.array]

        def commit(grad):
            for other in shared:
                other.grad = Live(grad, Memory(np.zeros(live.shape), live.dtype, live.ctx), live.shape)
                other.grad_req = request
            self.tapes.clear()

        def act():
            live.array.attach_grad(request)
            return live.array.grad

        def dropped():
            self.lives.remove(live)
            self.tapes.clear()

        return Plan(act, commit, after_failure=dropped, text=f"{request} {live.dtype} {live.shape}")

    def rule_record(self, rng):
        """Records a program whose gradients are asked for now or later."""
        plan = self.program(rng, 6, floats=True)
        if plan is None or len(self.tapes) >= MOST_TAPES or len(self.lives) >= MOST_ARRAYS or not plan[0].steps:
            return None
        program, inputs = plan
        program.separate(inputs)  # while recording, rows of variables are copies
        values = program.evaluate(inputs)
        leaves = [live if live.grad else None for live in inputs]
        arrays = [live.array for live in inputs]
        block = None
        if rng.random() < 0.5:
            block = ProgramBlock(program, [])
            block.hybridize(**rng.choice(HYBRIDIZED))
        paused = rng.random() < 0.2

        def act():
            with autograd.record(train_mode=rng.random() < 0.5):
                if paused:
                    with autograd.pause():
                        arrays[0] + 1
                return block(*arrays) if block else program.run(arrays)

        def commit(results):
            results = list(results) if isinstance(results, (list, tuple)) else [results]
            self.commit_values(program, inputs, block is not None, taped=True)(results)
            memories = [live.memory for live in self.lives if live.memory in {i.memory for i in inputs} or any(live.array is r for r in results)]
            outputs = program.depend([i for i, leaf in enumerate(leaves) if leaf])
            heads = [result for result, number in zip(results, program.outputs) if number in outputs and all(result is not x for x in arrays)]
            if len(heads) == len(outputs) > 0:
                self.tapes.append((program, outputs, leaves, values, heads, [(memory, memory.writes) for memory in memories]))

        return Plan(act, commit, text=f"{'compiled ' if block else ''}{program!r}")

    def rule_backward(self, rng):
        if not self.tapes:
            return None
        number = rng.randrange(len(self.tapes))
        program, outputs, leaves, values, results, written = self.tapes[number]
        keep = rng.random() < 0.4
        heads = [self.numbers(rng, values[n].values.shape) for n in outputs]
        ones = rng.random() < 0.3
        heads = [np.ones(head.shape) if ones else np.round(head) for head in heads]
        grads = program.gradients(values, outputs, heads)
        if not any(leaves) or grads is None:
            return None
        new = {}
        for live, grad in zip(leaves, grads):
            if live is None or grad is None:
                continue
            if np.isscalar(grad):
                return self.drop_tape(number)
            memory = live.grad.memory
            if memory in new:
                new[memory] = new[memory] + grad.ravel()
            else:
                new[memory] = grad.ravel() + (memory.values if live.grad_req == "add" else 0)
        # Inputs that are one array are one variable, but are different inputs of the program.
        if not new or not all(fits(grad, memory.dtype) for memory, grad in new.items()):
            return self.drop_tape(number)
        stale = any(memory.writes != writes for memory, writes in written)
        arrays = [nd.array(head, ctx=result.context, dtype=program.dtype) for head, result in zip(heads, results)]
        refused = []

        def act():
            try:
                autograd.backward(results, None if ones else arrays, retain_graph=keep)
            except mx.MXNetError as error:
                if isinstance(error, MemoryError) or not stale or "overwritten" not in str(error):
                    raise
                refused.append(error)

        plan = Plan(act, text=f"{'retain ' if keep else ''}{program!r}", after_failure=self.tapes.clear)
        plan.writes = list(new.items())

        def commit(_):
            if not keep or refused:
                del self.tapes[number]

        plan.commit = commit
        if stale:  # refused or right: as behind a failure
            plan.calm = True
            inner = plan.act

            def act_stale():
                inner()
                if refused:
                    plan.writes.clear()

            plan.act = act_stale
        return plan

    def drop_tape(self, number):
        tape = [self.tapes.pop(number)]
        return Plan(tape.clear, text="drop", calm=True)

    # --- Blocks ----------------------------------------------------------------------------------------------------

    def rule_block(self, rng):
        """Makes a hybridized block, with captured arrays now and then."""
        plan = self.program(rng, 8)
        if plan is None or len(self.blocks) >= MOST_BLOCKS:
            return self.rule_call(rng)
        program, inputs = plan
        captured = inputs[len(inputs) - (len(inputs) > 1 and rng.random() < 0.4) :]
        if rng.random() < 0.7:
            program.separate(inputs)
        block = ProgramBlock(program, [live.array for live in captured])
        block.hybridize(**rng.choice(HYBRIDIZED))
        self.blocks.append((program, block, captured, [(live.shape, live.ctx) for live in inputs]))
        return self.rule_call(rng)

    def rule_call(self, rng):
        if not self.blocks:
            return None
        number = rng.randrange(len(self.blocks))
        program, block, captured, signature = self.blocks[number]
        if rng.random() < 0.1:
            del self.blocks[number]
            return Plan(lambda: None, text="drop", calm=True)
        inputs = []
        for shape, ctx in signature[: len(signature) - len(captured)]:
            found = self.arrays(lambda live, shape=shape, ctx=ctx: live.shape == shape and live.dtype == program.dtype and live.ctx == ctx)
            if not found:
                return None
            inputs.append(rng.choice(found))
        everything = [*inputs, *captured]
        if program.evaluate(everything) is None or len(self.lives) >= MOST_ARRAYS:
            return None
        arrays = [live.array for live in inputs]

        def act():
            results = block(*arrays)
            return list(results) if isinstance(results, (list, tuple)) else [results]

        return Plan(act, self.commit_values(program, everything, True), text=repr(program))

    def rule_save(self, rng):
        """Arrays, networks and trainers go through files."""
        path = os.path.join(self.folder.name, rng.choice(["a", "b"]))
        if self.networks and rng.random() < 0.5:
            network = rng.choice(self.networks)

            def through():
                network.net.save_parameters(path)
                network.trainer.save_states(path + ".states")
                network.net.load_parameters(path)
                network.trainer.load_states(path + ".states")

            return Plan(through, writes=[(live.memory, live.memory.values) for live in network.params], text="network", after_failure=lambda: self.networks.remove(network))
        lives = self.arrays()
        lives = [rng.choice(lives) for _ in range(min(3, len(lives), MOST_ARRAYS - len(self.lives)))]
        if not lives or not all(live.values.size for live in lives):
            return None
        values = [live.values.copy() for live in lives]

        def act():
            nd.save(path, {f"{i}": live.array for i, live in enumerate(lives)})
            loaded = nd.load(path)
            return [loaded[f"{i}"] for i in range(len(lives))]

        def commit(arrays):
            for live, array, numbers in zip(lives, arrays, values):
                self.add(array, Memory(numbers, live.dtype, array.context), live.shape)

        return Plan(act, commit, text="arrays")

    # --- The rest --------------------------------------------------------------------------------------------------

    def rule_random(self, rng):
        """A seed gives the same bits, whatever happened before and wherever they are drawn."""
        if len(self.lives) >= MOST_ARRAYS:
            return None
        seed, ctx = rng.randrange(3), rng.choice(self.devices)

        def act():
            mx.random.seed(seed)
            return nd.random.uniform(-1, 1, shape=(3, 4), ctx=ctx)

        def commit(array):
            found = array.asnumpy().astype("float64")
            if not np.array_equal(self.drawn.setdefault(seed, found), found):
                raise Finding(f"seed {seed} gave other numbers than before")
            self.add(array, Memory(found, "float32", ctx), found.shape)

        return Plan(act, commit)

    def rule_mistake(self, rng):
        live = self.pick(rng)
        if live is None:
            return None
        x, other = live.array, mx.cpu(91)
        mistakes = {
            "shapes": lambda: nd.elemwise_add(x, nd.ones((7, 7), ctx=live.ctx, dtype=live.dtype)),
            "devices": lambda: x + nd.ones(live.shape, ctx=other, dtype=live.dtype),
            "dot": lambda: nd.dot(nd.ones((2, 3)), nd.ones((2, 3))),
            "reshape": lambda: x.reshape((5, 17)),
            "index": lambda: x[100],
            "assignment": lambda: x.__setitem__(slice(None), np.zeros((9, 9))),
            "dtype": lambda: nd.array([1], dtype="nonsense"),
            "copy": lambda: x.copyto(nd.zeros((7, 7))),
            "file": lambda: nd.load(os.path.join(self.folder.name, "none")),
            "take": lambda: nd.take(nd.ones((3,)), nd.array([9]), mode="raise").asnumpy(),
            "backward": lambda: nd.ones((3,)).backward(),
        }
        kind = rng.choice(list(mistakes))
        return Plan(mistakes[kind], fails=Exception, text=f"{kind} {live.dtype} {live.shape}")

    def rule_too_large(self, rng):
        def act():
            mx.context.set_memory_limit(LIMITED, 1 << 16)
            try:
                array = nd.ones((100, 100), ctx=LIMITED)
                other = [array + i for i in range(4)]
                raise Finding(f"{len(other)} arrays beyond the limit")
            finally:
                mx.context.set_memory_limit(LIMITED, None)

        return Plan(act, fails=MemoryError)

    def rule_threads(self, rng):
        """Several threads compute with what they share, and write to what they do not."""
        lives = [live for live in self.arrays() if live.values.size and fits(live.values * 2, live.dtype)][:4]
        if not lives or len(self.lives) >= MOST_ARRAYS:
            return None
        values = [live.values * 2 for live in lives]
        results, errors = [None] * len(lives), []

        def work(i):
            try:
                for _ in range(3):
                    results[i] = lives[i].array * 2
                    with mx.cpu(60 + i):
                        nd.ones((3,)).wait_to_read()
            except BaseException as error:
                errors.append(error)

        def act():
            threads = [threading.Thread(target=work, args=(i,)) for i in range(len(lives))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if errors:
                raise errors[0]

        def commit(_):
            for live, array, numbers in zip(lives, results, values):
                self.add(array, Memory(numbers, live.dtype, live.ctx), live.shape)

        return Plan(act, commit, calm=True)

    def rule_wait(self, rng):
        act = rng.choice([nd.waitall, gc.collect, lambda: rng.choice(self.devices).empty_cache(), lambda: [live.array.wait_to_read() for live in self.arrays()]])
        return Plan(act, calm=True)


HYBRIDIZED = [{}, {}, {"exact": True}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}, {"recompute": True}]
READERS = [
    lambda x: x.asnumpy(),
    lambda x: x.asnumpy(),
    lambda x: x.asnumpy(),
    lambda x: x.copyto(mx.cpu(0)).asnumpy(),
    lambda x: (x + 0).asnumpy(),
    lambda x: pickle.loads(pickle.dumps(x)).asnumpy(),
]
WEIGHTS = {
    "create": 14, "view": 10, "move": 8, "write": 14, "operators": 14, "outside": 6, "write_outside": 4, "drop": 6, "attach": 5, "record": 8, "backward": 8,
    "block": 5, "call": 8, "network": 3, "hybridize": 3, "predict": 4, "train": 8, "save": 3, "random": 2, "mistake": 4, "too_large": 2, "threads": 2, "wait": 3,
}  # fmt: skip


def address(array):
    return np.from_dlpack(array).ctypes.data


def itemsize(live):
    return np.dtype(live.dtype).itemsize


def nd_wait_quietly():
    """Waits for all that is queued; what failed there is known to have."""
    while True:
        try:
            return nd.waitall()
        except MemoryError:
            pass

