"""An optimizer of the program's own, whose steps depend on every part of a nested state."""

import mpgluon as mx
from mpgluon import nd


@mx.optimizer.register
class Nested(mx.optimizer.Optimizer):
    """SGD with momentum, and factors that depend on numbers, strings and arrays of other shapes
    than the weight's in its state, and on an attribute in `saved_numbers`.

    Their values do not depend on the weights, so they are equal for all parts of a split weight.
    """

    def __init__(self, **options):
        super().__init__(**options)
        self.damping, self.damped = 1.0, self.num_update

    def saved_numbers(self):
        return {"damping": self.damping, "damped": self.damped}

    def create_state(self, index, weight):
        def zeros(*shape):
            return nd.zeros(shape, weight.context, weight.dtype)

        # Checkpoints cannot split an array of shape (7,).
        split = hasattr(self.param_dict.get(index), "global_shape")
        return {
            "momentum": zeros(*weight.shape),
            "history": [zeros(1 if split else 7), [0, "first"]],
            "scale": (zeros(1) + 1, None, True),
            3: ({"factor": 0.5}, [], ()),
        }

    def update(self, index, weight, grad, state):
        self._update_count(index)
        if self.damped != self.num_update:  # the first weight of this step
            self.damped, self.damping = self.num_update, self.damping * 0.75
        grad = grad * self.rescale_grad
        if self.clip_gradient is not None:
            grad = nd.clip(grad, -self.clip_gradient, self.clip_gradient)
        state["momentum"][:] = state["momentum"] * 0.5 + grad + self._get_wd(index) * weight
        history, (count, name) = state["history"]
        place = count % history.shape[0]
        history[place : place + 1] += 0.25
        state["history"][1] = [count + 1, "later"]
        state["scale"][0][:] *= 0.5 if name == "first" else 0.75
        numbers, *_ = state[3]
        numbers["factor"] *= 0.5
        factor = (state["scale"][0] + nd.sum(history)) * (numbers["factor"] + self.damping)
        shape = (1,) * len(weight.shape)
        weight -= nd.broadcast_mul(self._get_lr(index) * state["momentum"], factor.reshape(shape))
