/* Promotion of dtypes in NumPy's dialect. */
#include "op/precision/promotion.h"

mpg_dtype mpg_promoted_dtype(mpg_dtype a, mpg_dtype b) {
  if (a == b || b == MPG_BOOL) return a;
  if (a == MPG_BOOL) return b;
  bool float_a = mpg_dtype_is_float(a), float_b = mpg_dtype_is_float(b);
  if (float_a != float_b) return float_a ? a : b;
  size_t size_a = mpg_dtype_size(a), size_b = mpg_dtype_size(b);
  if (size_a != size_b) return size_a > size_b ? a : b;
  return float_a ? MPG_FLOAT32 : MPG_INT32; /* float16 and bfloat16, or int8 and uint8 */
}

mpg_dtype mpg_promotion_target(const mpg_op *op, mpg_dtype first, mpg_dtype last) {
  if (first == MPG_DTYPE_NONE || last == MPG_DTYPE_NONE) return MPG_DTYPE_NONE;
  mpg_dtype common = mpg_promoted_dtype(first, last);
  if (op->flags & MPG_OP_TOTALS && common == MPG_BOOL) return MPG_INT64;
  return op->flags & MPG_OP_DIVIDES && !mpg_dtype_is_float(common) ? MPG_FLOAT32 : common;
}

mpg_op_id mpg_promoted_op(const mpg_op *op, mpg_dtype dtype) {
  if (dtype == MPG_BOOL && (op->id == MPG_OP_elemwise_add || op->id == MPG_OP_broadcast_add))
    return MPG_OP_broadcast_logical_or;
  if (dtype == MPG_BOOL && (op->id == MPG_OP_elemwise_mul || op->id == MPG_OP_broadcast_mul))
    return MPG_OP_broadcast_logical_and;
  return op->id;
}
