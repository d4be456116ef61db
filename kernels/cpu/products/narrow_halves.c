/* Products of a few float16 or bfloat16 rows. */
#include "kernels/cpu/products/narrow_halves.h"

#include <string.h>

#include "kernels/common/half.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/products/pairs.h"

/* Maximum rows of A, and maximum elements of A if it has more than FEW_ROWS. Libraries, which copy
 * B into their own layout, are faster beyond these. */
enum { FEW_ROWS = 4, MOST_ROWS = 16, MOST_ELEMENTS = 32768 };
/* Rows of B that are added at once, columns of a block, and sums that a thread keeps. */
/* Partial sums of a dot product in vectors, so that additions need not wait for each other. */
enum { PARTS = 4 };
/* Rows of B that are added at once, columns of a block, and sums that a thread keeps. */
enum { STEPS = 4, COLUMNS = 64, SUMS = 8192 };
enum { TOGETHER = 4 }; /* rows of transposed B that a block of rows of A is multiplied by */
#if defined(__AVX512F__)
#define ROWS 4 /* rows of A that are multiplied at once, as registers allow */
#else
#define ROWS 2
#endif

typedef void (*dots_fn)(int rows, int64_t k, const uint16_t *a, const uint16_t *b, float *sums);

/* Prefetches `count` elements that are AHEAD bytes further. Without it, the processor reaches about
 * two thirds of the memory's rate. */
enum { AHEAD = 8192, LINE = 64 };
static inline __attribute__((always_inline)) void prefetch(const uint16_t *from, int count) {
  MPG_UNROLL(8)
  for (int at = 0; at < count * (int)sizeof *from; at += LINE)
    __builtin_prefetch((const char *)from + AHEAD + at);
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
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
static inline V load_bf16(const uint16_t *from) {
  __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
static inline V load_f16(const uint16_t *from) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
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
#endif

/* --- Pairs of bfloat16 ------------------------------------------------------------------------ */
#ifdef MPG_WITH_PAIRS
#define PAIRS_TARGET __attribute__((target("avx512bf16")))

/* Computes the dot products of `rows` adjacent rows of A with a row of B. A lane of the PARTS
 * partial sums adds the products of two adjacent elements at once. */
PAIRS_TARGET static inline __attribute__((always_inline)) void dots_of_pairs(
    const int rows, int64_t k, const uint16_t *a, const uint16_t *b, float *sums) {
  enum { WIDTH = 2 * LANES, STEP = PARTS * WIDTH };
  __m512 sum[ROWS][PARTS];
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) MPG_UNROLL(8)
  for (int q = 0; q < PARTS; q++) sum[r][q] = _mm512_setzero_ps();
  int64_t p = 0;
  for (; p + STEP <= k; p += STEP) {
    prefetch(b + p, STEP);
    MPG_UNROLL(8)
    for (int q = 0; q < PARTS; q++) {
      __m512i y = _mm512_loadu_si512(b + p + q * WIDTH);
      MPG_UNROLL(8)
      for (int r = 0; r < rows; r++) {
        __m512i x = _mm512_loadu_si512(a + r * k + p + q * WIDTH);
        sum[r][q] = _mm512_dpbf16_ps(sum[r][q], (__m512bh)x, (__m512bh)y);
      }
    }
  }
  MPG_UNROLL(8)
  for (int q = 0; q < PARTS; q++) {
    int64_t left = k - p - q * WIDTH;
    if (left <= 0) break;
    __mmask32 valid = left < WIDTH ? (1u << left) - 1 : ~0u;
    __m512i y = _mm512_maskz_loadu_epi16(valid, b + p + q * WIDTH);
    MPG_UNROLL(8)
    for (int r = 0; r < rows; r++) {
      __m512i x = _mm512_maskz_loadu_epi16(valid, a + r * k + p + q * WIDTH);
      sum[r][q] = _mm512_dpbf16_ps(sum[r][q], (__m512bh)x, (__m512bh)y);
    }
  }
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++)
    sums[r] = _mm512_reduce_add_ps(
        _mm512_add_ps(_mm512_add_ps(sum[r][0], sum[r][2]), _mm512_add_ps(sum[r][1], sum[r][3])));
}

PAIRS_TARGET static void few_dots_of_pairs(int rows, int64_t k, const uint16_t *a,
                                           const uint16_t *b, float *sums) {
  switch (rows) {
    case 4: dots_of_pairs(4, k, a, b, sums); break;
    case 3: dots_of_pairs(3, k, a, b, sums); break;
    case 2: dots_of_pairs(2, k, a, b, sums); break;
    default: dots_of_pairs(1, k, a, b, sums); break;
  }
}
#undef PAIRS_TARGET
#endif

/* --- Instances -------------------------------------------------------------------------------- */
#define NAME(name) name##_bf16
#define LOAD load_bf16
#define WIDEN mpg_bfloat16_to_float
#define ROUND mpg_float_to_bfloat16
#define OF_PAIRS
#include "kernels/cpu/products/narrow_halves_impl.h"

#define NAME(name) name##_f16
#define LOAD load_f16
#define WIDEN mpg_half_to_float
#define ROUND mpg_float_to_half
#include "kernels/cpu/products/narrow_halves_impl.h"

bool mpg_cpu_narrow_halves(const mpg_kernel_call *call, const mpg_half_product *product) {
  mpg_half_product g = *product;
  if ((g.dtype != MPG_BFLOAT16 && g.dtype != MPG_FLOAT16) || g.batch * g.m * g.n == 0 ||
      mpg_gemm_tiny(g.m, g.n, g.k))
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
  /* a thread multiplies at least 2^18 times */
  if (g.transpose_b)
    mpg_cpu_parallel_for(call, g.batch * g.n, 1 + (1 << 18) / (g.m * g.k),
                         bfloat16 ? dots_bf16 : dots_f16, &g);
  else
    mpg_cpu_parallel_for(call, g.batch * ((g.n + COLUMNS - 1) / COLUMNS),
                         1 + (1 << 18) / (g.m * g.k * COLUMNS),
                         bfloat16 ? columns_bf16 : columns_f16, &g);
  return true;
}
