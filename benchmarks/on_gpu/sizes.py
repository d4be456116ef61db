"""Sizes of the GPU cases, full and tiny (to test everything without a GPU), and the operation
counts that follow from them.

GPU_CHECK_TINY=1 selects the tiny sizes. As in sizes.py, a multiply-add counts as two operations.
"""

import os

TINY = os.environ.get("GPU_CHECK_TINY") == "1"


def size(full, tiny):
    return tiny if TINY else full


CHAIN = size(500, 20)  # ops in a chain
PRODUCT = size(8192, 64)

# GPT-2 124M: the output layer is the embedding. All contenders pad its vocabulary of 50,257 to a
# multiple of 64.
GPT_VOCABULARY, GPT_UNITS, GPT_HEADS, GPT_LAYERS = (
    size(50304, 64),
    size(768, 16),
    size(12, 2),
    size(12, 4),
)
GPT_LENGTH, GPT_BATCH = size(1024, 12), size(32, 8)

RESNET_BLOCKS, RESNET_WIDTH, RESNET_IMAGE = size((3, 4, 6, 3), (1, 1)), size(64, 8), size(224, 16)
RESNET_CLASSES, RESNET_BATCH = size(1000, 10), size(256, 2)

LSTM_VOCABULARY, LSTM_UNITS, LSTM_LAYERS, LSTM_TIME, LSTM_BATCH = (
    size(10000, 40),
    size(1500, 16),
    2,
    size(35, 3),
    size(20, 2),
)

STAGES = 4
PIECES = size(8, 4)  # micro-batches of the pipeline


def product():
    return 2 * PRODUCT**3


def gpt_training():
    words = GPT_BATCH * GPT_LENGTH
    products = words * 2 * (GPT_LAYERS * 12 * GPT_UNITS * GPT_UNITS + GPT_UNITS * GPT_VOCABULARY)
    attention = GPT_LAYERS * GPT_BATCH * 2 * 2 * (GPT_LENGTH * (GPT_LENGTH + 1) // 2) * GPT_UNITS
    return 3 * (products + attention)


def resnet_training():
    """Counts every convolution three times and the first twice, because the gradient of the images
    is not computed."""
    side, inputs = RESNET_IMAGE // 2, RESNET_WIDTH
    first = 2 * side * side * RESNET_WIDTH * 3 * 49
    side //= 2
    rest = 0
    for stage, blocks in enumerate(RESNET_BLOCKS):
        width, outputs = RESNET_WIDTH << stage, 4 * RESNET_WIDTH << stage
        for block in range(blocks):
            before = side
            if stage and not block:
                side //= 2
            rest += 2 * (
                before * before * inputs * width
                + side * side * (9 * width * width + width * outputs)
            )
            if not block:
                rest += 2 * side * side * inputs * outputs
            inputs = outputs
    return RESNET_BATCH * (2 * first + 3 * (rest + 2 * inputs * RESNET_CLASSES))


def lstm_training():
    words = LSTM_TIME * LSTM_BATCH
    return (
        3
        * words
        * (LSTM_LAYERS * 2 * 4 * LSTM_UNITS * 2 * LSTM_UNITS + 2 * LSTM_UNITS * LSTM_VOCABULARY)
    )
