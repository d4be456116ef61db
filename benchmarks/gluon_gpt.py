"""A small GPT in Gluon, as users write one: attention from its parts, nothing fused by hand. For mpgluon and MXNet, given as `mx`."""

import math

import numpy as np

VOCAB, WIDTH, LAYERS, HEADS, TIME, BATCH = 5000, 256, 6, 8, 128, 8


def make_gpt(mx, vocab=VOCAB, width=WIDTH, layers=LAYERS, heads=HEADS, time=TIME, dropout=0.0):
    nn, HybridBlock = mx.gluon.nn, mx.gluon.HybridBlock

    class Attention(HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.qkv = nn.Dense(3 * width, in_units=width, flatten=False)
                self.out = nn.Dense(width, in_units=width, flatten=False)

        def hybrid_forward(self, F, x, mask):
            def by_head(a):  # (batch, time, width) -> (batch * heads, time, width / heads)
                a = F.transpose(F.reshape(a, shape=(0, 0, heads, -1)), axes=(0, 2, 1, 3))
                return F.reshape(a, shape=(-3, 0, 0))

            q, k, v = F.split(self.qkv(x), num_outputs=3, axis=-1)
            scores = F.batch_dot(by_head(q), by_head(k), transpose_b=True) / math.sqrt(width // heads)
            weights = F.softmax(F.broadcast_add(scores, mask))
            if dropout:
                weights = F.Dropout(weights, p=dropout)
            mixed = F.reshape(F.batch_dot(weights, by_head(v)), shape=(-4, -1, heads, 0, 0))
            return self.out(F.reshape(F.transpose(mixed, axes=(0, 2, 1, 3)), shape=(0, 0, -3)))

    class Block(HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.norm1 = nn.LayerNorm(in_channels=width)
                self.attention = Attention()
                self.norm2 = nn.LayerNorm(in_channels=width)
                self.expand = nn.Dense(4 * width, in_units=width, flatten=False)
                self.contract = nn.Dense(width, in_units=4 * width, flatten=False)

        def hybrid_forward(self, F, x, mask):
            x = x + self.attention(self.norm1(x), mask)
            return x + self.contract(F.LeakyReLU(self.expand(self.norm2(x)), act_type="gelu"))

    class GPT(HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.tokens = nn.Embedding(vocab, width)
                self.positions = nn.Embedding(time, width)
                self.blocks = nn.HybridSequential()
                for _ in range(layers):
                    self.blocks.add(Block())
                self.norm = nn.LayerNorm(in_channels=width)
                self.decoder = nn.Dense(vocab, in_units=width, flatten=False)

        def hybrid_forward(self, F, tokens):
            at = F.contrib.arange_like(tokens, axis=1)
            future = F.broadcast_lesser(F.expand_dims(at, axis=1), F.expand_dims(at, axis=0))
            mask = F.expand_dims(future * -1e9, axis=0)
            x = F.broadcast_add(self.tokens(tokens), F.expand_dims(self.positions(at), axis=0))
            for block in self.blocks._children.values():
                x = block(x, mask)
            return self.decoder(self.norm(x))

    return GPT()


def gpt_case(mx):
    """A training step, as a case of benchmarks/serve.py."""
    net = make_gpt(mx)
    net.initialize()
    net.hybridize(static_alloc=True, static_shape=True)
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3, "wd": 0.01})
    tokens = mx.nd.array(np.random.randint(0, VOCAB, (BATCH, TIME)))

    def step():
        with mx.autograd.record():
            loss = loss_of(net(tokens).reshape((-1, VOCAB)), tokens.reshape((-1,))).mean()
        loss.backward()
        trainer.step(1)

    return step, 3, mx.nd.waitall
