"""Command line of the porting report: python -m mpgluon.port."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
