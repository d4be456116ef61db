"""Test values for parameters and images of the model zoo, identical in MXNet and here."""

import hashlib
import os

import numpy as np

RECORD = os.path.join(os.path.dirname(__file__), "..", "data", "mxnet-1.9.1", "model_zoo.json")
CLASSES = 10


def size_of(name):
    """Returns the image size of a network: the smallest it accepts, or its native size."""
    for family, size in (("alexnet", 63), ("inception", 299), ("densenet", 224), ("squeeze", 224)):
        if name.startswith(family):
            return size
    return 32


def image(size):
    return np.random.RandomState(size).uniform(-1, 1, (1, 3, size, size)).astype(np.float32)


def values(number, name, shape):
    """Returns values of the parameter `name` that preserve the scale of activations."""
    random = np.random.RandomState(number)
    if name.endswith("weight"):
        bound = np.sqrt(6 / np.prod(shape[1:]))
        return (bound * random.uniform(-1, 1, shape)).astype(np.float32)
    middle = 1 if name.endswith(("gamma", "running_var")) else 0
    return (middle + random.uniform(-0.2, 0.2, shape)).astype(np.float32)


def fill(net, nd):
    """Fills all parameters of a network, whose shapes must be known."""
    for number, (name, parameter) in enumerate(net.collect_params().items()):
        parameter.set_data(nd.array(values(number, name, parameter.shape)))


def structure(net):
    """Returns the number of parameters and elements, and a digest of names and shapes.

    The digest covers the full names and those in files.
    """
    parameters = net.collect_params()
    named = [*parameters.items(), *net._collect_params_with_prefix().items()]
    text = "\n".join(f"{name} {','.join(map(str, p.shape))}" for name, p in named)
    elements = sum(int(np.prod(p.shape)) for p in parameters.values())
    return [len(named) // 2, elements, hashlib.sha256(text.encode()).hexdigest()[:16]]
