"""Functions of mx.np for text: reading arrays from text files, and options of printing.

They run on the host, and symbols don't have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as onp

from ._creation import array

if TYPE_CHECKING:
    from typing import Any

    from .._core import Context, ndarray

__all__ = ["genfromtxt", "set_printoptions"]


def genfromtxt(*args: Any, ctx: Context | None = None, **kwargs: Any) -> ndarray:
    """Reads an array from a text file, with one row per line.

    Takes the arguments of ``numpy.genfromtxt``; `ctx` is the device of the array. The default
    dtype is float64. Raises ValueError for rows of different lengths, and TypeError for dtypes that
    arrays don't have, such as records.

    Source: numpy.genfromtxt

    Examples
    --------
    >>> np.genfromtxt(["1,2", "3,4"], delimiter=",", dtype="float32")
    array([[1., 2.],
           [3., 4.]])
    """
    return array(onp.genfromtxt(*args, **kwargs), ctx=ctx)


def set_printoptions(
    precision: int | None = None, threshold: int | None = None, **kwarg: Any
) -> None:
    """Sets the options with which NumPy and mx.np print arrays.

    Parameters
    ----------
    precision : int, optional
        The number of digits after the decimal point; None keeps the setting.
    threshold : int, optional
        The size above which arrays are printed in part; None keeps the setting.
    **kwarg
        The other options of ``numpy.set_printoptions``.

    Source: numpy.set_printoptions

    Examples
    --------
    >>> np.set_printoptions(precision=2)
    >>> np.array([0.12345])
    array([0.12])
    >>> np.set_printoptions(precision=8)
    """
    onp.set_printoptions(precision=precision, threshold=threshold, **kwarg)
