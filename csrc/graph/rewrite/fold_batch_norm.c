/* Rewrite rule for prediction: folds BatchNorm with known statistics into the convolution or dense
 * product before it. */
#include <string.h>

#include "graph/rewrite/rewrite.h"

/* Matches the product that computes a BatchNorm's data, if it has no other reader and is normalized
 * along its channels. */
static bool product_before(const mpg_rewrite *r, mpg_operand data, int64_t axis,
                           mpg_operand *product, bool *has_bias) {
  if (mpg_rewrite_match(r, data, MPG_OP_Convolution, MPG_PRIVATE, product)) {
    *has_bias = mpg_rewrite_node(r, *product)->num_inputs == 3;
    enum { LAYOUT_NDHWC = 3 }; /* the first layout with channels last */
    bool last =
        ((const mpg_convolution_params *)mpg_rewrite_params(r, *product))->layout >= LAYOUT_NDHWC;
    return axis == (last ? mpg_rewrite_desc(r, *product)->shape.ndim - 1 : 1);
  }
  if (mpg_rewrite_match(r, data, MPG_OP_FullyConnected, MPG_PRIVATE, product)) {
    *has_bias = mpg_rewrite_node(r, *product)->num_inputs == 3;
    return axis == mpg_rewrite_desc(r, *product)->shape.ndim - 1;
  }
  return false;
}

static mpg_value binary(mpg_rewrite *r, mpg_op_id op, mpg_value a, mpg_value b) {
  mpg_value inputs[2] = {a, b}, result;
  return mpg_rewrite_emit(r, op, NULL, inputs, 2, &result);
}

/* Emits gamma / sqrt(variance + eps), of shape (channels,). */
static mpg_value scale_of(mpg_rewrite *r, const mpg_batch_norm_params *p, mpg_value gamma,
                          mpg_value variance) {
  mpg_scalar_params eps;
  memset(&eps, 0, sizeof eps);
  eps.scalar = p->eps;
  mpg_value scale;
  mpg_rewrite_emit(r, MPG_OP__plus_scalar, &eps, &variance, 1, &scale);
  mpg_rewrite_emit(r, MPG_OP_rsqrt, NULL, &scale, 1, &scale);
  return p->fix_gamma ? scale : binary(r, MPG_OP_elemwise_mul, scale, gamma);
}

static bool parameters(const mpg_rewrite *r, const mpg_operand *operands, uint32_t count,
                       mpg_dtype dtype, uint32_t node) {
  for (uint32_t i = 0; i < count; i++)
    if (!mpg_rewrite_is_parameter(r, operands[i]) ||
        mpg_rewrite_desc(r, operands[i])->dtype != dtype ||
        r->written[mpg_value_index(r->graph, mpg_rewrite_skip_copies(r, operands[i]).value)] > node)
      return false;
  return true;
}

/* y = (w x + b - mean) * scale + beta  =  (scale w) x + (beta + (b - mean) * scale) */
static bool fold_norm(mpg_rewrite *r, uint32_t n) {
  const mpg_node *node = &r->graph->nodes[n];
  if (node->op->id != MPG_OP_BatchNorm) return false;
  const mpg_batch_norm_params *p = node->params;
  if (node->train && !p->use_global_stats) return false;
  /* The rule does not compute the outputs mean and variance, so they must be unused. */
  if (r->users[node->values + 1] || r->users[node->values + 2]) return false;
  /* The operands in `known` are gamma, beta, mean, variance, weight and bias. */
  mpg_operand norm = mpg_rewrite_shown(r), data = mpg_rewrite_input(r, norm, 0), product, known[6];
  const mpg_desc *desc = mpg_rewrite_desc(r, norm);
  bool has_bias;
  if (!product_before(r, data, p->axis < 0 ? p->axis + desc->shape.ndim : p->axis, &product,
                      &has_bias))
    return false;
  for (uint32_t i = 0; i < 4; i++) known[i] = mpg_rewrite_input(r, norm, i + 1);
  for (uint32_t i = 4; i < (has_bias ? 6 : 5); i++) known[i] = mpg_rewrite_input(r, product, i - 3);
  if (!parameters(r, known, has_bias ? 6 : 5, desc->dtype, n)) return false;
  const mpg_op *op = mpg_rewrite_node(r, product)->op;
  mpg_shape column = mpg_rewrite_desc(r, known[4])->shape; /* (filters, 1, ..., 1) */
  for (int i = 1; i < column.ndim; i++) column.dims[i] = 1;

  mpg_value x = mpg_rewrite_take(r, mpg_rewrite_input(r, product, 0)), v[6];
  for (uint32_t i = 0; i < (has_bias ? 6 : 5); i++) v[i] = mpg_rewrite_take(r, known[i]);
  mpg_value scale = scale_of(r, p, v[0], v[3]);
  mpg_value weight = binary(r, MPG_OP_broadcast_mul, v[4], mpg_rewrite_reshape(r, scale, &column));
  mpg_value shift =
      has_bias ? binary(r, MPG_OP_elemwise_mul, binary(r, MPG_OP_elemwise_sub, v[5], v[2]), scale)
               : binary(r, MPG_OP_elemwise_mul, v[2], scale);
  mpg_value bias = binary(r, has_bias ? MPG_OP_elemwise_add : MPG_OP_elemwise_sub, v[1], shift);
  mpg_value inputs[3] = {x, weight, bias}, result;
  if (op->id == MPG_OP_Convolution) {
    mpg_convolution_params params = *(const mpg_convolution_params *)mpg_rewrite_params(r, product);
    params.no_bias = false;
    mpg_rewrite_emit(r, op->id, &params, inputs, 3, &result);
  } else {
    mpg_fully_connected_params params =
        *(const mpg_fully_connected_params *)mpg_rewrite_params(r, product);
    params.no_bias = false;
    mpg_rewrite_emit(r, op->id, &params, inputs, 3, &result);
  }
  mpg_rewrite_replace(r, 0, result);
  return true;
}

const mpg_rewrite_rule mpg_rule_folded_norm = {
    .name = "folded normalisation", .apply = fold_norm, .prediction = true};
