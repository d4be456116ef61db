/* Writes ticks with a kernel, for GPUs that do not support cuStreamWriteValue64. */
#include "kernels/cuda/cuda.h"

namespace {

__global__ void write_tick_kernel(uint64_t *to, uint64_t tick) {
  __threadfence_system(); /* earlier writes must be visible to the host before the tick */
  *(volatile uint64_t *)to = tick;
}

} // namespace

extern "C" mpg_status mpg_cuda_write_tick(cudaStream_t stream, uint64_t *to, uint64_t tick) {
  mpg_kernel_call call = {};
  call.stream = stream;
  return mpg_cuda_launch(&call, write_tick_kernel, 1, 1, 0, to, tick);
}
