"""`shard`: splits the layers of an ordinary network over devices, by a plan of name patterns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ... import _core, initializer, random
from ...base import MXNetError
from ...gluon import nn, rnn
from ...gluon._tree import (
    adapters_of,
    children,
    forget_compiled,
    own_parameters,
    refuse_partitioned,
    share_hooks,
    stand_for,
    walk,
)
from ...gluon.block import Block, HybridBlock
from ...gluon.nn.basic_layers import dense_arguments, dropout_arguments, layer_norm_arguments
from ...gluon.nn.conv_layers import convolution_arguments
from ...gluon.rnn.rnn_layer import lstm_arguments
from .. import collectives
from . import attention_blocks, heads
from .attention import SequenceParallelDropout, SequenceParallelLayerNorm
from .layers import ColumnParallelDense, ParallelConv2D, RowParallelDense, VocabParallelEmbedding
from .recurrent import ParallelLSTM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...context import Context

__all__ = ["shard"]


def _dense(kind):
    def make(layer, ctx, options):
        return kind(ctx=ctx, prefix=layer.prefix, **dense_arguments(layer), **options)

    return make


def _embedding(layer, ctx, options):
    if layer.weight.grad_stype != "default":
        raise NotImplementedError(
            "an Embedding with sparse_grad=True cannot be split, because the parts have dense "
            "gradients, and lazy optimizers would update all rows"
        )
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
            "LSTMs with a projection, clipped states or sequence lengths cannot be split"
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
        raise NotImplementedError("Dropout with axes= cannot be split along a sequence")
    return SequenceParallelDropout(arguments["rate"], ctx, prefix=layer.prefix, **options)


# kind of split -> [(class of a layer, function that creates its split form)]
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

# class of a layer -> default kind of split
_EVERY = {nn.Dense: "column", nn.Conv2D: "column", nn.Embedding: "vocab", rnn.LSTM: "gates"}


# class of a layer -> (pattern of its parameters' names, names of its children)
_PARTS = {
    nn.Dense: ("weight|bias", {"act"}),
    nn.Conv2D: ("weight|bias", {"act"}),
    nn.Embedding: ("weight", set()),
    rnn.LSTM: (r"[lr]\d+_(i2h|h2h|h2r)_(weight|bias)", set()),
    nn.LayerNorm: ("gamma|beta", set()),
    nn.Dropout: ("", set()),
}


def _addition(layer, klass):
    """Describes a feature that a layer adds to its class and that its split form would lack: a
    method of a subclass, a parameter or a child. Returns None if the layer adds nothing."""
    if adapters_of(layer) is not None:
        return "has LoRA adapters (apply them after splitting)"
    own = type(layer).__mro__[: type(layer).__mro__.index(klass)]
    for name in {name: None for scope in (layer, *own) for name in vars(scope)}:
        method = getattr(klass, name, None)
        if callable(method) and (name == "__call__" or not name.startswith("_")):
            return f"overrides {name}"
    pattern, known = _PARTS[klass]
    for name in own_parameters(layer):
        if not re.fullmatch(pattern, name):
            return f"has the additional parameter '{name}'"
    for name, child in children(layer).items():
        if name not in known:
            return f"has the additional child '{name}'"
        if type(child) is not nn.Activation:
            return f"has the activation {type(child).__name__}"
    return None


def _take_over(old, new):
    """Copies the settings of the old layer's parameters, and their values if they have any."""
    stand_for(new, type(old))
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

    Every matching layer is replaced by its split form. Like the layer, it accepts and returns one
    array, on the device of its input, so the network's code does not change. Parameters keep their
    values, or are initialized with the same values. Hooks of the layer move to its split form.
    Create the Trainer afterwards.

    Parameters
    ----------
    net : HybridBlock
        Network with initialized or uninitialized parameters.
    plan : dict of str to str
        Maps regular expressions to kinds of split. A key matches a layer's whole path in the tree
        (``encoder.0.qkv``) or its whole name (``net0_qkv``); the first match wins. The kinds are
        'column' (a Dense by its units, a Conv2D by its channels, an LSTM by its cells), 'row' (a
        Dense by its inputs), 'vocab' (an Embedding by its rows), 'channel' (a Conv2D), 'gates' (an
        LSTM), 'sequence' (a LayerNorm or Dropout along axis 1), and 'heads' (a block that
        implements attention, by its heads). A pair ``('row', {'output_ctx': ctx})`` adds options of
        the split layer. The options of 'heads' are ``inputs``, the names of the Dense children that
        compute queries, keys and values (with a single child, the first third of its units computes
        queries; with ``blocks=1``, its units are ordered by heads first); ``output``, the name of
        the child whose input is the heads; and ``attributes``, the names of the block's attributes
        with the number of heads (first) or of units of all heads. By default, common names are
        tried.
    ctx : list of Context
        Devices over which layers are split.

    Returns
    -------
    HybridBlock
        The network.

    Raises
    ------
    ValueError
        If a pattern is not a regular expression, matches nothing, or names an unknown split, or if
        a layer cannot be split in this way.
    MXNetError
        If the split does not support a layer's class, the layer adds code, parameters or children
        to its class, or shares parameters with another one.

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
    refuse_partitioned(net, "shard", "name the layers' parameters in the plan of Mesh.partition")
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
                f"{who}: unknown split {kind!r} (for '{pattern}'); expected one of "
                f"{', '.join(_KINDS)}"
            )
        try:
            rules.append((re.compile(pattern), kind, options))
        except re.error as error:
            raise ValueError(
                f"{who}: '{pattern}' is not a regular expression: {error}; '.*' matches any text"
            ) from error
    places, used, work = list(walk(net)), set(), {}
    for parent, _, path, layer in places:
        if parent in work and work[parent][1] != "heads":
            continue  # an activation belongs to its layer
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
                f"{who}: '{pattern.pattern}' does not match the whole path or name of any layer "
                f"that no earlier pattern matches; the layers are {known or 'no layers'}"
            )
    for layer, (path, kind, options) in list(work.items()):
        if kind == "heads":
            _divide_heads(layer, path, options, work, who)
    return work


def _divide_heads(block, path, options, work, who):
    """Adds the products of an attention's queries, keys, values and output to the layers to
    split."""
    try:
        inputs, output, count, choices, blocks = attention_blocks.find(block, options)
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
    # Number of units in the result of one head.
    unit = parts[-1][2]["unit"] // (3 if len(inputs) == blocks == 1 else 1)
    parts.append((output, "row", {"input_is_parallel": True, "unit": unit}))
    for name, kind, given in parts:
        work[children(block)[name]] = f"{path}.{name}", kind, given
    del work[block]  # reinsert it after its parts
    work[block] = (
        path,
        "heads",
        {"inputs": inputs, "output": output, "heads": count, "choices": choices},
    )


def every_layer(net: Block, count: int) -> dict[Block, tuple[str, str, dict[str, Any]]]:
    """Returns all layers that can be split over `count` devices and are large enough, in the form
    of `matches`."""
    shared, work = set(_shared(net)), {}
    for _, _, path, layer in walk(net):
        kind = _EVERY.get(type(layer))
        if kind is None or layer in shared or layer in work:
            continue
        if _addition(layer, type(layer)):
            continue
        weight = next(iter(own_parameters(layer).values()))
        if weight.grad_stype != "default":
            continue
        if weight.shape[0] // (4 if kind == "gates" else 1) >= count and not (
            kind == "gates" and lstm_arguments(layer) is None
        ):
            work[layer] = path, kind, {}
    return work


def _shared(net):
    """Yields the layers that share parameters with other layers."""
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
    """Replaces layers by their split forms. Changes nothing if an error occurs.

    Parameters
    ----------
    work : dict
        layer -> (path, kind of split, options), as returned by `matches`.
    ctx_of : callable
        Returns the devices for a layer.

    Returns
    -------
    dict
        layer -> its split form.
    """
    places, made, shared = list(walk(net)), {}, set(_shared(net))
    for layer, (path, _, _) in work.items():
        if layer in shared:
            raise MXNetError(
                f"{who}: '{path}' shares parameters with another layer; shared parameters "
                "cannot be split"
            )
    for layer, (path, kind, options) in work.items():
        klass, make = next(
            ((klass, make) for klass, make in _KINDS[kind] if isinstance(layer, klass)),
            (None, None),
        )
        if klass is None:
            known = ", ".join(klass.__name__ for klass, _ in _KINDS[kind])
            raise MXNetError(
                f"{who}: '{path}' is a {type(layer).__name__}, which cannot be split by "
                f"'{kind}'; that split supports {known}"
            )
        addition = None if kind == "heads" else _addition(layer, klass)
        if addition is not None:
            raise MXNetError(
                f"{who}: '{path}' ({type(layer).__name__}) {addition}, which its split form would "
                f"lack; put the addition in a block around a plain {klass.__name__}, or do not "
                "split the layer"
            )
        try:
            made[layer] = (
                heads.ParallelHeads(layer, ctx_of(layer), **options)
                if kind == "heads"
                else make(layer, ctx_of(layer), options)
            )
        except (ValueError, NotImplementedError) as error:
            raise type(error)(f"{who}: '{path}' ({type(layer).__name__}): {error}") from error
    with random.calls_at(_core.random_state()):  # keep splitting from advancing the random state
        for layer, new in made.items():
            _take_over(layer, new)
    for layer, new in made.items():
        share_hooks(new, layer)
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
