"""`net.cast(dtype)`: parameters, constants, and arrays in attributes."""

import collections

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.devices import on

Tables = collections.namedtuple("Tables", "sin cos")


class Block(gluon.HybridBlock):
    """A block that uses one of its tables, as `mode` says."""

    def __init__(self, mode, **kwargs):
        super().__init__(**kwargs)
        self.mode = mode
        self.dense = nn.Dense(4, in_units=4, flatten=False)
        self.constant = self.params.get_constant("constant", np.full((4, 4), 0.5, "float32"))
        self.index = self.params.get_constant("index", nd.array([3, 2, 1, 300], dtype="int32"))
        self.mask = nd.array(np.triu(np.full((4, 4), -8.0, "float32"), 1))
        self.masks = [self.mask, {"again": self.mask}]
        self.tables = Tables(nd.ones((4, 4)), nd.ones((4, 4)))
        self.ids = nd.array([0, 1, 2, 3], dtype="int32")

    def hybrid_forward(self, F, x, constant, index):
        y = self.dense(x)
        if self.mode == "constant":
            return y + constant
        if self.mode == "mask":
            return y + self.mask
        if self.mode == "list":
            return y + self.masks[0] * self.masks[1]["again"]
        if self.mode == "named tuple":
            return y * self.tables.sin + self.tables.cos
        if self.mode == "index":
            return F.take(y, F.broadcast_add(self.ids, index), mode="clip")
        return y + F.ones((4, 4))  # mode "created"


MODES = ["constant", "mask", "list", "named tuple", "index"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("form", ["eager", "hybridized", "pipelined"])
@pytest.mark.parametrize("mode", MODES)
def test_tables_are_cast_with_the_block(mode, form, dtype):
    net = nn.HybridSequential()
    net.add(Block(mode), nn.Dense(4, in_units=4, flatten=False))
    net.initialize(mx.init.Constant(0.5))
    if form == "pipelined":
        net.place({"0": on(0), "1": on(1)}, verbose=False)
        net[0].mask = net[0].mask.as_in_context(on(0))
        net.hybridize(pipeline=mx.parallel.Pipeline(micro_batches=1))
    else:
        net.hybridize(form == "hybridized")
    x = nd.arange(16).reshape((4, 4)) / 16
    expected = net(x).asnumpy()
    net.cast(dtype)
    found = net(x.astype(dtype))
    assert np.dtype(found.dtype) == np.dtype(nd.ones(1, dtype=dtype).dtype)
    np.testing.assert_allclose(found.astype("float32").asnumpy(), expected, rtol=2e-2)
    net.cast("float32")
    assert net(x).dtype == np.float32


def test_integer_tables_keep_their_dtype():
    net = Block("index")
    net.initialize()
    net.cast("bfloat16")
    assert net.index.dtype == net.ids.dtype == np.int32
    assert net.index.data().asnumpy().tolist() == [3, 2, 1, 300]
    net.cast("int8")
    assert net.index.data().dtype == np.int8 and net.mask.dtype != np.int8


def test_array_of_several_blocks_is_cast_once():
    mask = nd.ones((4, 4))
    net = nn.HybridSequential()
    net.add(Block("mask"), Block("mask"))
    for block in net:
        block.mask = mask
    net.cast("float16")
    assert net[0].mask is net[1].mask and net[0].mask.dtype == np.float16
    assert mask.dtype == np.float32


def test_array_of_blocks_with_different_dtypes_is_cast_to_each():
    class Precise(Block):
        def cast(self, dtype):
            super().cast("float32")

    mask = nd.ones((4, 4), dtype="float64")
    net = nn.HybridSequential()
    net.add(Precise("mask"), Block("mask"))
    for block in net:
        block.mask = mask
    net.cast("float16")
    assert [block.mask.dtype for block in net] == [np.float32, np.float16]


def test_lists_that_contain_themselves_are_cast():
    net = Block("mask")
    net.masks.append(net.masks)
    net.cache = {"mask": net.mask}
    net.cache["self"] = net.cache
    net.cast("float16")
    assert net.masks[0].dtype == net.masks[1]["again"].dtype == np.float16
    assert net.masks[2] is net.masks and net.cache["mask"] is net.mask


def test_variable_of_the_program_is_not_cast():
    net = Block("mask")
    net.mask.attach_grad()
    net.cast("float16")
    assert net.mask.dtype == np.float32


def test_block_that_overrides_cast_keeps_its_tables():
    class Precise(Block):
        def cast(self, dtype):
            self.dense.cast(dtype)

    net = Precise("mask")
    net.cast("float16")
    assert net.mask.dtype == np.float32 and net.dense.weight.dtype == "float16"


def test_gradients_flow_past_a_cast_table():
    net = Block("mask")
    net.initialize()
    net.cast("float64")
    x = nd.ones((4, 4), dtype="float64")
    with autograd.record():
        net(x).backward()
    assert net.dense.bias.grad().asnumpy().tolist() == [4] * 4


@pytest.mark.parametrize("hybridize", [False, True])
def test_error_for_an_array_made_in_the_forward_pass_names_its_dtype(hybridize):
    net = Block("created")
    net.initialize()
    net.cast("bfloat16")
    net.hybridize(hybridize)
    with pytest.raises(
        mx.MXNetError, match=r"bfloat16.*not float32.*create it with dtype=x\.dtype"
    ):
        net(nd.ones((4, 4), dtype="bfloat16"))
