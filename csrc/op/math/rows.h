/* Row ops, for fusion. A row op processes each row along an axis independently. The row ops are
 * LayerNorm, the softmax family, and their gradients. These functions are stateless and may be
 * called from any thread. */
#ifndef MPG_OP_MATH_ROWS_H
#define MPG_OP_MATH_ROWS_H

#include "op/op.h"

typedef struct mpg_rows {
  int64_t axis;   /* the op's parameter `axis`; may be negative */
  uint32_t whole; /* bit i is set if output i is a sum over all rows */
} mpg_rows;

/* Fills *rows if `op` is a row op; otherwise returns false. Input 0 and output 0 of a row op
 * contain all rows. */
static inline bool mpg_rows_of(const mpg_op *op, const void *params, mpg_rows *rows) {
  *rows = (mpg_rows){0, 0};
  switch (op->id) {
    case MPG_OP_softmax:
    case MPG_OP_softmin: rows->axis = ((const mpg_softmax_params *)params)->axis; return true;
    case MPG_OP_log_softmax:
      rows->axis = ((const mpg_log_softmax_params *)params)->axis;
      return true;
    case MPG_OP__softmax_backward:
    case MPG_OP__log_softmax_backward:
      rows->axis = ((const mpg_softmax_back_params *)params)->axis;
      return true;
    case MPG_OP_LayerNorm: rows->axis = ((const mpg_layer_norm_params *)params)->axis; return true;
    case MPG_OP__backward_LayerNorm: /* the gradients of gamma and beta are sums over all rows */
      rows->axis = ((const mpg_layer_norm_backward_params *)params)->axis;
      rows->whole = 1u << 1 | 1u << 2;
      return true;
    default: return false;
  }
}

#endif
