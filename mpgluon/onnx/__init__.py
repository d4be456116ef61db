"""``mx.onnx``: export of networks to ONNX files, and import from them.

It needs the ``onnx`` package: ``pip install 'mpgluon[onnx]'``. docs/onnx.md is the guide.
"""

from ._export import export_model as export_model, get_operator_support as get_operator_support
from ._import import (
    get_model_metadata as get_model_metadata,
    import_model as import_model,
    import_to_gluon as import_to_gluon,
)

__all__ = [
    "export_model",
    "get_model_metadata",
    "get_operator_support",
    "import_model",
    "import_to_gluon",
]
