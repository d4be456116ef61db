/* Channels-last BatchNorm kernels for one dtype, optionally fused with a following addition and
 * relu. Included by norm_impl.h, with its macros.
 *
 * Forward computes the statistics in one pass over the data, which sums x - center and its square,
 * where `center` is the mean of the first ROWS rows. To limit rounding errors, FEW rows are summed
 * in A, the sums of up to ROWS rows are added in A, and their totals are added in double. Rows are
 * divided into pieces by shape only, and the pieces' sums are added in order, so results do not
 * depend on the number of threads.
 */

/* Each x_T below is NAME(x), the name of x in this instance. */
#define FEW_T NAME(FEW)
#define LINE_T NAME(LINE)
#define LINES_T NAME(LINES)
#define add_lines_T NAME(add_lines)
#define bits_T NAME(bits)
#define lanes_T NAME(lanes)
#define last_apply_T NAME(last_apply)
#define last_backward_apply_T NAME(last_backward_apply)
#define last_backward_statistics_T NAME(last_backward_statistics)
#define last_center_T NAME(last_center)
#define last_statistics_T NAME(last_statistics)
#define last_sums_T NAME(last_sums)
#define last_total_T NAME(last_total)
#define line_T NAME(line)
#define mask_at_T NAME(mask_at)
#define poisoned_T NAME(poisoned)
#define put_mask_T NAME(put_mask)
#define rounded_T NAME(rounded)
#define sum_columns_T NAME(sum_columns)
#define sum_lines_T NAME(sum_lines)
#define sums_T NAME(sums)
#define through_T NAME(through)
#define through_one_T NAME(through_one)
#define where_T NAME(where)

typedef A line_T __attribute__((vector_size(64)));
typedef __typeof__((line_T){0} < (line_T){0}) lanes_T;
enum { LINE_T = 64 / sizeof(A) };
enum { LINES_T = COLUMNS_T / LINE_T, FEW_T = 16 };

/* Load and store a line, which is a vector of LINE elements of type A. Halves go through an array,
 * since vector lanes have no address. */
#define GATHER(v, p) /* v = the next LINE elements of p, as A */                  \
  do {                                                                            \
    A lanes_[LINE_T];                                                             \
    if (sizeof(S) != sizeof(A)) LOAD_LINE(lanes_, p);                             \
    memcpy(&(v), sizeof(S) == sizeof(A) ? (const void *)(p) : lanes_, sizeof(v)); \
  } while (0)
#define SCATTER(p, v) /* the next LINE elements of p = v */                 \
  do {                                                                      \
    A lanes_[LINE_T];                                                       \
    memcpy(sizeof(S) == sizeof(A) ? (void *)(p) : lanes_, &(v), sizeof(v)); \
    if (sizeof(S) != sizeof(A)) STORE_LINE(p, lanes_);                      \
  } while (0)

/* Rounds to the storage type, so that results equal those of separate ops. */
static inline line_T rounded_T(line_T v) {
  S stored[LINE_T];
  if (sizeof(S) == sizeof(A)) return v;
  SCATTER(stored, v);
  GATHER(v, stored);
  return v;
}

/* Returns a bit mask of the lanes that are set. */
static inline uint32_t bits_T(lanes_T set) {
#ifdef __AVX512DQ__
  if (sizeof(A) == 4) return _mm512_movepi32_mask((__m512i)set);
  return _mm512_movepi64_mask((__m512i)set);
#else
  uint32_t bits = 0;
  for (int l = 0; l < LINE_T; l++) bits |= (uint32_t)(set[l] & 1) << l;
  return bits;
#endif
}

/* Returns v in lanes whose bit is set, else 0. */
static inline line_T where_T(uint32_t bits, line_T v) {
#ifdef __AVX512DQ__
  if (sizeof(A) == 4) return (line_T)_mm512_maskz_mov_epi32((__mmask16)bits, (__m512i)v);
  return (line_T)_mm512_maskz_mov_epi64((__mmask8)bits, (__m512i)v);
#else
  for (int l = 0; l < LINE_T; l++) v[l] = bits >> l & 1 ? v[l] : 0;
  return v;
#endif
}

/* Returns the mask bits of LINE channels, starting at c, which must be a multiple of 8. */
static inline uint32_t mask_at_T(const uint8_t *row, int64_t c) {
  return sizeof(A) == 4 ? (uint32_t)row[c / 8] | (uint32_t)row[c / 8 + 1] << 8 : row[c / 8];
}

static inline void put_mask_T(uint8_t *row, int64_t c, uint32_t bits) {
  row[c / 8] = (uint8_t)bits;
  if (sizeof(A) == 4) row[c / 8 + 1] = (uint8_t)(bits >> 8);
}

/* Returns v with NaN in the lanes whose bit is set. Rarely called, so not inlined. */
static __attribute__((noinline)) line_T poisoned_T(uint32_t bits, line_T v) {
  for (int l = 0; l < LINE_T; l++) v[l] = bits >> l & 1 ? (A)NAN : v[l];
  return v;
}

/* Applies the gradient of relu to v: 0 where relu clipped, NaN where relu's input was NaN. */
static inline line_T through_T(const batch_norm *t, const uint8_t *mask, int64_t c, line_T v) {
  v = where_T(mask_at_T(mask, c), v);
  return __builtin_expect(mask[2 * t->mask_bytes], 0)
             ? poisoned_T(mask_at_T(mask + t->mask_bytes, c), v)
             : v;
}
static inline A through_one_T(const batch_norm *t, const uint8_t *mask, int64_t c, A v) {
  if (!(mask[c / 8] >> c % 8 & 1)) v = 0;
  return __builtin_expect(mask[2 * t->mask_bytes], 0) && mask[t->mask_bytes + c / 8] >> c % 8 & 1
             ? (A)NAN
             : v;
}

/* Sums per channel, where u = x - center:
 *   forward     `sum` of u, `product` of u * u
 *   backward    `sum` of dy (after relu's gradient), `product` of dy * u, `away` of u */
typedef struct sums_T {
  double *sum, *product, *away;
} sums_T;

/* Adds row r to the sums a, b and d of LINES lines of channels, starting at channel c. */
static inline __attribute__((always_inline)) void add_lines_T(const batch_norm *t, int64_t r,
                                                              int64_t c, const line_T *middle,
                                                              line_T *a, line_T *b, line_T *d) {
  const S *x = (const S *)t->x + r * t->channels + c,
          *dy = t->dy ? (const S *)t->dy + r * t->channels + c : NULL;
  const uint8_t *mask = t->mask ? t->mask + r * (2 * t->mask_bytes + 1) : NULL;
  for (int k = 0; k < LINES_T; k++) {
    line_T u, v;
    GATHER(u, x + k * LINE_T);
    u -= middle[k];
    if (dy) {
      GATHER(v, dy + k * LINE_T);
      if (mask) v = through_T(t, mask, c + k * LINE_T, v);
      d[k] += u;
    } else {
      v = u;
    }
    a[k] += v;
    b[k] += v * u;
  }
}

/* Adds rows [begin, end), at most ROWS, to the sums of LINES lines of channels, starting at channel
 * c. */
static void sum_lines_T(const batch_norm *t, int64_t begin, int64_t end, int64_t c, const A *center,
                        sums_T to) {
  line_T as[LINES_T] = {{0}}, bs[LINES_T] = {{0}}, us[LINES_T] = {{0}}, middle[LINES_T];
  for (int k = 0; k < LINES_T; k++) memcpy(&middle[k], center + c + k * LINE_T, sizeof middle[k]);
  for (int64_t few = begin; few < end; few += FEW_T) {
    line_T a[LINES_T] = {{0}}, b[LINES_T] = {{0}}, d[LINES_T] = {{0}};
    int64_t last = end - few < FEW_T ? end : few + FEW_T;
    for (int64_t r = few; r < last; r++) add_lines_T(t, r, c, middle, a, b, d);
    for (int k = 0; k < LINES_T; k++) as[k] += a[k], bs[k] += b[k], us[k] += d[k];
  }
  for (int j = 0; j < COLUMNS_T; j++) {
    int k = j / LINE_T, l = j % LINE_T;
    to.sum[j] += (double)as[k][l];
    to.product[j] += (double)bs[k][l];
    to.away[j] += (double)us[k][l];
  }
}

/* Adds rows [begin, end), at most ROWS, to the sums of `width` < COLUMNS channels, starting at
 * channel c. */
static void sum_columns_T(const batch_norm *t, int64_t begin, int64_t end, int64_t c, int width,
                          const A *center, sums_T to) {
  const int64_t channels = t->channels, mask_stride = 2 * t->mask_bytes + 1;
  A as[COLUMNS_T] = {0}, bs[COLUMNS_T] = {0}, us[COLUMNS_T] = {0};
  for (int64_t few = begin; few < end; few += FEW_T) {
    A a[COLUMNS_T] = {0}, b[COLUMNS_T] = {0}, d[COLUMNS_T] = {0};
    for (int64_t r = few; r < (end - few < FEW_T ? end : few + FEW_T); r++) {
      const S *x = (const S *)t->x + r * channels + c,
              *dy = t->dy ? (const S *)t->dy + r * channels + c : NULL;
      const uint8_t *mask = t->mask ? t->mask + r * mask_stride : NULL;
      for (int j = 0; j < width; j++) {
        A u = (A)LOAD(x[j]) - center[c + j], v = dy ? (A)LOAD(dy[j]) : u;
        if (mask) v = through_one_T(t, mask, c + j, v);
        a[j] += v;
        b[j] += v * u;
        d[j] += u;
      }
    }
    for (int j = 0; j < width; j++) as[j] += a[j], bs[j] += b[j], us[j] += d[j];
  }
  for (int j = 0; j < width; j++) {
    to.sum[j] += (double)as[j];
    to.product[j] += (double)bs[j];
    to.away[j] += (double)us[j];
  }
}

/* Computes the sums of row pieces [begin, end). */
static void last_sums_T(void *context, int64_t begin, int64_t end) {
  const batch_norm *t = context;
  const A *center = t->dy ? t->mean : t->center;
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t first = piece * t->piece_rows,
            last = t->outer - first < t->piece_rows ? t->outer : first + t->piece_rows;
    double *sums = t->partial + piece * SUMS * t->channels;
    memset(sums, 0, (size_t)(SUMS * t->channels) * sizeof *sums);
    for (int64_t c = 0; c < t->channels; c += COLUMNS_T) {
      sums_T to = {sums + c, sums + c + t->channels, sums + c + 2 * t->channels};
      for (int64_t r = first; r < last; r += ROWS_T) {
        int64_t stop = last - r < ROWS_T ? last : r + ROWS_T;
        if (t->channels - c >= COLUMNS_T)
          sum_lines_T(t, r, stop, c, center, to);
        else
          sum_columns_T(t, r, stop, c, (int)(t->channels - c), center, to);
      }
    }
  }
}

/* Adds all pieces' sums to those of the first piece, for channels [begin, end). */
static void last_total_T(void *context, int64_t begin, int64_t end) {
  const batch_norm *t = context;
  int64_t pieces = (t->outer + t->piece_rows - 1) / t->piece_rows;
  for (int64_t piece = 1; piece < pieces; piece++) {
    const double *from = t->partial + piece * SUMS * t->channels;
    for (int k = 0; k < SUMS; k++)
      for (int64_t c = begin; c < end; c++)
        t->partial[k * t->channels + c] += from[k * t->channels + c];
  }
}

/* Computes `center`, which is subtracted before summing: the mean of the first rows. */
static void last_center_T(const batch_norm *t) {
  int64_t rows = t->outer < ROWS_T ? t->outer : ROWS_T;
  A *center = t->center;
  for (int64_t c = 0; c < t->channels; c++) center[c] = 0;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < t->channels; c++)
      center[c] += (A)LOAD(((const S *)t->x)[r * t->channels + c]);
  for (int64_t c = 0; c < t->channels; c++) center[c] /= (A)rows;
}

/* Computes the coefficients of y = (x - center) * scale + shift from the sums or the moving
 * statistics. */
static void last_statistics_T(const batch_norm *t) {
  A *center = t->center, *scale = t->scale, *shift = t->shift, *mean = t->mean,
    *inverse = t->inverse;
  double count = (double)t->outer;
  for (int64_t c = 0; c < t->channels; c++) {
    double rest = 0;
    if (t->batch_stats) {
      double variance =
          moments_T(count, t->partial[c], t->partial[t->channels + c], &center[c], &rest);
      batch_norm_finish_T(t, c, center[c], variance);
    } else {
      mean[c] = ((const A *)t->moving_mean)[c];
      inverse[c] = inverse_deviation_T(((const A *)t->moving_var)[c], t->eps);
    }
    center[c] = mean[c];
    scale[c] = inverse[c] * (t->gamma ? ((const A *)t->gamma)[c] : 1);
    shift[c] = (A)((double)((const A *)t->beta)[c] - rest * (double)scale[c]);
  }
}

/* Computes rows [begin, end) of y and, for relu, of the mask. */
static void last_apply_T(void *context, int64_t begin, int64_t end) {
  const batch_norm *t = context;
  const int64_t channels = t->channels, mask_stride = 2 * t->mask_bytes + 1;
  const A *center = t->center, *scale = t->scale, *shift = t->shift;
  for (int64_t r = begin; r < end; r++) {
    const S *x = (const S *)t->x + r * channels,
            *residual = t->residual ? (const S *)t->residual + r * channels : NULL;
    S *y = (S *)t->y + r * channels;
    uint8_t *mask = t->mask ? t->mask + r * mask_stride : NULL;
    if (mask) memset(mask + t->mask_bytes, 0, (size_t)t->mask_bytes + 1);
    int64_t c = 0;
    for (; c + LINE_T <= channels; c += LINE_T) {
      line_T v, middle, slope, offset;
      GATHER(v, x + c);
      memcpy(&middle, center + c, sizeof middle);
      memcpy(&slope, scale + c, sizeof slope);
      memcpy(&offset, shift + c, sizeof offset);
      v = (v - middle) * slope + offset;
      if (t->mask) v = rounded_T(v);
      if (residual) {
        GATHER(middle, residual + c);
        v = middle + v;
        v = rounded_T(v);
      }
      if (mask) {
        uint32_t nans = bits_T(v != v);
        put_mask_T(mask, c, bits_T(v > 0));
        v = where_T(bits_T(~(v < 0)), v);
        if (__builtin_expect(nans != 0, 0)) {
          put_mask_T(mask + t->mask_bytes, c, nans);
          mask[2 * t->mask_bytes] = 1;
        }
      }
      SCATTER(y + c, v);
    }
    for (int64_t j = c / 8; mask && j < t->mask_bytes; j++) mask[j] = 0;
    for (; c < channels; c++) {
      S v = STORE(((A)LOAD(x[c]) - center[c]) * scale[c] + shift[c]);
      if (residual) v = STORE((A)LOAD(residual[c]) + (A)LOAD(v));
      if (mask) {
        A value = (A)LOAD(v);
        mask[c / 8] |= (uint8_t)((value > 0) << c % 8);
        if (value != value) {
          mask[t->mask_bytes + c / 8] |= (uint8_t)(1 << c % 8);
          mask[2 * t->mask_bytes] = 1;
        }
        v = value < 0 ? STORE((A)0) : v;
      }
      y[c] = v;
    }
  }
}

/* Computes the coefficients of dx = (dz - shift - (x - mean) * slope) * scale from the sums.
 * `center` holds the slope. */
static void last_backward_statistics_T(const batch_norm *t) {
  A *slope = t->center, *scale = t->scale, *shift = t->shift;
  const A *inverse = t->inverse;
  double count = (double)t->outer;
  for (int64_t c = 0; c < t->channels; c++) {
    double sum = t->outer ? t->partial[c] : 0, product = t->outer ? t->partial[t->channels + c] : 0;
    if (t->batch_stats) product = about_mean(product, sum, t->partial[2 * t->channels + c], count);
    A inv = inverse[c], gamma = t->gamma ? ((const A *)t->gamma)[c] : 1;
    ((A *)t->dgamma)[c] = t->gamma ? (A)(product * inv) : 0;
    ((A *)t->dbeta)[c] = (A)sum;
    scale[c] = inv * gamma;
    slope[c] = t->batch_stats ? (A)(product / count * inv * inv) : 0;
    shift[c] = t->batch_stats ? (A)(sum / count) : 0;
  }
  if (t->kept_mean != t->mean) memcpy(t->kept_mean, t->mean, (size_t)t->channels * sizeof(A));
}

/* Computes rows [begin, end) of dx and, if given, of dresidual. */
static void last_backward_apply_T(void *context, int64_t begin, int64_t end) {
  const batch_norm *t = context;
  const int64_t channels = t->channels, mask_stride = 2 * t->mask_bytes + 1;
  const A *slope = t->center, *scale = t->scale, *shift = t->shift, *mean = t->kept_mean;
  for (int64_t r = begin; r < end; r++) {
    const S *x = (const S *)t->x + r * channels, *dy = (const S *)t->dy + r * channels;
    S *dx = (S *)t->y + r * channels,
      *dresidual = t->dresidual ? (S *)t->dresidual + r * channels : NULL;
    const uint8_t *mask = t->mask ? t->mask + r * mask_stride : NULL;
    int64_t c = 0;
    for (; c + LINE_T <= channels; c += LINE_T) {
      line_T u, v, w;
      GATHER(u, x + c);
      GATHER(v, dy + c);
      if (mask) v = through_T(t, mask, c, v);
      if (dresidual) SCATTER(dresidual + c, v);
      memcpy(&w, shift + c, sizeof w);
      v -= w;
      memcpy(&w, mean + c, sizeof w);
      u -= w;
      memcpy(&w, slope + c, sizeof w);
      v -= u * w;
      memcpy(&w, scale + c, sizeof w);
      v *= w;
      SCATTER(dx + c, v);
    }
    for (; c < channels; c++) {
      A v = mask ? through_one_T(t, mask, c, (A)LOAD(dy[c])) : (A)LOAD(dy[c]);
      A result = (v - shift[c] - ((A)LOAD(x[c]) - mean[c]) * slope[c]) * scale[c];
      if (dresidual) dresidual[c] = STORE(v);
      dx[c] = STORE(result);
    }
  }
}

#undef GATHER
#undef SCATTER
