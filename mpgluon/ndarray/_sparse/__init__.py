"""Sparse arrays, under the hood of ``mx.nd.sparse``."""
