/* Trees over the places of a mesh, for sums whose bits do not depend on the number of devices.
 *
 * The places of a mesh with `tree` are leaves, and a device has any number of them. A sum over the
 * places adds the sums of the two halves, so its order depends on the number of places only.
 * Values that all places read are handed down the same tree: each half gets a copy, or a view on
 * the same device. The gradient of each half then is a sum of two, again whatever the devices. */
#include <string.h>

#include "graph/partition/expand.h"

/* The value at the places of a box. */
typedef struct mpg_fan {
  struct mpg_fan *next;
  const void *tree;
  mpg_value source, value;
  mpg_box box;
} fan;

/* The first half is a power of two, so that the halves of equal boxes are alike whatever follows.
 */
int mpg_tree_middle(int begin, int end) {
  int half = 1;
  while (2 * half < end - begin) half *= 2;
  return begin + half;
}

mpg_box mpg_box_around(const mpg_mesh *mesh, const bool *along, const mpg_coordinates *place) {
  mpg_box box = {*place, *place};
  for (int m = 0; m < mesh->num_axes; m++) {
    box.begin.at[m] = along[m] ? 0 : place->at[m];
    box.end.at[m] = along[m] ? mesh->axes[m].size : place->at[m] + 1;
  }
  return box;
}

bool mpg_box_narrow(mpg_box *box, const mpg_coordinates *place) {
  for (int m = 0; m < MPG_MESH_AXES; m++) {
    if (box->end.at[m] - box->begin.at[m] < 2) continue;
    int middle = mpg_tree_middle(box->begin.at[m], box->end.at[m]);
    if (place->at[m] < middle)
      box->end.at[m] = middle;
    else
      box->begin.at[m] = middle;
    return true;
  }
  return false;
}

/* Moves `place` to the next place of the box. Returns false after the last. */
static bool next_in(const mpg_mesh *mesh, const mpg_box *box, mpg_coordinates *place) {
  for (int m = mesh->num_axes; m-- > 0;) {
    if (++place->at[m] < box->end.at[m]) return true;
    place->at[m] = box->begin.at[m];
  }
  return false;
}

static bool has_device(const mpg_mesh *mesh, const mpg_box *box, mpg_device_id device) {
  mpg_coordinates place = box->begin;
  do {
    if (mpg_device_id_equal(mpg_mesh_device(mesh, &place), device)) return true;
  } while (next_in(mesh, box, &place));
  return false;
}

bool mpg_box_on_one_device(const mpg_mesh *mesh, const mpg_box *box) {
  mpg_device_id device = mpg_mesh_device(mesh, &box->begin);
  mpg_coordinates place = box->begin;
  do {
    if (!mpg_device_id_equal(mpg_mesh_device(mesh, &place), device)) return false;
  } while (next_in(mesh, box, &place));
  return true;
}

/* A reshape to the same shape: a view, which has a gradient of its own. */
static mpg_status emit_view(mpg_expansion *e, mpg_value value, mpg_value *result) {
  mpg_exact_shape_params params;
  memset(&params, 0, sizeof params);
  params.shape = mpg_shape_tuple(&mpg_graph_at(e->target, value)->desc.shape);
  return mpg_graph_emit(e->target, mpg_op_get(MPG_OP__reshape_exact), &params, &value, 1, value,
                        result);
}

/* Finds or makes the value at the places of a box, from the value of the box around it. It is on
 * the source's device if the box has this device, so that the source moves as little as possible.
 */
static mpg_status fan_to(mpg_expansion *e, const mpg_mesh *mesh, const void *tree, mpg_value source,
                         const mpg_box *box, bool paced, mpg_value *value) {
  fan **bucket = &e->fans[source.node % MPG_FAN_BUCKETS];
  for (const fan *old = *bucket; old; old = old->next)
    if (old->tree == tree && mpg_value_equal(old->source, source) &&
        !memcmp(&old->box, box, sizeof *box)) {
      *value = old->value;
      return MPG_OK;
    }
  mpg_device_id device = mpg_graph_at(e->target, source)->device;
  if (!has_device(mesh, box, device)) device = mpg_mesh_device(mesh, &box->begin);
  mpg_value above = *value;
  MPG_TRY(mpg_expand_move(e, above, device, paced, value));
  if (mpg_value_equal(above, *value)) MPG_TRY(emit_view(e, above, value));
  fan *made = mpg_arena_alloc(&e->p->arena, sizeof *made);
  if (!made) return mpg_out_of_host_memory(sizeof *made);
  *made = (fan){*bucket, tree, source, *value, *box};
  *bucket = made;
  return MPG_OK;
}

mpg_status mpg_tree_fan(mpg_expansion *e, const mpg_mesh *mesh, const void *tree, mpg_value value,
                        const mpg_box *from, const mpg_box *to, bool paced, mpg_value *result) {
  mpg_box box = *from;
  *result = value;
  do {
    MPG_TRY(fan_to(e, mesh, tree, value, &box, paced, result));
  } while (memcmp(&box, to, sizeof box) && mpg_box_narrow(&box, &to->begin));
  return MPG_OK;
}
