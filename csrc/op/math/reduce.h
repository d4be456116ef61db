/* Axes of a reduction (an op with MPG_OP_REDUCTION), after inference has checked them. These
 * functions are stateless and may be called from any thread. */
#ifndef MPG_OP_MATH_REDUCE_H
#define MPG_OP_MATH_REDUCE_H

#include "op/op.h"

/* Sets reduced[i] to true if axis i is reduced. */
static inline void mpg_reduced_axes(const mpg_op *op, const void *params, int ndim, bool *reduced) {
  bool norm = op->id == MPG_OP_norm,
       exclude = !norm && ((const mpg_reduce_params *)params)->exclude;
  const mpg_tuple *axis = norm ? &((const mpg_reduce_norm_params *)params)->axis
                               : &((const mpg_reduce_params *)params)->axis;
  bool all = axis->count <= 0;
  for (int i = 0; i < ndim; i++) reduced[i] = all || exclude;
  for (int k = 0; k < axis->count; k++)
    reduced[axis->values[k] < 0 ? axis->values[k] + ndim : axis->values[k]] = !exclude;
}

/* Changes the parameters so that the op reduces over `axis` with keepdims. */
static inline void mpg_reduce_over(const mpg_op *op, void *params, const mpg_tuple *axis) {
  if (op->id == MPG_OP_norm) {
    ((mpg_reduce_norm_params *)params)->axis = *axis;
    ((mpg_reduce_norm_params *)params)->keepdims = true;
  } else {
    ((mpg_reduce_params *)params)->axis = *axis;
    ((mpg_reduce_params *)params)->keepdims = true;
    ((mpg_reduce_params *)params)->exclude = false;
  }
}

#endif
