"""The benchmark cases in Gluon: the same code for mpgluon and for MXNet, given as `mx`."""

import numpy as np


def make_cases(mx):
    nd, autograd, gluon = mx.nd, mx.autograd, mx.gluon
    nn, rnn = gluon.nn, gluon.rnn
    normal = nd.random.normal
    cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()

    def add():
        a, b = normal(shape=(4, 4)), normal(shape=(4, 4))
        return lambda: a + b, 20000, nd.waitall

    def chain():
        x, a, b = normal(shape=(4, 4)), normal(shape=(4, 4)), normal(shape=(4, 4))
        x.attach_grad()

        def step():
            with autograd.record():
                y = x
                for _ in range(10):
                    y = y * b + a
                total = y.sum()
            total.backward()

        return step, 500, nd.waitall

    def exp():
        x = normal(shape=(4096, 1024))
        return lambda: nd.exp(x), 5, nd.waitall

    def softmax():
        x = normal(shape=(4096, 1024))
        return lambda: nd.softmax(x), 5, nd.waitall

    def sgemm():
        x, y = normal(shape=(2048, 2048)), normal(shape=(2048, 2048))
        return lambda: nd.dot(x, y), 3, nd.waitall

    def mlp():
        net = nn.HybridSequential()
        net.add(nn.Dense(512, activation="relu"), nn.Dense(512, activation="relu"), nn.Dense(10))
        net.initialize()
        net.hybridize(static_alloc=True, static_shape=True)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        x, y = normal(shape=(128, 784)), nd.array(np.random.randint(0, 10, 128))

        def step():
            with autograd.record():
                loss = cross_entropy(net(x), y).mean()
            loss.backward()
            trainer.step(1)

        return step, 30, nd.waitall

    vocab, hidden, time, batch = 10000, 650, 35, 20

    class LanguageModel(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.embed = nn.Embedding(vocab, hidden)
                self.rnn = rnn.LSTM(hidden, 2, input_size=hidden)
                self.decoder = nn.Dense(vocab, in_units=hidden, flatten=False)

        def hybrid_forward(self, F, x, h, c):
            out, _ = self.rnn(self.embed(x), [h, c])
            return self.decoder(out)

    class SplitLanguageModel(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.embed = nn.Embedding(vocab, hidden)
                self.lstm1 = rnn.LSTM(hidden, input_size=hidden)
                self.lstm2 = rnn.LSTM(hidden, input_size=hidden)
                self.decoder = nn.Dense(vocab, in_units=hidden, flatten=False)

        def hybrid_forward(self, F, x, h1, c1, h2, c2):
            out, _ = self.lstm1(self.embed(x), [h1, c1])
            out, _ = self.lstm2(out.as_in_context(mx.cpu(1)), [h2, c2])
            return self.decoder(out)

    def training(net, states, out_context):
        net.hybridize(static_alloc=True, static_shape=True)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
        x = nd.array(np.random.randint(0, vocab, (time, batch)))
        y = nd.array(np.random.randint(0, vocab, (time, batch)), ctx=out_context)

        def step():
            with autograd.record():
                loss = cross_entropy(net(x, *states).reshape((-1, vocab)), y.reshape((-1,))).mean()
            loss.backward()
            trainer.step(1)

        return step, 2, nd.waitall

    def lstm_lm():
        net = LanguageModel()
        net.initialize()
        return training(net, [nd.zeros((2, batch, hidden)), nd.zeros((2, batch, hidden))], mx.cpu(0))

    def lstm_lm_two_devices():
        net = SplitLanguageModel()
        for child, ctx in ((net.embed, mx.cpu(0)), (net.lstm1, mx.cpu(0)), (net.lstm2, mx.cpu(1)), (net.decoder, mx.cpu(1))):
            child.initialize(ctx=ctx)
        states = [nd.zeros((1, batch, hidden), ctx=mx.cpu(i // 2)) for i in range(4)]
        return training(net, states, mx.cpu(1))

    return {f.__name__: f for f in (add, chain, exp, softmax, sgemm, mlp, lstm_lm, lstm_lm_two_devices)}
