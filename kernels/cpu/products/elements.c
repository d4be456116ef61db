/* Products of a sparse matrix in COO format with a dense one. The work is divided by rows or
 * columns of the result. Each element of the result is summed in the order of the sparse elements,
 * so rounding does not depend on the number of threads. */
#include <string.h>

#include "kernels/common/view.h"
#include "kernels/cpu/index.h"

typedef struct product {
  const mpg_kernel_call *call;
  const int64_t *rows, *columns;
  int64_t count, height, width, length; /* number of sparse elements; m, n and k */
  bool ascending;
} product;

/* Returns the index of the first sparse element whose row is at least `row`, by binary search. The
 * rows must be ascending. */
static int64_t first_of(const product *p, int64_t row) {
  int64_t low = 0, high = p->count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (p->rows[middle] < row)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Computes columns [first, last) of the result's rows [low, high). */
#define ADD_PRODUCTS(name, type)                                                               \
  static void name(const product *p, int64_t first, int64_t last, int64_t low, int64_t high) { \
    const type *values = p->call->inputs[0].data, *dense = p->call->inputs[3].data;            \
    type *out = p->call->outputs[0].data;                                                      \
    int64_t begin = p->ascending ? first_of(p, low) : 0,                                       \
            end = p->ascending ? first_of(p, high) : p->count;                                 \
    for (int64_t row = low; row < high; row++)                                                 \
      memset(out + row * p->width + first, 0, (size_t)(last - first) * sizeof *out);           \
    for (int64_t i = begin; i < end;) {                                                        \
      int64_t row = p->rows[i];                                                                \
      if (row < low || row >= high) {                                                          \
        i++;                                                                                   \
        continue;                                                                              \
      }                                                                                        \
      if (p->width == 1) {                                                                     \
        type sum = out[row];                                                                   \
        do {                                                                                   \
          sum += values[i] * dense[mpg_index_clip(p->columns[i], p->length)];                  \
        } while (++i < end && p->rows[i] == row);                                              \
        out[row] = sum;                                                                        \
        continue;                                                                              \
      }                                                                                        \
      type value = values[i];                                                                  \
      const type *source = dense + mpg_index_clip(p->columns[i++], p->length) * p->width;      \
      type *target = out + row * p->width;                                                     \
      MPG_INDEPENDENT                                                                          \
      for (int64_t c = first; c < last; c++) target[c] += value * source[c];                   \
    }                                                                                          \
  }
ADD_PRODUCTS(add_f32, float)
ADD_PRODUCTS(add_f64, double)
#undef ADD_PRODUCTS

static void add(const product *p, int64_t first, int64_t last, int64_t low, int64_t high) {
  if (p->call->outputs[0].desc.dtype == MPG_FLOAT32)
    add_f32(p, first, last, low, high);
  else
    add_f64(p, first, last, low, high);
}
static void add_columns(void *context, int64_t begin, int64_t end) {
  const product *p = context;
  add(p, begin, end, 0, p->height);
}
static void add_rows(void *context, int64_t begin, int64_t end) {
  const product *p = context;
  add(p, 0, p->width, begin, end);
}

mpg_status mpg_cpu_add_products(const mpg_kernel_call *call) {
  const mpg_shape *dense = &call->inputs[3].desc.shape;
  product p = {.call = call,
               .rows = call->inputs[1].data,
               .columns = call->inputs[2].data,
               .count = count_of(&call->inputs[0]),
               .height = call->outputs[0].desc.shape.dims[0],
               .width = mpg_shape_product(dense, 1, dense->ndim),
               .length = dense->dims[0],
               .ascending = true};
  if (!p.height || !p.width) return MPG_OK;
  for (int64_t i = 1; i < p.count && p.ascending; i++) p.ascending = p.rows[i - 1] <= p.rows[i];
  if (p.count * p.width + p.height < 8192)
    add(&p, 0, p.width, 0, p.height);
  else if (!p.ascending && p.width >= 16 * (int64_t)call->num_threads)
    mpg_cpu_parallel_for(call, p.width, 16, add_columns, &p);
  else
    mpg_cpu_parallel_for(call, p.height, 1, add_rows, &p);
  return MPG_OK;
}
