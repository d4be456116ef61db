/* Orders: the live nodes as they were made (dead code is in none), with copies to other devices as
 * early as can be; and changes of such an order (sums of gradients early, the critical path first).
 */
#include <string.h>

#include "base/workspace.h"
#include "graph/ir/analysis.h"
#include "graph/schedule/fuse.h"

enum { MPG_MAX_CRITICAL_DEVICES = 64 };

static bool moves_up(const mpg_graph *graph, const mpg_node *node) {
  return mpg_node_crosses(graph, node) &&
         !mpg_node_is_input(&graph->nodes[mpg_node_inputs(graph, node)[0].node]);
}

mpg_status mpg_graph_order(const mpg_graph *graph, mpg_phase phase, const mpg_value *roots,
                           size_t num_roots, mpg_order *order) {
  size_t count = graph->num_nodes;
  mpg_workspace space = {0};
  mpg_status status = MPG_OK;
  bool *live = mpg_workspace_take(&space, count, sizeof *live);
  /* Per node: the copies that follow it, linked. */
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
    first[n] = UINT32_MAX;
    if (phase == MPG_PHASE_FORWARD && node->phase == phase && mpg_node_mutates(node))
      live[n] = true;
  }
  mpg_graph_mark_live(graph, live);
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
    if (moves_up(graph, node) && graph->nodes[mpg_node_inputs(graph, node)[0].node].phase == phase)
      continue; /* listed already */
    order->nodes[order->count++] = (uint32_t)n;
    /* A copy of a copy follows its source in turn. */
    for (size_t done = order->count - 1; done < order->count; done++)
      for (uint32_t copy = first[order->nodes[done]]; copy != UINT32_MAX; copy = next[copy])
        order->nodes[order->count++] = copy;
  }
fail:
  mpg_workspace_free(&space);
  if (status != MPG_OK) mpg_order_free(order);
  return status;
}

mpg_status mpg_order_follow(const mpg_graph *graph, uint32_t first, mpg_order *order) {
  size_t count = order->count;
  uint32_t *leader = mpg_malloc((graph->num_nodes + 1) *
                                sizeof *leader); /* per node: the position that it follows */
  uint32_t *begin = mpg_calloc(count + 2, sizeof *begin);
  uint32_t *nodes = mpg_malloc((count + 1) * sizeof *nodes);
  mpg_status status = MPG_OK;
  if (!leader || !begin || !nodes)
    MPG_GOTO(mpg_out_of_host_memory(graph->num_nodes * sizeof *leader));
  for (size_t n = 0; n < graph->num_nodes; n++) leader[n] = UINT32_MAX;
  for (size_t k = 0; k < count; k++) {
    uint32_t n = order->nodes[k], last = UINT32_MAX;
    for (uint32_t i = 0; n >= first && i < graph->nodes[n].num_inputs; i++) {
      mpg_value input = mpg_node_inputs(graph, &graph->nodes[n])[i];
      uint32_t at = mpg_has_value(input) ? leader[input.node] : UINT32_MAX;
      if (at != UINT32_MAX && (last == UINT32_MAX || at > last)) last = at;
    }
    leader[n] = last == UINT32_MAX ? (uint32_t)k : last;
    begin[leader[n] + 1]++;
  }
  for (size_t k = 0; k < count; k++) begin[k + 1] += begin[k];
  for (size_t k = 0; k < count; k++)
    nodes[begin[leader[order->nodes[k]]]++] = order->nodes[k]; /* who leads comes first */
  mpg_free(order->nodes);
  order->nodes = nodes;
  nodes = NULL;
fail:
  mpg_free(leader);
  mpg_free(begin);
  mpg_free(nodes);
  return status;
}

/* A device's nodes that are put off until its next copy to another device has gone. */
typedef struct lagging {
  mpg_device_id device;
  uint32_t first, last; /* linked by `next`; UINT32_MAX: none */
  size_t ahead;         /* urgent nodes that are still to come */
} lagging;

typedef struct critical {
  const mpg_graph *graph;
  const mpg_order *order;
  bool *urgent;   /* per node: another device waits for it */
  uint32_t *next; /* per node: the one put off behind it */
  lagging devices[MPG_MAX_CRITICAL_DEVICES];
  uint32_t num_devices;
  mpg_order *faster;
} critical;

static lagging *device_of(critical *c, const mpg_node *node) {
  mpg_device_id device = mpg_node_runs_on(c->graph, node);
  for (uint32_t i = 0; i < c->num_devices; i++)
    if (mpg_device_id_equal(c->devices[i].device, device)) return &c->devices[i];
  if (c->num_devices == MPG_MAX_CRITICAL_DEVICES) return NULL;
  c->devices[c->num_devices] = (lagging){device, UINT32_MAX, UINT32_MAX, 0};
  return &c->devices[c->num_devices++];
}

static void append(critical *c, uint32_t n) { c->faster->nodes[c->faster->count++] = n; }

static void put_off(critical *c, lagging *device, uint32_t n) {
  c->next[n] = UINT32_MAX;
  if (device->first == UINT32_MAX)
    device->first = n;
  else
    c->next[device->last] = n;
  device->last = n;
}

static void release(critical *c, lagging *device) {
  for (uint32_t n = device->first; n != UINT32_MAX; n = c->next[n]) append(c, n);
  device->first = device->last = UINT32_MAX;
}

/* Orders with copies to other devices, and without writes, which keep their places. */
static bool may_be_faster(const mpg_graph *graph, const mpg_order *order) {
  bool crosses = false;
  for (size_t k = 0; k < order->count; k++) {
    const mpg_node *node = &graph->nodes[order->nodes[k]];
    crosses = crosses || mpg_node_crosses(graph, node);
    if (mpg_node_mutates(node)) return false;
  }
  return crosses;
}

static void find_urgent(critical *c) {
  for (size_t k = c->order->count; k-- > 0;) {
    uint32_t n = c->order->nodes[k];
    const mpg_node *node = &c->graph->nodes[n];
    if (!c->urgent[n] && !mpg_node_crosses(c->graph, node) && !mpg_node_spans(node)) continue;
    c->urgent[n] = true;
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_value input = mpg_node_inputs(c->graph, node)[i];
      if (mpg_has_value(input)) c->urgent[input.node] = true;
    }
  }
}

/* False: there are too many devices. */
static bool count_urgent(critical *c) {
  for (size_t k = 0; k < c->order->count; k++) {
    uint32_t n = c->order->nodes[k];
    lagging *device = device_of(c, &c->graph->nodes[n]);
    if (!device) return false;
    device->ahead += c->urgent[n];
  }
  return true;
}

/* Whether the node at position k is the last of the copies of one value, which follow each other.
 */
static bool ends_copies(const critical *c, size_t k) {
  const mpg_node *node = &c->graph->nodes[c->order->nodes[k]];
  if (!mpg_node_crosses(c->graph, node)) return false;
  if (k + 1 == c->order->count) return true;
  const mpg_node *after = &c->graph->nodes[c->order->nodes[k + 1]];
  return !mpg_node_crosses(c->graph, after) ||
         !mpg_device_id_equal(mpg_node_runs_on(c->graph, after), mpg_node_runs_on(c->graph, node));
}

/* True: the node was put off. */
static bool place_node(critical *c, size_t k) {
  uint32_t n = c->order->nodes[k];
  lagging *device = device_of(c, &c->graph->nodes[n]);
  if (c->urgent[n]) {
    append(c, n);
    device->ahead--;
    if (ends_copies(c, k)) release(c, device);
    return false;
  }
  if (device->ahead) {
    put_off(c, device, n);
    return true;
  }
  release(c, device);
  append(c, n);
  return false;
}

mpg_status mpg_order_critical_path_first(const mpg_graph *graph, const mpg_order *order,
                                         mpg_order *faster, bool *changed) {
  *changed = false;
  if (!may_be_faster(graph, order)) return MPG_OK;
  mpg_status status = MPG_OK;
  size_t nodes = graph->num_nodes + 1;
  mpg_workspace space = {0};
  critical c = {.graph = graph,
                .order = order,
                .urgent = mpg_workspace_take(&space, nodes, sizeof *c.urgent),
                .next = mpg_workspace_take(&space, nodes, sizeof *c.next),
                .faster = faster};
  faster->nodes = mpg_malloc((order->count + 1) * sizeof *faster->nodes);
  faster->count = 0;
  MPG_GOTO(mpg_workspace_check(&space));
  if (!faster->nodes) MPG_GOTO(mpg_out_of_host_memory(order->count * sizeof *faster->nodes));
  find_urgent(&c);
  if (!count_urgent(&c)) goto fail;
  for (size_t k = 0; k < order->count; k++) *changed |= place_node(&c, k);
  for (uint32_t i = 0; i < c.num_devices; i++) release(&c, &c.devices[i]);
fail:
  mpg_workspace_free(&space);
  if (status != MPG_OK || !*changed) mpg_order_free(faster);
  return status;
}

void mpg_order_free(mpg_order *order) {
  mpg_free(order->nodes);
  mpg_free(order->segment_of);
  mpg_free(order->segments);
  mpg_fusion_free(order->fusion);
  *order = (mpg_order){0};
}
