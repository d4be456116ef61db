/* A compiled call as ops on the tape, run once more: what gradients of gradients are taken of. These are the ops as traced, because not
 * every op that a rewrite puts in their place has a gradient of its gradient. */
#include <string.h>

#include "autograd/compiled.h"

static mpg_status replay_node(const mpg_graph *graph, const mpg_node *node, mpg_array *values, mpg_random_key random) {
  const mpg_value *inputs = mpg_node_inputs(graph, node);
  mpg_status status = MPG_OK;
  mpg_device *device = NULL;
  mpg_array *copies = mpg_calloc(node->num_inputs + 1, sizeof *copies);
  mpg_array **arguments = mpg_malloc((node->num_inputs + 1) * sizeof *arguments);
  if (!copies || !arguments) MPG_GOTO(mpg_out_of_host_memory(node->num_inputs * sizeof *copies));
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    arguments[i] = &values[mpg_value_index(graph, inputs[i])];
    if (!mpg_op_input_mutable(node->op, (int)i)) continue;
    /* Auxiliary states were updated when the call ran; this time a copy is. */
    mpg_copyto_params params;
    memset(&params, 0, sizeof params);
    mpg_invocation copy = {.op = mpg_op_get(MPG_OP__copyto), .params = &params, .num_inputs = 1, .inputs = &arguments[i]->tensor,
                           .num_outputs = 1, .outputs = &copies[i].tensor};
    MPG_GOTO(mpg_invoke(&copy));
    arguments[i] = &copies[i];
  }
  if (node->num_inputs == 0 || (node->op->flags & MPG_OP_COPY)) MPG_GOTO(mpg_device_get(node->device, &device));
  mpg_random_key key = random;
  if (node->random != MPG_NO_RANDOM) key.call += node->random;
  MPG_GOTO(mpg_record_call(node->op, node->params, arguments, (int)node->num_inputs, values + node->values, (int)node->num_outputs,
                           node->random != MPG_NO_RANDOM ? &key : NULL, node->train, device, node->scope));
fail:
  for (uint32_t i = 0; copies && i < node->num_inputs; i++) mpg_array_clear(&copies[i]);
  mpg_free(copies);
  mpg_free(arguments);
  return status;
}

mpg_status mpg_compiled_replay(mpg_compiled *c, mpg_array *const *inputs, mpg_random_key random, mpg_array *outputs) {
  bool rewritten = c->original.num_nodes > 0;
  const mpg_graph *graph = rewritten ? &c->original : &c->graph;
  const mpg_value *input_values = rewritten ? c->original_inputs : c->inputs;
  mpg_array *values = mpg_calloc(graph->num_values + 1, sizeof *values);
  mpg_order order = {0};
  mpg_status status = MPG_OK;
  if (!values) return mpg_out_of_host_memory(graph->num_values * sizeof *values);
  bool recording = mpg_autograd_set_recording(true);
  for (uint32_t i = 0; i < c->num_inputs; i++) mpg_array_copy(&values[mpg_value_index(graph, input_values[i])], inputs[i]);
  MPG_GOTO(mpg_graph_order(graph, MPG_PHASE_FORWARD, graph->outputs, graph->num_outputs, &order));
  for (size_t k = 0; k < order.count; k++) MPG_GOTO(replay_node(graph, &graph->nodes[order.nodes[k]], values, random));
  for (uint32_t i = 0; i < c->num_outputs; i++) mpg_array_copy(&outputs[i], &values[mpg_value_index(graph, graph->outputs[i])]);
fail:
  mpg_autograd_set_recording(recording);
  mpg_order_free(&order);
  for (size_t i = 0; i < graph->num_values; i++) mpg_array_clear(&values[i]);
  mpg_free(values);
  return status;
}
