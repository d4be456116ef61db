/* Builders for oneDNN convolutions, with plain and with packed weights. Threads: same rules as for
 * kernels.
 */
#ifndef KERNELS_CPU_VENDOR_ONEDNN_CONVOLUTION_H
#define KERNELS_CPU_VENDOR_ONEDNN_CONVOLUTION_H

#include "kernels/cpu/vendor/onednn.h"
#include "op/layers/convolution.h"

enum { MPG_FORWARD, MPG_BACKWARD_DATA, MPG_BACKWARD_WEIGHT }; /* directions of a convolution */

#ifdef MPG_WITH_ONEDNN
typedef struct mpg_onednn_convolution {
  const mpg_convolution *c;
  dnnl_data_type_t dtype;
  dnnl_data_type_t weight_dtype, result; /* only for MPG_FORWARD; undef (0) means `dtype` */
  int direction;
  bool bias;   /* only for MPG_FORWARD */
  bool packed; /* only for MPG_FORWARD: the weight has `layout` */
  /* Layout of a packed weight; NULL for the layout that the primitive chooses. Borrowed. */
  const_dnnl_memory_desc_t layout;
  bool add; /* adds an array of the result's size; requires `packed` */
} mpg_onednn_convolution;

/* Returns the cache key of a convolution. The caller must set its `kind`. */
mpg_onednn_key mpg_onednn_convolution_key(const mpg_onednn_convolution *how)
    MPG_PER_ISA(mpg_onednn_convolution_key);
/* Returns the primitive desc of a convolution with a packed weight, and sets *weight to the plain
 * weight's desc. The caller owns both. Returns NULL if oneDNN has no fast primitive. */
dnnl_primitive_desc_t mpg_cpu_onednn_convolution_choose(const mpg_onednn *dnnl,
                                                        const mpg_onednn_convolution *how,
                                                        dnnl_memory_desc_t *weight)
    MPG_PER_ISA(mpg_cpu_onednn_convolution_choose);
/* Builder for mpg_cpu_onednn_find. `how` is an mpg_onednn_convolution. The slots are data, weight,
 * out and, if present, the bias and the added array. */
bool mpg_cpu_onednn_convolution_build(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                                      void *how) MPG_PER_ISA(mpg_cpu_onednn_convolution_build);
#endif
#endif
