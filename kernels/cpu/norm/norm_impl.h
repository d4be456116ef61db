/* Normalization kernels for one dtype, instantiated by float_instances.h. Sums are split into
 * chunks whose boundaries depend on shapes only, so that results do not depend on threads. They
 * accumulate in A within a chunk and in double across chunks.
 */

/* Each x_T below is NAME(x), the name of x in this instance. */
#define CHUNK_T NAME(CHUNK)
#define COLUMNS_T NAME(COLUMNS)
#define LANES_T NAME(LANES)
#define PIECE_T NAME(PIECE)
#define ROWS_T NAME(ROWS)
#define SHORT_T NAME(SHORT)
#define VECTORS_T NAME(VECTORS)
#define WIDE_T NAME(WIDE)
#define add_distances_T NAME(add_distances)
#define add_products_T NAME(add_products)
#define batch_norm_backward_channels_T NAME(batch_norm_backward_channels)
#define batch_norm_channels_T NAME(batch_norm_channels)
#define batch_norm_finish_T NAME(batch_norm_finish)
#define column_sums_T NAME(column_sums)
#define dot_T NAME(dot)
#define fold_T NAME(fold)
#define group_norm_affine_T NAME(group_norm_affine)
#define group_norm_backward_rows_T NAME(group_norm_backward_rows)
#define group_norm_rows_T NAME(group_norm_rows)
#define inverse_deviation_T NAME(inverse_deviation)
#define l2_backward_inner_T NAME(l2_backward_inner)
#define l2_backward_rows_T NAME(l2_backward_rows)
#define l2_inner_T NAME(l2_inner)
#define l2_rows_T NAME(l2_rows)
#define layer_norm_backward_affine_T NAME(layer_norm_backward_affine)
#define layer_norm_backward_columns_T NAME(layer_norm_backward_columns)
#define layer_norm_backward_inner_T NAME(layer_norm_backward_inner)
#define layer_norm_backward_pieces_T NAME(layer_norm_backward_pieces)
#define layer_norm_inner_T NAME(layer_norm_inner)
#define layer_norm_rows_T NAME(layer_norm_rows)
#define moments_T NAME(moments)
#define normalise_T NAME(normalise)
#define normalise_back_T NAME(normalise_back)
#define padded_T NAME(padded)
#define put_moments_T NAME(put_moments)
#define read_T NAME(read)
#define rms_norm_backward_columns_T NAME(rms_norm_backward_columns)
#define rms_norm_backward_pieces_T NAME(rms_norm_backward_pieces)
#define rms_norm_rows_T NAME(rms_norm_rows)
#define row_distances_T NAME(row_distances)
#define row_dot_T NAME(row_dot)
#define row_products_T NAME(row_products)
#define row_sum_T NAME(row_sum)
#define scale_T NAME(scale)
#define sum_T NAME(sum)
#define vector_T NAME(vector)

enum { COLUMNS_T = 64, ROWS_T = 128 };

/* --- Sums of contiguous elements -------------------------------------------------------------- */
/* Element i is summed in lane i % WIDE on every instruction set; then the lanes are added in pairs
 * until one is left. */
enum {
  CHUNK_T = 4096,
  LANES_T = MPG_VECTOR_BYTES / sizeof(A),
  VECTORS_T = 128 / MPG_VECTOR_BYTES,
  WIDE_T = 128 / sizeof(A)
};
typedef A vector_T __attribute__((vector_size(MPG_VECTOR_BYTES), aligned(sizeof(A)), may_alias));
#define UNROLLED MPG_UNROLL(8) /* keeps arrays of vectors in registers */
#define EACH_VECTOR UNROLLED for (int k = 0; k < VECTORS_T; k++)
#define VECTOR_AT(p) (*(const vector_T *)(const void *)(p))

/* Loads n elements and fills the other lanes with `pad`. Returns the vector by address, since the
 * ABI for vectors depends on the instruction set. */
static void padded_T(const A *p, int64_t n, A pad, vector_T *v) {
  A lanes[LANES_T];
  for (int l = 0; l < LANES_T; l++) lanes[l] = l < n ? p[l] : pad;
  memcpy(v, lanes, sizeof *v);
}
/* Executes ADD for each vector v of the remaining elements [i, n) of p, which are fewer than WIDE.
 * Missing lanes hold `pad`, which must be neutral in ADD. */
#define EACH_OF_REST(p, i, n, pad, ADD)                                    \
  EACH_VECTOR if ((i) + k * LANES_T < (n)) {                               \
    vector_T v;                                                            \
    if ((i) + (k + 1) * LANES_T <= (n))                                    \
      v = VECTOR_AT((p) + (i) + k * LANES_T);                              \
    else                                                                   \
      padded_T((p) + (i) + k * LANES_T, (n) - (i) - k * LANES_T, pad, &v); \
    ADD                                                                    \
  }

static inline __attribute__((always_inline)) double fold_T(vector_T *v) {
  A lanes[LANES_T];
  UNROLLED for (int half = VECTORS_T / 2; half; half /= 2) UNROLLED for (int k = 0; k < half; k++)
      v[k] += v[k + half];
  memcpy(lanes, v, sizeof lanes);
  UNROLLED for (int half = LANES_T / 2; half; half /= 2) UNROLLED for (int l = 0; l < half; l++)
      lanes[l] += lanes[l + half];
  return (double)lanes[0];
}

/* Rows shorter than this are summed element by element, in double. */
enum { SHORT_T = 8 };

static double row_sum_T(const A *x, int64_t count) {
  double result = 0;
  if (count < SHORT_T) {
    for (int64_t i = 0; i < count; i++) result += (double)x[i];
    return result;
  }
  for (int64_t i = 0, n; i < count; i = n) {
    n = count - i < CHUNK_T ? count : i + CHUNK_T;
    vector_T sums[VECTORS_T] = {{0}}, more[VECTORS_T] = {{0}};
    for (; i + 2 * WIDE_T <= n; i += 2 * WIDE_T) {
      EACH_VECTOR sums[k] += VECTOR_AT(x + i + k * LANES_T);
      EACH_VECTOR more[k] += VECTOR_AT(x + i + WIDE_T + k * LANES_T);
    }
    if (i + WIDE_T <= n) {
      EACH_VECTOR sums[k] += VECTOR_AT(x + i + k * LANES_T);
      i += WIDE_T;
    }
    EACH_OF_REST(x, i, n, 0, more[k] += v;)
    EACH_VECTOR sums[k] += more[k];
    result += fold_T(sums);
  }
  return result;
}

/* Accumulates the sum of x[i] - center in *away, and the sum of (x[i] - center)^2 in *squares. */
static void row_distances_T(const A *x, int64_t count, A center, double *away, double *squares) {
  if (count < SHORT_T) {
    for (int64_t i = 0; i < count; i++) {
      double v = (double)(x[i] - center);
      *away += v, *squares += v * v;
    }
    return;
  }
  for (int64_t i = 0, n; i < count; i = n) {
    n = count - i < CHUNK_T ? count : i + CHUNK_T;
    vector_T sums[VECTORS_T] = {{0}}, products[VECTORS_T] = {{0}};
#define ADD     \
  v -= center;  \
  sums[k] += v; \
  products[k] += v * v;
    for (; i + WIDE_T <= n; i += WIDE_T) EACH_VECTOR {
        vector_T v = VECTOR_AT(x + i + k * LANES_T);
        ADD
      }
    EACH_OF_REST(x, i, n, center, ADD)
#undef ADD
    *away += fold_T(sums), *squares += fold_T(products);
  }
}

/* Accumulates the sum of y[i] in *sum, the sum of x[i] - center in *away (unless it is NULL), and
 * the sum of y[i] * (x[i] - center) in *product. */
static inline __attribute__((always_inline)) void row_products_T(const A *x, const A *y,
                                                                 int64_t count, A center,
                                                                 double *sum, double *away,
                                                                 double *product) {
  if (count < SHORT_T) {
    for (int64_t i = 0; i < count; i++) {
      double v = (double)(x[i] - center), w = (double)y[i];
      *sum += w, *product += v * w;
      if (away) *away += v;
    }
    return;
  }
  for (int64_t i = 0, n; i < count; i = n) {
    n = count - i < CHUNK_T ? count : i + CHUNK_T;
    vector_T sums[VECTORS_T] = {{0}}, distances[VECTORS_T] = {{0}}, products[VECTORS_T] = {{0}}, w;
#define ADD                    \
  v -= center;                 \
  sums[k] += w;                \
  if (away) distances[k] += v; \
  products[k] += v * w;
    for (; i + WIDE_T <= n; i += WIDE_T) EACH_VECTOR {
        vector_T v = VECTOR_AT(x + i + k * LANES_T);
        w = VECTOR_AT(y + i + k * LANES_T);
        ADD
      }
    EACH_OF_REST(x, i, n, center,
                 if (i + (k + 1) * LANES_T <= n) w = VECTOR_AT(y + i + k * LANES_T);
                 else padded_T(y + i + k * LANES_T, n - i - k * LANES_T, 0, &w); ADD)
#undef ADD
    *sum += fold_T(sums), *product += fold_T(products);
    if (away) *away += fold_T(distances);
  }
}

static double row_dot_T(const A *x, const A *y, int64_t count) {
  double result = 0;
  for (int64_t i = 0, n; i < count; i = n) {
    n = count - i < CHUNK_T ? count : i + CHUNK_T;
    vector_T sums[VECTORS_T] = {{0}}, w;
    for (; i + WIDE_T <= n; i += WIDE_T)
      EACH_VECTOR sums[k] += VECTOR_AT(x + i + k * LANES_T) * VECTOR_AT(y + i + k * LANES_T);
    EACH_OF_REST(x, i, n, 0, if (i + (k + 1) * LANES_T <= n) w = VECTOR_AT(y + i + k * LANES_T);
                 else padded_T(y + i + k * LANES_T, n - i - k * LANES_T, 0, &w); sums[k] += v * w;)
    result += fold_T(sums);
  }
  return result;
}
#undef EACH_OF_REST
#undef VECTOR_AT
#undef EACH_VECTOR
#undef UNROLLED

/* Versions of the sums above for stored elements (type S). A row is processed in pieces of PIECE
 * elements, which are read in place or converted to A. */
enum { PIECE_T = sizeof(S) == sizeof(A) ? CHUNK_T : MPG_CPU_BLOCK };
#define EACH_PIECE                                                                       \
  for (int64_t at = 0, length; at < n && (length = n - at < PIECE_T ? n - at : PIECE_T); \
       at += PIECE_T)
static const A *read_T(const S *x, int64_t n, mpg_block_buffer *buffer) {
  return sizeof(S) == sizeof(A) ? (const A *)(const void *)x
                                : mpg_cpu_load(COMPUTE, DTYPE, x, 0, n, buffer);
}

static double sum_T(const S *x, int64_t n) {
  double result = 0;
  mpg_block_buffer buffer;
  EACH_PIECE result += row_sum_T(read_T(x + at, length, &buffer), length);
  return result;
}

static void add_distances_T(const S *x, int64_t n, A center, double *away, double *squares) {
  mpg_block_buffer buffer;
  EACH_PIECE row_distances_T(read_T(x + at, length, &buffer), length, center, away, squares);
}

static void add_products_T(const S *x, const S *y, int64_t n, A center, double *sum, double *away,
                           double *product) {
  mpg_block_buffer x_buffer, y_buffer;
  EACH_PIECE row_products_T(read_T(x + at, length, &x_buffer), read_T(y + at, length, &y_buffer),
                            length, center, sum, away, product);
}

/* Returns the variance, given the sums that add_distances computes. Sets *center to the rounded
 * mean and *rest to its rounding error. Normalization subtracts the unrounded mean, since x - mean
 * can be smaller than the rounding error of a large mean. */
static double moments_T(double count, double away, double squares, A *center, double *rest) {
  if (count == 0) return *rest = 0;
  double shift = away / count, mean = (double)*center + shift,
         variance = squares / count - shift * shift;
  *center = (A)mean;
  *rest = mean - (double)*center;
  return variance > 0 ? variance : variance == variance ? 0 : variance;
}

static double dot_T(const S *x, const S *y, int64_t n) {
  double result = 0;
  mpg_block_buffer x_buffer, y_buffer;
  EACH_PIECE {
    const A *c = read_T(x + at, length, &x_buffer);
    result += row_dot_T(c, y == x ? c : read_T(y + at, length, &y_buffer), length);
  }
  return result;
}

/* Computes y = (x - center) * scale + shift. */
static void normalise_T(const S *x, S *y, int64_t n, A center, A scale, A shift) {
  mpg_block_buffer loaded, stored;
  EACH_PIECE {
    const A *c = read_T(x + at, length, &loaded);
    A *to = mpg_cpu_place(COMPUTE, DTYPE, y, at, &stored);
    MPG_INDEPENDENT for (int64_t i = 0; i < length; i++) to[i] = (c[i] - center) * scale + shift;
    mpg_cpu_store(COMPUTE, DTYPE, y, at, length, to);
  }
}

/* Computes dx = (dy - offset - (x - center) * slope) * scale. */
static void normalise_back_T(const S *x, const S *dy, S *dx, int64_t n, A center, A offset, A slope,
                             A scale) {
  mpg_block_buffer x_buffer, dy_buffer, stored;
  EACH_PIECE {
    const A *c = read_T(x + at, length, &x_buffer), *d = read_T(dy + at, length, &dy_buffer);
    A *to = mpg_cpu_place(COMPUTE, DTYPE, dx, at, &stored);
    MPG_INDEPENDENT for (int64_t i = 0; i < length; i++) to[i] =
        (d[i] - offset - (c[i] - center) * slope) * scale;
    mpg_cpu_store(COMPUTE, DTYPE, dx, at, length, to);
  }
}

/* Computes y = x * scale. */
static void scale_T(const S *x, S *y, int64_t n, A scale) {
  mpg_block_buffer loaded, stored;
  EACH_PIECE {
    const A *c = read_T(x + at, length, &loaded);
    A *to = mpg_cpu_place(COMPUTE, DTYPE, y, at, &stored);
    MPG_INDEPENDENT for (int64_t i = 0; i < length; i++) to[i] = c[i] * scale;
    mpg_cpu_store(COMPUTE, DTYPE, y, at, length, to);
  }
}
#undef EACH_PIECE

/* --- Column sums of a matrix, for up to COLUMNS columns at a time ----------------------------- */
/* Sets sums[j] to the sum over column j of
 *   x                 if neither `mean` nor y is given
 *   (x - mean)^2      if only `mean` is given
 *   (x - mean) * y    if both are given */
static void column_sums_T(const S *x, const S *y, const A *mean, int64_t rows, int64_t stride,
                          int width, double *sums) {
  A partial[COLUMNS_T];
  for (int j = 0; j < width; j++) sums[j] = 0;
  for (int64_t begin = 0; begin < rows; begin += ROWS_T) {
    int64_t end = rows - begin < ROWS_T ? rows : begin + ROWS_T;
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
static A inverse_deviation_T(double variance, double eps) {
  return variance == 0 && eps == 0 ? 0 : (A)1 / (A)sqrt((A)variance + (A)eps);
}

/* Stores the statistics of one channel and updates its moving averages. */
static void batch_norm_finish_T(const batch_norm *t, int64_t c, double mean, double variance) {
  A *moving_mean = t->moving_mean, *moving_var = t->moving_var;
  A m = (A)t->momentum;
  moving_mean[c] = moving_mean[c] * m + (A)mean * (1 - m);
  moving_var[c] = moving_var[c] * m + (A)variance * (1 - m);
  ((A *)t->mean)[c] = (A)mean;
  ((A *)t->inverse)[c] = inverse_deviation_T((A)variance, t->eps);
}

static void batch_norm_channels_T(void *context, int64_t begin, int64_t end) {
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
        sum += sum_T(x + (o * t->channels + c) * t->inner, t->inner);
      A center = (A)(sum / count);
      for (int64_t o = 0; o < t->outer; o++)
        add_distances_T(x + (o * t->channels + c) * t->inner, t->inner, center, &away, &squares);
      double variance = moments_T(count, away, squares, &center, &rest);
      batch_norm_finish_T(t, c, center, variance);
    } else {
      mean[c] = ((const A *)t->moving_mean)[c];
      inverse[c] = inverse_deviation_T(((const A *)t->moving_var)[c], t->eps);
    }
    A center = mean[c], scale = inverse[c] * (t->gamma ? ((const A *)t->gamma)[c] : 1);
    A shift = (A)((double)((const A *)t->beta)[c] - rest * (double)scale);
    for (int64_t o = 0; o < t->outer; o++) {
      const S *from = x + (o * t->channels + c) * t->inner;
      S *to = y + (o * t->channels + c) * t->inner;
      normalise_T(from, to, t->inner, center, scale, shift);
    }
  }
}

/* Computes dx = (dy - mean(dy) - (x - mean) * inverse^2 * mean(dy * (x - mean))) * inverse * gamma,
 * without the means unless batch statistics are used. */
static void batch_norm_backward_channels_T(void *context, int64_t begin, int64_t end) {
  const batch_norm *t = context;
  const S *x = t->x, *dy = t->dy;
  S *dx = t->y;
  double count = (double)t->outer * (double)t->inner;
  for (int64_t c = begin; c < end; c++) {
    double sum = 0, product = 0, away = 0;
    A mean = ((const A *)t->mean)[c], inverse = ((const A *)t->inverse)[c];
    for (int64_t o = 0; o < t->outer; o++) {
      int64_t at = (o * t->channels + c) * t->inner;
      add_products_T(x + at, dy + at, t->inner, mean, &sum, &away, &product);
    }
    if (t->batch_stats) product = about_mean(product, sum, away, count);
    ((A *)t->dgamma)[c] = t->gamma ? (A)(product * inverse) : 0;
    ((A *)t->dbeta)[c] = (A)sum;
    A scale = inverse * (t->gamma ? ((const A *)t->gamma)[c] : 1);
    A slope = t->batch_stats ? (A)(product / count * inverse * inverse) : 0;
    A offset = t->batch_stats ? (A)(sum / count) : 0;
    for (int64_t o = 0; o < t->outer; o++) {
      int64_t at = (o * t->channels + c) * t->inner;
      normalise_back_T(x + at, dy + at, dx + at, t->inner, mean, offset, slope, scale);
    }
  }
}

#include "kernels/cpu/norm/batch_norm_last_impl.h"

/* --- LayerNorm along the last axis, in the computing type A ----------------------------------- */
static void put_moments_T(const layer_norm *t, int64_t r, A mean, A deviation) {
  if (t->rounded) {
    ((S *)t->mean)[r] = STORE(mean);
    ((S *)t->deviation)[r] = STORE(deviation);
  } else {
    ((A *)t->mean)[r] = mean;
    ((A *)t->deviation)[r] = deviation;
  }
}

static void layer_norm_rows_T(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  const A *gamma = t->gamma, *beta = t->beta;
  const bool direct = sizeof(S) == sizeof(A);
  A *row = direct ? NULL : layer_norm_rows_of(t);
  int64_t n = t->n;
  for (int64_t r = begin; r < end; r++) {
    const A *x = direct ? (const A *)t->x + r * n : row;
    A *y = direct ? (A *)t->y + r * n : row;
    if (!direct) mpg_cpu_load_all(COMPUTE, DTYPE, t->x, r * n, n, row);
    A mean = (A)(row_sum_T(x, n) / (double)n);
    double away = 0, squares = 0, rest;
    row_distances_T(x, n, mean, &away, &squares);
    A deviation = (A)sqrt((A)moments_T((double)n, away, squares, &mean, &rest) + (A)t->eps),
      inverse = 1 / deviation;
    MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] =
        (x[i] - mean) * inverse * gamma[i] + beta[i];
    if (!direct) mpg_cpu_store(COMPUTE, DTYPE, t->y, r * n, n, y);
    put_moments_T(t, r, mean, deviation);
  }
}

/* Computes dx for the rows of pieces [begin, end), and the sums of dgamma and dbeta for each piece,
 * in A. */
static void layer_norm_backward_pieces_T(void *context, int64_t begin, int64_t end) {
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
      row_products_T(x, scaled, n, mean, &sum, NULL, &product);
      A offset = (A)(sum / (double)n), slope = (A)(product / (double)n * inverse * inverse);
      MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) dx[i] =
          (scaled[i] - offset - (x[i] - mean) * slope) * inverse;
      if (!direct) mpg_cpu_store(COMPUTE, DTYPE, t->y, r * n, n, dx);
    }
  }
}

/* Adds the pieces' sums of dgamma and dbeta, in order and in double. */
static void layer_norm_backward_columns_T(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n, pieces = (t->outer + t->piece_rows - 1) / t->piece_rows;
  for (int64_t at = begin; at < end; at += COLUMNS_T) {
    int width = end - at < COLUMNS_T ? (int)(end - at) : COLUMNS_T;
    double dgamma[COLUMNS_T] = {0}, dbeta[COLUMNS_T] = {0};
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

/* --- rms_norm: as LayerNorm above, with `deviation` for the root mean squares ------------------
 */
static void rms_norm_rows_T(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  const A *gamma = t->gamma;
  const bool direct = sizeof(S) == sizeof(A);
  A *row = direct ? NULL : layer_norm_rows_of(t), offset = (A)t->offset;
  int64_t n = t->n;
  for (int64_t r = begin; r < end; r++) {
    const A *x = direct ? (const A *)t->x + r * n : row;
    A *y = direct ? (A *)t->y + r * n : row;
    if (!direct) mpg_cpu_load_all(COMPUTE, DTYPE, t->x, r * n, n, row);
    A rms = (A)sqrt((A)(row_dot_T(x, x, n) / (double)n) + (A)t->eps), inverse = 1 / rms;
    if (gamma)
      MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = x[i] * inverse * (gamma[i] + offset);
    else
      MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = x[i] * inverse;
    if (!direct) mpg_cpu_store(COMPUTE, DTYPE, t->y, r * n, n, y);
    ((A *)t->deviation)[r] = rms;
  }
}

/* Computes dx = (g - x * mean(g * x) / rms^2) / rms, with g = dy * (gamma + offset), for the rows
 * of pieces [begin, end), and the sum of dgamma for each piece, in A. */
static void rms_norm_backward_pieces_T(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  const A *gamma = t->gamma;
  const bool direct = sizeof(S) == sizeof(A);
  int64_t n = t->n;
  A *scaled = layer_norm_rows_of(t), *x_row = scaled + n, *dy_row = x_row + n;
  A offset = (A)t->offset;
  for (int64_t piece = begin; piece < end; piece++) {
    A *dgamma = (A *)t->sums + piece * n;
    int64_t first = piece * t->piece_rows,
            last = t->outer - first < t->piece_rows ? t->outer : first + t->piece_rows;
    if (gamma) memset(dgamma, 0, (size_t)n * sizeof(A));
    for (int64_t r = first; r < last; r++) {
      const A *x = direct ? (const A *)t->x + r * n : x_row,
              *dy = direct ? (const A *)t->dy + r * n : dy_row, *g = dy;
      A *dx = direct ? (A *)t->y + r * n : scaled, inverse = 1 / ((const A *)t->deviation)[r];
      if (!direct) {
        mpg_cpu_load_all(COMPUTE, DTYPE, t->x, r * n, n, x_row);
        mpg_cpu_load_all(COMPUTE, DTYPE, t->dy, r * n, n, dy_row);
      }
      if (gamma) {
        g = scaled;
        MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) {
          scaled[i] = dy[i] * (gamma[i] + offset);
          dgamma[i] += dy[i] * (x[i] * inverse);
        }
      }
      A slope = (A)(row_dot_T(x, g, n) / (double)n * inverse * inverse);
      MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) dx[i] = (g[i] - x[i] * slope) * inverse;
      if (!direct) mpg_cpu_store(COMPUTE, DTYPE, t->y, r * n, n, dx);
    }
  }
}

/* Adds the pieces' sums in order, in double. */
static void rms_norm_backward_columns_T(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t pieces = (t->outer + t->piece_rows - 1) / t->piece_rows;
  for (int64_t i = begin; i < end; i++) {
    double sum = 0;
    for (int64_t piece = 0; piece < pieces; piece++)
      sum += (double)((const A *)t->sums)[piece * t->n + i];
    ((S *)t->dgamma)[i] = STORE((A)sum);
  }
}

/* --- LayerNorm over the middle axis of (outer, n, inner), by blocks of inner columns ---------- */
static void layer_norm_inner_T(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n, inner = t->inner, blocks = (inner + COLUMNS_T - 1) / COLUMNS_T;
  double sums[COLUMNS_T];
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t o = piece / blocks, at = piece % blocks * COLUMNS_T;
    int width = inner - at < COLUMNS_T ? (int)(inner - at) : COLUMNS_T;
    const S *x = (const S *)t->x + o * n * inner + at;
    S *y = (S *)t->y + o * n * inner + at;
    A mean[COLUMNS_T], inverse[COLUMNS_T];
    column_sums_T(x, NULL, NULL, n, inner, width, sums);
    for (int j = 0; j < width; j++) mean[j] = (A)(sums[j] / (double)n);
    column_sums_T(x, NULL, mean, n, inner, width, sums);
    for (int j = 0; j < width; j++) {
      A deviation = (A)sqrt((A)(sums[j] / (double)n) + (A)t->eps);
      inverse[j] = 1 / deviation;
      put_moments_T(t, o * inner + at + j, mean[j], deviation);
    }
    for (int64_t k = 0; k < n; k++) {
      A gamma = (A)LOAD(((const S *)t->gamma)[k]), beta = (A)LOAD(((const S *)t->beta)[k]);
      for (int j = 0; j < width; j++)
        y[k * inner + j] = STORE(((A)LOAD(x[k * inner + j]) - mean[j]) * inverse[j] * gamma + beta);
    }
  }
}

static void layer_norm_backward_inner_T(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n, inner = t->inner, blocks = (inner + COLUMNS_T - 1) / COLUMNS_T;
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t o = piece / blocks, at = piece % blocks * COLUMNS_T;
    int width = inner - at < COLUMNS_T ? (int)(inner - at) : COLUMNS_T;
    const S *x = (const S *)t->x + o * n * inner + at, *dy = (const S *)t->dy + o * n * inner + at;
    S *dx = (S *)t->y + o * n * inner + at;
    A mean[COLUMNS_T], inverse[COLUMNS_T];
    double sum[COLUMNS_T] = {0}, product[COLUMNS_T] = {0};
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

/* Computes dgamma and dbeta at positions [begin, end) along the normalized axis. */
static void layer_norm_backward_affine_T(void *context, int64_t begin, int64_t end) {
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
      dbeta += sum_T(dy, t->inner);
    }
    ((S *)t->dgamma)[k] = STORE((A)dgamma);
    ((S *)t->dbeta)[k] = STORE((A)dbeta);
  }
}

/* --- GroupNorm: rows of n elements; row r belongs to group r % groups ------------------------- */
static void group_norm_rows_T(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n;
  for (int64_t r = begin; r < end; r++) {
    const S *x = (const S *)t->x + r * n;
    S *y = (S *)t->y + r * n;
    A gamma = (A)LOAD(((const S *)t->gamma)[r % t->inner]),
      beta = (A)LOAD(((const S *)t->beta)[r % t->inner]);
    A mean = n ? (A)(sum_T(x, n) / (double)n) : 0;
    double away = 0, squares = 0, rest;
    add_distances_T(x, n, mean, &away, &squares);
    A deviation = (A)sqrt((A)moments_T((double)n, away, squares, &mean, &rest) + (A)t->eps),
      scale = gamma / deviation;
    A shift = (A)((double)beta - rest * (double)scale);
    normalise_T(x, y, n, mean, scale, shift);
    put_moments_T(t, r, mean, deviation);
  }
}

static void group_norm_backward_rows_T(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n;
  for (int64_t r = begin; r < end; r++) {
    const S *x = (const S *)t->x + r * n, *dy = (const S *)t->dy + r * n;
    S *dx = (S *)t->y + r * n;
    A gamma = (A)LOAD(((const S *)t->gamma)[r % t->inner]);
    A mean = ((const A *)t->mean)[r], inverse = 1 / ((const A *)t->deviation)[r];
    double sum = 0, away = 0, product = 0;
    add_products_T(x, dy, n, mean, &sum, &away, &product);
    product = about_mean(product, sum, away, (double)n);
    t->partial[2 * r] = product * inverse;
    t->partial[2 * r + 1] = sum;
    A offset = (A)(sum / (double)n), slope = (A)(product / (double)n * inverse * inverse),
      scale = gamma * inverse;
    normalise_back_T(x, dy, dx, n, mean, offset, slope, scale);
  }
}

static void group_norm_affine_T(const layer_norm *t) {
  for (int64_t g = 0; g < t->inner; g++) {
    double dgamma = 0, dbeta = 0;
    for (int64_t r = g; r < t->outer; r += t->inner)
      dgamma += t->partial[2 * r], dbeta += t->partial[2 * r + 1];
    ((S *)t->dgamma)[g] = STORE((A)dgamma);
    ((S *)t->dbeta)[g] = STORE((A)dbeta);
  }
}

/* --- L2Normalization: data is (outer, n, inner) ----------------------------------------------- */
static void l2_rows_T(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n;
  for (int64_t r = begin; r < end; r++) {
    const S *x = (const S *)t->x + r * n;
    A norm = (A)sqrt((A)dot_T(x, x, n) + (A)t->eps);
    scale_T(x, (S *)t->y + r * n, n, 1 / norm);
    ((A *)t->deviation)[r] = norm;
  }
}

/* Computes dx = (dy - x * slope) / norm, where slope = sum(x * dy) / norm^2. */
static void l2_backward_rows_T(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n;
  for (int64_t r = begin; r < end; r++) {
    const S *x = (const S *)t->x + r * n, *dy = (const S *)t->dy + r * n;
    A inverse = 1 / ((const A *)t->deviation)[r];
    A slope = (A)(dot_T(x, dy, n) * inverse * inverse);
    normalise_back_T(x, dy, (S *)t->y + r * n, n, 0, 0, slope, inverse);
  }
}

/* Processes work units. A unit is a block of inner columns for one outer index. */
static void l2_inner_T(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n, inner = t->inner, blocks = (inner + COLUMNS_T - 1) / COLUMNS_T;
  const A zeros[COLUMNS_T] = {0};
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t o = piece / blocks, at = piece % blocks * COLUMNS_T;
    int width = inner - at < COLUMNS_T ? (int)(inner - at) : COLUMNS_T;
    const S *x = (const S *)t->x + o * n * inner + at;
    S *y = (S *)t->y + o * n * inner + at;
    double sums[COLUMNS_T];
    A inverse[COLUMNS_T];
    column_sums_T(x, NULL, zeros, n, inner, width, sums);
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

static void l2_backward_inner_T(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n, inner = t->inner, blocks = (inner + COLUMNS_T - 1) / COLUMNS_T;
  const A zeros[COLUMNS_T] = {0};
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t o = piece / blocks, at = piece % blocks * COLUMNS_T;
    int width = inner - at < COLUMNS_T ? (int)(inner - at) : COLUMNS_T;
    const S *x = (const S *)t->x + o * n * inner + at, *dy = (const S *)t->dy + o * n * inner + at;
    S *dx = (S *)t->y + o * n * inner + at;
    double sums[COLUMNS_T];
    A inverse[COLUMNS_T], slope[COLUMNS_T];
    column_sums_T(x, dy, zeros, n, inner, width, sums);
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
