/* Convolutions by cuDNN, and how much scratch they take. */
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
} mpg_cuda_direction; /* out, data or weight is made */
typedef struct mpg_cudnn_plan mpg_cudnn_plan;

enum { MPG_CUDNN_ALIGNMENT = 16 }; /* of all arrays */

/* How cuDNN does it: chosen once for a signature by its heuristics, among what is deterministic,
 * sums in float32 or better and, but for MPGLUON_CUDA_TF32=1, does not round float32. Layouts are
 * channels-first or channels-last, of everything. bias: adds one to the sums before they are
 * rounded (forward only); then cuDNN may well have nothing where it has a convolution. *plan: valid
 * until the next call; NULL: cuDNN has nothing for this. *workspace: bytes of it that running
 * takes. No sizes of 0. */
mpg_status mpg_cudnn_find(const mpg_kernel_call *call, const mpg_convolution *c,
                          mpg_cuda_direction direction, mpg_dtype dtype, bool bias,
                          mpg_cudnn_plan **plan, size_t *workspace);
/* arrays: data, weight, out, and the bias if the plan has one. */
mpg_status mpg_cudnn_run(const mpg_kernel_call *call, mpg_cudnn_plan *plan, void *const *arrays,
                         void *workspace);

#ifdef __cplusplus
}
#endif

#endif
