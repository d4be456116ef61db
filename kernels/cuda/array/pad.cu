/* Padding and its transpose. */
#include "kernels/cuda/access.h"
#include "kernels/cuda/array/move.h"

namespace {

/* The dimensions of a padded array, and how many elements stand before the array's own in each. */
struct geometry {
  int ndim, mode; /* mode: 0 constant, 1 edge, 2 reflect */
  int64_t from[MPG_MAX_NDIM], to[MPG_MAX_NDIM], before[MPG_MAX_NDIM];
};

geometry geometry_of(const mpg_shape *from, const mpg_shape *to, const mpg_tuple *pad_width,
                     int mode) {
  geometry g = {};
  g.ndim = to->ndim;
  g.mode = mode;
  for (int i = 0; i < to->ndim; i++) {
    g.from[i] = from->dims[i];
    g.to[i] = to->dims[i];
    g.before[i] = pad_width->values[2 * i];
  }
  return g;
}

/* A thread an element of the result: it comes from one element of the array, or is the constant. */
template <class T>
__global__ void pad_kernel(geometry g, const T *in, T *out, T value, int64_t count) {
  for (int64_t i = MPG_CUDA_INDEX; i < count; i += MPG_CUDA_STRIDE) {
    int64_t rest = i, source = 0, stride = 1;
    bool inside = true;
    for (int d = g.ndim - 1; d >= 0; d--) {
      int64_t at = rest % g.to[d] - g.before[d], n = g.from[d];
      rest /= g.to[d];
      if (at < 0 || at >= n) {
        if (g.mode == 0)
          inside = false;
        else if (g.mode == 1)
          at = at < 0 ? 0 : n - 1;
        else
          at = at < 0 ? -at : 2 * n - 2 - at;
      }
      source += at * stride;
      stride *= n;
    }
    out[i] = inside ? in[source] : value;
  }
}

/* One dimension of the transpose: lines (outer, length, inner) in working memory; the gradients of
 * both ends are added to the elements they were copied from, in the order of their places. */
template <class C>
__global__ void fold_kernel(C *work, int64_t lines, int64_t length, int64_t inner, int64_t before,
                            int64_t after, int64_t n, int mode) {
  int64_t line = MPG_CUDA_INDEX;
  if (line >= lines * inner) return;
  C *element = work + line / inner * length * inner + line % inner;
  for (int side = 0; side < 2; side++) {
    int64_t count = side ? after : before;
    for (int64_t j = 0; j < count; j++) {
      int64_t place = side ? before + n + j : j, source;
      if (mode == 1)
        source = side ? before + n - 1 : before;
      else
        source = side ? before + n - 2 - j : 2 * before - j;
      element[source * inner] += element[place * inner];
    }
  }
}

template <class C>
__global__ void load_kernel(mpg_untyped in, C *work, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i < count) work[i] = in.load<C>(i);
}

/* The middle. */
template <class C>
__global__ void middle_kernel(geometry g, const C *work, mpg_untyped out, int64_t count) {
  int64_t i = MPG_CUDA_INDEX, rest = i, source = 0, stride = 1;
  if (i >= count) return;
  for (int d = g.ndim - 1; d >= 0; d--) {
    source += (rest % g.from[d] + g.before[d]) * stride;
    rest /= g.from[d];
    stride *= g.to[d];
  }
  out.store(i, work[source]);
}

template <class C>
mpg_status fold_back(const mpg_kernel_call *call) {
  const mpg_pad_back_params *params = (const mpg_pad_back_params *)call->params;
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  const mpg_shape *padded = &in->desc.shape, *own = &out->desc.shape;
  int64_t total = mpg_shape_size(padded), result = mpg_shape_size(own);
  if (result == 0) return MPG_OK;
  geometry g = geometry_of(own, padded, &params->pad_width, params->mode);
  C *work = (C *)mpg_device_scratch(call->device, (size_t)total * sizeof(C));
  if (!work) return MPG_DEVICE_OUT_OF_MEMORY;
  MPG_TRY(mpg_cuda_launch(call, load_kernel<C>, mpg_cuda_blocks(total), MPG_CUDA_THREADS, 0,
                          mpg_untyped_view(in), work, total));
  for (int d = 0; d < g.ndim && g.mode != 0; d++) {
    int64_t before = g.before[d], after = params->pad_width.values[2 * d + 1],
            lines = mpg_shape_product(padded, 0, d),
            inner = mpg_shape_product(padded, d + 1, g.ndim);
    if (before + after == 0) continue;
    MPG_TRY(mpg_cuda_launch(call, fold_kernel<C>, mpg_cuda_blocks(lines * inner), MPG_CUDA_THREADS,
                            0, work, lines, g.to[d], inner, before, after, g.from[d], g.mode));
  }
  return mpg_cuda_launch(call, middle_kernel<C>, mpg_cuda_blocks(result), MPG_CUDA_THREADS, 0, g,
                         (const C *)work, mpg_untyped_view(out), result);
}

} // namespace

MPG_CUDA_KERNEL(pad) {
  const mpg_pad_params *params = (const mpg_pad_params *)call->params;
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  geometry g = geometry_of(&in->desc.shape, &out->desc.shape, &params->pad_width, params->mode);
  if (count_of(in) == 0) g.mode = 0; /* there is nothing to copy from */
  uint64_t value =
      params->mode == 0 ? mpg_cuda_element(out->desc.dtype, params->constant_value) : 0;
  int64_t count = count_of(out);
  MPG_CUDA_SIZE(item_of(in), T,
                return mpg_cuda_launch(
                    call, pad_kernel<T>, mpg_cuda_blocks(count, 4 * MPG_CUDA_THREADS),
                    MPG_CUDA_THREADS, 0, g, (const T *)in->data, (T *)out->data, (T)value, count));
  return MPG_OK;
}

MPG_CUDA_KERNEL(pad_back) {
  return call->inputs[0].desc.dtype == MPG_FLOAT64 ? fold_back<double>(call)
                                                   : fold_back<float>(call);
}
