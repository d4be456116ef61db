/* Computes the uses, readers, writes, liveness and view roots of values. */
#include "graph/ir/analysis.h"

static void visit(const mpg_graph *graph, const mpg_node *node, uint32_t position,
                  mpg_analysis *a) {
  bool reads = !mpg_node_flag(node, MPG_OP_SHAPE_ONLY);
  a->position[node - graph->nodes] = position;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    mpg_value input = mpg_node_inputs(graph, node)[i];
    if (!mpg_has_value(input)) continue;
    uint32_t value = mpg_value_index(graph, input), root = a->root[value];
    a->uses[value]++;
    a->last_use[value] = position;
    if (node->op && mpg_op_input_mutable(node->op, (int)i)) a->written[root] = true;
    if (!reads) continue;
    a->readers[root]++;
    a->last_read[root] = position;
  }
}

mpg_status mpg_analyse(const mpg_graph *graph, const mpg_order *order, mpg_analysis *a) {
  size_t nodes = graph->num_nodes + 1, values = graph->num_values + 1,
         count = order ? order->count : graph->num_nodes,
         size = (nodes + 5 * values) * sizeof(uint32_t) + values * sizeof(bool);
  uint32_t *memory = mpg_calloc(1, size);
  if (!memory) return mpg_out_of_host_memory(size);
  *a = (mpg_analysis){.position = memory,
                      .uses = memory + nodes,
                      .last_use = memory + nodes + values,
                      .root = memory + nodes + 2 * values,
                      .readers = memory + nodes + 3 * values,
                      .last_read = memory + nodes + 4 * values,
                      .written = (bool *)(memory + nodes + 5 * values)};
  for (size_t v = 0; v < graph->num_values; v++) a->root[v] = (uint32_t)v;
  for (size_t n = 0; n < graph->num_nodes; n++) { /* inputs precede their users */
    const mpg_node *node = &graph->nodes[n];
    a->position[n] = MPG_NO_POSITION;
    if (mpg_node_is_view(node))
      a->root[node->values] = a->root[mpg_value_index(graph, mpg_node_inputs(graph, node)[0])];
  }
  for (uint32_t k = 0; k < count; k++)
    visit(graph, &graph->nodes[order ? order->nodes[k] : k], k, a);
  for (size_t i = 0; i < graph->num_outputs; i++)
    a->uses[mpg_value_index(graph, graph->outputs[i])]++;
  return MPG_OK;
}

void mpg_analysis_free(mpg_analysis *analysis) {
  mpg_free(analysis->position); /* all arrays are in one block, which starts here */
  *analysis = (mpg_analysis){0};
}

void mpg_graph_mark_live(const mpg_graph *graph, bool *live) {
  for (size_t n = graph->num_nodes; n-- > 0;) {
    const mpg_node *node = &graph->nodes[n];
    for (uint32_t i = 0; live[n] && i < node->num_inputs; i++)
      if (mpg_has_value(mpg_node_inputs(graph, node)[i]))
        live[mpg_node_inputs(graph, node)[i].node] = true;
  }
}

bool mpg_node_worth_keeping(const mpg_graph *graph, const mpg_node *node) {
  enum { CHEAP_BYTES = 1 << 16 };
  size_t from = 0, to = 0;
  for (uint32_t i = 0; i < node->num_inputs && !mpg_node_flag(node, MPG_OP_SHAPE_ONLY); i++)
    from += mpg_desc_bytes(&mpg_graph_at(graph, mpg_node_inputs(graph, node)[i])->desc);
  for (uint32_t i = 0; i < node->num_outputs; i++)
    to += mpg_desc_bytes(&graph->values[node->values + i].desc);
  return to <= 2 * from + CHEAP_BYTES;
}
