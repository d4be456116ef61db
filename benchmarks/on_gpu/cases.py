"""The cases of gpu.py, their comparison and its required ratio."""

from collections.abc import Callable
from dataclasses import dataclass

from on_gpu import sizes


@dataclass
class Case:
    name: str
    title: str
    wanted: float | None = None  # minimum rate relative to PyTorch or `against`
    against: str = ""  # the mpgluon case to compare with; "" means PyTorch
    flops: Callable = lambda: 0
    items: int = 0  # per step
    unit: str = ""
    dtype: str = "bfloat16"
    settings: tuple = ()  # environment of mpgluon
    apart: bool = False  # excludes the wait for results


GPT_WORDS = sizes.GPT_BATCH * sizes.GPT_LENGTH
CASES = [  # most important first
    Case("product", f"product of {sizes.PRODUCT}x{sizes.PRODUCT} in bfloat16", flops=sizes.product),
    Case(
        "gpt",
        "GPT-2 124M, training",
        1.0,
        flops=sizes.gpt_training,
        items=GPT_WORDS,
        unit="tokens/s",
    ),
    Case(
        "resnet",
        "ResNet-50, training",
        1.0,
        flops=sizes.resnet_training,
        items=sizes.RESNET_BATCH,
        unit="images/s",
    ),
    Case(
        "lstm",
        "2-layer LSTM language model, training",
        1.0,
        flops=sizes.lstm_training,
        items=sizes.LSTM_TIME * sizes.LSTM_BATCH,
        unit="tokens/s",
        dtype="float32",
        settings=(("MPGLUON_CUDA_TF32", "1"),),
    ),
    Case(
        "pipeline",
        "GPT-2 of 12 layers on four logical GPUs, pipelined",
        0.9,
        against="whole",
        flops=sizes.gpt_training,
        items=GPT_WORDS,
        unit="tokens/s",
        settings=(("MPGLUON_GPU_LOGICAL", str(sizes.STAGES)),),
    ),
    Case(
        "whole", "the same on one GPU", flops=sizes.gpt_training, items=GPT_WORDS, unit="tokens/s"
    ),
    Case("add", "an eager op, in a chain, until the results are there", 2.0, dtype="float32"),
    Case("add_issue", "the same, until the call returns", dtype="float32", apart=True),
    Case("recorded", "an eager op, recorded, with its backward", 2.0, dtype="float32"),
]
BY_NAME = {case.name: case for case in CASES}
