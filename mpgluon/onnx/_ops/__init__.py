"""The conversions, one file per family of ops; importing the files fills the table."""

from . import (
    attention as attention,
    constants as constants,
    convolution as convolution,
    detection as detection,
    elementwise as elementwise,
    indexing as indexing,
    losses as losses,
    normalization as normalization,
    products as products,
    random as random,
    recurrent as recurrent,
    reductions as reductions,
    shapes as shapes,
    transformers as transformers,
)
