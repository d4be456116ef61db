/* Execution orders: the live nodes in creation order (dead code is eliminated), with copies to
 * other devices as early as possible. Also prefetches stored parameters, and moves sums of
 * gradients to directly after their inputs. */
#include <string.h>

#include "base/workspace.h"
#include "graph/ir/analysis.h"
#include "graph/schedule/fuse.h"
#include "graph/schedule/plan.h"

/* True for a copy to another device whose source is computed in this phase. */
static bool is_computed(const mpg_graph *graph, const mpg_node *node) {
  if (!mpg_node_crosses(graph, node)) return false;
  const mpg_node *source = &graph->nodes[mpg_node_inputs(graph, node)[0].node];
  return !mpg_node_is_input(source) && source->phase == node->phase;
}

/* True for a copy to another device that is listed directly after the node that computes its
 * source. */
static bool moves_up(const mpg_graph *graph, const mpg_node *node) {
  return is_computed(graph, node) && !((const mpg_copyto_params *)node->params)->ordered;
}

/* True for a copy to another device whose source is computed before this phase. */
static bool is_ready(const mpg_graph *graph, const mpg_node *node) {
  return mpg_node_crosses(graph, node) && !is_computed(graph, node);
}

static bool is_prefetched(const mpg_graph *graph, const mpg_node *node) {
  return is_ready(graph, node) && mpg_node_is_paced(graph, node) &&
         ((const mpg_copyto_params *)node->params)->prefetched;
}

/* True for a copy of a part that is gathered with other parts. */
static bool is_gathered(const mpg_graph *graph, const mpg_node *node) {
  return is_ready(graph, node) && mpg_node_is_paced(graph, node) &&
         !((const mpg_copyto_params *)node->params)->prefetched;
}

static bool same_route(const mpg_graph *graph, const mpg_node *a, const mpg_node *b) {
  return mpg_device_id_equal(a->device, b->device) &&
         mpg_device_id_equal(mpg_node_runs_on(graph, a), mpg_node_runs_on(graph, b));
}

mpg_status mpg_graph_order(const mpg_graph *graph, mpg_phase phase, const mpg_value *roots,
                           size_t num_roots, mpg_order *order) {
  size_t count = graph->num_nodes;
  mpg_workspace space = {0};
  mpg_status status = MPG_OK;
  bool *live = mpg_workspace_take(&space, count, sizeof *live);
  /* Per node: linked list of the copies that follow it. */
  uint32_t *first = mpg_workspace_take(&space, count, sizeof *first);
  uint32_t *next = mpg_workspace_take(&space, count, sizeof *next);
  order->nodes = mpg_malloc((count + 1) * sizeof *order->nodes);
  order->count = 0;
  MPG_GOTO(mpg_workspace_check(&space));
  if (!order->nodes) MPG_GOTO(mpg_out_of_host_memory(count * sizeof *order->nodes));
  for (size_t i = 0; i < num_roots; i++)
    if (mpg_has_value(roots[i])) live[roots[i].node] = true;
  for (size_t n = count; n-- > 0;) {
    const mpg_node *node = &graph->nodes[n];
    first[n] = MPG_NO_NODE;
    if (phase == MPG_PHASE_FORWARD && node->phase == phase && mpg_node_mutates(node))
      live[n] = true;
  }
  mpg_graph_mark_live(graph, live);
  for (size_t n = count; n-- > 0;) { /* backward, so that lists are in creation order */
    if (!live[n] || !moves_up(graph, &graph->nodes[n])) continue;
    uint32_t source = mpg_node_inputs(graph, &graph->nodes[n])[0].node;
    next[n] = first[source];
    first[source] = (uint32_t)n;
  }
  for (size_t n = 0; n < count; n++) {
    const mpg_node *node = &graph->nodes[n];
    if (!live[n] || node->phase != phase || mpg_node_is_input(node)) continue;
    if (moves_up(graph, node)) continue;
    order->nodes[order->count++] = (uint32_t)n;
    /* Appends the copies of the node, and in turn the copies of these copies. */
    for (size_t done = order->count - 1; done < order->count; done++)
      for (uint32_t copy = first[order->nodes[done]]; copy != MPG_NO_NODE; copy = next[copy])
        order->nodes[order->count++] = copy;
  }
fail:
  mpg_workspace_free(&space);
  if (status != MPG_OK) mpg_order_free(order);
  return status;
}

mpg_status mpg_order_follow(const mpg_graph *graph, uint32_t first, mpg_order *order) {
  size_t count = order->count;
  /* Per node: position of the node that it is moved after, or its own position. */
  uint32_t *leader = mpg_malloc((graph->num_nodes + 1) * sizeof *leader);
  uint32_t *begin = mpg_calloc(count + 2, sizeof *begin);
  uint32_t *nodes = mpg_malloc((count + 1) * sizeof *nodes);
  mpg_status status = MPG_OK;
  if (!leader || !begin || !nodes)
    MPG_GOTO(mpg_out_of_host_memory(graph->num_nodes * sizeof *leader));
  for (size_t n = 0; n < graph->num_nodes; n++) leader[n] = MPG_NO_POSITION;
  for (size_t k = 0; k < count; k++) {
    uint32_t n = order->nodes[k], last = MPG_NO_POSITION;
    for (uint32_t i = 0; n >= first && i < graph->nodes[n].num_inputs; i++) {
      mpg_value input = mpg_node_inputs(graph, &graph->nodes[n])[i];
      uint32_t at = mpg_has_value(input) ? leader[input.node] : MPG_NO_POSITION;
      if (at != MPG_NO_POSITION && (last == MPG_NO_POSITION || at > last)) last = at;
    }
    leader[n] = last == MPG_NO_POSITION ? (uint32_t)k : last;
    begin[leader[n] + 1]++;
  }
  for (size_t k = 0; k < count; k++) begin[k + 1] += begin[k];
  /* Each leader comes directly before the nodes that follow it. */
  for (size_t k = 0; k < count; k++) nodes[begin[leader[order->nodes[k]]]++] = order->nodes[k];
  mpg_free(order->nodes);
  order->nodes = nodes;
  nodes = NULL;
fail:
  mpg_free(leader);
  mpg_free(begin);
  mpg_free(nodes);
  return status;
}

/* True if the copy at position k is the first prefetched one between its devices. */
static bool is_first(const mpg_graph *graph, const mpg_order *order, size_t k) {
  const mpg_node *node = &graph->nodes[order->nodes[k]];
  while (k-- > 0) {
    const mpg_node *other = &graph->nodes[order->nodes[k]];
    if (is_prefetched(graph, other) && same_route(graph, node, other)) return false;
  }
  return true;
}

/* True if the receiver of the copy at position k executes few nodes at [from, k). */
static bool is_near(const mpg_graph *graph, const mpg_order *order, size_t from, size_t k) {
  enum { MOST = 8 };
  mpg_device_id receiver = graph->nodes[order->nodes[k]].device;
  int count = 0;
  for (size_t i = from; i < k; i++)
    count += mpg_device_id_equal(graph->nodes[order->nodes[i]].device, receiver);
  return count <= MOST;
}

/* Moves the first prefetched copies between all devices to the first one, so that no device waits
 * until another has computed with its first parameter. */
static mpg_status start_together(const mpg_graph *graph, mpg_order *order) {
  size_t count = 0, first = 0;
  while (first < order->count && !is_prefetched(graph, &graph->nodes[order->nodes[first]])) first++;
  if (first == order->count) return MPG_OK;
  uint32_t *nodes = mpg_malloc(order->count * sizeof *nodes);
  bool *moves = mpg_calloc(order->count, sizeof *moves);
  mpg_status status = MPG_OK;
  if (!nodes || !moves) MPG_GOTO(mpg_out_of_host_memory(order->count * sizeof *nodes));
  for (size_t k = 0; k < order->count; k++) {
    for (size_t i = k; k == first && i < order->count; i++) {
      moves[i] = is_prefetched(graph, &graph->nodes[order->nodes[i]]) &&
                 is_first(graph, order, i) && is_near(graph, order, first, i);
      if (moves[i]) nodes[count++] = order->nodes[i];
    }
    if (!moves[k]) nodes[count++] = order->nodes[k];
  }
  memcpy(order->nodes, nodes, count * sizeof *nodes);
fail:
  mpg_free(nodes);
  mpg_free(moves);
  return status;
}

mpg_status mpg_order_prefetch(const mpg_graph *graph, mpg_order *order) {
  MPG_TRY(start_together(graph, order));
  uint32_t *nodes = mpg_malloc((order->count + 1) * sizeof *nodes);
  if (!nodes) return mpg_out_of_host_memory(order->count * sizeof *nodes);
  size_t count = 0;
  for (size_t k = 0; k < order->count; k++) {
    const mpg_node *node = &graph->nodes[order->nodes[k]], *other;
    if (!is_prefetched(graph, node)) {
      nodes[count++] = order->nodes[k];
      continue;
    }
    bool first = true;
    for (size_t i = k; i-- > 0 && first;) {
      other = &graph->nodes[order->nodes[i]];
      first = !is_prefetched(graph, other) || !same_route(graph, node, other);
    }
    if (first) nodes[count++] = order->nodes[k];
    for (size_t i = k + 1; i < order->count; i++) {
      other = &graph->nodes[order->nodes[i]];
      if (!is_prefetched(graph, other) || !same_route(graph, node, other)) continue;
      nodes[count++] = order->nodes[i];
      break;
    }
  }
  mpg_free(order->nodes);
  order->nodes = nodes;
  return MPG_OK;
}

/* Returns the earliest position of a copy that is appended to `order`. A gathered copy waits for
 * its target, so it moves to the copy with the same number that its source has received, and which
 * waits for the source. `ahead` is the number of copies that the source has received. Other copies
 * do not wait. They move to the last gathered copy of their target. */
static size_t earliest(const mpg_graph *graph, const mpg_order *order, const mpg_node *copy,
                       size_t number, size_t ahead) {
  bool gathered = is_gathered(graph, copy);
  mpg_device_id receiver = gathered ? mpg_node_runs_on(graph, copy) : copy->device;
  size_t k = order->count;
  for (; k > 0; k--) {
    const mpg_node *node = &graph->nodes[order->nodes[k - 1]];
    if (!mpg_device_id_equal(node->device, receiver) || !is_gathered(graph, node)) continue;
    if (!gathered || --ahead == number) break;
  }
  return k;
}

mpg_status mpg_order_together(const mpg_graph *graph, const mpg_plan *plan, mpg_order *order) {
  mpg_order made = {.nodes = mpg_malloc((order->count + 1) * sizeof *made.nodes)};
  size_t received[MPG_MAX_GRAPH_DEVICES] = {0}; /* gathered copies so far, per device */
  if (!made.nodes) return mpg_out_of_host_memory(order->count * sizeof *made.nodes);
  for (size_t k = 0; k < order->count; k++) {
    const mpg_node *node = &graph->nodes[order->nodes[k]];
    size_t at = made.count;
    if (is_ready(graph, node) && !is_prefetched(graph, node)) {
      size_t *own = &received[mpg_plan_slot(plan, node->device)],
             ahead = received[mpg_plan_slot(plan, mpg_node_runs_on(graph, node))];
      bool gathered = is_gathered(graph, node);
      if (gathered ? ahead > *own : *own > 0) at = earliest(graph, &made, node, *own, ahead);
      *own += gathered;
    }
    memmove(made.nodes + at + 1, made.nodes + at, (made.count - at) * sizeof *made.nodes);
    made.nodes[at] = order->nodes[k];
    made.count++;
  }
  mpg_free(order->nodes);
  order->nodes = made.nodes;
  return MPG_OK;
}

void mpg_fusion_free(mpg_fusion *fusion) {
  if (!fusion) return;
  mpg_free(fusion->groups);
  mpg_free(fusion->group_of);
  mpg_free(fusion->internal);
  mpg_free(fusion->uses);
  mpg_free(fusion);
}

void mpg_order_free(mpg_order *order) {
  mpg_free(order->nodes);
  mpg_free(order->segment_of);
  mpg_free(order->segments);
  mpg_fusion_free(order->fusion);
  *order = (mpg_order){0};
}
