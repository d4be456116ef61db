/* The blocked matrix product in C, for one computing type. Included by gemm.c with
 *   T            computing type
 *   V, LANES     vector of T and its length
 *   V_LOAD, V_STORE, V_SET, V_FMA, V_SUMS
 *                vector operations (lanes.h)
 *   FMA(a, b, c) a * b + c for scalars
 *   NAME(x)      name of x in this instance, which is spelled x_T here
 * Packing converts elements to T, so half precision uses the same code. Every element of C is
 * summed over k in ascending order, one fma per step, in every tile, so rounding depends on k only.
 */

/* Each x_T below is NAME(x), the name of x in this instance. */
#define COLUMNS_T NAME(COLUMNS)
#define ROWS_T NAME(ROWS)
#define block_T NAME(block)
#define blocks_T NAME(blocks)
#define gemm_narrow_T NAME(gemm_narrow)
#define gemm_product_T NAME(gemm_product)
#define gemm_small_T NAME(gemm_small)
#define gemm_thin_T NAME(gemm_thin)
#define narrow_tile_T NAME(narrow_tile)
#define small_of_T NAME(small_of)
#define small_tile_T NAME(small_tile)
#define thin_tile_T NAME(thin_tile)

enum { ROWS_T = 96, COLUMNS_T = (int)sizeof(T) * NR_T };

/* Computes rows [i0, i1) x columns [j0, j1) of C, a block of at most ROWS x COLUMNS. */
static void block_T(const mpg_gemm *g, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
  enum { NR = NR_T, KC = 256 };
  T packed_a[ROWS_T * KC] __attribute__((aligned(64)));
  T packed_b[NR * KC] __attribute__((aligned(64)));
  T tile[ROWS_T * COLUMNS_T] __attribute__((aligned(64)));
  size_t size = mpg_dtype_size(g->dtype);
  int64_t a_row = g->transpose_a ? 1 : g->lda, a_step = g->transpose_a ? g->lda : 1;
  /* b_row and b_step are the strides of B's transpose */
  int64_t b_row = g->transpose_b ? g->ldb : 1, b_step = g->transpose_b ? 1 : g->ldb;
  int64_t stride = (j1 - j0 + NR - 1) / NR * NR;
  int rows = (int)(i1 - i0);
  for (int64_t p0 = 0; p0 < g->k || p0 == 0; p0 += KC) {
    int64_t kc = g->k - p0 < KC ? g->k - p0 : KC;
    pack_rows_T(g->dtype, (const char *)g->a + (size_t)(i0 * a_row + p0 * a_step) * size, a_row,
                a_step, rows, kc, KC, packed_a);
    for (int64_t j = j0; j < j1; j += NR) {
      int valid = j1 - j < NR ? (int)(j1 - j) : NR;
      pack_T(g->dtype, (const char *)g->b + (size_t)(j * b_row + p0 * b_step) * size, b_row, b_step,
             valid, g->n - j, NR, kc, packed_b);
      for (int i = 0; i < rows;) {
        int width = mpg_tile_rows(rows - i);
        packed_tile_T(width, kc, packed_a + i * KC, packed_b, tile + i * stride + (j - j0), stride,
                      p0 == 0);
        i += width;
      }
    }
  }
  T alpha = (T)g->alpha, beta = (T)g->beta;
#define FINISH(S, FROM, TO)                                                                \
  {                                                                                        \
    for (int i = 0; i < rows; i++) {                                                       \
      S *c = (S *)g->c + (i0 + i) * g->ldc + j0;                                           \
      const T *t = tile + i * stride;                                                      \
      if (beta == 0)                                                                       \
        for (int64_t j = 0; j < j1 - j0; j++) c[j] = TO(alpha * t[j]);                     \
      else                                                                                 \
        for (int64_t j = 0; j < j1 - j0; j++) c[j] = TO(alpha * t[j] + beta * FROM(c[j])); \
    }                                                                                      \
    break;                                                                                 \
  }
  switch (g->dtype) {
    MPG_GEMM_TARGETS(FINISH)
    default: MPG_ASSERT(!"gemm: dtype");
  }
#undef FINISH
}

/* Computes blocks [begin, end) of C, in row-major order. */
static void blocks_T(void *context, int64_t begin, int64_t end) {
  const mpg_gemm *g = context;
  int64_t across = (g->n + COLUMNS_T - 1) / COLUMNS_T;
  for (int64_t block = begin; block < end; block++) {
    int64_t i0 = block / across * ROWS_T, j0 = block % across * COLUMNS_T;
    int64_t i1 = g->m - i0 < ROWS_T ? g->m : i0 + ROWS_T,
            j1 = g->n - j0 < COLUMNS_T ? g->n : j0 + COLUMNS_T;
    block_T(g, i0, i1, j0, j1);
  }
}

static void gemm_product_T(const mpg_kernel_call *call, mpg_gemm *g) {
  int64_t down = (g->m + ROWS_T - 1) / ROWS_T, across = (g->n + COLUMNS_T - 1) / COLUMNS_T;
  if (down * across == 1)
    blocks_T(g, 0, 1);
  else
    mpg_cpu_parallel_for(call, down * across, 1, blocks_T, g);
}

/* Computes a small product, for which packing costs more than it saves, one row of C at a time.
 * Additions are in the same order as in the blocked product. Requires untransposed operands, alpha
 * 1 and beta 0. */
static inline __attribute__((always_inline)) void small_of_T(const mpg_gemm *g, int64_t n) {
  for (int64_t i = 0; i < g->m; i++) {
    const T *a = (const T *)g->a + i * g->lda, *b = g->b;
    T *c = (T *)g->c + i * g->ldc, sum[16];
    for (int64_t j = 0; j < n; j++) sum[j] = 0;
    for (int64_t p = 0; p < g->k; p++, b += g->ldb)
      for (int64_t j = 0; j < n; j++) sum[j] = FMA(a[p], b[j], sum[j]);
    for (int64_t j = 0; j < n; j++) c[j] = sum[j];
  }
}

/* Computes a tile of C: `rows` rows starting at row i, and one or two vectors of columns, at j0 and
 * j1. */
static inline __attribute__((always_inline)) void small_tile_T(int rows, int vectors,
                                                               const mpg_gemm *g, int64_t i,
                                                               int64_t j0, int64_t j1) {
  const T *a = (const T *)g->a + i * g->lda, *b = g->b;
  T *c = (T *)g->c + i * g->ldc;
  V sum[4][2];
  MPG_UNROLL(4)
  for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = V_SET(0);
  for (int64_t p = 0; p < g->k; p++, b += g->ldb) {
    V b0 = V_LOAD(b + j0), b1 = vectors > 1 ? V_LOAD(b + j1) : b0;
    MPG_UNROLL(4)
    for (int r = 0; r < rows; r++) {
      V x = V_SET(a[r * g->lda + p]);
      sum[r][0] = V_FMA(x, b0, sum[r][0]);
      if (vectors > 1) sum[r][1] = V_FMA(x, b1, sum[r][1]);
    }
  }
  MPG_UNROLL(4)
  for (int r = 0; r < rows; r++) {
    V_STORE(c + r * g->ldc + j0, sum[r][0]);
    if (vectors > 1) V_STORE(c + r * g->ldc + j1, sum[r][1]);
  }
}

static void gemm_small_T(const mpg_kernel_call *call, mpg_gemm *g) {
  (void)call;
  switch (g->n < LANES ? g->n : 0) {
    case 0: break;
    case 1: small_of_T(g, 1); return;
    case 4: small_of_T(g, 4); return;
    case 8: small_of_T(g, 8); return;
    default: small_of_T(g, g->n); return;
  }
  /* the last vector may overlap the previous one; both compute equal results */
  int64_t last = g->n - LANES;
  for (int64_t j = 0; j < g->n; j += 2 * LANES) {
    int64_t j0 = j < last ? j : last, j1 = j + LANES < last ? j + LANES : last, i = 0;
    bool both = j + LANES < g->n;
    for (; i + 4 <= g->m; i += 4)
      if (both)
        small_tile_T(4, 2, g, i, j0, j1);
      else
        small_tile_T(4, 1, g, i, j0, j1);
    for (; i < g->m; i++)
      if (both)
        small_tile_T(1, 2, g, i, j0, j1);
      else
        small_tile_T(1, 1, g, i, j0, j1);
  }
}

/* --- Products with few elements of C ---------------------------------------------------------- */
/* Computes a tile of C without packing. Used if C has at most MPG_GEMM_THIN tiles, since packing
 * would cost more than it saves. The sums stay in registers and are in the same order as in the
 * blocked product. */
static inline __attribute__((always_inline)) void thin_tile_T(int rows, int columns,
                                                              const mpg_gemm *g, int64_t i,
                                                              int64_t j) {
  int64_t a_row = g->transpose_a ? 1 : g->lda, a_step = g->transpose_a ? g->lda : 1;
  int64_t b_column = g->transpose_b ? g->ldb : 1, b_step = g->transpose_b ? 1 : g->ldb;
  const T *a = (const T *)g->a + i * a_row, *b = (const T *)g->b + j * b_column;
  T sum[4][4] = {{0}}, *c = (T *)g->c + i * g->ldc + j, alpha = (T)g->alpha, beta = (T)g->beta;
  for (int64_t p = 0; p < g->k; p++, a += a_step, b += b_step) MPG_UNROLL(4)
  for (int r = 0; r < rows; r++) MPG_UNROLL(4)
  for (int q = 0; q < columns; q++) sum[r][q] = FMA(a[r * a_row], b[q * b_column], sum[r][q]);
  for (int r = 0; r < rows; r++)
    for (int q = 0; q < columns; q++)
      c[r * g->ldc + q] =
          beta == 0 ? alpha * sum[r][q] : alpha * sum[r][q] + beta * c[r * g->ldc + q];
}

#define THIN_TILES(rows)                           \
  switch (g->n - j) {                              \
    case 1: thin_tile_T(rows, 1, g, i, j); break;  \
    case 2: thin_tile_T(rows, 2, g, i, j); break;  \
    case 3: thin_tile_T(rows, 3, g, i, j); break;  \
    default: thin_tile_T(rows, 4, g, i, j); break; \
  }                                                \
  break
static void gemm_thin_T(const mpg_kernel_call *call, mpg_gemm *g) {
  (void)call;
  for (int64_t i = 0; i < g->m; i += 4)
    for (int64_t j = 0; j < g->n; j += 4) switch (g->m - i) {
        case 1: THIN_TILES(1);
        case 2: THIN_TILES(2);
        case 3: THIN_TILES(3);
        default: THIN_TILES(4);
      }
}
#undef THIN_TILES

/* --- Products of few rows with a transposed matrix -------------------------------------------- */
/* Computes a tile of `rows` x `columns` elements of C = A x B^T, where A has at most NARROW rows,
 * as in a recurrent step or a layer with a small batch. B is read row by row, without packing.
 * Every element of C is summed over k in LANES partial sums, so rounding depends on k only. a_tails
 * and b_tails hold the last k % LANES elements of each row, padded with zeros. */
static inline __attribute__((always_inline)) void narrow_tile_T(int rows, int columns,
                                                                const mpg_gemm *g, int64_t i,
                                                                int64_t j, const T *a_tails,
                                                                const T *b_tails) {
  const T *a = (const T *)g->a + i * g->lda, *b = (const T *)g->b + j * g->ldb;
  int64_t whole = g->k / LANES * LANES;
  V sum[5][4], column[4];
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) MPG_UNROLL(4)
  for (int q = 0; q < columns; q++) sum[r][q] = V_SET(0);
  for (int64_t p = 0; p < whole; p += LANES) {
    MPG_UNROLL(4)
    for (int q = 0; q < columns; q++) column[q] = V_LOAD(b + q * g->ldb + p);
    MPG_UNROLL(8)
    for (int r = 0; r < rows; r++) {
      V x = V_LOAD(a + r * g->lda + p);
      MPG_UNROLL(4)
      for (int q = 0; q < columns; q++) sum[r][q] = V_FMA(x, column[q], sum[r][q]);
    }
  }
  T *c = (T *)g->c + i * g->ldc + j, alpha = (T)g->alpha, beta = (T)g->beta;
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) {
    V x = V_LOAD(a_tails + (i + r) * LANES);
    T sums[4];
    MPG_UNROLL(4)
    for (int q = 0; q < 4; q++)
      sum[r][q] = q < columns ? V_FMA(x, V_LOAD(b_tails + q * LANES), sum[r][q]) : V_SET(0);
    V_SUMS(sum[r], sums);
    for (int q = 0; q < columns; q++)
      c[r * g->ldc + q] = beta == 0 ? alpha * sums[q] : alpha * sums[q] + beta * c[r * g->ldc + q];
  }
}

/* Computes groups of 4 columns. The last group may have fewer. */
static void gemm_narrow_T(void *context, int64_t begin, int64_t end) {
  const mpg_gemm *g = context;
  T a_tails[MPG_GEMM_NARROW * LANES] __attribute__((aligned(64))) = {0},
                                     b_tails[4 * LANES] __attribute__((aligned(64))) = {0};
  int64_t whole = g->k / LANES * LANES;
  for (int64_t i = 0; i < g->m; i++)
    for (int64_t p = whole; p < g->k; p++)
      a_tails[i * LANES + p - whole] = ((const T *)g->a)[i * g->lda + p];
  for (int64_t group = begin; group < end; group++) {
    int64_t j = group * 4, columns = g->n - j < 4 ? g->n - j : 4;
    for (int64_t q = 0; q < columns; q++)
      for (int64_t p = whole; p < g->k; p++)
        b_tails[q * LANES + p - whole] = ((const T *)g->b)[(j + q) * g->ldb + p];
    int64_t i = 0;
    if (columns < 4) {
      for (int64_t q = 0; q < columns; q++)
        for (i = 0; i < g->m; i++) narrow_tile_T(1, 1, g, i, j + q, a_tails, b_tails + q * LANES);
      continue;
    }
    for (; i + 5 <= g->m; i += 5) narrow_tile_T(5, 4, g, i, j, a_tails, b_tails);
    switch (g->m - i) {
      case 4: narrow_tile_T(4, 4, g, i, j, a_tails, b_tails); break;
      case 3: narrow_tile_T(3, 4, g, i, j, a_tails, b_tails); break;
      case 2: narrow_tile_T(2, 4, g, i, j, a_tails, b_tails); break;
      case 1: narrow_tile_T(1, 4, g, i, j, a_tails, b_tails); break;
      default: break;
    }
  }
}

#undef T
#undef NAME
