"""Runs a program whose mxnet is mpgluon: python -m mpgluon.as_mxnet."""

from . import main

if __name__ == "__main__":
    main()
