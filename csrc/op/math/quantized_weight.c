/* Products with packed weights: inference, cost, gradient and batching rule. */
#include "op/math/quantized_weight.h"

#include "op/batching/batching.h"
#include "op/infer.h"

static const char *name_of(const mpg_quantized_weight *w) {
  static const char *const names[] = {"int8", "int4", "nf4", "q8_0", "q4_0", "q4_k", "q6_k"};
  return names[w->format];
}

/* Checks the dtype of scales or zeros. An unknown one becomes float32. */
static mpg_status check_scale_dtype(mpg_infer *infer, const mpg_quantized_weight *w, int input,
                                    const char *name) {
  mpg_dtype *dtype = &infer->inputs[input].dtype;
  if (*dtype == MPG_DTYPE_NONE) *dtype = MPG_FLOAT32;
  mpg_dtype data = w->data_input < 0 ? MPG_FLOAT64 : infer->inputs[w->data_input].dtype;
  bool wide = *dtype == MPG_FLOAT64 && (data == MPG_FLOAT64 || data == MPG_DTYPE_NONE);
  if (*dtype == MPG_FLOAT32 || *dtype == MPG_FLOAT16 || *dtype == MPG_BFLOAT16 || wide)
    return MPG_OK;
  return mpg_infer_fail(infer, "%s must be float32, float16 or bfloat16%s", name,
                        w->data_input < 0 ? ", or float64" : ", or have the dtype of data");
}

/* Checks the parameters, and the dtypes and shapes of packed, scales and zeros. */
static mpg_status check(mpg_infer *infer, const mpg_quantized_weight *w, int64_t group) {
  mpg_shape whole = {.ndim = 2, .dims = {w->units, w->in_units}};
  if (mpg_shape_check(&whole, MPG_FLOAT64, NULL) != MPG_OK)
    return mpg_infer_fail(infer, "the weight is too large");
  int64_t block = mpg_weight_block(w->format);
  if (w->in_units % block)
    return mpg_infer_fail(infer, "in_units must be a multiple of %lld for format '%s', not %lld",
                          (long long)block, name_of(w), (long long)w->in_units);
  if (!mpg_weight_has_scales(w->format)) {
    if (group)
      return mpg_infer_fail(
          infer, "group must be 0 for format '%s', whose blocks contain their scales", name_of(w));
    if (w->scales_input >= 0)
      return mpg_infer_fail(infer, "format '%s' has its scales in packed; omit scales", name_of(w));
  } else if (w->scales_input < 0) {
    return mpg_infer_fail(infer, "format '%s' needs scales", name_of(w));
  } else if (w->in_units % w->group) {
    return mpg_infer_fail(infer, "group must divide in_units (%lld), which %lld does not",
                          (long long)w->in_units, (long long)group);
  }
  if (w->zeros_input >= 0 && w->format != MPG_WEIGHT_INT4)
    return mpg_infer_fail(infer, "format '%s' has no zeros; only 'int4' has", name_of(w));
  MPG_TRY(mpg_infer_expect_dtype(infer, w->packed_input,
                                 w->format == MPG_WEIGHT_INT8 ? MPG_INT8 : MPG_UINT8));
  MPG_TRY(mpg_infer_expect_shape(infer, w->packed_input,
                                 &(mpg_shape){.ndim = 2, .dims = {w->units, w->row_bytes}}));
  mpg_shape scales = {.ndim = 2, .dims = {w->units, w->groups}};
  if (w->scales_input >= 0) {
    MPG_TRY(check_scale_dtype(infer, w, w->scales_input, "scales"));
    MPG_TRY(mpg_infer_expect_shape(infer, w->scales_input, &scales));
  }
  if (w->zeros_input < 0) return MPG_OK;
  MPG_TRY(check_scale_dtype(infer, w, w->zeros_input, "zeros"));
  return mpg_infer_expect_shape(infer, w->zeros_input, &scales);
}

mpg_status mpg_infer_quantized_dot(mpg_infer *infer) {
  const mpg_quantized_dot_params *p = infer->params;
  mpg_quantized_weight w = mpg_quantized_weight_of(infer->op, p);
  mpg_shape data = infer->inputs[0].shape;
  mpg_dtype dtype = infer->inputs[0].dtype;
  MPG_TRY(check(infer, &w, p->group));
  if (w.bias_input >= 0) {
    if (dtype != MPG_DTYPE_NONE) MPG_TRY(mpg_infer_expect_dtype(infer, w.bias_input, dtype));
    MPG_TRY(
        mpg_infer_expect_shape(infer, w.bias_input, &(mpg_shape){.ndim = 1, .dims = {w.units}}));
  }
  infer->outputs[0].dtype = dtype;
  if (data.ndim < 0) return MPG_OK;
  if (data.ndim == 0) return mpg_infer_fail(infer, "data must have at least one axis");
  mpg_shape wanted = data;
  wanted.dims[data.ndim - 1] = w.in_units;
  MPG_TRY(mpg_infer_expect_shape(infer, 0, &wanted));
  wanted.dims[data.ndim - 1] = w.units;
  infer->outputs[0].shape = wanted;
  return MPG_OK;
}

/* The shapes of data and output differ in the size of the last axis only. */
mpg_status mpg_infer_inputs_quantized_dot(mpg_infer *infer) {
  mpg_shape data = infer->outputs[0].shape;
  if (data.ndim < 1) return MPG_OK;
  data.dims[data.ndim - 1] = ((const mpg_quantized_dot_params *)infer->params)->in_units;
  return mpg_infer_input_shape(infer, 0, &data);
}

mpg_status mpg_infer_dequantize_weight(mpg_infer *infer) {
  const mpg_dequantize_weight_params *p = infer->params;
  mpg_quantized_weight w = mpg_quantized_weight_of(infer->op, p);
  if (!mpg_dtype_is_float((mpg_dtype)p->dtype))
    return mpg_infer_fail(infer, "dtype must be a float dtype");
  MPG_TRY(check(infer, &w, p->group));
  mpg_infer_set(infer, 0, &(mpg_shape){.ndim = 2, .dims = {w.units, w.in_units}},
                (mpg_dtype)p->dtype);
  return MPG_OK;
}

/* Cost: one multiplication and one addition for each element of data and each unit. */
mpg_cost mpg_cost_quantized_dot(const mpg_infer *call) {
  return mpg_cost_of(call, 2 * (double)mpg_shape_size(&call->inputs[0].shape) *
                               (double)((const mpg_quantized_dot_params *)call->params)->units);
}

void mpg_gradient_quantized_dot(mpg_gradient *g) {
  const mpg_quantized_dot_params *p = g->params;
  mpg_quantized_weight w = mpg_quantized_weight_of(g->op, p);
  mpg_desc data = *mpg_value_desc(g, g->inputs[0]);
  int64_t rows = mpg_shape_product(&data.shape, 0, data.shape.ndim - 1);
  mpg_value grad =
      mpg_emit_reshape(g, g->out_grads[0], &(mpg_shape){.ndim = 2, .dims = {rows, w.units}});
  if (g->needed[0]) {
    mpg_dequantize_weight_params dense = {.units = p->units,
                                          .in_units = p->in_units,
                                          .format = p->format,
                                          .group = p->group,
                                          .use_scales = p->use_scales,
                                          .use_zeros = p->use_zeros,
                                          .dtype = data.dtype};
    mpg_value weight = mpg_emit(g, MPG_OP__contrib_dequantize_weight, &dense,
                                1 + p->use_scales + p->use_zeros, g->inputs + w.packed_input);
    mpg_value product =
        mpg_emit2(g, MPG_OP_dot, &(mpg_dot_params){.forward_stype = -1}, grad, weight);
    g->in_grads[0] = mpg_emit_reshape(g, product, &data.shape);
  }
  if (w.bias_input >= 0 && g->needed[w.bias_input])
    g->in_grads[w.bias_input] =
        mpg_emit_sum_to(g, grad, &(mpg_shape){.ndim = 1, .dims = {w.units}});
}

/* The batch may be any axis of data except the last one, the features. */
mpg_status mpg_batching_quantized_dot(mpg_batching *b) {
  MPG_TRY(mpg_batching_data(b));
  return b->in[0].axis == mpg_batching_ndim(b, 0) - 1 ? mpg_batching_fail_along(b, 0) : MPG_OK;
}
