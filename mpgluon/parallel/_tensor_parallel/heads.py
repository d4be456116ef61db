"""Attention written in an ordinary block, whose heads are split over devices.

The block's own code runs once for each device, with the attributes that count its heads set to the
numbers of that device. Everything before the products for queries, keys and values is computed
once. There, each device receives its part. When the code reaches the output product, the heads of
all devices are available, and the rest is computed once, on the whole result.
"""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _core, autograd, ndarray as nd, random
from ...base import MXNetError
from ...gluon import nn
from ...gluon._tree import children, own_parameters, run_eagerly, set_children
from ...gluon.block import Block
from ...gluon.nn.basic_layers import dense_arguments, dropout_arguments
from .. import collectives
from .layers import SplitLayer, whole_weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...context import Context
    from ...gluon.block import HybridBlock

__all__ = ["ParallelHeads"]

_HEADS = ("heads", "num_heads", "n_heads", "nhead", "_heads", "_num_heads")
_INPUTS = (
    ("qkv",),
    ("_qkv",),
    ("in_proj",),
    ("query", "key", "value"),
    ("q", "k", "v"),
    ("q_proj", "k_proj", "v_proj"),
    ("proj_query", "proj_key", "proj_value"),
)
_OUTPUT = ("out", "output", "proj", "out_proj", "proj_out", "_out")


class _Reached(Exception):
    """Raised when a device's run reaches the output product; its argument is the input."""


class ParallelHeads(SplitLayer):
    """A block with attention whose heads are split. Created by `shard` for 'heads'.

    Parameters
    ----------
    block : HybridBlock
        Block for batch-first arrays. Its children become this block's children, after those that
        are split were replaced.
    ctx : list of Context
        Devices; each has ``heads / len(ctx)`` of the heads.
    inputs : tuple of str
        Names of the children that compute queries, keys and values: `ColumnParallelDense`.
    output : str
        Name of the child whose input is the heads of all devices: `RowParallelDense`.
    heads : int
        Number of heads.
    choices : list of tuple of str
        Candidates for the block's attributes that count heads or units. The first candidate for
        which the parts are equal to the whole is used.
    """

    def __init__(
        self,
        block: HybridBlock,
        ctx: Sequence[Context],
        inputs: tuple[str, ...],
        output: str,
        heads: int,
        choices: list[tuple[str, ...]],
    ) -> None:
        super().__init__(ctx, prefix=block.prefix)
        # Bypasses registration, because its parameters belong to this block.
        self.__dict__["_block"] = block
        self._children = children(block)
        self._inputs, self._output, self._heads, self._choices = inputs, output, heads, choices
        self._checked, self._dropouts = False, []

    def __getattr__(self, name: str) -> Any:  # gives access to the block's attributes
        if name == "_block":
            raise AttributeError(name)
        return getattr(self._block, name)

    def _describe(self):
        return f"{type(self._block).__name__}, {self._heads} heads"

    def _counts(self, rank, attributes):
        begin, end = collectives.divide(self._heads, len(self._ctx))[rank]
        return {
            name: getattr(self._block, name) * (end - begin) // self._heads for name in attributes
        }

    def _complete(self, x):
        if not isinstance(x, nd.NDArray):
            raise MXNetError(
                f"{self.name}: the inputs of attention that is split by 'heads' must be arrays, "
                "not lists of parts"
            )

    def hybrid_forward(self, F: Any, x: nd.NDArray, *args: Any) -> Any:
        home, args = x.context, [_moved(arg, self._ctx[0]) for arg in (x, *args)]
        if not self._checked:
            _Check(self, args).run()
            self._checked = True
        return _moved(_Run(self, args).block(0).forward(*args), home)

    def _variant(self, stand_ins, attributes, F=None):
        """Returns a copy of the block with other children and attributes."""
        block = copy.copy(self._block)
        block.__dict__.update(attributes)
        run_eagerly(block)
        set_children(
            block, {name: stand_ins.get(name, child) for name, child in self._children.items()}
        )
        for key, value in block.__dict__.items():
            if isinstance(value, Block):
                name = next(
                    (name for name, child in self._children.items() if child is value), None
                )
                if name in stand_ins:
                    block.__dict__[key] = stand_ins[name]
        if F is not None:
            block.__dict__["hybrid_forward"] = lambda ops, *args, **params: type(
                block
            ).hybrid_forward(block, F(ops), *args, **params)
        return block


class _Run:
    """One call. The runs of the other devices are nested inside the run of the first device."""

    def __init__(self, layer, args):
        self.layer, self.args, self.batch = layer, args, args[0].shape[0]
        self.ctx = layer.ctx
        self.spans = collectives.divide(layer._heads, len(self.ctx))
        # Results of each projection, results of each child before the projections, draws of each
        # dropout.
        self.parts, self.shared, self.draws = (
            [],
            [],
            [],
        )

    def block(self, rank):
        """Returns the block for the run of a device."""
        # Number of results of each kind that the run has used.
        so_far = {
            "parts": 0,
            "shared": 0,
            "draws": 0,
            "ended": False,
        }
        stand_ins = {
            name: self.child(name, child, rank, so_far)
            for name, child in children(self.layer).items()
        }
        return self.layer._variant(
            stand_ins,
            self.layer._counts(rank, self.layer._choices[0]),
            lambda ops: _Ops(ops, self, rank, so_far),
        )

    def child(self, name, child, rank, so_far):
        """Returns the replacement for a child."""
        if name in self.layer._inputs:
            return lambda x: self.projection(child, x, rank, so_far)
        if name == self.layer._output:
            return lambda x: self.output(child, x, rank, so_far)
        return lambda *args: self.other(child, args, rank, so_far)

    def projection(self, child, x, rank, so_far):
        if not rank:
            self.parts.append(child(collectives.broadcast(x, self.ctx)))
        so_far["parts"] += 1
        return self.parts[so_far["parts"] - 1][rank]

    def other(self, child, args, rank, so_far):
        if so_far["ended"]:
            return child(*args)
        if not so_far["parts"]:  # before the heads are split: computed once for all devices
            if not rank:
                self.shared.append(child(*args))
            so_far["shared"] += 1
            value = self.shared[so_far["shared"] - 1]
            return _moved(value, self.ctx[rank]) if rank else value
        if isinstance(child, nn.Dropout):
            arguments = dropout_arguments(child)
            if arguments["axes"]:
                raise NotImplementedError(
                    f"{self.layer.name}: dropout with axes= between heads cannot be split"
                )
            rate = arguments["rate"]
            return self.dropout(args[0], rate, rank, so_far) if rate else args[0]
        if child.collect_params():
            raise NotImplementedError(
                f"{self.layer.name}: '{child.name}' has parameters and is used between heads, "
                "which cannot be split"
            )
        return child(*args)

    def dropout(self, x, rate, rank, so_far):
        """Applies dropout with the same mask as for the whole array."""
        (begin, end), shape, form = self.spans[rank], x.shape, self.layer._dropouts[so_far["draws"]]
        local, heads = end - begin, self.layer._heads
        axis, unit = (2, shape[2] // local) if form == "units" else (1, 1)
        if form == "samples":
            x = nd.reshape(x, shape=(self.batch, local, *shape[1:]))
        if not rank:
            draw = nd._internal._dropout_draw(x, axis=axis, total=heads * unit)
            self.draws.append(collectives.broadcast(draw, self.ctx))
        so_far["draws"] += 1
        out = nd._internal._dropout_part(
            x,
            self.draws[so_far["draws"] - 1][rank],
            p=rate,
            axis=axis,
            begin=begin * unit,
            total=heads * unit,
        )
        return nd.reshape(out, shape=shape)

    def output(self, child, x, rank, so_far):
        if rank:
            raise _Reached(x)
        so_far["ended"] = True
        return child([x, *map(self.reached, range(1, len(self.ctx)))])[0]

    def reached(self, rank):
        args = [_moved(arg, self.ctx[rank]) for arg in self.args]
        try:
            with self.ctx[rank]:
                self.block(rank).forward(*args)
        except _Reached as reached:
            return reached.args[0]
        raise MXNetError(
            f"{self.layer.name}: '{self.layer._output}' was called for one device and not for "
            "another"
        )


def _moved(value, ctx):
    """Moves arrays, which may be in nested lists, to a device."""
    if isinstance(value, nd.NDArray):
        return value.as_in_context(ctx)
    return (
        type(value)(_moved(item, ctx) for item in value)
        if isinstance(value, (list, tuple))
        else value
    )


def _form(layer, x):
    """Returns the layout of the heads in an input of dropout: a separate axis, merged with the
    samples, or merged with the units."""
    heads = layer._heads  # the array has one sample
    if x.ndim == 4 and x.shape[1] == heads:
        return "axis"
    if x.ndim == 3 and x.shape[0] == heads:
        return "samples"
    if x.ndim == 3 and x.shape[2] % heads == 0:
        return "units"
    raise NotImplementedError(
        f"{layer.name}: dropout of shape {x.shape} (of one sample) between heads cannot be "
        "split, because the axis of the heads is not known"
    )


class _Ops:
    """`F` with dropout between heads replaced."""

    def __init__(self, ops, run, rank, so_far):
        self._ops, self._state = ops, (run, rank, so_far)

    def __getattr__(self, name):
        return getattr(self._ops, name)

    def Dropout(self, data, p=0.5, mode="training", axes=(), **kwargs):
        run, rank, so_far = self._state
        if not so_far["parts"] or so_far["ended"]:
            return self._ops.Dropout(data, p=p, mode=mode, axes=axes, **kwargs)
        if axes or mode != "training":
            raise NotImplementedError(
                f"{run.layer.name}: dropout with axes= or mode= between heads cannot be split"
            )
        return run.dropout(data, p, rank, so_far)


class _Check:
    """Checks that the parts are equal to the whole: runs the attention on random arrays up to the
    output product, whole and split.

    This determines the attributes that count heads. It runs in a separate thread, so that it is not
    part of a trace, and on one sample.
    """

    def __init__(self, layer, args):
        self.layer = layer
        rng, batch = np.random.RandomState(1), args[0].shape[0]
        ctx, dtype = args[0].context, args[0].dtype

        def sample(arg):
            if isinstance(arg, (list, tuple)):
                return type(arg)(map(sample, arg))
            if not isinstance(arg, nd.NDArray):
                return arg
            shape = (1, *arg.shape[1:]) if arg.ndim and arg.shape[0] == batch else arg.shape
            return rng.standard_normal(shape), arg.dtype

        self.samples, self.ctx, self.dtype, self.rng = (
            [sample(arg) for arg in args],
            ctx,
            dtype,
            rng,
        )
        self.weights, self.error, self.forms = {}, None, None

    def run(self):
        with random.calls_at(_core.random_state()):  # the check must not advance the random state
            thread = threading.Thread(target=self._guarded, name="check of heads")
            thread.start()
            thread.join()
        if self.error is not None:
            raise self.error

    def _guarded(self):
        try:
            with autograd.pause(train_mode=False), self.ctx:
                self._compare()
        except Exception as error:
            self.error = error

    def _compare(self):
        layer = self.layer
        args = [
            nd.array(arg[0], ctx=self.ctx, dtype=arg[1])
            if isinstance(arg, tuple) and isinstance(arg[0], np.ndarray)
            else arg
            for arg in self.samples
        ]
        self.forms = []
        whole = self._reached({}, None, args).asnumpy().astype("float64")
        layer._dropouts, self.forms = self.forms, None
        failures = []
        for choice in layer._choices:
            try:
                parts = [
                    self._reached(layer._counts(rank, choice), rank, args).asnumpy()
                    for rank in range(len(layer.ctx))
                ]
                divided = np.concatenate(parts, -1)
                if divided.shape != whole.shape:
                    raise MXNetError(
                        f"the heads have shape {divided.shape} in total, not {whole.shape}"
                    )
                if not np.abs(divided - whole).max() <= 1e-2 * np.abs(whole).max():
                    raise MXNetError("the values differ")
            except (MXNetError, ValueError, TypeError) as error:
                failures.append(f"{', '.join(choice)}: {str(error).splitlines()[0]}")
                continue
            layer._choices = [choice]
            return
        raise MXNetError(
            f"shard: the attention '{layer.name}' ({type(layer._block).__name__}) changes if it "
            f"is divided by heads ({'; '.join(failures)}). List all attributes of the block "
            "that count heads, or units of all heads, as in ('heads', {'attributes': ('heads', "
            "'units')})"
        )

    def _reached(self, attributes, rank, args):
        stand_ins = {}
        for name, child in children(self.layer).items():
            if name in self.layer._inputs:
                stand_ins[name] = lambda x, name=name, child=child: self._project(
                    x, name, child, rank
                )
            elif name == self.layer._output:
                stand_ins[name] = self._end
            elif isinstance(child, nn.Dropout):
                rate = dropout_arguments(child)["rate"]
                stand_ins[name] = lambda x, rate=rate: self.dropout(x) if rate else x
            elif child.collect_params():
                stand_ins[name] = lambda x, *_: x  # children before or after the heads
        self.apart = False
        block = self.layer._variant(stand_ins, attributes, lambda ops: _WithoutDropout(ops, self))
        try:
            block.forward(*args)
        except _Reached as reached:
            return reached.args[0]
        raise MXNetError(f"'{self.layer._output}' is not called")

    def dropout(self, x):
        if self.apart and self.forms is not None:
            self.forms.append(_form(self.layer, x))
        return x

    @staticmethod
    def _end(x):
        raise _Reached(x)

    def _project(self, x, name, child, rank):
        """Projects `x` with random weights, which are the same for each call of a child."""
        units, self.apart = whole_weight(child).shape[0], True
        if name not in self.weights:
            self.weights[name] = (
                self.rng.standard_normal((units, x.shape[-1])) * x.shape[-1] ** -0.5
            )
        weight = nd.array(self.weights[name], ctx=x.context, dtype=x.dtype)
        if rank is not None:
            weight = whole_weight(child).take(weight, rank)
        return nd.FullyConnected(x, weight, num_hidden=weight.shape[0], no_bias=True, flatten=False)


class _WithoutDropout:
    """`F` for the check, without dropout."""

    def __init__(self, ops, check):
        self._ops, self._check = ops, check

    def __getattr__(self, name):
        return getattr(self._ops, name)

    def Dropout(self, data, **_):
        return self._check.dropout(data)


def find(block: Block, options: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the parts of an attention to be split: names of the inputs and of the output, number
    of heads, candidates for attributes, blocks."""
    options = dict(options)
    inputs, output, attributes = (
        options.pop(name, None) for name in ("inputs", "output", "attributes")
    )
    blocks = options.pop("blocks", 3)
    if options:
        raise ValueError(
            f"'heads' has no option {', '.join(map(repr, options))}; its options are inputs, "
            "output, attributes and blocks"
        )
    if own_parameters(block):
        raise NotImplementedError(
            f"the block has its own parameters ({', '.join(own_parameters(block))}), which "
            "cannot be split by 'heads'"
        )
    dense = {name: child for name, child in children(block).items() if isinstance(child, nn.Dense)}
    inputs, output = _products(dense, inputs, output)
    blocks_of_input = blocks if len(inputs) == 1 else 1
    heads, choices = _counters(
        block, attributes, dense[inputs[0]].weight.shape[0] // blocks_of_input, blocks
    )
    for name in inputs:
        units = dense[name].weight.shape[0]
        if units % (blocks_of_input * heads):
            raise ValueError(
                f"the {units} units of '{name}' cannot be divided into {blocks_of_input} x "
                f"{heads} heads"
            )
        if dense_arguments(dense[name])["flatten"]:
            raise ValueError(
                f"'{name}' has flatten=True, so it cannot compute the heads of a sequence"
            )
    return inputs, output, heads, choices, blocks_of_input


def _products(dense, inputs, output):
    """Returns the names of the Dense children that compute queries, keys and values, and of the
    output child. If they are not given, common names are tried."""
    there = f"its Dense children are {', '.join(dense) or 'none'}"
    if inputs is None:
        inputs = next((names for names in _INPUTS if all(name in dense for name in names)), None)
        if inputs is None:
            raise ValueError(
                f"cannot infer which children compute queries, keys and values ({there}); pass "
                "inputs="
            )
    inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    if output is None:
        output = next((name for name in _OUTPUT if name in dense and name not in inputs), None)
        if output is None:
            raise ValueError(
                f"cannot infer which child computes the output ({there}); pass output="
            )
    for name in (*inputs, output):
        if name not in dense:
            raise ValueError(f"'{name}' is not a Dense child of the block; {there}")
    return inputs, output


def _counters(block, attributes, units, blocks):
    """Returns the number of heads, and candidates for the attributes to divide: the number of
    heads, and possibly numbers of units of all heads."""
    numbers = {
        name: value for name, value in block.__dict__.items() if type(value) is int and value > 0
    }
    if attributes is not None:
        attributes = (attributes,) if isinstance(attributes, str) else tuple(attributes)
        missing = [name for name in attributes if name not in numbers]
        if missing:
            raise ValueError(
                f"the block has no integer attribute '{missing[0]}'; it has "
                f"{', '.join(numbers) or 'none'}"
            )
        return numbers[attributes[0]], [attributes]
    counting = next((name for name in _HEADS if name in numbers), None)
    if counting is None:
        raise ValueError(
            "cannot infer which attribute is the number of heads (integer attributes: "
            f"{', '.join(numbers) or 'no numbers'}); pass attributes="
        )
    more = tuple(
        name
        for name, value in numbers.items()
        if value in (units, blocks * units) and name != counting
    )
    choices = [(counting,), (counting, *more)] if more else [(counting,)]
    return numbers[counting], choices
