/* Stable sort of values, such as positions, by unsigned keys (LSD radix sort). All work is queued
 * on the call's stream. Include in .cu files only.
 */
#ifndef KERNELS_CUDA_ARRAY_RADIX_SORT_H
#define KERNELS_CUDA_ARRAY_RADIX_SORT_H

#include "kernels/cuda/cuda.h"

/* Returns the size of mpg_cuda_sort's `scratch` for `count` keys, a multiple of 64 bytes. */
size_t mpg_cuda_sort_bytes(int64_t count);
/* Sorts keys[0], and values[0] along with it, in ascending order of the keys' lowest `bits` bits.
 * Passes alternate between buffers 0 and 1 of keys and values, and overwrite both. *side receives
 * the index (0 or 1) of the buffers that hold the result. `count` must be less than 2^31. */
mpg_status mpg_cuda_sort(const mpg_kernel_call *call, uint64_t *const keys[2],
                         int32_t *const values[2], int64_t count, int bits, void *scratch,
                         int *side);

/* Returns an unsigned key with the same order as the numbers. NaN has the largest key, and -0 and 0
 * have the same key. */
__device__ __forceinline__ uint64_t mpg_cuda_sort_key(float value) {
  uint32_t bits = __float_as_uint(value + 0.0f);
  return value != value ? UINT32_MAX : bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ uint64_t mpg_cuda_sort_key(double value) {
  uint64_t bits = (uint64_t)__double_as_longlong(value + 0.0);
  return value != value ? UINT64_MAX : bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

/* Rows of n keys. All rows are sorted at once, but each row is sorted separately and stably. For
 * 32-bit keys, the row number is in the upper 32 bits of the sort key. For 64-bit keys, a second
 * sort by row number follows. */
struct mpg_cuda_rows {
  int64_t rows, n;
  bool wide; /* true for 64-bit keys */
  uint64_t *keys[2];
  int32_t *places[2];
  void *spare;
  __device__ __forceinline__ void put(int64_t place, uint64_t key) const {
    keys[0][place] = wide ? key : (uint64_t)(place / n) << 32 | (uint32_t)key;
    places[0][place] = (int32_t)place;
  }
};

/* Allocates scratch memory for the rows, and `more` bytes for the caller. *memory receives the
 * address of the caller's bytes. The caller's kernel must then store all keys with `put`. */
mpg_status mpg_cuda_rows_new(const mpg_kernel_call *call, int64_t rows, int64_t n, bool wide,
                             size_t more, mpg_cuda_rows *out, void **memory);
/* Sorts the rows. (*order)[row * n + rank] is the index, among all keys, of the key with that rank
 * in its row. */
mpg_status mpg_cuda_rows_sort(const mpg_kernel_call *call, const mpg_cuda_rows *rows,
                              int32_t **order);

#endif
