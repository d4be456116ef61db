"""AdamW, Lion, Adafactor and Muon: formulas in NumPy, PyTorch's values, states and arguments."""

import math
import warnings

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.devices import on

SHAPE = (6, 4)
SHAPES = {"adafactor": [SHAPE, (5,), (2, 3, 4), (1,)], "muon": [SHAPE, (3, 8)]}


def draws(shape, steps=20, seed=0):
    rng = np.random.RandomState(seed)
    weight = rng.uniform(-1, 1, shape)
    return weight, [rng.normal(0, 0.5, shape) for _ in range(steps)]


# --- Formulas in float64 ---


def adamw(w, grads, learning_rate=1e-3, wd=0.01, amsgrad=False, rescale_grad=1):
    m = v = u = 0
    for t, g in enumerate(grads, 1):
        g = g * rescale_grad
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        u = np.maximum(u, v)
        root = np.sqrt((u if amsgrad else v) / (1 - 0.999**t))
        w = w - learning_rate * wd * w - learning_rate * m / (1 - 0.9**t) / (root + 1e-8)
    return w


def lion(w, grads, learning_rate=1e-4, wd=0.0, rescale_grad=1):
    m = 0
    for g in grads:
        g = g * rescale_grad
        w = w - learning_rate * (np.sign(0.9 * m + 0.1 * g) + wd * w)
        m = 0.99 * m + 0.01 * g
    return w


def rms(x):
    return np.sqrt(np.mean(np.square(x)))


def adafactor(w, grads, learning_rate=0.01, wd=0.0, rescale_grad=1, epsilon1=2.0**-23):
    row = col = var = 0
    for t, g in enumerate(grads, 1):
        g = g * rescale_grad
        decay = t**-0.8
        if w.ndim > 1:
            row = row + decay * (np.mean(g * g, -1, keepdims=True) - row)
            col = col + decay * (np.mean(g * g, -2, keepdims=True) - col)
            estimate = row * col / np.maximum(np.mean(row, -2, keepdims=True), epsilon1)
        else:
            estimate = var = var + decay * (g * g - var)
        step = g / np.sqrt(np.maximum(estimate, epsilon1**2))
        rate = max(1e-3, rms(w)) * min(learning_rate, t**-0.5) / max(1.0, rms(step))
        w = w * (1 - learning_rate * wd) - rate * step
    return w


def muon(w, grads, learning_rate=1e-3, wd=0.1, rescale_grad=1, nesterov=True, adjust_lr="original"):
    buffer, (rows, columns) = 0, w.shape
    factor = math.sqrt(max(1, rows / columns))
    if adjust_lr != "original":
        factor = 0.2 * math.sqrt(max(rows, columns))
    for g in grads:
        g = g * rescale_grad
        buffer = 0.95 * buffer + 0.05 * g
        x = 0.95 * buffer + 0.05 * g if nesterov else buffer
        x = x.T if rows > columns else x
        x = x / max(np.linalg.norm(x), 1e-7)
        for _ in range(5):
            s = x @ x.T
            x = 3.4445 * x + (-4.775 * s + 2.0315 * s @ s) @ x
        x = x.T if rows > columns else x
        w = w * (1 - learning_rate * wd) - learning_rate * factor * x
    return w


FORMULAS = {"adamw": adamw, "lion": lion, "adafactor": adafactor, "muon": muon}
CASES = [
    ("adamw", {}),
    ("adamw", {"learning_rate": 0.02, "wd": 0.3}),
    ("adamw", {"learning_rate": 0.02, "amsgrad": True}),
    ("lion", {}),
    ("lion", {"learning_rate": 0.02, "wd": 0.3}),
    ("adafactor", {}),
    ("adafactor", {"learning_rate": 0.5, "wd": 0.1}),
    ("muon", {}),
    ("muon", {"learning_rate": 0.1, "nesterov": False}),
    ("muon", {"learning_rate": 0.1, "adjust_lr": "match_rms_adamw"}),
]


def train(name, weight, grads, options, dtype="float32", ctx=None):
    """Trains with a Trainer, so that the prepared updates of all weights run."""
    param = gluon.Parameter("weight", shape=weight.shape, dtype=dtype)
    param.initialize(mx.init.Constant(nd.array(weight, dtype=dtype)), ctx=ctx or on(0))
    trainer = gluon.Trainer([param], name, options)
    for grad in grads:
        with autograd.record():
            loss = (param.data() * nd.array(grad, dtype=dtype, ctx=ctx or on(0))).sum()
        loss.backward()
        trainer.step(2)
    return param.data().astype("float64").asnumpy(), trainer


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name, options", CASES, ids=str)
def test_updates_match_formulas(name, options, dtype):
    for shape in SHAPES.get(name, [SHAPE]):
        weight, grads = draws(shape)
        # numbers without an error of rounding in both dtypes
        weight, *grads = [one.astype("float32").astype("float64") for one in (weight, *grads)]
        more = {"ns_dtype": dtype} if name == "muon" else {}
        found, _ = train(name, weight, grads, {**options, **more}, dtype)
        exact = {}
        if name == "adafactor" and dtype == "float64":
            exact = {"epsilon1": 2.0**-52}
        wanted = FORMULAS[name](weight, grads, **options, **exact, rescale_grad=0.5)
        tolerance = 1e-12 if dtype == "float64" and name != "lion" else 3e-6
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name, options", CASES, ids=str)
def test_copies_of_16_bit_weights_are_trained_like_float32_weights(name, options, dtype):
    weight, grads = draws(SHAPE)
    rounded = [nd.array(g, dtype=dtype).astype("float32").asnumpy() for g in (weight, *grads)]
    wanted, _ = train(name, rounded[0], rounded[1:], options)
    found, trainer = train(name, weight, grads, {**options, "multi_precision": True}, dtype)
    wanted = nd.array(wanted, dtype="float32").astype(dtype).astype("float64").asnumpy()
    np.testing.assert_array_equal(found, wanted)
    master, state = trainer._state.all_states()[0]
    assert {array.dtype for array in (master, *state)} == {np.float32}


@pytest.mark.parametrize("name", FORMULAS)
def test_16_bit_weights_without_copies_warn_and_train(name):
    weight, grads = draws(SHAPE, steps=5)
    with pytest.warns(UserWarning, match="multi_precision=True"):
        found, _ = train(name, weight, grads, {"learning_rate": 0.01}, "bfloat16")
    wanted, _ = train(name, weight, grads, {"learning_rate": 0.01})
    np.testing.assert_allclose(found, wanted, atol=0.03)


@pytest.mark.parametrize("name", FORMULAS)
def test_all_ways_to_update_give_the_same_bits(name):
    """A prepared update, a list of weights, single weights, and another device."""
    weight, grads = draws(SHAPE, steps=4)
    options = {"learning_rate": 0.01, "wd": 0.1}
    wanted, _ = train(name, weight, grads, options)
    found, _ = train(name, weight, grads, options, ctx=on(1))
    np.testing.assert_array_equal(found, wanted)
    for as_list in (True, False):
        optimizer = mx.optimizer.create(name, rescale_grad=0.5, **options)
        updater, array = mx.optimizer.get_updater(optimizer), nd.array(weight)
        for grad in map(nd.array, grads):
            updater(*([0], [grad], [array]) if as_list else (0, grad, array))
        np.testing.assert_array_equal(array.asnumpy(), wanted)


@pytest.mark.parametrize("name", FORMULAS)
def test_clip_gradient_bounds_the_rescaled_gradient(name):
    weight, grads = draws(SHAPE, steps=3)
    found, _ = train(name, weight, grads, {"clip_gradient": 0.1})
    wanted, _ = train(name, weight, [np.clip(g, -0.2, 0.2) for g in grads], {})
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("name", FORMULAS)
def test_row_sparse_gradients_are_updated_like_dense_ones(name):
    weight, _ = draws(SHAPE)
    dense = np.zeros(SHAPE, "float32")
    dense[[1, 4]] = np.random.RandomState(1).uniform(-1, 1, (2, SHAPE[1]))
    found = []
    for grad in (nd.array(dense), nd.array(dense).tostype("row_sparse")):
        updater = mx.optimizer.get_updater(mx.optimizer.create(name, wd=0.1))
        array = nd.array(weight)
        for _ in range(3):
            updater(0, grad, array)
        found.append(array.asnumpy())
    np.testing.assert_array_equal(*found)


def test_adafactor_keeps_factored_states():
    shapes = lambda shape: [
        array.shape for array in mx.optimizer.Adafactor().create_state(0, nd.zeros(shape))
    ]
    assert shapes((3, 5)) == [(3, 1), (1, 5)]
    assert shapes((2, 3, 5)) == [(2, 3, 1), (2, 1, 5)]
    assert shapes((7,)) == [(7,)]
    (state, *_) = mx.optimizer.Adafactor().create_state(0, nd.zeros((3, 5), dtype="float16"))
    assert state.dtype == np.float32


def test_zero_gradients_leave_finite_weights():
    for name in FORMULAS:
        found, _ = train(name, np.ones(SHAPE), [np.zeros(SHAPE)] * 3, {"wd": 0.0})
        np.testing.assert_array_equal(found, 1)


def test_muon_refuses_vectors_and_names_the_remedy():
    net = nn.Dense(3, in_units=2)
    net.initialize()
    trainer = gluon.Trainer(net, "muon")
    with autograd.record():
        loss = net(nd.ones((1, 2))).sum()
    loss.backward()
    before = net.weight.data().asnumpy()
    with pytest.raises(ValueError, match="only matrices, but parameter .*'optimizer': 'adamw'"):
        trainer.step(1)
    np.testing.assert_array_equal(net.weight.data().asnumpy(), before)


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("adamw", {"beta1": 1}, "beta1 must be at least 0 and below 1"),
        ("adamw", {"epsilon": -1}, "epsilon must be"),
        ("lion", {"beta2": 2}, "beta2 must be between 0 and 1"),
        ("adafactor", {"beta2_decay": 1}, "beta2_decay"),
        ("adafactor", {"threshold": 0}, "threshold must be above 0"),
        ("muon", {"ns_coefficients": (1, 2)}, "ns_coefficients must be three numbers"),
        ("muon", {"ns_steps": 100}, "ns_steps must be below 100"),
        ("muon", {"ns_dtype": "int8"}, "ns_dtype must be"),
        ("muon", {"adjust_lr": "none"}, "adjust_lr must be one of"),
        ("muon", {"momentum": 1.5}, "momentum must be"),
    ],
)
def test_invalid_options_raise(name, options, words):
    with pytest.raises(ValueError, match=words):
        mx.optimizer.create(name, **options)


def test_options_of_pytorch_are_suggested():
    with pytest.raises(TypeError, match="AdamW has no option 'lr'; did you mean 'learning_rate'"):
        mx.optimizer.AdamW(lr=0.1)
    with pytest.raises(TypeError, match="did you mean 'wd'"):
        mx.optimizer.Lion(weight_decay=0.1)


# --- PyTorch ---


def torch_train(make, weight, grads):
    torch = pytest.importorskip("torch")
    param = torch.nn.Parameter(torch.tensor(weight, dtype=torch.float32))
    optimizer = make(torch, [param])
    for grad in grads:
        param.grad = torch.tensor(grad / 2, dtype=torch.float32)
        optimizer.step()
    return param.detach().numpy()


@pytest.mark.parametrize(
    "name, options, make",
    [
        ("adamw", {}, lambda torch, p: torch.optim.AdamW(p)),
        (
            "adamw",
            {"learning_rate": 0.02, "wd": 0.3, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3},
            lambda torch, p: torch.optim.AdamW(
                p, lr=0.02, weight_decay=0.3, betas=(0.8, 0.95), eps=1e-3
            ),
        ),
        (
            "adamw",
            {"learning_rate": 0.02, "amsgrad": True},
            lambda torch, p: torch.optim.AdamW(p, lr=0.02, amsgrad=True),
        ),
        ("adafactor", {}, lambda torch, p: torch.optim.Adafactor(p)),
        (
            "adafactor",
            {"learning_rate": 0.1, "wd": 0.1, "beta2_decay": -0.5, "threshold": 1.5},
            lambda torch, p: torch.optim.Adafactor(
                p, lr=0.1, weight_decay=0.1, beta2_decay=-0.5, d=1.5
            ),
        ),
        (
            "adafactor",
            {"epsilon1": 1e-2, "epsilon2": 0.7},
            lambda torch, p: torch.optim.Adafactor(p, eps=(1e-2, 0.7)),
        ),
        ("muon", {}, lambda torch, p: torch.optim.Muon(p)),
        (
            "muon",
            {"learning_rate": 0.02, "nesterov": False, "adjust_lr": "match_rms_adamw"},
            lambda torch, p: torch.optim.Muon(
                p, lr=0.02, nesterov=False, adjust_lr_fn="match_rms_adamw"
            ),
        ),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_twenty_steps_match_pytorch(name, options, make, monkeypatch):
    torch = pytest.importorskip("torch")
    # PyTorch iterates in bfloat16. Here, its iterations run in float32.
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    for shape in SHAPES.get(name, [SHAPE]):
        weight, grads = draws(shape)
        found, _ = train(name, weight, grads, options)
        np.testing.assert_allclose(found, torch_train(make, weight, grads), rtol=1e-6, atol=1e-6)


def test_muon_in_bfloat16_is_close_to_pytorch():
    weight, grads = draws((16, 24))
    found, _ = train("muon", weight, grads, {"learning_rate": 0.02, "ns_dtype": "bfloat16"})
    wanted = torch_train(lambda torch, p: torch.optim.Muon(p, lr=0.02), weight, grads)
    moved = np.abs(wanted - weight).mean()
    assert np.abs(found - wanted).mean() < 0.05 * moved


def test_optimizers_have_pytorchs_defaults():
    torch = pytest.importorskip("torch")
    param = [torch.nn.Parameter(torch.zeros(2, 2))]
    own = {
        "AdamW": ("learning_rate", "beta1", "beta2", "epsilon", "wd", "amsgrad"),
        "Adafactor": ("learning_rate", "beta2_decay", "epsilon1", "epsilon2", "threshold", "wd"),
        "Muon": (
            "learning_rate", "wd", "momentum", "nesterov", "ns_coefficients", "epsilon", "ns_steps",
        ),
    }  # fmt: skip
    theirs = {
        "AdamW": lambda d: (d["lr"], *d["betas"], d["eps"], d["weight_decay"], d["amsgrad"]),
        "Adafactor": lambda d: (
            d["lr"], d["beta2_decay"], *d["eps"], d["d"], d["weight_decay"],
        ),
        "Muon": lambda d: (
            d["lr"], d["weight_decay"], d["momentum"], d["nesterov"], d["ns_coefficients"],
            d["eps"], d["ns_steps"],
        ),
    }  # fmt: skip
    for name, options in own.items():
        made = getattr(mx.optimizer, name)()
        found = tuple(
            getattr(made, "lr" if option == "learning_rate" else option) for option in options
        )
        assert found == theirs[name](getattr(torch.optim, name)(param).defaults)


def test_updates_warn_about_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in FORMULAS:
            train(name, *draws(SHAPE, steps=2), {})
