/* Attention that does not store the matrix of scores (FlashAttention). Tiles of query rows iterate
 * over tiles of keys with an online softmax. Backward recomputes tiles of weights from the saved
 * softmax statistics. cuDNN's attention is not used, because it lacks float32 and its dropout masks
 * differ from the CPU's.
 *
 * Every result is summed over keys (or rows) in ascending order by one block, without atomics, so
 * results are deterministic. A block has 16 x 16 threads, each with EACH x EACH adjacent elements
 * of a tile. If a head is wider than a tile, several blocks divide the result's columns. */
#include "kernels/common/vector_math.h"
#include "kernels/cuda/layers/attention.h"
#include "kernels/cuda/scalar.h"

namespace {

enum { SIDE = 16, THREADS = SIDE * SIDE, CHUNK = 32 /* features per step of a product */ };

/* Tile sizes, limited by shared memory. A thread computes EACH x EACH adjacent elements of a tile.
 * LINE is the row stride in shared memory. */
template <class C>
struct tiling {
  enum { EACH = 4, TILE = EACH * SIDE, LINE = TILE + 4 };
};
template <>
struct tiling<double> {
  enum { EACH = 2, TILE = EACH * SIDE, LINE = TILE + 2 };
};

MPG_HOST_DEVICE float exponential(float x) { return mpg_expf(x); }
MPG_HOST_DEVICE double exponential(double x) { return exp(x); }

/* A thread's position in tiles (tx, ty), its block's batch element and heads, and shared memory. */
template <class C>
struct unit {
  int tx, ty;
  int64_t index, batch, head, key_head, first; /* first: first row or key of the block's tile */
  C *tile_a, *tile_b;                          /* shared: TILE lines each */
  C *chunk_a, *chunk_b;                        /* shared: CHUNK lines each */
};
template <class C>
__device__ __forceinline__ unit<C> unit_at(int64_t extent, bool last_first) {
  typedef tiling<C> t;
  unit<C> u;
  int64_t tiles = (extent + t::TILE - 1) / t::TILE, tile = blockIdx.x % tiles;
  u.tx = threadIdx.x % SIDE, u.ty = threadIdx.x / SIDE;
  u.index = blockIdx.x / tiles;
  /* With a causal mask, later rows see more keys. Their blocks start first to balance the load. */
  u.first = (last_first ? tiles - 1 - tile : tile) * t::TILE;
  u.tile_a = mpg_cuda_shared<C>();
  u.tile_b = u.tile_a + t::TILE * t::LINE;
  u.chunk_a = u.tile_b + t::TILE * t::LINE;
  u.chunk_b = u.chunk_a + CHUNK * t::LINE;
  return u;
}
/* Returns the unit of a block that has a tile of query rows. */
template <class T>
__device__ __forceinline__ unit<mpg_compute_t<T>> unit_of_rows(const mpg_attention<T> &p) {
  unit<mpg_compute_t<T>> u = unit_at<mpg_compute_t<T>>(p.rows, p.causal);
  u.batch = u.index / p.heads, u.head = u.index % p.heads, u.key_head = u.head / p.group;
  return u;
}
/* Returns the unit of a block that has a tile of keys. The caller sets `head` and `index` to those
 * of each query head. */
template <class T>
__device__ __forceinline__ unit<mpg_compute_t<T>> unit_of_keys(const mpg_attention<T> &p) {
  unit<mpg_compute_t<T>> u = unit_at<mpg_compute_t<T>>(p.keys, false);
  int64_t key_heads = p.heads / p.group;
  u.batch = u.index / key_heads, u.key_head = u.index % key_heads;
  return u;
}
template <class C>
size_t shared_bytes() {
  typedef tiling<C> t;
  return (size_t)(2 * t::TILE + 2 * CHUNK) * t::LINE * sizeof(C);
}

/* Loads features [from, from + CHUNK) of rows [first, first + TILE), multiplies them by a factor,
 * and stores them transposed. Pads with zeros. */
template <class T, class C>
__device__ __forceinline__ void load_transposed(const T *rows, int64_t by_row, int64_t first,
                                                int64_t count, int64_t from, int64_t width,
                                                C factor, C *to) {
  typedef tiling<C> t;
  for (int i = threadIdx.x; i < t::TILE * CHUNK; i += THREADS) {
    int e = i % CHUNK, r = i / CHUNK;
    bool there = first + r < count && from + e < width;
    to[e * t::LINE + r] = there ? mpg_to<C>(rows[(first + r) * by_row + from + e]) * factor : (C)0;
  }
}
/* Loads features [from, from + TILE) of rows [first, first + TILE), times a factor. Pads with
 * zeros. */
template <class T, class C>
__device__ __forceinline__ void load_rows(const T *rows, int64_t by_row, int64_t first,
                                          int64_t count, int64_t from, int64_t width, C factor,
                                          C *to) {
  typedef tiling<C> t;
  for (int i = threadIdx.x; i < t::TILE * t::TILE; i += THREADS) {
    int e = i % t::TILE, r = i / t::TILE;
    bool there = first + r < count && from + e < width;
    to[r * t::LINE + e] = there ? mpg_to<C>(rows[(first + r) * by_row + from + e]) * factor : (C)0;
  }
}

/* Computes a tile of inner products between rows of a and b. s[r][k] is `factor` times the product
 * of row a_first + ty * EACH + r of a and row b_first + tx * EACH + k of b. */
template <class T, class C>
__device__ __forceinline__ void multiply_rows(const unit<C> &u, const T *a, int64_t a_by,
                                              int64_t a_first, int64_t a_count, C factor,
                                              const T *b, int64_t b_by, int64_t b_first,
                                              int64_t b_count, int64_t width,
                                              C (*s)[tiling<C>::EACH]) {
  typedef tiling<C> t;
  for (int r = 0; r < t::EACH; r++)
    for (int k = 0; k < t::EACH; k++) s[r][k] = 0;
  for (int64_t from = 0; from < width; from += CHUNK) {
    __syncthreads(); /* other threads may still be reading the previous chunks */
    load_transposed(a, a_by, a_first, a_count, from, width, factor, u.chunk_a);
    load_transposed(b, b_by, b_first, b_count, from, width, (C)1, u.chunk_b);
    __syncthreads();
    int n = width - from < CHUNK ? (int)(width - from) : CHUNK;
    for (int e = 0; e < n; e++) {
      const C *x = u.chunk_a + e * t::LINE + u.ty * t::EACH,
              *y = u.chunk_b + e * t::LINE + u.tx * t::EACH;
#pragma unroll
      for (int r = 0; r < t::EACH; r++)
#pragma unroll
        for (int k = 0; k < t::EACH; k++) s[r][k] = mpg_fma_of(x[r], y[k], s[r][k]);
    }
  }
}

/* Adds a^T b for matrices of n lines in shared memory: sums[r][k] += sum over l < n of
 * a[l][ty * EACH + r] * b[l][tx * EACH + k]. */
template <class C>
__device__ __forceinline__ void add_products(const unit<C> &u, const C *a, const C *b, int n,
                                             C (*sums)[tiling<C>::EACH]) {
  typedef tiling<C> t;
  for (int l = 0; l < n; l++) {
    const C *x = a + l * t::LINE + u.ty * t::EACH, *y = b + l * t::LINE + u.tx * t::EACH;
#pragma unroll
    for (int r = 0; r < t::EACH; r++)
#pragma unroll
      for (int k = 0; k < t::EACH; k++) sums[r][k] = mpg_fma_of(x[r], y[k], sums[r][k]);
  }
}

MPG_HOST_DEVICE float hyperbolic_tangent(float x) { return mpg_tanhf(x); }
MPG_HOST_DEVICE double hyperbolic_tangent(double x) { return tanh(x); }

/* Applies the soft cap and the mask to scores. Scores of hidden or missing keys become -infinity.
 * If `slopes`, stores the derivative of the soft cap. */
template <class T, class C>
__device__ __forceinline__ void hide(const mpg_attention<T> &p, const unit<C> &u, int64_t row,
                                     int64_t key, C (*s)[tiling<C>::EACH],
                                     C (*slopes)[tiling<C>::EACH]) {
  typedef tiling<C> t;
  const int32_t *segments = mpg_segments_of(p, u.batch);
  const bool adds = p.mask_kind || segments;
  const mpg_sight<int64_t> sight(p, u.batch);
  for (int r = 0; r < t::EACH; r++) {
    mpg_range<int64_t> seen = sight.keys(row + r);
    int32_t own = mpg_own_segment(p, segments, row + r);
    int64_t at = u.batch * p.mask_batch + u.head * p.mask_head + (row + r) * p.mask_row;
    for (int k = 0; k < t::EACH; k++) {
      if (slopes) slopes[r][k] = 1;
      if (p.softcap > 0) {
        C bent = hyperbolic_tangent(s[r][k] / p.softcap);
        if (slopes) slopes[r][k] = 1 - bent * bent;
        s[r][k] = p.softcap * bent;
      }
      if (!seen.has(key + k))
        s[r][k] = -(C)INFINITY;
      else if (adds)
        s[r][k] += mpg_added(p, at + (key + k) * p.mask_key, segments, own, key + k);
    }
  }
}

/* Draws the dropout mask for a thread's weights. Bit r * EACH + k is set if weight [r][k] is
 * kept. */
template <class T, class C>
__device__ __forceinline__ uint32_t kept_of(const mpg_attention<T> &p, const unit<C> &u,
                                            int64_t row, int64_t key) {
  typedef tiling<C> t;
  uint32_t kept = 0;
  mpg_random_key drawn = mpg_key_of(p);
  for (int r = 0; r < t::EACH; r++) {
    uint64_t first = mpg_random_position(
                 &drawn, (uint64_t)((u.index * p.rows + row + r) * p.all_keys + p.before + key)),
             block = ~(uint64_t)0;
    mpg_philox_block words = {{0, 0, 0, 0}};
    for (int k = 0; k < t::EACH; k++) {
      if ((first + (uint64_t)k) >> 2 != block) {
        block = (first + (uint64_t)k) >> 2;
        words = mpg_philox(drawn.seed, drawn.call, block);
      }
      if ((words.value[(first + (uint64_t)k) & 3] >> 8) < p.threshold)
        kept |= 1u << (r * t::EACH + k);
    }
  }
  return kept;
}

/* Reduces over the 16 threads that share a tile's row. */
template <class C, class F>
__device__ __forceinline__ C across_row(C value, F combine) {
  for (int lanes = SIDE / 2; lanes; lanes >>= 1)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  return value;
}
/* Maximum that ignores NaN. */
struct more {
  template <class C>
  MPG_MEMBER C operator()(C a, C b) const {
    return b > a ? b : a;
  }
};

template <class T>
__global__ void __launch_bounds__(THREADS) forward_kernel(mpg_attention<T> p) {
  typedef mpg_compute_t<T> C;
  typedef tiling<C> t;
  unit<C> u = unit_of_rows(p);
  int64_t row = u.first + u.ty * t::EACH, column = (int64_t)blockIdx.y * t::TILE;
  mpg_range<int64_t> seen = mpg_sight<int64_t>(p, u.batch).keys_of_some(u.first, u.first + t::TILE);
  const T *query = mpg_at(p.query, u.batch, u.head), *keys = mpg_at(p.key, u.batch, u.key_head),
          *values = mpg_at(p.value, u.batch, u.key_head);
  C max[t::EACH], total[t::EACH], out[t::EACH][t::EACH], s[t::EACH][t::EACH];
  for (int r = 0; r < t::EACH; r++) {
    max[r] = -(C)INFINITY, total[r] = 0;
    for (int k = 0; k < t::EACH; k++) out[r][k] = 0;
  }
  for (int64_t first = seen.low / t::TILE * t::TILE; first < seen.high; first += t::TILE) {
    int64_t key = first + u.tx * t::EACH;
    multiply_rows(u, query, p.query.by_row, u.first, p.rows, p.scale, keys, p.key.by_row, first,
                  p.keys, p.width, s);
    hide(p, u, row, key, s, (C(*)[t::EACH])NULL);
    /* The barriers in multiply_rows ensure that tile_b is no longer being read. */
    load_rows(values, p.value.by_row, first, p.keys, column, p.value_width, (C)1, u.tile_b);
    uint32_t kept = p.drops ? kept_of(p, u, row, key) : 0;
    for (int r = 0; r < t::EACH; r++) {
      C most = s[r][0], sum = 0;
      for (int k = 1; k < t::EACH; k++) most = more()(most, s[r][k]);
      most = more()(max[r], across_row(most, more()));
      C shift = most == -(C)INFINITY ? (C)0 : most, shrink = exponential(max[r] - shift);
      for (int k = 0; k < t::EACH; k++) {
        s[r][k] = exponential(s[r][k] - shift);
        sum += s[r][k];
      }
      total[r] = total[r] * shrink + across_row(sum, mpg_plus());
      max[r] = most;
      for (int k = 0; k < t::EACH; k++) {
        out[r][k] *= shrink;
        if (p.drops) s[r][k] = kept >> (r * t::EACH + k) & 1 ? s[r][k] * p.kept_scale : (C)0;
        u.tile_a[(u.tx * t::EACH + k) * t::LINE + u.ty * t::EACH + r] = s[r][k];
      }
    }
    __syncthreads();
    add_products(u, u.tile_a, u.tile_b,
                 seen.high - first < t::TILE ? (int)(seen.high - first) : (int)t::TILE, out);
  }
  T *result = mpg_at(p.result, u.batch, u.head);
  C *sums = p.sums ? p.sums + 2 * u.index * p.rows : NULL;
  for (int r = 0; r < t::EACH && row + r < p.rows; r++) {
    C factor = total[r] == 0 && p.empty_is_zero ? (C)0 : 1 / total[r];
    for (int k = 0; k < t::EACH; k++) {
      int64_t c = column + u.tx * t::EACH + k;
      if (c < p.value_width)
        result[(row + r) * p.result.by_row + c] = mpg_to<T>(out[r][k] * factor);
    }
    if (sums && u.tx == 0 && blockIdx.y == 0)
      sums[row + r] = max[r], sums[p.rows + row + r] = total[r];
  }
}

/* Computes p.inner, each row's inner product of the output and the output's gradient. One warp per
 * row. */
template <class T>
__global__ void inner_kernel(mpg_attention<T> p, int64_t count) {
  typedef mpg_compute_t<T> C;
  int64_t i = MPG_CUDA_INDEX / 32, index = i / p.rows, row = i % p.rows;
  if (i >= count) return;
  if (p.merged) {
    if ((threadIdx.x & 31) == 0) p.inner[i] = p.sums[(2 * index + 1) * p.rows + row];
    return;
  }
  const T *grad = mpg_at(p.grad, index / p.heads, index % p.heads) + row * p.grad.by_row,
          *output = mpg_at(p.output, index / p.heads, index % p.heads) + row * p.output.by_row;
  C sum = 0;
  for (int64_t e = threadIdx.x & 31; e < p.value_width; e += 32)
    sum = mpg_fma_of(mpg_to<C>(grad[e]), mpg_to<C>(output[e]), sum);
  sum = mpg_warp_reduce(sum, mpg_plus());
  if ((threadIdx.x & 31) == 0) p.inner[i] = sum;
}

/* Recomputes a tile's weights with dropout applied (s), and computes the gradients of its scores
 * (d). */
template <class T, class C>
__device__ __forceinline__ void weights_again(const mpg_attention<T> &p, const unit<C> &u,
                                              int64_t rows, int64_t keys, C (*s)[tiling<C>::EACH],
                                              C (*d)[tiling<C>::EACH]) {
  typedef tiling<C> t;
  int64_t row = rows + u.ty * t::EACH, key = keys + u.tx * t::EACH;
  multiply_rows(u, (const T *)mpg_at(p.query, u.batch, u.head), p.query.by_row, rows, p.rows,
                p.scale, (const T *)mpg_at(p.key, u.batch, u.key_head), p.key.by_row, keys, p.keys,
                p.width, s);
  C slopes[t::EACH][t::EACH];
  const mpg_sight<int64_t> sight(p, u.batch);
  hide(p, u, row, key, s, slopes);
  multiply_rows(u, (const T *)mpg_at(p.grad, u.batch, u.head), p.grad.by_row, rows, p.rows, (C)1,
                (const T *)mpg_at(p.value, u.batch, u.key_head), p.value.by_row, keys, p.keys,
                p.value_width, d);
  uint32_t kept = p.drops ? kept_of(p, u, row, key) : 0;
  const C *sums = p.sums + 2 * u.index * p.rows, *inner = p.inner + u.index * p.rows;
  for (int r = 0; r < t::EACH; r++) {
    bool there = row + r < p.rows;
    C shift = there ? sums[row + r] : (C)0,
      total = there && !p.merged ? sums[p.rows + row + r] : (C)1, factor = 1 / total,
      less = there ? inner[row + r] : (C)0;
    if (total == 0 && p.empty_is_zero) shift = factor = 0;
    mpg_range<int64_t> visible = sight.keys(row + r);
    for (int k = 0; k < t::EACH; k++) {
      bool seen = visible.has(key + k), stays = !p.drops || (kept >> (r * t::EACH + k) & 1);
      C weight = seen ? exponential(s[r][k] - shift) * factor : (C)0;
      s[r][k] = !p.drops ? weight : stays ? weight * p.kept_scale : (C)0;
      if (p.drops) d[r][k] = stays ? d[r][k] * p.kept_scale : (C)0;
      d[r][k] = seen ? weight * (d[r][k] - less) * slopes[r][k] : (C)0;
    }
  }
}

/* Stores a thread's part of a tile in tile_a, one line per row (not transposed). */
template <class C>
__device__ __forceinline__ void store_tile(const unit<C> &u, const C (*s)[tiling<C>::EACH]) {
  typedef tiling<C> t;
  for (int r = 0; r < t::EACH; r++)
    for (int k = 0; k < t::EACH; k++)
      u.tile_a[(u.ty * t::EACH + r) * t::LINE + u.tx * t::EACH + k] = s[r][k];
}

/* Computes the gradients of a tile of keys and values, summed over rows in ascending order. */
template <class T>
__global__ void __launch_bounds__(THREADS) keys_kernel(mpg_attention<T> p) {
  typedef mpg_compute_t<T> C;
  typedef tiling<C> t;
  unit<C> u = unit_of_keys(p);
  int64_t column = (int64_t)blockIdx.y * t::TILE;
  mpg_range<int64_t> seen = mpg_sight<int64_t>(p, u.batch).rows_of_some(u.first, u.first + t::TILE);
  C key_grads[t::EACH][t::EACH], value_grads[t::EACH][t::EACH], s[t::EACH][t::EACH],
      d[t::EACH][t::EACH];
  for (int r = 0; r < t::EACH; r++)
    for (int k = 0; k < t::EACH; k++) key_grads[r][k] = value_grads[r][k] = 0;
  for (int64_t h = 0; h < p.group; h++) {
    u.head = u.key_head * p.group + h, u.index = u.batch * p.heads + u.head;
    const T *query = mpg_at(p.query, u.batch, u.head), *grad = mpg_at(p.grad, u.batch, u.head);
    for (int64_t first = seen.low / t::TILE * t::TILE; first < seen.high; first += t::TILE) {
      int n = p.rows - first < t::TILE ? (int)(p.rows - first) : (int)t::TILE;
      weights_again(p, u, first, u.first, s, d);
      store_tile(u, s);
      load_rows(grad, p.grad.by_row, first, p.rows, column, p.value_width, (C)1, u.tile_b);
      __syncthreads();
      add_products(u, u.tile_a, u.tile_b, n, value_grads);
      __syncthreads();
      store_tile(u, d);
      load_rows(query, p.query.by_row, first, p.rows, column, p.width, p.scale, u.tile_b);
      __syncthreads();
      add_products(u, u.tile_a, u.tile_b, n, key_grads);
    }
  }
  T *key_grad = mpg_at(p.key_grad, u.batch, u.key_head),
    *value_grad = mpg_at(p.value_grad, u.batch, u.key_head);
  for (int r = 0; r < t::EACH; r++)
    for (int k = 0; k < t::EACH; k++) {
      int64_t key = u.first + u.ty * t::EACH + r, c = column + u.tx * t::EACH + k;
      if (key < p.keys && c < p.width)
        key_grad[key * p.key_grad.by_row + c] = mpg_to<T>(key_grads[r][k]);
      if (key < p.keys && c < p.value_width)
        value_grad[key * p.value_grad.by_row + c] = mpg_to<T>(value_grads[r][k]);
    }
}

/* Computes the gradients of a tile of queries, summed over keys in ascending order. */
template <class T>
__global__ void __launch_bounds__(THREADS) rows_kernel(mpg_attention<T> p) {
  typedef mpg_compute_t<T> C;
  typedef tiling<C> t;
  unit<C> u = unit_of_rows(p);
  int64_t column = (int64_t)blockIdx.y * t::TILE;
  mpg_range<int64_t> seen = mpg_sight<int64_t>(p, u.batch).keys_of_some(u.first, u.first + t::TILE);
  const T *keys = mpg_at(p.key, u.batch, u.key_head);
  C grads[t::EACH][t::EACH], s[t::EACH][t::EACH], d[t::EACH][t::EACH];
  for (int r = 0; r < t::EACH; r++)
    for (int k = 0; k < t::EACH; k++) grads[r][k] = 0;
  for (int64_t first = seen.low / t::TILE * t::TILE; first < seen.high; first += t::TILE) {
    weights_again(p, u, u.first, first, s, d);
    __syncthreads();
    for (int r = 0; r < t::EACH; r++)
      for (int k = 0; k < t::EACH; k++)
        u.tile_a[(u.tx * t::EACH + k) * t::LINE + u.ty * t::EACH + r] = d[r][k];
    load_rows(keys, p.key.by_row, first, p.keys, column, p.width, (C)1, u.tile_b);
    __syncthreads();
    add_products(u, u.tile_a, u.tile_b,
                 seen.high - first < t::TILE ? (int)(seen.high - first) : (int)t::TILE, grads);
  }
  T *query_grad = mpg_at(p.query_grad, u.batch, u.head);
  for (int r = 0; r < t::EACH; r++)
    for (int k = 0; k < t::EACH; k++) {
      int64_t row = u.first + u.ty * t::EACH + r, c = column + u.tx * t::EACH + k;
      if (row < p.rows && c < p.width)
        query_grad[row * p.query_grad.by_row + c] = mpg_to<T>(grads[r][k] * p.scale);
    }
}

/* --- Arguments -------------------------------------------------------------------------------- */
template <class T>
mpg_place<T> place_of(const mpg_view *view, const mpg_attention_place &at) {
  return mpg_place<T>{(T *)view->data + at.offset, at.by_batch, at.by_head, at.by_row};
}

/* `key` and `value` are indices of inputs. */
template <class T>
mpg_attention<T> attention_of(const mpg_kernel_call *call, const mpg_attention_call &c, int key,
                              int value) {
  typedef mpg_compute_t<T> C;
  const mpg_view *in = call->inputs;
  mpg_attention<T> p = {};
  p.heads = c.heads, p.group = c.group, p.rows = c.rows, p.keys = c.keys;
  p.width = c.width, p.value_width = c.value_width;
  p.query = place_of<T>(&in[c.query_input], c.query);
  p.key = place_of<T>(&in[key], c.key);
  p.value = place_of<T>(&in[value], c.value);
  if (c.mask_input >= 0) {
    mpg_dtype dtype = in[c.mask_input].desc.dtype;
    p.mask = in[c.mask_input].data;
    p.mask_kind = dtype == MPG_BOOL                       ? MPG_MASK_BOOL
                  : dtype == in[c.query_input].desc.dtype ? MPG_MASK_SAME
                                                          : MPG_MASK_FLOAT;
  }
  p.mask_batch = c.mask_batch, p.mask_head = c.mask_head;
  p.mask_row = c.mask_row, p.mask_key = c.mask_key;
  if (c.lengths_input >= 0) p.lengths = (const int32_t *)in[c.lengths_input].data;
  if (c.segments_input >= 0) p.segments = (const int32_t *)in[c.segments_input].data;
  double keep = 1 - c.p;
  p.scale = (C)c.scale, p.softcap = (C)c.softcap;
  p.first = c.keys - c.later - c.rows;
  p.before = c.before, p.all_keys = c.all_keys, p.merged = c.merged;
  p.window = c.window;
  p.kept_scale = (C)(keep > 0 ? 1 / keep : 0);
  p.threshold = (uint32_t)(keep * 0x1p24 + 0.5);
  p.causal = c.causal, p.drops = c.p > 0;
  p.empty_is_zero = c.empty_is_zero, p.cached = c.cached;
  return p;
}

template <class T>
dim3 grid_of(const mpg_attention_call &c, int64_t heads, int64_t extent, int64_t columns) {
  typedef tiling<mpg_compute_t<T>> t;
  return dim3((unsigned)(c.batch * heads * ((extent + t::TILE - 1) / t::TILE)),
              (unsigned)((columns + t::TILE - 1) / t::TILE));
}

/* Runs the tensor core kernels if they support the dtype and the call (attention_tensor.h). Sets
 * *done to true if the kernels ran. */
template <class T>
mpg_status forward_by_tensor(const mpg_kernel_call *call, const mpg_attention<T> &p, int64_t batch,
                             bool *done) {
  *done = mpg_attention_has_tensor(p, batch);
  return *done ? mpg_attention_tensor_forward(call, p, batch) : MPG_OK;
}
template <class T>
mpg_status backward_by_tensor(const mpg_kernel_call *call, const mpg_attention<T> &p, int64_t batch,
                              bool *done) {
  *done = mpg_attention_has_tensor(p, batch) && p.softcap == 0;
  return *done ? mpg_attention_tensor_backward(call, p, batch) : MPG_OK;
}
#define NOT_BY_TENSOR(T)                                                                       \
  template <>                                                                                  \
  mpg_status forward_by_tensor<T>(const mpg_kernel_call *, const mpg_attention<T> &, int64_t,  \
                                  bool *done) {                                                \
    return *done = false, MPG_OK;                                                              \
  }                                                                                            \
  template <>                                                                                  \
  mpg_status backward_by_tensor<T>(const mpg_kernel_call *, const mpg_attention<T> &, int64_t, \
                                   bool *done) {                                               \
    return *done = false, MPG_OK;                                                              \
  }
NOT_BY_TENSOR(float)
NOT_BY_TENSOR(double)

template <class T>
mpg_status forward(const mpg_kernel_call *call, const mpg_attention_call &c) {
  typedef mpg_compute_t<T> C;
  int key = c.cached ? 3 : 1;
  mpg_attention<T> p = attention_of<T>(call, c, key, key + 1);
  p.result = place_of<T>(&call->outputs[0], c.result);
  if (call->num_outputs > 1) p.sums = (C *)call->outputs[1].data;
  p.draw = mpg_cuda_key_of(call);
  if (call->num_outputs > 2) MPG_TRY(mpg_cuda_write_key(call, (uint64_t *)call->outputs[2].data));
  if (c.batch * c.heads * c.rows == 0) return MPG_OK;
  bool done;
  MPG_TRY(forward_by_tensor(call, p, c.batch, &done));
  if (done) return MPG_OK;
  return mpg_cuda_launch(call, forward_kernel<T>,
                         grid_of<T>(c, c.heads, c.rows, c.value_width ? c.value_width : 1), THREADS,
                         shared_bytes<C>(), p);
}

template <class T>
mpg_status backward(const mpg_kernel_call *call, const mpg_attention_call &c) {
  typedef mpg_compute_t<T> C;
  mpg_attention<T> p = attention_of<T>(call, c, 2, 3);
  int64_t count = c.batch * c.heads * c.rows;
  p.grad = place_of<T>(&call->inputs[0], c.result);
  p.output = place_of<T>(&call->inputs[4], c.result);
  p.sums = (C *)call->inputs[5].data;
  if (c.draw_input >= 0) p.drawn = (const uint64_t *)call->inputs[c.draw_input].data;
  p.query_grad = place_of<T>(&call->outputs[0], c.query);
  p.key_grad = place_of<T>(&call->outputs[c.packed ? 0 : 1], c.key);
  p.value_grad = place_of<T>(&call->outputs[c.packed ? 0 : 2], c.value);
  int64_t widest = p.width > p.value_width ? p.width : p.value_width;
  if (c.batch * c.heads == 0 || widest == 0) return MPG_OK;
  if (!(p.inner = (C *)mpg_device_scratch(call->device, (size_t)(count ? count : 1) * sizeof(C))))
    return MPG_DEVICE_OUT_OF_MEMORY;
  bool done = false;
  if (c.rows && c.keys) MPG_TRY(backward_by_tensor(call, p, c.batch, &done));
  if (done) return MPG_OK;
  if (c.rows)
    MPG_TRY(mpg_cuda_launch(call, inner_kernel<T>, mpg_cuda_blocks(count, MPG_CUDA_THREADS / 32),
                            MPG_CUDA_THREADS, 0, p, count));
  if (c.keys)
    MPG_TRY(mpg_cuda_launch(call, keys_kernel<T>, grid_of<T>(c, c.heads / c.group, c.keys, widest),
                            THREADS, shared_bytes<C>(), p));
  if (!c.rows || !c.width) return MPG_OK;
  return mpg_cuda_launch(call, rows_kernel<T>, grid_of<T>(c, c.heads, c.rows, c.width), THREADS,
                         shared_bytes<C>(), p);
}

/* Copies new rows of keys or values to a cache. Rows past the end of the cache are dropped. */
template <class T>
__global__ void append_kernel(mpg_place<T> from, mpg_place<T> to, const int32_t *lengths,
                              int64_t heads, int64_t rows, int64_t width, int64_t keys,
                              int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t e = i % width, row = i / width % rows, head = i / width / rows % heads,
          batch = i / width / rows / heads, at = lengths[batch] + row;
  if (at >= 0 && at < keys)
    mpg_at(to, batch, head)[at * to.by_row + e] = mpg_at(from, batch, head)[row * from.by_row + e];
}

template <class T>
mpg_status cached(const mpg_kernel_call *call, const mpg_attention_call &c) {
  const int32_t layout = ((const mpg_cached_attention_params *)call->params)->layout;
  const mpg_view *in = call->inputs;
  for (int which = 0; which < 2; which++) {
    const mpg_shape *shape = &in[1 + which].desc.shape;
    int64_t count = mpg_shape_size(shape);
    if (count == 0) continue;
    MPG_TRY(mpg_cuda_launch(
        call, append_kernel<T>, mpg_cuda_blocks(count, MPG_CUDA_THREADS), MPG_CUDA_THREADS, 0,
        place_of<T>(&in[1 + which], mpg_attention_place_in(shape, layout)),
        place_of<T>(&in[3 + which], which ? c.value : c.key), (const int32_t *)in[5].data,
        c.heads / c.group, c.rows, shape->dims[3], c.keys, count));
  }
  return forward<T>(call, c);
}

} // namespace

mpg_status mpg_cuda_attention(const mpg_kernel_call *call) {
  mpg_attention_call c = mpg_attention_read_strided(call, false);
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T, return forward<T>(call, c));
  return MPG_OK;
}
mpg_status mpg_cuda_attention_backward(const mpg_kernel_call *call) {
  mpg_attention_call c = mpg_attention_read_strided(call, true);
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T, return backward<T>(call, c));
  return MPG_OK;
}
mpg_status mpg_cuda_head_attention(const mpg_kernel_call *call) {
  mpg_attention_call c = mpg_attention_read_heads(call, false);
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T, return forward<T>(call, c));
  return MPG_OK;
}
mpg_status mpg_cuda_head_attention_backward(const mpg_kernel_call *call) {
  mpg_attention_call c = mpg_attention_read_heads(call, true);
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T, return backward<T>(call, c));
  return MPG_OK;
}
mpg_status mpg_cuda_cached_attention(const mpg_kernel_call *call) {
  mpg_attention_call c = mpg_attention_read_cached(call);
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T, return cached<T>(call, c));
  return MPG_OK;
}
