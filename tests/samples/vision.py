"""Samples of image and box ops. Random factors have equal limits."""

import colorsys

import numpy as np

from samples.base import Sample

random = np.random.RandomState(3)
BYTES = random.randint(0, 256, (4, 5, 3)).astype("uint8")
BATCH = random.randint(0, 256, (2, 4, 5, 3)).astype("uint8")
GRAY = random.randint(0, 256, (4, 5, 1)).astype("uint8")
WEIGHTS = np.array([0.299, 0.587, 0.114])
COMPONENTS = np.array(
    [
        [55.46 * -0.5675, 4.794 * 0.7192, 1.148 * 0.4009],
        [55.46 * -0.5808, 4.794 * -0.0045, 1.148 * -0.8140],
        [55.46 * -0.5836, 4.794 * -0.6948, 1.148 * 0.4203],
    ]
)
POSITIVE = [(10, 250)]


def of_bytes(function):
    """Wraps a function to compute in float64 and return bytes for a byte image."""

    def reference(x, *args, **params):
        result = function(x.astype("float64"), *args, **params)
        return np.clip(result, 0, 255).astype("uint8") if x.dtype == np.uint8 else result

    return reference


def to_tensor(x):
    return (np.moveaxis(x, -1, -3) / 255).astype("float32")


def normalize(x, mean=(0,), std=(1,)):
    def column(numbers):
        return np.resize(np.array(numbers, "float64"), x.shape[-3]).reshape(-1, 1, 1)

    return (x - column(mean)) / column(std)


def crop(data, x, y, width, height):
    return data[..., y : y + height, x : x + width, :]


def gray(x):
    return (x * WEIGHTS).sum(-1, keepdims=True) if x.shape[-1] == 3 else x


@of_bytes
def brightness(x, min_factor, max_factor):
    return x * min_factor


@of_bytes
def contrast(x, min_factor, max_factor):
    return x * min_factor + (1 - min_factor) * gray(x).mean((-3, -2), keepdims=True)


@of_bytes
def saturation(x, min_factor, max_factor):
    return x * min_factor + (1 - min_factor) * gray(x) if x.shape[-1] == 3 else x


def hue(x, min_factor, max_factor):
    if x.shape[-1] == 1:
        return x
    result = np.zeros(x.shape)
    for place in np.ndindex(x.shape[:-1]):
        h, l, s = colorsys.rgb_to_hls(*(float(c) / 255 for c in x[place]))  # noqa: E741
        result[place] = np.array(colorsys.hls_to_rgb(h + min_factor, l, s)) * 255
    return result


@of_bytes
def lighting(x, alpha):
    return x + COMPONENTS @ np.array(alpha) if x.shape[-1] == 3 else x


def enhanced(reference, factor, **params):
    both = {"min_factor": factor, "max_factor": factor}
    return [
        Sample([(4, 5, 3)], both, reference, ranges=POSITIVE, rtol=1e-4, atol=1e-2, **params),
        Sample([(2, 4, 5, 3)], both, reference, ranges=POSITIVE, grad=False, rtol=1e-4, atol=1e-2),
        Sample([(4, 5, 1)], both, reference, ranges=POSITIVE, grad=False, name="gray", atol=1e-2),
        Sample([GRAY], both, reference, grad=False, dtypes=("uint8",), atol=1, name="bytes"),
    ]


SAMPLES = {
    "_image_to_tensor": [
        Sample([BYTES], reference=to_tensor, dtypes=("uint8",), rtol=1e-6, name="bytes"),
        Sample([BATCH], reference=to_tensor, dtypes=("uint8",), rtol=1e-6, name="batch"),
        Sample(
            [(4, 5, 2)],
            reference=to_tensor,
            grad=False,  # float32 for every input dtype
            dtypes=("float32", "float16"),
            rtol=1e-3,
        ),
    ],
    "_image_normalize": [
        Sample([(3, 4, 5)], {"mean": (0.1, 0.2, 0.3), "std": (0.5, 2, 3)}, normalize),
        Sample([(2, 3, 4, 5)], {"mean": 0.5, "std": (0.5, 2, 3)}, normalize, name="one"),
        Sample([(1, 4, 5)], {"mean": (0.5,), "std": (2,)}, normalize, name="gray"),
        Sample([(3, 2, 2)], {}, normalize, name="defaults"),
    ],
    "_image_crop": [
        Sample([(4, 5, 3)], {"x": 1, "y": 2, "width": 3, "height": 2}, crop),
        Sample([(2, 4, 5, 1)], {"x": 0, "y": 0, "width": 5, "height": 4}, crop, name="whole"),
        Sample(
            [BATCH],
            {"x": 4, "y": 3, "width": 1, "height": 1},
            crop,
            grad=False,
            dtypes=("uint8",),
            name="bytes",
        ),
    ],
    "_image_flip_left_right": [
        Sample([(4, 5, 3)], reference=lambda x: x[..., :, ::-1, :]),
        Sample([(2, 4, 5, 3)], reference=lambda x: x[..., :, ::-1, :], name="batch"),
    ],
    "_image_flip_top_bottom": [
        Sample([(4, 5, 3)], reference=lambda x: x[..., ::-1, :, :]),
        Sample([(2, 4, 5, 3)], reference=lambda x: x[..., ::-1, :, :], name="batch"),
    ],
    "_image_random_flip_left_right": [Sample([(4, 5, 3)]), Sample([(2, 4, 1, 3)])],
    "_image_random_flip_top_bottom": [Sample([(4, 5, 3)]), Sample([(2, 1, 5, 3)])],
    "_image_random_brightness": enhanced(brightness, 0.7),
    "_image_random_contrast": enhanced(contrast, 1.5),
    "_image_random_saturation": enhanced(saturation, 1.4),
    "_image_random_hue": enhanced(hue, 0.3, grad2=False),
    "_image_random_color_jitter": [
        Sample(
            [(4, 5, 3)],
            {"brightness": 0.2, "contrast": 0.3, "saturation": 0.1, "hue": 0.1},
            ranges=POSITIVE,
            grad2=False,
        ),
        Sample(
            [(4, 5, 3)],
            {"brightness": 0, "contrast": 0, "saturation": 0, "hue": 0},
            lambda x, **params: x,
            name="nothing",
        ),
        Sample(
            [BYTES],
            {"brightness": 0.2, "contrast": 0, "saturation": 0.4, "hue": 0},
            grad=False,
            dtypes=("uint8",),
            name="bytes",
        ),
    ],
    "_image_adjust_lighting": [
        Sample([(4, 5, 3)], {"alpha": (0.1, 0.2, -0.1)}, lighting, rtol=1e-4),
        Sample([(4, 5, 1)], {"alpha": (0.1, 0.2, -0.1)}, lighting, name="gray"),
        Sample(
            [BYTES],
            {"alpha": (0.1, 0.2, -0.1)},
            lighting,
            grad=False,
            dtypes=("uint8",),
            atol=1,
            name="bytes",
        ),
    ],
    "_image_random_lighting": [
        Sample([(4, 5, 3)], {"alpha_std": 0.2}),
        Sample([(4, 5, 3)], {"alpha_std": 0}, lambda x, alpha_std: x, name="none"),
        Sample([(4, 5, 1)], {}, lambda x: x, name="gray"),
    ],
}


# --- Boxes ---------------------------------------------------------------------------------------


def boxes(*shape):
    low = random.uniform(0, 1, (*shape, 2))
    return np.concatenate([low, low + random.uniform(0.05, 0.5, (*shape, 2))], -1)


def centered(corners):
    size = corners[..., 2:] - corners[..., :2]
    return corners[..., :2] + size / 2, size


def box_encode(samples, matches, anchors, refs, means, stds):
    chosen = np.stack([r[m.astype(int)] for r, m in zip(refs, matches)])
    (ref, ref_size), (anchor, size) = centered(chosen), centered(anchors)
    targets = np.concatenate([(ref - anchor) / size, np.log(ref_size / size)], -1)
    mask = np.repeat((samples > 0.5)[..., None], 4, -1)
    return np.where(mask, (targets - means) / stds, 0), mask * 1.0


def box_decode(data, anchors, std0=1, std1=1, std2=1, std3=1, clip=-1, format="center"):
    if format == "corner":
        place, size = centered(anchors)
    else:
        place, size = anchors[..., :2], anchors[..., 2:]
    scaled = data * [std0, std1, std2, std3]
    center, logarithm = scaled[..., :2] * size + place, scaled[..., 2:]
    half = np.exp(np.minimum(logarithm, clip) if clip > 0 else logarithm) * size / 2
    return np.concatenate([center - half, center + half], -1)


ONE = ("float32",)
SAMPLES["_contrib_box_encode"] = [
    Sample(
        [
            random.choice([-1, 0, 1], (2, 5)).astype("float32"),
            random.randint(0, 3, (2, 5)).astype("float32"),
            boxes(2, 5).astype("float32"),
            boxes(2, 3).astype("float32"),
            np.array([0, 0.1, 0.2, 0.3], "float32"),
            np.array([0.1, 0.1, 0.2, 0.2], "float32"),
        ],
        reference=box_encode,
        grad=False,
        dtypes=ONE,
        rtol=1e-4,
        atol=1e-5,
    )
]
SAMPLES["_contrib_box_decode"] = [
    Sample(
        [(2, 5, 4), boxes(1, 5).astype("float32")],
        params,
        box_decode,
        grad=False,
        dtypes=ONE,
        name=name,
    )
    for name, params in [
        ("center", {}),
        ("corner", {"format": "corner", "std0": 0.1, "std1": 0.1, "std2": 0.2, "std3": 0.2}),
        ("clip", {"clip": 0.1, "std2": 2}),
    ]
]


# --- Fourier transforms --------------------------------------------------------------------------


def fft(x, **params):
    spectrum = np.fft.fft(x)
    return np.stack([spectrum.real, spectrum.imag], -1).reshape(*x.shape[:-1], -1)


def ifft(x, **params):
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    return np.fft.ifft(pairs[..., 0] + 1j * pairs[..., 1]).real * pairs.shape[-2]


SAMPLES["_contrib_fft"] = [
    Sample([shape], params, fft, rtol=1e-4, atol=1e-5, name=name)
    for name, shape, params in [
        ("rows", (3, 8), {}),
        ("odd", (2, 3, 7), {"compute_size": 32}),
        ("long", (2, 600), {}),
        ("single", (4, 1), {}),
    ]
]
SAMPLES["_contrib_ifft"] = [
    Sample([shape], {}, ifft, rtol=1e-4, atol=1e-5, name=name)
    for name, shape in [("rows", (3, 8)), ("odd", (2, 3, 14)), ("long", (2, 600))]
]
