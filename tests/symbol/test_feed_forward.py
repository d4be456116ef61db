"""`mx.model.FeedForward`, the training loop that preceded modules."""

import os
import warnings

import numpy as np
import pytest

import mpgluon as mx
from mpgluon.model import FeedForward
from support.calls import raises

pytestmark = pytest.mark.filterwarnings("ignore:mx.model.FeedForward is deprecated")


def network():
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="first")
    x = mx.sym.BatchNorm(mx.sym.relu(x), name="norm")
    x = mx.sym.FullyConnected(x, num_hidden=2, name="second")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def points(count=64):
    x = np.random.RandomState(0).uniform(-1, 1, (count, 2)).astype("float32")
    return x, (x[:, 0] > x[:, 1]).astype("float32")


def test_feed_forward_learns_from_arrays():
    mx.random.seed(1)
    np.random.seed(1)
    x, y = points()
    epochs = []
    model = FeedForward(
        network(),
        num_epoch=20,
        learning_rate=0.5,
        numpy_batch_size=16,
        initializer=mx.init.Xavier(),
    )
    model.fit(
        x,
        y[:, None],
        eval_data=(list(x), list(y)),
        epoch_end_callback=lambda epoch, *_: epochs.append(epoch),
    )
    assert epochs == list(range(20))
    assert set(model.aux_params) == {"norm_moving_mean", "norm_moving_var"}
    data = mx.io.NDArrayIter(x, y, 10)
    assert model.score(data) > 0.9
    predicted, seen, labels = model.predict(data, return_data=True)
    assert predicted.shape == (64, 2)
    np.testing.assert_array_equal(seen, x)
    np.testing.assert_array_equal(labels, y)
    np.testing.assert_array_equal(predicted, model.predict(mx.nd.array(x)))
    assert model.predict(data, num_batch=2).shape == (20, 2)
    assert "softmax" in repr(model)


@pytest.mark.parametrize("ctx", [None, [mx.cpu(0), mx.cpu(1)]])
def test_feed_forward_equals_a_module(ctx):
    x, y = points()
    first = {"first_weight": mx.nd.array(np.random.RandomState(1).randn(8, 2) / 4)}
    options = {"learning_rate": 0.1, "momentum": 0.9}

    def data():
        return mx.io.NDArrayIter(x, y, 16)

    mx.random.seed(7)
    model = FeedForward.create(
        network(), data(), ctx=ctx, num_epoch=2, arg_params=dict(first), **options
    )
    mx.random.seed(7)
    module = mx.mod.Module(network(), context=ctx or mx.cpu(0))
    module.fit(
        data(),
        num_epoch=2,
        arg_params=dict(first),
        allow_missing=True,
        optimizer_params=options,
        initializer=mx.init.Uniform(0.01),
    )
    for name, value in module.get_params()[0].items():
        np.testing.assert_array_equal(value.asnumpy(), model.arg_params[name].asnumpy())


def test_feed_forward_resumes_from_a_checkpoint(tmp_path):
    x, y = points()
    model = FeedForward.create(network(), x, y, num_epoch=2)
    prefix = os.path.join(str(tmp_path), "net")
    model.save(prefix)
    again = FeedForward.load(prefix, 2, num_epoch=3)
    assert again.begin_epoch == 2
    np.testing.assert_array_equal(model.predict(x), again.predict(x))
    again.fit(x, y)
    assert (again.predict(x) != model.predict(x)).any()


def test_feed_forward_supports_epoch_size_and_buckets():
    x, y = points()
    batches = []
    FeedForward.create(
        network(),
        mx.io.NDArrayIter(x, y, 16),
        num_epoch=2,
        epoch_size=7,
        batch_end_callback=lambda param: batches.append(param.nbatch),
    )
    assert batches == [*range(7), *range(7)]
    data = mx.io.NDArrayIter(x, y, 16)
    data.default_bucket_key = 2
    for batch in (data,):
        batch.bucket_key = 2
    keys = []

    def generate(key):
        keys.append(key)
        return network()

    class Keyed(mx.io.ResizeIter):
        default_bucket_key = 2

        def next(self):
            batch = super().next()
            batch.bucket_key = 2
            return batch

    model = FeedForward(generate, num_epoch=1)
    model.fit(Keyed(mx.io.NDArrayIter(x, y, 16), 4))
    assert set(keys) == {2} and "second_weight" in model.arg_params


def test_invalid_feed_forward_arguments_raise():
    x, y = points(8)
    with pytest.warns(DeprecationWarning, match=r"use mx\.mod\.Module"):
        model = FeedForward(network(), num_epoch=1)
    for arguments, error, message in (
        ((x,), ValueError, "y must be given"),
        ((x, list(y)), TypeError, "y must be an array"),
        ((x, y[:4]), ValueError, "X has 8 rows, but y has 4"),
        ((x, x), ValueError, "one number for each row"),
        ((list(x), y), TypeError, "X must be a DataIter"),
        ((x, y, x), TypeError, "eval_data must be"),
        ((x, y, (None, y)), ValueError, "has no data"),
    ):
        raises(error, message, lambda: model.fit(*arguments))
    raises(mx.MXNetError, "no parameters yet; call fit", lambda: model.predict(x))
    raises(AssertionError, "symbol must be a Symbol", lambda: FeedForward(3))
    others = {"other": mx.nd.zeros(2)}
    with pytest.raises(ValueError, match="the symbol has no other; set allow_extra_params"):
        FeedForward(network(), arg_params=others, num_epoch=1).fit(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = FeedForward(network(), arg_params=others, num_epoch=1, allow_extra_params=True)
    model.fit(x, y)
    assert "other" not in model.arg_params
