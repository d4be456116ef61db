/* Promotion of dtypes in NumPy's dialect (mpg_op_is_numpy).
 *
 * Kernels of arithmetic take operands of one dtype. An op with MPG_OP_PROMOTES, MPG_OP_DIVIDES
 * or MPG_OP_TOTALS is inferred as if its inputs had their common dtype, and the caller casts them
 * to it before the call. An array and a number have the dtype of the array, but bools and an
 * integer have int64, and bools and a float float32. Comparisons with a number are exact for any
 * number. These functions are stateless and may be called from any thread. */
#ifndef MPG_OP_PRECISION_PROMOTION_H
#define MPG_OP_PRECISION_PROMOTION_H

#include "op/op.h"

/* Returns the dtype of the sum of two arrays. A float wins over an integer, a wide dtype over a
 * narrow one, and anything over bool. Two dtypes of the same size give the next larger one. */
mpg_dtype mpg_promoted_dtype(mpg_dtype a, mpg_dtype b);

/* True if the op may cast its inputs. */
static inline bool mpg_op_promotes(const mpg_op *op) {
  return mpg_op_is_numpy(op) && op->flags & (MPG_OP_PROMOTES | MPG_OP_DIVIDES | MPG_OP_TOTALS);
}
/* False if the inputs have different meanings, so that they keep their dtypes: softmax with
 * lengths. */
static inline bool mpg_op_inputs_alike(const mpg_op *op, int num_inputs) {
  return num_inputs == 1 || op->flags & MPG_OP_MAP;
}
/* Returns the dtype to which a promoting op casts its inputs, given its parameters and the dtypes
 * of its first and last input, or MPG_DTYPE_NONE if one is unknown. */
mpg_dtype mpg_promotion_target(const mpg_op *op, const void *params, mpg_dtype first,
                               mpg_dtype last);
/* Smallest value of a dtype of integers or bools, and the integer after the largest one. */
typedef struct mpg_integer_range {
  double low, end;
} mpg_integer_range;
mpg_integer_range mpg_range_of_integers(mpg_dtype dtype);

/* Rewrites the comparison of an array of integers or bools with a number that the dtype cannot
 * hold. *id and *number become an equivalent comparison with a number that it can hold. Logical ops
 * are treated alike. Returns false for other calls. */
bool mpg_exact_comparison(const mpg_op *op, const void *params, mpg_dtype dtype, mpg_op_id *id,
                          mpg_scalar_params *number);
/* Returns the op that computes a promoting op for operands of `dtype`. A sum of bools is a logical
 * or, and a product a logical and. */
mpg_op_id mpg_promoted_op(const mpg_op *op, mpg_dtype dtype);
/* Returns the op that adds two gradients of one shape and dtype. Gradients of bools are bools. */
static inline const mpg_op *mpg_sum_of_gradients(mpg_dtype dtype) {
  return mpg_op_get(mpg_promoted_op(mpg_op_get(MPG_OP_elemwise_add), dtype));
}

#endif
