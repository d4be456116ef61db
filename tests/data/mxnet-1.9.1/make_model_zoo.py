"""Creates model_zoo.json: the structures and outputs of the model zoo in MXNet 1.9.1.

python make_model_zoo.py      (in this folder, with mxnet==1.9.1 and numpy==1.23.5)
"""

import json
import sys

import mxnet as mx

sys.path.insert(0, "../..")
from support.model_zoo import CLASSES, fill, image, size_of, structure

NAMES = [
    "alexnet",
    *(f"densenet{layers}" for layers in (121, 161, 169, 201)),
    "inceptionv3",
    *(f"mobilenet{width}" for width in ("0.25", "0.5", "0.75", "1.0")),
    *(f"mobilenetv2_{width}" for width in ("0.25", "0.5", "0.75", "1.0")),
    *(f"resnet{layers}_v{v}" for v in (1, 2) for layers in (18, 34, 50, 101, 152)),
    "squeezenet1.0",
    "squeezenet1.1",
    *(f"vgg{layers}{norm}" for norm in ("", "_bn") for layers in (11, 13, 16, 19)),
]


def record(name):
    net = mx.gluon.model_zoo.vision.get_model(name, prefix="net_", classes=CLASSES)
    x = mx.nd.array(image(size_of(name)))
    net.infer_shape(x)
    net.initialize()
    fill(net, mx.nd)
    return {"structure": structure(net), "output": net(x)[0].asnumpy().tolist()}


with open("model_zoo.json", "w") as file:
    lines = [f"{json.dumps(name)}: {json.dumps(record(name))}" for name in NAMES]
    file.write("{\n" + ",\n".join(lines) + "\n}\n")
