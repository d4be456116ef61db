/* Execution orders: the live nodes in creation order (dead code is eliminated), with copies to
 * other devices as early as possible. Also prefetches stored parameters, and moves sums of
 * gradients to directly after their inputs. */
#include <string.h>

#include "base/workspace.h"
#include "graph/ir/analysis.h"
#include "graph/schedule/fuse.h"
#include "graph/schedule/plan.h"

/* True for a copy to another device that is listed directly after the node that computes its
 * source. */
static bool moves_up(const mpg_graph *graph, const mpg_node *node) {
  if (!mpg_node_crosses(graph, node)) return false;
  const mpg_node *source = &graph->nodes[mpg_node_inputs(graph, node)[0].node];
  return !mpg_node_is_input(source) && source->phase == node->phase;
}

static bool is_prefetched(const mpg_graph *graph, const mpg_node *node) {
  return mpg_node_is_paced(graph, node) && !moves_up(graph, node) &&
         ((const mpg_copyto_params *)node->params)->prefetched;
}

static bool same_route(const mpg_graph *graph, const mpg_node *a, const mpg_node *b) {
  return mpg_device_id_equal(a->device, b->device) &&
         mpg_device_id_equal(mpg_graph_at(graph, mpg_node_inputs(graph, a)[0])->device,
                             mpg_graph_at(graph, mpg_node_inputs(graph, b)[0])->device);
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

mpg_status mpg_order_prefetch(const mpg_graph *graph, mpg_order *order) {
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

/* Numbers of paced copies that devices have received so far. */
typedef struct receipts {
  uint32_t count;
  mpg_device_id devices[MPG_MAX_GRAPH_DEVICES];
  size_t received[MPG_MAX_GRAPH_DEVICES];
} receipts;

static size_t *received(receipts *r, mpg_device_id device) {
  uint32_t i = 0;
  while (i < r->count && !mpg_device_id_equal(r->devices[i], device)) i++;
  if (i == r->count && i < MPG_MAX_GRAPH_DEVICES) {
    r->devices[r->count++] = device;
    r->received[i] = 0;
  }
  return i < MPG_MAX_GRAPH_DEVICES ? &r->received[i] : NULL;
}

static mpg_device_id source_device(const mpg_graph *graph, const mpg_node *copy) {
  return mpg_graph_at(graph, mpg_node_inputs(graph, copy)[0])->device;
}

/* True for a copy to another device whose source is computed before this phase. */
static bool is_ready(const mpg_graph *graph, const mpg_node *node) {
  if (!mpg_node_crosses(graph, node)) return false;
  const mpg_node *source = &graph->nodes[mpg_node_inputs(graph, node)[0].node];
  return mpg_node_is_input(source) || source->phase != node->phase;
}

static bool is_gathered(const mpg_graph *graph, const mpg_node *node) {
  return mpg_node_is_paced(graph, node) && is_ready(graph, node) && !is_prefetched(graph, node);
}

/* Returns the earliest position of a copy that is appended to `order`. A gathered copy waits for
 * its target, so it moves to the copy with the same number that its source has received, and which
 * waits for the source. `ahead` is the number of copies that the source has received. Other copies
 * do not wait. They move to the last gathered copy of their target. */
static size_t earliest(const mpg_graph *graph, const mpg_order *order, const mpg_node *copy,
                       size_t number, size_t ahead) {
  mpg_device_id from = source_device(graph, copy), to = copy->device;
  bool gathered = is_gathered(graph, copy);
  for (size_t k = order->count; k > 0; k--) {
    const mpg_node *node = &graph->nodes[order->nodes[k - 1]];
    if (!is_gathered(graph, node)) continue;
    if (!gathered && mpg_device_id_equal(node->device, to)) return k;
    if (gathered && mpg_device_id_equal(node->device, from) && --ahead == number) return k;
  }
  return order->count;
}

mpg_status mpg_order_together(const mpg_graph *graph, mpg_order *order) {
  mpg_order made = {.nodes = mpg_malloc((order->count + 1) * sizeof *made.nodes)};
  receipts all = {0};
  if (!made.nodes) return mpg_out_of_host_memory(order->count * sizeof *made.nodes);
  for (size_t k = 0; k < order->count; k++) {
    const mpg_node *node = &graph->nodes[order->nodes[k]];
    size_t at = made.count;
    size_t *own = received(&all, node->device),
           *ahead =
               mpg_node_crosses(graph, node) ? received(&all, source_device(graph, node)) : NULL;
    bool gathered = is_gathered(graph, node);
    if (own && ahead && is_ready(graph, node) && (!gathered || *ahead > *own))
      at = earliest(graph, &made, node, *own, *ahead);
    if (own && gathered) ++*own;
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
