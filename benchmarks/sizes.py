"""The sizes of the benchmarks' models and the floating-point operations that follow from them.

A multiply-add counts as two operations; only matrix products and convolutions count. Training adds
the gradients of weights and of inputs, each with the cost of the forward product, but no gradients
of data that are not needed.
"""

SGEMM = 2048

MLP_LAYERS = (784, 512, 512, 10)
MLP_BATCH = 128

LSTM_VOCABULARY, LSTM_UNITS, LSTM_LAYERS, LSTM_TIME, LSTM_BATCH = 10000, 650, 2, 35, 20
DEEP_VOCABULARY, DEEP_UNITS, DEEP_LAYERS, DEEP_TIME, DEEP_BATCH = 2000, 512, 4, 64, 20

RESNET_CHANNELS = (64, 128, 256, 512)
RESNET_CLASSES = 1000
RESNET_IMAGE = 224
RESNET_BATCH = 16

GPT_VOCABULARY, GPT_UNITS, GPT_HEADS, GPT_LAYERS, GPT_LENGTH, GPT_BATCH = 5000, 256, 8, 6, 128, 8

STAGED_PIECES = 8  # micro-batches of pipelines
STAGED_UNITS, STAGED_HEADS, STAGED_LAYERS, STAGED_LENGTH, STAGED_BATCH = 256, 8, 6, 128, 16
STAGED_SHAPE = STAGED_BATCH, STAGED_LENGTH, STAGED_UNITS
# Two halves of six layers with equal work: the first layer needs no gradient of its input, so its
# input is half as large again.
STAGED_MLP, STAGED_MLP_BATCH = (1536, *[1024] * 12), 1024


def mlp_training():
    total = 0
    for i, (inputs, units) in enumerate(zip(MLP_LAYERS, MLP_LAYERS[1:])):
        total += (2 if i == 0 else 3) * 2 * MLP_BATCH * inputs * units
    return total


def recurrent_training(vocabulary, units, layers, time, batch):
    per_word = layers * 2 * 4 * units * (units + units) + 2 * units * vocabulary
    return 3 * time * batch * per_word


def lstm_lm():
    return recurrent_training(LSTM_VOCABULARY, LSTM_UNITS, LSTM_LAYERS, LSTM_TIME, LSTM_BATCH)


def lstm_deep():
    return recurrent_training(DEEP_VOCABULARY, DEEP_UNITS, DEEP_LAYERS, DEEP_TIME, DEEP_BATCH)


def resnet18_forward(batch):
    """Returns (operations of the first convolution, of all others) of a forward pass."""
    side = RESNET_IMAGE // 2
    first = 2 * side * side * RESNET_CHANNELS[0] * 3 * 49
    side //= 2
    rest, inputs = 0, RESNET_CHANNELS[0]
    for stage, channels in enumerate(RESNET_CHANNELS):
        if stage:
            side //= 2
            rest += 2 * side * side * channels * inputs  # the 1x1 convolution of the shortcut
        rest += 2 * side * side * channels * 9 * (inputs + 3 * channels)
        inputs = channels
    rest += 2 * inputs * RESNET_CLASSES
    return batch * first, batch * rest


def resnet18_training():
    first, rest = resnet18_forward(RESNET_BATCH)
    return 2 * first + 3 * rest


def gpt_training():
    """Attention counts only the pairs that a causal mask keeps: each position with itself and all
    earlier positions."""
    words = GPT_BATCH * GPT_LENGTH
    products = words * 2 * (GPT_LAYERS * 12 * GPT_UNITS * GPT_UNITS + GPT_UNITS * GPT_VOCABULARY)
    attention = GPT_LAYERS * GPT_BATCH * 2 * 2 * (GPT_LENGTH * (GPT_LENGTH + 1) // 2) * GPT_UNITS
    return 3 * (products + attention)
