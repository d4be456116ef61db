"""The rules of `stateful_machine.py` for networks in training."""

import numpy as np

from mpgluon import autograd
from mpgluon.gluon import Trainer, loss
from mpgluon.parallel import Pipeline, TrainStep
from programs.stateful_model import Chain, Finding, Live, Memory, Plan, chain_gradients, fits
from support.kinds import new

MOST_ARRAYS, MOST_NETWORKS = 24, 2


class Network:
    """A Chain in training whose parameters are live arrays."""

    def __init__(self, net, weights, trainer, momentum, decay, rate):
        self.net, self.weights, self.trainer = net, weights, trainer
        self.momentum, self.decay, self.rate = momentum, decay, rate
        self.states = [np.zeros(live.shape) for pair in weights for live in pair]
        self.step = None  # a TrainStep and its arguments
        self.kind = "eager"

    @property
    def params(self):
        return [live for pair in self.weights for live in pair]


class Networks:
    """The actions of a machine on networks."""

    def rule_network(self, rng):
        if len(self.networks) >= MOST_NETWORKS:
            return self.drop_network(rng.randrange(len(self.networks)))
        layers = rng.randint(2, 3)
        places = [rng.choice(self.devices) for _ in range(layers)]
        sizes = [4] + [rng.choice([2, 3, 4]) for _ in range(layers)]
        momentum, decay, rate = (
            rng.choice([0, 0, 0.5]),
            rng.choice([0, 0, 0.25]),
            rng.choice([1 / 64, 1 / 256]),
        )
        numbers = [
            np.clip(np.round(self.numbers(rng, shape)), -2, 2) / 2
            for i in range(layers)
            for shape in ((sizes[i + 1], sizes[i]), (sizes[i + 1],))
        ]

        def act():
            net = Chain(sizes, places)
            params = [param for layer in net.layers for param in (layer.weight, layer.bias)]
            for param, values in zip(params, numbers):
                param.set_data(new.array(values))
            trainer = Trainer(
                net.collect_params(),
                "sgd",
                {"learning_rate": rate, "momentum": momentum, "wd": decay},
            )
            return net, trainer, [(param.data(), param.grad()) for param in params]

        def commit(result):
            net, trainer, arrays = result
            lives = []
            for i, ((data, grad), values) in enumerate(zip(arrays, numbers)):
                live = Live(data, Memory(values, "float32", places[i // 2]), values.shape)
                live.grad, live.grad_req = (
                    Live(
                        grad,
                        Memory(np.zeros(values.shape), "float32", places[i // 2]),
                        values.shape,
                    ),
                    "write",
                )
                lives.append(live)
            network = Network(
                net,
                [(lives[2 * i], lives[2 * i + 1]) for i in range(layers)],
                trainer,
                momentum,
                decay,
                rate,
            )
            for live in lives:
                live.owner = network
            self.networks.append(network)

        return Plan(act, commit, text=f"{sizes} {places}")

    def drop_network(self, number):
        network = [self.networks.pop(number)]

        def act():
            network.append(network)  # creates a reference cycle
            network[0].trainer.network = network

        return Plan(act, text="drop", calm=True)

    def rule_hybridize(self, rng):
        if not self.networks:
            return None
        network = rng.choice(self.networks)
        kind = rng.choice(["eager", "hybridized", "exact", "pipelined", "train step"])
        micro, schedule = rng.choice([1, 2, 3]), rng.choice(["gpipe", "1f1b"])

        def act():
            if kind in ("eager", "train step"):
                network.net.hybridize(False)
            else:
                network.net.hybridize(
                    **{
                        "hybridized": {},
                        "exact": {"exact": True},
                        "pipelined": {"pipeline": Pipeline(micro, schedule)},
                    }[kind]
                )
            step = (
                TrainStep(network.net, loss.L2Loss(), network.trainer, Pipeline(micro, schedule))
                if kind == "train step"
                else None
            )
            return step

        def commit(step):
            network.kind, network.step = kind, step

        return Plan(act, commit, text=kind, calm=True)

    def rule_predict(self, rng):
        if not self.networks or len(self.lives) >= MOST_ARRAYS:
            return None
        network = rng.choice(self.networks)
        x = self.numbers(rng, (rng.choice([1, 3, 6]), 4))
        wanted, _ = chain_gradients(x, 0, [(w.values, b.values) for w, b in network.weights])
        home = network.net.devices[-1]

        def act():
            return network.net(new.array(x, dtype="float32", ctx=network.net.devices[0]))

        def commit(result):
            found = result.asnumpy().astype("float64")
            if not np.allclose(found, wanted, rtol=1e-4, atol=1e-4):
                raise Finding(f"predicted {found} instead of {wanted}")
            self.add(result, Memory(found, "float32", home), found.shape)

        return Plan(act, commit, text=network.kind)

    def rule_train(self, rng):
        if not self.networks:
            return None
        number = rng.randrange(len(self.networks))
        network = self.networks[number]
        rows = 6
        x = self.numbers(rng, (rows, 4))
        target = self.numbers(rng, (rows, network.params[-1].shape[0]))
        weights = [(w.values, b.values) for w, b in network.weights]
        _, grads = chain_gradients(x, target, weights)
        # L2Loss is half the mean of squares over a row.
        grads = [g / target.shape[1] for pair in grads for g in pair]
        states, updated = [], []
        for live, grad, state in zip(network.params, grads, network.states):
            step = grad / rows + network.decay * live.values
            state = network.momentum * state - network.rate * step
            states.append(state)
            updated.append(live.values + state)
        if (
            max(float(np.abs(v).max()) for v in [*updated, *grads]) > 1000
            or min(near_zero(x, weights)) < 1e-3
        ):
            return self.drop_network(number)
        writes = [(live.memory, values) for live, values in zip(network.params, updated)] + [
            (live.grad.memory, grad) for live, grad in zip(network.params, grads)
        ]
        staged = network.step
        half = rng.random() < 0.15  # gradients only: the next step overwrites them

        def act():
            data, label = (
                new.array(x, dtype="float32", ctx=network.net.devices[0]),
                new.array(target, dtype="float32", ctx=network.net.devices[-1]),
            )
            if staged:
                staged(data, label)
                return
            with autograd.record():
                losses = loss.L2Loss()(network.net(data), label)
            losses.backward()
            if not half:
                network.trainer.step(rows)

        if half and not staged:
            writes = writes[len(updated) :]

        def commit(_):
            if not half or staged:
                network.states = states

        def failed():
            self.networks.remove(network)

        return Plan(
            act,
            commit,
            writes,
            close=1e-3,
            after_failure=failed,
            text=f"{network.kind}{' half' if half else ''}",
        )


def near_zero(x, weights):
    """Yields the smallest absolute input of each ReLU, because rounding decides near zero; skips
    exact zeros."""
    h = x
    for w, b in weights[:-1]:
        # Products of multiples of 1/64 are multiples of 1/4096: float32 sums below 4096 are exact.
        on_grid = all(fits(part, "float32") for part in (h, w, b))
        exact = on_grid and float((abs(h) @ abs(w).T + abs(b)).max()) < 4096
        h = h @ w.T + b
        yield float(np.abs(h).min(where=(h != 0) if exact else True, initial=1.0))
        h = np.maximum(h, 0)
