"""The benchmark cases in PyTorch."""

import sys

from serve import serve

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit(0)

import models_torch as models
import sizes

torch.manual_seed(0)
torch.set_num_threads(int(sys.argv[1]))


def nothing():
    """Does not wait, because PyTorch's CPU ops are synchronous."""


def training(net, inputs, target, optimizer):
    def step():
        optimizer.zero_grad()
        out = net(*inputs)
        F.cross_entropy(out.view(-1, out.shape[-1]), target.view(-1)).backward()
        optimizer.step()

    return step, nothing


def add():
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    return lambda: a + b, nothing


def chain():
    x, a, b = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4), torch.randn(4, 4)

    def step():
        y = x
        for _ in range(10):
            y = y * b + a
        y.sum().backward()

    return step, nothing


def exp():
    x = torch.randn(4096, 1024)
    return lambda: torch.exp(x), nothing


def softmax():
    x = torch.randn(4096, 1024)
    return lambda: torch.softmax(x, -1), nothing


def differentiated(function, *shapes):
    inputs, head = (
        [torch.randn(shape, requires_grad=True) for shape in shapes],
        torch.ones(shapes[0]),
    )

    def step():
        for x in inputs:
            x.grad = None
        function(*inputs).backward(head)

    return step, nothing


def elementwise():
    def function(x):
        for _ in range(2):
            x = torch.tanh(x) * 0.5 + 1
            x = torch.relu(x) * x - 0.25
        return x

    return differentiated(function, (4096, 1024))


def gelu_dropout():
    def function(x, bias, residual):
        return F.dropout(F.gelu(x + bias), 0.1, True) + residual

    return differentiated(function, (4096, 1024), (1, 1024), (4096, 1024))


def norm_in_parts():
    def function(x, gamma, beta):
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        return centred * torch.rsqrt(variance + 1e-5) * gamma + beta

    return differentiated(function, (4096, 1024), (1, 1024), (1, 1024))


def sgemm():
    x, y = torch.randn(sizes.SGEMM, sizes.SGEMM), torch.randn(sizes.SGEMM, sizes.SGEMM)
    return lambda: x @ y, nothing


def mlp():
    net = models.mlp()
    x, y = (
        torch.randn(sizes.MLP_BATCH, sizes.MLP_LAYERS[0]),
        torch.randint(0, sizes.MLP_LAYERS[-1], (sizes.MLP_BATCH,)),
    )
    return training(net, [x], y, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))


def language_model(vocabulary, units, layers, time, batch):
    net = models.LanguageModel(vocabulary, units, layers)
    words = torch.randint(0, vocabulary, (time + 1, batch))
    states = torch.zeros(layers, batch, units), torch.zeros(layers, batch, units)
    return training(net, [words[:-1], states], words[1:], torch.optim.SGD(net.parameters(), lr=1.0))


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


def channels_last(x):
    return x.to(memory_format=torch.channels_last)


def images(batch):
    return channels_last(torch.randn(batch, 3, sizes.RESNET_IMAGE, sizes.RESNET_IMAGE))


def resnet18():
    net = channels_last(models.resnet18())
    y = torch.randint(0, sizes.RESNET_CLASSES, (sizes.RESNET_BATCH,))
    return training(
        net,
        [images(sizes.RESNET_BATCH)],
        y,
        torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
    )


def inference(batch):
    net, x = channels_last(models.resnet18()).eval(), images(batch)

    def infer():
        with torch.no_grad():
            net(x)

    return infer, nothing


def resnet18_infer1():
    return inference(1)


def resnet18_infer16():
    return inference(16)


def gpt():
    net = models.GPT(
        sizes.GPT_VOCABULARY, sizes.GPT_UNITS, sizes.GPT_HEADS, sizes.GPT_LAYERS, sizes.GPT_LENGTH
    )
    x = torch.randint(0, sizes.GPT_VOCABULARY, (sizes.GPT_BATCH, sizes.GPT_LENGTH))
    return training(net, [x], x, torch.optim.AdamW(net.parameters(), lr=1e-3))


CASES = (
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
    lstm_deep,
    resnet18,
    resnet18_infer1,
    resnet18_infer16,
    gpt,
)
serve(f"PyTorch {torch.__version__}", {f.__name__: f for f in CASES})
