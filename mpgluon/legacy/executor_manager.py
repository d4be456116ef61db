"""MXNet's module of this name: splits batches over devices. Use `mx.mod.Module` to train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from mpgluon import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpgluon.io import DataBatch
    from mpgluon.ndarray import NDArray
    from mpgluon.symbol import Symbol

__all__ = ["DataParallelExecutorGroup", "DataParallelExecutorManager"]


def split_input_slice(batch_size: int, work_load_list: Sequence[float]) -> list[slice]:
    """Splits the rows of a batch over devices in proportion to their loads.

    Raises ValueError if a device gets no rows.

    Examples
    --------
    >>> mx.executor_manager.split_input_slice(6, [1, 2])
    [slice(0, 2, None), slice(2, 6, None)]
    """
    total = sum(work_load_list)
    sizes = [round(load * batch_size / total) for load in work_load_list]
    sizes[-1] += batch_size - sum(sizes)
    slices, begin = [], 0
    for size in sizes:
        end = min(begin + max(size, 0), batch_size)
        if begin >= end:
            raise ValueError("Too many slices. Some splits are empty.")
        slices.append(slice(begin, end))
        begin = end
    return slices


def check_arguments(symbol: Symbol) -> None:
    """Raises ValueError if arguments, or auxiliary states, of a symbol have the same name."""
    for kind, names in (
        ("argument", symbol.list_arguments()),
        ("auxiliary state", symbol.list_auxiliary_states()),
    ):
        twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
        if twice is not None:
            raise ValueError(f"the symbol has two of the {kind} '{twice}': {names}")


def load_general(data: Sequence[NDArray], targets: Sequence[Any]) -> None:
    """Copies arrays to NDArrays, or parts of them to (slice, NDArray) pairs."""
    for source, target in zip(data, targets):
        if not isinstance(target, (list, tuple)):
            source.copyto(target)
            continue
        for part, array in target:
            source[part].copyto(array)


def load_data(batch: DataBatch, targets: Sequence[Any]) -> None:
    """Copies the data of a batch; see `load_general`."""
    load_general(batch.data, targets)


def load_label(batch: DataBatch, targets: Sequence[Any]) -> None:
    """Copies the labels of a batch; see `load_general`."""
    load_general(batch.label, targets)


_split_input_slice, _check_arguments = split_input_slice, check_arguments
_load_general, _load_data, _load_label = load_general, load_data, load_label


class _Absent:
    """Base of classes that can be imported and subclassed, but not instantiated."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise _core.NotSupportedError(
            f"{type(self).__name__} is not available; mx.mod.Module binds symbols on several "
            "devices"
        )


class DataParallelExecutorGroup(_Absent):
    """Placeholder for the executors of a symbol on several devices: use `mx.mod.Module`.

    Examples
    --------
    >>> from mpgluon.executor_manager import DataParallelExecutorGroup
    >>> try:
    ...     DataParallelExecutorGroup(None)
    ... except mx.base.NotSupportedError as error:
    ...     print(error)
    DataParallelExecutorGroup is not available; mx.mod.Module binds symbols on several devices
    """


class DataParallelExecutorManager(_Absent):
    """Placeholder for the executors of MXNet's training loop before modules: use `mx.mod.Module`.

    Examples
    --------
    >>> try:
    ...     mx.executor_manager.DataParallelExecutorManager(None)
    ... except mx.base.NotSupportedError as error:
    ...     print(error)
    DataParallelExecutorManager is not available; mx.mod.Module binds symbols on several devices
    """
