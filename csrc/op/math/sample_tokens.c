/* sample_tokens: inference. */
#include "op/infer.h"

mpg_status mpg_infer_sample_tokens(mpg_infer *infer) {
  const mpg_sample_tokens_params *p = infer->params;
  const mpg_shape *logits = &infer->inputs[0].shape;
  if (p->repetition_penalty <= 0) return mpg_infer_fail(infer, "repetition_penalty must be > 0");
  if (p->repetition_penalty != 1 && infer->num_inputs < 3)
    return mpg_infer_fail(infer, "repetition_penalty needs history");
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, MPG_INT64));
  if (infer->num_inputs > 2) MPG_TRY(mpg_infer_expect_dtype(infer, 2, MPG_INT32));
  infer->outputs[0].dtype = MPG_INT32;
  if (logits->ndim < 0) return MPG_OK;
  if (logits->ndim != 2)
    return mpg_infer_fail(infer, "logits must have shape (requests, tokens), but have %d axes",
                          logits->ndim);
  if (logits->dims[1] == 0 || logits->dims[1] > INT32_MAX)
    return mpg_infer_fail(infer, "logits must have between 1 and 2^31 - 1 tokens");
  mpg_shape keys = {.ndim = 2, .dims = {logits->dims[0], 2}},
            tokens = {.ndim = 1, .dims = {logits->dims[0]}};
  MPG_TRY(mpg_infer_expect_shape(infer, 1, &keys));
  if (infer->num_inputs > 2 && infer->inputs[2].shape.ndim >= 0) {
    const mpg_shape *history = &infer->inputs[2].shape;
    if (history->ndim != 2 ||
        (history->dims[0] >= 0 && logits->dims[0] >= 0 && history->dims[0] != logits->dims[0]))
      return mpg_infer_fail(infer, "history must have shape (requests, length)");
  }
  mpg_infer_set(infer, 0, &tokens, MPG_INT32);
  return MPG_OK;
}
