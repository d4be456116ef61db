"""Internal interface of blocks, which form a tree. A node has children, parameters, hooks and a
device group, and may be compiled.

`Block` and `HybridBlock` inherit this state. Other modules access it through the functions below.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from typing import TYPE_CHECKING, Any

from .._internal.hints import OptionsChecked
from ..attribute import AttrScope
from ..base import MXNetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class ChangeCount:
    """Counts changes of one kind. A cache stores the `count` for which its contents are valid, and
    validates its contents once the count has grown."""

    def __init__(self):
        self.count = 0

    def note(self):
        self.count += 1


# Counts the changes after which a block may have different children, parameters, devices or
# options.
structure_changes = ChangeCount()


def _noting(method):
    @functools.wraps(method)
    def noting(self, *args, **kwargs):
        structure_changes.note()
        return method(self, *args, **kwargs)

    return noting


class Parts(dict[str, Any]):
    """The children or parameters of a block, by name. Changes are counted."""

    __setitem__ = _noting(dict.__setitem__)
    __delitem__ = _noting(dict.__delitem__)
    __ior__ = _noting(dict.__ior__)
    clear = _noting(dict.clear)
    pop = _noting(dict.pop)
    popitem = _noting(dict.popitem)
    setdefault = _noting(dict.setdefault)
    update = _noting(dict.update)


class TreeNode(OptionsChecked):
    """The state of a `Block` as a node of its tree."""

    # True if the block itself moves its inputs to its devices. Device groups then have no effect
    # inside the block.
    _spans_devices = False
    _stands_for: Any = None  # the class of the layer that a split layer replaces
    # Low-rank additions to the product of a layer (`contrib.lora`), or None. Traces depend on it,
    # so a change replaces the object.
    _adapters: Any = None
    # How a partitioned network divides the block's parameters and inputs
    # (`parallel._partition`), or None.
    _partitioning: Any = None

    def __init__(self) -> None:
        self._children: dict[str, Any] = Parts()
        self._reg_params: dict[str, Any] = Parts()
        self._forward_hooks: dict[int, Any] = {}
        self._forward_pre_hooks: dict[int, Any] = {}
        self._ctx_group: str | None = AttrScope.current().get(None).get("ctx_group")
        self._group2ctx: Any = None
        # (map of the weights, contents of config.json) of a network of Hugging Face
        self._huggingface: Any = None

    def _collect_params_with_prefix(self, prefix=""):
        """Returns the parameters by their path in the tree, as in ``output.weight``."""
        if prefix:
            prefix += "."
        found = {prefix + name: param for name, param in self._reg_params.items()}
        for name, child in self._children.items():
            found.update(child._collect_params_with_prefix(prefix + name))
        return found


class Compilable:
    """The state of a `HybridBlock`: its hybridization and compiled call."""

    _is_graph = False  # True if every call runs a graph, so the block cannot run eagerly

    def __init__(self) -> None:
        self._active: bool = False
        self._flags: dict[str, Any] = {}
        self._compiled_call: Any = None

    def _clear_compiled(self):
        if self.__dict__.get("_compiled_call") is not None:
            self._compiled_call = None

    def _export_as(self, structure):
        """Converts the argument structure of a call to the structure with which the exported block
        is called. Returns (structure, True if the exported block returns only the first output)."""
        return structure, False


def children(block):
    """Returns the child blocks by attribute name: the block's own dict, not a copy."""
    return block._children


def walk(block: Any, path: str = "") -> Iterator[tuple[Any, str, str, Any]]:
    """Yields the descendants of a block as (parent, name in the parent, path, block), a block once
    for each path."""
    for name, child in list(children(block).items()):
        place = f"{path}.{name}" if path else name
        yield block, name, place, child
        yield from walk(child, place)


def set_children(block, blocks):
    """Replaces the children of a block, by name."""
    block._children = blocks


def stand_for(block, kind):
    """Makes the block count as a layer of class `kind`, which it replaces."""
    block._stands_for = kind


def own_parameters(block):
    """Returns the block's own parameters without its children's, by their ``hybrid_forward``
    argument names: the block's own dict, not a copy."""
    return block._reg_params


def replace_parameter(block, name, others):
    """Replaces a block's own parameter by others that the block has already, given by their
    attribute names. They take its position, because initial values depend on the order."""
    own = dict(block._reg_params)
    former, parts = own[name], {other: own.pop(other) for other in others}
    block._reg_params = _in_place_of(own, name, parts)
    block.params.replace(former, list(parts.values()))


@contextlib.contextmanager
def restored_on_errors(blocks):
    """Restores the attributes and own parameters of blocks if the body raises an error."""
    saved = [
        (block, dict(vars(block)), dict(block._reg_params), dict(block.params.items()))
        for block in blocks
    ]
    try:
        yield
    except BaseException:
        for block, attributes, own, items in saved:
            for name in vars(block).keys() - attributes.keys():
                del vars(block)[name]
            vars(block).update(attributes, _reg_params=own)
            block.params.restore(items)
        structure_changes.note()
        raise


def _in_place_of(items, key, others):
    """Returns a copy of a dict with items of `others` at the position of `key`."""
    result = {}
    for name, item in items.items():
        result.update(others if name == key else {name: item})
    return result


def users_of(blocks: Iterable[Any]) -> Counter[Any]:
    """Returns how many of the distinct blocks have each parameter as their own."""
    return Counter(
        param for block in dict.fromkeys(blocks) for param in own_parameters(block).values()
    )


def parameters_by_path(block):
    """Returns all parameters by their path in the tree, as in ``output.weight``. Layers may
    override the names of their own parameters."""
    return block._collect_params_with_prefix()


def adapters_of(block):
    """Returns the low-rank additions to a layer's product, or None."""
    return block._adapters


def set_adapters(block, adapters):
    """Sets the value of `adapters_of`."""
    block._adapters = adapters


def division_of(block):
    """Returns how a partitioned network divides the block's parameters and inputs, or None."""
    return block._partitioning


def set_division(block, division):
    """Sets the value of `division_of`."""
    block._partitioning = division


ONE_LAYOUT = "a network is either placed or partitioned"


def refuse_partitioned(net, who, advice):
    """Raises MXNetError if `Mesh.partition` has divided a network, or a block in it."""
    for path, block in (("", net), *((path, block) for _, _, path, block in walk(net))):
        if block._partitioning is not None:
            raise MXNetError(
                f"{who}: '{path or net.name}' is divided over the devices of a mesh "
                f"(Mesh.partition); {advice}"
            )


def forward_hooks(block):
    """Returns the dict of functions that are called after a block's forward."""
    return block._forward_hooks


def forget_hooks(block):
    """Removes all hooks."""
    block._forward_hooks, block._forward_pre_hooks = {}, {}


def share_hooks(block, other):
    """Makes two HybridBlocks share the hooks of `other`, so that a hook's handle detaches it from
    both."""
    for name in ("_forward_hooks", "_forward_pre_hooks", "_op_hook"):
        setattr(block, name, getattr(other, name))


def spans_devices(block):
    """True if the block itself moves its inputs to its devices."""
    return block._spans_devices


def can_be_hybridized(block):
    """True if the block is a HybridBlock."""
    return isinstance(block, Compilable)


def is_hybridized(block):
    """True if calls of the block are compiled."""
    return isinstance(block, Compilable) and getattr(block, "_active", False)


def run_eagerly(block):
    """Turns compilation of the block itself off."""
    block._active = False


def runs_compiled(block):
    """True if the block is hybridized and could also run eagerly, unlike a SymbolBlock."""
    return is_hybridized(block) and not block._is_graph


def uncompiled(block):
    """Returns a change for `_core.Scope` that turns compilation of the block off."""
    return vars(block), "_active", False


def flags_of(block):
    """Returns the options of `hybridize`, or an empty dict for a block that cannot be
    hybridized."""
    return block._flags if isinstance(block, Compilable) else {}


def compiled_call(block):
    """Returns the compiled call of the block, or None."""
    return block._compiled_call if isinstance(block, Compilable) else None


def forget_compiled(block):
    """Discards the compiled programs of a block. Does nothing if it cannot be hybridized."""
    if isinstance(block, Compilable):
        block._clear_compiled()


def export_form(block, structure):
    """Returns the call of an exported block (see `Compilable._export_as`)."""
    return block._export_as(structure)


def group_of(block):
    """Returns the device group of the block itself, or None."""
    return block._ctx_group


def set_group(block, group):
    """Sets the device group of the block itself; None removes it."""
    block._ctx_group = group


def devices_of_groups(block):
    """Returns the devices of groups while the block runs: a dict from groups to devices, an object
    with one dict for each replica (`parallel._mesh.Replicas`), or None."""
    return block._group2ctx


def set_devices_of_groups(block, devices):
    """Sets the value of `devices_of_groups`."""
    block._group2ctx = devices


def huggingface_of(block):
    """Returns (map of the weights, contents of config.json) of a network of Hugging Face, or ((),
    None)."""
    return block._huggingface or ((), None)


def set_huggingface(block, entries, config):
    """Sets the value of `huggingface_of`."""
    block._huggingface = entries, config
