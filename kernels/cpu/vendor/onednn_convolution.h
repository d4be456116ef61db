/* Builders for oneDNN convolutions, with plain and with packed weights. Threads: as for kernels.
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
  dnnl_data_type_t weight_dtype, result; /* MPG_FORWARD; undef (0) means dtype */
  int direction;
  bool bias;   /* MPG_FORWARD */
  bool packed; /* MPG_FORWARD: the weight has the primitive's chosen layout */
  bool add;    /* packed: adds an array of the result's size */
} mpg_onednn_convolution;

/* The key of the prepared operation, without its kind. */
mpg_onednn_key mpg_onednn_convolution_key(const mpg_onednn_convolution *how)
    MPG_PER_ISA(mpg_onednn_convolution_key);
/* Returns the primitive of a convolution with a packed weight, and a desc of the plain weight. The
 * caller owns both. NULL if there is no fast one. */
dnnl_primitive_desc_t mpg_cpu_onednn_convolution_choose(const mpg_onednn *dnnl,
                                                        const mpg_onednn_convolution *how,
                                                        dnnl_memory_desc_t *weight)
    MPG_PER_ISA(mpg_cpu_onednn_convolution_choose);
/* Builder for mpg_cpu_onednn_find, with an mpg_onednn_convolution. Slots are data, weight, out, and
 * if present, the bias and the added array. */
bool mpg_cpu_onednn_convolution_build(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                                      void *how) MPG_PER_ISA(mpg_cpu_onednn_convolution_build);
#endif
#endif
