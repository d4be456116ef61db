/* Histogram: counts the elements in each bin. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

int mpg_arity_histogram(const mpg_op *op, const void *params, int given) {
  (void)op;
  (void)given;
  return ((const mpg_histogram_params *)params)->bin_cnt.present ? 1 : 2;
}

/* Emits the edges of `bins` equal-width bins from range[0] to range[1]. The outermost edges are
 * exact, because a rounded one could exclude the least or greatest element. */
static mpg_value equal_edges(mpg_gradient *g, mpg_value data, int64_t bins, const double *range) {
  mpg_shape shape = {.ndim = 1, .dims = {bins + 1}};
  mpg_value high = mpg_emit_count(g, data, bins + 1, MPG_FLOAT64, &shape),
            low = mpg_minus_from(g, (double)bins, high);
  mpg_value sum = mpg_add(g, mpg_times(g, high, range[1]), mpg_times(g, low, range[0]));
  mpg_value edges = mpg_emit_scalar(g, MPG_OP__div_scalar, sum, (double)bins);
  for (int end = 0; end < 2; end++) {
    mpg_value is_end = mpg_emit_scalar(g, MPG_OP__equal_scalar, high, end ? (double)bins : 0);
    edges =
        mpg_emit_where(g, is_end, mpg_emit_full(g, high, &shape, MPG_FLOAT64, range[end]), edges);
  }
  return edges;
}

/* Finds the bin of each element by binary search over the edges, then counts the elements in each
 * bin. */
void mpg_compose_histogram(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_histogram_params *params = g->params;
  mpg_desc data = *mpg_value_desc(g, inputs[0]);
  mpg_value edges;
  int64_t bins = params->bin_cnt.value;
  if (params->bin_cnt.present) {
    const double *range = params->range.values;
    if (params->range.count != 2 || !(range[0] < range[1])) {
      mpg_gradient_fail(g, "bin_cnt requires range=(low, high) with low < high");
      return;
    }
    if (bins < 1 || bins >= INT32_MAX) {
      mpg_gradient_fail(g, "bin_cnt must be from 1 to 2147483646");
      return;
    }
    edges = mpg_emit_cast(g, equal_edges(g, inputs[0], bins, range), data.dtype);
  } else {
    const mpg_desc *given = mpg_value_desc(g, inputs[1]);
    bins = given->shape.dims[0] - 1;
    if (params->range.count > 0) {
      mpg_gradient_fail(g, "range requires bin_cnt");
      return;
    }
    if (given->shape.ndim != 1 || bins < 1 || bins >= INT32_MAX) {
      mpg_gradient_fail(g, "bins must be a vector of at least 2 edges");
      return;
    }
    if (!mpg_same_dtype(g, 0, 1)) return;
    edges = mpg_emit1(g, MPG_OP__copy, NULL, inputs[1]);
  }
  mpg_shape flat = {.ndim = 1, .dims = {mpg_shape_size(&data.shape)}};
  outputs[1] = edges;
  mpg_value x = mpg_emit_reshape(g, inputs[0], &flat),
            place = mpg_emit_full(g, inputs[0], &flat, MPG_INT32, 0),
            last = mpg_emit_full(g, inputs[0], &flat, MPG_INT32, (double)bins);
  mpg_take_params take;
  memset(&take, 0, sizeof take);
  int64_t step = 1;
  while (step <= bins / 2) step *= 2;
  for (; step; step /= 2) {
    mpg_value next = mpg_emit_scalar(g, MPG_OP__minimum_scalar, mpg_plus(g, place, (double)step),
                                     (double)bins),
              edge = mpg_emit2(g, MPG_OP_take, &take, edges, next);
    place = mpg_emit_where(g, mpg_emit2(g, MPG_OP__lesser_equal, NULL, edge, x), next, place);
  }
  mpg_value lowest = mpg_emit_slice(g, edges, 0, 0, 1),
            highest = mpg_emit_slice(g, edges, 0, bins, bins + 1);
  /* The last bin includes its upper edge. Elements outside the edges are counted in an extra bin,
   * which is dropped. */
  mpg_value inside = mpg_multiply(g, mpg_emit2(g, MPG_OP_broadcast_greater_equal, NULL, x, lowest),
                                  mpg_emit2(g, MPG_OP_broadcast_lesser_equal, NULL, x, highest));
  place = mpg_emit_scalar(g, MPG_OP__minimum_scalar, place, (double)(bins - 1));
  place = mpg_emit_where(g, inside, place, last);
  mpg_take_back_params back;
  memset(&back, 0, sizeof back);
  back.shape = (mpg_tuple){.count = 1, .values = {bins + 1}};
  mpg_value ones = mpg_emit_full(g, inputs[0], &flat, MPG_INT64, 1);
  outputs[0] =
      mpg_emit_slice(g, mpg_emit2(g, MPG_OP__backward_take, &back, ones, place), 0, 0, bins);
}
