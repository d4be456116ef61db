"""Output ops with a loss. Files are for inference, so only their predictions are exported."""

from __future__ import annotations

from .._table import exports


@exports("SoftmaxOutput", "Softmax", unread=(1,))
def softmax_output(g, call, x):
    if call["multi_output"] or x.ndim == 2:
        return g.Softmax(x, axis=1)
    if call["preserve_shape"]:
        return g.Softmax(x, axis=x.ndim - 1)
    return g.reshape(g.Softmax(g.Flatten(x, axis=1), axis=1), x.shape, ())


@exports("LinearRegressionOutput MAERegressionOutput SVMOutput", "nothing", unread=(1,))
def prediction(g, call, x):
    return x


@exports("LogisticRegressionOutput", "Sigmoid", unread=(1,))
def logistic(g, call, x):
    return g.Sigmoid(x)


@exports("softmax_cross_entropy", "LogSoftmax, GatherElements, ReduceSum")
def softmax_cross_entropy(g, call, x, label):
    rows = g.LogSoftmax(x, axis=1)
    index = g.Unsqueeze(g.cast(label, "int64"), [1])
    picked = g.GatherElements(rows, index, axis=1)
    return g.Neg(g.Reshape(g.ReduceSum(picked, [0, 1], keepdims=0), [1]))


@exports("IdentityAttachKLSparseReg", "nothing", unread=(1,))
def sparse_regularized(g, call, x):
    return x
