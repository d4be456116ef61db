"""Collectives: sums, copies and exchanges of arrays on several devices, one array a device.

They are made of ordinary operators and copies, so they are recorded, differentiated and compiled
like everything else; the gradient of each is the conjugate one (of a sum a broadcast, of joining
cutting). All devices get the same bits of a sum. Between several cards it is NCCL's operators where
it is there (`transport`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _core, _transport, autograd
from .._transport import default_transport
from ..base import MXNetError
from ..context import Context
from ..ndarray import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "divide",
    "transport",
]


def divide(total: int, count: int) -> list[tuple[int, int]]:
    """Where `count` parts of `total` begin and end: sizes differ by one at most, the larger parts
    come first.

    Parameters
    ----------
    total : int
        How many elements there are.
    count : int
        Into how many parts they are divided.

    Returns
    -------
    list of (int, int)
        Begin and end of each part.

    Examples
    --------
    >>> mx.parallel.collectives.divide(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    each, more = divmod(total, count)
    ends = [each * (k + 1) + min(k + 1, more) for k in range(count)]
    return list(zip([0, *ends[:-1]], ends))


def _listed(arrays, name):
    if isinstance(arrays, NDArray) or not isinstance(arrays, (list, tuple)):
        raise TypeError(
            f"{name}: expected a list of arrays, one for each device, got {type(arrays).__name__}"
        )
    if not arrays:
        raise ValueError(f"{name}: the list of arrays is empty")
    for rank, array in enumerate(arrays):
        if not isinstance(array, NDArray):
            raise TypeError(
                f"{name}: the array of rank {rank} is a {type(array).__name__}; collectives take "
                "NDArrays"
            )
    return list(arrays)


def _single(array, name):
    if not isinstance(array, NDArray):
        raise TypeError(f"{name}: expected an NDArray, got {type(array).__name__}")
    return [array]


def contexts(ctx: Context | Sequence[Context], name: str) -> list[Context]:
    """Returns a list of devices, checked."""
    if isinstance(ctx, Context):
        ctx = [ctx]
    ctx = list(ctx)
    if not ctx or not all(isinstance(c, Context) for c in ctx):
        raise ValueError(f"{name}: the devices must be a list of Contexts, not {ctx!r}")
    return ctx


def transport(name: str) -> _core.Scope:
    """Sets what carries the data of collectives that name no transport, for the time of a `with`.

    Parameters
    ----------
    name : {'auto', 'local', 'nccl'}
        See `all_reduce`.

    Examples
    --------
    >>> a, b = mx.nd.ones((2,), ctx=mx.cpu(0)), mx.nd.ones((2,), ctx=mx.cpu(1))
    >>> with mx.parallel.collectives.transport('local'):
    ...     total = mx.parallel.reduce([a, b])
    >>> total.asnumpy().tolist()
    [2.0, 2.0]
    """
    default_transport()  # whose setting may be wrong
    return _core.Scope((vars(_transport), "_default", name))


def in_pipeline() -> _core.Scope:
    """A pipeline's stages are between copies: 'auto' is 'local' there."""
    return transport("local") if default_transport() == "auto" else _core.Scope()


def _run(kind, arrays, ctx, axis=0, other_axis=0, root=None, algorithm="auto", transport=None):
    if not isinstance(axis, int) or not isinstance(other_axis, int):
        raise TypeError(
            f"{kind}: an axis is a whole number, not {axis!r}"
            if not isinstance(axis, int)
            else f"{kind}: an axis is a whole number, not {other_axis!r}"
        )
    if root is not None and not isinstance(root, Context):
        raise MXNetError(f"{kind}: the result's device must be a Context, not {root!r}")
    return _core.collective(
        kind, arrays, ctx, axis, other_axis, root, algorithm, transport or default_transport()
    )


def _join_gpus_of_ranks(contexts, transport):
    """Lets sums of arrays on a GPU of each rank go between the GPUs, where they can."""
    if contexts[0].rank is None or any(ctx.device_type != "gpu" for ctx in contexts):
        return
    from .. import _ranks
    from .._ranks import gpus

    if [ctx.rank for ctx in contexts] == list(range(_ranks.count())) and _ranks.count() > 1:
        gpus.can_sum(tuple(ctx.device_id for ctx in contexts), transport, with_ranks=True)


def all_reduce(
    arrays: Sequence[NDArray], algorithm: str = "auto", transport: str | None = None
) -> list[NDArray]:
    """Returns the sum of all arrays, on each of their devices.

    Parameters
    ----------
    arrays : list of NDArray
        Of the same shape and dtype, one on each device.
    algorithm : {'auto', 'one_shot', 'two_shot'}
        'one_shot': every device gets all arrays and adds them up. 'two_shot': a `reduce_scatter`,
        then an `all_gather`, which passes no more bytes than a ring does. 'auto' goes by the number
        of devices and bytes. The bits are the same.
    transport : {'auto', 'local', 'nccl'}, optional
        'local': copies and sums by the devices themselves, in the order of the arrays: the same
        bits on any devices. 'nccl': NVIDIA's library; each array must be on a GPU (a card) of its
        own, and sums are taken in NCCL's order. 'auto': 'nccl' where it can be, else 'local', also
        in pipelines. By default what the setting MPGLUON_COLLECTIVES says, which is 'auto' if not
        set; between devices of several ranks it is 'local', whose copies go through MPI. But off
        the tape, arrays on a GPU of each rank are summed between the GPUs by NCCL, in the order of
        ranks, if each rank has a card of its own.

    Returns
    -------
    list of NDArray
        The sum, of the shape of each array, on each device.

    Raises
    ------
    TypeError
        `arrays` is not a list of NDArrays.
    ValueError
        The list is empty.
    MXNetError
        Shapes or dtypes don't fit together.

    Examples
    --------
    >>> a, b = mx.nd.array([1, 2], ctx=mx.cpu(0)), mx.nd.array([3, 4], ctx=mx.cpu(1))
    >>> [total.asnumpy().tolist() for total in mx.parallel.all_reduce([a, b])]
    [[4.0, 6.0], [4.0, 6.0]]
    """
    arrays = _listed(arrays, "all_reduce")
    contexts = [a.context for a in arrays]
    if not autograd.is_recording():
        _join_gpus_of_ranks(contexts, transport or default_transport())
    return _run("all_reduce", arrays, contexts, algorithm=algorithm, transport=transport)


def reduce(
    arrays: Sequence[NDArray], ctx: Context | None = None, transport: str | None = None
) -> NDArray:
    """Returns the sum of all arrays, on one device.

    Parameters
    ----------
    arrays : list of NDArray
        Of the same shape and dtype, one on each device.
    ctx : Context, optional
        Where the sum is; by default the first array's device.
    transport : {'auto', 'local', 'nccl'}, optional
        The transport; see `all_reduce`.

    Returns
    -------
    NDArray
        Of the shape of each array.

    Raises
    ------
    TypeError
        `arrays` is not a list of NDArrays.
    ValueError
        The list is empty.
    MXNetError
        Shapes or dtypes don't fit together.

    Examples
    --------
    >>> a, b = mx.nd.array([1, 2], ctx=mx.cpu(0)), mx.nd.array([3, 4], ctx=mx.cpu(1))
    >>> mx.parallel.reduce([a, b], mx.cpu(1)).asnumpy().tolist()
    [4.0, 6.0]
    """
    arrays = _listed(arrays, "reduce")
    devices = [a.context for a in arrays]
    return _run(
        "reduce", arrays, devices, root=devices[0] if ctx is None else ctx, transport=transport
    )[0]


def reduce_scatter(
    arrays: Sequence[NDArray], axis: int = 0, transport: str | None = None
) -> list[NDArray]:
    """Returns the sum of all arrays, cut along `axis`: each device gets a part. Where it doesn't
    divide evenly, the first get one more.

    Parameters
    ----------
    arrays : list of NDArray
        Of the same shape and dtype, one on each device.
    axis : int, default 0
        The axis along which the sum is cut.
    transport : {'auto', 'local', 'nccl'}, optional
        The transport; see `all_reduce`.

    Returns
    -------
    list of NDArray
        The part of each device.

    Raises
    ------
    TypeError
        `arrays` is not a list of NDArrays.
    ValueError
        The list is empty.
    MXNetError
        Shapes or dtypes don't fit together.

    Examples
    --------
    >>> a, b = mx.nd.array([1, 2], ctx=mx.cpu(0)), mx.nd.array([3, 4], ctx=mx.cpu(1))
    >>> [part.asnumpy().tolist() for part in mx.parallel.reduce_scatter([a, b])]
    [[4.0], [6.0]]
    """
    arrays = _listed(arrays, "reduce_scatter")
    return _run("reduce_scatter", arrays, [a.context for a in arrays], axis, transport=transport)


def all_gather(
    arrays: Sequence[NDArray], axis: int = 0, transport: str | None = None
) -> list[NDArray]:
    """All arrays, joined along `axis`, on each of their devices.

    Parameters
    ----------
    arrays : list of NDArray
        Of the same dtype, one on each device; of the same shape but for `axis`.
    axis : int, default 0
        The axis along which they are joined.
    transport : {'auto', 'local', 'nccl'}, optional
        The transport; see `all_reduce`.

    Returns
    -------
    list of NDArray
        The joined array, on each device.

    Raises
    ------
    TypeError
        `arrays` is not a list of NDArrays.
    ValueError
        The list is empty.
    MXNetError
        Shapes or dtypes don't fit together.

    Examples
    --------
    >>> a, b = mx.nd.array([1, 2], ctx=mx.cpu(0)), mx.nd.array([3, 4], ctx=mx.cpu(1))
    >>> [whole.asnumpy().tolist() for whole in mx.parallel.all_gather([a, b])]
    [[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]]
    """
    arrays = _listed(arrays, "all_gather")
    return _run("all_gather", arrays, [a.context for a in arrays], axis, transport=transport)


def gather(
    arrays: Sequence[NDArray],
    ctx: Context | None = None,
    axis: int = 0,
    transport: str | None = None,
) -> NDArray:
    """All arrays, joined along `axis`, on one device.

    Parameters
    ----------
    arrays : list of NDArray
        Of the same dtype, one on each device; of the same shape but for `axis`.
    ctx : Context, optional
        Where the result is; by default the first array's device.
    axis : int, default 0
        The axis along which they are joined.
    transport : {'auto', 'local', 'nccl'}, optional
        The transport; see `all_reduce`.

    Returns
    -------
    NDArray
        The joined array.

    Raises
    ------
    TypeError
        `arrays` is not a list of NDArrays.
    ValueError
        The list is empty.
    MXNetError
        Shapes or dtypes don't fit together.

    Examples
    --------
    >>> a, b = mx.nd.array([1, 2], ctx=mx.cpu(0)), mx.nd.array([3, 4], ctx=mx.cpu(1))
    >>> mx.parallel.gather([a, b]).asnumpy().tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    arrays = _listed(arrays, "gather")
    devices = [a.context for a in arrays]
    return _run(
        "gather",
        arrays,
        devices,
        axis,
        root=devices[0] if ctx is None else ctx,
        transport=transport,
    )[0]


def scatter(
    array: NDArray, ctx: Context | Sequence[Context], axis: int = 0, transport: str | None = None
) -> list[NDArray]:
    """Returns an array cut along `axis`: each device gets a part. Where it doesn't divide evenly,
    the first get one more.

    Parameters
    ----------
    array : NDArray
        On any device.
    ctx : list of Context
        The devices, in the order of the parts.
    axis : int, default 0
        The axis along which it is cut.
    transport : {'auto', 'local', 'nccl'}, optional
        The transport; see `all_reduce`.

    Returns
    -------
    list of NDArray
        The part of each device.

    Raises
    ------
    TypeError
        `array` is no NDArray.
    ValueError
        `ctx` is no list of devices.

    Examples
    --------
    >>> parts = mx.parallel.scatter(mx.nd.arange(3), [mx.cpu(0), mx.cpu(1)])
    >>> [(part.asnumpy().tolist(), part.context) for part in parts]
    [([0.0, 1.0], cpu(0)), ([2.0], cpu(1))]
    """
    return _run(
        "scatter", _single(array, "scatter"), contexts(ctx, "scatter"), axis, transport=transport
    )


def broadcast(
    array: NDArray, ctx: Context | Sequence[Context], transport: str | None = None
) -> list[NDArray]:
    """Returns a copy of an array on each device.

    Parameters
    ----------
    array : NDArray
        On any device.
    ctx : list of Context
        The devices.
    transport : {'auto', 'local', 'nccl'}, optional
        The transport; see `all_reduce`.

    Returns
    -------
    list of NDArray
        The array, on each device.

    Raises
    ------
    TypeError
        `array` is no NDArray.
    ValueError
        `ctx` is no list of devices.

    Examples
    --------
    >>> [a.context for a in mx.parallel.broadcast(mx.nd.arange(3), [mx.cpu(0), mx.cpu(1)])]
    [cpu(0), cpu(1)]
    """
    return _run(
        "broadcast", _single(array, "broadcast"), contexts(ctx, "broadcast"), transport=transport
    )


def all_to_all(
    arrays: Sequence[NDArray],
    split_axis: int = 0,
    concat_axis: int = 0,
    transport: str | None = None,
) -> list[NDArray]:
    """Every array is cut along `split_axis` into a part for each device; the parts that a device
    gets are joined along `concat_axis`.

    Turns arrays that are divided along `concat_axis` into arrays that are divided along
    `split_axis`.

    Parameters
    ----------
    arrays : list of NDArray
        Of the same dtype, one on each device.
    split_axis : int, default 0
        The axis along which each array is cut.
    concat_axis : int, default 0
        The axis along which parts are joined.
    transport : {'auto', 'local', 'nccl'}, optional
        The transport; see `all_reduce`.

    Returns
    -------
    list of NDArray
        The array of each device.

    Raises
    ------
    TypeError
        `arrays` is not a list of NDArrays.
    ValueError
        The list is empty.
    MXNetError
        Shapes or dtypes don't fit together.

    Examples
    --------
    >>> a, b = mx.nd.array([1, 2], ctx=mx.cpu(0)), mx.nd.array([3, 4], ctx=mx.cpu(1))
    >>> [part.asnumpy().tolist() for part in mx.parallel.all_to_all([a, b])]
    [[1.0, 3.0], [2.0, 4.0]]
    """
    arrays = _listed(arrays, "all_to_all")
    return _run(
        "all_to_all",
        arrays,
        [a.context for a in arrays],
        split_axis,
        concat_axis,
        transport=transport,
    )
