/* Strided copies (kernels/common/move.h). Each copy is one kernel launch. Threads move items of the
 * largest size that alignment allows, up to 16 bytes. Transposes use tiles in shared memory, so
 * that both reads and writes are coalesced. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/array/move.h"

#include <string.h>

namespace {

enum { TILE = 32, TILE_ROWS = 8 };

struct alignas(16) item16 {
  uint64_t words[2];
};

/* Dimensions of a move, innermost last, with strides in items. */
struct plan {
  int ndim;
  int64_t dims[MPG_MOVE_NDIM], in[MPG_MOVE_NDIM], out[MPG_MOVE_NDIM];
  int64_t count;
};

/* Computes the source and target offsets of item `index`. I is uint32_t if it can hold all indices,
 * since 64-bit divisions are slow. */
template <class I>
__device__ __forceinline__ void places(const plan &p, I index, int64_t *from, int64_t *to) {
  int64_t in = 0, out = 0;
  for (int k = p.ndim - 1; k >= 0; k--) {
    I dim = (I)p.dims[k], rest = index / dim;
    int64_t at = (int64_t)(index - rest * dim);
    in += at * p.in[k];
    out += at * p.out[k];
    index = rest;
  }
  *from = in;
  *to = out;
}

template <class T, class I>
__global__ void move_kernel(plan p, const T *in, T *out) {
  for (int64_t i = MPG_CUDA_INDEX; i < p.count; i += MPG_CUDA_STRIDE) {
    int64_t from, to;
    places<I>(p, (I)i, &from, &to);
    out[to] = in[from];
  }
}

template <class T>
__global__ void spread_kernel(plan p, T element, T *out) {
  for (int64_t i = MPG_CUDA_INDEX; i < p.count; i += MPG_CUDA_STRIDE) {
    int64_t from, to;
    places<int64_t>(p, i, &from, &to);
    out[to] = element;
  }
}

/* Transposes (rows, columns) planes. Elements of a column are contiguous in the input, elements of
 * a row in the output. A block moves one tile of a plane. `p` holds the dimensions that enumerate
 * the planes. */
template <class T, class I>
__global__ void transpose_kernel(plan p, int64_t rows, int64_t columns, int64_t in_step,
                                 int64_t out_step, const T *in, T *out) {
  __shared__ T tile[TILE][TILE + 1];
  I across = (I)((columns + TILE - 1) / TILE), down = (I)((rows + TILE - 1) / TILE);
  for (int64_t block = blockIdx.x; block < p.count * (int64_t)across * (int64_t)down;
       block += gridDim.x) {
    I line = (I)block / across, plane = line / down;
    int64_t column = (int64_t)((I)block - line * across) * TILE,
            row = (int64_t)(line - plane * down) * TILE, from, to;
    places<I>(p, plane, &from, &to);
    const T *source = in + from + (column + threadIdx.y) * in_step + row + threadIdx.x;
    T *target = out + to + (row + threadIdx.y) * out_step + column + threadIdx.x;
#pragma unroll
    for (int j = 0; j < TILE; j += TILE_ROWS, source += TILE_ROWS * in_step)
      if (row + threadIdx.x < rows && column + threadIdx.y + j < columns)
        tile[threadIdx.y + j][threadIdx.x] = *source;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < TILE; j += TILE_ROWS, target += TILE_ROWS * out_step)
      if (column + threadIdx.x < columns && row + threadIdx.y + j < rows)
        *target = tile[threadIdx.x][threadIdx.y + j];
    __syncthreads();
  }
}

template <class T>
mpg_status launch_move(const mpg_kernel_call *call, const plan &p, const void *in, void *out) {
  unsigned blocks = mpg_cuda_blocks(p.count, 4 * MPG_CUDA_THREADS);
  if (p.count <= INT32_MAX)
    return mpg_cuda_launch(call, move_kernel<T, uint32_t>, blocks, MPG_CUDA_THREADS, 0, p,
                           (const T *)in, (T *)out);
  return mpg_cuda_launch(call, move_kernel<T, int64_t>, blocks, MPG_CUDA_THREADS, 0, p,
                         (const T *)in, (T *)out);
}

/* Returns the largest power of two, at most 16, that divides all byte offsets of a move. */
int64_t widest(const mpg_move &m, int64_t run, const void *in, const void *out) {
  uint64_t bits = (uint64_t)run | (uint64_t)(uintptr_t)in | (uint64_t)(uintptr_t)out | 16;
  for (int k = 0; k < m.ndim; k++) bits |= (uint64_t)m.in[k] | (uint64_t)m.out[k];
  return (int64_t)(bits & -bits);
}

plan plan_of(const mpg_move &m, int64_t width) {
  plan p = {};
  p.ndim = m.ndim;
  p.count = 1;
  for (int k = 0; k < m.ndim; k++) {
    p.dims[k] = m.dims[k];
    p.in[k] = m.in[k] / width;
    p.out[k] = m.out[k] / width;
    p.count *= m.dims[k];
  }
  return p;
}

/* Detects a transpose: the innermost dimension is contiguous in the output but not in the input.
 * Returns the dimension that is contiguous in the input, or -1 if the move is not a transpose or
 * the dimensions are too short for tiles. */
int plane_of(const mpg_move &m, int64_t item) {
  int last = m.ndim - 1;
  if (last < 1 || m.out[last] != item || m.in[last] == 0 || m.dims[last] < 8) return -1;
  for (int k = 0; k < last; k++)
    if (m.in[k] == item && m.dims[k] >= 8) return k;
  return -1;
}

template <class T>
mpg_status launch_transpose(const mpg_kernel_call *call, mpg_move m, int plane, const void *in,
                            void *out) {
  int last = m.ndim - 1;
  int64_t item = (int64_t)sizeof(T), rows = m.dims[plane], columns = m.dims[last],
          in_step = m.in[last] / item, out_step = m.out[plane] / item;
  m.ndim--;
  for (int k = plane; k + 1 < last; k++) {
    m.dims[k] = m.dims[k + 1];
    m.in[k] = m.in[k + 1];
    m.out[k] = m.out[k + 1];
  }
  m.ndim--;
  plan p = plan_of(m, item);
  int64_t tiles = p.count * ((rows + TILE - 1) / TILE) * ((columns + TILE - 1) / TILE);
  return mpg_cuda_launch(
      call, tiles <= INT32_MAX ? transpose_kernel<T, uint32_t> : transpose_kernel<T, uint64_t>,
      mpg_cuda_blocks(tiles, 1), dim3(TILE, TILE_ROWS), 0, p, rows, columns, in_step, out_step,
      (const T *)in, (T *)out);
}

} // namespace

mpg_status mpg_cuda_move(const mpg_kernel_call *call, const mpg_move *move, const void *in,
                         void *out, size_t item) {
  mpg_move m = {};
  int64_t run = (int64_t)item;
  if (!mpg_move_merge(move, &run, &m)) return MPG_OK;
  if (m.ndim == 0) return mpg_cuda_copy(call, in, out, (size_t)run);
  int plane = run == (int64_t)item ? plane_of(m, run) : -1;
  if (plane >= 0) MPG_CUDA_SIZE(item, T, return launch_transpose<T>(call, m, plane, in, out));
  int64_t width = widest(m, run, in, out);
  if (run > width) mpg_move_add(&m, run / width, width, width);
  plan p = plan_of(m, width);
  if (width == 16) return launch_move<item16>(call, p, in, out);
  MPG_CUDA_SIZE(width, T, return launch_move<T>(call, p, in, out));
  return MPG_OK;
}

mpg_status mpg_cuda_spread(const mpg_kernel_call *call, const mpg_move *move, const void *element,
                           void *out, size_t item) {
  uint64_t bits = 0;
  memcpy(&bits, element, item);
  mpg_move all = *move;
  int64_t run = 1;
  mpg_move m = {};
  for (int k = 0; k < all.ndim; k++) all.in[k] = 0;
  if (!mpg_move_merge(&all, &run, &m)) return MPG_OK;
  plan p = plan_of(m, 1);
  MPG_CUDA_SIZE(
      item, T,
      return mpg_cuda_launch(call, spread_kernel<T>, mpg_cuda_blocks(p.count, 4 * MPG_CUDA_THREADS),
                             MPG_CUDA_THREADS, 0, p, (T)bits, (T *)out));
  return MPG_OK;
}

uint64_t mpg_cuda_element(mpg_dtype dtype, double value) {
  uint64_t element = 0;
  mpg_store_any(dtype, &element, 0, value);
  return element;
}

mpg_status mpg_cuda_fill(const mpg_kernel_call *call, void *out, int64_t count, size_t item,
                         const void *element) {
  mpg_move all = {};
  mpg_move_add(&all, count, 0, 1);
  return mpg_cuda_spread(call, &all, element, out, item);
}

namespace {
struct few {
  int64_t values[MPG_CUDA_FEW];
};
__global__ void write_kernel(few numbers, int count, int64_t *out) {
  if ((int)threadIdx.x < count) out[threadIdx.x] = numbers.values[threadIdx.x];
}
} // namespace

mpg_status mpg_cuda_write(const mpg_kernel_call *call, const int64_t *values, int count,
                          int64_t *out) {
  few numbers = {};
  memcpy(numbers.values, values, (size_t)count * sizeof *values);
  return mpg_cuda_launch(call, write_kernel, count > 0, 32, 0, numbers, count, out);
}
