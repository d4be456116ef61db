"""Linear algebra."""

from ._namespaces import fill

fill("linalg", globals())
