/* Device meshes and layouts. */
#include "graph/partition/mesh.h"

#include <stdlib.h>
#include <string.h>

#include "op/array/collective.h"

static mpg_status malformed(const char *text) {
  return mpg_fail(MPG_VALUE_ERROR,
                  "mesh '%s' is malformed: expected sizes of different axes and different devices, "
                  "as in 'data=2,model=2;cpu(0),cpu(1),cpu(2),cpu(3)'",
                  text);
}

/* Parses "name=2" or "name=3:1" up to `end`. */
static mpg_status parse_axis(const char *text, const char *begin, const char *end, mpg_arena *arena,
                             mpg_mesh_axis *axis) {
  int64_t weights[MPG_MESH_PARTS] = {0};
  const char *equals = memchr(begin, '=', (size_t)(end - begin));
  if (!equals || equals == begin || equals - begin >= MPG_MESH_NAME) return malformed(text);
  memcpy(axis->name, begin, (size_t)(equals - begin));
  int count = 0;
  for (const char *at = equals; at < end;) {
    char *after;
    if (count == MPG_MESH_PARTS) return malformed(text);
    weights[count] = strtoll(at + 1, &after, 10);
    if (after == at + 1 || after > end || weights[count] < 1 || weights[count] > MPG_MESH_SHARES ||
        (after < end && *after != ':'))
      return malformed(text);
    axis->total += weights[count++];
    if (axis->total > MPG_MESH_SHARES) return malformed(text);
    at = after;
  }
  if (count == 1) {
    if (weights[0] > MPG_MESH_PARTS) return malformed(text);
    axis->size = (int)weights[0];
    axis->total = axis->size;
    return MPG_OK;
  }
  axis->size = count;
  axis->weights = mpg_arena_copy(arena, weights, (size_t)count * sizeof *weights);
  return axis->weights ? MPG_OK : mpg_out_of_host_memory((size_t)count * sizeof *weights);
}

/* Sets *option if the option `name` is next in a mesh's text, and skips it. */
static bool takes(const char **text, const char *name, bool *option) {
  size_t length = strlen(name);
  bool found = !strncmp(*text, name, length) && ((*text)[length] == ';' || !(*text)[length]);
  if (found) *text += length;
  *option |= found;
  return found;
}

static bool has_stages(const mpg_mesh *mesh) { return !strcmp(mesh->axes[0].name, "stage"); }

mpg_status mpg_mesh_parse(const char *text, mpg_arena *arena, mpg_mesh *mesh) {
  *mesh = (mpg_mesh){.text = text};
  const char *devices = strchr(text, ';'), *at = text;
  if (!devices) return malformed(text);
  int count = 1;
  while (at < devices) {
    const char *end = memchr(at, ',', (size_t)(devices - at));
    if (!end) end = devices;
    if (mesh->num_axes == MPG_MESH_AXES) return malformed(text);
    MPG_TRY(parse_axis(text, at, end, arena, &mesh->axes[mesh->num_axes]));
    count *= mesh->axes[mesh->num_axes++].size;
    if (count > MPG_MAX_SPANNED) return malformed(text);
    at = end + (end < devices);
  }
  const char *more = strchr(++devices, ';');
  size_t length = more ? (size_t)(more - devices) : strlen(devices);
  char *list = mpg_arena_alloc(arena, length + 1);
  mpg_device_id *places = mpg_arena_alloc(arena, MPG_MAX_SPANNED * sizeof *places);
  if (!list || !places) return mpg_out_of_host_memory(MPG_MAX_SPANNED * sizeof *places);
  memcpy(list, devices, length);
  list[length] = 0;
  mesh->num_devices = mpg_collective_places(list, places, MPG_MAX_SPANNED);
  mesh->devices = places;
  while (more &&
         (takes(&more, ";exact", &mesh->exact) || takes(&more, ";tree", &mesh->tree) ||
          takes(&more, ";ulysses", &mesh->ulysses) || takes(&more, ";gather", &mesh->gathers) ||
          takes(&more, ";ring", &mesh->ring) || takes(&more, ";keep", &mesh->keeps)));
  bool valid = mesh->num_devices == count && mesh->num_axes > has_stages(mesh) && (!more || !*more);
  for (int i = 0; valid && !mesh->tree && i < count; i++)
    for (int k = 0; k < i; k++) valid &= !mpg_device_id_equal(places[i], places[k]);
  for (int m = 0; valid && m < mesh->num_axes; m++)
    valid = mpg_mesh_find(mesh, mesh->axes[m].name, strlen(mesh->axes[m].name)) == m;
  return valid ? MPG_OK : malformed(text);
}

int mpg_mesh_take_stages(mpg_mesh *mesh) {
  if (!has_stages(mesh)) return 1;
  int stages = mesh->axes[0].size;
  mesh->num_devices /= stages;
  mesh->num_axes--;
  memmove(mesh->axes, mesh->axes + 1, (size_t)mesh->num_axes * sizeof *mesh->axes);
  return stages;
}

int mpg_mesh_find(const mpg_mesh *mesh, const char *name, size_t length) {
  for (int m = 0; m < mesh->num_axes; m++)
    if (strlen(mesh->axes[m].name) == length && !memcmp(mesh->axes[m].name, name, length)) return m;
  return -1;
}

int mpg_mesh_index(const mpg_mesh *mesh, const mpg_coordinates *place) {
  int index = 0;
  for (int m = 0; m < mesh->num_axes; m++) index = index * mesh->axes[m].size + place->at[m];
  return index;
}

int64_t mpg_mesh_begin(const mpg_mesh *mesh, int axis, int64_t size, int part) {
  const mpg_mesh_axis *a = &mesh->axes[axis];
  if (!a->weights) return mpg_part_begin(size, a->size, part);
  int64_t before = 0;
  for (int i = 0; i < part; i++) before += a->weights[i];
  /* size * before / total, rounded; without a product that could overflow */
  int64_t rest = size % a->total;
  return size / a->total * before + (2 * rest * before + a->total) / (2 * a->total);
}

bool mpg_mesh_divides(const mpg_mesh *mesh, int axis, int64_t size) {
  for (int k = 0; k < mesh->axes[axis].size; k++)
    if (mpg_mesh_count(mesh, axis, size, k) < 1) return false;
  return true;
}

bool mpg_layout_divided(const mpg_layout *layout) {
  for (int m = 0; m < MPG_MESH_AXES; m++)
    if (layout->cuts[m].on) return true;
  return false;
}

bool mpg_cut_equal(const mpg_mesh *mesh, int axis, const mpg_cut *a, const mpg_cut *b) {
  if (a->on != b->on) return false;
  if (!a->on) return true;
  if (a->digit.axis != b->digit.axis || a->digit.outer != b->digit.outer ||
      a->size * a->digit.inner != b->size * b->digit.inner)
    return false;
  for (int k = 1; k < mesh->axes[axis].size; k++)
    if (mpg_mesh_begin(mesh, axis, a->size, k) * a->digit.inner !=
        mpg_mesh_begin(mesh, axis, b->size, k) * b->digit.inner)
      return false;
  return true;
}

/* True if digit a is part of the outer size of digit b. */
static bool is_major(const mpg_cut *a, const mpg_cut *b) {
  return a->digit.inner % (b->size * b->digit.inner) == 0;
}

bool mpg_cut_apart(const mpg_cut *a, const mpg_cut *b) {
  return !a->on || !b->on || a->digit.axis != b->digit.axis || is_major(a, b) || is_major(b, a);
}

bool mpg_layout_apart(const mpg_layout *layout, const mpg_cut *cut) {
  for (int m = 0; m < MPG_MESH_AXES; m++)
    if (!mpg_cut_apart(&layout->cuts[m], cut)) return false;
  return true;
}

bool mpg_layout_equal(const mpg_mesh *mesh, const mpg_layout *a, const mpg_layout *b) {
  for (int m = 0; m < mesh->num_axes; m++)
    if (!mpg_cut_equal(mesh, m, &a->cuts[m], &b->cuts[m])) return false;
  return true;
}

mpg_shape mpg_layout_shape(const mpg_mesh *mesh, const mpg_layout *layout,
                           const mpg_coordinates *place, const mpg_shape *whole) {
  mpg_shape shape = *whole;
  for (int m = 0; m < mesh->num_axes; m++) {
    const mpg_cut *cut = &layout->cuts[m];
    if (cut->on)
      shape.dims[cut->digit.axis] = shape.dims[cut->digit.axis] / cut->size *
                                    mpg_mesh_count(mesh, m, cut->size, place->at[m]);
  }
  return shape;
}

mpg_digit mpg_layout_digit(const mpg_mesh *mesh, const mpg_layout *layout,
                           const mpg_coordinates *place, const mpg_cut *cut) {
  mpg_digit digit = cut->digit;
  for (int m = 0; m < mesh->num_axes; m++) {
    const mpg_cut *other = &layout->cuts[m];
    if (!other->on || other->digit.axis != digit.axis) continue;
    int64_t count = mpg_mesh_count(mesh, m, other->size, place->at[m]);
    if (is_major(other, cut))
      digit.outer = digit.outer / other->size * count;
    else if (is_major(cut, other))
      digit.inner = digit.inner / other->size * count;
  }
  return digit;
}

mpg_shape mpg_layout_begin(const mpg_mesh *mesh, const mpg_layout *layout,
                           const mpg_coordinates *place, int ndim) {
  mpg_shape begin = {.ndim = ndim};
  for (int m = 0; m < mesh->num_axes; m++) {
    const mpg_cut *cut = &layout->cuts[m];
    if (!cut->on || begin.dims[cut->digit.axis] < 0) continue;
    int64_t first = mpg_mesh_begin(mesh, m, cut->size, place->at[m]) * cut->digit.inner;
    bool contiguous = mpg_layout_digit(mesh, layout, place, cut).outer == 1;
    begin.dims[cut->digit.axis] = contiguous ? begin.dims[cut->digit.axis] + first : -1;
  }
  return begin;
}

bool mpg_coordinates_next(const mpg_mesh *mesh, const bool *axes, mpg_coordinates *place) {
  for (int m = mesh->num_axes; m-- > 0;) {
    if (!axes[m]) continue;
    if (++place->at[m] < mesh->axes[m].size) return true;
    place->at[m] = 0;
  }
  return false;
}
