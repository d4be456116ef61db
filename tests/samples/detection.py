"""Samples of box ops: anchors, targets, detections and non-maximum suppression."""

import numpy as np

from samples.base import Sample

random = np.random.RandomState(7)


def boxes(*shape):
    low = random.uniform(0, 1, (*shape, 2))
    return np.concatenate([low, low + random.uniform(0.05, 0.5, (*shape, 2))], -1).astype("float32")


def corners(box, format):
    return (
        box
        if format == "corner"
        else np.concatenate([box[..., :2] - box[..., 2:] / 2, box[..., :2] + box[..., 2:] / 2], -1)
    )


def overlap(a, b, format="corner"):
    a, b = corners(a, format), corners(b, format)
    sizes = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    both = sizes[0] * sizes[1]
    return both / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - both) if both > 0 else 0


def iou(a, b, format="corner"):
    flat = [[overlap(x, y, format) for y in b.reshape(-1, 4)] for x in a.reshape(-1, 4)]
    return np.array(flat).reshape(a.shape[:-1] + b.shape[:-1])


def prior(data, sizes=(1.0,), ratios=(1.0,), clip=False, steps=(-1, -1), offsets=(0.5, 0.5)):
    height, width = data.shape[2:]
    dy, dx = (1 / max(height, 1), 1 / max(width, 1)) if min(steps) <= 0 else steps
    kinds = [(size, ratios[0]) for size in sizes] + [(sizes[0], ratio) for ratio in ratios[1:]]
    out = []
    for r in range(height):
        for c in range(width):
            y, x = (r + offsets[0]) * dy, (c + offsets[1]) * dx
            for size, ratio in kinds:
                w, h = size * height / width * np.sqrt(ratio) / 2, size / np.sqrt(ratio) / 2
                out.append([x - w, y - h, x + w, y + h])
    out = np.array(out).reshape(1, len(out), 4)
    return np.clip(out, 0, 1) if clip else out


def nms(
    data,
    overlap_thresh=0.5,
    valid_thresh=0,
    topk=-1,
    coord_start=2,
    score_index=1,
    id_index=-1,
    background_id=-1,
    force_suppress=False,
    in_format="corner",
    out_format="corner",
):
    if topk == 0:
        return data
    out = np.full(data.shape, -1.0)
    box = slice(coord_start, coord_start + 4)
    for rows, to in zip(data.reshape(-1, *data.shape[-2:]), out.reshape(-1, *data.shape[-2:])):
        left = [
            i
            for i in np.argsort(-rows[:, score_index], kind="stable")
            if rows[i, score_index] > valid_thresh
        ]
        left = [i for i in left if id_index < 0 or rows[i, id_index] != background_id][
            : None if topk < 0 else topk
        ]
        kept = []
        for i in left:
            apart = all(
                overlap(rows[j, box], rows[i, box], in_format) <= overlap_thresh
                or (not force_suppress and id_index >= 0 and rows[i, id_index] != rows[j, id_index])
                for j in kept
            )
            if apart:
                kept.append(i)
        for place, i in enumerate(kept):
            to[place] = rows[i]
            if in_format != out_format:
                x, y, z, w = rows[i, box]
                to[place, box] = (
                    ((x + z) / 2, (y + w) / 2, z - x, w - y)
                    if in_format == "corner"
                    else (x - z / 2, y - w / 2, x + z / 2, y + w / 2)
                )
    return out


def nms_back(grad, record):
    out = np.zeros(grad.shape)
    for rows, places, to in zip(grad, record, out):
        for row, place in zip(rows, places):
            if place >= 0:
                to[place] = row
    return out


def detection(
    prob,
    loc,
    anchor,
    clip=True,
    threshold=0.01,
    background_id=0,
    nms_threshold=0.5,
    force_suppress=False,
    variances=(0.1, 0.1, 0.2, 0.2),
    nms_topk=-1,
):
    batch, _, count = prob.shape
    out = np.full((batch, count, 6), -1.0)
    a = anchor[0]
    size, center = a[:, 2:] - a[:, :2], (a[:, :2] + a[:, 2:]) / 2
    for n in range(batch):
        shift = loc[n].reshape(-1, 4)
        middle, half = (
            shift[:, :2] * variances[:2] * size + center,
            np.exp(shift[:, 2:] * variances[2:]) * size / 2,
        )
        found = np.concatenate([middle - half, middle + half], 1)
        found = np.clip(found, 0, 1) if clip else found
        score, kind = prob[n, 1:].max(axis=0), prob[n, 1:].argmax(axis=0)
        rows = np.concatenate([kind[:, None], score[:, None], found], 1)[score >= threshold]
        order = np.argsort(-rows[:, 1], kind="stable")
        look = len(rows) if nms_topk <= 0 else min(nms_topk, len(rows))
        result = np.concatenate([rows[order[:look]], rows[look:]])
        result[look:, 0] = -1
        gone = [False] * look
        for i in range(look):
            for j in range(i + 1, look):
                if (
                    not gone[i]
                    and not gone[j]
                    and (force_suppress or rows[order[i], 0] == rows[order[j], 0])
                    and overlap(result[i, 2:], result[j, 2:]) >= nms_threshold
                ):
                    gone[j] = True
                    result[j, 0] = -1
        out[n, : len(result)] = result
    return out


def target(
    anchor,
    label,
    pred,
    overlap_threshold=0.5,
    ignore_label=-1,
    negative_mining_ratio=-1,
    negative_mining_thresh=0.5,
    minimum_negative_samples=0,
    variances=(0.1, 0.1, 0.2, 0.2),
):
    a, batch = anchor[0], len(label)
    offsets, mask, classes = (
        np.zeros((batch, len(a), 4)),
        np.zeros((batch, len(a), 4)),
        np.full((batch, len(a)), float(ignore_label)),
    )
    for n in range(batch):
        objects = list(label[n])[
            : next((i for i, row in enumerate(label[n]) if row[0] == -1), None)
        ]
        if not objects:
            continue
        share = np.array([[overlap(one, row[1:5]) for row in objects] for one in a])
        match, free = {}, share.copy()
        while len(match) < len(objects) and free.max() > 1e-6:
            j, k = np.unravel_index(free.argmax(), free.shape)
            match[j] = k
            free[j], free[:, k] = 0, 0
        for j in range(len(a)):
            if j not in match and overlap_threshold > 0 and share[j].max() > overlap_threshold:
                match[j] = share[j].argmax()
        rest = [j for j in range(len(a)) if j not in match]
        if negative_mining_ratio > 0:
            wanted = int(len(match) * negative_mining_ratio)
            soft = np.exp(pred[n] - pred[n].max(axis=0))
            sure = (soft / soft.sum(axis=0))[0]
            rest = sorted(
                [j for j in rest if share[j].max() < negative_mining_thresh], key=lambda j: sure[j]
            )[:wanted]
        classes[n, rest] = 0
        for j, k in match.items():
            one, row = a[j], objects[k]
            size, goal = one[2:] - one[:2], row[3:5] - row[1:3]
            shift = ((row[1:3] + row[3:5]) - (one[:2] + one[2:])) / 2 / size
            offsets[n, j] = np.concatenate([shift, np.log(goal / size)]) / np.array(variances)
            mask[n, j], classes[n, j] = 1, row[0] + 1
    return offsets.reshape(batch, -1), mask.reshape(batch, -1), classes


def scored(*shape):
    return np.concatenate(
        [random.randint(-1, 3, (*shape, 1)), random.uniform(-0.2, 1, (*shape, 1)), boxes(*shape)],
        -1,
    ).astype("float32")


def labels(batch, objects):
    rows = np.concatenate(
        [random.randint(0, 3, (batch, objects, 1)), boxes(batch, objects)], -1
    ).astype("float32")
    rows[0, objects - 2 :] = -1
    rows[-1] = -1
    return rows


def predicted(anchors, classes, batch=2):
    scores = (
        random.dirichlet(np.ones(classes), (batch, anchors)).transpose(0, 2, 1).astype("float32")
    )
    return [scores, (random.randn(batch, 4 * anchors) * 0.5).astype("float32"), boxes(1, anchors)]


def nms_samples():
    options = [
        {},
        {"id_index": 0, "overlap_thresh": 0.3},
        {"id_index": 0, "background_id": 1, "force_suppress": True, "topk": 8},
        {"valid_thresh": 0.5},
        {"in_format": "center", "overlap_thresh": 0.1},
        {"out_format": "center"},
        {"topk": 0},
        {"valid_thresh": 2.0},
    ]
    return [
        *[
            Sample([scored(2, 20)], params, nms, grad=False, dtypes=("float32",), name=f"nms{i}")
            for i, params in enumerate(options)
        ],
        Sample(
            [np.concatenate([random.rand(6, 1), boxes(6)], -1)],
            {"coord_start": 1, "score_index": 0},
            nms,
            grad=[0],
            dtypes=("float64",),
            name="plain",
        ),
        Sample([(0, 5, 6)], None, nms, grad=False, name="empty"),
    ]


SAMPLES = {
    "_contrib_MultiBoxPrior": [
        Sample(
            [(2, 3, 3, 5)],
            {"sizes": (0.2, 0.5), "ratios": (1, 2, 0.5)},
            prior,
            grad=False,
            rtol=1e-5,
            atol=1e-6,
        ),
        Sample(
            [(1, 1, 2, 2)],
            {"ratios": (2, 3), "clip": True, "steps": (0.3, 0.4), "offsets": (0.1, 0.7)},
            prior,
            grad=False,
            rtol=1e-5,
            atol=1e-6,
        ),
        Sample([(1, 1, 0, 2)], None, prior, grad=False, name="empty"),
    ],
    "_contrib_MultiBoxTarget": [
        Sample(
            [boxes(1, 24), labels(3, 5), random.randn(3, 4, 24).astype("float32")],
            params,
            target,
            grad=False,
            dtypes=("float32",),
            rtol=1e-4,
            atol=1e-5,
            name=f"target{i}",
        )
        for i, params in enumerate(
            [
                {},
                {"overlap_threshold": 0.0},
                {"negative_mining_ratio": 2.0, "ignore_label": -7.0},
                {"overlap_threshold": 0.3, "variances": (1, 1, 1, 1)},
            ]
        )
    ],
    "_contrib_MultiBoxDetection": [
        Sample(
            predicted(20, 4),
            params,
            detection,
            grad=False,
            dtypes=("float32",),
            rtol=1e-4,
            atol=1e-5,
            name=f"detection{i}",
        )
        for i, params in enumerate(
            [
                {},
                {"threshold": 0.4},
                {"nms_topk": 6},
                {"force_suppress": True, "nms_threshold": 0.2},
                {"clip": False},
                {"threshold": 2.0},
            ]
        )
    ],
    "_contrib_box_nms": nms_samples(),
    "_backward_box_nms": [
        Sample([(2, 4, 3), np.array([[2, 0, -1, -1], [3, 1, 0, 2]])], None, nms_back, grad=False)
    ],
    "_contrib_box_iou": [
        Sample(
            [boxes(5), boxes(2, 3)],
            {"format": format},
            iou,
            grad=False,
            dtypes=("float32",),
            name=format,
        )
        for format in ("corner", "center")
    ],
}
