"""Registry of the programs that programs.py runs, and their shared helpers."""

import numpy as np

from mpgluon import gluon, nd

PROGRAMS = {}
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def inputs(seed, shape, ctx):
    return nd.array(np.random.RandomState(seed).randn(*shape).astype("float32"), ctx=ctx)


def values(net):
    return [copy for p in net.collect_params().values() for copy in p.list_data()]
