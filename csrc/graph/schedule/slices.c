/* Values that are contiguous parts of another value use its memory, so that their split or
 * concatenation copies nothing.
 *
 * A slice extends the lifetime of the whole, which may need more memory than a copy. So a value
 * becomes a slice only if it is alive while its device executes few nodes, such as the parts of the
 * gradient of a stored parameter, which are sent as soon as they are computed. Gathered parts are
 * always received as slices of the whole. */
#include "graph/schedule/fuse.h"
#include "graph/schedule/planner.h"
#include "op/array/region.h"

/* True if a node's output is a contiguous part of its input, which begins *offset bytes after the
 * input's begin. */
static bool find_part(const mpg_graph *graph, const mpg_node *node, uint32_t output,
                      size_t *offset) {
  if (!node->op || node->num_inputs != 1) return false;
  const mpg_desc *whole = &mpg_graph_at(graph, mpg_node_inputs(graph, node)[0])->desc;
  mpg_region region;
  if (node->op->id == MPG_OP_slice_axis) {
    const mpg_slice_axis_params *p = node->params;
    if (mpg_region_axis("", &whole->shape, p->axis, p->begin, &p->end, &region) != MPG_OK)
      return false;
  } else if (node->op->id == MPG_OP__split_v2) {
    const mpg_split_v2_params *p = node->params;
    const mpg_shape *part = &graph->values[node->values + output].desc.shape;
    if (p->squeeze_axis) return false;
    int axis = (int)(p->axis < 0 ? p->axis + whole->shape.ndim : p->axis);
    region = (mpg_region){.shape = *part};
    int64_t end;
    if (mpg_split_part(p, whole->shape.dims[axis], (int)output, &region.start[axis], &end))
      return false;
    for (int i = 0; i < part->ndim; i++) region.step[i] = 1;
  } else {
    return false;
  }
  int64_t at = 0, stride = 1;
  bool partial = false;
  for (int i = whole->shape.ndim; i-- > 0;) {
    if (region.step[i] != 1 || (partial && region.shape.dims[i] != 1)) return false;
    partial |= region.shape.dims[i] != whole->shape.dims[i];
    at += region.start[i] * stride;
    stride *= whole->shape.dims[i];
  }
  *offset = (size_t)at * mpg_dtype_size(whole->dtype);
  return true;
}

/* True if a node's output consists of its inputs in order. */
static bool joins(const mpg_graph *graph, const mpg_node *node) {
  if (!node->op || node->op->id != MPG_OP_Concat) return false;
  const mpg_shape *shape = &graph->values[node->values].desc.shape;
  int64_t axis = ((const mpg_concat_params *)node->params)->dim;
  if (axis < 0) axis += shape->ndim;
  return mpg_shape_product(shape, 0, (int)axis) == 1;
}

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
    size_t offset;
    for (uint32_t i = 0; i < node->num_outputs && find_part(graph, node, i, &offset); i++) {
      uint32_t input = mpg_value_index(graph, mpg_node_inputs(graph, node)[0]),
               whole = mpg_plan_root(p->plan, input), part = node->values + i;
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
    if (!joins(graph, node) || !is_alone(p, k, node->values)) continue;
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
