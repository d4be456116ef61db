/* Matrix products of multi-head attention on interleaved projections, as in MXNet's transformers. A
 * projection is (length, batch, heads x parts x features), so the parts of a head (query, key and
 * value) are adjacent.
 */
#include <math.h>
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

typedef struct projection {
  int64_t length, batch, features; /* `features` counts one part of one head */
} projection;

/* Returns the sizes of a projection with `parts` parts per head. */
static projection sizes_of(mpg_gradient *g, mpg_value value, int parts, const char *name) {
  const mpg_interleaved_params *params = g->params;
  const mpg_shape *shape = &mpg_value_desc(g, value)->shape;
  char text[MPG_SHAPE_TEXT_SIZE];
  if (g->status != MPG_OK) return (projection){0};
  int64_t share = params->heads <= INT32_MAX ? params->heads * parts : 0;
  if (shape->ndim == 3 && share && shape->dims[2] % share == 0)
    return (projection){shape->dims[0], shape->dims[1], shape->dims[2] / share};
  mpg_gradient_fail(g, "%s must be (length, batch, heads * %d * features) of %lld heads, not %s",
                    name, parts, (long long)params->heads,
                    mpg_shape_text(shape, text, sizeof text));
  return (projection){0};
}

static mpg_value swap_first(mpg_gradient *g, mpg_value value) {
  mpg_transpose_params params;
  memset(&params, 0, sizeof params);
  params.axes = (mpg_tuple){.count = 3, .values = {1, 0, 2}};
  return mpg_emit1(g, MPG_OP_transpose, &params, value);
}

/* Emits one part (query, key or value) of all heads: (batch x heads, length, features). */
static mpg_value part_of(mpg_gradient *g, mpg_value value, projection size, int parts, int part) {
  const mpg_interleaved_params *params = g->params;
  mpg_shape by_head = {.ndim = 3,
                       .dims = {size.length, size.batch * params->heads, parts * size.features}};
  mpg_slice_axis_params slice;
  memset(&slice, 0, sizeof slice);
  slice.axis = 2;
  slice.begin = part * size.features;
  slice.end = (mpg_opt_int){.value = (part + 1) * size.features, .present = 1};
  mpg_value heads = mpg_emit_reshape(g, value, &by_head);
  return swap_first(g, parts > 1 ? mpg_emit1(g, MPG_OP_slice_axis, &slice, heads) : heads);
}

static mpg_value scores(mpg_gradient *g, mpg_value query, mpg_value key, int64_t features) {
  mpg_batch_dot_params product;
  memset(&product, 0, sizeof product);
  product.transpose_b = true;
  return mpg_times(g, mpg_emit2(g, MPG_OP_batch_dot, &product, query, key),
                   1 / sqrt((double)(features ? features : 1)));
}

/* Multiplies the values by the attention weights (batch x heads, queries, keys) and merges the
 * heads. */
static mpg_value look_up(mpg_gradient *g, mpg_value attention, mpg_value value, projection size) {
  const mpg_interleaved_params *params = g->params;
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  const mpg_shape *shape = &mpg_value_desc(g, attention)->shape;
  mpg_shape result = {.ndim = 3, .dims = {0, size.batch, params->heads * size.features}};
  if (shape->ndim != 3 || shape->dims[0] != size.batch * params->heads ||
      shape->dims[2] != size.length) {
    char text[MPG_SHAPE_TEXT_SIZE];
    mpg_gradient_fail(g, "attention must be (%lld, queries, %lld), not %s",
                      (long long)(size.batch * params->heads), (long long)size.length,
                      mpg_shape_text(shape, text, sizeof text));
    return MPG_NO_VALUE;
  }
  result.dims[0] = shape->dims[1];
  mpg_batch_dot_params product;
  memset(&product, 0, sizeof product);
  mpg_value looked_up = mpg_emit2(g, MPG_OP_batch_dot, &product, attention, value);
  return mpg_emit_reshape(g, swap_first(g, looked_up), &result);
}

void mpg_compose_interleaved_selfatt_qk(mpg_gradient *g, const mpg_value *inputs,
                                        mpg_value *outputs) {
  projection size = sizes_of(g, inputs[0], 3, "queries_keys_values");
  if (g->status != MPG_OK) return;
  outputs[0] = scores(g, part_of(g, inputs[0], size, 3, 0), part_of(g, inputs[0], size, 3, 1),
                      size.features);
}

void mpg_compose_interleaved_selfatt_valatt(mpg_gradient *g, const mpg_value *inputs,
                                            mpg_value *outputs) {
  projection size = sizes_of(g, inputs[0], 3, "queries_keys_values");
  if (g->status == MPG_OK)
    outputs[0] = look_up(g, inputs[1], part_of(g, inputs[0], size, 3, 2), size);
}

void mpg_compose_interleaved_encdec_qk(mpg_gradient *g, const mpg_value *inputs,
                                       mpg_value *outputs) {
  projection query = sizes_of(g, inputs[0], 1, "queries"),
             key = sizes_of(g, inputs[1], 2, "keys_values");
  if (g->status == MPG_OK && (query.batch != key.batch || query.features != key.features))
    mpg_gradient_fail(g,
                      "queries (length, batch, heads * features) and keys_values differ in "
                      "batch or features");
  if (g->status != MPG_OK) return;
  outputs[0] =
      scores(g, part_of(g, inputs[0], query, 1, 0), part_of(g, inputs[1], key, 2, 0), key.features);
}

void mpg_compose_interleaved_encdec_valatt(mpg_gradient *g, const mpg_value *inputs,
                                           mpg_value *outputs) {
  projection size = sizes_of(g, inputs[0], 2, "keys_values");
  if (g->status == MPG_OK)
    outputs[0] = look_up(g, inputs[1], part_of(g, inputs[0], size, 2, 1), size);
}
