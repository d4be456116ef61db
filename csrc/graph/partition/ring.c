/* Ring attention: attention of parts of the queries to parts of the keys.
 *
 * Queries, keys and values are cut along time over the D devices of a ring. In step s, device i
 * computes the attention of its queries to part (i - s) mod D of keys and values, and merges it
 * with the result of earlier steps. Parts that all rows of a device cannot see, because of causal
 * attention or a window, are skipped.
 *
 * The part of a step is copied from the device that owns it. The nodes of a step are emitted for
 * all devices before the nodes of the next step, and after the copies of the next step, so that
 * these run while the step is computed. The copies are paced and stay at their position, so a
 * device holds two received parts at most. For the gradient, they are copied again (recomputed).
 *
 * Source: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite
 * Context", 2023. */
#include <string.h>

#include "graph/gradient/recompute.h"
#include "graph/partition/expand.h"
#include "op/attention/attention_call.h"

enum { QUERY, KEY, VALUE, OPTIONAL, INPUTS = 6 };

/* Values of a device. */
typedef struct ring_place {
  mpg_coordinates at;
  int64_t first, rows;          /* its part of the queries */
  mpg_value inputs[INPUTS];     /* all except keys and values */
  mpg_value key[2], value[2];   /* parts of step s, at index s % 2 */
  mpg_value output, sums, draw; /* merged so far */
} ring_place;

typedef struct ring {
  mpg_expansion *e;
  uint32_t n;
  const mpg_node *node;
  const mpg_part_node *part;
  const mpg_head_attention_params *params;
  const mpg_mesh *mesh;
  bool along[MPG_MESH_AXES]; /* the ring's devices are along these axes of the mesh */
  int time, num_parts;
  int64_t rows, keys; /* of the whole sequence */
  ring_place *places;
  int num_places;
  size_t bytes[2]; /* copied for keys and values */
} ring;

/* Returns the number of a place in its ring. */
static int number_of(const ring *r, const mpg_coordinates *place) {
  int number = 0;
  for (int m = 0; m < r->mesh->num_axes; m++)
    if (r->along[m]) number = number * r->mesh->axes[m].size + place->at[m];
  return number;
}

/* Returns the place that owns the part of step `step` of a place. */
static mpg_coordinates owner_of(const ring *r, const mpg_coordinates *place, int step) {
  int number = (number_of(r, place) + r->num_parts - step) % r->num_parts;
  mpg_coordinates owner = *place;
  for (int m = r->mesh->num_axes; m-- > 0;) {
    if (!r->along[m]) continue;
    owner.at[m] = number % r->mesh->axes[m].size;
    number /= r->mesh->axes[m].size;
  }
  return owner;
}

/* Returns the layout of keys (or values) in parts. */
static mpg_layout parts_of(const ring *r, int input) {
  mpg_layout layout = {{{0}}};
  const mpg_digit time = {.axis = r->time, .outer = 1, .inner = 1};
  for (int m = 0; m < r->mesh->num_axes; m++) {
    layout.cuts[m] = mpg_part_cut(r->part, m, input);
    if (!r->along[m]) continue;
    layout.cuts[m] = r->keys == r->rows ? mpg_part_cut_of(&r->part->cuts[m], &time)
                                        : (mpg_cut){.on = true, .digit = time, .size = r->keys};
  }
  return layout;
}

/* Sets the keys [*begin, *begin + *count) of the part that a place owns. */
static void find_keys(const ring *r, const mpg_coordinates *owner, int64_t *begin, int64_t *count) {
  mpg_layout layout = parts_of(r, KEY);
  const mpg_shape *whole = &r->part->rule.inputs[KEY].shape;
  *begin = mpg_layout_begin(r->mesh, &layout, owner, whole->ndim).dims[r->time];
  *count = mpg_layout_shape(r->mesh, &layout, owner, whole).dims[r->time];
}

/* True if a row of a place may see a key of the part of a step. Every place has its own part, so
 * that rows that see no key have a result. */
static bool is_seen(const ring *r, const ring_place *p, int step) {
  if (step == 0) return true;
  mpg_coordinates owner = owner_of(r, &p->at, step);
  int64_t begin, count, window = r->params->window;
  find_keys(r, &owner, &begin, &count);
  /* Positions of the first and the last row among the keys. */
  int64_t first = r->keys - r->params->later - r->rows + p->first, last = first + p->rows - 1;
  if (r->params->causal && begin > last) return false;
  if (!window) return true;
  return begin + count - 1 > first - window && (r->params->causal || begin < last + window);
}

/* Copies a part to the device of a place. */
static mpg_status receive(ring *r, const ring_place *p, int input, const mpg_coordinates *owner,
                          mpg_value *result) {
  mpg_expansion *e = r->e;
  mpg_value whole = mpg_node_inputs(e->p->graph, r->node)[input];
  const mpg_layout layout = parts_of(r, input);
  MPG_TRY(mpg_expand_fetch(e, mpg_value_index(e->p->graph, whole), &layout, owner, result));
  mpg_device_id device = mpg_mesh_device(r->mesh, &p->at);
  const mpg_graph_value from = *mpg_graph_at(e->target, *result);
  if (mpg_device_id_equal(from.device, device)) return MPG_OK;
  r->bytes[input - KEY] += mpg_desc_bytes(&from.desc);
  mpg_copyto_params params;
  mpg_params_defaults(&mpg_copyto_table, &params);
  params.ctx = device;
  params.paced = params.ordered = true;
  uint32_t region = e->target->recompute_region;
  e->target->recompute_region = MPG_RECOMPUTE_ANYWHERE;
  mpg_status status =
      mpg_graph_emit(e->target, mpg_op_get(MPG_OP__copyto), &params, result, 1, *result, result);
  e->target->recompute_region = region;
  return status;
}

/* Fetches all inputs of a place except keys and values. */
static mpg_status fetch_inputs(ring *r, ring_place *p) {
  for (uint32_t i = 0; i < r->node->num_inputs; i++) {
    if (i == KEY || i == VALUE) continue;
    mpg_layout layout = {{{0}}};
    for (int m = 0; m < r->mesh->num_axes; m++) layout.cuts[m] = mpg_part_cut(r->part, m, (int)i);
    mpg_value whole = mpg_node_inputs(r->e->p->graph, r->node)[i];
    MPG_TRY(mpg_expand_fetch(r->e, mpg_value_index(r->e->p->graph, whole), &layout, &p->at,
                             &p->inputs[i]));
    if (i != QUERY) continue;
    const mpg_shape *shape = &r->part->rule.inputs[QUERY].shape;
    p->first = mpg_layout_begin(r->mesh, &layout, &p->at, shape->ndim).dims[r->time];
    p->rows = mpg_layout_shape(r->mesh, &layout, &p->at, shape).dims[r->time];
  }
  return MPG_OK;
}

/* Takes the columns [begin, begin + count) of a mask, unless all keys share one. */
static mpg_status slice_mask(ring *r, int64_t begin, int64_t count, mpg_value *mask) {
  const mpg_shape shape = mpg_graph_at(r->e->target, *mask)->desc.shape;
  if (shape.ndim == 0 || shape.dims[shape.ndim - 1] == 1) return MPG_OK;
  mpg_slice_axis_params params;
  memset(&params, 0, sizeof params);
  params.axis = shape.ndim - 1;
  params.begin = begin;
  params.end = (mpg_opt_int){.value = begin + count, .present = 1};
  return mpg_graph_emit(r->e->target, mpg_op_get(MPG_OP_slice_axis), &params, mask, 1, *mask, mask);
}

/* Attends to the part of a step, and merges this with the result of earlier steps. */
static mpg_status attend(ring *r, ring_place *p, int step) {
  mpg_expansion *e = r->e;
  mpg_coordinates owner = owner_of(r, &p->at, step);
  int64_t begin, count;
  find_keys(r, &owner, &begin, &count);
  mpg_head_attention_params params = *r->params;
  params.part = true;
  params.before = begin;
  /* The kernels align the last row and the rows after it with the end of the part. */
  int64_t first = r->keys - r->params->later - r->rows + p->first;
  params.later = count - p->rows - (first - begin);
  mpg_value inputs[INPUTS], outputs[3] = {MPG_NO_VALUE, MPG_NO_VALUE, MPG_NO_VALUE};
  memcpy(inputs, p->inputs, sizeof inputs);
  inputs[KEY] = p->key[step % 2], inputs[VALUE] = p->value[step % 2];
  if (params.use_mask) MPG_TRY(slice_mask(r, begin, count, &inputs[OPTIONAL]));
  uint32_t num_random = e->target->num_random;
  MPG_TRY(mpg_graph_emit(e->target, r->node->op, &params, inputs, (int)r->node->num_inputs,
                         inputs[QUERY], outputs));
  mpg_expand_draw(e, r->n, r->mesh, &p->at, outputs[0], num_random);
  if (step == 0) {
    p->output = outputs[0], p->sums = outputs[1], p->draw = outputs[2];
    return MPG_OK;
  }
  mpg_merge_attention_params merge;
  memset(&merge, 0, sizeof merge);
  merge.layout = params.layout;
  mpg_value parts[] = {p->output, p->sums, outputs[0], outputs[1]}, merged[2];
  MPG_TRY(mpg_graph_emit(e->target, mpg_op_get(MPG_OP__merge_attention), &merge, parts, 4, parts[0],
                         merged));
  p->output = merged[0], p->sums = merged[1];
  return MPG_OK;
}

static mpg_status receive_step(ring *r, int step) {
  for (int i = 0; i < r->num_places; i++) {
    ring_place *p = &r->places[i];
    if (!is_seen(r, p, step)) continue;
    mpg_coordinates owner = owner_of(r, &p->at, step);
    MPG_TRY(receive(r, p, KEY, &owner, &p->key[step % 2]));
    MPG_TRY(receive(r, p, VALUE, &owner, &p->value[step % 2]));
  }
  return MPG_OK;
}

bool mpg_ring_applies(const mpg_partitioning *p, uint32_t n, const mpg_mesh *mesh) {
  const mpg_part_node *part = &p->nodes[n];
  for (int m = 0; m < mesh->num_axes && mesh->ring; m++) {
    int f = part->cuts[m].factor;
    if (f >= 0 && part->rule.factors[f].exchanged) return true;
  }
  return false;
}

/* Fails if the keys cannot be cut like the queries. */
static mpg_status check_keys(const ring *r) {
  int axes = 0, last = 0;
  for (int m = 0; m < r->mesh->num_axes; m++)
    if (r->along[m]) axes++, last = m;
  if (r->keys == r->rows || (axes == 1 && mpg_mesh_divides(r->mesh, last, r->keys))) return MPG_OK;
  const char *path = mpg_scope_text(r->node->scope);
  return mpg_fail(MPG_ERROR,
                  "context='ring': %s%s%s cannot divide its %lld keys over %d devices like its "
                  "%lld queries; use Mesh.partition(..., context='gather')",
                  r->node->op->name, *path ? " in block " : "", path, (long long)r->keys,
                  r->num_parts, (long long)r->rows);
}

mpg_status mpg_ring_divide(mpg_expansion *e, uint32_t n, const mpg_mesh *mesh) {
  const mpg_graph *graph = e->p->graph;
  const mpg_node *node = &graph->nodes[n];
  const mpg_part_node *part = &e->p->nodes[n];
  const mpg_head_attention_params *params = node->params;
  ring r = {.e = e,
            .n = n,
            .node = node,
            .part = part,
            .params = params,
            .mesh = mesh,
            .time = mpg_attention_time(params->layout),
            .num_parts = 1};
  r.rows = part->rule.inputs[QUERY].shape.dims[r.time];
  r.keys = part->rule.inputs[KEY].shape.dims[r.time];
  bool axes[MPG_MESH_AXES] = {false};
  for (int m = 0; m < mesh->num_axes; m++) {
    int f = part->cuts[m].factor;
    axes[m] = f >= 0;
    r.along[m] = f >= 0 && part->rule.factors[f].exchanged;
    if (r.along[m]) r.num_parts *= mesh->axes[m].size;
  }
  MPG_TRY(check_keys(&r));
  r.places = mpg_arena_alloc(&e->p->arena, (size_t)mesh->num_devices * sizeof *r.places);
  if (!r.places) return mpg_out_of_host_memory((size_t)mesh->num_devices * sizeof *r.places);
  mpg_coordinates place = {{0}};
  do {
    r.places[r.num_places] = (ring_place){.at = place};
    MPG_TRY(fetch_inputs(&r, &r.places[r.num_places++]));
  } while (mpg_coordinates_next(mesh, axes, &place));
  MPG_TRY(receive_step(&r, 0));
  for (int step = 0; step < r.num_parts; step++) {
    if (step + 1 < r.num_parts) MPG_TRY(receive_step(&r, step + 1));
    for (int i = 0; i < r.num_places; i++)
      if (is_seen(&r, &r.places[i], step)) MPG_TRY(attend(&r, &r.places[i], step));
  }
  for (int i = 0; i < r.num_places; i++) {
    const ring_place *p = &r.places[i];
    const mpg_value outputs[] = {p->output, p->sums, p->draw};
    for (uint32_t k = 0; k < node->num_outputs; k++)
      e->p->values[node->values + k].pieces[mpg_mesh_index(mesh, &p->at)] = outputs[k];
  }
  for (int i = KEY; i <= VALUE; i++)
    mpg_expand_report(e, "ring", mpg_value_index(graph, mpg_node_inputs(graph, node)[i]),
                      r.bytes[i - KEY]);
  return MPG_OK;
}
