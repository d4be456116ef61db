/* Reductions, and broadcasting to a shape.
 *
 * Runs of reduced axes are reduced one after another, innermost first. Each pass sees its source as (outer, count, inner)
 * and makes (outer, inner). `count` is cut into chunks whose length depends on shapes alone; the chunks' results are
 * combined by another pass over them. Within a chunk: of neighbours (inner 1), LANES interleaved accumulators over at most
 * BASE elements, and such pieces pairwise; otherwise, rows of BASE_ROWS added up and these pairwise. So rounding errors
 * grow with the logarithm of the count, and bits depend on neither threads nor instruction set.
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

enum { LANES = 32, BASE = 512, BASE_ROWS = 16, COLUMNS = 128, LEVELS = 48, COLUMN_LEVELS = 16 };

/* Accumulators of one type: how values are prepared, rows folded in, and a piece of neighbours reduced. */
#define ACCUMULATOR(suffix, T, U, abs_function, lowest, highest)                                                       \
  static inline T combine_##suffix(mpg_combine how, T x, T y) {                                                        \
    switch (how) {                                                                                                     \
      case MPG_ADD: return (T)((U)x + (U)y);                                                                           \
      case MPG_MULTIPLY: return (T)((U)x * (U)y);                                                                      \
      case MPG_LARGEST: return x != x ? x : x > y ? x : y;                                                             \
      default: return x != x ? x : x < y ? x : y;                                                                      \
    }                                                                                                                  \
  }                                                                                                                    \
  static T identity_##suffix(mpg_combine how) { return how == MPG_ADD ? 0 : how == MPG_MULTIPLY ? 1 : how == MPG_LARGEST ? lowest : highest; } \
  static void prepare_##suffix(mpg_prepare how, const T *from, T *to, int64_t n) {                                     \
    switch (how) {                                                                                                     \
      case MPG_MAGNITUDE: for (int64_t i = 0; i < n; i++) to[i] = abs_function(from[i]); break;                        \
      case MPG_SQUARE: for (int64_t i = 0; i < n; i++) to[i] = (T)((U)from[i] * (U)from[i]); break;                    \
      case MPG_NAN_TO_0: for (int64_t i = 0; i < n; i++) to[i] = from[i] != from[i] ? 0 : from[i]; break;              \
      case MPG_NAN_TO_1: for (int64_t i = 0; i < n; i++) to[i] = from[i] != from[i] ? 1 : from[i]; break;              \
      default: for (int64_t i = 0; i < n; i++) to[i] = from[i]; break;                                                 \
    }                                                                                                                  \
  }                                                                                                                    \
  __attribute__((always_inline)) static inline void fold_##suffix##_as(mpg_combine how, T *acc, const T *row, int64_t n) { \
    for (int64_t i = 0; i < n; i++) acc[i] = combine_##suffix(how, acc[i], row[i]);                                    \
  }                                                                                                                    \
  static void fold_##suffix(mpg_combine how, T *acc, const T *row, int64_t n) {                                        \
    switch (how) {                                                                                                     \
      case MPG_ADD: fold_##suffix##_as(MPG_ADD, acc, row, n); break;                                                   \
      case MPG_MULTIPLY: fold_##suffix##_as(MPG_MULTIPLY, acc, row, n); break;                                         \
      case MPG_LARGEST: fold_##suffix##_as(MPG_LARGEST, acc, row, n); break;                                           \
      default: fold_##suffix##_as(MPG_SMALLEST, acc, row, n); break;                                                   \
    }                                                                                                                  \
  }                                                                                                                    \
  /* Neighbours, at most BASE of them. */                                                                              \
  __attribute__((always_inline)) static inline T piece_##suffix##_as(mpg_combine how, const T *values, int64_t n) {    \
    if (n < LANES) {                                                                                                   \
      T result = values[0];                                                                                            \
      for (int64_t i = 1; i < n; i++) result = combine_##suffix(how, result, values[i]);                               \
      return result;                                                                                                   \
    }                                                                                                                  \
    T acc[LANES];                                                                                                      \
    for (int k = 0; k < LANES; k++) acc[k] = values[k];                                                                \
    int64_t i = LANES;                                                                                                 \
    for (; i + LANES <= n; i += LANES)                                                                                 \
      for (int k = 0; k < LANES; k++) acc[k] = combine_##suffix(how, acc[k], values[i + k]);                           \
    for (int k = 0; i < n; i++, k++) acc[k] = combine_##suffix(how, acc[k], values[i]);                                \
    for (int width = LANES / 2; width; width /= 2)                                                                     \
      for (int k = 0; k < width; k++) acc[k] = combine_##suffix(how, acc[k], acc[k + width]);                          \
    return acc[0];                                                                                                     \
  }                                                                                                                    \
  static T piece_##suffix(mpg_combine how, const T *values, int64_t n) {                                               \
    switch (how) {                                                                                                     \
      case MPG_ADD: return piece_##suffix##_as(MPG_ADD, values, n);                                                    \
      case MPG_MULTIPLY: return piece_##suffix##_as(MPG_MULTIPLY, values, n);                                          \
      case MPG_LARGEST: return piece_##suffix##_as(MPG_LARGEST, values, n);                                            \
      default: return piece_##suffix##_as(MPG_SMALLEST, values, n);                                                    \
    }                                                                                                                  \
  }
ACCUMULATOR(f32, float, float, fabsf, -INFINITY, INFINITY)
ACCUMULATOR(f64, double, double, fabs, -(double)INFINITY, (double)INFINITY)
static inline int64_t magnitude_i64(int64_t x) { return x < 0 ? (int64_t)(0u - (uint64_t)x) : x; }
ACCUMULATOR(i64, int64_t, uint64_t, magnitude_i64, INT64_MIN, INT64_MAX)

/* acc = ((acc + row) + row) + ..., acc in registers; `first`: without what is in acc. */
#define ADD_ROWS(suffix, T, U)                                                                                          \
  typedef U vector_##suffix __attribute__((vector_size(64), aligned(sizeof(T)), may_alias));                            \
  static void add_rows_##suffix(const T *rows, int64_t stride, int64_t n, T *acc, int64_t width, bool first) {          \
    enum { VECTOR = 64 / sizeof(T) };                                                                                   \
    int64_t i = 0;                                                                                                      \
    for (; i + 4 * VECTOR <= width; i += 4 * VECTOR) {                                                                  \
      vector_##suffix v[4];                                                                                             \
      for (int k = 0; k < 4; k++) v[k] = *(const vector_##suffix *)((first ? rows : acc) + i + k * VECTOR);             \
      for (int64_t r = first; r < n; r++)                                                                               \
        for (int k = 0; k < 4; k++) v[k] += *(const vector_##suffix *)(rows + r * stride + i + k * VECTOR);             \
      for (int k = 0; k < 4; k++) *(vector_##suffix *)(acc + i + k * VECTOR) = v[k];                                    \
    }                                                                                                                   \
    for (; i < width; i++) {                                                                                            \
      U v = (U)(first ? rows : acc)[i];                                                                                 \
      for (int64_t r = first; r < n; r++) v += (U)rows[r * stride + i];                                                 \
      acc[i] = (T)v;                                                                                                    \
    }                                                                                                                   \
  }
ADD_ROWS(f32, float, float)
ADD_ROWS(f64, double, double)
ADD_ROWS(i64, int64_t, uint64_t)

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

/* Pieces combined pairwise as a binary counter counts: level k holds the result of 2^k pieces. */
#define NEIGHBOURS(suffix, T)                                                                            \
  static T neighbours_##suffix(const pass *p, int64_t begin, int64_t count) {                            \
    T levels[LEVELS];                                                                                    \
    uint64_t pieces = 0;                                                                                 \
    mpg_block_buffer loaded, prepared;                                                                   \
    for (int64_t done = 0; done < count; done += BASE) {                                                 \
      int64_t n = count - done < BASE ? count - done : BASE;                                             \
      const T *values = mpg_cpu_load(p->compute, p->dtype, p->source, begin + done, n, &loaded);         \
      if (p->prepare != MPG_PLAIN) {                                                                     \
        prepare_##suffix(p->prepare, values, prepared.suffix, n);                                        \
        values = prepared.suffix;                                                                        \
      }                                                                                                  \
      T result = piece_##suffix(p->how, values, n);                                                      \
      int level = 0;                                                                                     \
      for (; pieces >> level & 1; level++) result = combine_##suffix(p->how, levels[level], result);     \
      levels[level] = result;                                                                            \
      pieces++;                                                                                          \
    }                                                                                                    \
    T total = identity_##suffix(p->how);                                                                 \
    bool first = true;                                                                                   \
    for (int level = 0; pieces >> level; level++) {                                                      \
      if (!(pieces >> level & 1)) continue;                                                              \
      total = first ? levels[level] : combine_##suffix(p->how, levels[level], total);                    \
      first = false;                                                                                     \
    }                                                                                                    \
    return total;                                                                                        \
  }                                                                                                      \
  /* Columns [column, column + width) of rows [row, row + count), into `result`. */                      \
  static void columns_##suffix(const pass *p, int64_t outer, int64_t row, int64_t count, int64_t column, int64_t width, T *result) { \
    T levels[COLUMN_LEVELS][COLUMNS], acc[COLUMNS];                                                                 \
    uint64_t pieces = 0;                                                                                 \
    mpg_block_buffer loaded, prepared;                                                                   \
    for (int64_t done = 0; done < count; done += BASE_ROWS) {                                            \
      int64_t n = count - done < BASE_ROWS ? count - done : BASE_ROWS;                                   \
      bool plain = p->how == MPG_ADD && p->prepare == MPG_PLAIN && mpg_compute_direct(p->compute, p->dtype); \
      if (plain)                                                                                         \
        add_rows_##suffix((const T *)p->source + (outer * p->count + row + done) * p->inner + column, p->inner, n, acc, width, true); \
      for (int64_t r = 0; r < n && !plain; r++) {                                                        \
        int64_t index = (outer * p->count + row + done + r) * p->inner + column;                         \
        const T *values = mpg_cpu_load(p->compute, p->dtype, p->source, index, width, &loaded);          \
        if (p->prepare != MPG_PLAIN) {                                                                   \
          prepare_##suffix(p->prepare, values, prepared.suffix, width);                                  \
          values = prepared.suffix;                                                                      \
        }                                                                                                \
        if (r == 0)                                                                                      \
          memcpy(acc, values, (size_t)width * sizeof(T));                                                \
        else                                                                                             \
          fold_##suffix(p->how, acc, values, width);                                                     \
      }                                                                                                  \
      int level = 0;                                                                                     \
      for (; pieces >> level & 1; level++) {                                                             \
        fold_##suffix(p->how, levels[level], acc, width);                                                \
        memcpy(acc, levels[level], (size_t)width * sizeof(T));                                           \
      }                                                                                                  \
      memcpy(levels[level], acc, (size_t)width * sizeof(T));                                             \
      pieces++;                                                                                          \
    }                                                                                                    \
    bool first = true;                                                                                   \
    for (int level = 0; pieces >> level; level++) {                                                      \
      if (!(pieces >> level & 1)) continue;                                                              \
      if (!first) fold_##suffix(p->how, levels[level], result, width);                                   \
      memcpy(result, levels[level], (size_t)width * sizeof(T));                                          \
      first = false;                                                                                     \
    }                                                                                                    \
    if (first)                                                                                           \
      for (int64_t i = 0; i < width; i++) result[i] = identity_##suffix(p->how);                         \
  }                                                                                                      \
  static void run_##suffix(const pass *p, int64_t item) {                                                \
    T *target = p->target;                                                                               \
    if (p->inner == 1) {                                                                                 \
      int64_t outer = item / p->chunks, chunk = item % p->chunks, begin = chunk * p->chunk;              \
      int64_t n = p->count - begin < p->chunk ? p->count - begin : p->chunk;                             \
      target[item] = neighbours_##suffix(p, outer * p->count + begin, n);                                \
      return;                                                                                            \
    }                                                                                                    \
    int64_t tiles = (p->inner + COLUMNS - 1) / COLUMNS, column = item % tiles * COLUMNS;                 \
    int64_t chunk = item / tiles % p->chunks, outer = item / tiles / p->chunks, begin = chunk * p->chunk; \
    int64_t n = p->count - begin < p->chunk ? p->count - begin : p->chunk;                               \
    int64_t width = p->inner - column < COLUMNS ? p->inner - column : COLUMNS;                           \
    columns_##suffix(p, outer, begin, n, column, width, target + (outer * p->chunks + chunk) * p->inner + column); \
  }
NEIGHBOURS(f32, float)
NEIGHBOURS(f64, double)
NEIGHBOURS(i64, int64_t)

static void run_items(void *context, int64_t begin, int64_t end) {
  const pass *p = context;
  for (int64_t item = begin; item < end; item++) {
    switch (p->compute) {
      case MPG_COMPUTE_F32: run_f32(p, item); break;
      case MPG_COMPUTE_F64: run_f64(p, item); break;
      default: run_i64(p, item); break;
    }
  }
}

static void run_pass(const mpg_kernel_call *call, pass *p) {
  int64_t tiles = p->inner == 1 ? 1 : (p->inner + COLUMNS - 1) / COLUMNS;
  int64_t width = p->inner < COLUMNS ? p->inner : COLUMNS, cost = (p->chunk < p->count ? p->chunk : p->count) * width;
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

static void run_finish(void *context, int64_t begin, int64_t end) {
  const finish_plan *p = context;
  for (int64_t i = begin; i < end; i++) {
    if (p->compute == MPG_COMPUTE_F32) {
      float *v = (float *)p->values + i;
      if (p->count) *v = *v / (float)p->count;
      if (p->root) *v = sqrtf(*v);
    } else if (p->compute == MPG_COMPUTE_F64) {
      double *v = (double *)p->values + i;
      if (p->count) *v = *v / (double)p->count;
      if (p->root) *v = sqrt(*v);
    } else {
      int64_t *v = (int64_t *)p->values + i;
      if (p->count) *v = *v / p->count;
      if (p->root) *v = (int64_t)sqrt((double)*v);
    }
  }
  mpg_cpu_store(p->compute, p->dtype, p->out, begin, end - begin, (const char *)p->values + begin * (int64_t)mpg_dtype_size(mpg_compute_dtype(p->compute)));
}

/* Passes over the source's `count` until one result is left, which the last of them leaves in its target. */
static void run_passes(const mpg_kernel_call *call, pass *p, char *const *buffers, int *flip) {
  for (;;) {
    p->chunk = mpg_fold_chunk(p->count, p->inner);
    p->chunks = p->count ? (p->count + p->chunk - 1) / p->chunk : 1;
    p->target = buffers[*flip];
    run_pass(call, p);
    p->source = p->target;
    p->dtype = mpg_compute_dtype(p->compute);
    p->prepare = MPG_PLAIN;
    *flip ^= 1;
    p->count = p->chunks;
    if (p->chunks == 1) return;
  }
}

static mpg_compute accumulator_of(mpg_dtype dtype) { return mpg_dtype_is_float(dtype) ? mpg_compute_of(dtype) : MPG_COMPUTE_I64; }

/* Reduces `in` over the axes marked in `reduced`. */
static mpg_status reduce(const mpg_kernel_call *call, const mpg_view *in, const mpg_view *out, const bool *reduced, mpg_reduction f) {
  mpg_dtype dtype = in->desc.dtype;
  mpg_compute compute = accumulator_of(dtype);
  int64_t item_size = (int64_t)mpg_dtype_size(mpg_compute_dtype(compute)), results = mpg_shape_size(&out->desc.shape);
  if (results == 0) return MPG_OK;
  mpg_runs runs = mpg_runs_of(&in->desc.shape, reduced);
  /* Scratch: the largest intermediate result, twice, as passes go to and fro; the last pass may end in `out` itself. */
  int64_t largest = results;
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
    run_passes(call, &p, buffers, &flip);
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
  int64_t pieces = (fold.chunk + (inner == 1 ? BASE : BASE_ROWS) - 1) / (inner == 1 ? BASE : BASE_ROWS);
  while (pieces >> fold.levels) fold.levels++;
  size_t row = mpg_align_up((size_t)(inner == 1 ? BASE : inner) * item, 64);
  fold.state_bytes = 64 + row + mpg_align_up((size_t)(fold.levels * inner) * item, 64);
  fold.partial_bytes = mpg_align_up((size_t)(fold.chunks * inner) * item, 64);
  return fold;
}

/* In front of a thread's state; then the rows of the piece that is being added up (elements, when inner is 1), and the levels. */
typedef struct fold_state {
  int64_t held;    /* rows in the piece */
  uint64_t pieces; /* of the chunk, before it */
} fold_state;

#define FOLDS(suffix, T)                                                                                                         \
  static void add_piece_##suffix(const mpg_fold *fold, mpg_combine how, fold_state *state, T *piece, T *levels) {                \
    int64_t n = fold->inner;                                                                                                     \
    int level = 0;                                                                                                               \
    for (; state->pieces >> level & 1; level++) {                                                                                \
      fold_##suffix(how, levels + level * n, piece, n);                                                                          \
      memcpy(piece, levels + level * n, (size_t)n * sizeof(T));                                                                  \
    }                                                                                                                            \
    memcpy(levels + level * n, piece, (size_t)n * sizeof(T));                                                                    \
    state->pieces++;                                                                                                             \
    state->held = 0;                                                                                                             \
  }                                                                                                                              \
  static void end_chunk_##suffix(const mpg_fold *fold, mpg_combine how, fold_state *state, T *piece, T *levels, T *result) {     \
    int64_t n = fold->inner;                                                                                                     \
    if (state->held) {                                                                                                           \
      if (n == 1) piece[0] = piece_##suffix(how, piece, state->held);                                                            \
      add_piece_##suffix(fold, how, state, piece, levels);                                                                       \
    }                                                                                                                            \
    bool first = true;                                                                                                           \
    for (int level = 0; state->pieces >> level; level++) {                                                                       \
      if (!(state->pieces >> level & 1)) continue;                                                                               \
      if (!first) fold_##suffix(how, levels + level * n, result, n);                                                             \
      memcpy(result, levels + level * n, (size_t)n * sizeof(T));                                                                 \
      first = false;                                                                                                             \
    }                                                                                                                            \
    state->pieces = 0;                                                                                                           \
  }                                                                                                                              \
  static void feed_##suffix(const mpg_fold *fold, char *memory, T *partials, const void *values, int64_t row, int64_t rows) {    \
    mpg_reduction f = mpg_reduction_of(fold->op, fold->params);                                                                            \
    mpg_compute compute = accumulator_of(fold->dtype);                                                                           \
    fold_state *state = (fold_state *)(void *)memory;                                                                            \
    int64_t inner = fold->inner, held = inner == 1 ? BASE : BASE_ROWS;                                                           \
    T *piece = (T *)(void *)(memory + 64);                                                                                       \
    T *levels = (T *)(void *)(memory + 64 + mpg_align_up((size_t)(inner == 1 ? BASE : inner) * sizeof(T), 64));                  \
    mpg_block_buffer loaded, prepared;                                                                                           \
    for (int64_t done = 0; done < rows;) {                                                                                       \
      int64_t at = row + done, chunk = at / fold->chunk, end = (chunk + 1) * fold->chunk < fold->count ? (chunk + 1) * fold->chunk : fold->count; \
      int64_t n = held - state->held; /* rows that go into the piece */                                                          \
      if (n > end - at) n = end - at;                                                                                            \
      if (n > rows - done) n = rows - done;                                                                                      \
      if (inner == 1) {                                                                                                          \
        const T *from = mpg_cpu_load(compute, fold->dtype, values, done, n, &loaded);                                            \
        if (f.prepare == MPG_PLAIN && n == held) { /* as it lies */                                                              \
          piece[0] = piece_##suffix(f.how, from, n);                                                                             \
          add_piece_##suffix(fold, f.how, state, piece, levels);                                                                 \
          n = 0;                                                                                                                 \
          done += held;                                                                                                          \
          at += held;                                                                                                            \
        } else {                                                                                                                 \
          prepare_##suffix(f.prepare, from, piece + state->held, n);                                                             \
        }                                                                                                                        \
      } else if (f.how == MPG_ADD && f.prepare == MPG_PLAIN && mpg_compute_direct(compute, fold->dtype)) {                       \
        add_rows_##suffix((const T *)values + done * inner, inner, n, piece, inner, state->held == 0);                           \
      } else {                                                                                                                   \
        for (int64_t column = 0; column < inner; column += COLUMNS) {                                                            \
          int64_t width = inner - column < COLUMNS ? inner - column : COLUMNS;                                                   \
          for (int64_t r = 0; r < n; r++) {                                                                                      \
            const T *from = mpg_cpu_load(compute, fold->dtype, values, (done + r) * inner + column, width, &loaded);             \
            if (f.prepare != MPG_PLAIN) {                                                                                        \
              prepare_##suffix(f.prepare, from, prepared.suffix, width);                                                         \
              from = prepared.suffix;                                                                                            \
            }                                                                                                                    \
            if (state->held + r == 0) memcpy(piece + column, from, (size_t)width * sizeof(T));                                   \
            else fold_##suffix(f.how, piece + column, from, width);                                                              \
          }                                                                                                                      \
        }                                                                                                                        \
      }                                                                                                                          \
      state->held += n;                                                                                                          \
      done += n;                                                                                                                 \
      if (state->held == held) {                                                                                                 \
        if (inner == 1) piece[0] = piece_##suffix(f.how, piece, held);                                                           \
        add_piece_##suffix(fold, f.how, state, piece, levels);                                                                   \
      }                                                                                                                          \
      if (at + n == end) end_chunk_##suffix(fold, f.how, state, piece, levels, partials + chunk * inner);                        \
    }                                                                                                                            \
  }
FOLDS(f32, float)
FOLDS(f64, double)
FOLDS(i64, int64_t)

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
    run_passes(call, &p, (char *const[]){scratch, scratch + half}, &(int){0});
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

MPG_CPU_KERNEL(multi_sum_sq) {
  bool reduced[MPG_MAX_NDIM];
  for (int k = 0; k < MPG_MAX_NDIM; k++) reduced[k] = true;
  for (int i = 0; i < call->num_inputs; i++) {
    mpg_view out = {(float *)call->outputs[0].data + i, {{.ndim = 1, .dims = {1}}, MPG_FLOAT32}};
    MPG_TRY(reduce(call, &call->inputs[i], &out, reduced, (mpg_reduction){MPG_ADD, MPG_SQUARE, false, false}));
  }
  return MPG_OK;
}
