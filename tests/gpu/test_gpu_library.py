"""Ops in C with GPU functions (`mx.library`)."""

import os

import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from support.compare import same_bits
from support.processes import compiled

pytestmark = [
    pytest.mark.skipif(not mx.num_gpus(), reason="needs a GPU"),
    pytest.mark.skipif(
        "MPGLUON_CUDA_LIBRARY" not in os.environ, reason="its library looks for the stand-in's"
    ),
]


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory):
    if "tests_mix" not in _core.ops():
        mx.library.load(compiled(tmp_path_factory.mktemp("library") / "libtests.so"), verbose=False)


def test_gpu_function_of_a_library_op_runs_on_the_stream():
    for card in range(min(mx.num_gpus(), 2)):
        x = nd.random.normal(shape=(3, 4), ctx=mx.gpu(card))
        y = nd.contrib.tests_copy(x * 2)
        assert y.context == mx.gpu(card)
        same_bits(y.asnumpy(), x.asnumpy() * 2)


class Net(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        for _ in range(3):
            x = F.contrib.tests_copy(F.softmax(x)) + 1
        return x


def test_captured_library_op_is_replayed_on_new_values():
    net = Net()
    net.hybridize()
    for seed in range(12):  # the segment is captured in one of the first calls
        mx.random.seed(seed)
        x = nd.random.normal(shape=(3, 4), ctx=mx.gpu(0))
        same_bits(net(x).asnumpy(), Net()(x).asnumpy())


def test_library_op_without_gpu_function_raises():
    x = nd.ones((2,), ctx=mx.gpu(0))
    with pytest.raises(
        NotImplementedError,
        match=r"tests_mix cannot run on gpu\(0\): its library .*"
        r"libtests.so has no cuda_forward; move .*mx.cpu",
    ):
        nd.tests_mix(x, x)
    x.attach_grad()
    with autograd.record():
        y = nd.contrib.tests_copy(x)
    with pytest.raises(mx.MXNetError, match="_contrib_tests_copy: has no gradient"):
        y.backward()
