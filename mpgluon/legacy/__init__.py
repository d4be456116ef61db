"""Modules of MXNet that new programs do not need.

They are imported under MXNet's names: `mpgluon.rnn` is this folder's `rnn`.
"""

__path__: list[str] = []  # because mpgluon.legacy.rnn would be a second copy of mpgluon.rnn
