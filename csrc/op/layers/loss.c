/* Output layers and losses with custom gradients. Inference and gradients. */
#include "op/formula/arithmetic.h"
#include "op/infer.h"

#define PARAMS(structure, name) const mpg_##structure##_params *name = infer->params
#define GRADIENT_PARAMS(structure, name) const mpg_##structure##_params *name = g->params

static mpg_status same_dtype(mpg_infer *infer) {
  mpg_dtype dtype = infer->inputs[0].dtype;
  if (dtype != MPG_DTYPE_NONE) MPG_TRY(mpg_infer_expect_dtype(infer, 1, dtype));
  infer->outputs[0] = infer->inputs[0];
  return MPG_OK;
}

mpg_status mpg_infer_softmax_output(mpg_infer *infer) {
  PARAMS(softmax_output, params);
  MPG_TRY(same_dtype(infer));
  const mpg_shape *data = &infer->inputs[0].shape;
  mpg_shape *label = &infer->inputs[1].shape;
  if (!mpg_shape_known(data)) return MPG_OK;
  if (data->ndim < (params->multi_output ? 2 : 1))
    return mpg_infer_fail(infer, "data has too few dimensions");
  /* A label with the shape of data holds probabilities instead of class indices. */
  if (label->ndim >= 0 && mpg_shape_known(label) && mpg_shape_equal(label, data)) return MPG_OK;
  if (params->multi_output) {
    mpg_shape flat = {.ndim = 2, .dims = {data->dims[0], mpg_shape_product(data, 2, data->ndim)}},
              without = {0}, kept = *data;
    for (int i = 0; i < data->ndim; i++)
      if (i != 1) without.dims[without.ndim++] = data->dims[i];
    kept.dims[1] = 1;
    if (mpg_shape_known(label) &&
        (mpg_shape_equal(label, &without) || mpg_shape_equal(label, &kept)))
      return MPG_OK;
    return mpg_infer_expect_shape(infer, 1, label->ndim == without.ndim ? &without : &flat);
  }
  mpg_shape rows = *data;
  rows.dims[--rows.ndim] = 0;
  if (!params->preserve_shape && data->ndim != 2 && label->ndim == 1 &&
      label->dims[0] == data->dims[0])
    return MPG_OK;
  return mpg_infer_expect_shape(infer, 1, &rows);
}

mpg_status mpg_infer_softmax_output_back(mpg_infer *infer) {
  MPG_TRY(mpg_infer_softmax_output(infer));
  if (infer->num_inputs < 3) return MPG_OK;
  if (infer->inputs[0].dtype != MPG_DTYPE_NONE)
    MPG_TRY(mpg_infer_expect_dtype(infer, 2, infer->inputs[0].dtype));
  return mpg_infer_expect_shape(infer, 2, &infer->inputs[0].shape);
}

void mpg_gradient_softmax_output(mpg_gradient *g) {
  GRADIENT_PARAMS(softmax_output, params);
  mpg_value inputs[3] = {g->outputs[0], g->inputs[1], g->out_grads[0]};
  if (g->needed[0] && (!params->out_grad || mpg_has_value(g->out_grads[0])))
    g->in_grads[0] =
        mpg_emit(g, MPG_OP__backward_SoftmaxOutput, params, params->out_grad ? 3 : 2, inputs);
}

mpg_status mpg_infer_regression_output(mpg_infer *infer) {
  MPG_TRY(same_dtype(infer));
  const mpg_shape *data = &infer->inputs[0].shape, *label = &infer->inputs[1].shape;
  if (!mpg_shape_known(data)) return MPG_OK;
  if (mpg_shape_known(label)) {
    bool rows = label->ndim > 0 && data->ndim > 0 && label->dims[0] == data->dims[0];
    if (!(rows || mpg_shape_equal(label, data)) || mpg_shape_size(label) != mpg_shape_size(data))
      return mpg_infer_fail(
          infer, "label must have the number of elements and the first dimension of data");
    return MPG_OK;
  }
  mpg_shape column = {.ndim = 1, .dims = {data->dims[0]}};
  return mpg_infer_expect_shape(
      infer, 1, data->ndim == 2 && data->dims[1] == 1 && label->ndim < 0 ? &column : data);
}

/* Emits output - label, in the shape of the output. */
static mpg_value residual(mpg_gradient *g) {
  return mpg_emit2(g, MPG_OP_elemwise_sub, NULL, g->outputs[0],
                   mpg_emit_reshape(g, g->inputs[1], &mpg_value_desc(g, g->outputs[0])->shape));
}

static double per_row(mpg_gradient *g) {
  const mpg_regression_output_params *params = g->params;
  const mpg_shape *label = &mpg_value_desc(g, g->inputs[1])->shape;
  int64_t elements = mpg_shape_product(label, 1, label->ndim);
  return params->grad_scale / (double)(elements > 0 ? elements : 1);
}

void mpg_gradient_linear_regression(mpg_gradient *g) {
  if (g->needed[0])
    g->in_grads[0] = mpg_emit_number(g, MPG_OP__mul_scalar, residual(g), per_row(g));
}

void mpg_gradient_mae_regression(mpg_gradient *g) {
  if (g->needed[0])
    g->in_grads[0] = mpg_emit_number(g, MPG_OP__mul_scalar,
                                     mpg_emit1(g, MPG_OP_sign, NULL, residual(g)), per_row(g));
}

mpg_status mpg_infer_svm_output(mpg_infer *infer) {
  MPG_TRY(same_dtype(infer));
  const mpg_shape *data = &infer->inputs[0].shape;
  if (!mpg_shape_known(data)) return MPG_OK;
  if (data->ndim < 1) return mpg_infer_fail(infer, "data must have at least one dimension");
  mpg_shape rows = {.ndim = 1, .dims = {data->dims[0]}};
  return mpg_infer_expect_shape(infer, 1, &rows);
}

/* Gradient of the hinge loss. The loss of a class is max(0, margin - sign * score), squared unless
 * use_linear. `sign` is 1 for the labeled class and -1 for all other classes. */
void mpg_gradient_svm_output(mpg_gradient *g) {
  GRADIENT_PARAMS(svm_output, params);
  if (!g->needed[0] || g->status != MPG_OK) return;
  mpg_desc output = *mpg_value_desc(g, g->outputs[0]);
  mpg_shape rows = {
      .ndim = 2,
      .dims = {output.shape.dims[0], mpg_shape_product(&output.shape, 1, output.shape.ndim)}};
  mpg_one_hot_params classes = {.depth = rows.dims[1],
                                .on_value = 1,
                                .off_value = -1,
                                .dtype = mpg_dtype_of_sums(output.dtype)};
  mpg_value sign = mpg_emit1(g, MPG_OP_one_hot, &classes, g->inputs[1]);
  mpg_value score = mpg_multiply(g, sign, mpg_widen(g, mpg_emit_reshape(g, g->outputs[0], &rows)));
  mpg_value slope = mpg_emit1(g, MPG_OP_relu, NULL, mpg_minus_from(g, params->margin, score));
  double weight = -params->regularization_coefficient;
  slope = params->use_linear ? mpg_emit1(g, MPG_OP_sign, NULL, slope) : mpg_times(g, slope, 2);
  mpg_value grad = mpg_times(g, mpg_multiply(g, sign, slope), weight);
  g->in_grads[0] = mpg_emit_reshape(g, mpg_emit_cast(g, grad, output.dtype), &output.shape);
}

/* The gradient is grad_scale, divided according to `normalization`. */
void mpg_gradient_make_loss_layer(mpg_gradient *g) {
  enum { BATCH, NONE, VALID };
  GRADIENT_PARAMS(make_loss_layer, params);
  if (!g->needed[0] || g->status != MPG_OK) return;
  mpg_desc data = *mpg_value_desc(g, g->inputs[0]);
  int64_t rows = mpg_shape_product(&data.shape, 0, data.shape.ndim - 1);
  double divisor = params->normalization == BATCH && rows > 1 ? (double)rows : 1;
  if (params->normalization != VALID) {
    g->in_grads[0] = mpg_emit_full_like(g, g->inputs[0], params->grad_scale / divisor);
    return;
  }
  mpg_value valid =
      mpg_emit_scalar(g, MPG_OP__greater_scalar, mpg_widen(g, g->inputs[0]), params->valid_thresh);
  mpg_shape one = {.ndim = 1, .dims = {1}};
  mpg_value count = mpg_emit_scalar(
      g, MPG_OP__maximum_scalar,
      mpg_emit_sum_to(g,
                      mpg_emit_reshape(
                          g, valid, &(mpg_shape){.ndim = 1, .dims = {mpg_shape_size(&data.shape)}}),
                      &one),
      1);
  mpg_value scale = mpg_emit_cast(g, mpg_over(g, params->grad_scale, count), data.dtype);
  for (one.ndim = 0; one.ndim < data.shape.ndim; one.ndim++) one.dims[one.ndim] = 1;
  g->in_grads[0] = mpg_emit_broadcast_to(g, mpg_emit_reshape(g, scale, &one), &data.shape);
}

/* --- IdentityAttachKLSparseReg ---------------------------------------------------------------- */
mpg_status mpg_infer_sparse_reg(mpg_infer *infer) {
  const mpg_desc *data = &infer->inputs[0];
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, mpg_dtype_of_sums(data->dtype)));
  infer->outputs[0] = *data;
  if (data->shape.ndim < 0) return MPG_OK;
  if (data->shape.ndim != 2) return mpg_infer_fail(infer, "data must have two dimensions");
  mpg_shape units = {.ndim = 1, .dims = {data->shape.dims[1]}};
  return mpg_infer_expect_shape(infer, 1, &units);
}

mpg_status mpg_infer_attach_gradient(mpg_infer *infer) {
  infer->outputs[0] = infer->inputs[0];
  return MPG_OK;
}

void mpg_gradient_attach_gradient(mpg_gradient *g) {
  if (!g->needed[0]) return;
  mpg_desc data = *mpg_value_desc(g, g->inputs[0]);
  mpg_value arrives = mpg_has_value(g->out_grads[0]) ? mpg_widen(g, g->out_grads[0]) : MPG_NO_VALUE,
            sum = mpg_has_value(arrives) ? mpg_add(g, arrives, g->inputs[1])
                                         : mpg_emit_broadcast_to(g, g->inputs[1], &data.shape);
  if (g->status == MPG_OK) g->in_grads[0] = mpg_emit_cast(g, sum, data.dtype);
}

void mpg_compose_sparse_reg(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  GRADIENT_PARAMS(sparse_reg, params);
  if (!g->train) {
    outputs[0] = mpg_emit1(g, MPG_OP__copy, NULL, inputs[0]);
    return;
  }
  const int64_t rows = 0;
  double target = params->sparseness_target;
  mpg_value data = mpg_widen(g, mpg_emit1(g, MPG_OP__detach, NULL, inputs[0]));
  mpg_value mean = mpg_emit_mean_over(g, data, 1, &rows);
  /* Computes the new moving average with an SGD step. The average is passed as the momentum state
   * and the mean as the gradient. The weight is zero, so the step returns the new average. */
  mpg_sgd_mom_params step = {.lr = params->momentum - 1,
                             .momentum = params->momentum,
                             .rescale_grad = 1,
                             .clip_gradient = -1};
  mpg_value average = mpg_emit3(g, MPG_OP_sgd_mom_update, &step,
                                mpg_emit_full_like(g, inputs[1], 0), mean, inputs[1]);
  mpg_value derivative = mpg_subtract(g, mpg_over(g, 1 - target, mpg_minus_from(g, 1, average)),
                                      mpg_over(g, target, average));
  outputs[0] = mpg_emit2(g, MPG_OP__attach_gradient, NULL, inputs[0],
                         mpg_times(g, derivative, params->penalty));
}
