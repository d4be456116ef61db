/* Checks the invariants of graphs between passes, in debug builds. */
#include "graph/ir/graph.h"

static mpg_status broken(size_t node, const char *rule) {
  return mpg_fail(MPG_ERROR, "internal: node %zu of the graph: %s", node, rule);
}

mpg_status mpg_graph_verify(const mpg_graph *graph) {
  size_t inputs = 0, values = 0;
  for (size_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    if (node->inputs != inputs || node->values != values)
      return broken(n, "the ranges of its inputs or values are wrong");
    inputs += node->num_inputs;
    values += node->num_outputs;
    if (mpg_node_is_input(node) && (node->num_inputs || node->num_outputs != 1))
      return broken(n, "an input must have no inputs and one output");
    if (node->op && node->op->params->size && !node->params)
      return broken(n, "parameters are missing");
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_value value = graph->inputs[node->inputs + i];
      if (!mpg_has_value(value)) {
        if (!node->opaque) return broken(n, "an op has an input without a value");
        continue;
      }
      if (value.node >= n) return broken(n, "it reads a later node");
      if (value.output >= graph->nodes[value.node].num_outputs)
        return broken(n, "it reads an output that does not exist");
      const mpg_node *source = &graph->nodes[value.node];
      if (source->phase == MPG_PHASE_BACKWARD && node->phase != MPG_PHASE_BACKWARD)
        return broken(n, "a forward node reads a backward value");
      if (node->phase == MPG_PHASE_INVARIANT && source->phase != node->phase &&
          !mpg_node_is_input(source) && !mpg_node_flag(node, MPG_OP_SHAPE_ONLY))
        return broken(n, "an invariant node reads a value that is computed later");
      if (node->op && !(node->op->flags & (MPG_OP_COPY | MPG_OP_SPANS)) &&
          !mpg_device_id_equal(mpg_graph_at(graph, value)->device, node->device))
        return broken(n, "it is not a copy, but reads a value of another device");
    }
    for (uint32_t i = 0; i < node->num_outputs; i++)
      if (!mpg_shape_known(&graph->values[node->values + i].desc.shape) ||
          !mpg_dtype_valid(graph->values[node->values + i].desc.dtype))
        return broken(n, "a shape or dtype is unknown");
  }
  if (inputs != graph->num_inputs || values != graph->num_values)
    return broken(graph->num_nodes, "some inputs or values belong to no node");
  for (size_t i = 0; i < graph->num_outputs; i++)
    if (graph->outputs[i].node >= graph->num_nodes)
      return broken(graph->outputs[i].node, "it is an output but does not exist");
  return MPG_OK;
}
