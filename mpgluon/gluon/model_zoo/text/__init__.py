"""Transformers for text, and their weights in the format of Hugging Face.

`from_pretrained` loads a folder, and `from_config` creates a network without values. All networks
have the children `embed`, `layers`, `norm` and `head`, so placements, plans and names of parameters
look alike.
"""

from ...._internal.hints import TEXT as _TEXT, near_names as _near_names
from ._decoder import Decoder, DecoderLayer
from ._encoder import CLIP, Encoder, EncoderLayer
from ._generation import generate
from ._pretrained import from_config, from_pretrained
from ._t5 import T5
from ._tokenizer import Tokenizer, tokenizer

__all__ = [
    "CLIP",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "T5",
    "Tokenizer",
    "from_config",
    "from_pretrained",
    "generate",
    "tokenizer",
]

_near_names(__name__, **_TEXT)
