/* Gather and scatter ops. A first kernel converts the indices to valid positions, in scratch
 * memory. A second kernel moves the rows, up to 16 bytes at a time.
 *
 * Scatter-add is deterministic: positions are sorted stably, and the rows of equal positions are
 * added in index order. If a scatter writes a position twice, the last index wins. An invalid index
 * fails a device-side assertion and is treated as the nearest valid one.
 */
#include <string.h>

#include "kernels/cuda/access.h"
#include "kernels/cuda/runtime/device_assert.h"
#include "kernels/cuda/array/move.h"
#include "kernels/cuda/array/radix_sort.h"

namespace {

enum { MODE_CLIP, MODE_RAISE, MODE_WRAP }; /* `mode` of take; pick has only clip and wrap */

/* --- Resolving indices ------------------------------------------------------------------------ */

__global__ void positions_kernel(mpg_untyped indices, int64_t count, int64_t size, int mode,
                                 int64_t *positions, unsigned long long *bad) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t index = mpg_cuda_index_at(indices, i);
  if (mode == MODE_RAISE && (index < 0 || index >= size)) atomicMin(bad, (unsigned long long)i);
  positions[i] = mode == MODE_WRAP ? mpg_index_wrap(index, size) : mpg_index_clip(index, size);
}

struct dims {
  int64_t values[MPG_MAX_NDIM];
  int count;
};

__global__ void positions_nd_kernel(mpg_untyped indices, int64_t count, dims shape,
                                    int64_t *positions, unsigned long long *bad) {
  int64_t i = MPG_CUDA_INDEX, position = 0;
  if (i >= count) return;
  for (int d = 0; d < shape.count; d++) {
    int64_t size = shape.values[d], index = mpg_cuda_index_at(indices, d * count + i);
    if (index < -size || index >= size) atomicMin(bad, (unsigned long long)(d * count + i));
    index = index < 0 ? index + size : index;
    position = position * size + mpg_index_clip(index, size);
  }
  positions[i] = position;
}

/* Raises an error for the first invalid index, if any. Indices [d * per, (d + 1) * per) index a
 * dimension of size sizes.values[d]. */
__global__ void refuse_kernel(mpg_cuda_assert assertion, const unsigned long long *bad,
                              mpg_untyped indices, dims sizes, int64_t per, bool negative) {
  if (*bad == MPG_CUDA_NONE) return;
  int64_t size = sizes.values[(int64_t)*bad / per];
  assertion.raise(mpg_cuda_index_at(indices, (int64_t)*bad), size, negative ? -size : 0, size - 1);
}

/* Raises the error for an empty dimension on the host. A device-side assertion is not possible,
 * because work would continue with the nearest valid index, and there is none. */
mpg_status refuse_empty(const mpg_kernel_call *call) {
  return mpg_fail(MPG_INDEX_ERROR, "%s: every index is out of range for a dimension of size 0",
                  call->op->name);
}

mpg_status refuse(const mpg_kernel_call *call, const unsigned long long *bad,
                  const mpg_view *indices, const dims &sizes, int64_t per, bool negative) {
  mpg_cuda_assert assertion;
  MPG_TRY(mpg_cuda_assert_make(
      call, MPG_INDEX_ERROR,
      "%s: index %lld is out of range for a dimension of size %lld (%lld to %lld are valid)",
      &assertion));
  return mpg_cuda_launch(call, refuse_kernel, 1, 1, 0, assertion, bad, mpg_untyped_view(indices),
                         sizes, per, negative);
}

/* Converts all indices to positions in [0, size), in scratch memory. Also allocates `extra` bytes
 * for the caller and sets *more to their 64-byte aligned address. */
mpg_status resolve(const mpg_kernel_call *call, const mpg_view *indices, int64_t size, int mode,
                   size_t extra, int64_t **positions, char **more) {
  int64_t count = count_of(indices);
  size_t bytes = mpg_align_up((size_t)count * sizeof(int64_t), 64);
  char *scratch = (char *)mpg_device_scratch(call->device, 64 + bytes + extra);
  if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  unsigned long long *bad = (unsigned long long *)scratch;
  *positions = (int64_t *)(scratch + 64);
  if (more) *more = scratch + 64 + bytes;
  if (!count) return MPG_OK;
  if (mode == MODE_RAISE && size == 0) return refuse_empty(call);
  if (mode == MODE_RAISE) MPG_TRY(mpg_cuda_nothing_wrong(call, bad));
  MPG_TRY(mpg_cuda_launch(call, positions_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                          mpg_untyped_view(indices), count, size, mode, *positions, bad));
  dims sizes = {{size}, 1};
  return mode == MODE_RAISE ? refuse(call, bad, indices, sizes, count, false) : MPG_OK;
}

/* Converts the indices of gather_nd and scatter_nd to row numbers. Each column of `indices` holds
 * the coordinates, along the leading dimensions, of one row of an array of `shape`. *positions
 * receives the row numbers, *count the number of rows, and *inner the elements per row. `extra` and
 * *more are as for `resolve`. */
mpg_status resolve_nd(const mpg_kernel_call *call, const mpg_view *indices, const mpg_shape *shape,
                      size_t extra, int64_t **positions, int64_t *count, int64_t *inner,
                      char **more) {
  dims sizes = {};
  sizes.count = (int)indices->desc.shape.dims[0];
  for (int d = 0; d < sizes.count; d++) sizes.values[d] = shape->dims[d];
  *count = mpg_shape_product(&indices->desc.shape, 1, indices->desc.shape.ndim);
  *inner = mpg_shape_product(shape, sizes.count, shape->ndim);
  size_t bytes = mpg_align_up((size_t)*count * sizeof(int64_t), 64);
  char *scratch = (char *)mpg_device_scratch(call->device, 64 + bytes + extra);
  if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  unsigned long long *bad = (unsigned long long *)scratch;
  *positions = (int64_t *)(scratch + 64);
  if (more) *more = scratch + 64 + bytes;
  if (!*count) return MPG_OK;
  for (int d = 0; d < sizes.count; d++)
    if (sizes.values[d] == 0) return refuse_empty(call);
  MPG_TRY(mpg_cuda_nothing_wrong(call, bad));
  MPG_TRY(mpg_cuda_launch(call, positions_nd_kernel, mpg_cuda_blocks(*count), MPG_CUDA_THREADS, 0,
                          mpg_untyped_view(indices), *count, sizes, *positions, bad));
  return refuse(call, bad, indices, sizes, *count, true);
}

/* --- Gathering rows --------------------------------------------------------------------------- */

struct alignas(16) item16 {
  uint64_t words[2];
};

/* Returns the largest power of two, at most 16, that divides both addresses and the row size. Rows
 * are moved in items of that many bytes. */
size_t widest(const void *a, const void *b, size_t bytes) {
  uint64_t bits = (uint64_t)(uintptr_t)a | (uint64_t)(uintptr_t)b | bytes | 16;
  return (size_t)(bits & -bits);
}
#define BY_WIDTH(width, T, ...) \
  if ((width) == 16) {          \
    typedef item16 T;           \
    __VA_ARGS__;                \
  } else                        \
    MPG_CUDA_SIZE(width, T, __VA_ARGS__)

/* Gathers rows: out[b][i] = in[b][positions[i]], where `in` is (before, length, items) and `out` is
 * (before, count, items). */
template <class T, class I>
__global__ void gather_kernel(const T *in, T *out, const int64_t *positions, int64_t before,
                              int64_t count, int64_t length, int64_t items) {
  for (int64_t i = MPG_CUDA_INDEX; i < before * count * items; i += MPG_CUDA_STRIDE) {
    I row = (I)i / (I)items, item = (I)i - row * (I)items, outer = row / (I)count;
    out[i] = in[((int64_t)outer * length + positions[row - outer * (I)count]) * items + item];
  }
}
/* Like gather_kernel, but for long rows. Threads of a block with the same y share a row. */
template <class T>
__global__ void gather_rows_kernel(const T *in, T *out, const int64_t *positions, int64_t before,
                                   int64_t count, int64_t length, int64_t items) {
  for (int64_t outer = blockIdx.y; outer < before; outer += gridDim.y)
    for (int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; row < count;
         row += (int64_t)gridDim.x * blockDim.y) {
      const T *from = in + (outer * length + positions[row]) * items;
      T *to = out + (outer * count + row) * items;
      for (int64_t i = threadIdx.x; i < items; i += blockDim.x) to[i] = from[i];
    }
}

mpg_status gather_rows(const mpg_kernel_call *call, const void *in, void *out,
                       const int64_t *positions, int64_t before, int64_t count, int64_t length,
                       size_t bytes) {
  if (!bytes) return MPG_OK;
  size_t width = widest(in, out, bytes);
  int64_t items = (int64_t)(bytes / width);
  int64_t total = before * count * items;
  if (items >= 16 && count * items >= MPG_CUDA_THREADS) {
    unsigned along = 16;
    while (along < MPG_CUDA_THREADS && along < items) along *= 2;
    dim3 block(along, MPG_CUDA_THREADS / along),
        grid(mpg_cuda_blocks(count, block.y), (unsigned)(before < 65535 ? before : 65535));
    BY_WIDTH(width, T,
             return mpg_cuda_launch(call, gather_rows_kernel<T>, grid, block, 0, (const T *)in,
                                    (T *)out, positions, before, count, length, items));
  }
  BY_WIDTH(width, T,
           return mpg_cuda_launch(
               call, total <= INT32_MAX ? gather_kernel<T, uint32_t> : gather_kernel<T, uint64_t>,
               mpg_cuda_blocks(total), MPG_CUDA_THREADS, 0, (const T *)in, (T *)out, positions,
               before, count, length, items));
  return MPG_OK;
}

mpg_status gather(const mpg_kernel_call *call, const mpg_view *a, const mpg_view *indices,
                  int64_t axis_param, int mode) {
  const mpg_view *out = &call->outputs[0];
  const mpg_shape *shape = &a->desc.shape;
  int axis = axis_of(axis_param, shape->ndim);
  int64_t *positions;
  if (count_of(indices) == 0) return MPG_OK;
  MPG_TRY(resolve(call, indices, shape->dims[axis], mode, 0, &positions, NULL));
  if (count_of(out) == 0) return MPG_OK;
  return gather_rows(call, a->data, out->data, positions, mpg_shape_product(shape, 0, axis),
                     count_of(indices), shape->dims[axis],
                     (size_t)mpg_shape_product(shape, axis + 1, shape->ndim) * item_of(a));
}

/* --- Scatter-add ------------------------------------------------------------------------------ */

__global__ void keys_kernel(const int64_t *positions, int64_t count, uint64_t *keys,
                            int32_t *order) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  keys[i] = (uint64_t)positions[i];
  order[i] = (int32_t)i;
}

/* Adds the rows of each run of equal keys. The threads with the same y handle one sorted position.
 * If it begins a run, they share the columns and add the run's rows in order. Otherwise they do
 * nothing. */
template <class T, class C>
__global__ void add_runs_kernel(const T *in, T *out, const uint64_t *keys, const int32_t *order,
                                int64_t before, int64_t count, int64_t length, int64_t after) {
  for (int64_t place = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; place < count;
       place += (int64_t)gridDim.x * blockDim.y) {
    uint64_t key = keys[place];
    if (place > 0 && keys[place - 1] == key) continue;
    int64_t end = place + 1;
    while (end < count && keys[end] == key) end++;
    for (int64_t column = threadIdx.x; column < before * after; column += blockDim.x) {
      int64_t b = column / after, c = column % after;
      C sum = 0;
      for (int64_t k = place; k < end; k++)
        sum += mpg_to<C>(in[(b * count + order[k]) * after + c]);
      out[(b * length + (int64_t)key) * after + c] = mpg_to<T>(sum);
    }
  }
}

/* Draws a random 64-bit sort key for each row. Sorting by the keys shuffles the rows in the same
 * way as kernels/cpu/math/random.c. */
__global__ void shuffle_keys_kernel(mpg_cuda_key given, int64_t count, uint64_t *keys,
                                    int32_t *order) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  mpg_random_key key = given.read();
  uint64_t position = (uint64_t)i + key.position;
  mpg_philox_block block = mpg_philox(key.seed, key.call, position >> 1);
  keys[i] = (uint64_t)block.value[2 * (position & 1)] << 32 | block.value[2 * (position & 1) + 1];
  order[i] = (int32_t)i;
}

__global__ void order_kernel(const int32_t *order, int64_t count, int64_t *positions) {
  int64_t i = MPG_CUDA_INDEX;
  if (i < count) positions[i] = order[i];
}

size_t add_bytes(int64_t count) {
  return mpg_align_up((size_t)count * sizeof(uint64_t), 64) * 2 +
         mpg_align_up((size_t)count * sizeof(int32_t), 64) * 2 + mpg_cuda_sort_bytes(count);
}

/* Scatter-add: clears out (before, length, after), then adds row i of in (before, count, after) to
 * row positions[i] of out. `memory` has add_bytes(count) bytes. */
mpg_status scatter_add(const mpg_kernel_call *call, const mpg_view *in, const mpg_view *out,
                       const int64_t *positions, int64_t before, int64_t count, int64_t length,
                       int64_t after, char *memory) {
  MPG_TRY(mpg_cuda_zero(call, out));
  if (count_of(out) == 0 || count == 0 || after == 0) return MPG_OK;
  if (count > INT32_MAX)
    return mpg_fail(MPG_NOT_IMPLEMENTED, "%s: a GPU supports at most 2^31 indices", call->op->name);
  size_t key_bytes = mpg_align_up((size_t)count * sizeof(uint64_t), 64),
         order_bytes = mpg_align_up((size_t)count * sizeof(int32_t), 64);
  uint64_t *keys[2] = {(uint64_t *)memory, (uint64_t *)(memory + key_bytes)};
  int32_t *order[2] = {(int32_t *)(memory + 2 * key_bytes),
                       (int32_t *)(memory + 2 * key_bytes + order_bytes)};
  int bits = 0, side;
  while (bits < 62 && length > (int64_t)1 << bits) bits++;
  MPG_TRY(mpg_cuda_launch(call, keys_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0, positions,
                          count, keys[0], order[0]));
  MPG_TRY(mpg_cuda_sort(call, keys, order, count, bits, memory + 2 * key_bytes + 2 * order_bytes,
                        &side));
  unsigned width = before * after >= 128 ? 128 : before * after >= 32 ? 32 : 8;
  dim3 block(width, MPG_CUDA_THREADS / width);
  unsigned blocks = mpg_cuda_blocks(count, block.y);
#define ADD(T, C)                                                                            \
  return mpg_cuda_launch(call, add_runs_kernel<T, C>, blocks, block, 0, (const T *)in->data, \
                         (T *)out->data, (const uint64_t *)keys[side],                       \
                         (const int32_t *)order[side], before, count, length, after)
  switch (in->desc.dtype) {
    case MPG_FLOAT32: ADD(float, float);
    case MPG_FLOAT64: ADD(double, double);
    case MPG_FLOAT16: ADD(mpg_half, float);
    case MPG_BFLOAT16: ADD(mpg_bfloat16, float);
    case MPG_INT32: ADD(uint32_t, uint32_t);
    case MPG_INT64: ADD(uint64_t, uint64_t);
    default: ADD(uint8_t, uint32_t);
  }
#undef ADD
}

/* --- Scattering: if positions are equal, the last one wins ------------------------------------ */

__global__ void winners_kernel(const int64_t *positions, int64_t count,
                               unsigned long long *winners) {
  int64_t i = MPG_CUDA_INDEX;
  if (i < count) atomicMax(&winners[positions[i]], (unsigned long long)i + 1);
}

template <class T, class I>
__global__ void put_kernel(const T *values, T *out, const int64_t *positions,
                           const unsigned long long *winners, int64_t count, int64_t items) {
  for (int64_t i = MPG_CUDA_INDEX; i < count * items; i += MPG_CUDA_STRIDE) {
    I row = (I)i / (I)items, item = (I)i - row * (I)items;
    if (winners[positions[row]] == (unsigned long long)row + 1)
      out[positions[row] * items + item] = values[i];
  }
}

size_t put_bytes(int64_t rows) {
  return mpg_align_up((size_t)rows * sizeof(unsigned long long), 64);
}

/* Scatters `count` rows to `out`, which has `rows` rows. If several rows have the same position,
 * the last one wins: winners[position] holds 1 + the row's index, or 0 if no row has that position.
 * `memory` has put_bytes(rows) bytes. */
mpg_status put_rows(const mpg_kernel_call *call, const void *values, void *out,
                    const int64_t *positions, int64_t count, int64_t rows, size_t bytes,
                    char *memory) {
  if (!count || !bytes) return MPG_OK;
  unsigned long long *winners = (unsigned long long *)memory;
  MPG_TRY(mpg_cuda_zero(call, winners, (size_t)rows * sizeof *winners));
  MPG_TRY(mpg_cuda_launch(call, winners_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                          positions, count, winners));
  size_t width = widest(values, out, bytes);
  int64_t items = (int64_t)(bytes / width);
  bool small = count * items <= INT32_MAX;
  BY_WIDTH(width, T,
           return mpg_cuda_launch(call, small ? put_kernel<T, uint32_t> : put_kernel<T, uint64_t>,
                                  mpg_cuda_blocks(count * items), MPG_CUDA_THREADS, 0,
                                  (const T *)values, (T *)out, positions,
                                  (const unsigned long long *)winners, count, items));
  return MPG_OK;
}

/* Scatters rows of `values` to the output, which the caller has initialized. */
mpg_status scatter_rows(const mpg_kernel_call *call, const mpg_view *values,
                        const mpg_view *indices) {
  const mpg_view *out = &call->outputs[0];
  int depth = (int)indices->desc.shape.dims[0];
  int64_t *positions, count, inner, rows = mpg_shape_product(&out->desc.shape, 0, depth);
  char *memory;
  MPG_TRY(resolve_nd(call, indices, &out->desc.shape, put_bytes(rows), &positions, &count, &inner,
                     &memory));
  return put_rows(call, values->data, out->data, positions, count, rows,
                  (size_t)inner * item_of(out), memory);
}

/* --- One element per position ----------------------------------------------------------------- */

template <class T>
__global__ void pick_kernel(T *many, T *one, mpg_untyped index, int64_t count, int64_t length,
                            int64_t after, bool wrap, bool put) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t k = mpg_cuda_index_at(index, i);
  k = wrap ? mpg_index_wrap(k, length) : mpg_index_clip(k, length);
  T *element = many + (i / after * length + k) * after + i % after;
  if (put)
    *element = one[i];
  else
    one[i] = *element;
}

mpg_status picks(const mpg_kernel_call *call, const mpg_view *many, const mpg_view *one,
                 const mpg_view *index, int64_t axis_param, bool wrap, bool put) {
  const mpg_shape *shape = &many->desc.shape;
  int axis = axis_of(axis_param, shape->ndim);
  int64_t length = shape->dims[axis], after = mpg_shape_product(shape, axis + 1, shape->ndim),
          count = length > 0 ? count_of(index) : 0;
  MPG_CUDA_SIZE(item_of(many), T,
                return mpg_cuda_launch(call, pick_kernel<T>, mpg_cuda_blocks(count),
                                       MPG_CUDA_THREADS, 0, (T *)many->data, (T *)one->data,
                                       mpg_untyped_view(index), count, length, after, wrap, put));
  return MPG_OK;
}

template <class T>
__global__ void one_hot_kernel(mpg_untyped indices, T *out, int64_t count, int64_t depth, T on,
                               T off) {
  for (int64_t i = MPG_CUDA_INDEX; i < count * depth; i += MPG_CUDA_STRIDE)
    out[i] = mpg_cuda_index_at(indices, i / depth) == i % depth ? on : off;
}

/* Selects elements from x or y. Each element of `condition` applies to `items` adjacent
 * elements. */
template <class T>
__global__ void where_kernel(mpg_untyped condition, const T *x, const T *y, T *out, int64_t count,
                             int64_t items) {
  for (int64_t i = MPG_CUDA_INDEX; i < count; i += MPG_CUDA_STRIDE)
    out[i] = condition.load<double>(i / items) != 0 ? x[i] : y[i];
}

__global__ void ravel_kernel(mpg_untyped in, mpg_untyped out, int64_t count, dims shape) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  /* Unsigned, because signed overflow would be undefined for indices outside the shape. */
  uint64_t position = 0;
  for (int d = 0; d < shape.count; d++)
    position =
        position * (uint64_t)shape.values[d] + (uint64_t)mpg_cuda_index_at(in, d * count + i);
  out.store(i, (int64_t)position);
}

__global__ void unravel_kernel(mpg_untyped in, mpg_untyped out, int64_t count, dims shape) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t position = mpg_cuda_index_at(in, i);
  for (int d = shape.count - 1; d > 0; d--) {
    out.store(d * count + i, position % shape.values[d]);
    position /= shape.values[d];
  }
  out.store(i, position);
}

dims dims_of(const mpg_tuple *shape) {
  dims d = {};
  d.count = shape->count;
  for (int i = 0; i < shape->count; i++) d.values[i] = shape->values[i];
  return d;
}

/* --- Masks ------------------------------------------------------------------------------------ */

/* Computes the rows that boolean_mask moves, with a prefix sum over the mask. Runs in one block.
 * Forward: positions[k] is the index of the k-th nonzero mask element, or -1 if there are fewer.
 * Backward: positions[i] is the rank of mask element i among the nonzero elements, or -1 if the
 * element is zero or its rank is `count` or more. */
__global__ void mask_places_kernel(mpg_untyped mask, int64_t length, int64_t count, bool backward,
                                   int64_t *positions) {
  __shared__ int64_t sums[2][MPG_CUDA_THREADS];
  int64_t before = 0;
  for (int64_t begin = 0; begin < length; begin += MPG_CUDA_THREADS) {
    int64_t i = begin + threadIdx.x;
    int64_t set = i < length && mask.load<double>(i) != 0;
    int side = 0;
    sums[0][threadIdx.x] = set;
    __syncthreads();
    for (int reach = 1; reach < MPG_CUDA_THREADS; reach *= 2) {
      int64_t value = sums[side][threadIdx.x];
      sums[1 - side][threadIdx.x] =
          (int)threadIdx.x >= reach ? value + sums[side][threadIdx.x - reach] : value;
      side = 1 - side;
      __syncthreads();
    }
    int64_t rank = before + sums[side][threadIdx.x] - set;
    if (backward && i < length) positions[i] = set && rank < count ? rank : -1;
    if (!backward && set && rank < count) positions[rank] = i;
    before += sums[side][MPG_CUDA_THREADS - 1];
    __syncthreads();
  }
  if (!backward)
    for (int64_t k = before + threadIdx.x; k < count; k += blockDim.x) positions[k] = -1;
}

/* Gathers rows: row i of out is row positions[i] of in, or zeros if positions[i] is -1. */
template <class T, class I>
__global__ void gather_or_zero_kernel(const T *in, T *out, const int64_t *positions, int64_t count,
                                      int64_t items) {
  for (int64_t i = MPG_CUDA_INDEX; i < count * items; i += MPG_CUDA_STRIDE) {
    I row = (I)i / (I)items, item = (I)i - row * (I)items;
    int64_t from = positions[row];
    T nothing = {};
    out[i] = from < 0 ? nothing : in[from * items + item];
  }
}

/* Writes row i of `out`: the index of element positions[i] in an array of the given shape. */
__global__ void nonzero_kernel(const int64_t *positions, int64_t *out, int64_t count, dims shape) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t position = positions[i] < 0 ? 0 : positions[i];
  for (int d = shape.count - 1; d > 0; d--) {
    out[i * shape.count + d] = position % shape.values[d];
    position /= shape.values[d];
  }
  out[i * shape.count] = position;
}

mpg_status masked(const mpg_kernel_call *call, bool backward) {
  const mpg_view *in = &call->inputs[0], *mask = &call->inputs[1], *out = &call->outputs[0];
  int64_t length = count_of(mask),
          known = backward ? in->desc.shape.dims[0] : out->desc.shape.dims[0],
          rows = backward ? length : known;
  size_t bytes = (size_t)mpg_shape_product(&in->desc.shape, 1, in->desc.shape.ndim) * item_of(in);
  if (!rows || !bytes) return MPG_OK;
  int64_t *positions = (int64_t *)mpg_device_scratch(call->device, (size_t)rows * sizeof(int64_t));
  if (!positions) return MPG_DEVICE_OUT_OF_MEMORY;
  MPG_TRY(mpg_cuda_launch(call, mask_places_kernel, 1, MPG_CUDA_THREADS, 0, mpg_untyped_view(mask),
                          length, known, backward, positions));
  size_t width = widest(in->data, out->data, bytes);
  int64_t items = (int64_t)(bytes / width);
  bool small = rows * items <= INT32_MAX;
  BY_WIDTH(
      width, T,
      return mpg_cuda_launch(
          call, small ? gather_or_zero_kernel<T, uint32_t> : gather_or_zero_kernel<T, uint64_t>,
          mpg_cuda_blocks(rows * items), MPG_CUDA_THREADS, 0, (const T *)in->data, (T *)out->data,
          (const int64_t *)positions, rows, items));
  return MPG_OK;
}

} // namespace

mpg_status mpg_cuda_take(const mpg_kernel_call *call) {
  const mpg_take_params *params = (const mpg_take_params *)call->params;
  return gather(call, &call->inputs[0], &call->inputs[1], params->axis, params->mode);
}

mpg_status mpg_cuda_embedding(const mpg_kernel_call *call) {
  return gather(call, &call->inputs[1], &call->inputs[0], 0, MODE_CLIP);
}

mpg_status mpg_cuda_take_back(const mpg_kernel_call *call) {
  const mpg_take_back_params *params = (const mpg_take_back_params *)call->params;
  const mpg_view *grad = &call->inputs[0], *indices = &call->inputs[1], *out = &call->outputs[0];
  const mpg_shape *shape = &out->desc.shape;
  int axis = axis_of(params->axis, shape->ndim);
  int64_t *positions, count = count_of(indices);
  char *memory;
  MPG_TRY(resolve(call, indices, shape->dims[axis], params->mode, add_bytes(count), &positions,
                  &memory));
  return scatter_add(call, grad, out, positions, mpg_shape_product(shape, 0, axis), count,
                     shape->dims[axis], mpg_shape_product(shape, axis + 1, shape->ndim), memory);
}

mpg_status mpg_cuda_pick(const mpg_kernel_call *call) {
  const mpg_pick_params *params = (const mpg_pick_params *)call->params;
  return picks(call, &call->inputs[0], &call->outputs[0], &call->inputs[1], params->axis.value,
               params->mode == 1, false);
}

mpg_status mpg_cuda_pick_back(const mpg_kernel_call *call) {
  const mpg_pick_back_params *params = (const mpg_pick_back_params *)call->params;
  MPG_TRY(mpg_cuda_zero(call, &call->outputs[0]));
  return picks(call, &call->outputs[0], &call->inputs[0], &call->inputs[1], params->axis,
               params->mode == 1, true);
}

mpg_status mpg_cuda_fill_element(const mpg_kernel_call *call) {
  MPG_TRY(mpg_cuda_copy(call, &call->inputs[0], &call->outputs[0]));
  return picks(call, &call->outputs[0], &call->inputs[1], &call->inputs[2], 1, false, true);
}

mpg_status mpg_cuda_one_hot(const mpg_kernel_call *call) {
  const mpg_one_hot_params *params = (const mpg_one_hot_params *)call->params;
  const mpg_view *indices = &call->inputs[0], *out = &call->outputs[0];
  int64_t count = count_of(indices), depth = params->depth;
  uint64_t on = mpg_cuda_element(out->desc.dtype, params->on_value),
           off = mpg_cuda_element(out->desc.dtype, params->off_value);
  MPG_CUDA_SIZE(item_of(out), T,
                return mpg_cuda_launch(call, one_hot_kernel<T>, mpg_cuda_blocks(count * depth),
                                       MPG_CUDA_THREADS, 0, mpg_untyped_view(indices),
                                       (T *)out->data, count, depth, (T)on, (T)off));
  return MPG_OK;
}

mpg_status mpg_cuda_where(const mpg_kernel_call *call) {
  const mpg_view *condition = &call->inputs[0], *x = &call->inputs[1], *out = &call->outputs[0];
  int64_t total = count_of(x);
  if (!total) return MPG_OK;
  MPG_CUDA_SIZE(
      item_of(x), T,
      return mpg_cuda_launch(call, where_kernel<T>, mpg_cuda_blocks(total, 4 * MPG_CUDA_THREADS),
                             MPG_CUDA_THREADS, 0, mpg_untyped_view(condition), (const T *)x->data,
                             (const T *)call->inputs[2].data, (T *)out->data, total,
                             total / count_of(condition)));
  return MPG_OK;
}

mpg_status mpg_cuda_gather_nd(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[0], *out = &call->outputs[0];
  int64_t *positions, count, inner;
  MPG_TRY(
      resolve_nd(call, &call->inputs[1], &data->desc.shape, 0, &positions, &count, &inner, NULL));
  return count_of(out) > 0 ? gather_rows(call, data->data, out->data, positions, 1, count, 0,
                                         (size_t)inner * item_of(data))
                           : MPG_OK;
}

mpg_status mpg_cuda_scatter_nd(const mpg_kernel_call *call) {
  MPG_TRY(mpg_cuda_zero(call, &call->outputs[0]));
  return scatter_rows(call, &call->inputs[0], &call->inputs[1]);
}

mpg_status mpg_cuda_scatter_set_nd(const mpg_kernel_call *call) {
  if (call->inputs[0].data != call->outputs[0].data)
    MPG_TRY(mpg_cuda_copy(call, &call->inputs[0], &call->outputs[0]));
  return scatter_rows(call, &call->inputs[1], &call->inputs[2]);
}

mpg_status mpg_cuda_scatter_add_nd(const mpg_kernel_call *call) {
  const mpg_view *values = &call->inputs[0], *indices = &call->inputs[1], *out = &call->outputs[0];
  int64_t *positions, count, inner,
      rows = mpg_shape_product(&indices->desc.shape, 1, indices->desc.shape.ndim);
  char *memory;
  MPG_TRY(resolve_nd(call, indices, &out->desc.shape, add_bytes(rows), &positions, &count, &inner,
                     &memory));
  return scatter_add(call, values, out, positions, 1, count, inner > 0 ? count_of(out) / inner : 0,
                     inner, memory);
}

mpg_status mpg_cuda_ravel(const mpg_kernel_call *call) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  int64_t count = count_of(out);
  return mpg_cuda_launch(call, ravel_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                         mpg_untyped_view(in), mpg_untyped_view(out), count,
                         dims_of(&((const mpg_index_shape_params *)call->params)->shape));
}

mpg_status mpg_cuda_unravel(const mpg_kernel_call *call) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  int64_t count = count_of(in);
  return mpg_cuda_launch(call, unravel_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                         mpg_untyped_view(in), mpg_untyped_view(out), count,
                         dims_of(&((const mpg_index_shape_params *)call->params)->shape));
}

mpg_status mpg_cuda_boolean_mask(const mpg_kernel_call *call) { return masked(call, false); }
mpg_status mpg_cuda_nonzero(const mpg_kernel_call *call) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  mpg_tuple shape = mpg_shape_tuple(&in->desc.shape);
  int64_t count = out->desc.shape.dims[0];
  if (!count) return MPG_OK;
  if (!shape.count) shape.count = 1, shape.values[0] = 1;
  int64_t *positions = (int64_t *)mpg_device_scratch(call->device, (size_t)count * sizeof(int64_t));
  if (!positions) return MPG_DEVICE_OUT_OF_MEMORY;
  MPG_TRY(mpg_cuda_launch(call, mask_places_kernel, 1, MPG_CUDA_THREADS, 0, mpg_untyped_view(in),
                          count_of(in), count, false, positions));
  return mpg_cuda_launch(call, nonzero_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                         (const int64_t *)positions, (int64_t *)out->data, count, dims_of(&shape));
}

mpg_status mpg_cuda_boolean_mask_back(const mpg_kernel_call *call) { return masked(call, true); }

mpg_status mpg_cuda_shuffle(const mpg_kernel_call *call) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  int64_t count = in->desc.shape.ndim ? in->desc.shape.dims[0] : 1;
  mpg_cuda_rows keys;
  int32_t *order;
  void *positions;
  if (count_of(in) == 0) return MPG_OK;
  MPG_TRY(
      mpg_cuda_rows_new(call, 1, count, true, (size_t)count * sizeof(int64_t), &keys, &positions));
  MPG_TRY(mpg_cuda_launch(call, shuffle_keys_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                          mpg_cuda_key_of(call), count, keys.keys[0], keys.places[0]));
  MPG_TRY(mpg_cuda_rows_sort(call, &keys, &order));
  MPG_TRY(mpg_cuda_launch(call, order_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                          (const int32_t *)order, count, (int64_t *)positions));
  return gather_rows(call, in->data, out->data, (const int64_t *)positions, 1, count, count,
                     (size_t)(count_of(in) / count) * item_of(in));
}
