/* Sort, argsort, top-k, argmax, argmin, and gather and scatter along an axis. Sorts map each
 * element to an unsigned key with the same order (inverted for descending order) and sort the keys
 * with radix_sort.cu. */
#include "kernels/cuda/access.h"
#include "kernels/cuda/array/move.h"
#include "kernels/cuda/array/radix_sort.h"

namespace {

__device__ __forceinline__ uint64_t key_of(const mpg_untyped &data, int64_t i) {
  switch (data.dtype) {
    case MPG_FLOAT64: return mpg_cuda_sort_key(data.load<double>(i));
    case MPG_INT64: return (uint64_t)((const int64_t *)data.data)[i] ^ (uint64_t)1 << 63;
    case MPG_FLOAT32:
    case MPG_FLOAT16:
    case MPG_BFLOAT16: return mpg_cuda_sort_key(data.load<float>(i));
    default: return (uint32_t)data.load<int32_t>(i) ^ 0x80000000u;
  }
}

bool wide(mpg_dtype dtype) { return dtype == MPG_FLOAT64 || dtype == MPG_INT64; }

struct extent {
  int64_t before, n, after;
};

extent extent_of(const mpg_shape *shape, const mpg_opt_int *axis_param) {
  if (!axis_param->present) return {1, mpg_shape_size(shape), 1};
  int axis = axis_of(axis_param->value, shape->ndim);
  return {mpg_shape_product(shape, 0, axis), shape->dims[axis],
          mpg_shape_product(shape, axis + 1, shape->ndim)};
}

/* Returns the array index of element i of a row. */
__device__ __forceinline__ int64_t place_of(const extent &e, int64_t row, int64_t i) {
  return (row / e.after * e.n + i) * e.after + row % e.after;
}

__global__ void keys_kernel(mpg_untyped data, extent e, bool ascending, mpg_cuda_rows rows) {
  int64_t at = MPG_CUDA_INDEX;
  if (at >= rows.rows * rows.n) return;
  uint64_t key = key_of(data, place_of(e, at / e.n, at % e.n));
  rows.put(at, ascending ? key : ~key);
}

/* Outputs of a sort. `values`, `mask` and indices.data are NULL if they are not requested. The mask
 * receives `one` (of the data's dtype) at the selected elements. */
struct results {
  void *values, *mask;
  mpg_untyped indices;
  uint64_t one;
};

template <class T>
__global__ void results_kernel(const T *data, extent e, int64_t k, int64_t count,
                               const int32_t *order, results r) {
  int64_t at = MPG_CUDA_INDEX; /* (row, rank) */
  if (at >= count) return;
  int64_t row = at / k, rank = at % k, index = order[row * e.n + rank] - row * e.n,
          source = place_of(e, row, index);
  int64_t target = (row / e.after * k + rank) * e.after + row % e.after;
  if (r.values) ((T *)r.values)[target] = data[source];
  if (r.indices.data) r.indices.store(target, index);
  if (r.mask) ((T *)r.mask)[source] = (T)r.one;
}

mpg_status order(const mpg_kernel_call *call, const results &r, const mpg_opt_int *axis,
                 bool ascending, int64_t k) {
  const mpg_view *data = &call->inputs[0];
  extent e = extent_of(&data->desc.shape, axis);
  int64_t rows = e.before * e.after, count = rows * e.n;
  if (count == 0) return MPG_OK;
  if (k <= 0) k = e.n;
  mpg_cuda_rows keys;
  int32_t *places;
  MPG_TRY(mpg_cuda_rows_new(call, rows, e.n, wide(data->desc.dtype), 0, &keys, NULL));
  MPG_TRY(mpg_cuda_launch(call, keys_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                          mpg_untyped_view(data), e, ascending, keys));
  MPG_TRY(mpg_cuda_rows_sort(call, &keys, &places));
  MPG_CUDA_SIZE(
      item_of(data), T,
      return mpg_cuda_launch(call, results_kernel<T>, mpg_cuda_blocks(rows * k), MPG_CUDA_THREADS,
                             0, (const T *)data->data, e, k, rows * k, (const int32_t *)places, r));
  return MPG_OK;
}

/* --- Arg-reductions --------------------------------------------------------------------------- */

struct found {
  uint64_t key;
  int64_t index;
};

__device__ __forceinline__ bool better(const found &a, const found &b) {
  return a.key > b.key || (a.key == b.key && a.index < b.index);
}

/* Returns element i's search key. The element with the largest key in a row is the row's argmax, or
 * its argmin if `smallest` is true. NaN has the largest key in both cases. */
__device__ __forceinline__ uint64_t search_key(const mpg_untyped &data, int64_t i, bool smallest) {
  uint64_t key = key_of(data, i);
  bool floating =
      data.dtype == MPG_FLOAT32 || data.dtype == MPG_FLOAT16 || data.dtype == MPG_BFLOAT16;
  if (!smallest) return key;
  if (data.dtype == MPG_FLOAT64) return key == UINT64_MAX ? key : ~key;
  return floating && key == UINT32_MAX ? UINT64_MAX : ~key;
}

/* Finds the index of each row's largest key. Ties go to the first index. One block per row. */
__global__ void search_kernel(mpg_untyped data, mpg_untyped out, extent e, bool smallest) {
  __shared__ uint64_t keys[MPG_CUDA_THREADS];
  __shared__ int64_t indices[MPG_CUDA_THREADS];
  for (int64_t row = blockIdx.x; row < e.before * e.after; row += gridDim.x) {
    found best = {0, INT64_MAX};
    for (int64_t i = threadIdx.x; i < e.n; i += blockDim.x) {
      found here = {search_key(data, place_of(e, row, i), smallest), i};
      if (better(here, best)) best = here;
    }
    keys[threadIdx.x] = best.key;
    indices[threadIdx.x] = best.index;
    __syncthreads();
    for (int reach = blockDim.x / 2; reach; reach /= 2) {
      if ((int)threadIdx.x < reach) {
        found mine = {keys[threadIdx.x], indices[threadIdx.x]},
              other = {keys[threadIdx.x + reach], indices[threadIdx.x + reach]};
        if (better(other, mine)) {
          keys[threadIdx.x] = other.key;
          indices[threadIdx.x] = other.index;
        }
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) out.store(row, indices[0]);
    __syncthreads();
  }
}

mpg_status search(const mpg_kernel_call *call, const extent &e, bool smallest) {
  int64_t rows = e.n ? e.before * e.after : 0;
  return mpg_cuda_launch(call, search_kernel, mpg_cuda_blocks(rows, 1),
                         e.n <= 64 ? 32 : MPG_CUDA_THREADS, 0, mpg_untyped_view(&call->inputs[0]),
                         mpg_untyped_view(&call->outputs[0]), e, smallest);
}

/* --- Indexing along a dimension --------------------------------------------------------------- */

template <class T>
__global__ void along_kernel(T *dense, T *indexed, mpg_untyped indices, int64_t count, int64_t n,
                             int64_t size, int64_t after, bool put) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  T *far = indexed +
           (i / (n * after) * size + mpg_index_clip(mpg_cuda_index_at(indices, i), size)) * after +
           i % after;
  if (put)
    *far = dense[i];
  else
    dense[i] = *far;
}

mpg_status move_along(const mpg_kernel_call *call, const mpg_view *dense, const mpg_view *indexed,
                      bool put) {
  const mpg_view *indices = &call->inputs[1];
  const mpg_shape *shape = &indices->desc.shape, *large = &indexed->desc.shape;
  const mpg_along_params *params = (const mpg_along_params *)call->params;
  int axis = axis_of(params->axis, shape->ndim);
  int64_t after = mpg_shape_product(shape, axis + 1, shape->ndim), n = shape->dims[axis],
          size = large->dims[axis], total = count_of(indices);
  MPG_CUDA_SIZE(item_of(dense), T,
                return mpg_cuda_launch(call, along_kernel<T>, mpg_cuda_blocks(total),
                                       MPG_CUDA_THREADS, 0, (T *)dense->data, (T *)indexed->data,
                                       mpg_untyped_view(indices), total, n, size, after, put));
  return MPG_OK;
}

} // namespace

mpg_status mpg_cuda_sort(const mpg_kernel_call *call) {
  const mpg_sort_params *params = (const mpg_sort_params *)call->params;
  results r = {};
  r.values = call->outputs[0].data;
  return order(call, r, &params->axis, params->is_ascend, 0);
}

mpg_status mpg_cuda_argsort(const mpg_kernel_call *call) {
  const mpg_argsort_params *params = (const mpg_argsort_params *)call->params;
  results r = {};
  r.indices = mpg_untyped_view(&call->outputs[0]);
  return order(call, r, &params->axis, params->is_ascend, 0);
}

mpg_status mpg_cuda_topk(const mpg_kernel_call *call) {
  const mpg_topk_params *params = (const mpg_topk_params *)call->params;
  const mpg_view *out = &call->outputs[0];
  enum { BOTH, INDICES, MASK, VALUE };
  results r = {};
  if (params->ret_typ == BOTH || params->ret_typ == VALUE) r.values = out->data;
  if (params->ret_typ == INDICES) r.indices = mpg_untyped_view(out);
  if (params->ret_typ == BOTH) r.indices = mpg_untyped_view(&call->outputs[1]);
  if (params->ret_typ == MASK) {
    MPG_TRY(mpg_cuda_zero(call, out));
    r.one = mpg_cuda_element(out->desc.dtype, 1);
    r.mask = out->data;
  }
  return order(call, r, &params->axis, params->is_ascend, params->k);
}

mpg_status mpg_cuda_argmax(const mpg_kernel_call *call) {
  const mpg_argmax_params *params = (const mpg_argmax_params *)call->params;
  return search(call, extent_of(&call->inputs[0].desc.shape, &params->axis), false);
}

mpg_status mpg_cuda_argmin(const mpg_kernel_call *call) {
  const mpg_argmax_params *params = (const mpg_argmax_params *)call->params;
  return search(call, extent_of(&call->inputs[0].desc.shape, &params->axis), true);
}

mpg_status mpg_cuda_gather_along(const mpg_kernel_call *call) {
  return move_along(call, &call->outputs[0], &call->inputs[0], false);
}

mpg_status mpg_cuda_scatter_along(const mpg_kernel_call *call) {
  MPG_TRY(mpg_cuda_zero(call, &call->outputs[0]));
  return move_along(call, &call->inputs[0], &call->outputs[0], true);
}
