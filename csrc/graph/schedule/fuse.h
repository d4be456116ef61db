/* Operator fusion: runs of nodes of an order that execute as one pass over memory.
 *
 * Nothing is rewritten: a fusion is an annotation of an order. A fused group is a run of adjacent
 * positions: elementwise ops, broadcasts, reductions and views on one device, all moved to the
 * position of the last one. Values are described on the group's domain (op/fused.h). A value that
 * only the group reads gets no memory. Results are bit-identical: members are computed by the
 * expressions of their own kernels, on tiles that never cut the range of a reduction. A reduction
 * along outer dims ends a group (a trailing reduction). It is moved directly after its input, so
 * that no other reader of the input ends the group earlier. A product that is computed in panels of
 * rows (op/math/product.h) may be the producer of a group, which follows it panel by panel. Groups
 * for kernels that devices generate (op/fused.h) have no trailing reductions of this kind and no
 * producers, but may contain row ops.
 *
 * Ownership: a fusion belongs to its order. Threads: callers hold the host lock.
 */
#ifndef MPG_GRAPH_SCHEDULE_FUSE_H
#define MPG_GRAPH_SCHEDULE_FUSE_H

#include "graph/ir/graph.h"
#include "graph/schedule/domain.h"
#include "op/fused.h"

/* A tile spans a range of one dim and all later dims, which together have at most MAX_TILE
 * elements. A group of at most MAX_FEW elements may run on a single thread. */
enum { MPG_FUSED_MAX_TILE = 16384, MPG_FUSED_MAX_FEW = 65536 };

typedef struct mpg_fused_use { /* a value as seen by the members */
  uint32_t value;              /* index in graph->values */
  uint32_t varying;            /* bit i is set if the value varies along dim i of the domain */
  bool made;                   /* computed by a member */
  bool trailing;               /* computed by a trailing reduction, or a view of its result */
} mpg_fused_use;

typedef struct mpg_fusion_group {
  uint32_t first, count; /* positions in the order */
  int ndim, split;
  int64_t dims[MPG_MAX_NDIM];
  uint32_t row; /* bit mask of the dims of a row (see mpg_fused) */
  mpg_dtype row_dtype;
  uint32_t uses, num_uses; /* the group's uses start at fusion->uses[uses] */
  uint32_t producer;       /* node of the product that the group follows; MPG_NO_NODE means none */
} mpg_fusion_group;

#define MPG_NO_GROUP UINT32_MAX
typedef struct mpg_fusion {
  mpg_fusion_group *groups;
  uint32_t num_groups;
  uint32_t *group_of; /* per position; MPG_NO_GROUP means not in a group */
  bool *internal;     /* per value: true if only its group reads it, so it has no memory */
  mpg_fused_use *uses;
  size_t num_uses, groups_capacity, uses_capacity;
} mpg_fusion;

/* Annotates a copy of the order. `external` and `saved` are as in mpg_plan_request. `kinds` has the
 * kind of each node in the order (mpg_fuse_kind_of), and `unfused` marks nodes that join no group.
 * `fused` is set only if *changed. */
mpg_status mpg_graph_fuse(const mpg_graph *graph, const mpg_order *order, const uint32_t *external,
                          const bool *saved, const uint8_t *kinds, const bool *unfused,
                          mpg_order *fused, bool *changed);
void mpg_fusion_free(mpg_fusion *fusion); /* NULL is allowed */

/* Returns the group of a position, or NULL. mpg_order_first and mpg_order_last return the first
 * and last position of this group, or the position itself if it is in no group. */
static inline const mpg_fusion_group *mpg_order_group(const mpg_order *order, size_t position) {
  return order->fusion && order->fusion->group_of[position] != MPG_NO_GROUP
             ? &order->fusion->groups[order->fusion->group_of[position]]
             : NULL;
}
static inline uint32_t mpg_order_first(const mpg_order *order, size_t position) {
  const mpg_fusion_group *group = mpg_order_group(order, position);
  return group ? group->first : (uint32_t)position;
}
static inline uint32_t mpg_order_last(const mpg_order *order, size_t position) {
  const mpg_fusion_group *group = mpg_order_group(order, position);
  return group ? group->first + group->count - 1 : (uint32_t)position;
}

/* Kinds of nodes, for fusion and lowering. */
typedef enum mpg_fuse_kind {
  MPG_FUSE_NOT,
  MPG_FUSE_MAP,
  MPG_FUSE_REDUCE,
  MPG_FUSE_ROWS, /* row ops (op/math/rows.h) along the last axis; only in generated kernels */
  MPG_FUSE_VIEW,
  MPG_FUSE_PRODUCER
} mpg_fuse_kind;
mpg_fuse_kind mpg_fuse_kind_of(const mpg_graph *graph, const mpg_node *node);
/* Describes the product of a PRODUCER. Returns false if the node cannot be a producer. */
bool mpg_fuse_product(const mpg_graph *graph, const mpg_node *node, mpg_product *product);

/* How a node acts on its own domain. bits[i] is the set of dims along which operand i varies;
 * inputs come first, then outputs. */
typedef struct mpg_fuse_action {
  mpg_domain domain;
  uint32_t num_inputs;  /* inputs whose contents are read */
  uint32_t num_outputs; /* outputs with elements */
  uint32_t bits[MPG_MAX_NAMED];
  uint32_t row;      /* dims that a REDUCE reduces, or the dim of each row of ROWS; 0 means none */
  uint32_t trailing; /* bit i is set if output i of ROWS is summed over all rows */
} mpg_fuse_action;
/* Describes how a MAP, REDUCE or ROWS node acts on its domain. Returns false if the node does not
 * act on a single domain. */
bool mpg_fuse_describe(const mpg_graph *graph, const mpg_node *node, mpg_fuse_kind kind,
                       mpg_fuse_action *action);
void mpg_fused_strides(int ndim, const int64_t *dims, uint32_t varying, int64_t *strides);

#endif
