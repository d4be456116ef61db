"""The benchmark cases in mpgluon."""

import sys

import mpgluon as mx
from cases_gluon import make_cases
from serve import serve

mx.random.seed(0)
mx.context.set_threads(int(sys.argv[1]))


def pools():
    """Returns the peak bytes in use of all devices' pools together."""
    return sum(
        mx.context.memory_stats(ctx)["peak_in_use"] for ctx, _ in mx.context.opened_devices()
    )


serve(f"mpgluon {mx.__version__}", make_cases(mx), pools)
