"""A block built from a function."""

import mpgluon as mx
from mpgluon import gluon


class Function(gluon.HybridBlock):
    """A block of a function ``f(F, *arrays)`` that may use its Dense and Dropout layers."""

    def __init__(self, f, ctx=None):
        super().__init__()
        self.f = f
        with self.name_scope():
            self.dense = gluon.nn.Dense(4, in_units=4, flatten=False)
            self.late = gluon.nn.Dense(3, flatten=False)
            self.drop = gluon.nn.Dropout(0.4)

    def forward(self, x, *args):
        return self.f(self, mx.nd, x, *args)
