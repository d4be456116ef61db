/* Values that are contiguous parts of another value use its memory, so that their split or
 * concatenation copies nothing.
 *
 * A slice extends the lifetime of the whole, which may need more memory than a copy. So a value
 * becomes a slice only if it is alive while its device executes few nodes. The parts of the
 * gradient of a stored parameter are an example: they are sent as soon as they are computed.
 * Gathered parts are always received as slices of the whole. */
#include "graph/schedule/fuse.h"
#include "graph/schedule/planner.h"
#include "op/array/parts.h"

/* True if a device executes at most a few nodes at positions [begin, end]. */
static bool is_short(const mpg_planner *p, mpg_device_id device, mpg_lifetime life) {
  enum { MOST = 8 };
  const mpg_order *order = p->request->order;
  int count = 0;
  if (life.end >= order->count) return false; /* alive after the phase */
  for (uint32_t k = life.begin; k <= life.end && count <= MOST; k++)
    count += mpg_device_id_equal(p->graph->nodes[order->nodes[k]].device, device);
  return count <= MOST;
}

/* True if a kernel of its own computes the value, at position k, in planned memory that no other
 * node writes. */
static bool is_alone(mpg_planner *p, size_t k, uint32_t value) {
  return p->planned[value] && !p->written[value] && mpg_plan_root(p->plan, value) == value &&
         !mpg_order_group(p->request->order, k);
}

static void make_slice(mpg_planner *p, uint32_t part, uint32_t whole, size_t offset) {
  p->slices[part] = (struct mpg_slice){whole, offset};
  p->planned[part] = false;
  p->sliced[whole] = true;
}

void mpg_plan_share_splits(mpg_planner *p) {
  const mpg_graph *graph = p->graph;
  const mpg_order *order = p->request->order;
  for (size_t k = 0; k < order->count && !order->segments; k++) {
    const mpg_node *node = &graph->nodes[order->nodes[k]];
    for (uint32_t i = 0; i < node->num_outputs && node->num_inputs == 1; i++) {
      mpg_value from = mpg_node_inputs(graph, node)[0];
      size_t offset;
      if (!mpg_find_part(node->op, node->params, &mpg_graph_at(graph, from)->desc, i, &offset))
        break;
      uint32_t input = mpg_value_index(graph, from), whole = mpg_plan_root(p->plan, input),
               part = node->values + i;
      mpg_lifetime *life = &p->lives[whole];
      if (!p->planned[whole] || p->written[whole] || p->written[input] || !is_alone(p, k, part) ||
          offset % MPG_PLAN_ALIGNMENT || !is_short(p, node->device, p->lives[part]))
        continue;
      make_slice(p, part, whole, offset);
      if (life->end < p->lives[part].end) life->end = p->lives[part].end;
    }
  }
}

void mpg_plan_share_joins(mpg_planner *p) {
  const mpg_graph *graph = p->graph;
  const mpg_order *order = p->request->order;
  for (size_t k = 0; k < order->count && !order->segments; k++) {
    const mpg_node *node = &graph->nodes[order->nodes[k]];
    if (!mpg_joins_in_order(node->op, node->params, &graph->values[node->values].desc.shape) ||
        !is_alone(p, k, node->values))
      continue;
    size_t offset = 0;
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_value input = mpg_node_inputs(graph, node)[i];
      uint32_t part = mpg_plan_root(p->plan, mpg_value_index(graph, input));
      size_t bytes = mpg_desc_bytes(&mpg_graph_at(graph, input)->desc);
      mpg_lifetime *life = &p->lives[node->values];
      if (offset % MPG_PLAN_ALIGNMENT == 0 && p->planned[part] && p->lives[part].end == k &&
          mpg_desc_bytes(&graph->values[part].desc) == bytes &&
          (mpg_node_is_paced(graph, &graph->nodes[input.node]) ||
           is_short(p, node->device, p->lives[part]))) {
        make_slice(p, part, node->values, offset);
        if (life->begin > p->lives[part].begin) life->begin = p->lives[part].begin;
      }
      offset += bytes;
    }
  }
}
