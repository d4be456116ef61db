/* Products of bfloat16 rows with bfloat16 panels (pairs_packing.h), summed in float32, for
 * processors that multiply pairs of bfloat16 (pairs.h). Included for AVX-512 only.
 *
 * A 32-bit word of A holds two adjacent elements of a row. Every element of C is summed over pairs
 * in ascending order. An AMX tile sums the first and the second elements of PAIRS_STEP pairs
 * separately, so its last bits may differ from the vector version's.
 *
 * Threads: any, but the thread that begins a product must end it. */
#ifndef KERNELS_CPU_PRODUCTS_PAIRS_PANEL_H
#define KERNELS_CPU_PRODUCTS_PAIRS_PANEL_H

#include "kernels/cpu/products/pairs_packing.h"

/* Returns the row stride of A in words: an odd number of cache lines, so that rows do not compete
 * for the same cache sets. */
static inline int64_t pairs_row(int64_t k) {
  return pairs_depth(k) + (pairs_depth(k) / PAIRS_STEP % 2 ? 0 : PAIRS_STEP);
}

/* --- Vectors ---------------------------------------------------------------------------------- */
enum { PAIRS_ROWS = 6 };
#define PAIRS_TARGET __attribute__((target("avx512bf16")))

/* Computes `rows` rows of C with a panel that is `width` vectors wide, over `depth` pairs. Only the
 * first valid[v] columns of vector v exist in C. Starts at 0 if `first`, else adds to C. `ahead` is
 * memory to prefetch. */
PAIRS_TARGET static inline __attribute__((always_inline)) void pairs_tile(
    const int rows, const int width, int64_t depth, const mpg_pair *a, int64_t lda,
    const mpg_pair *b, const mpg_pair *ahead, float *const *c, int64_t ldc, const int *valid,
    bool first) {
  __m512 sum[PAIRS_ROWS][PAIRS_PANEL];
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) MPG_UNROLL(8)
  for (int v = 0; v < width; v++)
    sum[r][v] = first ? _mm512_setzero_ps()
                      : _mm512_maskz_loadu_ps((__mmask16)((1u << valid[v]) - 1), c[v] + r * ldc);
  for (int64_t p = 0; p < depth; p++) {
    __m512i row[PAIRS_PANEL];
    MPG_UNROLL(8)
    for (int v = 0; v < width; v++) row[v] = _mm512_loadu_si512(b + v * PAIRS_LANES);
    b += width * PAIRS_LANES;
    __builtin_prefetch(ahead, 0, 2);
    ahead += PAIRS_LANES;
    MPG_UNROLL(8)
    for (int r = 0; r < rows; r++) {
      __m512i x = _mm512_set1_epi32((int)a[r * lda + p]);
#ifdef __clang__
      __asm__("" : "+v"(x)); /* Clang 16 crashes if it knows that lanes are equal */
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

typedef void (*pairs_fn)(int64_t depth, const mpg_pair *a, int64_t lda, const mpg_pair *b,
                         const mpg_pair *ahead, float *const *c, int64_t ldc, const int *valid,
                         bool first);
#define PAIRS_TILE(ROWS, WIDTH)                                                                \
  PAIRS_TARGET static void pairs_##ROWS##x##WIDTH(                                             \
      int64_t depth, const mpg_pair *a, int64_t lda, const mpg_pair *b, const mpg_pair *ahead, \
      float *const *c, int64_t ldc, const int *valid, bool first) {                            \
    pairs_tile(ROWS, WIDTH, depth, a, lda, b, ahead, c, ldc, valid, first);                    \
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
static const pairs_fn pairs_fns[PAIRS_ROWS][PAIRS_PANEL] = {
    PAIRS_ROW(1), PAIRS_ROW(2), PAIRS_ROW(3), PAIRS_ROW(4), PAIRS_ROW(5), PAIRS_ROW(6)};
#undef PAIRS_ROW
#undef PAIRS_TARGET

/* --- AMX tiles -------------------------------------------------------------------------------- */
#ifdef MPG_WITH_TILES
#define TILES_TARGET __attribute__((target("amx-tile,amx-bf16")))
/* Compiler barrier for use before and after GCC's tile intrinsics, which do not declare the memory
 * that they access. */
#define TILES_MEMORY __asm__ volatile("" ::: "memory")

enum { TILE_ROWS = 16 };
typedef struct tile_shapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16]; /* bytes per row of each tile */
  uint8_t rows[16];
} __attribute__((aligned(64))) tile_shapes;

/* Current configuration of the tile registers: rows of the upper and the lower block of C, or 0 if
 * they are not configured. */
typedef struct tiles {
  int upper, lower;
} tiles;

/* Configures the tile registers, unless they already have these shapes. Tiles 0 to 3 hold C in
 * row-major order, 4 and 5 hold A, and 6 and 7 hold B. */
TILES_TARGET static void tiles_shape(tiles *now, int upper, int lower) {
  if (now->upper == upper && (lower == 0 || now->lower == lower)) return;
  tile_shapes shapes = {.palette = 1};
  const int rows[] = {upper, upper, lower, lower, upper, lower, TILE_ROWS, TILE_ROWS};
  for (int i = 0; i < 8; i++) shapes.rows[i] = (uint8_t)rows[i], shapes.bytes[i] = rows[i] ? 64 : 0;
  __asm__ volatile("" : : "r"(&shapes) : "memory");
  _tile_loadconfig(&shapes);
  *now = (tiles){upper, lower};
}

/* Computes one block of TILE_ROWS rows of C, or two if `lower`. The blocks are one vector wide, or
 * two if `two`. */
TILES_TARGET static inline __attribute__((always_inline)) void tiles_product(
    const bool lower, const bool two, int64_t depth, const mpg_pair *a, int64_t lda,
    const mpg_pair *b, int64_t stride, const mpg_pair *ahead, float *const *c, const int64_t *ldc,
    bool first) {
  const size_t bytes = sizeof(mpg_pair), a_step = (size_t)lda * bytes,
               b_step = (size_t)stride * bytes, c_step = (size_t)ldc[0] * sizeof(float),
               d_step = two ? (size_t)ldc[1] * sizeof(float) : 0;
  float *c0 = c[0], *d0 = two ? c[1] : NULL, *c1 = c0 + TILE_ROWS * ldc[0],
        *d1 = two ? d0 + TILE_ROWS * ldc[1] : NULL;
  TILES_MEMORY;
  if (first) {
    _tile_zero(0);
    if (two) _tile_zero(1);
    if (lower) _tile_zero(2);
    if (lower && two) _tile_zero(3);
  } else {
    _tile_loadd(0, c0, c_step);
    if (two) _tile_loadd(1, d0, d_step);
    if (lower) _tile_loadd(2, c1, c_step);
    if (lower && two) _tile_loadd(3, d1, d_step);
  }
  for (int64_t p = 0; p < depth; p += PAIRS_STEP, b += PAIRS_STEP * stride) {
    _tile_loadd(4, a + p, a_step);
    _tile_loadd(6, b, b_step);
    _tile_dpbf16ps(0, 4, 6);
    if (two) {
      _tile_loadd(7, b + PAIRS_LANES, b_step);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (lower) {
      _tile_loadd(5, a + TILE_ROWS * lda + p, a_step);
      _tile_dpbf16ps(2, 5, 6);
      if (two) _tile_dpbf16ps(3, 5, 7);
    }
    for (int i = 0; ahead && i < (two ? 2 : 1) * PAIRS_STEP; i++, ahead += PAIRS_LANES)
      __builtin_prefetch(ahead, 0, 2);
  }
  _tile_stored(0, c0, c_step);
  if (two) _tile_stored(1, d0, d_step);
  if (lower) _tile_stored(2, c1, c_step);
  if (lower && two) _tile_stored(3, d1, d_step);
  TILES_MEMORY;
}

TILES_TARGET static void tiles_panel(tiles *now, int64_t m, int width, int64_t depth,
                                     const mpg_pair *a, int64_t lda, const mpg_pair *b,
                                     const mpg_pair *ahead, float *const *c, int64_t ldc,
                                     const int *valid, bool first) {
  const int64_t stride = width * PAIRS_LANES;
  for (int v = 0, count; v < width; v += count) { /* one or two vectors of B stay in L1 */
    count = width - v < 2 ? 1 : 2;
    for (int64_t row = 0; row < m; row += 2 * TILE_ROWS) {
      int64_t left = m - row;
      int upper = left < TILE_ROWS ? (int)left : TILE_ROWS,
          lower = left < 2 * TILE_ROWS ? (int)left - upper : TILE_ROWS;
      float part[2][2 * TILE_ROWS][PAIRS_LANES], *to[2];
      int64_t step[2];
      tiles_shape(now, upper, lower);
      for (int i = 0; i < count; i++) {
        to[i] = c[v + i] + row * ldc, step[i] = ldc;
        if (valid[v + i] == PAIRS_LANES) continue;
        for (int r = 0; r < upper + lower && !first; r++)
          memcpy(part[i][r], to[i] + r * ldc, (size_t)valid[v + i] * sizeof(float));
        to[i] = part[i][0], step[i] = PAIRS_LANES;
      }
      const mpg_pair *from = a + row * lda, *columns = b + v * PAIRS_LANES,
                     *next = ahead && row == 0 ? ahead + v * depth * PAIRS_LANES : NULL;
      if (lower && count == 2)
        tiles_product(true, true, depth, from, lda, columns, stride, next, to, step, first);
      else if (lower)
        tiles_product(true, false, depth, from, lda, columns, stride, next, to, step, first);
      else if (count == 2)
        tiles_product(false, true, depth, from, lda, columns, stride, next, to, step, first);
      else
        tiles_product(false, false, depth, from, lda, columns, stride, next, to, step, first);
      for (int i = 0; i < count; i++)
        for (int r = 0; r < upper + lower && valid[v + i] < PAIRS_LANES; r++)
          memcpy(c[v + i] + (row + r) * ldc, part[i][r], (size_t)valid[v + i] * sizeof(float));
    }
  }
}

TILES_TARGET static void tiles_end(void) { _tile_release(); }
#undef TILES_MEMORY
#undef TILES_TARGET
#endif

/* --- Dispatch --------------------------------------------------------------------------------- */

/* State of a sequence of products on one thread. Initialize it with (pairs_work){.how = ...} and
 * call pairs_end after the last product. */
typedef struct pairs_work {
  mpg_pairs how;
#ifdef MPG_WITH_TILES
  tiles now;
#endif
} pairs_work;

static void pairs_end(const pairs_work *work) {
#ifdef MPG_WITH_TILES
  if (work->now.upper) tiles_end();
#else
  (void)work;
#endif
}

/* Computes m rows of C with a panel that is `width` vectors wide, over `depth` pairs. c[v] is the
 * address of vector v of C, whose rows are ldc apart and whose first valid[v] columns exist.
 * Overwrites C if `first`, else adds to it. `ahead` is memory of a panel's size to prefetch, or
 * NULL. */
static void pairs_panel(pairs_work *work, int64_t m, int width, int64_t depth, const mpg_pair *a,
                        int64_t lda, const mpg_pair *b, const mpg_pair *ahead, float *const *c,
                        int64_t ldc, const int *valid, bool first) {
#ifdef MPG_WITH_TILES
  if (work->how == MPG_PAIRS_IN_TILES) {
    tiles_panel(&work->now, m, width, depth, a, lda, b, ahead, c, ldc, valid, first);
    return;
  }
#else
  (void)work;
#endif
  const int64_t blocks = (m + PAIRS_ROWS - 1) / PAIRS_ROWS;
  for (int64_t i = 0; i < blocks; i++) {
    int64_t row = i * m / blocks, count = (i + 1) * m / blocks - row;
    float *to[PAIRS_PANEL];
    for (int v = 0; v < width; v++) to[v] = c[v] + row * ldc;
    pairs_fns[count - 1][width - 1](depth, a + row * lda, lda, b,
                                    ahead ? ahead + i * depth * PAIRS_LANES : b, to, ldc, valid,
                                    first);
  }
}
#endif
