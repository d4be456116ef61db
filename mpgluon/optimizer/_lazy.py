"""Updates with sparse gradients. Lazy optimizers update only the rows that the gradient has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import autograd
from ..ndarray import add_n
from ..ndarray._sparse.row_gradients import RowGradientWeight
from ..ndarray._sparse.rows import set_rows, take_rows
from ..ndarray.sparse import BaseSparseNDArray, RowSparseNDArray
from ._nested_states import arrays_of, map_arrays

if TYPE_CHECKING:
    from .._internal.types import NDArray
    from .optimizer import Optimizer


def _is_sparse(array):
    return isinstance(array, BaseSparseNDArray)


def _with_arrays(state, arrays):
    """Returns the state with arrays replaced. `arrays` maps ``id(array)`` to the replacement."""
    return map_arrays(lambda array: arrays.get(id(array), array), state)


def _write_back(state, used, arrays):
    """Copies the items of lists and dicts from `used`, which an update may have changed, to
    `state`. `used` is a copy of the state with replaced arrays. `arrays` maps the id of a
    replacement to the state's array."""
    if isinstance(state, list):
        state[:] = _with_arrays(used, arrays)
    elif isinstance(state, dict):
        state.clear()
        state.update(_with_arrays(used, arrays))
    elif isinstance(state, tuple):
        for part, its_copy in zip(state, used):
            _write_back(part, its_copy, arrays)


def _plain(array):
    return array.plain if isinstance(array, RowGradientWeight) else array


def update_rows(
    optimizer: Optimizer, index: Any, weight: NDArray, grad: NDArray, state: Any
) -> None:
    """Runs one update of a weight if the gradient, the weight or both are sparse.

    If the optimizer's `updates_rows` is true and the gradient is row_sparse, only the gradient's
    rows are gathered from weight and state, updated, and written back. All other rows do not
    change, and are not decayed. Otherwise, the gradient is converted to a dense array.
    """
    with autograd.pause():
        sparse = [array for array in (weight, *arrays_of(state)) if _is_sparse(array)]
        if sparse:
            dense = {id(array): array.tostype("default") for array in sparse}
            used = _with_arrays(state, dense)
            update_rows(optimizer, index, dense.get(id(weight), weight), grad, used)
            for array in sparse:
                array[:] = dense[id(array)]
            _write_back(state, used, {id(dense[id(array)]): array for array in sparse})
            return
        weight = _plain(weight)
        if not (isinstance(grad, RowSparseNDArray) and optimizer.updates_rows):
            _update(optimizer, index, weight, grad.tostype("default"), state)
            return
        rows, values = grad.index, grad.values
        count = weight.shape[0]
        states = [array for array in arrays_of(state) if array.ndim and array.shape[0] == count]
        arrays = [weight, *states]
        taken = [take_rows(array, rows) for array in arrays]
        used = _with_arrays(state, {id(array): part for array, part in zip(arrays, taken)})
        if rows.shape[0]:
            _update(optimizer, index, taken[0], values, used)
        for array, part in zip(arrays, taken):
            set_rows(array, part, rows)
        _write_back(state, used, {id(part): array for array, part in zip(arrays, taken)})


def _update(optimizer, index, weight, grad, state):
    if optimizer.aggregate_num > 0:
        optimizer.update_multi_precision([index], [weight], [grad], [state])
    else:
        optimizer.update_multi_precision(index, weight, grad, state)


def sum_rows(grads: list[Any]) -> None:
    """Replaces the row_sparse gradients of replicas by their sum."""
    if len(grads) > 1:
        first, *others = grads
        fresh = [grad for grad in grads if grad.fresh]
        total = add_n(first, *[other.as_in_context(first.context) for other in others])
        for grad in grads:
            grad[:] = total
            grad.mark(bool(fresh))
