/* Ops whose result's shape depends on values. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

/* --- nonzero ---------------------------------------------------------------------------------- */

/* Adds the number of nonzero elements to `count`. Elements are read as bits, of which `mask` omits
 * the sign of floats. */
#define COUNT(type, bits_mask)                                                \
  do {                                                                        \
    const type *items = values, mask = (type)(bits_mask);                     \
    for (int64_t i = 0; i < size; i++) count += (type)(items[i] & mask) != 0; \
  } while (0)

static int64_t count_nonzero(mpg_dtype dtype, const void *values, int64_t size) {
  int64_t count = 0;
  bool signless = mpg_dtype_is_float(dtype);
  switch (mpg_dtype_size(dtype)) {
    case 1: COUNT(uint8_t, UINT8_MAX); break;
    case 2: COUNT(uint16_t, INT16_MAX); break;
    case 4: COUNT(uint32_t, signless ? INT32_MAX : UINT32_MAX); break;
    default: COUNT(uint64_t, signless ? INT64_MAX : UINT64_MAX); break;
  }
  return count;
}

mpg_status mpg_infer_nonzero(mpg_infer *infer) {
  const mpg_shape *data = &infer->inputs[0].shape;
  mpg_shape shape = {.ndim = 2, .dims = {-1, data->ndim > 0 ? data->ndim : 1}};
  if (data->ndim < 0) shape.dims[1] = -1;
  if (mpg_shape_known(data)) {
    int64_t size = mpg_shape_size(data);
    if (size == 0)
      shape.dims[0] = 0;
    else if (infer->values && infer->values[0])
      shape.dims[0] = count_nonzero(infer->inputs[0].dtype, infer->values[0], size);
  }
  mpg_infer_set(infer, 0, &shape, MPG_INT64);
  return MPG_OK;
}

/* --- unique ----------------------------------------------------------------------------------- */

int mpg_arity_unique(const mpg_op *op, const void *params, int given) {
  const mpg_unique_params *p = params;
  (void)op, (void)given;
  return 1 + p->return_index + p->return_inverse + p->return_counts;
}

/* Sets *axis to the dimension whose slices are compared, or to -1 for the flattened array. A 0-d
 * array is treated as a vector. */
static mpg_status axis_of(const mpg_op *op, const mpg_unique_params *p, int ndim, int *axis) {
  *axis = -1;
  return p->axis.present ? mpg_axis_normalize(p->axis.value, ndim ? ndim : 1, op->name, axis)
                         : MPG_OK;
}

mpg_status mpg_infer_unique(mpg_infer *infer) {
  const mpg_unique_params *p = infer->params;
  const mpg_shape *data = &infer->inputs[0].shape, some = {.ndim = 1, .dims = {-1}};
  mpg_shape values = some, all = some;
  if (data->ndim >= 0) {
    int axis;
    MPG_TRY(axis_of(infer->op, p, data->ndim, &axis));
    if (axis >= 0 && data->ndim) {
      values = *data;
      all.dims[0] = data->dims[axis];
      values.dims[axis] = -1;
    } else if (mpg_shape_known(data)) {
      all.dims[0] = mpg_shape_size(data);
    }
  } else if (p->axis.present) {
    values = MPG_SHAPE_UNKNOWN;
  }
  int output = 0;
  mpg_infer_set(infer, output++, &values, infer->inputs[0].dtype);
  if (p->return_index) mpg_infer_set(infer, output++, &some, MPG_INT64);
  if (p->return_inverse) mpg_infer_set(infer, output++, &all, MPG_INT64);
  if (p->return_counts) mpg_infer_set(infer, output++, &some, MPG_INT64);
  return MPG_OK;
}

static mpg_value take(mpg_gradient *g, mpg_value a, mpg_value indices, int axis) {
  mpg_take_params params;
  memset(&params, 0, sizeof params);
  params.axis = axis;
  return mpg_emit2(g, MPG_OP_take, &params, a, indices);
}

/* The columns of a matrix, each sorted. */
typedef struct sorted_columns {
  int64_t rows;
  mpg_value order;    /* row i of the sorted column is row order[i] of the column */
  mpg_value is_first; /* 1 for the first of equal elements in the sorted column, else 0; int64 */
} sorted_columns;

static sorted_columns sort_columns(mpg_gradient *g, mpg_value matrix) {
  sorted_columns s = {0, MPG_NO_VALUE, MPG_NO_VALUE};
  if (g->status != MPG_OK) return s;
  mpg_desc desc = *mpg_value_desc(g, matrix);
  mpg_argsort_params order = {
      .axis = {.value = 0, .present = 1}, .is_ascend = true, .dtype = MPG_INT64};
  mpg_along_params along = {.axis = 0, .size = desc.shape.dims[0]};
  mpg_shape row = desc.shape;
  row.dims[0] = 1;
  s.rows = desc.shape.dims[0];
  s.order = mpg_emit1(g, MPG_OP_argsort, &order, matrix);
  mpg_value sorted = mpg_emit2(g, MPG_OP__gather_along, &along, matrix, s.order);
  mpg_value next = mpg_emit_slice(g, sorted, 0, 1, s.rows),
            previous = mpg_emit_slice(g, sorted, 0, 0, s.rows - 1);
  mpg_value differs = mpg_emit2(g, MPG_OP__not_equal, NULL, next, previous);
  if (mpg_dtype_is_float(desc.dtype)) { /* NaN differs from itself, but not in this order */
    mpg_value both = mpg_multiply(g, mpg_emit1(g, MPG_OP__contrib_isnan, NULL, next),
                                  mpg_emit1(g, MPG_OP__contrib_isnan, NULL, previous));
    differs = mpg_emit2(g, MPG_OP__greater, NULL, differs, both);
  }
  mpg_value parts[] = {mpg_emit_full(g, matrix, &row, MPG_INT64, 1),
                       mpg_emit_cast(g, differs, MPG_INT64)};
  s.is_first = mpg_emit_concat(g, parts, 2, 0);
  return s;
}

/* Emits the dense ranks of the elements of each column: 0 for the smallest element and those equal
 * to it, 1 for the next larger element. */
static mpg_value ranks_of(mpg_gradient *g, const sorted_columns *s) {
  mpg_cumsum_params sum = {.axis = {.value = 0, .present = 1}, .dtype = MPG_DTYPE_NONE};
  mpg_along_params along = {.axis = 0, .size = s->rows};
  mpg_value ranks = mpg_plus(g, mpg_emit1(g, MPG_OP__np_cumsum, &sum, s->is_first), -1);
  return mpg_emit2(g, MPG_OP__scatter_along, &along, ranks, s->order);
}

static const int64_t MOST_ROWS = 3000000000; /* a pair of ranks must fit into an int64_t */

/* Emits a column of numbers that have the lexicographic order of the rows of a matrix. The columns
 * are replaced by their ranks, then pairs of adjacent columns by the ranks of the pairs, until one
 * column is left. */
static mpg_value ranks_of_rows(mpg_gradient *g, mpg_value matrix) {
  for (;;) {
    if (g->status != MPG_OK) return MPG_NO_VALUE;
    mpg_shape shape = mpg_value_desc(g, matrix)->shape;
    int64_t rows = shape.dims[0], pairs = shape.dims[1] / 2;
    if (shape.dims[1] == 1) return matrix;
    if (rows > MOST_ROWS) {
      mpg_gradient_fail(g, "the array has more than %lld slices", (long long)MOST_ROWS);
      return MPG_NO_VALUE;
    }
    sorted_columns s = sort_columns(g, matrix);
    mpg_value ranks = ranks_of(g, &s);
    mpg_shape paired = {.ndim = 3, .dims = {rows, pairs, 2}},
              flat = {.ndim = 2, .dims = {rows, pairs}};
    mpg_value both = mpg_emit_reshape(g, mpg_emit_slice(g, ranks, 1, 0, 2 * pairs), &paired);
    mpg_value first = mpg_emit_reshape(g, mpg_emit_slice(g, both, 2, 0, 1), &flat),
              second = mpg_emit_reshape(g, mpg_emit_slice(g, both, 2, 1, 2), &flat);
    mpg_value parts[2] = {mpg_add(g, mpg_times(g, first, (double)rows), second)};
    if (shape.dims[1] % 2) parts[1] = mpg_emit_slice(g, ranks, 1, 2 * pairs, 2 * pairs + 1);
    matrix = mpg_emit_concat(g, parts, shape.dims[1] % 2 ? 2 : 1, 1);
  }
}

/* Emits the results for an array without slices. */
static void compose_empty(mpg_gradient *g, mpg_value data, const mpg_shape *shape,
                          mpg_value *outputs) {
  mpg_shape none = {.ndim = 1, .dims = {0}};
  outputs[0] = mpg_emit_full(g, data, shape, mpg_value_desc(g, data)->dtype, 0);
  for (int i = 1; i < g->num_outputs; i++) outputs[i] = mpg_emit_full(g, data, &none, MPG_INT64, 0);
}

void mpg_compose_unique(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_unique_params *p = g->params;
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  int axis;
  g->status = axis_of(g->op, p, shape.ndim, &axis);
  if (g->status != MPG_OK) return;
  if (axis < 0 || shape.ndim == 0)
    shape = (mpg_shape){.ndim = 1, .dims = {mpg_shape_size(&shape)}}, axis = 0;
  int64_t rows = shape.dims[axis];
  if (rows == 0) {
    compose_empty(g, inputs[0], &shape, outputs);
    return;
  }
  mpg_value data = mpg_emit_reshape(g, mpg_emit1(g, MPG_OP_BlockGrad, NULL, inputs[0]), &shape);
  mpg_shape matrix = {.ndim = 2, .dims = {rows, mpg_shape_size(&shape) / rows}};
  mpg_value keys;
  if (matrix.dims[1] == 0) { /* all slices are empty, hence equal */
    matrix.dims[1] = 1;
    keys = mpg_emit_full(g, data, &matrix, MPG_INT64, 0);
  } else {
    int64_t axes[MPG_MAX_NDIM] = {axis};
    for (int i = 1; i < shape.ndim; i++) axes[i] = i <= axis ? i - 1 : i;
    keys = axis ? mpg_emit_transpose(g, data, shape.ndim, axes) : data;
    keys = ranks_of_rows(g, mpg_emit_reshape(g, keys, &matrix));
  }
  sorted_columns s = sort_columns(g, keys);
  mpg_value found = mpg_emit1(g, MPG_OP__nonzero, NULL, s.is_first);
  if (g->status != MPG_OK) return;
  mpg_shape all = {.ndim = 1, .dims = {rows}},
            some = {.ndim = 1, .dims = {mpg_value_desc(g, found)->shape.dims[0]}};
  mpg_value first = mpg_emit_reshape(g, mpg_emit_slice(g, found, 1, 0, 1), &some);
  mpg_value index = take(g, mpg_emit_reshape(g, s.order, &all), first, 0);
  int output = 0;
  outputs[output++] = take(g, data, index, axis);
  if (p->return_index) outputs[output++] = index;
  if (p->return_inverse) outputs[output++] = mpg_emit_reshape(g, ranks_of(g, &s), &all);
  if (p->return_counts) {
    mpg_shape one = {.ndim = 1, .dims = {1}};
    mpg_value ends[] = {mpg_emit_slice(g, first, 0, 1, some.dims[0]),
                        mpg_emit_full(g, data, &one, MPG_INT64, (double)rows)};
    outputs[output++] = mpg_subtract(g, mpg_emit_concat(g, ends, 2, 0), first);
  }
}

/* --- bincount --------------------------------------------------------------------------------- */

static mpg_status expect_vector(mpg_infer *infer) {
  const mpg_shape *data = &infer->inputs[0].shape;
  return data->ndim < 0 || data->ndim == 1
             ? MPG_OK
             : mpg_infer_fail(infer, "data must have one dimension; flatten it with reshape(-1)");
}

mpg_status mpg_infer_bincount(mpg_infer *infer) {
  mpg_shape bins = {.ndim = 1, .dims = {-1}};
  MPG_TRY(expect_vector(infer));
  if (infer->num_inputs > 1) MPG_TRY(mpg_infer_expect_shape(infer, 1, &infer->inputs[0].shape));
  mpg_infer_set(infer, 0, &bins, infer->num_inputs > 1 ? infer->inputs[1].dtype : MPG_INT64);
  return MPG_OK;
}

/* Updates `largest`, which starts at -1, and *least, which starts at 0. */
#define LARGEST(type)                             \
  do {                                            \
    const type *items = values;                   \
    for (int64_t i = 0; i < size; i++) {          \
      if (items[i] > largest) largest = items[i]; \
      if (items[i] < *least) *least = items[i];   \
    }                                             \
  } while (0)

/* Returns the maximum of -1 and the elements. Sets *least to the minimum of 0 and the elements. */
static int64_t largest_of(mpg_dtype dtype, const void *values, int64_t size, int64_t *least) {
  int64_t largest = -1;
  *least = 0;
  switch (dtype) {
    case MPG_UINT8: LARGEST(uint8_t); break;
    case MPG_INT8: LARGEST(int8_t); break;
    case MPG_INT32: LARGEST(int32_t); break;
    default: LARGEST(int64_t); break;
  }
  return largest;
}

mpg_status mpg_infer_bincount_bins(mpg_infer *infer) {
  const mpg_bincount_params *p = infer->params;
  const mpg_shape *data = &infer->inputs[0].shape;
  mpg_shape bins = {.ndim = 1, .dims = {-1}};
  MPG_TRY(expect_vector(infer));
  if (mpg_shape_known(data) && ((infer->values && infer->values[0]) || !data->dims[0])) {
    const void *values = data->dims[0] ? infer->values[0] : NULL;
    int64_t least, largest = largest_of(infer->inputs[0].dtype, values, data->dims[0], &least);
    if (least < 0)
      return mpg_infer_fail(infer, "data has a negative number: %lld", (long long)least);
    if (largest == INT64_MAX)
      return mpg_infer_fail(infer, "data has a number that is too large: %lld", (long long)largest);
    bins.dims[0] = largest + 1 > p->minlength ? largest + 1 : p->minlength;
  }
  mpg_infer_set(infer, 0, &bins, MPG_INT64);
  return MPG_OK;
}

void mpg_compose_bincount(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  mpg_value bins = mpg_emit1(g, MPG_OP__bincount_bins, g->params, inputs[0]);
  if (g->status != MPG_OK) return;
  mpg_shape data = mpg_value_desc(g, inputs[0])->shape;
  if (data.dims[0] == 0) { /* no index is valid if there are no bins */
    outputs[0] =
        mpg_emit_cast(g, bins, g->num_inputs > 1 ? mpg_value_desc(g, inputs[1])->dtype : MPG_INT64);
    return;
  }
  mpg_take_back_params params;
  memset(&params, 0, sizeof params);
  params.shape = mpg_shape_tuple(&mpg_value_desc(g, bins)->shape);
  mpg_value weights =
      g->num_inputs > 1 ? inputs[1] : mpg_emit_full(g, inputs[0], &data, MPG_INT64, 1);
  outputs[0] = mpg_emit2(g, MPG_OP__backward_take, &params, weights, inputs[0]);
}
