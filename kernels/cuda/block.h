/* What the threads of a block do together; also for code that NVRTC compiles (generated.h). */
#ifndef KERNELS_CUDA_BLOCK_H
#define KERNELS_CUDA_BLOCK_H

#include "kernels/cuda/elements.h"

enum { MPG_CUDA_THREADS = 256 };

/* A block's dynamic shared memory. */
template <class T>
__device__ __forceinline__ T *mpg_cuda_shared() {
#ifdef __CUDACC__
  extern __shared__ __align__(16) unsigned char mpg_cuda_shared_bytes[];
  return (T *)mpg_cuda_shared_bytes;
#else
  return (T *)hostcuda_shared();
#endif
}

/* --- Sums over warps and blocks --------------------------------------------------------------- */
/* In one fixed order, so that bits depend on the shape alone. All threads of the block take part
 * and get the result. */
template <class T, class F>
__device__ __forceinline__ T mpg_warp_reduce(T value, F combine) {
  for (int lanes = 16; lanes; lanes >>= 1)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  return value;
}
/* Up to 1024 threads, a multiple of 32. `neutral` changes nothing. */
template <class T, class F>
__device__ T mpg_block_reduce(T value, T neutral, F combine) {
  __shared__ T parts[32];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
  value = mpg_warp_reduce(value, combine);
  if (lane == 0) parts[warp] = value;
  __syncthreads();
  value = mpg_warp_reduce(lane < warps ? parts[lane] : neutral, combine);
  __syncthreads(); /* `parts` may be used again */
  return value;
}
struct mpg_plus {
  template <class T>
  MPG_MEMBER T operator()(T a, T b) const {
    return a + b;
  }
};
struct mpg_larger { /* NaN if one is */
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

struct mpg_larger_number { /* NaN loses */
  MPG_MEMBER float operator()(float a, float b) const { return fmaxf(a, b); }
};

/* --- Rows ------------------------------------------------------------------------------------- */
/* Rows shared by LANES threads, MPG_CUDA_THREADS of which are a block: each has PACKS times EACH_
 * neighbours. Which element is whose depends on LANES and EACH_ alone. */
template <int LANES, int PACKS, int EACH_>
struct mpg_lanes {
  enum {
    EACH = EACH_,
    SIZE = PACKS * EACH, /* of a thread */
    CHUNK = LANES * SIZE,
    THREADS = LANES,                 /* of a row */
    ROWS = MPG_CUDA_THREADS / LANES, /* of a block */
    COLUMNS = LANES * EACH           /* of a row that lie side by side, one pack a thread */
  };

  static __device__ __forceinline__ int me() { return threadIdx.x % LANES; }
  static __device__ __forceinline__ int row() { return threadIdx.x / LANES; }
  /* Where a thread's elements p * EACH, ... of a chunk are. */
  static __device__ __forceinline__ int at(int p) { return (p * LANES + me()) * EACH; }

  /* Of all threads of a row, which get the result. All threads of a block take part. */
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
  /* Of all elements of a row, in the order of reductions (math/reduce.cu). `neutral` stands behind
   * its end. */
  template <class F>
  static __device__ __forceinline__ float fold(const float (&values)[SIZE], float neutral,
                                               F combine) {
    float result = neutral;
#pragma unroll
    for (int k = 0; k < SIZE; k++) result = combine(result, values[k]);
    return reduce(result, neutral, combine);
  }
  /* What the threads of a block have for the first n columns of rows, added in the order of rows.
   * All of them take part. Dynamic shared memory: ROWS * n floats where there are several. */
  static __device__ __forceinline__ void put_columns(const float (&values)[SIZE], int n,
                                                     float *to) {
    float *all = mpg_cuda_shared<float>();
    if (ROWS > 1) __syncthreads(); /* what was there has been read */
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
