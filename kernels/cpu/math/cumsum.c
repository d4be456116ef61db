/* Cumulative sums. The input is [outer, length, inner]. Rows of `inner` elements are added one
 * after the other, so that the order of additions, and therefore every bit, follows the definition.
 * Floats are summed in double. The outer indices are divided among threads. Each addition depends
 * on the previous one, so if `inner` is small, rows of several outer indices advance together.
 */
#include "kernels/cpu/array/turn.h"
#include "kernels/cpu/convert.h"

typedef struct cumsum {
  const mpg_kernel_call *call;
  mpg_compute compute;
  int64_t length, inner;
  bool reverse;
} cumsum;

/* Adds a row to `sums` and stores the sums, in pieces of MPG_CPU_BLOCK elements. S is the type of
 * the addition, in which integers wrap around. */
#define ADD_ROW(T, S, field)                                                                   \
  do {                                                                                         \
    const T *row = mpg_cpu_load(p->compute, in->desc.dtype, in->data, at + i, count, &loaded); \
    T *place = mpg_cpu_place(p->compute, out->desc.dtype, out->data, at + i, &stored);         \
    for (int64_t k = 0; k < count; k++)                                                        \
      place[k] = (T)(sums.field[k] = (S)sums.field[k] + (S)row[k]);                            \
    mpg_cpu_store(p->compute, out->desc.dtype, out->data, at + i, count, place);               \
  } while (0)

static void cumsum_range(void *context, int64_t begin, int64_t end) {
  const cumsum *p = context;
  const mpg_view *in = &p->call->inputs[0], *out = &p->call->outputs[0];
  mpg_block_buffer loaded, stored, sums;
  for (int64_t outer = begin; outer < end; outer++)
    for (int64_t i = 0; i < p->inner; i += MPG_CPU_BLOCK) {
      int64_t count = p->inner - i < MPG_CPU_BLOCK ? p->inner - i : MPG_CPU_BLOCK;
      memset(&sums, 0, sizeof sums);
      for (int64_t step = 0; step < p->length; step++) {
        int64_t at = (outer * p->length + (p->reverse ? p->length - 1 - step : step)) * p->inner;
        switch (p->compute) {
          case MPG_COMPUTE_F32: ADD_ROW(float, double, f64); break;
          case MPG_COMPUTE_F64: ADD_ROW(double, double, f64); break;
          case MPG_COMPUTE_I32: ADD_ROW(int32_t, uint32_t, i32); break;
          default: ADD_ROW(int64_t, uint64_t, i64); break;
        }
      }
    }
}

enum { NARROW = 16, TOGETHER = 8, SHORT = 32 };
/* Minimum number of lines for which transposing tiles is faster than adding along each line.
 * Without 64-byte vectors, it is never faster. */
static const int64_t MANY = MPG_VECTOR_BYTES >= 64 ? 8 : INT64_MAX;

/* Accumulates `steps` rows of `inner` elements for each of `lines` outer indices. If inner is 1,
 * several lines advance together, because each addition depends on the previous one in its line. */
#define CHAINS(name, T, S)                                                                   \
  __attribute__((always_inline)) static inline void name##_of(                               \
      const T *from, T *to, S *sums, int64_t inner, int64_t steps, bool reverse) {           \
    S s[NARROW];                                                                             \
    for (int64_t i = 0; i < inner; i++) s[i] = sums[i];                                      \
    for (int64_t k = 0; k < steps; k++) {                                                    \
      int64_t at = (reverse ? steps - 1 - k : k) * inner;                                    \
      for (int64_t i = 0; i < inner; i++) to[at + i] = (T)(s[i] = s[i] + (S)from[at + i]);   \
    }                                                                                        \
    for (int64_t i = 0; i < inner; i++) sums[i] = s[i];                                      \
  }                                                                                          \
  __attribute__((always_inline)) static inline void name##_together(                         \
      int lines, const T *const *from, T *const *to, S *sums, int64_t steps, bool reverse) { \
    S s[TOGETHER] = {0};                                                                     \
    const T *x[TOGETHER];                                                                    \
    T *y[TOGETHER];                                                                          \
    int64_t first = reverse ? steps - 1 : 0, by = reverse ? -1 : 1;                          \
    MPG_UNROLL(8)                                                                            \
    for (int r = 0; r < lines; r++) s[r] = sums[r], x[r] = from[r], y[r] = to[r];            \
    for (int64_t k = 0, at = first; k < steps; k++, at += by) MPG_UNROLL(8)                  \
    for (int r = 0; r < lines; r++) y[r][at] = (T)(s[r] = s[r] + (S)x[r][at]);               \
    MPG_UNROLL(8)                                                                            \
    for (int r = 0; r < lines; r++) sums[r] = s[r];                                          \
  }                                                                                          \
  static void name(const T *const *from, T *const *to, S *sums, int lines, int64_t inner,    \
                   int64_t steps, bool reverse) {                                            \
    for (int r = 0, n; inner == 1 && r < lines; r += n, from += n, to += n, sums += n) {     \
      n = lines - r >= TOGETHER ? TOGETHER : lines - r > 4 ? 4 : lines - r;                  \
      switch (n) {                                                                           \
        case 1: name##_of(from[0], to[0], sums, 1, steps, reverse); break;                   \
        case 2: name##_together(2, from, to, sums, steps, reverse); break;                   \
        case 3: name##_together(3, from, to, sums, steps, reverse); break;                   \
        case 4: name##_together(4, from, to, sums, steps, reverse); break;                   \
        default: name##_together(TOGETHER, from, to, sums, steps, reverse); break;           \
      }                                                                                      \
    }                                                                                        \
    if (inner == 1) return;                                                                  \
    for (int r = 0; r < lines; r++, sums += inner) switch (inner) {                          \
        case 2: name##_of(from[r], to[r], sums, 2, steps, reverse); break;                   \
        case 3: name##_of(from[r], to[r], sums, 3, steps, reverse); break;                   \
        case 4: name##_of(from[r], to[r], sums, 4, steps, reverse); break;                   \
        default: name##_of(from[r], to[r], sums, inner, steps, reverse); break;              \
      }                                                                                      \
  }

/* Accumulates contiguous lines of `length` elements, one after the other. Lines are short, so the
 * processor overlaps the additions of several lines. */
#define LINES(name, T, S)                                                                    \
  static void name(const void *in, void *out, int64_t lines, int64_t length, bool reverse) { \
    const T *from = in;                                                                      \
    T *to = out;                                                                             \
    for (int64_t r = 0; r < lines; r++, from += length, to += length) {                      \
      S sum = 0;                                                                             \
      if (reverse)                                                                           \
        for (int64_t k = length - 1; k >= 0; k--) to[k] = (T)(sum = sum + (S)from[k]);       \
      else                                                                                   \
        for (int64_t k = 0; k < length; k++) to[k] = (T)(sum = sum + (S)from[k]);            \
    }                                                                                        \
  }
LINES(lines_f32, float, double)
LINES(lines_f64, double, double)
LINES(lines_i32, int32_t, uint32_t)
LINES(lines_i64, int64_t, uint64_t)

static void short_range(void *context, int64_t begin, int64_t end) {
  const cumsum *p = context;
  const mpg_view *in = &p->call->inputs[0], *out = &p->call->outputs[0];
  mpg_block_buffer loaded, stored;
  int64_t most = MPG_CPU_BLOCK / p->length;
  for (int64_t outer = begin; outer < end; outer += most) {
    int64_t lines = end - outer < most ? end - outer : most, at = outer * p->length,
            count = lines * p->length;
    const void *from = mpg_cpu_load(p->compute, in->desc.dtype, in->data, at, count, &loaded);
    void *to = mpg_cpu_place(p->compute, out->desc.dtype, out->data, at, &stored);
    switch (p->compute) {
      case MPG_COMPUTE_F32: lines_f32(from, to, lines, p->length, p->reverse); break;
      case MPG_COMPUTE_F64: lines_f64(from, to, lines, p->length, p->reverse); break;
      case MPG_COMPUTE_I32: lines_i32(from, to, lines, p->length, p->reverse); break;
      default: lines_i64(from, to, lines, p->length, p->reverse); break;
    }
    mpg_cpu_store(p->compute, out->desc.dtype, out->data, at, count, to);
  }
}

CHAINS(chains_f32, float, double)
CHAINS(chains_f64, double, double)
CHAINS(chains_i32, int32_t, uint32_t)
CHAINS(chains_i64, int64_t, uint64_t)

static void narrow_range(void *context, int64_t begin, int64_t end) {
  const cumsum *p = context;
  const mpg_view *in = &p->call->inputs[0], *out = &p->call->outputs[0];
  struct {
    mpg_block_buffer loaded, stored;
    char apart[192]; /* padding, which spreads the buffers over the cache sets */
  } buffers[TOGETHER];
  bool direct = mpg_compute_direct(p->compute, in->desc.dtype) &&
                mpg_compute_direct(p->compute, out->desc.dtype);
  int64_t most = direct ? p->length : MPG_CPU_BLOCK / p->inner;
  for (int64_t outer = begin; outer < end; outer += TOGETHER) {
    int lines = (int)(end - outer < TOGETHER ? end - outer : TOGETHER);
    union {
      double f64[TOGETHER * NARROW];
      uint32_t i32[TOGETHER * NARROW];
      uint64_t i64[TOGETHER * NARROW];
    } sums;
    memset(&sums, 0, sizeof sums);
    for (int64_t done = 0, steps; done < p->length; done += steps) {
      const void *from[TOGETHER];
      void *to[TOGETHER];
      steps = p->length - done < most ? p->length - done : most;
      int64_t first = p->reverse ? p->length - done - steps : done;
      for (int r = 0; r < lines; r++) {
        int64_t at = ((outer + r) * p->length + first) * p->inner;
        from[r] = mpg_cpu_load(p->compute, in->desc.dtype, in->data, at, steps * p->inner,
                               &buffers[r].loaded);
        to[r] = direct ? mpg_cpu_place(p->compute, out->desc.dtype, out->data, at, NULL)
                       : &buffers[r].stored;
      }
      switch (p->compute) {
        case MPG_COMPUTE_F32:
          chains_f32((const float *const *)from, (float *const *)to, sums.f64, lines, p->inner,
                     steps, p->reverse);
          break;
        case MPG_COMPUTE_F64:
          chains_f64((const double *const *)from, (double *const *)to, sums.f64, lines, p->inner,
                     steps, p->reverse);
          break;
        case MPG_COMPUTE_I32:
          chains_i32((const int32_t *const *)from, (int32_t *const *)to, sums.i32, lines, p->inner,
                     steps, p->reverse);
          break;
        default:
          chains_i64((const int64_t *const *)from, (int64_t *const *)to, sums.i64, lines, p->inner,
                     steps, p->reverse);
          break;
      }
      for (int r = 0; r < lines && !direct; r++)
        mpg_cpu_store(p->compute, out->desc.dtype, out->data,
                      ((outer + r) * p->length + first) * p->inner, steps * p->inner, to[r]);
    }
  }
}

/* Vector types for SUMS sums and for the elements that are added to them. */
enum { SUMS = MPG_VECTOR_BYTES / (int)sizeof(double) };
typedef double vector_of_sums __attribute__((vector_size(SUMS * sizeof(double))));
typedef float vector_of_elements __attribute__((vector_size(SUMS * sizeof(float))));

/* Accumulates contiguous lines in double and stores float or half. Transposes MPG_TURNED lines at a
 * time, tile by tile, so that a vector holds one element from each of several lines. Halves and
 * partial tiles pass through a buffer. */
static void turned_range(void *context, int64_t begin, int64_t end) {
  enum { SIDE = MPG_TURNED, PIECE = 128 };
  const cumsum *p = context;
  const mpg_view *in = &p->call->inputs[0], *out = &p->call->outputs[0];
  const int64_t size = sizeof(float), line = p->length * size;
  float buffer[SIDE][PIECE] = {{0}}, tile[SIDE][SIDE];
  for (int64_t outer = begin; outer < end; outer += SIDE) {
    int lines = (int)(end - outer < SIDE ? end - outer : SIDE);
    vector_of_sums sums[SIDE / SUMS] = {{0}};
    for (int64_t done = 0, steps; done < p->length; done += steps) {
      steps = p->length - done < PIECE ? p->length - done : PIECE;
      int64_t at = outer * p->length + (p->reverse ? p->length - done - steps : done);
      bool whole = lines == SIDE && steps % SIDE == 0,
           direct_in = whole && in->desc.dtype == MPG_FLOAT32,
           direct_out = whole && out->desc.dtype == MPG_FLOAT32;
      for (int r = 0; r < lines && !direct_in; r++)
        mpg_cpu_load_all(MPG_COMPUTE_F32, in->desc.dtype, in->data, at + r * p->length, steps,
                         buffer[r]);
      const char *from = direct_in ? (const char *)in->data + at * size : (const char *)buffer;
      char *to = direct_out ? (char *)out->data + at * size : (char *)buffer;
      int64_t from_line = direct_in ? line : PIECE * size,
              to_line = direct_out ? line : PIECE * size;
      int64_t tiles = (steps + SIDE - 1) / SIDE;
      for (int64_t i = 0; i < tiles; i++) {
        int64_t first = (p->reverse ? tiles - 1 - i : i) * SIDE,
                count = steps - first < SIDE ? steps - first : SIDE;
        mpg_turn_item4(from + first * size, (char *)tile, from_line, SIDE * size);
        for (int64_t k = 0; k < count; k++) {
          float *row = tile[p->reverse ? count - 1 - k : k];
          MPG_UNROLL(16) for (int r = 0; r < SIDE / SUMS; r++) {
            vector_of_elements elements;
            memcpy(&elements, row + r * SUMS, sizeof elements);
            sums[r] += __builtin_convertvector(elements, vector_of_sums);
            elements = __builtin_convertvector(sums[r], vector_of_elements);
            memcpy(row + r * SUMS, &elements, sizeof elements);
          }
        }
        mpg_turn_item4((const char *)tile, to + first * size, SIDE * size, to_line);
      }
      for (int r = 0; r < lines && !direct_out; r++)
        mpg_cpu_store(MPG_COMPUTE_F32, out->desc.dtype, out->data, at + r * p->length, steps,
                      buffer[r]);
    }
  }
}

mpg_status mpg_cpu_cumsum(const mpg_kernel_call *call) {
  const mpg_cumsum_params *params = call->params;
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  /* The sums have the compute type of the result's dtype. */
  cumsum p = {.call = call,
              .compute = mpg_compute_of(call->outputs[0].desc.dtype),
              .length = mpg_shape_size(shape),
              .inner = 1,
              .reverse = params->reverse};
  int64_t outer = 1;
  if (params->axis.present) {
    int axis =
        (int)(params->axis.value < 0 ? params->axis.value + shape->ndim : params->axis.value);
    outer = mpg_shape_product(shape, 0, axis);
    p.length = shape->dims[axis];
    p.inner = mpg_shape_product(shape, axis + 1, shape->ndim);
  }
  if (mpg_shape_size(shape))
    mpg_cpu_parallel_for(call, outer, 1 + 16384 / (p.length * p.inner),
                         p.inner == 1 && p.length <= SHORT ? short_range
                         : p.inner == 1 && p.compute == MPG_COMPUTE_F32 && outer >= MANY
                             ? turned_range
                         : p.inner < NARROW ? narrow_range
                                            : cumsum_range,
                         &p);
  return MPG_OK;
}
