/* Lookups in parts of an array, such as an Embedding whose vocabulary is divided. Each device looks
 * up the indices of its part and has zeros for the rest, so that the sum is the whole result. */
#include "graph/partition/partition.h"
#include "op/formula/arithmetic.h"

static mpg_gradient builder_of(mpg_graph *target) {
  return (mpg_gradient){.builder = &target->builder, .op = mpg_op_get(MPG_OP_take)};
}

static mpg_value clip(mpg_gradient *g, mpg_value value, int64_t size) {
  const mpg_clip_params params = {.a_min = 0, .a_max = (double)(size - 1)};
  return mpg_emit1(g, MPG_OP_clip, &params, value);
}

mpg_status mpg_lookup_begin(mpg_graph *target, const mpg_lookup *lookup, mpg_value *indices,
                            mpg_value *inside) {
  mpg_gradient g = builder_of(target);
  /* The op clips indices that are out of range. */
  mpg_value local =
      mpg_plus(&g, clip(&g, mpg_widen(&g, *indices), lookup->whole), -(double)lookup->begin);
  *inside = mpg_multiply(&g, mpg_emit_scalar(&g, MPG_OP__greater_equal_scalar, local, 0),
                         mpg_emit_scalar(&g, MPG_OP__lesser_scalar, local, (double)lookup->count));
  *indices = clip(&g, local, lookup->count);
  return g.status;
}

mpg_status mpg_lookup_end(mpg_graph *target, const mpg_lookup *lookup, mpg_value inside,
                          mpg_value *output) {
  mpg_gradient g = builder_of(target);
  const mpg_shape shape = mpg_graph_at(target, *output)->desc.shape,
                  given = mpg_graph_at(target, inside)->desc.shape;
  mpg_shape own = {.ndim = shape.ndim};
  for (int i = 0; i < shape.ndim; i++) {
    int axis = i - lookup->axis;
    own.dims[i] = axis >= 0 && axis < given.ndim ? given.dims[axis] : 1;
  }
  /* A product with the condition would be NaN for infinity. */
  *output = mpg_emit_where(&g, mpg_emit_reshape(&g, inside, &own), *output,
                           mpg_emit_full_like(&g, *output, 0));
  return g.status;
}
