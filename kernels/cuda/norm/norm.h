/* Gradients of gamma and beta, shared by LayerNorm's and rms_norm's kernels and fused groups. Each
 * block sums `each` rows and stores partial sums of both gradients, [block][2][n]. A second kernel
 * adds the partial sums in a fixed order. */
#ifndef KERNELS_CUDA_LAYERS_NORM_H
#define KERNELS_CUDA_LAYERS_NORM_H

#include "op/kernel.h"

/* Returns `each`, a multiple of 32 that results in at most 512 blocks, about as many as a GPU runs
 * at once. */
static inline int mpg_layer_norm_rows(int64_t rows) {
  return (int)(((rows + 511) / 512 + 31) / 32 * 32);
}

/* Adds the partial sums of `blocks` blocks, in float, or double if the dtype is float64. dgamma and
 * dbeta have n elements of the dtype, a float type; each may be NULL. */
mpg_status mpg_cuda_add_shares(const mpg_kernel_call *call, const void *shares, int64_t blocks,
                               int64_t n, mpg_dtype dtype, void *dgamma, void *dbeta);

#endif
