/* Panels of grouped products, for a computing type T. Has no include guard, since grouped.c
 * includes it once per type, after tiles.h. */
#define BLOCK_T (MPG_TILE_ROWS * NAME(NR)) /* elements of a tile */
static const mpg_dtype NAME(own_dtype) = sizeof(T) == 4 ? MPG_FLOAT32 : MPG_FLOAT64;

/* Multiplies a tile of mpg_tile_rows rows of A, which are `row` elements apart. */
static void NAME(row_tile)(int rows, int64_t k, const T *a, int64_t row, const T *b, T *tile,
                           int64_t stride, bool first) {
  enum { MIDDLE = 8 < MPG_TILE_ROWS ? 8 : MPG_TILE_ROWS };
#define TILE(rows) NAME(micro)(rows, 2, k, a, row, 1, b, tile, stride, first)
  if (rows == MPG_TILE_ROWS)
    TILE(MPG_TILE_ROWS);
  else if (rows == MIDDLE)
    TILE(MIDDLE);
  else
    TILE(4);
#undef TILE
}

/* Prefetches a part of the next strip of B, whose first element has index `at`. The addresses may
 * be invalid. */
static void NAME(prefetch)(const grouped *g, int64_t at, int64_t count, int64_t part,
                           int64_t parts) {
  int64_t size = sizeof(T), lines = g->dots ? NAME(NR) : count,
          bytes = (g->dots ? count : NAME(NR)) * size, step = line_of(g) * size,
          end = lines * (part + 1) / parts;
  const char *b = (const char *)g->b + at * size;
  for (int64_t i = lines * part / parts; i < end; i++)
    for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(b + i * step + byte, 0, 2);
}

/* Packs `count` rows of k of a strip of B, whose first element has index `at`. `left` columns
 * follow. */
static void NAME(pack_strip)(const grouped *g, int64_t at, int64_t left, int64_t count, T *wide,
                             T *packed) {
  enum { NR = NAME(NR) };
  int valid = left < NR ? (int)left : NR;
  int64_t lines = g->dots ? valid : count, length = g->dots ? count : valid, line = line_of(g);
  const T *b = (const T *)g->b + at;
  if (g->narrow) {
    for (int64_t i = 0; i < lines; i++)
      mpg_cpu_load_all(g->compute, g->dtype, g->b, at + i * line, length, wide + i * length);
    b = wide, line = length;
  }
  NAME(pack)(NAME(own_dtype), b, g->dots ? line : 1, g->dots ? 1 : line, valid, valid, NR, count,
             packed);
}

/* Computes a tile at the end of the rows or columns, in a buffer. */
static void NAME(edge_tile)(int rows, int64_t valid, int64_t columns, int64_t k, const T *a,
                            int64_t row, bool packed, const T *b, T *c, int64_t stride,
                            bool first) {
  enum { NR = NAME(NR) };
  T tile[BLOCK_T] __attribute__((aligned(64)));
  size_t bytes = (size_t)columns * sizeof(T);
  if (!first) memset(tile, 0, sizeof tile);
  for (int64_t r = 0; r < valid && !first; r++) memcpy(tile + r * NR, c + r * stride, bytes);
  if (packed)
    NAME(packed_tile)(rows, k, a, b, tile, NR, first);
  else
    NAME(row_tile)(rows, k, a, row, b, tile, NR, first);
  for (int64_t r = 0; r < valid; r++) memcpy(c + r * stride, tile + r * NR, bytes);
}

/* Computes a panel of the result. Strips of B are packed. Rows of A are read in place, and columns
 * are packed. */
static void NAME(panel)(const grouped *g, const panel *p, char *scratch) {
  enum { NR = NAME(NR) };
  T *a = (T *)(void *)scratch, *b = a + g->packed * g->most, *wide = b + NR * g->most,
    *c = wide + (g->narrow ? NR * g->most : 0);
  bool packed = g->outer;
  int64_t depth = packed ? p->depth : g->k, tiles = (p->rows + MPG_TILE_ROWS - 1) / MPG_TILE_ROWS,
          b_column = g->dots ? g->k : 1, b_step = g->dots ? 1 : g->n,
          first_b = (packed ? p->depth_first : p->group * g->k) * g->n + p->column * b_column;
  const T *rows = (const T *)g->a + (packed ? p->depth_first * g->m + p->row : p->row * g->k);
  T *to = g->narrow ? c : (T *)g->c + ((packed ? p->group * g->m : 0) + p->row) * g->n + p->column;
  int64_t stride = g->narrow ? g->strip : g->n;
  for (int64_t first = 0; first < depth || !first; first += g->most) {
    int64_t count = least(depth - first, g->most);
    if (packed)
      NAME(pack_rows)(NAME(own_dtype), rows + first * g->m, 1, g->m, p->rows, count, g->most, a);
    for (int64_t j = 0; j < p->columns; j += NR) {
      int64_t at = first_b + first * b_step + j * b_column, columns = least(p->columns - j, NR);
      NAME(pack_strip)(g, at, columns, count, wide, b);
      for (int64_t i = 0, done = 0; i < p->rows; done++) {
        int width = mpg_tile_rows(p->rows - i);
        int64_t valid = least(width, p->rows - i), row = g->k;
        const T *x = packed ? a + i * g->most : rows + i * g->k + first;
        if (tiles > 1) NAME(prefetch)(g, at + NR * b_column, count, done, tiles);
        if (!packed && valid < width) {
          memset(a, 0, (size_t)(width * g->most) * sizeof(T));
          for (int64_t r = 0; r < valid; r++)
            memcpy(a + r * g->most, x + r * g->k, (size_t)count * sizeof(T));
          x = a, row = g->most;
        }
        T *tile = to + i * stride + j;
        if (valid < width || columns < NR)
          NAME(edge_tile)(width, valid, columns, count, x, row, packed, b, tile, stride, !first);
        else if (packed)
          NAME(packed_tile)(width, count, x, b, tile, stride, !first);
        else
          NAME(row_tile)(width, count, x, row, b, tile, stride, !first);
        i += width;
      }
    }
  }
  if (g->narrow) store_panel(g, p, c);
}

static void NAME(panels)(void *context, int64_t begin, int64_t end) {
  const grouped *g = context;
  char *scratch = g->scratch + (size_t)omp_get_thread_num() * g->scratch_bytes;
  panel p;
  for (int64_t i = begin, group = -1; i < end; i++) {
    find_panel(g, i, &group, &p);
    NAME(panel)(g, &p, scratch);
  }
}

/* Returns the bytes of scratch memory that a thread needs. */
static size_t NAME(panel_bytes)(const grouped *g) {
  enum { NR = NAME(NR) };
  int64_t packed = (g->packed + NR) * g->most;
  return sizeof(T) * (size_t)(packed + (g->narrow ? NR * g->most + g->tallest * g->strip : 0));
}
#undef BLOCK_T
