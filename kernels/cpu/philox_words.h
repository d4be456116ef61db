/* Computes many words of a Philox random stream (base/philox.h) at once. These functions are
 * stateless and may be called from any thread. */
#ifndef KERNELS_CPU_PHILOX_WORDS_H
#define KERNELS_CPU_PHILOX_WORDS_H

#include "base/philox.h"

#define MPG_PHILOX_ROUND(k)                                                    \
  do {                                                                         \
    uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2; \
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ (k0 + k * 0x9E3779B9u);                   \
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ (k1 + k * 0xBB67AE85u);                   \
    c1 = (uint32_t)p1;                                                         \
    c3 = (uint32_t)p0;                                                         \
  } while (0)

/* Computes words [first, first + count) of a call's stream and returns their address in `buffer`.
 * The buffer needs room for count + 8 words, since whole blocks of 4 words are computed. The rounds
 * of mpg_philox are inlined, so that the loop over blocks is vectorized. */
static inline const uint32_t *mpg_philox_words(mpg_random_key key, uint64_t first, int64_t count,
                                               uint32_t *buffer) {
  uint64_t block = first >> 2;
  int64_t blocks = (int64_t)(((first + (uint64_t)count + 3) >> 2) - block);
  uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32), call0 = (uint32_t)key.call,
           call1 = (uint32_t)(key.call >> 32);
  for (int64_t i = 0; i < blocks; i++) {
    uint32_t c0 = (uint32_t)(block + (uint64_t)i), c1 = (uint32_t)((block + (uint64_t)i) >> 32),
             c2 = call0, c3 = call1;
    MPG_PHILOX_ROUND(0u);
    MPG_PHILOX_ROUND(1u);
    MPG_PHILOX_ROUND(2u);
    MPG_PHILOX_ROUND(3u);
    MPG_PHILOX_ROUND(4u);
    MPG_PHILOX_ROUND(5u);
    MPG_PHILOX_ROUND(6u);
    MPG_PHILOX_ROUND(7u);
    MPG_PHILOX_ROUND(8u);
    MPG_PHILOX_ROUND(9u);
    buffer[4 * i] = c0;
    buffer[4 * i + 1] = c1;
    buffer[4 * i + 2] = c2;
    buffer[4 * i + 3] = c3;
  }
  return buffer + (first & 3);
}

#endif
