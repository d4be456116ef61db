"""ImageIter and ImageDetIter. Contents and order of batches match MXNet 1.9.1."""

import random

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import image, recordio
from mpgluon.base import MXNetError
from support.calls import raises

SHAPE = (3, 4, 4)
LIST = [[10 * i, f"{i}.png"] for i in range(5)]


@pytest.fixture
def root(tmp_path):
    """Images 0.png to 4.png with the values 20 i, also as records with labels i.

    A list file has two labels per image.
    """
    module = pytest.importorskip("PIL.Image")
    record = recordio.MXIndexedRecordIO(str(tmp_path / "r.idx"), str(tmp_path / "r.rec"), "w")
    for i in range(5):
        values = np.full((6, 8, 3), 20 * i, np.uint8)
        module.fromarray(values).save(tmp_path / f"{i}.png")
        record.write_idx(i, recordio.pack_img((0, float(i), i, 0), values, 1, ".png"))
    record.close()
    lines = [f"{i}\t{i}\t{i + 1}\t{i}.png\n" for i in range(5)]
    (tmp_path / "some.lst").write_text("".join(lines))
    return str(tmp_path)


def passed(batches):
    """Returns padding, labels and the constant image values of each batch."""
    found = []
    for batch in batches:
        values = batch.data[0].asnumpy().reshape(len(batch.data[0]), -1)
        assert (values == values[:, :1]).all() and batch.data[0].dtype == np.float32
        found.append((batch.pad, batch.label[0].asnumpy().tolist(), values[:, 0].tolist()))
    return found


WHOLE = [(0, [0, 10], [0, 20]), (0, [20, 30], [40, 60])]
PASSES = {
    ("pad", 2): [[*WHOLE, (1, [40, 0], [80, 0])]] * 2,
    ("discard", 2): [WHOLE, WHOLE],
    ("roll_over", 2): [
        WHOLE,
        [(1, [40, 0], [80, 0]), (0, [10, 20], [20, 40]), (0, [30, 40], [60, 80])],
        WHOLE,
    ],
    ("pad", 5): [[(0, [0, 10, 20, 30, 40], [0, 20, 40, 60, 80])]] * 2,
    ("pad", 7): [[(2, [0, 10, 20, 30, 40, 0, 10], [0, 20, 40, 60, 80, 0, 20])]] * 2,
    ("discard", 7): [[], []],
    ("roll_over", 7): [[], [(2, [0, 10, 20, 30, 40, 0, 10], [0, 20, 40, 60, 80, 0, 20])]],
}


@pytest.mark.parametrize("handle, batch_size", PASSES)
def test_last_batch_handling_matches_mxnet(root, handle, batch_size):
    batches = image.ImageIter(
        batch_size, SHAPE, imglist=LIST, path_root=root, last_batch_handle=handle
    )
    assert batches.provide_data == [("data", (batch_size, *SHAPE))]
    assert batches.provide_label == [("softmax_label", (batch_size,))]
    for expected in PASSES[handle, batch_size]:
        assert passed(batches) == expected
        assert passed(batches) == []
        batches.reset()


def test_batch_larger_than_dataset_wraps_around(root):
    batches = image.ImageIter(12, SHAPE, imglist=LIST, path_root=root)
    (batch,) = passed(batches)
    assert batch[0] == 7 and batch[1][5:] == [0, 10, 20, 30, 40, 0, 10]


def test_hard_reset_discards_rolled_over_samples(root):
    batches = image.ImageIter(2, SHAPE, imglist=LIST, path_root=root, last_batch_handle="roll_over")
    for _ in range(2):
        assert passed(batches) == WHOLE
        batches.hard_reset()


def test_shuffle_reorders_each_epoch(root):
    random.seed(1)
    batches = image.ImageIter(5, SHAPE, imglist=LIST, path_root=root, shuffle=True)
    first = passed(batches)
    batches.reset()
    second = passed(batches)
    assert first != second and sorted(first[0][1]) == sorted(second[0][1]) == [0, 10, 20, 30, 40]


def test_records_and_lists_give_same_batches(root):
    rec, idx, lst = f"{root}/r.rec", f"{root}/r.idx", f"{root}/some.lst"
    labels = [[[0, 1], [1, 2]], [[2, 3], [3, 4]], [[4, 5], [0, 1]]]
    for settings in (dict(path_root=root), dict(path_imgrec=rec, path_imgidx=idx)):
        batches = image.ImageIter(2, SHAPE, 2, path_imglist=lst, **settings)
        assert batches.provide_label == [("softmax_label", (2, 2))]
        assert [batch[1] for batch in passed(batches)] == labels
    for settings in ({}, dict(path_imgidx=idx)):
        batches = image.ImageIter(2, SHAPE, path_imgrec=rec, **settings)
        for _ in range(2):
            assert [batch[1] for batch in passed(batches)] == [[0, 1], [2, 3], [4, 0]]
            batches.reset()
    batches = image.ImageIter(2, SHAPE, path_imgrec=rec, path_imgidx=idx, num_parts=2, part_index=1)
    assert passed(batches) == [(0, [2, 3], [40, 60])]


def test_image_iter_hooks_and_augmenters_apply(root):
    class Checked(image.ImageIter):
        def check_valid_image(self, data):
            if data[0].asnumpy().max() == 40:
                raise RuntimeError("40 is left out")

        def postprocess_data(self, datum):
            return super().postprocess_data(datum) + 1

    settings = dict(imglist=LIST, path_root=root, rand_mirror=True, mean=np.array([1.0]))
    assert passed(Checked(2, SHAPE, **settings)) == [(0, [0, 10], [0, 20]), (0, [30, 40], [60, 80])]
    batches = image.ImageIter(1, SHAPE, aug_list=[], imglist=LIST, path_root=root)
    with pytest.raises(ValueError, match="0.png: the augmenters returned .* .3, 6, 8.*.3, 4, 4"):
        next(batches)


def test_check_valid_image_receives_image_or_list(root):
    """ImageIter passes the image, ImageDetIter a list that contains it."""
    seen = []

    def check(kind):
        class Checked(kind):
            def check_valid_image(self, data):
                super().check_valid_image(data)
                seen.append(data)

        return Checked

    next(check(image.ImageIter)(1, SHAPE, imglist=LIST, path_root=root))
    next(check(image.ImageDetIter)(1, SHAPE, imglist=with_boxes(), path_root=root))
    assert seen[0].shape == (6, 8, 3) and [one.shape for one in seen[1]] == [(6, 8, 3)]
    batches = image.ImageIter(1, SHAPE, imglist=LIST, path_root=root)
    for wrong in (mx.nd.ones(()), [mx.nd.ones(())]):
        raises(RuntimeError, "dimensions", lambda: batches.check_valid_image(wrong))


def test_image_iter_attributes_match_mxnet(root):
    rec, idx, lst = f"{root}/r.rec", f"{root}/r.idx", f"{root}/some.lst"
    batches = image.ImageIter(2, SHAPE, path_imgrec=rec, path_imgidx=idx, num_parts=2)
    assert batches.imgidx == [0, 1, 2, 3, 4] and batches.seq == [0, 1] and batches.imglist is None
    assert image.ImageIter(2, SHAPE, path_imgrec=rec).imgidx is None
    for dtype in ("float32", "int64"):
        batches = image.ImageIter(2, SHAPE, 2, path_imglist=lst, path_root=root, dtype=dtype)
        assert batches.imgidx is None and list(batches.imglist) == [0, 1, 2, 3, 4]
        label, path = batches.imglist[3]
        assert isinstance(label, mx.nd.NDArray) and label.dtype == np.dtype(dtype)
        assert label.asnumpy().tolist() == [3, 4] and path == "3.png"
    label, _ = image.ImageIter(2, SHAPE, imglist=LIST, path_root=root).imglist["2"]
    assert isinstance(label, mx.nd.NDArray) and label.asnumpy().tolist() == [10]


def test_image_iter_accepts_numpy_sizes(root):
    shape = np.array(SHAPE, np.uint8)
    batches = image.ImageIter(np.int64(2), shape, imglist=LIST, path_root=root)
    assert repr(batches.data_shape) == "(3, 4, 4)" and next(batches).data[0].shape == (2, 3, 4, 4)
    batches = image.ImageDetIter(1, shape, imglist=with_boxes(), path_root=root)
    batches.reshape(shape + np.uint8(2) * (shape == 4))
    assert repr(batches.data_shape) == "(3, 6, 6)"


def test_damaged_image_is_reported_with_its_path(root):
    for name, write in (("0.png", b"none"), ("0.png", None)):
        path = f"{root}/{name}"
        with open(path, "r+b") as file:
            file.truncate(0)
            file.write(write or b"")
        with pytest.raises(RuntimeError, match="0.png: .*decoded"):
            next(image.ImageIter(2, SHAPE, imglist=LIST, path_root=root))
    with open(f"{root}/some.lst", "w") as file:
        file.write("7\t1\t0.png\n")
    batches = image.ImageIter(
        1,
        SHAPE,
        path_imgrec=f"{root}/r.rec",
        path_imgidx=f"{root}/r.idx",
        path_imglist=f"{root}/some.lst",
    )
    raises(MXNetError, "no labels for record 0", lambda: next(batches))


def test_invalid_image_iter_arguments_are_refused(root):
    for settings, error, words in (
        (dict(imglist=None), AssertionError, "path_imgrec, path_imglist"),
        (dict(data_shape=(1, 4, 4)), ValueError, "3 channels"),
        (dict(data_shape=(4, 4)), ValueError, "channels, height, width"),
        (dict(dtype="float16"), AssertionError, "dtype of labels"),
        (dict(last_batch_handle="keep"), ValueError, "roll_over"),
        (dict(num_parts=2, part_index=2), AssertionError, "0 to 1"),
        (dict(path_imgrec=f"{root}/r.rec", shuffle=True), AssertionError, "path_imgidx"),
        (dict(rand_resize=True), AssertionError, "rand_crop"),
        (dict(rotate=3), TypeError, "rotate"),
    ):
        given = dict(batch_size=2, data_shape=SHAPE, imglist=LIST, path_root=root)
        raises(error, words, lambda: image.ImageIter(**{**given, **settings}))


# --- With boxes -----------------------------------------------------------------------------------
BOX = [0.1, 0.1, 0.5, 0.5]


def with_boxes(counts=(1, 2, 3)):
    return [[[2, 5, *[i, *BOX] * count], f"{i}.png"] for i, count in enumerate(counts)]


def test_image_det_iter_pads_labels(root):
    batches = image.ImageDetIter(2, SHAPE, imglist=with_boxes(), path_root=root)
    assert batches.label_shape == (3, 5) and batches.provide_label == [("label", (2, 3, 5))]
    for _ in range(2):
        first, second = batches
        assert (first.pad, second.pad) == (0, 1)
        labels = np.concatenate([first.label[0].asnumpy(), second.label[0].asnumpy()])
        expected = np.full((4, 3, 5), -1, np.float32)
        for place, number in enumerate((0, 1, 2, 0)):
            expected[place, : number + 1] = [number, *BOX]
        np.testing.assert_array_equal(labels, expected)
        batches.reset()
    batches.reshape((3, 5, 6), (4, 5))
    assert batches.provide_data == [("data", (2, 3, 5, 6))]
    assert batches.provide_label == [("label", (2, 4, 5))]


def test_image_det_iter_reads_record_labels(root):
    record = recordio.MXIndexedRecordIO(f"{root}/d.idx", f"{root}/d.rec", "w")
    for i in range(2):
        header = (0, [4, 6, 9, 9, *[i, *BOX, 7] * (i + 1)], i, 0)
        record.write_idx(i, recordio.pack_img(header, np.zeros((9, 9, 3), np.uint8), 1, ".png"))
    record.close()
    batches = image.ImageDetIter(2, SHAPE, path_imgrec=f"{root}/d.rec", rand_mirror=True)
    label = next(batches).label[0].asnumpy()
    assert label.shape == (2, 2, 6) and label[1, 1, 5] == 7 and (label[0, 1] == -1).all()


def test_images_without_objects_are_skipped(root):
    class LoseOdd(image.DetAugmenter):
        def __call__(self, src, label):
            return src, label[:0] if label[0, 0] % 2 else label

    settings = dict(imglist=with_boxes((1, 1, 1)), path_root=root)
    augmenters = [LoseOdd(), *image.CreateDetAugmenter(SHAPE)]
    (batch,) = image.ImageDetIter(2, SHAPE, aug_list=augmenters, **settings)
    assert batch.label[0].asnumpy()[:, 0, 0].tolist() == [0, 2] and batch.pad == 0


def test_sync_label_shape_takes_larger_shape(root):
    few, many = (
        image.ImageDetIter(1, SHAPE, imglist=with_boxes(counts), path_root=root)
        for counts in ((1, 2), (3, 1))
    )
    assert few.sync_label_shape(many) is many and few.label_shape == many.label_shape == (3, 5)
    raises(ValueError, "at least 3 objects", lambda: few.reshape(label_shape=(2, 5)))
    raises(ValueError, "of 5 values", lambda: few.check_label_shape((3, 6)))
    with pytest.raises(AssertionError, match="ImageDetIter"):
        few.sync_label_shape(image.ImageIter(1, SHAPE, imglist=LIST, path_root=root))


def test_draw_next_draws_boxes_and_names(root):
    batches = image.ImageDetIter(1, (3, 40, 40), imglist=with_boxes(), path_root=root)
    drawn = list(batches.draw_next(color=(255, 0, 0), thickness=1, id2labels={1: "one"}))
    assert len(drawn) == 3
    for i, picture in enumerate(drawn):
        assert picture.shape == (40, 40, 3) and picture.dtype == np.uint8
        assert picture[4, 10].tolist() == picture[10, 20].tolist() == [0, 0, 255]
        assert picture[30, 30].tolist() == [20 * i] * 3


@pytest.mark.parametrize(
    "label, words",
    [
        ([1.0], "not 1 values"),
        ([2, 5, 0, 0.1, 0.1, 0.5], "not 6 values"),
        ([2, 4, 0, 0.1, 0.1, 0.5], "at least 5"),
        ([2, 5, 0, 0.5, 0.1, 0.1, 0.5], "all objects have an empty area"),
        ([1e9, 5, 0, 0.1, 0.1, 0.5, 0.5], "7 values"),
    ],
)
def test_invalid_detection_labels_are_refused(root, label, words):
    with pytest.raises(RuntimeError, match=f"0.png: .*{words}"):
        image.ImageDetIter(1, SHAPE, imglist=[[label, "0.png"]], path_root=root)
    assert mx.img is mx.image
