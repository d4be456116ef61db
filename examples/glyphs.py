"""Images of digits for the examples, drawn in matplotlib's fonts, rotated, scaled, shifted and
noisy.

Some fonts are reserved for validation, which therefore measures how well a network reads digits in
unseen fonts.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SIZE = 28


def fonts() -> tuple[list[str], list[str]]:
    """Returns (font files for training, font files for validation)."""
    import matplotlib

    folder = os.path.join(matplotlib.get_data_path(), "fonts", "ttf")
    text = [
        name
        for name in sorted(os.listdir(folder))
        if name.endswith(".ttf")
        and name.startswith(
            ("DejaVuSans", "DejaVuSerif", "STIXGeneral", "cmb", "cmr", "cmss", "cmtt")
        )
    ]
    files = [os.path.join(folder, name) for name in text]
    return [f for i, f in enumerate(files) if i % 4 != 1], files[1::4]


def draw(digit: int, font: Any, random: np.random.RandomState) -> np.ndarray:
    """Returns one image of shape (SIZE, SIZE) with values from 0 to 1."""
    page = Image.new("L", (2 * SIZE, 2 * SIZE))
    ImageDraw.Draw(page).text(
        (SIZE, SIZE),
        str(digit),
        fill=255,
        font=ImageFont.truetype(font, int(random.randint(20, 30))),
        anchor="mm",
    )
    page = page.rotate(random.uniform(-25, 25), resample=Image.Resampling.BILINEAR)
    left, top = (SIZE // 2 + random.randint(-3, 4, 2)).tolist()
    picture = np.asarray(page.crop((left, top, left + SIZE, top + SIZE)), dtype=np.float32) / 255
    return np.clip(picture * random.uniform(0.5, 1) + 0.15 * random.randn(SIZE, SIZE), 0, 1)


def digits(count: int, files: list[str], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (images (count, 1, SIZE, SIZE), labels (count,)), both float32."""
    random = np.random.RandomState(seed)
    labels = random.randint(0, 10, count)
    pictures = np.stack(
        [draw(label, files[random.randint(len(files))], random) for label in labels]
    )
    return pictures[:, None].astype(np.float32), labels.astype(np.float32)


def data(
    train: int, valid: int, seed: int
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns ((images, labels) for training, (images, labels) for validation)."""
    known, unknown = fonts()
    return digits(train, known, seed), digits(valid, unknown, seed + 1)


def batches(
    pictures: np.ndarray, labels: np.ndarray, batch: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches of (images, labels) in random order for one epoch."""
    order = np.random.RandomState(seed).permutation(len(labels))
    for i in range(0, len(order) - batch + 1, batch):
        yield pictures[order[i : i + batch]], labels[order[i : i + batch]]
