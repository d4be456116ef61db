/* Array creation, casts and copies: inference and gradients. */
#include <math.h>

#include "op/infer.h"
#include "op/precision/promotion.h"

mpg_status mpg_infer_number(const mpg_infer *infer, const char *name, double value,
                            mpg_dtype dtype) {
  if (!mpg_op_is_numpy(infer->op) || dtype == MPG_DTYPE_NONE || !mpg_dtype_is_integer(dtype))
    return MPG_OK;
  const mpg_integer_range range = mpg_range_of_integers(dtype);
  /* The fraction is dropped. */
  if (trunc(value) >= range.low && value < range.end) return MPG_OK;
  mpg_infer_fail(infer, "%s %.17g is out of range for %s, %.17g to %.17g", name, value,
                 mpg_dtype_name(dtype), range.low, range.end - 1);
  return MPG_VALUE_ERROR;
}

static mpg_status created(mpg_infer *infer, const mpg_tuple *tuple, int32_t dtype) {
  mpg_shape shape;
  MPG_TRY(mpg_infer_tuple_shape(infer, tuple, &shape));
  mpg_infer_set(infer, 0, &shape, (mpg_dtype)dtype);
  return MPG_OK;
}

mpg_status mpg_infer_full(mpg_infer *infer) {
  const mpg_full_params *params = infer->params;
  MPG_TRY(mpg_infer_number(infer, "value", params->value, (mpg_dtype)params->dtype));
  return created(infer, &params->shape, params->dtype);
}

mpg_status mpg_infer_zeros(mpg_infer *infer) {
  const mpg_zeros_params *params = infer->params;
  return created(infer, &params->shape,
                 params->dtype == MPG_DTYPE_NONE ? MPG_FLOAT32 : params->dtype);
}

mpg_status mpg_infer_full_like(mpg_infer *infer) {
  const mpg_full_like_params *params = infer->params;
  mpg_dtype dtype =
      params->dtype == MPG_DTYPE_NONE ? infer->inputs[0].dtype : (mpg_dtype)params->dtype;
  MPG_TRY(mpg_infer_number(infer, "fill_value", params->fill_value, dtype));
  mpg_infer_set(infer, 0, &infer->inputs[0].shape, dtype);
  return MPG_OK;
}

mpg_status mpg_infer_eye(mpg_infer *infer) {
  const mpg_eye_params *params = infer->params;
  mpg_shape shape = {.ndim = 2, .dims = {params->N, params->M ? params->M : params->N}};
  mpg_infer_set(infer, 0, &shape, (mpg_dtype)params->dtype);
  return MPG_OK;
}

/* Sets output 0 to a one-dimensional array of count * repeat elements. Fails if there are too
 * many. */
static mpg_status set_range(mpg_infer *infer, double count, int64_t repeat, mpg_dtype dtype) {
  int64_t size;
  if (!(count >= 0)) count = 0;
  if (count > 0x1p62 || __builtin_mul_overflow((int64_t)count, repeat, &size))
    return mpg_infer_fail(infer, "too many values");
  mpg_shape shape = {.ndim = 1, .dims = {size}};
  mpg_infer_set(infer, 0, &shape, dtype);
  return MPG_OK;
}

mpg_status mpg_infer_arange(mpg_infer *infer) {
  const mpg_arange_params *params = infer->params;
  double start = params->stop.present ? params->start : 0,
         stop = params->stop.present ? params->stop.value : params->start;
  if (params->step == 0 || isnan(params->step))
    return mpg_infer_fail(infer, "step must not be %g", params->step);
  if (isnan(start) || isnan(stop)) return mpg_infer_fail(infer, "start and stop must be numbers");
  if (mpg_dtype_is_integer((mpg_dtype)params->dtype) &&
      (fabs(start) > 0x1p53 || fabs(stop) > 0x1p53))
    return mpg_infer_fail(infer, "integers must be from -2^53 to 2^53");
  return set_range(infer, ceil((stop - start) / params->step), params->repeat,
                   (mpg_dtype)params->dtype);
}

mpg_status mpg_infer_linspace(mpg_infer *infer) {
  const mpg_linspace_params *params = infer->params;
  return set_range(infer, (double)params->num, 1, (mpg_dtype)params->dtype);
}

mpg_status mpg_infer_arange_like(mpg_infer *infer) {
  const mpg_arange_like_params *params = infer->params;
  mpg_shape shape = infer->inputs[0].shape;
  if (params->axis.present && shape.ndim >= 0) {
    int axis;
    MPG_TRY(mpg_axis_normalize(params->axis.value, shape.ndim, infer->op->name, &axis));
    shape = (mpg_shape){.ndim = 1, .dims = {shape.dims[axis]}};
  }
  mpg_infer_set(infer, 0, &shape, infer->inputs[0].dtype);
  return MPG_OK;
}

mpg_status mpg_infer_cast(mpg_infer *infer) {
  const mpg_cast_params *params = infer->params;
  mpg_infer_set(infer, 0, &infer->inputs[0].shape, (mpg_dtype)params->dtype);
  return MPG_OK;
}

mpg_status mpg_infer_amp_cast(mpg_infer *infer) {
  const mpg_cast_params *params = infer->params;
  mpg_dtype dtype = infer->inputs[0].dtype;
  if (dtype == MPG_DTYPE_NONE || mpg_dtype_is_float(dtype))
    dtype = dtype == MPG_DTYPE_NONE ? dtype : (mpg_dtype)params->dtype;
  mpg_infer_set(infer, 0, &infer->inputs[0].shape, dtype);
  return MPG_OK;
}

int mpg_arity_amp_multicast(const mpg_op *op, const void *params, int given) {
  (void)op, (void)params;
  return given;
}

static int width(mpg_dtype dtype) {
  return dtype == MPG_FLOAT64 ? 3 : dtype == MPG_FLOAT32 ? 2 : dtype == MPG_BFLOAT16 ? 1 : 0;
}

mpg_status mpg_infer_amp_multicast(mpg_infer *infer) {
  const mpg_amp_multicast_params *params = infer->params;
  if (params->num_outputs != infer->num_inputs)
    return mpg_infer_fail(infer, "num_outputs is %lld, but there are %d inputs",
                          (long long)params->num_outputs, infer->num_inputs);
  mpg_dtype target = MPG_DTYPE_NONE;
  for (int i = 0; i < infer->num_inputs; i++) {
    mpg_dtype dtype = infer->inputs[i].dtype;
    if (!mpg_dtype_is_float(dtype)) continue;
    if (target == MPG_DTYPE_NONE ||
        (params->cast_narrow ? width(dtype) < width(target) : width(dtype) > width(target)))
      target = dtype;
  }
  for (int i = 0; i < infer->num_inputs; i++) {
    mpg_dtype dtype = infer->inputs[i].dtype;
    mpg_infer_set(infer, i, &infer->inputs[i].shape, mpg_dtype_is_float(dtype) ? target : dtype);
  }
  return MPG_OK;
}

/* --- Gradients: cast to the input's dtype, or copy to its device ------------------------------ */

static mpg_value cast_like(mpg_gradient *g, mpg_value grad, mpg_value input) {
  if (g->status != MPG_OK || !mpg_has_value(grad)) return MPG_NO_VALUE;
  mpg_cast_params params = {.dtype = mpg_value_desc(g, input)->dtype};
  /* Integers have no gradient. */
  if (!mpg_dtype_is_float((mpg_dtype)params.dtype)) return MPG_NO_VALUE;
  if (mpg_value_desc(g, grad)->dtype == (mpg_dtype)params.dtype) return grad;
  return mpg_emit1(g, MPG_OP_Cast, &params, grad);
}

void mpg_gradient_cast(mpg_gradient *g) {
  g->in_grads[0] = cast_like(g, g->out_grads[0], g->inputs[0]);
}

void mpg_gradient_amp_multicast(mpg_gradient *g) {
  for (int i = 0; i < g->num_inputs; i++)
    g->in_grads[i] = cast_like(g, g->out_grads[i], g->inputs[i]);
}

void mpg_gradient_copyto(mpg_gradient *g) {
  mpg_copyto_params params = *(const mpg_copyto_params *)g->params;
  params.ctx = g->builder->device(g->builder, g->inputs[0]);
  g->in_grads[0] = mpg_emit1(g, MPG_OP__copyto, &params, g->out_grads[0]);
}
