/* Expansion: replaces every divided node by a node for each device.
 *
 * A value of the source becomes pieces, one for each place of its layout. A node that needs a value
 * in another layout, or on another device, fetches it (fetch.c). Partial sums are added on the
 * device that needs the sum, in the order of the devices; if the sum itself is divided, only its
 * parts are copied (reduce-scatter). */
#include <string.h>

#include "graph/partition/expand.h"

typedef mpg_expansion expansion;

/* --- Nodes ------------------------------------------------------------------------------------ */

static mpg_status new_pieces(expansion *e, uint32_t value) {
  const mpg_mesh *mesh = e->p->mesh_of[value];
  size_t count = mesh ? (size_t)mesh->num_devices : 1;
  mpg_value *pieces = mpg_arena_alloc(&e->p->arena, count * sizeof *pieces);
  if (!pieces) return mpg_out_of_host_memory(count * sizeof *pieces);
  for (size_t i = 0; i < count; i++) pieces[i] = MPG_NO_VALUE;
  e->p->values[value].pieces = pieces;
  return MPG_OK;
}

/* Returns the input with the indices if the node looks them up in a part, or -1. */
static int find_lookup(const mpg_part_node *part, const mpg_mesh *mesh,
                       const mpg_coordinates *place, mpg_lookup *found) {
  for (int m = 0; m < mesh->num_axes; m++) {
    const mpg_node_cut *cut = &part->cuts[m];
    if (cut->factor < 0 || part->rule.factors[cut->factor].lookup < 0) continue;
    const mpg_factor *factor = &part->rule.factors[cut->factor];
    for (int i = 0; i < part->rule.num_inputs; i++)
      if (factor->digits[i].axis >= 0) found->axis = factor->digits[i].axis;
    found->begin = mpg_mesh_begin(mesh, m, cut->size, place->at[m]) * cut->inner;
    found->count = mpg_mesh_count(mesh, m, cut->size, place->at[m]) * cut->inner;
    found->whole = factor->size;
    return factor->lookup;
  }
  return -1;
}

/* Emits a node on the parts at a place of `mesh`. */
static mpg_status emit_part(expansion *e, uint32_t n, const mpg_mesh *mesh,
                            const mpg_coordinates *place, mpg_value *outputs) {
  const mpg_graph *graph = e->p->graph;
  const mpg_node *node = &graph->nodes[n];
  const mpg_part_node *part = &e->p->nodes[n];
  uint32_t count = node->num_inputs + node->num_outputs;
  mpg_value *inputs = mpg_arena_alloc(&e->p->arena, node->num_inputs * sizeof *inputs + 1);
  mpg_desc *descs = mpg_arena_alloc(&e->p->arena, count * sizeof *descs + 1);
  mpg_shape *begins = mpg_arena_alloc(&e->p->arena, count * sizeof *begins + 1);
  void *params = mpg_arena_alloc(&e->p->arena, node->op->params->size + 1);
  if (!inputs || !descs || !begins || !params) return mpg_out_of_host_memory(count * sizeof *descs);
  e->regathers = false;
  for (int m = 0; m < mesh->num_axes; m++) {
    int f = part->cuts[m].factor;
    e->regathers |= f >= 0 && part->rule.factors[f].exchanged;
  }
  for (uint32_t i = 0; i < count; i++) {
    mpg_layout layout = {{{0}}};
    mpg_value operand = i < node->num_inputs ? mpg_node_inputs(graph, node)[i]
                                             : (mpg_value){n, i - node->num_inputs};
    bool zero = false;
    for (int m = 0; m < mesh->num_axes; m++) {
      layout.cuts[m] = mpg_part_cut(part, m, (int)i);
      int f = part->cuts[m].factor;
      zero |= f >= 0 && part->rule.factors[f].once == (int)i && place->at[m] > 0;
    }
    const mpg_desc whole = mpg_graph_at(graph, operand)->desc;
    descs[i] = whole;
    descs[i].shape = mpg_layout_shape(mesh, &layout, place, &whole.shape);
    begins[i] = mpg_layout_begin(mesh, &layout, place, whole.shape.ndim);
    if (i >= node->num_inputs) continue;
    MPG_TRY(mpg_expand_fetch(e, mpg_value_index(graph, operand), &layout, place, &inputs[i]));
    if (zero) MPG_TRY(mpg_expand_emit(e, MPG_OP_zeros_like, NULL, &inputs[i], 1, &inputs[i]));
  }
  e->regathers = false;
  MPG_TRY(mpg_sharding_localize(&part->rule, descs, descs + node->num_inputs, begins, params));
  if (mpg_node_flag(node, MPG_OP_COPY))
    ((mpg_copyto_params *)params)->ctx = mpg_mesh_device(mesh, place);
  mpg_lookup found;
  int lookup = find_lookup(part, mesh, place, &found);
  mpg_value like = node->num_inputs ? inputs[0] : MPG_NO_VALUE, inside;
  if (lookup >= 0) MPG_TRY(mpg_lookup_begin(e->target, &found, &inputs[lookup], &inside));
  uint32_t num_random = e->target->num_random;
  MPG_TRY(mpg_graph_emit(e->target, node->op, node->params ? params : NULL, inputs,
                         (int)node->num_inputs, like, outputs));
  if (lookup >= 0) MPG_TRY(mpg_lookup_end(e->target, &found, inside, &outputs[0]));
  mpg_expand_draw(e, n, mesh, place, outputs[0], num_random);
  return MPG_OK;
}

/* Adds up or compares partial results. Each of several equal maxima gets the gradient, so maxima
 * are not compared in pairs. */
static mpg_status emit_combination(expansion *e, mpg_factor_kind kind, const mpg_value *parts,
                                   int count, mpg_value *result) {
  if (kind == MPG_FACTOR_SUM) {
    mpg_num_args_params params = {.num_args = count};
    return mpg_expand_emit(e, MPG_OP_add_n, &params, parts, count, result);
  }
  mpg_stack_params stack = {.axis = 0, .num_args = count};
  mpg_reduce_params along;
  mpg_params_defaults(&mpg_reduce_table, &along);
  along.axis = (mpg_tuple){.count = 1};
  MPG_TRY(mpg_expand_emit(e, MPG_OP_stack, &stack, parts, count, result));
  return mpg_expand_emit(e, kind == MPG_FACTOR_MAX ? MPG_OP_max : MPG_OP_min, &along, result, 1,
                         result);
}

/* The partial results along an axis of the mesh, at the other coordinates of `place`. */
typedef struct partial_results {
  const mpg_mesh *mesh;
  int axis;
  mpg_factor_kind kind;
  const mpg_cut *target;    /* the cut of the result; may be off */
  const mpg_layout *layout; /* of the partial results */
  mpg_coordinates place;
  mpg_value *values; /* per coordinate along the axis */
  mpg_value *sums;   /* trees: the sums of neighbors on one device, at their first coordinate */
} partial_results;

/* Moves the wanted part of a partial result from place k to the device of place `to`. */
static mpg_status move_partial(expansion *e, const partial_results *r, mpg_value value, int k,
                               int to, mpg_value *result) {
  mpg_coordinates at = r->place, destination = r->place;
  at.at[r->axis] = k;
  destination.at[r->axis] = to;
  *result = value;
  if (r->target->on) {
    mpg_value *parts;
    mpg_digit digit = mpg_layout_digit(r->mesh, r->layout, &at, r->target);
    MPG_TRY(mpg_expand_split(e, r->mesh, r->axis, r->target, &digit, value, &parts));
    *result = parts[to];
  }
  return mpg_expand_move(e, *result, mpg_mesh_device(r->mesh, &destination), false, result);
}

/* Combines the partial results on the device of place `to`, in the order of the places. */
static mpg_status combine_in_order(expansion *e, const partial_results *r, int to,
                                   mpg_value *result) {
  int count = r->mesh->axes[r->axis].size;
  mpg_value *parts = mpg_arena_alloc(&e->p->arena, (size_t)count * sizeof *parts);
  if (!parts) return mpg_out_of_host_memory((size_t)count * sizeof *parts);
  for (int k = 0; k < count; k++) MPG_TRY(move_partial(e, r, r->values[k], k, to, &parts[k]));
  return emit_combination(e, r->kind, parts, count, result);
}

/* Adds up the partial results of the places [begin, end) by a tree. Neighbors on one device are
 * added before their sum is split, once for all parts. */
static mpg_status combine_by_tree(expansion *e, const partial_results *r, int begin, int end,
                                  int to, bool whole, mpg_value *result) {
  mpg_coordinates place = r->place;
  place.at[r->axis] = begin;
  mpg_box box = {place, place};
  for (int m = 0; m < r->mesh->num_axes; m++) box.end.at[m]++;
  box.end.at[r->axis] = end;
  if (!whole && mpg_box_on_one_device(r->mesh, &box)) {
    if (!mpg_has_value(r->sums[begin]))
      MPG_TRY(combine_by_tree(e, r, begin, end, to, true, &r->sums[begin]));
    return move_partial(e, r, r->sums[begin], begin, to, result);
  }
  if (end - begin == 1) {
    *result = r->values[begin];
    return MPG_OK;
  }
  int middle = mpg_tree_middle(begin, end);
  mpg_value halves[2];
  MPG_TRY(combine_by_tree(e, r, begin, middle, to, whole, &halves[0]));
  MPG_TRY(combine_by_tree(e, r, middle, end, to, whole, &halves[1]));
  return emit_combination(e, r->kind, halves, 2, result);
}

/* Adds up (or compares) the partial results along an axis of the mesh. `pieces` has the partial
 * result of each place, and receives the results. `layout` is the layout of the results so far, and
 * they are partial along the axes in `partial`. */
static mpg_status combine(expansion *e, const mpg_mesh *mesh, int axis, mpg_factor_kind kind,
                          const mpg_cut *target, const bool *partial, mpg_layout *layout,
                          mpg_value *pieces) {
  int count = mesh->axes[axis].size;
  bool others[MPG_MESH_AXES];
  for (int m = 0; m < MPG_MESH_AXES; m++)
    others[m] = m != axis && (layout->cuts[m].on || partial[m]);
  mpg_value *values = mpg_arena_alloc(&e->p->arena, 3 * (size_t)count * sizeof *values);
  if (!values) return mpg_out_of_host_memory(3 * (size_t)count * sizeof *values);
  mpg_value *results = values + count;
  partial_results r = {.mesh = mesh,
                       .axis = axis,
                       .kind = kind,
                       .target = target,
                       .layout = layout,
                       .values = values,
                       .sums = results + count};
  do {
    for (int k = 0; k < count; k++) {
      mpg_coordinates place = r.place;
      place.at[axis] = k;
      values[k] = pieces[mpg_mesh_index(mesh, &place)];
      r.sums[k] = MPG_NO_VALUE;
    }
    for (int to = 0; to < (target->on ? count : 1); to++)
      MPG_TRY(mesh->tree && kind == MPG_FACTOR_SUM
                  ? combine_by_tree(e, &r, 0, count, to, false, &results[to])
                  : combine_in_order(e, &r, to, &results[to]));
    for (int k = 0; k < count; k++) {
      mpg_coordinates place = r.place;
      place.at[axis] = k;
      pieces[mpg_mesh_index(mesh, &place)] = k == 0 || target->on ? results[k] : MPG_NO_VALUE;
    }
  } while (mpg_coordinates_next(mesh, others, &r.place));
  layout->cuts[axis] = *target;
  return MPG_OK;
}

/* Adds up the rows of each token, on the device of the token. */
static mpg_status combine_rows(expansion *e, uint32_t n, const mpg_mesh *mesh, int axis) {
  uint32_t value = e->p->graph->nodes[n].values;
  mpg_part_value *own = &e->p->values[value];
  const mpg_cut target = own->layout.cuts[axis];
  size_t before = e->bytes;
  MPG_TRY(mpg_experts_sort(e, n, axis, &own->layout, own->pieces));
  int units = e->p->graph->values[value].desc.shape.ndim - 1;
  bool scatters =
      target.on && target.digit.axis != units && mpg_layout_apart(&own->layout, &target);
  MPG_TRY(combine(e, mesh, axis, MPG_FACTOR_SUM, scatters ? &target : &(mpg_cut){0},
                  (bool[MPG_MESH_AXES]){false}, &own->layout, own->pieces));
  mpg_expand_report(e, scatters ? "reduce_scatter" : "reduce", value, e->bytes - before);
  return mpg_experts_add(e, n, axis, &own->layout, own->pieces);
}

static mpg_status divide_node(expansion *e, uint32_t n, const mpg_mesh *mesh) {
  const mpg_graph *graph = e->p->graph;
  const mpg_node *node = &graph->nodes[n];
  const mpg_part_node *part = &e->p->nodes[n];
  bool axes[MPG_MESH_AXES];
  mpg_value *outputs = mpg_arena_alloc(&e->p->arena, node->num_outputs * sizeof *outputs + 1);
  if (!outputs) return mpg_out_of_host_memory(node->num_outputs * sizeof *outputs);
  for (int m = 0; m < MPG_MESH_AXES; m++) axes[m] = part->cuts[m].factor >= 0;
  mpg_coordinates place = {{0}};
  bool rings = mpg_ring_applies(e->p, n, mesh);
  if (rings) MPG_TRY(mpg_ring_divide(e, n, mesh));
  while (!rings) {
    MPG_TRY(emit_part(e, n, mesh, &place, outputs));
    for (uint32_t k = 0; k < node->num_outputs; k++)
      e->p->values[node->values + k].pieces[mpg_mesh_index(mesh, &place)] = outputs[k];
    if (!mpg_coordinates_next(mesh, axes, &place)) break;
  }
  for (uint32_t k = 0; k < node->num_outputs; k++) {
    mpg_part_value *own = &e->p->values[node->values + k];
    const mpg_layout target = own->layout;
    mpg_layout layout = {{{0}}};
    bool partial[MPG_MESH_AXES] = {false};
    for (int m = 0; m < mesh->num_axes; m++) {
      layout.cuts[m] = mpg_part_cut(part, m, (int)(node->num_inputs + k));
      /* Without the factor, the piece at coordinate 0 is the result. */
      partial[m] = axes[m] && !layout.cuts[m].on &&
                   part->rule.factors[part->cuts[m].factor].kind != MPG_FACTOR_PASS;
    }
    for (int m = 0; m < mesh->num_axes; m++) {
      if (!partial[m]) continue;
      mpg_factor_kind kind = part->rule.factors[part->cuts[m].factor].kind;
      size_t before = e->bytes;
      bool scatters = target.cuts[m].on && mpg_layout_apart(&layout, &target.cuts[m]);
      const mpg_cut *to = scatters ? &target.cuts[m] : &(mpg_cut){0};
      MPG_TRY(combine(e, mesh, m, kind, to, partial, &layout, own->pieces));
      partial[m] = false;
      mpg_expand_report(e, scatters ? "reduce_scatter" : "reduce", node->values + k,
                        e->bytes - before);
    }
    own->layout = layout;
  }
  return MPG_OK;
}

/* Returns the array that piece k of a stored parameter was copied from: skips reshapes and copies
 * to another device. */
static mpg_value stored_piece(const mpg_graph *graph, mpg_value value) {
  for (;;) {
    const mpg_node *node = &graph->nodes[value.node];
    if (!mpg_node_is_reshape(node) && !mpg_node_flag(node, MPG_OP_COPY)) return value;
    value = mpg_node_inputs(graph, node)[0];
  }
}

/* True if a concatenation, reshaped to an array of shape `whole`, joins the parts of a cut. */
static bool joins_parts(const mpg_graph *graph, mpg_value join, const mpg_shape *whole,
                        const mpg_cut *cut) {
  const mpg_node *node = &graph->nodes[join.node];
  if (!node->op || !mpg_op_joins(node->op)) return false;
  const mpg_shape *shape = &mpg_graph_at(graph, join)->desc.shape;
  int dim = mpg_sharding_axis(((const mpg_concat_params *)node->params)->dim, shape->ndim);
  return shape->dims[dim] == cut->size * cut->digit.inner &&
         mpg_shape_product(shape, 0, dim) ==
             mpg_shape_product(whole, 0, cut->digit.axis) * cut->digit.outer;
}

/* Lists the axes of the mesh that divide one dimension of an array, the slowest first. Returns
 * their number; 0 if several dimensions are divided. */
static int axes_of_cuts(const mpg_mesh *mesh, const mpg_layout *layout, int *axes) {
  int count = 0;
  for (int m = 0; m < mesh->num_axes; m++) {
    const mpg_digit *digit = &layout->cuts[m].digit;
    if (!layout->cuts[m].on) continue;
    int i = count++;
    for (; i > 0 && layout->cuts[axes[i - 1]].digit.outer > digit->outer; i--)
      axes[i] = axes[i - 1];
    axes[i] = m;
    if (digit->axis != layout->cuts[axes[0]].digit.axis) return 0;
  }
  return count;
}

/* True if an annotated value is the concatenation of its parts, which are on their devices already.
 * Then uses them as its pieces. */
static bool is_stored(expansion *e, uint32_t n) {
  const mpg_graph *graph = e->p->graph;
  const mpg_node *node = &graph->nodes[n];
  mpg_part_value *own = &e->p->values[node->values];
  const mpg_mesh *mesh = e->p->mesh_of[node->values];
  int axes[MPG_MESH_AXES], count = axes_of_cuts(mesh, &own->layout, axes);
  uint32_t parts = 1;
  for (int i = 0; i < count; i++) parts *= (uint32_t)mesh->axes[axes[i]].size;
  mpg_value join = mpg_node_inputs(graph, node)[0];
  while (mpg_node_is_reshape(&graph->nodes[join.node]))
    join = mpg_node_inputs(graph, &graph->nodes[join.node])[0];
  const mpg_node *concat = &graph->nodes[join.node];
  const mpg_shape *whole = &graph->values[node->values].desc.shape;
  if (!count || !joins_parts(graph, join, whole, &own->layout.cuts[axes[0]]) ||
      concat->num_inputs != parts)
    return false;
  mpg_coordinates place = {{0}};
  for (uint32_t k = 0; k < parts; k++) {
    mpg_value piece = stored_piece(graph, mpg_node_inputs(graph, concat)[k]);
    for (uint32_t i = (uint32_t)count, rest = k; i-- > 0;) {
      uint32_t size = (uint32_t)mesh->axes[axes[i]].size;
      place.at[axes[i]] = (int)(rest % size);
      rest /= size;
    }
    mpg_shape shape = mpg_layout_shape(mesh, &own->layout, &place, whole);
    const mpg_part_value *from = &e->p->values[mpg_value_index(graph, piece)];
    if (!mpg_device_id_equal(mpg_graph_at(graph, piece)->device, mpg_mesh_device(mesh, &place)) ||
        !mpg_shape_equal(&mpg_graph_at(graph, piece)->desc.shape, &shape) ||
        mpg_layout_divided(&from->layout))
      return false;
    own->pieces[mpg_mesh_index(mesh, &place)] = from->pieces[0];
  }
  return true;
}

/* True if an annotated value is a copy of an array that is stored whole on a device outside the
 * mesh. Then uses that array as its piece, so that every use fetches it from there. */
static bool is_stored_whole(expansion *e, uint32_t n) {
  const mpg_graph *graph = e->p->graph;
  const mpg_node *node = &graph->nodes[n];
  mpg_part_value *own = &e->p->values[node->values];
  if (!own->stored || mpg_layout_divided(&own->layout)) return false;
  mpg_value input = mpg_node_inputs(graph, node)[0], array = stored_piece(graph, input);
  if (!mpg_shape_equal(&mpg_graph_at(graph, array)->desc.shape,
                       &mpg_graph_at(graph, input)->desc.shape))
    return false;
  own->pieces[0] = e->p->values[mpg_value_index(graph, array)].pieces[0];
  return true;
}

static mpg_status expand_annotation(expansion *e, uint32_t n) {
  const mpg_node *node = &e->p->graph->nodes[n];
  mpg_part_value *own = &e->p->values[node->values];
  const mpg_mesh *mesh = e->p->mesh_of[node->values];
  if (is_stored_whole(e, n) || is_stored(e, n)) return MPG_OK;
  uint32_t input = mpg_value_index(e->p->graph, mpg_node_inputs(e->p->graph, node)[0]);
  if (e->p->values[input].stored) own->same_as = input + 1;
  if (own->same_as) return MPG_OK;
  bool axes[MPG_MESH_AXES];
  for (int m = 0; m < MPG_MESH_AXES; m++) axes[m] = own->layout.cuts[m].on;
  mpg_coordinates place = {{0}};
  do {
    MPG_TRY(mpg_expand_fetch_all(e, input, &own->layout, &place,
                                 &own->pieces[mpg_mesh_index(mesh, &place)]));
  } while (mpg_coordinates_next(mesh, axes, &place));
  return MPG_OK;
}

/* Copies a node that is not divided. */
static mpg_status take_over(expansion *e, uint32_t n) {
  const mpg_graph *graph = e->p->graph;
  const mpg_node *node = &graph->nodes[n];
  mpg_value *inputs = mpg_arena_alloc(&e->p->arena, node->num_inputs * sizeof *inputs + 1);
  if (!inputs) return mpg_out_of_host_memory(node->num_inputs * sizeof *inputs);
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    inputs[i] = mpg_node_inputs(graph, node)[i];
    if (mpg_has_value(inputs[i]))
      MPG_TRY(mpg_expand_fetch_all(e, mpg_value_index(graph, inputs[i]), &(mpg_layout){{{0}}},
                                   &(mpg_coordinates){{0}}, &inputs[i]));
  }
  uint32_t number;
  MPG_TRY(mpg_graph_append(e->target, graph, n, inputs, &number));
  for (uint32_t k = 0; k < node->num_outputs; k++) {
    e->p->values[node->values + k].pieces[0] = (mpg_value){number, k};
    e->p->values[node->values + k].layout = (mpg_layout){{{0}}};
  }
  for (uint32_t i = 0; node->op && i < node->num_inputs; i++) {
    if (!mpg_op_input_mutable(node->op, (int)i)) continue;
    mpg_value input = mpg_node_inputs(graph, node)[i];
    const mpg_node *from = &graph->nodes[input.node];
    if (mpg_node_mutates(node) && mpg_node_annotates(from) &&
        mpg_layout_divided(&e->p->values[from->values].layout))
      return mpg_fail(
          MPG_ERROR,
          "%s writes input %u, which is annotated with axes '%s' of a mesh, so that the "
          "new values would be lost; leave this array out of the plan, for example with "
          "{'data0': 'data'}",
          node->op->name, i, ((const mpg_sharded_params *)from->params)->axes);
    /* Parts of the input would be out of date. */
    mpg_expand_forget(e, mpg_value_index(graph, input), inputs[i]);
  }
  return MPG_OK;
}

mpg_status mpg_partition_expand(mpg_partitioning *p, mpg_graph *target) {
  expansion e = {.p = p, .target = target};
  const mpg_graph *graph = p->graph;
  for (uint32_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    if (!p->live[n]) continue;
    for (uint32_t k = 0; k < node->num_outputs; k++) MPG_TRY(new_pieces(&e, node->values + k));
    mpg_partition_enter(target, node);
    if (mpg_node_annotates(node))
      MPG_TRY(expand_annotation(&e, n));
    else if (p->nodes[n].mixture && mpg_experts_axis(p, p->nodes[n].mixture - 1) >= 0)
      MPG_TRY(mpg_experts_divide(&e, n, mpg_experts_axis(p, p->nodes[n].mixture - 1)));
    else if (mpg_experts_axis(p, n) >= 0)
      MPG_TRY(combine_rows(&e, n, mpg_part_mesh(p, node), mpg_experts_axis(p, n)));
    else
      MPG_TRY(p->nodes[n].divided ? divide_node(&e, n, mpg_part_mesh(p, node)) : take_over(&e, n));
    for (uint32_t k = 0; k < node->num_outputs; k++)
      mpg_expand_report_layout(&e, n, node->values + k);
  }
  mpg_partition_leave(target, graph);
  mpg_value *outputs = mpg_arena_alloc(&p->arena, graph->num_outputs * sizeof *outputs + 1);
  if (!outputs) return mpg_out_of_host_memory(graph->num_outputs * sizeof *outputs);
  for (size_t i = 0; i < graph->num_outputs; i++)
    MPG_TRY(mpg_expand_fetch_all(&e, mpg_value_index(graph, graph->outputs[i]),
                                 &(mpg_layout){{{0}}}, &(mpg_coordinates){{0}}, &outputs[i]));
  return mpg_graph_set_outputs(target, outputs, graph->num_outputs);
}
