/* Reductions, and broadcasting to a shape.
 *
 * Runs of adjacent reduced axes are reduced one after another, innermost first. Each pass views its
 * source as (outer, count, inner) and computes (outer, inner). `count` is split into chunks whose
 * length depends on shapes only, and a further pass combines the chunks' results.
 *
 * Within a chunk, rows shorter than MPG_WIDE elements are grouped into wide rows. (If inner is 1, a
 * wide row is MPG_WIDE contiguous elements.) MPG_ROWS rows form a piece, which is summed row by
 * row. The sums of pieces are added pairwise until one row is left. If it is a wide row, the
 * remaining rows, which do not fill a wide row, are added to it, and its halves are added to each
 * other until `inner` elements are left. Rounding errors therefore grow with the logarithm of the
 * count, and results depend on neither threads nor instruction set.
 *
 * Halves and floats accumulate in float, doubles in double, integers in int64_t, or in int32_t if
 * that gives the same result. Intermediate results keep the accumulator's type.
 */
#include "kernels/cpu/math/reduce.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "device/device.h"
#include "kernels/common/reduce.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/expand.h"
#include "op/fused.h"

enum { MPG_WIDE = 32, MPG_ROWS = 16, MPG_COLUMNS = MPG_CPU_BLOCK, LEVELS = 10 };

/* Returns the number of rows of `inner` elements in a wide row, a power of two. */
static int64_t group_of(int64_t inner, int64_t count) {
  int64_t group = 1;
  while (group * inner < MPG_WIDE) group *= 2;
  if (count >= group) return group;
  return inner == 1 && count >= MPG_WIDE / 2 ? MPG_WIDE / 2 : 1;
}

/* Returns the number of columns per tile, and sets *tiles to the number of tiles. Tiles have
 * similar widths, so no tile is narrow unless `inner` is small. */
static int64_t tile_of(int64_t inner, int64_t *tiles) {
  *tiles = inner > 0 ? (inner + MPG_COLUMNS - 1) / MPG_COLUMNS : 1;
  int64_t width = (inner + *tiles - 1) / *tiles;
  return *tiles == 1 ? inner : (width + MPG_WIDE - 1) / MPG_WIDE * MPG_WIDE;
}

/* Returns the compute type in which sums accumulate. */
static mpg_compute accumulator_of(mpg_dtype dtype) {
  return mpg_dtype_is_float(dtype) ? mpg_compute_of(dtype) : MPG_COMPUTE_I64;
}

/* The type of elements in memory: the accumulator's type T, or one of two narrower types. */
typedef enum source_kind { SOURCE_T, SOURCE_NARROW, SOURCE_NARROW_TOO } source_kind;

typedef struct pass {
  mpg_compute compute;
  mpg_combine how;
  mpg_prepare prepare;
  mpg_dtype dtype; /* of the source */
  const void *source;
  int64_t outer, count, inner;
  int64_t chunk, chunks;
  void *target; /* (outer, chunks, inner) in the compute type */
} pass;

/* Header of a thread's state for a trailing reduction (reduce.h). The rows of the current piece,
 * space for a wide row, and the levels of the pairwise summation follow. */
typedef struct trailing_state {
  int64_t held;    /* rows in the current piece */
  uint64_t pieces; /* complete pieces of the chunk */
} trailing_state;

#define INLINE __attribute__((always_inline)) static inline
static inline int32_t magnitude_i32(int32_t x) { return x < 0 ? (int32_t)(0u - (uint32_t)x) : x; }
static inline int64_t magnitude_i64(int64_t x) { return x < 0 ? (int64_t)(0u - (uint64_t)x) : x; }
/* Vector maximum and minimum that return x if it is NaN, and loads that widen narrower numbers. The
 * processor's float maximum returns its second operand if either is NaN. */
#define AS_CHOSEN(result, x, y, keep) \
  do {                                \
    mask_T keep_ = (mask_T)(keep);    \
    result = y;                       \
    choose_T(&keep_, &(x), &result);  \
  } while (0)
#if defined(__AVX512F__)
#define EXTREME(T, M, result, x, y, name)                                                       \
  result = (__typeof__(result))_mm512_mask_mov_##T(                                             \
      _mm512_##name##_##T((M)(x), (M)(y)), _mm512_cmp_##T##_mask((M)(x), (M)(x), _CMP_UNORD_Q), \
      (M)(x))
#define EXTREME_F32(result, x, y, name, compare) EXTREME(ps, __m512, result, x, y, name)
#define EXTREME_F64(result, x, y, name, compare) EXTREME(pd, __m512d, result, x, y, name)
#define EXTREME_I32(result, x, y, name, compare) \
  result = (__typeof__(result))_mm512_##name##_epi32((__m512i)(x), (__m512i)(y))
#define EXTREME_I64(result, x, y, name, compare) \
  result = (__typeof__(result))_mm512_##name##_epi64((__m512i)(x), (__m512i)(y))
#define FLOATS_OF_HALVES(v, from) \
  v = (__typeof__(v))_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(from)))
#define FLOATS_OF_BFLOAT16(v, from)     \
  v = (__typeof__(v))_mm512_slli_epi32( \
      _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(from))), 16)
#define INTS_OF_INT8(v, from) \
  v = (__typeof__(v))_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(from)))
#define INTS_OF_UINT8(v, from) \
  v = (__typeof__(v))_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(from)))
#elif defined(__AVX2__)
#define EXTREME(T, M, result, x, y, name)                                                     \
  result = (__typeof__(result))_mm256_blendv_##T(_mm256_##name##_##T((M)(x), (M)(y)), (M)(x), \
                                                 _mm256_cmp_##T((M)(x), (M)(x), _CMP_UNORD_Q))
#define EXTREME_F32(result, x, y, name, compare) EXTREME(ps, __m256, result, x, y, name)
#define EXTREME_F64(result, x, y, name, compare) EXTREME(pd, __m256d, result, x, y, name)
#define EXTREME_I32(result, x, y, name, compare) \
  result = (__typeof__(result))_mm256_##name##_epi32((__m256i)(x), (__m256i)(y))
#define EXTREME_I64(result, x, y, name, compare) \
  result =                                       \
      (__typeof__(result))_mm256_blendv_epi8((__m256i)(y), (__m256i)(x), (__m256i)((x)compare(y)))
#define FLOATS_OF_HALVES(v, from) \
  v = (__typeof__(v))_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from)))
#define FLOATS_OF_BFLOAT16(v, from)     \
  v = (__typeof__(v))_mm256_slli_epi32( \
      _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(from))), 16)
#define INTS_OF_INT8(v, from) \
  v = (__typeof__(v))_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(from)))
#define INTS_OF_UINT8(v, from) \
  v = (__typeof__(v))_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(from)))
#else
#define EXTREME_F32(result, x, y, name, compare) \
  AS_CHOSEN(result, x, y, ((x) != (x)) | ((x)compare(y)))
#define EXTREME_F64 EXTREME_F32
#define EXTREME_I32(result, x, y, name, compare) AS_CHOSEN(result, x, y, (x)compare(y))
#define EXTREME_I64 EXTREME_I32
#define EACH_OF(v, value) \
  for (int l_ = 0; l_ < (int)(sizeof(v) / sizeof((v)[0])); l_++) (v)[l_] = value
#define FLOATS_OF_HALVES(v, from) EACH_OF(v, mpg_half_to_float((from)[l_]))
#define FLOATS_OF_BFLOAT16(v, from) EACH_OF(v, mpg_bfloat16_to_float((from)[l_]))
#define INTS_OF_INT8(v, from) EACH_OF(v, (from)[l_])
#define INTS_OF_UINT8(v, from) EACH_OF(v, (from)[l_])
#endif

#define T float
#define U float
#define INT int32_t
#define NAME(name) name##_f32
#define LOWEST -INFINITY
#define HIGHEST INFINITY
#define MAGNITUDE fabsf
#define IS_NAN(x) ((x) != (x))
#define LARGEST(result, x, y) EXTREME_F32(result, x, y, max, >)
#define SMALLEST(result, x, y) EXTREME_F32(result, x, y, min, <)
#define NARROW uint16_t
#define NARROW_DTYPE MPG_FLOAT16
#define OF_NARROW mpg_half_to_float
#define LOAD_NARROW FLOATS_OF_HALVES
#define NARROW_TOO uint16_t
#define NARROW_TOO_DTYPE MPG_BFLOAT16
#define OF_NARROW_TOO mpg_bfloat16_to_float
#define LOAD_NARROW_TOO FLOATS_OF_BFLOAT16
#include "kernels/cpu/math/reduce_rows.h"
#define T double
#define U double
#define INT int64_t
#define NAME(name) name##_f64
#define LOWEST -(double)INFINITY
#define HIGHEST (double)INFINITY
#define MAGNITUDE fabs
#define IS_NAN(x) ((x) != (x))
#define LARGEST(result, x, y) EXTREME_F64(result, x, y, max, >)
#define SMALLEST(result, x, y) EXTREME_F64(result, x, y, min, <)
#include "kernels/cpu/math/reduce_rows.h"
#define NARROW int8_t
#define NARROW_DTYPE MPG_INT8
#define OF_NARROW(x) (x)
#define LOAD_NARROW INTS_OF_INT8
#define NARROW_TOO uint8_t
#define NARROW_TOO_DTYPE MPG_UINT8
#define OF_NARROW_TOO(x) (x)
#define LOAD_NARROW_TOO INTS_OF_UINT8
#define NARROW_EXTREMES
#define NO_TRAILING
#define T int32_t
#define U uint32_t
#define INT int32_t
#define NAME(name) name##_i32
#define LOWEST INT32_MIN
#define HIGHEST INT32_MAX
#define MAGNITUDE magnitude_i32
#define IS_NAN(x) ((x) & 0)
#define LARGEST(result, x, y) EXTREME_I32(result, x, y, max, >)
#define SMALLEST(result, x, y) EXTREME_I32(result, x, y, min, <)
#include "kernels/cpu/math/reduce_rows.h"
#define T int64_t
#define U uint64_t
#define INT int64_t
#define NAME(name) name##_i64
#define LOWEST INT64_MIN
#define HIGHEST INT64_MAX
#define MAGNITUDE magnitude_i64
#define IS_NAN(x) ((x) & 0)
#define LARGEST(result, x, y) EXTREME_I64(result, x, y, max, >)
#define SMALLEST(result, x, y) EXTREME_I64(result, x, y, min, <)
#include "kernels/cpu/math/reduce_rows.h"

static void run_items(void *context, int64_t begin, int64_t end) {
  const pass *p = context;
  switch (p->compute) {
    case MPG_COMPUTE_F32: run_items_f32(p, begin, end); break;
    case MPG_COMPUTE_F64: run_items_f64(p, begin, end); break;
    case MPG_COMPUTE_I32: run_items_i32(p, begin, end); break;
    default: run_items_i64(p, begin, end); break;
  }
}

static void run_pass(const mpg_kernel_call *call, pass *p) {
  int64_t tiles, width = tile_of(p->inner, &tiles),
                 cost = (p->chunk < p->count ? p->chunk : p->count) * width;
  mpg_cpu_parallel_for(call, p->outer * p->chunks * tiles, cost > 0 ? 32768 / cost + 1 : 32768,
                       run_items, p);
}

/* Final step of a reduction: division by the count, square root, and conversion to the result's
 * dtype. */
typedef struct finish_plan {
  mpg_compute compute;
  mpg_dtype dtype;
  void *values, *out;
  int64_t count; /* divisor of a mean; 0 if not a mean */
  bool root;
} finish_plan;

#define FINISH(T, root_function)                                     \
  {                                                                  \
    T *v = (T *)p->values + begin, divisor = (T)p->count;            \
    if (p->count)                                                    \
      for (int64_t i = 0; i < n; i++) v[i] = v[i] / divisor;         \
    if (p->root)                                                     \
      for (int64_t i = 0; i < n; i++) v[i] = (T)root_function(v[i]); \
    break;                                                           \
  }
#define ROOT_OF_WHOLE(x) sqrt((double)(x))

static void run_finish(void *context, int64_t begin, int64_t end) {
  const finish_plan *p = context;
  int64_t n = end - begin;
  switch (p->compute) {
    case MPG_COMPUTE_F32: FINISH(float, sqrtf)
    case MPG_COMPUTE_F64: FINISH(double, sqrt)
    case MPG_COMPUTE_I32: break;
    default: FINISH(int64_t, ROOT_OF_WHOLE)
  }
  mpg_cpu_store(
      p->compute, p->dtype, p->out, begin, n,
      (const char *)p->values + begin * (int64_t)mpg_dtype_size(mpg_compute_dtype(p->compute)));
}

/* Runs passes until the source's `count` is 1. The last pass writes to `end`, or to a buffer if
 * `end` is NULL. Other passes alternate between two buffers; *flip is the index of the next one. */
static void run_passes(const mpg_kernel_call *call, pass *p, char *const *buffers, int *flip,
                       void *end) {
  for (;;) {
    p->chunk = mpg_reduction_chunk(p->count, p->inner);
    p->chunks = p->count ? (p->count + p->chunk - 1) / p->chunk : 1;
    p->target = p->chunks == 1 && end ? end : buffers[*flip];
    run_pass(call, p);
    p->source = p->target;
    p->dtype = mpg_compute_dtype(p->compute);
    p->prepare = MPG_PLAIN;
    *flip ^= 1;
    p->count = p->chunks;
    if (p->chunks == 1) return;
  }
}

/* Reduces `in` over the axes marked in `reduced`. */
static mpg_status reduce(const mpg_kernel_call *call, const mpg_view *in, const mpg_view *out,
                         const bool *reduced, mpg_reduction f) {
  mpg_dtype dtype = in->desc.dtype;
  mpg_compute compute = accumulator_of(dtype);
  /* An int32_t accumulator suffices if the reduction selects an element, or if the result's dtype
   * has at most 32 bits, to which sums wrap around. */
  bool one = f.how == MPG_LARGEST || f.how == MPG_SMALLEST,
       wraps = !f.mean && !f.root && mpg_compute_of(out->desc.dtype) == MPG_COMPUTE_I32;
  if (mpg_compute_of(dtype) == MPG_COMPUTE_I32 && (one || wraps) && out->desc.dtype != MPG_BOOL)
    compute = MPG_COMPUTE_I32;
  int64_t item_size = (int64_t)mpg_dtype_size(mpg_compute_dtype(compute)),
          results = mpg_shape_size(&out->desc.shape);
  if (results == 0) return MPG_OK;
  mpg_runs runs = mpg_runs_of(&in->desc.shape, reduced);
  /* Scratch: two buffers for the largest intermediate result; passes alternate between them. The
   * last pass writes to `out` if its dtype is the accumulator's. */
  int64_t largest = results;
  int last = 0;
  while (!runs.reduced[last]) last++;
  for (int run = runs.count - 1; run >= 0; run--) {
    if (!runs.reduced[run]) continue;
    int64_t outer, inner, count = runs.sizes[run];
    mpg_runs_around(&runs, run, &outer, &inner);
    int64_t length = mpg_reduction_chunk(count, inner),
            chunks = count ? (count + length - 1) / length : 1;
    if (outer * chunks * inner > largest) largest = outer * chunks * inner;
  }
  size_t scratch_size = 2 * (size_t)mpg_align_up((size_t)(largest * item_size), 64);
  char *scratch = scratch_size <= call->scratch_size
                      ? call->scratch
                      : mpg_device_scratch(call->device, scratch_size);
  if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  char *buffers[2] = {scratch, scratch + mpg_align_up((size_t)(largest * item_size), 64)};
  pass p = {
      .compute = compute, .how = f.how, .prepare = f.prepare, .dtype = dtype, .source = in->data};
  int flip = 0;
  for (int run = runs.count - 1; run >= 0; run--) {
    if (!runs.reduced[run]) continue;
    mpg_runs_around(&runs, run, &p.outer, &p.inner);
    p.count = runs.sizes[run];
    run_passes(call, &p, buffers, &flip,
               run == last && mpg_compute_direct(compute, out->desc.dtype) && in->data != out->data
                   ? out->data
                   : NULL);
  }
  finish_plan finish = {compute,   out->desc.dtype,         (void *)p.source,
                        out->data, f.mean ? runs.total : 0, f.root};
  if (f.mean && runs.total == 0 && compute != MPG_COMPUTE_I64) { /* an empty mean is 0 / 0 */
    finish.count = 0;
    for (int64_t i = 0; i < results; i++) {
      if (compute == MPG_COMPUTE_F32)
        ((float *)finish.values)[i] = NAN;
      else
        ((double *)finish.values)[i] = (double)NAN;
    }
  }
  mpg_cpu_parallel_for(call, results, 16384, run_finish, &finish);
  return MPG_OK;
}

mpg_status mpg_cpu_reduce(const mpg_kernel_call *call) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  bool reduced[MPG_MAX_NDIM];
  mpg_reduced_axes(call->op, call->params, in->desc.shape.ndim, reduced);
  return reduce(call, in, out, reduced, mpg_reduction_of(call->op, call->params));
}

/* --- Trailing reductions: the first pass, with rows supplied incrementally (reduce.h) --------- */

mpg_trailing_reduction mpg_cpu_trailing_of(const mpg_op *op, const void *params, mpg_dtype dtype,
                                           int64_t count, int64_t inner) {
  mpg_trailing_reduction trailing = {.op = op,
                                     .params = params,
                                     .dtype = dtype,
                                     .count = count,
                                     .inner = inner,
                                     .chunk = mpg_reduction_chunk(count, inner)};
  trailing.chunks = (count + trailing.chunk - 1) / trailing.chunk;
  size_t item = mpg_dtype_size(mpg_compute_dtype(accumulator_of(dtype)));
  int64_t group = group_of(inner, trailing.chunk < count ? trailing.chunk : count),
          pieces = (trailing.chunk + MPG_ROWS * group - 1) / (MPG_ROWS * group);
  int levels = 0;
  while (pieces >> levels) levels++;
  trailing.wide = group * inner;
  trailing.acc_at =
      64 + mpg_align_up((size_t)((group > 1 ? MPG_ROWS : 1) * trailing.wide) * item, 64);
  trailing.levels_at = trailing.acc_at + mpg_align_up((size_t)trailing.wide * item, 64);
  trailing.state_bytes =
      trailing.levels_at + mpg_align_up((size_t)(levels * trailing.wide) * item, 64);
  trailing.partial_bytes = mpg_align_up((size_t)(trailing.chunks * inner) * item, 64);
  return trailing;
}

void mpg_cpu_trailing_begin(void *state) { *(trailing_state *)state = (trailing_state){0}; }

void mpg_cpu_trailing_feed(const mpg_trailing_reduction *trailing, void *state, void *partials,
                           const void *values, int64_t row, int64_t rows) {
  switch (accumulator_of(trailing->dtype)) {
    case MPG_COMPUTE_F32: feed_f32(trailing, state, partials, values, row, rows); break;
    case MPG_COMPUTE_F64: feed_f64(trailing, state, partials, values, row, rows); break;
    default: feed_i64(trailing, state, partials, values, row, rows); break;
  }
}

mpg_status mpg_cpu_trailing_end(const mpg_kernel_call *call, const mpg_trailing_reduction *trailing,
                                void *partials, mpg_dtype dtype, void *out) {
  mpg_reduction f = mpg_reduction_of(trailing->op, trailing->params);
  mpg_compute compute = accumulator_of(trailing->dtype);
  pass p = {.compute = compute,
            .how = f.how,
            .prepare = MPG_PLAIN,
            .dtype = mpg_compute_dtype(compute),
            .source = partials,
            .outer = 1,
            .count = trailing->chunks,
            .inner = trailing->inner};
  if (trailing->chunks > 1) {
    size_t half = trailing->partial_bytes;
    char *scratch = mpg_device_scratch(call->device, 2 * half);
    if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
    run_passes(call, &p, (char *const[]){scratch, scratch + half}, &(int){0}, NULL);
  }
  finish_plan finish = {compute, dtype, (void *)p.source, out, f.mean ? trailing->count : 0,
                        f.root};
  mpg_cpu_parallel_for(call, trailing->inner, 16384, run_finish, &finish);
  return MPG_OK;
}

typedef struct broadcast_plan {
  const char *in;
  char *out;
  int64_t size;       /* bytes per element */
  mpg_broadcast runs; /* has at least one dimension */
} broadcast_plan;

static void repeat(char *out, const char *element, int64_t size, int64_t n) {
  switch (size) {
    case 1: memset(out, *element, (size_t)n); break;
#define REPEAT(T)                                          \
  {                                                        \
    T value;                                               \
    memcpy(&value, element, sizeof value);                 \
    for (int64_t i = 0; i < n; i++) ((T *)out)[i] = value; \
    break;                                                 \
  }
    case 2: REPEAT(uint16_t)
    case 4: REPEAT(uint32_t)
    default: REPEAT(uint64_t)
  }
}

static void run_broadcast(void *context, int64_t begin, int64_t end) {
  const broadcast_plan *p = context;
  const mpg_broadcast *b = &p->runs;
  int64_t index[MPG_MAX_NDIM], rest = begin, from = 0;
  for (int d = 0; d < b->ndim; d++) {
    index[d] = rest % b->dims[d];
    rest /= b->dims[d];
    from += index[d] * b->strides[d];
  }
  while (begin < end) {
    int64_t n = b->dims[0] - index[0];
    if (n > end - begin) n = end - begin;
    if (b->strides[0])
      memcpy(p->out + begin * p->size, p->in + from * p->size, (size_t)(n * p->size));
    else
      repeat(p->out + begin * p->size, p->in + from * p->size, p->size, n);
    begin += n;
    from -= index[0] * b->strides[0];
    index[0] = 0;
    for (int d = 1; d < b->ndim; d++) {
      from += b->strides[d];
      if (++index[d] < b->dims[d]) break;
      from -= b->dims[d] * b->strides[d];
      index[d] = 0;
    }
  }
}

/* Broadcasts short rows: expands as many rows at a time as fit into a buffer, then copies them to
 * the result. */
static void run_short(void *context, int64_t begin, int64_t end) {
  const broadcast_plan *p = context;
  const mpg_broadcast *b = &p->runs;
  mpg_expand_buffer buffer;
  int64_t row_bytes = b->dims[0] * p->size,
          most = (int64_t)(sizeof buffer - MPG_EXPAND_SLACK) / row_bytes;
  for (int64_t row = begin; row < end; row += most) {
    int64_t rows = end - row < most ? end - row : most;
    if (row == begin || b->ndim > 2 || b->strides[1])
      mpg_expand(p->in, (size_t)p->size, b->ndim, b->dims, b->strides, row, rows, buffer);
    memcpy(p->out + row * row_bytes, buffer, (size_t)(rows * row_bytes));
  }
}

mpg_status mpg_cpu_broadcast(const mpg_kernel_call *call) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  broadcast_plan p = {in->data, out->data, (int64_t)item_of(in),
                      mpg_broadcast_of(&in->desc.shape, &out->desc.shape)};
  if (p.runs.ndim == 0) p.runs = (mpg_broadcast){.ndim = 1, .dims = {1}, .strides = {1}};
  int64_t row = p.runs.dims[0], count = count_of(out);
  if (p.runs.ndim > 1 && row <= MPG_EXPAND_ROW && count > 0)
    mpg_cpu_parallel_for(call, count / row, 1 + 32768 / row, run_short, &p);
  else
    mpg_cpu_parallel_for(call, count, 32768, run_broadcast, &p);
  return MPG_OK;
}

mpg_status mpg_cpu_reduce_lines(const mpg_kernel_call *call, const mpg_view *in, int64_t lines,
                                const mpg_view *out, mpg_reduction f) {
  mpg_view source = *in, result = *out;
  source.desc.shape = (mpg_shape){.ndim = 2, .dims = {lines, count_of(in) / lines}};
  result.desc.shape = (mpg_shape){.ndim = 1, .dims = {lines}};
  return reduce(call, &source, &result, (bool[MPG_MAX_NDIM]){false, true}, f);
}

mpg_status mpg_cpu_multi_sum_sq(const mpg_kernel_call *call) {
  bool reduced[MPG_MAX_NDIM];
  for (int k = 0; k < MPG_MAX_NDIM; k++) reduced[k] = true;
  for (int i = 0; i < call->num_inputs; i++) {
    mpg_view out = {(float *)call->outputs[0].data + i, {{.ndim = 1, .dims = {1}}, MPG_FLOAT32}};
    MPG_TRY(reduce(call, &call->inputs[i], &out, reduced,
                   (mpg_reduction){MPG_ADD, MPG_SQUARE, false, false}));
  }
  return MPG_OK;
}
