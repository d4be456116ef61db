"""Placement, meshes, pipelines, split layers and checkpoints on arrays of mx.np: the bits of
mx.nd."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd, npx

DATA = np.random.RandomState(6).uniform(-1, 1, (6, 4)).astype("float32")
DEVICES = [mx.cpu(0), mx.cpu(1)]


@pytest.fixture(autouse=True)
def _off():
    yield
    npx.reset_np()


class Grouped(gluon.HybridBlock):
    """Converts arrays to the other kind and back in a group."""

    def hybrid_forward(self, F, x):
        with mx.AttrScope(ctx_group="there"):
            plain = nd.tanh(x.as_nd_ndarray())
            assert type(plain) is nd.NDArray
            numpy = plain.as_np_ndarray() * 2
            assert type(numpy) is mx.np.ndarray
        return numpy


def test_arrays_change_their_kind_in_a_group_of_devices():
    x = mx.np.array(DATA)
    net = Grouped()
    net.hybridize(group2ctx={"there": mx.cpu(1)})
    y = net(x)
    assert type(y) is mx.np.ndarray
    np.testing.assert_array_equal(y.asnumpy(), (mx.np.tanh(x) * 2).asnumpy())
