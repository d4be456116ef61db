/* Tiles of grouped products, for a computing type T. Has no include guard, since grouped.c includes
 * it once per type, after lanes.h. */

/* --- Rows times a transposed matrix ----------------------------------------------------------- */
/* Computes ROWS x 4 inner products of k elements. Each one is summed in LANES partial sums, so its
 * bits depend on k only. Elements after the last whole vector come from the tails, which are padded
 * with zeros. */
static inline __attribute__((always_inline)) void NAME(dot_tile)(int rows, int64_t k, const T *a,
                                                                 int64_t lda, const T *const *b,
                                                                 const T *a_tails, const T *b_tails,
                                                                 T *c) {
  int64_t whole = k / LANES * LANES;
  const T *b0 = b[0], *b1 = b[1], *b2 = b[2], *b3 = b[3];
  V sum[DOT_ROWS][4];
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) MPG_UNROLL(4)
  for (int q = 0; q < 4; q++) sum[r][q] = V_SET(0);
  MPG_UNROLL(4)
  for (int64_t p = 0; p < whole; p += LANES) {
    V w0 = V_LOAD(b0 + p), w1 = V_LOAD(b1 + p), w2 = V_LOAD(b2 + p), w3 = V_LOAD(b3 + p);
    MPG_UNROLL(8)
    for (int r = 0; r < rows; r++) {
      V x = V_LOAD(a + r * lda + p);
      sum[r][0] = V_FMA(x, w0, sum[r][0]);
      sum[r][1] = V_FMA(x, w1, sum[r][1]);
      sum[r][2] = V_FMA(x, w2, sum[r][2]);
      sum[r][3] = V_FMA(x, w3, sum[r][3]);
    }
  }
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) {
    V x = V_LOAD(a_tails + r * LANES);
    MPG_UNROLL(4)
    for (int q = 0; q < 4; q++) sum[r][q] = V_FMA(x, V_LOAD(b_tails + q * LANES), sum[r][q]);
    V_SUMS(sum[r], c + r * PANEL_COLUMNS);
  }
}

/* Copies the last k % LANES elements of each row, padded with zeros. */
static void NAME(copy_tails)(const T *from, int64_t stride, int64_t rows, int64_t k, T *to) {
  int64_t whole = k / LANES * LANES;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t l = 0; l < LANES; l++)
      to[r * LANES + l] = whole + l < k ? from[r * stride + whole + l] : 0;
}

/* Multiplies a panel's rows of A by `columns` rows of the weight, which stay in the L1 cache.
 * Meanwhile prefetches `ahead` bytes from address `next`, the rows of the weight that follow. */
static void NAME(dot_columns)(const panel *p, int64_t k, int64_t columns, const T *a,
                              const T *a_tails, const T *const *b, const T *b_tails, T *c,
                              const char *next, int64_t ahead) {
#define TILE(count)                                                                       \
  NAME(dot_tile)(count, k, a + i * k, k, b + j, a_tails + i * LANES, b_tails + j * LANES, \
                 c + i * PANEL_COLUMNS + j)
  int64_t fetched = 0, tiles = (p->rows + DOT_ROWS - 1) / DOT_ROWS, step = ahead / tiles + 64;
  for (int64_t i = 0; i < p->rows; i += DOT_ROWS) {
    for (int64_t end = fetched + step; fetched < end; fetched += 64)
      __builtin_prefetch(next + fetched, 0, 2);
    for (int64_t j = 0; j < columns; j += 4) switch (p->rows - i) {
        case 1: TILE(1); break;
        case 2: TILE(2); break;
        case 3: TILE(3); break;
        case 4: TILE(4); break;
        default: TILE(DOT_ROWS); break;
      }
  }
#undef TILE
}

/* Multiplies the rows of a panel by rows of a weight. */
static void NAME(dot_panel)(const grouped *g, const panel *p, char *scratch) {
  int64_t k = g->k, block = g->block;
  T *a_tails = (T *)(void *)scratch, *b_tails = a_tails + g->tallest * LANES,
    *c = b_tails + PANEL_COLUMNS * LANES, *wide = c + g->tallest * PANEL_COLUMNS;
  const T *a = (const T *)g->a + p->row * k, *b[PANEL_COLUMNS];
  NAME(copy_tails)(a, k, p->rows, k, a_tails);
  for (int64_t j = 0; j < p->columns; j += block) {
    /* The last columns are repeated to fill a tile. */
    int64_t columns = least(block, (p->columns - j + 3) / 4 * 4);
    for (int64_t q = 0; q < columns; q++) {
      int64_t at = (p->group * g->n + p->column + least(j + q, p->columns - 1)) * k;
      b[q] = (const T *)g->b + at;
      if (g->narrow) {
        mpg_cpu_load_all(g->compute, g->dtype, g->b, at, k, wide + q * k);
        b[q] = wide + q * k;
      }
      NAME(copy_tails)(b[q], 0, 1, k, b_tails + q * LANES);
    }
    int64_t row = k * (int64_t)mpg_dtype_size(g->dtype),
            after = (p->group * g->n + p->column + j + columns) * row;
    bool whole = p->rows > DOT_ROWS && after + columns * row <= g->b_bytes;
    NAME(dot_columns)(p, k, columns, a, a_tails, b, b_tails, c + j, (const char *)g->b + after,
                      whole ? columns * row : 0);
  }
  store_panel(g, p, c, PANEL_COLUMNS, sizeof(T));
}

/* --- Products summed one element of k at a time ----------------------------------------------- */
/* Adds to a tile of `rows` x 2 vectors: c[r] += sum over p of a[r * a_row + p * a_step] * b[p]. */
static inline __attribute__((always_inline)) void NAME(step_tile)(int rows, int64_t k, const T *a,
                                                                  int64_t a_row, int64_t a_step,
                                                                  const T *b, T *c) {
  V sum[STEP_ROWS][2];
  MPG_UNROLL(12)
  for (int r = 0; r < rows; r++) {
    sum[r][0] = V_LOAD(c + r * 2 * LANES);
    sum[r][1] = V_LOAD(c + r * 2 * LANES + LANES);
  }
  for (int64_t p = 0; p < k; p++, a += a_step, b += 2 * LANES) {
    V b0 = V_LOAD(b), b1 = V_LOAD(b + LANES);
    MPG_UNROLL(12)
    for (int r = 0; r < rows; r++) {
      V x = V_SET(a[r * a_row]);
      sum[r][0] = V_FMA(x, b0, sum[r][0]);
      sum[r][1] = V_FMA(x, b1, sum[r][1]);
    }
  }
  MPG_UNROLL(12)
  for (int r = 0; r < rows; r++) {
    V_STORE(c + r * 2 * LANES, sum[r][0]);
    V_STORE(c + r * 2 * LANES + LANES, sum[r][1]);
  }
}

/* Copies 2 * LANES columns of rows [first, first + count) of B, padded with zeros. */
static void NAME(pack)(const grouped *g, int64_t at, int64_t ldb, int64_t count, int64_t columns,
                       T *to) {
  for (int64_t p = 0; p < count; p++, at += ldb, to += 2 * LANES) {
    if (g->narrow) {
      mpg_cpu_load_all(g->compute, g->dtype, g->b, at, columns, to);
    } else if (columns == 2 * LANES) {
      const T *from = (const T *)g->b + at;
      V first = V_LOAD(from), second = V_LOAD(from + LANES);
      V_STORE(to, first);
      V_STORE(to + LANES, second);
    } else {
      memcpy(to, (const T *)g->b + at, (size_t)columns * sizeof(T));
    }
    for (int64_t l = columns; l < 2 * LANES; l++) to[l] = 0;
  }
}

/* Multiplies rows by a matrix (k, n), or adds up the outer products of the rows of a group. */
static void NAME(step_panel)(const grouped *g, const panel *p, char *scratch) {
  T *packed = (T *)(void *)scratch, *c = packed + STEP_DEPTH * 2 * LANES;
  int64_t depth = g->outer ? p->depth : g->k, a_row = g->outer ? 1 : g->k,
          a_step = g->outer ? g->m : 1;
  const T *a = (const T *)g->a + (g->outer ? p->depth_first * g->m + p->row : p->row * g->k);
  int64_t b = (g->outer ? p->depth_first : p->group * g->k) * g->n + p->column;
  memset(c, 0, (size_t)(p->rows * 2 * LANES) * sizeof(T));
  for (int64_t first = 0; first < depth; first += STEP_DEPTH) {
    int64_t count = depth - first < STEP_DEPTH ? depth - first : STEP_DEPTH;
    NAME(pack)(g, b + first * g->n, g->n, count, p->columns, packed);
    const T *x = a + first * a_step;
    int64_t i = 0;
    for (; i + STEP_ROWS <= p->rows; i += STEP_ROWS)
      NAME(step_tile)(STEP_ROWS, count, x + i * a_row, a_row, a_step, packed, c + i * 2 * LANES);
    for (; i + 4 <= p->rows; i += 4)
      NAME(step_tile)(4, count, x + i * a_row, a_row, a_step, packed, c + i * 2 * LANES);
    for (; i < p->rows; i++)
      NAME(step_tile)(1, count, x + i * a_row, a_row, a_step, packed, c + i * 2 * LANES);
  }
  store_panel(g, p, c, 2 * LANES, sizeof(T));
}

static void NAME(panels)(void *context, int64_t begin, int64_t end) {
  const grouped *g = context;
  char *scratch = g->scratch + (size_t)omp_get_thread_num() * g->scratch_bytes;
  panel p;
  for (int64_t i = begin, group = -1; i < end; i++) {
    find_panel(g, i, &group, &p);
    (g->dots ? NAME(dot_panel) : NAME(step_panel))(g, &p, scratch);
  }
}

/* Returns the bytes of scratch memory that a thread needs. */
static size_t NAME(panel_bytes)(const grouped *g) {
  int64_t dots = (g->tallest + PANEL_COLUMNS) * LANES + g->tallest * PANEL_COLUMNS +
                 (g->narrow ? g->block * g->k : 0);
  return sizeof(T) * (size_t)(g->dots ? dots : (STEP_DEPTH + g->tallest) * 2 * LANES);
}
