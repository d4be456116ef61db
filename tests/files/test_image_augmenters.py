"""Augmenters of images, with and without boxes.

Uncommented values are from MXNet 1.9.1 with the same seeds.
"""

import random

import numpy as np
import pytest

from mpgluon import image, nd
from support.calls import raises

VALUES = np.random.RandomState(0).randint(0, 255, (6, 8, 3)).astype(np.uint8)
IMAGENET = (
    np.array([55.46, 4.794, 1.148]),
    np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]),
)
CREATED = dict(
    resize=6,
    rand_crop=True,
    rand_resize=True,
    rand_mirror=True,
    mean=True,
    std=True,
    brightness=0.1,
    contrast=0.1,
    saturation=0.1,
    hue=0.1,
    pca_noise=0.1,
    rand_gray=0.1,
)


def seed():
    random.seed(5)
    np.random.seed(5)


@pytest.mark.parametrize(
    "augmenter, shape, numbers",
    [
        (image.BrightnessJitterAug(0.4), (6, 8, 3), [9469.31, 10289.3, 10657.66]),
        (image.ContrastJitterAug(0.4), (6, 8, 3), [8607.29, 8593.42, 8587.2]),
        (image.SaturationJitterAug(0.4), (6, 8, 3), [8597.13, 8573.43, 8562.79]),
        (image.HueJitterAug(0.4), (6, 8, 3), [8581.42, 8574.73, 8580.31]),
        (image.ColorJitterAug(0.4, 0.3, 0.2), (6, 8, 3), [10196.54, 10525.41, 5970.9]),
        (image.LightingAug(0.4, *IMAGENET), (6, 8, 3), [8217.74, 8852.62, 9454.32]),
        (image.ColorNormalizeAug([1, 2, 3], [4, 5, 6]), (6, 8, 3), [1742.52] * 3),
        (image.RandomCropAug((4, 3)), (3, 4, 3), [2455.89, 2528.47, 2085.33]),
        (image.RandomSizedCropAug((4, 3), 0.1, (0.5, 2)), (3, 4, 3), [2100.59, 1928.79, 1913.92]),
        (image.ResizeAug(4), (4, 5, 3), [3461.13] * 3),
        (image.ForceResizeAug((4, 5)), (5, 4, 3), [3559.09] * 3),
        (image.ForceResizeAug((4, 5), 9), (5, 4, 3), [3564.93] * 3),
        (image.CenterCropAug((4, 5)), (5, 4, 3), [3742.92] * 3),
        (
            image.SequentialAug(image.CreateAugmenter((3, 4, 5), **CREATED)),
            (4, 5, 3),
            [7.78, 3.84, 1.81],
        ),
    ],
)
def test_augmenter_matches_mxnet(augmenter, shape, numbers):
    seed()
    for number in numbers:
        out = augmenter(nd.array(VALUES))
        assert out.shape == shape and out.dtype == np.float32
        weighted = out.asnumpy() * np.arange(out.size).reshape(shape) / out.size
        assert weighted.sum(dtype="float64") == pytest.approx(number, rel=1e-5, abs=0.01)


def test_flip_and_gray_follow_probability():
    x = nd.array(VALUES, dtype="uint8")
    flipped = image.HorizontalFlipAug(1)(x).asnumpy()
    np.testing.assert_array_equal(flipped, VALUES[:, ::-1])
    assert image.HorizontalFlipAug(0)(x) is x and image.RandomGrayAug(0)(x) is x
    gray = image.RandomGrayAug(1)(nd.array(VALUES)).asnumpy()
    expected = (VALUES @ np.array([0.21, 0.72, 0.07]))[..., None].repeat(3, 2)
    np.testing.assert_allclose(gray, expected, rtol=1e-5)


def test_color_jitter_of_gray_images_matches_mxnet():
    """These images are already gray; MXNet gives the same values."""
    values = np.array([[[1], [2]], [[3], [6]]], np.float32)
    for augmenter in (image.SaturationJitterAug(0.9), image.ColorJitterAug(0, 0, 0.9)):
        np.testing.assert_allclose(augmenter(nd.array(values)).asnumpy(), values, rtol=1e-6)
    seed()
    factor = 1 + random.uniform(-0.5, 0.5)
    seed()
    out = image.ContrastJitterAug(0.5)(nd.array(values)).asnumpy()
    np.testing.assert_allclose(out, 3 + factor * (values - 3), rtol=1e-6)
    assert image.ColorJitterAug(0.4, 0.3, 0.2)(nd.array(values)).shape == (2, 2, 1)


@pytest.mark.parametrize("number", [np.int64, np.int32, np.uint8])
def test_augmenters_accept_numpy_integer_sizes(number):
    """Products of sizes do not overflow, and dumps are valid JSON."""
    size = number(200), number(100)
    for augmenter, shape in (
        (image.ResizeAug(size[0]), (200, 266, 3)),
        (image.ForceResizeAug(size), (100, 200, 3)),
        (image.ForceResizeAug(np.array(size)), (100, 200, 3)),
        (image.RandomCropAug(size), (100, 200, 3)),
        (image.CenterCropAug(size), (100, 200, 3)),
        (image.RandomSizedCropAug(size, np.float32(0.2), (0.7, 1.3)), (100, 200, 3)),
        (image.CreateAugmenter((number(3), *size), resize=number(250))[0], (250, 333, 3)),
        (image.CreateDetAugmenter((3, *size), resize=number(250))[0].augmenter, (250, 333, 3)),
    ):
        assert augmenter(nd.array(VALUES)).shape == shape
        assert "200" in augmenter.dumps() or "250" in augmenter.dumps()
        assert "np." not in repr(augmenter)


def test_augmenters_do_not_modify_their_input():
    x = nd.array(VALUES)
    for augmenter in (
        image.ColorJitterAug(0.4, 0.3, 0.2),
        image.HueJitterAug(0.4),
        image.LightingAug(0.4, *IMAGENET),
    ):
        augmenter(x)
        np.testing.assert_array_equal(x.asnumpy(), VALUES)


def test_augmenter_dumps_match_mxnet():
    told = [augmenter.dumps() for augmenter in image.CreateAugmenter((3, 4, 5), **CREATED)]
    assert told[0] == '["resizeaug", {"size": 6, "interp": 2}]'
    assert told[2] == '["horizontalflipaug", {"p": 0.5}]'
    assert told[4][0] == "colorjitteraug" and len(told[4][1]) == 3
    assert told[4][1][0] == '["brightnessjitteraug", {"brightness": 0.1}]'
    assert '"eigval": [55.46, 4.794, 1.148]' in told[6]
    told = [augmenter.dumps() for augmenter in image.CreateDetAugmenter((3, 4, 5), rand_crop=0.5)]
    assert told[0][0] == "detrandomselectaug" and told[0][1][0].startswith('["detrandomcropaug"')
    assert told[-1] == ["detborrowaug", '["castaug", {"type": "float32"}]']


def test_create_augmenter_builds_list_and_validates():
    kinds = [type(one).__name__ for one in image.CreateAugmenter((3, 4, 4), rand_crop=True)]
    assert kinds == ["RandomCropAug", "CastAug"]
    for mean in (np.array([1, 2, 3]), nd.array([1, 2, 3]), [1, 2, 3]):
        normalize = image.CreateAugmenter((3, 4, 4), mean=mean)[-1]
        assert normalize.mean.asnumpy().tolist() == [1, 2, 3] and normalize.std is None
    for shape in ((1, 1, 3), (3, 1, 1), (1, 1)):
        for make in (image.CreateAugmenter, image.CreateDetAugmenter):
            assert make((3, 4, 4), mean=np.ones(shape), std=nd.ones(shape))
    normalize = image.CreateAugmenter((3, 4, 4), mean=np.ones((1, 1, 3)))[-1]
    assert normalize(nd.ones((4, 4, 3))).sum().item() == 0
    for wrong, words in (
        (dict(rand_resize=True), "rand_crop=True"),
        (dict(mean=[1, 2]), "length 1 or 3"),
        (dict(std=2.0), "length 1 or 3"),
        (dict(std=np.ones((2, 1, 3))), "first axis"),
    ):
        raises(AssertionError, words, lambda: image.CreateAugmenter((3, 4, 4), **wrong))
    with pytest.raises(NotImplementedError, match="Augmenter must define"):
        image.Augmenter()(nd.zeros((1, 1, 3)))


# --- With boxes -----------------------------------------------------------------------------------
PICTURE = np.random.RandomState(0).randint(0, 255, (60, 80, 3)).astype(np.float32)
LABEL = np.array([[0, 0.1, 0.2, 0.5, 0.6], [1, 0.3, 0.3, 0.9, 0.95], [2, 0.8, 0.1, 0.99, 0.2]])


@pytest.mark.parametrize(
    "augmenter, expected",
    [
        (
            image.DetRandomCropAug(),
            [
                ((37, 41, 3), 576226.0, [[1, 0, 0, 0.95122, 0.94595]]),
                (
                    (47, 36, 3),
                    645161.0,
                    [[0, 0, 0, 0.69444, 0.51064], [1, 0.25, 0.12766, 1, 0.95745]],
                ),
                ((25, 28, 3), 263265.0, [[0, 0, 0.2, 0.60714, 1]]),
                ((30, 31, 3), 346578.0, [[1, 0, 0.2, 1, 1]]),
            ],
        ),
        (
            image.DetRandomCropAug(0.5, 1.0, (0.1, 1), 0.7, 5),
            [
                ((46, 46, 3), 807079.0, [[0, 0.04348, 0.08696, 0.73913, 0.6087]]),
                ((50, 50, 3), 953024.0, [[0, 0.08, 0.2, 0.72, 0.68]]),
                ((60, 80, 3), 1826372.0, LABEL),
            ],
        ),
        (
            image.DetRandomPadAug((0.5, 2), (1, 4), 3, (1, 2, 3)),
            [
                (
                    (107, 153, 3),
                    1895798.0,
                    [
                        [0, 0.4902, 0.31776, 0.69935, 0.54206],
                        [1, 0.59477, 0.37383, 0.9085, 0.73832],
                        [2, 0.85621, 0.26168, 0.95556, 0.31776],
                    ],
                )
            ],
        ),
        (
            image.DetHorizontalFlipAug(1),
            [
                (
                    (60, 80, 3),
                    1826372.0,
                    [[0, 0.5, 0.2, 0.9, 0.6], [1, 0.1, 0.3, 0.7, 0.95], [2, 0.01, 0.1, 0.2, 0.2]],
                )
            ],
        ),
    ],
)
def test_detection_augmenter_matches_mxnet(augmenter, expected):
    seed()
    label = LABEL.copy()
    for shape, total, objects in expected:
        out, found = augmenter(nd.array(PICTURE), label)
        assert out.shape == shape and out.asnumpy().sum(dtype="float64") == total
        np.testing.assert_allclose(found, objects, atol=1e-5)
    np.testing.assert_array_equal(label, LABEL)


def test_create_det_augmenter_matches_mxnet():
    settings = dict(
        rand_crop=0.5,
        rand_pad=0.5,
        rand_mirror=True,
        mean=True,
        brightness=0.125,
        contrast=0.125,
        saturation=0.125,
        pca_noise=0.05,
        inter_method=10,
        min_object_covered=[0.3, 0.5, 0.9],
        area_range=(0.3, 3.0),
    )
    augmenters = image.CreateDetAugmenter((3, 30, 30), **settings)
    seed()
    for total, first in (
        (21515.4, [0, 0.0137, 0.2, 0.45205, 0.6]),
        (305.5, [0, 0.46154, 0.3913, 0.81319, 0.65217]),
        (77704.0, [0, 0.4466, 0.26829, 0.75728, 0.56098]),
    ):
        out, label = nd.array(PICTURE), LABEL
        for augmenter in augmenters:
            out, label = augmenter(out, label)
        assert out.shape == (30, 30, 3)
        assert out.asnumpy().sum(dtype="float64") == pytest.approx(total, rel=1e-3, abs=5)
        np.testing.assert_allclose(label[0], first, atol=1e-5)


def test_invalid_augmenter_arguments_are_refused():
    raises(TypeError, "image.Augmenter", lambda: image.DetBorrowAug(image.DetHorizontalFlipAug(1)))
    raises(ValueError, "DetAugmenters", lambda: image.DetRandomSelectAug([image.CastAug()]))
    with pytest.raises(AssertionError, match="1 or 3 elements, not 3, 2"):
        image.CreateMultiRandCropAugmenter([0.1, 0.2, 0.3], [(1, 2), (1, 3)])
    for make in (
        lambda: image.DetRandomCropAug(area_range=(0.5, 0.1)),
        lambda: image.DetRandomCropAug(aspect_ratio_range=(0, 1)),
        lambda: image.DetRandomPadAug(area_range=(0.5, 1)),
    ):
        with pytest.warns(UserWarning, match="does nothing"):
            augmenter = make()
        x = nd.array(PICTURE)
        assert augmenter(x, LABEL) == (x, LABEL)
    with pytest.raises(NotImplementedError):
        image.DetAugmenter()(nd.zeros((1, 1, 3)), LABEL)
    assert image.det.DetBorrowAug is image.detection.DetBorrowAug is image.DetBorrowAug
