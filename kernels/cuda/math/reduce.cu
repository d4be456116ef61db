/* Reductions, and broadcasting to a shape.
 *
 * Each run of adjacent reduced axes is reduced by one or more passes, innermost run first. A pass
 * views its source as (outer, count, inner) and computes (outer, chunks, inner). `count` is split
 * into chunks whose length depends only on shapes. If there are several chunks, further passes
 * reduce the chunks' results.
 *
 * If elements are contiguous (inner is 1), short rows of floats are held in registers (rows.h). For
 * other contiguous rows, a warp or a block reduces a chunk. If elements are not contiguous, a block
 * reduces COLUMNS columns. It has ROWS rows of threads, and each row of threads adds every ROWS-th
 * row of the chunk. A thread adds about 64 elements at most, and the threads' sums are combined in
 * a tree, so rounding errors stay small. float16, bfloat16 and float32 accumulate in float, float64
 * in double, integers in int64_t. The last pass divides, takes the square root and converts the
 * result.
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.h"
#include <type_traits>

extern "C" {
#include "kernels/common/reduce.h"
}

namespace {

enum { CHUNK = 16384, WARP_COUNT = 512, COLUMNS = 32, ROWS = 8, ROW_CHUNK = 512 };

struct anything; /* tag for a source whose dtype is known only at run time */
template <class T>
struct source_of {
  const T *data;
  template <class C>
  __device__ __forceinline__ C at(int64_t i) const {
    return mpg_to<C>(data[i]);
  }
};
template <>
struct source_of<anything> {
  const void *data;
  mpg_dtype dtype;
  template <class C>
  __device__ __forceinline__ C at(int64_t i) const {
    return mpg_load_any<C>(dtype, data, i);
  }
};

/* Final step of a reduction. Only the last pass applies it; earlier passes store their results
 * unchanged. */
struct ending {
  bool last;
  mpg_dtype dtype;
  int64_t count;  /* divisor; 0 to skip the division */
  bool root, nan; /* nan: true if the result is NaN (the mean of no elements) */
};

/* Type for additions and multiplications: integers are unsigned, so that overflow wraps around
 * instead of being undefined. */
template <class C>
struct ring {
  typedef C type;
};
template <>
struct ring<int64_t> {
  typedef uint64_t type;
};

template <class C>
struct combiner {
  int how;
  typedef typename ring<C>::type U;
  __device__ __forceinline__ C operator()(C x, C y) const {
    switch (how) {
      case MPG_ADD: return (C)((U)x + (U)y);
      case MPG_MULTIPLY: return (C)((U)x * (U)y);
      case MPG_LARGEST: return x != x ? x : x > y ? x : y;
      default: return x != x ? x : x < y ? x : y;
    }
  }
};

MPG_HOST_DEVICE float magnitude(float x) { return fabsf(x); }
MPG_HOST_DEVICE double magnitude(double x) { return fabs(x); }
MPG_HOST_DEVICE int64_t magnitude(int64_t x) { return x < 0 ? (int64_t)(0u - (uint64_t)x) : x; }
MPG_HOST_DEVICE float root_of(float x) { return sqrtf(x); }
MPG_HOST_DEVICE double root_of(double x) { return sqrt(x); }
MPG_HOST_DEVICE int64_t root_of(int64_t x) { return (int64_t)sqrt((double)x); }

template <class C>
__device__ __forceinline__ C prepared(int how, C x) {
  typedef typename ring<C>::type U;
  switch (how) {
    case MPG_MAGNITUDE: return magnitude(x);
    case MPG_SQUARE: return (C)((U)x * (U)x);
    case MPG_NAN_TO_0: return x != x ? (C)0 : x;
    case MPG_NAN_TO_1: return x != x ? (C)1 : x;
    default: return x;
  }
}

MPG_HOST_DEVICE float lowest(float) { return -INFINITY; }
MPG_HOST_DEVICE double lowest(double) { return -(double)INFINITY; }
MPG_HOST_DEVICE int64_t lowest(int64_t) { return INT64_MIN; }
MPG_HOST_DEVICE float highest(float) { return INFINITY; }
MPG_HOST_DEVICE double highest(double) { return (double)INFINITY; }
MPG_HOST_DEVICE int64_t highest(int64_t) { return INT64_MAX; }
template <class C>
__device__ __forceinline__ C neutral(int how) {
  return how == MPG_ADD        ? (C)0
         : how == MPG_MULTIPLY ? (C)1
         : how == MPG_LARGEST  ? lowest((C)0)
                               : highest((C)0);
}

template <class C>
__device__ __forceinline__ void finish(const ending &end, void *target, int64_t i, C value) {
  if (!end.last) {
    ((C *)target)[i] = value;
    return;
  }
  if (end.count) value = value / (C)end.count;
  if (end.root) value = root_of(value);
  if (end.nan) value = (C)0 / (C)end.count; /* 0 / 0 */
  mpg_store_any(end.dtype, target, i, value);
}

struct pass {
  int64_t outer, count, inner, chunk, chunks;
  int how, prepare;
};

/* Reduces contiguous rows in registers, in the same order as fused groups. SUM is a fast path for
 * plain sums (MPG_ADD, MPG_PLAIN). */
template <class R, bool SUM>
__global__ void __launch_bounds__(MPG_CUDA_THREADS)
    held_rows_kernel(const typename R::element *source, pass p, void *target, ending end) {
  int64_t row = (int64_t)blockIdx.x * R::ROWS + R::row();
  int n = row < p.outer ? (int)p.count : 0;
  float values[R::SIZE], none = SUM ? 0.0f : neutral<float>(p.how), result;
  R::load(source + row * p.count, n, none, values);
  if constexpr (SUM) {
    result = R::fold(values, none, mpg_plus());
  } else {
#pragma unroll
    for (int k = 0; k < R::SIZE; k++)
      if (R::there(k / R::EACH, k % R::EACH, n)) values[k] = prepared(p.prepare, values[k]);
    result = R::fold(values, none, combiner<float>{p.how});
  }
  if (row < p.outer && R::me() == 0) finish(end, target, row, result);
}

/* Reduces contiguous rows, one warp per row. */
template <class T, class C>
__global__ void warp_rows_kernel(source_of<T> source, pass p, void *target, ending end) {
  int64_t row = MPG_CUDA_INDEX / 32;
  int lane = threadIdx.x & 31;
  if (row >= p.outer) return; /* uniform across the warp */
  combiner<C> combine = {p.how};
  C sum = neutral<C>(p.how);
  for (int64_t i = lane; i < p.count; i += 32)
    sum = combine(sum, prepared(p.prepare, source.template at<C>(row * p.count + i)));
  sum = mpg_warp_reduce(sum, combine);
  if (lane == 0) finish(end, target, row, sum);
}

/* Reduces contiguous rows, one block per chunk of a row. */
template <class T, class C>
__global__ void block_rows_kernel(source_of<T> source, pass p, void *target, ending end) {
  int64_t item = blockIdx.x, row = item / p.chunks, begin = item % p.chunks * p.chunk;
  int64_t stop = begin + p.chunk < p.count ? begin + p.chunk : p.count;
  combiner<C> combine = {p.how};
  C sum = neutral<C>(p.how);
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x; i < stop; i += blockDim.x)
    sum = combine(sum, prepared(p.prepare, source.template at<C>(row * p.count + i)));
  sum = mpg_block_reduce(sum, neutral<C>(p.how), combine);
  if (threadIdx.x == 0) finish(end, target, item, sum);
}

/* Reduces columns. blockIdx.x enumerates (outer, chunk, tile of COLUMNS columns). */
template <class T, class C>
__global__ void columns_kernel(source_of<T> source, pass p, void *target, ending end) {
  __shared__ C parts[ROWS][COLUMNS];
  int64_t tiles = (p.inner + COLUMNS - 1) / COLUMNS, item = blockIdx.x;
  int64_t column = item % tiles * COLUMNS + threadIdx.x, chunk = item / tiles % p.chunks,
          outer = item / tiles / p.chunks;
  int64_t begin = chunk * p.chunk, stop = begin + p.chunk < p.count ? begin + p.chunk : p.count;
  combiner<C> combine = {p.how};
  C sum = neutral<C>(p.how);
  if (column < p.inner) {
#pragma unroll 4
    for (int64_t r = begin + threadIdx.y; r < stop; r += ROWS)
      sum = combine(sum, prepared(p.prepare,
                                  source.template at<C>((outer * p.count + r) * p.inner + column)));
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  for (int rows = ROWS / 2; rows; rows /= 2) {
    __syncthreads();
    if ((int)threadIdx.y < rows)
      parts[threadIdx.y][threadIdx.x] =
          combine(parts[threadIdx.y][threadIdx.x], parts[threadIdx.y + rows][threadIdx.x]);
  }
  if (threadIdx.y == 0 && column < p.inner)
    finish(end, target, (outer * p.chunks + chunk) * p.inner + column, parts[0][threadIdx.x]);
}

/* Fast path of columns_kernel for plain sums of aligned floats: a thread loads eight adjacent
 * columns, 16 bytes at a time. Results are bit-identical to those of columns_kernel. */
template <class T>
__global__ void column_sums_kernel(const T *source, pass p, void *target, ending end) {
  enum { EIGHT = 8, WIDE = COLUMNS * EIGHT, AHEAD = 4 };
  __shared__ float parts[ROWS][WIDE];
  int64_t tiles = (p.inner + WIDE - 1) / WIDE, item = blockIdx.x, line = item / tiles,
          outer = line / p.chunks, begin = (line - outer * p.chunks) * p.chunk,
          stop = begin + p.chunk < p.count ? begin + p.chunk : p.count,
          tile = (item - line * tiles) * WIDE, column = tile + threadIdx.x * EIGHT;
  float sums[EIGHT] = {};
  if (column < p.inner) {
    const T *at = source + (outer * p.count + begin + threadIdx.y) * p.inner + column;
    int64_t stride = ROWS * p.inner;
    int rows = (int)((stop - begin - threadIdx.y + ROWS - 1) / ROWS);
    for (int row = 0; row < rows; row += AHEAD, at += AHEAD * stride) {
      mpg_neighbours<T, EIGHT, true> data[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; u++)
        if (row + u < rows) data[u].load(at + u * stride, EIGHT);
#pragma unroll
      for (int u = 0; u < AHEAD; u++)
        if (row + u < rows)
#pragma unroll
          for (int k = 0; k < EIGHT; k++) sums[k] += data[u].template get<float>(k);
    }
  }
#pragma unroll
  for (int k = 0; k < EIGHT; k++) parts[threadIdx.y][threadIdx.x * EIGHT + k] = sums[k];
  for (int rows = ROWS / 2; rows; rows /= 2) {
    __syncthreads();
    if ((int)threadIdx.y < rows)
#pragma unroll
      for (int k = 0; k < EIGHT; k++)
        parts[threadIdx.y][threadIdx.x + k * COLUMNS] +=
            parts[threadIdx.y + rows][threadIdx.x + k * COLUMNS];
  }
  __syncthreads();
  int mine = threadIdx.y * COLUMNS + threadIdx.x;
  if (tile + mine < p.inner) finish(end, target, line * p.inner + tile + mine, parts[0][mine]);
}

template <class T, class C>
mpg_status launch_pass(const mpg_kernel_call *call, source_of<T> source, const pass &p,
                       void *target, const ending &end) {
  if constexpr (std::is_same<C, float>::value) {
    if (p.inner == 1 && p.count <= MPG_ROW_BLOCK) {
      bool full = p.count % mpg_pack<T>::COUNT == 0 && mpg_cuda_aligned(source.data),
           sum = p.how == MPG_ADD && p.prepare == MPG_PLAIN;
      return mpg_with_row<T>(p.count, full, [&](auto row) {
        typedef decltype(row) R;
        if constexpr (R::held)
          return mpg_cuda_launch(call, sum ? held_rows_kernel<R, true> : held_rows_kernel<R, false>,
                                 R::blocks(p.outer), MPG_CUDA_THREADS, 0, source.data, p, target,
                                 end);
        else
          return mpg_fail(MPG_ERROR, "internal: a row is too long");
      });
    }
  }
  if (p.inner == 1 && p.chunks == 1 && p.count <= WARP_COUNT)
    return mpg_cuda_launch(call, warp_rows_kernel<T, C>,
                           mpg_cuda_blocks(p.outer, MPG_CUDA_THREADS / 32), MPG_CUDA_THREADS, 0,
                           source, p, target, end);
  if (p.inner == 1)
    return mpg_cuda_launch(call, block_rows_kernel<T, C>, mpg_cuda_blocks(p.outer * p.chunks, 1),
                           MPG_CUDA_THREADS, 0, source, p, target, end);
  if constexpr (std::is_same<C, float>::value) {
    if (p.how == MPG_ADD && p.prepare == MPG_PLAIN && p.inner >= 4 * COLUMNS && p.inner % 8 == 0 &&
        mpg_cuda_aligned(source.data)) {
      int64_t tiles = (p.inner + 8 * COLUMNS - 1) / (8 * COLUMNS);
      return mpg_cuda_launch(call, column_sums_kernel<T>,
                             mpg_cuda_blocks(p.outer * p.chunks * tiles, 1), dim3(COLUMNS, ROWS), 0,
                             source.data, p, target, end);
    }
  }
  int64_t tiles = (p.inner + COLUMNS - 1) / COLUMNS;
  return mpg_cuda_launch(call, columns_kernel<T, C>, mpg_cuda_blocks(p.outer * p.chunks * tiles, 1),
                         dim3(COLUMNS, ROWS), 0, source, p, target, end);
}

mpg_status run_pass(const mpg_kernel_call *call, mpg_dtype dtype, const void *source, const pass &p,
                    void *target, const ending &end) {
  switch (dtype) {
    case MPG_FLOAT32:
      return launch_pass<float, float>(call, {(const float *)source}, p, target, end);
    case MPG_FLOAT16:
      return launch_pass<mpg_half, float>(call, {(const mpg_half *)source}, p, target, end);
    case MPG_BFLOAT16:
      return launch_pass<mpg_bfloat16, float>(call, {(const mpg_bfloat16 *)source}, p, target, end);
    case MPG_FLOAT64:
      return launch_pass<double, double>(call, {(const double *)source}, p, target, end);
    default: return launch_pass<anything, int64_t>(call, {source, dtype}, p, target, end);
  }
}

int64_t chunk_length(int64_t count, int64_t inner) {
  int64_t length = inner == 1 ? CHUNK : ROW_CHUNK;
  return count <= length + length / 2 ? (count > 0 ? count : 1) : length;
}

/* Returns the first pass over a run of axes. Assumes that the inner runs have already been
 * reduced. */
pass pass_of(const mpg_runs &r, int run) {
  pass p = {};
  mpg_runs_around(&r, run, &p.outer, &p.inner);
  p.count = r.sizes[run];
  p.chunk = chunk_length(p.count, p.inner);
  p.chunks = p.count ? (p.count + p.chunk - 1) / p.chunk : 1;
  return p;
}

mpg_status reduce(const mpg_kernel_call *call, const mpg_view *in, const mpg_view *out,
                  const bool *reduced, const mpg_reduction &f) {
  mpg_dtype dtype = in->desc.dtype, kept = dtype == MPG_FLOAT64        ? MPG_FLOAT64
                                           : mpg_dtype_is_float(dtype) ? MPG_FLOAT32
                                                                       : MPG_INT64;
  if (count_of(out) == 0) return MPG_OK;
  mpg_runs r = mpg_runs_of(&in->desc.shape, reduced);
  /* Two scratch buffers for intermediate results; passes alternate between them. */
  int64_t largest = 0;
  int passes = 0;
  for (int run = r.count - 1; run >= 0; run--) {
    if (!r.reduced[run]) continue;
    pass p = pass_of(r, run);
    for (passes++; p.chunks > 1; passes++) {
      if (p.outer * p.chunks * p.inner > largest) largest = p.outer * p.chunks * p.inner;
      p.count = p.chunks;
      p.chunk = chunk_length(p.count, p.inner);
      p.chunks = (p.count + p.chunk - 1) / p.chunk;
    }
    if (p.outer * p.inner > largest) largest = p.outer * p.inner;
  }
  char *buffers[2] = {NULL, NULL};
  size_t size = mpg_align_up((size_t)largest * mpg_dtype_size(kept), 256);
  if (passes > 1) {
    buffers[0] = (char *)mpg_device_scratch(call->device, 2 * size);
    if (!buffers[0]) return MPG_DEVICE_OUT_OF_MEMORY;
    buffers[1] = buffers[0] + size;
  }
  ending store = {}, end = {true, out->desc.dtype, f.mean ? r.total : 0, f.root,
                            f.mean && r.total == 0 && kept != MPG_INT64};
  const void *source = in->data;
  mpg_prepare prepare = f.prepare;
  int flip = 0;
  for (int run = r.count - 1; run >= 0; run--) {
    if (!r.reduced[run]) continue;
    pass p = pass_of(r, run);
    p.how = f.how;
    for (;;) {
      bool final = --passes == 0;
      p.prepare = prepare;
      MPG_TRY(
          run_pass(call, dtype, source, p, final ? out->data : buffers[flip], final ? end : store));
      source = buffers[flip];
      dtype = kept;
      prepare = MPG_PLAIN;
      flip ^= 1;
      if (p.chunks == 1) break;
      p.count = p.chunks;
      p.chunk = chunk_length(p.count, p.inner);
      p.chunks = (p.count + p.chunk - 1) / p.chunk;
    }
  }
  return MPG_OK;
}

template <class T>
__global__ void broadcast_kernel(const T *in, T *out, int64_t count, mpg_broadcast p) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t from = 0;
  if (count <= 0x7fffffff) {
    uint32_t rest = (uint32_t)i;
    for (int d = 0; d < p.ndim; d++) {
      uint32_t next = rest / (uint32_t)p.dims[d];
      from += (int64_t)(rest - next * (uint32_t)p.dims[d]) * p.strides[d];
      rest = next;
    }
  } else {
    int64_t rest = i;
    for (int d = 0; d < p.ndim; d++) {
      int64_t next = rest / p.dims[d];
      from += (rest - next * p.dims[d]) * p.strides[d];
      rest = next;
    }
  }
  out[i] = in[from];
}

} // namespace

mpg_status mpg_cuda_reduce(const mpg_kernel_call *call) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  bool reduced[MPG_MAX_NDIM];
  mpg_reduced_axes(call->op, call->params, in->desc.shape.ndim, reduced);
  return reduce(call, in, out, reduced, mpg_reduction_of(call->op, call->params));
}

mpg_status mpg_cuda_broadcast(const mpg_kernel_call *call) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  mpg_broadcast p = mpg_broadcast_of(&in->desc.shape, &out->desc.shape);
  int64_t count = count_of(out);
  MPG_CUDA_SIZE(
      item_of(in), T,
      return mpg_cuda_launch(call, broadcast_kernel<T>, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                             (const T *)in->data, (T *)out->data, count, p));
  return MPG_OK;
}

mpg_status mpg_cuda_multi_sum_sq(const mpg_kernel_call *call) {
  bool reduced[MPG_MAX_NDIM];
  for (int k = 0; k < MPG_MAX_NDIM; k++) reduced[k] = true;
  for (int i = 0; i < call->num_inputs; i++) {
    mpg_view out = {};
    out.data = (float *)call->outputs[0].data + i;
    out.desc.shape.ndim = 1;
    out.desc.shape.dims[0] = 1;
    out.desc.dtype = MPG_FLOAT32;
    MPG_TRY(reduce(call, &call->inputs[i], &out, reduced, {MPG_ADD, MPG_SQUARE, false, false}));
  }
  return MPG_OK;
}
