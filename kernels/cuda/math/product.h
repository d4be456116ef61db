/* Matrix products with cuBLASLt. */
#ifndef KERNELS_CUDA_MATH_PRODUCT_H
#define KERNELS_CUDA_MATH_PRODUCT_H

#include "op/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Batch of products c[i] = alpha op(a[i]) op(b[i]) + beta c0[i] + bias, for i < count. Matrices are
 * row-major: op(a) is (m, k), op(b) is (k, n), c and c0 are (m, n). The bias (n) is added to every
 * row. lda, ldb and ldc are row strides, and the steps are strides between matrices, in elements.
 * Sizes of 0 are valid. */
typedef struct mpg_cuda_product {
  mpg_dtype dtype; /* dtype of all arrays, a floating-point type */
  bool transpose_a, transpose_b;
  bool wide; /* c and c0 are float32 although `dtype` is a 16-bit float; there is no bias */
  int64_t m, n, k, lda, ldb, ldc;
  int64_t count, a_step, b_step, c_step;
  double alpha, beta;
  /* c0 has c's layout and may be c. It is NULL if beta is 0. If there is a bias, beta is 0 and
   * count is 1. */
  const void *a, *b, *c0, *bias;
  void *c;
} mpg_cuda_product;

/* Queues a product. Uses the scratch slot MPG_SCRATCH_LIBRARY, so the arrays must not be in that
 * slot. 16-bit floats are summed in float32. The algorithm depends only on sizes, dtype and GPU.
 * Unaligned arrays are copied, so that alignment does not affect results. */
mpg_status mpg_cuda_multiply(const mpg_kernel_call *call, const mpg_cuda_product *product);
/* Reads a boolean environment variable. *on receives true for 1, false for 0, and `otherwise` if
 * the variable is not set. Fails for all other values. */
mpg_status mpg_cuda_setting(const char *name, bool otherwise, bool *on);

#ifdef __cplusplus
}
#endif

#endif
