/* LayerNorm's gradients of gamma and beta, for its kernel and for fused groups. Blocks of `each`
 * rows write partial sums of both, [block][2][n], which are then added in a fixed order. */
#ifndef KERNELS_CUDA_LAYERS_NORM_H
#define KERNELS_CUDA_LAYERS_NORM_H

#include "op/kernel.h"

/* Returns `each`, a multiple of 32 that gives about as many blocks as a card runs at once. */
static inline int mpg_layer_norm_rows(int64_t rows) {
  return (int)(((rows + 511) / 512 + 31) / 32 * 32);
}

/* Adds the partial sums of `blocks` blocks. dgamma and dbeta have n elements of the dtype, float32
 * or a half; NULL if not requested. */
mpg_status mpg_cuda_add_shares(const mpg_kernel_call *call, const float *shares, int64_t blocks,
                               int64_t n, mpg_dtype dtype, void *dgamma, void *dbeta);

#endif
