/* Open groups of a fusion (fuse.c): the nodes that have joined, their common domain, and how they
 * see each value on it. A group is a plain value, so a step that may fail is tried on a copy.
 * Ownership: the maker's. Threads: host lock. */
#ifndef MPG_GRAPH_SCHEDULE_FUSE_GROUPS_H
#define MPG_GRAPH_SCHEDULE_FUSE_GROUPS_H

#include "graph/ir/analysis.h"
#include "graph/schedule/fuse.h"

typedef struct mpg_open_group {
  mpg_device_id device;
  uint32_t segment;
  bool open; /* more nodes may join */
  mpg_domain domain;
  uint32_t last;        /* position of its last kernel */
  uint32_t num_kernels; /* members that are no views */
  uint32_t num_members, num_uses, num_trailing;
  uint32_t producer; /* node; UINT32_MAX: none */
  int64_t panel;     /* elements of the producer's panels */
  int64_t least;     /* elements of the smallest panels that many threads may want */
  bool generated;    /* its kernel is */
  uint32_t row;      /* dims that a generated kernel reduces; 0: none */
  mpg_dtype row_dtype;
  uint32_t members[MPG_FUSED_MAX_MEMBERS]; /* positions, ascending */
  mpg_fused_use uses[MPG_FUSED_MAX_VALUES];
} mpg_open_group;

/* A node that may join groups. */
typedef struct mpg_fuse_candidate {
  const mpg_node *node;
  uint32_t number, position, segment;
  mpg_fuse_kind kind;
  bool generated;         /* the device's groups are kernels that it generates */
  mpg_fuse_action action; /* of a MAP, REDUCE or PRODUCER */
  mpg_product product;    /* of a PRODUCER */
} mpg_fuse_candidate;

mpg_fused_use *mpg_open_group_use(mpg_open_group *g, uint32_t value); /* NULL: it sees it not */
/* The last dim of the domain that tiles cut; -1: none. */
int mpg_open_group_split(const mpg_domain *domain, const mpg_fused_use *uses, size_t count);

/* A group of one node. False: the node can't be in a group; then nothing is in g. */
bool mpg_open_group_begin(mpg_open_group *g, const mpg_graph *graph, const mpg_fuse_candidate *c);
/* Adds a view of a value that the group sees. False: it can't be added. */
bool mpg_open_group_add_view(mpg_open_group *g, const mpg_graph *graph,
                             const mpg_fuse_candidate *c);
/* Adds a MAP, REDUCE or ROWS that reads the group. False leaves g half changed. */
bool mpg_open_group_join(mpg_open_group *g, const mpg_graph *graph, const mpg_fuse_candidate *c);
/* Adds all of `other`, of which g reads `value`. False leaves g half changed. */
bool mpg_open_group_merge(mpg_open_group *g, mpg_open_group *other, uint32_t value);
/* Joins neighbouring dims along which all values vary, or none does. */
void mpg_open_group_collapse(mpg_open_group *g);

/* fuse_order.c: the order with trailing reductions, and maps that follow a producer, right behind
 * what they read. `moved` is filled only where it differs; its segments are borrowed. unfused: as
 * in mpg_graph_fuse; facts: of the order. */
mpg_status mpg_fuse_order(const mpg_graph *graph, const mpg_order *order, const bool *unfused,
                          const mpg_analysis *facts, mpg_order *moved);

#endif
