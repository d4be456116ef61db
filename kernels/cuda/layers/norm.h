/* LayerNorm's gradients of gamma and beta, for its kernel and for fused groups. Blocks have `each`
 * rows, and add up their shares of both, [block][2][n], which are then added in one order. */
#ifndef KERNELS_CUDA_LAYERS_NORM_H
#define KERNELS_CUDA_LAYERS_NORM_H

#include "op/kernel.h"

/* `each`: a multiple of 32, such that there are about as many blocks as a card takes. */
static inline int mpg_layer_norm_rows(int64_t rows) {
  return (int)(((rows + 511) / 512 + 31) / 32 * 32);
}

/* Adds the shares of so many blocks. dgamma, dbeta: n elements of the dtype, a float32 or a half;
 * NULL: not wanted. */
mpg_status mpg_cuda_add_shares(const mpg_kernel_call *call, const float *shares, int64_t blocks,
                               int64_t n, mpg_dtype dtype, void *dgamma, void *dbeta);

#endif
