"""Iterators over batches of data, for Modules and custom training loops."""

from .._internal.hints import near_names as _near_names
from .csv_iter import CSVIter
from .image_det_record_iter import ImageDetRecordIter
from .image_record_iter import (
    ImageRecordInt8Iter,
    ImageRecordIter,
    ImageRecordIter_v1,
    ImageRecordUInt8Iter,
    ImageRecordUInt8Iter_v1,
)
from .io import DataBatch, DataDesc, DataIter, NDArrayIter, PrefetchingIter, ResizeIter
from .libsvm_iter import LibSVMIter
from .mnist_iter import MNISTIter
from .mx_data_iter import MXDataIter

__all__ = [
    "CSVIter",
    "DataBatch",
    "DataDesc",
    "DataIter",
    "ImageDetRecordIter",
    "ImageRecordInt8Iter",
    "ImageRecordIter",
    "ImageRecordIter_v1",
    "ImageRecordUInt8Iter",
    "ImageRecordUInt8Iter_v1",
    "LibSVMIter",
    "MNISTIter",
    "MXDataIter",
    "NDArrayIter",
    "PrefetchingIter",
    "ResizeIter",
]

_near_names(__name__)
