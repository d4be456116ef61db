/* Tiles of blocked matrix products: packing, and the microkernel. Included after lanes.h, once per
 * computing type, with
 *   T            computing type
 *   NAME(x)      name of x in this instance, which is spelled x_T here
 *   MPG_TILE_SOURCES(PACK)
 *                PACK(S, CONVERT) for each dtype whose elements are converted to T
 * Every element of a result is summed over k in ascending order, one fma per step, in every tile,
 * so rounding depends on k only. Has no include guard. */
#define NR_T NAME(NR)
#define micro_T NAME(micro)
#define pack_T NAME(pack)
#define copy_lines_T NAME(copy_lines)
#define turn_lines_T NAME(turn_lines)
#define packed_tile_T NAME(packed_tile)
#define pack_rows_T NAME(pack_rows)

#ifndef MPG_TILE_ROWS
/* Most rows of a tile. Tiles at the end of a block have 8 or 4 rows. */
#if defined(__AVX512F__)
#define MPG_TILE_ROWS 12
#elif defined(__AVX__)
#define MPG_TILE_ROWS 6
#else
#define MPG_TILE_ROWS 4
#endif
/* Returns the number of rows of the tile at the start of `left` rows. */
static inline int mpg_tile_rows(int64_t left) {
  int rows = left > 8 ? MPG_TILE_ROWS : left > 4 ? 8 : 4;
  return rows < MPG_TILE_ROWS ? rows : MPG_TILE_ROWS;
}
#endif

enum { NR_T = 2 * LANES }; /* columns of a tile */

/* Microkernel: multiplies `rows` rows of A by k groups of `vectors` * LANES packed elements of B,
 * into a tile. Element p of row r of A is at r * row + p * step. Starts at 0 if `first`, else adds
 * to the tile. */
static inline __attribute__((always_inline)) void micro_T(int rows, int vectors, int64_t k,
                                                          const T *a, int64_t row, int64_t step,
                                                          const T *b, T *tile, int64_t stride,
                                                          bool first) {
  V sum[MPG_TILE_ROWS][2];
  MPG_UNROLL(16)
  for (int r = 0; r < rows; r++) {
    sum[r][0] = first ? V_SET(0) : V_LOAD(tile + r * stride);
    if (vectors > 1) sum[r][1] = first ? V_SET(0) : V_LOAD(tile + r * stride + LANES);
  }
  for (int64_t p = 0; p < k; p++) {
    V b0 = V_LOAD(b), b1 = vectors > 1 ? V_LOAD(b + LANES) : b0;
    b += vectors * LANES;
    MPG_UNROLL(16)
    for (int r = 0; r < rows; r++) {
      V x = V_SET(a[r * row]);
      sum[r][0] = V_FMA(x, b0, sum[r][0]);
      if (vectors > 1) sum[r][1] = V_FMA(x, b1, sum[r][1]);
    }
    a += step;
  }
  MPG_UNROLL(16)
  for (int r = 0; r < rows; r++) {
    V_STORE(tile + r * stride, sum[r][0]);
    if (vectors > 1) V_STORE(tile + r * stride + LANES, sum[r][1]);
  }
}

/* Multiplies a tile of mpg_tile_rows rows of A, which are packed by pack_rows. */
static void packed_tile_T(int rows, int64_t k, const T *a, const T *b, T *tile, int64_t stride,
                          bool first) {
  enum { MIDDLE = 8 < MPG_TILE_ROWS ? 8 : MPG_TILE_ROWS };
  if (rows == MPG_TILE_ROWS)
    micro_T(MPG_TILE_ROWS, 2, k, a, 1, MPG_TILE_ROWS, b, tile, stride, first);
  else if (rows == MIDDLE)
    micro_T(MIDDLE, 2, k, a, 1, MIDDLE, b, tile, stride, first);
  else
    micro_T(4, 2, k, a, 1, 4, b, tile, stride, first);
}

/* Packs lines of adjacent elements, without conversion: element i of line p becomes element i of
 * group p. */
static inline __attribute__((always_inline)) void copy_lines_T(const T *from, int64_t step,
                                                               int width, int64_t k, T *packed) {
  for (int64_t p = 0; p < k; p++) memcpy(packed + p * width, from + p * step, width * sizeof(T));
}

/* Packs `width` lines of k adjacent elements, without conversion: element p of line i becomes
 * element i of group p. Reads MPG_TURNED lines at a time, and prefetches the lines that follow. */
static void turn_lines_T(const T *from, int64_t row, int width, int64_t k, T *packed) {
  int64_t whole = k / MPG_TURNED * MPG_TURNED, size = sizeof(T), at = 0;
  const char *next = (const char *)(from + width * row);
  T part[MPG_TURNED][MPG_TURNED];
  for (int64_t p = 0; p < whole; p += MPG_TURNED)
    for (int i = 0; i < width; i += MPG_TURNED) {
      int lines = width - i < MPG_TURNED ? width - i : MPG_TURNED;
      bool direct = lines == MPG_TURNED;
      const char *in = (const char *)(from + i * row + p);
      char *out = (char *)(direct ? packed + p * width + i : part[0]);
      for (int line = 0; line < MPG_TURNED; line++) __builtin_prefetch(next + at + 64 * line, 0, 2);
      if ((at += 64 * MPG_TURNED) >= k * size) at = 0, next += row * size;
      if (size == 4)
        mpg_turn_item4(in, out, row * size, (direct ? width : MPG_TURNED) * size);
      else
        mpg_turn_item8(in, out, row * size, (direct ? width : MPG_TURNED) * size);
      for (int r = 0; r < MPG_TURNED && !direct; r++)
        memcpy(packed + (p + r) * width + i, part[r], (size_t)lines * sizeof(T));
    }
  for (int i = 0; i < width; i++)
    for (int64_t p = whole; p < k; p++) packed[p * width + i] = from[i * row + p];
}

/* Packs `width` rows and k columns of a matrix whose element (i, p) is at i * row + p * step. Only
 * `valid` rows exist; the rest become zeros. `readable` rows, at least `valid`, may be read. */
static void pack_T(mpg_dtype dtype, const void *source, int64_t row, int64_t step, int valid,
                   int64_t readable, int width, int64_t k, T *packed) {
  bool direct = mpg_dtype_size(dtype) == sizeof(T);
  if (direct && row == 1 && valid == width) {
    if (width == NR_T)
      copy_lines_T(source, step, NR_T, k, packed);
    else if (width == MPG_TILE_ROWS)
      copy_lines_T(source, step, MPG_TILE_ROWS, k, packed);
    else
      copy_lines_T(source, step, width, k, packed);
    return;
  }
  if (direct && step == 1 && valid == width &&
      readable >= (width + MPG_TURNED - 1) / MPG_TURNED * MPG_TURNED) {
    turn_lines_T(source, row, width, k, packed);
    return;
  }
#define PACK(S, CONVERT)                                                                          \
  {                                                                                               \
    const S *s = source;                                                                          \
    if (row == 1 && valid == width)                                                               \
      for (int64_t p = 0; p < k; p++)                                                             \
        for (int i = 0; i < width; i++) packed[p * width + i] = CONVERT(s[p * step + i]);         \
    else if (step == 1 && valid == width)                                                         \
      /* Few columns are turned at a time, so that packed lines are still in the L1 cache when */ \
      /* their next element is written. */                                                        \
      for (int64_t p = 0; p < k; p += 8)                                                          \
        for (int i = 0; i < width; i++)                                                           \
          for (int64_t q = p; q < k && q < p + 8; q++)                                            \
            packed[q * width + i] = CONVERT(s[i * row + q]);                                      \
    else {                                                                                        \
      if (valid < width) memset(packed, 0, (size_t)(width * k) * sizeof(T));                      \
      for (int i = 0; i < valid; i++)                                                             \
        for (int64_t p = 0; p < k; p++) packed[p * width + i] = CONVERT(s[i * row + p * step]);   \
    }                                                                                             \
    break;                                                                                        \
  }
  switch (dtype) {
    MPG_TILE_SOURCES(PACK)
    default: MPG_ASSERT(!"packing: dtype");
  }
#undef PACK
}

/* Packs `rows` rows of A into tiles of mpg_tile_rows rows, `depth` * rows elements apart. */
static void pack_rows_T(mpg_dtype dtype, const void *source, int64_t row, int64_t step,
                        int64_t rows, int64_t k, int64_t depth, T *packed) {
  for (int64_t i = 0; i < rows;) {
    int64_t left = rows - i;
    int width = mpg_tile_rows(left);
    pack_T(dtype, (const char *)source + (size_t)(i * row) * mpg_dtype_size(dtype), row, step,
           left < width ? (int)left : width, left, width, k, packed + i * depth);
    i += width;
  }
}
