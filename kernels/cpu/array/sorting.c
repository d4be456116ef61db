/* Sorting, top-k and arg-reductions (argmax, argmin).
 *
 * Each element is mapped to an unsigned key with the same order, or the inverted order for
 * descending sorts. Keys of up to 32 bits are packed with their index into one 64-bit number, so
 * that sorting the numbers is stable; longer keys are paired with their index. A heap selects a few
 * items out of many. Otherwise, long rows are sorted by radix sort, and short rows by insertion or
 * by rank. */
#include <omp.h>
#include <string.h>

#include "kernels/common/view.h"
#include "kernels/cpu/index.h"
#include "kernels/cpu/array/move.h"

enum { SMALL = 48, RANKED = 12, GRAIN = 4096 };

typedef struct pair {
  uint64_t key, index;
} pair;

/* --- Keys ------------------------------------------------------------------------------------- */

/* Maps a float to its key, without branches so that loops are vectorized. */
static inline uint32_t key_of_float(float value) {
  uint32_t bits = mpg_float_bits(value + 0.0f); /* -0 becomes 0 */
  uint32_t key = bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
  return (bits & 0x7fffffffu) > 0x7f800000u ? UINT32_MAX : key;
}
static inline uint64_t key_of_double(double value) {
  uint64_t bits;
  if (value != value) return UINT64_MAX;
  if (value == 0) value = 0;
  memcpy(&bits, &value, sizeof bits);
  return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}
/* --- Sorting ---------------------------------------------------------------------------------- */

/* Insertion sort, LSD radix sort and heap. The instances differ in the comparison and the
 * digits. */
#define SORTING(type, name, less, key_bits, digit)                                       \
  static void insertion_##name(type *items, int64_t n) {                                 \
    for (int64_t i = 1; i < n; i++) {                                                    \
      type item = items[i];                                                              \
      int64_t j = i;                                                                     \
      for (; j > 0 && less(item, items[j - 1]); j--) items[j] = items[j - 1];            \
      items[j] = item;                                                                   \
    }                                                                                    \
  }                                                                                      \
  /* LSD radix sort. Returns the sorted items, in `items` or `other`. */                 \
  static type *sort_##name(type *items, type *other, int64_t n) {                        \
    if (n <= SMALL) {                                                                    \
      insertion_##name(items, n);                                                        \
      return items;                                                                      \
    }                                                                                    \
    for (int shift = 0; shift < key_bits; shift += 8) {                                  \
      int64_t count[256] = {0}, sum = 0;                                                 \
      for (int64_t i = 0; i < n; i++) count[digit(items[i], shift)]++;                   \
      if (count[digit(items[0], shift)] == n) continue;                                  \
      for (int d = 0; d < 256; d++) {                                                    \
        int64_t own = count[d];                                                          \
        count[d] = sum;                                                                  \
        sum += own;                                                                      \
      }                                                                                  \
      for (int64_t i = 0; i < n; i++) other[count[digit(items[i], shift)]++] = items[i]; \
      type *swap = items;                                                                \
      items = other;                                                                     \
      other = swap;                                                                      \
    }                                                                                    \
    return items;                                                                        \
  }                                                                                      \
  static void sift_##name(type *heap, int64_t size, int64_t at) { /* max-heap */         \
    type item = heap[at];                                                                \
    for (;;) {                                                                           \
      int64_t child = 2 * at + 1;                                                        \
      if (child >= size) break;                                                          \
      if (child + 1 < size && less(heap[child], heap[child + 1])) child++;               \
      if (!less(item, heap[child])) break;                                               \
      heap[at] = heap[child];                                                            \
      at = child;                                                                        \
    }                                                                                    \
    heap[at] = item;                                                                     \
  }                                                                                      \
  static void make_heap_##name(type *items, int64_t n) {                                 \
    for (int64_t i = n / 2 - 1; i >= 0; i--) sift_##name(items, n, i);                   \
  }                                                                                      \
  static inline void offer_##name(type *heap, int64_t size, type item) {                 \
    if (!less(item, heap[0])) return;                                                    \
    heap[0] = item;                                                                      \
    sift_##name(heap, size, 0);                                                          \
  }                                                                                      \
  static void sort_heap_##name(type *heap, int64_t size) {                               \
    while (--size > 0) {                                                                 \
      type largest = heap[0];                                                            \
      heap[0] = heap[size];                                                              \
      heap[size] = largest;                                                              \
      sift_##name(heap, size, 0);                                                        \
    }                                                                                    \
  }
/* Rank sort: moves each item to its rank, without branches, which would be mispredicted for short
 * random rows. The items must be distinct. */
static void rank_packed(uint64_t *items, int64_t n) {
  uint64_t sorted[RANKED];
  for (int64_t i = 0; i < n; i++) {
    int64_t rank = 0;
    for (int64_t j = 0; j < n; j++) rank += items[j] < items[i];
    sorted[rank] = items[i];
  }
  memcpy(items, sorted, (size_t)n * sizeof *items);
}
#define PACKED_LESS(a, b) ((a) < (b))
#define PACKED_DIGIT(a, shift) ((a) >> (32 + (shift)) & 255)
#define PAIR_LESS(a, b) ((a).key < (b).key || ((a).key == (b).key && (a).index < (b).index))
#define PAIR_DIGIT(a, shift) ((a).key >> (shift) & 255)
SORTING(uint64_t, packed, PACKED_LESS, 32, PACKED_DIGIT)
SORTING(pair, pairs, PAIR_LESS, 64, PAIR_DIGIT)
#undef SORTING

/* --- Rows ------------------------------------------------------------------------------------- */

typedef struct ordering {
  const mpg_view *data, *values, *indices, *mask; /* input; then results, NULL if not requested */
  int64_t before, n, after, k;
  bool ascending, packed;
  uint64_t one; /* the bit pattern of 1 in the mask's dtype */
  char *buffers;
  size_t buffer_bytes;
} ordering;

static inline void copy_item(char *to, const char *from, size_t bytes) {
  switch (bytes) {
    case 1: memcpy(to, from, 1); return;
    case 2: memcpy(to, from, 2); return;
    case 4: memcpy(to, from, 4); return;
    default: memcpy(to, from, 8);
  }
}

/* True if a heap selects the k best items in one pass over the row. */
static bool takes_few(const ordering *p) { return p->n > SMALL && p->k <= p->n / 8; }

/* Computes the keys of `count` elements of a row, starting at element i. */
#define KEYS(type, key_of)                                                          \
  {                                                                                 \
    const type *x = (const type *)p->data->data + start + i * p->after;             \
    if (p->after == 1)                                                              \
      for (int64_t j = 0; j < count; j++) keys[j] = flip ^ key_of(x[j]);            \
    else                                                                            \
      for (int64_t j = 0; j < count; j++) keys[j] = flip ^ key_of(x[j * p->after]); \
    return;                                                                         \
  }
static inline uint32_t key_of_half(uint16_t x) { return key_of_float(mpg_half_to_float(x)); }
static inline uint32_t key_of_bfloat16(uint16_t x) {
  return key_of_float(mpg_bfloat16_to_float(x));
}
static inline uint32_t key_of_int32(int32_t x) { return (uint32_t)x ^ 0x80000000u; }
static inline uint32_t key_of_int8(int8_t x) { return (uint32_t)(x + 128); }
static inline uint32_t key_of_byte(uint8_t x) { return x; }
static void load_keys(const ordering *p, int64_t start, int64_t i, int64_t count, uint32_t *keys) {
  const uint32_t flip = p->ascending ? 0 : UINT32_MAX;
  switch (p->data->desc.dtype) {
    case MPG_FLOAT32: KEYS(float, key_of_float)
    case MPG_FLOAT16: KEYS(uint16_t, key_of_half)
    case MPG_BFLOAT16: KEYS(uint16_t, key_of_bfloat16)
    case MPG_INT32: KEYS(int32_t, key_of_int32)
    case MPG_INT8: KEYS(int8_t, key_of_int8)
    default: KEYS(uint8_t, key_of_byte)
  }
}
#undef KEYS

enum { KEY_BLOCK = 128 };

static int64_t block_end(int64_t i, int64_t n) { return i + KEY_BLOCK < n ? i + KEY_BLOCK : n; }

static void load_items(const ordering *p, int64_t start, int64_t n, uint64_t *items) {
  uint32_t keys[KEY_BLOCK];
  for (int64_t i = 0; i < n; i += KEY_BLOCK) {
    int64_t count = block_end(i, n) - i;
    load_keys(p, start, i, count, keys);
    for (int64_t j = 0; j < count; j++) items[i + j] = (uint64_t)keys[j] << 32 | (uint64_t)(i + j);
  }
}

/* Returns the first k items of a row in sorted order, for packed keys. If k is small, collects the
 * items in a heap and skips blocks in which no key beats the heap's worst key. Of equal keys, the
 * earlier one wins. */
static const uint64_t *order_packed(const ordering *p, int64_t start, uint64_t *items) {
  if (!takes_few(p)) {
    load_items(p, start, p->n, items);
    if (p->n > RANKED) return sort_packed(items, items + p->n, p->n);
    rank_packed(items, p->n);
    return items;
  }
  uint32_t keys[KEY_BLOCK];
  load_items(p, start, p->k, items);
  make_heap_packed(items, p->k);
  for (int64_t i = p->k; i < p->n; i += KEY_BLOCK) {
    int64_t count = block_end(i, p->n) - i;
    uint32_t worst = (uint32_t)(items[0] >> 32), better = 0;
    load_keys(p, start, i, count, keys);
    for (int64_t j = 0; j < count; j++) better |= keys[j] < worst;
    for (int64_t j = 0; better && j < count; j++)
      offer_packed(items, p->k, (uint64_t)keys[j] << 32 | (uint64_t)(i + j));
  }
  sort_heap_packed(items, p->k);
  return items;
}

static uint64_t wide_key(const ordering *p, int64_t start, int64_t i) {
  const uint64_t flip = p->ascending ? 0 : UINT64_MAX;
  int64_t at = start + i * p->after;
  uint32_t narrow; /* 32-bit key, not packed because indices exceed 32 bits */
  switch (p->data->desc.dtype) {
    case MPG_FLOAT64: return flip ^ key_of_double(((const double *)p->data->data)[at]);
    case MPG_INT64:
      return flip ^ (uint64_t)((const int64_t *)p->data->data)[at] ^ (uint64_t)1 << 63;
    default: load_keys(p, start, i, 1, &narrow); return narrow;
  }
}

static const pair *order_pairs(const ordering *p, int64_t start, pair *items) {
  for (int64_t i = 0; i < p->n; i++) items[i] = (pair){wide_key(p, start, i), (uint64_t)i};
  if (!takes_few(p)) return sort_pairs(items, items + p->n, p->n);
  make_heap_pairs(items, p->k);
  for (int64_t i = p->k; i < p->n; i++) offer_pairs(items, p->k, items[i]);
  sort_heap_pairs(items, p->k);
  return items;
}

static void order_rows(void *context, int64_t begin, int64_t end) {
  const ordering *p = context;
  char *buffer = p->buffers + (size_t)omp_get_thread_num() * p->buffer_bytes;
  size_t item = item_of(p->data);
  for (int64_t row = begin; row < end; row++) {
    int64_t outer = row / p->after, column = row % p->after,
            start = outer * p->n * p->after + column;
    const uint64_t *numbers = NULL;
    const pair *pairs = NULL;
    if (p->packed)
      numbers = order_packed(p, start, (uint64_t *)(void *)buffer);
    else
      pairs = order_pairs(p, start, (pair *)(void *)buffer);
    int64_t target = outer * p->k * p->after + column;
    for (int64_t i = 0; i < p->k; i++, target += p->after) {
      int64_t index = (int64_t)(p->packed ? numbers[i] & UINT32_MAX : pairs[i].index),
              source = start + index * p->after;
      if (p->values)
        copy_item((char *)p->values->data + (size_t)target * item,
                  (const char *)p->data->data + (size_t)source * item, item);
      if (p->indices) mpg_index_store(p->indices, target, index);
      if (p->mask)
        copy_item((char *)p->mask->data + (size_t)source * item, (const char *)&p->one, item);
    }
  }
}

static void set_axis(const mpg_shape *shape, const mpg_opt_int *axis_param, int64_t *before,
                     int64_t *n, int64_t *after) {
  if (!axis_param->present) {
    *before = *after = 1;
    *n = mpg_shape_size(shape);
    return;
  }
  int axis = (int)(axis_param->value < 0 ? axis_param->value + shape->ndim : axis_param->value);
  *before = mpg_shape_product(shape, 0, axis);
  *n = shape->dims[axis];
  *after = mpg_shape_product(shape, axis + 1, shape->ndim);
}

static mpg_status run_ordering(const mpg_kernel_call *call, ordering *p, const mpg_opt_int *axis,
                               int64_t k) {
  p->data = &call->inputs[0];
  set_axis(&p->data->desc.shape, axis, &p->before, &p->n, &p->after);
  p->k = k > 0 ? k : p->n;
  if (p->n == 0 || p->before == 0 || p->after == 0) return MPG_OK;
  p->packed =
      p->data->desc.dtype != MPG_FLOAT64 && p->data->desc.dtype != MPG_INT64 && p->n <= UINT32_MAX;
  p->buffer_bytes =
      mpg_cpu_buffer_step(2 * (size_t)p->n * (p->packed ? sizeof(uint64_t) : sizeof(pair)));
  p->buffers = mpg_device_scratch(call->device, p->buffer_bytes * (size_t)call->num_threads);
  if (!p->buffers) return MPG_DEVICE_OUT_OF_MEMORY;
  mpg_cpu_parallel_for(call, p->before * p->after, 1 + GRAIN / p->n, order_rows, p);
  return MPG_OK;
}

mpg_status mpg_cpu_sort(const mpg_kernel_call *call) {
  const mpg_sort_params *params = call->params;
  ordering p = {.values = &call->outputs[0], .ascending = params->is_ascend};
  return run_ordering(call, &p, &params->axis, 0);
}

mpg_status mpg_cpu_argsort(const mpg_kernel_call *call) {
  const mpg_argsort_params *params = call->params;
  ordering p = {.indices = &call->outputs[0], .ascending = params->is_ascend};
  return run_ordering(call, &p, &params->axis, 0);
}

mpg_status mpg_cpu_topk(const mpg_kernel_call *call) {
  const mpg_topk_params *params = call->params;
  const mpg_view *out = &call->outputs[0];
  ordering p = {.ascending = params->is_ascend};
  enum { BOTH, INDICES, MASK, VALUE };
  if (params->ret_typ == BOTH || params->ret_typ == VALUE) p.values = out;
  if (params->ret_typ == INDICES) p.indices = out;
  if (params->ret_typ == BOTH) p.indices = &call->outputs[1];
  if (params->ret_typ == MASK) {
    uint64_t nothing = 0;
    mpg_cpu_fill(call, out->data, count_of(out), item_of(out), &nothing);
    mpg_view one = {.data = &p.one, .desc = {.dtype = out->desc.dtype}};
    mpg_index_store(&one, 0, 1);
    p.mask = out;
  }
  return run_ordering(call, &p, &params->axis, params->k);
}

/* --- Arg-reductions --------------------------------------------------------------------------- */

typedef struct search {
  const mpg_view *data, *out;
  int64_t n, after;
  bool smallest;
} search;

/* `type` is the stored type. Values are compared in `value_type`. NaN (which differs from itself)
 * beats every number. A contiguous row takes two passes: the first finds the best value and its
 * chunk, the second finds the value's index, starting at that chunk. */
enum { SEARCH_LANES = 64, SEARCH_FEW = 8, SEARCH_CHUNK = 4096 };
#define SEARCH(name, type, value_type, convert)                                                   \
  __attribute__((always_inline)) static inline bool better_##name(                                \
      value_type value, value_type best, bool smallest) {                                         \
    return smallest ? value < best : value > best;                                                \
  }                                                                                               \
  /* Returns the best of n >= SEARCH_LANES elements. Sets *nan to whether any is NaN. */          \
  __attribute__((always_inline)) static inline value_type best_##name(const type *x, int64_t n,   \
                                                                      bool smallest, bool *nan) { \
    value_type lane[SEARCH_LANES];                                                                \
    int any = 0;                                                                                  \
    for (int l = 0; l < SEARCH_LANES; l++) lane[l] = (value_type)convert(x[l]);                   \
    for (int64_t i = 0; i < n; i += SEARCH_LANES) {                                               \
      const type *from = x + (i + SEARCH_LANES <= n ? i : n - SEARCH_LANES);                      \
      for (int l = 0; l < SEARCH_LANES; l++) {                                                    \
        value_type value = (value_type)convert(from[l]);                                          \
        lane[l] = better_##name(value, lane[l], smallest) ? value : lane[l];                      \
        any |= value != value;                                                                    \
      }                                                                                           \
    }                                                                                             \
    MPG_UNROLL(1)                                                                                 \
    for (int half = SEARCH_LANES / 2; half >= SEARCH_FEW; half /= 2)                              \
      for (int l = 0; l < half; l++)                                                              \
        lane[l] = better_##name(lane[l + half], lane[l], smallest) ? lane[l + half] : lane[l];    \
    value_type best = lane[0];                                                                    \
    for (int l = 1; l < SEARCH_FEW; l++)                                                          \
      best = better_##name(lane[l], best, smallest) ? lane[l] : best;                             \
    *nan = any;                                                                                   \
    return best;                                                                                  \
  }                                                                                               \
  /* Returns the index of the first element equal to `best`, or of the first NaN if `nan`. */     \
  static int64_t first_##name(const type *x, int64_t n, value_type best, bool nan) {              \
    int64_t i = 0;                                                                                \
    for (; i + SEARCH_LANES <= n; i += SEARCH_LANES) {                                            \
      int any = 0;                                                                                \
      for (int l = 0; l < SEARCH_LANES; l++) {                                                    \
        value_type value = (value_type)convert(x[i + l]);                                         \
        any |= (value == best) | (value != value);                                                \
      }                                                                                           \
      if (any) break;                                                                             \
    }                                                                                             \
    for (;; i++) {                                                                                \
      value_type value = (value_type)convert(x[i]);                                               \
      if (nan ? value != value : value == best) return i;                                         \
    }                                                                                             \
  }                                                                                               \
  static int64_t search_row_##name(const type *x, int64_t n, bool smallest) {                     \
    value_type best = (value_type)convert(x[0]);                                                  \
    int64_t chunk = 0;                                                                            \
    bool nan = false;                                                                             \
    for (int64_t i = 0, length; i < n && !nan; i += length) {                                     \
      length = n - i < SEARCH_CHUNK + SEARCH_LANES ? n - i : SEARCH_CHUNK;                        \
      value_type own = smallest ? best_##name(x + i, length, true, &nan)                          \
                                : best_##name(x + i, length, false, &nan);                        \
      if (!nan && !better_##name(own, best, smallest)) continue;                                  \
      chunk = i;                                                                                  \
      best = own;                                                                                 \
    }                                                                                             \
    return chunk + first_##name(x + chunk, n - chunk, best, nan);                                 \
  }                                                                                               \
  /* Returns the index of the best element of a strided or short row. */                          \
  __attribute__((always_inline)) static inline int64_t walk_##name(const type *x, int64_t n,      \
                                                                   int64_t step, bool smallest) { \
    value_type best = (value_type)convert(x[0]);                                                  \
    int64_t index = 0;                                                                            \
    if (best != best) return 0;                                                                   \
    for (int64_t i = 1; i < n; i++) {                                                             \
      value_type value = (value_type)convert(x[i * step]);                                        \
      if (value != value) return i;                                                               \
      if (better_##name(value, best, smallest)) {                                                 \
        best = value;                                                                             \
        index = i;                                                                                \
      }                                                                                           \
    }                                                                                             \
    return index;                                                                                 \
  }                                                                                               \
  static void search_##name(const search *s, int64_t row) {                                       \
    const bool rows = s->after == 1;                                                              \
    const type *x = (const type *)s->data->data +                                                 \
                    (rows ? row * s->n : row / s->after * s->n * s->after + row % s->after);      \
    mpg_index_store(s->out, row,                                                                  \
                    rows && s->n >= SEARCH_LANES ? search_row_##name(x, s->n, s->smallest)        \
                    : s->smallest                ? walk_##name(x, s->n, s->after, true)           \
                                                 : walk_##name(x, s->n, s->after, false));        \
  }
SEARCH(f32, float, float, )
SEARCH(f64, double, double, )
SEARCH(f16, uint16_t, float, mpg_half_to_float)
SEARCH(bf16, uint16_t, float, mpg_bfloat16_to_float)
SEARCH(i32, int32_t, int32_t, )
SEARCH(i64, int64_t, int64_t, )
SEARCH(i8, int8_t, int32_t, )
SEARCH(u8, uint8_t, int32_t, )
#undef SEARCH

static void search_rows(void *context, int64_t begin, int64_t end) {
  const search *s = context;
  for (int64_t row = begin; row < end; row++) {
    switch (s->data->desc.dtype) {
      case MPG_FLOAT32: search_f32(s, row); break;
      case MPG_FLOAT64: search_f64(s, row); break;
      case MPG_FLOAT16: search_f16(s, row); break;
      case MPG_BFLOAT16: search_bf16(s, row); break;
      case MPG_INT32: search_i32(s, row); break;
      case MPG_INT64: search_i64(s, row); break;
      case MPG_INT8: search_i8(s, row); break;
      default: search_u8(s, row); break;
    }
  }
}

static mpg_status run_search(const mpg_kernel_call *call, const mpg_opt_int *axis, bool smallest) {
  search s = {.data = &call->inputs[0], .out = &call->outputs[0], .smallest = smallest};
  int64_t before;
  set_axis(&s.data->desc.shape, axis, &before, &s.n, &s.after);
  if (s.n > 0) mpg_cpu_parallel_for(call, before * s.after, 1 + GRAIN / s.n, search_rows, &s);
  return MPG_OK;
}

mpg_status mpg_cpu_argmax(const mpg_kernel_call *call) {
  const mpg_argmax_params *params = call->params;
  return run_search(call, &params->axis, false);
}
mpg_status mpg_cpu_argmin(const mpg_kernel_call *call) {
  const mpg_argmax_params *params = call->params;
  return run_search(call, &params->axis, true);
}

/* --- Indexing along a dimension --------------------------------------------------------------- */

static mpg_status move_along(const mpg_kernel_call *call, const mpg_view *dense,
                             const mpg_view *indexed, bool put) {
  const mpg_view *indices = &call->inputs[1];
  const mpg_shape *shape = &indices->desc.shape, *large = &indexed->desc.shape;
  const mpg_along_params *params = call->params;
  int axis = (int)(params->axis < 0 ? params->axis + shape->ndim : params->axis);
  int64_t after = mpg_shape_product(shape, axis + 1, shape->ndim), n = shape->dims[axis],
          size = large->dims[axis], total = count_of(indices);
  size_t item = item_of(dense);
  for (int64_t i = 0; i < total; i++) {
    int64_t index = mpg_index_clip(mpg_index_at(indices, i), size);
    char *far = (char *)indexed->data +
                (size_t)((i / (n * after) * size + index) * after + i % after) * item;
    char *near = (char *)dense->data + (size_t)i * item;
    copy_item(put ? far : near, put ? near : far, item);
  }
  return MPG_OK;
}

mpg_status mpg_cpu_gather_along(const mpg_kernel_call *call) {
  return move_along(call, &call->outputs[0], &call->inputs[0], false);
}

mpg_status mpg_cpu_scatter_along(const mpg_kernel_call *call) {
  const mpg_view *out = &call->outputs[0];
  uint64_t nothing = 0;
  mpg_cpu_fill(call, out->data, count_of(out), item_of(out), &nothing);
  return move_along(call, &call->inputs[0], out, true);
}
