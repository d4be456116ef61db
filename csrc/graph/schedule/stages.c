/* Stages: the work of one device between two changes of device, as segments that are queued
 * separately. */
#include <stdlib.h>
#include <string.h>

#include "base/workspace.h"
#include "graph/ir/analysis.h"

typedef struct staging {
  const mpg_graph *graph;
  const mpg_order *order;
  mpg_analysis facts; /* of the order; owned */
  uint32_t *depth;    /* per position: depth of the node's stage */
  uint32_t *part;     /* per position: number of the node's part of its stage */
  bool *late;         /* per position: true if the node is deferred */
  /* Per value: 1 + the depth of its latest reader, or 0. Later readers get at least the same
   * depth, because they may share a state. */
  uint32_t *floor;
  uint32_t max_depth, max_part;
  mpg_workspace space;
} staging;

/* True if the node's results depend on the contents of the input. */
static bool reads(const mpg_node *node, mpg_value input) {
  return mpg_has_value(input) && !mpg_node_flag(node, MPG_OP_SHAPE_ONLY);
}

static void find_depths(staging *s) {
  const mpg_graph *graph = s->graph;
  bool states = false;
  for (size_t k = 0; k < s->order->count && !states; k++)
    states = mpg_node_mutates(&graph->nodes[s->order->nodes[k]]);
  for (size_t k = 0; k < s->order->count; k++) {
    const mpg_node *node = &graph->nodes[s->order->nodes[k]];
    const mpg_value *inputs = mpg_node_inputs(graph, node);
    uint32_t depth = 0;
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      if (!reads(node, inputs[i])) continue;
      uint32_t at = s->facts.position[inputs[i].node],
               floor = states ? s->floor[mpg_value_index(graph, inputs[i])] : 0;
      if (floor > depth + 1) depth = floor - 1;
      if (at == MPG_NO_POSITION) continue;
      uint32_t after = s->depth[at] + mpg_node_crosses(graph, &graph->nodes[inputs[i].node]);
      if (after > depth) depth = after;
    }
    s->depth[k] = depth;
    if (depth > s->max_depth) s->max_depth = depth;
    for (uint32_t i = 0; i < node->num_inputs && states; i++)
      if (reads(node, inputs[i])) s->floor[mpg_value_index(graph, inputs[i])] = depth + 1;
  }
}

static void find_late(staging *s, const mpg_value *urgent, size_t num_urgent) {
  const mpg_graph *graph = s->graph;
  for (size_t k = 0; k < s->order->count; k++) s->late[k] = true;
  for (size_t i = 0; i < num_urgent; i++)
    if (mpg_has_value(urgent[i]) && s->facts.position[urgent[i].node] != MPG_NO_POSITION)
      s->late[s->facts.position[urgent[i].node]] = false;
  for (size_t k = s->order->count; k-- > 0;) {
    const mpg_node *node = &graph->nodes[s->order->nodes[k]];
    if (s->late[k] && !mpg_node_crosses(graph, node) && !mpg_node_mutates(node)) continue;
    s->late[k] = false;
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_value input = mpg_node_inputs(graph, node)[i];
      if (mpg_has_value(input) && s->facts.position[input.node] != MPG_NO_POSITION)
        s->late[s->facts.position[input.node]] = false;
    }
  }
}

static uint32_t device_number(mpg_device_id *devices, uint32_t *count, mpg_device_id device) {
  for (uint32_t i = 0; i < *count; i++)
    if (mpg_device_id_equal(devices[i], device)) return i;
  devices[*count] = device;
  return (*count)++;
}

/* Merges each stage that sends no data to another device with the next stage on its device. */
static void merge_depths(staging *s, const uint32_t *device_of, uint32_t num_devices,
                         uint32_t *next) {
  size_t row = (size_t)s->max_depth + 1;
  bool *present = (bool *)(next + num_devices * row), *sends = present + num_devices * row;
  for (size_t k = 0; k < s->order->count; k++) {
    size_t at = device_of[k] * row + s->depth[k];
    present[at] = true;
    sends[at] |= mpg_node_crosses(s->graph, &s->graph->nodes[s->order->nodes[k]]);
  }
  for (uint32_t d = 0; d < num_devices; d++) {
    uint32_t following = UINT32_MAX;
    for (size_t depth = row; depth-- > 0;) {
      size_t at = d * row + depth;
      if (!present[at]) continue;
      if (sends[at] || following == UINT32_MAX) following = (uint32_t)depth;
      next[at] = following;
    }
  }
  for (size_t k = 0; k < s->order->count; k++) s->depth[k] = next[device_of[k] * row + s->depth[k]];
}

/* Divides each stage into parts, because a host step runs after the nodes before it have been
 * queued. Host steps are in odd parts, and other nodes in even ones. A node is in the first part
 * that keeps its order after its inputs and after the earlier users of a state. Host steps keep
 * their order. `latest` is zeroed, per device and depth: the part of the latest host step. */
static void find_parts(staging *s, const uint32_t *device_of, uint32_t *latest) {
  const mpg_graph *graph = s->graph;
  size_t row = (size_t)s->max_depth + 1;
  memset(s->floor, 0, graph->num_values * sizeof *s->floor); /* 1 + position of the latest reader */
  for (size_t k = 0; k < s->order->count; k++) {
    const mpg_node *node = &graph->nodes[s->order->nodes[k]];
    bool host = mpg_node_runs_on_host(node);
    uint32_t *own = &latest[device_of[k] * row + s->depth[k]], part = host ? *own : 0;
    if (s->late[k]) continue; /* deferred nodes follow all parts */
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_value input = mpg_node_inputs(graph, node)[i];
      if (!reads(node, input)) continue;
      uint32_t *floor = &s->floor[mpg_value_index(graph, input)],
               before[] = {s->facts.position[input.node], *floor ? *floor - 1 : MPG_NO_POSITION};
      for (int b = 0; b < 2; b++)
        if (before[b] != MPG_NO_POSITION && device_of[before[b]] == device_of[k] &&
            s->depth[before[b]] == s->depth[k] && s->part[before[b]] > part)
          part = s->part[before[b]];
      *floor = (uint32_t)k + 1;
    }
    s->part[k] = part += part % 2 != host;
    if (host) *own = part;
    if (part > s->max_part) s->max_part = part;
  }
}

/* Sorts the positions by segment: first by deferral, then depth, part and device. The order within
 * a segment is kept. */
static mpg_status cut(staging *s, const uint32_t *device_of, const mpg_device_id *devices,
                      uint32_t num_devices, mpg_order *result) {
  size_t row = (size_t)s->max_depth + 1, parts = (size_t)s->max_part + 1;
  size_t cells = 2 * row * parts * num_devices, count = s->order->count;
  size_t *begin = mpg_workspace_take(&s->space, cells + 1, sizeof *begin);
  uint32_t *number = mpg_workspace_take(&s->space, cells, sizeof *number);
  MPG_TRY(mpg_workspace_check(&s->space));
#define CELL(k) \
  (((s->late[k] * row + s->depth[k]) * parts + s->part[k]) * num_devices + device_of[k])
  for (size_t k = 0; k < count; k++) begin[CELL(k) + 1]++;
  for (size_t c = 0; c < cells; c++) {
    number[c] = begin[c + 1] ? result->num_segments++ : UINT32_MAX;
    begin[c + 1] += begin[c];
  }
  result->segments = mpg_calloc(result->num_segments + 1, sizeof *result->segments);
  if (!result->segments)
    return mpg_out_of_host_memory(result->num_segments * sizeof *result->segments);
  for (size_t k = 0; k < count; k++) {
    uint32_t segment = number[CELL(k)];
    size_t at = begin[CELL(k)]++;
    result->segments[segment] =
        (mpg_segment){devices[device_of[k]], s->depth[k], s->part[k], s->late[k]};
    result->segment_of[at] = segment;
    result->nodes[at] = s->order->nodes[k];
  }
#undef CELL
  return MPG_OK;
}

mpg_status mpg_graph_stages(const mpg_graph *graph, mpg_order *order, const mpg_value *urgent,
                            size_t num_urgent, bool defer) {
  size_t count = order->count;
  staging s = {.graph = graph, .order = order};
  mpg_order result = {.count = count};
  mpg_device_id *devices = mpg_workspace_take(&s.space, count, sizeof *devices);
  uint32_t *next, *device_of = mpg_workspace_take(&s.space, count, sizeof *device_of);
  uint32_t num_devices = 0;
  mpg_status status = MPG_OK;
  s.depth = mpg_workspace_take(&s.space, count, sizeof *s.depth);
  s.part = mpg_workspace_take(&s.space, count, sizeof *s.part);
  s.late = mpg_workspace_take(&s.space, count, sizeof *s.late);
  s.floor = mpg_workspace_take(&s.space, graph->num_values, sizeof *s.floor);
  result.nodes = mpg_malloc((count + 1) * sizeof *result.nodes);
  result.segment_of = mpg_malloc((count + 1) * sizeof *result.segment_of);
  MPG_GOTO(mpg_workspace_check(&s.space));
  if (!result.nodes || !result.segment_of)
    MPG_GOTO(mpg_out_of_host_memory(count * sizeof *result.nodes));
  for (size_t k = 0; k < count; k++)
    if (mpg_node_spans(&graph->nodes[order->nodes[k]]))
      MPG_GOTO(mpg_fail(MPG_NOT_IMPLEMENTED,
                        "a pipeline cannot contain collectives of transport='nccl'; use "
                        "transport='local' or 'auto'"));
  MPG_GOTO(mpg_analyse(graph, order, &s.facts));
  find_depths(&s);
  if (defer) find_late(&s, urgent, num_urgent);
  for (size_t k = 0; k < count; k++)
    device_of[k] = device_number(devices, &num_devices,
                                 mpg_node_runs_on(graph, &graph->nodes[order->nodes[k]]));
  next = mpg_workspace_take(&s.space, ((size_t)s.max_depth + 1) * num_devices,
                            sizeof *next + 2 * sizeof(bool));
  MPG_GOTO(mpg_workspace_check(&s.space));
  merge_depths(&s, device_of, num_devices, next);
  memset(next, 0, ((size_t)s.max_depth + 1) * num_devices * sizeof *next);
  find_parts(&s, device_of, next);
  MPG_GOTO(cut(&s, device_of, devices, num_devices, &result));
  mpg_order_free(order);
  *order = result;
  result = (mpg_order){0};
fail:
  mpg_order_free(&result);
  mpg_analysis_free(&s.facts);
  mpg_workspace_free(&s.space);
  return status;
}
