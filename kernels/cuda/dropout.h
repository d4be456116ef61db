/* Dropout masks that are bit-identical to those of kernels/cpu/math/random.c. Used by Dropout's
 * kernels and by fused groups, whose code NVRTC compiles (generated.h). */
#ifndef KERNELS_CUDA_DROPOUT_H
#define KERNELS_CUDA_DROPOUT_H

#include "kernels/cuda/random_key.h"

/* Returns the factor that kept elements are multiplied by. Elements are dropped with probability
 * p. */
MPG_HOST_DEVICE double mpg_dropout_scale(double p) { return 1 - p > 0 ? 1 / (1 - p) : 0; }
/* Returns the threshold of mpg_is_kept. An element is kept if the upper 24 bits of its random word
 * are below the threshold. */
MPG_HOST_DEVICE uint32_t mpg_dropout_threshold(double p) {
  return (uint32_t)((1 - p) * 0x1p24 + 0.5);
}
__device__ __forceinline__ bool mpg_is_kept(uint32_t word, uint32_t threshold) {
  return (word >> 8) < threshold;
}

/* Draws a mask element by element. Caches the last Philox block, because four adjacent elements
 * share a block. */
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
