/* Arithmetic on graph values, for gradient formulas and composed ops. Shapes broadcast. */
#ifndef MPG_OP_FORMULA_ARITHMETIC_H
#define MPG_OP_FORMULA_ARITHMETIC_H

#include "op/op.h"

/* Emits the op `same` if the shapes are equal, because compiler passes optimize it better.
 * Otherwise emits the op `broadcasting`. */
static inline mpg_value mpg_binary(mpg_gradient *g, mpg_op_id same, mpg_op_id broadcasting,
                                   mpg_value a, mpg_value b) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  bool equal = mpg_shape_equal(&mpg_value_desc(g, a)->shape, &mpg_value_desc(g, b)->shape);
  return mpg_emit2(g, equal ? same : broadcasting, NULL, a, b);
}
static inline mpg_value mpg_add(mpg_gradient *g, mpg_value a, mpg_value b) {
  return mpg_binary(g, MPG_OP_elemwise_add, MPG_OP_broadcast_add, a, b);
}
static inline mpg_value mpg_subtract(mpg_gradient *g, mpg_value a, mpg_value b) {
  return mpg_binary(g, MPG_OP_elemwise_sub, MPG_OP_broadcast_sub, a, b);
}
static inline mpg_value mpg_multiply(mpg_gradient *g, mpg_value a, mpg_value b) {
  return mpg_binary(g, MPG_OP_elemwise_mul, MPG_OP_broadcast_mul, a, b);
}
static inline mpg_value mpg_divide(mpg_gradient *g, mpg_value a, mpg_value b) {
  return mpg_binary(g, MPG_OP_elemwise_div, MPG_OP_broadcast_div, a, b);
}
static inline mpg_value mpg_times(mpg_gradient *g, mpg_value a, double number) {
  return mpg_emit_scalar(g, MPG_OP__mul_scalar, a, number);
}
static inline mpg_value mpg_plus(mpg_gradient *g, mpg_value a, double number) {
  return mpg_emit_scalar(g, MPG_OP__plus_scalar, a, number);
}
static inline mpg_value mpg_minus_from(mpg_gradient *g, double number, mpg_value a) {
  return mpg_emit_scalar(g, MPG_OP__rminus_scalar, a, number);
}
static inline mpg_value mpg_over(mpg_gradient *g, double number, mpg_value a) {
  return mpg_emit_scalar(g, MPG_OP__rdiv_scalar, a, number);
}

/* Casts `a` to float32 if it is a 16-bit float; otherwise returns `a`. */
static inline mpg_value mpg_widen(mpg_gradient *g, mpg_value a) {
  if (!mpg_has_value(a)) return a;
  mpg_dtype dtype = mpg_value_desc(g, a)->dtype;
  return dtype == MPG_FLOAT16 || dtype == MPG_BFLOAT16 ? mpg_emit_cast(g, a, MPG_FLOAT32) : a;
}

/* Emits an array filled with a number, on the device of `like`. */
mpg_value mpg_emit_full(mpg_gradient *g, mpg_value like, const mpg_shape *shape, mpg_dtype dtype,
                        double number);
/* Emits an array with the rank of `like` that holds `numbers` along one axis; all other axes have
 * size 1. */
mpg_value mpg_emit_numbers(mpg_gradient *g, mpg_value like, int axis, mpg_dtype dtype,
                           const double *numbers, int count);
/* Emits the slice [begin, end) of `a` along an axis. */
mpg_value mpg_emit_slice(mpg_gradient *g, mpg_value a, int axis, int64_t begin, int64_t end);
mpg_value mpg_emit_concat(mpg_gradient *g, const mpg_value *parts, int count, int axis);
/* Emits a reduction along an axis, which is kept with size 1. */
mpg_value mpg_emit_reduce(mpg_gradient *g, mpg_op_id reduction, mpg_value a, int axis);
/* Emits a reduction. In a composed op of mx.np, the result of reducing all axes has no dimensions
 * instead of the shape (1,). */
mpg_value mpg_emit_reduction(mpg_gradient *g, mpg_op_id reduction, const mpg_reduce_params *params,
                             mpg_value a);
/* Emits a mean over several axes, which are dropped. */
mpg_value mpg_emit_mean_over(mpg_gradient *g, mpg_value a, int count, const int64_t *axes);
mpg_value mpg_emit_transpose(mpg_gradient *g, mpg_value a, int count, const int64_t *axes);
/* Emits an array of the given shape that holds 0, 1, ..., count - 1, on the device of `like`. */
mpg_value mpg_emit_count(mpg_gradient *g, mpg_value like, int64_t count, mpg_dtype dtype,
                         const mpg_shape *shape);
/* Returns true if two inputs have the same dtype. Otherwise makes the composition fail. */
bool mpg_same_dtype(mpg_gradient *g, int first, int second);
/* Emits an array with the elements of `a` where the condition is nonzero and those of `b`
 * elsewhere. The condition and `b` broadcast to the shape of `a`. */
mpg_value mpg_emit_where(mpg_gradient *g, mpg_value condition, mpg_value a, mpg_value b);
/* Replaces the padding of `a` (the steps after the end of each sequence) with `value`. `a` is
 * (time, batch, ...), or (batch, time, ...) if `time` is 1. */
mpg_value mpg_emit_sequence_mask(mpg_gradient *g, mpg_value a, mpg_value lengths, int time,
                                 double value);

#endif
