"""Blocks as the modules around them see them: nodes of a tree, with parameters, hooks and groups,
some of which are compiled.

`Block` and `HybridBlock` inherit this state; other modules ask for it and change it by functions.
"""

from __future__ import annotations

from typing import Any

from .._hints import OptionsChecked
from ..attribute import AttrScope


class TreeNode(OptionsChecked):
    """The state of a `Block` as a node of its tree."""

    # Whether the block itself takes its inputs to its devices; inside, no group names them
    _spans_devices = False

    def __init__(self) -> None:
        self._children: dict[str, Any] = {}
        self._reg_params: dict[str, Any] = {}
        self._forward_hooks: dict[int, Any] = {}
        self._forward_pre_hooks: dict[int, Any] = {}
        self._ctx_group: str | None = AttrScope.current().get(None).get("ctx_group")
        self._group2ctx: Any = None

    def _collect_params_with_prefix(self, prefix=""):
        """Parameters by their place in the tree, as in ``output.weight``."""
        if prefix:
            prefix += "."
        found = {prefix + name: param for name, param in self._reg_params.items()}
        for name, child in self._children.items():
            found.update(child._collect_params_with_prefix(prefix + name))
        return found


class Compilable:
    """The state of a `HybridBlock`: how it is hybridized, and what is compiled for it."""

    _is_graph = False  # whether a call is always one of a graph

    def __init__(self) -> None:
        self._active: bool = False
        self._flags: dict[str, Any] = {}
        self._compiled_call: Any = None

    def _clear_compiled(self):
        if self.__dict__.get("_compiled_call") is not None:
            self._compiled_call = None

    def _export_as(self, structure):
        """How the exported block is called, given the structure of the arguments of a call; and
        whether it gives the first output only."""
        return structure, False


def children(block):
    """Returns the blocks inside a block, by the names of its attributes: the block's own dict."""
    return block._children


def set_children(block, blocks):
    """Gives a block other children, by name."""
    block._children = blocks


def own_parameters(block):
    """Returns the parameters that are a block's own, not its children's, by the names that
    ``hybrid_forward`` gets them under: the block's own dict."""
    return block._reg_params


def parameters_by_path(block):
    """All parameters by their place in the tree, as in ``output.weight``: layers may name their own
    in another way."""
    return block._collect_params_with_prefix()


def forward_hooks(block):
    """Returns the functions that are called behind a block's forward: a dict."""
    return block._forward_hooks


def forget_hooks(block):
    """Gives all hooks up."""
    block._forward_hooks, block._forward_pre_hooks = {}, {}


def spans_devices(block):
    """True if the block itself takes its inputs to its devices."""
    return block._spans_devices


def can_be_hybridized(block):
    """True if it is a HybridBlock."""
    return isinstance(block, Compilable)


def is_hybridized(block):
    """True if calls of the block are compiled."""
    return isinstance(block, Compilable) and getattr(block, "_active", False)


def run_eagerly(block):
    """Calls of the block itself are not compiled from now on."""
    block._active = False


def runs_compiled(block):
    """True if it is hybridized and could as well run eagerly: a SymbolBlock could not."""
    return is_hybridized(block) and not block._is_graph


def uncompiled(block):
    """For `_core.Scope`: calls of the block are not compiled meanwhile."""
    return vars(block), "_active", False


def flags_of(block):
    """Returns the options of `hybridize`; of a block that can't be hybridized, none."""
    return block._flags if isinstance(block, Compilable) else {}


def compiled_call(block):
    """Returns the compiled call of the block, or None."""
    return block._compiled_call if isinstance(block, Compilable) else None


def forget_compiled(block):
    """Gives up what is compiled for a block, if it is one that can be."""
    if isinstance(block, Compilable):
        block._clear_compiled()


def export_form(block, structure):
    """How an exported block is called: see `Compilable`."""
    return block._export_as(structure)


def group_of(block):
    """Returns the group of devices that the block itself is in, or None."""
    return block._ctx_group


def set_group(block, group):
    """Puts the block itself into a group; None takes it out."""
    block._ctx_group = group


def devices_of_groups(block):
    """Returns the devices of groups while the block runs: a dict of groups to devices, one for each
    replica (`parallel._mesh.Replicas`), or None."""
    return block._group2ctx


def set_devices_of_groups(block, devices):
    """Sets what `devices_of_groups` gives."""
    block._group2ctx = devices
