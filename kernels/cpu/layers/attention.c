/* Attention without a full matrix of scores (FlashAttention). Multiplies blocks of query rows with
 * blocks of keys and updates the softmax sums block by block (online softmax). Backward recomputes
 * blocks of weights from the final sums.
 *
 * Every element is summed over keys (or rows) in ascending order, block by block, so results do not
 * depend on the number of threads.
 *
 * Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
 * "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", 2022. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/array/turn.h"
#include "kernels/cpu/halves.h"
#include "kernels/cpu/philox_words.h"
#include "kernels/cpu/products/pairs.h"
#include "kernels/common/vector_math.h"
#include "op/attention/attention_call.h"

#if defined(__AVX512F__)
enum { TILE = 12 }; /* rows of the product held in registers */
#elif defined(__AVX__)
enum { TILE = 6 };
#else
enum { TILE = 4 };
#endif

/* Query rows and keys per block: multiples of every tile size, so that tiles never cross the end of
 * a block. */
enum { BLOCK_ROWS = 48, BLOCK_KEYS = 96, MOST_ROWS = 64, MOST_KEYS = 128 /* of all instances */ };

/* Address and strides, in elements, of an array (batch, head, row, element). */
typedef struct place {
  char *data;
  int64_t by_batch, by_head, by_row;
} place;

/* Keys [low, high) that a row may see. Empty ranges are (0, 0). */
typedef struct range {
  int64_t low, high;
} range;

/* A key head is shared by `group` query heads. Their rows follow each other: row v of a key head is
 * row v % rows of its query head v / rows. */
typedef struct attention {
  const mpg_kernel_call *call;
  int64_t batch, heads, rows, keys, width, value_width;
  int64_t key_heads, group, all_rows /* group * rows */;
  place query, key, value, result, query_grad, key_grad, value_grad, grad, output;
  const char *mask; /* NULL if none */
  bool mask_is_bool;
  int64_t mask_batch, mask_head, mask_row, mask_key;
  const int32_t *lengths, *segments; /* NULL if none */
  void *sums; /* per head: the largest score of each row, then the sums of exponentials */
  double scale, softcap;
  int64_t first; /* position of row 0 among the keys, except for caches */
  /* The keys are [before, before + keys) of `all_keys`, whose lengths, segments and draws are
   * given. */
  int64_t before, all_keys;
  int64_t window;
  bool changes; /* there is a soft cap, a mask, or segments */
  bool causal, cached, empty_is_zero, drops;
  bool merged; /* backward: per head, the log-sum-exps of the rows, then the inner products */
  mpg_pairs pairs;
  mpg_random_key draw;
  uint32_t threshold; /* dropout keeps weights whose random word >> 8 is below this */
  double kept_scale;
  /* Backward: true if a work unit is a whole key head. Otherwise one pass runs over blocks of keys
   * and a second pass over blocks of rows. */
  bool all_at_once;
  bool for_keys; /* true in the pass over blocks of keys */
  char *scratch;
  size_t scratch_bytes; /* bytes per thread */
  range *ranges;        /* of each batch entry and row */
} attention;

static int64_t blocks_of(int64_t n, int64_t block) { return (n + block - 1) / block; }
static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static int64_t within(int64_t n, int64_t low, int64_t high) {
  return n < low ? low : n < high ? n : high;
}

/* --- Visible keys ----------------------------------------------------------------------------- */

/* Returns the segments of a batch entry's keys. Those of its rows are relative to them. */
static inline const int32_t *segments_of(const attention *p, int64_t batch) {
  return p->segments + batch * p->all_keys + p->before;
}

/* Returns the keys that row `row` may see, except for masks. */
static range range_of(const attention *p, int64_t batch, int64_t row) {
  int64_t length = p->lengths ? p->lengths[batch] - p->before : 0, end = p->keys;
  if (p->lengths) end = within(p->cached ? length + p->rows : length, 0, p->keys);
  int64_t at = row + (p->cached ? length : p->first); /* the row's own position */
  range r = {0, end};
  if (p->causal && at + 1 < end) r.high = at + 1;
  if (p->window && at - p->window + 1 > 0) r.low = at - p->window + 1;
  if (p->window && !p->causal && at + p->window < end) r.high = at + p->window;
  if (p->segments) {
    const int32_t *segments = segments_of(p, batch), own = segments[p->first + row];
    while (r.low < r.high && segments[r.low] != own) r.low++;
    while (r.low < r.high && segments[r.high - 1] != own) r.high--;
  }
  return r.low < r.high ? r : (range){0, 0};
}

static void fill_ranges(void *context, int64_t begin, int64_t end) {
  const attention *p = context;
  for (int64_t i = begin; i < end; i++) p->ranges[i] = range_of(p, i / p->rows, i % p->rows);
}

/* Returns the keys that some row of a batch entry may see, starting at a multiple of `block`. */
static range span_of(const attention *p, int64_t batch, int64_t block) {
  range span = {p->keys, 0};
  for (int64_t i = 0; i < p->rows; i++) {
    range r = p->ranges[batch * p->rows + i];
    if (r.high && r.low < span.low) span.low = r.low;
    if (r.high > span.high) span.high = r.high;
  }
  if (!span.high) return (range){0, 0};
  span.low = span.low / block * block;
  return span;
}

/* Consecutive rows of a key head. */
typedef struct block {
  int64_t batch, first, count;
  int64_t heads[MOST_ROWS], rows[MOST_ROWS]; /* query heads, and rows of these */
  range seen[MOST_ROWS];
  range all;            /* union of `seen` */
  int64_t key;          /* current block of keys */
  range now[MOST_ROWS]; /* keys of this block that each row may see */
} block;
static void block_of(const attention *p, int64_t index, int64_t first, int64_t most, block *b) {
  b->batch = index / p->key_heads;
  b->first = first;
  b->count = p->all_rows - first < most ? p->all_rows - first : most;
  b->all = (range){p->keys, 0};
  int64_t head = index % p->key_heads * p->group + first / p->rows, row = first % p->rows;
  for (int64_t i = 0; i < b->count; i++) {
    range r = p->ranges[b->batch * p->rows + row];
    b->heads[i] = head, b->rows[i] = row, b->seen[i] = r;
    if (r.high && r.low < b->all.low) b->all.low = r.low;
    if (r.high > b->all.high) b->all.high = r.high;
    if (++row == p->rows) row = 0, head++;
  }
  if (!b->all.high) b->all.low = 0;
}

/* Moves to the keys [key, key + size): sets `now`, which is relative to `key`. Returns the keys
 * that some row may see. */
static range look_at(block *b, int64_t key, int64_t size) {
  range all = {size, 0};
  b->key = key;
  for (int64_t i = 0; i < b->count; i++) {
    int64_t low = within(b->seen[i].low - key, 0, size),
            high = within(b->seen[i].high - key, 0, size);
    if (low >= high) low = high = 0;
    b->now[i] = (range){low, high};
    if (high && low < all.low) all.low = low;
    if (high > all.high) all.high = high;
  }
  return all.high ? all : (range){0, 0};
}
static inline bool overlaps(range r, int64_t low, int64_t high) {
  return r.low < high && r.high > low;
}
/* Returns the union of `now` of rows [from, to). */
static inline range seen_by(const block *b, int64_t from, int64_t to) {
  range all = b->now[from];
  if (to > b->count) to = b->count;
  for (int64_t i = from + 1; i < to; i++) {
    range r = b->now[i];
    if (r.high && (r.low < all.low || !all.high)) all.low = r.low;
    if (r.high > all.high) all.high = r.high;
  }
  return all;
}

/* Prefetches n rows of `width` bytes into the second-level cache. Rows of a cache of keys are too
 * far apart for the processor to prefetch them itself. */
static inline void fetch_rows(const char *from, int64_t by_row, int64_t n, int64_t width) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t e = 0; e < width; e += 64) __builtin_prefetch(from + i * by_row + e, 0, 2);
}

/* Unit of work of the gradient: a whole key head, a block of keys, or a block of rows. */
typedef struct backward_unit {
  int64_t index, row, row_end, key, key_end;
} backward_unit;
static backward_unit backward_unit_of(const attention *p, int64_t unit, int64_t rows,
                                      int64_t keys) {
  int64_t blocks = p->all_at_once ? 1
                   : p->for_keys  ? blocks_of(p->keys, keys)
                                  : blocks_of(p->all_rows, rows);
  backward_unit u = {.index = unit / blocks, .row_end = p->all_rows, .key_end = p->keys};
  if (!p->all_at_once && p->for_keys) {
    u.key = unit % blocks * keys;
    u.key_end = u.key + keys < p->keys ? u.key + keys : p->keys;
  } else if (!p->all_at_once) {
    u.row = unit % blocks * rows;
    u.row_end = u.row + rows < p->all_rows ? u.row + rows : p->all_rows;
  }
  return u;
}

/* Bump allocator for a thread's scratch memory. Only counts the bytes if `data` is NULL. */
typedef struct scratch_parts {
  char *data;
  size_t taken;
} scratch_parts;
static void *take_part(scratch_parts *parts, size_t bytes) {
  char *at = parts->data ? parts->data + parts->taken : NULL;
  parts->taken += mpg_align_up(bytes, 64);
  return at;
}
#define TAKE(w, name, count) ((w)->name = take_part(&parts, (size_t)(count) * sizeof *(w)->name))

#define T float
#define NAME(name) name##_f32
#define BITS int32_t
#define EXP mpg_expf
#define TANH mpg_tanhf
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/layers/attention_block.h"
#undef T
#undef NAME
#undef BITS
#undef EXP
#undef TANH

#define T double
#define NAME(name) name##_f64
#define BITS int64_t
#define EXP exp
#define TANH tanh
#define LANES_OF_DOUBLE
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/layers/attention_block.h"
#undef LANES_OF_DOUBLE

#ifdef MPG_WITH_PAIRS
#include "kernels/cpu/products/pairs_panel.h"
#include "kernels/cpu/layers/attention_pairs.h"
#endif

/* Implementation for one computing type. `rows` and `keys` are its block sizes. */
typedef struct instance {
  int64_t rows, keys;
  size_t (*forward_bytes)(const attention *), (*backward_bytes)(const attention *);
  mpg_range_fn forward, backward;
} instance;
static const instance in_float = {BLOCK_ROWS,
                                  BLOCK_KEYS,
                                  attention_forward_bytes_f32,
                                  attention_backward_bytes_f32,
                                  attention_forward_f32,
                                  attention_backward_f32},
                      in_double = {BLOCK_ROWS,
                                   BLOCK_KEYS,
                                   attention_forward_bytes_f64,
                                   attention_backward_bytes_f64,
                                   attention_forward_f64,
                                   attention_backward_f64};
#ifdef MPG_WITH_PAIRS
static const instance in_pairs = {PAIR_ROWS,
                                  PAIR_KEYS,
                                  attention_forward_bytes_pairs,
                                  attention_backward_bytes_pairs,
                                  attention_forward_pairs,
                                  attention_backward_pairs};
#endif

static const instance *instance_of(mpg_dtype dtype) {
#ifdef MPG_WITH_PAIRS
  if (dtype == MPG_BFLOAT16) return &in_pairs;
#endif
  return dtype == MPG_FLOAT64 ? &in_double : &in_float;
}

static place place_of(const mpg_view *view, const mpg_attention_place *at) {
  return (place){(char *)view->data + (size_t)at->offset * mpg_dtype_size(view->desc.dtype),
                 at->by_batch, at->by_head, at->by_row};
}

/* `key` and `value` are indices of inputs. */
static attention attention_of(const mpg_kernel_call *call, const mpg_attention_call *c, int key,
                              int value) {
  const mpg_view *in = call->inputs;
  attention a = {
      .call = call,
      .batch = c->batch,
      .heads = c->heads,
      .rows = c->rows,
      .keys = c->keys,
      .width = c->width,
      .value_width = c->value_width,
      .key_heads = c->heads / c->group,
      .group = c->group,
      .all_rows = c->group * c->rows,
      .query = place_of(&in[c->query_input], &c->query),
      .key = place_of(&in[key], &c->key),
      .value = place_of(&in[value], &c->value),
      .mask_batch = c->mask_batch,
      .mask_head = c->mask_head,
      .mask_row = c->mask_row,
      .mask_key = c->mask_key,
      .scale = c->scale,
      .softcap = c->softcap,
      .first = c->keys - c->later - c->rows,
      .before = c->before,
      .all_keys = c->all_keys,
      .merged = c->merged,
      .window = c->window,
      .causal = c->causal,
      .cached = c->cached,
      .empty_is_zero = c->empty_is_zero,
      .drops = c->p > 0,
      .pairs = in[c->query_input].desc.dtype == MPG_BFLOAT16 ? mpg_cpu_pairs() : MPG_NO_PAIRS};
  if (c->mask_input >= 0) {
    a.mask = in[c->mask_input].data;
    a.mask_is_bool = in[c->mask_input].desc.dtype == MPG_BOOL;
  }
  if (c->lengths_input >= 0) a.lengths = in[c->lengths_input].data;
  if (c->segments_input >= 0) a.segments = in[c->segments_input].data;
  a.changes = a.softcap > 0 || a.mask || a.segments;
  double keep = 1 - c->p;
  a.threshold = (uint32_t)(keep * 0x1p24 + 0.5);
  a.kept_scale = keep > 0 ? 1 / keep : 0;
  return a;
}

/* Allocates `bytes` for each thread, and computes the ranges of all rows. */
static mpg_status prepare(attention *a, size_t bytes) {
  enum { GRAIN = 4096 };
  int64_t rows = a->batch * a->rows;
  size_t ranges = mpg_align_up((size_t)rows * sizeof *a->ranges, 64);
  a->scratch_bytes = mpg_cpu_buffer_step(bytes);
  char *scratch =
      mpg_device_scratch(a->call->device, ranges + a->scratch_bytes * (size_t)a->call->num_threads);
  if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  a->ranges = (range *)(void *)scratch;
  a->scratch = scratch + ranges;
  mpg_cpu_parallel_for(a->call, rows, a->segments ? 16 : GRAIN, fill_ranges, a);
  return MPG_OK;
}

/* Returns the number of units of `rows` query rows that one thread computes at least. Starting a
 * team of threads takes a few microseconds. */
static int64_t grain_of(const attention *a, int64_t rows) {
  enum { FEW = 1 << 18 };
  double multiplications = (double)rows * (double)a->keys * (double)(a->width + a->value_width);
  return multiplications < FEW ? (int64_t)(FEW / (multiplications + 1)) + 1 : 1;
}

static mpg_status forward(const mpg_kernel_call *call, const mpg_attention_call *c) {
  const instance *in = instance_of(call->inputs[0].desc.dtype);
  int key = c->cached ? 3 : 1;
  attention a = attention_of(call, c, key, key + 1);
  a.result = place_of(&call->outputs[0], &c->result);
  a.sums = call->num_outputs > 1 ? call->outputs[1].data : NULL;
  if (call->num_outputs > 2) {
    uint64_t *draw = call->outputs[2].data;
    a.draw = call->random;
    draw[0] = a.draw.seed, draw[1] = a.draw.call, draw[2] = a.draw.position, draw[3] = a.draw.run,
    draw[4] = a.draw.stride;
  }
  /* Values without features still need the sums, for the gradient. */
  if (!a.batch || !a.all_rows) return MPG_OK;
  MPG_TRY(prepare(&a, in->forward_bytes(&a)));
  mpg_cpu_parallel_for(call, a.batch * a.key_heads * blocks_of(a.all_rows, in->rows),
                       grain_of(&a, a.all_rows < in->rows ? a.all_rows : in->rows), in->forward,
                       &a);
  return MPG_OK;
}

static mpg_status backward(const mpg_kernel_call *call, const mpg_attention_call *c) {
  const instance *in = instance_of(call->inputs[0].desc.dtype);
  attention a = attention_of(call, c, 2, 3);
  a.grad = place_of(&call->inputs[0], &c->result);
  a.output = place_of(&call->inputs[4], &c->result);
  a.sums = call->inputs[5].data;
  a.query_grad = place_of(&call->outputs[0], &c->query);
  a.key_grad = place_of(&call->outputs[c->packed ? 0 : 1], &c->key);
  a.value_grad = place_of(&call->outputs[c->packed ? 0 : 2], &c->value);
  if (c->draw_input >= 0) {
    const uint64_t *draw = call->inputs[c->draw_input].data;
    a.draw = (mpg_random_key){
        .seed = draw[0], .call = draw[1], .position = draw[2], .run = draw[3], .stride = draw[4]};
  }
  MPG_TRY(prepare(&a, in->backward_bytes(&a)));
  int64_t heads = a.batch * a.key_heads;
  a.all_at_once = heads >= call->num_threads;
  if (a.all_at_once) {
    mpg_cpu_parallel_for(call, heads, grain_of(&a, a.all_rows), in->backward, &a);
    return MPG_OK;
  }
  a.for_keys = true;
  mpg_cpu_parallel_for(call, heads * blocks_of(a.keys, in->keys), 1, in->backward, &a);
  a.for_keys = false;
  mpg_cpu_parallel_for(call, heads * blocks_of(a.all_rows, in->rows), 1, in->backward, &a);
  return MPG_OK;
}

/* --- Half precision, computed in float32 ------------------------------------------------------ */
/* Runs a half-precision call in float32: widens the inputs, computes, and narrows the outputs. If
 * the processor multiplies bfloat16, only the mask of a bfloat16 call is widened. */
enum { MOST_INPUTS = 10, MOST_OUTPUTS = 3 };
typedef mpg_status (*run_fn)(const mpg_kernel_call *call, const mpg_attention_call *c);

static mpg_status run_wide(const mpg_kernel_call *call, const mpg_attention_call *c, run_fn run) {
  mpg_dtype dtype = call->inputs[0].desc.dtype;
  bool pairs = dtype == MPG_BFLOAT16 && mpg_cpu_pairs();
  int mask =
      c->mask_input >= 0 && call->inputs[c->mask_input].desc.dtype == dtype ? c->mask_input : -1;
  if (dtype == MPG_FLOAT32 || dtype == MPG_FLOAT64 || (pairs && mask < 0)) return run(call, c);
  mpg_view inputs[MOST_INPUTS], outputs[MOST_OUTPUTS];
  const mpg_view *views[2] = {call->inputs, call->outputs};
  mpg_view *wide[2] = {inputs, outputs};
  int counts[2] = {call->num_inputs, call->num_outputs};
  size_t total = 0;
  char *next = NULL;
  for (int pass = 0; pass < 2; pass++) { /* 0 adds up sizes, 1 sets addresses and converts */
    for (int side = 0; side < 2; side++)
      for (int i = 0; i < counts[side]; i++) {
        const mpg_view *view = &views[side][i];
        wide[side][i] = *view;
        if (view->desc.dtype != dtype || (pairs && (side == 1 || i != mask))) continue;
        /* True if the input is the same array as the previous input, which is then widened only
         * once. */
        bool again = side == 0 && i > 0 && !pairs && view->data == views[0][i - 1].data;
        int64_t count = mpg_shape_size(&view->desc.shape);
        wide[side][i].desc.dtype = MPG_FLOAT32;
        if (pass) wide[side][i].data = again ? wide[side][i - 1].data : next;
        if (again) continue;
        if (pass == 0) total += mpg_align_up((size_t)count * sizeof(float), 64);
        if (pass) next += mpg_align_up((size_t)count * sizeof(float), 64);
        if (pass && side == 0) mpg_cpu_widen(call, dtype, view->data, count, wide[side][i].data);
      }
    if (pass == 0 && !(next = mpg_device_scratch_slot(call->device, MPG_SCRATCH_WIDENED, total)))
      return MPG_DEVICE_OUT_OF_MEMORY;
  }
  mpg_kernel_call widened = *call;
  widened.inputs = inputs;
  widened.outputs = outputs;
  MPG_TRY(run(&widened, c));
  for (int i = 0; i < call->num_outputs; i++) {
    const mpg_view *out = &call->outputs[i];
    if (outputs[i].data != out->data)
      mpg_cpu_narrow(call, dtype, outputs[i].data, mpg_shape_size(&out->desc.shape), out->data);
  }
  return MPG_OK;
}

mpg_status mpg_cpu_attention(const mpg_kernel_call *call) {
  mpg_attention_call c = mpg_attention_read_strided(call, false);
  return run_wide(call, &c, forward);
}
mpg_status mpg_cpu_attention_backward(const mpg_kernel_call *call) {
  mpg_attention_call c = mpg_attention_read_strided(call, true);
  return run_wide(call, &c, backward);
}
mpg_status mpg_cpu_head_attention(const mpg_kernel_call *call) {
  mpg_attention_call c = mpg_attention_read_heads(call, false);
  return run_wide(call, &c, forward);
}
mpg_status mpg_cpu_head_attention_backward(const mpg_kernel_call *call) {
  mpg_attention_call c = mpg_attention_read_heads(call, true);
  return run_wide(call, &c, backward);
}

/* --- Cached keys and values ------------------------------------------------------------------- */

typedef struct append {
  const mpg_kernel_call *call;
  const int32_t *lengths;
  int64_t key_heads, rows, keys;
  mpg_attention_place from[2], to[2]; /* of keys and values */
  size_t bytes[2];                    /* per row */
} append;

/* Copies the new rows of heads [begin, end) to the caches. Heads are counted over all batch
 * entries. */
static void append_rows(void *context, int64_t begin, int64_t end) {
  const append *a = context;
  for (int64_t i = begin; i < end; i++)
    for (int which = 0; which < 2; which++) {
      const mpg_view *from = &a->call->inputs[1 + which], *to = &a->call->inputs[3 + which];
      size_t item = mpg_dtype_size(from->desc.dtype);
      int64_t batch = i / a->key_heads, head = i % a->key_heads, first = a->lengths[batch];
      for (int64_t r = 0; r < a->rows; r++) {
        if (first + r < 0 || first + r >= a->keys) continue;
        const mpg_attention_place *f = &a->from[which], *t = &a->to[which];
        memcpy(
            (char *)to->data +
                (size_t)(batch * t->by_batch + head * t->by_head + (first + r) * t->by_row) * item,
            (const char *)from->data +
                (size_t)(batch * f->by_batch + head * f->by_head + r * f->by_row) * item,
            a->bytes[which]);
      }
    }
}

mpg_status mpg_cpu_cached_attention(const mpg_kernel_call *call) {
  const int32_t layout = ((const mpg_cached_attention_params *)call->params)->layout;
  const mpg_view *in = call->inputs;
  mpg_attention_call c = mpg_attention_read_cached(call);
  size_t item = mpg_dtype_size(in[0].desc.dtype);
  append a = {.call = call,
              .lengths = in[5].data,
              .key_heads = c.heads / c.group,
              .rows = c.rows,
              .keys = c.keys,
              .from = {mpg_attention_place_in(&in[1].desc.shape, layout),
                       mpg_attention_place_in(&in[2].desc.shape, layout)},
              .to = {c.key, c.value},
              .bytes = {(size_t)c.width * item, (size_t)c.value_width * item}};
  mpg_cpu_parallel_for(call, c.batch * a.key_heads, 16, append_rows, &a);
  return run_wide(call, &c, forward);
}
