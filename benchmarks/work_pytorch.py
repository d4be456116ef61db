"""The benchmark cases in PyTorch."""

import sys

from serve import serve

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    sys.exit(0)

torch.manual_seed(0)
torch.set_num_threads(int(sys.argv[1]))


def nothing():
    pass


def add():
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    return lambda: a + b, 20000, nothing


def chain():
    x, a, b = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4), torch.randn(4, 4)

    def step():
        y = x
        for _ in range(10):
            y = y * b + a
        y.sum().backward()

    return step, 500, nothing


def exp():
    x = torch.randn(4096, 1024)
    return lambda: torch.exp(x), 5, nothing


def softmax():
    x = torch.randn(4096, 1024)
    return lambda: torch.softmax(x, -1), 5, nothing


def sgemm():
    x, y = torch.randn(2048, 2048), torch.randn(2048, 2048)
    return lambda: x @ y, 3, nothing


def mlp():
    net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(128, 784), torch.randint(0, 10, (128,))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step, 30, nothing


VOCAB, HIDDEN, TIME, BATCH = 10000, 650, 35, 20


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.rnn = nn.LSTM(HIDDEN, HIDDEN, 2)
        self.decoder = nn.Linear(HIDDEN, VOCAB)

    def forward(self, x, states):
        out, states = self.rnn(self.embed(x), states)
        return self.decoder(out), states


def lstm_lm():
    net = LanguageModel()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    x, y = torch.randint(0, VOCAB, (TIME, BATCH)), torch.randint(0, VOCAB, (TIME, BATCH))
    states = torch.zeros(2, BATCH, HIDDEN), torch.zeros(2, BATCH, HIDDEN)

    def step():
        optimizer.zero_grad()
        out, _ = net(x, states)
        F.cross_entropy(out.view(-1, VOCAB), y.view(-1)).backward()
        optimizer.step()

    return step, 2, nothing


serve(f"PyTorch {torch.__version__}", {f.__name__: f for f in (add, chain, exp, softmax, sgemm, mlp, lstm_lm)})
