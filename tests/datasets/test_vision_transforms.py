"""Transforms of images. Sums without a comment are MXNet 1.9.1's."""

import pickle
import random

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from support.devices import on

T = gluon.data.vision.transforms
VALUES = np.random.RandomState(0).randint(0, 255, (6, 8, 3)).astype(np.uint8)


@pytest.fixture
def image():
    return nd.array(VALUES, dtype="uint8")


EXACT = [
    (T.Cast("float16"), (6, 8, 3), "float16", 17783),
    (T.ToTensor(), (3, 6, 8), "float32", 69.737256),
    (T.CropResize(1, 2, 3, 4), (4, 3, 3), "uint8", 3909),
    (T.CenterCrop(4), (4, 4, 3), "uint8", 6267),
    (T.CenterCrop((4, 2)), (2, 4, 3), "uint8", 2876),
    (T.Compose([]), (6, 8, 3), "uint8", 17783),
]
# OpenCV computes linear interpolation of uint8 in integers.
NEAR = [
    (T.Resize(4), (4, 4, 3), "uint8", 5844),
    (T.Resize((4, 5)), (5, 4, 3), "uint8", 7388),
    (T.Resize(4, True), (4, 5, 3), "uint8", 7137),
    (T.Resize((4, 5), True), (5, 4, 3), "uint8", 7388),
    (T.Resize(4, interpolation=2), (4, 4, 3), "uint8", 5853),
    (T.Resize(4, interpolation=3), (4, 4, 3), "uint8", 5928),
    (T.CropResize(1, 2, 3, 4, (5, 6), 1), (6, 5, 3), "uint8", 9725),
    (T.CropResize(1, 2, 3, 4, 5, 2), (5, 5, 3), "uint8", 8132),
    (T.CenterCrop(40), (40, 40, 3), "uint8", 598863),
]


@pytest.mark.parametrize("number", range(len(EXACT) + len(NEAR)))
def test_transforms_match_mxnet(image, number):
    transform, shape, dtype, total = (EXACT + NEAR)[number]
    out = transform(image)
    assert out.shape == shape and out.dtype == np.dtype(dtype)
    distance = abs(float(out.asnumpy().astype("float64").sum()) - total)
    assert distance < (1e-4 if number < len(EXACT) else out.size * 0.6)


def test_normalize_matches_numpy(image):
    for mean, std in ((1, 2), ((1, 2, 3), (1, 2, 4))):
        out = T.Compose([T.ToTensor(), T.Normalize(mean, std)])(image)
        expected = (VALUES / 255 - np.array(mean)) / np.array(std)
        np.testing.assert_allclose(out.asnumpy().transpose(1, 2, 0), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", [np.int64, np.int32, np.uint8])
def test_transforms_accept_numpy_integer_sizes(image, number):
    size = number(200)
    for transform in (
        T.CenterCrop(size),
        T.CenterCrop((size, size)),
        T.CenterCrop(np.array([200, 200], number)),
        T.RandomResizedCrop(size),
        T.RandomResizedCrop([size, size]),
        T.Resize(size),
        T.Resize((size, size), keep_ratio=True),
        T.CropResize(*map(number, (1, 2, 3, 4)), size),
        T.CropResize(*map(number, (1, 2, 3, 4)), (size, size)),
    ):
        assert transform(image).shape == (200, 200, 3)
    assert T.Resize(size, keep_ratio=True)(image).shape == (200, 266, 3)


def test_transforms_of_batches_equal_single_images(image):
    batch = nd.stack(image, nd.flip(image, axis=1))
    for transform in (
        T.ToTensor(),
        T.Resize(4, True),
        T.Resize((5, 3), interpolation=3),
        T.CropResize(1, 1, 4, 3, 2),
    ):
        each = [transform(one).asnumpy() for one in batch]
        np.testing.assert_array_equal(transform(batch).asnumpy(), each)


RANDOM = [
    T.RandomFlipLeftRight(),
    T.RandomFlipTopBottom(),
    T.RandomBrightness(0.5),
    T.RandomContrast(0.5),
    T.RandomSaturation(0.5),
    T.RandomHue(0.5),
    T.RandomColorJitter(0.3, 0.3, 0.3, 0.3),
    T.RandomLighting(20),
    T.RandomResizedCrop((8, 6)),
    T.RandomRotation((-90, 90)),
    T.RandomApply(T.RandomBrightness(0.5)),
]


@pytest.mark.parametrize("number", range(len(RANDOM)))
def test_random_transforms_vary_and_follow_the_seed(image, number):
    """Each transform changes images differently at each call and is reproducible from a seed."""
    transform = RANDOM[number]
    x = image.astype("float32")

    def draw():
        for seed in (mx.random.seed, random.seed, np.random.seed):
            seed(3)
        return [transform(x).asnumpy() for _ in range(6)]

    first, second = draw(), draw()
    assert len({out.tobytes() for out in first}) > 1
    for one, two in zip(first, second):
        assert one.shape == x.shape
        np.testing.assert_array_equal(one, two)


def test_compose_groups_hybrid_parts_and_pickles():
    composed = T.Compose([T.Resize(3), T.ToTensor(), T.CenterCrop(2), T.Cast()])
    assert [type(part).__name__ for part in composed] == ["HybridSequential", "CenterCrop", "Cast"]
    assert len(composed[0]) == 2
    again = pickle.loads(pickle.dumps(composed))
    assert again(nd.zeros((4, 4, 3))).shape == composed(nd.zeros((4, 4, 3))).shape


@pytest.mark.parametrize("device, interpolation", [(0, 1), (1, 1), (1, 2), (1, 3)])
def test_hybridized_transforms_have_the_same_bits_on_any_device(image, device, interpolation):
    transform = gluon.nn.HybridSequential()
    transform.add(T.CropResize(1, 1, 6, 5, 4, interpolation), T.Resize(3, False, interpolation))
    transform.add(T.ToTensor(), T.Normalize(0.5, 0.2))
    expected = transform(image).asnumpy()
    transform.hybridize(exact=True)
    out = transform(image.as_in_context(on(device)))
    assert out.context == on(device)
    np.testing.assert_array_equal(out.asnumpy(), expected)


def test_random_transforms_apply_with_their_probability(image):
    for p in (0, 1):
        dtype = T.RandomApply(T.Cast("float64"), p)(image).dtype
        assert dtype == (np.float64 if p else np.uint8)
    assert T.RandomRotation((1, 2), rotate_with_proba=0)(image) is image
    x = image.astype("float32")
    rotated = T.Rotate(90)(x.transpose((2, 0, 1))[:, :, :6]).asnumpy()
    expected = np.rot90(VALUES[:, :6].transpose(2, 0, 1), axes=(1, 2))
    np.testing.assert_allclose(rotated, expected, atol=0.01)


def test_transforms_work_in_data_loaders(image):
    data = gluon.data.ArrayDataset([image] * 4, [0, 1, 2, 3])
    transform = T.Compose([T.RandomResizedCrop(4), T.ToTensor(), T.Normalize(0.5, 0.2)])
    for workers in (0, 1):
        loader = gluon.data.DataLoader(data.transform_first(transform), 2, num_workers=workers)
        batches = list(loader)
        assert [batch.shape for batch, _ in batches] == [(2, 3, 4, 4)] * 2
        assert batches[1][1].asnumpy().tolist() == [2, 3]


def test_transforms_reject_invalid_arguments(image):
    for wrong, error, words in (
        (lambda: T.Rotate(30)(image), TypeError, "put ToTensor before"),
        (lambda: T.RandomRotation((1, 2))(image), TypeError, "float32, not uint8"),
        (lambda: T.RandomRotation((3, 2)), ValueError, "least, largest"),
        (lambda: T.RandomRotation((1, 2), rotate_with_proba=2), ValueError, "0 to 1"),
        (lambda: T.RandomApply([T.Cast()]), TypeError, "Compose"),
        (lambda: T.Resize(4, interpolation=7)(image), mx.MXNetError, "interp must be"),
        (lambda: T.CropResize(1, 2, 9, 4)(image), mx.MXNetError, "CropResize"),
        (lambda: T.Normalize((1, 2, 3))(image), mx.MXNetError, "Normalize"),
        (lambda: T.RandomBrightness(-0.5), ValueError, "brightness must be at least 0.*-0.5"),
        (lambda: T.RandomContrast(-0.5), ValueError, "contrast must be at least 0"),
        (lambda: T.RandomSaturation(-0.5), ValueError, "saturation must be at least 0"),
        (lambda: T.RandomHue(float("nan")), ValueError, "hue must be at least 0"),
        (lambda: T.RandomColorJitter(saturation=-1), ValueError, "saturation must be at least"),
        (lambda: T.RandomLighting(-1), ValueError, "alpha must be at least 0"),
        (lambda: T.RandomHue((0, 1)), TypeError, "hue must be at least 0.*tuple"),
    ):
        with pytest.raises(error, match=words):
            wrong()
