"""The machine of `stateful.py`: arrays, views, blocks, networks and the actions on them, compared
with a NumPy model. All arrays of a machine are of mx.nd or of mx.np.

A rule chooses an action, computes the expected result and returns a `Plan`, or None if no operand
is suitable. Then `act`, the library's part, runs: normally, with a failing allocation, or
interrupted. If it succeeds, the model changes as planned. If it fails, its results are lost, the
memory that it writes has the old or the new values, and everything else is unchanged.
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
from programs.stateful_arrays import Arrays
from programs.stateful_blocks import Blocks, Gradients
from programs.stateful_model import FLOATS, GRID, Finding, Live, Memory, Plan, fits
from programs.stateful_networks import MOST_ARRAYS, Networks
from support.kinds import new, own

PACKAGE = os.path.dirname(mx.__file__) + os.sep
LIMITED = mx.cpu(90)  # a device with too little memory


class Interrupt(BaseException):
    """The exception of a signal. It is a BaseException, so error handlers do not catch it."""


class Machine(Arrays, Gradients, Blocks, Networks):
    def __init__(self, seed, devices=3, check_every=None, trouble=True, log=None):
        rng = random.Random(f"{seed}/settings")
        self.seed, self.trouble, self.log = seed, trouble, log
        self.devices = [mx.cpu(60 + i) for i in range(rng.randint(1, devices))]
        self.numpy = rng.random() < 0.4  # arrays of mx.np
        self.check_every = check_every or rng.choice([1, 1, 2, 7])
        self.lives, self.networks, self.blocks, self.tapes, self.kept = [], [], [], [], []
        self.drawn = {}  # drawn bits by seed and shape
        self.folder = tempfile.TemporaryDirectory()
        self.rules = list(WEIGHTS.items())
        self.context = mx.current_context()
        self.armed = False  # True if an alarm interrupts

    # --- Running ----------------------------------------------------------------------------------

    def run(self, numbers):
        """Runs the steps with these numbers. A step depends only on its number and on the live
        objects."""
        with mx.util.np_shape(self.numpy), mx.util.np_array(self.numpy):
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
                memory.values = np.array(values, "float64").ravel()
            if plan.close:
                self.adopt(plan)
            plan.commit(result)
        else:
            del result
            self.settle(plan)
        del plan
        self.state_is_clean(name)

    def attempt(self, plan, trouble, amount):
        """Returns (True if `act` completed, its result)."""
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
            result = {
                "allocation": self.short_of_memory,
                "place": self.interrupted_at_place,
                "alarm": self.interrupted,
            }[trouble](plan.act, amount)
            nd.waitall()
            return True, result
        except (MemoryError, Interrupt) as error:
            self.tell_where(error)
            nd_wait_quietly()
            return False, None

    def tell_where(self, error):
        """Logs the line of the package that raised."""
        frames = traceback.extract_tb(error.__traceback__)
        found = [frame for frame in frames if frame.filename.startswith(PACKAGE)] or frames
        if self.log:
            name = os.path.basename(found[-1].filename)
            self.log(f"    failed at {name}:{found[-1].lineno}: {error!r}")

    @staticmethod
    def short_of_memory(act, amount):
        nd.waitall()  # the failure must not hit earlier work
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
        """Interrupts at the n-th point of the package's code where Python runs signal handlers:
        function entry and return from a C call."""
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

    def interrupted(self, act, amount):
        """Interrupts by an alarm at a random time. A late alarm is ignored: the handler stays
        installed, and no call happens between arming and `try`, or `finally` and disarming."""
        signal.signal(signal.SIGALRM, self.heard)
        self.armed = True
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-6 + amount**2 * 3e-3)
            return act()
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def heard(self, *_):
        if self.armed:
            raise Interrupt

    def adopt(self, plan):
        """Checks that rounded results are close to the model, then updates the model with them."""
        for memory, values in plan.writes:
            live = self.reader(memory)
            if live is None:
                continue
            found = live.array.asnumpy().astype("float64").ravel()
            wanted = memory.values
            if not np.allclose(
                found,
                wanted[live.offset : live.offset + found.size],
                rtol=plan.close,
                atol=plan.close,
            ):
                raise Finding(f"{found} instead of {wanted}")
            memory.values = memory.with_part(live.offset, found)

    def reader(self, memory):
        """Returns the largest live NDArray of a memory."""
        readers = [
            live
            for live in self.everything()
            if live.memory is memory and not isinstance(live.array, np.ndarray)
        ]
        return max(readers, key=lambda live: int(np.prod(live.shape)), default=None)

    def settle(self, plan):
        """Checks memory after a failure: it has the old or the planned values, or it cannot be
        read and is dropped."""
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
                        raise Finding(
                            f"after a failure {found}, which is neither {memory.values[part]} nor "
                            f"{new[part]}"
                        )
                    elif plan.close:
                        new = new.copy()
                        new[part] = found
                except MemoryError:
                    gone = True
            memory.values = new
            if gone:
                self.forget(memory)
        plan.after_failure()

    def forget(self, memory):
        self.lives = [
            live
            for live in self.lives
            if live.memory is not memory and not (live.grad and live.grad.memory is memory)
        ]
        self.tapes.clear()
        self.blocks = [
            block for block in self.blocks if all(live.memory is not memory for live in block[2])
        ]

    def state_is_clean(self, name):
        if autograd.is_recording() or autograd.is_training():
            raise Finding(f"{name} left recording or training on")
        if mx.current_context() != self.context:
            raise Finding(f"{name} left {mx.current_context()} as the current device")

    # --- Checking ---------------------------------------------------------------------------------

    def everything(self):
        for live in [
            *self.lives,
            *(param for network in self.networks for param in network.params),
        ]:
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
                if (array.context, array.shape, np.dtype(array.dtype).name) != (
                    live.ctx,
                    live.shape,
                    live.dtype,
                ):
                    raise Finding(
                        f"array {i} is {array.context} {array.shape} {array.dtype}, and should be "
                        f"{live.ctx} {live.shape} {live.dtype}"
                    )
                found = READERS[rng.randrange(len(READERS))](array)
            if found.shape != live.shape or not np.array_equal(found, live.values, equal_nan=True):
                raise Finding(
                    f"array {i} of {live.dtype} {live.shape} on {live.ctx} is\n{found}\nand should "
                    f"be\n{live.values}"
                )

    # --- Choosing ---------------------------------------------------------------------------------

    def arrays(self, condition=lambda live: True):
        return [
            live
            for live in self.lives
            if not isinstance(live.array, np.ndarray) and condition(live)
        ]

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
        """Returns the commit function of a Plan with one separate result array."""
        return lambda array: self.add(array, Memory(values, dtype, ctx), values.shape)

    def numbers(self, rng, shape, dtype="float32"):
        draw = np.random.RandomState(rng.randrange(1 << 30))
        low = max(-5, GRID[dtype][1])
        return draw.randint(low, 6, shape).astype("float64") / (
            rng.choice([1, 1, 4]) if dtype in FLOATS else 1
        )

    def dtype(self, rng):
        return rng.choice(["float32"] * 4 + list(GRID))

    # --- Other rules ------------------------------------------------------------------------------

    def rule_random(self, rng):
        """A seed gives the same bits on every device, independent of earlier actions."""
        if len(self.lives) >= MOST_ARRAYS:
            return None
        seed, ctx = rng.randrange(3), rng.choice(self.devices)

        def act():
            mx.random.seed(seed)
            return own(nd.random.uniform(-1, 1, shape=(3, 4), ctx=ctx))

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
            "shapes": lambda: nd.elemwise_add(x, new.ones((7, 7), ctx=live.ctx, dtype=live.dtype)),
            "devices": lambda: x + new.ones(live.shape, ctx=other, dtype=live.dtype),
            "dot": lambda: nd.dot(nd.ones((2, 3)), nd.ones((2, 3))),
            "reshape": lambda: x.reshape((5, 17)),
            "index": lambda: x[100],
            "assignment": lambda: x.__setitem__(slice(None), np.zeros((9, 9))),
            "dtype": lambda: nd.array([1], dtype="nonsense"),
            "copy": lambda: x.copyto(new.zeros((7, 7))),
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
        """Several threads read shared arrays and write to their own."""
        lives = [
            live for live in self.arrays() if live.values.size and fits(live.values * 2, live.dtype)
        ][:4]
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
        act = rng.choice(
            [
                nd.waitall,
                gc.collect,
                lambda: rng.choice(self.devices).empty_cache(),
                lambda: [live.array.wait_to_read() for live in self.arrays()],
            ]
        )
        return Plan(act, calm=True)


READERS = [
    lambda x: x.asnumpy(),
    lambda x: x.asnumpy(),
    lambda x: x.asnumpy(),
    lambda x: x.copyto(mx.cpu(0)).asnumpy(),
    lambda x: (x + 0).asnumpy(),
    lambda x: pickle.loads(pickle.dumps(x)).asnumpy(),
]
WEIGHTS = {
    "create": 14,
    "view": 10,
    "move": 8,
    "write": 14,
    "operators": 14,
    "outside": 6,
    "write_outside": 4,
    "drop": 6,
    "attach": 5,
    "record": 8,
    "backward": 8,
    "block": 5,
    "call": 8,
    "network": 3,
    "hybridize": 3,
    "predict": 4,
    "train": 8,
    "save": 3,
    "random": 2,
    "mistake": 4,
    "too_large": 2,
    "threads": 2,
    "wait": 3,
}


def nd_wait_quietly():
    """Waits for all queued work and ignores its errors, which are already known."""
    while True:
        try:
            return nd.waitall()
        except MemoryError:
            pass
