/* Internal to the partitioning pass: shared by expand.c, fetch.c, draw.c, report.c, ring.c,
 * experts.c and tree.c. */
#ifndef MPG_GRAPH_PARTITION_EXPAND_H
#define MPG_GRAPH_PARTITION_EXPAND_H

#include "graph/partition/partition.h"

enum { MPG_FAN_BUCKETS = 256 };

typedef struct mpg_expansion {
  mpg_partitioning *p;
  mpg_graph *target;
  struct mpg_split_value *splits;
  struct mpg_fan *fans[MPG_FAN_BUCKETS];
  size_t bytes;    /* copied between devices so far, in the forward pass */
  bool regathers;  /* gathered inputs of the current node are gathered again for its gradient */
  bool prefetches; /* paced copies are prefetched */
} mpg_expansion;

/* Copies a value of the target to a device, unless it is there already. */
static inline mpg_status mpg_expand_move(mpg_expansion *e, mpg_value value, mpg_device_id device,
                                         bool paced, mpg_value *result) {
  const mpg_graph_value from = *mpg_graph_at(e->target, value);
  *result = value;
  if (mpg_device_id_equal(from.device, device)) return MPG_OK;
  e->bytes += mpg_desc_bytes(&from.desc);
  return mpg_graph_emit_move(e->target, value, device, paced, paced && e->prefetches, result);
}

/* Emits a node on the device of its first input. */
static inline mpg_status mpg_expand_emit(mpg_expansion *e, mpg_op_id op, const void *params,
                                         const mpg_value *inputs, int num_inputs,
                                         mpg_value *outputs) {
  return mpg_graph_emit(e->target, mpg_op_get(op), params, inputs, num_inputs, inputs[0], outputs);
}

/* --- Fetching (fetch.c) ----------------------------------------------------------------------- */
/* Makes a value of the source available in a layout on the device of a place, for a node at this
 * place, or for a node that is not divided along the axes without wanted cuts. */
mpg_status mpg_expand_fetch(mpg_expansion *e, uint32_t value, const mpg_layout *want,
                            const mpg_coordinates *place, mpg_value *result);
mpg_status mpg_expand_fetch_all(mpg_expansion *e, uint32_t value, const mpg_layout *want,
                                const mpg_coordinates *place, mpg_value *result);
/* Splits an array along a digit into the parts of all devices along an axis of the mesh, once. */
mpg_status mpg_expand_split(mpg_expansion *e, const mpg_mesh *mesh, int axis, const mpg_cut *cut,
                            const mpg_digit *digit, mpg_value value, mpg_value **parts);
/* Discards the fetched parts of a value that a node writes. `whole` is its piece in the target. */
void mpg_expand_forget(mpg_expansion *e, uint32_t value, mpg_value whole);

/* --- Random numbers (draw.c) ------------------------------------------------------------------ */
/* Gives the node of `output` the part of the random numbers of source node n that a place draws.
 * `num_random` is the target's number of draws before the node was emitted. */
void mpg_expand_draw(mpg_expansion *e, uint32_t n, const mpg_mesh *mesh,
                     const mpg_coordinates *place, mpg_value output, uint32_t num_random);

/* --- Report (report.c) ------------------------------------------------------------------------ */
/* Reports a transfer of a value: its kind and the bytes that it copies, unless these are 0. */
void mpg_expand_report(mpg_expansion *e, const char *kind, uint32_t value, size_t bytes);
/* Reports how a value is divided, and which annotations are the cause. */
void mpg_expand_report_layout(mpg_expansion *e, uint32_t node, uint32_t value);

/* --- Ring attention (ring.c) ------------------------------------------------------------------ */
/* True if a divided node is attention that is cut along time on a mesh with ring attention. */
bool mpg_ring_applies(const mpg_partitioning *p, uint32_t n, const mpg_mesh *mesh);
/* Emits the nodes of the attention, and sets the pieces of its results. */
mpg_status mpg_ring_divide(mpg_expansion *e, uint32_t n, const mpg_mesh *mesh);

/* --- Mixtures of experts (experts.c) ---------------------------------------------------------- */
/* Emits a node of a mixture on all devices along an axis of the mesh, for the rows of their
 * experts. */
mpg_status mpg_experts_divide(mpg_expansion *e, uint32_t n, int axis);
/* Sets the pieces to the rows of the experts of each place, sorted by token: (tokens..., k *
 * units), with zeros in rows of other experts. *layout receives the cuts along the other axes. Node
 * n is `combine`. */
mpg_status mpg_experts_sort(mpg_expansion *e, uint32_t n, int axis, mpg_layout *layout,
                            mpg_value *pieces);
/* Replaces the sums of these pieces along the axis, which have a layout, by the results of node
 * n. */
mpg_status mpg_experts_add(mpg_expansion *e, uint32_t n, int axis, const mpg_layout *layout,
                           mpg_value *pieces);

/* --- Trees (tree.c) --------------------------------------------------------------------------- */
/* The places [begin, end) of a mesh. */
typedef struct mpg_box {
  mpg_coordinates begin, end;
} mpg_box;

/* Returns where the first half of the places [begin, end) ends: they are divided like the leaves of
 * a binary tree. */
int mpg_tree_middle(int begin, int end);
/* Returns the box of the places that differ from `place` along the axes in `along` only. */
mpg_box mpg_box_around(const mpg_mesh *mesh, const bool *along, const mpg_coordinates *place);
/* Narrows a box to the half with `place`. Returns false if it has one place. */
bool mpg_box_narrow(mpg_box *box, const mpg_coordinates *place);
bool mpg_box_on_one_device(const mpg_mesh *mesh, const mpg_box *box);

/* Makes a value available at the places of `to`, a half of a half ... of `from`. Each box on the
 * way has a copy or view of the value, so that the gradient adds up the halves of each box. Calls
 * with the same `tree` share the boxes. */
mpg_status mpg_tree_fan(mpg_expansion *e, const mpg_mesh *mesh, const void *tree, mpg_value value,
                        const mpg_box *from, const mpg_box *to, bool paced, mpg_value *result);

#endif
