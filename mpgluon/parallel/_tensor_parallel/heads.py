"""Splits the heads of attention that an ordinary block implements over devices.

The block's own code runs once for each device, with the attributes that count its heads set to the
numbers of that device. Everything before the products for queries, keys and values (the
projections) is computed once. Each product gives a device its part. When the code reaches the
output product, the heads of all devices are available, and the rest is computed once, on the whole
result.

The code runs on copies of the block. Random ops before the products draw the same numbers on every
device, and the attributes that the first device's run assigns are written back to the block.
"""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _core, autograd, ndarray as nd, random
from ..._internal import kinds
from ...base import MXNetError
from ...gluon import nn
from ...gluon._nested import holds
from ...gluon._tree import children, own_parameters, run_eagerly, set_children
from ...gluon.block import Block, HybridBlock
from ...gluon.nn.attention import cache_arrays
from ...gluon.nn.basic_layers import dropout_arguments
from ...gluon.parameter import Parameter
from ...util import is_np_array, is_np_shape, np_shape
from .. import collectives
from .layers import SplitLayer, whole_weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._internal.types import DType
    from ...context import Context

__all__ = ["ParallelHeads"]

_CACHE = 7  # index of `cache` among the arguments of MultiHeadAttention


class _PerDevice(list):
    """An argument with a separate value for each device."""


def _given(args, ctx, rank):
    """Returns the arguments for the run of a device."""
    return [arg[rank] if isinstance(arg, _PerDevice) else _moved(arg, ctx[rank]) for arg in args]


class _Reached(Exception):
    """Raised when a device's run reaches the output product; its argument is the input."""


@dataclass
class _Division:
    """How a block is divided by heads.

    Attributes
    ----------
    attributes : tuple of str
        The candidate for which the parts are equal to the whole. None until `_Check` has run.
    dropouts : list
        Layout of the heads in the input of each dropout between heads (see `_form`).
    kept : dict of Context to dict
        Attributes that the block's code assigned between the heads: each device has its part.
    """

    inputs: tuple[str, ...]
    output: str
    heads: int
    candidates: list[tuple[str, ...]]
    attributes: tuple[str, ...] | None = None
    dropouts: list[Any] = field(default_factory=list)
    kept: dict[Context, dict[str, Any]] = field(default_factory=dict)


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

    Other attributes are those of the block: they can be read and assigned. An array that the
    block's code assigns between the heads is a list with the part of each device.
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
        if isinstance(block, nn.MultiHeadAttention) and block.normalizes_whole:
            raise MXNetError(
                f"shard: '{block.name}' normalizes the queries and keys of all heads together, so "
                "it cannot be split by 'heads'; place whole layers on devices instead"
            )
        # Bypass the registration of `block` as a child, because this block takes over its
        # parameters.
        self.__dict__["_block"] = block
        self._children = children(block)
        self.__dict__["_division"] = _Division(inputs, output, heads, choices)

    # Attributes that the layer lacks are read from the original block.

    def __getattr__(self, name: str) -> Any:
        if name in ("_block", "_division"):
            raise AttributeError(name)
        kept = self._division.kept
        if any(name in attributes for attributes in kept.values()):
            return [kept.get(ctx, {}).get(name) for ctx in self._ctx]
        return getattr(self._block, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_own(name):
            super().__setattr__(name, value)
            return
        self._assign(name, value)
        self._division.attributes = None  # recheck the parts on the next call

    def __delattr__(self, name: str) -> None:
        if self._is_own(name):
            super().__delattr__(name)
            return
        delattr(self._block, name)
        self._division.attributes = None

    def _is_own(self, name):
        return "_block" not in self.__dict__ or name in self.__dict__ or hasattr(type(self), name)

    def _assign(self, name, value):
        division, block = self._division, self._block
        counts = division.attributes or division.candidates[0]
        if name in counts and value != getattr(block, name):
            raise MXNetError(
                f"{self.name}: attribute '{name}' counts heads that are split over devices; set it "
                "before shard"
            )
        if isinstance(value, Parameter):
            raise NotImplementedError(
                f"{self.name}: a parameter of the block itself ('{name}') cannot be split by "
                "'heads'"
            )
        if isinstance(value, Block) and value is not children(self).get(name):
            self._check_child(name)
        setattr(block, name, value)
        for attributes in division.kept.values():
            attributes.pop(name, None)

    def _check_child(self, name):
        if name in (*self._division.inputs, self._division.output):
            raise MXNetError(
                f"{self.name}: '{name}' is split over devices with the heads and cannot be "
                "replaced; replace it before shard"
            )

    def register_child(self, block: Block, name: str | None = None) -> None:
        """Adds a child, or replaces one that is not split."""
        self._check_child(name)
        super().register_child(block, name)

    def _describe(self):
        return f"{type(self._block).__name__}, {self._division.heads} heads"

    def _counts(self, rank, attributes):
        heads = self._division.heads
        begin, end = collectives.divide(heads, len(self._ctx))[rank]
        return {name: getattr(self._block, name) * (end - begin) // heads for name in attributes}

    def _complete(self, x):
        if not isinstance(x, nd.NDArray):
            raise MXNetError(
                f"{self.name}: the inputs of attention that is split by 'heads' must be arrays, "
                "not lists of parts"
            )

    def hybrid_forward(self, F: Any, x: nd.NDArray, *args: Any) -> Any:
        home, given = x.context, [x, *args]
        args = [_moved(arg, self._ctx[0]) for arg in given[:_CACHE]]
        attends = isinstance(self._block, nn.MultiHeadAttention)
        for arg in given[_CACHE:]:
            args.append(_PerDevice(arg) if attends and arg else _moved(arg, self._ctx[0]))
        if self._division.attributes is None:
            cached = isinstance(args[-1], _PerDevice)
            _Check(self, args[:1] if cached else args).run()
        return _moved(_Run(self, args).first(), home)

    def make_cache(self, batch: int, length: int, chunk: int = 0) -> list[list[nd.NDArray]]:
        """Returns the caches of a split `MultiHeadAttention`: for each device, the arrays for its
        heads (see `MultiHeadAttention.make_cache`)."""
        if not isinstance(self._block, nn.MultiHeadAttention):
            raise NotImplementedError(
                f"{self.name}: only a split MultiHeadAttention has a cache, not a "
                f"{type(self._block).__name__}"
            )
        key = whole_weight(children(self)["key"])
        heads, dtype = self._division.heads, key.members[0].dtype
        window = self._block.cached_window if chunk else 0
        sizes = [end - begin for begin, end in collectives.divide(heads, len(self._ctx))]
        return [
            cache_arrays((batch, length, size, key.shape[0] // heads), window, chunk, ctx, dtype)
            for ctx, size in zip(self._ctx, sizes)
        ]

    def _called_on(self, ctx, child, args):
        """Calls a child on another device than its parameters, such as a norm of each head."""
        if children(child) or not isinstance(child, HybridBlock):
            raise NotImplementedError(
                f"{self.name}: '{child.name}' is used between heads and has parameters, which can "
                "only be split for a HybridBlock without children"
            )
        params = {
            name: param.data(self._ctx[0]).as_in_context(ctx)
            for name, param in own_parameters(child).items()
        }
        return child.hybrid_forward(nd, *args, **params)

    def _variant(self, stand_ins, attributes, F=None, shares=False):
        """Returns a copy of the block with other children and attributes. Only if `shares`, it
        changes lists, dicts and sets of the block in place."""
        block = copy.copy(self._block)
        for name, value in [] if shares else block.__dict__.items():
            if type(value) in (list, dict, set):
                block.__dict__[name] = copy.copy(value)
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


@dataclass
class _Progress:
    """State of one device's run. The integers count the results of `_Run` that it has used.

    Attributes
    ----------
    block : HybridBlock
        The copy of the block that runs.
    position
        Random position after the latest random call that belongs to the run.
    given, before, between : dict
        The attributes of the block's copy: at the beginning, at the first projection, and at the
        output product.
    """

    rank: int
    block: Any = None
    parts: int = 0
    shared: int = 0
    draws: int = 0  # calls of dropout layers between the projections and the output product
    drawn: int = 0  # those of them with a rate above 0
    ended: bool = False
    position: Any = None
    given: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    between: dict[str, Any] = field(default_factory=dict)


class _Run:
    """One call of the layer. The runs of all other devices are nested inside the first device's
    run: they start when it reaches the output product."""

    def __init__(self, layer, args):
        self.layer, self.args, self.batch = layer, args, args[0].shape[0]
        self.division, self.ctx = layer._division, layer.ctx
        self.spans = collectives.divide(self.division.heads, len(self.ctx))
        self.start = random.position()
        self.position = None  # random position at the first projection
        self.parts = []  # per projection: the results on all devices
        # For each call of a child before the projections: (results, random position after the
        # call).
        self.shared = []
        self.draws = []  # per dropout: the random draw on each device

    def first(self):
        """Runs the block for the first device, which computes the whole result."""
        block, progress = self.block(0)
        result = block.forward(*_given(self.args, self.ctx, 0))
        if not progress.ended:
            raise MXNetError(f"{self.layer.name}: '{self.division.output}' is not called")
        self.keep(block, progress)
        return result

    def block(self, rank):
        """Returns the block for the run of a device, and the state of the run."""
        progress = _Progress(rank)
        stand_ins = {
            name: self.child(name, child, progress) for name, child in children(self.layer).items()
        }
        attributes = {
            **self.division.kept.get(self.ctx[rank], {}),
            **self.layer._counts(rank, self.division.attributes),
        }
        block = self.layer._variant(
            stand_ins, attributes, lambda ops: _Ops(ops, self, progress), shares=not rank
        )
        progress.given, progress.block = dict(block.__dict__), block
        return block, progress

    def keep(self, block, progress):
        """Stores the attributes that a run has assigned. Arrays that were assigned between the
        heads are stored for the run's device. All other attributes are written back to the block if
        this is the first device's run."""
        now = dict(block.__dict__)
        for name in _changed(progress.before, progress.between):
            value = progress.between.get(name)
            if now.get(name) is value and holds(value, nd.NDArray):
                self.division.kept.setdefault(self.ctx[progress.rank], {})[name] = now.pop(name)
                progress.given.pop(name, None)
        for name in () if progress.rank else _changed(progress.given, now):
            if name in now:
                self.layer._assign(name, now[name])
            else:
                self.layer._block.__dict__.pop(name, None)

    def child(self, name, child, progress):
        """Returns the function that replaces a child in the copy of the block."""
        if name in self.division.inputs:
            return lambda x: self.projection(child, x, progress)
        if name == self.division.output:
            return lambda x: self.output(child, x, progress)
        return lambda *args: self.other(child, args, progress)

    def projection(self, child, x, progress):
        if not progress.parts:
            progress.before, progress.position = dict(progress.block.__dict__), random.position()
            if not progress.rank:
                self.position = progress.position
            elif progress.position != self.position:
                self.refuse_draws("before")
        if not progress.rank:
            self.parts.append(child(collectives.broadcast(x, self.ctx)))
        progress.parts += 1
        return self.parts[progress.parts - 1][progress.rank]

    def other(self, child, args, progress):
        if progress.ended:
            return child(*args)
        # Before the heads are split, all devices use the result of the first device's run.
        if not progress.parts:
            if not progress.rank:
                self.shared.append((child(*args), random.position()))
            value, after = self.shared[progress.shared]
            progress.shared += 1
            if not progress.rank:
                return value
            random.move_to(after)
            return _moved(value, self.ctx[progress.rank])
        if _is_dropout(child):
            arguments = dropout_arguments(child)
            return self.dropout(args[0], arguments["rate"], arguments["axes"], progress)
        if not progress.rank or not child.collect_params():
            return child(*args)
        return self.layer._called_on(self.ctx[progress.rank], child, args)

    def dropout(self, x, rate, axes, progress):
        """Applies dropout with the same mask as for the whole array."""
        number, rank = progress.draws, progress.rank
        progress.draws += 1
        if not rate:
            return x
        self.check_draws(progress)
        if axes:
            raise NotImplementedError(
                f"{self.layer.name}: dropout with axes= between heads cannot be split"
            )
        if number >= len(self.division.dropouts):
            raise NotImplementedError(
                f"{self.layer.name}: dropout between heads that is called only in some modes "
                "cannot be split; call it always, it acts only in training"
            )
        form = self.division.dropouts[number]
        if isinstance(form, Exception):
            raise form
        (begin, end), shape, heads = self.spans[rank], x.shape, self.division.heads
        local = end - begin
        axis, unit = (2, shape[2] // local) if form == "units" else (1, 1)
        if form == "samples":
            x = nd.reshape(x, shape=(self.batch, local, *shape[1:]))
        if not rank:
            draw = nd._internal._dropout_draw(x, axis=axis, total=heads * unit)
            self.draws.append(collectives.broadcast(draw, self.ctx))
            progress.position = random.position()
        draws = self.draws[progress.drawn]
        progress.drawn += 1
        out = nd._internal._dropout_part(
            x, draws[rank], p=rate, axis=axis, begin=begin * unit, total=heads * unit
        )
        return nd.reshape(out, shape=shape)

    def output(self, child, x, progress):
        self.check_draws(progress)
        progress.between = dict(progress.block.__dict__)
        if progress.rank:
            raise _Reached(x)
        progress.ended = True
        return child([x, *map(self.reached, range(1, len(self.ctx)))])[0]

    def reached(self, rank):
        """Runs the block for another device, from the same random numbers. Returns the input of
        the output product."""
        args = _given(self.args, self.ctx, rank)
        block, progress = self.block(rank)
        try:
            with self.ctx[rank], random.calls_from(self.start):
                block.forward(*args)
        except _Reached as reached:
            self.keep(block, progress)
            return reached.args[0]
        raise MXNetError(
            f"{self.layer.name}: '{self.division.output}' was called for one device and not for "
            "another"
        )

    def check_draws(self, progress):
        if random.position() != progress.position:
            self.refuse_draws("between")

    def refuse_draws(self, where):
        raise NotImplementedError(
            f"{self.layer.name}: random numbers {where} heads cannot be split by 'heads', except "
            "dropout through F or a child Dropout; draw them before the products for queries, "
            "keys and values"
            if where == "between"
            else f"{self.layer.name}: the devices draw different random numbers before the heads"
        )


def _is_dropout(child):
    """True for a `Dropout`, except for subclasses that compute something else."""
    return (
        isinstance(child, nn.Dropout)
        and type(child).hybrid_forward is nn.Dropout.hybrid_forward
        and type(child).forward is nn.Dropout.forward
    )


def _changed(before, after):
    """Returns the names of the attributes that differ between two copies of a block's dict."""
    return [
        name
        for name in {**before, **after}
        if name not in before or name not in after or before[name] is not after[name]
    ]


def _moved(value, ctx):
    """Moves arrays, which may be in nested lists, to a device."""
    if isinstance(value, nd.NDArray):
        return value.as_in_context(ctx)
    return (
        type(value)(_moved(item, ctx) for item in value)
        if isinstance(value, (list, tuple))
        else value
    )


def _form(layer, shape, parts):
    """Returns the layout of the heads in an input of dropout: 'axis' (a separate axis), 'samples'
    or 'units' (merged with that axis). Returns the error to raise if the layout is unknown.

    Parameters
    ----------
    shape : tuple of int
        Shape of the whole input for one sample.
    parts : list of tuple of int
        Shape of each device's input.
    """
    heads = layer._division.heads
    if len(shape) == 4 and shape[1] == heads:
        form, axis = "axis", 1
    elif len(shape) == 3 and shape[0] == heads:
        form, axis = "samples", 0
    elif len(shape) == 3 and shape[2] % heads == 0:
        form, axis = "units", 2
    else:
        form, axis = None, 0
    if form is not None and sum(part[axis] for part in parts) == shape[axis]:
        return form
    return NotImplementedError(
        f"{layer.name}: dropout of shape {shape} (of one sample) between heads cannot be split, "
        "because the axis of the heads is not known"
    )


class _Ops:
    """`F` with a dropout that draws the mask of the whole array between the heads."""

    def __init__(self, ops, run, progress):
        self._ops, self._run, self._progress = ops, run, progress

    def __getattr__(self, name):
        return getattr(self._ops, name)

    @property
    def npx(self):
        return _Extension(self)

    def Dropout(self, data, p=0.5, mode="training", axes=(), **kwargs):
        run, progress = self._run, self._progress
        if not progress.parts or progress.ended:
            return self._ops.Dropout(data, p=p, mode=mode, axes=axes, **kwargs)
        if mode != "training":
            raise NotImplementedError(
                f"{run.layer.name}: dropout with mode= between heads cannot be split"
            )
        return run.dropout(data, p, axes, progress)


class _Extension:
    """`F.npx` with the dropout of `F`."""

    def __init__(self, ops):
        self._ops, self.dropout = ops._ops.npx, ops.Dropout

    def __getattr__(self, name):
        return getattr(self._ops, name)


@dataclass
class _Sample:
    values: np.ndarray[Any, Any]
    dtype: DType
    numpy: bool  # True for an array of mx.np


class _Check:
    """Checks that the split attention computes the same as the whole one. Runs both on random
    arrays up to the output product.

    This determines the attributes that count heads. It runs in a separate thread, so that it is not
    part of a trace, and on one sample.
    """

    def __init__(self, layer, args):
        self.layer = layer
        self.rng, self.ctx = np.random.RandomState(1), args[0].context
        self.batch = args[0].shape[0]
        self.given = [self._sample(arg) for arg in args]
        # Threads start with the switches for mx.np off.
        self.switches = is_np_array(), is_np_shape()
        self.weights, self.error = {}, None
        self.shapes = []  # shapes of the inputs of the dropouts between heads in the latest run

    def _sample(self, arg):
        """Replaces arrays, which may be traced, by random values for one sample."""
        if isinstance(arg, (list, tuple)):
            return type(arg)(map(self._sample, arg))
        if not isinstance(arg, nd.NDArray):
            return arg
        shape = (1, *arg.shape[1:]) if arg.ndim and arg.shape[0] == self.batch else arg.shape
        return _Sample(self.rng.standard_normal(shape), arg.dtype, kinds.is_numpy(arg))

    def _array(self, sample):
        """Replaces samples, which may be in nested lists, by arrays."""
        if isinstance(sample, (list, tuple)):
            return type(sample)(map(self._array, sample))
        if not isinstance(sample, _Sample):
            return sample
        array = nd.array(sample.values, ctx=self.ctx, dtype=sample.dtype)
        return kinds.of_kind(array, sample.numpy)

    def run(self):
        with random.calls_at(_core.random_state()):  # the check must not advance the random state
            thread = threading.Thread(target=self._guarded, name="check of heads")
            thread.start()
            thread.join()
        if self.error is not None:
            raise self.error

    def _guarded(self):
        try:
            numpy, shapes = self.switches
            with autograd.pause(train_mode=False), self.ctx, kinds.scope(numpy), np_shape(shapes):
                self._compare()
        except Exception as error:
            self.error = error

    def _compare(self):
        layer = self.layer
        args = self._array(self.given)
        division, failures = layer._division, []
        whole = self._reached({}, None, args).asnumpy().astype("float64")
        whole_shapes = self.shapes
        for choice in division.candidates:
            parts, shapes = [], []
            try:
                for rank in range(len(layer.ctx)):
                    part = self._reached(layer._counts(rank, choice), rank, args)
                    parts.append(part.asnumpy())
                    shapes.append(self.shapes)
                divided = np.concatenate(parts, -1)
                if divided.shape != whole.shape:
                    raise MXNetError(
                        f"the heads have shape {divided.shape} in total, not {whole.shape}"
                    )
                if not np.abs(divided - whole).max() <= 1e-2 * np.abs(whole).max():
                    raise MXNetError("the values differ")
                if any(len(own) != len(whole_shapes) for own in shapes):
                    raise MXNetError("the numbers of dropouts differ")
            except (MXNetError, ValueError, TypeError) as error:
                failures.append(f"{', '.join(choice)}: {str(error).splitlines()[0]}")
                continue
            division.dropouts = [
                _form(layer, shape, [own[i] for own in shapes])
                for i, shape in enumerate(whole_shapes)
            ]
            division.attributes = choice
            return
        raise MXNetError(
            f"shard: the attention '{layer.name}' ({type(layer._block).__name__}) changes if it "
            f"is divided by heads ({'; '.join(failures)}). List all attributes of the block "
            "that count heads, or units of all heads, as in ('heads', {'attributes': ('heads', "
            "'units')})"
        )

    def _reached(self, attributes, rank, args):
        stand_ins, division = {}, self.layer._division
        for name, child in children(self.layer).items():
            if name in division.inputs:
                stand_ins[name] = lambda x, name=name, child=child: self._project(
                    x, name, child, rank
                )
            elif name == division.output:
                stand_ins[name] = self._end
            elif _is_dropout(child):
                stand_ins[name] = self.dropout
            elif child.collect_params():
                stand_ins[name] = lambda *given, child=child: self._other(child, given)
        self.apart, self.shapes = False, []
        block = self.layer._variant(stand_ins, attributes, lambda ops: _WithoutDropout(ops, self))
        try:
            block.forward(*args)
        except _Reached as reached:
            return reached.args[0]
        raise MXNetError(f"'{division.output}' is not called")

    def dropout(self, x):
        if self.apart:
            self.shapes.append(x.shape)
        return x

    def _other(self, child, args):
        """Calls a child between the heads. Other children return their input."""
        return self.layer._called_on(self.ctx, child, args) if self.apart else args[0]

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
        weight = kinds.like(nd.array(self.weights[name], ctx=x.context, dtype=x.dtype), x)
        if rank is not None:
            weight = whole_weight(child).take(weight, rank)
        return nd.FullyConnected(x, weight, num_hidden=weight.shape[0], no_bias=True, flatten=False)


class _WithoutDropout:
    """`F` for the check, without dropout."""

    def __init__(self, ops, check):
        self._ops, self._check = ops, check

    def __getattr__(self, name):
        return getattr(self._ops, name)

    @property
    def npx(self):
        return _Extension(self)

    def Dropout(self, data, *_, **__):
        return self._check.dropout(data)
