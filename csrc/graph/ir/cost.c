/* Estimates the costs and run times of a graph's nodes. */
#include <string.h>

#include "graph/ir/graph.h"

static mpg_cost cost_of(const mpg_graph *graph, const mpg_node *node, mpg_desc *descs) {
  if (!node->op) return (mpg_cost){0, 0};
  const mpg_value *inputs = mpg_node_inputs(graph, node);
  for (uint32_t i = 0; i < node->num_inputs; i++) descs[i] = mpg_graph_at(graph, inputs[i])->desc;
  for (uint32_t i = 0; i < node->num_outputs; i++)
    descs[node->num_inputs + i] = graph->values[node->values + i].desc;
  mpg_infer call = {.op = node->op,
                    .params = node->params,
                    .num_inputs = (int)node->num_inputs,
                    .num_outputs = (int)node->num_outputs,
                    .inputs = descs,
                    .outputs = descs + node->num_inputs,
                    .train = node->train};
  return node->op->cost(&call);
}

mpg_status mpg_graph_costs(const mpg_graph *graph, mpg_cost *costs) {
  size_t most = 0;
  for (size_t n = 0; n < graph->num_nodes; n++) {
    size_t count = (size_t)graph->nodes[n].num_inputs + graph->nodes[n].num_outputs;
    if (count > most) most = count;
  }
  mpg_desc *descs = mpg_malloc((most + 1) * sizeof *descs);
  if (!descs) return mpg_out_of_host_memory(most * sizeof *descs);
  for (size_t n = 0; n < graph->num_nodes; n++) costs[n] = cost_of(graph, &graph->nodes[n], descs);
  mpg_free(descs);
  return MPG_OK;
}

double mpg_node_seconds(const mpg_graph *graph, const mpg_node *node, mpg_cost cost) {
  if (node->num_outputs == 0 || mpg_node_is_input(node)) return 0;
  const mpg_graph_value *out = &graph->values[node->values];
  if (mpg_node_crosses(graph, node)) {
    int32_t from = mpg_graph_at(graph, mpg_node_inputs(graph, node)[0])->device.type;
    return mpg_copy_seconds((double)mpg_desc_bytes(&out->desc),
                            from == MPG_GPU ? from : out->device.type);
  }
  return mpg_cost_seconds(cost, node->device.type, out->desc.dtype);
}
