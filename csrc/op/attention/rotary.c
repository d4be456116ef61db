/* rotary: inference and gradient. */
#include "op/attention/rotary.h"

#include "op/infer.h"

/* Checks the parameters for data with `size` features per head. */
static mpg_status check_params(mpg_infer *infer, int64_t size) {
  const mpg_rotary_params *p = infer->params;
  int64_t dims = p->dims ? p->dims : size;
  if (dims > size || dims % 2 || dims > 2 * MPG_ROTARY_MOST_PAIRS)
    return mpg_infer_fail(
        infer, "dims must be an even number up to the features of a head, %lld, and up to %d",
        (long long)size, 2 * MPG_ROTARY_MOST_PAIRS);
  if (p->base <= 0 || p->factor <= 0) return mpg_infer_fail(infer, "base and factor must be > 0");
  if (p->scaling > MPG_ROTARY_LINEAR && p->original_length <= 0)
    return mpg_infer_fail(infer, "this scaling needs original_length");
  if (p->scaling == MPG_ROTARY_LLAMA3 && !(p->high_freq_factor > p->low_freq_factor))
    return mpg_infer_fail(infer, "high_freq_factor must be larger than low_freq_factor");
  if (p->scaling == MPG_ROTARY_YARN && (p->base == 1 || !(p->beta_fast > 0) || !(p->beta_slow > 0)))
    return mpg_infer_fail(infer, "yarn needs a base other than 1, and beta_fast and beta_slow > 0");
  if (p->scaling == MPG_ROTARY_LONGROPE && p->factors.count != dims / 2)
    return mpg_infer_fail(infer, "longrope needs %lld factors, one for each pair, but got %d",
                          (long long)dims / 2, (int)p->factors.count);
  for (int i = 0; p->scaling == MPG_ROTARY_LONGROPE && i < p->factors.count; i++)
    if (!(p->factors.values[i] > 0)) return mpg_infer_fail(infer, "factors must be > 0");
  if (p->scaling == MPG_ROTARY_LONGROPE && !p->attention_factor.present && p->original_length <= 1)
    return mpg_infer_fail(infer, "longrope needs an attention_factor or original_length > 1");
  return MPG_OK;
}

mpg_status mpg_infer_rotary(mpg_infer *infer) {
  const mpg_rotary_params *p = infer->params;
  const mpg_desc *data = &infer->inputs[0];
  infer->outputs[0].dtype = data->dtype;
  if (infer->num_inputs > 1) {
    mpg_dtype dtype = infer->inputs[1].dtype;
    if (dtype != MPG_INT32 && dtype != MPG_INT64)
      return mpg_infer_fail(infer, "positions must be int32 or int64");
  }
  if (data->shape.ndim < 0) return MPG_OK;
  if (data->shape.ndim != 4)
    return mpg_infer_fail(infer, "data must have 4 axes, as layout says, but it has %d",
                          data->shape.ndim);
  int64_t batch = data->shape.dims[0],
          time = data->shape.dims[p->layout == MPG_ROTARY_BTHD ? 1 : 2];
  if (data->shape.dims[3] >= 0) MPG_TRY(check_params(infer, data->shape.dims[3]));
  if (infer->num_inputs > 1 && infer->inputs[1].shape.ndim >= 0) {
    mpg_shape each = {.ndim = 2, .dims = {batch, time}}, shared = {.ndim = 1, .dims = {time}};
    MPG_TRY(mpg_infer_expect_shape(infer, 1, infer->inputs[1].shape.ndim == 1 ? &shared : &each));
  }
  mpg_infer_set(infer, 0, &data->shape, data->dtype);
  return MPG_OK;
}

/* The gradient is the rotation back, times the same factor; its gradient is the rotation. */
static void emit_rotation(mpg_gradient *g, mpg_op_id op) {
  mpg_value inputs[2] = {g->out_grads[0], g->num_inputs > 1 ? g->inputs[1] : MPG_NO_VALUE};
  if (mpg_has_value(inputs[0]) && g->needed[0])
    mpg_emit_all(g, op, g->params, g->num_inputs, inputs, 1, g->in_grads);
}
void mpg_gradient_rotary(mpg_gradient *g) { emit_rotation(g, MPG_OP__backward_rotary); }
void mpg_gradient_rotary_back(mpg_gradient *g) { emit_rotation(g, MPG_OP__contrib_rotary); }
