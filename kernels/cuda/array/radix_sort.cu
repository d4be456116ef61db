/* LSD radix sort with four bits per pass. A pass runs three kernels: in the first, each block
 * counts the digits of its tile; in the second, one block converts the counts to positions (prefix
 * sum); in the third, each block scatters its tile. */
#include "kernels/cuda/array/radix_sort.h"

namespace {

enum { DIGITS = 16, THREADS = 256, ITEMS = 8, TILE = THREADS * ITEMS };

int64_t tiles_of(int64_t count) { return (count + TILE - 1) / TILE; }

__global__ void count_kernel(const uint64_t *keys, int64_t count, int shift, uint32_t *counts) {
  __shared__ uint32_t total[DIGITS];
  if (threadIdx.x < DIGITS) total[threadIdx.x] = 0;
  __syncthreads();
  int64_t begin = (int64_t)blockIdx.x * TILE;
  for (int k = 0; k < ITEMS; k++) {
    int64_t i = begin + k * THREADS + threadIdx.x;
    if (i < count) atomicAdd(&total[keys[i] >> shift & (DIGITS - 1)], 1u);
  }
  __syncthreads();
  if (threadIdx.x < DIGITS)
    counts[(int64_t)threadIdx.x * gridDim.x + blockIdx.x] = total[threadIdx.x];
}

/* Computes the exclusive prefix sum in place. Runs in one block. */
__global__ void places_kernel(uint32_t *counts, int64_t count) {
  __shared__ uint32_t sums[2][THREADS];
  uint32_t before = 0;
  for (int64_t begin = 0; begin < count; begin += THREADS) {
    int64_t i = begin + threadIdx.x;
    uint32_t own = i < count ? counts[i] : 0;
    int side = 0;
    sums[0][threadIdx.x] = own;
    __syncthreads();
    for (int reach = 1; reach < THREADS; reach *= 2) {
      uint32_t value = sums[side][threadIdx.x];
      sums[1 - side][threadIdx.x] =
          (int)threadIdx.x >= reach ? value + sums[side][threadIdx.x - reach] : value;
      side = 1 - side;
      __syncthreads();
    }
    if (i < count) counts[i] = before + sums[side][threadIdx.x] - own;
    before += sums[side][THREADS - 1];
    __syncthreads();
  }
}

/* Scatters a tile. Each thread handles ITEMS adjacent keys. For each digit, a prefix sum over the
 * threads gives the number of keys with that digit that precede the thread's keys in the tile. */
__global__ void move_kernel(const uint64_t *keys, const int32_t *values, int64_t count, int shift,
                            const uint32_t *places, uint64_t *keys_out, int32_t *values_out) {
  __shared__ uint16_t before[DIGITS][THREADS];
  int64_t begin = (int64_t)blockIdx.x * TILE + (int64_t)threadIdx.x * ITEMS;
  for (int d = 0; d < DIGITS; d++) before[d][threadIdx.x] = 0;
  for (int k = 0; k < ITEMS && begin + k < count; k++)
    before[keys[begin + k] >> shift & (DIGITS - 1)][threadIdx.x]++;
  __syncthreads();
  /* Exclusive prefix sum over the threads' counts, for each digit. 16 threads share a digit, and
   * each thread sums 16 adjacent counts. */
  int digit = threadIdx.x / 16, part = threadIdx.x % 16;
  unsigned own = 0, sum = 0;
  for (int k = 0; k < 16; k++) own += before[digit][part * 16 + k];
  unsigned inclusive = own;
  for (int reach = 1; reach < 16; reach *= 2) {
    unsigned other = __shfl_up_sync(0xffffffffu, inclusive, reach, 16);
    if (part >= reach) inclusive += other;
  }
  sum = inclusive - own;
  for (int k = 0; k < 16; k++) {
    unsigned here = before[digit][part * 16 + k];
    before[digit][part * 16 + k] = (uint16_t)sum;
    sum += here;
  }
  __syncthreads();
  for (int k = 0; k < ITEMS && begin + k < count; k++) {
    uint64_t key = keys[begin + k];
    int d = (int)(key >> shift & (DIGITS - 1));
    int64_t to = (int64_t)places[(int64_t)d * gridDim.x + blockIdx.x] + before[d][threadIdx.x]++;
    keys_out[to] = key;
    values_out[to] = values[begin + k];
  }
}

__global__ void rows_kernel(const int32_t *order, int64_t n, int64_t count, uint64_t *keys) {
  int64_t at = MPG_CUDA_INDEX;
  if (at < count) keys[at] = (uint64_t)(order[at] / n);
}

} // namespace

size_t mpg_cuda_sort_bytes(int64_t count) {
  return mpg_align_up((size_t)(tiles_of(count) * DIGITS) * sizeof(uint32_t), 64);
}

mpg_status mpg_cuda_sort(const mpg_kernel_call *call, uint64_t *const keys[2],
                         int32_t *const values[2], int64_t count, int bits, void *scratch,
                         int *side) {
  int64_t tiles = tiles_of(count);
  uint32_t *counts = (uint32_t *)scratch;
  *side = 0;
  if (count < 2) return MPG_OK;
  for (int shift = 0; shift < bits; shift += 4) {
    const uint64_t *from = keys[*side];
    MPG_TRY(mpg_cuda_launch(call, count_kernel, (unsigned)tiles, THREADS, 0, from, count, shift,
                            counts));
    MPG_TRY(mpg_cuda_launch(call, places_kernel, 1, THREADS, 0, counts, tiles * DIGITS));
    MPG_TRY(mpg_cuda_launch(call, move_kernel, (unsigned)tiles, THREADS, 0, from,
                            (const int32_t *)values[*side], count, shift, (const uint32_t *)counts,
                            keys[1 - *side], values[1 - *side]));
    *side = 1 - *side;
  }
  return MPG_OK;
}

mpg_status mpg_cuda_rows_new(const mpg_kernel_call *call, int64_t rows, int64_t n, bool wide,
                             size_t more, mpg_cuda_rows *out, void **memory) {
  int64_t count = rows * n;
  if (count > INT32_MAX)
    return mpg_fail(MPG_NOT_IMPLEMENTED, "%s: a GPU supports at most 2^31 elements",
                    call->op->name);
  size_t keys = mpg_align_up((size_t)count * sizeof(uint64_t), 64),
         places = mpg_align_up((size_t)count * sizeof(int32_t), 64),
         spare = mpg_cuda_sort_bytes(count);
  char *scratch = (char *)mpg_device_scratch(call->device, 2 * keys + 2 * places + spare + more);
  if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  char *behind = scratch + 2 * keys;
  *out = {rows,
          n,
          wide,
          {(uint64_t *)scratch, (uint64_t *)(scratch + keys)},
          {(int32_t *)behind, (int32_t *)(behind + places)},
          behind + 2 * places};
  if (memory) *memory = behind + 2 * places + spare;
  return MPG_OK;
}

mpg_status mpg_cuda_rows_sort(const mpg_kernel_call *call, const mpg_cuda_rows *rows,
                              int32_t **order) {
  int64_t count = rows->rows * rows->n;
  int row_bits = 0, side, again = 0;
  while (rows->rows > (int64_t)1 << row_bits) row_bits++;
  MPG_TRY(mpg_cuda_sort(call, rows->keys, rows->places, count, rows->wide ? 64 : 32 + row_bits,
                        rows->spare, &side));
  int32_t *sorted[2] = {rows->places[side], rows->places[1 - side]};
  if (rows->wide && rows->rows > 1) {
    MPG_TRY(mpg_cuda_launch(call, rows_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                            (const int32_t *)sorted[0], rows->n, count, rows->keys[0]));
    MPG_TRY(mpg_cuda_sort(call, rows->keys, sorted, count, row_bits, rows->spare, &again));
  }
  *order = sorted[again];
  return MPG_OK;
}
