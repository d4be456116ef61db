/* Random keys as kernel arguments. Code that NVRTC compiles (generated.h) includes this file. */
#ifndef KERNELS_CUDA_RANDOM_KEY_H
#define KERNELS_CUDA_RANDOM_KEY_H

#include "base/philox.h"

/* Random key of a call. The kernel arguments of captured work are fixed, but each run needs a new
 * key, so captured kernels read the key from device memory (`at`). */
struct mpg_cuda_key {
  mpg_random_key given;
  const mpg_random_key *at; /* in device memory; NULL to use `given` */
  __device__ __forceinline__ mpg_random_key read() const { return at ? *at : given; }
};

/* Reads a key stored by mpg_cuda_write_key. */
__device__ __forceinline__ mpg_random_key mpg_cuda_read_key(const uint64_t *words) {
  mpg_random_key key = {};
  key.seed = words[0], key.call = words[1], key.position = words[2], key.run = words[3],
  key.stride = words[4];
  return key;
}

#endif
