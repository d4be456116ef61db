"""Language models with parameters of mx.np: the bits and tokens of mx.nd."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, nd, npx
from mpgluon.gluon.model_zoo import text
from support.compare import same_bits
from support.networks import DECODERS, PROMPTS, decoder

TOKENS = np.array([[1, 2, 3, 4, 5], [3, 4, 5, 6, 7]])
WAYS = {
    "greedy": {},
    "drawn": {"temperature": 1.0, "seed": 3, "top_k": 5},
    "beams": {"num_beams": 3},
    "draft": {"draft": 2},
    "penalty": {"repetition_penalty": 1.3},
}


@pytest.fixture(autouse=True)
def _off():
    yield
    npx.reset_np()


def network(name, numpy):
    (npx.set_np if numpy else npx.reset_np)()
    mx.random.seed(1)
    return decoder(name)


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_decoders_compute_the_bits_of_nd(name):
    results = []
    for numpy in (False, True):
        net = network(name, numpy)
        tokens = nd.array(TOKENS, dtype="int32")
        tokens = tokens.as_np_ndarray() if numpy else tokens
        net.hybridize()
        with autograd.record():
            scores = net(tokens)
            loss = (scores * scores).mean()
        loss.backward()
        assert type(scores) is (mx.np.ndarray if numpy else nd.NDArray)
        params = net.collect_params().values()
        arrays = [scores, *[param.grad() for param in params if param.grad_req != "null"]]
        results.append([array.asnumpy() for array in arrays])
    same_bits(*results)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", [False, True], ids=["nd mode", "np mode"])
def test_generated_tokens_are_those_of_nd(way, mode):
    expected = text.generate(network("llama", False), PROMPTS, max_new=6, **WAYS[way])
    net = network("llama", True)
    net.hybridize()
    (npx.set_np if mode else npx.reset_np)()
    assert text.generate(net, PROMPTS, max_new=6, **WAYS[way]) == expected
    assert mx.is_np_array() is mode
    if way == "greedy":
        stream = text.generate(net, PROMPTS, max_new=6, stream=True)
        for _ in range(3):
            next(stream)
            assert mx.is_np_array() is mode
        stream.close()
