/* Asynchronous copies from global to shared memory, 16 bytes per thread, on compute capability 8.0
 * or newer. The host emulation (tests/hostcuda) copies immediately. Include in .cu files only. */
#ifndef KERNELS_CUDA_ASYNC_COPY_H
#define KERNELS_CUDA_ASYNC_COPY_H

#include "kernels/cuda/cuda.h"

/* Starts a copy of 16 bytes between 16-byte aligned addresses. If `there` is false, writes zeros
 * and does not read `from`. */
__device__ __forceinline__ void mpg_copy_async(void *to, const void *from, bool there) {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0)
               : "memory");
#else
  if (there)
    memcpy(to, from, 16);
  else
    memset(to, 0, 16);
#endif
}
/* Waits for all copies that this thread has started. Other threads of the block see the data after
 * the next __syncthreads(). */
__device__ __forceinline__ void mpg_copies_wait() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}

#endif
