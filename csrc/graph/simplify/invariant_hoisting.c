/* Loop-invariant hoisting: moves nodes that depend only on parameters and constants out of the
 * programs that run in every call. */
#include <string.h>

#include "base/workspace.h"
#include "graph/ir/analysis.h"

/* Source of a node's values. VARIES: computed in every call. FIXED: a fixed input. HOISTED:
 * computed in the invariants phase. VIEW: a view of a fixed input; it shares the memory of that
 * input, so it is hoisted only if a hoisted node reads it. */
typedef enum state { VARIES, FIXED, VIEW, HOISTED } state;

/* Packed weights are always worth keeping, even though padding can make them much larger than the
 * original. */
static bool worth_keeping(const mpg_graph *graph, const mpg_node *node) {
  return mpg_node_worth_keeping(graph, node) || mpg_node_flag(node, MPG_OP_PACKS);
}

static state state_of(const mpg_graph *graph, const mpg_node *node, const uint8_t *states,
                      const bool *varies) {
  if (!node->op || (node->op->flags & (MPG_OP_RANDOM | MPG_OP_RENDEZVOUS)) ||
      mpg_node_mutates(node) || varies[node - graph->nodes])
    return VARIES;
  /* A parameter that is stored elsewhere is only on the device while it is used. */
  if (mpg_node_is_paced(graph, node)) return VARIES;
  const mpg_value *inputs = mpg_node_inputs(graph, node);
  bool contents = !mpg_node_flag(node, MPG_OP_SHAPE_ONLY);
  for (uint32_t i = 0; i < node->num_inputs && contents; i++)
    if (states[inputs[i].node] == VARIES) return VARIES;
  if (mpg_node_is_view(node) && contents && states[inputs[0].node] != HOISTED) return VIEW;
  return worth_keeping(graph, node) ? HOISTED : VARIES;
}

/* Marks nodes that must run in every call, because their memory is an output of the graph or is
 * written by another node. */
static void find_varying(const mpg_graph *graph, bool *varies) {
  for (size_t i = 0; i < graph->num_outputs; i++) varies[graph->outputs[i].node] = true;
  for (size_t n = graph->num_nodes; n-- > 0;) {
    const mpg_node *node = &graph->nodes[n];
    const mpg_value *inputs = mpg_node_inputs(graph, node);
    if (varies[n] && mpg_node_is_view(node)) varies[inputs[0].node] = true;
    for (uint32_t i = 0; node->op && i < node->num_inputs; i++)
      if (mpg_op_input_mutable(node->op, (int)i)) varies[inputs[i].node] = true;
  }
}

mpg_status mpg_graph_hoist_invariants(mpg_graph *graph, const mpg_value *fixed, size_t num_fixed,
                                      mpg_value **kept, size_t *num_kept) {
  mpg_workspace space = {0};
  uint8_t *states = mpg_workspace_take(&space, graph->num_nodes, sizeof *states);
  bool *varies = mpg_workspace_take(&space, graph->num_nodes, sizeof *varies);
  bool *listed = mpg_workspace_take(&space, graph->num_values, sizeof *listed);
  mpg_status status = MPG_OK;
  size_t capacity = 0;
  *kept = NULL;
  *num_kept = 0;
  MPG_GOTO(mpg_workspace_check(&space));
  find_varying(graph, varies);
  for (size_t i = 0; i < num_fixed; i++)
    if (!varies[fixed[i].node]) states[fixed[i].node] = FIXED;
  for (size_t n = 0; n < graph->num_nodes; n++)
    if (!mpg_node_is_input(&graph->nodes[n]))
      states[n] = (uint8_t)state_of(graph, &graph->nodes[n], states, varies);
  /* Hoists each view of a fixed input that a hoisted node reads. */
  for (size_t n = graph->num_nodes; n-- > 0;) {
    const mpg_node *node = &graph->nodes[n];
    if (states[n] != HOISTED) continue;
    for (uint32_t i = 0; i < node->num_inputs; i++)
      if (states[mpg_node_inputs(graph, node)[i].node] == VIEW)
        states[mpg_node_inputs(graph, node)[i].node] = HOISTED;
  }
  for (size_t n = 0; n < graph->num_nodes; n++) {
    mpg_node *node = &graph->nodes[n];
    if (states[n] == HOISTED) node->phase = MPG_PHASE_INVARIANT;
    if (states[n] == HOISTED || mpg_node_flag(node, MPG_OP_SHAPE_ONLY)) continue;
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_value input = mpg_node_inputs(graph, node)[i];
      if (!mpg_has_value(input) || states[input.node] != HOISTED ||
          listed[mpg_value_index(graph, input)])
        continue;
      listed[mpg_value_index(graph, input)] = true;
      MPG_GOTO(mpg_grow((void **)kept, &capacity, *num_kept + 1, sizeof **kept));
      (*kept)[(*num_kept)++] = input;
    }
  }
  MPG_VERIFY(graph);
fail:
  mpg_workspace_free(&space);
  return status;
}
