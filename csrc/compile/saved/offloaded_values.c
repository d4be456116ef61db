/* Offloaded values of a compiled call. */
#include "compile/saved/offloaded_values.h"

#include "base/workspace.h"
#include "graph/gradient/offload.h"

mpg_status mpg_compiled_check_offload(const mpg_compiled *c, const mpg_memory_budget *budget) {
  if (!c->recording || !mpg_offload_wanted(&c->graph, c->graph.num_nodes)) return MPG_OK;
  if (c->stages != MPG_STAGES_NONE)
    return mpg_fail(MPG_ERROR,
                    "hybridize(offload=...): activations cannot be offloaded in a "
                    "pipeline (hybridize(pipeline=...) or TrainStep); use "
                    "hybridize(recompute=True), or omit the pipeline");
  if (mpg_graph_spans_ranks(&c->graph))
    return mpg_fail(MPG_ERROR,
                    "hybridize(offload=...): activations cannot be offloaded in a "
                    "network on devices of ranks; use hybridize(recompute=True), or "
                    "devices of this process");
  if (budget && budget->count)
    return mpg_fail(MPG_ERROR,
                    "hybridize(offload=...): activations cannot be offloaded in a block "
                    "with a memory budget (hybridize(recompute=...)); use "
                    "recompute=True, or omit one of the options");
  return MPG_OK;
}

/* Extends the arrays that describe the graph to `count` more nodes, each with one input and one
 * output, and allocates c->recalled. */
static mpg_status make_room(mpg_compiled *c, size_t count) {
  size_t values = c->graph.num_values + count, edges = c->graph.num_inputs + count + c->num_outputs;
  void *memory;
  if (!(memory = mpg_realloc(c->saved, (values + 1) * sizeof *c->saved)))
    return mpg_out_of_host_memory(values);
  c->saved = memory;
  if (!(memory = mpg_realloc(c->external, (values + 1) * sizeof *c->external)))
    return mpg_out_of_host_memory(values * sizeof *c->external);
  c->external = memory;
  if (!(memory = mpg_realloc(c->traced, (edges + 1) * sizeof *c->traced)))
    return mpg_out_of_host_memory(edges * sizeof *c->traced);
  c->traced = memory;
  c->recalled = mpg_malloc((values + 1) * sizeof *c->recalled);
  if (!c->recalled) return mpg_out_of_host_memory(values * sizeof *c->recalled);
  for (size_t v = 0; v < values; v++) c->recalled[v] = MPG_NO_VALUE;
  for (size_t v = c->graph.num_values; v < values; v++) {
    c->saved[v] = true;
    c->external[v] = MPG_NO_BASE;
  }
  return MPG_OK;
}

static mpg_status copy_out(mpg_compiled *c, mpg_value value, mpg_device_id device) {
  mpg_graph *graph = &c->graph;
  const mpg_node node = graph->nodes[value.node];
  size_t edges = graph->num_inputs;
  graph->phase = MPG_PHASE_FORWARD;
  graph->scope = node.scope;
  graph->origin = node.origin;
  graph->train = node.train;
  MPG_TRY(mpg_graph_emit_move(graph, value, device, false, false,
                              &c->recalled[mpg_value_index(graph, value)]));
  memmove(c->traced + edges + 1, c->traced + edges, c->num_outputs * sizeof *c->traced);
  c->traced[edges] = value;
  return MPG_OK;
}

mpg_status mpg_compiled_offload(mpg_compiled *c, const mpg_graph *joint, const mpg_value *roots) {
  mpg_graph *graph = &c->graph;
  size_t num_values = graph->num_values, num_nodes = graph->num_nodes, count = 0;
  mpg_workspace space = {0};
  mpg_status status = MPG_OK;
  if (!mpg_offload_wanted(graph, num_nodes)) return MPG_OK;
  mpg_device_id *targets = mpg_workspace_take(&space, num_values, sizeof *targets);
  MPG_GOTO(mpg_workspace_check(&space));
  mpg_offload_limits limits = {c->saved, c->external, c->offload_elements};
  MPG_GOTO(mpg_offload_find(joint, num_nodes, roots, c->num_inputs, &limits, targets));
  for (size_t v = 0; v < num_values; v++) count += targets[v].type != 0;
  if (count == 0) goto fail;
  MPG_GOTO(make_room(c, count));
  for (size_t n = 0; n < num_nodes; n++)
    for (uint32_t i = 0; i < graph->nodes[n].num_outputs; i++) {
      uint32_t v = graph->nodes[n].values + i;
      if (targets[v].type) MPG_GOTO(copy_out(c, (mpg_value){(uint32_t)n, i}, targets[v]));
    }
  /* Views come after their roots. */
  for (size_t n = 0; n < num_nodes; n++)
    for (uint32_t i = 0; i < graph->nodes[n].num_outputs; i++) {
      uint32_t v = graph->nodes[n].values + i,
               root = mpg_value_index(joint, mpg_view_root(joint, (mpg_value){(uint32_t)n, i}));
      if (targets[root].type == 0) continue;
      c->recalled[v] = c->saved[v] || root == v ? c->recalled[root] : MPG_NO_VALUE;
      c->saved[v] = false;
    }
fail:
  mpg_workspace_free(&space);
  return status;
}

void mpg_compiled_list_kept(const mpg_compiled *c, bool *kept) {
  for (size_t v = 0; v < c->graph.num_values; v++)
    kept[v] = c->saved[v] || (c->recalled && mpg_has_value(c->recalled[v]));
}

mpg_status mpg_compiled_recall(const mpg_compiled *c, mpg_graph *joint, const mpg_value_list *lists,
                               int num_lists) {
  if (!c->recalled) return MPG_OK;
  mpg_graph result;
  mpg_graph_init(&result);
  mpg_status status =
      mpg_offload_apply(joint, c->graph.num_nodes, c->recalled, lists, num_lists, &result);
  if (status == MPG_OK) {
    mpg_graph former = *joint;
    *joint = result;
    result = former;
  }
  mpg_graph_free(&result);
  return status;
}
