"""Image data sets read from files in their published formats."""

import gzip
import io
import struct
import tarfile

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, recordio
from mpgluon.base import MXNetError
from support.calls import raises

vision = gluon.data.vision
IMAGES = np.random.RandomState(0).randint(0, 256, (3, 28, 28)).astype(np.uint8)
LABELS = np.array([3, 1, 2], np.uint8)


def idx(values):
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def write_mnist(folder, part="t10k", pack=gzip.compress, ending=".gz"):
    for name, values in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
        (folder / f"{part}-{name}-ubyte{ending}").write_bytes(pack(idx(values)))


@pytest.mark.parametrize("kind", [vision.MNIST, vision.FashionMNIST])
def test_mnist_reads_images_and_labels(tmp_path, kind, monkeypatch):
    write_mnist(tmp_path)
    data = kind(str(tmp_path), train=False)
    image, label = data[1]
    assert len(data) == 3 and label == 1 and label.dtype == np.int32
    assert image.shape == (28, 28, 1) and image.dtype == np.uint8
    np.testing.assert_array_equal(image.asnumpy()[:, :, 0], IMAGES[1])
    data = kind(str(tmp_path), False, lambda image, label: (image.astype("float32") / 255, -label))
    assert data[0][1] == -3 and data[0][0].dtype == np.float32
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte.gz, train-labels"):
        kind(str(tmp_path))
    folder = tmp_path / "datasets" / ("mnist" if kind is vision.MNIST else "fashion-mnist")
    folder.mkdir(parents=True)
    write_mnist(folder, "train", bytes, "")
    monkeypatch.setenv("MXNET_HOME", str(tmp_path))
    assert len(kind()) == 3


def test_labels_are_numpy_arrays_in_np_mode(tmp_path):
    """Programs call ``data[:][1].asnumpy()``, as they can in MXNet."""
    write_mnist(tmp_path)
    with mx.util.np_array(True):
        data = vision.MNIST(str(tmp_path), train=False)
        images, labels = data[:]
        batch = next(iter(gluon.data.DataLoader(data, 3)))
    for array in (images, labels, *data[0], *batch):
        assert type(array) is mx.np.ndarray
    assert data[0][1].shape == () and data[0][1].dtype == np.int32
    np.testing.assert_array_equal(labels.asnumpy(), LABELS)
    np.testing.assert_array_equal(batch[1].asnumpy(), LABELS)


def test_damaged_mnist_files_raise(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    whole, plain = path.read_bytes(), idx(LABELS)
    damaged = [whole[:size] for size in range(len(whole))]
    damaged += [gzip.compress(plain[:size]) for size in range(len(plain))]
    damaged += [gzip.compress(data) for data in (plain + b"1", idx(IMAGES), idx(LABELS[:2]))]
    damaged.append(gzip.compress(plain[:4] + b"\xff\xff\xff\xff" + plain[8:]))
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(MXNetError):
            vision.MNIST(str(tmp_path), train=False)


def cifar(labels, count=2):
    rows = np.random.RandomState(0).randint(0, 20, (count, labels + 3072)).astype(np.uint8)
    images = rows[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return rows.tobytes(), rows[:, :labels], images


def archive_of(path, names, data):
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"../folder/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def test_cifar10_reads_archives_and_plain_files(tmp_path):
    data, labels, images = cifar(1)
    names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    with pytest.raises(FileNotFoundError, match="data_batch_5.bin .or cifar-10-binary.tar.gz."):
        vision.CIFAR10(str(tmp_path))
    archive_of(tmp_path / "cifar-10-binary.tar.gz", names, data)
    packed = vision.CIFAR10(str(tmp_path))
    raises(MXNetError, "test_batch.bin", lambda: vision.CIFAR10(str(tmp_path), train=False))
    for name in names:
        (tmp_path / name).write_bytes(data)
    for found in (packed, vision.CIFAR10(str(tmp_path))):
        assert len(found) == 10 and found[1][1] == labels[1, 0] and found[1][1].dtype == np.int32
        np.testing.assert_array_equal(found[9][0].asnumpy(), images[1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cifar-10-binary.tar.gz", *names]


def test_cifar100_reads_fine_and_coarse_labels(tmp_path):
    data, labels, images = cifar(2)
    (tmp_path / "test.bin").write_bytes(data)
    for fine in (False, True):
        found = vision.CIFAR100(str(tmp_path), fine_label=fine, train=False)
        assert [label for _, label in found] == labels[:, int(fine)].tolist()
        np.testing.assert_array_equal(found[0][0].asnumpy(), images[0])


def test_damaged_cifar_files_raise(tmp_path):
    data, _, _ = cifar(1)
    path = tmp_path / "test_batch.bin"
    for size in (0, 1, 3072, 3074, len(data) - 1):
        path.write_bytes(data[:size])
        raises(MXNetError, "damaged", lambda: vision.CIFAR10(str(tmp_path), train=False))
    path.unlink()
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive_of(archive, ["test_batch.bin"], data)
    whole = archive.read_bytes()
    for size in range(0, len(whole) - 600, 101):
        archive.write_bytes(whole[:size])
        raises(MXNetError, "damaged", lambda: vision.CIFAR10(str(tmp_path), train=False))


@pytest.fixture
def records(tmp_path):
    pytest.importorskip("PIL")
    path = str(tmp_path / "some")
    record = recordio.MXIndexedRecordIO(path + ".idx", path + ".rec", "w")
    for i, label in enumerate((4.0, [1, 2])):
        values = np.full((5, 4, 3), 60 * i, np.uint8)
        record.write_idx(i, recordio.pack_img((0, label, i, 0), values, 1, ".png"))
    record.close()
    return path + ".rec"


def test_record_data_sets_decode_images_and_labels(records):
    data = gluon.data.RecordFileDataset(records)
    assert len(data) == 2 and recordio.unpack(data[0])[0].label == 4
    data = vision.ImageRecordDataset(records)
    assert data[0][1] == 4 and data[1][1].tolist() == [1, 2]
    assert (data[1][0].asnumpy() == 60).all() and data[1][0].shape == (5, 4, 3)
    assert vision.ImageRecordDataset(records, 0)[0][0].shape == (5, 4, 1)
    assert vision.ImageRecordDataset(records, 1, lambda image, label: label)[0] == 4


def test_record_data_sets_work_in_worker_processes(records):
    data = vision.ImageRecordDataset(records, transform=lambda image, label: image)
    loader = gluon.data.DataLoader(data, 1, num_workers=2)
    assert [int(batch.max().asscalar()) for batch in loader] == [0, 60]


def test_image_folder_data_set_lists_classes_and_warns_about_other_files(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for folder, names in (("b", ["2.png", "1.JPG"]), ("a", ["x.jpeg", "text.txt"])):
        (tmp_path / folder).mkdir()
        for name in names:
            values = image.fromarray(np.full((4, 3, 3), 9, np.uint8))
            values.save(tmp_path / folder / name, "PNG")
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="file is not a folder|text.txt is skipped"):
        data = vision.ImageFolderDataset(str(tmp_path))
    assert data.synsets == ["a", "b"] and len(data) == 3
    assert [(path[-5:], label) for path, label in data.items] == [
        (".jpeg"[-5:], 0),
        ("1.JPG", 1),
        ("2.png", 1),
    ]
    assert data[1][1] == 1 and (data[1][0].asnumpy() == 9).all() and data[1][0].shape == (4, 3, 3)
    listed = [[1, "b/2.png"], [1, 2, "b/1.JPG"], [[3, 4], "a/x.jpeg"]]
    data = vision.ImageListDataset(str(tmp_path), listed, flag=0)
    assert data[0][1] == 1 and data[1][1].tolist() == [1, 2] and data[2][1].tolist() == [3, 4]
    assert data[0][0].shape == (4, 3, 1)
    (tmp_path / "some.lst").write_text("5\t1.5\tb/2.png\n\n6\t1\t2\ta/x.jpeg\n")
    data = vision.ImageListDataset(str(tmp_path), "some.lst")
    assert len(data) == 2 and data[0][1] == 1.5 and data[1][1].tolist() == [1, 2]
    for line in ("x\t1\ta.png", "1\ta.png", "1\tx\ta.png", "1"):
        (tmp_path / "some.lst").write_text(line)
        raises(MXNetError, "line 1", lambda: vision.ImageListDataset(str(tmp_path), "some.lst"))
    for wrong in (None, [[1]]):
        with pytest.raises(ValueError):
            vision.ImageListDataset(str(tmp_path), wrong)
    assert mx.gluon.data.vision is vision
