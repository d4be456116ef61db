/* Rewrite rule for matrix products: folds transposes into dot and batch_dot. */
#include <string.h>

#include "graph/rewrite/rewrite.h"

/* Matches a transpose that only exchanges the last two dimensions. Sets *x to its input. */
static bool exchanged(const mpg_rewrite *r, mpg_operand from, mpg_operand *x) {
  mpg_operand found;
  const mpg_shape *shape = &mpg_rewrite_desc(r, from)->shape;
  int last = shape->ndim - 1;
  if (last < 1) return false;
  if (!mpg_rewrite_match(r, from, MPG_OP_transpose, MPG_PRIVATE, &found)) return false;
  const mpg_tuple *axes = &((const mpg_transpose_params *)mpg_rewrite_params(r, found))->axes;
  if (axes->count <= 0 && last != 1) return false;
  for (int i = 0; axes->count > 0 && i <= last; i++) {
    int64_t axis = axes->values[i] < 0 ? axes->values[i] + last + 1 : axes->values[i];
    if (axis != (i == last ? last - 1 : i == last - 1 ? last : i)) return false;
  }
  *x = mpg_rewrite_input(r, found, 0);
  return true;
}

/* Makes dot and batch_dot read the array before a transpose, by toggling transpose_a or
 * transpose_b. */
static bool fold_transposes(mpg_rewrite *r, uint32_t n) {
  const mpg_node *node = &r->graph->nodes[n];
  if (node->op->id != MPG_OP_dot && node->op->id != MPG_OP_batch_dot) return false;
  mpg_operand product = mpg_rewrite_shown(r), sides[2];
  bool folded[2];
  for (uint32_t i = 0; i < 2; i++) {
    sides[i] = mpg_rewrite_input(r, product, i);
    if (node->op->id == MPG_OP_dot && mpg_rewrite_desc(r, sides[i])->shape.ndim != 2) return false;
    folded[i] = exchanged(r, sides[i], &sides[i]);
  }
  if (!folded[0] && !folded[1]) return false;
  mpg_value inputs[2] = {mpg_rewrite_take(r, sides[0]), mpg_rewrite_take(r, sides[1])}, result;
  if (node->op->id == MPG_OP_dot) {
    mpg_dot_params params = *(const mpg_dot_params *)node->params;
    params.transpose_a ^= folded[0];
    params.transpose_b ^= folded[1];
    mpg_rewrite_emit(r, MPG_OP_dot, &params, inputs, 2, &result);
  } else {
    mpg_batch_dot_params params = *(const mpg_batch_dot_params *)node->params;
    params.transpose_a ^= folded[0];
    params.transpose_b ^= folded[1];
    mpg_rewrite_emit(r, MPG_OP_batch_dot, &params, inputs, 2, &result);
  }
  mpg_rewrite_replace(r, 0, result);
  return true;
}

const mpg_rewrite_rule mpg_rule_transposed_product = {.name = "transposed products",
                                                      .apply = fold_transposes};
