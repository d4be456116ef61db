"""``python -m mpgluon._stubs``."""

from . import main

main()
