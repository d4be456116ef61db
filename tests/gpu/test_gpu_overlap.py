"""Devices that share a card work at the same time: logical GPUs in a pipeline, and what they need
of the driver."""

import pytest

from support.processes import output_of
from support.stand_in import STAND_IN, needs_gpu, needs_stand_in

pytestmark = needs_gpu

PIPELINE = f"""
    import ctypes
    import numpy as np
    import mpgluon as mx
    from mpgluon import gluon, nd
    from mpgluon.gluon import nn
    from mpgluon.parallel import Pipeline, TrainStep

    class Stages(gluon.HybridBlock):
        def __init__(self, contexts):
            super().__init__()
            self.contexts, self.parts = contexts, []
            for number, ctx in enumerate(contexts):
                part = nn.Dense(16, in_units=16, activation="tanh")
                part.initialize(mx.init.Xavier(), ctx=ctx)
                self.register_child(part, f"part{{number}}")
                self.parts.append(part)
        def hybrid_forward(self, F, x):
            for part, ctx in zip(self.parts, self.contexts):
                x = part(x.as_in_context(ctx))
            return x

    contexts = [mx.gpu(i) for i in DEVICES]
    mx.random.seed(1)
    net = Stages(contexts)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {{"learning_rate": 0.1}})
    step = TrainStep(net, lambda out: (out ** 2).mean(axis=1), trainer, Pipeline(8, "SCHEDULE"))
    x = nd.array(np.random.RandomState(0).uniform(-1, 1, (16, 16)), ctx=contexts[0])
    for _ in range(3):
        loss = step(x, []).asnumpy()
    counts = ctypes.CDLL({STAND_IN!r})
    print(counts.hostcuda_count(b"together"), loss.tobytes().hex())
"""


@needs_stand_in
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_logical_gpus_in_a_pipeline_overlap(schedule):
    """At least three of the four compute at the same time in some moment, however busy this machine
    is; a single one never does with itself. The losses have the same bits."""
    found = {}
    for devices, least in (([0, 1, 2, 3], "8000"), ([0, 0, 0, 0], "100")):
        code = PIPELINE.replace("DEVICES", str(devices)).replace("SCHEDULE", schedule)
        settings = {"MPGLUON_GPU_LOGICAL": "4", "HOSTCUDA_DEVICES": "1", "HOSTCUDA_KERNEL": least}
        found[len(set(devices))] = output_of(code, timeout=200, **settings).split()
    assert int(found[4][0]) >= 3 and found[1][0] == "1", found
    assert found[4][1] == found[1][1]


def test_streams_have_queues_of_their_own():
    """32 rather than 8 connections to a card that several devices share, where the user has not set
    another number."""
    code = """
        import ctypes, os
        os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS" if UNSET else "", None)
        import mpgluon as mx
        assert mx.num_gpus()
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_char_p
        print(libc.getenv(b"CUDA_DEVICE_MAX_CONNECTIONS"))
    """
    for unset, logical, number in (
        ("True", "4", b"32"),
        ("True", "1", None),
        ("True", "", None),
        ("False", "4", b"5"),
    ):
        settings = {"CUDA_DEVICE_MAX_CONNECTIONS": "5", "MPGLUON_GPU_LOGICAL": logical}
        assert output_of(code.replace("UNSET", unset), **settings) == f"{number}\n"


def test_each_logical_device_has_a_limit():
    out = output_of(
        """
        import mpgluon as mx
        mx.context.set_memory_limit(mx.gpu(1), 1 << 20)
        for i in (0, 1, 2):
            try:
                print(i, int(mx.nd.ones((1 << 20,), ctx=mx.gpu(i)).sum().asscalar()))
            except mx.base.MXNetError as error:
                print(i, str(error).split(":")[0])
        print((mx.nd.ones((5,), ctx=mx.gpu(1)) + 1).asnumpy())
        """,
        MPGLUON_GPU_LOGICAL="3",
    )
    assert out.splitlines() == [
        "0 1048576",
        "1 gpu(1) is out of memory",
        "2 1048576",
        "[2. 2. 2. 2. 2.]",
    ]
