/* Replay of a compiled call as ops on the tape, for gradients of gradients. Replays the original
 * ops, because some ops that rewrites insert have no second gradient. */
#include <string.h>

#include "compile/replay.h"

static mpg_status replay_node(const mpg_graph *graph, const mpg_node *node, mpg_array *values,
                              mpg_random_key random) {
  const mpg_value *inputs = mpg_node_inputs(graph, node);
  mpg_status status = MPG_OK;
  mpg_device *device = NULL;
  mpg_array *copies = mpg_calloc(node->num_inputs + 1, sizeof *copies);
  mpg_array **arguments = mpg_malloc((node->num_inputs + 1) * sizeof *arguments);
  if (!copies || !arguments) MPG_GOTO(mpg_out_of_host_memory(node->num_inputs * sizeof *copies));
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    arguments[i] = &values[mpg_value_index(graph, inputs[i])];
    if (!mpg_op_input_mutable(node->op, (int)i)) continue;
    /* The call itself updated the auxiliary states, so the replay updates a copy. */
    mpg_copyto_params params;
    memset(&params, 0, sizeof params);
    mpg_invocation copy = {.op = mpg_op_get(MPG_OP__copyto),
                           .params = &params,
                           .num_inputs = 1,
                           .inputs = &arguments[i]->tensor,
                           .num_outputs = 1,
                           .outputs = &copies[i].tensor};
    MPG_GOTO(mpg_invoke(&copy));
    arguments[i] = &copies[i];
  }
  if (node->num_inputs == 0 || (node->op->flags & MPG_OP_COPY))
    MPG_GOTO(mpg_device_get(node->device, &device));
  mpg_random_key key = random;
  if (node->random != MPG_NO_RANDOM) key.call += node->random;
  mpg_random_take(&key, &node->draw);
  MPG_GOTO(mpg_record_call(node->op, node->params, arguments, (int)node->num_inputs,
                           values + node->values, (int)node->num_outputs,
                           node->random != MPG_NO_RANDOM ? &key : NULL, node->train, device,
                           node->scope));
fail:
  for (uint32_t i = 0; copies && i < node->num_inputs; i++) mpg_array_clear(&copies[i]);
  mpg_free(copies);
  mpg_free(arguments);
  return status;
}

/* Copies the graph as traced, for two reasons. Rewrites are not bit-identical. Simplification
 * removes nodes that matter only to gradients: BlockGrad, and duplicate ops, whose gradients would
 * be summed in another order if the ops were merged. */
static mpg_status copy_traced(const mpg_compiled *c, mpg_graph *graph,
                              const mpg_value **input_values) {
  bool rewritten = c->original.num_nodes > 0;
  *input_values = rewritten ? c->original_inputs : c->inputs;
  if (rewritten) return mpg_graph_copy(graph, &c->original);
  MPG_TRY(mpg_graph_copy(graph, &c->graph));
  if (graph->num_inputs)
    memcpy(graph->inputs, c->traced, graph->num_inputs * sizeof *graph->inputs);
  return mpg_graph_set_outputs(graph, c->traced + graph->num_inputs, c->num_outputs);
}

/* Checks that the inputs that the replay reads are unchanged since the call ran, except those that
 * the call itself wrote (moving statistics). */
static mpg_status check_unchanged(const mpg_graph *graph, const mpg_order *order,
                                  const mpg_value *input_values, const mpg_array *inputs,
                                  const uint32_t *versions, uint32_t num_inputs) {
  bool *read = mpg_calloc(graph->num_values + 1, sizeof *read);
  mpg_status status = MPG_OK;
  if (!read) return mpg_out_of_host_memory(graph->num_values);
  for (size_t k = 0; k < order->count; k++) {
    const mpg_node *node = &graph->nodes[order->nodes[k]];
    for (uint32_t i = 0; i < node->num_inputs; i++)
      if (!mpg_op_input_mutable(node->op, (int)i))
        read[mpg_value_index(graph, mpg_node_inputs(graph, node)[i])] = true;
  }
  for (uint32_t i = 0; i < num_inputs && status == MPG_OK; i++) {
    char shape[MPG_SHAPE_TEXT_SIZE];
    const mpg_tensor *tensor = &inputs[i].tensor;
    if (!read[mpg_value_index(graph, input_values[i])] || tensor->storage->version == versions[i])
      continue;
    status = mpg_fail(MPG_ERROR,
                      "gradients of gradients of a hybridized block: its input %u (%s %s) was "
                      "overwritten after the forward pass, which must be recomputed for them. "
                      "Write into another array, or copy before writing",
                      i, mpg_dtype_name(tensor->desc.dtype),
                      mpg_shape_text(&tensor->desc.shape, shape, sizeof shape));
  }
  mpg_free(read);
  return status;
}

mpg_status mpg_compiled_replay(mpg_compiled *c, const mpg_array *inputs, const uint32_t *versions,
                               mpg_random_key random, uint64_t sequence, mpg_array *outputs) {
  mpg_graph graph;
  const mpg_value *input_values;
  mpg_array *values = NULL;
  size_t num_values = 0;
  mpg_order order = {0};
  mpg_status status = MPG_OK;
  mpg_graph_init(&graph);
  c->references++; /* ops may let other threads run, which may release the call */
  bool recording = mpg_autograd_set_recording(true);
  MPG_GOTO(copy_traced(c, &graph, &input_values));
  values = mpg_calloc(graph.num_values + 1, sizeof *values);
  if (!values) MPG_GOTO(mpg_out_of_host_memory(graph.num_values * sizeof *values));
  num_values = graph.num_values;
  MPG_GOTO(mpg_graph_order(&graph, MPG_PHASE_FORWARD, graph.outputs, graph.num_outputs, &order));
  MPG_GOTO(check_unchanged(&graph, &order, input_values, inputs, versions, c->num_inputs));
  for (uint32_t i = 0; i < c->num_inputs; i++)
    mpg_array_copy(&values[mpg_value_index(&graph, input_values[i])], &inputs[i]);
  for (size_t k = 0; k < order.count; k++) {
    const mpg_node *node = &graph.nodes[order.nodes[k]];
    MPG_GOTO(replay_node(&graph, node, values, random));
    /* Sets the sequence number of the traced op, because the replay may run copies earlier than the
     * traced program did. */
    if (node->num_outputs && values[node->values].node)
      values[node->values].node->sequence = sequence + order.nodes[k];
  }
  for (uint32_t i = 0; i < c->num_outputs; i++)
    mpg_array_copy(&outputs[i], &values[mpg_value_index(&graph, graph.outputs[i])]);
fail:
  mpg_autograd_set_recording(recording);
  mpg_order_free(&order);
  for (size_t i = 0; i < num_values; i++) mpg_array_clear(&values[i]);
  mpg_free(values);
  mpg_graph_free(&graph);
  mpg_compiled_release(c);
  return status;
}
