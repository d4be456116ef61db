"""The benchmark cases in MXNet 1.9.1."""

import sys

from serve import serve

try:
    import mxnet as mx
except ImportError:
    sys.exit(0)

from cases_gluon import make_cases

mx.random.seed(0)
cases = make_cases(mx)
del cases["lstm_lm_two_devices"]  # not possible in MXNet
serve(f"MXNet {mx.__version__}", cases)
