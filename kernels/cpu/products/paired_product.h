/* oneDNN's bfloat16 products. The right operand B is first packed for AMX tiles if that is faster
 * than oneDNN's own copy. Packing may change the order of summation over k. Threads: same rules as
 * for kernels.
 */
#ifndef KERNELS_CPU_PRODUCTS_PAIRED_PRODUCT_H
#define KERNELS_CPU_PRODUCTS_PAIRED_PRODUCT_H

#include "kernels/cpu/vendor/onednn_matmul.h"

#ifdef MPG_WITH_ONEDNN
typedef struct mpg_paired_product {
  /* from the device's cache, valid until the next lookup */
  const mpg_onednn_prepared *prepared;
  size_t packed, scratch; /* bytes for packed B (0 if not packed); bytes in total */
} mpg_paired_product;

/* Sets *product to oneDNN's implementation, for any dtype that oneDNN multiplies. Returns false if
 * oneDNN has none. */
bool mpg_cpu_paired_product_find(const mpg_kernel_call *call, const mpg_onednn_matmul *s,
                                 mpg_paired_product *product)
    MPG_PER_ISA(mpg_cpu_paired_product_find);
/* Runs the product. `scratch` has product->scratch bytes, 64-byte aligned. `bias` may be NULL. */
mpg_status mpg_cpu_paired_product_run(const mpg_kernel_call *call, const mpg_onednn_matmul *s,
                                      const mpg_paired_product *product, const void *a,
                                      const void *b, const void *bias, void *c, void *scratch)
    MPG_PER_ISA(mpg_cpu_paired_product_run);
#endif
#endif
