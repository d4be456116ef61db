/* Building blocks of composed ops: constants, slices, concatenation, selection. */
#include <string.h>

#include "op/formula/arithmetic.h"

/* Emits an op without inputs, on the device of `like`. */
static mpg_value create(mpg_gradient *g, mpg_op_id op, const void *params, mpg_value like) {
  mpg_value result = MPG_NO_VALUE;
  g->status = g->builder->emit(g->builder, mpg_op_get(op), params, NULL, 0, like, &result);
  return result;
}

mpg_value mpg_emit_full(mpg_gradient *g, mpg_value like, const mpg_shape *shape, mpg_dtype dtype,
                        double number) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_full_params params;
  memset(&params, 0, sizeof params);
  params.shape = mpg_shape_tuple(shape);
  params.value = number;
  params.dtype = dtype;
  params.ctx = g->builder->device(g->builder, like);
  return create(g, MPG_OP__full, &params, like);
}

mpg_value mpg_emit_numbers(mpg_gradient *g, mpg_value like, int axis, mpg_dtype dtype,
                           const double *numbers, int count) {
  mpg_value parts[MPG_MAX_FLOATS];
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape one = {.ndim = mpg_value_desc(g, like)->shape.ndim};
  for (int i = 0; i < one.ndim; i++) one.dims[i] = 1;
  for (int i = 0; i < count; i++) parts[i] = mpg_emit_full(g, like, &one, dtype, numbers[i]);
  return mpg_emit_concat(g, parts, count, axis);
}

mpg_value mpg_emit_slice(mpg_gradient *g, mpg_value a, int axis, int64_t begin, int64_t end) {
  mpg_slice_axis_params params;
  memset(&params, 0, sizeof params);
  params.axis = axis;
  params.begin = begin;
  params.end = (mpg_opt_int){.value = end, .present = 1};
  return mpg_emit1(g, MPG_OP_slice_axis, &params, a);
}

mpg_value mpg_emit_concat(mpg_gradient *g, const mpg_value *parts, int count, int axis) {
  mpg_concat_params params;
  memset(&params, 0, sizeof params);
  params.num_args = count;
  params.dim = axis;
  return count == 1 ? parts[0] : mpg_emit(g, MPG_OP_Concat, &params, count, parts);
}

mpg_value mpg_emit_reduce(mpg_gradient *g, mpg_op_id reduction, mpg_value a, int axis) {
  mpg_reduce_params params;
  memset(&params, 0, sizeof params);
  params.axis = (mpg_tuple){.count = 1, .values = {axis}};
  params.keepdims = true;
  return mpg_emit1(g, reduction, &params, a);
}

mpg_value mpg_emit_reduction(mpg_gradient *g, mpg_op_id reduction, const mpg_reduce_params *params,
                             mpg_value a) {
  mpg_value result = mpg_emit1(g, reduction, params, a);
  if (g->status != MPG_OK || !mpg_op_is_numpy(g->op)) return result;
  mpg_desc in = *mpg_value_desc(g, a), out = {.shape = MPG_SHAPE_UNKNOWN, .dtype = MPG_DTYPE_NONE};
  g->status = mpg_op_infer(mpg_op_get(reduction)->numpy, params, g->train, &in, 1, &out, 1);
  return g->status == MPG_OK ? mpg_emit_reshape(g, result, &out.shape) : MPG_NO_VALUE;
}

mpg_value mpg_emit_mean_over(mpg_gradient *g, mpg_value a, int count, const int64_t *axes) {
  mpg_reduce_params params;
  memset(&params, 0, sizeof params);
  params.axis.count = count;
  for (int i = 0; i < count; i++) params.axis.values[i] = axes[i];
  return mpg_emit1(g, MPG_OP_mean, &params, a);
}

mpg_value mpg_emit_transpose(mpg_gradient *g, mpg_value a, int count, const int64_t *axes) {
  mpg_transpose_params params;
  memset(&params, 0, sizeof params);
  params.axes.count = count;
  for (int i = 0; i < count; i++) params.axes.values[i] = axes[i];
  return mpg_emit1(g, MPG_OP_transpose, &params, a);
}

mpg_value mpg_emit_count(mpg_gradient *g, mpg_value like, int64_t count, mpg_dtype dtype,
                         const mpg_shape *shape) {
  mpg_arange_params params;
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  memset(&params, 0, sizeof params);
  params.stop = (mpg_opt_float){.value = (double)count, .present = 1};
  params.step = 1;
  params.repeat = 1;
  params.dtype = dtype;
  params.ctx = g->builder->device(g->builder, like);
  return mpg_emit_reshape(g, create(g, MPG_OP__arange, &params, like), shape);
}

bool mpg_same_dtype(mpg_gradient *g, int first, int second) {
  char names[2][64];
  if (g->status != MPG_OK) return false;
  mpg_dtype a = mpg_value_desc(g, g->inputs[first])->dtype,
            b = mpg_value_desc(g, g->inputs[second])->dtype;
  if (a != b)
    mpg_gradient_fail(g, "%s must be %s, as %s is, not %s; convert it with astype",
                      mpg_op_input_name(g->op, second, names[0], sizeof names[0]),
                      mpg_dtype_name(a), mpg_op_input_name(g->op, first, names[1], sizeof names[1]),
                      mpg_dtype_name(b));
  return a == b;
}

mpg_value mpg_emit_where(mpg_gradient *g, mpg_value condition, mpg_value a, mpg_value b) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, a)->shape, along = shape;
  mpg_shape given = mpg_value_desc(g, condition)->shape;
  bool whole_rows = shape.ndim > 1 && given.ndim == shape.ndim;
  /* An axis of size 1 is not treated as a feature axis, because it may be a batch of one row. A
   * pipeline must run the same ops for any number of rows. */
  for (int i = 1; i < shape.ndim && whole_rows; i++)
    whole_rows = given.dims[i] == 1 && shape.dims[i] > 1;
  if (whole_rows) {
    given.ndim = along.ndim = 1;
    condition = mpg_emit_reshape(g, condition, &given);
  }
  return mpg_emit3(g, MPG_OP_where, NULL, mpg_emit_broadcast_to(g, condition, &along), a,
                   mpg_emit_broadcast_to(g, b, &shape));
}

mpg_value mpg_emit_sequence_mask(mpg_gradient *g, mpg_value a, mpg_value lengths, int time,
                                 double value) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape data = mpg_value_desc(g, a)->shape, steps = {.ndim = data.ndim}, own;
  for (int i = 0; i < data.ndim; i++) steps.dims[i] = 1;
  own = steps;
  steps.dims[time] = data.dims[time];
  own.dims[1 - time] = data.dims[1 - time];
  mpg_value whole = mpg_emit1(g, MPG_OP_trunc, NULL, mpg_emit_cast(g, lengths, MPG_FLOAT32));
  mpg_value step = mpg_emit_count(g, a, data.dims[time], MPG_FLOAT32, &steps);
  mpg_value kept =
      mpg_emit2(g, MPG_OP_broadcast_lesser, NULL, step, mpg_emit_reshape(g, whole, &own));
  return mpg_emit_where(g, kept, a, mpg_emit_full_like(g, a, value));
}
