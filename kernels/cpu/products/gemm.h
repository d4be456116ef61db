/* Matrix products for other kernels: row-major C[m x n] = alpha * op(A)[m x k] * op(B)[k x n] +
 * beta * C, where op optionally transposes. lda, ldb and ldc are the row strides of A, B and C as
 * stored. C is not read if beta is 0. The choice of the implementation depends on sizes only: a
 * blocked loop in C for tiny products, oneDNN for large ones, and OpenBLAS or the blocked loop
 * without oneDNN. mpg_cpu_sgemm takes float32; mpg_cpu_gemm_any takes all float dtypes (half
 * precision is summed in float32). A row of float64 has the same bits whatever the other rows if A
 * is not transposed, has more than 32 rows, and the processor has fused multiply-add. Neither
 * function uses the device's scratch buffer, so callers may keep data in it. Sizes are not checked,
 * so callers must pass the sizes of existing arrays. */
#ifndef KERNELS_CPU_PRODUCTS_GEMM_H
#define KERNELS_CPU_PRODUCTS_GEMM_H

#include "kernels/cpu/cpu.h"

/* A product whose three matrices have at most this many elements in total is bit-identical for any
 * number of threads. op/invoke.c therefore runs only these products inline. */
enum { MPG_GEMM_TINY = 8192 };
static inline bool mpg_gemm_tiny(int64_t m, int64_t n, int64_t k) {
  return m * k + k * n + m * n <= MPG_GEMM_TINY;
}

/* True if A has so few rows that the elements of op(A) op(B)^T are summed in an order that depends
 * on k only. A row then has the same bits for every number of rows up to this limit, so generated
 * tokens don't depend on the requests or drafts that are computed with them. */
enum { MPG_GEMM_FEW_ROWS = 8 };
static inline bool mpg_gemm_few_rows(mpg_dtype dtype, int64_t m) {
  return m <= MPG_GEMM_FEW_ROWS && (dtype == MPG_FLOAT32 || dtype == MPG_FLOAT64);
}

/* True for products that one thread computes in a few microseconds. Starting a team of threads
 * takes as long. */
enum { MPG_GEMM_FEW_PRODUCTS = 1 << 18, MPG_GEMM_FEW_ELEMENTS = 1 << 16 };
static inline bool mpg_gemm_small(int64_t m, int64_t n, int64_t k) {
  return n <= MPG_GEMM_FEW_ELEMENTS && k <= MPG_GEMM_FEW_ELEMENTS &&
         n * k <= MPG_GEMM_FEW_ELEMENTS && m <= MPG_GEMM_FEW_PRODUCTS / (n * k + 1);
}

mpg_status mpg_cpu_sgemm(const mpg_kernel_call *call, bool transpose_a, bool transpose_b, int64_t m,
                         int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                         const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
    MPG_PER_ISA(mpg_cpu_sgemm);
mpg_status mpg_cpu_gemm_any(const mpg_kernel_call *call, mpg_dtype dtype, bool transpose_a,
                            bool transpose_b, int64_t m, int64_t n, int64_t k, double alpha,
                            const void *a, int64_t lda, const void *b, int64_t ldb, double beta,
                            void *c, int64_t ldc) MPG_PER_ISA(mpg_cpu_gemm_any);

/* Computes a product of float32 matrices that an op widened from bfloat16. If the processor
 * multiplies bfloat16, the operands are rounded back to bfloat16, unless the product is tiny. Uses
 * the device's scratch slot MPG_SCRATCH_LIBRARY. b_half is b as dense rows of bfloat16, or NULL. b
 * may be NULL if b_half is given. beta must be 0 or 1. */
mpg_status mpg_cpu_gemm_narrowed(const mpg_kernel_call *call, bool transpose_a, bool transpose_b,
                                 int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                                 const float *b, int64_t ldb, const uint16_t *b_half, float beta,
                                 float *c, int64_t ldc) MPG_PER_ISA(mpg_cpu_gemm_narrowed);

/* Rows [first, first + rows) of A and C, which are multiplied by one of the transposed matrices. */
typedef struct mpg_row_product {
  int64_t matrix, first, rows;
} mpg_row_product;
/* Computes `count` products of few rows of k elements and transposed matrices (n, k), each as the
 * product of up to MPG_GEMM_FEW_ROWS rows. `products` may be NULL, if row i is multiplied by matrix
 * i. The dtype must be float32 or float64. */
void mpg_cpu_row_products(const mpg_kernel_call *call, mpg_dtype dtype, int64_t count,
                          const mpg_row_product *products, int64_t n, int64_t k, const void *a,
                          const void *b, void *c) MPG_PER_ISA(mpg_cpu_row_products);

#endif
