/* Correlation of an image with displaced copies of a second image, and its gradients.
 * csrc/op/vision/correlation.c defines which pixels are paired. One thread per element of the
 * result. */
#include "kernels/cuda/cuda.h"

namespace {

struct displaced {
  int64_t channels, rows, columns, height, width, across, radius, stride, most, step, count;
};

displaced displaced_of(const mpg_kernel_call *call, const mpg_shape *first,
                       const mpg_shape *second) {
  const mpg_displaced_params *p = (const mpg_displaced_params *)call->params;
  displaced t = {};
  t.channels = second->dims[1];
  t.rows = first->dims[2], t.columns = first->dims[3];
  t.height = second->dims[2], t.width = second->dims[3];
  t.radius = p->most / p->stride, t.across = 2 * t.radius + 1;
  t.stride = p->stride, t.most = p->most, t.step = p->step;
  t.count = mpg_shape_size(&call->outputs[0].desc.shape);
  return t;
}

/* Returns the index, in a plane of the second image, of the pixel that is paired with pixel (i, j)
 * of the first image at displacement d. */
__device__ int64_t meets(const displaced &t, int64_t i, int64_t j, int64_t d) {
  int64_t down = (d / t.across - t.radius) * t.stride, right = (d % t.across - t.radius) * t.stride;
  return (t.most + i * t.step + down) * t.width + t.most + j * t.step + right;
}

template <class T>
__global__ void products_kernel(const T *first, const T *second, T *out, displaced t) {
  typedef mpg_compute_t<T> C;
  int64_t at = MPG_CUDA_INDEX, plane = t.rows * t.columns;
  if (at >= t.count) return;
  int64_t place = at % plane, d = at / plane % (t.across * t.across),
          n = at / plane / (t.across * t.across);
  int64_t other = meets(t, place / t.columns, place % t.columns, d);
  C sum = 0;
  for (int64_t c = n * t.channels; c < (n + 1) * t.channels; c++)
    sum += mpg_to<C>(first[c * plane + place]) * mpg_to<C>(second[c * t.height * t.width + other]);
  out[at] = mpg_to<T>(sum);
}

template <class T>
__global__ void first_kernel(const T *products, const T *second, T *out, displaced t) {
  typedef mpg_compute_t<T> C;
  int64_t at = MPG_CUDA_INDEX, plane = t.rows * t.columns, all = t.across * t.across;
  if (at >= t.count) return;
  int64_t place = at % plane, n = at / plane / t.channels;
  C sum = 0;
  second += at / plane * t.height * t.width;
  for (int64_t d = 0; d < all; d++)
    sum += mpg_to<C>(products[(n * all + d) * plane + place]) *
           mpg_to<C>(second[meets(t, place / t.columns, place % t.columns, d)]);
  out[at] = mpg_to<T>(sum);
}

template <class T>
__global__ void second_kernel(const T *products, const T *first, T *out, displaced t) {
  typedef mpg_compute_t<T> C;
  int64_t at = MPG_CUDA_INDEX, plane = t.rows * t.columns, all = t.across * t.across;
  if (at >= t.count) return;
  int64_t x = at % t.width, y = at / t.width % t.height, channel = at / t.width / t.height,
          n = channel / t.channels;
  C sum = 0;
  for (int64_t d = 0; d < all; d++) {
    int64_t i = y - t.most - (d / t.across - t.radius) * t.stride,
            j = x - t.most - (d % t.across - t.radius) * t.stride;
    if (i < 0 || j < 0 || i % t.step || j % t.step) continue;
    i /= t.step, j /= t.step;
    if (i >= t.rows || j >= t.columns) continue;
    sum += mpg_to<C>(products[(n * all + d) * plane + i * t.columns + j]) *
           mpg_to<C>(first[channel * plane + i * t.columns + j]);
  }
  out[at] = mpg_to<T>(sum);
}

} // namespace

#define MPG_LAUNCH_DISPLACED(kernel, first, second)                                            \
  displaced t = displaced_of(call, first, second);                                             \
  MPG_CUDA_FLOAT_DTYPE(                                                                        \
      call->inputs[0].desc.dtype, T,                                                           \
      return mpg_cuda_launch(call, kernel<T>, mpg_cuda_blocks(t.count), MPG_CUDA_THREADS, 0,   \
                             (const T *)call->inputs[0].data, (const T *)call->inputs[1].data, \
                             (T *)call->outputs[0].data, t));                                  \
  return MPG_OK

mpg_status mpg_cuda_displaced_products(const mpg_kernel_call *call) {
  MPG_LAUNCH_DISPLACED(products_kernel, &call->inputs[0].desc.shape, &call->inputs[1].desc.shape);
}

mpg_status mpg_cuda_displaced_first(const mpg_kernel_call *call) {
  MPG_LAUNCH_DISPLACED(first_kernel, &call->inputs[0].desc.shape, &call->inputs[1].desc.shape);
}

mpg_status mpg_cuda_displaced_second(const mpg_kernel_call *call) {
  MPG_LAUNCH_DISPLACED(second_kernel, &call->inputs[1].desc.shape, &call->outputs[0].desc.shape);
}
