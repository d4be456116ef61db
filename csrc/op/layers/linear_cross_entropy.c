/* linear_cross_entropy: inference, cost, gradient and batching rule.
 *
 * The loss of a position is known only after all scores of its row, and the gradient of the weight
 * sums over positions with the factors that arrive from the loss of the whole model. So forward
 * keeps two numbers per position, and backward computes the scores again, block by block. */
#include "op/batching/batching.h"
#include "op/infer.h"

enum { DATA, WEIGHT, LABEL, BIAS };

/* Checks data, weight, label and bias, which are inputs `first` on; `bias` is the index of the bias
 * or -1. Stores the shape of label in *rows, which stays unknown if that of data is unknown. */
static mpg_status check(mpg_infer *infer, int first, int bias, mpg_shape *rows) {
  mpg_dtype dtype = infer->inputs[first].dtype, *label = &infer->inputs[first + LABEL].dtype;
  const mpg_shape *data = &infer->inputs[first].shape, *weight = &infer->inputs[first + 1].shape;
  *rows = MPG_SHAPE_UNKNOWN;
  if (dtype != MPG_DTYPE_NONE) {
    MPG_TRY(mpg_infer_expect_dtype(infer, first + WEIGHT, dtype));
    if (bias >= 0) MPG_TRY(mpg_infer_expect_dtype(infer, bias, dtype));
  }
  if (*label == MPG_DTYPE_NONE) *label = MPG_FLOAT32;
  if (!(MPG_DTYPES_NUMERIC >> *label & 1))
    return mpg_infer_fail(infer, "labels must be numbers, not bool");
  if (weight->ndim >= 0 && weight->ndim != 2)
    return mpg_infer_fail(infer, "weight must have 2 axes (classes, units)");
  if (bias >= 0 && weight->ndim == 2)
    MPG_TRY(
        mpg_infer_expect_shape(infer, bias, &(mpg_shape){.ndim = 1, .dims = {weight->dims[0]}}));
  if (data->ndim < 0) return MPG_OK;
  if (data->ndim < 2)
    return mpg_infer_fail(infer, "data must have at least 2 axes (positions, units)");
  mpg_shape fitting = {.ndim = 2, .dims = {-1, data->dims[data->ndim - 1]}}, given = *weight;
  if (!mpg_shape_merge(&given, &fitting))
    return mpg_infer_fail(infer, "weight must have the shape (classes, %lld): data has %lld units",
                          (long long)fitting.dims[1], (long long)fitting.dims[1]);
  infer->inputs[first + WEIGHT].shape = given;
  *rows = *data;
  rows->dims[--rows->ndim] = 0;
  MPG_TRY(mpg_infer_expect_shape(infer, first + LABEL, rows));
  if (given.dims[0] == 0 && mpg_shape_known(rows) && mpg_shape_size(rows) > 0)
    return mpg_infer_fail(infer, "weight must have at least one class");
  return MPG_OK;
}

mpg_status mpg_infer_linear_cross_entropy(mpg_infer *infer) {
  mpg_shape rows;
  MPG_TRY(check(infer, 0, infer->num_inputs > BIAS ? BIAS : -1, &rows));
  mpg_dtype dtype = infer->inputs[DATA].dtype;
  for (int i = 0; i < infer->num_outputs; i++)
    mpg_infer_set(infer, i, &rows,
                  dtype == MPG_DTYPE_NONE ? MPG_DTYPE_NONE : mpg_dtype_of_sums(dtype));
  return MPG_OK;
}

/* Inputs of backward. */
enum { GRAD, BACK_DATA, BACK_WEIGHT, BACK_LABEL, MAX, LOG_SUM, BACK_BIAS };

int mpg_arity_linear_cross_entropy_backward(const mpg_op *op, const void *params, int given) {
  (void)op, (void)given;
  return __builtin_popcountll(
      (uint64_t)((const mpg_linear_cross_entropy_backward_params *)params)->gradients);
}

mpg_status mpg_infer_linear_cross_entropy_backward(mpg_infer *infer) {
  const mpg_linear_cross_entropy_backward_params *p = infer->params;
  mpg_shape rows;
  int bias = infer->num_inputs > BACK_BIAS ? BACK_BIAS : -1, out = 0;
  if (p->gradients & 4 && bias < 0)
    return mpg_infer_fail(infer, "gradients must not include the bias; there is none");
  MPG_TRY(check(infer, BACK_DATA, bias, &rows));
  mpg_dtype dtype = infer->inputs[BACK_DATA].dtype;
  const int statistics[] = {GRAD, MAX, LOG_SUM}, wanted[] = {BACK_DATA, BACK_WEIGHT, BACK_BIAS};
  for (int i = 0; i < 3; i++) {
    if (dtype != MPG_DTYPE_NONE)
      MPG_TRY(mpg_infer_expect_dtype(infer, statistics[i], mpg_dtype_of_sums(dtype)));
    if (rows.ndim >= 0) MPG_TRY(mpg_infer_expect_shape(infer, statistics[i], &rows));
  }
  for (int i = 0; i < 3; i++)
    if (p->gradients >> i & 1) infer->outputs[out++] = infer->inputs[wanted[i]];
  return MPG_OK;
}

void mpg_gradient_linear_cross_entropy(mpg_gradient *g) {
  const mpg_linear_cross_entropy_params *p = g->params;
  bool biased = g->num_inputs > BIAS;
  const int wanted[] = {DATA, WEIGHT, BIAS};
  mpg_linear_cross_entropy_backward_params params = {
      .ignore_index = p->ignore_index, .z_loss = p->z_loss, .softcap = p->softcap};
  for (int i = 0; i < 2 + biased; i++) params.gradients |= (int64_t)g->needed[wanted[i]] << i;
  if (!mpg_has_value(g->out_grads[0]) || !params.gradients) return;
  mpg_value inputs[7] = {g->out_grads[0],  g->inputs[DATA], g->inputs[WEIGHT],
                         g->inputs[LABEL], g->outputs[1],   g->outputs[2]},
            grads[3];
  if (biased) inputs[BACK_BIAS] = g->inputs[BIAS];
  mpg_emit_all(g, MPG_OP__backward_linear_cross_entropy, &params, 6 + biased, inputs, 3, grads);
  if (g->status != MPG_OK) return;
  for (int i = 0, out = 0; i < 2 + biased; i++)
    if (params.gradients >> i & 1) g->in_grads[wanted[i]] = grads[out++];
}

/* Cost of `products` products of all scores' size. */
static mpg_cost cost(const mpg_infer *call, int weight, int products) {
  const mpg_shape *data = &call->inputs[weight - 1].shape, *shape = &call->inputs[weight].shape;
  double scores = (double)mpg_shape_product(data, 0, data->ndim - 1) * (double)shape->dims[0];
  return mpg_cost_of(call, scores * (2.0 * products * (double)shape->dims[1] + MPG_COST_FUNCTION));
}

mpg_cost mpg_cost_linear_cross_entropy(const mpg_infer *call) { return cost(call, WEIGHT, 1); }
mpg_cost mpg_cost_linear_cross_entropy_backward(const mpg_infer *call) {
  int64_t gradients = ((const mpg_linear_cross_entropy_backward_params *)call->params)->gradients;
  return cost(call, BACK_WEIGHT, 1 + __builtin_popcountll((uint64_t)gradients & 3));
}

/* The batch is the same axis of data and label, and all rows use the whole weight and bias. */
mpg_status mpg_batching_linear_cross_entropy(mpg_batching *b) {
  int first = mpg_batching_first(b), other = first == DATA ? LABEL : DATA;
  for (int i = WEIGHT; i < b->num_inputs; i++)
    if (i != LABEL && mpg_batching_divided(b, i))
      return mpg_batching_fail(b, i, "all rows use this whole input");
  int own = b->in[first].axis;
  if (own == mpg_batching_ndim(b, DATA) - 1) return mpg_batching_fail_along(b, first);
  if (b->in[other].kind == MPG_BATCH_SAME)
    return mpg_batching_fail(b, first, "%s is the same for every micro-batch",
                             other == LABEL ? "label" : "data");
  if (mpg_batching_divided(b, other)) {
    if (b->in[other].axis != own) return mpg_batching_fail_along(b, other);
    if (b->in[other].outer != b->in[first].outer || b->in[other].inner != b->in[first].inner)
      return mpg_batching_fail(b, other, "its inputs have their rows in different orders");
  }
  for (int k = 0; k < b->num_outputs; k++) mpg_batching_set(b, k, own, first);
  return MPG_OK;
}
