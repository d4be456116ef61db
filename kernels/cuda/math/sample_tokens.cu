/* Draws of tokens from logits. A block owns a request and keeps its weights in scratch memory. The
 * limits of top_k and top_p are found bit by bit: weights are not negative, so their bit patterns
 * are in the order of their values. */
#include "kernels/cuda/access.h"
#include "kernels/cuda/block.h"
extern "C" {
#include "base/philox.h"
}

namespace {

struct sampling {
  const void *logits;
  const int64_t *keys;
  const int32_t *history;
  int64_t requests, tokens, length;
  float *weights; /* (requests, tokens) */
  int32_t *result;
  float temperature, top_p, min_p, penalty;
  int64_t top_k;
};

__device__ __forceinline__ bool precedes(float a, int64_t i, float b, int64_t j) {
  return a > b || (a == b && i < j);
}

/* Returns the first index of the largest weight, and its value, to all threads. */
__device__ int64_t largest(const float *w, int64_t n, float *value) {
  __shared__ float values[MPG_CUDA_THREADS];
  __shared__ int64_t indices[MPG_CUDA_THREADS];
  float best = -INFINITY;
  int64_t at = n;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    if (precedes(w[i], i, best, at)) best = w[i], at = i;
  values[threadIdx.x] = best;
  indices[threadIdx.x] = at;
  __syncthreads();
  for (unsigned step = MPG_CUDA_THREADS / 2; step; step /= 2) {
    if (threadIdx.x < step && precedes(values[threadIdx.x + step], indices[threadIdx.x + step],
                                       values[threadIdx.x], indices[threadIdx.x])) {
      values[threadIdx.x] = values[threadIdx.x + step];
      indices[threadIdx.x] = indices[threadIdx.x + step];
    }
    __syncthreads();
  }
  *value = values[0];
  int64_t found = indices[0] < n ? indices[0] : 0;
  __syncthreads();
  return found;
}

/* Returns the number (or the sum, for `mass`) of the weights that are at least `least`. */
__device__ double measure(const float *w, int64_t n, float least, bool mass) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    if (w[i] >= least && w[i] > 0) sum += mass ? (double)w[i] : 1;
  return mpg_block_reduce(sum, 0.0, mpg_plus());
}

/* Replaces a value per thread with the sum of those of the threads before, and returns the sum of
 * all, which is added in the order of threads. */
__device__ double exclusive_sums(double *mine) {
  __shared__ double sums[MPG_CUDA_THREADS + 1];
  sums[threadIdx.x + 1] = *mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    sums[0] = 0;
    for (int i = 1; i <= MPG_CUDA_THREADS; i++) sums[i] += sums[i - 1];
  }
  __syncthreads();
  *mine = sums[threadIdx.x];
  double total = sums[MPG_CUDA_THREADS];
  __syncthreads();
  return total;
}

/* Sets all weights to 0 but the smallest set of the largest ones whose number (or sum) is at least
 * `goal`. Each thread owns the tokens [begin, end). */
__device__ void keep_largest(float *w, int64_t n, int64_t begin, int64_t end, double goal,
                             bool mass) {
  unsigned bits = 0;
  for (int bit = 30; bit >= 0; bit--) {
    unsigned tried = bits | 1u << bit;
    if (tried < 0x7f800000u && measure(w, n, __uint_as_float(tried), mass) >= goal) bits = tried;
  }
  float limit = __uint_as_float(bits), next = __uint_as_float(bits + 1);
  double left = goal - measure(w, n, next, mass), each = mass ? (double)limit : 1;
  double ties = each > 0 ? fmax(ceil(left / each), 1.0) : 0, before = 0;
  for (int64_t i = begin; i < end; i++) before += w[i] == limit;
  exclusive_sums(&before);
  for (int64_t i = begin; i < end; i++)
    if (w[i] < limit || (w[i] == limit && before++ >= ties)) w[i] = 0;
  __syncthreads();
}

template <class T>
__global__ void __launch_bounds__(MPG_CUDA_THREADS) sample_kernel(sampling s) {
  int64_t n = s.tokens, each = (n + MPG_CUDA_THREADS - 1) / MPG_CUDA_THREADS,
          begin = threadIdx.x * each < n ? threadIdx.x * each : n,
          end = begin + each < n ? begin + each : n;
  for (int64_t r = blockIdx.x; r < s.requests; r += gridDim.x) {
    const T *logits = (const T *)s.logits + r * n;
    float *w = s.weights + r * n, best;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      float v = (float)mpg_to<mpg_compute_t<T>>(logits[i]);
      w[i] = v == v ? v : -INFINITY;
    }
    __syncthreads();
    /* The first occurrence of a token in the history applies the penalty. */
    for (int64_t i = threadIdx.x; i < s.length; i += blockDim.x) {
      const int32_t *history = s.history + r * s.length;
      int32_t token = history[i];
      bool first = token >= 0 && token < n;
      for (int64_t j = 0; j < i && first; j++) first = history[j] != token;
      if (first) w[token] = w[token] > 0 ? w[token] / s.penalty : w[token] * s.penalty;
    }
    __syncthreads();
    int64_t top = largest(w, n, &best);
    if (s.temperature == 0 || best == -INFINITY || best == INFINITY) {
      if (threadIdx.x == 0) s.result[r] = (int32_t)top;
      continue;
    }
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
      w[i] = expf((w[i] - best) * (1 / s.temperature));
    __syncthreads();
    if (s.top_k && (double)s.top_k < measure(w, n, 0, false))
      keep_largest(w, n, begin, end, (double)s.top_k, false);
    if (s.top_p < 1) keep_largest(w, n, begin, end, measure(w, n, 0, true) * (double)s.top_p, true);
    double mine = 0;
    for (int64_t i = begin; i < end; i++)
      if (w[i] > 0 && w[i] >= s.min_p) mine += (double)w[i];
    double own = mine, total = exclusive_sums(&mine);
    mpg_philox_block words = mpg_philox((uint64_t)s.keys[2 * r], (uint64_t)s.keys[2 * r + 1], 0);
    double target = mpg_philox_uniform_double(words.value[0], words.value[1]) * total;
    /* The thread whose tokens contain the target. The top token stays if rounding leaves none. */
    __shared__ int32_t chosen;
    if (threadIdx.x == 0) chosen = (int32_t)top;
    __syncthreads();
    if (own > 0 && mine <= target && target < mine + own) {
      int64_t last = top;
      for (int64_t i = begin; i < end; i++) {
        if (!(w[i] > 0 && w[i] >= s.min_p)) continue;
        mine += (double)w[i];
        last = i;
        if (mine > target) break;
      }
      chosen = (int32_t)last;
    }
    __syncthreads();
    if (threadIdx.x == 0) s.result[r] = chosen;
    __syncthreads();
  }
}

} // namespace

mpg_status mpg_cuda_sample_tokens(const mpg_kernel_call *call) {
  const mpg_sample_tokens_params *p = (const mpg_sample_tokens_params *)call->params;
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  sampling s = {};
  s.logits = call->inputs[0].data;
  s.keys = (const int64_t *)call->inputs[1].data;
  s.requests = shape->dims[0];
  s.tokens = shape->dims[1];
  if (call->num_inputs > 2 && p->repetition_penalty != 1) {
    s.history = (const int32_t *)call->inputs[2].data;
    s.length = call->inputs[2].desc.shape.dims[1];
  }
  s.result = (int32_t *)call->outputs[0].data;
  s.temperature = (float)p->temperature;
  s.top_k = p->top_k;
  s.top_p = (float)p->top_p;
  s.min_p = (float)p->min_p;
  s.penalty = (float)p->repetition_penalty;
  s.weights = (float *)mpg_device_scratch(
      call->device, (size_t)s.requests * (size_t)s.tokens * sizeof(float) + sizeof(float));
  if (!s.weights) return MPG_DEVICE_OUT_OF_MEMORY;
  unsigned blocks = mpg_cuda_blocks(s.requests, 1);
  switch (call->inputs[0].desc.dtype) {
    case MPG_FLOAT32:
      return mpg_cuda_launch(call, sample_kernel<float>, blocks, MPG_CUDA_THREADS, 0, s);
    case MPG_FLOAT64:
      return mpg_cuda_launch(call, sample_kernel<double>, blocks, MPG_CUDA_THREADS, 0, s);
    case MPG_FLOAT16:
      return mpg_cuda_launch(call, sample_kernel<mpg_half>, blocks, MPG_CUDA_THREADS, 0, s);
    default:
      return mpg_cuda_launch(call, sample_kernel<mpg_bfloat16>, blocks, MPG_CUDA_THREADS, 0, s);
  }
}
