"""Costs of ops, which the compiler uses to choose ops to recompute."""

import math

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, nd
from mpgluon.gluon import nn
from samples.base import all_samples

SAMPLES = all_samples()
# Ops without arithmetic that use or serve a library's threads, or wait.
MOVES = {"_collective", "_pack_convolution", "_pack_fully_connected", "_pack_winograd", "_replicas"}
# Ops with more than a few operations per element that run inline if small.
WINDOWS = {
    "Pooling",
    "_backward_Pooling",
    "_pooling_at_max",
    "_max_pooling_channels_last",
    "_contrib_box_iou",
}


def cost(name, inputs, **params):
    return _core.op_cost(name, [(shape, "float32") for shape in inputs], params)


@pytest.mark.parametrize("name", sorted(_core.list_ops()))
def test_every_op_has_a_plausible_cost(name):
    flags = _core.get_op(name).describe()["flags"]
    for sample in SAMPLES.get(name, ()):  # a host step has none
        dtype = "float32" if "float32" in sample.dtypes else sample.dtypes[0]
        arrays = sample.arrays(dtype)
        pairs = [(a.shape, dtype if sample.made(i) else str(a.dtype)) for i, a in enumerate(arrays)]
        if "dynamic" in flags or any(0 in a.shape for a in arrays):
            continue
        with autograd.train_mode() if sample.train else autograd.predict_mode():
            given, results = _core.infer_shape(name, pairs, sample.params or {})
            nbytes, flops = _core.op_cost(name, pairs, sample.params or {})
        assert math.isfinite(nbytes) and math.isfinite(flops) and nbytes >= 0 and flops >= 0
        if any(shape is None or 0 in shape for shape, _ in given + results):
            continue
        size = [[math.prod(shape) for shape, _ in descs] for descs in (given, results)]
        width = [
            [2 if dtype == "bfloat16" else np.dtype(dtype).itemsize for _, dtype in descs]
            for descs in (given, results)
        ]
        total = [sum(n * w for n, w in zip(*pair)) for pair in zip(size, width)]
        assert nbytes <= total[0] + total[1]
        if "view" in flags:
            assert nbytes == flops == 0
            continue
        assert nbytes >= (total[1] if name not in MOVES else 0)
        if "heavy" in flags and name not in MOVES:
            assert flops >= sum(size[1]) / 2, "a product, or the like, that counts less than a sum"
        elif name not in WINDOWS:
            assert flops <= 10 * sum(map(sum, size)), (
                "an op of some steps for each element that counts as a product"
            )


B, C, H, W, F, K = 2, 32, 10, 12, 64, 9
PLACES = B * H * W
PRODUCT = 2 * PLACES * C * F * K
CONV = {"kernel": (3, 3), "pad": (1, 1), "num_filter": F, "no_bias": True}
BACK = {"pad": (1, 1), "stride": (1, 1), "dilate": (1, 1), "num_group": 1}
SIZES = {
    "sizes": (2, 3, 8, 10, 4, 6),
    "query_at": (0, 96, 4, 12),
    "key_at": (0, 120, 4, 12),
    "value_at": (0, 180, 6, 18),
    "result_at": (0, 144, 6, 18),
    "shape": (2, 8, 18),
}
SCORES = 2 * 3 * 8 * 10
PRODUCTS = {
    "convolution": (PRODUCT, "Convolution", [(B, C, H, W), (F, C, 3, 3)], CONV),
    "with a bias": (
        PRODUCT,
        "Convolution",
        [(B, C, H, W), (F, C, 3, 3), (F,)],
        {**CONV, "no_bias": False},
    ),
    "in groups": (
        PRODUCT / 4,
        "Convolution",
        [(B, C, H, W), (F, C // 4, 3, 3)],
        {**CONV, "num_group": 4},
    ),
    "in steps": (
        PRODUCT / 4,
        "Convolution",
        [(B, C, H, W), (F, C, 3, 3)],
        {**CONV, "stride": (2, 2)},
    ),
    "NHWC": (PRODUCT, "Convolution", [(B, H, W, C), (F, 3, 3, C)], {**CONV, "layout": "NHWC"}),
    "channels last": (PRODUCT, "_convolution_channels_last", [(B, H, W, C), (F, C, 3, 3)], CONV),
    "packed": (
        PRODUCT,
        "_packed_convolution",
        [(B, H, W, C), None],
        {**CONV, "channels_last": True, "shape": (B, H, W, C)},
    ),
    "Winograd": (
        PRODUCT * 16 / 36,
        "_winograd_convolution",
        [(B, H, W, C), (16 * C * F,)],
        {"pad": (1, 1), "num_filter": F, "no_bias": True},
    ),
    "Winograd, weight": (
        PRODUCT * 16 / 36,
        "_winograd_backward_weight",
        [(B, H, W, F), (B, H, W, C)],
        {"pad": (1, 1)},
    ),
    "data": (
        PRODUCT,
        "_backward_convolution_data",
        [(B, F, H, W), (F, C, 3, 3)],
        {**BACK, "shape": (B, C, H, W)},
    ),
    "data, last": (
        PRODUCT,
        "_backward_convolution_data",
        [(B, H, W, F), (F, C, 3, 3)],
        {**BACK, "shape": (B, H, W, C), "layout": "channels_last_data"},
    ),
    "weight": (
        PRODUCT,
        "_backward_convolution_weight",
        [(B, F, H, W), (B, C, H, W)],
        {**BACK, "shape": (F, C, 3, 3)},
    ),
    "deconvolution": (
        PRODUCT,
        "Deconvolution",
        [(B, F, H, W), (F, C, 3, 3)],
        {**CONV, "num_filter": C},
    ),
    "dense": (2 * 6 * 5 * 7, "FullyConnected", [(6, 5), (7, 5), (7,)], {"num_hidden": 7}),
    "dot": (2 * 6 * 5 * 7, "dot", [(6, 5), (5, 7)], {}),
    "dot, turned": (
        2 * 6 * 5 * 7,
        "dot",
        [(5, 6), (7, 5)],
        {"transpose_a": True, "transpose_b": True},
    ),
    "products": (2 * 3 * 6 * 5 * 7, "batch_dot", [(3, 6, 5), (3, 5, 7)], {}),
    "gemm": (2 * 3 * 6 * 5 * 7, "_linalg_gemm2", [(3, 5, 6), (3, 5, 7)], {"transpose_a": True}),
    "attention": (
        SCORES * (2 * 4 + 2 * 6),
        "_attention",
        [(2, 8, 12), (2, 10, 12), (2, 10, 18)],
        SIZES,
    ),
    "causal": (
        SCORES * 0.8 * (2 * 4 + 2 * 6) / 2,
        "_attention",
        [(2, 8, 12), (2, 8, 12), (2, 8, 18)],
        {
            **SIZES,
            "sizes": (2, 3, 8, 8, 4, 6),
            "key_at": (0, 96, 4, 12),
            "value_at": (0, 144, 6, 18),
            "causal": True,
        },
    ),
    "LSTM": (
        5 * 2 * 64 * 2 * (8 + 16),
        "_rnn",
        [(5, 2, 8), (1, 2, 16), (1, 2, 16), (64, 8), (64, 16), (64,), (64,)],
        {"state_size": 16, "num_layers": 1, "mode": "lstm"},
    ),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_flops_of_products_are_counted(case):
    """Counts multiplications and additions; other work adds at most a fifth."""
    flops, name, shapes, params = PRODUCTS[case]
    if None in shapes:
        params = dict(params)
        _, [(packed, _)] = _core.infer_shape(
            "_pack_convolution", [((F, C, 3, 3), "float32")], params
        )
        shapes = [packed if shape is None else shape for shape in shapes]
    found = cost(name, shapes, **params)[1]
    extra = 0.2 if "Winograd" not in case and case not in ("attention", "causal", "LSTM") else 0.6
    assert flops <= found <= flops * (1 + extra)


class Convolutions(nn.HybridSequential):
    def __init__(self):
        super().__init__()
        for _ in range(4):
            self.add(
                nn.Conv2D(32, 3, padding=1, in_channels=32),
                nn.BatchNorm(in_channels=32),
                nn.Activation("relu"),
                nn.MaxPool2D(3, 1, 1),
            )


def again(net):
    steps = [
        step
        for device in net.compiled()[0]["devices"].values()
        for step in device["backward"]
        if step.get("recomputed")
    ]
    return [op for step in steps for op in step.get("fused", [step["op"]])]


def planned(net):
    return sum(device["planned"]["total"] for device in net.compiled()[0]["devices"].values())


def trained(size, **flags):
    mx.random.seed(3)
    net = Convolutions()
    net.initialize()
    net.hybridize(**flags)
    x = nd.random.normal(shape=(4, 32, size, size))
    for _ in range(2):
        with autograd.record():
            y = net(x)
        y.backward()
    params = net.collect_params().values()
    return net, [p.data().asnumpy() for p in params] + [
        p.grad().asnumpy() for p in params if p.grad_req != "null"
    ]


@pytest.mark.parametrize(
    "size, exact, kernel",
    [
        (4, True, "Convolution"),
        (4, False, "_convolution_channels_last"),
        (16, False, "_winograd_convolution"),
    ],
)
def test_recompute_budget_prefers_cheap_ops_over_convolutions(size, exact, kernel):
    net, expected = trained(size, exact=exact)
    assert any(kernel in str(device["forward"]) for device in net.compiled()[0]["devices"].values())
    whole = planned(net)
    net, found = trained(size, exact=exact, recompute=int(whole * 0.6))
    assert planned(net) <= whole * 0.6
    assert again(net) and not [op for op in again(net) if "onvolution" in op]
    for a, b in zip(found, expected):  # includes moving statistics, which are updated once
        np.testing.assert_array_equal(a, b)
