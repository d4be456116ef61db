"""`DataIter` and those that iterate over arrays in memory or over other iterators."""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import _core, ndarray as nd
from .._hints import late_names as _late_names
from ..base import MXNetAssertionError, MXNetValueError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .._core import NDArray
    from .._types import DataShapes, DType, Shape


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
        """Returns the place of the batch ('N') in a layout; 0 for None, -1 where there is none."""
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
    """One batch: lists of arrays, and how many of the samples are padding (`pad`).
    MXNetAssertionError where data or labels are neither a list nor a tuple.

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
    """The base of iterators over batches. Subclasses define `iter_next`, `getdata`, `getlabel`,
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

    # Names and shapes of a batch's arrays; subclasses have them.
    provide_data: list[DataDesc]
    provide_label: list[DataDesc]

    def __init__(self, batch_size: int = 0) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> DataIter:
        return self

    def reset(self) -> None:
        """Goes back to the beginning."""

    def next(self) -> DataBatch:
        """Returns the next batch. StopIteration behind the last."""
        if not self.iter_next():
            raise StopIteration
        return DataBatch(
            data=self.getdata(), label=self.getlabel(), pad=self.getpad(), index=self.getindex()
        )

    def __next__(self) -> DataBatch:
        return self.next()

    def iter_next(self) -> bool:
        """Goes on to the next batch; False behind the last."""

    def getdata(self) -> list[NDArray]:
        """The data of the current batch."""

    def getlabel(self) -> list[NDArray]:
        """The labels of the current batch."""

    def getindex(self) -> np.ndarray[Any, Any] | None:
        """The numbers of the current batch's samples, or None."""
        return None

    def getpad(self) -> int | None:
        """How many samples of the current batch are padding."""


def check_batch_size(name: str, batch_size: int) -> None:
    """MXNetValueError where batches of the iterator `name` would have no samples."""
    if batch_size < 1:
        raise MXNetValueError(f"{name}: batch_size is at least 1, not {batch_size}")


def _array(name, value):
    if isinstance(value, nd.NDArray):
        return value
    try:
        array = nd.array(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"NDArrayIter: {name!r} is a {type(value).__name__}, which becomes no array: {error}"
        ) from None
    if not array.ndim:
        raise TypeError(
            f"NDArrayIter: {name!r} is a {type(value).__name__} without an axis along which samples"
            " lie"
        )
    return array


def _named(data, allow_empty, name):
    """Returns a list of (name, NDArray) from an array, a list or a dict of arrays; others than
    NDArrays become float32."""
    if data is None:
        data = []
    # `__array__`: datasets of h5py, among others
    if isinstance(data, nd.NDArray) or hasattr(data, "tocsr") or hasattr(data, "__array__"):
        data = [data]
    if isinstance(data, (list, tuple, dict)) and not data and not allow_empty:
        raise MXNetAssertionError("NDArrayIter: there is no data")
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
        Samples lie along the first axis. A CSRNDArray, or a matrix of ``scipy.sparse``, gives
        batches stored as csr; then `last_batch_handle` is 'discard'. A dataset is read as a whole.
    label : likewise, optional
        Arrays of the labels, given as `data` is.
    batch_size : int, default 1
        Samples of a batch.
    shuffle : bool, default False
        Whether every epoch has another order (drawn with NumPy's generator), which the attributes
        `data` and `label` have, too.
    last_batch_handle : {'pad', 'discard', 'roll_over'}, default 'pad'
        The treatment of a last batch that isn't full: filled up from the beginning, left out, or
        kept for the next epoch.
    data_name, label_name : str
        Names where none are given.
    layout : str, default 'NCHW'
        Where the batch axis ('N') is.

    Raises
    ------
    MXNetAssertionError
        When there is no data.
    TypeError
        When something in `data` or `label` becomes no array.
    MXNetValueError
        When `batch_size` is less than 1.
    ValueError
        When an array has fewer samples than the first one, there are fewer than one batch has and
        `last_batch_handle` is 'discard', or that is something else.

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
                        f"NDArrayIter: {name} is stored as csr, which is only with "
                        "last_batch_handle='discard'"
                    )
        for name, array in (*self.data, *self.label):
            if array.shape[self._axis] < self.num_data:
                raise ValueError(
                    f"NDArrayIter: {name} has {array.shape[self._axis]} samples, {self.data[0][0]} "
                    f"has {self.num_data}"
                )
        self.shuffle = shuffle
        self.last_batch_handle = last_batch_handle
        self.idx: np.ndarray[Any, Any] = np.arange(self.num_data)
        self.cursor: int = -batch_size
        self._kept = None  # the samples of a last batch that rolls over: (data, labels)
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
        """The arrays without their names: data, then labels."""
        return [array for _, array in (*self.data, *self.label)]

    @property
    def num_source(self) -> int:
        """How many arrays there are, data and labels together."""
        return len(self.data) + len(self.label)

    def hard_reset(self) -> None:
        """Goes back to the beginning, and forgets what was to roll over."""
        self._kept = None
        self._start()

    def reset(self) -> None:
        self._start()

    def _start(self):
        if self.shuffle:
            self._shuffle()
        held = 0 if self._kept is None else self._kept[0][0].shape[self._axis]
        # With samples rolled over the first batch begins before the data do.
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
        # an interrupt never leaves data and labels in different orders
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
    """An iterator whose `iter_next` leaves the batch in `current_batch`.

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

    current_batch: Any  # a DataBatch; None before the first

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
    """Another iterator with a number of batches of its own.

    Parameters
    ----------
    data_iter : DataIter
        The iterator to take batches from.
    size : int
        Batches per epoch; the iterator starts anew whenever it ends.
    reset_internal : bool, default True
        Whether `reset` resets `data_iter`, too.

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
    """A thread that fetches batches of one iterator ahead of time, each by an order."""

    def __init__(self, source):
        self._source = source
        self._orders = queue.SimpleQueue()
        self._arrived = threading.Condition()
        self.results = deque()  # (batch or None, what the iterator raised or None)
        self.closed = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self):
        while self._orders.get() and not self.closed:
            try:
                result = self._source.next(), None
            except BaseException as error:  # handed to who asks for the batch
                result = None, error
            with self._arrived:
                self.results.append(result)
                self._arrived.notify()

    def order(self):
        self._orders.put(True)

    def first(self):
        """Returns the first result that was ordered, and not taken out yet."""
        with self._arrived:
            self._arrived.wait_for(lambda: self.results)
        return self.results[0]

    def close(self):
        """The thread ends, once it is done with what it does."""
        self.closed = True
        self._orders.put(False)

    def end(self):
        """The thread has ended."""
        self.close()
        self._thread.join()


class PrefetchingIter(WholeBatchIter):
    """Other iterators whose batches are fetched by threads while the current ones are used; several
    are combined into one.

    Parameters
    ----------
    iters : DataIter or list of DataIter
        The iterators whose batches are read ahead.
    rename_data, rename_label : list of dict of str to str, optional
        New names of the data and labels of each iterator.

    Raises
    ------
    MXNetAssertionError
        When there are no iterators; later, at a batch that not all of them have, or pad equally.

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
            raise MXNetAssertionError("PrefetchingIter: there are no iterators")
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
        # before something is taken: an interrupt finds one order too many, and never one too few
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
        # all iterators stay at the same batch
        _core.at_once(*taken, (vars(self), "current_batch", batch))
        return True


# MXNet has them in this module; here they are built from it.
_late_names(__name__, "mx_data_iter")
