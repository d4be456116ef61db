"""Samples per second of a DataLoader compared with PyTorch's, with the same data and transforms:
JPEG files decoded by Pillow, random crops of 224 x 224, flips and normalized floats; and arrays in
memory. Also images per second of `image.imdecode` compared with Pillow.

    python benchmarks/dataloader.py [--images N] [--rounds N] [--workers 0 1 2]

The two libraries take turns, and the best round of each counts.
"""

import argparse
import io
import math
import os
import random
import tempfile
import time

import numpy as np
import torch
import torch.utils.data
from PIL import Image

from mpgluon import gluon, image
from mpgluon.gluon.data.vision import transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224


def write_images(folder, count):
    """Writes images of 500 x 375 of two classes with a pattern and noise."""
    rng = np.random.RandomState(0)
    y, x = np.mgrid[0:375, 0:500]
    for i in range(count):
        waves = [128 + 100 * np.sin(x / (10 + i % 7) + channel) for channel in range(3)]
        image = np.stack(waves, -1) + 20 * rng.randn(375, 500, 3)
        os.makedirs(os.path.join(folder, str(i % 2)), exist_ok=True)
        path = os.path.join(folder, str(i % 2), f"{i}.jpg")
        Image.fromarray(image.clip(0, 255).astype("uint8")).save(path, quality=90)


class TorchImages(torch.utils.data.Dataset):
    """The image files with transforms in Pillow and PyTorch."""

    def __init__(self, items):
        self.items = items
        self.mean, self.std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        path, label = self.items[index]
        image = Image.open(path).convert("RGB")
        width, height = image.size
        for _ in range(10):
            area = random.uniform(0.08, 1) * width * height
            ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
            w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
            if w <= width and h <= height:
                break
        else:
            w, h = width, height
        left, top = random.randint(0, width - w), random.randint(0, height - h)
        image = image.resize((SIZE, SIZE), Image.BILINEAR, (left, top, left + w, top + h))
        if random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        values = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return (values.float().div_(255) - self.mean) / self.std, label


class TorchArrays(torch.utils.data.Dataset):
    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return torch.from_numpy(self.values[index]), index


def per_second(loader):
    start, count = time.perf_counter(), 0
    for values, _ in loader:
        count += values.shape[0]
    return count / (time.perf_counter() - start)


def decoded(path, rounds):
    """Returns images per second of imdecode and of Pillow."""
    with open(path, "rb") as file:
        data = file.read()
    ways = (
        lambda: image.imdecode(data).wait_to_read(),
        lambda: np.asarray(Image.open(io.BytesIO(data)).convert("RGB")),
    )
    best = [math.inf, math.inf]
    for _ in range(20 * rounds):
        for i, decode in enumerate(ways):
            start = time.perf_counter()
            decode()
            best[i] = min(best[i], time.perf_counter() - start)
    return [1 / seconds for seconds in best]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2])
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_images(folder, args.images)
        images = gluon.data.vision.ImageFolderDataset(folder)
        chain = transforms.Compose(
            [
                transforms.RandomResizedCrop(SIZE),
                transforms.RandomFlipLeftRight(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )
        values = np.random.RandomState(0).rand(512, 3, 64, 64).astype("float32")
        cases = {
            "JPEG files": (images.transform_first(chain), TorchImages(images.items), 32),
            "arrays": (gluon.data.ArrayDataset(values, np.arange(512)), TorchArrays(values), 64),
        }
        print("| data | workers | mpgluon | PyTorch | ratio |\n| --- | --: | --: | --: | --: |")
        for name, (ours, theirs, size) in cases.items():
            for workers in args.workers:
                loaders = [
                    gluon.data.DataLoader(ours, size, shuffle=True, num_workers=workers),
                    torch.utils.data.DataLoader(
                        theirs,
                        size,
                        shuffle=True,
                        num_workers=workers,
                        persistent_workers=workers > 0,
                    ),
                ]
                rounds = [[per_second(loader) for loader in loaders] for _ in range(args.rounds)]
                a, b = map(max, zip(*rounds))
                print(f"| {name} | {workers} | {a:,.0f} | {b:,.0f} | {a / b:.2f} |", flush=True)
        a, b = decoded(images.items[0][0], args.rounds)
        print("\n| images | mpgluon | Pillow | ratio |\n| --- | --: | --: | --: |")
        print(f"| JPEG of 500 x 375 | {a:,.0f} | {b:,.0f} | {a / b:.2f} |")


if __name__ == "__main__":
    main()
