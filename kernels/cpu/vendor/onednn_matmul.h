/* Matrix products by oneDNN. Threads: as for kernels. */
#ifndef KERNELS_CPU_VENDOR_ONEDNN_MATMUL_H
#define KERNELS_CPU_VENDOR_ONEDNN_MATMUL_H

#include "kernels/cpu/vendor/onednn.h"

#ifdef MPG_WITH_ONEDNN
/* c = op(a) * op(b), for each of a batch; a, b and c lie without gaps, but for the rows of c. */
typedef struct mpg_onednn_matmul {
  dnnl_data_type_t dtype;   /* of a, b and bias */
  dnnl_data_type_t b_dtype; /* of b, where it is another; else undef (0) */
  dnnl_data_type_t result;
  int64_t batch, m, n, k;
  int64_t ldc; /* of one product; of several, n */
  bool ta, tb;
  bool bias;   /* a row, which is added */
  bool add;    /* c is added to */
  bool packed; /* b lies in panels of pairs (products/pairs_packing.h); it is not of a batch */
} mpg_onednn_matmul;

/* Slots: a, b, c, bias. NULL: there is none worth having. */
#define mpg_cpu_onednn_matmul_find MPG_CPU_NAME(onednn_matmul_find)
const mpg_onednn_prepared *mpg_cpu_onednn_matmul_find(const mpg_kernel_call *call,
                                                      const mpg_onednn_matmul *s);
/* Of a packed b: how many vectors of 16 columns its panels have. */
static inline int64_t mpg_onednn_matmul_width(const mpg_onednn_prepared *prepared) {
  return (int64_t)prepared->offset[1];
}
#endif
#endif
