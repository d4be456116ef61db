/* Promotion of dtypes in NumPy's dialect. */
#include "op/precision/promotion.h"

#include <math.h>

mpg_dtype mpg_promoted_dtype(mpg_dtype a, mpg_dtype b) {
  if (a == b || b == MPG_BOOL) return a;
  if (a == MPG_BOOL) return b;
  bool float_a = mpg_dtype_is_float(a), float_b = mpg_dtype_is_float(b);
  if (float_a != float_b) return float_a ? a : b;
  size_t size_a = mpg_dtype_size(a), size_b = mpg_dtype_size(b);
  if (size_a != size_b) return size_a > size_b ? a : b;
  return float_a ? MPG_FLOAT32 : MPG_INT32; /* float16 and bfloat16, or int8 and uint8 */
}

/* Returns the number of a call of an op on an array and a number, or NULL for other ops. */
static const mpg_scalar_params *number_of(const mpg_op *op, const void *params) {
  return op->params == &mpg_scalar_table ? params : NULL;
}

mpg_dtype mpg_promotion_target(const mpg_op *op, const void *params, mpg_dtype first,
                               mpg_dtype last) {
  if (first == MPG_DTYPE_NONE || last == MPG_DTYPE_NONE) return MPG_DTYPE_NONE;
  mpg_dtype common = mpg_promoted_dtype(first, last);
  const mpg_scalar_params *number = number_of(op, params);
  if (number && common == MPG_BOOL && !(op->flags & MPG_OP_TRUTH))
    common = number->is_int && number->scalar == floor(number->scalar) ? MPG_INT64 : MPG_FLOAT32;
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

mpg_integer_range mpg_range_of_integers(mpg_dtype dtype) {
  if (dtype == MPG_BOOL) return (mpg_integer_range){0, 2};
  int bits = 8 * (int)mpg_dtype_size(dtype);
  if (dtype == MPG_UINT8) return (mpg_integer_range){0, ldexp(1, bits)};
  return (mpg_integer_range){-ldexp(1, bits - 1), ldexp(1, bits - 1)};
}

bool mpg_exact_comparison(const mpg_op *op, const void *params, mpg_dtype dtype, mpg_op_id *id,
                          mpg_scalar_params *number) {
  const mpg_scalar_params *given = number_of(op, params);
  if (!given || !(op->flags & MPG_OP_TRUTH) || mpg_dtype_is_float(dtype)) return false;
  const mpg_integer_range range = mpg_range_of_integers(dtype);
  const double scalar = given->scalar;
  const bool inside = scalar >= range.low && scalar < range.end,
             held = inside && (dtype != MPG_BOOL || scalar == floor(scalar));
  bool above = false, equality = false;
  bool truth; /* the result for all elements if the number is beyond the range */
  *number = *given;
  switch (op->id) {
    case MPG_OP__logical_and_scalar:
    case MPG_OP__logical_or_scalar:
    case MPG_OP__logical_xor_scalar:
      *id = op->id;
      number->scalar = scalar != 0;
      return true;
    case MPG_OP__equal_scalar:
    case MPG_OP__not_equal_scalar:
      equality = true;
      truth = op->id == MPG_OP__not_equal_scalar;
      break;
    case MPG_OP__greater_scalar:
    case MPG_OP__greater_equal_scalar:
      above = true;
      truth = scalar < range.low;
      break;
    default: truth = scalar >= range.end; break; /* _lesser_scalar and _lesser_equal_scalar */
  }
  if (held) return false;
  if (inside && !equality) { /* a fraction between False and True */
    *id = above ? MPG_OP__greater_scalar : MPG_OP__lesser_equal_scalar;
    number->scalar = floor(scalar);
  } else {
    *id = truth ? MPG_OP__greater_equal_scalar : MPG_OP__lesser_scalar;
    number->scalar = range.low;
  }
  return true;
}
