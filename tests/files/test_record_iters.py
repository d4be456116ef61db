"""mx.io iterators over image files. Contents and order of batches match MXNet."""

import random
import struct

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import io, nd, recordio
from mpgluon.base import MXNetError, NotSupportedError
from mpgluon.io import _record_images
from support.calls import raises

SHAPE = (3, 4, 4)


def store(path, samples):
    """Writes records of (label, image)."""
    pytest.importorskip("PIL")
    record = recordio.MXRecordIO(str(path), "w")
    for i, (label, values) in enumerate(samples):
        record.write(recordio.pack_img((0, label, i, 0), values, 1, ".png"))
    record.close()
    return str(path)


@pytest.fixture
def numbers(tmp_path):
    """Five images with values 20 i and labels i."""
    return store(
        tmp_path / "r.rec", [(float(i), np.full((6, 8, 3), 20 * i, np.uint8)) for i in range(5)]
    )


def passed(batches):
    """Returns padding, labels and image means of each batch."""
    return [
        (
            batch.pad,
            batch.label[0].asnumpy().tolist(),
            batch.data[0]
            .asnumpy()
            .reshape(len(batch.data[0]), -1)
            .mean(1, float)
            .round(3)
            .tolist(),
        )
        for batch in batches
    ]


WHOLE = [(0, [0, 1], [0, 20]), (0, [2, 3], [40, 60]), (1, [4, 0], [80, 0])]


def test_record_batches_and_padding_match_mxnet(numbers):
    batches = io.ImageRecordIter(numbers, SHAPE, 2)
    assert isinstance(batches, io.MXDataIter)
    assert batches.provide_data == [("data", (2, *SHAPE))]
    assert batches.provide_label == [("softmax_label", (2,))]
    assert passed(batches) == WHOLE and passed(batches) == []
    batches.reset()
    assert passed(batches) == [(0, [1, 2], [20, 40]), (0, [3, 4], [60, 80])]
    batches = io.ImageRecordIter(path_imgrec=numbers, data_shape=SHAPE, batch_size=7)
    for pad, labels in ((2, [0, 1, 2, 3, 4, 0, 1]), (4, [2, 3, 4, 0, 1, 2, 3])):
        ((found, order, _),) = passed(batches)
        assert (found, order) == (pad, labels)
        batches.reset()
    raises(MXNetError, "batch_size=7 is too large for 5 samples", lambda: next(batches))
    batches = io.ImageRecordIter(numbers, SHAPE, 2, round_batch=False)
    for _ in range(2):
        assert passed(batches) == WHOLE
        batches.reset()
    assert passed(io.ImageRecordIter(numbers, SHAPE, 2, num_parts=2, part_index=1)) == [
        (0, [3, 4], [60, 80])
    ]
    assert passed(io.ImageRecordIter(numbers, (1, 10, 12), 5))[0][2] == [0, 20, 40, 60, 80]


def test_record_iter_converts_dtypes_and_normalizes(numbers):
    for make, dtype in (
        (io.ImageRecordUInt8Iter, "uint8"),
        (io.ImageRecordInt8Iter, "int8"),
        (lambda *args: io.ImageRecordIter(*args, dtype="float16"), "float16"),
    ):
        batches = make(numbers, SHAPE, 2)
        assert batches.provide_data[0].dtype == np.dtype(dtype)
        batch = next(batches)
        assert batch.data[0].dtype == np.dtype(dtype) and batch.label[0].dtype == np.float32
    settings = dict(mean_r=1, mean_g=2, mean_b=3, std_r=2, scale=0.5)
    means = [m for _, _, m in passed(io.ImageRecordIter(numbers, SHAPE, 2, **settings))]
    assert means == [[-0.917, 7.417], [15.75, 24.083], [32.417, -0.917]]
    with pytest.raises(MXNetError, match="uint8 cannot be normalized"):
        io.ImageRecordUInt8Iter(numbers, SHAPE, 2, **settings)


def test_int8_records_subtract_rounded_means_and_saturate(tmp_path):
    """Rounded means are subtracted, and results saturate at the limits of the dtype."""
    values = np.full((6, 8, 3), [200, 128, 50], np.uint8)  # blue, green, red
    path = store(tmp_path / "i.rec", [(0.0, values)])
    iterate = lambda **more: next(io.ImageRecordInt8Iter(path, SHAPE, 1, **more)).data[0]
    assert iterate().asnumpy()[0, :, 0, 0].tolist() == [50, 127, 127]
    means = dict(mean_r=0.5, mean_g=128, mean_b=127.4)
    assert iterate(**means).asnumpy()[0, :, 0, 0].tolist() == [49, 0, 73]
    assert iterate(mean_r=300, mean_g=-1).asnumpy()[0, :, 0, 0].tolist() == [-128, 127, 127]
    mean = str(tmp_path / "mean.bin")
    nd.save(mean, {"mean_img": nd.full(SHAPE, 100.5)})
    assert iterate(mean_img=mean).asnumpy()[0, :, 0, 0].tolist() == [-51, 27, 99]
    for settings in (dict(scale=2), dict(std_r=2), dict(max_random_contrast=1)):
        raises(MXNetError, "int8 cannot be scaled; omit std", lambda: iterate(**settings))


def test_mean_image_is_subtracted_and_validated(numbers, tmp_path):
    path = str(tmp_path / "mean.bin")
    nd.save(path, {"mean_img": nd.full(SHAPE, 7)})
    assert passed(io.ImageRecordIter(numbers, SHAPE, 2, mean_img=path))[1][2] == [33, 53]
    for shape, words in (((3, 5, 4), "images have"), (SHAPE, "no array mean_img")):
        nd.save(path, {"mean_img" if shape != SHAPE else "other": nd.zeros(shape)})
        raises(MXNetError, words, lambda: io.ImageRecordIter(numbers, SHAPE, 2, mean_img=path))


def test_mean_image_is_subtracted_before_mirroring(tmp_path):
    values = np.arange(16, dtype=np.uint8).reshape(4, 4, 1).repeat(3, 2)
    records, path = store(tmp_path / "r.rec", [(0.0, values)]), str(tmp_path / "mean.bin")
    mean = np.broadcast_to(np.arange(4) ** 2, SHAPE)
    nd.save(path, {"mean_img": nd.array(mean)})
    wanted = (values.transpose(2, 0, 1) - mean)[:, :, ::-1]
    for dtype in ("float32", "int8"):
        batches = io.ImageRecordIter(records, SHAPE, 1, mean_img=path, mirror=True, dtype=dtype)
        np.testing.assert_array_equal(next(batches).data[0][0].asnumpy(), wanted)


def test_missing_mean_image_is_computed_and_saved(numbers, tmp_path):
    path = str(tmp_path / "mean.bin")
    plain = [b.data[0].asnumpy() for b in io.ImageRecordIter(numbers, SHAPE, 5, rand_crop=True)]
    made = io.ImageRecordIter(numbers, SHAPE, 5, mean_img=path, scale=0.5, rand_crop=True)
    mean = nd.load(path)["mean_img"].asnumpy()
    np.testing.assert_allclose(mean, np.concatenate(plain).mean(0), rtol=1e-6)
    for batch, raw in zip(made, plain, strict=True):
        np.testing.assert_allclose(batch.data[0].asnumpy(), (raw - mean) / 2, rtol=1e-5, atol=1e-4)
    with open(path, "rb") as file:
        whole = file.read()
    io.ImageRecordIter(numbers, SHAPE, 2, mean_img=path)
    with open(path, "rb") as file:
        assert file.read() == whole  # an existing file is used
    with pytest.raises(MXNetError, match="uint8 cannot be normalized"):
        io.ImageRecordUInt8Iter(numbers, SHAPE, 2, mean_img=path + "x")
    assert not (tmp_path / "mean.binx").exists()


def test_unknown_iterator_parameters_warn(numbers):
    with pytest.warns(
        UserWarning, match="ImageRecordIter: ignoring unknown parameters and_mirror, input"
    ):
        io.ImageRecordIter(numbers, SHAPE, 2, and_mirror=True, input="x")
    with pytest.warns(UserWarning, match="ImageRecordIter: ignoring unknown parameter suffle"):
        io.ImageRecordUInt8Iter(numbers, SHAPE, 2, suffle=True)
    for make in (io.CSVIter, io.LibSVMIter):
        with (
            pytest.warns(UserWarning, match=f"{make.__name__}: ignoring unknown parameter suffle"),
            pytest.raises((MXNetError, OSError)),
        ):
            make("nowhere", data_shape=(1,), suffle=True)
    with (
        pytest.warns(UserWarning, match="MNISTIter: ignoring unknown parameter data_shape"),
        pytest.raises(OSError),
    ):
        io.MNISTIter("nowhere", data_shape=(784,))
    with (
        pytest.warns(UserWarning, match="ImageDetRecordIter: ignoring unknown parameter suffle"),
        pytest.raises(MXNetError),
    ):
        io.ImageDetRecordIter("nowhere", SHAPE, 2, suffle=True)


def test_labels_of_lists_and_records_are_validated(numbers, tmp_path):
    path = tmp_path / "some.lst"
    path.write_text("".join(f"{i}\t{i}\t{i + 1}\t{i}.png\n" for i in range(4)))
    batches = io.ImageRecordIter(numbers, SHAPE, 2, path_imglist=str(path), label_width=2)
    assert next(batches).label[0].asnumpy().tolist() == [[0, 1], [1, 2]]
    next(batches)
    raises(MXNetError, "no line with the number 4", lambda: next(batches))
    with pytest.raises(MXNetError, match="record 0 has 1 labels, but label_width is 2"):
        next(io.ImageRecordIter(numbers, SHAPE, 2, label_width=2))
    pairs = store(tmp_path / "p.rec", [([7.0, 8.0], np.zeros((6, 8, 3), np.uint8))] * 2)
    with pytest.raises(MXNetError, match="has 2 labels, but label_width is 1; pass label_width=2"):
        next(io.ImageRecordIter(pairs, SHAPE, 2))
    batch = next(io.ImageRecordIter(pairs, SHAPE, 2, path_imglist=str(path)))
    assert batch.label[0].asnumpy().tolist() == [0, 1]  # only the first label of a list line


def test_folder_of_record_files_is_read_in_order(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    for name, numbers in (("b.rec", (2, 3, 4)), ("a.rec", (0, 1))):
        images = [(float(i), np.full((6, 8, 3), 20 * i, np.uint8)) for i in numbers]
        store(folder / name, images)
    (folder / "empty").write_bytes(b"")
    assert passed(io.ImageRecordIter(str(folder), SHAPE, 2)) == WHOLE
    part = io.ImageRecordIter(str(folder), SHAPE, 2, num_parts=2, part_index=1)
    assert passed(part) == [(0, [3, 4], [60, 80])]
    (folder / "c.rec").write_bytes(b"damaged")
    raises(MXNetError, "c.rec is damaged", lambda: io.ImageRecordIter(str(folder), SHAPE, 2))
    with pytest.raises(MXNetError, match="omit path_imgidx"):
        io.ImageRecordIter(str(folder), SHAPE, 2, path_imgidx=str(tmp_path / "a.idx"))
    (tmp_path / "none").mkdir()
    with pytest.raises(MXNetError, match="none has no records"):
        io.ImageRecordIter(str(tmp_path / "none"), SHAPE, 2)


def test_index_file_gives_record_order(numbers, tmp_path):
    scanned = recordio.ScannedRecordIO(numbers)
    path = tmp_path / "r.idx"
    path.write_text("".join(f"{key}\t{scanned.idx[key]}\n" for key in (3, 1)))
    batches = io.ImageRecordIter(numbers, SHAPE, 2, path_imgidx=str(path))
    assert passed(batches) == [(0, [3, 1], [60, 20])]


def test_scanned_records_match_written_ones(tmp_path):
    magic = struct.pack("<I", 0xCED7230A)
    records = [b"", b"abc", b"1234" + magic + b"56", magic, b"last"]
    path = str(tmp_path / "r.rec")
    record = recordio.MXRecordIO(path, "w")
    for one in records:
        record.write(one)
    record.close()
    scanned = recordio.ScannedRecordIO(path)
    assert [scanned.read_idx(key) for key in reversed(scanned.keys)] == records[::-1]
    assert scanned.keys == [0, 1, 2, 3, 4]
    with open(path, "rb") as file:
        whole = file.read()
    ends = set(scanned.idx.values())
    for size in range(1, len(whole)):
        with open(path, "wb") as file:
            file.write(whole[:size])
        if size in ends:
            continue
        with pytest.raises(MXNetError, match="damaged"):
            cut = recordio.ScannedRecordIO(path)
            for key in cut.keys:
                cut.read_idx(key)


def test_record_order_does_not_depend_on_threads(numbers):
    settings = dict(shuffle=True, seed=3, rand_crop=True, rand_mirror=True, brightness=0.5)
    found = []
    for threads, ahead in ((1, 1), (3, 4)):
        batches = io.ImageRecordIter(
            numbers, SHAPE, 2, preprocess_threads=threads, prefetch_buffer=ahead, **settings
        )
        found.append([])
        for _ in range(3):
            found[-1].append(passed(batches))
            batches.reset()
    assert found[0] == found[1] and found[0][0] != found[0][2]
    assert sorted(label for _, labels, _ in found[0][0][:2] for label in labels) != [0, 1, 2, 3]


@pytest.mark.parametrize("make", [io.ImageRecordIter, io.ImageDetRecordIter])
def test_shuffled_epochs_contain_each_sample_once(numbers, boxes, make):
    """The last batch is filled from the next epoch's order, whose rest becomes the next epoch."""
    path, count, place = (numbers, 5, 0) if make is io.ImageRecordIter else (boxes, 3, 6)
    for seed in range(4):
        batches, order = make(path, SHAPE, 2, shuffle=True, seed=seed), []
        for _ in range(4):
            for batch in batches:
                order += batch.label[0].asnumpy().reshape(2, -1)[:, place].tolist()
                if make is io.ImageRecordIter:
                    assert batch.index.tolist() == order[-2:]
            batches.reset()
        order = [round(value) for value in order]
        assert len(order) == 4 * count
        passes = [order[begin : begin + count] for begin in range(0, len(order), count)]
        assert all(sorted(one) == sorted(passes[0]) for one in passes)
        assert len(set(map(tuple, passes))) > 1
    batches = io.ImageRecordIter(numbers, SHAPE, 2, shuffle=True, round_batch=False)
    for _ in range(2):
        order = [label for _, labels, _ in passed(batches) for label in labels]
        assert sorted(order[:5]) == [0, 1, 2, 3, 4] and order[5] == order[0]
        batches.reset()


def test_reset_in_mid_epoch_restarts(numbers):
    batches = io.ImageRecordIter(numbers, SHAPE, 2, prefetch_buffer=3)
    for _ in range(3):
        assert next(batches).label[0].asnumpy().tolist() == [0, 1]
        batches.reset()
    batches.debug_skip_load()
    again = [next(batches).label[0].asnumpy().tolist() for _ in range(5)]
    assert again == [[0, 1]] * 5


# --- Changes: MXNet 1.9.1's values at five positions; OpenCV rounds differently -------------------
IMAGE = (3, 20, 24)
CHANGES = [
    ({}, IMAGE, [127, 100, 132, 135, 116]),
    (dict(mirror=True), IMAGE, [127, 95, 132, 60, 112]),
    (dict(resize=25, inter_method=9), IMAGE, [149, 98, 140, 143, 124]),
    (dict(resize=45, inter_method=2), IMAGE, [136, 99, 118, 124, 129]),
    (dict(rotate=30), IMAGE, [99, 100, 148, 145, 76]),
    (dict(rotate=30), (1, 20, 24), [82, 124, 121, 118, 58]),
    (dict(rotate=200, fill_value=0), IMAGE, [125, 100, 48, 57, 73]),
    (dict(max_random_scale=1.5, min_random_scale=1.5), IMAGE, [143, 100, 120, 123, 135]),
    (dict(max_random_scale=0.8, min_random_scale=0.8), IMAGE, [147, 100, 135, 144, 116]),
    (dict(max_aspect_ratio=1.5, min_aspect_ratio=1.5), IMAGE, [117, 100, 126, 144, 100]),
    (dict(min_img_size=50), IMAGE, [127, 100, 132, 135, 116]),
    (dict(max_crop_size=22, min_crop_size=22), IMAGE, [127, 100, 136, 132, 122]),
    (dict(random_resized_crop=True), IMAGE, [127, 100, 132, 135, 116]),
    ({}, (3, 60, 70), [171, 97, 152, 153, 146]),
    ({}, (3, 50, 24), [103, 99, 153, 122, 123]),
]


@pytest.mark.parametrize("settings, shape, values", CHANGES)
def test_image_changes_match_mxnet(tmp_path, settings, shape, values):
    y, x = np.mgrid[:32, :40]
    picture = np.stack([y * 6, x * 5, 128 + 60 * np.sin(x / 4) * np.cos(y / 5)], 2)
    path = store(tmp_path / "w.rec", [(0.0, picture.astype(np.uint8))])
    out = next(io.ImageRecordIter(path, shape, 1, **settings)).data[0].asnumpy()[0]
    channels, height, width = shape
    places = ((0, 1, 2), (1, 5, 5), (2, 8, 8), (1, 2, 8), (0, 8, 1))
    found = [
        out[min(channel, channels - 1), height * row // 10, width * column // 10]
        for channel, row, column in places
    ]
    assert out.shape == shape and np.abs(np.array(found) - values).max() <= 2


def settings_of(**changes):
    batches = io.ImageRecordIter.__new__(io.ImageRecordIter)
    with pytest.raises(MXNetError, match="needs path_imgrec"):
        batches.__init__(data_shape=(3, 6, 8), batch_size=1, **changes)
    return batches._settings


def test_color_changes_stay_within_limits():
    values = np.random.RandomState(0).randint(0, 256, (6, 8, 3)).astype(np.uint8)
    gray = np.full((6, 8, 3), 100, np.uint8)
    for seed in range(5):
        change = lambda values, **changes: _record_images.changed(
            values, settings_of(**changes), random.Random(seed)
        )
        same = _record_images.shifted(values, 0, 0, 0)
        assert np.abs(same.astype(int) - values).max() <= 1
        lighter = change(gray, random_l=50).astype(int)
        assert (lighter == lighter[0, 0, 0]).all() and 50 <= lighter[0, 0, 0] <= 150
        assert (change(gray, saturation=0.5) == gray).all()
        assert (change(gray, contrast=0.5) == gray).all()
        bright = change(values, brightness=0.5).astype(int)
        ratio = bright[values > 0] / values[values > 0]
        assert np.abs(ratio[bright[values > 0] < 255] - np.median(ratio)).max() < 0.6
        assert (change(values, pca_noise=0.5) != values).any()
        turned = change(values, random_h=180, random_s=20)
        assert turned.shape == values.shape and (turned != values).any()


def test_color_shifts_have_expected_distribution():
    """The distribution is (u + 4 u') / 5 of two uniform numbers, truncated toward 0."""
    draw = random.Random(0)
    shifts = np.array([_record_images._shift(50, draw) for _ in range(4000)])
    assert np.abs(shifts).max() <= 50 and abs(shifts.mean()) < 2
    # The variance of (u + 4 u') / 5 is 17 / 25 of that of a uniform number.
    assert shifts.std() == pytest.approx(100 * (17 / 25 / 12) ** 0.5, abs=1)
    gray = np.full((4, 4, 3), 100, np.uint8)
    settings = settings_of(random_l=50)._replace(data_shape=(3, 4, 4))
    lights = [int(_record_images.changed(gray, settings, draw)[0, 0, 0]) for _ in range(2000)]
    assert np.std(lights) == pytest.approx(100 * (17 / 25 / 12) ** 0.5, abs=1.5)


def test_noise_is_added_after_hue_shift(monkeypatch):
    called = []
    for name in ("_recolored", "shifted", "_with_noise"):
        real = getattr(_record_images, name)
        monkeypatch.setattr(
            _record_images, name, lambda *args, n=name, r=real: (called.append(n), r(*args))[1]
        )
    values = np.random.RandomState(0).randint(0, 256, (6, 8, 3)).astype(np.uint8)
    settings = settings_of(brightness=0.5, random_h=20, pca_noise=0.5)
    _record_images.changed(values, settings, random.Random(0))
    assert called == ["_recolored", "shifted", "_with_noise"]


def test_random_resized_crop_respects_area_and_aspect():
    """Width and height are swapped at random. With the whole area, the center is cropped."""
    rng = np.random.RandomState(0)
    values = rng.randint(0, 256, (60, 60, 3)).astype(np.uint8)
    settings = settings_of(
        random_resized_crop=True,
        min_random_area=0.25,
        max_random_area=0.25,
        min_aspect_ratio=4,
        max_aspect_ratio=4,
    )
    seen = []
    real = _record_images._part
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            _record_images, "_part", lambda *args: (seen.append(args[1:3]), real(*args))[1]
        )
        for seed in range(200):
            _record_images.changed(values, settings, random.Random(seed))
    assert set(seen) == {(15, 60), (60, 15)} and 70 < seen.count((60, 15)) < 130
    middle = values[27:33, 26:34]
    for more in ({}, dict(min_aspect_ratio=1, max_aspect_ratio=1)):
        settings = settings_of(random_resized_crop=True, **more)
        np.testing.assert_array_equal(
            _record_images.changed(values, settings, random.Random(0)), middle
        )


def test_contradictory_crop_settings_are_refused(numbers):
    for settings, words in (
        (dict(rand_crop=True, max_random_scale=2), "omit rand_crop, max_random_scale"),
        (dict(min_random_scale=0.5), "omit min_random_scale"),
        (dict(max_crop_size=3, min_crop_size=3), "omit max_crop_size, min_crop_size"),
        (dict(max_aspect_ratio=1), "the least aspect ratio .* must be above 0"),
        (dict(min_aspect_ratio=2, max_aspect_ratio=1), "2 exceeds the largest, 1"),
        (dict(min_random_area=0.5, max_random_area=0.25), "min_random_area 0.5 exceeds"),
        (dict(random_resized_crop=False, max_crop_size=2, min_crop_size=3), "min_crop_size 3"),
    ):
        with pytest.raises(MXNetError, match=words):
            io.ImageRecordIter(numbers, SHAPE, 2, **{"random_resized_crop": True, **settings})


def test_random_crops_have_target_shape_and_differ(tmp_path):
    values = np.random.RandomState(0).randint(0, 256, (32, 40, 3)).astype(np.uint8)
    path = store(tmp_path / "w.rec", [(0.0, values)] * 6)
    for settings in (
        dict(rand_crop=True),
        dict(
            random_resized_crop=True,
            min_random_area=0.1,
            max_random_area=1,
            max_aspect_ratio=4 / 3,
            min_aspect_ratio=3 / 4,
        ),
        dict(rand_crop=True, max_crop_size=30, min_crop_size=10),
        dict(max_rotate_angle=40, max_shear_ratio=0.3),
        dict(max_random_scale=2, min_random_scale=0.5, max_aspect_ratio=0.3),
    ):
        data = next(io.ImageRecordIter(path, (3, 20, 24), 6, **settings)).data[0].asnumpy()
        assert data.shape == (6, 3, 20, 24)
        assert len({image.tobytes() for image in data}) == 6, settings


def test_invalid_record_iter_arguments_are_refused(numbers, tmp_path):
    good = dict(path_imgrec=numbers, data_shape=SHAPE, batch_size=2)
    for settings, error, words in (
        (dict(path_imgrec=""), MXNetError, "needs path_imgrec"),
        (dict(path_imgrec=numbers + "x"), MXNetError, "r.recx"),
        (dict(data_shape=(2, 4, 4)), MXNetError, "1, 3 or 4 channels"),
        (dict(data_shape=(4, 4)), MXNetError, "1, 3 or 4 channels"),
        (dict(batch_size=0), ValueError, "batch_size must be at least 1"),
        (dict(batch_size=-1), ValueError, "batch_size must be at least 1"),
        (dict(part_index=2, num_parts=2), MXNetError, "0 to 1 for 2 parts"),
        (dict(aug_seq="other"), NotSupportedError, "aug_default"),
        (dict(inter_method=7), MXNetError, "0 to 4, 9 or 10"),
        (dict(std_r=0), MXNetError, "must not be 0"),
    ):
        raises(error, words, lambda: io.ImageRecordIter(**{**good, **settings}))
    for settings, words in (
        (dict(data_shape=(4, 4, 4)), "record 0: the image has 3 channels, expected 4"),
        (dict(max_crop_size=9, min_crop_size=9), "square of 9 pixels"),
    ):
        raises(MXNetError, words, lambda: next(io.ImageRecordIter(**{**good, **settings})))
    record = recordio.MXRecordIO(str(tmp_path / "bad.rec"), "w")
    record.write(recordio.pack((0, 1.0, 0, 0), b"no image"))
    record.close()
    with pytest.raises(MXNetError, match="bad.rec: record 0: .*decoded"):
        next(io.ImageRecordIter(str(tmp_path / "bad.rec"), SHAPE, 1))
    with pytest.raises(NotSupportedError):
        io.MXDataIter(None)


# --- MNIST ----------------------------------------------------------------------------------------
def idx(values):
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


@pytest.fixture
def mnist(tmp_path):
    images = np.random.RandomState(0).randint(0, 256, (7, 4, 5)).astype(np.uint8)
    (tmp_path / "images").write_bytes(idx(images))
    (tmp_path / "labels").write_bytes(idx(np.arange(7, dtype=np.uint8)))
    return dict(image=str(tmp_path / "images"), label=str(tmp_path / "labels"))


def test_mnist_iter_yields_expected_batches_and_parts(mnist):
    first, second = (0, [0, 1, 2], [0.491, 0.519, 0.519]), (0, [3, 4, 5], [0.483, 0.398, 0.565])
    for flat in (False, True):
        batches = io.MNISTIter(batch_size=3, shuffle=False, flat=flat, **mnist)
        assert batches.provide_data == [("data", (3, 20) if flat else (3, 1, 4, 5))]
        for _ in range(2):
            assert passed(batches) == [first, second]
            batches.reset()
    part = io.MNISTIter(batch_size=3, shuffle=False, num_parts=2, part_index=1, **mnist)
    assert passed(part) == [second]
    for parts, shuffle in ((2, False), (2, True), (3, True)):
        found = [
            [
                int(batch.label[0].asscalar())
                for batch in io.MNISTIter(
                    batch_size=1, shuffle=shuffle, num_parts=parts, part_index=i, seed=i, **mnist
                )
            ]
            for i in range(parts)
        ]
        # parts of the file, in any order within a part
        assert [label for part in found for label in sorted(part)] == list(range(7))
    labels = [
        [
            label
            for _, batch, _ in passed(io.MNISTIter(batch_size=7, seed=s, **mnist))
            for label in batch
        ]
        for s in (0, 0, 1)
    ]
    assert labels[0] == labels[1] != labels[2] and sorted(labels[0]) == list(range(7))
    (batch,) = io.MNISTIter(batch_size=7, **mnist)
    assert batch.index.tolist() == batch.label[0].asnumpy().tolist()
    for settings, error, words in (
        (dict(batch_size=8), MXNetError, "7 images are fewer"),
        (dict(batch_size=0), ValueError, "MNISTIter: batch_size must be at least 1, not 0"),
        (dict(part_index=1), MXNetError, "0 to 0 for 1"),
        (dict(dtype="uint8"), MXNetError, "floating"),
        (dict(image="/nowhere"), FileNotFoundError, "nowhere"),
    ):
        raises(error, words, lambda: io.MNISTIter(**{**mnist, **settings}))


# --- Images with boxes ----------------------------------------------------------------------------
BOX = [0.1, 0.2, 0.5, 0.6]


@pytest.fixture
def boxes(tmp_path):
    """Three images with values 20 i and i + 1 boxes of class i."""
    return store(
        tmp_path / "d.rec",
        [([2, 5, *[i, *BOX] * (i + 1)], np.full((6, 8, 3), 20 * i, np.uint8)) for i in range(3)],
    )


def label_of(number, width, size=(3, 4, 4), box=BOX):
    label = [*size, 2 + 5 * (number + 1), 2, 5, *[number, *box] * (number + 1)]
    return np.array(label + [-1] * (width - len(label)), np.float32)


def test_det_record_iter_yields_padded_box_labels(boxes):
    batches = io.ImageDetRecordIter(boxes, SHAPE, 2)
    assert batches.provide_label == [("softmax_label", (2, 21))]
    first, second = batches
    assert second.pad == 1 and second.data[0].asnumpy()[0].mean() == 40
    for batch, numbers in ((first, (0, 1)), (second, (2, 0))):
        expected = [label_of(number, 21) for number in numbers]
        np.testing.assert_array_equal(batch.label[0].asnumpy(), expected)
    batches = io.ImageDetRecordIter(boxes, SHAPE, 2, label_pad_width=30, rand_mirror_prob=1)
    expected = [label_of(number, 34, box=[0.5, 0.2, 0.9, 0.6]) for number in (0, 1)]
    np.testing.assert_allclose(next(batches).label[0].asnumpy(), expected, rtol=1e-6)
    settings = dict(mean_r=1, std_r=2, scale=2)
    data = next(io.ImageDetRecordIter(boxes, SHAPE, 2, **settings)).data[0].asnumpy()
    np.testing.assert_allclose(data.reshape(2, -1).mean(1), [-1 / 3, 33], rtol=1e-5)
    for mode in ("fit", "shrink"):
        batch = next(io.ImageDetRecordIter(boxes, SHAPE, 2, resize_mode=mode))
        assert batch.data[0].asnumpy()[1].mean() == 15
        expected = [label_of(number, 21, (3, 3, 4)) for number in (0, 1)]
        np.testing.assert_array_equal(batch.label[0].asnumpy(), expected)


def test_padded_boxes_follow_the_image(boxes):
    batches = io.ImageDetRecordIter(
        boxes, (3, 40, 40), 3, rand_pad_prob=1, max_pad_scale=4, fill_value=200, resize=40
    )
    batch = next(batches)
    for image, label in zip(batch.data[0].asnumpy(), batch.label[0].asnumpy()):
        left, top, right, bottom = label[7:11]
        # the object keeps its relative position within the image area
        inside = np.argwhere(image[0] < 150)
        (y0, x0), (y1, x1) = inside.min(0) / 40, (inside.max(0) + 1) / 40
        expected = [x0 + 0.1 * (x1 - x0), y0 + 0.2 * (y1 - y0)]
        np.testing.assert_allclose([left, top], expected, atol=0.04)
        assert right - left == pytest.approx(0.4 * (x1 - x0), abs=0.04)


@pytest.mark.parametrize("mode, thresh", [("center", 0.3), ("overlap", 0.8)])
def test_cropped_boxes_follow_the_image(tmp_path, mode, thresh):
    """Objects keep their image positions and survive if enough of them is inside the crop."""
    y, x = np.mgrid[:40, :50]
    # OpenCV's channel order
    picture = np.stack([x * 5, y * 6, x * 0], 2).astype(np.uint8)[:, :, ::-1]
    objects = [[0, 0.1, 0.1, 0.4, 0.5], [1, 0.5, 0.4, 0.9, 0.8]]
    path = store(tmp_path / "c.rec", [(np.array([2, 5, *objects[0], *objects[1]]), picture)] * 20)
    settings = dict(
        rand_crop_prob=1,
        num_crop_sampler=2,
        min_crop_scales=(0.3, 0.5),
        max_crop_scales=0.8,
        min_crop_object_coverages=0.5,
        max_crop_trials=(50, 50),
        min_crop_aspect_ratios=0.5,
        max_crop_aspect_ratios=2,
        crop_emit_mode=mode,
        emit_overlap_thresh=thresh,
    )
    batch = next(io.ImageDetRecordIter(path, (3, 64, 64), 20, **settings))
    counts = set()
    for image, label in zip(batch.data[0].asnumpy(), batch.label[0].asnumpy()):
        found = label[6 : 4 + int(label[3])].reshape(-1, 5)
        counts.add(len(found))
        left, right = image[0, 0, 0] / 250, (image[0, 0, -1] + 5) / 250
        top, bottom = image[1, 0, 0] / 240, (image[1, -1, 0] + 6) / 240
        for kind, *edges in found:
            there = np.array(objects[int(kind)][1:]).reshape(2, 2)
            expected = (there - [left, top]) / [right - left, bottom - top]
            cut = expected.clip(0, 1)
            np.testing.assert_allclose(np.reshape(edges, (2, 2)), cut, atol=0.08)
            if mode == "overlap":
                part = np.prod(cut[1] - cut[0]) / np.prod(expected[1] - expected[0])
                assert part > thresh - 0.15
            else:
                assert (abs(expected.mean(0) - 0.5) < 0.55).all()
    assert counts == {1, 2}


def test_det_record_iter_mean_image_is_computed_once_and_used(boxes, tmp_path):
    """The mean image is computed if the file is missing and used otherwise; channel means take
    precedence.
    """
    path = str(tmp_path / "mean.bin")
    batches = lambda **more: io.ImageDetRecordIter(boxes, SHAPE, 3, **more)
    raw = next(batches()).data[0].asnumpy()
    scaled = next(batches(mean_img=path, scale=0.5))
    mean = nd.load(path)["mean_img"].asnumpy()
    np.testing.assert_allclose(mean, raw.mean(0), rtol=1e-6)
    np.testing.assert_allclose(scaled.data[0].asnumpy(), (raw - mean) / 2, atol=1e-4)
    nd.save(path, {"mean_img": nd.full(SHAPE, 7)})
    np.testing.assert_array_equal(next(batches(mean_img=path)).data[0].asnumpy(), raw - 7)
    channels = next(batches(mean_img=path, mean_r=1)).data[0].asnumpy()
    np.testing.assert_array_equal(channels, raw - np.reshape([1, 0, 0], (3, 1, 1)))
    part = next(batches(mean_img=path, resize_mode="fit")).data[0].asnumpy()
    plain = next(batches(resize_mode="fit")).data[0].asnumpy()
    there = (plain != part).any((1, 2, 3))
    assert there.all() and set(np.unique(plain - part)) <= {0, 7}
    nd.save(path, {"mean_img": nd.zeros((3, 5, 4))})
    raises(MXNetError, "images have", lambda: batches(mean_img=path))


def test_impossible_crop_keeps_whole_image(boxes):
    batch = next(io.ImageDetRecordIter(boxes, SHAPE, 2, rand_crop_prob=1, min_crop_overlaps=0.99))
    np.testing.assert_array_equal(batch.label[0].asnumpy()[0], label_of(0, 21))


def test_det_record_iter_color_changes_follow_probability(tmp_path):
    values = np.random.RandomState(0).randint(50, 150, (6, 8, 3)).astype(np.uint8)
    path = store(tmp_path / "c.rec", [(np.array([2.0, 5, 0, *BOX]), values)] * 4)
    plain = next(io.ImageDetRecordIter(path, (3, 6, 8), 4)).data[0].asnumpy()
    for kind, most in (("hue", 50), ("saturation", 50), ("illumination", 50), ("contrast", 0.5)):
        settings = {f"max_random_{kind}": most, f"random_{kind}_prob": 1}
        data = next(io.ImageDetRecordIter(path, (3, 6, 8), 4, **settings)).data[0].asnumpy()
        assert len({image.tobytes() for image in data}) == 4 and (data != plain).any()
        settings[f"random_{kind}_prob"] = 0
        data = next(io.ImageDetRecordIter(path, (3, 6, 8), 4, **settings)).data[0].asnumpy()
        np.testing.assert_array_equal(data, plain)


def test_invalid_det_record_iter_arguments_are_refused(boxes, tmp_path):
    for settings, error, words in (
        (dict(rand_crop_prob=1, max_crop_scales=(0.1, 0.2)), MXNetError, "max_crop_scales has 2"),
        (dict(aug_seq="aug_default"), NotSupportedError, "aug_seq"),
        (dict(resize_mode="crop"), MXNetError, "resize_mode"),
        (dict(data_shape=(3, 0, 4)), MXNetError, "data_shape"),
        (dict(label_width=9), MXNetError, "label_width is 9"),
    ):
        with pytest.raises(error, match=words):
            io.ImageDetRecordIter(
                **{**dict(path_imgrec=boxes, data_shape=SHAPE, batch_size=2), **settings}
            )
    with pytest.raises(MXNetError, match="label_pad_width is 12"):
        list(io.ImageDetRecordIter(boxes, SHAPE, 3, label_pad_width=12))
    path = store(tmp_path / "x.rec", [([2.0, 4, 1, 0, 0, 1], np.zeros((6, 8, 3), np.uint8))])
    with pytest.raises(MXNetError, match="record 0: the label of an image with boxes"):
        io.ImageDetRecordIter(path, SHAPE, 1)
    assert mx.io.ImageRecordIter_v1 is io.ImageRecordIter
