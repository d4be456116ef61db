"""The GPU cases in PyTorch, written for speed as its users do: autocast to bfloat16, fused
optimizers, channels-last, torch.compile."""

import sys

from serve import serve

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit(0)

import models_torch as models
from on_gpu import sizes

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and not sizes.TINY:
    sys.exit("PyTorch finds no GPU")
torch.manual_seed(0)
torch.set_default_device(DEVICE)
torch.set_float32_matmul_precision("high")  # TF32 in products, the default of cuDNN


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def compiled(net):
    return net if sizes.TINY else torch.compile(net)


def chain():
    a, b = torch.ones(4, 4), torch.ones(4, 4)

    def step():
        y = a
        for _ in range(sizes.CHAIN):
            y = y + b

    return step


def add():
    return chain(), wait


def add_issue():
    return chain(), wait


def recorded():
    x, b, head = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4), torch.ones(4, 4)

    def step():
        x.grad = None
        y = x
        for _ in range(sizes.CHAIN):
            y = y * b
        y.backward(head)

    return step, wait


def product():
    x = torch.ones(sizes.PRODUCT, sizes.PRODUCT, dtype=torch.bfloat16)
    return lambda: x @ x, wait


def training(net, inputs, target, optimizer, half=True):
    def step():
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
            out = net(*inputs)
            loss = F.cross_entropy(out.view(-1, out.shape[-1]), target.reshape(-1))
        loss.backward()
        optimizer.step()

    return step, wait


def gpt():
    net = models.GPT(
        sizes.GPT_VOCABULARY, sizes.GPT_UNITS, sizes.GPT_HEADS, sizes.GPT_LAYERS, sizes.GPT_LENGTH
    )
    net.decoder = torch.nn.Linear(sizes.GPT_UNITS, sizes.GPT_VOCABULARY, bias=False)
    net.decoder.weight = net.embed.weight
    words = torch.randint(0, sizes.GPT_VOCABULARY, (sizes.GPT_BATCH, sizes.GPT_LENGTH))
    return training(
        compiled(net), [words], words, torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    )


def resnet():
    net = models.resnet_bottleneck(
        sizes.RESNET_BLOCKS, sizes.RESNET_WIDTH, sizes.RESNET_CLASSES
    ).to(memory_format=torch.channels_last)
    images = torch.randn(sizes.RESNET_BATCH, 3, sizes.RESNET_IMAGE, sizes.RESNET_IMAGE).to(
        memory_format=torch.channels_last
    )
    target = torch.randint(0, sizes.RESNET_CLASSES, (sizes.RESNET_BATCH,))
    return training(
        compiled(net),
        [images],
        target,
        torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True),
    )


def lstm():
    net = models.LanguageModel(sizes.LSTM_VOCABULARY, sizes.LSTM_UNITS, sizes.LSTM_LAYERS)
    words = torch.randint(0, sizes.LSTM_VOCABULARY, (sizes.LSTM_TIME + 1, sizes.LSTM_BATCH))
    states = tuple(
        torch.zeros(sizes.LSTM_LAYERS, sizes.LSTM_BATCH, sizes.LSTM_UNITS) for _ in range(2)
    )
    return training(
        net,
        [words[:-1], states],
        words[1:],
        torch.optim.SGD(net.parameters(), lr=1.0, fused=True),
        half=False,
    )


if __name__ == "__main__":
    serve(
        f"PyTorch {torch.__version__}",
        {f.__name__: f for f in (add, add_issue, recorded, product, gpt, resnet, lstm)},
    )
