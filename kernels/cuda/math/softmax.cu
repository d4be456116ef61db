/* Softmax, its logarithm, cross-entropy, and their gradients. Arrays are (before, n, after). Rows
 * that lie together (after 1) go to a warp each, or to a block where they are long; else a thread
 * goes along each row, and neighbouring threads along neighbouring rows. Halves compute in float,
 * and round where a result is stored.
 */
#include "kernels/cuda/access.h"

namespace {

enum kind { SOFTMAX, LOG_SOFTMAX, SOFTMAX_BACK, LOG_SOFTMAX_BACK };
enum { WARP = 32, SHORT = 1024 };

MPG_ANYWHERE float exp_of(float x) { return expf(x); }
MPG_ANYWHERE double exp_of(double x) { return exp(x); }
MPG_ANYWHERE float log_of(float x) { return logf(x); }
MPG_ANYWHERE double log_of(double x) { return log(x); }
struct larger { /* NaN loses: it shows in the sums */
  template <class C>
  MPG_MEMBER C operator()(C a, C b) const {
    return b > a ? b : a;
  }
};

struct extent {
  int64_t before, n, after;
  double scale;
};

/* Threads that share a row: all of a block, a warp, or one. */
struct whole_block {
  static __device__ __forceinline__ int first() { return threadIdx.x; }
  static __device__ __forceinline__ int step() { return blockDim.x; }
  template <class C, class F>
  static __device__ __forceinline__ C reduce(C value, C neutral, F combine) {
    return mpg_block_reduce(value, neutral, combine);
  }
};
struct warp {
  static __device__ __forceinline__ int first() { return threadIdx.x % WARP; }
  static __device__ __forceinline__ int step() { return WARP; }
  template <class C, class F>
  static __device__ __forceinline__ C reduce(C value, C, F combine) {
    return mpg_warp_reduce(value, combine);
  }
};
struct alone {
  static __device__ __forceinline__ int first() { return 0; }
  static __device__ __forceinline__ int step() { return 1; }
  template <class C, class F>
  static __device__ __forceinline__ C reduce(C value, C, F) {
    return value;
  }
};

/* Row `row` of e.before * e.after: where it starts. */
__device__ __forceinline__ int64_t start_of(const extent &e, int64_t row) {
  return row / e.after * e.n * e.after + row % e.after;
}

template <class G, class C, class S, class O>
__device__ void forward_row(kind what, const S &in, const O &out, const extent &e, int64_t start,
                            int64_t length) {
  C scale = (C)e.scale, max = -(C)INFINITY, sum = 0;
  for (int64_t i = G::first(); i < length; i += G::step())
    max = larger()(max, in.template load<C>(start + i * e.after) * scale);
  max = G::reduce(max, -(C)INFINITY, larger());
  for (int64_t i = G::first(); i < length; i += G::step())
    sum += exp_of(in.template load<C>(start + i * e.after) * scale - max);
  sum = G::reduce(sum, (C)0, mpg_plus());
  if (what == SOFTMAX) {
    C inverse = 1 / sum;
    for (int64_t i = G::first(); i < e.n; i += G::step()) {
      int64_t at = start + i * e.after;
      out.store(at, i < length ? exp_of(in.template load<C>(at) * scale - max) * inverse : (C)0);
    }
  } else {
    C log_sum = log_of(sum);
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
    out.store(start + i * e.after,
              what == SOFTMAX_BACK ? value * (g - sum) * scale : (g - exp_of(value) * sum) * scale);
  }
}

/* Row after row, for what G is; *row < 0: none. */
template <class G>
__device__ __forceinline__ int64_t first_row() {
  int per_block = (int)blockDim.x / G::step();
  return (int64_t)blockIdx.x * per_block + (int)threadIdx.x / G::step();
}
template <class G>
__device__ __forceinline__ int64_t row_stride() {
  return (int64_t)gridDim.x * ((int)blockDim.x / G::step());
}

template <class G, class C, class S, class O>
__global__ void forward_kernel(kind what, S in, O out, extent e, mpg_untyped lengths) {
  for (int64_t row = first_row<G>(); row < e.before * e.after; row += row_stride<G>()) {
    int64_t length = e.n;
    if (lengths.data) {
      length = mpg_cuda_index_at(lengths, row);
      length = length < 0 ? 0 : length > e.n ? e.n : length;
    }
    forward_row<G, C>(what, in, out, e, start_of(e, row), length);
  }
}

template <class G, class C, class S, class O>
__global__ void back_kernel(kind what, S grad, S y, O out, extent e) {
  for (int64_t row = first_row<G>(); row < e.before * e.after; row += row_stride<G>())
    back_row<G, C>(what, grad, y, out, e, start_of(e, row));
}

template <class C, class S, class O>
mpg_status launch(const mpg_kernel_call *call, kind what, S in, S second, O out, const extent &e,
                  mpg_untyped lengths) {
  int64_t rows = e.before * e.after;
  unsigned threads = MPG_CUDA_THREADS;
#define LAUNCH(G, blocks)                                                                          \
  (what == SOFTMAX || what == LOG_SOFTMAX                                                          \
       ? mpg_cuda_launch(call, forward_kernel<G, C, S, O>, blocks, threads, 0, what, in, out, e,   \
                         lengths)                                                                  \
       : mpg_cuda_launch(call, back_kernel<G, C, S, O>, blocks, threads, 0, what, in, second, out, \
                         e))
  if (e.after > 1) return LAUNCH(alone, mpg_cuda_blocks(rows));
  if (e.n <= SHORT) return LAUNCH(warp, mpg_cuda_blocks(rows, threads / WARP));
  return LAUNCH(whole_block, mpg_cuda_blocks(rows, 1));
#undef LAUNCH
}

template <class T>
mpg_status launch_typed(const mpg_kernel_call *call, kind what, const mpg_view *in,
                        const mpg_view *second, const mpg_view *out, const extent &e,
                        mpg_untyped lengths) {
  return launch<float>(call, what, mpg_typed_view<T>(in), mpg_typed_view<T>(second),
                       mpg_typed_view<T>(out), e, lengths);
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
    return launch<double>(call, what, from, other, to, e, lengths);
  return launch<float>(call, what, from, other, to, e, lengths);
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

MPG_CUDA_KERNEL(softmax) { return softmax_with(call, 1); }
MPG_CUDA_KERNEL(softmin) { return softmax_with(call, -1); }

MPG_CUDA_KERNEL(log_softmax) {
  const mpg_log_softmax_params *params = (const mpg_log_softmax_params *)call->params;
  return run(call, LOG_SOFTMAX, NULL, NULL,
             along(&call->inputs[0].desc.shape, params->axis, scale_of(&params->temperature)));
}

MPG_CUDA_KERNEL(softmax_back) { return back_with(call, SOFTMAX_BACK); }
MPG_CUDA_KERNEL(log_softmax_back) { return back_with(call, LOG_SOFTMAX_BACK); }

/* SoftmaxOutput's forward pass: along dimension 1 (multi_output), the last (preserve_shape), or all
 * but the first. */
MPG_CUDA_KERNEL(softmax_output) {
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

/* Row after row, a block each: the loss, and for the gradient the largest score and the logarithm
 * of the sum. `sum`: losses as they are computed. */
template <class C, class S>
__global__ void ce_kernel(S data, mpg_untyped label, mpg_untyped loss, mpg_untyped max_out,
                          mpg_untyped log_sum_out, C *sum, int64_t rows, int64_t n) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    C max = -(C)INFINITY, total = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
      max = larger()(max, data.template load<C>(row * n + i));
    max = mpg_block_reduce(max, -(C)INFINITY, larger());
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
      total += exp_of(data.template load<C>(row * n + i) - max);
    total = mpg_block_reduce(total, (C)0, mpg_plus());
    if (threadIdx.x) continue;
    C log_sum = log_of(total),
      value = -((data.template load<C>(row * n + mpg_index_clip(mpg_cuda_index_at(label, row), n)) -
                 max) -
                log_sum);
    if (sum) {
      sum[row] = value;
    } else {
      loss.store(row, value);
      max_out.store(row, max);
      log_sum_out.store(row, log_sum);
    }
  }
}

/* One block: all losses. */
template <class C>
__global__ void total_kernel(const C *losses, mpg_untyped out, int64_t rows) {
  C total = 0;
  for (int64_t i = threadIdx.x; i < rows; i += blockDim.x) total += losses[i];
  total = mpg_block_reduce(total, (C)0, mpg_plus());
  if (threadIdx.x == 0) out.store(0, total);
}

/* Rounded once, at the end. */
template <class C, class S, class O>
__global__ void ce_back_kernel(S data, mpg_untyped label, mpg_untyped grad, mpg_untyped max,
                               mpg_untyped log_sum, O out, int64_t rows, int64_t n) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    C largest = max.load<C>(row), log_total = log_sum.load<C>(row), g = grad.load<C>(row);
    int64_t chosen = mpg_index_clip(mpg_cuda_index_at(label, row), n);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      int64_t at = row * n + i;
      C value = exp_of((data.template load<C>(at) - largest) - log_total) * g;
      out.store(at, i == chosen ? value - g : value);
    }
  }
}

template <class C, class S>
mpg_status launch_ce(const mpg_kernel_call *call, S data, bool sum) {
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  int64_t n = shape->dims[shape->ndim - 1], rows = mpg_shape_product(shape, 0, shape->ndim - 1);
  mpg_untyped label = mpg_untyped_view(&call->inputs[1]),
              loss = mpg_untyped_view(&call->outputs[0]);
  mpg_untyped max = sum ? loss : mpg_untyped_view(&call->outputs[1]),
              log_sum = sum ? loss : mpg_untyped_view(&call->outputs[2]);
  C *losses = NULL;
  if (sum && rows > 0 &&
      !(losses = (C *)mpg_device_scratch(call->device, (size_t)rows * sizeof(C))))
    return MPG_DEVICE_OUT_OF_MEMORY;
  if (n == 0) rows = 0;
  unsigned threads = n <= 256 ? 64 : MPG_CUDA_THREADS;
  MPG_TRY(mpg_cuda_launch(call, ce_kernel<C, S>, mpg_cuda_blocks(rows, 1), threads, 0, data, label,
                          loss, max, log_sum, losses, rows, n));
  return sum ? mpg_cuda_launch(call, total_kernel<C>, 1, MPG_CUDA_THREADS, 0, (const C *)losses,
                               loss, rows)
             : MPG_OK;
}

mpg_status cross_entropy(const mpg_kernel_call *call, bool sum) {
  const mpg_view *data = &call->inputs[0];
  switch (data->desc.dtype) {
    case MPG_FLOAT32: return launch_ce<float>(call, mpg_typed_view<float>(data), sum);
    case MPG_FLOAT16: return launch_ce<float>(call, mpg_typed_view<mpg_half>(data), sum);
    case MPG_BFLOAT16: return launch_ce<float>(call, mpg_typed_view<mpg_bfloat16>(data), sum);
    default: return launch_ce<double>(call, mpg_typed_view<double>(data), sum);
  }
}

template <class C, class T>
mpg_status launch_ce_back(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[1];
  const mpg_shape *shape = &data->desc.shape;
  int64_t n = shape->dims[shape->ndim - 1],
          rows = n ? mpg_shape_product(shape, 0, shape->ndim - 1) : 0;
  mpg_typed<T> in = mpg_typed_view<T>(data), out = mpg_typed_view<T>(&call->outputs[0]);
  return mpg_cuda_launch(call, ce_back_kernel<C, mpg_typed<T>, mpg_typed<T>>,
                         mpg_cuda_blocks(rows, 1), n <= 256 ? 64 : MPG_CUDA_THREADS, 0, in,
                         mpg_untyped_view(&call->inputs[2]), mpg_untyped_view(&call->inputs[0]),
                         mpg_untyped_view(&call->inputs[3]), mpg_untyped_view(&call->inputs[4]),
                         out, rows, n);
}

} // namespace

MPG_CUDA_KERNEL(softmax_cross_entropy) { return cross_entropy(call, true); }
MPG_CUDA_KERNEL(softmax_ce) { return cross_entropy(call, false); }

MPG_CUDA_KERNEL(softmax_ce_back) {
  switch (call->inputs[1].desc.dtype) {
    case MPG_FLOAT32: return launch_ce_back<float, float>(call);
    case MPG_FLOAT16: return launch_ce_back<float, mpg_half>(call);
    case MPG_BFLOAT16: return launch_ce_back<float, mpg_bfloat16>(call);
    default: return launch_ce_back<double, double>(call);
  }
}
