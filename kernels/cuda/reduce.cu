/* Reductions, and broadcasting to a shape.
 *
 * Runs of reduced axes are reduced one after another, innermost first. Each pass sees its source as (outer, count, inner) and makes
 * (outer, chunks, inner); `count` is cut into chunks whose length depends on shapes alone, and as long as there are several another pass goes over
 * their results. Of neighbours (inner 1) a warp or a block takes a chunk; otherwise a block takes COLUMNS columns, each of its ROWS rows
 * of threads every ROWS-th row. A thread adds up at most 64 or so, threads are combined in a tree, so rounding errors stay small.
 * Halves and floats accumulate in float, doubles in double, integers in int64_t; the last pass divides, takes the root and converts.
 */
#include "kernels/cuda/cuda.h"

namespace {

enum { CHUNK = 16384, WARP_COUNT = 512, COLUMNS = 32, ROWS = 8, ROW_CHUNK = 512 };
enum combination { ADD, MULTIPLY, LARGEST, SMALLEST };
enum preparation { PLAIN, MAGNITUDE, SQUARE, NAN_TO_0, NAN_TO_1 };

struct anything; /* a source whose dtype is known at run time only */
template <class T> struct source_of {
  const T *data;
  template <class C> __device__ __forceinline__ C at(int64_t i) const { return mpg_to<C>(data[i]); }
};
template <> struct source_of<anything> {
  const void *data;
  mpg_dtype dtype;
  template <class C> __device__ __forceinline__ C at(int64_t i) const { return mpg_load_any<C>(dtype, data, i); }
};

/* What happens to a sum at the end. */
struct ending {
  bool last; /* else it is stored as it is, for another pass */
  mpg_dtype dtype;
  int64_t count; /* divided by, unless 0 */
  bool root, nan;
};

template <class C> struct ring { /* the type that wraps around */
  typedef C type;
};
template <> struct ring<int64_t> { typedef uint64_t type; };

template <class C>
struct combiner {
  int how;
  typedef typename ring<C>::type U;
  __device__ __forceinline__ C operator()(C x, C y) const {
    switch (how) {
      case ADD: return (C)((U)x + (U)y);
      case MULTIPLY: return (C)((U)x * (U)y);
      case LARGEST: return x != x ? x : x > y ? x : y;
      default: return x != x ? x : x < y ? x : y;
    }
  }
};

MPG_ANYWHERE float magnitude(float x) { return fabsf(x); }
MPG_ANYWHERE double magnitude(double x) { return fabs(x); }
MPG_ANYWHERE int64_t magnitude(int64_t x) { return x < 0 ? (int64_t)(0u - (uint64_t)x) : x; }
MPG_ANYWHERE float root_of(float x) { return sqrtf(x); }
MPG_ANYWHERE double root_of(double x) { return sqrt(x); }
MPG_ANYWHERE int64_t root_of(int64_t x) { return (int64_t)sqrt((double)x); }

template <class C>
__device__ __forceinline__ C prepared(int how, C x) {
  typedef typename ring<C>::type U;
  switch (how) {
    case MAGNITUDE: return magnitude(x);
    case SQUARE: return (C)((U)x * (U)x);
    case NAN_TO_0: return x != x ? (C)0 : x;
    case NAN_TO_1: return x != x ? (C)1 : x;
    default: return x;
  }
}

MPG_ANYWHERE float lowest(float) { return -INFINITY; }
MPG_ANYWHERE double lowest(double) { return -(double)INFINITY; }
MPG_ANYWHERE int64_t lowest(int64_t) { return INT64_MIN; }
MPG_ANYWHERE float highest(float) { return INFINITY; }
MPG_ANYWHERE double highest(double) { return (double)INFINITY; }
MPG_ANYWHERE int64_t highest(int64_t) { return INT64_MAX; }
template <class C>
__device__ __forceinline__ C neutral(int how) {
  return how == ADD ? (C)0 : how == MULTIPLY ? (C)1 : how == LARGEST ? lowest((C)0) : highest((C)0);
}

template <class C>
__device__ __forceinline__ void finish(const ending &end, void *target, int64_t i, C value) {
  if (!end.last) {
    ((C *)target)[i] = value;
    return;
  }
  if (end.count) value = value / (C)end.count;
  if (end.root) value = root_of(value);
  if (end.nan) value = (C)0 / (C)end.count; /* the mean of nothing */
  mpg_store_any(end.dtype, target, i, value);
}

struct pass {
  int64_t outer, count, inner, chunk, chunks;
  int how, prepare;
};

/* Neighbours: a warp a row. */
template <class T, class C>
__global__ void warp_rows_kernel(source_of<T> source, pass p, void *target, ending end) {
  int64_t row = MPG_CUDA_INDEX / 32;
  int lane = threadIdx.x & 31;
  if (row >= p.outer) return; /* the whole warp */
  combiner<C> combine = {p.how};
  C sum = neutral<C>(p.how);
  for (int64_t i = lane; i < p.count; i += 32) sum = combine(sum, prepared(p.prepare, source.template at<C>(row * p.count + i)));
  sum = mpg_warp_reduce(sum, combine);
  if (lane == 0) finish(end, target, row, sum);
}

/* Neighbours: a block a chunk of a row. */
template <class T, class C>
__global__ void block_rows_kernel(source_of<T> source, pass p, void *target, ending end) {
  int64_t item = blockIdx.x, row = item / p.chunks, begin = item % p.chunks * p.chunk;
  int64_t stop = begin + p.chunk < p.count ? begin + p.chunk : p.count;
  combiner<C> combine = {p.how};
  C sum = neutral<C>(p.how);
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x; i < stop; i += blockDim.x) sum = combine(sum, prepared(p.prepare, source.template at<C>(row * p.count + i)));
  sum = mpg_block_reduce(sum, neutral<C>(p.how), combine);
  if (threadIdx.x == 0) finish(end, target, item, sum);
}

/* Columns: blockIdx.x is (outer, chunk, tile of columns). */
template <class T, class C>
__global__ void columns_kernel(source_of<T> source, pass p, void *target, ending end) {
  __shared__ C parts[ROWS][COLUMNS];
  int64_t tiles = (p.inner + COLUMNS - 1) / COLUMNS, item = blockIdx.x;
  int64_t column = item % tiles * COLUMNS + threadIdx.x, chunk = item / tiles % p.chunks, outer = item / tiles / p.chunks;
  int64_t begin = chunk * p.chunk, stop = begin + p.chunk < p.count ? begin + p.chunk : p.count;
  combiner<C> combine = {p.how};
  C sum = neutral<C>(p.how);
  if (column < p.inner) {
#pragma unroll 4
    for (int64_t r = begin + threadIdx.y; r < stop; r += ROWS)
      sum = combine(sum, prepared(p.prepare, source.template at<C>((outer * p.count + r) * p.inner + column)));
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  for (int rows = ROWS / 2; rows; rows /= 2) {
    __syncthreads();
    if ((int)threadIdx.y < rows) parts[threadIdx.y][threadIdx.x] = combine(parts[threadIdx.y][threadIdx.x], parts[threadIdx.y + rows][threadIdx.x]);
  }
  if (threadIdx.y == 0 && column < p.inner) finish(end, target, (outer * p.chunks + chunk) * p.inner + column, parts[0][threadIdx.x]);
}

template <class T, class C>
mpg_status launch_pass(const mpg_kernel_call *call, source_of<T> source, const pass &p, void *target, const ending &end) {
  if (p.inner == 1 && p.chunks == 1 && p.count <= WARP_COUNT)
    return mpg_cuda_launch(call, warp_rows_kernel<T, C>, mpg_cuda_blocks(p.outer, MPG_CUDA_THREADS / 32), MPG_CUDA_THREADS, 0, source, p, target, end);
  if (p.inner == 1)
    return mpg_cuda_launch(call, block_rows_kernel<T, C>, mpg_cuda_blocks(p.outer * p.chunks, 1), MPG_CUDA_THREADS, 0, source, p, target, end);
  int64_t tiles = (p.inner + COLUMNS - 1) / COLUMNS;
  return mpg_cuda_launch(call, columns_kernel<T, C>, mpg_cuda_blocks(p.outer * p.chunks * tiles, 1), dim3(COLUMNS, ROWS), 0, source, p, target, end);
}

mpg_status run_pass(const mpg_kernel_call *call, mpg_dtype dtype, const void *source, const pass &p, void *target, const ending &end) {
  switch (dtype) {
    case MPG_FLOAT32: return launch_pass<float, float>(call, {(const float *)source}, p, target, end);
    case MPG_FLOAT16: return launch_pass<mpg_half, float>(call, {(const mpg_half *)source}, p, target, end);
    case MPG_BFLOAT16: return launch_pass<mpg_bfloat16, float>(call, {(const mpg_bfloat16 *)source}, p, target, end);
    case MPG_FLOAT64: return launch_pass<double, double>(call, {(const double *)source}, p, target, end);
    default: return launch_pass<anything, int64_t>(call, {source, dtype}, p, target, end);
  }
}

int64_t chunk_length(int64_t count, int64_t inner) {
  int64_t length = inner == 1 ? CHUNK : ROW_CHUNK;
  return count <= length + length / 2 ? (count > 0 ? count : 1) : length;
}

struct runs { /* of axes of one kind, outermost first */
  int64_t sizes[MPG_MAX_NDIM + 1];
  bool reduced[MPG_MAX_NDIM + 1];
  int count;
};

/* The pass that reduces run `last - 1`, once those behind it have been reduced. */
pass pass_of(const runs &r, int last) {
  pass p = {};
  p.outer = p.inner = 1;
  for (int i = 0; i < last - 1; i++) p.outer *= r.sizes[i];
  for (int i = last; i < r.count; i++) p.inner *= r.reduced[i] ? 1 : r.sizes[i];
  p.count = r.sizes[last - 1];
  p.chunk = chunk_length(p.count, p.inner);
  p.chunks = p.count ? (p.count + p.chunk - 1) / p.chunk : 1;
  return p;
}

mpg_status reduce(const mpg_kernel_call *call, const mpg_view *in, const mpg_view *out, const bool *reduced, int how, int prepare, bool mean, bool root) {
  const mpg_shape *shape = &in->desc.shape;
  mpg_dtype dtype = in->desc.dtype, kept = dtype == MPG_FLOAT64 ? MPG_FLOAT64 : mpg_dtype_is_float(dtype) ? MPG_FLOAT32 : MPG_INT64;
  int64_t total = 1;
  if (count_of(out) == 0) return MPG_OK;
  runs r = {};
  bool any = false;
  for (int i = 0; i < shape->ndim; i++) {
    if (reduced[i]) total *= shape->dims[i];
    if (shape->dims[i] == 1) continue;
    any |= reduced[i];
    if (r.count && r.reduced[r.count - 1] == reduced[i]) {
      r.sizes[r.count - 1] *= shape->dims[i];
    } else {
      r.sizes[r.count] = shape->dims[i];
      r.reduced[r.count++] = reduced[i];
    }
  }
  if (!any) { /* nothing to combine; still one pass */
    r.sizes[r.count] = 1;
    r.reduced[r.count++] = true;
  }
  /* Scratch for what passes hand on, twice, as they go to and fro. */
  int64_t largest = 0;
  int passes = 0;
  for (int last = r.count; last > 0; last--) {
    if (!r.reduced[last - 1]) continue;
    pass p = pass_of(r, last);
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
  ending store = {}, end = {true, out->desc.dtype, mean ? total : 0, root, mean && total == 0 && kept != MPG_INT64};
  const void *source = in->data;
  int flip = 0;
  for (int last = r.count; last > 0; last--) {
    if (!r.reduced[last - 1]) continue;
    pass p = pass_of(r, last);
    p.how = how;
    for (;;) {
      bool final = --passes == 0;
      p.prepare = prepare;
      MPG_TRY(run_pass(call, dtype, source, p, final ? out->data : buffers[flip], final ? end : store));
      source = buffers[flip];
      dtype = kept;
      prepare = PLAIN;
      flip ^= 1;
      if (p.chunks == 1) break;
      p.count = p.chunks;
      p.chunk = chunk_length(p.count, p.inner);
      p.chunks = (p.count + p.chunk - 1) / p.chunk;
    }
  }
  return MPG_OK;
}

/* Marks the axes that inference has checked already. */
void mark(const mpg_tuple *axis, bool exclude, int ndim, bool *reduced) {
  bool all = axis->count <= 0;
  for (int i = 0; i < ndim; i++) reduced[i] = all || exclude;
  if (all) return;
  for (int k = 0; k < axis->count; k++) reduced[axis->values[k] < 0 ? axis->values[k] + ndim : axis->values[k]] = !exclude;
}

/* Broadcasting: collapsed to runs of axes along which the source moves or stands still; innermost first. */
struct places {
  int ndim;
  int64_t dims[MPG_MAX_NDIM], strides[MPG_MAX_NDIM];
};

template <class T>
__global__ void broadcast_kernel(const T *in, T *out, int64_t count, places p) {
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

MPG_CUDA_KERNEL(reduce) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  bool reduced[MPG_MAX_NDIM];
  if (call->op->id == MPG_OP_norm) {
    const mpg_reduce_norm_params *params = (const mpg_reduce_norm_params *)call->params;
    mark(&params->axis, false, in->desc.shape.ndim, reduced);
    return reduce(call, in, out, reduced, ADD, params->ord == 1 ? MAGNITUDE : SQUARE, false, params->ord == 2);
  }
  const mpg_reduce_params *params = (const mpg_reduce_params *)call->params;
  mark(&params->axis, params->exclude, in->desc.shape.ndim, reduced);
  switch (call->op->id) {
    case MPG_OP_sum: return reduce(call, in, out, reduced, ADD, PLAIN, false, false);
    case MPG_OP_mean: return reduce(call, in, out, reduced, ADD, PLAIN, true, false);
    case MPG_OP_prod: return reduce(call, in, out, reduced, MULTIPLY, PLAIN, false, false);
    case MPG_OP_nansum: return reduce(call, in, out, reduced, ADD, NAN_TO_0, false, false);
    case MPG_OP_nanprod: return reduce(call, in, out, reduced, MULTIPLY, NAN_TO_1, false, false);
    case MPG_OP_max: return reduce(call, in, out, reduced, LARGEST, PLAIN, false, false);
    default: return reduce(call, in, out, reduced, SMALLEST, PLAIN, false, false);
  }
}

MPG_CUDA_KERNEL(broadcast) {
  const mpg_shape *from = &call->inputs[0].desc.shape, *to = &call->outputs[0].desc.shape;
  places p = {};
  int64_t step = 1, total = 1;
  int moving_before = -1;
  for (int i = 1; i <= to->ndim; i++) {
    int64_t n = to->dims[to->ndim - i], m = i <= from->ndim ? from->dims[from->ndim - i] : 1;
    total *= n;
    if (n == 1) continue;
    int moving = m != 1;
    if (moving == moving_before) {
      p.dims[p.ndim - 1] *= n;
    } else {
      p.dims[p.ndim] = n;
      p.strides[p.ndim++] = moving ? step : 0;
      moving_before = moving;
    }
    step *= m;
  }
  MPG_CUDA_SIZE(mpg_dtype_size(call->inputs[0].desc.dtype), T,
                return mpg_cuda_launch(call, broadcast_kernel<T>, mpg_cuda_blocks(total), MPG_CUDA_THREADS, 0, (const T *)call->inputs[0].data, (T *)call->outputs[0].data, total, p));
  return MPG_OK;
}

MPG_CUDA_KERNEL(multi_sum_sq) {
  bool reduced[MPG_MAX_NDIM];
  for (int k = 0; k < MPG_MAX_NDIM; k++) reduced[k] = true;
  for (int i = 0; i < call->num_inputs; i++) {
    mpg_view out = {};
    out.data = (float *)call->outputs[0].data + i;
    out.desc.shape.ndim = 1;
    out.desc.shape.dims[0] = 1;
    out.desc.dtype = MPG_FLOAT32;
    MPG_TRY(reduce(call, &call->inputs[i], &out, reduced, ADD, SQUARE, false, false));
  }
  return MPG_OK;
}
