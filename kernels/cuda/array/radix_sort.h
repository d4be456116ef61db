/* Stable sorting of positions by unsigned keys, on a GPU: radix sort, least significant digits
 * first. Queues its work on the call's stream. Include in .cu files only.
 */
#ifndef KERNELS_CUDA_ARRAY_RADIX_SORT_H
#define KERNELS_CUDA_ARRAY_RADIX_SORT_H

#include "kernels/cuda/cuda.h"

/* Bytes of scratch memory that sorting `count` keys takes, beside the arrays themselves; a multiple
 * of 64. */
size_t mpg_cuda_sort_bytes(int64_t count);
/* Brings keys[0], with its positions values[0], into ascending order of the lowest `bits` bits.
 * keys[1] and values[1] are of the same size and are written over; *side becomes the side on which
 * the result lies. `count` is less than 2^31. */
mpg_status mpg_cuda_sort(const mpg_kernel_call *call, uint64_t *const keys[2],
                         int32_t *const values[2], int64_t count, int bits, void *scratch,
                         int *side);

/* Keys in the order of numbers. NaN is the largest; -0 is 0. */
__device__ __forceinline__ uint64_t mpg_cuda_sort_key(float value) {
  uint32_t bits = __float_as_uint(value + 0.0f);
  return value != value ? UINT32_MAX : bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ uint64_t mpg_cuda_sort_key(double value) {
  uint64_t bits = (uint64_t)__double_as_longlong(value + 0.0);
  return value != value ? UINT64_MAX : bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

/* Rows of n keys, sorted all at once, each row by itself, stably. The row is put above keys of 32
 * bits; longer ones are sorted first, and then by row. */
struct mpg_cuda_rows {
  int64_t rows, n;
  bool wide; /* keys of 64 bits */
  uint64_t *keys[2];
  int32_t *places[2];
  void *spare;
  __device__ __forceinline__ void put(int64_t place, uint64_t key) const {
    keys[0][place] = wide ? key : (uint64_t)(place / n) << 32 | (uint32_t)key;
    places[0][place] = (int32_t)place;
  }
};

/* Takes scratch memory for the rows, and for `more` bytes at *memory. A kernel of the caller's then
 * puts the keys. */
mpg_status mpg_cuda_rows_new(const mpg_kernel_call *call, int64_t rows, int64_t n, bool wide,
                             size_t more, mpg_cuda_rows *out, void **memory);
/* *order: which of all keys comes where. */
mpg_status mpg_cuda_rows_sort(const mpg_kernel_call *call, const mpg_cuda_rows *rows,
                              int32_t **order);

#endif
