"""The ops of the registry, as functions of symbols."""

from ._namespaces import fill

fill("op", globals())
