#include "graph/graph.h"

/* The input a node's output is the same as, bit for bit; or MPG_NO_VALUE. */
static mpg_value same_as(const mpg_graph *graph, const mpg_node *node) {
  if (!node->op || node->num_outputs != 1 || node->num_inputs != 1) return MPG_NO_VALUE;
  mpg_value input = mpg_node_inputs(graph, node)[0];
  const mpg_graph_value *from = mpg_graph_at(graph, input), *to = &graph->values[node->values];
  bool copy = (node->op->flags & MPG_OP_COPY) && mpg_device_id_equal(from->device, to->device);
  if (!copy && !mpg_node_is_view(node)) return MPG_NO_VALUE;
  return from->desc.dtype == to->desc.dtype && mpg_shape_equal(&from->desc.shape, &to->desc.shape) ? input : MPG_NO_VALUE;
}

mpg_status mpg_graph_simplify(mpg_graph *graph) {
  mpg_value *stands_for = mpg_malloc((graph->num_nodes + 1) * sizeof *stands_for); /* per node with one output */
  bool *kept_apart = mpg_calloc(graph->num_nodes + 1, sizeof *kept_apart);         /* inputs that are written; outputs */
  if (!stands_for || !kept_apart) {
    mpg_free(stands_for);
    mpg_free(kept_apart);
    return mpg_out_of_host_memory(graph->num_nodes * sizeof *stands_for);
  }
  for (size_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    if (!mpg_node_mutates(node)) continue;
    for (uint32_t i = 0; i < node->num_inputs; i++)
      if (mpg_op_input_mutable(node->op, (int)i)) kept_apart[mpg_node_inputs(graph, node)[i].node] = true;
  }
  for (size_t i = 0; i < graph->num_outputs; i++) {
    /* A copy that is an output must not become the user's input array; a view of it is the same memory in eager mode too. */
    const mpg_node *node = &graph->nodes[graph->outputs[i].node];
    if (mpg_node_flag(node, MPG_OP_COPY)) kept_apart[graph->outputs[i].node] = true;
  }
  for (size_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_value *input = &graph->inputs[node->inputs + i];
      if (mpg_has_value(*input) && mpg_has_value(stands_for[input->node])) *input = stands_for[input->node];
    }
    stands_for[n] = same_as(graph, node);
    if (mpg_has_value(stands_for[n]) && (kept_apart[n] || kept_apart[stands_for[n].node])) stands_for[n] = MPG_NO_VALUE;
  }
  for (size_t i = 0; i < graph->num_outputs; i++)
    if (mpg_has_value(stands_for[graph->outputs[i].node])) graph->outputs[i] = stands_for[graph->outputs[i].node];
  mpg_free(stands_for);
  mpg_free(kept_apart);
  MPG_VERIFY(graph);
  return MPG_OK;
}
