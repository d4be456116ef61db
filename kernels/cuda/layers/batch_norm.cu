/* BatchNorm, alone and with an addition and relu behind it.
 *
 * Data is (outer, channels, inner). Sums over a channel are taken by chunks of a fixed length, in
 * float (double for float64), and chunks added in double by one thread a channel, so bits depend on
 * shapes alone. Normalised are distances from the mean as it is, not as rounding left it. What
 * elements are then multiplied with and shifted by lies in scratch memory: results of the size of
 * the channels may be written over parameters of that size.
 */
#include "kernels/cuda/access.h"

namespace {

enum { WARP = 32, ROWS = 8, CHUNK = 8192, ROW_CHUNK = 1024, SUMS = 3 };

struct extent {
  int64_t outer, channels, inner, chunks;
  bool last; /* inner is 1: neighbours are channels */
};

template <class T, class C>
struct batch_norm {
  const T *x, *dy, *residual; /* dy NULL: forward. residual NULL: none */
  T *y, *dresidual;
  const C *gamma, *beta; /* gamma NULL: 1 */
  C *moving_mean, *moving_var, *mean,
      *inverse; /* mean, inverse: results of forward, inputs of backward */
  C *dgamma, *dbeta;
  uint8_t *mask; /* per row: bits of what relu lets through, bits of NaN, and whether there is one.
                    NULL: no relu */
  int64_t mask_bytes;
  double eps, momentum;
  bool batch_stats;
  extent e;
  /* Scratch. */
  C *partial;                        /* [chunk][SUMS][channels] */
  C *center, *scale, *shift, *slope; /* per channel */
};

/* The gradient before relu: 0 where it cut off, NaN where it was given NaN. */
template <class T, class C>
__device__ __forceinline__ C through(const batch_norm<T, C> &t, int64_t row, int64_t c, C value) {
  if (!t.mask) return value;
  const uint8_t *mask = t.mask + row * (2 * t.mask_bytes + 1);
  if (mask[2 * t.mask_bytes] && mask[t.mask_bytes + c / 8] >> c % 8 & 1) return (C)NAN;
  return mask[c / 8] >> c % 8 & 1 ? value : (C)0;
}

enum sums { VALUES, DISTANCES, GRADIENTS };

template <class T, class C>
__device__ __forceinline__ void add_terms(const batch_norm<T, C> &t, sums what, int64_t at,
                                          int64_t row, int64_t c, C center, C *first, C *second,
                                          C *third) {
  C x = mpg_to<C>(t.x[at]) - center;
  if (what == GRADIENTS) {
    C g = through(t, row, c, mpg_to<C>(t.dy[at]));
    *first += g;
    *second += g * x;
    *third += x;
  } else {
    *first += x;
    *second += x * x; /* of distances only */
  }
}

/* Channels last: a block takes 32 channels of a chunk of rows. */
template <class T, class C>
__global__ void sums_last_kernel(batch_norm<T, C> t, sums what) {
  __shared__ C parts[SUMS][ROWS][WARP];
  int64_t tiles = (t.e.channels + WARP - 1) / WARP;
  int64_t c = blockIdx.x % tiles * WARP + threadIdx.x, chunk = blockIdx.x / tiles;
  int64_t end = (chunk + 1) * ROW_CHUNK < t.e.outer ? (chunk + 1) * ROW_CHUNK : t.e.outer;
  C first = 0, second = 0, third = 0;
  if (c < t.e.channels) {
    C center = what == VALUES ? (C)0 : t.center[c];
    for (int64_t row = chunk * ROW_CHUNK + threadIdx.y; row < end; row += ROWS)
      add_terms(t, what, row * t.e.channels + c, row, c, center, &first, &second, &third);
  }
  parts[0][threadIdx.y][threadIdx.x] = first;
  parts[1][threadIdx.y][threadIdx.x] = second;
  parts[2][threadIdx.y][threadIdx.x] = third;
  __syncthreads();
  if (threadIdx.y < SUMS && c < t.e.channels) {
    C total = 0;
    for (int k = 0; k < ROWS; k++) total += parts[threadIdx.y][k][threadIdx.x];
    t.partial[(chunk * SUMS + threadIdx.y) * t.e.channels + c] = total;
  }
}

/* A block takes a chunk of one channel. */
template <class T, class C>
__global__ void sums_kernel(batch_norm<T, C> t, sums what) {
  int64_t c = blockIdx.x % t.e.channels, chunk = blockIdx.x / t.e.channels,
          count = t.e.outer * t.e.inner;
  int64_t end = (chunk + 1) * CHUNK < count ? (chunk + 1) * CHUNK : count;
  C center = what == VALUES ? (C)0 : t.center[c], first = 0, second = 0, third = 0;
  for (int64_t i = chunk * CHUNK + threadIdx.x; i < end; i += blockDim.x)
    add_terms(t, what, (i / t.e.inner * t.e.channels + c) * t.e.inner + i % t.e.inner, (int64_t)0,
              c, center, &first, &second, &third);
  first = mpg_block_reduce(first, (C)0, mpg_plus());
  second = mpg_block_reduce(second, (C)0, mpg_plus());
  third = mpg_block_reduce(third, (C)0, mpg_plus());
  if (threadIdx.x == 0) {
    t.partial[chunk * SUMS * t.e.channels + c] = first;
    t.partial[(chunk * SUMS + 1) * t.e.channels + c] = second;
    t.partial[(chunk * SUMS + 2) * t.e.channels + c] = third;
  }
}

template <class T, class C>
__device__ __forceinline__ double total_of(const batch_norm<T, C> &t, int which, int64_t c) {
  double total = 0;
  for (int64_t k = 0; k < t.e.chunks; k++)
    total += (double)t.partial[(k * SUMS + which) * t.e.channels + c];
  return total;
}

template <class T, class C>
__global__ void mean_kernel(batch_norm<T, C> t) {
  int64_t c = MPG_CUDA_INDEX;
  if (c < t.e.channels)
    t.center[c] = (C)(total_of(t, 0, c) / ((double)t.e.outer * (double)t.e.inner));
}

/* The statistics of a channel, and what its elements are to be multiplied with and shifted by. */
template <class T, class C>
__global__ void statistics_kernel(batch_norm<T, C> t) {
  int64_t c = MPG_CUDA_INDEX;
  if (c >= t.e.channels) return;
  C gamma = t.gamma ? t.gamma[c] : (C)1, mean, variance;
  double rest = 0; /* what rounding takes from the mean */
  if (t.batch_stats) {
    C m = (C)t.momentum;
    double count = (double)t.e.outer * (double)t.e.inner, away = total_of(t, 0, c) / count,
           exact = (double)t.center[c] + away;
    double squares = total_of(t, 1, c) / count - away * away;
    mean = (C)exact;
    rest = exact - (double)mean;
    variance = (C)(squares < 0 ? 0 : squares);
    t.moving_mean[c] = t.moving_mean[c] * m + mean * (1 - m);
    t.moving_var[c] = t.moving_var[c] * m + variance * (1 - m);
  } else {
    mean = t.moving_mean[c];
    variance = t.moving_var[c];
  }
  C inverse = variance == 0 && t.eps == 0 ? (C)0 : (C)1 / (C)sqrt(variance + (C)t.eps);
  t.center[c] = mean;
  t.scale[c] = inverse * gamma;
  t.shift[c] = (C)((double)t.beta[c] - rest * (double)t.scale[c]);
  t.mean[c] = mean;
  t.inverse[c] = inverse;
}

template <class T, class C>
__global__ void apply_kernel(batch_norm<T, C> t) {
  for (int64_t i = MPG_CUDA_INDEX; i < t.e.outer * t.e.channels * t.e.inner; i += MPG_CUDA_STRIDE) {
    int64_t c = i / t.e.inner % t.e.channels;
    t.y[i] = mpg_to<T>((mpg_to<C>(t.x[i]) - t.center[c]) * t.scale[c] + t.shift[c]);
  }
}

/* With relu, channels last: a block a row, a thread eight channels, so that each writes its bytes
 * of the mask. */
template <class T, class C>
__global__ void apply_relu_kernel(batch_norm<T, C> t) {
  for (int64_t row = blockIdx.x; row < t.e.outer; row += gridDim.x) {
    uint8_t *mask = t.mask + row * (2 * t.mask_bytes + 1);
    int any = 0;
    for (int64_t byte = threadIdx.x; byte < t.mask_bytes; byte += blockDim.x) {
      unsigned passes = 0, nans = 0;
      for (int k = 0; k < 8 && byte * 8 + k < t.e.channels; k++) {
        int64_t c = byte * 8 + k, i = row * t.e.channels + c;
        C value = mpg_to<C>(mpg_to<T>((mpg_to<C>(t.x[i]) - t.center[c]) * t.scale[c] +
                                      t.shift[c])); /* rounded, as BatchNorm's result is */
        if (t.residual) value = mpg_to<C>(mpg_to<T>(mpg_to<C>(t.residual[i]) + value));
        bool nan = value != value, passing = value > 0;
        passes |= (unsigned)passing << k;
        nans |= (unsigned)nan << k;
        t.y[i] = mpg_to<T>(nan || passing ? value : (C)0);
      }
      mask[byte] = (uint8_t)passes;
      mask[t.mask_bytes + byte] = (uint8_t)nans;
      any |= nans != 0;
    }
    any = mpg_block_reduce(any, 0, mpg_larger());
    if (threadIdx.x == 0) mask[2 * t.mask_bytes] = (uint8_t)any;
  }
}

/* dx = (dy - mean(dy) - (x - mean) * inverse^2 * mean(dy * (x - mean))) * inverse * gamma, the
 * means only with batch statistics. */
template <class T, class C>
__global__ void gradients_kernel(batch_norm<T, C> t) {
  int64_t c = MPG_CUDA_INDEX;
  if (c >= t.e.channels) return;
  double sum = total_of(t, 0, c), product = total_of(t, 1, c),
         count = (double)t.e.outer * (double)t.e.inner;
  if (t.batch_stats && count > 0)
    product -= total_of(t, 2, c) / count * sum; /* about the mean itself, not as it was rounded */
  C inverse = t.inverse[c], gamma = t.gamma ? t.gamma[c] : (C)1;
  t.scale[c] = inverse * gamma;
  t.slope[c] = t.batch_stats ? (C)(product / count * inverse * inverse) : (C)0;
  t.shift[c] = t.batch_stats ? (C)(sum / count) : (C)0;
  t.dgamma[c] = t.gamma ? (C)(product * inverse) : (C)0;
  t.dbeta[c] = (C)sum;
}

template <class T, class C>
__global__ void center_kernel(batch_norm<T, C> t) {
  int64_t c = MPG_CUDA_INDEX;
  if (c < t.e.channels) t.center[c] = t.mean[c];
}

template <class T, class C>
__global__ void back_kernel(batch_norm<T, C> t) {
  for (int64_t i = MPG_CUDA_INDEX; i < t.e.outer * t.e.channels * t.e.inner; i += MPG_CUDA_STRIDE) {
    int64_t c = i / t.e.inner % t.e.channels;
    C g = through(t, i / t.e.channels, c, mpg_to<C>(t.dy[i])), x = mpg_to<C>(t.x[i]);
    if (t.dresidual) t.dresidual[i] = mpg_to<T>(g);
    t.y[i] = mpg_to<T>((g - t.shift[c] - (x - t.center[c]) * t.slope[c]) * t.scale[c]);
  }
}

template <class T, class C>
mpg_status launch_sums(const mpg_kernel_call *call, const batch_norm<T, C> &t, sums what) {
  if (t.e.last)
    return mpg_cuda_launch(call, sums_last_kernel<T, C>,
                           mpg_cuda_blocks((t.e.channels + WARP - 1) / WARP * t.e.chunks, 1),
                           dim3(WARP, ROWS), 0, t, what);
  return mpg_cuda_launch(call, sums_kernel<T, C>, mpg_cuda_blocks(t.e.channels * t.e.chunks, 1),
                         MPG_CUDA_THREADS, 0, t, what);
}

template <class T, class C>
mpg_status prepare(const mpg_kernel_call *call, batch_norm<T, C> *t, int axis) {
  const mpg_shape *shape = &call->inputs[t->dy ? 1 : 0].desc.shape;
  extent *e = &t->e;
  e->outer = mpg_shape_product(shape, 0, axis);
  e->channels = shape->dims[axis];
  e->inner = mpg_shape_product(shape, axis + 1, shape->ndim);
  e->last = e->inner == 1;
  int64_t count = e->outer * e->inner, chunk = e->last ? ROW_CHUNK : CHUNK;
  e->chunks = (count + chunk - 1) / chunk;
  t->mask_bytes = (e->channels + 7) / 8;
  size_t vector = mpg_align_up((size_t)e->channels * sizeof(C), 64);
  char *scratch = (char *)mpg_device_scratch(
      call->device, vector * 4 + (size_t)(e->chunks * SUMS * e->channels) * sizeof(C));
  if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  t->center = (C *)scratch;
  t->scale = (C *)(scratch + vector);
  t->shift = (C *)(scratch + 2 * vector);
  t->slope = (C *)(scratch + 3 * vector);
  t->partial = (C *)(scratch + 4 * vector);
  return MPG_OK;
}

template <class T, class C>
mpg_status forward(const mpg_kernel_call *call, batch_norm<T, C> t) {
  unsigned channels = mpg_cuda_blocks(t.e.channels);
  int64_t count = t.e.outer * t.e.channels * t.e.inner;
  if (t.batch_stats) {
    MPG_TRY(launch_sums(call, t, VALUES));
    MPG_TRY(mpg_cuda_launch(call, mean_kernel<T, C>, channels, MPG_CUDA_THREADS, 0, t));
    MPG_TRY(launch_sums(call, t, DISTANCES));
  }
  MPG_TRY(mpg_cuda_launch(call, statistics_kernel<T, C>, channels, MPG_CUDA_THREADS, 0, t));
  if (t.mask)
    return mpg_cuda_launch(call, apply_relu_kernel<T, C>, mpg_cuda_blocks(count ? t.e.outer : 0, 1),
                           t.e.channels <= 512 ? 64 : MPG_CUDA_THREADS, 0, t);
  return mpg_cuda_launch(call, apply_kernel<T, C>, mpg_cuda_blocks(count, 4 * MPG_CUDA_THREADS),
                         MPG_CUDA_THREADS, 0, t);
}

template <class T, class C>
mpg_status backward(const mpg_kernel_call *call, const batch_norm<T, C> &t) {
  unsigned channels = mpg_cuda_blocks(t.e.channels);
  MPG_TRY(mpg_cuda_launch(call, center_kernel<T, C>, channels, MPG_CUDA_THREADS, 0, t));
  MPG_TRY(launch_sums(call, t, GRADIENTS));
  MPG_TRY(mpg_cuda_launch(call, gradients_kernel<T, C>, channels, MPG_CUDA_THREADS, 0, t));
  return mpg_cuda_launch(
      call, back_kernel<T, C>,
      mpg_cuda_blocks(t.e.outer * t.e.channels * t.e.inner, 4 * MPG_CUDA_THREADS), MPG_CUDA_THREADS,
      0, t);
}

template <class T, class C>
mpg_status run_forward(const mpg_kernel_call *call, bool fix_gamma, bool use_global_stats,
                       double eps, double momentum, int axis, bool relu, bool add) {
  batch_norm<T, C> t = {};
  t.eps = eps;
  t.momentum = momentum;
  t.x = (const T *)call->inputs[0].data;
  t.gamma = fix_gamma ? NULL : (const C *)call->inputs[1].data;
  t.beta = (const C *)call->inputs[2].data;
  t.moving_mean = (C *)call->inputs[3].data;
  t.moving_var = (C *)call->inputs[4].data;
  t.residual = add ? (const T *)call->inputs[5].data : NULL;
  t.y = (T *)call->outputs[0].data;
  t.mean = (C *)call->outputs[1].data;
  t.inverse = (C *)call->outputs[2].data;
  t.mask = relu ? (uint8_t *)call->outputs[3].data : NULL;
  MPG_TRY(prepare(call, &t, axis));
  t.batch_stats = call->train && !use_global_stats &&
                  t.e.outer * t.e.inner > 0; /* an empty batch has no statistics */
  return forward(call, t);
}

template <class T, class C>
mpg_status run_backward(const mpg_kernel_call *call, bool fix_gamma, bool batch_stats, int axis,
                        bool relu, bool add) {
  batch_norm<T, C> t = {};
  t.dy = (const T *)call->inputs[0].data;
  t.x = (const T *)call->inputs[1].data;
  t.gamma = fix_gamma ? NULL : (const C *)call->inputs[2].data;
  t.mean = (C *)call->inputs[3].data;
  t.inverse = (C *)call->inputs[4].data;
  t.mask = relu ? (uint8_t *)call->inputs[5].data : NULL;
  t.y = (T *)call->outputs[0].data;
  t.dgamma = (C *)call->outputs[1].data;
  t.dbeta = (C *)call->outputs[2].data;
  t.dresidual = add ? (T *)call->outputs[3].data : NULL;
  t.batch_stats = batch_stats;
  MPG_TRY(prepare(call, &t, axis));
  return backward(call, t);
}

#define RUN(dtype, function, ...)                                          \
  switch (dtype) {                                                         \
    case MPG_FLOAT32: return function<float, float>(call, __VA_ARGS__);    \
    case MPG_FLOAT64: return function<double, double>(call, __VA_ARGS__);  \
    case MPG_FLOAT16: return function<mpg_half, float>(call, __VA_ARGS__); \
    default: return function<mpg_bfloat16, float>(call, __VA_ARGS__);      \
  }

} // namespace

MPG_CUDA_KERNEL(batch_norm) {
  const mpg_batch_norm_params *p = (const mpg_batch_norm_params *)call->params;
  const mpg_desc *x = &call->inputs[0].desc;
  int axis = axis_of(p->axis, x->shape.ndim);
  RUN(x->dtype, run_forward, p->fix_gamma, p->use_global_stats, p->eps, p->momentum, axis, false,
      false)
}

MPG_CUDA_KERNEL(batch_norm_backward) {
  const mpg_batch_norm_backward_params *p = (const mpg_batch_norm_backward_params *)call->params;
  const mpg_desc *x = &call->inputs[1].desc;
  int axis = axis_of(p->axis, x->shape.ndim);
  RUN(x->dtype, run_backward, p->fix_gamma, p->batch_stats, axis, false, false)
}

MPG_CUDA_KERNEL(batch_norm_relu) {
  const mpg_batch_norm_relu_params *p = (const mpg_batch_norm_relu_params *)call->params;
  const mpg_desc *x = &call->inputs[0].desc;
  int axis = x->shape.ndim - 1;
  RUN(x->dtype, run_forward, p->fix_gamma, p->use_global_stats, p->eps, p->momentum, axis, true,
      p->add)
}

MPG_CUDA_KERNEL(batch_norm_relu_backward) {
  const mpg_batch_norm_relu_backward_params *p =
      (const mpg_batch_norm_relu_backward_params *)call->params;
  const mpg_desc *x = &call->inputs[1].desc;
  int axis = x->shape.ndim - 1;
  RUN(x->dtype, run_backward, p->fix_gamma, p->batch_stats, axis, true, p->add)
}
