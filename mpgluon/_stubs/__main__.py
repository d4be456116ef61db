"""Command line of the stub generator: ``python -m mpgluon._stubs``."""

from . import main

main()
