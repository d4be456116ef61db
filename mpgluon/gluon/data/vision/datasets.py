"""Image data sets in files. Nothing is downloaded: the error for missing files names them and
their folder."""

from __future__ import annotations

import os
import tarfile
import warnings
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from .... import image, ndarray as nd, recordio
from ...._core import is_np_array
from ...._internal import kinds
from ...._internal.files import check_expansion
from ....base import MXNetError, MXNetValueError, data_dir
from ....image._lists import entry_of, read_list
from ....io.idx_file import read_idx
from ..dataset import Dataset, RecordFileDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "MNIST",
    "FashionMNIST",
    "ImageFolderDataset",
    "ImageListDataset",
    "ImageRecordDataset",
]


class _ImagesInFiles(Dataset):
    """Images and labels that are read completely into memory. As in MXNet, the labels are a NumPy
    array, or an array of ``mx.np`` in np mode."""

    _folder: str  # relative to $MXNET_HOME/datasets

    def __init__(
        self, root: str | None, transform: Callable[[Any, Any], Any] | None = None
    ) -> None:
        if root is None:
            root = os.path.join(data_dir(), "datasets", self._folder)
        self._root = os.path.expanduser(root)
        self._transform = transform
        images, labels = self._read()
        self._data = kinds.of_mode(nd.array(images, dtype="uint8"))
        self._label: Any = labels
        if is_np_array():
            self._label = nd.array(labels, dtype="int32").as_np_ndarray()

    def _read(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Returns a uint8 array of the images and an int32 array of the labels."""
        raise NotImplementedError

    def _missing(self, names: Sequence[str]) -> FileNotFoundError:
        return FileNotFoundError(
            f"{type(self).__name__} needs the files {', '.join(names)} in {self._root}; put "
            "them there, or pass their folder as `root`"
        )

    def __getitem__(self, idx: int) -> Any:
        sample = self._data[idx], self._label[idx]
        return sample if self._transform is None else self._transform(*sample)

    def __len__(self) -> int:
        return len(self._label)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(samples: {len(self)})"


class MNIST(_ImagesInFiles):
    """Handwritten digits: images (28, 28, 1) of uint8, labels of int32.

    The four files of http://yann.lecun.com/exdb/mnist, such as `train-images-idx3-ubyte.gz`. They
    may be decompressed, with names without `.gz`.

    Parameters
    ----------
    root : str, default $MXNET_HOME/datasets/mnist
        Folder of the files; `$MXNET_HOME` defaults to `~/.mxnet`.
    train : bool, default True
        Whether to read the training set instead of the test set.
    transform : callable, optional
        Function ``transform(data, label)`` that returns the sample.

    Raises
    ------
    FileNotFoundError
        If files are missing; the message names them.
    MXNetError
        If a file is damaged.

    Examples
    --------
    >>> gluon.data.vision.MNIST(root="nowhere")
    Traceback (most recent call last):
    ...
    FileNotFoundError: MNIST needs the files train-images-idx3-ubyte.gz, ...
    """

    _folder = "mnist"

    def __init__(
        self,
        root: str | None = None,
        train: bool = True,
        transform: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self._train = train
        super().__init__(root, transform)

    def _read(self):
        part = "train" if self._train else "t10k"
        names = [f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"]
        paths = []
        for name in names:
            path = os.path.join(self._root, name)
            there = [one for one in (path, path.removesuffix(".gz")) if os.path.isfile(one)]
            if not there:
                raise self._missing(names)
            paths += there[:1]
        images, labels = read_idx(paths[0], 3), read_idx(paths[1], 1)
        if len(images) != len(labels):
            raise MXNetError(
                f"{paths[0]} has {len(images)} images, but {paths[1]} has {len(labels)} labels"
            )
        return images[..., None], labels.astype(np.int32)


class FashionMNIST(MNIST):
    """Articles of clothing: images (28, 28, 1) of uint8, labels of int32. The files have the format
    of `MNIST` and are available at https://github.com/zalandoresearch/fashion-mnist.

    Parameters
    ----------
    root : str, default $MXNET_HOME/datasets/fashion-mnist
        Folder of the files.
    train : bool, default True
        Whether to read the training set instead of the test set.
    transform : callable, optional
        Function ``transform(data, label)`` that returns the sample.

    Examples
    --------
    >>> gluon.data.vision.FashionMNIST(root="nowhere", train=False)
    Traceback (most recent call last):
    ...
    FileNotFoundError: FashionMNIST needs the files t10k-images-idx3-ubyte.gz, ...
    """

    _folder = "fashion-mnist"


class CIFAR10(_ImagesInFiles):
    """Small images of ten classes: (32, 32, 3) of uint8, labels of int32.

    The binary version from https://www.cs.toronto.edu/~kriz/cifar.html: `cifar-10-binary.tar.gz`,
    or the `.bin` files from it.

    Parameters
    ----------
    root : str, default $MXNET_HOME/datasets/cifar10
        Folder of the files; `$MXNET_HOME` defaults to `~/.mxnet`.
    train : bool, default True
        Whether to read the training set instead of the test set.
    transform : callable, optional
        Function ``transform(data, label)`` that returns the sample.

    Raises
    ------
    FileNotFoundError
        If files are missing; the message names them.
    MXNetError
        If a file is damaged.

    Examples
    --------
    >>> gluon.data.vision.CIFAR10(root="nowhere", train=False)
    Traceback (most recent call last):
    ...
    FileNotFoundError: CIFAR10 needs the files test_batch.bin ...
    """

    _folder = "cifar10"
    _archive = "cifar-10-binary.tar.gz"
    _train_files = [f"data_batch_{i}.bin" for i in range(1, 6)]
    _test_files = ["test_batch.bin"]
    _labels = 1  # label bytes before each image

    def __init__(
        self,
        root: str | None = None,
        train: bool = True,
        transform: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self._train = train
        self._label_byte = 0
        super().__init__(root, transform)

    def _read(self):
        names = self._train_files if self._train else self._test_files
        rows = np.concatenate(list(self._rows(names)))
        images = rows[:, self._labels :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(images), rows[:, self._label_byte].astype(np.int32)

    def _rows(self, names):
        """Yields an array (images, bytes per image) for each file."""
        paths = [os.path.join(self._root, name) for name in names]
        archive = os.path.join(self._root, self._archive)
        if all(os.path.isfile(path) for path in paths):
            for path in paths:
                with open(path, "rb") as file:
                    yield self._as_rows(path, file.read())
        elif os.path.isfile(archive):
            contents = self._unpacked(archive, names)
            for name in names:
                yield self._as_rows(f"{archive}: {name}", contents[name])
        else:
            raise self._missing([*names[:-1], f"{names[-1]} (or {self._archive})"])

    def _as_rows(self, path, data):
        size = self._labels + 3 * 32 * 32
        if not data or len(data) % size:
            raise MXNetError(
                f"{path} is damaged: its size of {len(data)} bytes is not a multiple of the "
                f"{size} bytes of an image"
            )
        return np.frombuffer(data, np.uint8).reshape(-1, size)

    @staticmethod
    def _unpacked(archive, names):
        """Returns the contents of files in an archive. A file is found by its name, regardless of
        its folder."""
        found, size = {}, 0
        try:
            with tarfile.open(archive) as members:
                for member in members:
                    size += member.size
                    check_expansion(archive, size)
                    name = os.path.basename(member.name)
                    if name in names and member.isfile():
                        found[name] = members.extractfile(member).read()
        except MXNetError:
            raise
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise MXNetError(f"{archive} is damaged: {error}") from None
        absent = [name for name in names if name not in found]
        if absent:
            raise MXNetError(
                f"{archive} is damaged or another archive: it does not contain {absent[0]}"
            )
        return found


class CIFAR100(CIFAR10):
    """Small images of 100 classes in 20 groups: (32, 32, 3) of uint8, labels of int32.

    The binary version from https://www.cs.toronto.edu/~kriz/cifar.html: `cifar-100-binary.tar.gz`,
    or the `.bin` files from it.

    Parameters
    ----------
    root : str, default $MXNET_HOME/datasets/cifar100
        Folder of the files.
    fine_label : bool, default False
        Whether the label is the class instead of the group.
    train : bool, default True
        Whether to read the training set instead of the test set.
    transform : callable, optional
        Function ``transform(data, label)`` that returns the sample.

    Examples
    --------
    >>> gluon.data.vision.CIFAR100(root="nowhere")
    Traceback (most recent call last):
    ...
    FileNotFoundError: CIFAR100 needs the files train.bin ...
    """

    _folder = "cifar100"
    _archive = "cifar-100-binary.tar.gz"
    _train_files = ["train.bin"]
    _test_files = ["test.bin"]
    _labels = 2

    def __init__(
        self,
        root: str | None = None,
        fine_label: bool = False,
        train: bool = True,
        transform: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self._train = train
        self._label_byte = int(bool(fine_label))
        _ImagesInFiles.__init__(self, root, transform)


class ImageRecordDataset(RecordFileDataset):
    """Images and labels in an indexed RecordIO file. Requires Pillow.

    Parameters
    ----------
    filename : str
        Path of the file `some.rec`; its index is `some.idx`.
    flag : {0, 1}, default 1
        Whether to read images in color (1) or grayscale (0).
    transform : callable, optional
        Function ``transform(data, label)`` that returns the sample.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "some")
    >>> record = mx.recordio.MXIndexedRecordIO(path + ".idx", path + ".rec", "w")
    >>> picture = np.zeros((4, 6, 3), np.uint8)
    >>> record.write_idx(0, mx.recordio.pack_img((0, 5.0, 0, 0), picture))
    >>> record.close()
    >>> image, label = gluon.data.vision.ImageRecordDataset(path + ".rec")[0]
    >>> image.shape, label
    ((4, 6, 3), 5.0)
    """

    def __init__(
        self, filename: str, flag: int = 1, transform: Callable[[Any, Any], Any] | None = None
    ) -> None:
        super().__init__(filename)
        self._flag = flag
        self._transform = transform

    def __getitem__(self, idx: int) -> Any:
        header, data = recordio.unpack(super().__getitem__(idx))
        sample = image.imdecode(data, self._flag), header.label
        return sample if self._transform is None else self._transform(*sample)


class ImageFolderDataset(Dataset):
    """Images in folders, one for each class: ``root/car/0001.jpg``, ``root/bus/some.png``.

    Parameters
    ----------
    root : str
        Path of the folder that contains the class folders.
    flag : {0, 1}, default 1
        Whether to read images in color (1) or grayscale (0).
    transform : callable, optional
        Function ``transform(data, label)`` that returns the sample.

    Attributes
    ----------
    synsets : list of str
        Names of the classes; the label of an image is an index into this list.
    items : list of tuple
        Path and label of each image.

    Examples
    --------
    >>> import os, tempfile
    >>> root = tempfile.mkdtemp()
    >>> for name in ("car", "bus"):
    ...     os.mkdir(os.path.join(root, name))
    >>> data = gluon.data.vision.ImageFolderDataset(root)
    >>> data.synsets, len(data)
    (['bus', 'car'], 0)
    """

    def __init__(
        self, root: str, flag: int = 1, transform: Callable[[Any, Any], Any] | None = None
    ) -> None:
        self._root = os.path.expanduser(root)
        self._flag = flag
        self._transform = transform
        self._exts = [".jpg", ".jpeg", ".png"]
        self.synsets: list[str] = []
        self.items: list[tuple[str, int]] = []
        self._list_images(self._root)

    def _list_images(self, root):
        for folder in sorted(os.listdir(root)):
            path = os.path.join(root, folder)
            if not os.path.isdir(path):
                warnings.warn(f"{path} is not a folder and is skipped", stacklevel=3)
                continue
            for name in sorted(os.listdir(path)):
                if os.path.splitext(name)[1].lower() in self._exts:
                    self.items.append((os.path.join(path, name), len(self.synsets)))
                else:
                    warnings.warn(
                        f"{os.path.join(path, name)} is skipped: its extension is not one of "
                        f"{', '.join(self._exts)}",
                        stacklevel=3,
                    )
            self.synsets.append(folder)

    def __getitem__(self, idx: int) -> Any:
        path, label = self.items[idx]
        sample = image.imread(path, self._flag), label
        return sample if self._transform is None else self._transform(*sample)

    def __len__(self) -> int:
        return len(self.items)


class ImageListDataset(Dataset):
    """Images in files listed with their labels.

    Parameters
    ----------
    root : str, default '.'
        Folder that the paths are relative to.
    imglist : str or list
        A file of lines `number<TAB>label...<TAB>path`, or a list of `[label..., path]`, in which a
        label may be a list.
    flag : {0, 1}, default 1
        Whether to read images in color (1) or grayscale (0).

    Attributes
    ----------
    items : list of tuple
        Path and label of each image; a label is a float32 array, or a number if there is only one.

    Examples
    --------
    >>> data = gluon.data.vision.ImageListDataset("images", [[0, "a.jpg"], [1, 2, "b.jpg"]])
    >>> len(data), data.items[1][1]
    (2, array([1., 2.], dtype=float32))
    """

    def __init__(
        self, root: str = ".", imglist: str | Sequence[Sequence[Any]] | None = None, flag: int = 1
    ) -> None:
        self._root = os.path.expanduser(root)
        self._flag = flag
        if isinstance(imglist, (str, os.PathLike)):
            entries = read_list(os.path.join(self._root, imglist))
            found = [(labels, path) for _, labels, path in entries]
        elif isinstance(imglist, (list, tuple)):
            found = [entry_of(entry) for entry in imglist]
        else:
            raise MXNetValueError(f"imglist must be a list or the path of one, not {imglist!r}")
        self.items: list[tuple[str, Any]] = [
            (os.path.join(self._root, path), labels[0] if len(labels) == 1 else labels)
            for labels, path in found
        ]

    def __getitem__(self, idx: int) -> Any:
        path, label = self.items[idx]
        return image.imread(path, self._flag), label

    def __len__(self) -> int:
        return len(self.items)
