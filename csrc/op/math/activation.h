/* The functions that the parameter act_type of Activation and of LeakyReLU chooses: positions of
 * its words in op/defs/elementwise.def. */
#ifndef MPG_OP_MATH_ACTIVATION_H
#define MPG_OP_MATH_ACTIVATION_H

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

#endif
