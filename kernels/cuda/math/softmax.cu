/* Softmax, log-softmax, cross-entropy, and their gradients. Arrays are (before, n, after).
 * Contiguous rows (after is 1) are held in the registers of a warp or a block, so they are read
 * only once (rows.h). For longer rows, one pass computes the sum of exponentials relative to a
 * running maximum (online softmax). For mixed dtypes and float64, a warp or a block iterates over a
 * row. If rows are not contiguous, one thread processes a row, and adjacent threads process
 * adjacent rows. 16-bit floats are computed in float and rounded when a result is stored.
 */
#include "kernels/cuda/access.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/scalar.h"

namespace {

enum kind { SOFTMAX, LOG_SOFTMAX, SOFTMAX_BACK, LOG_SOFTMAX_BACK };
enum { WARP = 32, SHORT = 1024 };
MPG_HOST_DEVICE bool is_forward(kind what) { return what == SOFTMAX || what == LOG_SOFTMAX; }

struct extent {
  int64_t before, n, after;
  double scale;
};

/* Groups of threads that share a row: a whole block, a warp, or a single thread (`alone`). */
struct whole_block {
  enum { THREADS = MPG_CUDA_THREADS };
  static __device__ __forceinline__ int first() { return threadIdx.x; }
  static __device__ __forceinline__ int step() { return blockDim.x; }
  template <class C, class F>
  static __device__ __forceinline__ C reduce(C value, C neutral, F combine) {
    return mpg_block_reduce(value, neutral, combine);
  }
};
struct warp {
  enum { THREADS = WARP };
  static __device__ __forceinline__ int first() { return threadIdx.x % WARP; }
  static __device__ __forceinline__ int step() { return WARP; }
  template <class C, class F>
  static __device__ __forceinline__ C reduce(C value, C, F combine) {
    return mpg_warp_reduce(value, combine);
  }
};
struct alone {
  enum { THREADS = 1 };
  static __device__ __forceinline__ int first() { return 0; }
  static __device__ __forceinline__ int step() { return 1; }
  template <class C, class F>
  static __device__ __forceinline__ C reduce(C value, C, F) {
    return value;
  }
};

/* Returns the index of a row's first element. There are e.before * e.after rows. */
__device__ __forceinline__ int64_t start_of(const extent &e, int64_t row) {
  return row / e.after * e.n * e.after + row % e.after;
}

/* Computes the largest of a row's elements x, which are scaled by e.scale, and the sum of
 * exp(x - largest). */
template <class G, class C, class S>
__device__ void statistics(const S &in, const extent &e, int64_t start, int64_t length, C *max_is,
                           C *sum_is) {
  C scale = (C)e.scale, max = -(C)INFINITY, sum = 0;
  for (int64_t i = G::first(); i < length; i += G::step())
    max = mpg_larger_score()(max, in.template load<C>(start + i * e.after) * scale);
  *max_is = max = G::reduce(max, -(C)INFINITY, mpg_larger_score());
  for (int64_t i = G::first(); i < length; i += G::step())
    sum += mpg_exp_of(in.template load<C>(start + i * e.after) * scale - max);
  *sum_is = G::reduce(sum, (C)0, mpg_plus());
}

template <class G, class C, class S, class O>
__device__ void forward_row(kind what, const S &in, const O &out, const extent &e, int64_t start,
                            int64_t length) {
  C scale = (C)e.scale, max, sum;
  statistics<G>(in, e, start, length, &max, &sum);
  if (what == SOFTMAX) {
    C inverse = 1 / sum;
    for (int64_t i = G::first(); i < e.n; i += G::step()) {
      int64_t at = start + i * e.after;
      out.store(at,
                i < length ? mpg_exp_of(in.template load<C>(at) * scale - max) * inverse : (C)0);
    }
  } else {
    C log_sum = mpg_log_of(sum);
    for (int64_t i = G::first(); i < e.n; i += G::step())
      out.store(start + i * e.after,
                (in.template load<C>(start + i * e.after) * scale - max) - log_sum);
  }
}

template <class G, class C, class S, class O>
__device__ void back_row(kind what, const S &grad, const S &y, const O &out, const extent &e,
                         int64_t start) {
  C scale = (C)e.scale, sum = 0;
  for (int64_t i = G::first(); i < e.n; i += G::step()) {
    C g = grad.template load<C>(start + i * e.after);
    sum += what == SOFTMAX_BACK ? g * y.template load<C>(start + i * e.after) : g;
  }
  sum = G::reduce(sum, (C)0, mpg_plus());
  for (int64_t i = G::first(); i < e.n; i += G::step()) {
    C g = grad.template load<C>(start + i * e.after),
      value = y.template load<C>(start + i * e.after);
    out.store(start + i * e.after, what == SOFTMAX_BACK ? value * (g - sum) * scale
                                                        : (g - mpg_exp_of(value) * sum) * scale);
  }
}

/* Loop bounds for iterating over rows. Each row is shared by a group G of threads. */
template <class G>
__device__ __forceinline__ int64_t first_row() {
  int per_block = (int)blockDim.x / G::step();
  return (int64_t)blockIdx.x * per_block + (int)threadIdx.x / G::step();
}
template <class G>
__device__ __forceinline__ int64_t row_stride() {
  return (int64_t)gridDim.x * ((int)blockDim.x / G::step());
}

__device__ __forceinline__ int64_t length_of(const mpg_untyped &lengths, int64_t row, int64_t n) {
  if (!lengths.data) return n;
  int64_t length = mpg_cuda_index_at(lengths, row);
  return length < 0 ? 0 : length > n ? n : length;
}

template <class G, class C, class S, class O>
__global__ void forward_kernel(kind what, S in, O out, extent e, mpg_untyped lengths) {
  for (int64_t row = first_row<G>(); row < e.before * e.after; row += row_stride<G>())
    forward_row<G, C>(what, in, out, e, start_of(e, row), length_of(lengths, row, e.n));
}

template <class G, class C, class S, class O>
__global__ void back_kernel(kind what, S grad, S y, O out, extent e) {
  for (int64_t row = first_row<G>(); row < e.before * e.after; row += row_stride<G>())
    back_row<G, C>(what, grad, y, out, e, start_of(e, row));
}

template <class G, class C, class S, class O>
mpg_status launch_by(const mpg_kernel_call *call, kind what, S in, S second, O out, const extent &e,
                     mpg_untyped lengths) {
  unsigned blocks = mpg_cuda_blocks(e.before * e.after, MPG_CUDA_THREADS / G::THREADS);
  if (is_forward(what))
    return mpg_cuda_launch(call, forward_kernel<G, C, S, O>, blocks, MPG_CUDA_THREADS, 0, what, in,
                           out, e, lengths);
  return mpg_cuda_launch(call, back_kernel<G, C, S, O>, blocks, MPG_CUDA_THREADS, 0, what, in,
                         second, out, e);
}
template <class C>
mpg_status launch_untyped(const mpg_kernel_call *call, kind what, mpg_untyped in,
                          mpg_untyped second, mpg_untyped out, const extent &e,
                          mpg_untyped lengths) {
  if (e.after > 1) return launch_by<alone, C>(call, what, in, second, out, e, lengths);
  if (e.n <= SHORT) return launch_by<warp, C>(call, what, in, second, out, e, lengths);
  return launch_by<whole_block, C>(call, what, in, second, out, e, lengths);
}

/* --- Rows in registers: R is an mpg_row ------------------------------------------------------- */
/* Loads the chunk at `begin` and scales it. Elements at or after `length` become -infinity, so that
 * they do not affect the softmax. */
template <class R>
__device__ __forceinline__ void read(const typename R::element *x, int64_t begin, int64_t n,
                                     int64_t length, float scale, float (&values)[R::SIZE]) {
  int left = R::left(n, begin);
  R::load(x + begin, left, -INFINITY, values);
  if (scale != 1)
#pragma unroll
    for (int i = 0; i < R::SIZE; i++)
      if (R::there(i / R::EACH, i % R::EACH, left)) values[i] *= scale;
  if (length < n)
#pragma unroll
    for (int i = 0; i < R::SIZE; i++)
      if (begin + R::at(i / R::EACH) + i % R::EACH >= length) values[i] = -INFINITY;
}

template <int SIZE>
__device__ __forceinline__ float largest(const float (&values)[SIZE]) {
  float max = values[0];
#pragma unroll
  for (int i = 1; i < SIZE; i++) max = fmaxf(max, values[i]);
  return max;
}
/* Returns the sum of exp(value - max). If KEPT, the exponentials replace the values. */
template <bool KEPT, int SIZE>
__device__ __forceinline__ float sum_of_exps(float (&values)[SIZE], float max) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < SIZE; i++) {
    float value = expf(values[i] - max);
    sum += value;
    if (KEPT) values[i] = value;
  }
  return sum;
}

/* Computes the same as `statistics` for a row in registers. A row that fits in one chunk stays in
 * `values`, as exponentials if KEPT. */
template <class R, bool KEPT>
__device__ __forceinline__ void row_statistics(const typename R::element *x, int64_t n,
                                               int64_t length, float scale,
                                               float (&values)[R::SIZE], float *max_is,
                                               float *sum_is) {
  if constexpr (R::held) {
    read<R>(x, 0, n, length, scale, values);
    *max_is = R::reduce(largest(values), -INFINITY, mpg_larger_number());
    *sum_is = R::sum(sum_of_exps<KEPT>(values, *max_is));
  } else {
    float max = -INFINITY, base = 0, sum = 0; /* base: max, or 0 as long as max is -infinity */
    for (int64_t begin = 0; begin < n; begin += R::CHUNK) {
      read<R>(x, begin, n, length, scale, values);
      float now = fmaxf(max, largest(values)), now_base = now == -INFINITY ? 0 : now;
      sum = sum * expf(base - now_base) + sum_of_exps<false>(values, now_base);
      max = now;
      base = now_base;
    }
    *max_is = R::reduce(max, -INFINITY, mpg_larger_number());
    *sum_is = R::sum(sum ? sum * expf(base - *max_is) : sum);
  }
}

/* Computes and stores the results for the chunk in `values`. */
template <class R, kind WHAT>
__device__ __forceinline__ void write(typename R::element *out, int64_t begin, int64_t n,
                                      int64_t length, float max, float sum,
                                      float (&values)[R::SIZE]) {
  float inverse = 1 / sum, log_sum = logf(sum);
#pragma unroll
  for (int i = 0; i < R::SIZE; i++)
    values[i] = WHAT == LOG_SOFTMAX ? (values[i] - max) - log_sum
                                    : (R::held ? values[i] : expf(values[i] - max)) * inverse;
  if (length < n)
#pragma unroll
    for (int i = 0; i < R::SIZE; i++)
      if (begin + R::at(i / R::EACH) + i % R::EACH >= length) values[i] = 0;
  R::store(out + begin, R::left(n, begin), values);
}

template <class R, kind WHAT>
__global__ void __launch_bounds__(MPG_CUDA_THREADS, R::full ? 0 : 2)
    forward_rows_kernel(const typename R::element *in, typename R::element *out, int64_t rows,
                        int64_t n, float scale, mpg_untyped lengths) {
  int64_t row = (int64_t)blockIdx.x * R::ROWS + R::row(), length = 0;
  if (row < rows)
    length = length_of(lengths, row, n);
  else
    n = 0;
  in += row * n;
  out += row * n;
  float values[R::SIZE], max, sum;
  row_statistics<R, WHAT == SOFTMAX>(in, n, length, scale, values, &max, &sum);
  if constexpr (R::held) {
    write<R, WHAT>(out, 0, n, length, max, sum, values);
  } else {
    typedef typename R::half H;
    for (int64_t begin = 0; begin < n; begin += H::CHUNK) {
      float some[H::SIZE];
      read<H>(in, begin, n, length, scale, some);
      write<H, WHAT>(out, begin, n, length, max, sum, some);
    }
  }
}

/* Computes a chunk's gradient from the output's gradient g, overwriting g, and stores the
 * result. */
template <class R>
__device__ __forceinline__ void write_back(kind what, typename R::element *out, int left,
                                           float (&g)[R::SIZE], const float (&y)[R::SIZE],
                                           float sum, float scale) {
  if (what == SOFTMAX_BACK)
#pragma unroll
    for (int i = 0; i < R::SIZE; i++) g[i] = y[i] * (g[i] - sum) * scale;
  else
#pragma unroll
    for (int i = 0; i < R::SIZE; i++) g[i] = (g[i] - expf(y[i]) * sum) * scale;
  R::store(out, left, g);
}
template <class R>
__device__ __forceinline__ float sum_of(kind what, const float (&g)[R::SIZE],
                                        const float (&y)[R::SIZE]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < R::SIZE; i++) sum += what == SOFTMAX_BACK ? g[i] * y[i] : g[i];
  return sum;
}

template <class R>
__global__ void __launch_bounds__(MPG_CUDA_THREADS, R::full ? 0 : 2)
    back_rows_kernel(kind what, const typename R::element *grad, const typename R::element *y,
                     typename R::element *out, int64_t rows, int64_t n, float scale) {
  int64_t row = (int64_t)blockIdx.x * R::ROWS + R::row();
  if (row >= rows) n = 0;
  grad += row * n;
  y += row * n;
  out += row * n;
  if constexpr (R::held) {
    float g[R::SIZE], value[R::SIZE];
    R::load(grad, (int)n, 0, g);
    R::load(y, (int)n, 0, value);
    write_back<R>(what, out, (int)n, g, value, R::sum(sum_of<R>(what, g, value)), scale);
  } else {
    typedef typename R::half H;
    float g[H::SIZE], value[H::SIZE], sum = 0;
    for (int64_t begin = 0; begin < n; begin += H::CHUNK) {
      H::load(grad + begin, H::left(n, begin), 0, g);
      H::load(y + begin, H::left(n, begin), 0, value);
      sum += sum_of<H>(what, g, value);
    }
    sum = H::sum(sum);
    for (int64_t begin = 0; begin < n; begin += H::CHUNK) {
      H::load(grad + begin, H::left(n, begin), 0, g);
      H::load(y + begin, H::left(n, begin), 0, value);
      write_back<H>(what, out + begin, H::left(n, begin), g, value, sum, scale);
    }
  }
}

/* True if all rows of n elements are aligned multiples of 16 bytes. */
template <class T>
bool are_packs(int64_t n, const mpg_view *a, const mpg_view *b, const mpg_view *c) {
  return n % mpg_pack<T>::COUNT == 0 && mpg_cuda_aligned(a->data) && mpg_cuda_aligned(b->data) &&
         mpg_cuda_aligned(c->data);
}

template <class T>
mpg_status launch_typed(const mpg_kernel_call *call, kind what, const mpg_view *in,
                        const mpg_view *second, const mpg_view *out, const extent &e,
                        mpg_untyped lengths) {
  if (e.after > 1)
    return launch_by<alone, float>(call, what, mpg_typed_view<T>(in), mpg_typed_view<T>(second),
                                   mpg_typed_view<T>(out), e, lengths);
  const T *a = (const T *)in->data, *b = (const T *)second->data;
  T *to = (T *)out->data;
  float scale = (float)e.scale;
  return mpg_with_row<T>(e.n, are_packs<T>(e.n, in, second, out), [&](auto form) {
    typedef decltype(form) R;
    if (is_forward(what))
      return mpg_cuda_launch(
          call,
          what == SOFTMAX ? forward_rows_kernel<R, SOFTMAX> : forward_rows_kernel<R, LOG_SOFTMAX>,
          R::blocks(e.before), MPG_CUDA_THREADS, 0, a, to, e.before, e.n, scale, lengths);
    return mpg_cuda_launch(call, back_rows_kernel<R>, R::blocks(e.before), MPG_CUDA_THREADS, 0,
                           what, a, b, to, e.before, e.n, scale);
  });
}

mpg_status run(const mpg_kernel_call *call, kind what, const mpg_view *second,
               const mpg_view *length, extent e) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  mpg_dtype dtype = in->desc.dtype;
  mpg_untyped lengths = {NULL, MPG_INT32};
  if (length) lengths = mpg_untyped_view(length);
  if (!second) second = in;
  if (e.before == 0 || e.n == 0 || e.after == 0) return MPG_OK;
  if (dtype == out->desc.dtype && dtype == second->desc.dtype) {
    if (dtype == MPG_FLOAT32) return launch_typed<float>(call, what, in, second, out, e, lengths);
    if (dtype == MPG_FLOAT16)
      return launch_typed<mpg_half>(call, what, in, second, out, e, lengths);
    if (dtype == MPG_BFLOAT16)
      return launch_typed<mpg_bfloat16>(call, what, in, second, out, e, lengths);
  }
  mpg_untyped from = mpg_untyped_view(in), other = mpg_untyped_view(second),
              to = mpg_untyped_view(out);
  if (from.dtype == MPG_FLOAT64 || other.dtype == MPG_FLOAT64 || to.dtype == MPG_FLOAT64)
    return launch_untyped<double>(call, what, from, other, to, e, lengths);
  return launch_untyped<float>(call, what, from, other, to, e, lengths);
}

extent along(const mpg_shape *shape, int64_t axis_param, double scale) {
  int axis = axis_of(axis_param, shape->ndim);
  return {mpg_shape_product(shape, 0, axis), shape->dims[axis],
          mpg_shape_product(shape, axis + 1, shape->ndim), scale};
}
extent merged(extent e) { return {e.before, e.n * e.after, 1, e.scale}; }

double scale_of(const mpg_opt_float *temperature) {
  return temperature->present ? 1 / temperature->value : 1;
}

mpg_status softmax_with(const mpg_kernel_call *call, double sign) {
  const mpg_softmax_params *params = (const mpg_softmax_params *)call->params;
  return run(
      call, SOFTMAX, NULL, call->num_inputs > 1 ? &call->inputs[1] : NULL,
      along(&call->inputs[0].desc.shape, params->axis, sign * scale_of(&params->temperature)));
}

mpg_status back_with(const mpg_kernel_call *call, kind what) {
  const mpg_softmax_back_params *params = (const mpg_softmax_back_params *)call->params;
  return run(call, what, &call->inputs[1], NULL,
             along(&call->inputs[0].desc.shape, params->axis, params->scale));
}

} // namespace

mpg_status mpg_cuda_softmax(const mpg_kernel_call *call) { return softmax_with(call, 1); }
mpg_status mpg_cuda_softmin(const mpg_kernel_call *call) { return softmax_with(call, -1); }

mpg_status mpg_cuda_log_softmax(const mpg_kernel_call *call) {
  const mpg_log_softmax_params *params = (const mpg_log_softmax_params *)call->params;
  return run(call, LOG_SOFTMAX, NULL, NULL,
             along(&call->inputs[0].desc.shape, params->axis, scale_of(&params->temperature)));
}

mpg_status mpg_cuda_softmax_back(const mpg_kernel_call *call) {
  return back_with(call, SOFTMAX_BACK);
}
mpg_status mpg_cuda_log_softmax_back(const mpg_kernel_call *call) {
  return back_with(call, LOG_SOFTMAX_BACK);
}

/* Forward pass of SoftmaxOutput: softmax along dimension 1 if multi_output, along the last
 * dimension if preserve_shape, and otherwise along all dimensions but the first. */
mpg_status mpg_cuda_softmax_output(const mpg_kernel_call *call) {
  const mpg_softmax_output_params *params = (const mpg_softmax_output_params *)call->params;
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  extent e = along(shape,
                   params->multi_output     ? 1
                   : params->preserve_shape ? -1
                   : shape->ndim > 1        ? 1
                                            : 0,
                   1);
  return run(call, SOFTMAX, NULL, NULL,
             params->multi_output || params->preserve_shape ? e : merged(e));
}

/* --- Cross-entropy ---------------------------------------------------------------------------- */
namespace {

/* Outputs per row: the loss, the largest score (`max`), and the logarithm of the sum of
 * exp(score - max) (`log_sum`). The last two are saved for backward. If `losses` is not NULL, `put`
 * stores only the unrounded loss, in `losses`, to be summed later. */
template <class C>
struct ce_results {
  mpg_untyped loss;
  C *max, *log_sum, *losses;
  __device__ __forceinline__ void put(int64_t row, C chosen, C largest, C sum) const {
    C log_total = mpg_log_of(sum), value = -((chosen - largest) - log_total);
    if (losses) {
      losses[row] = value;
      return;
    }
    loss.store(row, value);
    max[row] = largest;
    log_sum[row] = log_total;
  }
};

/* Computes losses that are bit-identical to those of log_softmax. */
template <class R>
__global__ void __launch_bounds__(MPG_CUDA_THREADS, R::full ? 0 : 2)
    ce_rows_kernel(const typename R::element *data, mpg_untyped label, ce_results<float> results,
                   int64_t rows, int64_t n) {
  int64_t row = (int64_t)blockIdx.x * R::ROWS + R::row(), length = row < rows ? n : 0;
  const typename R::element *x = data + row * n;
  float values[R::SIZE], max, sum;
  row_statistics<R, false>(x, length, length, 1, values, &max, &sum);
  if (row < rows && R::me() == 0)
    results.put(row, mpg_to<float>(x[mpg_index_clip(mpg_cuda_index_at(label, row), n)]), max, sum);
}
template <class G>
__global__ void ce_kernel(mpg_typed<double> data, mpg_untyped label, ce_results<double> results,
                          extent e) {
  for (int64_t row = first_row<G>(); row < e.before; row += row_stride<G>()) {
    double max, sum;
    statistics<G>(data, e, row * e.n, e.n, &max, &sum);
    if (G::first() == 0)
      results.put(row, data.data[row * e.n + mpg_index_clip(mpg_cuda_index_at(label, row), e.n)],
                  max, sum);
  }
}

/* Sums all losses. Runs in one block. */
template <class C>
__global__ void total_kernel(const C *losses, mpg_untyped out, int64_t rows) {
  C total = 0;
  for (int64_t i = threadIdx.x; i < rows; i += blockDim.x) total += losses[i];
  total = mpg_block_reduce(total, (C)0, mpg_plus());
  if (threadIdx.x == 0) out.store(0, total);
}

template <class T, class C>
struct ce_back {
  const T *data, *grad;
  mpg_untyped label;
  const C *max, *log_sum;
  T *out;
  int64_t rows, n;
};

/* Computes the gradient (softmax(x) - one_hot(label)) * grad, chunk by chunk, from the saved
 * statistics. Elements are independent, so rows need not fit in registers. */
template <class R>
__global__ void __launch_bounds__(MPG_CUDA_THREADS, R::full ? 0 : 2)
    ce_back_rows_kernel(ce_back<typename R::element, float> t) {
  int64_t row = (int64_t)blockIdx.x * R::ROWS + R::row();
  if (row >= t.rows) return;
  float max = t.max[row], log_sum = t.log_sum[row], g = mpg_to<float>(t.grad[row]);
  int64_t chosen = mpg_index_clip(mpg_cuda_index_at(t.label, row), t.n);
  for (int64_t begin = 0; begin < t.n; begin += R::CHUNK) {
    int left = R::left(t.n, begin),
        place = chosen >= begin && chosen - begin < left ? (int)(chosen - begin) : -1;
    float values[R::SIZE];
    R::load(t.data + row * t.n + begin, left, 0, values);
#pragma unroll
    for (int i = 0; i < R::SIZE; i++) values[i] = expf((values[i] - max) - log_sum) * g;
#pragma unroll
    for (int p = 0; p < R::SIZE / R::EACH; p++)
      if ((unsigned)(place - R::at(p)) < R::EACH)
#pragma unroll
        for (int k = 0; k < R::EACH; k++)
          if (place == R::at(p) + k) values[p * R::EACH + k] -= g;
    R::store(t.out + row * t.n + begin, left, values);
  }
}
__global__ void ce_back_kernel(ce_back<double, double> t) {
  for (int64_t row = blockIdx.x; row < t.rows; row += gridDim.x) {
    int64_t chosen = mpg_index_clip(mpg_cuda_index_at(t.label, row), t.n), start = row * t.n;
    for (int64_t i = threadIdx.x; i < t.n; i += blockDim.x) {
      double value = exp((t.data[start + i] - t.max[row]) - t.log_sum[row]) * t.grad[row];
      t.out[start + i] = i == chosen ? value - t.grad[row] : value;
    }
  }
}

template <class T, class C>
mpg_status launch_ce(const mpg_kernel_call *call, bool sum) {
  const mpg_view *data = &call->inputs[0];
  extent e = along(&data->desc.shape, -1, 1);
  mpg_untyped label = mpg_untyped_view(&call->inputs[1]);
  ce_results<C> results = {mpg_untyped_view(&call->outputs[0]), NULL, NULL, NULL};
  if (!sum) {
    results.max = (C *)call->outputs[1].data;
    results.log_sum = (C *)call->outputs[2].data;
  } else if (e.before > 0) {
    results.losses = (C *)mpg_device_scratch(call->device, (size_t)e.before * sizeof(C));
    if (!results.losses) return MPG_DEVICE_OUT_OF_MEMORY;
  }
  if (e.n == 0) e.before = 0;
  if constexpr (sizeof(C) == 4) {
    MPG_TRY(mpg_with_row<T>(e.n, are_packs<T>(e.n, data, data, data), [&](auto form) {
      typedef decltype(form) R;
      return mpg_cuda_launch(call, ce_rows_kernel<R>, R::blocks(e.before), MPG_CUDA_THREADS, 0,
                             (const T *)data->data, label, results, e.before, e.n);
    }));
  } else {
    mpg_typed<double> in = mpg_typed_view<double>(data);
    int64_t per_block = e.n <= SHORT ? MPG_CUDA_THREADS / WARP : 1;
    MPG_TRY(mpg_cuda_launch(call, e.n <= SHORT ? ce_kernel<warp> : ce_kernel<whole_block>,
                            mpg_cuda_blocks(e.before, per_block), MPG_CUDA_THREADS, 0, in, label,
                            results, e));
  }
  return sum ? mpg_cuda_launch(call, total_kernel<C>, 1, MPG_CUDA_THREADS, 0,
                               (const C *)results.losses, results.loss, e.before)
             : MPG_OK;
}

mpg_status cross_entropy(const mpg_kernel_call *call, bool sum) {
  MPG_CUDA_RUN_FLOAT(call->inputs[0].desc.dtype, launch_ce, call, sum);
}

template <class T, class C>
ce_back<T, C> ce_back_of(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[1];
  extent e = along(&data->desc.shape, -1, 1);
  return {(const T *)data->data,
          (const T *)call->inputs[0].data,
          mpg_untyped_view(&call->inputs[2]),
          (const C *)call->inputs[3].data,
          (const C *)call->inputs[4].data,
          (T *)call->outputs[0].data,
          e.n ? e.before : 0,
          e.n};
}

template <class T, int LANES, int PACKS>
mpg_status launch_ce_back_by(const mpg_kernel_call *call, const ce_back<T, float> &t, bool full) {
  typedef mpg_row<T, LANES, PACKS, true, false> packed;
  typedef mpg_row<T, LANES, PACKS, false, false> loose;
  return mpg_cuda_launch(call, full ? ce_back_rows_kernel<packed> : ce_back_rows_kernel<loose>,
                         packed::blocks(t.rows), MPG_CUDA_THREADS, 0, t);
}
template <class T>
mpg_status launch_ce_back(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[1];
  ce_back<T, float> t = ce_back_of<T, float>(call);
  bool full = are_packs<T>(t.n, data, data, &call->outputs[0]);
  if (t.n <= MPG_ROW_FEW * mpg_pack<T>::COUNT)
    return launch_ce_back_by<T, MPG_ROW_FEW, 1>(call, t, full);
  if (t.n <= MPG_ROW_WARP) return launch_ce_back_by<T, WARP, 1>(call, t, full);
  return launch_ce_back_by<T, MPG_CUDA_THREADS, 2>(call, t, full);
}

} // namespace

mpg_status mpg_cuda_softmax_cross_entropy(const mpg_kernel_call *call) {
  return cross_entropy(call, true);
}
mpg_status mpg_cuda_softmax_ce(const mpg_kernel_call *call) { return cross_entropy(call, false); }

mpg_status mpg_cuda_softmax_ce_back(const mpg_kernel_call *call) {
  switch (call->inputs[1].desc.dtype) {
    case MPG_FLOAT32: return launch_ce_back<float>(call);
    case MPG_FLOAT16: return launch_ce_back<mpg_half>(call);
    case MPG_BFLOAT16: return launch_ce_back<mpg_bfloat16>(call);
    default: break;
  }
  ce_back<double, double> t = ce_back_of<double, double>(call);
  return mpg_cuda_launch(call, ce_back_kernel, mpg_cuda_blocks(t.rows, 1), MPG_CUDA_THREADS, 0, t);
}
