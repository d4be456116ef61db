/* 3x3 convolutions by Winograd's minimal filtering F(2x2, 3x3), with the channels last. A tile of
 * 2x2 results from 4x4 inputs d and a filter g is A'[(G g G') * (B'd B)]A, which takes 16
 * multiplications instead of 36. Over tiles and channels these are 16 matrix products, one per
 * point of the 4x4 grid. Since everything is linear, the gradient of the weight is G'[(B'd B) * (A
 * y A')]G, summed over tiles.
 *
 * Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016.
 *
 * Packed weights (G g G'): [panel][16 points][channels][PANEL filters]; the last panel has the
 * remaining filters. Products keep a tile of ROWS x PANEL in registers and sum over the channels in
 * ascending order, so results do not depend on threads, blocks or the other samples of a batch. The
 * weight gradient sums DEPTH tiles at a time.
 */
#include <string.h>

#include "base/memory.h"
#include "device/device.h"
#include "kernels/cpu/products/panels.h"
#include "op/layers/convolution.h"

#include "kernels/cpu/products/lanes.h"

#if defined(__AVX512F__)
enum { ROWS = 6, VECTORS = 4 };
#elif defined(__AVX__)
enum { ROWS = 6, VECTORS = 2 };
#else
enum { ROWS = 4, VECTORS = 2 };
#endif
enum {
  PANEL = VECTORS * LANES,
  POINTS = 16,
  TAPS = 9,
  BLOCK = 96,
  DEPTH = 128,
  LINE = 16 /* floats */,
  GROUP = MPG_WINOGRAD_GROUP
};
static const int64_t gradient_room = 1 << 20; /* maximum floats of transformed arrays per round */

typedef mpg_winograd geometry;

static int64_t panels_of(int64_t filters) { return (filters + PANEL - 1) / PANEL; }
static int vectors_of(int64_t filters, int64_t panel) {
  int64_t left = (filters - panel * PANEL) / LANES;
  return left < VECTORS ? (int)left : VECTORS;
}

/* --- Products --------------------------------------------------------------------------------- */
/* Multiplies `rows` rows of A with a panel `width` vectors wide. Element (r, p) of A is a[r * row +
 * p * step]. Adds to c if `add`. */
static inline __attribute__((always_inline)) void multiply(const int rows, const int width,
                                                           int64_t k, const float *a, int64_t row,
                                                           int64_t step, const float *b, float *c,
                                                           bool add) {
  V sum[ROWS][VECTORS];
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) MPG_UNROLL(8)
  for (int v = 0; v < width; v++) sum[r][v] = V_SET(0);
  for (int64_t p = 0; p < k; p++) {
    V x[VECTORS];
    MPG_UNROLL(8)
    for (int v = 0; v < width; v++) x[v] = V_LOAD(b + v * LANES);
    b += width * LANES;
    MPG_UNROLL(8)
    for (int r = 0; r < rows; r++) {
      V y = V_SET(a[r * row + p * step]);
      MPG_UNROLL(8)
      for (int v = 0; v < width; v++) sum[r][v] = V_FMA(y, x[v], sum[r][v]);
    }
  }
  MPG_UNROLL(8)
  for (int r = 0; r < rows; r++) MPG_UNROLL(8)
  for (int v = 0; v < width; v++) {
    float *to = c + (r * width + v) * LANES;
    if (add) sum[r][v] = sum[r][v] + V_LOAD(to);
    V_STORE(to, sum[r][v]);
  }
}

/* In rows_*, A is row-major with k elements per row. In columns_*, A is column-major, with columns
 * GROUP elements apart. */
#define FORWARD(R, W)                                                               \
  static void rows_##R##x##W(int64_t k, const float *a, const float *b, float *c) { \
    multiply(R, W, k, a, k, 1, b, c, false);                                        \
  }
#define GRADIENT(R, W)                                                                           \
  static void columns_##R##x##W(int64_t k, const float *a, const float *b, float *c, bool add) { \
    multiply(R, W, k, a, 1, GROUP, b, c, add);                                                   \
  }
#if defined(__AVX512F__)
#define WIDTHS(KIND, R) KIND(R, 1) KIND(R, 2) KIND(R, 3) KIND(R, 4)
#define NAMES(KIND, R) {KIND##_##R##x1, KIND##_##R##x2, KIND##_##R##x3, KIND##_##R##x4}
#else
#define WIDTHS(KIND, R) KIND(R, 1) KIND(R, 2)
#define NAMES(KIND, R) {KIND##_##R##x1, KIND##_##R##x2}
#endif
typedef void (*rows_fn)(int64_t k, const float *a, const float *b, float *c);
typedef void (*columns_fn)(int64_t k, const float *a, const float *b, float *c, bool add);
WIDTHS(FORWARD, 1)
WIDTHS(FORWARD, 2)
WIDTHS(FORWARD, 3)
WIDTHS(FORWARD, 4)
WIDTHS(GRADIENT, 4)
#if defined(__AVX__)
WIDTHS(FORWARD, 5)
WIDTHS(FORWARD, 6)
WIDTHS(GRADIENT, 5)
WIDTHS(GRADIENT, 6)
static const rows_fn row_products[ROWS][VECTORS] = {NAMES(rows, 1), NAMES(rows, 2), NAMES(rows, 3),
                                                    NAMES(rows, 4), NAMES(rows, 5), NAMES(rows, 6)};
static const columns_fn column_products[ROWS - 3][VECTORS] = {NAMES(columns, 4), NAMES(columns, 5),
                                                              NAMES(columns, 6)};
#else
static const rows_fn row_products[ROWS][VECTORS] = {NAMES(rows, 1), NAMES(rows, 2), NAMES(rows, 3),
                                                    NAMES(rows, 4)};
static const columns_fn column_products[ROWS - 3][VECTORS] = {NAMES(columns, 4)};
#endif

/* --- Transforms ------------------------------------------------------------------------------- */
/* Stores the addresses of the `size` x `size` elements of tile t in an array (batch, height, width,
 * channels). The address of an element outside the array is NULL. Returns true if all elements are
 * inside. */
static inline bool places(const geometry *g, const float *base, int64_t height, int64_t width,
                          int64_t channels, int64_t pad_h, int64_t pad_w, int64_t t, int size,
                          const float **at) {
  int64_t n = t / (g->tiles_h * g->tiles_w), y = t / g->tiles_w % g->tiles_h * 2 - pad_h,
          x = t % g->tiles_w * 2 - pad_w;
  bool inside = true;
  for (int i = 0; i < size; i++)
    for (int j = 0; j < size; j++) {
      bool in = y + i >= 0 && y + i < height && x + j >= 0 && x + j < width;
      at[i * size + j] = in ? base + ((n * height + y + i) * width + x + j) * channels : NULL;
      inside &= in;
    }
  return inside;
}

static inline V load_or_zero(const float *at, int64_t channel) {
  return at ? V_LOAD(at + channel) : V_SET(0);
}

/* Computes B'd B for one vector of channels; point p is stored at `to + p * stride`. */
static inline __attribute__((always_inline)) void transform_input(const float *const *at,
                                                                  bool inside, int64_t channel,
                                                                  float *to, int64_t stride) {
  V d[POINTS], e[POINTS];
  MPG_UNROLL(16)
  for (int i = 0; i < POINTS; i++)
    d[i] = inside ? V_LOAD(at[i] + channel) : load_or_zero(at[i], channel);
  MPG_UNROLL(4)
  for (int j = 0; j < 4; j++) {
    e[j] = d[j] - d[8 + j];
    e[4 + j] = d[4 + j] + d[8 + j];
    e[8 + j] = d[8 + j] - d[4 + j];
    e[12 + j] = d[4 + j] - d[12 + j];
  }
  MPG_UNROLL(4)
  for (int i = 0; i < POINTS; i += 4) {
    V_STORE(to + i * stride, e[i] - e[i + 2]);
    V_STORE(to + (i + 1) * stride, e[i + 1] + e[i + 2]);
    V_STORE(to + (i + 2) * stride, e[i + 2] - e[i + 1]);
    V_STORE(to + (i + 3) * stride, e[i + 1] - e[i + 3]);
  }
}

/* Computes A y A' for one vector of filters. */
static inline __attribute__((always_inline)) void transform_gradient(const float *const *at,
                                                                     int64_t filter, float *to,
                                                                     int64_t stride) {
  V y[4], e[8];
  MPG_UNROLL(4)
  for (int i = 0; i < 4; i++) y[i] = load_or_zero(at[i], filter);
  MPG_UNROLL(2)
  for (int j = 0; j < 2; j++) {
    e[j] = y[j];
    e[2 + j] = y[j] + y[2 + j];
    e[4 + j] = y[j] - y[2 + j];
    e[6 + j] = V_SET(0) - y[2 + j];
  }
  MPG_UNROLL(4)
  for (int i = 0; i < 4; i++) {
    V_STORE(to + 4 * i * stride, e[2 * i]);
    V_STORE(to + (4 * i + 1) * stride, e[2 * i] + e[2 * i + 1]);
    V_STORE(to + (4 * i + 2) * stride, e[2 * i] - e[2 * i + 1]);
    V_STORE(to + (4 * i + 3) * stride, V_SET(0) - e[2 * i + 1]);
  }
}

static inline V relu_of(V y) { /* keeps NaN and -0, like relu */
  V zero = V_SET(0);
  return (V)((__typeof__(y < zero))y & ~(y < zero));
}

static inline V relu_gradient(V y, V result) { /* NaN if relu's result is NaN */
  V zero = V_SET(0);
  return (V)(((__typeof__(y < zero))y & (result > zero)) |
             ((__typeof__(y < zero))result & (result != result)));
}

/* --- Forward ---------------------------------------------------------------------------------- */
typedef struct forward {
  geometry g;
  const float *data, *packed, *bias, *added, *gate;
  bool relu;
  float *out;
  int64_t shift; /* offset of `out` in the whole result */
  int64_t blocks, pieces;
  float *scratch;
  int64_t slot;  /* floats of scratch per piece */
  int64_t panel; /* number of tiles in a panel of result rows */
  float *inputs; /* transformed inputs shared by all threads; used if tiles are few */
} forward;

/* Returns the distance in floats between the 16 points of `tiles` tiles. The padding keeps points
 * from competing for the same cache sets. */
static int64_t input_stride(const geometry *g, int64_t tiles) { return tiles * g->channels + LINE; }
static int64_t result_stride(int64_t tiles) { return tiles * PANEL + LINE; }

static void transform_inputs(const forward *f, int64_t begin, int64_t end, int64_t first,
                             int64_t stride, float *to) {
  const geometry *g = &f->g;
  const float *at[POINTS];
  for (int64_t t = begin; t < end; t++) {
    float *tile = to + (t - first) * g->channels;
    if (places(g, f->data, g->in_h, g->in_w, g->channels, g->pad_h, g->pad_w, t, 4, at))
      for (int64_t c = 0; c < g->channels; c += LANES)
        transform_input(at, true, c, tile + c, stride);
    else
      for (int64_t c = 0; c < g->channels; c += LANES)
        transform_input(at, false, c, tile + c, stride);
  }
}

/* Finishes and stores one vector of results: adds the bias and `added`, then applies relu or its
 * gradient. */
static inline void finish(const forward *f, V y, int64_t offset, int64_t filter) {
  if (f->bias) y = y + V_LOAD(f->bias + filter);
  if (f->added) y = y + V_LOAD(f->added + offset);
  if (f->gate) y = relu_gradient(y, V_LOAD(f->gate + offset));
  V_STORE(f->out + (offset - f->shift), f->relu ? relu_of(y) : y);
}

static void transform_results(const forward *f, int64_t begin, int64_t end, int64_t panel,
                              const float *from, int64_t stride) {
  const geometry *g = &f->g;
  const int width = vectors_of(g->filters, panel);
  for (int64_t t = begin; t < end; t++, from += width * LANES) {
    int64_t n = t / (g->tiles_h * g->tiles_w), y = t / g->tiles_w % g->tiles_h * 2,
            x = t % g->tiles_w * 2;
    int64_t corner = ((n * g->out_h + y) * g->out_w + x) * g->filters + panel * PANEL;
    bool right = x + 1 < g->out_w, below = y + 1 < g->out_h;
    for (int v = 0; v < width; v++, corner += LANES) {
      V m[POINTS], e[8];
      int64_t filter = panel * PANEL + v * LANES;
      MPG_UNROLL(16)
      for (int i = 0; i < POINTS; i++) m[i] = V_LOAD(from + i * stride + v * LANES);
      MPG_UNROLL(4)
      for (int j = 0; j < 4; j++) {
        e[j] = m[j] + m[4 + j] + m[8 + j];
        e[4 + j] = m[4 + j] - m[8 + j] - m[12 + j];
      }
      finish(f, e[0] + e[1] + e[2], corner, filter);
      if (right) finish(f, e[1] - e[2] - e[3], corner + g->filters, filter);
      if (below) finish(f, e[4] + e[5] + e[6], corner + g->out_w * g->filters, filter);
      if (right && below)
        finish(f, e[5] - e[6] - e[7], corner + (g->out_w + 1) * g->filters, filter);
    }
  }
}

/* Computes one panel of filters for tiles [begin, end), which start at tile `from` in `inputs`. */
static void panel_results(const forward *f, int64_t begin, int64_t end, int64_t from,
                          const float *inputs, int64_t stride, int64_t panel, float *results) {
  const int64_t channels = f->g.channels, count = end - begin, blocks = (count + ROWS - 1) / ROWS,
                to_stride = result_stride(count);
  const int width = vectors_of(f->g.filters, panel);
  const float *weights = f->packed + panel * PANEL * POINTS * channels;
  for (int p = 0; p < POINTS; p++, weights += channels * width * LANES)
    for (int64_t i = 0; i < blocks; i++) {
      int64_t row = i * count / blocks, rows = (i + 1) * count / blocks - row;
      row_products[rows - 1][width - 1](channels, inputs + p * stride + (from + row) * channels,
                                        weights, results + p * to_stride + row * width * LANES);
    }
  transform_results(f, begin, end, panel, results, to_stride);
}

static void run_block(const forward *f, int64_t begin, int64_t end, float *inputs) {
  int64_t stride = input_stride(&f->g, end - begin);
  transform_inputs(f, begin, end, begin, stride, inputs);
  for (int64_t panel = 0; panel < panels_of(f->g.filters); panel++)
    panel_results(f, begin, end, 0, inputs, stride, panel, inputs + POINTS * stride);
}

static void run_blocks(void *context, int64_t first, int64_t last) {
  const forward *f = context;
  for (int64_t piece = first; piece < last; piece++)
    for (int64_t b = f->blocks * piece / f->pieces; b < f->blocks * (piece + 1) / f->pieces; b++)
      run_block(f, f->g.tiles * b / f->blocks, f->g.tiles * (b + 1) / f->blocks,
                f->scratch + piece * f->slot);
}

static void share_inputs(void *context, int64_t begin, int64_t end) {
  const forward *f = context;
  transform_inputs(f, begin, end, 0, input_stride(&f->g, f->g.tiles), f->inputs);
}

/* Computes units from the shared inputs. A unit is a block of tiles for one panel of filters. */
static void run_panels(void *context, int64_t first, int64_t last) {
  const forward *f = context;
  int64_t count = f->blocks * panels_of(f->g.filters);
  for (int64_t piece = first; piece < last; piece++)
    for (int64_t i = count * piece / f->pieces; i < count * (piece + 1) / f->pieces; i++) {
      int64_t begin = f->g.tiles * (i % f->blocks) / f->blocks,
              end = f->g.tiles * (i % f->blocks + 1) / f->blocks;
      panel_results(f, begin, end, begin, f->inputs, input_stride(&f->g, f->g.tiles), i / f->blocks,
                    f->scratch + piece * f->slot);
    }
}

static int64_t up_to_multiple(int64_t n, int64_t of) { return (n + of - 1) / of * of; }

static forward forward_of(const mpg_winograd_params *p, const mpg_view *inputs) {
  forward f = {.data = inputs[0].data, .packed = inputs[1].data, .relu = p->relu};
  int next = 2 + p->trains;
  if (!p->no_bias) f.bias = inputs[next++].data;
  if (p->add) f.added = inputs[next].data;
  mpg_winograd_set(&f.g, &inputs[0].desc.shape, p->num_filter, &p->pad);
  return f;
}

mpg_status mpg_cpu_winograd_convolution(const mpg_kernel_call *call) {
  forward f = forward_of(call->params, call->inputs);
  f.out = call->outputs[0].data;
  if (f.g.tiles == 0) return MPG_OK;
  bool share = mpg_winograd_shares(&f.g);
  f.pieces = call->num_threads;
  if (share) {
    int64_t panels = panels_of(f.g.filters);
    f.blocks = f.pieces > panels ? (f.pieces + panels - 1) / panels : 1;
    if (f.blocks > f.g.tiles) f.blocks = f.g.tiles;
    f.slot = POINTS * result_stride(f.g.tiles / f.blocks + 1);
  } else {
    f.blocks = up_to_multiple((f.g.tiles + BLOCK - 1) / BLOCK, f.pieces);
    if (f.blocks > f.g.tiles) f.blocks = f.g.tiles;
    f.slot = POINTS * (input_stride(&f.g, f.g.tiles / f.blocks + 1) +
                       result_stride(f.g.tiles / f.blocks + 1));
  }
  int64_t shared = share ? POINTS * input_stride(&f.g, f.g.tiles) : 0;
  f.inputs = mpg_device_scratch(call->device, (size_t)(f.slot * f.pieces + shared) * sizeof(float));
  if (!f.inputs) return MPG_DEVICE_OUT_OF_MEMORY;
  f.scratch = f.inputs + shared;
  if (share)
    mpg_cpu_parallel_for(call, f.g.tiles, 1 + 65536 / (POINTS * f.g.channels), share_inputs, &f);
  mpg_cpu_parallel_for(call, f.pieces, 1, share ? run_panels : run_blocks, &f);
  return MPG_OK;
}

/* Panels of result rows consist of whole images (op/math/product.h), so they also consist of whole
 * tiles. */
mpg_status mpg_cpu_winograd_begin(const mpg_kernel_call *call, const mpg_panel_tail *tail,
                                  int threads, mpg_panels *panels) {
  forward f = forward_of(call->params, call->inputs);
  if (tail) {
    f.added = tail->added;
    f.gate = tail->gate;
    f.relu = tail->relu;
  }
  f.panel = f.g.tiles * panels->product.panel / panels->product.m;
  f.blocks = (f.panel + 4 * BLOCK / 3 - 1) / (4 * BLOCK / 3);
  f.slot =
      POINTS * (input_stride(&f.g, f.panel / f.blocks + 1) + result_stride(f.panel / f.blocks + 1));
  forward *own = mpg_device_scratch(
      call->device, mpg_align_up(sizeof f, 64) + (size_t)(f.slot * threads) * sizeof(float));
  if (!own) return MPG_DEVICE_OUT_OF_MEMORY;
  f.scratch = (float *)(void *)((char *)own + mpg_align_up(sizeof f, 64));
  *own = f;
  panels->own = own;
  return MPG_OK;
}

void mpg_cpu_winograd_panel(const mpg_panels *panels, int thread, int64_t panel, float *out) {
  forward f = *(const forward *)panels->own;
  int64_t begin = f.panel * panel,
          count = f.g.tiles - begin < f.panel ? f.g.tiles - begin : f.panel;
  f.out = out;
  f.shift = panels->product.panel * panel * f.g.filters;
  for (int64_t b = 0; b < f.blocks; b++)
    run_block(&f, begin + count * b / f.blocks, begin + count * (b + 1) / f.blocks,
              f.scratch + thread * f.slot);
}

/* --- Weights ---------------------------------------------------------------------------------- */
/* Transforms of weights. A work unit is GROUP channels of one panel of filters. Packing and its
 * inverse buffer these weights in taps[channel][tap][filter]. */
typedef struct packing {
  int64_t channels, filters; /* of the convolution that uses the packed weight */
  bool backward;             /* the weight is (channels, filters, 3, 3), rotated by 180 degrees */
  /* The weight and the packed weight. In the gradient: the weight's gradient and the sums of
   * products. */
  float *weight, *packed;
} packing;

static void read_taps(const packing *w, int64_t channel, int64_t panel, int width,
                      float taps[GROUP][TAPS][PANEL]) {
  if (w->backward) {
    for (int c = 0; c < GROUP; c++) {
      const float *from = w->weight + ((channel + c) * w->filters + panel * PANEL) * TAPS;
      for (int f = 0; f < width * LANES; f++, from += TAPS)
        for (int tap = 0; tap < TAPS; tap++) taps[c][tap][f] = from[TAPS - 1 - tap];
    }
    return;
  }
  for (int f = 0; f < width * LANES; f++) {
    const float *from = w->weight + ((panel * PANEL + f) * w->channels + channel) * TAPS;
    for (int c = 0; c < GROUP; c++, from += TAPS)
      for (int tap = 0; tap < TAPS; tap++) taps[c][tap][f] = from[tap];
  }
}

static void write_taps(const packing *w, int64_t channel, int64_t panel, int width,
                       float taps[GROUP][TAPS][PANEL]) {
  for (int f = 0; f < width * LANES; f++) {
    float *to = w->weight + ((panel * PANEL + f) * w->channels + channel) * TAPS;
    for (int c = 0; c < GROUP; c++, to += TAPS)
      for (int tap = 0; tap < TAPS; tap++) to[tap] = taps[c][tap][f];
  }
}

/* Packs the weight: computes G g G'. */
static void pack_squares(void *context, int64_t begin, int64_t end) {
  const packing *w = context;
  float taps[GROUP][TAPS][PANEL];
  const V half = V_SET(0.5f);
  int64_t groups = w->channels / GROUP;
  for (int64_t i = begin; i < end; i++) {
    int64_t panel = i / groups, channel = i % groups * GROUP;
    int width = vectors_of(w->filters, panel);
    read_taps(w, channel, panel, width, taps);
    float *to = w->packed + panel * PANEL * POINTS * w->channels + channel * width * LANES;
    int64_t stride = w->channels * width * LANES;
    for (int c = 0; c < GROUP; c++)
      for (int v = 0; v < width; v++, to += LANES) {
        V g[12];
        MPG_UNROLL(3)
        for (int j = 0; j < 3; j++) {
          V a = V_LOAD(taps[c][j] + v * LANES), b = V_LOAD(taps[c][3 + j] + v * LANES),
            d = V_LOAD(taps[c][6 + j] + v * LANES);
          g[j] = a;
          g[3 + j] = (a + d + b) * half;
          g[6 + j] = (a + d - b) * half;
          g[9 + j] = d;
        }
        MPG_UNROLL(4)
        for (int r = 0; r < 4; r++) {
          V a = g[3 * r], b = g[3 * r + 1], d = g[3 * r + 2];
          V_STORE(to + 4 * r * stride, a);
          V_STORE(to + (4 * r + 1) * stride, (a + d + b) * half);
          V_STORE(to + (4 * r + 2) * stride, (a + d - b) * half);
          V_STORE(to + (4 * r + 3) * stride, d);
        }
      }
  }
}

mpg_status mpg_cpu_pack_winograd(const mpg_kernel_call *call) {
  const mpg_pack_winograd_params *p = call->params;
  const int64_t *dims = call->inputs[0].desc.shape.dims;
  packing w = {dims[p->backward ? 0 : 1], dims[p->backward ? 1 : 0], p->backward,
               call->inputs[0].data, call->outputs[0].data};
  mpg_cpu_parallel_for(call, w.channels / GROUP * panels_of(w.filters), 1, pack_squares, &w);
  return MPG_OK;
}

/* --- The gradient of the weight --------------------------------------------------------------- */
typedef struct gradient {
  geometry g;
  const float *data, *out_grad;
  /* first tile and number of tiles in this round; maximum number in a round */
  int64_t first, tiles, room;
  float *inputs; /* [16][groups of channels][tiles][GROUP] */
  float *grads;  /* [16][panels][tiles][PANEL] */
  float *sums;   /* [16][groups of channels][panels][GROUP][PANEL] */
} gradient;

static int64_t point_stride(const gradient *t, int64_t channels) {
  return t->room * channels + LINE;
}

static void transform_both(void *context, int64_t begin, int64_t end) {
  const gradient *t = context;
  const geometry *g = &t->g;
  const float *at[POINTS];
  for (int64_t i = begin; i < end; i++) {
    bool inside =
        places(g, t->data, g->in_h, g->in_w, g->channels, g->pad_h, g->pad_w, t->first + i, 4, at);
    for (int64_t c = 0; c < g->channels; c += LANES)
      transform_input(at, inside, c,
                      t->inputs + c / GROUP * GROUP * t->tiles + i * GROUP + c % GROUP,
                      point_stride(t, g->channels));
    places(g, t->out_grad, g->out_h, g->out_w, g->filters, 0, 0, t->first + i, 2, at);
    for (int64_t panel = 0; panel < panels_of(g->filters); panel++) {
      int width = vectors_of(g->filters, panel);
      float *to = t->grads + panel * PANEL * t->tiles + i * width * LANES;
      for (int v = 0; v < width; v++)
        transform_gradient(at, panel * PANEL + v * LANES, to + v * LANES,
                           point_stride(t, g->filters));
    }
  }
}

static void sum_products(void *context, int64_t begin, int64_t end) {
  const gradient *t = context;
  const geometry *g = &t->g;
  int64_t groups = g->channels / GROUP;
  enum { PARTS = (GROUP + ROWS - 1) / ROWS };
  for (int64_t i = begin; i < end; i++) {
    int64_t point = i / groups, group = i % groups;
    const float *a = t->inputs + point * point_stride(t, g->channels) + group * GROUP * t->tiles;
    for (int64_t panel = 0; panel < panels_of(g->filters); panel++) {
      int width = vectors_of(g->filters, panel);
      const float *b = t->grads + point * point_stride(t, g->filters) + panel * PANEL * t->tiles;
      float *to = t->sums + point * g->channels * g->filters + group * GROUP * g->filters +
                  panel * PANEL * GROUP;
      for (int64_t from = 0; from < t->tiles; from += DEPTH) {
        int64_t depth = t->tiles - from < DEPTH ? t->tiles - from : DEPTH;
        for (int part = 0; part < PARTS; part++) {
          int row = GROUP * part / PARTS, rows = GROUP * (part + 1) / PARTS - row;
          column_products[rows - 4][width - 1](depth, a + from * GROUP + row,
                                               b + from * width * LANES, to + row * width * LANES,
                                               t->first + from > 0);
        }
      }
    }
  }
}

/* Computes the weight's gradient G'u G from the sums u. */
static void unpack_squares(void *context, int64_t begin, int64_t end) {
  const packing *w = context;
  float taps[GROUP][TAPS][PANEL];
  const V half = V_SET(0.5f);
  int64_t groups = w->channels / GROUP, stride = w->channels * w->filters;
  for (int64_t i = begin; i < end; i++) {
    int64_t panel = i / groups, group = i % groups;
    int width = vectors_of(w->filters, panel);
    const float *from = w->packed + group * GROUP * w->filters + panel * PANEL * GROUP;
    for (int c = 0; c < GROUP; c++)
      for (int v = 0; v < width; v++, from += LANES) {
        V u[12];
        MPG_UNROLL(4)
        for (int j = 0; j < 4; j++) {
          V a = V_LOAD(from + j * stride), b = V_LOAD(from + (4 + j) * stride),
            d = V_LOAD(from + (8 + j) * stride), e = V_LOAD(from + (12 + j) * stride);
          u[j] = a + (b + d) * half;
          u[4 + j] = (b - d) * half;
          u[8 + j] = (b + d) * half + e;
        }
        MPG_UNROLL(3)
        for (int r = 0; r < 3; r++) {
          V a = u[4 * r], b = u[4 * r + 1], d = u[4 * r + 2], e = u[4 * r + 3];
          V_STORE(taps[c][3 * r] + v * LANES, a + (b + d) * half);
          V_STORE(taps[c][3 * r + 1] + v * LANES, (b - d) * half);
          V_STORE(taps[c][3 * r + 2] + v * LANES, (b + d) * half + e);
        }
      }
    write_taps(w, group * GROUP, panel, width, taps);
  }
}

mpg_status mpg_cpu_winograd_backward_weight(const mpg_kernel_call *call) {
  const mpg_winograd_backward_params *p = call->params;
  gradient t = {.out_grad = call->inputs[0].data, .data = call->inputs[1].data};
  const mpg_view *out = &call->outputs[0];
  mpg_winograd_set(&t.g, &call->inputs[1].desc.shape, out->desc.shape.dims[0], &p->pad);
  const geometry *g = &t.g;
  if (g->tiles == 0) {
    memset(out->data, 0, (size_t)mpg_shape_size(&out->desc.shape) * sizeof(float));
    return MPG_OK;
  }
  int64_t depths = gradient_room / (POINTS * DEPTH * (g->channels + g->filters));
  t.room = (depths > 1 ? depths : 1) * DEPTH;
  if (t.room > g->tiles) t.room = g->tiles;
  int64_t inputs = POINTS * point_stride(&t, g->channels),
          grads = POINTS * point_stride(&t, g->filters);
  t.inputs = mpg_device_scratch(
      call->device, (size_t)(inputs + grads + POINTS * g->channels * g->filters) * sizeof(float));
  if (!t.inputs) return MPG_DEVICE_OUT_OF_MEMORY;
  t.grads = t.inputs + inputs;
  t.sums = t.grads + grads;
  for (t.first = 0; t.first < g->tiles; t.first += t.tiles) {
    t.tiles = g->tiles - t.first < t.room ? g->tiles - t.first : t.room;
    mpg_cpu_parallel_for(call, t.tiles, 4, transform_both, &t);
    mpg_cpu_parallel_for(call, POINTS * (g->channels / GROUP), 1, sum_products, &t);
  }
  packing w = {g->channels, g->filters, false, out->data, t.sums};
  mpg_cpu_parallel_for(call, g->channels / GROUP * panels_of(g->filters), 1, unpack_squares, &w);
  return MPG_OK;
}
