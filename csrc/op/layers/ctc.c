/* Connectionist temporal classification: data (time, batch, classes), labels (batch, length).
 * Inference and gradient. */
#include "op/infer.h"

enum { DATA, LABEL, LENGTHS };

/* Checks data, which is input `first`, and all inputs after it. Sets *batch to the number of
 * samples, or to -1 if unknown. */
static mpg_status expect_inputs(mpg_infer *infer, int first, int64_t *batch) {
  const mpg_desc *data = &infer->inputs[first + DATA];
  const mpg_shape *label = &infer->inputs[first + LABEL].shape;
  *batch = -1;
  for (int i = first + LABEL; i < infer->num_inputs; i++) {
    mpg_dtype *dtype = &infer->inputs[i].dtype;
    if (*dtype == MPG_DTYPE_NONE) *dtype = data->dtype;
    if (*dtype != MPG_DTYPE_NONE && !(MPG_DTYPES_NUMERIC >> *dtype & 1))
      return mpg_infer_fail(infer, "labels and lengths must be numbers, not bool");
  }
  if (!mpg_shape_known(&data->shape)) return MPG_OK;
  if (data->shape.ndim != 3)
    return mpg_infer_fail(infer, "data must have three dimensions: time, batch, classes");
  if (data->shape.dims[2] < 1)
    return mpg_infer_fail(infer, "data must have at least one class, the blank");
  *batch = data->shape.dims[1];
  mpg_shape samples = {.ndim = 1, .dims = {*batch}};
  for (int i = first + LENGTHS; i < infer->num_inputs; i++)
    MPG_TRY(mpg_infer_expect_shape(infer, i, &samples));
  if (mpg_shape_known(label) && (label->ndim != 2 || label->dims[0] != *batch))
    return mpg_infer_fail(infer,
                          "label must have two dimensions: batch (as data's second, %lld), length",
                          (long long)*batch);
  return MPG_OK;
}

mpg_status mpg_infer_ctc_loss(mpg_infer *infer) {
  mpg_shape samples = {.ndim = 1};
  MPG_TRY(expect_inputs(infer, 0, &samples.dims[0]));
  infer->outputs[0].dtype = infer->inputs[DATA].dtype;
  if (samples.dims[0] >= 0) infer->outputs[0].shape = samples;
  return MPG_OK;
}

mpg_status mpg_infer_ctc_loss_back(mpg_infer *infer) {
  mpg_shape samples = {.ndim = 1};
  MPG_TRY(expect_inputs(infer, 1, &samples.dims[0]));
  infer->outputs[0] = infer->inputs[1 + DATA];
  if (infer->inputs[1].dtype != MPG_DTYPE_NONE)
    MPG_TRY(mpg_infer_expect_dtype(infer, 0, infer->inputs[1].dtype));
  return samples.dims[0] >= 0 ? mpg_infer_expect_shape(infer, 0, &samples) : MPG_OK;
}

void mpg_gradient_ctc_loss(mpg_gradient *g) {
  mpg_value inputs[5] = {g->out_grads[0]};
  if (!g->needed[DATA]) return;
  for (int i = 0; i < g->num_inputs; i++) inputs[i + 1] = g->inputs[i];
  g->in_grads[DATA] = mpg_emit(g, MPG_OP__backward_CTCLoss, g->params, g->num_inputs + 1, inputs);
}

/* Cost of a softmax over all scores and of a log-sum-exp per time step and state. The states are
 * the labels and the blanks around them. Backward runs through the time steps twice, once in each
 * direction. */
mpg_cost mpg_cost_ctc_loss(const mpg_infer *call) {
  bool backward = call->op->id == MPG_OP__backward_CTCLoss;
  const mpg_shape *data = &call->inputs[backward].shape, *label = &call->inputs[backward + 1].shape;
  double steps = (double)data->dims[0] * (double)data->dims[1],
         places = 2 * (double)label->dims[1] + 1;
  return mpg_cost_of(
      call, steps * MPG_COST_FUNCTION * ((double)data->dims[2] + 2 * places * (backward ? 2 : 1)));
}
