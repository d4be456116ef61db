/* Merging of attention to parts of the keys (op/attention/merge_attention.c). One warp per row. */
#include "kernels/common/vector_math.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/scalar.h"
#include "op/attention/attention_call.h"

namespace {

/* The rows of results (batch, ..., features). Rows are counted over batches and heads. */
template <class T>
struct merging {
  typedef mpg_compute_t<T> C;
  int64_t heads, rows, width, count /* of all rows */;
  mpg_attention_place at;
  const T *output, *part; /* statistics: `output` is the gradient, and `part` the output */
  const C *sums, *part_sums;
  T *merged;
  C *merged_sums;

  __device__ __forceinline__ int64_t row_at(int64_t row) const {
    int64_t head = row / rows;
    return head / heads * at.by_batch + head % heads * at.by_head + row % rows * at.by_row;
  }
  __device__ __forceinline__ int64_t sums_at(int64_t row) const {
    return row / rows * 2 * rows + row % rows;
  }
};

__device__ __forceinline__ float exponential(float x) { return mpg_expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }

template <class T>
__global__ void merge_kernel(const __grid_constant__ merging<T> m) {
  typedef mpg_compute_t<T> C;
  int64_t row = MPG_CUDA_INDEX / 32;
  if (row >= m.count) return;
  int64_t at = m.row_at(row), sums = m.sums_at(row);
  C left = m.sums[sums], right = m.part_sums[sums], max = left > right ? left : right,
    shift = max == -(C)INFINITY ? (C)0 : max, by_left = m.sums[sums + m.rows],
    by_right = m.part_sums[sums + m.rows];
  by_left *= exponential(left - shift), by_right *= exponential(right - shift);
  C total = by_left + by_right;
  if (total != 0) by_left /= total, by_right /= total;
  for (int64_t e = threadIdx.x & 31; e < m.width; e += 32)
    m.merged[at + e] =
        mpg_to<T>(by_left * mpg_to<C>(m.output[at + e]) + by_right * mpg_to<C>(m.part[at + e]));
  if ((threadIdx.x & 31) == 0) m.merged_sums[sums] = max, m.merged_sums[sums + m.rows] = total;
}

template <class T>
__global__ void statistics_kernel(const __grid_constant__ merging<T> m) {
  typedef mpg_compute_t<T> C;
  int64_t row = MPG_CUDA_INDEX / 32;
  if (row >= m.count) return;
  int64_t at = m.row_at(row), sums = m.sums_at(row);
  C inner = 0, total = m.sums[sums + m.rows];
  for (int64_t e = threadIdx.x & 31; e < m.width; e += 32)
    inner = mpg_fma_of(mpg_to<C>(m.output[at + e]), mpg_to<C>(m.part[at + e]), inner);
  inner = mpg_warp_reduce(inner, mpg_plus());
  if (threadIdx.x & 31) return;
  m.merged_sums[sums] = total == 0 ? (C)INFINITY : m.sums[sums] + logarithm(total);
  m.merged_sums[sums + m.rows] = inner;
}

template <class T, class C>
mpg_status run(const mpg_kernel_call *call, bool merges) {
  const mpg_view *in = call->inputs;
  const mpg_shape *shape = &in[0].desc.shape;
  int32_t layout = ((const mpg_merge_attention_params *)call->params)->layout;
  int time = mpg_attention_time(layout);
  merging<T> m = {};
  m.heads = shape->dims[3 - time], m.rows = shape->dims[time], m.width = shape->dims[3];
  m.count = shape->dims[0] * m.heads * m.rows;
  m.at = mpg_attention_place_in(shape, layout);
  m.output = (const T *)in[0].data;
  m.part = (const T *)in[merges ? 2 : 1].data;
  m.sums = (const C *)in[merges ? 1 : 2].data;
  if (merges) m.part_sums = (const C *)in[3].data, m.merged = (T *)call->outputs[0].data;
  m.merged_sums = (C *)call->outputs[merges].data;
  if (!m.count) return MPG_OK;
  return mpg_cuda_launch(call, merges ? merge_kernel<T> : statistics_kernel<T>,
                         mpg_cuda_blocks(m.count, MPG_CUDA_THREADS / 32), MPG_CUDA_THREADS, 0, m);
}

} // namespace

mpg_status mpg_cuda_merge_attention(const mpg_kernel_call *call) {
  MPG_CUDA_RUN_FLOAT(call->inputs[0].desc.dtype, run, call, true);
}
mpg_status mpg_cuda_attention_statistics(const mpg_kernel_call *call) {
  MPG_CUDA_RUN_FLOAT(call->inputs[0].desc.dtype, run, call, false);
}
