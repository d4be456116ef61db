/* Maximum and sum of exponentials of one contiguous row, for one type. Included after the headers
 * of a kernel file with T (float or double), NAME(x) (spelled x_T here) and EXP_NONPOSITIVE (for
 * arguments up to 0). Also needs STRIP, the elements per strip of row_exp.
 *
 * Sums have 16 lanes, with element i in lane i % 16, and the lanes are folded pairwise. The order
 * is the same on every instruction set and does not depend on threads.
 */

/* Each x_T below is NAME(x), the name of x in this instance. */
#define LANES_T NAME(LANES)
#define VECTORS_T NAME(VECTORS)
#define add_lanes_T NAME(add_lanes)
#define fold_sum_T NAME(fold_sum)
#define row_exp_T NAME(row_exp)
#define row_max_T NAME(row_max)
#define vector_T NAME(vector)

enum { LANES_T = MPG_VECTOR_BYTES / sizeof(T), VECTORS_T = 16 / LANES_T };
typedef T vector_T __attribute__((vector_size(MPG_VECTOR_BYTES), aligned(sizeof(T)), may_alias));
#define EACH_VECTOR \
  MPG_UNROLL(8)     \
  for (int k = 0; k < VECTORS_T; k++) /* unrolled, to keep arrays of vectors in registers */
#define VECTOR_AT(p) (*(const vector_T *)(const void *)((p) + k * LANES_T))

static T fold_sum_T(const T *lane) {
  T sum[16];
  for (int i = 0; i < 16; i++) sum[i] = lane[i];
  for (int half = 8; half >= 1; half /= 2)
    for (int i = 0; i < half; i++) sum[i] += sum[i + half];
  return sum[0];
}

static T row_max_T(const T *x, int64_t n) {
  T lane[64], max = -(T)INFINITY;
  int64_t i = 0;
  if (n >= 64) {
    for (int k = 0; k < 64; k++) lane[k] = x[k];
    for (i = 64; i + 64 <= n; i += 64)
      for (int k = 0; k < 64; k++) lane[k] = x[i + k] > lane[k] ? x[i + k] : lane[k];
    for (int k = 0; k < 64; k++) max = lane[k] > max ? lane[k] : max;
  }
  for (; i < n; i++) max = x[i] > max ? x[i] : max;
  return max;
}

/* Adds x[0 .. n) to the lanes; n is a multiple of 16 unless the row ends here. */
static void add_lanes_T(const T *x, int64_t n, T *lane) {
  vector_T sum[VECTORS_T];
  int64_t i = 0;
  memcpy(sum, lane, sizeof sum);
  for (; i + 16 <= n; i += 16) EACH_VECTOR sum[k] += VECTOR_AT(x + i);
  memcpy(lane, sum, sizeof sum);
  for (; i < n; i++) lane[i % 16] += x[i];
}

/* Returns the sum of exp(x - max). Stores the exponentials in y unless it is NULL; y may be x.
 * Works in strips of STRIP elements, so that additions overlap with the exponentials of the next
 * strip. Prefetches the next row.
 */
static T row_exp_T(const T *x, T *y, int64_t n, T max) {
  T lane[16], buffer[STRIP];
  vector_T sum[VECTORS_T] = {{0}};
  int64_t at = 0;
  for (; at + STRIP <= n; at += STRIP) {
    const T *from = x + at;
    T *to = y ? y + at : buffer;
    for (int i = 0; i < STRIP; i += 64 / (int)sizeof(T)) __builtin_prefetch(from + n + i, 0, 2);
    MPG_INDEPENDENT for (int i = 0; i < STRIP; i++) to[i] = EXP_NONPOSITIVE(from[i] - max);
    MPG_UNROLL(4)
    for (int i = 0; i < STRIP; i += 16) EACH_VECTOR sum[k] += VECTOR_AT(to + i);
  }
  memcpy(lane, sum, sizeof sum);
  T *to = y ? y + at : buffer;
  MPG_INDEPENDENT for (int64_t i = 0; i < n - at; i++) to[i] = EXP_NONPOSITIVE(x[at + i] - max);
  add_lanes_T(to, n - at, lane);
  return fold_sum_T(lane);
}
