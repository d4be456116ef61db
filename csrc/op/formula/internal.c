/* Ops that gradient formulas use, and the helpers that emit them. */
#include <math.h>
#include <string.h>

#include "op/infer.h"

static mpg_exact_shape_params exact_shape(const mpg_shape *shape) {
  mpg_exact_shape_params params;
  memset(&params, 0, sizeof params);
  params.shape = mpg_shape_tuple(shape);
  return params;
}

mpg_status mpg_infer_reshape_exact(mpg_infer *infer) {
  const mpg_exact_shape_params *params = infer->params;
  const mpg_desc *data = &infer->inputs[0];
  mpg_shape shape;
  MPG_TRY(mpg_infer_tuple_shape(infer, &params->shape, &shape));
  if (mpg_shape_known(&data->shape) && mpg_shape_size(&data->shape) != mpg_shape_size(&shape))
    return mpg_infer_fail(infer, "the shapes differ in the number of elements");
  mpg_infer_set(infer, 0, &shape, data->dtype);
  return MPG_OK;
}

/* Emits a node even if the shape stays the same. autograd/groups.c moves an array to another device
 * group with a copy, or with _reshape_exact if both groups are on the same device. With this node,
 * the graph has the same structure in both cases, so second-order gradients are summed in the same
 * order. */
void mpg_gradient_reshape_exact(mpg_gradient *g) {
  mpg_exact_shape_params params = exact_shape(&mpg_value_desc(g, g->inputs[0])->shape);
  g->in_grads[0] = mpg_emit1(g, MPG_OP__reshape_exact, &params, g->out_grads[0]);
}

void mpg_gradient_gradient_tap(mpg_gradient *g) {
  for (int i = 0; i < 2; i++)
    if (g->needed[i]) g->in_grads[i] = g->out_grads[0];
}

mpg_status mpg_infer_broadcast_exact(mpg_infer *infer) {
  const mpg_exact_shape_params *params = infer->params;
  const mpg_desc *data = &infer->inputs[0];
  mpg_shape shape, joined;
  MPG_TRY(mpg_infer_tuple_shape(infer, &params->shape, &shape));
  if (!mpg_shape_broadcast(&data->shape, &shape, &joined) || !mpg_shape_equal(&joined, &shape))
    return mpg_infer_fail(infer, "the array cannot be broadcast to the shape");
  mpg_infer_set(infer, 0, &shape, data->dtype);
  return MPG_OK;
}

void mpg_gradient_broadcast_exact(mpg_gradient *g) {
  g->in_grads[0] = mpg_emit_sum_to(g, g->out_grads[0], &mpg_value_desc(g, g->inputs[0])->shape);
}

mpg_value mpg_emit_reshape(mpg_gradient *g, mpg_value a, const mpg_shape *shape) {
  if (!mpg_has_value(a) || mpg_shape_equal(&mpg_value_desc(g, a)->shape, shape)) return a;
  mpg_exact_shape_params params = exact_shape(shape);
  return mpg_emit1(g, MPG_OP__reshape_exact, &params, a);
}

mpg_value mpg_emit_view(mpg_gradient *g, mpg_value a) {
  if (!mpg_has_value(a)) return a;
  mpg_exact_shape_params params = exact_shape(&mpg_value_desc(g, a)->shape);
  return mpg_emit1(g, MPG_OP__reshape_exact, &params, a);
}

mpg_value mpg_emit_cast(mpg_gradient *g, mpg_value a, mpg_dtype dtype) {
  if (!mpg_has_value(a) || mpg_value_desc(g, a)->dtype == dtype) return a;
  mpg_cast_params params = {.dtype = (int)dtype};
  return mpg_emit1(g, MPG_OP_Cast, &params, a);
}

mpg_value mpg_emit_mean(mpg_gradient *g, mpg_value a, const mpg_shape *shape) {
  if (!mpg_has_value(a)) return a;
  mpg_reduce_params params;
  memset(&params, 0, sizeof params);
  params.keepdims = true;
  for (int i = 0; i < shape->ndim; i++)
    if (shape->dims[i] == 1) params.axis.values[params.axis.count++] = i;
  return params.axis.count ? mpg_emit1(g, MPG_OP_mean, &params, a) : a;
}

mpg_value mpg_emit_broadcast_to(mpg_gradient *g, mpg_value a, const mpg_shape *shape) {
  if (!mpg_has_value(a) || mpg_shape_equal(&mpg_value_desc(g, a)->shape, shape)) return a;
  mpg_exact_shape_params params = exact_shape(shape);
  return mpg_emit1(g, MPG_OP__broadcast_exact, &params, a);
}

mpg_value mpg_emit_sum_to(mpg_gradient *g, mpg_value a, const mpg_shape *shape) {
  if (!mpg_has_value(a)) return a;
  mpg_shape from = mpg_value_desc(g, a)->shape;
  if (mpg_shape_equal(&from, shape)) return a;
  mpg_reduce_params params;
  memset(&params, 0, sizeof params);
  params.keepdims = true;
  int extra = from.ndim - shape->ndim;
  for (int i = 0; i < from.ndim; i++)
    if (i < extra || (shape->dims[i - extra] == 1 && from.dims[i] != 1))
      params.axis.values[params.axis.count++] = i;
  if (params.axis.count) a = mpg_emit1(g, MPG_OP_sum, &params, a);
  return mpg_emit_reshape(g, a, shape);
}

mpg_value mpg_emit_scalar(mpg_gradient *g, mpg_op_id scalar_op, mpg_value a, double scalar) {
  mpg_scalar_params params;
  memset(&params, 0, sizeof params);
  params.scalar = scalar;
  params.is_int = scalar == (double)(int64_t)scalar;
  return mpg_emit1(g, scalar_op, &params, a);
}

/* True if `dtype`, float16 or bfloat16, represents the number exactly and not as a subnormal. */
static bool holds(mpg_dtype dtype, double number) {
  int exponent, bits = dtype == MPG_FLOAT16 ? 11 : 8, largest = dtype == MPG_FLOAT16 ? 16 : 128;
  double digits = ldexp(frexp(number, &exponent), bits);
  return number == 0 || (digits == floor(digits) && exponent <= largest && exponent > 2 - largest);
}

mpg_value mpg_emit_number(mpg_gradient *g, mpg_op_id scalar_op, mpg_value a, double number) {
  if (!mpg_has_value(a)) return a;
  mpg_dtype dtype = mpg_value_desc(g, a)->dtype;
  if ((dtype != MPG_FLOAT16 && dtype != MPG_BFLOAT16) || holds(dtype, number))
    return mpg_emit_scalar(g, scalar_op, a, number);
  return mpg_emit_cast(g, mpg_emit_scalar(g, scalar_op, mpg_emit_cast(g, a, MPG_FLOAT32), number),
                       dtype);
}

mpg_value mpg_emit_full_like(mpg_gradient *g, mpg_value like, double value) {
  mpg_full_like_params params;
  memset(&params, 0, sizeof params);
  params.fill_value = value;
  params.dtype = MPG_DTYPE_NONE;
  return mpg_emit1(g, MPG_OP__full_like, &params, like);
}
