/* Output values of the ops that create constant arrays and ranges, for kernels and graph rewrites.
 * These functions are stateless and may be called from any thread. */
#ifndef MPG_OP_ARRAY_CREATION_H
#define MPG_OP_ARRAY_CREATION_H

#include <math.h>

#include "op/op.h"

/* True if an op fills its output with a constant. The constant, which is implied by the op (zeros)
 * or given by a parameter (full), is stored in *value. */
static inline bool mpg_op_fill(const mpg_op *op, const void *params, double *value) {
  switch (op->id) {
    case MPG_OP__full: *value = ((const mpg_full_params *)params)->value; return true;
    case MPG_OP__full_like:
      *value = ((const mpg_full_like_params *)params)->fill_value;
      return true;
    case MPG_OP__zeros:
    case MPG_OP_zeros_like: *value = 0; return true;
    case MPG_OP__ones:
    case MPG_OP_ones_like: *value = 1; return true;
    default: return false;
  }
}

/* An arithmetic sequence. Element i is start + (i / repeat) * step with integer division, so each
 * number occurs `repeat` times. */
typedef struct mpg_steps {
  double start, step;
  int64_t repeat;
} mpg_steps;

/* True if an op creates an arithmetic sequence (arange), which is stored in *steps. */
static inline bool mpg_op_steps(const mpg_op *op, const void *params, mpg_dtype dtype,
                                mpg_steps *steps) {
  if (op->id == MPG_OP__arange) {
    const mpg_arange_params *p = (const mpg_arange_params *)params;
    steps->start = p->stop.present ? p->start : 0;
    steps->step = p->step;
    steps->repeat = p->repeat;
  } else if (op->id == MPG_OP__contrib_arange_like) {
    const mpg_arange_like_params *p = (const mpg_arange_like_params *)params;
    steps->start = p->start;
    steps->step = p->step;
    steps->repeat = p->repeat;
  } else {
    return false;
  }
  /* As in MXNet and NumPy, integer ranges truncate start and step first, so a step of 0.5 becomes
   * 0. */
  if (mpg_dtype_is_integer(dtype)) {
    steps->start = trunc(steps->start);
    steps->step = trunc(steps->step);
  }
  return true;
}

#endif
