"""Ops without a GPU kernel, and the reasons.

tests/gpu/test_gpu.py compares the list with the backend's table: remove an op when its kernel is
written. The test also fails if a kernel disappears.
"""

MISSING = {
    # Created only by CPU graph rewrites, whose products read packed weights
    "_pack_convolution",
    "_pack_fully_connected",
    "_pack_winograd",
    "_packed_convolution",
    "_packed_fully_connected",
    "_winograd_backward_weight",
    "_winograd_convolution",
    # csr matrix products are composed of other ops on GPUs
    "_add_products",
}
