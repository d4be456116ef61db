/* Convolutions by cuDNN, and their scratch requirements. */
#ifndef KERNELS_CUDA_LAYERS_CONVOLUTION_H
#define KERNELS_CUDA_LAYERS_CONVOLUTION_H

#include "op/layers/convolution.h"
#include "op/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mpg_cuda_direction {
  MPG_CUDA_FORWARD,
  MPG_CUDA_BACKWARD_DATA,
  MPG_CUDA_BACKWARD_WEIGHT
} mpg_cuda_direction; /* computes out, data or weight */
typedef struct mpg_cudnn_plan mpg_cudnn_plan;

enum { MPG_CUDNN_ALIGNMENT = 16 }; /* required of all arrays */

/* Finds cuDNN's plan for a convolution. Its heuristics choose once per signature among algorithms
 * that are deterministic, sum in float32 or better, and do not round float32 (unless
 * MPGLUON_CUDA_TF32=1). All arrays are channels-first, or all channels-last. `bias` adds a bias to
 * the sums before they are rounded (forward only); cuDNN may lack that even if it has the
 * convolution. *plan is valid until the next call, or NULL if cuDNN has none; *workspace is its
 * size in bytes. Sizes must not be 0. */
mpg_status mpg_cudnn_find(const mpg_kernel_call *call, const mpg_convolution *c,
                          mpg_cuda_direction direction, mpg_dtype dtype, bool bias,
                          mpg_cudnn_plan **plan, size_t *workspace);
/* Runs a plan. arrays: data, weight, out, and the bias if the plan has one. */
mpg_status mpg_cudnn_run(const mpg_kernel_call *call, mpg_cudnn_plan *plan, void *const *arrays,
                         void *workspace);

#ifdef __cplusplus
}
#endif

#endif
