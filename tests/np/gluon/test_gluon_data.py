"""Data sets, loaders, images and transforms in np mode: arrays of mx.np with the bits of mx.nd."""

import random

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd, npx
from mpgluon._internal import kinds
from mpgluon.gluon.data.vision import transforms
from support.compare import same_bits

draw = np.random.RandomState(3)
ROWS = draw.uniform(-1, 1, (7, 3)).astype("float32")
LABELS = np.arange(7).astype("float32")
IMAGE = draw.randint(0, 256, (8, 6, 3)).astype("uint8")


@pytest.fixture(autouse=True)
def _off():
    yield
    npx.reset_np()


def flat(value):
    if isinstance(value, (list, tuple)):
        return [array for part in value for array in flat(part)]
    return [value]


def both(function):
    """Checks that a function returns arrays of the mode, with equal bits."""
    results = []
    for numpy in (False, True):
        (npx.set_np if numpy else npx.reset_np)()
        mx.random.seed(2)
        np.random.seed(2)
        random.seed(2)
        found = flat(function(numpy))
        assert {type(x) for x in found} == {mx.np.ndarray if numpy else nd.NDArray}
        results.append([x.asnumpy() for x in found])
    npx.reset_np()
    same_bits(results[1], results[0])


WAYS = {
    "here": {},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "thread_pool": True},
    "custom": {"num_workers": 1, "batchify_fn": lambda samples: nd.stack(*[x for x, _ in samples])},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("arrays", [False, True], ids=["NumPy", "mx"])
def test_loaders_give_arrays_of_the_mode(way, arrays):
    def load(numpy):
        given = [ROWS, LABELS]
        if arrays or way == "custom":
            given = [nd.array(x) for x in given]
            given = [x.as_np_ndarray() for x in given] if numpy else given
        data = gluon.data.ArrayDataset(*given)
        return list(gluon.data.DataLoader(data, 3, **WAYS[way]))

    both(load)


def test_threads_and_processes_inherit_the_switches():
    class Switches(gluon.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, _):
            return [float(mx.is_np_array()), float(mx.is_np_shape())]

    npx.set_np()
    for way in ("here", "processes", "threads"):
        for batch in gluon.data.DataLoader(Switches(), 2, **WAYS[way]):
            assert [part.asnumpy().tolist() for part in batch] == [[1, 1], [1, 1]]


def test_labels_of_samples_have_no_dimensions():
    npx.set_np()
    labels = nd.array(LABELS).as_np_ndarray()
    assert labels[2].shape == () and float(labels[2]) == 2
    batch = gluon.data.dataloader.default_batchify_fn([labels[2], labels[4]])
    assert type(batch) is mx.np.ndarray and batch.asnumpy().tolist() == [2, 4]


@pytest.mark.parametrize("size", [6, 7])
def test_split_and_load(size):
    devices = [mx.cpu(0), mx.cpu(1)]

    def split(numpy):
        rows = nd.array(ROWS[:size])
        rows = rows.as_np_ndarray() if numpy else rows
        return gluon.utils.split_and_load(rows, devices, even_split=False)

    both(split)
    both(lambda _: gluon.utils.split_and_load(ROWS[:size], devices, even_split=False))


IMAGES = {
    "imresize": lambda x: mx.image.imresize(x, 4, 3),
    "resize_short": lambda x: mx.image.resize_short(x, 4),
    "center_crop": lambda x: mx.image.center_crop(x, (4, 4))[0],
    "random_crop": lambda x: mx.image.random_crop(x, (4, 4))[0],
    "fixed_crop": lambda x: mx.image.fixed_crop(x, 1, 2, 3, 4, (5, 5)),
    "random_size_crop": lambda x: mx.image.random_size_crop(x, (4, 4), 0.5, (0.7, 1.3))[0],
    "color_normalize": lambda x: mx.image.color_normalize(
        x.astype("float32"), kinds.like(nd.array([1, 2, 3]), x), kinds.like(nd.array([2, 3, 4]), x)
    ),
    "copyMakeBorder": lambda x: mx.image.copyMakeBorder(x, 1, 1, 2, 2),
    "imrotate": lambda x: mx.image.imrotate(nd.transpose(x, (2, 0, 1)).astype("float32"), 30),
    "augmenters": lambda x: _augmented(
        mx.image.CreateAugmenter(
            (3, 5, 5),
            resize=7,
            rand_crop=True,
            rand_mirror=True,
            mean=True,
            std=True,
            brightness=0.1,
            contrast=0.1,
            saturation=0.1,
            hue=0.1,
            pca_noise=0.1,
            rand_gray=0.5,
        ),
        x,
    ),
}
TRANSFORMS = {
    "ToTensor": transforms.ToTensor(),
    "Cast": transforms.Cast("float32"),
    "Resize": transforms.Resize(4),
    "CenterCrop": transforms.CenterCrop(4),
    "CropResize": transforms.CropResize(1, 2, 3, 4, size=(5, 6)),
    "RandomResizedCrop": transforms.RandomResizedCrop(4),
    "RandomFlipLeftRight": transforms.RandomFlipLeftRight(),
    "RandomFlipTopBottom": transforms.RandomFlipTopBottom(),
    "RandomBrightness": transforms.RandomBrightness(0.3),
    "RandomContrast": transforms.RandomContrast(0.3),
    "RandomSaturation": transforms.RandomSaturation(0.3),
    "RandomHue": transforms.RandomHue(0.3),
    "RandomColorJitter": transforms.RandomColorJitter(0.1, 0.1, 0.1, 0.1),
    "RandomLighting": transforms.RandomLighting(0.3),
    "RandomApply": transforms.RandomApply(transforms.Resize(4)),
    "Rotate": transforms.Compose([transforms.ToTensor(), transforms.Rotate(20)]),
    "RandomRotation": transforms.Compose(
        [transforms.ToTensor(), transforms.RandomRotation((1, 9))]
    ),
    "Compose": transforms.Compose(
        [transforms.Resize(4), transforms.ToTensor(), transforms.Normalize((0.1, 0.2, 0.3), 0.5)]
    ),
}


def _augmented(augmenters, image):
    for augmenter in augmenters:
        image = augmenter(image)
    return image


def test_all_transforms_are_listed():
    assert set(transforms.__all__) - {"Normalize"} == set(TRANSFORMS)


@pytest.mark.parametrize("name", {**IMAGES, **TRANSFORMS})
def test_images_and_transforms_compute_the_bits_of_nd(name):
    function = {**IMAGES, **TRANSFORMS}[name]

    def compute(numpy):
        image = nd.array(IMAGE, dtype="uint8")
        return function(image.as_np_ndarray() if numpy else image)

    both(compute)


def test_decoded_images_are_of_the_mode(tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "image.png"
    image.fromarray(IMAGE).save(path)
    (tmp_path / "list.lst").write_text("0\t1\timage.png\n1\t0\timage.png\n")
    both(lambda _: mx.image.imread(str(path)))
    both(lambda _: mx.image.imdecode(path.read_bytes()))

    def batches(_):
        found = mx.image.ImageIter(
            2, (3, 5, 5), path_imglist=str(tmp_path / "list.lst"), path_root=str(tmp_path)
        )
        return [[*batch.data, *batch.label] for batch in found]

    both(batches)
