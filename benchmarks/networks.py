"""Common networks for measuring the compiler. Each function returns (block, inputs) on one
device."""

import numpy as np

from mpgluon import gluon, nd
from mpgluon.gluon import nn, rnn


def sequence(*layers):
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def mlp(layers=6, width=512, batch=128):
    net = sequence(
        *[nn.Dense(width, activation="relu", in_units=width) for _ in range(layers)],
        nn.Dense(10, in_units=width),
    )
    return net, [nd.ones((batch, width))]


class LanguageModel(gluon.HybridBlock):
    def __init__(self, vocab, hidden, layers, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.embed = nn.Embedding(vocab, hidden)
            self.rnn = rnn.LSTM(hidden, layers, input_size=hidden, dropout=0.2)
            self.decoder = nn.Dense(vocab, in_units=hidden, flatten=False)

    def hybrid_forward(self, F, x):
        return self.decoder(self.rnn(self.embed(x)))


def lstm(layers=2, vocab=2000, hidden=256, time=35, batch=20):
    return LanguageModel(vocab, hidden, layers), [nd.zeros((time, batch))]


def convolution(channels, in_channels, kernel=3, stride=1, pad=None, relu=True):
    pad = kernel // 2 if pad is None else pad
    layers = [
        nn.Conv2D(channels, kernel, stride, pad, use_bias=False, in_channels=in_channels),
        nn.BatchNorm(in_channels=channels),
    ]
    return sequence(*layers, *([nn.Activation("relu")] if relu else []))


class Bottleneck(gluon.HybridBlock):
    def __init__(self, in_channels, channels, stride, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.body = sequence(
                convolution(channels // 4, in_channels, 1),
                convolution(channels // 4, channels // 4, 3, stride),
                convolution(channels, channels // 4, 1, relu=False),
            )
            self.shortcut = (
                convolution(channels, in_channels, 1, stride, relu=False)
                if in_channels != channels or stride != 1
                else None
            )

    def hybrid_forward(self, F, x):
        return F.relu(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))


def resnet(stages=(3, 4, 6, 3), width=64, size=64, batch=2, classes=1000):
    """Returns a ResNet; the stages (3, 4, 6, 3) are ResNet-50."""
    layers, in_channels = [convolution(width, 3, 7, 2), nn.MaxPool2D(3, 2, 1)], width
    for number, blocks in enumerate(stages):
        channels = width * 4 * 2 ** min(number, 3)
        for block in range(blocks):
            layers.append(Bottleneck(in_channels, channels, 2 if number and not block else 1))
            in_channels = channels
    return sequence(
        *layers, nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes, in_units=in_channels)
    ), [nd.ones((batch, 3, size, size))]


class Attention(gluon.HybridBlock):
    def __init__(self, width, heads, **kwargs):
        super().__init__(**kwargs)
        self.width, self.heads = width, heads
        with self.name_scope():
            self.qkv = nn.Dense(3 * width, flatten=False, in_units=width)
            self.out = nn.Dense(width, flatten=False, in_units=width)

    def split(self, x):
        return x.reshape((0, 0, self.heads, -1)).transpose((0, 2, 1, 3)).reshape((-3, 0, 0))

    def hybrid_forward(self, F, x):
        q, k, v = [self.split(part) for part in F.split(self.qkv(x), num_outputs=3, axis=2)]
        weights = F.softmax(F.batch_dot(q, k, transpose_b=True) * (self.heads / self.width) ** 0.5)
        mixed = (
            F.batch_dot(weights, v)
            .reshape((-4, -1, self.heads, 0, 0))
            .transpose((0, 2, 1, 3))
            .reshape((0, 0, -3))
        )
        return self.out(mixed)


class TransformerLayer(gluon.HybridBlock):
    def __init__(self, width, heads, dropout, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.norm1, self.attention = nn.LayerNorm(in_channels=width), Attention(width, heads)
            self.norm2, self.up = (
                nn.LayerNorm(in_channels=width),
                nn.Dense(4 * width, flatten=False, in_units=width),
            )
            self.gelu, self.down = nn.GELU(), nn.Dense(width, flatten=False, in_units=4 * width)
            self.dropout = nn.Dropout(dropout)

    def hybrid_forward(self, F, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.down(self.gelu(self.up(self.norm2(x)))))


class GPT(gluon.HybridBlock):
    def __init__(self, layers, vocab, width, heads, dropout, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.embed = nn.Embedding(vocab, width)
            self.layers = sequence(
                *[TransformerLayer(width, heads, dropout) for _ in range(layers)]
            )
            self.norm, self.head = (
                nn.LayerNorm(in_channels=width),
                nn.Dense(vocab, flatten=False, in_units=width),
            )

    def hybrid_forward(self, F, x):
        return self.head(self.norm(self.layers(self.embed(x))))


def gpt(layers=24, vocab=512, width=64, heads=4, time=64, batch=2, dropout=0.1):
    return GPT(layers, vocab, width, heads, dropout), [nd.zeros((batch, time))]


class RootMeanSquareNorm(gluon.HybridBlock):
    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.gamma = self.params.get("gamma", shape=(width,), init="ones")

    def hybrid_forward(self, F, x, gamma):
        scale = F.rsqrt(F.mean(F.square(x), axis=-1, keepdims=True) + 1e-6)
        return F.broadcast_mul(F.broadcast_mul(x, scale), gamma)


def projection(units, in_units):
    return nn.Dense(units, flatten=False, use_bias=False, in_units=in_units)


class RotaryAttention(gluon.HybridBlock):
    """Causal attention with rotary positions, in which `groups` heads share their keys."""

    def __init__(self, width, heads, groups, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.query = projection(width, width)
        self.key, self.value = [projection(width // groups, width) for _ in range(2)]
        self.out = projection(width, width)

    def split(self, x, heads):
        return x.reshape((0, 0, heads, -1)).transpose((0, 2, 1, 3))

    def turn(self, F, x, cos, sin):
        left, right = F.split(x, num_outputs=2, axis=-1)
        return F.broadcast_mul(x, cos) + F.broadcast_mul(F.concat(-right, left, dim=-1), sin)

    def hybrid_forward(self, F, x, cos, sin, mask):
        shared = self.heads // self.groups
        q = self.turn(F, self.split(self.query(x), self.heads), cos, sin)
        k = self.turn(F, self.split(self.key(x), shared), cos, sin)
        k, v = [
            F.repeat(part, self.groups, axis=1).reshape((-3, 0, 0))
            for part in (k, self.split(self.value(x), shared))
        ]
        scores = F.batch_dot(q.reshape((-3, 0, 0)), k, transpose_b=True) * self.size**-0.5
        mixed = F.batch_dot(F.softmax(F.broadcast_add(scores, mask)), v)
        mixed = mixed.reshape((-4, -1, self.heads, 0, 0)).transpose((0, 2, 1, 3))
        return self.out(mixed.reshape((0, 0, -3)))


class LlamaLayer(gluon.HybridBlock):
    def __init__(self, width, attention, **kwargs):
        super().__init__(**kwargs)
        self.norm1, self.norm2 = [RootMeanSquareNorm(width) for _ in range(2)]
        self.attention = attention
        self.gate, self.up = [projection(4 * width, width) for _ in range(2)]
        self.down = projection(width, 4 * width)

    def hybrid_forward(self, F, x, cos, sin, mask):
        x = x + self.attention(self.norm1(x), cos, sin, mask)
        y = self.norm2(x)
        gate = self.gate(y)
        return x + self.down(gate * F.sigmoid(gate) * self.up(y))


class Llama(gluon.HybridBlock):
    """A transformer of single ops, which reads the length of its input in Python."""

    def __init__(self, layers, vocab, width, heads, groups, longest, **kwargs):
        super().__init__(**kwargs)
        self.embed = nn.Embedding(vocab, width)
        self.layers = sequence(
            *[LlamaLayer(width, RotaryAttention(width, heads, groups)) for _ in range(layers)]
        )
        self.norm, self.head = RootMeanSquareNorm(width), projection(vocab, width)
        size = width // heads
        angles = np.outer(np.arange(longest), 10000.0 ** (-np.arange(0, size, 2) / size))
        angles = np.concatenate([angles, angles], axis=-1)[None, None]
        self.cos, self.sin = nd.array(np.cos(angles)), nd.array(np.sin(angles))

    def hybrid_forward(self, F, x):
        length = x.shape[1]
        mask = nd.array(np.triu(np.full((1, length, length), -1e9), 1))
        cos, sin = self.cos[:, :, :length], self.sin[:, :, :length]
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.head(self.norm(x))


def llama(layers=4, vocab=256, width=64, heads=4, groups=2, longest=512, time=64, batch=1):
    return Llama(layers, vocab, width, heads, groups, longest), [nd.zeros((batch, time))]


class Inception(gluon.HybridBlock):
    """Parallel branches of 1x1, 3x3, 5x5 and pooled convolutions."""

    def __init__(self, in_channels, channels, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.one = convolution(channels, in_channels, 1)
            self.three = sequence(
                convolution(channels // 2, in_channels, 1), convolution(channels, channels // 2, 3)
            )
            self.five = sequence(
                convolution(channels // 4, in_channels, 1), convolution(channels, channels // 4, 5)
            )
            self.pool = sequence(nn.MaxPool2D(3, 1, 1), convolution(channels, in_channels, 1))

    def hybrid_forward(self, F, x):
        return F.concat(self.one(x), self.three(x), self.five(x), self.pool(x), dim=1)


def inception(blocks=6, channels=16, size=32, batch=4):
    layers = [convolution(4 * channels, 3, 3)] + [
        Inception(4 * channels, channels) for _ in range(blocks)
    ]
    return sequence(
        *layers, nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10, in_units=4 * channels)
    ), [nd.ones((batch, 3, size, size))]


class UNet(gluon.HybridBlock):
    def __init__(self, depth, channels, **kwargs):
        super().__init__(**kwargs)
        self.depth = depth
        with self.name_scope():
            for level in range(depth + 1):
                into, out = (3 if level == 0 else channels << (level - 1)), channels << level
                setattr(
                    self, f"down{level}", sequence(convolution(out, into), convolution(out, out))
                )
                if level:
                    setattr(self, f"up{level}", convolution(out // 2, out, 1))
                    setattr(
                        self,
                        f"join{level}",
                        sequence(convolution(out // 2, out), convolution(out // 2, out // 2)),
                    )
            self.head = nn.Conv2D(2, 1, in_channels=channels)

    def hybrid_forward(self, F, x):
        kept = []
        for level in range(self.depth + 1):
            x = getattr(self, f"down{level}")(
                x if level == 0 else F.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
            )
            kept.append(x)
        for level in range(self.depth, 0, -1):
            x = getattr(self, f"up{level}")(F.UpSampling(x, scale=2, sample_type="nearest"))
            x = getattr(self, f"join{level}")(F.concat(kept[level - 1], x, dim=1))
        return self.head(x)


def unet(depth=3, channels=8, size=64, batch=2):
    return UNet(depth, channels), [nd.ones((batch, 3, size, size))]


class Chain(gluon.HybridBlock):
    def __init__(self, length, **kwargs):
        super().__init__(**kwargs)
        self.length = length

    def hybrid_forward(self, F, x):
        for i in range(self.length):
            x = F.tanh(x) if i % 3 else F.square(x)
        return x


def chain(length=1000, size=16):
    return Chain(length), [nd.ones((size, size))]


ALL = {f.__name__: f for f in (mlp, lstm, resnet, gpt, llama, inception, unet, chain)}
