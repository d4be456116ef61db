/* Ops on padded sequences of different lengths. The data is (time, batch, ...) or (batch, time,
 * ...). One thread per element. */
#include "kernels/cuda/access.h"
#include "kernels/cuda/array/move.h"

namespace {

struct sequences {
  int64_t times, batch, inner; /* inner: elements per step of a sequence */
  bool time_first, masked;
  mpg_untyped lengths; /* used only if `masked`; otherwise all sequences have `times` steps */
  __device__ __forceinline__ int64_t length(int64_t b) const {
    int64_t n = masked ? mpg_cuda_index_at(lengths, b) : times;
    return n < 0 ? 0 : n > times ? times : n;
  }
  __device__ __forceinline__ int64_t step(int64_t t, int64_t b) const {
    return (time_first ? t * batch + b : b * times + t) * inner;
  }
};

sequences sequences_of(const mpg_kernel_call *call, const mpg_view *data, int64_t axis) {
  const mpg_shape *shape = &data->desc.shape;
  sequences s = {};
  s.times = shape->dims[axis];
  s.batch = shape->dims[1 - axis];
  s.inner = mpg_shape_product(shape, 2, shape->ndim);
  s.time_first = axis == 0;
  s.masked = call->num_inputs > 1;
  if (s.masked) s.lengths = mpg_untyped_view(&call->inputs[1]);
  return s;
}

template <class T>
__global__ void reverse_kernel(sequences s, const T *in, T *out) { /* for (time, batch, ...) */
  for (int64_t i = MPG_CUDA_INDEX; i < s.times * s.batch * s.inner; i += MPG_CUDA_STRIDE) {
    int64_t row = i / s.inner, t = row / s.batch, b = row % s.batch, length = s.length(b);
    out[i] = in[s.step(t < length ? length - 1 - t : t, b) + i % s.inner];
  }
}

/* Copies the last step of each sequence to `last`, or from `last` if `put` is true. For a sequence
 * of length 0, copies the first step. */
template <class T>
__global__ void last_kernel(sequences s, T *steps, T *last, bool put) {
  for (int64_t i = MPG_CUDA_INDEX; i < s.batch * s.inner; i += MPG_CUDA_STRIDE) {
    int64_t b = i / s.inner, length = s.length(b);
    T *element = steps + s.step(length > 0 ? length - 1 : 0, b) + i % s.inner;
    if (put)
      *element = last[i];
    else
      last[i] = *element;
  }
}

mpg_status last_step(const mpg_kernel_call *call, const mpg_view *steps, const mpg_view *last,
                     int64_t axis, bool put) {
  sequences s = sequences_of(call, steps, axis);
  if (count_of(steps) == 0) return MPG_OK;
  MPG_CUDA_SIZE(
      item_of(steps), T,
      return mpg_cuda_launch(call, last_kernel<T>, mpg_cuda_blocks(s.batch * s.inner),
                             MPG_CUDA_THREADS, 0, s, (T *)steps->data, (T *)last->data, put));
  return MPG_OK;
}

} // namespace

mpg_status mpg_cuda_sequence_reverse(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[0];
  sequences s = sequences_of(call, data, 0);
  unsigned blocks = mpg_cuda_blocks(count_of(data));
  MPG_CUDA_SIZE(item_of(data), T,
                return mpg_cuda_launch(call, reverse_kernel<T>, blocks, MPG_CUDA_THREADS, 0, s,
                                       (const T *)data->data, (T *)call->outputs[0].data));
  return MPG_OK;
}

mpg_status mpg_cuda_sequence_last(const mpg_kernel_call *call) {
  return last_step(call, &call->inputs[0], &call->outputs[0],
                   ((const mpg_sequence_params *)call->params)->axis, false);
}

mpg_status mpg_cuda_sequence_last_back(const mpg_kernel_call *call) {
  const mpg_view *out = &call->outputs[0];
  MPG_TRY(mpg_cuda_zero(call, out));
  return last_step(call, out, &call->inputs[0],
                   ((const mpg_sequence_last_back_params *)call->params)->axis, true);
}
