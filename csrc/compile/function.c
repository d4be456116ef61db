/* Functions extracted from traces, and calls to them inside other traces. */
#include "compile/function.h"

void mpg_function_free(mpg_function *function) {
  if (!function) return;
  mpg_graph_free(&function->graph);
  mpg_free(function->inputs);
  mpg_free(function->outputs);
  mpg_free(function->input_ids);
  mpg_free(function->output_ids);
  mpg_free(function);
}

static mpg_status add(mpg_value **values, size_t *values_capacity, uint32_t **ids,
                      size_t *ids_capacity, uint32_t *count, mpg_value value, uint32_t id) {
  MPG_TRY(mpg_grow((void **)values, values_capacity, (size_t)*count + 1, sizeof **values));
  MPG_TRY(mpg_grow((void **)ids, ids_capacity, (size_t)*count + 1, sizeof **ids));
  (*values)[*count] = value;
  (*ids)[(*count)++] = id;
  return MPG_OK;
}

/* Adds a function input for each value that a node reads and that the function does not compute. */
static mpg_status take_inputs(const mpg_graph *graph, const mpg_node *node, mpg_function *function,
                              mpg_value *known) {
  const mpg_value *inputs = mpg_node_inputs(graph, node);
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    uint32_t id = mpg_value_index(graph, inputs[i]);
    if (mpg_has_value(known[id])) continue;
    MPG_TRY(mpg_graph_input(&function->graph, &graph->values[id].desc, graph->values[id].device,
                            &known[id]));
    function->graph.nodes[known[id].node].numpy = mpg_node_is_numpy(&graph->nodes[inputs[i].node]);
    MPG_TRY(add(&function->inputs, &function->inputs_capacity, &function->input_ids,
                &function->input_ids_capacity, &function->num_inputs, known[id], id));
  }
  return MPG_OK;
}

/* Offsets that emit adds to the recompute regions and random call numbers of a function. */
typedef struct base {
  uint32_t regions; /* number of recompute regions in the target graph so far */
  /* Number of random calls in the target so far, minus those before the function in the source. */
  uint32_t random;
} base;

/* Emits a node of one graph into another. `known` maps each value of `from` to its value in `into`.
 * If `into` is in a recompute region, the node joins it. Nodes that share a random call continue to
 * share it. */
static mpg_status emit(const mpg_graph *from, const mpg_node *node, mpg_graph *into, base before,
                       mpg_value *known) {
  mpg_value stack[32], *inputs = stack;
  mpg_status status = MPG_OK;
  uint32_t region = into->recompute_region, num_random = into->num_random;
  mpg_device_id offload = into->offload;
  if (node->num_inputs > sizeof stack / sizeof *stack &&
      !(inputs = mpg_malloc(node->num_inputs * sizeof *inputs)))
    return mpg_out_of_host_memory(node->num_inputs * sizeof *inputs);
  for (uint32_t i = 0; i < node->num_inputs; i++)
    inputs[i] = known[mpg_value_index(from, mpg_node_inputs(from, node)[i])];
  into->scope = node->scope;
  into->origin = node->origin;
  into->train = node->train;
  if (node->offload.type) into->offload = node->offload;
  if (!region && node->recompute_region)
    into->recompute_region = before.regions + node->recompute_region;
  if (into->recompute_region > into->num_recompute_regions)
    into->num_recompute_regions = into->recompute_region;
  if (node->random != MPG_NO_RANDOM) into->num_random = before.random + node->random;
  MPG_GOTO(mpg_graph_emit(into, node->op, node->params, inputs, (int)node->num_inputs, MPG_NO_VALUE,
                          known + node->values));
  if (node->num_outputs) into->nodes[known[node->values].node].separate = node->separate;
fail:
  into->recompute_region = region;
  into->offload = offload;
  if (into->num_random < num_random) into->num_random = num_random;
  if (inputs != stack) mpg_free(inputs);
  return status;
}

/* Returns the number of random calls among nodes [0, end). */
static uint32_t count_random(const mpg_graph *graph, size_t end) {
  uint32_t count = 0;
  for (size_t n = 0; n < end; n++)
    if (graph->nodes[n].random != MPG_NO_RANDOM && graph->nodes[n].random >= count)
      count = graph->nodes[n].random + 1;
  return count;
}

mpg_status mpg_function_cut(const mpg_trace *trace, size_t begin, const mpg_value *results,
                            size_t num_results, mpg_function **result) {
  const mpg_graph *graph = &trace->graph;
  mpg_status status = MPG_OK;
  bool any = false;
  *result = NULL;
  mpg_function *function = mpg_calloc(1, sizeof *function);
  mpg_value *known = mpg_malloc((graph->num_values + 1) * sizeof *known);
  bool *wanted = mpg_calloc(graph->num_values + 1, sizeof *wanted);
  if (!function || !known || !wanted) {
    mpg_free(function);
    mpg_free(known);
    mpg_free(wanted);
    return mpg_out_of_host_memory(graph->num_values * sizeof *known);
  }
  mpg_graph_init(&function->graph);
  uint32_t drawn = count_random(graph, begin);
  for (size_t i = 0; i < graph->num_values; i++) {
    known[i] = MPG_NO_VALUE;
    /* `live` may have no entry yet for a constant that no array refers to. */
    wanted[i] = !results && i < trace->live_capacity && trace->live[i] > 0;
  }
  for (size_t i = 0; i < num_results; i++) wanted[mpg_value_index(graph, results[i])] = true;
  for (size_t n = begin; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    if (mpg_node_is_input(node)) continue;
    any = true;
    if (node->random < drawn) /* shares a random call with an op before the cut */
      MPG_GOTO(mpg_fail(MPG_NOT_IMPLEMENTED,
                        "%s: its random numbers repeat those of an op before a step on the host; "
                        "call the block without hybridize()",
                        node->op->name));
    MPG_GOTO(take_inputs(graph, node, function, known));
    MPG_GOTO(emit(graph, node, &function->graph, (base){.random = -drawn}, known));
    for (uint32_t i = 0; i < node->num_outputs; i++)
      if (wanted[node->values + i])
        MPG_GOTO(add(&function->outputs, &function->outputs_capacity, &function->output_ids,
                     &function->output_ids_capacity, &function->num_outputs,
                     known[node->values + i], node->values + i));
  }
  if (any) {
    *result = function;
    function = NULL;
  }
fail:
  mpg_function_free(function);
  mpg_free(known);
  mpg_free(wanted);
  return status;
}

mpg_status mpg_function_call(const mpg_function *function, mpg_trace *trace,
                             mpg_array *const *inputs, mpg_array *outputs) {
  const mpg_graph *from = &function->graph;
  mpg_status status = MPG_OK;
  base before = {trace->graph.num_recompute_regions, trace->graph.num_random};
  mpg_value *known = mpg_malloc((from->num_values + 1) * sizeof *known);
  if (!known) return mpg_out_of_host_memory(from->num_values * sizeof *known);
  for (uint32_t i = 0; i < function->num_inputs; i++)
    MPG_GOTO(mpg_trace_value(trace, inputs[i], "a part of a hybridized block",
                             &known[mpg_value_index(from, function->inputs[i])]));
  for (size_t n = 0; n < from->num_nodes; n++)
    if (!mpg_node_is_input(&from->nodes[n]))
      MPG_GOTO(emit(from, &from->nodes[n], &trace->graph, before, known));
  for (uint32_t i = 0; i < function->num_outputs; i++) {
    mpg_value value = known[mpg_value_index(from, function->outputs[i])];
    MPG_GOTO(mpg_trace_pause_value(trace, &value));
    MPG_GOTO(mpg_trace_array(trace, value, &outputs[i]));
  }
fail:
  mpg_free(known);
  if (status != MPG_OK)
    for (uint32_t i = 0; i < function->num_outputs; i++) mpg_array_clear(&outputs[i]);
  return status;
}
