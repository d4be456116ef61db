"""Replayed captures and NVRTC-compiled kernels have the bits of ops issued one by one, on a card
and on the stand-in. Runs typical small networks in subprocesses, because settings are read
once."""

import os

import pytest

from support.processes import finished
from support.stand_in import ON_STAND_IN, needs_gpu

pytestmark = needs_gpu

# Ways of issuing work; the first is the default.
WAYS = {
    "captured and fused": {},
    "captured": {"MPGLUON_CUDA_NVRTC": "0"},
    "fused": {"MPGLUON_CUDA_GRAPHS": "0"},
    "one by one": {"MPGLUON_CUDA_GRAPHS": "0", "MPGLUON_CUDA_NVRTC": "0"},
}

NETWORKS = """
    import hashlib, sys
    import numpy as np
    import mpgluon as mx
    from mpgluon import autograd, gluon, nd
    from mpgluon.gluon import nn
    from gpu.test_gpu_networks import Parts, language_model, transformer

    class Residual(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.body = nn.HybridSequential()
            self.body.add(nn.Conv2D(8, 3, padding=1, in_channels=8, use_bias=False),
                          nn.BatchNorm(in_channels=8), nn.Activation("relu"),
                          nn.Conv2D(8, 3, padding=1, in_channels=8, use_bias=False),
                          nn.BatchNorm(in_channels=8))
        def hybrid_forward(self, F, x):
            return F.relu(x + self.body(x))

    def residual():
        first, second = nn.HybridSequential(), nn.HybridSequential()
        first.add(nn.Conv2D(8, 3, in_channels=3, use_bias=False), nn.BatchNorm(in_channels=8),
                  nn.Activation("relu"), nn.MaxPool2D(3, 2, 1), Residual())
        second.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(5, in_units=8))
        return [first, second], lambda random: (random.uniform(-1, 1, (4, 3, 18, 18)),
                                                random.randint(0, 5, (4,)))

    def trained(make, dtype, how):
        mx.random.seed(3)
        parts, draw = make()
        net = Parts(parts, [mx.gpu(0)] * 2)
        net.cast(dtype)
        if how != "eager":
            net.hybridize(exact=how == "exact")
        trainer = gluon.Trainer(net.collect_params(), "adam",
                                {"learning_rate": 0.01, "multi_precision": dtype != "float32"})
        loss, random = gluon.loss.SoftmaxCrossEntropyLoss(), np.random.RandomState(0)
        found = hashlib.sha256()
        for _ in range(6):
            x, y = (nd.array(a, ctx=mx.gpu(0)) for a in draw(random))
            x = x if x.ndim == 2 else x.astype(dtype)
            with autograd.record():
                value = loss(net(x), y)
            value.backward()
            trainer.step(x.shape[0])
            assert np.isfinite(value.astype("float32").asnumpy()).all()
            found.update(value.asnumpy().tobytes())
        for parameter in net.collect_params().values():
            found.update(parameter.data().asnumpy().tobytes())
        replays = 0 if how == "eager" else sum(
            device["replays"] for entry in net.compiled() for device in entry["devices"].values())
        return found.hexdigest(), replays

    replays = 0
    for dtype in ("float32", "float16", "bfloat16"):
        bits = {}
        for how in ("eager", "exact", "default"):
            bits[how], more = trained(MAKE, dtype, how)
            replays += more
        assert bits["eager"] == bits["exact"], dtype
        print(dtype, bits["exact"], bits["default"])
    print(replays, file=sys.stderr)
"""

# Lengths, addresses and scratch memory change constantly, as with a nearly full pool.
CHANGING = """
    import hashlib, sys
    import numpy as np
    import mpgluon as mx
    from mpgluon import autograd, gluon, nd
    from mpgluon.gluon import nn

    mx.random.seed(5)
    ctx, random = mx.gpu(0), np.random.RandomState(1)
    net = nn.HybridSequential()
    net.add(nn.Dense(64, in_units=24, activation="tanh"), nn.LayerNorm(in_channels=64),
            nn.HybridLambda(lambda F, x: F.sigmoid(x) * x + 0.5 * x),
            nn.Dropout(0.2), nn.Dense(64, in_units=64, activation="tanh"),
            nn.Dense(8, in_units=64))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    found, kept = hashlib.sha256(), []
    for step in range({steps}):
        rows = int(random.choice([3, 3, 3, 8, 8, 200]))
        if random.rand() < 0.3:
            kept.append(nd.ones((int(random.randint(1, 30000)),), ctx=ctx))
        if random.rand() < 0.3:
            del kept[: len(kept) // 2]
        if random.rand() < 0.05:
            nd.waitall()
            ctx.empty_cache()
        if random.rand() < 0.1:
            other = nd.ones((int(random.randint(1, 300)), 40), ctx=ctx)
            nd.dot(other, other, transpose_a=True).wait_to_read()  # with scratch of its own
        x = nd.array(random.uniform(-1, 1, (rows, 24)), ctx=ctx)
        with autograd.record():
            loss = (net(x) ** 2).mean()
        loss.backward()
        trainer.step(1)
        if step % 10 == 0:
            found.update(loss.asnumpy().tobytes())
    for parameter in net.collect_params().values():
        found.update(parameter.data().asnumpy().tobytes())
    print(found.hexdigest())
    print(sum(d["replays"] for e in net.compiled() for d in e["devices"].values()),
          file=sys.stderr)
"""


def ran(program, way, folder):
    """Returns the output, the number of replayed captures and the number of specialized kernels."""
    folder.mkdir()
    settings = {"MPGLUON_CUDA_GRAPHS": "1", "MPGLUON_CUDA_NVRTC": "1", **WAYS[way]}
    done = finished(program, timeout=280, MPGLUON_CUDA_GROUPS=str(folder), **settings)
    return done.stdout, int(done.stderr.split()[-1]), len(os.listdir(folder))


@pytest.mark.parametrize("program", ["transformer", "residual", "language_model", "changing"])
def test_captures_and_fused_kernels_have_the_bits_of_single_ops(program, tmp_path):
    steps = str(60 if ON_STAND_IN else 1000)
    changes = program == "changing"
    text = CHANGING.replace("{steps}", steps) if changes else NETWORKS.replace("MAKE", program)
    found = {}
    for number, way in enumerate(WAYS):
        found[way], replays, groups = ran(text, way, tmp_path / str(number))
        assert (replays > 0) == way.startswith("captured"), (way, replays)
        # A recurrent layer has no ops to fuse
        fuses = way.endswith("fused") and program != "language_model"
        assert groups > 0 if fuses else groups == 0 or way.endswith("fused"), (way, groups)
    assert all(out == found["one by one"] for out in found.values()), found
