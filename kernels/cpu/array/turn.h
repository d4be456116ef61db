/* Transposes tiles of 16 x 16 elements. Matrix lines that are a multiple of a page apart compete
 * for the same cache sets, so a tile reads each input line once and writes each result line once.
 * These functions are stateless and may be called from any thread.
 */
#ifndef KERNELS_CPU_ARRAY_TURN_H
#define KERNELS_CPU_ARRAY_TURN_H

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

enum { MPG_TURNED = 16 };
#define MPG_TURN_INLINE static inline __attribute__((unused))

/* Units of copying. A unit may consist of several adjacent elements, so its alignment may be
 * smaller than its size. */
typedef uint8_t item1;
typedef uint16_t item2 __attribute__((aligned(1), may_alias));
typedef uint32_t item4 __attribute__((aligned(1), may_alias));
typedef uint64_t item8 __attribute__((aligned(1), may_alias));
typedef struct item16 {
  item8 words[2];
} item16;

/* mpg_turn_ITEM(in, out, in_step, row_out): element r of line c in `in` becomes element c of line r
 * in `out`. Input lines are in_step bytes apart, output lines row_out bytes. */
#define TURN_BY_BUFFER(type)                                                                  \
  MPG_TURN_INLINE void mpg_turn_##type(const char *in, char *out, int64_t in_step,            \
                                       int64_t row_out) {                                     \
    type lines[MPG_TURNED][MPG_TURNED], turned[MPG_TURNED];                                   \
    for (int c = 0; c < MPG_TURNED; c++) memcpy(lines[c], in + c * in_step, sizeof lines[c]); \
    for (int r = 0; r < MPG_TURNED; r++) {                                                    \
      for (int c = 0; c < MPG_TURNED; c++) turned[c] = lines[c][r];                           \
      memcpy(out + r * row_out, turned, sizeof turned);                                       \
    }                                                                                         \
  }
#if !defined(__clang__)
/* Transposes in registers by perfect shuffles: each of log2(n) stages moves element b of row a to
 * the index whose bits are those of (a, b) rotated by one. */
#define TURN_BY_SHUFFLES(type, name, T, n, stages, low, high)                                   \
  typedef T name##_lanes __attribute__((vector_size((n) * sizeof(T))));                         \
  __attribute__((always_inline)) static inline void name##_part(                                \
      const char *in, char *out, int64_t in_step, int64_t row_out) {                            \
    name##_lanes a[n], b[n];                                                                    \
    MPG_UNROLL(16) for (int c = 0; c < (n); c++) memcpy(&a[c], in + c * in_step, sizeof a[c]);  \
    MPG_UNROLL(4) for (int stage = 0; stage < (stages); stage++) {                              \
      MPG_UNROLL(8) for (int k = 0; k < (n) / 2; k++) {                                         \
        b[2 * k] = __builtin_shuffle(a[k], a[k + (n) / 2], (name##_lanes)low);                  \
        b[2 * k + 1] = __builtin_shuffle(a[k], a[k + (n) / 2], (name##_lanes)high);             \
      }                                                                                         \
      MPG_UNROLL(16) for (int c = 0; c < (n); c++) a[c] = b[c];                                 \
    }                                                                                           \
    MPG_UNROLL(16) for (int c = 0; c < (n); c++) memcpy(out + c * row_out, &a[c], sizeof a[c]); \
  }                                                                                             \
  MPG_TURN_INLINE void mpg_turn_##type(const char *in, char *out, int64_t in_step,              \
                                       int64_t row_out) {                                       \
    for (int r = 0; r < MPG_TURNED; r += (n))                                                   \
      for (int c = 0; c < MPG_TURNED; c += (n))                                                 \
        name##_part(in + c * in_step + r * (int64_t)sizeof(T),                                  \
                    out + r * row_out + c * (int64_t)sizeof(T), in_step, row_out);              \
  }
#define LOW_16 {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23}
#define HIGH_16 {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31}
#define LOW_8 {0, 8, 1, 9, 2, 10, 3, 11}
#define HIGH_8 {4, 12, 5, 13, 6, 14, 7, 15}
#define LOW_4 {0, 4, 1, 5}
#define HIGH_4 {2, 6, 3, 7}
#define LOW_2 {0, 2}
#define HIGH_2 {1, 3}
#if defined(__AVX512BW__) && defined(__AVX512VL__)
TURN_BY_SHUFFLES(item2, words, uint16_t, 16, 4, LOW_16, HIGH_16)
TURN_BY_SHUFFLES(item4, floats, uint32_t, 16, 4, LOW_16, HIGH_16)
TURN_BY_SHUFFLES(item8, doubles, uint64_t, 8, 3, LOW_8, HIGH_8)
#else /* SSE: one instruction interleaves the halves of two 16-byte vectors */
TURN_BY_SHUFFLES(item2, words, uint16_t, 8, 3, LOW_8, HIGH_8)
TURN_BY_SHUFFLES(item4, floats, uint32_t, 4, 2, LOW_4, HIGH_4)
TURN_BY_SHUFFLES(item8, doubles, uint64_t, 2, 1, LOW_2, HIGH_2)
#endif
#else
TURN_BY_BUFFER(item2)
TURN_BY_BUFFER(item4)
TURN_BY_BUFFER(item8)
#endif
TURN_BY_BUFFER(item1)
TURN_BY_BUFFER(item16)

#undef TURN_BY_BUFFER
#undef TURN_BY_SHUFFLES
#undef LOW_16
#undef HIGH_16
#undef LOW_8
#undef HIGH_8
#undef LOW_4
#undef HIGH_4
#undef LOW_2
#undef HIGH_2

#endif
