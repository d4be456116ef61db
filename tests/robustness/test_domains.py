"""Parameters outside of their domain: refused where the layer, the optimizer or the array is made,
with an error that names the parameter and its value."""

import math

import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn, rnn

MADE = {
    "Dense units": (lambda: nn.Dense(-1), "units", -1),
    "Dense in_units": (lambda: nn.Dense(1, in_units=-2), "in_units", -2),
    "Dropout below": (lambda: nn.Dropout(-0.1), "rate", -0.1),
    "Dropout above": (lambda: nn.Dropout(1.5), "rate", 1.5),
    "Dropout NaN": (lambda: nn.Dropout(math.nan), "rate", math.nan),
    "Embedding": (lambda: nn.Embedding(0, 3), "input_dim", 0),
    "GroupNorm": (lambda: nn.GroupNorm(num_groups=0), "num_groups", 0),
    "BatchNorm": (lambda: nn.BatchNorm(epsilon=-1), "epsilon", -1),
    "LayerNorm": (lambda: nn.LayerNorm(epsilon=-1), "epsilon", -1),
    "InstanceNorm": (lambda: nn.InstanceNorm(in_channels=-3), "in_channels", -3),
    "Conv channels": (lambda: nn.Conv2D(0, 3), "channels", 0),
    "Conv kernel": (lambda: nn.Conv2D(3, 0), "kernel_size", 0),
    "Conv kernels": (lambda: nn.Conv2D(3, (3, 0)), "kernel_size", (3, 0)),
    "Conv strides": (lambda: nn.Conv1D(3, 3, strides=0), "strides", 0),
    "Conv dilation": (lambda: nn.Conv3D(3, 3, dilation=0), "dilation", 0),
    "Conv padding": (lambda: nn.Conv2D(3, 3, padding=-1), "padding", -1),
    "Conv groups": (lambda: nn.Conv2D(3, 3, groups=0), "groups", 0),
    "transposed": (lambda: nn.Conv2DTranspose(3, 3, output_padding=-1), "output_padding", -1),
    "pool": (lambda: nn.MaxPool2D(0), "pool_size", 0),
    "pool strides": (lambda: nn.AvgPool1D(2, strides=0), "strides", 0),
    "LSTM": (lambda: rnn.LSTM(0), "hidden_size", 0),
    "GRU layers": (lambda: rnn.GRU(3, num_layers=0), "num_layers", 0),
    "RNN dropout": (lambda: rnn.RNN(3, dropout=2), "dropout", 2),
    "cell": (lambda: rnn.LSTMCell(-1), "hidden_size", -1),
    "DropoutCell": (lambda: rnn.DropoutCell(1.5), "rate", 1.5),
    "ZoneoutCell": (lambda: rnn.ZoneoutCell(rnn.RNNCell(2), -1), "zoneout_outputs", -1),
    "Adam": (lambda: mx.optimizer.Adam(beta1=1.5), "beta1", 1.5),
    "Adam beta2": (lambda: mx.optimizer.create("adam", beta2=-0.1), "beta2", -0.1),
    "Adam epsilon": (lambda: mx.optimizer.Adam(epsilon=-1), "epsilon", -1),
    "LAMB": (lambda: mx.optimizer.LAMB(beta1=1), "beta1", 1),
    "Nadam": (lambda: mx.optimizer.Nadam(beta2=2), "beta2", 2),
    "FTML": (lambda: mx.optimizer.FTML(beta1=-1), "beta1", -1),
    "AdaDelta": (lambda: mx.optimizer.AdaDelta(rho=1.5), "rho", 1.5),
    "RMSProp": (lambda: mx.optimizer.RMSProp(gamma1=2), "gamma1", 2),
    "AdaGrad": (lambda: mx.optimizer.AdaGrad(eps=-1), "eps", -1),
}


@pytest.mark.parametrize("case", MADE)
def test_parameters_outside_of_their_domain(case):
    make, name, value = MADE[case]
    with pytest.raises(ValueError, match=f"{name} must be ") as caught:
        make()
    assert str(value) in str(caught.value)


LAWS = {
    "uniform": {"low": 0, "high": 1},
    "normal": {"loc": 0, "scale": 1},
    "gamma": {"alpha": 1, "beta": 1},
    "poisson": {"lam": 1},
    "generalized_negative_binomial": {"mu": 1, "alpha": 1},
}


@pytest.mark.parametrize("name, parameter", [(n, p) for n, ps in LAWS.items() for p in ps])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_distributions_have_finite_parameters(name, parameter, value):
    for draw in (
        lambda **law: getattr(nd.random, name)(shape=(2,), **law).asnumpy(),
        lambda **law: getattr(nd.random, f"{name}_like")(nd.zeros(2), **law).asnumpy(),
    ):
        draw(**LAWS[name])
        with pytest.raises((mx.MXNetError, ValueError), match=parameter):
            draw(**{**LAWS[name], parameter: value})


def test_names_of_other_places():
    with pytest.raises(TypeError, match="net.add"):
        nn.Sequential(nn.Dense(1))
    with pytest.raises(AttributeError, match="softmax"):
        mx.sym.sofmax
    with pytest.raises(AttributeError, match="gluon.data.DataLoader"):
        gluon.DataLoader
    with pytest.raises(AttributeError, match="mx.nd"):
        nn.functional
