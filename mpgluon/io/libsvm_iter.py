"""`LibSVMIter`, whose batches are sparse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import NotSupportedError
from .mx_data_iter import MXDataIter

if TYPE_CHECKING:
    from typing import Any

__all__ = ["LibSVMIter"]


class LibSVMIter(MXDataIter):
    """Batches of the storage type csr of files in LIBSVM's format; there is no such storage type.

    Parameters
    ----------
    data_libsvm : str
        The file of the data.
    data_shape : tuple of int
        The shape of a sample.
    **kwargs
        MXNet's other parameters.

    Raises
    ------
    NotSupportedError
        Always.

    Examples
    --------
    >>> mx.io.LibSVMIter("data.t", (3,))
    Traceback (most recent call last):
    ...
    mpgluon.base.NotSupportedError: LibSVMIter gives arrays of the storage type csr, ...
    """

    def __init__(self, data_libsvm: str, data_shape: tuple[int, ...], **kwargs: Any) -> None:
        raise NotSupportedError(
            "LibSVMIter gives arrays of the storage type csr, which is not there; read the file "
            "with sklearn.datasets.load_svmlight_file(..., zero_based=True), and give the dense "
            "array (toarray()) to mx.io.NDArrayIter"
        )
