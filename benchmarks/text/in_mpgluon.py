"""The cases of models.py in mpgluon."""

import json
import os
import sys

import numpy as np

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.contrib import lora
from mpgluon.gluon.model_zoo import text
from text.measured import seconds_of, serve, token_seconds


def make_model(folder, config):
    net = text.from_config(config)
    net.initialize()
    net.save_parameters(folder, format="huggingface")


def devices_of(folder, count):
    """Returns the placement of contiguous parts of the layers on devices."""
    if count == 1:
        return None
    with open(os.path.join(folder, "config.json")) as file:
        layers = json.load(file)["num_hidden_layers"]
    places = {f"layers\\.{i}": mx.cpu(i * count // layers) for i in range(layers)}
    return {"embed": mx.cpu(0), **places, "norm|head": mx.cpu(count - 1)}


def load(options):
    return text.from_pretrained(
        options["folder"],
        ctx=devices_of(options["folder"], options["devices"]),
        dtype=options["dtype"],
    )


def decode(options):
    net = load(options)

    def run(count):
        text.generate(net, [list(range(8))], max_new=count)

    return lambda: token_seconds(run, options["tokens"]), {}


def prompt(options, length=64):
    net = load(options)
    net.hybridize()
    tokens = nd.array([list(range(length))], dtype="int32")

    def run():
        for _ in range(4):
            net(tokens).wait_to_read()

    run()
    return lambda: seconds_of(run, 4 * length), {}


def train(options, adapt=None):
    net = load(options)
    notes = {}
    if adapt:
        adapt(net)
    parameters = [p for p in net.collect_params().values() if p.grad_req != "null"]
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-4})
    head_loss = gluon.loss.SoftmaxCrossEntropyLoss()
    net.hybridize()
    head_loss.hybridize()
    draw, vocab = np.random.RandomState(0), net.embed.weight.shape[0]
    shape = (options["rows"], options["time"])
    tokens, labels = [nd.array(draw.randint(0, vocab, shape), dtype="int32") for _ in range(2)]

    def run():
        with autograd.record():
            loss = head_loss(net(tokens), labels).mean()
        loss.backward()
        trainer.step(1)
        nd.waitall()

    run()
    sizes = [int(np.prod(p.shape)) for p in parameters]
    total = sum(int(np.prod(p.shape)) for p in net.collect_params().values())
    notes["trained"] = f"{sum(sizes) / total:.2%}"
    return lambda: seconds_of(run), notes


def low_rank(options):
    return train(options, lambda net: lora.apply(net, {r".*\.(query|value)": 16}, alpha=32))


def weights_file(options):
    return os.path.join(options["folder"], "model.safetensors")


def loading(options):
    folder, kept = options["folder"], []

    def run():
        net = text.from_config(folder)
        kept.append(net)
        net.place(devices_of(folder, options["devices"]), verbose=False)
        net.load_parameters(folder, format="huggingface")
        nd.waitall()

    notes = {"bytes": os.path.getsize(weights_file(options))}
    return lambda: seconds_of(run, after=kept.clear), notes


def read(options):
    """Reads the file into memory that exists."""
    path, piece = weights_file(options), 2 << 20
    memory = memoryview(bytearray(os.path.getsize(path)))

    def run():
        with open(path, "rb", buffering=0) as file:
            at = 0
            while count := file.readinto(memory[at : at + piece]):
                at += count

    return lambda: seconds_of(run), {}


WORK = {
    "decode": decode,
    "prompt": prompt,
    "train": train,
    "lora": low_rank,
    "load": loading,
    "read": read,
}

if __name__ == "__main__":
    if sys.argv[1] == "make":
        make_model(sys.argv[2], json.loads(sys.argv[3]))
    else:
        serve(lambda options: WORK[options["work"]](options))
