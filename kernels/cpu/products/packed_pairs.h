/* The products of packed_steps.h with operands rounded to bfloat16, for processors that multiply
 * pairs of bfloat16 and add them to float32 (AVX512-BF16). Included by packed_steps.h for float
 * with AVX-512; whether the processor has the instruction is found out at run time.
 *
 * B is packed as [pairs of k][vectors of the panel][LANES], where a word is two rows' elements of
 * a column; the rows of A are words of two adjoining elements. An odd last element pairs with zero.
 * Every element of C is summed in float32 over pairs in ascending order.
 */

#include "kernels/cpu/array/turn.h"

#define PAIRS_TARGET __attribute__((target("avx512bf16")))

static bool has_pairs(void) { return __builtin_cpu_supports("avx512bf16"); }

/* Two floats that bfloat16 holds, as a word. */
static inline uint32_t pair_of(float low, float high) {
  uint32_t words[2];
  memcpy(&words[0], &low, sizeof low);
  memcpy(&words[1], &high, sizeof high);
  return words[0] >> 16 | (words[1] & 0xffff0000u);
}

static void pack_pairs(void *context, int64_t begin, int64_t end) {
  const packing_f32 *p = context;
  const packed_f32 *b = p->b;
  const int64_t k = b->k, n = b->width * b->groups, depth = (k + 1) / 2;
  for (int64_t panel = begin; panel < end; panel++) {
    int64_t from = first_vector_f32(b, panel), to = first_vector_f32(b, panel + 1),
            stride = (to - from) * LANES;
    mpg_pair *data = b->pairs + from * LANES * depth;
    for (int64_t v = from; v < to; v++, data += LANES) {
      int valid;
      int64_t column = vector_column_f32(b, v, &valid), row = p->transposed ? 1 : n;
      const float *source = p->source + column * (p->transposed ? k : 1);
      int64_t start = 0;
      if (p->half && p->transposed && valid == LANES && k % 2 == 0) /* pairs lie as words */
        for (; start + 2 * MPG_TURNED <= k; start += 2 * MPG_TURNED)
          mpg_turn_item4((const char *)(p->half + column * k + start),
                         (char *)(data + start / 2 * stride), k * (int64_t)sizeof *p->half,
                         stride * (int64_t)sizeof *data);
      for (int64_t i = start; i < k; i += 2) {
        mpg_pair *restrict words = data + i / 2 * stride;
        const float *restrict low = source + i * row, *restrict high = low + row;
        if (i + 1 == k)
          for (int l = 0; l < LANES; l++)
            words[l] = l < valid ? pair_of(low[p->transposed ? l * k : l], 0) : 0;
        else if (valid < LANES)
          for (int l = 0; l < LANES; l++)
            words[l] =
                l < valid ? pair_of(low[p->transposed ? l * k : l], high[p->transposed ? l * k : l])
                          : 0;
        else if (p->transposed)
          for (int l = 0; l < LANES; l++) words[l] = pair_of(low[l * k], high[l * k]);
        else
          for (int l = 0; l < LANES; l++) words[l] = pair_of(low[l], high[l]);
      }
    }
  }
}

/* Rounds rows of A. */
typedef struct rounding {
  const packed_f32 *b;
  const float *a;
  int64_t lda;
} rounding;

static void round_rows(void *context, int64_t begin, int64_t end) {
  const rounding *p = context;
  const int64_t k = p->b->k, words = (k + 1) / 2;
  for (int64_t r = begin; r < end; r++) {
    mpg_pair *to = p->b->rows + r * words;
    to[words - 1] = 0;
    mpg_cpu_store(MPG_COMPUTE_F32, MPG_BFLOAT16, to, 0, k, p->a + r * p->lda);
  }
}

/* `rows` rows of C with a panel `width` vectors wide, over k pairs of it. */
PAIRS_TARGET static inline __attribute__((always_inline)) void pairs_tile(
    const int rows, const int width, int64_t k, const mpg_pair *a, int64_t lda, const mpg_pair *b,
    const mpg_pair *ahead, float *const *c, int64_t ldc, const int *valid, bool first) {
  __m512 sum[STEP_ROWS_f32][PANEL_f32];
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) MPG_UNROLL(8)
  for (int v = 0; v < width; v++)
    sum[r][v] = first ? _mm512_setzero_ps()
                      : _mm512_maskz_loadu_ps((__mmask16)((1u << valid[v]) - 1), c[v] + r * ldc);
  for (int64_t p = 0; p < k; p++) {
    __m512i row[PANEL_f32];
    MPG_UNROLL(8)
    for (int v = 0; v < width; v++) row[v] = _mm512_loadu_si512(b + v * LANES);
    b += width * LANES;
    __builtin_prefetch(ahead, 0, 2);
    ahead += 64 / sizeof(mpg_pair);
    MPG_UNROLL(8)
    for (int r = 0; r < rows; r++) {
      __m512i x = _mm512_set1_epi32((int)a[r * lda + p]);
#ifdef __clang__
      __asm__("" : "+v"(x)); /* version 16 crashes on equal lanes taken for bfloat16 */
#endif
      MPG_UNROLL(8)
      for (int v = 0; v < width; v++)
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)x, (__m512bh)row[v]);
    }
  }
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) MPG_UNROLL(8)
  for (int v = 0; v < width; v++)
    _mm512_mask_storeu_ps(c[v] + r * ldc, (__mmask16)((1u << valid[v]) - 1), sum[r][v]);
}

typedef void (*pairs_fn)(int64_t k, const mpg_pair *a, int64_t lda, const mpg_pair *b,
                         const mpg_pair *ahead, float *const *c, int64_t ldc, const int *valid,
                         bool first);
#define PAIRS_TILE(ROWS, WIDTH)                                                            \
  PAIRS_TARGET static void pairs_##ROWS##x##WIDTH(                                         \
      int64_t k, const mpg_pair *a, int64_t lda, const mpg_pair *b, const mpg_pair *ahead, \
      float *const *c, int64_t ldc, const int *valid, bool first) {                        \
    pairs_tile(ROWS, WIDTH, k, a, lda, b, ahead, c, ldc, valid, first);                    \
  }
#define PAIRS_TILES(ROWS) \
  PAIRS_TILE(ROWS, 1) PAIRS_TILE(ROWS, 2) PAIRS_TILE(ROWS, 3) PAIRS_TILE(ROWS, 4)
PAIRS_TILES(1)
PAIRS_TILES(2)
PAIRS_TILES(3)
PAIRS_TILES(4)
PAIRS_TILES(5)
PAIRS_TILES(6)
#undef PAIRS_TILES
#undef PAIRS_TILE
#define PAIRS_ROW(ROWS) {pairs_##ROWS##x1, pairs_##ROWS##x2, pairs_##ROWS##x3, pairs_##ROWS##x4}
static const pairs_fn pairs_fns[STEP_ROWS_f32][PANEL_f32] = {
    PAIRS_ROW(1), PAIRS_ROW(2), PAIRS_ROW(3), PAIRS_ROW(4), PAIRS_ROW(5), PAIRS_ROW(6)};
#undef PAIRS_ROW
#undef PAIRS_TARGET
