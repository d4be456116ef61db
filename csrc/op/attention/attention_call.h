/* Sizes, strides and options of a call of attention, read from the parameters of each kind of op in
 * one place. The kernels of all backends use this header. */
#ifndef MPG_OP_ATTENTION_ATTENTION_CALL_H
#define MPG_OP_ATTENTION_ATTENTION_CALL_H

#include <string.h>

#include "op/kernel.h"

/* Offset of the first element, and strides along batches, heads and rows. Elements of a row are
 * contiguous. */
typedef struct mpg_attention_place {
  int64_t offset, by_batch, by_head, by_row;
} mpg_attention_place;

typedef struct mpg_attention_call {
  int64_t batch, heads, rows, keys, width, value_width;
  int64_t group; /* query heads per key head */
  mpg_attention_place query, key, value, result;
  int64_t mask_batch, mask_head, mask_row, mask_key; /* strides of the mask */
  /* Indices among the inputs; -1 if missing. `query` is that of the query, which key and value
   * follow. */
  int query_input, mask_input, lengths_input, segments_input, draw_input;
  double scale, softcap, p;
  int64_t window; /* 0 if unlimited */
  bool causal, packed;
  bool empty_is_zero; /* rows that see no key give 0, else NaN */
  int64_t later;      /* rows after these in the whole query */
  int64_t all_keys;   /* keys of the sequence that the keys are a part of */
  int64_t before;     /* keys before the part */
  bool merged;        /* backward: the sums are _attention_statistics */
  bool cached;        /* the rows are at positions lengths[b] to lengths[b] + rows - 1 */
} mpg_attention_call;

/* Index of the time axis of a layout, whose heads have the other inner axis. */
static inline int mpg_attention_time(int32_t layout) { return layout == 0 ? 1 : 2; }

static inline mpg_attention_place mpg_attention_place_at(const mpg_tuple *at) {
  mpg_attention_place place = {at->values[0], at->values[1], at->values[2], at->values[3]};
  return place;
}
static inline mpg_attention_place mpg_attention_place_in(const mpg_shape *shape, int32_t layout) {
  const int64_t *d = shape->dims;
  bool time_first = mpg_attention_time(layout) == 1;
  mpg_attention_place place = {0, d[1] * d[2] * d[3], time_first ? d[3] : d[2] * d[3],
                               time_first ? d[2] * d[3] : d[3]};
  return place;
}

/* Reads a call of _attention, _dropout_attention or _backward_attention. */
static inline mpg_attention_call mpg_attention_read_strided(const mpg_kernel_call *call,
                                                            bool backward) {
  const mpg_attention_params *p = (const mpg_attention_params *)call->params;
  const int64_t *s = p->sizes.values, *m = p->mask_at.values;
  mpg_attention_call a;
  memset(&a, 0, sizeof a);
  a.batch = s[0], a.heads = s[1], a.rows = s[2], a.keys = s[3], a.width = s[4],
  a.value_width = s[5];
  a.group = 1;
  a.all_keys = a.keys;
  a.query = mpg_attention_place_at(&p->query_at);
  a.key = mpg_attention_place_at(&p->key_at);
  a.value = mpg_attention_place_at(&p->value_at);
  a.result = mpg_attention_place_at(&p->result_at);
  a.query_input = backward;
  a.draw_input = backward && p->p > 0 ? 6 : -1;
  a.mask_input = p->mask_at.count == 4 ? (backward ? 6 + (p->p > 0) : 3) : -1;
  if (a.mask_input >= 0)
    a.mask_batch = m[0], a.mask_head = m[1], a.mask_row = m[2], a.mask_key = m[3];
  a.lengths_input = a.segments_input = -1;
  a.scale = p->scale, a.p = p->p;
  a.causal = p->causal, a.packed = p->packed;
  return a;
}

/* Sets sizes and strides from the shapes of query, key and value, which are (batch, ..., features)
 * in `layout`. */
static inline void mpg_attention_set_shapes(mpg_attention_call *a, const mpg_shape *query,
                                            const mpg_shape *key, const mpg_shape *value,
                                            int32_t layout) {
  int time = mpg_attention_time(layout);
  mpg_shape result = *query;
  result.dims[3] = value->dims[3];
  a->batch = query->dims[0], a->heads = query->dims[3 - time], a->rows = query->dims[time];
  a->keys = key->dims[time], a->width = query->dims[3], a->value_width = value->dims[3];
  a->all_keys = a->keys;
  a->group = a->heads && key->dims[3 - time] > 0 ? a->heads / key->dims[3 - time] : 1;
  a->query = mpg_attention_place_in(query, layout);
  a->key = mpg_attention_place_in(key, layout);
  a->value = mpg_attention_place_in(value, layout);
  a->result = mpg_attention_place_in(&result, layout);
}

/* A window that all keys fit in has no effect. `later` may be negative, for parts of the keys. */
static inline int64_t mpg_attention_window(int64_t window, int64_t rows, int64_t later,
                                           int64_t keys) {
  return window >= rows + (later < 0 ? -later : later) + keys ? 0 : window;
}

/* Sets the strides of a mask that broadcasts to (batch, heads, rows, keys). */
static inline void mpg_attention_set_mask(mpg_attention_call *a, const mpg_shape *mask) {
  int64_t *strides[4] = {&a->mask_batch, &a->mask_head, &a->mask_row, &a->mask_key}, step = 1;
  for (int i = 3, k = mask->ndim - 1; k >= 0; i--, k--) {
    *strides[i] = mask->dims[k] == 1 ? 0 : step;
    step *= mask->dims[k];
  }
}

/* Reads a call of _head_attention, _dropout_head_attention or _backward_head_attention. */
static inline mpg_attention_call mpg_attention_read_heads(const mpg_kernel_call *call,
                                                          bool backward) {
  const mpg_head_attention_params *p = (const mpg_head_attention_params *)call->params;
  const mpg_view *inputs = call->inputs + backward;
  int next = backward ? 6 : 3;
  mpg_attention_call a;
  memset(&a, 0, sizeof a);
  mpg_attention_set_shapes(&a, &inputs[0].desc.shape, &inputs[1].desc.shape, &inputs[2].desc.shape,
                           p->layout);
  a.query_input = backward;
  a.draw_input = backward && p->p > 0 ? next++ : -1;
  a.mask_input = p->use_mask ? next++ : -1;
  a.lengths_input = p->use_lengths ? next++ : -1;
  a.segments_input = p->use_segments ? next++ : -1;
  if (p->use_mask) mpg_attention_set_mask(&a, &call->inputs[a.mask_input].desc.shape);
  a.scale = p->scale, a.softcap = p->softcap, a.p = p->p;
  a.causal = p->causal;
  a.later = p->later;
  if (p->part) a.all_keys = p->keys, a.before = p->before;
  a.merged = p->merged;
  a.window = mpg_attention_window(p->window, a.rows, a.later, a.keys);
  a.empty_is_zero = true;
  return a;
}

/* Reads a call of _contrib_cached_attention. Key and value are the caches. */
static inline mpg_attention_call mpg_attention_read_cached(const mpg_kernel_call *call) {
  const mpg_cached_attention_params *p = (const mpg_cached_attention_params *)call->params;
  mpg_attention_call a;
  memset(&a, 0, sizeof a);
  mpg_attention_set_shapes(&a, &call->inputs[0].desc.shape, &call->inputs[3].desc.shape,
                           &call->inputs[4].desc.shape, p->layout);
  a.lengths_input = 5;
  a.mask_input = p->use_mask ? 6 : -1;
  a.segments_input = a.draw_input = -1;
  if (p->use_mask) mpg_attention_set_mask(&a, &call->inputs[6].desc.shape);
  a.scale = p->scale.present ? p->scale.value : 1 / __builtin_sqrt(a.width ? (double)a.width : 1);
  a.softcap = p->softcap;
  a.window = mpg_attention_window(p->window, a.rows, 0, a.keys);
  a.causal = a.empty_is_zero = a.cached = true;
  return a;
}

#endif
