"""The benchmark cases in Gluon: the same code for mpgluon and for MXNet, given as `mx`.

A case is a function returning (step function, function that waits for all results).
"""

import numpy as np

import sizes
from models_gluon import make_models


def make_cases(mx):
    nd, autograd, gluon = mx.nd, mx.autograd, mx.gluon
    normal = nd.random.normal
    cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
    models = make_models(mx)

    def integers(limit, shape, ctx=None):
        return nd.array(np.random.RandomState(0).randint(0, limit, shape), ctx=ctx)

    def hybridized(net, initialize=True):
        if initialize:
            net.initialize()
        net.hybridize(static_alloc=True, static_shape=True)
        return net

    def training(net, inputs, target, optimizer, classes, **settings):
        """Forward, mean cross entropy, backward, update."""
        trainer = gluon.Trainer(net.collect_params(), optimizer, settings)

        def step():
            with autograd.record():
                out = net(*inputs)
                if len(out.shape) > 2:
                    out = out.reshape((-1, classes))
                loss = cross_entropy(out, target.reshape((-1,))).mean()
            loss.backward()
            trainer.step(1)

        return step, nd.waitall

    def add():
        a, b = normal(shape=(4, 4)), normal(shape=(4, 4))
        return lambda: a + b, nd.waitall

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

        return step, nd.waitall

    def exp():
        x = normal(shape=(4096, 1024))
        return lambda: nd.exp(x), nd.waitall

    def softmax():
        x = normal(shape=(4096, 1024))
        return lambda: nd.softmax(x), nd.waitall

    def differentiated(function, *shapes):
        """Forward and backward of a hybridized function of arrays."""
        net = hybridized(gluon.nn.HybridLambda(function))
        inputs, head = [normal(shape=shape) for shape in shapes], nd.ones(shapes[0])
        for x in inputs:
            x.attach_grad()

        def step():
            with autograd.record():
                out = net(*inputs)
            out.backward(head)

        return step, nd.waitall

    def elementwise():
        def function(F, x):
            for _ in range(2):
                x = F.tanh(x) * 0.5 + 1
                x = F.relu(x) * x - 0.25
            return x

        return differentiated(function, (4096, 1024))

    def gelu_dropout():
        def function(F, x, bias, residual):
            y = F.LeakyReLU(F.broadcast_add(x, bias), act_type="gelu")
            return F.Dropout(y, p=0.1) + residual

        return differentiated(function, (4096, 1024), (1, 1024), (4096, 1024))

    def norm_in_parts():
        def function(F, x, gamma, beta):
            centred = F.broadcast_sub(x, F.mean(x, axis=-1, keepdims=True))
            variance = F.mean(F.square(centred), axis=-1, keepdims=True)
            return F.broadcast_add(
                F.broadcast_mul(F.broadcast_mul(centred, F.rsqrt(variance + 1e-5)), gamma), beta
            )

        return differentiated(function, (4096, 1024), (1, 1024), (1, 1024))

    def sgemm():
        x, y = normal(shape=(sizes.SGEMM, sizes.SGEMM)), normal(shape=(sizes.SGEMM, sizes.SGEMM))
        return lambda: nd.dot(x, y), nd.waitall

    def mlp():
        x, y = (
            normal(shape=(sizes.MLP_BATCH, sizes.MLP_LAYERS[0])),
            integers(sizes.MLP_LAYERS[-1], (sizes.MLP_BATCH,)),
        )
        return training(
            hybridized(models["mlp"]()), [x], y, "sgd", None, learning_rate=0.1, momentum=0.9
        )

    def language_model(vocabulary, units, layers, time, batch):
        net = hybridized(models["LanguageModel"](vocabulary, units, layers))
        words = integers(vocabulary, (time + 1, batch))
        states = [nd.zeros((layers, batch, units)) for _ in range(2)]
        return training(net, [words[:-1], *states], words[1:], "sgd", vocabulary, learning_rate=1.0)

    def lstm_lm():
        return language_model(
            sizes.LSTM_VOCABULARY,
            sizes.LSTM_UNITS,
            sizes.LSTM_LAYERS,
            sizes.LSTM_TIME,
            sizes.LSTM_BATCH,
        )

    def lstm_deep():
        return language_model(
            sizes.DEEP_VOCABULARY,
            sizes.DEEP_UNITS,
            sizes.DEEP_LAYERS,
            sizes.DEEP_TIME,
            sizes.DEEP_BATCH,
        )

    def lstm_lm_two_devices():
        vocabulary, units, time, batch = (
            sizes.LSTM_VOCABULARY,
            sizes.LSTM_UNITS,
            sizes.LSTM_TIME,
            sizes.LSTM_BATCH,
        )
        net = models["SplitLanguageModel"](vocabulary, units)
        net.initialize_split()
        states = [nd.zeros((1, batch, units), ctx=mx.cpu(i // 2)) for i in range(4)]
        x, y = (
            integers(vocabulary, (time, batch), mx.cpu(0)),
            integers(vocabulary, (time, batch), mx.cpu(1)),
        )
        return training(
            hybridized(net, initialize=False), [x, *states], y, "sgd", vocabulary, learning_rate=1.0
        )

    def images(batch):
        return normal(shape=(batch, 3, sizes.RESNET_IMAGE, sizes.RESNET_IMAGE))

    def resnet18():
        target = integers(sizes.RESNET_CLASSES, (sizes.RESNET_BATCH,))
        return training(
            hybridized(models["resnet18"]()),
            [images(sizes.RESNET_BATCH)],
            target,
            "sgd",
            None,
            learning_rate=0.1,
            momentum=0.9,
        )

    def inference(net, x):
        return lambda: net(x), nd.waitall

    def resnet18_infer1():
        return inference(hybridized(models["resnet18"]()), images(1))

    def resnet18_infer16():
        return inference(hybridized(models["resnet18"]()), images(16))

    def gpt():
        net = models["GPT"](
            sizes.GPT_VOCABULARY,
            sizes.GPT_UNITS,
            sizes.GPT_HEADS,
            sizes.GPT_LAYERS,
            sizes.GPT_LENGTH,
        )
        words = integers(sizes.GPT_VOCABULARY, (sizes.GPT_BATCH, sizes.GPT_LENGTH))
        # Adam with decay takes the same passes over memory as the AdamW of the PyTorch case, which
        # MXNet does not have.
        return training(
            hybridized(net),
            [words],
            words,
            "adam",
            sizes.GPT_VOCABULARY,
            learning_rate=1e-3,
            wd=0.01,
        )

    found = (
        add,
        chain,
        exp,
        softmax,
        elementwise,
        gelu_dropout,
        norm_in_parts,
        sgemm,
        mlp,
        lstm_lm,
        lstm_lm_two_devices,
        lstm_deep,
        resnet18,
        resnet18_infer1,
        resnet18_infer16,
        gpt,
    )
    return {f.__name__: f for f in found}
