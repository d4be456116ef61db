"""Names and options of other frameworks raise hints, and the code in a hint has their effect."""

import os
import re

import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon._internal import hints
from mpgluon.gluon import nn
from mpgluon.gluon.model_zoo import text
from support.devices import cpus_only
from support.hints import Double, scope_of
from support.networks import decoder
from support.paths import ROOT

pytestmark = cpus_only

# The object that lacks the names, and rows of name | code in its hint | condition on the result r |
# preparation. GPU names in the code run as cpu(1). A hint with several pieces of code has as many
# rows. Names in CAPITALS are NumPy arrays of the arrays x and y.
ARRAY = """
to | x.as_in_context(mx.gpu(0)) | r.context == mx.cpu(1)
to | x.astype('float16') | r.dtype == numpy.float16
cuda | x.as_in_context(mx.gpu(0)) | r.context == mx.cpu(1)
cpu | x.as_in_context(mx.cpu()) | r.context == mx.cpu(0)
device | x.context | r == mx.cpu(0)
numpy | x.asnumpy() | type(r) is numpy.ndarray
view | x.reshape(shape) | same(r, X.reshape(3, 2))
permute | x.transpose(axes) | same(r, X.T)
unsqueeze | x.expand_dims(axis) | r.shape == (2, 1, 3)
clone | x.copy() | same(r, X) and r is not x
t | x.T | same(r, X.T)
matmul | x @ y | same(r, X @ X.T) | y = x.T
matmul | x @ y | r.shape == (4, 2, 5) | x, y = nd.ones((4, 2, 3)), nd.ones((4, 3, 5))
mm | nd.dot(x, y) | same(r, X @ X.T) | y = x.T
bmm | nd.batch_dot(x, y) | r.shape == (4, 2, 5) | x, y = nd.ones((4, 2, 3)), nd.ones((4, 3, 5))
float | x.astype('float32') | r.dtype == numpy.float32 | x = x.astype('int32')
double | x.astype('float64') | r.dtype == numpy.float64
half | x.astype('float16') | r.dtype == numpy.float16
long | x.astype('int64') | r.dtype == numpy.int64
int | x.astype('int32') | r.dtype == numpy.int32
contiguous | x itself | x.T.asnumpy().flags.c_contiguous
dim | x.ndim | r == 2
numel | x.size | r == 6
requires_grad_ | x.attach_grad() | x.grad.shape == (2, 3)
requires_grad | x.attach_grad() | x.grad_req == 'write'
requires_grad | x.grad_req | r is None
zero_ | x[:] = 0 | same(x, 0 * X)
fill_ | x[:] = value | same(x, 0 * X + 7)
masked_fill | numpy.where(mask, value, x) | same(r, numpy.where(X > 2, 7, X))
masked_fill | numpy.where(mask, value, x) | r.shape == (4, 2, 3) | x = nd.ones((4, 2, 3))
masked_fill_ | x[:] = numpy.where(mask, value, x) | same(x, numpy.where(X > 2, 7, X))
std | numpy.std(x, axis, ddof=1) | same(r, X.std(1, ddof=1))
var | numpy.var(x, axis, ddof=1) | same(r, X.var(1, ddof=1))
any | (x != 0).sum() > 0 | bool(r) == (X != 0).any() | x[0, 0] = 0
all | (x == 0).sum() == 0 | bool(r) == (x.asnumpy() != 0).all() | x[0, 0] = 0
unsqueeze_ | x = x.expand_dims(axis) | x.shape == (2, 1, 3)
squeeze_ | x = x.squeeze(axis) | x.shape == (2,) | x = nd.ones((2, 1))
bool | x.astype('bool') | same(r, X != 0)
byte | x.astype('uint8') | r.dtype == numpy.uint8
type | x.astype(dtype) | r.dtype == numpy.int64
type_as | x.astype(y.dtype) | r.dtype == numpy.int32 | y = y.astype('int32')
bfloat16 | x.astype('bfloat16') | 'bfloat16' in str(r.dtype)
gather | nd.pick(x, index, axis) | same(r, [1, 6]) | index = nd.array([0, 2])
gather | nd.gather_nd(x, nd.stack(rows, columns)) | same(r, [2, 6]) | \
rows, columns = nd.array([0, 1]), nd.array([1, 2])
scatter | nd.scatter_nd(values, indices, shape) | same(r, [[0, 9], [0, 0], [8, 0]]) | \
indices = nd.array([[0, 2], [1, 0]])
scatter_ | x[rows, columns] = values | same(x, [[1, 9, 3], [4, 5, 8]])
index_select | x.take(indices, axis=axis) | same(r, X[:, [2, 0]]) | indices = nd.array([2, 0])
masked_select | nd.contrib.boolean_mask(x.reshape(-1), mask.reshape(-1)) | same(r, X[X > 2])
expand | x.broadcast_to(shape) | r.shape == shape | shape = (4, 2, 3)
expand_as | x.broadcast_like(y) | r.shape == y.shape | x = nd.ones((1, 3))
view_as | x.reshape_like(y) | r.shape == (3, 2) | y = y.T
repeat_interleave | x.repeat(repeats, axis=axis) | same(r, X.repeat(2, axis=1))
chunk | x.split(num_outputs, axis=axis) | [one.shape for one in r] == [(2, 1)] * 3
unbind | x.split(num_outputs, axis=axis, squeeze_axis=True) | [one.shape for one in r] == [(2,)] * 3
narrow | x.slice_axis(axis, start, start + length) | same(r, X[:, 1:3]) | start, length = 1, 2
cat | nd.concat(x, y, dim=axis) | same(r, numpy.concatenate([X, Y], 1))
amax | x.max(axis) | same(r, X.max(1))
amin | x.min(axis) | same(r, X.min(1))
cumsum | nd.cumsum(x, axis) | same(r, X.cumsum(1))
logsumexp | m + nd.log(nd.exp(x - m).sum(axis, keepdims=True)) | \
same(r, numpy.log(numpy.exp(X).sum(1, keepdims=True))) | m = x.max(axis, keepdims=True)
logsumexp | m = x.max(axis, keepdims=True) | m.shape == (2, 1)
nelement | x.size | r == 6
ravel | x.reshape(-1) | r.shape == (6,)
isnan | nd.contrib.isnan(x) | same(r, [0, 1]) | x = nd.array([1, numpy.nan])
isinf | nd.contrib.isinf(x) | same(r, [0, 1]) | x = nd.array([1, numpy.inf])
isfinite | nd.contrib.isfinite(x) | same(r, [1, 0]) | x = nd.array([1, numpy.inf])
is_contiguous | x itself | x.T.asnumpy().flags.c_contiguous
copy_ | y.copyto(x) | same(x, Y)
copy_ | x[:] = y | same(x, Y)
uniform_ | nd.random.uniform(low, high, shape=x.shape, out=x) | ((x >= 2) * (x < 3)).min().item()
normal_ | nd.random.normal(loc, scale, shape=x.shape, out=x) | abs(x.mean().item() - 9) < 1
clamp | x.clip(a_min, a_max) | same(r, X.clip(2, 4))
clamp | nd.maximum(x, a_min) | same(r, X.clip(2))
clamp_ | x[:] = x.clip(a_min, a_max) | same(x, X.clip(2, 4))
to_device | x.as_in_context(mx.gpu(0)) | r.context == mx.cpu(1)
new_zeros | nd.zeros(shape, ctx=x.context, dtype=x.dtype) | same(r, numpy.zeros((3, 2)))
detach_ | x = x.detach() | same(x, X)
data | x itself | same(x, X)
data | x.detach() | same(r, X)
triu | numpy.triu(x) | same(r, numpy.triu(X))
tril | numpy.tril(x) | same(r, numpy.tril(X))
gelu | nd.gelu(x) | abs(r[0, 0].item() - 0.8413447) < 1e-6
nonzero | numpy.argwhere(x) | same(r, numpy.argwhere(X))
is_cuda | x.context.device_type == 'gpu' | r is False
grad_fn | autograd.get_symbol(x) | 'mul' in r.tojson() | x = recorded(lambda a: a * 2)[1]
retain_grad | autograd.grad(loss, [x]) | same(r[0], 3 + 0 * X) | \
x, loss = recorded(lambda a: a * 2, lambda b: b * 3)[1:]
register_hook | an autograd.Function | same(hooked(), [5])
abs_ | x[:] = x.abs() | same(x, X) | x = -x
unique | numpy.unique(x) | same(r, [1, 2]) | x = nd.array([2, 1, 2])
cumprod | numpy.cumprod(x, axis) | same(r, X.cumprod(1))
logical_and | nd.logical_and(x, y) | same(r, [0, 1]) | x, y = nd.array([1, 1]), nd.array([0, 1])
logical_or | nd.logical_or(x, y) | same(r, [1, 1]) | x, y = nd.array([1, 1]), nd.array([0, 1])
logical_not | nd.logical_not(x) | same(r, [0, 1]) | x = nd.array([1, 0])
neg | -x | same(r, -X)
remainder | x % y | same(r, X % Y)
remainder | x % y | same(r, [1, -1]) | x, y = nd.array([-3, 3]), nd.array([2, -2])
where | nd.where(condition, x, y) | same(r, numpy.where(X > 2, X, Y)) | condition = x > 2
clamp_min | nd.maximum(x, a_min) | same(r, X.clip(2))
clamp_max | nd.minimum(x, a_max) | same(r, X.clip(None, 4))
new_ones | nd.ones(shape, ctx=x.context, dtype=x.dtype) | same(r, numpy.ones((3, 2)))
new_full | nd.full(shape, value, ctx=x.context, dtype=x.dtype) | same(r, numpy.full((3, 2), 7))
swapdims | x.swapaxes(first, second) | same(r, X.T) | first, second = 0, 1
movedim | nd.moveaxis(x, source, destination) | same(r, X.T) | source, destination = 0, 1
roll | numpy.roll(x, shift, axis) | same(r, numpy.roll(X, 1, 1)) | shift = 1
outer | numpy.outer(x, y) | same(r, numpy.outer(X, Y)) and type(r) is nd.NDArray
trace | numpy.trace(x) | same(r, 6)
median | numpy.median(x) | r == 3.5
equal | numpy.array_equal(x, y) | r is False or not r
logits | x itself | same(x, X)
loss | mx.gluon.loss.SoftmaxCrossEntropyLoss()(x, labels) | r.shape == (2,) | \
labels = nd.array([0, 1])
handle | x itself | same(x, X)
eq | x == y | same(r, X == Y)
ne | x != y | same(r, X != Y)
lt | x < y | same(r, X < Y)
le | x <= y | same(r, X <= Y)
gt | x > y | same(r, X > Y)
ge | x >= y | same(r, X >= Y)
pow | x ** y | same(r, X**Y)
add | x + y | same(r, X + Y)
sub | x - y | same(r, X - Y)
mul | x * y | same(r, X * Y)
div | x / y | same(r, X / Y)
add_ | x += y | same(x, X + Y)
sub_ | x -= y | same(x, X - Y)
mul_ | x *= y | same(x, X * Y)
div_ | x /= y | same(x, X / Y)
"""
BLOCK = """
parameters | net.collect_params() | len(gluon.Trainer(r, 'sgd')._params) == 4
parameters | net.collect_params().values() | {type(one) for one in r} == {gluon.Parameter}
named_parameters | net.collect_params().items() | all(name == one.name for name, one in r)
state_dict | net.save_parameters(file) | os.path.getsize(file)
state_dict | net.collect_params() | len(r) == 4
load_state_dict | net.load_parameters(file) | True | net.save_parameters(file)
train | autograd.record() | inside(r, autograd.is_training)
eval | autograd.record() | not autograd.is_training()
to | net.place(mx.gpu(0)) | devices(net) == {mx.cpu(1)}
to | net.cast('float16') | dtypes(net) == {'float16'}
cuda | net.place(mx.gpu(0)) | devices(net) == {mx.cpu(1)}
cpu | net.place(mx.cpu()) | devices(net) == {mx.cpu(0)} | net.place(mx.cpu(1))
half | net.cast('float16') | dtypes(net) == {'float16'}
double | net.cast('float64') | dtypes(net) == {'float64'}
float | net.cast('float32') | dtypes(net) == {'float32'} | net.cast('float16')
modules | net.apply(function) | len(seen) == 3
buffers | [p for p in net.collect_params().values() if p.grad_req == 'null'] | len(r) == 2 | \
net = nn.BatchNorm(in_channels=3)
children | net.apply(function) | len(seen) == 3
children | list(net) | len(r) == 2
add_module | net.register_child(block, name) | list(net)[-1] is block
set_submodule | net.replace_child('layers.0.query', block) | net.layers[0].query is block | \
net, block = queries()
add_adapter | mx.contrib.lora.apply(net, {'.*query': 16}) | \
len(mx.contrib.lora.parameters(net)) == 2 | net = queries()[0]
requires_grad_ | net.collect_params().setattr('grad_req', 'null') | frozen(net)
training | autograd.is_training() | r is False
named_modules | net.apply(function) | [one.name for one in seen][-1] == net.name
register_parameter | self.params.get(name, shape=shape) | r.shape == shape
register_buffer | self.params.get_constant(name, value) | r.grad_req == 'null' | value = x
fit | autograd.record() | inside(r, autograd.is_recording)
fit | trainer.step(batch_size) | trainer.optimizer.num_update == 1 | trained()
fit | gluon.contrib.estimator.Estimator(net, loss) | callable(r.fit)
append | net.add(block) | list(net)[-1] is block
extend | net.add(*blocks) | list(net)[-2:] == blocks
compile | net.hybridize() | net(x) is not None and len(net.compiled()) == 1
setattr | net.collect_params().setattr(name, value) | \
{p.grad_req for p in net.collect_params().values()} == {'null'} | name, value = 'grad_req', 'null'
share_parameters | nn.Dense(8, params=net.params) | isinstance(r, nn.Dense)
reset_device | net.collect_params().reset_ctx(ctx) | \
{c for p in net.collect_params().values() for c in p.list_ctx()} == {ctx} | ctx = mx.cpu(1)
"""
PARAMETER = """
requires_grad | param.grad_req | r == 'write'
device | param.list_ctx() | r == [mx.cpu(0)]
numel | param.data().size | r == 9
numpy | param.data().asnumpy() | type(r) is numpy.ndarray
copy_ | param.set_data(value) | same(param.data(), numpy.ones((3, 3))) | value = nd.ones((3, 3))
"""
PARAMETER_SETTINGS = """
requires_grad | param.grad_req = 'null' | param.grad_req == 'null'
data | param.set_data(value) | same(param.data(), numpy.ones((3, 3))) | value = nd.ones((3, 3))
grad | param.zero_grad() | same(param.grad(), numpy.zeros((3, 3))) | trained()
"""
LOSSES = """
CrossEntropyLoss | SoftmaxCrossEntropyLoss | same(r()(x, labels), -LOG_P[[0, 1], [0, 2]])
MSELoss | L2Loss(weight=2) | same(r(x, y), ((X - Y) ** 2).mean(1))
NLLLoss | SoftmaxCrossEntropyLoss(from_logits=True) | same(r(-x, labels), X[[0, 1], [0, 2]])
BCEWithLogitsLoss | SigmoidBinaryCrossEntropyLoss | same(r()(x, 0 * x), numpy.log1p(EXP).mean(1))
BCELoss | SigmoidBinaryCrossEntropyLoss(from_sigmoid=True) | \
same(r(x / 9, 0 * x), -numpy.log(1 - X / 9).mean(1))
SmoothL1Loss | HuberLoss | same(r()(x, 0 * x), numpy.where(X < 1, X * X / 2, X - 0.5).mean(1))
"""
LAYERS = """
Linear | Dense | made(r(5), x).shape == (2, 5)
Linear4bit | QuantizedDense(units, in_units, format='nf4', group=64) | \
made(r, nd.ones((2, 64))).shape == (2, 5) | units, in_units = 5, 64
Linear8bitLt | QuantizedDense(units, in_units, format='int8') | \
made(r, nd.ones((2, 64))).shape == (2, 5) | units, in_units = 5, 64
Module | HybridBlock | r is gluon.HybridBlock
ModuleList | HybridSequential | len(built(r, block, block)) == 2
ReLU | Activation('relu') | same(r(-x), 0 * X)
ReLU6 | HybridLambda(lambda F, x: F.clip(x, 0, 6)) | same(r(2 * x), (2 * X).clip(0, 6))
Hardtanh | HybridLambda(lambda F, x: F.clip(x, -1, 1)) | same(r(x), X.clip(-1, 1))
Hardswish | HybridLambda(lambda F, x: x * F.clip(x + 3, 0, 6) / 6) | \
same(r(x - 3), (X - 3) * X.clip(0, 6) / 6)
Mish | HybridLambda(lambda F, x: x * F.tanh(F.Activation(x, act_type='softrelu'))) | \
same(r(x), X * numpy.tanh(numpy.log1p(EXP)))
Softplus | Activation('softrelu') | same(r(x), numpy.log1p(EXP))
LogSoftmax | HybridLambda('log_softmax') | same(r(x), LOG_P)
AdaptiveMaxPool2d | GlobalMaxPool2D | r()(image).shape == (1, 2, 1, 1)
Dropout1d | Dropout(rate, axes=(2,)) | by_channels(r, 1)
Dropout3d | Dropout(rate, axes=(2, 3, 4)) | by_channels(r, 3)
LSTMCell | mx.gluon.rnn.LSTMCell | r(5).begin_state(2)[1].shape == (2, 5)
GRUCell | mx.gluon.rnn.GRUCell | r(5).begin_state(2)[0].shape == (2, 5)
RNNCell | mx.gluon.rnn.RNNCell | r(5).begin_state(2)[0].shape == (2, 5)
KLDivLoss | mx.gluon.loss.KLDivLoss | same(r()(nd.log(x), x), 0 * X[:, 0])
CTCLoss | mx.gluon.loss.CTCLoss | issubclass(r, gluon.loss.Loss)
TripletMarginLoss | mx.gluon.loss.TripletLoss | issubclass(r, gluon.loss.Loss)
ModuleDict | self.register_child(block, name) | self._children['own'] is block
Buffer | self.params.get_constant(name, value) | r.grad_req == 'null' | value = x
Sigmoid | Activation('sigmoid') | same(r(x), EXP / (1 + EXP))
Tanh | Activation('tanh') | same(r(x), numpy.tanh(X))
AdaptiveAvgPool2d | GlobalAvgPool2D | r()(image).shape == (1, 2, 1, 1)
AdaptiveAvgPool2d | HybridLambda(lambda F, x: F.contrib.AdaptiveAvgPooling2D(x, output_size=size)) \
| r(image).shape == (1, 2, 2, 2) | size = 2
Dropout2d | Dropout(rate, axes=(2, 3)) | by_channels(r)
LSTM | mx.gluon.rnn.LSTM | made(r(5), nd.ones((4, 2, 3))).shape == (4, 2, 5)
GRU | mx.gluon.rnn.GRU | made(r(5), nd.ones((4, 2, 3))).shape == (4, 2, 5)
RNN | mx.gluon.rnn.RNN | made(r(5), nd.ones((4, 2, 3))).shape == (4, 2, 5)
L1Loss | mx.gluon.loss.L1Loss | same(r()(x, y), abs(X - Y).mean(1))
PixelShuffle | mx.gluon.contrib.nn.PixelShuffle2D | \
r(2)(nd.ones((1, 4, 3, 3))).shape == (1, 1, 6, 6)
SyncBatchNorm | mx.gluon.contrib.nn.SyncBatchNorm | issubclass(r, gluon.HybridBlock)
Concatenate | mx.gluon.contrib.nn.Concurrent | r().axis == -1
HybridConcatenate | mx.gluon.contrib.nn.HybridConcurrent | r().axis == -1
Parameter | mx.gluon.Parameter | same(owned(r)(x), 2 * X)
Softmax | nd.softmax | same(r(x), EXP / EXP.sum(1, keepdims=True))
Softmax | HybridLambda('softmax') | same(r(x), EXP / EXP.sum(1, keepdims=True))
Identity | HybridLambda(lambda F, x: x) | same(r(x), X)
Upsample | HybridLambda(lambda F, x: F.UpSampling(x, scale=2, sample_type='nearest')) | \
r(image).shape == (1, 2, 8, 8)
DataParallel | mx.parallel.Mesh({'data': 2}) | replicas(r, net) == [mx.cpu(0), mx.cpu(1)]
functional | mx.nd | r is nd
init | mx.init | r.Xavier
utils | mx.gluon.utils | r.split_and_load
"""
for number, sizes in ((1, (4,)), (2, (4, 4)), (3, (4, 4, 4))):
    for name, layer in (("Conv", "Conv{}D"), ("ConvTranspose", "Conv{}DTranspose")):
        LAYERS += f"{name}{number}d | {layer.format(number)}(channels, kernel_size, "
        LAYERS += "in_channels=in_channels) | made(r, nd.ones((1, in_channels) + "
        LAYERS += f"{sizes})).shape[1] == channels | channels, kernel_size, in_channels = 8, 3, 2\n"
    LAYERS += f"BatchNorm{number}d | BatchNorm(in_channels=channels) | made(r, nd.ones((1, 2) + "
    LAYERS += f"{sizes})).shape[1] == 2 | channels = 2\n"
for name, layer in (
    ("MultiheadAttention", "MultiHeadAttention(units, heads, causal=False, use_bias=True)"),
    ("Transformer", "TransformerEncoderCell(units, hidden, heads)"),
    ("TransformerEncoderLayer", "TransformerEncoderCell(units, hidden, heads, pre_norm=False)"),
):
    LAYERS += f"{name} | {layer} | made(r, nd.ones((2, 3, 8))).shape == (2, 3, 8) | "
    LAYERS += "units, hidden, heads = 8, 16, 2\n"
for name, layer in (
    ("Transformer", "TransformerDecoderCell(units, hidden, heads)"),
    ("TransformerDecoderLayer", "TransformerDecoderCell(units, hidden, heads, pre_norm=False)"),
):
    LAYERS += f"{name} | {layer} | callable(r) | units, hidden, heads = 8, 16, 2\n"
for line in LOSSES.replace("\\\n", "").splitlines()[1:]:
    name, rest = line.split(" | ", 1)
    LAYERS += f"{name} | mx.gluon.loss.{rest}\n"
GLUON = """
DataLoader | gluon.data.DataLoader | r is gluon.data.DataLoader
Dataset | gluon.data.Dataset | r is gluon.data.Dataset
optim | mx.optimizer | r.Adam
optim | gluon.Trainer | r(net, 'adam').optimizer
TensorDataset | gluon.data.ArrayDataset | len(r(x, y)) == 2
pad_sequence | nd.pad(x, mode='constant', pad_width=(0, missing), constant_value=0) | \
same(r, [1, 2, 0, 0]) | x, missing = nd.array([1, 2]), 2
pad_sequence | nd.stack(*arrays) | r.shape == (2, 2, 3) | arrays = [x, x]
Dense | gluon.nn.Dense | r is nn.Dense
Sequential | gluon.nn.Sequential | r is nn.Sequential
metric | mx.metric | r.Accuracy().name == 'accuracy'
probability | mx.np.random | r.normal is mx.np.random.normal
HybridSequential | gluon.nn.HybridSequential | r is nn.HybridSequential
"""
FUNCTIONS = """
tensor | nd.array(values, dtype=dtype) | r.dtype == numpy.int64 | values = [1, 2]
rand | nd.random.uniform(shape=shape) | r.shape == shape and 0 <= r.min().item() < 1
randint | nd.random.randint(low, high, shape) | same(r, 2 + numpy.zeros(shape))
randn | nd.random.randn | r(2, 3).shape == (2, 3)
distributed | mx.kv.create('dist_sync') | r.num_workers == 1
distributed | mx.parallel | r.all_reduce
Linear | mx.gluon.nn.Dense | r is nn.Dense
manual_seed | mx.random.seed | r(1) is None
no_grad | autograd.pause() | recording(r) == [True, False, True]
no_grad | autograd.record() | autograd.is_recording() is False
einsum | nd.batch_dot(x, y) | r.shape == (4, 2, 5) | x, y = nd.ones((4, 2, 3)), nd.ones((4, 3, 5))
einsum | x.transpose(axes) | same(r, X.T)
einsum | numpy.einsum | same(r('ij,kj->ik', x, y), X @ Y.T)
Tensor | nd.NDArray | isinstance(x, r)
device | mx.Context | r('cpu', 1) == mx.cpu(1)
device | mx.gpu(0) | r == mx.cpu(1)
compile | net.hybridize() | net(x) is not None and len(net.compiled()) == 1
nn | mx.gluon.nn | r is nn
from_torch | nd.from_dlpack | same(r(X), X)
cuda | mx.gpu | r(3).device_id == 3
cuda | mx.context | r.memory_stats
functional | nd | r is nd
optim | mx.optimizer | r.Adam
optim | mx.gluon.Trainer | r is gluon.Trainer
utils | mx.gluon.utils | r.clip_global_norm
utils | mx.gluon.data | r.DataLoader
allclose | numpy.allclose(x, y) | not r
atan2 | numpy.arctan2(y, x) | same(r, numpy.arctan2(Y, X))
meshgrid | numpy.meshgrid(*arrays, indexing='ij') | [one.shape for one in r] == [(2, 3)] * 2 | \
arrays = nd.ones(2), nd.ones(3)
lerp | x + weight * (y - x) | same(r, X + 0.25 * (Y - X)) | weight = 0.25
inverse | nd.linalg.inverse(x) | abs((r @ x).asnumpy() - numpy.eye(2)).max() < 1e-6 | \
x = nd.array([[2, 1], [1, 3]])
normalize | nd.L2Normalization(x) | same(r, X / numpy.sqrt((X * X).sum(1, keepdims=True)))
multinomial | nd.random.multinomial(probabilities) | same(r, [1]) | \
probabilities = nd.array([[0, 1]])
amp | mx.contrib.amp | callable(r.init)
randperm | nd.random.shuffle(nd.arange(count)) | sorted(r.asnumpy()) == [0, 1]
elu | nd.LeakyReLU(x, act_type='elu', slope=slope) | same(r, 0.5 * (numpy.exp(-X) - 1)) | \
x, slope = -x, 0.5
leaky_relu | nd.LeakyReLU(x, slope=slope) | same(r, -X / 2) | x, slope = -x, 0.5
hardtanh | x.clip(-1, 1) | same(r, X.clip(-1, 1))
mse_loss | mx.gluon.loss.L2Loss(weight=2)(outputs, targets).mean() | \
same(r, [((X - Y) ** 2).mean()]) | outputs, targets = x, y
l1_loss | mx.gluon.loss.L1Loss()(outputs, targets).mean() | same(r, [abs(X - Y).mean()]) | \
outputs, targets = x, y
as_tensor | nd.array(values, dtype=dtype) | r.dtype == numpy.int64 | values = [1, 2]
scaled_dot_product_attention | nd.contrib.attention(queries, keys, values, layout='bhtd') | \
same(r, numpy.full((1, 1, 2, 3), 5)) | queries, keys, values = nd.ones((1, 1, 2, 4)), \
nd.ones((1, 1, 5, 4)), nd.full((1, 1, 5, 3), 5)
cross_entropy | mx.gluon.loss.SoftmaxCrossEntropyLoss()(outputs, labels).mean() | \
same(r, [-LOG_P[[0, 1], [0, 2]].mean()]) | outputs = x
notebook | mx.callback | r.ProgressBar
imdecode | mx.image.imdecode | callable(r)
"""
DTYPES = "float16 float32 float64 int8 int32 int64 uint8".split()
for name in DTYPES:
    FUNCTIONS += f"{name} | dtype='{name}' | nd.ones(2, dtype=dtype).dtype == numpy.{name}\n"
# Arguments of NumPy's functions, which take NDArrays; the second group returns NumPy arrays.
NUMPY = {
    "diff": "(x,)",
    "dstack": "([x, y],)",
    "fliplr": "(x,)",
    "flipud": "(x,)",
    "hstack": "([x, y],)",
    "inner": "(x, y)",
    "outer": "(x, y)",
    "roll": "(x, 1)",
    "tensordot": "(x, y)",
    "trace": "(x,)",
    "vdot": "(x, y)",
    "vstack": "([x, y],)",
}
ON_HOST = {
    "all": "(x,)",
    "any": "(x,)",
    "bincount": "(x[0].astype('int64'),)",
    "count_nonzero": "(x,)",
    "cov": "(x,)",
    "cross": "(x, y)",
    "fmod": "(x, y)",
    "interp": "(x, x[0], y[0])",
    "isclose": "(x, y)",
    "isin": "(x, y)",
    "kron": "(x, y)",
    "nan_to_num": "(x,)",
    "nanmean": "(x,)",
    "quantile": "(x, 0.5)",
    "rot90": "(x,)",
    "searchsorted": "(x[0], y[0])",
}
for name, given in {**NUMPY, **ON_HOST}.items():
    plain = re.sub(r"\b(x|y)\b", lambda match: match[0].upper(), given)
    FUNCTIONS += f"{name} | numpy.{name} | same(r(*{given}), r(*{plain})) and "
    FUNCTIONS += f"isinstance(r(*{given}), nd.NDArray) is {name in NUMPY}\n"
SHARED = [name for name, way in hints.FUNCTIONS.items() if hints.ARRAY.get(name) == way]
FUNCTIONS += "".join(
    line + "\n" for line in ARRAY.replace("\\\n", "").splitlines() if line.split(" | ")[0] in SHARED
)
FUNCTIONS += "".join(
    line + "\n" for line in GLUON.splitlines() if line.startswith("pad_sequence |")
)
DATA = """
TensorDataset | gluon.data.ArrayDataset | len(r(x, y)) == 2
default_collate | gluon.data.default_batchify_fn | same(r([1, 2]), [1, 2])
batchify | gluon.data.DataLoader(data, size, batchify_fn=f) | list(r) == [3, 3] | \
data, size, f = [1, 2, 3, 0], 2, sum
ChainDataset | an IterableDataset | list(chained()) == [0, 1, 0, 1]
"""
TEXT = """
AutoModel | text.from_pretrained(folder) | r.head.weight.shape == (8, 4) | folder = llama(file)
AutoModelForCausalLM | text.from_pretrained(folder) | r.head | folder = llama(file)
AutoModelForSequenceClassification | text.from_pretrained(folder) | r.head | folder = llama(file)
AutoConfig | text.from_config(folder) | r.head | folder = llama(file)
"""
NETWORK = """
generate | mx.gluon.model_zoo.text.generate(net, prompts, max_new=32) | len(r[0]) == 32 | \
net, prompts = decoder(), [[1, 2]]
config | json.load(open(file)) | r['vocab_size'] == 8 | \
import json; file = os.path.join(llama(file), 'config.json')
save_pretrained | net.save_parameters(folder, format='huggingface') | \
os.path.getsize(os.path.join(file, 'model.safetensors')) | net, folder = decoder(), file
num_parameters | sum(p.data().size for p in net.collect_params().values()) | \
r == sum(p.data().size for p in decoder().collect_params().values()) | net = decoder()
model | net itself | net
"""
SCHEDULERS = """
StepLR | FactorScheduler(step=step_size * len(batches), factor=gamma) | \
[r(1), r(5), r(6)] == [0.01, 0.01, 0.005] | step_size, batches, gamma = 1, [0] * 5, 0.5
MultiStepLR | MultiFactorScheduler(step=steps, factor=gamma) | \
[r(5), r(6), r(8)] == [0.01, 0.005, 0.0025] | steps, gamma = [5, 7], 0.5
ExponentialLR | FactorScheduler(step=len(batches), factor=gamma) | \
[r(2), r(3), r(5)] == [0.01, 0.005, 0.0025] | batches, gamma = [0] * 2, 0.5
CosineAnnealingLR | CosineScheduler(max_update=updates, base_lr=rate) | \
same([r(0), r(5), r(10)], [0.5, 0.25, 0]) | updates = 10
PolynomialLR | PolyScheduler(max_update=updates, base_lr=rate, pwr=power) | \
same([r(0), r(5), r(10)], [0.5, 0.125, 0]) | updates, power = 10, 2
LambdaLR | a function | \
mx.optimizer.SGD(lr_scheduler=lambda updates: 0.5).learning_rate == 0.5
ReduceLROnPlateau | trainer.set_learning_rate(rate) | trainer.learning_rate == 0.5
"""
INITIALIZERS = """
kaiming_normal_ | MSRAPrelu(factor_type='in', slope=0) | \
abs(drawn(r).std() / numpy.sqrt(2 / 200) - 1) < 0.05
kaiming_uniform_ | Xavier(factor_type='in', magnitude=6) | \
abs(drawn(r).max() / numpy.sqrt(6 / 200) - 1) < 0.05
xavier_normal_ | Xavier(rnd_type='gaussian', magnitude=1) | \
abs(drawn(r).std() / numpy.sqrt(2 / 300) - 1) < 0.05 and abs(drawn(r)).max() > numpy.sqrt(6 / 300)
xavier_uniform_ | Xavier() | abs(drawn(r).max() / numpy.sqrt(6 / 300) - 1) < 0.05
"""
OPTIMIZERS = """
lr_scheduler | mx.lr_scheduler | r.FactorScheduler
"""
TRAINER = """
zero_grad | net.collect_params().zero_grad() | same(param.grad(), numpy.zeros((3, 3))) | \
net.collect_params().setattr('grad_req', 'add'); trained()
add_param_group | a list of dicts | \
mx.gluon.Trainer([{'params': net.collect_params(), 'lr': 1}], 'sgd').param_groups[0]['lr'] == 1
lr | trainer.learning_rate | r == 0.01
state_dict | trainer.save_states(file) | os.path.getsize(file) | trained()
load_state_dict | trainer.load_states(file) | True | trainer.save_states(file)
"""
AUTOGRAD = """
no_grad | autograd.pause() | recording(r) == [True, False, True]
no_grad | autograd.record() | autograd.is_recording() is False
enable_grad | autograd.record | inside(r(), autograd.is_recording)
set_grad_enabled | autograd.set_recording | [r(True), r(False)] == [False, True]
detect_anomaly | mx.monitor.Monitor | callable(r)
detect_anomaly | nd.contrib.isfinite | same(r(x), 1 + 0 * X)
set_detect_anomaly | mx.monitor.Monitor | callable(r)
set_detect_anomaly | nd.contrib.isfinite | same(r(x), 1 + 0 * X)
"""
FUNCTION = """
apply | f = F(); y = f(x) | same(y, 2 * X) | F = Double
"""
TABLES = {
    "ARRAY": (lambda scope: scope["x"], ARRAY),
    "BLOCK": (lambda scope: scope["net"], BLOCK),
    "PARAMETER": (lambda scope: scope["param"], PARAMETER),
    "LOSSES": (lambda scope: gluon.loss, LOSSES),
    "LAYERS": (lambda scope: nn, LAYERS),
    "GLUON": (lambda scope: gluon, GLUON),
    "FUNCTIONS": (lambda scope: nd, FUNCTIONS),
    "DATA": (lambda scope: gluon.data, DATA),
    "TEXT": (lambda scope: text, TEXT),
    "NETWORK": (lambda scope: decoder(), NETWORK),
    "SCHEDULERS": (lambda scope: mx.lr_scheduler, SCHEDULERS),
    "INITIALIZERS": (lambda scope: mx.init, INITIALIZERS),
    "OPTIMIZERS": (lambda scope: mx.optimizer, OPTIMIZERS),
    "TRAINER": (lambda scope: scope["trainer"], TRAINER),
    "AUTOGRAD": (lambda scope: autograd, AUTOGRAD),
    "FUNCTION": (lambda scope: Double, FUNCTION),
}
# Words of hints that look like code, and names of the hints' prose
FILES = ["examples/gpt_pipeline.py"]
PROSE = ["Adam(wd=...)"]
CODE = re.compile(r"\w\(|\w\.\w|\w\[|==")


def rows_of(text):
    """Returns {name: [(code, condition, preparation)]}."""
    rows = {}
    for line in text.replace("\\\n", "").strip().splitlines():
        name, code, condition, *prepare = line.split(" | ")
        rows.setdefault(name, []).append((code, condition, *prepare))
    return rows


ROWS = [
    (table, name, checks)
    for table, (_, text) in TABLES.items()
    for name, checks in rows_of(text).items()
]


def checked(hint, checks, tmp_path, names):
    """Runs the code of a hint, which must be all of its code."""
    for code, condition, *prepare in checks:
        assert code in hint
        scope = {**names, **scope_of(tmp_path)}
        if prepare:
            exec(prepare[0], scope)
        code = code.replace("mx.gpu(0)", "mx.cpu(1)").replace(" itself", "")
        try:
            run = compile(code, hint, "eval")
        except SyntaxError:
            is_prose = re.match(r"an? ", code)
            exec("" if is_prose else code, scope)
        else:
            scope["r"] = eval(run, scope)
        assert eval(condition, scope), f"{code}: {condition}"
    assert all(os.path.isfile(os.path.join(ROOT, path)) for path in FILES)
    rest = hint
    for words in sorted([*PROSE, *FILES, *(check[0] for check in checks)], key=len, reverse=True):
        rest = rest.replace(words, "")
    assert not CODE.search(rest), f"{hint}: no row runs {rest}"


@pytest.mark.parametrize(
    "table, name, checks", ROWS, ids=[f"{table}-{name}" for table, name, _ in ROWS]
)
def test_foreign_name_raises_a_hint_that_works(table, name, checks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hint = getattr(hints, table)[name]
    thing = TABLES[table][0](scope_of(tmp_path))
    with pytest.raises(AttributeError, match="; use ") as caught:
        getattr(thing, name)
    assert str(caught.value).endswith(hint) and caught.value.name == name
    checked(
        hint,
        checks,
        tmp_path,
        {**vars(gluon.loss), **vars(nn), **vars(mx.lr_scheduler), **vars(mx.init)},
    )


@pytest.mark.parametrize("name, checks", rows_of(PARAMETER_SETTINGS).items())
def test_foreign_parameter_setting_raises_a_hint_that_works(name, checks, tmp_path):
    param = scope_of(tmp_path)["param"]
    hint = hints.PARAMETER_SETTINGS[name]
    with pytest.raises(AttributeError, match=f": {name} cannot be set; use ") as caught:
        setattr(param, name, None)
    assert str(caught.value).endswith(hint)
    checked(hint, checks, tmp_path, {})


def test_every_hint_has_a_row():
    for table, (_, rows) in TABLES.items():
        assert rows_of(rows).keys() == getattr(hints, table).keys(), table
    assert rows_of(PARAMETER_SETTINGS).keys() == hints.PARAMETER_SETTINGS.keys()
    assert {(row[0], row[1]) for row in OPTIONS} == {
        (option, way) for option, ways in hints.OPTIONS.items() for way in ways
    }


# Option | suggestion | call with {} for one of them | value of each | condition
OPTIONS = """
lr | learning_rate | mx.optimizer.SGD({}) | 0.1 | 0.1 | r.learning_rate == 0.1
lr | optimizer_params | gluon.Trainer(net, 'sgd', {}) | 0.1 | settings | r.learning_rate == 0.1
learning_rate | optimizer_params | gluon.Trainer(net, 'sgd', {}) | 0.1 | settings | \
r.learning_rate == 0.1
weight_decay | wd | mx.optimizer.SGD({}) | 0.1 | 0.1 | r.wd == 0.1
weight_decay | optimizer_params | gluon.Trainer(net, 'sgd', {}) | 0.2 | settings | \
r.optimizer.wd == 0.2
wd | optimizer_params | gluon.Trainer(net, 'sgd', {}) | 0.2 | settings | r.optimizer.wd == 0.2
momentum | optimizer_params | gluon.Trainer(net, 'sgd', {}) | 0.3 | settings | \
r.optimizer.momentum == 0.3
betas | beta1 | mx.optimizer.Adam({}) | (0.8, 0.9) | 0.8 | r.beta1 == 0.8
eps | epsilon | mx.optimizer.Adam({}) | 0.1 | 0.1 | r.epsilon == 0.1
bias | use_bias | nn.Dense(3, {}) | False | False | r.bias is None
in_features | in_units | nn.Dense(3, {}) | 4 | 4 | r.weight.shape == (3, 4)
out_features | units | nn.Dense({}, in_units=4) | 3 | 3 | r.weight.shape == (3, 4)
out_channels | channels | nn.Conv2D({}, kernel_size=3) | 5 | 5 | r.weight.shape[0] == 5
stride | strides | nn.Conv2D(1, 2, {}) | 2 | 2 | made(r, image).shape == (1, 1, 2, 2)
padding | pad | nd.Pooling(image, (2, 2), {}) | (1, 1) | (1, 1) | r.shape[2:] == (5, 5)
dilation | dilate | convolve(2, {}) | (2, 2) | (2, 2) | r.shape[2:] == (2, 2)
groups | num_group | convolve(1, {}) | 2 | 2 | r.shape == (1, 2, 3, 3)
kernel_size | kernel | nd.Pooling(image, {}) | 2 | (2, 2) | r.shape[2:] == (3, 3)
kernel_size | pool_size | nn.MaxPool2D({}) | 2 | 2 | r(image).shape[2:] == (2, 2)
num_embeddings | input_dim | nn.Embedding(output_dim=2, {}) | 3 | 3 | r.weight.shape[0] == 3
embedding_dim | output_dim | nn.Embedding(input_dim=2, {}) | 3 | 3 | r.weight.shape[1] == 3
num_features | in_channels | nn.BatchNorm({}) | 3 | 3 | r.gamma.shape == (3,)
normalized_shape | in_channels | nn.LayerNorm({}) | 3 | 3 | r.gamma.shape == (3,)
batch_first | layout | rnn.LSTM(5, {}) | True | 'NTC' | \
made(r, nd.ones((2, 4, 3))).shape == (2, 4, 5)
p | rate | nn.Dropout({}) | 0.3 | 0.3 | '0.3' in repr(r)
p | ord | nd.norm(x, {}) | 1 | 1 | same(r, [21])
dim | axis | nd.sum(x, {}) | 1 | 1 | same(r, X.sum(1))
axis | dim | nd.concat(x, y, {}) | 0 | 0 | r.shape == (4, 3)
num_classes | depth | nd.one_hot(nd.array([1]), {}) | 3 | 3 | same(r, [[0, 1, 0]])
collate_fn | batchify_fn | gluon.data.DataLoader([1, 2], 2, {}) | list | list | [*r] == [[1, 2]]
drop_last | last_batch | gluon.data.DataLoader([1, 2, 3], 2, {}) | True | 'discard' | len(r) == 1
dims | axis | nd.flip(x, {}) | (1,) | 1 | same(r, X[:, ::-1])
dims | axes | nd.transpose(x, {}) | (1, 0) | (1, 0) | same(r, X.T)
keepdim | keepdims | nd.sum(x, axis=1, {}) | True | True | r.shape == (2, 1)
device | ctx | nd.zeros((2, 3), {}) | mx.cpu(1) | mx.cpu(1) | r.context == mx.cpu(1)
size | shape | nd.random.uniform({}) | (2, 3) | (2, 3) | r.shape == (2, 3)
input | data | nd.sum({}) | x | x | same(r, [21])
min | a_min | nd.clip(x, {}, a_max=4) | 2 | 2 | same(r, X.clip(2, 4))
max | a_max | nd.clip(x, a_min=2, {}) | 4 | 4 | same(r, X.clip(2, 4))
descending | is_ascend | nd.sort(x, {}) | True | False | same(r, X[:, ::-1])
largest | is_ascend | nd.topk(x, {}) | True | False | same(r, [[2], [2]])
negative_slope | alpha | nn.LeakyReLU({}) | 0.5 | 0.5 | same(r(-x), -X / 2)
negative_slope | slope | nd.LeakyReLU(-x, {}) | 0.5 | 0.5 | same(r, -X / 2)
step_size | step | mx.lr_scheduler.FactorScheduler({}) | 3 | 3 | r.step == 3
milestones | step | mx.lr_scheduler.MultiFactorScheduler({}) | [3] | [3] | r.step == [3]
lr_scheduler | optimizer_params | gluon.Trainer(net, 'sgd', {}) | 0 | \
{'lr_scheduler': mx.lr_scheduler.FactorScheduler(1)} | r.optimizer.lr_scheduler
max_grad_norm | clip_global_norm | gluon.Trainer(net, 'sgd', {}) | 1.0 | 1.0 | r
gradient_accumulation_steps | accumulate | gluon.Trainer(net, 'sgd', {}) | 4 | 4 | \
net[0].weight.grad_req == 'add'
lora_alpha | alpha | lora.apply(net, {'0': 2}, {}) | 16 | 16 | r == ['0']
lora_dropout | dropout | lora.apply(net, {'0': 2}, {}) | 0.1 | 0.1 | r == ['0']
use_dora | dora | lora.apply(net, {'0': 2}, {}) | True | True | r == ['0']
use_rslora | rslora | lora.apply(net, {'0': 2}, {}) | True | True | r == ['0']
r | targets | lora.apply(net, {}) | 8 | {'0': 8} | r == ['0']
rank | targets | lora.apply(net, {}) | 8 | {'0': 8} | r == ['0']
target_modules | targets | lora.apply(net, {}) | ['0'] | {'0': 8} | r == ['0']
n_microbatches | micro_batches | mx.parallel.Pipeline({}) | 8 | 8 | r.micro_batches == 8
num_microbatches | micro_batches | mx.parallel.Pipeline({}) | 8 | 8 | r.micro_batches == 8
chunks | micro_batches | mx.parallel.Pipeline({}) | 8 | 8 | r.micro_batches == 8
gamma | factor | mx.lr_scheduler.FactorScheduler(3, {}) | 0.5 | 0.5 | r.factor == 0.5
device_map | ctx | text.from_pretrained(llama(file), {}) | 0 | [mx.cpu(0), mx.cpu(1)] | \
len(devices(r)) == 2
max_memory | memory | text.from_pretrained(llama(file), {}, ctx=[mx.cpu(0)]) | 0 | \
{mx.cpu(0): 900} | r.head
torch_dtype | dtype | text.from_pretrained(llama(file), {}) | 0 | 'float16' | \
dtypes(r) == {"float16"}
load_in_8bit | quantize | text.from_pretrained(llama(file), {}) | True | 'int8' | \
r.layers[0].mlp.up.format == "int8"
load_in_4bit | quantize | text.from_pretrained(llama(file), {}) | True | 'nf4' | \
r.layers[0].mlp.up.format == "nf4"
quantization_config | quantize | text.from_pretrained(llama(file), {}) | {} | 'int8' | \
r.layers[0].mlp.up.format == "int8"
max_new_tokens | max_new | generated({}) | 3 | 3 | len(r[0]) == 3
max_length | max_new | generated({}) | 3 | 3 | len(r[0]) == 3
do_sample | temperature | generated({}, seed=1) | True | 1 | r != generated()
eos_token_id | stop | generated({}) | 2 | [*range(97)] | r == [[]]
stop_strings | stop | generated({}) | ['.'] | [*range(97)] | r == [[]]
num_return_sequences | tokens | generated({}) | 2 | [[1]] * 2 | len(r) == 2
attention_mask | tokens | generated({}) | x | [[1], [2, 3]] | len(r) == 2
pad_token_id | tokens | generated({}) | 0 | [[1], [2, 3]] | len(r) == 2
streamer | stream | generated({}) | print | True | len([*r]) == 32
assistant_model | draft | generated({}) | 0 | decoder(seed=4) | r == generated()
prompt_lookup_num_tokens | draft | generated({}) | 3 | 3 | r == generated()
num_assistant_tokens | draft_tokens | generated({}, draft=decoder(seed=4)) | 2 | 2 | \
r == generated()
"""
OPTIONS = [line.split(" | ") for line in OPTIONS.replace("\\\n", "").strip().splitlines()]


@pytest.mark.parametrize("row", OPTIONS, ids=[f"{row[0]}-{row[1]}" for row in OPTIONS])
def test_foreign_option_raises_a_hint_that_works(row, tmp_path):
    option, way, call, foreign, own, condition = row
    settings = {"learning_rate": 0.1, "wd": 0.2, "momentum": 0.3}
    scope = {**scope_of(tmp_path), "settings": settings}
    with pytest.raises(TypeError, match=f"'{option}'; did you mean '{way}'\\?") as caught:
        eval(call.replace("{}", f"{option}={foreign}"), scope)
    scope["r"] = eval(call.replace("{}", f"{way}={own}"), scope)
    assert eval(condition, scope)
    assert ("opposite" in str(caught.value)) == ({foreign, own} == {"True", "False"})
    if "opposite" not in str(caught.value) and isinstance(eval(own, scope), str):
        assert f"{way}={own}" in str(caught.value)
