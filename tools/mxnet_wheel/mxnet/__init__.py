"""The name mxnet for mpgluon: see `mpgluon.as_mxnet`, which replaces this module."""

from mpgluon.as_mxnet import install

provided_by_mpgluon = True
install()
