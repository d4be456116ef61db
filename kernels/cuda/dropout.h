/* Dropout masks, bit for bit those of kernels/cpu/math/random.c. For Dropout's kernels and for
 * fused groups; also for code that NVRTC compiles (generated.h). */
#ifndef KERNELS_CUDA_DROPOUT_H
#define KERNELS_CUDA_DROPOUT_H

#include "kernels/cuda/random_key.h"

/* Returns the factor of kept elements; p is the fraction that is dropped. */
MPG_HOST_DEVICE double mpg_dropout_scale(double p) { return 1 - p > 0 ? 1 / (1 - p) : 0; }
/* Returns the threshold: an element is kept if the upper 24 bits of its word are below it. */
MPG_HOST_DEVICE uint32_t mpg_dropout_threshold(double p) {
  return (uint32_t)((1 - p) * 0x1p24 + 0.5);
}
__device__ __forceinline__ bool mpg_is_kept(uint32_t word, uint32_t threshold) {
  return (word >> 8) < threshold;
}

/* Draws element by element; adjacent elements share a Philox block. */
struct mpg_dropout_draw {
  mpg_random_key key;
  mpg_philox_block words;
  uint64_t block;
  bool have;

  __device__ __forceinline__ explicit mpg_dropout_draw(const mpg_random_key &key_)
      : key(key_), words(), block(0), have(false) {}
  __device__ __forceinline__ bool keeps(uint64_t index, uint32_t threshold) {
    uint64_t position = mpg_random_position(&key, index);
    if (!have || position >> 2 != block) {
      block = position >> 2;
      words = mpg_philox(key.seed, key.call, block);
      have = true;
    }
    uint32_t low = position & 1 ? words.value[1] : words.value[0],
             high = position & 1 ? words.value[3] : words.value[2];
    return mpg_is_kept(position & 2 ? high : low, threshold);
  }
};

#endif
