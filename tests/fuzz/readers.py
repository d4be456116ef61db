"""File readers as functions of bytes, which return normally or raise a documented error.

Coverage of the package's Python code guides the mutations under Atheris (run.py). The tests call
the same functions with the corpus.
"""

import functools
import json
import os
import tempfile
import warnings

import numpy as np

import mpgluon as mx
from fuzz.cost import bounded
from mpgluon.contrib.huggingface import GGUF
from mpgluon.gluon._huggingface import gguf_models
from mpgluon.ndarray import _safetensors

FOLDER = tempfile.TemporaryDirectory()
PATH = os.path.join(FOLDER.name, "file")
LIMIT = 64 << 20  # device memory in bytes, more than any of these small files may use


def written(data):
    with open(PATH, "wb") as file:
        file.write(data)
    return PATH


def params(data):
    """Reads with `nd.load`."""
    try:
        with warnings.catch_warnings():  # about duplicate names
            warnings.simplefilter("ignore")
            found = mx.nd.load_frombuffer(data)
    except mx.base.MXNetIOError:
        return
    for array in found.values() if isinstance(found, dict) else found:
        assert array is None or array.size * 2 <= 16 * len(data) + 64


def symbol(data):
    """Reads with `sym.load` and infers shapes."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    try:
        found = mx.sym.load_json(text)
        assert mx.sym.load_json(found.tojson()).tojson() == found.tojson()
        found.infer_shape_partial(**dict.fromkeys(found.list_arguments()[:1], (2, 3)))
    except (mx.MXNetError, ValueError):
        pass


def safetensors(data):
    """Reads a shard of a checkpoint."""
    try:
        file = _safetensors.File(written(data))
        file.checksums()
        for name in list(file.entries)[:8]:
            file.read(name)
        file.checksums()
    except mx.MXNetError:
        pass


def gguf(data):
    """Reads the metadata and tensors of a GGUF file, and the config of its model."""
    try:
        file = GGUF(written(data))
        for name in list(file.types())[:8]:
            file.read(name)
        gguf_models.config_of(file)
        gguf_models.arrays_of(file)
    except mx.MXNetError:
        pass


def checkpoint(data):
    """Reads the index of an otherwise valid checkpoint."""
    net, directory = example()
    with open(os.path.join(directory, "index.json"), "wb") as file:
        file.write(data)
    try:
        mx.parallel.load(directory, net)
    except mx.MXNetError:
        pass


def trainer_states(data):
    """Reads with `Trainer.load_states`."""
    net, _ = example()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    try:
        trainer.load_states(written(data))
    except mx.MXNetError:
        pass


def parameters(data):
    """Reads with `Block.load_parameters`."""
    net, _ = example()
    try:
        net.load_parameters(written(data))
    except (mx.MXNetError, ValueError, KeyError, AssertionError):
        pass


_example = []


def example():
    """Returns a network and the folder of its checkpoint."""
    if not _example:
        net = mx.gluon.nn.Dense(2, in_units=3, prefix="net_")
        net.initialize()
        directory = os.path.join(FOLDER.name, "checkpoint")
        mx.parallel.save(directory, net)
        _example.append((net, directory))
    return _example[0]


def small_symbol():
    x = mx.sym.var("x", shape=(2, 3))
    net = mx.sym.FullyConnected(mx.sym.Activation(x, act_type="relu"), num_hidden=2, name="fc")
    part = dict(begin=(0, 1), end=(None, 2))
    return mx.sym.contrib.cond(
        mx.sym.sum(net) > 0, lambda: net * 2, lambda: mx.sym.slice(net, **part)
    )


def seeds(target):
    """Returns valid initial inputs."""
    net, directory = example()
    arrays = {"a": mx.nd.ones((2, 3)), "b": mx.nd.array([1, 0], dtype="bool")}
    if target is params:
        return [mx.nd.save_tobuffer(one) for one in (arrays, [mx.nd.array(3.0)], [])]
    if target is symbol:
        texts = [small_symbol().tojson(), mx.sym.relu(mx.sym.var("x")).tojson()]
        return [text.encode() for text in texts] + [json.dumps(json.loads(texts[1])).encode()]
    if target is safetensors:
        (shard,) = [name for name in os.listdir(directory) if name.endswith(".safetensors")]
        with open(os.path.join(directory, shard), "rb") as file:
            return [file.read()]
    if target is gguf:
        from support.text.few_bits import gguf_bytes, gguf_tensor
        from support.text.gguf_models import config_for, metadata_for

        random = np.random.default_rng(0)
        kinds = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K")
        tensors = {kind: gguf_tensor(random, kind, (1, 256)) for kind in kinds}
        tensors["token_embd.weight"] = gguf_tensor(random, "Q8_0", (2, 32))
        models = [metadata_for(config_for(kind)) for kind in ("llama", "gemma3_text", "phi3")]
        return [gguf_bytes(metadata, tensors) for metadata in models]
    if target is checkpoint:
        with open(os.path.join(directory, "index.json"), "rb") as file:
            return [file.read()]
    if target is trainer_states:
        trainer = mx.gluon.Trainer(net.collect_params(), "adam")
        with mx.autograd.record():
            loss = net(mx.nd.ones((1, 3)))
        loss.backward()
        trainer.step(1)
        trainer.save_states(PATH)
    else:
        net.save_parameters(PATH)
    with open(PATH, "rb") as file:
        return [file.read()]


def limited(target):
    """Wraps a target to fail if it exceeds the memory or time limit for its input size."""

    @functools.wraps(target)
    def read(data):
        with bounded(len(data), target.__name__):
            target(data)

    return read


TARGETS = {
    target.__name__: target
    for target in (params, symbol, safetensors, gguf, checkpoint, trainer_states, parameters)
}
