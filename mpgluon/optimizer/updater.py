"""An optimizer together with the states of the weights that it updates."""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .. import _core
from .._internal.kinds import plain
from ..base import MXNetError
from ..ndarray import NDArray
from ..ndarray.sparse import BaseSparseNDArray
from ._lazy import update_rows
from ._nested_states import completed, is_complete, map_arrays
from ._state_files import read_trusted, states_of_bytes, states_to_bytes, taken_over

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..context import Context
    from .optimizer import Optimizer


def keep_momenta(optimizer: Optimizer) -> tuple[bool, ...]:
    """Returns `keeps_momentum` of the optimizer of each parameter group."""
    return tuple(member.keeps_momentum for member in optimizer.members)


class Updater:
    """A function `updater(index, grad, weight)` that applies the optimizer, and creates states on
    demand.

    `index`, `grad` and `weight` are single values, or lists for weights on one device. States
    loaded by `set_states` move to the weight's device on first use.

    Parameters
    ----------
    optimizer : Optimizer
        The optimizer that computes the steps.

    Examples
    --------
    >>> updater = mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=0.5))
    >>> weight = nd.ones(2)
    >>> updater(0, nd.ones(2), weight)
    >>> weight.asnumpy().tolist()
    [0.5, 0.5]
    """

    _momenta: tuple[bool, ...] = ()  # result of `keep_momenta` at the latest `prepare`

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.states: dict[Any, Any] = {}
        self.states_synced: dict[Any, bool] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r}, states: {len(self.states)})"

    @property
    def aggregate_updates(self) -> bool:
        """True if one call updates several weights: the optimizer's `aggregate_num` is above 0."""
        return self.largest_list > 0

    @property
    def largest_list(self) -> int:
        """The optimizer's `aggregate_num`, for parameter groups the smallest."""
        return min(member.aggregate_num for member in self.optimizer.members)

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        # amp must not cast the update ops' inputs.
        with _core.Scope((_core.set_uncast, True)), self._explaining_kinds():
            self._call(index, grad, weight)

    @contextmanager
    def _explaining_kinds(self):
        """Returns a scope that explains the error of a user's optimizer that mixes arrays of mx.np
        with the arrays of mx.nd that it gets."""
        try:
            yield
        except _core.MXNetTypeError as error:
            kinds = {type(member) for member in self.optimizer.members}
            own = [kind for kind in kinds if not kind.__module__.startswith("mpgluon.")]
            if not own or "mx.nd" not in str(error) or error.__cause__ is not None:
                raise
            names = ", ".join(sorted(kind.__name__ for kind in own))
            raise _core.MXNetTypeError(
                f"{names}: {error}; create_state and update of optimizers get arrays of mx.nd, so "
                "use mx.nd in them, or weight.as_np_ndarray()"
            ) from error

    def _call(self, index, grad, weight):
        if isinstance(index, (list, tuple)):
            indices, grads, weights = list(index), list(grad), list(weight)
        else:
            indices, grads, weights = [index], [grad], [weight]
        if not len(indices) == len(grads) == len(weights):
            raise ValueError(
                f"Updater: got {len(indices)} indices, {len(grads)} gradients and "
                f"{len(weights)} weights; the numbers must be equal"
            )
        if not weights:
            return
        grads, weights = list(map(plain, grads)), list(map(plain, weights))
        indices = [i.decode("utf-8") if isinstance(i, bytes) else i for i in indices]
        self.optimizer.count_on(weights[0].context.count_key)
        if any(isinstance(array, BaseSparseNDArray) for array in (*grads, *weights)):
            for one in zip(indices, grads, weights):
                self._update_rows(*one)
            return
        self.prepare(indices, weights)
        if not self.aggregate_updates:
            for i, w, g in zip(indices, weights, grads):
                with self.optimizer.numbers_of(i):
                    self.optimizer.of(i).update_multi_precision(i, w, g, self.states[i])
            return
        for part in self.alike(indices, grads, weights, self.largest_list):
            self._update(*part)

    def alike(
        self, indices: list[Any], grads: list[NDArray], weights: list[NDArray], size: int
    ) -> list[Any]:
        """Splits the lists into lists of weights with the same dtype and parameter group, each with
        at most `size` weights."""
        of = self.optimizer.of
        kinds = [(id(of(i)), w.dtype) for i, w in zip(indices, weights)]
        parts = []
        for kind in dict.fromkeys(kinds):
            chosen = [k for k, other in enumerate(kinds) if other == kind]
            for begin in range(0, len(chosen), size):
                some = chosen[begin : begin + size]
                parts.append(tuple([items[k] for k in some] for items in (indices, grads, weights)))
        return parts

    def update_alike(self, device_id: int, parts: Iterable[Any]) -> None:
        """Updates weights in lists that `alike` has returned."""
        self.optimizer.count_on(device_id)
        with self._explaining_kinds():
            for indices, grads, weights in parts:
                self.prepare(indices, weights)
                self._update(indices, grads, weights)

    def _update_rows(self, index, grad, weight):
        """Updates one weight if gradient or weight is sparse."""
        self.prepare([index], [weight])
        with self.optimizer.numbers_of(index):
            update_rows(self.optimizer.of(index), index, weight, grad, self.states[index])

    def _update(self, indices, grads, weights):
        states, optimizer = self.states, self.optimizer.of(indices[0])
        if optimizer.draws_one_by_one:
            for i, w, g in zip(indices, weights, grads):
                with optimizer.numbers_of(i):
                    optimizer.update_multi_precision([i], [w], [g], [states[i]])
            return
        optimizer.update_multi_precision(indices, weights, grads, [states[i] for i in indices])

    def prepare(self, indices: Sequence[Any], weights: Sequence[NDArray]) -> None:
        """Creates missing states and momenta, and moves loaded states to the devices of their
        weights, as arrays of mx.nd."""
        momenta = keep_momenta(self.optimizer)
        if momenta != self._momenta:
            self._momenta = momenta
            self.states_synced.clear()
        if all(map(self.states_synced.get, indices)):
            return
        for index, weight in zip(indices, weights):
            optimizer = self.optimizer.of(index)
            if index not in self.states:
                with optimizer.numbers_of(index, create=True), self._explaining_kinds():
                    self.states[index] = optimizer.create_state_multi_precision(index, weight)
            elif not self.states_synced.get(index):
                state = self.sync_state_context(self.states[index], weight.context)
                state = map_arrays(plain, state)
                if optimizer.keeps_momentum and not is_complete(state):
                    new = optimizer.create_state_multi_precision(index, weight)
                    state = completed(state, new)
                self.states[index] = state
            self.states_synced[index] = True

    def sync_state_context(self, state: Any, context: Context) -> Any:
        """Moves a state to a device. Parts that are on it already are not copied."""
        return map_arrays(lambda array: array.as_in_context(context), state)

    def set_states(self, states: bytes, trusted: bool = False) -> None:
        """Replaces the states by those in the result of `get_states`, of this package or of MXNet.

        Parameters
        ----------
        states : bytes
            An array file, or a pickle of arrays and numbers. Reading it does not run code.
        trusted : bool, default False
            Whether the bytes may be any pickle, such as one with an optimizer
            (``dump_optimizer=True``). Such a pickle can run code: only pass True for bytes from a
            source that you trust.

        Raises
        ------
        MXNetError
            If the bytes are not optimizer states. Nothing changes in this case.
        """
        optimizer = self.optimizer
        if trusted and states[:1] == pickle.PROTO:
            loaded = read_trusted(states)
            if isinstance(loaded, tuple) and len(loaded) == 2:
                loaded, optimizer = loaded
            if not isinstance(loaded, dict):
                raise MXNetError(
                    f"these bytes hold a {type(loaded).__name__}, not optimizer states"
                )
            loaded = taken_over(loaded)
        else:
            loaded = states_of_bytes(states)
        vars(self).update(
            states=loaded, optimizer=optimizer, states_synced=dict.fromkeys(loaded, False)
        )

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """Returns the states as bytes: an array file or, with `dump_optimizer`, a pickle of the
        states and the optimizer. `set_states` reads the pickle only with ``trusted=True``."""
        if dump_optimizer:
            return pickle.dumps((self.states, self.optimizer))
        return states_to_bytes(self.states)


def get_updater(optimizer: Optimizer) -> Updater:
    """Returns an Updater for an optimizer.

    Examples
    --------
    >>> mx.optimizer.get_updater(mx.optimizer.Adam()).aggregate_updates
    True
    """
    return Updater(optimizer)
