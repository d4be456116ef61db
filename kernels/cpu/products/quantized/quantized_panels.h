/* Products of many rows of data with a packed weight, summed in float. Included by quantized_dot.c.
 *
 * The result is computed transposed: rows of the weight, whose elements are broadcast, times the
 * transpose of data. The unpacked weight therefore keeps its order. Data are transposed once, in
 * blocks of BLOCK_ROWS rows. A thread unpacks PANEL_UNITS rows of the weight in pieces of UNPACK
 * elements, which stay in its caches, and multiplies them by up to PANEL_ROWS rows of data.
 *
 * Every element of the result is summed over the elements of a piece in ascending order, one fma
 * per step, and over the pieces. So rounding depends neither on the number of rows nor on
 * threads. */
#ifndef KERNELS_CPU_PRODUCTS_QUANTIZED_PANELS_H
#define KERNELS_CPU_PRODUCTS_QUANTIZED_PANELS_H

#include "kernels/cpu/array/turn.h"
#include "kernels/cpu/products/pairs.h"
#ifdef MPG_WITH_PAIRS
#include "kernels/cpu/products/pairs_panel.h"
#endif

/* A tile is TILE_UNITS units times BLOCK_ROWS rows of data, whose sums fill the registers. */
#if defined(__AVX512F__)
enum { TILE_UNITS = 12, BLOCK_ROWS = 32 };
#elif defined(__AVX__)
enum { TILE_UNITS = 6, BLOCK_ROWS = 16 };
#else
enum { TILE_UNITS = 2, BLOCK_ROWS = 16 };
#endif
/* PIECE is the distance of the rows of a piece. It is not a power of two, so that rows do not
 * compete for the same cache sets. */
enum { PANEL_UNITS = 48, PANEL_ROWS = 256, PIECE = UNPACK + MPG_TURNED };
_Static_assert(PANEL_UNITS % TILE_UNITS == 0 && PANEL_UNITS % MPG_TURNED == 0, "whole tiles");
_Static_assert(PANEL_ROWS % BLOCK_ROWS == 0 && BLOCK_ROWS % MPG_TURNED == 0, "whole blocks");

typedef struct many {
  packed_weight weight;
  int64_t rows, depth; /* in_units, rounded up to MPG_TURNED */
  const void *data, *bias;
  mpg_dtype dtype;
  float *turned; /* blocks of data: (depth, rows of the block) */
  void *out;
} many;

/* Rows of a block, including padding. */
static inline int64_t block_rows(const many *t, int64_t block) {
  int64_t left = t->rows - block * BLOCK_ROWS;
  return left > MPG_TURNED ? BLOCK_ROWS : MPG_TURNED;
}

/* Transposes blocks of data. */
static void turn_blocks(void *context, int64_t begin, int64_t end) {
  const many *t = context;
  const int64_t k = t->weight.weight.in_units;
  float lines[MPG_TURNED][UNPACK];
  for (int64_t block = begin; block < end; block++) {
    int64_t width = block_rows(t, block);
    float *to = t->turned + block * BLOCK_ROWS * t->depth;
    for (int64_t row = 0; row < width; row += MPG_TURNED)
      for (int64_t at = 0; at < k; at += UNPACK) {
        int64_t count = k - at < UNPACK ? k - at : UNPACK;
        for (int64_t i = 0; i < MPG_TURNED; i++) {
          int64_t from = block * BLOCK_ROWS + row + i, valid = from < t->rows ? count : 0;
          if (valid)
            mpg_cpu_load_all(MPG_COMPUTE_F32, t->dtype, t->data, from * k + at, valid, lines[i]);
          memset(lines[i] + valid, 0, (size_t)(UNPACK - valid) * sizeof(float));
        }
        for (int64_t i = 0; i < count; i += MPG_TURNED)
          mpg_turn_item4((const char *)(lines[0] + i), (char *)(to + (at + i) * width + row),
                         sizeof lines[0], width * (int64_t)sizeof(float));
      }
  }
}

/* --- Unpacking -------------------------------------------------------------------------------- */
/* The same as unpack_f32 for int8. */
static void piece_int8(const packed_weight *w, int64_t row, int64_t at, int64_t count, float *to) {
  const mpg_quantized_weight *q = &w->weight;
  const uint8_t *packed = w->packed + row * q->row_bytes + at;
  int64_t scale = row * q->groups + at / q->group, end = q->group - at % q->group;
  for (int64_t i = 0; i < count; scale++, end += q->group) {
    const float factor = scale_at(w->scale_dtype, w->scales, scale);
    const int64_t stop = end < count ? end : count;
    for (; i + LANES <= stop; i += LANES)
      V_STORE(to + i, V_MUL(V_FROM(VI_SIGNED_BYTES(packed + i)), V_SET(factor)));
    for (; i < stop; i++) to[i] = (float)(int8_t)packed[i] * factor;
  }
}

/* The same as unpack_f32 for int4 and nf4. */
static void piece_nibbles(const packed_weight *w, int64_t row, int64_t at, int64_t count,
                          float *to) {
  const mpg_quantized_weight *q = &w->weight;
  const uint8_t *packed = w->packed + row * q->row_bytes + at / 2;
  const TABLE table = TABLE_OF(q->format == MPG_WEIGHT_NF4 ? mpg_nf4
                               : w->zeros                  ? counted
                                                           : centered);
  uint8_t nibbles[UNPACK];
  for (int64_t i = 0; i < count / 2; i++) {
    nibbles[2 * i] = packed[i] & 15;
    nibbles[2 * i + 1] = packed[i] >> 4;
  }
  memset(nibbles + count, 0, (size_t)(UNPACK - count));
  for (int64_t i = 0; i < count; i += LANES)
    V_STORE(to + i, V_LOOKUP(table, VI_BYTES(nibbles + i)));
  int64_t scale = row * q->groups + at / q->group, end = q->group - at % q->group;
  for (int64_t i = 0; i < count; scale++, end += q->group) {
    const float factor = scale_at(w->scale_dtype, w->scales, scale),
                zero = w->zeros ? scale_at(w->zero_dtype, w->zeros, scale) : 0;
    const int64_t stop = end < count ? end : count;
    for (; i + LANES <= stop; i += LANES)
      V_STORE(to + i, V_MUL(V_ADD(V_LOAD(to + i), V_SET(-zero)), V_SET(factor)));
    for (; i < stop; i++) to[i] = (to[i] - zero) * factor;
  }
}

/* The same as unpack_f32 for a block of q6_k. */
static void piece_q6_k(const packed_weight *w, int64_t row, int64_t at, float *to) {
  const uint8_t *block = w->packed + row * w->weight.row_bytes + at / 256 * 210;
  const float scale = half_at(block + 208);
  float scales[16];
  all_bytes(block + 192, true, scale, scale, scales);
  for (int half = 0; half < 2; half++)
    for (int i = 0; i < 32; i += LANES) {
      V values[4];
      values_q6_k(block, half, i, values);
      for (int run = 0; run < 4; run++)
        V_STORE(to + half * 128 + run * 32 + i,
                V_MUL(V_SET(scales[half * 8 + run * 2 + i / 16]), values[run]));
    }
}

/* Unpacks `count` elements of a row. `to` must hold UNPACK elements. */
static void unpack_piece(const packed_weight *w, int64_t row, int64_t at, int64_t count,
                         float *to) {
  switch (w->weight.format) {
    case MPG_WEIGHT_INT8: piece_int8(w, row, at, count, to); break;
    case MPG_WEIGHT_INT4:
    case MPG_WEIGHT_NF4: piece_nibbles(w, row, at, count, to); break;
    case MPG_WEIGHT_Q6_K: piece_q6_k(w, row, at, to); break;
    default: unpack_f32(w, row, at, count, to); break;
  }
}

/* --- Tiles ------------------------------------------------------------------------------------ */
/* Multiplies TILE_UNITS rows of a piece by a block of data. Sums are PANEL_ROWS apart. Starts at 0
 * if `first`, else adds to the sums. */
ALWAYS_INLINE void many_tile(int vectors, int64_t depth, const float *weight, const float *data,
                             float *sums, bool first) {
  V part[TILE_UNITS][BLOCK_ROWS / LANES], x[BLOCK_ROWS / LANES];
  MPG_UNROLL(16)
  for (int u = 0; u < TILE_UNITS; u++) MPG_UNROLL(4)
  for (int v = 0; v < vectors; v++) part[u][v] = V_SET(0);
  for (int64_t p = 0; p < depth; p++, data += vectors * LANES) {
    MPG_UNROLL(4)
    for (int v = 0; v < vectors; v++) x[v] = V_LOAD(data + v * LANES);
    MPG_UNROLL(16)
    for (int u = 0; u < TILE_UNITS; u++) {
      V q = V_SET(weight[u * PIECE + p]);
      MPG_UNROLL(4)
      for (int v = 0; v < vectors; v++) part[u][v] = V_FMA(q, x[v], part[u][v]);
    }
  }
  MPG_UNROLL(16)
  for (int u = 0; u < TILE_UNITS; u++) MPG_UNROLL(4)
  for (int v = 0; v < vectors; v++) {
    float *to = sums + u * PANEL_ROWS + v * LANES;
    V_STORE(to, first ? part[u][v] : V_ADD(V_LOAD(to), part[u][v]));
  }
}
static void wide_tile(int64_t depth, const float *weight, const float *data, float *sums,
                      bool first) {
  many_tile(BLOCK_ROWS / LANES, depth, weight, data, sums, first);
}
static void slim_tile(int64_t depth, const float *weight, const float *data, float *sums,
                      bool first) {
  many_tile(MPG_TURNED / LANES, depth, weight, data, sums, first);
}

/* Adds the bias to the sums of `rows` rows and `units` units, and stores them as rows. */
static void finish_panel(const many *t, const float *sums, int64_t row, int64_t rows, int64_t unit,
                         int64_t units) {
  const int64_t across = t->weight.weight.units;
  float lines[MPG_TURNED][PANEL_UNITS];
  mpg_block_buffer buffer;
  const float *bias =
      t->bias ? mpg_cpu_load(MPG_COMPUTE_F32, t->dtype, t->bias, unit, units, &buffer) : NULL;
  for (int64_t r = 0; r < rows; r += MPG_TURNED) {
    for (int64_t u = 0; u < units; u += MPG_TURNED)
      mpg_turn_item4((const char *)(sums + u * PANEL_ROWS + r), (char *)(lines[0] + u),
                     PANEL_ROWS * sizeof(float), sizeof lines[0]);
    for (int64_t i = 0; i < MPG_TURNED && r + i < rows; i++) {
      if (bias)
        for (int64_t u = 0; u < units; u++) lines[i][u] += bias[u];
      mpg_cpu_store(MPG_COMPUTE_F32, t->dtype, t->out, (row + r + i) * across + unit, units,
                    lines[i]);
    }
  }
}

/* A panel of the result. */
typedef struct panel_of {
  int64_t unit, units, row, rows;
} panel_of;

static panel_of panel_at(const many *t, int64_t panel) {
  const int64_t all = t->weight.weight.units, across = (all + PANEL_UNITS - 1) / PANEL_UNITS;
  panel_of p = {.unit = panel % across * PANEL_UNITS, .row = panel / across * PANEL_ROWS};
  p.units = all - p.unit < PANEL_UNITS ? all - p.unit : PANEL_UNITS;
  p.rows = t->rows - p.row < PANEL_ROWS ? t->rows - p.row : PANEL_ROWS;
  return p;
}

/* Reads the packed pieces of a panel into the caches. Loads of all rows are in flight then. While
 * unpacking, they would wait for the stores of earlier rows. Prefetch instructions do not help. */
static void read_pieces(const packed_weight *w, const panel_of *p, int64_t at, int64_t count) {
  const int64_t block = mpg_weight_block(w->weight.format),
                size = mpg_weight_block_bytes(w->weight.format), bytes = count / block * size;
  const uint8_t *from = w->packed + p->unit * w->weight.row_bytes + at / block * size;
  uint8_t sum = 0;
  for (int64_t u = 0; u < p->units; u++, from += w->weight.row_bytes) {
    for (int64_t i = 0; i < bytes; i += 64) sum += from[i];
    sum += from[bytes - 1];
  }
  __asm__ volatile("" : : "r"((int)sum));
}

/* Computes panels [begin, end) of PANEL_UNITS units and PANEL_ROWS rows. */
static void many_panels(void *context, int64_t begin, int64_t end) {
  const many *t = context;
  const int64_t k = t->weight.weight.in_units;
  float piece[PANEL_UNITS * PIECE] __attribute__((aligned(64)));
  float sums[PANEL_UNITS * PANEL_ROWS] __attribute__((aligned(64)));
  memset(piece, 0, sizeof piece); /* for units of a tile that do not exist */
  memset(sums, 0, sizeof sums);
  for (int64_t panel = begin; panel < end; panel++) {
    const panel_of p = panel_at(t, panel);
    for (int64_t at = 0; at < k; at += UNPACK) {
      int64_t count = k - at < UNPACK ? k - at : UNPACK;
      read_pieces(&t->weight, &p, at, count);
      for (int64_t u = 0; u < p.units; u++)
        unpack_piece(&t->weight, p.unit + u, at, count, piece + u * PIECE);
      for (int64_t r = 0; r < p.rows; r += BLOCK_ROWS) {
        int64_t block = (p.row + r) / BLOCK_ROWS, width = block_rows(t, block);
        const float *data = t->turned + block * BLOCK_ROWS * t->depth + at * width;
        for (int64_t u = 0; u < p.units; u += TILE_UNITS) {
          (width == BLOCK_ROWS ? wide_tile : slim_tile)(count, piece + u * PIECE, data,
                                                        sums + u * PANEL_ROWS + r, at == 0);
        }
      }
    }
    finish_panel(t, sums, p.row, p.rows, p.unit, p.units);
  }
}

/* --- bfloat16 --------------------------------------------------------------------------------- */
/* The same with data of bfloat16, to which elements of the weight are rounded. Pairs of them are
 * multiplied and summed in float. */
#ifdef MPG_WITH_PAIRS
enum { PAIR_ROWS = PAIRS_PANEL * PAIRS_LANES };
_Static_assert(PANEL_ROWS % PAIR_ROWS == 0 && UNPACK % (2 * PAIRS_STEP) == 0, "whole panels");

/* Number of vectors of a block of PAIR_ROWS rows. */
static inline int pair_vectors(const many *t, int64_t block) {
  int64_t left = t->rows - block * PAIR_ROWS;
  return left < PAIR_ROWS ? (int)((left + PAIRS_LANES - 1) / PAIRS_LANES) : PAIRS_PANEL;
}

static void turn_pairs(void *context, int64_t begin, int64_t end) {
  const many *t = context;
  const int64_t k = t->weight.weight.in_units;
  for (int64_t block = begin; block < end; block++) {
    mpg_pair *to = (mpg_pair *)t->turned + block * PAIR_ROWS * pairs_depth(k);
    const int vectors = pair_vectors(t, block);
    for (int v = 0; v < vectors; v++) {
      int64_t row = block * PAIR_ROWS + v * PAIRS_LANES, left = t->rows - row;
      pack_transposed_pairs((const uint16_t *)t->data + row * k, k,
                            left < PAIRS_LANES ? (int)left : PAIRS_LANES, k, to + v * PAIRS_LANES,
                            vectors * PAIRS_LANES);
    }
  }
}

static void many_pairs(void *context, int64_t begin, int64_t end) {
  const many *t = context;
  const int64_t k = t->weight.weight.in_units;
  static const int valid[PAIRS_PANEL] = {PAIRS_LANES, PAIRS_LANES, PAIRS_LANES, PAIRS_LANES};
  uint16_t piece[PANEL_UNITS * PIECE] __attribute__((aligned(64)));
  float sums[PANEL_UNITS * PANEL_ROWS] __attribute__((aligned(64))), wide[UNPACK];
  pairs_work work = {.how = mpg_cpu_pairs()};
  memset(sums, 0, sizeof sums); /* for units that do not exist */
  for (int64_t panel = begin; panel < end; panel++) {
    const panel_of p = panel_at(t, panel);
    for (int64_t at = 0; at < k; at += UNPACK) {
      int64_t count = k - at < UNPACK ? k - at : UNPACK, depth = pairs_depth(count);
      read_pieces(&t->weight, &p, at, count);
      for (int64_t u = 0; u < p.units; u++) {
        unpack_piece(&t->weight, p.unit + u, at, count, wide);
        memset(wide + count, 0, (size_t)(2 * depth - count) * sizeof *wide);
        mpg_cpu_store(MPG_COMPUTE_F32, MPG_BFLOAT16, piece, u * PIECE, 2 * depth, wide);
      }
      for (int64_t r = 0; r < p.rows; r += PAIR_ROWS) {
        const int64_t block = (p.row + r) / PAIR_ROWS;
        const int vectors = pair_vectors(t, block);
        float *to[PAIRS_PANEL];
        for (int v = 0; v < PAIRS_PANEL; v++) to[v] = sums + r + v * PAIRS_LANES;
        pairs_panel(&work, p.units, vectors, depth, (const mpg_pair *)piece, PIECE / 2,
                    (const mpg_pair *)t->turned + block * PAIR_ROWS * pairs_depth(k) +
                        at / 2 * vectors * PAIRS_LANES,
                    NULL, to, PANEL_ROWS, valid, at == 0);
      }
    }
    finish_panel(t, sums, p.row, p.rows, p.unit, p.units);
  }
  pairs_end(&work);
}
#endif

/* --- The product ------------------------------------------------------------------------------ */
static mpg_status many_rows_f32(const mpg_kernel_call *call, const packed_weight *w, int64_t rows) {
  const mpg_view *data = &call->inputs[0];
  const int64_t k = w->weight.in_units, panels = (w->weight.units + PANEL_UNITS - 1) / PANEL_UNITS *
                                                 ((rows + PANEL_ROWS - 1) / PANEL_ROWS);
  many t = {.weight = *w,
            .rows = rows,
            .depth = (k + MPG_TURNED - 1) / MPG_TURNED * MPG_TURNED,
            .data = data->data,
            .dtype = data->desc.dtype,
            .out = call->outputs[0].data};
  if (w->weight.bias_input >= 0) t.bias = call->inputs[w->weight.bias_input].data;
  int64_t high = BLOCK_ROWS, depth = t.depth;
  void (*turn)(void *, int64_t, int64_t) = turn_blocks;
  void (*multiply)(void *, int64_t, int64_t) = many_panels;
#ifdef MPG_WITH_PAIRS
  if (t.dtype == MPG_BFLOAT16 && mpg_cpu_pairs() != MPG_NO_PAIRS)
    high = PAIR_ROWS, depth = pairs_depth(k), turn = turn_pairs, multiply = many_pairs;
#endif
  const int64_t blocks = (rows + high - 1) / high;
  t.turned = mpg_device_scratch(call->device, (size_t)(blocks * high * depth) * sizeof *t.turned);
  if (!t.turned) return MPG_DEVICE_OUT_OF_MEMORY;
  mpg_cpu_parallel_for(call, blocks, 1 + 1024 / depth, turn, &t);
  mpg_cpu_parallel_for(call, panels, 1, multiply, &t);
  return MPG_OK;
}

#endif
