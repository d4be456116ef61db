/* Random keys in device memory. They are needed by ops that repeat a draw in the backward pass, and
 * by captured work, whose kernel arguments are fixed although its keys change with each run.
 *
 * Keys are passed as kernel arguments, which CUDA copies at launch. A copy from host memory would
 * need pinned memory that stays valid until the GPU has read it. */
#include "kernels/cuda/cuda.h"

namespace {

struct some_keys {
  mpg_random_key list[MPG_CAPTURE_KEYS];
};
__global__ void write_keys_kernel(some_keys keys, int count, mpg_random_key *to) {
  if ((int)threadIdx.x < count) to[threadIdx.x] = keys.list[threadIdx.x];
}

__global__ void write_key_kernel(mpg_cuda_key from, uint64_t *out) {
  mpg_random_key key = from.read();
  if (threadIdx.x) return;
  out[0] = key.seed, out[1] = key.call, out[2] = key.position, out[3] = key.run,
  out[4] = key.stride;
}

} // namespace

extern "C" mpg_status mpg_cuda_write_keys(cudaStream_t stream, const mpg_random_key *keys,
                                          int count, mpg_random_key *to) {
  some_keys all = {};
  for (int i = 0; i < count; i++) all.list[i] = keys[i];
  mpg_kernel_call call = {};
  call.stream = stream;
  return mpg_cuda_launch(&call, write_keys_kernel, 1, MPG_CAPTURE_KEYS, 0, all, count, to);
}

mpg_status mpg_cuda_write_key(const mpg_kernel_call *call, uint64_t *out) {
  return mpg_cuda_launch(call, write_key_kernel, 1, 32, 0, mpg_cuda_key_of(call), out);
}
