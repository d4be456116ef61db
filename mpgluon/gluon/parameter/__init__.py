"""Parameters: named arrays with gradients, each on one device or replicated on several."""

from ._constant import Constant as Constant
from ._parameter import (
    DeferredInitializationError as DeferredInitializationError,
    Parameter as Parameter,
    tensor_types as tensor_types,
)
from ._parameter_dict import ParameterDict as ParameterDict

__all__ = ["DeferredInitializationError", "Parameter", "Constant", "ParameterDict", "tensor_types"]
