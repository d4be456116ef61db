/* Moves (kernels/common/move.h) on GPUs: they launch on the call's stream and return. */
#ifndef KERNELS_CUDA_ARRAY_MOVE_H
#define KERNELS_CUDA_ARRAY_MOVE_H

#include "kernels/common/move.h"

#ifdef __cplusplus
extern "C" {
#endif

mpg_status mpg_cuda_move(const mpg_kernel_call *call, const mpg_move *move, const void *in,
                         void *out, size_t item);
/* A move whose input strides are 0, of one element that lies on the host. */
mpg_status mpg_cuda_spread(const mpg_kernel_call *call, const mpg_move *move, const void *element,
                           void *out, size_t item);
/* `count` elements of `item` bytes (1, 2, 4 or 8), each a copy of *element, which lies on the host.
 */
mpg_status mpg_cuda_fill(const mpg_kernel_call *call, void *out, int64_t count, size_t item,
                         const void *element);
/* `value` as an element of that dtype. */
uint64_t mpg_cuda_element(mpg_dtype dtype, double value);
/* Up to MPG_CUDA_FEW numbers from the host. */
enum { MPG_CUDA_FEW = MPG_MAX_NDIM };
mpg_status mpg_cuda_write(const mpg_kernel_call *call, const int64_t *values, int count,
                          int64_t *out);

#ifdef __cplusplus
}
#endif

#endif
