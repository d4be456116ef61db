/* Convolutions by oneDNN: how one is built, for plain weights and for packed ones. Threads: as for
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
  dnnl_data_type_t weight_dtype, result; /* MPG_FORWARD; undef (0): as dtype */
  int direction;
  bool bias;   /* MPG_FORWARD */
  bool packed; /* MPG_FORWARD: the weight has the layout that the primitive chose */
  bool add;    /* packed: an array of the result's size is added to it */
} mpg_onednn_convolution;

/* The key of the prepared operation, without its kind. */
#define mpg_onednn_convolution_key MPG_CPU_NAME(onednn_convolution_key)
mpg_onednn_key mpg_onednn_convolution_key(const mpg_onednn_convolution *how);
/* The primitive of a convolution with a packed weight, and a desc of the weight as it is; both are
 * the caller's. NULL: there is none worth having. */
#define mpg_cpu_onednn_convolution_choose MPG_CPU_NAME(onednn_convolution_choose)
dnnl_primitive_desc_t mpg_cpu_onednn_convolution_choose(const mpg_onednn *dnnl,
                                                        const mpg_onednn_convolution *how,
                                                        dnnl_memory_desc_t *weight);
/* For mpg_cpu_onednn_find, with an mpg_onednn_convolution. Slots: data, weight, out; the bias and
 * what is added, if there are such. */
#define mpg_cpu_onednn_convolution_build MPG_CPU_NAME(onednn_convolution_build)
bool mpg_cpu_onednn_convolution_build(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                                      void *how);
#endif
#endif
