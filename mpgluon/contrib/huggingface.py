"""``mx.contrib.huggingface``: weights in the layout of Hugging Face.

``net.load_parameters(folder, format="huggingface")`` and ``net.save_parameters(folder,
format="huggingface")`` use these functions. Networks of `mx.gluon.model_zoo.text` know their map;
for other networks, pass a list of entries as `name_map`::

    net.load_parameters(
        folder,
        format="huggingface",
        name_map=[Prefix("model."), Rename(r"norm\\.weight", "norm.gamma")],
    )
"""

from ..gluon._huggingface.entries import (
    Alias,
    Drop,
    Entry,
    Join,
    Permute,
    Prefix,
    Rename,
    Reshape,
    Shift,
    Split,
    Stack,
    Transpose,
)
from ..gluon._huggingface.files import Weights
from ..gluon._huggingface.gguf import GGUF
from ..gluon._huggingface.load import load
from ..gluon._huggingface.save import save

__all__ = [
    "GGUF",
    "Alias",
    "Drop",
    "Entry",
    "Join",
    "Permute",
    "Prefix",
    "Rename",
    "Reshape",
    "Shift",
    "Split",
    "Stack",
    "Transpose",
    "Weights",
    "load",
    "save",
]
