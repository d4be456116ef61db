"""Descriptions of the benchmark cases."""

from typing import NamedTuple

import sizes


class Case(NamedTuple):
    name: str
    title: str
    flops: int = 0  # of products and convolutions per step; 0 if they are not the bound
    items: int = 0  # items per step, counted in `unit`; 0 reports the time
    unit: str = ""
    training: bool = False
    threads: tuple = ()  # only these numbers of threads per device
    against: str = ""  # the case to compare with at the same number of threads


LANGUAGE_MODEL_WORDS = sizes.LSTM_TIME * sizes.LSTM_BATCH

CASES = (
    Case("add", "adding two 4x4 arrays"),
    Case("chain", "20-op chain, forward and backward"),
    Case("exp", "exp of 4M"),
    Case("softmax", "softmax 4096x1024"),
    Case("elementwise", "10 elementwise ops of 4M, forward and backward"),
    Case("gelu_dropout", "bias, GELU, dropout, residual of 4M, forward and backward"),
    Case("norm_in_parts", "layer normalisation from its parts, of 4M, forward and backward"),
    Case("sgemm", f"product {sizes.SGEMM}x{sizes.SGEMM}", 2 * sizes.SGEMM**3),
    Case("mlp", "MLP, training", sizes.mlp_training(), training=True),
    Case(
        "lstm_lm",
        "LSTM language model, training",
        sizes.lstm_lm(),
        LANGUAGE_MODEL_WORDS,
        "tokens/s",
        training=True,
    ),
    Case(
        "lstm_lm_two_devices",
        "the same on cpu(0)+cpu(1), 1 thread each",
        sizes.lstm_lm(),
        LANGUAGE_MODEL_WORDS,
        "tokens/s",
        training=True,
        threads=(1,),
        against="lstm_lm",
    ),
    Case(
        "lstm_deep",
        "4-layer LSTM, training",
        sizes.lstm_deep(),
        sizes.DEEP_TIME * sizes.DEEP_BATCH,
        "tokens/s",
        training=True,
    ),
    Case(
        "resnet18",
        "ResNet-18, training, batch 16",
        sizes.resnet18_training(),
        sizes.RESNET_BATCH,
        "images/s",
        training=True,
    ),
    Case(
        "resnet18_infer1",
        "ResNet-18, inference, batch 1",
        sum(sizes.resnet18_forward(1)),
        1,
        "images/s",
    ),
    Case(
        "resnet18_infer16",
        "ResNet-18, inference, batch 16",
        sum(sizes.resnet18_forward(16)),
        16,
        "images/s",
    ),
    Case(
        "gpt",
        "GPT, training",
        sizes.gpt_training(),
        sizes.GPT_BATCH * sizes.GPT_LENGTH,
        "tokens/s",
        training=True,
    ),
)
BY_NAME = {case.name: case for case in CASES}
PEAK = "sgemm"  # the case that measures the machine's peak
