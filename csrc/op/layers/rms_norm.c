/* rms_norm: inference and gradients. */
#include "op/formula/arithmetic.h"
#include "op/infer.h"

/* Checks that data has an axis and that gamma, input `gamma`, is a vector of its last axis. Sets
 * *rms to the shape of the root mean squares. */
static mpg_status check(mpg_infer *infer, const mpg_desc *data, int gamma, mpg_shape *rms) {
  *rms = data->shape;
  if (data->shape.ndim < 0) return MPG_OK;
  if (!data->shape.ndim) return mpg_infer_fail(infer, "data must have at least one axis");
  mpg_shape vector = {.ndim = 1, .dims = {rms->dims[rms->ndim - 1]}};
  if (gamma < infer->num_inputs) MPG_TRY(mpg_infer_expect_shape(infer, gamma, &vector));
  rms->dims[rms->ndim - 1] = 1;
  return MPG_OK;
}

mpg_status mpg_infer_rms_norm(mpg_infer *infer) {
  const mpg_desc *data = &infer->inputs[0];
  mpg_shape rms;
  MPG_TRY(mpg_infer_same_dtype(infer));
  infer->outputs[1].dtype = mpg_dtype_of_sums(data->dtype);
  MPG_TRY(check(infer, data, 1, &rms));
  mpg_infer_set(infer, 0, &data->shape, data->dtype);
  mpg_infer_set(infer, 1, &rms, mpg_dtype_of_sums(data->dtype));
  return MPG_OK;
}

int mpg_arity_rms_norm_backward_outputs(const mpg_op *op, const void *params, int given) {
  (void)op, (void)params;
  return given > 3 ? 2 : 1; /* with gamma: its gradient */
}

mpg_status mpg_infer_rms_norm_backward(mpg_infer *infer) {
  const mpg_desc *data = &infer->inputs[1];
  mpg_shape rms;
  MPG_TRY(mpg_infer_expect_dtype(infer, 0, data->dtype));
  MPG_TRY(mpg_infer_expect_dtype(infer, 2, mpg_dtype_of_sums(data->dtype)));
  if (infer->num_inputs > 3) MPG_TRY(mpg_infer_expect_dtype(infer, 3, data->dtype));
  MPG_TRY(check(infer, data, 3, &rms));
  if (data->shape.ndim >= 0) {
    MPG_TRY(mpg_infer_expect_shape(infer, 0, &data->shape));
    MPG_TRY(mpg_infer_expect_shape(infer, 2, &rms));
  }
  mpg_infer_set(infer, 0, &data->shape, data->dtype);
  if (infer->num_outputs > 1) mpg_infer_set(infer, 1, &infer->inputs[3].shape, data->dtype);
  return MPG_OK;
}

void mpg_gradient_rms_norm(mpg_gradient *g) {
  if (!mpg_has_value(g->out_grads[0])) return;
  bool scaled = g->num_inputs > 1;
  mpg_value inputs[4] = {g->out_grads[0], g->inputs[0], g->outputs[1],
                         scaled ? g->inputs[1] : MPG_NO_VALUE},
            grads[2];
  mpg_emit_all(g, MPG_OP__backward_rms_norm, g->params, 3 + scaled, inputs, 1 + scaled, grads);
  for (int i = 0; i <= scaled; i++)
    if (g->needed[i]) g->in_grads[i] = grads[i];
}

/* The forward op on (data, gamma), for second-order gradients. */
static void emit_rms_norm(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_rms_norm_params *p = g->params;
  mpg_shape rms = mpg_value_desc(g, g->inputs[2])->shape;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype;
  mpg_value x = mpg_widen(g, inputs[0]),
            mean = mpg_emit_mean(g, mpg_emit1(g, MPG_OP_square, NULL, x), &rms);
  mpg_value y = mpg_multiply(g, x, mpg_emit1(g, MPG_OP_rsqrt, NULL, mpg_plus(g, mean, p->eps)));
  if (g->num_inputs > 3) y = mpg_multiply(g, y, mpg_plus(g, mpg_widen(g, inputs[1]), p->offset));
  outputs[0] = mpg_emit_cast(g, y, dtype);
}

/* Gradient of the backward op: (out_grad, data, rms, gamma) -> gradients of data and gamma. */
void mpg_gradient_rms_norm_back(mpg_gradient *g) {
  static const int inputs[] = {1, 3}, out_grads[] = {0};
  mpg_gradient_written_out(
      g, &(mpg_written_out){g->num_inputs > 3 ? 2 : 1, 1, inputs, out_grads, emit_rms_norm});
}
