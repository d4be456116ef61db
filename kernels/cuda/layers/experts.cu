/* Routing of tokens to experts, and copies and sums of rows sorted by expert. The host never reads
 * the sizes of groups.
 *
 * A warp owns a token while experts are chosen. A block then owns an expert: it counts the expert's
 * rows and places their indices in order, so the sort is stable and needs no atomics. */
#include "kernels/cuda/access.h"
#include "kernels/cuda/scalar.h"
#include "op/layers/experts.h"

namespace {

enum { WARPS = MPG_CUDA_THREADS / 32, EACH = 16 }; /* EACH: indices per thread and step of a sort */

struct routing {
  mpg_untyped scores, bias;
  void *p, *weights; /* (tokens, experts) and (tokens, k), in the computing type */
  int32_t *chosen, *order, *counts;
  int64_t *totals; /* rows of each expert, before the capacity */
  int64_t tokens, experts, k, limit;
  bool sigmoid, renormalize;
};

/* Returns the maximum and the sum of exponentials of a row of scores to all lanes. */
template <class C>
__device__ void softmax_of(const mpg_untyped &scores, int64_t first, int64_t n, int lane, C *most,
                           C *sum) {
  *most = -(C)INFINITY, *sum = 0;
  for (int64_t e = lane; e < n; e += 32)
    *most = mpg_larger_score()(*most, scores.load<C>(first + e));
  *most = mpg_warp_reduce(*most, mpg_larger_score());
  for (int64_t e = lane; e < n; e += 32) *sum += mpg_exp_of(scores.load<C>(first + e) - *most);
  *sum = mpg_warp_reduce(*sum, mpg_plus());
}

template <class C>
__device__ __forceinline__ C probability(bool sigmoid, C score, C most, C sum) {
  return sigmoid ? 1 / (1 + mpg_exp_of(-score)) : mpg_exp_of(score - most) / sum;
}

template <class C>
__device__ __forceinline__ bool precedes(C a, int64_t i, C b, int64_t j) {
  return a > b || (a == b && i < j);
}

template <class C>
__global__ void __launch_bounds__(MPG_CUDA_THREADS) choose_kernel(routing r) {
  int lane = threadIdx.x & 31;
  int64_t n = r.experts;
  for (int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; t < r.tokens;
       t += (int64_t)gridDim.x * WARPS) {
    C *p = (C *)r.p + t * n, *weights = (C *)r.weights + t * r.k, most, sum, total = 0;
    softmax_of(r.scores, t * n, n, lane, &most, &sum);
    for (int64_t e = lane; e < n; e += 32)
      p[e] = probability(r.sigmoid, r.scores.load<C>(t * n + e), most, sum);
    C last = INFINITY;
    int64_t last_expert = -1;
    for (int64_t rank = 0; rank < r.k; rank++) {
      /* The best of the lane's experts that come after the last one chosen. */
      C best = -(C)INFINITY, weight = 0;
      int64_t expert = n;
      for (int64_t e = lane; e < n; e += 32) {
        C key = r.bias.data ? p[e] + r.bias.load<C>(e) : p[e];
        if (!(key == key)) key = -(C)INFINITY;
        if (precedes(last, last_expert, key, e) && precedes(key, e, best, expert))
          best = key, expert = e, weight = p[e];
      }
      for (int lanes = 16; lanes; lanes >>= 1) {
        C other = __shfl_xor_sync(0xffffffffu, best, lanes),
          other_weight = __shfl_xor_sync(0xffffffffu, weight, lanes);
        int64_t other_expert = __shfl_xor_sync(0xffffffffu, (int32_t)expert, lanes);
        if (precedes(other, other_expert, best, expert))
          best = other, weight = other_weight, expert = other_expert;
      }
      last = best, last_expert = expert;
      total += weight;
      if (lane == 0) {
        r.chosen[t * r.k + rank] = (int32_t)mpg_clip_row(expert, n);
        weights[rank] = weight;
      }
    }
    if (lane == 0 && r.renormalize)
      for (int64_t rank = 0; rank < r.k; rank++)
        weights[rank] = total == 0 ? 0 : weights[rank] / total;
  }
}

__global__ void __launch_bounds__(MPG_CUDA_THREADS) count_kernel(routing r) {
  int64_t e = blockIdx.x, count = 0;
  for (int64_t i = threadIdx.x; i < r.tokens * r.k; i += MPG_CUDA_THREADS)
    count += r.chosen[i] == e;
  count = mpg_block_reduce(count, (int64_t)0, mpg_plus());
  if (threadIdx.x == 0) r.totals[e] = count;
}

/* Returns the sum of `mine` over the threads before, and adds the sum of all threads to *total. */
__device__ int exclusive_sum(int mine, int64_t *total) {
  __shared__ int sums[WARPS];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, sum = mine, before = 0, all = 0;
  for (int step = 1; step < 32; step *= 2) {
    int other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  for (int w = 0; w < WARPS; w++) {
    if (w < warp) before += sums[w];
    all += sums[w];
  }
  __syncthreads();
  *total += all;
  return before + sum - mine;
}

template <class C>
__global__ void __launch_bounds__(MPG_CUDA_THREADS) place_kernel(routing r) {
  int64_t e = blockIdx.x, kept = 0, kept_before = 0, dropped_before = 0, count = r.tokens * r.k;
  for (int64_t i = threadIdx.x; i < r.experts; i += MPG_CUDA_THREADS) {
    int64_t all = r.totals[i], own = all < r.limit ? all : r.limit;
    kept += own;
    if (i < e) kept_before += own, dropped_before += all - own;
  }
  kept = mpg_block_reduce(kept, (int64_t)0, mpg_plus());
  kept_before = mpg_block_reduce(kept_before, (int64_t)0, mpg_plus());
  dropped_before = kept + mpg_block_reduce(dropped_before, (int64_t)0, mpg_plus());
  if (threadIdx.x == 0) r.counts[e] = (int32_t)(r.totals[e] < r.limit ? r.totals[e] : r.limit);
  int64_t found = 0;
  for (int64_t base = 0; base < count; base += MPG_CUDA_THREADS * EACH) {
    int64_t first = base + (int64_t)threadIdx.x * EACH,
            end = first + EACH < count ? first + EACH : count;
    int mine = 0;
    for (int64_t i = first; i < end; i++) mine += r.chosen[i] == e;
    int64_t rank = found;
    rank += exclusive_sum(mine, &found);
    for (int64_t i = first; i < end; i++) {
      if (r.chosen[i] != e) continue;
      bool fits = rank < r.limit;
      r.order[fits ? kept_before + rank : dropped_before + rank - r.limit] = (int32_t)i;
      if (!fits) ((C *)r.weights)[i] = 0;
      rank++;
    }
  }
}

template <class C>
__global__ void __launch_bounds__(MPG_CUDA_THREADS)
    route_back_kernel(routing r, const C *grads, mpg_untyped out) {
  int lane = threadIdx.x & 31;
  int64_t n = r.experts;
  for (int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; t < r.tokens;
       t += (int64_t)gridDim.x * WARPS) {
    const C *w = (const C *)r.weights + t * r.k, *grad = grads + t * r.k;
    const int32_t *chosen = r.chosen + t * r.k;
    C most, total, sum = 1, mean = 0, inner = 0;
    softmax_of(r.scores, t * n, n, lane, &most, &total);
    if (r.renormalize) {
      sum = 0;
      for (int64_t i = 0; i < r.k; i++) {
        sum += probability(r.sigmoid, r.scores.load<C>(t * n + mpg_clip_row(chosen[i], n)), most,
                           total);
        if (w[i] != 0) mean += grad[i] * w[i];
      }
    }
    for (int64_t i = 0; i < r.k; i++) {
      C p =
          probability(r.sigmoid, r.scores.load<C>(t * n + mpg_clip_row(chosen[i], n)), most, total);
      inner += (sum > 0 ? ((w[i] != 0 ? grad[i] : 0) - mean) / sum : 0) * p;
    }
    for (int64_t e = lane; e < n; e += 32) {
      C p = probability(r.sigmoid, r.scores.load<C>(t * n + e), most, total), own = 0;
      for (int64_t i = 0; i < r.k; i++)
        if (mpg_clip_row(chosen[i], n) == e)
          own = sum > 0 ? ((w[i] != 0 ? grad[i] : 0) - mean) / sum : 0;
      out.store(t * n + e, r.sigmoid ? own * p * (1 - p) : p * (own - inner));
    }
  }
}

/* --- Rows ------------------------------------------------------------------------------------- */

struct rows {
  const void *from, *other, *weights;
  const int32_t *order;
  int32_t *places; /* 1 + the row of each (token, rank), or 0 */
  void *to;
  int64_t count, units, k, tokens;
};

__global__ void __launch_bounds__(MPG_CUDA_THREADS) invert_kernel(rows r) {
  for (int64_t i = MPG_CUDA_INDEX; i < r.count; i += MPG_CUDA_STRIDE)
    r.places[mpg_clip_row(r.order[i], r.count)] = (int32_t)(i + 1);
}

/* A vector of N elements. */
template <class T, int N>
struct alignas(sizeof(T) * N) elements_of {
  T values[N];
};

template <class T, int N>
__global__ void __launch_bounds__(MPG_CUDA_THREADS) dispatch_kernel(rows r) {
  typedef mpg_compute_t<T> C;
  typedef elements_of<T, N> V;
  int64_t each = r.units / N;
  for (int64_t at = MPG_CUDA_INDEX; at < r.count * each; at += MPG_CUDA_STRIDE) {
    int64_t from = mpg_clip_row(r.order[at / each], r.count);
    V v = ((const V *)r.from)[from / r.k * each + at % each];
    if (r.weights) {
      C weight = ((const C *)r.weights)[from];
#pragma unroll
      for (int j = 0; j < N; j++) v.values[j] = mpg_to<T>(weight * mpg_to<C>(v.values[j]));
    }
    ((V *)r.to)[at] = v;
  }
}

template <class T, int N>
__global__ void __launch_bounds__(MPG_CUDA_THREADS) combine_kernel(rows r) {
  typedef mpg_compute_t<T> C;
  typedef elements_of<T, N> V;
  int64_t each = r.units / N;
  for (int64_t at = MPG_CUDA_INDEX; at < r.tokens * each; at += MPG_CUDA_STRIDE) {
    int64_t token = at / each;
    C sum[N] = {0};
    for (int64_t rank = 0; rank < r.k; rank++) {
      int64_t row = (int64_t)r.places[token * r.k + rank] - 1;
      if (row < 0) continue;
      C weight = r.weights ? ((const C *)r.weights)[token * r.k + rank] : (C)1;
      V v = ((const V *)r.from)[row * each + at % each];
#pragma unroll
      for (int j = 0; j < N; j++) sum[j] += weight * mpg_to<C>(v.values[j]);
    }
    V out;
#pragma unroll
    for (int j = 0; j < N; j++) out.values[j] = mpg_to<T>(sum[j]);
    ((V *)r.to)[at] = out;
  }
}

template <class T>
__global__ void __launch_bounds__(MPG_CUDA_THREADS) row_dots_kernel(rows r) {
  typedef mpg_compute_t<T> C;
  int lane = threadIdx.x & 31;
  for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < r.count;
       i += (int64_t)gridDim.x * WARPS) {
    int64_t row = (int64_t)r.places[i] - 1;
    const T *x = (const T *)r.from + i / r.k * r.units, *y = (const T *)r.other + row * r.units;
    C sum = 0;
    for (int64_t u = lane; row >= 0 && u < r.units; u += 32)
      sum += mpg_to<C>(x[u]) * mpg_to<C>(y[u]);
    sum = mpg_warp_reduce(sum, mpg_plus());
    if (lane == 0) ((C *)r.to)[i] = sum;
  }
}

routing routing_of(const mpg_kernel_call *call, int scores) {
  const mpg_desc *desc = &call->inputs[scores].desc;
  routing r = {};
  r.scores = mpg_untyped_view(&call->inputs[scores]);
  r.experts = desc->shape.dims[desc->shape.ndim - 1];
  r.tokens = mpg_shape_product(&desc->shape, 0, desc->shape.ndim - 1);
  return r;
}

mpg_status invert(const mpg_kernel_call *call, rows *r) {
  size_t bytes = (size_t)(r->count + 1) * sizeof *r->places;
  r->places = (int32_t *)mpg_device_scratch(call->device, bytes);
  if (!r->places) return MPG_DEVICE_OUT_OF_MEMORY;
  MPG_TRY(mpg_cuda_zero(call, r->places, bytes));
  return mpg_cuda_launch(call, invert_kernel, mpg_cuda_blocks(r->count), MPG_CUDA_THREADS, 0, *r);
}

/* Describes a call with the given views of sorted rows and of tokens. `order` is an input. */
rows rows_of(const mpg_kernel_call *call, const mpg_view *sorted, const mpg_view *tokens,
             int order) {
  rows r = {};
  r.from = call->inputs[0].data, r.to = call->outputs[0].data;
  r.order = (const int32_t *)call->inputs[order].data;
  r.weights = order + 1 < call->num_inputs ? call->inputs[order + 1].data : NULL;
  r.count = sorted->desc.shape.dims[0], r.units = sorted->desc.shape.dims[1];
  r.tokens = mpg_shape_product(&tokens->desc.shape, 0, tokens->desc.shape.ndim - 1);
  if (r.tokens) r.k = r.count / r.tokens;
  return r;
}

/* Launches a kernel that writes `count` rows: `wide` if rows can be accessed 16 bytes at a time. */
template <class T>
mpg_status launch_rows(const mpg_kernel_call *call, const rows &r, int64_t count,
                       void (*wide)(rows), void (*single)(rows)) {
  bool words = r.units * sizeof(T) % 16 == 0 && mpg_cuda_aligned(r.from) && mpg_cuda_aligned(r.to);
  return mpg_cuda_launch(call, words ? wide : single,
                         mpg_cuda_blocks(count * r.units / (words ? 16 / (int)sizeof(T) : 1)),
                         MPG_CUDA_THREADS, 0, r);
}

} // namespace

/* --- Launches --------------------------------------------------------------------------------- */

mpg_status mpg_cuda_route(const mpg_kernel_call *call) {
  const mpg_route_params *p = (const mpg_route_params *)call->params;
  routing r = routing_of(call, 0);
  bool wide = call->inputs[0].desc.dtype == MPG_FLOAT64;
  if (call->num_inputs > 1) r.bias = mpg_untyped_view(&call->inputs[1]);
  r.order = (int32_t *)call->outputs[0].data;
  r.counts = (int32_t *)call->outputs[1].data;
  r.weights = call->outputs[2].data;
  r.chosen = (int32_t *)call->outputs[3].data;
  r.k = p->k, r.limit = mpg_route_limit(p, r.tokens, r.experts);
  r.sigmoid = p->router == MPG_ROUTER_SIGMOID, r.renormalize = p->renormalize;
  if (!r.tokens) return mpg_cuda_zero(call, &call->outputs[1]);
  size_t totals = mpg_align_up((size_t)r.experts * sizeof *r.totals, 256);
  char *memory = (char *)mpg_device_scratch(
      call->device,
      totals + (size_t)(r.tokens * r.experts) * (wide ? sizeof(double) : sizeof(float)));
  if (!memory) return MPG_DEVICE_OUT_OF_MEMORY;
  r.totals = (int64_t *)memory, r.p = memory + totals;
  MPG_TRY(mpg_cuda_launch(call, wide ? choose_kernel<double> : choose_kernel<float>,
                          mpg_cuda_blocks(r.tokens, WARPS), MPG_CUDA_THREADS, 0, r));
  MPG_TRY(mpg_cuda_launch(call, count_kernel, (unsigned)r.experts, MPG_CUDA_THREADS, 0, r));
  return mpg_cuda_launch(call, wide ? place_kernel<double> : place_kernel<float>,
                         (unsigned)r.experts, MPG_CUDA_THREADS, 0, r);
}

mpg_status mpg_cuda_route_back(const mpg_kernel_call *call) {
  const mpg_route_back_params *p = (const mpg_route_back_params *)call->params;
  const mpg_shape *chosen = &call->inputs[3].desc.shape;
  routing r = routing_of(call, 1);
  r.weights = call->inputs[2].data;
  r.chosen = (int32_t *)call->inputs[3].data;
  r.k = chosen->dims[chosen->ndim - 1];
  r.sigmoid = p->router == MPG_ROUTER_SIGMOID, r.renormalize = p->renormalize;
  unsigned blocks = r.experts ? mpg_cuda_blocks(r.tokens, WARPS) : 0;
  mpg_untyped out = mpg_untyped_view(&call->outputs[0]);
  if (out.dtype == MPG_FLOAT64)
    return mpg_cuda_launch(call, route_back_kernel<double>, blocks, MPG_CUDA_THREADS, 0, r,
                           (const double *)call->inputs[0].data, out);
  return mpg_cuda_launch(call, route_back_kernel<float>, blocks, MPG_CUDA_THREADS, 0, r,
                         (const float *)call->inputs[0].data, out);
}

mpg_status mpg_cuda_dispatch(const mpg_kernel_call *call) {
  rows r = rows_of(call, &call->outputs[0], &call->inputs[0], 1);
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T,
                       return launch_rows<T>(call, r, r.count, dispatch_kernel<T, 16 / sizeof(T)>,
                                             dispatch_kernel<T, 1>))
  return MPG_OK;
}

mpg_status mpg_cuda_combine(const mpg_kernel_call *call) {
  rows r = rows_of(call, &call->inputs[0], &call->outputs[0], 1);
  MPG_TRY(invert(call, &r));
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T,
                       return launch_rows<T>(call, r, r.tokens, combine_kernel<T, 16 / sizeof(T)>,
                                             combine_kernel<T, 1>))
  return MPG_OK;
}

mpg_status mpg_cuda_row_dots(const mpg_kernel_call *call) {
  rows r = rows_of(call, &call->inputs[1], &call->inputs[0], 2);
  r.other = call->inputs[1].data;
  if (!r.tokens) return MPG_OK;
  MPG_TRY(invert(call, &r));
  MPG_CUDA_FLOAT_DTYPE(
      call->inputs[0].desc.dtype, T,
      return mpg_cuda_launch(call, row_dots_kernel<T>, mpg_cuda_blocks(r.count, WARPS),
                             MPG_CUDA_THREADS, 0, r))
  return MPG_OK;
}
