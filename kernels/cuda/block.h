/* Cooperation between the threads of a block. Code that NVRTC compiles (generated.h) includes this
 * file. */
#ifndef KERNELS_CUDA_BLOCK_H
#define KERNELS_CUDA_BLOCK_H

#include "kernels/cuda/elements.h"

enum { MPG_CUDA_THREADS = 256 };

/* Returns the block's dynamic shared memory. */
template <class T>
__device__ __forceinline__ T *mpg_cuda_shared() {
#ifdef __CUDACC__
  extern __shared__ __align__(16) unsigned char mpg_cuda_shared_bytes[];
  return (T *)mpg_cuda_shared_bytes;
#else
  return (T *)hostcuda_shared();
#endif
}

/* --- Reductions over warps and blocks --------------------------------------------------------- */
/* Reduces over a warp in a fixed order, so that results are reproducible. All threads of the warp
 * must call it, and all get the result. */
template <class T, class F>
__device__ __forceinline__ T mpg_warp_reduce(T value, F combine) {
  for (int lanes = 16; lanes; lanes >>= 1)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  return value;
}
/* Reduces over a block of up to 1024 threads (a multiple of 32). All threads must call it, and all
 * get the result. `neutral` is the identity of `combine`. */
template <class T, class F>
__device__ T mpg_block_reduce(T value, T neutral, F combine) {
  __shared__ T parts[32];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
  value = mpg_warp_reduce(value, combine);
  if (lane == 0) parts[warp] = value;
  __syncthreads();
  value = mpg_warp_reduce(lane < warps ? parts[lane] : neutral, combine);
  __syncthreads(); /* the next call overwrites `parts` */
  return value;
}
struct mpg_plus {
  template <class T>
  MPG_MEMBER T operator()(T a, T b) const {
    return a + b;
  }
};
struct mpg_larger { /* propagates NaN */
  template <class T>
  MPG_MEMBER T operator()(T a, T b) const {
    return a != a ? a : a > b ? a : b;
  }
};
struct mpg_smaller {
  template <class T>
  MPG_MEMBER T operator()(T a, T b) const {
    return a != a ? a : a < b ? a : b;
  }
};

struct mpg_larger_number { /* ignores NaN */
  MPG_MEMBER float operator()(float a, float b) const { return fmaxf(a, b); }
};

/* --- Rows ------------------------------------------------------------------------------------- */
/* Mapping of a row's elements to the LANES threads that share the row. Each thread holds PACKS
 * packs of EACH_ adjacent elements. A block of MPG_CUDA_THREADS threads processes ROWS rows. Which
 * thread holds an element depends only on LANES and EACH_, so sums are added in the same order for
 * every PACKS. */
template <int LANES, int PACKS, int EACH_>
struct mpg_lanes {
  enum {
    EACH = EACH_,
    SIZE = PACKS * EACH, /* elements per thread */
    CHUNK = LANES * SIZE,
    THREADS = LANES,                 /* threads per row */
    ROWS = MPG_CUDA_THREADS / LANES, /* rows per block */
    COLUMNS = LANES * EACH           /* elements that a row's threads hold if PACKS is 1 */
  };

  static __device__ __forceinline__ int me() { return threadIdx.x % LANES; }
  static __device__ __forceinline__ int row() { return threadIdx.x / LANES; }
  /* Returns the index of the first element of the thread's pack p in the chunk. */
  static __device__ __forceinline__ int at(int p) { return (p * LANES + me()) * EACH; }

  /* Reduces over the threads of a row and returns the result to each of them. All threads of the
   * block must call it. */
  template <class F>
  static __device__ __forceinline__ float reduce(float value, float neutral, F combine) {
    if constexpr (LANES == MPG_CUDA_THREADS) {
      return mpg_block_reduce(value, neutral, combine);
    } else {
#pragma unroll
      for (int lanes = LANES / 2; lanes; lanes /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
      return value;
    }
  }
  static __device__ __forceinline__ float sum(float value) {
    return reduce(value, 0.0f, mpg_plus());
  }
  /* Reduces a row's elements. Fused groups and math/reduce.cu both use this function, so their
   * results are bit-identical. The caller pads the end of the row with `neutral`. */
  template <class F>
  static __device__ __forceinline__ float fold(const float (&values)[SIZE], float neutral,
                                               F combine) {
    float result = neutral;
#pragma unroll
    for (int k = 0; k < SIZE; k++) result = combine(result, values[k]);
    return reduce(result, neutral, combine);
  }
  /* Sums each column over the block's rows, in row order, and stores the sums in to[0..n). All
   * threads must call it. Needs ROWS * n floats of dynamic shared memory if ROWS > 1. */
  static __device__ __forceinline__ void put_columns(const float (&values)[SIZE], int n,
                                                     float *to) {
    float *all = mpg_cuda_shared<float>();
    if (ROWS > 1) __syncthreads(); /* other threads may still be reading the previous contents */
#pragma unroll
    for (int k = 0; k < SIZE; k++) {
      int column = at(k / EACH) + k % EACH;
      if (column < n) (ROWS > 1 ? all + row() * n : to)[column] = values[k];
    }
    if (ROWS == 1) return;
    __syncthreads();
    for (int column = threadIdx.x; column < n; column += MPG_CUDA_THREADS) {
      float total = 0;
      for (int r = 0; r < ROWS; r++) total += all[r * n + column];
      to[column] = total;
    }
  }
};

#endif
