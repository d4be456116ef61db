"""Data sets and models from local files."""

from __future__ import annotations

import bz2
import gzip
import os
import shutil
import zipfile
from typing import TYPE_CHECKING

import numpy as np

from .. import io

if TYPE_CHECKING:
    from typing import Any

    from .._internal.types import Shape


__all__ = [
    "download",
    "download_model",
    "get_bz2_data",
    "get_cifar10",
    "get_mnist",
    "get_mnist_iterator",
    "get_mnist_ubyte",
    "get_zip_data",
]

_MNIST = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]
_CIFAR10 = ["cifar/train.rec", "cifar/test.rec", "cifar/train.lst", "cifar/test.lst"]


def download(
    url: str,
    fname: str | None = None,
    dirname: str | None = None,
    overwrite: bool = False,
    retries: int = 5,
) -> str:
    """Downloads a URL, or copies a local file, and returns the name of the file; see
    `gluon.utils.download`.

    fname: the file to write, by default the last part of the URL. dirname: its folder, which is
    created if missing. overwrite: True to replace an existing file.
    """
    from ..gluon import utils

    fname = url.split("/")[-1] if fname is None else fname
    path = fname if dirname is None else os.path.join(dirname, fname)
    return utils.download(url, path, overwrite=overwrite, retries=retries)


def _no_file(what, paths):
    names = ", ".join(os.path.abspath(path) for path in paths)
    return FileNotFoundError(
        f"{what}: downloads are not supported; put the data there first: {names}"
    )


def download_model(
    model_name: str, dst_dir: str = "./", meta_info: dict[str, dict[str, str]] | None = None
) -> tuple[str | None, int]:
    """Returns the prefix and epoch of a model's files, for `mx.model.load_checkpoint`.

    Parameters
    ----------
    model_name : str
        The name of the model in `meta_info`, and of its files.
    dst_dir : str, default "./"
        The folder of ``NAME-symbol.json`` and ``NAME-0000.params``.
    meta_info : dict of str to dict, optional
        The locations of models: ``{name: {"symbol": address, "params": address}}``, URLs or local
        files, see `download`. By default the files must be in `dst_dir`; FileNotFoundError
        otherwise.

    Returns
    -------
    (prefix, 0), or (None, 0) for a model that `meta_info` lacks.
    """
    prefix = os.path.join(dst_dir, model_name)
    files = {"symbol": f"{prefix}-symbol.json", "params": f"{prefix}-0000.params"}
    if meta_info is None:
        missing = [path for path in files.values() if not os.path.exists(path)]
        if missing:
            raise _no_file(f"download_model({model_name!r})", missing)
        return prefix, 0
    if model_name not in meta_info:
        return None, 0
    for kind, path in files.items():
        if kind not in meta_info[model_name]:
            raise ValueError(f"download_model: meta_info of {model_name!r} lacks {kind!r}")
        download(meta_info[model_name][kind], path)
    return prefix, 0


def _read_idx(path):
    """Reads the uint8 array in a file of the IDX format, compressed or not."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        content = file.read()
    dimensions = content[3] if len(content) > 3 else 0
    begin = 4 + 4 * dimensions
    if content[:3] != b"\0\0\x08" or len(content) < begin:
        raise ValueError(f"{path} is not an IDX file of unsigned bytes")
    shape = np.frombuffer(content[4:begin], ">u4").astype(np.int64)
    if len(content) - begin != np.prod(shape):
        raise ValueError(
            f"{path} has shape {shape.tolist()} in its header, but {len(content) - begin} bytes"
        )
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def _mnist_files(folders):
    """Returns the paths of MNIST's four files, from the first folder that has all of them."""
    for folder in folders:
        for suffix in (".gz", ""):
            paths = [os.path.join(folder, name + suffix) for name in _MNIST]
            if all(map(os.path.exists, paths)):
                return paths
    raise _no_file("MNIST", [os.path.join(folders[0], name + ".gz") for name in _MNIST])


def get_mnist() -> dict[str, np.ndarray[Any, Any]]:
    """Reads MNIST from the four ``*-ubyte.gz`` files in the current folder or in ``data``.

    The files may also be uncompressed. Returns a dict: ``train_data`` and ``test_data`` have the
    shape (count, 1, 28, 28), float32 in [0, 1]; ``train_label`` and ``test_label`` the shape
    (count,), int8. FileNotFoundError names the missing files.
    """
    read = dict(zip(_MNIST, map(_read_idx, _mnist_files([os.curdir, "data"]))))
    found: dict[str, np.ndarray[Any, Any]] = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images = read[f"{prefix}-images-idx3-ubyte"]
        found[f"{part}_data"] = images[:, None].astype(np.float32) / 255
        found[f"{part}_label"] = read[f"{prefix}-labels-idx1-ubyte"].astype(np.int8)
    return found


def _unpack(what, names, archive):
    """Unpacks an archive in the folder ``data`` unless all its files exist."""
    if all(os.path.exists(os.path.join("data", name)) for name in names):
        return
    path = os.path.join("data", archive)
    if not os.path.exists(path):
        raise _no_file(what, [path])
    with zipfile.ZipFile(path) as file:
        file.extractall("data")


def get_mnist_ubyte() -> None:
    """Unpacks MNIST's four ``*-ubyte`` files from ``data/mnist.zip`` unless they are in ``data``.

    Raises FileNotFoundError if the archive is needed but missing.
    """
    _unpack("get_mnist_ubyte", _MNIST, "mnist.zip")


def get_cifar10() -> None:
    """Unpacks CIFAR-10's record files from ``data/cifar10.zip`` unless they are in ``data/cifar``.

    Raises FileNotFoundError if the archive is needed but missing.
    """
    _unpack("get_cifar10", _CIFAR10, "cifar10.zip")


def get_mnist_iterator(
    batch_size: int, input_shape: Shape, num_parts: int = 1, part_index: int = 0
) -> tuple[io.NDArrayIter, io.NDArrayIter]:
    """Returns iterators over the training and test data of MNIST; see `get_mnist_ubyte`.

    Parameters
    ----------
    batch_size : int
        The batch size; samples after the last full batch are dropped.
    input_shape : tuple
        The shape of a sample: three dimensions, or (784,) for flat ones.
    num_parts, part_index : int
        The number of equal parts of the samples, and the part to read, for parallel programs.
    """
    get_mnist_ubyte()

    def iterator(images, labels, shuffle):
        images, labels = (_read_idx(os.path.join("data", name)) for name in (images, labels))
        size = len(images) // num_parts
        own = slice(part_index * size, (part_index + 1) * size)
        data = images[own].astype(np.float32) / 256
        shape = (1, *images.shape[1:]) if len(input_shape) == 3 else (-1,)
        return io.NDArrayIter(
            data.reshape((len(data), *shape)),
            labels[own].astype(np.float32),
            batch_size,
            shuffle=shuffle,
            last_batch_handle="discard",
        )

    return iterator(*_MNIST[:2], True), iterator(*_MNIST[2:], False)


def get_zip_data(data_dir: str, url: str, data_origin_name: str) -> None:
    """Downloads an archive to `data_dir` (see `download`) and unpacks it there.

    Does nothing if ``data_dir/data_origin_name`` exists.
    """
    path = os.path.join(data_dir, data_origin_name)
    if not os.path.exists(path):
        with zipfile.ZipFile(download(url, dirname=data_dir)) as file:
            file.extractall(data_dir)


def get_bz2_data(data_dir: str, data_name: str, url: str, data_origin_name: str) -> None:
    """Downloads a bz2 file as ``data_dir/data_origin_name`` (see `download`) and unpacks it.

    The result is ``data_dir/data_name``, and the download is removed. Does nothing if the result
    exists.
    """
    path = os.path.join(data_dir, data_name)
    if os.path.exists(path):
        return
    packed = download(url, fname=data_origin_name, dirname=data_dir)
    with bz2.BZ2File(packed) as file, open(path, "wb") as unpacked:
        shutil.copyfileobj(file, unpacked)
    os.remove(packed)
