/* Products of a few float16 or bfloat16 rows. */
#include "kernels/cpu/products/narrow/narrow_halves.h"

#include <string.h>

#include "kernels/common/half.h"
#include "kernels/cpu/array/turn.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/products/pairs.h"
#include "kernels/cpu/vendor/onednn.h"

/* Maximum rows of A, and maximum elements of A if it has more than FEW_ROWS. Libraries, which copy
 * B into their own layout, are faster beyond these limits. Products of pairs with an untransposed B
 * have at most half of MOST_ROWS. */
enum { FEW_ROWS = 4, MOST_ROWS = 16, MOST_ELEMENTS = 32768 };
/* Longer sums of float16 products would drift in one chain of additions. */
enum { MOST_TERMS = 1 << 16 };
/* Size of a block of transposed B: MPG_TURNED pairs of elements along k, and WIDTH columns. */
enum { BLOCK = 2 * MPG_TURNED, WIDTH = 2 * MPG_TURNED };
/* Elements of a row of B between a prefetch and its use, if prefetches are in the order of use. */
enum { AHEAD = 8 * BLOCK };
/* Rows of B that are added at once, columns of a block, and sums that a thread keeps. */
enum { STEPS = 4, COLUMNS = 64, SUMS = 4096 };
_Static_assert(SUMS >= MOST_ROWS * COLUMNS, "a thread must keep the sums of a block");
#if defined(__AVX512F__)
#define ROWS 4 /* rows of A that are multiplied at once, as registers allow */
#else
#define ROWS 2
#endif

typedef void (*add_block_fn)(int64_t m, const uint16_t *a, int64_t stride, int64_t count,
                             const uint32_t *words, float (*sums)[WIDTH]);
typedef void (*add_fn)(int rows, int steps, const mpg_half_product *g, const uint16_t *a,
                       const uint16_t *b, int64_t width, int64_t stride, float *sums);

/* Prefetches as many bytes as a block has. Without it, the processor reaches about half of the
 * memory's rate. */
static inline void prefetch(const char *from) {
  for (int at = 0; at < BLOCK * WIDTH * 2; at += 64) __builtin_prefetch(from + at);
}

/* Transposes a block of `valid` rows of B and `count` elements along k, padded with zeros. Each
 * word of the result has two adjacent elements. */
static inline void turn(const uint16_t *b, int64_t k, int64_t valid, int64_t count,
                        uint32_t *words) {
  uint16_t part[WIDTH][BLOCK];
  const char *rows = (const char *)b;
  int64_t step = k * (int64_t)sizeof *b;
  if (valid < WIDTH || count < BLOCK) {
    memset(part, 0, sizeof part);
    for (int64_t r = 0; r < valid; r++)
      memcpy(part[r], b + r * k, (size_t)count * sizeof part[r][0]);
    rows = (const char *)part, step = sizeof part[0];
  }
  for (int r = 0; r < WIDTH; r += MPG_TURNED)
    mpg_turn_item4(rows + r * step, (char *)(words + r), step, WIDTH * sizeof *words);
}

/* Adds the sums of a part of k to the totals, and resets them. */
static inline void end_chain(int64_t count, float *sums, float *totals) {
  for (int64_t i = 0; i < count; i++) totals[i] += sums[i], sums[i] = 0;
}

/* --- Loads ------------------------------------------------------------------------------------ */
#if defined(__AVX512F__)
static inline V load_bf16(const uint16_t *from) {
  __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
static inline V load_f16(const uint16_t *from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}
static inline void split_bf16(const uint32_t *words, V *low, V *high) {
  __m512i w = _mm512_loadu_si512(words);
  *low = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
  *high = _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000)));
}
static inline void split_f16(const uint32_t *words, V *low, V *high) {
  __m512i w = _mm512_loadu_si512(words);
  *low = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(w));
  *high = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(w, 16)));
}
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
static inline V load_bf16(const uint16_t *from) {
  __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
static inline V load_f16(const uint16_t *from) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}
static inline void split_bf16(const uint32_t *words, V *low, V *high) {
  __m256i w = _mm256_loadu_si256((const __m256i *)words);
  *low = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
  *high = _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32((int)0xffff0000)));
}
static inline void split_f16(const uint32_t *words, V *low, V *high) {
  __m256i w = _mm256_loadu_si256((const __m256i *)words);
  __m256i lows = _mm256_and_si256(w, _mm256_set1_epi32(0xffff)), highs = _mm256_srli_epi32(w, 16);
  __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(lows, highs), 0xd8);
  *low = _mm256_cvtph_ps(_mm256_castsi256_si128(both));
  *high = _mm256_cvtph_ps(_mm256_extracti128_si256(both, 1));
}
#else
static inline V load_bf16(const uint16_t *from) {
  float part[LANES];
  for (int l = 0; l < LANES; l++) part[l] = mpg_bfloat16_to_float(from[l]);
  return V_LOAD(part);
}
static inline V load_f16(const uint16_t *from) {
  float part[LANES];
  for (int l = 0; l < LANES; l++) part[l] = mpg_half_to_float(from[l]);
  return V_LOAD(part);
}
static inline void split_bf16(const uint32_t *words, V *low, V *high) {
  float lows[LANES], highs[LANES];
  for (int l = 0; l < LANES; l++) {
    lows[l] = mpg_float_from_bits(words[l] << 16);
    highs[l] = mpg_float_from_bits(words[l] & 0xffff0000);
  }
  *low = V_LOAD(lows), *high = V_LOAD(highs);
}
static inline void split_f16(const uint32_t *words, V *low, V *high) {
  float lows[LANES], highs[LANES];
  for (int l = 0; l < LANES; l++) {
    lows[l] = mpg_half_to_float((uint16_t)words[l]);
    highs[l] = mpg_half_to_float((uint16_t)(words[l] >> 16));
  }
  *low = V_LOAD(lows), *high = V_LOAD(highs);
}
#endif

/* --- Pairs of bfloat16 ------------------------------------------------------------------------ */
#ifdef MPG_WITH_PAIRS
#define PAIRS_TARGET __attribute__((target("avx512bf16")))

/* True if oneDNN multiplies pairs of bfloat16 in vectors. It then computes the products of more
 * rows. Sums add pairs in its order, so the bits of a row do not depend on the number of rows. */
static bool in_pairs(void) {
#ifdef MPG_WITH_ONEDNN
  return mpg_cpu_onednn() && mpg_cpu_pairs() == MPG_PAIRS_IN_VECTORS;
#else
  return false;
#endif
}

/* Maximum rows of A whose sums fit into registers. */
enum { FEW_PAIRED_ROWS = 8 };

/* The length of k that oneDNN sums separately before it adds the result to the total. */
static int64_t chain_of_pairs(int64_t k) { return k > 1024 ? 1024 : 512; }

static inline int pair_of(const uint16_t *from) {
  int pair;
  memcpy(&pair, from, sizeof pair);
  return pair;
}

PAIRS_TARGET static inline __attribute__((always_inline)) void add_pairs(const int rows,
                                                                         const uint16_t *a,
                                                                         int64_t stride,
                                                                         const uint32_t *words,
                                                                         float (*sums)[WIDTH]) {
  __m512 sum[ROWS][2];
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++)
    sum[r][0] = _mm512_load_ps(sums[r]), sum[r][1] = _mm512_load_ps(sums[r] + LANES);
  MPG_UNROLL(4)
  for (int p = 0; p < MPG_TURNED; p++) {
    __m512bh left = (__m512bh)_mm512_load_si512(words + p * WIDTH),
             right = (__m512bh)_mm512_load_si512(words + p * WIDTH + LANES);
    MPG_UNROLL(8)
    for (int r = 0; r < rows; r++) {
      __m512bh x = (__m512bh)_mm512_set1_epi32(pair_of(a + r * stride + 2 * p));
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], x, left);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], x, right);
    }
  }
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++)
    _mm512_store_ps(sums[r], sum[r][0]), _mm512_store_ps(sums[r] + LANES, sum[r][1]);
}

/* The quarters `from` of rows 0, 4, 8 and 12, which are `step` bytes apart. */
static inline __m512i quarters(const char *from, int64_t step) {
  __m512i all = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)from));
  for (int i = 1; i < 4; i++)
    all = _mm512_mask_broadcast_i32x4(all, (__mmask16)(0xf << 4 * i),
                                      _mm_loadu_si128((const __m128i *)(from + 4 * i * step)));
  return all;
}

/* Adds the products of `rows` rows of A with 16 bytes of MPG_TURNED rows of B, which are transposed
 * in registers: faster than `turn` unless many rows use the block. */
PAIRS_TARGET static inline __attribute__((always_inline)) void add_turned_quarter(
    const int rows, const uint16_t *a, int64_t stride, const char *from, int64_t step,
    __m512 *sum) {
  __m512i b0 = quarters(from, step), b1 = quarters(from + step, step),
          b2 = quarters(from + 2 * step, step), b3 = quarters(from + 3 * step, step);
  __m512i low0 = _mm512_unpacklo_epi32(b0, b1), high0 = _mm512_unpackhi_epi32(b0, b1),
          low1 = _mm512_unpacklo_epi32(b2, b3), high1 = _mm512_unpackhi_epi32(b2, b3);
  __m512i pairs[4] = {_mm512_unpacklo_epi64(low0, low1), _mm512_unpackhi_epi64(low0, low1),
                      _mm512_unpacklo_epi64(high0, high1), _mm512_unpackhi_epi64(high0, high1)};
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) MPG_UNROLL(4)
  for (int p = 0; p < 4; p++) {
    int x = pair_of(a + r * stride + 2 * p);
    sum[r] = _mm512_dpbf16_ps(sum[r], (__m512bh)_mm512_set1_epi32(x), (__m512bh)pairs[p]);
  }
}

/* Adds the products of `rows` rows of A with a whole block of B. */
PAIRS_TARGET static inline __attribute__((always_inline)) void add_turned(
    const int rows, const uint16_t *a, int64_t stride, const uint16_t *b, int64_t k,
    float (*sums)[WIDTH]) {
  const int64_t step = k * (int64_t)sizeof *b;
  for (int half = 0; half < 2; half++, b += MPG_TURNED * k) {
    __m512 sum[ROWS];
    MPG_UNROLL(8)
    for (int r = 0; r < rows; r++) sum[r] = _mm512_load_ps(sums[r] + half * LANES);
    MPG_UNROLL(4)
    for (int quarter = 0; quarter < 4; quarter++)
      add_turned_quarter(rows, a + 8 * quarter, stride, (const char *)b + 16 * quarter, step, sum);
    MPG_UNROLL(8)
    for (int r = 0; r < rows; r++) _mm512_store_ps(sums[r] + half * LANES, sum[r]);
  }
}

PAIRS_TARGET static void add_few_pairs(int64_t m, const uint16_t *a, int64_t stride,
                                       const uint16_t *b, int64_t k, float (*sums)[WIDTH]) {
  switch (m) {
    case 1: add_turned(1, a, stride, b, k, sums); break;
    case 2: add_turned(2, a, stride, b, k, sums); break;
    case 3: add_turned(3, a, stride, b, k, sums); break;
    default: add_turned(4, a, stride, b, k, sums); break;
  }
}

/* Sums the products of `rows` rows of A with MPG_TURNED rows of B, whose whole blocks are read in
 * turn. Prefetches are in the same order and spread over the loop: the lines are then still in the
 * L1 cache when they are used. */
PAIRS_TARGET static inline __attribute__((always_inline)) void sum_turned(const int rows,
                                                                          const uint16_t *a,
                                                                          const uint16_t *b,
                                                                          int64_t k, int64_t chain,
                                                                          float (*totals)[WIDTH]) {
  const int64_t step = k * (int64_t)sizeof *b;
  __m512 total[FEW_PAIRED_ROWS], sum[FEW_PAIRED_ROWS];
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) total[r] = sum[r] = _mm512_setzero_ps();
  for (int64_t p = 0; p < k;) {
    const int64_t at = p + AHEAD; /* after the end of these rows, in the rows that follow */
    const char *next = (const char *)(at < k ? b + at : b + MPG_TURNED * k + (at - k) % k);
    MPG_UNROLL(4)
    for (int quarter = 0; quarter < 4; quarter++) {
      MPG_UNROLL(4)
      for (int r = 4 * quarter; r < 4 * quarter + 4; r++) __builtin_prefetch(next + r * step);
      add_turned_quarter(rows, a + p + 8 * quarter, k, (const char *)(b + p) + 16 * quarter, step,
                         sum);
    }
    p += BLOCK;
    if (p % chain && p < k) continue;
    MPG_UNROLL(8)
    for (int r = 0; r < rows; r++)
      total[r] = _mm512_add_ps(total[r], sum[r]), sum[r] = _mm512_setzero_ps();
  }
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) _mm512_storeu_ps(totals[r], total[r]);
}

/* True if sum_turned is faster than adding block by block. Rows of B that are a multiple of 2 KB
 * apart compete for the same sets of the L1 cache, and two groups of short rows fit into it. */
static bool sums_turned(int64_t m, int64_t k) {
  bool spread = k % 1024 != 0;
  return k % BLOCK == 0 &&
         (m > 2 ? m <= 4 || (m <= FEW_PAIRED_ROWS && spread) : spread && k > 1024);
}

/* Computes the sums of a group of WIDTH columns of C. */
PAIRS_TARGET static void sum_few_pairs(int64_t m, const uint16_t *a, const uint16_t *b, int64_t k,
                                       int64_t chain, float (*totals)[WIDTH]) {
  for (int column = 0; column < WIDTH; column += MPG_TURNED, b += MPG_TURNED * k) {
    float (*to)[WIDTH] = (float (*)[WIDTH])(totals[0] + column);
    switch (m) {
      case 1: sum_turned(1, a, b, k, chain, to); break;
      case 2: sum_turned(2, a, b, k, chain, to); break;
      case 3: sum_turned(3, a, b, k, chain, to); break;
      case 4: sum_turned(4, a, b, k, chain, to); break;
      case 5: sum_turned(5, a, b, k, chain, to); break;
      case 6: sum_turned(6, a, b, k, chain, to); break;
      case 7: sum_turned(7, a, b, k, chain, to); break;
      default: sum_turned(FEW_PAIRED_ROWS, a, b, k, chain, to); break;
    }
  }
}

PAIRS_TARGET static void add_block_of_pairs(int64_t m, const uint16_t *a, int64_t stride,
                                            int64_t count, const uint32_t *words,
                                            float (*sums)[WIDTH]) {
  uint16_t part[MOST_ROWS][BLOCK];
  if (count < BLOCK) {
    memset(part, 0, sizeof part);
    for (int64_t r = 0; r < m; r++) memcpy(part[r], a + r * stride, (size_t)count * sizeof *a);
    a = part[0], stride = BLOCK;
  }
  int64_t r = 0;
  for (; r + ROWS <= m; r += ROWS) add_pairs(ROWS, a + r * stride, stride, words, sums + r);
  for (; r < m; r++) add_pairs(1, a + r * stride, stride, words, sums + r);
}

/* The elements of `width` columns in two rows of B, as pairs. A missing row is NULL. */
static inline __m512i pairs_of_rows(const uint16_t *first, const uint16_t *second,
                                    __mmask16 valid) {
  __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(valid, first)),
          high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(second ? valid : 0, second));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* Like add_T for the rows of A, with at most STEPS rows of B. */
PAIRS_TARGET static void add_of_pairs(int rows, int steps, const mpg_half_product *g,
                                      const uint16_t *a, const uint16_t *b, int64_t width,
                                      int64_t stride, float *sums) {
  __m512bh x[ROWS][STEPS / 2];
  for (int r = 0; r < rows; r++)
    for (int s = 0; s < STEPS; s += 2) {
      uint16_t pair[2] = {s < steps ? a[r * g->k + s] : 0, s + 1 < steps ? a[r * g->k + s + 1] : 0};
      x[r][s / 2] = (__m512bh)_mm512_set1_epi32(pair_of(pair));
    }
  for (int64_t j = 0; j < width; j += LANES) {
    __mmask16 valid = width - j < LANES ? (__mmask16)((1u << (width - j)) - 1) : 0xffff;
    __m512bh y[STEPS / 2];
    MPG_UNROLL(8)
    for (int s = 0; s < STEPS; s += 2) {
      const uint16_t *from = b + s * g->n + j;
      __builtin_prefetch(from + STEPS * g->n);
      __builtin_prefetch(from + (STEPS + 1) * g->n);
      y[s / 2] =
          (__m512bh)pairs_of_rows(from, s + 1 < steps ? from + g->n : NULL, s < steps ? valid : 0);
    }
    for (int r = 0; r < rows; r++) {
      float *to = sums + r * stride + j;
      __m512 sum = _mm512_loadu_ps(to);
      MPG_UNROLL(8)
      for (int s = 0; s < STEPS / 2; s++)
        if (2 * s < steps) sum = _mm512_dpbf16_ps(sum, x[r][s], y[s]);
      _mm512_storeu_ps(to, sum);
    }
  }
}
#undef PAIRS_TARGET
#endif

/* --- Instances -------------------------------------------------------------------------------- */
#define NAME(name) name##_bf16
#define LOAD load_bf16
#define SPLIT split_bf16
#define WIDEN mpg_bfloat16_to_float
#define ROUND mpg_float_to_bfloat16
#define OF_PAIRS
#include "kernels/cpu/products/narrow/narrow_halves_impl.h"

#define NAME(name) name##_f16
#define LOAD load_f16
#define SPLIT split_f16
#define WIDEN mpg_half_to_float
#define ROUND mpg_float_to_half
#include "kernels/cpu/products/narrow/narrow_halves_impl.h"

bool mpg_cpu_narrow_halves(const mpg_kernel_call *call, const mpg_half_product *product) {
  mpg_half_product g = *product;
  if ((g.dtype != MPG_BFLOAT16 && g.dtype != MPG_FLOAT16) || g.batch * g.m * g.n == 0 || !g.k ||
      g.k > MOST_TERMS || mpg_gemm_tiny(g.m, g.n, g.k))
    return false;
  if (g.n == 1 && !g.bias) { /* a matrix with one column equals its transpose, in memory */
    g = (mpg_half_product){.dtype = g.dtype,
                           .transpose_b = !g.transpose_a,
                           .batch = g.batch,
                           .m = 1,
                           .n = g.m,
                           .k = g.k,
                           .a = g.b,
                           .b = g.a,
                           .c = g.c};
  } else if (g.m > MOST_ROWS || (g.m > FEW_ROWS && g.k > MOST_ELEMENTS / g.m) ||
             (g.transpose_a && g.m > 1)) {
    return false;
  }
  const bool bfloat16 = g.dtype == MPG_BFLOAT16;
  /* AMX tiles add in a different order, so oneDNN computes all products. */
  const mpg_pairs pairs = bfloat16 ? mpg_cpu_pairs() : MPG_NO_PAIRS;
  if (pairs == MPG_PAIRS_IN_TILES || (pairs && !g.transpose_b && g.m > MOST_ROWS / 2)) return false;
#ifdef MPG_WITH_ONEDNN
  /* So does a build for older processors, whose kernels do not have oneDNN's order of pairs. */
  if (bfloat16 && !pairs && mpg_cpu_onednn_dtype(MPG_BFLOAT16) != dnnl_data_type_undef)
    return false;
#endif
  /* Each thread multiplies at least 2^18 times. */
  if (g.transpose_b)
    mpg_cpu_parallel_for(call, g.batch * ((g.n + WIDTH - 1) / WIDTH),
                         1 + (1 << 18) / (g.m * g.k * WIDTH), bfloat16 ? dots_bf16 : dots_f16, &g);
  else
    mpg_cpu_parallel_for(call, g.batch * ((g.n + COLUMNS - 1) / COLUMNS),
                         1 + (1 << 18) / (g.m * g.k * COLUMNS),
                         bfloat16 ? columns_bf16 : columns_f16, &g);
  return true;
}
