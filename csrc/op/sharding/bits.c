/* Which divisions keep bits. */
#include "op/infer.h"
#include "op/math/reduce.h"
#include "op/sharding/sharding.h"

/* True if every array of the node has the factor. */
static bool is_everywhere(const mpg_sharding *s, const mpg_factor *factor) {
  for (int i = 0; i < s->num_inputs + s->num_outputs; i++)
    if (factor->digits[i].axis < 0) return false;
  return true;
}

/* True if the op computes sums of products. Kernels choose the order of these sums by the sizes of
 * the matrices. */
static bool multiplies(const mpg_op *op) {
  static const mpg_cost_fn others[] = {mpg_cost_moves,   mpg_cost_elements, mpg_cost_math,
                                       mpg_cost_passes,  mpg_cost_draws,    mpg_cost_sort,
                                       mpg_cost_pooling, mpg_cost_boxes};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (op->cost == others[i]) return false;
  return true;
}

/* True if an axis after a reduced one is not reduced. The kernel then adds up vectors, in an order
 * that depends on their length. */
static bool adds_vectors(const mpg_sharding *s, int ndim) {
  bool reduced[MPG_MAX_NDIM], seen = false;
  mpg_reduced_axes(s->op, s->params, ndim, reduced);
  for (int i = 0; i < ndim; i++) {
    if (seen && !reduced[i]) return true;
    seen |= reduced[i];
  }
  return false;
}

/* True if the order of an op's sums depends on the sizes of the axes that are not added up. */
static bool reorders(const mpg_sharding *s, const mpg_factor *factor) {
  int ndim = s->inputs[0].shape.ndim;
  switch ((int)s->op->id) {
    case MPG_OP_sum:
    case MPG_OP_mean:
    case MPG_OP_prod:
    case MPG_OP_nansum:
    case MPG_OP_nanprod:
    case MPG_OP_norm: return adds_vectors(s, ndim);
    case MPG_OP_L2Normalization: return true;
    case MPG_OP_LayerNorm: {
      int64_t axis = ((const mpg_layer_norm_params *)s->params)->axis;
      return axis != -1 && axis != ndim - 1;
    }
    /* The bits of a row depend neither on other rows nor on other heads. */
    case MPG_OP__head_attention:
    case MPG_OP__dropout_head_attention:
      if (factor->digits[0].axis >= 0) return false;
      break;
    case MPG_OP_Convolution:
    case MPG_OP_Deconvolution: return true;
  }
  return multiplies(s->op) && !is_everywhere(s, factor);
}

bool mpg_sharding_keeps_order(const mpg_sharding *s, const mpg_factor *factor) {
  return !s->num_inputs || !reorders(s, factor);
}
