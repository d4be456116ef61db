"""A language model with an LSTM over two devices, pipelined along time, as a new user writes it
from the docs.

It has sequences of different lengths, accumulated steps, a frozen embedding, states carried from
batch to batch, a learning rate scheduled by factors, placement during training, and export.
"""

import os

import numpy as np

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn, rnn

VOCABULARY, WIDTH, SAMPLES, LENGTH = 11, 8, 4, 12


class Model(gluon.HybridBlock):
    """Maps (steps, samples) tokens and the previous states to scores and new states."""

    def __init__(self):
        super().__init__(prefix="lm_")
        with self.name_scope():
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            self.lstm = rnn.LSTM(WIDTH, num_layers=2, input_size=WIDTH)
            self.output = nn.Dense(VOCABULARY, flatten=False, in_units=WIDTH)

    def hybrid_forward(self, F, tokens, states):
        out, states = self.lstm(self.embedding(tokens), states)
        return self.output(out), states


class Scores(gluon.HybridBlock):
    """The model with zero initial states, for export."""

    def __init__(self, model):
        super().__init__(prefix="scores_")
        self.model = model

    def hybrid_forward(self, F, tokens, h, c):
        return self.model(tokens, [h, c])[0]


def data(number):
    """Returns tokens, the next tokens and their mask."""
    draw = np.random.RandomState(number)
    tokens = draw.randint(0, VOCABULARY, (LENGTH + 1, SAMPLES))
    lengths = draw.randint(LENGTH // 2, LENGTH + 1, SAMPLES)
    counts = (np.arange(LENGTH)[:, None] < lengths).astype("float32")
    return nd.array(tokens[:-1]), nd.array(tokens[1:]), nd.array(counts)


def train(pipelined, devices, folder=None):
    mx.random.seed(2)
    model = Model()
    model.initialize(mx.init.Xavier())
    model.place({"embedding|lstm": devices[0], "output": devices[1]}, verbose=False)
    model.embedding.collect_params().setattr("grad_req", "null")
    if pipelined:
        model.hybridize(pipeline=mx.parallel.Pipeline(4, "1f1b", along="time"))
    else:
        model.hybridize()
    schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.5)
    trainer = gluon.Trainer(
        model.collect_params(),
        "sgd",
        {"momentum": 0.9, "wd": 1e-4, "lr_scheduler": schedule},
        accumulate=2,
    )
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    states = model.lstm.begin_state(SAMPLES, ctx=devices[0])
    losses = []
    for number in range(6):
        if number == 4:  # swaps the devices after two updates
            model.place({"embedding|lstm": devices[1], "output": devices[0]}, verbose=False)
            states = [state.as_in_context(devices[1]) for state in states]
        first = devices[0] if number < 4 else devices[1]
        x, y, counts = (array.as_in_context(first) for array in data(number))
        with autograd.record():
            scores, states = model(x, states)
            values = loss(
                scores,
                y.as_in_context(scores.context),
                counts.as_in_context(scores.context).expand_dims(axis=2),
            )
        values.backward()
        trainer.step(SAMPLES)
        states = [state.detach() for state in states]
        losses.append(float(values.mean().asscalar()))
    if folder is not None:
        check_export(model, folder)
    return losses, [p.data().asnumpy() for p in model.collect_params().values()]


def check_export(model, folder):
    model.hybridize(pipeline=None)
    model.place(mx.cpu(0), verbose=False)
    scores = Scores(model)
    scores.hybridize()
    x, _, _ = data(9)
    zeros = nd.zeros((2, SAMPLES, WIDTH))
    wanted = scores(x, zeros, zeros).asnumpy()
    symbol, params = scores.export(os.path.join(folder, "lm"))
    loaded = gluon.SymbolBlock.imports(symbol, ["data0", "data1", "data2"], params)
    np.testing.assert_allclose(loaded(x, zeros, zeros).asnumpy(), wanted, rtol=1e-5, atol=1e-6)
