/* Matches the patterns of rewrites and emits their replacements. */
#include <string.h>

#include "graph/rewrite/rewrite.h"
#include "op/array/creation.h"
#include "op/math/activation.h"

static const mpg_operand none = {{MPG_NO_NODE, 0}, false};

/* --- Matching --------------------------------------------------------------------------------- */

mpg_operand mpg_rewrite_input(const mpg_rewrite *r, mpg_operand operand, uint32_t i) {
  const mpg_node *node = mpg_rewrite_node(r, operand);
  if (i >= node->num_inputs || !mpg_has_value(mpg_node_inputs(r->graph, node)[i])) return none;
  return (mpg_operand){mpg_node_inputs(r->graph, node)[i], operand.moved};
}

/* Steps back through one copy or identity op. Returns false at any other op. */
static bool skip_copy(const mpg_rewrite *r, mpg_operand *operand) {
  if (!mpg_has_value(operand->value)) return false;
  const mpg_node *node = mpg_rewrite_node(r, *operand);
  if (!node->op || node->num_inputs != 1 || node->num_outputs != 1) return false;
  mpg_operand input = mpg_rewrite_input(r, *operand, 0);
  const mpg_desc *from = mpg_rewrite_desc(r, input), *to = mpg_rewrite_desc(r, *operand);
  bool copy = node->op->flags & MPG_OP_COPY;
  if ((!copy && !mpg_node_is_reshape(node)) || from->dtype != to->dtype ||
      !mpg_shape_equal(&from->shape, &to->shape))
    return false;
  if (mpg_op_input_mutable(node->op, 0)) return false;
  input.moved |= copy;
  *operand = input;
  return true;
}

mpg_operand mpg_rewrite_skip_copies(const mpg_rewrite *r, mpg_operand operand) {
  while (skip_copy(r, &operand)) continue;
  return operand;
}

/* True if a node reads an array that a later node writes. */
static bool overwritten(const mpg_rewrite *r, uint32_t number) {
  const mpg_node *node = &r->graph->nodes[number];
  for (uint32_t i = 0; i < node->num_inputs; i++)
    if (r->written[mpg_value_index(r->graph, mpg_node_inputs(r->graph, node)[i])] > number)
      return true;
  return false;
}

bool mpg_rewrite_match(const mpg_rewrite *r, mpg_operand from, mpg_op_id op, mpg_match match,
                       mpg_operand *found) {
  do {
    if (!mpg_has_value(from.value) || (match == MPG_PRIVATE && mpg_rewrite_users(r, from) != 1))
      return false;
    const mpg_node *node = mpg_rewrite_node(r, from);
    if (node->op && node->op->id == op) {
      *found = from;
      return !overwritten(r, from.value.node);
    }
  } while (skip_copy(r, &from));
  return false;
}

bool mpg_rewrite_constant(const mpg_rewrite *r, mpg_operand operand, double *value) {
  operand = mpg_rewrite_skip_copies(r, operand);
  if (!mpg_has_value(operand.value)) return false;
  const mpg_node *node = mpg_rewrite_node(r, operand);
  if (!node->op || !mpg_op_fill(node->op, node->params, value)) return false;
  mpg_dtype dtype = mpg_rewrite_desc(r, operand)->dtype;
  if (mpg_dtype_is_float(dtype)) *value = mpg_dtype_rounded(dtype, *value);
  return true;
}

bool mpg_rewrite_scaled(const mpg_rewrite *r, mpg_operand from, mpg_match match, mpg_operand *x,
                        double *factor) {
  mpg_operand scaled;
  *x = from;
  *factor = 1;
  if (mpg_rewrite_match(r, from, MPG_OP__mul_scalar, match, &scaled)) {
    *factor = ((const mpg_scalar_params *)mpg_rewrite_params(r, scaled))->scalar;
  } else if (mpg_rewrite_match(r, from, MPG_OP__div_scalar, match, &scaled)) {
    double divisor = ((const mpg_scalar_params *)mpg_rewrite_params(r, scaled))->scalar;
    if (divisor == 0) return false;
    *factor = 1 / divisor;
  } else if (mpg_rewrite_match(r, from, MPG_OP__contrib_div_sqrt_dim, match, &scaled)) {
    const mpg_shape *shape = &mpg_rewrite_desc(r, scaled)->shape;
    if (shape->ndim < 1 || shape->dims[shape->ndim - 1] < 1) return false;
    *factor = 1 / __builtin_sqrt((double)shape->dims[shape->ndim - 1]);
  } else {
    return false;
  }
  *x = mpg_rewrite_input(r, scaled, 0);
  return true;
}

bool mpg_rewrite_is_parameter(const mpg_rewrite *r, mpg_operand operand) {
  operand = mpg_rewrite_skip_copies(r, operand);
  return mpg_has_value(operand.value) && r->parameter[operand.value.node];
}

bool mpg_rewrite_is_relu(const mpg_node *node) {
  if (!node->op) return false;
  return node->op->id == MPG_OP_relu ||
         (node->op->id == MPG_OP_Activation &&
          ((const mpg_activation_params *)node->params)->act_type == MPG_ACTIVATION_RELU);
}

bool mpg_rewrite_is_addition(const mpg_rewrite *r, const mpg_node *node) {
  if (!node->op || (node->op->id != MPG_OP_elemwise_add && node->op->id != MPG_OP_broadcast_add))
    return false;
  const mpg_value *inputs = mpg_node_inputs(r->graph, node);
  return mpg_shape_equal(&mpg_graph_at(r->graph, inputs[0])->desc.shape,
                         &mpg_graph_at(r->graph, inputs[1])->desc.shape);
}

/* --- Building --------------------------------------------------------------------------------- */

static void as_node(mpg_graph *target, const mpg_node *node) {
  target->scope = node->scope;
  target->origin = node->origin;
  target->recompute_region = node->recompute_region;
  target->offload = node->offload;
  target->phase = node->phase;
  target->train = node->train;
}

mpg_status mpg_rewrite_take_over(mpg_rewrite *r, uint32_t number) {
  const mpg_graph *source = r->graph;
  mpg_graph *target = &r->target;
  const mpg_node *node = &source->nodes[number];
  uint32_t made;
  const void *params = node->params;
  if (node->op && params && node->op->params->size) {
    params = mpg_arena_copy(&target->arena, params, node->op->params->size);
    if (!params) return mpg_out_of_host_memory(node->op->params->size);
  }
  as_node(target, node);
  MPG_TRY(mpg_graph_known(target, node->op, node->opaque, params, mpg_node_inputs(source, node),
                          node->num_inputs, node->num_outputs, node->device, &made));
  target->nodes[made].random = node->random;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    mpg_value *input = &target->inputs[target->nodes[made].inputs + i];
    if (mpg_has_value(*input)) *input = r->map[mpg_value_index(source, *input)];
  }
  for (uint32_t i = 0; i < node->num_outputs; i++) {
    target->values[target->nodes[made].values + i] = source->values[node->values + i];
    r->map[node->values + i] = (mpg_value){made, i};
  }
  return MPG_OK;
}

void mpg_rewrite_start(mpg_rewrite *r) {
  if (r->started || r->status != MPG_OK) return;
  r->started = true;
  for (uint32_t n = 0; n < r->node && r->status == MPG_OK; n++)
    if (r->live[n]) r->status = mpg_rewrite_take_over(r, n);
}

mpg_value mpg_rewrite_take(mpg_rewrite *r, mpg_operand operand) {
  mpg_rewrite_start(r);
  if (r->status != MPG_OK) return MPG_NO_VALUE;
  mpg_value value = r->map[mpg_value_index(r->graph, operand.value)];
  if (!operand.moved) return value;
  mpg_copyto_params params;
  memset(&params, 0, sizeof params);
  params.ctx = r->graph->nodes[r->node].device;
  return mpg_rewrite_emit(r, MPG_OP__copyto, &params, &value, 1, &value);
}

mpg_value mpg_rewrite_emit(mpg_rewrite *r, mpg_op_id op, const void *params,
                           const mpg_value *inputs, int num_inputs, mpg_value *outputs) {
  mpg_rewrite_start(r);
  if (r->status != MPG_OK) return MPG_NO_VALUE;
  as_node(&r->target, &r->graph->nodes[r->node]);
  r->status =
      mpg_graph_emit(&r->target, mpg_op_get(op), params, inputs, num_inputs, MPG_NO_VALUE, outputs);
  return r->status == MPG_OK ? outputs[0] : MPG_NO_VALUE;
}

mpg_value mpg_rewrite_emit_random(mpg_rewrite *r, mpg_operand like, mpg_op_id op,
                                  const void *params, const mpg_value *inputs, int num_inputs,
                                  mpg_value *outputs) {
  mpg_rewrite_start(r);
  if (r->status != MPG_OK) return MPG_NO_VALUE;
  as_node(&r->target, &r->graph->nodes[r->node]);
  r->target.train = mpg_rewrite_node(r, like)->train;
  r->status =
      mpg_graph_emit(&r->target, mpg_op_get(op), params, inputs, num_inputs, MPG_NO_VALUE, outputs);
  if (r->status != MPG_OK) return MPG_NO_VALUE;
  r->target.nodes[outputs[0].node].random = mpg_rewrite_node(r, like)->random;
  return outputs[0];
}

mpg_value mpg_rewrite_reshape(mpg_rewrite *r, mpg_value value, const mpg_shape *shape) {
  if (r->status != MPG_OK || mpg_shape_equal(&mpg_graph_at(&r->target, value)->desc.shape, shape))
    return value;
  mpg_exact_shape_params params;
  memset(&params, 0, sizeof params);
  params.shape = mpg_shape_tuple(shape);
  return mpg_rewrite_emit(r, MPG_OP__reshape_exact, &params, &value, 1, &value);
}

void mpg_rewrite_replace(mpg_rewrite *r, uint32_t output, mpg_value value) {
  if (r->status != MPG_OK) return;
  const mpg_node *node = &r->graph->nodes[r->node];
  const mpg_graph_value *old = &r->graph->values[node->values + output],
                        *new = mpg_graph_at(&r->target, value);
  if (!mpg_shape_equal(&old->desc.shape, &new->desc.shape) || old->desc.dtype != new->desc.dtype ||
      !mpg_device_id_equal(old->device, new->device)) {
    r->status = mpg_fail(MPG_ERROR, "internal: %s was rewritten to another shape, dtype or device",
                         node->op->name);
    return;
  }
  r->map[node->values + output] = value;
}
