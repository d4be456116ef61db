"""`shard`: the layers of an ordinary network, split over devices by a plan of name patterns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ... import initializer, random
from ...base import MXNetError
from ...gluon import nn, rnn
from ...gluon._tree import children, forget_compiled, own_parameters
from ...gluon.block import Block, HybridBlock
from ...gluon.nn.basic_layers import dense_arguments, dropout_arguments, layer_norm_arguments
from ...gluon.nn.conv_layers import convolution_arguments
from ...gluon.rnn.rnn_layer import lstm_arguments
from .. import collectives
from . import heads
from .attention import SequenceParallelDropout, SequenceParallelLayerNorm
from .layers import ColumnParallelDense, ParallelConv2D, RowParallelDense, VocabParallelEmbedding
from .recurrent import ParallelLSTM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...context import Context

__all__ = ["shard"]


def _dense(kind):
    def make(layer, ctx, options):
        return kind(ctx=ctx, prefix=layer.prefix, **dense_arguments(layer), **options)

    return make


def _embedding(layer, ctx, options):
    rows, size = layer.weight.shape
    return VocabParallelEmbedding(
        rows,
        size,
        ctx,
        dtype=layer.weight.dtype,
        weight_initializer=layer.weight.init,
        prefix=layer.prefix,
        **options,
    )


def _convolution(layer, ctx, options):
    return ParallelConv2D(
        ctx=ctx,
        dtype=layer.weight.dtype,
        prefix=layer.prefix,
        **convolution_arguments(layer),
        **options,
    )


def _lstm(layer, ctx, options):
    arguments = lstm_arguments(layer)
    if arguments is None:
        raise NotImplementedError(
            "LSTMs with a projection, clipped states or lengths of sequences can't be split"
        )
    return ParallelLSTM(ctx=ctx, prefix=layer.prefix, **arguments, **options)


def _norm(layer, ctx, options):
    arguments = layer_norm_arguments(layer)
    axis = arguments.pop("axis")
    if axis != -1:
        raise NotImplementedError(
            f"only a LayerNorm of the last axis can be split along a sequence, not of axis {axis}"
        )
    return SequenceParallelLayerNorm(ctx, prefix=layer.prefix, **arguments, **options)


def _dropout(layer, ctx, options):
    arguments = dropout_arguments(layer)
    if arguments["axes"]:
        raise NotImplementedError("Dropout with axes= can't be split along a sequence")
    return SequenceParallelDropout(arguments["rate"], ctx, prefix=layer.prefix, **options)


# kind of split -> the layers it is for, and what they become
_KINDS = {
    "column": [
        (nn.Dense, _dense(ColumnParallelDense)),
        (nn.Conv2D, _convolution),
        (rnn.LSTM, _lstm),
    ],
    "row": [(nn.Dense, _dense(RowParallelDense))],
    "vocab": [(nn.Embedding, _embedding)],
    "channel": [(nn.Conv2D, _convolution)],
    "gates": [(rnn.LSTM, _lstm)],
    "heads": [(HybridBlock, None)],
    "sequence": [(nn.LayerNorm, _norm), (nn.Dropout, _dropout)],
}

# layer -> how it is split where every layer is to be
_EVERY = {nn.Dense: "column", nn.Conv2D: "column", nn.Embedding: "vocab", rnn.LSTM: "gates"}


def walk(block: Block, path: str = "") -> Iterator[tuple[Block, str, str, Block]]:
    """Yields the blocks below one: (parent, its name for the block, path, block)."""
    for name, child in list(children(block).items()):
        place = f"{path}.{name}" if path else name
        yield block, name, place, child
        yield from walk(child, place)


def _take_over(old, new):
    """The settings of the old layer's parameters, and their values where they have some."""
    for name, param in own_parameters(old).items():
        parts = [
            p
            for key, p in own_parameters(new).items()
            if key == name or re.fullmatch(rf"shard\d+_{re.escape(name)}", key)
        ]
        for part in parts:
            part.cast(param.dtype)
            part.lr_mult, part.wd_mult = param.lr_mult, param.wd_mult
            part.grad_req = param.grad_req
        if param.arrays is not None:
            value = param.reduced()
            for part in parts:
                part.initialize(initializer.Zero())
                part.set_data(value)
        elif param.deferred_init:
            init, _, default_init, value, key = param.deferred_init
            if value is not None:
                raise MXNetError(
                    f"parameter '{param.name}' was given a value before its shape was known; run a "
                    "batch through the network first"
                )
            for part in parts:
                part.deferred_init = (init, part.homes, default_init, None, key)
                if all(size > 0 for size in part.shape):
                    part.finish_deferred_init()


def shard(net: Block, plan: dict[str, Any], ctx: Context | Sequence[Context]) -> Block:
    """Splits layers of an ordinary network over devices, in place.

    Every matching layer is replaced by its split form, which takes and returns one array as the
    layer did, on the device where its input is: the network's code stays as it is. Parameters keep
    their values, or get those that they would have got. Make the Trainer afterwards.

    Parameters
    ----------
    net : HybridBlock
        The network; its parameters may be initialized or not.
    plan : dict of str to str
        Regular expressions that match a layer's path in the tree (``encoder.0.qkv``) or its name
        (``net0_qkv``) as a whole, and how it is split; the first that matches counts. 'column': a
        Dense by its units, a Conv2D by its channels, an LSTM by its cells; 'row': a Dense by its
        inputs; 'vocab': an Embedding by its rows; 'channel': a Conv2D; 'gates': an LSTM;
        'sequence': a LayerNorm or Dropout along axis 1; 'heads': a block with attention, written
        out, by its heads. A pair ``('row', {'output_ctx': ctx})`` gives options of the split layer;
        those of 'heads' are ``inputs``, the names of the Dense children that make queries, keys and
        values (of one, the first third of the units makes queries; with ``blocks=1`` the units are
        apart by heads first); ``output``, that of the one whose input are the heads;
        ``attributes``, the names of what counts heads (the first), or units of all heads, in the
        block. By default they are found by common names.
    ctx : list of Context
        The devices that layers are split over.

    Returns
    -------
    HybridBlock
        The network.

    Raises
    ------
    ValueError
        A pattern is no regular expression, matches nothing, or names an unknown split; or a layer
        can't be split like that.
    MXNetError
        A layer is of a kind that the split is not for, or shares parameters with another.

    Examples
    --------
    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Dense(8, in_units=4), mx.gluon.nn.Dense(2, in_units=8))
    >>> devices = [mx.cpu(0), mx.cpu(1)]
    >>> _ = mx.parallel.shard(net, {'0': 'column', '1': 'row'}, devices)
    >>> net
    HybridSequential(
      (0): ColumnParallelDense(4 -> 8, linear, over cpu(0), cpu(1))
      (1): RowParallelDense(8 -> 2, linear, over cpu(0), cpu(1))
    )
    """
    if not isinstance(net, Block):
        raise TypeError(f"shard: the network must be a Block, not {type(net).__name__}")
    ctx = collectives.contexts(ctx, "shard")
    split_layers(net, matches(net, plan, "shard"), lambda layer: ctx, "shard")
    return net


def matches(
    net: Block, plan: dict[str, Any], who: str
) -> dict[Block, tuple[str, str, dict[str, Any]]]:
    """Returns the layers that a plan of name patterns splits: layer -> (path, kind, options)."""
    rules = []
    for pattern, how in plan.items():
        kind, options = how if isinstance(how, tuple) else (how, {})
        if kind not in _KINDS:
            raise ValueError(
                f"{who}: there is no split {kind!r} (for '{pattern}'); there are "
                f"{', '.join(_KINDS)}"
            )
        try:
            rules.append((re.compile(pattern), kind, options))
        except re.error as error:
            raise ValueError(
                f"{who}: '{pattern}' is no regular expression: {error}; any text is '.*'"
            ) from error
    places, used, work = list(walk(net)), set(), {}
    for parent, _, path, layer in places:
        if parent in work and work[parent][1] != "heads":
            continue  # a layer's own activation goes with it
        for number, (pattern, kind, options) in enumerate(rules):
            if pattern.fullmatch(path) or pattern.fullmatch(layer.name):
                used.add(number)
                work.setdefault(layer, (path, kind, options))
                break
    for number, (pattern, kind, _) in enumerate(rules):
        if number not in used:
            known = ", ".join(
                f"{path} ({layer.name})"
                for _, _, path, layer in places
                if own_parameters(layer)
                or not children(layer)
                and not isinstance(layer, nn.Activation)
            )
            raise ValueError(
                f"{who}: '{pattern.pattern}' matches the whole path or name of no layer, or only "
                f"of such that an earlier pattern matches; there are {known or 'no layers'}"
            )
    for layer, (path, kind, options) in list(work.items()):
        if kind == "heads":
            _divide_heads(layer, path, options, work, who)
    return work


def _divide_heads(block, path, options, work, who):
    """An attention is split together with the products that make its queries, keys and values, and
    its output."""
    try:
        inputs, output, count, choices, blocks = heads.find(block, options)
    except (ValueError, NotImplementedError) as error:
        raise type(error)(f"{who}: '{path}' ({type(block).__name__}): {error}") from error
    parts = [
        (
            name,
            "column",
            {
                "blocks": blocks,
                "unit": children(block)[name].weight.shape[0] // (blocks * count),
                "gather_output": False,
            },
        )
        for name in inputs
    ]
    unit = parts[-1][2]["unit"] // (3 if len(inputs) == blocks == 1 else 1)  # of a head's result
    parts.append((output, "row", {"input_is_parallel": True, "unit": unit}))
    for name, kind, given in parts:
        work[children(block)[name]] = f"{path}.{name}", kind, given
    del work[block]  # the block itself comes behind its parts
    work[block] = (
        path,
        "heads",
        {"inputs": inputs, "output": output, "heads": count, "choices": choices},
    )


def every_layer(net: Block, count: int) -> dict[Block, tuple[str, str, dict[str, Any]]]:
    """Returns the layers to split over `count` devices: each that can be, and is large enough; as
    `matches` gives it."""
    shared, work = set(_shared(net)), {}
    for _, _, path, layer in walk(net):
        kind = _EVERY.get(type(layer))
        if kind is None or layer in shared or layer in work:
            continue
        weight = next(iter(own_parameters(layer).values()))
        if weight.shape[0] // (4 if kind == "gates" else 1) >= count and not (
            kind == "gates" and lstm_arguments(layer) is None
        ):
            work[layer] = path, kind, {}
    return work


def _shared(net):
    """Yields the layers that have parameters together with others."""
    owners = {}
    for _, _, _, layer in walk(net):
        for param in own_parameters(layer).values():
            if owners.setdefault(param, layer) is not layer:
                yield layer
                yield owners[param]


def split_layers(
    net: Block,
    work: dict[Block, tuple[str, str, dict[str, Any]]],
    ctx_of: Callable[[Block], Sequence[Context]],
    who: str,
) -> dict[Block, Block]:
    """Replaces layers by split ones; nothing is changed where that fails.

    Parameters
    ----------
    work : dict
        layer -> (path, kind of split, options), as of `matches`.
    ctx_of : callable
        The devices for a layer.

    Returns
    -------
    dict
        layer -> what it became.
    """
    places, made, shared = list(walk(net)), {}, set(_shared(net))
    for layer, (path, _, _) in work.items():
        if layer in shared:
            raise MXNetError(
                f"{who}: '{path}' shares parameters with another layer; shared parameters can't be "
                "split"
            )
    for layer, (path, kind, options) in work.items():
        make = next(
            (make or klass for klass, make in _KINDS[kind] if isinstance(layer, klass)), None
        )
        if make is None:
            known = ", ".join(klass.__name__ for klass, _ in _KINDS[kind])
            raise MXNetError(
                f"{who}: '{path}' is a {type(layer).__name__}, which can't be split by '{kind}'; "
                f"that is for {known}"
            )
        try:
            made[layer] = (
                heads.ParallelHeads(layer, ctx_of(layer), **options)
                if kind == "heads"
                else make(layer, ctx_of(layer), options)
            )
        except (ValueError, NotImplementedError) as error:
            raise type(error)(f"{who}: '{path}' ({type(layer).__name__}): {error}") from error
    with random.calls_at(random.get_state()):  # splitting draws nothing
        for layer, new in made.items():
            _take_over(layer, new)
    for parent, name, _, layer in places:
        if layer in made:
            children(parent)[name] = made[layer]
            for key, value in parent.__dict__.items():
                if value is layer:
                    parent.__dict__[key] = made[layer]
    for layer in made:
        for param in own_parameters(layer).values():
            param.replaced = f"{who} has split its layer '{work[layer][0]}' over devices"
    for block in [net, *[layer for _, _, _, layer in places]]:
        if isinstance(block, HybridBlock):
            forget_compiled(block)
    return made
