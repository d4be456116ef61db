"""``mx.contrib.onnx``: the functions of `mx.onnx`, under the names of MXNet 1.x."""

from ..onnx import (
    export_model as export_model,
    get_model_metadata as get_model_metadata,
    import_model as import_model,
    import_to_gluon as import_to_gluon,
)

# MXNet's names for the functions without a deprecation message.
export_model_ = export_model
get_model_metadata_ = get_model_metadata
import_model_ = import_model
import_to_gluon_ = import_to_gluon

__all__ = ["export_model", "get_model_metadata", "import_model", "import_to_gluon"]
