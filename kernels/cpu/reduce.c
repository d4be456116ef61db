/* Reductions, and broadcasting to a shape.
 *
 * Runs of reduced axes are reduced one after another, innermost first. Each pass sees its source as (outer, count, inner)
 * and makes (outer, inner). `count` is cut into chunks whose length depends on shapes alone; the chunks' results are
 * combined by another pass over them. Within a chunk: rows shorter than MPG_WIDE elements are taken in groups, as one wide row (neighbours, with
 * inner 1, as MPG_WIDE of them); MPG_ROWS rows are added up one after the other, and such pieces pairwise; last, what is left over is added to a wide row and
 * its halves to each other. So rounding errors grow with the logarithm of the count, and bits depend on neither threads nor instruction set.
 * Halves and floats accumulate in float, doubles in double, integers in int64_t. Between passes the accumulator's type is kept.
 */
#include "kernels/cpu/reduce.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "device/device.h"
#include "kernels/common/reduce.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/expand.h"
#include "op/fused.h"

enum { MPG_WIDE = 32, MPG_ROWS = 16, MPG_COLUMNS = MPG_CPU_BLOCK, LEVELS = 10 };

/* Rows of `inner` that are taken as one: a power of two. */
static int64_t group_of(int64_t inner, int64_t count) {
  int64_t group = 1;
  while (group * inner < MPG_WIDE) group *= 2;
  if (count >= group) return group;
  return inner == 1 && count >= MPG_WIDE / 2 ? MPG_WIDE / 2 : 1;
}

/* Columns of a tile, and how many tiles there are: none is narrow where `inner` isn't. */
static int64_t tile_of(int64_t inner, int64_t *tiles) {
  *tiles = inner > 0 ? (inner + MPG_COLUMNS - 1) / MPG_COLUMNS : 1;
  int64_t width = (inner + *tiles - 1) / *tiles;
  return *tiles == 1 ? inner : (width + MPG_WIDE - 1) / MPG_WIDE * MPG_WIDE;
}

static mpg_compute accumulator_of(mpg_dtype dtype) { return mpg_dtype_is_float(dtype) ? mpg_compute_of(dtype) : MPG_COMPUTE_I64; }

typedef struct pass {
  mpg_compute compute; /* F32, F64 or I64 */
  mpg_combine how;
  mpg_prepare prepare;
  mpg_dtype dtype; /* of the source */
  const void *source;
  int64_t outer, count, inner;
  int64_t chunk, chunks;
  void *target; /* (outer, chunks, inner) in the compute type */
} pass;

/* In front of a thread's state of a fold; then the rows of the piece that is being added up, room for a wide row, and the levels. */
typedef struct fold_state {
  int64_t held;    /* rows in the piece */
  uint64_t pieces; /* of the chunk, before it */
} fold_state;

#define INLINE __attribute__((always_inline)) static inline
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
static inline int64_t magnitude_i64(int64_t x) { return x < 0 ? (int64_t)(0u - (uint64_t)x) : x; }
#define T float
#define U float
#define INT int32_t
#define NAME(x) x##_f32
#define LOWEST -INFINITY
#define HIGHEST INFINITY
#define MAGNITUDE fabsf
#define IS_NAN(x) ((x) != (x))
#include "kernels/cpu/reduce_rows.h"
#undef T
#undef U
#undef INT
#undef NAME
#undef MAGNITUDE
#undef LOWEST
#undef HIGHEST
#define T double
#define U double
#define INT int64_t
#define NAME(x) x##_f64
#define LOWEST -(double)INFINITY
#define HIGHEST (double)INFINITY
#define MAGNITUDE fabs
#include "kernels/cpu/reduce_rows.h"
#undef T
#undef U
#undef NAME
#undef MAGNITUDE
#undef LOWEST
#undef HIGHEST
#define T int64_t
#define U uint64_t
#define NAME(x) x##_i64
#define LOWEST INT64_MIN
#define HIGHEST INT64_MAX
#define MAGNITUDE magnitude_i64
#undef IS_NAN
#define IS_NAN(x) ((x) & 0)
#include "kernels/cpu/reduce_rows.h"

static void run_items(void *context, int64_t begin, int64_t end) {
  const pass *p = context;
  switch (p->compute) {
    case MPG_COMPUTE_F32: run_items_f32(p, begin, end); break;
    case MPG_COMPUTE_F64: run_items_f64(p, begin, end); break;
    default: run_items_i64(p, begin, end); break;
  }
}

static void run_pass(const mpg_kernel_call *call, pass *p) {
  int64_t tiles, width = tile_of(p->inner, &tiles), cost = (p->chunk < p->count ? p->chunk : p->count) * width;
  mpg_cpu_parallel_for(call, p->outer * p->chunks * tiles, cost > 0 ? 32768 / cost + 1 : 32768, run_items, p);
}

/* What follows the last pass: division by the count, the square root, and conversion to the result's dtype. */
typedef struct finish_plan {
  mpg_compute compute;
  mpg_dtype dtype;
  void *values, *out;
  int64_t count; /* 0: no mean */
  bool root;
} finish_plan;

#define FINISH(T, root_function)                                                              \
  {                                                                                           \
    T *v = (T *)p->values + begin, divisor = (T)p->count;                                     \
    if (p->count)                                                                             \
      for (int64_t i = 0; i < n; i++) v[i] = v[i] / divisor;                                  \
    if (p->root)                                                                              \
      for (int64_t i = 0; i < n; i++) v[i] = (T)root_function(v[i]);                          \
    break;                                                                                    \
  }
#define ROOT_OF_WHOLE(x) sqrt((double)(x))

static void run_finish(void *context, int64_t begin, int64_t end) {
  const finish_plan *p = context;
  int64_t n = end - begin;
  switch (p->compute) {
    case MPG_COMPUTE_F32: FINISH(float, sqrtf)
    case MPG_COMPUTE_F64: FINISH(double, sqrt)
    default: FINISH(int64_t, ROOT_OF_WHOLE)
  }
  mpg_cpu_store(p->compute, p->dtype, p->out, begin, n, (const char *)p->values + begin * (int64_t)mpg_dtype_size(mpg_compute_dtype(p->compute)));
}

/* Passes over the source's `count` until one result is left, which the last of them leaves in its target: `end`, or a buffer. */
static void run_passes(const mpg_kernel_call *call, pass *p, char *const *buffers, int *flip, void *end) {
  for (;;) {
    p->chunk = mpg_fold_chunk(p->count, p->inner);
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
static mpg_status reduce(const mpg_kernel_call *call, const mpg_view *in, const mpg_view *out, const bool *reduced, mpg_reduction f) {
  mpg_dtype dtype = in->desc.dtype;
  mpg_compute compute = accumulator_of(dtype);
  int64_t item_size = (int64_t)mpg_dtype_size(mpg_compute_dtype(compute)), results = mpg_shape_size(&out->desc.shape);
  if (results == 0) return MPG_OK;
  mpg_runs runs = mpg_runs_of(&in->desc.shape, reduced);
  /* Scratch: the largest intermediate result, twice, as passes go to and fro; the last pass ends in `out` itself where its dtype is the accumulator's. */
  int64_t largest = results;
  int last = 0;
  while (!runs.reduced[last]) last++;
  for (int run = runs.count - 1; run >= 0; run--) {
    if (!runs.reduced[run]) continue;
    int64_t outer, inner, count = runs.sizes[run];
    mpg_runs_around(&runs, run, &outer, &inner);
    int64_t length = mpg_fold_chunk(count, inner), chunks = count ? (count + length - 1) / length : 1;
    if (outer * chunks * inner > largest) largest = outer * chunks * inner;
  }
  size_t scratch_size = 2 * (size_t)mpg_align_up((size_t)(largest * item_size), 64);
  char *scratch = scratch_size <= call->scratch_size ? call->scratch : mpg_device_scratch(call->device, scratch_size);
  if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  char *buffers[2] = {scratch, scratch + mpg_align_up((size_t)(largest * item_size), 64)};
  pass p = {.compute = compute, .how = f.how, .prepare = f.prepare, .dtype = dtype, .source = in->data};
  int flip = 0;
  for (int run = runs.count - 1; run >= 0; run--) {
    if (!runs.reduced[run]) continue;
    mpg_runs_around(&runs, run, &p.outer, &p.inner);
    p.count = runs.sizes[run];
    run_passes(call, &p, buffers, &flip, run == last && mpg_compute_direct(compute, out->desc.dtype) && in->data != out->data ? out->data : NULL);
  }
  finish_plan finish = {compute, out->desc.dtype, (void *)p.source, out->data, f.mean ? runs.total : 0, f.root};
  if (f.mean && runs.total == 0 && compute != MPG_COMPUTE_I64) { /* 0 / 0 */
    finish.count = 0;
    for (int64_t i = 0; i < results; i++) {
      if (compute == MPG_COMPUTE_F32) ((float *)finish.values)[i] = NAN;
      else ((double *)finish.values)[i] = (double)NAN;
    }
  }
  mpg_cpu_parallel_for(call, results, 16384, run_finish, &finish);
  return MPG_OK;
}

MPG_CPU_KERNEL(reduce) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  bool reduced[MPG_MAX_NDIM];
  mpg_reduced_axes(call->op, call->params, in->desc.shape.ndim, reduced);
  return reduce(call, in, out, reduced, mpg_reduction_of(call->op, call->params));
}

/* --- Folds: the first pass given its rows bit by bit (reduce.h) ------------------------------------------------------ */

mpg_fold mpg_cpu_fold_of(const mpg_op *op, const void *params, mpg_dtype dtype, int64_t count, int64_t inner) {
  mpg_fold fold = {.op = op, .params = params, .dtype = dtype, .count = count, .inner = inner, .chunk = mpg_fold_chunk(count, inner)};
  fold.chunks = (count + fold.chunk - 1) / fold.chunk;
  size_t item = mpg_dtype_size(mpg_compute_dtype(accumulator_of(dtype)));
  int64_t group = group_of(inner, fold.chunk < count ? fold.chunk : count), pieces = (fold.chunk + MPG_ROWS * group - 1) / (MPG_ROWS * group);
  int levels = 0;
  while (pieces >> levels) levels++;
  fold.wide = group * inner;
  fold.acc_at = 64 + mpg_align_up((size_t)((group > 1 ? MPG_ROWS : 1) * fold.wide) * item, 64);
  fold.levels_at = fold.acc_at + mpg_align_up((size_t)fold.wide * item, 64);
  fold.state_bytes = fold.levels_at + mpg_align_up((size_t)(levels * fold.wide) * item, 64);
  fold.partial_bytes = mpg_align_up((size_t)(fold.chunks * inner) * item, 64);
  return fold;
}

void mpg_cpu_fold_begin(void *state) { *(fold_state *)state = (fold_state){0}; }

void mpg_cpu_fold_feed(const mpg_fold *fold, void *state, void *partials, const void *values, int64_t row, int64_t rows) {
  switch (accumulator_of(fold->dtype)) {
    case MPG_COMPUTE_F32: feed_f32(fold, state, partials, values, row, rows); break;
    case MPG_COMPUTE_F64: feed_f64(fold, state, partials, values, row, rows); break;
    default: feed_i64(fold, state, partials, values, row, rows); break;
  }
}

mpg_status mpg_cpu_fold_end(const mpg_kernel_call *call, const mpg_fold *fold, void *partials, mpg_dtype dtype, void *out) {
  mpg_reduction f = mpg_reduction_of(fold->op, fold->params);
  mpg_compute compute = accumulator_of(fold->dtype);
  pass p = {.compute = compute, .how = f.how, .prepare = MPG_PLAIN, .dtype = mpg_compute_dtype(compute), .source = partials,
            .outer = 1, .count = fold->chunks, .inner = fold->inner};
  if (fold->chunks > 1) {
    size_t half = fold->partial_bytes;
    char *scratch = mpg_device_scratch(call->device, 2 * half);
    if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
    run_passes(call, &p, (char *const[]){scratch, scratch + half}, &(int){0}, NULL);
  }
  finish_plan finish = {compute, dtype, (void *)p.source, out, f.mean ? fold->count : 0, f.root};
  mpg_cpu_parallel_for(call, fold->inner, 16384, run_finish, &finish);
  return MPG_OK;
}

typedef struct broadcast_plan {
  const char *in;
  char *out;
  int64_t size; /* bytes an element */
  mpg_broadcast runs; /* one at least */
} broadcast_plan;

static void repeat(char *out, const char *element, int64_t size, int64_t n) {
  switch (size) {
    case 1: memset(out, *element, (size_t)n); break;
#define REPEAT(T)                                                 \
  {                                                               \
    T value;                                                      \
    memcpy(&value, element, sizeof value);                        \
    for (int64_t i = 0; i < n; i++) ((T *)out)[i] = value;        \
    break;                                                        \
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

/* Rows of the innermost dimension, as many at a time as fit into a buffer, which the vectors of expand.h may overrun. */
static void run_short(void *context, int64_t begin, int64_t end) {
  const broadcast_plan *p = context;
  const mpg_broadcast *b = &p->runs;
  mpg_expand_buffer buffer;
  int64_t row_bytes = b->dims[0] * p->size, most = (int64_t)(sizeof buffer - MPG_EXPAND_SLACK) / row_bytes;
  for (int64_t row = begin; row < end; row += most) {
    int64_t rows = end - row < most ? end - row : most;
    if (row == begin || b->ndim > 2 || b->strides[1]) mpg_expand(p->in, (size_t)p->size, b->ndim, b->dims, b->strides, row, rows, buffer);
    memcpy(p->out + row * row_bytes, buffer, (size_t)(rows * row_bytes));
  }
}

MPG_CPU_KERNEL(broadcast) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  broadcast_plan p = {in->data, out->data, (int64_t)item_of(in), mpg_broadcast_of(&in->desc.shape, &out->desc.shape)};
  if (p.runs.ndim == 0) p.runs = (mpg_broadcast){.ndim = 1, .dims = {1}, .strides = {1}};
  int64_t row = p.runs.dims[0], count = count_of(out);
  if (p.runs.ndim > 1 && row <= MPG_EXPAND_ROW && count > 0)
    mpg_cpu_parallel_for(call, count / row, 1 + 32768 / row, run_short, &p);
  else
    mpg_cpu_parallel_for(call, count, 32768, run_broadcast, &p);
  return MPG_OK;
}

mpg_status mpg_cpu_sum_lines(const mpg_kernel_call *call, const mpg_view *in, int64_t lines, const mpg_view *out, bool mean) {
  mpg_view source = *in, result = *out;
  source.desc.shape = (mpg_shape){.ndim = 2, .dims = {lines, count_of(in) / lines}};
  result.desc.shape = (mpg_shape){.ndim = 1, .dims = {lines}};
  return reduce(call, &source, &result, (bool[MPG_MAX_NDIM]){false, true}, (mpg_reduction){MPG_ADD, MPG_PLAIN, mean, false});
}

MPG_CPU_KERNEL(multi_sum_sq) {
  bool reduced[MPG_MAX_NDIM];
  for (int k = 0; k < MPG_MAX_NDIM; k++) reduced[k] = true;
  for (int i = 0; i < call->num_inputs; i++) {
    mpg_view out = {(float *)call->outputs[0].data + i, {{.ndim = 1, .dims = {1}}, MPG_FLOAT32}};
    MPG_TRY(reduce(call, &call->inputs[i], &out, reduced, (mpg_reduction){MPG_ADD, MPG_SQUARE, false, false}));
  }
  return MPG_OK;
}
