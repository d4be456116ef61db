"""The ops of the registry, as functions of symbols."""

from ._namespaces import fill
from .creation import Custom, UpSampling  # noqa: F401

fill("op", globals())
