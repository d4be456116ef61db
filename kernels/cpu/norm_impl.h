/* Normalisation kernels for one storage type. Included by norm.c with
 *   S           storage type          A         computing type (float or double)
 *   LOAD(x)     S to A                STORE(x)  A to S              NAME(x)  names of this instance
 * Sums run in chunks whose borders depend on shapes alone, in A within a chunk and in double across chunks, so the bits do not
 * depend on threads.
 */

typedef A NAME(vector) __attribute__((vector_size(64)));
enum { NAME(LANES) = 64 / sizeof(A), NAME(CHUNK) = 4096, NAME(COLUMNS) = 64, NAME(ROWS) = 128 };

#define GATHER(v, p) /* v = the next LANES elements of p, as A */                   \
  do {                                                                              \
    if (sizeof(S) == sizeof(A)) memcpy(&(v), (p), sizeof(v));                       \
    else                                                                            \
      for (int l_ = 0; l_ < NAME(LANES); l_++) (v)[l_] = (A)LOAD((p)[l_]);          \
  } while (0)

/* The sum of term over i in [0, n), n at most CHUNK or so; LOADS fills the vectors u, v, w
 * from element i on, TERM combines them, SCALAR is the same for element i. */
#define CHUNK_SUM(result, n, LOADS, TERM, SCALAR)                        \
  do {                                                                   \
    NAME(vector) sum0_ = {0}, sum1_ = {0};                               \
    int64_t i = 0;                                                       \
    for (; i + 2 * NAME(LANES) <= (n);) {                                \
      NAME(vector) u __attribute__((unused)), v, w __attribute__((unused)); \
      LOADS;                                                             \
      sum0_ += TERM;                                                     \
      i += NAME(LANES);                                                  \
      LOADS;                                                             \
      sum1_ += TERM;                                                     \
      i += NAME(LANES);                                                  \
    }                                                                    \
    sum0_ += sum1_;                                                      \
    A total_ = 0;                                                        \
    for (int l_ = 0; l_ < NAME(LANES); l_++) total_ += sum0_[l_];        \
    for (; i < (n); i++) total_ += SCALAR;                               \
    (result) += (double)total_;                                          \
  } while (0)

static double NAME(sum)(const S *x, int64_t n) {
  double result = 0;
  for (int64_t begin = 0; begin < n; begin += NAME(CHUNK)) {
    const S *c = x + begin;
    int64_t length = n - begin < NAME(CHUNK) ? n - begin : NAME(CHUNK);
    CHUNK_SUM(result, length, GATHER(v, c + i), v, (A)LOAD(c[i]));
  }
  return result;
}

static double NAME(sum_away)(const S *x, int64_t n, A mean) { /* of distances from mean, with their signs */
  double result = 0;
  for (int64_t begin = 0; begin < n; begin += NAME(CHUNK)) {
    const S *c = x + begin;
    int64_t length = n - begin < NAME(CHUNK) ? n - begin : NAME(CHUNK);
    CHUNK_SUM(result, length, GATHER(v, c + i), (v - mean), (A)LOAD(c[i]) - mean);
  }
  return result;
}

static double NAME(sum_squares)(const S *x, int64_t n, A mean) { /* of distances from mean */
  double result = 0;
  for (int64_t begin = 0; begin < n; begin += NAME(CHUNK)) {
    const S *c = x + begin;
    int64_t length = n - begin < NAME(CHUNK) ? n - begin : NAME(CHUNK);
    CHUNK_SUM(result, length, GATHER(v, c + i); v -= mean, (v * v), ((A)LOAD(c[i]) - mean) * ((A)LOAD(c[i]) - mean));
  }
  return result;
}

/* Adds to *away the distances of n elements from `center`, with their signs, and to *squares their squares. */
static void NAME(add_distances)(const S *x, int64_t n, A center, double *away, double *squares) {
  for (int64_t begin = 0; begin < n; begin += NAME(CHUNK)) {
    const S *c = x + begin;
    int64_t length = n - begin < NAME(CHUNK) ? n - begin : NAME(CHUNK), i = 0;
    NAME(vector) sums[2] = {{0}}, products[2] = {{0}};
    for (; i + 2 * NAME(LANES) <= length; i += 2 * NAME(LANES))
      for (int k = 0; k < 2; k++) {
        NAME(vector) v;
        GATHER(v, c + i + k * NAME(LANES));
        v -= center;
        sums[k] += v;
        products[k] += v * v;
      }
    A sum = 0, product = 0;
    sums[0] += sums[1], products[0] += products[1];
    for (int l = 0; l < NAME(LANES); l++) sum += sums[0][l], product += products[0][l];
    for (; i < length; i++) {
      A v = (A)LOAD(c[i]) - center;
      sum += v, product += v * v;
    }
    *away += (double)sum, *squares += (double)product;
  }
}

/* The variance of what the distances were summed of. *center becomes the mean; *rest is what rounding takes from it. Normalised are
 * distances from the mean as it is: near a large mean they are smaller than what rounding it would take from them. */
static double NAME(moments)(double count, double away, double squares, A *center, double *rest) {
  if (count == 0) return *rest = 0;
  double shift = away / count, mean = (double)*center + shift, variance = squares / count - shift * shift;
  *center = (A)mean;
  *rest = mean - (double)*center;
  return variance > 0 ? variance : variance == variance ? 0 : variance;
}

static double NAME(sum_product)(const S *x, const S *y, int64_t n, A mean) { /* of (x - mean) * y */
  double result = 0;
  for (int64_t begin = 0; begin < n; begin += NAME(CHUNK)) {
    const S *c = x + begin, *d = y + begin;
    int64_t length = n - begin < NAME(CHUNK) ? n - begin : NAME(CHUNK);
    CHUNK_SUM(result, length, GATHER(v, c + i); GATHER(w, d + i), ((v - mean) * w),
              ((A)LOAD(c[i]) - mean) * (A)LOAD(d[i]));
  }
  return result;
}

/* Sums of y, of the distances of x from `center`, and of their products with y; CHUNK elements at a time. */
static void NAME(add_products)(const S *x, const S *y, int64_t n, A center, double *sum, double *away, double *product) {
  for (int64_t begin = 0; begin < n; begin += NAME(CHUNK)) {
    const S *c = x + begin, *d = y + begin;
    int64_t length = n - begin < NAME(CHUNK) ? n - begin : NAME(CHUNK), i = 0;
    NAME(vector) sums = {0}, distances = {0}, products = {0};
    for (; i + NAME(LANES) <= length; i += NAME(LANES)) {
      NAME(vector) v, w;
      GATHER(v, c + i);
      GATHER(w, d + i);
      v -= center;
      sums += w;
      distances += v;
      products += v * w;
    }
    A s = 0, u = 0, p = 0;
    for (int l = 0; l < NAME(LANES); l++) s += sums[l], u += distances[l], p += products[l];
    for (; i < length; i++) {
      A v = (A)LOAD(c[i]) - center, w = (A)LOAD(d[i]);
      s += w, u += v, p += v * w;
    }
    *sum += (double)s, *away += (double)u, *product += (double)p;
  }
}

/* --- Columns: sums down the rows of a matrix, COLUMNS at a time ------------------------------------------------------ */
/* sums[j] of x, of squared distances from mean (when mean is given), or of (x - mean) * y (when y is given too). */
static void NAME(column_sums)(const S *x, const S *y, const A *mean, int64_t rows, int64_t stride, int width, double *sums) {
  A partial[NAME(COLUMNS)];
  for (int j = 0; j < width; j++) sums[j] = 0;
  for (int64_t begin = 0; begin < rows; begin += NAME(ROWS)) {
    int64_t end = rows - begin < NAME(ROWS) ? rows : begin + NAME(ROWS);
    for (int j = 0; j < width; j++) partial[j] = 0;
    for (int64_t r = begin; r < end; r++) {
      const S *row = x + r * stride;
      if (y)
        for (int j = 0; j < width; j++) partial[j] += ((A)LOAD(row[j]) - mean[j]) * (A)LOAD(y[r * stride + j]);
      else if (mean)
        for (int j = 0; j < width; j++) partial[j] += ((A)LOAD(row[j]) - mean[j]) * ((A)LOAD(row[j]) - mean[j]);
      else
        for (int j = 0; j < width; j++) partial[j] += (A)LOAD(row[j]);
    }
    for (int j = 0; j < width; j++) sums[j] += (double)partial[j];
  }
}

/* --- BatchNorm ------------------------------------------------------------------------------------------------------ */
static A NAME(inverse_deviation)(double variance, double eps) {
  return variance == 0 && eps == 0 ? 0 : (A)1 / (A)sqrt((A)variance + (A)eps);
}

/* The statistics of one channel, and what is done with them. */
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
      for (int64_t o = 0; o < t->outer; o++) sum += NAME(sum)(x + (o * t->channels + c) * t->inner, t->inner);
      A center = (A)(sum / count);
      for (int64_t o = 0; o < t->outer; o++) NAME(add_distances)(x + (o * t->channels + c) * t->inner, t->inner, center, &away, &squares);
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
      for (int64_t i = 0; i < t->inner; i++) to[i] = STORE(((A)LOAD(from[i]) - center) * scale + shift);
    }
  }
}

/* dx = (dy - mean(dy) - (x - mean) * inverse^2 * mean(dy * (x - mean))) * inverse * gamma, the means only with batch statistics. */
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
      sum += NAME(sum)(dy + at, t->inner);
      product += NAME(sum_product)(x + at, dy + at, t->inner, mean);
      if (t->batch_stats) away += NAME(sum_away)(x + at, t->inner, mean);
    }
    if (t->batch_stats) product = about_mean(product, sum, away, count);
    ((A *)t->dgamma)[c] = t->gamma ? (A)(product * inverse) : 0;
    ((A *)t->dbeta)[c] = (A)sum;
    A scale = inverse * (t->gamma ? ((const A *)t->gamma)[c] : 1);
    A slope = t->batch_stats ? (A)(product / count * inverse * inverse) : 0;
    A offset = t->batch_stats ? (A)(sum / count) : 0;
    for (int64_t o = 0; o < t->outer; o++) {
      int64_t at = (o * t->channels + c) * t->inner;
      for (int64_t i = at; i < at + t->inner; i++)
        dx[i] = STORE(((A)LOAD(dy[i]) - offset - ((A)LOAD(x[i]) - mean) * slope) * scale);
    }
  }
}

#include "kernels/cpu/batch_norm_last_impl.h"

/* --- LayerNorm along the last axis ------------------------------------------------------------------------------------ */
static void NAME(layer_norm_rows)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  const S *gamma = t->gamma, *beta = t->beta;
  int64_t n = t->n;
  for (int64_t r = begin; r < end; r++) {
    const S *x = (const S *)t->x + r * n;
    S *y = (S *)t->y + r * n;
    A mean = (A)(NAME(sum)(x, n) / (double)n);
    double away = 0, squares = 0, rest;
    NAME(add_distances)(x, n, mean, &away, &squares);
    A deviation = (A)sqrt((A)NAME(moments)((double)n, away, squares, &mean, &rest) + (A)t->eps), inverse = 1 / deviation;
    for (int64_t i = 0; i < n; i++) y[i] = STORE(((A)LOAD(x[i]) - mean) * inverse * (A)LOAD(gamma[i]) + (A)LOAD(beta[i]));
    ((S *)t->mean)[r] = STORE(mean);
    ((S *)t->deviation)[r] = STORE(deviation);
  }
}

static void NAME(layer_norm_backward_rows)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  const S *gamma = t->gamma;
  int64_t n = t->n;
  for (int64_t r = begin; r < end; r++) {
    const S *x = (const S *)t->x + r * n, *dy = (const S *)t->dy + r * n;
    S *dx = (S *)t->y + r * n;
    A mean = (A)LOAD(((const S *)t->mean)[r]), inverse = 1 / (A)LOAD(((const S *)t->deviation)[r]);
    double sum = 0, product = 0;
    for (int64_t b = 0; b < n; b += NAME(CHUNK)) {
      const S *c = x + b, *d = dy + b, *g = gamma + b;
      int64_t length = n - b < NAME(CHUNK) ? n - b : NAME(CHUNK);
      CHUNK_SUM(sum, length, GATHER(v, d + i); GATHER(w, g + i), (v * w), (A)LOAD(d[i]) * (A)LOAD(g[i]));
      CHUNK_SUM(product, length, GATHER(u, c + i); GATHER(v, d + i); GATHER(w, g + i), (v * w * (u - mean)),
                (A)LOAD(d[i]) * (A)LOAD(g[i]) * ((A)LOAD(c[i]) - mean));
    }
    A offset = (A)(sum / (double)n), slope = (A)(product / (double)n * inverse * inverse);
    for (int64_t i = 0; i < n; i++)
      dx[i] = STORE(((A)LOAD(dy[i]) * (A)LOAD(gamma[i]) - offset - ((A)LOAD(x[i]) - mean) * slope) * inverse);
  }
}

/* dgamma and dbeta; begin and end count blocks of COLUMNS columns. */
static void NAME(layer_norm_backward_columns)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n;
  for (int64_t block = begin; block < end; block++) {
    int64_t at = block * NAME(COLUMNS);
    int width = n - at < NAME(COLUMNS) ? (int)(n - at) : NAME(COLUMNS);
    double dgamma[NAME(COLUMNS)] = {0}, dbeta[NAME(COLUMNS)] = {0};
    for (int64_t r0 = 0; r0 < t->outer; r0 += NAME(ROWS)) {
      int64_t r1 = t->outer - r0 < NAME(ROWS) ? t->outer : r0 + NAME(ROWS);
      A g[NAME(COLUMNS)] = {0}, b[NAME(COLUMNS)] = {0};
      for (int64_t r = r0; r < r1; r++) {
        const S *x = (const S *)t->x + r * n + at, *dy = (const S *)t->dy + r * n + at;
        A mean = (A)LOAD(((const S *)t->mean)[r]), inverse = 1 / (A)LOAD(((const S *)t->deviation)[r]);
        for (int j = 0; j < width; j++) {
          g[j] += (A)LOAD(dy[j]) * (((A)LOAD(x[j]) - mean) * inverse);
          b[j] += (A)LOAD(dy[j]);
        }
      }
      for (int j = 0; j < width; j++) dgamma[j] += (double)g[j], dbeta[j] += (double)b[j];
    }
    for (int j = 0; j < width; j++) {
      ((S *)t->dgamma)[at + j] = STORE((A)dgamma[j]);
      ((S *)t->dbeta)[at + j] = STORE((A)dbeta[j]);
    }
  }
}

/* --- LayerNorm along another axis: data is (outer, n, inner); begin and end count (outer, block of inner) ------------- */
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
      ((S *)t->mean)[o * inner + at + j] = STORE(mean[j]);
      ((S *)t->deviation)[o * inner + at + j] = STORE(deviation);
    }
    for (int64_t k = 0; k < n; k++) {
      A gamma = (A)LOAD(((const S *)t->gamma)[k]), beta = (A)LOAD(((const S *)t->beta)[k]);
      for (int j = 0; j < width; j++) y[k * inner + j] = STORE(((A)LOAD(x[k * inner + j]) - mean[j]) * inverse[j] * gamma + beta);
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
      mean[j] = (A)LOAD(((const S *)t->mean)[o * inner + at + j]);
      inverse[j] = 1 / (A)LOAD(((const S *)t->deviation)[o * inner + at + j]);
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
        A offset = (A)(sum[j] / (double)n), slope = (A)(product[j] / (double)n * inverse[j] * inverse[j]);
        dx[k * inner + j] =
            STORE(((A)LOAD(dy[k * inner + j]) * gamma - offset - ((A)LOAD(x[k * inner + j]) - mean[j]) * slope) * inverse[j]);
      }
    }
  }
}

/* dgamma and dbeta; begin and end count positions along the normalised axis. */
static void NAME(layer_norm_backward_affine)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  for (int64_t k = begin; k < end; k++) {
    double dgamma = 0, dbeta = 0;
    for (int64_t o = 0; o < t->outer; o++) {
      const S *x = (const S *)t->x + (o * t->n + k) * t->inner, *dy = (const S *)t->dy + (o * t->n + k) * t->inner;
      const S *mean = (const S *)t->mean + o * t->inner, *deviation = (const S *)t->deviation + o * t->inner;
      A g = 0;
      for (int64_t i = 0; i < t->inner; i++) g += (A)LOAD(dy[i]) * (((A)LOAD(x[i]) - (A)LOAD(mean[i])) / (A)LOAD(deviation[i]));
      dgamma += (double)g;
      dbeta += NAME(sum)(dy, t->inner);
    }
    ((S *)t->dgamma)[k] = STORE((A)dgamma);
    ((S *)t->dbeta)[k] = STORE((A)dbeta);
  }
}

/* --- GroupNorm: rows of n elements, row r belonging to group r % groups ----------------------------------------------- */
static void NAME(group_norm_rows)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n;
  for (int64_t r = begin; r < end; r++) {
    const S *x = (const S *)t->x + r * n;
    S *y = (S *)t->y + r * n;
    A gamma = (A)LOAD(((const S *)t->gamma)[r % t->inner]), beta = (A)LOAD(((const S *)t->beta)[r % t->inner]);
    A mean = n ? (A)(NAME(sum)(x, n) / (double)n) : 0;
    double away = 0, squares = 0, rest;
    NAME(add_distances)(x, n, mean, &away, &squares);
    A deviation = (A)sqrt((A)NAME(moments)((double)n, away, squares, &mean, &rest) + (A)t->eps), scale = gamma / deviation;
    A shift = (A)((double)beta - rest * (double)scale);
    for (int64_t i = 0; i < n; i++) y[i] = STORE(((A)LOAD(x[i]) - mean) * scale + shift);
    ((S *)t->mean)[r] = STORE(mean);
    ((S *)t->deviation)[r] = STORE(deviation);
  }
}

static void NAME(group_norm_backward_rows)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n;
  for (int64_t r = begin; r < end; r++) {
    const S *x = (const S *)t->x + r * n, *dy = (const S *)t->dy + r * n;
    S *dx = (S *)t->y + r * n;
    A gamma = (A)LOAD(((const S *)t->gamma)[r % t->inner]);
    A mean = (A)LOAD(((const S *)t->mean)[r]), inverse = 1 / (A)LOAD(((const S *)t->deviation)[r]);
    double sum = 0, away = 0, product = 0;
    NAME(add_products)(x, dy, n, mean, &sum, &away, &product);
    product = about_mean(product, sum, away, (double)n);
    t->partial[2 * r] = product * inverse;
    t->partial[2 * r + 1] = sum;
    A offset = (A)(sum / (double)n), slope = (A)(product / (double)n * inverse * inverse), scale = gamma * inverse;
    for (int64_t i = 0; i < n; i++) dx[i] = STORE(((A)LOAD(dy[i]) - offset - ((A)LOAD(x[i]) - mean) * slope) * scale);
  }
}

static void NAME(group_norm_affine)(const layer_norm *t) {
  for (int64_t g = 0; g < t->inner; g++) {
    double dgamma = 0, dbeta = 0;
    for (int64_t r = g; r < t->outer; r += t->inner) dgamma += t->partial[2 * r], dbeta += t->partial[2 * r + 1];
    ((S *)t->dgamma)[g] = STORE((A)dgamma);
    ((S *)t->dbeta)[g] = STORE((A)dbeta);
  }
}

/* --- L2Normalization: data is (outer, n, inner); begin and end count (outer, block of inner) --------------------------- */
static void NAME(l2_normalization)(void *context, int64_t begin, int64_t end) {
  const layer_norm *t = context;
  int64_t n = t->n, inner = t->inner, blocks = (inner + NAME(COLUMNS) - 1) / NAME(COLUMNS);
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t o = piece / blocks, at = piece % blocks * NAME(COLUMNS);
    int width = inner - at < NAME(COLUMNS) ? (int)(inner - at) : NAME(COLUMNS);
    const S *x = (const S *)t->x + o * n * inner + at;
    S *y = (S *)t->y + o * n * inner + at;
    A norm[NAME(COLUMNS)], zero[NAME(COLUMNS)] = {0};
    double sums[NAME(COLUMNS)];
    if (inner == 1) sums[0] = NAME(sum_squares)(x, n, 0);
    else NAME(column_sums)(x, NULL, zero, n, inner, width, sums);
    for (int j = 0; j < width; j++) {
      norm[j] = (A)sqrt(sums[j] + t->eps);
      ((S *)t->deviation)[o * inner + at + j] = STORE(norm[j]);
    }
    if (inner == 1)
      for (int64_t k = 0; k < n; k++) y[k] = STORE((A)LOAD(x[k]) / norm[0]);
    else
      for (int64_t k = 0; k < n; k++)
        for (int j = 0; j < width; j++) y[k * inner + j] = STORE((A)LOAD(x[k * inner + j]) / norm[j]);
  }
}

/* --- LRN: begin and end count (sample, channel) ------------------------------------------------------------------------ */
static void NAME(lrn)(void *context, int64_t begin, int64_t end) {
  const lrn *t = context;
  const S *x = t->x;
  int64_t half = t->nsize / 2;
  for (int64_t row = begin; row < end; row++) {
    int64_t c = row % t->channels, sample = row - c, low = c - half < 0 ? 0 : c - half;
    int64_t high = c + half >= t->channels ? t->channels - 1 : c + half;
    for (int64_t i = 0; i < t->inner; i++) {
      A sum = 0;
      for (int64_t d = low; d <= high; d++) sum += (A)LOAD(x[(sample + d) * t->inner + i]) * (A)LOAD(x[(sample + d) * t->inner + i]);
      A norm = (A)t->knorm + (A)(t->alpha / (double)t->nsize) * sum;
      ((S *)t->norm)[row * t->inner + i] = STORE(norm);
      ((S *)t->y)[row * t->inner + i] = STORE((A)LOAD(x[row * t->inner + i]) * (A)pow(norm, -t->beta));
    }
  }
}

static void NAME(lrn_backward)(void *context, int64_t begin, int64_t end) {
  const lrn *t = context;
  const S *x = t->x, *dy = t->dy, *norm = t->norm;
  int64_t half = t->nsize / 2;
  for (int64_t row = begin; row < end; row++) {
    int64_t c = row % t->channels, sample = row - c, low = c - half < 0 ? 0 : c - half;
    int64_t high = c + half >= t->channels ? t->channels - 1 : c + half;
    for (int64_t i = 0; i < t->inner; i++) {
      A sum = 0;
      for (int64_t d = low; d <= high; d++) {
        int64_t at = (sample + d) * t->inner + i;
        sum += (A)LOAD(dy[at]) * (A)LOAD(x[at]) * (A)pow((A)LOAD(norm[at]), -t->beta - 1);
      }
      int64_t at = row * t->inner + i;
      ((S *)t->y)[at] = STORE((A)LOAD(dy[at]) * (A)pow((A)LOAD(norm[at]), -t->beta) -
                              (A)(2 * t->alpha * t->beta / (double)t->nsize) * (A)LOAD(x[at]) * sum);
    }
  }
}

#undef GATHER
#undef CHUNK_SUM
#undef S
#undef A
#undef LOAD
#undef STORE
#undef NAME
