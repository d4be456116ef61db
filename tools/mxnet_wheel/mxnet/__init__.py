"""Provides mpgluon under the name mxnet; `mpgluon.as_mxnet` replaces this module."""

from mpgluon.as_mxnet import install

provided_by_mpgluon = True
install()
