/* Resizing along an axis, with one thread per element of the result. */
#include "op/vision/resample.h"
#include "kernels/cuda/access.h"

namespace {

template <class T>
__global__ void resample_kernel(const T *in, T *out, mpg_resample_axis axis, int64_t inner,
                                int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t within = i % inner, row = i / inner, outer = row / axis.size;
  mpg_taps taps = mpg_resample_taps(&axis, row % axis.size);
  const T *from = in + outer * axis.from * inner + within;
  T sum = from[taps.at[0] * inner] * (T)taps.weight[0];
  for (int k = 1; k < axis.count; k++) sum += from[taps.at[k] * inner] * (T)taps.weight[k];
  out[i] = sum;
}

/* Computes the adjoint of resizing. The gradient of each source element is the sum of the
 * contributions of all results that use the element, in the order of the results. */
template <class T>
__global__ void resample_back_kernel(const T *in, T *out, mpg_resample_axis axis, int64_t inner,
                                     int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t within = i % inner, row = i / inner, outer = row / axis.from, at = row % axis.from;
  int64_t begin, end;
  mpg_resample_users(&axis, at, &begin, &end);
  const T *from = in + outer * axis.size * inner + within;
  T sum = 0;
  for (int64_t user = begin; user < end; user++) {
    mpg_taps taps = mpg_resample_taps(&axis, user);
    for (int k = 0; k < axis.count; k++)
      if (taps.at[k] == at) sum += from[user * inner] * (T)taps.weight[k];
  }
  out[i] = sum;
}

template <class T>
mpg_status resample(const mpg_kernel_call *call) {
  const mpg_resample_params *params = (const mpg_resample_params *)call->params;
  const mpg_shape *shape = &call->outputs[0].desc.shape;
  int64_t count = mpg_shape_size(shape),
          inner = mpg_shape_product(shape, (int)params->axis.value + 1, shape->ndim);
  mpg_resample_axis axis =
      mpg_resample_axis_of(params->length, params->size, (int)params->kind, params->align_corners);
  return mpg_cuda_launch(call, params->transposed ? resample_back_kernel<T> : resample_kernel<T>,
                         mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                         (const T *)call->inputs[0].data, (T *)call->outputs[0].data, axis, inner,
                         count);
}

} // namespace

mpg_status mpg_cuda_resample(const mpg_kernel_call *call) {
  return call->outputs[0].desc.dtype == MPG_FLOAT64 ? resample<double>(call)
                                                    : resample<float>(call);
}
