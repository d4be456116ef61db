"""Linear algebra ops."""

from ._namespaces import fill

fill("linalg", globals())
