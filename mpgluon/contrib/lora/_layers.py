"""Adapters of a network's layers: creation, activation, merging and removal."""

from __future__ import annotations

import inspect
import re
import warnings
from typing import TYPE_CHECKING, Any

from ... import autograd, initializer
from ..._core import dtype_name
from ..._internal import domain
from ..._internal.hints import unknown_option_of
from ...context import cpu
from ...gluon import nn
from ...gluon._tree import adapters_of, children, own_parameters, refuse_partitioned, set_adapters
from ...gluon.block import Block
from ...gluon.nn.quantized_layers import float_like
from ...gluon.parameter import Constant, Parameter, ParameterDict
from ...gluon.parameter._parameter_dict import discard_parameter
from ...gluon.utils import brief, shape_is_known
from ...parallel import ColumnParallelDense, RowParallelDense, VocabParallelEmbedding
from ...parallel._tensor_parallel.layers import SplitLayer, lie_on, lines_of
from ...parallel._tensor_parallel.parameters import home_parameter, split_parameter
from ._adapters import (
    Adapters,
    Options,
    dtype_of,
    family_of,
    is_embedding,
    merged_values,
    parts_of,
    row_norms,
    shape_of,
    weight_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Never

    from ..._internal.types import DType

_KINDS = (
    ColumnParallelDense,
    RowParallelDense,
    VocabParallelEmbedding,
    nn.Dense,
    nn.QuantizedDense,
    nn.Embedding,
)
_ELSEWHERE = "save the adapters (lora.save), and load them into a network that is not partitioned"
_NAMES = "nn.Dense, nn.QuantizedDense and nn.Embedding, and their split forms"


def layers(net: Block, path: str = "") -> Iterator[tuple[str, Block]]:
    """Yields (path, block) for a network and its descendants, each block once."""
    seen: set[int] = set()

    def visit(block, path):
        if id(block) in seen:
            return
        seen.add(id(block))
        yield path, block
        for name, child in children(block).items():
            yield from visit(child, f"{path}.{name}" if path else name)

    return visit(net, path)


def adapted(net: Block, who: str, name: str | None = None) -> dict[str, Block]:
    """Returns the layers that have adapters, or the adapter `name`, by path. Raises ValueError if
    none has."""
    if not isinstance(net, Block):
        raise TypeError(f"lora.{who}: the network must be a Block, not {type(net).__name__}")
    found = {path: block for path, block in layers(net) if adapters_of(block) is not None}
    if name is None:
        if not found:
            raise ValueError(
                f"lora.{who}: '{net.name}' has no adapters; create them with lora.apply or "
                "lora.load"
            )
        return found
    named = {path: block for path, block in found.items() if name in adapters_of(block).options}
    if not named:
        names = dict.fromkeys(n for block in found.values() for n in adapters_of(block).options)
        raise ValueError(
            f"lora.{who}: '{net.name}' has no adapter {name!r}; its adapters are "
            f"{brief(names) if names else 'none'}"
        )
    return named


def _kind(layer):
    return next((kind for kind in _KINDS if isinstance(layer, kind)), None)


def unsupported(layer):
    """Returns the reason why a layer cannot have adapters, or None."""
    kind = _kind(layer)
    if kind is None:
        return f"is a {type(layer).__name__}; adapters support {_NAMES}"
    if type(layer).hybrid_forward is not kind.hybrid_forward:
        return (
            f"({type(layer).__name__}) overrides hybrid_forward of {kind.__name__}, which would "
            f"ignore the adapter; put a plain {kind.__name__} into the block"
        )
    if kind is nn.Embedding and layer.weight.grad_stype != "default":
        return "is an Embedding with sparse_grad=True; create it without this option"
    return None


def _matches(net, targets):
    """Returns {path: (layer, rank)} for the layers that the patterns match. The first match
    wins."""
    if not isinstance(targets, dict) or not targets:
        raise TypeError(
            "lora.apply: targets must be a dict of patterns to ranks, such as "
            f"{{'.*(query|value)': 16}}, not {targets!r}"
        )
    rules = []
    for pattern, rank in targets.items():
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise ValueError(
                f"lora.apply: the rank of {pattern!r} must be at least 1, not {rank!r}"
            )
        try:
            rules.append((re.compile(pattern), rank))
        except re.error as error:
            raise ValueError(
                f"lora.apply: {pattern!r} is not a regular expression: {error}"
            ) from error
    found, matched = {}, [[] for _ in rules]
    for path, layer in layers(net):
        for number, (pattern, rank) in enumerate(rules):
            if pattern.fullmatch(path) or pattern.fullmatch(layer.name):
                matched[number].append((path, layer))
                if unsupported(layer) is None:
                    found[path] = layer, rank
                break
    for (pattern, _), hits in zip(rules, matched):
        if any(path in found for path, _ in hits):
            continue
        if hits:
            path, layer = hits[-1]
            raise ValueError(f"lora.apply: '{path}' {unsupported(layer)}")
        known = [path for path, layer in layers(net) if unsupported(layer) is None]
        raise ValueError(
            f"lora.apply: {pattern.pattern!r} does not match the whole path or name of any layer "
            f"that no earlier pattern matches; layers that can have adapters are "
            f"{brief(known) if known else 'none'}"
        )
    return found


def _warn_of_experts(net, targets, found):
    """Warns if patterns for whole layers match only the routers of their experts."""
    if any("router" in pattern for pattern in targets):
        return  # the caller means the routers
    routers = {block.router for _, block in layers(net) if isinstance(block, nn.MoE)}
    hits = [path for path, (layer, _) in found.items() if layer in routers]
    if hits:
        warnings.warn(
            f"lora.apply: {brief(hits)} get adapters, but the experts of nn.MoE cannot have any; "
            "give patterns that leave the routers out to adapt the other layers only",
            stacklevel=3,
        )


def apply(
    net: Block,
    targets: dict[str, int] | None = None,
    alpha: float = 32,
    dropout: float = 0.0,
    dora: bool = False,
    rslora: bool = False,
    name: str = "default",
    dtype: DType | None = None,
    **kwargs: Never,
) -> list[str]:
    """Adds an adapter to layers of a network, and freezes all other parameters.

    The layer's product becomes ``x W' + scale * dropout(x) A' B'``, before its activation. A has
    random values and B zeros, so the results do not change at first. A and B are on the devices of
    the weight. If a layer is split by units, B is split, and if it is split by inputs, A is.
    Parameters that had a gradient get ``grad_req='null'``; `remove` restores them. If layers share
    a weight, each has its own adapter.

    Apply adapters after the network was placed and cast, and create the Trainer afterwards. A
    second adapter needs another name. It becomes the active one.

    Parameters
    ----------
    net : Block
        The network.
    targets : dict of str to int
        Maps regular expressions to ranks. A key matches a layer's whole path in the tree
        (``layers.0.query``) or its whole name; the first match wins. A pattern may match other
        blocks as well, which are ignored if it matches a layer that can have adapters. The experts
        of `nn.MoE` cannot have adapters: a pattern that matches their router warns, unless it
        contains "router".
    alpha : float, default 32
        The scale is ``alpha / rank``.
    dropout : float, default 0.0
        Probability with which inputs of the adapter are dropped in training.
    dora : bool, default False
        Whether to also train the norm of each row of the weight (Liu et al., "DoRA", 2024). Needs
        initialized layers. Supports `Dense` only.
    rslora : bool, default False
        Whether the scale is ``alpha / sqrt(rank)``.
    name : str, default 'default'
        Name of the adapter: letters, digits and underscores.
    dtype : str or numpy.dtype, optional
        Data type of A and B. By default that of the weight, but float32 for weights of 16 bits;
        the sum is then computed in float32 and rounded once.

    Returns
    -------
    list of str
        The paths of the layers.

    Raises
    ------
    TypeError
        If `targets` are missing or no dict, or an option is unknown.
    ValueError
        If a pattern matches no layer that can have adapters, or a layer already has an adapter of
        this name.

    Examples
    --------
    >>> from mpgluon.contrib import lora
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Dense(8, in_units=4), nn.Dense(2, in_units=8))
    >>> net.initialize()
    >>> lora.apply(net, {'0': 2}, alpha=4)
    ['0']
    >>> [p.shape for p in lora.parameters(net).values()]
    [(2, 4), (8, 2)]
    >>> [p.grad_req for p in net.collect_params('.*(weight|bias)').values()]
    ['null', 'null', 'null', 'null']
    """
    if kwargs:
        known = [*inspect.signature(apply).parameters][1:-1]
        raise unknown_option_of("lora.apply", kwargs, known)
    if not isinstance(net, Block):
        raise TypeError(f"lora.apply: the network must be a Block, not {type(net).__name__}")
    if not isinstance(name, str) or not re.fullmatch(r"\w+", name):
        raise ValueError(
            f"lora.apply: name must consist of letters, digits and underscores, not {name!r}"
        )
    domain.fraction(dropout=dropout)
    found = _matches(net, targets)
    _warn_of_experts(net, targets, found)
    work = {}
    for path, (layer, rank) in found.items():
        have = dtype_of(layer)
        own = dtype_name(dtype) if dtype is not None else have
        if dtype is None and have in ("float16", "bfloat16"):
            own = "float32"
        work[path] = layer, Options(rank, float(alpha), dropout, dora, rslora, own)
    attach(net, work, name, "apply")
    return list(work)


def attach(net: Block, work: dict[str, tuple[Block, Options]], name: str, who: str) -> None:
    """Adds the adapter `name` to layers (path -> layer, options), after checking all of them."""
    refuse_partitioned(net, f"lora.{who}", "add adapters before the network is partitioned")
    for path, (layer, option) in work.items():
        current = adapters_of(layer)
        if current is not None and name in current.options:
            raise ValueError(
                f"lora.{who}: '{path}' already has an adapter {name!r}; give the new one another "
                f"name, or remove the old one with lora.remove(net, {name!r})"
            )
        if current is not None and current.kept is not None:
            raise ValueError(
                f"lora.{who}: adapters of '{path}' are merged; call lora.unmerge first"
            )
        if option.dora and type(layer) not in (nn.Dense, nn.QuantizedDense):
            raise ValueError(
                f"lora.{who}: '{path}' is a {type(layer).__name__}; dora=True needs nn.Dense or "
                "nn.QuantizedDense"
            )
        weight = weight_of(layer)
        if option.dora and weight.arrays is None:
            raise ValueError(
                f"lora.{who}: dora=True needs the weight of '{path}'; initialize the network and "
                "run one batch first"
            )
        if isinstance(layer, SplitLayer) and not shape_is_known(weight.shape):
            raise ValueError(
                f"lora.{who}: the shape of the split layer '{path}' is not known yet; run one "
                "batch first, or give in_units when the layer is created"
            )
    _refuse_merged({p: b for p, b in layers(net) if adapters_of(b) is not None}, who)
    for layer, option in work.values():
        _attach(layer, option, name)
    _freeze(net)
    _activate(adapted(net, who).values(), (name,))


def _attach(layer, option, name):
    a, b = f"lora_A_{name}", f"lora_B_{name}"
    split = isinstance(layer, SplitLayer)
    outputs, inputs = shape_of(layer)
    if is_embedding(layer):
        # A has a row for each index, as the weight has. PEFT stores it transposed.
        made = {
            a: ((outputs, option.rank), "zeros", 0),
            b: ((inputs, option.rank), initializer.Normal(1), None),
        }
    else:
        # PyTorch's nn.Linear draws from the same distribution: uniform within 1 / sqrt(inputs).
        draw = initializer.Xavier(rnd_type="uniform", factor_type="in", magnitude=1)
        made = {
            a: ((option.rank, inputs), draw, 1),
            b: ((outputs, option.rank), "zeros", 0),
        }
    if option.dora:
        made[f"lora_magnitude_{name}"] = (outputs,), "ones", 0
    for key, (shape, init, axis) in made.items():
        options = {"init": init, "dtype": option.dtype}
        if not split:
            param = Parameter(layer.prefix + key, shape=shape, allow_deferred_init=True, **options)
            layer.params.update({param.name: param})
            setattr(layer, key, param)
            continue
        family, line = family_of(layer), lines_of(layer)[0]
        if axis == family.axis:  # this matrix is split along the axis of the weight
            split_parameter(layer, key, shape, axis, line, family.blocks, family.unit, **options)
        else:
            home_parameter(layer, key, shape, line[0], **options)
    if split:
        lie_on(layer, lines_of(layer))
    weight = weight_of(layer)
    for key, param in parts_of(layer, name).items():
        if weight.arrays is not None or weight.deferred_init:
            param.initialize(ctx=weight.list_ctx())
        param.placed, param.floating = weight.placed, weight.floating
        if key.startswith("lora_magnitude"):
            if isinstance(layer, nn.QuantizedDense):
                whole = layer.dequantized(option.dtype)
            else:
                whole = weight.reduced().astype(option.dtype)
            param.set_data(row_norms(whole))
    current = adapters_of(layer)
    options = {} if current is None else current.options
    set_adapters(layer, Adapters({**options, name: option}, ()))


def _freeze(net):
    own = set(parameters(net).values())
    for param in net.collect_params().values():
        if param not in own and not isinstance(param, Constant) and param.grad_req != "null":
            param.frozen_req = param.grad_req
            param.grad_req = "null"


def _activate(found, names):
    """Makes the adapters with these names active in the layers. Other adapters lose their
    gradients."""
    for layer in found:
        current = adapters_of(layer)
        set_adapters(layer, Adapters(current.options, names, current.kept))
        for name in current.options:
            for param in parts_of(layer, name).values():
                param.grad_req = "write" if name in names else "null"


def enable(net: Block, *names: str) -> None:
    """Makes adapters active, and all others inactive. If several are given, their additions are
    summed. Inactive adapters have no gradients.

    Examples
    --------
    >>> from mpgluon.contrib import lora
    >>> net = nn.Dense(2, in_units=4)
    >>> net.initialize()
    >>> paths = [lora.apply(net, {'.*': 2}, name=name) for name in ('french', 'german')]
    >>> lora.enable(net, 'french')
    >>> lora.enable(net, 'french', 'german')
    """
    if not names:
        raise ValueError("lora.enable: give the names of adapters; lora.disable turns all off")
    for name in names:
        adapted(net, "enable", name)
    found = adapted(net, "enable")
    _refuse_merged(found, "enable")
    _activate(found.values(), names)


def _refuse_merged(found, who):
    for path, layer in found.items():
        if adapters_of(layer).kept is not None:
            raise ValueError(
                f"lora.{who}: adapters of '{path}' are merged; call lora.unmerge first"
            )


class _Disabled:
    """The result of `disable`. As a context manager, it enables the adapters again at its end."""

    def __init__(self, found):
        self._former = [(layer, adapters_of(layer)) for layer in found]
        for layer, current in self._former:
            set_adapters(layer, Adapters(current.options, (), current.kept))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for layer, former in self._former:
            current = adapters_of(layer)
            if current is not None:
                set_adapters(layer, Adapters(current.options, former.active, current.kept))


def disable(net: Block) -> Any:
    """Makes all adapters inactive, so that the network computes as before. They keep their
    gradients. In a ``with`` statement, they are active again at its end.

    Examples
    --------
    >>> from mpgluon.contrib import lora
    >>> net = nn.Dense(2, in_units=4)
    >>> net.initialize()
    >>> paths = lora.apply(net, {'.*': 2})
    >>> with lora.disable(net):
    ...     base = net(nd.ones((1, 4)))
    """
    found = adapted(net, "disable")
    _refuse_merged(found, "disable")
    return _Disabled(found.values())


def parameters(net: Block, name: str | None = None) -> ParameterDict:
    """Returns the parameters of all adapters, or of one, in the order of the layers.

    Examples
    --------
    >>> from mpgluon.contrib import lora
    >>> net = nn.Dense(2, in_units=4)
    >>> paths = lora.apply(net, {'.*': 3})
    >>> [p.shape for p in lora.parameters(net, 'default').values()]
    [(3, 4), (2, 3)]
    """
    collected = ParameterDict()
    for layer in adapted(net, "parameters", name).values():
        for each in adapters_of(layer).options if name is None else (name,):
            collected.update({param.name: param for param in parts_of(layer, each).values()})
    return collected


def remove(net: Block, name: str | None = None) -> None:
    """Removes all adapters, or one. After the last one, the other parameters get their `grad_req`
    from before `apply`. Merged adapters are taken out of the weights first.

    Examples
    --------
    >>> from mpgluon.contrib import lora
    >>> net = nn.Dense(2, in_units=4)
    >>> paths = lora.apply(net, {'.*': 2})
    >>> lora.remove(net)
    >>> [p.grad_req for p in net.collect_params().values()]
    ['write', 'write']
    """
    found = adapted(net, "remove", name)
    refuse_partitioned(net, "lora.remove", _ELSEWHERE)
    if any(adapters_of(layer).kept is not None for layer in found.values()):
        unmerge(net)
    _detach(net, found, name)


def _detach(net, found, name=None):
    for layer in found.values():
        current = adapters_of(layer)
        for each in list(current.options) if name is None else [name]:
            for key, param in parts_of(layer, each).items():
                del own_parameters(layer)[key]
                layer.__dict__.pop(key, None)
                discard_parameter(layer.params, param.name)
        options = {n: o for n, o in current.options.items() if name is not None and n != name}
        set_adapters(layer, Adapters(options, current.active) if options else None)
    if all(adapters_of(layer) is None for _, layer in layers(net)):
        for param in net.collect_params().values():
            if getattr(param, "frozen_req", None) is not None:
                param.grad_req, param.frozen_req = param.frozen_req, None


def merge(net: Block, keep: bool = True, dequantize: bool = False) -> None:
    """Adds the active adapters to the weights, so that the network runs at its original speed.

    The sums are computed in float32 at least, and rounded once to the weight's dtype. The packed
    weights of `nn.QuantizedDense` cannot hold the sum without another rounding to few bits, which
    would lose most of the adapter. With `dequantize`, the layers become `nn.Dense`.

    Parameters
    ----------
    net : Block
        The network.
    keep : bool, default True
        Whether `unmerge` must be possible. The weights from before are then kept in host memory.
        Otherwise the adapters are removed, and all parameters can be trained again.
    dequantize : bool, default False
        Whether QuantizedDense layers with adapters are replaced by Dense layers in the dtype of
        their product. Needs ``keep=False``.

    Examples
    --------
    >>> from mpgluon.contrib import lora
    >>> net = nn.Dense(2, in_units=4)
    >>> net.initialize()
    >>> paths = lora.apply(net, {'.*': 2})
    >>> lora.merge(net)
    >>> lora.unmerge(net)
    """
    found = adapted(net, "merge")
    refuse_partitioned(net, "lora.merge", _ELSEWHERE)
    _refuse_merged(found, "merge")
    users: dict[Parameter, list[str]] = {}
    for path, layer in layers(net):
        for param in own_parameters(layer).values():
            users.setdefault(param, []).append(path)
    work = {path: layer for path, layer in found.items() if adapters_of(layer).active}
    for path, layer in work.items():
        paths = users[weight_of(layer)]
        if len(paths) > 1:
            raise ValueError(
                f"lora.merge: layers {brief(paths)} share the weight of '{path}', so its adapter "
                "would change all of them; keep the adapters separate"
            )
    packed = {path: layer for path, layer in work.items() if isinstance(layer, nn.QuantizedDense)}
    _check_packed(net, packed, keep, dequantize)
    with autograd.pause():
        for layer in work.values():
            current = adapters_of(layer)
            values = merged_values(layer, current)
            if layer in packed.values():
                (value,) = values.values()
                _replace(net, layer, float_like(layer, value))
                continue
            kept = {param: param.reduced().copyto(cpu(0)) for param in values} if keep else None
            for param, value in values.items():
                param.set_data(value)
            if keep:
                set_adapters(layer, Adapters(current.options, current.active, kept))
    if not keep:
        _detach(net, found)


def _check_packed(net, packed, keep, dequantize):
    """Raises ValueError if QuantizedDense layers with adapters cannot be merged."""
    for path in packed:
        if not dequantize or keep:
            raise ValueError(
                f"lora.merge: '{path}' is a QuantizedDense, whose packed weight cannot hold the "
                "sum; keep the adapter separate, or replace the layers by nn.Dense with "
                "keep=False, dequantize=True"
            )
        if not path:
            raise ValueError(
                "lora.merge: the network itself is a QuantizedDense, which cannot be replaced in "
                "place; put it into a block"
            )


def _replace(net, old, new):
    """Replaces a layer wherever it occurs in the network."""
    for _, block in list(layers(net)):
        for name, child in list(children(block).items()):
            if child is old:
                block.replace_child(name, new)


def unmerge(net: Block) -> None:
    """Restores the weights from before `merge`, in every bit."""
    found = {
        path: layer
        for path, layer in adapted(net, "unmerge").items()
        if adapters_of(layer).kept is not None
    }
    if not found:
        raise ValueError(f"lora.unmerge: no adapters of '{net.name}' are merged")
    refuse_partitioned(net, "lora.unmerge", _ELSEWHERE)
    for layer in found.values():
        current = adapters_of(layer)
        for param, value in current.kept.items():
            param.set_data(value)
        set_adapters(layer, Adapters(current.options, current.active))
