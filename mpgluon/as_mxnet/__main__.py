"""Runs a program with mpgluon as mxnet: python -m mpgluon.as_mxnet."""

from . import main

if __name__ == "__main__":
    main()
