/* Matrix products with oneDNN. The threading rules of kernels apply (kernels/cpu/cpu.h). */
#ifndef KERNELS_CPU_VENDOR_ONEDNN_MATMUL_H
#define KERNELS_CPU_VENDOR_ONEDNN_MATMUL_H

#include "kernels/cpu/vendor/onednn.h"

#ifdef MPG_WITH_ONEDNN
/* c = op(a) * op(b) for each product of a batch, where op transposes a if ta and b if tb. a, b and
 * c are dense, except that a single c may have a larger row stride. */
typedef struct mpg_onednn_matmul {
  dnnl_data_type_t dtype;   /* dtype of a, b and bias */
  dnnl_data_type_t b_dtype; /* dtype of b if it differs; else undef (0) */
  dnnl_data_type_t result;
  int64_t batch, m, n, k;
  int64_t ldc; /* row stride of c for a single product; n for a batch */
  bool ta, tb;
  bool bias;   /* adds the bias to each row of c */
  bool add;    /* accumulates into c */
  bool packed; /* b has a layout of products/pairs_packing.h; requires batch 1 */
} mpg_onednn_matmul;

/* Returns the prepared product, or NULL if oneDNN has no fast implementation. The slots are a, b, c
 * and bias. */
const mpg_onednn_prepared *mpg_cpu_onednn_matmul_find(const mpg_kernel_call *call,
                                                      const mpg_onednn_matmul *s)
    MPG_PER_ISA(mpg_cpu_onednn_matmul_find);
/* Returns the width of a packed b's panels, in vectors of 16 columns. */
static inline int64_t mpg_onednn_matmul_width(const mpg_onednn_prepared *prepared) {
  return (int64_t)prepared->offset[1];
}
#endif
#endif
