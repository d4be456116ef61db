"""Functions that create arrays of mx.nd or of mx.np, for programs that run on both kinds."""

import mpgluon as mx
from support.compare import same_bits


def is_numpy(array):
    return isinstance(array, mx.np.ndarray)


def made(array, module=mx.nd):
    """Returns the module that creates arrays of the kind of another one: mx.np, or `module`."""
    return mx.np if is_numpy(array) else module


def own(array):
    """Returns an array of mx.nd as the kind that the switch of mx.np selects."""
    return array.as_np_ndarray() if mx.util.is_np_array() else array


class New:
    """Creates arrays of the kind that the switch of mx.np selects: ``new.zeros((2, 3))``."""

    def __getattr__(self, name):
        return getattr(mx.np if mx.util.is_np_array() else mx.nd, name)


new = New()


class Momentum(mx.optimizer.Optimizer):
    """An optimizer of a program, which mixes the arrays that it gets with arrays of mx.nd, as
    MXNet allows."""

    def create_state(self, index, weight):
        return mx.nd.zeros(weight.shape, weight.context, weight.dtype)

    def update(self, index, weight, grad, state):
        self._update_count(index)
        self.kind = type(weight)
        state[:] = state * 0.5 + grad * self.rescale_grad
        weight[:] = weight - self._get_lr(index) * state


def both(function):
    """Checks that a function of the kind (`numpy`) returns the same bits for both kinds, whose
    switch is set."""
    results = []
    for numpy in (False, True):
        (mx.npx.set_np if numpy else mx.npx.reset_np)()
        mx.random.seed(2)
        results.append([x.asnumpy() for x in function(numpy)])
    mx.npx.reset_np()
    same_bits(results[1], results[0])
