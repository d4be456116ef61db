/* Integer matrix products for quantized dense layers and convolutions: int8 or uint8 data times
 * int8 weights, with exact sums modulo 2^32. The dp4a instruction computes four products at once. A
 * block computes a tile of TILE output positions by TILE filters. It iterates over the terms of the
 * sums and keeps STEP words per position and filter in shared memory at a time. For a convolution,
 * the bytes of a position's window are gathered in the order of the weight (implicit im2col). */
#include "kernels/cuda/cuda.h"
extern "C" {
#include "op/layers/convolution.h"
}

namespace {

enum { TILE = 64, STEP = 8, SIDE = 16, EACH = TILE / SIDE };

struct product : mpg_window {        /* three axes */
  const uint8_t *data, *weight;      /* int8 or uint8 */
  int32_t *result;                   /* sums for all output positions of all samples */
  int64_t batch, places, k;          /* places: output positions per sample; k: terms per sum */
  int64_t channels, filters, groups; /* channels, filters: per group */
  bool last;                         /* all arrays are channels-last */
  bool whole_words, whole_weight;    /* data (weight) can be read as aligned 4-byte words */
};

template <class T>
__device__ __forceinline__ int32_t add_products(uint32_t a, uint32_t b, int32_t sum) {
#ifdef __CUDA_ARCH__
  int32_t result;
  if constexpr (T(-1) < T(0))
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
  else
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
  return result;
#else
  uint32_t total = (uint32_t)sum;
  for (int i = 0; i < 32; i += 8)
    total += (uint32_t)((int32_t)(T)(uint8_t)(a >> i) * (int32_t)(int8_t)(uint8_t)(b >> i));
  return (int32_t)total;
#endif
}

/* Reads the data for one output position as 4-byte words, in the weight's order. I is the type of
 * byte indices. 32-bit indices are faster. */
template <class I>
struct gathered {
  const uint8_t *image; /* data of the sample and group; NULL past the last position */
  int64_t at[3];        /* position of the window's first element in the data */

  __device__ __forceinline__ gathered(const product &t, int64_t group, int64_t row) : at() {
    int64_t sample = row / t.places, place = row - sample * t.places,
            plane = t.in[0] * t.in[1] * t.in[2];
    image = sample < t.batch ? t.data + sample * t.channels * t.groups * plane +
                                   group * t.channels * (t.last ? 1 : plane)
                             : NULL;
    for (int a = 2; a >= 0; a--) {
      int64_t next = place / t.out[a];
      at[a] = (place - next * t.out[a]) * t.stride[a] - t.pad[a];
      place = next;
    }
  }
  /* Returns the address of byte k, or NULL if it is in the padding. */
  __device__ __forceinline__ const uint8_t *find(const product &t, I k) const {
    I window = (I)(t.kernel[0] * t.kernel[1] * t.kernel[2]),
      channel = t.last ? k % (I)t.channels : k / window,
      tap = t.last ? k / (I)t.channels : k % window;
    int64_t place = 0, plane = t.in[0] * t.in[1] * t.in[2];
    I taps[3];
    for (int a = 2; a >= 0; a--) {
      I next = tap / (I)t.kernel[a];
      taps[a] = tap - next * (I)t.kernel[a];
      tap = next;
    }
    for (int a = 0; a < 3; a++) {
      int64_t x = at[a] + (int64_t)taps[a] * t.dilate[a];
      if (x < 0 || x >= t.in[a]) return NULL;
      place = place * t.in[a] + x;
    }
    return image + (t.last ? place * t.channels * t.groups + (int64_t)channel
                           : (int64_t)channel * plane + place);
  }
  __device__ __forceinline__ uint32_t word(const product &t, I k) const {
    uint32_t bytes = 0;
    if (!image || k >= (I)t.k) return 0;
    if (t.whole_words) {
      const uint8_t *from = find(t, k);
      return from ? *(const uint32_t *)from : 0;
    }
    for (int i = 0; i < 4 && k + i < (I)t.k; i++) {
      const uint8_t *from = find(t, k + (I)i);
      if (from) bytes |= (uint32_t)*from << 8 * i;
    }
    return bytes;
  }
};

template <class I>
__device__ __forceinline__ uint32_t weight_word(const product &t, int64_t group, int64_t filter,
                                                I k) {
  uint32_t bytes = 0;
  if (filter >= t.filters || k >= (I)t.k) return 0;
  const uint8_t *from = t.weight + (group * t.filters + filter) * t.k + (int64_t)k;
  if (t.whole_weight) return *(const uint32_t *)from;
  for (int i = 0; i < 4 && k + i < (I)t.k; i++) bytes |= (uint32_t)from[i] << 8 * i;
  return bytes;
}

template <class T, class I>
__global__ void __launch_bounds__(SIDE *SIDE) integer_kernel(product t, int64_t tiles) {
  enum { LOADED = SIDE * SIDE / STEP, LOADS = TILE / LOADED };
  __shared__ uint32_t places[TILE][STEP + 1], filters[TILE][STEP + 1];
  int64_t item = blockIdx.x, across = (t.filters + TILE - 1) / TILE, group = item / tiles,
          rest = item - group * tiles, first_row = rest / across * TILE,
          first_filter = rest % across * TILE;
  int mine = threadIdx.x / STEP, part = threadIdx.x % STEP, x = threadIdx.x % SIDE,
      y = threadIdx.x / SIDE;
  gathered<I> low(t, group, first_row + mine), high(t, group, first_row + mine + LOADED);
  int32_t sums[EACH][EACH] = {};
  for (I k = 0; k < (I)t.k; k += 4 * STEP) {
    I word = k + 4 * (I)part;
    places[mine][part] = low.word(t, word);
    places[mine + LOADED][part] = high.word(t, word);
    for (int i = 0; i < LOADS; i++)
      filters[mine + i * LOADED][part] =
          weight_word<I>(t, group, first_filter + mine + i * LOADED, word);
    __syncthreads();
#pragma unroll
    for (int s = 0; s < STEP; s++) {
      uint32_t a[EACH], b[EACH];
#pragma unroll
      for (int i = 0; i < EACH; i++)
        a[i] = places[y + i * SIDE][s], b[i] = filters[x + i * SIDE][s];
#pragma unroll
      for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) sums[i][j] = add_products<T>(a[i], b[j], sums[i][j]);
    }
    __syncthreads();
  }
  for (int i = 0; i < EACH; i++) {
    int64_t row = first_row + y + i * SIDE, sample = row / t.places,
            place = row - sample * t.places;
    for (int j = 0; j < EACH && sample < t.batch; j++) {
      int64_t filter = first_filter + x + j * SIDE, all = t.filters * t.groups;
      if (filter >= t.filters) continue;
      filter += group * t.filters;
      t.result[t.last ? row * all + filter : (sample * all + filter) * t.places + place] =
          sums[i][j];
    }
  }
}

mpg_status run(const mpg_kernel_call *call, product &t) {
  t.data = (const uint8_t *)call->inputs[0].data;
  t.weight = (const uint8_t *)call->inputs[1].data;
  t.result = (int32_t *)call->outputs[0].data;
  t.whole_weight = t.k % 4 == 0 && (uintptr_t)t.weight % 4 == 0;
  t.whole_words = t.last && t.channels % 4 == 0 && (uintptr_t)t.data % 4 == 0;
  int64_t tiles = (t.batch * t.places + TILE - 1) / TILE * ((t.filters + TILE - 1) / TILE);
  bool narrow = t.k < INT32_MAX, is_signed = call->inputs[0].desc.dtype == MPG_INT8;
  return mpg_cuda_launch(
      call,
      is_signed ? narrow ? integer_kernel<int8_t, uint32_t> : integer_kernel<int8_t, uint64_t>
      : narrow  ? integer_kernel<uint8_t, uint32_t>
                : integer_kernel<uint8_t, uint64_t>,
      mpg_cuda_blocks(tiles * t.groups, 1), SIDE * SIDE, 0, t, tiles);
}

} // namespace

mpg_status mpg_cuda_integer_fully_connected(const mpg_kernel_call *call) {
  const mpg_shape *weight = &call->inputs[1].desc.shape;
  product t = {};
  t.filters = weight->dims[0];
  t.k = t.channels = weight->dims[1];
  t.groups = t.places = 1;
  t.last = true;
  int64_t results = count_of(&call->outputs[0]);
  if (results == 0) return MPG_OK;
  t.batch = results / t.filters;
  for (int a = 0; a < 3; a++) t.in[a] = t.out[a] = t.kernel[a] = t.stride[a] = t.dilate[a] = 1;
  return run(call, t);
}

mpg_status mpg_cuda_integer_convolution(const mpg_kernel_call *call) {
  const mpg_convolution_params *p = (const mpg_convolution_params *)call->params;
  mpg_convolution c;
  mpg_convolution_set(&c, mpg_convolution_layout(call->op, p), &call->inputs[0].desc.shape,
                      &call->inputs[1].desc.shape, &call->outputs[0].desc.shape, &p->stride,
                      &p->dilate, &p->pad, p->num_group);
  if (count_of(&call->outputs[0]) == 0) return MPG_OK;
  product t = {};
  (mpg_window &)t = mpg_window_with_axes(&c.window, 3);
  t.batch = c.batch;
  t.places = mpg_window_product(t.out, 3);
  t.channels = c.channels / c.groups;
  t.filters = c.filters / c.groups;
  t.groups = c.groups;
  t.k = t.channels * mpg_window_product(t.kernel, 3);
  t.last = c.layout != MPG_CHANNELS_FIRST;
  return run(call, t);
}
