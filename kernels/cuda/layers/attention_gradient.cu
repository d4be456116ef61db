/* Gradients of attention with tensor cores, for float16 and bfloat16. One kernel computes the
 * gradients of keys and values, and a second one those of queries. Both recompute the weights from
 * the saved softmax statistics, so there are seven tile products. A single kernel would need only
 * five, but would have to add the gradients of queries across blocks. To add them in a fixed order,
 * it would have to store each block's contribution in float32. For 1,024 keys, the contributions
 * are 32 times the size of the queries, and storing them takes longer than two products.
 *
 * A block has four warps with 16 keys (or queries) each. The next tile of the other operand is
 * loaded while the current one is processed. Dropped weights have no gradient. The factor
 * 1 / (1 - p) of kept weights is applied to the results.
 */
#include "kernels/cuda/layers/attention_tensor.h"

namespace {

enum { WARPS = 4, THREADS = 32 * WARPS, TILE = 16 * WARPS };

/* Number of rows (or keys) of the other operand that a step processes, limited by registers. */
template <int D, mpg_attention_mode MODE>
constexpr int rows_at_once = D == 64 && MODE == MPG_PLAIN ? 64 : 32;

/* Returns a row's log-sum-exp in base 2. It is infinity for missing and empty rows, which makes
 * their weights zero. */
__device__ __forceinline__ float sum_of(const float *sums, int rows, int row, bool empty_is_zero,
                                        bool merged) {
  if (row < rows && merged) return sums[row] * MPG_LOG2_E;
  if (row >= rows || (empty_is_zero && sums[rows + row] == 0)) return INFINITY;
  return fmaf(sums[row], MPG_LOG2_E, log2f(sums[rows + row]));
}
/* Returns a row's inner product of output and gradient, divided by the dropout factor 1 / (1 - p),
 * because the other terms do not include that factor. */
template <class T>
__device__ __forceinline__ float inner_of(const mpg_attention<T> &p, const mpg_unit &u, int row) {
  if (row >= p.rows || p.kept_scale == 0) return 0;
  return p.inner[u.index * p.rows + row] / p.kept_scale;
}

/* Converts *product, the product of a query and a key, to the weight, and *gradient, the gradient
 * of the weight, to the gradient of the score. */
template <mpg_attention_mode MODE, bool EDGE>
__device__ __forceinline__ void weigh_again(float factor, float least, float inner, bool seen,
                                            bool stays, float *product, float *gradient) {
  float weight = mpg_exp2(MODE == MPG_MASKED ? *product - least : fmaf(*product, factor, -least)),
        own = MODE == MPG_PLAIN || stays ? *gradient : 0;
  if (EDGE && !seen) weight = 0;
  *gradient = EDGE && !seen ? 0 : weight * (own - inner);
  *product = MODE == MPG_PLAIN || stays ? weight : 0;
}

/* Prevents the compiler from computing values that depend on *number before this point, for example
 * from hoisting them out of a loop. */
__device__ __forceinline__ void keep_here([[maybe_unused]] int *number) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(*number));
#endif
}

/* Scales products to base-2 scores and adds added(n, i), the mask's value for element [n][i]. */
template <int N, class F, class A>
__device__ __forceinline__ void add_mask(float factor, F seen, A added, float (*s)[4]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      s[n][i] = fmaf(s[n][i], factor, seen(n, i) ? added(n, i) * MPG_LOG2_E : 0.0f);
}

/* Computes each row's inner product of the output and the output's gradient. LANES lanes share a
 * row. Each lane has eight adjacent elements. */
template <class T, int LANES>
__global__ void __launch_bounds__(MPG_CUDA_THREADS)
    inner_kernel(mpg_attention<T> p, uint32_t count, bool aligned) {
  uint32_t i = (uint32_t)(MPG_CUDA_INDEX / LANES), index = i / (uint32_t)p.rows,
           row = i - index * (uint32_t)p.rows, batch = index / (uint32_t)p.heads,
           head = index - batch * (uint32_t)p.heads;
  int e = threadIdx.x % LANES * 8;
  float sum = 0;
  if (p.merged && i < count && e == 0) sum = p.sums[(2 * (int64_t)index + 1) * p.rows + row];
  if (!p.merged && i < count && e < p.value_width) {
    const T *grad = mpg_at(p.grad, batch, head) + row * p.grad.by_row + e,
            *output = mpg_at(p.output, batch, head) + row * p.output.by_row + e;
    if (aligned) {
      mpg_pack<T> left = *(const mpg_pack<T> *)grad, right = *(const mpg_pack<T> *)output;
#pragma unroll
      for (int k = 0; k < 8; k++)
        sum = fmaf(mpg_to<float>(left.values[k]), mpg_to<float>(right.values[k]), sum);
    } else {
      for (int k = 0; k < 8 && e + k < p.value_width; k++)
        sum = fmaf(mpg_to<float>(grad[k]), mpg_to<float>(output[k]), sum);
    }
  }
#pragma unroll
  for (int lanes = LANES / 2; lanes; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  if (i < count && e == 0) p.inner[i] = sum;
}

/* Computes a warp's weights s and gradients of scores g for the tile in `stage`. First, s and g are
 * products of the tile with the warp's 16 rows of `own` and `own_grads`. Then mask() adds the mask
 * to s, and weigh(edge, n, i) converts s[n][i] and g[n][i]. If `whole` is true, all elements are
 * visible, so `edge` is false and weigh() does not test for hidden elements.
 */
template <class T, int D, int N, class M, class W>
__device__ __forceinline__ void weigh_tile(const T *own, const T *own_grads, const T *stage,
                                           bool whole, M mask, W weigh, float (&s)[N][4],
                                           float (&g)[N][4]) {
  mpg_multiply_rows<N, D>(own, stage, s);
  mask();
  mpg_multiply_rows<N, D>(own_grads, stage + 8 * N * (D + 8), g);
  auto all = [&](auto edge) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) weigh(edge, n, i);
  };
  if (whole)
    all(mpg_constant<false>());
  else
    all(mpg_constant<true>());
}

/* Computes the gradients of a tile of keys and values. In this kernel, tiles of weights are
 * transposed: (keys, rows). */
template <class T, int D, mpg_attention_mode MODE>
__global__ void __launch_bounds__(THREADS, D == 128 || MODE == MPG_MASKED ? 2 : 3)
    keys_kernel(mpg_attention<T> p, mpg_alignments aligned) {
  enum { STEP = rows_at_once<D, MODE>, N = STEP / 8, PITCH = D + 8, SIDE = STEP * PITCH };
  [[maybe_unused]] __shared__ float rows[2][2][STEP]; /* [stage][sum_of or inner_of][row] */
  T *key = mpg_cuda_shared<T>(), *value = key + TILE * PITCH, *stage = value + TILE * PITCH,
    *other = stage + 2 * SIDE; /* a stage holds a tile of queries and a tile of gradients */
  const int num_rows = (int)p.rows, num_keys = (int)p.keys;
  mpg_unit u = mpg_unit_of_keys<TILE>(p);
  const int32_t *segments = MODE == MPG_MASKED ? mpg_segments_of(p, u.batch) : NULL;
  bool drops = MODE == MPG_DROPPED || (MODE == MPG_MASKED && p.drops);
  uint32_t kept[4] = {~0u, ~0u, ~0u, ~0u};
  __shared__ mpg_drawing d; /* in shared memory to save registers */
  if (drops && threadIdx.x == 0) d = mpg_drawing_of(p);
  float key_grads[D / 8][4], value_grads[D / 8][4], factor = p.scale * MPG_LOG2_E;
  mpg_clear<D>(key_grads);
  mpg_clear<D>(value_grads);
  const mpg_sight<int> sight(p, u.batch);
  int at = 0, lane = threadIdx.x % STEP; /* the first STEP threads fill `rows` */
  mpg_load_tile<TILE, D, THREADS>((const T *)mpg_at(p.key, u.batch, u.key_head), p.key.by_row,
                                  u.first, num_keys, p.width, aligned.key, key);
  mpg_load_tile<TILE, D, THREADS>((const T *)mpg_at(p.value, u.batch, u.key_head), p.value.by_row,
                                  u.first, num_keys, p.value_width, aligned.value, value);
  for (int g = 0; g < (int)p.group; g++) {
    u.head = u.key_head * (int)p.group + g, u.index = u.batch * (int)p.heads + u.head;
    const T *queries = mpg_at(p.query, u.batch, u.head), *grads = mpg_at(p.grad, u.batch, u.head);
    const float *sums = p.sums + 2 * (int64_t)u.index * p.rows;
    int64_t mask_at = mpg_mask_at(p, u, 0) + (u.own + u.group) * p.mask_key;
    auto load = [&](int first, T *to) {
      mpg_load_tile<STEP, D, THREADS>(queries, p.query.by_row, first, num_rows, p.width,
                                      aligned.query, to);
      mpg_load_tile<STEP, D, THREADS>(grads, p.grad.by_row, first, num_rows, p.value_width,
                                      aligned.grad, to + SIDE);
    };
    mpg_range<int> block = sight.rows_of_some(u.first, u.first + TILE);
    int first = block.low / STEP * STEP, last = block.high;
    load(first, stage);
    if (threadIdx.x < STEP) {
      rows[at][0][lane] = sum_of(sums, num_rows, first + lane, p.empty_is_zero, p.merged);
      rows[at][1][lane] = inner_of(p, u, first + lane);
    }
    mpg_copies_wait();
    __syncthreads();
    for (; first < last; first += STEP) {
      float next_sum = 0, next_inner = 0;
      if (first + STEP < last) {
        load(first + STEP, other);
        next_sum = sum_of(sums, num_rows, first + STEP + lane, p.empty_is_zero, p.merged);
        next_inner = inner_of(p, u, first + STEP + lane);
      }
      if (sight.rows_of_some(u.own, u.own + 16).has_some(first, first + STEP)) {
        float s[N][4], g[N][4];
        if (drops) mpg_kept_across<N>(p, u, d, first, kept);
        mpg_range<int> visible[2];
        for (int h = 0; h < 2; h++) {
          visible[h] = sight.rows_of(u.own + u.group + 8 * h);
          visible[h].low -= first, visible[h].high -= first;
        }
        auto seen = [&](int n, int i) { return visible[i / 2].has(n * 8 + 2 * u.pair + i % 2); };
        auto masked = [&] {
          if (MODE != MPG_MASKED) return;
          int pair = u.pair;
          keep_here(&pair);
          auto added = [&](int n, int i) {
            int row = first + n * 8 + 2 * pair + i % 2;
            return mpg_added(p, mask_at + row * p.mask_row + i / 2 * 8 * p.mask_key, segments,
                             mpg_own_segment(p, segments, row), u.own + u.group + i / 2 * 8);
          };
          add_mask<N>(factor, seen, added, s);
        };
        auto weigh = [&](auto edge, int n, int i) {
          constexpr bool EDGE = decltype(edge)::value;
          int row = n * 8 + 2 * u.pair + i % 2;
          weigh_again<MODE, EDGE>(factor, rows[at][0][row], rows[at][1][row], !EDGE || seen(n, i),
                                  kept[2 * (n % 2) + i % 2] >> 4 * (i / 2 * (N / 2) + n / 2) & 1,
                                  &s[n][i], &g[n][i]);
        };
        bool whole =
            MODE != MPG_MASKED && sight.rows_of_all(u.own, u.own + 16).has_all(first, first + STEP);
        weigh_tile<T, D, N>(key + u.warp * 16 * PITCH, value + u.warp * 16 * PITCH, stage, whole,
                            masked, weigh, s, g);
        mpg_add_products<N, D>(s, stage + SIDE, value_grads);
        mpg_add_products<N, D>(g, stage, key_grads);
      }
      if (threadIdx.x < STEP) rows[1 - at][0][lane] = next_sum, rows[1 - at][1][lane] = next_inner;
      mpg_copies_wait();
      __syncthreads();
      T *next = other;
      other = stage, stage = next, at = 1 - at;
    }
  }
  T *key_grad = mpg_at(p.key_grad, u.batch, u.key_head),
    *value_grad = mpg_at(p.value_grad, u.batch, u.key_head);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int key_at = u.own + u.group + 8 * h;
    if (key_at >= num_keys) continue;
    mpg_store_row<D>(key_grads, h, p.scale * p.kept_scale, p.width, aligned.key_grad,
                     key_grad + key_at * p.key_grad.by_row);
    mpg_store_row<D>(value_grads, h, p.kept_scale, p.value_width, aligned.value_grad,
                     value_grad + key_at * p.value_grad.by_row);
  }
}

/* Computes the gradients of a tile of queries. */
template <class T, int D, mpg_attention_mode MODE>
__global__ void __launch_bounds__(THREADS, D == 128             ? 2
                                           : MODE == MPG_MASKED ? 3
                                                                : 4)
    rows_kernel(mpg_attention<T> p, mpg_alignments aligned) {
  enum { STEP = rows_at_once<D, MODE>, N = STEP / 8, PITCH = D + 8, SIDE = STEP * PITCH };
  T *query = mpg_cuda_shared<T>(), *grad = query + TILE * PITCH, *stage = grad + TILE * PITCH,
    *other = stage + 2 * SIDE; /* a stage has a tile of keys and a tile of values */
  const int num_rows = (int)p.rows;
  mpg_unit u = mpg_unit_of_rows<TILE>(p);
  const T *keys = mpg_at(p.key, u.batch, u.key_head),
          *values = mpg_at(p.value, u.batch, u.key_head);
  const int32_t *segments = MODE == MPG_MASKED ? mpg_segments_of(p, u.batch) : NULL;
  int64_t mask_at = mpg_mask_at(p, u, u.own + u.group);
  const mpg_sight<int> sight(p, u.batch);
  mpg_range<int> block = sight.keys_of_some(u.first, u.first + TILE);
  const int start = block.low / STEP * STEP, end = block.high;
  bool drops = MODE == MPG_DROPPED || (MODE == MPG_MASKED && p.drops);
  __shared__ mpg_drawing d; /* in shared memory to save registers */
  if (drops && threadIdx.x == 0) d = mpg_drawing_of(p);
  float grads[D / 8][4], factor = p.scale * MPG_LOG2_E, least[2], inner[2];
  mpg_clear<D>(grads);
  auto load = [&](int first, T *to) {
    mpg_load_tile<STEP, D, THREADS>(keys, p.key.by_row, first, sight.end, p.width, aligned.key, to);
    mpg_load_tile<STEP, D, THREADS>(values, p.value.by_row, first, sight.end, p.value_width,
                                    aligned.value, to + SIDE);
  };
  mpg_load_tile<TILE, D, THREADS>((const T *)mpg_at(p.query, u.batch, u.head), p.query.by_row,
                                  u.first, num_rows, p.width, aligned.query, query);
  mpg_load_tile<TILE, D, THREADS>((const T *)mpg_at(p.grad, u.batch, u.head), p.grad.by_row,
                                  u.first, num_rows, p.value_width, aligned.grad, grad);
  load(start, stage);
  for (int h = 0; h < 2; h++) {
    least[h] = sum_of(p.sums + 2 * u.index * p.rows, num_rows, u.own + u.group + 8 * h,
                      p.empty_is_zero, p.merged);
    inner[h] = inner_of(p, u, u.own + u.group + 8 * h);
  }
  mpg_copies_wait();
  __syncthreads();
  for (int first = start; first < end; first += STEP) {
    if (first + STEP < end) load(first + STEP, other);
    if (sight.keys_of_some(u.own, u.own + 16).has_some(first, first + STEP)) {
      float s[N][4], g[N][4];
      uint32_t kept[2] = {~0u, ~0u};
      if (drops) {
        uint64_t starts[2];
        for (int h = 0; h < 2; h++)
          starts[h] = mpg_row_position(p, u, d, u.own + u.group + 8 * h) + (uint64_t)first;
        mpg_kept_along<N>(d, starts, p.threshold, kept);
      }
      mpg_range<int> visible[2];
      for (int h = 0; h < 2; h++) {
        visible[h] = sight.keys(u.own + u.group + 8 * h);
        visible[h].low -= first, visible[h].high -= first;
      }
      auto seen = [&](int n, int i) { return visible[i / 2].has(n * 8 + 2 * u.pair + i % 2); };
      auto masked = [&] {
        if (MODE != MPG_MASKED) return;
        auto added = [&](int n, int i) {
          int key = first + n * 8 + 2 * u.pair + i % 2, row = u.own + u.group + i / 2 * 8;
          return mpg_added(p, mask_at + i / 2 * 8 * p.mask_row + key * p.mask_key, segments,
                           mpg_own_segment(p, segments, row), key);
        };
        add_mask<N>(factor, seen, added, s);
      };
      auto weigh = [&](auto edge, int n, int i) {
        constexpr bool EDGE = decltype(edge)::value;
        weigh_again<MODE, EDGE>(factor, least[i / 2], inner[i / 2], !EDGE || seen(n, i),
                                kept[n % 2] >> (4 * (i / 2 * (N / 2) + n / 2) + i % 2) & 1,
                                &s[n][i], &g[n][i]);
      };
      bool whole =
          MODE != MPG_MASKED && sight.keys_of_all(u.own, u.own + 16).has_all(first, first + STEP);
      weigh_tile<T, D, N>(query + u.warp * 16 * PITCH, grad + u.warp * 16 * PITCH, stage, whole,
                          masked, weigh, s, g);
      mpg_add_products<N, D>(g, stage, grads);
    }
    mpg_copies_wait();
    __syncthreads();
    T *next = other;
    other = stage, stage = next;
  }
  T *query_grad = mpg_at(p.query_grad, u.batch, u.head);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int row = u.own + u.group + 8 * h;
    if (row < num_rows)
      mpg_store_row<D>(grads, h, p.scale * p.kept_scale, p.width, aligned.query_grad,
                       query_grad + row * p.query_grad.by_row);
  }
}

template <class T, int D, mpg_attention_mode MODE>
mpg_status launch(const mpg_kernel_call *call, const mpg_attention<T> &p, int64_t batch) {
  const int STEP = rows_at_once<D, MODE>;
  const size_t shared = (2 * TILE + 4 * STEP) * (D + 8) * sizeof(T);
  MPG_TRY(mpg_cuda_launch(call, keys_kernel<T, D, MODE>,
                          mpg_attention_blocks(batch * p.heads / p.group, p.keys, TILE), THREADS,
                          shared, p, mpg_alignments_of(p)));
  return mpg_cuda_launch(call, rows_kernel<T, D, MODE>,
                         mpg_attention_blocks(batch * p.heads, p.rows, TILE), THREADS, shared, p,
                         mpg_alignments_of(p));
}

template <class T, int D>
mpg_status backward(const mpg_kernel_call *call, const mpg_attention<T> &p, int64_t batch) {
  const int LANES = D / 8;
  const uint32_t count = (uint32_t)(batch * p.heads * p.rows);
  MPG_TRY(mpg_cuda_launch(call, inner_kernel<T, LANES>,
                          mpg_cuda_blocks(count, MPG_CUDA_THREADS / LANES), MPG_CUDA_THREADS, 0, p,
                          count,
                          mpg_place_divides(p.grad, p.value_width, 16) &&
                              mpg_place_divides(p.output, p.value_width, 16)));
  return mpg_attention_is_masked(p) ? launch<T, D, MPG_MASKED>(call, p, batch)
         : p.drops                  ? launch<T, D, MPG_DROPPED>(call, p, batch)
                                    : launch<T, D, MPG_PLAIN>(call, p, batch);
}

} // namespace

#define BACKWARD(T)                                                                                \
  mpg_status mpg_attention_tensor_backward(const mpg_kernel_call *call, const mpg_attention<T> &p, \
                                           int64_t batch) {                                        \
    return mpg_attention_is_narrow(p) ? backward<T, 64>(call, p, batch)                            \
                                      : backward<T, 128>(call, p, batch);                          \
  }
BACKWARD(mpg_half)
BACKWARD(mpg_bfloat16)
