/* Classifies nodes for fusion as maps, reductions, rows, views or producers, and describes how they
 * act on a domain. */
#include "graph/schedule/fuse.h"
#include "op/math/reduce.h"
#include "op/math/rows.h"

static const mpg_shape *shape_of_input(const mpg_graph *graph, const mpg_node *node, uint32_t i) {
  return &mpg_graph_at(graph, mpg_node_inputs(graph, node)[i])->desc.shape;
}

static bool has_elements(const mpg_graph *graph, const mpg_node *node) {
  if (!node->num_outputs) return false;
  for (uint32_t i = 0; i < node->num_inputs; i++)
    if (mpg_shape_size(shape_of_input(graph, node, i)) == 0) return false;
  return mpg_shape_size(&graph->values[node->values].desc.shape) != 0;
}

static bool has_one_shape(const mpg_graph *graph, const mpg_node *node) {
  const mpg_graph_value *outputs = &graph->values[node->values];
  for (uint32_t i = 0; i < node->num_inputs; i++)
    if (!mpg_shape_equal(shape_of_input(graph, node, i), &outputs->desc.shape)) return false;
  for (uint32_t i = 1; i < node->num_outputs; i++)
    if (!mpg_shape_equal(&outputs[i].desc.shape, &outputs->desc.shape)) return false;
  return true;
}

/* True for elementwise ops: element i of a result needs only element i of each operand. */
static bool is_map(const mpg_graph *graph, const mpg_node *node) {
  mpg_op_flags flags = node->op->flags;
  if (flags & MPG_OP_COPY) return !mpg_node_crosses(graph, node);
  if (flags & MPG_OP_MAP_ONE_SHAPE) return has_one_shape(graph, node);
  if (flags & MPG_OP_MAP_ALONE) return node->num_inputs == 1 && node->num_outputs == 1;
  return flags & MPG_OP_MAP;
}

/* True for row ops (op/math/rows.h) along the last axis, if rows have several elements. */
static bool has_rows(const mpg_graph *graph, const mpg_node *node) {
  mpg_rows rows;
  const mpg_shape *shape = node->num_inputs ? shape_of_input(graph, node, 0) : NULL;
  return shape && mpg_rows_of(node->op, node->params, &rows) && shape->ndim > 0 &&
         (rows.axis == -1 || rows.axis == shape->ndim - 1) && shape->dims[shape->ndim - 1] > 1;
}

mpg_fuse_kind mpg_fuse_kind_of(const mpg_graph *graph, const mpg_node *node) {
  if (!node->op || !has_elements(graph, node)) return MPG_FUSE_NOT;
  if (mpg_node_is_view(node)) return node->num_inputs == 1 ? MPG_FUSE_VIEW : MPG_FUSE_NOT;
  if (mpg_node_flag(node, MPG_OP_REDUCTION)) return MPG_FUSE_REDUCE;
  if (has_rows(graph, node)) return MPG_FUSE_ROWS;
  mpg_product product;
  if (mpg_fuse_product(graph, node, &product)) return MPG_FUSE_PRODUCER;
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
  bool reduced[MPG_MAX_NDIM];
  uint32_t bits = 0;
  mpg_reduced_axes(node->op, node->params, shape->ndim, reduced);
  for (int i = 0, bit = 0; i < shape->ndim; i++) {
    if (shape->dims[i] == 1) continue;
    bits |= (uint32_t)reduced[i] << bit++;
  }
  return bits;
}

bool mpg_fuse_describe(const mpg_graph *graph, const mpg_node *node, mpg_fuse_kind kind,
                       mpg_fuse_action *a) {
  const mpg_shape *whole = &graph->values[node->values].desc.shape;
  a->num_inputs = mpg_node_flag(node, MPG_OP_SHAPE_ONLY) ? 0 : node->num_inputs;
  a->row = a->trailing = 0;
  if (node->num_inputs + node->num_outputs > MPG_MAX_NAMED) return false;
  if (kind == MPG_FUSE_REDUCE) {
    whole = shape_of_input(graph, node, 0);
    a->num_outputs = 1;
    mpg_domain_of(whole, &a->domain);
    a->bits[0] = mpg_domain_all(&a->domain);
    a->bits[1] = a->bits[0] & ~reduced_bits(node, whole);
    a->row = a->bits[0] & ~a->bits[1];
    return a->row != 0;
  }
  mpg_domain_of(whole, &a->domain);
  for (uint32_t i = 0; i < a->num_inputs; i++)
    if (!mpg_domain_bits(shape_of_input(graph, node, i), whole, &a->bits[i])) return false;
  a->num_outputs = node->num_outputs;
  while (mpg_shape_size(&graph->values[node->values + a->num_outputs - 1].desc.shape) == 0)
    a->num_outputs--; /* excludes empty outputs (unused masks) */
  for (uint32_t i = 0; i < a->num_outputs; i++)
    if (!mpg_domain_bits(&graph->values[node->values + i].desc.shape, whole,
                         &a->bits[a->num_inputs + i]))
      return false;
  if (kind != MPG_FUSE_ROWS) return true;
  mpg_rows rows;
  mpg_rows_of(node->op, node->params, &rows);
  a->row = 1u << (a->domain.ndim - 1);
  a->trailing = rows.whole;
  return !a->trailing || a->domain.ndim > 1; /* otherwise there is nothing to sum */
}
