/* Stores gradients directly into the arrays of their variables, for the tape and compiled calls. */
#include "graph/gradient/gradient_store.h"

#include <string.h>

#include "op/precision/promotion.h"

mpg_status mpg_gradient_store_begin(mpg_graph *graph, bool views, mpg_gradient_store *store) {
  *store = (mpg_gradient_store){.graph = graph, .num_known = graph->num_values, .views = views};
  store->taken = mpg_arena_alloc(&graph->arena, store->num_known + 1);
  if (!store->taken) return mpg_out_of_host_memory(store->num_known);
  memset(store->taken, 0, store->num_known);
  graph->phase = MPG_PHASE_BACKWARD;
  graph->scope = graph->origin = graph->recompute_region = 0;
  graph->offload = (mpg_device_id){0};
  return MPG_OK;
}

/* Returns true if the gradient can be computed directly in the array of its variable. Marks the
 * value as taken, so that no second variable can claim it. Returns false for inputs, views, values
 * of the forward phase, and values that another variable's array holds. */
static bool take(mpg_gradient_store *store, mpg_value gradient) {
  mpg_graph *graph = store->graph;
  mpg_value root = store->views ? mpg_view_root(graph, gradient) : gradient;
  const mpg_node *node = &graph->nodes[root.node];
  uint32_t index = mpg_value_index(graph, root);
  if (node->phase != MPG_PHASE_BACKWARD || mpg_node_is_input(node) || mpg_node_is_view(node))
    return false;
  if (index >= store->num_known) return true;
  bool free = !store->taken[index];
  store->taken[index] = true;
  return free;
}

mpg_status mpg_gradient_store_put(mpg_gradient_store *store, mpg_value variable, mpg_value gradient,
                                  bool add, mpg_value *stored, mpg_value *old) {
  mpg_graph *graph = store->graph;
  *stored = *old = MPG_NO_VALUE;
  if (!mpg_has_value(gradient))
    return add ? MPG_OK : mpg_graph_emit_full_like(graph, variable, 0, stored);
  bool call = graph->nodes[gradient.node].opaque != NULL;
  if ((call || !add) && take(store, gradient)) {
    *stored = gradient;
    return MPG_OK;
  }
  if (!add) return mpg_graph_emit_copy(graph, gradient, stored);
  const mpg_graph_value like = *mpg_graph_at(graph, variable);
  MPG_TRY(mpg_graph_input(graph, &like.desc, like.device, old));
  mpg_value terms[2] = {*old, gradient};
  return mpg_graph_emit(graph, mpg_sum_of_gradients(like.desc.dtype), NULL, terms, 2, MPG_NO_VALUE,
                        stored);
}
