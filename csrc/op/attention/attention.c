/* Attention: inference and gradient. Arrays are strided views, given by an offset and the strides
 * along batches, heads and rows, so that projections of any layout are read in place. */
#include "op/infer.h"

enum { BATCH, HEADS, ROWS, KEYS, WIDTH, VALUE_WIDTH, SIZES };
enum { OFFSET, BY_BATCH, BY_HEAD, BY_ROW, PLACES };
enum { DRAW_WORDS = 5 }; /* saved mpg_random_key fields: seed, call, position, run, stride */

static bool drops(const mpg_attention_params *p) { return p->p > 0; }
static bool masked(const mpg_attention_params *p) { return p->mask_at.count >= 0; }

int mpg_arity_attention(const mpg_op *op, const void *params, int given) {
  (void)op, (void)given;
  return masked(params) ? 4 : 3;
}

int mpg_arity_attention_backward(const mpg_op *op, const void *params, int given) {
  (void)op, (void)given;
  return 6 + drops(params) + masked(params);
}

int mpg_arity_attention_backward_outputs(const mpg_op *op, const void *params, int given) {
  (void)op, (void)given;
  return ((const mpg_attention_params *)params)->packed ? 1 : 3;
}

/* Checks that a view with this offset, these strides and rows of `width` elements is inside an
 * array of `size` elements. */
static mpg_status expect_inside(const mpg_infer *infer, const char *what, const mpg_tuple *place,
                                const int64_t *counts, int64_t width, int64_t size) {
  if (place->count != PLACES)
    return mpg_infer_fail(infer, "%s must be an offset and three strides", what);
  int64_t last = place->values[OFFSET], along;
  bool good = last >= 0 && !__builtin_add_overflow(last, width - 1, &last);
  for (int i = 0; i < 3 && good; i++)
    good = place->values[BY_BATCH + i] >= 0 &&
           !__builtin_mul_overflow(counts[i] - 1, place->values[BY_BATCH + i], &along) &&
           !__builtin_add_overflow(last, along, &last);
  return good && last < size ? MPG_OK
                             : mpg_infer_fail(infer, "%s exceeds the bounds of its array", what);
}

static mpg_status check(mpg_infer *infer, const mpg_desc *query, const mpg_desc *key,
                        const mpg_desc *value, const mpg_desc *mask, mpg_shape *shape) {
  const mpg_attention_params *p = infer->params;
  const int64_t *sizes = p->sizes.values;
  if (p->sizes.count != SIZES) return mpg_infer_fail(infer, "sizes must be six numbers");
  for (int i = 0; i < SIZES; i++)
    if (sizes[i] < 1) return mpg_infer_fail(infer, "sizes must be positive");
  if (p->causal && sizes[ROWS] != sizes[KEYS])
    return mpg_infer_fail(infer, "causal attention needs equally many rows and keys");
  /* The gradients of a packed key and value are written to the array of the query's gradient. */
  if (p->packed && !(mpg_shape_equal(&query->shape, &key->shape) &&
                     mpg_shape_equal(&query->shape, &value->shape)))
    return mpg_infer_fail(infer, "packed attention needs one array as query, key and value");
  int64_t queries[3] = {sizes[BATCH], sizes[HEADS], sizes[ROWS]},
          keys[3] = {sizes[BATCH], sizes[HEADS], sizes[KEYS]};
  MPG_TRY(mpg_infer_tuple_shape(infer, &p->shape, shape));
  MPG_TRY(expect_inside(infer, "result", &p->result_at, queries, sizes[VALUE_WIDTH],
                        mpg_shape_size(shape)));
  if (mpg_shape_known(&query->shape))
    MPG_TRY(expect_inside(infer, "query", &p->query_at, queries, sizes[WIDTH],
                          mpg_shape_size(&query->shape)));
  if (mpg_shape_known(&key->shape))
    MPG_TRY(
        expect_inside(infer, "key", &p->key_at, keys, sizes[WIDTH], mpg_shape_size(&key->shape)));
  if (mpg_shape_known(&value->shape))
    MPG_TRY(expect_inside(infer, "value", &p->value_at, keys, sizes[VALUE_WIDTH],
                          mpg_shape_size(&value->shape)));
  if (!masked(p)) return MPG_OK;
  if (p->mask_at.count != 4) return mpg_infer_fail(infer, "mask must be four strides");
  if (p->mask_at.values[3] != 0 && p->mask_at.values[3] != 1)
    return mpg_infer_fail(infer, "the keys of a mask must be contiguous");
  mpg_tuple place = {
      .count = PLACES,
      .values = {0, p->mask_at.values[0], p->mask_at.values[1], p->mask_at.values[2]}};
  if (!mpg_shape_known(&mask->shape)) return MPG_OK;
  return expect_inside(infer, "mask", &place, queries, p->mask_at.values[3] ? sizes[KEYS] : 1,
                       mpg_shape_size(&mask->shape));
}

/* Checks that the inputs outside [from, to) have the dtype of input 0. */
static mpg_status same_dtypes(mpg_infer *infer, int from, int to) {
  for (int i = 1; i < infer->num_inputs; i++)
    if (i < from || i >= to) MPG_TRY(mpg_infer_expect_dtype(infer, i, infer->inputs[0].dtype));
  return MPG_OK;
}

mpg_status mpg_infer_attention(mpg_infer *infer) {
  const mpg_attention_params *p = infer->params;
  mpg_shape shape;
  MPG_TRY(same_dtypes(infer, 0, 0));
  if (drops(p) && infer->num_outputs < 3) return mpg_infer_fail(infer, "p must be 0");
  MPG_TRY(check(infer, &infer->inputs[0], &infer->inputs[1], &infer->inputs[2],
                masked(p) ? &infer->inputs[3] : NULL, &shape));
  mpg_shape rows = {
      .ndim = 4,
      .dims = {p->sizes.values[BATCH], p->sizes.values[HEADS], 2, p->sizes.values[ROWS]}};
  mpg_infer_set(infer, 0, &shape, infer->inputs[0].dtype);
  mpg_infer_set(infer, 1, &rows, mpg_dtype_of_sums(infer->inputs[0].dtype));
  if (infer->num_outputs > 2)
    mpg_infer_set(infer, 2, &(mpg_shape){.ndim = 1, .dims = {DRAW_WORDS}}, MPG_INT64);
  return MPG_OK;
}

mpg_status mpg_infer_attention_backward(mpg_infer *infer) {
  const mpg_attention_params *p = infer->params;
  mpg_shape shape;
  MPG_TRY(same_dtypes(infer, 5, 6 + drops(p)));
  MPG_TRY(mpg_infer_expect_dtype(infer, 5, mpg_dtype_of_sums(infer->inputs[0].dtype)));
  MPG_TRY(check(infer, &infer->inputs[1], &infer->inputs[2], &infer->inputs[3],
                masked(p) ? &infer->inputs[6 + drops(p)] : NULL, &shape));
  MPG_TRY(mpg_infer_expect_shape(infer, 0, &shape));
  MPG_TRY(mpg_infer_expect_shape(infer, 4, &shape));
  mpg_shape rows = {
      .ndim = 4,
      .dims = {p->sizes.values[BATCH], p->sizes.values[HEADS], 2, p->sizes.values[ROWS]}};
  MPG_TRY(mpg_infer_expect_shape(infer, 5, &rows));
  if (drops(p)) {
    MPG_TRY(mpg_infer_expect_dtype(infer, 6, MPG_INT64));
    MPG_TRY(mpg_infer_expect_shape(infer, 6, &(mpg_shape){.ndim = 1, .dims = {DRAW_WORDS}}));
  }
  for (int i = 0; i < infer->num_outputs; i++)
    mpg_infer_set(infer, i, &infer->inputs[1 + i].shape, infer->inputs[1 + i].dtype);
  return MPG_OK;
}

void mpg_gradient_attention(mpg_gradient *g) {
  const mpg_attention_params *p = g->params;
  if (masked(p) && g->needed[3]) mpg_gradient_fail(g, "internal: a mask requires a gradient");
  if (!mpg_has_value(g->out_grads[0]) || !(g->needed[0] || g->needed[1] || g->needed[2])) return;
  mpg_value inputs[8] = {g->out_grads[0], g->inputs[0],  g->inputs[1],
                         g->inputs[2],    g->outputs[0], g->outputs[1]},
            grads[3];
  int count = 6;
  if (drops(p)) inputs[count++] = g->outputs[2];
  if (masked(p)) inputs[count++] = g->inputs[3];
  mpg_emit_all(g, MPG_OP__backward_attention, p, count, inputs, 3, grads);
  for (int i = 0; i < (p->packed ? 1 : 3); i++)
    if (g->needed[i]) g->in_grads[i] = grads[i];
}

/* Cost of the matrix products. Forward has two: query by key (the scores), and weights by value.
 * Backward recomputes the scores and has two gradient products for each forward product. */
static mpg_cost cost(const mpg_infer *call, int by_width, int by_value_width) {
  const mpg_attention_params *p = call->params;
  const int64_t *n = p->sizes.values;
  double scores = (double)n[BATCH] * (double)n[HEADS] * (double)n[ROWS] * (double)n[KEYS];
  if (p->causal) scores /= 2;
  return mpg_cost_of(call,
                     scores * (2.0 * by_width * (double)n[WIDTH] +
                               2.0 * by_value_width * (double)n[VALUE_WIDTH] + MPG_COST_FUNCTION));
}

mpg_cost mpg_cost_attention(const mpg_infer *call) { return cost(call, 1, 1); }
mpg_cost mpg_cost_attention_backward(const mpg_infer *call) { return cost(call, 3, 2); }
