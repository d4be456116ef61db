"""Scopes that prefix the names of new blocks."""

import threading

from ... import _core
from ...name import NameManager, Prefix
from ..parameter._parameter_dict import ParameterDict


class NameScope(_core.Scope):
    """The ``with block.name_scope():`` of one block, which prefixes the names of new blocks."""

    _current = threading.local()

    def __init__(self, block):
        self._block = block

    @staticmethod
    def create(prefix, params, hint):
        """Returns the prefix and the parameter dict for a new block."""
        scope = getattr(NameScope._current, "value", None)
        shared = params
        if scope is None:
            if prefix is None:
                prefix = NameManager.current().get(None, hint) + "_"
            params = (
                ParameterDict(prefix) if shared is None else ParameterDict(shared.prefix, shared)
            )
            return prefix, params
        if prefix is None:
            counts = scope._block._child_counts
            count = counts.get(hint, 0)
            counts[hint] = count + 1
            prefix = f"{hint}{count}_"
        if shared is None:
            params = scope._block.params.of_child(prefix)
        else:
            params = ParameterDict(shared.prefix, shared)
        return scope._block.prefix + prefix, params

    def _changes(self):
        if self._block._empty_prefix:
            return []
        return [(vars(NameScope._current), "value", self), Prefix(self._block.prefix)]
