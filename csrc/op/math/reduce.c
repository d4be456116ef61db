/* Reductions and broadcasting to a shape: inference and gradients. */
#include <math.h>
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

/* Sets reduced[i] to true if axis i is reduced. Fails if `axis` has an invalid or repeated
 * entry. */
static mpg_status reduced_axes(const mpg_infer *infer, const mpg_tuple *axis, bool exclude,
                               int ndim, bool *reduced) {
  bool all = axis->count <= 0;
  for (int i = 0; i < ndim; i++) reduced[i] = all;
  for (int k = 0; k < axis->count; k++) {
    int a;
    MPG_TRY(mpg_axis_normalize(axis->values[k], ndim, infer->op->name, &a));
    if (reduced[a]) return mpg_infer_fail(infer, "axis %d is given twice", a);
    reduced[a] = true;
  }
  if (exclude && !all)
    for (int i = 0; i < ndim; i++) reduced[i] = !reduced[i];
  return MPG_OK;
}

static mpg_status infer_reduced(mpg_infer *infer, const mpg_tuple *axis, bool keepdims,
                                bool exclude, mpg_dtype dtype, bool needs_element) {
  const mpg_shape *in = &infer->inputs[0].shape;
  mpg_shape out = MPG_SHAPE_UNKNOWN;
  if (in->ndim >= 0) {
    bool reduced[MPG_MAX_NDIM];
    MPG_TRY(reduced_axes(infer, axis, exclude, in->ndim, reduced));
    out.ndim = 0;
    int64_t count = 1;
    for (int i = 0; i < in->ndim; i++) {
      if (reduced[i]) count *= in->dims[i];
      if (!reduced[i] || keepdims) out.dims[out.ndim++] = reduced[i] ? 1 : in->dims[i];
    }
    if (!keepdims) mpg_lift(infer->op, &out);
    if (needs_element && count == 0 && mpg_shape_known(&out) && mpg_shape_size(&out) > 0)
      return mpg_infer_fail(infer, "the reduced axes are empty and have no extreme element");
  }
  mpg_infer_set(infer, 0, &out, dtype);
  return MPG_OK;
}

mpg_status mpg_infer_reduce(mpg_infer *infer) {
  const mpg_reduce_params *params = infer->params;
  bool needs_element = infer->op->id == MPG_OP_max || infer->op->id == MPG_OP_min;
  return infer_reduced(infer, &params->axis, params->keepdims, params->exclude,
                       infer->inputs[0].dtype, needs_element);
}

mpg_status mpg_infer_reduce_norm(mpg_infer *infer) {
  const mpg_reduce_norm_params *params = infer->params;
  mpg_dtype dtype =
      params->out_dtype == MPG_DTYPE_NONE ? infer->inputs[0].dtype : (mpg_dtype)params->out_dtype;
  return infer_reduced(infer, &params->axis, params->keepdims, false, dtype, false);
}

/* --- Gradients -------------------------------------------------------------------------------- */

#define G (g->out_grads[0])
#define X (g->inputs[0])
#define Y (g->outputs[0])

/* Returns the input's shape with size 1 along the reduced axes. Sets *count to the number of
 * elements per result. */
static mpg_shape kept_shape(mpg_gradient *g, const mpg_tuple *axis, bool exclude, int64_t *count) {
  mpg_shape shape = mpg_value_desc(g, X)->shape;
  bool reduced[MPG_MAX_NDIM], all = axis->count <= 0;
  for (int i = 0; i < shape.ndim; i++) reduced[i] = all || exclude;
  for (int k = 0; k < axis->count; k++)
    reduced[axis->values[k] < 0 ? axis->values[k] + shape.ndim : axis->values[k]] = !exclude;
  *count = 1;
  for (int i = 0; i < shape.ndim; i++) {
    if (!reduced[i]) continue;
    *count *= shape.dims[i];
    shape.dims[i] = 1;
  }
  return shape;
}

/* Reshapes `value` from the output's shape to the input's rank, with size 1 along the reduced
 * axes. */
static mpg_value kept(mpg_gradient *g, mpg_value value) {
  const mpg_reduce_params *params = g->params;
  int64_t count;
  mpg_shape shape = kept_shape(g, &params->axis, params->exclude, &count);
  return mpg_emit_reshape(g, value, &shape);
}
static mpg_value spread(mpg_gradient *g, mpg_value value) {
  mpg_shape shape = mpg_value_desc(g, X)->shape;
  return mpg_emit_broadcast_to(g, kept(g, value), &shape);
}

void mpg_gradient_sum(mpg_gradient *g) { g->in_grads[0] = spread(g, G); }

void mpg_gradient_mean(mpg_gradient *g) {
  const mpg_reduce_params *params = g->params;
  int64_t count;
  kept_shape(g, &params->axis, params->exclude, &count);
  g->in_grads[0] = spread(g, mpg_emit_number(g, MPG_OP__div_scalar, G, (double)count));
}

/* Emits 1 for numbers and 0 for NaN, which is not equal to itself. */
static mpg_value is_number(mpg_gradient *g) { return mpg_emit2(g, MPG_OP__equal, NULL, X, X); }

static mpg_value where(mpg_gradient *g, mpg_value condition, mpg_value a, mpg_value b) {
  return mpg_emit3(g, MPG_OP_where, NULL, condition, a, b);
}

/* Emits the gradient of prod: for each element, G times the product of the other elements. Without
 * zeros, this product is y / x. With one zero, it is nonzero only at the zero. With two zeros, each
 * zero gets the other zero times the product of the rest, which is 0 but has a second-order
 * gradient. With more zeros, all products are 0. */
static mpg_value product_gradient(mpg_gradient *g, mpg_value x) {
  mpg_reduce_params params = *(const mpg_reduce_params *)g->params;
  params.keepdims = true;
  mpg_value zero = mpg_emit_scalar(g, MPG_OP__equal_scalar, x, 0),
            others = where(g, zero, mpg_emit_full_like(g, x, 1), x),
            zeros = where(g, zero, x, mpg_emit_full_like(g, x, 0));
  mpg_value count = mpg_emit1(g, MPG_OP_sum, &params, zero),
            one = mpg_emit_scalar(g, MPG_OP__equal_scalar, count, 1),
            two = mpg_emit_scalar(g, MPG_OP__equal_scalar, count, 2);
  mpg_value other_zero = mpg_subtract(g, mpg_emit1(g, MPG_OP_sum, &params, zeros), zeros);
  mpg_value rest = mpg_multiply(g, kept(g, G), mpg_emit1(g, MPG_OP_prod, &params, others));
  return where(g, zero, mpg_multiply(g, mpg_add(g, one, mpg_multiply(g, two, other_zero)), rest),
               mpg_divide(g, mpg_multiply(g, kept(g, G), kept(g, Y)), others));
}

void mpg_gradient_prod(mpg_gradient *g) { g->in_grads[0] = product_gradient(g, X); }

void mpg_gradient_nansum(mpg_gradient *g) {
  g->in_grads[0] = mpg_multiply(g, kept(g, G), is_number(g));
}

/* Same as prod with each NaN replaced by 1. The gradient of a NaN is 0. */
void mpg_gradient_nanprod(mpg_gradient *g) {
  mpg_value numbers = where(g, is_number(g), X, mpg_emit_full_like(g, X, 1));
  g->in_grads[0] = mpg_multiply(g, product_gradient(g, numbers), is_number(g));
}

/* The gradient flows to all elements that equal the result and to all NaN. */
void mpg_gradient_extremum(mpg_gradient *g) {
  mpg_value equal = mpg_emit2(g, MPG_OP_broadcast_equal, NULL, X, kept(g, Y)),
            nan = mpg_emit2(g, MPG_OP__not_equal, NULL, X, X);
  g->in_grads[0] = mpg_multiply(g, kept(g, G), mpg_emit2(g, MPG_OP__maximum, NULL, equal, nan));
}

void mpg_gradient_norm(mpg_gradient *g) { /* ord 1: sign(x); ord 2: x / y, or 0 if the norm is 0 */
  const mpg_reduce_norm_params *params = g->params;
  int64_t count;
  mpg_shape shape = kept_shape(g, &params->axis, false, &count);
  mpg_dtype dtype = mpg_value_desc(g, X)->dtype;
  mpg_value grad = mpg_emit_reshape(g, G, &shape), norm = mpg_emit_reshape(g, Y, &shape);
  if (mpg_value_desc(g, G)->dtype != dtype) {
    mpg_cast_params cast = {.dtype = dtype};
    grad = mpg_emit1(g, MPG_OP_Cast, &cast, grad);
    norm = mpg_emit1(g, MPG_OP_Cast, &cast, norm);
  }
  if (params->ord == 1) {
    g->in_grads[0] = mpg_multiply(g, grad, mpg_emit1(g, MPG_OP_sign, NULL, X));
    return;
  }
  mpg_value zero = mpg_emit_scalar(g, MPG_OP__equal_scalar, norm, 0);
  g->in_grads[0] =
      mpg_multiply(g, mpg_divide(g, grad, mpg_emit2(g, MPG_OP_elemwise_add, NULL, norm, zero)), X);
}

/* --- Broadcasting to a shape ------------------------------------------------------------------ */

static mpg_status check_broadcast(mpg_infer *infer, const mpg_shape *to) {
  const mpg_shape *from = &infer->inputs[0].shape;
  mpg_shape result;
  if (mpg_shape_known(from) && mpg_shape_known(to)) {
    char text[MPG_SHAPE_TEXT_SIZE];
    if (from->ndim > to->ndim || !mpg_shape_broadcast(from, to, &result) ||
        !mpg_shape_equal(&result, to))
      return mpg_infer_fail(
          infer, "the array cannot be repeated to shape %s; only axes of size 1 can be repeated",
          mpg_shape_text(to, text, sizeof text));
    MPG_TRY(mpg_shape_check(
        to, infer->inputs[0].dtype == MPG_DTYPE_NONE ? MPG_FLOAT64 : infer->inputs[0].dtype, NULL));
  }
  mpg_infer_set(infer, 0, to, infer->inputs[0].dtype);
  return MPG_OK;
}

mpg_status mpg_infer_broadcast_to(mpg_infer *infer) {
  const mpg_broadcast_to_params *params = infer->params;
  const mpg_shape *from = &infer->inputs[0].shape;
  mpg_shape to = {.ndim = params->shape.count};
  if (to.ndim < 0 || to.ndim > MPG_MAX_NDIM)
    return mpg_infer_fail(infer, "shape must have 1 to %d dimensions", MPG_MAX_NDIM);
  if (from->ndim > to.ndim)
    return mpg_infer_fail(infer, "the result would have fewer dimensions than the input");
  for (int i = 0; i < to.ndim; i++) {
    int64_t size = params->shape.values[i];
    int k = from->ndim < 0 ? -1 : i - (to.ndim - from->ndim);
    if (size == (mpg_op_is_numpy(infer->op) ? -2 : 0)) { /* keeps the input's size, as in MXNet */
      size = from->ndim < 0 ? -1 : k < 0 ? 0 : from->dims[k];
    } else if (size < 0) {
      return mpg_infer_fail(infer, "shape has a negative size, %lld", (long long)size);
    }
    to.dims[i] = size;
  }
  return check_broadcast(infer, &to);
}

mpg_status mpg_infer_broadcast_axis(mpg_infer *infer) {
  const mpg_broadcast_axis_params *params = infer->params;
  mpg_shape to = infer->inputs[0].shape;
  if (params->axis.count != params->size.count)
    return mpg_infer_fail(infer, "axis and size must have the same number of values");
  for (int k = 0; to.ndim >= 0 && k < params->axis.count; k++) {
    int a;
    MPG_TRY(mpg_axis_normalize(params->axis.values[k], to.ndim, infer->op->name, &a));
    if (to.dims[a] > 1 && to.dims[a] != params->size.values[k])
      return mpg_infer_fail(infer, "axis %d has size %lld, not 1", a, (long long)to.dims[a]);
    if (params->size.values[k] < 0) return mpg_infer_fail(infer, "a size is negative");
    to.dims[a] = params->size.values[k];
  }
  return check_broadcast(infer, &to);
}

mpg_status mpg_infer_broadcast_like(mpg_infer *infer) {
  const mpg_broadcast_like_params *params = infer->params;
  mpg_shape to = infer->inputs[0].shape;
  const mpg_shape *like = &infer->inputs[1].shape;
  if (params->lhs_axes.count < 0 && params->rhs_axes.count < 0) return check_broadcast(infer, like);
  if (params->lhs_axes.count != params->rhs_axes.count || params->lhs_axes.count == 0)
    return mpg_infer_fail(
        infer, "lhs_axes and rhs_axes must have the same number of values, at least one");
  for (int k = 0; to.ndim >= 0 && like->ndim >= 0 && k < params->lhs_axes.count; k++) {
    int a, b;
    MPG_TRY(mpg_axis_normalize(params->lhs_axes.values[k], to.ndim, infer->op->name, &a));
    MPG_TRY(mpg_axis_normalize(params->rhs_axes.values[k], like->ndim, infer->op->name, &b));
    to.dims[a] = like->dims[b];
  }
  if (like->ndim < 0) to = MPG_SHAPE_UNKNOWN;
  return check_broadcast(infer, &to);
}

void mpg_gradient_broadcast(mpg_gradient *g) {
  if (g->status != MPG_OK || !g->needed[0]) return;
  mpg_shape shape = mpg_value_desc(g, X)->shape;
  g->in_grads[0] = mpg_emit_sum_to(g, G, &shape);
}

void mpg_compose_moments(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_moments_params *params = g->params;
  if (params->axes.count <= 0) {
    mpg_gradient_fail(
        g, "axes must contain at least one axis; list all axes for the moments of all elements");
    return;
  }
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype;
  mpg_value data = mpg_widen(g, inputs[0]);
  mpg_reduce_params along, kept;
  memset(&along, 0, sizeof along);
  along.axis = params->axes;
  kept = along;
  along.keepdims = params->keepdims;
  kept.keepdims = true;
  mpg_value centered = mpg_subtract(g, data, mpg_emit1(g, MPG_OP_mean, &kept, data));
  mpg_value squares = mpg_emit1(g, MPG_OP_square, NULL, centered);
  mpg_value mean = mpg_emit_reduction(g, MPG_OP_mean, &along, data);
  mpg_value variance = mpg_emit_reduction(g, MPG_OP_mean, &along, squares);
  outputs[0] = mpg_emit_cast(g, mean, dtype);
  outputs[1] = mpg_emit_cast(g, variance, dtype);
}

void mpg_compose_allclose(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_allclose_params *params = g->params;
  mpg_value numbers[2], nan[2];
  for (int i = 0; i < 2; i++) {
    numbers[i] = mpg_emit1(g, MPG_OP_BlockGrad, NULL, mpg_emit_cast(g, inputs[i], MPG_FLOAT64));
    nan[i] = mpg_emit2(g, MPG_OP__not_equal, NULL, numbers[i], numbers[i]);
  }
  mpg_value apart = mpg_emit1(g, MPG_OP_abs, NULL, mpg_subtract(g, numbers[0], numbers[1])),
            allowed =
                mpg_plus(g, mpg_times(g, mpg_emit1(g, MPG_OP_abs, NULL, numbers[1]), params->rtol),
                         params->atol);
  mpg_value close =
                mpg_binary(g, MPG_OP__lesser_equal, MPG_OP_broadcast_lesser_equal, apart, allowed),
            equal = mpg_binary(g, MPG_OP__equal, MPG_OP_broadcast_equal, numbers[0], numbers[1]);
  /* An infinite element of the second array makes the tolerance infinite, so every finite element
   * would be close to it. Therefore, if the tolerance is infinite, only equal elements are
   * close. */
  mpg_value finite = mpg_emit_scalar(g, MPG_OP__lesser_scalar, allowed, INFINITY);
  close = mpg_binary(g, MPG_OP__maximum, MPG_OP_broadcast_maximum, mpg_multiply(g, close, finite),
                     equal);
  if (params->equal_nan)
    close = mpg_binary(g, MPG_OP__maximum, MPG_OP_broadcast_maximum, close,
                       mpg_multiply(g, nan[0], nan[1]));
  mpg_reduce_params all;
  memset(&all, 0, sizeof all);
  mpg_shape scalar = {.ndim = 0};
  mpg_value different = mpg_emit1(g, MPG_OP_sum, &all, mpg_minus_from(g, 1, close));
  mpg_value none = mpg_emit_scalar(g, MPG_OP__equal_scalar, different, 0);
  outputs[0] = mpg_emit_reshape(g, mpg_emit_cast(g, none, MPG_UINT8), &scalar);
}
