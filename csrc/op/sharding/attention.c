/* Sharding rules of attention and positions. */
#include <math.h>

#include "op/sharding/sharding.h"

#define PARAMS(structure) const mpg_##structure##_params *p = s->params

/* --- Arrays with an axis of heads ------------------------------------------------------------- */

/* Query, key and value, and the mask (batch, heads, rows, keys), whose axes of size 1 are
 * broadcast. */
typedef struct attention {
  int time;         /* 1 or 2; the heads have the other axis */
  int mask;         /* the input, or -1 */
  int batch_inputs; /* further inputs up to this one have the batch first */
} attention;

/* Returns the place of an axis of the mask, if it has one that is not broadcast. */
static mpg_place of_mask(const mpg_sharding *s, const attention *a, int axis, int64_t inner) {
  int own = a->mask < 0 ? -1 : axis - 4 + mpg_sharding_ndim(s, a->mask);
  bool present = own >= 0 && mpg_sharding_dim(s, a->mask, own) != 1;
  return mpg_place_if(present, mpg_in_digit(a->mask < 0 ? 0 : a->mask, own, 1, inner));
}

/* Adds the factors of the key heads, the batch, and the features of values. `pairs` is true if the
 * inputs 3 and 4 are further keys and values, which are the caches. Features are not a factor of
 * random calls, because all features of a value share the draws. */
static mpg_status attend(mpg_sharding *s, const attention *a, bool pairs) {
  enum { QUERY, KEY, VALUE, KEYS, VALUES, MOST = 12 };
  int heads = 3 - a->time, count = 0, last = pairs ? VALUES : VALUE;
  int64_t key_heads = mpg_sharding_dim(s, KEY, heads),
          shared = key_heads ? mpg_sharding_dim(s, QUERY, heads) / key_heads : 1;
  mpg_place batch[MOST], head[MOST];
  for (int i = QUERY; i <= last; i++) {
    batch[count] = mpg_in_axis(i, 0);
    head[count++] = mpg_in_digit(i, heads, 1, i == QUERY ? shared : 1);
  }
  batch[count] = mpg_out_axis(s, 0, 0);
  head[count++] = mpg_out_digit(s, 0, heads, 1, shared);
  bool sums = s->num_outputs > 1;
  if (sums) {
    batch[count] = mpg_out_axis(s, 1, 0);
    head[count++] = mpg_out_digit(s, 1, 1, 1, shared);
  }
  batch[count] = of_mask(s, a, 0, 1);
  head[count++] = of_mask(s, a, 1, shared);
  MPG_TRY(mpg_sharding_places(s, MPG_FACTOR_PASS, count, head));
  for (int i = last + 1; i <= a->batch_inputs; i++)
    if (i != a->mask) batch[count++] = mpg_in_axis(i, 0);
  MPG_TRY(mpg_sharding_places(s, MPG_FACTOR_PASS, count, batch));
  if (mpg_sharding_draws(s)) return MPG_OK;
  return MPG_FACTOR(s, PASS, mpg_in_axis(VALUE, 3), mpg_place_if(pairs, mpg_in_axis(VALUES, 3)),
                    mpg_out_axis(s, 0, 3));
}

/* The rows of a part are followed by `later` further rows, which sets their positions. */
static mpg_status localize_head_attention(const mpg_part_call *call, void *params) {
  mpg_head_attention_params *p = params;
  enum { BTHD };
  int time = p->layout == BTHD ? 1 : 2;
  int64_t whole = call->whole_inputs[0].shape.dims[time], rows = call->inputs[0].shape.dims[time],
          begin;
  if (rows == whole) return MPG_OK;
  MPG_TRY(mpg_part_first(call, 0, time, &begin));
  p->later += whole - rows - begin;
  return MPG_OK;
}

/* Rows of the query see all keys, so only the query is cut along time. If context parallelism is
 * Ulysses, heads are cut instead. */
mpg_status mpg_sharding_head_attention(mpg_sharding *s) {
  PARAMS(head_attention);
  enum { BTHD };
  attention a = {.time = p->layout == BTHD ? 1 : 2,
                 .mask = p->use_mask ? 3 : -1,
                 .batch_inputs = s->num_inputs - 1};
  s->localize = localize_head_attention;
  MPG_TRY(attend(s, &a, false));
  int heads = -1, before = s->num_factors;
  for (int f = 0; f < before; f++)
    if (s->factors[f].digits[0].axis == 3 - a.time) heads = f;
  MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, a.time), mpg_out_axis(s, 0, a.time),
                     mpg_out_axis(s, 1, 3), of_mask(s, &a, 2, 1)));
  if (s->num_factors > before) {
    s->factors[before].exchanged = true;
    s->factors[before].instead = heads;
  }
  if (!mpg_sharding_draws(s)) return MPG_OK;
  /* A number is drawn for each score (batch, heads, rows, keys). */
  for (int f = 0; f < s->num_factors; f++) {
    mpg_digit *drawn = &s->factors[f].drawn;
    *drawn = s->factors[f].digits[0];
    if (drawn->axis > 0) drawn->axis = drawn->axis == a.time ? 2 : 1;
  }
  mpg_sharding_set_counts(s);
  return MPG_OK;
}

mpg_status mpg_sharding_cached_attention(mpg_sharding *s) {
  PARAMS(cached_attention);
  enum { BTHD, LENGTHS = 5, MASK };
  attention a = {
      .time = p->layout == BTHD ? 1 : 2, .mask = p->use_mask ? MASK : -1, .batch_inputs = LENGTHS};
  return attend(s, &a, true);
}

/* --- Strided views ---------------------------------------------------------------------------- */

enum { BATCH, HEADS, ROWS, KEYS, WIDTH, VALUE_WIDTH }; /* sizes of _attention */
enum { OFFSET, STRIDES };                              /* in a place: offset, then strides */

/* True if an index with these strides and sizes never changes the other index. */
static bool is_apart(int64_t stride, int64_t size, int64_t other, int64_t count) {
  return other % (stride * size) == 0 || other * count <= stride;
}

/* Finds the digit of an array that an index of a view moves along. `strides` has the strides of
 * sizes[0] batches, sizes[1] heads and `rows` rows, and a row has `width` contiguous elements.
 * Returns false if the index has no digit. A view without the index has axis -1. */
static bool find_digit(const mpg_shape *shape, int64_t offset, const int64_t *strides,
                       const int64_t *sizes, int64_t rows, int64_t width, int index,
                       mpg_digit *digit) {
  int64_t stride = strides[index], size = sizes[index], step = 1;
  *digit = (mpg_digit){-1, 1, 1};
  if (!stride) return true;
  if (!is_apart(stride, size, 1, width) || !is_apart(stride, size, strides[ROWS], rows) ||
      !is_apart(stride, size, strides[1 - index], sizes[1 - index]) || offset / stride % size)
    return false;
  for (int i = shape->ndim - 1; i >= 0; step *= shape->dims[i--]) {
    int64_t all = step * shape->dims[i];
    if (stride % step || all % (stride * size)) continue;
    *digit = (mpg_digit){i, all / (stride * size), stride / step};
    return true;
  }
  return false;
}

/* Changes the offset and strides of a view for an array in which an index has `count` of `size`
 * elements. */
static void rescale(int64_t *offset, int64_t *strides, int num_strides, int index, int64_t size,
                    int64_t count) {
  int64_t block = strides[index] * size, part = strides[index] * count;
  if (!block) return;
  if (offset) *offset = *offset / block * part + *offset % block;
  for (int i = 0; i < num_strides; i++)
    if (strides[i] >= block) strides[i] = strides[i] / block * part;
}

/* The sums (batch, heads, 2, rows) show how batches and heads are divided. */
static mpg_status localize_attention(const mpg_part_call *call, void *params) {
  mpg_attention_params *p = params;
  mpg_tuple *places[] = {&p->query_at, &p->key_at, &p->value_at, &p->result_at};
  for (int k = BATCH; k <= HEADS; k++) {
    int64_t size = p->sizes.values[k], count = call->outputs[1].shape.dims[k];
    for (int i = 0; i < 4; i++)
      rescale(&places[i]->values[OFFSET], places[i]->values + STRIDES, 3, k, size, count);
    if (p->mask_at.count > 0) rescale(NULL, p->mask_at.values, 4, k, size, count);
    p->sizes.values[k] = count;
  }
  p->shape = mpg_shape_tuple(&call->outputs[0].shape);
  return MPG_OK;
}

/* Batches and heads, if they are digits of all arrays. */
mpg_status mpg_sharding_attention(mpg_sharding *s) {
  PARAMS(attention);
  enum { MASK = 3 };
  const int64_t *sizes = p->sizes.values;
  const mpg_tuple *places[] = {&p->query_at, &p->key_at, &p->value_at, &p->result_at};
  /* A number is drawn for each score (batch, heads, rows, keys). */
  bool draws = mpg_sharding_draws(s);
  s->localize = localize_attention;
  for (int k = BATCH; k <= HEADS; k++) {
    mpg_place found[6] = {mpg_out_axis(s, 1, k)};
    bool good = sizes[k] > 1;
    for (int i = 0; i < 4 && good; i++) {
      const mpg_shape *shape = i < MASK ? &s->inputs[i].shape : &s->outputs[0].shape;
      mpg_digit digit = {0};
      good = find_digit(shape, places[i]->values[OFFSET], places[i]->values + STRIDES, sizes,
                        sizes[i == 0 || i == MASK ? ROWS : KEYS],
                        sizes[i < 2 ? WIDTH : VALUE_WIDTH], k, &digit);
      found[1 + i] = i < MASK ? (mpg_place){i, digit} : (mpg_place){s->num_inputs, digit};
    }
    bool masked = p->mask_at.count > 0;
    if (good && masked) {
      found[5].array = MASK;
      good = find_digit(&s->inputs[MASK].shape, 0, p->mask_at.values, sizes, sizes[ROWS],
                        p->mask_at.values[3] ? sizes[KEYS] : 1, k, &found[5].digit);
    }
    if (!good) continue;
    MPG_TRY(mpg_sharding_places(s, MPG_FACTOR_PASS, masked ? 6 : 5, found));
    if (draws) s->factors[s->num_factors - 1].drawn = (mpg_digit){k, 1, 1};
  }
  if (draws) mpg_sharding_set_counts(s);
  return MPG_OK;
}

/* --- Positions -------------------------------------------------------------------------------- */

static mpg_status localize_rotary(const mpg_part_call *call, void *params) {
  mpg_rotary_params *p = params;
  enum { BTHD };
  int64_t begin;
  if (call->num_inputs > 1) return MPG_OK;
  MPG_TRY(mpg_part_first(call, 0, p->layout == BTHD ? 1 : 2, &begin));
  p->start += begin;
  return MPG_OK;
}

/* Without given positions, parts of the time axis start at their own position. */
mpg_status mpg_sharding_rotary(mpg_sharding *s) {
  PARAMS(rotary);
  enum { BTHD };
  int time = p->layout == BTHD ? 1 : 2;
  MPG_TRY(mpg_sharding_from_batching(s));
  s->localize = localize_rotary;
  if (s->num_inputs > 1) return MPG_OK;
  return MPG_FACTOR(s, PASS, mpg_in_axis(0, time), mpg_out_axis(s, 0, time));
}

/* True if sums of a start and multiples of a step are exact in double. */
static bool counts_exactly(double start, double step, int64_t count) {
  const double most = 0x1p53;
  return start == trunc(start) && step == trunc(step) && fabs(start) <= most &&
         fabs(step) * (double)count <= most && fabs(start) + fabs(step) * (double)count <= most;
}

static mpg_status localize_arange_like(const mpg_part_call *call, void *params) {
  mpg_arange_like_params *p = params;
  int axis = p->axis.present ? mpg_sharding_axis(p->axis.value, call->inputs[0].shape.ndim) : 0;
  int64_t begin;
  MPG_TRY(mpg_part_first(call, 0, axis, &begin));
  p->start += (double)begin * p->step;
  return MPG_OK;
}

/* Parts of the axis that is counted start at another number. */
mpg_status mpg_sharding_arange_like(mpg_sharding *s) {
  PARAMS(arange_like);
  int ndim = mpg_sharding_ndim(s, 0),
      axis = p->axis.present ? mpg_sharding_axis(p->axis.value, ndim) : 0;
  MPG_TRY(mpg_sharding_from_batching(s));
  if ((!p->axis.present && ndim != 1) || p->repeat != 1 ||
      !counts_exactly(p->start, p->step, mpg_sharding_dim(s, 0, axis)))
    return MPG_OK;
  s->localize = localize_arange_like;
  return MPG_FACTOR(s, PASS, mpg_in_axis(0, axis), mpg_out_axis(s, 0, 0));
}

static mpg_status localize_arange(const mpg_part_call *call, void *params) {
  mpg_arange_params *p = params;
  double first = p->stop.present ? p->start : 0;
  int64_t begin;
  MPG_TRY(mpg_part_first(call, 0, 0, &begin));
  p->start = first + (double)begin * p->step;
  p->stop.value = p->start + (double)call->outputs[0].shape.dims[0] * p->step;
  p->stop.present = true;
  return MPG_OK;
}

mpg_status mpg_sharding_arange(mpg_sharding *s) {
  PARAMS(arange);
  double first = p->stop.present ? p->start : 0;
  if (p->repeat != 1 || !counts_exactly(first, p->step, s->outputs[0].shape.dims[0])) return MPG_OK;
  s->localize = localize_arange;
  return MPG_FACTOR(s, PASS, mpg_out_axis(s, 0, 0));
}
