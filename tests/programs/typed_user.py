"""A user's program that type checkers accept in strict mode: custom blocks, losses, data sets,
schedules, metrics, initializers and optimizers."""

from __future__ import annotations

from typing import Any

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.ndarray import NDArray


class Net(gluon.HybridBlock):
    """A block with children and its own parameter."""

    def __init__(self, hidden: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.hidden = nn.Dense(hidden, activation="relu")
            self.output = nn.Dense(2)
            self.scale = self.params.get("scale", shape=(1,), init="ones")

    def hybrid_forward(self, F: Any, x: NDArray, scale: NDArray) -> NDArray:
        return self.output(self.hidden(x)) * scale


class Two(gluon.HybridBlock):
    """A block with several inputs and outputs."""

    def hybrid_forward(self, F: Any, a: NDArray, b: NDArray) -> tuple[NDArray, NDArray]:
        return b, a


class Plain(gluon.Block):
    """A block whose forward has an argument that is not an array."""

    def forward(self, x: NDArray, times: int = 3) -> NDArray:
        return x * times


class Noisy(nn.Dense):
    """A subclass that extends a layer's computation."""

    def hybrid_forward(
        self, F: Any, x: NDArray, weight: NDArray, bias: NDArray | None = None
    ) -> NDArray:
        out: NDArray = super().hybrid_forward(F, x, weight, bias)
        return out


class Distance(gluon.loss.Loss):
    """The mean distance."""

    def __init__(self) -> None:
        super().__init__(None, 0)

    def hybrid_forward(self, F: Any, pred: NDArray, label: NDArray) -> Any:
        return F.mean(F.abs(pred - label), axis=0, exclude=True)


class Numbers(gluon.data.Dataset):
    """Pairs of numbers."""

    def __getitem__(self, idx: int) -> tuple[float, float]:
        return float(idx), float(-idx)

    def __len__(self) -> int:
        return 4


class Halved(mx.lr_scheduler.LRScheduler):
    """Half the rate."""

    def __call__(self, num_update: int) -> float:
        return self.base_lr / 2


@mx.metric.register
@mx.metric.alias("most")
class Largest(mx.metric.EvalMetric):
    """The largest prediction."""

    def update(self, labels: Any, preds: Any) -> None:
        self.sum_metric += 1.0
        self.num_inst += 1


@mx.init.register
class Half(mx.init.Initializer):
    """0.5 everywhere."""


def main() -> None:
    """One step of training."""
    net = Net(20)
    net.initialize(mx.init.Xavier(), ctx=[mx.cpu(0), mx.cpu(1)])
    net.hybridize(static_alloc=True)
    schedule = Halved(base_lr=0.1)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": schedule})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    accuracy = mx.metric.Accuracy()
    data = gluon.data.ArrayDataset(nd.zeros((4, 3)), nd.zeros((4,)))
    for x, y in gluon.data.DataLoader(data, batch_size=2):
        parts = gluon.utils.split_and_load(x, [mx.cpu(0), mx.cpu(1)])
        labels = gluon.utils.split_and_load(y, [mx.cpu(0), mx.cpu(1)])
        with autograd.record():
            outputs = [net(part) for part in parts]
            losses = [loss(output, label) for output, label in zip(outputs, labels)]
        for value in losses:
            value.backward()
        trainer.step(2)
        accuracy.update(labels, outputs)
    name, value = accuracy.get()
    rate: float = trainer.learning_rate
    weight: NDArray = net.hidden.weight.data(mx.cpu(0))
    print(name, value, rate, weight.shape, [p.name for p in net.collect_params().values()][:1])


if __name__ == "__main__":
    main()
