/* Channels-last BatchNorm kernels for one dtype, optionally fused with a following addition and
 * relu. Included by norm_impl.h, with its macros. Statistics take one pass over sums of distances
 * from the mean of the first ROWS rows, and of their squares. The sums are in A over FEW rows and
 * over ROWS rows of those, and in double beyond. Rows are split into pieces by shape only, and the
 * pieces' sums are added in order.
 */

typedef A NAME(line) __attribute__((vector_size(64)));
typedef __typeof__((NAME(line)){0} < (NAME(line)){0}) NAME(lanes);
enum { NAME(LINE) = 64 / sizeof(A) };
enum { NAME(LINES) = NAME(COLUMNS) / NAME(LINE), NAME(FEW) = 16 };

/* Halves go through an array, since vector lanes have no address. */
#define GATHER(v, p) /* v = the next LINE elements of p, as A */                  \
  do {                                                                            \
    A lanes_[NAME(LINE)];                                                         \
    if (sizeof(S) != sizeof(A)) LOAD_LINE(lanes_, p);                             \
    memcpy(&(v), sizeof(S) == sizeof(A) ? (const void *)(p) : lanes_, sizeof(v)); \
  } while (0)
#define SCATTER(p, v) /* the next LINE elements of p = v */                 \
  do {                                                                      \
    A lanes_[NAME(LINE)];                                                   \
    memcpy(sizeof(S) == sizeof(A) ? (void *)(p) : lanes_, &(v), sizeof(v)); \
    if (sizeof(S) != sizeof(A)) STORE_LINE(p, lanes_);                      \
  } while (0)

/* Rounds to the storage type, as separate ops would. */
static inline NAME(line) NAME(rounded)(NAME(line) v) {
  S stored[NAME(LINE)];
  if (sizeof(S) == sizeof(A)) return v;
  SCATTER(stored, v);
  GATHER(v, stored);
  return v;
}

/* Returns a bit mask of the lanes that are set. */
static inline uint32_t NAME(bits)(NAME(lanes) set) {
#ifdef __AVX512DQ__
  if (sizeof(A) == 4) return _mm512_movepi32_mask((__m512i)set);
  return _mm512_movepi64_mask((__m512i)set);
#else
  uint32_t bits = 0;
  for (int l = 0; l < NAME(LINE); l++) bits |= (uint32_t)(set[l] & 1) << l;
  return bits;
#endif
}

/* Returns v in lanes whose bit is set, else 0. */
static inline NAME(line) NAME(where)(uint32_t bits, NAME(line) v) {
#ifdef __AVX512DQ__
  if (sizeof(A) == 4) return (NAME(line))_mm512_maskz_mov_epi32((__mmask16)bits, (__m512i)v);
  return (NAME(line))_mm512_maskz_mov_epi64((__mmask8)bits, (__m512i)v);
#else
  for (int l = 0; l < NAME(LINE); l++) v[l] = bits >> l & 1 ? v[l] : 0;
  return v;
#endif
}

/* Returns LANES bits; c must be a multiple of 8. */
static inline uint32_t NAME(mask_at)(const uint8_t *row, int64_t c) {
  return sizeof(A) == 4 ? (uint32_t)row[c / 8] | (uint32_t)row[c / 8 + 1] << 8 : row[c / 8];
}

static inline void NAME(put_mask)(uint8_t *row, int64_t c, uint32_t bits) {
  row[c / 8] = (uint8_t)bits;
  if (sizeof(A) == 4) row[c / 8 + 1] = (uint8_t)(bits >> 8);
}

/* Returns v, but NaN in lanes whose bit is set. Rarely called. */
static __attribute__((noinline)) NAME(line) NAME(poisoned)(uint32_t bits, NAME(line) v) {
  for (int l = 0; l < NAME(LINE); l++) v[l] = bits >> l & 1 ? (A)NAN : v[l];
  return v;
}

/* Gradient of relu: 0 where relu clipped, NaN where its input was NaN. */
static inline NAME(line)
    NAME(through)(const batch_norm *t, const uint8_t *mask, int64_t c, NAME(line) v) {
  v = NAME(where)(NAME(mask_at)(mask, c), v);
  return __builtin_expect(mask[2 * t->mask_bytes], 0)
             ? NAME(poisoned)(NAME(mask_at)(mask + t->mask_bytes, c), v)
             : v;
}
static inline A NAME(through_one)(const batch_norm *t, const uint8_t *mask, int64_t c, A v) {
  if (!(mask[c / 8] >> c % 8 & 1)) v = 0;
  return __builtin_expect(mask[2 * t->mask_bytes], 0) && mask[t->mask_bytes + c / 8] >> c % 8 & 1
             ? (A)NAN
             : v;
}

/* Sums per channel of u = x - center and u * u, or with dy, of dy, dy * u and u, where dy is 0 if
 * relu clipped. */
typedef struct NAME(sums) {
  double *sum, *product, *away;
} NAME(sums);

/* Adds row r of LINES lines of channels, starting at channel c. */
static inline __attribute__((always_inline)) void NAME(add_lines)(const batch_norm *t, int64_t r,
                                                                  int64_t c,
                                                                  const NAME(line) * middle,
                                                                  NAME(line) * a, NAME(line) * b,
                                                                  NAME(line) * d) {
  const S *x = (const S *)t->x + r * t->channels + c,
          *dy = t->dy ? (const S *)t->dy + r * t->channels + c : NULL;
  const uint8_t *mask = t->mask ? t->mask + r * (2 * t->mask_bytes + 1) : NULL;
  for (int k = 0; k < NAME(LINES); k++) {
    NAME(line) u, v;
    GATHER(u, x + k * NAME(LINE));
    u -= middle[k];
    if (dy) {
      GATHER(v, dy + k * NAME(LINE));
      if (mask) v = NAME(through)(t, mask, c + k * NAME(LINE), v);
      d[k] += u;
    } else {
      v = u;
    }
    a[k] += v;
    b[k] += v * u;
  }
}

/* Adds rows [begin, end), at most ROWS, of LINES lines of channels, starting at channel c. */
static void NAME(sum_lines)(const batch_norm *t, int64_t begin, int64_t end, int64_t c,
                            const A *center, NAME(sums) to) {
  NAME(line)
  as[NAME(LINES)] = {{0}}, bs[NAME(LINES)] = {{0}}, us[NAME(LINES)] = {{0}}, middle[NAME(LINES)];
  for (int k = 0; k < NAME(LINES); k++)
    memcpy(&middle[k], center + c + k * NAME(LINE), sizeof middle[k]);
  for (int64_t few = begin; few < end; few += NAME(FEW)) {
    NAME(line) a[NAME(LINES)] = {{0}}, b[NAME(LINES)] = {{0}}, d[NAME(LINES)] = {{0}};
    int64_t last = end - few < NAME(FEW) ? end : few + NAME(FEW);
    for (int64_t r = few; r < last; r++) NAME(add_lines)(t, r, c, middle, a, b, d);
    for (int k = 0; k < NAME(LINES); k++) as[k] += a[k], bs[k] += b[k], us[k] += d[k];
  }
  for (int j = 0; j < NAME(COLUMNS); j++) {
    int k = j / NAME(LINE), l = j % NAME(LINE);
    to.sum[j] += (double)as[k][l];
    to.product[j] += (double)bs[k][l];
    to.away[j] += (double)us[k][l];
  }
}

/* Adds rows [begin, end), at most ROWS, of `width` < COLUMNS channels, starting at channel c. */
static void NAME(sum_columns)(const batch_norm *t, int64_t begin, int64_t end, int64_t c, int width,
                              const A *center, NAME(sums) to) {
  const int64_t channels = t->channels, mask_stride = 2 * t->mask_bytes + 1;
  A as[NAME(COLUMNS)] = {0}, bs[NAME(COLUMNS)] = {0}, us[NAME(COLUMNS)] = {0};
  for (int64_t few = begin; few < end; few += NAME(FEW)) {
    A a[NAME(COLUMNS)] = {0}, b[NAME(COLUMNS)] = {0}, d[NAME(COLUMNS)] = {0};
    for (int64_t r = few; r < (end - few < NAME(FEW) ? end : few + NAME(FEW)); r++) {
      const S *x = (const S *)t->x + r * channels + c,
              *dy = t->dy ? (const S *)t->dy + r * channels + c : NULL;
      const uint8_t *mask = t->mask ? t->mask + r * mask_stride : NULL;
      for (int j = 0; j < width; j++) {
        A u = (A)LOAD(x[j]) - center[c + j], v = dy ? (A)LOAD(dy[j]) : u;
        if (mask) v = NAME(through_one)(t, mask, c + j, v);
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
static void NAME(last_sums)(void *context, int64_t begin, int64_t end) {
  const batch_norm *t = context;
  const A *center = t->dy ? t->mean : t->center;
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t first = piece * t->piece_rows,
            last = t->outer - first < t->piece_rows ? t->outer : first + t->piece_rows;
    double *sums = t->partial + piece * SUMS * t->channels;
    memset(sums, 0, (size_t)(SUMS * t->channels) * sizeof *sums);
    for (int64_t c = 0; c < t->channels; c += NAME(COLUMNS)) {
      NAME(sums) to = {sums + c, sums + c + t->channels, sums + c + 2 * t->channels};
      for (int64_t r = first; r < last; r += NAME(ROWS)) {
        int64_t stop = last - r < NAME(ROWS) ? last : r + NAME(ROWS);
        if (t->channels - c >= NAME(COLUMNS))
          NAME(sum_lines)(t, r, stop, c, center, to);
        else
          NAME(sum_columns)(t, r, stop, c, (int)(t->channels - c), center, to);
      }
    }
  }
}

/* Adds all pieces' sums to those of the first piece, for channels [begin, end). */
static void NAME(last_total)(void *context, int64_t begin, int64_t end) {
  const batch_norm *t = context;
  int64_t pieces = (t->outer + t->piece_rows - 1) / t->piece_rows;
  for (int64_t piece = 1; piece < pieces; piece++) {
    const double *from = t->partial + piece * SUMS * t->channels;
    for (int k = 0; k < SUMS; k++)
      for (int64_t c = begin; c < end; c++)
        t->partial[k * t->channels + c] += from[k * t->channels + c];
  }
}

/* Computes the center of the sums: the mean of the first rows. */
static void NAME(last_center)(const batch_norm *t) {
  int64_t rows = t->outer < NAME(ROWS) ? t->outer : NAME(ROWS);
  A *center = t->center;
  for (int64_t c = 0; c < t->channels; c++) center[c] = 0;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < t->channels; c++)
      center[c] += (A)LOAD(((const S *)t->x)[r * t->channels + c]);
  for (int64_t c = 0; c < t->channels; c++) center[c] /= (A)rows;
}

/* Converts the sums or the moving statistics to y = (x - center) * scale + shift. */
static void NAME(last_statistics)(const batch_norm *t) {
  A *center = t->center, *scale = t->scale, *shift = t->shift, *mean = t->mean,
    *inverse = t->inverse;
  double count = (double)t->outer;
  for (int64_t c = 0; c < t->channels; c++) {
    double rest = 0;
    if (t->batch_stats) {
      double variance =
          NAME(moments)(count, t->partial[c], t->partial[t->channels + c], &center[c], &rest);
      NAME(batch_norm_finish)(t, c, center[c], variance);
    } else {
      mean[c] = ((const A *)t->moving_mean)[c];
      inverse[c] = NAME(inverse_deviation)(((const A *)t->moving_var)[c], t->eps);
    }
    center[c] = mean[c];
    scale[c] = inverse[c] * (t->gamma ? ((const A *)t->gamma)[c] : 1);
    shift[c] = (A)((double)((const A *)t->beta)[c] - rest * (double)scale[c]);
  }
}

static void NAME(last_apply)(void *context, int64_t begin, int64_t end) { /* rows */
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
    for (; c + NAME(LINE) <= channels; c += NAME(LINE)) {
      NAME(line) v, middle, slope, offset;
      GATHER(v, x + c);
      memcpy(&middle, center + c, sizeof middle);
      memcpy(&slope, scale + c, sizeof slope);
      memcpy(&offset, shift + c, sizeof offset);
      v = (v - middle) * slope + offset;
      if (t->mask) v = NAME(rounded)(v);
      if (residual) {
        GATHER(middle, residual + c);
        v = middle + v;
        v = NAME(rounded)(v);
      }
      if (mask) {
        uint32_t nans = NAME(bits)(v != v);
        NAME(put_mask)(mask, c, NAME(bits)(v > 0));
        v = NAME(where)(NAME(bits)(~(v < 0)), v);
        if (__builtin_expect(nans != 0, 0)) {
          NAME(put_mask)(mask + t->mask_bytes, c, nans);
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

/* Converts the sums to dx = (dz - offset - (x - mean) * slope) * scale; `center` holds the
 * slope. */
static void NAME(last_backward_statistics)(const batch_norm *t) {
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

static void NAME(last_backward_apply)(void *context, int64_t begin, int64_t end) { /* rows */
  const batch_norm *t = context;
  const int64_t channels = t->channels, mask_stride = 2 * t->mask_bytes + 1;
  const A *slope = t->center, *scale = t->scale, *shift = t->shift, *mean = t->kept_mean;
  for (int64_t r = begin; r < end; r++) {
    const S *x = (const S *)t->x + r * channels, *dy = (const S *)t->dy + r * channels;
    S *dx = (S *)t->y + r * channels,
      *dresidual = t->dresidual ? (S *)t->dresidual + r * channels : NULL;
    const uint8_t *mask = t->mask ? t->mask + r * mask_stride : NULL;
    int64_t c = 0;
    for (; c + NAME(LINE) <= channels; c += NAME(LINE)) {
      NAME(line) u, v, w;
      GATHER(u, x + c);
      GATHER(v, dy + c);
      if (mask) v = NAME(through)(t, mask, c, v);
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
      A v = mask ? NAME(through_one)(t, mask, c, (A)LOAD(dy[c])) : (A)LOAD(dy[c]);
      A result = (v - shift[c] - ((A)LOAD(x[c]) - mean[c]) * slope[c]) * scale[c];
      if (dresidual) dresidual[c] = STORE(v);
      dx[c] = STORE(result);
    }
  }
}

#undef GATHER
#undef SCATTER
