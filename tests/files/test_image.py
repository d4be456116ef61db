"""Reading, resizing, cropping and rotating images. Uncommented values are from MXNet 1.9.1."""

import io
import random

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, image, nd
from mpgluon.base import MXNetError
from support.calls import raises

ROW = np.array([[10, 200, 30, 90, 250, 5]], np.float32)[:, :, None]


def picture(height=6, width=5, seed=0):
    return np.random.RandomState(seed).randint(0, 256, (height, width, 3)).astype(np.uint8)


def file_of(values, kind="PNG", **options):
    out = io.BytesIO()
    pytest.importorskip("PIL.Image").fromarray(values).save(out, kind, **options)
    return out.getvalue()


def test_imdecode_accepts_all_buffer_types_and_color_flags(tmp_path):
    values = picture()
    data = file_of(values)
    for buf in (
        data,
        bytearray(data),
        np.frombuffer(data, np.uint8),
        nd.array(list(data), dtype="uint8"),
    ):
        np.testing.assert_array_equal(image.imdecode(buf).asnumpy(), values)
    np.testing.assert_array_equal(image.imdecode(data, to_rgb=0).asnumpy(), values[:, :, ::-1])
    grey = image.imdecode(data, flag=0).asnumpy()
    assert grey.shape == (6, 5, 1)
    near = values @ np.array([0.299, 0.587, 0.114])
    assert abs(grey[:, :, 0] - near).max() <= 1
    out = nd.zeros((6, 5, 3), dtype="uint8")
    assert image.imdecode(data, out=out) is out
    np.testing.assert_array_equal(out.asnumpy(), values)
    path = tmp_path / "some.png"
    path.write_bytes(data)
    np.testing.assert_array_equal(image.imread(str(path)).asnumpy(), values)


def test_imdecode_drops_alpha_extra_bits_and_orientation():
    """Drops alpha, reduces 16 bits to 8 and ignores the camera's orientation."""
    module = pytest.importorskip("PIL.Image")
    with_alpha = np.concatenate([picture(), np.zeros((6, 5, 1), np.uint8)], 2)
    np.testing.assert_array_equal(image.imdecode(file_of(with_alpha)).asnumpy(), picture())
    grey = picture()[:, :, 0]
    assert (image.imdecode(file_of(grey)).asnumpy() == grey[:, :, None]).all()
    deep = grey.astype(np.uint16) * 256 + 77
    assert (image.imdecode(file_of(deep), flag=0).asnumpy()[:, :, 0] == grey).all()
    exif = module.Exif()
    exif[0x112] = 6
    assert image.imdecode(file_of(picture(8, 4), "JPEG", exif=exif)).shape == (8, 4, 3)


def test_damaged_image_is_refused(tmp_path):
    for kind, step in (("PNG", 1), ("JPEG", 13)):
        data = file_of(picture(), kind)
        for size in range(0, len(data) - 20, step):
            raises(MXNetError, "decoded", lambda: image.imdecode(data[:size]))
    raises(MXNetError, "imread: .*absent", lambda: image.imread(str(tmp_path / "absent.jpg")))
    path = tmp_path / "text.jpg"
    path.write_bytes(b"text")
    raises(MXNetError, "text.jpg", lambda: image.imread(str(path)))
    raises(ValueError, "bytes", lambda: image.imdecode("text"))
    for flag in (-1, 2):
        with pytest.raises(ValueError, match=f"flag must be 0 .* or 1 .*got {flag}"):
            image.imdecode(file_of(picture()), flag=flag)
    path.write_bytes(file_of(picture()))
    raises(ValueError, "flag must be", lambda: image.imread(str(path), flag=-1))
    path.write_bytes(b"")
    empty = np.zeros(0, np.uint8)
    for read in (
        *(lambda data=data: image.imdecode(data) for data in (b"", bytearray(), empty)),
        lambda: image.imread(str(path)),
        lambda: mx.recordio.unpack_img(mx.recordio.pack((0, 1.0, 0, 0), b"")),
    ):
        raises(MXNetError, "the input is an empty buffer", read)
    with pytest.raises(ValueError, match="out has"):
        image.imdecode(file_of(picture()), out=nd.zeros((2, 2, 3)))


RESIZED = {
    (0, 4): [10, 200, 90, 250],
    (0, 9): [10, 10, 200, 30, 30, 90, 250, 250, 5],
    (1, 4): [57.5, 72.5, 130, 66.25],
    (1, 9): [10, 105, 171.66667, 58.33333, 60, 116.66667, 223.33331, 127.5, 5],
    (2, 4): [59.02344, 68.86719, 141.19141, 66.13281],
    (2, 9): [-6.49305, 120.9375, 191.05324, 52.48839]
    + [29.0625, 122.42477, 249.34605, 142.5, -16.26737],
    (3, 4): [73.33334, 86.66667, 143.33334, 86.66667],
    (3, 9): [10, 105, 200, 30, 60, 90, 250, 127.5, 5],
    (4, 4): [63.44122, 82.77643, 157.12527, 66.47884],
    (4, 9): [-12.55471, 126.01637, 194.38028, 63.64294]
    + [0.26719, 134.70242, 255.62164, 141.54521, -20.59051],
}


@pytest.mark.parametrize("interp, width", RESIZED)
def test_imresize_matches_mxnet(interp, width):
    out = image.imresize(nd.array(ROW), width, 1, interp).asnumpy()
    np.testing.assert_allclose(out[0, :, 0], RESIZED[interp, width], rtol=2e-5, atol=1e-4)
    column = image.imresize(nd.array(ROW.transpose(1, 0, 2)), 1, width, interp).asnumpy()
    np.testing.assert_allclose(column[:, 0], out[0], rtol=1e-5)


@pytest.mark.parametrize("interp", range(5))
def test_imresize_keeps_constant_images_at_every_size(interp):
    values = picture(16, 12)
    for width, height in ((12, 16), (7, 9), (30, 20), (6, 40), (1, 1)):
        out = image.imresize(nd.array(values, dtype="uint8"), width, height, interp)
        assert out.shape == (height, width, 3) and out.dtype == np.uint8
        even = image.imresize(nd.full((16, 12, 1), 7), width, height, interp)
        np.testing.assert_allclose(even.asnumpy(), 7, rtol=1e-5)
    same = image.imresize(nd.array(values, dtype="uint8"), 12, 16, interp)
    np.testing.assert_array_equal(same.asnumpy(), values)


def test_nearest_resize_rounds_like_opencv_at_integer_positions():
    """OpenCV divides twice, so some positions that should be integers fall slightly below."""
    for size, width in ((6, 34), (9, 51), (14, 18), (14, 50), (18, 51)):
        row = nd.arange(size).reshape((1, size, 1))
        places = np.floor(np.arange(width) * (1 / (width / size))).clip(max=size - 1)
        assert (places != np.floor(np.arange(width) * (size / width))).any()
        for out in (image.imresize(row, width, 1, 0), nd.image.resize(row, (width, 1), interp=0)):
            np.testing.assert_array_equal(out.asnumpy()[0, :, 0], places)


def test_invalid_resize_arguments_are_refused():
    for width, height in ((0, 2), (2, -1)):
        raises(ValueError, "at least 1", lambda: image.imresize(nd.ones((2, 2, 3)), width, height))
    raises(ValueError, "interp", lambda: image.imresize(nd.ones((2, 2, 3)), 1, 1, 9))
    raises(ValueError, "interp", lambda: image.resize_short(nd.ones((2, 2, 3)), 1, 7))
    raises(ValueError, "uint8", lambda: image.imresize(nd.ones((2, 2, 3), dtype="int32"), 1, 1))
    raises(ValueError, "shape", lambda: image.imresize(nd.ones((2, 2)), 1, 1))


def test_crops_return_expected_regions():
    values = nd.array(picture(20, 30), dtype="uint8")
    out, place = image.center_crop(values, (11, 7))
    assert place == (9, 6, 11, 7)
    np.testing.assert_array_equal(out.asnumpy(), values.asnumpy()[6:13, 9:20])
    random.seed(0)
    out, (x, y, w, h) = image.random_crop(values, (11, 7))
    np.testing.assert_array_equal(out.asnumpy(), values.asnumpy()[y : y + h, x : x + w])
    out, place = image.random_crop(values, (60, 20))
    assert out.shape == (20, 60, 3) and place[2:] == (30, 10)
    out, (x, y, w, h) = image.random_size_crop(values, (8, 9), (0.3, 0.5), (0.9, 1.1))
    assert out.shape == (9, 8, 3) and 0.25 < w * h / 600 < 0.55 and 0.8 < w / h < 1.25
    with pytest.warns(DeprecationWarning):
        image.random_size_crop(values, (8, 9), None, (0.9, 1.1), min_area=0.5)
    with pytest.raises(AssertionError, match="other"):
        image.random_size_crop(values, (8, 9), 0.5, (0.9, 1.1), other=0.5)
    assert image.resize_short(values, 10, 9).shape == (10, 15, 3)
    assert image.fixed_crop(values, 1, 2, 3, 4, (6, 5), 1).shape == (5, 6, 3)


@pytest.mark.parametrize("size", [(3,), (2, 0), (-1, -1), 4, None, "xy"])
def test_invalid_crop_sizes_are_refused(size):
    picture = nd.zeros((5, 6, 3), dtype="uint8")
    for crop in (
        image.center_crop,
        image.random_crop,
        lambda src, size: image.random_size_crop(src, size, 0.5, (0.9, 1.1)),
        lambda src, size: image.fixed_crop(src, 0, 0, 2, 2, size),
    ):
        if size is not None or crop in (image.center_crop, image.random_crop):
            raises(mx.MXNetError, "a size must be", lambda: crop(picture, size))
    with pytest.raises(mx.MXNetError, match="a size must be"):
        gluon.data.vision.transforms.CenterCrop(-1)(picture)
    with pytest.raises(mx.MXNetError, match=r"2 x 2 at \(7, 1\) lies outside of an image of 6 x 5"):
        image.fixed_crop(picture, 7, 1, 2, 2)


@pytest.mark.parametrize("number", [np.int64, np.int32, np.uint8])
def test_numpy_integer_sizes_do_not_overflow(number):
    """Sums and products of sizes do not overflow."""
    values = nd.ones((20, 30, 3))
    size = number(200), number(100)
    for crop in (image.center_crop, image.random_crop):
        out, rectangle = crop(values, size)
        assert out.shape == (100, 200, 3) and rectangle[2:] == (30, 15)
        assert "np." not in repr(rectangle)
    assert image.random_size_crop(values, size, (0.1, 1), (0.7, 1.3))[0].shape == (100, 200, 3)
    assert image.imresize(values, *size).shape == (100, 200, 3)
    assert image.resize_short(values, size[0]).shape == (200, 300, 3)
    assert image.scale_down((number(30), number(20)), size) == (30, 15)
    assert image.fixed_crop(values, *map(number, (1, 2, 255, 255)), size).shape == (100, 200, 3)
    assert image.copyMakeBorder(values, *[number(250)] * 4).shape == (520, 530, 3)


def test_copy_make_border_types_give_expected_pixels():
    row = nd.array([[[1], [2], [3]]])
    expected = {
        0: [9, 9, 1, 2, 3, 9, 9],
        1: [1, 1, 1, 2, 3, 3, 3],
        2: [2, 1, 1, 2, 3, 3, 2],
        3: [2, 3, 1, 2, 3, 1, 2],
        4: [3, 2, 1, 2, 3, 2, 1],
    }
    for kind, values in expected.items():
        out = image.copyMakeBorder(row, 0, 0, 2, 2, kind, value=9)
        assert out.asnumpy()[0, :, 0].tolist() == values
    out = image.copyMakeBorder(nd.zeros((1, 1, 3)), 1, 0, 0, 0, values=(1, 2, 3))
    assert out.asnumpy()[0, 0].tolist() == [1, 2, 3]
    raises(ValueError, "type", lambda: image.copyMakeBorder(row, 0, 0, 2, 2, 7))


def test_imrotate_rotates_zooms_and_validates():
    values = nd.array(np.arange(9).reshape(1, 3, 3), dtype="float32")
    turned = image.imrotate(values, 90).asnumpy()[0]
    np.testing.assert_allclose(turned, [[2, 5, 8], [1, 4, 7], [0, 3, 6]][::1], atol=1e-5)
    batch = image.imrotate(nd.stack(values, values), nd.array([0, 90])).asnumpy()
    np.testing.assert_allclose(batch[0], values.asnumpy(), atol=1e-5)
    np.testing.assert_allclose(batch[1, 0], turned, atol=1e-5)
    ones = nd.ones((1, 8, 8))
    assert image.imrotate(ones, 45).asnumpy().min() == 0
    assert image.imrotate(ones, 45, zoom_in=True).asnumpy().min() > 0.99
    assert image.imrotate(ones, 45, zoom_out=True).sum().asscalar() < 40
    assert image.random_rotate(nd.stack(ones, ones), (-5, 5)).shape == (2, 1, 8, 8)
    for wrong, error in (
        (lambda: image.imrotate(ones, 1, True, True), ValueError),
        (lambda: image.imrotate(ones.astype("uint8"), 1), TypeError),
        (lambda: image.imrotate(ones, nd.array([1])), TypeError),
        (lambda: image.imrotate(ones[0], 1), ValueError),
        (lambda: image.imrotate(nd.stack(ones), nd.array([1, 2])), ValueError),
    ):
        with pytest.raises(error):
            wrong()
    assert mx.img is mx.image
