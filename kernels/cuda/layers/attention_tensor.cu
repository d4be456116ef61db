/* Attention with tensor cores, for float16 and bfloat16. Tiles and softmax work as in attention.cu,
 * but weights are rounded to 16 bits before they are multiplied by values. Heads may be up to 128
 * wide, padded to 64 or 128. A warp keeps its 16 queries in registers. The next tile of keys and
 * values is loaded while the current one is processed. Exponentials are in base 2, so that the
 * scale and log2(e) are combined into one factor.
 */
#include "kernels/cuda/layers/attention_tensor.h"

namespace {

enum { KEYS = 64 /* per tile */, N = KEYS / 8, WARPS = 4, THREADS = 32 * WARPS, ROWS = 16 * WARPS };

/* Returns the number of blocks per multiprocessor that leaves each thread enough registers to avoid
 * most spills. */
constexpr int resident(int width, mpg_attention_mode mode) {
  return width == 128 || mode == MPG_MASKED ? 2 : 4;
}

/* Online softmax state of a lane's two rows: the results so far, the largest product so far, and
 * the sum of exponentials over the lane's own columns. */
template <int D>
struct rows_state {
  float out[D / 8][4], max[2], total[2];
};

/* Converts a tile of products s to weights and updates the state t (online softmax). If EDGE, only
 * the keys visible[h] of the tile are visible to the lane's row h. added(h, key) is the value that
 * the mask adds to a score. */
template <mpg_attention_mode MODE, bool EDGE, int D, class T, class A>
__device__ __forceinline__ void weigh(const mpg_attention<T> &p, float factor, A added,
                                      const mpg_range<int> *visible, const uint32_t *kept,
                                      rows_state<D> &t, float (*s)[4]) {
  int pair = threadIdx.x & 3;
  float most[2] = {t.max[0], t.max[1]}, shift[2], shrink[2];
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int key = n * 8 + 2 * pair + i % 2;
      if (MODE == MPG_MASKED)
        s[n][i] =
            visible[i / 2].has(key) ? mpg_score(p, s[n][i], factor, added(i / 2, key)) : -INFINITY;
      else if (EDGE)
        s[n][i] = visible[i / 2].has(key) ? s[n][i] : -INFINITY;
      most[i / 2] = fmaxf(most[i / 2], s[n][i]); /* ignores NaN */
    }
  if (MODE == MPG_MASKED) factor = 1;
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int lanes = 2; lanes; lanes >>= 1)
      most[h] = fmaxf(most[h], __shfl_xor_sync(0xffffffffu, most[h], lanes));
    shift[h] = most[h] == -INFINITY ? 0 : most[h] * factor;
    /* Exactly 1 if the maximum stays, so that hidden tiles do not change a row. */
    shrink[h] = most[h] == t.max[h] ? 1 : mpg_exp2(fmaf(t.max[h], factor, -shift[h]));
    t.max[h] = most[h];
    t.total[h] *= shrink[h];
  }
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float weight = mpg_exp2(fmaf(s[n][i], factor, -shift[i / 2]));
      t.total[i / 2] += weight;
      if (MODE != MPG_PLAIN)
        weight = kept[n % 2] >> (4 * (i / 2 * (N / 2) + n / 2) + i % 2) & 1 ? weight : 0;
      s[n][i] = weight;
    }
  if (__any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
    for (int c = 0; c < D / 8; c++)
#pragma unroll
      for (int i = 0; i < 4; i++) t.out[c][i] *= shrink[i / 2];
  }
}

template <class T, int D, mpg_attention_mode MODE>
__global__ void __launch_bounds__(THREADS, resident(D, MODE))
    forward_kernel(mpg_attention<T> p, mpg_alignments aligned) {
  enum { PITCH = D + 8, SIDE = KEYS * PITCH };
  static_assert(ROWS <= 2 * KEYS, "queries have room where the second stage will be");
  const int num_rows = (int)p.rows;
  mpg_unit u = mpg_unit_of_rows<ROWS>(p);
  const T *keys = mpg_at(p.key, u.batch, u.key_head),
          *values = mpg_at(p.value, u.batch, u.key_head);
  const int32_t *segments = MODE == MPG_MASKED ? mpg_segments_of(p, u.batch) : NULL;
  int64_t mask_at = mpg_mask_at(p, u, u.own + u.group);
  /* A stage has a tile of keys and a tile of values. */
  T *stage = mpg_cuda_shared<T>(), *other = stage + 2 * SIDE;
  const mpg_sight<int> sight(p, u.batch);
  mpg_range<int> block = sight.keys_of_some(u.first, u.first + ROWS);
  int start = block.low / KEYS * KEYS, end = block.high;
  bool drops = MODE == MPG_DROPPED || (MODE == MPG_MASKED && p.drops);
  uint32_t kept[2] = {~0u, ~0u}, queries[D / 16][4];
  __shared__ mpg_drawing d; /* in shared memory to save registers */
  if (drops && threadIdx.x == 0) d = mpg_drawing_of(p);
  /* `weigh` needs a positive factor, so that the largest product has the largest score. Hence a
   * negative scale is made positive by negating the queries. A scale of 0 is replaced with a tiny
   * scale, which makes the scores negligible. */
  float factor = p.scale == 0 ? 0x1p-126f : fabsf(p.scale) * MPG_LOG2_E;
  mpg_load_tile<ROWS, D, THREADS>((const T *)mpg_at(p.query, u.batch, u.head), p.query.by_row,
                                  u.first, num_rows, p.width, aligned.query, other);
  mpg_load_tile<KEYS, D, THREADS>(keys, p.key.by_row, start, sight.end, p.width, aligned.key,
                                  stage);
  mpg_load_tile<KEYS, D, THREADS>(values, p.value.by_row, start, sight.end, p.value_width,
                                  aligned.value, stage + SIDE);
  mpg_copies_wait();
  __syncthreads();
  mpg_load_rows<D>(other + u.warp * 16 * PITCH, queries);
  uint32_t sign = p.scale < 0 ? 0x80008000u : 0;
#pragma unroll
  for (int e = 0; e < D / 16; e++)
#pragma unroll
    for (int i = 0; i < 4; i++) queries[e][i] ^= sign;
  rows_state<D> t;
  mpg_clear<D>(t.out);
  t.max[0] = t.max[1] = -INFINITY, t.total[0] = t.total[1] = 0;
  __syncthreads();
  for (int first = start; first < end; first += KEYS) {
    if (first + KEYS < end) {
      mpg_load_tile<KEYS, D, THREADS>(keys, p.key.by_row, first + KEYS, sight.end, p.width,
                                      aligned.key, other);
      mpg_load_tile<KEYS, D, THREADS>(values, p.value.by_row, first + KEYS, sight.end,
                                      p.value_width, aligned.value, other + SIDE);
    }
    if (sight.keys_of_some(u.own, u.own + 16).has_some(first, first + KEYS)) {
      float s[N][4];
      if (drops) {
        uint64_t starts[2];
        for (int h = 0; h < 2; h++)
          starts[h] = mpg_row_position(p, u, d, u.own + u.group + 8 * h) + (uint64_t)first;
        mpg_kept_along<N>(d, starts, p.threshold, kept);
      }
      mpg_multiply_rows<N, D>(queries, stage, s);
      auto added = [&](int h, int key) {
        int row = u.own + u.group + 8 * h;
        return mpg_added(p, mask_at + 8 * h * p.mask_row + (first + key) * p.mask_key, segments,
                         mpg_own_segment(p, segments, row), first + key);
      };
      mpg_range<int> visible[2];
      if (MODE != MPG_MASKED && sight.keys_of_all(u.own, u.own + 16).has_all(first, first + KEYS)) {
        weigh<MODE, false>(p, factor, added, visible, kept, t, s);
      } else {
        for (int h = 0; h < 2; h++) {
          visible[h] = sight.keys(u.own + u.group + 8 * h);
          visible[h].low -= first, visible[h].high -= first;
        }
        weigh<MODE, true>(p, factor, added, visible, kept, t, s);
      }
      mpg_add_products<N, D>(s, stage + SIDE, t.out);
    }
    mpg_copies_wait();
    __syncthreads();
    T *next = other;
    other = stage, stage = next;
  }
  T *result = mpg_at(p.result, u.batch, u.head);
  float *sums = p.sums ? p.sums + 2 * u.index * p.rows : NULL;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int row = u.own + u.group + 8 * h;
#pragma unroll
    for (int lanes = 2; lanes; lanes >>= 1)
      t.total[h] += __shfl_xor_sync(0xffffffffu, t.total[h], lanes);
    if (row >= num_rows) continue;
    if (sums && u.pair == 0) {
      sums[row] = MODE == MPG_MASKED ? t.max[h] * (1 / MPG_LOG2_E) : t.max[h] * fabsf(p.scale);
      sums[num_rows + row] = t.total[h];
    }
    float kept_scale = t.total[h] == 0 && p.empty_is_zero ? 0 : p.kept_scale / t.total[h];
    mpg_store_row<D>(t.out, h, kept_scale, p.value_width, aligned.result,
                     result + row * p.result.by_row);
  }
}

template <class T, int D>
mpg_status forward(const mpg_kernel_call *call, const mpg_attention<T> &p, int64_t batch) {
  void (*kernel)(mpg_attention<T>, mpg_alignments) = mpg_attention_is_masked(p)
                                                         ? forward_kernel<T, D, MPG_MASKED>
                                                     : p.drops ? forward_kernel<T, D, MPG_DROPPED>
                                                               : forward_kernel<T, D, MPG_PLAIN>;
  return mpg_cuda_launch(call, kernel, mpg_attention_blocks(batch * p.heads, p.rows, ROWS), THREADS,
                         4 * KEYS * (D + 8) * sizeof(T), p, mpg_alignments_of(p));
}

} // namespace

#define FORWARD(T)                                                                                \
  mpg_status mpg_attention_tensor_forward(const mpg_kernel_call *call, const mpg_attention<T> &p, \
                                          int64_t batch) {                                        \
    return mpg_attention_is_narrow(p) ? forward<T, 64>(call, p, batch)                            \
                                      : forward<T, 128>(call, p, batch);                          \
  }
FORWARD(mpg_half)
FORWARD(mpg_bfloat16)
