/* LayerNorm, GroupNorm, InstanceNorm and L2Normalization.
 *
 * Contiguous rows are held in registers (rows.h) if they are short enough; otherwise a block
 * processes one row. If rows are not contiguous, a thread processes one row, and adjacent threads
 * process adjacent rows. Sums are in float (double for float64). Sums over rows (gradients of gamma
 * and beta) are split into chunks whose length depends only on shapes, and the chunks' sums are
 * added in a fixed order.
 */
#include "kernels/cuda/norm/held_rows.h"
#include "op/layers/norm.h"

namespace {

enum { WARP = 32, ROWS = MPG_COLUMN_ROWS, ROW_CHUNK = MPG_COLUMN_CHUNK };

/* Arguments of a normalization along n. The data is (outer, n, inner). */
template <class T>
struct layer_norm {
  int64_t outer, n, inner;
  double eps;
  const T *x, *dy, *gamma, *beta;
  T *y, *dgamma, *dbeta;
  void *mean, *deviation; /* per row: mean and standard deviation, in the compute type */
  bool rounded;           /* forward: `mean` and `deviation` have type T instead */

  template <class C>
  __device__ __forceinline__ void put_moments(int64_t row, C mean_is, C deviation_is) const {
    if (rounded) {
      ((T *)mean)[row] = mpg_to<T>(mean_is);
      ((T *)deviation)[row] = mpg_to<T>(deviation_is);
    } else {
      ((C *)mean)[row] = mean_is;
      ((C *)deviation)[row] = deviation_is;
    }
  }
};

/* Threads that share a row: all threads of a block if `whole` is true, else a single thread.
 * Defines the first element and the stride of a thread's loop over the row. */
template <bool whole>
struct row_threads {
  static __device__ __forceinline__ int first() { return whole ? threadIdx.x : 0; }
  static __device__ __forceinline__ int step() { return whole ? blockDim.x : 1; }
  template <class C>
  static __device__ __forceinline__ C sum(C value) {
    return whole ? mpg_block_reduce(value, (C)0, mpg_plus()) : value;
  }
};
/* Returns the first row of the block (`whole`) or of the thread. */
template <bool whole>
__device__ __forceinline__ int64_t first_row() {
  return whole ? (int64_t)blockIdx.x : MPG_CUDA_INDEX;
}
template <bool whole>
__device__ __forceinline__ int64_t row_stride() {
  return whole ? (int64_t)gridDim.x : MPG_CUDA_STRIDE;
}

template <class T, class C, bool whole>
__global__ void layer_norm_kernel(layer_norm<T> t) {
  typedef row_threads<whole> G;
  for (int64_t row = first_row<whole>(); row < t.outer * t.inner; row += row_stride<whole>()) {
    const T *x = t.x + row / t.inner * t.n * t.inner + row % t.inner;
    T *y = t.y + (x - t.x);
    C sum = 0, squares = 0;
    for (int64_t i = G::first(); i < t.n; i += G::step()) sum += mpg_to<C>(x[i * t.inner]);
    C mean = G::sum(sum) / (C)t.n;
    for (int64_t i = G::first(); i < t.n; i += G::step()) {
      C d = mpg_to<C>(x[i * t.inner]) - mean;
      squares += d * d;
    }
    C deviation = (C)sqrt(G::sum(squares) / (C)t.n + (C)t.eps), inverse = 1 / deviation;
    for (int64_t i = G::first(); i < t.n; i += G::step())
      y[i * t.inner] =
          mpg_to<T>((mpg_to<C>(x[i * t.inner]) - mean) * inverse * mpg_to<C>(t.gamma[i]) +
                    mpg_to<C>(t.beta[i]));
    if (G::first() == 0) t.put_moments(row, mean, deviation);
  }
}

template <class T, class C, bool whole>
__global__ void layer_norm_back_kernel(layer_norm<T> t) {
  typedef row_threads<whole> G;
  for (int64_t row = first_row<whole>(); row < t.outer * t.inner; row += row_stride<whole>()) {
    int64_t start = row / t.inner * t.n * t.inner + row % t.inner;
    const T *x = t.x + start, *dy = t.dy + start;
    T *dx = t.y + start;
    C mean = ((const C *)t.mean)[row], inverse = 1 / ((const C *)t.deviation)[row], sum = 0,
      product = 0;
    for (int64_t i = G::first(); i < t.n; i += G::step()) {
      C g = mpg_to<C>(dy[i * t.inner]) * mpg_to<C>(t.gamma[i]);
      sum += g;
      product += g * (mpg_to<C>(x[i * t.inner]) - mean);
    }
    C offset = G::sum(sum) / (C)t.n, slope = G::sum(product) / (C)t.n * inverse * inverse;
    for (int64_t i = G::first(); i < t.n; i += G::step()) {
      C g = mpg_to<C>(dy[i * t.inner]) * mpg_to<C>(t.gamma[i]);
      dx[i * t.inner] =
          mpg_to<T>((g - offset - (mpg_to<C>(x[i * t.inner]) - mean) * slope) * inverse);
    }
  }
}

/* Computes partial sums of dgamma and dbeta for contiguous rows. Each block sums 32 columns over a
 * chunk of rows. `partial` is [chunk][2][n]. */
template <class T, class C>
__global__ void layer_norm_columns_kernel(layer_norm<T> t, C *partial) {
  __shared__ C parts[2][ROWS][WARP];
  int64_t tiles = (t.n + WARP - 1) / WARP, column = blockIdx.x % tiles * WARP + threadIdx.x,
          chunk = blockIdx.x / tiles;
  int64_t end = (chunk + 1) * ROW_CHUNK < t.outer ? (chunk + 1) * ROW_CHUNK : t.outer;
  C gamma = 0, beta = 0;
  if (column < t.n)
    for (int64_t row = chunk * ROW_CHUNK + threadIdx.y; row < end; row += ROWS) {
      C g = mpg_to<C>(t.dy[row * t.n + column]);
      gamma += g * ((mpg_to<C>(t.x[row * t.n + column]) - ((const C *)t.mean)[row]) /
                    ((const C *)t.deviation)[row]);
      beta += g;
    }
  parts[0][threadIdx.y][threadIdx.x] = gamma;
  parts[1][threadIdx.y][threadIdx.x] = beta;
  __syncthreads();
  if (threadIdx.y < 2 && column < t.n) {
    C total = 0;
    for (int k = 0; k < ROWS; k++) total += parts[threadIdx.y][k][threadIdx.x];
    partial[(chunk * 2 + threadIdx.y) * t.n + column] = total;
  }
}

/* Computes the same sums for rows that are not contiguous, in a single chunk. One block per
 * position along the axis. */
template <class T, class C>
__global__ void layer_norm_affine_kernel(layer_norm<T> t, C *partial) {
  for (int64_t k = blockIdx.x; k < t.n; k += gridDim.x) {
    C gamma = 0, beta = 0;
    for (int64_t row = threadIdx.x; row < t.outer * t.inner; row += blockDim.x) {
      int64_t at = (row / t.inner * t.n + k) * t.inner + row % t.inner;
      C g = mpg_to<C>(t.dy[at]);
      gamma +=
          g * ((mpg_to<C>(t.x[at]) - ((const C *)t.mean)[row]) / ((const C *)t.deviation)[row]);
      beta += g;
    }
    gamma = mpg_block_reduce(gamma, (C)0, mpg_plus());
    beta = mpg_block_reduce(beta, (C)0, mpg_plus());
    if (threadIdx.x == 0) {
      partial[k] = gamma;
      partial[t.n + k] = beta;
    }
  }
}

/* --- LayerNorm with rows in registers --------------------------------------------------------- */
template <class R>
__global__ void __launch_bounds__(MPG_CUDA_THREADS)
    layer_norm_rows_kernel(layer_norm<typename R::element> t) {
  typedef typename R::element T;
  int64_t row = (int64_t)blockIdx.x * R::ROWS + R::row();
  int n = row < t.outer ? (int)t.n : 0;
  float x[R::SIZE], sum = 0, squares = 0;
  R::load(t.x + row * t.n, n, 0, x);
#pragma unroll
  for (int k = 0; k < R::SIZE; k++) sum += x[k];
  float mean = R::sum(sum) / (float)t.n;
#pragma unroll
  for (int k = 0; k < R::SIZE; k++) {
    x[k] -= mean;
    if (R::there(k / R::EACH, k % R::EACH, n)) squares += x[k] * x[k];
  }
  float deviation = sqrtf(R::sum(squares) / (float)t.n + (float)t.eps), inverse = 1 / deviation;
#pragma unroll
  for (int p = 0; p < (R::SIZE / R::EACH); p++) {
    int at = R::at(p);
    if (at >= n) continue;
    mpg_neighbours<T, R::EACH, R::full> gamma, beta;
    float y[R::EACH];
    gamma.load(t.gamma + at, n - at);
    beta.load(t.beta + at, n - at);
#pragma unroll
    for (int k = 0; k < R::EACH; k++)
      y[k] =
          x[p * R::EACH + k] * inverse * gamma.template get<float>(k) + beta.template get<float>(k);
    mpg_store<R::full>(t.y + row * t.n + at, n - at, y);
  }
  if (n && R::me() == 0) t.put_moments(row, mean, deviation);
}

/* Computes the gradient of the data, and the block's partial sums of dgamma and dbeta. A block has
 * `each` rows. `partial` is [block][2][n]. */
template <class R>
__global__ void __launch_bounds__(MPG_CUDA_THREADS, R::SIZE <= 16 ? 2 : 1)
    layer_norm_rows_back_kernel(layer_norm<typename R::element> t, int each, float *partial) {
  typedef typename R::element T;
  float gammas[R::SIZE], betas[R::SIZE];
#pragma unroll
  for (int k = 0; k < R::SIZE; k++) gammas[k] = betas[k] = 0;
#pragma unroll 1
  for (int i = 0; i < each; i += R::ROWS) {
    int64_t row = (int64_t)blockIdx.x * each + i + R::row();
    bool live = row < t.outer;
    int n = live ? (int)t.n : 0;
    float x[R::SIZE], g[R::SIZE], sum = 0, product = 0,
                                  mean = live ? ((const float *)t.mean)[row] : 0,
                                  inverse = live ? 1 / ((const float *)t.deviation)[row] : 0;
    R::load(t.x + row * t.n, n, mean, x);
    R::load(t.dy + row * t.n, n, 0, g);
#pragma unroll
    for (int p = 0; p < (R::SIZE / R::EACH); p++) {
      int at = R::at(p);
      mpg_neighbours<T, R::EACH, R::full> gamma;
      if (at < n) gamma.load(t.gamma + at, n - at);
#pragma unroll
      for (int k = 0; k < R::EACH; k++) {
        int j = p * R::EACH + k;
        x[j] -= mean;
        gammas[j] += g[j] * (x[j] * inverse);
        betas[j] += g[j];
        g[j] = R::there(p, k, n) ? g[j] * gamma.template get<float>(k) : 0;
        sum += g[j];
        product += g[j] * x[j];
      }
    }
    float offset = R::sum(sum) / (float)t.n,
          slope = R::sum(product) / (float)t.n * inverse * inverse;
#pragma unroll
    for (int k = 0; k < R::SIZE; k++) g[k] = (g[k] - offset - x[k] * slope) * inverse;
    R::store(t.y + row * t.n, n, g);
  }
  partial += (int64_t)blockIdx.x * 2 * t.n;
  R::put_columns(gammas, (int)t.n, partial);
  R::put_columns(betas, (int)t.n, partial + t.n);
}

enum { TOTAL_ROWS = 16 };
/* Adds the partial sums [chunk][2][n] over chunks. A block sums 32 columns, with 16 threads per
 * column. blockIdx.y selects dgamma or dbeta. */
template <class T, class C>
__global__ void __launch_bounds__(WARP *TOTAL_ROWS)
    shares_kernel(const C *partial, int64_t chunks, int64_t n, T *dgamma, T *dbeta) {
  __shared__ double parts[TOTAL_ROWS][WARP];
  int64_t column = (int64_t)blockIdx.x * WARP + threadIdx.x;
  double sum = 0;
  if (column < n) {
#pragma unroll 4
    for (int64_t chunk = threadIdx.y; chunk < chunks; chunk += TOTAL_ROWS)
      sum += (double)partial[(chunk * 2 + blockIdx.y) * n + column];
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  T *to = blockIdx.y ? dbeta : dgamma;
  if (threadIdx.y || column >= n || !to) return;
  for (int k = 1; k < TOTAL_ROWS; k++) sum += parts[k][threadIdx.x];
  to[column] = mpg_to<T>((C)sum);
}

/* Adds partial sums [chunk][2][width] in order. Element k of the result is the sum of entries k,
 * k + n, k + 2 n, ... of all chunks. */
template <class T, class C>
__global__ void totals_kernel(const C *partial, int64_t chunks, int64_t width, int64_t n, T *dgamma,
                              T *dbeta) {
  int64_t k = MPG_CUDA_INDEX;
  if (k >= n) return;
  double gamma = 0, beta = 0;
  for (int64_t chunk = 0; chunk < chunks; chunk++)
    for (int64_t at = k; at < width; at += n) {
      gamma += (double)partial[chunk * 2 * width + at];
      beta += (double)partial[(chunk * 2 + 1) * width + at];
    }
  dgamma[k] = mpg_to<T>((C)gamma);
  dbeta[k] = mpg_to<T>((C)beta);
}

void split_axis(const mpg_shape *shape, int64_t axis_param, int64_t *outer, int64_t *n,
                int64_t *inner) {
  int axis = axis_of(axis_param, shape->ndim);
  *outer = mpg_shape_product(shape, 0, axis);
  *n = shape->dims[axis];
  *inner = mpg_shape_product(shape, axis + 1, shape->ndim);
}

/* Return the kernel arguments for a forward op with inputs (data, gamma, beta), and for its
 * gradient op. */
template <class T>
layer_norm<T> forward_of(const mpg_kernel_call *call) {
  layer_norm<T> t = {};
  t.x = (const T *)call->inputs[0].data;
  t.gamma = (const T *)call->inputs[1].data;
  t.beta = (const T *)call->inputs[2].data;
  t.y = (T *)call->outputs[0].data;
  t.mean = call->outputs[1].data;
  t.deviation = call->outputs[2].data;
  t.rounded = call->outputs[1].desc.dtype == call->inputs[0].desc.dtype;
  return t;
}
template <class T>
layer_norm<T> backward_of(const mpg_kernel_call *call) {
  layer_norm<T> t = {};
  t.dy = (const T *)call->inputs[0].data;
  t.x = (const T *)call->inputs[1].data;
  t.gamma = (const T *)call->inputs[2].data;
  t.mean = call->inputs[3].data;
  t.deviation = call->inputs[4].data;
  t.y = (T *)call->outputs[0].data;
  t.dgamma = (T *)call->outputs[1].data;
  t.dbeta = (T *)call->outputs[2].data;
  return t;
}

template <class T>
bool is_held(const layer_norm<T> &t) {
  return t.inner == 1 && mpg_row_is_held<T>(t.n);
}
template <class T>
bool is_full(const layer_norm<T> &t) {
  return mpg_rows_are_full<T>(t.n, t.x, t.dy, t.gamma, t.beta, t.y);
}
/* Launches one block per row if rows are contiguous, else one thread per row. */
template <class T>
mpg_status launch_rows(const mpg_kernel_call *call, void (*block)(layer_norm<T>),
                       void (*thread)(layer_norm<T>), const layer_norm<T> &t) {
  int64_t rows = t.outer * t.inner;
  if (t.inner == 1)
    return mpg_cuda_launch(call, block, mpg_cuda_blocks(rows, 1), mpg_row_threads(t.n), 0, t);
  return mpg_cuda_launch(call, thread, mpg_cuda_blocks(rows), MPG_CUDA_THREADS, 0, t);
}

template <class T, class C>
mpg_status add_shares(const mpg_kernel_call *call, const C *shares, int64_t blocks, int64_t n,
                      T *dgamma, T *dbeta) {
  return mpg_cuda_launch(call, shares_kernel<T, C>, dim3(mpg_cuda_blocks(n, WARP), dbeta ? 2 : 1),
                         dim3(WARP, TOTAL_ROWS), 0, shares, blocks, n, dgamma, dbeta);
}

template <class T, class C>
mpg_status layer_norm_forward(const mpg_kernel_call *call) {
  const mpg_layer_norm_params *p = (const mpg_layer_norm_params *)call->params;
  layer_norm<T> t = forward_of<T>(call);
  t.eps = p->eps;
  split_axis(&call->inputs[0].desc.shape, p->axis, &t.outer, &t.n, &t.inner);
  if constexpr (sizeof(C) == 4)
    if (is_held(t))
      return mpg_with_held_row<T>(t.n, is_full(t), [&](auto form) {
        typedef decltype(form) R;
        return mpg_cuda_launch(call, layer_norm_rows_kernel<R>, R::blocks(t.outer),
                               MPG_CUDA_THREADS, 0, t);
      });
  return launch_rows(call, layer_norm_kernel<T, C, true>, layer_norm_kernel<T, C, false>, t);
}

template <class T, class C>
mpg_status layer_norm_backward(const mpg_kernel_call *call) {
  const mpg_layer_norm_backward_params *p = (const mpg_layer_norm_backward_params *)call->params;
  layer_norm<T> t = backward_of<T>(call);
  split_axis(&call->inputs[1].desc.shape, p->axis, &t.outer, &t.n, &t.inner);
  if constexpr (sizeof(C) == 4)
    if (is_held(t))
      return mpg_held_rows_backward<T>(
          call, t.outer, t.n, is_full(t), t.dgamma, t.dbeta,
          [&](auto form, unsigned blocks, size_t bytes, int each, float *partial) {
            return mpg_cuda_launch(call, layer_norm_rows_back_kernel<decltype(form)>, blocks,
                                   MPG_CUDA_THREADS, bytes, t, each, partial);
          });
  int64_t chunks = t.inner == 1 ? (t.outer + ROW_CHUNK - 1) / ROW_CHUNK : 1;
  C *partial = (C *)mpg_device_scratch(call->device, (size_t)(chunks * 2 * t.n + 1) * sizeof(C));
  if (!partial) return MPG_DEVICE_OUT_OF_MEMORY;
  MPG_TRY(launch_rows(call, layer_norm_back_kernel<T, C, true>, layer_norm_back_kernel<T, C, false>,
                      t));
  if (t.inner == 1) {
    MPG_TRY(mpg_cuda_launch(call, layer_norm_columns_kernel<T, C>,
                            mpg_cuda_blocks(chunks * ((t.n + WARP - 1) / WARP), 1),
                            dim3(WARP, ROWS), 0, t, partial));
  } else {
    MPG_TRY(mpg_cuda_launch(call, layer_norm_affine_kernel<T, C>, mpg_cuda_blocks(t.n, 1),
                            MPG_CUDA_THREADS, 0, t, partial));
  }
  return add_shares(call, partial, chunks, t.n, t.dgamma, t.dbeta);
}

/* --- GroupNorm and InstanceNorm: row r uses elements r % inner of gamma and beta -------------- */

template <class T, class C>
__global__ void group_norm_kernel(layer_norm<T> t) {
  for (int64_t row = blockIdx.x; row < t.outer; row += gridDim.x) {
    const T *x = t.x + row * t.n;
    C sum = 0, away = 0, squares = 0, n = t.n ? (C)t.n : (C)1;
    for (int64_t i = threadIdx.x; i < t.n; i += blockDim.x) sum += mpg_to<C>(x[i]);
    C mean = mpg_block_reduce(sum, (C)0, mpg_plus()) / n;
    for (int64_t i = threadIdx.x; i < t.n; i += blockDim.x) {
      C d = mpg_to<C>(x[i]) - mean;
      away += d;
      squares += d * d;
    }
    /* Corrects the rounding error of the mean, so that normalization subtracts the exact mean. */
    double moved = (double)mpg_block_reduce(away, (C)0, mpg_plus()) / (double)n,
           exact = (double)mean + moved;
    double variance =
        (double)mpg_block_reduce(squares, (C)0, mpg_plus()) / (double)n - moved * moved;
    mean = (C)exact;
    C deviation = (C)sqrt((C)(variance < 0 ? 0 : variance) + (C)t.eps),
      scale = mpg_to<C>(t.gamma[row % t.inner]) / deviation;
    C shift =
        (C)((double)mpg_to<C>(t.beta[row % t.inner]) - (exact - (double)mean) * (double)scale);
    for (int64_t i = threadIdx.x; i < t.n; i += blockDim.x)
      t.y[row * t.n + i] = mpg_to<T>((mpg_to<C>(x[i]) - mean) * scale + shift);
    if (threadIdx.x == 0) t.put_moments(row, mean, deviation);
  }
}

template <class T, class C>
__global__ void group_norm_back_kernel(layer_norm<T> t, C *partial) {
  for (int64_t row = blockIdx.x; row < t.outer; row += gridDim.x) {
    const T *x = t.x + row * t.n, *dy = t.dy + row * t.n;
    C mean = ((const C *)t.mean)[row], inverse = 1 / ((const C *)t.deviation)[row], sum = 0,
      product = 0, away = 0, n = t.n ? (C)t.n : (C)1;
    for (int64_t i = threadIdx.x; i < t.n; i += blockDim.x) {
      C g = mpg_to<C>(dy[i]), d = mpg_to<C>(x[i]) - mean;
      sum += g;
      product += g * d;
      away += d;
    }
    sum = mpg_block_reduce(sum, (C)0, mpg_plus());
    product = mpg_block_reduce(product, (C)0, mpg_plus());
    product = (C)((double)product - (double)mpg_block_reduce(away, (C)0, mpg_plus()) / (double)n *
                                        (double)sum); /* corrects for the rounded mean */
    if (threadIdx.x == 0) {
      partial[row] = product * inverse;
      partial[t.outer + row] = sum;
    }
    C offset = sum / n, slope = product / n * inverse * inverse,
      scale = mpg_to<C>(t.gamma[row % t.inner]) * inverse;
    for (int64_t i = threadIdx.x; i < t.n; i += blockDim.x)
      t.y[row * t.n + i] =
          mpg_to<T>((mpg_to<C>(dy[i]) - offset - (mpg_to<C>(x[i]) - mean) * slope) * scale);
  }
}

template <class T, class C>
mpg_status group_norm_forward(const mpg_kernel_call *call) {
  const mpg_view *x = &call->inputs[0];
  const mpg_shape *moments = &call->outputs[1].desc.shape;
  layer_norm<T> t = forward_of<T>(call);
  t.outer = mpg_shape_size(moments);
  t.inner = moments->dims[1];
  t.eps = call->op->id == MPG_OP_GroupNorm ? ((const mpg_group_norm_params *)call->params)->eps
                                           : ((const mpg_instance_norm_params *)call->params)->eps;
  if (t.outer == 0) return MPG_OK;
  t.n = count_of(x) / t.outer;
  return mpg_cuda_launch(call, group_norm_kernel<T, C>, mpg_cuda_blocks(t.outer, 1),
                         mpg_row_threads(t.n), 0, t);
}

template <class T, class C>
mpg_status group_norm_backward(const mpg_kernel_call *call) {
  const mpg_view *x = &call->inputs[1];
  const mpg_shape *moments = &call->inputs[3].desc.shape;
  layer_norm<T> t = backward_of<T>(call);
  t.outer = mpg_shape_size(moments);
  t.inner = moments->dims[1];
  C *partial = (C *)mpg_device_scratch(call->device, (size_t)(2 * t.outer + 1) * sizeof(C));
  if (!partial) return MPG_DEVICE_OUT_OF_MEMORY;
  if (t.outer) {
    t.n = count_of(x) / t.outer;
    MPG_TRY(mpg_cuda_launch(call, group_norm_back_kernel<T, C>, mpg_cuda_blocks(t.outer, 1),
                            mpg_row_threads(t.n), 0, t, partial));
  }
  return mpg_cuda_launch(call, totals_kernel<T, C>, mpg_cuda_blocks(t.inner), MPG_CUDA_THREADS, 0,
                         (const C *)partial, (int64_t)1, t.outer, t.inner, t.dgamma, t.dbeta);
}

/* --- L2Normalization: `deviation` holds the norms --------------------------------------------- */

template <class T, class C, bool whole>
__global__ void l2_kernel(layer_norm<T> t) {
  typedef row_threads<whole> G;
  for (int64_t row = first_row<whole>(); row < t.outer * t.inner; row += row_stride<whole>()) {
    const T *x = t.x + row / t.inner * t.n * t.inner + row % t.inner;
    T *y = t.y + (x - t.x);
    C squares = 0;
    for (int64_t i = G::first(); i < t.n; i += G::step()) {
      C v = mpg_to<C>(x[i * t.inner]);
      squares += v * v;
    }
    C norm = (C)sqrt(G::sum(squares) + (C)t.eps), inverse = 1 / norm;
    for (int64_t i = G::first(); i < t.n; i += G::step())
      y[i * t.inner] = mpg_to<T>(mpg_to<C>(x[i * t.inner]) * inverse);
    if (G::first() == 0) ((C *)t.deviation)[row] = norm;
  }
}

/* Computes dx = (dy - x * slope) / norm, where slope = sum(x * dy) / norm^2. */
template <class T, class C, bool whole>
__global__ void l2_back_kernel(layer_norm<T> t) {
  typedef row_threads<whole> G;
  for (int64_t row = first_row<whole>(); row < t.outer * t.inner; row += row_stride<whole>()) {
    int64_t start = row / t.inner * t.n * t.inner + row % t.inner;
    const T *x = t.x + start, *dy = t.dy + start;
    T *dx = t.y + start;
    C inverse = 1 / ((const C *)t.deviation)[row], product = 0;
    for (int64_t i = G::first(); i < t.n; i += G::step())
      product += mpg_to<C>(dy[i * t.inner]) * mpg_to<C>(x[i * t.inner]);
    C slope = G::sum(product) * inverse * inverse;
    for (int64_t i = G::first(); i < t.n; i += G::step())
      dx[i * t.inner] =
          mpg_to<T>((mpg_to<C>(dy[i * t.inner]) - mpg_to<C>(x[i * t.inner]) * slope) * inverse);
  }
}

template <class R>
__global__ void __launch_bounds__(MPG_CUDA_THREADS)
    l2_rows_kernel(layer_norm<typename R::element> t) {
  int64_t row = (int64_t)blockIdx.x * R::ROWS + R::row();
  int n = row < t.outer ? (int)t.n : 0;
  float x[R::SIZE], squares = 0;
  R::load(t.x + row * t.n, n, 0, x);
#pragma unroll
  for (int k = 0; k < R::SIZE; k++) squares += x[k] * x[k];
  float norm = sqrtf(R::sum(squares) + (float)t.eps), inverse = 1 / norm;
#pragma unroll
  for (int k = 0; k < R::SIZE; k++) x[k] *= inverse;
  R::store(t.y + row * t.n, n, x);
  if (n && R::me() == 0) ((float *)t.deviation)[row] = norm;
}

template <class R>
__global__ void __launch_bounds__(MPG_CUDA_THREADS)
    l2_rows_back_kernel(layer_norm<typename R::element> t) {
  int64_t row = (int64_t)blockIdx.x * R::ROWS + R::row();
  int n = row < t.outer ? (int)t.n : 0;
  float x[R::SIZE], g[R::SIZE], product = 0,
                                inverse = n ? 1 / ((const float *)t.deviation)[row] : 0;
  R::load(t.x + row * t.n, n, 0, x);
  R::load(t.dy + row * t.n, n, 0, g);
#pragma unroll
  for (int k = 0; k < R::SIZE; k++) product += g[k] * x[k];
  float slope = R::sum(product) * inverse * inverse;
#pragma unroll
  for (int k = 0; k < R::SIZE; k++) g[k] = (g[k] - x[k] * slope) * inverse;
  R::store(t.y + row * t.n, n, g);
}

template <class T>
void l2_split(const mpg_kernel_call *call, const mpg_view *x, layer_norm<T> *t) {
  const mpg_l2_normalization_params *p = (const mpg_l2_normalization_params *)call->params;
  mpg_l2_split(p->mode, &x->desc.shape, &t->outer, &t->n, &t->inner);
  t->eps = p->eps;
  t->x = (const T *)x->data;
  t->y = (T *)call->outputs[0].data;
}

template <class T, class C>
mpg_status l2_forward(const mpg_kernel_call *call) {
  layer_norm<T> t = {};
  l2_split(call, &call->inputs[0], &t);
  t.deviation = call->outputs[1].data;
  if constexpr (sizeof(C) == 4)
    if (is_held(t))
      return mpg_with_held_row<T>(t.n, is_full(t), [&](auto form) {
        typedef decltype(form) R;
        return mpg_cuda_launch(call, l2_rows_kernel<R>, R::blocks(t.outer), MPG_CUDA_THREADS, 0, t);
      });
  return launch_rows(call, l2_kernel<T, C, true>, l2_kernel<T, C, false>, t);
}

template <class T, class C>
mpg_status l2_backward(const mpg_kernel_call *call) {
  layer_norm<T> t = {};
  l2_split(call, &call->inputs[1], &t);
  t.dy = (const T *)call->inputs[0].data;
  t.deviation = call->inputs[2].data;
  if constexpr (sizeof(C) == 4)
    if (is_held(t))
      return mpg_with_held_row<T>(t.n, is_full(t), [&](auto form) {
        typedef decltype(form) R;
        return mpg_cuda_launch(call, l2_rows_back_kernel<R>, R::blocks(t.outer), MPG_CUDA_THREADS,
                               0, t);
      });
  return launch_rows(call, l2_back_kernel<T, C, true>, l2_back_kernel<T, C, false>, t);
}

} // namespace

extern "C" mpg_status mpg_cuda_add_shares(const mpg_kernel_call *call, const void *shares,
                                          int64_t blocks, int64_t n, mpg_dtype dtype, void *dgamma,
                                          void *dbeta) {
  const float *sums = (const float *)shares;
  switch (dtype) {
    case MPG_FLOAT64:
      return add_shares(call, (const double *)shares, blocks, n, (double *)dgamma, (double *)dbeta);
    case MPG_FLOAT16:
      return add_shares(call, sums, blocks, n, (mpg_half *)dgamma, (mpg_half *)dbeta);
    case MPG_BFLOAT16:
      return add_shares(call, sums, blocks, n, (mpg_bfloat16 *)dgamma, (mpg_bfloat16 *)dbeta);
    default: return add_shares(call, sums, blocks, n, (float *)dgamma, (float *)dbeta);
  }
}

mpg_status mpg_cuda_layer_norm(const mpg_kernel_call *call) {
  MPG_CUDA_RUN_FLOAT(call->inputs[0].desc.dtype, layer_norm_forward, call);
}
mpg_status mpg_cuda_layer_norm_backward(const mpg_kernel_call *call) {
  MPG_CUDA_RUN_FLOAT(call->inputs[1].desc.dtype, layer_norm_backward, call);
}
mpg_status mpg_cuda_group_norm(const mpg_kernel_call *call) {
  MPG_CUDA_RUN_FLOAT(call->inputs[0].desc.dtype, group_norm_forward, call);
}
mpg_status mpg_cuda_group_norm_backward(const mpg_kernel_call *call) {
  MPG_CUDA_RUN_FLOAT(call->inputs[1].desc.dtype, group_norm_backward, call);
}
mpg_status mpg_cuda_l2_normalization(const mpg_kernel_call *call) {
  MPG_CUDA_RUN_FLOAT(call->inputs[0].desc.dtype, l2_forward, call);
}
mpg_status mpg_cuda_l2_normalization_backward(const mpg_kernel_call *call) {
  MPG_CUDA_RUN_FLOAT(call->inputs[1].desc.dtype, l2_backward, call);
}
