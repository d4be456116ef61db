/* Partitioning: divides a graph over the devices of meshes.
 *
 * The user annotates a few values (_contrib_sharded): dimension i of the value is cut along an axis
 * of the mesh. The pass propagates the cuts through the graph with the sharding rules of the ops
 * (propagate.c), replaces ops that cannot be divided by ops that can (compose.c), and then replaces
 * every divided node by a node for each device, with copies, concatenations and sums where the
 * layouts of values change (expand.c). The result is an ordinary graph on many devices, so all
 * later passes, gradients included, need not know about meshes.
 *
 * The pass runs after the rewrites, so that rewrites do not depend on how a graph is divided.
 * Nodes that are not divided run on the first device of their mesh.
 *
 * Threads: callers hold the host lock. */
#ifndef MPG_GRAPH_PARTITION_PARTITION_H
#define MPG_GRAPH_PARTITION_PARTITION_H

#include "graph/ir/graph.h"
#include "graph/partition/mesh.h"

typedef struct mpg_partition_request {
  mpg_graph *graph; /* replaced by the divided graph */
  /* Inputs of the graph; replaced by the corresponding inputs of the divided graph. */
  mpg_value *inputs;
  size_t num_inputs;
  const bool *wanted; /* per input: true if its gradient is needed */
  /* The graph runs on micro-batches, and each draws its part of the random numbers. Random
   * ops are then not divided. */
  bool micro_batches;
  bool exact; /* refuse cuts that change bits, for all meshes */
  /* Receives a line for each divided value ("cut", op, block path, shape, and for each axis of the
   * mesh "dimension axis annotation path"), for each transfer ("move", kind, op, block path, shape,
   * bytes), and for each input that is whole but used in parts ("want", index, axis of the mesh,
   * dimension, outer, inner), with tabs between the fields. May be NULL. */
  mpg_text *report;
} mpg_partition_request;

typedef struct mpg_partition_result {
  bool changed; /* an annotation of the graph names a mesh */
  bool trees;   /* sums over the parts are trees */
} mpg_partition_result;

/* True if the graph has annotations that name a mesh. */
bool mpg_graph_names_mesh(const mpg_graph *graph);
mpg_status mpg_graph_partition(const mpg_partition_request *request, mpg_partition_result *result);

/* --- Internal to the pass --------------------------------------------------------------------- */
/* How a node is divided along an axis of the mesh: the factor of its rule (-1: not divided), and
 * the digit of the factor that is cut (factor->size == outer * size * inner). */
typedef struct mpg_node_cut {
  int factor;
  int64_t outer, size, inner;
} mpg_node_cut;

typedef struct mpg_part_node {
  mpg_node_cut cuts[MPG_MESH_AXES];
  bool known, divided;
  /* Mixtures of experts (experts.c): 1 + the node `combine` of the mixture that the node belongs
   * to, and for `combine` itself, 1 + the node `dispatch`; otherwise 0. */
  uint32_t mixture, dispatch;
  mpg_value *routes; /* `combine`: order and counts at each place of the mesh; may be NULL */
  mpg_sharding rule; /* valid if `known` */
} mpg_part_node;

typedef struct mpg_part_value {
  mpg_layout layout;
  uint32_t why[MPG_MESH_AXES]; /* 1 + the annotation that caused the cut */
  bool fixed;                  /* annotated */
  bool stored;                 /* the layout is only how the value is stored, and does not spread */
  /* Expansion. */
  uint32_t same_as;            /* 1 + the value that is fetched instead; 0 for this value */
  mpg_value *pieces;           /* per device of the mesh */
  struct mpg_fetched *fetched; /* parts with other layouts */
} mpg_part_value;

typedef struct mpg_partitioning {
  const mpg_partition_request *request;
  const mpg_graph *graph; /* the source */
  mpg_arena arena;
  mpg_mesh *meshes;
  int num_meshes;
  size_t meshes_capacity;
  const mpg_mesh **mesh_of; /* per value: the mesh whose first device has it; NULL if none */
  mpg_part_node *nodes;
  mpg_part_value *values;
  bool *live;  /* per node */
  bool *wants; /* per value: its gradient is needed */
} mpg_partitioning;

static inline bool mpg_node_annotates(const mpg_node *node) {
  return mpg_node_flag(node, MPG_OP_ANNOTATES);
}
static inline const mpg_mesh *mpg_part_mesh(const mpg_partitioning *p, const mpg_node *node) {
  return node->num_outputs ? p->mesh_of[node->values] : NULL;
}
/* Returns the cut of an operand that a cut of a node causes; off if the operand lacks the
 * factor. Operands are the inputs, then the outputs. */
mpg_cut mpg_part_cut(const mpg_part_node *node, int axis, int operand);
/* Returns the cut of an array whose digit `digit` has the node's factor. */
mpg_cut mpg_part_cut_of(const mpg_node_cut *cut, const mpg_digit *digit);
/* Returns the digit that a factor has in the array of random numbers that a node draws, and the
 * array's shape; axis is -1 if the array does not have the factor. */
mpg_digit mpg_part_drawn(const mpg_part_node *part, const mpg_factor *factor, mpg_shape *drawn);
/* True if a node is BatchNorm, or a form of it, that computes statistics of its batch. If it is
 * divided, sums and elementwise ops replace it (compose.c). */
bool mpg_part_composes(const mpg_partitioning *p, const mpg_node *node);
/* Gives the nodes that are appended to `target` from now on the settings of a source node, and
 * takes back the settings after the last node. */
static inline void mpg_partition_enter(mpg_graph *target, const mpg_node *node) {
  target->scope = node->scope;
  target->origin = node->origin;
  target->train = node->train;
  target->phase = node->phase;
  target->family = node->family;
  target->recompute_region = node->recompute_region;
  target->offload = node->offload;
}
static inline void mpg_partition_leave(mpg_graph *target, const mpg_graph *source) {
  target->scope = target->origin = target->recompute_region = 0;
  target->offload = (mpg_device_id){0};
  if (target->num_random < source->num_random) target->num_random = source->num_random;
  target->num_recompute_regions = source->num_recompute_regions;
}
/* Finds the sharding rule of a node, once. */
mpg_status mpg_part_find_rule(mpg_partitioning *p, uint32_t n);
mpg_status mpg_partition_propagate(mpg_partitioning *p);
/* Replaces nodes that cannot follow the cuts of their operands. Sets *changed if there are any, and
 * then `target` is a graph that must be partitioned, and the first piece of each value is its
 * counterpart there. */
mpg_status mpg_partition_compose(mpg_partitioning *p, mpg_graph *target, bool *changed);
mpg_status mpg_partition_expand(mpg_partitioning *p, mpg_graph *target);

/* Finds the mixtures of experts (experts.c). */
mpg_status mpg_experts_find(mpg_partitioning *p);
/* Returns the axis of the mesh whose devices compute the rows of their experts, if `combine` ends a
 * mixture whose experts are divided along this axis only; -1 otherwise. */
int mpg_experts_axis(const mpg_partitioning *p, uint32_t combine);
/* Returns the tokens of the mixture that `combine` ends; no value if it has other axes than the
 * result. */
mpg_value mpg_experts_tokens(const mpg_partitioning *p, uint32_t combine);
/* True if parts of the tokens can be routed on their own, because no expert has a capacity. */
bool mpg_experts_group(const mpg_partitioning *p, uint32_t combine);

/* A part of an array whose elements along `axis` an op selects by indices (lookup.c). */
typedef struct mpg_lookup {
  int axis;
  int64_t begin, count, whole; /* range of the part, and size of the whole axis */
} mpg_lookup;
/* Replaces indices into the whole by indices into the part, and sets *inside to 1 for each index
 * that the part has. */
mpg_status mpg_lookup_begin(mpg_graph *target, const mpg_lookup *lookup, mpg_value *indices,
                            mpg_value *inside);
/* Replaces the results for indices of other parts by zeros. */
mpg_status mpg_lookup_end(mpg_graph *target, const mpg_lookup *lookup, mpg_value inside,
                          mpg_value *output);

#endif
