"""Low-rank adapters (LoRA, DoRA, rank-stabilized LoRA) of Dense and Embedding layers (Hu et al.,
"LoRA: Low-Rank Adaptation of Large Language Models", 2021).

An adapter adds the product of two thin matrices, B and A, to the weight of a layer. Only the
adapters are trained, so gradients and optimizer states are small. Files have the format of the
PEFT library.
"""

from ._files import load, save
from ._layers import apply, disable, enable, merge, parameters, remove, unmerge

__all__ = [
    "apply",
    "disable",
    "enable",
    "load",
    "merge",
    "parameters",
    "remove",
    "save",
    "unmerge",
]
