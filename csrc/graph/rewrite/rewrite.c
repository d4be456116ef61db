/* The sweep of rewrites: applies rules to nodes and emits replacements. */
#include "graph/rewrite/rewrite.h"

#include <string.h>

#include "base/workspace.h"
#include "op/array/creation.h"
#include "op/kernel.h"
#include "op/math/activation.h"

/* Rules in the order in which they run. */
static const mpg_rewrite_rule *const rules[] = {
    &mpg_rule_folded_norm,   &mpg_rule_transposed_product,
    &mpg_rule_attention,     &mpg_rule_attention_result,
    &mpg_rule_channels_last, /* after the rules that match convolutions as traced */
    &mpg_rule_packed_relu,   &mpg_rule_packed,
    &mpg_rule_packed_dense,  &mpg_rule_winograd, /* for convolutions with unpacked weights */
};

static const mpg_operand none = {{UINT32_MAX, 0}, false};

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

/* True if a node reads an array that is written after it. */
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
  target->phase = node->phase;
  target->train = node->train;
}

static mpg_status take_over(mpg_rewrite *r, uint32_t number) {
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

/* Copies all nodes before the current one to the target, once. */
static void start(mpg_rewrite *r) {
  if (r->started || r->status != MPG_OK) return;
  r->started = true;
  for (uint32_t n = 0; n < r->node && r->status == MPG_OK; n++)
    if (r->live[n]) r->status = take_over(r, n);
}

mpg_value mpg_rewrite_take(mpg_rewrite *r, mpg_operand operand) {
  start(r);
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
  start(r);
  if (r->status != MPG_OK) return MPG_NO_VALUE;
  as_node(&r->target, &r->graph->nodes[r->node]);
  r->status =
      mpg_graph_emit(&r->target, mpg_op_get(op), params, inputs, num_inputs, MPG_NO_VALUE, outputs);
  return r->status == MPG_OK ? outputs[0] : MPG_NO_VALUE;
}

mpg_value mpg_rewrite_emit_random(mpg_rewrite *r, mpg_operand like, mpg_op_id op,
                                  const void *params, const mpg_value *inputs, int num_inputs,
                                  mpg_value *outputs) {
  start(r);
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

/* --- Sweeps ----------------------------------------------------------------------------------- */

/* True if only the shape of input i is read. */
static bool reads_shape_only(const mpg_node *node, uint32_t i) {
  return mpg_node_flag(node, i ? MPG_OP_LIKE : MPG_OP_SHAPE_ONLY);
}

/* Marks all inputs, and the nodes that outputs and effects need. Also counts uses and finds written
 * values. All arrays must be zeroed. */
static void find_live(const mpg_graph *graph, bool *live, uint32_t *users, uint32_t *written) {
  for (size_t i = 0; i < graph->num_outputs; i++) {
    live[graph->outputs[i].node] = true;
    users[mpg_value_index(graph, graph->outputs[i])]++;
  }
  for (size_t n = graph->num_nodes; n-- > 0;) {
    const mpg_node *node = &graph->nodes[n];
    live[n] = live[n] || mpg_node_is_input(node) || node->opaque || mpg_node_mutates(node);
    for (uint32_t i = 0; live[n] && i < node->num_inputs; i++) {
      mpg_value input = mpg_node_inputs(graph, node)[i];
      if (!mpg_has_value(input)) continue;
      live[input.node] = true;
      users[mpg_value_index(graph, input)] += !reads_shape_only(node, i);
      uint32_t *last = &written[mpg_value_index(graph, input)];
      if (!*last && node->op && mpg_op_input_mutable(node->op, (int)i)) *last = (uint32_t)n;
    }
  }
}

/* Marks the values that depend on inputs whose gradient is wanted. */
static void find_wants(const mpg_rewrite_request *request, bool *wants) {
  const mpg_graph *graph = request->graph;
  for (size_t i = 0; i < request->num_inputs; i++)
    if (request->wanted[i]) wants[mpg_value_index(graph, request->inputs[i])] = true;
  for (size_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    bool any = false;
    for (uint32_t i = 0; i < node->num_inputs && !any; i++)
      any = mpg_has_value(mpg_node_inputs(graph, node)[i]) &&
            wants[mpg_value_index(graph, mpg_node_inputs(graph, node)[i])];
    if (any && !(node->op && node->op->gradient == mpg_gradient_none))
      memset(wants + node->values, true, node->num_outputs);
  }
}

/* True if the node's device has a kernel for the rule's replacement. */
static bool can_run(const mpg_rewrite_rule *rule, const mpg_node *node) {
  mpg_device *device;
  if (!rule->needs) return true;
  return mpg_device_get(node->device, &device) == MPG_OK &&
         mpg_kernel_get(device, mpg_op_get((mpg_op_id)(rule->needs - 1)));
}

/* A sweep without a rule only removes dead nodes. */
static mpg_status sweep(const mpg_rewrite_request *request, const mpg_rewrite_rule *rule,
                        bool *changed) {
  mpg_graph *source = request->graph;
  mpg_status status = MPG_OK;
  mpg_rewrite r = {.graph = source, .looked_at = MPG_NO_VALUE};
  mpg_graph_init(&r.target);
  mpg_workspace space = {0};
  bool *parameter = mpg_workspace_take(&space, source->num_nodes, sizeof *parameter);
  bool *live = mpg_workspace_take(&space, source->num_nodes, sizeof *live);
  bool *wants = mpg_workspace_take(&space, source->num_values, sizeof *wants);
  uint32_t *users = mpg_workspace_take(&space, source->num_values, sizeof *users);
  uint32_t *written = mpg_workspace_take(&space, source->num_values, sizeof *written);
  r.map = mpg_workspace_take(&space, source->num_values, sizeof *r.map);
  MPG_GOTO(mpg_workspace_check(&space));
  for (size_t i = request->num_inputs - request->num_parameters; i < request->num_inputs; i++)
    parameter[request->inputs[i].node] = true;
  for (size_t i = 0; i < source->num_values; i++) r.map[i] = MPG_NO_VALUE;
  find_live(source, live, users, written);
  find_wants(request, wants);
  r.parameter = parameter;
  r.wants = wants;
  r.users = users;
  r.written = written;
  r.live = live;
  for (uint32_t n = 0; n < source->num_nodes; n++) {
    r.node = n;
    if (!live[n]) continue;
    bool applied =
        rule && source->nodes[n].op && can_run(rule, &source->nodes[n]) && rule->apply(&r, n);
    MPG_GOTO(r.status);
    if (!rule) start(&r);
    if (!applied && r.started) MPG_GOTO(take_over(&r, n));
  }
  if (r.started) {
    r.target.num_random = source->num_random;
    r.target.num_recompute_regions = source->num_recompute_regions;
    MPG_GOTO(mpg_graph_set_outputs(&r.target, source->outputs, source->num_outputs));
    for (size_t i = 0; i < source->num_outputs; i++)
      r.target.outputs[i] = r.map[mpg_value_index(source, source->outputs[i])];
    for (size_t i = 0; i < request->num_inputs; i++)
      request->inputs[i] = r.map[mpg_value_index(source, request->inputs[i])];
    mpg_graph old = *source;
    *source = r.target;
    r.target = old;
    *changed = true;
    MPG_VERIFY(source);
  }
fail:
  mpg_graph_free(&r.target);
  mpg_workspace_free(&space);
  return status;
}

mpg_status mpg_graph_rewrite(const mpg_rewrite_request *request, bool *changed) {
  *changed = false;
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    if ((rules[i]->prediction && request->recording) || (rules[i]->keeps && !request->keeps))
      continue;
    mpg_status status = sweep(request, rules[i], changed);
    if (status != MPG_OK)
      return mpg_fail_prefix(status, "rewriting the graph (%s)", rules[i]->name);
  }
  return *changed ? sweep(request, NULL, changed) : MPG_OK;
}
