/* Normalization kernels for one dtype, an implementation for float_instances.h. Sums run in chunks
 * whose boundaries depend on shapes only: in A within a chunk and in double across chunks, so that
 * results do not depend on threads.
 */

enum { NAME(COLUMNS) = 64, NAME(ROWS) = 128 };

/* --- Sums of contiguous elements -------------------------------------------------------------- */
/* Element i is summed in lane i % WIDE on every instruction set; the lanes are then folded in
 * halves. */
enum {
  NAME(CHUNK) = 4096,
  NAME(LANES) = MPG_VECTOR_BYTES / sizeof(A),
  NAME(VECTORS) = 128 / MPG_VECTOR_BYTES,
  NAME(WIDE) = 128 / sizeof(A)
};
typedef A NAME(vector)
    __attribute__((vector_size(MPG_VECTOR_BYTES), aligned(sizeof(A)), may_alias));
#define UNROLLED MPG_UNROLL(8) /* keeps arrays of vectors in registers */
#define EACH_VECTOR UNROLLED for (int k = 0; k < NAME(VECTORS); k++)
#define VECTOR_AT(p) (*(const NAME(vector) *)(const void *)(p))

/* Loads n elements and fills the other lanes with `pad`. Returns by address, since the ABI for
 * vector results depends on the instruction set. */
static void NAME(padded)(const A *p, int64_t n, A pad, NAME(vector) * v) {
  A lanes[NAME(LANES)];
  for (int l = 0; l < NAME(LANES); l++) lanes[l] = l < n ? p[l] : pad;
  memcpy(v, lanes, sizeof *v);
}
/* Executes ADD(v) for the vectors v of elements [i, n) of p, fewer than WIDE. `pad` is neutral in
 * ADD. */
#define EACH_OF_REST(p, i, n, pad, ADD)                                                \
  EACH_VECTOR if ((i) + k * NAME(LANES) < (n)) {                                       \
    NAME(vector) v;                                                                    \
    if ((i) + (k + 1) * NAME(LANES) <= (n))                                            \
      v = VECTOR_AT((p) + (i) + k * NAME(LANES));                                      \
    else                                                                               \
      NAME(padded)((p) + (i) + k * NAME(LANES), (n) - (i) - k * NAME(LANES), pad, &v); \
    ADD                                                                                \
  }

static inline __attribute__((always_inline)) double NAME(fold)(NAME(vector) * v) {
  A lanes[NAME(LANES)];
  UNROLLED for (int half = NAME(VECTORS) / 2; half; half /= 2)
      UNROLLED for (int k = 0; k < half; k++) v[k] += v[k + half];
  memcpy(lanes, v, sizeof lanes);
  UNROLLED for (int half = NAME(LANES) / 2; half; half /= 2) UNROLLED for (int l = 0; l < half; l++)
      lanes[l] += lanes[l + half];
  return (double)lanes[0];
}

/* Rows shorter than this are summed element by element, in double. */
enum { NAME(SHORT) = 8 };

static double NAME(row_sum)(const A *x, int64_t count) {
  double result = 0;
  if (count < NAME(SHORT)) {
    for (int64_t i = 0; i < count; i++) result += (double)x[i];
    return result;
  }
  for (int64_t i = 0, n; i < count; i = n) {
    n = count - i < NAME(CHUNK) ? count : i + NAME(CHUNK);
    NAME(vector) sums[NAME(VECTORS)] = {{0}}, more[NAME(VECTORS)] = {{0}};
    for (; i + 2 * NAME(WIDE) <= n; i += 2 * NAME(WIDE)) {
      EACH_VECTOR sums[k] += VECTOR_AT(x + i + k * NAME(LANES));
      EACH_VECTOR more[k] += VECTOR_AT(x + i + NAME(WIDE) + k * NAME(LANES));
    }
    if (i + NAME(WIDE) <= n) {
      EACH_VECTOR sums[k] += VECTOR_AT(x + i + k * NAME(LANES));
      i += NAME(WIDE);
    }
    EACH_OF_REST(x, i, n, 0, more[k] += v;)
    EACH_VECTOR sums[k] += more[k];
    result += NAME(fold)(sums);
  }
  return result;
}

/* Adds the signed distances of the elements from `center` to *away, and their squares to
 * *squares. */
static void NAME(row_distances)(const A *x, int64_t count, A center, double *away,
                                double *squares) {
  if (count < NAME(SHORT)) {
    for (int64_t i = 0; i < count; i++) {
      double v = (double)(x[i] - center);
      *away += v, *squares += v * v;
    }
    return;
  }
  for (int64_t i = 0, n; i < count; i = n) {
    n = count - i < NAME(CHUNK) ? count : i + NAME(CHUNK);
    NAME(vector) sums[NAME(VECTORS)] = {{0}}, products[NAME(VECTORS)] = {{0}};
#define ADD     \
  v -= center;  \
  sums[k] += v; \
  products[k] += v * v;
    for (; i + NAME(WIDE) <= n; i += NAME(WIDE)) EACH_VECTOR {
        NAME(vector) v = VECTOR_AT(x + i + k * NAME(LANES));
        ADD
      }
    EACH_OF_REST(x, i, n, center, ADD)
#undef ADD
    *away += NAME(fold)(sums), *squares += NAME(fold)(products);
  }
}

/* Sums y, the distances of x from `center` (unless away is NULL), and the products of both. */
static inline __attribute__((always_inline)) void NAME(row_products)(const A *x, const A *y,
                                                                     int64_t count, A center,
                                                                     double *sum, double *away,
                                                                     double *product) {
  if (count < NAME(SHORT)) {
    for (int64_t i = 0; i < count; i++) {
      double v = (double)(x[i] - center), w = (double)y[i];
      *sum += w, *product += v * w;
      if (away) *away += v;
    }
    return;
  }
  for (int64_t i = 0, n; i < count; i = n) {
    n = count - i < NAME(CHUNK) ? count : i + NAME(CHUNK);
    NAME(vector)
    sums[NAME(VECTORS)] = {{0}}, distances[NAME(VECTORS)] = {{0}}, products[NAME(VECTORS)] = {{0}},
    w;
#define ADD                    \
  v -= center;                 \
  sums[k] += w;                \
  if (away) distances[k] += v; \
  products[k] += v * w;
    for (; i + NAME(WIDE) <= n; i += NAME(WIDE)) EACH_VECTOR {
        NAME(vector) v = VECTOR_AT(x + i + k * NAME(LANES));
        w = VECTOR_AT(y + i + k * NAME(LANES));
        ADD
      }
    EACH_OF_REST(x, i, n, center,
                 if (i + (k + 1) * NAME(LANES) <= n) w = VECTOR_AT(y + i + k * NAME(LANES));
                 else NAME(padded)(y + i + k * NAME(LANES), n - i - k * NAME(LANES), 0, &w); ADD)
#undef ADD
    *sum += NAME(fold)(sums), *product += NAME(fold)(products);
    if (away) *away += NAME(fold)(distances);
  }
}

/* Returns the dot product. */
static double NAME(row_dot)(const A *x, const A *y, int64_t count) {
  double result = 0;
  for (int64_t i = 0, n; i < count; i = n) {
    n = count - i < NAME(CHUNK) ? count : i + NAME(CHUNK);
    NAME(vector) sums[NAME(VECTORS)] = {{0}}, w;
    for (; i + NAME(WIDE) <= n; i += NAME(WIDE))
      EACH_VECTOR sums[k] +=
          VECTOR_AT(x + i + k * NAME(LANES)) * VECTOR_AT(y + i + k * NAME(LANES));
    EACH_OF_REST(x, i, n, 0,
                 if (i + (k + 1) * NAME(LANES) <= n) w = VECTOR_AT(y + i + k * NAME(LANES));
                 else NAME(padded)(y + i + k * NAME(LANES), n - i - k * NAME(LANES), 0, &w);
                 sums[k] += v * w;)
    result += NAME(fold)(sums);
  }
  return result;
}
#undef EACH_OF_REST
#undef VECTOR_AT
#undef EACH_VECTOR
#undef UNROLLED

/* The same for stored elements, in pieces that are A in memory: in place, or converted. */
enum { NAME(PIECE) = sizeof(S) == sizeof(A) ? NAME(CHUNK) : MPG_CPU_BLOCK };
#define EACH_PIECE                                                                               \
  for (int64_t at = 0, length; at < n && (length = n - at < NAME(PIECE) ? n - at : NAME(PIECE)); \
       at += NAME(PIECE))
static const A *NAME(read)(const S *x, int64_t n, mpg_block_buffer *buffer) {
  return sizeof(S) == sizeof(A) ? (const A *)(const void *)x
                                : mpg_cpu_load(COMPUTE, DTYPE, x, 0, n, buffer);
}

static double NAME(sum)(const S *x, int64_t n) {
  double result = 0;
  mpg_block_buffer buffer;
  EACH_PIECE result += NAME(row_sum)(NAME(read)(x + at, length, &buffer), length);
  return result;
}

static void NAME(add_distances)(const S *x, int64_t n, A center, double *away, double *squares) {
  mpg_block_buffer buffer;
  EACH_PIECE NAME(row_distances)(NAME(read)(x + at, length, &buffer), length, center, away,
                                 squares);
}

static void NAME(add_products)(const S *x, const S *y, int64_t n, A center, double *sum,
                               double *away, double *product) {
  mpg_block_buffer x_buffer, y_buffer;
  EACH_PIECE NAME(row_products)(NAME(read)(x + at, length, &x_buffer),
                                NAME(read)(y + at, length, &y_buffer), length, center, sum, away,
                                product);
}

/* Returns the variance from sums of distances from *center. *center becomes the mean and *rest its
 * rounding error. Normalization subtracts the unrounded mean, since distances near a large mean can
 * be smaller than its rounding error. */
static double NAME(moments)(double count, double away, double squares, A *center, double *rest) {
  if (count == 0) return *rest = 0;
  double shift = away / count, mean = (double)*center + shift,
         variance = squares / count - shift * shift;
  *center = (A)mean;
  *rest = mean - (double)*center;
  return variance > 0 ? variance : variance == variance ? 0 : variance;
}

static double NAME(dot)(const S *x, const S *y, int64_t n) {
  double result = 0;
  mpg_block_buffer x_buffer, y_buffer;
  EACH_PIECE {
    const A *c = NAME(read)(x + at, length, &x_buffer);
    result += NAME(row_dot)(c, y == x ? c : NAME(read)(y + at, length, &y_buffer), length);
  }
  return result;
}

/* y = (x - center) * scale + shift. */
static void NAME(normalise)(const S *x, S *y, int64_t n, A center, A scale, A shift) {
  mpg_block_buffer loaded, stored;
  EACH_PIECE {
    const A *c = NAME(read)(x + at, length, &loaded);
    A *to = mpg_cpu_place(COMPUTE, DTYPE, y, at, &stored);
    MPG_INDEPENDENT for (int64_t i = 0; i < length; i++) to[i] = (c[i] - center) * scale + shift;
    mpg_cpu_store(COMPUTE, DTYPE, y, at, length, to);
  }
}

/* dx = (dy - offset - (x - center) * slope) * scale. */
static void NAME(normalise_back)(const S *x, const S *dy, S *dx, int64_t n, A center, A offset,
                                 A slope, A scale) {
  mpg_block_buffer x_buffer, dy_buffer, stored;
  EACH_PIECE {
    const A *c = NAME(read)(x + at, length, &x_buffer),
            *d = NAME(read)(dy + at, length, &dy_buffer);
    A *to = mpg_cpu_place(COMPUTE, DTYPE, dx, at, &stored);
    MPG_INDEPENDENT for (int64_t i = 0; i < length; i++) to[i] =
        (d[i] - offset - (c[i] - center) * slope) * scale;
    mpg_cpu_store(COMPUTE, DTYPE, dx, at, length, to);
  }
}

/* y = x * scale. */
static void NAME(scale)(const S *x, S *y, int64_t n, A scale) {
  mpg_block_buffer loaded, stored;
  EACH_PIECE {
    const A *c = NAME(read)(x + at, length, &loaded);
    A *to = mpg_cpu_place(COMPUTE, DTYPE, y, at, &stored);
    MPG_INDEPENDENT for (int64_t i = 0; i < length; i++) to[i] = c[i] * scale;
    mpg_cpu_store(COMPUTE, DTYPE, y, at, length, to);
  }
}
#undef EACH_PIECE

/* --- Columns: sums down the rows of a matrix, COLUMNS at a time ------------------------------- */
/* Sums columns into sums[j]: x, squared distances from `mean` (if given), or (x - mean) * y (if y
 * is given as well). */
static void NAME(column_sums)(const S *x, const S *y, const A *mean, int64_t rows, int64_t stride,
                              int width, double *sums) {
  A partial[NAME(COLUMNS)];
  for (int j = 0; j < width; j++) sums[j] = 0;
  for (int64_t begin = 0; begin < rows; begin += NAME(ROWS)) {
    int64_t end = rows - begin < NAME(ROWS) ? rows : begin + NAME(ROWS);
    for (int j = 0; j < width; j++) partial[j] = 0;
    for (int64_t r = begin; r < end; r++) {
      const S *row = x + r * stride;
      if (y)
        for (int j = 0; j < width; j++)
          partial[j] += ((A)LOAD(row[j]) - mean[j]) * (A)LOAD(y[r * stride + j]);
      else if (mean)
        for (int j = 0; j < width; j++)
          partial[j] += ((A)LOAD(row[j]) - mean[j]) * ((A)LOAD(row[j]) - mean[j]);
      else
        for (int j = 0; j < width; j++) partial[j] += (A)LOAD(row[j]);
    }
    for (int j = 0; j < width; j++) sums[j] += (double)partial[j];
  }
}

/* --- BatchNorm -------------------------------------------------------------------------------- */
static A NAME(inverse_deviation)(double variance, double eps) {
  return variance == 0 && eps == 0 ? 0 : (A)1 / (A)sqrt((A)variance + (A)eps);
}

/* Stores and applies the statistics of one channel. */
static void NAME(batch_norm_finish)(const batch_norm *t, int64_t c, double mean, double variance) {
  A *moving_mean = t->moving_mean, *moving_var = t->moving_var;
  A m = (A)t->momentum;
  moving_mean[c] = moving_mean[c] * m + (A)mean * (1 - m);
  moving_var[c] = moving_var[c] * m + (A)variance * (1 - m);
  ((A *)t->mean)[c] = (A)mean;
  ((A *)t->inverse)[c] = NAME(inverse_deviation)((A)variance, t->eps);
}

static void NAME(batch_norm_channels)(void *context, int64_t begin, int64_t end) {
  const batch_norm *t = context;
  const S *x = t->x;
  S *y = t->y;
  A *mean = t->mean, *inverse = t->inverse;
  double count = (double)t->outer * (double)t->inner;
  for (int64_t c = begin; c < end; c++) {
    double rest = 0;
    if (t->batch_stats) {
      double sum = 0, away = 0, squares = 0;
      for (int64_t o = 0; o < t->outer; o++)
        sum += NAME(sum)(x + (o * t->channels + c) * t->inner, t->inner);
      A center = (A)(sum / count);
      for (int64_t o = 0; o < t->outer; o++)
        NAME(add_distances)(x + (o * t->channels + c) * t->inner, t->inner, center, &away,
                            &squares);
      double variance = NAME(moments)(count, away, squares, &center, &rest);
      NAME(batch_norm_finish)(t, c, center, variance);
    } else {
      mean[c] = ((const A *)t->moving_mean)[c];
      inverse[c] = NAME(inverse_deviation)(((const A *)t->moving_var)[c], t->eps);
    }
    A center = mean[c], scale = inverse[c] * (t->gamma ? ((const A *)t->gamma)[c] : 1);
    A shift = (A)((double)((const A *)t->beta)[c] - rest * (double)scale);
    for (int64_t o = 0; o < t->outer; o++) {
      const S *from = x + (o * t->channels + c) * t->inner;
      S *to = y + (o * t->channels + c) * t->inner;
      NAME(normalise)(from, to, t->inner, center, scale, shift);
    }
  }
}

/* dx = (dy - mean(dy) - (x - mean) * inverse^2 * mean(dy * (x - mean))) * inverse * gamma, with the
 * means only for batch statistics. */
static void NAME(batch_norm_backward_channels)(void *context, int64_t begin, int64_t end) {
  const batch_norm *t = context;
  const S *x = t->x, *dy = t->dy;
  S *dx = t->y;
  double count = (double)t->outer * (double)t->inner;
  for (int64_t c = begin; c < end; c++) {
    double sum = 0, product = 0, away = 0;
    A mean = ((const A *)t->mean)[c], inverse = ((const A *)t->inverse)[c];
    for (int64_t o = 0; o < t->outer; o++) {
      int64_t at = (o * t->channels + c) * t->inner;
      NAME(add_products)(x + at, dy + at, t->inner, mean, &sum, &away, &product);
    }
    if (t->batch_stats) product = about_mean(product, sum, away, count);
    ((A *)t->dgamma)[c] = t->gamma ? (A)(product * inverse) : 0;
    ((A *)t->dbeta)[c] = (A)sum;
    A scale = inverse * (t->gamma ? ((const A *)t->gamma)[c] : 1);
    A slope = t->batch_stats ? (A)(product / count * inverse * inverse) : 0;
    A offset = t->batch_stats ? (A)(sum / count) : 0;
    for (int64_t o = 0; o < t->outer; o++) {
      int64_t at = (o * t->channels + c) * t->inner;
      NAME(normalise_back)(x + at, dy + at, dx + at, t->inner, mean, offset, slope, scale);
    }
  }
}

#include "kernels/cpu/layers/batch_norm_last_impl.h"

/* --- LayerNorm along the last axis: gamma, beta and rows are A, in place or converted --------- */
static void NAME(put_moments)(const layer_norm *t, int64_t r, A mean, A deviation) {
  if (t->rounded) {
    ((S *)t->mean)[r] = STORE(mean);
    ((S *)t->deviation)[r] = STORE(deviation);
  } else {
    ((A *)t->mean)[r] = mean;
    ((A *)t->deviation)[r] = deviation;
  }
}

static void NAME(layer_norm_rows)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  const A *gamma = t->gamma, *beta = t->beta;
  const bool direct = sizeof(S) == sizeof(A);
  A *row = direct ? NULL : layer_norm_rows_of(t);
  int64_t n = t->n;
  for (int64_t r = begin; r < end; r++) {
    const A *x = direct ? (const A *)t->x + r * n : row;
    A *y = direct ? (A *)t->y + r * n : row;
    if (!direct) mpg_cpu_load_all(COMPUTE, DTYPE, t->x, r * n, n, row);
    A mean = (A)(NAME(row_sum)(x, n) / (double)n);
    double away = 0, squares = 0, rest;
    NAME(row_distances)(x, n, mean, &away, &squares);
    A deviation = (A)sqrt((A)NAME(moments)((double)n, away, squares, &mean, &rest) + (A)t->eps),
      inverse = 1 / deviation;
    MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] =
        (x[i] - mean) * inverse * gamma[i] + beta[i];
    if (!direct) mpg_cpu_store(COMPUTE, DTYPE, t->y, r * n, n, y);
    NAME(put_moments)(t, r, mean, deviation);
  }
}

/* Computes dx for the rows of pieces [begin, end), and the pieces' sums of dgamma and dbeta, in
 * A. */
static void NAME(layer_norm_backward_pieces)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  const A *gamma = t->gamma;
  const bool direct = sizeof(S) == sizeof(A);
  int64_t n = t->n;
  A *scaled = layer_norm_rows_of(t), *x_row = scaled + n, *dy_row = x_row + n;
  for (int64_t piece = begin; piece < end; piece++) {
    A *dgamma = (A *)t->sums + piece * 2 * n, *dbeta = dgamma + n;
    int64_t first = piece * t->piece_rows,
            last = t->outer - first < t->piece_rows ? t->outer : first + t->piece_rows;
    memset(dgamma, 0, (size_t)(2 * n) * sizeof(A));
    for (int64_t r = first; r < last; r++) {
      const A *x = direct ? (const A *)t->x + r * n : x_row,
              *dy = direct ? (const A *)t->dy + r * n : dy_row;
      A *dx = direct ? (A *)t->y + r * n : scaled;
      A mean = ((const A *)t->mean)[r], inverse = 1 / ((const A *)t->deviation)[r];
      if (!direct) {
        mpg_cpu_load_all(COMPUTE, DTYPE, t->x, r * n, n, x_row);
        mpg_cpu_load_all(COMPUTE, DTYPE, t->dy, r * n, n, dy_row);
      }
      MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) {
        scaled[i] = dy[i] * gamma[i];
        dgamma[i] += dy[i] * ((x[i] - mean) * inverse);
        dbeta[i] += dy[i];
      }
      double sum = 0, product = 0;
      NAME(row_products)(x, scaled, n, mean, &sum, NULL, &product);
      A offset = (A)(sum / (double)n), slope = (A)(product / (double)n * inverse * inverse);
      MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) dx[i] =
          (scaled[i] - offset - (x[i] - mean) * slope) * inverse;
      if (!direct) mpg_cpu_store(COMPUTE, DTYPE, t->y, r * n, n, dx);
    }
  }
}

/* Adds the pieces' sums in order, in double. */
static void NAME(layer_norm_backward_columns)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n, pieces = (t->outer + t->piece_rows - 1) / t->piece_rows;
  for (int64_t at = begin; at < end; at += NAME(COLUMNS)) {
    int width = end - at < NAME(COLUMNS) ? (int)(end - at) : NAME(COLUMNS);
    double dgamma[NAME(COLUMNS)] = {0}, dbeta[NAME(COLUMNS)] = {0};
    for (int64_t piece = 0; piece < pieces; piece++) {
      const A *sums = (const A *)t->sums + piece * 2 * n + at;
      for (int j = 0; j < width; j++) dgamma[j] += (double)sums[j], dbeta[j] += (double)sums[n + j];
    }
    for (int j = 0; j < width; j++) {
      ((S *)t->dgamma)[at + j] = STORE((A)dgamma[j]);
      ((S *)t->dbeta)[at + j] = STORE((A)dbeta[j]);
    }
  }
}

/* --- LayerNorm along an inner axis of (outer, n, inner); units are (outer, block of inner) ---- */
static void NAME(layer_norm_inner)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n, inner = t->inner, blocks = (inner + NAME(COLUMNS) - 1) / NAME(COLUMNS);
  double sums[NAME(COLUMNS)];
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t o = piece / blocks, at = piece % blocks * NAME(COLUMNS);
    int width = inner - at < NAME(COLUMNS) ? (int)(inner - at) : NAME(COLUMNS);
    const S *x = (const S *)t->x + o * n * inner + at;
    S *y = (S *)t->y + o * n * inner + at;
    A mean[NAME(COLUMNS)], inverse[NAME(COLUMNS)];
    NAME(column_sums)(x, NULL, NULL, n, inner, width, sums);
    for (int j = 0; j < width; j++) mean[j] = (A)(sums[j] / (double)n);
    NAME(column_sums)(x, NULL, mean, n, inner, width, sums);
    for (int j = 0; j < width; j++) {
      A deviation = (A)sqrt((A)(sums[j] / (double)n) + (A)t->eps);
      inverse[j] = 1 / deviation;
      NAME(put_moments)(t, o * inner + at + j, mean[j], deviation);
    }
    for (int64_t k = 0; k < n; k++) {
      A gamma = (A)LOAD(((const S *)t->gamma)[k]), beta = (A)LOAD(((const S *)t->beta)[k]);
      for (int j = 0; j < width; j++)
        y[k * inner + j] = STORE(((A)LOAD(x[k * inner + j]) - mean[j]) * inverse[j] * gamma + beta);
    }
  }
}

static void NAME(layer_norm_backward_inner)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n, inner = t->inner, blocks = (inner + NAME(COLUMNS) - 1) / NAME(COLUMNS);
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t o = piece / blocks, at = piece % blocks * NAME(COLUMNS);
    int width = inner - at < NAME(COLUMNS) ? (int)(inner - at) : NAME(COLUMNS);
    const S *x = (const S *)t->x + o * n * inner + at, *dy = (const S *)t->dy + o * n * inner + at;
    S *dx = (S *)t->y + o * n * inner + at;
    A mean[NAME(COLUMNS)], inverse[NAME(COLUMNS)];
    double sum[NAME(COLUMNS)] = {0}, product[NAME(COLUMNS)] = {0};
    for (int j = 0; j < width; j++) {
      mean[j] = ((const A *)t->mean)[o * inner + at + j];
      inverse[j] = 1 / ((const A *)t->deviation)[o * inner + at + j];
    }
    for (int64_t k = 0; k < n; k++) {
      A gamma = (A)LOAD(((const S *)t->gamma)[k]);
      for (int j = 0; j < width; j++) {
        A g = (A)LOAD(dy[k * inner + j]) * gamma;
        sum[j] += (double)g;
        product[j] += (double)(g * ((A)LOAD(x[k * inner + j]) - mean[j]));
      }
    }
    for (int64_t k = 0; k < n; k++) {
      A gamma = (A)LOAD(((const S *)t->gamma)[k]);
      for (int j = 0; j < width; j++) {
        A offset = (A)(sum[j] / (double)n),
          slope = (A)(product[j] / (double)n * inverse[j] * inverse[j]);
        dx[k * inner + j] = STORE(((A)LOAD(dy[k * inner + j]) * gamma - offset -
                                   ((A)LOAD(x[k * inner + j]) - mean[j]) * slope) *
                                  inverse[j]);
      }
    }
  }
}

/* Computes dgamma and dbeta. begin and end count positions along the normalized axis. */
static void NAME(layer_norm_backward_affine)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  for (int64_t k = begin; k < end; k++) {
    double dgamma = 0, dbeta = 0;
    for (int64_t o = 0; o < t->outer; o++) {
      const S *x = (const S *)t->x + (o * t->n + k) * t->inner,
              *dy = (const S *)t->dy + (o * t->n + k) * t->inner;
      const A *mean = (const A *)t->mean + o * t->inner,
              *deviation = (const A *)t->deviation + o * t->inner;
      A g = 0;
      for (int64_t i = 0; i < t->inner; i++)
        g += (A)LOAD(dy[i]) * (((A)LOAD(x[i]) - mean[i]) / deviation[i]);
      dgamma += (double)g;
      dbeta += NAME(sum)(dy, t->inner);
    }
    ((S *)t->dgamma)[k] = STORE((A)dgamma);
    ((S *)t->dbeta)[k] = STORE((A)dbeta);
  }
}

/* --- GroupNorm: rows of n elements; row r belongs to group r % groups ------------------------- */
static void NAME(group_norm_rows)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n;
  for (int64_t r = begin; r < end; r++) {
    const S *x = (const S *)t->x + r * n;
    S *y = (S *)t->y + r * n;
    A gamma = (A)LOAD(((const S *)t->gamma)[r % t->inner]),
      beta = (A)LOAD(((const S *)t->beta)[r % t->inner]);
    A mean = n ? (A)(NAME(sum)(x, n) / (double)n) : 0;
    double away = 0, squares = 0, rest;
    NAME(add_distances)(x, n, mean, &away, &squares);
    A deviation = (A)sqrt((A)NAME(moments)((double)n, away, squares, &mean, &rest) + (A)t->eps),
      scale = gamma / deviation;
    A shift = (A)((double)beta - rest * (double)scale);
    NAME(normalise)(x, y, n, mean, scale, shift);
    NAME(put_moments)(t, r, mean, deviation);
  }
}

static void NAME(group_norm_backward_rows)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n;
  for (int64_t r = begin; r < end; r++) {
    const S *x = (const S *)t->x + r * n, *dy = (const S *)t->dy + r * n;
    S *dx = (S *)t->y + r * n;
    A gamma = (A)LOAD(((const S *)t->gamma)[r % t->inner]);
    A mean = ((const A *)t->mean)[r], inverse = 1 / ((const A *)t->deviation)[r];
    double sum = 0, away = 0, product = 0;
    NAME(add_products)(x, dy, n, mean, &sum, &away, &product);
    product = about_mean(product, sum, away, (double)n);
    t->partial[2 * r] = product * inverse;
    t->partial[2 * r + 1] = sum;
    A offset = (A)(sum / (double)n), slope = (A)(product / (double)n * inverse * inverse),
      scale = gamma * inverse;
    NAME(normalise_back)(x, dy, dx, n, mean, offset, slope, scale);
  }
}

static void NAME(group_norm_affine)(const layer_norm *t) {
  for (int64_t g = 0; g < t->inner; g++) {
    double dgamma = 0, dbeta = 0;
    for (int64_t r = g; r < t->outer; r += t->inner)
      dgamma += t->partial[2 * r], dbeta += t->partial[2 * r + 1];
    ((S *)t->dgamma)[g] = STORE((A)dgamma);
    ((S *)t->dbeta)[g] = STORE((A)dbeta);
  }
}

/* --- L2Normalization: data is (outer, n, inner) ----------------------------------------------- */
static void NAME(l2_rows)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n;
  for (int64_t r = begin; r < end; r++) {
    const S *x = (const S *)t->x + r * n;
    A norm = (A)sqrt((A)NAME(dot)(x, x, n) + (A)t->eps);
    NAME(scale)(x, (S *)t->y + r * n, n, 1 / norm);
    ((A *)t->deviation)[r] = norm;
  }
}

/* dx = (dy - x * slope) / norm, where slope = sum(x * dy) / norm^2. */
static void NAME(l2_backward_rows)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n;
  for (int64_t r = begin; r < end; r++) {
    const S *x = (const S *)t->x + r * n, *dy = (const S *)t->dy + r * n;
    A inverse = 1 / ((const A *)t->deviation)[r];
    A slope = (A)(NAME(dot)(x, dy, n) * inverse * inverse);
    NAME(normalise_back)(x, dy, (S *)t->y + r * n, n, 0, 0, slope, inverse);
  }
}

/* Units are (outer, block of inner). */
static void NAME(l2_inner)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n, inner = t->inner, blocks = (inner + NAME(COLUMNS) - 1) / NAME(COLUMNS);
  const A zeros[NAME(COLUMNS)] = {0};
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t o = piece / blocks, at = piece % blocks * NAME(COLUMNS);
    int width = inner - at < NAME(COLUMNS) ? (int)(inner - at) : NAME(COLUMNS);
    const S *x = (const S *)t->x + o * n * inner + at;
    S *y = (S *)t->y + o * n * inner + at;
    double sums[NAME(COLUMNS)];
    A inverse[NAME(COLUMNS)];
    NAME(column_sums)(x, NULL, zeros, n, inner, width, sums);
    for (int j = 0; j < width; j++) {
      A norm = (A)sqrt((A)sums[j] + (A)t->eps);
      inverse[j] = 1 / norm;
      ((A *)t->deviation)[o * inner + at + j] = norm;
    }
    for (int64_t k = 0; k < n; k++)
      for (int j = 0; j < width; j++)
        y[k * inner + j] = STORE((A)LOAD(x[k * inner + j]) * inverse[j]);
  }
}

static void NAME(l2_backward_inner)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n, inner = t->inner, blocks = (inner + NAME(COLUMNS) - 1) / NAME(COLUMNS);
  const A zeros[NAME(COLUMNS)] = {0};
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t o = piece / blocks, at = piece % blocks * NAME(COLUMNS);
    int width = inner - at < NAME(COLUMNS) ? (int)(inner - at) : NAME(COLUMNS);
    const S *x = (const S *)t->x + o * n * inner + at, *dy = (const S *)t->dy + o * n * inner + at;
    S *dx = (S *)t->y + o * n * inner + at;
    double sums[NAME(COLUMNS)];
    A inverse[NAME(COLUMNS)], slope[NAME(COLUMNS)];
    NAME(column_sums)(x, dy, zeros, n, inner, width, sums);
    for (int j = 0; j < width; j++) {
      inverse[j] = 1 / ((const A *)t->deviation)[o * inner + at + j];
      slope[j] = (A)(sums[j] * inverse[j] * inverse[j]);
    }
    for (int64_t k = 0; k < n; k++)
      for (int j = 0; j < width; j++)
        dx[k * inner + j] =
            STORE(((A)LOAD(dy[k * inner + j]) - (A)LOAD(x[k * inner + j]) * slope[j]) * inverse[j]);
  }
}
