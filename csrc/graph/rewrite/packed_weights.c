/* Rewrite rules for prediction: convolutions and dense layers read weights that are packed once
 * instead of in every call. Convolutions are fused with an addition and a relu that follow. */
#include <string.h>

#include "graph/rewrite/rewrite.h"
#include "op/layers/convolution.h"
#include "op/math/product.h"

/* True if a value depends only on parameters. Visits at most *budget values, and otherwise returns
 * false. A packed copy of the value is then computed in the invariants phase instead of in every
 * call. */
static bool known_before(const mpg_rewrite *r, mpg_operand value, int *budget) {
  if (!mpg_has_value(value.value) || --*budget < 0) return false;
  const mpg_node *node = mpg_rewrite_node(r, value);
  if (r->written[mpg_value_index(r->graph, value.value)]) return false;
  if (mpg_node_is_input(node)) return r->parameter[value.value.node];
  if (!node->op || (node->op->flags & (MPG_OP_RANDOM | MPG_OP_RENDEZVOUS)) ||
      mpg_node_mutates(node))
    return false;
  for (uint32_t i = 0; i < node->num_inputs; i++)
    if (!known_before(r, mpg_rewrite_input(r, value, i), budget)) return false;
  return node->num_inputs > 0;
}

typedef struct found {
  mpg_operand convolution, added;
  bool channels_last, add, relu;
} found;

static bool match_convolution(const mpg_rewrite *r, mpg_operand from, mpg_match match, found *f) {
  f->channels_last =
      mpg_rewrite_match(r, from, MPG_OP__convolution_channels_last, match, &f->convolution);
  if (!f->channels_last && !mpg_rewrite_match(r, from, MPG_OP_Convolution, match, &f->convolution))
    return false;
  const mpg_convolution_params *p = mpg_rewrite_params(r, f->convolution);
  int budget = 48;
  return mpg_rewrite_desc(r, f->convolution)->dtype == MPG_FLOAT32 &&
         mpg_layout_of(p->layout) == MPG_CHANNELS_FIRST &&
         mpg_shape_size(&mpg_rewrite_desc(r, f->convolution)->shape) > 0 &&
         known_before(r, mpg_rewrite_input(r, f->convolution, 1), &budget);
}

/* Matches convolution + x or x + convolution. */
static bool match_sum(const mpg_rewrite *r, mpg_operand from, found *f) {
  mpg_operand sum;
  if (!mpg_rewrite_match(r, from, MPG_OP_elemwise_add, MPG_PRIVATE, &sum) &&
      !mpg_rewrite_match(r, from, MPG_OP_broadcast_add, MPG_PRIVATE, &sum))
    return false;
  mpg_operand sides[2] = {mpg_rewrite_input(r, sum, 0), mpg_rewrite_input(r, sum, 1)};
  if (!mpg_rewrite_is_addition(r, mpg_rewrite_node(r, sum))) return false;
  /* Prefers the later of two convolutions, because the result of the earlier one is available by
   * then. */
  int first = sides[1].value.node > sides[0].value.node;
  for (int i = 0; i < 2; i++) {
    int side = first ^ i;
    if (!match_convolution(r, sides[side], MPG_PRIVATE, f) || !f->channels_last) continue;
    f->added = sides[!side];
    return true;
  }
  return false;
}

/* Takes the inputs of the op that replaces a convolution: data, packed weight (filled in later),
 * bias, added array. Returns their number. */
static int take_inputs(mpg_rewrite *r, const found *f, mpg_value *inputs) {
  int count = 2;
  inputs[0] = mpg_rewrite_take(r, mpg_rewrite_input(r, f->convolution, 0));
  if (mpg_rewrite_node(r, f->convolution)->num_inputs == 3)
    inputs[count++] = mpg_rewrite_take(r, mpg_rewrite_input(r, f->convolution, 2));
  if (f->add) inputs[count++] = mpg_rewrite_take(r, f->added);
  return count;
}

static void replace_by_winograd(mpg_rewrite *r, const found *f) {
  const mpg_node *node = mpg_rewrite_node(r, f->convolution);
  mpg_winograd_params params;
  mpg_winograd_params_from(&params, node->params);
  params.no_bias = node->num_inputs == 2;
  params.add = f->add;
  params.relu = f->relu;
  mpg_value inputs[4], result,
      weight = mpg_rewrite_take(r, mpg_rewrite_input(r, f->convolution, 1));
  int count = take_inputs(r, f, inputs);
  mpg_pack_winograd_params pack = {0};
  mpg_rewrite_emit(r, MPG_OP__pack_winograd, &pack, &weight, 1, &inputs[1]);
  mpg_rewrite_emit(r, MPG_OP__winograd_convolution, &params, inputs, count, &result);
  mpg_rewrite_replace(r, 0, result);
}

static void replace(mpg_rewrite *r, const found *f) {
  const mpg_node *node = mpg_rewrite_node(r, f->convolution);
  if (f->channels_last && mpg_rewrite_winograd_pays(r, f->convolution, true)) {
    replace_by_winograd(r, f);
    return;
  }
  mpg_packed_convolution_params params;
  mpg_packed_params_from(&params, node->params);
  params.no_bias = node->num_inputs == 2;
  params.channels_last = f->channels_last;
  params.add = f->add;
  params.relu = f->relu;
  const mpg_shape *data = &mpg_rewrite_desc(r, mpg_rewrite_input(r, f->convolution, 0))->shape;
  params.shape = mpg_shape_tuple(data);
  params.shape.values[0] = 1; /* batches of all sizes share one packed weight */
  mpg_value inputs[4], result,
      weight = mpg_rewrite_take(r, mpg_rewrite_input(r, f->convolution, 1));
  int count = take_inputs(r, f, inputs);
  mpg_rewrite_emit(r, MPG_OP__pack_convolution, &params, &weight, 1, &inputs[1]);
  mpg_rewrite_emit(r, MPG_OP__packed_convolution, &params, inputs, count, &result);
  mpg_rewrite_replace(r, 0, result);
}

static bool pack_with_relu(mpg_rewrite *r, uint32_t n) {
  const mpg_node *node = &r->graph->nodes[n];
  found f = {.relu = true};
  if (!mpg_rewrite_is_relu(node)) return false;
  mpg_operand before = mpg_rewrite_input(r, mpg_rewrite_shown(r), 0);
  if (match_sum(r, before, &f))
    f.add = true;
  else if (!match_convolution(r, before, MPG_PRIVATE, &f))
    return false;
  replace(r, &f);
  return true;
}

static bool pack(mpg_rewrite *r, uint32_t n) {
  const mpg_node *node = &r->graph->nodes[n];
  found f = {0};
  if (node->op->id != MPG_OP_Convolution && node->op->id != MPG_OP__convolution_channels_last)
    return false;
  if (!match_convolution(r, mpg_rewrite_shown(r), MPG_SHARED, &f)) return false;
  replace(r, &f);
  return true;
}

/* Packs the weight of a dense layer. Skips small weights, because small products run in a plain
 * loop that reads the weight unpacked. Also skips products that are computed in panels
 * (op/math/product.h), because a fused group can follow them, and packing in each call is a small
 * part of their work. */
static bool pack_dense(mpg_rewrite *r, uint32_t n) {
  const mpg_node *node = &r->graph->nodes[n];
  mpg_operand shown = mpg_rewrite_shown(r), data = mpg_rewrite_input(r, shown, 0),
              weight = mpg_rewrite_input(r, shown, 1);
  const mpg_desc *desc = mpg_rewrite_desc(r, shown);
  const int64_t least = MPG_PACKED_BLOCK * MPG_PACKED_BLOCK;
  int budget = 48;
  if (node->op->id != MPG_OP_FullyConnected || desc->dtype != MPG_FLOAT32 ||
      mpg_shape_size(&desc->shape) == 0)
    return false;
  if (mpg_shape_size(&mpg_rewrite_desc(r, weight)->shape) < least ||
      !known_before(r, weight, &budget))
    return false;
  const mpg_fully_connected_params *p = node->params;
  mpg_product product;
  if (mpg_product_in_panels(
          node->op, p, (const mpg_desc *[]){mpg_rewrite_desc(r, data), mpg_rewrite_desc(r, weight)},
          &product))
    return false;
  mpg_fully_connected_params params = *p;
  mpg_pack_fully_connected_params pack;
  memset(&pack, 0, sizeof pack);
  pack.no_bias = params.no_bias = node->num_inputs == 2;
  mpg_value inputs[3] = {mpg_rewrite_take(r, data), mpg_rewrite_take(r, weight)}, result;
  if (!params.no_bias) inputs[2] = mpg_rewrite_take(r, mpg_rewrite_input(r, shown, 2));
  mpg_rewrite_emit(r, MPG_OP__pack_fully_connected, &pack, &inputs[1], 1, &inputs[1]);
  mpg_rewrite_emit(r, MPG_OP__packed_fully_connected, &params, inputs, params.no_bias ? 2 : 3,
                   &result);
  mpg_rewrite_replace(r, 0, result);
  return true;
}

const mpg_rewrite_rule mpg_rule_packed_dense = {.name = "packed dense layers",
                                                .apply = pack_dense,
                                                .prediction = true,
                                                .keeps = true,
                                                .needs = 1 + MPG_OP__packed_fully_connected};
const mpg_rewrite_rule mpg_rule_packed_relu = {.name = "convolutions with relu",
                                               .apply = pack_with_relu,
                                               .prediction = true,
                                               .keeps = true,
                                               .needs = 1 + MPG_OP__packed_convolution};
const mpg_rewrite_rule mpg_rule_packed = {.name = "packed convolutions",
                                          .apply = pack,
                                          .prediction = true,
                                          .keeps = true,
                                          .needs = 1 + MPG_OP__packed_convolution};
