"""The rules of `stateful_machine.py` for gradients and hybridized blocks."""

import os

import numpy as np

from mpgluon import autograd, nd
from programs.stateful_model import FLOATS, Live, Memory, Plan, ProgramBlock, fits, stopped
from programs.stateful_networks import MOST_ARRAYS
from support.kinds import new, own

HYBRIDIZED = [
    {},
    {},
    {"exact": True},
    {"static_alloc": True},
    {"static_alloc": True, "static_shape": True},
    {"recompute": True},
]
MOST_BLOCKS, MOST_TAPES = 3, 3


class Gradients:
    """Recording and backward passes of a machine."""

    def rule_attach(self, rng):
        live = self.pick(
            rng, lambda live: live.dtype in FLOATS and not live.taped and live.owner is None
        )
        if live is None:
            return None
        request = rng.choice(["write", "write", "add"])
        shared = [other for other in self.lives if other.array is live.array]

        def commit(grad):
            for other in shared:
                other.grad = Live(
                    grad, Memory(np.zeros(live.shape), live.dtype, live.ctx), live.shape
                )
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
        """Records a program whose gradients are computed immediately or later."""
        plan = self.program(rng, 6, floats=True)
        if (
            plan is None
            or len(self.tapes) >= MOST_TAPES
            or len(self.lives) >= MOST_ARRAYS
            or not plan[0].steps
        ):
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
            memories = {
                live.memory
                for live in self.lives
                if live.memory in {i.memory for i in inputs}
                or any(live.array is r for r in results)
            }
            outputs = program.depend([i for i, leaf in enumerate(leaves) if leaf])
            heads = [
                result
                for result, number in zip(results, program.outputs)
                if number in outputs and all(result is not x for x in arrays)
            ]
            if len(heads) == len(outputs) > 0:
                self.tapes.append(
                    (
                        program,
                        outputs,
                        leaves,
                        values,
                        heads,
                        memories,
                    )
                )

        return Plan(act, commit, text=f"{'compiled ' if block else ''}{program!r}")

    def rule_backward(self, rng):
        if not self.tapes:
            return None
        number = rng.randrange(len(self.tapes))
        program, outputs, leaves, values, results, _ = self.tapes[number]
        keep = rng.random() < 0.4
        heads = [self.numbers(rng, values[n].values.shape) for n in outputs]
        ones = rng.random() < 0.3
        heads = [np.ones(head.shape) if ones else np.round(head) for head in heads]
        grads = program.gradients(values, outputs, heads)
        if not any(leaves) or grads is None:
            return None
        written = {}
        for live, grad in zip(leaves, grads):
            if live is None or grad is None:
                continue
            if stopped(grad):
                return self.drop_tape(number)
            memory = live.grad.memory
            if memory in written:
                written[memory] = written[memory] + grad.ravel()
            else:
                written[memory] = grad.ravel() + (memory.values if live.grad_req == "add" else 0)
        # The same array as several inputs of the program is one variable.
        if not written or not all(fits(grad, memory.dtype) for memory, grad in written.items()):
            return self.drop_tape(number)
        arrays = [
            new.array(head, ctx=result.context, dtype=program.dtype)
            for head, result in zip(heads, results)
        ]

        def act():
            autograd.backward(results, None if ones else arrays, retain_graph=keep)

        plan = Plan(
            act, text=f"{'retain ' if keep else ''}{program!r}", after_failure=self.tapes.clear
        )
        plan.writes = list(written.items())

        def commit(_):
            if not keep:
                del self.tapes[number]

        plan.commit = commit
        return plan

    def drop_tape(self, number):
        tape = [self.tapes.pop(number)]
        return Plan(tape.clear, text="drop", calm=True)


class Blocks:
    """The actions of a machine on hybridized blocks."""

    def rule_block(self, rng):
        """Creates a hybridized block, sometimes with captured arrays."""
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
            found = self.arrays(
                lambda live, shape=shape, ctx=ctx: (
                    live.shape == shape and live.dtype == program.dtype and live.ctx == ctx
                )
            )
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
        """Saves and loads arrays, networks and trainers."""
        path = os.path.join(self.folder.name, rng.choice(["a", "b"]))
        if self.networks and rng.random() < 0.5:
            network = rng.choice(self.networks)

            def through():
                network.net.save_parameters(path)
                network.trainer.save_states(path + ".states")
                network.net.load_parameters(path)
                network.trainer.load_states(path + ".states")

            return Plan(
                through,
                writes=[(live.memory, live.memory.values) for live in network.params],
                text="network",
                after_failure=lambda: self.networks.remove(network),
            )
        lives = self.arrays()
        lives = [
            rng.choice(lives) for _ in range(min(3, len(lives), MOST_ARRAYS - len(self.lives)))
        ]
        if not lives or not all(live.values.size for live in lives):
            return None
        values = [live.values.copy() for live in lives]

        def act():
            nd.save(path, {f"{i}": live.array for i, live in enumerate(lives)})
            loaded = nd.load(path)
            return [own(loaded[f"{i}"]) for i in range(len(lives))]

        def commit(arrays):
            for live, array, numbers in zip(lives, arrays, values):
                self.add(array, Memory(numbers, live.dtype, array.context), live.shape)

        return Plan(act, commit, text="arrays")
