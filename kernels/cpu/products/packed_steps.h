/* Products of a few rows with a matrix that stays the same over many steps: C (+)= A B, where A is
 * [m x k] and B is [k x n]. B is packed once into panels. Included by rnn_layers.h with T, NAME(x)
 * and the vectors of lanes.h defined. Float matrices may be packed as pairs of bfloat16
 * (packed_pairs.h); A is then rounded to bfloat16 before each product.
 *
 * B's columns are split into vectors of LANES. The columns may form G groups of `width` columns
 * (the gates of a recurrent layer). Vector v then holds columns of group v % G. One panel thus has
 * all gates of its columns, so the cell can run while the panel's part of C is in the cache. A
 * panel is at most PANEL vectors wide and packed as [k][vectors of the panel][LANES]. Every element
 * of C is summed over k in ascending order, with one fma per step (for pairs, see pairs_panel.h),
 * so rounding does not depend on panels or threads.
 */

/* Each x_T below is NAME(x), the name of x in this instance. */
#define PANEL_T NAME(PANEL)
#define STEP_DEPTH_T NAME(STEP_DEPTH)
#define STEP_ROWS_T NAME(STEP_ROWS)
#define first_vector_T NAME(first_vector)
#define pack_T NAME(pack)
#define pack_panels_T NAME(pack_panels)
#define packed_T NAME(packed)
#define packed_bytes_T NAME(packed_bytes)
#define packed_place_T NAME(packed_place)
#define packed_round_T NAME(packed_round)
#define packed_shape_T NAME(packed_shape)
#define packing_T NAME(packing)
#define panel_columns_T NAME(panel_columns)
#define panel_product_T NAME(panel_product)
#define step_fn_T NAME(step_fn)
#define step_fns_T NAME(step_fns)
#define step_tile_T NAME(step_tile)
#define vector_column_T NAME(vector_column)

#ifdef __AVX512F__
enum { STEP_ROWS_T = 6 };
#else
enum { STEP_ROWS_T = 2 };
#endif
/* STEP_DEPTH rows of a panel, and the elements of A that are multiplied by these rows, fit into the
 * smallest L1 caches. */
enum { PANEL_T = 4, STEP_DEPTH_T = 96 };

#if defined(MPG_WITH_PAIRS) && !defined(LANES_OF_DOUBLE)
#define WITH_PAIRS
#include "kernels/cpu/products/pairs_panel.h"
#endif

typedef struct packed_T {
  int64_t k, width; /* rows of B; columns per group */
  int groups;
  int64_t vectors, panels;
  T *data;       /* NULL if B is packed as pairs */
  mpg_pairs how; /* nonzero if B is packed as pairs */
#ifdef WITH_PAIRS
  mpg_pair *pairs, *rows; /* packed B; rounded rows of A */
#endif
} packed_T;

/* Returns a description of packed B, without allocating memory. `rounded` allows A to be rounded to
 * bfloat16. The values of B must then be exactly representable in bfloat16. */
static packed_T packed_shape_T(int64_t k, int64_t width, int groups, int num_threads,
                               bool rounded) {
  packed_T b = {.k = k, .width = width, .groups = groups};
#ifdef WITH_PAIRS
  if (rounded) b.how = mpg_cpu_pairs();
#else
  (void)rounded;
#endif
  int64_t blocks = (width + LANES - 1) / LANES;
  b.vectors = blocks * groups;
  if (groups > 1) {
    b.panels = blocks;
  } else { /* round up to a multiple of num_threads, at most one panel per vector */
    b.panels = (b.vectors + PANEL_T - 1) / PANEL_T;
    b.panels = (b.panels + num_threads - 1) / num_threads * num_threads;
    if (b.panels > b.vectors) b.panels = b.vectors;
  }
  return b;
}

/* Returns the size in bytes of packed B plus, with pairs, m rounded rows of A. */
static size_t packed_bytes_T(const packed_T *b, int64_t m) {
#ifdef WITH_PAIRS
  if (b->how)
    return (size_t)(pairs_depth(b->k) * b->vectors * LANES + pairs_row(b->k) * m) *
           sizeof(mpg_pair);
#else
  (void)m;
#endif
  return (size_t)(b->k * b->vectors * LANES) * sizeof(T);
}
/* Makes B use `buffer`, which has packed_bytes bytes and is 64-byte aligned. */
static void packed_place_T(packed_T *b, T *buffer) {
#ifdef WITH_PAIRS
  if (b->how) {
    b->pairs = (void *)buffer;
    b->rows = b->pairs + pairs_depth(b->k) * b->vectors * LANES;
    return;
  }
#endif
  b->data = buffer;
}

static int64_t first_vector_T(const packed_T *b, int64_t panel) {
  return panel * b->vectors / b->panels;
}
/* Sets [*begin, *end) to the columns of each group that a panel covers. */
static void panel_columns_T(const packed_T *b, int64_t panel, int64_t *begin, int64_t *end) {
  *begin = first_vector_T(b, panel) / b->groups * LANES;
  *end = first_vector_T(b, panel + 1) / b->groups * LANES;
  if (*end > b->width) *end = b->width;
}
/* Returns the first column of vector v in B, and sets *valid to the number of its valid lanes. */
static int64_t vector_column_T(const packed_T *b, int64_t v, int *valid) {
  int64_t j = v / b->groups * LANES, left = b->width - j;
  *valid = left < LANES ? (int)left : LANES;
  return v % b->groups * b->width + j;
}

/* Arguments of pack_panels. If `transposed`, the source is the transpose of B, [n x k]. */
typedef struct packing_T {
  const packed_T *b;
  const T *source;
  const uint16_t *half; /* source in bfloat16, if B is packed as pairs */
  bool transposed;
} packing_T;

static void pack_panels_T(void *context, int64_t begin, int64_t end) {
  const packing_T *p = context;
  const packed_T *b = p->b;
  const int64_t k = b->k, n = b->width * b->groups;
  for (int64_t panel = begin; panel < end; panel++) {
    int64_t from = first_vector_T(b, panel), to = first_vector_T(b, panel + 1),
            stride = (to - from) * LANES;
    T *data = b->data + from * LANES * k;
    for (int64_t v = from; v < to; v++, data += LANES) {
      int valid;
      int64_t column = vector_column_T(b, v, &valid);
      if (!p->transposed) {
        const T *source = p->source + column;
        for (int64_t i = 0; i < k; i++) {
          T *restrict to_row = data + i * stride;
          if (valid == LANES)
            memcpy(to_row, source + i * n, LANES * sizeof(T));
          else
            for (int l = 0; l < LANES; l++) to_row[l] = l < valid ? source[i * n + l] : 0;
        }
        continue;
      }
      const T *source = p->source + column * k; /* `valid` rows of k elements */
      for (int64_t i = 0; i < k; i += LANES) {  /* in tiles of LANES x LANES */
        int64_t depth = k - i < LANES ? k - i : LANES;
        for (int64_t d = 0; d < depth; d++) {
          T *restrict to_row = data + (i + d) * stride;
          const T *restrict from_column = source + i + d;
          if (valid == LANES)
            for (int l = 0; l < LANES; l++) to_row[l] = from_column[l * k];
          else
            for (int l = 0; l < LANES; l++) to_row[l] = l < valid ? from_column[l * k] : 0;
        }
      }
    }
  }
}

#ifdef WITH_PAIRS
#include "kernels/cpu/products/packed_pairs.h"
#endif

static void pack_T(const mpg_kernel_call *call, const packed_T *b, const T *source,
                   const uint16_t *half, bool transposed) {
  packing_T p = {b, source, half, transposed};
  mpg_range_fn body = pack_panels_T;
#ifdef WITH_PAIRS
  if (b->how) body = pack_pairs;
#endif
  mpg_cpu_parallel_for(call, b->panels, 1 + 16384 / (b->k * LANES), body, &p);
}

/* Rounds m rows of A to bfloat16 if B is packed as pairs. Must be called before the panels of a
 * product are computed. */
static void packed_round_T(const mpg_kernel_call *call, const packed_T *b, int64_t m, const T *a,
                           int64_t lda) {
#ifdef WITH_PAIRS
  if (b->how) {
    rounding p = {b, a, lda};
    mpg_cpu_parallel_for(call, m, 1 + 32768 / (b->k + 1), round_rows, &p);
  }
#else
  (void)call, (void)b, (void)m, (void)a, (void)lda;
#endif
}

/* Computes `rows` rows of C from k columns of A and k rows of a panel that is `width` vectors wide.
 * Starts at 0 if `first`, else adds to C. `ahead` is memory to prefetch. */
static inline __attribute__((always_inline)) void step_tile_T(const int rows, const int width,
                                                              int64_t k, const T *a, int64_t lda,
                                                              const T *b, const T *ahead,
                                                              T *const *c, int64_t ldc,
                                                              const int *valid, bool first) {
  V sum[STEP_ROWS_T][PANEL_T];
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) MPG_UNROLL(8)
  for (int v = 0; v < width; v++) {
    const T *from = c[v] + r * ldc;
    if (first) {
      sum[r][v] = V_SET(0);
    } else if (__builtin_expect(valid[v] == LANES, 1)) {
      sum[r][v] = V_LOAD(from);
    } else {
      T part[LANES] = {0};
      memcpy(part, from, (size_t)valid[v] * sizeof(T));
      sum[r][v] = V_LOAD(part);
    }
  }
  for (int64_t p = 0; p < k; p++) {
    V row[PANEL_T];
    MPG_UNROLL(8)
    for (int v = 0; v < width; v++) row[v] = V_LOAD(b + v * LANES);
    b += width * LANES;
    __builtin_prefetch(ahead, 0, 2);
    ahead += 64 / sizeof(T);
    MPG_UNROLL(8)
    for (int r = 0; r < rows; r++) {
      V x = V_SET(a[r * lda + p]);
      MPG_UNROLL(8)
      for (int v = 0; v < width; v++) sum[r][v] = V_FMA(x, row[v], sum[r][v]);
    }
  }
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) MPG_UNROLL(8)
  for (int v = 0; v < width; v++) {
    T *to = c[v] + r * ldc;
    if (__builtin_expect(valid[v] == LANES, 1)) {
      V_STORE(to, sum[r][v]);
    } else {
      T part[LANES];
      V_STORE(part, sum[r][v]);
      memcpy(to, part, (size_t)valid[v] * sizeof(T));
    }
  }
}

#define STEP_TILE(ROWS, WIDTH)                                                            \
  static void NAME(step_##ROWS##x##WIDTH)(int64_t k, const T *a, int64_t lda, const T *b, \
                                          const T *ahead, T *const *c, int64_t ldc,       \
                                          const int *valid, bool first) {                 \
    step_tile_T(ROWS, WIDTH, k, a, lda, b, ahead, c, ldc, valid, first);                  \
  }
#define STEP_TILES(ROWS) STEP_TILE(ROWS, 1) STEP_TILE(ROWS, 2) STEP_TILE(ROWS, 3) STEP_TILE(ROWS, 4)
STEP_TILES(1)
STEP_TILES(2)
#ifdef __AVX512F__
STEP_TILES(3)
STEP_TILES(4)
STEP_TILES(5)
STEP_TILES(6)
#endif
#undef STEP_TILES
#undef STEP_TILE

typedef void (*step_fn_T)(int64_t k, const T *a, int64_t lda, const T *b, const T *ahead,
                          T *const *c, int64_t ldc, const int *valid, bool first);
#define STEP_ROW(ROWS) \
  {NAME(step_##ROWS##x1), NAME(step_##ROWS##x2), NAME(step_##ROWS##x3), NAME(step_##ROWS##x4)}
static const step_fn_T step_fns_T[STEP_ROWS_T][PANEL_T] = {
    STEP_ROW(1), STEP_ROW(2),
#ifdef __AVX512F__
    STEP_ROW(3), STEP_ROW(4), STEP_ROW(5), STEP_ROW(6),
#endif
};
#undef STEP_ROW

/* Computes the columns of C that belong to one panel. C is [m x groups * width] with row stride
 * ldc. Accumulates into C if `add`. */
static void panel_product_T(const packed_T *b, int64_t panel, int64_t m, const T *a, int64_t lda,
                            T *c, int64_t ldc, bool add) {
#ifdef WITH_PAIRS
  if (b->how) {
    product_of_pairs(b, panel, m, c, ldc, add);
    return;
  }
#endif
  int64_t from = first_vector_T(b, panel), to = first_vector_T(b, panel + 1);
  int width = (int)(to - from), valid[PANEL_T];
  int64_t column[PANEL_T];
  for (int v = 0; v < width; v++) column[v] = vector_column_T(b, from + v, &valid[v]);
  const int64_t k = b->k, start = from * LANES * k, line = 64 / (int64_t)sizeof(T);
  int64_t blocks = (m + STEP_ROWS_T - 1) / STEP_ROWS_T;
  for (int64_t p = 0; p < k; p += STEP_DEPTH_T) {
    int64_t depth = k - p < STEP_DEPTH_T ? k - p : STEP_DEPTH_T;
    int64_t rows = start + p * width * LANES, ahead = rows + depth * width * LANES;
    for (int64_t i = 0; i < blocks; i++) {
      int64_t row = i * m / blocks, count = (i + 1) * m / blocks - row;
      T *target[PANEL_T];
      for (int v = 0; v < width; v++) target[v] = c + row * ldc + column[v];
      step_fns_T[count - 1][width - 1](depth, a + row * lda + p, lda, b->data + rows,
                                       b->data + ahead + i * depth * line, target, ldc, valid,
                                       p == 0 && !add);
    }
  }
}
#undef WITH_PAIRS
