/* Rows of contiguous elements in registers. A row is shared by some lanes of a warp or by a whole
 * block, whose threads load and store 16 bytes at a time. Which thread holds an element depends
 * only on the row's length and dtype, so results do not depend on alignment. Include in .cu files
 * only. */
#ifndef KERNELS_CUDA_ROWS_H
#define KERNELS_CUDA_ROWS_H

#include "kernels/cuda/neighbours.h"

/* Distribution of a chunk (CHUNK elements of a row) over LANES threads. If LANES is
 * MPG_CUDA_THREADS, a whole block shares the row. Each thread has PACKS packs of 16 bytes. FULL
 * means that rows are aligned multiples of 16 bytes. HELD means that a row fits in one chunk, which
 * stays in registers; otherwise a block iterates over the row's chunks. Elements in memory are
 * float or 16-bit floats; registers hold float. */
template <class T, int LANES, int PACKS, bool FULL, bool HELD>
struct mpg_row : mpg_lanes<LANES, PACKS, mpg_pack<T>::COUNT> {
  typedef mpg_lanes<LANES, PACKS, mpg_pack<T>::COUNT> lanes;
  typedef T element;
  typedef mpg_row<T, LANES, PACKS / 2, FULL, HELD> half; /* half the elements per thread */
  enum { EACH = lanes::EACH, SIZE = lanes::SIZE, CHUNK = lanes::CHUNK };
  using lanes::at;
  static const bool held = HELD, full = FULL;

  /* True if element k of the thread's pack p is among the first n of the chunk. If FULL, n is a
   * multiple of the pack size, so the result is the same for all k. */
  static __device__ __forceinline__ bool there(int p, int k, int n) {
    return at(p) + (FULL ? 0 : k) < n;
  }

  /* Loads the first n elements of a chunk, padded with `fill`. */
  static __device__ __forceinline__ void load(const T *from, int n, float fill,
                                              float (&values)[SIZE]) {
    mpg_neighbours<T, EACH, FULL> packs[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; p++)
      if (at(p) < n) packs[p].load(from + at(p), n - at(p));
#pragma unroll
    for (int p = 0; p < PACKS; p++)
#pragma unroll
      for (int k = 0; k < EACH; k++)
        values[p * EACH + k] = there(p, k, n) ? packs[p].template get<float>(k) : fill;
  }
  static __device__ __forceinline__ void store(T *to, int n, const float (&values)[SIZE]) {
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
      float part[EACH];
#pragma unroll
      for (int k = 0; k < EACH; k++) part[k] = values[p * EACH + k];
      if (at(p) < n) mpg_store<FULL>(to + at(p), n - at(p), part);
    }
  }

  /* Returns the number of elements in the chunk that starts at `begin`, for a row of n elements. */
  static __device__ __forceinline__ int left(int64_t n, int64_t begin) {
    return n - begin < CHUNK ? (int)(n - begin) : (int)CHUNK;
  }
  static unsigned blocks(int64_t rows) { return mpg_cuda_blocks(rows, lanes::ROWS); }
};

enum {
  MPG_ROW_FEW = 8,      /* lanes that share a short row */
  MPG_ROW_WARP = 1024,  /* maximum row length for a warp */
  MPG_ROW_BLOCK = 8192, /* maximum row length for a block's registers */
};

/* Calls f with an object of the mpg_row type that is chosen for rows of n elements. `full` selects
 * the type's FULL. */
template <class T, class F>
mpg_status mpg_with_row(int64_t n, bool full, F f) {
  enum { EACH = mpg_pack<T>::COUNT, MOST = 32 / EACH, BLOCK = MPG_CUDA_THREADS };
  if (n <= MPG_ROW_FEW * EACH)
    return full ? f(mpg_row<T, MPG_ROW_FEW, 1, true, true>())
                : f(mpg_row<T, MPG_ROW_FEW, 1, false, true>());
  if (n > MPG_ROW_BLOCK)
    return full ? f(mpg_row<T, BLOCK, MOST, true, false>())
                : f(mpg_row<T, BLOCK, MOST, false, false>());
  if (n <= MPG_ROW_WARP) {
    if (!full) return f(mpg_row<T, 32, MOST, false, true>());
    if (n <= MPG_ROW_WARP / 4) return f(mpg_row<T, 32, MOST / 4, true, true>());
    if (n <= MPG_ROW_WARP / 2) return f(mpg_row<T, 32, MOST / 2, true, true>());
    if (n <= MPG_ROW_WARP / 4 * 3) return f(mpg_row<T, 32, MOST / 4 * 3, true, true>());
    return f(mpg_row<T, 32, MOST, true, true>());
  }
  if (!full) return f(mpg_row<T, BLOCK, MOST, false, true>());
  if (n <= MPG_ROW_BLOCK / 4) return f(mpg_row<T, BLOCK, MOST / 4, true, true>());
  if (n <= MPG_ROW_BLOCK / 2) return f(mpg_row<T, BLOCK, MOST / 2, true, true>());
  return f(mpg_row<T, BLOCK, MOST, true, true>());
}

#endif
