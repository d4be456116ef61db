/* Dropout. A thread processes eight adjacent elements, so it usually computes two Philox blocks. */
#include "kernels/cuda/access.h"
#include "kernels/cuda/neighbours.h"
#include "kernels/cuda/dropout.h"

namespace {

enum { EACH = 8 };

struct plan {
  mpg_cuda_key key;
  const uint64_t *draw; /* key in device memory (mpg_cuda_write_key); NULL to use `key` */
  double scale;
  uint32_t threshold;
  /* The data may be a part of a larger array. The mask is then the larger array's mask at these
   * elements: of every `whole` elements of the larger array, the data has the `part` elements
   * starting at `begin`. If part is 0, the data is the whole array. */
  int64_t part, whole, begin;
  int ndim; /* the data's ndim if the mask is broadcast; 0 if the mask has the data's shape */
  int64_t dims[MPG_MAX_NDIM], strides[MPG_MAX_NDIM];
};

/* Draws mask elements [first, first + count), where count <= EACH. Returns one mask element per
 * byte, the first in the lowest byte. */
__device__ __forceinline__ uint64_t draw(const plan &p, mpg_random_key key, int64_t first,
                                         int count) {
  mpg_dropout_draw drawn(key);
  uint64_t kept = 0;
  for (int k = 0; k < count; k++) {
    int64_t at = first + k;
    if (p.part) at = at / p.part * p.whole + p.begin + at % p.part;
    kept |= (uint64_t)drawn.keeps((uint64_t)at, p.threshold) << 8 * k;
  }
  return kept;
}

__device__ __forceinline__ mpg_random_key key_of(const plan &p) {
  return p.draw ? mpg_cuda_read_key(p.draw) : p.key.read();
}

__global__ void mask_kernel(plan p, uint8_t *mask, int64_t count) {
  mpg_random_key key = key_of(p);
  for (int64_t i = MPG_CUDA_INDEX * EACH; i < count; i += MPG_CUDA_STRIDE * EACH) {
    int n = count - i < EACH ? (int)(count - i) : EACH;
    uint64_t kept = draw(p, key, i, n);
    for (int k = 0; k < n; k++) mask[i + k] = (uint8_t)(kept >> 8 * k);
  }
}

/* Draws the mask and applies it. If FULL, arrays are aligned. If the data is also the whole array
 * and begins with a new Philox block, elements are accessed 16 bytes at a time, and eight elements
 * use exactly two Philox blocks. Otherwise elements are processed one by one. */
template <class T, class C, bool FULL>
__global__ void dropout_kernel(plan p, const T *in, T *out, uint8_t *mask, int64_t count) {
  mpg_random_key key = key_of(p);
  C scale = (C)p.scale;
  int64_t i = MPG_CUDA_INDEX * EACH, step = MPG_CUDA_STRIDE * EACH;
  uint64_t begin = key.position + key.first;
  bool blocks = FULL && !p.part && !key.run && begin % 4 == 0;
  for (; blocks && i + EACH <= count; i += step) {
    mpg_neighbours<T, EACH, FULL> data;
    C values[EACH];
    uint32_t kept[2] = {};
    data.load(in + i, EACH);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      mpg_philox_block words =
          mpg_philox(key.seed, key.call, (begin + (uint64_t)i) / 4 + (unsigned)half);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        bool keep = mpg_is_kept(words.value[k], p.threshold);
        kept[half] |= (uint32_t)keep << 8 * k;
        values[4 * half + k] = keep ? data.template get<C>(4 * half + k) * scale : (C)0;
      }
    }
    *(uint2 *)(mask + i) = {kept[0], kept[1]};
    mpg_store<FULL>(out + i, EACH, values);
  }
  for (; i < count; i += step) {
    int n = count - i < EACH ? (int)(count - i) : EACH;
    uint64_t kept = draw(p, key, i, n);
    for (int k = 0; k < n; k++, kept >>= 8) {
      mask[i + k] = (uint8_t)kept;
      out[i + k] = mpg_to<T>(kept & 255 ? mpg_to<C>(in[i + k]) * scale : (C)0);
    }
  }
}

/* Multiplies kept elements by the scale and zeroes dropped ones. The mask has the data's shape. */
template <class T, class C, bool FULL>
__global__ void apply_kernel(plan p, const T *in, T *out, const uint8_t *mask, int64_t count) {
  C scale = (C)p.scale;
  int64_t i = MPG_CUDA_INDEX * EACH, step = MPG_CUDA_STRIDE * EACH;
  for (; FULL && i + EACH <= count; i += step) {
    mpg_neighbours<T, EACH, FULL> data;
    C values[EACH];
    data.load(in + i, EACH);
    uint2 kept = *(const uint2 *)(mask + i);
#pragma unroll
    for (int k = 0; k < EACH; k++)
      values[k] =
          (k < 4 ? kept.x : kept.y) >> k % 4 * 8 & 255 ? data.template get<C>(k) * scale : (C)0;
    mpg_store<FULL>(out + i, EACH, values);
  }
  for (; i < count; i += step)
    for (int64_t k = i; k < i + EACH && k < count; k++)
      out[k] = mpg_to<T>(mask[k] ? mpg_to<C>(in[k]) * scale : (C)0);
}

/* Like apply_kernel, but with a mask that is broadcast along some axes. */
template <class T, class C, class I>
__global__ void apply_shared_kernel(plan p, const T *in, T *out, const uint8_t *mask,
                                    int64_t count) {
  C scale = (C)p.scale;
  for (int64_t i = MPG_CUDA_INDEX; i < count; i += MPG_CUDA_STRIDE) {
    I left = (I)i;
    int64_t at = 0;
    for (int d = p.ndim - 1; d >= 0; d--) {
      I rest = left / (I)p.dims[d];
      at += (int64_t)(left - rest * (I)p.dims[d]) * p.strides[d];
      left = rest;
    }
    out[i] = mpg_to<T>(mask[at] ? mpg_to<C>(in[i]) * scale : (C)0);
  }
}

#define BY_DTYPE(dtype, LAUNCH)                       \
  switch (dtype) {                                    \
    case MPG_FLOAT32: return LAUNCH(float, float);    \
    case MPG_FLOAT64: return LAUNCH(double, double);  \
    case MPG_FLOAT16: return LAUNCH(mpg_half, float); \
    default: return LAUNCH(mpg_bfloat16, float);      \
  }

bool aligned(const mpg_view *data, const mpg_kernel_call *call) {
  return mpg_cuda_aligned(data->data) && mpg_cuda_aligned(call->outputs[0].data);
}

mpg_status apply(const mpg_kernel_call *call, const plan &p, const mpg_view *data,
                 const uint8_t *mask) {
  int64_t count = count_of(data);
  const void *in = data->data;
  void *out = call->outputs[0].data;
  bool full = aligned(data, call) && mpg_cuda_aligned(mask);
#define APPLY(T, C)                                                                                \
  p.ndim ? mpg_cuda_launch(call,                                                                   \
                           count <= INT32_MAX ? apply_shared_kernel<T, C, uint32_t>                \
                                              : apply_shared_kernel<T, C, uint64_t>,               \
                           mpg_cuda_blocks(count, 4 * MPG_CUDA_THREADS), MPG_CUDA_THREADS, 0, p,   \
                           (const T *)in, (T *)out, mask, count)                                   \
         : mpg_cuda_launch(call,                                                                   \
                           full ? apply_kernel<T, C, (sizeof(T) < 8)> : apply_kernel<T, C, false>, \
                           mpg_cuda_blocks(count, EACH * MPG_CUDA_THREADS), MPG_CUDA_THREADS, 0,   \
                           p, (const T *)in, (T *)out, mask, count)
  BY_DTYPE(data->desc.dtype, APPLY)
}

mpg_status draw_and_apply(const mpg_kernel_call *call, const plan &p, const mpg_view *data) {
  int64_t count = count_of(data);
  const void *in = data->data;
  void *out = call->outputs[0].data;
  uint8_t *mask = (uint8_t *)call->outputs[1].data;
  bool full = aligned(data, call) && mpg_cuda_aligned(mask);
#define DROPOUT(T, C)                                                                         \
  mpg_cuda_launch(call,                                                                       \
                  full ? dropout_kernel<T, C, (sizeof(T) < 8)> : dropout_kernel<T, C, false>, \
                  mpg_cuda_blocks(count, EACH * MPG_CUDA_THREADS), MPG_CUDA_THREADS, 0, p,    \
                  (const T *)in, (T *)out, mask, count)
  BY_DTYPE(data->desc.dtype, DROPOUT)
}

plan plan_of(double probability) {
  plan p = {};
  p.scale = mpg_dropout_scale(probability);
  p.threshold = mpg_dropout_threshold(probability);
  return p;
}

void align_mask(plan *p, const mpg_shape *data, const mpg_shape *mask) {
  if (mpg_shape_equal(data, mask)) return;
  int64_t step = 1;
  p->ndim = data->ndim;
  for (int d = data->ndim - 1; d >= 0; d--) {
    p->dims[d] = data->dims[d];
    p->strides[d] = mask->dims[d] == 1 ? 0 : step;
    step *= mask->dims[d];
  }
}

} // namespace

mpg_status mpg_cuda_dropout(const mpg_kernel_call *call) {
  enum { TRAINING, ALWAYS };
  const mpg_dropout_params *params = (const mpg_dropout_params *)call->params;
  const mpg_view *data = &call->inputs[0], *mask = &call->outputs[1];
  if (!(call->train || params->mode == ALWAYS) || !(params->p > 0))
    return mpg_cuda_copy(call, &call->inputs[0], &call->outputs[0]);
  plan p = plan_of(params->p);
  p.key = mpg_cuda_key_of(call);
  align_mask(&p, &data->desc.shape, &mask->desc.shape);
  if (!p.ndim) return draw_and_apply(call, p, data);
  int64_t drawn = count_of(mask);
  MPG_TRY(mpg_cuda_launch(call, mask_kernel, mpg_cuda_blocks(drawn, EACH * MPG_CUDA_THREADS),
                          MPG_CUDA_THREADS, 0, p, (uint8_t *)mask->data, drawn));
  return apply(call, p, data, (const uint8_t *)mask->data);
}

mpg_status mpg_cuda_dropout_draw(const mpg_kernel_call *call) {
  return mpg_cuda_write_key(call, (uint64_t *)call->outputs[0].data);
}

mpg_status mpg_cuda_dropout_part(const mpg_kernel_call *call) {
  const mpg_dropout_part_params *params = (const mpg_dropout_part_params *)call->params;
  const mpg_view *data = &call->inputs[0];
  const mpg_shape *shape = &data->desc.shape;
  if (!call->train || !(params->p > 0))
    return mpg_cuda_copy(call, &call->inputs[0], &call->outputs[0]);
  int axis = axis_of(params->axis, shape->ndim);
  int64_t inner = mpg_shape_product(shape, axis + 1, shape->ndim);
  plan p = plan_of(params->p);
  p.draw = (const uint64_t *)call->inputs[1].data;
  p.part = shape->dims[axis] * inner;
  p.whole = params->total * inner;
  p.begin = params->begin * inner;
  return draw_and_apply(call, p, data);
}

mpg_status mpg_cuda_dropout_apply(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[0], *mask = &call->inputs[1];
  plan p = plan_of(((const mpg_dropout_params *)call->params)->p);
  align_mask(&p, &data->desc.shape, &mask->desc.shape);
  return apply(call, p, data, (const uint8_t *)mask->data);
}
