"""A small GPT over two devices, as a new user writes it from the docs.

It has a head tied to the embedding, a captured mask and captured positions, a pipelined
`TrainStep`, bfloat16 by AMP, clipping, a learning rate schedule, dropout, and a checkpoint from
which a second program resumes.
"""

import numpy as np

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.contrib import amp
from mpgluon.gluon import nn

VOCABULARY, LENGTH, WIDTH, HEADS = 17, 8, 16, 2


class Attention(gluon.HybridBlock):
    def __init__(self, mask):
        super().__init__()
        self.mask = mask
        with self.name_scope():
            self.qkv = nn.Dense(3 * WIDTH, flatten=False, in_units=WIDTH)
            self.out = nn.Dense(WIDTH, flatten=False, in_units=WIDTH)

    def hybrid_forward(self, F, x):
        q, k, v = (self.heads(F, part) for part in F.split(self.qkv(x), num_outputs=3, axis=2))
        scores = F.batch_dot(q, k, transpose_b=True) / (WIDTH // HEADS) ** 0.5
        mask = self.mask.as_in_context(x.context).astype(scores.dtype)
        weights = F.softmax(F.broadcast_add(scores, mask), axis=-1)
        mixed = F.reshape(F.batch_dot(weights, v), shape=(-4, -1, HEADS, 0, 0))
        return self.out(F.reshape(F.transpose(mixed, axes=(0, 2, 1, 3)), shape=(0, 0, -3)))

    def heads(self, F, x):
        x = F.transpose(F.reshape(x, shape=(0, 0, HEADS, -1)), axes=(0, 2, 1, 3))
        return F.reshape(x, shape=(-3, 0, 0))


class Layer(gluon.HybridBlock):
    def __init__(self, mask):
        super().__init__()
        with self.name_scope():
            self.norm1, self.norm2 = (
                nn.LayerNorm(in_channels=WIDTH),
                nn.LayerNorm(in_channels=WIDTH),
            )
            self.attention, self.dropout = Attention(mask), nn.Dropout(0.1)
            self.up = nn.Dense(2 * WIDTH, flatten=False, in_units=WIDTH)
            self.down = nn.Dense(WIDTH, flatten=False, in_units=2 * WIDTH)

    def hybrid_forward(self, F, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.down(F.LeakyReLU(self.up(self.norm2(x)), act_type="gelu"))


class GPT(gluon.HybridBlock):
    def __init__(self, devices):
        super().__init__(prefix="gpt_")
        self.devices = devices
        hidden = np.triu(np.full((LENGTH, LENGTH), -1e4, "float32"), 1)[None]
        self.positions = nd.array(np.sin(np.outer(np.arange(LENGTH), np.arange(1, WIDTH + 1)) / 9))
        mask = nd.array(hidden)
        with self.name_scope():
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            self.layers = [Layer(mask) for _ in devices]
            for i, layer in enumerate(self.layers):
                setattr(self, f"layer{i}", layer)
            # The same weight as the embedding
            self.head = nn.Dense(
                VOCABULARY,
                flatten=False,
                use_bias=False,
                in_units=WIDTH,
                params=self.embedding.params,
            )

    def hybrid_forward(self, F, tokens):
        positions = F.expand_dims(self.positions.as_in_context(tokens.context), axis=0)
        x = F.broadcast_add(self.embedding(tokens), positions)
        for layer, device in zip(self.layers, self.devices):
            x = layer(x.as_in_context(device))
        return self.head(x.as_in_context(self.devices[0]))


def make(devices):
    mx.random.seed(4)
    net = GPT(devices)
    net.embedding.initialize(mx.init.Normal(0.3), ctx=devices[0])
    for layer, device in zip(net.layers, devices):
        layer.initialize(mx.init.Xavier(), ctx=device)
    schedule = mx.lr_scheduler.CosineScheduler(20, 0.01, final_lr=0.001, warmup_steps=3)
    options = {"learning_rate": 0.01, "lr_scheduler": schedule}
    trainer = gluon.Trainer(net.collect_params(), "adam", options, clip_global_norm=1.0)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    pipeline = mx.parallel.Pipeline(micro_batches=3, schedule="zero_bubble")
    return net, trainer, mx.parallel.TrainStep(net, loss, trainer, pipeline)


def main(directory, devices):
    """Returns the mean losses of steps in one program, and of the same steps in two programs with a
    checkpoint between them."""
    amp.init("bfloat16")
    try:
        text = np.random.RandomState(0).randint(0, VOCABULARY, (6, LENGTH + 1))
        x, y = nd.array(text[:, :-1], ctx=devices[0]), nd.array(text[:, 1:], ctx=devices[0])
        net, trainer, step = make(devices)
        losses = []
        for number in range(8):
            if number == 4:
                mx.parallel.save(directory, net, trainer, position={"batch": number})
            losses.append(float(step(x, y).mean().asscalar()))
        net, trainer, step = make(devices)
        found = mx.parallel.load(directory, net, trainer)
        resumed = [
            float(step(x, y).mean().asscalar()) for _ in range(found["position"]["batch"], 8)
        ]
        return losses, resumed
    finally:
        amp.turn_off()
