"""Ops whose names begin with an underscore."""

from ._namespaces import fill

fill("_internal", globals())
