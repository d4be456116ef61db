"""``mx.contrib.onnx``: the functions of `mx.onnx`, by the names that MXNet 1.x has here."""

from ..onnx import (
    export_model as export_model,
    get_model_metadata as get_model_metadata,
    import_model as import_model,
    import_to_gluon as import_to_gluon,
)

# MXNet's names for the functions without their message.
export_model_ = export_model
get_model_metadata_ = get_model_metadata
import_model_ = import_model
import_to_gluon_ = import_to_gluon

__all__ = ["export_model", "get_model_metadata", "import_model", "import_to_gluon"]
