"""Command line of the stub generator: ``python -m mpgluon._internal.stubs``."""

from . import main

main()
