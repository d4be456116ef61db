/* One gradient pass for eager backward, compiled graphs and gradients of gradients. Iterative:
 * graphs are deep. */
#include <string.h>

#include "graph/ir/graph.h"

typedef struct pass {
  mpg_graph *graph;
  size_t num_values;    /* of the forward part */
  mpg_value *gradients; /* per forward value */
  bool *depends;        /* per forward value: on something wanted */
  mpg_value *in_grads;  /* work space of one node */
  mpg_value *out_grads;
  mpg_value *out_values;
  bool *needed;
} pass;

static mpg_status accumulate(pass *p, mpg_value value, mpg_value gradient) {
  mpg_value *sum = &p->gradients[mpg_value_index(p->graph, value)];
  if (!mpg_has_value(*sum)) {
    *sum = gradient;
    return MPG_OK;
  }
  mpg_value terms[2] = {*sum, gradient};
  return mpg_graph_emit(p->graph, mpg_op_get(MPG_OP_elemwise_add), NULL, terms, 2, MPG_NO_VALUE,
                        sum);
}

/* The node's inputs that want a gradient, into p->needed; false when there is none. */
static bool find_needed(pass *p, const mpg_node *node) {
  const mpg_value *inputs = mpg_node_inputs(p->graph, node);
  bool any = false;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    p->needed[i] = mpg_has_value(inputs[i]) && p->depends[mpg_value_index(p->graph, inputs[i])];
    any |= p->needed[i];
  }
  return any;
}

static mpg_status node_gradient(pass *p, uint32_t number) {
  mpg_graph *graph = p->graph;
  mpg_node node = graph->nodes[number]; /* a copy: emission moves the array */
  bool arrives = false;
  for (uint32_t i = 0; i < node.num_outputs; i++) {
    p->out_grads[i] = p->gradients[node.values + i];
    p->out_values[i] = (mpg_value){number, i};
    arrives |= mpg_has_value(p->out_grads[i]);
  }
  if (!arrives || !find_needed(p, &node)) return MPG_OK;
  mpg_value *in_values =
      p->in_grads + node.num_inputs; /* emission moves graph->inputs, so formulas see a copy */
  memcpy(in_values, graph->inputs + node.inputs, node.num_inputs * sizeof(mpg_value));
  for (uint32_t i = 0; i < node.num_inputs; i++) p->in_grads[i] = MPG_NO_VALUE;
  graph->scope = node.scope;
  graph->origin = node.origin;
  graph->recompute_region = node.recompute_region;
  if (node.opaque) {
    /* The sum so far for an input goes in, the new sum comes out: so a call adds up its
     * contributions as its ops would. */
    uint32_t call;
    for (uint32_t i = 0; i < node.num_inputs; i++) {
      mpg_value *sum = &p->out_grads[node.num_outputs + i];
      *sum = MPG_NO_VALUE;
      if (!p->needed[i]) continue;
      mpg_value *known = &p->gradients[mpg_value_index(graph, in_values[i])];
      *sum = *known;
      *known = MPG_NO_VALUE;
    }
    MPG_TRY(mpg_graph_known(graph, NULL, node.opaque, NULL, p->out_grads,
                            node.num_outputs + node.num_inputs, node.num_inputs, node.device,
                            &call));
    for (uint32_t i = 0; i < node.num_inputs; i++) {
      graph->values[graph->nodes[call].values + i] = *mpg_graph_at(graph, in_values[i]);
      if (p->needed[i]) p->in_grads[i] = (mpg_value){call, i};
    }
  } else {
    mpg_gradient g = {.builder = &graph->builder,
                      .op = node.op,
                      .params = node.params,
                      .num_inputs = (int)node.num_inputs,
                      .num_outputs = (int)node.num_outputs,
                      .inputs = in_values,
                      .outputs = p->out_values,
                      .out_grads = p->out_grads,
                      .needed = p->needed,
                      .in_grads = p->in_grads,
                      .train = node.train};
    mpg_status status = mpg_op_gradient(&g);
    if (status == MPG_OK) status = g.status;
    if (status != MPG_OK) {
      const char *path = mpg_scope_text(node.scope);
      return *path ? mpg_fail_prefix(status, "gradient of %s in block %s", node.op->name, path)
                   : mpg_fail_prefix(status, "gradient of %s", node.op->name);
    }
  }
  for (uint32_t i = 0; i < node.num_inputs; i++) {
    if (!p->needed[i] || !mpg_has_value(p->in_grads[i])) continue;
#ifdef MPG_DEBUG
    const mpg_graph_value *gradient = mpg_graph_at(graph, p->in_grads[i]),
                          *value = mpg_graph_at(graph, in_values[i]);
    MPG_ASSERT(mpg_shape_equal(&gradient->desc.shape, &value->desc.shape));
    MPG_ASSERT(mpg_device_id_equal(gradient->device, value->device));
#endif
    MPG_TRY(accumulate(p, in_values[i], p->in_grads[i]));
  }
  return MPG_OK;
}

static mpg_status run(pass *p, const mpg_differentiation *request, size_t num_nodes) {
  mpg_graph *graph = p->graph;
  for (size_t i = 0; i < p->num_values; i++) p->gradients[i] = MPG_NO_VALUE;
  for (size_t i = 0; i < request->num_wanted; i++)
    p->depends[mpg_value_index(graph, request->wanted[i])] = true;
  for (size_t n = request->first; n < num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    const mpg_value *inputs = mpg_node_inputs(graph, node);
    bool depends = false;
    for (uint32_t i = 0; i < node->num_inputs && !depends; i++)
      depends = mpg_has_value(inputs[i]) && p->depends[mpg_value_index(graph, inputs[i])];
    if (depends && node->op && node->op->gradient == mpg_gradient_none) depends = false;
    if (depends) memset(p->depends + node->values, true, node->num_outputs);
  }
  for (size_t i = 0; i < request->num_heads; i++)
    if (p->depends[mpg_value_index(graph, request->heads[i])])
      MPG_TRY(accumulate(p, request->heads[i], request->head_grads[i]));
  for (size_t n = num_nodes; n-- > request->first;)
    if (!mpg_node_is_input(&graph->nodes[n])) MPG_TRY(node_gradient(p, (uint32_t)n));
  for (size_t i = 0; i < request->num_wanted; i++)
    request->gradients[i] = p->gradients[mpg_value_index(graph, request->wanted[i])];
  return MPG_OK;
}

/* It lies in the graph's arena: graphs of the tape keep theirs from one backward to the next. */
static mpg_status make_work_space(pass *p) {
  mpg_graph *graph = p->graph;
  uint32_t inputs = 0, outputs = 0;
  for (size_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    if (node->num_inputs > inputs) inputs = node->num_inputs;
    if (node->num_outputs > outputs) outputs = node->num_outputs;
  }
  p->gradients = mpg_arena_alloc(&graph->arena, (p->num_values + 1) * sizeof *p->gradients);
  p->in_grads = mpg_arena_alloc(&graph->arena, (2 * (size_t)inputs + 1) * sizeof *p->in_grads);
  p->out_grads =
      mpg_arena_alloc(&graph->arena, ((size_t)inputs + outputs + 1) * sizeof *p->out_grads);
  p->out_values = mpg_arena_alloc(&graph->arena, ((size_t)outputs + 1) * sizeof *p->out_values);
  p->depends = mpg_arena_alloc(&graph->arena, p->num_values + 1);
  p->needed = mpg_arena_alloc(&graph->arena, (size_t)inputs + 1);
  if (!p->gradients || !p->in_grads || !p->out_grads || !p->out_values || !p->depends || !p->needed)
    return mpg_out_of_host_memory(p->num_values * sizeof *p->gradients);
  memset(p->depends, 0, p->num_values);
  return MPG_OK;
}

mpg_status mpg_graph_gradient(mpg_graph *graph, const mpg_differentiation *request) {
  uint32_t scope = graph->scope, origin = graph->origin, region = graph->recompute_region;
  uint8_t phase = graph->phase;
  bool train = graph->train;
  pass p = {.graph = graph, .num_values = graph->num_values};
  mpg_status status = make_work_space(&p);
  if (status == MPG_OK) {
    graph->phase = MPG_PHASE_BACKWARD;
    graph->train = request->train;
    status = run(&p, request, graph->num_nodes);
  }
  graph->phase = phase;
  graph->train = train;
  graph->scope = scope;
  graph->origin = origin;
  graph->recompute_region = region;
  return status;
}
