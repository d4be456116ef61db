/* Values of the parameters act_type of Activation and of LeakyReLU, approximate of gelu, and act of
 * gated, in the same order as in op/defs/elementwise.def. */
#ifndef MPG_OP_MATH_ACTIVATION_H
#define MPG_OP_MATH_ACTIVATION_H

#include "tensor/shape.h"

enum {
  MPG_ACTIVATION_RELU,
  MPG_ACTIVATION_SIGMOID,
  MPG_ACTIVATION_TANH,
  MPG_ACTIVATION_SOFTRELU,
  MPG_ACTIVATION_SOFTSIGN
};

enum {
  MPG_LEAKY_ELU,
  MPG_LEAKY_GELU,
  MPG_LEAKY_LEAKY,
  MPG_LEAKY_PRELU,
  MPG_LEAKY_RRELU,
  MPG_LEAKY_SELU
};

enum { MPG_GELU_EXACT, MPG_GELU_TANH };

enum {
  MPG_GATED_SILU,
  MPG_GATED_GELU,
  MPG_GATED_GELU_TANH,
  MPG_GATED_GELU_QUICK,
  MPG_GATED_RELU,
  MPG_GATED_SIGMOID
};

/* Returns the shape to which PReLU's gamma is reshaped so that it broadcasts to the data. The last
 * axis of gamma is the channel axis of the data. */
static inline mpg_shape mpg_prelu_shape(const mpg_shape *data, const mpg_shape *gamma) {
  mpg_shape shape = *data;
  int before = (data->ndim > 1 ? 2 : 1) - gamma->ndim;
  for (int i = 0; i < data->ndim; i++)
    shape.dims[i] = i >= before && i < before + gamma->ndim ? gamma->dims[i - before] : 1;
  return shape;
}

#endif
