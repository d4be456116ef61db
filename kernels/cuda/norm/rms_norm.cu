/* rms_norm and its gradient, in the same ways as LayerNorm (norm.cu): rows in registers if they are
 * short enough, else a block per row. The gradient of gamma is summed over chunks of rows whose
 * length depends on shapes only, and the chunks' sums are added in a fixed order. */
#include "kernels/cuda/norm/held_rows.h"

namespace {

enum { WARP = 32, ROWS = MPG_COLUMN_ROWS, ROW_CHUNK = MPG_COLUMN_CHUNK };

template <class T>
struct rms_norm {
  int64_t rows, n;
  double eps, offset;
  const T *x, *dy, *gamma; /* gamma may be NULL */
  T *y;                    /* the output, or the gradient of x */
  void *rms;               /* per row, in the compute type */
  template <class C>
  __device__ __forceinline__ C factor(int64_t i) const {
    return gamma ? mpg_to<C>(gamma[i]) + (C)offset : (C)1;
  }
};

template <class T, class C>
__global__ void forward_kernel(rms_norm<T> t) {
  for (int64_t row = blockIdx.x; row < t.rows; row += gridDim.x) {
    const T *x = t.x + row * t.n;
    C squares = 0;
    for (int64_t i = threadIdx.x; i < t.n; i += blockDim.x)
      squares += mpg_to<C>(x[i]) * mpg_to<C>(x[i]);
    squares = mpg_block_reduce(squares, (C)0, mpg_plus());
    C rms = (C)sqrt(squares / (C)t.n + (C)t.eps), inverse = 1 / rms;
    for (int64_t i = threadIdx.x; i < t.n; i += blockDim.x)
      t.y[row * t.n + i] = mpg_to<T>(mpg_to<C>(x[i]) * inverse * t.template factor<C>(i));
    if (threadIdx.x == 0) ((C *)t.rms)[row] = rms;
  }
}

/* Computes dx = (g - x * mean(g * x) / rms^2) / rms, where g = dy * (gamma + offset). */
template <class T, class C>
__global__ void backward_kernel(rms_norm<T> t) {
  for (int64_t row = blockIdx.x; row < t.rows; row += gridDim.x) {
    const T *x = t.x + row * t.n, *dy = t.dy + row * t.n;
    C inverse = 1 / ((const C *)t.rms)[row], product = 0;
    for (int64_t i = threadIdx.x; i < t.n; i += blockDim.x)
      product += mpg_to<C>(dy[i]) * t.template factor<C>(i) * mpg_to<C>(x[i]);
    C slope = mpg_block_reduce(product, (C)0, mpg_plus()) / (C)t.n * inverse * inverse;
    for (int64_t i = threadIdx.x; i < t.n; i += blockDim.x)
      t.y[row * t.n + i] = mpg_to<T>(
          (mpg_to<C>(dy[i]) * t.template factor<C>(i) - mpg_to<C>(x[i]) * slope) * inverse);
  }
}

/* Computes partial sums of gamma's gradient. Each block sums 32 columns over a chunk of rows.
 * `partial` is [chunk][2][n], whose second half is unused. */
template <class T, class C>
__global__ void columns_kernel(rms_norm<T> t, C *partial) {
  __shared__ C parts[ROWS][WARP];
  int64_t tiles = (t.n + WARP - 1) / WARP, column = blockIdx.x % tiles * WARP + threadIdx.x,
          chunk = blockIdx.x / tiles;
  int64_t end = (chunk + 1) * ROW_CHUNK < t.rows ? (chunk + 1) * ROW_CHUNK : t.rows;
  C sum = 0;
  if (column < t.n)
    for (int64_t row = chunk * ROW_CHUNK + threadIdx.y; row < end; row += ROWS)
      sum += mpg_to<C>(t.dy[row * t.n + column]) * mpg_to<C>(t.x[row * t.n + column]) /
             ((const C *)t.rms)[row];
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y || column >= t.n) return;
  for (int k = 1; k < ROWS; k++) sum += parts[k][threadIdx.x];
  partial[chunk * 2 * t.n + column] = sum;
}

/* --- Rows in registers ------------------------------------------------------------------------ */
template <class R>
__global__ void __launch_bounds__(MPG_CUDA_THREADS)
    forward_rows_kernel(rms_norm<typename R::element> t) {
  typedef typename R::element T;
  int64_t row = (int64_t)blockIdx.x * R::ROWS + R::row();
  int n = row < t.rows ? (int)t.n : 0;
  float x[R::SIZE], squares = 0;
  R::load(t.x + row * t.n, n, 0, x);
#pragma unroll
  for (int k = 0; k < R::SIZE; k++) squares += x[k] * x[k];
  float rms = sqrtf(R::sum(squares) / (float)t.n + (float)t.eps), inverse = 1 / rms;
#pragma unroll
  for (int p = 0; p < (R::SIZE / R::EACH); p++) {
    int at = R::at(p);
    if (at >= n) continue;
    mpg_neighbours<T, R::EACH, R::full> gamma;
    float y[R::EACH];
    if (t.gamma) gamma.load(t.gamma + at, n - at);
#pragma unroll
    for (int k = 0; k < R::EACH; k++)
      y[k] = x[p * R::EACH + k] * inverse *
             (t.gamma ? gamma.template get<float>(k) + (float)t.offset : 1);
    mpg_store<R::full>(t.y + row * t.n + at, n - at, y);
  }
  if (n && R::me() == 0) ((float *)t.rms)[row] = rms;
}

/* Computes the gradient of x, and the block's partial sums of gamma's gradient over its `each`
 * rows. `partial` is [block][2][n], whose second half is unused. */
template <class R>
__global__ void __launch_bounds__(MPG_CUDA_THREADS, R::SIZE <= 16 ? 2 : 1)
    backward_rows_kernel(rms_norm<typename R::element> t, int each, float *partial) {
  typedef typename R::element T;
  float gammas[R::SIZE];
#pragma unroll
  for (int k = 0; k < R::SIZE; k++) gammas[k] = 0;
#pragma unroll 1
  for (int i = 0; i < each; i += R::ROWS) {
    int64_t row = (int64_t)blockIdx.x * each + i + R::row();
    int n = row < t.rows ? (int)t.n : 0;
    float x[R::SIZE], g[R::SIZE], product = 0, inverse = n ? 1 / ((const float *)t.rms)[row] : 0;
    R::load(t.x + row * t.n, n, 0, x);
    R::load(t.dy + row * t.n, n, 0, g);
#pragma unroll
    for (int p = 0; p < (R::SIZE / R::EACH); p++) {
      int at = R::at(p);
      mpg_neighbours<T, R::EACH, R::full> gamma;
      if (t.gamma && at < n) gamma.load(t.gamma + at, n - at);
#pragma unroll
      for (int k = 0; k < R::EACH; k++) {
        int j = p * R::EACH + k;
        gammas[j] += g[j] * (x[j] * inverse);
        if (t.gamma)
          g[j] = R::there(p, k, n) ? g[j] * (gamma.template get<float>(k) + (float)t.offset) : 0;
        product += g[j] * x[j];
      }
    }
    float slope = R::sum(product) / (float)t.n * inverse * inverse;
#pragma unroll
    for (int k = 0; k < R::SIZE; k++) g[k] = (g[k] - x[k] * slope) * inverse;
    R::store(t.y + row * t.n, n, g);
  }
  if (t.gamma) R::put_columns(gammas, (int)t.n, partial + (int64_t)blockIdx.x * 2 * t.n);
}

/* --- Launches --------------------------------------------------------------------------------- */
template <class T>
rms_norm<T> arguments(const mpg_kernel_call *call, const mpg_view *x, const mpg_view *gamma) {
  const mpg_rms_norm_params *p = (const mpg_rms_norm_params *)call->params;
  const mpg_shape *shape = &x->desc.shape;
  rms_norm<T> t = {};
  t.rows = mpg_shape_product(shape, 0, shape->ndim - 1);
  t.n = shape->dims[shape->ndim - 1];
  t.eps = p->eps;
  t.offset = p->offset;
  t.x = (const T *)x->data;
  t.gamma = gamma ? (const T *)gamma->data : NULL;
  t.y = (T *)call->outputs[0].data;
  return t;
}

template <class T>
bool is_full(const rms_norm<T> &t) {
  return mpg_rows_are_full<T>(t.n, t.x, t.dy, t.gamma, t.y);
}

template <class T, class C>
mpg_status forward(const mpg_kernel_call *call) {
  rms_norm<T> t =
      arguments<T>(call, &call->inputs[0], call->num_inputs > 1 ? &call->inputs[1] : NULL);
  t.rms = call->outputs[1].data;
  if constexpr (sizeof(C) == 4)
    if (mpg_row_is_held<T>(t.n))
      return mpg_with_held_row<T>(t.n, is_full(t), [&](auto form) {
        typedef decltype(form) R;
        return mpg_cuda_launch(call, forward_rows_kernel<R>, R::blocks(t.rows), MPG_CUDA_THREADS, 0,
                               t);
      });
  return mpg_cuda_launch(call, forward_kernel<T, C>, mpg_cuda_blocks(t.rows, 1),
                         mpg_row_threads(t.n), 0, t);
}

template <class T, class C>
mpg_status backward(const mpg_kernel_call *call) {
  rms_norm<T> t =
      arguments<T>(call, &call->inputs[1], call->num_inputs > 3 ? &call->inputs[3] : NULL);
  t.dy = (const T *)call->inputs[0].data;
  t.rms = call->inputs[2].data;
  T *dgamma = t.gamma ? (T *)call->outputs[1].data : NULL;
  if constexpr (sizeof(C) == 4)
    if (mpg_row_is_held<T>(t.n))
      return mpg_held_rows_backward<T>(
          call, t.rows, t.n, is_full(t), dgamma, (T *)NULL,
          [&](auto form, unsigned blocks, size_t bytes, int each, float *partial) {
            return mpg_cuda_launch(call, backward_rows_kernel<decltype(form)>, blocks,
                                   MPG_CUDA_THREADS, bytes, t, each, partial);
          });
  MPG_TRY(mpg_cuda_launch(call, backward_kernel<T, C>, mpg_cuda_blocks(t.rows, 1),
                          mpg_row_threads(t.n), 0, t));
  if (!dgamma) return MPG_OK;
  int64_t chunks = (t.rows + ROW_CHUNK - 1) / ROW_CHUNK;
  C *partial = (C *)mpg_device_scratch(call->device, (size_t)(chunks * 2 * t.n + 1) * sizeof(C));
  if (!partial) return MPG_DEVICE_OUT_OF_MEMORY;
  MPG_TRY(mpg_cuda_launch(call, columns_kernel<T, C>,
                          mpg_cuda_blocks(chunks * ((t.n + WARP - 1) / WARP), 1), dim3(WARP, ROWS),
                          0, t, partial));
  return mpg_cuda_add_shares(call, partial, chunks, t.n, call->outputs[1].desc.dtype, dgamma, NULL);
}

} // namespace

mpg_status mpg_cuda_rms_norm(const mpg_kernel_call *call) {
  MPG_CUDA_RUN_FLOAT(call->inputs[0].desc.dtype, forward, call);
}
mpg_status mpg_cuda_rms_norm_backward(const mpg_kernel_call *call) {
  MPG_CUDA_RUN_FLOAT(call->inputs[1].desc.dtype, backward, call);
}
