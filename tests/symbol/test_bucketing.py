"""Buckets share one set of parameters and the activation memory of one bucket; checkpoints of
buckets."""

import numpy as np
import pytest

import mpgluon as mx
from support.devices import on

DEVICES = {"lower": on(1), "upper": on(2)}
HIDDEN, WORDS, BATCH = 32, 50, 64


def generate(length):
    """Returns a language model over `length` steps on two devices."""
    lower, upper = mx.rnn.LSTMCell(HIDDEN, prefix="l0_"), mx.rnn.LSTMCell(HIDDEN, prefix="l1_")
    data, label = mx.sym.Variable("data"), mx.sym.Variable("softmax_label")
    with mx.AttrScope(ctx_group="lower"):
        embedded = mx.sym.Embedding(data, input_dim=WORDS, output_dim=HIDDEN, name="embed")
        outputs, _ = lower.unroll(length, embedded, merge_outputs=True)
    with mx.AttrScope(ctx_group="upper"):
        outputs, _ = upper.unroll(length, outputs, merge_outputs=True)
        scores = mx.sym.FullyConnected(
            mx.sym.reshape(outputs, shape=(-1, HIDDEN)), num_hidden=WORDS, name="out"
        )
        return (
            mx.sym.SoftmaxOutput(scores, mx.sym.reshape(label, shape=(-1,)), name="softmax"),
            ["data"],
            ["softmax_label"],
        )


def batch_of(length, seed=0):
    words = np.random.RandomState(seed).randint(0, WORDS, (BATCH, length + 1))
    return mx.io.DataBatch(
        [mx.nd.array(words[:, :-1])],
        [mx.nd.array(words[:, 1:])],
        bucket_key=length,
        provide_data=[("data", (BATCH, length))],
        provide_label=[("softmax_label", (BATCH, length))],
    )


def module_of(longest, **options):
    module = mx.mod.BucketingModule(
        generate, default_bucket_key=longest, context=on(0), group2ctxs=DEVICES, **options
    )
    module.bind([("data", (BATCH, longest))], [("softmax_label", (BATCH, longest))])
    mx.random.seed(0)
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer_params={"learning_rate": 0.1})
    return module


def step(module, batch):
    module.forward_backward(batch)
    module.update()


def in_use():
    mx.nd.waitall()
    return sum(mx.context.memory_stats(device)["in_use"] for device in (on(0), *DEVICES.values()))


@pytest.mark.slow
def test_buckets_share_memory():
    before = in_use()
    module = module_of(20)
    step(module, batch_of(20))
    one = in_use() - before
    for length in range(10, 20):
        step(module, batch_of(length))
    step(module, batch_of(20))
    many = in_use() - before
    assert len(module._buckets) == 11
    # Ten more buckets of about three quarters of the size: without sharing, their activations alone
    # would multiply the memory by more than eight.
    assert many < 1.1 * one, f"{one} bytes for one bucket, {many} for eleven"
    for executor in [one for bucket in module._buckets.values() for one in bucket._execs]:
        assert len(executor._call.compiled()) == 1
        assert (
            executor.arg_dict["out_weight"] is module._buckets[20]._execs[0].arg_dict["out_weight"]
        )
        assert (
            executor.grad_dict["out_weight"]
            is module._buckets[20]._execs[0].grad_dict["out_weight"]
        )


def test_bucket_computes_like_a_separate_module():
    module = module_of(8)
    for length in (8, 5, 8, 5):
        step(module, batch_of(length))
    symbol, data_names, label_names = generate(5)
    alone = mx.mod.Module(symbol, data_names, label_names, group2ctxs=DEVICES)
    alone.bind([("data", (BATCH, 5))], [("softmax_label", (BATCH, 5))])
    alone.init_params(arg_params=module.get_params()[0], aux_params={})
    batch = batch_of(5, seed=1)
    for one in (module, alone):
        one.forward(batch, is_train=False)
    assert np.array_equal(module.get_outputs()[0].asnumpy(), alone.get_outputs()[0].asnumpy())


def test_prepare_keeps_the_current_bucket():
    module = module_of(6)
    module.forward(batch_of(6), is_train=True)
    module.prepare(batch_of(3))
    assert 3 in module._buckets
    module.backward()
    module.update()
    assert module.get_outputs()[0].shape == (BATCH * 6, WORDS)


def test_bucketing_checkpoint_loads_with_sym_gen(tmp_path):
    prefix = str(tmp_path / "lm")
    module = module_of(6)
    for length in (6, 4):
        step(module, batch_of(length))
    module.save_checkpoint(prefix, 3)
    again = mx.mod.BucketingModule.load(
        prefix, 3, sym_gen=generate, default_bucket_key=6, group2ctxs=DEVICES
    )
    again.bind([("data", (BATCH, 6))], [("softmax_label", (BATCH, 6))])
    for length in (4, 6, 5):  # 5 is a new bucket
        for one in (module, again):
            one.forward(batch_of(length, seed=2), is_train=False)
        assert np.array_equal(module.get_outputs()[0].asnumpy(), again.get_outputs()[0].asnumpy())
    with pytest.raises(AssertionError, match="sym_gen is needed"):
        mx.mod.BucketingModule.load(prefix, 3, default_bucket_key=6)
    words = mx.mod.BucketingModule(lambda key: generate(3), default_bucket_key="three")
    words.bind([("data", (BATCH, 3))], [("softmax_label", (BATCH, 3))])
    words.init_params()
    with pytest.raises(TypeError, match="'three'"):
        words.save_checkpoint(prefix, 0)
