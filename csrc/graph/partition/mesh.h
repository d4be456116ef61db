/* Device meshes and layouts: how a value is divided over the devices of a mesh.
 *
 * A mesh is an array of devices with named axes. Values that are not divided are on the mesh's
 * first device. A layout has at most one cut for each axis of the mesh. A cut divides a digit of an
 * axis of the value (mpg_digit in op/sharding/sharding.h): the axis has outer * size * inner
 * elements, and part k consists of the indices [begin(k), begin(k + 1)) of `size`. The parts may
 * have different sizes. Two cuts of a value cover different digits.
 *
 * The part of a value for given coordinates along the mesh's axes is on the device with these
 * coordinates; the coordinate along an axis without a cut is 0.
 *
 * Ownership: a mesh belongs to the arena that it was parsed into. Threads: any. */
#ifndef MPG_GRAPH_PARTITION_MESH_H
#define MPG_GRAPH_PARTITION_MESH_H

#include "base/memory.h"
#include "op/sharding/sharding.h"

enum { MPG_MESH_AXES = 6, MPG_MESH_PARTS = 512, MPG_MESH_NAME = 24 };
/* Largest sum of the weights along an axis. */
enum { MPG_MESH_SHARES = 1 << 30 };

typedef struct mpg_mesh_axis {
  char name[MPG_MESH_NAME];
  int size;               /* number of devices along the axis */
  const int64_t *weights; /* share of each device; NULL for equal shares */
  int64_t total;          /* sum of the weights */
} mpg_mesh_axis;

typedef struct mpg_mesh {
  const char *text; /* interned */
  int num_axes, num_devices;
  mpg_mesh_axis axes[MPG_MESH_AXES];
  const mpg_device_id *devices; /* the last axis varies fastest */
  bool exact;                   /* refuse cuts that change bits */
  /* Sums over the parts are binary trees, whose shape depends on the sizes of the axes only. A
   * device may then be at several places of the mesh. */
  bool tree;
  /* Attention that is cut along time gathers keys and values, cuts heads instead (Ulysses), or
   * reads one part of the keys at a time. If none is set, it takes the one of the first two that
   * copies fewer bytes. */
  bool gathers, ulysses, ring;
  bool keeps; /* stored parameters are whole from the forward to the backward phase (ZeRO-2) */
} mpg_mesh;

typedef struct mpg_cut {
  bool on;
  mpg_digit digit;
  int64_t size;
} mpg_cut;

typedef struct mpg_layout {
  mpg_cut cuts[MPG_MESH_AXES];
} mpg_layout;

typedef struct mpg_coordinates { /* coordinates along the axes of a mesh */
  int at[MPG_MESH_AXES];
} mpg_coordinates;

/* Parses "data=2,model=2;cpu(0),cpu(1),cpu(2),cpu(3)", where a size may be a list of weights
 * ("shard=3:1"). The options exact, tree, gather, ulysses, ring and keep may follow, each after a
 * semicolon. `text` is interned. */
mpg_status mpg_mesh_parse(const char *text, mpg_arena *arena, mpg_mesh *mesh);
/* If the first axis is "stage", removes it, so that the mesh consists of the devices of the first
 * stage. The devices of the next stages follow in the array. Returns the number of stages, 1
 * without this axis. */
int mpg_mesh_take_stages(mpg_mesh *mesh);
int mpg_mesh_find(const mpg_mesh *mesh, const char *name, size_t length); /* index, or -1 */
int mpg_mesh_index(const mpg_mesh *mesh, const mpg_coordinates *place);   /* in mesh->devices */
static inline mpg_device_id mpg_mesh_device(const mpg_mesh *mesh, const mpg_coordinates *place) {
  return mesh->devices[mpg_mesh_index(mesh, place)];
}
/* Returns the first index of part `part` of `size` indices that are divided along an axis. */
int64_t mpg_mesh_begin(const mpg_mesh *mesh, int axis, int64_t size, int part);
static inline int64_t mpg_mesh_count(const mpg_mesh *mesh, int axis, int64_t size, int part) {
  return mpg_mesh_begin(mesh, axis, size, part + 1) - mpg_mesh_begin(mesh, axis, size, part);
}
/* True if every part of `size` indices has at least one index. */
bool mpg_mesh_divides(const mpg_mesh *mesh, int axis, int64_t size);

static inline bool mpg_digit_equal(const mpg_digit *a, const mpg_digit *b) {
  return a->axis == b->axis && a->outer == b->outer && a->inner == b->inner;
}
bool mpg_layout_divided(const mpg_layout *layout);
/* True if two cuts along an axis of the mesh give the same parts. */
bool mpg_cut_equal(const mpg_mesh *mesh, int axis, const mpg_cut *a, const mpg_cut *b);
/* True if the cuts cover different digits, so that a value may have both. */
bool mpg_cut_apart(const mpg_cut *a, const mpg_cut *b);
/* True if the cut is apart from all cuts of a layout. */
bool mpg_layout_apart(const mpg_layout *layout, const mpg_cut *cut);
bool mpg_layout_equal(const mpg_mesh *mesh, const mpg_layout *a, const mpg_layout *b);
/* Returns the shape of the part at a place. */
mpg_shape mpg_layout_shape(const mpg_mesh *mesh, const mpg_layout *layout,
                           const mpg_coordinates *place, const mpg_shape *whole);
/* Returns the index in the whole of the first element of a part along each axis. It is -1 if the
 * part is not contiguous along the axis. */
mpg_shape mpg_layout_begin(const mpg_mesh *mesh, const mpg_layout *layout,
                           const mpg_coordinates *place, int ndim);
/* Returns the digit that a cut covers within the part at a place of an array with this layout. The
 * cut itself, and cuts that are not apart from it, are not counted. */
mpg_digit mpg_layout_digit(const mpg_mesh *mesh, const mpg_layout *layout,
                           const mpg_coordinates *place, const mpg_cut *cut);
/* Moves `place` to the next coordinates along the axes in `axes`. Returns false after the last. */
bool mpg_coordinates_next(const mpg_mesh *mesh, const bool *axes, mpg_coordinates *place);

#endif
