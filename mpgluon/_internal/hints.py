"""Suggestions in error messages for unknown names and options, and a generic repr of objects."""

import difflib
import functools
import importlib
import inspect
import sys
from typing import TYPE_CHECKING

from .. import _core

# Maps options of other frameworks' layers, optimizers and ops to candidates. The first candidate
# that the callee accepts is suggested.
OPTIONS = {
    "lr": ("learning_rate", "optimizer_params"),
    "learning_rate": ("optimizer_params",),
    "weight_decay": ("wd", "optimizer_params"),
    "wd": ("optimizer_params",),
    "momentum": ("optimizer_params",),
    "lr_scheduler": ("optimizer_params",),
    "max_grad_norm": ("clip_global_norm",),
    "gradient_accumulation_steps": ("accumulate",),
    "betas": ("beta1",),
    "eps": ("epsilon",),
    "bias": ("use_bias",),
    "in_features": ("in_units",),
    "out_features": ("units",),
    "out_channels": ("channels",),
    "stride": ("strides",),
    "padding": ("pad",),
    "dilation": ("dilate",),
    "groups": ("num_group",),
    "kernel_size": ("kernel", "pool_size"),
    "num_embeddings": ("input_dim",),
    "embedding_dim": ("output_dim",),
    "num_features": ("in_channels",),
    "normalized_shape": ("in_channels",),
    "batch_first": ("layout",),
    "p": ("rate", "ord"),
    "dim": ("axis",),
    "axis": ("dim",),
    "num_classes": ("depth",),
    "collate_fn": ("batchify_fn",),
    "drop_last": ("last_batch",),
    "dims": ("axis", "axes"),
    "keepdim": ("keepdims",),
    "device": ("ctx",),
    "device_map": ("ctx",),
    "max_memory": ("memory",),
    "torch_dtype": ("dtype",),
    "load_in_8bit": ("quantize",),
    "load_in_4bit": ("quantize",),
    "quantization_config": ("quantize",),
    "max_new_tokens": ("max_new",),
    "max_length": ("max_new",),
    "do_sample": ("temperature",),
    "eos_token_id": ("stop",),
    "stop_strings": ("stop",),
    "num_return_sequences": ("tokens",),
    "attention_mask": ("tokens",),
    "pad_token_id": ("tokens",),
    "streamer": ("stream",),
    "assistant_model": ("draft",),
    "prompt_lookup_num_tokens": ("draft",),
    "num_assistant_tokens": ("draft_tokens",),
    "lora_alpha": ("alpha",),
    "lora_dropout": ("dropout",),
    "use_dora": ("dora",),
    "use_rslora": ("rslora",),
    "r": ("targets",),
    "rank": ("targets",),
    "target_modules": ("targets",),
    "n_microbatches": ("micro_batches",),
    "num_microbatches": ("micro_batches",),
    "chunks": ("micro_batches",),
    "size": ("shape",),
    "input": ("data",),
    "min": ("a_min",),
    "max": ("a_max",),
    "descending": ("is_ascend",),
    "largest": ("is_ascend",),
    "negative_slope": ("alpha", "slope"),
    "step_size": ("step",),
    "milestones": ("step",),
    "gamma": ("factor",),
}

# Foreign option -> note for the suggested option if it takes different values.
_VALUES = {
    "descending": "which is its opposite",
    "largest": "which is its opposite",
    "drop_last": "last_batch='discard' drops it",
    "batch_first": "layout='NTC' has the batch first",
    "device_map": "ctx=[mx.gpu(0), mx.gpu(1)] divides the layers",
    "max_memory": "memory={mx.gpu(0): '20GiB'} is the limit of bytes",
    "torch_dtype": "dtype='float16', for example",
    "load_in_8bit": "quantize='int8'",
    "load_in_4bit": "quantize='nf4'",
    "quantization_config": "quantize='int8' or 'nf4'",
    "max_length": "it does not include the prompt",
    "do_sample": "temperature=1 draws tokens, 0 takes the most probable one",
    "num_return_sequences": "[prompt] * 2 continues a prompt twice",
    "lr_scheduler": "optimizer_params={'lr_scheduler': schedule}",
    **dict.fromkeys(
        ["r", "rank", "target_modules"], "targets={'.*query': 8} maps patterns to ranks"
    ),
    **dict.fromkeys(
        ["attention_mask", "pad_token_id"], "prompts of different lengths need no padding"
    ),
}

ARRAY = {
    "to": "x.as_in_context(mx.gpu(0)) to move it, x.astype('float16') to convert it",
    "cuda": "x.as_in_context(mx.gpu(0))",
    "cpu": "x.as_in_context(mx.cpu())",
    "device": "x.context",
    "numpy": "x.asnumpy()",
    "view": "x.reshape(shape)",
    "permute": "x.transpose(axes)",
    "unsqueeze": "x.expand_dims(axis)",
    "clone": "x.copy()",
    "t": "x.T",
    "matmul": "x @ y",
    "mm": "nd.dot(x, y)",
    "bmm": "nd.batch_dot(x, y)",
    "float": "x.astype('float32')",
    "double": "x.astype('float64')",
    "half": "x.astype('float16')",
    "long": "x.astype('int64')",
    "int": "x.astype('int32')",
    "contiguous": "x itself; arrays are always contiguous",
    "dim": "x.ndim",
    "numel": "x.size",
    "requires_grad_": "x.attach_grad()",
    "requires_grad": "x.attach_grad(), and x.grad_req",
    "zero_": "x[:] = 0",
    "fill_": "x[:] = value",
    "masked_fill": "numpy.where(mask, value, x)",
    "std": "numpy.std(x, axis, ddof=1)",
    "any": "(x != 0).sum() > 0",
    "all": "(x == 0).sum() == 0",
    "unsqueeze_": "x = x.expand_dims(axis)",
    "squeeze_": "x = x.squeeze(axis)",
    "bool": "x.astype('bool')",
    "byte": "x.astype('uint8')",
    "type": "x.astype(dtype)",
    "type_as": "x.astype(y.dtype)",
    "bfloat16": "x.astype('bfloat16')",
    "gather": "nd.pick(x, index, axis) for one element per row, else nd.gather_nd(x, "
    "nd.stack(rows, columns))",
    "scatter": "nd.scatter_nd(values, indices, shape)",
    "scatter_": "x[rows, columns] = values",
    "index_select": "x.take(indices, axis=axis)",
    "masked_select": "nd.contrib.boolean_mask(x.reshape(-1), mask.reshape(-1))",
    "masked_fill_": "x[:] = numpy.where(mask, value, x)",
    "expand": "x.broadcast_to(shape)",
    "expand_as": "x.broadcast_like(y)",
    "view_as": "x.reshape_like(y)",
    "repeat_interleave": "x.repeat(repeats, axis=axis)",
    "chunk": "x.split(num_outputs, axis=axis)",
    "unbind": "x.split(num_outputs, axis=axis, squeeze_axis=True)",
    "narrow": "x.slice_axis(axis, start, start + length)",
    "cat": "nd.concat(x, y, dim=axis)",
    "var": "numpy.var(x, axis, ddof=1)",
    "amax": "x.max(axis)",
    "amin": "x.min(axis)",
    "cumsum": "nd.cumsum(x, axis)",
    "logsumexp": "m + nd.log(nd.exp(x - m).sum(axis, keepdims=True)) with "
    "m = x.max(axis, keepdims=True)",
    "nelement": "x.size",
    "ravel": "x.reshape(-1)",
    "isnan": "nd.contrib.isnan(x)",
    "is_contiguous": "x itself: the elements of an array are always in order",
    "copy_": "y.copyto(x), or x[:] = y",
    "uniform_": "nd.random.uniform(low, high, shape=x.shape, out=x)",
    "normal_": "nd.random.normal(loc, scale, shape=x.shape, out=x)",
    "clamp": "x.clip(a_min, a_max), or nd.maximum(x, a_min)",
    "to_device": "x.as_in_context(mx.gpu(0))",
    "clamp_": "x[:] = x.clip(a_min, a_max)",
    "new_zeros": "nd.zeros(shape, ctx=x.context, dtype=x.dtype)",
    "detach_": "x = x.detach()",
    "data": "x itself, or x.detach()",
    "triu": "numpy.triu(x)",
    "tril": "numpy.tril(x)",
    "gelu": "nd.gelu(x)",
    "nonzero": "numpy.argwhere(x), a NumPy array",
    "is_cuda": "x.context.device_type == 'gpu'",
    "grad_fn": "autograd.get_symbol(x), which has the recorded ops",
    "retain_grad": "autograd.grad(loss, [x])",
    "register_hook": "an autograd.Function",
    "abs_": "x[:] = x.abs()",
    "unique": "numpy.unique(x), a NumPy array",
    "cumprod": "numpy.cumprod(x, axis), a NumPy array",
    "isinf": "nd.contrib.isinf(x)",
    "isfinite": "nd.contrib.isfinite(x)",
    "logical_and": "nd.logical_and(x, y)",
    "logical_or": "nd.logical_or(x, y)",
    "logical_not": "nd.logical_not(x)",
    "neg": "-x",
    "remainder": "x % y",
    "where": "nd.where(condition, x, y)",
    "clamp_min": "nd.maximum(x, a_min)",
    "clamp_max": "nd.minimum(x, a_max)",
    "new_ones": "nd.ones(shape, ctx=x.context, dtype=x.dtype)",
    "new_full": "nd.full(shape, value, ctx=x.context, dtype=x.dtype)",
    "swapdims": "x.swapaxes(first, second)",
    "movedim": "nd.moveaxis(x, source, destination)",
    "roll": "numpy.roll(x, shift, axis)",
    "outer": "numpy.outer(x, y)",
    "trace": "numpy.trace(x)",
    "median": "numpy.median(x), a NumPy number",
    "equal": "numpy.array_equal(x, y)",
    "logits": "x itself; networks return the scores",
    "loss": "mx.gluon.loss.SoftmaxCrossEntropyLoss()(x, labels), with the scores x",
    "handle": "x itself; mpgluon has no handles of a C library",
    **{
        name: f"x {operator} y"
        for name, operator in zip(
            "eq ne lt le gt ge pow add sub mul div add_ sub_ mul_ div_".split(),
            "== != < <= > >= ** + - * / += -= *= /=".split(),
        )
    },
}

BLOCK = {
    "parameters": "net.collect_params() for a Trainer, net.collect_params().values() to iterate",
    "named_parameters": "net.collect_params().items()",
    "state_dict": "net.save_parameters(file), or net.collect_params()",
    "load_state_dict": "net.load_parameters(file)",
    "train": "autograd.record() around the code that is trained",
    "eval": "the network outside of autograd.record(), where it is in prediction mode",
    "to": "net.place(mx.gpu(0)) to move it, net.cast('float16') to convert it",
    "cuda": "net.place(mx.gpu(0))",
    "cpu": "net.place(mx.cpu())",
    "half": "net.cast('float16')",
    "double": "net.cast('float64')",
    "float": "net.cast('float32')",
    "modules": "net.apply(function)",
    "buffers": "[p for p in net.collect_params().values() if p.grad_req == 'null']",
    "children": "net.apply(function), which visits all blocks; list(net) of a Sequential",
    "add_module": "net.register_child(block, name)",
    "set_submodule": "net.replace_child('layers.0.query', block)",
    "add_adapter": "mx.contrib.lora.apply(net, {'.*query': 16})",
    "requires_grad_": "net.collect_params().setattr('grad_req', 'null')",
    "training": "autograd.is_training()",
    "named_modules": "net.apply(function), and the name of each block",
    "register_parameter": "self.params.get(name, shape=shape)",
    "register_buffer": "self.params.get_constant(name, value)",
    "fit": "a loop of autograd.record() and trainer.step(batch_size), or "
    "gluon.contrib.estimator.Estimator(net, loss)",
    "append": "net.add(block)",
    "extend": "net.add(*blocks)",
    "compile": "net.hybridize()",
    # Names of MXNet 2.0
    "setattr": "net.collect_params().setattr(name, value)",
    "share_parameters": "nn.Dense(8, params=net.params), or another constructor",
    "reset_device": "net.collect_params().reset_ctx(ctx)",
}

# Attributes that PyTorch programs assign to Parameters. Here, an assignment would hide a method or
# have no effect, so it raises an error with this advice.
PARAMETER_SETTINGS = {
    "requires_grad": "param.grad_req = 'null' to freeze it, or 'write'",
    "data": "param.set_data(value)",
    "grad": "param.zero_grad(); unless grad_req is 'add', each backward overwrites the gradient",
}

PARAMETER = {
    "requires_grad": "param.grad_req, which is 'null' if it is frozen",
    "device": "param.list_ctx()",
    "numel": "param.data().size",
    "numpy": "param.data().asnumpy()",
    "copy_": "param.set_data(value)",
}

LOSSES = {
    "CrossEntropyLoss": "SoftmaxCrossEntropyLoss",
    "MSELoss": "L2Loss(weight=2)",
    "NLLLoss": "SoftmaxCrossEntropyLoss(from_logits=True)",
    "BCEWithLogitsLoss": "SigmoidBinaryCrossEntropyLoss",
    "BCELoss": "SigmoidBinaryCrossEntropyLoss(from_sigmoid=True)",
    "SmoothL1Loss": "HuberLoss",
}

LAYERS = {
    "Linear": "Dense",
    "Linear4bit": "QuantizedDense(units, in_units, format='nf4', group=64)",
    "Linear8bitLt": "QuantizedDense(units, in_units, format='int8')",
    "Module": "HybridBlock",
    "ModuleList": "HybridSequential",
    **{f"Conv{n}d": f"Conv{n}D(channels, kernel_size, in_channels=in_channels)" for n in (1, 2, 3)},
    **{
        f"ConvTranspose{n}d": f"Conv{n}DTranspose(channels, kernel_size, in_channels=in_channels)"
        for n in (1, 2, 3)
    },
    **{f"BatchNorm{n}d": "BatchNorm(in_channels=channels)" for n in (1, 2, 3)},
    "AdaptiveAvgPool2d": "GlobalAvgPool2D for one element, else HybridLambda(lambda F, x: "
    "F.contrib.AdaptiveAvgPooling2D(x, output_size=size))",
    "ReLU": "Activation('relu')",
    "ReLU6": "HybridLambda(lambda F, x: F.clip(x, 0, 6))",
    "Hardtanh": "HybridLambda(lambda F, x: F.clip(x, -1, 1))",
    "Hardswish": "HybridLambda(lambda F, x: x * F.clip(x + 3, 0, 6) / 6)",
    "Mish": "HybridLambda(lambda F, x: x * F.tanh(F.Activation(x, act_type='softrelu')))",
    "Softplus": "Activation('softrelu')",
    "LogSoftmax": "HybridLambda('log_softmax')",
    "Sigmoid": "Activation('sigmoid')",
    "Tanh": "Activation('tanh')",
    "AdaptiveMaxPool2d": "GlobalMaxPool2D for one element",
    "Dropout1d": "Dropout(rate, axes=(2,))",
    "Dropout2d": "Dropout(rate, axes=(2, 3))",
    "Dropout3d": "Dropout(rate, axes=(2, 3, 4))",
    "LSTMCell": "mx.gluon.rnn.LSTMCell",
    "GRUCell": "mx.gluon.rnn.GRUCell",
    "RNNCell": "mx.gluon.rnn.RNNCell",
    "KLDivLoss": "mx.gluon.loss.KLDivLoss",
    "CTCLoss": "mx.gluon.loss.CTCLoss",
    "TripletMarginLoss": "mx.gluon.loss.TripletLoss",
    "ModuleDict": "self.register_child(block, name)",
    "Buffer": "self.params.get_constant(name, value)",
    "LSTM": "mx.gluon.rnn.LSTM",
    "GRU": "mx.gluon.rnn.GRU",
    "RNN": "mx.gluon.rnn.RNN",
    "L1Loss": "mx.gluon.loss.L1Loss",
    "PixelShuffle": "mx.gluon.contrib.nn.PixelShuffle2D",
    "SyncBatchNorm": "mx.gluon.contrib.nn.SyncBatchNorm",
    "Parameter": "mx.gluon.Parameter",
    "Concatenate": "mx.gluon.contrib.nn.Concurrent",
    "HybridConcatenate": "mx.gluon.contrib.nn.HybridConcurrent",
    "Softmax": "nd.softmax, or HybridLambda('softmax')",
    "Identity": "HybridLambda(lambda F, x: x)",
    "Upsample": "HybridLambda(lambda F, x: F.UpSampling(x, scale=2, sample_type='nearest'))",
    "DataParallel": "mx.parallel.Mesh({'data': 2})",
    "functional": "mx.nd",
    "init": "mx.init",
    "utils": "mx.gluon.utils",
    "MultiheadAttention": "MultiHeadAttention(units, heads, causal=False, use_bias=True) for "
    "batch-first arrays",
    "Transformer": "TransformerEncoderCell(units, hidden, heads) and "
    "TransformerDecoderCell(units, hidden, heads)",
    "TransformerEncoderLayer": "TransformerEncoderCell(units, hidden, heads, pre_norm=False)",
    "TransformerDecoderLayer": "TransformerDecoderCell(units, hidden, heads, pre_norm=False)",
    **{name: f"mx.gluon.loss.{way}" for name, way in LOSSES.items()},
}

GLUON = {
    "DataLoader": "gluon.data.DataLoader",
    "Dataset": "gluon.data.Dataset",
    "optim": "mx.optimizer and gluon.Trainer",
    "TensorDataset": "gluon.data.ArrayDataset",
    "pad_sequence": "nd.pad(x, mode='constant', pad_width=(0, missing), constant_value=0) for each "
    "array, then nd.stack(*arrays)",
    "Dense": "gluon.nn.Dense",
    "Sequential": "gluon.nn.Sequential",
    "HybridSequential": "gluon.nn.HybridSequential",
    "metric": "mx.metric",
    "probability": "mx.np.random",
}

FUNCTIONS = {
    "amp": "mx.contrib.amp",
    **{
        name: ARRAY[name]
        for name in "cat matmul mm bmm view masked_fill chunk clamp unsqueeze permute "
        "gather index_select masked_select narrow unbind repeat_interleave logsumexp numel clone "
        "std var triu tril unique cumprod isnan isinf isfinite nonzero remainder neg median "
        "eq ne lt le gt ge pow sub mul div".split()
    },
    "tensor": "nd.array(values, dtype=dtype); the default dtype is float32",
    "rand": "nd.random.uniform(shape=shape)",
    "randint": "nd.random.randint(low, high, shape)",
    "distributed": "mx.kv.create('dist_sync'), or mx.parallel",
    "Linear": "mx.gluon.nn.Dense",
    "randn": "nd.random.randn",
    "manual_seed": "mx.random.seed",
    "no_grad": "autograd.pause(), which is only needed inside of autograd.record()",
    "einsum": "nd.batch_dot(x, y) and x.transpose(axes), or numpy.einsum outside of hybridized "
    "blocks",
    "Tensor": "nd.NDArray",
    "device": "mx.Context, or mx.gpu(0)",
    "compile": "net.hybridize()",
    "nn": "mx.gluon.nn",
    "from_torch": "nd.from_dlpack",
    "cuda": "mx.gpu and mx.context",
    "functional": "nd",
    "optim": "mx.optimizer and mx.gluon.Trainer",
    "utils": "mx.gluon.utils and mx.gluon.data",
    **{
        name: f"numpy.{name}, which takes NDArrays"
        for name in "diff dstack fliplr flipud hstack inner outer roll tensordot trace vdot "
        "vstack".split()
    },
    **{
        name: f"numpy.{name}, which takes NDArrays and returns a NumPy array"
        for name in "all any bincount count_nonzero cov cross fmod interp isclose isin kron "
        "nan_to_num nanmean quantile rot90 searchsorted".split()
    },
    "allclose": "numpy.allclose(x, y)",
    "atan2": "numpy.arctan2(y, x), a NumPy array",
    "meshgrid": "numpy.meshgrid(*arrays, indexing='ij')",
    "lerp": "x + weight * (y - x)",
    "inverse": "nd.linalg.inverse(x)",
    "normalize": "nd.L2Normalization(x)",
    "multinomial": "nd.random.multinomial(probabilities)",
    "randperm": "nd.random.shuffle(nd.arange(count))",
    "elu": "nd.LeakyReLU(x, act_type='elu', slope=slope)",
    "leaky_relu": "nd.LeakyReLU(x, slope=slope)",
    "hardtanh": "x.clip(-1, 1)",
    "mse_loss": "mx.gluon.loss.L2Loss(weight=2)(outputs, targets).mean()",
    "l1_loss": "mx.gluon.loss.L1Loss()(outputs, targets).mean()",
    "as_tensor": "nd.array(values, dtype=dtype); the default dtype is float32",
    "scaled_dot_product_attention": "nd.contrib.attention(queries, keys, values, layout='bhtd')",
    "cross_entropy": "mx.gluon.loss.SoftmaxCrossEntropyLoss()(outputs, labels).mean()",
    "pad_sequence": GLUON["pad_sequence"],
    **{
        name: f"dtype='{name}'"
        for name in ("float16", "float32", "float64", "int8", "int32", "int64", "uint8")
    },
    "notebook": "mx.callback, or the event handlers of an estimator, with a plotting package",
    "imdecode": "mx.image.imdecode, whose images are of uint8 and the shape (height, width, 3)",
}

DATA = {
    "TensorDataset": GLUON["TensorDataset"],
    "default_collate": "gluon.data.default_batchify_fn",
    "batchify": "gluon.data.DataLoader(data, size, batchify_fn=f) with a function of samples",
    "ChainDataset": "an IterableDataset whose __iter__ chains the data sets",
}

TEXT = {
    "AutoModel": "text.from_pretrained(folder)",
    "AutoModelForCausalLM": "text.from_pretrained(folder)",
    "AutoModelForSequenceClassification": "text.from_pretrained(folder)",
    "AutoConfig": "text.from_config(folder), which creates the network",
}

TOKENIZER = {
    "apply_chat_template": "tokenizer.chat(messages), which returns text, or messages as a prompt "
    "of text.generate",
    "batch_decode": "tokenizer.decode(tokens) for each list",
    "batch_encode_plus": "tokenizer.encode(text) for each text",
    "encode_plus": "tokenizer.encode(text)",
    "tokenize": "tokenizer.encode(text)",
    "chat_template": "tokenizer.template",
    "eos_token_id": "tokenizer.stop, a list",
}

# Attributes of the networks of transformers
NETWORK = {
    "generate": "mx.gluon.model_zoo.text.generate(net, prompts, max_new=32)",
    "config": "json.load(open(file)) of the settings in the model's folder",
    "save_pretrained": "net.save_parameters(folder, format='huggingface')",
    "num_parameters": "sum(p.data().size for p in net.collect_params().values())",
    "model": "net itself, whose children are embed, layers, norm and head",
}

SCHEDULERS = {
    "StepLR": "FactorScheduler(step=step_size * len(batches), factor=gamma), which counts updates",
    "MultiStepLR": "MultiFactorScheduler(step=steps, factor=gamma), which counts updates",
    "ExponentialLR": "FactorScheduler(step=len(batches), factor=gamma), which counts updates",
    "CosineAnnealingLR": "CosineScheduler(max_update=updates, base_lr=rate)",
    "PolynomialLR": "PolyScheduler(max_update=updates, base_lr=rate, pwr=power)",
    "LambdaLR": "a function of the number of updates that returns the rate",
    "ReduceLROnPlateau": "trainer.set_learning_rate(rate)",
}

INITIALIZERS = {
    "kaiming_normal_": "MSRAPrelu(factor_type='in', slope=0)",
    "kaiming_uniform_": "Xavier(factor_type='in', magnitude=6)",
    "xavier_normal_": "Xavier(rnd_type='gaussian', magnitude=1)",
    "xavier_uniform_": "Xavier()",
}

OPTIMIZERS = {
    "lr_scheduler": "mx.lr_scheduler",
}

TRAINER = {
    "zero_grad": "net.collect_params().zero_grad(), where grad_req is 'add'; else each backward "
    "overwrites the gradients",
    "add_param_group": "a list of dicts as the params of a new Trainer",
    "lr": "trainer.learning_rate",
    "state_dict": "trainer.save_states(file)",
    "load_state_dict": "trainer.load_states(file)",
}

AUTOGRAD = {
    "no_grad": FUNCTIONS["no_grad"],
    "enable_grad": "autograd.record",
    "set_grad_enabled": "autograd.set_recording",
    **dict.fromkeys(
        ["detect_anomaly", "set_detect_anomaly"],
        "mx.monitor.Monitor, or nd.contrib.isfinite of outputs and gradients",
    ),
}

FUNCTION = {
    "apply": "an instance and call it, f = F(); y = f(x); self replaces ctx in both methods",
}

# Advice for ops in MXNet's contrib that do not exist here, or do not support symbols.
CONTRIB = {
    "quantized_rnn": "the op RNN computes with float32: dequantize the inputs, and apply "
    "quantize_v2 to the outputs",
    "calibrate_entropy": "it depends on values: use nd.contrib.calibrate_entropy",
    "getnnz": "it counts the elements of csr arrays: use nd.contrib.getnnz",
    "group_adagrad_update": "use nd.contrib.group_adagrad_update, or "
    "mx.optimizer.contrib.GroupAdaGrad",
    "hawkesll": "write its sum with nd.contrib.foreach",
    **dict.fromkeys(
        [
            "dgl_adjacency",
            "dgl_csr_neighbor_non_uniform_sample",
            "dgl_csr_neighbor_uniform_sample",
            "dgl_graph_compact",
            "dgl_subgraph",
            "edge_id",
        ],
        "sample graphs with another package, such as scipy.sparse.csgraph",
    ),
}

# The attributes that Block.__init__ sets.
_FIRST = (
    "_children",
    "_reg_params",
    "_params",
    "_prefix",
    "_name",
    "_scope",
    "_scope_ids",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_ctx_group",
    "_group2ctx",
    "_empty_prefix",
    "_active",
    "_flags",
)


def absent(kind, ways):
    """Adds attributes to a class whose access raises an AttributeError. `ways` maps their names to
    the alternative that the message suggests."""

    def error(thing, name):
        owner = thing if isinstance(thing, type) else type(thing)
        return AttributeError(
            f"'{owner.__name__}' object has no attribute '{name}'; use {ways[name]}",
            name=name,
            obj=thing,
        )

    for name in ways:
        setattr(kind, name, _core.MissingAttribute(error, name))


def absent_before_init(kind):
    """Makes the attributes set by Block.__init__ raise a helpful error if it was not called."""

    def error(block, name):
        owner = block if isinstance(block, type) else type(block)
        return AttributeError(
            f"{owner.__name__}.__init__ must call super().__init__() before anything else",
            name=name,
            obj=block,
        )

    for name in _FIRST:
        setattr(kind, name, _core.MissingAttribute(error, name))


def unsettable(param, name):
    """Returns the error for assigning one of PyTorch's settings to a Parameter."""
    return AttributeError(
        f"Parameter '{param.name}': {name} cannot be set; use {PARAMETER_SETTINGS[name]}",
        name=name,
        obj=param,
    )


def present(thing, names):
    """Filters `names`, the result of an object's __dir__: removes attributes that only raise an
    error (`absent`)."""
    kind, own = type(thing), getattr(thing, "__dict__", ())
    return [
        name
        for name in names
        if name in own
        or not isinstance(inspect.getattr_static(kind, name, None), _core.MissingAttribute)
    ]


def of_module(module, name, ways, prefix=""):
    """Returns the AttributeError for a name that a module does not have."""
    way = ways.get(name)
    if way:
        text = f"; use {prefix if way[0].isupper() else ''}{way}"
    else:
        known = vars(sys.modules[module]).get("__all__") or dir(sys.modules[module])
        text = "" if name.startswith("_") else near(name, known)
    return AttributeError(f"module '{module}' has no attribute '{name}'{text}", name=name)


def near_names(module, **ways):
    """Makes a module's errors for unknown names suggest the alternatives in `ways`, or a near
    name."""

    def error(name):
        raise of_module(module, name, ways)

    vars(sys.modules[module])["__getattr__"] = error


def late_names(module, sibling):
    """Makes a module look up missing public names in a sibling module. The sibling imports the
    module, so the module cannot import the sibling."""

    def found(name):
        source = None
        if not name.startswith("_"):
            source = importlib.import_module(f"{module.rpartition('.')[0]}.{sibling}")
        if source is None or name not in source.__all__:
            raise of_module(module, name, {})
        return getattr(source, name)

    vars(sys.modules[module])["__getattr__"] = found


def of_contrib(module, name):
    """Returns the error for an unknown name in contrib, with advice if MXNet has the op."""
    if name not in CONTRIB:
        return of_module(module, name, {})
    return AttributeError(
        f"module '{module}' has no attribute '{name}': this op of MXNet is not available; "
        f"{CONTRIB[name]}",
        name=name,
    )


def of_op(name):
    """Returns the advice for an unknown op, named as in saved files."""
    way = CONTRIB.get(name.removeprefix("_contrib_"))
    if way:
        return f"; {way}"
    return f"{near(name, _core.ops())}; mx.library.load adds the ops of your own library"


def of_package(module, name):
    """Looks up a name in the parent package. MXNet has the name in the module itself."""
    package = sys.modules[module.rpartition(".")[0]]
    if name in getattr(package, "__all__", ()):
        return getattr(package, name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


class OptionsChecked:
    """Mixin that checks constructor options; its errors suggest near names."""

    if not TYPE_CHECKING:  # type checkers read the signature of __init__ instead

        def __new__(cls, *args, **kwargs):
            if kwargs:
                check_options(cls, kwargs)
            make = super().__new__
            if make is not object.__new__:  # another base class needs the arguments
                return make(cls, *args, **kwargs)
            if cls.__init__ is object.__init__ and (args or kwargs):
                raise TypeError(f"{cls.__name__}() takes no arguments")
            return make(cls)


def check_options(kind, given):
    """Raises `unknown_option` if the constructor accepts neither an option nor **kwargs.

    Classes of this package pass only known options to their bases. Therefore, even if their
    constructor accepts **kwargs, another framework's name such as ``lr`` raises the error.
    """
    code = getattr(kind.__init__, "__code__", None)
    if code is None:
        return
    if code.co_flags & inspect.CO_VARKEYWORDS:
        foreign = [name for name in given if name in OPTIONS]
        own = foreign and kind.__module__.startswith("mpgluon.")
        if own and not all(name in _own_options(kind) for name in foreign):
            raise unknown_option(kind, given)
        return
    taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if any(name not in taken for name in given):
        raise unknown_option(kind, given)


def options_of(kind):
    """Returns the sorted options of the constructors of a class and its bases."""
    options = set()
    for base in kind.__mro__[:-1]:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]
        kinds = {parameter.kind for parameter in parameters}
        options.update(
            parameter.name
            for parameter in parameters
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        )
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            break  # without **kwargs, this constructor passes no unknown options to its base
    return sorted(options)


_own_options = functools.cache(options_of)


def unknown_option(kind, given):
    """Returns the error for options that no constructor of the class and its bases has."""
    options = options_of(kind)
    name = next((name for name in given if name not in options), next(iter(given)))
    return TypeError(
        f"{kind.__name__} has no option {name!r}{near_option(name, options)}; it takes "
        f"{', '.join(options) or 'none'}"
    )


def unknown_option_of(function, given, taken):
    """Returns the error for options that a function does not accept."""
    name = next(iter(given))
    return TypeError(
        f"{function}() has no option {name!r}{near_option(name, taken)}; it takes "
        f"{', '.join(taken)}"
    )


def near_option(name, known):
    """Returns the suggestion of `near`, or the equivalent of another framework's option."""
    ways = [way for way in OPTIONS.get(name, ()) if way in known]
    if not ways:
        return near(name, known)
    note = f" ({_VALUES[name]})" if name in _VALUES else ""
    return f"; did you mean {ways[0]!r}?{note}"


def near(name, known):
    """Returns "; did you mean 'adam'?", or "" if no known name is similar."""
    small = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), small, 1)
    return f"; did you mean {small[found[0]]!r}?" if found else ""


def constructed(instance, always=()):
    """Returns ``Kind(option=value, ...)``.

    It lists the constructor options that the object stores under their own names and that differ
    from the default.
    """
    options, seen = {}, set()
    for kind in type(instance).__mro__:
        if "__init__" not in kind.__dict__ or kind is object:
            continue
        for name, parameter in inspect.signature(kind.__init__).parameters.items():
            value = instance.__dict__.get(name)
            plain = isinstance(value, (bool, int, float, str, tuple, list))
            if plain and name not in seen and (name in always or value != parameter.default):
                options[name] = value
            seen.add(name)
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return f"{type(instance).__name__}({given})"
