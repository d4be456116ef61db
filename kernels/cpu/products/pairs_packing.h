/* Packs a bfloat16 matrix (k, n) into panels in the layout that the processor multiplies (pairs.h).
 * A panel is up to PAIRS_PANEL vectors of 16 columns wide and stored as [pairs of rows][vectors][16
 * columns]. Each 32-bit word holds one column's elements in two adjacent rows. k is padded with
 * zeros to a multiple of PAIRS_STEP pairs. Included for AVX-512 only. These functions are stateless
 * and may be called from any thread. */
#ifndef KERNELS_CPU_PRODUCTS_PAIRS_PACKING_H
#define KERNELS_CPU_PRODUCTS_PAIRS_PACKING_H

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/array/turn.h"
#include "kernels/cpu/products/pairs.h"

/* Two bfloat16 elements, the first in the low 16 bits. */
typedef uint32_t mpg_pair __attribute__((may_alias));

enum { PAIRS_STEP = 16, PAIRS_PANEL = 4, PAIRS_LANES = 16 };

/* Returns the number of pairs in a sum over k, including padding. */
static inline int64_t pairs_depth(int64_t k) {
  return (k + 2 * PAIRS_STEP - 1) / (2 * PAIRS_STEP) * PAIRS_STEP;
}

/* Packs one vector of a panel: columns [0, valid) of a matrix (k, n) whose transpose is at `from`.
 * Rows of the transpose are `by_row` elements apart. The panel has `stride` words per pair of
 * rows. */
static void pack_transposed_pairs(const uint16_t *from, int64_t by_row, int valid, int64_t k,
                                  mpg_pair *to, int64_t stride) {
  for (int64_t at = 0; at < k; at += 2 * PAIRS_STEP, to += PAIRS_STEP * stride) {
    uint16_t part[PAIRS_LANES][2 * PAIRS_STEP];
    const char *rows = (const char *)(from + at);
    int64_t step = by_row * (int64_t)sizeof *from, count = k - at;
    if (valid < PAIRS_LANES || count < 2 * PAIRS_STEP) {
      if (count > 2 * PAIRS_STEP) count = 2 * PAIRS_STEP;
      memset(part, 0, sizeof part);
      for (int i = 0; i < valid; i++)
        memcpy(part[i], from + i * by_row + at, (size_t)count * sizeof *from);
      rows = (const char *)part, step = sizeof part[0];
    }
    mpg_turn_item4(rows, (char *)to, step, stride * (int64_t)sizeof *to);
  }
}

static inline __m512i word_lanes(const uint16_t *from, __mmask16 valid) {
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(valid, from));
}

/* Packs `width` vectors of a panel: columns [0, columns) of a matrix (k, n) at `from`, padded with
 * zeros. Rows are `by_row` elements apart. */
static inline __attribute__((unused)) void pack_pairs_of_rows(const uint16_t *from, int64_t by_row,
                                                              int width, int64_t columns, int64_t k,
                                                              mpg_pair *to, int64_t stride) {
  __mmask16 lanes[PAIRS_PANEL];
  for (int v = 0; v < width; v++, columns -= PAIRS_LANES)
    lanes[v] = columns >= PAIRS_LANES ? 0xffff : columns > 0 ? (__mmask16)((1u << columns) - 1) : 0;
  const int64_t depth = pairs_depth(k);
  for (int64_t i = 0; i < depth; i++, to += stride)
    for (int v = 0; v < width; v++) {
      const uint16_t *upper = from + 2 * i * by_row + v * PAIRS_LANES;
      __m512i low = word_lanes(upper, 2 * i < k ? lanes[v] : 0),
              high = word_lanes(upper + by_row, 2 * i + 1 < k ? lanes[v] : 0);
      _mm512_storeu_si512(to + v * PAIRS_LANES, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
}
#endif
