"""Random orders of events over a training run, compared with a model of the training state.

A program is a list of events: backward passes and steps; events that intentionally change training
(zero_grad, a new grad_req, rate or Trainer, rollbacks); and neutral events, which move, cast, save,
load or copy the state and must not change a bit of it. Each program runs three times: unchanged,
sometimes on arrays of mx.np; without the neutral events, on one device and arrays of mx.nd, which
must give the same bits; and in NumPy, following the table in docs/internals/training-state.md.

    python -m programs.stateful_training --seconds 60 --seed 7    (in the folder tests)

prints the smallest failing program for each failure.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import math
import os
import random
import tempfile
import time
import warnings

import numpy as np

import mpgluon as mx
from mpgluon import autograd, gluon
from mpgluon.gluon import nn
from mpgluon.gluon.trainer import loss_scaling, set_loss_scaler
from programs.features.own_optimizer import Nested
from support.kinds import new

SIZES = (3, 4, 2)
BATCH = 5
RATE = 0.05
SCALE = 16.0
OPTIMIZERS = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "adam": {},
    "adagrad": {},
    "nadam": {},
    "adamw": {"amsgrad": True},
    "lion": {},
    "adafactor": {},
    "ftml": {},
    "sgld": {},
    Nested.__name__.lower(): {},
}
MODELED = ("sgd", "momentum", "adam", "adagrad")
NEUTRAL = ("place", "reset_ctx", "replicate", "cast", "checkpoint", "states", "copy", "hybridize")
EVENTS = {  # probability weights
    "backward": 10,
    "step": 8,
    "overflow": 1,
    "zero_grad": 1,
    "grad_req": 1,
    "freeze": 1,
    "rate": 1,
    "trainer": 1,
    "save": 1,
    "load": 1,
    **dict.fromkeys(NEUTRAL, 1),
}


def draw_program(draw: random.Random, length: int = 24) -> tuple[dict, list]:
    """Returns a configuration and a list of (event, its random number)."""
    config = {
        "optimizer": draw.choice(list(OPTIMIZERS)),
        "accumulate": draw.choice([1, 1, 2, 3]),
        "clip": draw.random() < 0.3,
        "scaled": draw.random() < 0.3,
        "schedule": draw.random() < 0.3,
        "shard": draw.random() < 0.3,
        "offload": draw.choice([None, None, 1, 4]),
        "grouped": draw.random() < 0.3,
        "way": draw.choice(["checkpoint", "states"]),
        "numpy": draw.random() < 0.4,
    }
    names, weights = list(EVENTS), list(EVENTS.values())
    events = [
        (draw.choices(names, weights)[0], draw.randrange(1 << 16))
        for _ in range(draw.randrange(2, length))
    ]
    return config, events


class Training:
    """A network and a Trainer that process events."""

    def __init__(self, config: dict, folder: str) -> None:
        self.config, self.folder = config, folder
        self.passes = 0
        self.hybridized = self.saved = False
        self.net = self.network()
        self.trainer = self.new_trainer()

    def network(self):
        mx.random.seed(1)
        net = nn.HybridSequential(prefix="n_")
        with net.name_scope():
            for begin, end in zip(SIZES, SIZES[1:]):
                last = end == SIZES[-1]
                net.add(nn.Dense(end, in_units=begin, activation=None if last else "tanh"))
        net.initialize(mx.init.Xavier())
        return net

    def new_trainer(self):
        name, options = self.config["optimizer"], dict(OPTIMIZERS[self.config["optimizer"]])
        if self.config["schedule"]:
            options["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=RATE)
        options["learning_rate"] = RATE
        params = self.net.collect_params()
        if self.config["grouped"]:
            params = [
                {"params": self.net.collect_params(".*weight"), "lr": RATE},
                {"params": self.net.collect_params(".*bias")},
            ]
        where = self.config.get("offload")
        offload = None if where is None else {"states": mx.cpu(where)}
        trainer = gluon.Trainer(
            params,
            "sgd" if name == "momentum" else name,
            options,
            accumulate=self.config["accumulate"],
            clip_global_norm=0.5 if self.config["clip"] else None,
            shard_updates=self.config["shard"],
            offload=offload,
        )
        if self.config["scaled"]:
            set_loss_scaler(trainer, mx.contrib.amp.LossScaler())
            loss_scaling(trainer).loss_scale = SCALE
        return trainer

    def remake(self):
        """Replaces the network and Trainer with new ones of the same settings."""
        old = self.net
        self.net = self.network()
        for param, former in zip(self.net.collect_params().values(), old.collect_params().values()):
            param.grad_req = former.grad_req
        self.trainer = self.new_trainer()
        for param, former in zip(self.net.collect_params().values(), old.collect_params().values()):
            param.grad_req = former.grad_req
        if self.hybridized:
            self.net.hybridize(exact=True)

    def do(self, name: str, number: int) -> str | None:
        """Performs an event; returns the kind of its error if it is an expected one."""
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                getattr(self, name)(number)
        except UserWarning:
            return "stale"
        return None

    # Events

    def backward(self, number, factor=1.0):
        ctx = self.net[0].weight.list_ctx()[0]
        x = new.array(batch(self.passes), ctx=ctx)
        self.passes += 1
        with autograd.record():
            loss = (self.net(x) ** 2).sum() * factor
            if self.config["scaled"]:
                with mx.contrib.amp.scale_loss(loss, self.trainer) as scaled:
                    scaled.backward()
                return
        loss.backward()

    def overflow(self, number):
        if self.config["scaled"]:
            self.backward(number, math.inf)

    def step(self, number):
        self.trainer.step(BATCH)

    def zero_grad(self, number):
        self.net.collect_params().zero_grad()

    def grad_req(self, number):
        if self.config["accumulate"] == 1:
            for param in self.net.collect_params().values():
                if param.grad_req != "null":
                    param.grad_req = ("write", "add")[number % 2]

    def freeze(self, number):
        req = "null"
        if self.net[0].weight.grad_req == "null":
            req = self.net[1].weight.grad_req
        for param in self.net[0].collect_params().values():
            param.grad_req = req

    def rate(self, number):
        if not self.config["schedule"]:
            self.trainer.set_learning_rate(RATE / (1 + number % 3))

    def trainer_event(self, number):
        self.trainer = self.new_trainer()

    def save(self, number):
        self.write("slot")
        self.saved = [p.grad_req for p in self.net.collect_params().values()]

    def load(self, number):
        if self.saved:
            for param, req in zip(self.net.collect_params().values(), self.saved):
                param.grad_req = req
            self.read("slot")

    def write(self, where):
        path = os.path.join(self.folder, where)
        os.makedirs(path, exist_ok=True)
        if self.config["way"] == "checkpoint":
            mx.parallel.save(path, self.net, self.trainer, position=self.passes)
            return
        self.net.save_parameters(os.path.join(path, "p"))
        self.trainer.save_states(os.path.join(path, "s"))
        self.elsewhere = {**getattr(self, "elsewhere", {}), where: mx.random.get_state()}

    def read(self, where):
        path = os.path.join(self.folder, where)
        if self.config["way"] == "checkpoint":
            mx.parallel.load(path, self.net, self.trainer)
            return
        self.net.load_parameters(os.path.join(path, "p"))
        self.trainer.load_states(os.path.join(path, "s"))
        mx.random.set_state(self.elsewhere[where])

    # Neutral events

    def place(self, number):
        self.net.place({str(i): mx.cpu(number >> 2 * i & 3) for i in range(2)})

    def reset_ctx(self, number):
        if number % 2:
            self.net.place(mx.cpu(0))  # undoes the placement
        self.net[number % 2].collect_params().reset_ctx(self.net[number % 2].weight.list_ctx())

    def replicate(self, number):
        for param in self.net.collect_params().values():
            home = param.list_ctx()
            param.reset_ctx([mx.cpu(i) for i in range(1 + number % 4)])
            param.reset_ctx(home)

    def cast(self, number):
        self.net.cast("float64")
        self.net.cast("float32")

    def checkpoint(self, number):
        config, self.config = self.config, {**self.config, "way": "checkpoint"}
        self.write("now")
        self.remake()
        if number % 2:
            self.place(number >> 1)
        self.read("now")
        self.config = config

    def states(self, number):
        config, self.config = self.config, {**self.config, "way": "states"}
        self.write("now")
        self.remake()
        self.read("now")
        if number % 2:
            self.place(number >> 1)
        self.config = config

    def copy(self, number):
        path = os.path.join(self.folder, "copy")
        self.trainer.save_states(path)
        self.net = copy.deepcopy(self.net)
        reqs = [param.grad_req for param in self.net.collect_params().values()]
        self.trainer = self.new_trainer()
        for param, req in zip(self.net.collect_params().values(), reqs):
            param.grad_req = req
        self.trainer.load_states(path)

    def hybridize(self, number):
        self.hybridized = bool(number % 2)
        self.net.hybridize(self.hybridized, exact=True)

    def seen(self) -> list:
        """Returns weights and the gradients that a later event may use."""
        found = []
        for param in self.net.collect_params().values():
            ctx = param.list_ctx()[0]
            found.append(param.data(ctx).asnumpy())
            held = param.grad_req == "add" or param.grad_req == "write" and _fresh(param, ctx)
            found.append(param.grad(ctx).asnumpy() if held else None)
        return found


def _fresh(param, ctx):
    return param.data(ctx)._fresh_grad


def batch(number: int) -> np.ndarray:
    return np.random.RandomState(number).uniform(-1, 1, (BATCH, SIZES[0])).astype("float32")


class Model:
    """The same training in NumPy with plain data that is copied as a whole."""

    def __init__(self, config: dict, weights: list) -> None:
        self.config, self.passes, self.slot = config, 0, None
        adds = config["accumulate"] > 1
        self.w = [np.array(w, "float64") for w in weights]  # weight, bias, weight, bias
        self.g = [np.zeros_like(w) for w in self.w]
        self.fresh = [False] * 4
        self.req = ["add" if adds else "write"] * 4
        self.trainer_event(0)

    def trainer_event(self, number):
        self.moments = [[np.zeros_like(w), np.zeros_like(w)] for w in self.w]
        self.counts, self.updates, self.lr = [0] * 4, 0, RATE
        self.waiting, self.scale, self.divisor = (0, 0), SCALE, 1.0
        if self.config["accumulate"] > 1:
            for i, req in enumerate(self.req):
                if req == "write":
                    self.req[i] = "add"
                self.g[i][:] = 0
            self.fresh = [False] * 4

    def do(self, name, number):
        return getattr(self, name)(number)

    def backward(self, number, factor=1.0):
        x = batch(self.passes).astype("float64")
        self.passes += 1
        if self.config["scaled"]:
            factor *= self.scale
            self.divisor = self.scale
        w1, b1, w2, b2 = self.w
        h = np.tanh(x @ w1.T + b1)
        with np.errstate(invalid="ignore"):
            dy = 2 * (h @ w2.T + b2) * factor
            dh = (dy @ w2) * (1 - h * h)
            values = dh.T @ x, dh.sum(0), dy.T @ h, dy.sum(0)
        for i, value in enumerate(values):
            if self.req[i] != "null":
                self.g[i] = value + (self.g[i] if self.req[i] == "add" else 0)
                self.fresh[i] = True

    def overflow(self, number):
        if self.config["scaled"]:
            self.backward(number, math.inf)

    def step(self, number):
        used = [i for i, req in enumerate(self.req) if req != "null"]
        if not all(self.fresh[i] for i in used):
            return "stale"
        calls, size = self.waiting
        for i in used:
            self.fresh[i] = False
        size += BATCH
        if calls + 1 < self.config["accumulate"]:
            self.waiting = calls + 1, size
            return None
        self.waiting = 0, 0
        if not self._overflows(used):
            self._update(used, 1 / self.divisor / size)
        if self.config["accumulate"] > 1:
            for i in used:
                self.g[i] = np.zeros_like(self.g[i])
        return None

    def _overflows(self, used):
        if not self.config["scaled"] or all(np.isfinite(self.g[i]).all() for i in used):
            return False
        self.scale = max(self.scale / 2, 2.0**-24)
        return True

    def _update(self, used, rescale):
        if self.config["clip"]:
            norm = math.sqrt(sum((self.g[i] ** 2).sum() for i in used))
            for i in used:
                self.g[i] = self.g[i] * min(1.0, 0.5 / (rescale * norm + 1e-8))
        for i in used:
            self.counts[i] += 1
        self.updates = max([self.updates, *[self.counts[i] for i in used]])
        lr = self.lr
        if self.config["schedule"]:
            lr = RATE * 0.5 ** max(0, -(-self.updates // 2) - 1)
        for i in used:
            g, (m, v) = self.g[i] * rescale, self.moments[i]
            if self.config["optimizer"] == "sgd":
                self.w[i] = self.w[i] - lr * g
            elif self.config["optimizer"] == "momentum":
                m = 0.9 * m - lr * g
                self.w[i] = self.w[i] + m
            elif self.config["optimizer"] == "adagrad":
                v = v + g * g
                self.w[i] = self.w[i] - lr * g / np.sqrt(v + 1e-7)
            else:
                m, v, t = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g, self.counts[i]
                rate = lr * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
                self.w[i] = self.w[i] - rate * m / (np.sqrt(v) + 1e-8)
            self.moments[i] = [m, v]

    def zero_grad(self, number):
        self.g = [np.zeros_like(g) for g in self.g]

    def _request(self, i, req):
        if self.req[i] != req:
            self.req[i], self.fresh[i], self.g[i] = req, False, np.zeros_like(self.g[i])

    def grad_req(self, number):
        if self.config["accumulate"] == 1:
            for i in range(4):
                if self.req[i] != "null":
                    self._request(i, ("write", "add")[number % 2])

    def freeze(self, number):
        req = self.req[2] if self.req[0] == "null" else "null"
        for i in range(2):
            self._request(i, req)

    def rate(self, number):
        if not self.config["schedule"]:
            self.lr = RATE / (1 + number % 3)

    def save(self, number):
        self.slot = None
        self.slot = copy.deepcopy(vars(self))

    def load(self, number):
        if self.slot:
            passes, slot = self.passes, self.slot
            vars(self).update(copy.deepcopy(slot))
            self.slot, self.passes = slot, passes

    def seen(self):
        return [
            item
            for w, g, req, fresh in zip(self.w, self.g, self.req, self.fresh)
            for item in (w, g if req == "add" or req == "write" and fresh else None)
        ]


def _name(event):
    return "trainer_event" if event == "trainer" else event


def fault_of(config: dict, events: list) -> str | None:
    """Returns the first fault of a program, or None."""
    with contextlib.ExitStack() as stack:
        first, second = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2)]
        plain = Training({**config, "shard": False, "offload": None}, first)
        model = Model(config, plain.seen()[::2])
        expected = []
        for at, (event, number) in enumerate(events):
            if event in NEUTRAL:
                continue
            said = plain.do(_name(event), number)
            should = model.do(_name(event), number)
            if said != should:
                return f"event {at} ({event}) on one device: {said}, in the model: {should}"
            expected.append((said, plain.seen()))
            if config["optimizer"] in MODELED:
                fault = _differs(plain.seen(), model.seen(), 2e-3)
                if fault:
                    return f"after event {at} ({event}) on one device and in the model: {fault}"
        mx.random.seed(1)
        if config["numpy"]:
            stack.callback(mx.npx.reset_np)
            mx.npx.set_np()
        moved, done = Training(config, second), iter(expected)
        for at, (event, number) in enumerate(events):
            said = moved.do(_name(event), number)
            if event in NEUTRAL:
                continue
            should, seen = next(done)
            if said != should:
                return f"event {at} ({event}): {said}, without neutral events {should}"
            fault = _differs(moved.seen(), seen, 0)
            if fault:
                return f"after event {at} ({event}), with and without neutral events: {fault}"
    return None


def _differs(one, other, tolerance):
    for k, (a, b) in enumerate(zip(one, other)):
        if (a is None) != (b is None):
            return f"array {k} is there in one alone"
        if a is None:
            continue
        if tolerance:
            with np.errstate(invalid="ignore"):
                scale = max(1e-3, np.nanmax(np.abs(np.where(np.isfinite(b), b, 0))))
            same = np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
            if not same and not np.isfinite(b).all():
                same = (np.isfinite(a) == np.isfinite(b)).all()
        else:
            same = np.array_equal(a, b, equal_nan=True)
        if not same:
            kind = ("weight", "gradient")[k % 2]
            return f"{kind} {k // 2}: {np.ravel(a)[:3]} and {np.ravel(b)[:3]}"
    return None


def checked(config: dict, events: list) -> str | None:
    """Returns `fault_of`; an unexpected exception is also a fault."""
    try:
        return fault_of(config, events)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def smallest(config: dict, events: list) -> tuple[dict, list]:
    """Returns the failing program with as few events and settings as possible."""
    for name, plain in (
        ("clip", False),
        ("scaled", False),
        ("schedule", False),
        ("shard", False),
        ("offload", None),
        ("numpy", False),
    ):
        if config.get(name) and checked({**config, name: plain}, events):
            config = {**config, name: plain}
    size = max(1, len(events) // 2)
    while size:
        begin = 0
        while begin < len(events):
            fewer = events[:begin] + events[begin + size :]
            if checked(config, fewer):
                events = fewer
            else:
                begin += size
        size //= 2
    return config, events


def hunt(seconds: float, seed: int) -> int:
    """Runs programs for a time or until one fails, which is printed in its smallest failing form;
    returns the number of failures."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        draw = random.Random(f"{seed} {number}")
        config, events = draw_program(draw)
        if checked(config, events):
            config, events = smallest(config, events)
            print(
                f"seed {seed}, program {number}: {checked(config, events)}\n"
                f"config = {config}\nevents = {events}\n"
                "programs.stateful_training.fault_of(config, events)",
                flush=True,
            )
            return 1
        number += 1
    print(f"{number} orders of events in training from seed {seed}: 0 findings", flush=True)
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="a fresh one by default")
    given = parser.parse_args()
    seed = int(time.time()) if given.seed is None else given.seed
    raise SystemExit(bool(hunt(given.seconds, seed)))


if __name__ == "__main__":
    main()
