/* Internal to memory planning: shared by plan.c and slices.c. */
#ifndef MPG_GRAPH_SCHEDULE_PLANNER_H
#define MPG_GRAPH_SCHEDULE_PLANNER_H

#include "base/workspace.h"
#include "graph/schedule/plan.h"

enum { MPG_PLAN_ALIGNMENT = 64 };
#define MPG_FOREVER UINT32_MAX
#define MPG_NO_SLICE UINT32_MAX

typedef struct mpg_lifetime {
  uint32_t begin, end; /* positions in the order, both inclusive */
} mpg_lifetime;

typedef struct mpg_planner {
  const mpg_plan_request *request;
  const mpg_graph *graph;
  mpg_plan *plan;
  mpg_lifetime *lives; /* per root: when its memory is in use */
  bool *planned;       /* per root: true if it needs a location in a block */
  bool *pushed;        /* per root: true if another device pushes it into a lane */
  bool *written;       /* per value: true if an effect writes it */
  uint32_t *taken; /* per root: the external array of all values with this root, or MPG_NO_BASE */
  bool *sliced;    /* per root: true if other values are slices of its memory */
  /* Per root: the value whose memory contains its own, and the offset in it, or MPG_NO_SLICE. */
  struct mpg_slice {
    uint32_t of;
    size_t offset;
  } *slices;
  mpg_workspace space;
} mpg_planner;

/* Returns the value whose memory a value uses. */
static inline uint32_t mpg_plan_root(mpg_plan *plan, uint32_t value) {
  while (plan->roots[value] != value) {
    /* Path compression, because chains of in-place ops can be long. */
    plan->roots[value] = plan->roots[plan->roots[value]];
    value = plan->roots[value];
  }
  return value;
}

/* slices.c. Both shorten the list of planned values.
 * Lets the parts of a split be slices of its input. */
void mpg_plan_share_splits(mpg_planner *p);
/* Lets received parts of a concatenation be slices of its output. */
void mpg_plan_share_joins(mpg_planner *p);

#endif
