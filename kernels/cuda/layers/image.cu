/* im2col and col2im: one thread per element of the result. */
#include "kernels/cuda/access.h"

extern "C" {
#include "op/layers/convolution.h"
}

namespace {

/* Sizes of im2col windows with three axes; missing leading axes have size 1. */
struct columns {
  int64_t in[3], out[3], kernel[3], stride[3], dilate[3], pad[3], channels, window, places, plane;
};

/* Computes im2col. The result is (sample, channel and window element, window position). */
template <class T>
__global__ void im2col_kernel(const T *image, T *column, columns w, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t place = i % w.places, row = i / w.places, k = row % w.window, plane = row / w.window,
          at = 0;
  bool inside = true;
  int64_t k3[3] = {k / w.kernel[2] / w.kernel[1], k / w.kernel[2] % w.kernel[1], k % w.kernel[2]};
  int64_t p3[3] = {place / w.out[2] / w.out[1], place / w.out[2] % w.out[1], place % w.out[2]};
  for (int d = 0; d < 3; d++) {
    int64_t x = p3[d] * w.stride[d] - w.pad[d] + k3[d] * w.dilate[d];
    inside = inside && x >= 0 && x < w.in[d];
    at = at * w.in[d] + x;
  }
  column[i] = inside ? image[plane * w.plane + at] : mpg_to<T>(0);
}

/* Computes the adjoint of im2col. Each element of the image is the sum of all its copies in the
 * columns, added in the order of the window's elements. */
template <class T>
__global__ void col2im_kernel(const T *column, T *image, columns w, int64_t count) {
  typedef mpg_compute_t<T> C;
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t at = i % w.plane, plane = i / w.plane;
  int64_t x3[3] = {at / w.in[2] / w.in[1], at / w.in[2] % w.in[1], at % w.in[2]};
  C sum = 0;
  for (int64_t k = 0; k < w.window; k++) {
    int64_t k3[3] = {k / w.kernel[2] / w.kernel[1], k / w.kernel[2] % w.kernel[1], k % w.kernel[2]},
            place = 0;
    bool met = true;
    for (int d = 0; d < 3; d++) {
      int64_t from = x3[d] + w.pad[d] - k3[d] * w.dilate[d], p = from / w.stride[d];
      met = met && from >= 0 && from % w.stride[d] == 0 && p < w.out[d];
      place = place * w.out[d] + p;
    }
    if (met) sum += mpg_to<C>(column[(plane * w.window + k) * w.places + place]);
  }
  image[i] = mpg_to<T>(sum);
}

columns columns_of(const mpg_shape *shape, const mpg_tuple *kernel, const mpg_tuple *stride,
                   const mpg_tuple *dilate, const mpg_tuple *pad) {
  columns w = {};
  int axes = shape->ndim - 2;
  w.window = w.places = w.plane = 1;
  w.channels = shape->dims[1];
  for (int d = 0; d < 3; d++) {
    int i = d - (3 - axes);
    w.in[d] = i < 0 ? 1 : shape->dims[i + 2];
    w.kernel[d] = i < 0 ? 1 : kernel->values[i];
    w.stride[d] = i < 0 ? 1 : mpg_tuple_at(stride, i, 1);
    w.dilate[d] = i < 0 ? 1 : mpg_tuple_at(dilate, i, 1);
    w.pad[d] = i < 0 ? 0 : mpg_tuple_at(pad, i, 0);
    w.out[d] = (w.in[d] + 2 * w.pad[d] - w.dilate[d] * (w.kernel[d] - 1) - 1) / w.stride[d] + 1;
    w.window *= w.kernel[d], w.places *= w.out[d], w.plane *= w.in[d];
  }
  return w;
}

} // namespace

mpg_status mpg_cuda_im2col(const mpg_kernel_call *call) {
  const mpg_im2col_params *p = (const mpg_im2col_params *)call->params;
  columns w = columns_of(&call->inputs[0].desc.shape, &p->kernel, &p->stride, &p->dilate, &p->pad);
  int64_t count = count_of(&call->outputs[0]);
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T,
                       return mpg_cuda_launch(call, im2col_kernel<T>, mpg_cuda_blocks(count),
                                              MPG_CUDA_THREADS, 0, (const T *)call->inputs[0].data,
                                              (T *)call->outputs[0].data, w, count));
  return MPG_OK;
}

mpg_status mpg_cuda_col2im(const mpg_kernel_call *call) {
  const mpg_col2im_params *p = (const mpg_col2im_params *)call->params;
  columns w = columns_of(&call->outputs[0].desc.shape, &p->kernel, &p->stride, &p->dilate, &p->pad);
  int64_t count = count_of(&call->outputs[0]);
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T,
                       return mpg_cuda_launch(call, col2im_kernel<T>, mpg_cuda_blocks(count),
                                              MPG_CUDA_THREADS, 0, (const T *)call->inputs[0].data,
                                              (T *)call->outputs[0].data, w, count));
  return MPG_OK;
}
