/* Products of groups of rows, each with its own matrix, and the sums of their outer products.
 *
 * One launch covers all groups. Its grid is large enough for any sizes of groups, since each group
 * has at most one tile that is not full. A block finds its group by a scan of the counts, which are
 * in device memory, and computes a tile of the result in shared memory. Few rows per group, as in
 * decoding, use tiles with few rows and deep steps, so that more bytes of the weight are in flight.
 * Both kinds of tiles add products one element of k at a time, so the bits of an element depend on
 * k only. */
#include "kernels/cuda/access.h"
#include "kernels/cuda/scalar.h"

namespace {

struct grouped {
  const void *a, *b;
  void *c;
  const int32_t *counts;
  int64_t groups, rows;    /* groups, and rows of all groups together */
  int64_t first, matrices; /* the groups that have a matrix: [first, first + matrices) */
  int64_t n, k;            /* columns of the result; size of a sum (grouped_dot) */
  int64_t m;               /* rows of a matrix of the result (grouped_outer) */
};

/* The rows of a tile; group is -1 for rows after the last group. */
struct tile {
  int64_t group, row, rows;
};

__device__ __forceinline__ int64_t sum_of_lanes_before(int64_t value, int lane) {
  int64_t sum = value;
  for (int step = 1; step < 32; step *= 2) {
    /* Two halves, since shuffles of 64 bits are two instructions in any case. */
    int low = __shfl_up_sync(0xffffffffu, (int)(uint32_t)sum, step),
        high = __shfl_up_sync(0xffffffffu, (int)(sum >> 32), step);
    if (lane >= step) sum += (int64_t)high << 32 | (int64_t)(uint32_t)low;
  }
  return sum - value;
}

__device__ __forceinline__ int64_t from_lane(int64_t value, int lane) {
  int low = __shfl_sync(0xffffffffu, (int)(uint32_t)value, lane),
      high = __shfl_sync(0xffffffffu, (int)(value >> 32), lane);
  return (int64_t)high << 32 | (int64_t)(uint32_t)low;
}

/* Finds tile `index` of tiles with `height` rows. Sizes of groups are clipped to the number of
 * rows. */
__device__ tile find_tile(const grouped &g, int64_t index, int height) {
  __shared__ tile found;
  if (threadIdx.x < 32) {
    int lane = threadIdx.x;
    int64_t tiles_before = 0, rows_before = 0;
    if (lane == 0) found.rows = 0;
    for (int64_t base = 0; base < g.groups && tiles_before <= index; base += 32) {
      int64_t count = base + lane < g.groups ? g.counts[base + lane] : 0;
      if (count < 0) count = 0;
      int64_t first = rows_before + sum_of_lanes_before(count, lane), end = first + count;
      if (first > g.rows) first = g.rows;
      if (end > g.rows) end = g.rows;
      int64_t tiles = (end - first + height - 1) / height,
              mine = tiles_before + sum_of_lanes_before(tiles, lane);
      __syncwarp();
      if (index >= mine && index < mine + tiles) {
        int64_t row = first + (index - mine) * height;
        found = {base + lane, row, end - row < height ? end - row : height};
      }
      rows_before = from_lane(end, 31);
      tiles_before = from_lane(mine + tiles, 31);
    }
    if (lane == 0 && index >= tiles_before) {
      int64_t row = rows_before + (index - tiles_before) * height;
      int64_t rest = g.rows - row;
      found = {-1, row, rest < 0 ? 0 : rest < height ? rest : height};
    }
  }
  __syncthreads();
  return found;
}

/* A tile of ROWS x COLUMNS results. Each thread computes EACH_ROW x EACH_COLUMN of them. */
template <int ROWS_, int COLUMNS_, int DEPTH_, int EACH_ROW_, int EACH_COLUMN_>
struct shape_of {
  enum {
    ROWS = ROWS_,
    COLUMNS = COLUMNS_,
    DEPTH = DEPTH_,
    EACH_ROW = EACH_ROW_,
    EACH_COLUMN = EACH_COLUMN_,
    ACROSS = COLUMNS / EACH_COLUMN /* threads along a row */
  };
  static_assert(ACROSS * (ROWS / EACH_ROW) == MPG_CUDA_THREADS,
                "a block must compute a whole tile");
};
typedef shape_of<64, 64, 16, 4, 4> square;
typedef shape_of<8, 64, 64, 2, 1> flat;

/* Copies elements (i, p) of an operand, i < SIZE and p < DEPTH, to to[p][i]. `step` is the stride
 * of p, and `stride` is the stride of i. Elements outside are 0. */
template <class T, int SIZE, int DEPTH>
__device__ __forceinline__ void load_tile(const T *from, int64_t stride, int64_t step, int64_t size,
                                          int64_t depth, mpg_compute_t<T> (*to)[SIZE + 1]) {
  typedef mpg_compute_t<T> C;
  for (int t = threadIdx.x; t < SIZE * DEPTH; t += MPG_CUDA_THREADS) {
    int i = step == 1 ? t / DEPTH : t % SIZE, p = step == 1 ? t % DEPTH : t / SIZE;
    to[p][i] = i < size && p < depth ? mpg_to<C>(from[i * stride + p * step]) : (C)0;
  }
}

/* Computes a tile of c = a b, where a is (rows, depth) and b is (depth, columns). */
template <class T, class S>
__device__ void multiply_tile(const T *a, int64_t a_row, int64_t a_step, const T *b,
                              int64_t b_column, int64_t b_step, T *c, int64_t ldc, int64_t rows,
                              int64_t columns, int64_t depth) {
  typedef mpg_compute_t<T> C;
  __shared__ C left[S::DEPTH][S::ROWS + 1], right[S::DEPTH][S::COLUMNS + 1];
  int x = threadIdx.x % S::ACROSS, y = threadIdx.x / S::ACROSS;
  C sum[S::EACH_ROW][S::EACH_COLUMN] = {};
  for (int64_t p = 0; p < depth; p += S::DEPTH) {
    load_tile<T, S::ROWS, S::DEPTH>(a + p * a_step, a_row, a_step, rows, depth - p, left);
    load_tile<T, S::COLUMNS, S::DEPTH>(b + p * b_step, b_column, b_step, columns, depth - p, right);
    __syncthreads();
    int count = depth - p < S::DEPTH ? (int)(depth - p) : (int)S::DEPTH;
    for (int q = 0; q < count; q++) {
#pragma unroll
      for (int i = 0; i < S::EACH_ROW; i++)
#pragma unroll
        for (int j = 0; j < S::EACH_COLUMN; j++)
          sum[i][j] =
              mpg_fma_of(left[q][y * S::EACH_ROW + i], right[q][x + j * S::ACROSS], sum[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < S::EACH_ROW; i++)
#pragma unroll
    for (int j = 0; j < S::EACH_COLUMN; j++) {
      int row = y * S::EACH_ROW + i, column = x + j * S::ACROSS;
      if (row < rows && column < columns) c[row * ldc + column] = mpg_to<T>(sum[i][j]);
    }
}

template <class T, class S, bool TRANSPOSED>
__global__ void __launch_bounds__(MPG_CUDA_THREADS) dot_kernel(grouped g) {
  tile t = find_tile(g, blockIdx.x, S::ROWS);
  int64_t column = (int64_t)blockIdx.y * S::COLUMNS,
          columns = g.n - column < S::COLUMNS ? g.n - column : (int64_t)S::COLUMNS;
  T *c = (T *)g.c + t.row * g.n + column;
  t.group -= g.first;
  if (t.group < 0 || t.group >= g.matrices) {
    for (int64_t i = threadIdx.x; i < t.rows * columns; i += MPG_CUDA_THREADS)
      c[i / columns * g.n + i % columns] = mpg_to<T>((mpg_compute_t<T>)0);
    return;
  }
  const T *a = (const T *)g.a + t.row * g.k, *b = (const T *)g.b + t.group * g.n * g.k;
  multiply_tile<T, S>(a, g.k, 1, b + column * (TRANSPOSED ? g.k : 1), TRANSPOSED ? g.k : 1,
                      TRANSPOSED ? 1 : g.n, c, g.n, t.rows, columns, g.k);
}

template <class T>
__global__ void __launch_bounds__(MPG_CUDA_THREADS) outer_kernel(grouped g) {
  int64_t row = (int64_t)blockIdx.x * square::ROWS, column = (int64_t)blockIdx.y * square::COLUMNS,
          rows = g.m - row < square::ROWS ? g.m - row : (int64_t)square::ROWS,
          columns = g.n - column < square::COLUMNS ? g.n - column : (int64_t)square::COLUMNS;
  for (int64_t matrix = blockIdx.z; matrix < g.matrices; matrix += gridDim.z) {
    int64_t before = 0, group = g.first + matrix;
    for (int64_t e = threadIdx.x; e < group; e += MPG_CUDA_THREADS)
      before += g.counts[e] > 0 ? g.counts[e] : 0;
    before = mpg_block_reduce(before, (int64_t)0, mpg_plus());
    int64_t count = g.counts[group] > 0 ? g.counts[group] : 0,
            first = before < g.rows ? before : g.rows;
    if (count > g.rows - first) count = g.rows - first;
    multiply_tile<T, square>(
        (const T *)g.a + first * g.m + row, 1, g.m, (const T *)g.b + first * g.n + column, 1, g.n,
        (T *)g.c + (matrix * g.m + row) * g.n + column, g.n, rows, columns, count);
  }
}

template <class T, class S>
mpg_status launch_dot(const mpg_kernel_call *call, const grouped &g, bool transposed) {
  int64_t tiles = g.rows / S::ROWS + g.groups + 1;
  dim3 grid((unsigned)tiles, (unsigned)((g.n + S::COLUMNS - 1) / S::COLUMNS));
  return mpg_cuda_launch(call, transposed ? dot_kernel<T, S, true> : dot_kernel<T, S, false>, grid,
                         MPG_CUDA_THREADS, 0, g);
}

/* Checks that tiles of 64 columns fit the grid. */
mpg_status check_columns(const mpg_kernel_call *call, int64_t columns) {
  return columns <= 65535 * 64
             ? MPG_OK
             : mpg_fail(MPG_NOT_IMPLEMENTED, "%s: at most 4194240 columns are supported on GPUs",
                        call->op->name);
}

} // namespace

mpg_status mpg_cuda_grouped_dot(const mpg_kernel_call *call) {
  const mpg_grouped_dot_params *p = (const mpg_grouped_dot_params *)call->params;
  const mpg_shape *data = &call->inputs[0].desc.shape;
  grouped g = {};
  g.a = call->inputs[0].data, g.b = call->inputs[1].data, g.c = call->outputs[0].data;
  g.counts = (const int32_t *)call->inputs[2].data;
  g.groups = call->inputs[2].desc.shape.dims[0];
  g.first = p->first, g.matrices = call->inputs[1].desc.shape.dims[0];
  g.rows = data->dims[0], g.k = data->dims[1], g.n = call->outputs[0].desc.shape.dims[1];
  if (!g.rows || !g.n) return MPG_OK;
  MPG_TRY(check_columns(call, g.n));
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T,
                       return g.rows <= flat::ROWS * g.groups
                                  ? launch_dot<T, flat>(call, g, p->transpose_b)
                                  : launch_dot<T, square>(call, g, p->transpose_b))
  return MPG_OK;
}

mpg_status mpg_cuda_grouped_outer(const mpg_kernel_call *call) {
  const mpg_grouped_outer_params *p = (const mpg_grouped_outer_params *)call->params;
  grouped g = {};
  g.a = call->inputs[0].data, g.b = call->inputs[1].data, g.c = call->outputs[0].data;
  g.counts = (const int32_t *)call->inputs[2].data;
  g.groups = call->inputs[2].desc.shape.dims[0];
  g.first = p->first, g.matrices = call->outputs[0].desc.shape.dims[0];
  g.rows = call->inputs[0].desc.shape.dims[0];
  g.m = call->inputs[0].desc.shape.dims[1], g.n = call->inputs[1].desc.shape.dims[1];
  if (!g.m || !g.n) return MPG_OK;
  MPG_TRY(check_columns(call, g.n));
  dim3 grid((unsigned)((g.m + square::ROWS - 1) / square::ROWS),
            (unsigned)((g.n + square::COLUMNS - 1) / square::COLUMNS),
            (unsigned)(g.matrices < 65535 ? g.matrices : 65535));
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T,
                       return mpg_cuda_launch(call, outer_kernel<T>, grid, MPG_CUDA_THREADS, 0, g))
  return MPG_OK;
}
