"""The GPU cases in mpgluon."""

import numpy as np

import mpgluon as mx
import networks
from models_gluon import make_models
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep
from on_gpu import sizes
from serve import serve

GPU = mx.gpu(0)
DTYPE = "bfloat16"
MODELS = make_models(mx)
cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()


def integers(limit, shape, ctx=GPU):
    return nd.array(np.random.RandomState(0).randint(0, limit, shape), ctx=ctx)


def chain():
    a, b = nd.ones((4, 4), ctx=GPU), nd.ones((4, 4), ctx=GPU)

    def step():
        y = a
        for _ in range(sizes.CHAIN):
            y = y + b

    return step


def add():
    return chain(), nd.waitall


def add_issue():
    return chain(), nd.waitall


def recorded():
    x, b = nd.ones((4, 4), ctx=GPU), nd.ones((4, 4), ctx=GPU)
    x.attach_grad()

    def step():
        with autograd.record():
            y = x
            for _ in range(sizes.CHAIN):
                y = y * b
        y.backward()

    return step, nd.waitall


def product():
    x = nd.ones((sizes.PRODUCT, sizes.PRODUCT), ctx=GPU, dtype=DTYPE)
    return lambda: nd.dot(x, x), nd.waitall


def prepared(net, dtype=DTYPE):
    net.initialize(mx.init.Xavier(), ctx=GPU)
    net.cast(dtype)
    net.hybridize(static_alloc=True, static_shape=True)
    return net


def mean_cross_entropy(out, target):
    return cross_entropy(out.reshape((-1, out.shape[-1])), target.reshape((-1,))).mean()


def training(net, inputs, target, optimizer, **settings):
    """Runs forward, mean cross entropy, backward and an update of float32 copies."""
    trainer = gluon.Trainer(net.collect_params(), optimizer, settings)

    def step():
        with autograd.record():
            loss = mean_cross_entropy(net(*inputs), target)
        loss.backward()
        trainer.step(1)

    return step, nd.waitall


def gpt():
    net = MODELS["GPT"](
        sizes.GPT_VOCABULARY, sizes.GPT_UNITS, sizes.GPT_HEADS, sizes.GPT_LAYERS, sizes.GPT_LENGTH
    )
    net.decoder = nn.Dense(
        sizes.GPT_VOCABULARY,
        flatten=False,
        use_bias=False,
        in_units=sizes.GPT_UNITS,
        params=net.embed.params,
    )
    words = integers(sizes.GPT_VOCABULARY, (sizes.GPT_BATCH, sizes.GPT_LENGTH))
    return training(
        prepared(net), [words], words, "adam", learning_rate=1e-4, wd=0.01, multi_precision=True
    )


def resnet():
    net = networks.resnet(sizes.RESNET_BLOCKS, sizes.RESNET_WIDTH, classes=sizes.RESNET_CLASSES)[0]
    images = nd.random.normal(
        shape=(sizes.RESNET_BATCH, 3, sizes.RESNET_IMAGE, sizes.RESNET_IMAGE), ctx=GPU
    ).astype(DTYPE)
    target = integers(sizes.RESNET_CLASSES, (sizes.RESNET_BATCH,))
    return training(
        prepared(net),
        [images],
        target,
        "sgd",
        learning_rate=0.1,
        momentum=0.9,
        multi_precision=True,
    )


def lstm():
    net = MODELS["LanguageModel"](sizes.LSTM_VOCABULARY, sizes.LSTM_UNITS, sizes.LSTM_LAYERS)
    words = integers(sizes.LSTM_VOCABULARY, (sizes.LSTM_TIME + 1, sizes.LSTM_BATCH))
    states = [
        nd.zeros((sizes.LSTM_LAYERS, sizes.LSTM_BATCH, sizes.LSTM_UNITS), ctx=GPU) for _ in range(2)
    ]
    return training(
        prepared(net, "float32"), [words[:-1], *states], words[1:], "sgd", learning_rate=1.0
    )


class Staged(gluon.HybridBlock):
    """The GPT's layers distributed evenly over `contexts`; the output layer has separate
    weights."""

    def __init__(self, contexts):
        super().__init__()
        whole = MODELS["GPT"](
            sizes.GPT_VOCABULARY,
            sizes.GPT_UNITS,
            sizes.GPT_HEADS,
            sizes.GPT_LAYERS,
            sizes.GPT_LENGTH,
        )
        self.embed, self.place, self.norm, self.decoder = (
            whole.embed,
            whole.place,
            whole.norm,
            whole.decoder,
        )
        self.layers = list(whole.layers)
        self.contexts = [
            contexts[i * len(contexts) // len(self.layers)] for i in range(len(self.layers))
        ]
        for number, (layer, ctx) in enumerate(zip(self.layers, self.contexts)):
            self.register_child(layer, f"layer{number}")
            layer.initialize(mx.init.Xavier(), ctx=ctx)
        for child, ctx in (
            (self.embed, contexts[0]),
            (self.place, contexts[0]),
            (self.norm, contexts[-1]),
            (self.decoder, contexts[-1]),
        ):
            child.initialize(mx.init.Xavier(), ctx=ctx)
        self.cast(DTYPE)

    def hybrid_forward(self, F, x):
        x = F.broadcast_add(
            self.embed(x),
            F.expand_dims(self.place(F.arange(sizes.GPT_LENGTH, ctx=self.contexts[0])), axis=0),
        )
        for layer, ctx in zip(self.layers, self.contexts):
            x = layer(x.as_in_context(ctx))
        return self.decoder(self.norm(x))


ADAM = {"learning_rate": 1e-4, "wd": 0.01, "multi_precision": True}


def pipeline():
    contexts = [mx.gpu(i) for i in range(sizes.STAGES)]
    net = Staged(contexts)
    step = TrainStep(
        net,
        cross_entropy,
        gluon.Trainer(net.collect_params(), "adam", ADAM),
        Pipeline(sizes.PIECES, "1f1b"),
    )
    x, y = (
        integers(sizes.GPT_VOCABULARY, (sizes.GPT_BATCH, sizes.GPT_LENGTH), ctx)
        for ctx in (contexts[0], contexts[-1])
    )
    return lambda: step(x, y), nd.waitall


def whole():
    net = Staged([GPU])
    net.hybridize(static_alloc=True, static_shape=True)
    words = integers(sizes.GPT_VOCABULARY, (sizes.GPT_BATCH, sizes.GPT_LENGTH))
    return training(net, [words], words, "adam", **ADAM)


if __name__ == "__main__":
    mx.random.seed(0)
    with GPU:
        serve(
            f"mpgluon {mx.__version__}",
            {
                f.__name__: f
                for f in (add, add_issue, recorded, product, gpt, resnet, lstm, pipeline, whole)
            },
        )
