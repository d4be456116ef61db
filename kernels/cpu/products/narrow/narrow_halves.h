/* Products of a few float16 or bfloat16 rows, as in a decoding step or a layer with a small batch.
 * Most of their time is spent on reading the weight, so the weight is read once, in place. */
#ifndef KERNELS_CPU_PRODUCTS_NARROW_HALVES_H
#define KERNELS_CPU_PRODUCTS_NARROW_HALVES_H

#include "kernels/cpu/cpu.h"

/* `batch` products C[m x n] = op(A)[m x k] * op(B)[k x n] + bias of dense row-major matrices, where
 * op optionally transposes. All arrays are borrowed and have the same dtype. The bias has n
 * elements and may be NULL. */
typedef struct mpg_half_product {
  mpg_dtype dtype;
  bool transpose_a, transpose_b;
  int64_t batch, m, n, k;
  const void *a, *b, *bias;
  void *c;
} mpg_half_product;

/* Computes the product if A has a few rows or B has one column, and the dtype is float16 or
 * bfloat16. Otherwise does nothing and returns false. Products are summed in float32 and rounded
 * once. The additions are in the order of the products of many rows (oneDNN or gemm.c), so the bits
 * of a row depend neither on the number of rows nor on the number of threads. Allocates nothing.
 * Called by kernels, on the thread that runs the device's work. */
bool mpg_cpu_narrow_halves(const mpg_kernel_call *call, const mpg_half_product *product)
    MPG_PER_ISA(mpg_cpu_narrow_halves);

#endif
