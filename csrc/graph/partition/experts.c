/* Experts that are divided over devices: mixtures of experts without sums of hidden values.
 *
 * A mixture copies tokens into rows that are sorted by expert (contrib.dispatch), multiplies the
 * rows of each expert (contrib.grouped_dot), and adds up the rows of each token (contrib.combine).
 * If the products are divided by expert, each device computes all nodes between dispatch and
 * combine for the rows of its experts, from a copy of all tokens of its group: tokens that are
 * divided along other axes of the mesh form groups. Rows of other experts have any
 * values until the last product, which gives 0 for them.
 *
 * Each device then sorts its rows by token, and the devices add them up: a row is nonzero on one
 * device at most, so the sum is exact. If tokens are divided along the same axis of the mesh, a
 * device receives the rows of its own tokens only (reduce-scatter), and combines them in the order
 * of one device. The rows of an expert keep the order of tokens, so that the gradient of its
 * weights has the bits of one device.
 *
 * Source: the all-gather dispatcher of Megatron Core (Korthikanti et al., "Scalable Training of
 * Mixture-of-Experts Models with Megatron Core"). */
#include <string.h>

#include "graph/partition/expand.h"

enum { ROWS, ORDER, WEIGHTS }; /* inputs of combine */
enum { DATA, WEIGHT, COUNTS }; /* inputs of grouped_dot */

static const mpg_node *node_at(const mpg_partitioning *p, uint32_t n) {
  return &p->graph->nodes[n];
}
static mpg_value input_of(const mpg_partitioning *p, uint32_t n, int i) {
  return mpg_node_inputs(p->graph, node_at(p, n))[i];
}
static bool is_op(const mpg_node *node, mpg_op_id op) { return node->op == mpg_op_get(op); }

/* --- Detection -------------------------------------------------------------------------------- */

/* True if each row of a node's output depends on the same rows of its inputs only. */
static bool keeps_rows(const mpg_partitioning *p, uint32_t n) {
  const mpg_node *node = node_at(p, n);
  const mpg_sharding *rule = &p->nodes[n].rule;
  if (node->num_outputs != 1) return false;
  for (int f = 0; f < rule->num_factors; f++) {
    const mpg_factor *factor = &rule->factors[f];
    bool all = factor->kind == MPG_FACTOR_PASS && !factor->counts;
    for (int i = 0; all && i <= rule->num_inputs; i++) {
      const mpg_digit *digit = &factor->digits[i];
      all = digit->axis == 0 && digit->outer == 1 && digit->inner == 1;
    }
    if (all) return true;
  }
  return false;
}

/* Adds the nodes that compute a value from rows to the mixture of `combine`. Clears *fits if a
 * node does not work row by row, or if several nodes sort rows. */
static mpg_status gather_nodes(mpg_partitioning *p, uint32_t combine, mpg_value value, bool *fits) {
  if (!mpg_has_value(value)) *fits = false;
  if (!*fits || p->nodes[value.node].mixture == combine + 1) return MPG_OK;
  const mpg_node *node = node_at(p, value.node);
  mpg_part_node *part = &p->nodes[value.node];
  *fits = node->op && node->num_inputs && !part->mixture && !mpg_node_mutates(node) &&
          !mpg_node_annotates(node) && !mpg_node_flag(node, MPG_OP_COPY) &&
          p->mesh_of[node->values] == p->mesh_of[node_at(p, combine)->values];
  if (!*fits) return MPG_OK;
  part->mixture = combine + 1;
  MPG_TRY(mpg_part_find_rule(p, value.node));
  if (is_op(node, MPG_OP__contrib_dispatch)) {
    uint32_t *first = &p->nodes[combine].dispatch;
    *fits = node->num_inputs == 2 && (!*first || *first == value.node + 1) &&
            mpg_value_equal(input_of(p, value.node, ORDER), input_of(p, combine, ORDER));
    *first = value.node + 1;
    return MPG_OK;
  }
  if (is_op(node, MPG_OP__contrib_grouped_dot))
    return gather_nodes(p, combine, input_of(p, value.node, DATA), fits);
  *fits = keeps_rows(p, value.node);
  for (uint32_t i = 0; i < node->num_inputs; i++)
    MPG_TRY(gather_nodes(p, combine, input_of(p, value.node, (int)i), fits));
  return MPG_OK;
}

/* True if only the mixture uses the values that its nodes compute. */
static bool is_closed(const mpg_partitioning *p, uint32_t combine) {
  const mpg_graph *graph = p->graph;
  for (size_t i = 0; i < graph->num_outputs; i++)
    if (p->nodes[graph->outputs[i].node].mixture == combine + 1) return false;
  for (uint32_t n = 0; n < graph->num_nodes; n++) {
    bool outside = p->live[n] && n != combine && p->nodes[n].mixture != combine + 1;
    for (uint32_t i = 0; outside && i < graph->nodes[n].num_inputs; i++) {
      mpg_value input = input_of(p, n, (int)i);
      if (mpg_has_value(input) && p->nodes[input.node].mixture == combine + 1) return false;
    }
  }
  return true;
}

/* Takes the nodes of a mixture out of it. */
static void dissolve(mpg_partitioning *p, uint32_t combine) {
  for (uint32_t n = 0; n < p->graph->num_nodes; n++)
    if (p->nodes[n].mixture == combine + 1) p->nodes[n].mixture = 0;
  p->nodes[combine].dispatch = 0;
}

mpg_status mpg_experts_find(mpg_partitioning *p) {
  if (p->request->micro_batches) return MPG_OK;
  for (uint32_t n = 0; n < p->graph->num_nodes; n++) {
    const mpg_node *node = node_at(p, n);
    if (!p->live[n] || !mpg_part_mesh(p, node) || !is_op(node, MPG_OP__contrib_combine) ||
        node->num_inputs != 3 ||
        !is_op(node_at(p, input_of(p, n, ROWS).node), MPG_OP__contrib_grouped_dot))
      continue;
    bool fits = true;
    MPG_TRY(gather_nodes(p, n, input_of(p, n, ROWS), &fits));
    if (!fits || !p->nodes[n].dispatch || !is_closed(p, n)) dissolve(p, n);
  }
  return MPG_OK;
}

/* Returns the axis of the mesh that divides the groups of a product, or -1. */
static int axis_of_groups(const mpg_partitioning *p, uint32_t n) {
  const mpg_part_node *part = &p->nodes[n];
  for (int m = 0; m < MPG_MESH_AXES && part->divided; m++) {
    int f = part->cuts[m].factor;
    const mpg_factor *factor = f < 0 ? NULL : &part->rule.factors[f];
    if (factor && factor->digits[WEIGHT].axis == 0 && factor->digits[DATA].axis < 0) return m;
  }
  return -1;
}

int mpg_experts_axis(const mpg_partitioning *p, uint32_t combine) {
  if (!p->nodes[combine].dispatch) return -1;
  const uint32_t last = input_of(p, combine, ROWS).node;
  int axis = axis_of_groups(p, last);
  const mpg_mesh *mesh = mpg_part_mesh(p, node_at(p, combine));
  for (uint32_t n = 0; axis >= 0 && n < p->graph->num_nodes; n++) {
    const mpg_part_node *part = &p->nodes[n];
    if (part->mixture != combine + 1) continue;
    bool multiplies = is_op(node_at(p, n), MPG_OP__contrib_grouped_dot);
    for (int m = 0; m < MPG_MESH_AXES && part->divided; m++)
      if (part->cuts[m].factor >= 0 && (!multiplies || m != axis)) return -1;
    if (!multiplies) continue;
    mpg_cut own = mpg_part_cut(part, axis, WEIGHT);
    mpg_cut other = mpg_part_cut(&p->nodes[last], axis, WEIGHT);
    if (axis_of_groups(p, n) != axis || !mpg_cut_equal(mesh, axis, &own, &other) ||
        own.digit.outer != 1 || !mpg_value_equal(input_of(p, n, COUNTS), input_of(p, last, COUNTS)))
      return -1;
  }
  return axis;
}

/* True if two arrays have the same axes, except for the last one. */
static bool have_same_tokens(const mpg_graph *graph, mpg_value a, mpg_value b) {
  const mpg_shape *first = &mpg_graph_at(graph, a)->desc.shape,
                  *second = &mpg_graph_at(graph, b)->desc.shape;
  return first->ndim == second->ndim &&
         !memcmp(first->dims, second->dims, sizeof *first->dims * (size_t)(first->ndim - 1));
}

mpg_value mpg_experts_tokens(const mpg_partitioning *p, uint32_t combine) {
  mpg_value tokens = input_of(p, p->nodes[combine].dispatch - 1, DATA);
  return have_same_tokens(p->graph, tokens, input_of(p, combine, WEIGHTS)) ? tokens : MPG_NO_VALUE;
}

/* Returns the node `route` if it can be called on parts of the tokens, or -1. */
static int64_t find_route(const mpg_partitioning *p, uint32_t combine) {
  mpg_value order = input_of(p, combine, ORDER),
            counts = input_of(p, input_of(p, combine, ROWS).node, COUNTS);
  const mpg_node *node = node_at(p, order.node);
  if (!is_op(node, MPG_OP__contrib_route) || order.output != 0 || counts.node != order.node ||
      counts.output != 1 || ((const mpg_route_params *)node->params)->capacity > 0 ||
      !have_same_tokens(p->graph, input_of(p, order.node, 0), input_of(p, combine, WEIGHTS)))
    return -1;
  return order.node;
}

bool mpg_experts_group(const mpg_partitioning *p, uint32_t combine) {
  return mpg_has_value(mpg_experts_tokens(p, combine)) && find_route(p, combine) >= 0;
}

/* --- Expansion -------------------------------------------------------------------------------- */

/* Returns the cuts of the tokens along the other axes of the mesh than the axis of the experts.
 * Each group of devices along this axis has the tokens of its part. */
static mpg_layout groups_of(const mpg_partitioning *p, uint32_t combine, int axis) {
  mpg_layout groups = {{{0}}};
  if (!mpg_experts_group(p, combine)) return groups;
  mpg_value tokens = mpg_experts_tokens(p, combine);
  groups = p->values[mpg_value_index(p->graph, tokens)].layout;
  int units = mpg_graph_at(p->graph, tokens)->desc.shape.ndim - 1;
  for (int m = 0; m < MPG_MESH_AXES; m++)
    if (m == axis || groups.cuts[m].digit.axis == units) groups.cuts[m].on = false;
  return groups;
}

/* Sets the order and the counts of the tokens of the group of a place. They are computed on the
 * first device of the group. */
static mpg_status fetch_route(mpg_expansion *e, uint32_t combine, int axis,
                              const mpg_coordinates *place, mpg_value *order, mpg_value *counts) {
  mpg_partitioning *p = e->p;
  const mpg_mesh *mesh = mpg_part_mesh(p, node_at(p, combine));
  const mpg_layout groups = groups_of(p, combine, axis), whole = {{{0}}};
  mpg_value all[] = {input_of(p, combine, ORDER),
                     input_of(p, input_of(p, combine, ROWS).node, COUNTS)};
  if (!mpg_layout_divided(&groups)) {
    MPG_TRY(mpg_expand_fetch(e, mpg_value_index(p->graph, all[0]), &whole, place, order));
    return mpg_expand_fetch(e, mpg_value_index(p->graph, all[1]), &whole, place, counts);
  }
  mpg_value *pieces = p->nodes[combine].routes;
  if (!pieces) {
    size_t bytes = 2 * (size_t)mesh->num_devices * sizeof *pieces;
    if (!(pieces = mpg_arena_alloc(&p->arena, bytes))) return mpg_out_of_host_memory(bytes);
    for (int i = 0; i < 2 * mesh->num_devices; i++) pieces[i] = MPG_NO_VALUE;
    p->nodes[combine].routes = pieces;
  }
  mpg_coordinates first = *place;
  first.at[axis] = 0;
  mpg_value *from = &pieces[2 * mpg_mesh_index(mesh, &first)],
            *own = &pieces[2 * mpg_mesh_index(mesh, place)];
  if (!mpg_has_value(from[0])) {
    const mpg_node *route = node_at(p, all[0].node);
    mpg_value inputs[2], outputs[4];
    for (uint32_t i = 0; i < route->num_inputs; i++)
      MPG_TRY(mpg_expand_fetch(e, mpg_value_index(p->graph, input_of(p, all[0].node, (int)i)),
                               i ? &whole : &groups, &first, &inputs[i]));
    MPG_TRY(mpg_graph_emit(e->target, route->op, route->params, inputs, (int)route->num_inputs,
                           inputs[0], outputs));
    memcpy(from, outputs, 2 * sizeof *from);
  }
  for (int i = 0; i < 2 && !mpg_has_value(own[i]); i++) {
    size_t before = e->bytes;
    MPG_TRY(mpg_expand_move(e, from[i], mpg_mesh_device(mesh, place), false, &own[i]));
    mpg_expand_report(e, "copy", mpg_value_index(p->graph, all[i]), e->bytes - before);
  }
  *order = own[0];
  *counts = own[1];
  return MPG_OK;
}

/* Emits a node of a mixture for the rows of a place. */
static mpg_status emit_rows(mpg_expansion *e, uint32_t n, int axis, const mpg_layout *groups,
                            const mpg_coordinates *place, mpg_value *output) {
  const mpg_partitioning *p = e->p;
  const mpg_node *node = node_at(p, n);
  const mpg_part_node *part = &p->nodes[n];
  const mpg_mesh *mesh = mpg_part_mesh(p, node);
  const int at = mpg_mesh_index(mesh, place);
  size_t count = node->num_inputs + 1;
  mpg_value *inputs = mpg_arena_alloc(&e->p->arena, count * sizeof *inputs), order, counts;
  mpg_desc *descs = mpg_arena_alloc(&e->p->arena, count * sizeof *descs);
  void *params = mpg_arena_alloc(&e->p->arena, node->op->params->size + 1);
  if (!inputs || !descs || !params) return mpg_out_of_host_memory(count * sizeof *descs);
  MPG_TRY(fetch_route(e, part->mixture - 1, axis, place, &order, &counts));
  bool dispatches = is_op(node, MPG_OP__contrib_dispatch),
       multiplies = is_op(node, MPG_OP__contrib_grouped_dot);
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    uint32_t value = mpg_value_index(p->graph, input_of(p, n, (int)i));
    mpg_layout layout = {{{0}}};
    if (multiplies) layout.cuts[axis] = mpg_part_cut(part, axis, (int)i);
    if (dispatches ? i == DATA : multiplies && i == WEIGHT)
      MPG_TRY(mpg_expand_fetch(e, value, dispatches ? groups : &layout, place, &inputs[i]));
    else
      inputs[i] = dispatches                  ? order
                  : multiplies && i == COUNTS ? counts
                                              : p->values[value].pieces[at];
  }
  if (multiplies) {
    const mpg_cut cut = mpg_part_cut(part, axis, WEIGHT);
    mpg_grouped_dot_params *p_dot = params;
    *p_dot = *(const mpg_grouped_dot_params *)node->params;
    p_dot->first += mpg_mesh_begin(mesh, axis, cut.size, place->at[axis]) * cut.digit.inner;
    p_dot->groups = mpg_mesh_count(mesh, axis, cut.size, place->at[axis]) * cut.digit.inner;
  } else if (!dispatches) {
    for (uint32_t i = 0; i < node->num_inputs; i++)
      descs[i] = mpg_graph_at(e->target, inputs[i])->desc;
    descs[node->num_inputs] = p->graph->values[node->values].desc;
    descs[node->num_inputs].shape.dims[0] = descs[0].shape.dims[0];
    MPG_TRY(mpg_sharding_localize(&part->rule, descs, descs + node->num_inputs, NULL, params));
  }
  return mpg_graph_emit(e->target, node->op,
                        dispatches     ? node->params
                        : node->params ? params
                                       : NULL,
                        inputs, (int)node->num_inputs, inputs[0], output);
}

/* Moves to the next place of the groups, or of all devices of the groups. */
static bool next_place(const mpg_mesh *mesh, const mpg_layout *groups, int axis,
                       mpg_coordinates *place) {
  bool along[MPG_MESH_AXES];
  for (int m = 0; m < MPG_MESH_AXES; m++) along[m] = m == axis || groups->cuts[m].on;
  return mpg_coordinates_next(mesh, along, place);
}

mpg_status mpg_experts_divide(mpg_expansion *e, uint32_t n, int axis) {
  const mpg_partitioning *p = e->p;
  const mpg_mesh *mesh = mpg_part_mesh(p, node_at(p, n));
  mpg_part_value *own = &e->p->values[node_at(p, n)->values];
  const mpg_layout groups = groups_of(p, p->nodes[n].mixture - 1, axis);
  mpg_coordinates place = {{0}};
  own->layout = (mpg_layout){{{0}}};
  do {
    MPG_TRY(emit_rows(e, n, axis, &groups, &place, &own->pieces[mpg_mesh_index(mesh, &place)]));
  } while (next_place(mesh, &groups, axis, &place));
  return MPG_OK;
}

static mpg_status reshape(mpg_expansion *e, const mpg_shape *shape, mpg_value *value) {
  if (mpg_shape_equal(&mpg_graph_at(e->target, *value)->desc.shape, shape)) return MPG_OK;
  mpg_exact_shape_params params;
  memset(&params, 0, sizeof params);
  params.shape = mpg_shape_tuple(shape);
  return mpg_expand_emit(e, MPG_OP__reshape_exact, &params, value, 1, value);
}

/* Sorts the rows of a device by token: (rows, units) becomes (tokens..., k * units). */
static mpg_status sort_by_token(mpg_expansion *e, const mpg_shape *tokens, int64_t k,
                                mpg_value order, mpg_value *rows) {
  int64_t units = mpg_graph_at(e->target, *rows)->desc.shape.dims[1];
  mpg_combine_params params;
  memset(&params, 0, sizeof params);
  params.k = 1;
  mpg_value inputs[] = {*rows, order};
  MPG_TRY(mpg_expand_emit(e, MPG_OP__contrib_combine, &params, inputs, 2, rows));
  mpg_shape shape = *tokens;
  shape.dims[shape.ndim - 1] = k * units;
  return reshape(e, &shape, rows);
}

/* Adds up the rows of each token at a place. `rows` is (tokens..., k * units). */
static mpg_status add_rows(mpg_expansion *e, int64_t k, mpg_value weights, mpg_value *rows) {
  const mpg_graph_value from = *mpg_graph_at(e->target, *rows);
  const mpg_shape *shape = &from.desc.shape;
  int64_t tokens = mpg_shape_product(shape, 0, shape->ndim - 1);
  mpg_shape flat = {.ndim = 2, .dims = {tokens * k, shape->dims[shape->ndim - 1] / k}};
  MPG_TRY(reshape(e, &flat, rows));
  mpg_arange_params arange;
  mpg_params_defaults(mpg_op_get(MPG_OP__arange)->params, &arange);
  arange.start = 0;
  arange.stop.value = (double)(tokens * k);
  arange.stop.present = 1;
  arange.ctx = from.device;
  arange.dtype = MPG_INT32;
  mpg_value order;
  MPG_TRY(mpg_graph_emit(e->target, mpg_op_get(MPG_OP__arange), &arange, NULL, 0, *rows, &order));
  mpg_combine_params params;
  memset(&params, 0, sizeof params);
  params.use_weights = true;
  mpg_value inputs[] = {*rows, order, weights};
  return mpg_expand_emit(e, MPG_OP__contrib_combine, &params, inputs, 3, rows);
}

mpg_status mpg_experts_sort(mpg_expansion *e, uint32_t n, int axis, mpg_layout *layout,
                            mpg_value *pieces) {
  const mpg_partitioning *p = e->p;
  const mpg_mesh *mesh = mpg_part_mesh(p, node_at(p, n));
  const mpg_value weights = input_of(p, n, WEIGHTS), rows = input_of(p, n, ROWS);
  const mpg_shape whole = mpg_graph_at(p->graph, weights)->desc.shape;
  mpg_coordinates place = {{0}};
  *layout = groups_of(p, n, axis);
  do {
    int at = mpg_mesh_index(mesh, &place);
    mpg_shape tokens = mpg_layout_shape(mesh, layout, &place, &whole);
    mpg_value order, counts;
    MPG_TRY(fetch_route(e, n, axis, &place, &order, &counts));
    pieces[at] = p->values[mpg_value_index(p->graph, rows)].pieces[at];
    MPG_TRY(sort_by_token(e, &tokens, whole.dims[whole.ndim - 1], order, &pieces[at]));
  } while (next_place(mesh, layout, axis, &place));
  return MPG_OK;
}

mpg_status mpg_experts_add(mpg_expansion *e, uint32_t n, int axis, const mpg_layout *layout,
                           mpg_value *pieces) {
  const mpg_partitioning *p = e->p;
  const mpg_mesh *mesh = mpg_part_mesh(p, node_at(p, n));
  const mpg_value weights = input_of(p, n, WEIGHTS);
  const mpg_shape tokens = mpg_graph_at(p->graph, weights)->desc.shape;
  mpg_coordinates place = {{0}};
  do {
    mpg_value own;
    MPG_TRY(mpg_expand_fetch(e, mpg_value_index(p->graph, weights), layout, &place, &own));
    MPG_TRY(add_rows(e, tokens.dims[tokens.ndim - 1], own, &pieces[mpg_mesh_index(mesh, &place)]));
  } while (next_place(mesh, layout, layout->cuts[axis].on ? axis : -1, &place));
  return MPG_OK;
}
