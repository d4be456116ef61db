/* Strided copies between layouts. */
#include "kernels/cpu/array/move.h"

#include <string.h>

#include "kernels/cpu/array/turn.h"

enum { GRAIN_BYTES = 32768, TILE = MPG_TURNED, SHORT = 8 };

/* A move as a loop over outer dimensions. Each iteration moves one inner row, or transposes one
 * plane, in one call. Strides, steps and item sizes are in bytes. */
typedef struct plan {
  int ndim; /* outer dimensions */
  int64_t dims[MPG_MOVE_NDIM], in_strides[MPG_MOVE_NDIM], out_strides[MPG_MOVE_NDIM];
  int64_t count, in_step, out_step; /* items in the inner row; their strides */
  int64_t item;
  /* For transposes and short rows: the number of rows that one call moves, and their strides. In a
   * transpose, the rows are adjacent in the input (row_in == item). */
  int64_t rows, row_in, row_out;
  bool short_rows;
  int64_t spread; /* number of adjacent items that are each repeated `count` times; 0 if none */
  const char *in;
  char *out;
} plan;

#define ROW(type)                                                                                  \
  static void row_##type(const char *in, char *out, int64_t count, int64_t in_step,                \
                         int64_t out_step) {                                                       \
    if (out_step == (int64_t)sizeof(type)) {                                                       \
      type *target = (type *)(void *)out;                                                          \
      if (in_step == 0) {                                                                          \
        type value = *(const type *)(const void *)in;                                              \
        for (int64_t i = 0; i < count; i++) target[i] = value;                                     \
      } else if (in_step == -(int64_t)sizeof(type)) {                                              \
        const type *source = (const type *)(const void *)in;                                       \
        for (int64_t i = 0; i < count; i++) target[i] = source[-i];                                \
      } else {                                                                                     \
        for (int64_t i = 0; i < count; i++)                                                        \
          target[i] = *(const type *)(const void *)(in + i * in_step);                             \
      }                                                                                            \
    } else {                                                                                       \
      for (int64_t i = 0; i < count; i++)                                                          \
        *(type *)(void *)(out + i * out_step) = *(const type *)(const void *)(in + i * in_step);   \
    }                                                                                              \
  }                                                                                                \
  __attribute__((always_inline)) static inline void spread_##type##_of(const type *in, type *out,  \
                                                                       int64_t n, int64_t times) { \
    for (int64_t i = 0; i < n; i++)                                                                \
      for (int64_t k = 0; k < times; k++) out[i * times + k] = in[i];                              \
  }                                                                                                \
  static void spread_##type(const char *in, char *out, int64_t n, int64_t times) {                 \
    const type *source = (const type *)(const void *)in;                                           \
    type *target = (type *)(void *)out;                                                            \
    switch (times) {                                                                               \
      case 2: spread_##type##_of(source, target, n, 2); return;                                    \
      case 3: spread_##type##_of(source, target, n, 3); return;                                    \
      case 4: spread_##type##_of(source, target, n, 4); return;                                    \
      default: spread_##type##_of(source, target, n, times); return;                               \
    }                                                                                              \
  }                                                                                                \
  __attribute__((always_inline)) static inline void short_##type##_of(                             \
      const char *in, char *out, int64_t rows, int64_t row_in, int64_t row_out, int64_t count,     \
      int64_t in_step) {                                                                           \
    for (int64_t r = 0; r < rows; r++, in += row_in, out += row_out)                               \
      for (int64_t c = 0; c < count; c++)                                                          \
        ((type *)(void *)out)[c] = *(const type *)(const void *)(in + c * in_step);                \
  }                                                                                                \
  /* Moves rows of at most SHORT elements. A result row is contiguous. */                          \
  static void short_##type(const char *in, char *out, int64_t rows, int64_t row_in,                \
                           int64_t row_out, int64_t count, int64_t in_step) {                      \
    switch (count) {                                                                               \
      case 2: short_##type##_of(in, out, rows, row_in, row_out, 2, in_step); return;               \
      case 3: short_##type##_of(in, out, rows, row_in, row_out, 3, in_step); return;               \
      case 4: short_##type##_of(in, out, rows, row_in, row_out, 4, in_step); return;               \
      default: short_##type##_of(in, out, rows, row_in, row_out, count, in_step); return;          \
    }                                                                                              \
  }                                                                                                \
  /* Transposes a tile: item c of result row r is item r of input line c. */                       \
  static void tile_##type(const char *in, char *out, int64_t rows, int64_t count, int64_t in_step, \
                          int64_t row_out) {                                                       \
    if (rows == TILE && count == TILE) {                                                           \
      mpg_turn_##type(in, out, in_step, row_out);                                                  \
      return;                                                                                      \
    }                                                                                              \
    for (int64_t r = 0; r < rows; r++)                                                             \
      for (int64_t c = 0; c < count; c++)                                                          \
        ((type *)(void *)(out + r * row_out))[c] =                                                 \
            ((const type *)(const void *)(in + c * in_step))[r];                                   \
  }
ROW(item1)
ROW(item2)
ROW(item4)
ROW(item8)
ROW(item16)
#undef ROW

/* Moves rows whose items have three elements, such as pixels with three channels. */
#define TRIPLES(size)                                                                           \
  static void row_triple##size(const char *in, char *out, int64_t count, int64_t in_step,       \
                               int64_t out_step) {                                              \
    for (int64_t i = 0; i < count; i++) memcpy(out + i * out_step, in + i * in_step, 3 * size); \
  }
TRIPLES(1)
TRIPLES(2)
TRIPLES(4)
#undef TRIPLES

static void move_row(int64_t item, const char *in, char *out, int64_t count, int64_t in_step,
                     int64_t out_step) {
  switch (item) {
    case 1: row_item1(in, out, count, in_step, out_step); return;
    case 2: row_item2(in, out, count, in_step, out_step); return;
    case 4: row_item4(in, out, count, in_step, out_step); return;
    case 8: row_item8(in, out, count, in_step, out_step); return;
    case 16: row_item16(in, out, count, in_step, out_step); return;
    case 3: row_triple1(in, out, count, in_step, out_step); return;
    case 6: row_triple2(in, out, count, in_step, out_step); return;
    case 12: row_triple4(in, out, count, in_step, out_step); return;
    default:
      for (int64_t i = 0; i < count; i++)
        mpg_copy_run(out + i * out_step, in + i * in_step, (size_t)item);
  }
}

static void move_tile(int64_t item, const char *in, char *out, int64_t rows, int64_t count,
                      int64_t in_step, int64_t row_out) {
  switch (item) {
    case 1: tile_item1(in, out, rows, count, in_step, row_out); return;
    case 2: tile_item2(in, out, rows, count, in_step, row_out); return;
    case 4: tile_item4(in, out, rows, count, in_step, row_out); return;
    case 8: tile_item8(in, out, rows, count, in_step, row_out); return;
    default: tile_item16(in, out, rows, count, in_step, row_out); return;
  }
}

static void move_short(int64_t item, const char *in, char *out, int64_t rows, int64_t row_in,
                       int64_t row_out, int64_t count, int64_t in_step) {
  switch (item) {
    case 1: short_item1(in, out, rows, row_in, row_out, count, in_step); return;
    case 2: short_item2(in, out, rows, row_in, row_out, count, in_step); return;
    case 4: short_item4(in, out, rows, row_in, row_out, count, in_step); return;
    case 8: short_item8(in, out, rows, row_in, row_out, count, in_step); return;
    default: short_item16(in, out, rows, row_in, row_out, count, in_step); return;
  }
}

static void spread(int64_t item, const char *in, char *out, int64_t n, int64_t times) {
  switch (item) {
    case 1: spread_item1(in, out, n, times); return;
    case 2: spread_item2(in, out, n, times); return;
    case 4: spread_item4(in, out, n, times); return;
    case 8: spread_item8(in, out, n, times); return;
    default: spread_item16(in, out, n, times); return;
  }
}

/* Executes iterations [begin, end) of the loop over the outer dimensions. */
static void run_plan(void *context, int64_t begin, int64_t end) {
  const plan *p = context;
  int64_t index[MPG_MOVE_NDIM], rest = begin;
  const char *in = p->in;
  char *out = p->out;
  for (int i = p->ndim - 1; i >= 0; i--) {
    index[i] = rest % p->dims[i];
    rest /= p->dims[i];
    in += index[i] * p->in_strides[i];
    out += index[i] * p->out_strides[i];
  }
  for (int64_t unit = begin; unit < end; unit++) {
    if (p->spread) {
      spread(p->item, in, out, p->spread, p->count);
    } else if (p->short_rows) {
      move_short(p->item, in, out, p->rows, p->row_in, p->row_out, p->count, p->in_step);
    } else if (p->rows == 0) {
      move_row(p->item, in, out, p->count, p->in_step, p->out_step);
    } else {
      for (int64_t c = 0; c < p->count; c += TILE)
        for (int64_t r = 0; r < p->rows; r += TILE)
          move_tile(p->item, in + c * p->in_step + r * p->row_in,
                    out + c * p->out_step + r * p->row_out, p->rows - r < TILE ? p->rows - r : TILE,
                    p->count - c < TILE ? p->count - c : TILE, p->in_step, p->row_out);
    }
    for (int i = p->ndim - 1; i >= 0; i--) {
      in += p->in_strides[i];
      out += p->out_strides[i];
      if (++index[i] < p->dims[i]) break;
      in -= p->dims[i] * p->in_strides[i];
      out -= p->dims[i] * p->out_strides[i];
      index[i] = 0;
    }
  }
}

/* Splits a dimension of *size elements into pieces of `piece` elements, by adding an outer
 * dimension that can be divided among threads. Does nothing unless `piece` divides *size. */
static void split_dim(plan *p, int64_t *size, int64_t in_step, int64_t out_step, int64_t piece) {
  if (piece >= *size || *size % piece != 0 || p->ndim >= MPG_MOVE_NDIM) return;
  p->dims[p->ndim] = *size / piece;
  p->in_strides[p->ndim] = in_step * piece;
  p->out_strides[p->ndim++] = out_step * piece;
  *size = piece;
}

/* Splits a long item into pieces, by adding outer dimensions that can be divided among threads. */
static void cut_item(plan *p) {
  int64_t piece = GRAIN_BYTES;
  if (p->item <= piece || p->ndim + 2 > MPG_MOVE_NDIM) return;
  while (piece >= 1024 && p->item % piece != 0) piece /= 2;
  if (piece < 1024) return;
  p->dims[p->ndim] = p->count;
  p->in_strides[p->ndim] = p->in_step;
  p->out_strides[p->ndim++] = p->out_step;
  p->count = 1;
  split_dim(p, &p->item, 1, 1, piece);
}

typedef struct copy_context {
  const char *in;
  char *out;
} copy_context;
static void copy_bytes(void *context, int64_t begin, int64_t end) {
  const copy_context *copy = context;
  memcpy(copy->out + begin, copy->in + begin, (size_t)(end - begin));
}

void mpg_cpu_move(const mpg_kernel_call *call, const mpg_move *move, const void *in, void *out,
                  size_t item_) {
  int64_t item = (int64_t)item_;
  plan p = {.in = in, .out = out};
  mpg_move merged = {0};
  if (!mpg_move_merge(move, &item, &merged)) return;
  p.ndim = merged.ndim;
  memcpy(p.dims, merged.dims, sizeof p.dims);
  memcpy(p.in_strides, merged.in, sizeof p.in_strides);
  memcpy(p.out_strides, merged.out, sizeof p.out_strides);
  if (p.ndim == 0) {
    copy_context copy = {p.in, p.out};
    mpg_cpu_parallel_for(call, item, GRAIN_BYTES, copy_bytes, &copy);
    return;
  }
  bool element = item == 1 || item == 2 || item == 4 || item == 8 || item == 16;
  p.item = item;
  p.count = p.dims[--p.ndim];
  p.in_step = p.in_strides[p.ndim];
  p.out_step = p.out_strides[p.ndim];
  cut_item(&p);
  int plane = -1, inner = p.ndim - 1;
  if (element && p.in_step == 0 && p.out_step == item && p.count <= TILE && inner >= 0 &&
      p.in_strides[inner] == item && p.out_strides[inner] == p.count * item) {
    p.spread = p.dims[inner];
    p.ndim--;
  } else if (element && p.out_step == item && p.in_step != 0)
    for (int i = 0; i < p.ndim; i++)
      if (p.in_strides[i] == item) plane = i;
  if (plane < 0 && element && !p.spread && p.out_step == item && p.count <= SHORT && inner >= 0) {
    p.short_rows = true;
    p.rows = p.dims[inner];
    p.row_in = p.in_strides[inner];
    p.row_out = p.out_strides[inner];
    p.ndim--;
    for (int64_t piece = 4096; piece >= 64; piece /= 2)
      if (piece < p.rows && p.rows % piece == 0) {
        split_dim(&p, &p.rows, p.row_in, p.row_out, piece);
        break;
      }
  } else if (plane >= 0) {
    p.rows = p.dims[plane];
    p.row_in = item;
    p.row_out = p.out_strides[plane];
    p.ndim--;
    for (int i = plane; i < p.ndim; i++) {
      p.dims[i] = p.dims[i + 1];
      p.in_strides[i] = p.in_strides[i + 1];
      p.out_strides[i] = p.out_strides[i + 1];
    }
    /* Divide the plane into strips of input rows. A strip fills one cache line of each result row.
     * The input is thus read sequentially, which gives the highest memory bandwidth. */
    int64_t line = item < 4 ? 64 / item : TILE;
    split_dim(&p, &p.count, p.in_step, p.out_step, p.count % line == 0 ? line : TILE);
    for (int64_t piece = 1024; piece >= TILE; piece /= 2)
      if (piece < p.rows && p.rows % piece == 0) {
        split_dim(&p, &p.rows, p.row_in, p.row_out, piece);
        break;
      }
  } else {
    bool spreads = p.spread > 0;
    int64_t *length = spreads ? &p.spread : &p.count;
    for (int64_t piece = 4096; piece >= 64 && *length > 4096; piece /= 2)
      if (*length % piece == 0) {
        split_dim(&p, length, spreads ? item : p.in_step, spreads ? p.count * item : p.out_step,
                  piece);
        break;
      }
  }
  int64_t units = 1, unit_bytes = p.count * p.item * (p.rows ? p.rows : p.spread ? p.spread : 1);
  for (int i = 0; i < p.ndim; i++) units *= p.dims[i];
  mpg_cpu_parallel_for(call, units,
                       GRAIN_BYTES / (unit_bytes < GRAIN_BYTES ? unit_bytes : GRAIN_BYTES),
                       run_plan, &p);
}

typedef struct fill_context {
  char *out;
  size_t item;
  const void *value;
} fill_context;
static void fill_range(void *context, int64_t begin, int64_t end) {
  const fill_context *fill = context;
  char *out = fill->out + begin * (int64_t)fill->item;
  move_row((int64_t)fill->item, fill->value, out, end - begin, 0, (int64_t)fill->item);
}

void mpg_cpu_fill(const mpg_kernel_call *call, void *out, int64_t count, size_t item,
                  const void *value) {
  fill_context fill = {out, item, value};
  mpg_cpu_parallel_for(call, count, GRAIN_BYTES / (int64_t)item, fill_range, &fill);
}
