"""Modules of MXNet that new programs do not need.

They are imported under MXNet's names: `mpgluon.rnn` is this folder's `rnn`.
"""

# Empty, so that mpgluon.legacy.rnn cannot be imported as a second copy of mpgluon.rnn.
__path__: list[str] = []
