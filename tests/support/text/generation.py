"""Small language models, prompts and references for the tests of generation."""

import mpgluon as mx
from mpgluon import nd
from mpgluon.gluon.model_zoo import text
from support.devices import on

NETWORKS = {
    "llama": dict(rotary={}, kv_heads=2),
    "llama3": dict(
        rotary=dict(
            scaling="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_length=16,
        )
    ),
    "gpt2": dict(norm="layer", positions=100, gated=False, activation="gelu_tanh", tied=True),
    "gemma": dict(
        rotary={},
        window=[4, 0],
        softcap=5.0,
        head_softcap=3.0,
        embed_scale=4.0,
        norm_offset=1.0,
        sandwich=True,
        qk_norm=True,
    ),
    "mixtral": dict(rotary={}, experts=dict(hidden=48, experts=4, k=2)),
}
PROMPTS = [[1, 5, 3, 9, 11, 2, 7, 8, 1, 4, 3, 2, 6, 6], [7, 2, 5]]
DRAWN = dict(temperature=0.9, top_k=20, top_p=0.9, repetition_penalty=1.3)


def network(name="llama", seed=3):
    mx.random.seed(seed)
    net = text.Decoder(
        97, units=32, layers=2, heads=4, hidden=48, deviation=0.5, **NETWORKS[name], prefix="net_"
    )
    net.initialize(ctx=on(0))
    return net


def without_cache(net, prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        scores = net(nd.array([tokens], dtype="int32", ctx=on(0)))
        tokens.append(int(scores[0, -1].asnumpy().argmax()))
    return tokens[len(prompt) :]
