"""Two-bit gradient compression with error feedback: the rounding error of a gradient is kept as a
residual and added to the next gradient.

Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
Training of Speech DNNs", 2014, describe the residual. The levels -threshold, 0 and threshold are
those of MXNet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import ndarray as nd
from ..._core import NDArray, dtype_name
from ...base import MXNetError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PER_BYTE = (1.0, 4.0, 16.0, 64.0)  # place values of the four 2-bit codes in a byte


class TwoBits:
    """Mixin for stores that compress pushed gradients."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._threshold: float | None = None  # None disables compression
        self._residuals: dict[Any, NDArray] = {}  # accumulated rounding errors by key

    def set_gradient_compression(self, compression_params: dict[str, Any] | None) -> None:
        """Compresses later pushes to 2 bits per element: -threshold, 0 or threshold.

        The rounding error is added to the next push of the key (error feedback).

        Parameters
        ----------
        compression_params : dict
            ``{'type': '2bit', 'threshold': 0.5}``. The type 'none' disables compression.

        Raises
        ------
        MXNetError
            If the type is unknown, or if the threshold is not above 0.
        """
        params = dict(compression_params or {})
        kind, threshold = params.pop("type", "none"), float(params.pop("threshold", 0.5))
        if kind not in ("none", "2bit") or params:
            raise MXNetError(
                "set_gradient_compression: expected the type 'none' or '2bit' and a threshold, "
                f"got {compression_params}"
            )
        if not threshold > 0:
            raise MXNetError(
                f"set_gradient_compression: the threshold must be above 0, not {threshold}"
            )
        self._threshold = threshold if kind == "2bit" else None

    def _compressed(self, key, array):
        """Compresses the sum of the array and the key's residual to packed 2-bit codes. Stores the
        rounding error as the key's new residual."""
        if array.stype != "default":
            raise MXNetError("row_sparse arrays cannot be compressed; push dense arrays")
        if dtype_name(array.dtype) != "float32":
            raise MXNetError(
                f"only float32 arrays can be compressed; the array of {key!r} is "
                f"{dtype_name(array.dtype)}"
            )
        residual, threshold = self._residuals.get(key), self._threshold
        total = array.reshape((-1,)) if residual is None else array.reshape((-1,)) + residual
        above, below = total >= threshold, total <= -threshold
        self._residuals[key] = total - (above - below) * threshold
        codes = above + below * 2
        size = -(-total.size // len(_PER_BYTE))
        if size * len(_PER_BYTE) > total.size:
            more = nd.zeros((size * len(_PER_BYTE) - total.size,), ctx=total.context)
            codes = nd.concat(codes, more, dim=0)
        weights = nd.array([_PER_BYTE], ctx=total.context)
        return (codes.reshape((size, -1)) * weights).sum(axis=1).astype("uint8")


def decompressed(packed: NDArray, shape: Sequence[int], threshold: float) -> NDArray:
    """Decodes packed 2-bit codes to float32 values."""
    weights = nd.array([_PER_BYTE], ctx=packed.context)
    codes = nd.floor(packed.astype("float32").reshape((packed.size, 1)) / weights)
    codes = codes - nd.floor(codes / 4) * 4
    values = ((codes == 1) - (codes == 2)) * threshold
    count = 1
    for size in shape:
        count *= size
    return values.reshape((-1,))[:count].reshape(shape)
