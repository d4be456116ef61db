"""Functions of mx.npx that are ops: layers, and functions that NumPy lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import numpy as _np
from .._core import get_op, waitall
from .._internal import graph_breaks
from ..context import Context, gpu_memory_info
from ..ndarray.contrib import cond, foreach, while_loop
from ..numpy._arguments import check as _check, real_of as _real_of
from ..numpy._table import make

if TYPE_CHECKING:
    from .._core import ndarray

OPS = """
activation -> Activation
>>> npx.activation(np.array([-1, 2]), act_type='relu')
array([0., 2.])

arange_like -> _contrib_arange_like
>>> npx.arange_like(np.zeros((2, 2)))
array([[0., 1.],
       [2., 3.]])

batch_dot -> batch_dot
>>> npx.batch_dot(np.ones((2, 1, 3)), np.ones((2, 3, 1))).shape
(2, 1, 1)

batch_flatten -> Flatten
>>> npx.batch_flatten(np.zeros((2, 3, 4))).shape
(2, 12)

batch_norm -> BatchNorm
>>> x, one, zero = np.array([[1], [3]]), np.ones(1), np.zeros(1)
>>> npx.batch_norm(x, one, zero, np.zeros(1), np.ones(1), eps=0)
array([[1.],
       [3.]])

broadcast_like -> broadcast_like
>>> npx.broadcast_like(np.array([[1], [2]]), np.zeros((2, 2)))
array([[1., 1.],
       [2., 2.]])

cast -> Cast
>>> npx.cast(np.array([1.5, 2]), dtype='int32')
array([1, 2], dtype=int32)

convolution -> Convolution
>>> x, weight = np.ones((1, 1, 3, 3)), np.ones((1, 1, 2, 2))
>>> npx.convolution(x, weight, kernel=(2, 2), num_filter=1, no_bias=True)[0, 0]
array([[4., 4.],
       [4., 4.]])

deconvolution -> Deconvolution
>>> x, weight = np.ones((1, 1, 1, 1)), np.ones((1, 1, 2, 2))
>>> npx.deconvolution(x, weight, kernel=(2, 2), num_filter=1)[0, 0]
array([[1., 1.],
       [1., 1.]])

digamma -> digamma
>>> np.around(npx.digamma(np.array([1, 2])), 3)
array([-0.577,  0.423])

dropout -> Dropout
>>> npx.dropout(np.array([1, 2]))
array([1., 2.])

embedding -> Embedding
>>> weight = np.array([[1, 2], [3, 4]])
>>> npx.embedding(np.array([1, 0]), weight, input_dim=2, output_dim=2)
array([[3., 4.],
       [1., 2.]])

erf -> erf
>>> np.around(npx.erf(np.array([0, 1])), 4)
array([0.    , 0.8427])

erfinv -> erfinv
>>> np.around(npx.erfinv(np.array([0, 0.5])), 4)
array([0.    , 0.4769])

fully_connected -> FullyConnected
>>> weight = np.array([[1, 2], [3, 4]])
>>> npx.fully_connected(np.array([[1, 1]]), weight, num_hidden=2, no_bias=True)
array([[3., 7.]])

gamma -> gamma
>>> npx.gamma(np.array([1, 5]))
array([ 1., 24.])

gammaln -> gammaln
>>> np.around(npx.gammaln(np.array([1, 5])), 3)
array([0.   , 3.178])

gather_nd -> gather_nd
>>> npx.gather_nd(np.array([[1, 2], [3, 4]]), np.array([[0, 1], [1, 0]]))
array([2., 3.])

gelu -> gelu
>>> np.around(npx.gelu(np.array([-1, 2])), 3)
array([-0.159,  1.954])

group_norm -> GroupNorm
>>> npx.group_norm(np.array([[[1], [3]]]), np.ones(1), np.zeros(1), eps=0)
array([[[-1.],
        [ 1.]]])

instance_norm -> InstanceNorm
>>> npx.instance_norm(np.array([[[1, 3]]]), np.ones(1), np.zeros(1), eps=0)
array([[[-1.,  1.]]])

l2_normalization -> L2Normalization
>>> np.around(npx.l2_normalization(np.array([[3, 4]])), 3)
array([[0.6, 0.8]])

layer_norm -> LayerNorm
>>> npx.layer_norm(np.array([[1, 3]]), np.ones(2), np.zeros(2), eps=0)
array([[-1.,  1.]])

leaky_relu -> LeakyReLU
>>> npx.leaky_relu(np.array([-1, 2]), slope=0.5)
array([-0.5,  2. ])

log_softmax -> log_softmax
>>> np.around(npx.log_softmax(np.array([0, 0])), 3)
array([-0.693, -0.693])

multibox_detection -> _contrib_MultiBoxDetection
>>> scores = np.array([[[0.1], [0.9]]])
>>> anchors = np.array([[[0, 0, 0.5, 0.5]]])
>>> npx.multibox_detection(scores, np.zeros((1, 4)), anchors).shape
(1, 1, 6)

multibox_prior -> _contrib_MultiBoxPrior
>>> npx.multibox_prior(np.zeros((1, 3, 2, 2)), sizes=(0.5,)).shape
(1, 4, 4)

multibox_target -> _contrib_MultiBoxTarget
>>> anchors = np.array([[[0, 0, 0.5, 0.5]]])
>>> labels = np.array([[[0, 0, 0, 0.5, 0.5]]])
>>> npx.multibox_target(anchors, labels, np.zeros((1, 2, 1)))[2]
array([[1.]])

norm -> norm
>>> npx.norm(np.array([[3, 4]]), axis=1)
array([5.])

one_hot -> one_hot
>>> npx.one_hot(np.array([1, 0]), depth=3)
array([[0., 1., 0.],
       [1., 0., 0.]])

pick -> pick
>>> npx.pick(np.array([[1, 2], [3, 4]]), np.array([0, 1]))
array([1., 4.])

pooling -> Pooling
>>> npx.pooling(np.array([[[1, 3, 2, 5]]]), kernel=2, stride=2)
array([[[3., 5.]]])

relu -> relu
>>> npx.relu(np.array([-1, 2]))
array([0., 2.])

reshape(a, newshape, reverse=False, order:_='C') -> _reshape_codes
The same elements in another shape: -1 is inferred, -2 keeps a dimension, -3 drops one of size 1, -4
keeps all the rest, -5 merges two, and -6 splits one into the two numbers after it.
>>> npx.reshape(np.zeros((2, 3, 4)), (-2, -5)).shape
(2, 12)
>>> npx.reshape(np.zeros((6, 4)), (-6, 2, -1, -4)).shape
(2, 3, 4)

reshape_like -> reshape_like
>>> npx.reshape_like(np.array([1, 2, 3, 4]), np.zeros((2, 2)))
array([[1., 2.],
       [3., 4.]])

rnn -> RNN
>>> x, state = np.zeros((2, 1, 3)), np.zeros((1, 1, 4))
>>> npx.rnn(x, np.zeros(36), state, mode='rnn_relu', state_size=4, num_layers=1).shape
(2, 1, 4)

roi_pooling -> ROIPooling
>>> x, rois = np.arange(4).reshape((1, 1, 2, 2)), np.array([[0, 0, 0, 1, 1]])
>>> npx.roi_pooling(x, rois, pooled_size=(1, 1), spatial_scale=1.0)
array([[[[3.]]]])

sequence_mask -> SequenceMask
>>> npx.sequence_mask(np.ones((3, 2)), np.array([1, 2]), use_sequence_length=True)
array([[1., 1.],
       [0., 1.],
       [0., 0.]])

shape_array -> shape_array
>>> npx.shape_array(np.zeros((2, 3)))
array([2, 3], dtype=int64)

sigmoid -> sigmoid
>>> np.around(npx.sigmoid(np.array([0, 1])), 3)
array([0.5  , 0.731])

slice -> slice
>>> npx.slice(np.array([1, 2, 3, 4]), begin=(1,), end=(3,))
array([2., 3.])

smooth_l1(data, scalar=1, out=None, name=None) -> smooth_l1
>>> npx.smooth_l1(np.array([0.5, 2]))
array([0.125, 1.5  ])

softmax -> softmax
>>> npx.softmax(np.array([0, 0]))
array([0.5, 0.5])

stop_gradient -> BlockGrad
>>> npx.stop_gradient(np.array([1, 2]))
array([1., 2.])

topk -> topk
>>> npx.topk(np.array([3, 1, 2]), k=2)
array([0., 2.])
"""

_MADE = make("mpgluon.numpy_extension", OPS, {})
globals().update(_MADE)

if TYPE_CHECKING:
    from ._named import log_softmax, softmax

_scatter_set_nd = get_op("_npi__scatter_set_nd")
_scatter_add = get_op("_npi__backward_gather_nd")

__all__ = [
    *_MADE,
    "Context",
    "cond",
    "constraint_check",
    "foreach",
    "gpu_memory_info",
    "index_add",
    "index_update",
    "masked_log_softmax",
    "masked_softmax",
    "nonzero",
    "waitall",
    "while_loop",
]


def masked_softmax(
    data: ndarray, mask: ndarray, axis: int = -1, temperature: float | None = None
) -> ndarray:
    """The softmax over the elements whose mask is true; the other results are 0.

    Examples
    --------
    >>> npx.masked_softmax(np.array([1, 1, 5]), np.array([1, 1, 0]))
    array([0.5, 0.5, 0. ])
    """
    _check("masked_softmax", data=data, mask=mask)
    mask = _np.not_equal(mask, 0)
    return _np.where(mask, softmax(_hidden(data, mask), axis=axis, temperature=temperature), 0)


def masked_log_softmax(
    data: ndarray, mask: ndarray, axis: int = -1, temperature: float | None = None
) -> ndarray:
    """The logarithm of the softmax over the elements whose mask is true; the others are -inf.

    Examples
    --------
    >>> np.around(npx.masked_log_softmax(np.array([1, 1, 5]), np.array([1, 1, 0])), 3)
    array([-0.693, -0.693,   -inf])
    """
    _check("masked_log_softmax", data=data, mask=mask)
    mask = _np.not_equal(mask, 0)
    result = log_softmax(_hidden(data, mask), axis=axis, temperature=temperature)
    return _np.where(mask, result, -float("inf"))


def _hidden(data, mask):
    """Replaces elements whose mask is false by a number whose exponential is 0. Integers become
    float32."""
    data = _real_of(data)
    return _np.where(mask, data, -1e4 if data.dtype == "float16" else -1e18)


def nonzero(a: ndarray) -> ndarray:
    """The indices of the elements that are not 0, as the rows of an int64 matrix, in C order.

    ``np.nonzero`` returns the columns of the matrix.

    Examples
    --------
    >>> npx.nonzero(np.array([[0, 7], [1, 0]]))
    array([[0, 1],
           [1, 0]], dtype=int64)
    """
    return _np.argwhere(a)


def _spread(a, ind, val):
    """Returns the index array and the values as ops that write elements take them."""
    ind = ind.astype("int64", copy=False)
    shape = (*ind.shape[1:], *a.shape[ind.shape[0] :])
    return ind, _np.broadcast_to(val.astype(a.dtype, copy=False), shape)


def index_update(a: ndarray, ind: ndarray, val: ndarray) -> ndarray:
    """Returns a copy of `a` with ``copy[tuple(ind)] = val``.

    Parameters
    ----------
    a : ndarray
        The array.
    ind : ndarray
        Indices of shape (m, n): one row for each of the first m dimensions of `a`.
    val : ndarray
        The new numbers, broadcast to the selected part of `a`.

    Examples
    --------
    >>> npx.index_update(np.zeros(3), np.array([[0, 2]]), np.array([5, 6]))
    array([5., 0., 6.])
    """
    ind, val = _spread(a, ind, val)
    return _scatter_set_nd(a, val, ind, shape=a.shape)


def index_add(a: ndarray, ind: ndarray, val: ndarray) -> ndarray:
    """Returns a copy of `a` to which `val` is added at the indices, for each time they occur.

    Parameters
    ----------
    a : ndarray
        The array.
    ind : ndarray
        Indices of shape (m, n): one row for each of the first m dimensions of `a`.
    val : ndarray
        The numbers to add, broadcast to the selected part of `a`.

    Examples
    --------
    >>> npx.index_add(np.zeros(3), np.array([[0, 0]]), np.array([5, 6]))
    array([11.,  0.,  0.])
    """
    ind, val = _spread(a, ind, val)
    return a + _scatter_add(val, ind, shape=a.shape)


def constraint_check(x: ndarray, msg: str) -> ndarray:
    """Raises ValueError with `msg` unless all elements are true. Returns True as an array.

    A hybridized block is split at the check, which runs on the host.

    Examples
    --------
    >>> npx.constraint_check(np.array([1, 2]) > 0, "the numbers must be positive")
    array(True)
    """
    _check("constraint_check", x=x)
    if not x._traced:
        return _checked(x, msg)
    tracer = graph_breaks.current()
    if tracer is None:  # the trace only infers shapes
        return _np.all(x)
    result = ((), "bool", x.context, True)
    return tracer.host("constraint_check", lambda xs: [_checked(xs[0], msg)], [x], [result])[0]


def _checked(x, msg):
    result = _np.all(x)
    if not result.item():
        raise ValueError(msg)
    return result
