/* Orders: the live nodes as they were made (dead code is in none), with copies to other devices as
 * early as can be; and changes of such an order (sums of gradients early, the critical path first).
 */
#include <string.h>

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
  bool *live = mpg_calloc(count + 1, sizeof *live);
  uint32_t *first =
      mpg_malloc((count + 1) * sizeof *first); /* per node: the copies that follow it, linked */
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
  mpg_free(live);
  mpg_free(first);
  mpg_free(next);
  return MPG_OK;
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

static lagging *lagging_of(lagging *devices, uint32_t *count, mpg_device_id device) {
  for (uint32_t i = 0; i < *count; i++)
    if (mpg_device_id_equal(devices[i].device, device)) return &devices[i];
  if (*count == MPG_MAX_CRITICAL_DEVICES) return NULL;
  devices[*count] = (lagging){device, UINT32_MAX, UINT32_MAX, 0};
  return &devices[(*count)++];
}

static void release(lagging *device, const uint32_t *next, mpg_order *order) {
  for (uint32_t n = device->first; n != UINT32_MAX; n = next[n]) order->nodes[order->count++] = n;
  device->first = device->last = UINT32_MAX;
}

mpg_status mpg_order_critical_path_first(const mpg_graph *graph, const mpg_order *order,
                                         mpg_order *hurried, bool *changed) {
  *changed = false;
  bool crosses = false;
  for (size_t k = 0; k < order->count; k++) {
    crosses = crosses || mpg_node_crosses(graph, &graph->nodes[order->nodes[k]]);
    if (mpg_node_mutates(&graph->nodes[order->nodes[k]])) return MPG_OK;
  }
  if (!crosses) return MPG_OK;
  bool *urgent = mpg_calloc(graph->num_nodes + 1, sizeof *urgent);
  uint32_t *next = mpg_malloc((graph->num_nodes + 1) * sizeof *next), num_devices = 0;
  lagging devices[MPG_MAX_CRITICAL_DEVICES];
  hurried->nodes = mpg_malloc((order->count + 1) * sizeof *hurried->nodes);
  hurried->count = 0;
  mpg_status status = MPG_OK;
  if (!urgent || !next || !hurried->nodes)
    MPG_GOTO(mpg_out_of_host_memory(graph->num_nodes * sizeof *next));
  for (size_t k = order->count; k-- > 0;) {
    const mpg_node *node = &graph->nodes[order->nodes[k]];
    if (!urgent[order->nodes[k]] && !mpg_node_crosses(graph, node) && !mpg_node_spans(node))
      continue;
    urgent[order->nodes[k]] = true;
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_value input = mpg_node_inputs(graph, node)[i];
      if (mpg_has_value(input)) urgent[input.node] = true;
    }
  }
  for (size_t k = 0; k < order->count; k++) {
    const mpg_node *node = &graph->nodes[order->nodes[k]];
    lagging *device = lagging_of(devices, &num_devices, mpg_node_runs_on(graph, node));
    if (!device) goto fail; /* too many devices: the order stays */
    if (urgent[order->nodes[k]]) device->ahead++;
  }
  for (size_t k = 0; k < order->count; k++) {
    uint32_t n = order->nodes[k];
    const mpg_node *node = &graph->nodes[n];
    lagging *device = lagging_of(devices, &num_devices, mpg_node_runs_on(graph, node));
    if (urgent[n]) {
      hurried->nodes[hurried->count++] = n;
      device->ahead--;
      /* Copies of one value follow each other: what was put off comes after the last of them. */
      const mpg_node *after = k + 1 < order->count ? &graph->nodes[order->nodes[k + 1]] : node;
      bool more = after != node && mpg_node_crosses(graph, after) &&
                  mpg_device_id_equal(mpg_node_runs_on(graph, after), device->device);
      if (mpg_node_crosses(graph, node) && !more) release(device, next, hurried);
    } else if (device->ahead) {
      next[n] = UINT32_MAX;
      if (device->first == UINT32_MAX)
        device->first = n;
      else
        next[device->last] = n;
      device->last = n;
      *changed = true;
    } else {
      release(device, next, hurried);
      hurried->nodes[hurried->count++] = n;
    }
  }
  for (uint32_t i = 0; i < num_devices; i++) release(&devices[i], next, hurried);
fail:
  mpg_free(urgent);
  mpg_free(next);
  if (status != MPG_OK || !*changed) mpg_order_free(hurried);
  return status;
}

void mpg_order_free(mpg_order *order) {
  mpg_free(order->nodes);
  mpg_free(order->segment_of);
  mpg_free(order->segments);
  mpg_fusion_free(order->fusion);
  *order = (mpg_order){0};
}
