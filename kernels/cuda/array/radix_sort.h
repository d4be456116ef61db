/* Stable sorting of positions by unsigned keys on a GPU: LSD radix sort. Queues its work on the
 * call's stream. Include in .cu files only.
 */
#ifndef KERNELS_CUDA_ARRAY_RADIX_SORT_H
#define KERNELS_CUDA_ARRAY_RADIX_SORT_H

#include "kernels/cuda/cuda.h"

/* Returns the scratch bytes for sorting `count` keys, excluding the arrays; a multiple of 64. */
size_t mpg_cuda_sort_bytes(int64_t count);
/* Sorts keys[0], with its positions values[0], by ascending order of the lowest `bits` bits.
 * keys[1] and values[1] have the same size and are overwritten. *side receives the side with the
 * result. `count` is less than 2^31. */
mpg_status mpg_cuda_sort(const mpg_kernel_call *call, uint64_t *const keys[2],
                         int32_t *const values[2], int64_t count, int bits, void *scratch,
                         int *side);

/* Returns a key with the order of numbers. NaN is the largest; -0 equals 0. */
__device__ __forceinline__ uint64_t mpg_cuda_sort_key(float value) {
  uint32_t bits = __float_as_uint(value + 0.0f);
  return value != value ? UINT32_MAX : bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ uint64_t mpg_cuda_sort_key(double value) {
  uint64_t bits = (uint64_t)__double_as_longlong(value + 0.0);
  return value != value ? UINT64_MAX : bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

/* Rows of n keys, sorted together, each row separately and stably. The row number is placed above
 * 32-bit keys; longer keys are sorted first, and then by row. */
struct mpg_cuda_rows {
  int64_t rows, n;
  bool wide; /* 64-bit keys */
  uint64_t *keys[2];
  int32_t *places[2];
  void *spare;
  __device__ __forceinline__ void put(int64_t place, uint64_t key) const {
    keys[0][place] = wide ? key : (uint64_t)(place / n) << 32 | (uint32_t)key;
    places[0][place] = (int32_t)place;
  }
};

/* Allocates scratch memory for the rows, and for `more` bytes at *memory. The caller's kernel then
 * stores the keys. */
mpg_status mpg_cuda_rows_new(const mpg_kernel_call *call, int64_t rows, int64_t n, bool wide,
                             size_t more, mpg_cuda_rows *out, void **memory);
/* Sorts the rows. *order receives the permutation of all keys. */
mpg_status mpg_cuda_rows_sort(const mpg_kernel_call *call, const mpg_cuda_rows *rows,
                              int32_t **order);

#endif
