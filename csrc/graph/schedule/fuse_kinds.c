/* What nodes are to fusion: maps, reductions, views and products, and how they act on a domain. */
#include "graph/schedule/fuse.h"

static const mpg_shape *shape_of_input(const mpg_graph *graph, const mpg_node *node, uint32_t i) {
  return &mpg_graph_at(graph, mpg_node_inputs(graph, node)[i])->desc.shape;
}

static bool has_elements(const mpg_graph *graph, const mpg_node *node) {
  if (!node->num_outputs) return false;
  for (uint32_t i = 0; i < node->num_inputs; i++)
    if (mpg_shape_size(shape_of_input(graph, node, i)) == 0) return false;
  return mpg_shape_size(&graph->values[node->values].desc.shape) != 0;
}

/* Ops that need only element i of each operand for element i, by the rows of their families. */
static bool is_map(const mpg_graph *graph, const mpg_node *node) {
  const mpg_op *op = node->op;
  if (op->flags & MPG_OP_COPY) return !mpg_node_crosses(graph, node);
  switch (op->id) {
    case MPG_OP_Cast:
    case MPG_OP_amp_cast: return true;
    case MPG_OP__full_like:
    case MPG_OP_zeros_like:
    case MPG_OP_ones_like: return true;
    case MPG_OP_where:
      return mpg_shape_equal(shape_of_input(graph, node, 0), shape_of_input(graph, node, 1));
    case MPG_OP_Dropout:
      return mpg_shape_equal(&graph->values[node->values].desc.shape,
                             &graph->values[node->values + 1].desc.shape);
    case MPG_OP__dropout_apply:
      return mpg_shape_equal(shape_of_input(graph, node, 0), shape_of_input(graph, node, 1));
    case MPG_OP_broadcast_to:
    case MPG_OP_broadcast_axis:
    case MPG_OP__broadcast_exact: return true;
    /* no slopes by channel or by chance */
    case MPG_OP_LeakyReLU: return node->num_inputs == 1 && node->num_outputs == 1;
    case MPG_OP__contrib_div_sqrt_dim: return false; /* the size of a certain axis matters */
    default: break;
  }
  if (!(op->flags & MPG_OP_INPLACE) || (op->flags & (MPG_OP_HEAVY | MPG_OP_RANDOM))) return false;
  return (op->id >= MPG_OP_elemwise_add && op->id <= MPG_OP__backward_LeakyReLU) ||
         (op->id >= MPG_OP__plus_scalar && op->id <= MPG_OP__contrib_gradientmultiplier);
}

mpg_fuse_kind mpg_fuse_kind_of(const mpg_graph *graph, const mpg_node *node) {
  if (!node->op || !has_elements(graph, node)) return MPG_FUSE_NOT;
  if (mpg_node_is_view(node)) return node->num_inputs == 1 ? MPG_FUSE_VIEW : MPG_FUSE_NOT;
  switch (node->op->id) {
    case MPG_OP_sum:
    case MPG_OP_mean:
    case MPG_OP_prod:
    case MPG_OP_nansum:
    case MPG_OP_nanprod:
    case MPG_OP_max:
    case MPG_OP_min:
    case MPG_OP_norm: return MPG_FUSE_REDUCE;
    default: break;
  }
  mpg_product product;
  if (mpg_fuse_product(graph, node, &product)) return MPG_FUSE_HEAD;
  return is_map(graph, node) ? MPG_FUSE_MAP : MPG_FUSE_NOT;
}

bool mpg_fuse_product(const mpg_graph *graph, const mpg_node *node, mpg_product *product) {
  if (node->num_inputs < 2) return false;
  const mpg_value *inputs = mpg_node_inputs(graph, node);
  return mpg_product_in_panels(node->op, node->params,
                               (const mpg_desc *[]){&mpg_graph_at(graph, inputs[0])->desc,
                                                    &mpg_graph_at(graph, inputs[1])->desc},
                               product);
}

static uint32_t reduced_bits(const mpg_node *node, const mpg_shape *shape) {
  bool is_norm = node->op->id == MPG_OP_norm;
  const mpg_tuple *axis = is_norm ? &((const mpg_reduce_norm_params *)node->params)->axis
                                  : &((const mpg_reduce_params *)node->params)->axis;
  bool exclude = !is_norm && ((const mpg_reduce_params *)node->params)->exclude,
       named[MPG_MAX_NDIM] = {false};
  uint32_t bits = 0;
  for (int i = 0; i < axis->count; i++)
    named[axis->values[i] < 0 ? axis->values[i] + shape->ndim : axis->values[i]] = true;
  for (int i = 0, bit = 0; i < shape->ndim; i++) {
    if (shape->dims[i] == 1) continue;
    if (axis->count <= 0 || named[i] != exclude) bits |= 1u << bit;
    bit++;
  }
  return bits;
}

bool mpg_fuse_describe(const mpg_graph *graph, const mpg_node *node, mpg_fuse_kind kind,
                       mpg_fuse_action *a) {
  const mpg_shape *whole = &graph->values[node->values].desc.shape;
  a->num_inputs = mpg_node_flag(node, MPG_OP_SHAPE_ONLY) ? 0 : node->num_inputs;
  if (node->num_inputs + node->num_outputs > MPG_MAX_NAMED) return false;
  if (kind == MPG_FUSE_REDUCE) {
    whole = shape_of_input(graph, node, 0);
    a->num_outputs = 1;
    mpg_domain_of(whole, &a->domain);
    a->bits[0] = mpg_domain_all(&a->domain);
    a->bits[1] = a->bits[0] & ~reduced_bits(node, whole);
    return a->bits[0] != a->bits[1];
  }
  mpg_domain_of(whole, &a->domain);
  for (uint32_t i = 0; i < a->num_inputs; i++)
    if (!mpg_domain_bits(shape_of_input(graph, node, i), whole, &a->bits[i])) return false;
  a->num_outputs = node->num_outputs;
  while (mpg_shape_size(&graph->values[node->values + a->num_outputs - 1].desc.shape) == 0)
    a->num_outputs--; /* masks that are not used */
  for (uint32_t i = 0; i < a->num_outputs; i++)
    if (!mpg_domain_bits(&graph->values[node->values + i].desc.shape, whole,
                         &a->bits[a->num_inputs + i]))
      return false;
  return true;
}
