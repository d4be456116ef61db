"""The rules of `stateful_machine.py` for arrays, views and foreign memory."""

import gc
import pickle
import threading

import numpy as np

import mpgluon as mx
from mpgluon import nd
from programs.stateful_model import FLOATS, Memory, Plan, Program, fits, scalar_shape
from programs.stateful_networks import MOST_ARRAYS
from support.kinds import new, own

SHAPES = [(4,), (6,), (2, 3), (4, 3), (3, 4), (4, 4), (1, 4), (12,), (1,), (0, 3), (2, 2, 3)]


class Arrays:
    """The actions of a machine on arrays."""

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
            array = new.empty(shape, ctx=ctx, dtype=dtype)
            array[:] = data
            return array

        result, act = rng.choice(
            [
                (values, lambda: new.array(data, ctx=ctx, dtype=dtype)),
                (
                    values,
                    lambda: within(
                        lambda: new.array(data.tolist() if data.size else data, dtype=dtype)
                    ),
                ),
                (values, filled),
                (np.zeros(shape), lambda: new.zeros(shape, ctx=ctx, dtype=dtype)),
                (np.ones(shape), lambda: within(lambda: new.ones(shape, dtype=dtype))),
                (same, lambda: new.full(shape, number, ctx=ctx, dtype=dtype)),
                (np.arange(8.0), lambda: new.arange(8, ctx=ctx, dtype=dtype)),
            ]
        )
        return Plan(act, self.commit_new(result, dtype, ctx), text=f"{dtype} {shape} {ctx}")

    def rule_view(self, rng):
        live = self.pick(rng, lambda live: live.shape)
        if live is None:
            return None
        x, shape, values = live.array, live.shape, live.values
        size, row = values.size, int(np.prod(shape[1:]))
        flat_view = x.reshape_view if self.numpy else x.reshape
        choices = [
            (shape, 0, lambda: x.detach()),
            (shape, 0, lambda: own(nd.from_dlpack(x))),
            (shape, 0, lambda: own(nd.from_dlpack(x.to_dlpack_for_write()))),
            ((size,), 0, lambda: flat_view((-1,))) if size else (shape, 0, lambda: x.detach()),
            ((1, *shape), 0, lambda: x[None]),
            (shape, 0, lambda: x.as_in_context(live.ctx)),
            (shape, 0, lambda: x.astype(live.dtype, copy=False)),
            (shape, 0, lambda: x[:]),
        ]
        if shape[0]:
            begin = rng.randrange(shape[0])
            end = rng.randrange(begin + 1, shape[0] + 1)
            choices += [
                ((end - begin, *shape[1:]), begin * row, lambda: x[begin:end]),
                (shape[1:] or scalar_shape(), begin * row, lambda: x[begin]),
            ] * 3
            choices += [(shape[1:] or scalar_shape(), begin * row, lambda: list(x)[begin])]
        part, offset, act = rng.choice(choices)
        return Plan(
            act,
            lambda array: self.add(array, live.memory, part, live.offset + offset),
            text=f"{part} of {shape}",
        )

    def rule_move(self, rng):
        live = self.pick(rng)
        if live is None:
            return None
        x, ctx, values, dtype = (
            live.array,
            rng.choice(self.devices),
            live.values.copy(),
            self.dtype(rng),
        )
        choices = [
            (ctx, live.dtype, lambda: x.copyto(ctx)),
            (live.ctx, live.dtype, lambda: x.copy()),
            (ctx, live.dtype, lambda: new.array(x, ctx=ctx, dtype=live.dtype)),
            (live.ctx, live.dtype, lambda: pickle.loads(pickle.dumps(x))),
        ]
        if ctx != live.ctx:
            choices += [(ctx, live.dtype, lambda: x.as_in_context(ctx))] * 3
        if fits(values, dtype):
            choices += [(live.ctx, dtype, lambda: x.astype(dtype))]
        home, dtype, act = rng.choice(choices)
        return Plan(
            act,
            self.commit_new(values, dtype, home),
            text=f"{dtype} {live.shape} {live.ctx} to {home}",
        )

    def rule_write(self, rng):
        """Writes in place into an array or a view."""
        live = self.pick(rng, lambda live: live.shape)
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
            (np.full(live.shape, float(number)), lambda: set_item(slice(None), number)),
            (fresh, lambda: set_item(slice(None), data)),
            (part, lambda: set_item(slice(begin, None), number)),
            (indexed, lambda: set_item(new.array(rows, dtype="int32", ctx=live.ctx), number)),
            (old + pair, lambda: add_in_place(x)),
            (old * 2, lambda: multiply_in_place(x)),
            (fresh, lambda: new.array(data, ctx=live.ctx, dtype=dtype).copyto(x)),
        ]
        same = self.arrays(
            lambda other: (
                other.shape == live.shape and other.dtype == dtype and other.array is not x
            )
        )
        if same:
            other = rng.choice(same)
            y, more = other.array, other.values
            choices += [
                (more.copy(), lambda: y.copyto(x)),
                (more.copy(), lambda: set_item(slice(None), y)),
            ] * 2
            if other.ctx == live.ctx:
                choices += [
                    (old + more, lambda: nd.elemwise_add(x, y, out=x)),
                    (more - 1, lambda: nd.broadcast_sub(y, nd.ones_like(y), out=x)),
                ] * 2
        values, act = rng.choice(choices)
        if not fits(values, dtype):
            return None
        return Plan(
            act,
            writes=[(live.memory, live.memory.with_part(live.offset, values))],
            text=f"{dtype} {live.shape} {live.ctx}",
        )

    def rule_operators(self, rng):
        """Runs a few eager operators."""
        plan = self.program(rng, 5)
        if plan is None or len(self.lives) >= MOST_ARRAYS:
            return None
        program, inputs = plan
        arrays = [live.array for live in inputs]
        return Plan(
            lambda: program.run(arrays),
            self.commit_values(program, inputs, False),
            text=repr(program),
        )

    def program(self, rng, length, floats=False):
        dtype = rng.choice(FLOATS) if floats else self.dtype(rng)
        inputs = self.arrays(
            lambda live: (
                live.dtype == dtype
                and live.values.size <= 64
                and fits(live.values, dtype)
                and not (floats and live.taped)
            )
        )
        if not inputs:
            return None
        inputs = [rng.choice(inputs) for _ in range(rng.choice([1, 2, 3]))]
        return Program(rng, inputs, dtype, self.devices, rng.randint(1, length)), inputs

    def commit_values(self, program, inputs, compiled, taped=False):
        """Returns a commit function for the results of a program. Eager results share memory as
        views do. Compiled results share at most the same memory and may be separate."""
        values = program.evaluate(inputs)

        def commit(arrays):
            probe = compiled and any(
                values[number].place[0] is not values[number] for number in program.outputs
            )
            parts = {
                live.memory: [
                    (live.memory, probe and address(live.array) - live.offset * itemsize(live))
                ]
                for live in inputs
            }
            for array, number in zip(arrays, program.outputs):
                value = values[number]
                root, offset = value.place
                begin = probe and address(array) - offset * np.dtype(program.dtype).itemsize
                shared = [
                    memory for memory, base in parts.get(root, []) if base == begin or not compiled
                ]
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
        """Imports NumPy's memory or exports an array to NumPy."""
        if len(self.lives) >= MOST_ARRAYS:
            return None
        live = self.pick(rng)
        kind = rng.choice(["export", "import", "capsule", "adopt"])
        if kind == "export":
            if live is None or not live.values.size:
                return None
            return Plan(
                lambda: np.from_dlpack(live.array),
                lambda array: self.add(array, live.memory, live.shape, live.offset),
                text=f"export {live.shape}",
            )
        dtype, shape = self.dtype(rng), rng.choice([shape for shape in SHAPES if np.prod(shape)])
        values = self.numbers(rng, shape, dtype)
        source = values.astype(dtype)
        make = {
            "import": lambda array: own(nd.from_dlpack(array)),
            "capsule": lambda array: own(nd.from_dlpack(array.__dlpack__())),
            "adopt": lambda array: own(nd.from_numpy(array)),
        }[kind]

        def commit(array):
            memory = Memory(values, dtype, mx.cpu(0))
            self.add(array, memory, shape)
            self.add(source, memory, shape)

        return Plan(lambda: make(source), commit, text=f"{kind} {dtype} {shape}")

    def rule_write_outside(self, rng):
        found = [
            live
            for live in self.lives
            if isinstance(live.array, np.ndarray) and live.array.flags.writeable
        ]
        if not found:
            return None
        live = rng.choice(found)
        values = self.numbers(rng, live.shape, live.dtype)

        def act():
            nd.waitall()
            live.array[...] = values

        def commit(_):  # not tracked, so arrays saved for a backward have changed
            self.tapes = [tape for tape in self.tapes if live.memory not in tape[-1]]

        return Plan(
            act,
            commit,
            writes=[(live.memory, live.memory.with_part(live.offset, values))],
            calm=True,
        )

    def rule_drop(self, rng):
        if not self.lives:
            return None
        gone = [
            self.lives.pop(rng.randrange(len(self.lives)))
            for _ in range(min(len(self.lives), rng.choice([1, 2, 5])))
        ]
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


def address(array):
    return np.from_dlpack(array).ctypes.data


def itemsize(live):
    return np.dtype(live.dtype).itemsize
