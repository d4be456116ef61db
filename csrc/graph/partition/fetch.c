/* Fetching: makes a value available in another layout, or on another device. Pieces are split where
 * they are, copied, and concatenated where they are needed. This covers broadcasts, gathers,
 * all-gathers and all-to-alls. */
#include <string.h>

#include "graph/gradient/recompute.h"
#include "graph/partition/expand.h"

/* The readers of a fetched part. */
typedef enum fetch_kind {
  FETCH_PLACE, /* the node at one place */
  FETCH_BOX,   /* trees: all nodes on a device that read the same */
  FETCH_TREE,  /* trees: all nodes that read the same; has no value */
  FETCH_ALL,   /* a node that is not divided along the axes without wanted cuts */
} fetch_kind;

/* A part of a value in another layout than its own. */
typedef struct mpg_fetched {
  struct mpg_fetched *next;
  mpg_layout layout;
  mpg_coordinates place;
  fetch_kind kind;
  mpg_value value;
} fetched;

/* The parts of a value of the target along a digit. */
typedef struct mpg_split_value {
  struct mpg_split_value *next;
  mpg_value value;
  mpg_digit digit;
  const mpg_mesh *mesh;
  int axis; /* the axis of the mesh whose devices get the parts */
  mpg_value *parts;
} split_value;

typedef mpg_expansion expansion;

/* --- Emitting --------------------------------------------------------------------------------- */

static mpg_status emit_reshape(expansion *e, mpg_value value, const mpg_shape *shape,
                               mpg_value *result) {
  *result = value;
  if (mpg_shape_equal(&mpg_graph_at(e->target, value)->desc.shape, shape)) return MPG_OK;
  mpg_exact_shape_params params;
  memset(&params, 0, sizeof params);
  params.shape = mpg_shape_tuple(shape);
  return mpg_expand_emit(e, MPG_OP__reshape_exact, &params, &value, 1, result);
}

/* Returns the shape (outer, indices * inner, rest) that makes a digit's blocks an axis of their
 * own. */
static mpg_shape unfolded(const mpg_shape *shape, const mpg_digit *digit) {
  int64_t before = mpg_shape_product(shape, 0, digit->axis) * digit->outer;
  int64_t rest = mpg_shape_product(shape, digit->axis + 1, shape->ndim);
  return (mpg_shape){.ndim = 3, .dims = {before, shape->dims[digit->axis] / digit->outer, rest}};
}

/* Concatenates the parts of an array along a digit. */
static mpg_status emit_join(expansion *e, mpg_value *parts, int count, const mpg_digit *digit,
                            mpg_value *result) {
  mpg_shape shape = mpg_graph_at(e->target, parts[0])->desc.shape;
  for (int k = 1; k < count; k++)
    shape.dims[digit->axis] += mpg_graph_at(e->target, parts[k])->desc.shape.dims[digit->axis];
  mpg_concat_params params;
  memset(&params, 0, sizeof params);
  params.num_args = count;
  params.dim = digit->outer == 1 ? digit->axis : 1;
  for (int k = 0; k < count && digit->outer > 1; k++) {
    mpg_shape flat = unfolded(&mpg_graph_at(e->target, parts[k])->desc.shape, digit);
    MPG_TRY(emit_reshape(e, parts[k], &flat, &parts[k]));
  }
  MPG_TRY(mpg_expand_emit(e, MPG_OP_Concat, &params, parts, count, result));
  return emit_reshape(e, *result, &shape, result);
}

mpg_status mpg_expand_split(mpg_expansion *e, const mpg_mesh *mesh, int axis, const mpg_cut *cut,
                            const mpg_digit *digit, mpg_value value, mpg_value **parts) {
  for (const split_value *s = e->splits; s; s = s->next)
    if (mpg_value_equal(s->value, value) && s->mesh == mesh && s->axis == axis &&
        mpg_digit_equal(&s->digit, digit)) {
      *parts = s->parts;
      return MPG_OK;
    }
  int count = mesh->axes[axis].size;
  split_value *made = mpg_arena_alloc(&e->p->arena, sizeof *made);
  mpg_value *values = mpg_arena_alloc(&e->p->arena, (size_t)count * sizeof *values);
  if (!made || !values) return mpg_out_of_host_memory(sizeof *made);
  const mpg_shape shape = mpg_graph_at(e->target, value)->desc.shape;
  mpg_shape flat = unfolded(&shape, digit);
  mpg_value source = value;
  if (digit->outer > 1) MPG_TRY(emit_reshape(e, value, &flat, &source));
  mpg_split_v2_params params;
  memset(&params, 0, sizeof params);
  params.axis = digit->outer == 1 ? digit->axis : 1;
  bool even = !mesh->axes[axis].weights && cut->size % count == 0;
  if (even) params.sections = count;
  if (!even && count > MPG_MAX_TUPLE)
    return mpg_fail(MPG_NOT_IMPLEMENTED,
                    "%lld elements cannot be divided over %d devices: with more than %d devices "
                    "the parts must be equal",
                    (long long)cut->size, count, MPG_MAX_TUPLE);
  for (int k = 0; k < count && !even; k++)
    params.indices.values[params.indices.count++] =
        mpg_mesh_begin(mesh, axis, cut->size, k) * digit->inner;
  MPG_TRY(mpg_expand_emit(e, MPG_OP__split_v2, &params, &source, 1, values));
  for (int k = 0; k < count && digit->outer > 1; k++) {
    mpg_shape part = shape;
    part.dims[digit->axis] = digit->outer * mpg_mesh_count(mesh, axis, cut->size, k) * digit->inner;
    MPG_TRY(emit_reshape(e, values[k], &part, &values[k]));
  }
  *made = (split_value){e->splits, value, *digit, mesh, axis, values};
  e->splits = made;
  *parts = values;
  return MPG_OK;
}

/* --- Fetching --------------------------------------------------------------------------------- */

typedef struct fetching {
  uint32_t value;
  const mpg_mesh *mesh;
  const mpg_layout *want;
  const mpg_coordinates *place;
  bool gathers[MPG_MESH_AXES]; /* the parts along this axis are concatenated */
  bool splits[MPG_MESH_AXES];  /* pieces are split for the devices along this axis */
  bool transient;              /* gathered when it is needed, and again in the backward phase */
  fetch_kind kind;
  mpg_box all, box; /* FETCH_BOX: the places that read the same, and those on one device */
  const fetched *tree;
} fetching;

/* Returns the digit of a cut in an array with the cuts of two layouts, even along the same axis of
 * the mesh. All cuts must be apart. */
static mpg_digit digit_within(const mpg_mesh *mesh, const mpg_layout *a,
                              const mpg_coordinates *at_a, const mpg_layout *b,
                              const mpg_coordinates *at_b, const mpg_cut *cut) {
  mpg_digit first = mpg_layout_digit(mesh, a, at_a, cut),
            second = mpg_layout_digit(mesh, b, at_b, cut);
  return (mpg_digit){.axis = cut->digit.axis,
                     .outer = first.outer * second.outer / cut->digit.outer,
                     .inner = first.inner * second.inner / cut->digit.inner};
}

/* Splits the piece at `from` of a value with this layout by the wanted cuts, and moves the wanted
 * part to its device. */
static mpg_status split_and_move(expansion *e, const fetching *f, const mpg_coordinates *from,
                                 const mpg_layout *layout, mpg_value value, mpg_value *result) {
  mpg_layout added = {{{0}}};
  for (int m = 0; m < f->mesh->num_axes; m++) {
    if (!f->splits[m]) continue;
    const mpg_cut *cut = &f->want->cuts[m];
    mpg_value *parts;
    mpg_digit digit = digit_within(f->mesh, layout, from, &added, f->place, cut);
    MPG_TRY(mpg_expand_split(e, f->mesh, m, cut, &digit, value, &parts));
    value = parts[f->place->at[m]];
    added.cuts[m] = *cut;
  }
  if (f->kind == FETCH_BOX)
    return mpg_tree_fan(e, f->mesh, f->tree, value, &f->all, &f->box, f->transient, result);
  return mpg_expand_move(e, value, mpg_mesh_device(f->mesh, f->place), f->transient, result);
}

/* Gathers along the axes from `axis` on; the coordinates along earlier axes are given. */
static mpg_status collect(expansion *e, const fetching *f, int axis, mpg_coordinates *from,
                          mpg_value *result) {
  const mpg_part_value *own = &e->p->values[f->value];
  while (axis < f->mesh->num_axes && !f->gathers[axis]) axis++;
  if (axis == f->mesh->num_axes)
    return split_and_move(e, f, from, &own->layout, own->pieces[mpg_mesh_index(f->mesh, from)],
                          result);
  int count = f->mesh->axes[axis].size;
  mpg_value *parts = mpg_arena_alloc(&e->p->arena, (size_t)count * sizeof *parts);
  if (!parts) return mpg_out_of_host_memory((size_t)count * sizeof *parts);
  for (int k = 0; k < count; k++) {
    from->at[axis] = k;
    MPG_TRY(collect(e, f, axis + 1, from, &parts[k]));
  }
  from->at[axis] = 0;
  /* The result has the wanted cuts, and those along axes that are gathered later. */
  mpg_layout later = {{{0}}};
  for (int m = 0; m < axis; m++)
    if (f->gathers[m]) later.cuts[m] = own->layout.cuts[m];
  mpg_digit digit = digit_within(f->mesh, f->want, f->place, &later, from, &own->layout.cuts[axis]);
  return emit_join(e, parts, count, &digit, result);
}

/* Reports that an input of the graph, which is whole, is used in parts, for the first part. */
static void report_want(expansion *e, const fetching *f) {
  const mpg_partition_request *request = e->p->request;
  mpg_text *text = request->report;
  size_t i = 0;
  if (!text || mpg_mesh_index(f->mesh, f->place)) return;
  while (i < request->num_inputs && mpg_value_index(e->p->graph, request->inputs[i]) != f->value)
    i++;
  if (i == request->num_inputs) return;
  for (int m = 0; m < f->mesh->num_axes; m++) {
    const mpg_cut *cut = &f->want->cuts[m];
    if (cut->on)
      mpg_text_append(text, "want\t%zu\t%s\t%d\t%lld\t%lld\n", i, f->mesh->axes[m].name,
                      cut->digit.axis, (long long)cut->digit.outer, (long long)cut->digit.inner);
  }
}

static mpg_status fetch(expansion *e, uint32_t value, const mpg_layout *want,
                        const mpg_coordinates *place, fetch_kind kind, mpg_value *result);

/* Fetches the value without the wanted splits to the device, and splits it there. */
static mpg_status fetch_then_split(expansion *e, fetching *f, mpg_value *result) {
  mpg_layout kept = *f->want;
  for (int m = 0; m < f->mesh->num_axes; m++)
    if (f->splits[m]) kept.cuts[m].on = false;
  MPG_TRY(fetch(e, f->value, &kept, f->place, f->kind, result));
  return split_and_move(e, f, f->place, &kept, *result, result);
}

/* Finds an earlier result, or returns NULL. */
static fetched *find_fetched(const expansion *e, const fetching *f) {
  for (fetched *old = e->p->values[f->value].fetched; old; old = old->next)
    if (old->kind == f->kind && !memcmp(&old->place, f->place, sizeof *f->place) &&
        mpg_layout_equal(f->mesh, &old->layout, f->want))
      return old;
  return NULL;
}

static mpg_status keep_fetched(expansion *e, const fetching *f, mpg_value value) {
  mpg_part_value *own = &e->p->values[f->value];
  fetched *made = mpg_arena_alloc(&e->p->arena, sizeof *made);
  if (!made) return mpg_out_of_host_memory(sizeof *made);
  *made = (fetched){own->fetched, *f->want, *f->place, f->kind, value};
  own->fetched = made;
  return MPG_OK;
}

/* Fetches a value that is the same at several places through a tree over these places. Values have
 * trees of their own even if their pieces are the same, because the gradients of each are added up
 * before their sums are. */
static mpg_status fetch_shared(expansion *e, const fetching *f, const mpg_coordinates *from,
                               mpg_value *result) {
  bool along[MPG_MESH_AXES];
  for (int m = 0; m < f->mesh->num_axes; m++) along[m] = !f->want->cuts[m].on;
  const mpg_box leaf = mpg_box_around(f->mesh, (bool[MPG_MESH_AXES]){false}, f->place);
  fetching g = *f;
  g.all = g.box = mpg_box_around(f->mesh, along, f->place);
  g.kind = FETCH_TREE;
  g.place = &g.all.begin;
  if (!find_fetched(e, &g)) MPG_TRY(keep_fetched(e, &g, MPG_NO_VALUE));
  g.tree = find_fetched(e, &g);
  while (!mpg_box_on_one_device(f->mesh, &g.box)) mpg_box_narrow(&g.box, f->place);
  g.kind = FETCH_BOX;
  g.place = &g.box.begin;
  if (!find_fetched(e, &g)) {
    mpg_coordinates at = *from;
    MPG_TRY(collect(e, &g, 0, &at, result));
    MPG_TRY(keep_fetched(e, &g, *result));
  }
  mpg_value shared = find_fetched(e, &g)->value;
  return mpg_tree_fan(e, f->mesh, g.tree, shared, &g.box, &leaf, false, result);
}

/* True if the parts of an array follow each other in it. They are then received as slices of the
 * whole (schedule/slices.c), and a gather needs no other memory. */
static bool is_in_order(const mpg_layout *layout, const mpg_mesh *mesh, const mpg_shape *shape) {
  for (int m = 0; m < mesh->num_axes; m++) {
    const mpg_digit *digit = &layout->cuts[m].digit;
    if (layout->cuts[m].on && mpg_shape_product(shape, 0, digit->axis) * digit->outer != 1)
      return false;
  }
  return true;
}

static mpg_status fetch(expansion *e, uint32_t value, const mpg_layout *want,
                        const mpg_coordinates *place, fetch_kind kind, mpg_value *result) {
  if (e->p->values[value].same_as) value = e->p->values[value].same_as - 1;
  mpg_part_value *own = &e->p->values[value];
  fetching f = {
      .value = value, .mesh = e->p->mesh_of[value], .want = want, .place = place, .kind = kind};
  if (!f.mesh) {
    *result = own->pieces[0];
    return MPG_OK;
  }
  if (!f.mesh->tree) f.kind = FETCH_ALL;
  const fetched *old = find_fetched(e, &f);
  if (old) {
    *result = old->value;
    return MPG_OK;
  }
  mpg_coordinates from = {{0}};
  bool apart = true, gathers = false, splits = false, shared = false;
  size_t before = e->bytes;
  for (int m = 0; m < f.mesh->num_axes; m++) {
    const mpg_cut *have = &own->layout.cuts[m], *wanted = &want->cuts[m];
    shared |= f.kind == FETCH_PLACE && !wanted->on && f.mesh->axes[m].size > 1;
    if (mpg_cut_equal(f.mesh, m, have, wanted)) {
      if (have->on) from.at[m] = place->at[m];
      continue;
    }
    gathers |= f.gathers[m] = have->on;
    splits |= f.splits[m] = wanted->on;
  }
  for (int m = 0; m < f.mesh->num_axes; m++)
    for (int k = 0; k < f.mesh->num_axes; k++)
      if (f.splits[m] && f.gathers[k]) apart &= mpg_cut_apart(&want->cuts[m], &own->layout.cuts[k]);
  /* A parameter that is stored in parts, unless the mesh keeps it, and keys and values that are cut
   * along time, are gathered again in the backward phase, so that the whole of them is only in
   * memory while it is used. */
  uint32_t region = e->target->recompute_region;
  f.transient = own->stored || (e->regathers && gathers);
  if (f.transient && !(own->stored && f.mesh->keeps))
    e->target->recompute_region = MPG_RECOMPUTE_ANYWHERE;
  e->prefetches =
      own->stored && is_in_order(&own->layout, f.mesh, &e->p->graph->values[value].desc.shape);
  MPG_TRY(!apart   ? fetch_then_split(e, &f, result)
          : shared ? fetch_shared(e, &f, &from, result)
                   : collect(e, &f, 0, &from, result));
  e->target->recompute_region = region;
  mpg_expand_report(e,
                    gathers && splits ? "all_to_all"
                    : gathers         ? "gather"
                    : splits          ? "scatter"
                                      : "copy",
                    value, e->bytes - before);
  if (splits && !gathers) report_want(e, &f);
  return keep_fetched(e, &f, *result);
}

mpg_status mpg_expand_fetch(mpg_expansion *e, uint32_t value, const mpg_layout *want,
                            const mpg_coordinates *place, mpg_value *result) {
  return fetch(e, value, want, place, FETCH_PLACE, result);
}

mpg_status mpg_expand_fetch_all(mpg_expansion *e, uint32_t value, const mpg_layout *want,
                                const mpg_coordinates *place, mpg_value *result) {
  return fetch(e, value, want, place, FETCH_ALL, result);
}

void mpg_expand_forget(mpg_expansion *e, uint32_t value, mpg_value whole) {
  e->p->values[value].fetched = NULL;
  for (split_value *old = e->splits; old; old = old->next)
    if (mpg_value_equal(old->value, whole)) old->mesh = NULL;
}
