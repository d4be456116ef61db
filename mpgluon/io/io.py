"""`DataIter`, and iterators over arrays in memory or over batches of other iterators."""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import _core, ndarray as nd
from .._internal.hints import late_names as _late_names
from ..base import MXNetAssertionError, MXNetValueError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .._core import NDArray
    from .._internal.types import DataShapes, DType, Shape


__all__ = ["DataBatch", "DataDesc", "DataIter", "NDArrayIter", "PrefetchingIter", "ResizeIter"]


class _NameAndShape(NamedTuple):
    name: str
    shape: Shape


class DataDesc(_NameAndShape):
    """The name and shape of one array of a batch, with its dtype and layout.

    Examples
    --------
    >>> desc = mx.io.DataDesc("data", (32, 3, 8, 8), layout="NCHW")
    >>> desc.name, desc.shape, mx.io.DataDesc.get_batch_axis(desc.layout)
    ('data', (32, 3, 8, 8), 0)
    """

    dtype: DType
    layout: str | None

    def __new__(
        cls, name: str, shape: Sequence[int], dtype: DType = np.float32, layout: str | None = "NCHW"
    ) -> DataDesc:
        desc = super().__new__(cls, name, tuple(shape))
        desc.dtype = dtype
        desc.layout = layout
        return desc

    def __repr__(self) -> str:
        return f"DataDesc[{self.name},{self.shape},{self.dtype},{self.layout}]"

    @staticmethod
    def get_batch_axis(layout: str | None) -> int:
        """Returns the index of the batch axis ('N') in a layout; 0 for None, -1 if there is
        none."""
        return 0 if layout is None else layout.find("N")

    @staticmethod
    def get_list(
        shapes: Sequence[tuple[str, Shape]], types: Sequence[tuple[str, DType]] | None = None
    ) -> list[DataDesc]:
        """Returns a list of DataDesc from lists of ``(name, shape)`` and ``(name, dtype)``."""
        types = dict(types or ())
        return [
            DataDesc(name, shape, types[name]) if name in types else DataDesc(name, shape)
            for name, shape in shapes
        ]


class DataBatch:
    """One batch: lists of arrays, and the number of samples that are padding (`pad`). Raises
    MXNetAssertionError if data or labels are neither a list nor a tuple.

    Examples
    --------
    >>> batch = mx.io.DataBatch(data=[nd.ones((4, 2))], label=[nd.zeros(4)])
    >>> batch.data[0].shape
    (4, 2)
    """

    def __init__(
        self,
        data: Sequence[NDArray] | None,
        label: Sequence[NDArray] | None = None,
        pad: int | None = None,
        index: np.ndarray[Any, Any] | None = None,
        bucket_key: Any = None,
        provide_data: DataShapes | None = None,
        provide_label: DataShapes | None = None,
    ) -> None:
        for what, value in (("Data", data), ("Label", label)):
            if value is not None and not isinstance(value, (list, tuple)):
                raise MXNetAssertionError(
                    f"{what} must be list of NDArrays, not {type(value).__name__}"
                )
        self.data = data
        self.label = label
        self.pad = pad
        self.index = index
        self.bucket_key = bucket_key
        self.provide_data = provide_data
        self.provide_label = provide_label

    def __str__(self) -> str:
        data, label = (
            None if arrays is None else [array.shape for array in arrays]
            for arrays in (self.data, self.label)
        )
        return f"{type(self).__name__}: data shapes: {data} label shapes: {label}"

    def __repr__(self) -> str:
        shapes = [
            f"{what} {', '.join(str(tuple(array.shape)) for array in arrays)}"
            for what, arrays in (("data", self.data), ("label", self.label))
            if arrays
        ]
        padded = f"; pad={self.pad}" if self.pad else ""
        return f"{type(self).__name__}({', '.join(shapes)}{padded})"


class DataIter:
    """Base class of iterators over batches. Subclasses define `iter_next`, `getdata`, `getlabel`,
    `getpad`, and `reset`.

    Examples
    --------
    >>> class Numbers(mx.io.DataIter):
    ...     def __init__(self):
    ...         super().__init__(batch_size=2)
    ...         self.count = 0
    ...     def next(self):
    ...         self.count += 1
    ...         if self.count > 3:
    ...             raise StopIteration
    ...         return mx.io.DataBatch(data=[nd.full(2, self.count)])
    >>> [batch.data[0].asnumpy().tolist() for batch in Numbers()]
    [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    """

    # Names and shapes of a batch's arrays, set by subclasses.
    provide_data: list[DataDesc]
    provide_label: list[DataDesc]

    def __init__(self, batch_size: int = 0) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> DataIter:
        return self

    def reset(self) -> None:
        """Restarts from the beginning."""

    def next(self) -> DataBatch:
        """Returns the next batch. Raises StopIteration after the last one."""
        if not self.iter_next():
            raise StopIteration
        return DataBatch(
            data=self.getdata(), label=self.getlabel(), pad=self.getpad(), index=self.getindex()
        )

    def __next__(self) -> DataBatch:
        return self.next()

    def iter_next(self) -> bool:
        """Advances to the next batch. Returns False after the last one."""

    def getdata(self) -> list[NDArray]:
        """Returns the data of the current batch."""

    def getlabel(self) -> list[NDArray]:
        """Returns the labels of the current batch."""

    def getindex(self) -> np.ndarray[Any, Any] | None:
        """Returns the indices of the current batch's samples, or None."""
        return None

    def getpad(self) -> int | None:
        """Returns the number of samples of the current batch that are padding."""


def check_batch_size(name: str, batch_size: int) -> None:
    """Raises MXNetValueError if batches of the iterator `name` would have no samples."""
    if batch_size < 1:
        raise MXNetValueError(f"{name}: batch_size must be at least 1, not {batch_size}")


def _array(name, value):
    if isinstance(value, nd.NDArray):
        return value
    try:
        array = nd.array(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"NDArrayIter: {name!r} is a {type(value).__name__}, which cannot be converted to "
            f"an array: {error}"
        ) from None
    if not array.ndim:
        raise TypeError(f"NDArrayIter: {name!r} is a {type(value).__name__} without a sample axis")
    return array


def _named(data, allow_empty, name):
    """Returns a list of (name, NDArray) from an array, a list or a dict of arrays. Other types are
    converted to float32."""
    if data is None:
        data = []
    # `__array__` covers datasets of h5py and similar types.
    if isinstance(data, nd.NDArray) or hasattr(data, "tocsr") or hasattr(data, "__array__"):
        data = [data]
    if isinstance(data, (list, tuple, dict)) and not data and not allow_empty:
        raise MXNetAssertionError("NDArrayIter: data must not be empty")
    if isinstance(data, (list, tuple)):
        data = (
            {name: data[0]}
            if len(data) == 1
            else {f"_{i}_{name}": array for i, array in enumerate(data)}
        )
    if not isinstance(data, dict):
        raise TypeError(
            "Input must be NDArray, numpy.ndarray, h5py.Dataset, a list of them or dict with them "
            f"as values, not {type(data).__name__}"
        )
    return [(key, _array(key, value)) for key, value in sorted(data.items())]


class NDArrayIter(DataIter):
    """Batches of arrays in memory.

    Parameters
    ----------
    data : NDArray, numpy.ndarray or h5py.Dataset, list or dict of str to them
        Samples are along the first axis. A CSRNDArray, or a matrix of ``scipy.sparse``, gives
        batches stored as csr and requires that `last_batch_handle` is 'discard'. A dataset is read
        completely.
    label : likewise, optional
        Labels, in the same form as `data`.
    batch_size : int, default 1
        Samples in a batch.
    shuffle : bool, default False
        Whether to shuffle in every epoch, with NumPy's generator. The attributes `data` and `label`
        have the shuffled order.
    last_batch_handle : {'pad', 'discard', 'roll_over'}, default 'pad'
        Treatment of an incomplete last batch: pad it with samples from the beginning, drop it, or
        keep it for the next epoch.
    data_name, label_name : str
        Names of arrays without names.
    layout : str, default 'NCHW'
        Layout that contains the batch axis ('N').

    Raises
    ------
    MXNetAssertionError
        If there is no data.
    TypeError
        If an element of `data` or `label` cannot be converted to an array.
    MXNetValueError
        If `batch_size` is less than 1.
    ValueError
        If an array has fewer samples than the first one, if there are fewer samples than one batch
        and `last_batch_handle` is 'discard', or if `last_batch_handle` is invalid.

    Examples
    --------
    >>> data = mx.io.NDArrayIter(np.zeros((5, 2)), np.arange(5), batch_size=2)
    >>> [(batch.data[0].shape, batch.pad) for batch in data]
    [((2, 2), 0), ((2, 2), 0), ((2, 2), 1)]
    """

    def __init__(
        self,
        data: Any,
        label: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
        layout: str = "NCHW",
    ) -> None:
        super().__init__(batch_size)
        check_batch_size("NDArrayIter", batch_size)
        if last_batch_handle not in ("pad", "discard", "roll_over"):
            raise ValueError(
                "last_batch_handle must be 'pad', 'discard' or 'roll_over', not "
                f"{last_batch_handle!r}"
            )
        self.data: list[tuple[str, NDArray]] = _named(data, False, data_name)
        self.label: list[tuple[str, NDArray]] = _named(label, True, label_name)
        self.layout = layout
        self._axis = layout.find("N")
        self.num_data: int = self.data[0][1].shape[0]
        if last_batch_handle != "discard":
            for name, array in (*self.data, *self.label):
                if array.stype == "csr":
                    raise NotImplementedError(
                        f"NDArrayIter: {name} is stored as csr, which needs "
                        "last_batch_handle='discard'"
                    )
        for name, array in (*self.data, *self.label):
            if array.shape[self._axis] < self.num_data:
                raise ValueError(
                    f"NDArrayIter: {name} has {array.shape[self._axis]} samples, but "
                    f"{self.data[0][0]} has {self.num_data}"
                )
        self.shuffle = shuffle
        self.last_batch_handle = last_batch_handle
        self.idx: np.ndarray[Any, Any] = np.arange(self.num_data)
        self.cursor: int = -batch_size
        self._kept = None  # samples of an incomplete last batch, which roll over: (data, labels)
        if last_batch_handle == "discard":
            self._end = self.num_data - self.num_data % batch_size
        else:
            self._end = self.num_data
        if self.num_data < batch_size and last_batch_handle == "discard":
            raise ValueError(
                f"NDArrayIter: batch_size {batch_size} is larger than the number of samples, "
                f"{self.num_data}"
            )
        self.reset()

    def __repr__(self) -> str:
        arrays = ", ".join(
            f"{name} {tuple(array.shape)}" for name, array in (*self.data, *self.label)
        )
        return f"NDArrayIter({arrays}; batch_size={self.batch_size})"

    def _describe(self, arrays):
        found = []
        for name, array in arrays:
            shape = list(array.shape)
            shape[self._axis] = self.batch_size
            found.append(DataDesc(name, tuple(shape), array.dtype, layout=self.layout))
        return found

    @property
    def provide_data(self) -> list[DataDesc]:
        """Names and shapes of a batch's data."""
        return self._describe(self.data)

    @property
    def provide_label(self) -> list[DataDesc]:
        """Names and shapes of a batch's labels."""
        return self._describe(self.label)

    @property
    def data_list(self) -> list[NDArray]:
        """The arrays without names: data, then labels."""
        return [array for _, array in (*self.data, *self.label)]

    @property
    def num_source(self) -> int:
        """The number of arrays, data and labels together."""
        return len(self.data) + len(self.label)

    def hard_reset(self) -> None:
        """Restarts from the beginning, and drops samples that would roll over."""
        self._kept = None
        self._start()

    def reset(self) -> None:
        self._start()

    def _start(self):
        if self.shuffle:
            self._shuffle()
        held = 0 if self._kept is None else self._kept[0][0].shape[self._axis]
        # If samples have rolled over, the first batch starts before the beginning of the data.
        self.cursor = -held - self.batch_size

    def _shuffle(self):
        order = self.idx.copy()
        np.random.shuffle(order)

        def ordered(arrays):
            return [
                (name, nd.take(array, nd.array(order, array.context, "int64"), axis=self._axis))
                for name, array in arrays
            ]

        data, label = ordered(self.data), ordered(self.label)
        here = vars(self)
        # Change all atomically, so that an interrupt cannot leave data and labels in different
        # orders.
        _core.at_once((here, "idx", order), (here, "data", data), (here, "label", label))

    def iter_next(self) -> bool:
        self.cursor += self.batch_size
        return self.cursor < self._end

    def next(self) -> DataBatch:
        if not self.iter_next():
            raise StopIteration
        if self.last_batch_handle == "roll_over" and self.cursor + self.batch_size > self.num_data:
            self._kept = (
                self._part(self.data, self.cursor, self.num_data),
                self._part(self.label, self.cursor, self.num_data),
            )
            raise StopIteration
        batch = DataBatch(data=self.getdata(), label=self.getlabel(), pad=self.getpad(), index=None)
        if self.cursor < 0:
            self._kept = None
        return batch

    def _part(self, arrays, begin, end):
        return [
            nd.slice_axis(
                array, axis=self._axis, begin=begin, end=min(end, array.shape[self._axis])
            )
            for _, array in arrays
        ]

    def _join(self, first, second):
        return [nd.concat(a, b, dim=self._axis) for a, b in zip(first, second)]

    def _batch(self, arrays, kept):
        begin, end = self.cursor, self.cursor + self.batch_size
        if begin < 0:
            return self._join(kept, self._part(arrays, 0, end)) if kept else []
        if end <= self.num_data:
            return self._part(arrays, begin, end)
        found = self._part(arrays, begin, self.num_data)
        missing = end - self.num_data
        while missing:
            more = min(missing, self.num_data)
            found = self._join(found, self._part(arrays, 0, more))
            missing -= more
        return found

    def getdata(self) -> list[NDArray]:
        return self._batch(self.data, self._kept and self._kept[0])

    def getlabel(self) -> list[NDArray]:
        return self._batch(self.label, self._kept and self._kept[1])

    def getpad(self) -> int:
        end = self.cursor + self.batch_size
        if self.last_batch_handle == "pad" and end > self.num_data:
            return end - self.num_data
        return -self.cursor if self.last_batch_handle == "roll_over" and self.cursor < 0 else 0


class WholeBatchIter(DataIter):
    """An iterator whose `iter_next` sets the batch in `current_batch`.

    Examples
    --------
    >>> class Three(mx.io.io.WholeBatchIter):
    ...     current_batch = mx.io.DataBatch([nd.zeros((2, 2))], pad=0)
    ...     left = 3
    ...
    ...     def iter_next(self):
    ...         self.left -= 1
    ...         return self.left >= 0
    >>> [batch.pad for batch in Three()]
    [0, 0, 0]
    """

    current_batch: Any  # a DataBatch, or None before the first one

    def next(self) -> DataBatch:
        if not self.iter_next():
            raise StopIteration
        return self.current_batch

    def getdata(self) -> list[NDArray]:
        return self.current_batch.data

    def getlabel(self) -> list[NDArray]:
        return self.current_batch.label

    def getindex(self) -> np.ndarray[Any, Any] | None:
        return self.current_batch.index

    def getpad(self) -> int | None:
        return self.current_batch.pad


class ResizeIter(WholeBatchIter):
    """An iterator over another iterator's batches, with a given number of batches per epoch.

    Parameters
    ----------
    data_iter : DataIter
        Iterator that provides the batches.
    size : int
        Batches per epoch; the iterator is restarted whenever it ends.
    reset_internal : bool, default True
        Whether `reset` also resets `data_iter`.

    Examples
    --------
    >>> data = mx.io.NDArrayIter(np.zeros((4, 2)), batch_size=2)
    >>> len(list(mx.io.ResizeIter(data, size=3)))
    3
    """

    def __init__(self, data_iter: DataIter, size: int, reset_internal: bool = True) -> None:
        super().__init__()
        self.data_iter = data_iter
        self.size = size
        self.reset_internal = reset_internal
        self.cur: int = 0
        self.current_batch: Any = None
        self.provide_data: list[DataDesc] = data_iter.provide_data
        self.provide_label: list[DataDesc] = data_iter.provide_label
        self.batch_size: int = data_iter.batch_size
        if hasattr(data_iter, "default_bucket_key"):
            self.default_bucket_key: Any = data_iter.default_bucket_key

    def __repr__(self) -> str:
        return f"ResizeIter({self.data_iter!r}, size={self.size})"

    def reset(self) -> None:
        self.cur = 0
        if self.reset_internal:
            self.data_iter.reset()

    def iter_next(self) -> bool:
        if self.cur == self.size:
            return False
        try:
            self.current_batch = self.data_iter.next()
        except StopIteration:
            self.data_iter.reset()
            self.current_batch = self.data_iter.next()
        self.cur += 1
        return True


class _Fetcher:
    """A thread that fetches batches of an iterator. It fetches one batch for each call of
    `order`."""

    def __init__(self, source):
        self._source = source
        self._orders = queue.SimpleQueue()
        self._arrived = threading.Condition()
        self.results = deque()  # (batch or None, exception of the iterator or None)
        self.closed = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self):
        while self._orders.get() and not self.closed:
            try:
                result = self._source.next(), None
            except BaseException as error:  # the request for the batch raises it
                result = None, error
            with self._arrived:
                self.results.append(result)
                self._arrived.notify()

    def order(self):
        self._orders.put(True)

    def first(self):
        """Returns the oldest ordered result without removing it."""
        with self._arrived:
            self._arrived.wait_for(lambda: self.results)
        return self.results[0]

    def close(self):
        """Stops the thread after its current work."""
        self.closed = True
        self._orders.put(False)

    def end(self):
        """Stops the thread and waits for its end."""
        self.close()
        self._thread.join()


class PrefetchingIter(WholeBatchIter):
    """Prefetches the batches of other iterators with threads. Several iterators are combined into
    one.

    Parameters
    ----------
    iters : DataIter or list of DataIter
        Iterators whose batches are prefetched.
    rename_data, rename_label : list of dict of str to str, optional
        New names for the data and labels of each iterator.

    Raises
    ------
    MXNetAssertionError
        If there are no iterators, or later, if not all of them have a batch or their padding
        differs.

    Examples
    --------
    >>> data = mx.io.NDArrayIter(np.zeros((4, 2)), batch_size=2)
    >>> [batch.data[0].shape for batch in mx.io.PrefetchingIter(data)]
    [(2, 2), (2, 2)]
    """

    def __init__(
        self,
        iters: DataIter | Sequence[DataIter],
        rename_data: Sequence[dict[str, str]] | None = None,
        rename_label: Sequence[dict[str, str]] | None = None,
    ) -> None:
        super().__init__()
        self.iters: list[DataIter] = list(iters) if isinstance(iters, (list, tuple)) else [iters]
        if not self.iters:
            raise MXNetAssertionError("PrefetchingIter: iters must not be empty")
        self.n_iter: int = len(self.iters)
        self.rename_data = rename_data
        self.rename_label = rename_label
        self.batch_size: int = self.provide_data[0][1][0]
        self.current_batch: Any = None
        self._fetchers = []
        self._ended = False
        self._begin()

    def __del__(self) -> None:
        for fetcher in getattr(self, "_fetchers", ()):
            fetcher.close()

    def __repr__(self) -> str:
        return f"PrefetchingIter({', '.join(map(repr, self.iters))})"

    def _described(self, descriptions, names):
        found = []
        for i, description in enumerate(descriptions):
            new = names[i] if names else {}
            for desc in description:
                desc = desc if isinstance(desc, DataDesc) else DataDesc(*desc)
                found.append(
                    DataDesc(new.get(desc.name, desc.name), desc.shape, desc.dtype, desc.layout)
                )
        return found

    @property
    def provide_data(self) -> list[DataDesc]:
        """Names and shapes of a batch's data."""
        return self._described([source.provide_data for source in self.iters], self.rename_data)

    @property
    def provide_label(self) -> list[DataDesc]:
        """Names and shapes of a batch's labels."""
        return self._described([source.provide_label for source in self.iters], self.rename_label)

    def _begin(self):
        self._fetchers = [_Fetcher(source) for source in self.iters]
        self._ended = False
        for fetcher in self._fetchers:
            fetcher.order()

    def reset(self) -> None:
        for fetcher in self._fetchers:
            fetcher.end()
        for source in self.iters:
            source.reset()
        self._begin()

    def iter_next(self) -> bool:
        if self._ended or any(fetcher.closed for fetcher in self._fetchers):
            return False
        # Order the next batches before taking results. After an interrupt, a batch too many may
        # have been ordered, but never one too few, which would block the next call.
        for fetcher in self._fetchers:
            fetcher.order()
        results = [fetcher.first() for fetcher in self._fetchers]
        taken = [(fetcher.results.popleft,) for fetcher in self._fetchers]
        errors = [error for _, error in results if error is not None]
        for error in errors:
            if not isinstance(error, StopIteration):
                _core.at_once(*taken)
                raise error
        if errors:
            self._ended = True
            if len(errors) < len(results):
                raise MXNetAssertionError(
                    "PrefetchingIter: the iterators have different numbers of batches"
                )
            return False
        batches = [batch for batch, _ in results]
        if len({batch.pad for batch in batches}) > 1:
            self._ended = True
            raise MXNetAssertionError(
                "PrefetchingIter: the iterators' batches are padded differently"
            )
        batch = DataBatch(
            [array for batch in batches for array in batch.data],
            [array for batch in batches for array in batch.label or ()],
            batches[0].pad,
            batches[0].index,
            provide_data=self.provide_data,
            provide_label=self.provide_label,
        )
        # Take the results atomically, so that all iterators stay at the same batch even after an
        # interrupt.
        _core.at_once(*taken, (vars(self), "current_batch", batch))
        return True


# MXNet defines MXDataIter in this module. Here, its module imports this one.
_late_names(__name__, "mx_data_iter")
