"""The benchmarks' models in PyTorch. Sizes are in sizes.py."""

import torch
import torch.nn as nn
import torch.nn.functional as F

import sizes


def mlp():
    layers = []
    for inputs, units in zip(sizes.MLP_LAYERS, sizes.MLP_LAYERS[1:]):
        layers += [nn.Linear(inputs, units), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, units, layers):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, units)
        self.rnn = nn.LSTM(units, units, layers)
        self.decoder = nn.Linear(units, vocabulary)

    def forward(self, x, states):
        out, states = self.rnn(self.embed(x), states)
        return self.decoder(out)


class Residual(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.around = None
        if stride != 1 or inputs != channels:
            self.around = nn.Sequential(
                nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x):
        return F.relu(self.body(x) + (self.around(x) if self.around else x))


def resnet18():
    channels = sizes.RESNET_CHANNELS
    layers = [
        nn.Conv2d(3, channels[0], 7, 2, 3, bias=False),
        nn.BatchNorm2d(channels[0]),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = channels[0]
    for stage, outputs in enumerate(channels):
        for i in range(2):
            layers.append(Residual(inputs, outputs, 2 if i == 0 and stage > 0 else 1))
            inputs = outputs
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, sizes.RESNET_CLASSES)
    )


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()

        def convolution(inputs, outputs, kernel, stride=1):
            return [
                nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
                nn.BatchNorm2d(outputs),
            ]

        self.body = nn.Sequential(
            *convolution(inputs, width, 1),
            nn.ReLU(),
            *convolution(width, width, 3, stride),
            nn.ReLU(),
            *convolution(width, 4 * width, 1),
        )
        self.around = (
            nn.Sequential(*convolution(inputs, 4 * width, 1, stride))
            if stride != 1 or inputs != 4 * width
            else None
        )

    def forward(self, x):
        return F.relu(self.body(x) + (self.around(x) if self.around else x))


def resnet_bottleneck(blocks, width, classes):
    """Returns a ResNet; (3, 4, 6, 3) blocks of width 64 are ResNet-50."""
    layers, inputs = (
        [
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ],
        width,
    )
    for stage, count in enumerate(blocks):
        for i in range(count):
            layers.append(Bottleneck(inputs, width << stage, 2 if i == 0 and stage > 0 else 1))
            inputs = 4 * width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class TransformerLayer(nn.Module):
    def __init__(self, units, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(units)
        self.qkv = nn.Linear(units, 3 * units)
        self.out = nn.Linear(units, units)
        self.norm2 = nn.LayerNorm(units)
        self.widen = nn.Linear(units, 4 * units)
        self.narrow = nn.Linear(4 * units, units)

    def forward(self, x):
        batch, length, units = x.shape
        q, k, v = (
            self.qkv(self.norm1(x))
            .view(batch, length, 3, self.heads, units // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        joined = (
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .reshape(batch, length, units)
        )
        x = x + self.out(joined)
        return x + self.narrow(F.gelu(self.widen(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary, units, heads, layers, length):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, units)
        self.place = nn.Embedding(length, units)
        self.layers = nn.Sequential(*[TransformerLayer(units, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(units)
        self.decoder = nn.Linear(units, vocabulary)

    def forward(self, x):
        x = self.embed(x) + self.place(torch.arange(x.shape[1], device=x.device))
        return self.decoder(self.norm(self.layers(x)))
