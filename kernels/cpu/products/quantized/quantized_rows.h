/* Products of a few rows of float data with rows of a packed weight, without a buffer for unpacked
 * elements. Included by quantized_dot.c.
 *
 * Each function adds to sums[u * rows + m], a vector whose lanes add up to the result of data row m
 * and unit u of a tile. Elements of a group are multiplied by data first, and their sum by the
 * scale. The order of additions depends neither on the size of the tile nor on m and u.
 *
 * Data are padded with zeros to whole blocks. In products with int4 and nf4, a block is
 * NIBBLE_BLOCK elements, and the data of a block are transposed: nibble j of lane l is element 8 *
 * l + j, whose data are at j * LANES + l. */
#ifndef KERNELS_CPU_PRODUCTS_QUANTIZED_ROWS_H
#define KERNELS_CPU_PRODUCTS_QUANTIZED_ROWS_H

/* --- Vector operations in the current instruction set ----------------------------------------- */
/* V and LANES are defined in lanes.h, for float. VI is a vector of LANES int32.
 *   VI_BYTES(p), VI_SIGNED_BYTES(p)  LANES bytes from p, extended to int32
 *   VI_WORDS(p)                      4 * LANES bytes from p
 *   VI_SHIFT(v, n)                   logical shift to the right
 *   VI_LEFT(v, n)                    shift to the left
 *   VI_AND(v, n), VI_OR(a, b)        v & n, a | b
 *   V_FROM(v)                        conversion to float
 *   V_MUL, V_ADD
 *   TABLE, TABLE_OF(values), V_LOOKUP(table, v)
 *                                    values[v & 15] for 16 floats
 */
#if defined(__AVX512F__)
#define VI __m512i
#define VI_BYTES(p) _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p)))
#define VI_SIGNED_BYTES(p) _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p)))
#define VI_WORDS(p) _mm512_loadu_si512(p)
#define VI_SHIFT(v, n) _mm512_srli_epi32(v, n)
#define VI_AND(v, n) _mm512_and_si512(v, _mm512_set1_epi32(n))
#define VI_OR(a, b) _mm512_or_si512(a, b)
#define VI_LEFT(v, n) _mm512_slli_epi32(v, n)
#define V_FROM(v) _mm512_cvtepi32_ps(v)
#define V_MUL(a, b) _mm512_mul_ps(a, b)
#define V_ADD(a, b) _mm512_add_ps(a, b)
#define TABLE __m512
#define TABLE_OF(values) _mm512_loadu_ps(values)
#define V_LOOKUP(table, v) _mm512_permutexvar_ps(v, table)
#elif defined(__AVX2__) && defined(__FMA__)
#define VI __m256i
#define VI_BYTES(p) _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p)))
#define VI_SIGNED_BYTES(p) _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p)))
#define VI_WORDS(p) _mm256_loadu_si256((const __m256i *)(p))
#define VI_SHIFT(v, n) _mm256_srli_epi32(v, n)
#define VI_AND(v, n) _mm256_and_si256(v, _mm256_set1_epi32(n))
#define VI_OR(a, b) _mm256_or_si256(a, b)
#define VI_LEFT(v, n) _mm256_slli_epi32(v, n)
#define V_FROM(v) _mm256_cvtepi32_ps(v)
#define V_MUL(a, b) _mm256_mul_ps(a, b)
#define V_ADD(a, b) _mm256_add_ps(a, b)
typedef struct table_halves {
  __m256 low, high;
} table_halves;
#define TABLE table_halves
#define TABLE_OF(values) \
  (table_halves) { _mm256_loadu_ps(values), _mm256_loadu_ps((values) + 8) }
/* Bit 3 of each lane selects the half of the table; blendv tests the sign bit. */
#define V_LOOKUP(table, v)                                    \
  _mm256_blendv_ps(_mm256_permutevar8x32_ps((table).low, v),  \
                   _mm256_permutevar8x32_ps((table).high, v), \
                   _mm256_castsi256_ps(_mm256_slli_epi32(v, 28)))
#else
typedef uint32_t vector_u32 __attribute__((vector_size(16)));
typedef int32_t vector_i32 __attribute__((vector_size(16)));
static inline vector_u32 load_words(const void *p) {
  vector_u32 v;
  memcpy(&v, p, sizeof v);
  return v;
}
#define VI vector_u32
#define VI_BYTES(p) ((vector_u32){(p)[0], (p)[1], (p)[2], (p)[3]})
#define VI_SIGNED_BYTES(p)                                                                    \
  ((vector_u32){(uint32_t)(int8_t)(p)[0], (uint32_t)(int8_t)(p)[1], (uint32_t)(int8_t)(p)[2], \
                (uint32_t)(int8_t)(p)[3]})
#define VI_WORDS(p) load_words(p)
#define VI_SHIFT(v, n) ((v) >> (n))
#define VI_AND(v, n) ((v) & (uint32_t)(n))
#define VI_OR(a, b) ((a) | (b))
#define VI_LEFT(v, n) ((v) << (n))
#define V_FROM(v) __builtin_convertvector((vector_i32)(v), vector_f32)
#define V_MUL(a, b) ((a) * (b))
#define V_ADD(a, b) ((a) + (b))
#define TABLE const float *
#define TABLE_OF(values) (values)
#define V_LOOKUP(table, v)                                                        \
  ((vector_f32){(table)[(v)[0] & 15], (table)[(v)[1] & 15], (table)[(v)[2] & 15], \
                (table)[(v)[3] & 15]})
#endif

/* --- Scales ----------------------------------------------------------------------------------- */
#define ALWAYS_INLINE static inline __attribute__((always_inline))
enum { NIBBLE_BLOCK = 8 * LANES, UNIT_BLOCK = 64, RUN = 4 * LANES };
_Static_assert(UNPACK % NIBBLE_BLOCK == 0, "padded rows must consist of whole blocks");
/* Sizes of a tile: units with 1, 2, 3 and 4 rows. */
#if defined(__AVX512F__)
enum { UNITS_1 = 4, UNITS_2 = 4, UNITS_3 = 2, UNITS_4 = 2 };
#else
enum { UNITS_1 = 4, UNITS_2 = 2, UNITS_3 = 1, UNITS_4 = 1 };
#endif
enum { MOST_ROWS = 4, MOST_UNITS = 4, MOST_SUMS = 8 };
_Static_assert(FEW_ROWS <= 2 * MOST_ROWS, "two tiles must cover all rows");

/* Values of int4 minus 8, the zero of a weight without zeros. Zeros are reduced by 8 as well. */
static const float centered[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
static const float counted[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Index of the sums of the data at element `i`: LANES sums for each block of nibbles, or for each
 * run of 32 elements (q4_k). */
static inline int64_t totals_at(mpg_weight_format format, int64_t i) {
  return format == MPG_WEIGHT_Q4_K ? i / 32 * LANES : i / NIBBLE_BLOCK * LANES;
}

static inline float scale_at(mpg_dtype dtype, const void *scales, int64_t i) {
  if (dtype == MPG_FLOAT32) return ((const float *)scales)[i];
  uint16_t half = ((const uint16_t *)scales)[i];
  return dtype == MPG_FLOAT16 ? mpg_half_to_float(half) : mpg_bfloat16_to_float(half);
}

/* Returns `count` scales from index i on, each repeated for LANES / count lanes. Only the first
 * `valid` of them exist. */
#if defined(__AVX512F__)
ALWAYS_INLINE V lane_scales(mpg_dtype dtype, const void *scales, int64_t i, int count, int valid,
                            VI which) {
  (void)count;
  __mmask16 mask = (__mmask16)((1u << valid) - 1);
  V v;
  if (dtype == MPG_FLOAT32) {
    v = _mm512_maskz_loadu_ps(mask, (const float *)scales + i);
  } else {
    __m256i halves = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)scales + i);
    v = dtype == MPG_FLOAT16
            ? _mm512_cvtph_ps(halves)
            : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  return _mm512_permutexvar_ps(which, v);
}
#elif defined(__AVX2__) && defined(__FMA__)
ALWAYS_INLINE V lane_scales(mpg_dtype dtype, const void *scales, int64_t i, int count, int valid,
                            VI which) {
  (void)count;
  float lanes[LANES];
  if (dtype == MPG_FLOAT32) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    V v = _mm256_maskload_ps((const float *)scales + i,
                             _mm256_cmpgt_epi32(_mm256_set1_epi32(valid), lane));
    return _mm256_permutevar8x32_ps(v, which);
  }
  for (int c = 0; c < valid; c++) lanes[c] = scale_at(dtype, scales, i + c);
  for (int c = valid; c < LANES; c++) lanes[c] = 0;
  return _mm256_permutevar8x32_ps(V_LOAD(lanes), which);
}
#else
ALWAYS_INLINE V lane_scales(mpg_dtype dtype, const void *scales, int64_t i, int count, int valid,
                            VI which) {
  float lanes[LANES] = {0};
  (void)which;
  for (int c = 0; c < count; c++) {
    float scale = c < valid ? scale_at(dtype, scales, i + c) : 0;
    for (int l = c * (LANES / count); l < (c + 1) * (LANES / count); l++) lanes[l] = scale;
  }
  return V_LOAD(lanes);
}
#endif

/* Index of the group of each lane. */
static inline VI lane_groups(int count) {
  uint32_t lanes[LANES];
  for (int l = 0; l < LANES; l++) lanes[l] = (uint32_t)(l * count / LANES);
  return VI_WORDS(lanes);
}

/* --- Tiles of the result ---------------------------------------------------------------------- */
/* Some rows of data, and the units of the weight that are multiplied by them at the same time.
 * Several units keep more additions in flight and share the loads of data. */
typedef struct tile {
  const float *data, *totals;
  const uint8_t *packed[MOST_UNITS];
  int64_t unit[MOST_UNITS];
} tile;

/* Prefetches bytes [from, from + bytes) of the unit after each unit of the tile. With one row of
 * data, the weight is read steadily, and the processor's own prefetching is enough. */
ALWAYS_INLINE void fetch_next(const few *t, const tile *b, int64_t from, int bytes, int rows,
                              int units) {
  if (rows == 1) return;
  MPG_UNROLL(4)
  for (int u = 0; u < units; u++) MPG_UNROLL(8)
  for (int i = 0; i < bytes; i += 64)
    __builtin_prefetch(b->packed[u] + t->weight.weight.row_bytes + from + i);
}

/* Adds the products of a vector of each unit with the data of each row. */
ALWAYS_INLINE void add_products(int rows, int units, const V *q, const float *data, int64_t stride,
                                V *sums) {
  MPG_UNROLL(4)
  for (int m = 0; m < rows; m++) {
    V x = V_LOAD(data + m * stride);
    MPG_UNROLL(4)
    for (int u = 0; u < units; u++) sums[u * rows + m] = V_FMA(q[u], x, sums[u * rows + m]);
  }
}

ALWAYS_INLINE void clear(int count, V *sums) {
  MPG_UNROLL(8)
  for (int i = 0; i < count; i++) sums[i] = V_SET(0);
}

/* --- int8 ------------------------------------------------------------------------------------- */
static inline bool fast_int8(const mpg_quantized_weight *w) {
  return w->group % LANES == 0 || w->groups == 1;
}

/* Adds the products of LANES elements. */
ALWAYS_INLINE void step_int8(const few *t, const tile *b, int64_t at, int rows, int units,
                             V *sums) {
  V q[MOST_UNITS];
  MPG_UNROLL(4)
  for (int u = 0; u < units; u++) q[u] = V_FROM(VI_SIGNED_BYTES(b->packed[u] + at));
  add_products(rows, units, q, b->data + at, t->padded, sums);
}

ALWAYS_INLINE void scale_int8(const few *t, const tile *b, int64_t scale, int rows, int units,
                              const V *part, V *sums) {
  const packed_weight *w = &t->weight;
  MPG_UNROLL(4)
  for (int u = 0; u < units; u++) {
    V factor = V_SET(scale_at(w->scale_dtype, w->scales, b->unit[u] * w->weight.groups + scale));
    MPG_UNROLL(4)
    for (int i = u * rows; i < (u + 1) * rows; i++) sums[i] = V_FMA(factor, part[i], sums[i]);
  }
}

/* Adds runs of RUN elements separately, so that many additions are in flight. */
ALWAYS_INLINE void tile_int8(const few *t, const tile *b, int rows, int units, V *sums) {
  const int64_t k = t->weight.weight.in_units, group = t->weight.weight.group;
  int64_t scale = 0;
  for (int64_t at = 0; at < k; scale++) {
    V group_sums[MOST_SUMS];
    clear(rows * units, group_sums);
    for (int64_t end = at + group; at < end;) {
      V part[MOST_SUMS];
      clear(rows * units, part);
      fetch_next(t, b, at, RUN, rows, units);
      if (end - at >= RUN) {
        MPG_UNROLL(4)
        for (int i = 0; i < RUN; i += LANES) step_int8(t, b, at + i, rows, units, part);
        at += RUN;
      } else {
        for (; at + LANES <= end; at += LANES) step_int8(t, b, at, rows, units, part);
        if (at < end) { /* the end of a row */
          V q[MOST_UNITS];
          MPG_UNROLL(4)
          for (int u = 0; u < units; u++) {
            uint8_t last[LANES] = {0};
            memcpy(last, b->packed[u] + at, (size_t)(end - at));
            q[u] = V_FROM(VI_SIGNED_BYTES(last));
          }
          add_products(rows, units, q, b->data + at, t->padded, part);
          at = end;
        }
      }
      MPG_UNROLL(8)
      for (int i = 0; i < rows * units; i++) group_sums[i] = V_ADD(group_sums[i], part[i]);
    }
    scale_int8(t, b, scale, rows, units, group_sums, sums);
  }
}

/* The same for groups of at most RUN elements, which are a multiple of LANES. */
ALWAYS_INLINE void tile_short_int8(const few *t, const tile *b, int rows, int units, V *sums) {
  const int64_t k = t->weight.weight.in_units, group = t->weight.weight.group;
  int64_t scale = 0;
  for (int64_t at = 0; at < k; scale++) {
    V part[MOST_SUMS];
    clear(rows * units, part);
    fetch_next(t, b, at, RUN, rows, units);
    for (int64_t end = at + group; at < end; at += LANES) step_int8(t, b, at, rows, units, part);
    scale_int8(t, b, scale, rows, units, part, sums);
  }
}

/* --- int4 and nf4 ----------------------------------------------------------------------------- */
static inline bool fast_nibbles(const mpg_quantized_weight *w) {
  return w->groups == 1 || w->group % NIBBLE_BLOCK == 0 ||
         (NIBBLE_BLOCK % w->group == 0 && w->group % 8 == 0);
}

/* Multiplies a block of nibbles by the data of each row. */
ALWAYS_INLINE void block_nibbles(const few *t, TABLE table, const uint8_t *packed,
                                 const float *data, int rows, V *part) {
  VI words = VI_WORDS(packed);
  V q[8];
  for (int j = 0; j < 8; j++) q[j] = V_LOOKUP(table, VI_SHIFT(words, 4 * j));
  MPG_UNROLL(4)
  for (int m = 0; m < rows; m++, data += t->padded) {
    V even = V_MUL(q[0], V_LOAD(data)), odd = V_MUL(q[1], V_LOAD(data + LANES));
    MPG_UNROLL(3)
    for (int j = 2; j < 8; j += 2) {
      even = V_FMA(q[j], V_LOAD(data + j * LANES), even);
      odd = V_FMA(q[j + 1], V_LOAD(data + (j + 1) * LANES), odd);
    }
    part[m] = V_ADD(even, odd);
  }
}

ALWAYS_INLINE void tile_nibbles(const few *t, const tile *b, int rows, int units, V *sums,
                                bool zeros) {
  const packed_weight *w = &t->weight;
  const int64_t k = w->weight.in_units, group = w->weight.group;
  const bool lanes = group < NIBBLE_BLOCK && w->weight.groups > 1; /* several scales a block */
  const int count = lanes ? (int)(NIBBLE_BLOCK / group) : 1;
  const int64_t blocks = lanes ? 1 : (group + NIBBLE_BLOCK - 1) / NIBBLE_BLOCK;
  const TABLE table = TABLE_OF(w->weight.format == MPG_WEIGHT_NF4 ? mpg_nf4 : centered);
  const VI which = lane_groups(count);
  int64_t scale = 0, left = blocks;
  for (int64_t at = 0; at < k; at += NIBBLE_BLOCK) {
    const bool whole = k - at >= NIBBLE_BLOCK;
    fetch_next(t, b, at / 2, NIBBLE_BLOCK / 2, rows, units);
    const int valid = whole || !lanes ? count : (int)((k - at) / group);
    MPG_UNROLL(4)
    for (int u = 0; u < units; u++) {
      uint8_t last[NIBBLE_BLOCK / 2];
      const uint8_t *from = b->packed[u] + at / 2;
      const int64_t index = b->unit[u] * w->weight.groups + scale;
      V part[MOST_ROWS], factor, zero;
      if (!whole) {
        memset(last, 0, sizeof last);
        from = memcpy(last, from, (size_t)(k - at) / 2);
      }
      block_nibbles(t, table, from, b->data + at, rows, part);
      if (lanes) {
        factor = lane_scales(w->scale_dtype, w->scales, index, count, valid, which);
        if (zeros) zero = lane_scales(w->zero_dtype, w->zeros, index, count, valid, which);
      } else {
        factor = V_SET(scale_at(w->scale_dtype, w->scales, index));
        if (zeros) zero = V_SET(scale_at(w->zero_dtype, w->zeros, index));
      }
      if (zeros) { /* the sum of (q - 8) * x - (zero - 8) * x */
        zero = V_ADD(V_SET(8), V_MUL(zero, V_SET(-1)));
        MPG_UNROLL(4)
        for (int m = 0; m < rows; m++)
          part[m] = V_FMA(zero, V_LOAD(b->totals + totals_at(MPG_WEIGHT_INT4, m * t->padded + at)),
                          part[m]);
      }
      MPG_UNROLL(4)
      for (int m = 0; m < rows; m++)
        sums[u * rows + m] = V_FMA(factor, part[m], sums[u * rows + m]);
    }
    if (--left == 0) scale += count, left = blocks;
  }
}

/* --- Blocks of GGUF --------------------------------------------------------------------------- */
/* Returns the float16 at `bytes` in all lanes. */
#if defined(__AVX512F__)
ALWAYS_INLINE V half_lanes(const uint8_t *bytes) {
  int16_t half;
  memcpy(&half, bytes, sizeof half);
  return _mm512_cvtph_ps(_mm256_set1_epi16(half));
}
#else
ALWAYS_INLINE V half_lanes(const uint8_t *bytes) { return V_SET(half_at(bytes)); }
#endif

ALWAYS_INLINE void tile_q8_0(const few *t, const tile *b, int rows, int units, V *sums) {
  const int64_t k = t->weight.weight.in_units;
  for (int64_t at = 0, from = 0; at < k; at += 32, from += 34) {
    V part[MOST_SUMS], q[MOST_UNITS];
    clear(rows * units, part);
    fetch_next(t, b, from, 34, rows, units);
    MPG_UNROLL(8)
    for (int i = 0; i < 32; i += LANES) {
      MPG_UNROLL(4)
      for (int u = 0; u < units; u++) q[u] = V_FROM(VI_SIGNED_BYTES(b->packed[u] + from + 2 + i));
      add_products(rows, units, q, b->data + at + i, t->padded, part);
    }
    MPG_UNROLL(4)
    for (int u = 0; u < units; u++) {
      V factor = half_lanes(b->packed[u] + from);
      MPG_UNROLL(4)
      for (int i = u * rows; i < (u + 1) * rows; i++) sums[i] = V_FMA(factor, part[i], sums[i]);
    }
  }
}

ALWAYS_INLINE void tile_q4_0(const few *t, const tile *b, int rows, int units, V *sums) {
  const int64_t k = t->weight.weight.in_units;
  const TABLE table = TABLE_OF(centered);
  for (int64_t at = 0, from = 0; at < k; at += 32, from += 18) {
    V part[MOST_SUMS];
    clear(rows * units, part);
    fetch_next(t, b, from, 18, rows, units);
    MPG_UNROLL(4)
    for (int i = 0; i < 16; i += LANES) {
      V low[MOST_UNITS], high[MOST_UNITS];
      MPG_UNROLL(4)
      for (int u = 0; u < units; u++) {
        VI bytes = VI_BYTES(b->packed[u] + from + 2 + i);
        low[u] = V_LOOKUP(table, bytes), high[u] = V_LOOKUP(table, VI_SHIFT(bytes, 4));
      }
      add_products(rows, units, low, b->data + at + i, t->padded, part);
      add_products(rows, units, high, b->data + at + i + 16, t->padded, part);
    }
    MPG_UNROLL(4)
    for (int u = 0; u < units; u++) {
      V factor = half_lanes(b->packed[u] + from);
      MPG_UNROLL(4)
      for (int i = u * rows; i < (u + 1) * rows; i++) sums[i] = V_FMA(factor, part[i], sums[i]);
    }
  }
}

/* Converts LANES bytes at a time, 16 in total, and multiplies elements [0, 8) by `low` and the
 * others by `high`. */
ALWAYS_INLINE void all_bytes(const uint8_t *bytes, bool is_signed, float low, float high,
                             float *to) {
  float factors[16];
  for (int i = 0; i < 16; i++) factors[i] = i < 8 ? low : high;
  for (int i = 0; i < 16; i += LANES)
    V_STORE(to + i, V_MUL(V_LOAD(factors + i),
                          V_FROM(is_signed ? VI_SIGNED_BYTES(bytes + i) : VI_BYTES(bytes + i))));
}

/* Unpacks all scales and negated minimums of a block of q4_k, as mpg_q4_k_scales does for one
 * run. */
ALWAYS_INLINE void all_scales(const uint8_t *block, float *to) {
  uint32_t u[3];
  memcpy(u, block + 4, sizeof u);
  uint32_t words[4] = {u[0] & 0x3f3f3f3f, (u[2] & 0x0f0f0f0f) | (u[0] >> 6 & 0x03030303) << 4,
                       u[1] & 0x3f3f3f3f, (u[2] >> 4 & 0x0f0f0f0f) | (u[1] >> 6 & 0x03030303) << 4};
  all_bytes((const uint8_t *)words, false, half_at(block), -half_at(block + 2), to);
}

/* Multiplies the minimum of each run by the sum of the run's data. `totals` contains this sum as a
 * vector whose lanes add up to it. */
ALWAYS_INLINE void tile_q4_k(const few *t, const tile *b, int rows, int units, V *sums) {
  const int64_t k = t->weight.weight.in_units;
  const TABLE table = TABLE_OF(counted);
  for (int64_t at = 0, from = 0; at < k; at += 256, from += 144) {
    float factor[MOST_UNITS][16]; /* 8 scales and 8 negated minimums */
    MPG_UNROLL(4)
    for (int u = 0; u < units; u++) all_scales(b->packed[u] + from, factor[u]);
    for (int pair = 0; pair < 4; pair++) {
      fetch_next(t, b, from + pair * 36, 36, rows, units);
      MPG_UNROLL(4)
      for (int u = 0; u < units; u++) {
        const uint8_t *q = b->packed[u] + from + 16 + pair * 32;
        const float *scale = factor[u] + 2 * pair;
        V low[32 / LANES], high[32 / LANES], *sum = sums + u * rows;
        for (int i = 0; i < 32 / LANES; i++) {
          VI bytes = VI_BYTES(q + i * LANES);
          low[i] = V_LOOKUP(table, bytes), high[i] = V_LOOKUP(table, VI_SHIFT(bytes, 4));
        }
        MPG_UNROLL(4)
        for (int m = 0; m < rows; m++) {
          const int64_t place = m * t->padded + at + pair * 64;
          const float *x = b->data + place, *total = b->totals + totals_at(MPG_WEIGHT_Q4_K, place);
          V one = V_MUL(low[0], V_LOAD(x)), two = V_MUL(high[0], V_LOAD(x + 32));
          for (int i = 1; i < 32 / LANES; i++) {
            one = V_FMA(low[i], V_LOAD(x + i * LANES), one);
            two = V_FMA(high[i], V_LOAD(x + 32 + i * LANES), two);
          }
          sum[m] = V_FMA(V_SET(scale[0]), one, sum[m]);
          sum[m] = V_FMA(V_SET(scale[8]), V_LOAD(total), sum[m]);
          sum[m] = V_FMA(V_SET(scale[1]), two, sum[m]);
          sum[m] = V_FMA(V_SET(scale[9]), V_LOAD(total + LANES), sum[m]);
        }
      }
    }
  }
}

/* Unpacks elements i, ..., i + LANES - 1 of the four runs of a half of a block, without scales. */
ALWAYS_INLINE void values_q6_k(const uint8_t *block, int half, int i, V *values) {
  VI low = VI_BYTES(block + half * 64 + i), other = VI_BYTES(block + half * 64 + 32 + i),
     high = VI_BYTES(block + 128 + half * 32 + i);
  VI q[4] = {VI_AND(low, 15), VI_AND(other, 15), VI_SHIFT(low, 4), VI_SHIFT(other, 4)};
  MPG_UNROLL(4)
  for (int run = 0; run < 4; run++) {
    VI bits = VI_OR(q[run], VI_LEFT(VI_AND(VI_SHIFT(high, 2 * run), 3), 4));
    values[run] = V_ADD(V_FROM(bits), V_SET(-32));
  }
}

ALWAYS_INLINE void tile_q6_k(const few *t, const tile *b, int rows, int units, V *sums) {
  const int64_t k = t->weight.weight.in_units;
  for (int64_t at = 0, from = 0; at < k; at += 256, from += 210) {
    float scales[MOST_UNITS][16];
    MPG_UNROLL(4)
    for (int u = 0; u < units; u++) {
      const uint8_t *block = b->packed[u] + from;
      const float scale = half_at(block + 208);
      all_bytes(block + 192, true, scale, scale, scales[u]);
    }
    for (int half = 0; half < 2; half++) {
      fetch_next(t, b, from + half * 105, 105, rows, units);
      for (int i = 0; i < 32; i += LANES) {
        MPG_UNROLL(4)
        for (int u = 0; u < units; u++) {
          V values[4];
          values_q6_k(b->packed[u] + from, half, i, values);
          MPG_UNROLL(4)
          for (int run = 0; run < 4; run++) {
            V factor = V_SET(scales[u][half * 8 + run * 2 + i / 16]);
            MPG_UNROLL(4)
            for (int m = 0; m < rows; m++) {
              const float *x = b->data + m * t->padded + at + half * 128 + run * 32 + i;
              sums[u * rows + m] = V_FMA(factor, V_MUL(values[run], V_LOAD(x)), sums[u * rows + m]);
            }
          }
        }
      }
    }
  }
}

/* --- Units of the result ---------------------------------------------------------------------- */
/* Computes the results of `rows` rows of data, from row `first` on, and of `units` units that are
 * `stride` apart. Past `end`, the last unit is repeated. Result (m, u) is stored at UNIT_BLOCK * (m
 * * MOST_UNITS + u). */
ALWAYS_INLINE void tile_of(const few *t, int64_t unit, int64_t stride, int64_t end, int64_t first,
                           int rows, int units, float *to) {
  const mpg_quantized_weight *w = &t->weight.weight;
  tile b = {.data = (const float *)t->data + first * t->padded, .totals = t->totals};
  V sums[MOST_SUMS];
  float results[MOST_SUMS];
  clear(MOST_SUMS, sums);
  if (b.totals) b.totals += totals_at(w->format, first * t->padded);
  MPG_UNROLL(4)
  for (int u = 0; u < units; u++) {
    b.unit[u] = unit + u * stride < end ? unit + u * stride : end - 1;
    b.packed[u] = t->weight.packed + b.unit[u] * w->row_bytes;
  }
  switch (w->format) {
    case MPG_WEIGHT_INT8:
      if (w->group <= RUN && w->group % LANES == 0)
        tile_short_int8(t, &b, rows, units, sums);
      else
        tile_int8(t, &b, rows, units, sums);
      break;
    case MPG_WEIGHT_INT4:
      if (t->weight.zeros)
        tile_nibbles(t, &b, rows, units, sums, true);
      else
        tile_nibbles(t, &b, rows, units, sums, false);
      break;
    case MPG_WEIGHT_NF4: tile_nibbles(t, &b, rows, units, sums, false); break;
    case MPG_WEIGHT_Q8_0: tile_q8_0(t, &b, rows, units, sums); break;
    case MPG_WEIGHT_Q4_0: tile_q4_0(t, &b, rows, units, sums); break;
    case MPG_WEIGHT_Q4_K: tile_q4_k(t, &b, rows, units, sums); break;
    case MPG_WEIGHT_Q6_K: tile_q6_k(t, &b, rows, units, sums); break;
  }
  MPG_UNROLL(2)
  for (int i = 0; i < rows * units; i += 4) V_SUMS(sums + i, results + i);
  MPG_UNROLL(4)
  for (int u = 0; u < units; u++) MPG_UNROLL(4)
  for (int m = 0; m < rows; m++) to[(m * MOST_UNITS + u) * UNIT_BLOCK] = results[u * rows + m];
}

/* Adds the bias to `count` results of a row and rounds them. */
static void finish_units(const few *t, int64_t row, int64_t first, int64_t count, float *values) {
  mpg_block_buffer buffer;
  if (t->bias) {
    const float *bias = mpg_cpu_load(MPG_COMPUTE_F32, t->dtype, t->bias, first, count, &buffer);
    for (int64_t i = 0; i < count; i++) values[i] += bias[i];
  }
  mpg_cpu_store(MPG_COMPUTE_F32, t->dtype, t->out, row * t->weight.weight.units + first, count,
                values);
}

/* Computes units [begin, end) for all rows of data, in one or two tiles of `rows` rows, which may
 * overlap. The units of a tile are far apart, so that the processor prefetches a long stream for
 * each. */
ALWAYS_INLINE void tiles_of(const few *t, int64_t begin, int64_t end, int rows, int units) {
  const int64_t stride = (end - begin + units - 1) / units, rest = t->rows - rows;
  float values[FEW_ROWS * MOST_UNITS][UNIT_BLOCK];
  for (int64_t at = begin; at < begin + stride; at += UNIT_BLOCK) {
    int64_t count = begin + stride - at < UNIT_BLOCK ? begin + stride - at : UNIT_BLOCK;
    for (int64_t i = 0; i < count; i++)
      for (int64_t first = 0; first <= rest; first += rest ? rest : 1)
        tile_of(t, at + i, stride, end, first, rows, units, &values[first * MOST_UNITS][i]);
    for (int64_t m = 0; m < t->rows; m++)
      for (int u = 0; u < units; u++) {
        int64_t from = at + u * stride, valid = end - from < count ? end - from : count;
        if (valid > 0) finish_units(t, m, from, valid, values[m * MOST_UNITS + u]);
      }
  }
}

static void fast_units(void *context, int64_t begin, int64_t end) {
  const few *t = context;
  switch (t->rows <= MOST_ROWS ? t->rows : (t->rows + 1) / 2) {
    case 1: tiles_of(t, begin, end, 1, UNITS_1); break;
    case 2: tiles_of(t, begin, end, 2, UNITS_2); break;
    case 3: tiles_of(t, begin, end, 3, UNITS_3); break;
    default: tiles_of(t, begin, end, 4, UNITS_4); break;
  }
}

/* True if fast_units computes this product. */
static bool has_fast_units(const packed_weight *w) {
  switch (w->weight.format) {
    case MPG_WEIGHT_INT8: return fast_int8(&w->weight);
    case MPG_WEIGHT_INT4:
    case MPG_WEIGHT_NF4: return fast_nibbles(&w->weight);
    default: return true;
  }
}

/* Writes the data of row m and their sums in the layout that fast_units reads. */
static void arrange(const few *t, int64_t m, float *data, float *totals) {
  const mpg_quantized_weight *w = &t->weight.weight;
  float *row = data + m * t->padded;
  if (w->format == MPG_WEIGHT_INT4 || w->format == MPG_WEIGHT_NF4) {
    for (int64_t at = 0; at < t->padded; at += NIBBLE_BLOCK) {
      float block[NIBBLE_BLOCK];
      memcpy(block, row + at, sizeof block);
      for (int l = 0; l < LANES; l++) {
        float total = 0;
        for (int j = 0; j < 8; j++) {
          row[at + j * LANES + l] = block[8 * l + j];
          total += block[8 * l + j];
        }
        if (totals) totals[totals_at(w->format, m * t->padded + at) + l] = total;
      }
    }
  } else if (totals) {
    for (int64_t at = 0; at < t->padded; at += 32)
      for (int l = 0; l < LANES; l++) {
        float total = 0;
        for (int i = l; i < 32; i += LANES) total += row[at + i];
        totals[totals_at(w->format, m * t->padded + at) + l] = total;
      }
  }
}

#endif
