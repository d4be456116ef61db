"""Loads weights of Hugging Face onto the devices of two ranks. Prints the scores, and the number of
arrays that each rank has read.

    mpirun -n 2 python huggingface.py FOLDER
"""

import sys

import mpgluon as mx
from mpgluon import nd
from mpgluon._internal import ranks
from mpgluon.gluon.model_zoo import text
from mpgluon.ndarray import _safetensors

folder = sys.argv[1]
read, read_into = _safetensors.File.read, _safetensors.File.read_into
names = set()


def recorded(self, name, ranges=None):
    names.add(name)
    return read(self, name, ranges)


def recorded_rows(self, name, begin, end, array, row):
    if array.context.rank == ranks.own():  # otherwise, nothing is read
        names.add(name)
    return read_into(self, name, begin, end, array, row)


_safetensors.File.read = recorded
_safetensors.File.read_into = recorded_rows
first, second = mx.cpu(0, rank=0), mx.cpu(0, rank=1)
halves = {"embed": first, r"layers\.[01]": first, r"layers\.[23]": second, "norm|head": second}
net = text.from_pretrained(folder, ctx=halves)
tokens = nd.array([[1, 5, 3, 2]], dtype="int32", ctx=first)
scores = mx.parallel.fetch(net(tokens)).asnumpy()
print("scores", scores.tobytes().hex(), flush=True)
print("read", len(names), flush=True)
try:
    net.save_parameters(folder, format="huggingface")
except mx.base.MXNetError as error:
    print("error", error, flush=True)
