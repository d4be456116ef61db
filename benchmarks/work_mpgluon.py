"""The benchmark cases in mpgluon."""

import sys

import mpgluon as mx
from gluon_cases import make_cases
from serve import serve

mx.random.seed(0)
mx.context.set_threads(int(sys.argv[1]))
serve(f"mpgluon {mx.__version__}", make_cases(mx))
