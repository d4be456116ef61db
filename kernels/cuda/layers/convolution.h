/* Convolutions with cuDNN. */
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
} mpg_cuda_direction; /* computes out, data or weight, respectively */
typedef struct mpg_cudnn_plan mpg_cudnn_plan;

enum { MPG_CUDNN_ALIGNMENT = 16 }; /* required alignment of all arrays, in bytes */

/* Finds cuDNN's plan for a convolution. cuDNN's heuristics choose it once per signature, among
 * algorithms that are deterministic (unless MPGLUON_CUDA_DETERMINISTIC=0), sum in float32 or
 * better, and do not round float32 (unless MPGLUON_CUDA_TF32=1). Either all arrays must be
 * channels-first or all must be channels-last. Sizes must not be 0.
 *
 * If `bias` is set (forward only), the plan adds a bias to the sums before they are rounded. cuDNN
 * may lack that plan even if it has one without the bias. Sets *plan to NULL if cuDNN has no plan.
 * Otherwise *plan is valid until the next call, and *workspace receives the size of its workspace
 * in bytes. */
mpg_status mpg_cudnn_find(const mpg_kernel_call *call, const mpg_convolution *c,
                          mpg_cuda_direction direction, mpg_dtype dtype, bool bias,
                          mpg_cudnn_plan **plan, size_t *workspace);
/* Queues a plan. `arrays` contains data, weight, out, and the bias if the plan adds one. */
mpg_status mpg_cudnn_run(const mpg_kernel_call *call, mpg_cudnn_plan *plan, void *const *arrays,
                         void *workspace);

#ifdef __cplusplus
}
#endif

#endif
