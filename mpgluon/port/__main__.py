"""Reports what programs for MXNet need to run here: python -m mpgluon.port."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
