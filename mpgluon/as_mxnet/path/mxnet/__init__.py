"""The name mxnet in processes that a program of ``python -m mpgluon.as_mxnet`` starts."""

import os

from mpgluon.as_mxnet import install

provided_by_mpgluon = True
install(numpy_names=os.environ.get("MPGLUON_NUMPY_NAMES") == "1")
