/* Merging of attention to parts of the keys: inference, gradient and batching.
 *
 * Ring attention computes the attention of a row to each part of the keys, and merges the results
 * by the largest score and the sum of exponentials of each part (online softmax).
 *
 * The gradient of a part needs the weights of its keys in the merged row, which follow from the
 * row's log-sum-exp, and the inner product of the merged result and its gradient. So the gradient
 * of a merged `output` is passed on unchanged to both parts, and as the gradient of `sums` the
 * parts receive these two numbers of each row (_attention_statistics) instead of a derivative. The
 * results of the parts are therefore not kept for the backward pass. Only _head_attention,
 * _dropout_head_attention and _merge_attention may compute the inputs of a merge.
 *
 * Source: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite
 * Context", 2023. */
#include "op/attention/attention_call.h"
#include "op/batching/batching.h"
#include "op/infer.h"

/* Checks that input `sums` has the shape of the sums of input `output`. */
static mpg_status check_sums(mpg_infer *infer, int output, int sums) {
  const mpg_shape *shape = &infer->inputs[output].shape;
  int time = mpg_attention_time(((const mpg_merge_attention_params *)infer->params)->layout);
  MPG_TRY(mpg_infer_expect_dtype(infer, sums, mpg_dtype_of_sums(infer->inputs[output].dtype)));
  if (!mpg_shape_known(shape)) return MPG_OK;
  if (shape->ndim != 4) return mpg_infer_fail(infer, "output must have four dimensions");
  mpg_shape wanted = {.ndim = 4,
                      .dims = {shape->dims[0], shape->dims[3 - time], 2, shape->dims[time]}};
  return mpg_infer_expect_shape(infer, sums, &wanted);
}

mpg_status mpg_infer_merge_attention(mpg_infer *infer) {
  enum { OUTPUT, SUMS, PART, PART_SUMS };
  MPG_TRY(mpg_infer_expect_dtype(infer, PART, infer->inputs[OUTPUT].dtype));
  MPG_TRY(mpg_infer_expect_shape(infer, PART, &infer->inputs[OUTPUT].shape));
  MPG_TRY(check_sums(infer, OUTPUT, SUMS));
  MPG_TRY(check_sums(infer, PART, PART_SUMS));
  for (int i = OUTPUT; i <= SUMS; i++)
    mpg_infer_set(infer, i, &infer->inputs[i].shape, infer->inputs[i].dtype);
  return MPG_OK;
}

mpg_status mpg_infer_attention_statistics(mpg_infer *infer) {
  enum { GRAD, OUTPUT, SUMS };
  MPG_TRY(mpg_infer_expect_dtype(infer, OUTPUT, infer->inputs[GRAD].dtype));
  MPG_TRY(mpg_infer_expect_shape(infer, OUTPUT, &infer->inputs[GRAD].shape));
  MPG_TRY(check_sums(infer, OUTPUT, SUMS));
  mpg_infer_set(infer, 0, &infer->inputs[SUMS].shape, infer->inputs[SUMS].dtype);
  return MPG_OK;
}

/* Only the last merge of a chain computes the statistics. The merges before it pass them on. */
void mpg_gradient_merge_attention(mpg_gradient *g) {
  if (!mpg_has_value(g->out_grads[0])) return;
  mpg_value inputs[] = {g->out_grads[0], g->outputs[0], g->outputs[1]},
            statistics = g->out_grads[1];
  if (!mpg_has_value(statistics))
    statistics = mpg_emit(g, MPG_OP__attention_statistics, g->params, 3, inputs);
  for (int i = 0; i < 4; i++)
    if (g->needed[i]) g->in_grads[i] = i % 2 ? statistics : g->out_grads[0];
}

mpg_status mpg_batching_merge_attention(mpg_batching *b) {
  int first = mpg_batching_first(b);
  for (int i = 0; i < b->num_inputs; i++)
    if (b->in[i].kind != MPG_BATCH_DIVIDED || b->in[i].axis != 0 ||
        b->in[i].outer != b->in[first].outer || b->in[i].inner != b->in[first].inner)
      return mpg_batching_fail_along(b, i);
  for (int i = 0; i < b->num_outputs; i++) mpg_batching_set(b, i, 0, first);
  return MPG_OK;
}
