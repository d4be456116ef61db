/* Matrix products by cuBLASLt, for all kernels. */
#ifndef KERNELS_CUDA_MATH_PRODUCT_H
#define KERNELS_CUDA_MATH_PRODUCT_H

#include "op/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c[i] = alpha op(a[i]) op(b[i]) + beta c0[i] + bias, for i < count. Row-major: op(a) is (m, k),
 * op(b) (k, n), c and c0 (m, n), bias (n), added to every row. ld is the row stride in elements,
 * step the matrix stride. Sizes of 0 are valid. */
typedef struct mpg_cuda_product {
  mpg_dtype dtype; /* of all arrays; a float */
  bool transpose_a, transpose_b;
  int64_t m, n, k, lda, ldb, ldc;
  int64_t count, a_step, b_step, c_step;
  double alpha, beta;
  /* c0 has c's layout and may be c. It is NULL if beta is 0. If there is a bias, beta is 0 and
   * count is 1. */
  const void *a, *b, *c0, *bias;
  void *c;
} mpg_cuda_product;

/* Uses scratch of MPG_SCRATCH_LIBRARY. Halves are summed in float. The algorithm depends on sizes,
 * dtype and card only. It does not depend on alignment, since unaligned arrays are copied. */
mpg_status mpg_cuda_multiply(const mpg_kernel_call *call, const mpg_cuda_product *product);
/* Reads an environment setting: *on is true if it is 1, and `otherwise` if it is not set. */
mpg_status mpg_cuda_setting(const char *name, bool otherwise, bool *on);

#ifdef __cplusplus
}
#endif

#endif
