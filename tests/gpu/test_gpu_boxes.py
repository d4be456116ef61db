"""Non-maximum suppression and other box ops on a GPU: the same boxes as on a CPU, in the same order
and with the same bits, across tiles and blocks, with equal scores, and without boxes."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd
from support.stand_in import needs_gpu

pytestmark = needs_gpu

DTYPES = ["float32", "float64", "float16", "bfloat16"]


def rounded(random, *shape):
    """Draws from few values, so that many are equal."""
    return random.randint(0, 40, shape) / 32


def boxes(random, *shape):
    low = rounded(random, *shape, 2)
    return np.concatenate([low, low + rounded(random, *shape, 2) / 8], -1)


def scored(random, *shape):
    ids, scores = random.randint(-1, 3, (*shape, 1)), rounded(random, *shape, 1) - 0.2
    scores[random.rand(*scores.shape) < 0.05] = np.nan
    return np.concatenate([ids, scores, boxes(random, *shape)], -1)


def on_both(function, inputs, dtype, params):
    """Runs a function on a CPU and a GPU; the results must be equal because they are rounded from
    float64. Results in float64 itself may differ in the last bit of GPU math functions."""
    results = []
    for ctx in (mx.cpu(0), mx.gpu(0)):
        arrays = [mx.nd.array(values, ctx=ctx, dtype=dtype) for values in inputs]
        for array in arrays:
            array.attach_grad()
        with ctx, autograd.record():
            outputs = function(*arrays, **params)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        results.append([output.astype("float64").asnumpy() for output in outputs])
        if function is mx.nd.contrib.box_nms:
            head = np.arange(outputs[0].size).reshape(outputs[0].shape) % 251
            outputs[0].backward(mx.nd.array(head, ctx=ctx, dtype=dtype))
            results[-1].append(arrays[0].grad.astype("float64").asnumpy())
    for cpu, gpu in zip(*results):
        if dtype == "float64":
            np.testing.assert_allclose(gpu, cpu, rtol=1e-14, atol=0)
        else:
            np.testing.assert_array_equal(gpu, cpu)
    return results[0]


NMS = [
    {},
    {"id_index": 0},
    {"id_index": 0, "background_id": 1, "overlap_thresh": 0.1},
    {"id_index": 0, "force_suppress": True, "overlap_thresh": 0.9},
    {"topk": 7},
    {"topk": 300, "valid_thresh": 0.4},
    {"topk": 100000, "id_index": 0, "overlap_thresh": 0.8},
    {"topk": 0},
    {"valid_thresh": 9},
    {"valid_thresh": -9, "overlap_thresh": 0},
    {"in_format": "center", "overlap_thresh": 0.3},
    {"out_format": "center", "overlap_thresh": 0.7},
    {"in_format": "center", "out_format": "corner", "topk": 257},
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("params", NMS, ids=str)
def test_nms_equals_the_cpu(params, dtype):
    random = np.random.RandomState(1)
    for shape in [(1, 1), (3, 20), (2, 2, 257), (2, 800)]:
        out = on_both(mx.nd.contrib.box_nms, [scored(random, *shape)], dtype, params)[0]
    if params.get("overlap_thresh", 0) > 0.7:
        assert (out[..., 1] > 0).sum() > 512  # two samples, each with more than a tile of boxes
    for shape in [(0, 5, 6), (2, 0, 6)]:
        on_both(mx.nd.contrib.box_nms, [np.zeros(shape)], dtype, params)


def test_nms_supports_other_column_orders_and_formats():
    random = np.random.RandomState(2)
    rows = scored(random, 2, 300)
    data = np.concatenate([rows[..., 2:], random.rand(2, 300, 2), rows[..., :2]], -1)
    params = {"coord_start": 0, "score_index": 7, "id_index": 6}
    for formats in ("corner", "center"), ("center", "corner"):
        params["in_format"], params["out_format"] = formats
        on_both(mx.nd.contrib.box_nms, [data], "float32", params)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format", ["corner", "center"])
def test_box_iou_equals_the_cpu(format, dtype):
    random = np.random.RandomState(3)
    for left, right in [((5,), (2, 3)), ((2, 70), (9,)), ((), (3,)), ((0,), (3,)), ((4,), (0,))]:
        inputs = [boxes(random, *left), boxes(random, *right)]
        on_both(mx.nd.contrib.box_iou, inputs, dtype, {"format": format})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"sizes": (0.2, 0.5, 0.9), "ratios": (1, 2, 0.5), "clip": True},
        {"ratios": (2, 3), "steps": (0.3, 0.4), "offsets": (0.1, 0.7)},
    ],
    ids=str,
)
def test_multibox_prior_equals_the_cpu(params, dtype):
    for shape in [(2, 3, 3, 5), (1, 1, 20, 30), (1, 1, 0, 2)]:
        on_both(mx.nd.contrib.MultiBoxPrior, [np.zeros(shape)], dtype, params)


def predictions(random, samples, classes, anchors):
    scores = random.randint(0, 9, (samples, classes, anchors)) / 8
    return [scores, rounded(random, samples, 4 * anchors) - 0.5, boxes(random, 1, anchors)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"threshold": 0.9, "clip": False},
        {"nms_topk": 6},
        {"nms_topk": 270, "nms_threshold": 0.9},
        {"force_suppress": True, "nms_threshold": 0.1},
        {"nms_threshold": 0, "threshold": 0.8},
        {"threshold": 2},
    ],
    ids=str,
)
def test_multibox_detection_equals_the_cpu(params, dtype):
    random = np.random.RandomState(4)
    for shape in [(2, 4, 20), (3, 3, 300), (1, 6, 1), (1, 1, 3), (0, 2, 3), (2, 2, 0)]:
        on_both(mx.nd.contrib.MultiBoxDetection, predictions(random, *shape), dtype, params)
    # With size variances of 0, no result depends on exp
    out = on_both(
        mx.nd.contrib.MultiBoxDetection,
        predictions(random, 2, 3, 700),
        dtype,
        {**params, "variances": (0.1, 0.1, 0, 0)},
    )[0]
    assert out.shape == (2, 700, 6)


def labels(random, samples, objects):
    rows = np.concatenate(
        [random.randint(0, 3, (samples, objects, 1)), boxes(random, samples, objects)], -1
    )
    for n in range(samples):
        rows[n, random.randint(objects // 2, objects + 1) :, 0] = -1
    return rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"overlap_threshold": 0, "ignore_label": -5},
        {"overlap_threshold": 0.1},
        {"negative_mining_ratio": 3},
        {"negative_mining_ratio": 0.5, "negative_mining_thresh": 0.2, "ignore_label": -2},
        {"negative_mining_ratio": 1000},
    ],
    ids=str,
)
def test_multibox_target_equals_the_cpu(params, dtype):
    random = np.random.RandomState(5)
    for samples, anchors, objects in [
        (3, 24, 5),
        (2, 700, 300),
        (2, 3, 8),
        (1, 5, 1),
        (0, 3, 2),
        (2, 0, 2),
        (2, 3, 0),
    ]:
        scores = random.randint(-4, 4, (samples, 3, anchors)) / 4
        scores[random.rand(*scores.shape) < 0.02] = np.nan
        inputs = [boxes(random, 1, anchors), labels(random, samples, objects), scores]
        on_both(mx.nd.contrib.MultiBoxTarget, inputs, dtype, params)


def test_multibox_target_resolves_anchors_matched_by_several_objects():
    """All objects are nearest to the same anchors, so each match changes the next."""
    random = np.random.RandomState(6)
    anchors = np.tile(boxes(random, 1, 4), (1, 80, 1)) + np.arange(320)[:, None] // 64 / 64
    rows = np.concatenate([np.zeros((1, 260, 1)), np.tile(anchors[:, :5], (1, 52, 1))], -1)
    inputs = [anchors, rows, np.zeros((1, 2, 320))]
    _, mask, classes = on_both(
        mx.nd.contrib.MultiBoxTarget, inputs, "float32", {"overlap_threshold": 0}
    )
    assert (classes == 1).sum() == mask.sum() / 4 > 100


def test_captured_box_ops_recompute_when_replayed():
    """Replayed captures repeat sorting, counting and matching."""

    class Detector(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, scores, offsets, anchors, rows):
            found = F.contrib.MultiBoxDetection(scores * 0.5, offsets, anchors)
            kept = F.contrib.box_nms(found, id_index=0, topk=300, overlap_thresh=0.7)
            learnt = F.contrib.MultiBoxTarget(anchors, rows, scores, negative_mining_ratio=2)
            return (found, kept, *learnt)

    net, random = Detector(), np.random.RandomState(7)
    net.hybridize()
    for _ in range(6):
        inputs = [*predictions(random, 2, 3, 300), labels(random, 2, 6)]
        results = [
            [out.asnumpy() for out in net(*(mx.nd.array(values, ctx=ctx) for values in inputs))]
            for ctx in (mx.cpu(0), mx.gpu(0))
        ]
        for cpu, gpu in zip(*results):
            np.testing.assert_array_equal(gpu, cpu)
