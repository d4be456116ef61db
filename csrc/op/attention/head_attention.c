/* Attention over arrays with an axis of heads: inference, composition, gradient and batching. */
#include <math.h>

#include "op/batching/batching.h"
#include "op/infer.h"
#include "op/attention/attention_call.h"

enum { QUERY, KEY, VALUE, MASK };
enum { DRAW_WORDS = 5 }; /* saved fields of a random key, as for _dropout_attention */

/* Options that the ops share, from either struct of parameters. */
typedef struct options {
  int32_t layout;
  int64_t window;
  bool causal, mask, lengths, segments, drops;
  int64_t all_keys; /* of the sequence, if the keys are a part of it, or -1 */
  int64_t later;
} options;
#define OPTIONS_OF(from)          \
  (options){(from)->layout,       \
            (from)->window,       \
            (from)->causal,       \
            (from)->use_mask,     \
            (from)->use_lengths,  \
            (from)->use_segments, \
            (from)->p > 0,        \
            -1,                   \
            0}
static options options_of(const mpg_op *op, const void *params) {
  if (op->id == MPG_OP__contrib_attention)
    return OPTIONS_OF((const mpg_contrib_attention_params *)params);
  const mpg_head_attention_params *p = params;
  options o = OPTIONS_OF(p);
  if (p->part) o.all_keys = p->keys;
  o.later = p->later;
  return o;
}

int mpg_arity_head_attention_backward(const mpg_op *op, const void *params, int given) {
  options o = options_of(op, params);
  (void)given;
  return 6 + o.drops + o.mask + o.lengths + o.segments;
}

/* --- Inference -------------------------------------------------------------------------------- */

/* Checks the shapes of query, key and value. */
static mpg_status check_heads(mpg_infer *infer, const mpg_shape *query, const mpg_shape *key,
                              const mpg_shape *value, int time) {
  const mpg_shape *shapes[] = {query, key, value};
  static const char *const names[] = {"query", "key", "value"};
  for (int i = 0; i < 3; i++)
    if (shapes[i]->ndim != 4)
      return mpg_infer_fail(infer, "%s must have four dimensions: batch, %s, features", names[i],
                            time == 1 ? "time, heads" : "heads, time");
  int heads = 3 - time;
  if (key->dims[0] != query->dims[0] || value->dims[0] != query->dims[0])
    return mpg_infer_fail(infer, "query, key and value must have the same batch size");
  if (key->dims[time] != value->dims[time])
    return mpg_infer_fail(infer, "key and value must have the same length, not %lld and %lld",
                          (long long)key->dims[time], (long long)value->dims[time]);
  if (key->dims[heads] != value->dims[heads])
    return mpg_infer_fail(infer,
                          "key and value must have the same number of heads, not %lld and %lld",
                          (long long)key->dims[heads], (long long)value->dims[heads]);
  if (key->dims[3] != query->dims[3])
    return mpg_infer_fail(infer, "query and key must have the same features, not %lld and %lld",
                          (long long)query->dims[3], (long long)key->dims[3]);
  if (key->dims[heads] < 1 || query->dims[heads] % key->dims[heads])
    return mpg_infer_fail(infer,
                          "the number of query heads must be a multiple of the key heads, not %lld "
                          "and %lld",
                          (long long)query->dims[heads], (long long)key->dims[heads]);
  return MPG_OK;
}

/* Checks that the mask broadcasts to (batch, heads, rows, keys). */
static mpg_status check_mask(mpg_infer *infer, int input, const mpg_shape *query,
                             const mpg_shape *key, int time) {
  const mpg_shape *mask = &infer->inputs[input].shape;
  const int64_t wanted[] = {query->dims[0], query->dims[3 - time], query->dims[time],
                            key->dims[time]};
  bool good = mask->ndim <= 4;
  for (int i = 3, k = mask->ndim - 1; good && k >= 0; i--, k--)
    good = mask->dims[k] == 1 || mask->dims[k] == wanted[i];
  if (good) return MPG_OK;
  return mpg_infer_fail(infer,
                        "mask must broadcast to (batch, heads, rows, keys), which is (%lld, %lld, "
                        "%lld, %lld)",
                        (long long)wanted[0], (long long)wanted[1], (long long)wanted[2],
                        (long long)wanted[3]);
}

/* Checks a dtype. The public op casts integers and masks; the ops that it emits are strict. */
static mpg_status check_dtype(mpg_infer *infer, int input, bool mask, bool public) {
  mpg_dtype *dtype = &infer->inputs[input].dtype, first = infer->inputs[0].dtype;
  if (*dtype == MPG_DTYPE_NONE) {
    if (!mask) *dtype = MPG_INT32;
    return MPG_OK;
  }
  if (mask) {
    bool good = *dtype == MPG_BOOL || (MPG_DTYPES_FLOAT & MPG_DTYPE_BIT(*dtype));
    if (good && !public && *dtype != MPG_BOOL)
      good = *dtype == first || *dtype == mpg_dtype_of_sums(first);
    return good ? MPG_OK : mpg_infer_fail(infer, "mask must be bool (true is seen) or float");
  }
  if (public ? !(MPG_DTYPES_NUMERIC & MPG_DTYPE_BIT(*dtype)) : *dtype != MPG_INT32)
    return mpg_infer_fail(infer, "lengths and segments must be integers");
  return MPG_OK;
}

/* Checks query (input `first`), key and value, and the optional arrays from input `more` on. Sets
 * *known if all shapes of query, key and value are known. */
static mpg_status check(mpg_infer *infer, int first, int more, bool *known) {
  options o = options_of(infer->op, infer->params);
  int time = mpg_attention_time(o.layout);
  const mpg_shape *query = &infer->inputs[first].shape, *key = &infer->inputs[first + 1].shape,
                  *value = &infer->inputs[first + 2].shape;
  bool public = infer->op->id == MPG_OP__contrib_attention;
  for (int i = 1; i < first + 3; i++)
    MPG_TRY(mpg_infer_expect_dtype(infer, i, infer->inputs[0].dtype));
  int mask = more, lengths = mask + o.mask, segments = lengths + o.lengths;
  if (o.mask) MPG_TRY(check_dtype(infer, mask, true, public));
  if (o.lengths) MPG_TRY(check_dtype(infer, lengths, false, public));
  if (o.segments) MPG_TRY(check_dtype(infer, segments, false, public));
  *known = mpg_shape_known(query) && mpg_shape_known(key) && mpg_shape_known(value);
  if (!*known) return MPG_OK;
  MPG_TRY(check_heads(infer, query, key, value, time));
  if (o.mask && mpg_shape_known(&infer->inputs[mask].shape))
    MPG_TRY(check_mask(infer, mask, query, key, time));
  if (o.lengths)
    MPG_TRY(
        mpg_infer_expect_shape(infer, lengths, &(mpg_shape){.ndim = 1, .dims = {query->dims[0]}}));
  if (!o.segments) return MPG_OK;
  int64_t all_keys = o.all_keys < 0 ? key->dims[time] : o.all_keys;
  if (query->dims[time] > all_keys)
    return mpg_infer_fail(infer,
                          "with segments, the rows must be the last keys, so %lld rows "
                          "need at least as long keys, not %lld",
                          (long long)query->dims[time], (long long)all_keys);
  return mpg_infer_expect_shape(infer, segments,
                                &(mpg_shape){.ndim = 2, .dims = {query->dims[0], all_keys}});
}

static mpg_shape result_of(const mpg_shape *query, const mpg_shape *value) {
  mpg_shape shape = *query;
  shape.dims[3] = value->dims[3];
  return shape;
}
static mpg_shape sums_of(const mpg_shape *query, int time) {
  return (mpg_shape){.ndim = 4,
                     .dims = {query->dims[0], query->dims[3 - time], 2, query->dims[time]}};
}

mpg_status mpg_infer_head_attention(mpg_infer *infer) {
  bool known;
  const mpg_desc *in = infer->inputs;
  if (infer->op->id == MPG_OP__head_attention && options_of(infer->op, infer->params).drops)
    return mpg_infer_fail(infer, "p must be 0");
  MPG_TRY(check(infer, 0, 3, &known));
  infer->outputs[0].dtype = in[0].dtype;
  if (!known) return MPG_OK;
  infer->outputs[0].shape = result_of(&in[QUERY].shape, &in[VALUE].shape);
  if (infer->num_outputs > 1) {
    int time = mpg_attention_time(options_of(infer->op, infer->params).layout);
    mpg_shape sums = sums_of(&in[QUERY].shape, time);
    mpg_infer_set(infer, 1, &sums, mpg_dtype_of_sums(in[0].dtype));
  }
  if (infer->num_outputs > 2)
    mpg_infer_set(infer, 2, &(mpg_shape){.ndim = 1, .dims = {DRAW_WORDS}}, MPG_INT64);
  return MPG_OK;
}

mpg_status mpg_infer_head_attention_backward(mpg_infer *infer) {
  bool known, drops = options_of(infer->op, infer->params).drops;
  const mpg_desc *in = infer->inputs;
  MPG_TRY(mpg_infer_expect_dtype(infer, 4, in[0].dtype));
  MPG_TRY(mpg_infer_expect_dtype(infer, 5, mpg_dtype_of_sums(in[0].dtype)));
  MPG_TRY(check(infer, 1, 6 + drops, &known));
  if (drops) {
    MPG_TRY(mpg_infer_expect_dtype(infer, 6, MPG_INT64));
    MPG_TRY(mpg_infer_expect_shape(infer, 6, &(mpg_shape){.ndim = 1, .dims = {DRAW_WORDS}}));
  }
  if (known) {
    int time = mpg_attention_time(options_of(infer->op, infer->params).layout);
    mpg_shape result = result_of(&in[1].shape, &in[3].shape), sums = sums_of(&in[1].shape, time);
    MPG_TRY(mpg_infer_expect_shape(infer, 0, &result));
    MPG_TRY(mpg_infer_expect_shape(infer, 4, &result));
    MPG_TRY(mpg_infer_expect_shape(infer, 5, &sums));
  }
  for (int i = 0; i < infer->num_outputs; i++)
    mpg_infer_set(infer, i, &in[1 + i].shape, in[1 + i].dtype);
  return MPG_OK;
}

mpg_status mpg_infer_cached_attention(mpg_infer *infer) {
  enum { KEYS = 3, VALUES, LENGTHS, SEEN };
  const mpg_cached_attention_params *p = infer->params;
  const mpg_desc *in = infer->inputs;
  int time = mpg_attention_time(p->layout);
  for (int i = 1; i < LENGTHS; i++) MPG_TRY(mpg_infer_expect_dtype(infer, i, in[0].dtype));
  MPG_TRY(mpg_infer_expect_dtype(infer, LENGTHS, MPG_INT32));
  if (p->use_mask) MPG_TRY(check_dtype(infer, SEEN, true, false));
  infer->outputs[0].dtype = in[0].dtype;
  for (int i = 0; i < LENGTHS; i++)
    if (!mpg_shape_known(&in[i].shape)) return MPG_OK;
  MPG_TRY(check_heads(infer, &in[QUERY].shape, &in[KEY].shape, &in[VALUE].shape, time));
  if (in[KEY].shape.dims[time] != in[QUERY].shape.dims[time])
    return mpg_infer_fail(infer, "query, key and value must have the same number of new rows");
  mpg_shape keys = in[KEY].shape, values = in[VALUE].shape;
  if (in[KEYS].shape.ndim != 4)
    return mpg_infer_fail(infer, "the caches keys and values must have four dimensions");
  keys.dims[time] = values.dims[time] = in[KEYS].shape.dims[time];
  MPG_TRY(mpg_infer_expect_shape(infer, KEYS, &keys));
  MPG_TRY(mpg_infer_expect_shape(infer, VALUES, &values));
  MPG_TRY(mpg_infer_expect_shape(infer, LENGTHS,
                                 &(mpg_shape){.ndim = 1, .dims = {in[QUERY].shape.dims[0]}}));
  if (p->use_mask && mpg_shape_known(&in[SEEN].shape))
    MPG_TRY(check_mask(infer, SEEN, &in[QUERY].shape, &in[KEYS].shape, time));
  infer->outputs[0].shape = result_of(&in[QUERY].shape, &in[VALUE].shape);
  return MPG_OK;
}

/* --- Composition and gradient ----------------------------------------------------------------- */

/* Limits lengths to numbers that int32 can hold. The limit does not depend on the number of keys,
 * so that exported symbols accept any number. 65504 is the largest float16. */
static mpg_value emit_limited(mpg_gradient *g, mpg_value lengths, mpg_dtype dtype) {
  mpg_clip_params params = {.a_min = 0, .a_max = dtype == MPG_FLOAT16 ? 65504 : 1 << 30};
  return mpg_emit1(g, MPG_OP_clip, &params, lengths);
}

void mpg_compose_contrib_attention(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_contrib_attention_params *p = g->params;
  mpg_dtype dtype = mpg_value_desc(g, inputs[QUERY])->dtype, sums = mpg_dtype_of_sums(dtype);
  mpg_value arrays[6];
  mpg_head_attention_params params;
  memset(&params, 0, sizeof params);
  params.layout = p->layout, params.causal = p->causal, params.window = p->window;
  params.softcap = p->softcap, params.p = g->train ? p->p : 0;
  params.use_mask = p->use_mask, params.use_lengths = p->use_lengths;
  params.use_segments = p->use_segments;
  int64_t width = mpg_value_desc(g, inputs[QUERY])->shape.dims[3];
  params.scale = p->scale.present ? p->scale.value : 1 / sqrt((double)(width ? width : 1));
  params.keys = mpg_value_desc(g, inputs[KEY])->shape.dims[mpg_attention_time(p->layout)];
  for (int i = 0; i < g->num_inputs; i++) {
    arrays[i] = inputs[i];
    if (i < MASK) continue;
    mpg_dtype own = mpg_value_desc(g, inputs[i])->dtype;
    if (i == MASK && p->use_mask) {
      if (own != MPG_BOOL && own != dtype) arrays[i] = mpg_emit_cast(g, inputs[i], sums);
    } else if (own != MPG_INT32) {
      if (i == MASK + p->use_mask && p->use_lengths) arrays[i] = emit_limited(g, inputs[i], own);
      arrays[i] = mpg_emit_cast(g, arrays[i], MPG_INT32);
    }
  }
  outputs[0] = mpg_emit(g, params.p > 0 ? MPG_OP__dropout_head_attention : MPG_OP__head_attention,
                        &params, g->num_inputs, arrays);
}

void mpg_gradient_head_attention(mpg_gradient *g) {
  const mpg_head_attention_params *p = g->params;
  if (p->use_mask && g->needed[MASK]) {
    mpg_gradient_fail(g,
                      "the mask requires a gradient, which this op doesn't compute; detach() "
                      "the mask, or compose the attention of batch_dot and softmax");
    return;
  }
  if (!mpg_has_value(g->out_grads[0]) || !(g->needed[0] || g->needed[1] || g->needed[2])) return;
  /* The gradient of the sums of a merged part are the statistics of the merged rows. */
  mpg_head_attention_params params = *p;
  params.merged = mpg_has_value(g->out_grads[1]);
  mpg_value inputs[10] = {g->out_grads[0],
                          g->inputs[QUERY],
                          g->inputs[KEY],
                          g->inputs[VALUE],
                          params.merged ? g->out_grads[0] : g->outputs[0],
                          params.merged ? g->out_grads[1] : g->outputs[1]},
            grads[3];
  int count = 6;
  if (p->p > 0) inputs[count++] = g->outputs[2];
  for (int i = MASK; i < g->num_inputs; i++) inputs[count++] = g->inputs[i];
  mpg_emit_all(g, MPG_OP__backward_head_attention, &params, count, inputs, 3, grads);
  for (int i = 0; i < 3; i++)
    if (g->needed[i]) g->in_grads[i] = grads[i];
}

/* --- Cost and batching ------------------------------------------------------------------------ */

/* Returns the cost of `scores` scores. The query is input `first`. The products of a score are
 * by_width times as long as a key, and by_value_width times as long as a value. */
static mpg_cost cost_of_scores(const mpg_infer *call, double scores, int first, int by_width,
                               int by_value_width) {
  return mpg_cost_of(
      call, scores * (2.0 * by_width * (double)call->inputs[first].shape.dims[3] +
                      2.0 * by_value_width * (double)call->inputs[first + 2].shape.dims[3] +
                      MPG_COST_FUNCTION));
}
static mpg_cost cost(const mpg_infer *call, int first, int by_width, int by_value_width) {
  options o = options_of(call->op, call->params);
  int time = mpg_attention_time(o.layout);
  const int64_t *query = call->inputs[first].shape.dims, *key = call->inputs[first + 1].shape.dims;
  double rows = (double)query[time], seen = (double)key[time];
  if (o.causal && rows > 1 && o.later > -rows) seen -= (rows < seen ? rows : seen) / 2;
  if (o.window && (double)o.window < seen) seen = (double)o.window;
  return cost_of_scores(call, (double)query[0] * (double)query[3 - time] * rows * seen, first,
                        by_width, by_value_width);
}
mpg_cost mpg_cost_head_attention(const mpg_infer *call) { return cost(call, 0, 1, 1); }
mpg_cost mpg_cost_head_attention_backward(const mpg_infer *call) { return cost(call, 1, 3, 2); }
/* Assumes that half of the cache is in use. */
mpg_cost mpg_cost_cached_attention(const mpg_infer *call) {
  const mpg_cached_attention_params *p = call->params;
  int time = mpg_attention_time(p->layout);
  const int64_t *query = call->inputs[QUERY].shape.dims;
  double seen = (double)call->inputs[3].shape.dims[time] / 2;
  if (p->window && (double)p->window < seen) seen = (double)p->window;
  return cost_of_scores(call, (double)query[0] * (double)query[1] * (double)query[2] * seen, 0, 1,
                        1);
}

/* Divides the batch axis of all arrays. A mask may be the same for all batch entries. */
mpg_status mpg_batching_head_attention(mpg_batching *b) {
  const mpg_head_attention_params *p = b->params;
  int first = mpg_batching_first(b);
  for (int i = 0; i < b->num_inputs; i++) {
    bool mask = i == MASK && p->use_mask;
    if (mpg_batching_divided(b, i)) {
      if (b->in[i].axis != 0 || (mask && mpg_batching_ndim(b, i) < 4))
        return mpg_batching_fail_along(b, i);
      if (b->in[i].outer != b->in[first].outer || b->in[i].inner != b->in[first].inner)
        return mpg_batching_fail(b, i, "its rows are in another order than those of other inputs");
    } else if (b->in[i].kind == MPG_BATCH_SAME &&
               !(mask && (mpg_batching_ndim(b, i) < 4 || b->inputs[i].shape.dims[0] == 1))) {
      return mpg_batching_fail(b, first, "another input is the same for every micro-batch");
    }
  }
  for (int k = 0; k < (b->num_outputs < 2 ? b->num_outputs : 2); k++)
    mpg_batching_set(b, k, 0, first);
  return MPG_OK;
}
