/* From a group of an order to what a backend runs (op/fused.h). For lower.c.
 *
 * Ownership: results live in the given arena. Threads: host lock.
 */
#ifndef MPG_GRAPH_PROGRAM_LOWER_FUSED_H
#define MPG_GRAPH_PROGRAM_LOWER_FUSED_H

#include "graph/schedule/fuse.h"
#include "graph/schedule/plan.h"

typedef struct mpg_fused_call {
  mpg_fused *fused;    /* NULL: the group needs no kernel */
  mpg_value *operands; /* the values outside: inputs, then outputs */
  uint32_t num_inputs, num_outputs;
  uint32_t first;  /* node of its first kernel: block path and line of the whole */
  uint32_t random; /* one more than the largest call number of a member; 0: none */
} mpg_fused_call;

mpg_status mpg_fused_make(const mpg_graph *graph, const mpg_order *order, const mpg_plan *plan,
                          const mpg_fusion_group *group, const mpg_device *device, mpg_arena *arena,
                          mpg_fused_call *call);

/* The domain ("|": tiles are whole behind it), then a line for each member: values are in0 and out0
 * where they have memory, and named by the slot that they share where they have none. Stable text
 * for tests. */
void mpg_fused_dump(const mpg_fused *fused, mpg_text *text);

#endif
