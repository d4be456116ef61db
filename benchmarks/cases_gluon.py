"""The benchmark cases in Gluon: the same code for mpgluon and MXNet, passed as `mx`.

A case is a function returning (step function, function that waits for all results).
"""

import numpy as np

import sizes
from models_gluon import make_models


class Cases:
    """The cases for a package with MXNet's API."""

    def __init__(self, mx):
        self.mx, self.nd, self.gluon = mx, mx.nd, mx.gluon
        self.models = make_models(mx)
        self.record = mx.autograd.record
        self.cross_entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()

    def normal(self, *shape):
        return self.nd.random.normal(shape=shape)

    def integers(self, limit, shape, ctx=None):
        return self.nd.array(np.random.RandomState(0).randint(0, limit, shape), ctx=ctx)

    def hybridized(self, net, initialize=True):
        if initialize:
            net.initialize()
        net.hybridize(static_alloc=True, static_shape=True)
        return net

    def training(self, net, inputs, target, optimizer, classes, **settings):
        """Forward, mean cross entropy, backward, update."""
        trainer = self.gluon.Trainer(net.collect_params(), optimizer, settings)

        def step():
            with self.record():
                out = net(*inputs)
                if len(out.shape) > 2:
                    out = out.reshape((-1, classes))
                loss = self.cross_entropy(out, target.reshape((-1,))).mean()
            loss.backward()
            trainer.step(1)

        return step, self.nd.waitall

    def add(self):
        a, b = self.normal(4, 4), self.normal(4, 4)
        return lambda: a + b, self.nd.waitall

    def chain(self):
        x, a, b = self.normal(4, 4), self.normal(4, 4), self.normal(4, 4)
        x.attach_grad()

        def step():
            with self.record():
                y = x
                for _ in range(10):
                    y = y * b + a
                total = y.sum()
            total.backward()

        return step, self.nd.waitall

    def exp(self):
        x = self.normal(4096, 1024)
        return lambda: self.nd.exp(x), self.nd.waitall

    def softmax(self):
        x = self.normal(4096, 1024)
        return lambda: self.nd.softmax(x), self.nd.waitall

    def differentiated(self, function, *shapes):
        """Runs forward and backward of a hybridized function of arrays."""
        net = self.hybridized(self.gluon.nn.HybridLambda(function))
        inputs, head = [self.normal(*shape) for shape in shapes], self.nd.ones(shapes[0])
        for x in inputs:
            x.attach_grad()

        def step():
            with self.record():
                out = net(*inputs)
            out.backward(head)

        return step, self.nd.waitall

    def elementwise(self):
        def function(F, x):
            for _ in range(2):
                x = F.tanh(x) * 0.5 + 1
                x = F.relu(x) * x - 0.25
            return x

        return self.differentiated(function, (4096, 1024))

    def gelu_dropout(self):
        def function(F, x, bias, residual):
            y = F.LeakyReLU(F.broadcast_add(x, bias), act_type="gelu")
            return F.Dropout(y, p=0.1) + residual

        return self.differentiated(function, (4096, 1024), (1, 1024), (4096, 1024))

    def norm_in_parts(self):
        def function(F, x, gamma, beta):
            centred = F.broadcast_sub(x, F.mean(x, axis=-1, keepdims=True))
            variance = F.mean(F.square(centred), axis=-1, keepdims=True)
            return F.broadcast_add(
                F.broadcast_mul(F.broadcast_mul(centred, F.rsqrt(variance + 1e-5)), gamma), beta
            )

        return self.differentiated(function, (4096, 1024), (1, 1024), (1, 1024))

    def sgemm(self):
        x, y = self.normal(sizes.SGEMM, sizes.SGEMM), self.normal(sizes.SGEMM, sizes.SGEMM)
        return lambda: self.nd.dot(x, y), self.nd.waitall

    def mlp(self):
        x, y = (
            self.normal(sizes.MLP_BATCH, sizes.MLP_LAYERS[0]),
            self.integers(sizes.MLP_LAYERS[-1], (sizes.MLP_BATCH,)),
        )
        return self.training(
            self.hybridized(self.models["mlp"]()),
            [x],
            y,
            "sgd",
            None,
            learning_rate=0.1,
            momentum=0.9,
        )

    def language_model(self, vocabulary, units, layers, time, batch):
        net = self.hybridized(self.models["LanguageModel"](vocabulary, units, layers))
        words = self.integers(vocabulary, (time + 1, batch))
        states = [self.nd.zeros((layers, batch, units)) for _ in range(2)]
        return self.training(
            net, [words[:-1], *states], words[1:], "sgd", vocabulary, learning_rate=1.0
        )

    def lstm_lm(self):
        return self.language_model(
            sizes.LSTM_VOCABULARY,
            sizes.LSTM_UNITS,
            sizes.LSTM_LAYERS,
            sizes.LSTM_TIME,
            sizes.LSTM_BATCH,
        )

    def lstm_deep(self):
        return self.language_model(
            sizes.DEEP_VOCABULARY,
            sizes.DEEP_UNITS,
            sizes.DEEP_LAYERS,
            sizes.DEEP_TIME,
            sizes.DEEP_BATCH,
        )

    def lstm_lm_two_devices(self):
        vocabulary, units, time, batch = (
            sizes.LSTM_VOCABULARY,
            sizes.LSTM_UNITS,
            sizes.LSTM_TIME,
            sizes.LSTM_BATCH,
        )
        net = self.models["SplitLanguageModel"](vocabulary, units)
        net.initialize_split()
        states = [self.nd.zeros((1, batch, units), ctx=self.mx.cpu(i // 2)) for i in range(4)]
        x, y = (
            self.integers(vocabulary, (time, batch), self.mx.cpu(0)),
            self.integers(vocabulary, (time, batch), self.mx.cpu(1)),
        )
        return self.training(
            self.hybridized(net, initialize=False),
            [x, *states],
            y,
            "sgd",
            vocabulary,
            learning_rate=1.0,
        )

    def images(self, batch):
        return self.normal(batch, 3, sizes.RESNET_IMAGE, sizes.RESNET_IMAGE)

    def resnet18(self):
        target = self.integers(sizes.RESNET_CLASSES, (sizes.RESNET_BATCH,))
        return self.training(
            self.hybridized(self.models["resnet18"]()),
            [self.images(sizes.RESNET_BATCH)],
            target,
            "sgd",
            None,
            learning_rate=0.1,
            momentum=0.9,
        )

    def inference(self, net, x):
        return lambda: net(x), self.nd.waitall

    def resnet18_infer1(self):
        return self.inference(self.hybridized(self.models["resnet18"]()), self.images(1))

    def resnet18_infer16(self):
        return self.inference(self.hybridized(self.models["resnet18"]()), self.images(16))

    def gpt(self):
        net = self.models["GPT"](
            sizes.GPT_VOCABULARY,
            sizes.GPT_UNITS,
            sizes.GPT_HEADS,
            sizes.GPT_LAYERS,
            sizes.GPT_LENGTH,
        )
        words = self.integers(sizes.GPT_VOCABULARY, (sizes.GPT_BATCH, sizes.GPT_LENGTH))
        # Adam with decay makes the same passes over memory as the AdamW of the PyTorch case, which
        # MXNet does not have.
        return self.training(
            self.hybridized(net),
            [words],
            words,
            "adam",
            sizes.GPT_VOCABULARY,
            learning_rate=1e-3,
            wd=0.01,
        )


NAMES = (
    "add",
    "chain",
    "exp",
    "softmax",
    "elementwise",
    "gelu_dropout",
    "norm_in_parts",
    "sgemm",
    "mlp",
    "lstm_lm",
    "lstm_lm_two_devices",
    "lstm_deep",
    "resnet18",
    "resnet18_infer1",
    "resnet18_infer16",
    "gpt",
)


def make_cases(mx):
    """Returns the cases by name."""
    cases = Cases(mx)
    return {name: getattr(cases, name) for name in NAMES}
