/* Strided copies and fills (kernels/common/move.h) on GPUs. All functions queue their work on the
 * call's stream and return without waiting. */
#ifndef KERNELS_CUDA_ARRAY_MOVE_H
#define KERNELS_CUDA_ARRAY_MOVE_H

#include "kernels/common/move.h"

#ifdef __cplusplus
extern "C" {
#endif

mpg_status mpg_cuda_move(const mpg_kernel_call *call, const mpg_move *move, const void *in,
                         void *out, size_t item);
/* Stores *element, which is in host memory, at all target locations of a move. The move's input
 * strides are ignored. */
mpg_status mpg_cuda_spread(const mpg_kernel_call *call, const mpg_move *move, const void *element,
                           void *out, size_t item);
/* Writes `count` elements of `item` bytes (1, 2, 4 or 8), each a copy of *element in host
 * memory. */
mpg_status mpg_cuda_fill(const mpg_kernel_call *call, void *out, int64_t count, size_t item,
                         const void *element);
/* Converts `value` to the dtype and returns its bytes in the low bytes of the result. */
uint64_t mpg_cuda_element(mpg_dtype dtype, double value);
/* Copies up to MPG_CUDA_FEW numbers from `values` in host memory, which the caller may free when
 * the call returns. */
enum { MPG_CUDA_FEW = MPG_MAX_NDIM };
mpg_status mpg_cuda_write(const mpg_kernel_call *call, const int64_t *values, int count,
                          int64_t *out);

#ifdef __cplusplus
}
#endif

#endif
