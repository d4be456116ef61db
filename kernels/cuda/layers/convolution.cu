/* Convolution, its gradients, and deconvolution. They run in cuDNN (vendor/cudnn.cu), or as plain
 * sums if cuDNN has no implementation. cuDNN requires that all arrays are channels-first or that
 * all are channels-last, so the weight is transposed if layouts are mixed. Unaligned arrays are
 * copied, so that alignment does not affect the choice of algorithm. */
#include "kernels/cuda/cuda.h"
extern "C" {
#include "kernels/cuda/array/move.h"
#include "op/layers/convolution.h"
}
#include "kernels/cuda/layers/convolution.h"

namespace {

enum { DATA, WEIGHT, OUT, BIAS, ARRAYS };

/* --- Plain sums: a thread per result element; for weight gradients, a block per element ------- */
struct plain : mpg_window {  /* three axes */
  int64_t channels, filters; /* per group */
  int64_t groups, batch;
  int64_t plane, places, window; /* elements in a plane of data, a plane of out, and a window */
  /* Strides between channels, and between elements of a plane or window (`space`). */
  int64_t data_channel, data_space, weight_channel, weight_space, out_channel, out_space;
};

__device__ __forceinline__ void split(int64_t i, const int64_t *sizes, int64_t *at) {
  at[2] = i % sizes[2];
  at[1] = i / sizes[2] % sizes[1];
  at[0] = i / sizes[2] / sizes[1];
}

/* Returns the index, in a plane of the data, of window element k at output position p. Returns -1
 * if the element is in the padding. */
__device__ __forceinline__ int64_t data_of(const plain &t, const int64_t *p, int64_t k) {
  int64_t w[3], at = 0;
  split(k, t.kernel, w);
  for (int a = 0; a < 3; a++) {
    int64_t x = p[a] * t.stride[a] - t.pad[a] + w[a] * t.dilate[a];
    if (x < 0 || x >= t.in[a]) return -1;
    at = at * t.in[a] + x;
  }
  return at;
}

template <class T>
__global__ void forward_kernel(plain t, const T *data, const T *weight, T *out, int64_t count) {
  typedef mpg_compute_t<T> C;
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t place = i % t.places, f = i / t.places % (t.filters * t.groups),
          n = i / t.places / (t.filters * t.groups), g = f / t.filters, p[3];
  split(place, t.out, p);
  const T *from = data + n * t.channels * t.groups * t.plane + g * t.channels * t.data_channel,
          *w = weight + f * t.channels * t.window;
  C sum = 0;
  for (int64_t k = 0; k < t.window; k++) {
    int64_t at = data_of(t, p, k);
    if (at < 0) continue;
    for (int64_t c = 0; c < t.channels; c++)
      sum += mpg_to<C>(from[c * t.data_channel + at * t.data_space]) *
             mpg_to<C>(w[c * t.weight_channel + k * t.weight_space]);
  }
  out[n * t.filters * t.groups * t.places + f * t.out_channel + place * t.out_space] =
      mpg_to<T>(sum);
}

template <class T>
__global__ void backward_data_kernel(plain t, T *data, const T *weight, const T *out,
                                     int64_t count) {
  typedef mpg_compute_t<T> C;
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t place = i % t.plane, c = i / t.plane % (t.channels * t.groups),
          n = i / t.plane / (t.channels * t.groups), g = c / t.channels, at[3];
  split(place, t.in, at);
  const T *from = out + n * t.filters * t.groups * t.places + g * t.filters * t.out_channel;
  const T *w = weight + g * t.filters * t.channels * t.window + c % t.channels * t.weight_channel;
  C sum = 0;
  for (int64_t k = 0; k < t.window; k++) {
    int64_t e[3], p = 0;
    bool inside = true;
    split(k, t.kernel, e);
    for (int a = 0; a < 3; a++) {
      int64_t x = at[a] + t.pad[a] - e[a] * t.dilate[a];
      inside = inside && x >= 0 && x % t.stride[a] == 0 && x / t.stride[a] < t.out[a];
      p = p * t.out[a] + x / t.stride[a];
    }
    for (int64_t f = 0; inside && f < t.filters; f++)
      sum += mpg_to<C>(from[f * t.out_channel + p * t.out_space]) *
             mpg_to<C>(w[f * t.channels * t.window + k * t.weight_space]);
  }
  data[n * t.channels * t.groups * t.plane + c * t.data_channel + place * t.data_space] =
      mpg_to<T>(sum);
}

template <class T>
__global__ void backward_weight_kernel(plain t, const T *data, T *weight, const T *out) {
  typedef mpg_compute_t<T> C;
  for (int64_t i = blockIdx.x; i < t.filters * t.groups * t.channels * t.window; i += gridDim.x) {
    int64_t k = i % t.window, c = i / t.window % t.channels, f = i / t.window / t.channels,
            g = f / t.filters;
    C sum = 0;
    for (int64_t j = threadIdx.x; j < t.batch * t.places; j += blockDim.x) {
      int64_t n = j / t.places, place = j % t.places, p[3];
      split(place, t.out, p);
      int64_t at = data_of(t, p, k);
      if (at >= 0)
        sum +=
            mpg_to<C>(data[n * t.channels * t.groups * t.plane +
                           (g * t.channels + c) * t.data_channel + at * t.data_space]) *
            mpg_to<C>(
                out[n * t.filters * t.groups * t.places + f * t.out_channel + place * t.out_space]);
    }
    sum = mpg_block_reduce(sum, (C)0, mpg_plus());
    if (threadIdx.x == 0)
      weight[f * t.channels * t.window + c * t.weight_channel + k * t.weight_space] =
          mpg_to<T>(sum);
  }
}

plain plain_of(const mpg_convolution *c) {
  plain t = {};
  (mpg_window &)t = mpg_window_with_axes(&c->window, 3);
  t.batch = c->batch, t.groups = c->groups, t.channels = c->channels / c->groups,
  t.filters = c->filters / c->groups;
  t.plane = t.in[0] * t.in[1] * t.in[2];
  t.places = t.out[0] * t.out[1] * t.out[2];
  t.window = t.kernel[0] * t.kernel[1] * t.kernel[2];
  bool last = c->layout != MPG_CHANNELS_FIRST, weight_last = c->layout == MPG_CHANNELS_LAST;
  t.data_channel = last ? 1 : t.plane;
  t.data_space = last ? c->channels : 1;
  t.out_channel = last ? 1 : t.places;
  t.out_space = last ? c->filters : 1;
  t.weight_channel = weight_last ? 1 : t.window;
  t.weight_space = weight_last ? t.channels : 1;
  return t;
}

mpg_status sum_plainly(const mpg_kernel_call *call, const mpg_convolution *c,
                       mpg_cuda_direction direction, mpg_dtype dtype, void *const *arrays) {
  plain t = plain_of(c);
  MPG_CUDA_FLOAT_DTYPE(dtype, T, {
    T *data = (T *)arrays[DATA], *weight = (T *)arrays[WEIGHT], *out = (T *)arrays[OUT];
    int64_t outs = c->batch * c->filters * t.places, datas = c->batch * c->channels * t.plane;
    if (direction == MPG_CUDA_FORWARD)
      return mpg_cuda_launch(call, forward_kernel<T>, mpg_cuda_blocks(outs), MPG_CUDA_THREADS, 0, t,
                             (const T *)data, (const T *)weight, out, outs);
    if (direction == MPG_CUDA_BACKWARD_DATA)
      return mpg_cuda_launch(call, backward_data_kernel<T>, mpg_cuda_blocks(datas),
                             MPG_CUDA_THREADS, 0, t, data, (const T *)weight, (const T *)out,
                             datas);
    return mpg_cuda_launch(call, backward_weight_kernel<T>,
                           mpg_cuda_blocks(c->filters * t.channels * t.window, 1), MPG_CUDA_THREADS,
                           0, t, (const T *)data, weight, (const T *)out);
  });
  return MPG_OK;
}

/* --- The bias --------------------------------------------------------------------------------- */
template <class T>
__global__ void bias_kernel(const T *bias, T *out, int64_t channels, int64_t space, int64_t count) {
  typedef mpg_compute_t<T> C;
  int64_t i = MPG_CUDA_INDEX;
  if (i < count) out[i] = mpg_to<T>(mpg_to<C>(out[i]) + mpg_to<C>(bias[i / space % channels]));
}

mpg_status add_bias(const mpg_kernel_call *call, const void *bias, int64_t channels, bool last,
                    const mpg_view *out) {
  int64_t count = count_of(out),
          space = last ? 1 : mpg_shape_product(&out->desc.shape, 2, out->desc.shape.ndim);
  MPG_CUDA_FLOAT_DTYPE(
      out->desc.dtype, T,
      return mpg_cuda_launch(call, bias_kernel<T>, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                             (const T *)bias, (T *)out->data, channels, space, count));
  return MPG_OK;
}

/* --- cuDNN ------------------------------------------------------------------------------------ */

/* Transposes (outer, a, b) to (outer, b, a), to change the layout of a weight. */
mpg_status exchange(const mpg_kernel_call *call, int64_t outer, int64_t a, int64_t b,
                    const void *in, void *out, size_t item) {
  mpg_move move = {};
  mpg_move_add(&move, outer, a * b, a * b);
  mpg_move_add(&move, b, 1, a);
  mpg_move_add(&move, a, b, 1);
  return mpg_cuda_move(call, &move, in, out, item);
}

/* Runs cuDNN. Sets *done to false if cuDNN has no implementation. Sets *added to true if the result
 * includes the bias, arrays[BIAS], which may be NULL. */
mpg_status by_library(const mpg_kernel_call *call, mpg_convolution c, mpg_cuda_direction direction,
                      mpg_dtype dtype, void *const *arrays, const int64_t *sizes, bool *done,
                      bool *added) {
  size_t item = mpg_dtype_size(dtype), workspace, total;
  int64_t channels = c.channels / c.groups,
          window = mpg_window_product(c.window.kernel, c.window.ndim);
  int result = direction == MPG_CUDA_FORWARD         ? OUT
               : direction == MPG_CUDA_BACKWARD_DATA ? DATA
                                                     : WEIGHT;
  mpg_cudnn_plan *plan = NULL;
  bool exchanges = c.layout == MPG_CHANNELS_LAST_DATA && channels > 1 && window > 1;
  if (c.layout == MPG_CHANNELS_LAST_DATA) c.layout = MPG_CHANNELS_LAST;
  if (arrays[BIAS] && direction == MPG_CUDA_FORWARD)
    MPG_TRY(mpg_cudnn_find(call, &c, direction, dtype, true, &plan, &workspace));
  *added = plan != NULL;
  if (!plan) MPG_TRY(mpg_cudnn_find(call, &c, direction, dtype, false, &plan, &workspace));
  *done = plan != NULL;
  if (!plan) return MPG_OK;
  bool moved[ARRAYS];
  void *used[ARRAYS];
  int count = *added ? ARRAYS : BIAS;
  total = mpg_align_up(workspace, 256);
  for (int i = 0; i < count; i++) {
    moved[i] = !mpg_cuda_aligned(arrays[i]) || (i == WEIGHT && exchanges);
    if (moved[i]) total += mpg_align_up((size_t)sizes[i] * item, 256);
  }
  char *scratch = NULL;
  if (total && !(scratch = (char *)mpg_device_scratch(call->device, total)))
    return MPG_DEVICE_OUT_OF_MEMORY;
  char *next = scratch + mpg_align_up(workspace, 256);
  for (int i = 0; i < count; i++) {
    used[i] = moved[i] ? next : arrays[i];
    if (!moved[i]) continue;
    next += mpg_align_up((size_t)sizes[i] * item, 256);
    if (i == result) continue;
    if (i == WEIGHT && exchanges)
      MPG_TRY(exchange(call, c.filters, channels, window, arrays[i], used[i], item));
    else
      MPG_TRY(mpg_cuda_copy(call, arrays[i], used[i], (size_t)sizes[i] * item));
  }
  MPG_TRY(mpg_cudnn_run(call, plan, used, workspace ? scratch : NULL));
  if (!moved[result]) return MPG_OK;
  if (result == WEIGHT && exchanges)
    return exchange(call, c.filters, window, channels, used[result], arrays[result], item);
  return mpg_cuda_copy(call, used[result], arrays[result], (size_t)sizes[result] * item);
}

/* Computes a convolution or one of its gradients. arrays[BIAS] has one element per channel of the
 * result, or is NULL. */
mpg_status run(const mpg_kernel_call *call, const mpg_convolution *c, mpg_cuda_direction direction,
               void *const *arrays) {
  const mpg_view *out = &call->outputs[0];
  mpg_dtype dtype = out->desc.dtype;
  int64_t channels = direction == MPG_CUDA_FORWARD ? c->filters : c->channels;
  bool added = false;
  int64_t sizes[ARRAYS] = {
      c->batch * c->channels * mpg_window_product(c->window.in, c->window.ndim),
      c->filters * (c->channels / c->groups) * mpg_window_product(c->window.kernel, c->window.ndim),
      c->batch * c->filters * mpg_window_product(c->window.out, c->window.ndim), channels};
  if (count_of(out) == 0) return MPG_OK;
  if (sizes[DATA] == 0 || sizes[WEIGHT] == 0 || sizes[OUT] == 0) {
    MPG_TRY(mpg_cuda_zero(call, out)); /* an empty sum */
  } else {
    bool done;
    MPG_TRY(by_library(call, *c, direction, dtype, arrays, sizes, &done, &added));
    if (!done) MPG_TRY(sum_plainly(call, c, direction, dtype, arrays));
  }
  return arrays[BIAS] && !added
             ? add_bias(call, arrays[BIAS], channels, c->layout != MPG_CHANNELS_FIRST, out)
             : MPG_OK;
}

} // namespace

mpg_status mpg_cuda_convolution(const mpg_kernel_call *call) {
  const mpg_convolution_params *p = (const mpg_convolution_params *)call->params;
  const mpg_view *data = &call->inputs[0], *weight = &call->inputs[1], *out = &call->outputs[0];
  mpg_convolution c;
  mpg_convolution_set(&c, mpg_convolution_layout(call->op, p), &data->desc.shape,
                      &weight->desc.shape, &out->desc.shape, &p->stride, &p->dilate, &p->pad,
                      p->num_group);
  void *arrays[ARRAYS] = {data->data, weight->data, out->data,
                          call->num_inputs == 3 ? call->inputs[2].data : NULL};
  return run(call, &c, MPG_CUDA_FORWARD, arrays);
}

/* Computes a convolution's gradient with respect to its data, which is also Deconvolution's forward
 * pass. */
mpg_status mpg_cuda_convolution_backward_data(const mpg_kernel_call *call) {
  const mpg_view *out_grad = &call->inputs[0], *weight = &call->inputs[1],
                 *data = &call->outputs[0];
  mpg_convolution c;
  void *arrays[ARRAYS] = {data->data, weight->data, out_grad->data};
  mpg_layout layout = mpg_convolution_layout(call->op, call->params);
  if (call->op->id == MPG_OP_Deconvolution) {
    const mpg_deconvolution_params *p = (const mpg_deconvolution_params *)call->params;
    mpg_tuple pads;
    mpg_shape in = mpg_data_first(&out_grad->desc.shape, layout),
              out = mpg_data_first(&data->desc.shape, layout);
    mpg_deconvolution_pads(p, &in, &out, &pads);
    mpg_convolution_set(&c, layout, &data->desc.shape, &weight->desc.shape, &out_grad->desc.shape,
                        &p->stride, &p->dilate, &pads, p->num_group);
    if (call->num_inputs == 3) arrays[BIAS] = call->inputs[2].data;
  } else {
    const mpg_convolution_backward_params *p =
        (const mpg_convolution_backward_params *)call->params;
    mpg_convolution_set(&c, layout, &data->desc.shape, &weight->desc.shape, &out_grad->desc.shape,
                        &p->stride, &p->dilate, &p->pad, p->num_group);
  }
  return run(call, &c, MPG_CUDA_BACKWARD_DATA, arrays);
}

mpg_status mpg_cuda_convolution_backward_weight(const mpg_kernel_call *call) {
  const mpg_convolution_backward_params *p = (const mpg_convolution_backward_params *)call->params;
  const mpg_view *out_grad = &call->inputs[0], *data = &call->inputs[1],
                 *weight = &call->outputs[0];
  mpg_convolution c;
  mpg_convolution_set(&c, mpg_convolution_layout(call->op, p), &data->desc.shape,
                      &weight->desc.shape, &out_grad->desc.shape, &p->stride, &p->dilate, &p->pad,
                      p->num_group);
  void *arrays[ARRAYS] = {data->data, weight->data, out_grad->data};
  return run(call, &c, MPG_CUDA_BACKWARD_WEIGHT, arrays);
}
