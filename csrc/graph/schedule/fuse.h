/* Fusion: runs of nodes of an order that become one pass over memory.
 *
 * Nothing is rewritten: a fusion is an annotation of an order. A fused group is a run of
 * neighbouring positions: elementwise ops, broadcasts, reductions and views on one device, all of
 * them moved to the place of the last. Values are described on the group's domain (op/fused.h); a
 * value that only the group reads gets no memory. Bits stay: members are computed by the
 * expressions of their own kernels, on tiles that never cut the range of a reduction. A reduction
 * along outer dims ends a group (a trailing reduction). It is moved right behind its input, so that
 * another reader of the input does not end the group before. A product that is computed in panels
 * of rows (op/math/product.h) may be the producer of a group, which follows it panel by panel.
 * Groups of kernels that devices generate (op/fused.h) have neither; they have rows instead.
 *
 * Ownership: belongs to its order. Threads: host lock.
 */
#ifndef MPG_GRAPH_SCHEDULE_FUSE_H
#define MPG_GRAPH_SCHEDULE_FUSE_H

#include "graph/ir/graph.h"
#include "graph/schedule/domain.h"
#include "op/fused.h"

/* Tiles split one dim and are whole along the dims behind it, which may have this many elements. */
enum {
  MPG_FUSED_MAX_TILE = 16384,
  MPG_FUSED_MAX_FEW = 65536
}; /* FEW: elements that may as well be done by one thread */

typedef struct mpg_fused_use { /* a value as the members see it */
  uint32_t value;              /* index in graph->values */
  uint32_t varying;            /* bit i: along dim i of the domain */
  bool made;                   /* by a member */
  bool trailing;               /* by a trailing reduction, or a view of its result */
} mpg_fused_use;

typedef struct mpg_fusion_group {
  uint32_t first, count; /* positions in the order */
  int ndim, split;
  int64_t dims[MPG_MAX_NDIM];
  uint32_t row; /* as mpg_fused's */
  mpg_dtype row_dtype;
  uint32_t uses, num_uses; /* first in fusion->uses */
  uint32_t producer;       /* node of the product that the others follow; UINT32_MAX: none */
} mpg_fusion_group;

typedef struct mpg_fusion {
  mpg_fusion_group *groups;
  uint32_t num_groups;
  uint32_t *group_of; /* per position; UINT32_MAX: a node by itself */
  bool *internal;     /* per value: read by its group alone, so it has no memory */
  mpg_fused_use *uses;
  size_t num_uses, groups_capacity, uses_capacity;
} mpg_fusion;

/* Annotates a copy of the order. external, saved: as for the plan. unfused: per node, those that
 * join no group. `fused` is filled only where *changed. */
mpg_status mpg_graph_fuse(const mpg_graph *graph, const mpg_order *order, const uint32_t *external,
                          const bool *saved, const bool *unfused, mpg_order *fused, bool *changed);
void mpg_fusion_free(mpg_fusion *fusion); /* NULL is allowed */

/* First and last position of the step a position belongs to. */
static inline const mpg_fusion_group *mpg_order_group(const mpg_order *order, size_t position) {
  return order->fusion && order->fusion->group_of[position] != UINT32_MAX
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

/* How a node acts on a domain; for the pass and for lowering. */
typedef enum mpg_fuse_kind {
  MPG_FUSE_NOT,
  MPG_FUSE_MAP,
  MPG_FUSE_REDUCE,
  MPG_FUSE_ROWS, /* op/math/rows.h, along the last axis; for generated kernels */
  MPG_FUSE_VIEW,
  MPG_FUSE_PRODUCER
} mpg_fuse_kind;
mpg_fuse_kind mpg_fuse_kind_of(const mpg_graph *graph, const mpg_node *node);
bool mpg_fuse_product(const mpg_graph *graph, const mpg_node *node,
                      mpg_product *product); /* of a PRODUCER */

/* How a node acts on its own domain: bits per input, then per output. */
typedef struct mpg_fuse_action {
  mpg_domain domain;
  uint32_t num_inputs;  /* whose contents are read */
  uint32_t num_outputs; /* that have elements */
  uint32_t bits[MPG_MAX_NAMED];
  uint32_t row;      /* dims that a REDUCE reduces, or along which ROWS are; 0: none */
  uint32_t trailing; /* bit i: output i of ROWS is summed over all of them */
} mpg_fuse_action;
/* False where a MAP, REDUCE or ROWS does not act on one domain. */
bool mpg_fuse_describe(const mpg_graph *graph, const mpg_node *node, mpg_fuse_kind kind,
                       mpg_fuse_action *action);
void mpg_fused_strides(int ndim, const int64_t *dims, uint32_t varying, int64_t *strides);

#endif
