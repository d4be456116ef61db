/* Products of a few rows of halves, for one dtype. Included by narrow_halves.c with
 *   NAME(x)         name of x in this instance, which is spelled x_T here
 *   LOAD(p)         LANES elements as a vector of float (lanes.h)
 *   SPLIT(p, low, high)
 *                   the elements in the lower and the upper halves of LANES words
 *   WIDEN, ROUND    conversions of an element to and from float
 */

/* Each x_T below is NAME(x), the name of x in this instance. */
#define add_T NAME(add)
#define add_block_T NAME(add_block)
#define add_block_of_T NAME(add_block_of)
#define add_of_T NAME(add_of)
#define columns_T NAME(columns)
#define dots_T NAME(dots)
#define finish_T NAME(finish)

/* Writes `count` elements of row i of C, from column j on. */
static void finish_T(const mpg_half_product *g, int64_t i, int64_t j, int64_t count,
                     const float *sums) {
  uint16_t *c = (uint16_t *)g->c + i * g->n + j;
  const uint16_t *bias = g->bias ? (const uint16_t *)g->bias + j : NULL;
  for (int64_t q = 0; q < count; q++) c[q] = ROUND(bias ? sums[q] + WIDEN(bias[q]) : sums[q]);
}

/* --- Transposed B ----------------------------------------------------------------------------- */
/* Adds the products of `rows` rows of A with a transposed block of B. `a` has BLOCK elements per
 * row. */
static inline __attribute__((always_inline)) void add_block_of_T(const int rows, const float *a,
                                                                 const uint32_t *words,
                                                                 float (*sums)[WIDTH]) {
  for (int l = 0; l < WIDTH; l += LANES) {
    V sum[ROWS];
    MPG_UNROLL(8)
    for (int r = 0; r < rows; r++) sum[r] = V_LOAD(sums[r] + l);
    MPG_UNROLL(4)
    for (int p = 0; p < MPG_TURNED; p++) {
      V low, high;
      SPLIT(words + p * WIDTH + l, &low, &high);
      MPG_UNROLL(8)
      for (int r = 0; r < rows; r++) {
        sum[r] = V_FMA(V_SET(a[r * BLOCK + 2 * p]), low, sum[r]);
        sum[r] = V_FMA(V_SET(a[r * BLOCK + 2 * p + 1]), high, sum[r]);
      }
    }
    MPG_UNROLL(8)
    for (int r = 0; r < rows; r++) V_STORE(sums[r] + l, sum[r]);
  }
}

/* Does the same for any number of rows. `a` has `count` elements per row, `stride` apart. */
static void add_block_T(int64_t m, const uint16_t *a, int64_t stride, int64_t count,
                        const uint32_t *words, float (*sums)[WIDTH]) {
  float wide[ROWS * BLOCK];
  for (int64_t row = 0; row < m; row += ROWS) {
    int rows = m - row < ROWS ? (int)(m - row) : ROWS;
    for (int r = 0; r < rows; r++) {
      uint16_t part[BLOCK] = {0};
      const uint16_t *from = a + (row + r) * stride;
      if (count < BLOCK) from = memcpy(part, from, (size_t)count * sizeof *part);
      for (int i = 0; i < BLOCK; i += LANES) V_STORE(wide + r * BLOCK + i, LOAD(from + i));
    }
    if (rows == ROWS)
      add_block_of_T(ROWS, wide, words, sums + row);
    else
      for (int r = 0; r < rows; r++) add_block_of_T(1, wide + r * BLOCK, words, sums + row + r);
  }
}

/* Computes groups [begin, end) of WIDTH columns of C. The groups of all products are counted. */
static void dots_T(void *context, int64_t begin, int64_t end) {
  const mpg_half_product *g = context;
  const int64_t groups = (g->n + WIDTH - 1) / WIDTH, k = g->k;
  int64_t chain = k + BLOCK;
  add_block_fn add_block = add_block_T;
#if defined(MPG_WITH_PAIRS) && defined(OF_PAIRS)
  if (in_pairs()) add_block = add_block_of_pairs, chain = chain_of_pairs(k);
#endif
  for (int64_t at = begin; at < end; at++) {
    const int64_t i = at / groups, j = at % groups * WIDTH,
                  valid = g->n - j < WIDTH ? g->n - j : WIDTH;
    const uint16_t *a = (const uint16_t *)g->a + i * g->m * k,
                   *b = (const uint16_t *)g->b + (i * g->n + j) * k;
    float sums[MOST_ROWS][WIDTH] __attribute__((aligned(64))), totals[MOST_ROWS][WIDTH];
#if defined(MPG_WITH_PAIRS) && defined(OF_PAIRS)
    if (add_block == add_block_of_pairs && valid == WIDTH && sums_turned(g->m, k)) {
      sum_few_pairs(g->m, a, b, k, chain, totals);
      for (int64_t r = 0; r < g->m; r++) finish_T(g, i * g->m + r, j, valid, totals[r]);
      continue;
    }
#endif
    memset(sums, 0, (size_t)g->m * sizeof *sums);
    memset(totals, 0, (size_t)g->m * sizeof *totals);
    for (int64_t p = 0; p < k; p += BLOCK) {
      uint32_t words[MPG_TURNED * WIDTH] __attribute__((aligned(64)));
      int64_t count = k - p < BLOCK ? k - p : BLOCK;
      prefetch((const char *)(b + WIDTH * (k + p))); /* the next group, in the order of memory */
#if defined(MPG_WITH_PAIRS) && defined(OF_PAIRS)
      if (add_block == add_block_of_pairs && g->m <= ROWS && valid == WIDTH && count == BLOCK) {
        add_few_pairs(g->m, a + p, k, b + p, k, sums);
        if ((p + BLOCK) % chain == 0 || p + BLOCK >= k) end_chain(g->m * WIDTH, sums[0], totals[0]);
        continue;
      }
#endif
      turn(b + p, k, valid, count, words);
      add_block(g->m, a + p, k, count, words, sums);
      if ((p + BLOCK) % chain == 0 || p + BLOCK >= k) end_chain(g->m * WIDTH, sums[0], totals[0]);
    }
    for (int64_t r = 0; r < g->m; r++) finish_T(g, i * g->m + r, j, valid, totals[r]);
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
  float sums[SUMS] __attribute__((aligned(64))), totals[SUMS];
  int64_t chain = g->k + STEPS;
  add_fn add = add_T;
#if defined(MPG_WITH_PAIRS) && defined(OF_PAIRS)
  if (in_pairs()) add = add_of_pairs, chain = chain_of_pairs(g->k);
#endif
  for (int64_t at = begin, count; at < end; at += count) {
    const int64_t i = at / blocks, block = at % blocks, j = block * COLUMNS;
    count = blocks - block < end - at ? blocks - block : end - at;
    if (count > together) count = together;
    const int64_t left = g->n - j, stride = count * COLUMNS, width = left < stride ? left : stride;
    const uint16_t *a = (const uint16_t *)g->a + i * g->m * g->k,
                   *b = (const uint16_t *)g->b + i * g->k * g->n + j;
    memset(sums, 0, (size_t)(g->m * stride) * sizeof *sums);
    memset(totals, 0, (size_t)(g->m * stride) * sizeof *totals);
    for (int64_t p = 0; p < g->k; p += STEPS) {
      for (int64_t r = 0; r < g->m; r += ROWS)
        add(g->m - r < ROWS ? (int)(g->m - r) : ROWS, g->k - p < STEPS ? (int)(g->k - p) : STEPS, g,
            a + r * g->k + p, b + p * g->n, width, stride, sums + r * stride);
      if ((p + STEPS) % chain == 0 || p + STEPS >= g->k) end_chain(g->m * stride, sums, totals);
    }
    for (int64_t r = 0; r < g->m; r++) finish_T(g, i * g->m + r, j, width, totals + r * stride);
  }
}

#undef NAME
#undef LOAD
#undef SPLIT
#undef WIDEN
#undef ROUND
#undef OF_PAIRS
