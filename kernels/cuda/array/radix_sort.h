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

#endif
