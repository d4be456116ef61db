/* Softmax and cross-entropy. Inference and gradients. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

#define PARAMS(structure, name) const mpg_##structure##_params *name = infer->params
#define GRADIENT_PARAMS(structure, name) const mpg_##structure##_params *name = g->params

static mpg_status no_length(mpg_infer *infer) {
  return mpg_infer_fail(infer, "use_length must be False; only softmax supports it");
}

static mpg_status softmax_output(mpg_infer *infer, int64_t axis_param, mpg_dtype dtype,
                                 const mpg_opt_float *temperature) {
  if (dtype != MPG_DTYPE_NONE && !mpg_dtype_is_float(dtype))
    return mpg_infer_fail(infer, "dtype must be a float type, not %s", mpg_dtype_name(dtype));
  if (temperature->present && !(temperature->value != 0))
    return mpg_infer_fail(infer, "temperature must be a number other than 0");
  infer->outputs[0].dtype = dtype != MPG_DTYPE_NONE ? dtype : infer->inputs[0].dtype;
  infer->outputs[0].shape = infer->inputs[0].shape;
  if (infer->inputs[0].shape.ndim < 0) return MPG_OK;
  int axis;
  return mpg_axis_normalize(axis_param, infer->inputs[0].shape.ndim, infer->op->name, &axis);
}

mpg_status mpg_infer_softmax(mpg_infer *infer) {
  PARAMS(softmax, params);
  /* softmin shares this function but has no length input, so it rejects use_length. */
  if (params->use_length && infer->num_inputs < 2) return no_length(infer);
  MPG_TRY(softmax_output(infer, params->axis, params->dtype, &params->temperature));
  if (infer->num_inputs < 2 || infer->inputs[0].shape.ndim < 0) return MPG_OK;
  mpg_dtype dtype = infer->inputs[1].dtype;
  if (dtype != MPG_DTYPE_NONE && !mpg_dtype_is_integer(dtype))
    return mpg_infer_fail(infer, "length must be an array of integers, not %s",
                          mpg_dtype_name(dtype));
  const mpg_shape *in = &infer->inputs[0].shape;
  int axis;
  MPG_TRY(mpg_axis_normalize(params->axis, in->ndim, infer->op->name, &axis));
  mpg_shape shape = {0};
  for (int i = 0; i < in->ndim; i++)
    if (i != axis) shape.dims[shape.ndim++] = in->dims[i];
  mpg_lift(infer->op, &shape);
  return mpg_infer_expect_shape(infer, 1, &shape);
}

mpg_status mpg_infer_log_softmax(mpg_infer *infer) {
  PARAMS(log_softmax, params);
  if (params->use_length) return no_length(infer);
  return softmax_output(infer, params->axis, params->dtype, &params->temperature);
}

mpg_status mpg_infer_softmax_back(mpg_infer *infer) {
  PARAMS(softmax_back, params);
  int axis;
  MPG_TRY(mpg_infer_same(infer));
  return infer->inputs[0].shape.ndim < 0
             ? MPG_OK
             : mpg_axis_normalize(params->axis, infer->inputs[0].shape.ndim, infer->op->name,
                                  &axis);
}

/* Emits the gradient of the softmax family in the result's dtype and casts it to the input's
 * dtype. */
static void softmax_gradient(mpg_gradient *g, mpg_op_id op, int64_t axis, double scale) {
  if (!g->needed[0]) return;
  mpg_softmax_back_params params;
  memset(&params, 0, sizeof params);
  params.axis = axis;
  params.scale = scale;
  mpg_value grad = mpg_emit2(g, op, &params, g->out_grads[0], g->outputs[0]);
  mpg_cast_params cast = {.dtype = mpg_value_desc(g, g->inputs[0])->dtype};
  g->in_grads[0] = (mpg_dtype)cast.dtype == mpg_value_desc(g, g->outputs[0])->dtype
                       ? grad
                       : mpg_emit1(g, MPG_OP_Cast, &cast, grad);
}

static double inverse_of(const mpg_opt_float *temperature) {
  return temperature->present ? 1 / temperature->value : 1;
}

void mpg_gradient_softmax(mpg_gradient *g) {
  GRADIENT_PARAMS(softmax, params);
  softmax_gradient(g, MPG_OP__softmax_backward, params->axis, inverse_of(&params->temperature));
}
void mpg_gradient_softmin(mpg_gradient *g) {
  GRADIENT_PARAMS(softmax, params);
  softmax_gradient(g, MPG_OP__softmax_backward, params->axis, -inverse_of(&params->temperature));
}
void mpg_gradient_log_softmax(mpg_gradient *g) {
  GRADIENT_PARAMS(log_softmax, params);
  softmax_gradient(g, MPG_OP__log_softmax_backward, params->axis, inverse_of(&params->temperature));
}

/* Emits a sum along the axis, which is kept with size 1. */
static mpg_value sum_along(mpg_gradient *g, mpg_value value, int64_t axis) {
  mpg_shape shape = mpg_value_desc(g, g->inputs[0])->shape;
  shape.dims[axis < 0 ? axis + shape.ndim : axis] = 1;
  return mpg_emit_sum_to(g, value, &shape);
}
static mpg_value scaled(mpg_gradient *g, mpg_value a, double scale) {
  return scale == 1 ? a : mpg_emit_scalar(g, MPG_OP__mul_scalar, a, scale);
}

/* Gradient of softmax's gradient f(d, y) = c y (d - s) with s = sum(d y), where d is the output
 * gradient, y the result and c the scale. With v as the gradient of f, the gradient with respect to
 * d is f(v, y), and the gradient with respect to y is c (v (d - s) - d sum(v y)). */
void mpg_gradient_softmax_back(mpg_gradient *g) {
  GRADIENT_PARAMS(softmax_back, params);
  mpg_value d = g->inputs[0], y = g->inputs[1], v = g->out_grads[0];
  if (g->needed[0]) g->in_grads[0] = mpg_emit2(g, MPG_OP__softmax_backward, params, v, y);
  if (g->needed[1]) {
    mpg_value s = sum_along(g, mpg_multiply(g, d, y), params->axis),
              t = sum_along(g, mpg_multiply(g, v, y), params->axis);
    mpg_value first = mpg_multiply(g, v, mpg_emit2(g, MPG_OP_broadcast_sub, NULL, d, s));
    mpg_value second = mpg_emit2(g, MPG_OP_broadcast_mul, NULL, d, t);
    g->in_grads[1] =
        scaled(g, mpg_emit2(g, MPG_OP_elemwise_sub, NULL, first, second), params->scale);
  }
}

/* Gradient of log_softmax's gradient f(d, y) = c (d - exp(y) sum(d)), where d is the output
 * gradient, y the result and c the scale. With v as the gradient of f, the gradient with respect to
 * d is c (v - sum(v exp(y))), and the gradient with respect to y is -c v exp(y) sum(d). */
void mpg_gradient_log_softmax_back(mpg_gradient *g) {
  GRADIENT_PARAMS(softmax_back, params);
  mpg_value d = g->inputs[0], v = g->out_grads[0];
  mpg_value weighted = mpg_multiply(g, v, mpg_emit1(g, MPG_OP_exp, NULL, g->inputs[1]));
  if (g->needed[0])
    g->in_grads[0] =
        scaled(g, mpg_emit2(g, MPG_OP_broadcast_sub, NULL, v, sum_along(g, weighted, params->axis)),
               params->scale);
  if (g->needed[1])
    g->in_grads[1] =
        scaled(g, mpg_emit2(g, MPG_OP_broadcast_mul, NULL, weighted, sum_along(g, d, params->axis)),
               -params->scale);
}

/* --- SoftmaxActivation ------------------------------------------------------------------------ */

void mpg_compose_softmax_activation(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  GRADIENT_PARAMS(softmax_activation, params);
  mpg_softmax_params along;
  memset(&along, 0, sizeof along);
  along.axis = params->mode == 0 ? 1 : -1;
  along.dtype = MPG_DTYPE_NONE;
  if (mpg_value_desc(g, inputs[0])->shape.ndim < 2)
    mpg_gradient_fail(g, "the array must have at least 2 dimensions");
  else
    outputs[0] = mpg_emit1(g, MPG_OP_softmax, &along, inputs[0]);
}

/* --- Cross-entropy ---------------------------------------------------------------------------- */

/* Checks that label has the shape of data without its last dimension, or with size 1 there. */
static mpg_status expect_labels(mpg_infer *infer, int data, int label, mpg_shape *rows) {
  *rows = infer->inputs[data].shape;
  if (rows->ndim < 1) return mpg_infer_fail(infer, "data must have at least one dimension");
  mpg_shape kept = *rows;
  kept.dims[kept.ndim - 1] = 1;
  if (rows->dims[rows->ndim - 1] == 0 && mpg_shape_product(rows, 0, rows->ndim - 1) > 0)
    return mpg_infer_fail(infer, "data must have at least one class");
  rows->dims[--rows->ndim] = 0;
  mpg_lift(infer->op, rows);
  mpg_dtype dtype = infer->inputs[label].dtype;
  if (dtype != MPG_DTYPE_NONE && !(MPG_DTYPES_NUMERIC >> dtype & 1))
    return mpg_infer_fail(infer, "labels must be numbers, not bool");
  if (infer->inputs[label].shape.ndim == kept.ndim &&
      mpg_shape_equal(&infer->inputs[label].shape, &kept))
    return MPG_OK;
  return mpg_infer_expect_shape(infer, label, rows);
}

mpg_status mpg_infer_softmax_cross_entropy(mpg_infer *infer) {
  mpg_shape one = {0}, rows;
  mpg_lift(infer->op, &one);
  mpg_infer_set(infer, 0, &one, infer->inputs[0].dtype);
  if (!mpg_shape_known(&infer->inputs[0].shape)) return MPG_OK;
  if (infer->inputs[0].shape.ndim != 2)
    return mpg_infer_fail(infer, "data must have 2 dimensions (batch, classes)");
  return expect_labels(infer, 0, 1, &rows);
}

/* Uses _softmax_ce to recompute the statistics that the backward op reads. */
void mpg_gradient_softmax_cross_entropy(mpg_gradient *g) {
  if (!g->needed[0]) return;
  mpg_value inputs[2] = {g->inputs[0], g->inputs[1]}, outputs[3];
  mpg_emit_all(g, MPG_OP__softmax_ce, NULL, 2, inputs, 3, outputs);
  if (g->status != MPG_OK) return;
  mpg_shape rows = mpg_value_desc(g, outputs[0])->shape;
  mpg_value back[5] = {mpg_emit_broadcast_to(g, g->out_grads[0], &rows), g->inputs[0], g->inputs[1],
                       outputs[1], outputs[2]};
  g->in_grads[0] = mpg_emit(g, MPG_OP__softmax_ce_backward, NULL, 5, back);
}

/* The statistics are float32 for 16-bit data, because the backward pass needs the precision. */
mpg_status mpg_infer_softmax_ce(mpg_infer *infer) {
  mpg_dtype dtype = infer->inputs[0].dtype;
  infer->outputs[0].dtype = dtype;
  infer->outputs[1].dtype = infer->outputs[2].dtype = mpg_dtype_of_sums(dtype);
  if (!mpg_shape_known(&infer->inputs[0].shape)) return MPG_OK;
  mpg_shape rows;
  MPG_TRY(expect_labels(infer, 0, 1, &rows));
  for (int i = 0; i < 3; i++) infer->outputs[i].shape = rows;
  return MPG_OK;
}

void mpg_gradient_softmax_ce(mpg_gradient *g) {
  if (!g->needed[0]) return;
  mpg_value grad =
      mpg_has_value(g->out_grads[0]) ? g->out_grads[0] : mpg_emit_full_like(g, g->outputs[0], 0);
  mpg_value inputs[5] = {grad, g->inputs[0], g->inputs[1], g->outputs[1], g->outputs[2]};
  g->in_grads[0] = mpg_emit(g, MPG_OP__softmax_ce_backward, NULL, 5, inputs);
}

mpg_status mpg_infer_softmax_ce_back(mpg_infer *infer) {
  infer->outputs[0] = infer->inputs[1];
  if (infer->inputs[1].dtype != MPG_DTYPE_NONE)
    for (int i = 0; i < 5; i++)
      if (i != 2)
        MPG_TRY(mpg_infer_expect_dtype(
            infer, i, i < 2 ? infer->inputs[1].dtype : mpg_dtype_of_sums(infer->inputs[1].dtype)));
  if (!mpg_shape_known(&infer->inputs[1].shape)) return MPG_OK;
  mpg_shape rows;
  MPG_TRY(expect_labels(infer, 1, 2, &rows));
  MPG_TRY(mpg_infer_expect_shape(infer, 0, &rows));
  MPG_TRY(mpg_infer_expect_shape(infer, 3, &rows));
  return mpg_infer_expect_shape(infer, 4, &rows);
}

/* Gradient of f(d, x) = (p - onehot(label)) d with p = softmax(x). The statistics are functions of
 * x, so they need no gradient of their own. With v as the gradient of f, the gradient with respect
 * to d is sum(v p) minus the element of v at the label. The gradient with respect to x is the
 * gradient of softmax for the output gradient v d. */
void mpg_gradient_softmax_ce_back(mpg_gradient *g) {
  mpg_value d = g->inputs[0], label = g->inputs[2], v = g->out_grads[0];
  const mpg_shape data = mpg_value_desc(g, g->inputs[1])->shape, rows = mpg_value_desc(g, d)->shape;
  mpg_shape kept = data;
  kept.dims[kept.ndim - 1] = 1;
  mpg_softmax_params forward;
  memset(&forward, 0, sizeof forward);
  forward.axis = -1;
  forward.dtype = MPG_DTYPE_NONE;
  mpg_value p = mpg_emit1(g, MPG_OP_softmax, &forward, g->inputs[1]);
  if (g->needed[0]) {
    mpg_pick_params pick;
    memset(&pick, 0, sizeof pick);
    pick.axis = (mpg_opt_int){.value = -1, .present = 1};
    mpg_value expected =
        mpg_emit_reshape(g, mpg_emit_sum_to(g, mpg_multiply(g, v, p), &kept), &rows);
    mpg_value chosen = mpg_emit_reshape(g, mpg_emit2(g, MPG_OP_pick, &pick, v, label), &rows);
    g->in_grads[0] = mpg_emit2(g, MPG_OP_elemwise_sub, NULL, expected, chosen);
  }
  if (g->needed[1]) {
    mpg_softmax_back_params back;
    memset(&back, 0, sizeof back);
    back.axis = -1;
    back.scale = 1;
    mpg_value weighted = mpg_emit2(g, MPG_OP_broadcast_mul, NULL, v, mpg_emit_reshape(g, d, &kept));
    g->in_grads[1] = mpg_emit2(g, MPG_OP__softmax_backward, &back, weighted, p);
  }
}
