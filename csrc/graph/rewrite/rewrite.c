/* Applies the rewrite rules to a graph, each in one sweep over the nodes. */
#include "graph/rewrite/rewrite.h"

#include <string.h>

#include "base/workspace.h"
#include "op/kernel.h"

/* Rules in the order in which they run. */
static const mpg_rewrite_rule *const rules[] = {
    &mpg_rule_folded_norm,   &mpg_rule_transposed_product,
    &mpg_rule_attention,     &mpg_rule_attention_result,
    &mpg_rule_channels_last, /* after the rules that match convolutions as traced */
    &mpg_rule_packed_relu,   &mpg_rule_packed,
    &mpg_rule_packed_dense,  &mpg_rule_winograd, /* for convolutions with unpacked weights */
};

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

/* Applies a rule to all nodes. A sweep without a rule only removes dead nodes. */
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
    if (!rule) mpg_rewrite_start(&r);
    if (!applied && r.started) MPG_GOTO(mpg_rewrite_take_over(&r, n));
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
