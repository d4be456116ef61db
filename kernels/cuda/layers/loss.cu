/* Output layers and losses with gradients of their own. Elements are computed in double, as on the
 * CPU, and rounded once. */
#include "kernels/cuda/access.h"

namespace {

enum { NORMALIZE_BATCH, NORMALIZE_NULL, NORMALIZE_VALID };

template <class T, class C>
__global__ void sigmoid_kernel(const T *in, T *out, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i < count) out[i] = mpg_to<T>((C)1 / ((C)1 + (C)exp(-mpg_to<C>(in[i]))));
}

/* How many elements count: labels that are not `ignored`, or values above `threshold`. By one
 * block. */
__global__ void count_kernel(mpg_untyped values, int64_t count, bool labels, int64_t ignored,
                             double threshold, int64_t *result) {
  int64_t own = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
    own += labels ? mpg_cuda_index_at(values, i) != ignored : values.load<double>(i) > threshold;
  own = mpg_block_reduce(own, (int64_t)0, mpg_plus());
  if (threadIdx.x == 0) *result = own < 1 ? 1 : own;
}

struct softmax_back {
  mpg_untyped output, label, grad, out; /* grad.data NULL: none */
  int64_t classes, after, ignored;
  double scale, alpha;
  bool use_ignore;
  const int64_t *divisor; /* counted on the device; NULL: none */
};

/* Positions are (row, after): one label each. */
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

__global__ void svm_back_kernel(mpg_untyped output, mpg_untyped label, mpg_untyped out,
                                int64_t count, int64_t classes, double margin, double weight,
                                bool linear) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  double sign = i % classes == mpg_cuda_index_at(label, i / classes) ? 1 : -1,
         score = sign * output.load<double>(i);
  double slope = score < margin ? (linear ? 1 : 2 * (margin - score)) : 0;
  out.store(i, -sign * slope * weight);
}

__global__ void fill_kernel(mpg_untyped out, int64_t count, double value, const int64_t *divisor) {
  int64_t i = MPG_CUDA_INDEX;
  if (i < count) out.store(i, divisor ? value / (double)*divisor : value);
}

} // namespace

MPG_CUDA_KERNEL(regression_sigmoid) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  int64_t count = count_of(in);
#define SIGMOID(T, C)                                                                             \
  return mpg_cuda_launch(call, sigmoid_kernel<T, C>, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0, \
                         (const T *)in->data, (T *)out->data, count)
  switch (in->desc.dtype) {
    case MPG_FLOAT32: SIGMOID(float, float);
    case MPG_FLOAT64: SIGMOID(double, double);
    case MPG_FLOAT16: SIGMOID(mpg_half, float);
    default: SIGMOID(mpg_bfloat16, float);
  }
#undef SIGMOID
}

MPG_CUDA_KERNEL(regression_identity) {
  return mpg_cuda_copy(call, &call->inputs[0], &call->outputs[0]);
}

MPG_CUDA_KERNEL(softmax_output_back) {
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
    MPG_TRY(mpg_cuda_launch(call, count_kernel, 1, MPG_CUDA_THREADS, 0, p.label, positions, true,
                            p.ignored, 0.0, counted));
    p.divisor = counted;
  }
  if (params->multi_output && params->normalization != NORMALIZE_VALID) p.scale /= (double)p.after;
  p.scale /= (double)(divisor < 1 ? 1 : divisor);
  return mpg_cuda_launch(call, softmax_back_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0, p,
                         count);
}

MPG_CUDA_KERNEL(svm_output_back) {
  const mpg_svm_output_params *params = (const mpg_svm_output_params *)call->params;
  const mpg_view *output = &call->inputs[0], *label = &call->inputs[1];
  int64_t count = count_of(output);
  if (count == 0) return MPG_OK;
  return mpg_cuda_launch(
      call, svm_back_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0, mpg_untyped_view(output),
      mpg_untyped_view(label), mpg_untyped_view(&call->outputs[0]), count, count / count_of(label),
      (double)params->margin, (double)params->regularization_coefficient, (bool)params->use_linear);
}

MPG_CUDA_KERNEL(make_loss_back) {
  const mpg_make_loss_layer_params *params = (const mpg_make_loss_layer_params *)call->params;
  const mpg_view *data = &call->inputs[0], *out = &call->outputs[0];
  int64_t count = count_of(data), divisor = 1, *counted = NULL;
  const mpg_shape *shape = &data->desc.shape;
  if (params->normalization == NORMALIZE_BATCH)
    divisor = mpg_shape_product(shape, 0, shape->ndim - 1); /* rows of the last dimension */
  if (params->normalization == NORMALIZE_VALID && count) {
    if (!(counted = (int64_t *)mpg_device_scratch(call->device, sizeof *counted)))
      return MPG_DEVICE_OUT_OF_MEMORY;
    MPG_TRY(mpg_cuda_launch(call, count_kernel, 1, MPG_CUDA_THREADS, 0, mpg_untyped_view(data),
                            count, false, (int64_t)0, (double)params->valid_thresh, counted));
  }
  return mpg_cuda_launch(
      call, fill_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0, mpg_untyped_view(out), count,
      (double)params->grad_scale / (double)(divisor < 1 ? 1 : divisor), (const int64_t *)counted);
}
