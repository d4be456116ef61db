/* Products of groups of rows, each with its own matrix (grouped_dot), and their gradients.
 *
 * The result is cut into panels of a few hundred rows of one group and as many columns. Threads
 * share all panels, so that many small groups scale like one large product. The bits of an element
 * depend on k only: not on the sizes of groups, the position of a row, or the number of threads.
 * They differ for few rows in total, as when tokens are generated, which are computed as inner
 * products.
 *
 * Half precision is widened to float, and each result is rounded once. */
#include <omp.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cpu/array/turn.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/products/gemm.h"

/* Most rows of a panel, most and least columns, and rows of k that are multiplied at a time. A
 * packed strip of B stays in the L1 cache, and the panel of A in the L2 cache. */
enum { PANEL_ROWS = 288, PANEL_COLUMNS = 512, LEAST_COLUMNS = 32, DEPTH = 512 };
enum { WHOLE_TILES = 12 }; /* a multiple of the rows of a tile */
/* At most this many rows of float32 or float64 are multiplied by transposed matrices, as of a dense
 * layer, without packing. The weight is then read once, from start to end. */
enum { FEW_ROWS = 64 };
/* Bytes per group for its offset, first panel and product of few rows. */
enum { TABLE_BYTES = 2 * sizeof(int64_t) + sizeof(mpg_row_product) };

typedef struct grouped {
  mpg_dtype dtype;
  mpg_compute compute;
  bool narrow;                   /* 16-bit arrays; `a` is widened */
  bool dots;                     /* the matrices are transposed */
  bool outer;                    /* sums of outer products; rows of the result are columns of `a` */
  int64_t m, n, k;               /* rows and columns of the result; k is unused if `outer` */
  int64_t groups, strips, strip; /* panels next to each other, and the columns of each */
  int64_t tallest;               /* rows of the tallest panel, in whole tiles */
  int64_t packed;                /* rows of A that are packed at a time */
  int64_t most;                  /* rows of k that are multiplied at a time */
  int64_t *offsets;              /* first row of each group; groups + 1 elements */
  int64_t *panels;               /* first panel of each group; groups + 1 elements */
  const void *a, *b;
  void *c;
  char *scratch;
  size_t scratch_bytes; /* per thread */
} grouped;

/* A part of the result that one thread computes. */
typedef struct panel {
  int64_t group, row, rows, column, columns;
  int64_t depth_first, depth; /* outer only: the rows that are summed */
} panel;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t in_tiles(int64_t rows) {
  return (rows + WHOLE_TILES - 1) / WHOLE_TILES * WHOLE_TILES;
}

/* Returns the rows of the result that belong to a group. */
static int64_t rows_of(const grouped *g, int64_t group) {
  return g->outer ? g->m : g->offsets[group + 1] - g->offsets[group];
}
/* Returns the number of panels above each other. */
static int64_t heights(int64_t rows) { return (rows + PANEL_ROWS - 1) / PANEL_ROWS; }

/* Returns the distance of two lines of B, which are the columns of B if `dots`, else its rows. */
static int64_t line_of(const grouped *g) { return g->dots ? g->k : g->n; }

/* Describes panel i. *group is the group of an earlier panel, or -1, and becomes the group of panel
 * i. Panels of a strip are adjacent. */
static void find_panel(const grouped *g, int64_t i, int64_t *group, panel *p) {
  if (*group < 0) {
    int64_t low = 0, high = g->groups;
    while (high - low > 1) {
      int64_t middle = (low + high) / 2;
      *(g->panels[middle] <= i ? &low : &high) = middle;
    }
    *group = low;
  }
  while (g->panels[*group + 1] <= i) (*group)++;
  int64_t rows = rows_of(g, *group), count = heights(rows), index = i - g->panels[*group];
  /* Rows are divided evenly, in whole tiles. */
  int64_t height = in_tiles((rows + count - 1) / count),
          first = least(index % count * height, rows);
  p->group = *group;
  p->rows = least(height, rows - first);
  p->row = first + (g->outer ? 0 : g->offsets[*group]);
  p->column = index / count * g->strip;
  p->columns = least(g->strip, g->n - p->column);
  p->depth_first = g->offsets[*group];
  p->depth = g->offsets[*group + 1] - p->depth_first;
}

/* Stores the sums of a panel of half precision. */
static void store_panel(const grouped *g, const panel *p, const void *c) {
  int64_t first = (g->outer ? p->group * g->m : 0) + p->row;
  for (int64_t r = 0; r < p->rows; r++)
    mpg_cpu_store(g->compute, g->dtype, g->c, (first + r) * g->n + p->column, p->columns,
                  (const float *)c + r * g->strip);
}

#define AS_IS(x) (x)
#define T float
#define NAME(name) name##_f32
#define MPG_TILE_SOURCES(PACK) \
  case MPG_FLOAT32: PACK(float, AS_IS)
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/products/tiles.h"
#include "kernels/cpu/products/grouped_tiles.h"
#undef T
#undef NAME
#undef MPG_TILE_SOURCES
#define MPG_TILE_SOURCES(PACK) \
  case MPG_FLOAT64: PACK(double, AS_IS)
#define T double
#define NAME(name) name##_f64
#define LANES_OF_DOUBLE
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/products/tiles.h"
#include "kernels/cpu/products/grouped_tiles.h"
#undef T
#undef NAME
#undef LANES_OF_DOUBLE
_Static_assert(WHOLE_TILES % MPG_TILE_ROWS == 0 && PANEL_ROWS % WHOLE_TILES == 0 &&
                   LEAST_COLUMNS % NR_f32 == 0 && LEAST_COLUMNS % NR_f64 == 0,
               "a panel must consist of whole tiles");

/* Computes offsets from counts, which are clipped to the number of rows. The first group is
 * counts[first]. */
static void find_groups(grouped *g, const int32_t *counts, int64_t first, int64_t rows) {
  int64_t before = 0;
  for (int64_t e = 0; e < first; e++) before += counts[e] < 0 ? 0 : counts[e];
  g->offsets[0] = least(before, rows);
  counts += first;
  for (int64_t e = 0; e < g->groups; e++) {
    int64_t left = rows - g->offsets[e], count = counts[e] < 0 ? 0 : counts[e];
    g->offsets[e + 1] = g->offsets[e] + least(count, left);
  }
}

/* Computes the products of few rows. */
static void few_rows(const mpg_kernel_call *call, const grouped *g) {
  mpg_row_product *products = (mpg_row_product *)(void *)(g->panels + g->groups + 1);
  int64_t count = 0;
  for (int64_t e = 0; e < g->groups; e++)
    if (rows_of(g, e)) products[count++] = (mpg_row_product){e, g->offsets[e], rows_of(g, e)};
  mpg_cpu_row_products(call, g->dtype, count, products, g->n, g->k, g->a, g->b, g->c);
}

/* Divides the columns so that all threads have work, and counts panels. */
static void find_panels(grouped *g, int num_threads) {
  int64_t down = 0;
  for (int64_t e = 0; e < g->groups; e++) down += heights(rows_of(g, e));
  while (g->strip > LEAST_COLUMNS && down * ((g->n - 1) / g->strip + 1) < 4 * num_threads)
    g->strip /= 2;
  g->strips = (g->n + g->strip - 1) / g->strip;
  g->panels[0] = 0;
  for (int64_t e = 0; e < g->groups; e++)
    g->panels[e + 1] = g->panels[e] + heights(rows_of(g, e)) * g->strips;
}

/* Runs a product. `counts` are the sizes of groups of `rows` rows, of which the groups from `first`
 * on have matrices; a row of A has `width` elements. */
static mpg_status run(const mpg_kernel_call *call, grouped *g, const mpg_view *counts,
                      int64_t first, int64_t rows, int64_t width) {
  bool wide = g->compute == MPG_COMPUTE_F64;
  g->narrow = !mpg_compute_direct(g->compute, g->dtype);
  g->tallest = in_tiles(least(g->outer ? g->m : rows, PANEL_ROWS));
  g->packed = g->outer ? g->tallest : WHOLE_TILES;
  g->most = (least(g->outer ? rows : g->k, DEPTH - 1) / 16 + 1) * 16; /* at least 16 */
  g->strip = PANEL_COLUMNS;
  size_t tables = mpg_align_up((size_t)(g->groups + 1) * TABLE_BYTES, 64),
         widened = g->narrow ? mpg_align_up((size_t)(rows * width) * sizeof(float), 64) : 0;
  g->scratch_bytes = mpg_cpu_buffer_step(wide ? panel_bytes_f64(g) : panel_bytes_f32(g));
  char *memory = mpg_device_scratch(
      call->device, tables + widened + g->scratch_bytes * (size_t)call->num_threads);
  if (!memory) return MPG_DEVICE_OUT_OF_MEMORY;
  g->offsets = (int64_t *)(void *)memory;
  g->panels = g->offsets + g->groups + 1;
  g->scratch = memory + tables + widened;
  find_groups(g, counts->data, first, rows);
  if (g->dots && rows <= FEW_ROWS && !g->narrow) {
    few_rows(call, g);
    return MPG_OK;
  }
  find_panels(g, call->num_threads);
  if (g->narrow) {
    mpg_cpu_widen(call, g->dtype, g->a, g->offsets[g->groups] * width,
                  (float *)(void *)(memory + tables));
    g->a = memory + tables;
  }
  mpg_cpu_parallel_for(call, g->panels[g->groups], 1, wide ? panels_f64 : panels_f32, g);
  return MPG_OK;
}

mpg_status mpg_cpu_grouped_dot(const mpg_kernel_call *call) {
  const mpg_grouped_dot_params *p = call->params;
  const mpg_view *data = &call->inputs[0], *out = &call->outputs[0];
  int64_t rows = data->desc.shape.dims[0], k = data->desc.shape.dims[1];
  grouped g = {.dtype = data->desc.dtype,
               .compute = mpg_compute_of(data->desc.dtype),
               .dots = p->transpose_b,
               .groups = call->inputs[1].desc.shape.dims[0],
               .n = out->desc.shape.dims[1],
               .k = k,
               .a = data->data,
               .b = call->inputs[1].data,
               .c = out->data};
  if (!rows || !g.n) return MPG_OK;
  MPG_TRY(run(call, &g, &call->inputs[2], p->first, rows, k));
  int64_t begin = g.offsets[0], end = g.offsets[g.groups];
  size_t row = (size_t)g.n * mpg_dtype_size(g.dtype);
  memset(g.c, 0, (size_t)begin * row);
  memset((char *)g.c + (size_t)end * row, 0, (size_t)(rows - end) * row);
  return MPG_OK;
}

mpg_status mpg_cpu_grouped_outer(const mpg_kernel_call *call) {
  const mpg_grouped_outer_params *p = call->params;
  const mpg_view *lhs = &call->inputs[0], *rhs = &call->inputs[1];
  int64_t rows = lhs->desc.shape.dims[0];
  grouped g = {.dtype = lhs->desc.dtype,
               .compute = mpg_compute_of(lhs->desc.dtype),
               .outer = true,
               .groups = call->outputs[0].desc.shape.dims[0],
               .m = lhs->desc.shape.dims[1],
               .n = rhs->desc.shape.dims[1],
               .a = lhs->data,
               .b = rhs->data,
               .c = call->outputs[0].data};
  if (!g.m || !g.n) return MPG_OK;
  return run(call, &g, &call->inputs[2], p->first, rows, g.m);
}
