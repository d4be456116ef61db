"""Branching containers."""

from ...block import HybridBlock
from ...nn import HybridSequential, Sequential

__all__ = ["Concurrent", "HybridConcurrent", "Identity"]


class Concurrent(Sequential):
    """Gives its input to every child and concatenates their outputs along `axis`.

    Parameters
    ----------
    axis : int, default -1
    """

    def __init__(self, axis=-1, prefix=None, params=None):
        super().__init__(prefix=prefix, params=params)
        self.axis = axis

    def forward(self, x):
        from .... import ndarray

        return ndarray.concat(*[block(x) for block in self._children.values()], dim=self.axis)


class HybridConcurrent(HybridSequential):
    """Gives its input to every child and concatenates their outputs along `axis`.

    Parameters
    ----------
    axis : int, default -1
    """

    def __init__(self, axis=-1, prefix=None, params=None):
        super().__init__(prefix=prefix, params=params)
        self.axis = axis

    def hybrid_forward(self, F, x):
        return F.concat(*[block(x) for block in self._children.values()], dim=self.axis)


class Identity(HybridBlock):
    """Returns its input; a branch of `HybridConcurrent` that does nothing."""

    def hybrid_forward(self, F, x):
        return x
