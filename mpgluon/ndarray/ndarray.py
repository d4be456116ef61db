"""NDArray and its functions under the module name that MXNet programs import."""

from .._core import NDArray, waitall  # noqa: F401
from .functions import *  # noqa: F403
from .functions import __all__ as _functions

py_slice = slice
# Storage types by id.
_STORAGE_TYPE_UNDEFINED, _STORAGE_TYPE_DEFAULT, _STORAGE_TYPE_ROW_SPARSE, _STORAGE_TYPE_CSR = (
    -1,
    0,
    1,
    2,
)
_STORAGE_TYPE_ID_TO_STR = {-1: "undefined", 0: "default", 1: "row_sparse", 2: "csr"}
STORAGE_TYPES = _STORAGE_TYPE_ID_TO_STR
_STORAGE_TYPE_STR_TO_ID = {name: number for number, name in _STORAGE_TYPE_ID_TO_STR.items()}
__all__ = ["NDArray", "py_slice", *_functions]
