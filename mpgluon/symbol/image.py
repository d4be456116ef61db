"""Ops on images."""

from ._namespaces import fill

fill("image", globals())
