"""Allocation failure sweeps, and a training session to run them on."""

import numpy as np

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep


def sweep(work, limit=5000, stride=1, count=1, after=lambda: None):
    """Runs `work` with its n-th allocation failing, for every `stride`-th n.

    `count` consecutive allocations fail. Runs `after` after each run. Returns the number of failed
    runs.
    """
    failures = 0
    for n in range(1, limit, stride):
        _core._memory_free_kept()
        _core._memory_fail_after(n, count)
        try:
            work()
            done = True
        except MemoryError as error:
            assert isinstance(error, mx.MXNetError) and str(error)
            done = False
            failures += 1
        finally:
            met = _core._memory_fail_after(0)
        try:
            nd.waitall()  # queued work may have failed
        except MemoryError:
            pass
        after()
        if not met:
            assert done
            return failures
    raise AssertionError("there is no end of allocations")


class Small(gluon.HybridBlock):
    """Convolution, norm, dropout and dense layers over two devices."""

    def __init__(self):
        super().__init__(prefix="small_")
        with self.name_scope():
            self.conv = nn.Conv2D(4, 3, in_channels=2, padding=1)
            self.norm = nn.BatchNorm(in_channels=4)
            self.dense = nn.Dense(16, in_units=144, activation="tanh")
            self.out = nn.Dense(3, in_units=16)
        for layer, index in ((self.conv, 0), (self.norm, 0), (self.dense, 1), (self.out, 1)):
            layer.initialize(mx.init.Xavier(), ctx=mx.cpu(index))

    def hybrid_forward(self, F, x):
        x = F.relu(self.norm(self.conv(x))).as_in_context(mx.cpu(1))
        return self.out(self.dense(F.Dropout(x, p=0.2)))


class Session:
    """A small network in training, run in one of several ways, that can be restored to its saved
    state."""

    def __init__(self, way):
        mx.random.seed(5)
        self.net, self.loss, self.staged = Small(), gluon.loss.SoftmaxCrossEntropyLoss(), None
        if way != "eager":
            self.net.hybridize(
                **{
                    "hybridized": {},
                    "exact": {"exact": True},
                    "pipelined": {"pipeline": Pipeline(3, "1f1b")},
                    "train step": {},
                }[way]
            )
        self.trainer = gluon.Trainer(self.net.collect_params(), "adam", {"learning_rate": 0.01})
        if way == "train step":
            self.staged = TrainStep(self.net, self.loss, self.trainer, Pipeline(3, "1f1b"))
        self.x = nd.array(np.random.RandomState(0).rand(6, 2, 6, 6))
        self.label = nd.array(np.arange(6) % 3, ctx=mx.cpu(1))

    def step(self):
        if self.staged:
            return float(self.staged(self.x, self.label).mean().asscalar())
        with autograd.record():
            loss = self.loss(self.net(self.x), self.label)
        loss.backward()
        self.trainer.step(6)
        return float(loss.mean().asscalar())

    def save(self, folder):
        self.net.save_parameters(f"{folder}/net.params")
        self.trainer.save_states(f"{folder}/trainer")

    def load(self, folder):
        self.net.load_parameters(f"{folder}/net.params")
        self.trainer.load_states(f"{folder}/trainer")
