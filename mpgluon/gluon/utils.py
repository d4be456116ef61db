"""Helpers for training loops: splitting batches over devices, clipping gradients, downloading and
checking files."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.parse
import urllib.request
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core, ndarray as nd
from .._internal import kinds, ranks
from .._internal.files import open_regular, replacing
from .._internal.hints import GLUON, near_names
from .._internal.ranks.own_arrays import brought_to_all
from ..base import MXNetAssertionError, MXNetError
from ..context import Context, current_context
from ._repository import repository_file_url, repository_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .._internal.types import ArrayLike, Devices, NDArray
    from ..parallel import Mesh

__all__ = [
    "split_data",
    "split_and_load",
    "clip_global_norm",
    "check_sha1",
    "download",
    "replace_file",
    "shape_is_known",
]

near_names(__name__, pad_sequence=GLUON["pad_sequence"])

# MXNet's names, which other packages import.
_get_repo_url = repository_url
_get_repo_file_url = repository_file_url


def context_list(ctx: Devices | None) -> list[Context]:
    """Returns the devices of an argument `ctx` as a list, by default the current context. Raises
    ValueError for other types and for duplicates."""
    if ctx is None:
        return [current_context()]
    if isinstance(ctx, Context):
        return [ctx]
    contexts = list(ctx)
    if not contexts or not all(isinstance(c, Context) for c in contexts):
        raise ValueError(f"ctx must be a Context or a list of Contexts, not {ctx!r}")
    if len(set(contexts)) != len(contexts):
        raise ValueError(f"ctx names a device twice: {contexts}")
    return contexts


def replace_file(src: str | os.PathLike[str], dst: str | os.PathLike[str]) -> None:
    """Renames a file atomically, and replaces an existing file of that name."""
    os.replace(src, dst)


def split_data(
    data: NDArray, num_slice: int, batch_axis: int = 0, even_split: bool = True
) -> list[NDArray]:
    """Splits `data` along `batch_axis` into `num_slice` slices.

    Parameters
    ----------
    data : NDArray
        The batch, of any shape.
    num_slice : int
        Number of slices.
    batch_axis : int, default 0
        Axis to split along.
    even_split : bool, default True
        Whether the slices must have the same size. Otherwise, the first slices may be longer by
        one.

    Returns
    -------
    list of NDArray

    Raises
    ------
    ValueError
        If there are fewer elements along the axis than slices, or if they cannot be divided evenly
        but `even_split` is set.

    Examples
    --------
    >>> [part.shape for part in gluon.utils.split_data(nd.zeros((6, 2)), 3)]
    [(2, 2), (2, 2), (2, 2)]
    """
    if num_slice < 1:
        raise ValueError(f"split_data: num_slice must be at least 1, not {num_slice}")
    size = data.shape[batch_axis]
    if size < num_slice:
        raise ValueError(
            f"Too many slices: an array of shape {data.shape} has {size} elements along axis "
            f"{batch_axis}, fewer than the requested {num_slice} slices"
        )
    if even_split and size % num_slice:
        raise ValueError(
            f"An array of shape {data.shape} cannot be split evenly into {num_slice} slices along "
            f"axis {batch_axis}. Use a batch size that is a multiple of {num_slice}, or "
            "even_split=False"
        )
    if num_slice == 1:
        return [data]
    step, longer = divmod(size, num_slice)
    bounds = [i * step + min(i, longer) for i in range(num_slice + 1)]
    if batch_axis == 0:
        return [data[begin:end] for begin, end in zip(bounds, bounds[1:])]
    return [
        nd.slice_axis(data, axis=batch_axis, begin=begin, end=end)
        for begin, end in zip(bounds, bounds[1:])
    ]


def split_and_load(
    data: ArrayLike | Sequence[Any],
    ctx_list: Context | Sequence[Context] | Mesh,
    batch_axis: int = 0,
    even_split: bool = True,
) -> list[NDArray]:
    """Splits `data` (NDArray or any argument of ``nd.array``) along `batch_axis`, and moves one
    slice to each device of `ctx_list`.

    `ctx_list` may be a `mpgluon.parallel.Mesh`: one slice for each of its replicas, on the device
    of the first stage.

    Returns
    -------
    list of NDArray
        Slice i is on ``ctx_list[i]``.

    Examples
    --------
    >>> gluon.utils.split_and_load(nd.zeros((4, 2)), [mx.cpu(0), mx.cpu(1)])[1].context
    cpu(1)
    """
    if isinstance(ctx_list, Context):
        ctx_list = [ctx_list]
    elif not isinstance(ctx_list, (list, tuple)):
        return ctx_list.split_and_load(data, batch_axis, even_split)
    if not isinstance(data, nd.NDArray):
        data = kinds.of_mode(nd.array(data, ctx=ctx_list[0]))
    slices = split_data(data, len(ctx_list), batch_axis, even_split)
    return [part.as_in_context(ctx) for part, ctx in zip(slices, ctx_list)]


def clip_global_norm(
    arrays: Iterable[NDArray], max_norm: float, check_isfinite: bool = True
) -> float | NDArray:
    """Scales `arrays` in place so that their joint 2-norm is at most `max_norm`.

    The arrays may be on any devices. They are summed in the order of `arrays`, so the result does
    not depend on placement. With ``check_isfinite=False``, the call is asynchronous.

    Parameters
    ----------
    arrays : list of NDArray
        Arrays of any shapes, changed in place.
    max_norm : float
        The largest norm that is not scaled, above 0.
    check_isfinite : bool, default True
        Whether to read the norm and warn if it is not finite.

    Returns
    -------
    float, or NDArray of shape (1,) when `check_isfinite` is False
        The norm before scaling.

    Raises
    ------
    MXNetAssertionError
        If there are no arrays.

    Examples
    --------
    >>> gradient = nd.array([3, 4])
    >>> gluon.utils.clip_global_norm([gradient], 1)
    5.0
    >>> gradient.asnumpy().astype(float).round(3).tolist()
    [0.6, 0.8]
    """
    arrays = list(arrays)
    if not arrays:
        raise MXNetAssertionError("clip_global_norm: arrays must not be empty")
    total = global_norm(arrays)
    if check_isfinite:
        norm = float(brought_to_all(total))
        if not np.isfinite(norm):
            warnings.warn(
                "The gradients' norm is nan or inf. Clipping gives nan or zero gradients.",
                UserWarning,
                stacklevel=2,
            )
    scale_arrays(arrays, nd.minimum(max_norm / (total + 1e-8), 1.0))
    return norm if check_isfinite else kinds.like(total, arrays[0])


def _together(arrays):
    """Groups the positions of arrays by device and dtype, in lists of at most _LARGEST_CALL."""
    groups = {}  # (device, dtype) -> positions
    for i, array in enumerate(arrays):
        groups.setdefault((array.context, array.dtype), []).append(i)
    return [
        positions[i : i + _LARGEST_CALL]
        for positions in groups.values()
        for i in range(0, len(positions), _LARGEST_CALL)
    ]


def global_norm(arrays: Sequence[NDArray]) -> NDArray:
    """Returns the joint 2-norm of all arrays, with shape (1,), on the device of the first array."""
    arrays = [_stored(kinds.plain(array)) for array in arrays]
    home, groups = arrays[0].context, _together(arrays)
    # Only one number per array is moved between devices. The numbers are summed on one device in a
    # fixed order, so the result does not depend on placement.
    squares = []
    for positions in groups:
        sums = nd.multi_sum_sq(*[arrays[i] for i in positions], num_arrays=len(positions))
        squares.append(sums.as_in_context(home))
    if len(groups) > 1:
        order = sorted(
            range(len(arrays)), key=[i for positions in groups for i in positions].__getitem__
        )
        squares = nd.take(nd.concat(*squares, dim=0), nd.array(order, ctx=home, dtype="int32"))
    else:
        squares = squares[0]
    return nd.sqrt(nd.sum(squares)).reshape((1,))


def _stored(array):
    """Returns the stored values of an array as a dense array. All other elements are 0."""
    if array.stype == "default":
        return array
    values = array.values
    if values.size:
        return values
    with ranks.alone():  # the number of rows, and thus the ops, may differ between ranks
        return nd.zeros(1, ctx=values.context, dtype=values.dtype)


def _like(number, array):
    """Reshapes an array of one element to the number of dimensions of `array`."""
    return number.reshape((1,) * array.ndim)


def scale_arrays(arrays: Sequence[NDArray], scale: NDArray) -> None:
    """Multiplies arrays on any devices by `scale`, of shape (1,), in place."""
    scales = {scale.context: scale}
    arrays = [kinds.plain(array) for array in arrays]
    for array in arrays:
        if array.stype != "default":
            there = scale.as_in_context(array.context).astype(array.dtype, copy=False)
            array[:] = array.with_values(nd.broadcast_mul(array.values, _like(there, array.values)))
    arrays = [array for array in arrays if array.stype == "default"]
    for positions in _together(arrays):
        ctx = arrays[positions[0]].context
        if ctx not in scales:
            scales[ctx] = scale.as_in_context(ctx)
        nd._internal._multi_scale(
            *[arrays[i] for i in positions], scales[ctx], num_arrays=len(positions) + 1
        )


_LARGEST_CALL = 1024  # maximum number of arrays in one call


def shape_is_known(shape: Sequence[int] | None) -> bool:
    """True if `shape` gives the size of every dimension (0 and -1 mean unknown).

    Examples
    --------
    >>> gluon.utils.shape_is_known((3, 0))
    False
    """
    return shape is not None and all(size > 0 for size in shape)


def check_sha1(filename: str | os.PathLike[str], sha1_hash: str) -> bool:
    """True if the file's SHA-1 starts with `sha1_hash` (hexadecimal, usually all 40 digits).

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "empty")
    ...     open(path, "w").close()
    ...     same = gluon.utils.check_sha1(path, "da39a3ee5e6b4b0d3255bfef95601890afd80709")
    >>> same
    True
    """
    with open_regular(filename) as file:
        return bool(sha1_hash) and _wrong_hash(file, sha1_hash, None) is None


def _wrong_hash(file, sha1, sha256):
    """Returns the name and value of the first hash that does not match a file, or None."""
    for name, wanted, algorithm in (("SHA-1", sha1, "sha1"), ("SHA-256", sha256, "sha256")):
        if wanted:
            file.seek(0)
            digest = hashlib.new(algorithm)
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
            if not digest.hexdigest().startswith(wanted.lower()):
                return f"{name} {wanted}"
    return None


def download(
    url: str,
    path: str | None = None,
    overwrite: bool = False,
    sha1_hash: str | None = None,
    retries: int = 5,
    verify_ssl: bool = True,
    *,
    sha256_hash: str | None = None,
    timeout: float = 60,
    max_size: int = 64 << 30,
) -> str:
    """Downloads `url` into a file and returns the file's path.

    An existing file is kept unless `overwrite` is set or it does not have the given hash.
    ``file://`` addresses and plain paths need no network.

    Parameters
    ----------
    url : str
        Address or path.
    path : str, optional
        File to write, or an existing directory for it; defaults to the last part of the address.
    overwrite : bool, default False
        Whether to download a file that exists already.
    sha1_hash : str, optional
        The 40 hexadecimal digits of the file's expected SHA-1.
    retries : int, default 5
        Number of retries after network errors.
    verify_ssl : bool, default True
        Whether to check certificates.
    sha256_hash : str, optional
        The 64 hexadecimal digits of the file's expected SHA-256. Preferable to `sha1_hash`, because
        SHA-1 collisions can be constructed.
    timeout : float, default 60
        Seconds without data from the server after which the download fails.
    max_size : int, default 64 GiB
        Maximum size in bytes; larger downloads fail.

    Raises
    ------
    MXNetError
        If the address cannot be read, or if the file has a different hash or more than `max_size`
        bytes.
    """
    name = os.path.basename(urllib.parse.urlparse(url).path)
    if path is None or os.path.isdir(path):
        if not name:
            raise ValueError(f"download: {url!r} does not name a file; give `path`")
        path = os.path.join(path or "", name)
    path = os.path.expanduser(path)
    if os.path.exists(path) and not overwrite:
        with open_regular(path) as file:
            if _wrong_hash(file, sha1_hash, sha256_hash) is None:
                return path
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    address = (
        url
        if urllib.parse.urlparse(url).scheme
        else "file://" + urllib.request.pathname2url(os.path.abspath(url))
    )
    context = None
    if address.startswith("https:") and not verify_ssl:
        import ssl

        context = ssl._create_unverified_context()
    if address.startswith("http:") and not (sha1_hash or sha256_hash):
        warnings.warn(
            f"download: {url} is downloaded without encryption, so its contents can be modified "
            "in transit; use https or give sha256_hash",
            stacklevel=2,
        )
    with replacing(path) as target:
        for attempt in range(retries + 1):
            target.seek(0)
            target.truncate()
            try:
                with urllib.request.urlopen(address, context=context, timeout=timeout) as source:
                    _copy(source, target, max_size, url)
                break
            except (OSError, http.client.HTTPException) as error:
                if attempt == retries or address.startswith("file:"):
                    raise MXNetError(f"download: cannot read {url}: {error}") from error
        if wrong := _wrong_hash(target, sha1_hash, sha256_hash):
            raise MXNetError(f"download: the contents of {url} do not have the {wrong}")
    return path


def _copy(source, target, most, url):
    """Copies a response to a file. Raises an error if it has more than `most` bytes."""
    size = 0
    while data := source.read(1 << 20):
        size += len(data)
        if size > most:
            raise MXNetError(f"download: {url} has more than the {most} bytes of max_size")
        target.write(data)


class HookHandle(_core.Scope):
    """Handle of a registered hook. `detach`, or the end of a ``with`` statement, removes the
    hook."""

    def __init__(self, hooks: dict[Any, Any], hook: Callable[..., Any]) -> None:
        self._hooks = hooks
        self._key = object()
        hooks[self._key] = hook

    def detach(self) -> None:
        self._hooks.pop(self._key, None)

    def _changes(self):
        return [(self._hooks, self._key)]


def indent(text: str, spaces: int) -> str:
    """Returns `text` with every line except the first indented by `spaces`."""
    return text.replace("\n", "\n" + " " * spaces)


_indent = indent  # MXNet's name, which other packages use


def brief(names: Iterable[str], limit: int = 7) -> str:
    """Returns the names, quoted. Omits those in the middle of a long list."""
    names = [f"'{name}'" for name in names]
    if len(names) > limit:
        names = names[: limit // 2] + ["..."] + names[-(limit // 2) :]
    return ", ".join(names)


_brief_print_list = brief
