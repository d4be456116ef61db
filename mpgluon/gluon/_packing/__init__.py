"""Weights in few bits. The public names are in `mx.contrib.quantization`."""
