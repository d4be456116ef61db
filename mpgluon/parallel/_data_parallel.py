"""Data-parallel training over ranks, with Horovod's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .._core import NDArray
from .._internal import ranks
from .._internal.ranks.own_arrays import check_own
from .._internal.ranks.store import broadcast_values
from ..base import MXNetError
from ..gluon._values_of_ranks import take_values
from ..gluon.block import Block
from ..gluon.parameter import Parameter, ParameterDict
from ..gluon.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..optimizer.optimizer import Optimizer

__all__ = ["DistributedTrainer", "broadcast_parameters"]


class DistributedTrainer(Trainer):
    """A trainer for a network that each rank replicates on its own devices and trains on its own
    part of the data. Gradients are averaged over ranks.

    It is ``Trainer(kvstore='dist_sync')``, except that `step` also divides by the number of ranks:
    pass the batch size of this rank. The network starts with rank 0's values.

    Parameters
    ----------
    params : Block, ParameterDict, or dict or list of Parameter
        Parameters to update.
    optimizer : str or Optimizer
        Optimizer or its name.
    optimizer_params : dict, optional
        Arguments of the optimizer.
    **options
        See `gluon.Trainer`, without `kvstore`.

    Raises
    ------
    MXNetError
        If a parameter is on a device that names a rank.

    Examples
    --------
    >>> net = nn.Dense(1, in_units=2)
    >>> net.initialize("ones")
    >>> mx.parallel.broadcast_parameters(net.collect_params())
    >>> trainer = mx.parallel.DistributedTrainer(net.collect_params(), "sgd")
    >>> with mx.autograd.record():
    ...     loss = net(nd.ones((4, 2)))
    ...
    >>> loss.backward()
    >>> trainer.step(batch_size=4)
    """

    def __init__(
        self,
        params: Block | ParameterDict | Mapping[str, Parameter] | Sequence[Parameter],
        optimizer: str | Optimizer,
        optimizer_params: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if "kvstore" in options:
            raise TypeError("DistributedTrainer: kvstore must be 'dist_sync'")
        super().__init__(params, optimizer, optimizer_params, kvstore="dist_sync", **options)
        self._scale /= ranks.count()


def broadcast_parameters(params: Any, root_rank: int = 0) -> None:
    """Copies the values of one rank to all ranks. Collective: all ranks must call it.

    Parameters
    ----------
    params : Block, ParameterDict, or dict of Parameter or of NDArray
        Values on the ranks' own devices. Parameters with unknown shapes will be initialized with
        the same values.
    root_rank : int, default 0
        Rank whose values are copied.

    Raises
    ------
    TypeError
        If `params` has a different type.
    MXNetError
        If the rank does not exist, or a parameter is not initialized or is on a device that names a
        rank.

    Examples
    --------
    >>> values = {"a": nd.ones(2)}
    >>> mx.parallel.broadcast_parameters(values)
    """
    if not 0 <= root_rank < ranks.count():
        raise MXNetError(
            f"broadcast_parameters: root_rank {root_rank} is out of range: there are "
            f"{ranks.count()} ranks"
        )
    if isinstance(params, Block):
        params = params.collect_params()
    if not isinstance(params, (Mapping, ParameterDict)):
        raise TypeError(
            "broadcast_parameters: expected a Block, a ParameterDict, or a dict of Parameters "
            f"or NDArrays, got {type(params).__name__}"
        )
    values = [params[name] for name in sorted(params.keys())]
    for value in values:
        if not isinstance(value, (Parameter, NDArray)):
            raise TypeError(
                "broadcast_parameters: expected Parameters and NDArrays, got "
                f"{type(value).__name__}"
            )
    arrays = [value for value in values if isinstance(value, NDArray)]
    for array in arrays:
        check_own(array, "broadcast_parameters")
    broadcast_values(root_rank, arrays)
    found = [value for value in values if isinstance(value, Parameter)]
    take_values(root_rank, found, "broadcast_parameters")
