/* Products of groups of rows, each with its own matrix (grouped_dot), and their gradients.
 *
 * The result is cut into panels of at most a few hundred rows of one group. Threads share all
 * panels, so that many small groups scale like one large product. A product with transposed
 * matrices consists of inner products and reads the weight in place: a group of one row streams the
 * matrix once. The other products pack a narrow strip of the right operand and add one element of k
 * at a time. In both, the bits of an element depend on k only: not on the sizes of groups, the
 * position of a row, or the number of threads.
 *
 * Half precision is widened to float, block by block, and each result is rounded once. */
#include <omp.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cpu/convert.h"

/* The rows of a panel of inner products have at most L2_BYTES, and the rows of the weight that they
 * are multiplied by L1_BYTES, except for long rows. */
enum { PANEL_COLUMNS = 32, L1_BYTES = 32 << 10, L2_BYTES = 512 << 10, DOT_ROWS = 5 };
/* The other panels pack a strip of B, in parts of STEP_DEPTH rows. TALLEST is the maximum number of
 * rows of a panel. */
enum { TALLEST = 240, STEP_DEPTH = 512 };
#if defined(__AVX512F__)
enum { STEP_ROWS = 12 };
#elif defined(__AVX__)
enum { STEP_ROWS = 6 };
#else
enum { STEP_ROWS = 4 };
#endif
/* find_panel rounds the rows of a panel up to whole tiles, and scratch memory has TALLEST rows. */
_Static_assert(TALLEST % DOT_ROWS == 0 && TALLEST % STEP_ROWS == 0,
               "a panel must consist of whole tiles");

typedef struct grouped {
  mpg_dtype dtype;
  mpg_compute compute;
  bool narrow;                   /* 16-bit arrays; `a` is widened */
  bool dots;                     /* the matrices are transposed */
  bool outer;                    /* sums of outer products; rows of the result are columns of `a` */
  int64_t m, n, k;               /* rows and columns of the result; k is unused if `outer` */
  int64_t groups, strips, strip; /* strips: panels next to each other, of `strip` columns */
  int64_t tallest;               /* maximum number of rows of a panel */
  int64_t block;                 /* dots: rows of a weight that are multiplied at a time */
  int64_t *offsets;              /* first row of each group; groups + 1 elements */
  int64_t *panels;               /* first panel of each group; groups + 1 elements */
  const void *a, *b;
  int64_t b_bytes;
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

/* Returns the rows of the result that belong to a group. */
static int64_t rows_of(const grouped *g, int64_t group) {
  return g->outer ? g->m : g->offsets[group + 1] - g->offsets[group];
}
static int64_t heights(const grouped *g, int64_t rows) {
  return (rows + g->tallest - 1) / g->tallest;
}

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
  int64_t rows = rows_of(g, *group), count = heights(g, rows), index = i - g->panels[*group];
  /* Rows are divided evenly, in multiples of the tallest tile. */
  int64_t multiple = g->dots ? DOT_ROWS : STEP_ROWS,
          height = ((rows + count - 1) / count + multiple - 1) / multiple * multiple,
          first = least(index % count * height, rows);
  p->group = *group;
  p->rows = least(height, rows - first);
  p->row = first + (g->outer ? 0 : g->offsets[*group]);
  p->column = index / count * g->strip;
  p->columns = least(g->strip, g->n - p->column);
  p->depth_first = g->offsets[*group];
  p->depth = g->offsets[*group + 1] - p->depth_first;
}

static void store_panel(const grouped *g, const panel *p, const void *c, int64_t stride,
                        size_t element) {
  int64_t first = (g->outer ? p->group * g->m : 0) + p->row;
  for (int64_t r = 0; r < p->rows; r++)
    mpg_cpu_store(g->compute, g->dtype, g->c, (first + r) * g->n + p->column, p->columns,
                  (const char *)c + (size_t)(r * stride) * element);
}

#define T float
#define NAME(name) name##_f32
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/products/grouped_tiles.h"
static const int64_t strip_f32 = 2 * LANES;
#undef T
#undef NAME
#define T double
#define NAME(name) name##_f64
#define LANES_OF_DOUBLE
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/products/grouped_tiles.h"
static const int64_t strip_f64 = 2 * LANES;
#undef T
#undef NAME
#undef LANES_OF_DOUBLE

/* Computes offsets from counts, which are clipped to the number of rows. The first group is
 * counts[first]. */
static void find_groups(grouped *g, const int32_t *counts, int64_t first, int64_t rows) {
  int64_t before = 0;
  for (int64_t e = 0; e < first; e++) before += counts[e] < 0 ? 0 : counts[e];
  g->offsets[0] = least(before, rows);
  g->panels[0] = 0;
  counts += first;
  for (int64_t e = 0; e < g->groups; e++) {
    int64_t left = rows - g->offsets[e], count = counts[e] < 0 ? 0 : counts[e];
    g->offsets[e + 1] = g->offsets[e] + least(count, left);
    g->panels[e + 1] = g->panels[e] + heights(g, rows_of(g, e)) * g->strips;
  }
}

/* Runs a product. `counts` are the sizes of groups of `rows` rows, of which the groups from `first`
 * on have matrices; a row of A has `width` elements. */
static mpg_status run(const mpg_kernel_call *call, grouped *g, const mpg_view *counts,
                      int64_t first, int64_t rows, int64_t width) {
  bool wide = g->compute == MPG_COMPUTE_F64;
  g->narrow = !mpg_compute_direct(g->compute, g->dtype);
  g->strip = g->dots ? PANEL_COLUMNS : wide ? strip_f64 : strip_f32;
  g->strips = (g->n + g->strip - 1) / g->strip;
  int64_t row = g->dots ? g->k * (wide ? 8 : 4) + 1 : 1;
  g->tallest = least(L2_BYTES / row / DOT_ROWS * DOT_ROWS, TALLEST);
  if (g->tallest < 4 * DOT_ROWS) g->tallest = 4 * DOT_ROWS;
  g->block = L1_BYTES / row < 4 ? 4 : least(L1_BYTES / row / 4 * 4, PANEL_COLUMNS);
  g->b_bytes = mpg_shape_size(&call->inputs[1].desc.shape) * (int64_t)mpg_dtype_size(g->dtype);
  size_t tables = mpg_align_up((size_t)(2 * (g->groups + 1)) * sizeof(int64_t), 64),
         widened = g->narrow ? mpg_align_up((size_t)(rows * width) * sizeof(float), 64) : 0;
  g->scratch_bytes = mpg_cpu_buffer_step(wide ? panel_bytes_f64(g) : panel_bytes_f32(g));
  char *memory = mpg_device_scratch(
      call->device, tables + widened + g->scratch_bytes * (size_t)call->num_threads);
  if (!memory) return MPG_DEVICE_OUT_OF_MEMORY;
  g->offsets = (int64_t *)(void *)memory;
  g->panels = g->offsets + g->groups + 1;
  g->scratch = memory + tables + widened;
  find_groups(g, counts->data, first, rows);
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
