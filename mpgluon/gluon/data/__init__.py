"""Data sets, samplers, and the loader that combines samples into batches."""

from ..._internal.hints import DATA as _DATA, near_names as _near_names
from . import vision
from ._worker_info import WorkerInfo, get_worker_info
from .dataloader import DataLoader, default_batchify_fn, default_mp_batchify_fn
from .dataset import (
    ArrayDataset,
    ConcatDataset,
    Dataset,
    RecordFileDataset,
    SimpleDataset,
    Subset,
    random_split,
)
from .iterable import IterableDataset
from .packing import PackedTokens, PackedTokenStream
from .sampler import (
    BatchSampler,
    FilterSampler,
    IntervalSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SplitSampler,
    WeightedRandomSampler,
)

__all__ = [
    "ArrayDataset",
    "BatchSampler",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "FilterSampler",
    "IntervalSampler",
    "IterableDataset",
    "PackedTokenStream",
    "PackedTokens",
    "RandomSampler",
    "RecordFileDataset",
    "Sampler",
    "SequentialSampler",
    "SimpleDataset",
    "SplitSampler",
    "Subset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "default_batchify_fn",
    "default_mp_batchify_fn",
    "get_worker_info",
    "random_split",
    "vision",
]

_near_names(__name__, **_DATA)
