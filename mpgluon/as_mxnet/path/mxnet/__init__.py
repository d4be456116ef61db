"""The name mxnet in child processes of ``python -m mpgluon.as_mxnet``."""

import os

from mpgluon.as_mxnet import install

provided_by_mpgluon = True
install(numpy_names=os.environ.get("MPGLUON_NUMPY_NAMES") == "1")
