"""Creates the files in this folder: models exported by MXNet 1.9.1, with inputs and outputs.

python make.py      (in this folder, with mxnet==1.9.1 and numpy==1.23.5)
"""

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo.vision import ResNetV1
from mxnet.gluon.model_zoo.vision.resnet import BasicBlockV1

mx.random.seed(1)
random = np.random.RandomState(1)


def block(name, net, *inputs):
    net.initialize(mx.init.Xavier())
    net.hybridize()
    arrays = [mx.nd.array(x) for x in inputs]
    net(*arrays)
    for param in net.collect_params(".*running_.*").values():
        param.set_data(mx.nd.array(random.uniform(0.5, 1.5, param.shape)))
    out = net(*arrays)
    net.export(name)
    out = out if isinstance(out, (list, tuple)) else [out]
    mx.nd.save(
        name + ".nd",
        {**{f"x{i}": x for i, x in enumerate(arrays)}, **{f"o{i}": o for i, o in enumerate(out)}},
    )


class LanguageModel(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.embed, self.lstm = (
                nn.Embedding(20, 6),
                gluon.rnn.LSTM(5, 2, dropout=0.3, bidirectional=True, input_size=6),
            )
            self.out = nn.Dense(20, flatten=False)

    def hybrid_forward(self, F, x):
        return self.out(self.lstm(self.embed(x)))


class Detector(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.body = nn.HybridSequential()
            self.body.add(
                nn.Conv2D(4, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(4)
            )
            self.classes, self.boxes = (
                nn.Conv2D(2 * 3, 3, padding=1),
                nn.Conv2D(2 * 4, 3, padding=1),
            )
            self.shift = self.params.get_constant(
                "shift", random.uniform(0, 0.1, (1, 4 * 4 * 2, 4)).astype("float32")
            )

    def hybrid_forward(self, F, x, shift):
        y = self.body(x)
        scores = F.transpose(self.classes(y), axes=(0, 2, 3, 1)).reshape((0, -1, 3))
        boxes = F.transpose(self.boxes(y), axes=(0, 2, 3, 1)).reshape((0, -1, 4))
        anchors = F.contrib.MultiBoxPrior(y, sizes=(0.2, 0.4), ratios=(1,))
        found = F.contrib.MultiBoxDetection(
            F.softmax(scores).transpose((0, 2, 1)), F.flatten(boxes), anchors, nms_topk=20
        )
        rows = F.concat(
            F.max(scores, axis=-1, keepdims=True),
            F.broadcast_add(boxes, F.slice_like(shift, boxes, axes=(1,))),
            dim=-1,
        )
        return (
            found,
            F.contrib.box_nms(rows, overlap_thresh=0.4, coord_start=1, score_index=0, topk=10),
            anchors,
        )


class Attention(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.query, self.key, self.value = [
                nn.Dense(8, flatten=False, use_bias=bias) for bias in (True, False, True)
            ]
            self.norm, self.prelu, self.gelu = nn.LayerNorm(), nn.PReLU(), nn.GELU()

    def hybrid_forward(self, F, x):
        weights = F.softmax(
            F.batch_dot(F.contrib.div_sqrt_dim(self.query(x)), self.key(x), transpose_b=True)
        )
        y = self.norm(F.batch_dot(weights, self.value(x)) + x)
        return (
            self.gelu(y) + self.prelu(y),
            F.slice(y, begin=(0, 1), end=(None, 4), step=(1, 2)),
            F.topk(y, k=2, ret_typ="both")[0],
        )


class Loops(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        out, states = F.contrib.foreach(
            lambda a, s: (a + s[0], [a * s[0]]),
            x,
            [F.ones_like(F.slice_axis(x, axis=0, begin=0, end=1).reshape((-1,)))],
        )
        branch = F.contrib.cond(F.sum(x) > 0, lambda: x * 2, lambda: x - 1)
        return out, states[0], branch


block(
    "resnet",
    ResNetV1(BasicBlockV1, [1, 1], [4, 4, 8], classes=5, thumbnail=True),
    random.randn(2, 3, 12, 12),
)
block("lstm", LanguageModel(), random.randint(0, 20, (4, 3)))
block("detector", Detector(), random.randn(2, 3, 16, 16))
block("attention", Attention(), random.randn(2, 5, 8))
block("loops", Loops(), random.randn(4, 3))

data = mx.sym.Variable("data")
net = mx.sym.FullyConnected(
    mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=6, name="fc1"), act_type="tanh"),
    num_hidden=3,
    name="fc2",
)
module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
batches = mx.io.NDArrayIter(random.randn(12, 4).astype("float32"), random.randint(0, 3, 12), 4)
module.fit(batches, num_epoch=2, initializer=mx.init.Xavier())
module.save_checkpoint("module", 2)
mx.nd.save("module.nd", {"x0": batches.data[0][1], "o0": module.predict(batches)})

# Continues training the checkpoint with momentum: saves the states after one step, and the
# parameters before and after a second one.
module = mx.mod.Module.load("module", 2)
batch = mx.io.DataBatch([mx.nd.load("module.nd")["x0"][:4]], [mx.nd.array([0, 1, 2, 0])])
module.bind([("data", (4, 4))], [("softmax_label", (4,))])
module.init_optimizer(optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
saved = {}
for step in "ab":
    module.forward_backward(batch)
    module.update()
    saved.update({f"{step}:{name}": array.copy() for name, array in module.get_params()[0].items()})
    if step == "a":
        module.save_optimizer_states("momentum.states")
mx.nd.save("momentum.nd", saved)
