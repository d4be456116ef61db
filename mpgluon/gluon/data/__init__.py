"""Data sets, samplers, and the loader that combines samples into batches."""

from ..._internal.hints import DATA as _DATA, near_names as _near_names
from . import vision
from .dataloader import DataLoader, default_batchify_fn, default_mp_batchify_fn
from .dataset import ArrayDataset, Dataset, RecordFileDataset, SimpleDataset
from .sampler import (
    BatchSampler,
    FilterSampler,
    IntervalSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SplitSampler,
)

__all__ = [
    "ArrayDataset",
    "BatchSampler",
    "DataLoader",
    "Dataset",
    "FilterSampler",
    "IntervalSampler",
    "RandomSampler",
    "RecordFileDataset",
    "Sampler",
    "SequentialSampler",
    "SimpleDataset",
    "SplitSampler",
    "default_batchify_fn",
    "default_mp_batchify_fn",
    "vision",
]

_near_names(__name__, **_DATA)
