/* oneDNN's products of bfloat16, whose right operand is packed for its tiles first where that pays:
 * oneDNN's own copy of it takes longer. It may add up other parts of k first then. Threads: as for
 * kernels.
 */
#ifndef KERNELS_CPU_PRODUCTS_PAIRED_PRODUCT_H
#define KERNELS_CPU_PRODUCTS_PAIRED_PRODUCT_H

#include "kernels/cpu/vendor/onednn_matmul.h"

#ifdef MPG_WITH_ONEDNN
typedef struct mpg_paired_product {
  /* of the device's cache, until something else is looked for */
  const mpg_onednn_prepared *prepared;
  size_t packed, scratch; /* bytes: of B, packed (0: it is not), and of all */
} mpg_paired_product;

/* Of any dtype that oneDNN multiplies. False: it has no product of these. */
#define mpg_cpu_paired_product_find MPG_CPU_NAME(paired_product_find)
bool mpg_cpu_paired_product_find(const mpg_kernel_call *call, const mpg_onednn_matmul *s,
                                 mpg_paired_product *product);
/* scratch: 64-byte aligned. bias NULL: none. */
#define mpg_cpu_paired_product_run MPG_CPU_NAME(paired_product_run)
mpg_status mpg_cpu_paired_product_run(const mpg_kernel_call *call, const mpg_onednn_matmul *s,
                                      const mpg_paired_product *product, const void *a,
                                      const void *b, const void *bias, void *c, void *scratch);
#endif
#endif
