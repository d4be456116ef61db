/* Products of a few rows of halves, for one dtype. Included by narrow_halves.c with
 *   NAME(x)         name of x in this instance, which is spelled x_T here
 *   LOAD(p)         LANES elements as a vector of float (lanes.h)
 *   WIDEN, ROUND    conversions of an element to and from float
 */

/* Each x_T below is NAME(x), the name of x in this instance. */
#define add_of_T NAME(add_of)
#define add_T NAME(add)
#define columns_T NAME(columns)
#define dots_T NAME(dots)
#define dots_of_T NAME(dots_of)
#define few_dots_T NAME(few_dots)
#define finish_T NAME(finish)

/* Writes `count` elements of row i of C, from column j on. */
static void finish_T(const mpg_half_product *g, int64_t i, int64_t j, int64_t count,
                     const float *sums) {
  uint16_t *c = (uint16_t *)g->c + i * g->n + j;
  const uint16_t *bias = g->bias ? (const uint16_t *)g->bias + j : NULL;
  for (int64_t q = 0; q < count; q++) c[q] = ROUND(bias ? sums[q] + WIDEN(bias[q]) : sums[q]);
}

/* --- Transposed B ----------------------------------------------------------------------------- */
/* Computes the dot products of `rows` adjacent rows of A with a row of B, in PARTS x LANES partial
 * sums each. */
static inline __attribute__((always_inline)) void dots_of_T(const int rows, int64_t k,
                                                            const uint16_t *a, const uint16_t *b,
                                                            float *sums) {
  enum { STEP = PARTS * LANES };
  V sum[ROWS][PARTS];
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) MPG_UNROLL(8)
  for (int q = 0; q < PARTS; q++) sum[r][q] = V_SET(0);
  int64_t p = 0;
  for (; p + STEP <= k; p += STEP) {
    prefetch(b + p, STEP);
    MPG_UNROLL(8)
    for (int q = 0; q < PARTS; q++) {
      V y = LOAD(b + p + q * LANES);
      MPG_UNROLL(8)
      for (int r = 0; r < rows; r++)
        sum[r][q] = V_FMA(LOAD(a + r * k + p + q * LANES), y, sum[r][q]);
    }
  }
  MPG_UNROLL(8)
  for (int q = 0; q < PARTS; q++) {
    int64_t left = k - p - q * LANES, valid = left < LANES ? left : LANES;
    if (valid <= 0) break;
    uint16_t x[LANES] = {0}, y[LANES] = {0}; /* padded with zeros */
    memcpy(y, b + p + q * LANES, (size_t)valid * sizeof *y);
    MPG_UNROLL(8)
    for (int r = 0; r < rows; r++) {
      memcpy(x, a + r * k + p + q * LANES, (size_t)valid * sizeof *x);
      sum[r][q] = V_FMA(LOAD(x), LOAD(y), sum[r][q]);
    }
  }
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) {
    float lanes[PARTS][LANES];
    MPG_UNROLL(8)
    for (int q = 0; q < PARTS; q++) V_STORE(lanes[q], sum[r][q]);
    for (int width = PARTS / 2; width; width /= 2)
      for (int q = 0; q < width; q++)
        for (int l = 0; l < LANES; l++) lanes[q][l] += lanes[q + width][l];
    for (int width = LANES / 2; width; width /= 2)
      for (int l = 0; l < width; l++) lanes[0][l] += lanes[0][l + width];
    sums[r] = lanes[0][0];
  }
}

static void few_dots_T(int rows, int64_t k, const uint16_t *a, const uint16_t *b, float *sums) {
  switch (rows) {
#if ROWS > 2
    case 4: dots_of_T(4, k, a, b, sums); break;
    case 3: dots_of_T(3, k, a, b, sums); break;
#endif
    case 2: dots_of_T(2, k, a, b, sums); break;
    default: dots_of_T(1, k, a, b, sums); break;
  }
}

/* Computes columns [begin, end) of C. The columns of all products are counted. */
static void dots_T(void *context, int64_t begin, int64_t end) {
  const mpg_half_product *g = context;
  dots_fn few_dots = few_dots_T;
#if defined(MPG_WITH_PAIRS) && defined(OF_PAIRS)
  if (mpg_cpu_pairs() != MPG_NO_PAIRS) few_dots = few_dots_of_pairs;
#endif
  for (int64_t at = begin, count; at < end; at += count) {
    const int64_t i = at / g->n, j = at % g->n;
    const uint16_t *a = (const uint16_t *)g->a + i * g->m * g->k,
                   *b = (const uint16_t *)g->b + at * g->k;
    count = g->m > ROWS ? TOGETHER : 1; /* uses rows of A several times while they are in L1 */
    if (count > end - at) count = end - at;
    if (count > g->n - j) count = g->n - j;
    for (int64_t row = 0; row < g->m; row += ROWS) {
      float sums[ROWS];
      int rows = g->m - row < ROWS ? (int)(g->m - row) : ROWS;
      for (int64_t q = 0; q < count; q++) {
        few_dots(rows, g->k, a + row * g->k, b + q * g->k, sums);
        for (int r = 0; r < rows; r++) finish_T(g, i * g->m + row + r, j + q, 1, &sums[r]);
      }
    }
  }
}

/* --- B as it is ------------------------------------------------------------------------------- */
/* Adds `steps` rows of B, multiplied by elements of `rows` rows of A, to `width` sums per row. */
static inline __attribute__((always_inline)) void add_of_T(const int rows, const int steps,
                                                           const mpg_half_product *g,
                                                           const uint16_t *a, const uint16_t *b,
                                                           int64_t width, int64_t stride,
                                                           float *sums) {
  V x[ROWS][STEPS];
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) MPG_UNROLL(8)
  for (int s = 0; s < steps; s++) x[r][s] = V_SET(WIDEN(a[r * g->k + s]));
  int64_t j = 0;
  for (; j + LANES <= width; j += LANES) {
    V y[STEPS];
    MPG_UNROLL(8)
    for (int s = 0; s < steps; s++) {
      __builtin_prefetch(b + (STEPS + s) * g->n + j); /* the rows after these */
      y[s] = LOAD(b + s * g->n + j);
    }
    MPG_UNROLL(8)
    for (int r = 0; r < rows; r++) {
      V sum = V_LOAD(sums + r * stride + j);
      MPG_UNROLL(8)
      for (int s = 0; s < steps; s++) sum = V_FMA(x[r][s], y[s], sum);
      V_STORE(sums + r * stride + j, sum);
    }
  }
  if (j == width) return;
  for (int s = 0; s < steps; s++) {
    uint16_t part[LANES] = {0}; /* the sums are padded to LANES as well */
    memcpy(part, b + s * g->n + j, (size_t)(width - j) * sizeof *part);
    for (int r = 0; r < rows; r++) {
      float *to = sums + r * stride + j;
      V_STORE(to, V_FMA(x[r][s], LOAD(part), V_LOAD(to)));
    }
  }
}

static void add_T(int rows, int steps, const mpg_half_product *g, const uint16_t *a,
                  const uint16_t *b, int64_t width, int64_t stride, float *sums) {
  if (rows == ROWS && steps == STEPS) {
    add_of_T(ROWS, STEPS, g, a, b, width, stride, sums);
    return;
  }
  for (int r = 0; r < rows; r++) {
    const uint16_t *row = a + r * g->k;
    if (steps == STEPS)
      add_of_T(1, STEPS, g, row, b, width, stride, sums + r * stride);
    else
      for (int s = 0; s < steps; s++)
        add_of_T(1, 1, g, row + s, b + s * g->n, width, stride, sums + r * stride);
  }
}

/* Computes blocks [begin, end) of COLUMNS columns of C. The blocks of all products are counted.
 * Adjacent blocks are computed together, so that rows of B are read in long runs. */
static void columns_T(void *context, int64_t begin, int64_t end) {
  const mpg_half_product *g = context;
  const int64_t blocks = (g->n + COLUMNS - 1) / COLUMNS, together = SUMS / COLUMNS / g->m;
  float sums[SUMS] __attribute__((aligned(64)));
  for (int64_t at = begin, count; at < end; at += count) {
    const int64_t i = at / blocks, block = at % blocks, j = block * COLUMNS;
    count = blocks - block < end - at ? blocks - block : end - at;
    if (count > together) count = together;
    const int64_t left = g->n - j, stride = count * COLUMNS, width = left < stride ? left : stride;
    const uint16_t *a = (const uint16_t *)g->a + i * g->m * g->k,
                   *b = (const uint16_t *)g->b + i * g->k * g->n + j;
    memset(sums, 0, (size_t)(g->m * stride) * sizeof *sums);
    for (int64_t p = 0; p < g->k; p += STEPS)
      for (int64_t r = 0; r < g->m; r += ROWS)
        add_T(g->m - r < ROWS ? (int)(g->m - r) : ROWS, g->k - p < STEPS ? (int)(g->k - p) : STEPS,
              g, a + r * g->k + p, b + p * g->n, width, stride, sums + r * stride);
    for (int64_t r = 0; r < g->m; r++) finish_T(g, i * g->m + r, j, width, sums + r * stride);
  }
}

#undef NAME
#undef LOAD
#undef WIDEN
#undef ROUND
#undef OF_PAIRS
