"""Collectives: sums, copies and exchanges of arrays on several devices, one array per device.

They consist of ordinary operators and copies, so they can be recorded, differentiated and compiled.
The gradient of each is the conjugate collective: the gradient of a sum is a broadcast, that of a
gather is a scatter. A sum is bit-identical on all devices. Between several GPUs, NCCL's operators
are used if available (see `transport`).
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from .. import _core, autograd
from .._internal import transport as _transport
from .._internal.transport import default_transport
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


def divide(total: int, count: int, weights: Sequence[int] | None = None) -> list[tuple[int, int]]:
    """Returns the ranges of `count` parts of `total`. Sizes differ by at most one; larger parts
    come first. With `weights`, the sizes are proportional to them.

    Parameters
    ----------
    total : int
        Number of elements.
    count : int
        Number of parts.
    weights : list of int, optional
        Share of each part.

    Returns
    -------
    list of (int, int)
        Begin and end of each part.

    Examples
    --------
    >>> mx.parallel.collectives.divide(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    if weights:
        whole, shares = sum(weights), accumulate(weights)
        ends = [(2 * total * share + whole) // (2 * whole) for share in shares]
        return list(zip([0, *ends[:-1]], ends))
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
    """Returns the devices as a list. Raises ValueError if they are invalid."""
    if isinstance(ctx, Context):
        ctx = [ctx]
    ctx = list(ctx)
    if not ctx or not all(isinstance(c, Context) for c in ctx):
        raise ValueError(f"{name}: the devices must be a list of Contexts, not {ctx!r}")
    return ctx


def transport(name: str) -> _core.Scope:
    """Returns a scope for a ``with`` statement that sets the default transport of collectives.

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
    default_transport()  # raise an error now if the setting is invalid
    return _core.Scope((vars(_transport), "_default", name))


def in_pipeline() -> _core.Scope:
    """Returns a scope that replaces the transport 'auto' by 'local', because the stages of a
    pipeline are the parts between copies."""
    return transport("local") if default_transport() == "auto" else _core.Scope()


def _run(kind, arrays, ctx, axis=0, other_axis=0, root=None, algorithm="auto", transport=None):
    if not isinstance(axis, int) or not isinstance(other_axis, int):
        raise TypeError(
            f"{kind}: an axis must be an integer, not {axis!r}"
            if not isinstance(axis, int)
            else f"{kind}: an axis must be an integer, not {other_axis!r}"
        )
    if root is not None and not isinstance(root, Context):
        raise MXNetError(f"{kind}: the result's device must be a Context, not {root!r}")
    return _core.collective(
        kind, arrays, ctx, axis, other_axis, root, algorithm, transport or default_transport()
    )


def _join_gpus_of_ranks(contexts, transport):
    """Enables sums between the GPUs of several ranks, if the arrays are on one GPU of each rank."""
    if contexts[0].rank is None or any(ctx.device_type != "gpu" for ctx in contexts):
        return
    from .._internal import ranks
    from .._internal.ranks import gpus

    if [ctx.rank for ctx in contexts] == list(range(ranks.count())) and ranks.count() > 1:
        gpus.can_sum(tuple(ctx.device_id for ctx in contexts), transport, with_ranks=True)


def all_reduce(
    arrays: Sequence[NDArray], algorithm: str = "auto", transport: str | None = None
) -> list[NDArray]:
    """Returns the sum of all arrays, on each of their devices.

    Parameters
    ----------
    arrays : list of NDArray
        Arrays of the same shape and dtype, one on each device.
    algorithm : {'auto', 'one_shot', 'two_shot'}
        'one_shot': every device receives all arrays and sums them. 'two_shot': a `reduce_scatter`
        followed by an `all_gather`, which transfers no more bytes than a ring. 'auto' decides by
        the number of devices and bytes. The results are bit-identical.
    transport : {'auto', 'local', 'nccl'}, optional
        'local': the devices copy and sum in the order of the arrays, so sums are bit-identical for
        any devices. 'nccl': NVIDIA's library sums in its own order; each array must be on a
        separate GPU. 'auto': 'nccl' if possible, otherwise, and in pipelines, 'local'. Defaults to
        the setting MPGLUON_COLLECTIVES, which defaults to 'auto'. Between devices of several ranks,
        it is 'local', whose copies use MPI. Exception: if nothing is recorded and each rank has a
        separate GPU, arrays on a GPU of each rank are summed between the GPUs by NCCL, in the order
        of ranks.

    Returns
    -------
    list of NDArray
        The sum on each device, with the shape of each array.

    Raises
    ------
    TypeError
        If `arrays` is not a list of NDArrays.
    ValueError
        If the list is empty.
    MXNetError
        If shapes or dtypes do not match.

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
        Arrays of the same shape and dtype, one on each device.
    ctx : Context, optional
        Device of the sum; defaults to the first array's device.
    transport : {'auto', 'local', 'nccl'}, optional
        See `all_reduce`.

    Returns
    -------
    NDArray
        The sum, with the shape of each array.

    Raises
    ------
    TypeError
        If `arrays` is not a list of NDArrays.
    ValueError
        If the list is empty.
    MXNetError
        If shapes or dtypes do not match.

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
    """Returns the sum of all arrays, split along `axis`: each device gets a part. If the size is
    not divisible, the first parts are larger by one.

    Parameters
    ----------
    arrays : list of NDArray
        Arrays of the same shape and dtype, one on each device.
    axis : int, default 0
        Axis along which the sum is split.
    transport : {'auto', 'local', 'nccl'}, optional
        See `all_reduce`.

    Returns
    -------
    list of NDArray
        The part of each device.

    Raises
    ------
    TypeError
        If `arrays` is not a list of NDArrays.
    ValueError
        If the list is empty.
    MXNetError
        If shapes or dtypes do not match.

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
    """Concatenates all arrays along `axis`, on each of their devices.

    Parameters
    ----------
    arrays : list of NDArray
        Arrays of the same dtype, one on each device, with the same shape except along `axis`.
    axis : int, default 0
        Axis along which they are concatenated.
    transport : {'auto', 'local', 'nccl'}, optional
        See `all_reduce`.

    Returns
    -------
    list of NDArray
        The concatenated array on each device.

    Raises
    ------
    TypeError
        If `arrays` is not a list of NDArrays.
    ValueError
        If the list is empty.
    MXNetError
        If shapes or dtypes do not match.

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
    """Concatenates all arrays along `axis`, on one device.

    Parameters
    ----------
    arrays : list of NDArray
        Arrays of the same dtype, one on each device, with the same shape except along `axis`.
    ctx : Context, optional
        Device of the result; defaults to the first array's device.
    axis : int, default 0
        Axis along which they are concatenated.
    transport : {'auto', 'local', 'nccl'}, optional
        See `all_reduce`.

    Returns
    -------
    NDArray
        The concatenated array.

    Raises
    ------
    TypeError
        If `arrays` is not a list of NDArrays.
    ValueError
        If the list is empty.
    MXNetError
        If shapes or dtypes do not match.

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
    """Splits an array along `axis`: each device gets a part. If the size is not divisible, the
    first parts are larger by one.

    Parameters
    ----------
    array : NDArray
        An array on any device.
    ctx : list of Context
        Devices, in the order of the parts.
    axis : int, default 0
        Axis along which it is split.
    transport : {'auto', 'local', 'nccl'}, optional
        See `all_reduce`.

    Returns
    -------
    list of NDArray
        The part of each device.

    Raises
    ------
    TypeError
        If `array` is not an NDArray.
    ValueError
        If `ctx` is not a list of devices.

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
        An array on any device.
    ctx : list of Context
        Devices of the copies.
    transport : {'auto', 'local', 'nccl'}, optional
        See `all_reduce`.

    Returns
    -------
    list of NDArray
        The array on each device.

    Raises
    ------
    TypeError
        If `array` is not an NDArray.
    ValueError
        If `ctx` is not a list of devices.

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
    """Splits every array along `split_axis` into a part for each device, and concatenates the parts
    that a device receives along `concat_axis`.

    This converts arrays that are divided along `concat_axis` to arrays that are divided along
    `split_axis`.

    Parameters
    ----------
    arrays : list of NDArray
        Arrays of the same dtype, one on each device.
    split_axis : int, default 0
        Axis along which each array is split.
    concat_axis : int, default 0
        Axis along which parts are concatenated.
    transport : {'auto', 'local', 'nccl'}, optional
        See `all_reduce`.

    Returns
    -------
    list of NDArray
        The array of each device.

    Raises
    ------
    TypeError
        If `arrays` is not a list of NDArrays.
    ValueError
        If the list is empty.
    MXNetError
        If shapes or dtypes do not match.

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
