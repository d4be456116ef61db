#include <string.h>

#include "graph/graph.h"

static bool moves_up(const mpg_graph *graph, const mpg_node *node) {
  return mpg_node_crosses(graph, node) && !mpg_node_is_input(&graph->nodes[mpg_node_inputs(graph, node)[0].node]);
}

mpg_status mpg_graph_order(const mpg_graph *graph, mpg_phase phase, const mpg_value *roots, size_t num_roots, mpg_order *order) {
  size_t count = graph->num_nodes;
  bool *live = mpg_calloc(count + 1, sizeof *live);
  uint32_t *first = mpg_malloc((count + 1) * sizeof *first); /* per node: the copies that follow it, linked */
  uint32_t *next = mpg_malloc((count + 1) * sizeof *next);
  order->nodes = mpg_malloc((count + 1) * sizeof *order->nodes);
  order->count = 0;
  if (!live || !first || !next || !order->nodes) {
    mpg_free(live);
    mpg_free(first);
    mpg_free(next);
    mpg_order_free(order);
    return mpg_out_of_host_memory(count * sizeof *first);
  }
  for (size_t i = 0; i < num_roots; i++)
    if (mpg_has_value(roots[i])) live[roots[i].node] = true;
  for (size_t n = count; n-- > 0;) {
    const mpg_node *node = &graph->nodes[n];
    first[n] = UINT32_MAX;
    if (phase == MPG_PHASE_FORWARD && node->phase == phase && mpg_node_mutates(node)) live[n] = true;
    if (!live[n]) continue;
    const mpg_value *inputs = mpg_node_inputs(graph, node);
    for (uint32_t i = 0; i < node->num_inputs; i++)
      if (mpg_has_value(inputs[i])) live[inputs[i].node] = true;
  }
  for (size_t n = count; n-- > 0;) { /* backwards, so that lists come out in creation order */
    if (!live[n] || !moves_up(graph, &graph->nodes[n])) continue;
    uint32_t source = mpg_node_inputs(graph, &graph->nodes[n])[0].node;
    if (graph->nodes[source].phase != phase) continue;
    next[n] = first[source];
    first[source] = (uint32_t)n;
  }
  for (size_t n = 0; n < count; n++) {
    const mpg_node *node = &graph->nodes[n];
    if (!live[n] || node->phase != phase || mpg_node_is_input(node)) continue;
    if (moves_up(graph, node) && graph->nodes[mpg_node_inputs(graph, node)[0].node].phase == phase) continue; /* listed already */
    order->nodes[order->count++] = (uint32_t)n;
    /* A copy of a copy follows its source in turn. */
    for (size_t done = order->count - 1; done < order->count; done++)
      for (uint32_t copy = first[order->nodes[done]]; copy != UINT32_MAX; copy = next[copy]) order->nodes[order->count++] = copy;
  }
  mpg_free(live);
  mpg_free(first);
  mpg_free(next);
  return MPG_OK;
}

void mpg_order_free(mpg_order *order) {
  mpg_free(order->nodes);
  *order = (mpg_order){0};
}
