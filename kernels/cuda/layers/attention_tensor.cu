/* Attention of halves on tensor cores: the tiles and sums of attention.cu, with weights rounded to
 * halves for the products with values, queries and keys. A block has four warps with 16 rows each
 * (keys where their gradients are made); what one product leaves in a warp's lanes is the next
 * one's operand. Widths up to 128, padded to 64 or 128. */
#include "kernels/cuda/layers/attention.h"
#include "kernels/cuda/tensor_core.h"

namespace {

enum {
  WARPS = 4,
  THREADS = 32 * WARPS,
  TILE = 16 * WARPS,
  STEP = 32 /* of the other side at a time, backward */
};
const float LOG2_E = 0x1.715476p+0f;

struct alignments { /* whether rows can be loaded 16 bytes at a time: the same elements either way
                     */
  bool query, key, value, grad;
};

/* Rows [first, first + ROWS) as they lie; zeros beyond. */
template <int ROWS, int D, class T>
__device__ __forceinline__ void load_rows(const T *rows, int64_t by_row, int64_t first,
                                          int64_t count, int64_t width, bool aligned, T *to) {
  const int PITCH = D + 8, PARTS = D / 8;
  for (int i = threadIdx.x; i < ROWS * PARTS; i += THREADS) {
    int r = i / PARTS, e = i % PARTS * 8;
    const T *from = rows + (first + r) * by_row + e;
    mpg_pack<T> pack;
    if (aligned && first + r < count && e + 8 <= width) {
      pack = *(const mpg_pack<T> *)from;
    } else {
      for (int k = 0; k < 8; k++) {
        pack.values[k].bits = 0;
        if (first + r < count && e + k < width) pack.values[k] = from[k];
      }
    }
    *(mpg_pack<T> *)(to + r * PITCH + e) = pack;
  }
}

/* s (16, 8 N) = 16 rows of a times N * 8 rows of b, both of D features in shared memory. */
template <int N, int D, class T>
__device__ __forceinline__ void multiply_rows(const T *a, const T *b, float (*s)[4]) {
  const int PITCH = D + 8;
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) s[n][i] = 0;
#pragma unroll
  for (int e = 0; e < D; e += 16) {
    uint32_t left[4], right[4];
    mpg_load_a(left, a + e, PITCH);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      mpg_load_b_transposed(right, b + n * 8 * PITCH + e, PITCH);
      mpg_multiply_add<T>(s[n], left, right);
      mpg_multiply_add<T>(s[n + 1], left, right + 2);
    }
  }
}

/* sums (16, D) += s (16, 8 N), rounded, times 8 N rows in shared memory. */
template <int N, int D, class T>
__device__ __forceinline__ void add_products(const float (*s)[4], const T *b, float (*sums)[4]) {
  const int PITCH = D + 8;
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    uint32_t left[4], right[4];
    left[0] = mpg_pair_of((const T *)NULL, s[n][0], s[n][1]);
    left[1] = mpg_pair_of((const T *)NULL, s[n][2], s[n][3]);
    left[2] = mpg_pair_of((const T *)NULL, s[n + 1][0], s[n + 1][1]);
    left[3] = mpg_pair_of((const T *)NULL, s[n + 1][2], s[n + 1][3]);
#pragma unroll
    for (int c = 0; c < D / 8; c += 2) {
      mpg_load_b(right, b + n * 8 * PITCH + c * 8, PITCH);
      mpg_multiply_add<T>(sums[c], left, right);
      mpg_multiply_add<T>(sums[c + 1], left, right + 2);
    }
  }
}

struct unit {
  int warp, group, pair;
  int64_t index, batch, head, first;
};
template <class T>
__device__ __forceinline__ unit unit_of(const mpg_attention<T> &p, int64_t extent,
                                        bool last_first) {
  int64_t tiles = (extent + TILE - 1) / TILE, tile = blockIdx.x % tiles;
  unit u;
  u.warp = threadIdx.x / 32, u.group = (threadIdx.x & 31) / 4, u.pair = threadIdx.x & 3;
  u.index = blockIdx.x / tiles;
  u.batch = u.index / p.heads, u.head = u.index % p.heads;
  u.first = (last_first ? tiles - 1 - tile : tile) * TILE;
  return u;
}

/* One of the weights' words (kept where it is below the threshold), with the last block of four at
 * hand. */
struct drawing {
  mpg_random_key key;
  uint64_t block;
  mpg_philox_block words;
};
template <class T>
__device__ __forceinline__ drawing drawing_of(const mpg_attention<T> &p) {
  drawing d;
  d.key = mpg_key_of(p);
  d.block = ~(uint64_t)0;
  return d;
}
template <class T>
__device__ __forceinline__ bool stays(const mpg_attention<T> &p, const unit &u, drawing &d,
                                      int64_t row, int64_t key) {
  uint64_t position =
      mpg_random_position(&d.key, (uint64_t)((u.index * p.rows + row) * p.keys + key));
  if (position >> 2 != d.block) {
    d.block = position >> 2;
    d.words = mpg_philox(d.key.seed, d.key.call, d.block);
  }
  return (d.words.value[position & 3] >> 8) < p.threshold;
}

/* A score as it counts: scaled and masked, -inf where it is not seen. */
template <class T>
__device__ __forceinline__ float score_of(const mpg_attention<T> &p, const T *mask, float product,
                                          int64_t row, int64_t key) {
  if (!mpg_sees(p, row, key)) return -INFINITY;
  return mask ? product * p.scale + mpg_to<float>(mask[row * p.mask_row + key * p.mask_key])
              : product * p.scale;
}
template <class T>
__device__ __forceinline__ const T *mask_of(const mpg_attention<T> &p, const unit &u) {
  return p.mask ? p.mask + u.batch * p.mask_batch + u.head * p.mask_head : NULL;
}

template <class T, int D>
__global__ void __launch_bounds__(THREADS) forward_kernel(mpg_attention<T> p, alignments aligned) {
  const int PITCH = D + 8, N = TILE / 8;
  T *query = mpg_cuda_shared<T>(), *key = query + TILE * PITCH, *value = key + TILE * PITCH;
  unit u = unit_of(p, p.rows, p.causal);
  const T *keys = mpg_at(p.key, u.batch, u.head), *values = mpg_at(p.value, u.batch, u.head),
          *mask = mask_of(p, u);
  int64_t end = p.causal && u.first + TILE < p.keys ? u.first + TILE : p.keys,
          rows[2] = {u.first + u.warp * 16 + u.group, u.first + u.warp * 16 + u.group + 8};
  float out[D / 8][4], s[N][4], max[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  drawing d = drawing_of(p);
#pragma unroll
  for (int c = 0; c < D / 8; c++)
#pragma unroll
    for (int i = 0; i < 4; i++) out[c][i] = 0;
  load_rows<TILE, D>(mpg_at(p.query, u.batch, u.head), p.query.by_row, u.first, p.rows, p.width,
                     aligned.query, query);
  for (int64_t first = 0; first < end; first += TILE) {
    __syncthreads(); /* what was there has been read */
    load_rows<TILE, D>(keys, p.key.by_row, first, p.keys, p.width, aligned.key, key);
    load_rows<TILE, D>(values, p.value.by_row, first, p.keys, p.value_width, aligned.value, value);
    __syncthreads();
    multiply_rows<N, D>(query + u.warp * 16 * PITCH, key, s);
    float most[2] = {max[0], max[1]}, sum[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        s[n][i] = score_of(p, mask, s[n][i], rows[i / 2], first + n * 8 + 2 * u.pair + i % 2);
        most[i / 2] = s[n][i] > most[i / 2] ? s[n][i] : most[i / 2]; /* NaN is left out */
      }
    float shift[2], shrink[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      for (int lanes = 2; lanes; lanes >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, most[h], lanes);
        most[h] = other > most[h] ? other : most[h];
      }
      shift[h] = most[h] == -INFINITY ? 0 : most[h] * LOG2_E;
      shrink[h] = exp2f(max[h] * LOG2_E - shift[h]);
      max[h] = most[h];
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float weight = exp2f(s[n][i] * LOG2_E - shift[i / 2]);
        sum[i / 2] += weight;
        if (p.drops)
          weight = stays(p, u, d, rows[i / 2], first + n * 8 + 2 * u.pair + i % 2)
                       ? weight * p.kept_scale
                       : 0;
        s[n][i] = weight;
      }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      for (int lanes = 2; lanes; lanes >>= 1) sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], lanes);
      total[h] = total[h] * shrink[h] + sum[h];
    }
#pragma unroll
    for (int c = 0; c < D / 8; c++)
#pragma unroll
      for (int i = 0; i < 4; i++) out[c][i] *= shrink[i / 2];
    add_products<N, D>(s, value, out);
  }
  T *result = mpg_at(p.result, u.batch, u.head);
  float *sums = p.sums + 2 * u.index * p.rows;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (rows[h] >= p.rows) continue;
    float factor = 1 / total[h];
    if (u.pair == 0) sums[rows[h]] = max[h], sums[p.rows + rows[h]] = total[h];
#pragma unroll
    for (int c = 0; c < D / 8; c++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int column = c * 8 + 2 * u.pair + i;
        if (column < p.value_width)
          result[rows[h] * p.result.by_row + column] = mpg_to<T>(out[c][2 * h + i] * factor);
      }
  }
}

/* A weight once more, and the gradient of its score; in *weight as it was dropped. `least`: the
 * logarithm (of base 2) of the row's sum. */
template <class T>
__device__ __forceinline__ void weight_again(const mpg_attention<T> &p, const unit &u,
                                             const T *mask, drawing &d, int64_t row, int64_t key,
                                             float least, float inner, float *weight,
                                             float *gradient) {
  bool seen = mpg_sees(p, row, key);
  float w = seen ? exp2f(score_of(p, mask, *weight, row, key) * LOG2_E - least) : 0, g = *gradient;
  *weight = w;
  if (p.drops) {
    bool kept = seen && stays(p, u, d, row, key);
    g = kept ? g * p.kept_scale : 0;
    *weight = kept ? w * p.kept_scale : 0;
  }
  *gradient = seen ? w * (g - inner) : 0;
}
template <class T>
__device__ __forceinline__ float least_of(const mpg_attention<T> &p, const unit &u, int64_t row) {
  const float *sums = p.sums + 2 * u.index * p.rows;
  return row < p.rows ? sums[row] * LOG2_E + log2f(sums[p.rows + row]) : 0;
}

/* The gradients of a tile of keys and values, a warp for 16 of them; weights are (keys, rows) here.
 */
template <class T, int D>
__global__ void __launch_bounds__(THREADS) keys_kernel(mpg_attention<T> p, alignments aligned) {
  const int PITCH = D + 8, N = STEP / 8;
  T *key = mpg_cuda_shared<T>(), *value = key + TILE * PITCH, *query = value + TILE * PITCH,
    *grad = query + STEP * PITCH;
  __shared__ float least[STEP], inner[STEP];
  unit u = unit_of(p, p.keys, false);
  const T *queries = mpg_at(p.query, u.batch, u.head), *grads = mpg_at(p.grad, u.batch, u.head),
          *mask = mask_of(p, u);
  int64_t keys[2] = {u.first + u.warp * 16 + u.group, u.first + u.warp * 16 + u.group + 8};
  float key_grads[D / 8][4], value_grads[D / 8][4], s[N][4], g[N][4];
  drawing d = drawing_of(p);
#pragma unroll
  for (int c = 0; c < D / 8; c++)
#pragma unroll
    for (int i = 0; i < 4; i++) key_grads[c][i] = value_grads[c][i] = 0;
  load_rows<TILE, D>(mpg_at(p.key, u.batch, u.head), p.key.by_row, u.first, p.keys, p.width,
                     aligned.key, key);
  load_rows<TILE, D>(mpg_at(p.value, u.batch, u.head), p.value.by_row, u.first, p.keys,
                     p.value_width, aligned.value, value);
  for (int64_t first = p.causal ? u.first : 0; first < p.rows; first += STEP) {
    __syncthreads();
    load_rows<STEP, D>(queries, p.query.by_row, first, p.rows, p.width, aligned.query, query);
    load_rows<STEP, D>(grads, p.grad.by_row, first, p.rows, p.value_width, aligned.grad, grad);
    if (threadIdx.x < STEP) {
      int64_t row = first + threadIdx.x;
      least[threadIdx.x] = least_of(p, u, row);
      inner[threadIdx.x] = row < p.rows ? p.inner[u.index * p.rows + row] : 0;
    }
    __syncthreads();
    multiply_rows<N, D>(key + u.warp * 16 * PITCH, query, s);
    multiply_rows<N, D>(value + u.warp * 16 * PITCH, grad, g);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int at = n * 8 + 2 * u.pair + i % 2;
        weight_again(p, u, mask, d, first + at, keys[i / 2], least[at], inner[at], &s[n][i],
                     &g[n][i]);
      }
    add_products<N, D>(s, grad, value_grads);
    add_products<N, D>(g, query, key_grads);
  }
  T *key_grad = mpg_at(p.key_grad, u.batch, u.head),
    *value_grad = mpg_at(p.value_grad, u.batch, u.head);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (keys[h] >= p.keys) continue;
#pragma unroll
    for (int c = 0; c < D / 8; c++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int column = c * 8 + 2 * u.pair + i;
        if (column < p.width)
          key_grad[keys[h] * p.key_grad.by_row + column] =
              mpg_to<T>(key_grads[c][2 * h + i] * p.scale);
        if (column < p.value_width)
          value_grad[keys[h] * p.value_grad.by_row + column] = mpg_to<T>(value_grads[c][2 * h + i]);
      }
  }
}

/* The gradients of a tile of rows. */
template <class T, int D>
__global__ void __launch_bounds__(THREADS) rows_kernel(mpg_attention<T> p, alignments aligned) {
  const int PITCH = D + 8, N = STEP / 8;
  T *query = mpg_cuda_shared<T>(), *grad = query + TILE * PITCH, *key = grad + TILE * PITCH,
    *value = key + STEP * PITCH;
  unit u = unit_of(p, p.rows, p.causal);
  const T *keys = mpg_at(p.key, u.batch, u.head), *values = mpg_at(p.value, u.batch, u.head),
          *mask = mask_of(p, u);
  int64_t end = p.causal && u.first + TILE < p.keys ? u.first + TILE : p.keys,
          rows[2] = {u.first + u.warp * 16 + u.group, u.first + u.warp * 16 + u.group + 8};
  float grads[D / 8][4], s[N][4], g[N][4], least[2], inner[2];
  drawing d = drawing_of(p);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    least[h] = least_of(p, u, rows[h]);
    inner[h] = rows[h] < p.rows ? p.inner[u.index * p.rows + rows[h]] : 0;
  }
#pragma unroll
  for (int c = 0; c < D / 8; c++)
#pragma unroll
    for (int i = 0; i < 4; i++) grads[c][i] = 0;
  load_rows<TILE, D>(mpg_at(p.query, u.batch, u.head), p.query.by_row, u.first, p.rows, p.width,
                     aligned.query, query);
  load_rows<TILE, D>(mpg_at(p.grad, u.batch, u.head), p.grad.by_row, u.first, p.rows, p.value_width,
                     aligned.grad, grad);
  for (int64_t first = 0; first < end; first += STEP) {
    __syncthreads();
    load_rows<STEP, D>(keys, p.key.by_row, first, p.keys, p.width, aligned.key, key);
    load_rows<STEP, D>(values, p.value.by_row, first, p.keys, p.value_width, aligned.value, value);
    __syncthreads();
    multiply_rows<N, D>(query + u.warp * 16 * PITCH, key, s);
    multiply_rows<N, D>(grad + u.warp * 16 * PITCH, value, g);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        weight_again(p, u, mask, d, rows[i / 2], first + n * 8 + 2 * u.pair + i % 2, least[i / 2],
                     inner[i / 2], &s[n][i], &g[n][i]);
    add_products<N, D>(g, key, grads);
  }
  T *query_grad = mpg_at(p.query_grad, u.batch, u.head);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (rows[h] >= p.rows) continue;
#pragma unroll
    for (int c = 0; c < D / 8; c++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int column = c * 8 + 2 * u.pair + i;
        if (column < p.width)
          query_grad[rows[h] * p.query_grad.by_row + column] =
              mpg_to<T>(grads[c][2 * h + i] * p.scale);
      }
  }
}

template <class T>
bool is_aligned(const mpg_place<T> &p) {
  return mpg_cuda_aligned(p.data) && p.by_batch % 8 == 0 && p.by_head % 8 == 0 && p.by_row % 8 == 0;
}
template <class T>
alignments alignments_of(const mpg_attention<T> &p) {
  return alignments{is_aligned(p.query), is_aligned(p.key), is_aligned(p.value),
                    is_aligned(p.grad)};
}
template <class T>
unsigned blocks_of(const mpg_attention<T> &p, int64_t batch, int64_t extent) {
  return (unsigned)(batch * p.heads * ((extent + TILE - 1) / TILE));
}

template <class T, int D>
mpg_status forward(const mpg_kernel_call *call, const mpg_attention<T> &p, int64_t batch) {
  return mpg_cuda_launch(call, forward_kernel<T, D>, blocks_of(p, batch, p.rows), THREADS,
                         3 * TILE * (D + 8) * sizeof(T), p, alignments_of(p));
}
template <class T, int D>
mpg_status backward(const mpg_kernel_call *call, const mpg_attention<T> &p, int64_t batch) {
  const size_t shared = 2 * (TILE + STEP) * (D + 8) * sizeof(T);
  MPG_TRY(mpg_cuda_launch(call, keys_kernel<T, D>, blocks_of(p, batch, p.keys), THREADS, shared, p,
                          alignments_of(p)));
  return mpg_cuda_launch(call, rows_kernel<T, D>, blocks_of(p, batch, p.rows), THREADS, shared, p,
                         alignments_of(p));
}

template <class T>
bool is_narrow(const mpg_attention<T> &p) {
  return p.width <= 64 && p.value_width <= 64;
}

} // namespace

#define BOTH(T)                                                                                    \
  mpg_status mpg_attention_tensor_forward(const mpg_kernel_call *call, const mpg_attention<T> &p,  \
                                          int64_t batch) {                                         \
    return is_narrow(p) ? forward<T, 64>(call, p, batch) : forward<T, 128>(call, p, batch);        \
  }                                                                                                \
  mpg_status mpg_attention_tensor_backward(const mpg_kernel_call *call, const mpg_attention<T> &p, \
                                           int64_t batch) {                                        \
    return is_narrow(p) ? backward<T, 64>(call, p, batch) : backward<T, 128>(call, p, batch);      \
  }
BOTH(mpg_half)
BOTH(mpg_bfloat16)
