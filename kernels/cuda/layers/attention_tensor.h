/* Functions shared by the forward and backward attention kernels with tensor cores: tiles in shared
 * memory, products of tiles, and dropout. A warp processes 16 rows of a tile (or 16 keys, for
 * gradients of keys). tensor_core.h documents which elements a lane holds. Include in .cu files
 * only. */
#ifndef KERNELS_CUDA_LAYERS_ATTENTION_TENSOR_H
#define KERNELS_CUDA_LAYERS_ATTENTION_TENSOR_H

#include "kernels/common/vector_math.h"
#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/layers/attention.h"
#include "kernels/cuda/tensor_core.h"

/* Variant of a kernel, chosen at compile time to avoid tests in inner loops. */
enum mpg_attention_mode {
  MPG_PLAIN,
  MPG_DROPPED,
  MPG_MASKED /* with a mask, segments or a soft cap, and dropout if p.drops */
};

/* Passes a compile-time constant as a function argument. */
template <bool VALUE>
struct mpg_constant {
  static const bool value = VALUE;
};

/* For each array, true if all rows are aligned multiples of 16 bytes (outputs: 4 bytes), so that
 * they can be accessed in units of that size. This affects only speed, not results. */
struct mpg_alignments {
  bool query, key, value, grad, result, query_grad, key_grad, value_grad;
};

/* Returns an approximation of 2^x, computed by the GPU's special function unit. */
__device__ __forceinline__ float mpg_exp2(float x) {
#ifdef __CUDA_ARCH__
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return exp2f(x);
#endif
}

/* Starts loading rows [first, first + ROWS) of D features to shared memory, padded with zeros.
 * Before reading the tile, call mpg_copies_wait and __syncthreads. */
template <int ROWS, int D, int THREADS, class T>
__device__ __forceinline__ void mpg_load_tile(const T *rows, int64_t by_row, int first, int count,
                                              int width, bool aligned, T *to) {
  const int PITCH = D + 8, PARTS = D / 8, AT_ONCE = THREADS / PARTS;
  static_assert(ROWS % AT_ONCE == 0, "every thread has as many parts");
  int row = threadIdx.x / PARTS, e = threadIdx.x % PARTS * 8, live = count - first;
  const T *from = rows + (int64_t)(first + row) * by_row + e;
  to += row * PITCH + e;
#pragma unroll
  for (int i = 0; i < ROWS; i += AT_ONCE, from += AT_ONCE * by_row) {
    T *target = to + i * PITCH;
    if (aligned) {
      mpg_copy_async(target, from, row + i < live && e < width);
    } else {
      mpg_pack<T> pack;
      for (int k = 0; k < 8; k++) {
        pack.values[k].bits = 0;
        if (row + i < live && e + k < width) pack.values[k] = from[k];
      }
      *(mpg_pack<T> *)target = pack;
    }
  }
}

/* Loads 16 rows of D features as operands a. Each operand has 16 features. */
template <int D, class T>
__device__ __forceinline__ void mpg_load_rows(const T *rows, uint32_t (*left)[4]) {
#pragma unroll
  for (int e = 0; e < D / 16; e++) mpg_load_a(left[e], rows + e * 16, D + 8);
}

/* Computes s (16, 8 N) = a b^T. The 16 rows of a are in registers (`left`), and the 8 N rows of b
 * are in shared memory. Rows have D features. */
template <int N, int D, class T>
__device__ __forceinline__ void mpg_multiply_rows(const uint32_t (*left)[4], const T *b,
                                                  float (*s)[4]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) s[n][i] = 0;
#pragma unroll
  for (int e = 0; e < D; e += 16) {
    uint32_t right[4];
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      mpg_load_b_transposed(right, b + n * 8 * (D + 8) + e, D + 8);
      mpg_multiply_add<T>(s[n], left[e / 16], right);
      mpg_multiply_add<T>(s[n + 1], left[e / 16], right + 2);
    }
  }
}
/* Computes the same product with both operands in shared memory. */
template <int N, int D, class T>
__device__ __forceinline__ void mpg_multiply_rows(const T *a, const T *b, float (*s)[4]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) s[n][i] = 0;
#pragma unroll
  for (int e = 0; e < D; e += 16) {
    uint32_t left[4], right[4];
    mpg_load_a(left, a + e, D + 8);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      mpg_load_b_transposed(right, b + n * 8 * (D + 8) + e, D + 8);
      mpg_multiply_add<T>(s[n], left, right);
      mpg_multiply_add<T>(s[n + 1], left, right + 2);
    }
  }
}

/* Computes sums (16, D) += s (16, 8 N) b (8 N, D). s is rounded to T; b is in shared memory. */
template <int N, int D, class T>
__device__ __forceinline__ void mpg_add_products(const float (*s)[4], const T *b,
                                                 float (*sums)[4]) {
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    uint32_t left[4], right[4];
    left[0] = mpg_pair_of((const T *)NULL, s[n][0], s[n][1]);
    left[1] = mpg_pair_of((const T *)NULL, s[n][2], s[n][3]);
    left[2] = mpg_pair_of((const T *)NULL, s[n + 1][0], s[n + 1][1]);
    left[3] = mpg_pair_of((const T *)NULL, s[n + 1][2], s[n + 1][3]);
#pragma unroll
    for (int c = 0; c < D / 8; c += 2) {
      mpg_load_b(right, b + n * 8 * (D + 8) + c * 8, D + 8);
      mpg_multiply_add<T>(sums[c], left, right);
      mpg_multiply_add<T>(sums[c + 1], left, right + 2);
    }
  }
}

template <int D>
__device__ __forceinline__ void mpg_clear(float (*sums)[4]) {
#pragma unroll
  for (int c = 0; c < D / 8; c++)
#pragma unroll
    for (int i = 0; i < 4; i++) sums[c][i] = 0;
}

/* Stores a lane's elements of `sums` in the lane's row h (0 or 1), times a factor. */
template <int D, class T>
__device__ __forceinline__ void mpg_store_row(const float (*sums)[4], int h, float factor,
                                              int width, bool aligned, T *row) {
  int pair = threadIdx.x & 3;
#pragma unroll
  for (int c = 0; c < D / 8; c++) {
    int column = c * 8 + 2 * pair;
    float low = sums[c][2 * h] * factor, high = sums[c][2 * h + 1] * factor;
    if (aligned) {
      if (column < width) *(uint32_t *)(row + column) = mpg_pair_of((const T *)NULL, low, high);
    } else {
      if (column < width) row[column] = mpg_to<T>(low);
      if (column + 1 < width) row[column + 1] = mpg_to<T>(high);
    }
  }
}

/* Work of a warp: batch element, heads, first row (or key) of the block (`first`), and first row
 * (or key) of the warp (`own`). */
struct mpg_unit {
  int warp, group, pair, index, batch, head, key_head, first, own;
};
template <int TILE>
__device__ __forceinline__ mpg_unit mpg_unit_at(int extent, bool last_first) {
  int tiles = (extent + TILE - 1) / TILE, tile = blockIdx.x % tiles;
  mpg_unit u;
  u.warp = threadIdx.x / 32, u.group = (threadIdx.x & 31) / 4, u.pair = threadIdx.x & 3;
  u.index = blockIdx.x / tiles;
  u.first = (last_first ? tiles - 1 - tile : tile) * TILE;
  u.own = u.first + u.warp * 16;
  return u;
}
/* Returns the unit of a block that has a tile of query rows. */
template <int TILE, class T>
__device__ __forceinline__ mpg_unit mpg_unit_of_rows(const mpg_attention<T> &p) {
  mpg_unit u = mpg_unit_at<TILE>((int)p.rows, p.causal);
  u.batch = u.index / (int)p.heads, u.head = u.index % (int)p.heads;
  u.key_head = u.head / (int)p.group;
  return u;
}
/* Returns the unit of a block that has a tile of keys. The caller sets `head` and `index` to those
 * of each query head. */
template <int TILE, class T>
__device__ __forceinline__ mpg_unit mpg_unit_of_keys(const mpg_attention<T> &p) {
  mpg_unit u = mpg_unit_at<TILE>((int)p.keys, false);
  int key_heads = (int)(p.heads / p.group);
  u.batch = u.index / key_heads, u.key_head = u.index % key_heads;
  u.head = u.key_head * (int)p.group;
  return u;
}

/* Offset in the mask of a row of a head. */
template <class T>
__device__ __forceinline__ int64_t mpg_mask_at(const mpg_attention<T> &p, const mpg_unit &u,
                                               int row) {
  return u.batch * p.mask_batch + u.head * p.mask_head + row * p.mask_row;
}
/* Returns the score in base 2 of a product, whose factor includes log2(e): applies the soft cap and
 * adds `more`. */
template <class T>
__device__ __forceinline__ float mpg_score(const mpg_attention<T> &p, float product, float factor,
                                           float more) {
  if (p.softcap > 0) {
    float cap = p.softcap * MPG_LOG2_E;
    return fmaf(cap, mpg_tanhf(product * factor / cap), more * MPG_LOG2_E);
  }
  return fmaf(product, factor, more * MPG_LOG2_E);
}
template <class T>
static inline bool mpg_attention_is_masked(const mpg_attention<T> &p) {
  return p.mask || p.segments || p.softcap > 0;
}

/* --- Dropout ---------------------------------------------------------------------------------- */
/* Dropout of weights. Four adjacent weights of a row share a Philox block. `quads` is true if every
 * row begins with a new block. In this case, each block is drawn only once, and the lanes that hold
 * its weights exchange the bits. */
struct mpg_drawing {
  mpg_random_key key;
  bool quads;
};
template <class T>
__device__ __forceinline__ mpg_drawing mpg_drawing_of(const mpg_attention<T> &p) {
  mpg_drawing d;
  d.key = mpg_key_of(p);
  d.quads = (((uint64_t)p.all_keys | (uint64_t)p.before | d.key.position | d.key.first | d.key.run |
              d.key.stride) &
             3) == 0;
  return d;
}
/* Returns the random position of a row's first weight. */
template <class T>
__device__ __forceinline__ uint64_t mpg_row_position(const mpg_attention<T> &p, const mpg_unit &u,
                                                     const mpg_drawing &d, int row) {
  return mpg_random_position(
      &d.key, (uint64_t)(u.index * p.rows + row) * (uint64_t)p.all_keys + (uint64_t)p.before);
}
/* Draws the four weights of the Philox block at `position`. Bit k is set if weight k is kept. */
__device__ __forceinline__ uint32_t mpg_four_stay(const mpg_drawing &d, uint64_t position,
                                                  uint32_t threshold) {
  mpg_philox_block words = mpg_philox(d.key.seed, d.key.call, position >> 2);
  uint32_t kept = 0;
#pragma unroll
  for (int k = 0; k < 4; k++) kept |= (uint32_t)((words.value[k] >> 8) < threshold) << k;
  return kept;
}
__device__ __forceinline__ uint32_t mpg_one_stays(const mpg_drawing &d, uint64_t position,
                                                  uint32_t threshold) {
  return mpg_four_stay(d, position, threshold) >> (position & 3) & 1;
}

/* Draws the dropout mask for a tile of (16 rows, 8 N keys). starts[h] is the random position of the
 * tile's first weight in the lane's row h. Weight s[n][2 h + i] is kept if bit
 * 4 (h N / 2 + n / 2) + i of kept[n % 2] is set. */
template <int N>
__device__ __forceinline__ void mpg_kept_along(const mpg_drawing &d, const uint64_t *starts,
                                               uint32_t threshold, uint32_t *kept) {
  int pair = threadIdx.x & 3, odd = pair & 1;
  if (d.quads) {
    uint32_t own = 0;
#pragma unroll 1
    for (int j = 0; j < N; j++) {
      int h = j >= N / 2, m = j - h * (N / 2);
      own |= mpg_four_stay(d, (h ? starts[1] : starts[0]) + (2 * m + odd) * 8 + (pair >> 1) * 4,
                           threshold)
             << 4 * j;
    }
    uint32_t other = __shfl_xor_sync(0xffffffffu, own, 1);
    kept[0] = (odd ? other : own) >> 2 * odd;
    kept[1] = (odd ? own : other) >> 2 * odd;
    return;
  }
  kept[0] = kept[1] = 0;
#pragma unroll 1
  for (int j = 0; j < 4 * N; j++) {
    int h = j >= 2 * N, n = j / 2 % N, i = j % 2;
    uint32_t stays = mpg_one_stays(d, (h ? starts[1] : starts[0]) + n * 8 + 2 * pair + i, threshold)
                     << (4 * (h * (N / 2) + n / 2) + i);
    kept[0] |= n & 1 ? 0 : stays;
    kept[1] |= n & 1 ? stays : 0;
  }
}

/* Draws the dropout mask for a transposed tile of (16 keys from u.own on, 8 N rows from `first`
 * on). Weight s[n][2 h + i] is kept if bit 4 (h N / 2 + n / 2) of kept[2 (n % 2) + i] is set. */
template <int N, class T>
__device__ __forceinline__ void mpg_kept_across(const mpg_attention<T> &p, const mpg_unit &u,
                                                const mpg_drawing &d, int first, uint32_t *kept) {
  if (d.quads) {
    int c = u.group & 3;
    uint32_t own = 0;
#pragma unroll 2
    for (int m = 0; m < N / 2; m++) {
      uint64_t start =
          mpg_row_position(p, u, d, first + (2 * m + (c >> 1)) * 8 + 2 * u.pair + (c & 1)) +
          (uint64_t)(u.own + (u.group & 4));
      own |= mpg_four_stay(d, start, p.threshold) << 4 * m;
      own |= mpg_four_stay(d, start + 8, p.threshold) << 4 * (N / 2 + m);
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
      kept[k] = __shfl_sync(0xffffffffu, own, (int)((threadIdx.x & 31 & ~12) | k << 2)) >> c;
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; k++) kept[k] = 0;
#pragma unroll 1
  for (int n = 0; n < N; n++)
#pragma unroll 1
    for (int j = 0; j < 4; j++) {
      int h = j / 2, i = j % 2, to = 2 * (n & 1) + i;
      uint32_t stays = mpg_one_stays(d,
                                     mpg_row_position(p, u, d, first + n * 8 + 2 * u.pair + i) +
                                         (uint64_t)(u.own + u.group + 8 * h),
                                     p.threshold)
                       << 4 * (h * (N / 2) + n / 2);
#pragma unroll
      for (int k = 0; k < 4; k++) kept[k] |= k == to ? stays : 0;
    }
}

/* --- Host ------------------------------------------------------------------------------------- */
template <class T>
static inline bool mpg_place_divides(const mpg_place<T> &p, int64_t width, int bytes) {
  int64_t each = bytes / (int64_t)sizeof(T);
  return (uintptr_t)p.data % bytes == 0 && p.by_batch % each == 0 && p.by_head % each == 0 &&
         p.by_row % each == 0 && width % each == 0;
}
template <class T>
static inline mpg_alignments mpg_alignments_of(const mpg_attention<T> &p) {
  return mpg_alignments{mpg_place_divides(p.query, p.width, 16),
                        mpg_place_divides(p.key, p.width, 16),
                        mpg_place_divides(p.value, p.value_width, 16),
                        mpg_place_divides(p.grad, p.value_width, 16),
                        mpg_place_divides(p.result, p.value_width, 4),
                        mpg_place_divides(p.query_grad, p.width, 4),
                        mpg_place_divides(p.key_grad, p.width, 4),
                        mpg_place_divides(p.value_grad, p.value_width, 4)};
}
static inline unsigned mpg_attention_blocks(int64_t heads, int64_t extent, int tile) {
  return (unsigned)(heads * ((extent + tile - 1) / tile));
}
template <class T>
static inline bool mpg_attention_is_narrow(const mpg_attention<T> &p) {
  return p.width <= 64 && p.value_width <= 64;
}

#endif
