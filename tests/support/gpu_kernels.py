"""The ops that have no kernel for GPUs, and why. tests/gpu/test_gpu.py compares the list with the
backend's table: a kernel that is written leaves the list, and one that vanishes fails the test."""

MISSING = {
    # Made by rewrites of graphs for CPUs alone, whose products read packed weights
    "_pack_convolution",
    "_pack_fully_connected",
    "_pack_winograd",
    "_packed_convolution",
    "_packed_fully_connected",
    "_winograd_backward_weight",
    "_winograd_convolution",
    # Products of csr matrices: made of other ops there
    "_add_products",
}
