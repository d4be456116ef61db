/* Philox4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as
 * 1, 2, 3" (SC 2011).
 *
 * A draw is a pure function of (seed, call, position). The user sets the seed, `call` counts random
 * ops in program order, and `position` is the element's index in the whole output, even if a device
 * computes only a part (shard) of it. The generator has no state, so the numbers do not depend on
 * the thread, device or order of draws.
 */
#ifndef MPG_BASE_PHILOX_H
#define MPG_BASE_PHILOX_H

#include <stdint.h>

#include "base/host_device.h"

typedef struct mpg_random_key {
  uint64_t seed;
  uint64_t call;
  uint64_t position; /* position of the shard's first element in the whole output */
  /* A shard along an inner axis is not contiguous in the whole output. It then consists of runs of
   * `run` elements, whose starts are `stride` apart. `run` is 0 if the shard is contiguous. */
  uint64_t run, stride;
  /* If the shard is computed in tiles: index of the tile's first element in the shard. */
  uint64_t first;
} mpg_random_key;

/* The part of a draw that a shard gets, as in mpg_random_key. It is the whole if `stride` is 0. */
typedef struct mpg_random_part {
  uint64_t position, run, stride;
} mpg_random_part;
/* Restricts a key for the whole draw to the part. */
static inline void mpg_random_take(mpg_random_key *key, const mpg_random_part *part) {
  if (!part->stride) return;
  key->position = part->position;
  key->run = part->run;
  key->stride = part->stride;
}

/* Returns the position of the shard's element `index` in the whole output. */
MPG_HOST_DEVICE uint64_t mpg_random_position(const mpg_random_key *key, uint64_t index) {
  index += key->first;
  return key->position + (key->run ? index / key->run * key->stride + index % key->run : index);
}

typedef struct mpg_philox_block {
  uint32_t value[4];
} mpg_philox_block;

/* Returns the four 32-bit words of block `counter`. Elements 4c..4c+3 of a stream of words use
 * block c. */
MPG_HOST_DEVICE mpg_philox_block mpg_philox(uint64_t seed, uint64_t call, uint64_t counter) {
  uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = (uint32_t)call,
           c3 = (uint32_t)(call >> 32);
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)p1;
    c3 = (uint32_t)p0;
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  mpg_philox_block block = {{c0, c1, c2, c3}};
  return block;
}

/* Returns a uniform number in [0, 1) with 24 random bits, which float represents exactly. */
MPG_HOST_DEVICE float mpg_philox_uniform(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }

/* Returns a uniform number in [0, 1) with 53 random bits. */
MPG_HOST_DEVICE double mpg_philox_uniform_double(uint32_t high, uint32_t low) {
  return (double)((((uint64_t)high << 32) | low) >> 11) * 0x1p-53;
}

#endif
