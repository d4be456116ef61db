"""Training steps."""

from mpgluon import autograd


def backward_of(compute):
    """Records a computation, computes its gradients, and returns its result."""
    with autograd.record():
        result = compute()
    result.backward()
    return result
