/* Open groups of a fusion (fuse.c): their nodes, their common domain, and the dims of each value on
 * it. A group contains no pointers, so a step that may fail is tried on a copy. Ownership: the
 * caller owns it. Threads: callers hold the host lock. */
#ifndef MPG_GRAPH_SCHEDULE_FUSE_GROUPS_H
#define MPG_GRAPH_SCHEDULE_FUSE_GROUPS_H

#include "graph/ir/analysis.h"
#include "graph/schedule/fuse.h"

typedef struct mpg_open_group {
  mpg_device_id device;
  uint32_t segment;
  bool open; /* more nodes may join */
  mpg_domain domain;
  uint32_t last;        /* position of its last kernel in the order */
  uint32_t num_kernels; /* number of members except views */
  uint32_t num_members, num_uses, num_trailing;
  uint32_t producer; /* node number; MPG_NO_NODE means none */
  int64_t panel;     /* number of elements per panel of the producer */
  /* With many threads panels are smaller, but remain multiples of this number of elements. */
  int64_t least;
  bool generated; /* the device generates its kernel */
  uint32_t row;   /* dims that a generated kernel reduces; 0 means none */
  mpg_dtype row_dtype;
  uint32_t members[MPG_FUSED_MAX_MEMBERS]; /* positions, ascending */
  mpg_fused_use uses[MPG_FUSED_MAX_VALUES];
} mpg_open_group;

/* A node that may join groups. */
typedef struct mpg_fuse_candidate {
  const mpg_node *node;
  uint32_t number, position, segment;
  mpg_fuse_kind kind;
  bool generated;         /* the device generates the kernels of its groups */
  mpg_fuse_action action; /* valid for MAP, REDUCE, ROWS and PRODUCER */
  mpg_product product;    /* valid for PRODUCER */
} mpg_fuse_candidate;

/* Returns the group's use of a value, or NULL. */
mpg_fused_use *mpg_open_group_use(mpg_open_group *g, uint32_t value);
/* Returns the last dim of the domain that tiles cut, or -1 if tiles cut no dim. */
int mpg_open_group_split(const mpg_domain *domain, const mpg_fused_use *uses, size_t count);

/* Starts a group with one node. Returns false if the node cannot be in a group. */
bool mpg_open_group_begin(mpg_open_group *g, const mpg_graph *graph, const mpg_fuse_candidate *c);
/* Adds a view of a value that the group uses. Returns false if it cannot be added. */
bool mpg_open_group_add_view(mpg_open_group *g, const mpg_graph *graph,
                             const mpg_fuse_candidate *c);
/* Adds a MAP, REDUCE or ROWS that reads from the group. If it returns false, g is invalid. */
bool mpg_open_group_join(mpg_open_group *g, const mpg_graph *graph, const mpg_fuse_candidate *c);
/* Merges `other` into g, which reads the value `value` computed by `other`. If it returns false, g
 * is invalid. */
bool mpg_open_group_merge(mpg_open_group *g, mpg_open_group *other, uint32_t value);
/* Merges adjacent dims if each value varies along both or neither. */
void mpg_open_group_collapse(mpg_open_group *g);

/* fuse_order.c: moves trailing reductions, and maps that follow a producer, to directly after their
 * inputs. `moved` is set only if the order changes; its segments are borrowed. `kinds` and
 * `unfused` are as in mpg_graph_fuse, and `facts` are of the order. */
mpg_status mpg_fuse_order(const mpg_graph *graph, const mpg_order *order, const uint8_t *kinds,
                          const bool *unfused, const mpg_analysis *facts, mpg_order *moved);

#endif
