/* Gradient of SoftmaxOutput. Elements are computed in double, as on the CPU, and rounded once. */
#include "kernels/cuda/access.h"

namespace {

enum { NORMALIZE_BATCH, NORMALIZE_NULL, NORMALIZE_VALID };

/* Counts the labels that are not `ignored`. The result is at least 1. Runs in one block. */
__global__ void count_kernel(mpg_untyped labels, int64_t count, int64_t ignored, int64_t *result) {
  int64_t own = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
    own += mpg_cuda_index_at(labels, i) != ignored;
  own = mpg_block_reduce(own, (int64_t)0, mpg_plus());
  if (threadIdx.x == 0) *result = own < 1 ? 1 : own;
}

struct softmax_back {
  mpg_untyped output, label, grad, out; /* grad.data may be NULL, which means 1 */
  int64_t classes, after, ignored;
  double scale, alpha;
  bool use_ignore;
  const int64_t *divisor; /* in device memory, from count_kernel; NULL for 1 */
};

/* Computes the gradient for class labels. Each position (row, after) has one label. */
__global__ void softmax_back_kernel(softmax_back p, int64_t count) {
  int64_t i = MPG_CUDA_INDEX; /* (row, class, after) */
  if (i >= count) return;
  int64_t k = i / p.after % p.classes,
          label = mpg_cuda_index_at(p.label, i / p.after / p.classes * p.after + i % p.after);
  double others = p.alpha != 0 && p.classes > 1 ? p.alpha / (double)(p.classes - 1) : 0;
  double scale = p.divisor ? p.scale / (double)*p.divisor : p.scale;
  double value = (p.use_ignore && label == p.ignored
                      ? 0
                      : p.output.load<double>(i) - (k == label ? 1 - p.alpha : others)) *
                 scale;
  p.out.store(i, p.grad.data ? value * p.grad.load<double>(i) : value);
}

__global__ void probability_back_kernel(softmax_back p, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  double value = (p.output.load<double>(i) - p.label.load<double>(i)) * p.scale;
  p.out.store(i, p.grad.data ? value * p.grad.load<double>(i) : value);
}

} // namespace

mpg_status mpg_cuda_softmax_output_back(const mpg_kernel_call *call) {
  const mpg_softmax_output_params *params = (const mpg_softmax_output_params *)call->params;
  const mpg_view *output = &call->inputs[0], *label = &call->inputs[1];
  const mpg_shape *shape = &output->desc.shape;
  int64_t count = count_of(output);
  softmax_back p = {};
  p.output = mpg_untyped_view(output);
  p.label = mpg_untyped_view(label);
  if (call->num_inputs > 2) p.grad = mpg_untyped_view(&call->inputs[2]);
  p.out = mpg_untyped_view(&call->outputs[0]);
  p.after = 1;
  p.scale = params->grad_scale;
  if (count == 0) return MPG_OK;
  if (mpg_shape_equal(&label->desc.shape, shape))
    return mpg_cuda_launch(call, probability_back_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS,
                           0, p, count);
  int64_t positions = count_of(label), divisor = 1;
  p.classes = params->multi_output ? shape->dims[1] : count / positions;
  if (params->multi_output) p.after = mpg_shape_product(shape, 2, shape->ndim);
  p.ignored = mpg_whole(params->ignore_label);
  p.use_ignore = params->use_ignore;
  p.alpha = params->multi_output ? 0 : params->smooth_alpha;
  if (params->normalization == NORMALIZE_BATCH)
    divisor = params->multi_output ? label->desc.shape.dims[0] : positions;
  if (params->normalization == NORMALIZE_VALID) {
    int64_t *counted = (int64_t *)mpg_device_scratch(call->device, sizeof *counted);
    if (!counted) return MPG_DEVICE_OUT_OF_MEMORY;
    MPG_TRY(mpg_cuda_launch(call, count_kernel, 1, MPG_CUDA_THREADS, 0, p.label, positions,
                            p.ignored, counted));
    p.divisor = counted;
  }
  if (params->multi_output && params->normalization != NORMALIZE_VALID) p.scale /= (double)p.after;
  p.scale /= (double)(divisor < 1 ? 1 : divisor);
  return mpg_cuda_launch(call, softmax_back_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0, p,
                         count);
}
