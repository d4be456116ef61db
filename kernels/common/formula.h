/* The constants of formulas in unary.def, from a call's parameters, for every backend. Stateless;
 * any thread. */
#ifndef KERNELS_COMMON_UNARY_CONSTANTS_H
#define KERNELS_COMMON_UNARY_CONSTANTS_H

#include <math.h>

#include "op/math/activation.h"
#include "op/op.h"

enum { MPG_UNARY_CONSTANTS = 3 };

/* Returns how many there are; the rest of constants[] is 0. shape: the input's; NULL for a member
 * of a fused group, whose constants follow from its parameters alone. */
static inline int mpg_unary_constants(const mpg_op *op, const void *params, const mpg_shape *shape,
                                      double *constants) {
  for (int i = 0; i < MPG_UNARY_CONSTANTS; i++) constants[i] = 0;
  (void)shape;
  switch (op->id) {
#define CONSTANTS(id, structure, ...)                           \
  case MPG_OP_##id: {                                           \
    __attribute__((unused)) const mpg_##structure##_params *p = \
        (const mpg_##structure##_params *)params;               \
    const double values[] = {__VA_ARGS__};                      \
    enum { COUNT = sizeof values / sizeof *values };            \
    for (int i = 0; i < COUNT; i++) constants[i] = values[i];   \
    return COUNT;                                               \
  }
#include "kernels/common/unary.def"
    default: return 0;
  }
}

#endif
